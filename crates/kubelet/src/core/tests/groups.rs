//! Control groups that pods leave behind.

use super::*;

/// Those of pods.
fn of_pods(w: &World) -> Vec<&str> {
    w.node.groups.keys().map(String::as_str).filter(|path| path.contains("/pod")).collect()
}

/// A node on which a pod runs.
fn with_pod(seed: u64) -> World {
    let mut w = World::new(seed);
    w.edit_or_create_node();
    w.node.manifests = Some(Vec::new());
    w.create("p", plain());
    w.run(10);
    w
}

/// As after the end of a process that has yet to let go of its memory.
#[test]
fn a_group_that_stays_goes_later() {
    each_seed(|seed| {
        let mut w = with_pod(seed);
        assert_eq!(of_pods(&w).len(), 1, "seed {seed}");
        w.node.held_groups = 3;
        w.delete(1);
        w.run(100);
        assert_eq!((of_pods(&w), w.node.held_groups), (vec![], 0), "seed {seed}");
    });
}

/// Nobody knows of which class a pod was whose record is lost.
#[test]
fn what_an_earlier_life_left_goes_whatever_its_class() {
    each_seed(|seed| {
        let mut w = with_pod(seed);
        let own: Vec<String> = of_pods(&w).into_iter().map(str::to_owned).collect();
        for class in ["", "burstable/", "besteffort/"] {
            let limits = (&crate::runtime::Resources::default()).into();
            w.node.groups.insert(format!("/kubepods/{class}podgone"), limits);
        }
        w.restart_kubelet();
        w.run(30);
        assert_eq!(of_pods(&w), own, "seed {seed}");
        assert_eq!(w.node.running("uid-p").len(), 1, "seed {seed}");
    });
}
