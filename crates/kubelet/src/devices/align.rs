//! Devices chosen at admission, where the node insists that they lie together.
//!
//! The choice is noted as an intention, as one at a container's start would be, so that nobody else takes the devices
//! meanwhile. Allocate is still asked for when the container starts; a plugin that has preferences is asked for them
//! then, among devices that lie on the same nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Allocation, Devices};
use crate::runtime::Uid;
use crate::topology::{self, Hint, Nodes, Policy, Scope};

/// What one container needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The container.
    pub container: String,
    /// How many of each resource.
    pub counts: BTreeMap<String, usize>,
    /// Containers that are over before this one starts, whose devices it may take over.
    pub reusable: Vec<String>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// All is noted; whether anything is new.
    Aligned(bool),
    /// Together they cannot be had; nothing is noted.
    Refused,
    /// There are not enough at present; nothing is noted.
    Lacking(String),
}

/// What one container may choose from.
struct Choice<'a> {
    resource: &'a str,
    count: usize,
    available: BTreeSet<String>,
    reusable: BTreeSet<String>,
}

impl Devices {
    /// Chooses devices for a pod's containers, in their order, so that they lie together as the policy wants.
    /// `totals` is what the pod needs at most at one time.
    pub fn align(
        &mut self,
        uid: &Uid,
        policy: Policy,
        scope: Scope,
        all: Nodes,
        needs: &[Need],
        totals: &BTreeMap<String, usize>,
    ) -> Alignment {
        let before = self.allocations.get(uid).cloned();
        let outcome = self.try_align(uid, policy, scope, all, needs, totals);
        match &outcome {
            Alignment::Aligned(_) => {}
            Alignment::Refused | Alignment::Lacking(_) => match before {
                Some(before) => drop(self.allocations.insert(uid.clone(), before)),
                None => drop(self.allocations.remove(uid)),
            },
        }
        outcome
    }

    fn try_align(
        &mut self,
        uid: &Uid,
        policy: Policy,
        scope: Scope,
        all: Nodes,
        needs: &[Need],
        totals: &BTreeMap<String, usize>,
    ) -> Alignment {
        let mut of_pod = None;
        if scope == Scope::Pod {
            let mut hints = Vec::new();
            for (resource, count) in totals {
                let free = self.free(resource, uid, |_| true);
                match self.hints(all, resource, &free, &BTreeSet::new(), *count) {
                    Ok(found) => hints.push(found),
                    Err(lacking) => return lacking,
                }
            }
            let (hint, content) = topology::merge(policy, all, &hints);
            if !content {
                return Alignment::Refused;
            }
            of_pod = Some(hint.nodes);
        }
        let mut news = false;
        for need in needs {
            let open: Vec<(&String, usize)> = need
                .counts
                .iter()
                .filter(|(resource, count)| self.intended(uid, &need.container, resource) != Some(**count))
                .map(|(resource, count)| (resource, *count))
                .collect();
            let (mut choices, mut hints) = (Vec::new(), Vec::new());
            for (resource, count) in open {
                let again = |name: &String| need.reusable.contains(name);
                let available = self.free(resource, uid, again);
                let reusable = self.taken_by(resource, uid, again);
                let reusable: BTreeSet<String> = reusable.intersection(&available).take(count).cloned().collect();
                match self.hints(all, resource, &available, &reusable, count) {
                    Ok(found) => hints.push(found),
                    Err(lacking) => return lacking,
                }
                choices.push(Choice { resource, count, available, reusable });
            }
            let nodes = match of_pod {
                Some(nodes) => nodes,
                None => {
                    let (hint, content) = topology::merge(policy, all, &hints);
                    if !content {
                        return Alignment::Refused;
                    }
                    hint.nodes
                }
            };
            for choice in choices {
                news = true;
                self.intend(uid, &need.container, nodes, &choice);
            }
        }
        Alignment::Aligned(news)
    }

    fn hints(
        &self,
        all: Nodes,
        resource: &str,
        available: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
        count: usize,
    ) -> Result<Vec<Hint>, Alignment> {
        let devices = self.resources.get(resource).map(|r| &r.devices);
        let Some(devices) = devices.filter(|_| available.len() >= count) else {
            return Err(Alignment::Lacking(resource.to_owned()));
        };
        Ok(topology::hints(all, devices, available, reusable, count)
            .map_or(vec![Hint::ANY], |hints| if hints.is_empty() { vec![Hint::NOWHERE] } else { hints }))
    }

    fn intend(&mut self, uid: &Uid, container: &str, nodes: Option<Nodes>, choice: &Choice<'_>) {
        let Some(devices) = self.resources.get(choice.resource).map(|r| &r.devices) else { return };
        let ids = topology::choose(nodes, devices, &choice.available, &choice.reusable, choice.count);
        let allocation = Allocation { ids, reply: None, on: Some(nodes.unwrap_or_default()) };
        let mine = self.allocations.entry(uid.clone()).or_default().entry(container.to_owned()).or_default();
        mine.insert(choice.resource.to_owned(), allocation);
    }

    /// How many devices are noted for a container.
    fn intended(&self, uid: &Uid, container: &str, resource: &str) -> Option<usize> {
        Some(self.allocations.get(uid)?.get(container)?.get(resource)?.ids.len())
    }

    /// Healthy devices that nobody holds but containers of this pod of which `again` holds.
    pub(super) fn free(&self, resource: &str, uid: &Uid, again: impl Fn(&String) -> bool) -> BTreeSet<String> {
        let others = self.held(resource, Some(uid));
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

#[cfg(test)]
mod tests {
    use super::super::{Device, NextStep, PluginOptions};
    use super::*;

    const GPU: &str = "example.com/gpu";
    const NIC: &str = "example.com/nic";

    /// Four GPUs and two NICs on two nodes, half of each on either.
    fn machine(preferred_allocation: bool) -> Devices {
        let mut devices = Devices::default();
        for (epoch, resource, count) in [(1, GPU, 4), (2, NIC, 2)] {
            devices.plugin_up(resource, epoch, PluginOptions { preferred_allocation, ..PluginOptions::default() });
            let device = |i: i64| Device { id: format!("d{i}"), healthy: true, numa_nodes: vec![i * 2 / count] };
            devices.plugin_devices(resource, epoch, (0..count).map(device).collect());
        }
        devices
    }

    fn need(container: &str, gpus: usize, nics: usize) -> Need {
        let counts = [(GPU, gpus), (NIC, nics)].into_iter().filter(|(_, n)| *n > 0);
        Need {
            container: container.into(),
            counts: counts.map(|(r, n)| (r.to_owned(), n)).collect(),
            reusable: Vec::new(),
        }
    }

    fn align(devices: &mut Devices, uid: &str, policy: Policy, scope: Scope, needs: &[Need]) -> Alignment {
        let mut totals = BTreeMap::new();
        for (resource, count) in needs.iter().flat_map(|n| &n.counts) {
            *totals.entry(resource.clone()).or_insert(0) += count;
        }
        devices.align(&uid.into(), policy, scope, Nodes::of([0, 1]), needs, &totals)
    }

    fn held(devices: &Devices, uid: &str, container: &str, resource: &str) -> Vec<String> {
        devices.allocations()[uid][container][resource].ids.iter().cloned().collect()
    }

    #[test]
    fn pods_are_laid_together_or_refused() {
        use Policy::{BestEffort, Restricted, SingleNumaNode};
        use Scope::{Container, Pod};
        let (fits, refused) = (Alignment::Aligned(true), Alignment::Refused);
        for (policy, scope, pods, want) in [
            // Two GPUs and a NIC of one node, and then those of the other.
            (SingleNumaNode, Container, vec![vec![(2, 1)], vec![(2, 1)]], fits.clone()),
            // Three GPUs are on no single node; restricted is content with both.
            (SingleNumaNode, Container, vec![vec![(3, 0)]], refused.clone()),
            (Restricted, Container, vec![vec![(3, 0)]], fits.clone()),
            // After one GPU of each node is gone, two are on no single node any more.
            (SingleNumaNode, Container, vec![vec![(1, 0), (2, 0)], vec![(1, 0)]], fits.clone()),
            (Restricted, Container, vec![vec![(1, 1)], vec![(1, 1)], vec![(2, 0)]], refused.clone()),
            (BestEffort, Container, vec![vec![(1, 1)], vec![(1, 1)], vec![(2, 0)]], fits.clone()),
            // Two containers of two GPUs: each on its own node, but not the pod.
            (SingleNumaNode, Container, vec![vec![(2, 0), (2, 0)]], fits.clone()),
            (SingleNumaNode, Pod, vec![vec![(2, 0), (2, 0)]], refused.clone()),
            (SingleNumaNode, Pod, vec![vec![(1, 0), (1, 1)]], fits.clone()),
            (SingleNumaNode, Container, vec![vec![(4, 0)], vec![(1, 0)]], refused),
            (BestEffort, Container, vec![vec![(4, 0)], vec![(1, 0)]], Alignment::Lacking(GPU.into())),
        ] {
            let mut devices = machine(false);
            let mut last = Alignment::Aligned(false);
            for (i, containers) in pods.iter().enumerate() {
                let named = containers.iter().enumerate().map(|(c, (gpus, nics))| need(&format!("c{c}"), *gpus, *nics));
                last = align(&mut devices, &format!("p{i}"), policy, scope, &named.collect::<Vec<_>>());
                if !matches!(last, Alignment::Aligned(_)) {
                    assert!(!devices.holds(&format!("p{i}")), "nothing is noted of a refused pod");
                    break;
                }
            }
            assert_eq!(last, want, "{policy:?} {scope:?} {pods:?}");
        }
    }

    #[test]
    fn what_was_chosen_at_admission_is_asked_for_at_the_start() {
        let mut devices = machine(false);
        let pod = [need("a", 2, 1)];
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), Alignment::Aligned(true));
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), Alignment::Aligned(false));
        let uid: Uid = "p".into();
        let NextStep::Allocate { ids, .. } = devices.next_step(&uid, "a", &pod[0].counts, &[], None) else {
            panic!("no Allocate");
        };
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), held(&devices, "p", "a", GPU));
    }

    #[test]
    fn a_plugin_chooses_on_the_same_nodes() {
        let mut devices = machine(true);
        let pod = [need("a", 1, 0)];
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), Alignment::Aligned(true));
        let uid: Uid = "p".into();
        assert_eq!(held(&devices, "p", "a", GPU), ["d0"]);
        let NextStep::Prefer { available, count, .. } = devices.next_step(&uid, "a", &pod[0].counts, &[], None) else {
            panic!("the plugin is not asked");
        };
        assert_eq!((available.into_iter().collect::<Vec<_>>(), count), (vec!["d0".into(), "d1".into()], 1));
        // What it wishes elsewhere is left out.
        let wish = ["d3".to_owned(), "d1".to_owned()];
        let step = devices.next_step(&uid, "a", &pod[0].counts, &[], Some((GPU, &wish)));
        assert!(matches!(step, NextStep::Allocate { .. }), "{step:?}");
        assert_eq!(held(&devices, "p", "a", GPU), ["d1"]);
        // It is asked once.
        let step = devices.next_step(&uid, "a", &pod[0].counts, &[], None);
        assert!(matches!(step, NextStep::Allocate { .. }), "{step:?}");
    }
}
