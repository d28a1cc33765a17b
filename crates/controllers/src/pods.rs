//! What several controllers ask of pods, and the indexes by which they find them.

use carrack_engine::{Plan, Time};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::json;

/// Name of the index of pods by the node that they are bound to.
pub(crate) const BY_NODE: &str = "node";

/// The node of a pod, for the index.
pub(crate) fn by_node(pod: &Pod) -> Vec<String> {
    Some(node_of(pod)).filter(|n| !n.is_empty()).map(str::to_owned).into_iter().collect()
}

/// The node that a pod is bound to, or nothing.
pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// A pod's condition.
pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == type_)
}

/// Whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// The pod's conditions with this one set. The transition time stays where the status does.
pub(crate) fn with_condition(pod: &Pod, mut condition: PodCondition, now: Time) -> Vec<PodCondition> {
    let mut all = pod.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    condition.last_transition_time = Some(now.meta());
    match all.iter_mut().find(|c| c.type_ == condition.type_) {
        Some(old) => {
            if old.status == condition.status {
                condition.last_transition_time = old.last_transition_time.clone();
            }
            *old = condition;
        }
        None => all.push(condition),
    }
    all
}

/// Adds: the pod says that it is deleted for the cluster's sake (`DisruptionTarget`), and, where `fail`, that it failed.
pub(crate) fn mark_disrupted(plan: Plan, pod: &Pod, reason: &str, message: &str, fail: bool, now: Time) -> Plan {
    let marked = condition(pod, "DisruptionTarget").is_some_and(|c| c.status == "True");
    if marked && !fail {
        return plan;
    }
    let target = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        observed_generation: pod.meta().generation,
        ..PodCondition::default()
    };
    let mut status = json!({ "conditions": with_condition(pod, target, now) });
    if fail {
        status["phase"] = "Failed".into();
    }
    plan.patch_status(pod, json!({ "status": status }))
}

/// Names of the claims that a pod uses: by volumes of its own, or as templates of ephemeral volumes.
pub(crate) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes
        .filter_map(|v| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", pod.name(), v.name)),
            _ => None,
        })
        .collect()
}

/// Name of the index of pods by the claims that they use.
pub(crate) const BY_CLAIM: &str = "claim";

/// The claims of a pod as `namespace/name`, for the index.
pub(crate) fn by_claim(pod: &Pod) -> Vec<String> {
    claims_of(pod).into_iter().map(|name| format!("{}/{name}", pod.namespace())).collect()
}
