//! The extender over real sockets, HTTP and HTTPS, on the real API server with the role's own rights.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and what it needs is there")]
#![expect(clippy::disallowed_methods, reason = "a real server has a real clock, and is asked until it is ready")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use carrack_apiserver::{ApiServer, Config as ApiConfig, Env};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, USER_GPU_EXTENDER};
use carrack_auth::pki::{Identity, KeyPairPem, Pki, Sans, Server as Serving};
use carrack_auth::tls::{self, Reloadable, Trust};
use carrack_engine::shell::run_core;
use carrack_engine::{ApiRequest, Method, Rng, Transport};
use carrack_gpu_extender::serve::{Server, Settings};
use carrack_gpu_extender::{Config, GpuAnnotations, GpuExtender};
use carrack_store::MemStore;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

mod guard;

struct System;

impl Env for System {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
    fn random(&self) -> u64 {
        use std::hash::{BuildHasher as _, Hasher as _};
        std::hash::RandomState::new().build_hasher().finish()
    }
}

async fn api() -> ApiServer {
    let mut config = ApiConfig::new(Arc::new(MemStore::default()), Arc::new(System));
    config.plugins.push(Box::new(GpuAnnotations::new(&["example.com".to_owned()], &["gpu-people".to_owned()])));
    let server = ApiServer::new(config);
    server.bootstrap().await.expect("bootstrap");
    let room = json!({"cpu": "4", "pods": "20", "tencent.com/vcuda-core": "100", "tencent.com/vcuda-memory": "16"});
    for name in ["n1", "n2"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": room, "allocatable": room}});
        admin(&server, Method::Post, "/api/v1/nodes", &node).await;
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    admin(&server, Method::Post, "/api/v1/namespaces/default/serviceaccounts", &account).await;
    server
}

async fn admin(server: &ApiServer, method: Method, path: &str, body: &Value) -> Value {
    let mut request = ApiRequest::new(method, path);
    if !body.is_null() {
        request.body = body.to_string().into();
    }
    let client = server.client_of(Caller::new("admin", [GROUP_MASTERS]));
    client.send(request).await.expect(path).json().expect("JSON")
}

async fn pod(server: &ApiServer, name: &str, cores: &str) -> Value {
    let limits = json!({"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": "4"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}});
    admin(server, Method::Post, "/api/v1/namespaces/default/pods", &pod).await
}

async fn start(
    server: &ApiServer,
    tls: Option<rustls::ServerConfig>,
    settings: Settings,
) -> (SocketAddr, JoinHandle<Result<(), String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let front = Server::new(listener, tls, settings, "test 1");
    let core = GpuExtender::new(Config::default(), &Rng::new(1));
    let transport = Arc::new(server.client_of(Caller::new(USER_GPU_EXTENDER, [""; 0])));
    (address, tokio::spawn(run_core(core, transport, front, std::future::pending())))
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, String) {
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    // A server that has refused already may have closed.
    drop(stream.write_all(body.as_bytes()).await);
    let mut reply = Vec::new();
    drop(stream.read_to_end(&mut reply).await);
    let reply = String::from_utf8_lossy(&reply).into_owned();
    let code = reply.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, reply.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    exchange(TcpStream::connect(address).await.expect("connected"), method, path, body).await
}

async fn ask(address: SocketAddr, path: &str, body: &Value) -> Value {
    let (code, reply) = http(address, "POST", path, &body.to_string()).await;
    assert_eq!(code, 200, "{reply}");
    serde_json::from_str(&reply).expect("JSON")
}

async fn ready(address: SocketAddr) {
    for _ in 0..1200 {
        if http(address, "GET", "/readyz", "").await.0 == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it does not become ready");
}

#[tokio::test]
async fn a_pod_is_bound_with_its_gpus_over_http() {
    let server = api().await;
    let (address, role) = start(&server, None, Settings::default()).await;
    ready(address).await;
    let (a, b) = (pod(&server, "a", "100").await, pod(&server, "b", "100").await);
    let names = json!(["n1", "n2"]);
    let first = ask(address, "/scheduler/predicates", &json!({"Pod": a, "NodeNames": names})).await;
    let second = ask(address, "/scheduler/predicates", &json!({"Pod": b, "NodeNames": names})).await;
    assert_eq!((&first["NodeNames"], &second["NodeNames"]), (&json!(["n1"]), &json!(["n2"])));
    // As upstream's scheduler asks that knows nothing of caches.
    let whole =
        json!({"items": [{"metadata": {"name": "n2"}, "spec": {}}, {"metadata": {"name": "n1"}, "spec": {"x": 1}}]});
    let again = ask(address, "/scheduler/predicates", &json!({"Pod": a, "Nodes": whole})).await;
    assert_eq!(again["Nodes"]["items"], json!([{"metadata": {"name": "n1"}, "spec": {"x": 1}}]));
    let bind = json!({"PodName": "a", "PodNamespace": "default", "PodUID": a["metadata"]["uid"], "Node": "n1"});
    assert_eq!(ask(address, "/scheduler/bind", &bind).await, json!({"Error": ""}));
    let path = "/api/v1/namespaces/default/pods/a";
    let bound = admin(&server, Method::Get, path, &Value::Null).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let annotations = &bound["metadata"]["annotations"];
    assert_eq!(annotations["tencent.com/predicate-gpu-idx-0"], "0");
    assert_eq!(
        (&annotations["tencent.com/predicate-node"], &annotations["tencent.com/gpu-assigned"]),
        (&json!("n1"), &json!("false"))
    );
    let other = json!({"PodName": "b", "PodNamespace": "default", "PodUID": "another", "Node": "n2"});
    assert!(ask(address, "/scheduler/bind", &other).await["Error"].as_str().is_some_and(|e| e.contains("gone")));

    // A new life finds what the old one left.
    role.abort();
    let (address, _role) = start(&server, None, Settings::default()).await;
    ready(address).await;
    let c = pod(&server, "c", "50").await;
    let third = ask(address, "/scheduler/predicates", &json!({"Pod": c, "NodeNames": names})).await;
    assert_eq!(third["NodeNames"], json!(["n2"]));
    let victims = json!({"n1": {"Pods": [{"UID": a["metadata"]["uid"]}], "NumPDBViolations": 0}, "n2": {"Pods": []}});
    let kept = ask(address, "/scheduler/preemption", &json!({"Pod": b, "NodeNameToMetaVictims": victims})).await;
    assert_eq!(
        kept["NodeNameToMetaVictims"].as_object().map(|m| m.keys().collect::<Vec<_>>()),
        Some(vec![&"n1".to_owned()])
    );
    let (_, metrics) = http(address, "GET", "/metrics", "").await;
    assert!(metrics.contains("carrack_gpu_extender_pods{stage=\"held\"} 1"), "{metrics}");
}

#[tokio::test]
async fn what_is_no_question_gets_an_answer_too() {
    let server = api().await;
    let settings = Settings { max_body: 1000, read: Duration::from_millis(500), ..Settings::default() };
    let (address, _role) = start(&server, None, settings).await;
    ready(address).await;
    let long = "x".repeat(2000);
    for (method, path, body, code) in [
        ("GET", "/version", "", 200),
        ("GET", "/healthz", "", 200),
        ("POST", "/scheduler/predicates", "{", 400),
        ("POST", "/scheduler/priorities", "[]", 400),
        ("POST", "/scheduler/preemption", "{}", 400),
        ("POST", "/scheduler/bind", r#"{"PodName": "a"}"#, 400),
        ("POST", "/scheduler/bind", &long, 413),
        ("GET", "/scheduler/predicates", "", 405),
        ("POST", "/healthz", "", 405),
        ("GET", "/debug/pprof", "", 404),
        ("GET", "/scheduler/predicates/../bind", "", 404),
    ] {
        let (got, reply) = http(address, method, path, body).await;
        assert_eq!(got, code, "{method} {path}: {reply}");
    }
    // A body that never comes to its end.
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(b"POST /scheduler/bind HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").await.expect("sent");
    let mut reply = vec![0; 64];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut reply)).await.expect("in time");
    assert!(String::from_utf8_lossy(&reply[..read.expect("an answer")]).contains("408"));
}

#[tokio::test]
async fn over_https_only_those_with_a_certificate_are_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let now_s = jiff::Timestamp::now().as_second();
    let pki = Pki::open_or_create(dir.path(), now_s).expect("authorities");
    let pair: KeyPairPem = pki.server(&Serving::Apiserver, &Sans::loopback(), now_s).expect("a certificate");
    let serving = tls::mutual_server_config(Reloadable::new(&pair).expect("usable"), pki.ca_pem()).expect("TLS").config;
    let server = api().await;
    let (address, _role) = start(&server, Some(serving), Settings::default()).await;
    let own = Reloadable::new(&pki.client(&Identity::Scheduler, now_s).expect("a certificate")).expect("usable");
    let get = async |certificate: Option<Arc<Reloadable>>| {
        let config = tls::client_config(Trust::Authorities(pki.ca_pem()), certificate).expect("TLS");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
        let stream = TcpStream::connect(address).await.expect("connected");
        match connector.connect(name, stream).await {
            Ok(stream) => exchange(stream, "GET", "/version", "").await.0,
            Err(_) => 0,
        }
    };
    assert_eq!(get(Some(own)).await, 200);
    assert_eq!(get(None).await, 0);
    assert_eq!(http(address, "GET", "/version", "").await.0, 0, "no plain HTTP there");
}
