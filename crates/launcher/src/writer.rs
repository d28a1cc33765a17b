//! Who may write a disk: a record beside its image, with a number that only grows (a fencing token).
//!
//! A disk that several nodes can open has one writer at a time. The record says which run of which machine that is. A run's
//! number is the revision of its instance in the store, as its node saw it first: revisions only grow, and an instance is made
//! after the one before it has ended. So a later run's number is greater, on whichever node it is, and a node that acts on old
//! news has an old number.
//!
//! ```text
//!   found                                       then
//!   nothing, or a writer that has left ────────▶ mine
//!   an older run ──────────────────────────────▶ mine; its monitor looks twice a second, and stops its guest; that is waited for
//!   a newer run ───────────────────────────────▶ refused
//!   another machine, which holds its lock ─────▶ refused: the disk is in use
//! ```
//!
//! The lock (`flock`, which file systems of several nodes pass on) is held by the monitor and tells the living from the dead,
//! where it works; the record counts where it does not. Beneath both lies QEMU's own lock on the image. Disks that are to have
//! several writers (`shareable`) have no record, nor do block devices, which have no room for one, and are claimed instead
//! (`devices`).

mod devices;
mod files;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use devices::{Claim, keep, retake};
pub(crate) use files::{Held, TakeError, taken};

/// How often a monitor looks whether it has still the last word.
pub const LOOK: Duration = Duration::from_millis(500);
/// How long a newer run waits for an older one to see it and to stop.
pub const GRACE: Duration = Duration::from_secs(2);

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Writer {
    /// The run's number.
    pub epoch: u64,
    /// UID of the instance.
    pub uid: String,
    /// Namespace and name of the instance, which are its machine's.
    pub machine: String,
    /// The node that it runs on.
    pub node: String,
    /// Its guest has shut down: nobody writes.
    #[serde(default)]
    pub left: bool,
}

/// What was found beside an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No record.
    Nothing,
    /// Something that is no record.
    Damaged,
    /// A record.
    Record(Writer),
}

/// A disk may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// Nobody else can be writing.
    AtOnce,
    /// When whoever writes has had the time to see the new record.
    AfterGrace,
}

/// A disk may not be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A newer run has had it.
    #[error("a newer run of {} has it, on node {} (number {}, this one's is lower)", .0.machine, .0.node, .0.epoch)]
    Newer(Writer),
    /// Another machine has it.
    #[error("it is in use by {}, on node {}", .0.machine, .0.node)]
    InUse(Writer),
}

/// Whether a disk may be taken. `held` says that somebody is known to hold the lock.
///
/// # Errors
/// Why not.
pub fn judge(found: &Found, mine: &Writer, held: bool) -> Result<Go, Refusal> {
    let record = match found {
        Found::Nothing => return Ok(Go::AtOnce),
        Found::Damaged => return Ok(Go::AfterGrace),
        Found::Record(record) => record,
    };
    if record.epoch > mine.epoch {
        return Err(Refusal::Newer(record.clone()));
    }
    if record.uid == mine.uid {
        return Ok(Go::AtOnce);
    }
    // Two runs have never the same number.
    if record.epoch == mine.epoch || held && !record.left && record.machine != mine.machine {
        return Err(Refusal::InUse(record.clone()));
    }
    Ok(if record.left { Go::AtOnce } else { Go::AfterGrace })
}

/// What a monitor sees when it looks at the record of a disk that its guest writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It has the last word.
    Mine,
    /// A newer run has taken the disk: the guest must stop.
    Taken(Writer),
    /// An older run has written its record over the newer one, as two may that start at the same instant where locks are not
    /// passed on. It will stop when it sees a newer one again.
    WrittenOver,
}

/// What to make of a record that is looked at while the guest runs. One that is missing or damaged says nothing.
#[must_use]
pub fn look(found: &Found, mine: &Writer) -> Look {
    match found {
        Found::Record(record) if record.epoch > mine.epoch => Look::Taken(record.clone()),
        Found::Record(record) if record.uid != mine.uid => Look::WrittenOver,
        _ => Look::Mine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(epoch: u64, uid: &str, machine: &str, left: bool) -> Writer {
        Writer { epoch, uid: uid.to_owned(), machine: machine.to_owned(), node: "n".to_owned(), left }
    }

    #[test]
    fn the_greater_number_has_the_disk() {
        let mine = writer(5, "b", "ns/vm", false);
        let check = |found: Option<Writer>, held: bool, expected: &str| {
            let found = found.map_or(Found::Nothing, Found::Record);
            let verdict = match judge(&found, &mine, held) {
                Ok(Go::AtOnce) => "at once",
                Ok(Go::AfterGrace) => "after grace",
                Err(Refusal::Newer(_)) => "newer",
                Err(Refusal::InUse(_)) => "in use",
            };
            assert_eq!(verdict, expected, "{found:?} {held}");
        };
        check(None, false, "at once");
        check(Some(mine.clone()), true, "at once");
        // A handler that has lost its notes counts anew.
        check(Some(writer(4, "b", "ns/vm", false)), false, "at once");
        check(Some(writer(4, "a", "ns/vm", true)), false, "at once");
        check(Some(writer(4, "a", "ns/vm", false)), false, "after grace");
        check(Some(writer(4, "a", "ns/vm", false)), true, "after grace");
        check(Some(writer(6, "c", "ns/vm", false)), false, "newer");
        check(Some(writer(6, "c", "ns/vm", true)), false, "newer");
        check(Some(writer(6, "b", "ns/vm", false)), false, "newer");
        check(Some(writer(4, "a", "ns/other", false)), true, "in use");
        check(Some(writer(4, "a", "ns/other", false)), false, "after grace");
        check(Some(writer(4, "a", "ns/other", true)), true, "at once");
        check(Some(writer(5, "a", "ns/other", true)), false, "in use");
        assert_eq!(judge(&Found::Damaged, &mine, false), Ok(Go::AfterGrace));
    }

    #[test]
    fn a_monitor_yields_to_the_greater_number_alone() {
        let mine = writer(5, "b", "ns/vm", false);
        let newer = writer(6, "c", "ns/vm", false);
        for (found, expected) in [
            (Found::Nothing, Look::Mine),
            (Found::Damaged, Look::Mine),
            (Found::Record(mine.clone()), Look::Mine),
            (Found::Record(newer.clone()), Look::Taken(newer)),
            (Found::Record(writer(4, "a", "ns/vm", false)), Look::WrittenOver),
        ] {
            assert_eq!(look(&found, &mine), expected, "{found:?}");
        }
    }
}
