//! Container disks: what holds them goes with its guest.
//!
//! A container that has just started does not hear that it is to end. One that does nothing but hold a disk would sit out its
//! pod's grace period then, unless the node's virt-handler tells it once more.
//!
//! ```text
//!   disk starts ─ deaf ─▶ told to end: misses it ─ launcher ends ─▶ told once more ─▶ ends
//!                                                              └─▶ nobody tells it ─▶ killed when the pod's time is over
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::kubevirt::VirtualMachine;
use carrack_types::resource::Kind as _;

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Observer, deleting, is_launcher, key_of, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::workload::{Act, What, delete, machine};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "disks-go-with-their-guests";
/// The name of this part of the work.
pub(crate) const PART: &str = "hasty";

/// How soon what holds a disk ends after its launcher.
const WITHIN: Duration = Duration::from_secs(10);
/// How long everybody needs at the most to hear of everything again, once nothing fails any more.
const SETTLED: Duration = Duration::from_secs(45);
/// How long pods of these machines have to end.
const GRACE_S: u64 = 60;

/// Whether disks are deaf when they have just started: in some runs, and beside no other planted bug.
pub(crate) fn are_deaf(root: &Rng, faults: bool, planted: Option<Bug>) -> bool {
    planted.map_or_else(|| faults && root.fork("deaf disks").one_in(3), |bug| bug == Bug::SignalsForgotten)
}

/// Whether this is part of the work, given the chance of all of it and what is planted.
pub(crate) fn are_there(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    planted.is_none() && options.faults && !options.small && rng.fork("whether machines go at once").one_in(4)
}

/// Machines that are deleted when they have hardly begun to start, one after the other. It is looked at what is left of them
/// when nothing fails any more.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..16 {
        let name = format!("{PART}{n}");
        let at = safety + SETTLED + Duration::from_secs(2) * n;
        let what = What::Create {
            resource: VirtualMachine::resource(),
            object: machine(&name, "Always", GRACE_S),
            want: None,
        };
        acts.push(Act { at, what });
        let gone = at + between(rng, Duration::from_millis(50), Duration::from_secs(1));
        acts.push(delete(gone, VirtualMachine::resource(), "default", &name, "vm"));
    }
}

/// Since when disks of launchers that go are held although the launcher has ended, by node and UID of the pod.
#[derive(Debug, Default)]
pub(crate) struct Disks(BTreeMap<(u8, String), Time>);

impl Disks {
    /// Looked at from time to time, while nothing has failed since then. `up`: the nodes whose kubelet and handler are there.
    pub(crate) fn look(
        &mut self,
        now: Time,
        calm: Time,
        up: &BTreeSet<u8>,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        if now.since(calm) < SETTLED {
            return;
        }
        let goes = |pod: &&serde_json::Value| deleting(pod) && is_launcher(pod);
        let mut left = BTreeMap::new();
        for pod in observer.all("pod").filter(goes) {
            let node = named(nodes, text(pod, "/spec/nodeName"));
            let Some(node) = node.filter(|node| node.up && up.contains(&node.number)) else { continue };
            if let Some(disk) = node.runtime.disk_left_of(uid(pod)) {
                let what = format!("{disk} on node{} holds a disk of {}", node.number, key_of(pod));
                left.insert((node.number, uid(pod).to_owned()), what);
            }
        }
        self.0.retain(|of, _| left.contains_key(of));
        for (of, what) in left {
            let since = *self.0.entry(of).or_insert(now);
            if now.since(since) > WITHIN {
                let what = format!("{what}, whose launcher ended {} s ago", now.since(since).as_secs());
                breaches.push(Breach::new(NAME, what));
            }
        }
    }
}
