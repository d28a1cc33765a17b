//! An instance's status as far as its guest decides it.

use carrack_engine::Time;
use carrack_launcher::Domain;
use carrack_launcher::accel::Accel;
use carrack_launcher::domain::{EndReason, Phase};
use carrack_networks::STATUS_ANNOTATION;
use carrack_types::kubevirt::domain::Machine;
use carrack_types::kubevirt::vmi::{NetworkInterfaceStatus, VirtualMachineInstanceStatus};
use carrack_types::kubevirt::{Condition, Interface, VirtualMachineInstance, phase, set_condition};
use carrack_types::resource::Object;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::agent::lacks;
use super::effects::{AgentInterface, AgentReport};
use super::spec::{POD_INTERFACE, mac_of, pod_interface, queues, targets};
use crate::controllers::vmi::{enter, ready, replace_condition};

/// How a run ended, for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub phase: &'static str,
}

/// What a guest's end makes of its instance. A guest that was brought down on request succeeded, also when it had to be
/// killed; that is KubeVirt's judgement.
pub(super) fn verdict(domain: &Domain) -> Option<Verdict> {
    if domain.phase != Phase::Ended {
        return None;
    }
    let reason = domain.end.as_ref().map_or(EndReason::Crashed, |end| end.reason);
    Some(Verdict {
        phase: match reason {
            EndReason::GuestShutdown | EndReason::Killed => phase::SUCCEEDED,
            EndReason::Crashed | EndReason::FailedToStart | EndReason::Fenced => phase::FAILED,
        },
    })
}

/// What is known of a guest.
pub(super) struct Seen<'a> {
    pub pod: Option<&'a Pod>,
    pub domain: Option<&'a Domain>,
    /// What does not work.
    pub trouble: Option<&'a str>,
    /// What the guest's agent says.
    pub agent: Option<&'a AgentReport>,
}

/// Brings the status up to what is known of a guest.
pub(super) fn apply(vmi: &mut VirtualMachineInstance, seen: &Seen<'_>, now: Time) {
    let Seen { pod, domain, trouble, agent } = *seen;
    let spec = vmi.spec.clone();
    // The agent of a guest that is frozen says that alone: what it told before, maybe to another handler, stands.
    let is_mute = agent.is_some_and(|agent| agent.frozen && agent.commands.is_empty());
    let agent = agent.filter(|_| !is_mute);
    let lacking = agent.and_then(|agent| lacks(&spec, &agent.commands));
    let interfaces = domain.filter(|domain| is_alive(domain)).map(|domain| {
        let unasked = agent.is_none() && domain.agent_connected;
        interfaces(vmi, pod, agent, unasked)
    });
    let mut status = vmi.status.take().unwrap_or_default();
    let at = now.meta();
    if let Some(domain) = domain {
        if let Some(verdict) = verdict(domain) {
            enter(&mut status, verdict.phase, now);
        } else if is_alive(domain) {
            if status.phase != phase::RUNNING && domain.phase == Phase::Running {
                // The controller would say the same once it sees this: one write tells both.
                set_condition(&mut status.conditions, ready(pod, phase::RUNNING), &at);
            }
            enter(&mut status, phase::RUNNING, now);
            let targets = targets(&spec.domain.devices.disks);
            for volume in &mut status.volume_status {
                volume.target = targets.get(&volume.name).cloned().unwrap_or_default();
            }
            let asked = spec.domain.machine.and_then(|machine| machine.r#type);
            status.machine = Some(Machine { r#type: domain.machine_type.clone().or(asked) });
        }
        guest_conditions(&mut status, domain, &at);
        // A handler that has just been started has not asked yet; what was said before stands.
        if is_alive(domain) && (agent.is_some() || !domain.agent_connected) {
            agent_says(&mut status, agent, lacking, &at);
        } else if is_mute {
            status.fs_freeze_status = "frozen".to_owned();
        }
    }
    if let Some(interfaces) = interfaces {
        status.interfaces = interfaces;
    }
    let unsynchronized =
        trouble.map(|why| Condition::new("Synchronized", "False", "Synchronizing with the Domain failed.", why));
    replace_condition(&mut status.conditions, "Synchronized", unsynchronized, &at);
    vmi.status = Some(status);
}

/// Whether the guest's processors exist.
fn is_alive(domain: &Domain) -> bool {
    matches!(domain.phase, Phase::Running | Phase::Paused)
}

fn guest_conditions(
    status: &mut VirtualMachineInstanceStatus,
    domain: &Domain,
    at: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
) {
    let mut flag = |is_set: bool, condition: Condition| {
        if is_set {
            set_condition(&mut status.conditions, condition, at);
        } else {
            status.conditions.retain(|old| old.r#type != condition.r#type);
        }
    };
    let paused = match &domain.warning {
        Some(warning) if domain.io_error => {
            let message = format!("VMI was paused, low-level IO error detected: {warning}");
            Condition::new("Paused", "True", "PausedIOError", &message)
        }
        _ => Condition::new("Paused", "True", "PausedByUser", "VMI was paused by user"),
    };
    flag(domain.phase == Phase::Paused, paused);
    flag(domain.agent_connected && is_alive(domain), Condition::new("AgentConnected", "True", "", ""));
    flag(
        domain.accel == Some(Accel::Tcg) && is_alive(domain),
        Condition::new("SoftwareEmulation", "True", "SoftwareEmulation", "the guest's processors are emulated"),
    );
    flag(
        is_alive(domain),
        Condition::new("LiveMigratable", "False", "NotMigratable", "live migration is not available"),
    );
}

/// What only an agent in the guest can tell. Without one, nothing is said.
fn agent_says(
    status: &mut VirtualMachineInstanceStatus,
    agent: Option<&AgentReport>,
    lacking: Option<&str>,
    at: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
) {
    status.guest_os_info = agent.map(|agent| agent.os.clone()).unwrap_or_default();
    status.fs_freeze_status = if agent.is_some_and(|agent| agent.frozen) { "frozen" } else { "" }.to_owned();
    let kind = "AgentVersionNotSupported";
    let unsupported = lacking.map(|why| Condition::new(kind, "True", why, ""));
    replace_condition(&mut status.conditions, kind, unsupported, at);
    let kind = "AccessCredentialsSynchronized";
    let synchronized = agent.and_then(|agent| agent.credentials.as_ref()).map(|told| match told {
        Ok(_) => Condition::new(kind, "True", "", ""),
        Err(why) => Condition::new(kind, "False", "SyncFailed", why),
    });
    replace_condition(&mut status.conditions, kind, synchronized, at);
}

/// What is known of the guest's interfaces: the pod's addresses are the ones that reach it, its own names and further
/// addresses only its agent knows.
fn interfaces(
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    agent: Option<&AgentReport>,
    unasked: bool,
) -> Vec<NetworkInterfaceStatus> {
    let addresses: Vec<String> = pod
        .and_then(|pod| pod.status.as_ref())
        .and_then(|status| status.pod_ips.as_ref())
        .map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect())
        .unwrap_or_default();
    let interfaces = vmi.spec.domain.devices.interfaces.iter();
    let before = vmi.status.as_ref().map_or(&[][..], |status| &status.interfaces);
    let status = |nic: &Interface| {
        if let Some(known) = before.iter().find(|known| known.name == nic.name).filter(|_| unasked) {
            return known.clone();
        }
        let pod_interface_name = pod_interface(vmi, nic);
        let mac = mac_of(vmi, nic);
        let attached = attachment(pod, &pod_interface_name);
        let inside = agent.and_then(|agent| agent.interfaces.iter().find(|interface| interface.mac == mac));
        // From outside, addresses on the pod network are known, and those that were given to the pod on others: a bridged
        // guest has them by DHCP.
        let ip_addresses = match inside {
            _ if pod_interface_name == POD_INTERFACE => addresses.clone(),
            Some(inside) => inside.addresses.clone(),
            None => attached.as_ref().map(addresses_of).unwrap_or_default(),
        };
        let sources = [(true, "domain"), (inside.is_some(), "guest-agent"), (attached.is_some(), "multus-status")];
        let sources: Vec<&str> = sources.iter().filter(|(known, _)| *known).map(|(_, source)| *source).collect();
        NetworkInterfaceStatus {
            name: nic.name.clone(),
            mac,
            interface_name: inside.map(|inside| inside.name.clone()).unwrap_or_default(),
            ip_address: ip_addresses.first().cloned().unwrap_or_default(),
            ip_addresses,
            pod_interface_name,
            info_source: sources.join(", "),
            queue_count: i32::try_from(queues(vmi, nic)).unwrap_or(1),
            link_state: "up".to_owned(),
        }
    };
    let mut all: Vec<NetworkInterfaceStatus> = interfaces.map(status).collect();
    // Those that are the guest's own affair, such as a bridge of its own, are told of by their names there. (Upstream:
    // `updateInterfacesStatusFromGuestAgent` in pkg/network/setup.)
    match agent {
        Some(agent) => {
            let others = agent.interfaces.iter().filter(|inside| !all.iter().any(|known| known.mac == inside.mac));
            let others: Vec<_> = others.map(inside_only).collect();
            all.extend(others);
        }
        None => all.extend(before.iter().filter(|known| known.name.is_empty() && unasked).cloned()),
    }
    all
}

fn inside_only(inside: &AgentInterface) -> NetworkInterfaceStatus {
    NetworkInterfaceStatus {
        mac: inside.mac.clone(),
        interface_name: inside.name.clone(),
        ip_address: inside.addresses.first().cloned().unwrap_or_default(),
        ip_addresses: inside.addresses.clone(),
        info_source: "guest-agent".to_owned(),
        ..NetworkInterfaceStatus::default()
    }
}

/// What the pod is told of one of its further networks, by the interface there.
fn attachment(pod: Option<&Pod>, interface: &str) -> Option<Value> {
    let told = pod?.annotation(STATUS_ANNOTATION)?;
    let list: Vec<Value> = serde_json::from_str(told).ok()?;
    list.into_iter().find(|network| network["interface"] == interface && network["default"] != true)
}

fn addresses_of(attachment: &Value) -> Vec<String> {
    attachment["ips"].as_array().into_iter().flatten().filter_map(|ip| ip.as_str().map(str::to_owned)).collect()
}
