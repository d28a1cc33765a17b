//! From a client certificate to a caller: the common name is the user, organizations are groups, and there may be a UID.
//!
//! That the certificate is valid, in time and made for clients has been verified before ([`crate::tls::Clients`]).

use ring::digest::{SHA256, digest};
use rustls_pki_types::CertificateDer;
use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::caller::Caller;
use crate::token::BoundNames;

/// What a subject has its user's UID under (`AllowParsingUserUIDFromCertAuth` of upstream, on by default since v1.34).
pub(crate) const UID_ATTRIBUTE: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// Why a certificate names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Nobody vouches for it.
    #[error("the client certificate is not accepted: {0}")]
    Unverified(String),
    /// It does not parse.
    #[error("the client certificate does not parse: {0}")]
    Parse(String),
    /// Its subject has no common name, or none that can be read.
    #[error("the client certificate has no common name")]
    NoName,
    /// Its subject has more than one UID, or one that says nothing.
    #[error("the client certificate has not one UID")]
    Uid,
}

/// The caller that a verified certificate names.
///
/// # Errors
/// [`CertificateError`].
pub(crate) fn caller_of_certificate(certificate: &CertificateDer<'_>) -> Result<Caller, CertificateError> {
    let parsed = parse(certificate)?;
    let subject = parsed.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().map(str::to_owned).ok();
    // The last one counts, as in Go. If that cannot be read, it is nobody's, and not that of one before it.
    let user = subject.iter_common_name().last().and_then(text).filter(|name| !name.is_empty());
    let mut caller = Caller::new(user.ok_or(CertificateError::NoName)?, subject.iter_organization().filter_map(text));
    let mut uids = subject.iter_attributes().filter(|attribute| *attribute.attr_type() == UID_ATTRIBUTE);
    if let Some(first) = uids.next() {
        let uid = text(first).filter(|uid| !uid.is_empty() && uids.next().is_none());
        caller.uid = uid.ok_or(CertificateError::Uid)?;
    }
    let hash = digest(&SHA256, certificate);
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    caller.extra.insert(BoundNames::CREDENTIAL_ID.into(), vec![format!("X509SHA256={hex}")]);
    Ok(caller)
}

/// Until when a certificate is valid, in seconds since 1970.
pub(crate) fn until_unix_s(certificate: &CertificateDer<'_>) -> Result<i64, CertificateError> {
    Ok(parse(certificate)?.validity().not_after.timestamp())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    X509Certificate::from_der(certificate)
        .map(|(_, parsed)| parsed)
        .map_err(|error| CertificateError::Parse(error.to_string()))
}
