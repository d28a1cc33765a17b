//! Clocks that were set: the runtime tells times by another one than decisions are made by.

use super::*;

#[test]
fn what_began_in_the_future_is_probed_now() {
    let mut w = World::new(1);
    w.run(2);
    let mut spec = plain();
    spec["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["x"]}, "periodSeconds": 1});
    w.create("p", spec);
    w.run(5);
    assert!(w.ready("Ready"));
    let later = w.now + Duration::from_secs(1_000_000);
    for c in w.node.containers.values_mut() {
        c.record.started_at = Some(later);
    }
    w.node.exec_codes.insert("c".into(), 1);
    w.restart_kubelet();
    w.run(30);
    assert!(!w.ready("Ready"), "nobody has asked it");
}

#[test]
fn what_ended_in_the_future_is_not_waited_for() {
    let mut w = World::new(1);
    w.run(2);
    w.create("p", plain());
    w.run(5);
    for restarts in 1..=2 {
        let ahead = w.now + Duration::from_secs(300);
        let id = w.node.running("uid-p").into_values().next().expect("a container");
        w.node.exit(ahead, &id, 1);
        w.run(15);
        assert_eq!(w.api.objects[POD]["status"]["containerStatuses"][0]["restartCount"], restarts);
    }
}
