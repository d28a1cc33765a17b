//! The compact form of a signed token (RFC 7515): three base64url parts with dots between.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::key::{KeyError, SigningKey};

/// Tokens longer than this are not looked at.
pub(super) const MAX_TOKEN_BYTES: usize = 16 * 1024;

#[derive(Serialize, Deserialize)]
pub(super) struct Header {
    pub alg: String,
    #[serde(default)]
    pub kid: String,
}

/// A token taken apart; nothing in it is proved yet.
pub(super) struct Parts<'a> {
    pub header: Header,
    pub signed: &'a [u8],
    pub signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> Parts<'a> {
    /// None when it is no compact JWS with a JSON header.
    pub(super) fn split(token: &'a str) -> Option<Self> {
        if token.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        Some(Self {
            header: serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?,
            signed: signed.as_bytes(),
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
            payload,
        })
    }

    /// The issuer that the token claims, before anything is proved: it decides whose token it is.
    pub(super) fn claimed_issuer(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Iss {
            iss: String,
        }
        let json = URL_SAFE_NO_PAD.decode(self.payload).ok()?;
        Some(serde_json::from_slice::<Iss>(&json).ok()?.iss)
    }

    /// The claims; call it only after the signature has been verified.
    pub(super) fn claims<C: DeserializeOwned>(&self) -> Option<C> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(self.payload).ok()?).ok()
    }
}

/// Signs claims.
pub(super) fn sign<C: Serialize>(claims: &C, key: &SigningKey) -> Result<String, SignError> {
    let header = Header { alg: "ES256".into(), kid: key.verifying_key().kid().into() };
    let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&header)?);
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
    let signature = key.sign(token.as_bytes())?;
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    Ok(token)
}

/// Why claims were not signed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignError {
    #[error("the claims cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Key(#[from] KeyError),
}
