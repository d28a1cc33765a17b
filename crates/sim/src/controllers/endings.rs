//! Owners that go after their dependents, owners that leave them behind, and namespaces that go with what is in them.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::{DeleteOptions, Rng};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, deleting, key_of, text, uid};
use crate::workload::{Act, What, delete};

/// Kinds of which dependents are looked at, and of which a namespace may hold something.
const KINDS: [&str; 9] =
    ["pod", "replicaset", "deployment", "configmap", "secret", "claim", "quota", "slice", "statefulset"];

/// Deployments that go soon after they came, or later.
pub(super) fn owners(rng: &mut Rng, safety: Duration, count: u64, acts: &mut Vec<Act>) {
    for n in 0..count {
        let orphans = n % 2 == 0;
        let name = format!("{}{n}", if orphans { "leaves" } else { "waits" });
        let mut at = start(rng, safety);
        let work = Work { resource: Deployment::resource(), kind: "deployment", name: &name, at, safety };
        let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template(&name, 1)});
        work.create(spec, acts);
        let most = if rng.one_in(3) { safety / 4 } else { Duration::from_secs(2) };
        at += between(rng, Duration::from_millis(100), most);
        let options = DeleteOptions {
            propagation: Some(if orphans { "Orphan" } else { "Foreground" }),
            ..DeleteOptions::default()
        };
        let what = What::Delete {
            resource: Deployment::resource(),
            namespace: "default".into(),
            name,
            options,
            kind: "deployment",
        };
        acts.push(Act { at, what });
    }
}

/// Namespaces that go soon after they were filled.
pub(super) fn namespaces(rng: &mut Rng, safety: Duration, count: u64, acts: &mut Vec<Act>) {
    for n in 0..count {
        let name = format!("short{n}");
        let mut at = start(rng, safety);
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        acts.push(Act { at, what: What::Create { resource: Namespace::resource(), object, want: None } });
        for map in 0..2 {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": name, "name": format!("map{map}")}});
            acts.push(Act { at, what: What::Create { resource: ConfigMap::resource(), object, want: None } });
        }
        let meter = crate::meters::resource();
        let object = json!({"apiVersion": meter.api_version(), "kind": meter.kind,
            "metadata": {"namespace": name, "name": "meter"}});
        acts.push(Act { at, what: What::Create { resource: meter, object, want: None } });
        let most = Duration::from_secs(if rng.one_in(2) { 1 } else { 10 });
        at += between(rng, Duration::from_millis(1), most);
        acts.push(delete(at, Namespace::resource(), "", &name, "namespace"));
    }
}

/// What must hold of all this.
#[derive(Default)]
pub(super) struct Endings {
    /// UIDs of sets that their owner leaves behind.
    left: BTreeSet<String>,
}

fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str)
}

/// How an object names another one as its owner.
fn reference<'a>(object: &'a Value, owner: &str) -> Option<&'a Value> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().find(|reference| reference["uid"] == owner)
}

impl Endings {
    pub(super) fn changed(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let (object, name) = (change.object(), key_of(change.object()));
        let dependents = || {
            let all = KINDS.into_iter().flat_map(|kind| observer.all(kind));
            all.filter_map(|o| Some((key_of(o), reference(o, uid(object))?)))
        };
        if let ("deployment" | "replicaset" | "job", Some(before), None) =
            (change.resource, &change.before, &change.after)
        {
            let mut breach = |invariant, what: String| breaches.push(Breach::new(invariant, what));
            if finalizers(before).any(|f| f == "foregroundDeletion") {
                for (dependent, _) in dependents().filter(|(_, r)| r["blockOwnerDeletion"] == true) {
                    breach("owners-go-after-dependents", format!("{name} is gone, and {dependent} is there"));
                }
            }
            if finalizers(before).any(|f| f == "orphan") {
                for (dependent, _) in dependents() {
                    breach("orphans-stay", format!("{name} is gone, and {dependent} still is its own"));
                }
            }
        }
        let goes = |o: &Option<Value>| o.as_ref().is_none_or(deleting);
        match change.resource {
            "deployment"
                if !goes(&change.before) && goes(&change.after) && finalizers(object).any(|f| f == "orphan") =>
            {
                let sets = observer.all("replicaset").filter(|set| reference(set, uid(object)).is_some());
                self.left.extend(sets.map(|set| uid(set).to_owned()));
            }
            "replicaset" if !goes(&change.before) && goes(&change.after) && self.left.contains(uid(object)) => {
                let what = format!("{name} is to go, and its owner left it behind");
                breaches.push(Breach::new("orphans-stay", what));
            }
            "namespace" if change.after.is_none() => {
                let all = KINDS.into_iter().flat_map(|kind| observer.all(kind).map(move |o| (kind, o)));
                for (kind, left) in all.filter(|(_, o)| text(o, "/metadata/namespace") == name) {
                    let what = format!("{name} is gone, and the {kind} {} is there", key_of(left));
                    breaches.push(Breach::new("namespaces-go-empty", what));
                }
            }
            _ => {}
        }
    }
}
