//! The other side of certificate requests: a key with a request for it, and whether what came back is for them.

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest::{SHA256, digest};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::issue::{alternatives, making};
use super::{KeyPairPem, PkiError, Sans};
use crate::caller::{GROUP_NODES, NODE_USER_PREFIX};
use crate::secret::Secret;
use crate::tls::{Reloadable, TlsError};

/// Whom a certificate is to name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The common name, which becomes the user.
    pub common_name: String,
    /// The organization, which becomes the group; none when empty.
    pub organization: String,
    /// Names and addresses of a server; none for a client.
    pub sans: Sans,
}

impl Subject {
    /// A node's kubelet: as a client without names, as a server with those by which it is reached.
    #[must_use]
    pub fn kubelet(node: &str, sans: Sans) -> Self {
        Self { common_name: format!("{NODE_USER_PREFIX}{node}"), organization: GROUP_NODES.into(), sans }
    }
}

/// A new private key, PKCS#8 in PEM.
///
/// # Errors
/// [`PkiError::Issue`].
pub fn new_key() -> Result<Secret, PkiError> {
    Ok(Secret::new(KeyPair::generate().map_err(making("a key"))?.serialize_pem()))
}

/// A request by which this key's owner asks for a certificate, in PEM.
///
/// # Errors
/// The key cannot be read, or a name cannot stand in a certificate.
pub fn new_request(key: &Secret, subject: &Subject) -> Result<String, PkiError> {
    let what = "a certificate request";
    let key = KeyPair::from_pem(key.expose()).map_err(making(what))?;
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    if !subject.organization.is_empty() {
        name.push(DnType::OrganizationName, subject.organization.as_str());
    }
    name.push(DnType::CommonName, subject.common_name.as_str());
    params.distinguished_name = name;
    params.subject_alt_names = alternatives(&subject.sans)?;
    params.serialize_request(&key).and_then(|request| request.pem()).map_err(making(what))
}

/// A short name for a key, the same whenever it is asked for: in hexadecimal.
///
/// # Errors
/// The key cannot be read.
pub fn key_fingerprint(key: &Secret) -> Result<String, PkiError> {
    use rcgen::PublicKeyData as _;
    let key = KeyPair::from_pem(key.expose()).map_err(making("a key's name"))?;
    let hash = digest(&SHA256, &key.subject_public_key_info());
    Ok(hash.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// What a certificate says of its owner and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Whom it names.
    pub subject: Subject,
    /// From when on it is valid, in seconds.
    pub not_before_unix_s: i64,
    /// Until when it is valid, in seconds.
    pub not_after_unix_s: i64,
}

impl CertificateFacts {
    /// Whether it can stand in for what is wanted: the same owner, and all names that are wanted.
    #[must_use]
    pub fn satisfies(&self, wanted: &Subject) -> bool {
        let (own, other) = (&self.subject, wanted);
        own.common_name == other.common_name
            && own.organization == other.organization
            && own.sans.names.is_superset(&other.sans.names)
            && own.sans.addresses.is_superset(&other.sans.addresses)
    }
}

/// Why a certificate and a key are no pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// They do not belong together, or cannot be read.
    #[error("certificate and key are no pair")]
    Tls(#[from] TlsError),
    /// The certificate does not say whose it is.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
}

impl KeyPairPem {
    /// What the certificate says, once it is sure that the key is its key.
    ///
    /// # Errors
    /// They are no pair.
    pub fn facts(&self) -> Result<CertificateFacts, PairError> {
        let key = Reloadable::new(self)?;
        let der = key.leaf().ok_or_else(|| PairError::Unreadable("there is none".into()))?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|e| PairError::Unreadable(e.to_string()))?;
        let text = |oid: &x509_parser::der_parser::oid::Oid<'_>| {
            let found = certificate.subject().iter_by_oid(oid).next();
            found.and_then(|attribute| attribute.as_str().ok()).unwrap_or_default().to_owned()
        };
        Ok(CertificateFacts {
            subject: Subject {
                common_name: text(&x509_parser::oid_registry::OID_X509_COMMON_NAME),
                organization: text(&x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME),
                sans: super::issue::sans(&certificate).map_err(PairError::Unreadable)?,
            },
            not_before_unix_s: certificate.validity().not_before.timestamp(),
            not_after_unix_s: certificate.validity().not_after.timestamp(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pki, SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING};
    use super::*;

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn what_is_asked_for_is_signed_and_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(directory.path(), NOW).expect("a PKI");
        let signer = pki.request_signer(NOW).expect("a signer");
        let key = new_key().expect("a key");
        assert_eq!(key_fingerprint(&key).expect("a name"), key_fingerprint(&key).expect("a name"));
        let named = Sans::default().with_name("n1").with_name("192.0.2.1");
        for (sans, name, usage) in [
            (Sans::default(), SIGNER_KUBELET_CLIENT, "client auth"),
            (named.clone(), SIGNER_KUBELET_SERVING, "server auth"),
        ] {
            let subject = Subject::kubelet("n1", sans);
            let request = new_request(&key, &subject).expect("a request");
            let usages = ["digital signature".to_owned(), usage.to_owned()];
            let certificate = signer.sign(request.as_bytes(), name, &usages, Some(3600), NOW).expect("a certificate");
            let pair = KeyPairPem { certificate, key: key.clone() };
            let facts = pair.facts().expect("facts");
            assert_eq!((&facts.subject, facts.not_after_unix_s), (&subject, NOW + 3600));
            assert!(facts.satisfies(&subject));
            assert!(!facts.satisfies(&Subject::kubelet("n2", Sans::default())));
            assert_eq!(facts.satisfies(&Subject::kubelet("n1", named.clone())), name == SIGNER_KUBELET_SERVING);
            let other = KeyPairPem { key: new_key().expect("another key"), ..pair };
            assert!(matches!(other.facts(), Err(PairError::Tls(_))));
        }
    }
}
