//! A plan that rests on what another controller of the same manager is just writing waits for that, and is decided anew.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and its inputs are its own")]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method,
    Never, Plan, Premise, Rng, Setup, Source, StatusError, Time, TimerId, View, WatchId, WatchItem,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

/// Sets a label of its own name on a config map, or makes a child of it, as it was read.
struct Marks {
    name: &'static str,
    child: bool,
}

impl Controller for Marks {
    fn name(&self) -> &'static str {
        self.name
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(map) = view.get::<ConfigMap>(&key.namespace, &key.name).filter(|map| map.name() == "m") else {
            return Plan::none();
        };
        if map.label(self.name).is_some() || self.child && view.get::<ConfigMap>("ns", "child").is_some() {
            return Plan::none();
        }
        if !self.child {
            return Plan::none().patch(map.as_ref(), json!({"metadata": {"labels": {self.name: "yes"}}}));
        }
        let mut child = ConfigMap::default();
        child.metadata.namespace = Some("ns".into());
        child.metadata.name = Some("child".into());
        Plan::none().create(&child).resting_on(&Premise::unchanged(map.as_ref()))
    }
}

/// Sets its label likewise, reads one namespace alone, and waits for a config map of this name there.
struct Near {
    name: &'static str,
    after: &'static str,
}

fn near() -> Source {
    Source::within::<ConfigMap>("ns")
}

impl Controller for Near {
    fn name(&self) -> &'static str {
        self.name
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_source::<ConfigMap>(near(), |_, _| vec![Key::new("ns", "m")]);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(maps) = view.cache_of::<ConfigMap>(&near()) else { return Plan::none() };
        let (map, after) = (maps.get("ns", &key.name), maps.get("ns", self.after));
        let Some(map) = map.filter(|map| after.is_some() && map.label(self.name).is_none()) else {
            return Plan::none();
        };
        Plan::none().patch(map.as_ref(), json!({"metadata": {"labels": {self.name: "yes"}}}))
    }
}

fn map(revision: u64, labels: &[&str]) -> Value {
    let labels: serde_json::Map<String, Value> = labels.iter().map(|l| ((*l).to_owned(), "yes".into())).collect();
    json!({"metadata": {"namespace": "ns", "name": "m", "uid": "u", "resourceVersion": revision.to_string(),
        "labels": labels}})
}

struct Run {
    core: Manager,
    fx: Effects<Never>,
    watch: Option<WatchId>,
    requests: Vec<(CallId, ApiRequest)>,
    now: Time,
    timers: BTreeSet<(Time, TimerId)>,
}

impl Run {
    fn new<C: Controller + 'static>(controllers: [C; 2]) -> Self {
        let [one, two] = controllers;
        let core = Manager::new("test", Rng::new(1)).with(one).with(two);
        let mut run = Self {
            core,
            fx: Effects::new(),
            watch: None,
            requests: Vec::new(),
            now: Time::from_unix_s(1),
            timers: BTreeSet::new(),
        };
        run.step(Input::Start);
        let list = json!({"metadata": {"resourceVersion": "5"}, "items": [map(5, &[])]});
        run.answer(&list);
        run
    }
    fn step(&mut self, input: Input<Never>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => self.requests.push((id, request)),
                Effect::Watch(id, _) => self.watch = Some(id),
                Effect::Unwatch(_) => {}
                Effect::Timer(id, at) => _ = self.timers.insert((at, id)),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    fn give(&mut self, result: Result<ApiResponse, ApiError>) {
        let (id, _) = self.requests.remove(0);
        self.step(Input::Api { id, result });
    }
    fn refuse(&mut self, code: u16, reason: &str) {
        let refused = StatusError { code, reason: reason.into(), ..StatusError::default() };
        self.give(Err(ApiError::Status(Box::new(refused))));
    }
    fn answer(&mut self, body: &Value) {
        self.give(Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) }));
    }
    fn tell(&mut self, object: &Value) {
        let event = json!({"type": "MODIFIED", "object": object});
        let id = self.watch.expect("a watch");
        self.step(Input::Watch { id, item: WatchItem::Event(Bytes::from(event.to_string())) });
    }
    /// The writes under way: method, and the revision that each rests on.
    fn writes(&self) -> Vec<(Method, String)> {
        let of = |request: &ApiRequest| {
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let own = body["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            own.or_else(|| request.rests_on.first()?.resource_version.clone()).unwrap_or_default()
        };
        let writes = self.requests.iter().filter(|(_, request)| request.method != Method::Get);
        writes.map(|(_, request)| (request.method, of(request))).collect()
    }
}

fn patch(revision: &str) -> Vec<(Method, String)> {
    vec![(Method::Patch, revision.to_owned())]
}

#[test]
fn a_write_waits_for_anothers_and_rests_on_its_outcome() {
    for child in [false, true] {
        let mut run = Run::new([Marks { name: "a", child: false }, Marks { name: "b", child }]);
        assert_eq!(run.writes(), patch("5"), "the second waits");
        run.answer(&map(6, &["a"]));
        assert_eq!(run.writes(), [], "no cache shows it yet");
        run.tell(&map(6, &["a"]));
        let method = if child { Method::Post } else { Method::Patch };
        assert_eq!(run.writes(), [(method, "6".to_owned())]);
        let made = if child { json!({"metadata": {"resourceVersion": "7"}}) } else { map(7, &["a", "b"]) };
        run.answer(&made);
        run.tell(&map(7, &["a", "b"]));
        assert_eq!(run.writes(), []);
        assert!(run.core.is_idle());
    }
}

/// A cache of one namespace has got on, and not so far.
#[test]
fn what_a_cache_of_one_namespace_does_not_show_yet_is_waited_for() {
    let mut run = Run::new([Near { name: "a", after: "m" }, Near { name: "b", after: "o" }]);
    assert_eq!(run.writes(), patch("5"));
    run.answer(&map(7, &["a"]));
    run.tell(&json!({"metadata": {"namespace": "ns", "name": "o", "uid": "o", "resourceVersion": "6"}}));
    assert_eq!(run.writes(), [], "the second rests on what the first has written");
    run.tell(&map(7, &["a"]));
    assert_eq!(run.writes(), patch("7"));
    run.answer(&map(8, &["a", "b"]));
    run.tell(&map(8, &["a", "b"]));
    assert_eq!(run.writes(), []);
    assert!(run.core.is_idle());
}

#[test]
fn a_write_that_comes_to_nothing_holds_nobody_up() {
    let mut run = Run::new([Marks { name: "a", child: false }, Marks { name: "b", child: false }]);
    run.refuse(403, "Forbidden");
    assert_eq!(run.writes(), patch("5"), "the second is sent");
    // One whose outcome is unknown is not waited for either: its own key asks what became of it.
    let mut run = Run::new([Marks { name: "a", child: false }, Marks { name: "b", child: false }]);
    run.give(Err(ApiError::Transport("no reply".into())));
    assert_eq!(run.writes(), patch("5"));
}

/// Each steps back before the other, and fails when its turn comes: what is refused comes later each time all the same.
#[test]
fn two_that_fail_by_turns_wait_longer_and_longer() {
    let mut run = Run::new([Marks { name: "a", child: false }, Marks { name: "b", child: false }]);
    let (end, mut refused) = (run.now + Duration::from_secs(10), 0);
    while run.now < end {
        if run.requests.is_empty() {
            let (at, id) = run.timers.pop_first().expect("both come back");
            run.now = run.now.max(at);
            run.step(Input::Timer(id));
        } else {
            // So long is a request under way: as long as the first pause.
            run.now = run.now + Duration::from_millis(10);
            run.refuse(409, "Conflict");
            refused += 1;
        }
    }
    // 5 ms, doubled until ten seconds are over, is a dozen times; for each of the two.
    assert!((12..30).contains(&refused), "{refused} times in ten seconds");
}
