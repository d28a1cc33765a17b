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

/// A node of four cores, where a pod with three waits for its claim to be bound.
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
    assert!(matches!(world.place("first"), Some(Place::Backoff { failed: true, .. })));
    world.pass(s(5));
    assert_eq!((world.deleted(), world.bound()), (Vec::new(), Vec::new()));
    assert!(matches!(world.place("first"), Some(Place::Unschedulable { .. })), "{:?}", world.place("first"));
    world.check();
}

/// A provisioner that is slow, or dead, holds up those alone who wait for its volumes.
#[test]
fn who_waits_for_claims_holds_up_nobody_else() {
    let mut big = node("a", "4");
    big["status"]["allocatable"]["pods"] = (MOST_IN_FLIGHT + 10).to_string().into();
    let mut world = World::new(Config::default(), vec![big], Vec::new());
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "disks", "uid": "c"},
        "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
    world.tell_of("/apis/storage.k8s.io/v1/storageclasses", "ADDED", class);
    let mut shared = claim();
    shared["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "a"});
    world.tell_of("/api/v1/persistentvolumeclaims", "ADDED", shared);
    for number in 0..=MOST_IN_FLIGHT {
        let mut waits = first("0");
        waits["metadata"]["name"] = format!("waits-{number}").into();
        waits["metadata"]["uid"] = format!("uid-waits-{number}").into();
        world.tell("ADDED", waits);
    }
    assert_eq!((world.bound(), world.core.cluster().assumed().count()), (Vec::new(), MOST_IN_FLIGHT + 1));
    world.tell("ADDED", pod("plain", "1"));
    assert_eq!(world.bound(), [("plain".to_owned(), "a".to_owned())]);
    world.check();
}

/// What becomes of the pod until its claim is bound, and when it goes to its node: at once, later, never.
fn check_change(cpu: &str, at_once: bool, later: bool) {
    let mut world = waiting_for_its_claim();
    world.tell("MODIFIED", first(cpu));
    let mut bound = claim();
    bound["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    bound["spec"]["volumeName"] = "disk".into();
    world.tell_of("/api/v1/persistentvolumeclaims", "MODIFIED", bound);
    assert_eq!(!world.bound().is_empty(), at_once, "{cpu}");
    world.pass(s(5));
    assert_eq!(!world.bound().is_empty(), later, "{cpu}");
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
    let text = world.core.metrics();
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
    let text = world.core.metrics();
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
