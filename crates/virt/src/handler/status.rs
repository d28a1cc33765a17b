//! An instance's status as far as its guest decides it.

use carrack_engine::Time;
use carrack_launcher::Domain;
use carrack_launcher::accel::Accel;
use carrack_launcher::domain::{EndReason, Phase};
use carrack_types::kubevirt::domain::Machine;
use carrack_types::kubevirt::vmi::{NetworkInterfaceStatus, VirtualMachineInstanceStatus};
use carrack_types::kubevirt::{Condition, VirtualMachineInstance, phase, set_condition};
use k8s_openapi::api::core::v1::Pod;

use super::spec::{POD_INTERFACE, mac_of};
use crate::controllers::vmi::enter;

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
            EndReason::Crashed | EndReason::FailedToStart => phase::FAILED,
        },
    })
}

/// Brings the status up to what is known of a guest.
pub(super) fn apply(
    vmi: &mut VirtualMachineInstance,
    pod: Option<&Pod>,
    domain: Option<&Domain>,
    trouble: Option<&str>,
    now: Time,
) {
    let spec = vmi.spec.clone();
    let interfaces = domain.filter(|domain| is_alive(domain)).map(|_| interfaces(vmi, pod));
    let mut status = vmi.status.take().unwrap_or_default();
    let at = now.meta();
    if let Some(domain) = domain {
        if let Some(verdict) = verdict(domain) {
            enter(&mut status, verdict.phase, now);
        } else if is_alive(domain) {
            enter(&mut status, phase::RUNNING, now);
            status.machine = Some(Machine { r#type: spec.domain.machine.and_then(|machine| machine.r#type) });
        }
        guest_conditions(&mut status, domain, &at);
    }
    if let Some(interfaces) = interfaces {
        status.interfaces = interfaces;
    }
    match trouble {
        Some(why) => {
            set_condition(
                &mut status.conditions,
                Condition::new("Synchronized", "False", "Synchronizing with the Domain failed.", why),
                &at,
            );
        }
        None => status.conditions.retain(|condition| condition.r#type != "Synchronized"),
    }
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
        Some(warning) => Condition::new("Paused", "True", "PausedIOError", warning),
        None => Condition::new("Paused", "True", "PausedByUser", "VMI was paused by user"),
    };
    flag(domain.phase == Phase::Paused, paused);
    flag(domain.agent_connected && is_alive(domain), Condition::new("AgentConnected", "True", "", ""));
    flag(
        domain.accel == Some(Accel::Tcg),
        Condition::new("SoftwareEmulation", "True", "SoftwareEmulation", "the guest's processors are emulated"),
    );
    flag(
        is_alive(domain),
        Condition::new("LiveMigratable", "False", "NotMigratable", "live migration is not available"),
    );
}

/// What is known of the guest's interfaces without an agent in it: the pod's addresses are the ones that reach it.
fn interfaces(vmi: &VirtualMachineInstance, pod: Option<&Pod>) -> Vec<NetworkInterfaceStatus> {
    let addresses: Vec<String> = pod
        .and_then(|pod| pod.status.as_ref())
        .and_then(|status| status.pod_ips.as_ref())
        .map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect())
        .unwrap_or_default();
    vmi.spec
        .domain
        .devices
        .interfaces
        .iter()
        .take(1)
        .map(|nic| NetworkInterfaceStatus {
            name: nic.name.clone(),
            mac: mac_of(vmi, nic),
            ip_address: addresses.first().cloned().unwrap_or_default(),
            ip_addresses: addresses.clone(),
            pod_interface_name: POD_INTERFACE.to_owned(),
            info_source: "domain".to_owned(),
            queue_count: 1,
            link_state: "up".to_owned(),
            ..NetworkInterfaceStatus::default()
        })
        .collect()
}
