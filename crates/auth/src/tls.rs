//! TLS on both sides, on ring: server configurations that ask for a client certificate without
//! demanding one, client configurations, and certificates that can be exchanged while in use.
//!
//! What a certificate proves (its chain, time and purpose) is checked by rustls; [`peer_caller`]
//! reads who it is.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::authn::{CertificateError, caller_of_certificate, until_unix_s};
use crate::caller::Caller;
use crate::pki::KeyPairPem;

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
    /// The authorities cannot verify clients.
    #[error("the client certificate authority is not usable: {0}")]
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

fn roots(ca_pem: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca_pem, "the certificate authority")? {
        roots.add(certificate)?;
    }
    Ok(roots)
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

/// A server's TLS: client certificates of `client_ca_pem` are asked for and verified, connections
/// without one are let in (other authenticators decide). ALPN offers HTTP/2 and HTTP/1.1.
///
/// # Errors
/// When the authority cannot be used.
pub fn server_config(certificate: Arc<Reloadable>, client_ca_pem: &str) -> Result<ServerConfig, TlsError> {
    server(certificate, client_ca_pem, false)
}

/// As [`server_config`], but connections without a client certificate are refused: for servers that
/// only the API server talks to.
///
/// # Errors
/// When the authority cannot be used.
pub fn mutual_server_config(certificate: Arc<Reloadable>, client_ca_pem: &str) -> Result<ServerConfig, TlsError> {
    server(certificate, client_ca_pem, true)
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

fn server(certificate: Arc<Reloadable>, client_ca_pem: &str, mandatory: bool) -> Result<ServerConfig, TlsError> {
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(client_ca_pem)?), provider());
    if !mandatory {
        verifier = verifier.allow_unauthenticated();
    }
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier.build()?)
        .with_cert_resolver(certificate);
    // Who takes up an earlier session again shows no certificate anew: it may have expired since, or been replaced.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Whom a client trusts.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Servers with certificates of these authorities (PEM).
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
        Trust::Authorities(pem) => builder.with_root_certificates(roots(pem)?),
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider()))),
    };
    Ok(match certificate {
        Some(certificate) => builder.with_client_cert_resolver(certificate),
        None => builder.with_no_client_auth(),
    })
}

/// The caller that the peer's certificates name (rustls' `peer_certificates()`): none when the peer
/// showed none.
///
/// # Errors
/// When the certificate names nobody.
pub fn peer_caller(certificates: Option<&[CertificateDer<'_>]>) -> Result<Option<Caller>, CertificateError> {
    certificates.and_then(|c| c.first()).map(caller_of_certificate).transpose()
}

/// Until when the peer's certificate is valid, in seconds since 1970: none when the peer showed none.
#[must_use]
pub fn peer_until_unix_s(certificates: Option<&[CertificateDer<'_>]>) -> Option<i64> {
    until_unix_s(certificates?.first()?).ok()
}

/// Accepts any server certificate; the handshake's signatures are still checked.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
