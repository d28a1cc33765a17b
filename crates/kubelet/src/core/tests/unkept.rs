//! An API server that takes what is written and keeps something else: an older one, or one with a webhook.

use super::*;

fn writes(w: &World, of: &str) -> usize {
    w.api.history.iter().filter(|(_, path, _)| path == of).count()
}

/// It is told the same again every ten seconds, and what is new at once.
#[test]
fn a_status_that_is_not_kept_is_not_written_again_and_again() {
    for field in ["startTime", "hostIP", "conditions", "qosClass"] {
        let mut w = World::new(1);
        w.run(2);
        w.api.unkept = Some(("pods", field));
        w.create("p", plain());
        w.run(15);
        assert_eq!(w.phase(), "Running", "{field}");
        let before = writes(&w, POD);
        w.run(60);
        let again = writes(&w, POD) - before;
        assert!((5..=7).contains(&again), "{field}: {again} writes in a minute");
        let id = w.node.running("uid-p").into_values().next().expect("a container");
        let now = w.now;
        w.node.exit(now, &id, 1);
        w.run(4);
        let restarts = &w.api.objects[POD]["status"]["containerStatuses"][0]["restartCount"];
        assert_eq!(restarts, 1, "{field}");
    }
}

#[test]
fn nor_is_that_of_a_node() {
    let node = "/api/v1/nodes/sim";
    let mut w = World::new(1);
    w.run(15);
    w.api.unkept = Some(("nodes", "nodeInfo"));
    w.edit(node, json!({"status": {"nodeInfo": null}}));
    w.run(1);
    let before = writes(&w, node);
    w.run(60);
    let again = writes(&w, node) - before;
    assert!((5..=7).contains(&again), "{again} writes in a minute");
}
