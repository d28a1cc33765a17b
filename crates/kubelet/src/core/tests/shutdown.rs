//! The machine is shut down while pods run on it.

use super::*;
use crate::shutdown::Groups;

const CRITICAL: i64 = 2_000_000_000;

impl World {
    /// A machine that is held up for twenty seconds for ordinary pods, and for ten more for critical ones: `p` and `q`.
    fn held_up(seed: u64) -> Self {
        let mut w = Self::new(seed);
        let shutdown = Groups::of_two(Duration::from_secs(30), Duration::from_secs(10));
        w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), shutdown, ..NodeConfig::default() });
        w.edit_or_create_node();
        w.create("p", plain());
        let mut critical = plain();
        critical["priority"] = CRITICAL.into();
        critical["terminationGracePeriodSeconds"] = 60.into();
        w.create("q", critical);
        w.run(5);
        w
    }

    fn status(&self, name: &str) -> &Value {
        &self.api.objects[&format!("/api/v1/namespaces/n/pods/{name}")]["status"]
    }

    fn node_ready(&self) -> &Value {
        let conditions = self.api.objects["/api/v1/nodes/sim"]["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == "Ready").unwrap()
    }

    /// What was asked for since then about pods' ends, and how many seconds after that. Times to stop are rounded up to five
    /// seconds, since some of them pass on the way.
    fn ends_since(&self, asked: usize, begun: Time) -> Vec<(u64, String)> {
        let names: BTreeMap<&str, &str> =
            self.node.containers.iter().map(|(id, c)| (id.as_str(), c.record.pod.name.as_str())).collect();
        let words = self.asked[asked..].iter().filter_map(|(at, op)| {
            let word = match op {
                Op::StopContainer { id, timeout_s } => {
                    format!("{} has {} s", names.get(id.as_str())?, (timeout_s + 4) / 5 * 5)
                }
                Op::TearDownVolume { uid, .. } => format!("{uid} unmounted"),
                Op::LetGoDown => "let go".to_owned(),
                _ => return None,
            };
            Some((at.since(begun).as_secs(), word))
        });
        words.collect()
    }
}

/// What was asked for, in this order, within so many seconds.
fn check_ends(ends: &[(u64, String)], expected: &[&str], within_s: u64, what: &str) {
    let words: Vec<&str> = ends.iter().map(|(_, word)| word.as_str()).collect();
    assert_eq!(words, expected, "{what}");
    assert!(ends.iter().all(|(after_s, _)| *after_s < within_s), "{what}: {ends:?}");
}

#[test]
fn pods_end_in_their_turns_and_then_the_machine_may_go_down() {
    each_seed(|seed| {
        let mut w = World::held_up(seed);
        let (asked, begun) = (w.asked.len(), w.now);
        w.input(Input::Own(In::ShutdownBegins));
        w.run(1);
        // Nobody comes any more.
        w.create("r", plain());
        w.run(8);
        let expected = ["p has 5 s", "uid-p unmounted", "q has 10 s", "uid-q unmounted", "let go"];
        check_ends(&w.ends_since(asked, begun), &expected, 5, &format!("seed {seed}"));
        for name in ["p", "q"] {
            let s = w.status(name);
            assert_eq!((&s["phase"], &s["reason"]), (&json!("Failed"), &json!("Terminated")), "seed {seed}: {s}");
            assert_eq!(s["message"], "Pod was terminated in response to imminent node shutdown.");
            assert!(s["conditions"].to_string().contains("TerminationByKubelet"), "{s}");
        }
        let s = w.status("r");
        assert_eq!((&s["phase"], &s["reason"]), (&json!("Failed"), &json!("NodeShutdown")), "seed {seed}: {s}");
        assert_eq!(s["message"], "Pod was rejected: Pod was rejected as the node is shutting down.");
        assert!(!w.node.sandboxes.values().any(|s| s.pod.name == "r"), "seed {seed}");
        let ready = w.node_ready();
        assert_eq!((&ready["status"], &ready["message"]), (&json!("False"), &json!("node is shutting down")));
        // It stays after all: what has ended has ended, and others come.
        w.input(Input::Own(In::ShutdownCancelled));
        w.create("s", plain());
        w.run(10);
        assert_eq!(w.status("s")["phase"], "Running", "seed {seed}");
        assert_eq!((&w.status("p")["phase"], &w.node_ready()["status"]), (&json!("Failed"), &json!("True")));
        let told = w.api.events.iter().filter(|e| *e == "NodeShutdown").count();
        assert_eq!((told, w.ends_since(asked, begun).len()), (3, 5), "seed {seed}: {:?}", w.api.events);
    });
}

#[test]
fn a_turn_ends_with_its_time_whatever_is_left_of_its_pods() {
    for (grace_s, first) in [(5, "p has 5 s"), (600, "p has 20 s")] {
        let mut w = World::held_up(3);
        w.edit(POD, json!({"spec": {"terminationGracePeriodSeconds": grace_s}}));
        w.run(5);
        // What was stopped is never seen to have stopped.
        w.deaf = true;
        let (asked, begun) = (w.asked.len(), w.now);
        w.input(Input::Own(In::ShutdownBegins));
        w.run(40);
        let ends = w.ends_since(asked, begun);
        let ends: Vec<(u64, &str)> = ends.iter().map(|(after_s, word)| (*after_s, word.as_str())).collect();
        assert_eq!(ends, [(0, first), (20, "q has 10 s"), (30, "let go")], "{grace_s}");
    }
}

#[test]
fn a_restarted_kubelet_ends_pods_once_it_knows_them() {
    each_seed(|seed| {
        let mut w = World::held_up(seed);
        let shutdown = Groups::of_two(Duration::from_secs(30), Duration::from_secs(10));
        w.restart_kubelet_as(NodeConfig { node_name: "sim".into(), shutdown, ..NodeConfig::default() });
        let (asked, begun) = (w.asked.len(), w.now);
        w.input(Input::Own(In::ShutdownBegins));
        w.run(15);
        let expected = ["p has 5 s", "uid-p unmounted", "q has 10 s", "uid-q unmounted", "let go"];
        check_ends(&w.ends_since(asked, begun), &expected, 10, &format!("seed {seed}"));
        assert_eq!(w.status("p")["reason"], "Terminated", "seed {seed}");
    });
}

#[test]
fn that_the_machine_cannot_be_held_up_is_told_once() {
    let mut w = World::held_up(2);
    for why in ["no bus", "no bus", "no logind", "no logind"] {
        w.input(Input::Own(In::ShutdownUnheld(why.into())));
        w.run(2);
    }
    assert_eq!(w.api.events.iter().filter(|e| *e == "ShutdownNotInhibited").count(), 2, "{:?}", w.api.events);
    assert_eq!(w.phase(), "Running");
}

/// A guest's power button is pressed by its pod's hook.
#[test]
fn a_hook_has_as_long_as_the_pod_and_its_group_both_allow() {
    for (pod_s, allowed_s) in [(600, 20), (8, 8)] {
        let mut w = World::held_up(4);
        let mut spec = plain();
        spec["terminationGracePeriodSeconds"] = pod_s.into();
        spec["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["press"]}}});
        w.create("h", spec);
        w.run(5);
        w.input(Input::Own(In::ShutdownBegins));
        w.run(3);
        let pressed = w.asked.iter().filter_map(|(_, op)| match op {
            Op::Exec { timeout_s, .. } => Some(*timeout_s),
            _ => None,
        });
        assert_eq!(pressed.collect::<Vec<_>>(), [allowed_s], "{pod_s}");
        assert_eq!(w.status("h")["reason"], "Terminated", "{pod_s}");
    }
}

/// (It had ended for good where its mirror, or its record, was read before it was admitted.)
#[test]
fn a_static_pod_comes_back_with_its_machine() {
    const MIRROR: &str = "/api/v1/namespaces/n/pods/web-sim";
    each_seed(|seed| {
        let mut w = World::new(seed);
        let config = || NodeConfig {
            node_name: "sim".into(),
            static_pod_path: Some("/manifests".into()),
            file_check_period: Duration::from_secs(3),
            shutdown: Groups::of_two(Duration::from_secs(30), Duration::from_secs(10)),
            ..NodeConfig::default()
        };
        w.restart_kubelet_as(config());
        w.edit_or_create_node();
        w.node.manifests = Some(vec![manifest("busybox")]);
        w.run(10);
        w.input(Input::Own(In::ShutdownBegins));
        w.run(15);
        assert!(!w.node.containers.values().any(|c| c.record.may_run()), "seed {seed}");
        let told = &w.api.objects[MIRROR]["status"];
        assert_eq!((&told["phase"], &told["reason"]), (&json!("Failed"), &json!("Terminated")), "seed {seed}: {told}");
        // The mirror is seen before anybody knows which manifests there are.
        w.node.manifests = None;
        let now = w.now;
        w.node.reboot(now, "boot-2");
        w.restart_kubelet_as(config());
        w.run(10);
        w.node.manifests = Some(vec![manifest("busybox")]);
        w.run(60);
        assert_eq!(w.node.containers.values().filter(|c| c.record.may_run()).count(), 1, "seed {seed}");
        // Nor is it called ended any more, as clients show a pod that has a reason.
        let told = &w.api.objects[MIRROR]["status"];
        assert_eq!(told["phase"], "Running", "seed {seed}: {told}");
        assert_eq!((&told["reason"], &told["message"]), (&Value::Null, &Value::Null), "seed {seed}: {told}");
    });
}
