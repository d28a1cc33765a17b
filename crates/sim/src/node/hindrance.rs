//! How a node itself holds up the end of a pod's volumes: what it is asked for fails, or takes long.
//!
//! A delay is the kubelet's own only where its node has done at once what it was asked for. An operation counts for the pod that it
//! is for, and for all pods where it is for any of them: a listing of the runtime, a call about a volume that several may have.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use carrack_kubelet::Op;

use super::{Node, Runtime};

/// What takes no longer holds nobody up.
const PROMPT: Duration = Duration::from_secs(1);
/// How long a kubelet leaves a volume alone at the most that could not be unmounted.
const BACKOFF: Duration = Duration::from_secs(64);

/// For whom an operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    All,
    Pod(String),
    Nobody,
}

/// An operation that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    asked_at: Time,
    whose: Whose,
    unmounts: bool,
}

fn of_pod(uid: &str) -> Whose {
    Whose::Pod(uid.to_owned())
}

fn whose(op: &Op, runtime: &Runtime) -> Whose {
    match op {
        Op::RunSandbox(spec) => of_pod(&spec.pod.uid),
        Op::CreateContainer(_, spec) => of_pod(&spec.pod.uid),
        Op::SetUpVolume(setup) => of_pod(&setup.uid),
        Op::TearDownVolume { uid, .. } => of_pod(uid),
        Op::StopSandbox(id)
        | Op::RemoveSandbox(id)
        | Op::StartContainer(id)
        | Op::StopContainer { id, .. }
        | Op::RemoveContainer(id)
        | Op::Exec { id, .. } => runtime.pod_of(id).map_or(Whose::All, of_pod),
        Op::Load
        | Op::Relist
        | Op::Net { .. }
        | Op::StageVolume(..)
        | Op::UnstageVolume(_)
        | Op::ExpandVolume(_)
        | Op::SaveRecord { .. }
        | Op::DropRecord(_)
        | Op::Allocate { .. }
        | Op::Prefer { .. }
        | Op::PreStart { .. } => Whose::All,
        _ => Whose::Nobody,
    }
}

impl Errand {
    pub(super) fn new(now: Time, op: &Op, runtime: &Runtime) -> Self {
        let unmounts = matches!(op, Op::TearDownVolume { .. });
        Self { asked_at: now, whose: whose(op, runtime), unmounts }
    }

    fn is_late(&self, now: Time) -> bool {
        now.since(self.asked_at) > PROMPT
    }

    fn is_for(&self, uid: &str) -> bool {
        match &self.whose {
            Whose::All => true,
            Whose::Pod(pod) => pod == uid,
            Whose::Nobody => false,
        }
    }
}

/// Until when the node has held up whom.
#[derive(Debug, Default)]
pub(super) struct Hindrances {
    all: Time,
    pods: BTreeMap<String, Time>,
}

impl Hindrances {
    /// An operation has ended.
    pub(super) fn ended(&mut self, now: Time, errand: Errand, failed: bool) {
        if !failed && !errand.is_late(now) {
            return;
        }
        let until = if failed && errand.unmounts { now + BACKOFF } else { now };
        let of = match errand.whose {
            Whose::All => &mut self.all,
            Whose::Pod(uid) => self.pods.entry(uid).or_default(),
            Whose::Nobody => return,
        };
        *of = (*of).max(until);
    }
}

impl Node {
    /// Until when the node has held up the end of a pod's volumes.
    pub(crate) fn hindered(&self, now: Time, uid: &str) -> Time {
        if self.pending.values().any(|pending| pending.errand.is_for(uid) && pending.errand.is_late(now)) {
            return now;
        }
        let of_pod = self.hindrances.pods.get(uid).copied().unwrap_or_default();
        self.hindrances.all.max(of_pod)
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;
    use carrack_kubelet::OpId;

    use super::super::{Fate, Pending};
    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    fn node() -> Node {
        Node::new(1, at(100), Rng::new(1), NodeFaults::none(), Rack::default())
    }

    fn unmount(uid: &str) -> Op {
        Op::TearDownVolume { uid: uid.into(), name: "v".to_owned(), path: "/v".to_owned(), published: None }
    }

    #[test]
    fn what_fails_or_takes_long_holds_up_whom_it_is_for() {
        // What was asked for at 100 s, after how many seconds it ended, whether it failed, and until when that holds up two pods.
        for (op, after, failed, expected) in [
            (unmount("a"), 1, false, [None, None]),
            (unmount("a"), 2, false, [Some(102), None]),
            (unmount("a"), 1, true, [Some(165), None]),
            (Op::Relist, 1, false, [None, None]),
            (Op::Relist, 3, false, [Some(103), Some(103)]),
            (Op::Relist, 0, true, [Some(100), Some(100)]),
            (Op::StopSandbox("of a pod that nobody knows".to_owned()), 0, true, [Some(100), Some(100)]),
            (Op::ListImages, 9, true, [None, None]),
        ] {
            let mut node = node();
            let errand = Errand::new(at(100), &op, &node.runtime);
            node.hindrances.ended(at(100 + after), errand, failed);
            let until = ["a", "b"].map(|uid| node.hindered(at(200), uid));
            let expected = expected.map(|s: Option<i64>| s.map(at).unwrap_or_default());
            assert_eq!(until, expected, "{op:?} after {after} s, failed: {failed}");
        }
    }

    #[test]
    fn what_is_not_done_yet_holds_up_after_a_second() {
        let mut node = node();
        let (op, errand) = (unmount("a"), Errand::new(at(100), &unmount("a"), &node.runtime));
        node.pending.insert(1, Pending { life: 1, id: OpId(1), op, fate: Fate::Works, errand });
        for (now, uid, expected) in [(101, "a", None), (102, "a", Some(102)), (110, "a", Some(110)), (110, "b", None)] {
            assert_eq!(node.hindered(at(now), uid), expected.map(at).unwrap_or_default(), "{uid} at {now}");
        }
    }
}
