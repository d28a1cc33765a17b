//! What guests use, under KubeVirt's names, in Prometheus' text format.
//!
//! Read when somebody asks, from the kernel's own counts of the QEMU process and of the tap devices in its pod's network, and
//! from QEMU's of its disks: nothing is sampled, and nothing is kept. Names, labels and types are upstream's
//! (`docs/observability/metrics.md` in kubevirt/kubevirt).

use std::collections::BTreeMap;
use std::path::Path;

use carrack_launcher::Layout;
use carrack_launcher::qmp::Qmp;
use serde_json::{Value, json};

use crate::exposition::{Family, Page};
use crate::handler::effects::Served;

/// The families: name, type, help.
const FAMILIES: [(&str, &str, &str); 23] = [
    ("kubevirt_vmi_info", "gauge", "Information about VirtualMachineInstances."),
    ("kubevirt_vmi_cpu_usage_seconds_total", "counter", "Total CPU time spent in all modes."),
    ("kubevirt_vmi_cpu_user_usage_seconds_total", "counter", "Total CPU time spent in user mode."),
    ("kubevirt_vmi_cpu_system_usage_seconds_total", "counter", "Total CPU time spent in system mode."),
    ("kubevirt_vmi_memory_resident_bytes", "gauge", "Resident set size of the process running the domain."),
    ("kubevirt_vmi_memory_domain_bytes", "gauge", "The amount of memory allocated to the guest."),
    ("kubevirt_vmi_vcpu_count", "gauge", "The number of the guest's virtual CPUs."),
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

/// Samples by family: a label beyond those of the guest, if there is one, and the value.
type Samples = BTreeMap<&'static str, Vec<(Option<(&'static str, String)>, f64)>>;

/// What QEMU says of a guest's disks; null where it does not answer.
pub(super) async fn block_statistics(layout: Layout) -> Value {
    let ask = async { Qmp::connect(&layout.spare_qmp_socket()).await?.execute("query-blockstats", json!({})).await };
    match ask.await {
        Ok(blocks) => blocks,
        Err(error) => {
            tracing::debug!(error = %carrack_engine::causes(&error), "no statistics of a guest's disks");
            Value::Null
        }
    }
}

/// The metrics of these guests, with what QEMU says of their disks. `proc` is the kernel's directory of processes.
pub(super) fn render(proc: &Path, node: &str, guests: &[(Served, Value)]) -> String {
    let mut page = Page::default();
    for (guest, blocks) in guests {
        let mut samples = of_guest(proc, guest);
        storage(blocks, &guest.disks, &mut samples);
        for (family, samples) in samples {
            for (more, value) in samples {
                let mut labels = vec![("namespace", guest.namespace.as_str()), ("name", &guest.name), ("node", node)];
                labels.extend(more.as_ref().map(|(name, value)| (*name, value.as_str())));
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
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
    samples.insert("kubevirt_vmi_info", vec![(Some(("phase", "running".to_owned())), 1.0)]);
    if let Some((user_s, system_s)) = cpu_s(&read("stat")) {
        samples.insert("kubevirt_vmi_cpu_usage_seconds_total", vec![(None, user_s + system_s)]);
        samples.insert("kubevirt_vmi_cpu_user_usage_seconds_total", vec![(None, user_s)]);
        samples.insert("kubevirt_vmi_cpu_system_usage_seconds_total", vec![(None, system_s)]);
    }
    if let Some(bytes) = resident_bytes(&read("status")) {
        samples.insert("kubevirt_vmi_memory_resident_bytes", vec![(None, bytes)]);
    }
    let command = read("cmdline");
    let option = |flag: &str, key: &str| {
        let mut words = command.split('\0').skip_while(|word| *word != flag);
        let value = words.nth(1)?;
        value.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned)
    };
    if let Some(kib) = option("-m", "size=").and_then(|text| text.trim_end_matches('k').parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_memory_domain_bytes", vec![(None, kib * 1024.0)]);
    }
    if let Some(count) = option("-smp", "cpus=").and_then(|text| text.parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_vcpu_count", vec![(None, count)]);
    }
    network(&read("net/dev"), &mut samples);
    samples
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

/// The tap devices' counts. What a tap device receives is what the guest transmits.
fn network(dev: &str, samples: &mut Samples) {
    for line in dev.lines() {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let name = name.trim();
        let counts: Vec<f64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        if !name.starts_with("tap") || counts.len() < 16 {
            continue;
        }
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
            samples.entry(family).or_default().push((Some(("interface", name.to_owned())), value));
        }
    }
}

/// QEMU's counts of the disks with these names. It knows them by their numbers (`disk-0`).
fn storage(blocks: &Value, disks: &[String], samples: &mut Samples) {
    for block in blocks.as_array().into_iter().flatten() {
        let number = block["node-name"].as_str().and_then(|node| node.strip_prefix("disk-")?.parse::<usize>().ok());
        let Some(disk) = number.and_then(|number| disks.get(number)) else { continue };
        for (family, count, of_ours) in STORAGE {
            if let Some(value) = block["stats"][count].as_f64() {
                samples.entry(family).or_default().push((Some(("drive", disk.clone())), value / of_ours));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FAMILIES, STORAGE, Samples, cpu_s, network, render, resident_bytes, storage};
    use serde_json::json;

    #[test]
    fn disks_have_qemus_counts_under_their_own_names() {
        let stats = json!({"rd_bytes": 512, "rd_total_time_ns": 2_500_000_000_u64, "flush_operations": 3});
        let blocks = json!([
            {"node-name": "disk-1", "stats": stats}, {"node-name": "disk-7", "stats": stats}, {"stats": stats}]);
        let mut samples = Samples::new();
        storage(&blocks, &["root".to_owned(), "data".to_owned()], &mut samples);
        let data = |value: f64| vec![(Some(("drive", "data".to_owned())), value)];
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
            &mut samples,
        );
        let of = |family: &str| samples[family].clone();
        assert_eq!(of("kubevirt_vmi_network_transmit_bytes_total"), [(Some(("interface", "tap0".to_owned())), 10.0)]);
        assert_eq!(of("kubevirt_vmi_network_receive_bytes_total"), [(Some(("interface", "tap0".to_owned())), 30.0)]);
        assert_eq!(render(std::path::Path::new("/proc"), "n", &[]), "");
    }
}
