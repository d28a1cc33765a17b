//! Machines that are not to be shut down for an eviction, and somebody who drains their nodes all the same.
//!
//! Guests are not moved here. So as long as the instance of a launcher lives, whose owner has said that it is to be moved and not
//! ended, the launcher is not evicted. Whether it lives is decided by what is stored when the eviction is: it may end meanwhile.

use carrack_apiserver::admission::Attributes;
use carrack_engine::{ApiRequest, ContentType, Rng};
use carrack_types::resource::Kind as _;
use carrack_types::well_known::kubevirt::APP_LABEL;
use carrack_virt::identity::CONSUMER;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::invariants::Breach;
use crate::observer::{
    Change, Observer, conditions, controller, deleting, is_launcher, is_true, key_of, terminal, text, uid,
};
use crate::plants::Bug;
use crate::workload::{Act, What};

/// The invariant.
pub(crate) const NAME: &str = "guests-that-stay-are-not-evicted";

/// Whether some machines are to stay, given what is planted: other bugs are looked for among what there was without them.
pub(crate) fn are_there(rng: &Rng, planted: Option<Bug>) -> bool {
    planted.is_none() && rng.fork("whether machines stay").one_in(2)
}

/// Machines, and sets of instances, that are made are to stay where they are: all of them, or half.
pub(crate) fn stay(rng: &mut Rng, all: bool, acts: &mut [Act]) {
    for act in acts {
        let What::Create { object, .. } = &mut act.what else { continue };
        if !matches!(object["kind"].as_str(), Some("VirtualMachine" | "VirtualMachineInstanceReplicaSet")) {
            continue;
        }
        let strategy = if rng.one_in(3) { "External" } else { "LiveMigrate" };
        if all || rng.one_in(2) {
            object["spec"]["template"]["spec"]["evictionStrategy"] = strategy.into();
        }
    }
}

/// The request that evicts a pod.
pub(crate) fn request(pod: &Value) -> ApiRequest {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name}});
    ApiRequest::create_sub(&Pod::resource(), namespace, name, "eviction", &eviction)
}

/// The request that takes the label off a launcher that calls it one.
pub(crate) fn unlabelled(pod: &Value) -> ApiRequest {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let change = json!({"metadata": {"labels": {APP_LABEL: null}}});
    ApiRequest::patch(&Pod::resource(), namespace, name, "", ContentType::MergePatch, &change)
}

/// What somebody does with launchers that have just been made, where a planted bug shows by that: he takes their label off.
pub(crate) fn unlabels(planted: Option<Bug>, changes: &[Change]) -> Vec<ApiRequest> {
    let is_made = |change: &&Change| change.resource == "pod" && change.before.is_none();
    let made = changes.iter().filter(|_| planted == Some(Bug::LaunchersByLabel)).filter(is_made);
    made.filter_map(|change| change.after.as_ref()).filter(|pod| is_launcher(pod)).map(unlabelled).collect()
}

/// Whether a pod is the launcher of an instance that lives and is not to be ended for an eviction.
pub(crate) fn is_kept(pod: &Value, observer: &Observer) -> bool {
    let stays = |vmi: &Value| {
        let is_to_stay = match text(vmi, "/spec/evictionStrategy") {
            "LiveMigrate" => !is_true(vmi, "LiveMigratable"),
            strategy => strategy == "External",
        };
        is_to_stay && !terminal(vmi) && !deleting(vmi)
    };
    // Whatever labels it bears by now.
    let is_launcher = !text(pod, "/metadata/name").starts_with(CONSUMER) && !terminal(pod);
    is_launcher && observer.all("vmi").any(|vmi| uid(vmi) == controller(pod) && stays(vmi))
}

/// Whether a pod is evicted: by whoever asked for that, and not by a node's taint.
pub(crate) fn is_evicted(pod: &Value) -> bool {
    let told = |c: &Value| c["type"] == "DisruptionTarget" && c["reason"] == "EvictionByEvictionAPI";
    deleting(pod) && conditions(pod).any(told)
}

/// A pod changed.
pub(crate) fn changed(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let was_evicted = change.before.as_ref().is_some_and(is_evicted);
    let evicted = change.after.as_ref().filter(|pod| !was_evicted && is_evicted(pod));
    if let Some(pod) = evicted.filter(|pod| is_kept(pod, observer)) {
        let what = format!("{} is evicted, and its guest is to stay", key_of(pod));
        breaches.push(Breach::new(NAME, what));
    }
}

/// What a planted bug asks nobody about: evictions.
pub(crate) fn is_eviction(attributes: &Attributes<'_>) -> bool {
    attributes.subresource == "eviction"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(strategy: &str, phase: &str, of: &str, holds: bool) {
        let pod = |conditions: Value| {
            json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "deletionTimestamp": "2026-11-01T00:00:00Z",
                "ownerReferences": [{"controller": true, "uid": of}]},
                "status": {"phase": "Running", "conditions": conditions}})
        };
        let vmi = json!({"metadata": {"namespace": "ns", "name": "v", "uid": "v"},
            "spec": {"evictionStrategy": strategy}, "status": {"phase": phase}});
        let told = json!([{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}]);
        let change = Change { resource: "pod", before: Some(pod(json!([]))), after: Some(pod(told)) };
        let mut breaches = Vec::new();
        changed(&change, &Observer::of([("vmi", vmi)]), &mut breaches);
        assert_eq!(breaches.is_empty(), holds, "{strategy} {phase} {of}: {breaches:?}");
    }

    #[test]
    fn launchers_of_guests_that_stay_are_kept() {
        for strategy in ["LiveMigrate", "External"] {
            check(strategy, "Running", "v", false);
            check(strategy, "Scheduling", "v", false);
            check(strategy, "Failed", "v", true);
            // That of another instance, which had the name before.
            check(strategy, "Running", "u", true);
        }
        check("None", "Running", "v", true);
        check("LiveMigrateIfPossible", "Running", "v", true);
    }

    /// Launchers alone, as soon as they are made, and beside that bug alone.
    #[test]
    fn labels_are_taken_off_where_that_is_to_show() {
        let pod = |kind: &str| {
            json!({"metadata": {"namespace": "ns", "name": "p",
                "ownerReferences": [{"controller": true, "kind": kind, "uid": "v"}]}})
        };
        let (instance, set) = (pod("VirtualMachineInstance"), pod("ReplicaSet"));
        for (planted, before, after, expected) in [
            (Some(Bug::LaunchersByLabel), None, Some(&instance), 1),
            (Some(Bug::LaunchersByLabel), Some(&instance), Some(&instance), 0),
            (Some(Bug::LaunchersByLabel), Some(&instance), None, 0),
            (Some(Bug::LaunchersByLabel), None, Some(&set), 0),
            (Some(Bug::EvictedGuests), None, Some(&instance), 0),
            (None, None, Some(&instance), 0),
        ] {
            let change = Change { resource: "pod", before: before.cloned(), after: after.cloned() };
            assert_eq!(unlabels(planted, &[change]).len(), expected, "{planted:?} {before:?} {after:?}");
        }
    }
}
