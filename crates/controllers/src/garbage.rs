//! Deletes objects whose owners are gone, and carries out the two kinds of deletion that wait:
//! `Foreground` (dependents first) and `Orphan` (dependents are let go).
//!
//! It reads the metadata of every kind. That an owner is not in a cache proves nothing, since caches
//! of different kinds lag apart; so before a dependent is deleted its owner's absence is confirmed by
//! a live read, and the deletion carries the dependent's UID and resourceVersion. An owner of a kind
//! that is not read is unknown, and nothing follows from it. Behaviour follows
//! kube-controller-manager's garbage collector (pkg/controller/garbagecollector).

use std::sync::Arc;

use carrack_engine::{Controller, DeleteOptions, Key, Plan, Setup, Source, Time, View};
use carrack_types::resource::{Object as _, PartialObject, Resource};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::custom::CustomKinds;

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// The garbage collector. Its keys name a resource and an object: namespace, and
/// `group/plural/name`.
pub struct GarbageCollector {
    builtin: Vec<Resource>,
    custom: CustomKinds,
}

enum Owner {
    /// It is there, and stays.
    Solid,
    /// It is there, and waits for its dependents to go first.
    Waiting,
    /// It is not in the cache of its kind.
    Missing(Resource, Key),
    /// Its kind is not read, or not listed yet.
    Unknown,
}

fn key_of(resource: &Resource, object: &PartialObject) -> Key {
    Key::new(object.namespace(), format!("{}/{}/{}", resource.group, resource.plural, object.name()))
}

fn source_of_key(view: &View<'_>, key: &Key) -> Option<(Source, String)> {
    let mut parts = key.name.splitn(3, '/');
    let (group, plural, name) = (parts.next()?, parts.next()?, parts.next()?);
    let source =
        view.sources().find(|s| s.metadata_only && s.resource.group == group && s.resource.plural == plural)?;
    Some((source.clone(), name.to_owned()))
}

/// Everything that names this UID as an owner.
fn dependents<'a>(
    view: &'a View<'a>,
    uid: &'a str,
) -> impl Iterator<Item = (&'a Resource, &'a Arc<PartialObject>)> + 'a {
    view.sources()
        .filter(|s| s.metadata_only)
        .filter_map(|s| Some((&s.resource, view.cache_of::<PartialObject>(s)?)))
        .flat_map(move |(resource, cache)| cache.by_owner(uid).map(move |o| (resource, o)))
}

fn owner_refs(object: &PartialObject) -> &[OwnerReference] {
    object.metadata.owner_references.as_deref().unwrap_or_default()
}

impl GarbageCollector {
    /// A collector over these resources and, as they come and go, those of custom resource definitions.
    #[must_use]
    pub fn new(builtin: Vec<Resource>) -> Self {
        Self { builtin, custom: CustomKinds::default() }
    }

    fn watch(setup: &mut Setup<'_>, resource: &Resource) {
        let r = resource.clone();
        setup.watch_source::<PartialObject>(Source::metadata(resource.clone()), move |object, view| {
            let mut keys = vec![key_of(&r, object)];
            // Dependents look again when their owner goes; owners, when a dependent goes.
            keys.extend(dependents(view, object.uid()).map(|(resource, o)| key_of(resource, o)));
            for owner in owner_refs(object) {
                if let Some((resource, namespace)) = owner_place(view, owner, object) {
                    let name = format!("{}/{}/{}", resource.group, resource.plural, owner.name);
                    keys.push(Key::new(namespace, name));
                }
            }
            keys
        });
    }

    fn classify(view: &View<'_>, object: &PartialObject, owner: &OwnerReference) -> Owner {
        let Some((resource, namespace)) = owner_place(view, owner, object) else { return Owner::Unknown };
        let source = Source::metadata(resource.clone());
        if !view.synced(&source) {
            return Owner::Unknown;
        }
        let key = Key::new(namespace, owner.name.clone());
        match view.cache_of::<PartialObject>(&source).and_then(|c| c.get_key(&key)) {
            Some(found) if found.uid() == owner.uid => {
                if found.is_deleting() && found.has_finalizer(FOREGROUND) {
                    Owner::Waiting
                } else {
                    Owner::Solid
                }
            }
            _ => Owner::Missing(resource, key),
        }
    }

    /// An object that is being deleted and waits for its dependents.
    fn finish_deletion(view: &View<'_>, resource: &Resource, object: &PartialObject) -> Plan {
        let mut plan = Plan::none();
        if object.has_finalizer(ORPHAN) {
            for (r, dependent) in dependents(view, object.uid()) {
                let left: Vec<_> = owner_refs(dependent).iter().filter(|o| o.uid != object.uid()).collect();
                plan = plan.patch_resource(r, dependent.as_ref(), "", json!({"metadata": {"ownerReferences": left}}));
            }
            if plan.is_none() {
                return remove_finalizer(resource, object, ORPHAN);
            }
        } else if object.has_finalizer(FOREGROUND) {
            let mut blocked = false;
            for (r, dependent) in dependents(view, object.uid()) {
                let blocks =
                    owner_refs(dependent).iter().any(|o| o.uid == object.uid() && o.block_owner_deletion == Some(true));
                blocked |= blocks;
                // One with another owner only lets go of this one; its own reconcile sees to that.
                let sole = owner_refs(dependent).iter().all(|o| o.uid == object.uid());
                if sole && !dependent.is_deleting() {
                    plan = plan.delete_with(
                        r,
                        dependent.as_ref(),
                        DeleteOptions {
                            resource_version: dependent.metadata.resource_version.clone(),
                            propagation: Some("Foreground"),
                            ..DeleteOptions::default()
                        },
                    );
                }
            }
            if !blocked && plan.is_none() {
                return remove_finalizer(resource, object, FOREGROUND);
            }
        }
        plan
    }
}

/// Resource and namespace in which an owner must be looked for: its kind in any version, in the
/// dependent's own namespace when the kind is namespaced.
fn owner_place(view: &View<'_>, owner: &OwnerReference, object: &PartialObject) -> Option<(Resource, String)> {
    let group = owner.api_version.rsplit_once('/').map_or("", |(g, _)| g);
    let source =
        view.sources().find(|s| s.metadata_only && s.resource.group == group && s.resource.kind == owner.kind)?;
    let namespace = if source.resource.namespaced { object.namespace() } else { "" };
    Some((source.resource.clone(), namespace.to_owned()))
}

fn remove_finalizer(resource: &Resource, object: &PartialObject, finalizer: &str) -> Plan {
    let left: Vec<_> = object.metadata.finalizers.iter().flatten().filter(|f| *f != finalizer).collect();
    Plan::none().patch_resource(resource, object, "", json!({"metadata": {"finalizers": left}}))
}

impl Controller for GarbageCollector {
    fn name(&self) -> &'static str {
        "generic-garbage-collector"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        for resource in &self.builtin {
            Self::watch(setup, resource);
        }
        setup.read::<CustomResourceDefinition>();
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.custom.refresh(view, setup, Self::watch);
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some((source, name)) = source_of_key(view, key) else { return Plan::none() };
        let Some(object) = view.cache_of::<PartialObject>(&source).and_then(|c| c.get(&key.namespace, &name)) else {
            return Plan::none();
        };
        let resource = &source.resource;
        if object.is_deleting() {
            return Self::finish_deletion(view, resource, object);
        }
        let refs = owner_refs(object);
        if refs.is_empty() {
            return Plan::none();
        }
        let owners: Vec<_> = refs.iter().map(|o| (o, Self::classify(view, object, o))).collect();
        if owners.iter().any(|(_, o)| matches!(o, Owner::Unknown)) {
            return Plan::none();
        }
        let mut plan = Plan::none();
        for (reference, owner) in &owners {
            if let Owner::Missing(resource, key) = owner {
                plan = plan.confirm_absent(resource, key.clone(), reference.uid.clone());
            }
        }
        let solid: Vec<_> = owners.iter().filter(|(_, o)| matches!(o, Owner::Solid)).map(|(r, _)| *r).collect();
        if solid.len() == owners.len() {
            return Plan::none();
        }
        if !solid.is_empty() {
            return plan.patch_resource(resource, object.as_ref(), "", json!({"metadata": {"ownerReferences": solid}}));
        }
        let waiting = owners.iter().any(|(_, o)| matches!(o, Owner::Waiting));
        let propagation = if object.has_finalizer(ORPHAN) {
            "Orphan"
        } else if object.has_finalizer(FOREGROUND) || (waiting && dependents(view, object.uid()).next().is_some()) {
            "Foreground"
        } else {
            "Background"
        };
        plan.delete_with(
            resource,
            object.as_ref(),
            DeleteOptions {
                resource_version: object.metadata.resource_version.clone(),
                propagation: Some(propagation),
                ..DeleteOptions::default()
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Absent, Write};
    use carrack_types::resource::Kind as _;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::Value;

    use super::*;

    fn object(meta: Value) -> PartialObject {
        serde_json::from_value(json!({ "metadata": meta })).expect("metadata")
    }

    fn owner(name: &str, uid: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid, "blockOwnerDeletion": true})
    }

    /// What is planned for pod `ns/p`, with these replica sets beside it, in short words.
    fn plan(pod: Value, sets: Vec<Value>, others: Vec<Value>) -> Vec<String> {
        let meta = |extra: Value| {
            let mut m = json!({"namespace": "ns", "resourceVersion": "7"});
            for (k, v) in extra.as_object().expect("a map") {
                m[k] = v.clone();
            }
            object(m)
        };
        let mut pods = vec![meta(pod)];
        pods[0].metadata.name = Some("p".into());
        pods.extend(others.into_iter().map(&meta));
        let caches = Caches::new()
            .with_metadata(Pod::resource(), pods)
            .with_metadata(ReplicaSet::resource(), sets.into_iter().map(&meta))
            .with::<CustomResourceDefinition>([]);
        let mut gc = GarbageCollector::new(vec![Pod::resource(), ReplicaSet::resource()]);
        let plan = gc.reconcile(&Key::new("ns", "/pods/p"), &caches.view(), Time::default());
        assert_eq!(plan.error, None);
        plan.writes.iter().map(word).collect()
    }

    fn word(write: &Write) -> String {
        match write {
            Write::Confirm { absent: Absent::Object { key, uid }, .. } => format!("confirm {} {uid}", key.name),
            Write::Delete { key, options, .. } => {
                assert!(
                    options.uid.is_some() && options.resource_version.is_some(),
                    "a deletion rests on what was read"
                );
                format!("delete {} {}", key.name, options.propagation.unwrap_or_default())
            }
            Write::Patch { key, patch, .. } => {
                assert!(patch["metadata"]["resourceVersion"].is_string(), "a patch rests on what was read");
                let m = &patch["metadata"];
                let refs =
                    m["ownerReferences"].as_array().map(|a| a.iter().map(|o| o["uid"].clone()).collect::<Vec<_>>());
                format!("patch {} owners={} finalizers={}", key.name, json!(refs), m["finalizers"])
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn dependents_follow_their_owners() {
        let owned = |refs: Vec<Value>| json!({"uid": "p1", "ownerReferences": refs});
        let set = |name: &str, uid: &str| json!({"name": name, "uid": uid});
        let none: [&str; 0] = [];
        // No owner, a living owner: nothing.
        assert_eq!(plan(json!({"uid": "p1"}), vec![], vec![]), none);
        assert_eq!(plan(owned(vec![owner("rs", "1")]), vec![set("rs", "1")], vec![]), none);
        // The owner is missing: confirmed live, then deleted.
        assert_eq!(plan(owned(vec![owner("rs", "1")]), vec![], vec![]), ["confirm rs 1", "delete p Background"]);
        // Its name was taken by another: the same.
        assert_eq!(
            plan(owned(vec![owner("rs", "1")]), vec![set("rs", "2")], vec![]),
            ["confirm rs 1", "delete p Background"]
        );
        // One of two owners is missing: only the reference goes.
        assert_eq!(
            plan(owned(vec![owner("rs", "1"), owner("gone", "2")]), vec![set("rs", "1")], vec![]),
            ["confirm gone 2", "patch p owners=[\"1\"] finalizers=null"]
        );
        // An owner of a kind that nobody reads is unknown: nothing follows.
        let unknown = json!({"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "9"});
        assert_eq!(plan(owned(vec![unknown, owner("gone", "2")]), vec![], vec![]), none);
        // An owner that waits for its dependents takes them along.
        let waiting = json!({"name": "rs", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [FOREGROUND]});
        assert_eq!(plan(owned(vec![owner("rs", "1")]), vec![waiting], vec![]), ["delete p Background"]);
    }

    #[test]
    fn deletions_that_wait() {
        let deleting = |finalizer: &str| json!({"uid": "p1", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer, "other"]});
        let child = |name: &str, more: Vec<Value>| {
            let mut refs =
                vec![json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p1", "blockOwnerDeletion": true})];
            refs.extend(more);
            json!({"name": name, "uid": name, "ownerReferences": refs})
        };
        assert_eq!(plan(deleting(FOREGROUND), vec![], vec![]), ["patch p owners=null finalizers=[\"other\"]"]);
        assert_eq!(plan(deleting(FOREGROUND), vec![child("c", vec![])], vec![]), ["delete c Foreground"]);
        // A dependent with another owner is not deleted, but it must let go first.
        assert_eq!(plan(deleting(FOREGROUND), vec![child("c", vec![owner("x", "x")])], vec![]), Vec::<String>::new());
        assert_eq!(
            plan(deleting(ORPHAN), vec![child("c", vec![owner("x", "x")])], vec![]),
            ["patch c owners=[\"x\"] finalizers=null"]
        );
        assert_eq!(plan(deleting(ORPHAN), vec![], vec![]), ["patch p owners=null finalizers=[\"other\"]"]);
    }
}
