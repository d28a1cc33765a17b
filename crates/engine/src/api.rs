//! Requests to the API server, and its replies, as values.

use std::fmt::Write as _;

use bytes::Bytes;
use carrack_types::json::Json;
use carrack_types::resource::{Kind, Object, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Premise;

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
}

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// A JSON object.
    Json,
    /// RFC 6902.
    JsonPatch,
    /// RFC 7386.
    MergePatch,
    /// Kubernetes' own merge patch.
    StrategicMergePatch,
}

impl ContentType {
    /// Its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::JsonPatch => "application/json-patch+json",
            Self::MergePatch => "application/merge-patch+json",
            Self::StrategicMergePatch => "application/strategic-merge-patch+json",
        }
    }
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiRequest {
    /// HTTP method.
    pub method: Method,
    /// URL path with its query.
    pub path: String,
    /// What the body is.
    pub content_type: ContentType,
    /// The body; empty for none.
    pub body: Bytes,
    /// Ask for object metadata alone (`PartialObjectMetadata`).
    pub metadata_only: bool,
    /// Other objects that a write rests on.
    pub rests_on: Vec<Premise>,
    /// Nobody reads what is answered when it was done: the answer may come without a body.
    pub unread: bool,
}

/// Which objects of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// Only in this namespace; all when empty.
    pub namespace: String,
    /// A label selector, in its text form; all when empty.
    pub labels: String,
    /// A field selector, in its text form; all when empty.
    pub fields: String,
}

impl Selector {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }
    /// By field selector.
    #[must_use]
    pub fn fields(fields: impl Into<String>) -> Self {
        Self { fields: fields.into(), ..Self::default() }
    }
    /// By label selector.
    #[must_use]
    pub fn labels(labels: impl Into<String>) -> Self {
        Self { labels: labels.into(), ..Self::default() }
    }
    /// Whether it selects everything that there is in a namespace.
    #[must_use]
    pub fn is_all_of(&self, namespace: &str) -> bool {
        let Self { namespace: only, labels, fields } = self;
        labels.is_empty() && fields.is_empty() && (only.is_empty() || only == namespace)
    }
    /// Whether it selects everything that there is where it selects at all: in its namespace, or in every one.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_all_of(&self.namespace)
    }
    /// Whether it selects everything.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// What must hold of an object for it to be deleted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Only the object with this UID.
    pub uid: Option<String>,
    /// Only at this resourceVersion.
    pub resource_version: Option<String>,
    /// Seconds; none is the object's own default.
    pub grace_period_s: Option<i64>,
    /// `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<&'static str>,
}

impl DeleteOptions {
    /// Only this object, and as it was read.
    #[must_use]
    pub fn unchanged(object: &impl Object) -> Self {
        Self {
            uid: Some(object.uid().to_owned()),
            resource_version: object.meta().resource_version.clone(),
            ..Self::default()
        }
    }
}

/// Encodes a query value.
#[must_use]
pub fn query_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            // Writing to a String cannot fail.
            write!(out, "%{b:02X}").unwrap_or_default();
        }
    }
    out
}

fn json<T: Serialize + ?Sized>(value: &T) -> Bytes {
    // Our own types have string keys and no failing serializers.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Puts the type's `apiVersion` and `kind` in front of its own fields.
#[must_use]
pub fn to_value<K: Kind>(object: &K) -> Value {
    let mut value = object.to_value().unwrap_or_default();
    let resource = K::resource();
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".into(), resource.api_version().into());
        map.insert("kind".into(), resource.kind.into());
    }
    value
}

impl ApiRequest {
    /// A request with no body.
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            content_type: ContentType::Json,
            body: Bytes::new(),
            metadata_only: false,
            rests_on: Vec::new(),
            unread: false,
        }
    }
    fn with_body(mut self, content_type: ContentType, body: Bytes) -> Self {
        self.content_type = content_type;
        self.body = body;
        self
    }
    /// Reads one object.
    #[must_use]
    pub fn get(resource: &Resource, namespace: &str, name: &str) -> Self {
        Self::new(Method::Get, resource.object_path(namespace, name))
    }
    /// Reads a page of a collection, the newest state. `limit` 0 is no limit.
    #[must_use]
    pub fn list(resource: &Resource, selector: &Selector, limit: usize, continue_token: &str) -> Self {
        if let Some(request) = crate::discovery::request(resource) {
            return request;
        }
        let mut query = selector_query(selector);
        if limit > 0 {
            write!(query, "&limit={limit}").unwrap_or_default();
        }
        if !continue_token.is_empty() {
            write!(query, "&continue={}", query_escape(continue_token)).unwrap_or_default();
        }
        Self::new(Method::Get, with_query(resource.collection_path(&selector.namespace), &query))
    }
    /// Watches a collection for changes after a resourceVersion, with bookmarks.
    #[must_use]
    pub fn watch(resource: &Resource, selector: &Selector, after: &str, timeout_s: u64) -> Self {
        let query = format!(
            "{}&watch=true&allowWatchBookmarks=true&resourceVersion={after}&timeoutSeconds={timeout_s}",
            selector_query(selector)
        );
        Self::new(Method::Get, with_query(resource.collection_path(&selector.namespace), &query))
    }
    /// Creates an object.
    #[must_use]
    pub fn create<K: Kind>(object: &K) -> Self {
        Self::create_value(&K::resource(), object.namespace(), &to_value(object))
    }
    /// Creates an object given as JSON.
    #[must_use]
    pub fn create_value(resource: &Resource, namespace: &str, object: &Value) -> Self {
        Self::new(Method::Post, resource.collection_path(namespace)).with_body(ContentType::Json, json(object))
    }
    /// Creates or calls a subresource (`binding`, `token`, `eviction`).
    #[must_use]
    pub fn create_sub(resource: &Resource, namespace: &str, name: &str, sub: &str, body: &Value) -> Self {
        Self::new(Method::Post, format!("{}/{sub}", resource.object_path(namespace, name)))
            .with_body(ContentType::Json, json(body))
    }
    /// Replaces an object.
    #[must_use]
    pub fn update<K: Kind>(object: &K) -> Self {
        Self::new(Method::Put, K::resource().object_path(object.namespace(), object.name()))
            .with_body(ContentType::Json, json(&to_value(object)))
    }
    /// Replaces an object's status.
    #[must_use]
    pub fn update_status<K: Kind>(object: &K) -> Self {
        let mut r = Self::update(object);
        r.path.push_str("/status");
        r
    }
    /// Patches an object; `sub` names a subresource or is empty.
    #[must_use]
    pub fn patch(
        resource: &Resource,
        namespace: &str,
        name: &str,
        sub: &str,
        content_type: ContentType,
        patch: &Value,
    ) -> Self {
        let mut path = resource.object_path(namespace, name);
        if !sub.is_empty() {
            path.push('/');
            path.push_str(sub);
        }
        Self::new(Method::Patch, path).with_body(content_type, json(patch))
    }
    /// Deletes an object.
    #[must_use]
    pub fn delete(resource: &Resource, namespace: &str, name: &str, options: &DeleteOptions) -> Self {
        let mut body = serde_json::json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if options.uid.is_some() || options.resource_version.is_some() {
            let mut preconditions = serde_json::Map::new();
            if let Some(uid) = &options.uid {
                preconditions.insert("uid".into(), uid.as_str().into());
            }
            if let Some(rv) = &options.resource_version {
                preconditions.insert("resourceVersion".into(), rv.as_str().into());
            }
            body["preconditions"] = preconditions.into();
        }
        if let Some(s) = options.grace_period_s {
            body["gracePeriodSeconds"] = s.into();
        }
        if let Some(p) = options.propagation {
            body["propagationPolicy"] = p.into();
        }
        Self::new(Method::Delete, resource.object_path(namespace, name)).with_body(ContentType::Json, json(&body))
    }
    /// The same request, of which nobody reads more than whether it was done: who deletes a collection is answered with all of it.
    #[must_use]
    pub fn unread(mut self) -> Self {
        self.unread = true;
        self
    }
    /// The same request, for metadata alone.
    #[must_use]
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

fn selector_query(selector: &Selector) -> String {
    let mut query = String::new();
    if !selector.labels.is_empty() {
        write!(query, "&labelSelector={}", query_escape(&selector.labels)).unwrap_or_default();
    }
    if !selector.fields.is_empty() {
        write!(query, "&fieldSelector={}", query_escape(&selector.fields)).unwrap_or_default();
    }
    query
}

fn with_query(path: String, query: &str) -> String {
    match query.strip_prefix('&') {
        Some(q) => format!("{path}?{q}"),
        None => path,
    }
}

/// A reply with a 2xx status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResponse {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

impl ApiResponse {
    /// Reads the body.
    ///
    /// # Errors
    /// [`ApiError::Decode`] when it is not what was expected.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.body).map_err(|e| ApiError::Decode(e.to_string()))
    }

    /// Reads the body, which is an object.
    ///
    /// # Errors
    /// As of [`Self::json`].
    pub fn object<K: Json>(&self) -> Result<K, ApiError> {
        K::from_json(&self.body).map_err(|e| ApiError::Decode(e.to_string()))
    }
}

/// Why a request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiError {
    /// The server refused it; nothing was done.
    Status(Box<StatusError>),
    /// No reply came. Whether the request took effect is unknown.
    Transport(String),
    /// The reply could not be understood. The request took effect.
    Decode(String),
}

/// A `Status` object as the server's refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusError {
    /// HTTP status.
    pub code: u16,
    /// CamelCase reason, such as `NotFound`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// More about it.
    pub details: Value,
}

/// The cause that a refusal names when a namespace takes no more objects, since it is being deleted. Upstream reference:
/// `NamespaceTerminatingCause` in k8s.io/api/core/v1.
pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

impl StatusError {
    /// Whether one of the causes in its details has this reason.
    #[must_use]
    pub fn has_cause(&self, reason: &str) -> bool {
        let causes = self.details["causes"].as_array();
        causes.into_iter().flatten().any(|cause| cause["reason"] == reason)
    }
    /// Whether a webhook could not be asked, for which the server has refused the request before it changed anything. Upstream
    /// reference: `ErrCallingWebhook` in k8s.io/apiserver's plugin/webhook, in the words of `NewInternalError`.
    fn is_of_webhook(&self) -> bool {
        const WORDS: &str = "Internal error occurred: failed calling webhook ";
        self.code == 500 && self.reason == "InternalError" && self.message.starts_with(WORDS)
    }
}

impl ApiError {
    /// Reads the error from a reply's status and body.
    #[must_use]
    pub fn from_reply(code: u16, body: &[u8]) -> Self {
        let mut status: StatusError = serde_json::from_slice(body).unwrap_or_default();
        if status.code == 0 {
            status.code = code;
        }
        if status.message.is_empty() {
            status.message = String::from_utf8_lossy(&body[..body.len().min(512)]).into_owned();
        }
        Self::Status(Box::new(status))
    }
    fn is(&self, code: u16, reason: &str) -> bool {
        matches!(self, Self::Status(s) if s.code == code && (s.reason.is_empty() || s.reason == reason))
    }
    /// 404.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(404, "NotFound")
    }
    /// 409 because the object changed or a precondition failed.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.is(409, "Conflict")
    }
    /// 409 because the name is taken.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is(409, "AlreadyExists")
    }
    /// 410: the resourceVersion or the continue token is too old.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Status(s) if s.code == 410)
    }
    /// 504: the resourceVersion is newer than all that the server knows. Its store is another one than that which told of it: one that
    /// was put back from an older copy, say. Upstream reference: `CauseTypeResourceVersionTooLarge` in k8s.io/apimachinery.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        matches!(self, Self::Status(s) if s.code == 504 && s.has_cause("ResourceVersionTooLarge"))
    }
    /// Whether it is unknown if the request took effect.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Transport(_) => true,
            // A gateway's or a shut-down server's word says nothing about what was done before. Gateways have numbers of their
            // own, such as 520 and 524 for one that heard nothing sensible, or nothing in time, from the server behind it.
            Self::Status(s) => matches!(s.code, 500..=599),
            Self::Decode(_) => false,
        }
    }
    /// Whether a request for one object may have taken effect, or may still: as [`Self::is_unknown`], but for a server that says that
    /// it did nothing since a webhook could not be asked.
    #[must_use]
    pub fn may_have_acted(&self) -> bool {
        self.is_unknown() && !matches!(self, Self::Status(s) if s.is_of_webhook())
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(s) => write!(f, "{} ({} {})", s.message, s.code, s.reason),
            Self::Transport(e) => write!(f, "no reply from the API server: {e}"),
            Self::Decode(e) => write!(f, "the API server's reply could not be read: {e}"),
        }
    }
}
impl std::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::RoleBinding;

    use super::*;

    /// Only who refuses a request says that nothing was done.
    #[test]
    fn what_a_gateway_says_tells_nothing_of_what_was_done() {
        for (code, is_unknown) in [
            (400, false),
            (404, false),
            (409, false),
            (422, false),
            (429, false),
            (500, true),
            (502, true),
            (524, true),
        ] {
            let error = ApiError::from_reply(code, b"<html></html>");
            assert_eq!((error.is_unknown(), error.may_have_acted()), (is_unknown, is_unknown), "{code}");
        }
        let webhook =
            r#"{"reason": "InternalError", "message": "Internal error occurred: failed calling webhook \"w\""}"#;
        let error = ApiError::from_reply(500, webhook.as_bytes());
        assert_eq!((error.is_unknown(), error.may_have_acted()), (true, false));
    }

    /// A name stays one segment of the path in every request (which characters that asks for is tested where paths are
    /// made), and what is behind it stays behind it.
    #[test]
    fn no_name_leads_to_another_object() {
        let (resource, name) = (RoleBinding::resource(), "../x/status?a=b#ü\n");
        let whole = resource.object_path("ns", name);
        let delete = ApiRequest::delete(&resource, "ns", name, &DeleteOptions::default());
        assert_eq!(delete.path, whole);
        let sub = ApiRequest::create_sub(&resource, "ns", name, "sub", &Value::Null);
        assert_eq!(sub.path, format!("{whole}/sub"));
        let sent = crate::to_http(ApiRequest::get(&resource, "ns", name), "");
        assert_eq!(sent.as_ref().ok().map(|sent| (sent.uri().path(), sent.uri().query())), Some((&*whole, None)));
    }
}
