//! Containers of a pod that start again together when one of them has ended by its rule.

use super::*;

fn watched() -> Value {
    let image = |name: &str| json!({"name": name, "image": "busybox", "imagePullPolicy": "IfNotPresent"});
    let (setup, mut main, mut watcher) = (image("i"), image("c"), image("w"));
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye"]}}});
    watcher["restartPolicy"] = "Never".into();
    watcher["restartPolicyRules"] =
        json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]);
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
        "initContainers": [setup], "containers": [main, watcher]})
}

/// Ends a container of the pod that runs.
fn ends(w: &mut World, name: &str, code: i32) {
    let (now, id) = (w.now, w.node.running("uid-p")[name].clone());
    w.node.exit(now, &id, code);
}

/// The containers that run, by name, with their restart counts.
fn running(w: &World) -> BTreeMap<String, u32> {
    let running = w.node.containers.values().filter(|c| c.record.may_run());
    running.map(|c| (c.record.name.clone(), c.record.attempt)).collect()
}

/// The containers that run, by name, with the rounds that they are of.
fn rounds(w: &World) -> BTreeMap<String, u32> {
    let running = w.node.containers.values().filter(|c| c.record.may_run());
    running.map(|c| (c.record.name.clone(), c.record.round)).collect()
}

fn restarting(w: &World) -> Option<&str> {
    let conditions = w.api.objects[POD]["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == "AllContainersRestarting")?["status"].as_str()
}

fn up(seed: u64) -> World {
    up_as(seed, watched())
}

fn up_as(seed: u64, spec: Value) -> World {
    let mut w = World::new(seed);
    w.edit_or_create_node();
    w.create("p", spec);
    w.run(5);
    ends(&mut w, "i", 0);
    w.run(5);
    assert_eq!(running(&w), BTreeMap::from([("c".into(), 0), ("w".into(), 0)]), "seed {seed}");
    assert_eq!((w.phase(), restarting(&w)), ("Running", Some("False")), "seed {seed}");
    w
}

#[test]
fn a_rule_starts_all_containers_again() {
    each_seed(|seed| {
        let mut w = up(seed);
        let (sandbox, since) = (w.node.sandboxes.keys().cloned().collect::<Vec<_>>(), w.now);
        ends(&mut w, "w", 88);
        w.run(10);
        assert_eq!(running(&w), BTreeMap::from([("i".into(), 1)]), "seed {seed}: it is set up once more");
        assert_eq!(w.phase(), "Pending", "seed {seed}");
        let hooks = w.asked.iter().filter(|(at, op)| *at >= since && matches!(op, Op::Exec { .. })).count();
        let hurries = w.asked.iter().any(|(_, op)| matches!(op, Op::StopContainer { timeout_s: 0, .. }));
        assert!(hooks == 0 && hurries, "seed {seed}: nobody is given time for it");
        ends(&mut w, "i", 0);
        w.run(10);
        assert_eq!(running(&w), BTreeMap::from([("c".into(), 1), ("w".into(), 1)]), "seed {seed}");
        assert_eq!((w.phase(), restarting(&w)), ("Running", Some("False")), "seed {seed}");
        assert_eq!(w.node.sandboxes.keys().cloned().collect::<Vec<_>>(), sandbox, "seed {seed}: in the same sandbox");
        // Another code is an end as ever.
        ends(&mut w, "w", 1);
        ends(&mut w, "c", 0);
        w.run(10);
        assert_eq!(w.phase(), "Failed", "seed {seed}");
        w.delete(0);
        w.run(10);
        w.assert_clean();
    });
}

/// Whether what runs is killed, or what follows is begun, when the kubelet is: the next one goes on.
#[test]
fn a_kubelet_that_is_killed_goes_on_with_it() {
    each_seed(|seed| {
        let mut w = up(seed);
        ends(&mut w, "w", 88);
        w.set_api_down(seed % 2 == 0);
        for _ in 0..4 {
            for _ in 0..=seed {
                w.next();
            }
            w.restart_kubelet();
        }
        w.set_api_down(false);
        w.run(60);
        // What was made and never started is made once more, with another count: what counts is the round.
        assert_eq!(rounds(&w), BTreeMap::from([("i".into(), 1)]), "seed {seed}");
        ends(&mut w, "i", 0);
        w.run(60);
        assert_eq!(rounds(&w), BTreeMap::from([("c".into(), 1), ("w".into(), 1)]), "seed {seed}");
        assert_eq!(w.phase(), "Running", "seed {seed}");
    });
}

/// How they end then says nothing, whatever their own policy is.
#[test]
fn who_is_stopped_for_another_image_starts_again_alone() {
    for policy in ["Never", "Always"] {
        each_seed(|seed| {
            let mut spec = watched();
            spec["containers"][1]["restartPolicy"] = policy.into();
            let mut w = up_as(seed, spec.clone());
            w.node.stop_code = 88;
            w.node.images.insert("other".into());
            spec["containers"][1]["image"] = "other".into();
            w.edit(POD, json!({"spec": spec}));
            w.run(60);
            assert_eq!(running(&w), BTreeMap::from([("c".into(), 0), ("w".into(), 1)]), "{policy} seed {seed}");
            assert_eq!((w.phase(), restarting(&w)), ("Running", Some("False")), "{policy} seed {seed}");
            // By itself it ends as ever.
            ends(&mut w, "w", 88);
            w.run(10);
            assert_eq!(running(&w), BTreeMap::from([("i".into(), 1)]), "{policy} seed {seed}");
        });
    }
}

/// Ends of containers that are stopped for their pod's sake say nothing.
#[test]
fn a_pod_that_is_to_go_starts_nothing_again() {
    each_seed(|seed| {
        let mut w = up(seed);
        w.node.stop_code = 88;
        w.delete(30);
        w.run(40);
        w.assert_clean();
        assert!(w.api.phases.iter().any(|phase| phase == "p=Failed"), "seed {seed}: {:?}", w.api.phases);
    });
}
