//! The server over real TLS, with an echo for a guest's serial port.

use std::path::Path;

use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::{Reloadable, Trust, client_config, server_config};
use carrack_engine::{ApiError, ApiRequest, ApiResponse, EventStream};
use futures::future::BoxFuture;
use futures::{SinkExt as _, StreamExt as _};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use super::*;
use crate::handler::effects::Place;

/// An API server that takes each token but one for a user's name, and lets one of them read metrics.
struct Reviews;

impl Transport for Reviews {
    fn send(&self, request: ApiRequest) -> BoxFuture<'static, Result<ApiResponse, ApiError>> {
        let asked: Value = serde_json::from_slice(&request.body).expect("JSON");
        let spec = &asked["spec"];
        let status = if request.path.ends_with("/tokenreviews") {
            json!({"authenticated": spec["token"] != "stale", "user": {"username": spec["token"]}})
        } else {
            let metrics = json!({"path": "/metrics", "verb": "get"});
            json!({"allowed": spec["user"] == "reader" && spec["nonResourceAttributes"] == metrics})
        };
        let body = Bytes::from(json!({"status": status}).to_string());
        Box::pin(async move { Ok(ApiResponse { status: 201, body }) })
    }

    fn watch(&self, _: ApiRequest) -> BoxFuture<'static, Result<EventStream, ApiError>> {
        Box::pin(async { Err(ApiError::Transport("nobody watches".to_owned())) })
    }
}

struct Rig {
    dir: tempfile::TempDir,
    pki: Pki,
    guests: Guests,
    address: std::net::SocketAddr,
    stop: CancellationToken,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid by the real clock")]
fn now_s() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("before the end of time")
}

impl Rig {
    /// A server with one guest, `ns/demo`, whose serial port is `serial` below the directory.
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::open_or_create(&dir.path().join("pki"), now_s()).expect("a PKI");
        let node = "n1".to_owned();
        let pair =
            pki.server(&Server::VirtHandler { node }, &Sans::loopback().with_name("n1"), now_s()).expect("issued");
        let tls = server_config(Reloadable::new(&pair).expect("a pair"), pki.ca_pem()).expect("a configuration");
        let config = Config {
            node_name: "n1".to_owned(),
            kubelet_dir: dir.path().to_owned(),
            state_dir: dir.path().to_owned(),
            keep_alive_dir: dir.path().to_owned(),
            keep_alive_program: Vec::new(),
            watchdog: None,
        };
        let place = Place { uid: "vmi".to_owned(), pod_uid: "pod".to_owned(), compute_id: "c".to_owned() };
        let serial = config.layout(&place).serial_socket();
        std::fs::create_dir_all(serial.parent().expect("a parent")).expect("made");
        tokio::spawn(echo(serial));
        let guests = Guests::default();
        let (namespace, name) = ("ns".to_owned(), "demo".to_owned());
        guests.replace(vec![Served {
            namespace,
            name,
            place,
            address: Some("127.0.0.1".to_owned()),
            disks: Vec::new(),
            nics: BTreeMap::new(),
        }]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let (address, stop) = (listener.local_addr().expect("an address"), CancellationToken::new());
        tokio::spawn(serve(listener, tls, config, guests.clone(), Arc::new(Reviews), stop.clone()));
        Self { dir, pki, guests, address, stop }
    }

    async fn tls(&self, identity: &Identity) -> TlsStream<TcpStream> {
        let pair = self.pki.client(identity, now_s()).expect("issued");
        self.connect(Some(Reloadable::new(&pair).expect("a pair"))).await
    }

    async fn connect(&self, certificate: Option<Arc<Reloadable>>) -> TlsStream<TcpStream> {
        let tls = client_config(Trust::Authorities(self.pki.ca_pem()), certificate).expect("a configuration");
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let name = ServerName::try_from("n1").expect("a name");
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await.expect("a session")
    }

    async fn websocket(&self, call: &str) -> WebSocketStream<TlsStream<TcpStream>> {
        let stream = self.tls(&Identity::ApiserverKubeletClient).await;
        let url = format!("ws://n1/v1/namespaces/ns/virtualmachineinstances/demo/{call}");
        let mut request = url.into_client_request().expect("a request");
        // KubeVirt's protocol counts also where it comes second.
        let offered = HeaderValue::from_static("base64.binary.k8s.io, plain.kubevirt.io");
        request.headers_mut().insert(http::header::SEC_WEBSOCKET_PROTOCOL, offered);
        let (socket, reply) = client_async(request, stream).await.expect("a websocket");
        assert_eq!(reply.headers()[http::header::SEC_WEBSOCKET_PROTOCOL], "plain.kubevirt.io");
        socket
    }

    /// Status and body of a plain request.
    async fn plain(&self, identity: &Identity, head: &str) -> String {
        Self::ask(self.tls(identity).await, head, "").await
    }

    /// The same, with further headers, each with the end of its line.
    async fn ask(mut stream: TlsStream<TcpStream>, head: &str, headers: &str) -> String {
        let request = format!("{head} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\nContent-Length: 0\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut reply = Vec::new();
        // A server that closes without TLS' goodbye has said everything all the same.
        drop(stream.read_to_end(&mut reply).await);
        String::from_utf8_lossy(&reply).into_owned()
    }
}

/// Serves one connection at a time, as QEMU does, and says everything back.
async fn echo(path: impl AsRef<Path>) {
    let listener = UnixListener::bind(path).expect("listens");
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    }
}

async fn next(socket: &mut WebSocketStream<TlsStream<TcpStream>>) -> Option<Message> {
    tokio::time::timeout(Duration::from_secs(60), socket.next()).await.expect("in time").and_then(Result::ok)
}

#[tokio::test]
async fn a_console_is_for_one_and_the_next_one_takes_it() {
    let rig = Rig::new().await;
    let mut first = rig.websocket("console").await;
    first.send(Message::Binary(Bytes::from_static(b"hello"))).await.expect("sent");
    assert_eq!(next(&mut first).await, Some(Message::Binary(Bytes::from_static(b"hello"))));
    let mut second = rig.websocket("console").await;
    assert!(matches!(next(&mut first).await, None | Some(Message::Close(_))));
    second.send(Message::Binary(Bytes::from_static(b"mine"))).await.expect("sent");
    assert_eq!(next(&mut second).await, Some(Message::Binary(Bytes::from_static(b"mine"))));
    drop(second);
    let mut third = rig.websocket("console").await;
    third.send(Message::Binary(Bytes::from_static(b"again"))).await.expect("sent");
    assert_eq!(next(&mut third).await, Some(Message::Binary(Bytes::from_static(b"again"))));
    assert!(rig.dir.path().exists());
}

#[tokio::test]
async fn refusals() {
    let rig = Rig::new().await;
    let check = async |identity: Identity, head: &str, code: &str, said: &str| {
        let reply = rig.plain(&identity, head).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {code}")) && reply.contains(said), "{head}: {reply}");
    };
    let base = "/v1/namespaces/ns/virtualmachineinstances";
    let server = || Identity::ApiserverKubeletClient;
    check(server(), "GET /healthz", "200", "ok").await;
    check(Identity::Admin, "GET /healthz", "200", "ok").await;
    check(Identity::Scheduler, "GET /healthz", "403", "only the API server").await;
    check(Identity::Node { node: "n1".to_owned() }, "GET /healthz", "403", "only the API server").await;
    check(server(), &format!("GET {base}/other/console"), "404", "no guest of ns/other").await;
    check(server(), &format!("GET {base}/demo/console"), "400", "a websocket is expected").await;
    check(server(), &format!("GET {base}/demo/pause"), "405", "no such call").await;
    check(server(), &format!("PUT {base}/demo/pause"), "500", "cannot reach the launcher").await;
    check(server(), &format!("PUT {base}/demo/softreboot"), "500", "cannot reach the launcher").await;
    check(server(), &format!("GET {base}/demo/portforward/53/sctp"), "400", "only TCP").await;
    check(server(), &format!("GET {base}/demo/portforward/x"), "400", "no such port").await;
    // One guest's callers leave something for those of others.
    let share = rig.guests.share("vmi");
    let streams = share.streams.try_acquire_many(256).expect("all of them");
    check(server(), &format!("GET {base}/demo/portforward/22"), "429", "too many streams").await;
    check(server(), &format!("GET {base}/demo/portforward/53/udp"), "429", "too many streams").await;
    drop(streams);
    check(server(), &format!("GET {base}/demo/portforward/22"), "400", "a websocket is expected").await;
    let _calls = share.calls.try_acquire_many(16).expect("all of them");
    check(server(), &format!("PUT {base}/demo/pause"), "429", "too many calls").await;
    check(server(), "GET /healthz", "200", "ok").await;
}

#[tokio::test]
async fn metrics_are_for_those_who_may_read_them() {
    let rig = Rig::new().await;
    let check = async |token: &str, head: &str, code: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        let reply = Rig::ask(rig.connect(None).await, head, &header).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {code}")), "{token} {head}: {reply}");
    };
    check("reader", "GET /metrics", "200").await;
    check("other", "GET /metrics", "403").await;
    check("stale", "GET /metrics", "401").await;
    // They may read that alone.
    for head in ["GET /healthz", "POST /metrics", "PUT /v1/namespaces/ns/virtualmachineinstances/demo/pause"] {
        check("reader", head, "403").await;
    }
    let reply = Rig::ask(rig.connect(None).await, "GET /metrics", "").await;
    assert!(reply.starts_with("HTTP/1.1 401"), "{reply}");
    // A certificate of another authority is as good as none, whoever it names.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let foreign = Pki::open_or_create(elsewhere.path(), now_s()).expect("a PKI");
    let pair = foreign.client(&Identity::Admin, now_s()).expect("issued");
    for (token, head, code) in [
        ("Authorization: Bearer reader\r\n", "GET /metrics", "200"),
        ("", "GET /metrics", "401"),
        ("", "GET /healthz", "403"),
    ] {
        let shown = Reloadable::new(&pair).expect("a pair");
        let reply = Rig::ask(rig.connect(Some(shown)).await, head, token).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {code}")), "{token} {head}: {reply}");
    }
    assert!(rig.plain(&Identity::Scheduler, "GET /metrics").await.starts_with("HTTP/1.1 403"));
    assert!(rig.plain(&Identity::Admin, "GET /metrics").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn whoever_says_nothing_makes_room() {
    let rig = Rig::new().await;
    let mut silent = Vec::new();
    for _ in 0..280 {
        silent.push(TcpStream::connect(rig.address).await.expect("connected"));
    }
    let asked = rig.plain(&Identity::ApiserverKubeletClient, "GET /healthz");
    let reply = tokio::time::timeout(HEAD_DEADLINE / 2, asked).await.expect("in time");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    // One that is known is not in their way, whoever comes after.
    let mut console = rig.websocket("console").await;
    silent.clear();
    for _ in 0..150 {
        silent.push(TcpStream::connect(rig.address).await.expect("connected"));
    }
    console.send(Message::Binary(Bytes::from_static(b"hello"))).await.expect("sent");
    assert_eq!(next(&mut console).await, Some(Message::Binary(Bytes::from_static(b"hello"))));
}

#[tokio::test]
async fn who_may_not_call_does_not_stay() {
    let rig = Rig::new().await;
    let check = async |identity: Identity, stays: bool| {
        let mut stream = rig.tls(&identity).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n1\r\n\r\n").await.expect("sent");
        let mut reply = Vec::new();
        // The server's goodbye, or none within a moment.
        let patience = Duration::from_secs(if stays { 2 } else { 60 });
        let read = tokio::time::timeout(patience, stream.read_to_end(&mut reply)).await;
        assert_eq!(read.is_err(), stays, "{}", String::from_utf8_lossy(&reply));
    };
    check(Identity::Scheduler, false).await;
    check(Identity::ApiserverKubeletClient, true).await;
}
