//! Nodes that run low, and pods that hold more than they may.

use super::*;

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

#[test]
fn a_pod_that_holds_more_than_it_may_is_evicted() {
    let mut w = World::new(6);
    w.edit_or_create_node();
    let mut limited = plain();
    limited["volumes"][0]["emptyDir"] = json!({"sizeLimit": "1Mi"});
    w.create("p", limited);
    w.create("q", plain());
    w.run(5);
    let holds = |bytes| crate::eviction::Usage { volumes: [("e".to_owned(), bytes)].into(), ..Default::default() };
    w.node.usage = [("uid-p".into(), holds(1 << 20)), ("uid-q".into(), holds(9 << 20))].into();
    w.run(15);
    assert_eq!(w.phase(), "Running");
    w.node.usage.insert("uid-p".into(), holds((1 << 20) + 1));
    w.run(15);
    let status = &w.api.objects[POD]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")), "{status}");
    assert_eq!(w.node.running("uid-q").len(), 1);
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
