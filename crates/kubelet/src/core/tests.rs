//! The core against a simulated node and a small stand-in for the API, under seeded delays.
//!
//! Invariants are checked at every operation; see incidents D1 to D6 and V1, V2 in the design.

mod checks;
mod clocks;
mod cpus;
mod csi_limits;
mod csi_node;
mod devices;
mod events;
mod eviction;
mod groups;
mod growth;
mod hooks;
mod listings;
mod machine;
mod memory;
mod preempt;
mod pulled;
mod pulling;
mod resize;
mod restarts;
mod rounds;
mod settings;
mod shutdown;
mod starts;
mod unkept;
mod urls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Core as _, Effect, Effects, Input, Method, Rng, StatusError, Time, TimerId,
    WatchId, WatchItem,
};
use serde_json::{Value, json};

use super::KubeletCore;
use crate::config::NodeConfig;
use crate::effects::{In, Op, OpError, OpId, Out, Outcome, Reply};
use crate::sim::SimRuntime;

const KVM: &str = "devices.kubevirt.io/kvm";
const POD: &str = "/api/v1/namespaces/n/pods/p";

/// Objects by URL path, with a history that watches are fed from.
#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    revision: u64,
    watches: BTreeMap<WatchId, String>,
    /// Every change: its revision, its object, its event.
    history: Vec<(u64, String, Vec<u8>)>,
    down: bool,
    /// While set, nobody may list or watch these.
    denied: Option<&'static str>,
    /// Of which kind what field is not kept of a status that is written, or is kept as it was of a spec.
    unkept: Option<(&'static str, &'static str)>,
    events: Vec<String>,
    /// What was written of events: whole, and then what changes of them.
    event_writes: Vec<Value>,
    /// Every phase that each pod was told to have.
    phases: Vec<String>,
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (k, v) in patch {
        if v.is_null() {
            target.as_object_mut().unwrap().remove(k);
        } else {
            merge(&mut target[k.as_str()], v);
        }
    }
}

fn refused(code: u16, reason: &str) -> ApiError {
    ApiError::Status(Box::new(StatusError { code, reason: reason.into(), ..StatusError::default() }))
}

/// The collection of an object's path, or none for a path of something else.
fn plural(path: &str) -> &str {
    let parts: Vec<&str> = path.split('/').collect();
    parts[parts.len() - 2]
}

/// What a list or a watch is about: a collection, or one object of it.
fn subject(path: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let kind = path.rsplit('/').next().unwrap();
    let name = query.split("fieldSelector=metadata.name%3D").nth(1).map(|rest| rest.split('&').next().unwrap());
    match name.filter(|_| kind != "nodes") {
        Some(name) => format!("{kind}/{name}"),
        None => kind.to_owned(),
    }
}

/// Whether an object is what a list or a watch is about.
fn is_about(subject: &str, path: &str) -> bool {
    subject == plural(path) || format!("/{subject}") == path[path.rfind(plural(path)).unwrap() - 1..]
}

impl Api {
    fn put(&mut self, path: &str, mut object: Value) -> Vec<(WatchId, WatchItem)> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        if plural(path) == "pods"
            && let Some(phase) = object["status"]["phase"].as_str()
        {
            self.phases.push(format!("{}={phase}", object["metadata"]["name"].as_str().unwrap()));
        }
        self.objects.insert(path.to_owned(), object.clone());
        self.notify(path, kind, &object)
    }
    fn remove(&mut self, path: &str) -> Vec<(WatchId, WatchItem)> {
        self.revision += 1;
        let Some(mut object) = self.objects.remove(path) else { return Vec::new() };
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.notify(path, "DELETED", &object)
    }
    fn notify(&mut self, path: &str, kind: &str, object: &Value) -> Vec<(WatchId, WatchItem)> {
        let bytes = serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap();
        self.history.push((self.revision, path.to_owned(), bytes.clone()));
        self.watches
            .iter()
            .filter(|(_, subject)| is_about(subject, path))
            .map(|(id, _)| (*id, WatchItem::Event(bytes.clone().into())))
            .collect()
    }
    fn handle(&mut self, r: &ApiRequest) -> (Result<ApiResponse, ApiError>, Vec<(WatchId, WatchItem)>) {
        if self.down {
            return (Err(ApiError::Transport("down".into())), vec![]);
        }
        let ok = |v: &Value| Ok(ApiResponse { status: 200, body: serde_json::to_vec(v).unwrap().into() });
        let path = r.path.split('?').next().unwrap().to_owned();
        if self.denied.is_some_and(|kind| path.ends_with(&format!("/{kind}"))) {
            return (Err(refused(403, "Forbidden")), vec![]);
        }
        let body: Value = serde_json::from_slice(&r.body).unwrap_or_default();
        if path.contains("/events") {
            self.event_writes.push(body.clone());
        }
        match r.method {
            Method::Get
                if ["pods", "nodes", "services", "configmaps", "secrets"]
                    .iter()
                    .any(|k| path.ends_with(&format!("/{k}"))) =>
            {
                let subject = subject(&r.path);
                let items: Vec<&Value> =
                    self.objects.iter().filter(|(p, _)| is_about(&subject, p)).map(|(_, o)| o).collect();
                let list = json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items});
                (ok(&list), vec![])
            }
            Method::Get => match self.objects.get(&path) {
                Some(o) => (ok(o), vec![]),
                None => (Err(refused(404, "NotFound")), vec![]),
            },
            Method::Post if path.ends_with("/events") => {
                self.events.push(body["reason"].as_str().unwrap_or_default().to_owned());
                (ok(&body), vec![])
            }
            Method::Post => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{path}/{name}");
                if self.objects.contains_key(&path) {
                    return (Err(refused(409, "AlreadyExists")), vec![]);
                }
                let mut body = body.clone();
                body["metadata"]["uid"] = format!("uid-{name}").into();
                let news = self.put(&path, body);
                (ok(&self.objects[&path]), news)
            }
            Method::Patch | Method::Put if path.contains("/events/") => (ok(&json!({})), vec![]),
            Method::Patch => {
                let path = path.trim_end_matches("/status").to_owned();
                let Some(mut object) = self.objects.get(&path).cloned() else {
                    return (Err(refused(404, "NotFound")), vec![]);
                };
                for field in ["uid", "resourceVersion"] {
                    let given = &body["metadata"][field];
                    if !given.is_null() && *given != object["metadata"][field] {
                        return (Err(refused(409, "Conflict")), vec![]);
                    }
                }
                merge(&mut object, &body);
                if let Some((kind, field)) = self.unkept
                    && plural(&path) == kind
                    && let Some(status) = object["status"].as_object_mut()
                {
                    status.remove(field);
                }
                let news = self.put(&path, object);
                (ok(&self.objects[&path]), news)
            }
            Method::Put => {
                let mut body = body;
                if let Some((kind, field)) = self.unkept
                    && plural(&path) == kind
                    && let Some(before) = self.objects.get(&path)
                {
                    body["spec"][field] = before["spec"][field].clone();
                }
                let news = self.put(&path, body);
                (ok(&self.objects[&path]), news)
            }
            Method::Delete => {
                let Some(object) = self.objects.get(&path) else {
                    return (Err(refused(404, "NotFound")), vec![]);
                };
                if body["preconditions"]["uid"] != object["metadata"]["uid"] {
                    return (Err(refused(409, "Conflict")), vec![]);
                }
                (ok(&json!({})), self.remove(&path))
            }
        }
    }
}

struct World {
    core: KubeletCore,
    fx: Effects<Out>,
    node: SimRuntime,
    api: Api,
    now: Time,
    rng: Rng,
    /// What is on its way to the core.
    arriving: BTreeMap<(Time, u64), Input<In>>,
    timers: BTreeSet<(Time, TimerId)>,
    arrivals: u64,
    life: u64,
    /// Every operation that was asked for, and when.
    asked: Vec<(Time, Op)>,
    /// While set, listings of the runtime do not come back.
    deaf: bool,
    /// What drivers answer who shall let a volume follow that has grown, and after how long.
    growing: (Duration, Outcome),
    /// How long a pull takes.
    pulls_last: Duration,
    /// How long the reply to the Node's creation takes.
    registers: Duration,
    /// Volumes that a driver lets follow just now, by the path that the pod has them at.
    grows: BTreeMap<OpId, String>,
}

fn new_core() -> KubeletCore {
    let config = NodeConfig {
        node_name: "sim".into(),
        static_pod_path: Some("/manifests".into()),
        file_check_period: Duration::from_secs(3),
        ..NodeConfig::default()
    };
    KubeletCore::new(config, &Rng::new(1))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut w = Self {
            core: new_core(),
            fx: Effects::new(),
            node: SimRuntime::new("boot-1", &["busybox"]),
            api: Api::default(),
            now: Time::from_unix_s(1_000_000),
            rng: Rng::new(seed),
            arriving: BTreeMap::new(),
            timers: BTreeSet::new(),
            arrivals: 0,
            life: 0,
            asked: Vec::new(),
            deaf: false,
            growing: (Duration::ZERO, Ok(Reply::Done)),
            pulls_last: Duration::ZERO,
            registers: Duration::ZERO,
            grows: BTreeMap::new(),
        };
        w.input(Input::Start);
        w
    }

    fn soon(&mut self, input: Input<In>) {
        self.later(Duration::ZERO, input);
    }

    fn later(&mut self, after: Duration, input: Input<In>) {
        let at = self.now + after + Duration::from_millis(self.rng.below(40));
        self.arrivals += 1;
        self.arriving.insert((at, self.arrivals), input);
    }

    /// Watch events keep their order among themselves.
    fn tell(&mut self, news: Vec<(WatchId, WatchItem)>) {
        for (id, item) in news {
            let last =
                self.arriving.iter().filter(|(_, i)| matches!(i, Input::Watch { .. })).map(|((t, _), _)| *t).max();
            let at = (self.now + Duration::from_millis(self.rng.below(40))).max(last.unwrap_or_default());
            self.arrivals += 1;
            self.arriving.insert((at, self.arrivals), Input::Watch { id, item });
        }
    }

    fn input(&mut self, input: Input<In>) {
        if let Input::Own(In::Done(id, _)) = &input {
            self.grows.remove(id);
        }
        self.core.step(self.now, input, &mut self.fx);
        let mut todo = VecDeque::new();
        while let Some(e) = self.fx.pop() {
            todo.push_back(e);
        }
        for e in todo {
            match e {
                Effect::Api(id, r) => {
                    if std::env::var_os("KUBELET_TRACE").is_some() {
                        eprintln!("{} {:?} {} {:.300?}", self.now.rfc3339_micros(), r.method, r.path, r.body);
                    }
                    self.check_delete(&r);
                    let (result, news) = self.api.handle(&r);
                    if r.method == Method::Post && r.path == "/api/v1/nodes" {
                        self.arrivals += 1;
                        let at = self.now + self.registers;
                        self.arriving.insert((at, self.arrivals), Input::Api { id, result });
                    } else {
                        self.soon(Input::Api { id, result });
                    }
                    self.tell(news);
                }
                Effect::Watch(id, r) => {
                    if self.api.down {
                        let down = Some(ApiError::Transport("down".into()));
                        self.soon(Input::Watch { id, item: WatchItem::Closed(down) });
                    } else {
                        let subject = subject(&r.path);
                        let after = r.path.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap();
                        let after: u64 = after.parse().unwrap();
                        let missed: Vec<_> = self
                            .api
                            .history
                            .iter()
                            .filter(|(revision, path, _)| *revision > after && is_about(&subject, path))
                            .map(|(_, _, bytes)| (id, WatchItem::Event(bytes.clone().into())))
                            .collect();
                        self.api.watches.insert(id, subject);
                        self.tell(missed);
                    }
                }
                Effect::Unwatch(id) => {
                    self.api.watches.remove(&id);
                }
                Effect::Timer(id, at) => {
                    self.timers.insert((at, id));
                }
                Effect::Own(out) => {
                    if std::env::var_os("KUBELET_TRACE").is_some() && !matches!(out.op, Op::Relist | Op::Publish(_)) {
                        eprintln!("{} {:?} {:.160?}", self.now.rfc3339_micros(), out.id, out.op);
                    }
                    self.check_op(&out.op);
                    self.asked.push((self.now, out.op.clone()));
                    if self.deaf && matches!(out.op, Op::Relist) {
                        continue;
                    }
                    if let Op::ExpandVolume(e) = &out.op {
                        self.grows.insert(out.id, e.path.clone());
                        let (lasts, outcome) = self.growing.clone();
                        self.arrivals += 1;
                        let done = Input::Own(In::Done(out.id, outcome));
                        self.arriving.insert((self.now + lasts, self.arrivals), done);
                        continue;
                    }
                    if let Some(outcome) = self.node.apply(self.now, &out.op) {
                        let lasts =
                            if matches!(out.op, Op::PullImage { .. }) { self.pulls_last } else { Duration::ZERO };
                        self.later(lasts, Input::Own(In::Done(out.id, outcome)));
                    }
                }
                Effect::Exit(reason) => panic!("{reason}"),
            }
        }
        self.check_devices();
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        loop {
            let arrival = self.arriving.first_key_value().map(|(k, _)| k.0);
            let timer = self.timers.first().map(|(t, _)| *t);
            let Some(next) = [arrival, timer].into_iter().flatten().min().filter(|t| *t <= end) else { break };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, input) = self.arriving.pop_first().unwrap();
                if let Input::Watch { id, .. } = &input
                    && !self.api.watches.contains_key(id)
                    && !self.api.down
                {
                    continue;
                }
                self.input(input);
            } else {
                let (_, id) = self.timers.pop_first().unwrap();
                self.input(Input::Timer(id));
            }
        }
        self.now = end;
    }

    /// Hands the core the next thing that happens.
    fn next(&mut self) {
        let arrival = self.arriving.first_key_value().map(|(k, _)| k.0);
        match self.timers.first().copied() {
            Some((at, id)) if arrival.is_none_or(|a| at < a) => {
                self.timers.pop_first();
                self.now = self.now.max(at);
                self.input(Input::Timer(id));
            }
            _ => {
                let ((at, _), input) = self.arriving.pop_first().expect("something happens");
                self.now = self.now.max(at);
                self.input(input);
            }
        }
    }

    /// `kill -9` of the kubelet: what was asked for is done, its outcomes are lost.
    fn restart_kubelet(&mut self) {
        self.restart_as(new_core());
    }

    fn restart_kubelet_as(&mut self, config: NodeConfig) {
        self.restart_as(KubeletCore::new(config, &Rng::new(1)));
    }

    fn restart_as(&mut self, core: KubeletCore) {
        self.core = core;
        self.fx = Effects::new();
        self.arriving.clear();
        self.timers.clear();
        self.api.watches.clear();
        self.life += 1;
        self.input(Input::Start);
    }

    fn plugins_register(&mut self) {
        for event in self.node.plugins_again() {
            self.input(Input::Own(event));
        }
    }

    fn plugin_up(&mut self, ids: &[&str]) {
        for event in self.node.plugin_up(KVM, ids) {
            self.input(Input::Own(event));
        }
    }

    fn set_api_down(&mut self, down: bool) {
        self.api.down = down;
        if down {
            let open: Vec<WatchId> = std::mem::take(&mut self.api.watches).into_keys().collect();
            for id in open {
                let item = WatchItem::Closed(Some(ApiError::Transport("reset".into())));
                self.input(Input::Watch { id, item });
            }
        }
    }

    fn create(&mut self, name: &str, spec: Value) {
        let path = format!("/api/v1/namespaces/n/pods/{name}");
        let now = self.now.rfc3339();
        let news = self.api.put(
            &path,
            json!({
                "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "creationTimestamp": now},
                "spec": spec,
                "status": {"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]}
            }),
        );
        self.tell(news);
    }

    fn edit(&mut self, path: &str, patch: Value) {
        let mut object = self.api.objects[path].clone();
        merge(&mut object, &patch);
        let news = self.api.put(path, object);
        self.tell(news);
    }

    fn delete(&mut self, grace: i64) {
        let now = self.now.rfc3339();
        self.edit(POD, json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}}));
    }

    fn phase(&self) -> &str {
        self.api.objects.get(POD).map_or("gone", |p| p["status"]["phase"].as_str().unwrap())
    }

    fn ready(&self, condition: &str) -> bool {
        self.api.objects[POD]["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == condition && c["status"] == "True")
    }

    fn assert_clean(&self) {
        assert_eq!(self.phase(), "gone");
        assert!(self.node.containers.is_empty(), "{:?}", self.node.containers.keys());
        assert!(self.node.sandboxes.is_empty());
        assert!(self.node.volumes.is_empty(), "{:?}", self.node.volumes.keys());
        assert_eq!(self.core.pod_uids().count(), 0);
        let left: Vec<_> = self.node.records.keys().filter(|k| k.starts_with("pod-")).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(self.core.devices().allocations().is_empty());
    }
}

fn plain() -> Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "c", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                        "volumeMounts": [{"name": "e", "mountPath": "/e"}]}],
        "volumes": [{"name": "e", "emptyDir": {}}]
    })
}

fn vm(restart: &str) -> Value {
    json!({
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"kubevirt.io/schedulable": "true"},
        "containers": [{"name": "compute", "image": "busybox", "imagePullPolicy": "IfNotPresent",
                        "resources": {"limits": {KVM: "1"}}}]
    })
}

fn each_seed(f: impl Fn(u64)) {
    for seed in 0..20 {
        f(seed);
    }
}

#[test]
fn a_pod_runs_and_is_deleted_without_a_trace() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.create("p", plain());
        w.run(3);
        assert_eq!(w.phase(), "Running", "seed {seed}");
        assert!(w.ready("Ready"));
        assert!(w.api.objects.contains_key("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/sim"));
        w.delete(5);
        w.run(20);
        w.assert_clean();
        assert!(w.api.phases.iter().any(|p| p == "p=Failed"), "told how it ended: {:?}", w.api.phases);
    });
}

#[test]
fn the_node_is_ready_and_is_not_when_the_runtime_is_away() {
    let mut w = World::new(0);
    let ready = |w: &World| {
        w.api.objects["/api/v1/nodes/sim"]["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == "Ready")
            .unwrap()["status"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    w.run(15);
    assert_eq!(ready(&w), "True");
    w.create("p", plain());
    w.run(3);
    let before = w.node.running("uid-p");
    w.node.runtime_down = true;
    w.run(15);
    assert_eq!(ready(&w), "False");
    assert_eq!(w.phase(), "Running", "what cannot be seen is not over");
    w.node.runtime_down = false;
    w.run(15);
    assert_eq!(ready(&w), "True");
    assert_eq!(w.node.running("uid-p"), before);
}

/// The reply to its creation shows the Node older than the watch has shown it. (The kubelet then wrote on the older one
/// again and again, and was refused each time.)
#[test]
fn a_late_reply_does_not_hide_what_the_watch_has_told() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.registers = Duration::from_secs(2);
        w.run(1);
        w.edit("/api/v1/nodes/sim", json!({"metadata": {"labels": {"somebody": "else"}}}));
        w.run(20);
        let conditions = w.api.objects["/api/v1/nodes/sim"]["status"]["conditions"].clone();
        let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        assert!(conditions.as_array().is_some_and(|all| all.iter().any(ready)), "seed {seed}: {conditions}");
    });
}

#[test]
fn containers_restart_by_policy_with_a_backoff() {
    let mut w = World::new(3);
    w.run(2);
    w.create("p", plain());
    w.run(3);
    for restarts in 1..4 {
        let id = w.node.running("uid-p")["c"].clone();
        let now = w.now;
        w.node.exit(now, &id, 1);
        w.run(60);
        let status = &w.api.objects[POD]["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], restarts);
        assert_eq!(status["lastState"]["terminated"]["exitCode"], 1);
        assert_eq!(w.phase(), "Running");
    }
    assert!(w.api.events.iter().any(|e| e == "BackOff"));
    for (restart, code, phase) in [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded")] {
        let mut w = World::new(4);
        w.run(2);
        let mut spec = plain();
        spec["restartPolicy"] = restart.into();
        w.create("p", spec);
        w.run(3);
        let id = w.node.running("uid-p")["c"].clone();
        let now = w.now;
        w.node.exit(now, &id, code);
        w.run(5);
        assert_eq!(w.phase(), phase);
        assert!(w.node.volumes.is_empty(), "what is over holds no mounts");
        assert_eq!(w.node.containers.len(), 1, "its log is kept until it is deleted");
        w.delete(0);
        w.run(5);
        w.assert_clean();
    }
}

#[test]
fn a_missing_image_is_told() {
    for (policy, reason) in [("Never", "ErrImageNeverPull"), ("IfNotPresent", "ImagePullBackOff")] {
        let mut w = World::new(5);
        w.run(2);
        w.create("p", json!({"containers": [{"name": "c", "image": "nowhere", "imagePullPolicy": policy}]}));
        w.run(8);
        let waiting = &w.api.objects[POD]["status"]["containerStatuses"][0]["state"]["waiting"];
        assert_eq!(waiting["reason"], reason);
        if reason == "ImagePullBackOff" {
            let why = "Back-off pulling image \"nowhere\": ErrImagePull: no registry holds nowhere";
            assert_eq!(waiting["message"], why);
        }
        assert_eq!(w.phase(), "Pending");
        w.node.images.insert("nowhere".into());
        w.run(60);
        assert_eq!(w.phase(), "Running");
    }
}

#[test]
fn a_restarted_kubelet_takes_over_what_runs() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.plugin_up(&["a", "b"]);
        w.create("p", plain());
        w.run(3);
        let before = w.node.running("uid-p");
        assert_eq!(before.len(), 1);
        // With the API away nothing changes either.
        w.set_api_down(true);
        w.restart_kubelet();
        w.run(30);
        assert_eq!(w.node.running("uid-p"), before);
        w.set_api_down(false);
        w.run(30);
        assert_eq!(w.node.running("uid-p"), before, "seed {seed}");
        assert_eq!(w.api.objects[POD]["status"]["containerStatuses"][0]["restartCount"], 0);
        assert!(w.ready("Ready"));
        // Deleted while the kubelet is away, even without a trace in the API.
        let news = w.api.remove(POD);
        drop(news);
        w.restart_kubelet();
        w.run(20);
        w.assert_clean();
    });
}

#[test]
fn a_kubelet_killed_at_any_point_converges() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.create("p", plain());
        let mut rng = Rng::new(seed);
        for _ in 0..6 {
            let pause = Duration::from_millis(rng.below(400));
            let end = w.now + pause;
            while w.now < end {
                let next = w.arriving.first_key_value().map(|(k, _)| k.0).filter(|t| *t <= end);
                match next {
                    Some(t) => {
                        w.now = w.now.max(t);
                        let (_, input) = w.arriving.pop_first().unwrap();
                        w.input(input);
                    }
                    None => w.now = end,
                }
            }
            w.restart_kubelet();
        }
        w.run(60);
        assert_eq!(w.phase(), "Running", "seed {seed}");
        assert_eq!(w.node.running("uid-p").len(), 1, "seed {seed}: {:?}", w.node.containers);
        w.delete(5);
        w.run(1);
        w.restart_kubelet();
        w.run(30);
        w.assert_clean();
    });
}

#[test]
fn what_a_driver_finds_wrong_is_told() {
    let mut w = World::new(2);
    w.run(2);
    w.create("p", plain());
    w.run(10);
    let uid = w.api.objects["/api/v1/namespaces/n/pods/p"]["metadata"]["uid"].as_str().unwrap().to_owned();
    for of in [uid.as_str(), "nobody"] {
        let (uid, volume, message) = (of.into(), "v".to_owned(), "worn out".to_owned());
        w.input(Input::Own(In::VolumeAbnormal { uid, volume, message }));
    }
    w.run(5);
    assert_eq!(w.api.events.iter().filter(|e| *e == "VolumeConditionAbnormal").count(), 1, "{:?}", w.api.events);
    assert_eq!(w.phase(), "Running");
}

#[test]
fn probes_hooks_and_config_maps() {
    let mut w = World::new(2);
    w.run(2);
    let mut spec = plain();
    spec["containers"][0]["readinessProbe"] = json!({"exec": {"command": ["x"]}, "periodSeconds": 1});
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["bye"]}}});
    spec["containers"][0]["env"] = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]);
    spec["volumes"] = json!([{"name": "e", "configMap": {"name": "cm"}}]);
    w.node.exec_codes.insert("c".into(), 1);
    w.create("p", spec);
    w.run(5);
    assert_eq!(w.phase(), "Pending");
    assert!(w.api.events.iter().any(|e| e == "FailedMount"), "{:?}", w.api.events);
    let made = json!({"metadata": {"name": "cm"}, "data": {"k": "v"}});
    let news = w.api.put("/api/v1/namespaces/n/configmaps/cm", made);
    w.tell(news);
    w.run(20);
    assert_eq!(w.phase(), "Running");
    assert!(!w.ready("Ready"));
    let c = w.node.containers.values().next().unwrap();
    assert_eq!(c.spec.env, [("K".to_owned(), "v".to_owned())]);
    w.node.exec_codes.insert("c".into(), 0);
    w.run(5);
    assert!(w.ready("Ready"));
    w.delete(5);
    w.run(20);
    w.assert_clean();
}

#[test]
fn a_pod_that_ends_is_asked_whether_it_serves() {
    let mut w = World::new(2);
    w.edit_or_create_node();
    let mut spec = plain();
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 1, "failureThreshold": 1});
    spec["containers"][0]["readinessProbe"] = probe;
    spec["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 20}}});
    w.create("p", spec);
    w.run(10);
    w.delete(30);
    w.run(3);
    assert!(w.ready("Ready"), "{}", w.api.objects[POD]["status"]);
    w.node.exec_codes.insert("c".into(), 1);
    w.run(5);
    assert_eq!(w.node.running("uid-p").len(), 1, "its hook goes on");
    assert!(!w.ready("Ready"), "{}", w.api.objects[POD]["status"]);
    w.run(40);
    w.assert_clean();
}

/// Incident 5: the kubelet restarts and cannot read what its pods' volumes are made of.
#[test]
fn a_post_start_hook_that_sleeps_holds_readiness_back() {
    let mut w = World::new(3);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["containers"][0]["lifecycle"] = json!({"postStart": {"sleep": {"seconds": 20}}});
    w.create("p", spec);
    w.run(10);
    assert!(!w.node.running("uid-p").is_empty());
    assert!(!w.ready("Ready"));
    w.run(15);
    assert!(w.ready("Ready"), "{}", w.api.objects[POD]["status"]);
    for event in ["Starting", "NodeReady", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
        assert_eq!(w.api.events.iter().filter(|e| *e == event).count(), 1, "{event} in {:?}", w.api.events);
    }
}

#[test]
fn a_runtime_class_is_read_before_the_sandbox_is_made() {
    let mut w = World::new(4);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["runtimeClassName"] = "kata".into();
    w.create("p", spec);
    w.run(10);
    assert!(w.node.sandboxes.is_empty() && w.api.events.iter().any(|e| e == "FailedCreatePodSandBox"));
    w.api.objects.insert("/apis/node.k8s.io/v1/runtimeclasses/kata".into(), json!({"handler": "kata-fc"}));
    w.run(10);
    assert_eq!(w.phase(), "Running");
    assert_eq!(w.node.sandbox_handlers, ["kata-fc"]);
}

#[test]
fn pull_secrets_reach_the_runtime_and_are_done_without() {
    let mut w = World::new(5);
    w.edit_or_create_node();
    let mut spec = plain();
    spec["containers"][0]["image"] = "r.example.com/app".into();
    spec["imagePullSecrets"] = json!([{"name": "there"}, {"name": "missing"}, {"name": "there"}]);
    let config = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        json!({"auths": {"r.example.com": {"username": "u", "password": "p"}}}).to_string(),
    );
    let secret = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}});
    w.api.objects.insert("/api/v1/namespaces/n/secrets/there".into(), secret);
    w.create("p", spec);
    w.run(10);
    assert_eq!(w.node.pulled_as, [vec!["u".to_owned()]]);
    assert!(w.api.events.iter().any(|e| e == "FailedToRetrieveImagePullSecret"), "{:?}", w.api.events);
}

fn manifest(image: &str) -> crate::spec::manifest::Manifest {
    let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "n"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": image, "imagePullPolicy": "IfNotPresent"}]}});
    let path = "/manifests/web.json".to_owned();
    let pod = crate::spec::manifest::read(text.to_string().as_bytes(), &path, "sim").map(Box::new);
    crate::spec::manifest::Manifest { path, pod }
}

#[test]
fn a_static_pod_has_a_mirror_that_follows_it() {
    const MIRROR: &str = "/api/v1/namespaces/n/pods/web-sim";
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        let broken = crate::spec::manifest::Manifest { path: "/manifests/x".into(), pod: Err("it is nonsense".into()) };
        w.node.manifests = Some(vec![manifest("busybox"), broken]);
        w.run(10);
        let first = w.api.objects[MIRROR].clone();
        assert_eq!(first["status"]["phase"], "Running", "seed {seed}: {first}");
        assert!(first["metadata"]["annotations"]["kubernetes.io/config.seen"].is_string(), "seed {seed}: {first}");
        assert_eq!(w.node.containers.len(), 1);
        assert_eq!(w.api.events.iter().filter(|e| *e == "FailedStaticPod").count(), 1);
        let started = w.node.containers.values().next().unwrap().record.started_at;

        // A mirror that somebody deletes is made again; the pod does not notice.
        let news = w.api.remove(MIRROR);
        w.tell(news);
        w.run(10);
        assert_eq!(w.api.objects[MIRROR]["status"]["phase"], "Running", "seed {seed}");
        // Manifests that cannot be read, and a restart, change nothing either.
        w.node.manifests = None;
        w.restart_kubelet();
        w.run(20);
        assert_eq!(w.node.containers.values().next().unwrap().record.started_at, started);
        assert!(w.api.objects.contains_key(MIRROR));

        // Another manifest is another pod.
        w.node.images.insert("other".into());
        w.node.manifests = Some(vec![manifest("other")]);
        w.run(20);
        let running: Vec<_> = w.node.containers.values().filter(|c| c.record.may_run()).collect();
        assert_eq!((running.len(), running[0].record.image.as_str()), (1, "other"), "seed {seed}");
        let now = &w.api.objects[MIRROR];
        assert_eq!(now["status"]["phase"], "Running", "{now}");
        assert_ne!(now["metadata"]["annotations"], first["metadata"]["annotations"]);

        w.node.manifests = Some(Vec::new());
        w.run(20);
        assert!(w.node.containers.is_empty() && w.node.sandboxes.is_empty(), "seed {seed}");
        assert!(!w.api.objects.contains_key(MIRROR), "seed {seed}");
    });
}

#[test]
fn what_cannot_be_read_after_a_restart_unmounts_nothing() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        let cm = "/api/v1/namespaces/n/configmaps/cm";
        w.api.put(cm, json!({"metadata": {"name": "cm"}, "data": {"k": "v"}}));
        let mut spec = plain();
        spec["volumes"] = json!([{"name": "e", "configMap": {"name": "cm"}}]);
        w.create("p", spec);
        w.run(5);
        let (before, mounted) = (w.node.running("uid-p"), w.node.volumes.clone());
        assert_eq!((before.len(), mounted.len()), (1, 1), "seed {seed}");
        w.api.objects.remove(cm);
        w.restart_kubelet();
        w.run(300);
        assert_eq!(w.node.running("uid-p"), before);
        assert_eq!(w.node.volumes, mounted);
        assert!(w.ready("Ready"));
        // Once the pod is surely gone its volumes go, with the API away.
        let now = w.now.rfc3339();
        w.edit(POD, json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": 5}}));
        w.run(1);
        w.set_api_down(true);
        w.restart_kubelet();
        w.run(30);
        w.set_api_down(false);
        w.run(60);
        w.assert_clean();
    });
}

#[test]
fn a_container_made_while_its_pod_is_deleted_is_never_started() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.run(2);
        w.create("p", plain());
        // Up to the moment when the container is made and its maker does not know yet.
        while w.node.containers.is_empty() {
            w.next();
        }
        w.delete(5);
        // Everything that the watch has to say, the deletion last, and nothing else.
        let told: Vec<_> =
            w.arriving.iter().filter(|(_, i)| matches!(i, Input::Watch { .. })).map(|(k, _)| *k).collect();
        assert!(!told.is_empty(), "the deletion is on its way");
        for key in told {
            let event = w.arriving.remove(&key).unwrap();
            w.input(event);
        }
        w.run(20);
        assert!(!w.node.started.contains_key("uid-p"), "seed {seed}");
        w.assert_clean();
    });
}

/// V5: a deletion that was seen is carried through by a restarted kubelet that cannot ask anybody.
#[test]
fn a_recorded_deletion_needs_no_api() {
    let mut w = World::new(9);
    w.run(2);
    w.create("p", plain());
    w.run(3);
    let news = w.api.remove(POD);
    w.tell(news);
    // Stopping takes a moment; the kubelet dies in it and the API goes away.
    w.run(0);
    for _ in 0..3 {
        let Some(((at, _), input)) = w.arriving.pop_first() else { break };
        w.now = w.now.max(at);
        w.input(input);
    }
    w.set_api_down(true);
    w.restart_kubelet();
    w.run(30);
    assert!(w.node.running("uid-p").is_empty());
    assert!(w.node.volumes.is_empty());
}

impl World {
    /// The Node with the label that launcher pods select.
    fn edit_or_create_node(&mut self) {
        let path = "/api/v1/nodes/sim";
        let labels =
            json!({"metadata": {"name": "sim", "uid": "uid-sim", "labels": {"kubevirt.io/schedulable": "true"}}});
        if self.api.objects.contains_key(path) {
            self.edit(path, labels);
        } else {
            let news = self.api.put(path, labels);
            self.tell(news);
        }
    }
}
