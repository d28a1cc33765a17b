//! How far the start has come: for the log, for systemd, and for the process that waits for a detached one.
//!
//! A line on standard output: `step <text>` when something begins, `ready <text>` at the end, or `runs <text>` where the end is that
//! another process runs the cluster. After that, or when nobody reads any more, nothing is written.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::notify;

/// Tells how far the start has come.
#[derive(Debug, Clone)]
pub struct Report {
    heard: Arc<AtomicBool>,
    /// What has begun, and is not done yet.
    current: Arc<Mutex<Option<String>>>,
}

/// A line of a report.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Something begins.
    Step(&'a str),
    /// All of it is done.
    Ready(&'a str),
    /// Another process has done it: the cluster runs.
    Runs(&'a str),
}

impl Report {
    /// To the log, and to standard output if somebody waits there.
    pub fn new(heard: bool) -> Self {
        Self { heard: Arc::new(AtomicBool::new(heard)), current: Arc::default() }
    }

    /// Something begins.
    pub fn step(&self, text: &str) {
        tracing::info!("{text}");
        self.begun(Some(text.to_owned()));
        self.write("step", text);
    }

    /// The cluster is ready.
    pub fn ready(&self, text: &str) {
        tracing::info!("{text}");
        self.begun(None);
        self.write("ready", text);
        notify::ready();
        self.heard.store(false, Ordering::Relaxed);
    }

    /// A signal ends it all. What it ends before it was done is told.
    pub fn interrupted(&self) {
        if let Some(text) = self.begun(None) {
            tracing::warn!("interrupted while {text}");
        }
    }

    /// Another process runs the cluster already. This one ends.
    pub fn runs(&self, text: &str) {
        self.write("runs", text);
        self.heard.store(false, Ordering::Relaxed);
    }

    /// Notes what has begun now. Returns what had begun before.
    fn begun(&self, text: Option<String>) -> Option<String> {
        std::mem::replace(&mut *self.current.lock().unwrap_or_else(PoisonError::into_inner), text)
    }

    fn write(&self, kind: &str, text: &str) {
        if !self.heard.load(Ordering::Relaxed) {
            return;
        }
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, "{kind} {text}").and_then(|()| stdout.flush()).is_err() {
            self.heard.store(false, Ordering::Relaxed);
        }
    }
}

/// Reads a line.
pub fn parse(line: &str) -> Option<Line<'_>> {
    match line.split_once(' ')? {
        ("step", text) => Some(Line::Step(text)),
        ("ready", text) => Some(Line::Ready(text)),
        ("runs", text) => Some(Line::Runs(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_interrupted_is_what_had_begun_last() {
        let report = Report::new(false);
        assert_eq!(report.begun(None), None);
        report.step("starting containerd");
        report.clone().step("waiting for the node");
        assert_eq!(report.begun(None).as_deref(), Some("waiting for the node"));
        report.step("waiting for the node");
        report.ready("the cluster is ready");
        assert_eq!(report.begun(None), None);
    }

    #[test]
    fn lines() {
        assert_eq!(parse("step a b"), Some(Line::Step("a b")));
        assert_eq!(parse("ready x"), Some(Line::Ready("x")));
        assert_eq!(parse("runs x (pid 7)"), Some(Line::Runs("x (pid 7)")));
        assert_eq!(parse("hello"), None);
        assert_eq!(parse(""), None);
    }
}
