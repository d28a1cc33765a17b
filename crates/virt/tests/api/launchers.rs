//! Who may say of a pod that it is the launcher of an instance, and that it is none any more.

use super::*;

const PODS: &str = "/api/v1/namespaces/default/pods";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// A cluster with an instance and its UID, in which bob and garbage collectors may do everything that admission lets them do.
fn cluster() -> (Cluster, String) {
    let cluster = Cluster::new();
    let subjects = ["bob", "system:kube-controller-manager", COLLECTOR]
        .map(|name| json!({"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}));
    let rights = json!({"metadata": {"name": "all"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    cluster.admin(Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rights, 201);
    let account = json!({"metadata": {"name": "default"}});
    cluster.admin(Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account, 201);
    let made = cluster.admin(Method::POST, VMIS, &vmi(), 201);
    let uid = made["metadata"]["uid"].as_str().expect("it has a UID").to_owned();
    (cluster, uid)
}

fn owner(kind: &str, uid: &str, controls: bool) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "name": "demo", "uid": uid, "controller": controls})
}

fn pod(name: &str, owner: &Value) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [owner]}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[track_caller]
fn by(cluster: &Cluster, user: &str, method: Method, path: &str, body: &Value, code: u16) {
    let none: [&str; 0] = [];
    let (got, reply) = cluster.call(Caller::new(user, none), method, path, body);
    assert_eq!(got, code, "{user} {path}: {reply}");
}

#[test]
fn launchers_are_made_by_components() {
    let (cluster, uid) = cluster();
    let by = |user: &str, method: Method, path: &str, body: &Value, code: u16| {
        by(&cluster, user, method, path, body, code);
    };
    let launcher = |name: &str| pod(name, &owner("VirtualMachineInstance", &uid, true));
    by("bob", Method::POST, PODS, &launcher("a"), 403);
    by("bob", Method::POST, PODS, &pod("a", &owner("VirtualMachineInstance", &uid, false)), 201);
    by("bob", Method::POST, PODS, &pod("b", &owner("VirtualMachine", &uid, true)), 201);
    let adopt = json!({"metadata": launcher("a")["metadata"]});
    by("bob", Method::PATCH, &format!("{PODS}/a"), &adopt, 403);
    by(COLLECTOR, Method::PATCH, &format!("{PODS}/a"), &adopt, 403);
    by(USER_VIRT_CONTROLLER, Method::POST, PODS, &launcher("c"), 201);
    by("bob", Method::PATCH, &format!("{PODS}/c"), &json!({"metadata": {"labels": {"a": "b"}}}), 200);
}

#[test]
fn launchers_stay_those_of_their_instances() {
    let (cluster, uid) = cluster();
    let instance = |uid: &str, controls: bool| owner("VirtualMachineInstance", uid, controls);
    let mut renamed = instance(&uid, true);
    renamed["name"] = "other".into();
    let further = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "more", "uid": "m"});
    let cases = [
        ("none", json!(null), [403, 200]),
        ("no more", json!([]), [403, 200]),
        ("not its controller's", json!([instance(&uid, false)]), [403, 200]),
        ("another's", json!([instance("another", true)]), [403, 403]),
        ("under another name", json!([renamed]), [403, 403]),
        ("another kind's", json!([owner("VirtualMachine", &uid, true)]), [403, 200]),
        ("another's, too", json!([instance(&uid, true), further]), [200, 200]),
    ];
    for (index, (what, owners, [others, collectors])) in cases.into_iter().enumerate() {
        let change = json!({"metadata": {"ownerReferences": owners}});
        let callers = [("bob", others), ("system:kube-controller-manager", collectors), (COLLECTOR, collectors)];
        for (turn, (user, code)) in callers.into_iter().enumerate() {
            let name = format!("launcher-{index}-{turn}");
            let launcher = pod(&name, &instance(&uid, true));
            by(&cluster, USER_VIRT_CONTROLLER, Method::POST, PODS, &launcher, 201);
            let (got, reply) = cluster.call(
                Caller::new(user, Vec::<String>::new()),
                Method::PATCH,
                &format!("{PODS}/{name}"),
                &change,
            );
            assert_eq!(got, code, "{what} by {user}: {reply}");
        }
    }
    // A pod that is nobody's launcher has any owners.
    by(&cluster, "bob", Method::POST, PODS, &pod("free", &owner("VirtualMachine", &uid, true)), 201);
    by(&cluster, "bob", Method::PATCH, &format!("{PODS}/free"), &json!({"metadata": {"ownerReferences": null}}), 200);
}
