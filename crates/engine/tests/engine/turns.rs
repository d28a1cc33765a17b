//! However much there is to do, a step stays short, and few requests are under way.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use carrack_engine::{
    ApiResponse, CallId, Controller, Core as _, Effect, Effects, Input, Key, Manager, Method, Never, Plan, Rng, Setup,
    Time, TimerId, View,
};
use carrack_types::resource::Kind;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};

/// Looks at each object of a kind, and labels it, if it writes.
struct Labels<K> {
    writes: bool,
    looked: Arc<AtomicUsize>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> Labels<K> {
    /// One, and how often it has looked.
    fn one(writes: bool) -> (Box<dyn Controller>, Arc<AtomicUsize>) {
        let looked = Arc::new(AtomicUsize::new(0));
        (Box::new(Self { writes, looked: looked.clone(), kind: PhantomData }), looked)
    }
}

impl<K: Kind> Controller for Labels<K> {
    fn name(&self) -> &'static str {
        "labels"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<K>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        self.looked.fetch_add(1, Ordering::Relaxed);
        let found = view.get::<K>(&key.namespace, &key.name).filter(|_| self.writes);
        let patch = json!({"metadata": {"labels": {"looked": "yes"}}});
        found.map_or_else(Plan::none, |found| Plan::none().patch(found.as_ref(), patch))
    }
}

struct Run {
    core: Manager,
    fx: Effects<Never>,
    /// How many objects of each kind there are.
    objects: usize,
    /// Writes that are not answered.
    writes: Vec<CallId>,
    timers: Vec<TimerId>,
}

impl Run {
    fn new(objects: usize, controllers: impl IntoIterator<Item = Box<dyn Controller>>) -> Self {
        let core = Manager::new("test", Rng::new(1)).with_all(controllers);
        let mut run = Self { core, fx: Effects::new(), objects, writes: Vec::new(), timers: Vec::new() };
        run.step(Input::Start);
        run
    }

    /// A step, and the answers to all reads that follow from it.
    fn step(&mut self, input: Input<Never>) {
        let now = Time::from_unix_s(1);
        self.core.step(now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) if request.method == Method::Get => {
                    let object = |n: usize| {
                        json!({"metadata": {"namespace": "ns", "name": format!("o{n}"), "uid": format!("u{n}"),
                            "resourceVersion": "5"}})
                    };
                    let items: Vec<Value> = (0..self.objects).map(object).collect();
                    let list = json!({"metadata": {"resourceVersion": "5"}, "items": items}).to_string();
                    let result = Ok(ApiResponse { status: 200, body: Bytes::from(list) });
                    self.core.step(now, Input::Api { id, result }, &mut self.fx);
                }
                Effect::Api(id, _) => self.writes.push(id),
                Effect::Timer(id, _) => self.timers.push(id),
                _ => {}
            }
        }
    }

    /// The oldest write is answered.
    fn answer(&mut self) {
        let id = self.writes.remove(0);
        let object = json!({"metadata": {"resourceVersion": "6"}}).to_string();
        let result = Ok(ApiResponse { status: 200, body: Bytes::from(object) });
        self.step(Input::Api { id, result });
    }
}

#[test]
fn so_many_requests_of_a_controller_are_under_way() {
    let ((a, seen_by_a), (b, seen_by_b)) = (Labels::<ConfigMap>::one(true), Labels::<Secret>::one(true));
    let seen = || [&seen_by_a, &seen_by_b].map(|looked| looked.load(Ordering::Relaxed));
    let mut run = Run::new(500, [a, b]);
    assert_eq!((run.writes.len(), seen()), (800, [400, 400]), "none is in the way of another one");
    for _ in 0..50 {
        run.answer();
        assert_eq!(run.writes.len(), 800);
    }
    assert_eq!(seen(), [450, 400], "each goes on when its own are answered");
    while !run.writes.is_empty() {
        run.answer();
    }
    assert_eq!(seen(), [500, 500], "and all come to their turn");
}

#[test]
fn so_many_keys_are_looked_at_in_a_step() {
    let (reads, looked) = Labels::<ConfigMap>::one(false);
    let mut run = Run::new(5000, [reads]);
    let mut seen = vec![looked.load(Ordering::Relaxed)];
    while let Some(id) = run.timers.pop() {
        run.step(Input::Timer(id));
        seen.push(looked.load(Ordering::Relaxed));
    }
    assert_eq!(seen, [2000, 4000, 5000]);
}
