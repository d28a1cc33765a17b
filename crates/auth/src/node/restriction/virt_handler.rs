//! What a virt-handler may write.

use super::{Write, changed_keys, differs, in_domain, text};
use crate::bootstrap::NODE_LEASE_NAMESPACE as LEASES;

/// The one label of KubeVirt's that has no domain: whether the kubelet gives whole CPUs to pods.
const CPU_MANAGER: &str = "cpumanager";

/// A virt-handler writes its own node's KubeVirt labels (one of which has no domain) and annotations, its Lease, and the machines that run,
/// come or go there.
pub(super) fn restrict(node: &str, w: &Write<'_>) -> Result<(), String> {
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
                    !(in_domain(domain, "kubevirt.io") || pointer == "/metadata/labels" && *key == CPU_MANAGER)
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
        ("coordination.k8s.io", "leases") => {
            if w.namespace == LEASES && w.name == node {
                Ok(())
            } else {
                Err(format!("virt-handler of {node:?} is not allowed to modify the lease {}/{}", w.namespace, w.name))
            }
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
