//! CPUs that containers have for themselves: who asks for some, and whether it has them.
//!
//! Every kubelet assigns CPUs, and some pods ask for whole ones. What runs was recorded before it started, keeps what it has,
//! and shares it with no other such container: by what the runtime was told, whatever the kubelet thinks.

use std::collections::BTreeMap;

use carrack_kubelet::cpus::{self, CpuConfig, CpuSet, Options, Policy};
use carrack_kubelet::runtime::PodRef;
use serde_json::Value;

use crate::invariants::Breach;
use crate::observer::{Observer, text};

/// Its name.
pub(crate) const NAME: &str = "own-cpus-stay-ones-own";

/// CPUs that a node keeps back.
const RESERVED: u32 = 1;
/// Most pods of a run that ask for whole CPUs: fewer than the smallest cluster has of them, so that they never wait for each other.
pub(crate) const MOST_PODS: usize = 2;

/// What a node's kubelet goes by: half of them keep what is reserved free of all pods.
pub(crate) fn config(node: u8) -> CpuConfig {
    let options = Options { strict_reservation: node.is_multiple_of(2), ..Options::default() };
    let reserved = (0..RESERVED).collect();
    CpuConfig { policy: Policy::Static, options, reserved, ..CpuConfig::default() }
}

/// What that keeps back of the node, in thousandths of a CPU.
pub(crate) fn reserved_milli() -> i128 {
    i128::from(RESERVED) * 1000
}

/// Has a pod ask for a whole CPU.
pub(crate) fn ask(limits: &mut Value) {
    limits["cpu"] = "1".into();
    limits["memory"] = "64Mi".into();
}

/// How many whole CPUs a pod's container is to have for itself; none where it shares, or the pod is not there any more.
pub(crate) fn wanted(pod: &PodRef, observer: &Observer) -> usize {
    let resources =
        observer.pod(pod).and_then(|pod| pod.pointer("/spec/containers/0/resources")).unwrap_or(&Value::Null);
    let limits = resources.get("limits").unwrap_or(&Value::Null);
    // Who asks for less than it may have shares.
    let is_guaranteed = !text(limits, "/memory").is_empty() && resources.get("requests").is_none_or(|of| of == limits);
    if is_guaranteed { text(limits, "/cpu").parse().unwrap_or(0) } else { 0 }
}

/// A container starts on these CPUs; the CPU manager's state is as the disk has it.
pub(crate) fn starts(
    (pod, name, on): (&PodRef, &str, &str),
    state: Option<&[u8]>,
    observer: &Observer,
    breaches: &mut Vec<Breach>,
) {
    let count = wanted(pod, observer);
    if count == 0 {
        return;
    }
    let recorded = state.and_then(|bytes| cpus::decode(bytes).ok());
    let own = recorded.and_then(|state| Some(state.assigned.get(&pod.uid)?.get(name)?.to_string())).unwrap_or_default();
    let has = on.parse::<CpuSet>().map_or(0, |cpus| cpus.len());
    if has != count || own != on {
        let what = format!("{name} of {pod} asks for {count} CPUs, starts on {on:?}, and the disk says {own:?}");
        breaches.push(Breach::new(NAME, what));
    }
}

/// A running container is given other CPUs.
pub(crate) fn moved(
    (pod, name, from): (&PodRef, &str, &str),
    to: &str,
    observer: &Observer,
    breaches: &mut Vec<Breach>,
) {
    if from != to && wanted(pod, observer) > 0 {
        let what = format!("{name} of {pod} runs on its own {from}, and is moved to {to}");
        breaches.push(Breach::new(NAME, what));
    }
}

/// What runs on a node, with the CPUs that each was given.
pub(crate) fn shared<'a>(
    node: u8,
    running: impl Iterator<Item = (&'a PodRef, &'a str)>,
    observer: &Observer,
    breaches: &mut Vec<Breach>,
) {
    let mut owners: BTreeMap<u32, &PodRef> = BTreeMap::new();
    // Who asks for some asks for one: the others are not looked at closer.
    let alone = running.filter_map(|(pod, on)| Some((pod, on.parse::<u32>().ok()?)));
    for (pod, cpu) in alone.filter(|(pod, _)| wanted(pod, observer) > 0) {
        if let Some(other) = owners.insert(cpu, pod).filter(|other| *other != pod) {
            let what = format!("CPU {cpu} of node{node} is {other}'s own, and {pod}'s");
            breaches.push(Breach::new(NAME, what));
        }
    }
}
