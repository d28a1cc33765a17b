//! The handler's core over a small API and a node that the test plays.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Core, Effect, Effects, Input, Method, Rng, StatusError, Time, TimerId, WatchId,
    WatchItem,
};
use carrack_launcher::Domain;
use carrack_launcher::accel::{Accel, Probe};
use carrack_launcher::domain::{End, EndReason, Observed, Phase};
use carrack_types::well_known::kubevirt::VMI_FINALIZER;
use serde_json::{Value, json};

use super::Handler;
use crate::handler::effects::{
    Binding, Call, In, LinkFacts, Op, OpError, Out, Outcome, Place, PodLink, Prepared, Record, Reply, Sought,
};

mod agents;
mod bound;
mod guarded;
mod leaving;
mod pods;
mod words;

const VMI: &str = "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/demo";
const POD: &str = "/api/v1/namespaces/ns/pods/virt-launcher-demo";
const NODE: &str = "/api/v1/nodes/n1";

struct Rig {
    core: Handler,
    fx: Effects<Out>,
    now: Time,
    objects: BTreeMap<&'static str, Value>,
    revision: u64,
    watches: BTreeMap<WatchId, String>,
    timers: Vec<(Time, TimerId)>,
    ops: VecDeque<Out>,
    events: Vec<String>,
    /// What they say.
    told: Vec<String>,
    /// How often one was told once more.
    recounted: usize,
    /// Writes are lost on the way.
    deaf: bool,
    /// The node's Lease.
    lease: Option<Value>,
    /// The Lease cannot be reached.
    cut_off: bool,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self {
            core: Handler::new("n1", &Rng::new(1)),
            fx: Effects::new(),
            now: Time::from_unix_s(1_000_000),
            objects: BTreeMap::new(),
            revision: 10,
            watches: BTreeMap::new(),
            timers: Vec::new(),
            ops: VecDeque::new(),
            events: Vec::new(),
            told: Vec::new(),
            recounted: 0,
            deaf: false,
            lease: None,
            cut_off: false,
        };
        rig.put(NODE, json!({"metadata": {"name": "n1"}, "status": {"capacity": {}}}));
        rig
    }

    /// A handler whose instance is at a phase and whose pod runs.
    fn with_instance(phase: &str) -> Self {
        let mut rig = Self::new();
        rig.put(
            VMI,
            json!({
            "metadata": {"name": "demo", "namespace": "ns", "uid": "vmi", "labels": {"kubevirt.io/nodeName": "n1"}},
            "spec": {"domain": {"devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "default", "masquerade": {}}]}, "memory": {"guest": "64Mi"}},
                "networks": [{"name": "default", "pod": {}}], "terminationGracePeriodSeconds": 12,
                "volumes": [{"name": "root", "containerDisk": {"image": "x"}}]},
            "status": {"phase": phase, "nodeName": "n1", "activePods": {"pod": "n1"}}}),
        );
        rig.put(POD, json!({
            "metadata": {"name": "virt-launcher-demo", "namespace": "ns", "uid": "pod",
                "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "vmi"},
                "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "demo",
                    "uid": "vmi", "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "compute"}, {"name": "volumeroot"}]},
            "status": {"phase": "Running", "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}], "containerStatuses": [
                container("compute", "c1", json!({"running": {}})), container("volumeroot", "c2", json!({"running": {}}))]}}));
        rig
    }

    fn start(&mut self, records: Vec<Record>) {
        self.step(Input::Start);
        self.answer(|op| matches!(op, Op::Load), Ok(Reply::Loaded(records)));
        let probe = Probe { accel: Accel::Tcg, reason: "no KVM".to_owned() };
        self.answer(|op| matches!(op, Op::Probe), Ok(Reply::Probed(probe)));
    }

    fn put(&mut self, path: &'static str, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let kind = if self.objects.insert(path, object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(path, kind, &object);
    }

    fn change(&mut self, path: &'static str, change: impl FnOnce(&mut Value)) {
        let mut object = self.objects[path].clone();
        change(&mut object);
        self.put(path, object);
    }

    fn remove(&mut self, path: &'static str) {
        let object = self.objects.remove(path).expect("there");
        self.tell(path, "DELETED", &object);
    }

    fn tell(&mut self, path: &str, kind: &str, object: &Value) {
        let plural = plural(path);
        let ids: Vec<WatchId> = self.watches.iter().filter(|(_, p)| **p == plural).map(|(id, _)| *id).collect();
        for id in ids {
            let event = Bytes::from(json!({"type": kind, "object": object}).to_string());
            self.step(Input::Watch { id, item: WatchItem::Event(event) });
        }
    }

    fn step(&mut self, input: Input<In>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.core.step(self.now, input, &mut self.fx);
            while let Some(effect) = self.fx.pop() {
                match effect {
                    Effect::Api(id, request) => {
                        let result = self.serve(&request);
                        inputs.push_back(Input::Api { id, result });
                    }
                    Effect::Watch(id, request) => {
                        let path = request.path.split('?').next().unwrap_or_default();
                        self.watches.insert(id, path.rsplit('/').next().unwrap_or_default().to_owned());
                    }
                    Effect::Unwatch(id) => drop(self.watches.remove(&id)),
                    Effect::Timer(id, at) => self.timers.push((at, id)),
                    Effect::Own(out) => self.ops.push_back(out),
                    Effect::Exit(why) => panic!("{why}"),
                }
            }
        }
    }

    fn serve(&mut self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let path = request.path.split('?').next().unwrap_or_default().to_owned();
        let ok = |value: &Value| Ok(ApiResponse { status: 200, body: Bytes::from(value.to_string()) });
        if path.contains("/leases") {
            return self.serve_lease(request);
        }
        match request.method {
            Method::Get => {
                let plural = path.rsplit('/').next().unwrap_or_default();
                let items: Vec<&Value> =
                    self.objects.iter().filter(|(p, _)| super::tests::plural(p) == plural).map(|(_, o)| o).collect();
                ok(&json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items}))
            }
            Method::Patch if !path.contains("/events/") => {
                if self.deaf {
                    return Err(ApiError::Transport("lost".to_owned()));
                }
                let path = *self.objects.keys().find(|known| **known == path).expect("a known object");
                let patch: Value = serde_json::from_slice(&request.body).expect("JSON");
                let object = self.objects.get_mut(path).expect("known");
                let rests_on = &patch["metadata"]["resourceVersion"];
                if !rests_on.is_null() && *rests_on != object["metadata"]["resourceVersion"] {
                    let conflict = StatusError { code: 409, reason: "Conflict".to_owned(), ..StatusError::default() };
                    return Err(ApiError::Status(Box::new(conflict)));
                }
                merge(object, &patch);
                self.revision += 1;
                object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
                ok(&object.clone())
            }
            Method::Post | Method::Patch => {
                let event: Value = serde_json::from_slice(&request.body).expect("JSON");
                self.events.extend(event["reason"].as_str().map(str::to_owned));
                self.told.extend(event["message"].as_str().map(str::to_owned));
                self.recounted += usize::from(request.method == Method::Patch);
                ok(&event)
            }
            _ => panic!("{request:?}"),
        }
    }

    /// The node's Lease.
    fn serve_lease(&mut self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let refuse = |code: u16, reason: &str| {
            Err(ApiError::Status(Box::new(StatusError { code, reason: reason.to_owned(), ..StatusError::default() })))
        };
        if self.cut_off {
            return Err(ApiError::Transport("no route".to_owned()));
        }
        if request.method != Method::Get {
            let mut lease: Value = serde_json::from_slice(&request.body).expect("JSON");
            let there = self.lease.as_ref().map_or(Value::Null, |old| old["metadata"]["resourceVersion"].clone());
            if lease["metadata"]["resourceVersion"] != there {
                return refuse(409, "Conflict");
            }
            self.revision += 1;
            lease["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.lease = Some(lease);
        }
        match &self.lease {
            Some(lease) => Ok(ApiResponse { status: 200, body: Bytes::from(lease.to_string()) }),
            None => refuse(404, "NotFound"),
        }
    }

    /// Shows the watchers what was written since.
    fn settle(&mut self) {
        for (path, object) in self.objects.clone() {
            self.tell(path, "MODIFIED", &object);
        }
    }

    /// The next operation, which must be of this kind.
    fn expect(&mut self, which: impl Fn(&Op) -> bool) -> Out {
        self.ops.retain(|out| !matches!(out.op, Op::Publish(_)));
        let out = self.ops.pop_front().expect("an operation");
        assert!(which(&out.op), "{:?}", out.op);
        out
    }

    fn answer(&mut self, which: impl Fn(&Op) -> bool, outcome: Outcome) -> Op {
        let out = self.expect(which);
        self.step(Input::Own(In::Done(out.id, outcome)));
        out.op
    }

    fn idle(&mut self) -> bool {
        self.ops.retain(|out| !matches!(out.op, Op::Publish(_)));
        self.ops.is_empty()
    }

    fn domain(&mut self, phase: Phase, end: Option<EndReason>) {
        self.says(phase, end, phase != Phase::Waiting);
    }

    /// The launcher ends without ever having begun its machine.
    fn ends_unbegun(&mut self) {
        self.says(Phase::Ended, Some(EndReason::Killed), false);
    }

    fn says(&mut self, phase: Phase, end: Option<EndReason>, has_begun: bool) {
        let domain = Domain {
            phase,
            accel: has_begun.then_some(Accel::Tcg),
            end: end.map(|reason| End { reason, detail: "as said".to_owned() }),
            ..Domain::waiting("vmi")
        };
        self.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.timers.iter().copied().filter(|(at, _)| *at <= until).min() {
            self.timers.retain(|timer| *timer != next);
            self.now = self.now.max(next.0);
            self.step(Input::Timer(next.1));
        }
        self.now = until;
    }

    /// Another handler in place of the one before.
    fn restart(&mut self, records: Vec<Record>) {
        self.core = Handler::new("n1", &Rng::new(2));
        self.watches.clear();
        self.timers.clear();
        self.ops.clear();
        self.start(records);
    }

    /// Brings the guest up.
    fn boot(&mut self) {
        self.expect(|op| matches!(op, Op::Watch(_)));
        self.domain(Phase::Waiting, None);
        self.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
        self.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
        self.answer(|op| matches!(op, Op::Call(_, Call::Sync(_))), Ok(Reply::Done));
        self.domain(Phase::Starting, None);
        self.domain(Phase::Running, None);
        assert_eq!(self.phase(), "Running");
    }

    /// Processes are looked for at a place, and the guest has not ended before there are none.
    fn ends_with_the_processes_of(&mut self, place: Place) {
        let look = Op::LookForProcesses(Sought { uid: place.uid, pod_uid: place.pod_uid, ends_disks: false });
        self.answer(|op| *op == look, Ok(Reply::Processes(true)));
        self.settle();
        assert_eq!(self.phase(), "Running");
        self.pass(Duration::from_secs(6));
        self.answer(|op| *op == look, Ok(Reply::Processes(false)));
        assert_eq!(self.phase(), "Failed");
    }

    fn phase(&self) -> &str {
        self.objects[VMI]["status"]["phase"].as_str().unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> Option<&Value> {
        self.objects[VMI]["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
    }
}

fn container(name: &str, id: &str, state: Value) -> Value {
    json!({"name": name, "state": state, "containerID": format!("containerd://{id}"), "ready": true, "image": "",
        "imageID": "", "restartCount": 0})
}

fn plural(path: &str) -> String {
    path.rsplit('/').nth(1).unwrap_or_default().to_owned()
}

fn merge(into: &mut Value, patch: &Value) {
    match patch {
        Value::Object(patch) => {
            if !into.is_object() {
                *into = json!({});
            }
            for (key, value) in patch {
                if value.is_null() {
                    into.as_object_mut().expect("an object").remove(key);
                } else {
                    merge(&mut into[key], value);
                }
            }
        }
        other => *into = other.clone(),
    }
}

fn place() -> Place {
    Place { uid: "vmi".to_owned(), pod_uid: "pod".to_owned(), compute_id: "c1".to_owned() }
}

#[test]
fn a_guest_is_brought_up() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    assert_eq!(rig.expect(|op| matches!(op, Op::Watch(_))).op, Op::Watch(place()));
    rig.domain(Phase::Waiting, None);
    let facts = LinkFacts { mtu: Some(1400), ..LinkFacts::default() };
    let prepared = Prepared { links: [("eth0".to_owned(), facts)].into(), ..Prepared::default() };
    let Op::Prepare(preparation) =
        rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::new(prepared))))
    else {
        panic!("no preparation")
    };
    assert_eq!(preparation.disks[0].container_id, "c2");
    assert_eq!(preparation.disks[0].target, "/var/run/kubevirt/container-disks/disk_0.img");
    let [PodLink { pod_interface, binding: Binding::Masquerade(network), .. }] = &preparation.links[..] else {
        panic!("{:?}", preparation.links)
    };
    assert_eq!((pod_interface.as_str(), network.guest.to_string().as_str()), ("eth0", "10.0.2.2"));
    // What was asked of the launcher is kept before it is asked.
    let Op::Save(record) = rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done)) else { panic!("no record") };
    assert!(record.started);
    let Op::Call(_, Call::Sync(machine)) = rig.answer(|op| matches!(op, Op::Call(..)), Ok(Reply::Done)) else {
        panic!("no machine")
    };
    assert_eq!((machine.accel, machine.memory_bytes, machine.nics[0].mtu), (Accel::Tcg, 64 << 20, Some(1400)));
    assert!(rig.idle());
    assert_eq!(rig.phase(), "Scheduled");
    rig.domain(Phase::Starting, None);
    assert_eq!(rig.phase(), "Scheduled");
    rig.domain(Phase::Running, None);
    assert_eq!(rig.phase(), "Running");
    assert_eq!(rig.condition("Ready").expect("told")["reason"], "PodConditionMissing");
    let status = &rig.objects[VMI]["status"];
    assert_eq!(status["interfaces"][0]["ipAddress"], "10.1.0.5");
    assert_eq!(status["phaseTransitionTimestamps"][0]["phase"], "Running");
    assert!(rig.condition("SoftwareEmulation").is_some());
    rig.settle();
    assert!(rig.events.contains(&"Started".to_owned()), "{:?}", rig.events);
    assert!(rig.idle());
    rig.domain(Phase::Paused, None);
    assert_eq!(rig.condition("Paused").expect("paused")["reason"], "PausedByUser");
    rig.domain(Phase::Running, None);
    assert!(rig.condition("Paused").is_none());
}

#[test]
fn a_restless_guest_does_not_keep_the_cluster_busy() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    let says = |connected: bool, phase: Phase| {
        let domain = Domain { phase, agent_connected: connected, ..Domain::waiting("vmi") };
        Input::Own(In::Domain("vmi".to_owned(), Box::new(domain)))
    };
    let before = rig.revision;
    for nth in 0..200 {
        rig.step(says(nth % 2 == 0, Phase::Running));
        rig.settle();
    }
    assert!(rig.revision - before < 40, "{} writes", rig.revision - before);
    // The last word is told, a little later, and a step at once.
    rig.step(says(false, Phase::Paused));
    rig.pass(Duration::from_secs(5));
    rig.settle();
    assert!(rig.condition("AgentConnected").is_none() && rig.condition("Paused").is_some());
    for nth in 0..200 {
        rig.step(says(nth % 2 == 0, Phase::Running));
        rig.settle();
    }
    rig.domain(Phase::Ended, Some(EndReason::GuestShutdown));
    assert_eq!(rig.phase(), "Succeeded");
}

#[test]
fn how_guests_end() {
    let check = |end: EndReason, phase: &str| {
        let mut rig = Rig::with_instance("Scheduled");
        rig.start(Vec::new());
        rig.boot();
        rig.domain(Phase::Ended, Some(end));
        assert_eq!(rig.phase(), phase, "{end:?}");
        // Nothing more is asked of an instance that is over, but to forget it.
        while !rig.idle() {
            rig.expect(|op| matches!(op, Op::Unwatch(_) | Op::Drop(_)));
        }
    };
    check(EndReason::GuestShutdown, "Succeeded");
    check(EndReason::Killed, "Succeeded");
    check(EndReason::Crashed, "Failed");
    check(EndReason::FailedToStart, "Failed");
}

#[test]
fn a_guest_that_panics_is_told_of() {
    let check = |reason: &str, told: bool| {
        let mut rig = Rig::with_instance("Scheduled");
        rig.start(Vec::new());
        rig.boot();
        // In the launcher's own words.
        let mut domain = Domain { accel: Some(Accel::Tcg), ..Domain::waiting("vmi") };
        domain.observe(Observed::Event { name: "SHUTDOWN".to_owned(), data: json!({"reason": reason}) });
        rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
        rig.settle();
        assert_eq!(rig.phase(), "Failed", "{reason}");
        assert_eq!(rig.events.contains(&"GuestPanicked".to_owned()), told, "{:?}", rig.events);
    };
    check("guest-panic", true);
    check("host-error", false);
}

#[test]
fn a_guest_that_an_error_on_its_disk_stops_is_told_of() {
    let check = |disk: &str, reason: &str, wanted: &str| {
        let mut rig = Rig::with_instance("Scheduled");
        rig.start(Vec::new());
        rig.boot();
        // In the launcher's own words.
        let mut domain = Domain { accel: Some(Accel::Tcg), ..Domain::waiting("vmi") };
        domain.observe(Observed::RunState("running".to_owned()));
        let data = json!({"action": "stop", "operation": "write", "node-name": disk, "reason": reason});
        domain.observe(Observed::Event { name: "BLOCK_IO_ERROR".to_owned(), data });
        domain.observe(Observed::Event { name: "STOP".to_owned(), data: Value::Null });
        rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
        rig.settle();
        assert_eq!(rig.condition("Paused").expect("paused")["reason"], "PausedIOError");
        assert_eq!(rig.events.iter().filter(|reason| *reason == "IOerror").count(), 1, "{:?}", rig.events);
        assert!(rig.told.contains(&format!("VM Paused due to {wanted}")), "{:?}", rig.told);
    };
    check("disk-0", "Input/output error", "IO error at the volume: root");
    check("disk-0", "No space left on device", "not enough space on volume: root");
    check("another", "Input/output error", "IO error at the volume: unknown");
}

#[test]
fn deletion_presses_the_power_button_then_waits_then_kills() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    let Op::Save(record) = rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done)) else { panic!("no record") };
    assert_eq!(record.shutdown_since_ns, Some(rig.now.0));
    let shutdown = |op: &Op| matches!(op, Op::Call(_, Call::Shutdown));
    rig.answer(shutdown, Ok(Reply::Done));
    assert!(rig.idle());
    rig.pass(Duration::from_secs(4));
    assert!(rig.idle());
    rig.pass(Duration::from_secs(2));
    rig.answer(shutdown, Ok(Reply::Done));
    rig.pass(Duration::from_secs(5));
    rig.answer(shutdown, Ok(Reply::Done));
    // 12 s of grace have passed: the kill does not wait for the next press.
    rig.pass(Duration::from_secs(1));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Kill)), Ok(Reply::Done));
    // Its end is told with its pod's, or when that takes too long.
    rig.domain(Phase::Ended, Some(EndReason::Killed));
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.phase(), "Running");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.phase(), "Succeeded");
    assert_eq!(rig.events.iter().filter(|reason| *reason == "ShuttingDown").count(), 1);
}

/// It is waited for no longer than the grace, whatever the clock of a handler before this one said.
#[test]
fn a_shutdown_that_began_in_the_future_begins_now() {
    let mut rig = Rig::with_instance("Running");
    let ahead = (rig.now + Duration::from_secs(3600)).0;
    let (namespace, name) = ("ns".to_owned(), "demo".to_owned());
    let record =
        Record { namespace, name, place: place(), started: true, shutdown_since_ns: Some(ahead), ..Record::default() };
    rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    rig.start(vec![record]);
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Running, None);
    let Op::Save(record) = rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done)) else { panic!("no record") };
    assert_eq!(record.shutdown_since_ns, Some(rig.now.0));
    for seconds in [0, 5, 5] {
        rig.pass(Duration::from_secs(seconds));
        rig.answer(|op| matches!(op, Op::Call(_, Call::Shutdown)), Ok(Reply::Done));
    }
    rig.pass(Duration::from_secs(2));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Kill)), Ok(Reply::Done));
}

/// Somebody may mend the Secret: what was read of it before is not what counts.
#[test]
fn what_does_not_do_is_made_ready_anew() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(VMI, |vmi| {
        let disk = |name: &str| json!({"name": name, "disk": {"bus": "virtio"}});
        vmi["spec"]["domain"]["devices"]["disks"] = json!([disk("root"), disk("init")]);
        vmi["spec"]["volumes"] = json!([{"name": "root", "containerDisk": {"image": "x"}},
            {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "s"}}}]);
    });
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Waiting, None);
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    assert!(rig.told.iter().any(|told| told.contains("has no key userdata")), "{:?}", rig.told);
    // Later each time.
    for _ in 0..5 {
        rig.pass(Duration::from_secs(1));
        rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    }
    rig.pass(Duration::from_secs(1));
    assert!(rig.idle());
    rig.pass(Duration::from_secs(1));
    let files = BTreeMap::from([("userdata".to_owned(), b"#cloud-config".to_vec())]);
    let mended = Prepared { secrets: BTreeMap::from([("init-udata".to_owned(), files)]), ..Prepared::default() };
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::new(mended))));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.expect(|op| matches!(op, Op::Call(_, Call::Sync(_))));
}

#[test]
fn a_guest_without_a_power_button_is_ended_at_once() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(VMI, |vmi| vmi["spec"]["domain"]["features"] = json!({"acpi": {"enabled": false}}));
    rig.start(Vec::new());
    rig.boot();
    rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.expect(|op| matches!(op, Op::Call(_, Call::Kill)));
}

#[test]
fn an_end_that_was_asked_for_is_told_in_the_write_that_lets_the_instance_go() {
    let check = |end: EndReason, phases: [&str; 2], finalizers: Value| {
        let mut rig = Rig::with_instance("Scheduled");
        rig.change(VMI, |vmi| vmi["metadata"]["finalizers"] = json!([VMI_FINALIZER, "another"]));
        rig.start(Vec::new());
        rig.boot();
        rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
        rig.domain(Phase::Ended, Some(end));
        assert_eq!(rig.phase(), phases[0], "{end:?}");
        rig.remove(POD);
        assert_eq!(rig.phase(), phases[1], "{end:?}");
        assert_eq!(rig.objects[VMI]["metadata"]["finalizers"], finalizers, "{end:?}");
    };
    check(EndReason::Killed, ["Running", "Succeeded"], json!(["another"]));
    // A failure is told at once, and its instance is the controller's to let go.
    check(EndReason::Crashed, ["Failed", "Failed"], json!([VMI_FINALIZER, "another"]));
}

#[test]
fn a_guest_that_never_started_is_not_started_to_be_stopped() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(VMI, |vmi| vmi["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Waiting, None);
    rig.answer(|op| matches!(op, Op::Call(_, Call::Kill)), Ok(Reply::Done));
    rig.ends_unbegun();
    rig.remove(POD);
    assert_eq!(rig.phase(), "Succeeded");
}

/// It would be asked for ever: launchers are not started again.
#[test]
fn a_launcher_that_does_not_understand_its_machine_ends() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Waiting, None);
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Sync(_))), Ok(Reply::NotUnderstood));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Kill)), Ok(Reply::Done));
    rig.ends_unbegun();
    assert_eq!(rig.phase(), "Failed");
    let why = "its launcher is of another version than its node's handler";
    assert!(rig.told.iter().any(|told| told.contains(why)), "{:?}", rig.told);
}

#[test]
fn a_new_handler_finds_its_guests() {
    let record = Record {
        bound: false,
        epoch: 3,
        namespace: "ns".to_owned(),
        name: "demo".to_owned(),
        place: place(),
        started: true,
        shutdown_since_ns: None,
    };
    // The monitor answers: nothing is done to the guest.
    let mut rig = Rig::with_instance("Running");
    rig.start(vec![record.clone()]);
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Running, None);
    assert!(rig.idle());

    // It does not: after a while a new one is started, and nothing is said of the guest.
    let mut rig = Rig::with_instance("Running");
    rig.start(vec![record]);
    for _ in 0..6 {
        rig.expect(|op| matches!(op, Op::Watch(_)));
        rig.step(Input::Own(In::WatchClosed("vmi".to_owned(), "nobody listens".to_owned())));
        rig.pass(Duration::from_secs(5));
    }
    rig.answer(|op| matches!(op, Op::TakeOver(_)), Err(OpError("not yet".to_owned())));
    rig.settle();
    assert_eq!(rig.condition("Synchronized").expect("told")["status"], "False");
    rig.pass(Duration::from_secs(5));
    rig.answer(|op| matches!(op, Op::TakeOver(_)), Ok(Reply::Done));
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Running, None);
    assert_eq!(rig.phase(), "Running");
    assert!(rig.condition("Synchronized").is_none());
    assert!(rig.idle());
}

#[test]
fn a_vanished_pod_is_no_proof() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    rig.remove(POD);
    let look = |op: &Op| matches!(op, Op::LookForProcesses(_));
    rig.answer(look, Ok(Reply::Processes(true)));
    rig.settle();
    assert_eq!(rig.phase(), "Running");
    rig.pass(Duration::from_secs(6));
    rig.answer(look, Err(OpError("cannot list".to_owned())));
    rig.settle();
    assert_eq!(rig.phase(), "Running");
    rig.pass(Duration::from_secs(6));
    rig.answer(look, Ok(Reply::Processes(false)));
    assert_eq!(rig.phase(), "Failed");
}

#[test]
fn a_pod_that_its_kubelet_gives_up_without_a_word_of_its_containers_is_no_proof() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    rig.change(POD, |pod| pod["status"] = json!({"phase": "Failed", "reason": "NodeAffinity"}));
    rig.ends_with_the_processes_of(place());
}

#[test]
fn an_instance_whose_pod_nobody_knows_is_no_lost_one() {
    let mut rig = Rig::with_instance("Running");
    rig.objects.get_mut(VMI).expect("there")["status"]["activePods"] = json!({});
    rig.objects.remove(POD);
    rig.start(Vec::new());
    rig.ends_with_the_processes_of(Place { uid: "vmi".to_owned(), ..Place::default() });
}

#[test]
fn what_was_told_with_a_write_that_failed_is_not_told_again() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    // Somebody's change is not seen before the write that it refuses.
    rig.revision += 1;
    let unseen = json!(rig.revision.to_string());
    rig.objects.get_mut(VMI).expect("there")["metadata"]["resourceVersion"] = unseen;
    rig.domain(Phase::Running, None);
    assert_eq!(rig.phase(), "Running");
    // The API server is away for a while.
    rig.deaf = true;
    rig.domain(Phase::Ended, Some(EndReason::GuestShutdown));
    rig.pass(Duration::from_secs(5));
    rig.deaf = false;
    rig.pass(Duration::from_secs(5));
    assert_eq!(rig.phase(), "Succeeded");
    assert_eq!((rig.events.join(" ").as_str(), rig.recounted), ("Created Started Stopped Deleted", 0));
}

#[test]
fn a_pod_that_only_looks_like_the_launchers_says_nothing() {
    // It comes first in the cache, and says that its launcher has ended.
    let put = |rig: &mut Rig, path: &'static str, change: &dyn Fn(&mut Value)| {
        let mut pod = rig.objects[POD].clone();
        pod["metadata"]["name"] = json!("a");
        pod["metadata"]["uid"] = json!("other");
        pod["status"]["phase"] = json!("Failed");
        let ended = json!({"terminated": {"exitCode": 1}});
        pod["status"]["containerStatuses"] = json!([container("compute", "c9", ended)]);
        change(&mut pod);
        rig.put(path, pod);
    };
    let nobodys: &dyn Fn(&mut Value) = &|pod| pod["metadata"]["ownerReferences"] = json!([]);
    let elsewhere: &dyn Fn(&mut Value) = &|pod| pod["metadata"]["namespace"] = json!("a");
    let owned: &dyn Fn(&mut Value) = &|_| {};
    let cases = [
        ("/api/v1/namespaces/ns/pods/a", nobodys, false),
        ("/api/v1/namespaces/a/pods/a", elsewhere, false),
        // Whoever may make pods may also say whose they are, but not before the guest was started in its own.
        ("/api/v1/namespaces/ns/pods/a", owned, true),
    ];
    for (path, change, late) in cases {
        let mut rig = Rig::with_instance("Scheduled");
        if !late {
            put(&mut rig, path, change);
        }
        rig.start(Vec::new());
        rig.boot();
        put(&mut rig, path, change);
        rig.settle();
        assert_eq!(rig.phase(), "Running", "{path}");
    }
}

#[test]
fn the_kubelets_word_is_proof() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.boot();
    rig.change(POD, |pod| {
        pod["status"]["containerStatuses"] =
            json!([container("compute", "c1", json!({"terminated": {"exitCode": 137}}))]);
        pod["status"]["phase"] = json!("Failed");
    });
    assert_eq!(rig.phase(), "Failed");
}

#[test]
fn trouble_is_told_and_tried_again() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Waiting, None);
    let prepare = |op: &Op| matches!(op, Op::Prepare(_));
    rig.answer(prepare, Err(OpError("2 files found in /disk".to_owned())));
    rig.settle();
    assert_eq!(rig.condition("Synchronized").expect("told")["message"], "2 files found in /disk");
    assert!(rig.events.contains(&"SyncFailed".to_owned()));
    assert!(rig.idle());
    rig.pass(Duration::from_secs(1));
    rig.answer(prepare, Ok(Reply::Prepared(Box::default())));
    rig.settle();
    assert!(rig.condition("Synchronized").is_none());
}

/// Its launcher is ended by whatever tells first, to whichever handler, and that is no success.
#[test]
fn a_guest_whose_disk_is_gone_before_it_starts_has_failed() {
    for (launcher_tells, restarts) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut rig = Rig::with_instance("Scheduled");
        rig.start(Vec::new());
        rig.expect(|op| matches!(op, Op::Watch(_)));
        let disk_ended = |compute: Value| {
            json!([
                container("compute", "c1", compute),
                container("volumeroot", "c2", json!({"terminated": {"exitCode": 1}}))
            ])
        };
        rig.change(POD, |pod| pod["status"]["containerStatuses"] = disk_ended(json!({"running": {}})));
        rig.domain(Phase::Waiting, None);
        rig.answer(|op| matches!(op, Op::Call(_, Call::Kill)), Ok(Reply::Done));
        rig.settle();
        assert_eq!(rig.phase(), "Scheduled");
        let why = "container volumeroot ended with exit code 1 before the guest started";
        assert_eq!(rig.condition("Synchronized").expect("told")["message"], why);
        if restarts {
            rig.restart(Vec::new());
            rig.expect(|op| matches!(op, Op::Watch(_)));
        }
        rig.told.clear();
        if launcher_tells {
            rig.ends_unbegun();
        } else {
            rig.change(POD, |pod| {
                pod["status"]["containerStatuses"] = disk_ended(json!({"terminated": {"exitCode": 0}}));
                pod["status"]["phase"] = json!("Succeeded");
            });
        }
        rig.settle();
        assert_eq!(rig.phase(), "Failed", "{launcher_tells} {restarts}");
        let told = rig.told.iter().filter(|told| told.contains(why)).count();
        assert!(told > 0, "{launcher_tells} {restarts}: {:?}", rig.told);
    }
}

#[test]
fn a_lost_write_is_written_again() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.deaf = true;
    rig.domain(Phase::Running, None);
    assert_eq!(rig.phase(), "Scheduled");
    rig.deaf = false;
    // Not at once, whatever else happens.
    rig.domain(Phase::Running, None);
    assert_eq!(rig.phase(), "Scheduled");
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.phase(), "Running");
}

#[test]
fn an_instance_elsewhere_is_left_alone() {
    let mut rig = Rig::with_instance("Running");
    rig.change(VMI, |vmi| vmi["status"]["nodeName"] = json!("n2"));
    rig.start(Vec::new());
    assert!(rig.idle());
}

#[test]
fn a_node_is_schedulable_when_its_devices_are_on_offer() {
    let mut rig = Rig::new();
    rig.start(Vec::new());
    let label = |rig: &Rig| rig.objects[NODE]["metadata"]["labels"]["kubevirt.io/schedulable"].clone();
    assert_eq!(label(&rig), "false");
    rig.settle();
    let device = |rig: &mut Rig, name: &str, present, registered| {
        let resource = format!("devices.kubevirt.io/{name}");
        rig.step(Input::Own(In::Device { resource, present, registered }));
        rig.settle();
    };
    device(&mut rig, "kvm", true, true);
    device(&mut rig, "tun", true, false);
    device(&mut rig, "vhost-net", false, false);
    rig.change(NODE, |node| node["status"]["capacity"] = json!({"devices.kubevirt.io/kvm": "1k"}));
    assert_eq!(label(&rig), "false");
    device(&mut rig, "tun", true, true);
    assert_eq!(label(&rig), "false");
    rig.change(NODE, |node| {
        node["status"]["capacity"] = json!({"devices.kubevirt.io/kvm": "1k", "devices.kubevirt.io/tun": "1k"});
    });
    assert_eq!(label(&rig), "true");
    rig.settle();
    // A kubelet that is away for a moment changes nothing.
    device(&mut rig, "tun", true, false);
    assert_eq!(label(&rig), "true");
    // What the kubelet still lists and the machine has not any more is told, for as long as that is so.
    let lost = |rig: &Rig| rig.objects[NODE]["metadata"]["annotations"].get("kubevirt.io/lost-devices").cloned();
    assert_eq!(lost(&rig), None);
    device(&mut rig, "kvm", false, false);
    assert_eq!(lost(&rig), Some(json!("devices.kubevirt.io/kvm")));
    device(&mut rig, "kvm", true, true);
    assert_eq!(lost(&rig), None);
    // What could not be found out without it can now.
    let probe = Probe { accel: Accel::Kvm, reason: "a guest ran".to_owned() };
    rig.answer(|op| matches!(op, Op::Probe), Ok(Reply::Probed(probe)));
    rig.step(Input::Own(In::ProbeAgain));
    rig.expect(|op| matches!(op, Op::Probe));
    // The controller may have taken a silent node out; a living one is back at once.
    let before = rig.objects[NODE]["metadata"]["annotations"]["kubevirt.io/heartbeat"].clone();
    device(&mut rig, "tun", true, true);
    rig.change(NODE, |node| node["metadata"]["labels"]["kubevirt.io/schedulable"] = json!("false"));
    assert_eq!(label(&rig), "true");
    rig.settle();
    rig.pass(Duration::from_secs(73));
    assert_ne!(rig.objects[NODE]["metadata"]["annotations"]["kubevirt.io/heartbeat"], before);
    // One that cannot renew its Lease says nothing against it: the Lease may have been marked meanwhile, and two would write
    // against each other as fast as they can (the simulator, seed 1 with `--plant read-once`).
    rig.cut_off = true;
    rig.pass(Duration::from_secs(9));
    rig.change(NODE, |node| node["metadata"]["labels"]["kubevirt.io/schedulable"] = json!("false"));
    rig.settle();
    rig.pass(Duration::from_secs(73));
    assert_eq!(label(&rig), "false");
    rig.settle();
    rig.cut_off = false;
    rig.pass(Duration::from_secs(5));
    assert_eq!(label(&rig), "true");
}

#[test]
fn a_node_tells_whether_it_gives_whole_cpus_away() {
    let mut rig = Rig::new();
    rig.put(NODE, json!({"metadata": {"name": "n1", "labels": {"cpumanager": "true"}}, "status": {"capacity": {}}}));
    rig.start(Vec::new());
    let labels = |rig: &Rig| {
        ["cpumanager", "kubevirt.io/cpumanager"].map(|name| rig.objects[NODE]["metadata"]["labels"].get(name).cloned())
    };
    let both = |value: &str| [Some(json!(value)), Some(json!(value))];
    // What is not known yet stays.
    assert_eq!(labels(&rig), both("true"));
    for is_on in [false, true] {
        rig.settle();
        rig.step(Input::Own(In::CpuManager(is_on)));
        assert_eq!(labels(&rig), both(&is_on.to_string()));
    }
}
