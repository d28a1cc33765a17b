//! A scheduler that loses its Lease stops acting, goes on hearing, and goes on when it leads again.

use carrack_engine::{RENEW_DEADLINE, RETRY_PERIOD};

use super::*;
use crate::extender::Extender;

/// Answers what is sent about the Lease, as long as it may be had.
fn lease(world: &mut World, free: bool) {
    loop {
        let sent = world.take(|request| request.path.contains("/leases"));
        if sent.is_empty() {
            return;
        }
        for (call, request) in sent {
            let mut lease: Value = match request.method {
                Method::Get => json!({"metadata": {"namespace": "kube-system", "name": "kube-scheduler"},
                    "spec": {"holderIdentity": if free { "" } else { "other" }, "leaseDurationSeconds": 2}}),
                _ => serde_json::from_slice(&request.body).expect("JSON"),
            };
            world.revision += 1;
            lease["metadata"]["resourceVersion"] = world.revision.to_string().into();
            let lost = !free && request.method != Method::Get;
            world.reply(call, if lost { Err(ApiError::Transport("cut off".into())) } else { Ok(lease) });
        }
    }
}

fn elected(config: Config, pods: Vec<Value>) -> World {
    let core =
        Scheduler::new(config, Rng::new(1)).with_elector(LeaderElector::new("kube-system", "kube-scheduler", "me"));
    World::of(core, vec![node("a", "1")], pods)
}

/// Time passes, with or without the Lease.
fn pass(world: &mut World, time: Duration, free: bool) {
    let until = world.now + time;
    while world.now < until {
        world.pass(RETRY_PERIOD.min(until.since(world.now)));
        lease(world, free);
    }
}

#[test]
fn who_does_not_lead_does_not_act_and_who_leads_again_goes_on() {
    let mut world = elected(Config::default(), vec![pod("first", "100m")]);
    assert_eq!(world.bound(), [], "it does not lead yet");
    lease(&mut world, true);
    assert_eq!(world.bound(), [("first".to_owned(), "a".to_owned())]);
    pass(&mut world, RENEW_DEADLINE * 2, false);
    assert!(!world.core.is_leading());
    world.tell("ADDED", pod("second", "100m"));
    pass(&mut world, s(20), false);
    assert_eq!(world.bound(), [], "another one leads");
    // The other one binds the second; both are counted.
    let mut second = pod("second", "100m");
    second["spec"]["nodeName"] = "a".into();
    world.tell("MODIFIED", second);
    world.tell("ADDED", pod("third", "950m"));
    pass(&mut world, s(3), true);
    assert!(world.core.is_leading());
    assert_eq!(world.bound(), [], "there is no room for it");
    assert_eq!(world.told().len(), 1);
    world.tell("ADDED", pod("fourth", "100m"));
    assert_eq!(world.bound(), [("fourth".to_owned(), "a".to_owned())]);
    world.check();
}

#[test]
fn what_was_not_sent_yet_goes_back_and_answers_that_come_too_late_do_nothing() {
    let extender = Extender { filter_verb: "f".into(), node_cache_capable: true, ..Extender::default() };
    let config = Config { extenders: vec![extender], ..Config::default() };
    let mut world = elected(config, vec![pod("first", "100m"), pod("second", "100m")]);
    lease(&mut world, true);
    let ask = world.ask();
    // The Lease runs out without anybody noticing: the answer is what it wakes up with.
    world.now = world.now + RENEW_DEADLINE;
    world.answer(&ask, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound(), []);
    assert!(world.asked.is_empty(), "nor is anybody asked");
    assert_eq!(world.core.queue().counts().in_flight, 0);
    pass(&mut world, s(3), true);
    let again = world.ask();
    world.answer(&again, &json!({"NodeNames": ["a"]}));
    assert_eq!(world.bound().len(), 1);
    world.check();
}

#[test]
fn victims_are_left_alone_by_who_does_not_lead_any_more() {
    let mut low = pod("low", "900m");
    low["spec"]["nodeName"] = "a".into();
    let mut high = pod("high", "500m");
    high["spec"]["priority"] = 10.into();
    let mut world = elected(Config::default(), vec![low, high]);
    lease(&mut world, true);
    let marks = world.take(|r| String::from_utf8_lossy(&r.body).contains("DisruptionTarget"));
    let [(mark, _)] = marks[..] else { panic!("one victim") };
    assert_eq!(world.core.nominations().count(), 1);
    world.now = world.now + RENEW_DEADLINE;
    world.reply(mark, Ok(json!({})));
    assert!(world.take(|r| r.method == Method::Delete).is_empty());
    // Who led meanwhile did not nominate it.
    pass(&mut world, s(1), true);
    assert_eq!(world.core.nominations().count(), 0);
    pass(&mut world, s(400), true);
    assert_eq!(world.take(|r| String::from_utf8_lossy(&r.body).contains("DisruptionTarget")).len(), 1);
    world.check();
}
