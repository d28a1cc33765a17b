//! A whole machine, and changes of a running instance.

use std::collections::BTreeMap;

use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, run_strategy};

use super::{Faults, check_instance_spec};

/// What is wrong with a machine.
pub fn check_machine(vm: &VirtualMachine, settings: &KubeVirtConfiguration, faults: &mut Faults) {
    let spec = &vm.spec;
    match (&spec.run_strategy, spec.running) {
        (Some(_), Some(_)) => faults.invalid(
            "spec.running",
            "Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead",
        ),
        (None, None) => faults.required("spec.running", "One of Running or RunStrategy must be specified"),
        (Some(strategy), None) if !run_strategy::ALL.contains(&strategy.as_str()) => {
            faults.invalid("spec.runStrategy", format!("Invalid RunStrategy ({strategy})"));
        }
        (Some(strategy), None) if strategy == run_strategy::WAIT_AS_RECEIVER => {
            faults.unsupported("spec.runStrategy", "live migration between clusters is not supported");
        }
        _ => {}
    }
    if !spec.data_volume_templates.is_empty() {
        faults.unsupported("spec.dataVolumeTemplates", "is not supported");
    }
    super::instancetype::check_matchers(spec, faults);
    match &spec.template {
        Some(template) => check_instance_spec("spec.template.spec", &template.spec, settings, faults),
        None => faults.required("spec.template", "missing virtual machine template."),
    }
}

/// What is wrong with a change of an instance. Its spec is what its guest was started from and stays so; only the time
/// that the guest gets to shut down may change. Labels of KubeVirt's are for its components.
pub fn check_instance_update(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    by_component: bool,
    faults: &mut Faults,
) {
    let mut allowed = old.spec.clone();
    allowed.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
    if allowed != new.spec {
        faults.unsupported("spec", "update of VMI object is restricted");
    }
    if !by_component && reserved(old.metadata.labels.as_ref()) != reserved(new.metadata.labels.as_ref()) {
        faults.unsupported("metadata.labels", "modification of kubevirt.io/ labels on a VMI object is restricted");
    }
}

/// What is wrong with the labels that somebody gave a new instance.
pub fn check_instance_labels(labels: Option<&BTreeMap<String, String>>, faults: &mut Faults) {
    if !reserved(labels).is_empty() {
        let message = "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited";
        faults.unsupported("metadata.labels", message);
    }
}

/// The labels that only KubeVirt's components may set. Others of the same prefix are people's, such as
/// `kubevirt.io/domain` in every manual.
fn reserved(labels: Option<&BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
    const RESERVED: [&str; 6] = [
        "kubevirt.io/created-by",
        "kubevirt.io/migrationJobUID",
        "kubevirt.io/nodeName",
        "kubevirt.io/migrationTargetNodeName",
        "kubevirt.io/schedulable",
        "kubevirt.io/install-strategy",
    ];
    let labels = labels.into_iter().flatten();
    labels.map(|(k, v)| (k.as_str(), v.as_str())).filter(|(key, _)| RESERVED.contains(key)).collect()
}
