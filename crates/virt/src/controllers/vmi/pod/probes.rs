//! Probes of the guest, as probes of the container that it runs in.
//!
//! TCP and HTTP probes go to the pod's address, which is the guest's. What asks the guest agent is run in the container
//! and speaks to the agent's channel.

use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::kubevirt::vmi::Probe as VmiProbe;
use carrack_types::resource::Object;
use k8s_openapi::api::core::v1::{ExecAction, Probe};

/// Seconds that an answer may take, unless the spec says otherwise.
const TIMEOUT_S: i32 = 1;

/// The container's probe.
pub(super) fn of(vmi: &VirtualMachineInstance, probe: &VmiProbe) -> Probe {
    let timeout_s = probe.timeout_seconds.unwrap_or(TIMEOUT_S).max(1);
    let in_guest: Option<&[String]> = match (&probe.exec, &probe.guest_agent_ping) {
        (Some(exec), _) => Some(exec.command.as_deref().unwrap_or_default()),
        (None, Some(_)) => Some(&[]),
        (None, None) => None,
    };
    let exec = in_guest.map(|command| {
        let timeout = timeout_s.to_string();
        let fixed = ["/usr/bin/carrack", "virt-launcher", "probe", "--uid", vmi.uid(), "--timeout-s", &timeout, "--"];
        let command = fixed.into_iter().map(str::to_owned).chain(command.iter().cloned());
        ExecAction { command: Some(command.collect()) }
    });
    Probe {
        exec,
        http_get: probe.http_get.clone(),
        tcp_socket: probe.tcp_socket.clone(),
        initial_delay_seconds: probe.initial_delay_seconds,
        // The command itself takes a moment to start.
        timeout_seconds: Some(if in_guest.is_some() { timeout_s.saturating_add(1) } else { timeout_s }),
        period_seconds: probe.period_seconds,
        success_threshold: probe.success_threshold,
        failure_threshold: probe.failure_threshold,
        ..Probe::default()
    }
}
