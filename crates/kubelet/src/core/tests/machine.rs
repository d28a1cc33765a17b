//! A machine that becomes another one while the kubelet runs: CPUs and memory come or go.

use super::*;

#[test]
fn the_groups_of_pods_follow_the_machine() {
    let mut w = World::new(1);
    let reserved = BTreeMap::from([("memory".to_owned(), (1 << 30) * 1000)]);
    w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), reserved, ..NodeConfig::default() });
    w.edit_or_create_node();
    for (cpus, memory_gib, shares, limit_gib) in [(8, 16, 8192, 15), (4, 16, 4096, 15), (4, 32, 4096, 31)] {
        (w.node.host.cpus, w.node.host.memory_bytes) = (cpus, memory_gib << 30);
        w.run(15);
        let groups = w.asked.iter().rev().find_map(|(_, op)| match op {
            Op::WriteGroups(groups) => Some(&groups[0].resources),
            _ => None,
        });
        let found = groups.map(|r| (r.cpu_shares, r.memory_limit_bytes));
        assert_eq!(found, Some((shares, limit_gib << 30)), "{cpus} CPUs, {memory_gib} GiB");
    }
}
