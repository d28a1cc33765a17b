//! Mounts of containers that run: the same as when they started, whoever dies and starts anew.
//!
//! ```text
//!   container starts ─▶ ids of its pod's mounts are noted ─▶ kubelets die and start anew ─▶ the same ids, until it ends
//! ```
//!
//! A container has in its own mount namespace what was mounted when it started. What is mounted anew on its node, or over that,
//! is another mount, whether or not it is of the same device: the container writes to the one, and everybody else sees the other.
//! An id is given to one mount and to no other, and stands for its device as well.

use std::collections::BTreeMap;

use crate::invariants::Breach;
use crate::node::Disk;

/// The invariant.
pub(crate) const NAME: &str = "mounts-outlive-agents";

/// What a container had when it started.
#[derive(Debug)]
struct Noted {
    pod: String,
    /// Ids by path.
    mounts: BTreeMap<String, u64>,
}

/// What containers of a node had when they started.
#[derive(Debug, Default)]
pub(crate) struct Kept(BTreeMap<String, Noted>);

impl Kept {
    /// A container of a pod has just started.
    pub(crate) fn starts(&mut self, container: &str, pod: &str, disk: &Disk) {
        self.0.insert(container.to_owned(), Noted { pod: pod.to_owned(), mounts: disk.ids_of(pod) });
    }

    /// Looked at whenever something was mounted or unmounted for a pod.
    pub(crate) fn look(&mut self, node: u8, runs: impl Fn(&str) -> bool, disk: &Disk, breaches: &mut Vec<Breach>) {
        self.0.retain(|container, _| runs(container));
        for (container, noted) in &self.0 {
            let there = disk.ids_of(&noted.pod);
            for (path, id) in noted.mounts.iter().filter(|(path, id)| there.get(*path) != Some(*id)) {
                let is = there.get(path).map_or_else(|| "not mounted".to_owned(), |is| format!("mount {is}"));
                let what = format!("{path} on node{node} was mount {id} when {container} started, and is {is}");
                breaches.push(Breach::new(NAME, what));
            }
        }
    }
}
