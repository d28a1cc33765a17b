//! GPUs: pods that share them on nodes that only pretend, scheduled through the real extender.
//!
//! [`acts`]: what people do. [`link`]: what goes wrong between scheduler and extender. [`checks`]: what must hold of who has
//! which GPU, at every step and in the end. [`outsiders`]: pods that come past the scheduler, and say which GPUs they have.

mod acts;
mod checks;
mod link;
mod outsiders;

pub(crate) use acts::acts;
pub(crate) use checks::{LEDGER, Waiting, bounds, counted, lacks, ledger_bounds, ledger_lacks, shares};
pub(crate) use link::{Link, verb};
pub(crate) use outsiders::{Outsiders, TENANT, are_outsiders_there, is_outsider, rights};

/// How many nodes there are.
pub(crate) const NODES: usize = 3;
/// GPUs of each.
const GPUS: u32 = 2;
/// Units of memory of each GPU.
const MEMORY: u32 = 16;

/// The verbs of the extender, as a configuration of the scheduler has them.
pub(crate) fn extender() -> carrack_scheduler::extender::Extender {
    let names = carrack_gpu_extender::Names::default();
    carrack_scheduler::extender::Extender {
        filter_verb: "predicates".into(),
        prioritize_verb: "priorities".into(),
        preempt_verb: "preemption".into(),
        bind_verb: "bind".into(),
        node_cache_capable: true,
        managed_resources: vec![names.core, names.memory],
        ..carrack_scheduler::extender::Extender::default()
    }
}

/// The nodes, where there is nothing but GPUs.
pub(crate) fn nodes() -> carrack_hollow::Config {
    equip(carrack_hollow::Config {
        nodes: NODES,
        labels: crate::controllers::nodes().labels,
        start_after: std::time::Duration::from_millis(300),
        stop_after: std::time::Duration::from_millis(700),
        ..carrack_hollow::Config::default()
    })
}

/// Gives nodes their GPUs.
pub(crate) fn equip(mut config: carrack_hollow::Config) -> carrack_hollow::Config {
    let names = carrack_gpu_extender::Names::default();
    config.allocatable.insert(names.core, (GPUS * carrack_gpu_extender::CORES).to_string());
    config.allocatable.insert(names.memory, (GPUS * MEMORY).to_string());
    config
}
