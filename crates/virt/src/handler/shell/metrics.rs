//! What guests use, under KubeVirt's names, in Prometheus' text format.
//!
//! Read when somebody asks, from the kernel's own counts of the QEMU process, of its processors' threads and of the tap devices in
//! its pod's network, and from QEMU's of its disks and its balloon: nothing is sampled, and nothing is kept. What a guest says of its
//! own memory QEMU asks it for every few seconds, from the first time on that somebody wants to know; so that page does not have it
//! yet. Names, labels and types are upstream's (`docs/observability/metrics.md` in kubevirt/kubevirt).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use carrack_launcher::Layout;
use carrack_launcher::qmp::Qmp;
use serde_json::{Value, json};

use super::kernel_text;
use crate::exposition::{Family, Page};
use crate::handler::effects::Served;

/// The families: name, type, help.
const FAMILIES: [(&str, &str, &str); 35] = [
    ("kubevirt_vmi_cpu_usage_seconds_total", "counter", "Total CPU time spent in all modes."),
    ("kubevirt_vmi_cpu_user_usage_seconds_total", "counter", "Total CPU time spent in user mode."),
    ("kubevirt_vmi_cpu_system_usage_seconds_total", "counter", "Total CPU time spent in system mode."),
    ("kubevirt_vmi_memory_resident_bytes", "gauge", "Resident set size of the process running the domain."),
    ("kubevirt_vmi_memory_domain_bytes", "gauge", "The amount of memory allocated to the guest."),
    ("kubevirt_vmi_memory_actual_balloon_bytes", "gauge", "Current balloon size in bytes."),
    ("kubevirt_vmi_memory_available_bytes", "gauge", "All memory that the guest has, as it sees it."),
    ("kubevirt_vmi_memory_unused_bytes", "gauge", "Memory that the guest uses for nothing at all."),
    ("kubevirt_vmi_memory_usable_bytes", "gauge", "Memory that the guest could use without swapping."),
    ("kubevirt_vmi_memory_cached_bytes", "gauge", "Memory that the guest uses to cache its disks."),
    ("kubevirt_vmi_memory_swap_in_traffic_bytes", "gauge", "What the guest has read from swap."),
    ("kubevirt_vmi_memory_swap_out_traffic_bytes", "gauge", "What the guest has written to swap."),
    ("kubevirt_vmi_memory_pgmajfault_total", "counter", "Page faults of the guest that took a disk."),
    ("kubevirt_vmi_memory_pgminfault_total", "counter", "Page faults of the guest that took no disk."),
    ("kubevirt_vmi_vcpu_count", "gauge", "The number of the guest's virtual CPUs."),
    ("kubevirt_vmi_vcpu_seconds_total", "counter", "Total amount of time spent in each state by each vcpu."),
    (
        "kubevirt_vmi_vcpu_wait_seconds_total",
        "counter",
        "Time that each vcpu waited to be run, as the scheduler's own statistics say.",
    ),
    ("kubevirt_vmi_vcpu_delay_seconds_total", "counter", "Time that each vcpu was runnable and did not run."),
    ("kubevirt_vmi_network_traffic_bytes_total", "counter", "Bytes sent (tx) and received (rx); deprecated upstream."),
    ("kubevirt_vmi_network_receive_bytes_total", "counter", "Total network traffic received in bytes."),
    ("kubevirt_vmi_network_receive_packets_total", "counter", "Total network traffic received packets."),
    ("kubevirt_vmi_network_receive_errors_total", "counter", "Total network received error packets."),
    ("kubevirt_vmi_network_receive_packets_dropped_total", "counter", "The number of rx packets dropped."),
    ("kubevirt_vmi_network_transmit_bytes_total", "counter", "Total network traffic transmitted in bytes."),
    ("kubevirt_vmi_network_transmit_packets_total", "counter", "Total network traffic transmitted packets."),
    ("kubevirt_vmi_network_transmit_errors_total", "counter", "Total network transmitted error packets."),
    ("kubevirt_vmi_network_transmit_packets_dropped_total", "counter", "The number of tx packets dropped."),
    ("kubevirt_vmi_storage_read_traffic_bytes_total", "counter", "Total number of bytes read from storage."),
    ("kubevirt_vmi_storage_write_traffic_bytes_total", "counter", "Total number of written bytes."),
    ("kubevirt_vmi_storage_iops_read_total", "counter", "Total number of I/O read operations."),
    ("kubevirt_vmi_storage_iops_write_total", "counter", "Total number of I/O write operations."),
    ("kubevirt_vmi_storage_read_times_seconds_total", "counter", "Total time spent on read operations."),
    ("kubevirt_vmi_storage_write_times_seconds_total", "counter", "Total time spent on write operations."),
    ("kubevirt_vmi_storage_flush_requests_total", "counter", "Total storage flush requests."),
    ("kubevirt_vmi_storage_flush_times_seconds_total", "counter", "Total time spent on cache flushing."),
];

/// What the handler says of itself.
const READY: Family = Family {
    name: "kubevirt_virt_handler_ready_status",
    kind: "gauge",
    help: "Indication for a virt-handler that is ready to serve requests.",
};

/// QEMU's counts of a disk: their names there (`BlockDeviceStats` in qapi/block-core.json), and how many make one of ours.
const STORAGE: [(&str, &str, f64); 8] = [
    ("kubevirt_vmi_storage_read_traffic_bytes_total", "rd_bytes", 1.0),
    ("kubevirt_vmi_storage_write_traffic_bytes_total", "wr_bytes", 1.0),
    ("kubevirt_vmi_storage_iops_read_total", "rd_operations", 1.0),
    ("kubevirt_vmi_storage_iops_write_total", "wr_operations", 1.0),
    ("kubevirt_vmi_storage_read_times_seconds_total", "rd_total_time_ns", 1e9),
    ("kubevirt_vmi_storage_write_times_seconds_total", "wr_total_time_ns", 1e9),
    ("kubevirt_vmi_storage_flush_requests_total", "flush_operations", 1.0),
    ("kubevirt_vmi_storage_flush_times_seconds_total", "flush_total_time_ns", 1e9),
];

/// What a guest says of its memory: QEMU's names (`balloon_stat_names` in hw/virtio/virtio-balloon.c).
const MEMORY: [(&str, &str); 8] = [
    ("kubevirt_vmi_memory_available_bytes", "stat-total-memory"),
    ("kubevirt_vmi_memory_unused_bytes", "stat-free-memory"),
    ("kubevirt_vmi_memory_usable_bytes", "stat-available-memory"),
    ("kubevirt_vmi_memory_cached_bytes", "stat-disk-caches"),
    ("kubevirt_vmi_memory_swap_in_traffic_bytes", "stat-swap-in"),
    ("kubevirt_vmi_memory_swap_out_traffic_bytes", "stat-swap-out"),
    ("kubevirt_vmi_memory_pgmajfault_total", "stat-major-faults"),
    ("kubevirt_vmi_memory_pgminfault_total", "stat-minor-faults"),
];

/// How often QEMU asks a guest for that, once somebody wanted to know, seconds. KubeVirt's default.
const BALLOON_PERIOD_S: u32 = 10;

/// Processors that are looked at; no guest has more (`admission`).
const MOST_PROCESSORS: u32 = 256;

/// How long QEMU may take to answer all that is asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// Samples by family: labels beyond those of the guest, and the value.
type Samples = BTreeMap<&'static str, Vec<(Vec<(&'static str, String)>, f64)>>;

/// What QEMU says of a guest; null where it does not answer.
#[derive(Debug, Default)]
pub(super) struct Said {
    blocks: Value,
    /// How large the balloon leaves its memory.
    balloon: Value,
    /// What it says of its memory itself.
    memory: Value,
}

/// Asks QEMU. One that does not answer holds up no other guest's figures for long.
pub(super) async fn ask(layout: Layout) -> Said {
    tokio::time::timeout(PATIENCE, question(layout)).await.unwrap_or_default()
}

async fn question(layout: Layout) -> Said {
    let mut qmp = match Qmp::connect(&layout.spare_qmp_socket()).await {
        Ok(qmp) => qmp,
        Err(error) => {
            tracing::debug!(error = %carrack_engine::causes(&error), "no statistics of a guest");
            return Said::default();
        }
    };
    let balloon = |property: &str| json!({"path": "/machine/peripheral/balloon0", "property": property});
    let mut period = balloon("guest-stats-polling-interval");
    period["value"] = BALLOON_PERIOD_S.into();
    // A guest without a balloon has none of it. That the period is the same already changes nothing.
    let mut answers = Vec::new();
    for (command, arguments) in [
        ("query-blockstats", json!({})),
        ("query-balloon", json!({})),
        ("qom-get", balloon("guest-stats")),
        ("qom-set", period),
    ] {
        let answer = qmp.execute(command, arguments).await;
        answers.push(answer.unwrap_or_else(|error| {
            tracing::debug!(command, error = %carrack_engine::causes(&error), "no statistics of a guest");
            Value::Null
        }));
    }
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    Said { blocks: next(), balloon: next(), memory: next() }
}

/// That the handler serves calls, which it does when it answers this one.
pub(super) fn ready() -> String {
    let mut page = Page::default();
    page.add(READY.name, &[], 1.0);
    page.text(&[READY])
}

/// The metrics of these guests, with what QEMU says of them. `proc` is the kernel's directory of processes.
pub(super) fn render(proc: &Path, node: &str, guests: &[(Served, Said)]) -> String {
    let mut page = Page::default();
    for (guest, said) in guests {
        let mut samples = of_guest(proc, guest);
        storage(&said.blocks, &guest.disks, &mut samples);
        memory(&said.balloon, &said.memory, &mut samples);
        for (family, samples) in samples {
            for (more, value) in samples {
                let mut labels = vec![("namespace", guest.namespace.as_str()), ("name", &guest.name), ("node", node)];
                labels.extend(more.iter().map(|(name, value)| (*name, value.as_str())));
                page.add(family, &labels, value);
            }
        }
    }
    page.text(&FAMILIES.map(|(name, kind, help)| Family { name, kind, help }))
}

/// A guest that is gone by now has no samples.
fn of_guest(proc: &Path, guest: &Served) -> Samples {
    let mut samples = Samples::new();
    let Ok(Some(pid)) = carrack_processes::init_of(proc, &guest.place.compute_id) else { return samples };
    let directory = proc.join(pid.to_string());
    let read = |file: &str| kernel_text::read(directory.join(file)).unwrap_or_default();
    if let Some((user_s, system_s)) = cpu_s(&read("stat")) {
        samples.insert("kubevirt_vmi_cpu_usage_seconds_total", vec![(Vec::new(), user_s + system_s)]);
        samples.insert("kubevirt_vmi_cpu_user_usage_seconds_total", vec![(Vec::new(), user_s)]);
        samples.insert("kubevirt_vmi_cpu_system_usage_seconds_total", vec![(Vec::new(), system_s)]);
    }
    if let Some(bytes) = resident_bytes(&read("status")) {
        samples.insert("kubevirt_vmi_memory_resident_bytes", vec![(Vec::new(), bytes)]);
    }
    let command = read("cmdline");
    let option = |flag: &str, key: &str| {
        let mut words = command.split('\0').skip_while(|word| *word != flag);
        let value = words.nth(1)?;
        value.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned)
    };
    if let Some(kib) = option("-m", "size=").and_then(|text| text.trim_end_matches('k').parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_memory_domain_bytes", vec![(Vec::new(), kib * 1024.0)]);
    }
    if let Some(count) = option("-smp", "cpus=").and_then(|text| text.parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_vcpu_count", vec![(Vec::new(), count)]);
    }
    network(&read("net/dev"), &guest.nics, &mut samples);
    // Whoever is in the container calls his threads what he likes: each processor is told once.
    let mut known = BTreeSet::new();
    for thread in std::fs::read_dir(directory.join("task")).into_iter().flatten().flatten() {
        let read = |file: &str| kernel_text::read(thread.path().join(file)).unwrap_or_default();
        if let Some(id) = vcpu(&read("comm"))
            && id < MOST_PROCESSORS
            && known.insert(id)
        {
            processor(id, &read("stat"), &read("schedstat"), &read("sched"), &mut samples);
        }
    }
    samples
}

/// The number of the virtual processor that a thread of QEMU's is, by its name (`CPU 0/KVM`).
fn vcpu(name: &str) -> Option<u32> {
    name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok()
}

/// What a virtual processor's thread has spent, in nanoseconds and milliseconds. Upstream reference: sched-stats in the kernel's
/// documentation; a kernel tells `wait_sum` only where its statistics are switched on.
fn processor(id: u32, stat: &str, schedstat: &str, sched: &str, samples: &mut Samples) {
    let labels = || vec![("id", id.to_string())];
    let mut add = |family, labels, value| samples.entry(family).or_default().push((labels, value));
    if let Some((user_s, system_s)) = cpu_s(stat) {
        let mut labels = labels();
        labels.push(("state", "running".to_owned()));
        add("kubevirt_vmi_vcpu_seconds_total", labels, user_s + system_s);
    }
    if let Some(delay_ns) = schedstat.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok()) {
        add("kubevirt_vmi_vcpu_delay_seconds_total", labels(), delay_ns / 1e9);
    }
    let waited =
        sched.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim().ends_with("wait_sum"));
    if let Some(waited_ms) = waited.and_then(|(_, value)| value.trim().parse::<f64>().ok()) {
        add("kubevirt_vmi_vcpu_wait_seconds_total", labels(), waited_ms / 1e3);
    }
}

/// User and system time in seconds, of a process and all its threads. Upstream reference: proc(5).
fn cpu_s(stat: &str) -> Option<(f64, f64)> {
    // The name in parentheses may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let per_s = f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100));
    Some((ticks()? / per_s, ticks()? / per_s))
}

fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// The tap devices' counts, under the names of their interfaces. What a tap device receives is what the guest transmits.
fn network(dev: &str, nics: &BTreeMap<String, String>, samples: &mut Samples) {
    for line in dev.lines() {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let name = name.trim();
        let counts: Vec<f64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        if !name.starts_with("tap") || counts.len() < 16 {
            continue;
        }
        let interface = nics.get(name).map_or(name, String::as_str);
        for (family, value) in [
            ("kubevirt_vmi_network_transmit_bytes_total", counts[0]),
            ("kubevirt_vmi_network_transmit_packets_total", counts[1]),
            ("kubevirt_vmi_network_transmit_errors_total", counts[2]),
            ("kubevirt_vmi_network_transmit_packets_dropped_total", counts[3]),
            ("kubevirt_vmi_network_receive_bytes_total", counts[8]),
            ("kubevirt_vmi_network_receive_packets_total", counts[9]),
            ("kubevirt_vmi_network_receive_errors_total", counts[10]),
            ("kubevirt_vmi_network_receive_packets_dropped_total", counts[11]),
        ] {
            samples.entry(family).or_default().push((vec![("interface", interface.to_owned())], value));
        }
        for (way, value) in [("rx", counts[8]), ("tx", counts[0])] {
            let labels = vec![("interface", interface.to_owned()), ("type", way.to_owned())];
            samples.entry("kubevirt_vmi_network_traffic_bytes_total").or_default().push((labels, value));
        }
    }
}

/// QEMU's counts of the disks with these names. It knows them by their numbers (`disk-0`).
fn storage(blocks: &Value, disks: &[String], samples: &mut Samples) {
    // Each is told once, whatever somebody says in QEMU's place.
    let mut known = BTreeSet::new();
    for block in blocks.as_array().into_iter().flatten() {
        let number = block["node-name"].as_str().and_then(|node| node.strip_prefix("disk-")?.parse::<usize>().ok());
        let number = number.filter(|number| known.insert(*number));
        let Some(disk) = number.and_then(|number| disks.get(number)) else { continue };
        for (family, count, of_ours) in STORAGE {
            if let Some(value) = block["stats"][count].as_f64() {
                samples.entry(family).or_default().push((vec![("drive", disk.clone())], value / of_ours));
            }
        }
    }
}

/// What QEMU knows of the guest's memory, and what the guest says. What it does not say is all ones.
fn memory(balloon: &Value, said: &Value, samples: &mut Samples) {
    if let Some(bytes) = balloon["actual"].as_f64() {
        samples.insert("kubevirt_vmi_memory_actual_balloon_bytes", vec![(Vec::new(), bytes)]);
    }
    for (family, name) in MEMORY {
        let value = &said["stats"][name];
        if value.as_u64().is_some_and(|value| value != u64::MAX)
            && let Some(value) = value.as_f64()
        {
            samples.insert(family, vec![(Vec::new(), value)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FAMILIES, MEMORY, STORAGE, Samples, cpu_s, memory, network, processor, render, resident_bytes, storage, vcpu,
    };
    use serde_json::{Value, json};

    #[test]
    fn a_guest_says_of_its_memory_what_it_knows() {
        let of = |balloon: Value, said: Value| {
            let mut samples = Samples::new();
            memory(&balloon, &said, &mut samples);
            samples.into_iter().map(|(family, all)| (family, all[0].1)).collect::<Vec<_>>()
        };
        assert!(of(Value::Null, Value::Null).is_empty());
        // Before its first answer.
        let silent = json!({"last-update": 0, "stats": {"stat-total-memory": u64::MAX, "stat-free-memory": u64::MAX}});
        let actual = json!({"actual": 1024});
        assert_eq!(of(actual.clone(), silent), [("kubevirt_vmi_memory_actual_balloon_bytes", 1024.0)]);
        let said = json!({"last-update": 7, "stats": {"stat-total-memory": 900, "stat-major-faults": 3, "other": 1}});
        let expected = [
            ("kubevirt_vmi_memory_actual_balloon_bytes", 1024.0),
            ("kubevirt_vmi_memory_available_bytes", 900.0),
            ("kubevirt_vmi_memory_pgmajfault_total", 3.0),
        ];
        assert_eq!(of(actual, said), expected);
        assert!(MEMORY.iter().all(|(family, _)| FAMILIES.iter().any(|(name, ..)| name == family)));
    }

    #[test]
    fn each_virtual_processor_is_a_thread() {
        assert_eq!(
            ["CPU 0/KVM", "CPU 12/TCG", "CPU x/TCG", "qemu-system-x86", "worker"].map(vcpu),
            [Some(0), Some(12), None, None, None]
        );
        let stat = "7 (CPU 1/TCG) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        let mut samples = Samples::new();
        processor(1, stat, "3000000000 1500000000 12\n", "a (7, #threads: 1)\nse.wait_sum   :   250.0\n", &mut samples);
        let id = ("id", "1".to_owned());
        let running = vec![id.clone(), ("state", "running".to_owned())];
        let expected: Samples = [
            ("kubevirt_vmi_vcpu_seconds_total", vec![(running, 3.0)]),
            ("kubevirt_vmi_vcpu_delay_seconds_total", vec![(vec![id.clone()], 1.5)]),
            ("kubevirt_vmi_vcpu_wait_seconds_total", vec![(vec![id], 0.25)]),
        ]
        .into();
        assert_eq!(samples, expected);
        let mut none = Samples::new();
        processor(1, "", "", "", &mut none);
        assert!(none.is_empty(), "{none:?}");
        assert!(expected.keys().all(|family| FAMILIES.iter().any(|(name, ..)| name == family)));
    }

    #[test]
    fn disks_have_qemus_counts_under_their_own_names() {
        let stats = json!({"rd_bytes": 512, "rd_total_time_ns": 2_500_000_000_u64, "flush_operations": 3});
        let blocks = json!([
            {"node-name": "disk-1", "stats": stats}, {"node-name": "disk-7", "stats": stats}, {"stats": stats},
            {"node-name": "disk-1", "stats": stats}, {"node-name": "disk-01", "stats": stats}]);
        let mut samples = Samples::new();
        storage(&blocks, &["root".to_owned(), "data".to_owned()], &mut samples);
        let data = |value: f64| vec![(vec![("drive", "data".to_owned())], value)];
        let expected: Samples = [
            ("kubevirt_vmi_storage_read_traffic_bytes_total", data(512.0)),
            ("kubevirt_vmi_storage_read_times_seconds_total", data(2.5)),
            ("kubevirt_vmi_storage_flush_requests_total", data(3.0)),
        ]
        .into();
        assert_eq!(samples, expected);
        assert!(STORAGE.iter().all(|(family, ..)| FAMILIES.iter().any(|(name, ..)| name == family)));
    }

    #[test]
    fn counts_are_read_as_the_kernel_writes_them() {
        let stat = "7 (qemu (x) y) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu_s(stat), Some((2.5, 0.5)));
        assert_eq!(cpu_s("7 (x)"), None);
        assert_eq!(resident_bytes("Name: x\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
        let mut samples = Samples::new();
        network(
            "Inter-| Receive\n face |bytes\n  eth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  tap0: 10 2 0 1 0 0 0 0 30 4 0 0 0 0 0 0\n",
            &[("tap0".to_owned(), "default".to_owned())].into(),
            &mut samples,
        );
        let of = |family: &str| samples[family].clone();
        let default = |value: f64| [(vec![("interface", "default".to_owned())], value)];
        assert_eq!(of("kubevirt_vmi_network_transmit_bytes_total"), default(10.0));
        assert_eq!(of("kubevirt_vmi_network_receive_bytes_total"), default(30.0));
        let way = |way: &str, value: f64| (vec![("interface", "default".to_owned()), ("type", way.to_owned())], value);
        assert_eq!(of("kubevirt_vmi_network_traffic_bytes_total"), [way("rx", 30.0), way("tx", 10.0)]);
        assert!(samples.keys().all(|family| FAMILIES.iter().any(|(name, ..)| name == family)));
        assert_eq!(render(std::path::Path::new("/proc"), "n", &[]), "");
    }
}
