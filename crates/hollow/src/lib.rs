//! Nodes whose runtime only pretends: what the control plane sees of a node, without a node.
//!
//! One core plays all kubelets. Each registers its Node, renews its Lease, marks pods that are bound to it Running with an
//! address, and removes those that are being deleted. Measures of the control plane run against these, and so do tests of
//! controllers that need pods to become ready. (Upstream's kubemark has hollow nodes of the same kind.)
//!
//! Nodes can be made to look at what the control plane says of them ([`Config::attentive`]): then they wait for their pods'
//! volumes, and say that they are ready when it was forgotten.
//!
//! A pod can ask to end by itself: see [`EXIT_CODE`] and [`EXIT_AFTER_S`]. For virtual machines there are handlers of the same
//! kind: [`HollowHandlers`].
//!
//! ```text
//!   pod bound here ──start_after──▶ Running ──READY_AFTER_S──▶ Ready ──EXIT_AFTER_S──▶ Succeeded | Failed
//!        │                               │ deletionTimestamp
//!        └───────────────────────────────┴──stop_after──▶ deleted with grace 0, by UID
//! ```

mod handlers;
mod node;
mod pod;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, ContentType, Core, DeleteOptions, Delta, Effects, Informer, Input, Key,
    Never, Rng, Selector, Time, TimerId,
};
use carrack_types::pod::forget_what_nodes_do;
use carrack_types::resource::{Kind as _, Object as _, PartialObject};
use carrack_types::volume::Users;
use k8s_openapi::api::core::v1::{Node, Pod};

pub use handlers::HollowHandlers;
pub use pod::{EXIT_AFTER_S, EXIT_CODE, READY_AFTER_S};
use volumes::Volumes;

/// What the hollow nodes are like.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many there are.
    pub nodes: usize,
    /// What their names begin with; a number follows.
    pub prefix: String,
    /// Labels of each besides those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Allocatable amounts of each, in the API's text form.
    pub allocatable: BTreeMap<String, String>,
    /// How often a Lease is renewed.
    pub lease_period: Duration,
    /// How long a pod takes from being bound to running.
    pub start_after: Duration,
    /// How long a pod takes from being asked to end to being gone.
    pub stop_after: Duration,
    /// Whether nodes read what is said of them: which volumes are attached, and whether they are held for ready. Without
    /// it they read pods alone.
    pub attentive: bool,
}

impl Default for Config {
    fn default() -> Self {
        let amounts = [("cpu", "64"), ("memory", "256Gi"), ("ephemeral-storage", "1Ti"), ("pods", "250")];
        Self {
            nodes: 1,
            prefix: "hollow-".into(),
            labels: BTreeMap::new(),
            allocatable: amounts.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            lease_period: Duration::from_secs(10),
            start_after: Duration::ZERO,
            stop_after: Duration::ZERO,
            attentive: false,
        }
    }
}

impl Config {
    /// The name of the node of a number.
    #[must_use]
    pub fn name(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }
}

/// How many objects these nodes keep as values: what is under way.
const MOST_OPEN: usize = 256;

/// How long to wait before doing again what failed.
const AGAIN: Duration = Duration::from_secs(1);

/// What a call was for.
#[derive(Clone, Debug)]
enum Call {
    Register(usize),
    Renew(usize),
    /// A pod, and the resourceVersion that was acted on.
    Pod(Key, String),
    /// A node's report of the volumes that it uses.
    Report(usize, Users),
    /// A node's word that it is ready.
    Ready(usize),
}

/// What a timer is for.
#[derive(Clone, Debug)]
enum Alarm {
    Register(usize),
    Renew(usize),
    Pod(Key),
    /// A node's report or word could not be given.
    Attend(usize),
}

/// The kubelets of all hollow nodes.
pub struct HollowNodes {
    config: Config,
    names: BTreeMap<String, usize>,
    /// Nodes that do nothing any more, as if their power were cut.
    dead: BTreeSet<usize>,
    pods: Informer<Pod>,
    calls: BTreeMap<CallId, Call>,
    alarms: BTreeMap<TimerId, Alarm>,
    /// Pods with a call or an alarm under way.
    busy: BTreeSet<Key>,
    /// Addresses given so far.
    addresses: u32,
    /// Where nodes are attentive.
    volumes: Option<Volumes>,
    /// Pods that wait for their volumes.
    waiting: BTreeSet<Key>,
    /// Nodes with a report, and nodes with a word under way.
    reporting: BTreeSet<usize>,
    saying: BTreeSet<usize>,
    /// Nodes whose report failed: they wait before they try again, whatever else they hear.
    hushed: BTreeSet<usize>,
}

impl HollowNodes {
    /// Nodes that have not started.
    #[must_use]
    pub fn new(config: Config, rng: &Rng) -> Self {
        Self {
            names: (0..config.nodes).map(|n| (config.name(n), n)).collect(),
            dead: BTreeSet::new(),
            pods: Informer::new(Pod::resource(), Selector::all(), rng.fork("pods"))
                .trimmed_by(forget_what_nodes_do)
                .packed_beyond(MOST_OPEN),
            volumes: config.attentive.then(|| Volumes::new(rng)),
            waiting: BTreeSet::new(),
            reporting: BTreeSet::new(),
            saying: BTreeSet::new(),
            hushed: BTreeSet::new(),
            config,
            calls: BTreeMap::new(),
            alarms: BTreeMap::new(),
            busy: BTreeSet::new(),
            addresses: 0,
        }
    }

    /// Cuts the power of a node: it renews no Lease and touches no pod any more.
    pub fn kill(&mut self, number: usize) {
        self.dead.insert(number);
        if let Some(volumes) = &mut self.volumes {
            volumes.forget(&self.config.name(number));
        }
    }

    /// Gives a node its power back. It registers again; what ran on it before runs.
    pub fn revive(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        if self.dead.remove(&number) {
            self.register(now, number, fx);
            let name = self.config.name(number);
            if let Some(volumes) = &mut self.volumes {
                volumes.forget(&name);
            }
            let here = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(&*name);
            let keys: Vec<Key> = self.pods.cache().iter().filter(|p| here(p)).map(|p| Key::of(p.as_ref())).collect();
            for key in keys {
                self.look_at(now, &key, fx);
            }
        }
    }

    /// The pods as last seen.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.cache().iter().map(std::convert::AsRef::as_ref)
    }

    fn register(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        let node = node::node(&self.config, number, now);
        self.calls.insert(fx.api(ApiRequest::create(&node)), Call::Register(number));
    }

    fn renew(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        let request = node::renewal(node::LEASES, &self.config.name(number), now);
        self.calls.insert(fx.api(request), Call::Renew(number));
    }

    fn alarm(&mut self, at: Time, alarm: Alarm, fx: &mut Effects<Never>) {
        self.alarms.insert(fx.timer(at), alarm);
    }

    /// Does what is due for a pod, or waits for it.
    fn look_at(&mut self, now: Time, key: &Key, fx: &mut Effects<Never>) {
        let Some(pod) = self.pods.cache().get_key(key).cloned() else { return };
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        let Some(number) = self.names.get(node).copied().filter(|n| !self.dead.contains(n)) else { return };
        if self.busy.contains(key) {
            return;
        }
        let Some((due, what)) = self.due(&pod, number) else {
            // It is said to be ready once its node is taken for ready again.
            if self.volumes.is_some() && pod::is_misjudged(&pod) {
                self.waiting.insert(key.clone());
            }
            return;
        };
        self.busy.insert(key.clone());
        if due > now {
            self.alarm(due, Alarm::Pod(key.clone()), fx);
            return;
        }
        if what == pod::Due::Run && !self.mounts(&pod, number) {
            self.busy.remove(key);
            self.waiting.insert(key.clone());
            return;
        }
        self.waiting.remove(key);
        let request = match what {
            pod::Due::Remove => {
                let options = DeleteOptions {
                    uid: Some(pod.uid().to_owned()),
                    grace_period_s: Some(0),
                    ..DeleteOptions::default()
                };
                ApiRequest::delete(&Pod::resource(), &key.namespace, &key.name, &options)
            }
            pod::Due::Run => {
                self.addresses = self.addresses.wrapping_add(1);
                status(key, &pod::running(&pod, &node::address(number), self.addresses, now))
            }
            pod::Due::End => status(key, &pod::ended(&pod, now)),
        };
        self.calls.insert(fx.api(request), Call::Pod(key.clone(), revision_of(&pod)));
    }

    /// What is to be done with a pod, and when.
    fn due(&self, pod: &Pod, number: usize) -> Option<(Time, pod::Due)> {
        pod::due(pod, &self.config).or_else(|| {
            // Somebody took it for not ready while its node was not heard.
            let node = self.volumes.as_ref()?.is_ready(&self.config.name(number))?;
            (node && pod::is_misjudged(pod)).then(|| (Time::default(), pod::Due::Run))
        })
    }

    /// Whether a pod has what it needs to run.
    fn mounts(&mut self, pod: &Pod, number: usize) -> bool {
        let name = self.config.name(number);
        volumes::claims(pod).next().is_none() || self.volumes.as_mut().is_none_or(|v| v.mount(pod, &name))
    }

    /// Looks at what is said of the nodes: pods may go on, and nodes may have something to say.
    fn attend(&mut self, now: Time, fx: &mut Effects<Never>) {
        if self.volumes.is_none() {
            return;
        }
        for key in std::mem::take(&mut self.waiting) {
            self.look_at(now, &key, fx);
        }
        for number in 0..self.config.nodes {
            self.attend_to(now, number, fx);
        }
    }

    fn attend_to(&mut self, now: Time, number: usize, fx: &mut Effects<Never>) {
        let Some(volumes) = self.volumes.as_mut().filter(|_| self.pods.synced() && !self.dead.contains(&number)) else {
            return;
        };
        let name = self.config.name(number);
        let here = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(&*name)
                && volumes::claims(pod).next().is_some()
                && !pod::has_ended(pod)
        };
        let pods: Vec<&Pod> = self.pods.cache().iter().map(AsRef::as_ref).filter(here).collect();
        for pod in pods.iter().filter(|p| pod::runs(p)) {
            volumes.found(pod, &name);
        }
        if !self.reporting.contains(&number)
            && !self.hushed.contains(&number)
            && let Some(report) = volumes.report(&name, pods.into_iter())
        {
            self.reporting.insert(number);
            self.calls.insert(fx.api(volumes.request(&name, &report)), Call::Report(number, report));
        }
        if volumes.is_ready(&name) == Some(false) && self.saying.insert(number) {
            let request = node::say_ready(&self.config, number, now);
            self.calls.insert(fx.api(request), Call::Ready(number));
        }
    }

    fn answered(&mut self, now: Time, call: Call, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<Never>) {
        let error = result.as_ref().err();
        match call {
            Call::Report(number, report) => {
                self.reporting.remove(&number);
                let revision =
                    result.as_ref().ok().and_then(|r| r.object::<PartialObject>().ok()).map(|o| o.revision());
                if let Some(volumes) = &mut self.volumes {
                    volumes.reported(&self.config.name(number), report, revision);
                }
                if revision.is_none() {
                    self.hushed.insert(number);
                    self.alarm(now + AGAIN, Alarm::Attend(number), fx);
                }
            }
            Call::Ready(number) => {
                // If it is not taken for ready by then, it says so again.
                self.alarm(now + AGAIN, Alarm::Attend(number), fx);
            }
            Call::Register(number) => match error {
                Some(e) if !e.is_already_exists() => {
                    tracing::warn!(number, error = %e, "a hollow node could not be registered; will try again");
                    self.alarm(now + AGAIN, Alarm::Register(number), fx);
                }
                _ => self.renew(now, number, fx),
            },
            Call::Renew(number) => match error {
                Some(e) if e.is_not_found() => {
                    let duration = self.config.lease_period * 4;
                    let lease = node::lease(node::LEASES, self.config.name(number), duration, now);
                    self.calls.insert(fx.api(ApiRequest::create(&lease)), Call::Renew(number));
                }
                _ => self.alarm(now + self.config.lease_period, Alarm::Renew(number), fx),
            },
            Call::Pod(key, acted_on) => match error {
                Some(e) if !e.is_not_found() => self.alarm(now + AGAIN, Alarm::Pod(key), fx),
                _ => {
                    self.busy.remove(&key);
                    // What the watch has not told yet it will tell; what it has told already was passed over.
                    if self.pods.cache().get_key(&key).is_some_and(|pod| revision_of(pod) != acted_on) {
                        self.look_at(now, &key, fx);
                    }
                }
            },
        }
    }

    fn rang(&mut self, now: Time, alarm: Alarm, fx: &mut Effects<Never>) {
        match alarm {
            Alarm::Register(number) | Alarm::Renew(number) if self.dead.contains(&number) => {}
            Alarm::Attend(number) => {
                self.saying.remove(&number);
                self.hushed.remove(&number);
                self.attend_to(now, number, fx);
            }
            Alarm::Register(number) => self.register(now, number, fx),
            Alarm::Renew(number) => self.renew(now, number, fx),
            Alarm::Pod(key) => {
                self.busy.remove(&key);
                self.look_at(now, &key, fx);
            }
        }
    }
}

fn revision_of(pod: &Pod) -> String {
    pod.metadata.resource_version.clone().unwrap_or_default()
}

/// A write of a pod's status. It rests on the pod's UID and resourceVersion.
fn status(key: &Key, patch: &serde_json::Value) -> ApiRequest {
    ApiRequest::patch(&Pod::resource(), &key.namespace, &key.name, "status", ContentType::MergePatch, patch)
}

impl Core for HollowNodes {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        if let Some(deltas) = self.pods.step(now, &input, fx) {
            for delta in deltas {
                let gone = matches!(delta, Delta::Removed(_));
                if let Some(volumes) = self.volumes.as_mut().filter(|_| gone || pod::has_ended(delta.object())) {
                    volumes.unmount(delta.object().uid());
                }
                if !gone {
                    self.look_at(now, &Key::of(delta.object().as_ref()), fx);
                }
            }
            return self.attend(now, fx);
        }
        if self.volumes.as_mut().is_some_and(|v| v.step(now, &input, fx)) {
            return self.attend(now, fx);
        }
        match input {
            Input::Start => {
                self.pods.start(fx);
                if let Some(volumes) = &mut self.volumes {
                    volumes.start(fx);
                }
                for number in 0..self.config.nodes {
                    self.register(now, number, fx);
                }
            }
            Input::Api { id, result } => {
                if let Some(call) = self.calls.remove(&id) {
                    self.answered(now, call, &result, fx);
                }
            }
            Input::Timer(id) => {
                if let Some(alarm) = self.alarms.remove(&id) {
                    self.rang(now, alarm, fx);
                }
            }
            Input::Watch { .. } => {}
            Input::Own(never) => match never {},
        }
    }
}

/// The Node that a hollow kubelet registers, for tests that put one in by hand.
#[must_use]
pub fn hollow_node(config: &Config, number: usize, now: Time) -> Node {
    node::node(config, number, now)
}
