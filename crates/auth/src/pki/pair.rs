//! A certificate and its private key in PEM, that somebody hands in: whether they are a pair.

use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;

const CERTIFICATE: &str = "CERTIFICATE";
const KEY: &str = "PRIVATE KEY";

/// What is wrong with a certificate, which its authorities may follow, and the private key that is to be its, in the words of
/// Go's `tls.X509KeyPair`. A key of a kind that this program does not know may be the one.
#[must_use]
pub fn pair_fault(certificate: &[u8], key: &[u8]) -> Option<String> {
    pair(certificate, key).err()
}

fn pair(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let leaf = first(certificate, is_certificate).map_err(|skipped| match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in certificate input".to_owned(),
        [one] if is_key(one) => {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been \
             switched"
                .to_owned()
        }
        many => format!(
            "tls: failed to find \"{CERTIFICATE}\" PEM block in certificate input after skipping PEM blocks of the following \
             types: [{}]",
            many.join(" ")
        ),
    })?;
    if !matches!(X509Certificate::from_der(&leaf), Ok(([], _))) {
        return Err("x509: malformed certificate".to_owned());
    }
    let key = first(key, is_key).map_err(|skipped| match skipped.as_slice() {
        [] => "tls: failed to find any PEM data in key input".to_owned(),
        [one] if is_certificate(one) => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        many => format!(
            "tls: failed to find PEM block with type ending in \"{KEY}\" in key input after skipping PEM blocks of the following \
             types: [{}]",
            many.join(" ")
        ),
    })?;
    let key = PrivateKeyDer::try_from(key.as_slice()).map_err(|_| "tls: failed to parse private key".to_owned())?;
    let Ok(key) = any_supported_type(&key) else { return Ok(()) };
    match CertifiedKey::new(vec![CertificateDer::from(leaf)], key).keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err("tls: private key does not match public key".to_owned())
        }
        _ => Ok(()),
    }
}

fn is_certificate(label: &str) -> bool {
    label == CERTIFICATE
}

fn is_key(label: &str) -> bool {
    label.strip_suffix(KEY).is_some_and(|kind| kind.is_empty() || kind.ends_with(' '))
}

/// What is in the first block of PEM of a kind; the labels of all blocks where there is none.
fn first(pem: &[u8], is_it: fn(&str) -> bool) -> Result<Vec<u8>, Vec<String>> {
    let mut skipped = Vec::new();
    for block in Pem::iter_from_buffer(pem).filter_map(Result::ok) {
        if is_it(&block.label) {
            return Ok(block.contents);
        }
        skipped.push(block.label);
    }
    Err(skipped)
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, Pki};
    use super::*;

    #[test]
    fn pairs() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
        let pair = pki.client(&Identity::Admin, 1_800_000_000).expect("a certificate");
        let (leaf, key, ca) = (pair.certificate.as_str(), pair.key.expose(), pki.ca_pem());
        let block = |label: &str| format!("-----BEGIN {label}-----\naGVsbG8=\n-----END {label}-----\n");
        let (chain, odd, broken) = (format!("{leaf}{ca}"), block("X509 CRL"), block("CERTIFICATE"));
        let no_key = block("EC PRIVATE KEY");
        for (certificate, key, want) in [
            (leaf, key, ""),
            (chain.as_str(), key, ""),
            (ca, key, "tls: private key does not match public key"),
            ("", key, "tls: failed to find any PEM data in certificate input"),
            (key, leaf, "PEM inputs may have been switched"),
            (odd.as_str(), key, "after skipping PEM blocks of the following types: [X509 CRL]"),
            (broken.as_str(), key, "x509: malformed certificate"),
            (leaf, "", "tls: failed to find any PEM data in key input"),
            (leaf, leaf, "tls: found a certificate rather than a key in the PEM for the private key"),
            (leaf, odd.as_str(), "in key input after skipping PEM blocks of the following types: [X509 CRL]"),
            (leaf, no_key.as_str(), "tls: failed to parse private key"),
        ] {
            let found = pair_fault(certificate.as_bytes(), key.as_bytes());
            assert_eq!(found.is_none(), want.is_empty(), "{certificate} {found:?}");
            assert!(found.is_none_or(|found| found.contains(want)), "{certificate} {want}");
        }
    }
}
