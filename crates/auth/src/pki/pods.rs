//! Keys of pods that ask for certificates: whether who asks has the key, and what was issued for it.
//!
//! Upstream: `pkg/apis/certificates/validation`, `ValidatePodCertificateRequestCreate` and its like for the status.

use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

const CERTIFICATE: &str = "CERTIFICATE";
/// Sizes of RSA keys, in bits.
const RSA_BITS: [usize; 2] = [3072, 4096];

/// What a pod shows of its key, each as it is in DER; empty where it shows it in the other way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown<'a> {
    /// A request of its own, which the key signed.
    pub stub: &'a [u8],
    /// The public key.
    pub key: &'a [u8],
    /// The pod's UID, signed with it.
    pub proof: &'a [u8],
}

/// What is wrong with what is shown: the field of the request, and why.
pub type ShownFault = (&'static str, &'static str);

/// The public key of a pod that shows that it has it, in DER.
///
/// # Errors
/// The fault.
pub fn proven_key(shown: Shown<'_>, pod_uid: &str) -> Result<Vec<u8>, ShownFault> {
    if !shown.stub.is_empty() {
        let bad = |why| ("stubPKCS10Request", why);
        let Ok(([], request)) = X509CertificationRequest::from_der(shown.stub) else {
            return Err(bad("must be a valid PKCS#10 certificate signing request"));
        };
        let key = &request.certification_request_info.subject_pki;
        algorithm(key).map_err(bad)?;
        request.verify_signature().map_err(|_| bad("could not verify the signature of the request"))?;
        return Ok(key.raw.to_vec());
    }
    let bad = |why| ("pkixPublicKey", why);
    let Ok(([], key)) = SubjectPublicKeyInfo::from_der(shown.key) else {
        return Err(bad("must be a valid PKIX-serialized public key"));
    };
    let algorithm = algorithm(&key).map_err(bad)?;
    let bytes: &[u8] = &key.subject_public_key.data;
    UnparsedPublicKey::new(algorithm, bytes)
        .verify(pod_uid.as_bytes(), shown.proof)
        .map_err(|_| ("proofOfPossession", "could not verify proof-of-possession signature"))?;
    Ok(key.raw.to_vec())
}

/// How a key signs; none where it is of no kind that pods may have. Of upstream's, P-521 is unknown here.
fn algorithm(key: &SubjectPublicKeyInfo<'_>) -> Result<&'static dyn VerificationAlgorithm, &'static str> {
    let kind = &key.algorithm.algorithm;
    if *kind == OID_SIG_ED25519 {
        return Ok(&signature::ED25519);
    }
    if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
        return match curve {
            Some(curve) if curve == OID_EC_P256 => Ok(&signature::ECDSA_P256_SHA256_ASN1),
            Some(curve) if curve == OID_NIST_EC_P384 => Ok(&signature::ECDSA_P384_SHA256_ASN1),
            _ => Err("elliptic public keys must use curve P256 or P384"),
        };
    }
    if *kind == OID_PKCS1_RSAENCRYPTION {
        return match key.parsed() {
            Ok(PublicKey::RSA(rsa)) if RSA_BITS.contains(&rsa.key_size()) => Ok(&signature::RSA_PSS_2048_8192_SHA256),
            _ => Err("RSA keys must have modulus size 3072 or 4096"),
        };
    }
    Err("unknown public key type; supported types are Ed25519, ECDSA, and RSA")
}

/// What the first certificate of a chain says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainFacts {
    /// Whose it is: the public key, in DER.
    pub key: Vec<u8>,
    /// From when on it is valid, in seconds.
    pub not_before_unix_s: i64,
    /// Until when it is valid, in seconds.
    pub not_after_unix_s: i64,
}

/// Reads a chain in PEM.
///
/// # Errors
/// What is wrong with it.
pub fn read_chain(text: &str) -> Result<ChainFacts, &'static str> {
    let mut leaf = None;
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let block = block.ok().filter(|block| block.label == CERTIFICATE);
        let block = block.ok_or("issued certificate chain must consist entirely of CERTIFICATE PEM blocks")?;
        let Ok(([], certificate)) = X509Certificate::from_der(&block.contents) else {
            return Err(match leaf {
                None => "leaf certificate does not parse as valid X.509",
                Some(_) => "intermediate certificate does not parse as valid X.509",
            });
        };
        leaf.get_or_insert_with(|| ChainFacts {
            key: certificate.public_key().raw.to_vec(),
            not_before_unix_s: certificate.validity().not_before.timestamp(),
            not_after_unix_s: certificate.validity().not_after.timestamp(),
        });
    }
    leaf.ok_or("issued certificate chain must contain at least one certificate")
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData as _, SigningKey as _,
    };

    use super::*;

    const UID: &str = "0b5e1b2c";

    #[test]
    fn keys_are_proven() {
        for pair in [
            KeyPair::generate().expect("a key"),
            KeyPair::generate_for(&PKCS_ED25519).expect("a key"),
            KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key"),
        ] {
            let key = pair.subject_public_key_info();
            let request = CertificateParams::default().serialize_request(&pair).expect("a request");
            let stub = Shown { stub: request.der(), ..Shown::default() };
            assert_eq!(proven_key(stub, UID).as_ref(), Ok(&key), "{pair:?}");
            let mut forged = request.der().to_vec();
            if let Some(last) = forged.last_mut() {
                *last ^= 1;
            }
            assert!(proven_key(Shown { stub: &forged, ..Shown::default() }, UID).is_err(), "{pair:?}");
        }
        let pair = KeyPair::generate().expect("a key");
        let key = pair.subject_public_key_info();
        let (proof, other) = (pair.sign(UID.as_bytes()).expect("a proof"), pair.sign(b"another").expect("a proof"));
        for (key, proof, want) in [
            (&key[..], &proof[..], Ok(())),
            (&key[..], &other[..], Err("proofOfPossession")),
            (&b"nonsense"[..], &proof[..], Err("pkixPublicKey")),
        ] {
            let got = proven_key(Shown { stub: &[], key, proof }, UID);
            assert_eq!(got.map(drop).map_err(|(field, _)| field), want);
        }
    }

    #[test]
    fn chains_are_read() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pki = super::super::Pki::open_or_create(directory.path(), 1_800_000_000).expect("pki");
        let leaf = pki.client(&super::super::Identity::Admin, 1_800_000_000).expect("a certificate").certificate;
        let facts = read_chain(&format!("{leaf}{}", pki.ca_pem())).expect("a chain");
        assert!(facts.not_before_unix_s <= 1_800_000_000 && facts.not_after_unix_s > 1_800_000_000, "{facts:?}");
        for (chain, want) in [
            (String::new(), "at least one certificate"),
            ("-----BEGIN X-----\naGVsbG8=\n-----END X-----\n".to_owned(), "entirely of CERTIFICATE"),
            ("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n".to_owned(), "leaf certificate"),
        ] {
            assert!(read_chain(&chain).is_err_and(|why| why.contains(want)), "{chain}");
        }
    }
}
