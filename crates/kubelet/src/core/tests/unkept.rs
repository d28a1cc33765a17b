//! An API server that does not keep what it is told: an older one, or one with a webhook, that keeps something else, and one that is
//! away.

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

/// However long it is away, a pod that is deleted goes only once it has heard how that ended.
#[test]
fn an_end_is_told_after_an_outage() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.create("p", plain());
        w.run(3);
        // Its watches go on for a while.
        w.api.down = true;
        w.delete(5);
        w.run(120);
        assert!(w.node.running("uid-p").is_empty(), "seed {seed}");
        w.api.down = false;
        w.run(120);
        w.assert_clean();
        assert!(w.api.phases.iter().any(|p| p == "p=Failed"), "seed {seed}: {:?}", w.api.phases);
    });
}
