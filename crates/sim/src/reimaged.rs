//! Pods that are never restarted, and are given another image while they run: that their containers are stopped for it is no
//! end of theirs.
//!
//! ```text
//!   another image ─▶ kubelet: written down ─▶ the container is stopped ─▶ and made anew ─▶ the pod goes on
//!                       └── the kubelet may end between any two of these, and the next one finds a container that has failed
//! ```
//!
//! Each image is a new one: none of them comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_kubelet::runtime::PodRef;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Change, Observer, deleting, is_true, key_of, label, terminal, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "another-image-is-no-end";
/// The name of this part of the work.
pub(crate) const PART: &str = "reimaged";

/// Marks these pods.
const LABEL: &str = "reimaged";

/// Pods that are given one image after the other.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(2) {
        let name = format!("reimaged{n}");
        let mut at = between(rng, Duration::from_secs(1), Duration::from_secs(3));
        let mut object = mounting(&name, 1 + rng.below(8), "scratch", "emptyDir", json!({}));
        object["metadata"]["labels"] = json!({LABEL: "true"});
        object["spec"]["restartPolicy"] = "Never".into();
        object["spec"]["containers"][0]["env"][0]["value"] = "5".into();
        let want = Some(("pod", Want::Pod { restarts: false, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        for version in 2.. {
            at += between(rng, Duration::from_secs(2), Duration::from_secs(8));
            if at >= safety {
                break;
            }
            let image = format!("sim/run:{version}");
            acts.push(Act { at, what: What::Image { name: name.clone(), image } });
        }
    }
}

/// Whether a pod is one of these, and was given another image.
fn is_reimaged(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
        && pod.pointer("/metadata/generation").and_then(Value::as_i64).is_some_and(|generation| generation > 1)
}

/// Whether a pod's container may be stopped in order to start again with another image.
pub(crate) fn may_start_again(pod: &PodRef, observer: &Observer) -> bool {
    observer.pod(pod).is_some_and(is_reimaged)
}

/// Whether a pod ends for something else than how its containers ended.
pub(crate) fn ends_otherwise(pod: &Value) -> bool {
    deleting(pod) || !text(pod, "/status/reason").is_empty() || is_true(pod, "DisruptionTarget")
}

/// Changes that were just committed: no pod has ended for a stop that was to give it another image.
pub(crate) fn changed(changes: &[Change], nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (Some(old), Some(new)) = (&change.before, &change.after) else { continue };
        if terminal(old) || !terminal(new) || !is_reimaged(new) || ends_otherwise(new) {
            continue;
        }
        let node = named(nodes, text(new, "/spec/nodeName"));
        // Whose sandbox has died under him, and who is never started again, has ended.
        let node = node.filter(|node| !node.runtime.has_lost_sandbox(uid(new)));
        if let Some(stopped) = node.and_then(|node| node.runtime.stopped_last(uid(new))) {
            let (name, phase) = (key_of(new), text(new, "/status/phase"));
            let what = format!("{name} has {phase}, since {stopped} was stopped for another image");
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_end_for_their_containers_alone_are_looked_at() {
        let metadata = |generation: i64| json!({"labels": {LABEL: "true"}, "generation": generation});
        let pod = |generation, status: Value| json!({"metadata": metadata(generation), "status": status});
        for (pod, expected) in [
            (pod(2, json!({"phase": "Failed"})), true),
            (pod(1, json!({"phase": "Failed"})), false),
            (pod(2, json!({"phase": "Failed", "reason": "Terminated"})), false),
            (pod(2, json!({"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]})), false),
        ] {
            assert_eq!(is_reimaged(&pod) && !ends_otherwise(&pod), expected, "{pod}");
        }
    }
}
