//! kubeconfig files: written for our roles and users, read for our clients.
//!
//! [`Kubeconfig::for_certificate`] and [`Kubeconfig::for_token`] make one, [`Kubeconfig::write`]
//! stores it (0600, atomically); [`Kubeconfig::load`] reads one, [`Kubeconfig::resolve`] follows a
//! context to what a client needs: [`Target`].

mod acts_as;
mod credentials;
mod model;
mod target;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use credentials::Credentials;
pub use model::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
pub use target::{Target, Token};

/// Larger files are not read.
const MAX_BYTES: u64 = 1 << 20;

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// A file cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is larger than a kubeconfig can reasonably be.
    #[error("{} is larger than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The text is no kubeconfig. The content is not shown: it holds secrets.
    #[error("the kubeconfig does not parse{}", .0.map(|(line, column)| format!(" (line {line}, column {column})")).unwrap_or_default())]
    Parse(Option<(u64, u64)>),
    /// Something is named that is not there.
    #[error("the kubeconfig has no {kind} {name:?}")]
    NotFound {
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The kubeconfig names no context and no `current-context`.
    #[error("the kubeconfig has no current-context")]
    NoContext,
    /// A `-data` field is not base64 of text.
    #[error("{0} is not base64 of PEM text")]
    Data(&'static str),
    /// A field that is needed is missing.
    #[error("the kubeconfig's {0} is missing")]
    MissingField(&'static str),
    /// The server's address is no `https://host[:port]`.
    #[error("{0:?} is not an https:// address of a server")]
    Server(String),
    /// The user asks for a way of authentication that is not supported.
    #[error("the kubeconfig's user {user:?} uses {what}, which is not supported")]
    Unsupported {
        /// The user.
        user: String,
        /// What it uses.
        what: &'static str,
    },
    /// The user acts as somebody whom no header can name.
    #[error("the kubeconfig's user {0:?} acts as somebody who cannot be named in a header")]
    ActsAs(String),
    /// TLS cannot be set up from it.
    #[error("the kubeconfig's certificates cannot be used")]
    Tls(#[from] crate::tls::TlsError),
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> KubeconfigError {
    let path = path.to_owned();
    move |source| KubeconfigError::Io { action, path, source }
}

/// Reads a file of at most [`MAX_BYTES`].
fn read_bounded(path: &Path) -> Result<String, KubeconfigError> {
    use std::io::Read as _;
    let file = std::fs::File::open(path).map_err(io("read", path))?;
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(io("read", path))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(KubeconfigError::TooLarge(path.to_owned()));
    }
    Ok(text)
}
