//! Errors as clients see them: `metav1.Status` with Kubernetes' reasons, codes and messages.
//!
//! Texts follow `k8s.io/apimachinery/pkg/api/errors`, because people and scripts match on them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use carrack_engine::zpages::PageError;
use carrack_schema::error::FieldError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A reply that is a `Status` object; as an error it says why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason (`NotFound`, `Conflict`, …); empty in a success. Others have reasons of their own.
    pub reason: Cow<'static, str>,
    /// The sentence for people.
    pub message: String,
    /// What the sentence is about.
    pub details: Option<Box<Details>>,
}

/// `StatusDetails`: the object in question and the causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// The object's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The object's API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource's plural name, or the kind for validation errors.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The object's UID.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Single faults, each with its field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Where a list may go on, though not over one snapshot; goes into `metadata.continue`.
    #[serde(skip)]
    pub continue_token: Option<String>,
    /// When to try again, in seconds.
    #[serde(rename = "retryAfterSeconds", skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// One fault of an invalid object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Cause {
    /// The machine-readable reason (`FieldValueRequired`, …).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field's path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

/// More faults of one object than these help nobody.
const MAX_FAULTS: usize = 1000;

/// Kubernetes' own reasons.
const REASONS: [&str; 19] = [
    "AlreadyExists",
    "BadRequest",
    "Conflict",
    "Expired",
    "Forbidden",
    "Gone",
    "InternalError",
    "Invalid",
    "MethodNotAllowed",
    "NotAcceptable",
    "NotFound",
    "RequestEntityTooLarge",
    "ServerTimeout",
    "ServiceUnavailable",
    "StorageReadError",
    "Timeout",
    "TooManyRequests",
    "Unauthorized",
    "UnsupportedMediaType",
];

/// The reason of that name; none when it is not one of Kubernetes'.
pub(crate) fn known_reason(name: &str) -> &'static str {
    REASONS.iter().find(|reason| **reason == name).copied().unwrap_or_default()
}

/// `group` behind `resource` with a dot, as Kubernetes names a resource in sentences.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

impl Status {
    fn new(code: u16, reason: &'static str, message: String) -> Status {
        Status { code, reason: Cow::Borrowed(reason), message, details: None }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Status {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        }));
        self
    }

    /// Adds one cause.
    #[must_use]
    pub fn because(mut self, reason: &str, message: impl Into<String>, field: &str) -> Status {
        self.details.get_or_insert_default().causes.push(Cause {
            reason: reason.to_owned(),
            message: message.into(),
            field: field.to_owned(),
        });
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Status {
        self.details.get_or_insert_default().retry_after_s = Some(seconds);
        self
    }

    /// 200: the request was done and there is no object to return.
    pub fn success(group: &str, kind: &str, name: &str, uid: &str) -> Status {
        let mut status = Status::new(200, "", String::new()).about(group, kind, name);
        if let Some(details) = &mut status.details {
            details.uid = uid.to_owned();
        }
        status
    }

    /// 404 for an object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{} \"{name}\" not found", qualified(group, resource)))
            .about(group, resource, name)
    }

    /// 404 for a path that no handler serves.
    pub fn no_such_path() -> Status {
        Status::new(404, "NotFound", "the server could not find the requested resource".to_owned()).about("", "", "")
    }

    /// 409: there is one of that name.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Status {
        let message = format!("{} \"{name}\" already exists", qualified(group, resource));
        Status::new(409, "AlreadyExists", message).about(group, resource, name)
    }

    /// 409: no free name was found for a `generateName`.
    pub fn generate_name_conflict(group: &str, resource: &str, name: &str) -> Status {
        let message = format!(
            "{} \"{name}\" already exists, the server was not able to generate a unique name for the object",
            qualified(group, resource)
        );
        Status::new(409, "AlreadyExists", message).about(group, resource, name).retry_after(1)
    }

    /// 409 with a cause in words.
    pub fn conflict(group: &str, resource: &str, name: &str, cause: &str) -> Status {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {cause}", qualified(group, resource));
        Status::new(409, "Conflict", message).about(group, resource, name)
    }

    /// 409: the object is newer than the writer's copy.
    pub fn modified(group: &str, resource: &str, name: &str) -> Status {
        Status::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 403 with the reason in words.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Status {
        let what = qualified(group, resource);
        let message = match (what.as_str(), name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{what} is forbidden: {why}"),
            _ => format!("{what} \"{name}\" is forbidden: {why}"),
        };
        Status::new(403, "Forbidden", message).about(group, resource, name)
    }

    /// 401: nobody, or a credential that does not hold.
    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    /// 400: the request makes no sense.
    pub fn bad_request(why: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", why.into())
    }

    /// 422: the object has faults. `faults` are (cause reason, field, text without the field); the first of very many
    /// are told.
    pub fn invalid(group: &str, kind: &str, name: &str, faults: &[(String, String, String)]) -> Status {
        let faults = &faults[..faults.len().min(MAX_FAULTS)];
        let sentence = |(_, field, text): &(String, String, String)| {
            if field.is_empty() { text.clone() } else { format!("{field}: {text}") }
        };
        let all = match faults {
            [one] => sentence(one),
            many => {
                let mut seen = BTreeSet::new();
                let all: Vec<String> = many.iter().map(sentence).filter(|fault| seen.insert(fault.clone())).collect();
                format!("[{}]", all.join(", "))
            }
        };
        let what = qualified(group, kind);
        let message = if name.is_empty() {
            format!("{what} \"\" is invalid: {all}")
        } else {
            format!("{what} \"{name}\" is invalid: {all}")
        };
        let mut status = Status::new(422, "Invalid", message).about(group, kind, name);
        for (reason, field, text) in faults {
            status = status.because(reason, text.clone(), field);
        }
        status
    }

    /// The same for faults as the checks of objects and options find them.
    pub(crate) fn faulty(group: &str, kind: &str, name: &str, faults: &[FieldError]) -> Status {
        let faults: Vec<_> =
            faults.iter().map(|fault| (fault.reason().to_owned(), fault.path.clone(), fault.message())).collect();
        Status::invalid(group, kind, name, &faults)
    }

    /// 422: the request cannot be carried out on the object as it is. The sentence is upstream's, which says no more; the cause
    /// says what it is about.
    pub(crate) fn unprocessable(why: impl Into<String>, field: &str) -> Status {
        let message = "the server rejected our request due to an error in our request";
        Status::new(422, "Invalid", message.to_owned()).because("FieldValueInvalid", why, field)
    }

    /// 405: the resource has no such verb.
    pub fn method_not_allowed() -> Status {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Status::new(405, "MethodNotAllowed", message).about("", "", "")
    }

    /// 406: none of the accepted encodings can be made.
    pub fn not_acceptable(offered: &str) -> Status {
        let message = format!("only the following media types are accepted: {offered}");
        Status::new(406, "NotAcceptable", message)
    }

    /// 410: the history the request needs is gone; list again.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message.into())
    }

    /// 413: the body is over the limit.
    pub fn too_large(limit_bytes: usize) -> Status {
        let message = format!("Request entity too large: limit is {limit_bytes}");
        Status::new(413, "RequestEntityTooLarge", message)
    }

    /// 415: the body's encoding is not read here.
    pub fn unsupported_media_type(offered: &str) -> Status {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {offered}");
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 429: later.
    pub fn too_many_requests(message: impl Into<String>, retry_after_s: u32) -> Status {
        Status::new(429, "TooManyRequests", message.into()).retry_after(retry_after_s)
    }

    /// 429: somebody has had what he may have; nobody says until when (`NewTooManyRequestsError`).
    pub(crate) fn over_limit(why: &str) -> Status {
        Status::new(429, "TooManyRequests", format!("Too many requests: {why}"))
    }

    /// 500: a fault of ours.
    pub fn internal(why: impl std::fmt::Display) -> Status {
        Status::new(500, "InternalError", format!("Internal error occurred: {why}")).because("", why.to_string(), "")
    }

    /// 500: what the store holds under this key is no object.
    pub(crate) fn unreadable(group: &str, resource: &str, key: &str) -> Status {
        let resource = qualified(group, resource);
        let message =
            format!("failed to read one or more {resource} from the storage: {key}: unable to decode the object");
        Status::new(500, "StorageReadError", message).about("", &resource, "").because(
            "UnexpectedServerResponse",
            "unable to decode the object",
            key,
        )
    }

    /// 503: not now, and it says nothing about the request.
    pub fn unavailable(why: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", why.into())
    }

    /// 504: somebody else took too long.
    pub fn timeout(why: impl std::fmt::Display) -> Status {
        Status::new(504, "Timeout", format!("Timeout: {why}"))
    }

    /// 504: the wanted revision has not been reached yet.
    pub fn too_large_resource_version(asked: u64, newest: u64) -> Status {
        let message = format!("Too large resource version: {asked}, current: {newest}");
        Status::new(504, "Timeout", format!("Timeout: {message}"))
            .because("ResourceVersionTooLarge", "Too large resource version", "")
            .retry_after(1)
    }

    /// The object as it goes over the wire.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": if self.code < 400 { "Success" } else { "Failure" },
        });
        if !self.message.is_empty() {
            object["message"] = self.message.clone().into();
        }
        if !self.reason.is_empty() {
            object["reason"] = self.reason.clone().into();
        }
        if let Some(token) = self.details.as_ref().and_then(|details| details.continue_token.as_ref()) {
            object["metadata"]["continue"] = token.as_str().into();
        } else if let Some(details) = &self.details {
            object["details"] = serde_json::to_value(details).unwrap_or_default();
        }
        object["code"] = self.code.into();
        object
    }
}

impl From<PageError> for Status {
    fn from(error: PageError) -> Self {
        match error {
            PageError::NotAcceptable(offered) => Self::not_acceptable(&offered),
            PageError::Unwritten(_) => Self::internal(error.to_string()),
        }
    }
}

impl From<carrack_store::StoreError> for Status {
    fn from(error: carrack_store::StoreError) -> Status {
        use carrack_store::StoreError as E;
        match error {
            E::Compacted { .. } => Status::expired("The resourceVersion for the provided list is too old."),
            E::Future { asked, newest } => Status::too_large_resource_version(asked.0, newest.0),
            E::Lagged => Status::expired("the watch fell too far behind"),
            E::Closed => Status::unavailable("the server is shutting down"),
            E::Unavailable(why) => Status::unavailable(format!("the store cannot be reached: {why}")),
            broken @ (E::Broken(_) | E::Unknown(_) | E::Refused(_) | E::Invalid(_)) => Status::internal(broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not known of a cause is left out.
    #[test]
    fn causes() {
        let told = |status: Status| status.to_json()["details"]["causes"][0].clone();
        assert_eq!(told(Status::internal("a")), json!({"message": "a"}));
        assert_eq!(
            told(Status::unauthorized().because("FieldValueRequired", "", "spec")),
            json!({"reason": "FieldValueRequired", "field": "spec"})
        );
    }

    #[test]
    fn sentences() {
        for (status, code, message) in [
            (Status::not_found("", "pods", "x"), 404, "pods \"x\" not found"),
            (Status::not_found("apps", "deployments", "x"), 404, "deployments.apps \"x\" not found"),
            (Status::already_exists("", "pods", "x"), 409, "pods \"x\" already exists"),
            (
                Status::modified("", "pods", "x"),
                409,
                "Operation cannot be fulfilled on pods \"x\": the object has been modified; please apply your changes to the latest version and try again",
            ),
            (
                Status::invalid(
                    "",
                    "Pod",
                    "x",
                    &[("FieldValueRequired".into(), "spec.containers".into(), "Required value".into())],
                ),
                422,
                "Pod \"x\" is invalid: spec.containers: Required value",
            ),
            (Status::forbidden("", "pods", "", "no"), 403, "pods is forbidden: no"),
        ] {
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
    }
}
