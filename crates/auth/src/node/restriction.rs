//! Admission that keeps node agents to what is theirs, where that depends on the request's content.
//!
//! Kubelets: upstream's `NodeRestriction`. virt-handlers: what KubeVirt does with a
//! ValidatingAdmissionPolicy on nodes and a webhook on VirtualMachineInstances.

use std::collections::BTreeSet;

use serde_json::Value;

use super::graph::MIRROR_POD_ANNOTATION;
use crate::caller::Caller;

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created, or a subresource is posted to.
    Create,
    /// It is updated or patched.
    Update,
    /// It is deleted.
    Delete,
}

/// A write, as admission sees it.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// What is done.
    pub operation: Operation,
    /// API group.
    pub group: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty.
    pub namespace: &'a str,
    /// The object's name; for a create the one in the object.
    pub name: &'a str,
    /// What is sent (after patches were applied); none for a delete.
    pub object: Option<&'a Value>,
    /// The stored object. For `pods/eviction` the pod; for `serviceaccounts/token` the pod that the
    /// token is to be bound to, if there is one.
    pub stored: Option<&'a Value>,
}

/// May this node agent make the write? Callers that are none may, as far as this is concerned.
///
/// # Errors
/// The sentence for the 403.
pub fn restrict(caller: &Caller, write: &Write<'_>) -> Result<(), String> {
    if let Some(node) = caller.node_name() {
        return kubelet(node, write);
    }
    if let Some(node) = caller.virt_handler_node() {
        return virt_handler(node, write);
    }
    Ok(())
}

fn text<'a>(value: Option<&'a Value>, pointer: &str) -> &'a str {
    value.and_then(|v| v.pointer(pointer)).and_then(Value::as_str).unwrap_or_default()
}

fn kubelet(node: &str, w: &Write<'_>) -> Result<(), String> {
    match (w.group, w.resource, w.subresource) {
        ("", "pods", "") => pod(node, w),
        ("", "pods", "status") => pod_status(node, w),
        ("", "pods", "eviction") => {
            if text(w.stored, "/spec/nodeName") == node {
                Ok(())
            } else {
                Err(format!("node {node} can only evict pods with spec.nodeName set to itself"))
            }
        }
        ("", "pods", other) => {
            Err(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))
        }
        ("", "nodes", _) => own_node(node, w),
        ("", "persistentvolumeclaims", "status") => claim_status(node, w),
        ("", "persistentvolumeclaims", _) => Err("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") => token(node, w),
        ("coordination.k8s.io", "leases", _) => {
            if w.namespace != "kube-node-lease" {
                return Err("can only access leases in the \"kube-node-lease\" system namespace".into());
            }
            same_name(node, w, "node lease")
        }
        ("storage.k8s.io", "csinodes", _) => same_name(node, w, "CSINode"),
        ("resource.k8s.io", "resourceslices", _) => {
            let either = w.object.or(w.stored);
            let stored_is_ours = w.stored.is_none_or(|s| text(Some(s), "/spec/nodeName") == node);
            if text(either, "/spec/nodeName") == node && stored_is_ours {
                Ok(())
            } else {
                Err("can only create or change a ResourceSlice with its node name set to the requesting node".into())
            }
        }
        _ => Ok(()),
    }
}

fn same_name(node: &str, w: &Write<'_>, what: &str) -> Result<(), String> {
    if w.name == node {
        Ok(())
    } else {
        Err(format!("can only access {what} with the same name as the requesting node"))
    }
}

fn pod(node: &str, w: &Write<'_>) -> Result<(), String> {
    match w.operation {
        Operation::Delete => {
            if text(w.stored, "/spec/nodeName") == node {
                Ok(())
            } else {
                Err(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
        }
        Operation::Create => mirror_pod(node, w),
        Operation::Update => {
            Err(format!("unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"))
        }
    }
}

/// A node creates mirror pods only, bound to and owned by itself, that refer to nothing else.
fn mirror_pod(node: &str, w: &Write<'_>) -> Result<(), String> {
    let pod = w.object;
    let annotations = pod.and_then(|p| p.pointer("/metadata/annotations"));
    if annotations.and_then(|a| a.get(MIRROR_POD_ANNOTATION)).is_none() {
        return Err(format!(
            "pod does not have {MIRROR_POD_ANNOTATION:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod
        .and_then(|p| p.pointer("/metadata/ownerReferences"))
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let [owner] = owners else {
        return Err(format!("node {node:?} can only create pods with a single owner reference set to itself"));
    };
    let owner = Some(owner);
    let itself = text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Node" && text(owner, "/name") == node;
    if !itself {
        return Err(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    let flag = |name: &str| owner.and_then(|o| o.get(name)).and_then(Value::as_bool);
    if flag("controller") != Some(true) {
        return Err(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if flag("blockOwnerDeletion") == Some(true) {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    if let Some(kind) = refers_to(pod.and_then(|p| p.get("spec")).unwrap_or(&Value::Null)) {
        return Err(format!("node {node:?} can not create pods that reference {kind}"));
    }
    Ok(())
}

/// What a pod's spec refers to that a mirror pod must not. Any field of these names counts, wherever
/// it stands: here it is safe to see too much.
fn refers_to(spec: &Value) -> Option<&'static str> {
    const FIELDS: [(&str, &str); 15] = [
        ("serviceAccountName", "a service account"),
        ("serviceAccount", "a service account"),
        ("imagePullSecrets", "secrets"),
        ("secret", "secrets"),
        ("secretRef", "secrets"),
        ("secretName", "secrets"),
        ("secretKeyRef", "secrets"),
        ("nodePublishSecretRef", "secrets"),
        ("configMap", "configmaps"),
        ("configMapRef", "configmaps"),
        ("configMapKeyRef", "configmaps"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("resourceClaims", "resourceclaims"),
    ];
    match spec {
        Value::Object(map) => map.iter().find_map(|(key, value)| {
            let empty = value.is_null()
                || value.as_str().is_some_and(str::is_empty)
                || value.as_array().is_some_and(Vec::is_empty);
            FIELDS.iter().find(|(field, _)| !empty && field == key).map(|(_, kind)| *kind).or_else(|| refers_to(value))
        }),
        Value::Array(items) => items.iter().find_map(refers_to),
        _ => None,
    }
}

fn pod_status(node: &str, w: &Write<'_>) -> Result<(), String> {
    if w.operation != Operation::Update {
        return Err("unexpected operation".to_owned());
    }
    if text(w.stored, "/spec/nodeName") != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    if differs(w, "/metadata/labels") {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    if differs(w, "/status/resourceClaimStatuses") {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    Ok(())
}

/// Whether a field is changed. Absent, null and empty are the same.
fn differs(w: &Write<'_>, pointer: &str) -> bool {
    let field = |value: Option<&'_ Value>| {
        value.and_then(|v| v.pointer(pointer)).cloned().filter(|v| match v {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        })
    };
    field(w.object) != field(w.stored)
}

fn own_node(node: &str, w: &Write<'_>) -> Result<(), String> {
    if w.name != node {
        return Err(format!("node {node:?} is not allowed to modify node {:?}", w.name));
    }
    match w.operation {
        Operation::Create => {
            let forbidden = forbidden_labels(w);
            if forbidden.is_empty() {
                Ok(())
            } else {
                Err(format!("node {node:?} is not allowed to set the following labels: {}", forbidden.join(", ")))
            }
        }
        Operation::Update => {
            if differs(w, "/spec/taints") {
                return Err(format!("node {node:?} is not allowed to modify taints"));
            }
            let forbidden = forbidden_labels(w);
            if forbidden.is_empty() {
                Ok(())
            } else {
                Err(format!("is not allowed to modify labels: {}", forbidden.join(", ")))
            }
        }
        Operation::Delete => Ok(()),
    }
}

/// The keys under `pointer` whose values are added, changed or removed.
fn changed_keys(w: &Write<'_>, pointer: &str) -> BTreeSet<String> {
    let map = |value: Option<&'_ Value>| {
        value.and_then(|v| v.pointer(pointer)).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (new, old) = (map(w.object), map(w.stored));
    new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key)).cloned().collect()
}

/// Labels that a kubelet must not set: those that pin workloads to chosen nodes, and those of
/// Kubernetes' own domains that are not the kubelet's.
fn forbidden_labels(w: &Write<'_>) -> Vec<String> {
    changed_keys(w, "/metadata/labels").into_iter().filter(|key| !kubelet_may_label(key)).collect()
}

fn in_domain(domain: &str, of: &str) -> bool {
    domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'))
}

fn kubelet_may_label(key: &str) -> bool {
    const OWN: [&str; 13] = [
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.kubernetes.io/region",
        "failure-domain.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    ];
    let Some((domain, _)) = key.split_once('/') else {
        return true;
    };
    if in_domain(domain, "node-restriction.kubernetes.io") {
        return false;
    }
    if !in_domain(domain, "kubernetes.io") && !in_domain(domain, "k8s.io") {
        return true;
    }
    OWN.contains(&key) || in_domain(domain, "kubelet.kubernetes.io") || in_domain(domain, "node.kubernetes.io")
}

fn claim_status(node: &str, w: &Write<'_>) -> Result<(), String> {
    let neutral = |value: Option<&Value>| {
        let mut value = value.cloned().unwrap_or_default();
        if let Some(metadata) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        if let Some(status) = value.pointer_mut("/status").and_then(Value::as_object_mut) {
            for field in ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"] {
                status.remove(field);
            }
        }
        value
    };
    if w.operation == Operation::Update && neutral(w.object) == neutral(w.stored) {
        Ok(())
    } else {
        Err(format!("node {node:?} is not allowed to update fields other than status.capacity and status.conditions"))
    }
}

/// A node gets tokens for its own pods only, bound to them.
fn token(node: &str, w: &Write<'_>) -> Result<(), String> {
    if w.operation != Operation::Create {
        return Ok(());
    }
    let bound = w.object.and_then(|o| o.pointer("/spec/boundObjectRef"));
    let to_pod =
        text(bound, "/apiVersion") == "v1" && text(bound, "/kind") == "Pod" && !text(bound, "/name").is_empty();
    if !to_pod {
        return Err("node requested token not bound to a pod".to_owned());
    }
    let uid = text(bound, "/uid");
    if uid.is_empty() {
        return Err("node requested token with a pod binding without a uid".to_owned());
    }
    let stored_is_it = text(w.stored, "/metadata/name") == text(bound, "/name")
        && text(w.stored, "/metadata/namespace") == w.namespace;
    if !stored_is_it || text(w.stored, "/metadata/uid") != uid {
        return Err(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        ));
    }
    if text(w.stored, "/spec/nodeName") != node {
        return Err("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    Ok(())
}

/// A virt-handler writes its own node's KubeVirt labels and annotations, and the machines that run,
/// come or go there.
fn virt_handler(node: &str, w: &Write<'_>) -> Result<(), String> {
    match (w.group, w.resource) {
        ("", "nodes") => {
            if w.name != node {
                return Err(format!("virt-handler of {node:?} is not allowed to modify node {:?}", w.name));
            }
            if differs(w, "/spec") {
                return Err(format!("virt-handler of {node:?} is not allowed to modify the node's spec"));
            }
            for pointer in ["/metadata/labels", "/metadata/annotations"] {
                let foreign = changed_keys(w, pointer).into_iter().find(|key| {
                    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                    !in_domain(domain, "kubevirt.io")
                });
                if let Some(key) = foreign {
                    return Err(format!("virt-handler of {node:?} is not allowed to modify {key:?}"));
                }
            }
            for pointer in ["/metadata/finalizers", "/metadata/ownerReferences"] {
                if differs(w, pointer) {
                    return Err(format!("virt-handler of {node:?} is not allowed to modify {pointer}"));
                }
            }
            Ok(())
        }
        ("kubevirt.io", "virtualmachineinstances") => {
            let places = ["/status/nodeName", "/status/migrationState/sourceNode", "/status/migrationState/targetNode"];
            if places.iter().any(|place| text(w.stored, place) == node) {
                Ok(())
            } else {
                Err(format!("Node restriction, virt-handler of {node:?} can only modify VMIs it owns"))
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            (
                "mirror pod elsewhere",
                Create,
                pods,
                mirror(|p| p["spec"]["nodeName"] = json!("n2")),
                none.clone(),
                false,
            ),
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
            (
                "lease",
                Create,
                ("coordination.k8s.io", "leases", ""),
                lease("kube-node-lease", "n1"),
                none.clone(),
                true,
            ),
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
            (
                "another node",
                ("", "nodes", ""),
                node("n2", "kubevirt.io/schedulable"),
                json!({"metadata": {"name": "n2"}}),
                false,
            ),
            (
                "spec",
                ("", "nodes", ""),
                json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": true}}),
                plain,
                false,
            ),
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
}
