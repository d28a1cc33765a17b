//! Ephemeral containers: somebody looks into a pod that is there, with a container that is added to it and runs once.
//!
//! ```text
//!   a pod, wherever it stands ─▶ "debug0" is added ─▶ made ─▶ runs ─▶ ends, or stays ─▶ told so as long as the pod is there
//!      └── not there yet, without a node, about to end          └── the kubelet may end between any two of these, or the node
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Rng;
use carrack_kubelet::runtime::ContainerRecord;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, NodeEvent, Runtime, named};
use crate::observer::{Change, Observer, deleting, key_of, label, text, uid};
use crate::workload::{Act, What, mortal, mounting};

/// The invariant that each runs once.
pub(crate) const ONCE: &str = "debuggers-run-once";
/// The invariant that what has become of each is told.
pub(crate) const TOLD: &str = "debuggers-stay-told";
/// The name of this part of the work.
pub(crate) const PART: &str = "debuggers";

/// Marks these pods.
const LABEL: &str = "debuggers";
/// What the names of such containers begin with.
const NAME: &str = "debug";

/// Pods that somebody looks into.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(2) {
        let name = format!("debugged{n}");
        let at = between(rng, Duration::from_secs(1), safety / 3);
        let mut object = mounting(&name, 1 + rng.below(8), "scratch", "emptyDir", json!({}));
        object["metadata"]["labels"] = json!({LABEL: "true"});
        mortal(rng, at, safety, object, true, acts);
        for number in 0..1 + rng.below(3) {
            let what = What::Merge { name: name.clone(), sub: "ephemeralcontainers", patch: debugger(number) };
            acts.push(Act { at: between(rng, at, safety), what });
        }
    }
}

fn debugger(number: u64) -> Value {
    let mut container = json!({"name": format!("{NAME}{number}"), "image": "sim/run", "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "STOPS_IN_S", "value": "1"}]});
    // Every other one sees the processes of the pod's own container.
    if !number.is_multiple_of(2) {
        container["targetContainerName"] = "main".into();
    }
    json!({"spec": {"ephemeralContainers": [container]}})
}

fn is_ours(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

/// What is told of a pod's ephemeral containers.
fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    pod.pointer("/status/ephemeralContainerStatuses").and_then(Value::as_array).into_iter().flatten()
}

/// The ids of those that are told to run.
fn running(pod: &Value) -> BTreeSet<&str> {
    let running = statuses(pod).filter(|status| !status["state"]["running"].is_null());
    running.filter_map(|status| status["containerID"].as_str()?.strip_prefix("containerd://")).collect()
}

/// Those that have just begun, and end after a while: of which nodes, and after which time. Some stay.
pub(crate) fn ends(changes: &[Change], nodes: &BTreeMap<u8, Node>, root: &Rng) -> Vec<(u8, Duration, NodeEvent)> {
    let mut ends = Vec::new();
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let Some(pod) = change.after.as_ref().filter(|pod| is_ours(pod)) else { continue };
        let Some(node) = named(nodes, text(pod, "/spec/nodeName")) else { continue };
        let before = change.before.as_ref().map(running).unwrap_or_default();
        for id in running(pod).difference(&before) {
            let mut rng = root.fork(&format!("the end of {id} of {}", uid(pod)));
            if rng.one_in(3) {
                continue;
            }
            let code = i32::from(rng.one_in(2));
            let after = between(&mut rng, Duration::from_millis(100), Duration::from_secs(3));
            ends.push((node.number, after, NodeEvent::Exit { container: (*id).to_owned(), code }));
        }
    }
    ends
}

/// A container was started.
pub(crate) fn started(id: &str, runtime: &Runtime, breaches: &mut Vec<Breach>) {
    let is_one = |r: &&ContainerRecord| r.name.starts_with(NAME) && runtime.is_running(&r.id);
    let Some(record) = runtime.record(id).filter(is_one) else { return };
    let is_earlier = |r: &&ContainerRecord| r.name == record.name && r.id != record.id && r.started_at.is_some();
    if let Some(earlier) = runtime.records_of(&record.pod.uid).find(is_earlier) {
        let what = format!("{id} ({}) of {} starts, and {} has run before", record.name, record.pod, earlier.id);
        breaches.push(Breach::new(ONCE, what));
    }
}

fn is_over(status: &Value) -> bool {
    !status["state"]["terminated"].is_null()
}

fn has_begun(status: &Value) -> bool {
    is_over(status) || !status["state"]["running"].is_null()
}

/// An ephemeral container that was told to run or to have ended, and is not told to any more.
fn forgotten<'a>(before: &'a Value, after: &Value) -> Option<&'a str> {
    let is_told = |old: &Value| {
        let is_same = |new: &Value| new["name"] == old["name"] && new["containerID"] == old["containerID"];
        statuses(after).any(|new| is_same(new) && if is_over(old) { is_over(new) } else { has_begun(new) })
    };
    let mut begun = statuses(before).filter(|status| has_begun(status));
    begun.find(|old| !is_told(old)).map(|old| text(old, "/name"))
}

/// Changes that were just committed.
pub(crate) fn changed(changes: &[Change], breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (Some(before), Some(after)) = (&change.before, &change.after) else { continue };
        if let Some(name) = forgotten(before, after).filter(|_| is_ours(after)) {
            let what = format!("{name} of {} had begun or ended, and is not told to have any more", key_of(after));
            breaches.push(Breach::new(TOLD, what));
        }
    }
}

/// A container that was added to a running pod, and has not run.
fn waiting(pod: &Value) -> Option<&str> {
    let asked = pod.pointer("/spec/ephemeralContainers").and_then(Value::as_array).into_iter().flatten();
    let is_told = |name: &str| statuses(pod).any(|status| status["name"] == name && has_begun(status));
    asked.map(|container| text(container, "/name")).find(|name| !is_told(name))
}

/// What is not as it is to be in the end.
pub(crate) fn lack(observer: &Observer) -> Option<String> {
    let runs = |pod: &&Value| !deleting(pod) && text(pod, "/status/phase") == "Running";
    let mut ours = observer.all("pod").filter(|pod| is_ours(pod)).filter(runs);
    ours.find_map(|pod| Some(format!("{} of pod {} does not start", waiting(pod)?, key_of(pod))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with these containers, as `name=id/state`.
    fn pod(text: &str) -> Value {
        let status = |word: &str| {
            let (name, rest) = word.split_once('=').unwrap();
            let (id, state) = rest.split_once('/').unwrap();
            json!({"name": name, "containerID": format!("containerd://{id}"), "state": {state: {}}})
        };
        let all: Value = text.split_whitespace().map(status).collect();
        json!({"metadata": {"namespace": "default", "name": "debugged0", "labels": {LABEL: "true"}},
            "spec": {"ephemeralContainers": [{"name": "debug0"}]},
            "status": {"phase": "Running", "ephemeralContainerStatuses": all}})
    }

    #[test]
    fn who_has_begun_is_told_of() {
        for (before, after, expected) in [
            ("debug0=a/running", "debug0=a/terminated", None),
            ("debug0=a/terminated", "debug0=a/terminated debug1=b/running", None),
            ("debug0=a/waiting", "", None),
            ("debug0=a/waiting", "debug0=b/running", None),
            ("debug0=a/running", "", Some("debug0")),
            ("debug0=a/running", "debug0=a/waiting", Some("debug0")),
            ("debug0=a/running", "debug0=b/running", Some("debug0")),
            ("debug0=a/terminated", "debug0=a/running", Some("debug0")),
            ("debug0=a/terminated", "", Some("debug0")),
            ("debug0=a/terminated", "debug0=a/waiting", Some("debug0")),
            ("debug0=a/terminated", "debug0=b/terminated", Some("debug0")),
            ("debug0=a/running debug1=b/terminated", "debug0=a/running", Some("debug1")),
        ] {
            assert_eq!(forgotten(&pod(before), &pod(after)), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn who_was_added_runs_in_the_end() {
        for (told, expected) in [
            ("", Some("debug0")),
            ("debug0=a/waiting", Some("debug0")),
            ("debug0=a/running", None),
            ("debug0=a/terminated", None),
            ("debug1=a/running", Some("debug0")),
        ] {
            assert_eq!(waiting(&pod(told)), expected, "{told:?}");
        }
    }

    #[test]
    fn who_runs_is_told_by_its_id() {
        let of = pod("debug0=a/running debug1=b/terminated debug2=c/running");
        assert_eq!(running(&of).into_iter().collect::<Vec<_>>(), ["a", "c"]);
    }
}
