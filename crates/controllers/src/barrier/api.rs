//! The API, as far as controllers see it: objects, revisions, preconditions, premises, and a log for watches.

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Method, NAMESPACE_TERMINATING, Premise, StatusError, Term, Time,
};
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Map, Value, json};

/// Where an object is: group and version, plural, namespace, name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    pub api: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub sub: String,
}

impl Path {
    pub fn read(path: &str) -> Self {
        let path = path.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let prefix = if parts[0] == "api" { 2 } else { 3 };
        // Discovery has no more than the first part.
        let Some(rest) = parts.get(prefix..).filter(|rest| !rest.is_empty()) else {
            return Self { api: parts.join("/"), ..Self::default() };
        };
        let in_namespace = rest[0] == "namespaces" && rest.len() > 2 && !matches!(rest[2], "finalize" | "status");
        let (namespace, rest) = if in_namespace { (rest[1], &rest[2..]) } else { ("", rest) };
        let part = |at: usize| rest.get(at).copied().unwrap_or_default().to_owned();
        Self {
            api: parts[..prefix].join("/"),
            plural: part(0),
            namespace: namespace.to_owned(),
            name: part(1),
            sub: part(2),
        }
    }
    fn of(&self, name: &str) -> Self {
        Self { name: name.to_owned(), sub: String::new(), ..self.clone() }
    }
    /// Whether an object is in a collection.
    pub fn has(&self, object: &Self) -> bool {
        self.plural == object.plural
            && self.api == object.api
            && (self.namespace.is_empty() || self.namespace == object.namespace)
    }
}

/// A change.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    pub path: Path,
    pub kind: &'static str,
    pub object: Value,
}

/// All objects.
#[derive(Default)]
pub struct Api {
    pub objects: BTreeMap<Path, Value>,
    pub log: Vec<Change>,
    pub revision: u64,
    pub now: Time,
    /// How many objects have had each name, for UIDs that are the same in every run.
    pub born: BTreeMap<Path, u32>,
    /// Another server keeps some of the objects ([`METERS`]), and does not answer at present.
    pub silent: bool,
}

/// Group and version of what another server keeps.
pub const METERS: &str = "apis/meters.example.com/v1";

type Reply = Result<Value, ApiError>;

fn refuse<T>(code: u16, reason: &str, message: &str) -> Result<T, ApiError> {
    let error = StatusError { code, reason: reason.into(), message: message.into(), ..StatusError::default() };
    Err(ApiError::Status(Box::new(error)))
}

fn conflict<T>(message: &str) -> Result<T, ApiError> {
    refuse(409, "Conflict", message)
}

pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// UID of the controlling owner.
pub fn controller(object: &Value) -> &str {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().find(|o| o["controller"] == true).map_or("", |o| text(o, "/uid"))
}

/// How many finalizers an object has; a namespace has them in its spec, too.
fn finalizers(object: &Value) -> usize {
    let all = ["/metadata/finalizers", "/spec/finalizers"].into_iter();
    all.filter_map(|at| object.pointer(at).and_then(Value::as_array)).map(Vec::len).sum()
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().and_then(|fields| fields.remove(key));
        } else {
            merge(&mut target[key], change);
        }
    }
}

impl Api {
    /// Objects of a kind.
    pub fn all<'a>(&'a self, plural: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |(path, _)| path.plural == plural).map(|(_, object)| object)
    }
    fn write(&mut self, path: &Path, kind: &'static str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let before = match kind {
            "DELETED" => self.objects.remove(path),
            _ => self.objects.insert(path.clone(), object.clone()),
        };
        // Nobody watches for renewals, and they never end.
        let term = |lease: &Value| number(lease, "/spec/leaseTransitions");
        if path.plural == "leases" && before.is_some_and(|before| term(&before) == term(&object)) {
            return object;
        }
        self.log.push(Change { revision: self.revision, path: path.clone(), kind, object: object.clone() });
        object
    }
    /// Puts an object there as it is.
    pub fn create(&mut self, collection: &Path, mut object: Value) -> Reply {
        let path = collection.of(text(&object, "/metadata/name"));
        if self.objects.contains_key(&path) {
            return refuse(409, "AlreadyExists", "it is there already");
        }
        let namespace =
            Path { api: "api/v1".into(), plural: "namespaces".into(), ..Path::default() }.of(&path.namespace);
        match self.objects.get(&namespace) {
            _ if path.namespace.is_empty() => {}
            None => return refuse(404, "NotFound", "there is no such namespace"),
            Some(found) if is_deleting(found) => {
                let details = json!({"causes": [{"reason": NAMESPACE_TERMINATING}]});
                let error = StatusError { code: 403, reason: "Forbidden".into(), details, ..StatusError::default() };
                return Err(ApiError::Status(Box::new(error)));
            }
            Some(_) => {}
        }
        let born = self.born.entry(path.clone()).or_default();
        *born += 1;
        let meta = &mut object["metadata"];
        meta["uid"] = format!("{}-{}-{born}", path.plural, path.name).into();
        meta["creationTimestamp"] = self.now.rfc3339().into();
        meta["generation"] = 1.into();
        if !path.namespace.is_empty() {
            meta["namespace"] = path.namespace.clone().into();
        }
        match path.plural.as_str() {
            "pods" => object["status"] = json!({"phase": "Pending"}),
            "jobs" => chosen_by_uid(&mut object),
            _ => {}
        }
        Ok(self.write(&path, "ADDED", object))
    }
    /// Stores a changed object; one that waited for its finalizers alone is gone then.
    pub fn change(&mut self, path: &Path, mut object: Value) -> Reply {
        let Some(before) = self.objects.get(path) else { return refuse(404, "NotFound", "it is not there") };
        if *before == object {
            return Ok(object);
        }
        if before["spec"] != object["spec"] {
            object["metadata"]["generation"] = (number(before, "/metadata/generation") + 1).into();
        }
        let over = path.plural != "pods" || object["metadata"]["deletionGracePeriodSeconds"] == 0;
        let kind = if is_deleting(&object) && finalizers(&object) == 0 && over { "DELETED" } else { "MODIFIED" };
        Ok(self.write(path, kind, object))
    }
    /// Deletes an object, or asks it to go.
    pub fn delete(&mut self, path: &Path, options: &Value) -> Reply {
        let Some(before) = self.objects.get(path) else { return refuse(404, "NotFound", "it is not there") };
        let mut object = before.clone();
        for field in ["uid", "resourceVersion"] {
            let wanted = &options["preconditions"][field];
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return conflict("a precondition of the deletion does not hold");
            }
        }
        let finalizer = match text(options, "/propagationPolicy") {
            "Foreground" => Some("foregroundDeletion"),
            "Orphan" => Some("orphan"),
            _ => None,
        };
        let meta = &mut object["metadata"];
        if let Some(finalizer) = finalizer
            && meta["deletionTimestamp"].is_null()
        {
            let mut list = meta["finalizers"].as_array().cloned().unwrap_or_default();
            list.push(finalizer.into());
            meta["finalizers"] = list.into();
        }
        // A pod on a node is its node's to remove.
        let ended = matches!(text(&object, "/status/phase"), "Succeeded" | "Failed");
        let at_once = path.plural != "pods"
            || options["gracePeriodSeconds"] == 0
            || text(&object, "/spec/nodeName").is_empty()
            || ended;
        if at_once && finalizers(&object) == 0 {
            return Ok(self.write(path, "DELETED", object));
        }
        let meta = &mut object["metadata"];
        if meta["deletionTimestamp"].is_null() {
            meta["deletionTimestamp"] = self.now.rfc3339().into();
        }
        if path.plural == "pods" {
            meta["deletionGracePeriodSeconds"] = if at_once { 0.into() } else { 30.into() };
        }
        self.change(path, object)
    }
    fn rests_on(&self, premise: &Premise) -> bool {
        let there = self.objects.iter().find(|(path, _)| {
            path.plural == premise.resource && path.namespace == premise.namespace && path.name == premise.name
        });
        match there {
            None => premise.uid.is_none(),
            Some((_, object)) => {
                let generation = object["metadata"]["generation"].as_i64();
                let term = premise
                    .term
                    .as_ref()
                    .and_then(|_| Term::of(&carrack_types::json::from_value::<Lease>(object.clone()).ok()?));
                premise.holds(uid(object), text(object, "/metadata/resourceVersion"), generation, term.as_ref())
            }
        }
    }
    fn update(&mut self, path: &Path, new: &Value) -> Reply {
        let whole = path.of(&path.name);
        let Some(before) = self.objects.get(&whole) else { return refuse(404, "NotFound", "it is not there") };
        for field in ["uid", "resourceVersion"] {
            let wanted = &new["metadata"][field];
            if !wanted.is_null() && *wanted != before["metadata"][field] {
                return conflict("it has changed");
            }
        }
        let mut object = if path.sub == "status" { before.clone() } else { new.clone() };
        let status = if path.sub == "status" { &new["status"] } else { &before["status"] };
        object["status"] = status.clone();
        for field in ["uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp"] {
            object["metadata"][field] = before["metadata"][field].clone();
        }
        let fields = [("metadata", None), ("status", Some(()))];
        for (part, whole) in fields {
            let empty = object[part].as_object_mut().map(|map| {
                map.retain(|_, value| !value.is_null());
                map.is_empty()
            });
            if whole.is_some() && empty != Some(false) {
                object.as_object_mut().and_then(|map| map.remove(part));
            }
        }
        self.change(&whole, object)
    }
    fn patch(&mut self, path: &Path, patch: &Value) -> Reply {
        let whole = path.of(&path.name);
        let Some(before) = self.objects.get(&whole) else { return refuse(404, "NotFound", "it is not there") };
        for field in ["uid", "resourceVersion"] {
            let wanted = &patch["metadata"][field];
            if !wanted.is_null() && *wanted != before["metadata"][field] {
                return conflict("it has changed");
            }
        }
        let mut new = before.clone();
        merge(&mut new, patch);
        self.update(path, &new)
    }
    fn discovery(&self) -> Value {
        let meters = json!({"resource": "meters", "responseKind": {"kind": "Meter"}, "scope": "Namespaced",
            "verbs": ["get", "list", "watch", "patch", "delete"]});
        let (freshness, resources) = if self.silent { ("Stale", json!([])) } else { ("Current", json!([meters])) };
        let versions = json!([{"version": "v1", "freshness": freshness, "resources": resources}]);
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "meters.example.com"}, "versions": versions}]})
    }
    /// Answers a request.
    pub fn serve(&mut self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let path = Path::read(&request.path);
        let body = || serde_json::from_slice::<Value>(&request.body).unwrap_or_default();
        if !request.rests_on.iter().all(|premise| self.rests_on(premise)) {
            return conflict("the request rests on what is not so");
        }
        if path.api == METERS && self.silent {
            return refuse(503, "ServiceUnavailable", "the other server does not answer");
        }
        let reply = match request.method {
            Method::Get if path.api == "apis" => self.discovery(),
            // Nobody reads them.
            Method::Delete if path.plural == "events" => json!({}),
            Method::Post | Method::Patch | Method::Put if path.plural == "events" => body(),
            Method::Get if path.name.is_empty() => {
                let items: Vec<&Value> =
                    self.objects.iter().filter(|(at, _)| path.has(at)).map(|(_, object)| object).collect();
                json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items})
            }
            Method::Get => match self.objects.get(&path) {
                Some(object) => object.clone(),
                None => return refuse(404, "NotFound", "it is not there"),
            },
            Method::Post if path.name.is_empty() => self.create(&path, body())?,
            Method::Put => self.update(&path, &body())?,
            Method::Patch => self.patch(&path, &body())?,
            Method::Delete => self.delete(&path, &body())?,
            Method::Post => return refuse(405, "MethodNotAllowed", "there is no such thing"),
        };
        Ok(ApiResponse { status: 200, body: Bytes::from(reply.to_string()) })
    }
}

/// A Job's pods are chosen by its UID (registry/batch/job, `generateSelector`).
fn chosen_by_uid(job: &mut Value) {
    let labels = json!({"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]});
    merge(&mut job["spec"]["template"]["metadata"]["labels"], &labels);
    job["spec"]["selector"] = json!({"matchLabels": labels});
}
