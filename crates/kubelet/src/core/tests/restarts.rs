//! What a restarted kubelet knows of its volumes before anybody has told it anything.

use carrack_types::volume::{VOLUME_USERS, digest};

use super::*;
use crate::records::{DEVICES, POD_PREFIX, PodRecord, VOLUME_PREFIX};
use crate::volumes::VolumeKind;

const PODS: usize = 20;
const SETTINGS: &str = "/api/v1/namespaces/n/configmaps/settings";

fn full() -> Value {
    let mounts =
        ["memory", "disk", "about", "settings"].map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts}],
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
    w.api.put(SETTINGS, json!({"metadata": {"name": "settings"}, "data": {"a": "b"}}));
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

/// Of a volume whose record cannot be read nobody knows that it is not mounted here any more.
#[test]
fn what_the_node_names_in_use_stays_named_while_its_record_cannot_be_read() {
    const UNREAD: &str = "kubernetes.io/csi/d^unread";
    let node = "/api/v1/nodes/sim";
    for (left, expected) in
        [(None, json!([])), (Some(&b"{"[..]), json!([UNREAD])), (Some(&[0; 64][..]), json!([UNREAD]))]
    {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.run(15);
        let users = json!({UNREAD: ["u"], "kubernetes.io/csi/d^gone": ["u"]}).to_string();
        w.edit(
            node,
            json!({
                "metadata": {"annotations": {VOLUME_USERS: users}},
                "status": {"volumesInUse": [UNREAD, "kubernetes.io/csi/d^gone"]},
            }),
        );
        if let Some(left) = left {
            w.node.records.insert(format!("{VOLUME_PREFIX}{}", digest(UNREAD)), left.to_vec());
        }
        w.restart_kubelet();
        w.run(30);
        let object = &w.api.objects[node];
        assert_eq!(object["status"]["volumesInUse"], expected, "{left:?} left");
        let users = object["metadata"]["annotations"][VOLUME_USERS].as_str().unwrap_or("{}");
        let users: BTreeMap<String, Value> = serde_json::from_str(users).expect("a map");
        let expected: Vec<&str> = expected.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(users.keys().collect::<Vec<_>>(), expected, "{left:?} left");
    }
}

/// No mount outlives its boot: what a record of an earlier one names holds nothing, unless something is mounted already.
#[test]
fn a_volumes_record_that_cannot_be_read_ends_with_its_boot() {
    const UNREAD: &str = "kubernetes.io/csi/d^unread";
    let node = "/api/v1/nodes/sim";
    let name = format!("{VOLUME_PREFIX}{}", digest(UNREAD));
    for (reboots, mounted, stays) in [(false, false, true), (true, false, false), (true, true, true)] {
        let what = format!("reboots: {reboots}, mounted: {mounted}");
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.run(15);
        w.edit(node, json!({"status": {"volumesInUse": [UNREAD]}}));
        w.node.records.insert(name.clone(), Vec::new());
        if reboots {
            let now = w.now;
            w.node.reboot(now, "boot-2");
        }
        if mounted {
            let path = format!("{}/plugins/d/globalmount", w.core.config.root_dir);
            w.node.volumes.insert(path, VolumeKind::EmptyDir { tmpfs: true, size_bytes: 0, page_bytes: 0 });
        }
        w.restart_kubelet();
        w.run(30);
        assert_eq!(w.node.records.contains_key(&name), stays, "{what}");
        let expected = if stays { json!([UNREAD]) } else { json!([]) };
        assert_eq!(w.api.objects[node]["status"]["volumesInUse"], expected, "{what}");
    }
}

/// What is of an earlier boot is told by the record of the boot: where it was not written it is written again.
#[test]
fn a_boot_that_was_not_recorded_is_recorded_again() {
    let mut w = World::new(1);
    w.node.unwritten = Some(DEVICES);
    w.edit_or_create_node();
    w.run(15);
    let tries = w.asked.iter().filter(|(_, op)| matches!(op, Op::SaveRecord { name, .. } if name == DEVICES)).count();
    assert!((2..20).contains(&tries), "{tries}");
    assert!(!w.node.records.contains_key(DEVICES));
    w.node.unwritten = None;
    w.run(5);
    assert!(w.node.records.contains_key(DEVICES));
}

/// Who has ended, and of whom the record is gone, holds nothing: its containers are remembered, and it has no volumes.
#[test]
fn a_pod_that_has_ended_without_a_record_is_known() {
    let mut w = World::new(1);
    w.edit_or_create_node();
    let mut once = plain();
    once["restartPolicy"] = "Never".into();
    w.create("p", once);
    w.run(20);
    let (now, containers) = (w.now, w.node.containers.keys().cloned().collect::<Vec<_>>());
    for id in containers {
        w.node.exit(now, &id, 0);
    }
    w.run(20);
    assert_eq!(w.phase(), "Succeeded");
    for left in [None, Some(Vec::new())] {
        let name = format!("{POD_PREFIX}uid-p");
        w.node.records.remove(&name);
        w.node.records.extend(left.map(|left| (name.clone(), left)));
        w.restart_kubelet();
        w.run(30);
        assert!(w.core.users_known() && !w.node.containers.is_empty());
        assert!(!w.node.records.contains_key(&name), "what cannot be read and names nothing is dropped");
    }
}

/// A pod's record that cannot be read holds the volumes of the node as long as something of the pod may be there that nobody knows.
#[test]
fn a_pods_record_that_cannot_be_read_holds_no_more_than_it_must() {
    let start = |left: bool, pods: &[&str]| {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.api.put(SETTINGS, json!({"metadata": {"name": "settings"}, "data": {}}));
        for name in pods {
            w.create(name, full());
        }
        w.run(20);
        for record in [format!("{POD_PREFIX}gone"), format!("{POD_PREFIX}uid-p")] {
            if record.ends_with("gone") || pods.contains(&"p") {
                w.node.records.insert(record, b"{".to_vec());
            }
        }
        if left {
            let path = format!("{}/volumes/kubernetes.io~secret/s", w.core.config.pod_dir("gone"));
            w.node.volumes.insert(path, VolumeKind::EmptyDir { tmpfs: true, size_bytes: 0, page_bytes: 0 });
        }
        w
    };
    let told = |w: &World| w.api.events.iter().filter(|event| *event == "UnreadableRecord").count();
    // Of one that is gone nothing is there, or a mount.
    for (left, events) in [(false, 0), (true, 1)] {
        let mut w = start(left, &[]);
        w.restart_kubelet();
        w.run(30);
        assert_eq!((w.core.users_known(), told(&w)), (!left, events), "a mount is left: {left}");
        assert_eq!(w.node.records.contains_key(&format!("{POD_PREFIX}gone")), left, "a mount is left: {left}");
    }
    // What runs on is known again, and its record is whole.
    let mut w = start(false, &["p"]);
    w.restart_kubelet();
    w.run(30);
    assert_eq!((w.core.users_known(), w.core.mounts().count()), (true, 4));
    let record = &w.node.records[&format!("{POD_PREFIX}uid-p")];
    assert!(serde_json::from_slice::<PodRecord>(record).is_ok_and(|record| !record.may_have_more));
    // Its new record is not believed before all of it was seen, however often the kubelet is killed meanwhile.
    let mut w = start(false, &["p"]);
    w.api.objects.remove(SETTINGS);
    for life in 1..3 {
        w.restart_kubelet();
        w.run(30);
        assert!(!w.core.users_known(), "life {life}");
    }
    let news = w.api.put(SETTINGS, json!({"metadata": {"name": "settings"}, "data": {}}));
    w.tell(news);
    w.run(90);
    assert!(w.core.users_known());
    // Of one that is to end, what its spec has is taken down.
    let mut w = start(false, &["p"]);
    w.delete(5);
    w.restart_kubelet();
    w.run(60);
    assert_eq!((w.core.users_known(), w.core.mounts().count(), w.node.volumes.len()), (true, 0, 0));
    assert!(!w.node.records.contains_key(&format!("{POD_PREFIX}uid-p")), "it went with its pod");
}

/// It never ran, and no kubelet that starts says that it did.
#[test]
fn a_rejected_pod_stays_what_it_was_told_to_be() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        let mut spec = plain();
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
        w.create("p", spec);
        w.run(5);
        let told = w.api.objects[POD]["status"].clone();
        assert_eq!(told["reason"], "OutOfcpu", "seed {seed}: {told}");
        w.restart_kubelet();
        w.run(10);
        assert_eq!(w.api.objects[POD]["status"], told, "seed {seed}");
    });
}

/// V5: that a pod is to go is never taken back, so a restarted kubelet needs nobody who says it once more.
#[test]
fn who_was_to_go_goes_while_nobody_serves() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.create("p", plain());
        w.run(3);
        // It is being stopped when the kubelet dies.
        w.node.unstoppable.insert("c".to_owned());
        w.delete(5);
        w.run(2);
        assert_eq!(w.core.going().count(), 1, "seed {seed}");
        assert!(!w.node.running("uid-p").is_empty() && !w.node.volumes.is_empty(), "seed {seed}");
        w.set_api_down(true);
        w.node.unstoppable.clear();
        w.restart_kubelet();
        w.run(30);
        assert!(w.node.running("uid-p").is_empty() && w.node.volumes.is_empty(), "seed {seed}");
        assert!(w.api.objects.contains_key(POD), "nobody could be told, seed {seed}");
        w.set_api_down(false);
        w.run(60);
        w.assert_clean();
    });
}
