//! Instance types and preferences, and those that a machine names.

use carrack_types::kubevirt::VirtualMachineSpec;
use carrack_types::kubevirt::instancetype::{InstancetypeSpec, PreferenceSpec};
use carrack_types::kubevirt::vm::InstancetypeMatcher;

use super::{Faults, is_one_of};
use crate::instancetype::{CLUSTER_INSTANCETYPE, CLUSTER_PREFERENCE, INSTANCETYPE, PREFERENCE, spread_ratio};

/// What is wrong with a size of machines. (Upstream: `ValidateInstanceTypeSpec` in pkg/instancetype/webhooks.)
pub(super) fn check_size(size: &InstancetypeSpec, faults: &mut Faults) {
    let (at, percent) = ("spec.memory.overcommitPercent", size.memory.overcommit_percent);
    if percent > 100 {
        faults.invalid(at, format!("{at} '{percent}': must be in range between 0 and 100."));
    }
    if percent != 0 && size.memory.hugepages.is_some() {
        faults.invalid(at, format!("{at} and spec.memory.hugepages should not be requested together."));
    }
}

/// What is wrong with a preference. (Upstream: `ValidatePreferenceSpec` in pkg/instancetype/preference/webhooks.)
pub(super) fn check_preference(preference: &PreferenceSpec, faults: &mut Faults) {
    let cpu = preference.cpu.clone().unwrap_or_default();
    let Some(topology) = cpu.preferred_cpu_topology else { return };
    // The older names are `preferCores` and so on.
    let name = topology.strip_prefix("prefer").map_or_else(|| topology.clone(), str::to_ascii_lowercase);
    if !["sockets", "cores", "threads", "spread", "any"].contains(&name.as_str()) {
        faults.invalid("spec.cpu.preferredCPUTopology", format!("unknown preferredCPUTopology {topology}"));
    }
    if name != "spread" {
        return;
    }
    let across = cpu.spread_options.and_then(|spread| spread.across);
    if !is_one_of(across.as_deref(), &["SocketsCores", "CoresThreads", "SocketsCoresThreads"]) {
        let given = across.unwrap_or_default();
        faults.invalid("spec.cpu.spreadOptions.across", format!("across {given} is not supported"));
    } else if across.as_deref() == Some("CoresThreads") && spread_ratio(preference) != 2 {
        let message = "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads";
        faults.invalid("spec.cpu.spreadOptions.ratio", message);
    }
}

/// A matcher without a kind means the one for all namespaces; kinds in small letters are upstream's own. The kind of one that leaves
/// it to a volume comes from there.
pub(crate) fn complete_matchers(spec: &mut VirtualMachineSpec) {
    for (matcher, namespaced, cluster) in [
        (&mut spec.instancetype, INSTANCETYPE, CLUSTER_INSTANCETYPE),
        (&mut spec.preference, PREFERENCE, CLUSTER_PREFERENCE),
    ] {
        let Some(matcher) = matcher.as_mut().filter(|matcher| !is_given(&matcher.infer_from_volume)) else { continue };
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

/// A text that is empty says nothing.
fn is_given(text: &Option<String>) -> bool {
    text.as_deref().is_some_and(|text| !text.is_empty())
}

/// (Upstream: `validateMatcher` in pkg/instancetype/webhooks/vm.)
fn check(field: &str, matcher: &InstancetypeMatcher, kinds: [&str; 2], faults: &mut Faults) {
    let at = format!("spec.{field}");
    let (has_name, has_kind) = (is_given(&matcher.name), is_given(&matcher.kind));
    if is_given(&matcher.infer_from_volume) {
        for (what, part, is_there) in [("Name", "name", has_name), ("Kind", "kind", has_kind)] {
            if is_there {
                let message =
                    format!("{what} should not be provided when InferFromVolume is used within the {field} matcher");
                faults.not_found(format!("{at}.{part}"), message);
            }
        }
    } else if !has_name {
        let message = format!("Either Name or InferFromVolume should be provided within the {field} matcher");
        faults.not_found(&at, message);
    }
    let policy = matcher.infer_from_volume_failure_policy.as_deref();
    if !is_one_of(policy, &["Ignore", "Reject"]) {
        let message = format!("Invalid value '{}' for InferFromVolumeFailurePolicy", policy.unwrap_or_default());
        faults.invalid(format!("{at}.inferFromVolumeFailurePolicy"), message);
    }
    let kind = matcher.kind.as_deref().unwrap_or_default();
    if !kind.is_empty() && !kinds.contains(&kind) {
        let message = format!("got unexpected kind in {field}Matcher: {kind}");
        faults.unsupported(format!("{at}.kind"), message);
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::{Faults, check_preference, check_size};

    /// The fields that a check of a spec names.
    fn fields<T: DeserializeOwned>(spec: &Value, check: impl Fn(&T, &mut Faults)) -> Vec<String> {
        let mut faults = Faults::default();
        check(&serde_json::from_value(spec.clone()).expect("a spec"), &mut faults);
        faults.into_vec().into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn sizes() {
        let check = |memory: Value, wanted: &[&str]| {
            let spec = json!({"cpu": {"guest": 1}, "memory": memory});
            assert_eq!(fields(&spec, check_size), wanted, "{spec}");
        };
        let at = "spec.memory.overcommitPercent";
        check(json!({"guest": "1Gi"}), &[]);
        check(json!({"guest": "1Gi", "overcommitPercent": 100}), &[]);
        check(json!({"guest": "1Gi", "overcommitPercent": 150}), &[at]);
        check(json!({"guest": "1Gi", "overcommitPercent": 15, "hugepages": {"pageSize": "2Mi"}}), &[at]);
        check(json!({"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}), &[]);
    }

    #[test]
    fn preferences() {
        let check = |cpu: Value, wanted: &[&str]| {
            let spec = json!({ "cpu": cpu });
            assert_eq!(fields(&spec, check_preference), wanted, "{spec}");
        };
        for topology in ["sockets", "cores", "threads", "spread", "any", "preferSpread", "preferAny"] {
            check(json!({"preferredCPUTopology": topology}), &[]);
        }
        check(json!({"preferredCPUTopology": "sideways"}), &["spec.cpu.preferredCPUTopology"]);
        let spread = |options: Value| json!({"preferredCPUTopology": "spread", "spreadOptions": options});
        check(spread(json!({"across": "SocketsCoresThreads", "ratio": 4})), &[]);
        check(spread(json!({"across": "CoresThreads"})), &[]);
        check(spread(json!({"across": "CoresThreads", "ratio": 4})), &["spec.cpu.spreadOptions.ratio"]);
        check(spread(json!({"across": "Everything"})), &["spec.cpu.spreadOptions.across"]);
        check(json!({"preferredCPUTopology": "cores", "spreadOptions": {"across": "Everything"}}), &[]);
    }
}
