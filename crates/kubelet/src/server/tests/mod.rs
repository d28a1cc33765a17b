//! The server on a real socket, with certificates of a real PKI.

mod access;
mod logs;
mod pages;
mod read_only;
mod streams;
mod system_logs;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use carrack_auth::pki::{Identity, Pki, Sans, Server as Serving};
use carrack_auth::tls::{ClientCa, Reloadable, Trust, client_config};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::fixture::{FakeNode, Reviewer, lock, pod_of, record};
use super::*;
use crate::runtime::{ContainerState, PodRef, RuntimeSnapshot, SandboxRecord};

/// Nothing here takes so long, unless it never comes.
const LONG: Duration = Duration::from_secs(60);
/// Certificates are checked against the real time.
fn now_s() -> i64 {
    clock::now().unix_s()
}

/// A server, the node behind it, and the PKI that both sides trust.
struct World {
    dir: tempfile::TempDir,
    pki: Pki,
    client_ca: Arc<ClientCa>,
    node: Arc<FakeNode>,
    address: SocketAddr,
    read_only: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl World {
    async fn new() -> Self {
        Self::with(Settings { follow_check: Duration::from_millis(10), ..Settings::default() }).await
    }

    async fn with(settings: Settings) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let pki = Pki::open_or_create(&dir.path().join("pki"), now_s()).expect("pki");
        let server = Serving::Kubelet { node: "n1".into() };
        let pair = pki.server(&server, &Sans::loopback().with_name("n1"), now_s()).expect("certificate");
        let client_ca = ClientCa::new(pki.ca_pem()).expect("an authority");
        let serving = ServingTls {
            certificate: Reloadable::new(&pair).expect("a certificate"),
            client_ca: Arc::clone(&client_ca),
            allowed_names: vec![],
        };
        let config = ServerConfig {
            bind: "127.0.0.1:0".parse().expect("address"),
            read_only: Some("127.0.0.1:0".parse().expect("address")),
            tls: server_tls(&serving, &Offered::default()).expect("tls"),
            allowed_users: vec![Identity::ApiserverKubeletClient.user()],
            authority: Some(Arc::new(Reviewer)),
            log_dir: dir.path().join("logs"),
            node_name: "n1".into(),
            version: "v1".into(),
            configz: json!({"kubeletconfig": {"port": 10250}}),
            asked: Requests::of("192.0.2.1:6443"),
            settings,
        };
        let node = Arc::new(FakeNode::default());
        let server = Server::bind(config).await.expect("binds");
        let address = server.local_addr().expect("address");
        let read_only = server.read_only_addr().expect("address").expect("a read-only port");
        let (stop, stopped) = oneshot::channel::<()>();
        let backend = Arc::clone(&node);
        let server = tokio::spawn(server.run(backend, async move { stopped.await.unwrap_or_default() }));
        Self { dir, pki, client_ca, node, address, read_only, stop: Some(stop), server }
    }

    /// Puts pod `ns/p` with container `c` on the node, in this state.
    fn with_pod(self, state: ContainerState) -> Self {
        let status = match state {
            ContainerState::Created => json!({"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}),
            _ => json!({"name": "c", "state": {"running": {}}}),
        };
        lock(&self.node.pods).push(pod_of(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "uid"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Running", "containerStatuses": [status]},
        })));
        self.run(state);
        self
    }

    /// Changes the container's state.
    fn run(&self, state: ContainerState) {
        let sandbox = SandboxRecord {
            id: "sandbox".into(),
            pod: PodRef { namespace: "ns".into(), name: "p".into(), uid: "uid".into() },
            attempt: 0,
            ready: true,
            created_at: Default::default(),
            ips: vec![],
            runtime_handler: String::new(),
        };
        let containers = vec![record("id", "c", 0, state)];
        let snapshot = RuntimeSnapshot { sandboxes: vec![sandbox], containers, ..RuntimeSnapshot::default() };
        lock(&self.node.runtime).insert("uid".into(), snapshot);
    }

    fn tls(&self, identity: Option<&Identity>) -> TlsConnector {
        self.tls_of(&self.pki, identity)
    }

    /// With a certificate that these authorities have issued.
    fn tls_of(&self, pki: &Pki, identity: Option<&Identity>) -> TlsConnector {
        let certificate = identity
            .map(|identity| Reloadable::new(&pki.client(identity, now_s()).expect("certificate")).expect("usable"));
        let mut config = client_config(Trust::Authorities(self.pki.ca_pem()), certificate).expect("tls");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, identity: Option<&Identity>) -> SendRequest<Empty<Bytes>> {
        self.connect_with(self.tls(identity)).await
    }

    async fn connect_with(&self, tls: TlsConnector) -> SendRequest<Empty<Bytes>> {
        let stream = TcpStream::connect(self.address).await.expect("connects");
        let name = "n1".try_into().expect("name");
        let stream = tls.connect(name, stream).await.expect("handshake");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("http");
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        sender
    }

    /// Sends a request as the API server.
    async fn send(&self, request: Request<Empty<Bytes>>) -> Response<Incoming> {
        let mut sender = self.connect(Some(&Identity::ApiserverKubeletClient)).await;
        tokio::time::timeout(LONG, sender.send_request(request)).await.expect("in time").expect("answers")
    }

    /// Asks as the API server; code and text come back.
    async fn ask(&self, method: Method, path: &str) -> (u16, String) {
        text(self.send(request(method, path, &[])).await).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.ask(Method::GET, path).await
    }

    /// Shuts the server down and waits until it is.
    async fn stop(&mut self) {
        let stop = self.stop.take().expect("runs");
        stop.send(()).expect("listens");
        let server = tokio::time::timeout(LONG, &mut self.server).await;
        server.expect("ends").expect("no panic").expect("no error");
    }
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "n1:10250");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Empty::new()).expect("a request")
}

async fn text(response: Response<Incoming>) -> (u16, String) {
    let code = response.status().as_u16();
    let body = tokio::time::timeout(LONG, response.into_body().collect()).await.expect("in time").expect("reads");
    (code, String::from_utf8(body.to_bytes().to_vec()).expect("text"))
}
