//! What `/metrics/cadvisor` says of the machine, under the names of cAdvisor (`docs/storage/prometheus.md` there).

use super::Page;
use crate::runtime::HostFacts;

/// The page; none is what could not be read.
pub(in crate::server) fn machine(host: Option<&HostFacts>) -> String {
    let mut page = Page::default();
    if let Some(host) = host {
        let labels = [
            ("boot_id", host.boot_id.as_str()),
            ("machine_id", host.machine_id.as_str()),
            ("system_uuid", host.system_uuid.as_str()),
        ];
        for (name, help, value) in [
            ("machine_cpu_cores", "Number of logical CPU cores.", u64::from(host.cpus)),
            ("machine_cpu_physical_cores", "Number of physical CPU cores.", host.cpu_topology.cores() as u64),
            ("machine_cpu_sockets", "Number of CPU sockets.", host.cpu_topology.sockets() as u64),
            ("machine_memory_bytes", "Amount of memory installed on the machine.", host.memory_bytes),
            ("machine_swap_bytes", "Amount of swap memory available on the machine.", host.swap_bytes),
        ] {
            page.family(name, "gauge", help);
            page.sample(name, &labels, value);
        }
    }
    let name = "machine_scrape_error";
    page.family(name, "gauge", "1 if there was an error while getting machine metrics, 0 otherwise.");
    page.sample(name, &[], u8::from(host.is_none()));
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_or_is_not() {
        let host = HostFacts {
            boot_id: "b".into(),
            machine_id: "m".into(),
            system_uuid: "s".into(),
            cpus: 4,
            cpu_topology: crate::cpus::Topology::plain(4),
            memory_bytes: 1 << 30,
            ..HostFacts::default()
        };
        let page = machine(Some(&host));
        let of = "{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"}";
        for line in [
            format!("machine_cpu_cores{of} 4"),
            format!("machine_cpu_physical_cores{of} 4"),
            format!("machine_cpu_sockets{of} 1"),
            format!("machine_memory_bytes{of} 1073741824"),
            format!("machine_swap_bytes{of} 0"),
            "machine_scrape_error 0".into(),
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is missing of\n{page}");
        }
        let page = machine(None);
        assert!(page.ends_with("machine_scrape_error 1\n") && !page.contains("machine_cpu"), "{page}");
    }
}
