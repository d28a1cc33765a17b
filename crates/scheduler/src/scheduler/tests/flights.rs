//! Pods on their way to a binding that lose their node before it was sent, and what is counted on that way.

use super::*;

impl World {
    /// The watch of another kind tells of an object.
    fn tell_of(&mut self, collection: &str, kind: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let id = *self.watches.get(collection).expect("it watches");
        let event = json!({"type": kind, "object": object});
        self.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
    }
    /// Pods whose deletion was asked for.
    fn deleted(&mut self) -> Vec<String> {
        let sent = self.take(|request| request.method == Method::Delete);
        sent.into_iter().map(|(_, request)| request.path).collect()
    }
}

fn first(cpu: &str) -> Value {
    let mut pod = pod("first", cpu);
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}]);
    pod
}

fn claim() -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "d", "name": "claim", "uid": "claim"},
        "spec": {"storageClassName": "disks", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

impl World {
    /// What was written of where a pod is to go, with the calls.
    fn announcements(&mut self, name: &str) -> Vec<(CallId, Value)> {
        let path = format!("/pods/{name}/status");
        let sent = self.take(|request| request.path.ends_with(&path));
        let read = |(call, request): (CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            Some((call, body["status"].get("nominatedNodeName")?.clone()))
        };
        sent.into_iter().filter_map(read).collect()
    }
}

/// A node of four cores, where a pod with three waits for its claim to be bound. It was told where it is to go.
fn waiting_for_its_claim() -> World {
    let mut world = World::new(Config::default(), vec![node("a", "4")], Vec::new());
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    world.tell_of("/apis/storage.k8s.io/v1/storageclasses", "ADDED", class);
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk", "uid": "disk"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "disks"},
        "status": {"phase": "Available"}});
    world.tell_of("/api/v1/persistentvolumes", "ADDED", volume);
    world.tell_of("/api/v1/persistentvolumeclaims", "ADDED", claim());
    world.tell("ADDED", first("3"));
    let sent = world.take(|request| request.path == "/api/v1/persistentvolumes/disk");
    let [(call, _)] = sent[..] else { panic!("one write of the volume: {sent:?}") };
    world.reply(call, Ok(json!({})));
    let told = world.announcements("first");
    let [(call, node)] = &told[..] else { panic!("it is told: {told:?}") };
    assert_eq!((node, world.core.nominations().count()), (&json!("a"), 0));
    let mut written = first("3");
    written["metadata"]["resourceVersion"] = "900".into();
    written["status"]["nominatedNodeName"] = node.clone();
    world.reply(*call, Ok(written));
    assert_eq!((world.bound(), world.core.cluster().is_assumed("uid-first")), (Vec::new(), true));
    world
}

#[test]
fn a_pod_that_waits_for_its_claim_gives_way_without_being_deleted() {
    let mut world = waiting_for_its_claim();
    let mut high = pod("high", "2");
    high["spec"]["priority"] = 10.into();
    world.tell("ADDED", high);
    assert_eq!(world.bound(), [("high".to_owned(), "a".to_owned())]);
    assert_eq!(world.events("Preempted").len(), 1);
    check_metrics(&world, &["scheduler_preemption_victims_count 1"]);
    let told = world.announcements("first");
    assert!(matches!(&told[..], [(_, Value::Null)]), "it goes nowhere now: {told:?}");
    assert!(matches!(world.place("first"), Some(Place::Backoff { failed: true, .. })));
    world.pass(s(5));
    assert_eq!((world.deleted(), world.bound()), (Vec::new(), Vec::new()));
    assert!(matches!(world.place("first"), Some(Place::Unschedulable { .. })), "{:?}", world.place("first"));
    world.check();
}

/// A provisioner that is slow, or dead, holds up those alone who wait for its volumes.
#[test]
fn who_waits_for_claims_holds_up_nobody_else() {
    let most = Limits::default().in_flight;
    let mut big = node("a", "4");
    big["status"]["allocatable"]["pods"] = (most + 10).to_string().into();
    let mut world = World::new(Config::default(), vec![big], Vec::new());
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
        "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
    world.tell_of("/apis/storage.k8s.io/v1/storageclasses", "ADDED", class);
    let mut shared = claim();
    shared["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "a"});
    world.tell_of("/api/v1/persistentvolumeclaims", "ADDED", shared);
    for number in 0..=most {
        let mut waits = first("0");
        waits["metadata"]["name"] = format!("waits-{number}").into();
        waits["metadata"]["uid"] = format!("uid-waits-{number}").into();
        world.tell("ADDED", waits);
        for (call, _) in world.take(|request| request.path.ends_with("/status")) {
            world.reply(call, Ok(json!({})));
        }
    }
    assert_eq!((world.bound(), world.core.cluster().assumed().count()), (Vec::new(), most + 1));
    world.tell("ADDED", pod("plain", "1"));
    assert_eq!(world.bound(), [("plain".to_owned(), "a".to_owned())]);
    world.check();
}

/// What becomes of the pod until its claim is bound, and when it goes to its node: at once, later, never.
fn check_change(cpu: &str, at_once: bool, later: bool) {
    let mut world = waiting_for_its_claim();
    world.tell("MODIFIED", first(cpu));
    world.tell_of("/api/v1/persistentvolumeclaims", "MODIFIED", bound_claim());
    assert_eq!(!world.bound().is_empty(), at_once, "{cpu}");
    world.pass(s(5));
    assert_eq!(!world.bound().is_empty(), later, "{cpu}");
    world.check();
}

fn bound_claim() -> Value {
    let mut bound = claim();
    bound["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    bound["spec"]["volumeName"] = "disk".into();
    bound
}

/// The telling has made the pod another revision, on which its binding is to rest.
#[test]
fn a_binding_rests_on_the_pod_as_the_telling_left_it() {
    let mut world = waiting_for_its_claim();
    world.tell_of("/api/v1/persistentvolumeclaims", "MODIFIED", bound_claim());
    let sent = world.take(|request| request.path.ends_with("/binding"));
    let [(_, request)] = &sent[..] else { panic!("one binding: {sent:?}") };
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    assert_eq!(body["metadata"]["resourceVersion"], "900");
    world.check();
}

/// What is written of a nomination, and not seen yet, is taken back when it has ended.
#[test]
fn a_nomination_that_was_not_seen_yet_is_taken_back() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), high()]);
    let told = |world: &mut World| world.announcements("high").into_iter().map(|(_, node)| node).collect::<Vec<_>>();
    assert_eq!(told(&mut world), [json!("a")]);
    let mut cordoned = node("a", "1");
    cordoned["spec"]["unschedulable"] = true.into();
    world.tell("MODIFIED", cordoned);
    world.pass(s(301));
    assert_eq!((told(&mut world), world.core.nominations().count()), (vec![Value::Null], 0));
    world.check();
}

#[test]
fn a_pod_that_asks_for_more_by_now_is_looked_at_again() {
    check_change("3", true, false);
    check_change("3500m", false, true);
    check_change("5", false, false);
}

#[test]
fn who_asks_for_devices_by_claims_is_told_and_nobody_goes_for_it() {
    let mut asks = high();
    asks["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "claim"}]);
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), asks]);
    let expected = "0/1 nodes are available: pod has resource claims, for which this scheduler allocates no devices. \
                    preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(world.told(), [("Unschedulable".to_owned(), expected.to_owned())]);
    world.tell("ADDED", node("b", "8"));
    world.pass(s(20));
    assert_eq!((world.bound(), world.deleted()), (Vec::new(), Vec::new()));
    assert!(matches!(world.place("high"), Some(Place::Unschedulable { .. })), "no node can help");
}

/// Lines that the metrics have.
fn check_metrics(world: &World, lines: &[&str]) {
    let text = world.metrics();
    for line in lines {
        assert!(text.lines().any(|is| is == *line), "{line} in\n{text}");
    }
}

#[test]
fn what_plugins_and_the_api_are_asked_is_counted() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![pod("p", "500m")]);
    let asked = |point: &str, plugin: &str| {
        format!(
            "scheduler_plugin_evaluation_total{{extension_point=\"{point}\",plugin=\"{plugin}\",\
             profile=\"default-scheduler\"}} 1"
        )
    };
    for (point, plugin) in [
        ("Filter", "NodeUnschedulable"),
        ("Filter", "NodeAffinity"),
        ("Filter", "NodeResourcesFit"),
        ("Score", "NodeResourcesFit"),
        ("Score", "NodeResourcesBalancedAllocation"),
        ("Score", "TaintToleration"),
    ] {
        check_metrics(&world, &[&asked(point, plugin)]);
    }
    let text = world.metrics();
    for plugin in ["NodePorts", "PodTopologySpread", "InterPodAffinity", "VolumeBinding"] {
        assert!(!text.contains(&format!("plugin=\"{plugin}\"")), "nothing to ask {plugin}: {text}");
    }
    check_metrics(&world, &["scheduler_pending_async_api_calls{call_type=\"pod_binding\"} 1"]);
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.pass(s(3));
    world.reply(call, Ok(json!({})));
    check_metrics(
        &world,
        &[
            "scheduler_async_api_call_execution_total{call_type=\"pod_binding\",result=\"success\"} 1",
            "scheduler_async_api_call_execution_duration_seconds_sum{call_type=\"pod_binding\",result=\"success\"} 3",
            "scheduler_plugin_execution_duration_seconds_count{extension_point=\"Filter\",plugin=\"NodeName\",status=\"Success\"} 1",
            "scheduler_event_handling_duration_seconds_count{event=\"AssignedPodAdd\"} 1",
            "scheduler_pod_scheduled_after_flush_total 0",
        ],
    );
}

#[test]
fn who_is_bound_though_no_event_woke_it_is_counted() {
    let core = Scheduler::new(Config::default(), Rng::new(1)).with_planted(Planted::DeafQueue);
    let there = bound_to(pod("there", "900m"), "a");
    let mut world = World::of(core, vec![node("a", "1")], vec![there.clone(), pod("waits", "500m")]);
    world.tell("DELETED", there);
    world.pass(s(200));
    assert_eq!(world.bound(), []);
    world.pass(s(101));
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.reply(call, Ok(json!({})));
    check_metrics(&world, &["scheduler_pod_scheduled_after_flush_total 1"]);
}

/// What is asked of the API for a preemption, how that ends, and what is told of it.
#[test]
fn preemptions_are_counted_and_timed() {
    let gone = || ApiError::Status(Box::new(carrack_engine::StatusError { code: 404, ..Default::default() }));
    let lost = || ApiError::Transport("no reply".to_owned());
    for (mark, delete, result, tries) in [
        (Ok(json!({})), Some(Ok(json!({}))), "success", 1),
        (Err(lost()), Some(Ok(json!({}))), "success", 1),
        (Err(gone()), None, "success", 1),
        (Ok(json!({})), Some(Err(gone())), "success", 1),
        // It looks again at once.
        (Ok(json!({})), Some(Err(lost())), "error", 2),
    ] {
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), high()]);
        let sent = world.marks();
        let [(call, _)] = sent[..] else { panic!("one victim: {sent:?}") };
        world.pass(s(2));
        world.reply(call, mark);
        if let Some(delete) = delete {
            let sent = world.take(|request| request.method == Method::Delete);
            let [(call, _)] = sent[..] else { panic!("one deletion: {sent:?}") };
            world.reply(call, delete);
        }
        check_metrics(
            &world,
            &[
                &format!("scheduler_preemption_attempts_total {tries}"),
                &format!("scheduler_preemption_victims_count {tries}"),
                &format!("scheduler_preemption_goroutines_execution_total{{result=\"{result}\"}} 1"),
                &format!("scheduler_preemption_goroutines_duration_seconds_sum{{result=\"{result}\"}} 2"),
            ],
        );
    }
}

/// A pod that may have nobody deleted was looked at for that all the same, as upstream counts it.
#[test]
fn who_may_not_preempt_has_tried() {
    let mut modest = high();
    modest["spec"]["preemptionPolicy"] = "Never".into();
    let world = World::new(Config::default(), vec![node("a", "1")], vec![low("low", "a"), modest]);
    check_metrics(&world, &["scheduler_preemption_attempts_total 1"]);
    assert!(!world.metrics().contains("scheduler_preemption_victims_count"));
}

/// Those that look for a node, and those that are on their way to their binding.
#[test]
fn pods_in_flight_are_counted() {
    let extender = crate::extender::Extender {
        filter_verb: "filter".into(),
        node_cache_capable: true,
        ..crate::extender::Extender::default()
    };
    let config = Config { extenders: vec![extender], ..Config::default() };
    let mut world = World::new(config, vec![node("a", "1")], vec![pod("p", "500m")]);
    let counts = |flying: usize, binding: usize| {
        let flying = format!("scheduler_inflight_events{{event=\"PodPopped\"}} {flying}");
        [flying, format!("scheduler_goroutines{{operation=\"binding\"}} {binding}")]
    };
    check_metrics(&world, &counts(1, 0).each_ref().map(String::as_str));
    let ask = world.ask();
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    check_metrics(&world, &counts(0, 1).each_ref().map(String::as_str));
    // No event is kept for it: should it come back, it is tried again whatever has happened.
    world.tell("ADDED", node("b", "1"));
    assert!(world.core.queue().kept_events().is_empty());
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.reply(call, Ok(json!({})));
    check_metrics(&world, &counts(0, 0).each_ref().map(String::as_str));
    world.tell("MODIFIED", bound_to(pod("p", "500m"), "a"));
    check_metrics(&world, &counts(0, 0).each_ref().map(String::as_str));
}

#[test]
fn what_plugins_say_of_events_is_timed() {
    let there = bound_to(pod("there", "900m"), "a");
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![there.clone(), pod("waits", "500m")]);
    world.tell("ADDED", node("b", "100m"));
    world.tell("DELETED", there);
    let count = |event: &str, hint: &str| {
        format!(
            "scheduler_queueing_hint_execution_duration_seconds_count{{event=\"{event}\",hint=\"{hint}\",\
             plugin=\"NodeResourcesFit\"}} 1"
        )
    };
    check_metrics(&world, &[&count("NodeAdd", "QueueSkip"), &count("AssignedPodDelete", "Queue")]);
}
