//! Namespaces with a quota: in one of them a Deployment asks for more than it may have, and in another one people change
//! their minds about the quota while pods come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiRequest, Method, Rng};
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use serde_json::{Value, json};

use super::acts::{start, template};
use crate::chance::{below, between};
use crate::invariants::Breach;
use crate::observer::{Change, Observer, deleting, key_of, terminal, text};
use crate::wants::Want;
use crate::workload::{Act, What, create, delete, up_to};

const NAMESPACE: &str = "limited";
/// So many pods it may have.
const PODS: u64 = 2;

/// The name of the part of the work in which quotas are edited.
pub(crate) const EDITS: &str = "quota edits";
/// Where that is.
const EDITED: &str = "edited";
/// More pods than are ever there at a time, those that go included.
const ENOUGH: u64 = 20;
/// In which somebody has taken a quota away and makes it again.
const MOMENT: Duration = Duration::from_secs(2);

fn create_namespace(at: Duration, name: &str) -> Act {
    create(at, Namespace::resource(), json!({"metadata": {"name": name}}), None)
}

fn create_quota(at: Duration, namespace: &str, name: &str, pods: u64) -> Act {
    let quota =
        json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"hard": {"pods": pods.to_string()}}});
    create(at, ResourceQuota::resource(), quota, Some(("quota", Want::Workload)))
}

/// A Deployment that is called like its namespace.
fn create_deployment(at: Duration, namespace: &str, replicas: u64, want: Option<(&'static str, Want)>) -> Act {
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": namespace}},
        "template": template(namespace, 1)});
    let deployment = json!({"metadata": {"namespace": namespace, "name": namespace}, "spec": spec});
    create(at, Deployment::resource(), deployment, want)
}

fn patch(at: Duration, resource: Resource, namespace: &str, name: &str, spec: &Value, kind: &'static str) -> Act {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let patch = json!({ "spec": spec });
    Act { at, what: What::Patch { resource, namespace, name, patch, kind, want: None } }
}

fn scale(at: Duration, namespace: &str, replicas: u64) -> Act {
    patch(at, Deployment::resource(), namespace, namespace, &json!({ "replicas": replicas }), "deployment")
}

/// The namespace, its quota, and who lives there; in the end it goes with all that, or stays.
pub(super) fn acts(rng: &mut Rng, safety: Duration, stays: bool, acts: &mut Vec<Act>) {
    let mut at = start(rng, safety);
    acts.push(create_namespace(at, NAMESPACE));
    acts.push(create_quota(at, NAMESPACE, "pods", PODS));
    acts.push(create_deployment(at, NAMESPACE, 1 + rng.below(4), None));
    for _ in 0..rng.below(4) {
        at += between(rng, Duration::from_millis(500), safety / 4);
        if at > safety {
            break;
        }
        acts.push(scale(at, NAMESPACE, rng.below(5)));
    }
    if rng.one_in(2) && !stays {
        acts.push(delete(at + Duration::from_millis(1), Namespace::resource(), "", NAMESPACE, "namespace"));
    }
}

/// A quota that somebody lowers, whatever is there, raises, and takes away and makes again, beside a Deployment that is scaled
/// and a Job. Each one that is made has a name of its own: who repeats that the one before is to go means that one.
pub(super) fn edits(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let mut at = start(rng, safety);
    let name = |number: u64| format!("pods{number}");
    let edit = |at, number, pods: u64| {
        let spec = json!({"hard": {"pods": pods.to_string()}});
        patch(at, ResourceQuota::resource(), EDITED, &name(number), &spec, "quota")
    };
    let mut number = 0;
    acts.push(create_namespace(at, EDITED));
    acts.push(create_quota(at, EDITED, &name(number), 2 + rng.below(3)));
    acts.push(create_deployment(at, EDITED, 1 + rng.below(4), Some(("deployment", Want::Workload))));
    let mut template = template("job", 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "0".into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = rng.below(4).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"namespace": EDITED, "name": "job"},
        "spec": {"completions": 2 + rng.below(up_to(12, safety)), "parallelism": 2, "backoffLimit": i32::MAX,
            "template": template}});
    acts.push(create(at, Job::resource(), job, Some(("job", Want::Workload))));
    for _ in 0..4 + rng.below(up_to(16, safety)) {
        at += between(rng, Duration::from_millis(100), safety / 8);
        if at >= safety {
            break;
        }
        match rng.below(4) {
            0 | 1 => acts.push(edit(at, number, rng.below(5))),
            2 => acts.push(scale(at, EDITED, rng.below(5))),
            _ => {
                acts.push(delete(at, ResourceQuota::resource(), EDITED, &name(number), "quota"));
                number += 1;
                at += below(rng, MOMENT);
                acts.push(create_quota(at, EDITED, &name(number), rng.below(5)));
            }
        }
    }
    // In the end there is room for all, so that it does not matter who came first.
    acts.push(edit(at.max(safety), number, ENOUGH));
}

/// An amount that a quota names.
fn amount(quota: &Value, place: &str) -> usize {
    text(quota, place).parse().unwrap_or(0)
}

/// The pods of a namespace that have not ended.
fn there<'a>(namespace: &str, observer: &'a Observer) -> Vec<&'a Value> {
    observer.all("pod").filter(|pod| text(pod, "/metadata/namespace") == namespace && !terminal(pod)).collect()
}

/// What must hold of quotas: for each, how many pods it does not count. Those were made while it was counted for the first time,
/// and are counted the next time; all that is made later is charged to it.
#[derive(Debug, Default)]
pub(super) struct Quotas(BTreeMap<String, usize>);

impl Quotas {
    /// A pod that is made finds room in each quota as somebody has made or edited it last, from that very write on.
    pub(super) fn changed(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        if !matches!(change.resource, "pod" | "quota") {
            return;
        }
        if change.resource == "quota" && change.after.is_none() {
            self.0.remove(&key_of(change.object()));
        }
        let namespace = text(change.object(), "/metadata/namespace");
        for quota in observer.all("quota").filter(|quota| text(quota, "/metadata/namespace") == namespace) {
            let there = there(namespace, observer);
            let behind = there.len().saturating_sub(amount(quota, "/status/used/pods"));
            let uncounted = self.0.entry(key_of(quota)).or_insert(behind);
            *uncounted = behind.min(*uncounted);
            let pods = there.iter().filter(|pod| !deleting(pod)).count();
            let most = amount(quota, "/spec/hard/pods");
            if change.resource == "pod" && change.before.is_none() && pods > most + *uncounted {
                let what = format!("{} is one of {pods} pods, of {most} at most", key_of(change.object()));
                breaches.push(Breach::new("quotas-hold", what));
            }
        }
    }
}

/// Why a quota is not as it should be: it does not say what is used, or not all is used that may be.
pub(super) fn lacks(quota: &Value, observer: &Observer) -> Option<String> {
    let namespace = text(quota, "/metadata/namespace");
    let there = there(namespace, observer).len();
    let used = text(quota, "/status/used/pods");
    if used != there.to_string() {
        return Some(format!("says that {used:?} pods are there, and there are {there}"));
    }
    let deployment = observer.get("deployment", &format!("{namespace}/{namespace}"))?;
    let asked = deployment.pointer("/spec/replicas").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())?;
    let most = amount(quota, "/spec/hard/pods");
    (there != asked.min(most)).then(|| format!("has {there} pods of {asked} asked for, and {most} may be"))
}

/// What stands in a quota's status of the limits after an edit, and what stood there before; none for what is no edit.
pub(crate) fn edited(change: &Change) -> Option<(String, String)> {
    let (old, new) = (change.before.as_ref()?, change.after.as_ref()?);
    let is_edit = change.resource == "quota" && text(old, "/spec/hard/pods") != text(new, "/spec/hard/pods");
    let said = |quota: &Value| format!("\"status\":{{\"hard\":{{\"pods\":\"{}\"}}", text(quota, "/status/hard/pods"));
    is_edit.then(|| (said(new), said(old)))
}

/// Whether a request has a quota counted anew.
pub(crate) fn is_count(request: &ApiRequest) -> bool {
    request.method == Method::Patch && request.path.contains("/resourcequotas/") && request.path.ends_with("/status")
}

/// A request that reads the quota, and has nothing counted.
pub(crate) fn uncounted(request: &ApiRequest) -> ApiRequest {
    ApiRequest::new(Method::Get, request.path.trim_end_matches("/status"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn quota(name: &str, most: usize, used: usize) -> Value {
        json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"hard": {"pods": most.to_string()}},
            "status": {"hard": {"pods": most.to_string()}, "used": {"pods": used.to_string()}}})
    }

    fn pods(count: usize) -> impl Iterator<Item = (&'static str, Value)> {
        (0..count).map(|n| ("pod", json!({"metadata": {"namespace": "ns", "name": format!("pod{n}")}})))
    }

    fn made(resource: &'static str, object: Value) -> Change {
        Change { resource, before: None, after: Some(object) }
    }

    /// Quotas of one name are made one after the other, each of which misses so many pods that are there by then. The last one is of
    /// so many pods and counts so many, and so many are there when one of them has just been made.
    fn check(missed: &[usize], most: usize, used: usize, count: usize, holds: bool) {
        let (mut quotas, mut breaches) = (Quotas::default(), Vec::new());
        let mut change = |change: &Change, observer: &Observer| quotas.changed(change, observer, &mut breaches);
        for (number, uncounted) in missed.iter().enumerate() {
            let fresh = quota("q", most, 0);
            if number > 0 {
                let gone = Change { resource: "quota", before: Some(fresh.clone()), after: None };
                change(&gone, &Observer::of(pods(count)));
            }
            let observer = Observer::of(pods(*uncounted).chain([("quota", fresh.clone())]));
            change(&made("quota", fresh), &observer);
        }
        let observer = Observer::of(pods(count).chain([("quota", quota("q", most, used))]));
        let last = json!({"metadata": {"namespace": "ns", "name": "pod0"}});
        change(&made("pod", last), &observer);
        assert_eq!(breaches.is_empty(), holds, "{missed:?}: {most} {used} {count}: {breaches:?}");
    }

    #[test]
    fn pods_that_find_no_room_are_found() {
        check(&[0], 2, 2, 2, true);
        check(&[0], 2, 2, 3, false);
        // It was lowered below what is there.
        check(&[0], 1, 3, 3, false);
        check(&[0], 0, 0, 1, false);
        // One was made while it was counted, and is not counted yet, or has been meanwhile.
        check(&[1], 2, 2, 3, true);
        check(&[1], 2, 2, 4, false);
        check(&[1], 2, 3, 3, false);
        // All that is made later is charged.
        check(&[1], 2, 1, 4, false);
        check(&[1, 0], 2, 2, 2, true);
        check(&[1, 0], 2, 2, 3, false);
        check(&[0, 1], 2, 2, 3, true);
    }

    #[test]
    fn in_the_end_one_quota_has_room_for_all() {
        for (seed, safety_s) in (0..40).zip([4, 12, 90, 120].into_iter().cycle()) {
            let (safety, mut acts) = (Duration::from_secs(safety_s), Vec::new());
            edits(&mut Rng::new(seed), safety, &mut acts);
            let mut quotas = BTreeSet::new();
            for act in &acts {
                match &act.what {
                    What::Create { object, .. } if object["kind"] == "ResourceQuota" => {
                        assert!(quotas.insert(text(object, "/metadata/name").to_owned()), "seed {seed}");
                    }
                    What::Delete { name, .. } => assert!(quotas.remove(name), "seed {seed}"),
                    What::Patch { name, kind: "quota", .. } => assert!(quotas.contains(name), "seed {seed}"),
                    _ => {}
                }
            }
            assert!(acts.is_sorted_by_key(|act| act.at) && quotas.len() == 1, "seed {seed}: {quotas:?}");
            let last = acts.last().expect("an act");
            assert!(last.at >= safety, "seed {seed}");
            let What::Patch { patch, .. } = &last.what else { panic!("seed {seed}: {last:?}") };
            assert_eq!(patch["spec"]["hard"]["pods"], ENOUGH.to_string(), "seed {seed}");
        }
    }

    #[test]
    fn edits_and_counts_are_told_from_other_writes() {
        let change = |before: usize, after: usize, used: usize| {
            let (before, after) = (quota("q", before, 0), quota("q", after, used));
            edited(&Change { resource: "quota", before: Some(before), after: Some(after) })
        };
        let said = |pods: &str| format!(r#""status":{{"hard":{{"pods":"{pods}"}}"#);
        assert_eq!(change(3, 1, 0), Some((said("1"), said("3"))));
        assert!(quota("q", 1, 0).to_string().contains(&said("1")), "it is found in what is stored");
        assert_eq!(change(3, 3, 2), None);
        let request = |path: &str| ApiRequest::new(Method::Patch, format!("/api/v1/namespaces/ns/{path}"));
        assert!(is_count(&request("resourcequotas/q/status")));
        assert!(!is_count(&request("resourcequotas/q")) && !is_count(&request("pods/p/status")));
        let read = uncounted(&request("resourcequotas/q/status"));
        assert_eq!((read.method, &*read.path), (Method::Get, "/api/v1/namespaces/ns/resourcequotas/q"));
    }
}
