//! What a hollow node says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiRequest, ContentType, Time};
use carrack_types::declared::NEEDED;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::Config;

/// Namespace of the nodes' Leases.
pub(crate) const LEASES: &str = "kube-node-lease";

/// The address of the node of a number; 172.16.0.0/12 has room for a million.
pub(crate) fn address(number: usize) -> String {
    format!("172.{}.{}.{}", 16 + (number >> 16 & 15), number >> 8 & 255, number & 255)
}

/// The Node to register.
pub(crate) fn node(config: &Config, number: usize, now: Time) -> Node {
    let name = config.name(number);
    let mut labels: BTreeMap<String, String> = [("hostname", &*name), ("os", "linux"), ("arch", "amd64")]
        .map(|(key, value)| (format!("kubernetes.io/{key}"), value.to_owned()))
        .into();
    labels.extend(config.labels.clone());
    let amounts: BTreeMap<String, Quantity> =
        config.allocatable.iter().map(|(k, v)| (k.clone(), Quantity(v.clone()))).collect();
    let conditions = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ];
    // A node that looks for its volumes leaves attaching them to the control plane.
    let annotations = config
        .attentive
        .then(|| [("volumes.kubernetes.io/controller-managed-attach-detach".into(), "true".into())].into());
    Node {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), annotations, ..ObjectMeta::default() },
        spec: None,
        status: Some(NodeStatus {
            addresses: Some(vec![
                NodeAddress { type_: "InternalIP".into(), address: address(number) },
                NodeAddress { type_: "Hostname".into(), address: name },
            ]),
            allocatable: Some(amounts.clone()),
            capacity: Some(amounts),
            conditions: Some(
                conditions
                    .map(|(kind, status, reason)| NodeCondition {
                        type_: kind.into(),
                        status: status.into(),
                        reason: Some(reason.into()),
                        last_heartbeat_time: Some(now.meta()),
                        last_transition_time: Some(now.meta()),
                        message: None,
                    })
                    .into(),
            ),
            // A pod that needs them runs here as well as any other does.
            declared_features: Some(NEEDED.map(str::to_owned).into()),
            node_info: Some(NodeSystemInfo {
                architecture: "amd64".into(),
                operating_system: "linux".into(),
                container_runtime_version: "hollow://1".into(),
                kubelet_version: "hollow".into(),
                os_image: "hollow".into(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}

/// The request by which a node says that it is ready.
pub(crate) fn say_ready(config: &Config, number: usize, now: Time) -> ApiRequest {
    let node = node(config, number, now);
    let conditions = node.status.and_then(|s| s.conditions);
    let patch = json!({"status": {"conditions": conditions}});
    ApiRequest::patch(&Node::resource(), "", &config.name(number), "status", ContentType::MergePatch, &patch)
}

/// A Lease of a node, made now.
pub(crate) fn lease(namespace: &str, node: String, duration: Duration, now: Time) -> Lease {
    Lease {
        metadata: ObjectMeta { name: Some(node.clone()), namespace: Some(namespace.into()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(node),
            lease_duration_seconds: i32::try_from(duration.as_secs()).ok(),
            renew_time: Some(now.meta_micro()),
            ..LeaseSpec::default()
        }),
    }
}

/// The request that renews it.
pub(crate) fn renewal(namespace: &str, node: &str, now: Time) -> ApiRequest {
    let patch = json!({"spec": {"renewTime": now.rfc3339_micros()}});
    ApiRequest::patch(&Lease::resource(), namespace, node, "", ContentType::MergePatch, &patch)
}

#[cfg(test)]
mod tests {
    use carrack_types::declared::needed;
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    /// The scheduler gives such a pod to no node that does not declare what it needs.
    #[test]
    fn whatever_a_pod_needs_is_declared() {
        let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
        let container = json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [rule]});
        let pod = json!({"containers": [container], "hostNetwork": true, "hostUsers": false});
        let pod: PodSpec = serde_json::from_value(pod).expect("a spec");
        let hollow = node(&Config::default(), 0, Time::default());
        let declared = hollow.status.and_then(|status| status.declared_features).unwrap_or_default();
        let needs = needed(&pod);
        assert!(needs.len() > 1 && needs.iter().all(|need| declared.iter().any(|has| has == need)), "{declared:?}");
    }
}
