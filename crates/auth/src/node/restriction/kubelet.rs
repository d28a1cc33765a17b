//! What a kubelet may write (upstream's `plugin/pkg/admission/noderestriction`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Operation, Write, changed_keys, differs, in_domain, text};
use crate::caller::NODE_USER_PREFIX;
use crate::node::graph::MIRROR_POD_ANNOTATION;
use crate::pki::{SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING, read_request};

/// May the kubelet of `node` make the write?
pub(super) fn restrict(node: &str, w: &Write<'_>) -> Result<(), String> {
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
        ("certificates.k8s.io", "certificatesigningrequests", "") => certificate_request(node, w),
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
            // Else it could give itself an owner that is not there, and be gone with it, taints and labels too.
            if differs(w, "/metadata/ownerReferences") {
                return Err(format!("node {node:?} is not allowed to modify ownerReferences"));
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

/// Labels that a kubelet must not set: those that pin workloads to chosen nodes, and those of
/// Kubernetes' own domains that are not the kubelet's.
fn forbidden_labels(w: &Write<'_>) -> Vec<String> {
    changed_keys(w, "/metadata/labels").into_iter().filter(|key| !kubelet_may_label(key)).collect()
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

/// A node asks for certificates of kubelets in its own name only (`admitCSR`).
fn certificate_request(node: &str, w: &Write<'_>) -> Result<(), String> {
    let signer = text(w.object, "/spec/signerName");
    if w.operation != Operation::Create || ![SIGNER_KUBELET_CLIENT, SIGNER_KUBELET_SERVING].contains(&signer) {
        return Ok(());
    }
    let pem = STANDARD.decode(text(w.object, "/spec/request")).unwrap_or_default();
    let facts = read_request(&pem).map_err(|why| format!("unable to parse csr: {why}"))?;
    let user = format!("{NODE_USER_PREFIX}{node}");
    if facts.common_name == user { Ok(()) } else { Err(format!("can only create a node CSR with CN={user}")) }
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
