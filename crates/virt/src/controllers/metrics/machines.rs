//! Samples of one machine. (Upstream: `vmstats_collector.go`.)

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_types::kubevirt::domain::DomainSpec;
use carrack_types::kubevirt::vm::InstancetypeMatcher;
use carrack_types::kubevirt::{Quantity, VirtualMachine, Volume, printable_status as is};
use carrack_types::resource::Object;

use super::kept::Claim;
use crate::exposition::{Family, Page};

const INFO: &str = "kubevirt_vm_info";
const CREATED_AT: &str = "kubevirt_vm_create_date_timestamp_seconds";
const REQUESTS: &str = "kubevirt_vm_resource_requests";
const LIMITS: &str = "kubevirt_vm_resource_limits";
const DISK: &str = "kubevirt_vm_disk_allocated_size_bytes";
/// How many there are. Upstream has Prometheus count them by rules, under today's name and the one before.
const NUMBERS: [&str; 2] = ["namespace:kubevirt_vm:sum", "kubevirt_number_of_vms"];
const CREATED: &str = "kubevirt_vm_created_total";
const STARTING: &str = "kubevirt_vm_starting_status_last_transition_timestamp_seconds";
const RUNNING: &str = "kubevirt_vm_running_status_last_transition_timestamp_seconds";
const MIGRATING: &str = "kubevirt_vm_migrating_status_last_transition_timestamp_seconds";
const NON_RUNNING: &str = "kubevirt_vm_non_running_status_last_transition_timestamp_seconds";
const ERROR: &str = "kubevirt_vm_error_status_last_transition_timestamp_seconds";

/// What upstream says where there is nothing to say.
const NONE: &str = "<none>";

/// What those annotations of a machine's template begin with that are told.
pub(super) const ANNOTATIONS: &str = "vm.kubevirt.io/";
/// The conditions that say when a machine came to its status.
pub(super) const CONDITIONS: [&str; 3] = ["Ready", "Failure", "Paused"];

pub(super) const FAMILIES: [Family; 13] = [
    family(INFO, "gauge", "Information about Virtual Machines."),
    family(CREATED_AT, "gauge", "Virtual Machine creation timestamp."),
    family(REQUESTS, "gauge", "Resources requested by Virtual Machine. Reports memory and CPU requests."),
    family(LIMITS, "gauge", "Resources limits by Virtual Machine. Reports memory and CPU limits."),
    family(DISK, "gauge", "Allocated disk size of a Virtual Machine in bytes, based on its PersistentVolumeClaim."),
    family(NUMBERS[0], "gauge", "The number of VMs in the cluster by namespace."),
    family(NUMBERS[1], "gauge", "[Deprecated] Replaced by namespace:kubevirt_vm:sum."),
    family(CREATED, "counter", "The total number of VMs created by namespace, since virt-controller started."),
    family(STARTING, "counter", "Virtual Machine last transition timestamp to starting status."),
    family(RUNNING, "counter", "Virtual Machine last transition timestamp to running status."),
    family(MIGRATING, "counter", "Virtual Machine last transition timestamp to migrating status."),
    family(NON_RUNNING, "counter", "Virtual Machine last transition timestamp to paused/stopped status."),
    family(ERROR, "counter", "Virtual Machine last transition timestamp to error status."),
];

pub(super) const fn family(name: &'static str, kind: &'static str, help: &'static str) -> Family {
    Family { name, kind, help }
}

/// Groups of printable statuses: the group's name, its family, and its statuses.
const GROUPS: [(&str, &str, &[&str]); 5] = [
    ("starting", STARTING, &[is::PROVISIONING, is::STARTING, is::WAITING_FOR_VOLUME_BINDING]),
    ("running", RUNNING, &[is::RUNNING]),
    ("migrating", MIGRATING, &[is::MIGRATING]),
    ("non_running", NON_RUNNING, &[is::STOPPED, is::PAUSED, is::STOPPING, is::TERMINATING]),
    (
        "error",
        ERROR,
        &[
            is::CRASH_LOOP_BACK_OFF,
            is::UNKNOWN,
            is::UNSCHEDULABLE,
            is::ERR_IMAGE_PULL,
            is::IMAGE_PULL_BACK_OFF,
            is::PVC_NOT_FOUND,
            is::DATA_VOLUME_ERROR,
        ],
    ),
];

/// Tells of one machine.
pub(super) fn tell<'a>(vm: &VirtualMachine, claim: impl Fn(&str) -> Option<&'a Claim>, page: &mut Page) {
    let labels = [("name", vm.name()), ("namespace", vm.namespace())];
    info(vm, labels, page);
    if let Some(created) = vm.metadata.creation_timestamp.as_ref() {
        page.add(CREATED_AT, &labels, unix_s(&Time::from(created)));
    }
    transitions(vm, labels, page);
    if let Some(template) = &vm.spec.template {
        resources(&template.spec.domain, labels, page);
        for volume in &template.spec.volumes {
            let Some(name) = volume.claim_name() else { continue };
            if let Some(claim) = claim(name) {
                disk(volume, name, claim, labels, page);
            }
        }
    }
}

/// Tells how many machines there are and were made, from the namespace of each.
pub(super) fn count<'a>(namespaces: impl Iterator<Item = &'a str>, created: &BTreeMap<String, u64>, page: &mut Page) {
    let mut there: BTreeMap<&str, u32> = BTreeMap::new();
    for namespace in namespaces {
        *there.entry(namespace).or_default() += 1;
    }
    for number in NUMBERS {
        there.iter().for_each(|(namespace, count)| page.add(number, &[("namespace", namespace)], f64::from(*count)));
    }
    for (namespace, count) in created {
        // Beyond 2^53 of them a sample is not exact.
        #[expect(clippy::cast_precision_loss, reason = "samples are floating-point numbers")]
        page.add(CREATED, &[("namespace", namespace)], *count as f64);
    }
}

type Labels<'a> = [(&'static str, &'a str); 2];

fn with<'a>(labels: Labels<'a>, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    labels.into_iter().chain(more.iter().copied()).collect()
}

fn info(vm: &VirtualMachine, labels: Labels<'_>, page: &mut Page) {
    let template = vm.spec.template.as_ref();
    let annotations = template.and_then(|template| template.metadata.as_ref()?.annotations.as_ref());
    let annotation = |name: &str| {
        let value = annotations.and_then(|all| all.get(&format!("{ANNOTATIONS}{name}")));
        value.map_or(NONE, String::as_str)
    };
    let machine = template.and_then(|template| template.spec.domain.machine.as_ref()?.r#type.as_deref());
    let named = |matcher: &'_ Option<InstancetypeMatcher>| {
        matcher.as_ref().and_then(|matcher| matcher.name.clone()).unwrap_or_else(|| NONE.to_owned())
    };
    let status = vm.status.as_ref().map_or("", |status| &status.printable_status);
    let group = GROUPS.iter().find(|(_, _, all)| all.contains(&status)).map_or("<unknown>", |(name, ..)| name);
    let (instancetype, preference) = (named(&vm.spec.instancetype), named(&vm.spec.preference));
    let more = [
        ("os", annotation("os")),
        ("workload", annotation("workload")),
        ("flavor", annotation("flavor")),
        ("machine_type", machine.unwrap_or(NONE)),
        ("instance_type", instancetype.as_str()),
        ("preference", preference.as_str()),
        ("status", &status.to_lowercase()),
        ("status_group", group),
    ];
    page.add(INFO, &with(labels, &more), 1.0);
}

/// When the machine came to its group of statuses, as far as its conditions say; nothing for the other groups.
fn transitions(vm: &VirtualMachine, labels: Labels<'_>, page: &mut Page) {
    let status = vm.status.clone().unwrap_or_default();
    // A status that upstream does not know is an error to it.
    let group = GROUPS.iter().find(|(_, _, all)| all.contains(&status.printable_status.as_str()));
    let family = group.map_or(ERROR, |(_, family, _)| family);
    let telling = status.conditions.iter().filter(|c| CONDITIONS.contains(&c.r#type.as_str()));
    let last = telling.filter_map(|condition| condition.last_transition_time.as_ref()).map(Time::from).max();
    for (_, each, _) in GROUPS {
        page.add(each, &labels, if each == family { last.map_or(-1.0, |at| unix_s(&at)) } else { 0.0 });
    }
}

fn resources(domain: &DomainSpec, labels: Labels<'_>, page: &mut Page) {
    let mut requested = |resource: &'static str, unit: &'static str, source: &'static str, value: Option<f64>| {
        if let Some(value) = value.filter(|value| *value > 0.0) {
            page.add(REQUESTS, &with(labels, &[("resource", resource), ("unit", unit), ("source", source)]), value);
        }
    };
    let of = |amounts: &BTreeMap<String, Quantity>, name: &str| amounts.get(name).and_then(amount);
    let memory = domain.memory.as_ref();
    requested("memory", "bytes", "domain", of(&domain.resources.requests, "memory"));
    requested("memory", "bytes", "guest", memory.and_then(|memory| memory.guest.as_ref()).and_then(amount));
    let page_size = memory.and_then(|memory| memory.hugepages.as_ref()?.page_size.as_deref());
    requested("memory", "bytes", "hugepages", page_size.and_then(|size| amount(&Quantity::from(size))));
    let cpu_request = of(&domain.resources.requests, "cpu");
    match &domain.cpu {
        Some(cpu) => {
            for (unit, count) in [("cores", cpu.cores), ("threads", cpu.threads), ("sockets", cpu.sockets)] {
                requested("cpu", unit, "domain", count.map(f64::from));
            }
        }
        None if cpu_request.is_none() => {
            ["cores", "threads", "sockets"].into_iter().for_each(|unit| requested("cpu", unit, "default", Some(1.0)));
        }
        None => {}
    }
    requested("cpu", "cores", "requests", cpu_request);
    for (resource, unit) in [("memory", "bytes"), ("cpu", "cores")] {
        if let Some(limit) = of(&domain.resources.limits, resource).filter(|limit| *limit > 0.0) {
            page.add(LIMITS, &with(labels, &[("resource", resource), ("unit", unit)]), limit);
        }
    }
}

fn disk(volume: &Volume, name: &str, claim: &Claim, labels: Labels<'_>, page: &mut Page) {
    let more =
        [("persistentvolumeclaim", name), ("volume_mode", claim.mode.as_str()), ("device", volume.name.as_str())];
    page.add(DISK, &with(labels, &more), claim.bytes);
}

/// A quantity in units (bytes, CPUs), to thousandths.
#[expect(clippy::cast_precision_loss, reason = "samples are floating-point numbers")]
pub(super) fn amount(quantity: &Quantity) -> Option<f64> {
    quantity.millis().filter(|millis| *millis < i64::MAX).map(|millis| millis as f64 / 1000.0)
}

fn unix_s(at: &Time) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "samples are floating-point numbers")]
    let seconds = (at.0 / 1_000_000_000) as f64;
    seconds
}
