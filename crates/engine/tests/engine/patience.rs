//! Writes that may wait: many changes become one write, none waits for longer than it may, and nothing else waits for them.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and its inputs are its own")]

use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{
    ApiRequest, ApiResponse, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method, Never, Plan, Premise,
    Rng, Setup, Time, TimerId, View, WatchId, WatchItem,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

const WAIT: Duration = Duration::from_millis(100);

/// Tells in an annotation how often the user asked for something, when there is time, and makes at once the pod that is asked
/// for.
struct Teller;

impl Controller for Teller {
    fn name(&self) -> &'static str {
        "teller"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(map) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        let datum = |name: &str| map.data.as_ref().and_then(|data| data.get(name)).cloned();
        let asked = datum("asked");
        let told = map.metadata.annotations.as_ref().and_then(|annotations| annotations.get("told")).cloned();
        let plan = if asked == told {
            Plan::none()
        } else {
            Plan::none().patch(map.as_ref(), json!({"metadata": {"annotations": {"told": asked}}})).patient(WAIT)
        };
        if datum("pod").is_none() {
            return plan;
        }
        // Asked for once: the test takes the wish back when it is granted.
        let mut pod = Pod::default();
        pod.metadata.name = Some("x".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        plan.create(&pod).resting_on(&Premise::unchanged(map.as_ref()))
    }
}

/// The core, one config map, and what was written when.
struct World {
    core: Manager,
    fx: Effects<Never>,
    now_ms: u64,
    map: Value,
    revision: u64,
    timers: Vec<(Time, TimerId)>,
    watch: Option<WatchId>,
    written: Vec<(u64, String)>,
}

fn at(ms: u64) -> Time {
    Time::from_unix_s(1) + Duration::from_millis(ms)
}

impl World {
    fn new() -> Self {
        let map = json!({"metadata": {"namespace": "ns", "name": "x", "uid": "u", "resourceVersion": "1"}, "data": {}});
        let core = Manager::new("test", Rng::new(1)).with(Teller);
        let (fx, timers, written) = (Effects::new(), Vec::new(), Vec::new());
        let mut world = Self { core, fx, now_ms: 0, map, revision: 1, timers, watch: None, written };
        world.step(Input::Start);
        world
    }
    fn step(&mut self, input: Input<Never>) {
        self.core.step(at(self.now_ms), input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => {
                    let (body, news) = self.serve(&request);
                    let result = Ok(ApiResponse { status: 200, body: Bytes::from(body.to_string()) });
                    self.core.step(at(self.now_ms), Input::Api { id, result }, &mut self.fx);
                    if let Some(news) = news {
                        self.core.step(at(self.now_ms), news, &mut self.fx);
                    }
                }
                Effect::Timer(id, due) => self.timers.push((due, id)),
                Effect::Watch(id, _) => self.watch = Some(id),
                _ => {}
            }
        }
    }
    /// The reply to a request, and the event that follows it.
    fn serve(&mut self, request: &ApiRequest) -> (Value, Option<Input<Never>>) {
        match request.method {
            Method::Get => {
                let meta = json!({"resourceVersion": self.revision.to_string()});
                (json!({"metadata": meta, "items": [self.map]}), None)
            }
            Method::Post => {
                assert_eq!(request.rests_on.len(), 1, "the premise of what is done stays with it");
                self.written.push((self.now_ms, "pod".to_owned()));
                self.map["data"].as_object_mut().expect("a map").remove("pod");
                let pod = json!({"metadata": {"namespace": "ns", "name": "x", "uid": "p", "resourceVersion": "0"}});
                (pod, Some(self.changed()))
            }
            Method::Patch => {
                let patch: Value = serde_json::from_slice(&request.body).expect("a patch");
                let told = patch["metadata"]["annotations"]["told"].clone();
                self.map["metadata"]["annotations"] = json!({"told": told});
                self.written.push((self.now_ms, told.as_str().unwrap_or_default().to_owned()));
                let news = self.changed();
                (self.map.clone(), Some(news))
            }
            other => panic!("{other:?} {}", request.path),
        }
    }
    /// The config map has changed, and this is how the core hears of it.
    fn changed(&mut self) -> Input<Never> {
        self.revision += 1;
        self.map["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let event = json!({"type": "MODIFIED", "object": self.map});
        let id = self.watch.expect("it watches");
        Input::Watch { id, item: WatchItem::Event(Bytes::from(event.to_string())) }
    }
    /// Lets time pass, with all timers at their times.
    fn pass_until(&mut self, ms: u64) {
        while let Some(next) = (0..self.timers.len()).min_by_key(|n| self.timers[*n].0)
            && self.timers[next].0 <= at(ms)
        {
            let (due, id) = self.timers.swap_remove(next);
            self.now_ms = self.now_ms.max(u64::try_from(due.since(at(0)).as_millis()).expect("soon"));
            self.step(Input::Timer(id));
        }
        self.now_ms = ms;
    }
    fn set(&mut self, ms: u64, name: &str, value: &str) {
        self.pass_until(ms);
        self.map["data"][name] = value.into();
        let input = self.changed();
        self.step(input);
    }
}

#[test]
fn many_changes_become_one_write_in_time() {
    /// When what is changed, and what is written when.
    type Story = (&'static [(u64, &'static str, &'static str)], &'static [(u64, &'static str)]);
    let stories: [Story; 5] = [
        (&[(10, "asked", "1")], &[(110, "1")]),
        // The first to wait says for how long.
        (&[(10, "asked", "1"), (50, "asked", "2"), (109, "asked", "3")], &[(110, "3")]),
        (&[(10, "asked", "1"), (120, "asked", "2")], &[(110, "1"), (220, "2")]),
        // What cannot wait does not, and does not make the other wait for longer.
        (&[(10, "asked", "1"), (40, "pod", "x"), (60, "asked", "2")], &[(40, "pod"), (110, "2")]),
        (&[(10, "pod", "x"), (30, "asked", "1")], &[(10, "pod"), (130, "1")]),
    ];
    for (changes, expected) in stories {
        let mut world = World::new();
        for (ms, name, value) in changes {
            world.set(*ms, name, value);
        }
        assert!(!world.core.is_idle(), "{changes:?}");
        world.pass_until(1000);
        let written: Vec<(u64, &str)> = world.written.iter().map(|(ms, what)| (*ms, what.as_str())).collect();
        assert_eq!(written, expected, "{changes:?}");
        assert!(world.core.is_idle(), "{changes:?}");
    }
}

#[test]
fn what_is_taken_back_in_time_is_never_written() {
    let mut world = World::new();
    world.set(10, "asked", "1");
    world.pass_until(50);
    world.map["data"] = json!({});
    world.set(60, "other", "x");
    world.pass_until(1000);
    assert_eq!(world.written, []);
    world.set(1500, "asked", "2");
    world.pass_until(3000);
    assert_eq!(world.written, [(1600, "2".to_owned())], "it waits anew");
}
