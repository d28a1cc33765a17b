//! Pods that the node cannot do without, on a node that is full.

use super::*;

#[test]
fn a_pod_that_the_node_cannot_do_without_takes_the_room_of_others() {
    let asks = |cpu: &str, priority: i32| {
        let mut spec = plain();
        spec["priority"] = priority.into();
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        spec
    };
    let with_device = |cpu: &str, priority: i32| {
        let mut spec = asks(cpu, priority);
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu, KVM: "1"}, "limits": {KVM: "1"}});
        spec
    };
    let (cluster, node) = (2_000_000_000, 2_000_001_000);
    let (goes, stays) = (["Failed", "Running", "Running"], ["Running", "Running", "Failed"]);
    for (priority, wants, has_plugin, expected) in [
        (0, asks("4", cluster), false, goes),
        // Nobody goes for one that never fits, nor for one that only matters more.
        (0, asks("9", cluster), false, stays),
        (0, asks("4", 1000), false, stays),
        // Among those that the node cannot do without the one that matters more does not wait.
        (cluster, asks("4", node), false, goes),
        (cluster, asks("4", cluster), false, stays),
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
        w.create("p", asks("6", priority));
        w.create("q", asks("1", 0));
        w.run(5);
        w.create("r", wants.clone());
        w.run(30);
        let status = |name: &str| w.api.objects[&format!("/api/v1/namespaces/n/pods/{name}")]["status"].clone();
        let phases = ["p", "q", "r"].map(|name| status(name)["phase"].as_str().unwrap().to_owned());
        assert_eq!(phases, expected, "{priority} {wants}: {:?}", w.api.events);
        if expected == goes {
            let p = status("p");
            assert_eq!(p["reason"], "Preempting", "{p}");
            assert!(p["conditions"].to_string().contains("DisruptionTarget"), "{p}");
        } else {
            assert_eq!(status("r")["reason"], "OutOfcpu");
        }
    }
}
