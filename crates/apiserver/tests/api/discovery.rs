//! Discovery, OpenAPI, health, version; groups served by code.

use std::sync::Arc;

use bytes::Bytes;
use carrack_apiserver::{Body, LocalApi, LocalGroupVersion, LocalRequest, Response, body};
use carrack_auth::Caller;
use carrack_store::{Store, StoreError, StoreFuture};
use futures::future::BoxFuture;
use http::Method;
use serde_json::{Value, json};

use crate::harness::Cluster;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

#[test]
fn the_old_form() {
    let cluster = Cluster::new();
    assert_eq!(cluster.get("/api").expect(200)["versions"], json!(["v1"]));
    let groups = cluster.get("/apis").expect(200);
    let names: Vec<_> =
        groups["groups"].as_array().expect("groups").iter().map(|g| g["name"].as_str().unwrap_or("")).collect();
    for group in ["apps", "batch", "rbac.authorization.k8s.io", "apiextensions.k8s.io", "coordination.k8s.io"] {
        assert!(names.contains(&group), "{group}");
    }
    assert!(!names.contains(&""));
    let core = cluster.get("/api/v1").expect(200);
    let pods =
        core["resources"].as_array().expect("resources").iter().find(|r| r["name"] == "pods").expect("pods").clone();
    assert_eq!(
        (&pods["kind"], &pods["shortNames"], &pods["namespaced"]),
        (&json!("Pod"), &json!(["po"]), &json!(true))
    );
    // As every other server has them that stores the same.
    for (path, name, hash) in [
        ("/api/v1", "pods", Some("xPOwRZ+Yhw8=")),
        ("/api/v1", "bindings", None),
        ("/apis/apps/v1", "deployments", Some("8aSe+NMegvE=")),
        ("/apis/events.k8s.io/v1", "events", Some("r2yiGXH7wu8=")),
    ] {
        let list = cluster.get(path).expect(200);
        let found = list["resources"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name).cloned());
        assert_eq!(found.expect(name)["storageVersionHash"].as_str(), hash, "{name}");
    }
    assert_eq!(cluster.get("/apis/apps").expect(200)["preferredVersion"]["groupVersion"], "apps/v1");
    cluster.get("/apis/apps/v9").refused(404, "NotFound", "could not find the requested resource");
    cluster.get("/apis/none").refused(404, "NotFound", "");
}

#[test]
fn the_aggregated_form() {
    let cluster = Cluster::new();
    for (path, kind) in [("/api", "Pod"), ("/apis", "Deployment")] {
        let document = cluster.get_as(path, AGGREGATED);
        assert_eq!(
            document.headers["content-type"],
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        );
        let document = document.expect(200);
        assert_eq!(
            (document["kind"].as_str(), document["apiVersion"].as_str()),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io/v2"))
        );
        let found = document["items"]
            .as_array()
            .expect("items")
            .iter()
            .flat_map(|group| group["versions"].as_array().expect("versions"))
            .flat_map(|version| version["resources"].as_array().expect("resources"))
            .any(|resource| resource["responseKind"]["kind"] == kind);
        assert!(found, "{kind}");
    }
    let beta = cluster
        .get_as("/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
        .expect(200);
    assert_eq!(beta["apiVersion"], "apidiscovery.k8s.io/v2beta1");
}

#[test]
fn health_and_version() {
    let cluster = Cluster::new();
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping"] {
        assert_eq!(cluster.get(path).expect(200), json!("ok"), "{path}");
    }
    let verbose = cluster.get("/readyz?verbose").expect(200);
    assert_eq!(
        verbose,
        "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]poststarthook/rbac/bootstrap-roles ok\n[+]shutdown ok\nreadyz check passed\n"
    );
    let excluded = cluster.get("/livez?verbose&exclude=etcd&exclude=x").expect(200);
    assert_eq!(
        excluded,
        "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nlivez check passed\n"
    );
    cluster.get("/readyz/nothing").expect(404);
    let version = cluster.get("/version").expect(200);
    assert_eq!(version["minor"], "36");
    assert_eq!(version["gitVersion"], concat!("v1.36.1+carrack.", env!("CARGO_PKG_VERSION")));
    let status = cluster.get_as("/statusz", "application/json;v=v1beta1;g=config.k8s.io;as=Statusz").expect(200);
    assert_eq!((&status["kind"], &status["metadata"]["name"]), (&json!("Statusz"), &json!("kube-apiserver")));
    let text = cluster.get_as("/statusz", "text/plain").expect(200);
    assert!(text.as_str().is_some_and(|text| text.contains("Paths: /flagz /healthz /livez /metrics")));
    let flags = cluster.get_as("/flagz", "application/json;v=v1beta1;g=config.k8s.io;as=Flagz").expect(200);
    assert_eq!((&flags["kind"], &flags["flags"]), (&json!("Flagz"), &json!({})));
    cluster.get_as("/statusz", "application/json").refused(406, "NotAcceptable", "as=Statusz");
    let monitor = |path: &str| {
        let caller = Caller::new("probe", ["system:monitoring"]);
        cluster.request(caller, Method::GET, path, &[], Bytes::new()).code
    };
    assert_eq!(["/statusz", "/flagz", "/debug/store/backup"].map(monitor), [200, 200, 403]);
}

/// A store that is elsewhere, and does not say a word.
struct Hangs(Arc<dyn Store>);

impl carrack_store::Layer for Hangs {
    fn below(&self) -> &dyn Store {
        &*self.0
    }
    fn health(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { Err(StoreError::Unavailable("it does not answer".to_owned())) })
    }
}

#[test]
fn a_server_whose_store_hangs_is_not_well() {
    let cluster = Cluster::with(|config| config.store = Arc::new(Hangs(config.store.clone())));
    let failed = |name: &str| format!("[-]{name} failed: the store cannot be reached: it does not answer\n");
    for (path, code, want) in [
        ("/healthz", 500, failed("etcd")),
        ("/livez", 500, failed("etcd")),
        ("/readyz", 500, failed("etcd") + &failed("etcd-readiness")),
        ("/readyz/etcd-readiness", 500, "internal server error: the store cannot be reached".to_owned()),
        ("/livez/ping", 200, "ok".to_owned()),
        ("/livez?exclude=etcd", 200, "ok".to_owned()),
        ("/metrics", 200, "kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 0".to_owned()),
        ("/metrics/slis", 200, "kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 0".to_owned()),
        (
            "/metrics/slis",
            200,
            "kubernetes_healthchecks_total{name=\"etcd\",type=\"livez\",status=\"error\"} 1".to_owned(),
        ),
        (
            "/metrics/slis",
            200,
            "kubernetes_healthchecks_total{name=\"ping\",type=\"livez\",status=\"success\"} 3".to_owned(),
        ),
    ] {
        let said = cluster.get(path).expect(code);
        assert!(said.as_str().is_some_and(|said| said.contains(&want)), "{path}: {said}");
    }
}

#[test]
fn metrics_have_upstreams_names() {
    let cluster = Cluster::new();
    cluster.get("/api/v1/namespaces/default").expect(200);
    cluster.get("/api/v1/nothings/a").expect(404);
    cluster.post("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": "c"}})).expect(201);
    cluster.get("/api/v1/namespaces/default/endpoints").expect(200);
    let text = cluster.get("/metrics").expect(200);
    let text = text.as_str().expect("text");
    let has = |line: &str| assert!(text.lines().any(|found| found.starts_with(line)), "{line}\n{text}");
    has("# TYPE apiserver_request_total counter");
    has(
        "apiserver_request_total{code=\"200\",verb=\"GET\",group=\"\",version=\"v1\",resource=\"namespaces\",subresource=\"\",scope=\"resource\",component=\"apiserver\",dry_run=\"\"} ",
    );
    has("apiserver_request_total{code=\"404\",verb=\"GET\",group=\"\",version=\"\",resource=\"\"");
    has(
        "apiserver_request_duration_seconds_bucket{le=\"0.005\",verb=\"POST\",group=\"\",version=\"v1\",resource=\"configmaps\"",
    );
    has("apiserver_current_inflight_requests{request_kind=\"mutating\"} 0");
    has("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1");
    has("apiserver_storage_objects{resource=\"configmaps\"} 1");
    has("apiserver_resource_objects{group=\"\",resource=\"configmaps\"} 1");
    has("apiserver_request_sli_duration_seconds_count{verb=\"POST\",group=\"\",version=\"v1\",resource=\"configmaps\"");
    has(
        "apiserver_requested_deprecated_apis{group=\"\",version=\"v1\",resource=\"endpoints\",subresource=\"\",removed_release=\"\"} 1",
    );
    has("apiserver_storage_objects{resource=\"clusterroles.rbac.authorization.k8s.io\"} ");
    has("etcd_request_duration_seconds_count{operation=\"create\",group=\"\",resource=\"configmaps\"} 1");
    has("kubernetes_build_info{");
    has(
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"NamespaceLifecycle\",operation=\"CREATE\",rejected=\"false\",type=\"validate\"} ",
    );
    has(
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CREATE\",rejected=\"false\",type=\"admit\"} ",
    );
    has("authorization_attempts_total{result=\"allowed\"} ");
    has("kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1");
    has("kubernetes_healthcheck{name=\"shutdown\",type=\"readyz\"} 1");
    // What is refused is told apart.
    cluster.post("/api/v1/namespaces/gone/configmaps", &json!({"metadata": {"name": "c"}})).expect(404);
    let text = cluster.get("/metrics").expect(200);
    let text = text.as_str().expect("text");
    for line in [
        "apiserver_admission_controller_admission_duration_seconds_count{name=\"NamespaceLifecycle\",operation=\"CREATE\",rejected=\"true\",type=\"admit\"} 1",
        "apiserver_admission_step_admission_duration_seconds_count{operation=\"CREATE\",rejected=\"true\",type=\"admit\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn what_does_not_exist_is_in_no_metric() {
    let cluster = Cluster::new();
    let endpoints = json!({"metadata": {"name": "e"}});
    cluster.post("/api/v1/namespaces/default/endpoints", &endpoints).expect(201);
    for (method, path, code) in [
        (Method::GET, "/api/v1/nonsense/a", 404),
        (Method::GET, "/api/v1/namespaces/default/pods/p/nonsense", 404),
        (Method::HEAD, "/api/v1/namespaces/default/pods/p/nonsense", 405),
        (Method::GET, "/api/v1/namespaces/default/endpoints/e/nonsense", 404),
    ] {
        let reply = cluster.request(Caller::apiserver(), method.clone(), path, &[], Bytes::new());
        assert_eq!(reply.code, code, "{method} {path} {}", reply.json);
    }
    let text = cluster.get("/metrics").expect(200);
    let told = text.as_str().expect("text").lines().find(|line| line.contains("nonsense"));
    assert_eq!(told, None);
}

#[test]
fn a_server_that_is_about_to_end_says_so_first() {
    let cluster = Cluster::new();
    cluster.api.announce_end();
    let said = cluster.get("/readyz").expect(500);
    assert!(
        said.as_str().is_some_and(|text| text.contains("[-]shutdown failed: process is shutting down\n")),
        "{said}"
    );
    assert_eq!(cluster.get("/readyz?exclude=shutdown").expect(200), "ok");
    cluster.get("/readyz/shutdown").expect(500);
    assert_eq!(cluster.get("/livez").expect(200), "ok");
    cluster.get("/api/v1/namespaces/default").expect(200);
}

#[test]
fn open_api() {
    let cluster = Cluster::new();
    let index = cluster.get("/openapi/v3").expect(200);
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().expect("url").to_owned();
    let document = cluster.get(&url).expect(200);
    assert!(document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    assert!(document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"].is_object());
    cluster.get("/openapi/v3/apis/none/v1").expect(404);
    let v2 = cluster.get_as("/openapi/v2", "application/json").expect(200);
    assert!(v2["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
    let reply = cluster.get_as("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf");
    assert_eq!(reply.code, 200);
    assert_eq!(reply.headers["content-type"], "application/com.github.proto-openapi.spec.v2.v1.0+protobuf");
}

#[test]
fn documents_are_sent_as_they_are_taken_and_once() {
    const DOCUMENT: &str = "/openapi/v3/apis/apps/v1";
    let cluster = Cluster::new();
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let caller = Caller::new("admin", ["system:masters"]);
        cluster.raw(caller, Method::GET, path, headers, Bytes::new())
    };
    for (encoding, is_zipped) in [("gzip", true), ("gzip;q=0", false), ("gzip;q=0, *", false), ("identity", false)] {
        let reply = ask(DOCUMENT, &[("accept-encoding", encoding)]);
        assert_eq!(reply.headers().contains_key("content-encoding"), is_zipped, "{encoding}");
    }
    for (path, accept) in [(DOCUMENT, "application/json"), ("/apis", AGGREGATED)] {
        let tag = ask(path, &[("accept", accept)]).headers()["etag"].to_str().expect("text").to_owned();
        let both = format!("\"other\", W/{tag}");
        for known in [tag.as_str(), both.as_str()] {
            let reply = ask(path, &[("accept", accept), ("if-none-match", known), ("accept-encoding", "gzip")]);
            assert_eq!(reply.status(), 304, "{path} {known}");
            assert_eq!(reply.headers()["etag"], tag.as_str(), "{path}");
            assert!(!reply.headers().contains_key("content-encoding"), "{path}");
        }
        let other = ask(path, &[("accept", accept), ("if-none-match", "\"other\"")]);
        assert_eq!(other.status(), 200, "{path}");
    }
}

/// What documents say can be done, can be asked for: nobody is told that there is no such path or method.
#[test]
fn whatever_is_described_is_served() {
    let cluster = Cluster::new();
    let index = cluster.get("/openapi/v3").expect(200);
    for place in index["paths"].as_object().expect("paths").keys() {
        let document = cluster.get(&format!("/openapi/v3/{place}")).expect(200);
        for (path, item) in document["paths"].as_object().expect("paths") {
            let path = path.replace("{namespace}", "default").replace("{name}", "x").replace("{path}", "y");
            for method in item.as_object().expect("methods").keys().filter(|key| *key != "parameters") {
                let method: Method = method.to_uppercase().parse().expect("a method");
                let caller = Caller::new("admin", ["system:masters"]);
                let reply = cluster.raw(caller, method.clone(), &path, &[], Bytes::from_static(b"{}"));
                let code = reply.status().as_u16();
                assert_ne!(code, 405, "{method} {path}");
                if code == 404 {
                    let said = reply.into_body().into_bytes();
                    let said = String::from_utf8_lossy(&said);
                    assert!(!said.contains("could not find the requested resource"), "{method} {path}");
                }
            }
        }
    }
}

/// Clients decide by what is served what the cluster can do.
#[test]
fn what_is_not_generally_available_is_served_where_it_is_asked_for() {
    const GROUPS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups";
    const WORKLOADS: &str = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/workloads";
    const SCALERS: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    const INTERNAL: &str = "/apis/internal.apiserver.k8s.io";
    const SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha2.scheduling.k8s.io";
    for (words, served, others) in [
        (vec![], vec![SCALERS], vec![GROUPS, WORKLOADS, INTERNAL, SERVICE]),
        (vec!["api/all=true"], vec![SCALERS, GROUPS, WORKLOADS, INTERNAL, SERVICE], vec![]),
        (vec!["scheduling.k8s.io/v1alpha2/podgroups=true"], vec![GROUPS, SERVICE], vec![WORKLOADS, INTERNAL]),
        (vec!["api/all=true", "scheduling.k8s.io/v1alpha2/workloads=false"], vec![SCALERS, GROUPS], vec![WORKLOADS]),
    ] {
        let cluster = Cluster::serving(&words);
        for (path, code) in served.iter().map(|path| (path, 200)).chain(others.iter().map(|path| (path, 404))) {
            assert_eq!(cluster.get(path).code, code, "{words:?} {path}");
        }
    }
    let versions = |words: &[&str], group: &str| {
        let groups = Cluster::serving(words).get("/apis").expect(200)["groups"].clone();
        let found = groups.as_array().expect("groups").iter().find(|found| found["name"] == group)?.clone();
        let versions = found["versions"].as_array().expect("versions").iter();
        Some(versions.map(|version| version["version"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(versions(&[], "storagemigration.k8s.io"), None);
    assert_eq!(versions(&[], "autoscaling"), Some(vec!["v2".to_owned(), "v1".to_owned()]));
    assert_eq!(versions(&["api/beta"], "storagemigration.k8s.io"), Some(vec!["v1beta1".to_owned()]));
}

/// A group as crates/virt serves subresources.kubevirt.io.
struct Harbour(Vec<LocalGroupVersion>);

impl LocalApi for Harbour {
    fn group_versions(&self) -> &[LocalGroupVersion] {
        &self.0
    }
    fn handle<'a>(&'a self, request: LocalRequest<'a>) -> BoxFuture<'a, Response> {
        Box::pin(async move {
            let name = request.resource.name.clone().unwrap_or_default();
            let what = request.resource.subresource.clone().unwrap_or_default();
            let text = format!("{} {} {name} {what} for {}", request.method, request.info.verb, request.caller.user);
            body::json(202, Body::Full(Value::String(text).to_string().into()))
        })
    }
}

#[test]
fn groups_served_by_code() {
    let harbour = Harbour(vec![LocalGroupVersion {
        group: "harbour.example.com".to_owned(),
        version: "v1".to_owned(),
        resources: vec![
            json!({"name": "ships/moor", "singularName": "", "namespaced": true, "kind": "Ship", "verbs": ["update"]}),
            json!({"name": "ships/sail", "singularName": "", "namespaced": true, "kind": "Ship", "verbs": ["update"]}),
        ],
    }]);
    let cluster = Cluster::with(|config| config.apis.push(Arc::new(harbour)));
    let path = "/apis/harbour.example.com/v1/namespaces/default/ships/a/moor";
    assert_eq!(cluster.put(path, &json!({})).expect(202), json!("PUT update a moor for admin"));
    // The pipeline has asked whether the caller may, before the code sees the request.
    cluster.user("jane", Method::PUT, path, &json!({})).refused(
        403,
        "Forbidden",
        "cannot update resource \"ships/moor\" in API group \"harbour.example.com\"",
    );
    // Below `watch/` it has asked for another right, and there are no subresources.
    let below = "/apis/harbour.example.com/v1/watch/namespaces/default/ships/a/moor";
    cluster.put(below, &json!({})).refused(404, "NotFound", "could not find the requested resource");
    let list = cluster.get("/apis/harbour.example.com/v1").expect(200);
    assert_eq!(list["resources"][0]["name"], "ships/moor");
    let aggregated = cluster.get_as("/apis", AGGREGATED).expect(200);
    let group = aggregated["items"]
        .as_array()
        .expect("items")
        .iter()
        .find(|g| g["metadata"]["name"] == "harbour.example.com")
        .expect("group")
        .clone();
    assert_eq!(group["versions"][0]["resources"][0]["subresources"].as_array().map(Vec::len), Some(2));
}
