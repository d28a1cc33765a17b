//! The audit log: who asked for what, when, and what came of it, one JSON object (`audit.k8s.io/v1
//! Event`) a stage.
//!
//! What is noted is decided by the [`Policy`]; where it goes is the [`AuditSink`]'s. Secrets, tokens and
//! their like are never noted beyond their names.

mod policy;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use carrack_auth::Caller;
use futures::Stream;
use http::{HeaderMap, HeaderValue};
use jiff::SignedDuration;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Map, Value, json};

use crate::body::{Body, Lines, Response};
use crate::env::{Env, new_uid};
use crate::object::{Object, meta_str};
use crate::part;
use crate::route::RequestInfo;
use crate::server::{Acting, Inner};

use policy::Decision;
pub use policy::{Level, Policy, Stage};

/// The header that names the event of a request.
pub(crate) const AUDIT_ID: &str = "audit-id";
/// Bodies that are longer are left out, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Takes audit events in.
pub trait AuditSink: Send + Sync {
    /// Takes one event, a line of JSON without its end.
    ///
    /// # Errors
    /// It is lost.
    fn write(&self, line: &str) -> std::io::Result<()>;
}

/// Notes requests.
#[derive(Clone)]
pub struct Audit {
    /// What is noted.
    pub policy: Arc<Policy>,
    /// Where to.
    pub sink: Arc<dyn AuditSink>,
}

/// Where a request came from, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub std::net::IpAddr);

/// What becomes known of a request on its way.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// How much of it is noted.
    level: Level,
    /// The name of its event; none when it is not noted.
    id: Option<String>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether it was allowed, and why.
    allowed: Option<(bool, String)>,
    /// What admission says of it.
    annotations: BTreeMap<String, String>,
    /// For how long webhooks were waited for.
    elsewhere: SignedDuration,
    /// What the object that was sent says of itself.
    reference: BTreeMap<&'static str, String>,
    /// What was sent.
    sent: Option<Value>,
}

impl Notes {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody reads them.
    pub(crate) fn is_noted(&self) -> bool {
        self.level > Level::None
    }

    /// The name under which all servers that see the request note it: it has one also where this one notes nothing.
    pub(crate) fn id(&self, env: &dyn Env, headers: &HeaderMap) -> String {
        self.id.clone().unwrap_or_else(|| audit_id(env, headers))
    }

    /// Whether it was allowed, and why.
    pub(crate) fn decided(&self, allowed: bool, why: &str) {
        self.known().allowed = Some((allowed, why.to_owned()));
    }

    /// Adds an annotation. What is already there stays: upstream never overwrites one
    /// (`k8s.io/apiserver/pkg/audit/context.go`, `AddAuditAnnotation`).
    pub(crate) fn annotate(&self, key: String, value: impl Into<String>) {
        self.known().annotations.entry(key).or_insert_with(|| value.into());
    }

    /// Webhooks were waited for so long.
    pub(crate) fn waited(&self, time: SignedDuration) {
        let mut known = self.known();
        known.elsewhere = known.elsewhere.saturating_add(time);
    }

    /// For how long webhooks were waited for.
    pub(crate) fn elsewhere(&self) -> SignedDuration {
        self.known().elsewhere
    }

    /// An object was sent in so many bytes, as it was read of whatever encoding; `complete` adds what it goes without saying.
    pub(crate) fn sent(&self, object: &Object, size_bytes: usize, complete: impl FnOnce(&mut Object)) {
        if !self.is_noted() {
            return;
        }
        let fields = ["namespace", "name", "uid", "resourceVersion"].map(|field| (field, meta_str(object, field)));
        let said = fields.into_iter().filter(|(_, said)| !said.is_empty());
        let reference = said.map(|(field, said)| (field, said.to_owned())).collect();
        let sent = (self.level >= Level::Request && size_bytes <= MAX_BODY_BYTES).then(|| {
            let mut object = object.clone();
            complete(&mut object);
            Value::Object(object)
        });
        let mut known = self.known();
        (known.reference, known.sent) = (reference, sent);
    }

    /// A patch was sent, or what only the code behind it can read; what is no JSON is left out.
    pub(crate) fn sent_as_is(&self, body: &[u8]) {
        if self.level >= Level::Request && body.len() <= MAX_BODY_BYTES {
            self.known().sent = serde_json::from_slice(body).ok();
        }
    }
}

/// A request that is being noted.
pub(crate) struct Record {
    audit: Audit,
    env: Arc<dyn Env>,
    /// Counts events, and those of them that are lost.
    events: [Counter; 2],
    decision: Decision,
    event: Map<String, Value>,
    notes: Arc<Notes>,
    /// What became of it has been noted, or will be by somebody else.
    ended: bool,
}

/// Who goes away before there is an answer, or takes too long, may have changed something all the same.
impl Drop for Record {
    fn drop(&mut self) {
        if !self.ended {
            self.fill();
            let message = "the request was given up before it was answered";
            let status = json!({
                "metadata": {}, "status": "Failure", "message": message, "reason": "Timeout", "code": 504,
            });
            self.stage(Stage::ResponseComplete, Some(status));
        }
    }
}

/// The lines of a watch, whose end is noted, however it comes.
struct Noted {
    lines: Lines,
    record: Record,
    status: Value,
}

impl Stream for Noted {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.get_mut().lines.as_mut().poll_next(cx)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let status = self.status.take();
        self.record.stage(Stage::ResponseComplete, Some(status));
    }
}

impl Audit {
    /// Begins with a request; none when it is not noted.
    pub(crate) fn begin(
        &self,
        server: &Inner,
        acting: &Acting,
        info: &RequestInfo,
        parts: &http::request::Parts,
    ) -> Option<Record> {
        let real = acting.real.as_ref().unwrap_or(&acting.caller);
        let decision = self.policy.decide(real, info);
        server.metrics.access.noted(decision.level);
        let env = &server.env;
        if decision.level == Level::None {
            return None;
        }
        let mut event = Map::new();
        let mut put = |key: &str, value: Value| event.insert(key.to_owned(), value);
        put("kind", "Event".into());
        put("apiVersion", "audit.k8s.io/v1".into());
        put("level", decision.level.text().into());
        let id = audit_id(&**env, &parts.headers);
        put("auditID", id.as_str().into());
        put("requestURI", parts.uri.path_and_query().map_or(info.path.as_str(), |uri| uri.as_str()).into());
        put("verb", info.verb.into());
        put("user", user(real));
        if acting.real.is_some() {
            put("impersonatedUser", user(&acting.caller));
        }
        if let Some(constraint) = acting.constraint {
            put("authenticationMetadata", json!({"impersonationConstraint": constraint}));
        }
        if let Some(Source(address)) = parts.extensions.get::<Source>() {
            put("sourceIPs", json!([address.to_string()]));
        }
        if let Some(agent) = parts.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok()) {
            put("userAgent", agent.into());
        }
        if let Some(reference) = reference(info) {
            put("objectRef", reference);
        }
        put("requestReceivedTimestamp", micros(&**env).into());
        let events = server.metrics.access.events();
        let notes = Arc::new(Notes { level: decision.level, id: Some(id), known: Mutex::default() });
        let (audit, env) = (self.clone(), Arc::clone(env));
        let mut record = Record { audit, env, events, decision, event, notes, ended: false };
        record.stage(Stage::RequestReceived, None);
        Some(record)
    }
}

/// How a client tried to say who it is.
fn attempted(headers: &HeaderMap) -> String {
    let given = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scheme = given.and_then(|value| value.split_whitespace().next()).map(str::to_ascii_lowercase);
    match scheme.as_deref() {
        Some(known @ ("basic" | "bearer")) => format!("attempted: [{known}]"),
        _ => "no valid credentials found".to_owned(),
    }
}

impl Record {
    /// Where is written down what becomes known of the request.
    pub(crate) fn notes(&self) -> Arc<Notes> {
        Arc::clone(&self.notes)
    }

    /// Ends with the refusal of a request of which nobody knows whose it is.
    pub(crate) fn end_unauthenticated(mut self, headers: &HeaderMap) {
        self.ended = true;
        let message = format!("Authentication failed, {}", attempted(headers));
        self.event.insert("user".to_owned(), json!({}));
        let status = json!({
            "metadata": {}, "status": "Failure", "message": message, "reason": "Unauthorized", "code": 401,
        });
        self.stage(Stage::ResponseStarted, Some(status));
    }

    /// Ends with a reply, which names the event; that of a watch ends later.
    pub(crate) fn end(mut self, mut response: Response) -> Response {
        self.ended = true;
        if let Some(id) = self.notes.id.as_ref().and_then(|id| id.parse().ok()) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        self.fill();
        let stage = match response.body() {
            Body::Watch { .. } | Body::Node(_) | Body::Remote(_) | Body::Upgrade(_) => Stage::ResponseStarted,
            Body::Full(bytes) if self.decision.level >= Level::RequestResponse => {
                self.body("responseObject", bytes);
                Stage::ResponseComplete
            }
            Body::Parts(parts) if self.decision.level >= Level::RequestResponse => {
                if part::size_bytes(parts) <= MAX_BODY_BYTES {
                    self.body("responseObject", &part::joined(parts));
                }
                Stage::ResponseComplete
            }
            Body::Full(_) | Body::Parts(_) => Stage::ResponseComplete,
        };
        let status = outcome(&response);
        self.stage(stage, Some(status.clone()));
        let (head, body) = response.into_parts();
        let body = match body {
            Body::Watch { lines, timeout_s } => {
                Body::Watch { lines: Box::pin(Noted { lines, record: self, status }), timeout_s }
            }
            other => other,
        };
        Response::from_parts(head, body)
    }

    /// Takes over what has become known.
    fn fill(&mut self) {
        let Known { allowed, mut annotations, reference, sent, .. } = std::mem::take(&mut *self.notes.known());
        if let Some((allowed, reason)) = allowed {
            let decision = if allowed { "allow" } else { "forbid" };
            annotations.insert("authorization.k8s.io/decision".to_owned(), decision.to_owned());
            annotations.insert("authorization.k8s.io/reason".to_owned(), reason);
        }
        if !annotations.is_empty() {
            self.event.insert("annotations".to_owned(), json!(annotations));
        }
        if let Some(object) = self.event.get_mut("objectRef").and_then(Value::as_object_mut) {
            for (field, said) in reference {
                object.entry(field).or_insert_with(|| said.into());
            }
        }
        if let Some(sent) = sent {
            self.object("requestObject", sent);
        }
    }

    fn body(&mut self, field: &str, bytes: &[u8]) {
        if bytes.len() > MAX_BODY_BYTES {
            return;
        }
        // What is no JSON is left out.
        if let Ok(object) = serde_json::from_slice(bytes) {
            self.object(field, object);
        }
    }

    fn object(&mut self, field: &str, mut object: Value) {
        if self.decision.omit_managed_fields
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.remove("managedFields");
        }
        self.event.insert(field.to_owned(), object);
    }

    fn stage(&mut self, stage: Stage, status: Option<Value>) {
        if self.decision.omit_stages.contains(&stage) {
            return;
        }
        self.event.insert("stage".to_owned(), stage.text().into());
        self.event.insert("stageTimestamp".to_owned(), micros(&*self.env).into());
        if let Some(status) = status {
            self.event.insert("responseStatus".to_owned(), status);
        }
        let [all, lost] = &self.events;
        all.inc();
        // Writing a tree of JSON values to memory cannot fail.
        let line = serde_json::to_string(&self.event).unwrap_or_default();
        if let Err(error) = self.audit.sink.write(&line) {
            lost.inc();
            tracing::error!(%error, "an audit event is lost");
        }
    }
}

/// What came of a request: where the reply is a `Status`, what that says, at any level
/// (`k8s.io/apiserver/pkg/audit/request.go`, `LogResponseObject`).
fn outcome(response: &Response) -> Value {
    let code = response.status().as_u16();
    let mut outcome = json!({"metadata": {}, "code": code});
    // Nothing else has a code there.
    if let Body::Full(bytes) = response.body()
        && (code >= 400 || bytes.starts_with(b"{\"apiVersion\":\"v1\",\"code\":"))
        && let Ok(Value::Object(mut told)) = serde_json::from_slice(bytes)
        && told.get("kind").is_some_and(|kind| kind == "Status")
    {
        for field in ["status", "message", "reason", "details"] {
            if let Some(value) = told.remove(field) {
                outcome[field] = value;
            }
        }
    }
    outcome
}

/// Names the event of a request that has come from outside, whether or not it is noted: whoever sees the request from now on
/// finds the name in its head, and the reply says it, too (`k8s.io/apiserver/pkg/endpoints/filters/audit_init.go`).
pub(crate) fn name(env: &dyn Env, headers: &mut HeaderMap) -> Option<HeaderValue> {
    let id = HeaderValue::try_from(audit_id(env, headers)).ok()?;
    headers.insert(AUDIT_ID, id.clone());
    Some(id)
}

/// The client's own id of the request, or a new one.
fn audit_id(env: &dyn Env, headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty() && id.len() <= 64);
    given.map_or_else(|| new_uid(env), str::to_owned)
}

fn micros(env: &dyn Env) -> String {
    env.now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn user(caller: &Caller) -> Value {
    let mut user = json!({"username": caller.user, "groups": caller.groups});
    if !caller.uid.is_empty() {
        user["uid"] = caller.uid.clone().into();
    }
    if !caller.extra.is_empty() {
        user["extra"] = json!(caller.extra);
    }
    user
}

/// What the path says of the object; a new one says the rest itself.
fn reference(info: &RequestInfo) -> Option<Value> {
    let request = info.resource.as_ref()?;
    let mut reference = Map::new();
    let fields = [
        ("resource", Some(request.resource.as_str())),
        ("namespace", request.namespace.as_deref()),
        ("name", request.name.as_deref()),
        ("apiGroup", Some(request.group.as_str())),
        ("apiVersion", Some(request.version.as_str())),
        ("subresource", request.subresource.as_deref()),
    ];
    for (field, value) in fields {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            reference.insert(field.to_owned(), value.into());
        }
    }
    Some(Value::Object(reference))
}
