//! A cluster's keys and certificates, under one directory.
//!
//! ```text
//!  pki/ca.{crt,key}                 signs all of the below
//!  pki/front-proxy-ca.{crt,key}     signs front-proxy-client only (aggregated API servers trust it)
//!  pki/sa.{key,pub}                 signs service account tokens
//!  pki/<identity>.{crt,key}         one client certificate for each role: see [`Identity`]
//!  pki/serving-<server>.{crt,key}   one serving certificate for each server: see [`Server`]
//! ```
//!
//! Everything is made when first asked for, kept while it is good, and issued again when it is near
//! its end or no longer fits (other names). A certificate authority and the token key are never made
//! again while anything of them is there: what was signed with them would stop working.
//!
//! A certificate is written after its key: a crash between the two leaves a key alone, which an
//! authority goes on with and which is replaced elsewhere. Two processes that share the directory take turns by a lock on `pki/.lock`.

mod ask;
mod bundle;
mod files;
mod identity;
mod issue;
mod pair;
mod pods;
mod request;
mod subject;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use ask::{CertificateFacts, PairError, Subject, key_fingerprint, new_key, new_request};
pub use bundle::{bundle_faults, issued_fault};
use files::Directory;
pub use files::write_private;
pub use identity::{Identity, Sans, Server};
use issue::{Authority, Leaf};
pub use pair::pair_fault;
pub use pods::{ChainFacts, Shown, ShownFault, proven_key, read_chain};
pub use request::{
    RequestFacts, RequestSigner, SIGNER_CLIENT, SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING, SIGNER_LEGACY,
    check_request, read_request,
};

use crate::secret::Secret;

/// Certificates begin to be valid so much before they are issued, for clocks that are behind.
const BACKDATE_S: i64 = 5 * 60;
/// How long an authority is valid.
const CA_VALIDITY_S: i64 = 10 * 365 * 24 * 3600;
/// How long other certificates are valid.
const LEAF_VALIDITY_S: i64 = 365 * 24 * 3600;
/// Certificates with less than this to go are issued again.
const RENEW_BEFORE_S: i64 = 90 * 24 * 3600;

/// A certificate and its key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPairPem {
    /// The certificate (one, without its authority).
    pub certificate: String,
    /// The private key, PKCS#8.
    pub key: Secret,
}

impl KeyPairPem {
    /// A serving certificate that nobody has signed but itself: for a process that was given none, whose clients do not
    /// check whom they talk to.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn self_signed(common_name: &str, sans: &Sans, now_unix_s: i64) -> Result<Self, PkiError> {
        issue::self_signed(common_name, sans, now_unix_s)
    }
}

/// Why a cluster's PKI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file or directory cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file's content is not what its name says.
    #[error("{} is damaged: {problem}; restore it, or remove it to have it made again", path.display())]
    Damaged {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// An authority or the token key is there in part only. It is not made again by itself, because
    /// all that it signed would stop working.
    #[error("{} is missing while {} is there; restore it", missing.display(), present.display())]
    Incomplete {
        /// What is missing.
        missing: PathBuf,
        /// What is there.
        present: PathBuf,
    },
    /// The PKI was only to be loaded, and is not there.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The authority's time is over.
    #[error("the certificate authority {} has expired", .0.display())]
    CaExpired(PathBuf),
    /// A name cannot stand in a certificate.
    #[error("{name:?} cannot be used as a name in a certificate")]
    Name {
        /// The name.
        name: String,
    },
    /// Keys or certificates could not be made.
    #[error("cannot make {what}: {source}")]
    Issue {
        /// What was to be made.
        what: String,
        /// Why.
        source: rcgen::Error,
    },
}

fn server_leaf(server: &Server, sans: &Sans) -> Result<Leaf, PkiError> {
    Ok(Leaf {
        file: server.file_name()?,
        common_name: server.common_name(),
        organization: server.group(),
        sans: Some(sans.clone()),
    })
}

/// A cluster's PKI.
#[derive(Debug)]
pub struct Pki {
    directory: Directory,
    ca: Authority,
    front_proxy_ca: Authority,
    service_account_key: Secret,
}

impl Pki {
    /// Opens the PKI in `directory`, making what is missing of its roots.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn open_or_create(directory: &Path, now_unix_s: i64) -> Result<Self, PkiError> {
        let directory = Directory::create(directory)?;
        let _lock = directory.lock()?;
        directory.sweep()?;
        let (ca, front_proxy_ca, service_account_key) = directory.together(|| {
            Ok((
                Authority::ensure(&directory, "ca", "carrack-ca", now_unix_s)?,
                Authority::ensure(&directory, "front-proxy-ca", "carrack-front-proxy-ca", now_unix_s)?,
                issue::ensure_service_account_key(&directory)?,
            ))
        })?;
        Ok(Self { directory, ca, front_proxy_ca, service_account_key })
    }

    /// Opens a PKI that must be there already.
    ///
    /// # Errors
    /// [`PkiError::Missing`] when it is not, and the others.
    pub fn open(directory: &Path, now_unix_s: i64) -> Result<Self, PkiError> {
        let certificate = directory.join("ca.crt");
        if !certificate.exists() {
            return Err(PkiError::Missing(certificate));
        }
        Self::open_or_create(directory, now_unix_s)
    }

    /// The directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The cluster's authority, as PEM: clients and servers alike trust it.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.ca.certificate()
    }

    /// The front proxy's authority, as PEM (`requestheader-client-ca-file`).
    #[must_use]
    pub fn front_proxy_ca_pem(&self) -> &str {
        self.front_proxy_ca.certificate()
    }

    /// The key that signs service account tokens, as PKCS#8 PEM.
    #[must_use]
    pub fn service_account_key(&self) -> &Secret {
        &self.service_account_key
    }

    /// The client certificate of a role, issued (again) when needed.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn client(&self, identity: &Identity, now_unix_s: i64) -> Result<KeyPairPem, PkiError> {
        let (authority, leaf) = self.client_leaf(identity)?;
        self.ensure(authority, &leaf, now_unix_s)
    }

    /// The serving certificate of a server, issued (again) when needed, also when `sans` differ from
    /// those that it was issued for.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn server(&self, server: &Server, sans: &Sans, now_unix_s: i64) -> Result<KeyPairPem, PkiError> {
        self.ensure(&self.ca, &server_leaf(server, sans)?, now_unix_s)
    }

    /// Sees to it that certificates are there that will be asked for by [`Self::client`] and [`Self::server`]. All that
    /// are missing together cost hardly more than one.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn prepare(&self, clients: &[Identity], servers: &[(Server, Sans)], now_unix_s: i64) -> Result<(), PkiError> {
        let _lock = self.directory.lock()?;
        self.directory.together(|| {
            for identity in clients {
                let (authority, leaf) = self.client_leaf(identity)?;
                authority.ensure_leaf(&self.directory, &leaf, now_unix_s)?;
            }
            for (server, sans) in servers {
                self.ca.ensure_leaf(&self.directory, &server_leaf(server, sans)?, now_unix_s)?;
            }
            Ok(())
        })
    }

    fn client_leaf(&self, identity: &Identity) -> Result<(&Authority, Leaf), PkiError> {
        let authority = match identity {
            Identity::FrontProxy => &self.front_proxy_ca,
            _ => &self.ca,
        };
        let leaf = Leaf {
            file: identity.file_name()?,
            common_name: identity.user(),
            organization: identity.group(),
            sans: None,
        };
        Ok((authority, leaf))
    }

    fn ensure(&self, authority: &Authority, leaf: &Leaf, now_unix_s: i64) -> Result<KeyPairPem, PkiError> {
        let _lock = self.directory.lock()?;
        self.directory.together(|| authority.ensure_leaf(&self.directory, leaf, now_unix_s))
    }
}
