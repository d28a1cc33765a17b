//! A machine that becomes another one while the kubelet runs: CPUs, memory and process ids come or go; and what its Node says of it.

use super::*;

#[test]
fn the_groups_of_pods_follow_the_machine() {
    let mut w = World::new(1);
    let reserved = BTreeMap::from([("memory".to_owned(), (1 << 30) * 1000), ("pid".to_owned(), 1000 * 1000)]);
    w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), reserved, ..NodeConfig::default() });
    w.edit_or_create_node();
    for (cpus, memory_gib, pids_max, shares, limit_gib) in
        [(8, 16, 100_000, 8192, 15), (4, 16, 100_000, 4096, 15), (4, 32, 100_000, 4096, 31), (4, 32, 200_000, 4096, 31)]
    {
        (w.node.host.cpus, w.node.host.memory_bytes) = (cpus, memory_gib << 30);
        w.node.host.pids_max = pids_max;
        w.run(15);
        let groups = w.asked.iter().rev().find_map(|(_, op)| match op {
            Op::WriteGroups(groups) => Some(&groups[0].resources),
            _ => None,
        });
        let found = groups.map(|r| (r.cpu_shares, r.memory_limit_bytes, r.pids));
        let expected = (shares, limit_gib << 30, Some(pids_max - 1000));
        assert_eq!(found, Some(expected), "{cpus} CPUs, {memory_gib} GiB, {pids_max} processes");
    }
}

#[test]
fn who_is_not_to_make_the_node_waits_for_it_and_tells_its_status_alone() {
    let mut w = World::new(1);
    w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), register_node: false, ..NodeConfig::default() });
    w.run(20);
    let path = "/api/v1/nodes/sim";
    assert!(!w.api.objects.contains_key(path));
    w.edit_or_create_node();
    w.run(5);
    let node = &w.api.objects[path];
    assert_eq!(node["metadata"]["labels"], json!({"kubevirt.io/schedulable": "true"}));
    assert!(node["status"]["conditions"].to_string().contains("KubeletReady"), "{node}");
}

/// Upstream's "should reconcile the OS and Arch labels when running" (`test/e2e_node/os_label_rename_test.go`).
#[test]
fn labels_that_say_what_the_machine_is_stay() {
    let mut w = World::new(1);
    let path = "/api/v1/nodes/sim";
    w.run(5);
    let label = |w: &World, name: &str| w.api.objects[path]["metadata"]["labels"][name].clone();
    for (name, made, expected) in [
        ("kubernetes.io/os", json!("dummy"), json!("linux")),
        ("kubernetes.io/arch", json!("dummy"), json!("amd64")),
        ("kubernetes.io/os", Value::Null, json!("linux")),
        // These are the user's to change.
        ("beta.kubernetes.io/os", json!("dummy"), json!("dummy")),
        ("mine", json!("1"), json!("1")),
    ] {
        w.edit(path, json!({"metadata": {"labels": {name: made}}}));
        w.run(15);
        assert_eq!(label(&w, name), expected, "{name}: {made}");
    }
    // Somebody who insists is not asked more often than that.
    let before = w.api.revision;
    for _ in 0..20 {
        w.edit(path, json!({"metadata": {"labels": {"kubernetes.io/os": "dummy"}}}));
        w.run(1);
    }
    assert_eq!(label(&w, "kubernetes.io/arch"), json!("amd64"));
    assert!(w.api.revision - before < 20 + 20, "{before} {}", w.api.revision);
}

/// A network may give a pod several of one family. (Its status with all of them was refused, whatever else it said.)
#[test]
fn a_pod_tells_one_address_of_each_family() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.create("p", plain());
    w.run(5);
    let given = ["10.0.0.7", "10.0.1.7", "fd00::7"].map(|ip| ip.parse::<std::net::IpAddr>().expect("an address"));
    for sandbox in w.node.sandboxes.values_mut() {
        sandbox.ips = given.to_vec();
    }
    w.run(5);
    let status = &w.api.objects[POD]["status"];
    assert_eq!(status["podIPs"], json!([{"ip": "10.0.0.7"}, {"ip": "fd00::7"}]), "{status}");
}
