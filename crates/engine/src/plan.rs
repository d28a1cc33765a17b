//! What a reconcile decided: writes in order, events, and when to look again.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_types::resource::{Kind, Object, Resource};
use serde_json::{Value, json};

use crate::{ApiRequest, ContentType, DeleteOptions, EventRecord, Key, Premise, diff, to_value};

/// One write, with what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create a child. If the name is taken, the object there counts as the child only when its
    /// controlling owner has the UID of the child's controlling owner; otherwise the write fails.
    Create {
        /// Where.
        resource: Resource,
        /// What.
        object: Value,
    },
    /// Change an object or its status; the object carries the resourceVersion that was read.
    Update {
        /// Where.
        resource: Resource,
        /// What it becomes.
        object: Value,
        /// What was read, in the same types: only what differs is sent, and what those types do not know stays. Null: the object
        /// is sent whole.
        was: Value,
        /// A subresource, or empty.
        sub: &'static str,
    },
    /// Patch an object.
    Patch {
        /// Where.
        resource: Resource,
        /// Which.
        key: Key,
        /// Its UID, to know it in the cache.
        uid: String,
        /// A subresource, or empty.
        sub: &'static str,
        /// Kind of patch.
        content_type: ContentType,
        /// The patch, preconditions included.
        patch: Value,
    },
    /// Delete an object. One that is not there any more is a success.
    Delete {
        /// Where.
        resource: Resource,
        /// Which.
        key: Key,
        /// Preconditions and grace.
        options: DeleteOptions,
    },
    /// Delete all objects of a kind in a namespace, seen or not.
    DeleteAll {
        /// Where.
        resource: Resource,
        /// In which namespace.
        namespace: String,
    },
    /// Make sure, by a live read, of something that the next writes rest on and that a cache cannot
    /// prove: that something is not there. If it is there after all, the plan ends here.
    Confirm {
        /// Where.
        resource: Resource,
        /// What is not there.
        absent: Absent,
    },
    /// Have something done that is no change of the object (`freeze`): a PUT of a subresource. Why it failed is told to the
    /// controller, whatever the server's code: what stands behind such a call answers for itself.
    Call {
        /// Where.
        resource: Resource,
        /// To which.
        key: Key,
        /// The subresource.
        sub: &'static str,
        /// The body.
        body: Value,
    },
    /// Post to a subresource (`binding`, `finalize` …).
    Post {
        /// Where.
        resource: Resource,
        /// Which.
        key: Key,
        /// The subresource.
        sub: &'static str,
        /// The body.
        body: Value,
    },
}

/// Something that must not be there.
#[derive(Clone, Debug, PartialEq)]
pub enum Absent {
    /// The object of this name and UID.
    Object {
        /// Its name.
        key: Key,
        /// Its UID; another object may have taken the name. Empty: whatever has that name.
        uid: String,
    },
    /// Any object in this namespace.
    AnyIn(String),
    /// A newer form of an object than the one that was read. One that is gone has none.
    Newer {
        /// Its name.
        key: Key,
        /// The resourceVersion that was read.
        resource_version: String,
    },
    /// The object of this name, as a child of an owner: another object may have the name.
    Child {
        /// Its name.
        key: Key,
        /// UID of the controlling owner.
        owner: String,
    },
    /// The end of an object: it is there, and is not being deleted.
    End {
        /// Its name.
        key: Key,
        /// Its UID; another object may have taken the name.
        uid: String,
    },
    /// Any change of a collection that is not watched since it was read.
    Change {
        /// Its words, as [`crate::View::digest_of`] tells them.
        digest: u64,
    },
    /// The server's refusal of what somebody else is to have. One that is there is told to the controller as a refused write is.
    Refusal {
        /// The SubjectAccessReview: who, and what.
        review: Value,
    },
}

impl Write {
    /// The resource that it writes.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        match self {
            Self::Create { resource, .. }
            | Self::Update { resource, .. }
            | Self::Patch { resource, .. }
            | Self::Delete { resource, .. }
            | Self::DeleteAll { resource, .. }
            | Self::Confirm { resource, .. }
            | Self::Call { resource, .. }
            | Self::Post { resource, .. } => resource,
        }
    }

    /// The object that it writes.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Create { object, .. } | Self::Update { object, .. } => {
                let text = |f: &str| object["metadata"][f].as_str().unwrap_or_default().to_owned();
                Key { namespace: text("namespace"), name: text("name") }
            }
            Self::Patch { key, .. }
            | Self::Delete { key, .. }
            | Self::Call { key, .. }
            | Self::Post { key, .. }
            | Self::Confirm {
                absent:
                    Absent::Object { key, .. }
                    | Absent::Newer { key, .. }
                    | Absent::Child { key, .. }
                    | Absent::End { key, .. },
                ..
            } => key.clone(),
            Self::DeleteAll { namespace, .. } | Self::Confirm { absent: Absent::AnyIn(namespace), .. } => {
                Key::new(namespace.clone(), "")
            }
            Self::Confirm { absent: Absent::Change { .. } | Absent::Refusal { .. }, .. } => Key::new("", ""),
        }
    }

    /// Whether it rests on the revision of its own object: one that arrives late is refused when anything was decided about that
    /// object meanwhile. Reads and calls count as such, since no API server refuses them for what they rest on: who has a call
    /// made must stand one that comes late, whoever leads by then.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        match self {
            Self::Update { object: value, .. } | Self::Patch { patch: value, .. } => {
                value.pointer("/metadata/resourceVersion").is_some_and(Value::is_string)
            }
            Self::Delete { options, .. } => options.resource_version.is_some(),
            Self::Confirm { .. } | Self::Call { .. } => true,
            Self::Create { .. } | Self::DeleteAll { .. } | Self::Post { .. } => false,
        }
    }

    /// Lets go of what was sent, which may be large while many wait for replies: what becomes of a write is judged by what it is of,
    /// whose that is, and what it rests on.
    pub(crate) fn drop_body(&mut self) {
        match self {
            Self::Create { object, .. } => keep_identity(object),
            Self::Update { object, was, .. } => {
                keep_identity(object);
                *was = Value::Null;
            }
            Self::Patch { patch, .. } => keep_identity(patch),
            Self::Call { body, .. } | Self::Post { body, .. } => *body = Value::Null,
            Self::Delete { .. } | Self::DeleteAll { .. } | Self::Confirm { .. } => {}
        }
    }

    /// As a request.
    #[must_use]
    pub fn request(&self) -> ApiRequest {
        let key = self.key();
        match self {
            Self::Create { resource, object } => ApiRequest::create_value(resource, &key.namespace, object),
            Self::Update { resource, object, was: Value::Null, sub } => put(resource, &key, sub, object),
            Self::Update { resource, object, was, sub } => {
                let patch = changes(was, object);
                ApiRequest::patch(resource, &key.namespace, &key.name, sub, ContentType::MergePatch, &patch)
            }
            Self::Call { resource, key, sub, body } => put(resource, key, sub, body),
            Self::Patch { resource, key, sub, content_type, patch, .. } => {
                ApiRequest::patch(resource, &key.namespace, &key.name, sub, *content_type, patch)
            }
            Self::Delete { resource, key, options } => ApiRequest::delete(resource, &key.namespace, &key.name, options),
            Self::DeleteAll { resource, namespace } => {
                ApiRequest::new(crate::Method::Delete, resource.collection_path(namespace)).unread()
            }
            Self::Confirm {
                resource,
                absent:
                    Absent::Object { key, .. }
                    | Absent::Newer { key, .. }
                    | Absent::Child { key, .. }
                    | Absent::End { key, .. },
            } => ApiRequest::get(resource, &key.namespace, &key.name).metadata_only(),
            Self::Confirm { resource, absent: Absent::AnyIn(namespace) } => {
                let selector = crate::Selector { namespace: namespace.clone(), ..crate::Selector::all() };
                ApiRequest::list(resource, &selector, 1, "").metadata_only()
            }
            Self::Confirm { resource, absent: Absent::Change { .. } } => {
                ApiRequest::list(resource, &crate::Selector::all(), 0, "")
            }
            Self::Confirm { resource, absent: Absent::Refusal { review } } => {
                ApiRequest::create_value(resource, "", review)
            }
            Self::Post { resource, key, sub, body } => {
                ApiRequest::create_sub(resource, &key.namespace, &key.name, sub, body)
            }
        }
    }
}

/// Leaves of an object, or of a patch of one, which it is, whose, and at which revision.
fn keep_identity(object: &mut Value) {
    const IDENTITY: [&str; 5] = ["namespace", "name", "uid", "resourceVersion", "ownerReferences"];
    let mut metadata = object.get_mut("metadata").map(Value::take).unwrap_or_default();
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|field, _| IDENTITY.contains(&field.as_str()));
    }
    *object = json!({"metadata": metadata});
}

/// What was changed of an object, as a merge patch that rests on what was read.
fn changes(was: &Value, object: &Value) -> Value {
    let mut patch = diff::between(was, object).unwrap_or_else(|| json!({}));
    for field in ["uid", "resourceVersion"] {
        let read = &object["metadata"][field];
        if !read.is_null() {
            patch["metadata"][field] = read.clone();
        }
    }
    patch
}

fn put(resource: &Resource, key: &Key, sub: &str, body: &Value) -> ApiRequest {
    let mut request = ApiRequest::create_value(resource, &key.namespace, body);
    request.method = crate::Method::Put;
    request.path = resource.object_path(&key.namespace, &key.name);
    if !sub.is_empty() {
        request.path.push('/');
        request.path.push_str(sub);
    }
    request
}

/// What a reconcile decided. Writes run in order; the first that fails ends the plan, unless it stands apart, and the key is
/// reconciled again, later.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Plan {
    /// What is to be read before it can be decided.
    pub asks: Vec<ApiRequest>,
    /// Writes, in order.
    pub writes: Vec<Write>,
    /// What writes rest on besides their own objects, each with the number of its write.
    pub premises: Vec<(usize, Premise)>,
    /// Writes that may wait, each with its number and how long.
    pub patient: Vec<(usize, Duration)>,
    /// Writes without which the others are made all the same, by their numbers.
    pub apart: BTreeSet<usize>,
    /// Events to record.
    pub events: Vec<EventRecord>,
    /// Events to record once so many of the writes are done; in the order of these numbers.
    pub told: Vec<(usize, EventRecord)>,
    /// Reconcile again after this time, whatever happens.
    pub requeue_after: Option<Duration>,
    /// The decision could not be made; this is logged, and the key comes back with backoff.
    pub error: Option<String>,
}

impl Plan {
    /// Nothing to do.
    pub fn none() -> Self {
        Self::default()
    }
    /// A decision that could not be made.
    pub fn failed(error: impl Into<String>) -> Self {
        Self { error: Some(error.into()), ..Self::default() }
    }
    /// Adds: read this first. Nothing else of the plan is done then: once all that it asks for is answered, whatever the answers
    /// are, the key is reconciled anew with them ([`crate::View::answer`]). A plan that asks only for what was answered is carried
    /// out.
    pub fn ask(mut self, request: ApiRequest) -> Self {
        self.asks.push(request);
        self
    }
    /// Adds: create an object.
    pub fn create<K: Kind>(mut self, object: &K) -> Self {
        self.writes.push(Write::Create { resource: K::resource(), object: to_value(object) });
        self
    }
    /// Adds: change an object from what was read to this. What its type does not know, as a newer server's fields, stays as it
    /// is; but a list that has changed is written whole.
    pub fn update<K: Kind>(self, read: &K, object: &K) -> Self {
        self.update_sub(read, object, "")
    }
    /// Adds: change an object's status in the same way.
    pub fn update_status<K: Kind>(self, read: &K, object: &K) -> Self {
        self.update_sub(read, object, "status")
    }
    fn update_sub<K: Kind>(mut self, read: &K, object: &K, sub: &'static str) -> Self {
        let (object, was) = (to_value(object), to_value(read));
        self.writes.push(Write::Update { resource: K::resource(), object, was, sub });
        self
    }
    /// Adds: a merge patch that rests on the object's UID and resourceVersion.
    pub fn patch<K: Kind>(self, object: &K, patch: Value) -> Self {
        self.patch_sub(object, "", patch)
    }
    /// Adds: a merge patch of the status that rests on the object's UID and resourceVersion.
    pub fn patch_status<K: Kind>(self, object: &K, patch: Value) -> Self {
        self.patch_sub(object, "status", patch)
    }
    fn patch_sub<K: Kind>(self, object: &K, sub: &'static str, patch: Value) -> Self {
        self.patch_resource(&K::resource(), object, sub, patch)
    }
    /// Adds: a merge patch of an object whose resource is known only at run time.
    pub fn patch_resource<K: Object>(
        mut self,
        resource: &Resource,
        object: &K,
        sub: &'static str,
        mut patch: Value,
    ) -> Self {
        if !patch["metadata"].is_object() {
            patch["metadata"] = json!({});
        }
        patch["metadata"]["uid"] = object.uid().into();
        patch["metadata"]["resourceVersion"] = object.meta().resource_version.clone().into();
        self.writes.push(Write::Patch {
            resource: resource.clone(),
            key: Key::of(object),
            uid: object.uid().to_owned(),
            sub,
            content_type: ContentType::MergePatch,
            patch,
        });
        self
    }
    /// Adds: give an object a finalizer that it has not got.
    pub fn with_finalizer<K: Kind>(self, object: &K, finalizer: &str) -> Self {
        let mut all = object.meta().finalizers.clone().unwrap_or_default();
        all.push(finalizer.to_owned());
        self.patch(object, json!({"metadata": {"finalizers": all}}))
    }
    /// Adds: take a finalizer from an object.
    pub fn without_finalizer<K: Kind>(self, object: &K, finalizer: &str) -> Self {
        self.without_finalizer_of(&K::resource(), object, finalizer)
    }
    /// Adds: take a finalizer from an object whose resource is known only at run time.
    pub fn without_finalizer_of<K: Object>(self, resource: &Resource, object: &K, finalizer: &str) -> Self {
        let left: Vec<&String> = object.meta().finalizers.iter().flatten().filter(|name| *name != finalizer).collect();
        self.patch_resource(resource, object, "", json!({"metadata": {"finalizers": left}}))
    }
    /// Adds: delete exactly this object.
    pub fn delete<K: Kind>(self, object: &K) -> Self {
        self.delete_with(&K::resource(), object, DeleteOptions::default())
    }
    /// Adds: delete exactly this object, as it was read: what was written of it meanwhile is decided about anew.
    pub fn delete_unchanged<K: Kind>(self, object: &K) -> Self {
        self.delete_with(&K::resource(), object, DeleteOptions::unchanged(object))
    }
    /// Adds: delete exactly this object, with options. The UID is filled in.
    pub fn delete_with<K: Object>(mut self, resource: &Resource, object: &K, mut options: DeleteOptions) -> Self {
        options.uid = Some(object.uid().to_owned());
        self.writes.push(Write::Delete { resource: resource.clone(), key: Key::of(object), options });
        self
    }
    /// Adds: go on only if no object of this name and UID is there, by a live read. With an empty UID, only if nothing has
    /// that name.
    pub fn confirm_absent(mut self, resource: &Resource, key: Key, uid: impl Into<String>) -> Self {
        let absent = Absent::Object { key, uid: uid.into() };
        self.writes.push(Write::Confirm { resource: resource.clone(), absent });
        self
    }
    /// Adds: go on only if no child of an owner has this name, by a live read. Somebody else's object may have it.
    pub fn confirm_no_child(mut self, resource: &Resource, key: Key, owner: impl Into<String>) -> Self {
        let absent = Absent::Child { key, owner: owner.into() };
        self.writes.push(Write::Confirm { resource: resource.clone(), absent });
        self
    }
    /// Adds: go on only if a namespace holds no object of a resource, by a live read.
    pub fn confirm_none_in(mut self, resource: &Resource, namespace: impl Into<String>) -> Self {
        let absent = Absent::AnyIn(namespace.into());
        self.writes.push(Write::Confirm { resource: resource.clone(), absent });
        self
    }
    /// Adds: go on only if a collection that is not watched says what it said when it was read, by a live read.
    pub fn confirm_same(mut self, resource: &Resource, digest: u64) -> Self {
        self.writes.push(Write::Confirm { resource: resource.clone(), absent: Absent::Change { digest } });
        self
    }
    /// Adds: go on only if somebody else may do something, by the server's word: a SubjectAccessReview with this spec. For what is
    /// done for him with more rights than he has.
    pub fn confirm_allowed(mut self, spec: &Value) -> Self {
        let resource = Resource {
            group: "authorization.k8s.io".into(),
            version: "v1".into(),
            plural: "subjectaccessreviews".into(),
            kind: "SubjectAccessReview".into(),
            namespaced: false,
        };
        let review = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "spec": spec});
        self.writes.push(Write::Confirm { resource, absent: Absent::Refusal { review } });
        self
    }
    /// Adds: delete all objects of a kind in a namespace, seen or not.
    pub fn delete_all_in(mut self, resource: &Resource, namespace: impl Into<String>) -> Self {
        self.writes.push(Write::DeleteAll { resource: resource.clone(), namespace: namespace.into() });
        self
    }
    /// Adds: go on only if an object is still as it was read, by a live read. For decisions that rest on nothing having
    /// happened to it, which a cache that lags shows as well as one that is current.
    pub fn confirm_unchanged<K: Kind>(mut self, object: &K) -> Self {
        let resource_version = object.meta().resource_version.clone().unwrap_or_default();
        let absent = Absent::Newer { key: Key::of(object), resource_version };
        self.writes.push(Write::Confirm { resource: K::resource(), absent });
        self
    }
    /// Adds: go on only if an object is there and not being deleted, by a live read. For giving it children that are there
    /// already: the garbage collector takes away what belongs to an owner that is gone.
    pub fn confirm_alive<K: Kind>(mut self, object: &K) -> Self {
        let absent = Absent::End { key: Key::of(object), uid: object.uid().to_owned() };
        self.writes.push(Write::Confirm { resource: K::resource(), absent });
        self
    }
    /// Adds: have something done to an object that is no change of it.
    pub fn call(mut self, resource: &Resource, key: Key, sub: &'static str, body: Value) -> Self {
        self.writes.push(Write::Call { resource: resource.clone(), key, sub, body });
        self
    }
    /// The writes so far rest on this, too.
    pub fn resting_on(mut self, premise: &Premise) -> Self {
        self.premises.extend((0..self.writes.len()).map(|number| (number, premise.clone())));
        self
    }
    /// The writes so far stand each for itself: where the server refuses one, those behind it are made all the same, and the key
    /// comes back with backoff for what is left.
    pub fn each_apart(mut self) -> Self {
        self.apart.extend(0..self.writes.len());
        self
    }
    /// The writes so far only tell what there is, and nothing rests on them: they may wait so long for what else happens, so that
    /// many changes become one write. A plan that has other writes, too, is carried out without them, and they are decided about
    /// again afterwards: what a later decision of the same controller rests on must not be among them. The events so far are
    /// recorded when they are done.
    pub fn patient(mut self, wait: Duration) -> Self {
        // What is said about them waits with them.
        let after = self.writes.len();
        self.told.extend(self.events.drain(..).map(|event| (after, event)));
        self.patient.extend((0..self.writes.len()).map(|number| (number, wait)));
        self
    }
    /// How long the least patient of the writes that may wait can do so, if there are such.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.patient.iter().map(|(_, wait)| *wait).min()
    }
    /// What cannot wait.
    pub(crate) fn without_patient(mut self) -> Self {
        let left_out: BTreeSet<usize> = self.patient.drain(..).map(|(number, _)| number).collect();
        // The new number of a write, or of what comes behind it.
        let moved = |number: usize| number - left_out.range(..number).count();
        // What is told once something was done goes with the last write before it: it is decided anew, too.
        self.told.retain(|(after, _)| after.checked_sub(1).is_none_or(|last| !left_out.contains(&last)));
        self.told.iter_mut().for_each(|(after, _)| *after = moved(*after));
        self.premises.retain(|(number, _)| !left_out.contains(number));
        self.premises.iter_mut().for_each(|(number, _)| *number = moved(*number));
        self.apart = self.apart.difference(&left_out).map(|number| moved(*number)).collect();
        let writes = self.writes.into_iter().enumerate().filter(|(number, _)| !left_out.contains(number));
        self.writes = writes.map(|(_, write)| write).collect();
        self
    }
    /// Adds: any write.
    pub fn write(mut self, write: Write) -> Self {
        self.writes.push(write);
        self
    }
    /// Adds an event.
    pub fn event(mut self, event: EventRecord) -> Self {
        self.events.push(event);
        self
    }
    /// Adds an event that is recorded once all writes that were added before it are done; it waits with the last of them.
    pub fn told(mut self, event: EventRecord) -> Self {
        self.told.push((self.writes.len(), event));
        self
    }
    /// Asks to be called again after a time.
    pub fn requeue_after(mut self, after: Duration) -> Self {
        self.requeue_after = Some(self.requeue_after.map_or(after, |a| a.min(after)));
        self
    }
    /// Adds everything of another plan behind this one.
    pub fn then(mut self, other: Self) -> Self {
        let before = self.writes.len();
        self.asks.extend(other.asks);
        self.told.extend(other.told.into_iter().map(|(after, event)| (before + after, event)));
        self.premises.extend(other.premises.into_iter().map(|(number, premise)| (before + number, premise)));
        self.apart.extend(other.apart.into_iter().map(|number| before + number));
        self.patient.extend(other.patient.into_iter().map(|(number, wait)| (before + number, wait)));
        self.writes.extend(other.writes);
        self.events.extend(other.events);
        if let Some(after) = other.requeue_after {
            self = self.requeue_after(after);
        }
        self.error = self.error.or(other.error);
        self
    }
    /// Whether it changes nothing and asks for nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    /// What is sent of a set that was read at revision 7, when it has changed so, and to which subresource.
    fn sent(sub: &'static str, change: impl Fn(&mut ReplicaSet), mut expected: Value) {
        let read = json!({"metadata": {"namespace": "ns", "name": "s", "uid": "u", "resourceVersion": "7",
                "labels": {"a": "1"}},
            "spec": {"replicas": 2, "selector": {}, "ofANewerServer": true}, "status": {"replicas": 2, "readyReplicas": 1}});
        let read: ReplicaSet = carrack_types::json::from_value(read).expect("a set");
        let mut new = read.clone();
        change(&mut new);
        let plan = Plan::none().update_sub(&read, &new, sub);
        let request = plan.writes[0].request();
        let slash = if sub.is_empty() { "" } else { "/" };
        assert_eq!(request.path, format!("/apis/apps/v1/namespaces/ns/replicasets/s{slash}{sub}"));
        assert_eq!((request.method, request.content_type), (crate::Method::Patch, ContentType::MergePatch));
        expected["metadata"]["uid"] = "u".into();
        expected["metadata"]["resourceVersion"] = "7".into();
        assert_eq!(serde_json::from_slice::<Value>(&request.body).expect("a patch"), expected);
        assert!(plan.writes[0].is_pinned());
    }

    #[test]
    fn what_a_type_does_not_know_is_not_written() {
        let spec = |set: &mut ReplicaSet| set.spec.get_or_insert_default().replicas = Some(3);
        sent("", spec, json!({"spec": {"replicas": 3}}));
        let status = |set: &mut ReplicaSet| set.status.get_or_insert_default().ready_replicas = None;
        sent("status", status, json!({"status": {"readyReplicas": null}}));
        let labels = |set: &mut ReplicaSet| set.metadata.labels = None;
        sent("", labels, json!({"metadata": {"labels": null}}));
        sent("", |_| {}, json!({}));
    }

    #[test]
    fn what_goes_as_it_was_read_rests_on_that() {
        let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "7"}});
        let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
        let plan = Plan::none().delete_unchanged(&pod);
        assert!(plan.writes[0].is_pinned());
        let body: Value = serde_json::from_slice(&plan.writes[0].request().body).expect("options");
        assert_eq!(body["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
    }

    #[test]
    fn what_was_sent_is_known_without_its_body() {
        let set = json!({"metadata": {"namespace": "ns", "name": "s", "uid": "u", "resourceVersion": "7",
                "labels": {"long": "text"}, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "o",
                "controller": true}]},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"long": "text"}}}});
        let set: ReplicaSet = carrack_types::json::from_value(set).expect("a set");
        let (resource, key) = (ReplicaSet::resource(), Key::of(&set));
        let patch = json!([{"op": "add", "path": "/metadata/labels/long", "value": "text"}]);
        let json_patch = Write::Patch {
            resource: resource.clone(),
            key: key.clone(),
            uid: "u".to_owned(),
            sub: "",
            content_type: ContentType::JsonPatch,
            patch,
        };
        let body = json!({"long": "text"});
        let post = Write::Post { resource: resource.clone(), key: key.clone(), sub: "scale", body: body.clone() };
        let plan = Plan::none()
            .create(&set)
            .update(&ReplicaSet::default(), &set)
            .patch(&set, json!({"metadata": {"labels": {"long": "text"}}}))
            .patch_status(&set, json!({"status": {"long": "text"}}))
            .write(json_patch)
            .write(post)
            .call(&resource, key, "scale", body)
            .delete(&set)
            .delete_all_in(&resource, "ns")
            .confirm_unchanged(&set);
        for mut write in plan.writes {
            let known = |write: &Write| (write.key(), write.resource().clone(), write.is_pinned());
            let owners = |write: &Write| match write {
                Write::Create { object, .. } => object["metadata"]["ownerReferences"].clone(),
                _ => Value::Null,
            };
            let (before, owned) = (known(&write), owners(&write));
            write.drop_body();
            assert_eq!((known(&write), owners(&write)), (before, owned), "{write:?}");
            assert!(!format!("{write:?}").contains("long"), "{write:?}");
        }
    }

    #[test]
    fn what_may_wait_is_left_out_with_what_belongs_to_it() {
        let named = |name: &str| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.to_owned());
            pod.metadata.uid = Some(name.to_owned());
            pod
        };
        let one = |name: &str| {
            let (pod, event) = (named(name), EventRecord::normal(&named(name), "Told", name));
            Plan::none().delete(&pod).resting_on(&Premise::unchanged(&pod)).told(event)
        };
        let wait = |ms| Duration::from_millis(ms);
        let plan = one("a").patient(wait(9)).then(one("b")).then(one("c").patient(wait(5))).then(one("d"));
        assert_eq!(plan.patience(), Some(wait(5)));
        let left = plan.without_patient();
        assert_eq!(left.patience(), None);
        let names: Vec<String> = left.writes.iter().map(|write| write.key().name).collect();
        assert_eq!(names, ["b", "d"]);
        assert_eq!(left.premises, [(0, Premise::unchanged(&named("b"))), (1, Premise::unchanged(&named("d")))]);
        // What is told once something was written that waits is decided anew with it.
        let told: Vec<_> = left.told.iter().map(|(after, event)| (*after, event.message.as_str())).collect();
        assert_eq!(told, [(1, "b"), (2, "d")]);
    }
}
