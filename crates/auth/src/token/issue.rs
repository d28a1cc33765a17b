//! Issuing tokens: the `serviceaccounts/token` subresource (`authentication.k8s.io/v1 TokenRequest`).

use super::claims::{Claims, KubernetesClaims, Reference};
use super::jws::{self, SignError};
use super::key::SigningKey;
use super::legacy::LegacyClaims;
use crate::caller::SERVICE_ACCOUNT_USER_PREFIX;
use crate::secret::Secret;

/// The shortest validity that may be asked for.
pub const MIN_EXPIRATION_S: i64 = 10 * 60;
/// The longest validity that may be asked for.
const MAX_EXPIRATION_S: i64 = 1 << 32;
/// The validity when none is asked for.
pub(super) const DEFAULT_EXPIRATION_S: i64 = 60 * 60;
/// Longer ones are cut to this, as upstream's `--service-account-max-token-expiration` does.
const DEFAULT_CAP_S: i64 = 365 * 24 * 60 * 60;
/// The validity for which admission has kubelets ask for the tokens that it mounts into pods: one hour and a little, by which
/// they are known.
pub const MOUNTED_EXPIRATION_S: i64 = 60 * 60 + 7;
/// How long such a token is taken in truth, as upstream does (`--service-account-extend-token-expiration`): its kubelet is told
/// the hour and puts a new one in its place, but there are programs that read theirs once.
const EXTENDED_EXPIRATION_S: i64 = 365 * 24 * 60 * 60;

/// To what else than its service account a token is bound: it dies with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundTo {
    /// A pod, and the node it is bound to, if it is.
    Pod {
        /// The pod.
        pod: Reference,
        /// Its node.
        node: Option<Reference>,
    },
    /// A secret.
    Secret(Reference),
    /// A node.
    Node(Reference),
}

/// What a token is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSpec {
    /// The service account's namespace.
    pub namespace: String,
    /// The service account; its uid is that of the stored object.
    pub account: Reference,
    /// The audiences; none means the API server's.
    pub audiences: Vec<String>,
    /// How long it is to be valid; none means an hour.
    pub expiration_s: Option<i64>,
    /// To what it is bound besides. The uids are those of the stored objects.
    pub bound: Option<BoundTo>,
}

/// A token.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The token itself.
    pub token: Secret,
    /// When who asked for it is to have another, in seconds since the Unix epoch: it stops being valid then, or later.
    pub expiration_unix_s: i64,
    /// Its audiences.
    pub audiences: Vec<String>,
    /// Its validity in seconds, after all bounds were applied.
    pub expiration_s: i64,
}

/// Why no token was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// `spec.expirationSeconds` is too small (422).
    #[error("may not specify a duration less than 10 minutes")]
    TooShort,
    /// `spec.expirationSeconds` is too large (422).
    #[error("may not specify a duration larger than 2^32 seconds")]
    TooLong,
    /// Signing failed (500).
    #[error("the token could not be signed: {0}")]
    Sign(String),
}

/// Issues tokens.
#[derive(Debug)]
pub struct Issuer {
    issuer: String,
    key: SigningKey,
    api_audiences: Vec<String>,
    cap_s: i64,
}

impl Issuer {
    /// An issuer under a name (`iss`), which is also the default audience.
    #[must_use]
    pub fn new(issuer: &str, key: SigningKey) -> Self {
        Self { issuer: issuer.into(), key, api_audiences: vec![issuer.into()], cap_s: DEFAULT_CAP_S }
    }

    /// Cuts validities to this many seconds.
    #[must_use]
    pub fn with_max_expiration_s(mut self, cap_s: i64) -> Self {
        self.cap_s = cap_s.max(MIN_EXPIRATION_S);
        self
    }

    /// The issuer's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.issuer
    }

    /// The signing key, for its public half.
    #[must_use]
    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Issues a token. `token_id` is a fresh unique id (a UUID), handed in as randomness is.
    ///
    /// # Errors
    /// When the validity asked for is out of bounds, or signing fails.
    pub fn issue(&self, spec: &TokenSpec, now_unix_s: i64, token_id: &str) -> Result<Issued, IssueError> {
        let asked_s = spec.expiration_s.unwrap_or(DEFAULT_EXPIRATION_S);
        if asked_s < MIN_EXPIRATION_S {
            return Err(IssueError::TooShort);
        }
        if asked_s > MAX_EXPIRATION_S {
            return Err(IssueError::TooLong);
        }
        let expiration_s = asked_s.min(self.cap_s);
        let is_mounted = expiration_s == MOUNTED_EXPIRATION_S
            && matches!(spec.bound, Some(BoundTo::Pod { .. }))
            && spec.audiences.iter().all(|audience| self.api_audiences.contains(audience));
        let valid_s = if is_mounted { EXTENDED_EXPIRATION_S } else { expiration_s };
        let warn_after_s = is_mounted.then_some(expiration_s);
        let (token, audiences) = self.sign(spec, now_unix_s, (valid_s, warn_after_s), token_id)?;
        Ok(Issued { token, expiration_unix_s: now_unix_s.saturating_add(expiration_s), audiences, expiration_s })
    }

    /// Issues the token that a Secret is to hold (`kubernetes.io/service-account-token`): it is valid as long as it does. Nothing
    /// of the spec counts but whose it is.
    ///
    /// # Errors
    /// When signing fails.
    pub fn issue_held(&self, spec: &TokenSpec, secret: &str) -> Result<Secret, IssueError> {
        let token = jws::sign(&LegacyClaims::new(spec, secret), &self.key);
        token.map(Secret::new).map_err(|error| IssueError::Sign(error.to_string()))
    }

    /// Signs a token that is valid for so long, and old before that if so it is said. Returns its audiences, too.
    fn sign(
        &self,
        spec: &TokenSpec,
        now_unix_s: i64,
        (valid_s, warn_after_s): (i64, Option<i64>),
        token_id: &str,
    ) -> Result<(Secret, Vec<String>), IssueError> {
        let audiences = if spec.audiences.is_empty() { self.api_audiences.clone() } else { spec.audiences.clone() };
        let mut kubernetes = KubernetesClaims {
            namespace: spec.namespace.clone(),
            serviceaccount: spec.account.clone(),
            warnafter: warn_after_s.map(|after_s| now_unix_s.saturating_add(after_s)),
            ..KubernetesClaims::default()
        };
        match spec.bound.clone() {
            Some(BoundTo::Pod { pod, node }) => {
                kubernetes.pod = Some(pod);
                kubernetes.node = node;
            }
            Some(BoundTo::Secret(secret)) => kubernetes.secret = Some(secret),
            Some(BoundTo::Node(node)) => kubernetes.node = Some(node),
            None => {}
        }
        let claims = Claims {
            aud: audiences.clone(),
            exp: now_unix_s.saturating_add(valid_s),
            iat: now_unix_s,
            iss: self.issuer.clone(),
            jti: token_id.into(),
            kubernetes,
            nbf: now_unix_s,
            sub: format!("{SERVICE_ACCOUNT_USER_PREFIX}{}:{}", spec.namespace, spec.account.name),
        };
        let token = jws::sign(&claims, &self.key).map_err(|error: SignError| IssueError::Sign(error.to_string()))?;
        Ok((Secret::new(token), audiences))
    }
}
