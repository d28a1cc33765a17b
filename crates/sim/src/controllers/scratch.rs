//! Pods with claims that are made for them and go with them, under names that come again.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use serde_json::{Value, json};

use super::acts::{Work, new_version, start, template};
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, key_of, owner_kind, text, uid};
use crate::workload::Act;

const NAME: &str = "scratched";

/// A StatefulSet whose pods bring volumes of their own, and which is rolled; `often` for as long as it can be.
pub(super) fn acts(rng: &mut Rng, safety: Duration, often: bool, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: StatefulSet::resource(), kind: "statefulset", name: NAME, at, safety };
    let mut template = template(NAME, 1);
    let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": if rng.one_in(2) { "now" } else { "later" },
        "resources": {"requests": {"storage": "1Gi"}}});
    template["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]);
    let spec = json!({"replicas": 2, "serviceName": NAME, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": NAME}}, "template": template});
    work.create(spec, acts);
    let versions = if often { 12 } else { 2 + rng.below(3) };
    for version in 2..2 + versions {
        if often {
            work.at += safety / 14;
        } else if !work.wait(rng) {
            return;
        }
        work.patch(new_version(version), acts);
    }
}

/// Whether a claim is a pod's own.
fn is_of_pod(claim: &Value) -> bool {
    owner_kind(claim) == "Pod"
}

fn owner_of(claim: Option<&Value>) -> &str {
    claim.filter(|claim| is_of_pod(claim)).map_or("", controller)
}

/// What was made for one pod is never another's.
pub(super) fn changed(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let name = key_of(change.object());
    let mut breach = |what: String| breaches.push(Breach::new("pods-have-their-own-claims", what));
    match (change.resource, &change.after) {
        // A StatefulSet gives the claims of its templates to those of its pods that are to take them along.
        ("claim", Some(claim)) if text(claim, "/metadata/name").ends_with("-scratch") => {
            let (was, is) = (owner_of(change.before.as_ref()), owner_of(Some(claim)));
            if !was.is_empty() && was != is {
                breach(format!("{name} was {was}'s and is {is:?}'s"));
            }
        }
        ("pod", Some(pod)) if !text(pod, "/spec/nodeName").is_empty() => {
            let bound = change.before.as_ref().is_some_and(|before| text(before, "/spec/nodeName").is_empty());
            let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
            for volume in volumes.filter(|volume| bound && !volume["ephemeral"].is_null()) {
                let claim = format!("{name}-{}", text(volume, "/name"));
                if owner_of(observer.get("claim", &claim)) != uid(pod) {
                    breach(format!("{name} has a node, and {claim} is not its own"));
                }
            }
        }
        _ => {}
    }
}

/// A claim that has outlived the pod that it was made for.
pub(super) fn stray(observer: &Observer) -> Option<String> {
    let gone = |claim: &&Value| !observer.all("pod").any(|pod| uid(pod) == controller(claim));
    let stray = observer.all("claim").filter(|claim| is_of_pod(claim)).find(gone)?;
    Some(format!("has left {} behind", key_of(stray)))
}
