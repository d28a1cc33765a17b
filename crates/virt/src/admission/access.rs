//! Credentials that are put into a guest, and probes of it.

use carrack_types::kubevirt::VirtualMachineInstanceSpec;
use carrack_types::kubevirt::vmi::{AccessCredential, Probe};

use super::Faults;

pub(super) fn check_credentials(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let no_cloud = spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some());
    let config_drive = spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some());
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let at = format!("{field}.accessCredentials[{index}]");
        let AccessCredential { ssh_public_key, user_password } = credential;
        if let Some(key) = ssh_public_key {
            let (of, way) = (format!("{at}.sshPublicKey"), &key.propagation_method);
            let method = format!("{of}.propagationMethod");
            if way.no_cloud.is_some() && !no_cloud {
                let what = "requires a noCloud volume to exist when the noCloud propagationMethod is in use.";
                faults.invalid(&method, format!("{at} {what}"));
            }
            if way.config_drive.is_some() && !config_drive {
                let what = "requires a configDrive volume to exist when the configDrive propagationMethod is in use.";
                faults.invalid(&method, format!("{at} {what}"));
            }
            if way.qemu_guest_agent.as_ref().is_some_and(|agent| agent.users.is_empty()) {
                let message = format!("{at} requires at least one user to be present in the users list");
                faults.invalid(format!("{method}.qemuGuestAgent.users"), message);
            }
            let ways = [way.no_cloud.is_some(), way.config_drive.is_some(), way.qemu_guest_agent.is_some()];
            exactly_one(&at, &of, key.source.secret.is_some(), &ways, faults);
        }
        if let Some(password) = user_password {
            let ways = [password.propagation_method.qemu_guest_agent.is_some()];
            exactly_one(&at, &format!("{at}.userPassword"), password.source.secret.is_some(), &ways, faults);
        }
        if ssh_public_key.is_some() == user_password.is_some() {
            faults.invalid(&at, format!("{at} must have exactly one access credential type set"));
        }
    }
}

fn exactly_one(at: &str, of: &str, has_source: bool, ways: &[bool], faults: &mut Faults) {
    if !has_source {
        faults.invalid(format!("{of}.source"), format!("{at} must have exactly one source set"));
    }
    if ways.iter().filter(|way| **way).count() != 1 {
        let message = format!("{at} must have exactly one propagationMethod set");
        faults.invalid(format!("{of}.propagationMethod"), message);
    }
}

pub(super) fn check_probes(field: &str, spec: &VirtualMachineInstanceSpec, faults: &mut Faults) {
    let on_pod_network = spec.networks.iter().any(|network| network.pod.is_some());
    for (name, probe) in [("readinessProbe", &spec.readiness_probe), ("livenessProbe", &spec.liveness_probe)] {
        let at = format!("{field}.{name}");
        let Some(Probe { http_get, tcp_socket, exec, guest_agent_ping, .. }) = probe else { continue };
        let ways = [http_get.is_some(), tcp_socket.is_some(), exec.is_some(), guest_agent_ping.is_some()];
        match ways.iter().filter(|way| **way).count() {
            0 => {
                let message =
                    format!("either {at}.tcpSocket, {at}.exec or {at}.httpGet must be set if a {at} is specified");
                faults.required(&at, message);
            }
            1 => {}
            _ => faults.invalid(&at, format!("{at} must have exactly one probe type set")),
        }
        for (way, is_set) in [("httpGet", http_get.is_some()), ("tcpSocket", tcp_socket.is_some())] {
            if is_set && !on_pod_network {
                let at = format!("{at}.{way}");
                faults.invalid(&at, format!("{at} is only allowed if the Pod Network is attached"));
            }
        }
    }
}
