//! The parts that cores embed, against an API server of a few lines: leader election, events, informers.
#![expect(clippy::expect_used, reason = "a test fails by panicking, and its inputs are its own")]

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::bucket::Bucket;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Effect, Effects, EventRecord, EventRecorder, Informer, Input,
    LEASE_DURATION, LONGEST_TERM, LeaderElector, Method, Never, RETRY_PERIOD, Rng, SHORTEST_TERM, Selector,
    StatusError, Time, TimerId, WatchId, WatchItem,
};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

fn refuse(code: u16, reason: &str) -> ApiError {
    ApiError::Status(Box::new(StatusError { code, reason: reason.into(), ..StatusError::default() }))
}

/// Objects by path, with optimistic concurrency.
#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    revision: u64,
    down: bool,
}

impl Api {
    fn serve(&mut self, r: &ApiRequest) -> Result<ApiResponse, ApiError> {
        if self.down {
            return Err(ApiError::Transport("down".into()));
        }
        let mut path = r.path.clone();
        let body: Value = serde_json::from_slice(&r.body).unwrap_or_default();
        if r.method == Method::Post {
            path = format!("{path}/{}", body["metadata"]["name"].as_str().expect("a name"));
        }
        let old = self.objects.get(&path).cloned();
        let new = match (r.method, old) {
            (Method::Get, Some(o)) => return Ok(reply(&o)),
            (Method::Post, Some(_)) => return Err(refuse(409, "AlreadyExists")),
            (Method::Post, None) => body,
            (Method::Put, Some(o)) if o["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"] => body,
            (Method::Put, Some(_)) => return Err(refuse(409, "Conflict")),
            (Method::Patch, Some(mut o)) => {
                for (k, v) in body.as_object().expect("a map") {
                    o[k] = v.clone();
                }
                o
            }
            _ => return Err(refuse(404, "NotFound")),
        };
        self.revision += 1;
        let mut new = new;
        new["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.objects.insert(path, new.clone());
        Ok(reply(&new))
    }
}

fn reply(object: &Value) -> ApiResponse {
    ApiResponse { status: 200, body: Bytes::from(object.to_string()) }
}

struct Candidate {
    elector: LeaderElector,
    fx: Effects<Never>,
    timers: Vec<(Time, TimerId)>,
}

impl Candidate {
    fn new(name: &str) -> Self {
        Self { elector: LeaderElector::new("kube-system", "l", name), fx: Effects::new(), timers: Vec::new() }
    }
    fn settle(&mut self, now: Time, api: &mut Api) {
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, r) => {
                    let result = api.serve(&r);
                    self.elector.step::<Never, _>(now, &Input::Api { id, result }, &mut self.fx);
                }
                Effect::Timer(id, at) => self.timers.push((at, id)),
                _ => {}
            }
        }
    }
    fn tick(&mut self, now: Time, api: &mut Api) {
        for (at, id) in std::mem::take(&mut self.timers) {
            if at <= now {
                self.elector.step::<Never, _>(now, &Input::Timer(id), &mut self.fx);
                self.settle(now, api);
            } else {
                self.timers.push((at, id));
            }
        }
    }
}

#[test]
fn never_two_leaders_and_a_dead_one_is_followed() {
    let mut api = Api::default();
    let mut now = Time::from_unix_s(1000);
    let (mut a, mut b) = (Candidate::new("a"), Candidate::new("b"));
    a.elector.start(now, &mut a.fx);
    a.settle(now, &mut api);
    b.elector.start(now, &mut b.fx);
    b.settle(now, &mut api);
    assert!(a.elector.leading(now) && !b.elector.leading(now));
    // Both live: a stays.
    for _ in 0..600 {
        now = now + Duration::from_millis(100);
        a.tick(now, &mut api);
        b.tick(now, &mut api);
        assert!(a.elector.leading(now) && !b.elector.leading(now));
    }
    // a is paused: b follows, and by then a knows that it no longer leads.
    let paused = now;
    while !b.elector.leading(now) {
        assert!(now.since(paused) < Duration::from_secs(3), "nobody follows in time");
        now = now + Duration::from_millis(100);
        b.tick(now, &mut api);
        assert!(!(a.elector.leading(now) && b.elector.leading(now)), "two leaders");
    }
    assert!(now.since(paused) >= Duration::from_millis(1500), "the old leader's time was not over");
    assert!(a.elector.lost(now));
    // b is cut off from the API: it stops by itself.
    api.down = true;
    for _ in 0..11 {
        now = now + Duration::from_secs(1);
        b.tick(now, &mut api);
    }
    assert!(b.elector.lost(now));
}

/// What becomes of the Lease when its holder is told to end: at once, or while a renewal of it is under way.
fn check_stop(renewing: bool) {
    let mut api = Api::default();
    let now = Time::from_unix_s(1000);
    let (mut a, mut b) = (Candidate::new("a"), Candidate::new("b"));
    a.elector.start(now, &mut a.fx);
    a.settle(now, &mut api);
    b.elector.start(now, &mut b.fx);
    b.settle(now, &mut api);
    let later = now + RETRY_PERIOD;
    if renewing {
        let (_, timer) = a.timers.pop().expect("the next renewal");
        a.elector.step::<Never, _>(later, &Input::Timer(timer), &mut a.fx);
    }
    a.elector.stop(later, &mut a.fx);
    assert!(!a.elector.leading(later) && !a.elector.ended(), "it leads no more, and waits for an answer");
    a.settle(later, &mut api);
    assert!(a.elector.ended(), "nothing is under way");
    let lease = api.objects.values().next().expect("the lease");
    assert_eq!(lease["spec"]["holderIdentity"], "", "{lease}");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 1, "{lease}");
    b.tick(later, &mut api);
    assert!(b.elector.leading(later), "the other one had not to wait");
    assert_eq!(api.objects.values().next().expect("the lease")["spec"]["leaseTransitions"], 1);
}

#[test]
fn who_is_told_to_end_gives_the_lease_back() {
    check_stop(false);
    check_stop(true);
    // Who does not lead has nothing to give back.
    let (mut api, now) = (Api::default(), Time::from_unix_s(1000));
    let (mut a, mut b) = (Candidate::new("a"), Candidate::new("b"));
    a.elector.start(now, &mut a.fx);
    a.settle(now, &mut api);
    b.elector.start(now, &mut b.fx);
    b.settle(now, &mut api);
    b.elector.stop(now, &mut b.fx);
    assert!(b.elector.ended() && b.fx.pop().is_none());
    // Nor has one who was paused for so long that somebody else may lead.
    let late = now + LEASE_DURATION;
    a.elector.stop(late, &mut a.fx);
    assert!(a.elector.ended() && a.fx.pop().is_none());
}

/// Transitions, number and beginning of a candidate's term.
fn term(a: &Candidate) -> Option<(i32, u64, u64)> {
    a.elector.tenure().map(|t| (t.premise.term.clone().map_or(-1, |t| t.transitions), t.number, t.since))
}

/// Who begins to lead does so in another term, also under the name that it had before; and so does who asks for it.
#[test]
fn each_beginning_is_another_term() {
    let (mut api, mut now) = (Api::default(), Time::from_unix_s(1000));
    let mut a = Candidate::new("a");
    a.elector.start(now, &mut a.fx);
    assert_eq!(term(&a), None);
    a.settle(now, &mut api);
    assert_eq!(term(&a), Some((0, 1, 1)));
    now = now + RETRY_PERIOD;
    a.tick(now, &mut api);
    assert_eq!(term(&a), Some((0, 1, 1)), "a renewal");
    // While a renewal is under way: with the next one, since what is meant may have been sent meanwhile.
    now = now + RETRY_PERIOD;
    let (_, timer) = a.timers.pop().expect("the next renewal");
    a.elector.step::<Never, _>(now, &Input::Timer(timer), &mut a.fx);
    a.elector.begin_anew();
    a.settle(now, &mut api);
    assert_eq!(term(&a), Some((0, 1, 1)));
    now = now + RETRY_PERIOD;
    let (_, timer) = a.timers.pop().expect("the next renewal");
    a.elector.step::<Never, _>(now, &Input::Timer(timer), &mut a.fx);
    // This one is on its way already.
    a.elector.begin_anew();
    a.settle(now, &mut api);
    assert_eq!(term(&a), Some((1, 2, 1)), "nobody else can have led");
    for _ in 0..20 {
        now = now + RETRY_PERIOD;
        a.tick(now, &mut api);
    }
    assert_eq!(term(&a), Some((1, 2, 1)));
    // It did not hear for too long; or it was started anew.
    now = now + LEASE_DURATION;
    let mut again = Candidate::new("a");
    again.elector.start(now, &mut again.fx);
    again.settle(now, &mut api);
    assert_eq!(term(&again), Some((2, 1, 1)));
    // The first one is still there.
    now = now + RETRY_PERIOD;
    a.tick(now, &mut api);
    a.tick(now + RETRY_PERIOD, &mut api);
    assert_eq!(term(&a), Some((3, 3, 3)), "somebody else has led");
    // Numbers begin again.
    api.objects.values_mut().next().expect("the lease")["spec"]["leaseTransitions"] = i32::MAX.into();
    let mut last = Candidate::new("last");
    last.elector.start(now, &mut last.fx);
    last.settle(now, &mut api);
    now = now + LEASE_DURATION;
    last.tick(now, &mut api);
    assert_eq!(term(&last), Some((0, 1, 1)));
}

/// What is asked for all the time leaves each term longer than the one before, so that what takes its time is done in one.
#[test]
fn terms_that_follow_each_other_last_longer_and_longer() {
    let (mut api, mut now) = (Api::default(), Time::from_unix_s(1000));
    let mut a = Candidate::new("a");
    a.elector.start(now, &mut a.fx);
    a.settle(now, &mut api);
    let mut next = |a: &mut Candidate, api: &mut Api, asking: bool| {
        let (before, since) = (term(a), now);
        while term(a) == before && now.since(since) < LONGEST_TERM * 4 {
            if asking {
                a.elector.begin_anew();
                // Something that was sent long ago has no answer yet.
                a.elector.awaits(Some(CallId(0)));
            }
            now = now + RETRY_PERIOD;
            a.tick(now, api);
        }
        now.since(since)
    };
    assert_eq!(next(&mut a, &mut api, true), RETRY_PERIOD, "the first is not waited for");
    let mut least = SHORTEST_TERM;
    for _ in 0..8 {
        let lasted = next(&mut a, &mut api, true);
        assert!(lasted >= least && lasted < least + RETRY_PERIOD * 2, "{lasted:?} instead of {least:?}");
        least = (least * 2).min(LONGEST_TERM);
    }
    assert_eq!(least, LONGEST_TERM);
    next(&mut a, &mut api, false);
    assert_eq!(next(&mut a, &mut api, true), RETRY_PERIOD, "that is over");
    let lasted = next(&mut a, &mut api, true);
    assert!(lasted < SHORTEST_TERM + RETRY_PERIOD * 2, "{lasted:?}");
    // Where nothing is under way, or only what was sent just now, nothing is gained by waiting.
    for oldest in [None, Some(CallId(u64::MAX))] {
        a.elector.begin_anew();
        a.elector.awaits(oldest);
        let (before, since) = (term(&a), now);
        while term(&a) == before {
            now = now + RETRY_PERIOD;
            a.tick(now, &mut api);
        }
        assert!(now.since(since) < SHORTEST_TERM + RETRY_PERIOD * 2, "{oldest:?}");
    }
}

/// A renewal that failed shows nothing about who leads. The Lease does.
#[test]
fn a_renewal_that_failed_ends_no_term() {
    let (mut api, mut now) = (Api::default(), Time::from_unix_s(1000));
    let mut a = Candidate::new("a");
    a.elector.start(now, &mut a.fx);
    a.settle(now, &mut api);
    for tries in [1, 10] {
        api.down = true;
        for _ in 0..tries {
            now = now + RETRY_PERIOD;
            a.tick(now, &mut api);
        }
        assert_eq!(a.elector.leading(now), tries == 1);
        api.down = false;
        now = now + RETRY_PERIOD;
        a.tick(now, &mut api);
        assert!(a.elector.leading(now));
        assert_eq!(term(&a), Some((0, 1, 1)));
    }
    // Another term is still wanted when the attempt has failed.
    a.elector.begin_anew();
    api.down = true;
    now = now + RETRY_PERIOD;
    a.tick(now, &mut api);
    api.down = false;
    now = now + RETRY_PERIOD;
    a.tick(now, &mut api);
    assert_eq!(term(&a), Some((1, 2, 1)));
}

/// The longest that nobody leads after a crash, wherever in the rounds of both it falls.
#[test]
fn nobody_sleeps_through_the_end_of_a_lease() {
    for offset_ms in (0..400).step_by(20) {
        let (mut api, mut now) = (Api::default(), Time::from_unix_s(1000));
        let (mut a, mut b) = (Candidate::new("a"), Candidate::new("b"));
        a.elector.start(now, &mut a.fx);
        a.settle(now, &mut api);
        now = now + Duration::from_millis(offset_ms);
        b.elector.start(now, &mut b.fx);
        b.settle(now, &mut api);
        let mut crashed = now;
        while !b.elector.leading(now) {
            now = now + Duration::from_millis(10);
            if now.since(Time::from_unix_s(1000)) <= Duration::from_secs(4) {
                a.tick(now, &mut api);
                crashed = now;
            }
            b.tick(now, &mut api);
            assert!(now.since(crashed) <= LEASE_DURATION + RETRY_PERIOD, "with b {offset_ms} ms after a");
        }
    }
}

#[test]
fn like_events_become_one_and_one_object_cannot_flood() {
    let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}}))
        .expect("a pod");
    let mut api = Api::default();
    let mut fx = Effects::<Never>::new();
    let mut recorder = EventRecorder::new("test", Rng::new(1));
    let now = Time::from_unix_s(1000);
    let settle = |recorder: &mut EventRecorder, fx: &mut Effects<Never>, api: &mut Api| {
        while let Some(Effect::Api(id, r)) = fx.pop() {
            let result = api.serve(&r);
            assert!(recorder.step::<Never, _>(now, &Input::Api { id, result }, fx));
        }
    };
    for _ in 0..3 {
        recorder.record(now, EventRecord::warning(&pod, "Failed", "no image"), &mut fx);
        settle(&mut recorder, &mut fx, &mut api);
    }
    assert_eq!(api.objects.len(), 1);
    assert_eq!(api.objects.values().next().map(|e| e["count"].clone()), Some(json!(3)));
    // After a restart of the recorder the count goes on.
    let mut recorder = EventRecorder::new("test", Rng::new(2));
    recorder.record(now, EventRecord::warning(&pod, "Failed", "no image"), &mut fx);
    settle(&mut recorder, &mut fx, &mut api);
    recorder.record(now, EventRecord::warning(&pod, "Failed", "no image"), &mut fx);
    settle(&mut recorder, &mut fx, &mut api);
    assert_eq!(api.objects.len(), 1);
    assert_eq!(api.objects.values().next().map(|e| e["count"].clone()), Some(json!(5)));
    for i in 0..100 {
        recorder.record(now, EventRecord::normal(&pod, "Loop", format!("{i}")), &mut fx);
        settle(&mut recorder, &mut fx, &mut api);
    }
    assert_eq!(api.objects.len(), 1 + 23, "a burst of 25, of which two were the failure");
}

/// The name of the event about a pod of this name, as it is made.
fn event_of(name: &str) -> String {
    let pod = json!({"metadata": {"namespace": "ns", "name": name, "uid": "u"}});
    let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
    let mut fx = Effects::<Never>::new();
    EventRecorder::new("test", Rng::new(1)).record(Time::from_unix_s(1), EventRecord::normal(&pod, "R", "m"), &mut fx);
    let Some(Effect::Api(_, request)) = fx.pop() else { return String::new() };
    let event: Value = serde_json::from_slice(&request.body).expect("an event");
    event["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Whatever an object is called, there can be events about it, and each object has its own.
#[test]
fn events_have_names_that_events_can_have() {
    assert!(event_of("p").starts_with("p."), "{}", event_of("p"));
    let longest = "x".repeat(253 - 17);
    assert!(event_of(&longest).starts_with(&longest));
    let too_long = "x".repeat(253);
    for odd in [&*too_long, "system:node", "a b", "-p", "p.", "P", ""] {
        let name = event_of(odd);
        assert!(name.len() == 33 && name.bytes().all(|b| b.is_ascii_hexdigit() || b == b'.'), "{odd}: {name}");
        assert_ne!(name, event_of("another one"));
    }
}

#[test]
fn an_event_has_the_annotations_that_it_is_given() {
    let pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}});
    let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
    for (given, expected) in [(&[][..], Value::Null), (&[("k", "v")], json!({"k": "v"}))] {
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut fx = Effects::<Never>::new();
        let record = EventRecord::normal(&pod, "R", "m").annotated(given);
        EventRecorder::new("test", Rng::new(1)).record(Time::from_unix_s(1), record, &mut fx);
        let Some(Effect::Api(_, request)) = fx.pop() else { panic!("no event for {expected}") };
        let event: Value = serde_json::from_slice(&request.body).expect("an event");
        assert_eq!(event["metadata"]["annotations"], expected);
    }
}

/// Long events wait in no more room than short ones.
#[test]
fn events_wait_in_so_much_room() {
    let mut fx = Effects::<Never>::new();
    let mut recorder = EventRecorder::new("test", Rng::new(1));
    let now = Time::from_unix_s(1000);
    let long = "x".repeat(1 << 20);
    for number in 0..200 {
        let pod = json!({"metadata": {"namespace": "ns", "name": format!("p{number}"), "uid": format!("u{number}")}});
        let pod: Pod = carrack_types::json::from_value(pod).expect("a pod");
        recorder.record(now, EventRecord::warning(&pod, "Failed", &*long), &mut fx);
    }
    let (mut api, mut told) = (Api::default(), 0);
    while let Some(Effect::Api(id, request)) = fx.pop() {
        told += 1;
        let result = api.serve(&request);
        assert!(recorder.step::<Never, _>(now, &Input::Api { id, result }, &mut fx));
    }
    assert_eq!(told, 4 + 32, "those that are written at once, and those that there is room for");
}

/// Ten a second, two at once: who has none to take waits for its timer, whatever is answered meanwhile.
#[test]
fn events_are_written_at_the_pace_that_is_set() {
    let mut fx = Effects::<Never>::new();
    let mut recorder = EventRecorder::new("test", Rng::new(1)).paced(Some(Bucket::new(10, 2)));
    let (mut api, start) = (Api::default(), Time::from_unix_s(1000));
    let pod: Pod = carrack_types::json::from_value(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "u"}}))
        .expect("a pod");
    for number in 0..5 {
        recorder.record(start, EventRecord::normal(&pod, "R", format!("{number}")), &mut fx);
    }
    let (mut now, mut written) = (start, Vec::new());
    while let Some(effect) = fx.pop() {
        let input = match effect {
            Effect::Api(id, request) => {
                written.push(now.since(start).as_millis());
                Input::Api { id, result: api.serve(&request) }
            }
            Effect::Timer(id, at) => {
                now = at;
                Input::Timer(id)
            }
            other => unreachable_effect(&Some(other)),
        };
        assert!(recorder.step::<Never, _>(now, &input, &mut fx));
    }
    assert_eq!((written, api.objects.len()), (vec![0, 0, 100, 200, 300], 5));
}

#[test]
fn an_informer_keeps_what_it_knows_while_reads_fail() {
    let now = Time::from_unix_s(1000);
    let mut fx = Effects::<Never>::new();
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    let list = |names: &[&str], rv: u64| {
        let items: Vec<_> = names
            .iter()
            .map(|n| json!({"metadata": {"namespace": "ns", "name": n, "uid": n, "resourceVersion": "1"}}))
            .collect();
        reply(&json!({"metadata": {"resourceVersion": rv.to_string()}, "items": items}))
    };
    let call = |fx: &mut Effects<Never>| -> CallId {
        match fx.pop() {
            Some(Effect::Api(id, _)) => id,
            other => unreachable_effect(&other),
        }
    };
    let watch = |fx: &mut Effects<Never>| -> WatchId {
        match fx.pop() {
            Some(Effect::Watch(id, _)) => id,
            other => unreachable_effect(&other),
        }
    };
    let timer = |fx: &mut Effects<Never>| -> TimerId {
        match fx.pop() {
            Some(Effect::Timer(id, _)) => id,
            other => unreachable_effect(&other),
        }
    };
    let names = |i: &Informer<Pod>| i.cache().keys().map(|k| k.name.clone()).collect::<Vec<_>>().join(",");
    let api = |id, result| Input::<Never>::Api { id, result };

    pods.start(&mut fx);
    let id = call(&mut fx);
    pods.step(now, &api(id, Err(ApiError::Transport("lost".into()))), &mut fx).expect("its own");
    assert!(!pods.synced());
    let id = timer(&mut fx);
    pods.step::<Never, _>(now, &Input::Timer(id), &mut fx).expect("its own");
    let id = call(&mut fx);
    pods.step(now, &api(id, Ok(list(&["a", "b"], 5))), &mut fx).expect("its own");
    assert!(pods.synced());
    assert_eq!((names(&pods).as_str(), pods.revision()), ("a,b", 5));
    // The history expired while it was cut off: it lists anew, and until then knows what it knew.
    let id = watch(&mut fx);
    let gone = WatchItem::Closed(Some(refuse(410, "Expired")));
    pods.step::<Never, _>(now, &Input::Watch { id, item: gone }, &mut fx).expect("its own");
    assert_eq!(names(&pods), "a,b");
    let id = timer(&mut fx);
    pods.step::<Never, _>(now, &Input::Timer(id), &mut fx).expect("its own");
    let id = call(&mut fx);
    pods.step(now, &api(id, Err(ApiError::Transport("lost".into()))), &mut fx).expect("its own");
    assert_eq!(names(&pods), "a,b");
    let id = timer(&mut fx);
    pods.step::<Never, _>(now, &Input::Timer(id), &mut fx).expect("its own");
    // A list with an object that is not even named takes nothing out.
    let id = call(&mut fx);
    let broken = json!({"metadata": {"resourceVersion": "8"}, "items": [{"metadata": {"name": 5}}]});
    pods.step(now, &api(id, Ok(reply(&broken))), &mut fx).expect("its own");
    assert_eq!(names(&pods), "a,b");
    // A complete one does.
    let id = watch(&mut fx);
    let gone = WatchItem::Closed(Some(refuse(410, "Expired")));
    pods.step::<Never, _>(now, &Input::Watch { id, item: gone }, &mut fx).expect("its own");
    let id = timer(&mut fx);
    pods.step::<Never, _>(now, &Input::Timer(id), &mut fx).expect("its own");
    let id = call(&mut fx);
    let deltas = pods.step(now, &api(id, Ok(list(&["b", "c"], 9))), &mut fx).expect("its own");
    assert_eq!((names(&pods).as_str(), deltas.len()), ("b,c", 2), "c came, a went, b did not change");
}

/// Which objects are known once `a` and `b` were listed, and this was told: by a line of the watch, or by a list after it.
fn check_unreadable(told: &Value, expected: &str) {
    let (now, mut fx) = (Time::from_unix_s(1000), Effects::<Never>::new());
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    let listed = ["a", "b"].map(|name| one_pod(name, name, &json!(1)));
    let first = json!({"metadata": {"resourceVersion": "5"}, "items": listed});
    let is_list = told["items"].is_array();
    let (mut lists, mut watched) = (vec![told, &first], false);
    pods.start(&mut fx);
    while let Some(effect) = fx.pop() {
        let input = match effect {
            Effect::Api(id, _) => lists.pop().map(|list| Input::<Never>::Api { id, result: Ok(reply(list)) }),
            Effect::Watch(id, _) if !std::mem::replace(&mut watched, true) => {
                let gone = WatchItem::Closed(Some(refuse(410, "Expired")));
                let item = if is_list { gone } else { WatchItem::Event(told.to_string().into()) };
                Some(Input::Watch { id, item })
            }
            Effect::Timer(id, _) => Some(Input::Timer(id)),
            _ => None,
        };
        if let Some(input) = input {
            pods.step(now, &input, &mut fx).expect("its own");
        }
    }
    let names: Vec<&str> = pods.cache().keys().map(|key| key.name.as_str()).collect();
    assert_eq!((names.join(",").as_str(), pods.revision()), (expected, 9), "{told}");
}

fn one_pod(name: &str, uid: &str, priority: &Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": "9"},
        "spec": {"priority": priority}})
}

/// Of an object that a newer server has written in a form that is not known here, its name says enough to hold up no other.
#[test]
fn what_cannot_be_read_is_known_by_its_name() {
    let strange = |name: &str, uid: &str| one_pod(name, uid, &json!("the highest"));
    let list = |items: &Value| json!({"metadata": {"resourceVersion": "9"}, "items": items});
    let line = |kind: &str, object: Value| json!({"type": kind, "object": object});
    check_unreadable(&list(&json!([strange("a", "a"), strange("c", "c")])), "a");
    check_unreadable(&list(&json!([strange("a", "another"), one_pod("b", "b", &json!(2))])), "b");
    check_unreadable(&line("MODIFIED", strange("a", "a")), "a,b");
    check_unreadable(&line("MODIFIED", strange("a", "another")), "b");
    check_unreadable(&line("DELETED", strange("a", "a")), "b");
}

/// Whether an informer lists anew once its watch has ended so.
fn check_relists(end: WatchItem, expected: bool) {
    let (now, mut fx) = (Time::from_unix_s(1000), Effects::<Never>::new());
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    let (said, mut end, mut lists) = (format!("{end:?}"), Some(end), 0);
    pods.start(&mut fx);
    while let Some(effect) = fx.pop() {
        let input = match effect {
            Effect::Api(id, _) if lists == 0 => {
                let list = reply(&json!({"metadata": {"resourceVersion": "5"}, "items": []}));
                Some(Input::<Never>::Api { id, result: Ok(list) })
            }
            Effect::Watch(id, _) => end.take().map(|item| Input::Watch { id, item }),
            Effect::Timer(id, _) => Some(Input::Timer(id)),
            _ => None,
        };
        lists += usize::from(matches!(effect, Effect::Api(..)));
        if let Some(input) = input {
            pods.step(now, &input, &mut fx).expect("its own");
        }
    }
    assert_eq!(lists > 1, expected, "{said}");
}

/// A watch goes on where it ended, unless its server knows nothing of that revision, any more or at all.
#[test]
fn who_cannot_go_on_lists_anew() {
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    let ahead = json!({"kind": "Status", "code": 504, "reason": "Timeout", "details": {"causes": [cause]}});
    let closed = |error: ApiError| WatchItem::Closed(Some(error));
    let told = |status: &Value| WatchItem::Event(json!({"type": "ERROR", "object": status}).to_string().into());
    check_relists(closed(refuse(410, "Expired")), true);
    check_relists(closed(ApiError::from_reply(504, ahead.to_string().as_bytes())), true);
    check_relists(told(&ahead), true);
    check_relists(told(&json!({"code": 410, "reason": "Expired"})), true);
    check_relists(closed(refuse(504, "Timeout")), false);
    check_relists(closed(ApiError::Transport("broken".into())), false);
    check_relists(WatchItem::Closed(None), false);
}

/// Who is too slow for its server does not list without a pause.
#[test]
fn lists_that_are_too_old_at_once_come_later_and_later() {
    let (now, mut fx) = (Time::from_unix_s(1000), Effects::<Never>::new());
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    let mut waits = Vec::new();
    pods.start(&mut fx);
    while let Some(effect) = fx.pop() {
        let input = match effect {
            Effect::Api(id, _) => {
                let list = reply(&json!({"metadata": {"resourceVersion": "5"}, "items": []}));
                Input::<Never>::Api { id, result: Ok(list) }
            }
            Effect::Watch(id, _) => Input::Watch { id, item: WatchItem::Closed(Some(refuse(410, "Expired"))) },
            Effect::Timer(id, at) if waits.len() < 10 => {
                waits.push(at.since(now));
                Input::Timer(id)
            }
            _ => break,
        };
        pods.step(now, &input, &mut fx).expect("its own");
    }
    let least = |n: u32| Duration::from_millis(100 * 2_u64.pow(n)).min(Duration::from_secs(10));
    for (n, wait) in (0..).zip(&waits) {
        assert!(*wait >= least(n) && *wait <= least(n) * 3 / 2, "{n}: {wait:?}");
    }
    assert_eq!(waits.len(), 10);
}

/// A list of many pages that expires between two of them is read in one, or whoever is slow would never see its end.
#[test]
fn a_list_that_expires_between_its_pages_is_read_in_one() {
    let (now, mut fx) = (Time::from_unix_s(1000), Effects::<Never>::new());
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    let page = |names: &[&str], more: &str| {
        let of = |n: &&str| json!({"metadata": {"namespace": "ns", "name": n, "uid": n, "resourceVersion": "1"}});
        let items: Vec<_> = names.iter().map(of).collect();
        reply(&json!({"metadata": {"resourceVersion": "5", "continue": more}, "items": items}))
    };
    let answer = |pods: &mut Informer<Pod>, fx: &mut Effects<Never>, result: Result<ApiResponse, ApiError>| {
        let Some(Effect::Api(id, request)) = fx.pop() else { return String::new() };
        pods.step::<Never, _>(now, &Input::Api { id, result }, fx);
        request.path
    };
    pods.start(&mut fx);
    assert_eq!(answer(&mut pods, &mut fx, Ok(page(&["a", "b"], "token"))), "/api/v1/pods?limit=500");
    let next = answer(&mut pods, &mut fx, Err(refuse(410, "Expired")));
    assert_eq!(next, "/api/v1/pods?limit=500&continue=token");
    assert!(!pods.synced());
    assert_eq!(answer(&mut pods, &mut fx, Ok(page(&["b", "c"], ""))), "/api/v1/pods");
    assert!(pods.synced());
    let names: Vec<_> = pods.cache().keys().map(|key| key.name.clone()).collect();
    assert_eq!(names, ["b", "c"], "a went meanwhile");
}

#[expect(clippy::panic, reason = "a test fails by panicking")]
fn unreachable_effect<T>(effect: &Option<Effect<Never>>) -> T {
    panic!("unexpected effect {effect:?}")
}

/// A list that is under way when something has changed may tell of what was before.
#[test]
fn who_is_hurried_while_it_lists_lists_once_more() {
    let (now, mut fx) = (Time::from_unix_s(1000), Effects::<Never>::new());
    let mut pods = Informer::<Pod>::new(Pod::resource(), Selector::all(), Rng::new(1));
    pods = pods.listed_every(Duration::from_secs(30));
    let answer = |pods: &mut Informer<Pod>, fx: &mut Effects<Never>| {
        let Some(Effect::Api(id, _)) = fx.pop() else { return false };
        let result = Ok(reply(&json!({"metadata": {"resourceVersion": "1"}, "items": []})));
        pods.step::<Never, _>(now, &Input::Api { id, result }, fx);
        true
    };
    pods.start(&mut fx);
    pods.hurry(&mut fx);
    pods.hurry(&mut fx);
    assert!(answer(&mut pods, &mut fx), "the first");
    assert!(answer(&mut pods, &mut fx), "once more");
    assert!(matches!(fx.pop(), Some(Effect::Timer(..))), "and no more");
    pods.hurry(&mut fx);
    assert!(answer(&mut pods, &mut fx), "at once");
}
