//! The roles' processes: which are to run, and how one ended that nobody has ended.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::roles::Role;

/// How many lines of its log are told of a role that ended.
const LAST_LINES: usize = 3;

/// Processes that were started, and that the drill has not killed since.
#[derive(Debug, Default)]
pub struct Running(Mutex<BTreeMap<Role, Started>>);

#[derive(Debug)]
struct Started {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Role, Started>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A role was started, and says what it has to say in this file.
    pub fn add(&self, role: Role, child: Child, log: PathBuf) {
        self.all().insert(role, Started { child, log });
    }

    /// The process of a role, which from now on may end. None where there is none.
    pub fn take(&self, role: Role) -> Option<Child> {
        self.all().remove(&role).map(|started| started.child)
    }

    /// Whether a role runs.
    pub fn runs(&self, role: Role) -> bool {
        self.all().get_mut(&role).is_some_and(|started| matches!(started.child.try_wait(), Ok(None)))
    }

    /// Which roles are to run.
    pub fn roles(&self) -> Vec<Role> {
        self.all().keys().copied().collect()
    }

    /// A role that has ended though it is to run, and how.
    pub fn fallen(&self) -> Option<(Role, String)> {
        self.all().iter_mut().find_map(|(role, started)| {
            let status = started.child.try_wait().ok().flatten()?;
            let words = last_words(&started.log);
            Some((*role, format!("{} ended by itself ({status}); the end of its log: {words}", role.name())))
        })
    }
}

/// The last lines of a log.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> =
        text.lines().rev().map(str::trim).filter(|line| !line.is_empty()).take(LAST_LINES).collect();
    lines.reverse();
    if lines.is_empty() { "(it said nothing)".to_owned() } else { lines.join(" | ") }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_end_of_a_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        assert_eq!(last_words(&log), "(it said nothing)");
        for (text, expected) in [
            ("", "(it said nothing)"),
            ("\n \n", "(it said nothing)"),
            ("one\n", "one"),
            ("one\ntwo\n\nthree\nfour\n\n", "two | three | four"),
        ] {
            fs::write(&log, text).expect("written");
            assert_eq!(last_words(&log), expected, "{text:?}");
        }
    }

    #[test]
    fn who_ends_without_being_taken_has_fallen() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        fs::write(&log, "no such flag\n").expect("written");
        let running = Running::default();
        let start = |role: Role, line: &str| {
            let child = Command::new("sh").args(["-c", line]).spawn().expect("a shell");
            running.add(role, child, log.clone());
        };
        start(Role::Kubelet, "exec sleep 100");
        assert!(running.fallen().is_none() && running.runs(Role::Kubelet) && !running.runs(Role::Scheduler));
        let mut killed = running.take(Role::Kubelet).expect("it was started");
        killed.kill().and_then(|()| killed.wait()).expect("it ends");
        assert_eq!((running.fallen(), running.take(Role::Kubelet).map(drop)), (None, None));

        start(Role::Scheduler, "exit 3");
        let fallen = loop {
            if let Some(fallen) = running.fallen() {
                break fallen;
            }
            std::thread::yield_now();
        };
        let how = "scheduler ended by itself (exit status: 3); the end of its log: no such flag";
        assert_eq!(fallen, (Role::Scheduler, how.to_owned()));
        assert_eq!(running.roles(), [Role::Scheduler]);
        // It stays so until it is started again.
        assert!(running.fallen().is_some() && !running.runs(Role::Scheduler));
        start(Role::Scheduler, "exec sleep 100");
        assert_eq!(running.fallen(), None);
        let mut killed = running.take(Role::Scheduler).expect("it was started");
        killed.kill().and_then(|()| killed.wait()).expect("it ends");
    }
}
