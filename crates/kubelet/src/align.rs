//! What a pod is given when it is admitted: CPUs of its own, memory of NUMA nodes, and devices, where the node insists that they
//! lie together.
//!
//! Who hands something out gives hints, the topology manager merges them, and each takes what lies on the nodes that came of
//! it, container by container, in their order. Where the node insists on nothing CPUs and memory are assigned all the same, and
//! devices are chosen at the start. Either all of it is noted, or nothing.

use std::collections::BTreeMap;

use crate::cpus::{Cpus, Refusal};
use crate::devices::Devices;
use crate::memory::{self, Memory, Sizes};
use crate::runtime::Uid;
use crate::topology::{self, Hint, Nodes, Policy, Scope};

/// What one container needs, or a whole pod at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// The container.
    pub container: String,
    /// How many devices of each resource.
    pub counts: BTreeMap<String, usize>,
    /// How many CPUs of its own.
    pub cpus: usize,
    /// Memory to be kept for it.
    pub memory: Sizes,
    /// Containers that are over before this one starts, whose devices and CPUs it may take over.
    pub reusable: Vec<String>,
    /// The same, whose memory it may take over. Amounts can be shared out: a sidecar takes a part, and who comes after it the rest.
    pub over: Vec<String>,
}

/// Who hands something out.
#[derive(Debug)]
pub struct Stock<'a> {
    /// Devices.
    pub devices: &'a mut Devices,
    /// CPUs.
    pub cpus: &'a mut Cpus,
    /// Memory of NUMA nodes.
    pub memory: &'a mut Memory,
}

/// Of which something is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Devices.
    pub devices: bool,
    /// CPUs.
    pub cpus: bool,
    /// Memory.
    pub memory: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// All is noted.
    Aligned(News),
    /// Together they cannot be had.
    Refused,
    /// There are not enough devices of a resource at present.
    Lacking(String),
    /// A container gets no CPUs of its own.
    NoCpus(Refusal, usize),
    /// No memory can be kept for a container.
    NoMemory(memory::Refusal),
}

/// What is to be laid together.
#[derive(Clone, Copy, Debug)]
pub struct Lay<'a> {
    /// The pod.
    pub uid: &'a Uid,
    /// What the node insists on.
    pub policy: Policy,
    /// For what.
    pub scope: Scope,
    /// The machine's NUMA nodes.
    pub all: Nodes,
    /// What the containers need, in their order.
    pub needs: &'a [Need],
    /// What the pod needs at most at one time.
    pub total: &'a Need,
}

impl Lay<'_> {
    /// Notes all of it, or nothing.
    pub fn together(&self, stock: &mut Stock<'_>) -> Alignment {
        let before = (stock.devices.held_by(self.uid), stock.cpus.held(self.uid), stock.memory.held(self.uid));
        let outcome = self.try_all(stock);
        if !matches!(outcome, Alignment::Aligned(_)) {
            stock.devices.put_back(self.uid, before.0);
            stock.cpus.put_back(self.uid, before.1);
            stock.memory.put_back(self.uid, before.2);
        }
        outcome
    }

    /// The nodes for all of it. What has no hint at all will do well nowhere.
    fn merged(&self, mut hints: Vec<Vec<Hint>>) -> Result<Hint, Alignment> {
        for of_one in hints.iter_mut().filter(|of_one| of_one.is_empty()) {
            of_one.push(Hint::NOWHERE);
        }
        let (hint, content) = topology::merge(self.policy, self.all, &hints);
        if content { Ok(hint) } else { Err(Alignment::Refused) }
    }

    fn try_all(&self, stock: &mut Stock<'_>) -> Alignment {
        let mut news = News::default();
        let of_pod = match self.of_pod(stock) {
            Ok(hint) => hint,
            Err(refused) => return refused,
        };
        for need in self.needs {
            match self.of_container(need, of_pod, stock) {
                Ok(of_one) => {
                    news.devices |= of_one.devices;
                    news.cpus |= of_one.cpus;
                    news.memory |= of_one.memory;
                }
                Err(refused) => return refused,
            }
        }
        Alignment::Aligned(news)
    }

    /// The nodes for the whole pod, where it is to lie together.
    fn of_pod(&self, stock: &Stock<'_>) -> Result<Option<Hint>, Alignment> {
        if self.policy == Policy::None || self.scope != Scope::Pod {
            return Ok(None);
        }
        let mut hints = Vec::new();
        for (resource, count) in &self.total.counts {
            let choice = stock.devices.choice(self.uid, resource, *count, |_| true);
            let found = stock.devices.hints(self.all, &choice.fresh());
            hints.push(found.ok_or_else(|| Alignment::Lacking(resource.clone()))?);
        }
        if self.total.cpus > 0 {
            hints.push(stock.cpus.hints_of_pod(self.uid, self.total.cpus));
        }
        hints.extend(of_memory(stock.memory, self.uid, self.total));
        self.merged(hints).map(Some)
    }

    fn of_container(&self, need: &Need, of_pod: Option<Hint>, stock: &mut Stock<'_>) -> Result<News, Alignment> {
        let Stock { devices, cpus, memory } = stock;
        let again = |name: &String| need.reusable.contains(name);
        let open = need.counts.iter().filter(|(resource, count)| {
            self.policy != Policy::None && devices.intended(self.uid, &need.container, resource) != Some(**count)
        });
        let choices: Vec<_> = open.map(|(resource, count)| devices.choice(self.uid, resource, *count, again)).collect();
        let wants_cpus = need.cpus > 0 && cpus.own(self.uid, &need.container).is_none();
        let wants_memory = !need.memory.is_empty() && memory.own(self.uid, &need.container).is_none();
        let mut hints = Vec::new();
        for choice in &choices {
            let found = devices.hints(self.all, choice);
            hints.push(found.ok_or_else(|| Alignment::Lacking(choice.resource.clone()))?);
        }
        let no_cpus = |refusal| Alignment::NoCpus(refusal, need.cpus);
        // Where nothing comes of them, sets of nodes are not tried: of many nodes there are too many.
        let hinted = of_pod.is_none() && self.policy != Policy::None;
        if wants_cpus {
            // What can never be had is told as that, whatever lies where.
            cpus.allows(self.uid, &need.container, need.cpus, &need.reusable).map_err(no_cpus)?;
            if hinted {
                hints.push(cpus.hints(self.uid, &need.container, need.cpus, &need.reusable));
            }
        }
        if wants_memory && hinted {
            hints.extend(of_memory(memory, self.uid, need));
        }
        let hint = match of_pod {
            Some(hint) => hint,
            // Then nobody has asked for as few nodes as can be, either.
            None if self.policy == Policy::None => Hint::NOWHERE,
            None => self.merged(hints)?,
        };
        for choice in &choices {
            devices.intend(self.uid, &need.container, hint.nodes, choice);
        }
        if wants_cpus {
            cpus.assign(self.uid, &need.container, need.cpus, hint.nodes, &need.reusable).map_err(no_cpus)?;
        }
        if wants_memory {
            let assigned = memory.assign(self.uid, &need.container, &need.memory, hint, &need.over);
            assigned.map_err(Alignment::NoMemory)?;
        }
        Ok(News { devices: !choices.is_empty(), cpus: wants_cpus, memory: wants_memory })
    }
}

/// Hints of memory, for each kind the same. Where there is too little, none: that is told when it is to be kept, as upstream has it.
fn of_memory(memory: &Memory, uid: &Uid, need: &Need) -> Vec<Vec<Hint>> {
    let hints = if need.memory.is_empty() { Vec::new() } else { memory.hints(uid, &need.memory, &need.over) };
    if hints.is_empty() { Vec::new() } else { vec![hints; need.memory.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::{CpuConfig, Place, Topology};
    use crate::devices::{Device, NextStep, PluginOptions};

    const GPU: &str = "example.com/gpu";
    const ALIGNED: Alignment = Alignment::Aligned(News { devices: true, cpus: false, memory: false });
    const AS_BEFORE: Alignment = Alignment::Aligned(News { devices: false, cpus: false, memory: false });
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
            ..Need::default()
        }
    }

    fn align(devices: &mut Devices, uid: &str, policy: Policy, scope: Scope, needs: &[Need]) -> Alignment {
        let mut total = Need::default();
        for (resource, count) in needs.iter().flat_map(|n| &n.counts) {
            *total.counts.entry(resource.clone()).or_insert(0) += count;
        }
        let lay = Lay { uid: &uid.into(), policy, scope, all: Nodes::of([0, 1]), needs, total: &total };
        lay.together(&mut Stock { devices, cpus: &mut Cpus::default(), memory: &mut Memory::default() })
    }

    fn held(devices: &Devices, uid: &str, container: &str, resource: &str) -> Vec<String> {
        devices.allocations()[uid][container][resource].ids.iter().cloned().collect()
    }

    #[test]
    fn pods_are_laid_together_or_refused() {
        use Policy::{BestEffort, Restricted, SingleNumaNode};
        use Scope::{Container, Pod};
        let (fits, refused) = (ALIGNED, Alignment::Refused);
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
            let mut last = AS_BEFORE;
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
    fn sets_of_nodes_are_not_tried_where_nothing_comes_of_them() {
        let place = |cpu| (cpu, Place { core: cpu, numa: cpu, ..Place::default() });
        let policy = crate::cpus::Policy::Static;
        let config = CpuConfig { policy, reserved: "0".parse().unwrap(), ..CpuConfig::default() };
        let mut cpus = Cpus::new(config, 0);
        cpus.set_topology(&Topology::new((0..48).map(place).collect())).unwrap();
        let uid: Uid = "p".into();
        let needs = [Need { container: "a".into(), cpus: 2, ..Need::default() }];
        let (policy, scope, all) = (Policy::None, Scope::Container, Nodes::of(0..48));
        let lay = Lay { uid: &uid, policy, scope, all, needs: &needs, total: &needs[0] };
        let (devices, memory) = (&mut Devices::default(), &mut Memory::default());
        let outcome = lay.together(&mut Stock { devices, cpus: &mut cpus, memory });
        assert_eq!(outcome, Alignment::Aligned(News { cpus: true, ..News::default() }));
        assert_eq!(cpus.own("p", "a").map(ToString::to_string).as_deref(), Some("1-2"));
    }

    #[test]
    fn what_was_chosen_at_admission_is_asked_for_at_the_start() {
        let mut devices = machine(false);
        let pod = [need("a", 2, 1)];
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), ALIGNED);
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), AS_BEFORE);
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
        assert_eq!(align(&mut devices, "p", Policy::SingleNumaNode, Scope::Container, &pod), ALIGNED);
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
