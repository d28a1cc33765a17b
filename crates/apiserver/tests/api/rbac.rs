//! Authorization of every request, escalation, impersonation, reviews.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn reader(cluster: &Cluster) {
    let role = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}],
    });
    cluster.post(&format!("{RBAC}/namespaces/default/roles"), &role).expect(201);
    let binding = json!({
        "metadata": {"name": "jane-reads"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    cluster.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).expect(201);
}

#[test]
fn nobody_may_do_anything_until_somebody_says_so() {
    let cluster = Cluster::new();
    let list = || cluster.user("jane", Method::GET, CONFIG_MAPS, &Value::Null);
    list().refused(
        403,
        "Forbidden",
        "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\"",
    );
    reader(&cluster);
    // The next request sees the binding.
    list().expect(200);
    cluster.user("jane", Method::POST, CONFIG_MAPS, &config_map("m", "x")).refused(
        403,
        "Forbidden",
        "User \"jane\" cannot create resource \"configmaps\"",
    );
    cluster.user("jane", Method::GET, "/api/v1/configmaps", &Value::Null).refused(
        403,
        "Forbidden",
        "at the cluster scope",
    );
    cluster
        .user("jane", Method::GET, "/api/v1/namespaces/kube-system/configmaps/x", &Value::Null)
        .refused(403, "Forbidden", "configmaps \"x\" is forbidden: User \"jane\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"kube-system\"");
    cluster.user("jane", Method::GET, "/metrics", &Value::Null).refused(
        403,
        "Forbidden",
        "forbidden: User \"jane\" cannot get path \"/metrics\"",
    );
    cluster.user("jane", Method::GET, "/version", &Value::Null).expect(200);
    cluster.delete(&format!("{RBAC}/namespaces/default/rolebindings/jane-reads")).expect(200);
    list().refused(403, "Forbidden", "");
}

#[test]
fn anonymous_sees_health_alone() {
    let cluster = Cluster::new();
    let ask = |path: &str| cluster.request(Caller::anonymous(), Method::GET, path, &[], Bytes::new());
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(ask(path).code, 200, "{path}");
    }
    ask("/api/v1/nodes").refused(403, "Forbidden", "User \"system:anonymous\" cannot list resource \"nodes\"");
}

#[test]
fn nobody_grants_what_they_do_not_hold() {
    let cluster = Cluster::new();
    let role = json!({
        "metadata": {"name": "role-maker"},
        "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["create"]}],
    });
    cluster.post(&format!("{RBAC}/clusterroles"), &role).expect(201);
    let binding = json!({
        "metadata": {"name": "jane-makes-roles"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "role-maker"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    cluster.post(&format!("{RBAC}/clusterrolebindings"), &binding).expect(201);
    let mine = json!({
        "metadata": {"name": "all"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    });
    cluster.user("jane", Method::POST, &format!("{RBAC}/clusterroles"), &mine).refused(
        403,
        "Forbidden",
        "is attempting to grant RBAC permissions not currently held",
    );
}

#[test]
fn acting_as_somebody_else() {
    let cluster = Cluster::new();
    reader(&cluster);
    let as_jane = |caller: Caller, path: &str| {
        cluster.request(caller, Method::GET, path, &[("impersonate-user", "jane")], Bytes::new())
    };
    as_jane(Caller::new("admin", ["system:masters"]), CONFIG_MAPS).expect(200);
    as_jane(Caller::new("admin", ["system:masters"]), "/api/v1/nodes").refused(403, "Forbidden", "User \"jane\"");
    as_jane(Caller::new("joe", [""; 0]), CONFIG_MAPS).refused(
        403,
        "Forbidden",
        "User \"joe\" cannot impersonate resource \"users\"",
    );
    let text = cluster.get("/metrics").expect(200);
    let text = text.as_str().expect("text");
    for line in [
        "apiserver_impersonation_attempts_total{mode=\"user-info\",decision=\"allowed\"} 2",
        "apiserver_impersonation_attempts_total{mode=\"\",decision=\"denied\"} 1",
        "apiserver_impersonation_attempts_duration_seconds_count{mode=\"\",decision=\"denied\"} 1",
        "apiserver_impersonation_attempts_duration_seconds_bucket{le=\"16.384\",mode=\"\",decision=\"denied\"} 1",
        "apiserver_impersonation_authorization_attempts_total{mode=\"user-info\",decision=\"denied\"} 1",
        "apiserver_impersonation_authorization_attempts_total{mode=\"legacy\",decision=\"denied\"} 1",
        "apiserver_impersonation_authorization_attempts_duration_seconds_count{mode=\"legacy\",decision=\"denied\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn reviews() {
    let cluster = Cluster::new();
    reader(&cluster);
    let attributes = json!({"namespace": "default", "verb": "list", "resource": "configmaps"});
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review = json!({"spec": {"resourceAttributes": attributes}});
    let answer = cluster.user("jane", Method::POST, own, &review).expect(201);
    assert_eq!(
        (answer["status"]["allowed"].as_bool(), answer["kind"].as_str()),
        (Some(true), Some("SelfSubjectAccessReview"))
    );
    let answer = cluster.user("joe", Method::POST, own, &review).expect(201);
    assert_eq!(answer["status"]["allowed"], false);
    let of_others = json!({"spec": {"user": "jane", "resourceAttributes": attributes}});
    let answer = cluster.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &of_others).expect(201);
    assert_eq!(answer["status"]["allowed"], true);
    let place = "/apis/authorization.k8s.io/v1";
    let path = json!({"path": "/healthz", "verb": "get"});
    for (kind, spec, want) in [
        ("selfsubjectaccessreviews", json!({}), "spec.resourceAttributes: Invalid value: null: exactly one of"),
        (
            "selfsubjectaccessreviews",
            json!({"resourceAttributes": attributes, "nonResourceAttributes": path}),
            "cannot be specified in combination with resourceAttributes",
        ),
        (
            "subjectaccessreviews",
            json!({"resourceAttributes": attributes}),
            "spec.user: Invalid value: \"\": at least one",
        ),
        (
            "namespaces/other/localsubjectaccessreviews",
            json!({"user": "jane", "resourceAttributes": attributes}),
            "spec.resourceAttributes.namespace: Invalid value: \"default\": must match metadata.namespace",
        ),
        (
            "namespaces/default/localsubjectaccessreviews",
            json!({"user": "jane", "nonResourceAttributes": path}),
            "spec.nonResourceAttributes: Invalid value: {\"path\":\"/healthz\",\"verb\":\"get\"}: disallowed",
        ),
    ] {
        cluster.post(&format!("{place}/{kind}"), &json!({"spec": spec})).refused(422, "Invalid", want);
    }
    let parts =
        |operator: &str, values: Value| json!({"requirements": [{"key": "a", "operator": operator, "values": values}]});
    for (selector, value, want) in [
        (
            "fieldSelector",
            json!({"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}),
            "fieldSelector.rawSelector: Invalid value: \"a=b\": may not specified at the same time as requirements",
        ),
        ("labelSelector", json!({}), "labelSelector.requirements: Required value: when spec.resourceAttributes."),
        (
            "labelSelector",
            parts("In", json!(["b c"])),
            "labelSelector.requirements[0].values[0]: Invalid value: \"b c\"",
        ),
        ("labelSelector", parts("In", json!([])), "labelSelector.requirements[0].values: Required value: must be"),
        ("fieldSelector", parts("Exists", json!(["b"])), "fieldSelector.requirements[0].values: Forbidden: may not"),
        (
            "fieldSelector",
            json!({"requirements": [{"key": "", "operator": "Exists"}]}),
            "fieldSelector.requirements[0].key: Required value: must be specified",
        ),
    ] {
        let mut review = review.clone();
        review["spec"]["resourceAttributes"][selector] = value;
        cluster.post(own, &review).refused(422, "Invalid", want);
    }
    // Clients of later releases know more operators.
    let mut odd = review.clone();
    odd["spec"]["resourceAttributes"]["labelSelector"] = parts("Odd", json!(["b"]));
    cluster.post(own, &odd).expect(201);
    let local = format!("{place}/namespaces/default/localsubjectaccessreviews");
    let of_jane = json!({"user": "jane", "resourceAttributes": attributes});
    for (path, spec, metadata, want) in [
        (own, &review["spec"], json!({"name": "x"}), Some("metadata: Invalid value: {\"name\":\"x\"}: must be empty")),
        (own, &review["spec"], json!({"creationTimestamp": null}), None),
        (&*local, &of_jane, json!({"namespace": "default"}), None),
        (
            &*local,
            &of_jane,
            json!({"namespace": "default", "labels": {"a": "b"}}),
            Some("must be empty except for namespace"),
        ),
    ] {
        let reply = cluster.post(path, &json!({"metadata": metadata, "spec": spec}));
        match want {
            None => drop(reply.expect(201)),
            Some(want) => drop(reply.refused(422, "Invalid", want)),
        }
    }
    let me =
        cluster.user("jane", Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "jane");
    assert_eq!(me["status"]["userInfo"]["groups"], json!(["system:authenticated"]));
    let rules = cluster
        .user(
            "jane",
            Method::POST,
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
            &json!({"spec": {"namespace": "default"}}),
        )
        .expect(201);
    let resources: Vec<_> =
        rules["status"]["resourceRules"].as_array().expect("rules").iter().map(|r| &r["resources"]).collect();
    assert!(resources.contains(&&json!(["configmaps"])), "{resources:?}");
}

#[test]
fn connecting_by_get_takes_the_right_to_create() {
    let cluster = Cluster::new();
    cluster.running_pod("p");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    for (user, verbs) in [("reader", vec!["get"]), ("maker", vec!["get", "create"])] {
        let rules = json!([{"apiGroups": [""], "resources": ["pods/exec", "pods/log"], "verbs": verbs}]);
        cluster.post(&format!("{rbac}/roles"), &json!({"metadata": {"name": user}, "rules": rules})).expect(201);
        let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}});
        cluster.post(&format!("{rbac}/rolebindings"), &binding).expect(201);
    }
    let ask = |user: &str, path: &str| {
        cluster.user(user, Method::GET, &format!("/api/v1/namespaces/default/pods/p/{path}"), &Value::Null)
    };
    ask("reader", "exec?command=sh").refused(403, "Forbidden", "cannot create resource \"pods/exec\"");
    // Past authorization, the node of this pod is not there.
    ask("maker", "exec?command=sh").refused(404, "NotFound", "nodes \"n1\" not found");
    ask("reader", "log").refused(404, "NotFound", "nodes \"n1\" not found");
}

/// Who may read what a kubelet tells does not run commands there.
#[test]
fn upgrading_at_a_node_takes_the_right_to_create() {
    let cluster = Cluster::new();
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}]);
    let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
    cluster.post("/api/v1/nodes", &node).expect(201);
    for (user, verbs) in [("reader", vec!["get"]), ("maker", vec!["get", "create"])] {
        let rules = json!([{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": verbs}]);
        cluster.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": user}, "rules": rules})).expect(201);
        let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}});
        cluster.post(&format!("{RBAC}/clusterrolebindings"), &binding).expect(201);
    }
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    for (user, headers, want) in [
        ("reader", &upgrade[..0], 200),
        ("reader", &upgrade[..], 403),
        ("maker", &upgrade[..0], 200),
        ("maker", &upgrade[..], 200),
    ] {
        let caller = Caller::new(user, Vec::<String>::new());
        let path = "/api/v1/nodes/n1/proxy/exec/default/p/c?command=sh";
        let reply = cluster.raw(caller, Method::GET, path, headers, Bytes::new());
        assert_eq!(reply.status().as_u16(), want, "{user} {headers:?}");
    }
}

/// Who acts as somebody else for some requests does not make others of them by what they turn out to be.
#[test]
fn who_acts_for_another_has_every_right_that_a_request_takes() {
    let cluster = Cluster::new();
    let allow = |user: &str, rules: &Value| {
        cluster.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": user}, "rules": rules})).expect(201);
        let binding = json!({"metadata": {"name": user}, "subjects": [{"kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}});
        cluster.post(&format!("{RBAC}/clusterrolebindings"), &binding).expect(201);
    };
    let on = |verbs: &[&str]| json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs});
    let of = |verb: &str, group: &str| json!({"apiGroups": [group], "resources": ["users"], "resourceNames": ["jane"], "verbs": [verb]});
    let as_jane = of("impersonate:user-info", "authentication.k8s.io");
    allow("jane", &json!([on(&["patch", "create"])]));
    allow("patcher", &json!([on(&["impersonate-on:user-info:patch"]), as_jane]));
    allow("maker", &json!([on(&["impersonate-on:user-info:patch", "impersonate-on:user-info:create"]), as_jane]));
    allow("any", &json!([of("impersonate", "")]));
    for (user, want) in [("patcher", 403), ("maker", 201), ("any", 201)] {
        let path = format!("/api/v1/namespaces/default/configmaps/{user}?fieldManager=m");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": user}});
        let headers = [("content-type", "application/apply-patch+yaml"), ("impersonate-user", "jane")];
        let caller = Caller::new(user, Vec::<String>::new());
        let reply = cluster.raw(caller, Method::PATCH, &path, &headers, object.to_string().into());
        assert_eq!(reply.status().as_u16(), want, "{user}");
    }
}
