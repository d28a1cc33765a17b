//! Writes that rest on other objects than their own.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, Reply, config_map};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

fn send(cluster: &Cluster, caller: &str, method: Method, path: &str, premises: &str, body: &Value) -> Reply {
    let groups: &[&str] = if caller == "admin" { &["system:masters"] } else { &[] };
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let headers = [("content-type", kind), ("carrack-rests-on", premises)];
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    cluster.request(Caller::new(caller, groups.iter().copied()), method, path, &headers, body)
}

fn secret(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[test]
fn a_write_is_made_only_while_its_premises_hold() {
    let cluster = Cluster::new();
    let owner = cluster.post(CONFIG_MAPS, &config_map("owner", "x")).expect(201);
    let meta = |field: &str| owner["metadata"][field].as_str().unwrap_or_default().to_owned();
    let place = json!({"resource": "configmaps", "namespace": "default", "name": "owner"});
    let premise = |more: Value| {
        let mut premise = place.clone();
        for (key, value) in more.as_object().into_iter().flatten() {
            premise[key] = value.clone();
        }
        json!([premise]).to_string()
    };
    let as_read = premise(json!({"uid": meta("uid"), "resourceVersion": meta("resourceVersion")}));
    let alive = premise(json!({"uid": meta("uid")}));
    let another = premise(json!({"uid": "another"}));
    let create = |name: &str, premises: &str| send(&cluster, "admin", Method::POST, SECRETS, premises, &secret(name));
    create("a", &as_read).expect(201);
    create("b", &alive).expect(201);
    let nothing = premise(json!({}));
    for broken in [&another, &nothing] {
        create("c", broken).refused(409, "Conflict", "the request rests on it, and it is not as it was read");
    }
    // The owner moves on.
    cluster.merge(&format!("{CONFIG_MAPS}/owner"), &json!({"data": {"key": "y"}})).expect(200);
    create("c", &as_read).refused(409, "Conflict", "configmaps \"owner\": the request rests on it");
    create("c", &alive).expect(201);
    // Every kind of write.
    let path = format!("{SECRETS}/c");
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    send(&cluster, "admin", Method::PATCH, &path, &as_read, &labelled).refused(409, "Conflict", "rests on it");
    send(&cluster, "admin", Method::PATCH, &path, &alive, &labelled).expect(200);
    let whole = cluster.get(&path).expect(200);
    let mut changed = whole.clone();
    changed["metadata"]["labels"]["a"] = "c".into();
    send(&cluster, "admin", Method::PUT, &path, &as_read, &changed).refused(409, "Conflict", "rests on it");
    send(&cluster, "admin", Method::DELETE, &path, &as_read, &Value::Null).refused(409, "Conflict", "rests on it");
    let dry = format!("{path}?dryRun=All");
    send(&cluster, "admin", Method::DELETE, &dry, &as_read, &Value::Null).refused(409, "Conflict", "rests on it");
    send(&cluster, "admin", Method::DELETE, &dry, &alive, &Value::Null).expect(200);
    assert_eq!(cluster.get(&path).expect(200), whole, "a refused write changes nothing");
    send(&cluster, "admin", Method::DELETE, &path, &alive, &Value::Null).expect(200);
    // And it goes.
    cluster.delete(&format!("{CONFIG_MAPS}/owner")).expect(200);
    create("d", &alive).refused(409, "Conflict", "the request rests on it, and it is not there");
    create("d", &nothing).expect(201);
}

#[test]
fn a_spec_is_told_from_a_status() {
    let cluster = Cluster::new();
    let path = "/apis/apps/v1/namespaces/default/replicasets";
    let set = json!({"metadata": {"name": "s"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = cluster.post(path, &set).expect(201);
    let premises = json!([{"group": "apps", "resource": "replicasets", "namespace": "default", "name": "s",
        "uid": made["metadata"]["uid"], "generation": 1}])
    .to_string();
    let create = |name: &str| send(&cluster, "admin", Method::POST, SECRETS, &premises, &secret(name));
    cluster.merge(&format!("{path}/s/status"), &json!({"status": {"replicas": 1}})).expect(200);
    create("a").expect(201);
    cluster.merge(&format!("{path}/s"), &json!({"spec": {"replicas": 2}})).expect(200);
    create("b").refused(409, "Conflict", "replicasets.apps \"s\"");
}

#[test]
fn premises_that_may_not_be_asked_for() {
    let cluster = Cluster::new();
    let hidden = cluster.post(CONFIG_MAPS, &config_map("hidden", "x")).expect(201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}]);
    cluster.post(&format!("{rbac}/roles"), &json!({"metadata": {"name": "r"}, "rules": rules})).expect(201);
    let binding = json!({"metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    cluster.post(&format!("{rbac}/rolebindings"), &binding).expect(201);
    let premise = |resource: &str, uid: &Value| {
        json!([{"resource": resource, "namespace": "default", "name": "hidden", "uid": uid}]).to_string()
    };
    let jane = |premises: &str| send(&cluster, "jane", Method::POST, SECRETS, premises, &secret("s"));
    // Whether the guess is right or not, nothing is told.
    for uid in [&hidden["metadata"]["uid"], &json!("guess")] {
        jane(&premise("configmaps", uid)).refused(403, "Forbidden", "may not read");
    }
    let admin = |premises: &str| send(&cluster, "admin", Method::POST, SECRETS, premises, &secret("s"));
    admin("no list").refused(400, "BadRequest", "the header carrack-rests-on cannot be read");
    admin(r#"[{"resource":"configmaps","name":"x","what":1}]"#).refused(400, "BadRequest", "cannot be read");
    admin(&premise("nothings", &json!("u"))).refused(400, "BadRequest", "no such kind");
    // A namespaced kind without a namespace.
    admin(r#"[{"resource":"configmaps","name":"x"}]"#).refused(400, "BadRequest", "no such kind");
    let many = json!(vec![json!({"resource": "configmaps", "namespace": "default", "name": "x"}); 65]).to_string();
    admin(&many).refused(400, "BadRequest", "64 objects at most");
    jane("[]").expect(201);
}

/// What was sent in a term that is over is refused: by who led before, and by who leads again.
#[test]
fn a_write_is_made_only_in_the_term_of_its_writer() {
    let cluster = Cluster::new();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let spec = |holder: &str, transitions: i32| json!({"holderIdentity": holder, "leaseTransitions": transitions});
    let lease = cluster.post(leases, &json!({"metadata": {"name": "l"}, "spec": spec("me", 3)})).expect(201);
    let premise = |holder: &str, transitions: i32| {
        json!([{"group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-system", "name": "l",
            "uid": lease["metadata"]["uid"], "term": {"holder": holder, "transitions": transitions}}])
        .to_string()
    };
    let create = |name: &str, premises: &str| send(&cluster, "admin", Method::POST, SECRETS, premises, &secret(name));
    let renew = |spec: Value| cluster.merge(&format!("{leases}/l"), &json!({"spec": spec})).expect(200);
    create("a", &premise("me", 3)).expect(201);
    renew(json!({"renewTime": "2026-01-01T00:00:00.000000Z"}));
    create("b", &premise("me", 3)).expect(201);
    for over in [spec("me", 4), spec("you", 5), spec("", 5)] {
        renew(over.clone());
        create("c", &premise("me", 3)).refused(409, "Conflict", "leases.coordination.k8s.io \"l\"");
        send(&cluster, "admin", Method::DELETE, &format!("{SECRETS}/a"), &premise("me", 3), &Value::Null).refused(
            409,
            "Conflict",
            "rests on it",
        );
    }
    // Bindings, too.
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.post(pods, &pod).expect(201);
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let bind = |premises: &str| send(&cluster, "admin", Method::POST, &format!("{pods}/p/binding"), premises, &binding);
    renew(spec("me", 6));
    bind(&premise("me", 5)).refused(409, "Conflict", "rests on it");
    assert!(cluster.get(&format!("{pods}/p")).expect(200)["spec"]["nodeName"].is_null());
    bind(&premise("me", 6)).expect(201);
    // Not a Lease.
    let owner = cluster.post(CONFIG_MAPS, &config_map("owner", "x")).expect(201);
    let term = json!([{"resource": "configmaps", "namespace": "default", "name": "owner",
        "uid": owner["metadata"]["uid"], "term": {"holder": "me", "transitions": 3}}]);
    create("d", &term.to_string()).refused(409, "Conflict", "rests on it");
}
