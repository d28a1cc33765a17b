//! The way to the API server with a certificate that is exchanged.

use std::sync::{Arc, PoisonError, RwLock};

use carrack_auth::kubeconfig::{Target, Token};
use carrack_auth::pki::KeyPairPem;
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream, HttpsTransport, Transport};
use futures::future::BoxFuture;

/// A transport whose client certificate can be exchanged. What is sent from then on goes over new connections; watches
/// that are open end with their own, for which the former certificate lasts long enough.
pub struct Renewable {
    target: Target,
    name: String,
    current: RwLock<Arc<HttpsTransport>>,
}

fn connect(target: &Target, name: &str) -> Result<Arc<HttpsTransport>, String> {
    let token = target.token.as_ref().map(Token::read).transpose().map_err(|e| e.to_string())?;
    let tls = target.client_config().map_err(|e| e.to_string())?;
    let (server_name, token) = (target.tls_server_name.as_deref(), token.as_ref().map(|token| token.expose()));
    let transport = HttpsTransport::new(&target.server, server_name, tls, token);
    Ok(Arc::new(transport.map_err(|e| e.to_string())?.named(name)))
}

impl Renewable {
    /// To this server, with the credentials that go with it, under a name that the server is told.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub fn new(target: Target, name: &str) -> Result<Self, String> {
        let current = RwLock::new(connect(&target, name)?);
        Ok(Self { target, name: name.to_owned(), current })
    }

    /// Takes another certificate.
    ///
    /// # Errors
    /// It cannot be used; then the one before stays.
    pub fn renew(&self, pair: &KeyPairPem) -> Result<(), String> {
        let target = Target { client: Some(pair.clone()), ..self.target.clone() };
        let new = connect(&target, &self.name)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    fn current(&self) -> Arc<HttpsTransport> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Renewable {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        self.current().send(request)
    }

    fn watch(&self, request: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        self.current().watch(request)
    }
}
