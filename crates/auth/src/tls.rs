//! TLS on both sides, on ring: server configurations that ask for a client certificate without
//! demanding one, client configurations, and certificates that can be exchanged while in use.
//!
//! ```text
//!   handshake: has the client the key of its certificate? ─► Clients: chain, time, purpose ─► Caller
//! ```
//!
//! A handshake asks no more, so that who shows a certificate that is worth nothing is answered; a caller is made of one
//! by [`Clients`] alone, which verifies it.

mod client_ca;
mod offered;
mod old;
mod verify;

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::authn::{CertificateError, caller_of_certificate, until_unix_s};
use crate::caller::Caller;
use crate::pki::KeyPairPem;

use verify::{Trusting, Unjudged, Unverified};

pub use client_ca::ClientCa;
pub use offered::{OfferError, Offered};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// PEM text holds no certificate or no key.
    #[error("{what} is not readable PEM: {source}")]
    Pem {
        /// What it was to be.
        what: &'static str,
        /// Why it is not.
        source: rustls_pki_types::pem::Error,
    },
    /// PEM text holds no certificate.
    #[error("{0} holds no certificate")]
    Empty(&'static str),
    /// rustls refuses the certificate or key.
    #[error("TLS configuration")]
    Rustls(#[from] rustls::Error),
    /// The authorities cannot verify anybody.
    #[error("the certificate authority is not usable: {0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// ring, with the ciphers in the order of Go's `crypto/tls`, which is that of kubectl and of everything in Kubernetes: AES with 128
/// bits first. Between two of us it would be 256 else, and whoever sends lists and watches mostly encrypts.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.sort_by_key(|known| {
        !matches!(
            known.suite(),
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
        )
    });
    Arc::new(provider)
}

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if found.is_empty() {
        return Err(TlsError::Empty(what));
    }
    Ok(found)
}

/// The signatures that are taken.
fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

fn authorities(ca_pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates(ca_pem, "the certificate authority")
}

fn roots(authorities: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authorities {
        roots.add(certificate.clone())?;
    }
    Ok(Arc::new(roots))
}

fn certified_key(pair: &KeyPairPem) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(&pair.certificate, "the certificate")?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.expose().as_bytes())
        .map_err(|source| TlsError::Pem { what: "the private key", source })?;
    Ok(CertifiedKey::from_der(chain, key, &provider())?)
}

/// A certificate in use, which can be exchanged: new connections take the new one.
#[derive(Debug)]
pub struct Reloadable(RwLock<Option<Arc<CertifiedKey>>>);

impl Reloadable {
    /// Starts with this certificate.
    ///
    /// # Errors
    /// When certificate and key do not fit together or cannot be read.
    pub fn new(pair: &KeyPairPem) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self(RwLock::new(Some(Arc::new(certified_key(pair)?))))))
    }

    /// Starts with none: until there is one, a server refuses handshakes and a client shows nothing.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::new(Self(RwLock::new(None)))
    }

    /// Exchanges the certificate.
    ///
    /// # Errors
    /// As [`Self::new`]; the old one then stays in use.
    pub fn replace(&self, pair: &KeyPairPem) -> Result<(), TlsError> {
        let new = Arc::new(certified_key(pair)?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
        Ok(())
    }

    fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The certificate in use, without what signed it.
    #[must_use]
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.current()?.cert.first().cloned()
    }
}

impl ResolvesServerCert for Reloadable {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

impl ResolvesClientCert for Reloadable {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current()
    }

    fn has_certs(&self) -> bool {
        self.current().is_some()
    }
}

/// A server's TLS, and whom it believes.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// What connections are accepted with.
    pub config: ServerConfig,
    /// Who finds out who they are.
    pub clients: Clients,
}

/// Who finds out who a client is by its certificate: nobody else makes a caller of one, and so none is believed that
/// was not verified.
#[derive(Clone, Debug)]
pub struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    authorities: Arc<[CertificateDer<'static>]>,
}

/// A client whose certificate was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Who it is.
    pub caller: Caller,
    /// Until when its certificate is valid, in seconds since 1970.
    pub until_unix_s: i64,
}

impl Clients {
    /// Who a client is that shows these certificates (rustls' `peer_certificates()`): none when it shows none. They are
    /// verified by the machine's clock, as in a handshake.
    ///
    /// # Errors
    /// When no authority vouches for the certificate now, or not for a client; when it names nobody.
    pub fn peer(&self, certificates: Option<&[CertificateDer<'_>]>) -> Result<Option<Peer>, CertificateError> {
        let Some((certificate, intermediates)) = certificates.and_then(<[_]>::split_first) else { return Ok(None) };
        let now = UnixTime::now();
        let verified = match old::parsed(certificate) {
            Some(parsed) => old::vouched(certificate, &parsed, &self.authorities, now, &algorithms())
                .map_err(rustls::Error::InvalidCertificate),
            None => self.verifier.verify_client_cert(certificate, intermediates, now).map(drop),
        };
        verified.map_err(|error| CertificateError::Unverified(explained(&error)))?;
        let (caller, until_unix_s) = (caller_of_certificate(certificate)?, until_unix_s(certificate)?);
        Ok(Some(Peer { caller, until_unix_s }))
    }
}

/// A server's TLS: client certificates are asked for, and connections without one are let in, as are those with one that
/// no authority of `client_ca_pem` vouches for: that is for [`Clients`], and for other authenticators. ALPN offers HTTP/2 and
/// HTTP/1.1.
///
/// # Errors
/// When the authority cannot be used.
pub fn server_config(certificate: Arc<Reloadable>, client_ca_pem: &str) -> Result<ServerTls, TlsError> {
    server_config_offering(certificate, client_ca_pem, &Offered::default())
}

/// As [`server_config`], of less than all versions and suites.
///
/// # Errors
/// When the authority cannot be used.
pub fn server_config_offering(
    certificate: Arc<Reloadable>,
    client_ca_pem: &str,
    offered: &Offered,
) -> Result<ServerTls, TlsError> {
    server(certificate, client_ca_pem, offered, |verifier| Arc::new(Unjudged(verifier)))
}

/// As [`server_config`], but connections without a client certificate of `client_ca_pem` are refused: for servers that
/// only the API server talks to.
///
/// # Errors
/// When the authority cannot be used.
pub fn mutual_server_config(certificate: Arc<Reloadable>, client_ca_pem: &str) -> Result<ServerTls, TlsError> {
    server(certificate, client_ca_pem, &Offered::default(), |verifier| verifier)
}

/// A server's TLS that asks nobody for a certificate: for servers that whoever can reach them may ask.
///
/// # Errors
/// When TLS cannot be set up at all.
pub fn open_server_config(certificate: Arc<Reloadable>) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// `at_handshake` makes of who finds out about clients who is asked about them in the handshake.
fn server(
    certificate: Arc<Reloadable>,
    client_ca_pem: &str,
    offered: &Offered,
    at_handshake: impl FnOnce(Arc<dyn ClientCertVerifier>) -> Arc<dyn ClientCertVerifier>,
) -> Result<ServerTls, TlsError> {
    let authorities = authorities(client_ca_pem)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(&authorities)?, provider()).build()?;
    let mut config = ServerConfig::builder_with_provider(offered.of(&provider()))
        .with_protocol_versions(offered.versions())?
        .with_client_cert_verifier(at_handshake(Arc::clone(&verifier)))
        .with_cert_resolver(certificate);
    // Who takes up an earlier session again shows no certificate anew: it may have expired since, or been replaced.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(ServerTls { config, clients: Clients { verifier, authorities: authorities.into() } })
}

/// Whom a client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Servers with certificates of these authorities (PEM), or with one of these certificates themselves.
    Authorities(&'a str),
    /// Any server: only where a kubeconfig says `insecure-skip-tls-verify`.
    Anybody,
}

/// A client's TLS, with its certificate if it has one. ALPN is left empty; an HTTP client sets it.
///
/// # Errors
/// When authority, certificate or key cannot be used.
pub fn client_config(trust: Trust<'_>, certificate: Option<Arc<Reloadable>>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Authorities(pem) => {
            let trusted = authorities(pem)?;
            let webpki = WebPkiServerVerifier::builder_with_provider(roots(&trusted)?, provider()).build()?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Trusting { webpki, trusted }))
        }
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider()))),
    };
    Ok(match certificate {
        Some(certificate) => builder.with_client_cert_resolver(certificate),
        None => builder.with_no_client_auth(),
    })
}

/// Why a connection did not come about, in words.
#[must_use]
pub fn why_refused(error: &std::io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    of_tls.map_or_else(|| error.to_string(), explained)
}

/// What rustls says, with what it has from webpki in words: `CaUsedAsEndEntity` is a name in its code.
fn explained(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) => {
            format!("invalid peer certificate: {}", in_words(&other.to_string()))
        }
        other => other.to_string(),
    }
}

fn in_words(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error, OtherError};

    use super::why_refused;

    #[test]
    fn refusals_are_in_words() {
        let tls = |error: Error| std::io::Error::new(std::io::ErrorKind::InvalidData, error);
        let other = OtherError(std::sync::Arc::new(std::io::Error::other("CaUsedAsEndEntity")));
        for (error, want) in [
            (tls(CertificateError::Other(other).into()), "invalid peer certificate: ca used as end entity"),
            (tls(CertificateError::UnknownIssuer.into()), "invalid peer certificate: UnknownIssuer"),
            (std::io::Error::other("it hung up"), "it hung up"),
        ] {
            assert_eq!(why_refused(&error), want);
        }
    }
}
