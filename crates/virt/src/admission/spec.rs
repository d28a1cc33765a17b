//! A whole instance spec.

use carrack_types::kubevirt::VirtualMachineInstanceSpec;

use super::{Faults, disks, domain, is_dns_label, is_one_of, networks, volumes};

/// What is wrong with a spec that stands at `field` (`spec`, or `spec.template.spec` in a machine).
pub fn check_instance_spec(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    domain::check(field, &spec.domain, faults);
    volumes::check(field, spec, faults);
    disks::check(field, spec, faults);
    disks::check_boot_order(field, spec, faults);
    networks::check(field, spec, faults);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        faults.invalid(format!("{field}.terminationGracePeriodSeconds"), "must be greater than or equal to 0");
    }
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if value.as_deref().is_some_and(|value| !value.is_empty() && !is_dns_label(value)) {
            let message = format!("{field}.{name} does not conform to the kubernetes DNS_LABEL rules");
            faults.invalid(format!("{field}.{name}"), message);
        }
    }
    let strategies = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];
    if !is_one_of(spec.eviction_strategy.as_deref(), &strategies) {
        let message = format!("{field}.evictionStrategy is set with an unrecognized option");
        faults.invalid(format!("{field}.evictionStrategy"), message);
    }
    if !is_one_of(spec.start_strategy.as_deref(), &["Paused"]) {
        let message = format!("{field}.startStrategy is set with an unrecognized option");
        faults.invalid(format!("{field}.startStrategy"), message);
    }
    if !is_one_of(spec.architecture.as_deref(), &["amd64"]) {
        faults.unsupported(format!("{field}.architecture"), "only amd64 is supported");
    }
    for (name, is_asked) in [
        ("livenessProbe", spec.liveness_probe.is_some()),
        ("readinessProbe", spec.readiness_probe.is_some()),
        ("accessCredentials", !spec.access_credentials.is_empty()),
        ("resourceClaims", !spec.resource_claims.is_empty()),
        ("utilityVolumes", !spec.utility_volumes.is_empty()),
    ] {
        if is_asked {
            faults.unsupported(format!("{field}.{name}"), "is not supported");
        }
    }
}
