//! Features that a pod needs of its node, and that nodes declare (`status.declaredFeatures`). Shared by the scheduler, which looks
//! for a node that has them, and the kubelet, which says what it has and takes no pod that needs more.
//!
//! Names and what is seen of them in a pod's spec are upstream's (`k8s.io/component-helpers/nodedeclaredfeatures`, KEP-5328). What
//! only a pod's resize may need is no reason to look for another node.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// All containers of a pod may start again together.
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
/// A pod may have the host's network and a user namespace of its own.
pub const USER_NAMESPACES_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";
/// The CPU of a pod that is `Guaranteed` can be resized where it runs.
pub const GUARANTEED_CPU_RESIZE: &str = "GuaranteedQoSPodCPUResize";
/// The resources of a pod as a whole can be resized where it runs.
pub const POD_RESOURCES_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";

/// All that a pod may need of the node that it is given, in the order of names, as the API has them: what a node declares that only
/// pretends.
pub const NEEDED: [&str; 2] = [RESTART_ALL_CONTAINERS, USER_NAMESPACES_ON_HOST_NETWORK];

/// The action of a container's restart rule by which all containers of its pod are started again.
pub const RESTART_ALL: &str = "RestartAllContainers";

/// Whether all containers of its pod may have to be started again with a container's end.
#[must_use]
pub fn may_restart_all(container: &Container) -> bool {
    container.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL)
}

/// What a pod needs of the node that it is given, by name.
#[must_use]
pub fn needed(spec: &PodSpec) -> Vec<&'static str> {
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let of_host = spec.host_network == Some(true);
    let needs = [
        (RESTART_ALL_CONTAINERS, containers.any(may_restart_all)),
        (USER_NAMESPACES_ON_HOST_NETWORK, of_host && spec.host_users == Some(false)),
    ];
    needs.into_iter().filter(|(_, needed)| *needed).map(|(feature, _)| feature).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_pods_need_of_their_node() {
        let check = |spec: Value, expected: &[&str]| {
            let pod: PodSpec = serde_json::from_value(spec.clone()).expect("a spec");
            assert_eq!(needed(&pod), expected, "{spec}");
        };
        let container = |action: &str| {
            json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
                {"action": action, "exitCodes": {"operator": "In", "values": [2]}}]})
        };
        check(json!({"containers": [{"name": "c"}]}), &[]);
        check(json!({"containers": [container("Restart")]}), &[]);
        check(json!({"containers": [container(RESTART_ALL)]}), &[RESTART_ALL_CONTAINERS]);
        let init = json!({"containers": [{"name": "c"}], "initContainers": [container(RESTART_ALL)]});
        check(init, &[RESTART_ALL_CONTAINERS]);
        check(json!({"containers": [], "hostNetwork": true}), &[]);
        check(json!({"containers": [], "hostUsers": false}), &[]);
        check(json!({"containers": [], "hostNetwork": true, "hostUsers": true}), &[]);
        let both = json!({"containers": [container(RESTART_ALL)], "hostNetwork": true, "hostUsers": false});
        check(both, &NEEDED);
        assert!(NEEDED.is_sorted(), "the API takes no others");
    }
}
