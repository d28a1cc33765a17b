//! Kinds that go with their definition, while config maps belong to their objects: whoever reads a kind no more may not have heard
//! yet that its last objects are gone, and nobody tells it afterwards.
//!
//! ```text
//!   definition ─▶ objects, each with a config map ─▶ the definition goes, and its objects with it ─▶ the config maps go
//! ```
//!
//! Whoever collects garbage and starts after that knows nothing of the kind, and leaves the config maps alone. So this is there
//! where nobody dies.

use std::time::Duration;

use carrack_engine::{ApiRequest, Rng};
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::chance::between;
use crate::observer::{Change, Observer, deleting, key_of, label, text, uid};
use crate::workload::{Act, What, delete};

/// The group of these kinds.
const GROUP: &str = "sim.example.com";
const API_VERSION: &str = "sim.example.com/v1";
/// What the observer calls their objects.
const OBJECT: &str = "box";
/// The label of an object that has the name of its kind.
const KIND: &str = "kind";

/// So many kinds, with two objects each.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, count: u64, acts: &mut Vec<Act>) {
    for n in 0..count {
        one(&mut rng.fork(&format!("{n}")), safety, n, acts);
    }
}

fn one(rng: &mut Rng, safety: Duration, n: u64, acts: &mut Vec<Act>) {
    let definitions = Resource {
        group: "apiextensions.k8s.io".into(),
        version: "v1".into(),
        plural: "customresourcedefinitions".into(),
        kind: "CustomResourceDefinition".into(),
        namespaced: false,
    };
    let (plural, kind) = (format!("boxes{n}"), format!("Box{n}"));
    let boxes = Resource {
        group: GROUP.into(),
        version: "v1".into(),
        plural: plural.clone().into(),
        kind: kind.clone().into(),
        namespaced: true,
    };
    let create = |at, resource, object| Act { at, what: What::Create { resource, object, want: None } };
    let name = format!("{plural}.{GROUP}");
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name}, "spec": {"group": GROUP, "scope": "Namespaced",
            "names": {"plural": plural, "singular": format!("box{n}"), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    let mut at = between(rng, Duration::from_secs(1), safety / 4);
    acts.push(create(at, definitions.clone(), definition));
    for object in 0..2 {
        at += between(rng, Duration::from_secs(1), Duration::from_secs(2));
        let object = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"namespace": "default",
            "name": format!("box{n}-{object}"), "labels": {KIND: kind}}});
        acts.push(create(at, boxes.clone(), object));
    }
    // Until everybody has heard of them.
    at += between(rng, Duration::from_secs(8), Duration::from_secs(15));
    acts.push(delete(at, definitions, "", &name, "definition"));
}

/// What is to be made for objects that have just come: each has a config map.
pub(crate) fn belongings(changes: &[Change]) -> Vec<ApiRequest> {
    let comes = |change: &&Change| change.resource == OBJECT && change.before.is_none();
    let owners = changes.iter().filter(comes).filter_map(|change| change.after.as_ref());
    let belonging = |owner: &Value| {
        let name = text(owner, "/metadata/name");
        let reference =
            json!({"apiVersion": API_VERSION, "kind": label(owner, "labels", KIND), "name": name, "uid": uid(owner)});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default",
            "name": format!("of-{name}"), "ownerReferences": [reference]}});
        ApiRequest::create_value(&ConfigMap::resource(), "default", &map)
    };
    owners.map(belonging).collect()
}

/// A config map whose owner is gone with its kind.
pub(crate) fn left(observer: &Observer) -> Option<String> {
    let is_left = |map: &&Value| {
        let owner = text(&map["metadata"]["ownerReferences"][0], "/uid");
        let is_ours = map["metadata"]["ownerReferences"][0]["apiVersion"] == API_VERSION;
        is_ours && !deleting(map) && !observer.all(OBJECT).any(|object| uid(object) == owner)
    };
    let map = observer.all("configmap").find(is_left)?;
    Some(format!("configmap {} has outlived its owner, and that one's kind", key_of(map)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map_goes_with_its_owner() {
        let object =
            json!({"metadata": {"namespace": "default", "name": "box0-0", "uid": "x", "labels": {KIND: "Box0"}}});
        let change = Change { resource: OBJECT, before: None, after: Some(object.clone()) };
        let made = belongings(&[change]);
        assert_eq!(made.len(), 1);
        let map: Value = serde_json::from_slice(&made[0].body).expect("JSON");
        assert_eq!(map["metadata"]["ownerReferences"][0]["kind"], "Box0");
        let both = Observer::of([(OBJECT, object), ("configmap", map.clone())]);
        assert_eq!(left(&both), None);
        assert!(left(&Observer::of([("configmap", map)])).is_some());
    }
}
