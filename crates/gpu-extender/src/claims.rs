//! What counts of a pod's claim to GPUs: of what the annotations say of a pod that others have bound, or that a former life
//! has.
//!
//! Words neither free nor take what is another's. Whoever was bound first holds; a later claim to the same GPU counts for
//! what is left of it, and one to a GPU that the node has not counts for nothing. When the first one goes, the others hold
//! so much more, in the order in which they were bound.

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::names::CORES;
use crate::node::Gpu;
use crate::place::{Use, Uses};

/// What of a claim there is room for beside what others hold.
pub(crate) fn room_for(claim: &Uses, others: &Uses, gpus: &[Gpu]) -> Uses {
    let counted = |(number, claimed): (&usize, &Use)| {
        let all = match gpus.get(*number) {
            Some(gpu) => Use { cores: CORES, memory: gpu.memory },
            // Nobody knows which GPUs there are: its plugin has not come yet.
            None if gpus.is_empty() => Use { cores: CORES, memory: u64::MAX },
            None => Use::default(),
        };
        let free = all.without(others.get(number).copied().unwrap_or_default());
        (*number, Use { cores: claimed.cores.min(free.cores), memory: claimed.memory.min(free.memory) })
    };
    claim.iter().map(counted).filter(|(_, counted)| !counted.is_none()).collect()
}

/// The order in which pods were bound, by what the API server and kubelets say. A pod that was made with a node has been
/// bound since then.
pub(crate) fn bound_since(pod: &Pod) -> (Option<Time>, Option<Time>, &str) {
    let made = pod.metadata.creation_timestamp.clone();
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let scheduled = conditions.into_iter().find(|one| one.type_ == "PodScheduled" && one.status == "True");
    let since = scheduled.and_then(|one| one.last_transition_time.clone()).or_else(|| made.clone());
    (since, made, pod.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn uses(list: &[(usize, u32, u64)]) -> Uses {
        list.iter().map(|(number, cores, memory)| (*number, Use { cores: *cores, memory: *memory })).collect()
    }

    #[test]
    fn a_claim_counts_as_far_as_there_is_room() {
        let two = vec![Gpu { memory: 16, ..Gpu::default() }; 2];
        let check = |claim: &[(usize, u32, u64)],
                     others: &[(usize, u32, u64)],
                     gpus: &[Gpu],
                     expected: &[(usize, u32, u64)]| {
            assert_eq!(room_for(&uses(claim), &uses(others), gpus), uses(expected), "{claim:?} {others:?}");
        };
        check(&[(0, 50, 8)], &[], &two, &[(0, 50, 8)]);
        check(&[(0, 50, 8)], &[(0, 50, 8)], &two, &[(0, 50, 8)]);
        check(&[(0, 50, 8)], &[(0, 70, 8)], &two, &[(0, 30, 8)]);
        check(&[(0, 50, 8)], &[(0, 50, 12)], &two, &[(0, 50, 4)]);
        check(&[(0, 100, 16), (1, 100, 16)], &[(1, 100, 16)], &two, &[(0, 100, 16)]);
        check(&[(2, 100, 16)], &[], &two, &[]);
        // Which GPUs there are is not known.
        check(&[(2, 100, 16)], &[], &[], &[(2, 100, 16)]);
        check(&[(2, 60, 16)], &[(2, 60, 16)], &[], &[(2, 40, 16)]);
    }

    #[test]
    fn who_was_bound_first() {
        let pod = |name: &str, made: u32, bound: Option<(&str, u32)>| -> Pod {
            let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
            let condition = bound
                .map(|(is, second)| json!([{"type": "PodScheduled", "status": is, "lastTransitionTime": at(second)}]));
            let metadata = json!({"uid": name, "creationTimestamp": at(made)});
            serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": condition}})).expect("a pod")
        };
        let check =
            |first: &Pod, second: &Pod| assert!(bound_since(first) < bound_since(second), "{first:?} {second:?}");
        check(&pod("b", 1, Some(("True", 5))), &pod("a", 2, Some(("True", 6))));
        check(&pod("b", 4, Some(("True", 5))), &pod("a", 1, Some(("True", 6))));
        // Made with a node, and before its kubelet says so.
        check(&pod("b", 1, Some(("True", 5))), &pod("a", 6, None));
        check(&pod("b", 4, None), &pod("a", 1, Some(("True", 5))));
        check(&pod("b", 4, Some(("False", 9))), &pod("a", 1, Some(("True", 5))));
        check(&pod("b", 1, Some(("True", 5))), &pod("a", 2, Some(("True", 5))));
        check(&pod("a", 1, Some(("True", 5))), &pod("b", 1, Some(("True", 5))));
    }

    proptest! {
        /// However many claim a GPU, it is counted as used up at most, and less only where less is claimed.
        #[test]
        fn claims_fill_a_gpu_and_no_more(claims in prop::collection::vec((0_usize..3, 1_u32..=100, 0_u64..20), 0..12)) {
            let gpus = vec![Gpu { memory: 16, ..Gpu::default() }; 2];
            let (mut held, mut claimed) = (Uses::new(), Uses::new());
            for claim in claims {
                let claim = uses(&[claim]);
                let counted = room_for(&claim, &held, &gpus);
                for (sums, more) in [(&mut held, &counted), (&mut claimed, &claim)] {
                    for (number, used) in more {
                        let sum = sums.entry(*number).or_default();
                        *sum = sum.and(*used);
                    }
                }
            }
            prop_assert!(!held.contains_key(&2));
            for number in 0..2 {
                let [held, claimed] = [&held, &claimed].map(|of| of.get(&number).copied().unwrap_or_default());
                prop_assert_eq!(held.cores, claimed.cores.min(CORES));
                prop_assert_eq!(held.memory, claimed.memory.min(16));
            }
        }
    }
}
