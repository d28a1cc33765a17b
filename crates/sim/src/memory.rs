//! Memory of NUMA nodes that containers have for themselves: who is bound to which, and whether each node has enough for all.
//!
//! In half of the runs every kubelet keeps memory for containers. Those that ask for CPUs of their own ask for memory, too, and
//! each NUMA node has enough for one of them: so the next has to go to the other. What runs was recorded before it started, and is
//! bound to nodes that have what all who are bound to them may use: by what the runtime was told, whatever the kubelet thinks.

use std::collections::BTreeMap;

use carrack_engine::Rng;
use carrack_kubelet::cpus::{Place, Topology};
use carrack_kubelet::memory::{self, MEMORY, Machine, MemoryConfig, Policy, Sizes};
use carrack_kubelet::runtime::{PodRef, Resources};

use crate::cpus::wanted;
use crate::invariants::Breach;
use crate::node::CPUS;
use crate::observer::Observer;
use crate::plants::Bug;

/// Its name.
pub(crate) const NAME: &str = "numa-nodes-have-enough";

/// The last CPU is near to the second NUMA node; as many as pods ask for are near to each.
const NODES: u32 = 2;
/// What each has, and what of it no pod has: in all as much as the kubelet's threshold leaves free.
const HAS: u64 = 160 << 20;
const RESERVED: u64 = 50 << 20;

/// Whether kubelets keep memory. Beside other planted bugs than that of memory they do not.
pub(crate) fn is_kept(root: &Rng, planted: Option<Bug>) -> bool {
    planted == Some(Bug::ForgottenMemory) || planted.is_none() && root.fork("memory").one_in(2)
}

fn on_each(bytes: u64) -> Machine {
    (0..NODES).map(|number| (number, Sizes::from([(MEMORY.to_owned(), bytes)]))).collect()
}

/// What a kubelet goes by.
pub(crate) fn config(keeps: bool) -> MemoryConfig {
    if keeps { MemoryConfig { policy: Policy::Static, reserved: on_each(RESERVED) } } else { MemoryConfig::default() }
}

/// What a machine tells of its memory, and where its CPUs are.
pub(crate) fn machine(keeps: bool) -> (Machine, Topology) {
    if !keeps {
        return (Machine::new(), Topology::plain(CPUS));
    }
    let place = |cpu: u32| Place { core: cpu, numa: u32::from(cpu == CPUS - 1), ..Place::default() };
    (on_each(HAS), Topology::new((0..CPUS).map(|cpu| (cpu, place(cpu))).collect()))
}

/// A container starts bound to these nodes; the memory manager's state is as the disk has it.
pub(crate) fn starts(
    (pod, name, on): (&PodRef, &str, &str),
    state: Option<&[u8]>,
    observer: &Observer,
    breaches: &mut Vec<Breach>,
) {
    if wanted(pod, observer) == 0 {
        return;
    }
    let recorded = state.and_then(|bytes| memory::decode(bytes).ok());
    let blocks = recorded.as_ref().and_then(|state| state.assigned.get(&pod.uid)?.get(name));
    let kept = blocks.and_then(|blocks| blocks.first()).map(|block| block.nodes.list()).unwrap_or_default();
    if on.is_empty() || kept != on {
        let what = format!("{name} of {pod} has memory of its own, starts bound to {on:?}, and the disk says {kept:?}");
        breaches.push(Breach::new(NAME, what));
    }
}

/// What runs on a node: the NUMA nodes that each is bound to, and what it may use there.
pub(crate) fn bound<'a>(
    node: u8,
    running: impl Iterator<Item = (&'a PodRef, &'a Resources)>,
    breaches: &mut Vec<Breach>,
) {
    let mut taken: BTreeMap<u32, (u64, Vec<String>)> = BTreeMap::new();
    // Who asks for some fits one of them.
    let alone = running.filter_map(|(pod, limits)| Some((pod, limits, limits.memory_nodes.parse::<u32>().ok()?)));
    for (pod, limits, number) in alone {
        let (sum, pods) = taken.entry(number).or_default();
        *sum += u64::try_from(limits.memory_limit_bytes).unwrap_or(0);
        pods.push(pod.to_string());
        if *sum > HAS - RESERVED {
            let pods = pods.join(" and ");
            let what = format!("NUMA node {number} of node{node} has too little for {pods}: {sum} bytes");
            breaches.push(Breach::new(NAME, what));
        }
    }
}
