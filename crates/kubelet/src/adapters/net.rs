//! Network probes and hooks: an HTTP GET, a TCP connection that opens, or gRPC health checking.

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
            NetAction::Grpc { host, port, service } => health(&host, port, service).await,
            NetAction::Http { https, host, port, path, headers } => get(https, &host, port, &path, &headers).await,
        }
    };
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(Ok(())) => Ok(Reply::Done),
        Ok(Err(output)) => Ok(Reply::Exited { code: 1, output }),
        Err(_) => Err(OpError::TimedOut(seconds)),
    }
}

/// The messages of `grpc.health.v1.Health/Check` (<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>).
#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthReply {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

async fn health(host: &str, port: u16, service: String) -> Result<(), String> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let channel = tonic::transport::Endpoint::try_from(format!("http://{host}:{port}"))
        .and_then(|e| e.user_agent("kube-probe/1.36"))
        .map_err(|e| e.to_string())?
        .connect()
        .await
        .map_err(|e| format!("failed to connect service {host}:{port}: {e}"))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|e| e.to_string())?;
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthRequest, HealthReply>::default();
    match client.unary(tonic::Request::new(HealthRequest { service }), path, codec).await {
        Ok(reply) if reply.get_ref().status == SERVING => Ok(()),
        Ok(reply) => Err(format!("service unhealthy (responded with {})", reply.get_ref().status)),
        Err(e) => Err(format!("gRPC health check failed: {}: {}", e.code(), e.message())),
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

    #[tokio::test]
    async fn a_server_that_hangs_is_given_up_on() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = || "127.0.0.1".to_owned();
        for action in [
            NetAction::Http { https: false, host: host(), port, path: "/".into(), headers: Vec::new() },
            NetAction::Http { https: true, host: host(), port, path: "/".into(), headers: Vec::new() },
            NetAction::Grpc { host: host(), port, service: String::new() },
        ] {
            // It takes connections and says nothing.
            let outcome = act(action.clone(), 1).await;
            assert!(matches!(outcome, Err(OpError::TimedOut(1))), "{action:?}: {outcome:?}");
        }
    }

    /// A server of the health protocol that says the same of every service.
    #[derive(Clone)]
    struct Health(i32);

    impl tower::Service<http::Request<tonic::body::Body>> for Health {
        type Response = http::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;
        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
            let status = self.0;
            Box::pin(async move {
                let codec = tonic_prost::ProstCodec::<HealthReply, HealthRequest>::default();
                let mut grpc = tonic::server::Grpc::new(codec);
                let answer = tower::service_fn(move |r: tonic::Request<HealthRequest>| async move {
                    match r.get_ref().service.as_str() {
                        "" | "known" => Ok(tonic::Response::new(HealthReply { status })),
                        _ => Err(tonic::Status::not_found("unknown service")),
                    }
                });
                Ok(grpc.unary(answer, request).await)
            })
        }
    }

    impl tonic::server::NamedService for Health {
        const NAME: &'static str = "grpc.health.v1.Health";
    }

    #[tokio::test]
    async fn health_over_grpc() {
        for (status, service, expected) in [(1, "", true), (1, "known", true), (2, "", false), (1, "unknown", false)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = tokio::spawn(
                tonic::transport::Server::builder()
                    .add_service(Health(status))
                    .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
            );
            let action = NetAction::Grpc { host: "127.0.0.1".into(), port, service: service.into() };
            let outcome = act(action, 5).await;
            assert_eq!(matches!(outcome, Ok(Reply::Done)), expected, "{status} {service:?}: {outcome:?}");
            server.abort();
        }
        let nobody = NetAction::Grpc { host: "127.0.0.1".into(), port: 1, service: String::new() };
        assert!(matches!(act(nobody, 5).await, Ok(Reply::Exited { code: 1, .. })));
    }
}
