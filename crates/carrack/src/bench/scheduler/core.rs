#![expect(clippy::disallowed_methods, reason = "shell: it measures time")]
//! The decisions alone: queue, filters, scores, assumption; no API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use carrack_engine::{Rng, Time};
use carrack_scheduler::{Cluster, Decider, Found, PodInfo, Profile, Question, SchedulingQueue};
use serde_json::Value;

use super::workloads::{node, pod, victim};
use crate::cli::bench::Workload;

/// What came out.
pub struct Decided {
    /// Pods that got a node.
    pub pods: usize,
    /// How long that took.
    pub took: Duration,
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> anyhow::Result<Arc<T>> {
    serde_json::from_value(value).map(Arc::new).context("an object of the benchmark cannot be read")
}

/// Decides about so many pods on so many nodes.
///
/// # Errors
/// A pod finds no node.
pub fn decide(workload: Workload, nodes: usize, pods: usize) -> anyhow::Result<Decided> {
    let mut cluster = Cluster::default();
    for number in 0..nodes {
        cluster.set_node(object(node(number))?);
        if workload == Workload::Preemption {
            cluster.set_pod(&object(victim(number))?);
        }
    }
    let profile = Arc::new(Profile::default());
    let mut queue = SchedulingQueue::default();
    for number in 0..pods {
        let info = cluster.read(object(pod(workload, number))?);
        queue.set(info, profile.clone(), Time::default());
    }
    let mut decider = Decider::new(cluster);
    let mut rng = Rng::new(1);
    let nobody = |_: &str| -> Vec<Arc<PodInfo>> { Vec::new() };
    let mut decided = 0;
    let began = Instant::now();
    while let Some(row) = queue.pop(Time::default()) {
        let question = Question { pod: &row.pod, profile: &profile, nominated: &nobody };
        let node = match decider.find(question, None, false, &mut rng) {
            Found::Node(node, _) => node,
            Found::Nobody(error) => {
                let found = decider.candidates(question, 1).unwrap_or_default();
                let best =
                    found.into_iter().next().with_context(|| format!("no node for {}: {error}", row.pod.name()))?;
                for victim in best.victims {
                    decider.cluster.remove_pod(&victim.uid);
                }
                best.node
            }
            Found::List(..) => anyhow::bail!("a list was not asked for"),
        };
        decider.cluster.assume(row.pod.clone(), node);
        queue.remove(&row.pod.uid);
        decided += 1;
    }
    Ok(Decided { pods: decided, took: began.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_of_every_workload_gets_a_node() {
        for workload in Workload::ALL {
            let decided = decide(workload, 12, 9).expect("nodes for all");
            assert_eq!(decided.pods, 9, "{workload:?}");
        }
    }
}
