//! The kubelet's own certificates: asked for, kept in files, and exchanged before they end.
//!
//! ```text
//!   files ─▶ good and ours? ─yes─▶ in use ──70 to 90 % of its life──┐
//!                  │ no                                             ▼
//!                  └──────────────────────▶ a key, kept ─▶ CertificateSigningRequest ─▶ approved and signed
//!                                                                                          │
//!              new connections take it ◀─ in use ◀─ kept beside its key, then `-current` ◀─┘
//! ```
//!
//! [`Keeper`] decides, as a core; [`keep`] runs it on files. There is one for each certificate: that of the client,
//! which a bootstrap token gets a new node ([`join`]), and that of the server. The name of a request is derived from its
//! key, and the key is on disk before the request is sent: a kubelet that dies meanwhile goes on with both.
//!
//! As upstream's certificate manager (client-go `util/certificate`, kubelet `certificate/bootstrap`), whose files these
//! are; but a request that nobody approves is waited for, where upstream sends another one every 15 minutes.

mod client;
mod files;
mod keeper;
mod shell;
#[cfg(test)]
mod tests;

use carrack_auth::pki::{SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING, Sans, Subject};

pub use client::Renewable;
pub use files::Files;
pub use keeper::{Asked, Done, Held, Keeper, Task, Unkept};
pub use shell::{join, keep};

/// Which certificate is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whom it names.
    pub subject: Subject,
    /// Who is to sign it.
    pub signer: &'static str,
    /// What it is for, besides signatures: `client auth` or `server auth`.
    pub usage: &'static str,
    /// What names of requests begin with.
    pub prefix: &'static str,
    /// What names of files begin with.
    pub files: &'static str,
}

impl Wanted {
    /// By which a node's kubelet authenticates to the API server.
    #[must_use]
    pub fn client(node: &str) -> Self {
        Self {
            subject: Subject::kubelet(node, Sans::default()),
            signer: SIGNER_KUBELET_CLIENT,
            usage: "client auth",
            prefix: "node-csr-",
            files: "kubelet-client",
        }
    }

    /// With which a node's kubelet serves, under these names and addresses.
    #[must_use]
    pub fn serving(node: &str, sans: Sans) -> Self {
        Self {
            subject: Subject::kubelet(node, sans),
            signer: SIGNER_KUBELET_SERVING,
            usage: "server auth",
            prefix: "csr-",
            files: "kubelet-server",
        }
    }
}
