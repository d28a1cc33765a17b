//! Service account tokens: JWTs signed with ES256, bound to a service account and often a pod.
//!
//! ```text
//!  TokenRequest ─► Issuer::issue ─► token ─► Verifier::verify ─► Verified ─► confirm(Lookup) ─► Caller
//! ```
//!
//! What other issuers sign, providers of OpenID Connect, is verified in `foreign`.
//!
//! Signing and verifying are ring's. A JWT library was looked at: `jsonwebtoken` 11 needs
//! aws-lc-rs or a second set of curves, RSA included, next to the ring that TLS links anyway, for
//! what is about a hundred lines here: one algorithm, one header, and claims of our own.
//! Upstream: `pkg/serviceaccount` (claims, and those of old in `legacy`), `plugin/pkg/serviceaccount`.

mod claims;
mod discovery;
mod foreign;
mod issue;
mod jws;
mod key;
mod legacy;
#[cfg(test)]
mod tests;
mod verify;

pub use claims::{BoundNames, Claims, KubernetesClaims, Reference};
pub use discovery::{jwks, openid_configuration};
pub use foreign::{ForeignKeys, ForeignToken};
pub use issue::{BoundTo, IssueError, Issued, Issuer, MIN_EXPIRATION_S, MOUNTED_EXPIRATION_S, TokenSpec};
pub use key::{KeyError, SigningKey, VerifyingKey};
pub use verify::{BoundObject, Found, Lookup, LookupError, TokenError, Verified, Verifier};

/// The default issuer, and the default audience: the API server as pods know it.
pub const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
