//! Whose clients a server believes, where that can become others while it serves.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::WebPkiClientVerifier;

use super::{TlsError, authorities, provider, roots};

/// Certificates of authorities (PEM) that can be exchanged. Who serves looks at them for each new connection.
#[derive(Debug)]
pub struct ClientCa(RwLock<Arc<str>>);

impl ClientCa {
    /// Begins with these.
    ///
    /// # Errors
    /// They cannot be used.
    pub fn new(pem: &str) -> Result<Arc<Self>, TlsError> {
        check(pem)?;
        Ok(Arc::new(Self(RwLock::new(pem.into()))))
    }

    /// Exchanges them.
    ///
    /// # Errors
    /// As [`Self::new`]; the old ones then stay in use.
    pub fn replace(&self, pem: &str) -> Result<(), TlsError> {
        check(pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = pem.into();
        Ok(())
    }

    /// Those in use: the same until they are exchanged.
    #[must_use]
    pub fn current(&self) -> Arc<str> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn check(pem: &str) -> Result<(), TlsError> {
    let authorities = authorities(pem)?;
    WebPkiClientVerifier::builder_with_provider(roots(&authorities)?, provider()).build()?;
    Ok(())
}
