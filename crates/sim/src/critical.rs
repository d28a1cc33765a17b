//! Pods that a node cannot do without, on a node that others have filled.
//!
//! ```text
//!   fillers have the node ─▶ a critical pod is bound there ─▶ kubelet: a filler ends ─▶ the critical pod runs
//!                                                        │ fails, is late, and the kubelet may end in between
//! ```
//!
//! All of them are bound as they are made: no scheduler is asked whether they fit. So no run has other work
//! beside them.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_kubelet::runtime::PodRef;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, key_of, label, terminal, text, uid};
use crate::role::node_name;
use crate::wants::Want;
use crate::workload::{Act, What, delete};

/// The invariants that are looked after here.
pub(crate) const LESS: &str = "critical-pods-are-not-preempted";
pub(crate) const ROOM: &str = "critical-pods-are-given-room";

/// The name of this part of the work.
pub(crate) const PART: &str = "critical";
/// Marks these pods.
const LABEL: &str = "unscheduled";
/// All of them are on one node.
const NODE: u8 = 1;
/// CPUs that each of them asks for, in thousandths. A node can give it to [`FIT`] of them.
const MILLI: u32 = 1400;
const FIT: usize = 2;
/// The priority of the class of critical pods: nobody's is higher.
const CRITICAL: i64 = 2_000_001_000;

fn pod(rng: &mut Rng, name: &str, critical: bool) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"namespace": "default", "name": name, "labels": {LABEL: "true"}},
    "spec": {
        "nodeName": node_name(NODE),
        "restartPolicy": if critical { "Always" } else { "Never" },
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1 + rng.below(5),
        "containers": [{"name": "main", "image": "sim/run", "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "STOPS_IN_S", "value": rng.below(5).to_string()}],
            "resources": {"requests": {"cpu": format!("{MILLI}m")}}}],
    }});
    if critical {
        pod["spec"]["priorityClassName"] = "system-node-critical".into();
    }
    pod
}

/// Fillers that are there first, and critical pods that come to them; in the end all go.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for place in 0..FIT {
        let mut at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        let mut round = 0;
        while at < safety {
            let comes = at + between(rng, Duration::from_millis(100), Duration::from_secs(8));
            let goes = comes + between(rng, Duration::from_secs(2), Duration::from_secs(20));
            for (at, kind) in [(at, "filler"), (comes, PART)] {
                let name = format!("{kind}{place}-{round}");
                let (resource, object) = (Pod::resource(), pod(rng, &name, kind == PART));
                acts.push(Act { at, what: What::Create { resource, object, want: Some(("pod", Want::Any)) } });
                acts.push(delete(goes, Pod::resource(), "default", &name, "pod"));
            }
            at = goes + between(rng, Duration::from_millis(100), Duration::from_secs(3));
            round += 1;
        }
    }
}

/// Whether a pod is one of these: nobody has looked whether it fits.
pub(crate) fn is_ours(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

fn is_critical(pod: &Value) -> bool {
    pod.pointer("/spec/priority").and_then(Value::as_i64).is_some_and(|priority| priority >= CRITICAL)
}

/// Whether a pod's containers may be ended for a critical pod.
pub(crate) fn may_be_preempted(pod: &PodRef, observer: &Observer) -> bool {
    observer.pod(pod).is_some_and(|pod| is_ours(pod) && !is_critical(pod))
}

/// Pods have just failed: no critical one for others, and none for want of room that others could have made.
pub(crate) fn changed(changes: &[Change], observer: &Observer, breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let Some(pod) = change.after.as_ref().filter(|pod| text(pod, "/status/phase") == "Failed") else { continue };
        if change.before.as_ref().is_some_and(terminal) || !is_critical(pod) {
            continue;
        }
        let (name, node, reason) = (key_of(pod), text(pod, "/spec/nodeName"), text(pod, "/status/reason"));
        if reason == "Preempting" {
            breaches.push(Breach::new(LESS, format!("{name} is critical, and was ended on {node} for another pod")));
        }
        let stays = |other: &&Value| {
            text(other, "/spec/nodeName") == node && uid(other) != uid(pod) && is_critical(other) && !terminal(other)
        };
        let others = observer.all("pod").filter(stays).count();
        if reason.starts_with("OutOf") && is_ours(pod) && others < FIT {
            let what = format!("{name} is critical and is rejected: {reason}, beside {others} such pods on {node}");
            breaches.push(Breach::new(ROOM, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::world::run;

    #[test]
    fn critical_pods_in_trouble_get_room() {
        let safety = Duration::from_secs(60);
        let options = Options { machines: false, only: Some(vec![PART]), safety, ..Options::default() };
        for seed in 1..9 {
            let failure = run(seed, &options).failure;
            assert!(failure.is_none(), "{}", failure.map(|f| f.to_string()).unwrap_or_default());
        }
    }
}
