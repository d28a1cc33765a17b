//! Certificates in PEM that somebody hands in: what is wrong with a bundle of authorities that others are to trust, and with
//! what a signer issues.
//!
//! Upstream: `pkg/apis/certificates/validation`, `validateTrustBundle` and `validateCertificate`.

use std::collections::BTreeMap;

use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;

const CERTIFICATE: &str = "CERTIFICATE";

/// What is wrong with a bundle in PEM: nothing but certificates of authorities may be in it, each once, and one at least.
#[must_use]
pub fn bundle_faults(text: &str) -> Vec<String> {
    let (mut faults, mut known) = (Vec::new(), BTreeMap::<Vec<u8>, Vec<usize>>::new());
    for (at, block) in Pem::iter_from_buffer(text.as_bytes()).enumerate() {
        match block.map_err(|_| format!("entry {at} does not parse as PEM")).and_then(|block| authority(at, block)) {
            Ok(der) => known.entry(der).or_default().push(at),
            Err(fault) => faults.push(fault),
        }
    }
    // What else there is to say may come of these.
    if !faults.is_empty() {
        return faults;
    }
    if known.is_empty() {
        faults.push("at least one trust anchor must be provided".to_owned());
    }
    let mut twice: Vec<&Vec<usize>> = known.values().filter(|places| places.len() > 1).collect();
    twice.sort();
    let told = |places: &Vec<usize>| places.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    faults.extend(twice.into_iter().map(|places| format!("duplicate trust anchor (indices [{}])", told(places))));
    faults
}

/// What is wrong with an issued certificate in PEM, which its authorities may follow: it is certificates and nothing else.
#[must_use]
pub fn issued_fault(pem: &[u8]) -> Option<String> {
    let mut count = 0;
    for (at, block) in Pem::iter_from_buffer(pem).enumerate() {
        // Blocks with headers are among these, which are permitted in none.
        let Ok(block) = block else { return Some(format!("entry {at} does not parse as PEM")) };
        if block.label != CERTIFICATE {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if !matches!(X509Certificate::from_der(&block.contents), Ok(([], _))) {
            return Some(format!("entry {at} does not parse as X.509"));
        }
        count += 1;
    }
    (count == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

fn authority(at: usize, block: Pem) -> Result<Vec<u8>, String> {
    if block.label != CERTIFICATE {
        return Err(format!("entry {at} has bad block type: {}", block.label));
    }
    match X509Certificate::from_der(&block.contents) {
        Ok(([], certificate)) => {
            if !certificate.is_ca() {
                return Err(format!("entry {at} does not have the CA bit set"));
            }
        }
        _ => return Err(format!("entry {at} does not parse as X.509")),
    }
    Ok(block.contents)
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, Pki};
    use super::*;

    #[test]
    fn bundles() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
        let leaf = pki.client(&Identity::Admin, 1_800_000_000).expect("a certificate");
        let (one, other, leaf) = (pki.ca_pem(), pki.front_proxy_ca_pem(), leaf.certificate);
        let block = |label: &str, content: &str| format!("-----BEGIN {label}-----\n{content}\n-----END {label}-----\n");
        for (bundle, want) in [
            (one.to_owned(), vec![]),
            (format!("of some use\n{one}{other}"), vec![]),
            (String::new(), vec!["at least one trust anchor must be provided"]),
            ("nothing".to_owned(), vec!["at least one trust anchor must be provided"]),
            (format!("{one}{other}{one}"), vec!["duplicate trust anchor (indices [0 2])"]),
            (format!("{one}{leaf}"), vec!["entry 1 does not have the CA bit set"]),
            (block("CERTIFICATE", "aGVsbG8="), vec!["entry 0 does not parse as X.509"]),
            (block("PRIVATE KEY", "aGVsbG8=") + one, vec!["entry 0 has bad block type: PRIVATE KEY"]),
            (format!("{one}-----BEGIN CERTIFICATE-----\n"), vec!["entry 1 does not parse as PEM"]),
        ] {
            assert_eq!(bundle_faults(&bundle), want, "{bundle}");
        }
    }

    #[test]
    fn issued_certificates() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pki = Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
        let leaf = pki.client(&Identity::Admin, 1_800_000_000).expect("a certificate").certificate;
        let none = Some("must contain at least one CERTIFICATE PEM block");
        for (pem, want) in [
            (leaf.clone(), None),
            (format!("for jane\n{leaf}{}", pki.ca_pem()), None),
            (String::new(), none),
            ("nothing".to_owned(), none),
            (
                leaf.replace("CERTIFICATE", "X509 CRL"),
                Some("only CERTIFICATE PEM blocks are allowed, found \"X509 CRL\""),
            ),
            (
                format!("{leaf}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                Some("entry 1 does not parse as X.509"),
            ),
            (
                leaf.replace("-----BEGIN CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\nOf: jane\n\n"),
                Some("entry 0 does not parse as PEM"),
            ),
        ] {
            assert_eq!(issued_fault(pem.as_bytes()).as_deref(), want, "{pem}");
        }
    }
}
