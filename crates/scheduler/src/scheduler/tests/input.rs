//! Pods that nobody can place and nodes that offer absurd amounts: the queue goes on.

use super::*;

/// One strange pod beside a plain one: the plain one is bound, and the strange one is told why it is not.
fn check(strange: Value, message: &str) {
    let mut spec = pod("strange", "1");
    for (key, value) in strange.as_object().expect("fields of a spec") {
        spec["spec"][key] = value.clone();
    }
    // More important, so that it comes first.
    spec["spec"]["priority"] = 100.into();
    let mut world = World::new(Config::default(), vec![node("a", "4")], vec![spec, pod("plain", "1")]);
    assert_eq!(world.bound(), [("plain".to_owned(), "a".to_owned())], "{strange}");
    let told = world.told();
    assert!(told.iter().any(|(_, m)| m.contains(message)), "{strange}: {told:?}");
    world.pass(s(700));
    assert_eq!(world.bound(), [], "{strange}");
    world.check();
}

#[test]
fn impossible_pods_do_not_hold_up_others() {
    let node_affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let mismatch = "1 node(s) didn't match Pod's node affinity/selector";
    check(json!({"nodeSelector": {"no": "such"}}), mismatch);
    check(node_affinity(json!([])), mismatch);
    check(node_affinity(json!([{}])), mismatch);
    let contradiction = json!([{"matchExpressions": [
        {"key": "x", "operator": "Exists"}, {"key": "x", "operator": "DoesNotExist"}]}]);
    check(node_affinity(contradiction), mismatch);
    check(node_affinity(json!([{"matchExpressions": [{"key": "x", "operator": "Nonsense"}]}])), mismatch);
    check(node_affinity(json!([{"matchExpressions": [{"key": "x", "operator": "Gt", "values": ["many"]}]}])), mismatch);
    let named = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["nowhere"]}]}]);
    check(node_affinity(named), "1 node(s) didn't satisfy plugin(s) [NodeAffinity]");
    let requests = |amounts: Value| json!({"containers": [{"name": "c", "resources": {"requests": amounts}}]});
    check(requests(json!({"cpu": "9E"})), "1 Insufficient cpu");
    check(requests(json!({"memory": "99999999999999999999"})), "1 Insufficient memory");
    check(requests(json!({"example.com/none": "1"})), "1 Insufficient example.com/none");
    let term = json!({"topologyKey": "no/such", "labelSelector": {"matchLabels": {"a": "b"}}});
    check(
        json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}),
        "1 node(s) didn't match pod affinity rules",
    );
    check(
        json!({"topologySpreadConstraints": [{"topologyKey": "no/such", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"a": "b"}}}]}),
        "1 node(s) didn't match pod topology spread constraints (missing required label)",
    );
    let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]});
    check(claim, "persistentvolumeclaim \"none\" not found");
}

#[test]
fn absurd_capacities_neither_overflow_nor_stall() {
    let mut nodes = Vec::new();
    for (name, cpu, memory, pods) in [
        ("negative", "-5", "-1", "-1"),
        ("endless", "9E", "9E", "9E"),
        ("nothing", "0", "0", "0"),
        ("nonsense", "many", "", "x"),
    ] {
        let mut node = node(name, cpu);
        node["status"]["allocatable"] = json!({"cpu": cpu, "memory": memory, "pods": pods});
        nodes.push(node);
    }
    nodes.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare", "uid": "bare"}}));
    let mut greedy = pod("greedy", "8E");
    greedy["spec"]["priority"] = 1.into();
    let mut world = World::new(Config::default(), nodes, vec![greedy, pod("p", "1"), pod("q", "8E")]);
    // As many thousandths of a core as a number can say, for both.
    assert_eq!(world.bound(), [("greedy".to_owned(), "endless".to_owned())]);
    let told = world.told();
    assert!(told.len() == 2 && told.iter().all(|(_, m)| m.contains("Insufficient cpu")), "{told:?}");
    world.check();
}

#[test]
fn several_schedulers_leave_each_other_their_pods_and_count_them() {
    let mut world = World::new(Config::named("mine"), vec![node("a", "1")], Vec::new());
    let of = |name: &str, scheduler: &str| {
        let mut pod = pod(name, "600m");
        pod["spec"]["schedulerName"] = scheduler.into();
        pod
    };
    world.tell("ADDED", of("theirs", "other"));
    assert!(world.place("theirs").is_none());
    world.tell("ADDED", of("ours", "mine"));
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    // The other one was faster with the same room, and its pod is counted too.
    let mut theirs = of("theirs", "other");
    theirs["spec"]["nodeName"] = "a".into();
    world.tell("MODIFIED", theirs);
    world.reply(call, Ok(json!({})));
    world.tell("ADDED", of("third", "mine"));
    assert_eq!(world.bound(), []);
    assert!(world.told()[0].1.contains("Insufficient cpu"));
    world.check();
}

#[test]
fn a_pod_that_somebody_else_binds_frees_what_was_kept_for_it() {
    let (low, high) = (low("low", "a"), high());
    let mut world =
        World::new(Config::default(), vec![node("a", "1"), node("b", "400m")], vec![low.clone(), high.clone()]);
    assert_eq!(world.core.nominations().count(), 1);
    world.tell("DELETED", low);
    // Somebody with the room of the node that was made free is on its way, and somebody who waits.
    world.tell("ADDED", pod("waits", "600m"));
    world.take(|r| r.path.ends_with("/binding"));
    world.tell("MODIFIED", bound_to(high, "b"));
    world.pass(s(2));
    assert_eq!(world.core.nominations().count(), 0);
    assert_eq!(world.bound(), [("waits".to_owned(), "a".to_owned())]);
    world.check();
}

/// Thousands of pods that nobody takes are told so, but not all at once.
#[test]
fn what_is_to_be_said_waits_for_answers() {
    let most = Limits::default().calls;
    let pods = (0..most + 50).map(|number| pod(&format!("p{number}"), "2")).collect();
    let mut world = World::new(Config::default(), vec![node("a", "1")], pods);
    let conditions = |r: &ApiRequest| r.path.ends_with("/status");
    let first = world.take(conditions);
    assert_eq!(first.len(), most);
    for (call, _) in first {
        world.reply(call, Ok(json!({})));
    }
    assert_eq!(world.take(conditions).len(), 50);
}

/// How many images, each a name, [`with_images`] has.
const IMAGES: usize = 120;

/// A pod with images that no other has.
fn with_images(number: usize) -> Value {
    let image = |at: usize| json!({"name": format!("c{at}"), "image": format!("{number}/{at}")});
    let mut pod = pod(&format!("p{number}"), "2");
    pod["spec"]["initContainers"] = (0..IMAGES).map(image).collect::<Vec<Value>>().into();
    pod
}

/// Names that nobody has any more are forgotten, before there are too many.
#[test]
fn names_of_pods_that_have_gone_are_forgotten() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], Vec::new());
    for number in 0..2 * LEAST_NAMES / IMAGES {
        world.tell("ADDED", with_images(number));
        world.tell("DELETED", with_images(number));
    }
    let names = world.core.cluster().names();
    assert!(names < LEAST_NAMES + 2 * IMAGES, "{names}");
    world.check();
}

/// Names that are all in use are not numbered anew with each thing that is heard, which would cost what all pods cost.
#[test]
fn names_that_are_in_use_are_numbered_anew_once() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], (0..200).map(with_images).collect());
    assert!(world.core.cluster().names() > LEAST_NAMES + NAMES_PER_OBJECT * 210);
    let known = |world: &World| world.core.queue().get("uid-p0").map(|row| row.pod.clone()).expect("it waits");
    let before = known(&world);
    world.tell("ADDED", pod("q", "2"));
    assert!(Arc::ptr_eq(&before, &known(&world)), "it was read again");
    world.check();
}

/// Who may look at no pod does not wake for those that are due: it would do nothing else.
#[test]
fn who_has_too_much_to_do_wakes_for_nobody() {
    let limits = Limits { calls: 2, ..Limits::default() };
    let core = Scheduler::new(Config::default(), Rng::new(1)).with_limits(limits);
    let mut world = World::of(core, vec![node("a", "1")], vec![pod("p", "2"), pod("q", "2")]);
    let told = world.take(|r| r.path.ends_with("/status"));
    assert_eq!(told.len(), limits.calls);
    world.tell("ADDED", node("b", "4"));
    world.pass(s(60));
    assert_eq!(world.bound(), []);
    for (call, _) in told {
        world.reply(call, Ok(json!({})));
    }
    assert_eq!(world.bound().len(), 2);
    world.check();
}
