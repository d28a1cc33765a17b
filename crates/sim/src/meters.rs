//! Another server behind the API server: it keeps meters, which can be listed and cannot be watched, and now and then nobody
//! hears of what it serves.
//!
//! Like servers of its kind it takes no new objects in a namespace that is to go; else nobody could ever say that one is empty.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use carrack_apiserver::{Answer, Call, CallError, Calling};
use carrack_engine::{ApiError, ApiRequest, ApiResponse, Method, Rng, StatusError};
use carrack_types::resource::Resource;
use serde_json::{Value, json};

use crate::observer::{Observer, deleting, uid};

const GROUP: &str = "meters.example.com";
const VERSION: &str = "/apis/meters.example.com/v1";
/// Discovery fails once in so many times, as long as anything may fail.
const SILENT_ONE_IN: u64 = 4;

/// The server.
pub(crate) struct Meters(Mutex<State>);

struct State {
    /// By namespace and name.
    objects: BTreeMap<(String, String), Value>,
    revision: u64,
    rng: Rng,
    may_fail: bool,
}

/// The resource that it serves.
pub(crate) fn resource() -> Resource {
    Resource {
        group: GROUP.into(),
        version: "v1".into(),
        plural: "meters".into(),
        kind: "Meter".into(),
        namespaced: true,
    }
}

/// Whether a request is for it.
pub(crate) fn is_asked(request: &ApiRequest) -> bool {
    request.path.strip_prefix(VERSION).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a call of the API server is for it.
pub(crate) fn is_called(call: &Call) -> bool {
    call.path_and_query.starts_with(VERSION)
}

/// The collections and the objects by which the API server knows of it.
pub(crate) fn configuration() -> Vec<(String, Value)> {
    let service = json!({"metadata": {"name": "meters"},
        "spec": {"type": "ExternalName", "externalName": "meters.example.com"}});
    let api = json!({"metadata": {"name": format!("v1.{GROUP}")}, "spec": {"group": GROUP, "version": "v1",
        "groupPriorityMinimum": 100, "versionPriority": 100, "service": {"namespace": "default", "name": "meters"}}});
    vec![
        ("/api/v1/namespaces/default/services".to_owned(), service),
        ("/apis/apiregistration.k8s.io/v1/apiservices".to_owned(), api),
    ]
}

fn refuse(code: u16, reason: &str, message: &str) -> ApiError {
    let (reason, message) = (reason.to_owned(), message.to_owned());
    ApiError::Status(Box::new(StatusError { code, reason, message, ..StatusError::default() }))
}

impl Meters {
    pub(crate) fn new(rng: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { objects: BTreeMap::new(), revision: 0, rng, may_fail: false })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws other chances from here on.
    pub(crate) fn reseed(&self, rng: Rng) {
        self.lock().rng = rng;
    }

    /// Whether its discovery may fail from now on.
    pub(crate) fn may_fail(&self, may: bool) {
        self.lock().may_fail = may;
    }

    /// What it serves, for the API server.
    pub(crate) fn discovery(&self) -> Calling {
        let silent = {
            let State { rng, may_fail, .. } = &mut *self.lock();
            *may_fail && rng.one_in(SILENT_ONE_IN)
        };
        let meters = json!({"name": "meters", "singularName": "meter", "namespaced": true, "kind": "Meter",
            "verbs": ["create", "delete", "get", "list", "patch"]});
        let list = json!({"kind": "APIResourceList", "groupVersion": format!("{GROUP}/v1"), "resources": [meters]});
        let answer = Answer { code: 200, headers: http::HeaderMap::new(), body: Bytes::from(list.to_string()) };
        Box::pin(std::future::ready(if silent { Err(CallError::Timeout) } else { Ok(answer) }))
    }

    /// Answers a request.
    pub(crate) fn serve(&self, request: &ApiRequest, observer: &Observer) -> Result<ApiResponse, ApiError> {
        let mut state = self.lock();
        let path = request.path.split('?').next().unwrap_or_default();
        let parts: Vec<&str> = path.strip_prefix(VERSION).unwrap_or_default().split('/').skip(1).collect();
        let (namespace, name) = match parts[..] {
            ["namespaces", namespace, "meters"] => (namespace, ""),
            ["namespaces", namespace, "meters", name] => (namespace, name),
            _ => ("", ""),
        };
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let place = (namespace.to_owned(), name.to_owned());
        let not_found = || refuse(404, "NotFound", "there is no such meter");
        let reply = match (request.method, name) {
            (Method::Get, "") => {
                let here = |(of, _): &(String, String)| namespace.is_empty() || of == namespace;
                let items: Vec<&Value> = state.objects.iter().filter(|(at, _)| here(at)).map(|(_, o)| o).collect();
                // As servers that are built on k8s.io/apiserver answer who wants metadata alone.
                let items = if items.is_empty() { Value::Null } else { json!(items) };
                json!({"metadata": {"resourceVersion": state.revision.to_string()}, "items": items})
            }
            (Method::Get, _) => state.objects.get(&place).cloned().ok_or_else(not_found)?,
            (Method::Post, "") => {
                let there = observer.get("namespace", namespace).is_some_and(|found| !deleting(found));
                if !there {
                    return Err(refuse(403, "Forbidden", "the namespace is being terminated"));
                }
                state.create(namespace, body)?
            }
            (Method::Delete, name) if !name.is_empty() => {
                let there = state.objects.get(&place).ok_or_else(not_found)?;
                let wanted = &body["preconditions"];
                let version = &wanted["resourceVersion"];
                if wanted["uid"].as_str().is_some_and(|wanted| wanted != uid(there))
                    || !version.is_null() && *version != there["metadata"]["resourceVersion"]
                {
                    return Err(refuse(409, "Conflict", "it is another one"));
                }
                state.revision += 1;
                state.objects.remove(&place);
                json!({"kind": "Status", "status": "Success"})
            }
            _ => return Err(refuse(405, "MethodNotAllowed", "meters cannot do that")),
        };
        Ok(ApiResponse { status: 200, body: Bytes::from(reply.to_string()) })
    }

    /// A meter in a namespace.
    pub(crate) fn any_in(&self, namespace: &str) -> Option<String> {
        self.lock().objects.keys().find(|(of, _)| of == namespace).map(|(_, name)| name.clone())
    }
}

impl State {
    fn create(&mut self, namespace: &str, mut object: Value) -> Result<Value, ApiError> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let place = (namespace.to_owned(), name);
        if self.objects.contains_key(&place) {
            return Err(refuse(409, "AlreadyExists", "there is one already"));
        }
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        object["metadata"]["uid"] = format!("meter-{}", self.revision).into();
        self.objects.insert(place, object.clone());
        Ok(object)
    }
}
