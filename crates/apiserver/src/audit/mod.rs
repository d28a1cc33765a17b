//! The audit log: who asked for what, when, and what came of it, one JSON object (`audit.k8s.io/v1
//! Event`) a stage.
//!
//! What is noted is decided by the [`Policy`]; where it goes is the [`AuditSink`]'s. Secrets, tokens and
//! their like are never noted beyond their names.

mod policy;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use carrack_auth::Caller;
use futures::Stream;
use http::HeaderMap;
use jiff::SignedDuration;
use prometheus_client::metrics::counter::Counter;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::body::{Body, Lines, Response};
use crate::env::{Env, new_uid};
use crate::part;
use crate::route::RequestInfo;
use crate::server::{Acting, Inner};

use policy::Decision;
pub use policy::{Level, Policy, Stage};

/// The header that names the event of a request.
const AUDIT_ID: &str = "audit-id";
/// Bodies that are longer are left out, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Takes audit events in.
pub trait AuditSink: Send + Sync {
    /// Takes one event, a line of JSON without its end.
    fn write(&self, line: &str);
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

/// What became known of a request on its way.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Whether it was allowed, and why.
    pub allowed: Option<(bool, String)>,
    /// What admission says of it.
    pub annotations: BTreeMap<String, String>,
    /// For how long webhooks were waited for.
    pub elsewhere: SignedDuration,
}

/// A request that is being noted.
pub(crate) struct Record {
    audit: Audit,
    env: Arc<dyn Env>,
    /// Counts what is written.
    written: Counter,
    decision: Decision,
    event: Map<String, Value>,
    /// What became of it has been noted, or will be by somebody else.
    ended: bool,
}

/// Who goes away before there is an answer, or takes too long, may have changed something all the same.
impl Drop for Record {
    fn drop(&mut self) {
        if !self.ended {
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
        body: &[u8],
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
        put("auditID", audit_id(&**env, &parts.headers).into());
        put("requestURI", parts.uri.path_and_query().map_or(info.path.as_str(), |uri| uri.as_str()).into());
        put("verb", info.verb.into());
        put("user", user(real));
        if acting.real.is_some() {
            put("impersonatedUser", user(&acting.caller));
        }
        if let Some(Source(address)) = parts.extensions.get::<Source>() {
            put("sourceIPs", json!([address.to_string()]));
        }
        if let Some(agent) = parts.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok()) {
            put("userAgent", agent.into());
        }
        if let Some(reference) = reference(info, body) {
            put("objectRef", reference);
        }
        put("requestReceivedTimestamp", micros(&**env).into());
        let written = server.metrics.access.events();
        let mut record = Record { audit: self.clone(), env: Arc::clone(env), written, decision, event, ended: false };
        record.stage(Stage::RequestReceived, None);
        if record.decision.level >= Level::Request && !matches!(info.verb, "get" | "list" | "watch") {
            record.body("requestObject", body);
        }
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
    pub(crate) fn end(mut self, notes: &Notes, mut response: Response) -> Response {
        self.ended = true;
        if let Some(id) = self.event.get("auditID").and_then(Value::as_str).and_then(|id| id.parse().ok()) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        let mut annotations = json!(notes.annotations);
        if let Some((allowed, reason)) = &notes.allowed {
            let decision = if *allowed { "allow" } else { "forbid" };
            annotations["authorization.k8s.io/decision"] = decision.into();
            annotations["authorization.k8s.io/reason"] = reason.as_str().into();
        }
        if annotations.as_object().is_some_and(|annotations| !annotations.is_empty()) {
            self.event.insert("annotations".to_owned(), annotations);
        }
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
        let status = json!({"metadata": {}, "code": response.status().as_u16()});
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

    fn body(&mut self, field: &str, bytes: &[u8]) {
        if bytes.len() > MAX_BODY_BYTES {
            return;
        }
        // What is no JSON is left out.
        let Ok(mut object) = serde_json::from_slice::<Value>(bytes) else { return };
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
        self.written.inc();
        // Writing a tree of JSON values to memory cannot fail.
        self.audit.sink.write(&serde_json::to_string(&self.event).unwrap_or_default());
    }
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

/// The metadata of an object that is sent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sent {
    metadata: SentMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentMetadata {
    name: String,
}

fn reference(info: &RequestInfo, body: &[u8]) -> Option<Value> {
    let request = info.resource.as_ref()?;
    let mut reference = Map::new();
    // The path of a new object does not name it. What is not JSON goes without.
    let made = info.verb == "create" && request.name.is_none();
    let sent = made.then(|| serde_json::from_slice::<Sent>(body).unwrap_or_default().metadata.name);
    let fields = [
        ("resource", Some(request.resource.as_str())),
        ("namespace", request.namespace.as_deref()),
        ("name", request.name.as_deref().or(sent.as_deref())),
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
