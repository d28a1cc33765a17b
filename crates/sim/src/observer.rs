//! Sees every commit of the store, in order, whatever the roles are told of it.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use carrack_kubelet::runtime::PodRef;
use carrack_store::{MemStore, Range, Revision, Store, Watch, WatchItem};
use carrack_types::well_known::kubevirt::{APP_LABEL, LAUNCHER};
use carrack_virt::identity::CONSUMER;
use serde_json::Value;

/// A change of one object that the observer looks at.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub resource: &'static str,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl Change {
    /// The newest form of the object.
    pub(crate) fn object(&self) -> &Value {
        self.after.as_ref().or(self.before.as_ref()).unwrap_or(&Value::Null)
    }
}

/// Prefixes of the objects that invariants speak about, with short names.
const LOOKED_AT: [(&str, &str); 34] = [
    ("/registry/pods/", "pod"),
    ("/registry/minions/", "node"),
    ("/registry/leases/kube-node-lease/", "lease"),
    ("/registry/leases/kubevirt-node-lease/", "guests' lease"),
    ("/registry/configmaps/", "configmap"),
    ("/registry/secrets/", "secret"),
    ("/registry/namespaces/", "namespace"),
    ("/registry/deployments/", "deployment"),
    ("/registry/replicasets/", "replicaset"),
    ("/registry/statefulsets/", "statefulset"),
    ("/registry/daemonsets/", "daemonset"),
    ("/registry/controllers/", "replicationcontroller"),
    ("/registry/jobs/", "job"),
    ("/registry/cronjobs/", "cronjob"),
    ("/registry/services/specs/", "service"),
    ("/registry/endpointslices/", "slice"),
    ("/registry/resourcequotas/", "quota"),
    ("/registry/horizontalpodautoscalers/", "autoscaler"),
    ("/registry/persistentvolumeclaims/", "claim"),
    ("/registry/persistentvolumes/", "volume"),
    ("/registry/volumeattachments/", "attachment"),
    ("/registry/storageclasses/", "class"),
    ("/registry/csinodes/", "csinode"),
    ("/registry/kubevirt.io/virtualmachines/", "vm"),
    ("/registry/kubevirt.io/virtualmachineinstances/", "vmi"),
    ("/registry/kubevirt.io/virtualmachineinstancereplicasets/", "vmirs"),
    ("/registry/cdi.kubevirt.io/datavolumes/", "datavolume"),
    ("/registry/clone.kubevirt.io/virtualmachineclones/", "clone"),
    ("/registry/snapshot.kubevirt.io/virtualmachinesnapshots/", "vmsnapshot"),
    ("/registry/snapshot.kubevirt.io/virtualmachinesnapshotcontents/", "vmcontent"),
    ("/registry/snapshot.kubevirt.io/virtualmachinerestores/", "vmrestore"),
    ("/registry/snapshot.storage.k8s.io/volumesnapshots/", "volumesnapshot"),
    ("/registry/snapshot.storage.k8s.io/volumesnapshotcontents/", "volumesnapshotcontent"),
    ("/registry/sim.example.com/", "box"),
];

/// Something that checks make of an object.
pub(crate) trait Made: Any {
    fn of(object: &Value) -> Self;
}

/// An object, and what was made of it.
pub(crate) struct Seen {
    pub object: Value,
    made: RefCell<BTreeMap<TypeId, Rc<dyn Any>>>,
}

impl Seen {
    fn new(object: Value) -> Self {
        Self { object, made: RefCell::default() }
    }

    /// What is made of the object: once, since it stays as it is until another one takes its place.
    pub(crate) fn made<T: Made>(&self) -> Rc<T> {
        let known = self.made.borrow().get(&TypeId::of::<T>()).cloned();
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return known;
        }
        let made = Rc::new(T::of(&self.object));
        self.made.borrow_mut().insert(TypeId::of::<T>(), made.clone());
        made
    }
}

/// The objects as they are in the store.
pub(crate) struct Observer {
    watch: Option<Watch>,
    /// By resource, and by `namespace/name` or name.
    objects: BTreeMap<&'static str, BTreeMap<String, Seen>>,
    revision: Revision,
    /// When objects of each kind last changed.
    changed: BTreeMap<&'static str, Revision>,
}

impl Observer {
    /// These objects, each of its kind.
    #[cfg(test)]
    pub(crate) fn of(objects: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let mut observer =
            Self { watch: None, objects: BTreeMap::new(), revision: Revision::default(), changed: BTreeMap::new() };
        for (kind, object) in objects {
            observer.put(kind, key_of(&object), object);
        }
        observer
    }

    /// From the store's present state on.
    pub(crate) fn new(store: &Arc<MemStore>) -> Self {
        let mut observer =
            Self { watch: None, objects: BTreeMap::new(), revision: store.revision(), changed: BTreeMap::new() };
        for (prefix, resource) in LOOKED_AT {
            let range = Range { prefix: prefix.to_owned(), after: None, limit: 0, at: None };
            let mut page = store.range(range);
            if let Poll::Ready(Ok(page)) = page.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                for entry in page.entries {
                    let name = entry.key[prefix.len()..].to_owned();
                    observer.put(resource, name, parse(&entry.value()));
                }
            }
        }
        observer.follow(store);
        observer
    }

    /// Takes an object in; returns what it replaces.
    fn put(&mut self, resource: &'static str, name: String, object: Value) -> Option<Value> {
        let replaced = self.objects.entry(resource).or_default().insert(name, Seen::new(object));
        replaced.map(|seen| seen.object)
    }

    fn follow(&mut self, store: &Arc<MemStore>) {
        self.watch = store.watch("/registry/", self.revision).ok();
    }

    /// The changes since the last call.
    pub(crate) fn changes(&mut self, store: &Arc<MemStore>) -> Vec<Change> {
        let mut changes = Vec::new();
        if store.revision() == self.revision {
            return changes;
        }
        while let Some(watch) = &mut self.watch {
            match Pin::as_mut(watch).poll_next(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(Ok(WatchItem::Events(events)))) => {
                    for event in &**events {
                        self.revision = event.revision;
                        let entry = event.current.as_ref().or(event.previous.as_ref());
                        let key = entry.map_or("", |e| &*e.key);
                        let Some((prefix, resource)) = LOOKED_AT.iter().find(|(prefix, _)| key.starts_with(prefix))
                        else {
                            continue;
                        };
                        self.changed.insert(resource, event.revision);
                        let name = &key[prefix.len()..];
                        let after = event.current.as_ref().map(|e| parse(&e.value()));
                        let before = match &after {
                            Some(after) => self.put(resource, name.to_owned(), after.clone()),
                            None => self.objects.get_mut(resource).and_then(|of| of.remove(name)).map(|s| s.object),
                        };
                        changes.push(Change { resource, before, after });
                    }
                }
                Poll::Ready(Some(Ok(WatchItem::Progress(revision)))) => self.revision = revision,
                // All watches were interrupted, this one too; it had everything before that.
                Poll::Ready(Some(Err(_)) | None) => self.follow(store),
                Poll::Pending => break,
            }
        }
        changes
    }

    /// The revision at which objects of a kind last changed; 0 when they have not since the beginning.
    pub(crate) fn changed(&self, resource: &'static str) -> Revision {
        self.changed.get(resource).copied().unwrap_or_default()
    }

    /// All objects of a kind, for checks that make something of each.
    pub(crate) fn seen(&self, resource: &'static str) -> impl Iterator<Item = &Seen> {
        self.objects.get(resource).into_iter().flat_map(BTreeMap::values)
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, resource: &'static str) -> impl Iterator<Item = &Value> {
        self.seen(resource).map(|seen| &seen.object)
    }

    /// One object, by `namespace/name` or name.
    pub(crate) fn get(&self, resource: &'static str, key: &str) -> Option<&Value> {
        self.objects.get(resource)?.get(key).map(|seen| &seen.object)
    }

    /// A pod, unless what has its name now is another.
    pub(crate) fn pod(&self, pod: &PodRef) -> Option<&Value> {
        self.get("pod", &format!("{}/{}", pod.namespace, pod.name)).filter(|found| uid(found) == &*pod.uid)
    }
}

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// A text field by its path; empty when it is not there. Checks ask this of every object at every step: a path without escapes and
/// numbers is followed without copies of its parts.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let is_plain = |c: u8| c.is_ascii_alphabetic() || c == b'/' || c == b'.' || c == b'-';
    let found = match pointer.strip_prefix('/').filter(|path| path.bytes().all(is_plain)) {
        Some(path) => path.split('/').try_fold(object, |object, name| object.as_object()?.get(name)),
        None => object.pointer(pointer),
    };
    found.and_then(Value::as_str).unwrap_or_default()
}

/// A label or an annotation; their names have slashes.
pub(crate) fn label<'a>(object: &'a Value, kind: &str, name: &str) -> &'a str {
    object["metadata"][kind][name].as_str().unwrap_or_default()
}

/// `namespace/name`, or the name alone.
pub(crate) fn key_of(object: &Value) -> String {
    match text(object, "/metadata/namespace") {
        "" => text(object, "/metadata/name").to_owned(),
        namespace => format!("{namespace}/{}", text(object, "/metadata/name")),
    }
}

/// The key of what has this name in the same namespace as an object.
pub(crate) fn beside(object: &Value, name: &str) -> String {
    format!("{}/{name}", text(object, "/metadata/namespace"))
}

/// UID.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// UID of the controlling owner; empty for none.
pub(crate) fn controller(object: &Value) -> &str {
    of_controller(object, "uid")
}

/// Kind of the controlling owner; empty for none.
pub(crate) fn owner_kind(object: &Value) -> &str {
    of_controller(object, "kind")
}

/// Whether a pod is the launcher of an instance: its owner says so, whoever has taken its label off, or its label does.
pub(crate) fn is_launcher(pod: &Value) -> bool {
    let is_owned = owner_kind(pod) == "VirtualMachineInstance" && !text(pod, "/metadata/name").starts_with(CONSUMER);
    is_owned || label(pod, "labels", APP_LABEL) == LAUNCHER
}

fn of_controller<'a>(object: &'a Value, field: &str) -> &'a str {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().find(|o| o["controller"] == true).and_then(|o| o[field].as_str()).unwrap_or_default()
}

/// Whether a snapshot, or what is kept of one, says that it can be used.
pub(crate) fn ready_to_use(object: &Value) -> bool {
    object.pointer("/status/readyToUse") == Some(&Value::Bool(true))
}

/// Whether the object's deletion was asked for.
pub(crate) fn deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// An object's conditions.
pub(crate) fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

/// Whether a condition of an object is true.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    conditions(object).any(|c| c["type"] == kind && c["status"] == "True")
}

/// Whether a pod has ended.
pub(crate) fn terminal(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// A change in a few words, when it is one that a reader of a timeline wants to see.
pub(crate) fn describe(change: &Change) -> Option<String> {
    let Change { resource, before, after } = change;
    let name = key_of(change.object());
    match (before, after) {
        (None, Some(new)) => Some(format!("{resource} {name} ({}) is there", uid(new))),
        (Some(old), None) => Some(format!("{resource} {name} ({}) is gone", uid(old))),
        (Some(old), Some(new)) => {
            let mut news = Vec::new();
            for pointer in ["/status/phase", "/spec/nodeName", "/status/nodeName", "/status/printableStatus"] {
                let (was, is) = (text(old, pointer), text(new, pointer));
                if was != is {
                    news.push(format!("{} {is}", pointer.rsplit('/').next().unwrap_or_default()));
                }
            }
            if !deleting(old) && deleting(new) {
                news.push("is to go".to_owned());
            }
            (!news.is_empty()).then(|| format!("{resource} {name}: {}", news.join(", ")))
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Id(String);

    impl Made for Id {
        fn of(object: &Value) -> Self {
            Self(uid(object).to_owned())
        }
    }

    struct Fields(usize);

    impl Made for Fields {
        fn of(object: &Value) -> Self {
            Self(object.as_object().map_or(0, serde_json::Map::len))
        }
    }

    #[test]
    fn what_is_made_of_an_object_is_made_once_until_it_changes() {
        let object = |name: &str, uid: &str| json!({"metadata": {"namespace": "d", "name": name, "uid": uid}});
        let all = [("pod", object("a", "1")), ("pod", object("b", "2")), ("node", object("a", "3"))];
        let mut observer = Observer::of(all);
        let ids = |observer: &Observer| -> Vec<Rc<Id>> { observer.seen("pod").map(Seen::made).collect() };
        let words = |ids: &[Rc<Id>]| -> Vec<String> { ids.iter().map(|id| id.0.clone()).collect() };
        let same = |one: &[Rc<Id>], other: &[Rc<Id>]| -> Vec<bool> {
            one.iter().zip(other).map(|(one, other)| Rc::ptr_eq(one, other)).collect()
        };
        let first = ids(&observer);
        assert_eq!(words(&first), ["1", "2"]);
        assert!(observer.seen("pod").all(|pod| pod.made::<Fields>().0 == 1), "something else is made beside it");
        assert_eq!(same(&first, &ids(&observer)), [true, true]);
        observer.put("pod", "d/a".to_owned(), object("a", "4"));
        let second = ids(&observer);
        assert_eq!((words(&second), same(&first, &second)), (vec!["4".to_owned(), "2".to_owned()], vec![false, true]));
    }

    #[test]
    fn a_launcher_is_one_without_its_label_too() {
        let pod = |name: &str, kind: &str, app: &str| {
            json!({"metadata": {"name": name, "labels": {APP_LABEL: app},
                "ownerReferences": [{"controller": true, "kind": kind, "uid": "u"}]}})
        };
        for (name, kind, app, expected) in [
            ("virt-launcher-a-x", "VirtualMachineInstance", LAUNCHER, true),
            ("virt-launcher-a-x", "VirtualMachineInstance", "", true),
            ("a", "ReplicaSet", LAUNCHER, true),
            ("a", "ReplicaSet", "", false),
            ("virt-provisioning-a-x", "VirtualMachineInstance", "", false),
        ] {
            assert_eq!(is_launcher(&pod(name, kind, app)), expected, "{name} {kind} {app:?}");
        }
    }
}
