#![expect(clippy::disallowed_methods, reason = "shell: it notes when things happened")]
//! What a drill saw and did: for the person who watches, for the timeline, and for the verdict.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use carrack_plot::{Timeline, Tone};
use serde::Serialize;

use super::rules::Rule;
use crate::progress::Progress;

/// How it stands with an invariant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// How often it was looked at, and held.
    pub looks: u64,
    /// How it broke first.
    pub broken: Option<String>,
}

/// What is told of an invariant at the end.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Its mark in the documents.
    pub mark: &'static str,
    /// Its name.
    pub invariant: &'static str,
    /// What must hold.
    pub sentence: &'static str,
    /// How it stands.
    #[serde(flatten)]
    pub standing: Standing,
}

/// Notes taken by all who look, from several threads.
#[derive(Debug)]
pub struct Journal {
    began: Instant,
    notes: Mutex<Notes>,
}

#[derive(Debug)]
struct Notes {
    timeline: Timeline,
    progress: Progress,
    standings: BTreeMap<&'static str, Standing>,
}

impl Journal {
    /// Nothing has happened.
    pub fn new(title: &str) -> Self {
        let notes = Notes { timeline: Timeline::new(title), progress: Progress::new(), standings: BTreeMap::new() };
        Self { began: Instant::now(), notes: Mutex::new(notes) }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since the beginning.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The drill does something.
    pub fn step(&self, text: &str) {
        let (at, mut notes) = (self.now(), self.notes());
        notes.timeline.step(at, text, Tone::Plain);
        notes.progress.step(text);
    }

    /// Something was found out that a reader should know.
    pub fn note(&self, text: &str) {
        let (at, mut notes) = (self.now(), self.notes());
        notes.timeline.step(at, text, Tone::Good);
        notes.progress.note(text);
    }

    /// A thing is in this state from now on.
    pub fn state(&self, lane: &str, text: &str, tone: Tone) {
        let at = self.now();
        self.notes().timeline.state(lane, at, text, tone);
    }

    /// A thing is gone.
    pub fn gone(&self, lane: &str) {
        let at = self.now();
        self.notes().timeline.gone(lane, at);
    }

    /// An invariant was looked at: it held, or this is how it broke. Returns whether it held.
    pub fn check(&self, rule: &Rule, outcome: Result<(), String>) -> bool {
        let (at, mut notes) = (self.now(), self.notes());
        let standing = notes.standings.entry(rule.name).or_default();
        match outcome {
            Ok(()) => {
                standing.looks += 1;
                true
            }
            Err(message) => {
                if standing.broken.is_none() {
                    standing.broken = Some(message.clone());
                    let text = format!("{} {} is broken: {message}", rule.mark, rule.name);
                    notes.timeline.step(at, &text, Tone::Bad);
                    notes.progress.note(&text);
                }
                false
            }
        }
    }

    /// Whether an invariant broke.
    pub fn is_broken(&self) -> bool {
        self.notes().standings.values().any(|standing| standing.broken.is_some())
    }

    /// How it stands with these invariants.
    pub fn verdict(&self, rules: &[&Rule]) -> Vec<Line> {
        let notes = self.notes();
        let line = |rule: &&Rule| Line {
            mark: rule.mark,
            invariant: rule.name,
            sentence: rule.sentence(),
            standing: notes.standings.get(rule.name).cloned().unwrap_or_default(),
        };
        rules.iter().map(line).collect()
    }

    /// The timeline as text and as SVG.
    pub fn timeline(&self) -> (String, String) {
        let notes = self.notes();
        (notes.timeline.text(), notes.timeline.svg())
    }

    /// Takes the moving line off the screen.
    pub fn finish(&self) {
        self.notes().progress.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules;
    use super::*;

    #[test]
    fn a_verdict_tells_what_was_looked_at_and_what_broke_first() {
        let journal = Journal::new("test");
        assert!(journal.check(&rules::ONE_GUEST, Ok(())));
        assert!(journal.check(&rules::ONE_GUEST, Ok(())));
        assert!(!journal.is_broken());
        assert!(!journal.check(&rules::DATA_STAYS, Err("a gap".to_owned())));
        assert!(!journal.check(&rules::DATA_STAYS, Err("another".to_owned())));
        assert!(journal.is_broken());
        let lines = journal.verdict(&[&rules::ONE_GUEST, &rules::DATA_STAYS, &rules::MOUNTS_STAY]);
        let standings: Vec<(u64, Option<&str>)> =
            lines.iter().map(|line| (line.standing.looks, line.standing.broken.as_deref())).collect();
        assert_eq!(standings, [(2, None), (0, Some("a gap")), (0, None)]);
        assert!(journal.timeline().0.contains("V6 written-data-stays is broken: a gap"));
    }
}
