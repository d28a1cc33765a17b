//! Writes of unknown outcome: however many there are, one question for a revision is asked at a time, and none is answered by one
//! that was asked before it was in doubt.
#![expect(clippy::expect_used, reason = "a test fails by panicking, and its inputs are its own")]

use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method,
    Never, Plan, Refusal, Rng, Setup, Source, StatusError, Time, TimerId, View, WatchId, WatchItem,
};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

const MAPS: usize = 20;

/// Writes to each config map.
struct Writer;

impl Controller for Writer {
    fn name(&self) -> &'static str {
        "writer"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(map) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        Plan::none().patch(map.as_ref(), json!({"metadata": {"annotations": {"seen": "yes"}}}))
    }
}

/// The same, of the config maps of one namespace alone.
struct Near;

fn near() -> Source {
    Source::within::<ConfigMap>("ns")
}

impl Controller for Near {
    fn name(&self) -> &'static str {
        "near"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_source::<ConfigMap>(near(), |map, _| vec![Key::of(map)]);
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let map = view.cache_of::<ConfigMap>(&near()).and_then(|cache| cache.get(&key.namespace, &key.name));
        let seen = json!({"metadata": {"annotations": {"seen": "yes"}}});
        map.map_or_else(Plan::none, |map| Plan::none().patch(map.as_ref(), seen))
    }
}

/// Has something done to each config map, and writes to those of which it is told that it was not.
struct Caller;

impl Controller for Caller {
    fn name(&self) -> &'static str {
        "caller"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, _: &View<'_>, _: Time) -> Plan {
        Plan::none().call(&Source::of::<ConfigMap>().resource, key.clone(), "turn", json!({}))
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, _: &Refusal<'_>, now: Time) -> Plan {
        Writer.reconcile(key, view, now)
    }
}

struct World {
    core: Manager,
    fx: Effects<Never>,
    now: Time,
    timers: Vec<(Time, TimerId)>,
    watch: Option<WatchId>,
    /// Writes and calls that are under way.
    patches: Vec<CallId>,
    questions: Vec<CallId>,
}

fn ok(body: &Value) -> Result<ApiResponse, ApiError> {
    Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) })
}

fn list(revision: u64, count: usize) -> Value {
    let map = |n: usize| json!({"metadata": {"namespace": "ns", "name": format!("m{n}"), "uid": n.to_string(), "resourceVersion": "1"}});
    json!({"metadata": {"resourceVersion": revision.to_string()}, "items": (0..count).map(map).collect::<Vec<_>>()})
}

impl World {
    fn of(controller: impl Controller + 'static) -> Self {
        let core = Manager::new("test", Rng::new(1)).with(controller);
        let (timers, patches, questions) = (Vec::new(), Vec::new(), Vec::new());
        let now = Time::from_unix_s(1);
        let mut world = Self { core, fx: Effects::new(), now, timers, watch: None, patches, questions };
        world.step(Input::Start);
        world
    }
    fn step(&mut self, input: Input<Never>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, ApiRequest { method: Method::Patch | Method::Put, .. }) => self.patches.push(id),
                Effect::Api(id, request) if request.path.contains("limit=1&") || request.path.ends_with("limit=1") => {
                    self.questions.push(id);
                }
                Effect::Api(id, _) => {
                    self.core.step(self.now, Input::Api { id, result: ok(&list(10, MAPS)) }, &mut self.fx)
                }
                Effect::Timer(id, due) => self.timers.push((due, id)),
                Effect::Watch(id, _) => self.watch = Some(id),
                _ => {}
            }
        }
    }
    fn answer(&mut self, id: CallId, result: Result<ApiResponse, ApiError>) {
        self.step(Input::Api { id, result });
    }
    fn lose(&mut self, count: usize) {
        for id in self.patches.drain(..count).collect::<Vec<_>>() {
            self.answer(id, Err(ApiError::Transport("lost".into())));
        }
    }
    /// The cache has got on to a revision.
    fn shows(&mut self, revision: u64) {
        let bookmark = json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": revision.to_string()}}});
        let id = self.watch.expect("a watch");
        self.step(Input::Watch { id, item: WatchItem::Event(Bytes::from(bookmark.to_string())) });
    }
    /// The one question that is open.
    fn question(&mut self) -> CallId {
        assert_eq!(self.questions.len(), 1, "one at a time");
        self.questions.pop().expect("one")
    }
    /// Lets time pass, with all that is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(place) =
            (0..self.timers.len()).filter(|n| self.timers[*n].0 <= end).min_by_key(|n| self.timers[*n].0)
        {
            let (due, id) = self.timers.swap_remove(place);
            self.now = self.now.max(due);
            self.step(Input::Timer(id));
        }
        self.now = end;
    }
}

#[test]
fn many_doubts_ask_for_one_revision_at_a_time() {
    let mut world = World::of(Writer);
    assert_eq!(world.patches.len(), MAPS);
    world.lose(1);
    let first = world.question();
    world.lose(MAPS - 1);
    assert!(world.questions.is_empty(), "those that came later wait for the next");

    // The first one is asked for, and its cache shows that already. The others ask together.
    world.answer(first, ok(&list(10, 1)));
    let second = world.question();
    world.pass(Duration::from_millis(500));
    assert_eq!(world.patches.len(), 1, "who was asked for goes on, and nobody else");

    world.answer(second, Err(ApiError::Transport("lost".into())));
    assert!(world.questions.is_empty(), "it is asked again in a while");
    world.pass(Duration::from_secs(2));
    let again = world.question();
    // What is lost meanwhile may be newer than the answer.
    world.lose(1);
    world.answer(again, ok(&list(30, 1)));
    let last = world.question();
    world.pass(Duration::from_millis(500));
    assert!(world.patches.is_empty(), "nobody's cache shows that yet");

    world.shows(30);
    world.pass(Duration::from_millis(900));
    assert_eq!(world.patches.len(), MAPS - 1, "all but the one that was lost last");
    world.answer(last, ok(&list(30, 1)));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.patches.len(), MAPS);
    assert!(world.questions.is_empty());
}

/// A call may be in doubt, and so may what is written since it failed: each waits for a revision that was asked for after it.
#[test]
fn who_is_in_doubt_twice_waits_for_both() {
    let mut world = World::of(Caller);
    assert_eq!(world.patches.len(), MAPS);
    let call = world.patches.remove(0);
    world.answer(call, Err(ApiError::Status(Box::new(StatusError { code: 500, ..StatusError::default() }))));
    let first = world.question();
    let write = world.patches.pop().expect("what is written of it");
    assert_eq!(world.patches.len(), MAPS - 1);
    world.answer(write, Err(ApiError::Transport("lost".into())));

    world.answer(first, ok(&list(10, 1)));
    let second = world.question();
    world.answer(second, ok(&list(30, 1)));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.patches.len(), MAPS - 1, "its cache does not show the write yet");
    world.shows(30);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.patches.len(), MAPS);
    assert!(world.questions.is_empty());
}

/// Who reads one namespace alone has to be shown there what became of it.
#[test]
fn who_is_in_doubt_waits_for_the_cache_of_one_namespace() {
    let mut world = World::of(Near);
    assert_eq!(world.patches.len(), MAPS);
    world.lose(1);
    let question = world.question();
    world.answer(question, ok(&list(30, 1)));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.patches.len(), MAPS - 1, "its cache does not show that yet");
    world.shows(30);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.patches.len(), MAPS);
}
