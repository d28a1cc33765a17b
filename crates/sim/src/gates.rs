//! Pods with readiness gates: conditions that others write into their statuses, beside those of their kubelets.
//!
//! ```text
//!   somebody:  traffic: False ─────▶ traffic: True ───▶ traffic: False ──▶ ...       merged by its type, whatever else is there
//!   kubelet:     └▶ Ready: False       └▶ Ready: True     └▶ Ready: False            written as a whole, on what it has read
//!   a reader:  seen: True, once, if the conditions are still those that it has read
//! ```
//!
//! All three write to one status, whenever they like, and none may take back what another one has said.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiRequest, ContentType, Rng};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, conditions, deleting, is_true, key_of, label, terminal, text};
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// The invariant that what others say stays.
pub(crate) const KEPT: &str = "conditions-of-others-stay";
/// The invariant that gates are heeded.
pub(crate) const HEEDED: &str = "ready-is-what-gates-say";
/// The name of this part of the work.
pub(crate) const PART: &str = "gates";

/// Marks these pods.
const LABEL: &str = "gates";
/// What the types of all conditions begin with that are not the cluster's own.
const OF_OTHERS: &str = "sim.example.com/";
/// The gates that a pod may have.
const GATES: &[&str] = &["sim.example.com/traffic", "sim.example.com/warm"];
/// What a reader of pods writes down of those that it has seen to run. It is no gate.
const SEEN: &str = "sim.example.com/seen";

/// Pods with gates, which others open and shut.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(3) {
        let name = format!("gated{n}");
        let gates = if rng.one_in(2) { &GATES[..1] } else { GATES };
        let at = between(rng, Duration::from_secs(1), safety / 3);
        let mut object = mounting(&name, 1 + rng.below(8), "scratch", "emptyDir", json!({}));
        object["metadata"]["labels"] = json!({LABEL: "true"});
        object["spec"]["readinessGates"] = gates.iter().map(|gate| json!({"conditionType": gate})).collect();
        // A word that is lost, or comes twice, may leave a gate shut: whether it is ready in the end is what its gates say then.
        let what = What::Create { resource: Pod::resource(), object, want: Some(("pod", Want::Any)) };
        acts.push(Act { at, what });
        for gate in gates {
            let (mut flip, mut count) = (at, 0);
            loop {
                flip += between(rng, Duration::from_millis(300), safety / 6);
                if flip >= safety {
                    break;
                }
                acts.push(tell(flip, &name, gate, !rng.one_in(3), count));
                count += 1;
            }
            if !rng.one_in(4) {
                acts.push(tell(safety, &name, gate, true, count));
            }
        }
        let lives = between(rng, safety / 3, safety);
        if at + lives < safety && rng.one_in(4) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// A gate of a pod is opened or shut, for the `count`th time.
fn tell(at: Duration, name: &str, gate: &str, opens: bool, count: u32) -> Act {
    let status = if opens { "True" } else { "False" };
    let condition = json!({"type": gate, "status": status, "reason": format!("Word{count}")});
    let patch = json!({"status": {"conditions": [condition]}});
    Act { at, what: What::Merge { name: name.to_owned(), sub: "status", patch } }
}

fn is_ours(pod: &Value) -> bool {
    label(pod, "labels", LABEL) == "true"
}

/// What a reader writes who has just read these pods, which may be others by the time it arrives: then it is refused.
pub(crate) fn sightings(changes: &[Change]) -> Vec<ApiRequest> {
    let read = changes.iter().filter(|change| change.resource == "pod").filter_map(|change| change.after.as_ref());
    let is_new = |pod: &&Value| {
        let runs = text(pod, "/status/phase") == "Running" && !deleting(pod);
        is_ours(pod) && runs && !is_true(pod, SEEN)
    };
    read.filter(is_new).map(sighting).collect()
}

fn sighting(pod: &Value) -> ApiRequest {
    let patch = json!([{"op": "test", "path": "/status/conditions", "value": pod["status"]["conditions"]},
        {"op": "add", "path": "/status/conditions/-", "value": {"type": SEEN, "status": "True"}}]);
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    ApiRequest::patch(&Pod::resource(), namespace, name, "status", ContentType::JsonPatch, &patch)
}

/// What says nothing may be there or not: a server writes a status as it has it.
fn said(value: &Value) -> Value {
    let fields = |all: &serde_json::Map<String, Value>| all.clone().into_iter().filter(|(_, v)| !v.is_null()).collect();
    value.as_object().map_or_else(|| value.clone(), |all| Value::Object(fields(all)))
}

/// A pod's conditions by their types: those of others, or all but those.
fn told(pod: &Value, of_others: bool) -> BTreeMap<&str, Value> {
    let all = conditions(pod).map(|condition| (text(condition, "/type"), said(condition)));
    all.filter(|(name, _)| name.starts_with(OF_OTHERS) == of_others).collect()
}

/// What a pod's status says but for conditions.
fn rest(pod: &Value) -> BTreeMap<&str, Value> {
    let fields = pod["status"].as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), said(value)));
    fields.filter(|(name, _)| *name != "conditions").collect()
}

/// What is wrong with a write for what others have said. Who says something of that kind says nothing else with it: a write of
/// both is a kubelet's, who has nothing to say there.
fn taken_back(before: &Value, after: &Value) -> Option<String> {
    let (had, has) = (told(before, true), told(after, true));
    if let Some(gone) = had.keys().find(|name| !has.contains_key(*name)) {
        return Some(format!("{gone} is lost"));
    }
    let own = differing(&told(before, false), &told(after, false));
    let own = own.or_else(|| differing(&rest(before), &rest(after)))?;
    let (name, other) = has.iter().find(|(name, condition)| had.get(*name) != Some(*condition))?;
    Some(format!("{name} becomes {other} with what its kubelet says of {own}"))
}

/// Something of which two tellings do not say the same.
fn differing<'a>(before: &BTreeMap<&'a str, Value>, after: &BTreeMap<&'a str, Value>) -> Option<&'a str> {
    before.keys().chain(after.keys()).copied().find(|name| before.get(name) != after.get(name))
}

/// Whether all of a pod's gates are open.
fn is_open(pod: &Value) -> bool {
    let mut gates = pod.pointer("/spec/readinessGates").and_then(Value::as_array).into_iter().flatten();
    gates.all(|gate| is_true(pod, text(gate, "/conditionType")))
}

/// Changes that were just committed.
pub(crate) fn changed(changes: &[Change], breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (Some(before), Some(after)) = (&change.before, &change.after) else { continue };
        if !is_ours(after) {
            continue;
        }
        if let Some(what) = taken_back(before, after) {
            breaches.push(Breach::new(KEPT, format!("{}: {what}", key_of(after))));
        }
        let becomes_ready = is_true(after, "Ready") && !is_true(before, "Ready");
        if becomes_ready && !(is_open(after) && is_true(after, "ContainersReady")) {
            let what = format!("{} is told to be ready, and its gates or its containers are not", key_of(after));
            breaches.push(Breach::new(HEEDED, what));
        }
    }
}

/// What of a pod that has a node is not as its gates and its containers say.
fn lacks(pod: &Value) -> Option<String> {
    if !is_true(pod, "ContainersReady") {
        return Some("has containers that are not ready".to_owned());
    }
    let (is_ready, is_open) = (is_true(pod, "Ready"), is_open(pod));
    (is_ready != is_open).then(|| format!("is told ready: {is_ready}, and its gates are open: {is_open}"))
}

/// What is not as it is to be in the end.
pub(crate) fn lack(observer: &Observer) -> Option<String> {
    let runs = |pod: &&Value| !terminal(pod) && !deleting(pod) && !text(pod, "/spec/nodeName").is_empty();
    let mut ours = observer.all("pod").filter(|pod| is_ours(pod)).filter(runs);
    ours.find_map(|pod| Some(format!("pod {} {}", key_of(pod), lacks(pod)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with these conditions, as `type=status`.
    fn pod(text: &str) -> Value {
        let condition = |word: &str| {
            let (name, status) = word.split_once('=').unwrap();
            match status.strip_suffix('?') {
                Some(status) => json!({"type": name, "status": status, "lastProbeTime": null}),
                None => json!({"type": name, "status": status}),
            }
        };
        let all: Value = text.split_whitespace().map(condition).collect();
        json!({"metadata": {"namespace": "default", "name": "gated0", "labels": {LABEL: "true"}},
            "spec": {"nodeName": "n", "readinessGates": [{"conditionType": GATES[0]}]},
            "status": {"phase": "Running", "conditions": all}})
    }

    #[test]
    fn what_others_say_is_theirs() {
        let (open, shut) = (format!("{}=True", GATES[0]), format!("{}=False", GATES[0]));
        for (before, after, expected) in [
            // Somebody says something.
            (String::new(), open.clone(), None),
            (format!("Ready=True {open}"), format!("{shut} Ready=True"), None),
            (open.clone(), format!("{open} {SEEN}=True"), None),
            // The kubelet does, beside it or instead of it.
            (shut.clone(), format!("{shut} Ready=False"), None),
            // A condition says the same without what says nothing.
            (format!("{shut} Ready=False?"), format!("{open} Ready=False"), None),
            (open.clone(), "Ready=True".to_owned(), Some("is lost")),
            (open.clone(), String::new(), Some("is lost")),
            (format!("{open} Ready=False"), format!("{shut} Ready=True"), Some("with what its kubelet says")),
            ("Ready=False".to_owned(), format!("Ready=True {open}"), Some("with what its kubelet says")),
        ] {
            let found = taken_back(&pod(&before), &pod(&after));
            let is_expected = match (expected, &found) {
                (Some(expected), Some(found)) => found.contains(expected),
                (expected, found) => expected.is_none() && found.is_none(),
            };
            assert!(is_expected, "{before:?} {after:?}: {found:?}");
        }
    }

    #[test]
    fn gates_and_containers_say_who_is_ready() {
        let (open, shut) = (format!("{}=True", GATES[0]), format!("{}=False", GATES[0]));
        for (conditions, is_wrong, is_lacking) in [
            (format!("ContainersReady=True Ready=True {open}"), false, false),
            (format!("ContainersReady=True Ready=True {shut}"), true, true),
            ("ContainersReady=True Ready=True".to_owned(), true, true),
            (format!("ContainersReady=False Ready=True {open}"), true, true),
            (format!("ContainersReady=True Ready=False {open}"), false, true),
            (format!("ContainersReady=True Ready=False {shut}"), false, false),
        ] {
            let (after, mut breaches) = (pod(&conditions), Vec::new());
            let before = pod(&conditions.replace(" Ready=True", " Ready=False"));
            changed(&[Change { resource: "pod", before: Some(before), after: Some(after.clone()) }], &mut breaches);
            let found: Vec<&str> = breaches.iter().map(|breach| breach.invariant).collect();
            assert_eq!(found.contains(&HEEDED), is_wrong, "{conditions}");
            assert_eq!(lack(&Observer::of([("pod", after)])).is_some(), is_lacking, "{conditions}");
        }
    }
}
