//! Certificate requests: what may be asked for, kubelets approved by themselves, and the certificate
//! made in the write that approves it.
//!
//! ```text
//!   create ─► readable? allowed? ─► a kubelet that may have one? ── Approved ─┐
//!   approval ─► Approved? ─────────────────────────────────────────────────────┴► signed, or Failed
//! ```
//!
//! The signers are those of upstream's controller manager; requests for others wait for their own. An
//! upstream controller manager beside this server finds nothing left to do.

mod conditions;
mod nodes;
mod pods;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::Caller;
use carrack_auth::pki::{
    RequestFacts, RequestSigner, SIGNER_CLIENT, SIGNER_KUBELET_CLIENT, bundle_faults, check_request, issued_fault,
    read_request,
};
use carrack_schema::error::FieldError;
use serde_json::{Value, json};

use crate::admission::{Attributes, Operation};
use crate::env::rfc3339_s;
use crate::object::{Object, at, child_mut, str_at};
use crate::server::Inner;
use crate::status::Status;

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
const BUNDLES: &str = "clustertrustbundles";
const OF_PODS: &str = "podcertificaterequests";
const MASTERS: &str = "system:masters";

/// Largest bundle of authorities, in bytes.
const MAX_BUNDLE_BYTES: usize = 1 << 20;

/// Completes a certificate request that is about to be written, and looks into bundles of authorities and into what
/// pods ask for.
pub(crate) async fn complete(server: &Inner, attributes: &mut Attributes<'_>) -> Result<(), Status> {
    match (&*attributes.row.group, &*attributes.row.plural) {
        (GROUP, BUNDLES) => return check_bundle(attributes),
        (GROUP, OF_PODS) => {
            nodes::check(server, attributes).await?;
            return pods::check(attributes);
        }
        (GROUP, REQUESTS) => {}
        _ => return Ok(()),
    }
    match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => {
            let facts = read(attributes)?;
            approve_kubelet(server, attributes, &facts).await?;
        }
        (Operation::Update, "approval" | "status") => settle_status(attributes)?,
        _ => return Ok(()),
    }
    if let Some(signer) = &server.signer {
        sign(signer, attributes);
    }
    Ok(())
}

/// Completes a status that is about to be written, and looks whether it may be: what was decided and what was issued
/// stay.
fn settle_status(attributes: &mut Attributes<'_>) -> Result<(), Status> {
    stamp(attributes, conditions::stamp);
    let old = attributes.old.map(conditions_of).unwrap_or_default();
    let mut faults = conditions::faults(conditions_of(&attributes.object), old);
    let (issued, given) = (attributes.old.map(certificate_of).unwrap_or_default(), certificate_of(&attributes.object));
    if !issued.is_empty() && issued != given {
        let why = "updates may not modify existing certificate content";
        faults.push(FieldError::forbidden("status.certificate", why));
    } else if issued != given
        && let Some(why) = issued_fault(&STANDARD.decode(given).unwrap_or_default())
    {
        faults.push(FieldError::invalid("status.certificate", "<certificate data>", why));
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(Status::faulty(GROUP, "CertificateSigningRequest", &attributes.name, &faults))
}

/// Sets the times of conditions that are about to be written.
fn stamp(attributes: &mut Attributes<'_>, stamp: fn(&mut [Value], &[Value], &str)) {
    let old = attributes.old.map(conditions_of).unwrap_or_default();
    let now = rfc3339_s(attributes.env.now());
    let status = attributes.object.get_mut("status").and_then(Value::as_object_mut);
    if let Some(Value::Array(new)) = status.and_then(|status| status.get_mut("conditions")) {
        stamp(new, old, &now);
    }
}

fn certificate_of(request: &Object) -> &str {
    str_at(request, &["status", "certificate"])
}

fn conditions_of(request: &Object) -> &[Value] {
    at(request, &["status", "conditions"]).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn trust_bundle(object: &Object) -> &str {
    str_at(object, &["spec", "trustBundle"])
}

fn check_bundle(attributes: &Attributes<'_>) -> Result<(), Status> {
    let bundle = trust_bundle(&attributes.object);
    // What is there stays, whatever is thought of it today.
    if attributes.old.is_some_and(|old| trust_bundle(old) == bundle) {
        return Ok(());
    }
    let fault = |reason: &str, text: String| (reason.to_owned(), "spec.trustBundle".to_owned(), text);
    let faults: Vec<_> = if bundle.len() > MAX_BUNDLE_BYTES {
        vec![fault("FieldValueTooLong", format!("Too long: may not be more than {MAX_BUNDLE_BYTES} bytes"))]
    } else {
        let told = |why: &String| fault("FieldValueInvalid", format!("Invalid value: \"<value omitted>\": {why}"));
        bundle_faults(bundle).iter().map(told).collect()
    };
    if faults.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(GROUP, "ClusterTrustBundle", &attributes.name, &faults))
}

fn pem(request: &Object) -> Vec<u8> {
    STANDARD.decode(str_at(request, &["spec", "request"])).unwrap_or_default()
}

fn usages(request: &Object) -> Vec<String> {
    let list = at(request, &["spec", "usages"]).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read(attributes: &Attributes<'_>) -> Result<RequestFacts, Status> {
    let object = &attributes.object;
    let facts = read_request(&pem(object)).map_err(|why| {
        let shown = str_at(object, &["spec", "request"]);
        let text = format!("Invalid value: {shown:?}: {why}");
        let fault = ("FieldValueInvalid".to_owned(), "spec.request".to_owned(), text);
        Status::invalid(GROUP, "CertificateSigningRequest", &attributes.name, &[fault])
    })?;
    if str_at(object, &["spec", "signerName"]) == SIGNER_CLIENT && facts.organizations.iter().any(|o| o == MASTERS) {
        return Err(attributes.forbidden(&format!("use of {SIGNER_CLIENT} signer with {MASTERS} group is not allowed")));
    }
    Ok(facts)
}

/// A kubelet's request for a client certificate is approved when its sender may have one.
async fn approve_kubelet(server: &Inner, attributes: &mut Attributes<'_>, facts: &RequestFacts) -> Result<(), Status> {
    let object = &attributes.object;
    let signer = str_at(object, &["spec", "signerName"]);
    if signer != SIGNER_KUBELET_CLIENT || check_request(signer, facts, &usages(object)).is_err() {
        return Ok(());
    }
    let caller: &Caller = attributes.caller;
    let own = caller.user == facts.common_name;
    for (applies, subresource, message) in [
        (own, "selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."),
        (true, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
    ] {
        if applies && server.may(caller, "create", GROUP, REQUESTS, subresource, "").await? {
            let now = rfc3339_s(attributes.env.now());
            add_condition(&mut attributes.object, "Approved", "AutoApproved", message, &now);
            return Ok(());
        }
    }
    Ok(())
}

fn has_condition(request: &Object, kind: &str) -> bool {
    conditions_of(request).iter().any(|condition| condition["type"] == kind)
}

fn add_condition(request: &mut Object, kind: &str, reason: &str, message: &str, now: &str) {
    let conditions = child_mut(request, "status").entry("conditions").or_insert_with(|| json!([]));
    if let Some(conditions) = conditions.as_array_mut() {
        conditions.push(json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastUpdateTime": now, "lastTransitionTime": now,
        }));
    }
}

/// Signs what is approved and not yet signed.
fn sign(signer: &RequestSigner, attributes: &mut Attributes<'_>) {
    let object = &attributes.object;
    let name = str_at(object, &["spec", "signerName"]);
    let open = has_condition(object, "Approved")
        && !has_condition(object, "Denied")
        && !has_condition(object, "Failed")
        && at(object, &["status", "certificate"]).is_none();
    if !open || !RequestSigner::knows(name) {
        return;
    }
    let now = attributes.env.now();
    let wanted_s = at(object, &["spec", "expirationSeconds"]).and_then(Value::as_i64);
    let request = if attributes.operation == Operation::Create { object } else { attributes.old.unwrap_or(object) };
    match signer.sign(&pem(request), name, &usages(request), wanted_s, now.as_second()) {
        Ok(certificate) => {
            let status = child_mut(&mut attributes.object, "status");
            status.insert("certificate".to_owned(), STANDARD.encode(certificate).into());
        }
        Err(why) => {
            add_condition(&mut attributes.object, "Failed", "SignerValidationFailure", &why, &rfc3339_s(now));
        }
    }
}
