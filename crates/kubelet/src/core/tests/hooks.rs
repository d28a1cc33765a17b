//! Hooks of containers: what those wait for that start after them, and what time is left for those that end.

use super::*;

/// Names of the containers that are there, by their ids.
fn names(w: &World) -> BTreeMap<String, String> {
    w.node.containers.iter().map(|(id, c)| (id.clone(), c.record.name.clone())).collect()
}

/// What was asked of containers since a time: `hook c`, and `stop c` with its seconds (`+` where there are more than two).
fn asked(w: &World, since: Time, names: &BTreeMap<String, String>) -> Vec<String> {
    let name = |id: &str| names.get(id).cloned().unwrap_or_default();
    let of = |op: &Op| match op {
        Op::Exec { id, .. } => Some(format!("hook {}", name(id))),
        Op::StopContainer { id, timeout_s } if *timeout_s > 2 => Some(format!("stop {} +", name(id))),
        Op::StopContainer { id, timeout_s } => Some(format!("stop {} {timeout_s}", name(id))),
        _ => None,
    };
    w.asked.iter().filter(|(at, _)| *at >= since).filter_map(|(_, op)| of(op)).collect()
}

/// Upstream's "should call sidecar container PreStop hook simultaneously" (`test/e2e_node/container_lifecycle_test.go`).
#[test]
fn hooks_of_sidecars_run_with_those_of_the_others() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        let hook = json!({"preStop": {"exec": {"command": ["bye"]}}});
        let sidecar = |name: &str, lifecycle: &Value| {
            json!({"name": name, "image": "busybox", "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always",
                   "lifecycle": lifecycle})
        };
        w.create(
            "p",
            json!({
                "terminationGracePeriodSeconds": 30,
                "initContainers": [sidecar("s", &hook), sidecar("t", &hook), sidecar("u", &Value::Null)],
                "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                                "lifecycle": {"preStop": {"sleep": {"seconds": 10}}}}]
            }),
        );
        w.run(10);
        assert_eq!(w.phase(), "Running", "seed {seed}");
        let (since, names) = (w.now, names(&w));
        w.delete(30);
        w.run(5);
        let mut begun = asked(&w, since, &names);
        begun.sort();
        assert_eq!(begun, ["hook s", "hook t"], "seed {seed}: the hook of another goes on");
        w.run(20);
        let (hooks, stops): (Vec<_>, Vec<_>) =
            asked(&w, since, &names).into_iter().partition(|line| line.starts_with("hook"));
        assert_eq!(stops, ["stop c +", "stop u +", "stop t +", "stop s +"], "seed {seed}");
        assert_eq!(hooks.len(), 2, "seed {seed}: each once");
        w.run(20);
        w.assert_clean();
    });
}

/// A stop signal is heard also by who had no time left, and once.
#[test]
fn who_used_up_his_time_is_stopped_with_a_signal() {
    let none = Value::Null;
    let sleep = json!({"preStop": {"sleep": {"seconds": 60}}});
    let exec = json!({"preStop": {"exec": {"command": ["bye"]}}});
    for (of_sidecar, of_regular, hangs, grace, expected) in [
        (None, &sleep, None, 5, &["stop c 2"][..]),
        (Some(&none), &sleep, None, 5, &["stop c 2", "stop s 2"]),
        (Some(&sleep), &sleep, None, 5, &["stop c 2", "stop s 2"]),
        // The command is given up when the time is over, which the node says at once here.
        (Some(&exec), &sleep, Some("s"), 5, &["hook s", "stop c 2", "stop s 2"]),
        (None, &none, None, 5, &["stop c +"]),
        // No grace is none.
        (None, &sleep, None, 0, &["stop c 0"]),
    ] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.node.exec_hangs.extend(hangs.map(str::to_owned));
        let image = |name: &str, lifecycle: &Value| {
            json!({"name": name, "image": "busybox", "imagePullPolicy": "IfNotPresent",
                   "lifecycle": lifecycle})
        };
        let mut spec = json!({"terminationGracePeriodSeconds": 5, "containers": [image("c", of_regular)]});
        if let Some(lifecycle) = of_sidecar {
            let mut sidecar = image("s", lifecycle);
            sidecar["restartPolicy"] = "Always".into();
            spec["initContainers"] = json!([sidecar]);
        }
        w.create("p", spec);
        w.run(10);
        let (since, names) = (w.now, names(&w));
        w.delete(grace);
        w.run(40);
        let mut lines = asked(&w, since, &names);
        lines.sort();
        assert_eq!(lines, expected, "{of_sidecar:?} {of_regular} {grace}");
        w.assert_clean();
    }
}

/// Upstream's "should not launch second container before PostStart of the first container completed"
/// (`test/e2e_node/container_lifecycle_test.go`): proxies hold the others back so.
#[test]
fn who_starts_first_holds_the_others_back_with_his_hook() {
    let sleeps = json!({"postStart": {"sleep": {"seconds": 10}}});
    for (image, lifecycle, of_config_map, after_5_s, after_25_s) in [
        ("busybox", &sleeps, false, &["a"][..], &["a", "b"][..]),
        // What it is made of is read first.
        ("busybox", &sleeps, true, &["a"], &["a", "b"]),
        ("busybox", &Value::Null, false, &["a", "b"], &["a", "b"]),
        // Who cannot start holds up nobody.
        ("missing", &sleeps, false, &["b"], &["b"]),
    ] {
        each_seed(|seed| {
            let mut w = World::new(seed);
            w.edit_or_create_node();
            w.api.put("/api/v1/namespaces/n/configmaps/cm", json!({"metadata": {"name": "cm"}, "data": {"k": "v"}}));
            let mut first =
                json!({"name": "a", "image": image, "imagePullPolicy": "IfNotPresent", "lifecycle": lifecycle});
            if of_config_map {
                first["env"] = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]);
            }
            let second = json!({"name": "b", "image": "busybox", "imagePullPolicy": "IfNotPresent"});
            w.create("p", json!({"containers": [first, second]}));
            for (seconds, expected) in [(5, after_5_s), (20, after_25_s)] {
                w.run(seconds);
                let mut running: Vec<String> =
                    w.node.containers.values().filter(|c| c.record.may_run()).map(|c| c.record.name.clone()).collect();
                running.sort();
                assert_eq!(running, expected, "seed {seed}: {image} {lifecycle} {of_config_map}");
            }
        });
    }
}

/// An image that is exchanged while the old one is being pulled.
#[test]
fn a_container_is_made_of_the_image_that_it_names() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        w.node.registry.extend([("first".to_owned(), None), ("second".to_owned(), None)]);
        let of =
            |image: &str| json!({"containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]});
        w.create("p", of("first"));
        while !w.asked.iter().any(|(_, op)| matches!(op, Op::PullImage { .. })) {
            w.next();
        }
        w.edit(POD, json!({"spec": of("second")}));
        w.run(40);
        let running = w.node.containers.values().find(|c| c.record.may_run()).expect("it runs");
        assert_eq!(running.record.image_ref, "sha256:second", "seed {seed}");
    });
}

/// A listing may show that a container runs before its start was answered: its hook is still to come.
#[test]
fn nobody_is_ready_before_his_hook_was_begun() {
    for (lifecycle, is_ready) in [(json!({"postStart": {"sleep": {"seconds": 1}}}), false), (Value::Null, true)] {
        let mut w = World::new(1);
        w.edit_or_create_node();
        w.run(3);
        let container =
            json!({"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent", "lifecycle": lifecycle});
        w.create("p", json!({"containers": [container]}));
        let is_answer = |input: &Input<In>| matches!(input, Input::Own(In::Done(_, Ok(Reply::Started(_)))));
        let answer = loop {
            w.next();
            let found = w.arriving.iter().find(|(_, input)| is_answer(input)).map(|(at, _)| *at);
            if let Some(at) = found {
                break w.arriving.remove(&at).expect("it is on its way");
            }
        };
        w.run(5);
        assert_eq!(w.ready("Ready"), is_ready, "{lifecycle}: {}", w.api.objects[POD]["status"]);
        w.input(answer);
        w.run(5);
        assert!(w.ready("Ready"), "{lifecycle}: {}", w.api.objects[POD]["status"]);
    }
}
