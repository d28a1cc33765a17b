//! Pods that run until they succeed, and whose containers are stopped when a probe fails: how a container ends that is told to
//! is no success of its pod.
//!
//! ```text
//!   runs ─▶ its probe fails for a while ─▶ kubelet: written down ─▶ stopped: ends with 0 ─▶ made anew ─▶ the pod goes on
//!                                               └── the kubelet may end between any two of these
//! ```
//!
//! The first containers of such a pod fail, each at the same age; later ones don't.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::runtime::{ContainerRecord, ContainerSpec, PodRef};
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Change, Observer, key_of, label, terminal, text, uid};
use crate::reimaged::ends_otherwise;
use crate::workload::{Act, mortal, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "success-is-its-own";
/// The name of this part of the work.
pub(crate) const PART: &str = "probed";

/// Marks these pods.
const LABEL: &str = "probed";
/// What these pods' probes run: with the age at which it begins to fail, and for how long it does, in seconds.
const COMMAND: &str = "fails";
/// The variable that says with what a container ends that is told to.
const STOPS_WITH: &str = "STOPS_WITH";
/// With what one ends that has no such variable: its signal.
const SIGNALLED: i32 = 128 + 15;
/// So many containers of a pod fail.
const FAIL: u32 = 2;

/// Pods with such probes.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(3) {
        let name = format!("probed{n}");
        let at = between(rng, Duration::from_secs(1), safety / 3);
        let mut object = mounting(&name, 1 + rng.below(8), "scratch", "emptyDir", json!({}));
        object["metadata"]["labels"] = json!({LABEL: "true"});
        object["spec"]["restartPolicy"] = "OnFailure".into();
        let command = json!([COMMAND, (1 + rng.below(4)).to_string(), (3 + rng.below(6)).to_string()]);
        let (exec, most) = (json!({"command": command}), 1 + rng.below(2));
        let main = &mut object["spec"]["containers"][0];
        main["livenessProbe"] = json!({"exec": exec, "periodSeconds": 1, "failureThreshold": most});
        main["env"] = json!([{"name": "STOPS_IN_S", "value": rng.below(6).to_string()},
            {"name": STOPS_WITH, "value": "0"}]);
        // It may end well by itself.
        mortal(rng, at, safety, object, false, acts);
    }
}

/// With what a container ends that is told to.
pub(crate) fn stops_with(spec: &ContainerSpec) -> i32 {
    let own = spec.env.iter().find(|(name, _)| name == STOPS_WITH).and_then(|(_, code)| code.parse().ok());
    own.unwrap_or(SIGNALLED)
}

/// How a command ends in a container: with 0, but for a probe that fails.
pub(crate) fn answer(now: Time, container: &ContainerRecord, command: &[String]) -> i32 {
    let ([name, from_s, for_s], Some(started)) = (command, container.started_at) else { return 0 };
    let seconds = |text: &str| Duration::from_secs(text.parse().unwrap_or(0));
    let (from, age) = (seconds(from_s), now.since(started));
    let fails = name == COMMAND && container.attempt < FAIL && age >= from && age < from + seconds(for_s);
    i32::from(fails)
}

fn is_ours(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

/// Whether a pod's container may be stopped in order to start again.
pub(crate) fn may_start_again(pod: &PodRef, observer: &Observer) -> bool {
    observer.pod(pod).is_some_and(is_ours)
}

/// Changes that were just committed: no pod has succeeded since its container was stopped.
pub(crate) fn changed(changes: &[Change], nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (Some(old), Some(new)) = (&change.before, &change.after) else { continue };
        let succeeds = text(new, "/status/phase") == "Succeeded" && !terminal(old);
        if !succeeds || !is_ours(new) || ends_otherwise(new) {
            continue;
        }
        let Some(node) = named(nodes, text(new, "/spec/nodeName")) else { continue };
        if let Some(stopped) = node.runtime.stopped_last(uid(new)) {
            let what = format!("{} has succeeded, since {stopped} was stopped for its probe", key_of(new));
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_kubelet::runtime::{ContainerSize, ContainerState};

    use super::*;

    fn container(attempt: u32) -> ContainerRecord {
        ContainerRecord {
            id: "c".into(),
            sandbox_id: "s".into(),
            pod: PodRef { namespace: "default".into(), name: "probed0".into(), uid: "uid".into() },
            name: "main".into(),
            attempt,
            state: ContainerState::Running,
            created_at: Time::default(),
            started_at: Some(Time::default()),
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            round: 0,
            size: ContainerSize { made_with: None, actual: None },
            user: None,
        }
    }

    #[test]
    fn probes_fail_in_their_time() {
        let probe = [COMMAND, "2", "3"];
        for (attempt, age_s, command, expected) in [
            (0, 1, &probe[..], 0),
            (0, 2, &probe[..], 1),
            (FAIL - 1, 4, &probe[..], 1),
            (0, 5, &probe[..], 0),
            (FAIL, 2, &probe[..], 0),
            (0, 2, &["else", "2", "3"][..], 0),
            (0, 2, &[COMMAND][..], 0),
        ] {
            let words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            let now = Time::default() + Duration::from_secs(age_s);
            assert_eq!(answer(now, &container(attempt), &words), expected, "{attempt} {age_s} {command:?}");
        }
    }
}
