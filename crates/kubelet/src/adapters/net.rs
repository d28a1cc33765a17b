//! Network probes and hooks: an HTTP GET, a TCP connection that opens, or gRPC health checking.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::effects::{NetAction, Reply};

/// How much of what a probe or a hook says is kept, in bytes.
pub const MAX_REPLY: usize = 10 << 10;
/// Most requests of one probe that is sent on and on, as of upstream's client.
const MAX_REDIRECTIONS: usize = 10;

/// Names that are looked up at the same time. The system's resolver keeps a thread for each, for as long as a server of names does not
/// answer, whatever the probe's time is; and a pod chooses what its probes ask for. Disks need threads, too.
const MOST_LOOKUPS: usize = 32;
static LOOKUPS: Semaphore = Semaphore::const_new(MOST_LOOKUPS);

/// The addresses of a host.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let turn = LOOKUPS.acquire().await.map_err(io::Error::other)?;
    let host = host.to_owned();
    let found = tokio::task::spawn_blocking(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(turn);
        found
    });
    found.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Connects. What went wrong names where to, in the words of Go's dialer, as in upstream's events.
async fn dial(host: &str, port: u16) -> Result<TcpStream, String> {
    let all = addresses(host, port).await.map_err(|error| format!("dial tcp: lookup {host}: {}", plain(&error)))?;
    let refused = |error: io::Error| format!("dial tcp {}: connect: {}", authority(host, port), plain(&error));
    TcpStream::connect(all.as_slice()).await.map_err(refused)
}

/// A failure as Go tells it: in small letters, and without the system's number for it.
fn plain(error: &dyn std::error::Error) -> String {
    error.to_string().split(" (os error ").next().unwrap_or_default().to_lowercase()
}

/// What a failure comes from in the end.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    plain(cause)
}

/// Carries an action out. What the other side did wrong is an exit code of 1 with a text, and so is that it took too long.
pub async fn act(action: NetAction, timeout_s: i64) -> Reply {
    let seconds = u64::try_from(timeout_s).unwrap_or(1).max(1);
    let late = late(&action, seconds);
    let work = async {
        match action {
            NetAction::Tcp { host, port } => dial(&host, port).await.map(|_| Reply::Done),
            NetAction::Grpc { host, port, service } => health(&host, port, service).await.map(|()| Reply::Done),
            NetAction::Http { https, host, port, path, headers, is_hook } => {
                let place = Place { https, host, port, path };
                if is_hook {
                    hook(place, &headers).await
                } else {
                    get(place, &headers).await.map(warned).map_err(Failure::text)
                }
            }
        }
    };
    match tokio::time::timeout(Duration::from_secs(seconds), work).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(output)) => Reply::Exited { code: 1, output },
        Err(_) => Reply::Exited { code: 1, output: late },
    }
}

fn warned(warning: Option<String>) -> Reply {
    warning.map_or(Reply::Done, Reply::Warned)
}

/// Asks for a hook: whoever answers has been told. Where TLS was to be spoken and is not, it is asked again without, as upstream does for
/// those who wrote `HTTPS` when that meant nothing (`runHTTPHandler`, `pkg/kubelet/lifecycle`); what is to show who asks is kept back then.
async fn hook(place: Place, headers: &[(String, String)]) -> Result<Reply, String> {
    let plain = Place { https: false, ..place.clone() };
    let why = match get(place, headers).await {
        Ok(warning) => return Ok(warned(warning)),
        Err(Failure::Answered(_)) => return Ok(Reply::Done),
        Err(Failure::Unanswered(why)) => return Err(why),
        Err(Failure::NoTls(why)) => why,
    };
    let is_shown = |(name, _): &&(String, String)| !name.eq_ignore_ascii_case("Authorization");
    let headers: Vec<(String, String)> = headers.iter().filter(is_shown).cloned().collect();
    let at = authority(&plain.host, plain.port);
    match get(plain, &headers).await {
        Ok(_) | Err(Failure::Answered(_)) => Ok(Reply::Plain(at)),
        Err(_) => Err(why),
    }
}

/// What is told of an action that took too long.
fn late(action: &NetAction, seconds: u64) -> String {
    match action {
        NetAction::Http { https, host, port, path, .. } => format!(
            "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            url(*https, host, *port, path)
        ),
        NetAction::Tcp { host, port } => format!("dial tcp {}: i/o timeout", authority(host, *port)),
        NetAction::Grpc { host, port, .. } => {
            format!("timeout: health rpc to {:?} did not complete within {seconds}s", authority(host, *port))
        }
    }
}

/// A host and its port as URLs, headers and error texts name them.
fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn url(https: bool, host: &str, port: u16, path: &str) -> String {
    format!("{}://{}{path}", if https { "https" } else { "http" }, authority(host, port))
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

/// What a server says of itself, by its number.
const SERVING_STATUS: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

async fn health(host: &str, port: u16, service: String) -> Result<(), String> {
    let at = authority(host, port);
    let channel = tonic::transport::Endpoint::try_from(format!("http://{at}"))
        .and_then(|e| e.user_agent("kube-probe/1.36"))
        .map_err(|e| e.to_string())?
        .connect()
        .await
        .map_err(|e| format!("error: failed to connect service at {at:?}: {}", root(&e)))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|e| e.to_string())?;
    let path = http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = tonic_prost::ProstCodec::<HealthRequest, HealthReply>::default();
    match client.unary(tonic::Request::new(HealthRequest { service }), path, codec).await {
        Ok(reply) => {
            let number = reply.get_ref().status;
            match usize::try_from(number).ok().and_then(|number| SERVING_STATUS.get(number)) {
                Some(&"SERVING") => Ok(()),
                Some(status) => Err(format!("service unhealthy (responded with {status:?})")),
                None => Err(format!("service unhealthy (responded with \"{number}\")")),
            }
        }
        Err(e) if e.code() == tonic::Code::Unimplemented => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            e.message()
        )),
        Err(e) => {
            Err(format!("error: health rpc probe failed: rpc error: code = {:?} desc = {}", e.code(), e.message()))
        }
    }
}

/// Where a GET goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    https: bool,
    host: String,
    port: u16,
    /// With its query.
    path: String,
}

impl Place {
    fn url(&self) -> String {
        url(self.https, &self.host, self.port, &self.path)
    }

    /// Where it is sent from here; none where that is another host, of which nothing is asked (upstream's
    /// `RedirectChecker`).
    fn redirected(&self, location: &str) -> Result<Option<Self>, String> {
        let bad = || format!("failed to parse Location header {location:?}");
        let location = location.split('#').next().unwrap_or_default();
        let scheme = if self.https { "https" } else { "http" };
        let location = if location.starts_with("//") { format!("{scheme}:{location}") } else { location.to_owned() };
        let is_scheme = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if !location.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme)) {
            let own = self.path.split('?').next().unwrap_or_default();
            let directory = own.rsplit_once('/').map_or("", |(directory, _)| directory);
            let path = match location.bytes().next() {
                Some(b'/') => location,
                Some(b'?') | None => format!("{own}{location}"),
                Some(_) => format!("{directory}/{location}"),
            };
            return Ok(Some(Self { path, ..self.clone() }));
        }
        let uri: http::Uri = location.parse().map_err(|_| bad())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']);
        if !host.eq_ignore_ascii_case(&self.host) {
            return Ok(None);
        }
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        Ok(Some(Self { https, host: self.host.clone(), port, path }))
    }
}

/// Why a GET did not do well.
enum Failure {
    /// Whoever was asked said so.
    Answered(String),
    /// Nobody has answered.
    Unanswered(String),
    /// What was answered where TLS was to be spoken is none.
    NoTls(String),
}

impl Failure {
    /// Whom nobody has answered is told where it was asked, as Go's client tells it.
    fn at(self, place: &Place) -> Self {
        let told = |text: String| format!("Get {:?}: {text}", place.url());
        match self {
            Self::Unanswered(text) => Self::Unanswered(told(text)),
            Self::NoTls(text) => Self::NoTls(told(text)),
            Self::Answered(_) => self,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Answered(text) | Self::Unanswered(text) | Self::NoTls(text) => text,
        }
    }
}

/// What went wrong before there was an answer.
fn unanswered(error: impl std::fmt::Display) -> Failure {
    Failure::Unanswered(error.to_string())
}

/// What went wrong while TLS was being agreed on.
fn untrusted(error: io::Error) -> Failure {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let is_other = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    if cause.is_some_and(|cause| *cause == is_other) { Failure::NoTls(error.to_string()) } else { unanswered(error) }
}

/// Where somebody is sent on to, if that is said, and what else is said.
struct Redirection {
    location: Option<String>,
    body: String,
}

/// Asks, and follows redirections on the same host. One to another host is well, and returned as a warning.
async fn get(mut place: Place, headers: &[(String, String)]) -> Result<Option<String>, Failure> {
    for _ in 0..MAX_REDIRECTIONS {
        let asked = ask(&place, headers).await.map_err(|failure| failure.at(&place))?;
        let Some(Redirection { location, body }) = asked else { return Ok(None) };
        // One that does not say where is followed nowhere.
        let next = match location {
            Some(location) => place.redirected(&location).map_err(|text| unanswered(text).at(&place))?,
            None => None,
        };
        match next {
            Some(next) => place = next,
            None => return Ok(Some(format!("Probe terminated redirects, Response body: {body}"))),
        }
    }
    Err(unanswered(format!("stopped after {MAX_REDIRECTIONS} redirects")).at(&place))
}

/// Asks once. Returns where it is sent on to, if it is.
async fn ask(place: &Place, headers: &[(String, String)]) -> Result<Option<Redirection>, Failure> {
    let tcp = dial(&place.host, place.port).await.map_err(unanswered)?;
    if place.https {
        let config = no_verification().map_err(unanswered)?;
        let name = ServerName::try_from(place.host.clone()).map_err(unanswered)?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(untrusted)?;
        send(TokioIo::new(tls), place, headers).await
    } else {
        send(TokioIo::new(tcp), place, headers).await
    }
}

async fn send<I>(io: I, place: &Place, headers: &[(String, String)]) -> Result<Option<Redirection>, Failure>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(unanswered)?;
    let mut request = http::Request::get(place.path.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let usual = [
        ("Host", authority(&place.host, place.port)),
        ("User-Agent", "kube-probe/1.36".to_owned()),
        ("Accept", "*/*".to_owned()),
    ];
    for (name, value) in usual {
        if !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)) {
            request = request.header(name, value);
        }
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(unanswered)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(unanswered)?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(None);
        }
        let is_followed = matches!(status, 301 | 302 | 303 | 307 | 308);
        let location = response.headers().get(http::header::LOCATION).filter(|l| is_followed && !l.is_empty());
        let location = location.map(|l| l.to_str().map(str::to_owned)).transpose().map_err(unanswered)?;
        let text = text(response.into_body()).await;
        if (300..400).contains(&status) {
            return Ok(Some(Redirection { location, body: text }));
        }
        // Whoever may see a pod's events may not see all that its node can reach: what is said there is for the log alone
        // (https://github.com/kubernetes/kubernetes/issues/99425).
        tracing::debug!(url = place.url(), status, body = text, "a probe or a hook was answered with a failure");
        Err(Failure::Answered(format!("HTTP probe failed with statuscode: {status}")))
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

/// What a reply says; nothing where that is too much, or does not come to its end.
async fn text(body: hyper::body::Incoming) -> String {
    let body = Limited::new(body, MAX_REPLY).collect().await;
    body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default()
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
            is_hook: false,
        };
        assert!(matches!(act(http(), 5).await, Reply::Done));
        match act(http(), 5).await {
            Reply::Exited { code: 1, output } => assert_eq!(output, "HTTP probe failed with statuscode: 500"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(act(http(), 5).await, Reply::Warned(_)), "it does not say where");
        let tcp = || NetAction::Tcp { host: "127.0.0.1".into(), port };
        assert!(matches!(act(tcp(), 5).await, Reply::Done));
        server.await.unwrap();
        let dialled = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        let got = format!("Get \"http://127.0.0.1:{port}/x\": {dialled}");
        let asked = format!("error: failed to connect service at \"127.0.0.1:{port}\": connection refused");
        let grpc = NetAction::Grpc { host: "127.0.0.1".into(), port, service: String::new() };
        for (action, expected) in [(tcp(), dialled), (http(), got), (grpc, asked)] {
            match act(action, 5).await {
                Reply::Exited { code: 1, output } => assert_eq!(output, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn names_are_looked_up_some_at_a_time() {
        let all = LOOKUPS.acquire_many(u32::try_from(MOST_LOOKUPS).unwrap()).await.unwrap();
        for (host, expected) in [("127.0.0.1", "127.0.0.1:80"), ("fd00::1", "[fd00::1]:80")] {
            assert_eq!(addresses(host, 80).await.unwrap(), [expected.parse::<SocketAddr>().unwrap()]);
        }
        let waits = tokio::time::timeout(Duration::from_millis(50), addresses("localhost", 80)).await;
        assert!(waits.is_err(), "{waits:?}");
        drop(all);
    }

    #[test]
    fn redirections_are_followed_on_the_same_host() {
        let place = |https, host: &str, port, path: &str| Place { https, host: host.into(), port, path: path.into() };
        let from = place(false, "10.0.0.1", 8080, "/a/b?x=1");
        let here = |path: &str| Ok(Some(place(false, "10.0.0.1", 8080, path)));
        for (location, expected) in [
            ("/c?next=http://d/#e", here("/c?next=http://d/")),
            ("c", here("/a/c")),
            ("?y=2", here("/a/b?y=2")),
            ("http://10.0.0.1:8080/c", here("/c")),
            ("//10.0.0.1:8080", here("/")),
            ("https://10.0.0.1/c?x", Ok(Some(place(true, "10.0.0.1", 443, "/c?x")))),
            ("http://example.com/c", Ok(None)),
            ("ftp://10.0.0.1/c", Err("failed to parse Location header \"ftp://10.0.0.1/c\"".to_owned())),
        ] {
            assert_eq!(from.redirected(location), expected, "{location}");
        }
        let six = place(false, "fd00::1", 80, "/");
        assert_eq!(six.redirected("http://[fd00::1]/c"), Ok(Some(place(false, "fd00::1", 80, "/c"))));
        assert_eq!((six.url(), from.url()), ("http://[fd00::1]:80/".into(), "http://10.0.0.1:8080/a/b?x=1".into()));
    }

    fn at(port: u16, is_hook: bool) -> NetAction {
        let (host, path) = ("127.0.0.1".into(), "/x".into());
        NetAction::Http { https: false, host, port, path, headers: vec![], is_hook }
    }

    /// Upstream's kubelet looks whether it was answered, and not how.
    #[tokio::test]
    async fn a_hook_does_well_once_somebody_has_answered() {
        for (reply, is_hook, well) in [
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", true, true),
            ("HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nabc", true, true),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false, false),
            ("nonsense\r\n\r\n", true, false),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = async {
                let (mut s, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1024];
                assert!(s.read(&mut buffer).await.unwrap() > 0);
                s.write_all(reply.as_bytes()).await.unwrap();
            };
            let (outcome, ()) = tokio::join!(act(at(port, is_hook), 5), server);
            assert_eq!(matches!(outcome, Reply::Done), well, "{reply:?} {is_hook}: {outcome:?}");
        }
    }

    /// A server that speaks no TLS says so in HTTP. What shows who asks does not go to it in the clear.
    #[tokio::test]
    async fn a_hook_is_asked_again_where_tls_is_not_spoken() {
        for (is_hook, second, is_asked_again, well) in [
            (true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true, true),
            (true, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", true, true),
            (true, "nonsense\r\n\r\n", true, false),
            (false, "", false, false),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let headers = vec![("authorization".into(), "secret".into()), ("X".into(), "y".into())];
            let (host, path) = ("127.0.0.1".into(), "/x".into());
            let action = NetAction::Http { https: true, host, port, path, headers, is_hook };
            let server = async {
                let mut buffer = [0; 4096];
                let (mut s, _) = listener.accept().await.unwrap();
                assert!(s.read(&mut buffer).await.unwrap() > 0);
                s.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\nspeak HTTP").await.unwrap();
                if is_asked_again {
                    let (mut s, _) = listener.accept().await.unwrap();
                    let n = s.read(&mut buffer).await.unwrap();
                    let asked = String::from_utf8_lossy(&buffer[..n]).to_lowercase();
                    assert!(asked.starts_with("get /x http/1.1\r\n") && asked.contains("x: y\r\n"), "{asked}");
                    assert!(!asked.contains("secret"), "{asked}");
                    s.write_all(second.as_bytes()).await.unwrap();
                }
            };
            let (outcome, ()) = tokio::join!(act(action, 5), server);
            match (&outcome, well) {
                (Reply::Plain(at), true) => assert_eq!(*at, format!("127.0.0.1:{port}")),
                (Reply::Exited { code: 1, output }, false) => assert!(output.starts_with("Get \"https://"), "{output}"),
                _ => panic!("{is_hook} {second:?}: {outcome:?}"),
            }
        }
    }

    #[tokio::test]
    async fn what_a_redirection_leads_to_counts() {
        for (replies, expected) in [
            (&["302 Found\r\nLocation: /y", "503 No"][..], Err("HTTP probe failed with statuscode: 503")),
            (&["302 Found\r\nLocation: /y", "200 OK"][..], Ok(None)),
            (
                &["302 Found\r\nLocation: http://192.0.2.1/y"][..],
                Ok(Some("Probe terminated redirects, Response body: abc")),
            ),
            (&["302 Found\r\nLocation: "][..], Ok(Some("Probe terminated redirects, Response body: abc"))),
            (&["300 Multiple Choices"][..], Ok(Some("Probe terminated redirects, Response body: abc"))),
            (
                &["302 Found\r\nLocation: /x"; MAX_REDIRECTIONS][..],
                Err("Get \"http://127.0.0.1:PORT/x\": stopped after 10 redirects"),
            ),
        ] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = async {
                for reply in replies {
                    let (mut s, _) = listener.accept().await.unwrap();
                    let mut buffer = [0; 1024];
                    assert!(s.read(&mut buffer).await.unwrap() > 0);
                    s.write_all(format!("HTTP/1.1 {reply}\r\nContent-Length: 3\r\n\r\nabc").as_bytes()).await.unwrap();
                }
            };
            let (outcome, ()) = tokio::join!(act(at(port, false), 5), server);
            match (&outcome, expected) {
                (Reply::Done, Ok(None)) => {}
                (Reply::Warned(warning), Ok(Some(text))) => assert_eq!(warning, text),
                (Reply::Exited { code: 1, output }, Err(text)) => {
                    assert_eq!(*output, text.replace("PORT", &port.to_string()));
                }
                _ => panic!("{replies:?}: {outcome:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_given_up_on() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = || "127.0.0.1".to_owned();
        let http =
            |https| NetAction::Http { https, host: host(), port, path: "/".into(), headers: vec![], is_hook: false };
        let grpc = NetAction::Grpc { host: host(), port, service: String::new() };
        let unanswered = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        for (action, expected) in [
            (http(false), format!("Get \"http://127.0.0.1:{port}/\": {unanswered}")),
            (http(true), format!("Get \"https://127.0.0.1:{port}/\": {unanswered}")),
            (grpc, format!("timeout: health rpc to \"127.0.0.1:{port}\" did not complete within 1s")),
        ] {
            // It takes connections and says nothing.
            match act(action.clone(), 1).await {
                Reply::Exited { code: 1, output } => assert_eq!(output, expected),
                other => panic!("{action:?}: {other:?}"),
            }
        }
        assert_eq!(late(&NetAction::Tcp { host: "fd00::1".into(), port: 80 }, 1), "dial tcp [fd00::1]:80: i/o timeout");
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
        let unhealthy = Some("service unhealthy (responded with \"NOT_SERVING\")");
        let unknown = Some("error: health rpc probe failed: rpc error: code = NotFound desc = unknown service");
        for (status, service, expected) in
            [(1, "", None), (1, "known", None), (2, "", unhealthy), (1, "unknown", unknown)]
        {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = tokio::spawn(
                tonic::transport::Server::builder()
                    .add_service(Health(status))
                    .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
            );
            let action = NetAction::Grpc { host: "127.0.0.1".into(), port, service: service.into() };
            match (act(action, 5).await, expected) {
                (Reply::Done, None) => {}
                (Reply::Exited { code: 1, output }, Some(text)) => assert_eq!(output, text, "{status} {service:?}"),
                (outcome, _) => panic!("{status} {service:?}: {outcome:?}"),
            }
            server.abort();
        }
    }
}
