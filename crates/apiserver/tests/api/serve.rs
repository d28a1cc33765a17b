//! The HTTPS shell on real sockets: certificates, tokens, bounds, watches, upgrades, the end.
#![expect(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use carrack_apiserver::serve::{Settings, serve};
use carrack_apiserver::{ApiServer, Body, Config, Env, LocalApi, LocalGroupVersion, LocalRequest, Response};
use carrack_auth::authn::StaticTokens;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable, Trust};
use carrack_auth::token::{DEFAULT_ISSUER, Issuer, SigningKey, Verifier};
use carrack_auth::{Authenticator, Caller};
use carrack_engine::{ApiRequest, HttpsTransport, Transport as _};
use carrack_store::MemStore;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

mod flow;
mod head;
mod kubelet;
mod presence;

use kubelet::FakeKubelet;

struct TestEnv;

impl Env for TestEnv {
    #[expect(clippy::disallowed_methods, reason = "certificates are valid now, and only now")]
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
    fn random(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}

/// The clock of a server that is so many seconds ahead.
struct Ahead(Arc<AtomicI64>);

impl Env for Ahead {
    fn now(&self) -> jiff::Timestamp {
        TestEnv.now() + jiff::SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }
    fn random(&self) -> u64 {
        TestEnv.random()
    }
}

/// Hands upgraded connections to an echo.
struct Echo(Vec<LocalGroupVersion>);

impl LocalApi for Echo {
    fn group_versions(&self) -> &[LocalGroupVersion] {
        &self.0
    }
    fn handle<'a>(&'a self, _: LocalRequest<'a>) -> BoxFuture<'a, Response> {
        Box::pin(async {
            let upgrade: carrack_apiserver::body::Upgrade = Box::new(|connection| {
                Box::pin(async move {
                    let mut io = TokioIo::new(connection);
                    io.write_all(b"hello").await.expect("write");
                    io.shutdown().await.expect("shut down");
                })
            });
            let mut response = Response::new(Body::Upgrade(upgrade));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", "Upgrade".parse().expect("header"));
            response.headers_mut().insert("upgrade", "websocket".parse().expect("header"));
            response
        })
    }
}

struct Running {
    address: SocketAddr,
    pki: Pki,
    api: ApiServer,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
    _directory: tempfile::TempDir,
}

impl Running {
    async fn start(settings: Settings) -> Running {
        Running::start_with(settings, |_| {}).await
    }

    async fn start_with(settings: Settings, configure: impl FnOnce(&mut Config)) -> Running {
        let directory = tempfile::tempdir().expect("temporary directory");
        let now_s = TestEnv.now().as_second();
        let pki = Pki::open_or_create(directory.path(), now_s).expect("pki");
        let key = SigningKey::from_pem(pki.service_account_key()).expect("key");
        let mut config = Config::new(Arc::new(MemStore::default()), Arc::new(TestEnv));
        config.authenticator =
            Some(Authenticator::new(Verifier::new(DEFAULT_ISSUER, vec![key.verifying_key().clone()])));
        config.issuer = Some(Issuer::new(DEFAULT_ISSUER, key));
        config.apis.push(Arc::new(Echo(vec![LocalGroupVersion {
            group: "echo.example.com".to_owned(),
            version: "v1".to_owned(),
            resources: Vec::new(),
        }])));
        configure(&mut config);
        let api = ApiServer::new(config);
        api.bootstrap().await.expect("bootstrap");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let pair = pki.server(&Server::Apiserver, &Sans::loopback(), now_s).expect("certificate");
        let tls = tls::server_config(Reloadable::new(&pair).expect("pair"), pki.ca_pem()).expect("tls");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(serve(api.clone(), listener, tls, Arc::new(FakeKubelet), settings, async move {
            drop(stopped.await);
        }));
        Running { address, pki, api, stop: Some(stop), serving, _directory: directory }
    }

    fn client_tls(&self, identity: Option<Identity>) -> rustls::ClientConfig {
        let now_s = TestEnv.now().as_second();
        let certificate = identity
            .map(|identity| Reloadable::new(&self.pki.client(&identity, now_s).expect("certificate")).expect("pair"));
        tls::client_config(Trust::Authorities(self.pki.ca_pem()), certificate).expect("tls")
    }

    async fn secure(&self, identity: Option<Identity>) -> tokio_rustls::client::TlsStream<TcpStream> {
        self.secure_over(TcpStream::connect(self.address).await.expect("connect"), identity).await
    }

    async fn secure_over(
        &self,
        stream: TcpStream,
        identity: Option<Identity>,
    ) -> tokio_rustls::client::TlsStream<TcpStream> {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(self.client_tls(identity)));
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
        connector.connect(name, stream).await.expect("handshake")
    }

    async fn connect(&self, identity: Option<Identity>) -> http1::SendRequest<Full<Bytes>> {
        self.speak(self.secure(identity).await).await
    }

    async fn connect_over(&self, stream: TcpStream) -> http1::SendRequest<Full<Bytes>> {
        self.speak(self.secure_over(stream, None).await).await
    }

    async fn speak(&self, stream: tokio_rustls::client::TlsStream<TcpStream>) -> http1::SendRequest<Full<Bytes>> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("http");
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        sender
    }

    async fn send(&self, identity: Option<Identity>, request: Request<Full<Bytes>>) -> (u16, Value) {
        let response = self.connect(identity).await.send_request(request).await.expect("reply");
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("body").to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        (code, serde_json::from_slice(&body).unwrap_or_else(|_| text()))
    }

    /// Makes a level one without a seat of its own, which borrows none: as if a flood had taken them all.
    async fn without_seats(&self, level: &str, response: Value) {
        let admin = self.api.client_as("admin", ["system:masters"]);
        let path = format!("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/{level}");
        let mut patch = ApiRequest::new(carrack_engine::Method::Get, &path);
        let reply = admin.send(patch.clone()).await.expect("the level");
        let mut level: Value = serde_json::from_slice(&reply.body).expect("JSON");
        level["spec"]["limited"] =
            json!({"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": response});
        level["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"] = "false".into();
        patch.method = carrack_engine::Method::Put;
        patch.body = level.to_string().into();
        admin.send(patch).await.expect("changed");
    }

    async fn pod_on(&self, node: &str) {
        let admin = self.api.client_as("admin", ["system:masters"]);
        let create = |path: &'static str, object: Value| {
            let mut request = ApiRequest::new(carrack_engine::Method::Post, path);
            request.body = object.to_string().into();
            admin.send(request)
        };
        let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
        create("/api/v1/nodes", json!({"metadata": {"name": node}, "status": {"addresses": addresses}}))
            .await
            .expect("node");
        create("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await.ok();
        let pod = json!({"metadata": {"name": node}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
        create("/api/v1/namespaces/default/pods", pod).await.expect("pod");
    }
}

fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost")
}

fn get(path: &str) -> Request<Full<Bytes>> {
    request("GET", path).body(Full::default()).expect("request")
}

/// Nothing here takes longer, unless it hangs.
async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

#[tokio::test]
async fn callers_are_who_their_credentials_say() {
    let running = Running::start(Settings::default()).await;
    let (code, list) = running.send(Some(Identity::Admin), get("/api/v1/namespaces")).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("NamespaceList")));
    assert_eq!(running.send(None, get("/healthz")).await, (200, json!("ok")));
    let (code, status) = running.send(None, get("/api/v1/nodes")).await;
    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")));
    let bad = request("GET", "/api/v1/nodes")
        .header("authorization", "Bearer nonsense")
        .body(Full::default())
        .expect("request");
    let (code, status) = running.send(None, bad).await;
    assert_eq!((code, status["message"].as_str()), (401, Some("Unauthorized")));
    let (code, status) = running.send(Some(Identity::Node { node: "n1".to_owned() }), get("/api/v1/secrets")).await;
    assert_eq!(code, 403, "{status}");
    assert!(status["message"].as_str().is_some_and(|text| text.contains("system:node:n1")), "{status}");
    // Of those who came with certificates, this one among them, it is told for how long these last.
    let (_, text) = running.send(Some(Identity::Admin), get("/metrics")).await;
    let counted = "apiserver_client_certificate_expiration_seconds_count 3";
    assert!(text.as_str().is_some_and(|text| text.lines().any(|line| line == counted)), "{text}");
}

/// A certificate that nobody vouches for is answered, and says nothing: neither who a client is, nor that it is anonymous.
#[tokio::test]
async fn worthless_certificates_are_answered() {
    let tokens = StaticTokens::parse("s3cret,tool,1,system:masters").expect("a token");
    let running = Running::start_with(Settings::default(), |config| {
        let authenticator = config.authenticator.take().map(|known| known.with_static_tokens(tokens));
        config.authenticator = authenticator;
    })
    .await;
    let (now_s, elsewhere) = (TestEnv.now().as_second(), tempfile::tempdir().expect("temporary directory"));
    let stranger = Pki::open_or_create(elsewhere.path(), now_s).expect("pki");
    let of = |pki: &Pki, now_s: i64| Some(pki.client(&Identity::Admin, now_s).expect("certificate"));
    let serving = running.pki.server(&Server::Kubelet { node: "n1".to_owned() }, &Sans::loopback(), now_s);
    let expired = of(&running.pki, now_s - 2 * 365 * 24 * 3600);
    let (good, bad) = (Some("Bearer s3cret"), Some("Bearer nonsense"));
    for (what, pair, token, code) in [
        ("its own", of(&running.pki, now_s), None, 200),
        ("its own", of(&running.pki, now_s), bad, 200),
        ("none", None, None, 403),
        ("none", None, good, 200),
        ("of another authority", of(&stranger, now_s), None, 401),
        ("of another authority", of(&stranger, now_s), Some("Basic dTpw"), 401),
        ("of another authority", of(&stranger, now_s), bad, 401),
        ("of another authority", of(&stranger, now_s), good, 200),
        ("expired", expired.clone(), None, 401),
        ("expired", expired, good, 200),
        ("a server's", serving.ok(), None, 401),
    ] {
        let certificate = pair.as_ref().map(|pair| Reloadable::new(pair).expect("pair"));
        let tls = tls::client_config(Trust::Authorities(running.pki.ca_pem()), certificate).expect("tls");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
        let stream = TcpStream::connect(running.address).await.expect("connect");
        let mut sender = running.speak(connector.connect(name, stream).await.expect("handshake")).await;
        let mut asking = request("GET", "/api/v1/nodes");
        if let Some(token) = token {
            asking = asking.header("authorization", token);
        }
        let asking = asking.body(Full::default()).expect("request");
        let reply = within("an answer", sender.send_request(asking)).await.expect("reply");
        assert_eq!(reply.status().as_u16(), code, "{what}, {token:?}");
    }
}

#[derive(Default)]
struct Lines(std::sync::Mutex<Vec<Value>>);

impl carrack_apiserver::audit::AuditSink for Lines {
    fn write(&self, line: &str) -> std::io::Result<()> {
        self.0.lock().expect("no panic").push(serde_json::from_str(line).expect("JSON"));
        Ok(())
    }
}

/// A server that notes in short what it is asked for, but by itself and by nobody.
async fn noting(settings: Settings) -> (Running, Arc<Lines>) {
    use carrack_apiserver::audit::{Audit, Policy};
    let lines = Arc::new(Lines::default());
    let policy = b"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: None, users: ['system:anonymous', 'system:apiserver']}\n- {level: Metadata}\n";
    let running = Running::start_with(settings, |config| {
        let policy = Arc::new(Policy::parse(policy).expect("a policy"));
        config.audit = Some(Audit { policy, sink: lines.clone() });
    })
    .await;
    (running, lines)
}

/// It counts for who it is made for: in shares of the server, too. What is refused for want of a seat is noted.
#[tokio::test]
async fn a_request_for_somebody_else_has_his_share() {
    let settings = Settings { max_in_flight: 6, max_wait: Duration::from_millis(200), ..Settings::default() };
    let (running, lines) = noting(settings).await;
    running.without_seats("global-default", json!({"type": "Reject"})).await;
    lines.0.lock().expect("no panic").clear();
    for (other, wanted) in [(None, 200), (Some("jane"), 429), (Some("system:admin"), 429)] {
        let mut builder = request("GET", "/api/v1/namespaces");
        if let Some(other) = other {
            builder = builder.header("impersonate-user", other);
        }
        let (code, said) = running.send(Some(Identity::Admin), builder.body(Full::default()).expect("request")).await;
        assert_eq!(code, wanted, "{other:?}: {said}");
    }
    let metrics = running.send(Some(Identity::Admin), get("/metrics")).await.1;
    let told = |line: &str| metrics.as_str().unwrap_or_default().lines().any(|told| told.starts_with(line));
    let labels = "priority_level=\"global-default\",flow_schema=\"global-default\"";
    assert!(
        told(&format!("apiserver_flowcontrol_rejected_requests_total{{{labels},reason=\"queue-full\"}} 2")),
        "{metrics}"
    );
    let labels = "priority_level=\"exempt\",flow_schema=\"exempt\"";
    assert!(told(&format!("apiserver_flowcontrol_current_executing_requests{{{labels}}} 1")), "{metrics}");
    let nobody = request("GET", "/api/v1/namespaces").header("impersonate-group", "some");
    assert_eq!(running.send(Some(Identity::Admin), nobody.body(Full::default()).expect("request")).await.0, 400);
    let node = request("GET", "/api/v1/namespaces").header("impersonate-user", "jane").body(Full::default());
    let node = running.send(Some(Identity::Node { node: "n1".to_owned() }), node.expect("request")).await;
    assert_eq!(node.0, 403, "{}", node.1);
    let lines = lines.0.lock().expect("no panic");
    let noted = lines.iter().map(|event| {
        let name = |field: &str| event[field]["username"].as_str().unwrap_or("-").to_owned();
        (
            event["responseStatus"]["code"].as_u64().unwrap_or(0),
            name("user") == "system:node:n1",
            name("impersonatedUser"),
        )
    });
    let wanted = [
        (200, false, "-"),
        (429, false, "jane"),
        (429, false, "system:admin"),
        (200, false, "-"),
        (400, false, "-"),
        (403, true, "-"),
    ];
    assert_eq!(noted.collect::<Vec<_>>(), wanted.map(|(code, node, other)| (code, node, other.to_owned())));
}

/// Whether or not anything is noted, a client is told the name of its request's event, and may give it one itself.
#[tokio::test]
async fn replies_name_the_events_of_their_requests() {
    let running = Running::start(Settings::default()).await;
    for (path, token, own, code) in [
        ("/healthz", "", "", 200),
        ("/api/v1/nodes", "", "mine", 403),
        ("/api/v1/nodes", "Bearer nonsense", "", 401),
        ("/api/v1/nodes", "Bearer nonsense", "mine", 401),
    ] {
        let mut builder = request("GET", path);
        for (name, value) in [("authorization", token), ("audit-id", own)] {
            builder = if value.is_empty() { builder } else { builder.header(name, value) };
        }
        let asking = builder.body(Full::default()).expect("request");
        let reply = running.connect(None).await.send_request(asking).await.expect("reply");
        let told: Vec<_> = reply.headers().get_all("audit-id").iter().filter_map(|id| id.to_str().ok()).collect();
        assert_eq!((reply.status().as_u16(), told.len()), (code, 1), "{path} {own}");
        let is_it = if own.is_empty() { told[0].len() == 36 } else { told[0] == own };
        assert!(is_it, "{path} {own}: {told:?}");
    }
}

#[tokio::test]
async fn who_is_not_known_is_noted() {
    let (running, lines) = noting(Settings::default()).await;
    lines.0.lock().expect("no panic").clear();
    let forged = request("GET", "/api/v1/namespaces/default/secrets/s")
        .header("authorization", "Bearer e30.e30.forged")
        .body(Full::default())
        .expect("request");
    assert_eq!(running.send(None, forged).await.0, 401);
    let lines = lines.0.lock().expect("no panic");
    let [event] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&event["stage"], &event["user"]), (&json!("ResponseStarted"), &json!({})));
    assert_eq!((&event["verb"], &event["objectRef"]["resource"]), (&json!("get"), &json!("secrets")));
    let status = &event["responseStatus"];
    assert_eq!((&status["code"], &status["reason"]), (&json!(401), &json!("Unauthorized")));
    assert_eq!(status["message"], "Authentication failed, attempted: [bearer]");
    assert!(!event.to_string().contains("forged"), "{event}");
}

/// Who acts for a member of many groups names each in a header of its own.
#[tokio::test]
async fn requests_may_have_many_headers() {
    let running = Running::start(Settings::default()).await;
    let mut builder = request("GET", "/healthz").header("impersonate-user", "jane");
    for group in 0..1000 {
        builder = builder.header("impersonate-group", format!("g{group}"));
    }
    let asking = builder.body(Full::default()).expect("request");
    assert_eq!(running.send(Some(Identity::Admin), asking).await, (200, json!("ok")));
}

/// A request of which no more comes than the first byte of its body.
const HALF_A_POST: &str = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";

#[tokio::test]
async fn a_body_that_comes_by_drops_is_not_waited_for() {
    let settings = Settings { body: Duration::from_millis(300), ..Settings::default() };
    let running = Running::start(settings).await;
    for (half_closed, wanted) in [(false, "504 Gateway Timeout"), (true, "")] {
        let mut stream = running.secure(Some(Identity::Admin)).await;
        stream.write_all(HALF_A_POST.as_bytes()).await.expect("write");
        if half_closed {
            stream.shutdown().await.expect("half closed");
        }
        let mut reply = Vec::new();
        // Who has closed its half gets an answer or the connection's end, and holds nothing.
        within("a slow body", stream.read_to_end(&mut reply)).await.ok();
        let text = String::from_utf8_lossy(&reply);
        assert!(text.contains(wanted), "half closed: {half_closed}: {text}");
    }
    assert_eq!(running.send(None, get("/readyz")).await.0, 200);
}

#[tokio::test]
async fn a_connection_does_not_outlive_its_certificate() {
    let ahead = Arc::new(AtomicI64::new(0));
    let clock = Arc::clone(&ahead);
    let running = Running::start_with(Settings::default(), |config| config.env = Arc::new(Ahead(clock))).await;
    let mut admin = running.connect(Some(Identity::Admin)).await;
    let mut nobody = running.connect(None).await;
    for client in [&mut admin, &mut nobody] {
        let reply = client.send_request(get("/readyz")).await.expect("reply");
        assert_eq!(reply.status(), StatusCode::OK);
        reply.into_body().collect().await.expect("body");
        client.ready().await.expect("the connection stays");
    }
    ahead.store(20 * 365 * 24 * 3600, Ordering::Relaxed);
    let late = within("a late request", admin.send_request(get("/readyz"))).await;
    assert!(late.is_err(), "{late:?}");
    let reply = nobody.send_request(get("/readyz")).await.expect("reply");
    assert_eq!(reply.status(), StatusCode::OK);
}

#[tokio::test]
async fn bodies_are_bounded() {
    let running = Running::start(Settings::default()).await;
    let body = format!(r#"{{"metadata":{{"name":"x"}},"data":{{"a":"{}"}}}}"#, "x".repeat(4 << 20));
    let post = request("POST", "/api/v1/namespaces/default/configmaps").body(Full::from(body)).expect("request");
    let (code, status) = running.send(Some(Identity::Admin), post).await;
    assert_eq!((code, status["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
}

#[tokio::test]
async fn a_body_that_is_too_large_is_answered_while_it_comes() {
    let running = Running::start(Settings::default()).await;
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    let admin = running.pki.client(&Identity::Admin, TestEnv.now().as_second()).expect("certificate");
    let (certificate, key) = (file("crt", admin.certificate.as_bytes()), file("key", admin.key.expose().as_bytes()));
    let (ca, body) = (file("ca", running.pki.ca_pem().as_bytes()), file("body", &vec![b' '; 8 << 20]));
    // curl, because it goes by the letter of HTTP/2: a stream that is reset before its reply ends is an error.
    for version in ["--http2", "--http1.1"] {
        let curl = tokio::process::Command::new("curl")
            .args([version, "--silent", "--show-error", "--max-time", "60", "--write-out", "%{http_code}", "--cacert"])
            .arg(&ca)
            .arg("--cert")
            .arg(&certificate)
            .arg("--key")
            .arg(&key)
            .args(["--header", "Content-Type: application/json", "--output"])
            .arg(directory.path().join("reply"))
            .arg("--data-binary")
            .arg(format!("@{}", body.display()))
            .arg(format!("https://localhost:{}/api/v1/namespaces/default/configmaps", running.address.port()))
            .output()
            .await
            .expect("curl is there (scripts/install-deps test)");
        let said = String::from_utf8_lossy(&curl.stderr);
        assert_eq!((curl.status.code(), &*curl.stdout), (Some(0), &b"413"[..]), "{version}: {said}");
        let reply = std::fs::read(directory.path().join("reply")).expect("a reply");
        let status: Value = serde_json::from_slice(&reply).expect("json");
        assert_eq!(status["reason"], "RequestEntityTooLarge", "{version}");
    }
}

#[tokio::test]
async fn large_lists_are_compressed_for_those_who_ask() {
    let running = Running::start(Settings::default()).await;
    let text = "x".repeat(100_000);
    for name in ["a", "b"] {
        let map = json!({"metadata": {"name": name}, "data": {"text": text}}).to_string();
        let post = request("POST", "/api/v1/namespaces/default/configmaps").body(Full::from(map)).expect("request");
        assert_eq!(running.send(Some(Identity::Admin), post).await.0, 201);
    }
    for (path, encoding, zipped) in [
        ("/api/v1/namespaces/default/configmaps", "gzip", true),
        ("/api/v1/namespaces/default/configmaps", "identity", false),
        ("/api/v1/namespaces/default/configmaps/a", "gzip", false),
    ] {
        let get = request("GET", path).header("accept-encoding", encoding).body(Full::default()).expect("request");
        let response = running.connect(Some(Identity::Admin)).await.send_request(get).await.expect("reply");
        assert_eq!(response.headers().get("content-encoding").is_some(), zipped, "{path} {encoding}");
        let body = response.into_body().collect().await.expect("body").to_bytes();
        let mut plain = Vec::new();
        if zipped {
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*body), &mut plain).expect("gzip");
        } else {
            plain.extend_from_slice(&body);
        }
        serde_json::from_slice::<Value>(&plain).expect("json");
    }
}

#[tokio::test]
async fn a_client_that_only_says_hello_is_cut_off() {
    let running = Running::start(Settings { head: Duration::from_millis(200), ..Settings::default() }).await;
    for protocol in ["h2", "http/1.1"] {
        let mut tls = running.client_tls(None);
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
        let stream = TcpStream::connect(running.address).await.expect("connect");
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
        let mut stream = connector.connect(name, stream).await.expect("handshake");
        let mut rest = Vec::new();
        within("a silent client", stream.read_to_end(&mut rest)).await.ok();
    }
}

#[tokio::test]
async fn a_client_that_says_nothing_is_cut_off() {
    let settings =
        Settings { head: Duration::from_millis(200), handshake: Duration::from_millis(200), ..Settings::default() };
    let running = Running::start(settings).await;
    let mut silent = TcpStream::connect(running.address).await.expect("connect");
    let mut buffer = [0; 16];
    let ended = within("a silent connection", silent.read(&mut buffer)).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(running.client_tls(None)));
    let stream = TcpStream::connect(running.address).await.expect("connect");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
    let mut stream = connector.connect(name, stream).await.expect("handshake");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n").await.expect("write");
    let mut rest = Vec::new();
    // The reply is a timeout or nothing; what counts is that the connection ends.
    within("a slow request", stream.read_to_end(&mut rest)).await.ok();
}

#[tokio::test]
async fn a_client_without_tls_is_told() {
    let running = Running::start(Settings::default()).await;
    for (said, told) in [
        (&b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"[..], true),
        (b"POST /api/v1/namespaces HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", true),
        (b"\0\x01garbage", false),
        (b"\x16\x03\x01\xff\xff\0\0\0", false),
    ] {
        let mut plain = TcpStream::connect(running.address).await.expect("connect");
        plain.write_all(said).await.expect("write");
        plain.shutdown().await.expect("shut down");
        let mut reply = Vec::new();
        // Garbage ends in an alert or a reset.
        within("a client without TLS", plain.read_to_end(&mut reply)).await.ok();
        let text = String::from_utf8_lossy(&reply);
        let want = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
        assert_eq!(text == want, told, "{said:?}: {text}");
    }
}

#[tokio::test]
async fn watches_stream_and_end() {
    let running = Running::start(Settings::default()).await;
    let watch = get("/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=2");
    let mut sender = running.connect(Some(Identity::Admin)).await;
    let mut response = sender.send_request(watch).await.expect("reply");
    let post = request("POST", "/api/v1/namespaces/default/configmaps")
        .body(Full::from(r#"{"metadata":{"name":"seen"}}"#))
        .expect("request");
    assert_eq!(running.send(Some(Identity::Admin), post).await.0, 201);
    let frame = within("an event", response.frame()).await.expect("frame").expect("frame");
    let event: Value = serde_json::from_slice(frame.data_ref().expect("data")).expect("json");
    assert_eq!((event["type"].as_str(), event["object"]["metadata"]["name"].as_str()), (Some("ADDED"), Some("seen")));
    assert!(within("the end", response.frame()).await.is_none());
}

#[tokio::test]
async fn the_engine_reaches_it_over_http2() {
    let running = Running::start(Settings::default()).await;
    let transport = HttpsTransport::new(
        &format!("https://localhost:{}", running.address.port()),
        None,
        running.client_tls(Some(Identity::Admin)),
        None,
    )
    .expect("transport");
    let list = ApiRequest::new(carrack_engine::Method::Get, "/api/v1/namespaces");
    let reply = within("a list", transport.send(list)).await.expect("list");
    assert_eq!(reply.json::<Value>().expect("json")["kind"], "NamespaceList");
    let missing = ApiRequest::new(carrack_engine::Method::Get, "/api/v1/namespaces/none");
    assert!(within("a get", transport.send(missing)).await.expect_err("missing").is_not_found());
}

#[tokio::test]
async fn a_flood_does_not_drown_a_heartbeat() {
    let quick = Duration::from_millis(200);
    let settings = Settings { max_in_flight: 6, max_wait: quick, body: quick, ..Settings::default() };
    let running = Running::start(settings).await;
    running.pod_on("n1").await;
    running.without_seats("global-default", json!({"type": "Reject"})).await;
    let refused = running.connect(None).await.send_request(get("/version")).await.expect("reply");
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().ok()), (429, Some("1")));
    // What is long, too; and a large body is not read that nobody has a seat for.
    for path in ["/api/v1/pods?watch=1", "/api/v1/namespaces/default/pods/n1/exec"] {
        assert_eq!(running.send(None, get(path)).await.0, 429, "{path}");
    }
    let mut stream = running.secure(None).await;
    let large = HALF_A_POST.replace("Length: 1000", "Length: 100000");
    stream.write_all(large.as_bytes()).await.expect("write");
    let mut reply = Vec::new();
    within("a body for which there is no room", stream.read_to_end(&mut reply)).await.ok();
    assert!(reply.starts_with(b"HTTP/1.1 429"), "{}", String::from_utf8_lossy(&reply));
    let node = || Some(Identity::Node { node: "n1".to_owned() });
    let response = running.connect(node()).await.send_request(get("/api/v1/nodes/n1")).await.expect("reply");
    assert_eq!(response.status(), 200);
    assert!(response.headers()["x-kubernetes-pf-prioritylevel-uid"].len() > 10);
    assert_eq!(running.send(None, get("/readyz")).await.0, 200);
}

#[tokio::test]
async fn a_body_that_waits_keeps_back_no_other_of_its_connection() {
    let settings = Settings { max_in_flight: 6, max_wait: Duration::from_secs(60), ..Settings::default() };
    let running = Running::start(settings).await;
    running.pod_on("n1").await;
    let queue = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 10});
    running.without_seats("system", json!({"type": "Queue", "queuing": queue})).await;
    let mut config = running.client_tls(Some(Identity::Node { node: "n1".to_owned() }));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(running.address).await.expect("connect");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("handshake");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("http");
    tokio::spawn(async move { drop(connection.await) });
    // Of another level, and larger than what is read before there is a seat.
    let body: Full<Bytes> = Full::from("x".repeat(2 << 20));
    let events = request("POST", "/api/v1/namespaces/default/events").body(body).expect("request");
    let mut other = sender.clone();
    let waits = tokio::spawn(async move { other.send_request(events).await });
    // As many as it takes until all of it was sent that may be.
    for _ in 0..100 {
        let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}).to_string();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let heartbeat = request("POST", leases).body(Full::from(lease)).expect("request");
        let reply = within("a heartbeat", sender.send_request(heartbeat)).await.expect("reply");
        assert!(reply.status().as_u16() < 429, "{reply:?}");
    }
    assert!(!waits.is_finished(), "there is no seat for it");
    waits.abort();
}

#[tokio::test]
async fn logs_come_from_the_kubelet() {
    let running = Running::start(Settings::default()).await;
    running.pod_on("n1").await;
    let log = "/api/v1/namespaces/default/pods/n1/log";
    assert_eq!(running.send(Some(Identity::Admin), get(&format!("{log}?tailLines=1"))).await, (200, json!("line\n")));
    let (code, status) = running.send(Some(Identity::Admin), get(log)).await;
    assert_eq!((code, status["message"].as_str()), (400, Some("container \"c\" is waiting to start")));
    running.pod_on("gone").await;
    let (code, status) = running.send(Some(Identity::Admin), get("/api/v1/namespaces/default/pods/gone/log")).await;
    assert_eq!(code, 500);
    assert!(status["message"].as_str().is_some_and(|text| text.contains("error dialing backend")), "{status}");
}

#[tokio::test]
async fn connections_are_handed_to_groups_served_by_code() {
    let running = Running::start(Settings::default()).await;
    let upgrade = request("GET", "/apis/echo.example.com/v1/namespaces/default/things/a/stream")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(Full::default())
        .expect("request");
    let mut sender = running.connect(Some(Identity::Admin)).await;
    let response = within("the upgrade", sender.send_request(upgrade)).await.expect("reply");
    assert_eq!(response.status().as_u16(), 101);
    let mut io = TokioIo::new(hyper::upgrade::on(response).await.expect("upgraded"));
    let mut got = Vec::new();
    within("the greeting", io.read_to_end(&mut got)).await.expect("read");
    assert_eq!(got, b"hello");
}

#[tokio::test]
async fn shutdown_ends_watches_and_then_the_server() {
    let mut running = Running::start(Settings::default()).await;
    let mut sender = running.connect(Some(Identity::Admin)).await;
    let mut response =
        sender.send_request(get("/api/v1/namespaces/default/configmaps?watch=true")).await.expect("reply");
    drop(running.stop.take());
    assert!(within("the watch's end", response.frame()).await.is_none());
    within("the server's end", running.serving).await.expect("task").expect("serve");
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn load_balancers_hear_of_the_end_before_it_comes() {
    let mut running =
        Running::start(Settings { shutdown_delay: Duration::from_millis(500), ..Settings::default() }).await;
    drop(running.stop.take());
    let waiting = async {
        while running.send(None, get("/readyz")).await.0 == 200 {
            tokio::task::yield_now().await;
        }
    };
    within("/readyz says no", waiting).await;
    // All else goes on, for those who come all the same.
    assert_eq!(running.send(Some(Identity::Admin), get("/api/v1/namespaces")).await.0, 200);
    assert_eq!(running.send(None, get("/livez")).await.0, 200);
    within("the server's end", running.serving).await.expect("task").expect("serve");
}

#[tokio::test]
async fn in_the_process_it_is_the_same_api() {
    let running = Running::start(Settings::default()).await;
    let nobody = running.api.client_of(Caller::anonymous());
    let list = ApiRequest::new(carrack_engine::Method::Get, "/api/v1/namespaces");
    let refused = nobody.send(list.clone()).await.expect_err("forbidden");
    assert!(matches!(refused, carrack_engine::ApiError::Status(status) if status.code == 403));
    let admin = running.api.client_as("admin", ["system:masters"]);
    admin.send(list).await.expect("list");
    let mut watch = ApiRequest::new(carrack_engine::Method::Get, "/api/v1/namespaces?watch=true&timeoutSeconds=1");
    watch.metadata_only = true;
    let events: Vec<_> = within("the watch", async {
        use futures::StreamExt as _;
        admin.watch(watch).await.expect("watch").collect().await
    })
    .await;
    // The four of upstream, that of the installation, and the one of the nodes' promises.
    assert_eq!(events.len(), 6);
    let first: Value = serde_json::from_slice(events[0].as_ref().expect("event")).expect("json");
    assert_eq!(first["object"]["kind"], "PartialObjectMetadata");
}

/// One who holds all connections keeps nobody out who comes from elsewhere.
#[tokio::test]
async fn a_place_is_made_for_who_comes_from_elsewhere() {
    let running = Running::start(Settings { max_connections: 3, ..Settings::default() }).await;
    let from_elsewhere = async || {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.2:0".parse().expect("an address")).expect("an address of this machine");
        socket.connect(running.address).await.expect("connect")
    };
    // Each is let in before the next one comes.
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut connection = running.connect_over(from_elsewhere().await).await;
        within("an answer", connection.send_request(get("/healthz"))).await.expect("reply");
        held.push(connection);
    }
    let mut one_more = from_elsewhere().await;
    let ended = within("the end of one too many", one_more.read(&mut [0; 1])).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(within("an answer", running.send(None, get("/healthz"))).await.0, 200);
    let mut left = 0;
    for connection in &mut held {
        left += usize::from(within("the other's answer", connection.send_request(get("/healthz"))).await.is_ok());
    }
    assert_eq!(left, 2);
}
