//! The read-your-writes barrier, against an API that delays, loses replies, breaks watches and
//! expires them: a controller that counts its children never makes one too many, though the names
//! that it gives them are new each time, so that nothing but the barrier can stop it.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking, and its inputs are its own")]

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Controller, Core, Effect, Effects, Input, Key, Manager, Method, Plan,
    Rng, Setup, StatusError, Time, TimerId, View, WatchId, WatchItem, controller_ref,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;
use serde_json::{Value, json};

const WANTED: usize = 3;
const PARENTS: usize = 4;

/// Wants three pods for each config map, under names that are never the same.
struct Three {
    made: usize,
}

impl Controller for Three {
    fn name(&self) -> &'static str {
        "three"
    }
    fn setup(&self, s: &mut Setup<'_>) {
        s.watch_own::<ConfigMap>();
        s.watch_owned::<Pod, ConfigMap>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(parent) = view.get::<ConfigMap>(&key.namespace, &key.name) else { return Plan::none() };
        let have = view.cache::<Pod>().by_owner(parent.uid()).count();
        let mut plan = Plan::none();
        for _ in have..WANTED {
            self.made += 1;
            plan = plan.create(&Pod {
                metadata: ObjectMeta {
                    namespace: Some(key.namespace.clone()),
                    name: Some(format!("{}-{}", key.name, self.made)),
                    owner_references: Some(vec![controller_ref(parent.as_ref())]),
                    ..ObjectMeta::default()
                },
                ..Pod::default()
            });
        }
        if have > WANTED {
            let extra = view.cache::<Pod>().by_owner(parent.uid()).next().cloned();
            plan = extra.map_or(plan, |p| Plan::none().delete(p.as_ref()));
        }
        plan
    }
}

/// An API server of two kinds, and a network between it and the core.
#[derive(Default)]
struct World {
    objects: BTreeMap<String, Value>,
    log: Vec<(String, &'static str, Value)>,
    revision: u64,
    requests: Vec<(CallId, ApiRequest)>,
    watches: BTreeMap<WatchId, (String, usize)>,
    timers: Vec<(Time, TimerId)>,
    oldest: usize,
}

impl World {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", self.revision).into();
        }
        self.objects.insert(path.to_owned(), object.clone());
        self.log.push((path.to_owned(), "ADDED", object.clone()));
        object
    }
    fn serve(&mut self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let ok = |v: &Value| Ok(ApiResponse { status: 200, body: Bytes::from(v.to_string()) });
        let refuse = |code, reason: &str| {
            Err(ApiError::Status(Box::new(StatusError { code, reason: reason.into(), ..StatusError::default() })))
        };
        let path = request.path.split('?').next().unwrap_or_default().to_owned();
        match request.method {
            Method::Get if request.path.contains("limit=") => {
                let plural = path.rsplit('/').next().unwrap_or_default();
                let items: Vec<_> =
                    self.objects.iter().filter(|(p, _)| p.contains(&format!("/{plural}/"))).map(|(_, o)| o).collect();
                ok(&json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items}))
            }
            Method::Get => self.objects.get(&path).map_or_else(|| refuse(404, "NotFound"), ok),
            Method::Post => {
                let object: Value = serde_json::from_slice(&request.body).expect("JSON");
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().expect("a name"));
                if self.objects.contains_key(&path) {
                    return refuse(409, "AlreadyExists");
                }
                ok(&self.put(&path, object))
            }
            _ => refuse(405, "MethodNotAllowed"),
        }
    }
    fn pods(&self) -> usize {
        self.objects.keys().filter(|p| p.contains("/pods/")).count()
    }
}

struct Run {
    world: World,
    core: Manager,
    fx: Effects<carrack_engine::Never>,
    now: Time,
    rng: Rng,
    /// One in so many network acts fails; 0 is never.
    trouble: u64,
}

impl Run {
    fn step(&mut self, input: Input<carrack_engine::Never>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => self.world.requests.push((id, request)),
                Effect::Watch(id, request) => {
                    let after: u64 = request
                        .path
                        .split("resourceVersion=")
                        .nth(1)
                        .and_then(|r| r.split('&').next()?.parse().ok())
                        .expect("a revision");
                    let path = request.path.split('?').next().unwrap_or_default();
                    let plural = path.rsplit('/').next().unwrap_or_default().to_owned();
                    let seen = self.world.log.partition_point(|(_, _, o)| {
                        o["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok()) <= Some(after)
                    });
                    self.world.watches.insert(id, (plural, seen));
                }
                Effect::Unwatch(id) => drop(self.world.watches.remove(&id)),
                Effect::Timer(id, at) => self.world.timers.push((at, id)),
                Effect::Exit(reason) => panic!("{reason}"),
                Effect::Own(never) => match never {},
            }
        }
    }

    /// One act of the network or the clock, drawn by chance. False when nothing is left to happen.
    fn act(&mut self) -> bool {
        let fails = self.rng.one_in(self.trouble);
        let pending: Vec<WatchId> =
            self.world.watches.iter().filter(|(_, (_, at))| *at < self.world.log.len()).map(|(id, _)| *id).collect();
        match self.rng.below(3) {
            0 if !self.world.requests.is_empty() => {
                let n = self.rng.below(self.world.requests.len() as u64) as usize;
                let (id, request) = self.world.requests.remove(n);
                let lost = || Err(ApiError::Transport("lost".into()));
                // Half of the failures lose the request, half the reply after the commit.
                let result = match (fails, fails && self.rng.one_in(2)) {
                    (true, true) => lost(),
                    (true, false) => {
                        drop(self.world.serve(&request));
                        lost()
                    }
                    _ => self.world.serve(&request),
                };
                self.step(Input::Api { id, result });
            }
            1 if !pending.is_empty() => {
                let id = pending[self.rng.below(pending.len() as u64) as usize];
                let (plural, at) = self.world.watches[&id].clone();
                let item = if at < self.world.oldest || (fails && self.rng.one_in(2)) {
                    self.world.watches.remove(&id);
                    let gone = StatusError { code: 410, reason: "Expired".into(), ..StatusError::default() };
                    WatchItem::Closed(Some(ApiError::Status(Box::new(gone))))
                } else if fails {
                    self.world.watches.remove(&id);
                    WatchItem::Closed(None)
                } else {
                    let (path, kind, object) = self.world.log[at].clone();
                    if let Some(w) = self.world.watches.get_mut(&id) {
                        w.1 += 1;
                    }
                    // Another kind's event says how far the store is, as a bookmark would.
                    let kind = if path.contains(&format!("/{plural}/")) { kind } else { "BOOKMARK" };
                    WatchItem::Event(Bytes::from(json!({"type": kind, "object": object}).to_string()))
                };
                self.step(Input::Watch { id, item });
            }
            2 if !self.world.timers.is_empty() => {
                self.world.timers.sort_unstable();
                let (at, id) = self.world.timers.remove(0);
                self.now = self.now.max(at);
                self.step(Input::Timer(id));
            }
            _ => return !(self.world.requests.is_empty() && pending.is_empty() && self.world.timers.is_empty()),
        }
        true
    }
}

/// Plays one run; an error tells which invariant broke.
fn run(seed: u64, trouble: u64, planted: bool) -> Result<(), String> {
    let too_many = || Err(format!("seed {seed}: one child too many"));
    let rng = Rng::new(seed);
    let core = Manager::new("test", rng.fork("manager")).with(Three { made: 0 });
    let mut run = Run {
        world: World::default(),
        core: if planted { core.with_planted_stale_reads() } else { core },
        fx: Effects::new(),
        now: Time::from_unix_s(1_000_000),
        rng,
        trouble,
    };
    for i in 0..PARENTS {
        let object = json!({"metadata": {"namespace": "ns", "name": format!("p{i}")}});
        run.world.put(&format!("/api/v1/namespaces/ns/configmaps/p{i}"), object);
    }
    run.step(Input::Start);
    // Safety phase: anything may fail.
    for _ in 0..3000 {
        run.act();
        if run.world.pods() > WANTED * PARENTS {
            return too_many();
        }
    }
    // Liveness phase: nothing fails any more, and all children come to be.
    run.trouble = 0;
    for _ in 0..200_000 {
        if !run.act() || (run.world.pods() == WANTED * PARENTS && run.core.is_idle()) {
            break;
        }
        if run.world.pods() > WANTED * PARENTS {
            return too_many();
        }
    }
    if run.world.pods() == WANTED * PARENTS { Ok(()) } else { Err(format!("seed {seed}: children are missing")) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_child_is_made_twice(seed: u64, trouble in prop_oneof![Just(0_u64), 3_u64..40]) {
        run(seed, trouble, false).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn without_the_barrier_a_child_is_made_twice() {
    assert!((0..20).any(|seed| run(seed, 10, true).is_err()), "the test cannot see the fault that it is for");
}
