//! What a webhook answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde_json::Value;

use crate::status::{Details, Status};

/// Longest warning that is passed on, and how many.
const MAX_WARNING_CHARS: usize = 256;
const MAX_WARNINGS: usize = 16;

/// A webhook's answer.
#[derive(Debug)]
pub(super) struct Verdict {
    pub allowed: bool,
    code: u16,
    reason: String,
    message: String,
    details: Option<Details>,
    pub patch: Option<Vec<u8>>,
    pub warnings: Vec<String>,
    /// For the audit log.
    pub annotations: Vec<(String, String)>,
}

/// Reads an `AdmissionReview` that answers the request with this UID.
pub(super) fn read(review: &Value, uid: &str) -> Result<Verdict, String> {
    if review["apiVersion"] != "admission.k8s.io/v1" || review["kind"] != "AdmissionReview" {
        return Err(format!(
            "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, Kind={}",
            short(&review["apiVersion"]),
            short(&review["kind"])
        ));
    }
    let response = &review["response"];
    if !response.is_object() {
        return Err("received invalid webhook response: no response".to_owned());
    }
    if response["uid"] != uid {
        return Err(format!(
            "received invalid webhook response: expected response.uid={uid:?}, got {}",
            short(&response["uid"])
        ));
    }
    let patch = match response["patch"].as_str().filter(|patch| !patch.is_empty()) {
        None => None,
        Some(_) if response["patchType"] != "JSONPatch" => {
            return Err(format!(
                "received invalid webhook response: invalid response.patchType {}: expected \"JSONPatch\"",
                short(&response["patchType"])
            ));
        }
        Some(patch) => {
            let bytes = STANDARD.decode(patch);
            Some(bytes.map_err(|error| format!("received invalid webhook response: response.patch: {error}"))?)
        }
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).take(MAX_WARNINGS);
    let annotations = response["auditAnnotations"].as_object().into_iter().flatten().take(MAX_WARNINGS);
    Ok(Verdict {
        allowed: response["allowed"] == true,
        code: response["status"]["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        reason: text(&response["status"]["reason"]),
        message: text(&response["status"]["message"]),
        details: response["status"].get("details").and_then(|details| Details::deserialize(details).ok()),
        patch,
        annotations: annotations.map(|(key, value)| (key.clone(), text(value))).collect(),
        warnings: warnings.map(|warning| warning.chars().take(MAX_WARNING_CHARS).collect()).collect(),
    })
}

fn short(value: &Value) -> String {
    value.to_string().chars().take(100).collect()
}

/// The code of the refusal that a webhook's answer is: what says no is never a success, whatever it says.
pub(super) fn code(verdict: &Verdict) -> u16 {
    if (400..600).contains(&verdict.code) { verdict.code } else { 400 }
}

/// The refusal that a webhook's answer is.
pub(super) fn denied(webhook: &str, verdict: &Verdict) -> Status {
    let by = format!("admission webhook \"{webhook}\" denied the request");
    let message = match (verdict.message.as_str(), verdict.reason.as_str()) {
        ("", "") => format!("{by} without explanation"),
        ("", reason) => format!("{by}: {reason}"),
        (message, _) => format!("{by}: {message}"),
    };
    let mut status = Status::bad_request(message);
    status.code = code(verdict);
    status.reason = verdict.reason.clone().into();
    status.details = verdict.details.clone().map(Box::new);
    status
}
