//! Network probes and hooks: an HTTP GET, or a TCP connection that opens.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;

use crate::effects::{NetAction, OpError, Outcome, Reply};

/// How much of a reply is kept for the event, in bytes.
const MAX_REPLY: usize = 10 << 10;

/// Carries an action out. What the other side did wrong is an exit code of 1 with a text.
pub async fn act(action: NetAction, timeout_s: i64) -> Outcome {
    let seconds = u64::try_from(timeout_s).unwrap_or(1).max(1);
    let work = async {
        match action {
            NetAction::Tcp { host, port } => {
                TcpStream::connect((host.as_str(), port)).await.map(drop).map_err(|e| e.to_string())
            }
            NetAction::Http { https, host, port, path, headers } => get(https, &host, port, &path, &headers).await,
        }
    };
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(Ok(())) => Ok(Reply::Done),
        Ok(Err(output)) => Ok(Reply::Exited { code: 1, output }),
        Err(_) => Err(OpError::TimedOut(seconds)),
    }
}

async fn get(https: bool, host: &str, port: u16, path: &str, headers: &[(String, String)]) -> Result<(), String> {
    let tcp = TcpStream::connect((host, port)).await.map_err(|e| e.to_string())?;
    if https {
        let config = no_verification().map_err(|e| e.to_string())?;
        let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
        let tls =
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|e| e.to_string())?;
        send(TokioIo::new(tls), host, port, path, headers).await
    } else {
        send(TokioIo::new(tcp), host, port, path, headers).await
    }
}

async fn send<I>(io: I, host: &str, port: u16, path: &str, headers: &[(String, String)]) -> Result<(), String>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(|e| e.to_string())?;
    let mut request = http::Request::get(path);
    let mut has = (false, false);
    for (name, value) in headers {
        has.0 |= name.eq_ignore_ascii_case("host");
        has.1 |= name.eq_ignore_ascii_case("user-agent");
        request = request.header(name, value);
    }
    if !has.0 {
        request = request.header("Host", format!("{host}:{port}"));
    }
    if !has.1 {
        request = request.header("User-Agent", "kube-probe/1.36");
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        if (200..400).contains(&status) {
            return Ok(());
        }
        let body = Limited::new(response.into_body(), MAX_REPLY).collect().await;
        let text = body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
        Err(format!("HTTP probe failed with statuscode: {status} {text}").trim().to_owned())
    };
    // Beside the exchange, not against it: a server may close as soon as it has answered.
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        if let Err(error) = connection.await {
            tracing::trace!(%error, "a probe's connection ended");
        }
    });
    exchange.await
}

/// Probes ask whether something answers, not who it is: as upstream, certificates are not checked.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn no_verification() -> Result<rustls::ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn answers_of_real_servers() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            for reply in ["200 OK", "500 Oops", "301 Moved"] {
                let (mut s, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1024];
                let n = s.read(&mut buffer).await.unwrap();
                assert!(buffer[..n].starts_with(b"GET /x HTTP/1.1\r\n"));
                s.write_all(format!("HTTP/1.1 {reply}\r\nContent-Length: 3\r\n\r\nabc").as_bytes()).await.unwrap();
            }
            // The last one only connects.
            listener.accept().await.unwrap();
        });
        let http = || NetAction::Http {
            https: false,
            host: "127.0.0.1".into(),
            port,
            path: "/x".into(),
            headers: vec![("X".into(), "y".into())],
        };
        assert!(matches!(act(http(), 5).await, Ok(Reply::Done)));
        match act(http(), 5).await {
            Ok(Reply::Exited { code: 1, output }) => assert_eq!(output, "HTTP probe failed with statuscode: 500 abc"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(act(http(), 5).await, Ok(Reply::Done)));
        let tcp = || NetAction::Tcp { host: "127.0.0.1".into(), port };
        assert!(matches!(act(tcp(), 5).await, Ok(Reply::Done)));
        server.await.unwrap();
        assert!(matches!(act(tcp(), 5).await, Ok(Reply::Exited { code: 1, .. })));
    }
}
