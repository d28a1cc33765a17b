//! Pods whose hooks sleep before their container is told to end: the container may end by itself meanwhile, and nobody is to
//! wait for anything more then.
//!
//! ```text
//!   a pod is to go ─▶ its hook sleeps ─┬─▶ its container is told to end ─▶ the pod is gone
//!                                      └─▶ its container ends by itself ─▶ the pod is gone
//! ```
//!
//! These pods have no volumes: what is left of one that is waited for in vain is its object alone.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::node::{Node, NodeEvent, named};
use crate::observer::{Change, deleting, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The name of this part of the work.
pub(crate) const PART: &str = "sleepers";

/// One container in so many goes on until it is told to end.
const STAYS_ONE_IN: u64 = 3;

/// Pods with such hooks.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let count = 3 + rng.below(4);
    hooked(rng, safety, ("sleeper", count), sleeper, acts);
}

/// So many pods with hooks, whose names begin with a word. Most of them are deleted.
pub(crate) fn hooked(
    rng: &mut Rng,
    safety: Duration,
    (word, count): (&str, u64),
    pod: fn(&mut Rng, &str) -> Value,
    acts: &mut Vec<Act>,
) {
    for n in 0..count {
        let name = format!("{word}{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let object = pod(rng, &name);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(1), safety / 3);
        if !rng.one_in(4) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// A pod whose hook sleeps for no longer than the pod has time.
fn sleeper(rng: &mut Rng, name: &str) -> Value {
    let grace_s = 2 + rng.below(14);
    let mut pod = mounting(name, grace_s, "none", "emptyDir", json!({}));
    pod["spec"]["volumes"] = json!([]);
    let main = &mut pod["spec"]["containers"][0];
    main["volumeMounts"] = json!([]);
    main["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1 + rng.below(grace_s)}}});
    pod
}

/// For how long the hook of a pod sleeps.
fn sleeps(pod: &Value) -> Option<Duration> {
    let seconds = pod.pointer("/spec/containers/0/lifecycle/preStop/sleep/seconds")?.as_u64()?;
    Some(Duration::from_secs(seconds))
}

/// Containers of pods that have just been deleted which end by themselves in the sleep of their hooks: of which nodes, and
/// after which time.
pub(crate) fn end_asleep(changes: &[Change], nodes: &BTreeMap<u8, Node>, root: &Rng) -> Vec<(u8, Duration, NodeEvent)> {
    let ends = |change: &Change| {
        let pod = change.after.as_ref().filter(|pod| change.resource == "pod" && deleting(pod))?;
        let sleeps = sleeps(pod).filter(|_| !change.before.as_ref().is_none_or(deleting))?;
        let node = named(nodes, text(pod, "/spec/nodeName"))?;
        let container = node.runtime.alive_of(uid(pod))?.to_owned();
        let mut rng = root.fork(&format!("the sleep of {}", uid(pod)));
        let stays = rng.one_in(STAYS_ONE_IN);
        let after = between(&mut rng, Duration::from_millis(100), sleeps);
        let code = i32::from(rng.one_in(2));
        (!stays).then_some((node.number, after, NodeEvent::Exit { container, code }))
    };
    changes.iter().filter_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_sleep_in_the_time_of_their_pods() {
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let pod = sleeper(&mut rng, "a");
            let grace_s = pod["spec"]["terminationGracePeriodSeconds"].as_u64().map(Duration::from_secs);
            let sleeps = sleeps(&pod);
            assert!(sleeps > Some(Duration::ZERO) && sleeps <= grace_s, "{pod}");
        }
    }
}
