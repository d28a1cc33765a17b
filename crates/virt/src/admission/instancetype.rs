//! The instance type and the preference that a machine names.

use carrack_types::kubevirt::VirtualMachineSpec;
use carrack_types::kubevirt::vm::InstancetypeMatcher;

use super::Faults;
use crate::instancetype::{CLUSTER_INSTANCETYPE, CLUSTER_PREFERENCE, INSTANCETYPE, PREFERENCE};

/// A matcher without a kind means the one for all namespaces; kinds in small letters are upstream's own.
pub(super) fn complete_matchers(spec: &mut VirtualMachineSpec) {
    for (matcher, namespaced, cluster) in [
        (&mut spec.instancetype, INSTANCETYPE, CLUSTER_INSTANCETYPE),
        (&mut spec.preference, PREFERENCE, CLUSTER_PREFERENCE),
    ] {
        let Some(matcher) = matcher else { continue };
        let kind = matcher.kind.as_deref().unwrap_or_default();
        let full = if kind.is_empty() || names(cluster, kind) {
            cluster
        } else if names(namespaced, kind) {
            namespaced
        } else {
            continue;
        };
        matcher.kind = Some(full.to_owned());
    }
}

/// Upstream takes a kind in any case, and its resource's singular and plural.
fn names(kind: &str, given: &str) -> bool {
    let given = given.to_ascii_lowercase();
    let kind = kind.to_ascii_lowercase();
    given == kind || given == format!("{kind}s")
}

pub(super) fn check_matchers(spec: &VirtualMachineSpec, faults: &mut Faults) {
    for (name, matcher, kinds) in [
        ("instancetype", &spec.instancetype, [INSTANCETYPE, CLUSTER_INSTANCETYPE]),
        ("preference", &spec.preference, [PREFERENCE, CLUSTER_PREFERENCE]),
    ] {
        if let Some(matcher) = matcher {
            check(name, matcher, kinds, faults);
        }
    }
}

fn check(field: &str, matcher: &InstancetypeMatcher, kinds: [&str; 2], faults: &mut Faults) {
    if matcher.infer_from_volume.is_some() {
        faults.unsupported(format!("spec.{field}.inferFromVolume"), "is not supported");
    } else if matcher.name.as_deref().unwrap_or_default().is_empty() {
        faults.required(format!("spec.{field}.name"), "a name is required");
    }
    let kind = matcher.kind.as_deref().unwrap_or_default();
    if !kind.is_empty() && !kinds.contains(&kind) {
        let message = format!("got unexpected kind in {field}Matcher: {kind}");
        faults.unsupported(format!("spec.{field}.kind"), message);
    }
}
