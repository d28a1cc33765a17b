use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;
use crate::pki::{SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING, Sans, Subject, new_key, new_request};

struct Case<'a> {
    name: &'a str,
    operation: Operation,
    resource: (&'a str, &'a str, &'a str),
    object: Value,
    stored: Value,
    allowed: bool,
}

fn check(caller: &Caller, case: &Case<'_>) {
    let either = if case.object.is_null() { &case.stored } else { &case.object };
    let write = Write {
        operation: case.operation,
        group: case.resource.0,
        resource: case.resource.1,
        subresource: case.resource.2,
        namespace: text(Some(either), "/metadata/namespace"),
        name: text(Some(either), "/metadata/name"),
        object: Some(&case.object).filter(|o| !o.is_null()),
        stored: Some(&case.stored).filter(|o| !o.is_null()),
    };
    let got = restrict(caller, &write);
    assert_eq!(got.is_ok(), case.allowed, "{}: {got:?}", case.name);
}

fn mirror(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {
            "name": "static", "namespace": "kube-system",
            "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": true}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}], "volumes": [{"name": "h", "hostPath": {"path": "/x"}}]},
    });
    change(&mut pod);
    pod
}

#[test]
fn kubelets() {
    use Operation::{Create, Delete, Update};
    let node = |name: &str, labels: Value, taints: Value| json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    let on = |n: &str, label: &str| json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pu", "labels": {"a": label}}, "spec": {"nodeName": n}});
    let lease = |ns: &str, name: &str| json!({"metadata": {"name": name, "namespace": ns}});
    let token = |uid: &str| json!({"metadata": {"namespace": "ns"}, "spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}}});
    let owned = |name: &str| json!({"metadata": {"name": name, "ownerReferences": [{"kind": "Node", "name": "gone"}]}});
    let request = |signer: &str, node: &str| {
        let subject = Subject::kubelet(node, Sans::default());
        let pem = new_request(&new_key().expect("a key"), &subject).expect("a request");
        json!({"spec": {"signerName": signer, "request": STANDARD.encode(pem)}})
    };
    let requests = ("certificates.k8s.io", "certificatesigningrequests", "");
    let none = Value::Null;
    let pods = ("", "pods", "");
    let cases = [
        ("mirror pod", Create, pods, mirror(|_| {}), none.clone(), true),
        (
            "no mirror annotation",
            Create,
            pods,
            mirror(|p| p["metadata"]["annotations"] = json!({})),
            none.clone(),
            false,
        ),
        ("mirror pod elsewhere", Create, pods, mirror(|p| p["spec"]["nodeName"] = json!("n2")), none.clone(), false),
        (
            "mirror pod without owner",
            Create,
            pods,
            mirror(|p| p["metadata"]["ownerReferences"] = json!([])),
            none.clone(),
            false,
        ),
        (
            "mirror pod of another node",
            Create,
            pods,
            mirror(|p| p["metadata"]["ownerReferences"][0]["name"] = json!("n2")),
            none.clone(),
            false,
        ),
        (
            "mirror pod with a secret",
            Create,
            pods,
            mirror(|p| p["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": "x"}}])),
            none.clone(),
            false,
        ),
        (
            "mirror pod with an env secret",
            Create,
            pods,
            mirror(|p| p["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "x"}}])),
            none.clone(),
            false,
        ),
        (
            "mirror pod with an account",
            Create,
            pods,
            mirror(|p| p["spec"]["serviceAccountName"] = json!("x")),
            none.clone(),
            false,
        ),
        ("update of a pod", Update, pods, on("n1", "x"), on("n1", "x"), false),
        ("delete own", Delete, pods, none.clone(), on("n1", "x"), true),
        ("delete another's", Delete, pods, none.clone(), on("n2", "x"), false),
        ("own status", Update, ("", "pods", "status"), on("n1", "x"), on("n1", "x"), true),
        ("own status with labels", Update, ("", "pods", "status"), on("n1", "y"), on("n1", "x"), false),
        ("another's status", Update, ("", "pods", "status"), on("n2", "x"), on("n2", "x"), false),
        ("claims another's status", Update, ("", "pods", "status"), on("n1", "x"), on("n2", "x"), false),
        ("evict own", Create, ("", "pods", "eviction"), on("", ""), on("n1", "x"), true),
        ("evict another's", Create, ("", "pods", "eviction"), on("", ""), on("n2", "x"), false),
        ("exec", Create, ("", "pods", "exec"), on("n1", "x"), on("n1", "x"), false),
        (
            "register",
            Create,
            ("", "nodes", ""),
            node("n1", json!({"kubernetes.io/hostname": "n1"}), json!([{"key": "k"}])),
            none.clone(),
            true,
        ),
        ("register another", Create, ("", "nodes", ""), node("n2", json!({}), json!([])), none.clone(), false),
        (
            "register with a restricted label",
            Create,
            ("", "nodes", ""),
            node("n1", json!({"node-restriction.kubernetes.io/x": "y"}), json!([])),
            none.clone(),
            false,
        ),
        (
            "a role label",
            Update,
            ("", "nodes", ""),
            node("n1", json!({"node-role.kubernetes.io/x": ""}), json!([])),
            node("n1", json!({}), json!([])),
            false,
        ),
        (
            "a look-alike label",
            Update,
            ("", "nodes", ""),
            node("n1", json!({"mykubernetes.io/x": ""}), json!([])),
            node("n1", json!({}), json!([])),
            true,
        ),
        (
            "kept role label",
            Update,
            ("", "nodes", ""),
            node("n1", json!({"node-role.kubernetes.io/x": ""}), Value::Null),
            node("n1", json!({"node-role.kubernetes.io/x": ""}), json!([])),
            true,
        ),
        (
            "taints",
            Update,
            ("", "nodes", ""),
            node("n1", json!({}), json!([])),
            node("n1", json!({}), json!([{"key": "k"}])),
            false,
        ),
        ("an owner", Update, ("", "nodes", ""), owned("n1"), node("n1", json!({}), json!([])), false),
        ("an owner by its status", Update, ("", "nodes", "status"), owned("n1"), json!({}), false),
        ("no owner any more", Update, ("", "nodes", ""), node("n1", json!({}), json!([])), owned("n1"), false),
        ("an owner that was there", Update, ("", "nodes", ""), owned("n1"), owned("n1"), true),
        ("own serving certificate", Create, requests, request(SIGNER_KUBELET_SERVING, "n1"), none.clone(), true),
        ("own client certificate", Create, requests, request(SIGNER_KUBELET_CLIENT, "n1"), none.clone(), true),
        ("another's serving certificate", Create, requests, request(SIGNER_KUBELET_SERVING, "n2"), none.clone(), false),
        ("another's client certificate", Create, requests, request(SIGNER_KUBELET_CLIENT, "n2"), none.clone(), false),
        ("a certificate of another signer", Create, requests, request("example.com/x", "n2"), none.clone(), true),
        (
            "no request for a certificate",
            Create,
            requests,
            json!({"spec": {"signerName": SIGNER_KUBELET_SERVING, "request": "eA=="}}),
            none.clone(),
            false,
        ),
        ("lease", Create, ("coordination.k8s.io", "leases", ""), lease("kube-node-lease", "n1"), none.clone(), true),
        (
            "another's lease",
            Update,
            ("coordination.k8s.io", "leases", ""),
            lease("kube-node-lease", "n2"),
            lease("kube-node-lease", "n2"),
            false,
        ),
        (
            "lease elsewhere",
            Create,
            ("coordination.k8s.io", "leases", ""),
            lease("kube-system", "n1"),
            none.clone(),
            false,
        ),
        ("token of own pod", Create, ("", "serviceaccounts", "token"), token("pu"), on("n1", "x"), true),
        ("token of another's pod", Create, ("", "serviceaccounts", "token"), token("pu"), on("n2", "x"), false),
        ("token of an older pod", Create, ("", "serviceaccounts", "token"), token("old"), on("n1", "x"), false),
        ("token without uid", Create, ("", "serviceaccounts", "token"), token(""), on("n1", "x"), false),
        ("token of a pod that is gone", Create, ("", "serviceaccounts", "token"), token("pu"), none.clone(), false),
        (
            "unbound token",
            Create,
            ("", "serviceaccounts", "token"),
            json!({"metadata": {}, "spec": {}}),
            none.clone(),
            false,
        ),
        ("event", Create, ("", "events", ""), json!({"metadata": {"name": "e"}}), none, true),
    ];
    for (name, operation, resource, object, stored, allowed) in cases {
        check(&Caller::node("n1"), &Case { name, operation, resource, object, stored, allowed });
    }
}

#[test]
fn virt_handlers() {
    use Operation::Update;
    let node = |name: &str, key: &str| json!({"metadata": {"name": name, "labels": {key: "x"}, "annotations": {key: "x"}}, "spec": {}});
    let labels = |key: &str| json!({"metadata": {"name": "n1", "labels": {key: "x"}}, "spec": {}});
    let plain = json!({"metadata": {"name": "n1"}, "spec": {}});
    let vmi = |n: &str| json!({"metadata": {"name": "vm", "namespace": "ns"}, "status": {"nodeName": n}});
    let vmis = ("kubevirt.io", "virtualmachineinstances", "");
    let cases = [
        ("own label", ("", "nodes", ""), node("n1", "kubevirt.io/schedulable"), plain.clone(), true),
        (
            "own label in a sub-domain",
            ("", "nodes", ""),
            node("n1", "cpu-model.node.kubevirt.io/x"),
            plain.clone(),
            true,
        ),
        ("foreign label", ("", "nodes", ""), node("n1", "kubernetes.io/hostname"), plain.clone(), false),
        ("label without a domain", ("", "nodes", ""), node("n1", "gpu"), plain.clone(), false),
        ("the label of CPUs", ("", "nodes", ""), labels("cpumanager"), plain.clone(), true),
        ("an annotation of its name", ("", "nodes", ""), node("n1", "cpumanager"), plain.clone(), false),
        (
            "another node",
            ("", "nodes", ""),
            node("n2", "kubevirt.io/schedulable"),
            json!({"metadata": {"name": "n2"}}),
            false,
        ),
        ("spec", ("", "nodes", ""), json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": true}}), plain, false),
        ("machine here", vmis, vmi("n1"), vmi("n1"), true),
        ("machine elsewhere", vmis, vmi("n1"), vmi("n2"), false),
        (
            "migration target",
            vmis,
            vmi("n2"),
            json!({"status": {"nodeName": "n2", "migrationState": {"targetNode": "n1"}}}),
            true,
        ),
    ];
    for (name, resource, object, stored, allowed) in cases {
        check(&Caller::virt_handler("n1"), &Case { name, operation: Update, resource, object, stored, allowed });
    }
}

#[test]
fn others_are_not_restricted() {
    let case = Case {
        name: "an administrator",
        operation: Operation::Update,
        resource: ("", "nodes", ""),
        object: json!({"metadata": {"name": "n2"}, "spec": {"taints": [{"key": "k"}]}}),
        stored: json!({"metadata": {"name": "n2"}}),
        allowed: true,
    };
    check(&Caller::new("system:admin", ["system:masters"]), &case);
}
