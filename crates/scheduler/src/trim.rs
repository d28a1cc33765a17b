//! Of a pod, what the scheduler looks at. Where no extender is to be shown whole pods, nothing else of them is kept.

use carrack_types::pod::forget_what_nodes_do;
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};

/// Leaves out of a pod what no plugin looks at.
pub fn trim(pod: &mut Pod) {
    pod.metadata.annotations = None;
    pod.metadata.finalizers = None;
    pod.metadata.generate_name = None;
    pod.metadata.self_link = None;
    if let Some(spec) = pod.spec.take() {
        pod.spec = Some(PodSpec {
            affinity: spec.affinity,
            containers: spec.containers,
            host_network: spec.host_network,
            init_containers: spec.init_containers,
            node_name: spec.node_name,
            node_selector: spec.node_selector,
            overhead: spec.overhead,
            preemption_policy: spec.preemption_policy,
            priority: spec.priority,
            resources: spec.resources,
            scheduler_name: spec.scheduler_name,
            scheduling_gates: spec.scheduling_gates,
            tolerations: spec.tolerations,
            topology_spread_constraints: spec.topology_spread_constraints,
            volumes: spec.volumes,
            ..PodSpec::default()
        });
    }
    if let Some(status) = pod.status.take() {
        let mut conditions = status.conditions.unwrap_or_default();
        conditions.retain(|condition| condition.type_ == "PodScheduled");
        pod.status = Some(PodStatus {
            phase: status.phase,
            conditions: (!conditions.is_empty()).then_some(conditions),
            nominated_node_name: status.nominated_node_name,
            start_time: status.start_time,
            ..PodStatus::default()
        });
    }
    forget_what_nodes_do(pod);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PodInfo;
    use crate::tables::Tables;
    use k8s_openapi::api::core::v1::Volume;
    use serde_json::json;
    use std::sync::Arc;

    /// What is known of a pod is the same with less of it.
    #[test]
    fn nothing_that_counts_is_left_out() {
        let object = json!({
            "metadata": {"namespace": "d", "name": "p", "uid": "u", "labels": {"a": "b"}, "annotations": {"x": "y"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": true}]},
            "spec": {
                "priority": 5, "preemptionPolicy": "Never", "nodeSelector": {"n": "m"}, "hostNetwork": true,
                "overhead": {"cpu": "1m"}, "schedulerName": "s", "schedulingGates": [{"name": "g"}],
                "resources": {"requests": {"cpu": "7"}}, "serviceAccountName": "sa", "hostname": "h",
                "tolerations": [{"operator": "Exists"}],
                "topologySpreadConstraints": [{"topologyKey": "k", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "k", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}}],
                "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}},
                    "ports": [{"containerPort": 3, "hostPort": 4}]}],
                "containers": [{"name": "c", "image": "i:1", "env": [{"name": "E", "value": "v"}], "command": ["run"],
                    "ports": [{"containerPort": 1, "hostPort": 2}], "resources": {"limits": {"example.com/x": "3"}}}]},
            "status": {"phase": "Pending", "nominatedNodeName": "n", "startTime": "2026-01-01T00:00:00Z",
                "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}],
                "conditions": [{"type": "PodScheduled", "status": "False"}, {"type": "Ready", "status": "False"}]}});
        let whole: Pod = serde_json::from_value(object).expect("a pod");
        let mut less = whole.clone();
        trim(&mut less);
        assert!(less.metadata.annotations.is_none() && less.spec.as_ref().is_some_and(|s| s.hostname.is_none()));
        assert_eq!(whole.metadata.owner_references, less.metadata.owner_references);
        let mut with_local = whole.clone();
        let local = json!([{"name": "a", "emptyDir": {}}, {"name": "b", "secret": {}}, {"name": "c", "hostPath": {"path": "/"}}]);
        let local: Vec<Volume> = serde_json::from_value(local).expect("volumes");
        with_local.spec.as_mut().and_then(|s| s.volumes.as_mut()).expect("volumes").extend(local);
        trim(&mut with_local);
        assert_eq!(with_local, less, "volumes of the node's own are nothing to the scheduler");
        let status = |pod: &Pod| pod.status.clone().map(|s| (s.phase, s.nominated_node_name, s.start_time));
        assert_eq!(status(&whole), status(&less));
        let mut tables = Tables::default();
        let seen = |pod: &Pod, tables: &mut Tables| {
            let info = PodInfo::new(Arc::new(pod.clone()), tables);
            let spec = info.spec().expect("a spec");
            let others = format!(
                "{:?} {:?} {:?} {:?} {:?}",
                info.nonzero, info.terms, info.only_nodes, spec.scheduling_gates, spec.volumes
            );
            let shape = String::from_utf8_lossy(&info.shape).into_owned();
            (shape, info.requests.clone(), info.host_ports.clone(), info.images.clone(), info.claims.clone(), others)
        };
        assert_eq!(seen(&whole, &mut tables), seen(&less, &mut tables));
    }
}
