//! Where an instance is to run: what its pod could not be made with is refused with the machine.

use carrack_schema::{table, validate};
use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use serde_json::json;

use super::Faults;

/// What the rules of pods say of an instance's affinity and of how instances are spread. (Upstream: `validateSpecAffinity` and
/// `validateSpecTopologySpreadConstraints` in the admitter of instances.)
pub(super) fn check(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    if spec.affinity.is_none() && spec.topology_spread_constraints.is_empty() {
        return;
    }
    let Some(pods) = table::find("", "pods") else { return };
    let pod = json!({"spec": {
        "affinity": spec.affinity, "topologySpreadConstraints": spec.topology_spread_constraints}});
    for error in validate::create(pods, "v1", &pod) {
        // The rest of the pod is not the user's.
        let Some(path) = error.path.strip_prefix("spec.") else { continue };
        if path.starts_with("affinity.") || path.starts_with("topologySpreadConstraints[") {
            faults.invalid(format!("{field}.{path}"), error.message());
        }
    }
}
