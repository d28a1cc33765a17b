//! Deletes objects whose owners are gone, and carries out the two kinds of deletion that wait:
//! `Foreground` (dependents first) and `Orphan` (dependents are let go).
//!
//! It reads the metadata of every kind. That an owner is not in a cache proves nothing, since caches
//! of different kinds lag apart; so before a dependent is deleted its owner's absence is confirmed by
//! a live read, and the deletion carries the dependent's UID and resourceVersion. And that no dependent is in a cache proves
//! nothing either: an owner that waits for its dependents waits until all caches are as new as itself. An owner of a kind
//! that is not read is unknown, and nothing follows from it; one of a kind whose definition went is
//! looked for live. Kinds that other servers serve are read as far as discovery tells of them. An owner in another namespace
//! counts as missing, and of a namespaced kind for a cluster-scoped object as unresolvable; an event tells of both. Behaviour follows
//! kube-controller-manager's garbage collector (pkg/controller/garbagecollector).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Cache, Controller, DeleteOptions, EventRecord, EventType, Key, Plan, Setup, Source, Time, View};
use carrack_types::resource::{Object as _, PartialObject, Resource};
use carrack_types::well_known::finalizer::{FOREGROUND, ORPHAN};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;

use crate::Planted;
use crate::custom::CustomKinds;

/// How soon to look again whether caches are as new as what is decided on them.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How soon to look again at an object with an owner of whose kind nothing is known yet: nothing else may ever tell of it.
const UNKNOWN_AGAIN: Duration = Duration::from_secs(60);

/// The garbage collector. Its keys name a resource and an object: namespace, and
/// `group/plural/name`.
pub struct GarbageCollector {
    builtin: Vec<Resource>,
    custom: CustomKinds,
    /// A planted bug.
    planted: Option<Planted>,
}

enum Owner {
    /// It is there, and stays.
    Solid,
    /// It is there, and waits for its dependents to go first.
    Waiting,
    /// It is not in the cache of its kind.
    Missing(Resource, Key),
    /// It is where this object cannot have an owner: in another namespace, which counts as missing.
    Elsewhere(Resource, Key),
    /// Its kind is not read, or not listed yet.
    Unknown,
    /// Its kind lives in namespaces, and the object does not: nothing of that kind can be its owner.
    Unresolvable,
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
    view.caches::<PartialObject>()
        .flat_map(move |(source, cache)| cache.by_owner(uid).map(move |o| (&source.resource, o)))
}

fn owner_refs(object: &PartialObject) -> &[OwnerReference] {
    object.metadata.owner_references.as_deref().unwrap_or_default()
}

impl GarbageCollector {
    /// A collector over these resources and, as they come and go, those of custom resource definitions.
    #[must_use]
    pub fn new(builtin: Vec<Resource>) -> Self {
        Self { custom: CustomKinds::beside(&builtin), builtin, planted: None }
    }

    /// Does not look for these among what discovery and definitions tell of.
    #[must_use]
    pub fn ignoring(mut self, resources: &[Resource]) -> Self {
        self.custom.ignore(resources);
        self
    }

    pub(crate) fn with_planted(mut self, bug: Option<Planted>) -> Self {
        self.planted = bug;
        self
    }
    fn watch(setup: &mut Setup<'_>, source: &Source) {
        let r = source.resource.clone();
        let keys = move |object: &PartialObject, view: &View<'_>| {
            let mut keys = vec![key_of(&r, object)];
            // Dependents look again when their owner goes; owners, when a dependent goes.
            keys.extend(dependents(view, object.uid()).map(|(resource, o)| key_of(resource, o)));
            for owner in owner_refs(object) {
                if let Some((source, namespace)) = owner_place(view, owner, object)
                    && !is_held(view, &source, &namespace, owner)
                {
                    let name = format!("{}/{}/{}", source.resource.group, source.resource.plural, owner.name);
                    keys.push(Key::new(namespace, name));
                }
            }
            keys
        };
        // Most changes are heartbeats and statuses.
        let matters = |old: &PartialObject, new: &PartialObject| ties(old) != ties(new);
        setup.watch_changes::<PartialObject>(source.clone(), matters, keys);
    }

    fn classify(&self, view: &View<'_>, object: &PartialObject, owner: &OwnerReference) -> Owner {
        let Some((source, namespace)) = owner_place(view, owner, object) else {
            // A kind that went with its definition took its objects along; a live read confirms it.
            let group = owner.api_version.rsplit_once('/').map_or("", |(g, _)| g);
            return match self.custom.former(group, &owner.kind) {
                Some(former) if former.namespaced && object.namespace().is_empty() => Owner::Unresolvable,
                Some(former) => {
                    let namespace = if former.namespaced { object.namespace() } else { "" };
                    Owner::Missing(former.clone(), Key::new(namespace, owner.name.clone()))
                }
                None => Owner::Unknown,
            };
        };
        let resource = source.resource.clone();
        if resource.namespaced && namespace.is_empty() {
            return Owner::Unresolvable;
        }
        if !view.synced(&source) {
            return Owner::Unknown;
        }
        let key = Key::new(namespace, owner.name.clone());
        let Some(cache) = view.cache_of::<PartialObject>(&source) else { return Owner::Unknown };
        match cache.get_key(&key) {
            Some(found) if found.uid() == owner.uid => {
                if is_waiting(found) {
                    Owner::Waiting
                } else {
                    Owner::Solid
                }
            }
            _ if resource.namespaced && is_elsewhere(cache, owner) => Owner::Elsewhere(resource, key),
            _ => Owner::Missing(resource, key),
        }
    }

    /// Whether all dependents are known: those that an object had when its deletion was asked for, since no controller gives
    /// one to an owner that is to go. Of kinds that other servers keep, revisions say nothing; a custom kind that cannot be read at
    /// present (its conversion webhook is gone, say) holds nobody up.
    fn knows_dependents(&self, view: &View<'_>, object: &PartialObject) -> bool {
        let known = |resource: &Resource| view.revision_of(&Source::metadata(resource.clone())) >= object.revision();
        let is_read = |resource: &&Resource| view.steady_since(&Source::metadata((*resource).clone())).is_some();
        let must = self.builtin.iter().chain(self.custom.defined().filter(is_read));
        self.planted == Some(Planted::StaleDependents) || must.into_iter().all(known)
    }

    /// How a dependent goes whose owners are gone, or wait for it: with its own dependents before it, where an owner waits, since
    /// that waits for all of them.
    fn propagation(&self, view: &View<'_>, object: &PartialObject, waiting: bool) -> &'static str {
        let has_dependents = || dependents(view, object.uid()).next().is_some() || !self.knows_dependents(view, object);
        if object.has_finalizer(ORPHAN) {
            "Orphan"
        } else if object.has_finalizer(FOREGROUND) || (waiting && has_dependents()) {
            "Foreground"
        } else {
            "Background"
        }
    }

    /// An object that is being deleted and waits for its dependents.
    fn finish_deletion(&self, view: &View<'_>, resource: &Resource, object: &PartialObject) -> Plan {
        let mut plan = Plan::none();
        if object.has_finalizer(ORPHAN) {
            for (r, dependent) in dependents(view, object.uid()) {
                let left: Vec<_> = owner_refs(dependent).iter().filter(|o| o.uid != object.uid()).collect();
                plan = plan.patch_resource(r, dependent.as_ref(), "", json!({"metadata": {"ownerReferences": left}}));
            }
            // One that is not seen yet would go with its owner.
            if plan.is_none() && !self.knows_dependents(view, object) {
                return Plan::none().requeue_after(LOOK_AGAIN);
            }
            if plan.is_none() {
                return Plan::none().without_finalizer_of(resource, object, ORPHAN);
            }
        } else if object.has_finalizer(FOREGROUND) {
            let mut blocked = false;
            for (r, dependent) in dependents(view, object.uid()) {
                let blocks = owner_refs(dependent)
                    .iter()
                    .any(|o| o.uid == object.uid() && o.block_owner_deletion == Some(true))
                    // In a circle, each waits for the next: then nobody does.
                    && !(is_waiting(dependent) && reaches(view, dependent.uid(), object.uid()));
                blocked |= blocks;
                // One with another owner only lets go of this one; its own reconcile sees to that.
                let sole = owner_refs(dependent).iter().all(|o| o.uid == object.uid());
                if sole && !dependent.is_deleting() {
                    plan = plan.delete_with(
                        r,
                        dependent.as_ref(),
                        DeleteOptions {
                            propagation: Some(self.propagation(view, dependent, true)),
                            ..DeleteOptions::unchanged(dependent.as_ref())
                        },
                    );
                }
            }
            if self.planted == Some(Planted::HastyOwners) {
                return plan.then(Plan::none().without_finalizer_of(resource, object, FOREGROUND));
            }
            if !blocked && plan.is_none() && !self.knows_dependents(view, object) {
                return Plan::none().requeue_after(LOOK_AGAIN);
            }
            if !blocked && plan.is_none() {
                return Plan::none().without_finalizer_of(resource, object, FOREGROUND);
            }
        }
        plan
    }
}

/// Whether an owner that is not where it should be is in another namespace. Only what is told to people depends on it. It has
/// the name that the reference gives it: an index by UID of everything that there is would be for this question alone.
fn is_elsewhere(cache: &Cache<PartialObject>, owner: &OwnerReference) -> bool {
    cache.named(&owner.name).any(|o| o.uid() == owner.uid)
}

/// What of an object is of concern here: who it is, who owns it, and whether and how it goes.
fn ties(object: &PartialObject) -> (&str, &[OwnerReference], Option<&[String]>, bool) {
    (object.uid(), owner_refs(object), object.metadata.finalizers.as_deref(), object.is_deleting())
}

/// Whether it is being deleted and waits for its dependents to go first.
fn is_waiting(object: &PartialObject) -> bool {
    object.is_deleting() && object.has_finalizer(FOREGROUND)
}

/// Whether an owner that waits for its dependents has nothing to look for: the first of them holds it, and is on its way. When that
/// one goes it is asked again; else an owner of thousands would go through all that are left each time that one goes.
fn is_held(view: &View<'_>, source: &Source, namespace: &str, owner: &OwnerReference) -> bool {
    let there = view.cache_of::<PartialObject>(source).and_then(|kind| kind.get(namespace, &owner.name));
    let holds = |o: &OwnerReference| o.uid == owner.uid && o.block_owner_deletion == Some(true);
    there.is_some_and(|o| o.uid() == owner.uid && is_waiting(o) && !o.has_finalizer(ORPHAN))
        && dependents(view, &owner.uid)
            .next()
            .is_some_and(|(_, first)| first.is_deleting() && !is_waiting(first) && owner_refs(first).iter().any(holds))
}

/// Whether an object is among the dependents of another, or of those that wait among them, and so on.
fn reaches(view: &View<'_>, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut next = vec![from.to_owned()];
    while let Some(uid) = next.pop() {
        for (_, dependent) in dependents(view, &uid) {
            if dependent.uid() == to {
                return true;
            }
            if is_waiting(dependent) && seen.insert(dependent.uid().to_owned()) {
                next.push(dependent.uid().to_owned());
            }
        }
    }
    false
}

/// That an owner reference cannot be.
fn invalid_namespace(resource: &Resource, object: &PartialObject, owner: &OwnerReference) -> EventRecord {
    let message = format!(
        "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
        owner.api_version,
        owner.kind,
        object.namespace(),
        owner.name,
        owner.uid,
        object.namespace()
    );
    EventRecord {
        regarding: ObjectReference {
            api_version: Some(resource.api_version()),
            kind: Some(resource.kind.to_string()),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        event_type: EventType::Warning,
        reason: "OwnerRefInvalidNamespace".into(),
        message,
        component: None,
        annotations: BTreeMap::new(),
    }
}

/// Where and in which namespace an owner must be looked for: its kind in any version, in the
/// dependent's own namespace when the kind is namespaced.
fn owner_place(view: &View<'_>, owner: &OwnerReference, object: &PartialObject) -> Option<(Source, String)> {
    let group = owner.api_version.rsplit_once('/').map_or("", |(g, _)| g);
    let source =
        view.sources().find(|s| s.metadata_only && s.resource.group == group && s.resource.kind == owner.kind)?;
    let namespace = if source.resource.namespaced { object.namespace() } else { "" };
    Some((source.clone(), namespace.to_owned()))
}

impl Controller for GarbageCollector {
    fn name(&self) -> &'static str {
        "generic-garbage-collector"
    }
    fn event_source(&self) -> &'static str {
        "garbage-collector-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        for resource in &self.builtin {
            Self::watch(setup, &Source::metadata(resource.clone()));
        }
        CustomKinds::setup(setup);
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
            return self.finish_deletion(view, resource, object);
        }
        let refs = owner_refs(object);
        if refs.is_empty() {
            return Plan::none();
        }
        let owners: Vec<_> = refs.iter().map(|o| (o, self.classify(view, object, o))).collect();
        let mut plan = Plan::none();
        for (reference, _) in owners.iter().filter(|(_, o)| matches!(o, Owner::Elsewhere(..) | Owner::Unresolvable)) {
            plan = plan.event(invalid_namespace(resource, object, reference));
        }
        if owners.iter().any(|(_, o)| matches!(o, Owner::Unknown)) {
            return plan.requeue_after(UNKNOWN_AGAIN);
        }
        if owners.iter().any(|(_, o)| matches!(o, Owner::Unresolvable)) {
            return plan;
        }
        for (reference, owner) in &owners {
            if let Owner::Missing(resource, key) | Owner::Elsewhere(resource, key) = owner {
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
        let propagation = self.propagation(view, object, waiting);
        plan.delete_with(
            resource,
            object.as_ref(),
            DeleteOptions { propagation: Some(propagation), ..DeleteOptions::unchanged(object.as_ref()) },
        )
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::testing::Caches;
    use carrack_engine::{Absent, Write};
    use carrack_types::definition::Definition;
    use carrack_types::resource::Kind as _;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::{Node, Pod};
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
        // One that is nobody's, so that the cache is as new as the others.
        let bystander = meta(json!({"name": "bystander", "uid": "bystander"}));
        let caches = Caches::new()
            .with_metadata(Pod::resource(), pods)
            .with_metadata(ReplicaSet::resource(), sets.into_iter().map(&meta).chain([bystander]))
            .with::<Definition>([]);
        let mut gc = GarbageCollector::new(vec![Pod::resource(), ReplicaSet::resource()]);
        let plan = gc.reconcile(&Key::new("ns", "/pods/p"), &caches.view(), Time::default());
        assert_eq!(plan.error, None);
        let events = plan.events.iter().map(|e| format!("event {}", e.reason));
        events.chain(plan.writes.iter().map(word)).collect()
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
        // An owner with this UID in another namespace is none.
        let elsewhere = json!({"name": "rs", "uid": "1", "namespace": "other"});
        assert_eq!(
            plan(owned(vec![owner("rs", "1")]), vec![elsewhere], vec![]),
            ["event OwnerRefInvalidNamespace", "confirm rs 1", "delete p Background"]
        );
        // An owner that waits for its dependents takes them along.
        let waiting = json!({"name": "rs", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": [FOREGROUND]});
        assert_eq!(plan(owned(vec![owner("rs", "1")]), vec![waiting], vec![]), ["delete p Background"]);
    }

    #[test]
    fn owners_that_cannot_be_and_kinds_that_went() {
        let node = || {
            object(json!({"name": "n", "uid": "n", "resourceVersion": "1",
                "ownerReferences": [owner("rs", "1")]}))
        };
        let caches = Caches::new()
            .with_metadata(Node::resource(), [node()])
            .with_metadata(ReplicaSet::resource(), [])
            .with::<Definition>([]);
        let mut gc = GarbageCollector::new(vec![Node::resource(), ReplicaSet::resource()]);
        let plan = gc.reconcile(&Key::new("", "/nodes/n"), &caches.view(), Time::default());
        assert_eq!((plan.writes.len(), plan.events.len()), (0, 1), "a node cannot belong to a replica set");
        // The kind of the owner went with its definition.
        let pod = || {
            object(json!({"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "1",
                "ownerReferences": [{"apiVersion": "example.com/v1", "kind": "Thing", "name": "t", "uid": "9"}]}))
        };
        let crd = || -> Definition {
            carrack_types::json::from_value(json!({"metadata": {"name": "things.example.com", "uid": "1"},
                "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                    "versions": [{"name": "v1", "served": true, "storage": true}]},
                "status": {"conditions": [{"type": "Established", "status": "True"}]}}))
            .expect("a definition")
        };
        let mut gc = GarbageCollector::new(vec![Pod::resource()]);
        let mut look = |crds: Vec<Definition>| {
            let caches = Caches::new().with_metadata(Pod::resource(), [pod()]).with::<Definition>(crds);
            caches.refresh(&mut gc);
            let plan = gc.reconcile(&Key::new("ns", "/pods/p"), &caches.view(), Time::default());
            plan.writes.iter().map(word).collect::<Vec<_>>()
        };
        assert_eq!(look(vec![]), Vec::<String>::new(), "a kind that was never known is unknown");
        assert_eq!(look(vec![crd()]), Vec::<String>::new());
        assert_eq!(look(vec![]), ["confirm t 9", "delete p Background"]);
    }

    #[test]
    fn an_owner_waits_for_dependents_that_may_not_be_seen_yet() {
        for finalizer in [FOREGROUND, ORPHAN] {
            let owner = || {
                object(json!({"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "7",
                    "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizer]}))
            };
            let look = |known: &str| {
                let other = json!({"namespace": "ns", "name": "other", "uid": "o", "resourceVersion": known});
                let caches = Caches::new()
                    .with_metadata(Pod::resource(), [owner()])
                    .with_metadata(ReplicaSet::resource(), [object(other)])
                    .with::<Definition>([]);
                let mut gc = GarbageCollector::new(vec![Pod::resource(), ReplicaSet::resource()]);
                let plan = gc.reconcile(&Key::new("ns", "/pods/p"), &caches.view(), Time::default());
                (plan.writes.len(), plan.requeue_after)
            };
            assert_eq!(look("6"), (0, Some(LOOK_AGAIN)), "{finalizer}");
            assert_eq!(look("7"), (1, None), "{finalizer}");
        }
    }

    #[test]
    fn an_owner_looks_again_when_that_may_be_of_use() {
        let check = |finalizers: Value, dependents: Vec<Value>, expected: bool| {
            let set = object(json!({"namespace": "ns", "name": "rs", "uid": "rs", "finalizers": finalizers,
                "deletionTimestamp": "2026-01-01T00:00:00Z"}));
            let pods = dependents.iter().enumerate().map(|(number, more)| {
                let mut pod = json!({"namespace": "ns", "name": format!("p{number}"), "uid": format!("p{number}"),
                    "ownerReferences": [owner("rs", "rs")]});
                more.as_object().into_iter().flatten().for_each(|(key, value)| pod[key] = value.clone());
                object(pod)
            });
            let caches = Caches::new()
                .with_metadata(ReplicaSet::resource(), [set])
                .with_metadata(Pod::resource(), pods.collect::<Vec<_>>());
            let reference: OwnerReference = serde_json::from_value(owner("rs", "rs")).expect("a reference");
            let source = Source::metadata(ReplicaSet::resource());
            assert_eq!(is_held(&caches.view(), &source, "ns", &reference), expected, "{finalizers} {dependents:?}");
        };
        let going = || json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let lets_go = || {
            let mut pod = going();
            pod["ownerReferences"] = json!([owner("rs", "rs")]);
            pod["ownerReferences"][0]["blockOwnerDeletion"] = false.into();
            pod
        };
        let waiting = || json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FOREGROUND]});
        let foreground = || json!([FOREGROUND]);
        check(foreground(), vec![going(), going()], true);
        check(foreground(), vec![], false);
        // One that is still to be told, that holds nobody, or that may wait in a circle.
        check(foreground(), vec![json!({}), going()], false);
        check(foreground(), vec![lets_go(), going()], false);
        check(foreground(), vec![waiting(), going()], false);
        // One that leaves its dependents behind has to tell each of them, and one that waits for none is as all others.
        check(json!([ORPHAN]), vec![going()], false);
        check(json!(["other"]), vec![going()], false);
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
        assert_eq!(plan(deleting(FOREGROUND), vec![child("c", vec![])], vec![]), ["delete c Background"]);
        // One that has dependents of its own waits for them, as its owner does for it.
        let grandchild = json!({"name": "g", "uid": "g", "ownerReferences": [owner("c", "c")]});
        let both = || vec![child("c", vec![]), grandchild.clone()];
        assert_eq!(plan(deleting(FOREGROUND), both(), vec![]), ["delete c Foreground"]);
        // A dependent with another owner is not deleted, but it must let go first.
        assert_eq!(plan(deleting(FOREGROUND), vec![child("c", vec![owner("x", "x")])], vec![]), Vec::<String>::new());
        assert_eq!(
            plan(deleting(ORPHAN), vec![child("c", vec![owner("x", "x")])], vec![]),
            ["patch c owners=[\"x\"] finalizers=null"]
        );
        // A circle in which each waits for the other: nobody does.
        let mut waiting = child("c", vec![]);
        waiting["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        waiting["finalizers"] = json!([FOREGROUND]);
        let mut circle = deleting(FOREGROUND);
        circle["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "c", "uid": "c",
            "blockOwnerDeletion": true}]);
        assert_eq!(plan(deleting(FOREGROUND), vec![], vec![waiting.clone()]), Vec::<String>::new());
        assert_eq!(plan(circle, vec![], vec![waiting]), ["patch p owners=null finalizers=[\"other\"]"]);
        assert_eq!(plan(deleting(ORPHAN), vec![], vec![]), ["patch p owners=null finalizers=[\"other\"]"]);
    }
}
