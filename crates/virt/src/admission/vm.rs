//! A whole machine, a set of instances, and changes of a running instance.

use carrack_types::kubevirt::others::{KubeVirtConfiguration, VirtualMachineInstanceReplicaSet};
use carrack_types::kubevirt::vm::VirtualMachineInstanceTemplateSpec;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineSpec, run_strategy};
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;

use super::{Faults, check_instance_spec, complete_instance, metadata};

/// What is wrong with a machine.
pub fn check_machine(vm: &VirtualMachine, settings: &KubeVirtConfiguration, by_component: bool, faults: &mut Faults) {
    check_strategy(&vm.spec, faults);
    super::instancetype::check_matchers(&vm.spec, faults);
    super::data_volumes::check(vm.namespace(), &vm.spec, faults);
    check_template(vm.spec.template.as_ref(), settings, by_component, faults);
}

/// What is wrong with a machine besides that which its instances are made from.
pub(super) fn check_strategy(spec: &VirtualMachineSpec, faults: &mut Faults) {
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
}

/// What is wrong with a set of instances.
pub fn check_replica_set(
    set: &VirtualMachineInstanceReplicaSet,
    settings: &KubeVirtConfiguration,
    by_component: bool,
    faults: &mut Faults,
) {
    check_template(set.spec.template.as_ref(), settings, by_component, faults);
    let Some(template) = &set.spec.template else { return };
    let labels = template.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
    if !selects(&set.spec.selector, labels) {
        faults.invalid("spec.selector", "selector does not match labels.");
    }
}

/// What is wrong with what instances are to be made from. What they are completed with is judged along, as upstream's webhook for
/// machines does: who says nothing of networks, for example, is on the pod network, where probes reach a guest.
fn check_template(
    template: Option<&VirtualMachineInstanceTemplateSpec>,
    settings: &KubeVirtConfiguration,
    by_component: bool,
    faults: &mut Faults,
) {
    let Some(template) = template else {
        return faults.required("spec.template", "missing virtual machine template.");
    };
    if let Some(meta) = &template.metadata {
        metadata::check("spec.template.metadata", meta, by_component, faults);
    }
    let mut spec = template.spec.clone();
    complete_instance(&mut spec, settings, String::new);
    check_instance_spec("spec.template.spec", &spec, settings, faults);
}

/// What is wrong with a change of an instance. Its spec is what its guest was started from and stays so; only the time
/// that the guest gets to shut down may change, and where it is to run, by its machine. Labels of KubeVirt's are for its components.
pub fn check_instance_update(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    by_component: bool,
    faults: &mut Faults,
) {
    let mut allowed = old.spec.clone();
    allowed.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
    if by_component {
        // A machine's template hands these on to what runs.
        allowed.node_selector.clone_from(&new.spec.node_selector);
        allowed.affinity.clone_from(&new.spec.affinity);
        allowed.tolerations.clone_from(&new.spec.tolerations);
    }
    if allowed != new.spec {
        faults.unsupported("spec", "update of VMI object is restricted");
    }
    if !by_component {
        metadata::check_update(&old.metadata, &new.metadata, faults);
    }
}
