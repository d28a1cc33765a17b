//! Whether a node's configuration goes with its machine.
//!
//! What does not go together ends the kubelet when it starts, each time anew. Whoever starts one in another's place asks before.

use super::{align, memory};
use crate::config::NodeConfig;
use crate::cpus::Cpus;
use crate::memory::Memory;
use crate::runtime::HostFacts;

/// What the CPU manager is told: its own part, and how many CPUs the node keeps back.
pub(super) fn cpus(config: &NodeConfig) -> Cpus {
    Cpus::new(config.cpus.clone(), config.reserved.get("cpu").copied().unwrap_or(0))
}

/// Whether a configuration goes with a machine.
///
/// # Errors
/// Why not, for people.
pub fn goes_with(config: &NodeConfig, host: &HostFacts) -> Result<(), String> {
    align::few_nodes(config, host)?;
    cpus(config).set_topology(&host.cpu_topology)?;
    Memory::new(config.memory.clone()).set_machine(&host.numa_memory, &memory::kept_back(config, host))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration;
    use crate::cpus::Topology;

    #[test]
    fn configurations_go_with_a_machine_or_do_not() {
        let host = HostFacts {
            cpu_topology: Topology::plain(4),
            numa_nodes: vec![0],
            memory_bytes: 8 << 30,
            ..HostFacts::default()
        };
        for (lines, expected) in [
            ("maxPods: 7", None),
            ("cpuManagerPolicy: static", Some("needs CPUs that are kept back")),
            ("cpuManagerPolicy: static\nkubeReserved: {cpu: \"1\"}", None),
            (
                "cpuManagerPolicy: static\nkubeReserved: {cpu: \"5\"}",
                Some("5 CPUs are to be kept back, and there are 4"),
            ),
            ("cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"", None),
            ("cpuManagerPolicy: static\nreservedSystemCPUs: \"9\"", Some("names 9, and there are 0-3")),
        ] {
            let text = format!("apiVersion: {}\nkind: {}\n{lines}\n", configuration::API_VERSION, configuration::KIND);
            let (read, _) = configuration::read(text.as_bytes()).unwrap();
            let mut config = NodeConfig::default();
            read.apply(&mut config).unwrap();
            let said = goes_with(&config, &host).err();
            assert_eq!(said.is_some(), expected.is_some(), "{lines}: {said:?}");
            assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()), "{lines}");
        }
        let many = HostFacts { numa_nodes: (0..9).collect(), ..host };
        let aligned =
            NodeConfig { topology: (crate::topology::Policy::Restricted, Default::default()), ..NodeConfig::default() };
        assert!(goes_with(&aligned, &many).is_err_and(|why| why.contains("there are 9")));
        assert_eq!(goes_with(&NodeConfig::default(), &many), Ok(()));
    }
}
