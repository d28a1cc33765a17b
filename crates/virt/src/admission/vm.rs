//! A whole machine, and changes of a running instance.

use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, run_strategy};

use super::{Faults, check_instance_spec};

/// What is wrong with a machine.
pub fn check_machine(vm: &VirtualMachine, faults: &mut Faults) {
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
    for (name, is_asked) in [
        ("instancetype", spec.instancetype.is_some()),
        ("preference", spec.preference.is_some()),
        ("dataVolumeTemplates", !spec.data_volume_templates.is_empty()),
    ] {
        if is_asked {
            faults.unsupported(format!("spec.{name}"), "is not supported");
        }
    }
    match &spec.template {
        Some(template) => check_instance_spec("spec.template.spec", &template.spec, faults),
        None => faults.required("spec.template", "missing virtual machine template."),
    }
}

/// What is wrong with a change of an instance. Its spec is what its guest was started from and stays so; only the time
/// that the guest gets to shut down may change.
pub fn check_instance_update(old: &VirtualMachineInstance, new: &VirtualMachineInstance, faults: &mut Faults) {
    let mut allowed = old.spec.clone();
    allowed.termination_grace_period_seconds = new.spec.termination_grace_period_seconds;
    if allowed != new.spec {
        faults.unsupported("spec", "update of VMI object is restricted");
    }
}
