//! Authentication: from a connection's certificate and a request's headers to a [`Caller`].
//!
//! In upstream's order: client certificate, then bearer token (static ones, then service account
//! tokens), then anonymous. Bootstrap tokens are looked up by the API server, which has the secrets. A token that is
//! presented and not accepted is an error and never falls back to anonymous.

pub mod bootstrap_tokens;
mod impersonation;
mod static_tokens;
#[cfg(test)]
mod tests;
mod x509;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};

pub(crate) use impersonation::{HEADER_EXTRA_PREFIX, HEADER_GROUP, HEADER_UID, HEADER_USER};
pub use impersonation::{Impersonated, ImpersonationError, impersonate, strip_impersonation, verb_on};
pub use static_tokens::{StaticTokens, StaticTokensError};
pub use x509::CertificateError;
pub(crate) use x509::{UID_ATTRIBUTE, caller_of_certificate, until_unix_s};

use crate::caller::{Caller, GROUP_AUTHENTICATED};
use crate::secret::Secret;
use crate::token::{BoundObject, Lookup, TokenError, Verified, Verifier};

/// Browsers cannot set headers on a WebSocket; they send the token as a subprotocol.
pub const WEBSOCKET_TOKEN_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Why a request's credentials are not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthnError {
    /// 401: the token is unknown or not valid. The reason is for the log, not for the client.
    #[error("the bearer token is not accepted: {0}")]
    Rejected(TokenError),
    /// 401: the credentials cannot be read.
    #[error("malformed credentials: {0}")]
    Malformed(&'static str),
    /// 401: there are none, and such a request is not taken without.
    #[error("no credentials")]
    Missing,
    /// 503: whether the token is valid could not be found out.
    #[error("the bearer token could not be checked: {0}")]
    Unavailable(TokenError),
}

impl From<TokenError> for AuthnError {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Unknown { .. } => Self::Unavailable(error),
            other => Self::Rejected(other),
        }
    }
}

/// Which requests without credentials are taken, as the anonymous user's. What that one may do is for others to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// Any.
    #[default]
    All,
    /// None.
    None,
    /// Those with one of these paths.
    At(BTreeSet<String>),
}

impl Anonymous {
    fn takes(&self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::At(paths) => paths.contains(path),
        }
    }
}

/// Knows who may present which credentials.
#[derive(Clone, Debug)]
pub struct Authenticator {
    verifier: Verifier,
    static_tokens: StaticTokens,
    anonymous: Anonymous,
}

/// How far a request's credentials got without looking at any object.
#[derive(Clone, Debug)]
pub enum Presented {
    /// Authenticated.
    Caller(Caller),
    /// A good service account token; what it is bound to is to be confirmed.
    Token(Box<Verified>),
}

impl Presented {
    /// What must be looked up for [`Self::confirm`].
    #[must_use]
    pub fn needs(&self) -> Vec<BoundObject> {
        match self {
            Self::Caller(_) => Vec::new(),
            Self::Token(verified) => verified.needs(),
        }
    }

    /// Whether it is a token that goes on being valid though its holder was to have another by now ([`Verified::is_stale`]).
    #[must_use]
    pub fn is_stale(&self, now_unix_s: i64) -> Option<bool> {
        match self {
            Self::Caller(_) => None,
            Self::Token(verified) => verified.is_stale(now_unix_s),
        }
    }

    /// The Secret that holds it, of a token that is good as long as one does ([`Verified::held_in`]).
    #[must_use]
    pub fn held_in(&self) -> Option<BoundObject> {
        match self {
            Self::Caller(_) => None,
            Self::Token(verified) => verified.held_in(),
        }
    }

    /// The caller, once what its token is bound to has been looked up.
    ///
    /// # Errors
    /// When something is gone, or unknown.
    pub fn confirm(self, now_unix_s: i64, lookup: &dyn Lookup) -> Result<Caller, AuthnError> {
        match self {
            Self::Caller(caller) => Ok(caller),
            Self::Token(verified) => Ok(verified.confirm(now_unix_s, lookup)?),
        }
    }
}

impl Authenticator {
    /// An authenticator that accepts service account tokens, certificates and anonymous requests.
    #[must_use]
    pub fn new(verifier: Verifier) -> Self {
        Self { verifier, static_tokens: StaticTokens::default(), anonymous: Anonymous::All }
    }

    /// Also accepts these tokens.
    #[must_use]
    pub fn with_static_tokens(mut self, tokens: StaticTokens) -> Self {
        self.static_tokens = tokens;
        self
    }

    /// Takes these requests without credentials, and refuses the others.
    #[must_use]
    pub fn with_anonymous(mut self, anonymous: Anonymous) -> Self {
        self.anonymous = anonymous;
        self
    }

    /// Who sends this request for a path? `peer` is the client certificate's user, as the TLS layer verified it
    /// (see [`crate::tls::Clients`]).
    ///
    /// # Errors
    /// [`AuthnError`]; the answer to the client is 401, or 503 for [`AuthnError::Unavailable`].
    pub fn authenticate(
        &self,
        peer: Option<&Caller>,
        path: &str,
        headers: &HeaderMap,
        now_unix_s: i64,
        lookup: &dyn Lookup,
    ) -> Result<Caller, AuthnError> {
        self.present(peer, path, headers, now_unix_s)?.confirm(now_unix_s, lookup)
    }

    /// The first half of [`Self::authenticate`], for callers that look up asynchronously.
    ///
    /// # Errors
    /// As [`Self::authenticate`].
    pub fn present(
        &self,
        peer: Option<&Caller>,
        path: &str,
        headers: &HeaderMap,
        now_unix_s: i64,
    ) -> Result<Presented, AuthnError> {
        if let Some(peer) = peer {
            return Ok(Presented::Caller(peer.clone()));
        }
        match bearer_token(headers)? {
            Some(token) => self.present_token(&token, &[], now_unix_s),
            None if self.anonymous.takes(path) => Ok(Presented::Caller(Caller::anonymous())),
            None => Err(AuthnError::Missing),
        }
    }

    /// Checks a token for given audiences (none: the API server's), as a TokenReview does. The
    /// audiences that match are [`Verified::audiences`]; static tokens are good for the API server's.
    ///
    /// # Errors
    /// As [`Self::authenticate`].
    pub fn present_token(
        &self,
        token: &Secret,
        audiences: &[String],
        now_unix_s: i64,
    ) -> Result<Presented, AuthnError> {
        let for_us = audiences.is_empty() || audiences.iter().any(|a| self.verifier.api_audiences().contains(a));
        if let Some(caller) = self.static_tokens.find(token).filter(|_| for_us) {
            let mut caller = caller.clone();
            caller.add_group(GROUP_AUTHENTICATED);
            return Ok(Presented::Caller(caller));
        }
        let verified = self.verifier.verify(token.expose(), audiences, now_unix_s)?;
        Ok(Presented::Token(Box::new(verified)))
    }

    /// The audiences of the API server itself.
    #[must_use]
    pub fn api_audiences(&self) -> &[String] {
        self.verifier.api_audiences()
    }
}

/// The request's bearer token, from its `Authorization` header or WebSocket subprotocols.
///
/// # Errors
/// When there is one that cannot be read.
pub fn bearer_token(headers: &HeaderMap) -> Result<Option<Secret>, AuthnError> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let text = value.to_str().map_err(|_| AuthnError::Malformed("Authorization is not text"))?;
        let Some((scheme, token)) = text.trim().split_once(' ') else {
            return Ok(None);
        };
        let token = token.trim();
        // Another scheme is nobody's here; upstream treats the request as anonymous, and so do we.
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return Ok(None);
        }
        return Ok(Some(Secret::new(token)));
    }
    let named = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let (tokens, others): (Vec<&str>, Vec<&str>) = named
        .flat_map(|text| text.split(','))
        .map(str::trim)
        .partition(|protocol| protocol.starts_with(WEBSOCKET_TOKEN_PREFIX));
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [token] => token.strip_prefix(WEBSOCKET_TOKEN_PREFIX).unwrap_or(token),
        _ => return Err(AuthnError::Malformed("more than one WebSocket subprotocol is a token")),
    };
    let token = URL_SAFE_NO_PAD
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(AuthnError::Malformed("the WebSocket subprotocol's token is not base64url"))?;
    // A client gives up unless one of what it offers is agreed upon, and the token is never sent back.
    if others.is_empty() {
        return Err(AuthnError::Malformed("there is no WebSocket subprotocol beside the token"));
    }
    Ok(Some(Secret::new(token)))
}
