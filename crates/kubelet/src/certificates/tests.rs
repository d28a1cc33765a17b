//! The keeper against an API server that loses requests and replies, people who are slow, deny and clean up, and
//! crashes at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use carrack_auth::pki::{CertificateFacts, Sans};
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, Core, Effect, Effects, Input, Method, Rng, StatusError, Time, WatchId, WatchItem,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use serde_json::{Value, json};

use super::keeper::{Verdict, judge, rotation_window};
use super::{Asked, Done, Held, Keeper, Task, Unkept, Wanted};

const BEGIN_S: i64 = 1_800_000_000;
const LIFE_S: i64 = 24 * 3600;

fn facts(wanted: &Wanted, from_s: i64, life_s: i64) -> CertificateFacts {
    CertificateFacts { subject: wanted.subject.clone(), not_before_unix_s: from_s, not_after_unix_s: from_s + life_s }
}

#[test]
fn certificates_are_exchanged_late_in_their_life() {
    let wanted = Wanted::client("n1");
    for (life_s, from_s, to_s) in [(1000, 700, 900), (10, 7, 9), (365 * 24 * 3600, 22_075_200, 28_382_400), (0, 0, 0)] {
        let (from, to) = rotation_window(&facts(&wanted, BEGIN_S, life_s));
        assert_eq!((from.unix_s() - BEGIN_S, to.unix_s() - BEGIN_S), (from_s, to_s), "{life_s}");
    }
}

#[test]
fn requests_are_judged() {
    let wanted = Wanted::serving("n1", Sans::default().with_name("n1"));
    let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "M"}]);
    let certificate = STANDARD.encode("pem");
    let wait = || Verdict::Wait;
    let hopeless = |why: &str| Verdict::Hopeless(why.into());
    for (signer, status, want) in [
        ("kubernetes.io/kubelet-serving", json!({}), wait()),
        ("kubernetes.io/kubelet-serving", json!({"conditions": condition("Approved")}), wait()),
        ("kubernetes.io/kubelet-serving", json!({"certificate": certificate}), wait()),
        (
            "kubernetes.io/kubelet-serving",
            json!({"conditions": condition("Approved"), "certificate": certificate}),
            Verdict::Signed("pem".into()),
        ),
        (
            "kubernetes.io/kubelet-serving",
            json!({"conditions": condition("Denied"), "certificate": certificate}),
            hopeless("denied, reason: R, message: M"),
        ),
        (
            "kubernetes.io/kubelet-serving",
            json!({"conditions": condition("Failed")}),
            hopeless("failed, reason: R, message: M"),
        ),
        ("example.com/x", json!({}), hopeless("its name is taken by a request to example.com/x")),
    ] {
        let request = json!({"metadata": {"name": "csr-1"}, "status": status,
            "spec": {"request": "", "signerName": signer, "usages": []}});
        let shown: CertificateSigningRequest = carrack_types::json::from_value(request).unwrap();
        assert_eq!(judge(&wanted, &shown), want, "{signer} {status}");
    }
}

/// What survives a crash of the kubelet.
#[derive(Default)]
struct Disk {
    current: Option<CertificateFacts>,
    key: Option<String>,
}

struct World {
    now: Time,
    rng: Rng,
    wanted: Wanted,
    disk: Disk,
    requests: BTreeMap<String, Value>,
    revision: u64,
    watches: Vec<(WatchId, String)>,
    keeper: Keeper,
    fx: Effects<Task>,
    queue: BTreeMap<(Time, u64), Input<Done>>,
    sequence: u64,
    faults: bool,
    keys: u64,
    refused: u64,
    crashes: u64,
    exchanged: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let rng = Rng::new(seed);
        let wanted = Wanted::client("n1");
        Self {
            now: Time::from_unix_s(BEGIN_S),
            keeper: Keeper::new(wanted.clone(), rng.fork("keeper")),
            wanted,
            rng,
            disk: Disk::default(),
            requests: BTreeMap::new(),
            revision: 1,
            watches: Vec::new(),
            fx: Effects::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            faults: true,
            keys: 0,
            refused: 0,
            crashes: 0,
            exchanged: 0,
        }
    }

    fn later(&mut self, input: Input<Done>) {
        let delay = Duration::from_millis(1 + self.rng.below(2000));
        self.at(self.now + delay, input);
    }

    fn at(&mut self, at: Time, input: Input<Done>) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), input);
    }

    fn unlucky(&mut self, one_in: u64) -> bool {
        self.faults && self.rng.one_in(one_in)
    }

    fn start(&mut self) {
        self.queue.clear();
        self.watches.clear();
        let rng = self.rng.fork(&format!("life {}", self.crashes));
        self.keeper = Keeper::new(self.wanted.clone(), rng);
        self.fx = Effects::new();
        self.step(Input::Start);
    }

    fn step(&mut self, input: Input<Done>) {
        self.keeper.step(self.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => {
                    let lost = self.unlucky(6);
                    let result = if lost { Err(ApiError::Transport("lost".into())) } else { self.answer(&request) };
                    let unheard = self.unlucky(6);
                    let result = if unheard { Err(ApiError::Transport("unheard".into())) } else { result };
                    self.later(Input::Api { id, result });
                }
                Effect::Watch(id, request) => self.watches.push((id, request.path)),
                Effect::Unwatch(id) => self.watches.retain(|(other, _)| *other != id),
                Effect::Timer(id, at) => self.at(at.max(self.now), Input::Timer(id)),
                Effect::Own(task) => {
                    let done = self.carry_out(task);
                    self.later(Input::Own(done));
                }
                Effect::Exit(why) => panic!("it ended itself: {why}"),
            }
        }
    }

    fn answer(&mut self, request: &ApiRequest) -> Result<ApiResponse, ApiError> {
        let reply = |status, body: &Value| Ok(ApiResponse { status, body: serde_json::to_vec(body).unwrap().into() });
        if request.method == Method::Get {
            let items: Vec<&Value> = self.requests.values().collect();
            let list = json!({"metadata": {"resourceVersion": self.revision.to_string()}, "items": items});
            return reply(200, &list);
        }
        let mut object: Value = serde_json::from_slice(&request.body).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        if self.requests.contains_key(&name) {
            let status = StatusError { code: 409, reason: "AlreadyExists".into(), ..StatusError::default() };
            return Err(ApiError::Status(Box::new(status)));
        }
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if !self.rng.one_in(3) {
            self.sign(&mut object);
        }
        self.requests.insert(name, object.clone());
        assert_eq!(self.requests.len(), 1, "one request at a time: {:?}", self.requests.keys());
        reply(201, &object)
    }

    /// Approves and signs for the key that the request was made with; its text is the key's name here.
    fn sign(&mut self, object: &mut Value) {
        let key = STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
        let key = String::from_utf8(key).unwrap();
        // Signers give less than their usual time when their own ends.
        let life_s = if self.unlucky(20) { 0 } else { LIFE_S };
        object["status"] = json!({
            "conditions": [{"type": "Approved", "status": "True"}],
            "certificate": STANDARD.encode(format!("{key} {} {life_s}", self.now.unix_s())),
        });
    }

    /// What people and their programs do with a request that is there.
    fn attend(&mut self) {
        let Some((name, mut object)) = self.requests.pop_first() else { return };
        let decided = !object["status"].is_null();
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let kind = match self.rng.below(4) {
            // Cleaned up.
            0 if decided || self.faults => {
                self.refused += 1;
                "DELETED"
            }
            1 if !decided && self.faults => {
                self.refused += 1;
                object["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
                "MODIFIED"
            }
            2 | 3 if !decided => {
                self.sign(&mut object);
                "MODIFIED"
            }
            _ => "BOOKMARK",
        };
        for (id, _) in self.watches.clone() {
            let item = if self.unlucky(4) {
                self.watches.retain(|(other, _)| *other != id);
                WatchItem::Closed(Some(ApiError::Status(Box::new(StatusError { code: 410, ..StatusError::default() }))))
            } else {
                WatchItem::Event(json!({"type": kind, "object": object}).to_string().into())
            };
            if kind != "BOOKMARK" || matches!(item, WatchItem::Closed(_)) {
                self.later(Input::Watch { id, item });
            }
        }
        if kind != "DELETED" {
            self.requests.insert(name, object);
        }
    }

    fn carry_out(&mut self, task: Task) -> Done {
        let asked = |key: &String| Asked { fingerprint: key.clone(), request: key.clone() };
        let broken = self.unlucky(8);
        match task {
            Task::Load if broken => Done::Loaded(Err("the disk".into())),
            Task::Load => {
                Done::Loaded(Ok(Held { current: self.disk.current.clone(), asked: self.disk.key.as_ref().map(asked) }))
            }
            Task::Ask if broken => Done::Asked(Err("the disk".into())),
            Task::Ask => {
                self.keys += 1;
                let key = format!("key{}", self.keys);
                // The request before it is of no interest to anybody any more.
                self.requests.clear();
                self.disk.key = Some(key.clone());
                Done::Asked(Ok(asked(&key)))
            }
            Task::Keep(_) if broken => Done::Kept(Err(Unkept::Disk("the disk".into()))),
            Task::Keep(text) => {
                let parts: Vec<&str> = text.split(' ').collect();
                if self.disk.key.as_deref() != Some(parts[0]) {
                    return Done::Kept(Err(Unkept::Unfit("another key's".into())));
                }
                let facts = facts(&self.wanted, parts[1].parse().unwrap(), parts[2].parse().unwrap());
                self.disk.current = Some(facts.clone());
                self.disk.key = None;
                self.exchanged += 1;
                Done::Kept(Ok(facts))
            }
            Task::Drop if broken => Done::Dropped(Err("the disk".into())),
            Task::Drop => {
                self.disk.key = None;
                Done::Dropped(Ok(()))
            }
        }
    }

    fn run_until(&mut self, end: Time) {
        // People look at requests every ten minutes.
        let mut attend_at = self.now + Duration::from_secs(600);
        loop {
            let next = self.queue.first_key_value().map(|((at, _), _)| *at).filter(|at| *at < attend_at);
            self.now = self.now.max(next.unwrap_or(attend_at));
            if self.now > end {
                break;
            }
            if next.is_none() {
                attend_at = attend_at + Duration::from_secs(600);
                self.attend();
            } else if let Some((_, input)) = self.queue.pop_first() {
                if self.unlucky(50) {
                    self.crashes += 1;
                    self.start();
                } else {
                    self.step(input);
                }
            }
        }
        self.now = end;
    }
}

#[test]
fn there_is_always_a_certificate_whatever_fails() {
    for seed in 0..200 {
        let mut world = World::new(seed);
        world.start();
        let day = Duration::from_secs(LIFE_S.unsigned_abs());
        world.run_until(world.now + day * 4);
        world.faults = false;
        world.run_until(world.now + day * 2);
        let current = world.disk.current.clone().unwrap_or_else(|| panic!("seed {seed}: none"));
        assert!(current.not_after_unix_s > world.now.unix_s(), "seed {seed}: it has expired");
        // A new key is for a new certificate, or because the request before came to nothing.
        let reasons = world.exchanged + world.refused + world.crashes + 1;
        assert!(world.keys <= reasons, "seed {seed}: {} keys for {reasons} reasons", world.keys);
        assert!(world.exchanged >= 4, "seed {seed}: exchanged {} times in six days", world.exchanged);
    }
}

#[test]
fn a_key_that_was_asked_with_is_asked_with_again() {
    let wanted = Wanted::client("n1");
    let mut keeper = Keeper::new(wanted, Rng::new(1));
    let mut fx = Effects::new();
    let now = Time::from_unix_s(BEGIN_S);
    keeper.step(now, Input::Start, &mut fx);
    let asked = Asked { fingerprint: "abc".into(), request: "pem".into() };
    keeper.step(now, Input::Own(Done::Loaded(Ok(Held { current: None, asked: Some(asked) }))), &mut fx);
    assert!(matches!(fx.pop(), Some(Effect::Own(Task::Load))));
    let Some(Effect::Api(_, request)) = fx.pop() else { panic!("no request") };
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(
        body,
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "node-csr-abc"},
            "spec": {"request": STANDARD.encode("pem"), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"]},
        })
    );
}

#[test]
fn a_certificate_of_another_node_is_not_used() {
    let mut keeper = Keeper::new(Wanted::client("n1"), Rng::new(1));
    let mut fx = Effects::new();
    let now = Time::from_unix_s(BEGIN_S);
    keeper.step(now, Input::Start, &mut fx);
    let current = Some(facts(&Wanted::client("n2"), BEGIN_S, LIFE_S));
    keeper.step(now, Input::Own(Done::Loaded(Ok(Held { current, asked: None }))), &mut fx);
    assert!(matches!(fx.pop(), Some(Effect::Own(Task::Load))));
    assert!(matches!(fx.pop(), Some(Effect::Own(Task::Ask))));
}

#[test]
fn who_is_not_believed_any_more_ends() {
    for (life_s, ends) in [(10, true), (20_000, false)] {
        let wanted = Wanted::client("n1");
        let mut keeper = Keeper::new(wanted.clone(), Rng::new(1));
        let mut fx = Effects::new();
        let now = Time::from_unix_s(BEGIN_S + 19_000);
        let asked = Some(Asked { fingerprint: "abc".into(), request: "pem".into() });
        keeper.step(now, Input::Start, &mut fx);
        let held = Held { current: Some(facts(&wanted, BEGIN_S, life_s)), asked };
        keeper.step(now, Input::Own(Done::Loaded(Ok(held))), &mut fx);
        assert!(matches!(fx.pop(), Some(Effect::Own(Task::Load))));
        let Some(Effect::Api(id, _)) = fx.pop() else { panic!("no request") };
        let refusal = StatusError { code: 401, reason: "Unauthorized".into(), ..StatusError::default() };
        keeper.step(now, Input::Api { id, result: Err(ApiError::Status(Box::new(refusal))) }, &mut fx);
        assert_eq!(matches!(fx.pop(), Some(Effect::Exit(_))), ends, "{life_s}");
    }
}
