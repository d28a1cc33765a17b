//! What a webhook answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize as _;
use serde_json::Value;

use super::call::{brief, type_of};
use crate::metrics::Step;
use crate::status::{Details, Status};

/// As many warnings as a reply has room for, about.
const MAX_WARNINGS: usize = 1000;
/// Most annotations that are passed on.
const MAX_ANNOTATIONS: usize = 16;

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

/// Reads an `AdmissionReview` of this version, which answers the request with this UID. Only while objects are completed it may
/// have a patch.
pub(super) fn read(review: &Value, (version, uid): (&str, &str), step: Step) -> Result<Verdict, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let response = &review["response"];
    if !response.is_object() {
        return Err(invalid("webhook response was absent".to_owned()));
    }
    // Of the older version upstream has never asked for more than a response.
    if version == "v1" {
        verify(review, uid, step).map_err(invalid)?;
    }
    let patch = response["patch"].as_str().filter(|patch| !patch.is_empty() && step == Step::Admit);
    let patch = patch.map(|patch| STANDARD.decode(patch)).transpose();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let warnings = response["warnings"].as_array().into_iter().flatten().map(text).filter(|text| !text.is_empty());
    let annotations = response["auditAnnotations"].as_object().into_iter().flatten().take(MAX_ANNOTATIONS);
    Ok(Verdict {
        allowed: response["allowed"] == true,
        code: response["status"]["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        reason: text(&response["status"]["reason"]),
        message: text(&response["status"]["message"]),
        details: response["status"].get("details").and_then(|details| Details::deserialize(details).ok()),
        patch: patch.map_err(|error| invalid(format!("response.patch: {error}")))?,
        annotations: annotations.map(|(key, value)| (key.clone(), text(value))).collect(),
        warnings: warnings.take(MAX_WARNINGS).collect(),
    })
}

/// Whether it is the answer to what was asked, and says no more than it may
/// (`VerifyAdmissionResponse` of `k8s.io/apiserver/pkg/admission/plugin/webhook/request`).
fn verify(review: &Value, uid: &str, step: Step) -> Result<(), String> {
    const EXPECTED: &str = "admission.k8s.io/v1, Kind=AdmissionReview";
    let response = &review["response"];
    if response["uid"] != uid {
        let found = brief(response["uid"].as_str().unwrap_or_default());
        return Err(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    let found = type_of(review);
    if found != EXPECTED {
        return Err(format!("expected webhook response of {EXPECTED}, got {found}"));
    }
    let has_patch = response["patch"].as_str().is_some_and(|patch| !patch.is_empty());
    let patch_type = &response["patchType"];
    let problem = match (step, has_patch, patch_type.is_null()) {
        (Step::Validate, true, _) => "validating webhook may not return response.patch",
        (Step::Validate, false, false) => "validating webhook may not return response.patchType",
        (Step::Admit, true, true) => "webhook returned response.patch but not response.patchType",
        (Step::Admit, false, false) => "webhook returned response.patchType but not response.patch",
        (Step::Admit, true, false) if patch_type != "JSONPatch" => {
            let found = brief(patch_type.as_str().unwrap_or_default());
            return Err(format!("webhook returned invalid response.patchType of {found:?}"));
        }
        _ => return Ok(()),
    };
    Err(problem.to_owned())
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_say_what_they_may() {
        let patch = STANDARD.encode("[]");
        let (allowed, typed) = (json!({"uid": "u", "allowed": true}), json!({"patchType": "JSONPatch"}));
        for (step, said, want) in [
            (Step::Admit, json!({}), Ok(false)),
            (Step::Validate, json!({}), Ok(false)),
            (Step::Admit, json!({"patch": patch, "patchType": "JSONPatch"}), Ok(true)),
            (Step::Admit, json!({"uid": "v"}), Err("expected response.uid=\"u\", got \"v\"")),
            (Step::Admit, json!({"patch": patch}), Err("webhook returned response.patch but not response.patchType")),
            (Step::Admit, typed.clone(), Err("webhook returned response.patchType but not response.patch")),
            (
                Step::Admit,
                json!({"patch": patch, "patchType": ""}),
                Err("webhook returned invalid response.patchType of \"\""),
            ),
            (Step::Admit, json!({"patch": "?", "patchType": "JSONPatch"}), Err("response.patch: ")),
            (Step::Validate, json!({"patch": patch}), Err("validating webhook may not return response.patch")),
            (Step::Validate, typed, Err("validating webhook may not return response.patchType")),
        ] {
            let mut response = allowed.clone();
            for (key, value) in said.as_object().into_iter().flatten() {
                response[key] = value.clone();
            }
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            match (read(&review, ("v1", "u"), step), want) {
                (Ok(verdict), Ok(has_patch)) => assert_eq!(verdict.patch.is_some(), has_patch, "{step:?} {said}"),
                (Err(why), Err(want)) => {
                    let start = format!("received invalid webhook response: {want}");
                    assert!(why.starts_with(&start), "{step:?} {said}: {why}");
                }
                (found, _) => panic!("{step:?} {said}: {found:?}"),
            }
        }
        for (review, version, want) in [
            (
                json!({"response": allowed}),
                "v1",
                Some("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind="),
            ),
            (json!({"response": {"allowed": true, "patch": patch}}), "v1beta1", None),
            (json!({}), "v1beta1", Some("webhook response was absent")),
        ] {
            let found = read(&review, (version, "u"), Step::Admit).err();
            let want = want.map(|why| format!("received invalid webhook response: {why}"));
            assert_eq!(found, want, "{version} {review}");
        }
    }

    #[test]
    fn warnings_are_passed_on_whole() {
        let (long, many) = ("x".repeat(5000), "é".repeat(20));
        let review = json!({"response": {"allowed": true, "warnings": [long, "", many, 1]}});
        let verdict = read(&review, ("v1beta1", "u"), Step::Validate).expect("an answer");
        assert_eq!(verdict.warnings, [long, many]);
    }
}
