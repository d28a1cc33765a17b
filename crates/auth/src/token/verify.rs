//! Verifying tokens: first what the token itself proves, then whether what it is bound to exists.
//!
//! The second step needs the cluster's objects. They are asked for through [`Lookup`]; a caller that
//! reads asynchronously takes [`Verified::needs`], reads those, and hands in a map.

use std::collections::BTreeMap;

use super::claims::{BoundNames, Claims, Reference};
use super::jws::Parts;
use super::key::VerifyingKey;
use super::legacy::{ISSUER as LEGACY_ISSUER, LegacyClaims};
use crate::caller::{Caller, split_service_account};
use crate::secret::Secret;

/// Clocks of issuer and verifier may differ by this much.
const CLOCK_LEEWAY_S: i64 = 60;
/// A deleted object's tokens go on working this long after its grace period, so that a pod can
/// finish in order (upstream's `legacy` validator has the same minute).
const DELETION_LEEWAY_S: i64 = 60;

/// An object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BoundObject {
    /// A service account.
    ServiceAccount {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A secret.
    Secret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A node.
    Node {
        /// Its name.
        name: String,
    },
}

impl std::fmt::Display for BoundObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ServiceAccount { namespace, name } => write!(f, "service account {namespace}/{name}"),
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Self::Secret { namespace, name } => write!(f, "secret {namespace}/{name}"),
            Self::Node { name } => write!(f, "node {name}"),
        }
    }
}

/// What is known of an object that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Its uid.
    pub uid: String,
    /// Its `deletionTimestamp`, in seconds since the Unix epoch.
    pub deletion_unix_s: Option<i64>,
    /// The token that it holds, of a Secret that does.
    pub token: Option<Secret>,
    /// Whether that is refused, as its label says (`kubernetes.io/legacy-token-invalid-since`).
    pub is_invalidated: bool,
    /// The day on which that was last used, as its label says (`kubernetes.io/legacy-token-last-used`).
    pub last_used: String,
}

/// An object could not be read: whether it exists is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

/// Looks up objects that tokens are bound to.
pub trait Lookup {
    /// The object, or that there is none.
    ///
    /// # Errors
    /// When it could not be found out.
    fn find(&self, object: &BoundObject) -> Result<Option<Found>, LookupError>;
}

/// What was read beforehand: an object that is not in the map was not read, and is unknown.
impl Lookup for BTreeMap<BoundObject, Option<Found>> {
    fn find(&self, object: &BoundObject) -> Result<Option<Found>, LookupError> {
        self.get(object).cloned().ok_or_else(|| LookupError(format!("{object} was not looked up")))
    }
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a token of this issuer, so that another authenticator may know it.
    #[error("not a token of this issuer")]
    NotOurs,
    /// The algorithm is not ES256, or the signature fits none of the keys.
    #[error("the token's signature is not valid")]
    Signature,
    /// The signed content is not that of a service account token.
    #[error("the token's claims are not those of a service account token")]
    Claims,
    /// It is past `exp`.
    #[error("the token has expired")]
    Expired,
    /// It is before `nbf` or `iat`.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// It is meant for somebody else.
    #[error("token audiences {got:?} is invalid for the target audiences {want:?}")]
    Audience {
        /// The token's.
        got: Vec<String>,
        /// The accepted ones.
        want: Vec<String>,
    },
    /// Something that it is bound to is gone.
    #[error("{0} has been deleted")]
    Gone(BoundObject),
    /// Something of that name exists, but it is another one.
    #[error("{0} exists, but is not the one that the token was issued for")]
    Replaced(BoundObject),
    /// The Secret that holds it says that it is good no more.
    #[error("the token in {0} has been marked invalid")]
    Invalidated(BoundObject),
    /// Whether something that it is bound to exists is unknown.
    #[error("whether {object} still exists is unknown: {source}")]
    Unknown {
        /// What was looked for.
        object: BoundObject,
        /// Why it is unknown.
        source: LookupError,
    },
}

/// Verifies tokens of one issuer.
#[derive(Clone, Debug)]
pub struct Verifier {
    issuer: String,
    keys: Vec<VerifyingKey>,
    api_audiences: Vec<String>,
}

/// A token whose signature, times and audience are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    claims: Claims,
    audiences: Vec<String>,
    /// The token itself, of one that a Secret holds.
    held: Option<Secret>,
}

impl Verifier {
    /// A verifier for an issuer's tokens, signed with any of the keys. The issuer's name is also the
    /// audience that is accepted.
    #[must_use]
    pub fn new(issuer: &str, keys: Vec<VerifyingKey>) -> Self {
        Self { issuer: issuer.into(), keys, api_audiences: vec![issuer.into()] }
    }

    /// The audiences of the API server itself.
    #[must_use]
    pub fn api_audiences(&self) -> &[String] {
        &self.api_audiences
    }

    /// Checks what the token itself proves. `audiences` are those of whom it is presented to;
    /// none means the API server.
    ///
    /// # Errors
    /// [`TokenError`], never [`TokenError::Gone`] and its like.
    pub fn verify(&self, token: &str, audiences: &[String], now_unix_s: i64) -> Result<Verified, TokenError> {
        let parts = Parts::split(token).ok_or(TokenError::NotOurs)?;
        let issuer = parts.claimed_issuer();
        let is_legacy = issuer.as_deref() == Some(LEGACY_ISSUER);
        if !is_legacy && issuer.as_deref() != Some(&self.issuer) {
            return Err(TokenError::NotOurs);
        }
        // Only this one algorithm: a token cannot choose a weaker one for itself.
        if parts.header.alg != "ES256" {
            return Err(TokenError::Signature);
        }
        let kid = &parts.header.kid;
        let mut candidates = self.keys.iter().filter(|key| kid.is_empty() || key.kid() == kid);
        if !candidates.any(|key| key.verify(parts.signed, &parts.signature)) {
            return Err(TokenError::Signature);
        }
        let claims: Option<Claims> = if is_legacy {
            parts.claims().and_then(|claims: LegacyClaims| claims.read(&self.api_audiences))
        } else {
            parts.claims()
        };
        let claims = claims.ok_or(TokenError::Claims)?;
        let names = (claims.kubernetes.namespace.as_str(), claims.kubernetes.serviceaccount.name.as_str());
        if split_service_account(&claims.sub) != Some(names) {
            return Err(TokenError::Claims);
        }
        if now_unix_s >= claims.exp.saturating_add(CLOCK_LEEWAY_S) {
            return Err(TokenError::Expired);
        }
        if now_unix_s < claims.nbf.max(claims.iat).saturating_sub(CLOCK_LEEWAY_S) {
            return Err(TokenError::NotYetValid);
        }
        let wanted = if audiences.is_empty() { &self.api_audiences } else { audiences };
        let matching: Vec<String> = wanted.iter().filter(|a| claims.aud.contains(a)).cloned().collect();
        if matching.is_empty() {
            return Err(TokenError::Audience { got: claims.aud, want: wanted.to_vec() });
        }
        Ok(Verified { claims, audiences: matching, held: is_legacy.then(|| Secret::new(token)) })
    }
}

impl Verified {
    /// What the token says.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Those of the audiences asked for that the token is meant for.
    #[must_use]
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Whether it goes on being valid though its holder was to have another by now; none for one that is valid for as long as it
    /// was asked for.
    #[must_use]
    pub fn is_stale(&self, now_unix_s: i64) -> Option<bool> {
        self.claims.kubernetes.warnafter.map(|at| now_unix_s > at)
    }

    /// The Secret that holds it, of a token that is good as long as one does.
    #[must_use]
    pub fn held_in(&self) -> Option<BoundObject> {
        self.needs().into_iter().find(|object| self.held_by(object).is_some())
    }

    /// What the object says that holds it, if this is that one.
    fn held_by(&self, object: &BoundObject) -> Option<&Secret> {
        self.held.as_ref().filter(|_| matches!(object, BoundObject::Secret { .. }))
    }

    /// Whether this is the object that the token names.
    fn names(&self, object: &BoundObject, reference: &Reference, found: &Found) -> bool {
        self.held_by(object).map_or(found.uid == reference.uid, |token| found.token.as_ref() == Some(token))
    }

    /// What must exist for the token to be good.
    #[must_use]
    pub fn needs(&self) -> Vec<BoundObject> {
        self.bound().into_iter().map(|(object, _)| object).collect()
    }

    fn bound(&self) -> Vec<(BoundObject, &Reference)> {
        let claims = &self.claims.kubernetes;
        let at = |reference: &Reference| (claims.namespace.clone(), reference.name.clone());
        let (namespace, name) = at(&claims.serviceaccount);
        let mut bound = vec![(BoundObject::ServiceAccount { namespace, name }, &claims.serviceaccount)];
        if let Some(pod) = &claims.pod {
            let (namespace, name) = at(pod);
            bound.push((BoundObject::Pod { namespace, name }, pod));
        }
        if let Some(secret) = &claims.secret {
            let (namespace, name) = at(secret);
            bound.push((BoundObject::Secret { namespace, name }, secret));
        }
        // A pod's token names its node for information only; one without a pod is bound to the node.
        if let (Some(node), None) = (&claims.node, &claims.pod) {
            bound.push((BoundObject::Node { name: node.name.clone() }, node));
        }
        bound
    }

    /// Checks that all that the token is bound to is still there, and tells whose it is.
    ///
    /// # Errors
    /// [`TokenError::Gone`], [`TokenError::Replaced`], [`TokenError::Invalidated`], or
    /// [`TokenError::Unknown`] when it could not be found out, which is neither proof for nor against
    /// the token.
    pub fn confirm(&self, now_unix_s: i64, lookup: &dyn Lookup) -> Result<Caller, TokenError> {
        for (object, reference) in self.bound() {
            match lookup.find(&object) {
                Err(source) => return Err(TokenError::Unknown { object, source }),
                Ok(None) => return Err(TokenError::Gone(object)),
                Ok(Some(found)) if !self.names(&object, reference, &found) => {
                    return Err(TokenError::Replaced(object));
                }
                Ok(Some(found)) => {
                    let gone =
                        found.deletion_unix_s.is_some_and(|at| now_unix_s > at.saturating_add(DELETION_LEEWAY_S));
                    if gone {
                        return Err(TokenError::Gone(object));
                    }
                    if found.is_invalidated && self.held_by(&object).is_some() {
                        return Err(TokenError::Invalidated(object));
                    }
                }
            }
        }
        Ok(self.caller())
    }

    fn caller(&self) -> Caller {
        let claims = &self.claims.kubernetes;
        let account = &claims.serviceaccount;
        let mut caller = Caller::service_account(&claims.namespace, &account.name, &account.uid);
        let mut extra = |name: &str, value: String| {
            caller.extra.insert(name.into(), vec![value]);
        };
        if !self.claims.jti.is_empty() {
            extra(BoundNames::CREDENTIAL_ID, format!("JTI={}", self.claims.jti));
        }
        if let Some(pod) = &claims.pod {
            extra(BoundNames::POD_NAME, pod.name.clone());
            extra(BoundNames::POD_UID, pod.uid.clone());
        }
        if let Some(node) = &claims.node {
            extra(BoundNames::NODE_NAME, node.name.clone());
            extra(BoundNames::NODE_UID, node.uid.clone());
        }
        caller
    }
}
