//! Extenders that do what they should not: no pod is lost, no room is lost, nothing is evicted on a guess.

use super::*;
use crate::extender::Extender;

const FILTER: &str = "filter";

fn config(change: impl FnOnce(&mut Extender)) -> Config {
    let mut extender = Extender { filter_verb: FILTER.into(), node_cache_capable: true, ..Extender::default() };
    change(&mut extender);
    Config { extenders: vec![extender], ..Config::default() }
}

fn nodes() -> Vec<Value> {
    vec![node("a", "1"), node("b", "1")]
}

/// One filter's answer, and what comes of it: a binding, or what the pod is told.
fn check(answer: &Value, expected: Result<&str, &str>) {
    let mut world = World::new(config(|_| {}), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    world.answer(&ask, answer);
    match expected {
        Ok(to) => assert_eq!(world.bound(), [("p".to_owned(), to.to_owned())], "{answer}"),
        Err(message) => {
            assert_eq!(world.bound(), [], "{answer}");
            let told = world.told();
            assert!(told.iter().any(|(_, m)| m.contains(message)), "{answer}: {told:?}");
        }
    }
    // Whatever it says later is about nothing any more.
    world.answer(&ask, &json!({"NodeNames": ["a", "b"]}));
    assert_eq!(world.bound(), [], "{answer}: an answer counts once");
    world.check();
}

#[test]
fn an_answer_counts_as_far_as_it_is_about_what_was_asked() {
    check(&json!({"NodeNames": ["b"], "FailedNodes": {"a": "full"}}), Ok("b"));
    check(&json!({"NodeNames": ["nowhere", "b"]}), Ok("b"));
    check(&json!({"NodeNames": ["nowhere"]}), Err("2 node(s) were not accepted by an extender"));
    check(&json!({"NodeNames": null, "Nodes": null}), Err("2 node(s) were not accepted by an extender"));
    check(&json!({"NodeNames": [], "FailedNodes": {"a": "no gpu", "b": "no gpu"}}), Err("2 no gpu"));
    check(&json!({"NodeNames": ["b"], "Error": "out of order"}), Err("out of order"));
    check(&json!("what?"), Err("not accepted"));
    check(&json!({"NodeNames": ["b"], "FailedNodes": {"b": "no"}}), Ok("b"));
}

#[test]
fn a_pod_goes_on_without_an_extender_that_may_be_left_out() {
    let mut world = World::new(config(|e| e.ignorable = true), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    world.no_answer(&ask);
    assert_eq!(world.bound().len(), 1);
    let mut world = World::new(config(|_| {}), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    world.no_answer(&ask);
    assert_eq!(world.bound(), []);
    let told = world.told();
    assert!(told[0].1.starts_with("running extender") && told[0].1.ends_with("no answer within 5000 ms"), "{told:?}");
    assert_eq!(told[0].0, "SchedulerError");
    world.pass(s(1));
    let again = world.ask();
    world.answer(&again, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound(), [("p".to_owned(), "a".to_owned())]);
    world.answer(&ask, &json!({"NodeNames": ["b"]}));
    assert_eq!(world.bound(), [], "that was the answer to another question");
    world.check();
}

#[test]
fn one_pod_is_asked_about_at_a_time_and_others_do_not_wait_for_it() {
    let mut world = World::new(
        config(|e| e.managed_resources = vec!["example.com/gpu".into()]),
        vec![{
            let mut node = node("a", "4");
            node["status"]["allocatable"]["example.com/gpu"] = "4".into();
            node
        }],
        Vec::new(),
    );
    let gpu = |name: &str| {
        let mut pod = pod(name, "100m");
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"example.com/gpu": "1"});
        pod
    };
    world.tell("ADDED", gpu("first"));
    world.tell("ADDED", gpu("second"));
    let ask = world.ask();
    let counts = world.core.queue().counts();
    assert_eq!((counts.in_flight, counts.active), (1, 1), "whose turn has not come waits in the queue");
    world.tell("ADDED", pod("plain", "100m"));
    assert_eq!(world.bound(), [("plain".to_owned(), "a".to_owned())]);
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound(), [("first".to_owned(), "a".to_owned())]);
    let second = world.ask();
    let args: Value = serde_json::from_slice(&second.body).expect("JSON");
    assert_eq!(args["Pod"]["metadata"]["name"], "second");
    world.tell("DELETED", gpu("second"));
    world.answer(&second, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound(), [], "it has gone meanwhile");
    world.check();
}

#[test]
fn an_annotation_in_the_midst_of_the_cycle_does_not_ask_again() {
    let mut world = World::new(config(|_| {}), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    let mut annotated = pod("p", "500m");
    annotated["metadata"]["annotations"] = json!({"predicate-time": "1"});
    world.tell("MODIFIED", annotated.clone());
    assert!(world.asked.is_empty());
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    world.tell("MODIFIED", annotated);
    assert!(world.asked.is_empty());
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    // What became of it is not known; it did not happen.
    world.reply(call, Err(ApiError::Transport("no reply".into())));
    let [(read, _)] = world.take(|request| request.method == Method::Get)[..] else { panic!("a live read") };
    // As the binding rests on it: the watch has told of the same annotation once more since.
    let mut live = pod("p", "500m");
    live["metadata"]["resourceVersion"] = (world.revision - 1).to_string().into();
    world.reply(read, Ok(live.clone()));
    let [(fence, _)] = world.take(|request| request.method == Method::Patch)[..] else { panic!("the pod is written") };
    assert_eq!(world.core.cluster().pods(), 1, "the binding may still arrive");
    live["metadata"]["resourceVersion"] = "99".into();
    world.reply(fence, Ok(live));
    assert_eq!(world.core.cluster().pods(), 0, "its room is given back");
    world.pass(s(1));
    world.ask();
    world.check();
}

#[test]
fn what_a_watch_tells_of_a_pod_that_is_known_to_be_gone_is_old() {
    let mut world = World::new(config(|_| {}), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.reply(call, Err(ApiError::Transport("no reply".into())));
    let [(read, _)] = world.take(|request| request.method == Method::Get)[..] else { panic!("a live read") };
    let mut other = pod("p", "500m");
    other["metadata"]["uid"] = "another".into();
    world.reply(read, Ok(other.clone()));
    let mut annotated = pod("p", "500m");
    annotated["metadata"]["annotations"] = json!({"predicate-time": "1"});
    world.tell("MODIFIED", annotated.clone());
    assert!(world.asked.is_empty() && world.place("p").is_none());
    world.tell("DELETED", annotated);
    world.tell("ADDED", other);
    let args: Value = serde_json::from_slice(&world.ask().body).expect("JSON");
    assert_eq!(args["Pod"]["metadata"]["uid"], "another");
    world.check();
}

fn preempts(change: impl FnOnce(&mut Extender)) -> World {
    World::new(config(change), vec![node("a", "1")], vec![low("low", "a"), high()])
}

/// UIDs of pods that are being made to go.
fn evicted(world: &mut World) -> Vec<String> {
    let marks =
        world.take(|r| r.method == Method::Patch && String::from_utf8_lossy(&r.body).contains("DisruptionTarget"));
    let read = |(_, request): (CallId, ApiRequest)| {
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        body["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
    };
    marks.into_iter().map(read).collect()
}

#[test]
fn an_extender_without_a_verb_for_victims_is_not_asked_about_them() {
    let mut world = preempts(|_| {});
    assert_eq!((world.asked.len(), evicted(&mut world)), (0, vec!["uid-low".to_owned()]));
    world.check();
    // It has its say when the node is free.
    world.tell("DELETED", low("low", "a"));
    let ask = world.ask();
    assert_eq!(ask.verb, FILTER);
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound(), [("high".to_owned(), "a".to_owned())]);
    world.check();
}

/// Node a has room, b has only less important pods. What the extender says of a, what becomes of a meanwhile, and who has to
/// go for the pod.
#[test]
fn what_an_extender_that_only_filters_said_of_one_node_holds_of_that_node_alone() {
    let no = |list: &str| json!({"NodeNames": [], list: {"a": "no"}});
    let silent = json!({"NodeNames": [], "FailedNodes": {}});
    for (answer, filled, expected) in [
        (no("FailedNodes"), false, Some("uid-b")),
        (no("FailedAndUnresolvableNodes"), false, Some("uid-b")),
        (silent.clone(), false, Some("uid-b")),
        // Somebody took the room while the extender thought. Whether it would take the node without them, it has said.
        (no("FailedNodes"), true, Some("uid-a")),
        (no("FailedAndUnresolvableNodes"), true, None),
        (silent, true, None),
    ] {
        let nodes = if filled { vec![node("a", "1")] } else { nodes() };
        let there = if filled { Vec::new() } else { vec![low("b", "b")] };
        let mut world = World::new(config(|_| {}), nodes, there.into_iter().chain([high()]).collect());
        let ask = world.ask();
        if filled {
            world.tell("ADDED", low("a", "a"));
        }
        world.answer(&ask, &answer);
        match expected {
            Some(uid) => assert_eq!(evicted(&mut world), [uid], "{answer}, filled meanwhile: {filled}"),
            // That is about this cycle; in the next one a is a node that was not offered.
            None => {
                let told = world.told();
                assert!(told[0].1.ends_with("preemption: no extender accepts a node."), "{answer}: {told:?}");
            }
        }
        world.check();
    }
}

#[test]
fn nothing_is_evicted_where_an_extender_with_a_say_would_not_take_the_pod() {
    // The one that has a say about victims may choose among those that are there and less important.
    for (pods, gone) in [
        (json!([{"UID": "uid-low"}]), 1),
        (json!([{"UID": "nobody"}]), 0),
        (json!([{"UID": "uid-high"}]), 0),
        (json!([]), 0),
    ] {
        let mut world = preempts(|e| e.preempt_verb = "preempt".into());
        let ask = world.ask();
        assert_eq!(ask.verb, "preempt");
        world.answer(&ask, &json!({"NodeNameToMetaVictims": {"a": {"Pods": pods}, "nowhere": {"Pods": []}}}));
        assert_eq!(evicted(&mut world).len(), gone, "{pods}");
        world.check();
    }
    let mut world = preempts(|e| e.preempt_verb = "preempt".into());
    let ask = world.ask();
    world.no_answer(&ask);
    assert_eq!(evicted(&mut world).len(), 0);
    world.check();
}

/// The node goes while the extender thinks of who has to go there.
#[test]
fn nobody_is_nominated_to_a_node_that_has_gone_meanwhile() {
    let mut world = preempts(|e| e.preempt_verb = "preempt".into());
    let ask = world.ask();
    world.tell("DELETED", node("a", "1"));
    world.answer(&ask, &json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}]}}}));
    assert_eq!(world.core.nominations().count(), 0);
    assert!(evicted(&mut world).is_empty());
    world.check();
}

/// The node comes to refuse the pod while the extender thinks of who has to go there: nobody goes there, nobody waits for it,
/// and another one is proposed at once.
#[test]
fn nobody_goes_from_a_node_that_will_not_take_the_pod_any_more() {
    let with = |spec: Value| {
        let mut node = node("a", "1");
        node["spec"] = spec;
        node
    };
    let tainted = with(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}));
    for changed in [tainted, with(json!({"unschedulable": true})), node("a", "400m")] {
        let pods = vec![low("low", "a"), low("other", "b"), high()];
        let mut world = World::new(config(|e| e.preempt_verb = "preempt".into()), nodes(), pods);
        let ask = world.ask();
        world.tell("MODIFIED", changed.clone());
        world.answer(&ask, &json!({"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-low"}]}}}));
        assert_eq!((evicted(&mut world), world.core.nominations().count()), (Vec::new(), 0), "{changed}");
        let again = world.ask();
        let args: Value = serde_json::from_slice(&again.body).expect("JSON");
        let proposed: Vec<&String> =
            args["NodeNameToMetaVictims"].as_object().into_iter().flatten().map(|(n, _)| n).collect();
        assert_eq!(proposed, ["b"], "{changed}");
        world.answer(&again, &json!({"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-other"}]}}}));
        assert_eq!(evicted(&mut world), ["uid-other"], "{changed}");
        world.check();
    }
}

/// A node that is being made free shrinks while a filter thinks of the pod: beside who stays there is no room by now.
#[test]
fn a_node_that_has_shrunk_meanwhile_is_not_waited_for() {
    let mut stays = bound_to(pod("stays", "300m"), "a");
    stays["spec"]["priority"] = 20.into();
    let pods = vec![stays, bound_to(pod("low", "600m"), "a"), high()];
    let mut world = World::new(config(|_| {}), vec![node("a", "1"), node("c", "100m")], pods);
    assert_eq!(evicted(&mut world), ["uid-low"]);
    // It looks at another node in the meantime, of which the extender thinks.
    world.tell("MODIFIED", node("c", "1"));
    let ask = world.ask();
    world.tell("MODIFIED", node("a", "700m"));
    let mut going = bound_to(pod("low", "600m"), "a");
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.tell("MODIFIED", going);
    world.answer(&ask, &json!({"NodeNames": [], "FailedNodes": {"c": "no"}}));
    assert_eq!(world.core.nominations().count(), 0);
    world.check();
}

/// Whom an extender names twice goes once.
#[test]
fn a_victim_that_is_named_twice_goes_once() {
    let mut world = preempts(|e| e.preempt_verb = "preempt".into());
    let ask = world.ask();
    let twice = json!([{"UID": "uid-low"}, {"UID": "uid-low"}]);
    world.answer(&ask, &json!({"NodeNameToMetaVictims": {"a": {"Pods": twice}}}));
    assert_eq!(evicted(&mut world), ["uid-low"]);
    assert!(world.metrics().contains("scheduler_preemption_victims_sum 1\n"));
    world.check();
}

/// The plugins would take a node as it is; what is short there the extender alone counts
/// (test/integration/scheduler/preemption/extender_preemption_test.go).
fn short_of_what_the_extender_counts(there: Vec<Value>, refusal: &str) -> World {
    let pods = there.into_iter().chain([high()]).collect();
    let mut world = World::new(config(|e| e.preempt_verb = "preempt".into()), vec![node("a", "2")], pods);
    let ask = world.ask();
    world.answer(&ask, &json!({"NodeNames": [], refusal: {"a": "no license"}}));
    world
}

#[test]
fn an_extender_names_who_has_to_go_where_the_plugins_would_have_nobody_go() {
    for (victims, gone) in [
        (json!({"a": {"Pods": [{"UID": "uid-low"}]}}), 1),
        (json!({"a": {"Pods": [{"UID": "uid-high"}]}}), 0),
        (json!({"a": {"Pods": []}}), 0),
        (json!({}), 0),
    ] {
        let mut world = short_of_what_the_extender_counts(vec![low("low", "a")], "FailedNodes");
        let ask = world.ask();
        let args: Value = serde_json::from_slice(&ask.body).expect("JSON");
        assert_eq!(args["NodeNameToMetaVictims"], json!({"a": {"Pods": [], "NumPDBViolations": 0}}));
        world.answer(&ask, &json!({"NodeNameToMetaVictims": victims}));
        assert_eq!(evicted(&mut world).len(), gone, "{victims}");
        assert_eq!(world.core.nominations().count(), gone, "{victims}");
        let told = world.told();
        assert_eq!(told[0].1.contains("no extender accepts a node"), gone == 0, "{victims}: {told:?}");
        world.check();
    }
    let mut world = short_of_what_the_extender_counts(vec![low("low", "a")], "FailedNodes");
    let ask = world.ask();
    world.no_answer(&ask);
    assert!(evicted(&mut world).is_empty());
    // It takes the node on no account, or nobody there is less important.
    for (there, refusal) in [(vec![low("low", "a")], "FailedAndUnresolvableNodes"), (Vec::new(), "FailedNodes")] {
        let mut world = short_of_what_the_extender_counts(there, refusal);
        assert!(world.asked.is_empty() && evicted(&mut world).is_empty(), "{refusal}");
        world.check();
    }
}

#[test]
fn a_node_where_nobody_need_go_for_one_extender_is_shown_to_the_next() {
    let mut config = config(|e| e.preempt_verb = "preempt".into());
    config.extenders.extend_from_within(..);
    let mut world = World::new(config, vec![node("a", "2")], vec![low("low", "a"), high()]);
    let meta = |pods: Value| json!({"NodeNameToMetaVictims": {"a": {"Pods": pods}}});
    for (extender, verb, answer) in [
        (0, FILTER, json!({"NodeNames": ["a"]})),
        (1, FILTER, json!({"NodeNames": [], "FailedNodes": {"a": "no license"}})),
        (0, "preempt", meta(json!([]))),
        (1, "preempt", meta(json!([{"UID": "uid-low"}]))),
    ] {
        let ask = world.ask();
        assert_eq!((ask.extender, ask.verb.as_str()), (extender, verb));
        world.answer(&ask, &answer);
    }
    assert_eq!(evicted(&mut world), ["uid-low"]);
    world.check();
}

#[test]
fn a_binder_is_believed_only_as_far_as_the_pod_shows_it() {
    let start = || {
        let mut world = World::new(config(|e| e.bind_verb = "bind".into()), nodes(), vec![pod("p", "500m")]);
        let ask = world.ask();
        world.answer(&ask, &json!({"NodeNames": ["a"]}));
        assert_eq!(world.bound(), [], "it binds itself");
        let bind = world.ask();
        let args: Value = serde_json::from_slice(&bind.body).expect("JSON");
        assert_eq!(args, json!({"PodName": "p", "PodNamespace": "d", "PodUID": "uid-p", "Node": "a"}));
        (world, bind)
    };
    let live = |world: &mut World| {
        let [(read, _)] = world.take(|request| request.method == Method::Get)[..] else { panic!("a live read") };
        read
    };
    // What its Binding rests on nobody knows, so the pod is written before its room is given back.
    let not_bound = |world: &mut World, read: CallId| {
        world.reply(read, Ok(pod("p", "500m")));
        assert_eq!(world.core.cluster().pods(), 1);
        let [(fence, _)] = world.take(|request| request.method == Method::Patch)[..] else { panic!("it is written") };
        let mut written = pod("p", "500m");
        written["metadata"]["resourceVersion"] = "99".into();
        world.reply(fence, Ok(written));
    };
    // It says no, and has bound it.
    let (mut world, bind) = start();
    world.answer(&bind, &json!({"Error": "no"}));
    let read = live(&mut world);
    let mut bound = pod("p", "500m");
    bound["spec"]["nodeName"] = "a".into();
    world.reply(read, Ok(bound));
    assert_eq!(world.core.cluster().node_of("uid-p"), Some("a"));
    world.check();
    // It says nothing, and has not.
    let (mut world, bind) = start();
    world.no_answer(&bind);
    let read = live(&mut world);
    not_bound(&mut world, read);
    assert_eq!(world.core.cluster().pods(), 0);
    world.check();
    // It says yes, and has not: the pod is looked at after a while.
    let (mut world, bind) = start();
    world.answer(&bind, &json!({}));
    world.pass(s(31));
    let read = live(&mut world);
    not_bound(&mut world, read);
    assert_eq!(world.core.cluster().pods(), 0);
    world.check();
}

#[test]
fn scores_of_nodes_that_were_not_offered_do_not_count() {
    let mut world = World::new(config(|e| e.prioritize_verb = "prioritize".into()), nodes(), vec![pod("p", "500m")]);
    let ask = world.ask();
    world.answer(&ask, &json!({"NodeNames": ["a", "b"]}));
    let scores = world.ask();
    assert_eq!(scores.verb, "prioritize");
    world.answer(&scores, &json!([{"Host": "nowhere", "Score": 10}, {"Host": "b", "Score": i64::MAX}, "x", null]));
    assert_eq!(world.bound(), [("p".to_owned(), "b".to_owned())]);
    world.check();
}

/// Scores of several extenders whose weights are as large as can be are no more than can be.
#[test]
fn scores_do_not_overflow() {
    let mut config = config(|e| (e.prioritize_verb, e.weight) = ("prioritize".into(), i64::MAX));
    config.extenders.extend_from_within(..);
    let mut world = World::new(config, nodes(), vec![pod("p", "500m")]);
    for _ in 0..2 {
        let ask = world.ask();
        world.answer(&ask, &json!({"NodeNames": ["a", "b"]}));
    }
    for ask in std::mem::take(&mut world.asked) {
        world.answer(&ask, &json!([{"Host": "b", "Score": 10}]));
    }
    assert_eq!(world.bound(), [("p".to_owned(), "b".to_owned())]);
    world.check();
}
