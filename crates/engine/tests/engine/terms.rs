//! Terms: writes rest on them, who begins one knows what was written before, and a write of unknown outcome ends one.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and its inputs are its own")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Controller, Core as _, Effect, Effects, Input, Key, LeaderElector,
    Manager, Method, Never, Plan, RENEW_DEADLINE, RETRY_PERIOD, Rng, SHORTEST_TERM, Setup, StatusError, Time, TimerId,
    View, WatchId, WatchItem,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

/// What a controller heard besides changes.
type Heard = Arc<Mutex<Vec<&'static str>>>;

/// Deletes config maps, and once more.
struct Sweeper(Heard);

impl Controller for Sweeper {
    fn name(&self) -> &'static str {
        "sweeper"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        match view.get::<ConfigMap>(&key.namespace, &key.name) {
            Some(map) if !map.is_deleting() => Plan::none().delete(map.as_ref()).delete(map.as_ref()),
            _ => Plan::none(),
        }
    }
    fn undone(&mut self, _: &Key) {
        self.0.lock().expect("nobody panics with it").push("undone");
    }
    fn begin(&mut self) {
        self.0.lock().expect("nobody panics with it").push("begins");
    }
}

struct Run {
    core: Manager,
    fx: Effects<Never>,
    now: Time,
    watch: Option<WatchId>,
    timers: Vec<(Time, TimerId)>,
    requests: Vec<(CallId, ApiRequest)>,
    lists: usize,
    revision: u64,
    transitions: i32,
    /// What there is.
    maps: Vec<String>,
    /// How much higher revisions of Leases are, which another store counts.
    apart: u64,
    heard: Heard,
}

impl Run {
    /// A manager that has read everything, and has asked for the Lease.
    fn new() -> Self {
        Self::of(&["m".to_owned()])
    }
    fn of(maps: &[String]) -> Self {
        let elector = LeaderElector::new("ns", "l", "me");
        let heard = Heard::default();
        let mut run = Self {
            core: Manager::new("test", Rng::new(1))
                .telling_lead_as("test")
                .with(Sweeper(heard.clone()))
                .with_elector(elector),
            fx: Effects::new(),
            now: Time::from_unix_s(1000),
            watch: None,
            timers: Vec::new(),
            requests: Vec::new(),
            lists: 0,
            revision: 5,
            transitions: 3,
            maps: maps.to_vec(),
            apart: 0,
            heard,
        };
        run.step(Input::Start);
        run
    }
    fn step(&mut self, input: Input<Never>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) if request.method == Method::Get && !request.path.contains("leases") => {
                    self.lists += 1;
                    let map = |name: &String| json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "5"}});
                    let maps: Vec<Value> = self.maps.iter().map(map).collect();
                    let list = json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": maps});
                    self.core.step(self.now, Input::Api { id, result: Ok(reply(&list)) }, &mut self.fx);
                }
                Effect::Api(id, request) => self.requests.push((id, request)),
                Effect::Watch(id, _) => self.watch = Some(id),
                Effect::Timer(id, at) => self.timers.push((at, id)),
                Effect::Unwatch(_) => self.watch = None,
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        self.timers.sort();
        while let Some(next) = self.timers.iter().position(|(at, _)| *at <= until) {
            let (at, id) = self.timers.remove(next);
            self.now = self.now.max(at);
            self.step(Input::Timer(id));
            self.timers.sort();
        }
        self.now = until;
    }
    fn bookmark(&mut self) {
        let object = json!({"metadata": {"resourceVersion": self.revision.to_string()}});
        let event = json!({"type": "BOOKMARK", "object": object}).to_string();
        let id = self.watch.expect("a watch");
        self.step(Input::Watch { id, item: WatchItem::Event(Bytes::from(event)) });
    }
    fn take(&mut self, of: &str) -> Vec<(CallId, ApiRequest)> {
        let (taken, left) = std::mem::take(&mut self.requests).into_iter().partition(|(_, r)| r.path.contains(of));
        self.requests = left;
        taken
    }
    /// Answers what is asked about the Lease. Returns the methods.
    fn lease(&mut self) -> Vec<Method> {
        let mut methods = Vec::new();
        while let Some((id, request)) = self.take("leases").pop() {
            methods.push(request.method);
            if request.method == Method::Put {
                let lease: Value = serde_json::from_slice(&request.body).expect("JSON");
                self.transitions =
                    i32::try_from(lease["spec"]["leaseTransitions"].as_i64().expect("a number")).expect("a small one");
                self.revision += 1;
            }
            let lease = json!({"metadata": {"namespace": "ns", "name": "l", "uid": "lease",
                "resourceVersion": (self.apart + self.revision).to_string()},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 2, "leaseTransitions": self.transitions}});
            self.step(Input::Api { id, result: Ok(reply(&lease)) });
        }
        methods
    }
    /// What the controller heard since it was asked last.
    fn heard(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.heard.lock().expect("nobody panics with it"))
    }
    /// Terms of the deletions that were sent.
    fn deletions(&mut self) -> Vec<(CallId, Vec<i32>)> {
        let terms =
            |r: &ApiRequest| r.rests_on.iter().filter_map(|premise| Some(premise.term.as_ref()?.transitions)).collect();
        self.take("configmaps").iter().map(|(id, request)| (*id, terms(request))).collect()
    }
}

fn reply(body: &Value) -> ApiResponse {
    ApiResponse { status: 200, body: Bytes::from(body.to_string()) }
}

/// What a write is told that rests on a term that is over.
fn over() -> ApiError {
    ApiError::Status(Box::new(StatusError {
        code: 409,
        reason: "Conflict".into(),
        details: json!({"group": "coordination.k8s.io", "kind": "leases", "name": "l"}),
        ..StatusError::default()
    }))
}

#[test]
fn who_begins_to_lead_knows_what_was_written_before() {
    let mut run = Run::new();
    assert_eq!(run.deletions(), []);
    // The same name as before, and another term.
    assert_eq!(run.lease(), [Method::Get, Method::Put]);
    assert_eq!((run.transitions, run.revision), (4, 6));
    assert_eq!(run.deletions(), [], "its cache is as of revision 5");
    run.bookmark();
    let sent = run.deletions();
    assert_eq!(sent.iter().map(|(_, terms)| terms.clone()).collect::<Vec<_>>(), [[4]]);
    run.step(Input::Api { id: sent[0].0, result: Ok(reply(&json!({"kind": "Status"}))) });
    assert_eq!(run.deletions().len(), 1, "the second");
}

#[test]
fn who_leads_says_so_and_only_as_long_as_it_does() {
    let mut run = Run::new();
    let tells = |run: &Run, now: Time, leads: u8| {
        let text = run.core.measures(now);
        let told = |line: &str| text.lines().any(|told| told == line);
        told(&format!("test_leading_status {leads}")) && told("test_ready_status 1")
    };
    assert!(tells(&run, run.now, 0));
    run.lease();
    assert!(tells(&run, run.now, 1));
    assert!(tells(&run, run.now + RENEW_DEADLINE, 0));
}

#[test]
fn who_begins_to_lead_lists_what_tells_nothing() {
    let mut run = Run::new();
    run.lease();
    for _ in 0..3 {
        run.pass(Duration::from_millis(400));
        run.lease();
    }
    assert_eq!(run.lists, 2, "listed once more");
    assert_eq!(run.deletions().len(), 1);
}

/// Revisions compare within one kind alone: an API server may keep Leases in a store of its own.
#[test]
fn a_list_that_is_asked_for_in_the_term_shows_what_was_written_before() {
    let mut run = Run::new();
    run.apart = 1_000_000;
    run.lease();
    for _ in 0..10 {
        run.bookmark();
        run.pass(Duration::from_millis(400));
        run.lease();
    }
    assert_eq!(run.lists, 2, "listed once more, and only once");
    assert_eq!(run.deletions().len(), 1);
}

/// Writes come to nothing all the time, as those do that a webhook is asked about in vain. What takes its time is still made.
#[test]
fn doubts_let_a_slow_write_through() {
    let mut maps: Vec<String> = (0..100).map(|n| format!("doubted{n}")).collect();
    maps.extend((0..60).map(|n| format!("slow{n}")));
    let mut run = Run::of(&maps);
    run.lease();
    run.bookmark();
    let step = Duration::from_millis(100);
    let (mut doubted, mut slow) = (Vec::new(), Vec::new());
    let (mut made, mut refused, mut terms) = (0, 0, BTreeSet::new());
    for n in 0..200 {
        for (id, request) in run.take("configmaps") {
            if request.path.contains("doubted") {
                doubted.push(id);
            } else {
                let term =
                    request.rests_on.iter().find_map(|premise| premise.term.as_ref()).expect("a term").transitions;
                slow.push((run.now, id, term));
            }
        }
        // One doubt for each renewal.
        if n % 4 == 0
            && let Some(id) = doubted.pop()
        {
            run.step(Input::Api { id, result: Err(ApiError::Transport("no reply".into())) });
        }
        let now = run.now;
        let due = |sent: &(Time, CallId, i32)| now.since(sent.0) >= Duration::from_secs(1);
        while let Some(at) = slow.iter().position(due) {
            let (_, id, term) = slow.remove(at);
            let holds = term == run.transitions;
            let result = if holds { Ok(reply(&json!({"kind": "Status"}))) } else { Err(over()) };
            if holds {
                made += 1
            } else {
                refused += 1
            }
            run.step(Input::Api { id, result });
        }
        run.pass(step);
        run.lease();
        run.bookmark();
        terms.insert(run.transitions);
    }
    assert!(terms.len() > 2, "there were no doubts");
    // Those that the first terms did not last for are made in a longer one.
    assert!(made >= 60 && refused > 0, "{made} made and {refused} refused, in {} terms", terms.len());
}

/// Where nothing is slow, nobody has to wait for it.
#[test]
fn a_doubt_waits_for_nothing_that_is_not_under_way() {
    let maps: Vec<String> = (0..30).map(|n| format!("m{n}")).collect();
    let mut run = Run::of(&maps);
    run.lease();
    run.bookmark();
    let (mut doubts, mut waits, mut terms) = (Vec::new(), Vec::new(), 0);
    for n in 0..300 {
        let before = run.transitions;
        let mut sent = run.take("configmaps");
        if n % 4 == 0
            && let Some((id, request)) = sent.pop()
        {
            run.step(Input::Api { id, result: Err(ApiError::Transport("no reply".into())) });
            // What was sent in an earlier term waits for no other one.
            let mut terms = request.rests_on.iter().filter_map(|premise| premise.term.as_ref());
            if terms.any(|term| term.transitions == run.transitions) {
                doubts.push(run.now);
            }
        }
        for (id, _) in sent {
            let conflict = StatusError { code: 409, reason: "Conflict".into(), ..StatusError::default() };
            run.step(Input::Api { id, result: Err(ApiError::Status(Box::new(conflict))) });
        }
        run.pass(Duration::from_millis(100));
        run.lease();
        run.bookmark();
        if run.transitions != before {
            waits.extend(doubts.drain(..).map(|at| run.now.since(at)));
            terms += 1;
        }
    }
    let longest = waits.iter().max().copied().unwrap_or_default();
    assert!(terms > 5 && waits.len() > 10, "{terms} terms, {} doubts", waits.len());
    assert!(longest <= SHORTEST_TERM + RETRY_PERIOD * 2, "{longest:?}, in {terms} terms");
}

#[test]
fn an_unknown_outcome_ends_the_term_before_it_is_looked_at() {
    let mut run = Run::new();
    run.lease();
    run.bookmark();
    let (call, _) = run.deletions().pop().expect("a deletion");
    run.step(Input::Api { id: call, result: Err(ApiError::Transport("no reply".into())) });
    assert_eq!(run.lists, 1, "what it has done is not asked for yet");
    run.pass(Duration::from_millis(400));
    assert_eq!(run.lists, 1);
    assert_eq!(run.lease(), [Method::Put]);
    assert_eq!((run.transitions, run.revision, run.lists), (5, 7, 2));
    run.pass(Duration::from_millis(400));
    run.lease();
    assert_eq!(run.deletions(), [], "the cache is as of revision 6");
    run.revision = 7;
    run.bookmark();
    run.pass(Duration::from_secs(1));
    assert_eq!(run.deletions().into_iter().map(|(_, terms)| terms).collect::<Vec<_>>(), [[5]]);
}

#[test]
fn what_is_left_of_a_plan_of_an_earlier_time_is_dropped() {
    let mut run = Run::new();
    run.lease();
    run.bookmark();
    let (call, _) = run.deletions().pop().expect("a deletion");
    run.pass(RENEW_DEADLINE * 2);
    run.lease();
    // Somebody else has led meanwhile.
    run.transitions += 1;
    run.pass(Duration::from_millis(400));
    run.lease();
    assert_eq!(run.transitions, 6);
    run.step(Input::Api { id: call, result: Ok(reply(&json!({"kind": "Status"}))) });
    assert_eq!(run.deletions(), []);
}

/// What a controller remembers of before is worth nothing when it begins to lead, and what it asked for may not be done.
#[test]
fn controllers_hear_that_they_begin_and_that_something_is_not_done() {
    let mut run = Run::new();
    assert!(run.heard().is_empty());
    run.lease();
    run.bookmark();
    assert_eq!(run.heard(), ["begins"]);
    let (call, _) = run.deletions().pop().expect("a deletion");
    let conflict = StatusError { code: 409, reason: "Conflict".into(), ..StatusError::default() };
    run.step(Input::Api { id: call, result: Err(ApiError::Status(Box::new(conflict))) });
    assert_eq!(run.heard(), ["undone"]);
    run.pass(RENEW_DEADLINE * 2);
    run.lease();
    assert!(run.heard().is_empty(), "nobody else has led");
    run.transitions += 1;
    run.pass(Duration::from_millis(400));
    run.lease();
    assert_eq!(run.heard(), ["begins"]);
}
