//! Certificates that pods ask for through their node.
//!
//! ```text
//!   asked for ─┬► Issued (the chain and its times)
//!              ├► Denied
//!              └► Failed        each for good: nothing of the status changes afterwards
//! ```
//!
//! What needs a look into keys and certificates is for who can read them. Upstream: `pkg/apis/certificates/validation`.

use std::ops::RangeInclusive;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::access::{Errors, Place};
use super::alike::plain;
use super::demand::{Demand, Row, check};
use super::{limits, metadata, names};
use crate::error::FieldError;

const MAX_UID_BYTES: usize = 128;
/// Most bytes of keys, proofs and requests, and of chains.
const MAX_KEY_BYTES: usize = 10 << 10;
const MAX_CHAIN_BYTES: usize = 100 << 10;
/// How long certificates last, in seconds: at least, at most, and at most those of Kubernetes' own signers.
const MIN_LIFE_S: i64 = 3600;
const MAX_LIFE_S: i64 = 91 * 86_400;
const MAX_OWN_LIFE_S: i64 = 86_400;
/// Between a certificate's ends and the time to renew it.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

/// Decisions about a request.
const DECISIONS: [&str; 3] = ["Denied", "Failed", "Issued"];

/// How long a certificate of a signer may last, in seconds.
pub(super) fn life_s(signer: &str) -> RangeInclusive<i64> {
    MIN_LIFE_S..=if signer.starts_with("kubernetes.io/") { MAX_OWN_LIFE_S } else { MAX_LIFE_S }
}

/// What a new request asks for.
pub(super) fn request(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("podName", Demand::Required),
        ("podName", Demand::Form(names::dns1123_subdomain)),
        ("serviceAccountName", Demand::Required),
        ("serviceAccountName", Demand::Form(names::dns1123_subdomain)),
        ("nodeName", Demand::Required),
        ("nodeName", Demand::Form(names::dns1123_subdomain)),
        ("maxExpirationSeconds", Demand::Needed("must be set")),
    ];
    let signer = spec.needs_text("signerName", errors);
    if let Some(signer) = signer {
        limits::signer_name(spec, signer, errors);
    }
    check(spec, ROWS, errors);
    for field in ["podUID", "serviceAccountUID", "nodeUID"] {
        match spec.text(field).len() {
            0 => errors.push(FieldError::invalid(spec.path_of(field), "", "must not be empty")),
            1..=MAX_UID_BYTES => {}
            _ => errors.push(FieldError::too_long(spec.path_of(field), MAX_UID_BYTES as u64)),
        }
    }
    // What the pod adds, for its signer alone to judge.
    metadata::annotation_map(&spec.field("unverifiedUserAnnotations"), prefixed, errors);
    let may_s = life_s(signer.unwrap_or_default());
    if spec.number("maxExpirationSeconds").is_some_and(|seconds| !may_s.contains(&seconds)) {
        let text = format!("must be in the range [{}, {}]", may_s.start(), may_s.end());
        spec.invalid("maxExpirationSeconds", text, errors);
    }
    keys(spec, errors);
}

/// The key of an annotation, with a domain.
fn prefixed(key: &str) -> names::Problem {
    const NO_DOMAIN: &str = "must be a domain-prefixed key (such as \"acme.io/foo\")";
    names::qualified_name(key).or_else(|| (!key.contains('/')).then(|| NO_DOMAIN.to_owned()))
}

/// A request in PKCS #10, or a key and the proof that it is had.
fn keys(spec: &Place<'_>, errors: &mut Errors) {
    const FIELDS: [&str; 3] = ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"];
    for field in FIELDS.into_iter().filter(|field| spec.text(field).len() / 4 * 3 > MAX_KEY_BYTES) {
        errors.push(FieldError::too_long(spec.path_of(field), MAX_KEY_BYTES as u64));
    }
    if !matches!(FIELDS.map(|field| !spec.text(field).is_empty()), [true, false, false] | [false, true, true]) {
        let text = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        errors.push(FieldError::unshown(spec.path.clone(), text));
    }
}

/// What is asked for does not change.
pub(super) fn changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    if plain(new.field("spec").value) != plain(old.field("spec").value) {
        new.invalid("spec", "field is immutable", errors);
    }
}

/// Checks a changed status.
pub(super) fn status(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let status = new.field("status");
    conditions(&status, errors);
    if !errors.is_empty() {
        return;
    }
    let (now, before) = (said(status.value), said(old.field("status").value));
    let decision = decided(&status);
    if decided(&old.field("status")).is_some() {
        if now != before {
            let text = "immutable after PodCertificateRequest is issued, denied, or failed";
            errors.push(FieldError::unshown("status", text));
        }
        return;
    }
    match decision {
        None if now != before => {
            let text = "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::unshown("status", text));
        }
        None => {}
        Some("Issued") => issued(&status, new.field("spec").number("maxExpirationSeconds"), errors),
        Some(_) if now.as_object().is_some_and(|fields| fields.keys().any(|field| field != "conditions")) => {
            let text = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            errors.push(FieldError::unshown("status", text));
        }
        Some(_) => {}
    }
}

/// A status without what says nothing.
fn said(status: &Value) -> Value {
    if status.is_null() { json!({}) } else { plain(status) }
}

fn decided<'a>(status: &Place<'a>) -> Option<&'a str> {
    let mut kinds = status.items("conditions").map(|condition| condition.text("type"));
    kinds.find(|kind| DECISIONS.contains(kind))
}

fn conditions(status: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("conditions[].type", Demand::OneOf(&DECISIONS)),
        ("conditions[].status", Demand::OneOf(&["True"])),
        ("conditions[].lastTransitionTime", Demand::Needed("must be set")),
        ("conditions[].reason", Demand::Needed("must be set")),
    ];
    check(status, ROWS, errors);
    for condition in status.items("conditions").skip(1) {
        let text = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
        condition.invalid("type", text, errors);
    }
}

/// A certificate and the times that it is said to have.
fn issued(status: &Place<'_>, most_s: Option<i64>, errors: &mut Errors) {
    const FIELDS: [(&str, &str); 3] = [
        ("notBefore", "must be present and consistent with the issued certificate"),
        ("notAfter", "must be present and consistent with the issued certificate"),
        ("beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]"),
    ];
    let chain = status.text("certificateChain");
    if chain.len() > MAX_CHAIN_BYTES {
        errors.push(FieldError::too_long(status.path_of("certificateChain"), MAX_CHAIN_BYTES as u64));
        return;
    }
    if chain.is_empty() {
        let text = "issued certificate chain must contain at least one certificate";
        status.invalid("certificateChain", text, errors);
        return;
    }
    let times = FIELDS.map(|(field, _)| status.text(field).parse::<Timestamp>().ok());
    let [Some(from), Some(until), Some(renewed)] = times else {
        let missing = FIELDS.iter().zip(times).filter(|(_, time)| time.is_none());
        errors.extend(missing.map(|((field, why), _)| FieldError::required(status.path_of(field), *why)));
        return;
    };
    let life = until.duration_since(from);
    if life < SignedDuration::from_secs(MIN_LIFE_S) {
        let text = "leaf certificate lifetime must be >= 1 hour";
        errors.push(FieldError::unshown(status.path_of("certificateChain"), text));
    } else if let Some(most_s) = most_s.filter(|most_s| life > SignedDuration::from_secs(*most_s)) {
        let text = format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most_s})");
        errors.push(FieldError::unshown(status.path_of("certificateChain"), text));
    }
    if renewed.duration_since(from) < MARGIN {
        status.invalid("beginRefreshAt", "must be at least 10 minutes after status.notBefore", errors);
    } else if until.duration_since(renewed) < MARGIN {
        status.invalid("beginRefreshAt", "must be at least 10 minutes before status.notAfter", errors);
    }
}
