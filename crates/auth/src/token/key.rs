//! The P-256 keys that sign and verify tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::secret::Secret;

/// The DER of a P-256 `SubjectPublicKeyInfo` up to the point (RFC 5480).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Why a key could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No PKCS#8 private key in the PEM text.
    #[error("no PKCS#8 private key in the PEM text: {0}")]
    Pem(rustls_pki_types::pem::Error),
    /// The key is not a P-256 key.
    #[error("not a P-256 private key: {0}")]
    Rejected(String),
    /// The system gave no randomness for a signature.
    #[error("no randomness for a signature")]
    Random,
}

/// The key that tokens are signed with.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
    public: VerifyingKey,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.public.kid).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Reads a PKCS#8 key from PEM.
    ///
    /// # Errors
    /// [`KeyError`] when it is no P-256 key.
    pub fn from_pem(pem: &Secret) -> Result<Self, KeyError> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.expose().as_bytes()).map_err(KeyError::Pem)?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &random)
            .map_err(|rejected| KeyError::Rejected(rejected.to_string()))?;
        let public = VerifyingKey::from_point(pair.public_key().as_ref());
        Ok(Self { pair, random, public })
    }

    /// The public half.
    #[must_use]
    pub fn verifying_key(&self) -> &VerifyingKey {
        &self.public
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.pair.sign(&self.random, message).map_err(|_| KeyError::Random)?;
        Ok(signature.as_ref().to_vec())
    }
}

/// A key that tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKey {
    kid: String,
    point: Vec<u8>,
}

impl VerifyingKey {
    fn from_point(point: &[u8]) -> Self {
        let spki = [&SPKI_PREFIX[..], point].concat();
        Self {
            // Upstream's key id: the hash of the public key's DER.
            kid: URL_SAFE_NO_PAD.encode(digest(&SHA256, &spki)),
            point: point.to_vec(),
        }
    }

    /// The key id, as it stands in a token's header.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public key's DER (`SubjectPublicKeyInfo`).
    #[must_use]
    pub fn spki_der(&self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.point].concat()
    }

    /// The coordinates x and y, 32 bytes each.
    pub(super) fn coordinates(&self) -> (&[u8], &[u8]) {
        // ring's public key is the uncompressed point: 4, x, y.
        let coordinates = self.point.get(1..).unwrap_or_default();
        coordinates.split_at(coordinates.len() / 2)
    }

    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &self.point).verify(message, signature).is_ok()
    }
}
