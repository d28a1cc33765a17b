//! Containers with CPUs of their own: from admission to their end, over restarts of all kinds.

use super::*;
use crate::cpus::{CpuConfig, Options, Policy};

/// A kubelet that assigns CPUs and keeps the first one back.
fn config(policy: Policy, options: Options) -> NodeConfig {
    let cpus = CpuConfig { policy, options, reserved: "0".parse().unwrap(), ..CpuConfig::default() };
    let reserved = [("cpu".to_owned(), 1000)].into();
    NodeConfig { node_name: "sim".into(), cpus, reserved, ..NodeConfig::default() }
}

fn started(seed: u64, policy: Policy) -> World {
    let mut w = World::new(seed);
    again(&mut w, policy);
    w.edit_or_create_node();
    w.run(2);
    w
}

fn again(w: &mut World, policy: Policy) {
    w.restart_kubelet_as(config(policy, Options::default()));
}

/// Containers that ask for so many CPUs, and those before for their init containers.
fn pod(init: &[&str], containers: &[&str]) -> Value {
    let list = |prefix: &str, cpus: &[&str]| -> Value {
        let named = |(n, cpu): (usize, &&str)| {
            json!({"name": format!("{prefix}{n}"), "image": "busybox",
            "resources": {"limits": {"cpu": cpu, "memory": "64Mi"}, "requests": {"cpu": cpu, "memory": "64Mi"}}})
        };
        cpus.iter().enumerate().map(named).collect()
    };
    json!({"terminationGracePeriodSeconds": 1, "restartPolicy": "Always",
        "initContainers": list("i", init), "containers": list("c", containers)})
}

/// The CPUs and the quota of a pod's running containers.
fn on(w: &World, uid: &str) -> Vec<(String, bool)> {
    let running = w.node.running(uid);
    let of = |id: &String| {
        let resources = &w.node.containers[id].spec.resources;
        (resources.cpus.clone(), resources.cpu_quota_us > 0)
    };
    running.values().map(of).collect()
}

fn runs_on(w: &World, uid: &str, cpus: &[&str]) {
    let has: Vec<String> = on(w, uid).into_iter().map(|(cpus, _)| cpus).collect();
    assert_eq!(has, cpus, "{uid}");
}

#[test]
fn whole_cpus_are_a_containers_own_and_the_others_share_the_rest() {
    each_seed(|seed| {
        let mut w = started(seed, Policy::Static);
        w.create("q", pod(&[], &["500m"]));
        w.run(5);
        runs_on(&w, "uid-q", &["0-7"]);
        // The init container is over when the others start: they have its CPUs, too.
        w.create("p", pod(&["2"], &["2", "1", "1500m"]));
        w.run(3);
        runs_on(&w, "uid-p", &["1-2"]);
        let init = w.node.running("uid-p")["i0"].clone();
        let now = w.now;
        w.node.exit(now, &init, 0);
        w.run(5);
        assert_eq!(
            on(&w, "uid-p"),
            [("1-2".into(), false), ("3".into(), false), ("0,4-7".into(), true)],
            "seed {seed}"
        );
        runs_on(&w, "uid-q", &["0,4-7"]);
        // Nobody ever ran where a container was about to have CPUs for itself.
        let moved = w.asked.iter().position(|(_, op)| matches!(op, Op::GiveCpus { .. })).unwrap();
        let made = |name: &str| {
            let is = |op: &Op| matches!(op, Op::CreateContainer(_, spec) if spec.name == name && spec.pod.name == "p");
            w.asked.iter().position(|(_, op)| is(op)).unwrap()
        };
        assert!(moved < made("i0") && made("i0") < made("c0"), "seed {seed}");
        w.delete(1);
        w.run(20);
        assert_eq!(w.phase(), "gone", "seed {seed}");
        runs_on(&w, "uid-q", &["0-7"]);
        assert_eq!(w.core.cpus().holders().count(), 0);
    });
}

#[test]
fn restarts_move_nobody() {
    each_seed(|seed| {
        let mut w = started(seed, Policy::Static);
        for (name, asks) in [("o", "2"), ("p", "2"), ("q", "500m")] {
            w.create(name, pod(&[], &[asks]));
            w.run(3);
        }
        w.api.remove("/api/v1/namespaces/n/pods/o");
        again(&mut w, Policy::Static);
        w.run(20);
        runs_on(&w, "uid-p", &["3-4"]);
        runs_on(&w, "uid-q", &["0-2,5-7"]);
        // Killed at every step of a start: what is on disk is what it has.
        w.create("r", pod(&[], &["1"]));
        for _ in 0..40 {
            w.next();
            again(&mut w, Policy::Static);
            for _ in 0..8 {
                w.next();
            }
        }
        w.run(20);
        runs_on(&w, "uid-p", &["3-4"]);
        runs_on(&w, "uid-r", &["1"]);
        let now = w.now;
        w.node.reboot(now, "boot-2");
        again(&mut w, Policy::Static);
        w.run(40);
        runs_on(&w, "uid-p", &["3-4"]);
        runs_on(&w, "uid-r", &["1"]);
        assert!(!w.api.phases.iter().any(|p| p.ends_with("=Failed")), "seed {seed}: {:?}", w.api.phases);
    });
}

#[test]
fn another_policy_or_machine_fails_nothing_that_runs() {
    let mut w = started(1, Policy::None);
    w.create("p", pod(&[], &["2"]));
    w.create("q", pod(&[], &["500m"]));
    w.run(5);
    runs_on(&w, "uid-p", &[""]);
    assert!(w.node.cpus.is_none(), "nobody asks for it");
    let before = (w.node.running("uid-p"), w.node.running("uid-q"));
    for (what, policy, online, p, q) in [
        ("CPUs are assigned to who runs", Policy::Static, 8, "1-2", "0,3-7"),
        ("a CPU goes", Policy::Static, 2, "1", "0"),
        ("all are back", Policy::Static, 8, "1", "0,2-7"),
        ("none are assigned any more", Policy::None, 8, "0-7", "0-7"),
        ("and again", Policy::Static, 8, "1-2", "0,3-7"),
    ] {
        w.node.host.cpu_topology = crate::cpus::Topology::plain(online);
        again(&mut w, policy);
        w.run(10);
        assert_eq!((w.node.running("uid-p"), w.node.running("uid-q")), before, "{what}");
        let has = |uid: &str| on(&w, uid)[0].0.clone();
        assert_eq!((has("uid-p"), has("uid-q")), (p.into(), q.into()), "{what}");
    }
    // While it runs, too.
    w.node.host.cpu_topology = crate::cpus::Topology::plain(4);
    w.run(30);
    runs_on(&w, "uid-q", &["0,3"]);
    // What is on disk is no JSON: who runs gets CPUs again.
    w.node.cpus = Some(b"{".to_vec());
    again(&mut w, Policy::Static);
    w.run(10);
    runs_on(&w, "uid-p", &["1-2"]);
    assert!(!w.api.phases.iter().any(|p| p.ends_with("=Failed")), "{:?}", w.api.phases);
}

#[test]
fn who_cannot_be_moved_holds_up_nobody() {
    let mut w = started(1, Policy::Static);
    w.create("q", pod(&[], &["500m"]));
    w.run(5);
    w.node.stubborn.insert("c0".into());
    w.create("p", pod(&[], &["2"]));
    w.run(5);
    runs_on(&w, "uid-p", &["1-2"]);
    runs_on(&w, "uid-q", &["0-7"]);
    w.node.stubborn.clear();
    w.run(11);
    runs_on(&w, "uid-q", &["0,3-7"]);
}

#[test]
fn pods_that_get_no_cpus_are_rejected_or_wait() {
    let whole = Options { full_cores_only: true, ..Options::default() };
    // Threads 0 and 4 are of one core.
    let threads = crate::cpus::Topology::new(
        (0..8).map(|cpu| (cpu, crate::cpus::Place { core: cpu % 4, ..Default::default() })).collect(),
    );
    for (options, asks, reason) in [
        (Options::default(), "7", None),
        (whole, "3", Some("SMTAlignmentError")),
        // Six CPUs are left in whole cores, and the seventh is half a core.
        (whole, "6", None),
        (Options::default(), "8", Some("OutOfcpu")),
    ] {
        let mut w = World::new(1);
        w.node.host.cpu_topology = threads.clone();
        w.restart_kubelet_as(config(Policy::Static, options));
        w.edit_or_create_node();
        w.run(2);
        w.create("p", pod(&[], &[asks]));
        w.run(5);
        let status = &w.api.objects[POD]["status"];
        assert_eq!(status["reason"].as_str(), reason, "{asks}: {status}");
        assert_eq!(w.core.cpus().holds("uid-p"), reason.is_none(), "{asks}");
    }
    // What a pod on its way out has is waited for.
    let mut w = started(1, Policy::Static);
    w.create("p", pod(&[], &["6"]));
    w.run(5);
    w.deaf = true;
    w.delete(1);
    w.run(1);
    w.create("q", pod(&[], &["6"]));
    w.run(5);
    assert_eq!(w.api.objects["/api/v1/namespaces/n/pods/q"]["status"]["phase"], "Pending");
    w.deaf = false;
    again(&mut w, Policy::Static);
    w.run(20);
    runs_on(&w, "uid-q", &["1-6"]);
}

#[test]
fn cpus_and_devices_lie_together() {
    use crate::devices::Device;
    use crate::topology::{Policy as Together, Scope};
    for (policy, devices, cpus, expected) in [
        // The device that is near to the first CPUs is taken: CPUs follow the other.
        (Together::SingleNumaNode, 1, "3", Ok("4-6")),
        (Together::SingleNumaNode, 1, "5", Err("TopologyAffinityError")),
        (Together::BestEffort, 1, "5", Ok("1,4-7")),
        (Together::SingleNumaNode, 0, "3", Ok("1-3")),
    ] {
        let mut w = World::new(1);
        w.node.host.numa_nodes = vec![0, 1];
        w.node.host.cpu_topology = crate::cpus::Topology::new(
            (0..8).map(|cpu| (cpu, crate::cpus::Place { core: cpu, numa: cpu / 4, ..Default::default() })).collect(),
        );
        let node = NodeConfig { topology: (policy, Scope::Container), ..config(Policy::Static, Options::default()) };
        w.restart_kubelet_as(node);
        w.edit_or_create_node();
        w.run(2);
        w.plugin_up(&["a", "b"]);
        let epoch = w.node.plugins[KVM].epoch;
        let device = |(id, node): (&str, i64)| Device { id: id.into(), healthy: id != "a", numa_nodes: vec![node] };
        let listed = [("a", 0), ("b", 1)].map(device).into();
        w.input(Input::Own(In::PluginDevices { resource: KVM.into(), epoch, devices: listed }));
        let mut spec = pod(&[], &[cpus]);
        for list in ["limits", "requests"].into_iter().filter(|_| devices > 0) {
            spec["containers"][0]["resources"][list][KVM] = devices.to_string().into();
        }
        w.create("p", spec);
        w.run(10);
        match expected {
            Ok(cpus) => runs_on(&w, "uid-p", &[cpus]),
            Err(reason) => {
                assert_eq!(w.api.objects[POD]["status"]["reason"], reason);
                assert!(!w.core.cpus().holds("uid-p") && w.core.devices().allocations().is_empty());
            }
        }
    }
}
