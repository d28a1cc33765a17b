//! Admission: whether a pod that was bound to this node may start here.
//!
//! Three answers: *admit*, *reject*, or *wait* for something that may still come. Only what can never
//! come true rejects. A pod that was admitted once is admitted for good: its placement is not judged
//! again, whatever became of the node's labels, and what its containers need is waited for when they
//! start. Admission records an intention; devices are asked for when a container starts.

use std::collections::BTreeSet;

use carrack_types::declared::needed;
use carrack_types::fit::{self, HostPort};
use carrack_types::placement::{affinity_matches, tolerates, untolerated};
use k8s_openapi::api::core::v1::{AppArmorProfile, Node, Pod, Taint};

use crate::amount::{self, Amounts};
use crate::devices::{Devices, is_extended};
use crate::planted::Planted;
use crate::spec::pod::{self, spec};
use crate::spec::sandbox::forbidden_sysctl;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may start.
    Admit,
    /// It can never run here.
    Reject {
        /// Reason in the pod's status.
        reason: String,
        /// For people.
        message: String,
    },
    /// Something that it needs may still come.
    Wait {
        /// What it waits for: a resource's name, or `node`.
        resource: String,
        /// For people.
        message: String,
    },
}

/// What an answer rests on.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The Node object as last read; none while it has not been read.
    pub node: Option<&'a Node>,
    /// It was admitted here before: by the local record, or because the runtime or the API shows that
    /// it has begun.
    pub admitted_before: bool,
    /// It was bound before this kubelet started.
    pub bound_before_start: bool,
    /// What the node itself can give: CPU, memory, pods, disk, hugepages.
    pub allocatable: &'a Amounts,
    /// What admitted pods that are not over request, pods themselves included.
    pub used: &'a Amounts,
    /// The part of it that belongs to pods on their way out.
    pub leaving: &'a Amounts,
    /// Ports of the node in use.
    pub host_ports: &'a BTreeSet<HostPort>,
    /// Devices.
    pub devices: &'a Devices,
    /// Kernel settings that the node allows besides the safe ones.
    pub allowed_sysctls: &'a [String],
    /// Whether the runtime gives containers no other groups than they are to have; none where that is not known.
    pub strict_groups: Option<bool>,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
    /// Features that the node declares.
    pub declared: &'a [&'static str],
    /// What the node is low on.
    pub pressure: crate::eviction::Pressure,
    /// A container of it runs, or may.
    pub runs: bool,
    /// Historical behaviour.
    pub planted: Option<Planted>,
}

fn reject(reason: &str, message: impl Into<String>) -> Decision {
    Decision::Reject { reason: reason.into(), message: message.into() }
}

fn wait(resource: &str, message: impl Into<String>) -> Decision {
    Decision::Wait { resource: resource.into(), message: message.into() }
}

/// The conditions of the node that keep this pod out. Memory pressure alone keeps those out that promise to use none and do not
/// tolerate it; the others all but critical ones, whatever they tolerate (upstream: `Admit` of
/// `pkg/kubelet/eviction/eviction_manager.go`).
fn refused_under_pressure(i: &Inputs<'_>) -> Option<String> {
    let p = i.pressure;
    let conditions = [("MemoryPressure", p.memory), ("DiskPressure", p.disk), ("PIDPressure", p.pid)];
    let holding: Vec<&str> = conditions.into_iter().filter(|(_, holds)| *holds).map(|(name, _)| name).collect();
    if holding.is_empty() || pod::is_critical(i.pod) {
        return None;
    }
    if holding == ["MemoryPressure"] {
        let taint =
            Taint { key: "node.kubernetes.io/memory-pressure".into(), effect: "NoSchedule".into(), ..Taint::default() };
        let tolerated = || spec(i.pod).tolerations.iter().flatten().any(|t| tolerates(t, &taint));
        if pod::qos_class(i.pod) != "BestEffort" || tolerated() {
            return None;
        }
    }
    Some(holding.join(" "))
}

/// Decides.
#[must_use]
pub fn decide(i: &Inputs<'_>) -> Decision {
    if (i.planted == Some(Planted::FinalRejection) && !i.runs || i.planted == Some(Planted::JudgedAgain))
        && let Some(r) = pod::requests(i.pod).keys().find(|r| i.devices.ever_advertised(r) && !i.devices.registered(r))
    {
        let message = format!("Allocate failed due to cannot allocate unregistered device {r}, which is unexpected");
        return reject("UnexpectedAdmissionError", message);
    }
    let judged_again =
        i.planted == Some(Planted::JudgedAgain) && i.node.is_some_and(|n| !affinity_matches(i.pod.spec.as_ref(), n));
    if i.admitted_before && !judged_again {
        return Decision::Admit;
    }
    if spec(i.pod).os.as_ref().is_some_and(|os| os.name != "linux") {
        return reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS");
    }
    if let Some(conditions) = refused_under_pressure(i) {
        return reject("Evicted", format!("The node had condition: [{conditions}]. "));
    }
    if let Some((reason, why)) = beyond_the_node(i) {
        return reject(reason, why);
    }
    if let Some(why) = forbidden_sysctl(i.pod, i.allowed_sysctls) {
        return reject("SysctlForbidden", why);
    }
    let Some(node) = i.node else {
        // The API itself may be a static pod.
        if pod::is_static(i.pod) {
            return Decision::Admit;
        }
        return wait("node", "the Node object has not been read yet");
    };
    // No taint keeps out what the node itself has put here (upstream's `generalFilter`, `pkg/kubelet/lifecycle/predicate.go`): a
    // manifest is judged once, and a node that is not ready for a moment has such a taint.
    let taint = untolerated(i.pod.spec.as_ref(), node, &["NoExecute"]).filter(|_| !pod::is_static(i.pod));
    if let Some(taint) = taint.map(|t| t.key.clone()) {
        return reject("TaintToleration", format!("Predicate TaintToleration failed: node has taint {taint}"));
    }
    if !affinity_matches(i.pod.spec.as_ref(), node) {
        return reject(
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        );
    }
    if let Some(p) = fit::taken(&fit::host_ports_of(i.pod), i.host_ports.iter()) {
        return reject("NodePorts", format!("Predicate NodePorts failed: {}/{} is in use", p.port, p.protocol));
    }
    // All of it is looked at first: what can never fit rejects, even if something else may come.
    let mut waits = None;
    for (name, need) in pod::takes(i.pod).iter().filter(|(_, n)| **n > 0) {
        match fits(i, node, name, *need) {
            Decision::Admit => {}
            r @ Decision::Reject { .. } => return r,
            w @ Decision::Wait { .. } => waits = waits.or(Some(w)),
        }
    }
    waits.unwrap_or(Decision::Admit)
}

/// What the pod demands of kernel, runtime and kubelet that these cannot. What is not known yet is no reason.
fn beyond_the_node(i: &Inputs<'_>) -> Option<(&'static str, String)> {
    let s = spec(i.pod);
    let strict = s.security_context.as_ref().is_some_and(|s| s.supplemental_groups_policy.as_deref() == Some("Strict"));
    if strict && i.strict_groups == Some(false) {
        let why = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Some(("SupplementalGroupsPolicyNotSupported", why.into()));
    }
    let of_pod = s.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let of_containers = s
        .containers
        .iter()
        .chain(s.init_containers.iter().flatten())
        .filter_map(|c| c.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref()));
    let confines = |p: &AppArmorProfile| p.type_ != "Unconfined";
    if !i.apparmor && of_pod.into_iter().chain(of_containers).any(confines) {
        return Some(("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host".into()));
    }
    let missing: Vec<&str> = needed(s).into_iter().filter(|feature| !i.declared.contains(feature)).collect();
    if missing.is_empty() {
        return None;
    }
    let why = format!("Pod requires node features that are not available: {}", missing.join(", "));
    Some(("PodFeatureUnsupported", why))
}

fn fits(i: &Inputs<'_>, node: &Node, name: &str, need: i128) -> Decision {
    let used = i.used.get(name).copied().unwrap_or(0);
    let leaving = i.leaving.get(name).copied().unwrap_or(0);
    let out_of = |capacity: i128| {
        reject(
            &format!("OutOf{name}"),
            format!(
                "Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
                show(name, need),
                show(name, used),
                show(name, capacity)
            ),
        )
    };
    let judge = |capacity: i128| {
        if fit::fits(need, used, capacity) {
            Decision::Admit
        } else if fit::fits(need, used - leaving, capacity) {
            wait(name, format!("{name} is held by pods that are terminating"))
        } else {
            out_of(capacity)
        }
    };
    if !is_extended(name) {
        return judge(i.allocatable.get(name).copied().unwrap_or(0));
    }
    if i.devices.ever_advertised(name) {
        if !i.devices.registered(name) {
            return wait(name, format!("the device plugin of {name} is not registered"));
        }
        let (total, healthy) = i.devices.capacity().get(name).copied().unwrap_or_default();
        let milli = |n: usize| i128::try_from(n).unwrap_or(i128::MAX / 2000) * 1000;
        return match judge(milli(healthy)) {
            Decision::Reject { .. } if fit::fits(need, used - leaving, milli(total)) => {
                wait(name, format!("devices of {name} are not healthy"))
            }
            d => d,
        };
    }
    // Not a plugin's: an amount that somebody wrote into the Node's status, or nothing yet.
    let status = node.status.as_ref();
    let listed =
        |list: Option<&std::collections::BTreeMap<String, _>>| list.and_then(|l| l.get(name)).and_then(amount::milli);
    match listed(status.and_then(|s| s.allocatable.as_ref())) {
        Some(n) if n > 0 => judge(n),
        Some(_) => wait(name, format!("{name} was advertised on this node and is not at present")),
        None if i.bound_before_start => wait(name, format!("no device plugin has registered {name} yet")),
        None => out_of(0),
    }
}

fn show(name: &str, milli: i128) -> i128 {
    // As upstream: CPU in thousandths, all else in whole units.
    if name == "cpu" { milli } else { milli / 1000 }
}

#[cfg(test)]
mod tests;
