//! Pods that the node cannot do without, on a node that is full.

use super::*;
use crate::effects::{Counted, Tally};

/// A pod that asks for CPUs.
fn asking(cpu: &str, priority: i32) -> Value {
    let mut spec = plain();
    spec["priority"] = priority.into();
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    spec
}

/// A node with a pod that takes this long to end, and a critical one that has just come and wants its room.
fn making_room(hook_s: u64, grace_s: u64) -> World {
    let mut w = World::new(12);
    w.edit_or_create_node();
    let mut slow = asking("6", 0);
    slow["terminationGracePeriodSeconds"] = grace_s.into();
    slow["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": hook_s}}});
    w.create("p", slow);
    w.run(5);
    w.create("r", asking("4", 2_000_000_000));
    w.run(5);
    w
}

fn status(w: &World, name: &str) -> Value {
    w.api.objects[&format!("/api/v1/namespaces/n/pods/{name}")]["status"].clone()
}

#[test]
fn a_critical_pod_waits_for_those_who_make_room_as_long_as_they_may_take() {
    let mut w = making_room(400, 600);
    w.run(350);
    assert_eq!((&status(&w, "p")["phase"], &status(&w, "r")["phase"]), (&json!("Running"), &json!("Pending")));
    w.run(80);
    let phases = ["p", "r"].map(|name| status(&w, name)["phase"].clone());
    assert_eq!(phases, [json!("Failed"), json!("Running")], "{:?}", w.api.events);
}

#[test]
fn who_has_to_go_goes_also_after_a_restart_and_says_why() {
    let mut w = making_room(30, 60);
    // Nobody needs the room any more: that it was promised is known from the record alone.
    let news = w.api.remove("/api/v1/namespaces/n/pods/r");
    w.tell(news);
    w.restart_kubelet();
    w.run(60);
    let p = status(&w, "p");
    assert_eq!((&p["phase"], &p["reason"]), (&json!("Failed"), &json!("Preempting")), "{p}");
    assert!(p["conditions"].to_string().contains("DisruptionTarget"), "{p}");
}

#[test]
fn a_pod_that_the_node_cannot_do_without_takes_the_room_of_others() {
    let with_device = |cpu: &str, priority: i32| {
        let mut spec = asking(cpu, priority);
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu, KVM: "1"}, "limits": {KVM: "1"}});
        spec
    };
    let (cluster, node) = (2_000_000_000, 2_000_001_000);
    let (goes, stays) = (["Failed", "Running", "Running"], ["Running", "Running", "Failed"]);
    for (priority, wants, has_plugin, expected) in [
        (0, asking("4", cluster), false, goes),
        // Nobody goes for one that never fits, nor for one that only matters more.
        (0, asking("9", cluster), false, stays),
        (0, asking("4", 1000), false, stays),
        // Among those that the node cannot do without the one that matters more does not wait.
        (cluster, asking("4", node), false, goes),
        (cluster, asking("4", cluster), false, stays),
        // Nor does anybody go where something else is lacking, too.
        (0, with_device("4", cluster), true, goes),
        (0, with_device("4", cluster), false, stays),
    ] {
        let mut w = World::new(12);
        w.edit_or_create_node();
        w.run(2);
        if has_plugin {
            w.plugin_up(&["a"]);
        }
        w.create("p", asking("6", priority));
        w.create("q", asking("1", 0));
        w.run(5);
        w.create("r", wants.clone());
        w.run(30);
        let counted =
            |op: &Op| matches!(op, Op::Count(Counted::Tally(Tally::Preempted, resource)) if resource == "cpu");
        let counts = w.asked.iter().filter(|(_, op)| counted(op)).count();
        assert_eq!(counts, usize::from(expected == goes), "{priority} {wants}");
        let phases = ["p", "q", "r"].map(|name| status(&w, name)["phase"].as_str().unwrap().to_owned());
        assert_eq!(phases, expected, "{priority} {wants}: {:?}", w.api.events);
        if expected == goes {
            let p = status(&w, "p");
            assert_eq!(p["reason"], "Preempting", "{p}");
            assert!(p["conditions"].to_string().contains("DisruptionTarget"), "{p}");
        } else {
            assert_eq!(status(&w, "r")["reason"], "OutOfcpu");
        }
    }
}
