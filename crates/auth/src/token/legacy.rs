//! Tokens of Secrets (`kubernetes.io/service-account-token`): they do not end by themselves, and are good as long as their Secret
//! holds them. Their claims, and their issuer, are upstream's of old, by which others know them too.
//!
//! Upstream: `pkg/serviceaccount/legacy.go`.

use serde::{Deserialize, Serialize};

use super::claims::{Claims, KubernetesClaims, Reference};
use super::issue::TokenSpec;
use crate::caller::SERVICE_ACCOUNT_USER_PREFIX;

/// Who issues them, as they say.
pub(super) const ISSUER: &str = "kubernetes/serviceaccount";

/// What they say.
#[derive(Serialize, Deserialize)]
pub(super) struct LegacyClaims {
    iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    account_uid: String,
    sub: String,
}

impl LegacyClaims {
    /// The claims of the token that a Secret is to hold.
    pub(super) fn new(spec: &TokenSpec, secret: &str) -> Self {
        Self {
            iss: ISSUER.to_owned(),
            namespace: spec.namespace.clone(),
            secret: secret.to_owned(),
            account: spec.account.name.clone(),
            account_uid: spec.account.uid.clone(),
            sub: format!("{SERVICE_ACCOUNT_USER_PREFIX}{}:{}", spec.namespace, spec.account.name),
        }
    }

    /// The same in today's form, for these audiences; none when it names no Secret or no account.
    pub(super) fn read(self, audiences: &[String]) -> Option<Claims> {
        if self.secret.is_empty() || self.account_uid.is_empty() {
            return None;
        }
        Some(Claims {
            aud: audiences.to_vec(),
            exp: i64::MAX,
            iat: 0,
            iss: self.iss,
            jti: String::new(),
            kubernetes: KubernetesClaims {
                namespace: self.namespace,
                // Known by what it holds, and not by its uid.
                secret: Some(Reference { name: self.secret, uid: String::new() }),
                serviceaccount: Reference { name: self.account, uid: self.account_uid },
                ..KubernetesClaims::default()
            },
            nbf: 0,
            sub: self.sub,
        })
    }
}
