//! Whoever waits for room is woken when there is some, however it came to be.

use super::*;
use crate::extender::Extender;

fn tainted(mut node: Value) -> Value {
    node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    node
}

/// A pod waits for room on a full node. The node comes to refuse it for something else, gives room back, and refuses no more.
#[test]
fn what_came_and_went_while_a_pod_waited_for_room_keeps_it_from_nothing() {
    let plain = || {
        let mut node = node("a", "1");
        node["metadata"]["labels"] = json!({"zone": "z"});
        node
    };
    let mut cordoned = plain();
    cordoned["spec"]["unschedulable"] = true.into();
    let mut elsewhere = plain();
    elsewhere["metadata"]["labels"] = json!({"zone": "y"});
    for refusing in [tainted(plain()), cordoned, elsewhere] {
        let there = bound_to(pod("there", "900m"), "a");
        let mut waits = pod("waits", "500m");
        waits["spec"]["nodeSelector"] = json!({"zone": "z"});
        let mut world = World::new(Config::default(), vec![plain()], vec![there.clone(), waits]);
        assert!(world.told()[0].1.contains("Insufficient cpu"));
        world.tell("MODIFIED", refusing.clone());
        world.tell("DELETED", there);
        world.pass(s(20));
        assert_eq!(world.bound(), [], "{refusing}");
        world.tell("MODIFIED", plain());
        world.pass(s(20));
        assert_eq!(world.bound(), [("waits".to_owned(), "a".to_owned())], "{refusing}");
        world.check();
    }
}

/// A pod is resized where it is. Its node has room for others once nothing of the pod is as large as it was.
#[test]
fn a_pod_that_is_scaled_down_gives_back_its_room_when_its_kubelet_has_it() {
    let there = |asks: &str, allocated: &str, runs_with: &str, pending: &str| {
        let mut there = bound_to(pod("there", asks), "a");
        there["status"]["containerStatuses"] = json!([{"name": "c", "allocatedResources": {"cpu": allocated},
            "resources": {"requests": {"cpu": runs_with}}}]);
        if !pending.is_empty() {
            there["status"]["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": pending}]);
        }
        there
    };
    // What becomes of the pod, and whether another with half a core has room beside it then.
    for (steps, fits) in [
        (vec![there("400m", "900m", "900m", "")], false),
        (vec![there("400m", "400m", "900m", "")], false),
        (vec![there("400m", "400m", "900m", ""), there("400m", "400m", "400m", "")], true),
        // It asks for more than there is: that counts until its node can never grant it.
        (vec![there("2", "400m", "400m", "Deferred")], false),
        (vec![there("2", "400m", "400m", "Deferred"), there("2", "400m", "400m", "Infeasible")], true),
        (vec![there("2", "400m", "400m", "Infeasible")], true),
    ] {
        let before = there("900m", "900m", "900m", "");
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![before, pod("waits", "500m")]);
        assert!(world.told()[0].1.contains("Insufficient cpu"));
        for step in &steps {
            assert_eq!(world.bound(), [], "{steps:?}");
            world.tell("MODIFIED", step.clone());
        }
        assert_eq!(!world.bound().is_empty(), fits, "{steps:?}");
        let woken = "scheduler_queue_incoming_pods_total{event=\"AssignedPodUpdatePodScaleDown\",queue=\"backoff\"} 1";
        assert_eq!(world.metrics().contains(woken), fits, "{steps:?}: {}", world.metrics());
        world.check();
    }
}

#[test]
fn a_pod_that_waits_and_asks_for_less_is_looked_at_again() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![pod("waits", "2")]);
    assert!(world.told()[0].1.contains("Insufficient cpu"));
    world.tell("MODIFIED", pod("waits", "1500m"));
    assert_eq!(world.bound(), []);
    world.tell("MODIFIED", pod("waits", "800m"));
    assert_eq!(world.bound(), [("waits".to_owned(), "a".to_owned())]);
    let woken = "event=\"TargetPodUpdatePodScaleDown\"";
    assert!(world.metrics().contains(woken), "{}", world.metrics());
    world.check();
}

/// A node was made free for an important pod, about which an extender is asked once more, and another pod waits for what
/// would be left beside it.
fn beside_a_nominee() -> (World, Value, Ask) {
    const GPU: &str = "example.com/gpu";
    let with_gpu = |name: &str| {
        let mut node = node(name, "4");
        node["status"]["allocatable"][GPU] = "1".into();
        node
    };
    let low = bound_to(pod("low", "4"), "a");
    let mut high = pod("high", "3");
    high["spec"]["priority"] = 10.into();
    high["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    high["spec"]["containers"][0]["resources"]["limits"] = json!({GPU: "1"});
    let extender = Extender {
        filter_verb: "filter".into(),
        preempt_verb: "preempt".into(),
        node_cache_capable: true,
        managed_resources: vec![GPU.into()],
        ..Extender::default()
    };
    let config = Config { extenders: vec![extender], ..Config::default() };
    let mut world = World::new(config, vec![with_gpu("a"), tainted(with_gpu("b"))], vec![low.clone(), high.clone()]);
    let victims = json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}]}}});
    // It takes the free node on no account, and the other one once it will be free.
    for answer in [json!({"NodeNames": [], "FailedNodes": {"b": "busy"}}), victims] {
        let ask = world.ask();
        world.answer(&ask, &answer);
    }
    assert_eq!(world.core.nominations().collect::<Vec<_>>(), [("uid-high", "a")]);
    world.tell("ADDED", pod("waits", "2"));
    world.tell("DELETED", low);
    world.pass(s(5));
    assert_eq!(world.bound(), [], "what is free is kept");
    assert!(matches!(world.place("waits"), Some(Place::Unschedulable { .. })));
    let ask = world.ask();
    (world, high, ask)
}

#[test]
fn a_nominee_that_goes_elsewhere_leaves_its_room_to_others() {
    let (mut world, _, ask) = beside_a_nominee();
    world.answer(&ask, &json!({"NodeNames": ["b"]}));
    let bound = [("high", "b"), ("waits", "a")].map(|(pod, node)| (pod.to_owned(), node.to_owned()));
    assert_eq!(world.bound(), bound);
    world.check();
}

#[test]
fn a_nominee_that_asks_for_less_leaves_the_rest_to_others() {
    let (mut world, mut high, _) = beside_a_nominee();
    high["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "1"});
    world.tell("MODIFIED", high);
    assert_eq!(world.bound(), [("waits".to_owned(), "a".to_owned())]);
    world.check();
}

#[test]
fn a_pod_that_is_found_bound_elsewhere_gives_back_what_was_assumed() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![pod("first", "1")]);
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.tell("ADDED", pod("waits", "1"));
    world.tell("ADDED", tainted(node("b", "1")));
    world.reply(call, Err(ApiError::Transport("no reply".into())));
    let [(read, _)] = world.take(|request| request.method == Method::Get)[..] else { panic!("a live read") };
    assert_eq!(world.bound(), []);
    world.reply(read, Ok(bound_to(pod("first", "1"), "b")));
    world.pass(s(5));
    assert_eq!(world.bound(), [("waits".to_owned(), "a".to_owned())]);
    assert_eq!(world.core.cluster().node_of("uid-first"), Some("b"));
    world.check();
}

/// The only volume is promised to a pod that goes before its claim has it.
#[test]
fn a_volume_that_was_promised_is_there_for_others_again() {
    let mut world = World::new(Config::default(), vec![node("a", "4")], Vec::new());
    let tell = |world: &mut World, collection: &str, object: Value| {
        let id = *world.watches.get(collection).expect("it watches");
        let event = json!({"type": "ADDED", "object": object});
        world.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
    };
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    tell(&mut world, "/apis/storage.k8s.io/v1/storageclasses", class);
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk", "uid": "disk"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disks"},
        "status": {"phase": "Available"}});
    tell(&mut world, "/api/v1/persistentvolumes", volume);
    let with_claim = |world: &mut World, name: &str| {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "d", "name": name, "uid": format!("claim-{name}")},
            "spec": {"storageClassName": "disks", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}});
        tell(world, "/api/v1/persistentvolumeclaims", claim);
        let mut pod = pod(name, "1");
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
        world.tell("ADDED", pod.clone());
        pod
    };
    let claimed = |world: &mut World| {
        let sent = world.take(|request| request.path == "/api/v1/persistentvolumes/disk");
        let name = |(_, request): &(CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            body["spec"]["claimRef"]["name"].as_str().unwrap_or_default().to_owned()
        };
        sent.iter().map(name).collect::<Vec<String>>()
    };
    let first = with_claim(&mut world, "first");
    assert_eq!(claimed(&mut world), ["first"]);
    with_claim(&mut world, "second");
    world.pass(s(20));
    assert_eq!(claimed(&mut world), Vec::<String>::new());
    world.tell("DELETED", first);
    world.pass(s(1));
    assert_eq!(claimed(&mut world), ["second"]);
    world.check();
}

/// What is asked of the API to have a pod deleted: its mark, and then the deletion, both of which succeed.
fn evicted(world: &mut World) -> Vec<String> {
    let marks = world.marks();
    marks.into_iter().for_each(|(call, _)| world.reply(call, Ok(json!({}))));
    let deletions = world.take(|r| r.method == Method::Delete);
    deletions
        .into_iter()
        .map(|(call, request)| {
            world.reply(call, Ok(json!({})));
            request.path.rsplit('/').next().unwrap_or_default().to_owned()
        })
        .collect()
}

/// A victim may take its time to go; its node is waited for as long as it may take the pod afterwards, and no longer.
#[test]
fn a_nominee_whose_node_refuses_it_for_good_makes_room_elsewhere() {
    /// What the watch tells of a node of this name.
    type Way = fn(&str) -> (&'static str, Value);
    let small: Way = |name| ("MODIFIED", node(name, "400m"));
    let refuses: Way = |name| ("MODIFIED", tainted(node(name, "1")));
    let goes: Way = |name| ("DELETED", node(name, "1"));
    for way in [small, refuses, goes] {
        let nodes = [node("a", "1"), node("b", "1")];
        let mut world = World::new(Config::default(), nodes.to_vec(), vec![low("on-a", "a"), low("on-b", "b"), high()]);
        let victims = evicted(&mut world);
        let [victim] = &victims[..] else { panic!("one victim: {victims:?}") };
        let at = victim.trim_start_matches("on-");
        let mut going = low(victim, at);
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        world.tell("MODIFIED", going);
        world.pass(s(400));
        assert_eq!(evicted(&mut world), Vec::<String>::new(), "it waits for that node");
        let (kind, changed) = way(at);
        world.tell(kind, changed.clone());
        world.pass(s(20));
        let other = if at == "a" { "on-b" } else { "on-a" };
        assert_eq!(evicted(&mut world), [other], "and not when it refuses the pod whoever leaves: {kind} {changed}");
        world.check();
    }
}

/// Room that is kept at a node for who can never have it is kept from all others
/// (test/integration/scheduler/preemption/nominatednodename: the node is deleted, and then the victim).
#[test]
fn a_nominee_that_waited_in_vain_keeps_no_room() {
    let mut top = bound_to(pod("top", "600m"), "a");
    top["spec"]["priority"] = 20.into();
    for (between, left) in [(("ADDED", top), 1), (("DELETED", node("a", "1")), 0)] {
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), high()]);
        assert_eq!(evicted(&mut world), ["low"]);
        assert_eq!(world.core.nominations().collect::<Vec<_>>(), [("uid-high", "a")]);
        world.take(|_| true);
        world.tell(between.0, between.1);
        world.tell("DELETED", low("low", "a"));
        world.pass(s(20));
        assert_eq!(world.core.nominations().count(), 0, "{}", between.0);
        let taken_back = world.take(|r| String::from_utf8_lossy(&r.body).contains("\"nominatedNodeName\":null"));
        assert!(!taken_back.is_empty(), "{}: its status says so", between.0);
        assert_eq!(world.core.cluster().pods(), left);
        world.check();
    }
}

/// Somebody else may say where a pod is to go while it waits, and take that back.
#[test]
fn a_pod_goes_where_somebody_else_nominates_it() {
    for (nominations, expected) in [(vec![], "large"), (vec!["small"], "small"), (vec!["small", ""], "large")] {
        let mut waits = pod("p", "500m");
        waits["spec"]["schedulingGates"] = json!([{"name": "g"}]);
        let mut world =
            World::new(Config::default(), vec![node("large", "8"), node("small", "1")], vec![waits.clone()]);
        for nominated in &nominations {
            waits["status"]["nominatedNodeName"] = (*nominated).into();
            world.tell("MODIFIED", waits.clone());
        }
        waits["spec"]["schedulingGates"] = json!([]);
        world.tell("MODIFIED", waits);
        assert_eq!(world.bound(), [("p".to_owned(), expected.to_owned())], "{nominations:?}");
        world.check();
    }
}
