//! What a restarted kubelet knows of its volumes before anybody has told it anything.

use super::*;

const PODS: usize = 20;

fn full() -> Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent"}],
        "volumes": [
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "disk", "emptyDir": {}},
            {"name": "about", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "settings", "configMap": {"name": "settings"}},
        ],
    })
}

fn full_node(seed: u64) -> World {
    let mut w = World::new(seed);
    w.edit_or_create_node();
    w.api
        .put("/api/v1/namespaces/n/configmaps/settings", json!({"metadata": {"name": "settings"}, "data": {"a": "b"}}));
    for n in 0..PODS {
        w.create(&format!("p{n}"), full());
    }
    w.run(20);
    assert_eq!(w.core.mounts().count(), 4 * PODS, "seed {seed}");
    w
}

#[test]
fn mounts_are_known_from_one_look_at_the_disk() {
    each_seed(|seed| {
        let mut w = full_node(seed);
        let started = w.node.started.clone();
        w.set_api_down(true);
        w.deaf = true;
        w.asked.clear();
        w.restart_kubelet();
        w.run(1);
        let shown = w.asked.iter().rev().find_map(|(_, op)| match op {
            Op::PublishVolumes(census) => Some(census.values().map(|count| count.actual).sum::<usize>()),
            _ => None,
        });
        assert_eq!((shown, w.core.mounts().count()), (Some(4 * PODS), 4 * PODS), "seed {seed}");
        assert_eq!(w.asked.iter().filter(|(_, op)| matches!(op, Op::Load)).count(), 1);
        assert!(!w.asked.iter().any(|(_, op)| matches!(op, Op::SetUpVolume(_) | Op::TearDownVolume { .. })));
        w.set_api_down(false);
        w.deaf = false;
        w.run(30);
        assert_eq!((w.core.mounts().count(), &w.node.started), (4 * PODS, &started), "seed {seed}");
    });
}

#[test]
fn what_a_reboot_took_is_not_believed() {
    let mut w = full_node(1);
    let now = w.now;
    w.node.reboot(now, "boot-2");
    w.set_api_down(true);
    w.restart_kubelet();
    w.run(1);
    assert_eq!(w.core.mounts().count(), 2 * PODS, "what was in memory is gone");
    w.set_api_down(false);
    w.run(60);
    assert_eq!(w.core.mounts().count(), 4 * PODS);
    assert_eq!(w.node.containers.values().filter(|c| c.record.may_run()).count(), PODS);
}
