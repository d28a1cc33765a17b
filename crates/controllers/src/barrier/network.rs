//! The controllers and what is between them and the API, one act at a time.

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_engine::{
    ApiError, ApiRequest, CallId, Core as _, Effect, Effects, Input, LeaderElector, Manager, Method, Never, Rng,
    StatusError, Time, TimerId, WatchId, WatchItem,
};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use serde_json::json;

use super::api::{Api, Path};
use super::checks::Checks;
use super::script::{self, Scope, Step};
use crate::{Config, Planted, all};

/// One in so many; 0 is never.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// Requests or replies that are lost, watches that break or expire.
    pub lost: u64,
    /// Writes that arrive when nobody waits for them any more, or once more.
    pub late: u64,
    /// How much later those arrive: at one in so many of the occasions.
    pub linger: u64,
    /// How many times likelier it is that something else happens than that a watch tells something.
    pub lag: u64,
    /// Acts at which the controllers start anew.
    pub restarts: u64,
}

impl Trouble {
    pub fn none() -> Self {
        Self { lost: 0, late: 0, linger: 1, lag: 1, restarts: 0 }
    }
}

/// A bug that is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Controllers reconcile on caches that do not show their own writes yet.
    StaleReads,
    /// Writes are made whether what they rest on is so or not.
    BaselessWrites,
    /// One of a controller's own.
    Of(Planted),
}

/// Controllers that take a silence for what it says about time. Here time passes as timers please; the simulator has them.
const TIMEKEEPERS: [&str; 2] = ["node-lifecycle-controller", "taint-eviction-controller"];
/// What is due later than this after the last change changes nothing that is looked at.
const HORIZON_S: u64 = 900;

pub struct Network {
    pub api: Api,
    core: Manager,
    fx: Effects<Never>,
    life: u64,
    rng: Rng,
    trouble: Trouble,
    plant: Option<Plant>,
    scope: Scope,
    requests: Vec<(CallId, ApiRequest)>,
    /// Writes that nobody waits for, and that may yet arrive.
    late: Vec<ApiRequest>,
    watches: BTreeMap<WatchId, (Path, usize)>,
    timers: BTreeMap<(Time, TimerId), ()>,
    checks: Checks,
    quiet_since: Time,
    /// How often something was asked for, or came of it, that is about the Lease alone.
    renewals: usize,
}

impl Network {
    pub fn new(rng: &Rng, trouble: Trouble, plant: Option<Plant>, scope: Scope) -> Self {
        let mut network = Self {
            api: Api { now: Time::from_unix_s(1_790_000_000), ..Api::default() },
            core: Manager::new("controllers", rng.fork("none")),
            fx: Effects::new(),
            life: 0,
            rng: rng.fork("network"),
            trouble,
            plant,
            scope,
            requests: Vec::new(),
            late: Vec::new(),
            watches: BTreeMap::new(),
            timers: BTreeMap::new(),
            checks: Checks::default(),
            quiet_since: Time::default(),
            renewals: 0,
        };
        script::furnish(&mut network.api);
        if scope == Scope::Everything {
            script::furnish_more(&mut network.api);
        }
        network.start();
        network
    }

    fn start(&mut self) {
        self.life += 1;
        let mut collected = vec![
            Pod::resource(),
            ReplicaSet::resource(),
            Deployment::resource(),
            StatefulSet::resource(),
            DaemonSet::resource(),
            ControllerRevision::resource(),
            Job::resource(),
            CronJob::resource(),
        ];
        if self.scope == Scope::Everything {
            let more = [
                PersistentVolumeClaim::resource(),
                ConfigMap::resource(),
                ServiceAccount::resource(),
                Secret::resource(),
            ];
            collected.extend(more);
        }
        let planted = match self.plant {
            Some(Plant::Of(bug)) => Some(bug),
            _ => None,
        };
        let config = Config { collected, ca_pem: "the CA".into(), planted, ..Config::default() };
        let controllers = all(&config).into_iter().filter(|c| !TIMEKEEPERS.contains(&c.name()));
        // Every life has the same name: that the Lease is its own says nothing about what was sent before.
        let core = Manager::new("controllers", self.rng.fork(&format!("life {}", self.life)))
            .with_all(controllers)
            .with_elector(LeaderElector::new("ns", "controllers", "the same"));
        self.core = match self.plant {
            Some(Plant::StaleReads) => core.with_planted_stale_reads(),
            Some(Plant::BaselessWrites) => core.with_planted_baseless_writes(),
            Some(Plant::Of(_)) | None => core,
        };
        // What was sent may still arrive; nobody reads the replies.
        self.late.extend(self.requests.drain(..).map(|(_, request)| request).filter(|r| r.method != Method::Get));
        self.watches.clear();
        self.timers.clear();
        self.fx = Effects::new();
        self.step(Input::Start);
    }

    fn step(&mut self, input: Input<Never>) {
        self.core.step(self.api.now, input, &mut self.fx);
        while let Some(effect) = self.fx.pop() {
            match effect {
                Effect::Api(id, request) => {
                    self.renewals += usize::from(is_of_lease(&request));
                    self.requests.push((id, request));
                }
                Effect::Watch(id, request) => {
                    let after = request.path.split("resourceVersion=").nth(1).and_then(|r| r.split('&').next());
                    let after: u64 = after.and_then(|r| r.parse().ok()).unwrap_or(0);
                    let seen = self.api.log.partition_point(|change| change.revision <= after);
                    self.watches.insert(id, (Path::read(&request.path), seen));
                }
                Effect::Unwatch(id) => drop(self.watches.remove(&id)),
                Effect::Timer(id, at) => drop(self.timers.insert((at, id), ())),
                Effect::Exit(reason) => panic!("the controllers gave up: {reason}"),
                Effect::Own(never) => match never {},
            }
        }
    }

    /// A person does something.
    pub fn person(&mut self, step: &Step) {
        step.carry_out(&mut self.api);
    }
    /// Nothing fails from now on; what is late comes now.
    pub fn heal(&mut self) {
        self.trouble = Trouble::none();
        self.api.silent = false;
        while let Some(request) = self.late.pop() {
            drop(self.api.serve(&request));
        }
    }
    /// Whether all bounds are kept so far.
    pub fn held(&mut self) -> Result<(), String> {
        if self.checks.seen() < self.api.log.len() {
            self.quiet_since = self.api.now;
        }
        self.checks.look(&self.api)
    }

    /// One act, drawn by chance.
    pub fn act(&mut self) {
        // Another server is away for a while, now and then.
        if self.scope == Scope::Everything && self.rng.one_in(8 * self.trouble.lost) {
            self.api.silent = !self.api.silent;
        }
        if self.rng.one_in(self.trouble.restarts) {
            return self.start();
        }
        match self.rng.below(5 + 3 * self.trouble.lag) {
            0 => _ = self.fire(),
            1 => script::node_acts(&mut self.api, &mut self.rng),
            2 if !self.late.is_empty() && self.rng.one_in(self.trouble.linger) => {
                let n = self.pick(self.late.len());
                drop(self.api.serve(&self.late.swap_remove(n)));
            }
            n if n < 5 => _ = self.tell() || self.deliver(),
            _ => _ = self.deliver() || self.tell(),
        }
    }

    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.rng.below(len as u64)).unwrap_or(0)
    }

    /// A timer fires, and time is what it says.
    fn fire(&mut self) -> bool {
        let Some(((at, id), ())) = self.timers.pop_first() else { return false };
        self.api.now = self.api.now.max(at);
        self.step(Input::Timer(id));
        true
    }

    /// A request arrives, or does not.
    fn deliver(&mut self) -> bool {
        if self.requests.is_empty() {
            return false;
        }
        let n = self.pick(self.requests.len());
        let (id, request) = self.requests.swap_remove(n);
        let lost = || Err(ApiError::Transport("no reply".into()));
        let writes = request.method != Method::Get;
        self.renewals += usize::from(is_of_lease(&request));
        let result = if self.rng.one_in(self.trouble.lost) {
            if self.rng.one_in(2) {
                drop(self.api.serve(&request));
            }
            lost()
        } else if writes && self.rng.one_in(self.trouble.late) {
            self.late.push(request.clone());
            if self.rng.one_in(2) { self.api.serve(&request) } else { lost() }
        } else {
            self.api.serve(&request)
        };
        self.step(Input::Api { id, result });
        true
    }

    /// A watch tells of the next change of its kind, or ends.
    fn tell(&mut self) -> bool {
        let behind: Vec<WatchId> =
            self.watches.iter().filter(|(_, (_, at))| *at < self.api.log.len()).map(|(id, _)| *id).collect();
        if behind.is_empty() {
            return false;
        }
        let id = behind[self.pick(behind.len())];
        if self.rng.one_in(self.trouble.lost) {
            self.watches.remove(&id);
            let expired = StatusError { code: 410, reason: "Expired".into(), ..StatusError::default() };
            let error = self.rng.one_in(2).then(|| ApiError::Status(Box::new(expired)));
            self.step(Input::Watch { id, item: WatchItem::Closed(error) });
            return true;
        }
        let Some((of, at)) = self.watches.get_mut(&id) else { return false };
        let next = self.api.log.iter().skip(*at).position(|change| of.has(&change.path));
        // Where nothing of its kind is left, it is told how far all are.
        let (kind, object) = match next {
            Some(next) => {
                *at += next + 1;
                let change = &self.api.log[*at - 1];
                (change.kind, change.object.clone())
            }
            None => {
                *at = self.api.log.len();
                ("BOOKMARK", json!({"metadata": {"resourceVersion": self.api.revision.to_string()}}))
            }
        };
        let event = Bytes::from(json!({"type": kind, "object": object}).to_string());
        self.step(Input::Watch { id, item: WatchItem::Event(event) });
        true
    }

    /// Lets everything happen that is still to happen, until nothing changes any more. That the leader leads on is no act.
    pub fn settle(&mut self) -> Result<(), String> {
        let (mut acts, mut turns) = (0_usize, 0_usize);
        while acts < 60_000 {
            let renewals = self.renewals;
            // Time passes however much there is to do: a cache that waits for a moment to be read again is not to wait for ever,
            // while what others do about what it shows goes on and on.
            turns += 1;
            let busy = if turns.is_multiple_of(64) { self.fire() } else { self.deliver() || self.tell() };
            if !busy && !script::all_nodes_act(&mut self.api) {
                let due = self.timers.first_key_value().map(|((at, _), ())| *at);
                if due.is_none_or(|at| at.since(self.quiet_since).as_secs() > HORIZON_S) || !self.fire() {
                    return Ok(());
                }
            }
            acts += usize::from(self.renewals == renewals);
            self.held()?;
        }
        let last: Vec<_> = self.api.log.iter().rev().take(12).map(|c| format!("{} {:?}", c.kind, c.path)).collect();
        Err(format!("it does not come to rest; what changed last, the newest first: {}", last.join(", ")))
    }
}

fn is_of_lease(request: &ApiRequest) -> bool {
    request.path.contains("/leases")
}
