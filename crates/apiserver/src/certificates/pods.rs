//! Certificates for pods: who asks has the key, and what is issued is for it.
//!
//! The rest of a request and of its status is held to the rules of its kind. Upstream:
//! `pkg/apis/certificates/validation`, `ValidatePodCertificateRequestCreate` and `…StatusUpdate`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::pki::{Shown, proven_key, read_chain};
use carrack_schema::error::FieldError;
use jiff::Timestamp;

use super::{GROUP, conditions, conditions_of, stamp};
use crate::admission::{Attributes, Operation};
use crate::object::{Object, str_at};
use crate::status::Status;

/// How far from now a certificate may begin, in seconds.
const MAX_SKEW_S: i64 = 300;

/// Checks a request, or completes and checks the status of one, that is about to be written.
pub(super) fn check(attributes: &mut Attributes<'_>) -> Result<(), Status> {
    let fault = match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") => proven(&attributes.object).err(),
        (Operation::Update, "status") => {
            stamp(attributes, conditions::stamp_changes);
            attributes.old.and_then(|old| issued(attributes, old).err())
        }
        _ => None,
    };
    match fault {
        None => Ok(()),
        Some(fault) => Err(Status::faulty(GROUP, "PodCertificateRequest", &attributes.name, &[fault])),
    }
}

/// The key of a request. None where it shows none in one way or the other, which its kind's rules say.
fn proven(request: &Object) -> Result<Option<Vec<u8>>, FieldError> {
    let bytes = |field: &str| STANDARD.decode(str_at(request, &["spec", field])).unwrap_or_default();
    let (stub, key, proof) = (bytes("stubPKCS10Request"), bytes("pkixPublicKey"), bytes("proofOfPossession"));
    if stub.is_empty() && (key.is_empty() || proof.is_empty()) {
        return Ok(None);
    }
    let shown = Shown { stub: &stub, key: &key, proof: &proof };
    proven_key(shown, str_at(request, &["spec", "podUID"]))
        .map(Some)
        .map_err(|(field, why)| FieldError::unshown(format!("spec.{field}"), why))
}

/// Whether a request is issued.
fn is_issued(request: &Object) -> bool {
    conditions_of(request).iter().any(|condition| condition["type"] == "Issued" && condition["status"] == "True")
}

fn issued(attributes: &Attributes<'_>, old: &Object) -> Result<(), FieldError> {
    let new = &attributes.object;
    let chain = str_at(new, &["status", "certificateChain"]);
    if !is_issued(new) || is_issued(old) || chain.is_empty() {
        return Ok(());
    }
    let of_chain = |why: &str| FieldError::unshown("status.certificateChain", why);
    let facts = read_chain(chain).map_err(of_chain)?;
    // Who asked showed this key, and it has not changed since.
    if proven(old)?.is_some_and(|key| key != facts.key) {
        return Err(of_chain("leaf certificate was not issued to the requested public key"));
    }
    for (field, in_leaf_s, name) in
        [("notBefore", facts.not_before_unix_s, "NotBefore"), ("notAfter", facts.not_after_unix_s, "NotAfter")]
    {
        let said = str_at(new, &["status", field]).parse::<Timestamp>();
        if said.is_ok_and(|said| said.as_second() != in_leaf_s) {
            let why = format!("must be set to the {name} time encoded in the leaf certificate");
            return Err(FieldError::unshown(format!("status.{field}"), why));
        }
    }
    if (attributes.env.now().as_second() - facts.not_before_unix_s).abs() > MAX_SKEW_S {
        let why = "must be set to within 5 minutes of kube-apiserver's current time";
        return Err(FieldError::unshown("status.notBefore", why));
    }
    Ok(())
}
