//! Pods with devices: across reboots, with plugins that are late, and in turn.

use super::*;
use crate::devices::Device;
use crate::topology::{Policy, Scope};

/// Incident 1: the node reboots, its labels have changed, its plugins come late.
#[test]
fn after_a_reboot_a_pod_with_devices_waits_and_runs_again() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.edit("/api/v1/nodes/sim", json!({"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}}));
        w.plugin_up(&["a"]);
        w.create("p", vm("Always"));
        w.run(5);
        assert_eq!(w.phase(), "Running", "seed {seed}");
        assert_eq!(w.node.plugins[KVM].granted.len(), 1);

        let now = w.now;
        w.node.reboot(now, "boot-2");
        w.edit("/api/v1/nodes/sim", json!({"metadata": {"labels": {"kubevirt.io/schedulable": "false"}}}));
        w.restart_kubelet();
        w.run(900);
        assert!(w.node.running("uid-p").is_empty(), "not without its device");
        assert_ne!(w.phase(), "Failed");
        let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], "WaitingForDevice", "{}", w.api.objects[POD]["status"]);
        w.plugin_up(&["a"]);
        w.run(30);
        assert_eq!(w.node.running("uid-p").len(), 1, "seed {seed}");
        assert_eq!(w.node.plugins[KVM].granted.len(), 1, "asked again in this boot");
        assert!(!w.api.phases.iter().any(|p| p == "p=Failed"));
    });
}

/// What was told of a pod since a revision, write by write: its condition, and why its container `compute` waits.
fn told_since(w: &World, revision: u64) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let by = |list: &Value, key: &str, name: &str| {
        let found = list.as_array().into_iter().flatten().find(|one| one[key] == name);
        found.cloned().unwrap_or_default()
    };
    let writes = w.api.history.iter().filter(|(at, path, _)| *at > revision && path == POD);
    let told = writes.map(|(_, _, event)| {
        let event: Value = serde_json::from_slice(event).unwrap();
        let status = &event["object"]["status"];
        let condition = by(&status["conditions"], "type", crate::status::pod::ADMITTED);
        let compute = by(&status["containerStatuses"], "name", "compute");
        (text(&condition["status"]), text(&compute["state"]["waiting"]["reason"]))
    });
    told.collect()
}

/// Incident 1, as users see it. It is one write that a pod waits again, and one that it does no more: that of its container. A
/// kubelet that starts meanwhile takes nothing back, whether or not another container of the pod runs.
#[test]
fn a_pod_that_waits_for_its_device_again_says_so_in_its_condition() {
    let helper = json!({"name": "helper", "image": "busybox", "imagePullPolicy": "IfNotPresent"});
    let mut helped = vm("Always");
    helped["containers"].as_array_mut().unwrap().push(helper);
    for spec in [vm("Always"), helped] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.run(2);
            w.plugin_up(&["a"]);
            w.create("p", spec.clone());
            w.run(10);
            assert_eq!(w.phase(), "Running", "seed {seed}");
            let now = w.now;
            w.node.reboot(now, "boot-2");
            let revision = w.api.revision;
            w.restart_kubelet();
            w.run(60);
            let waits = told_since(&w, revision);
            assert_eq!(waits.last(), Some(&("False".into(), "WaitingForDevice".into())), "seed {seed}: {waits:?}");
            let conditions = w.api.objects[POD]["status"]["conditions"].to_string();
            assert!(conditions.contains(&format!("waiting for {KVM}")), "seed {seed}: {conditions}");
            w.run(900);
            assert_eq!(told_since(&w, revision), waits, "seed {seed}: nothing is written while it waits");
            assert_ne!(w.phase(), "Failed");

            w.restart_kubelet();
            w.run(60);
            let again = w.api.revision;
            w.plugin_up(&["a"]);
            w.run(30);
            assert!(w.node.running("uid-p").contains_key("compute"), "seed {seed}");
            for (condition, reason) in waits.iter().chain(&told_since(&w, again)) {
                assert_eq!(condition == "False", reason == "WaitingForDevice", "seed {seed}: {waits:?}");
            }
            let mut conditions: Vec<String> = told_since(&w, revision).into_iter().map(|(told, _)| told).collect();
            conditions.dedup();
            conditions.retain(|told| !told.is_empty());
            assert_eq!(conditions, ["False", "True"], "seed {seed}: {:?}", told_since(&w, revision));
        });
    }
}

/// Incident 1, the other half: deleted while the node was down, then the node comes up without plugins.
#[test]
fn a_pod_deleted_across_a_reboot_goes() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.edit("/api/v1/nodes/sim", json!({"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}}));
        w.plugin_up(&["a"]);
        w.create("p", vm("Never"));
        w.run(5);
        let now = w.now;
        w.node.reboot(now, "boot-2");
        w.delete(30);
        w.restart_kubelet();
        w.run(15);
        w.assert_clean();
    });
}

#[test]
fn a_pod_bound_before_the_first_registration_waits_with_a_condition() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.create("p", vm("Always"));
    // Bound while the kubelet is away.
    w.now = w.now + Duration::from_secs(1);
    w.restart_kubelet();
    w.run(10);
    assert_eq!(w.phase(), "Pending");
    assert!(!w.ready(crate::status::pod::ADMITTED));
    w.plugin_up(&["a"]);
    w.run(10);
    assert_eq!(w.phase(), "Running");
    assert!(w.ready(crate::status::pod::ADMITTED));
}

#[test]
fn a_wait_that_is_too_long_ends_in_a_rejection_with_a_reason() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.create("p", vm("Always"));
    w.now = w.now + Duration::from_secs(1);
    w.restart_kubelet();
    w.run(250);
    assert_eq!(w.phase(), "Pending");
    let conditions = w.api.objects[POD]["status"]["conditions"].to_string();
    assert!(conditions.contains(KVM) && conditions.contains("until 1970-"), "{conditions}");
    w.run(60);
    assert_eq!(w.phase(), "Failed");
    let status = &w.api.objects[POD]["status"];
    assert_eq!(status["reason"], "ResourceNotReady", "{status}");
    assert!(w.api.events.iter().filter(|e| *e == "WaitingForResource").count() == 1, "{:?}", w.api.events);
}

/// While the choice of a device is written down, its plugin says that it is not well after all.
#[test]
fn a_device_that_falls_ill_is_not_asked_for() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.run(2);
        w.plugin_up(&["a"]);
        w.run(2);
        w.create("p", vm("Always"));
        let notes = |op: &Op| matches!(op, Op::SaveCheckpoint(body) if String::from_utf8_lossy(body).contains("uid-p"));
        while !w.asked.iter().any(|(_, op)| notes(op)) {
            w.next();
        }
        let epoch = w.node.plugins[KVM].epoch;
        let list = |healthy: bool| {
            let devices = vec![Device { id: "a".into(), healthy, numa_nodes: vec![] }];
            Input::Own(In::PluginDevices { resource: KVM.into(), epoch, devices })
        };
        w.input(list(false));
        w.run(20);
        assert!(!w.asked.iter().any(|(_, op)| matches!(op, Op::Allocate { .. })), "seed {seed}");
        let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], "WaitingForDevice", "seed {seed}: {}", w.api.objects[POD]["status"]);
        w.input(list(true));
        w.run(20);
        assert_eq!(w.phase(), "Running", "seed {seed}");
    });
}

/// It was given its device, and had not begun when the power went, and the pod's record with it.
#[test]
fn a_pod_that_holds_a_device_is_not_turned_away_by_a_plugin_that_lists_none() {
    let config = || NodeConfig {
        node_name: "sim".into(),
        topology: (Policy::Restricted, Scope::Container),
        ..NodeConfig::default()
    };
    let mut w = World::new(1);
    w.node.host.numa_nodes = vec![0, 1];
    w.restart_kubelet_as(config());
    w.edit_or_create_node();
    w.run(2);
    w.plugin_up(&["a"]);
    w.run(2);
    w.node.unwritten = Some("pod-");
    w.create("p", vm("Always"));
    w.run(10);
    assert!(w.core.devices().holds("uid-p") && w.node.running("uid-p").is_empty());

    let now = w.now;
    w.node.reboot(now, "boot-2");
    w.node.sandboxes.clear();
    w.node.unwritten = None;
    w.restart_kubelet_as(config());
    w.run(2);
    w.plugin_up(&[]);
    w.run(30);
    assert_eq!(w.phase(), "Pending", "{}", w.api.objects[POD]["status"]);
    w.plugin_up(&["a"]);
    w.run(30);
    assert_eq!(w.phase(), "Running", "{}", w.api.objects[POD]["status"]);
}

#[test]
fn one_device_goes_to_one_pod_and_then_to_the_next() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.run(2);
        w.plugin_up(&["a"]);
        w.create("p", vm("Always"));
        w.run(5);
        assert_eq!(w.node.running("uid-p").len(), 1);
        w.delete(5);
        w.create("q", vm("Always"));
        w.run(20);
        assert_eq!(w.phase(), "gone");
        assert_eq!(w.node.running("uid-q").len(), 1, "seed {seed}: {:?}", w.api.phases);
    });
}

#[test]
fn a_plugin_that_restarts_with_the_kubelet_disturbs_nothing() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.run(2);
        w.plugin_up(&["a"]);
        w.create("p", vm("Always"));
        w.run(5);
        let before = w.node.running("uid-p");
        w.restart_kubelet();
        w.plugins_register();
        w.run(10);
        assert_eq!(w.node.running("uid-p"), before);
        assert_eq!(w.node.plugins[KVM].granted.len(), 1, "no second grant for what runs");
        let now = w.now;
        w.node.exit(now, &before["compute"], 1);
        w.run(10);
        assert_eq!(w.node.running("uid-p").len(), 1);
        assert_eq!(w.node.plugins[KVM].granted.len(), 1, "the grant of this boot holds");
    });
}

#[test]
fn devices_lie_together_as_the_policy_wants() {
    use Policy::{BestEffort, Restricted, SingleNumaNode};
    for (policy, scope, asks, runs) in [
        (SingleNumaNode, Scope::Container, vec![2], true),
        (SingleNumaNode, Scope::Container, vec![3], false),
        (SingleNumaNode, Scope::Container, vec![2, 2], true),
        (SingleNumaNode, Scope::Pod, vec![2, 2], false),
        (SingleNumaNode, Scope::Pod, vec![1, 1], true),
        (Restricted, Scope::Container, vec![3], true),
        (BestEffort, Scope::Pod, vec![3], true),
        (Policy::None, Scope::Pod, vec![3], true),
    ] {
        let mut w = World::new(6);
        w.node.host.numa_nodes = vec![0, 1];
        let config = NodeConfig { node_name: "sim".into(), topology: (policy, scope), ..NodeConfig::default() };
        w.restart_as(KubeletCore::new(config, &Rng::new(1)));
        w.edit_or_create_node();
        w.run(2);
        let ids = ["a", "b", "c", "d"];
        w.plugin_up(&ids);
        // The first and the third on one node, the others on the other.
        let device = |(n, id): (i64, &&str)| Device { id: (*id).into(), healthy: true, numa_nodes: vec![n % 2] };
        let devices = (0..).zip(&ids).map(device).collect();
        let epoch = w.node.plugins[KVM].epoch;
        w.input(Input::Own(In::PluginDevices { resource: KVM.into(), epoch, devices }));
        let container = |(i, n): (usize, &usize)| json!({"name": format!("c{i}"), "image": "busybox", "resources": {"limits": {KVM: n.to_string()}}});
        let containers: Vec<Value> = asks.iter().enumerate().map(container).collect();
        w.create("p", json!({"terminationGracePeriodSeconds": 1, "containers": containers}));
        w.run(10);
        let status = w.api.objects[POD]["status"].clone();
        let what = format!("{policy:?} {scope:?} {asks:?}: {status}");
        if !runs {
            assert_eq!(
                (status["phase"].as_str(), status["reason"].as_str()),
                (Some("Failed"), Some("TopologyAffinityError")),
                "{what}"
            );
            assert!(w.core.devices().allocations().is_empty(), "{what}");
            continue;
        }
        assert_eq!(status["phase"], "Running", "{what}");
        for granted in w.node.plugins[KVM].granted.iter().filter(|_| policy == SingleNumaNode) {
            let node = |id: &String| matches!(id.as_str(), "a" | "c");
            assert!(granted.iter().all(node) || !granted.iter().any(node), "{what} {granted:?}");
        }
        w.delete(1);
        w.run(20);
        w.assert_clean();
    }
}

/// The power is cut and the disk has forgotten the records and the checkpoint, or shows something else in its place; the Node
/// still offers the device.
#[test]
fn a_node_that_forgot_its_plugins_starts_nothing_without_its_device() {
    for left in [None, Some(Vec::new()), Some(vec![0; 300]), Some(b"{\"Data\":".to_vec())] {
        each_seed(|seed| forgets_its_plugins(seed, left.as_deref()));
    }
}

fn forgets_its_plugins(seed: u64, left: Option<&[u8]>) {
    let what = format!("seed {seed}, {left:?} left");
    let mut w = World::new(seed);
    w.run(2);
    w.edit_or_create_node();
    w.plugin_up(&["a"]);
    w.run(5);
    w.create("p", vm("Always"));
    w.run(5);
    assert_eq!(w.phase(), "Running", "{what}");
    let amount = |w: &World| w.api.objects["/api/v1/nodes/sim"]["status"]["allocatable"][KVM].clone();
    assert_eq!(amount(&w), "1");

    let now = w.now;
    w.node.reboot(now, "boot-2");
    w.node.records.clear();
    w.node.checkpoint = left.map(<[u8]>::to_vec);
    w.restart_kubelet();
    w.create("q", vm("Always"));
    w.run(60);
    assert_eq!(amount(&w), "0", "{what}");
    for uid in ["uid-p", "uid-q"] {
        assert!(w.node.running(uid).is_empty(), "{what}: {uid} runs without its device");
    }
    assert!(!w.api.phases.iter().any(|p| p.ends_with("=Failed")), "{:?}", w.api.phases);
    // A kubelet that is killed now still knows.
    w.restart_kubelet();
    w.run(10);
    assert!(w.node.running("uid-p").is_empty());
    w.plugin_up(&["a", "b"]);
    w.run(30);
    for uid in ["uid-p", "uid-q"] {
        assert_eq!(w.node.running(uid).len(), 1, "{what}: {uid}");
    }
}

#[test]
fn an_amount_that_somebody_wrote_is_believed_when_it_is_written_again() {
    const PLAIN: &str = "example.com/dongle";
    let mut w = World::new(1);
    w.edit_or_create_node();
    let write = |w: &mut World| {
        w.edit("/api/v1/nodes/sim", json!({"status": {"allocatable": {PLAIN: "2"}, "capacity": {PLAIN: "2"}}}));
    };
    write(&mut w);
    w.node.checkpoint = None;
    w.restart_kubelet();
    w.run(15);
    let amount = |w: &World| w.api.objects["/api/v1/nodes/sim"]["status"]["allocatable"][PLAIN].clone();
    assert_eq!(amount(&w), "0");
    write(&mut w);
    w.run(30);
    assert_eq!(amount(&w), "2");
    let container = json!({"name": "c", "image": "busybox", "resources": {"limits": {PLAIN: "1"}}});
    w.create("p", json!({"containers": [container]}));
    w.run(10);
    assert_eq!(w.phase(), "Running");
}

/// Upstream's "will report a Healthy and then Unhealthy single device in the pod status"
/// (`test/e2e_node/device_plugin_failures_pod_status_test.go`).
#[test]
fn the_health_of_a_device_is_told_with_its_pod() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    w.run(2);
    w.plugin_up(&["a"]);
    w.create("p", vm("Always"));
    w.run(5);
    let told = |w: &World| w.api.objects[POD]["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    let of = |word: &str| json!([{"name": KVM, "resources": [{"resourceID": "a", "health": word}]}]);
    assert_eq!(told(&w), of("Healthy"), "{}", w.api.objects[POD]["status"]);
    let epoch = w.node.plugins[KVM].epoch;
    for (healthy, word) in [(false, "Unhealthy"), (true, "Healthy"), (false, "Unhealthy")] {
        let devices = vec![Device { id: "a".into(), healthy, numa_nodes: vec![] }];
        w.input(Input::Own(In::PluginDevices { resource: KVM.into(), epoch, devices }));
        w.run(3);
        assert_eq!(told(&w), of(word));
    }
    // Nobody has heard of the plugin yet.
    w.restart_kubelet();
    w.run(5);
    assert_eq!(told(&w), of("Unhealthy"));
    w.plugins_register();
    w.run(5);
    assert_eq!(told(&w), of("Healthy"), "as the plugin lists it now");
}
