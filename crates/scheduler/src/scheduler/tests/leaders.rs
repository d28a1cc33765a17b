//! A scheduler that loses its Lease stops acting, goes on hearing, and goes on when it leads again.

use carrack_engine::{CATCH_UP, RENEW_DEADLINE, RETRY_PERIOD, StatusError, Term};

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
            let (reads, revision) = (request.method == Method::Get, world.revision);
            let lost = !free && !reads;
            world.reply(call, if lost { Err(ApiError::Transport("cut off".into())) } else { Ok(lease) });
            if !reads && !lost {
                world.bookmark(revision);
            }
        }
    }
}

fn elected(config: Config, pods: Vec<Value>) -> World {
    let core =
        Scheduler::new(config, Rng::new(1)).with_elector(LeaderElector::new("kube-system", "kube-scheduler", "me"));
    World::of(core, vec![node("a", "1")], pods)
}

impl World {
    /// The watches tell how far they are.
    fn bookmark(&mut self, revision: u64) {
        for id in self.watches.values().copied().collect::<Vec<_>>() {
            let event = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": revision.to_string()}}});
            self.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
        }
    }
}

/// A leader that has just marked a pod, which is in the way of another one; and that write.
fn with_a_victim() -> (World, CallId) {
    let mut world = elected(Config::default(), vec![low("low", "a"), high()]);
    lease(&mut world, true);
    let [(mark, _)] = world.marks()[..] else { panic!("one victim") };
    (world, mark)
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
    world.tell("MODIFIED", bound_to(pod("second", "100m"), "a"));
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
    let (mut world, mark) = with_a_victim();
    assert_eq!(world.core.nominations().count(), 1);
    world.now = world.now + RENEW_DEADLINE;
    world.reply(mark, Ok(json!({})));
    assert!(world.take(|r| r.method == Method::Delete).is_empty());
    // It decides anew when it leads again, and at once.
    pass(&mut world, s(1), true);
    assert_eq!((world.core.nominations().count(), world.marks().len()), (1, 1));
    world.check();
}

/// Who leads again does not count on what it had asked for when it led before: that may be refused, or answered by nobody.
#[test]
fn a_victim_of_a_former_term_counts_as_one_that_stays() {
    let (mut world, mark) = with_a_victim();
    pass(&mut world, RENEW_DEADLINE * 2, false);
    pass(&mut world, s(3), true);
    assert!(world.core.is_leading());
    let [(again, _)] = world.marks()[..] else { panic!("it is marked again, though the first mark has no answer") };
    // The late answer takes nothing back of what is decided now, and goes on with nothing.
    world.reply(mark, Ok(json!({})));
    assert!(world.take(|r| r.method == Method::Delete).is_empty());
    world.reply(again, Ok(json!({})));
    assert_eq!(world.take(|r| r.method == Method::Delete).len(), 1);
    world.check();
}

/// A scheduler that leads on, in another term, decides anew about a victim whose deletion was of the term before.
#[test]
fn a_victim_that_stays_since_the_term_is_over_keeps_nobody_waiting() {
    let (mut world, mark) = with_a_victim();
    world.reply(mark, Ok(json!({})));
    let [(delete, _)] = world.take(|r| r.method == Method::Delete)[..] else { panic!("it is deleted") };
    let over = StatusError {
        code: 409,
        reason: "Conflict".into(),
        details: json!({"group": "coordination.k8s.io", "kind": "leases", "name": "kube-scheduler"}),
        ..StatusError::default()
    };
    world.reply(delete, Err(ApiError::Status(Box::new(over))));
    pass(&mut world, s(2), true);
    assert_eq!(world.marks().len(), 1, "it is tried again at once, long before leftovers are looked at");
    world.check();
}

/// A scheduler that has taken the Lease, with revision 9 and as the fifth, and nothing else yet: its watches tell nothing.
fn that_has_taken_over(pods: Vec<Value>) -> World {
    let mut world = elected(Config::default(), pods);
    for (holder, revision, transitions) in [("", "8", 4), ("me", "9", 5)] {
        let sent = world.take(|r| r.path.contains("/leases"));
        let [(call, _)] = sent[..] else { panic!("one request: {sent:?}") };
        let held = json!({"metadata": {"namespace": "kube-system", "name": "kube-scheduler", "uid": "l",
            "resourceVersion": revision}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 2,
            "leaseTransitions": transitions}});
        world.reply(call, Ok(held));
    }
    assert_eq!(world.bound(), [], "what was written before revision 9 is not known yet");
    world
}

/// Who takes over counts what others have bound before, and its own bindings are made only while it leads.
#[test]
fn who_takes_over_knows_what_was_bound_before() {
    let mut world = that_has_taken_over(vec![pod("first", "600m")]);
    // What others bind takes the room.
    world.revision = 7;
    world.tell("ADDED", bound_to(pod("second", "600m"), "a"));
    world.bookmark(9);
    assert_eq!(world.bound(), [], "there is no room for it");
    assert_eq!(world.told().len(), 1);
    world.tell("ADDED", pod("third", "100m"));
    let sent = world.take(|r| r.path.ends_with("/binding"));
    let [(_, request)] = &sent[..] else { panic!("one binding: {sent:?}") };
    let terms: Vec<_> = request.rests_on.iter().filter_map(|premise| premise.term.clone()).collect();
    assert_eq!(terms, [Term { holder: "me".to_owned(), transitions: 5 }]);
}

/// Where watches tell nothing of how far they are, pods and nodes are listed anew.
#[test]
fn who_takes_over_does_not_wait_for_silent_watches() {
    let mut world = that_has_taken_over(vec![pod("first", "600m")]);
    // Revisions of Leases may be another store's: what matters is when the list was asked for.
    world.now = world.now + CATCH_UP;
    world.pass(Duration::ZERO);
    assert_eq!(world.bound(), [("first".to_owned(), "a".to_owned())]);
}
