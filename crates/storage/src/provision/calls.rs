//! Calls to the driver, and its answers.

use std::collections::BTreeMap;

use crate::asking;

/// What a volume is made from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum From {
    /// A snapshot, by its handle.
    Snapshot(String),
    /// A volume, by its handle.
    Volume(String),
}

/// How a volume may be used (the protocol's access modes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// By one node.
    OneNode,
    /// By many nodes, to read.
    ManyRead,
    /// By many nodes.
    Many,
}

/// A volume to make.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewVolume {
    /// Its name, derived from its claim.
    pub name: String,
    /// Size, in bytes.
    pub bytes: u64,
    /// A device rather than a file system.
    pub block: bool,
    /// File system.
    pub fs_type: String,
    /// Options of its mount.
    pub mount_options: Vec<String>,
    /// Who may use it.
    pub access: Vec<Access>,
    /// The class's parameters, without those that are the provisioner's own.
    pub parameters: BTreeMap<String, String>,
    /// What it is made from.
    pub from: Option<From>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// CreateVolume, on this node.
    Create(Box<NewVolume>),
    /// DeleteVolume.
    Delete(String),
    /// ControllerExpandVolume: which, and to how many bytes.
    Expand(String, u64),
    /// CreateSnapshot: its name, and of which volume. Of none (empty): one that is there is looked for (ListSnapshots).
    Snapshot(String, String),
    /// DeleteSnapshot.
    DeleteSnapshot(String),
}

impl asking::Call for Call {
    type Outcome = Outcome;

    /// What has failed is not made again at once. That there is no room for a new volume is for others to hear, and they are
    /// asked then; one that is here grows and is kept here or nowhere.
    fn pauses(&self, outcome: &Outcome) -> bool {
        let may_go_elsewhere = matches!(self, Self::Create(_));
        outcome.as_ref().is_err_and(|error| !(error.no_room && may_go_elsewhere))
    }

    /// A volume is made or deleted, one after the other; so is a snapshot. What is deleted while it is being made would
    /// be there afterwards, and nobody's.
    fn subject(&self) -> Option<&str> {
        match self {
            Self::Create(wanted) => Some(&wanted.name),
            Self::Delete(name) | Self::Snapshot(name, _) | Self::DeleteSnapshot(name) => Some(name),
            Self::Expand(..) => None,
        }
    }
}

/// What a driver answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The volume.
    Created {
        /// Its handle.
        handle: String,
        /// Its size, in bytes.
        bytes: u64,
        /// What the driver wants to be told when it is used.
        context: BTreeMap<String, String>,
        /// Where it can be used: any of these, each a set of labels.
        topologies: Vec<BTreeMap<String, String>>,
    },
    /// It is deleted, or is not there.
    Deleted,
    /// It has grown.
    Expanded {
        /// To so many bytes.
        bytes: u64,
        /// Its node has something left to do.
        on_node: bool,
    },
    /// A snapshot was taken, and can be used.
    Taken {
        /// Its handle.
        handle: String,
        /// How large a volume of it is at least, in bytes.
        bytes: u64,
        /// When, in nanoseconds since 1970.
        made_unix_ns: i64,
    },
}

/// How a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// There is not enough room, and nothing was done.
    pub no_room: bool,
    /// The driver's words.
    pub message: String,
}

/// How a call ended.
pub type Outcome = Result<Answer, CallError>;

/// The questions of the controllers of a node's driver.
pub(super) type Calls = asking::Calls<Call>;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use carrack_engine::{Key, Time};

    use super::*;

    fn new_volume() -> Call {
        Call::Create(Box::new(NewVolume {
            name: "v".into(),
            bytes: 1,
            block: false,
            fs_type: "ext4".into(),
            mount_options: Vec::new(),
            access: Vec::new(),
            parameters: BTreeMap::new(),
            from: None,
        }))
    }

    #[test]
    fn a_question_is_sent_once_and_answered_once() {
        let calls = Calls::default();
        let (a, b) = (Key::new("", "a"), Key::new("", "b"));
        let call = || Call::Delete("v".into());
        assert_eq!(calls.ask("c", &a, call()), None);
        assert_eq!(calls.ask("c", &b, call()), None);
        let sent = calls.take();
        assert_eq!(sent, vec![(1, call())]);
        assert!(calls.take().is_empty());
        assert_eq!(calls.answered(1, Ok(Answer::Deleted)), vec![("c", a.clone()), ("c", b)]);
        assert_eq!(calls.answered(7, Ok(Answer::Deleted)), vec![]);
        assert_eq!(calls.ask("c", &a, call()), Some(Ok(Answer::Deleted)));
        assert_eq!(calls.ask("c", &a, call()), None, "it is asked anew");
        assert_eq!(calls.take(), vec![(2, call())]);
    }

    #[test]
    fn what_failed_is_not_made_again_at_once() {
        let calls = Calls::default();
        let (key, call) = (Key::new("", "a"), || Call::Delete("v".into()));
        let fails = || {
            assert_eq!(calls.ask("c", &key, call()), None);
            let sent = calls.take();
            let [(id, _)] = sent[..] else { panic!("{sent:?}") };
            let error = CallError { no_room: false, message: "broken".into() };
            calls.answered(id, Err(error.clone()));
            assert_eq!(calls.ask("c", &key, call()), Some(Err(error)));
        };
        let at = |ms: u64| calls.tick(Time::from_unix_s(0) + Duration::from_millis(ms));
        at(0);
        fails();
        at(499);
        assert!(calls.ask("c", &key, call()).is_some_and(|said| said.is_err()), "the same is said");
        assert_eq!(calls.take(), []);
        at(501);
        fails();
        at(1400);
        assert!(calls.ask("c", &key, call()).is_some(), "it takes twice as long");
        at(1502);
        fails();
    }

    #[test]
    fn who_has_no_room_is_asked_again_at_once_only_for_what_may_be_elsewhere() {
        let here = [
            Call::Expand("v".into(), 1 << 60),
            Call::Snapshot("s".into(), "v".into()),
            Call::Delete("v".into()),
            Call::DeleteSnapshot("s".into()),
        ];
        for (call, pauses) in here.into_iter().map(|call| (call, true)).chain([(new_volume(), false)]) {
            let (calls, key) = (Calls::default(), Key::new("", "a"));
            assert_eq!(calls.ask("c", &key, call.clone()), None);
            calls.take();
            let error = CallError { no_room: true, message: "full".into() };
            calls.answered(1, Err(error.clone()));
            assert_eq!(calls.ask("c", &key, call.clone()), Some(Err(error)));
            // The answer has been taken: what is said now is either what is remembered, or that it is asked anew.
            assert_eq!(calls.ask("c", &key, call.clone()).is_some(), pauses, "{call:?}");
            assert_eq!(calls.take().is_empty(), pauses, "{call:?}");
        }
    }

    #[test]
    fn a_snapshot_is_not_taken_and_deleted_at_once() {
        let calls = Calls::default();
        let key = Key::new("", "a");
        let (take, delete) = (Call::Snapshot("s".into(), "v".into()), Call::DeleteSnapshot("s".into()));
        assert_eq!(calls.ask("c", &key, take.clone()), None);
        assert_eq!(calls.ask("c", &key, delete.clone()), None);
        assert_eq!(calls.ask("c", &key, Call::DeleteSnapshot("other".into())), None);
        assert_eq!(calls.take(), [(1, take), (2, Call::DeleteSnapshot("other".into()))]);
        let taken = Answer::Taken { handle: "s".into(), bytes: 1, made_unix_ns: 0 };
        assert_eq!(calls.answered(1, Ok(taken)), [("c", key.clone())]);
        assert_eq!(calls.ask("c", &key, delete.clone()), None);
        assert_eq!(calls.take(), [(3, delete)]);
    }

    #[test]
    fn a_volume_is_not_made_and_deleted_at_once() {
        let calls = Calls::default();
        let key = Key::new("", "a");
        let (make, delete) = (new_volume(), Call::Delete("v".into()));
        assert_eq!(calls.ask("c", &key, make.clone()), None);
        assert_eq!(calls.ask("c", &key, delete.clone()), None);
        assert_eq!(calls.ask("c", &key, Call::Delete("other".into())), None);
        assert_eq!(calls.take(), [(1, make.clone()), (2, Call::Delete("other".into()))]);
        let error = CallError { no_room: false, message: "late".into() };
        assert_eq!(calls.answered(1, Err(error)), [("c", key.clone())]);
        assert_eq!(calls.ask("c", &key, delete.clone()), None);
        assert_eq!(calls.take(), [(3, delete)]);
        assert_eq!(calls.ask("c", &key, make.clone()), None);
        assert_eq!(calls.answered(3, Ok(Answer::Deleted)), [("c", key.clone())]);
        // What was answered before says nothing of now.
        assert_eq!(calls.ask("c", &key, make.clone()), None);
        assert_eq!(calls.take(), [(4, make)]);
    }
}
