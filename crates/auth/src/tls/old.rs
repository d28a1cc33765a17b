//! Certificates of X.509's versions before the third, which have no extensions.
//!
//! `openssl x509 -req` without an extensions file makes such, and Go takes them from clients as it takes all others: what says
//! nothing of its purpose may be for clients. webpki reads none of them. So they are verified here, and no more than they can say:
//! one of the trusted authorities itself signed it, and both are valid now. As an authority such a certificate serves where it is
//! trusted itself, which webpki lets it; none of them vouches for others as a link in a chain (`x509.Certificate.Verify` in Go).

use rustls::CertificateError;
use rustls::DigitallySignedStruct;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::x509::SubjectPublicKeyInfo;

use super::verify::valid_at;
use crate::der::first;

/// The number by which the third version is written.
const THIRD: u32 = 2;

/// A certificate of an older version; none if it is of the third one, or cannot be read.
pub(super) fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    (rest.is_empty() && parsed.version().0 < THIRD && parsed.extensions().is_empty()).then_some(parsed)
}

/// Whether one of the authorities vouches for a client's certificate of an older version.
///
/// # Errors
/// When none does, or not at this time.
pub(super) fn vouched(
    certificate: &CertificateDer<'_>,
    parsed: &X509Certificate<'_>,
    authorities: &[CertificateDer<'static>],
    now: UnixTime,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), CertificateError> {
    valid_at(parsed, now)?;
    let vouches = |authority: &CertificateDer<'_>| {
        let Ok((_, authority)) = X509Certificate::from_der(authority) else { return false };
        authority.subject().as_raw() == parsed.issuer().as_raw()
            && may_sign(&authority)
            && valid_at(&authority, now).is_ok()
            && is_signed(certificate, parsed, authority.public_key(), algorithms)
    };
    if authorities.iter().any(vouches) { Ok(()) } else { Err(CertificateError::UnknownIssuer) }
}

/// Whether an authority's certificate says that it is one, where it can (`CheckSignatureFrom` in Go).
fn may_sign(authority: &X509Certificate<'_>) -> bool {
    if authority.version().0 < THIRD {
        return true;
    }
    let is_authority = authority.basic_constraints().ok().flatten().is_some_and(|constraints| constraints.value.ca);
    let signs = authority.key_usage().map(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    is_authority && signs.unwrap_or(false)
}

/// Whether the key's owner has signed a certificate.
fn is_signed(
    certificate: &CertificateDer<'_>,
    parsed: &X509Certificate<'_>,
    key: &SubjectPublicKeyInfo<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let Some(how) = signature_algorithm(certificate) else { return false };
    let text: &[u8] = parsed.tbs_certificate.as_ref();
    let signature: &[u8] = &parsed.signature_value.data;
    let mut fitting = algorithms.all.iter().filter(|known| AsRef::<[u8]>::as_ref(&known.signature_alg_id()) == how);
    fitting.any(|known| verifies(*known, key, text, signature))
}

/// Whether a signature of a handshake is that of a certificate's key, which webpki finds out of certificates of the third
/// version alone.
///
/// # Errors
/// When it is not.
pub(super) fn handshake(
    is_tls13: bool,
    message: &[u8],
    parsed: &X509Certificate<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let key = parsed.public_key();
    if is_tls13 {
        let key = SubjectPublicKeyInfoDer::from(key.raw);
        return verify_tls13_signature_with_raw_key(message, &key, signature, algorithms);
    }
    let known =
        algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signature.scheme).flat_map(|(_, known)| *known);
    for known in known {
        if verifies(*known, key, message, signature.signature()) {
            return Ok(HandshakeSignatureValid::assertion());
        }
    }
    Err(CertificateError::BadSignature.into())
}

fn verifies(
    known: &dyn SignatureVerificationAlgorithm,
    key: &SubjectPublicKeyInfo<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let is_of = |algorithm: &[u8]| AsRef::<[u8]>::as_ref(&known.public_key_alg_id()) == algorithm;
    key_algorithm(key.raw).is_some_and(is_of)
        && known.verify_signature(&key.subject_public_key.data, message, signature).is_ok()
}

/// The algorithm of a key: the first part of it.
fn key_algorithm(key: &[u8]) -> Option<&[u8]> {
    first(first(key)?.content).map(|algorithm| algorithm.content)
}

/// The algorithm with which a certificate is signed: what follows the text that is signed.
fn signature_algorithm<'a>(certificate: &'a CertificateDer<'_>) -> Option<&'a [u8]> {
    let signed = first(first(certificate)?.content)?;
    first(signed.rest).map(|algorithm| algorithm.content)
}
