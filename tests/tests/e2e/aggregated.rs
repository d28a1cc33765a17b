#![expect(clippy::expect_used, reason = "a test fails by panicking, and its inputs are its own")]
//! Another server behind the API server, on real sockets: what it keeps goes with its namespace and with its owners, which
//! controllers see to that find its kinds by discovery.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use carrack_e2e::{Sandbox, eventually_true};
use serde_json::{Value, json};

const PORT: u16 = 9443;
const ROOT: &str = "/apis/meters.example.com/v1";

/// Meters by namespace and name, and all that happened to them.
#[derive(Default)]
struct Kept {
    meters: BTreeMap<(String, String), Value>,
    log: Vec<Value>,
}

/// The other server.
#[derive(Clone, Default)]
struct Server(Arc<(Mutex<Kept>, Condvar)>);

impl Server {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, namespace: &str, name: &str, owners: &Value) {
        let mut kept = self.kept();
        let revision = (kept.log.len() + 1).to_string();
        let object = json!({"apiVersion": "meters.example.com/v1", "kind": "Meter", "metadata": {"namespace": namespace,
            "name": name, "uid": format!("meter-{revision}"), "resourceVersion": revision, "ownerReferences": owners}});
        kept.meters.insert((namespace.to_owned(), name.to_owned()), object.clone());
        kept.log.push(json!({"type": "ADDED", "object": object}));
        self.0.1.notify_all();
    }

    fn names(&self) -> Vec<String> {
        self.kept().meters.keys().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    }

    fn delete(&self, namespace: &str, name: &str) -> (u16, Value) {
        let mut kept = self.kept();
        let Some(mut object) = kept.meters.remove(&(namespace.to_owned(), name.to_owned())) else {
            return (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"}));
        };
        object["metadata"]["resourceVersion"] = (kept.log.len() + 1).to_string().into();
        kept.log.push(json!({"type": "DELETED", "object": object}));
        self.0.1.notify_all();
        (200, json!({"kind": "Status", "status": "Success"}))
    }

    /// Answers a request that is no watch.
    fn answer(&self, method: &str, path: &str) -> (u16, Value) {
        let parts: Vec<&str> = path.strip_prefix(ROOT).unwrap_or("?").split('/').filter(|p| !p.is_empty()).collect();
        match (method, &parts[..]) {
            ("GET", []) => {
                let verbs = ["delete", "get", "list", "watch"];
                let meters = json!({"name": "meters", "singularName": "meter", "namespaced": true, "kind": "Meter", "verbs": verbs});
                (
                    200,
                    json!({"kind": "APIResourceList", "groupVersion": "meters.example.com/v1", "resources": [meters]}),
                )
            }
            ("GET", ["meters"] | ["namespaces", _, "meters"]) => {
                let kept = self.kept();
                let here = |(of, _): &(String, String)| parts.get(1).is_none_or(|namespace| of == namespace);
                let items: Vec<&Value> = kept.meters.iter().filter(|(at, _)| here(at)).map(|(_, o)| o).collect();
                // As servers that are built on k8s.io/apiserver answer who wants metadata alone.
                let items = if items.is_empty() { Value::Null } else { json!(items) };
                (200, json!({"metadata": {"resourceVersion": kept.log.len().to_string()}, "items": items}))
            }
            ("DELETE", ["namespaces", namespace, "meters", name]) => self.delete(namespace, name),
            _ => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": path})),
        }
    }

    /// Serves a connection until the other side has gone.
    fn serve(&self, stream: TcpStream, tls: Arc<rustls::ServerConfig>) -> std::io::Result<()> {
        let tls = rustls::ServerConnection::new(tls).map_err(std::io::Error::other)?;
        let mut stream = BufReader::new(rustls::StreamOwned::new(tls, stream));
        loop {
            let mut first = String::new();
            if stream.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut length = 0;
            loop {
                let mut line = String::new();
                stream.read_line(&mut line)?;
                if line.trim().is_empty() {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().map_err(std::io::Error::other)?;
                }
            }
            stream.read_exact(&mut vec![0; length])?;
            let mut words = first.split(' ');
            let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            if query.contains("watch=true") {
                let after = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")?.parse().ok());
                return self.watch(after.unwrap_or(0), stream.get_mut());
            }
            let (code, body) = self.answer(method, path);
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.get_mut().write_all(format!("{head}{body}").as_bytes())?;
        }
    }

    /// Tells what happens, until the other side has gone.
    fn watch(&self, after: usize, to: &mut impl std::io::Write) -> std::io::Result<()> {
        to.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")?;
        let mut told = after;
        loop {
            let fresh: Vec<Value> = {
                let mut kept = self.kept();
                while kept.log.len() <= told {
                    kept = self.0.1.wait(kept).unwrap_or_else(PoisonError::into_inner);
                }
                kept.log[told..].to_vec()
            };
            for event in fresh {
                told += 1;
                to.write_all(format!("{event}\n").as_bytes())?;
            }
            to.flush()?;
        }
    }

    fn listen(self, listener: TcpListener) {
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(pair.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key.into())
            .expect("a configuration");
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = Arc::new(tls);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, tls) = (self.clone(), tls.clone());
                std::thread::spawn(move || server.serve(stream, tls));
            }
        });
    }
}

#[test]
fn what_another_server_keeps_goes_with_its_namespace_and_its_owners() {
    let sandbox = Sandbox::new();
    let server = Server::default();
    server.clone().listen(sandbox.listen(PORT));
    let mut api = sandbox.carrack(&["apiserver", "--bind-address", "127.0.0.1"]).spawn();
    let kubectl = sandbox.kubectl();
    eventually_true("the API server is ready", 60, || {
        kubectl.run(&["get", "--raw", "/readyz"]).output().code == Some(0)
    });
    let role = sandbox.home().join("controllers.yaml");
    std::fs::write(&role, sandbox.carrack(&["kubeconfig", "--user", "controllers"]).ok()).expect("written");
    let mut controllers =
        sandbox.carrack(&["controllers", "--kubeconfig", &role.display().to_string(), "--secure-port", "0"]).spawn();
    // They run, and know nothing of the other server yet.
    kubectl.ok(&["create", "namespace", "going"]);
    eventually_true("the namespace has its service account", 30, || {
        kubectl.run(&["-n", "going", "get", "serviceaccount", "default"]).output().code == Some(0)
    });
    kubectl.ok(&["create", "configmap", "house"]);
    let owner = kubectl.field("configmap", "house", "/metadata/uid");
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "house", "uid": owner}]);
    server.put("default", "owned", &owners);
    server.put("default", "free", &Value::Null);
    server.put("going", "inside", &Value::Null);
    kubectl.apply(&format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: meters}}\nspec: {{type: ExternalName, externalName: localhost}}\n---\n\
         apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1.meters.example.com}}\n\
         spec: {{group: meters.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100,\n\
         insecureSkipTLSVerify: true, service: {{namespace: default, name: meters, port: {PORT}}}}}\n"
    ));
    let seen = kubectl.ok(&["get", "--raw", &format!("{ROOT}/meters")]);
    assert!(seen.contains("inside"), "{seen}");
    kubectl.run(&["delete", "namespace", "going", "--timeout=60s"]).limit_s(90).done();
    assert_eq!(server.names(), ["default/free", "default/owned"]);
    kubectl.ok(&["delete", "configmap", "house"]);
    eventually_true("what the config map owned is gone", 60, || server.names() == ["default/free"]);

    for child in [&mut controllers, &mut api] {
        child.kill().and_then(|()| child.wait()).expect("it was ours");
    }
}
