//! The server's TLS. It is made anew when clients of another authority are to be believed: who comes then is judged by that. Who is
//! connected already stays who he is until his connection ends.

use std::sync::{Arc, Mutex, PoisonError};

use carrack_auth::tls::{self, ClientCa, Clients, Offered, Reloadable, ServerTls, TlsError};
use tokio_rustls::TlsAcceptor;

use crate::config::ServingTls;

/// What connections are accepted with.
pub struct Tls {
    certificate: Arc<Reloadable>,
    client_ca: Arc<ClientCa>,
    offered: Offered,
    made: Mutex<Made>,
}

/// TLS for the clients of an authority.
struct Made {
    client_ca: Arc<str>,
    acceptor: TlsAcceptor,
    clients: Clients,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("offered", &self.offered).finish_non_exhaustive()
    }
}

impl Tls {
    /// As it is told, and of so much of what TLS has.
    ///
    /// # Errors
    /// When the authority cannot be used.
    pub fn new(serving: &ServingTls, offered: &Offered) -> Result<Arc<Self>, TlsError> {
        let (certificate, client_ca) = (Arc::clone(&serving.certificate), Arc::clone(&serving.client_ca));
        let made = Mutex::new(make(&certificate, client_ca.current(), offered)?);
        Ok(Arc::new(Self { certificate, client_ca, offered: offered.clone(), made }))
    }

    /// What the next connection is accepted with, and who finds out whose it is.
    pub(super) fn current(&self) -> (TlsAcceptor, Clients) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let client_ca = self.client_ca.current();
        if !Arc::ptr_eq(&made.client_ca, &client_ca) {
            match make(&self.certificate, client_ca, &self.offered) {
                Ok(anew) => *made = anew,
                // It was looked at before it came into use.
                Err(error) => tracing::error!(%error, "clients are judged by the authority before"),
            }
        }
        (made.acceptor.clone(), made.clients.clone())
    }
}

fn make(certificate: &Arc<Reloadable>, client_ca: Arc<str>, offered: &Offered) -> Result<Made, TlsError> {
    let ServerTls { mut config, clients } = tls::server_config_offering(Arc::clone(certificate), &client_ca, offered)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Made { client_ca, acceptor: TlsAcceptor::from(Arc::new(config)), clients })
}
