//! Who may write what a pod's annotations say of its GPUs.

use bytes::Bytes;
use carrack_apiserver::ApiServer;
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, USER_GPU_EXTENDER};
use carrack_engine::Method;
use serde_json::{Map, Value, json};

use super::{admin, api};

const PODS: &str = "/api/v1/namespaces/default/pods";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

const NODE: &str = "tencent.com/predicate-node";
const GPU: &str = "tencent.com/predicate-gpu-idx-0";
const UUID: &str = "example.com/predicate-gpu-uuid-0";
const ASSIGNED: &str = "tencent.com/gpu-assigned";
const OTHERS: &str = "tencent.org/predicate-node";

/// Somebody who may write pods, and whose word on GPUs counts for nothing.
fn tenant() -> Caller {
    Caller::new("tenant", ["tenants"])
}

/// Gives everybody here the right to write pods.
async fn allow(server: &ApiServer) {
    let rules = json!([{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "writers"}, "rules": rules});
    admin(server, Method::Post, &format!("{RBAC}/clusterroles"), &role).await;
    let subjects = ["tenants", "gpu-people", "system:nodes"]
        .map(|group| json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group}));
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "writers"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writers"}});
    admin(server, Method::Post, &format!("{RBAC}/clusterrolebindings"), &binding).await;
}

/// Sends a request; the code, the warnings and the object of the reply.
async fn send(server: &ApiServer, caller: Caller, method: &str, path: &str, body: &Value) -> (u16, String, Value) {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", media);
    let reply = server.handle(request.body(Bytes::from(body.to_string())).expect("a request"), caller).await;
    let told = reply.headers().get_all("warning").iter().filter_map(|text| text.to_str().ok());
    let (code, told) = (reply.status().as_u16(), told.collect::<Vec<_>>().join("; "));
    (code, told, serde_json::from_slice(&reply.into_body().into_bytes()).unwrap_or_default())
}

fn annotated(name: &str, keys: &[&str]) -> Value {
    let annotations: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), "0".into())).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]}})
}

fn keys(pod: &Value) -> Vec<&str> {
    pod["metadata"]["annotations"].as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect()
}

#[tokio::test]
async fn a_new_pod_goes_without_what_its_maker_may_not_write() {
    let server = api().await;
    allow(&server).await;
    let check = async |name: &str, caller: Caller, sent: &[&str], kept: &[&str]| {
        let (code, told, made) = send(&server, caller, "POST", PODS, &annotated(name, sent)).await;
        assert_eq!(code, 201, "{name}: {made}");
        assert_eq!(keys(&made), kept, "{name}");
        for key in sent {
            assert_eq!(told.contains(key), !kept.contains(key), "{name}: {told}");
        }
    };
    let all = [UUID, ASSIGNED, GPU, NODE];
    check("tenant", tenant(), &all, &[]).await;
    check("beside", tenant(), &[UUID, "mine", NODE, OTHERS], &["mine", OTHERS]).await;
    check("plain", tenant(), &["mine"], &["mine"]).await;
    check("none", tenant(), &[], &[]).await;
    check("admin", Caller::new("admin", [GROUP_MASTERS]), &all, &all).await;
    check("writer", Caller::new("somebody", ["gpu-people"]), &all, &all).await;
}

#[tokio::test]
async fn a_pod_that_is_there_keeps_what_it_has() {
    let server = api().await;
    allow(&server).await;
    admin(&server, Method::Post, PODS, &annotated("p", &[GPU, ASSIGNED])).await;
    let check = async |caller: Caller, part: &str, key: &str, value: Value, code: u16| {
        let (path, patch) = (format!("{PODS}/p{part}"), json!({"metadata": {"annotations": {key: value}}}));
        let (got, _, reply) = send(&server, caller.clone(), "PATCH", &path, &patch).await;
        assert_eq!(got, code, "{} {part} {patch}: {reply}", caller.user);
        if code == 403 && caller.node_name().is_none() {
            assert!(reply["message"].as_str().is_some_and(|why| why.contains(key)), "{reply}");
        }
    };
    let extender = || Caller::new(USER_GPU_EXTENDER, [""; 0]);
    for part in ["", "/status"] {
        check(tenant(), part, GPU, json!("1"), 403).await;
        check(tenant(), part, GPU, Value::Null, 403).await;
        check(tenant(), part, ASSIGNED, json!("true"), 403).await;
        check(tenant(), part, NODE, json!("n2"), 403).await;
        check(tenant(), part, UUID, json!("x"), 403).await;
        // What stays as it is, and what says nothing of GPUs.
        check(tenant(), part, GPU, json!("0"), 200).await;
        check(tenant(), part, "mine", json!(part), 200).await;
        check(tenant(), part, OTHERS, json!(part), 200).await;
    }
    // A node says that it has handed them out, of its own pods.
    check(Caller::node("n1"), "/status", ASSIGNED, json!("true"), 200).await;
    check(Caller::node("n1"), "/status", GPU, json!("1"), 403).await;
    check(Caller::node("n2"), "/status", ASSIGNED, json!("false"), 403).await;
    check(extender(), "", GPU, json!("1"), 200).await;
    check(Caller::new("somebody", ["gpu-people"]), "", GPU, json!("0"), 200).await;
    check(Caller::new("admin", [GROUP_MASTERS]), "", GPU, Value::Null, 200).await;
    // Another one that says the same in another way.
    let (path, whole) = (format!("{PODS}/p"), admin(&server, Method::Get, &format!("{PODS}/p"), &Value::Null).await);
    let mut changed = whole.clone();
    changed["metadata"]["annotations"][GPU] = "1".into();
    assert_eq!(send(&server, tenant(), "PUT", &path, &changed).await.0, 403);
    assert_eq!(send(&server, tenant(), "PUT", &path, &whole).await.0, 200);
}
