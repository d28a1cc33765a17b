//! Whether what a pod asks for is left on a node, and how well it uses it.

use carrack_types::quantity::Quantity;

use crate::{Filter, NodeInfo, PodInfo, Refusal, Score};

/// Requests against what is left, and the number of pods.
pub struct Fit;
impl Filter for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        let mut reasons = Vec::new();
        let mut resolvable = true;
        if node.allocatable.get("pods").is_none_or(|n| node.pods.len() as i64 + 1 > n.units()) {
            reasons.push("Too many pods".to_owned());
        }
        for (resource, wanted) in &pod.requests {
            if !wanted.is_zero() && *wanted > node.free(resource) {
                reasons.push(format!("Insufficient {resource}"));
                let whole = node.allocatable.get(resource).copied().unwrap_or_default();
                resolvable &= *wanted <= whole;
            }
        }
        if reasons.is_empty() { Ok(()) } else { Err(Refusal { reasons, resolvable }) }
    }
}

/// What pods without requests are taken to use, so that many of them don't heap up on one node
/// (kube-scheduler's DefaultMilliCPURequest and DefaultMemoryRequest).
const DEFAULT_CPU_M: i64 = 100;
const DEFAULT_MEMORY_B: i64 = 200 << 20;

/// Fractions of CPU and memory that would be in use with the pod there, in 1/10000.
fn used(pod: &PodInfo, node: &NodeInfo) -> [i64; 2] {
    [("cpu", DEFAULT_CPU_M), ("memory", DEFAULT_MEMORY_B)].map(|(name, default)| {
        let amount = |q: Option<&Quantity>| q.map_or(0, |q| if name == "cpu" { q.millis() } else { q.units() });
        let of = |p: &PodInfo| match amount(p.requests.get(name)) {
            0 => default,
            n => n,
        };
        let all = amount(node.allocatable.get(name));
        let sum = node.pods.values().map(of).fold(of(pod), i64::saturating_add);
        if all <= 0 {
            return 10_000;
        }
        i64::try_from(i128::from(sum.min(all)) * 10_000 / i128::from(all)).unwrap_or(10_000)
    })
}

/// More is left, the better.
pub struct LeastAllocated;
impl Score for LeastAllocated {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }
    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> u64 {
        let [cpu, memory] = used(pod, node);
        u64::try_from((20_000 - cpu - memory) / 200).unwrap_or(0)
    }
}

/// CPU and memory are used alike, the better.
pub struct BalancedAllocation;
impl Score for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }
    fn score(&self, pod: &PodInfo, node: &NodeInfo) -> u64 {
        let [cpu, memory] = used(pod, node);
        // With two resources the standard deviation is half their distance.
        u64::try_from((10_000 - (cpu - memory).abs() / 2) / 100).unwrap_or(0)
    }
}
