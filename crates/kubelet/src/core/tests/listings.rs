//! A runtime of which not all can be read: statuses that fail, listings that are torn, containers that it does not know any more or
//! cannot stop.

use super::*;
use crate::runtime::ContainerState;

const OTHER: &str = "/api/v1/namespaces/n/pods/q";

fn running(seed: u64, container: &str) -> World {
    let mut w = World::new(seed);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["containers"][0]["name"] = container.into();
    w.create("p", spec);
    w.run(5);
    assert_eq!(w.phase(), "Running", "seed {seed}");
    w
}

fn are_in(w: &mut World, state: &ContainerState) {
    w.node.containers.values_mut().for_each(|c| c.record.state = state.clone());
}

fn was_told(w: &World, reason: &str) -> bool {
    w.api.events.iter().any(|event| event == reason)
}

#[test]
fn one_status_that_cannot_be_read_blinds_nobody_to_the_others() {
    each_seed(|seed| {
        let mut w = running(seed, "odd");
        w.create("q", plain());
        w.run(5);
        w.node.unread.insert("odd".into());
        let (now, id) = (w.now, w.node.running("uid-q").into_values().next().expect("a container"));
        w.node.exit(now, &id, 1);
        w.run(5);
        assert_eq!(w.api.objects[OTHER]["status"]["containerStatuses"][0]["restartCount"], 1, "seed {seed}");
        assert_eq!((w.phase(), w.node.running("uid-p").len()), ("Running", 1), "seed {seed}");
        // It is stopped, and nobody has seen that it is.
        w.delete(5);
        w.run(30);
        assert!(w.node.running("uid-p").is_empty() && w.phase() != "gone", "seed {seed}");
        assert!(w.node.volumes.keys().any(|path| path.contains("uid-p")), "seed {seed}");
        assert!(was_told(&w, "FailedSync"), "seed {seed}: {:?}", w.api.events);
        w.node.unread.clear();
        w.run(30);
        assert_eq!((w.phase(), w.node.running("uid-q").len()), ("gone", 1), "seed {seed}");
    });
}

#[test]
fn what_a_restarted_kubelet_cannot_read_is_not_started_anew() {
    each_seed(|seed| {
        let mut w = running(seed, "c");
        w.node.unread.insert("c".into());
        w.restart_kubelet();
        w.run(20);
        assert_eq!((w.phase(), w.node.containers.len()), ("Running", 1), "seed {seed}");
        w.node.unread.clear();
        w.run(20);
        assert_eq!((w.phase(), w.node.containers.len()), ("Running", 1), "seed {seed}");
    });
}

#[test]
fn a_container_that_is_listed_without_its_sandbox_is_left_alone() {
    each_seed(|seed| {
        let mut w = running(seed, "c");
        let lists = |w: &World| w.asked.iter().filter(|(_, op)| matches!(op, Op::Relist)).count();
        let (before, started) = (lists(&w), w.node.started.clone());
        w.node.lists_no_sandboxes = true;
        while lists(&w) == before {
            w.next();
        }
        w.node.lists_no_sandboxes = false;
        w.run(10);
        assert_eq!((w.node.sandboxes.len(), w.node.containers.len()), (1, 1), "seed {seed}");
        assert_eq!((w.node.running("uid-p").len(), &w.node.started), (1, &started), "seed {seed}");
    });
}

#[test]
fn a_container_that_stays_unknown_is_stopped_and_started_anew() {
    for (seconds, restarts) in [(20, 0), (60, 1)] {
        let mut w = running(1, "c");
        are_in(&mut w, &ContainerState::Unknown);
        w.run(seconds);
        assert!(was_told(&w, "ContainerStateUnknown"), "{:?}", w.api.events);
        assert_eq!(was_told(&w, "Killing"), restarts > 0, "{:?}", w.api.events);
        if restarts == 0 {
            are_in(&mut w, &ContainerState::Running);
        }
        w.run(30);
        let status = &w.api.objects[POD]["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], restarts, "unknown for {seconds} s");
        assert_eq!(w.node.running("uid-p").len(), 1, "unknown for {seconds} s");
    }
}

#[test]
fn a_sandbox_that_has_died_goes_with_what_cannot_be_stopped_once_that_had_its_time() {
    each_seed(|seed| {
        let mut w = running(seed, "c");
        w.node.unstoppable.insert("c".into());
        w.node.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
        w.run(4);
        assert!(w.node.torn_down.is_empty(), "seed {seed}: it has five seconds");
        w.run(30);
        assert_eq!(w.node.torn_down.len(), 1, "seed {seed}");
        let ready = w.node.sandboxes.values().filter(|sandbox| sandbox.ready).count();
        assert_eq!((ready, w.node.running("uid-p").len()), (1, 1), "seed {seed}");
    });
}

/// It could not be stopped while it was unknown, and has gone on since: its time begins when it is to end.
#[test]
fn who_was_to_end_once_and_goes_on_has_all_its_time_later() {
    each_seed(|seed| {
        let mut w = running(seed, "c");
        w.node.unstoppable.insert("c".into());
        are_in(&mut w, &ContainerState::Unknown);
        w.run(60);
        assert!(was_told(&w, "Killing"), "seed {seed}: {:?}", w.api.events);
        are_in(&mut w, &ContainerState::Running);
        w.run(60);
        let before = w.asked.len();
        w.delete(5);
        w.run(4);
        let asked = |is: fn(&Op) -> bool| w.asked[before..].iter().any(|(_, op)| is(op));
        assert!(asked(|op| matches!(op, Op::StopContainer { .. })), "seed {seed}");
        assert!(!asked(|op| matches!(op, Op::StopSandbox(_))), "seed {seed}: it has five seconds");
    });
}
