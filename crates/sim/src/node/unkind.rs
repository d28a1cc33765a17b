//! What is unkind of a container runtime that works: what it says of itself is not of one moment, not all of it can be read, and
//! now and then it has lost sight of what runs.
//!
//! ```text
//!   a listing:  sandboxes ── a moment ──▶ containers, each with its status      (or the other way round)
//!   a status:   cannot be read, and all others can
//!   a restart:  running ─▶ unknown ─ its shim answers after all ─▶ running
//!                            └─ its shim is lost ─▶ stopped, as what it is then
//!   a stop:     fails for as long as the sandbox is there, which has died
//! ```
//!
//! Containerd lists sandboxes and containers by two calls, and tells what ended how by a third. After it has started anew it asks
//! each shim for its task, and calls what it hears nothing of `CONTAINER_UNKNOWN`; that can be stopped all the same. Machines'
//! containers are lost for a moment only: that their kubelet leaves them alone is what is looked at there.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::Op;
use carrack_kubelet::runtime::{ContainerRecord, ContainerState, RuntimeSnapshot};

use super::Node;
use crate::chance::{between, pick};

/// The invariant.
pub(crate) const ONCE: &str = "containers-run-once";

/// How long lies between the two halves of a torn listing.
const TORN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(900));
/// How long a container stays unknown whose shim answers after all: far less than anybody may give up on it.
const UNKNOWN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// What is under way of it.
#[derive(Debug)]
pub(super) struct Unkind {
    rng: Rng,
    /// What torn listings have found first, by the numbers of their operations.
    torn: BTreeMap<u64, RuntimeSnapshot>,
    /// That of the listing that comes to its end just now.
    first: Option<RuntimeSnapshot>,
}

impl Unkind {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, torn: BTreeMap::new(), first: None }
    }
}

/// What a listing shows that was begun earlier than it ended.
fn torn(first: RuntimeSnapshot, then: RuntimeSnapshot, way: u64) -> RuntimeSnapshot {
    match way {
        0 => RuntimeSnapshot { sandboxes: first.sandboxes, ..then },
        // The kubelet knows them all, and asks for no status.
        1 => RuntimeSnapshot { containers: first.containers, ..then },
        // Who was only made has no status worth asking for. The others are what they are by then, or gone.
        _ => {
            let known = |id: &str| then.containers.iter().find(|c| c.id == id).cloned();
            let asked = first.containers.into_iter().filter_map(|c| match c.state {
                ContainerState::Created => Some(c),
                _ => known(&c.id),
            });
            let containers = asked.collect();
            RuntimeSnapshot { containers, ..then }
        }
    }
}

/// The status of one container cannot be read.
fn hide(shown: &mut RuntimeSnapshot, rng: &mut Rng) {
    let has_status = |c: &&ContainerRecord| c.state != ContainerState::Created;
    let asked: Vec<String> = shown.containers.iter().filter(has_status).map(|c| c.id.clone()).collect();
    let Some(id) = pick(rng, &asked) else { return };
    let hidden = shown.containers.extract_if(.., |c| c.id == id);
    shown.unread.extend(hidden.map(|c| (c.pod.uid, format!("the status of {id} cannot be read"))));
}

impl Node {
    /// How much later a listing shows its second half that is about to take effect; none where it shows both at once, or has shown
    /// the first.
    pub(super) fn tears(&mut self, now: Time, number: u64) -> Option<Duration> {
        self.unkind.first = self.unkind.torn.remove(&number);
        let lists = self.pending.get(&number).is_some_and(|pending| matches!(pending.op, Op::Relist));
        let is_whole = self.unkind.first.is_some() || !lists || !self.unkind.rng.one_in(self.faults.unkind_one_in);
        if is_whole {
            return None;
        }
        self.runtime.finds_again(now);
        self.unkind.torn.insert(number, self.runtime.snapshot());
        Some(between(&mut self.unkind.rng, TORN.0, TORN.1))
    }

    /// What a listing shows.
    pub(super) fn list(&mut self, now: Time) -> RuntimeSnapshot {
        self.runtime.finds_again(now);
        let then = self.runtime.snapshot();
        let rng = &mut self.unkind.rng;
        let mut shown = match self.unkind.first.take() {
            Some(first) => torn(first, then, rng.below(3)),
            None => then,
        };
        if rng.one_in(self.faults.unkind_one_in) {
            hide(&mut shown, rng);
        }
        shown
    }

    /// The runtime has started anew, and has lost sight of some of what runs: for a moment, or for good.
    pub(super) fn loses_sight(&mut self, now: Time) {
        if self.faults.unkind_one_in == 0 {
            return;
        }
        let running: Vec<String> = self.runtime.running().map(|c| c.record.id.clone()).collect();
        for id in running {
            let rng = &mut self.unkind.rng;
            if rng.one_in(3) {
                let is_lost = rng.one_in(2) && !self.runtime.is_of_machine(&id);
                let until = (!is_lost).then(|| now + between(rng, UNKNOWN.0, UNKNOWN.1));
                self.runtime.loses(id, until);
            }
        }
    }

    /// Some of what runs on in a sandbox that has died cannot be stopped while that is there.
    pub(crate) fn loses_grip(&mut self, inside: &[String]) {
        if self.faults.unkind_one_in == 0 {
            return;
        }
        for id in inside {
            if self.unkind.rng.one_in(3) && !self.runtime.is_of_machine(id) {
                self.runtime.clings(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_kubelet::runtime::{ContainerSize, PodRef, SandboxRecord};

    use super::*;

    fn pod() -> PodRef {
        PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() }
    }

    fn sandbox(id: &str) -> SandboxRecord {
        SandboxRecord {
            id: id.into(),
            pod: pod(),
            attempt: 0,
            ready: true,
            created_at: Time::default(),
            ips: Vec::new(),
            runtime_handler: String::new(),
        }
    }

    fn container(id: &str, state: ContainerState) -> ContainerRecord {
        ContainerRecord {
            id: id.into(),
            sandbox_id: "s".into(),
            pod: pod(),
            name: id.into(),
            attempt: 0,
            state,
            created_at: Time::default(),
            started_at: None,
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            round: 0,
            size: ContainerSize { made_with: None, actual: None },
            user: None,
        }
    }

    /// A listing in a short form: its sandboxes, and its containers with the first letters of their states.
    fn text(shown: &RuntimeSnapshot) -> String {
        let sandboxes = shown.sandboxes.iter().map(|s| s.id.clone());
        let containers = shown.containers.iter().map(|c| {
            let state = format!("{:?}", c.state);
            format!("{}={state:.1}", c.id)
        });
        sandboxes.chain(containers).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_torn_listing_is_of_two_moments() {
        use ContainerState::{Created, Running};
        let first = RuntimeSnapshot {
            containers: vec![container("made", Created), container("gone", Running), container("lost", Running)],
            ..RuntimeSnapshot::default()
        };
        let then = RuntimeSnapshot {
            sandboxes: vec![sandbox("s")],
            containers: vec![container("lost", ContainerState::Unknown), container("new", Running)],
            ..RuntimeSnapshot::default()
        };
        for (way, expected) in [(0, "lost=U new=R"), (1, "s made=C gone=R lost=R"), (2, "s made=C lost=U")] {
            assert_eq!(text(&torn(first.clone(), then.clone(), way)), expected, "{way}");
        }
    }

    #[test]
    fn who_cannot_be_read_is_told_and_not_shown() {
        for seed in 0..8 {
            let mut shown = RuntimeSnapshot {
                containers: vec![container("a", ContainerState::Created), container("b", ContainerState::Running)],
                ..RuntimeSnapshot::default()
            };
            hide(&mut shown, &mut Rng::new(seed));
            assert_eq!((text(&shown).as_str(), shown.unread.len()), ("a=C", 1));
        }
    }
}
