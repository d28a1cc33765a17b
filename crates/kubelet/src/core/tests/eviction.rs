//! Pods and images that go: the node runs low, or a pod keeps more than it may.

use super::*;
use crate::effects::{Counted, Tally};

#[test]
fn a_node_low_on_memory_ends_the_pod_that_uses_most_and_takes_no_more() {
    let mut w = World::new(6);
    w.edit_or_create_node();
    w.create("p", plain());
    w.create("q", plain());
    w.run(5);
    let memory = |memory_bytes| crate::eviction::Usage { memory_bytes, ..Default::default() };
    w.node.usage = [("uid-p".into(), memory(10)), ("uid-q".into(), memory(20))].into();
    w.node.host.memory_available_bytes = 1 << 20;
    w.run(13);
    // What it used is free again.
    w.node.host.memory_available_bytes = 1 << 30;
    w.run(10);
    let q = &w.api.objects["/api/v1/namespaces/n/pods/q"]["status"];
    assert_eq!((&q["phase"], &q["reason"]), (&json!("Failed"), &json!("Evicted")), "{q}");
    assert!(q["message"].as_str().unwrap().contains("low on resource: memory"), "{q}");
    assert!(q["conditions"].to_string().contains("DisruptionTarget"), "{q}");
    let pressure = |w: &World| {
        let node = &w.api.objects["/api/v1/nodes/sim"]["status"]["conditions"];
        node.as_array().unwrap().iter().find(|c| c["type"] == "MemoryPressure").unwrap()["status"] == "True"
    };
    assert!(pressure(&w));
    w.create("r", plain());
    w.run(5);
    assert_eq!(w.api.objects["/api/v1/namespaces/n/pods/r"]["status"]["reason"], "Evicted");
    w.run(320);
    assert!(!pressure(&w), "it is over");
    assert!(w.api.events.iter().any(|e| e == "NodeHasInsufficientMemory"), "{:?}", w.api.events);
}

/// As one whose disk does not answer. (While it was waited for, nobody else went.)
#[test]
fn a_pod_that_cannot_be_stopped_is_not_all_that_goes() {
    let mut w = World::new(12);
    w.edit_or_create_node();
    let mut stuck = plain();
    stuck["containers"][0]["name"] = "stuck".into();
    w.node.unstoppable.insert("stuck".into());
    w.create("p", stuck);
    w.create("q", plain());
    w.run(5);
    let memory = |memory_bytes| crate::eviction::Usage { memory_bytes, ..Default::default() };
    w.node.usage = [("uid-p".into(), memory(20)), ("uid-q".into(), memory(10))].into();
    w.node.host.memory_available_bytes = 1 << 20;
    let phase = |w: &World| w.api.objects["/api/v1/namespaces/n/pods/q"]["status"]["phase"].clone();
    w.run(25);
    assert_eq!((w.node.running("uid-p").len(), phase(&w)), (1, json!("Running")));
    assert_eq!(w.api.events.iter().filter(|e| *e == "Evicted").count(), 1, "{:?}", w.api.events);
    w.run(40);
    assert_eq!((w.node.running("uid-p").len(), phase(&w)), (1, json!("Failed")));
}

#[test]
fn a_pod_that_keeps_more_on_the_disk_than_it_may_goes_and_others_stay() {
    let mut w = World::new(8);
    w.edit_or_create_node();
    let with_limit = json!({"containers": [{"name": "c", "image": "busybox"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    for (name, spec) in [("p", with_limit.clone()), ("q", with_limit), ("r", plain())] {
        w.create(name, spec);
    }
    w.run(5);
    let keeps = |bytes| crate::eviction::Usage { empty_dirs: [("v".into(), bytes)].into(), ..Default::default() };
    w.node.usage =
        [("uid-p".into(), keeps((1 << 20) + 1)), ("uid-q".into(), keeps(1 << 20)), ("uid-r".into(), keeps(1 << 30))]
            .into();
    // While the runtime cannot tell, nobody goes.
    w.node.runtime_down = true;
    w.run(25);
    let status = |w: &World, name: &str| w.api.objects[&format!("/api/v1/namespaces/n/pods/{name}")]["status"].clone();
    assert_eq!(status(&w, "p")["phase"], "Running");
    w.node.runtime_down = false;
    w.run(25);
    let p = status(&w, "p");
    assert_eq!((&p["phase"], &p["reason"]), (&json!("Failed"), &json!("Evicted")), "{p}");
    assert_eq!(p["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
    for name in ["q", "r"] {
        assert_eq!(status(&w, name)["phase"], "Running", "{name}");
    }
}

#[test]
fn a_full_disk_takes_images_before_pods() {
    let mut w = World::new(7);
    w.edit_or_create_node();
    w.node.images.insert("unused".into());
    w.create("p", plain());
    // Longer than an image must have been there since it was first listed.
    w.run(150);
    // A little less than must be left: less than an image.
    w.node.host.disk_available_bytes = (2 << 30) - (1 << 19);
    w.run(40);
    assert_eq!(w.node.images.iter().collect::<Vec<_>>(), ["busybox"]);
    assert_eq!(w.phase(), "Running");
    assert!(!w.api.events.iter().any(|e| e == "Evicted"));
}

#[test]
fn what_has_ended_goes_from_a_full_disk_before_images_and_pods() {
    ended_goes_first(None);
}

/// (A server that did not keep all of a status kept the disk full for good.)
#[test]
fn what_has_ended_goes_from_a_full_disk_whatever_else_a_server_keeps() {
    ended_goes_first(Some(("pods", "hostIP")));
}

fn ended_goes_first(unkept: Option<(&'static str, &'static str)>) {
    let mut w = World::new(10);
    w.api.unkept = unkept;
    w.edit_or_create_node();
    w.node.images.insert("unused".into());
    let mut once = plain();
    once["restartPolicy"] = "Never".into();
    w.create("p", plain());
    w.create("q", once);
    w.run(150);
    let (_, id) = w.node.running("uid-q").pop_first().unwrap();
    w.node.exit(w.now, &id, 3);
    w.run(10);
    let status = |w: &World| w.api.objects["/api/v1/namespaces/n/pods/q"]["status"].clone();
    let told = status(&w);
    assert_eq!(told["phase"], "Failed", "{told}");
    assert!(w.node.containers.contains_key(&id));
    w.node.host.disk_available_bytes = (2 << 30) - (1 << 19);
    w.run(40);
    assert!(!w.node.containers.contains_key(&id));
    assert_eq!(w.phase(), "Running");
    let place = |is_it: &dyn Fn(&Op) -> bool| w.asked.iter().position(|(_, op)| is_it(op));
    let container = place(&|op| matches!(op, Op::RemoveContainer(removed) if *removed == id));
    let image = place(&|op| matches!(op, Op::RemoveImage(_)));
    assert!(container.is_some() && container < image, "{container:?} {image:?}");
    // How it ended is known all the same, also to a kubelet that starts.
    assert_eq!(status(&w), told);
    w.restart_kubelet();
    w.run(30);
    assert_eq!(status(&w), told);
}

#[test]
fn an_image_that_stays_saves_no_pod() {
    let mut w = World::new(11);
    w.edit_or_create_node();
    w.node.images.insert("unused".into());
    w.node.kept_images.insert("unused".into());
    w.create("p", plain());
    w.run(150);
    w.node.host.disk_available_bytes = 1 << 20;
    w.run(40);
    let p = &w.api.objects[POD]["status"];
    assert_eq!((&p["phase"], &p["reason"]), (&json!("Failed"), &json!("Evicted")), "{p}");
    let unused = |op: &Op| matches!(op, Op::RemoveImage(id) if id == "sha256:unused");
    assert_eq!(w.asked.iter().filter(|(_, op)| unused(op)).count(), 1);
    let counted =
        |op: &Op| matches!(op, Op::Count(Counted::Tally(Tally::Evicted, signal)) if signal == "nodefs.available");
    assert_eq!(w.asked.iter().filter(|(_, op)| counted(op)).count(), 1);
}

/// A node low on memory, with one pod that keeps more on the disk than it may, and one that uses more memory.
#[test]
fn what_pods_use_is_measured_for_both_ends_at_once() {
    let mut w = World::new(9);
    w.edit_or_create_node();
    let with_limit = json!({"terminationGracePeriodSeconds": 5, "containers": [{"name": "c", "image": "busybox"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    w.create("p", with_limit);
    w.create("q", plain());
    w.run(5);
    let usage = |memory_bytes, kept| crate::eviction::Usage {
        memory_bytes,
        empty_dirs: [("v".into(), kept)].into(),
        ..Default::default()
    };
    w.node.usage = [("uid-p".into(), usage(10, 2 << 20)), ("uid-q".into(), usage(20, 0))].into();
    w.node.host.memory_available_bytes = 1 << 20;
    let before = w.asked.len();
    w.run(40);
    let status = |name: &str| &w.api.objects[&format!("/api/v1/namespaces/n/pods/{name}")]["status"];
    for (name, message, disrupted) in [
        ("p", "Usage of EmptyDir", false),
        ("q", "low on resource: memory. Threshold quantity: 100Mi, available: 1Mi.", true),
    ] {
        let status = status(name);
        assert_eq!(status["reason"], "Evicted", "{name}: {status}");
        assert!(status["message"].as_str().unwrap().contains(message), "{status}");
        assert_eq!(status["conditions"].to_string().contains("DisruptionTarget"), disrupted, "{status}");
    }
    let measured: Vec<Time> =
        w.asked[before..].iter().filter(|(_, op)| matches!(op, Op::Usage(_))).map(|(at, _)| *at).collect();
    assert!(measured.windows(2).all(|two| two[0] < two[1]), "{measured:?}");
    assert!(w.api.events.iter().any(|e| e == "EvictionThresholdMet"), "{:?}", w.api.events);
}

#[test]
fn a_pod_that_has_run_for_too_long_is_told_so() {
    let mut w = World::new(9);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["activeDeadlineSeconds"] = 20.into();
    w.create("p", spec);
    w.run(10);
    assert_eq!(w.phase(), "Running");
    w.run(90);
    let status = &w.api.objects[POD]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("DeadlineExceeded")), "{status}");
    assert_eq!(w.api.events.iter().filter(|e| *e == "DeadlineExceeded").count(), 1, "{:?}", w.api.events);
}
