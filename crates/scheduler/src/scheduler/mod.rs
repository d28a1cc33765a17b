//! The core: hears of pods, nodes and what else matters, takes pods from the queue, and sees each through to its binding.
//!
//! A pod in flight has a row in the queue and, once a node was chosen, a [`Flight`] here. Both end together.

mod ask;
mod attempt;
mod bind;
mod news;
mod preempt;
mod watch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_engine::{
    ApiError, ApiResponse, CallId, Core, Effects, EventRecorder, Input, LeaderElector, Rng, Time, TimerId,
};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use crate::extender::{Answer, Ask};
use crate::{Cluster, Config, Decider, Metrics, Profile, SchedulingQueue};

use ask::Asking;
use bind::Flight;
use watch::Informers;

/// So many pods may be on their way to their binding at once; the others wait in the queue, where who comes first is
/// still open.
const MOST_IN_FLIGHT: usize = 1000;

enum Call {
    /// Binds a pod, or reads one whose binding's outcome is unknown, or prepares its claims.
    Flight(Arc<str>, bind::Step),
    /// Tells what a pod waits for.
    Condition { pod: String },
    /// Marks a victim before it goes.
    Mark(Box<preempt::Victim>),
    /// Deletes a victim.
    Evict(Box<preempt::Victim>),
    /// Takes back a nomination.
    Renounce { pod: String },
}

/// The scheduler.
pub struct Scheduler {
    profiles: BTreeMap<String, Arc<Profile>>,
    config: Config,
    informers: Informers,
    queue: SchedulingQueue,
    decider: Decider,
    flights: BTreeMap<Arc<str>, Flight>,
    calls: BTreeMap<CallId, Call>,
    /// Bindings that extenders were asked for.
    binds: BTreeMap<u64, Arc<str>>,
    timers: BTreeMap<TimerId, Arc<str>>,
    asking: Option<Asking>,
    /// Pods in flight that wait for their turn with the extenders.
    to_ask: BTreeSet<(Reverse<i32>, Time, Arc<str>)>,
    /// Victims whose deletion was asked for and not yet seen, with the pod that they make room for.
    doomed: BTreeMap<Arc<str>, Arc<str>>,
    metrics: Metrics,
    recorder: EventRecorder,
    elector: Option<LeaderElector>,
    wake: Option<(TimerId, Time)>,
    rng: Rng,
    planted: Option<preempt::StoredNominations>,
}

impl Scheduler {
    /// A scheduler with this configuration.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let profiles =
            config.profiles.iter().map(|p| (p.scheduler_name.clone(), Arc::new(p.clone()))).collect::<BTreeMap<_, _>>();
        Self {
            profiles,
            informers: Informers::new(&rng),
            queue: SchedulingQueue::new(config.patience),
            decider: Decider::new(Cluster::default()),
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            binds: BTreeMap::new(),
            timers: BTreeMap::new(),
            asking: None,
            to_ask: BTreeSet::new(),
            doomed: BTreeMap::new(),
            metrics: Metrics::default(),
            recorder: EventRecorder::new("default-scheduler", rng.fork("events")),
            elector: None,
            wake: None,
            rng,
            config,
            planted: None,
        }
    }
    /// Schedules only while this elector leads.
    #[must_use]
    pub fn with_elector(mut self, elector: LeaderElector) -> Self {
        self.elector = Some(elector);
        self
    }
    /// Puts back the bug of the fourth incident: nominations are stored beside the queue, updates of pods in flight put
    /// them back into it, and preemption does not ask extenders. The simulator must find it.
    #[must_use]
    pub fn with_planted_stored_nominations(mut self) -> Self {
        self.planted = Some(preempt::StoredNominations::default());
        self
    }
    /// What it counts on the nodes, for the simulator's invariants.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.decider.cluster
    }
    /// What waits, for the simulator's invariants.
    #[must_use]
    pub fn queue(&self) -> &SchedulingQueue {
        &self.queue
    }
    /// Nominations that are in force: UID and node.
    pub fn nominations(&self) -> impl Iterator<Item = (&str, &str)> {
        let derived = self.queue.nominations().map(|(pod, node)| (&*pod.uid, node));
        derived.chain(self.planted.iter().flat_map(preempt::StoredNominations::all))
    }
    /// Its metrics, in the text form that Prometheus reads.
    #[must_use]
    pub fn metrics(&self) -> String {
        let cluster = &self.decider.cluster;
        let assumed = cluster.assumed().count();
        self.metrics.text(self.queue.counts(), &self.queue.refused(), cluster.len(), cluster.pods(), assumed)
    }
    /// What was counted.
    #[must_use]
    pub fn counted(&self) -> &Metrics {
        &self.metrics
    }

    fn profile(&self, pod: &Pod) -> Option<&Arc<Profile>> {
        let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
        self.profiles.get(name.filter(|n| !n.is_empty()).unwrap_or(crate::DEFAULT_SCHEDULER_NAME))
    }

    fn schedule(&mut self, now: Time, fx: &mut Effects<Ask>) {
        if !self.informers.synced() || self.elector.as_ref().is_some_and(|e| !e.leading(now)) {
            return;
        }
        loop {
            let waiting = if self.asking.is_none() { self.to_ask.pop_first() } else { None };
            let row = match waiting {
                // It may have gone while it waited.
                Some((_, _, uid)) => match self.queue.get(&uid) {
                    Some(row) => row.clone(),
                    None => continue,
                },
                None if self.flights.len() >= MOST_IN_FLIGHT => break,
                None => match self.queue.pop(now) {
                    Some(row) => row,
                    None => break,
                },
            };
            self.attempt(now, row, fx);
        }
        if let Some(due) = self.queue.next_due()
            && self.wake.is_none_or(|(_, at)| due < at || at <= now)
        {
            self.wake = Some((fx.timer(due), due));
        }
    }

    fn answered(&mut self, now: Time, call: Call, result: Result<ApiResponse, ApiError>, fx: &mut Effects<Ask>) {
        match call {
            Call::Flight(uid, step) => self.flight_answered(now, &uid, step, result, fx),
            Call::Condition { pod } | Call::Renounce { pod } => {
                if let Err(error) = result
                    && !error.is_not_found()
                {
                    tracing::warn!(pod, %error, "the pod's status could not be written");
                }
            }
            Call::Mark(victim) => self.marked(now, *victim, result, fx),
            Call::Evict(victim) => self.evicted(now, *victim, result, fx),
        }
    }

    /// Nodes whose nominations changed count as changed.
    fn touch_renominated(&mut self) {
        for name in self.queue.renominated() {
            if let Some(id) = self.decider.cluster.find(&name) {
                self.decider.cluster.touch(id);
            }
        }
    }
}

impl Core for Scheduler {
    type In = Answer;
    type Out = Ask;

    fn step(&mut self, now: Time, input: Input<Answer>, fx: &mut Effects<Ask>) {
        if matches!(input, Input::Start) {
            self.informers.start(fx);
            if let Some(elector) = &mut self.elector {
                elector.start(now, fx);
            }
        } else if let Some(news) = self.informers.step(now, &input, fx) {
            self.heard(now, news, fx);
        } else if let Input::Timer(id) = &input
            && let Some(uid) = self.timers.remove(id)
        {
            self.flight_due(now, &uid, *id, fx);
        } else if !self.recorder.step(now, &input, fx)
            && !self.elector.as_mut().is_some_and(|e| e.step(now, &input, fx))
        {
            match input {
                Input::Api { id, result } => {
                    if let Some(call) = self.calls.remove(&id) {
                        self.answered(now, call, result, fx);
                    }
                }
                Input::Own(answer) => self.extender_answered(now, answer, fx),
                _ => {}
            }
        }
        if self.elector.as_ref().is_some_and(|e| e.lost(now)) {
            fx.exit("scheduler: the leader lease was lost");
            return;
        }
        self.schedule(now, fx);
    }
}

fn path_of(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}
