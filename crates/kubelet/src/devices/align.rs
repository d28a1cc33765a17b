//! What of a device is chosen at admission, where the node insists that things lie together (`crate::align`).
//!
//! The choice is noted as an intention, as one at a container's start would be, so that nobody else takes the devices
//! meanwhile. Allocate is still asked for when the container starts; a plugin that has preferences is asked for them
//! then, among devices that lie on the same nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Allocation, Devices};
use crate::runtime::Uid;
use crate::topology::{self, Hint, Nodes};

/// What one container may choose from.
pub(crate) struct Choice {
    /// Of which resource.
    pub resource: String,
    /// How many it needs.
    pub count: usize,
    available: BTreeSet<String>,
    reusable: BTreeSet<String>,
}

impl Choice {
    /// The same, with nothing that has to be used again.
    pub(crate) fn fresh(self) -> Self {
        Self { reusable: BTreeSet::new(), ..self }
    }
}

impl Devices {
    /// What a container may choose `count` from; `again` holds of containers whose devices it may take over.
    pub(crate) fn choice(&self, uid: &Uid, resource: &str, count: usize, again: impl Fn(&String) -> bool) -> Choice {
        let available = self.free(resource, uid, &again);
        let reusable = self.taken_by(resource, uid, &again);
        let reusable = reusable.intersection(&available).take(count).cloned().collect();
        Choice { resource: resource.to_owned(), count, available, reusable }
    }

    /// Sets of nodes that have what is to be chosen; nothing where there is not enough of it.
    pub(crate) fn hints(&self, all: Nodes, choice: &Choice) -> Option<Vec<Hint>> {
        let devices = &self.resources.get(&choice.resource)?.devices;
        if choice.available.len() < choice.count {
            return None;
        }
        let hints = topology::hints(all, devices, &choice.available, &choice.reusable, choice.count);
        Some(hints.unwrap_or_else(|| vec![Hint::ANY]))
    }

    /// Notes a choice on these nodes.
    pub(crate) fn intend(&mut self, uid: &Uid, container: &str, nodes: Option<Nodes>, choice: &Choice) {
        let Some(devices) = self.resources.get(&choice.resource).map(|r| &r.devices) else { return };
        let ids = topology::choose(nodes, devices, &choice.available, &choice.reusable, choice.count);
        let allocation = Allocation { ids, reply: None, on: Some(nodes.unwrap_or_default()) };
        let mine = self.allocations.entry(uid.clone()).or_default().entry(container.to_owned()).or_default();
        mine.insert(choice.resource.clone(), allocation);
    }

    /// What a pod's containers hold, to be put back by [`Self::put_back`].
    pub(crate) fn held_by(&self, uid: &Uid) -> Option<BTreeMap<String, BTreeMap<String, Allocation>>> {
        self.allocations.get(uid).cloned()
    }

    /// Takes back what was noted for a pod since.
    pub(crate) fn put_back(&mut self, uid: &Uid, held: Option<BTreeMap<String, BTreeMap<String, Allocation>>>) {
        match held {
            Some(held) => drop(self.allocations.insert(uid.clone(), held)),
            None => drop(self.allocations.remove(uid)),
        }
    }

    /// How many devices are noted for a container.
    pub(crate) fn intended(&self, uid: &Uid, container: &str, resource: &str) -> Option<usize> {
        Some(self.allocations.get(uid)?.get(container)?.get(resource)?.ids.len())
    }

    /// Healthy devices that nobody holds but containers of this pod of which `again` holds.
    pub(super) fn free(&self, resource: &str, uid: &Uid, again: impl Fn(&String) -> bool) -> BTreeSet<String> {
        let others = self.held_by_others(resource, uid);
        let own = self.taken_by(resource, uid, |name| !again(name));
        let healthy = self.resources.get(resource).into_iter().flat_map(|r| r.devices.values()).filter(|d| d.healthy);
        healthy.map(|d| &d.id).filter(|id| !others.contains(id) && !own.contains(*id)).cloned().collect()
    }

    /// Devices of this pod's containers of which `which` holds.
    fn taken_by(&self, resource: &str, uid: &Uid, which: impl Fn(&String) -> bool) -> BTreeSet<String> {
        let containers = self.allocations.get(uid).into_iter().flatten().filter(|(name, _)| which(name));
        containers.filter_map(|(_, held)| held.get(resource)).flat_map(|a| a.ids.iter().cloned()).collect()
    }

    /// What a plugin may choose from instead of what was noted for a container at admission: nothing once it was asked
    /// to allocate.
    pub(super) fn alternatives(&self, uid: &Uid, container: &str, resource: &str) -> BTreeSet<String> {
        let noted = self.allocations.get(uid).and_then(|c| c.get(container)).and_then(|m| m.get(resource));
        let Some((noted, on)) = noted.and_then(|a| Some((a, a.on?))) else { return BTreeSet::new() };
        let Some(devices) = self.resources.get(resource).map(|r| &r.devices) else { return BTreeSet::new() };
        let place = |id: &String| devices.get(id).map(|d| Nodes::of(d.numa_nodes.iter().copied())).unwrap_or_default();
        let mut out = self.free(resource, uid, |_| false);
        // No nodes stand for any.
        out.retain(|id| on.count() == 0 || place(id).meets(on));
        out.extend(noted.ids.iter().cloned());
        out
    }
}
