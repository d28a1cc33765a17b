//! Who asks and what they may do.
//!
//! ```text
//!   TLS peer ─┐                        ┌─ node::NodeAuthorizer (system:nodes only)
//!   bearer ───┼─ authn ─► Caller ─► authorizer ─┤
//!   headers ──┘  (impersonation)       └─ rbac::Index
//! ```
//!
//! [`pki`], [`kubeconfig`] and [`tls`] touch files and keys; everything else is a pure function of
//! what it is handed: the time, the objects looked up, the objects fed to the indexes.
//! Times are seconds since the Unix epoch (`now_unix_s`).

pub mod attributes;
pub mod authn;
pub mod authorizer;
pub mod bootstrap;
pub mod caller;
mod der;
pub mod kubeconfig;
pub mod node;
pub mod pki;
pub mod rbac;
pub mod relay;
pub mod secret;
pub mod strangers;
pub mod tls;
pub mod token;

pub use attributes::{Attributes, Decision};
pub use authn::{Anonymous, Authenticator, AuthnError};
pub use authorizer::Authorizer;
pub use caller::Caller;
pub use secret::Secret;
