//! An instance type: it sets what a template must leave open.

use std::collections::BTreeSet;

use carrack_types::kubevirt::devices::HostDevice;
use carrack_types::kubevirt::instancetype::{InstancetypeSpec, PreferenceSpec};
use carrack_types::kubevirt::{Quantity, VirtualMachineInstanceSpec};

/// A field that a template sets and may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its path.
    pub field: String,
    /// What is wrong, for people.
    pub message: String,
}

impl Conflict {
    fn at(field: String) -> Self {
        let message = format!("VM field(s) {field} conflicts with selected instance type");
        Self { field, message }
    }
}

/// Applies an instance type.
pub(super) fn instancetype(
    field: &str,
    size: &InstancetypeSpec,
    preference: Option<&PreferenceSpec>,
    spec: &mut VirtualMachineInstanceSpec,
) -> Result<(), Vec<Conflict>> {
    let conflicts: Vec<Conflict> =
        taken(size, spec).into_iter().map(|path| Conflict::at(format!("{field}.{path}"))).collect();
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    spec.node_selector.extend(size.node_selector.clone());
    if !size.scheduler_name.is_empty() {
        spec.scheduler_name = Some(size.scheduler_name.clone());
    }
    cpu(size, preference, spec)?;
    memory(size, spec);
    let domain = &mut spec.domain;
    domain.devices.gpus.extend(size.gpus.clone());
    domain.devices.host_devices.extend(size.host_devices.clone());
    if size.io_threads_policy.is_some() {
        domain.io_threads_policy.clone_from(&size.io_threads_policy);
    }
    if size.io_threads.is_some() {
        domain.io_threads.clone_from(&size.io_threads);
    }
    if size.launch_security.is_some() {
        domain.launch_security.clone_from(&size.launch_security);
    }
    Ok(())
}

/// The fields that both set, in upstream's order.
fn taken(size: &InstancetypeSpec, spec: &VirtualMachineInstanceSpec) -> Vec<&'static str> {
    let domain = &spec.domain;
    let cpu = domain.cpu.clone().unwrap_or_default();
    let memory = domain.memory.clone().unwrap_or_default();
    let selects = size.node_selector.keys().any(|key| spec.node_selector.contains_key(key));
    let shared = |own: &[HostDevice], others: &[HostDevice]| {
        let others: BTreeSet<&str> = others.iter().map(|device| device.name.as_str()).collect();
        own.iter().any(|device| others.contains(device.name.as_str()))
    };
    [
        ("nodeSelector", selects),
        ("schedulerName", spec.scheduler_name.is_some() && !size.scheduler_name.is_empty()),
        ("domain.resources.requests.cpu", domain.resources.requests.contains_key("cpu")),
        ("domain.resources.limits.cpu", domain.resources.limits.contains_key("cpu")),
        ("domain.cpu.sockets", cpu.sockets.unwrap_or(0) != 0),
        ("domain.cpu.cores", cpu.cores.unwrap_or(0) != 0),
        ("domain.cpu.threads", cpu.threads.unwrap_or(0) != 0),
        ("domain.cpu.model", cpu.model.is_some() && size.cpu.model.is_some()),
        ("domain.cpu.dedicatedCPUPlacement", cpu.dedicated_cpu_placement && size.cpu.dedicated_cpu_placement.is_some()),
        ("domain.cpu.isolateEmulatorThread", cpu.isolate_emulator_thread && size.cpu.isolate_emulator_thread.is_some()),
        ("domain.cpu.numa", cpu.numa.is_some() && size.cpu.numa.is_some()),
        ("domain.cpu.realtime", cpu.realtime.is_some() && size.cpu.realtime.is_some()),
        ("domain.memory.guest", memory.guest.is_some()),
        ("domain.memory.hugepages", memory.hugepages.is_some() && size.memory.hugepages.is_some()),
        ("domain.memory.maxGuest", memory.max_guest.is_some() && size.memory.max_guest.is_some()),
        ("domain.resources.requests.memory", domain.resources.requests.contains_key("memory")),
        ("domain.resources.limits.memory", domain.resources.limits.contains_key("memory")),
        ("domain.ioThreadsPolicy", domain.io_threads_policy.is_some() && size.io_threads_policy.is_some()),
        ("domain.ioThreads", domain.io_threads.is_some() && size.io_threads.is_some()),
        ("domain.launchSecurity", domain.launch_security.is_some() && size.launch_security.is_some()),
        ("domain.devices.gpus", shared(&domain.devices.gpus, &size.gpus)),
        ("domain.devices.hostDevices", shared(&domain.devices.host_devices, &size.host_devices)),
    ]
    .into_iter()
    .filter_map(|(path, both)| both.then_some(path))
    .collect()
}

fn cpu(
    size: &InstancetypeSpec,
    preference: Option<&PreferenceSpec>,
    spec: &mut VirtualMachineInstanceSpec,
) -> Result<(), Vec<Conflict>> {
    let (sockets, cores, threads) = topology(size.cpu.guest, preference)?;
    let cpu = spec.domain.cpu.get_or_insert_default();
    (cpu.sockets, cpu.cores, cpu.threads) = (Some(sockets), Some(cores), Some(threads));
    if size.cpu.model.is_some() {
        cpu.model.clone_from(&size.cpu.model);
    }
    if let Some(dedicated) = size.cpu.dedicated_cpu_placement {
        cpu.dedicated_cpu_placement = dedicated;
    }
    if let Some(isolated) = size.cpu.isolate_emulator_thread {
        cpu.isolate_emulator_thread = isolated;
    }
    if size.cpu.numa.is_some() {
        cpu.numa.clone_from(&size.cpu.numa);
    }
    if size.cpu.realtime.is_some() {
        cpu.realtime.clone_from(&size.cpu.realtime);
    }
    if size.cpu.max_sockets.is_some() {
        cpu.max_sockets = size.cpu.max_sockets;
    }
    Ok(())
}

/// How many of the inner a preference likes for each of the outer, where CPUs are spread.
#[must_use]
pub(crate) fn spread_ratio(preference: &PreferenceSpec) -> u32 {
    let spread = preference.cpu.as_ref().and_then(|cpu| cpu.spread_options.as_ref());
    let older = preference.prefer_spread_socket_to_core_ratio;
    spread.and_then(|spread| spread.ratio).or((older > 0).then_some(older)).unwrap_or(2).max(1)
}

/// Sockets, cores and threads for a number of virtual CPUs, as a preference likes them.
fn topology(vcpus: u32, preference: Option<&PreferenceSpec>) -> Result<(u32, u32, u32), Vec<Conflict>> {
    if vcpus <= 1 {
        return Ok((1, 1, 1));
    }
    let cpu = preference.and_then(|preference| preference.cpu.clone()).unwrap_or_default();
    let wanted = cpu.preferred_cpu_topology.unwrap_or_default();
    let spread = cpu.spread_options.unwrap_or_default();
    Ok(match wanted.trim_start_matches("prefer").to_ascii_lowercase().as_str() {
        "cores" => (1, vcpus, 1),
        "threads" => (1, 1, vcpus),
        "spread" => {
            let ratio = preference.map_or(2, spread_ratio);
            let across = spread.across.as_deref().unwrap_or("SocketsCores");
            let inner = if across == "SocketsCoresThreads" { ratio.saturating_mul(2) } else { ratio };
            if !vcpus.is_multiple_of(inner) {
                let message =
                    format!("{vcpus} vCPUs provided by the instance type are not divisible by the ratio of {inner}");
                return Err(vec![Conflict { field: "spec.instancetype".to_owned(), message }]);
            }
            match across {
                "CoresThreads" => (1, vcpus / ratio, ratio),
                // Of threads there are always two to a core.
                "SocketsCoresThreads" => (vcpus / inner, ratio, 2),
                _ => (vcpus / ratio, ratio, 1),
            }
        }
        _ => (vcpus, 1, 1),
    })
}

fn memory(size: &InstancetypeSpec, spec: &mut VirtualMachineInstanceSpec) {
    let domain = &mut spec.domain;
    let memory = domain.memory.get_or_insert_default();
    memory.guest = Some(size.memory.guest.clone());
    if size.memory.hugepages.is_some() {
        memory.hugepages.clone_from(&size.memory.hugepages);
    }
    if size.memory.max_guest.is_some() {
        memory.max_guest.clone_from(&size.memory.max_guest);
    }
    let percent = i64::from(size.memory.overcommit_percent.min(100));
    if percent > 0
        && let Some(bytes) = size.memory.guest.units()
    {
        let requested = bytes / 100 * (100 - percent);
        domain.resources.requests.insert("memory".to_owned(), Quantity(requested.to_string()));
    }
}
