//! Another server behind this one: an APIService, its Service, and what clients see of it, on real sockets.
#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use carrack_apiserver::serve::{NodeIo, NodeProxy, Outbound, Settings, serve};
use carrack_apiserver::{ApiServer, Config, NodeTarget};
use carrack_auth::Caller;
use carrack_auth::pki::{Identity, Pki, Sans, Server};
use carrack_auth::tls::{self, Reloadable, Trust};
use carrack_engine::{ApiRequest, HttpsTransport, Transport as _};
use carrack_store::{MemStore, Store};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::common::{TestEnv, put_slice};

struct NoNodes;
impl NodeProxy for NoNodes {
    fn connect(&self, _: &NodeTarget) -> BoxFuture<'static, std::io::Result<Box<dyn NodeIo>>> {
        Box::pin(std::future::ready(Err(std::io::ErrorKind::Unsupported.into())))
    }
}

/// How often the other server was asked for the index of its documents.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// The other server: it tells its resources, and who asks.
async fn other(request: Request<hyper::body::Incoming>) -> http::Response<Full<Bytes>> {
    let header = |name: &str| {
        let all = request.headers().get_all(name).iter();
        all.filter_map(|value| value.to_str().ok()).map(str::to_owned).collect::<Vec<_>>()
    };
    let path = request.uri().to_string();
    // With HTTP/2 it is in the URL.
    let host = request.uri().authority().map(ToString::to_string).or_else(|| header("host").pop());
    let reply = match request.uri().path() {
        "/apis/metrics.example.com/v1" => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "metrics.example.com/v1",
            "resources": [{"name": "readings", "singularName": "reading", "namespaced": true, "kind": "Reading", "verbs": ["get", "list"]}],
        }),
        // What it says of itself is another document each time that somebody asks.
        "/openapi/v3" => {
            let url =
                format!("/openapi/v3/apis/metrics.example.com/v1?hash=H{}", ASKED.fetch_add(1, Ordering::Relaxed));
            let own = json!({"serverRelativeURL": url});
            json!({"paths": {"apis/metrics.example.com/v1": own, "apis/other.example.com/v1": own}})
        }
        "/openapi/v2" => {
            let lists = json!({"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Reading"}}}}});
            json!({
                "swagger": "2.0",
                "paths": {"/apis/metrics.example.com/v1/readings": lists, "/apis/other.example.com/v1/others": lists},
                "definitions": {"Reading": {"type": "object"}, "Other": {}},
            })
        }
        "/apis/metrics.example.com/v1/readings" if path.contains("watch=true") => {
            let lines = ["one", "two"].map(|name| {
                let metadata = json!({"name": name, "annotations": {"asks": header("x-remote-user").join(",")}});
                format!("{}\n", json!({"type": "ADDED", "object": {"metadata": metadata}}))
            });
            return http::Response::new(Full::new(lines.concat().into()));
        }
        "/apis/metrics.example.com/v1/others" => {
            let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
            let reply = http::Response::builder().status(410).body(Full::new(gone.to_string().into()));
            return reply.expect("reply");
        }
        _ => {
            json!({"path": path, "host": host, "user": header("x-remote-user"), "groups": header("x-remote-group"),
                "authorization": header("authorization"), "from": header("x-forwarded-for"), "id": header("audit-id")})
        }
    };
    http::Response::builder()
        .header("content-type", "application/json")
        .body(Full::new(reply.to_string().into()))
        .expect("reply")
}

async fn send(api: &ApiServer, method: Method, path: &str, accept: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("accept", accept).body(body).expect("request");
    let response = api.handle(request, Caller::new("admin", ["system:masters"])).await;
    let code = response.status().as_u16();
    (code, serde_json::from_slice(&response.into_body().into_bytes()).unwrap_or_default())
}

fn found<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    let all = list.as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|item| item.pointer(key).is_some_and(|found| found == name)).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn another_server_behind_this_one() {
    let directory = tempfile::tempdir().expect("temporary directory");
    #[expect(clippy::disallowed_methods, reason = "certificates are valid now, and only now")]
    let now_s = jiff::Timestamp::now().as_second();
    let pki = Pki::open_or_create(directory.path(), now_s).expect("pki");

    // The other server takes the front proxy's certificate and no other.
    let sans = Sans::loopback().with_name("meter.default.svc").with_name("outside.default.svc");
    let pair = pki.server(&Server::Apiserver, &sans, now_s).expect("certificate");
    let other_tls = tls::server_config(Reloadable::new(&pair).expect("pair"), pki.front_proxy_ca_pem()).expect("tls");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let other_port = listener.local_addr().expect("address").port();
    let (acceptor, clients) = (tokio_rustls::TlsAcceptor::from(Arc::new(other_tls.config)), other_tls.clients);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, clients) = (acceptor.clone(), clients.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let peer = clients.peer(stream.get_ref().1.peer_certificates()).ok().flatten();
                if peer.is_none_or(|peer| peer.caller.user != "front-proxy-client") {
                    return;
                }
                let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async {
                    if request.uri().path().ends_with("/silences") {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, std::convert::Infallible>(other(request).await)
                });
                drop(
                    hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            });
        }
    });

    let identity = Reloadable::new(&pki.client(&Identity::FrontProxy, now_s).expect("certificate")).expect("pair");
    let env = TestEnv::new(Outbound::new(pki.ca_pem(), Some(identity)));
    let store: Arc<dyn Store> = Arc::new(MemStore::default());
    let mut config = Config::new(Arc::clone(&store), Arc::new(env));
    config.ca_pem = pki.ca_pem().to_owned();
    config.front_proxy_ca_pem = pki.front_proxy_ca_pem().to_owned();
    let key = carrack_auth::token::SigningKey::from_pem(pki.service_account_key()).expect("key");
    let verifier =
        carrack_auth::token::Verifier::new(carrack_auth::token::DEFAULT_ISSUER, vec![key.verifying_key().clone()]);
    config.authenticator = Some(carrack_auth::Authenticator::new(verifier));
    let api = ApiServer::new(config);
    api.bootstrap().await.expect("bootstrap");

    // What is served here has its objects.
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let (_, list) = send(&api, Method::GET, services, "application/json", &Value::Null).await;
    for name in ["v1.", "v1.apps", "v1.apiregistration.k8s.io"] {
        let local = found(&list["items"], "/metadata/name", name);
        assert_eq!(local["status"]["conditions"][0]["reason"], "Local", "{name}: {local}");
    }
    let (code, config_map) = send(
        &api,
        Method::GET,
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
        "application/json",
        &Value::Null,
    )
    .await;
    assert_eq!((code, &config_map["data"]["requestheader-client-ca-file"]), (200, &json!(pki.front_proxy_ca_pem())));

    // A service that is not there yet is told of, and does not stand in the way of the rest.
    let service = json!({
        "metadata": {"name": "v1.metrics.example.com"},
        "spec": {"group": "metrics.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "service": {"name": "meter", "namespace": "default"}},
    });
    let (code, made) = send(&api, Method::POST, services, "application/json", &service).await;
    assert_eq!((code, &made["status"]["conditions"][0]["status"]), (201, &json!("Unknown")), "{made}");
    let available = async || {
        api.check_api_services().await.expect("checked");
        let (_, object) =
            send(&api, Method::GET, &format!("{services}/v1.metrics.example.com"), "application/json", &Value::Null)
                .await;
        let condition = object["status"]["conditions"][0].clone();
        (
            condition["status"].as_str().unwrap_or_default().to_owned(),
            condition["reason"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(available().await, ("False".to_owned(), "ServiceNotFound".to_owned()));
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let discovered = async || {
        let (_, all) = send(&api, Method::GET, "/apis", aggregated, &Value::Null).await;
        found(&all["items"], "/metadata/name", "metrics.example.com")["versions"][0].clone()
    };
    assert_eq!(discovered().await["freshness"], "Stale");
    let (code, reply) = send(
        &api,
        Method::GET,
        "/apis/metrics.example.com/v1/namespaces/default/readings",
        "application/json",
        &Value::Null,
    )
    .await;
    assert_eq!(code, 503, "{reply}");

    let meter = json!({"metadata": {"name": "meter"}, "spec": {"ports": [{"port": 443, "targetPort": 1}], "clusterIP": "None"}});
    assert_eq!(
        send(&api, Method::POST, "/api/v1/namespaces/default/services", "application/json", &meter).await.0,
        201
    );
    let slice = json!({
        "metadata": {"name": "meter-1", "labels": {"kubernetes.io/service-name": "meter"}}, "addressType": "IPv4",
        "ports": [{"name": "", "port": other_port, "protocol": "TCP"}], "endpoints": [{"addresses": ["127.0.0.1"]}],
    });
    put_slice(&*store, "meter-1", &slice).await;
    assert_eq!(available().await, ("True".to_owned(), "Passed".to_owned()));
    let version = discovered().await;
    assert_eq!(
        (&version["freshness"], &version["resources"][0]["resource"]),
        (&json!("Current"), &json!("readings")),
        "{version}"
    );

    // Clients keep a document for as long as its own server says the same of it. Of others it tells nothing.
    let index = async || send(&api, Method::GET, "/openapi/v3", "application/json", &Value::Null).await.1;
    let paths = index().await["paths"].clone();
    let url = "/openapi/v3/apis/metrics.example.com/v1?hash=H0";
    assert_eq!(paths["apis/metrics.example.com/v1"]["serverRelativeURL"], url, "{paths}");
    assert_eq!(paths["apis/other.example.com/v1"], Value::Null);
    assert_eq!(index().await["paths"], paths, "it is not asked for each client");

    let (_, document) = send(&api, Method::GET, "/openapi/v2", "application/json", &Value::Null).await;
    let is_there = |kind: &str, name: &str| document[kind].get(name).is_some();
    assert!(is_there("paths", "/apis/metrics.example.com/v1/readings") && is_there("definitions", "Reading"));
    assert!(is_there("paths", "/api/v1/namespaces") && is_there("definitions", "io.k8s.api.core.v1.Namespace"));
    assert!(!is_there("paths", "/apis/other.example.com/v1/others") && !is_there("definitions", "Other"));

    // Through the shell, with a client certificate in front and the caller's name behind.
    let front = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = front.local_addr().expect("address");
    let pair = pki.server(&Server::Apiserver, &Sans::loopback(), now_s).expect("certificate");
    let server_tls = tls::server_config(Reloadable::new(&pair).expect("pair"), pki.ca_pem()).expect("tls");
    let (stop, stopped) = oneshot::channel::<()>();
    let serving =
        tokio::spawn(serve(api.clone(), front, server_tls, Arc::new(NoNodes), Settings::default(), async move {
            drop(stopped.await);
        }));
    let admin = Reloadable::new(&pki.client(&Identity::Admin, now_s).expect("certificate")).expect("pair");
    let client_tls = tls::client_config(Trust::Authorities(pki.ca_pem()), Some(admin)).expect("tls");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client_tls.clone()));
    let base = format!("https://localhost:{}", address.port());
    let client = HttpsTransport::new(&base, None, client_tls, None).expect("transport");
    let reply = client
        .send(ApiRequest::new(
            carrack_engine::Method::Get,
            "/apis/metrics.example.com/v1/namespaces/default/readings?limit=5",
        ))
        .await;
    let told: Value = serde_json::from_slice(&reply.expect("a reply").body).expect("json");
    assert_eq!(told["path"], "/apis/metrics.example.com/v1/namespaces/default/readings?limit=5", "{told}");
    assert_eq!((&told["user"], &told["authorization"]), (&json!(["system:admin"]), &json!([])), "{told}");
    assert!(told["groups"].as_array().expect("groups").contains(&json!("system:masters")), "{told}");
    // Both servers have one name for a request, and the client is told it.
    let stream = tokio::net::TcpStream::connect(address).await.expect("connect");
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("name");
    let stream = connector.connect(name, stream).await.expect("handshake");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("http");
    tokio::spawn(async move { drop(connection.await) });
    let asking = Request::builder()
        .uri("/apis/metrics.example.com/v1/namespaces/default/readings")
        .header("host", "localhost")
        .body(Full::<Bytes>::default())
        .expect("request");
    let (head, body) = sender.send_request(asking).await.expect("reply").into_parts();
    let told: Value = serde_json::from_slice(&body.collect().await.expect("body").to_bytes()).expect("json");
    assert_eq!(
        (&told["from"], &told["id"][0]),
        (&json!(["127.0.0.1"]), &json!(head.headers["audit-id"].to_str().ok()))
    );
    assert!(head.headers["x-kubernetes-pf-flowschema-uid"].len() > 10, "{head:?}");
    // Who is asked there has no more time than who is asked here.
    sender.ready().await.expect("the connection stays");
    let asking = Request::builder()
        .uri("/apis/metrics.example.com/v1/namespaces/default/silences?timeout=300ms")
        .header("host", "localhost")
        .body(Full::<Bytes>::default())
        .expect("request");
    let late = tokio::time::timeout(std::time::Duration::from_secs(20), sender.send_request(asking)).await;
    assert_eq!(late.expect("it is not waited for").expect("reply").status(), 504);
    // And for those in the process.
    let inside = api.client_as("me", ["system:masters"]);
    let reply = inside
        .send(ApiRequest::new(carrack_engine::Method::Get, "/apis/metrics.example.com/v1/namespaces/default/readings"))
        .await;
    let told: Value = serde_json::from_slice(&reply.expect("a reply").body).expect("json");
    assert_eq!(told["user"], json!(["me"]));
    // So are watches.
    let watch = |plural: &str| {
        let path = format!("/apis/metrics.example.com/v1/{plural}?watch=true&resourceVersion=1");
        inside.watch(ApiRequest::new(carrack_engine::Method::Get, path))
    };
    let events: Vec<_> = watch("readings").await.expect("a stream").collect().await;
    let events: Vec<Value> =
        events.into_iter().map(|line| serde_json::from_slice(&line.expect("a line")).expect("json")).collect();
    let names: Vec<_> = events.iter().map(|event| event["object"]["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(events[0]["object"]["metadata"]["annotations"]["asks"], "me");
    assert!(watch("others").await.err().is_some_and(|error| error.is_gone()), "a refusal is passed on");
    // Who is outside the cluster is asked under the name that they have there, but has to be whom the service names.
    for (service, condition) in [("elsewhere", "False"), ("outside", "True")] {
        let external =
            json!({"metadata": {"name": service}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let path = "/api/v1/namespaces/default/services";
        let (code, made) = send(&api, Method::POST, path, "application/json", &external).await;
        assert_eq!(code, 201, "{made}");
        let path = format!("{services}/v1.metrics.example.com");
        let (_, mut object) = send(&api, Method::GET, &path, "application/json", &Value::Null).await;
        object["spec"]["service"] = json!({"name": service, "namespace": "default", "port": other_port});
        let (code, put) = send(&api, Method::PUT, &path, "application/json", &object).await;
        assert_eq!(code, 200, "{put}");
        assert_eq!(available().await.0, condition, "{service}");
    }
    let reply = inside
        .send(ApiRequest::new(carrack_engine::Method::Get, "/apis/metrics.example.com/v1/namespaces/default/readings"))
        .await;
    let told: Value = serde_json::from_slice(&reply.expect("a reply").body).expect("json");
    assert_eq!(told["host"], format!("localhost:{other_port}"), "{told}");
    stop.send(()).expect("serving");
    serving.await.expect("joined").expect("served");
}
