//! Which paths there are: what is served at a path is what its caller was authorized for, and upstream has no others.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::Cluster;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NOT_FOUND: [u16; 2] = [404, 404];

/// A cluster in which `owner` may do anything in namespace `f`, and nothing elsewhere.
fn cluster() -> Cluster {
    let cluster = Cluster::new();
    cluster.post("/api/v1/namespaces", &json!({"metadata": {"name": "f"}})).expect(201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/f";
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    cluster.post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "all"}, "rules": rules})).expect(201);
    let binding = json!({"metadata": {"name": "all"}, "subjects": [{"kind": "User", "name": "owner"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"}});
    cluster.post(&format!("{rbac}/rolebindings"), &binding).expect(201);
    for (plural, kind, scope) in
        [("ships", "Ship", "Namespaced"), ("oceans", "Ocean", "Cluster"), ("namespaces", "Namespace", "Cluster")]
    {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({"metadata": {"name": format!("{plural}.sea.example.com")}, "spec": {
            "group": "sea.example.com", "scope": scope, "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        cluster.post(CRDS, &definition).expect(201);
    }
    cluster
}

/// What the owner of the namespace is answered, and what an administrator is.
#[track_caller]
fn check(cluster: &Cluster, method: &Method, path: &str, want: [u16; 2]) {
    let callers = [Caller::new("owner", [""; 0]), Caller::new("admin", ["system:masters"])];
    let got = callers
        .map(|caller| cluster.raw(caller, method.clone(), path, &[], Bytes::from_static(b"{}")).status().as_u16());
    assert_eq!(got, want, "{method} {path}");
}

/// All kinds there are: where their paths begin, their plural names, whether they lie in namespaces, whether they can be listed.
fn kinds(cluster: &Cluster) -> Vec<(String, String, bool, bool)> {
    let groups = cluster.get("/apis").expect(200);
    let versions = groups["groups"].as_array().expect("groups").iter().flat_map(|group| {
        let versions = group["versions"].as_array().expect("versions");
        versions.iter().map(|version| format!("/apis/{}", version["groupVersion"].as_str().expect("text")))
    });
    let of = |root: String| {
        let list = cluster.get(&root).expect(200);
        let resources = list["resources"].as_array().expect("resources").clone();
        resources.into_iter().map(move |resource| {
            let plural = resource["name"].as_str().expect("a name").to_owned();
            let is_listed = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
            (root.clone(), plural, resource["namespaced"] == true, is_listed)
        })
    };
    let all = ["/api/v1".to_owned()].into_iter().chain(versions).flat_map(of);
    all.filter(|(_, plural, ..)| !plural.contains('/')).collect()
}

#[test]
fn kinds_are_where_they_belong_and_nowhere_else() {
    let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let cluster = cluster();
    let kinds = kinds(&cluster);
    for wanted in ["namespaces", "nodes", "pods", "bindings", "ships", "oceans", "tokenreviews"] {
        assert!(kinds.iter().any(|(_, plural, ..)| plural == wanted), "{wanted} is looked at");
    }
    for (root, plural, is_namespaced, is_listed) in kinds {
        // A namespace's own paths are looked at below.
        let place = if is_namespaced { plural.clone() } else { format!("namespaces/f/{plural}") };
        let nowhere = if is_namespaced { [403, 404] } else { NOT_FOUND };
        for method in &methods {
            check(&cluster, method, &format!("{root}/{place}/f"), nowhere);
            check(&cluster, method, &format!("{root}/{place}/f/status"), nowhere);
            check(&cluster, method, &format!("{root}/{place}/f/finalize"), nowhere);
            if !is_namespaced {
                check(&cluster, method, &format!("{root}/{place}"), nowhere);
            }
        }
        check(&cluster, &Method::GET, &format!("{root}/watch/{place}/f"), nowhere);
        if is_namespaced && is_listed {
            check(&cluster, &Method::GET, &format!("{root}/namespaces/f/{plural}"), [200, 200]);
            check(&cluster, &Method::GET, &format!("{root}/namespaces/default/{plural}"), [403, 200]);
            check(&cluster, &Method::GET, &format!("{root}/{plural}"), [403, 200]);
            check(&cluster, &Method::POST, &format!("{root}/{plural}"), [403, 405]);
        } else if !is_namespaced {
            check(&cluster, &Method::GET, &format!("{root}/watch/{place}"), nowhere);
        }
    }
}

#[test]
fn a_path_is_read_in_one_way() {
    let cluster = cluster();
    let config_map = json!({"metadata": {"name": "a"}});
    for namespace in ["f", "default"] {
        cluster.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &config_map).expect(201);
    }
    for (path, want) in [
        // A namespace is in itself.
        ("/api/v1/namespaces/f", [200, 200]),
        ("/api/v1/namespaces/f/status", [200, 200]),
        ("/api/v1/watch/namespaces/f", [200, 200]),
        ("/api/v1/namespaces/default", [403, 200]),
        ("/api/v1/watch/namespaces/default", [403, 200]),
        ("/api/v1/namespaces", [403, 200]),
        // Nor is there another in it.
        ("/api/v1/namespaces/f/namespaces/default", NOT_FOUND),
        ("/api/v1/namespaces/f/namespaces?watch=true", NOT_FOUND),
        ("/api/v1/watch/namespaces/f/namespaces", NOT_FOUND),
        ("/apis/sea.example.com/v1/namespaces/f", NOT_FOUND),
        ("/apis/sea.example.com/v1/namespaces/f/status", NOT_FOUND),
        // What is encoded, or ends in a slash, is the same.
        ("/api/v1/namespaces/f/configmaps/a", [200, 200]),
        ("/api/v1/namespaces/%66/%63onfigmaps/%61", [200, 200]),
        ("/api/v1/namespaces/f/configmaps/", [200, 200]),
        ("/api/v1/namespaces/%64efault/configmaps", [403, 200]),
        // What others may take for something else is nothing.
        ("//api/v1/namespaces/f/configmaps", NOT_FOUND),
        ("/api/v1/namespaces//f/configmaps", NOT_FOUND),
        ("/api/v1/namespaces/f//configmaps/a", NOT_FOUND),
        ("/api/v1/namespaces/f/../default/configmaps", NOT_FOUND),
        ("/api/v1/namespaces/f/%2E%2E/default/configmaps", NOT_FOUND),
        ("/api/v1/namespaces/f%2F..%2Fdefault/configmaps", [403, 404]),
        ("/api/v1/namespaces/f/configmaps/..%2F..%2Fdefault%2Fconfigmaps%2Fa", NOT_FOUND),
        ("/api/v1/namespaces/f/configmaps%2Fa", NOT_FOUND),
        // Nothing lies below a subresource.
        ("/api/v1/namespaces/f/pods/p/log/x", NOT_FOUND),
        ("/api/v1/namespaces/f/pods/p/status/x", NOT_FOUND),
    ] {
        check(&cluster, &Method::GET, path, want);
    }
    for (method, path, want) in [
        (Method::PUT, "/api/v1/namespaces/f/namespaces/default/finalize", NOT_FOUND),
        (Method::POST, "/api/v1/namespaces/f/namespaces", NOT_FOUND),
        (Method::DELETE, "/api/v1/namespaces/f/namespaces", NOT_FOUND),
        (Method::POST, "/api/v1/namespaces/f/bindings/x", NOT_FOUND),
        (Method::POST, "/api/v1/bindings", [403, 404]),
        (Method::DELETE, "/api/v1/configmaps", [403, 405]),
    ] {
        check(&cluster, &method, path, want);
    }
    let list = cluster.user("owner", Method::GET, "/api/v1/namespaces/f/namespaces", &Value::Null);
    list.refused(404, "NotFound", "could not find the requested resource");
    cluster.get("/api/v1/pods/p").refused(404, "NotFound", "could not find the requested resource");
    cluster.get("/api/v1/namespaces/default").expect(200);
}
