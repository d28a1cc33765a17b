//! What guests use, under KubeVirt's names, in Prometheus' text format.
//!
//! Read when somebody asks, from the kernel's own counts of the QEMU process and of the tap devices in its pod's network:
//! nothing is sampled, and nothing is kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::processes;
use crate::handler::effects::Served;

/// A family of metrics: name, type, help.
type Family = (&'static str, &'static str, &'static str);

const FAMILIES: [Family; 15] = [
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
];

/// Samples by family: labels beyond those of the guest, and the value.
type Samples = BTreeMap<&'static str, Vec<(String, f64)>>;

/// The metrics of these guests. `proc` is the kernel's directory of processes.
pub(super) fn render(proc: &Path, node: &str, guests: &[Served]) -> String {
    let mut all: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for guest in guests {
        let common = format!(
            "namespace=\"{}\",name=\"{}\",node=\"{}\"",
            escaped(&guest.namespace),
            escaped(&guest.name),
            escaped(node)
        );
        for (family, samples) in of_guest(proc, guest) {
            for (labels, value) in samples {
                let comma = if labels.is_empty() { "" } else { "," };
                all.entry(family).or_default().push(format!("{family}{{{common}{comma}{labels}}} {value}"));
            }
        }
    }
    let mut text = String::new();
    for (name, kind, help) in FAMILIES {
        let Some(lines) = all.get(name) else { continue };
        // Writing to a string cannot fail.
        _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}\n", lines.join("\n"));
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A guest that is gone by now has no samples.
fn of_guest(proc: &Path, guest: &Served) -> Samples {
    let mut samples = Samples::new();
    let Ok(Some(pid)) = processes::init_of(proc, &guest.place.compute_id) else { return samples };
    let directory = proc.join(pid.to_string());
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap_or_default();
    samples.insert("kubevirt_vmi_info", vec![("phase=\"running\"".to_owned(), 1.0)]);
    if let Some((user_s, system_s)) = cpu_s(&read("stat")) {
        samples.insert("kubevirt_vmi_cpu_usage_seconds_total", vec![(String::new(), user_s + system_s)]);
        samples.insert("kubevirt_vmi_cpu_user_usage_seconds_total", vec![(String::new(), user_s)]);
        samples.insert("kubevirt_vmi_cpu_system_usage_seconds_total", vec![(String::new(), system_s)]);
    }
    if let Some(bytes) = resident_bytes(&read("status")) {
        samples.insert("kubevirt_vmi_memory_resident_bytes", vec![(String::new(), bytes)]);
    }
    let command = read("cmdline");
    let option = |flag: &str, key: &str| {
        let mut words = command.split('\0').skip_while(|word| *word != flag);
        let value = words.nth(1)?;
        value.split(',').find_map(|part| part.strip_prefix(key)).map(str::to_owned)
    };
    if let Some(kib) = option("-m", "size=").and_then(|text| text.trim_end_matches('k').parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_memory_domain_bytes", vec![(String::new(), kib * 1024.0)]);
    }
    if let Some(count) = option("-smp", "cpus=").and_then(|text| text.parse::<f64>().ok()) {
        samples.insert("kubevirt_vmi_vcpu_count", vec![(String::new(), count)]);
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
            samples.entry(family).or_default().push((format!("interface=\"{}\"", escaped(name)), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Samples, cpu_s, escaped, network, render, resident_bytes};

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
        assert_eq!(of("kubevirt_vmi_network_transmit_bytes_total"), [("interface=\"tap0\"".to_owned(), 10.0)]);
        assert_eq!(of("kubevirt_vmi_network_receive_bytes_total"), [("interface=\"tap0\"".to_owned(), 30.0)]);
        assert_eq!(escaped("a\"b\\c"), "a\\\"b\\\\c");
        assert_eq!(render(std::path::Path::new("/proc"), "n", &[]), "");
    }
}
