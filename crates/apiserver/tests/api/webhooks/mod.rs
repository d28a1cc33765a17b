//! Webhooks on real sockets: an HTTPS server that is slow, refuses, patches and lies, called by the real shell.
#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod conversions;
mod reviews;
mod users;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use carrack_apiserver::audit::{Audit, AuditSink, Policy};
use carrack_apiserver::serve::Outbound;
use carrack_apiserver::{ApiServer, Body, Config};
use carrack_auth::Caller;
use carrack_auth::pki::{Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable};
use carrack_store::{MemStore, Store};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::{TestEnv, put_slice};

/// An API server in the process, and a webhook server beside it that answers by path.
struct World {
    api: ApiServer,
    store: Arc<dyn Store>,
    address: SocketAddr,
    ca: String,
    /// Reviews that came, by path.
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    _directory: tempfile::TempDir,
}

type Seen = Arc<Mutex<Vec<(String, Value)>>>;

/// What the webhook server answers.
async fn answer(seen: Seen, request: Request<hyper::body::Incoming>) -> http::Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let said = |name: &str| request.headers().get_all(name).iter().filter_map(|value| value.to_str().ok());
    let who: Vec<&str> =
        ["authorization", "impersonate-user", "impersonate-group"].into_iter().flat_map(said).collect();
    let who = if who.is_empty() { "nobody".to_owned() } else { who.join(" as ") };
    let body = request.into_body().collect().await.expect("body").to_bytes();
    let review: Value = serde_json::from_slice(&body).expect("json");
    seen.lock().expect("lock").push((path.clone(), review.clone()));
    let uid = review["request"]["uid"].clone();
    let patch = |patch: Value| json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())});
    let response = match path.as_str() {
        "/allow" => json!({"uid": uid, "allowed": true, "warnings": ["mind the gap"]}),
        "/deny" => {
            json!({"uid": uid, "allowed": false, "status": {"code": 409, "reason": "Conflict", "message": "not today",
                "details": {"causes": [{"reason": "FieldValueInvalid", "message": "why", "field": "data.x"}]}}})
        }
        "/who" => json!({"uid": uid, "allowed": true, "warnings": [who]}),
        "/annotate" => json!({"uid": uid, "allowed": true, "auditAnnotations": {"why": "it looked well"}}),
        "/move" => patch(json!([{"op": "replace", "path": "/metadata/namespace", "value": "kube-system"}])),
        "/rename" => patch(json!([{"op": "replace", "path": "/metadata/name", "value": "renamed"}])),
        "/misname" => patch(json!([{"op": "replace", "path": "/metadata/name", "value": "a/b"}])),
        // Nobody is answered before there are two who ask.
        "/together" => {
            let two = || seen.lock().expect("lock").iter().filter(|(path, _)| path == "/together").count() >= 2;
            while !two() {
                tokio::task::yield_now().await;
            }
            json!({"uid": uid, "allowed": true})
        }
        "/deny-silently" => json!({"uid": uid, "allowed": false}),
        "/deny-oddly" => json!({"uid": uid, "allowed": false, "status": {"code": 422, "reason": "TooSoon"}}),
        "/label" => patch(json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "webhook"}}])),
        "/color" => {
            let has_label = review["request"]["object"]["metadata"]["labels"]["by"] == "webhook";
            patch(json!([{"op": "add", "path": "/data", "value": {"color": if has_label { "blue" } else { "red" }}}]))
        }
        "/none" => patch(json!([])),
        "/annotate-binding" => {
            patch(json!([{"op": "add", "path": "/metadata/annotations", "value": {"zone": "north"}}]))
        }
        "/elsewhere" => patch(json!([
            {"op": "replace", "path": "/container", "value": "b"},
            {"op": "replace", "path": "/command", "value": ["id"]},
        ])),
        "/two" => patch(json!([{"op": "replace", "path": "/spec/replicas", "value": 2}])),
        "/status" => patch(json!([
            {"op": "add", "path": "/status", "value": {"phase": "Failed"}},
            {"op": "add", "path": "/metadata/annotations", "value": {"by": "webhook"}},
        ])),
        "/bad-patch" => patch(json!([{"op": "replace", "path": "/nowhere/at/all", "value": 1}])),
        "/other-uid" => json!({"uid": "another", "allowed": true}),
        "/hang" => std::future::pending().await,
        "/error" => {
            let mut response = http::Response::new(Full::new(Bytes::from_static(b"broken")));
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            return response;
        }
        "/not-json" => return http::Response::new(Full::new(Bytes::from_static(b"<html>"))),
        "/huge" => return http::Response::new(Full::new(Bytes::from(vec![b' '; 9 << 20]))),
        // As webhooks answer that are as old as the first version of reviews.
        "/beta" => {
            let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"by": "beta"}}]);
            let reply = json!({"response": {"allowed": true, "patch": STANDARD.encode(patch.to_string())}});
            return http::Response::new(Full::new(reply.to_string().into()));
        }
        "/convert" => return http::Response::new(Full::new(convert(&review).to_string().into())),
        "/convert-badly" => {
            let mut reply = convert(&review);
            for object in reply["response"]["convertedObjects"].as_array_mut().into_iter().flatten() {
                object["metadata"]["labels"] = json!({"a b": "c"});
            }
            return http::Response::new(Full::new(reply.to_string().into()));
        }
        _ => json!(null),
    };
    let reply = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    http::Response::new(Full::new(reply.to_string().into()))
}

/// v1 has `spec.host` and `spec.port`, v2 has `spec.address`. Either may have a `spec.lock`.
fn convert(review: &Value) -> Value {
    let wanted = review["request"]["desiredAPIVersion"].as_str().expect("version").to_owned();
    let objects = review["request"]["objects"].as_array().expect("objects").iter();
    let converted: Vec<Value> = objects
        .map(|object| {
            let mut object = object.clone();
            let lock = object["spec"].get("lock").cloned();
            if wanted.ends_with("/v2") {
                let text = |key: &str| object["spec"][key].as_str().unwrap_or_default().to_owned();
                object["spec"] = json!({"address": format!("{}:{}", text("host"), text("port"))});
            } else {
                let address = object["spec"]["address"].as_str().unwrap_or_default().to_owned();
                let (host, port) = address.split_once(':').unwrap_or((&address, ""));
                object["spec"] = json!({"host": host, "port": port});
            }
            if let Some(lock) = lock {
                object["spec"]["lock"] = lock;
            }
            object["apiVersion"] = wanted.clone().into();
            object
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
        "uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": converted,
    }})
}

impl World {
    async fn new() -> World {
        World::with(|_| {}).await
    }
    async fn with(adjust: impl FnOnce(&mut Config)) -> World {
        World::speaking(&[b"h2", b"http/1.1"], adjust).await
    }
    /// One whose webhooks speak these versions of HTTP.
    async fn speaking(versions: &[&[u8]], adjust: impl FnOnce(&mut Config)) -> World {
        let directory = tempfile::tempdir().expect("temporary directory");
        #[expect(clippy::disallowed_methods, reason = "certificates are valid now, and only now")]
        let now_s = jiff::Timestamp::now().as_second();
        let pki = Pki::open_or_create(directory.path(), now_s).expect("pki");
        let sans = Sans::loopback().with_name("hook.default.svc");
        let pair = pki.server(&Server::Apiserver, &sans, now_s).expect("certificate");
        let mut tls = tls::server_config(Reloadable::new(&pair).expect("pair"), pki.ca_pem()).expect("tls").config;
        tls.alpn_protocols = versions.iter().map(|version| version.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let seen: Seen = Arc::default();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        tokio::spawn({
            let seen = Arc::clone(&seen);
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                    tokio::spawn(async move {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let service = hyper::service::service_fn(move |request| {
                            let seen = Arc::clone(&seen);
                            async move { Ok::<_, std::convert::Infallible>(answer(seen, request).await) }
                        });
                        let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                        drop(builder.serve_connection(TokioIo::new(stream), service).await);
                    });
                }
            }
        });
        // The server trusts nobody by itself: webhooks come with their own authority.
        let other = tempfile::tempdir().expect("temporary directory");
        let stranger = Pki::open_or_create(other.path(), now_s).expect("pki");
        let env = TestEnv::new(Outbound::new(stranger.ca_pem(), None));
        let store: Arc<dyn Store> = Arc::new(MemStore::default());
        let mut config = Config::new(Arc::clone(&store), Arc::new(env));
        adjust(&mut config);
        let api = ApiServer::new(config);
        api.bootstrap().await.expect("bootstrap");
        World { api, store, address, ca: STANDARD.encode(pki.ca_pem()), seen, _directory: directory }
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> (u16, Value, Vec<String>) {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        let caller = Caller::new("admin", ["system:masters"]);
        let response = self.api.handle(request.body(body).expect("request"), caller).await;
        let (head, body) = response.into_parts();
        let warnings = head.headers.get_all("warning").iter().map(|w| w.to_str().expect("text").to_owned()).collect();
        (head.status.as_u16(), serde_json::from_slice(&body.into_bytes()).unwrap_or_default(), warnings)
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (code, value, _) = self.send(Method::POST, path, body).await;
        (code, value)
    }

    fn client(&self, path: &str) -> Value {
        json!({"url": format!("https://localhost:{}{path}", self.address.port()), "caBundle": self.ca})
    }

    fn hook(&self, path: &str) -> Value {
        json!({
            "name": format!("{}.hooks.example.com", path.trim_start_matches('/')),
            "clientConfig": self.client(path),
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
        })
    }

    /// Puts webhooks in place of those that were there.
    async fn install(&self, kind: &str, hooks: &[Value]) {
        let path = format!("/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations", kind.to_lowercase());
        self.send(Method::DELETE, &format!("{path}/test"), &Value::Null).await;
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": "test"}, "webhooks": hooks,
        });
        let (code, reply) = self.post(&path, &configuration).await;
        assert_eq!(code, 201, "{reply}");
    }
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[tokio::test]
async fn validating_webhooks_refuse_as_upstream_does() {
    let world = World::new().await;
    for (index, (path, policy, code, message)) in [
        ("/allow", "Fail", 201, ""),
        ("/deny", "Fail", 409, "admission webhook \"deny.hooks.example.com\" denied the request: not today"),
        (
            "/deny-silently",
            "Ignore",
            400,
            "admission webhook \"deny-silently.hooks.example.com\" denied the request without explanation",
        ),
        (
            "/deny-oddly",
            "Fail",
            422,
            "admission webhook \"deny-oddly.hooks.example.com\" denied the request: TooSoon",
        ),
        ("/error", "Fail", 500, "failed calling webhook \"error.hooks.example.com\": failed to call webhook: an error on the server (\"broken\") has prevented the request from succeeding"),
        ("/error", "Ignore", 201, ""),
        ("/hang", "Fail", 500, "/hang?timeout=1s\": context deadline exceeded"),
        ("/hang", "Ignore", 201, ""),
        ("/not-json", "Fail", 500, "the reply is not JSON"),
        ("/huge", "Fail", 500, "length limit exceeded"),
        ("/other-uid", "Fail", 500, "expected response.uid="),
        ("/nothing", "Fail", 500, "received invalid webhook response: webhook response was absent"),
        ("/label", "Fail", 500, "received invalid webhook response: validating webhook may not return response.patch"),
        ("/label", "Ignore", 201, ""),
    ]
    .into_iter()
    .enumerate()
    {
        let mut hook = world.hook(path);
        hook["failurePolicy"] = policy.into();
        world.install("Validating", &[hook]).await;
        let (found, reply, warnings) = world.send(Method::POST, CONFIG_MAPS, &config_map(&format!("c{index}"))).await;
        assert_eq!(found, code, "{path} {policy}: {reply}");
        assert!(reply["message"].as_str().unwrap_or_default().contains(message), "{path} {policy}: {reply}");
        assert_eq!(warnings.iter().any(|w| w.contains("mind the gap")), path == "/allow", "{path}: {warnings:?}");
        assert_eq!(reply["details"]["causes"][0]["field"] == "data.x", path == "/deny", "{path}: {reply}");
        assert_eq!(reply["reason"] == "TooSoon", path == "/deny-oddly", "{path}: {reply}");
        // Who is told so knows that nothing was made.
        let error = carrack_engine::ApiError::from_reply(found, reply.to_string().as_bytes());
        assert!(!error.may_have_acted(), "{path} {policy}: {reply}");
    }
    let caller = Caller::new("admin", ["system:masters"]);
    let request = Request::builder().uri("/metrics").body(Bytes::new()).expect("request");
    let bytes = world.api.handle(request, caller).await.into_body().into_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    let of = |name: &str| format!("name=\"{name}.hooks.example.com\",operation=\"CREATE\"");
    for line in [
        format!(
            "apiserver_admission_webhook_request_total{{code=\"200\",{},rejected=\"false\",type=\"validating\"}} 1",
            of("allow")
        ),
        format!(
            "apiserver_admission_webhook_request_total{{code=\"409\",{},rejected=\"true\",type=\"validating\"}} 1",
            of("deny")
        ),
        format!(
            "apiserver_admission_webhook_rejection_count{{error_type=\"no_error\",{},rejection_code=\"409\",type=\"validating\"}} 1",
            of("deny")
        ),
        format!(
            "apiserver_admission_webhook_rejection_count{{error_type=\"calling_webhook_error\",{},rejection_code=\"500\",type=\"validating\"}} 1",
            of("error")
        ),
        "apiserver_admission_webhook_fail_open_count{name=\"error.hooks.example.com\",type=\"validating\"} 1"
            .to_owned(),
        format!(
            "apiserver_admission_webhook_admission_duration_seconds_count{{{},rejected=\"true\",type=\"validating\"}} 1",
            of("deny")
        ),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn what_a_webhook_is_told() {
    let world = World::new().await;
    world.install("Validating", &[world.hook("/allow")]).await;
    let (code, made) = world.post(CONFIG_MAPS, &config_map("told")).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{CONFIG_MAPS}/told");
    assert_eq!(world.send(Method::PATCH, &path, &json!({"data": {"a": "b"}})).await.0, 200);
    assert_eq!(world.send(Method::DELETE, &path, &Value::Null).await.0, 200);
    let seen = std::mem::take(&mut *world.seen.lock().expect("lock"));
    let requests: Vec<&Value> = seen.iter().map(|(_, review)| &review["request"]).collect();
    let operations: Vec<&str> = requests.iter().map(|r| r["operation"].as_str().expect("operation")).collect();
    assert_eq!(operations, ["CREATE", "UPDATE", "DELETE"]);
    let [create, update, delete] = requests[..] else { unreachable!("three of them") };
    assert_eq!(create["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(create["requestResource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!((&create["name"], &create["namespace"]), (&json!("told"), &json!("default")));
    assert_eq!((&create["userInfo"]["username"], &create["dryRun"]), (&json!("admin"), &json!(false)));
    assert_eq!((&create["object"]["metadata"]["name"], &create["oldObject"]), (&json!("told"), &Value::Null));
    assert_eq!((&update["object"]["data"], &update["oldObject"]["data"]["a"]), (&json!({"a": "b"}), &Value::Null));
    assert_eq!((&delete["object"], &delete["oldObject"]["data"]), (&Value::Null, &json!({"a": "b"})));
    // A namespace is in itself.
    let mut of_namespaces = world.hook("/allow");
    of_namespaces["rules"][0]["resources"] = json!(["namespaces"]);
    world.install("Validating", &[of_namespaces]).await;
    let (code, made) = world.post("/api/v1/namespaces", &json!({"metadata": {"name": "own"}})).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(world.seen.lock().expect("lock")[0].1["request"]["namespace"], "own");
}

#[tokio::test]
async fn mutating_webhooks_change_in_order_and_may_be_asked_again() {
    let world = World::new().await;
    let (mut color, label) = (world.hook("/color"), world.hook("/label"));
    world.install("Mutating", &[color.clone(), label.clone()]).await;
    let (code, made) = world.post(CONFIG_MAPS, &config_map("one")).await;
    assert_eq!(
        (code, &made["data"]["color"], &made["metadata"]["labels"]["by"]),
        (201, &json!("red"), &json!("webhook")),
        "{made}"
    );
    color["reinvocationPolicy"] = "IfNeeded".into();
    world.install("Mutating", &[color.clone(), label]).await;
    let (_, made) = world.post(CONFIG_MAPS, &config_map("two")).await;
    assert_eq!(made["data"]["color"], "blue", "{made}");
    world.install("Mutating", &[world.hook("/bad-patch")]).await;
    let (code, refused) = world.post(CONFIG_MAPS, &config_map("three")).await;
    assert_eq!(code, 500, "{refused}");
    assert!(refused["message"].as_str().expect("message").contains("the patch cannot be applied"), "{refused}");
}

#[tokio::test]
async fn a_webhook_does_not_write_the_other_half() {
    let world = World::new().await;
    let mut hook = world.hook("/status");
    hook["rules"] =
        json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"]}]);
    world.install("Mutating", &[hook]).await;
    let (code, made) = world.post("/api/v1/namespaces", &json!({"metadata": {"name": "n"}})).await;
    assert_eq!(
        (code, &made["status"]["phase"], &made["metadata"]["annotations"]["by"]),
        (201, &json!("Active"), &json!("webhook")),
        "{made}"
    );
}

#[tokio::test]
async fn only_those_are_asked_that_are_concerned() {
    let world = World::new().await;
    let deny = |change: Value| {
        let mut hook = world.hook("/deny");
        for (key, value) in change.as_object().expect("an object") {
            hook[key] = value.clone();
        }
        hook
    };
    let rule = |key: &str, value: Value| {
        let mut rule =
            json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
        rule[key] = value;
        json!({"rules": [rule]})
    };
    let condition = |expression: &str| json!({"matchConditions": [{"name": "c", "expression": expression}]});
    for (index, (change, asked)) in [
        (json!({}), true),
        (rule("operations", json!(["UPDATE"])), false),
        (rule("resources", json!(["secrets", "configmaps/status"])), false),
        (rule("resources", json!(["*/*"])), true),
        (rule("scope", json!("Cluster")), false),
        (rule("apiVersions", json!(["v2"])), false),
        (json!({"objectSelector": {"matchLabels": {"x": "y"}}}), false),
        (json!({"objectSelector": {"matchLabels": {"a": "b"}}}), true),
        (json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}), false),
        (json!({"namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]}]}}), true),
        (condition("object.metadata.name.startsWith('z')"), false),
        (condition("request.userInfo.username == 'admin' && request.operation == 'CREATE'"), true),
        (condition("authorizer.group('').resource('pods').check('get').allowed()"), true),
        (condition("authorizer.requestResource.check('create').allowed()"), true),
    ]
    .into_iter()
    .enumerate()
    {
        world.install("Validating", &[deny(change.clone())]).await;
        let mut object = config_map(&format!("c{index}"));
        object["metadata"]["labels"] = json!({"a": "b"});
        let (code, reply) = world.post(CONFIG_MAPS, &object).await;
        assert_eq!(code, if asked { 409 } else { 201 }, "{change}: {reply}");
    }
    // A dry run does not reach those that would leave traces; the API takes only such that do not.
    let mut hook = world.hook("/allow");
    hook["sideEffects"] = "Some".into();
    let configuration = json!({"metadata": {"name": "bad"}, "webhooks": [hook]});
    let (code, _) =
        world.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", &configuration).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn webhooks_behind_services() {
    let world = World::new().await;
    let mut hook = world.hook("/deny");
    hook["clientConfig"] = json!({"service": {"namespace": "default", "name": "hook", "path": "/deny", "port": 8443}, "caBundle": world.ca});
    world.install("Validating", &[hook]).await;
    let refusal =
        async || world.post(CONFIG_MAPS, &config_map("x")).await.1["message"].as_str().unwrap_or_default().to_owned();
    assert!(refusal().await.contains("service \"hook\" not found"));
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 8443, "targetPort": "tls"}], "clusterIP": "None"}});
    let (code, reply) = world.post("/api/v1/namespaces/default/services", &service).await;
    assert_eq!(code, 201, "{reply}");
    assert!(refusal().await.contains("no endpoints available for service \"hook\""));
    let slice = json!({
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}}, "addressType": "IPv4",
        "ports": [{"name": "https", "port": world.address.port(), "protocol": "TCP"}],
        "endpoints": [{"addresses": ["127.0.0.2"], "conditions": {"ready": false}}, {"addresses": ["127.0.0.1"]}],
    });
    put_slice(&*world.store, "hook-1", &slice).await;
    let said = refusal().await;
    assert!(said.contains("denied the request: not today"), "{said}");
}

/// Wherever a name outside the cluster leads, whoever is there has to be whom the service names.
#[tokio::test]
async fn webhooks_behind_external_names() {
    let world = World::new().await;
    for (name, code, said) in [("hook", 409, "denied the request: not today"), ("other", 500, "tls: ")] {
        let service =
            json!({"metadata": {"name": name}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let (made, reply) = world.post("/api/v1/namespaces/default/services", &service).await;
        assert_eq!(made, 201, "{reply}");
        let mut hook = world.hook("/deny");
        let place = json!({"namespace": "default", "name": name, "path": "/deny", "port": world.address.port()});
        hook["clientConfig"] = json!({"service": place, "caBundle": world.ca});
        world.install("Validating", &[hook]).await;
        let (found, reply) = world.post(CONFIG_MAPS, &config_map("x")).await;
        assert_eq!(found, code, "{name}: {reply}");
        assert!(reply["message"].as_str().unwrap_or_default().contains(said), "{name}: {reply}");
    }
}

/// Whatever version of HTTP a webhook speaks, one call does not wait for another.
#[tokio::test]
async fn calls_do_not_wait_for_each_other() {
    for versions in [&[&b"http/1.1"[..]][..], &[b"h2"]] {
        let world = World::speaking(versions, |_| {}).await;
        world.install("Validating", &[world.hook("/allow")]).await;
        // Now there is a connection that both could want.
        assert_eq!(world.post(CONFIG_MAPS, &config_map("first")).await.0, 201);
        let mut hook = world.hook("/together");
        hook["timeoutSeconds"] = 10.into();
        world.install("Validating", &[hook]).await;
        let (a, b) = (config_map("a"), config_map("b"));
        let (a, b) = tokio::join!(world.post(CONFIG_MAPS, &a), world.post(CONFIG_MAPS, &b));
        assert_eq!((a.0, b.0), (201, 201), "{versions:?}: {} {}", a.1, b.1);
    }
}

/// A webhook names what is created, and moves nothing.
#[tokio::test]
async fn a_webhook_names_what_is_created() {
    let world = World::new().await;
    let first = config_map("first");
    assert_eq!(world.post(CONFIG_MAPS, &first).await.0, 201);
    let unnamed = json!({"metadata": {"generateName": "m-"}});
    let path = format!("{CONFIG_MAPS}/first");
    for (hook, method, path, object, code, reason) in [
        ("/move", Method::POST, CONFIG_MAPS, &config_map("m"), 400, "BadRequest"),
        ("/misname", Method::POST, CONFIG_MAPS, &config_map("m"), 422, "Invalid"),
        ("/rename", Method::PUT, path.as_str(), &first, 400, "BadRequest"),
        ("/rename", Method::POST, CONFIG_MAPS, &config_map("m"), 201, ""),
        // The name is no generated one any more: it is not tried again with another.
        ("/rename", Method::POST, CONFIG_MAPS, &unnamed, 409, "AlreadyExists"),
    ] {
        world.install("Mutating", &[world.hook(hook)]).await;
        let (found, reply, _) = world.send(method, path, object).await;
        let said = reply["reason"].as_str().unwrap_or_default();
        assert_eq!((found, said), (code, reason), "{hook} {path}: {reply}");
        if found == 201 {
            assert_eq!(reply["metadata"]["name"], "renamed", "{reply}");
            assert_eq!(world.send(Method::GET, &format!("{CONFIG_MAPS}/renamed"), &Value::Null).await.0, 200);
            assert_eq!(world.send(Method::GET, &format!("{CONFIG_MAPS}/m"), &Value::Null).await.0, 404);
        }
    }
    // A Job's pods are named after it.
    let mut hook = world.hook("/rename");
    hook["rules"] =
        json!([{"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}]);
    world.install("Mutating", &[hook]).await;
    let spec = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": {"spec": spec}}});
    let (code, reply) = world.post("/apis/batch/v1/namespaces/default/jobs", &job).await;
    assert_eq!(code, 201, "{reply}");
    for label in ["job-name", "batch.kubernetes.io/job-name"] {
        assert_eq!(reply["spec"]["template"]["metadata"]["labels"][label], "renamed", "{reply}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_trusted_is_not_asked() {
    let world = World::new().await;
    let mut hook = world.hook("/allow");
    hook["clientConfig"].as_object_mut().expect("config").remove("caBundle");
    world.install("Validating", &[hook]).await;
    let (code, reply) = world.post(CONFIG_MAPS, &config_map("x")).await;
    assert_eq!(code, 500, "{reply}");
    let stranger = "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(reply["message"].as_str().expect("message").contains(stranger), "{reply}");
    assert!(world.seen.lock().expect("lock").is_empty());
}

#[tokio::test]
async fn webhooks_see_who_owns_what_and_do_not_decide_it() {
    let world = World::new().await;
    world.install("Validating", &[world.hook("/allow")]).await;
    let mut owned = config_map("owned");
    owned["data"] = json!({"k": "v"});
    let (code, made) = world.post(&format!("{CONFIG_MAPS}?fieldManager=me"), &owned).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{CONFIG_MAPS}/owned");
    world.send(Method::PATCH, &path, &json!({"data": {"a": "b"}})).await;
    let seen = world.seen.lock().expect("lock");
    let managers = |index: usize, field: &str| -> Vec<String> {
        let list = seen[index].1["request"][field]["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|entry| entry["manager"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((managers(0, "object"), managers(0, "oldObject")), (vec!["me".to_owned()], vec![]));
    assert_eq!((managers(1, "object").len(), managers(1, "oldObject")), (2, vec!["me".to_owned()]));
}

#[derive(Default)]
struct Lines(Mutex<Vec<Value>>);

impl AuditSink for Lines {
    fn write(&self, line: &str) -> std::io::Result<()> {
        self.0.lock().expect("lock").push(serde_json::from_str(line).expect("JSON"));
        Ok(())
    }
}

/// A world in which everything is noted.
async fn audited() -> (World, Arc<Lines>) {
    let lines = Arc::new(Lines::default());
    let policy =
        Policy::parse(b"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]").expect("a policy");
    let world = World::with(|config| {
        config.audit = Some(Audit { policy: Arc::new(policy), sink: lines.clone() });
    })
    .await;
    (world, lines)
}

/// Who goes away before there is an answer may have changed something, and is noted.
#[tokio::test]
async fn requests_that_are_given_up_are_noted() {
    let (world, lines) = audited().await;
    world.install("Validating", &[world.hook("/hang")]).await;
    lines.0.lock().expect("lock").clear();
    let object = config_map("m");
    let mut request = Box::pin(world.post(CONFIG_MAPS, &object));
    assert!(futures::poll!(&mut request).is_pending());
    drop(request);
    let lines = lines.0.lock().expect("lock");
    let event = lines.last().expect("an event");
    assert_eq!((&event["stage"], &event["objectRef"]["name"]), (&json!("ResponseComplete"), &json!("m")));
    assert_eq!(event["responseStatus"]["code"], 504);
}

/// What webhooks say for the audit log, and what became of them, is in the event of the request.
#[tokio::test]
async fn webhooks_annotate_the_audit_event() {
    let (world, lines) = audited().await;
    let careless = |path: &str| {
        let mut hook = world.hook(path);
        hook["failurePolicy"] = "Ignore".into();
        hook
    };
    world.install("Mutating", &[world.hook("/label"), careless("/error")]).await;
    world.install("Validating", &[world.hook("/annotate"), careless("/not-json")]).await;
    lines.0.lock().expect("lock").clear();
    assert_eq!(world.post(CONFIG_MAPS, &config_map("m")).await.0, 201);
    let lines = lines.0.lock().expect("lock");
    let event = lines.iter().find(|line| line["stage"] == "ResponseComplete" && line["verb"] == "create").expect("one");
    let annotations = event["annotations"].as_object().expect("annotations");
    let expected = [
        ("annotate.hooks.example.com/why", "it looked well"),
        ("failed-open.mutating.webhook.admission.k8s.io/round_0_index_1", "error.hooks.example.com"),
        ("failed-open.validating.webhook.admission.k8s.io/round_0_index_1", "not-json.hooks.example.com"),
        (
            "mutation.webhook.admission.k8s.io/round_0_index_0",
            r#"{"configuration":"test","mutated":true,"webhook":"label.hooks.example.com"}"#,
        ),
    ];
    let said: Vec<_> = annotations
        .iter()
        .filter(|(key, _)| !key.starts_with("authorization.k8s.io/"))
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
        .collect();
    assert_eq!(said, expected);
}

#[tokio::test]
async fn mutating_webhooks_are_asked_about_deletions() {
    let world = World::new().await;
    assert_eq!(world.post(CONFIG_MAPS, &config_map("m")).await.0, 201);
    let path = format!("{CONFIG_MAPS}/m");
    let delete = |options: Value| {
        let (world, path) = (&world, &path);
        async move { world.send(Method::DELETE, path, &options).await }
    };
    world.install("Mutating", &[world.hook("/deny")]).await;
    assert_eq!(delete(Value::Null).await.0, 409);
    world.install("Mutating", &[world.hook("/label")]).await;
    let (code, reply, _) = delete(Value::Null).await;
    let text = "admission webhook \"label.hooks.example.com\" attempted to modify the object, which is not supported for this operation";
    assert_eq!(code, 500, "{reply}");
    assert!(reply["message"].as_str().unwrap_or_default().contains(text), "{reply}");
    world.install("Mutating", &[world.hook("/none")]).await;
    world.seen.lock().expect("lock").clear();
    let options = json!({"propagationPolicy": "Foreground", "gracePeriodSeconds": 7, "dryRun": ["All"]});
    assert_eq!(delete(options).await.0, 200);
    let told = world.seen.lock().expect("lock")[0].1["request"]["options"].clone();
    let want = json!({"apiVersion": "meta.k8s.io/v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 7, "dryRun": ["All"]});
    assert_eq!(told, want);
    let query = format!("{CONFIG_MAPS}?fieldManager=me&fieldValidation=Strict&dryRun=All");
    assert_eq!(world.post(&query, &config_map("n")).await.0, 201);
    let told = world.seen.lock().expect("lock")[1].1["request"]["options"].clone();
    let want = json!({"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions", "fieldManager": "me",
        "fieldValidation": "Strict", "dryRun": ["All"]});
    assert_eq!(told, want);
}

#[tokio::test]
async fn webhooks_see_what_is_posted_to_subresources() {
    let world = World::new().await;
    let hook = |path: &str, group: &str, resource: &str| {
        let mut hook = world.hook(path);
        hook["rules"] =
            json!([{"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}]);
        hook
    };
    let hooks = [hook("/annotate-binding", "", "pods/binding"), hook("/two", "apps", "deployments/scale")];
    world.install("Mutating", &hooks).await;
    let account = json!({"metadata": {"name": "default"}});
    assert_eq!(world.post("/api/v1/namespaces/default/serviceaccounts", &account).await.0, 201);
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    assert_eq!(world.post(pods, &pod).await.0, 201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"name": "n1"}});
    let (code, reply) = world.post(&format!("{pods}/p/binding"), &binding).await;
    assert_eq!(code, 201, "{reply}");
    let (_, bound, _) = world.send(Method::GET, &format!("{pods}/p"), &Value::Null).await;
    assert_eq!(
        (&bound["metadata"]["annotations"]["zone"], &bound["spec"]["nodeName"]),
        (&json!("north"), &json!("n1"))
    );

    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"a": "b"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    assert_eq!(world.post(deployments, &deployment).await.0, 201);
    let path = format!("{deployments}/d/scale");
    let (code, scaled, _) = world.send(Method::PATCH, &path, &json!({"spec": {"replicas": 5}})).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(2)), "{scaled}");
    let seen = world.seen.lock().expect("lock");
    let of = |path: &str| &seen.iter().find(|(seen, _)| seen == path).expect(path).1["request"];
    let (bound, scale) = (of("/annotate-binding"), of("/two"));
    assert_eq!((&bound["operation"], &bound["subResource"]), (&json!("CREATE"), &json!("binding")));
    assert_eq!((&bound["object"]["kind"], &bound["oldObject"]), (&json!("Binding"), &Value::Null));
    assert_eq!((&scale["kind"]["kind"], &scale["object"]["kind"]), (&json!("Scale"), &json!("Scale")));
    assert_eq!(
        (&scale["object"]["spec"], &scale["oldObject"]["spec"]),
        (&json!({"replicas": 5}), &json!({"replicas": 1}))
    );
}

#[tokio::test]
async fn a_webhook_says_how_somebody_connects() {
    let world = World::new().await;
    let mut hook = world.hook("/elsewhere");
    hook["rules"] =
        json!([{"operations": ["CONNECT"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"]}]);
    world.install("Mutating", &[hook]).await;
    let account = json!({"metadata": {"name": "default"}});
    assert_eq!(world.post("/api/v1/namespaces/default/serviceaccounts", &account).await.0, 201);
    let status = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]});
    assert_eq!(world.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}, "status": status})).await.0, 201);
    let pods = "/api/v1/namespaces/default/pods";
    let containers = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": containers}});
    assert_eq!(world.post(pods, &pod).await.0, 201);
    let exec = async |query: &str| {
        let request = Request::post(format!("{pods}/p/exec?{query}")).body(Bytes::new()).expect("request");
        world.api.handle(request, Caller::new("admin", ["system:masters"])).await
    };
    match exec("container=a&command=sh&stdout=true").await.into_body() {
        Body::Node(target) => assert_eq!(target.path_and_query, "/exec/default/p/b?output=1&command=id"),
        other => panic!("not carried on: {other:?}"),
    }
    assert_eq!(exec("container=a&command=sh&dryRun=All").await.status(), 400);
}
