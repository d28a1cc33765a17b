//! The core, driven by hand: what it is told, and what it then wants done.

mod answers;
mod extenders;
mod fences;
mod flights;
mod hints;
mod input;
mod leaders;
mod told;
mod wakes;

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Core as _, Effect, Effects, Input, Method, Rng, Time, TimerId, WatchId,
    WatchItem,
};
use serde_json::{Value, json};

use super::*;
use crate::Place;

/// A cluster around one core.
struct World {
    core: Scheduler,
    fx: Effects<Ask>,
    now: Time,
    watches: BTreeMap<String, WatchId>,
    timers: BTreeSet<(Time, TimerId)>,
    /// Requests that nobody answered yet.
    sent: Vec<(CallId, ApiRequest)>,
    asked: Vec<Ask>,
    objects: BTreeMap<String, Vec<Value>>,
    revision: u64,
}

fn node(name: &str, cpu: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}})
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "d", "name": name, "uid": format!("uid-{name}")},
        "spec": {"schedulerName": "default-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

/// The same pod on a node.
fn bound_to(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = node.into();
    pod
}

/// A less important pod that fills a node, and one that would have to go for another.
fn low(name: &str, on: &str) -> Value {
    bound_to(pod(name, "900m"), on)
}

fn high() -> Value {
    let mut high = pod("high", "500m");
    high["spec"]["priority"] = 10.into();
    high
}

fn conflict() -> ApiError {
    let status = carrack_engine::StatusError { code: 409, reason: "Conflict".to_owned(), ..Default::default() };
    ApiError::Status(Box::new(status))
}

impl World {
    fn new(config: Config, nodes: Vec<Value>, pods: Vec<Value>) -> Self {
        Self::of(Scheduler::new(config, Rng::new(1)), nodes, pods)
    }
    fn of(core: Scheduler, nodes: Vec<Value>, pods: Vec<Value>) -> Self {
        let objects = BTreeMap::from([("/api/v1/nodes".to_owned(), nodes), ("/api/v1/pods".to_owned(), pods)]);
        let mut world = Self {
            core,
            fx: Effects::new(),
            now: Time::from_unix_s(1000),
            watches: BTreeMap::new(),
            timers: BTreeSet::new(),
            sent: Vec::new(),
            asked: Vec::new(),
            objects,
            revision: 1,
        };
        world.step(Input::Start);
        world
    }

    fn step(&mut self, input: Input<Answer>) {
        self.core.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => {
                    let collection = request.path.split('?').next().unwrap_or_default().to_owned();
                    let lists = request.method == Method::Get && !collection.contains("/namespaces/");
                    if lists {
                        let items = self.objects.get(&collection).cloned().unwrap_or_default();
                        let list = json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items});
                        self.reply(id, Ok(list));
                    } else {
                        self.sent.push((id, request));
                    }
                }
                Effect::Watch(id, request) => {
                    let collection = request.path.split('?').next().unwrap_or_default().to_owned();
                    self.watches.insert(collection, id);
                }
                Effect::Unwatch(_) => {}
                Effect::Timer(id, at) => drop(self.timers.insert((at, id))),
                Effect::Own(ask) => self.asked.push(ask),
                Effect::Exit(why) => panic!("{why}"),
            }
        }
    }

    /// What it has counted.
    fn metrics(&self) -> String {
        self.core.measures(self.now)
    }

    fn reply(&mut self, id: CallId, result: Result<Value, ApiError>) {
        let result = result.map(|body| ApiResponse { status: 200, body: body.to_string().into() });
        self.step(Input::Api { id, result });
    }
    /// The watch tells of an object.
    fn tell(&mut self, kind: &str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let collection = if object["kind"] == "Node" { "/api/v1/nodes" } else { "/api/v1/pods" };
        let id = *self.watches.get(collection).expect("it watches");
        let event = json!({"type": kind, "object": object});
        self.step(Input::Watch { id, item: WatchItem::Event(event.to_string().into()) });
    }
    /// Time passes, and timers fire.
    fn pass(&mut self, time: Duration) {
        let (until, mut fired) = (self.now + time, 0);
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= until) {
            fired += 1;
            assert!(fired < 10_000, "it wakes itself without end");
            self.timers.remove(&(at, id));
            self.now = self.now.max(at);
            self.step(Input::Timer(id));
        }
        self.now = until;
    }
    fn take(&mut self, wanted: impl Fn(&ApiRequest) -> bool) -> Vec<(CallId, ApiRequest)> {
        let (taken, left) = std::mem::take(&mut self.sent).into_iter().partition(|(_, request)| wanted(request));
        self.sent = left;
        taken
    }
    /// What was sent to mark pods that are in the way.
    fn marks(&mut self) -> Vec<(CallId, ApiRequest)> {
        self.take(|request| String::from_utf8_lossy(&request.body).contains("DisruptionTarget"))
    }
    /// Bindings that were sent since this was last asked: the call, the pod and the node.
    fn bindings(&mut self) -> Vec<(CallId, String, String)> {
        let sent = self.take(|request| request.path.ends_with("/binding"));
        let read = |(id, request): (CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (id, text("/metadata/name"), text("/target/name"))
        };
        sent.into_iter().map(read).collect()
    }
    /// The pods and nodes of [`Self::bindings`].
    fn bound(&mut self) -> Vec<(String, String)> {
        self.bindings().into_iter().map(|(_, pod, node)| (pod, node)).collect()
    }
    /// What pods were told: reasons and messages of their conditions.
    fn told(&mut self) -> Vec<(String, String)> {
        let sent = self.take(|request| request.method == Method::Patch && request.path.ends_with("/status"));
        let read = |(_, request): (CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            let condition = body.pointer("/status/conditions/0")?.clone();
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            Some((text("reason"), text("message")))
        };
        sent.into_iter().filter_map(read).collect()
    }
    /// Messages of events with a reason.
    fn events(&mut self, reason: &str) -> Vec<String> {
        let sent = self.take(|request| request.path.contains("/events"));
        let read = |(_, request): (CallId, ApiRequest)| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            (body["reason"] == reason).then(|| body["message"].as_str().unwrap_or_default().to_owned())
        };
        sent.into_iter().filter_map(read).collect()
    }
    fn ask(&mut self) -> Ask {
        assert_eq!(self.asked.len(), 1, "one question: {:?}", self.asked);
        self.asked.remove(0)
    }
    fn answer(&mut self, ask: &Ask, body: &Value) {
        self.step(Input::Own(Answer { id: ask.id, result: Ok(body.to_string().into()) }));
    }
    fn no_answer(&mut self, ask: &Ask) {
        self.step(Input::Own(Answer { id: ask.id, result: Err("no answer within 5000 ms".to_owned()) }));
    }
    fn place(&self, name: &str) -> Option<Place> {
        self.core.queue().get(&format!("uid-{name}")).map(|row| row.place)
    }
    /// What must hold whatever happened: nothing is counted but what flies, and nominations follow the queue.
    fn check(&self) {
        for uid in self.core.cluster().assumed() {
            assert!(self.core.flights.contains_key(uid), "{uid} is counted, and does not fly");
        }
        let wait = self.core.flights.values().filter(|flight| flight.waits_for_claims()).count();
        assert_eq!(self.core.waiting.count(), wait, "who waits for claims");
        for (uid, node) in self.core.nominations() {
            assert!(self.core.queue().get(uid).is_some() && !node.is_empty(), "{uid} on {node:?}");
        }
    }
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_pod_is_bound_and_confirmed() {
    let mut world = World::new(Config::default(), vec![node("a", "1")], vec![pod("p", "500m")]);
    let [(call, name, to)] = &world.bindings()[..] else { panic!("one binding") };
    assert_eq!((name.as_str(), to.as_str()), ("p", "a"));
    let call = *call;
    world.reply(call, Ok(json!({})));
    assert_eq!(world.events("Scheduled"), ["Successfully assigned d/p to a"]);
    let bound = bound_to(pod("p", "500m"), "a");
    world.tell("MODIFIED", bound.clone());
    assert!(world.place("p").is_none() && !world.core.cluster().is_assumed("uid-p"));
    world.tell("ADDED", pod("q", "600m"));
    assert_eq!(world.bound(), []);
    assert_eq!(
        world.told(),
        [(
            "Unschedulable".to_owned(),
            "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: \
             1 No preemption victims found for incoming pod."
                .to_owned()
        )]
    );
    world.tell("DELETED", bound);
    assert_eq!(
        world.bound(),
        [("q".to_owned(), "a".to_owned())],
        "nobody else waits, so it does not wait its backoff out"
    );
    world.check();
}

/// The reply to a binding and the watch come in any order, and the reply may be lost: it is told once.
#[test]
fn a_binding_is_counted_once_whoever_tells_of_it_first() {
    let counts = |world: &World| {
        let text = world.metrics();
        let count = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start));
            line.and_then(|line| line.rsplit(' ').next()).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
        };
        let binding = "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Bind\"";
        [count("scheduler_pod_scheduling_attempts_count"), count(binding)]
    };
    let lost = || ApiError::Transport("the connection broke".to_owned());
    // How the reply comes, whether the watch is first, and how many bindings are timed: one whose reply is lost is not.
    for (reply, watch_first, binds) in
        [(Ok(json!({})), false, 1), (Ok(json!({})), true, 1), (Err(lost()), false, 0), (Err(lost()), true, 1)]
    {
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![pod("p", "500m")]);
        let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
        let bound = bound_to(pod("p", "500m"), "a");
        let case = format!("{reply:?}, the watch first: {watch_first}");
        if watch_first {
            world.tell("MODIFIED", bound.clone());
        }
        let lost = reply.is_err();
        world.reply(call, reply);
        if lost && !watch_first {
            // It looks, in vain, and once more.
            let mut checks = world.take(|request| request.method == Method::Get);
            let (check, _) = checks.pop().expect("it looks what became of it");
            world.reply(check, Err(ApiError::Transport("still broken".to_owned())));
            world.pass(s(1));
            let (check, _) = world.take(|request| request.method == Method::Get).pop().expect("it looks again");
            world.reply(check, Ok(bound.clone()));
        }
        if !watch_first {
            world.tell("MODIFIED", bound.clone());
        }
        assert_eq!(world.events("Scheduled").len(), 1, "{case}");
        assert_eq!(counts(&world), [1, binds], "{case}");
        world.check();
    }
}

#[test]
fn counts_by_reason_are_named_as_upstream_names_them() {
    let mut tainted = node("tainted", "8");
    tainted["spec"] = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
    let mut cordoned = node("cordoned", "8");
    cordoned["spec"] = json!({"unschedulable": true});
    let mut full = node("full", "8");
    full["status"]["allocatable"]["pods"] = "0".into();
    let nodes = vec![node("a", "1"), node("b", "1"), tainted, cordoned, full];
    let mut world = World::new(Config::default(), nodes, vec![pod("p", "2")]);
    let expected = "0/5 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), \
                    1 node(s) were unschedulable, 2 Insufficient cpu. preemption: 0/5 nodes are available: \
                    1 No preemption victims found for incoming pod, 4 Preemption is not helpful for scheduling.";
    assert_eq!(world.told(), [("Unschedulable".to_owned(), expected.to_owned())]);
    assert_eq!(world.events("FailedScheduling"), [expected]);
    // The same again is no news for a pod that has it in its status.
    let mut told = pod("p", "2");
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": expected});
    told["status"]["conditions"] = json!([condition]);
    world.tell("MODIFIED", told);
    world.pass(s(301));
    assert_eq!(world.core.queue().get("uid-p").map(|row| row.attempts), Some(2));
    assert_eq!(world.told(), []);
}

/// A pod waits since it has no node, not since it was last told why.
#[test]
fn another_reason_is_no_transition() {
    let waits = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"});
    for (condition, since_now) in [(None, true), (Some(waits), false)] {
        let mut asks = pod("p", "2");
        asks["status"]["conditions"] = condition.iter().cloned().collect::<Vec<Value>>().into();
        let mut world = World::new(Config::default(), vec![node("a", "1")], vec![asks]);
        let sent = world.take(|request| request.path.ends_with("/status"));
        let [(_, request)] = &sent[..] else { panic!("one condition: {sent:?}") };
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        let told = &body["status"]["conditions"][0];
        assert!(told["message"].as_str().is_some_and(|text| text.contains("Insufficient cpu")), "{body}");
        assert_eq!(told.get("lastTransitionTime").is_some(), since_now, "{body}");
    }
}

#[test]
fn events_are_told_under_the_name_of_the_pods_scheduler() {
    let profiles = ["default-scheduler", "other"].map(Profile::named).to_vec();
    let mut other = pod("q", "9");
    other["spec"]["schedulerName"] = "other".into();
    let config = Config { profiles, ..Config::default() };
    let mut world = World::new(config, vec![node("a", "1")], vec![pod("p", "500m"), other]);
    let [(call, ..)] = world.bindings()[..] else { panic!("one binding") };
    world.reply(call, Ok(json!({})));
    let sent = world.take(|request| request.path.contains("/events"));
    let who = |(_, request): (CallId, ApiRequest)| {
        let event: Value = serde_json::from_slice(&request.body).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["reason"]), text(&event["reportingComponent"]), text(&event["source"]["component"]))
    };
    let told: BTreeSet<_> = sent.into_iter().map(who).collect();
    let expected = [("FailedScheduling", "other"), ("Scheduled", "default-scheduler")];
    assert_eq!(told, expected.map(|(what, who)| (what.to_owned(), who.to_owned(), who.to_owned())).into());
}
