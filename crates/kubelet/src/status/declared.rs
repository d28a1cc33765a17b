//! The features that this kubelet declares of its node (`pkg/kubelet/kubelet_node_declared_features.go` and
//! `k8s.io/component-helpers/nodedeclaredfeatures/features`).
//!
//! The scheduler gives pods that need one to no node without it, this kubelet takes none, and the API server lets no pod on it be
//! resized in a way that it does not declare.

use carrack_types::declared::{GUARANTEED_CPU_RESIZE, POD_RESOURCES_RESIZE, RESTART_ALL_CONTAINERS};

use crate::config::NodeConfig;
use crate::cpus::Policy;

/// What is declared, in the order of names, as the API has it.
#[must_use]
pub fn declared(config: &NodeConfig) -> Vec<&'static str> {
    let features = [
        // Who has CPUs of its own keeps them.
        (GUARANTEED_CPU_RESIZE, config.cpus.policy == Policy::None),
        (POD_RESOURCES_RESIZE, true),
        (RESTART_ALL_CONTAINERS, true),
    ];
    features.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::CpuConfig;

    #[test]
    fn what_is_declared_is_what_the_configuration_leaves_possible() {
        for (policy, expected) in [
            (Policy::None, &[GUARANTEED_CPU_RESIZE, POD_RESOURCES_RESIZE, RESTART_ALL_CONTAINERS][..]),
            (Policy::Static, &[POD_RESOURCES_RESIZE, RESTART_ALL_CONTAINERS][..]),
        ] {
            let config = NodeConfig { cpus: CpuConfig { policy, ..CpuConfig::default() }, ..NodeConfig::default() };
            assert_eq!(declared(&config), expected, "{policy:?}");
            assert!(expected.is_sorted(), "the API takes no others");
        }
    }
}
