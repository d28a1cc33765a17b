//! The core: hears of pods, nodes and what else matters, takes pods from the queue, and sees each through to its binding.
//!
//! A pod in flight has a row in the queue and, once a node was chosen, a [`Flight`] here. Both end together.
//!
//! One of several schedulers leads. Who ceases to lead puts back what it has not sent yet, learns what became of the
//! rest, and goes on hearing everything, so that it can go on at once when it leads again.

mod ask;
mod attempt;
mod bind;
mod evictions;
mod news;
mod preempt;
mod told;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Core, Effects, EventRecord, EventRecorder, Input, LeaderElector, Rng,
    Time, TimerId,
};
use carrack_types::resource::Object as _;

use crate::extender::{Answer, Ask};
use crate::{Cluster, Config, Decider, Event, Metrics, Pod, Profile, SchedulingQueue, Shown, Stopwatch};

use ask::Asking;
use bind::{Flight, FlightId, Waiting};
use evictions::Evictions;
use told::Told;
use watch::Informers;

enum Call {
    /// Binds a pod, or reads one whose binding's outcome is unknown, or prepares its claims.
    Flight(FlightId, bind::Step),
    /// Tells what a pod waits for.
    Condition(Box<told::Words>),
    /// Marks a victim before it goes.
    Mark(Box<preempt::Victim>),
    /// Deletes a victim.
    Evict(Box<preempt::Victim>),
    /// Takes back a nomination.
    Renounce { pod: String },
}

impl Call {
    /// What it is by upstream's name (framework/api_calls), if it writes a pod.
    fn name(&self) -> Option<&'static str> {
        match self {
            Self::Flight(_, bind::Step::Bind) => Some("pod_binding"),
            Self::Flight(_, bind::Step::Announce | bind::Step::Fence)
            | Self::Condition(_)
            | Self::Mark(_)
            | Self::Renounce { .. } => Some("pod_status_patch"),
            Self::Flight(..) | Self::Evict(_) => None,
        }
    }
}

/// A request that has no answer yet.
struct Sent {
    call: Call,
    at: Time,
}

/// Names are numbered anew when there are so many, so many times the objects that there are, and twice what was left the last
/// time: where all are in use, that would forget nothing, and cost all that is known for each that comes. Labels that pods have alone, as
/// those of Jobs have, take a kilobyte each, so that not many are kept which nobody has any more.
const LEAST_NAMES: usize = 4000;
const NAMES_PER_OBJECT: usize = 3;

/// A bug that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A pod that could not be bound is still counted on its node.
    LeakedAssumptions,
    /// Pods that wait are not told that another one went.
    DeafQueue,
    /// It wakes for pods that are due also while it looks at none.
    Restless,
    /// What it says of a pod that waits rests on nothing, and is written however late it comes.
    LateWords,
    /// An answer to what was asked for a pod is taken for one to what is asked for it now, whichever attempt asked.
    MistakenAnswers,
    /// Pods for which a node is being made free are not told when it goes, or comes to refuse them.
    DeafNominees,
    /// Nodes that could be made free when an extender was asked are taken for such as still can when it has answered.
    StaleProposals,
}

/// How much may be under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many pods may be on their way to their binding at once; the others wait in the queue, where who comes first is
    /// still open. Those whose claims wait for a volume don't count: that may take minutes, and is no reason for others to wait.
    pub in_flight: usize,
    /// No pod is looked at while so many requests have no answer yet: each takes memory of the API server, which lets those
    /// of its own process wait for nothing. With answers within 50 ms, 256 are 5,000 pods a second.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight: 1000, calls: 256 }
    }
}

/// The scheduler.
pub struct Scheduler {
    profiles: BTreeMap<String, Arc<Profile>>,
    config: Config,
    informers: Informers,
    queue: SchedulingQueue,
    decider: Decider,
    flights: BTreeMap<Arc<str>, Flight>,
    /// How many flights there were.
    flown: u64,
    /// Those of the flights that wait for their claims to be bound.
    waiting: Waiting,
    calls: BTreeMap<CallId, Sent>,
    /// Bindings that extenders were asked for.
    binds: BTreeMap<u64, FlightId>,
    timers: BTreeMap<TimerId, Arc<str>>,
    asking: Option<Asking>,
    /// Victims whose deletion was asked for in this term and that are still there, with the number of their eviction.
    doomed: BTreeMap<Arc<str>, u64>,
    evictions: Evictions<preempt::Victim>,
    told: Told,
    /// Pods that a live read has shown to be gone, until the watch shows it too.
    vanished: BTreeSet<Arc<str>>,
    metrics: Metrics,
    /// By the name of the profile, under which each reports (`NewRecorderFactory` in pkg/scheduler/profile).
    recorders: BTreeMap<String, EventRecorder>,
    elector: Option<LeaderElector>,
    /// Whether it led when it last looked.
    led: bool,
    /// The number of the term with which it began to lead.
    since: u64,
    wake: Option<(TimerId, Time)>,
    /// How many names were left when they were last numbered anew.
    names_left: usize,
    rng: Rng,
    planted: Option<preempt::StoredNominations>,
    planted_bug: Option<Planted>,
    limits: Limits,
}

impl Scheduler {
    /// A scheduler with this configuration.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let profiles =
            config.profiles.iter().map(|p| (p.scheduler_name.clone(), Arc::new(p.clone()))).collect::<BTreeMap<_, _>>();
        let recorder = |name: &String| EventRecorder::new(name.clone(), rng.fork(&format!("events of {name}")));
        let recorders = profiles.keys().map(|name| (name.clone(), recorder(name))).collect();
        Self {
            profiles,
            informers: Informers::new(&rng, &config.extenders),
            queue: SchedulingQueue::new(config.patience).with_extenders(&config.extenders),
            decider: Decider::new(Cluster::default()),
            flights: BTreeMap::new(),
            flown: 0,
            waiting: Waiting::default(),
            calls: BTreeMap::new(),
            binds: BTreeMap::new(),
            timers: BTreeMap::new(),
            asking: None,
            doomed: BTreeMap::new(),
            evictions: Evictions::default(),
            told: Told::default(),
            vanished: BTreeSet::new(),
            metrics: Metrics::default(),
            recorders,
            elector: None,
            led: false,
            since: 0,
            wake: None,
            names_left: 0,
            rng,
            config,
            planted: None,
            planted_bug: None,
            limits: Limits::default(),
        }
    }
    /// Schedules only while this elector leads.
    #[must_use]
    pub fn with_elector(mut self, elector: LeaderElector) -> Self {
        self.elector = Some(elector);
        self
    }
    /// Has the time that work takes measured, for metrics alone.
    #[must_use]
    pub fn with_stopwatch(mut self, stopwatch: Stopwatch) -> Self {
        self.decider.laps.stopwatch = stopwatch;
        self.decider.probe.set_stopwatch(stopwatch);
        self.queue.set_stopwatch(stopwatch);
        self
    }
    /// Puts back the bug of the fourth incident: nominations are stored beside the queue, updates of pods in flight put
    /// them back into it, and preemption does not ask extenders. The simulator must find it.
    #[must_use]
    pub fn with_planted_stored_nominations(mut self) -> Self {
        self.planted = Some(preempt::StoredNominations::default());
        self
    }
    /// Has less under way at a time, so that few pods are enough for it to have too much to do.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }
    /// Puts in a bug that the simulator must find.
    #[must_use]
    pub fn with_planted(mut self, bug: Planted) -> Self {
        if bug == Planted::DeafNominees {
            self.queue.deafen_nominees();
        }
        self.planted_bug = Some(bug);
        self
    }
    /// Up to which revisions it has heard of pods and nodes; none before it has heard of all of them once.
    #[must_use]
    pub fn heard_up_to(&self) -> Option<(u64, u64)> {
        self.informers.synced().then(|| self.informers.revisions())
    }
    /// Whether it acted when it last looked.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.led
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
    /// Pods that wait for their volumes though not all that was written for that is answered, by UID: there are none.
    pub fn hasty(&self) -> impl Iterator<Item = &str> {
        let writes = self.calls.values().filter_map(|sent| match &sent.call {
            Call::Flight(flight, bind::Step::Write) => Some(flight),
            _ => None,
        });
        let waits = move |id: &&FlightId| self.flights.get(&id.uid).is_some_and(|flight| flight.waits_as(id));
        writes.filter(waits).map(|id| &*id.uid)
    }
    /// Requests about pods that have no answer yet, by upstream's names of them.
    fn pending_calls(&self) -> BTreeMap<&'static str, usize> {
        let mut pending = BTreeMap::new();
        for name in self.calls.values().filter_map(|sent| sent.call.name()) {
            *pending.entry(name).or_default() += 1;
        }
        pending
    }
    /// What was counted.
    #[must_use]
    pub fn counted(&self) -> &Metrics {
        &self.metrics
    }

    fn profile(&self, pod: &Pod) -> Option<&Arc<Profile>> {
        self.profiles.get(pod.scheduler_name())
    }

    /// Whether it may act: nobody else does.
    fn leads(&self, now: Time) -> bool {
        self.elector.as_ref().is_none_or(|elector| elector.leading(now))
    }
    /// Whether it knows of all pods and nodes as they were when it began to lead: what others have bound is counted.
    fn is_caught_up(&mut self, now: Time, fx: &mut Effects<Ask>) -> bool {
        let Some(tenure) = self.elector.as_ref().and_then(LeaderElector::tenure) else { return true };
        if tenure.since != self.since {
            self.since = tenure.since;
            self.informers.must_show(now, tenure.revision, fx);
        }
        self.informers.caught_up()
    }
    /// Sends a write that is to be made only while this one leads.
    fn send(&self, mut request: ApiRequest, fx: &mut Effects<Ask>) -> CallId {
        if let Some(tenure) = self.elector.as_ref().and_then(LeaderElector::tenure) {
            request.rests_on.push(tenure.premise.clone());
        }
        fx.api(request)
    }
    /// Another one may act from now on.
    fn step_down(&mut self, now: Time, fx: &mut Effects<Ask>) {
        tracing::info!("the leader lease was lost; others schedule until it is won again");
        self.led = false;
        self.told.forget_unsaid();
        self.stop_asking(now);
        self.stop_reserving(now, fx);
    }
    /// It may act. Nominations are what whoever led before wrote.
    fn take_over(&mut self, now: Time) {
        self.led = true;
        // Whoever was to go for somebody may stay: what was asked of it ended with its term. Those who wait for that look
        // again.
        self.doomed.clear();
        let mut nominees = self.nominees();
        for (pod, before) in self.queue.take_nominations_as_written() {
            self.queue.happened_to_others(&pod.uid.clone(), Event::PodGone(pod, before), now, &self.decider.cluster);
        }
        nominees.extend(self.nominees());
        for uid in nominees {
            self.queue.hurry(&uid, now);
        }
        self.touch_renominated();
    }

    fn nominees(&self) -> BTreeSet<Arc<str>> {
        self.queue.nominations().map(|(pod, _)| pod.uid.clone()).collect()
    }

    /// Forgets names that nobody has any more, before they become too many: each Job brings labels of its own.
    fn forget_names(&mut self) {
        let cluster = &mut self.decider.cluster;
        let in_use = cluster.pods() + cluster.len() + self.queue.iter().len();
        let before = cluster.names();
        if before < (LEAST_NAMES + NAMES_PER_OBJECT * in_use).max(2 * self.names_left) {
            return;
        }
        *cluster = std::mem::take(cluster).renumbered();
        self.queue.reread(|pod| cluster.read(pod.pod.clone()));
        for flight in self.flights.values_mut() {
            flight.row.pod = cluster.read(flight.row.pod.pod.clone());
        }
        self.names_left = cluster.names();
        tracing::debug!(before, after = self.names_left, "names were numbered anew");
        self.decider.forget_classes();
    }

    /// Whether so much is under way that no other pod is looked at.
    fn is_busy(&self) -> bool {
        let flying = self.flights.len().saturating_sub(self.waiting.count());
        self.calls.len() >= self.limits.calls || flying >= self.limits.in_flight
    }

    fn schedule(&mut self, now: Time, fx: &mut Effects<Ask>) {
        if !self.informers.synced() || !self.led {
            return;
        }
        while !self.is_busy() {
            let next = if self.asking.is_none() { self.queue.pop(now) } else { self.queue.pop_plain(now) };
            let Some(row) = next else { break };
            self.attempt(now, row, fx);
        }
        // Who is due by now is looked at when an answer leaves room for that.
        if self.is_busy() && self.planted_bug != Some(Planted::Restless) {
            return;
        }
        if let Some(due) = self.queue.next_due()
            && self.wake.is_none_or(|(_, at)| due < at || at <= now)
        {
            self.wake = Some((fx.timer(due), due));
        }
    }

    /// Remembers what a request was sent for, and when.
    fn awaits(&mut self, now: Time, id: CallId, call: Call) {
        self.calls.insert(id, Sent { call, at: now });
    }

    fn answered(&mut self, now: Time, sent: Sent, result: Result<ApiResponse, ApiError>, fx: &mut Effects<Ask>) {
        if let Some(name) = sent.call.name() {
            self.metrics.called(name, result.is_ok(), now.since(sent.at));
        }
        match sent.call {
            Call::Flight(flight, step) => self.flight_answered(now, &flight, step, result, fx),
            Call::Condition(words) => self.said(now, *words, result, fx),
            Call::Renounce { pod } => {
                if let Err(error) = result
                    && !error.is_not_found()
                {
                    if !error.is_conflict() {
                        tracing::warn!(pod, %error, "the pod's status could not be written");
                    }
                    self.told.forget(&pod);
                }
            }
            Call::Mark(victim) => self.marked(now, *victim, result, fx),
            Call::Evict(victim) => self.evicted(now, *victim, result, fx),
        }
    }

    /// Tells of something, as the scheduler of that name.
    fn record(&mut self, now: Time, scheduler: &str, record: EventRecord, fx: &mut Effects<Ask>) {
        if let Some(recorder) = self.recorders.get_mut(scheduler) {
            recorder.record(now, record, fx);
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
        // A Lease that was taken anew may have been another's in between.
        let tenure = self.elector.as_ref().and_then(LeaderElector::tenure);
        let is_another = tenure.is_some_and(|tenure| tenure.since != self.since);
        if self.led && (is_another || !self.leads(now)) {
            self.step_down(now, fx);
        }
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
        } else if !self.recorders.values_mut().any(|recorder| recorder.step(now, &input, fx))
            && !self.elector.as_mut().is_some_and(|e| e.step(now, &input, fx))
        {
            match input {
                Input::Api { id, result } => {
                    if let Some(sent) = self.calls.remove(&id) {
                        self.answered(now, sent, result, fx);
                    }
                }
                Input::Own(answer) => self.extender_answered(now, answer, fx),
                _ => {}
            }
        }
        if !self.led && self.leads(now) && self.is_caught_up(now, fx) {
            self.take_over(now);
        }
        self.forget_names();
        self.schedule(now, fx);
    }

    fn stop(&mut self, now: Time, fx: &mut Effects<Ask>) {
        if let Some(elector) = &mut self.elector {
            elector.stop(now, fx);
        }
    }

    fn ended(&self) -> bool {
        self.elector.as_ref().is_none_or(LeaderElector::ended)
    }

    fn measures(&self, _: Time) -> String {
        let cluster = &self.decider.cluster;
        self.metrics.text(&Shown {
            queue: self.queue.counts(),
            looking: self.queue.looking(),
            binding: self.flights.values().filter(|flight| !flight.is_bound()).count(),
            refused: self.queue.refused(),
            incoming: self.queue.incoming().filter(|(queue, ..)| *queue != "inflight").collect(),
            events: self.queue.kept_events(),
            nodes: cluster.len(),
            pods: cluster.pods(),
            assumed: cluster.assumed().count(),
            probe: Some(&self.decider.probe),
            hints: Some(self.queue.hints()),
            calls: self.pending_calls(),
            leads: self.elector.as_ref().map(|_| (self.config.lease.1.as_str(), self.led)),
        })
    }
}

fn path_of(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace(), pod.name())
}

#[cfg(test)]
mod tests;
