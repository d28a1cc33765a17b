//! Hosts controllers over shared caches, and carries out their plans.
//!
//! Every (controller, key) goes through these states; a key is in one of them at a time:
//!
//! ```text
//!   queued ──▶ reconciling ──plan──▶ writing ──▶ held by the barrier ──▶ done
//!     ▲                                 │ failed                          │ asked for meanwhile,
//!     └────────── backoff ◀─────────────┘◀────────────────────────────────┘ or requeue_after
//! ```
//!
//! **The barrier.** After its writes a key is not reconciled again until every cache that its
//! controller reads shows them: a created or changed object at its revision, a deleted one gone. When
//! a write's outcome is unknown, the key waits for a state that is newer than anything the write can
//! have done. So no controller ever decides on a state older than its own last act, with no code in
//! any controller.
//!
//! **Others' writes.** A plan that rests on what another controller here is just writing, or has written and no cache shows yet,
//! would be refused. Its key waits for that write, and looks again ([`crate::unseen`]).
//!
//! **Patience.** Writes that only tell what there is (statuses on the way to somewhere) are left out of a plan until the first
//! of them has waited for as long as the controller lets it; what is decided meanwhile takes their place.

mod apart;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use carrack_types::resource::Object as _;
use carrack_types::resource::PartialObject;
use serde_json::Value;

use crate::informer::{OnlyRevision, digest_of_list};
use crate::unseen::{Target, Unseen, Way, needs};
use crate::{
    Absent, AnyInformer, ApiError, ApiRequest, ApiResponse, Awaited, CallId, Controller, Core, Effects, EventRecord,
    EventRecorder, Input, Key, LeaderElector, MapFn, Method, NAMESPACE_TERMINATING, Never, Parts, Plan, Premise,
    Refusal, Rng, Selector, Setup, Source, StatusError, Time, TimerId, View, WorkQueue, Write,
};

/// How long to wait before asking again for a revision after an unknown outcome, while few wait.
const PROBE_RETRY: Duration = Duration::from_secs(1);

struct Hosted {
    controller: Box<dyn Controller>,
    /// Sources that must be synced before the first reconcile.
    required: BTreeSet<Source>,
    queue: WorkQueue<Key>,
    runs: BTreeMap<Key, Run>,
    /// Keys with writes that may wait, and until when they do.
    patient: BTreeMap<Key, Time>,
}

impl Hosted {
    /// Takes out of a plan what may wait for more to come, until it has waited.
    fn hold_back(&mut self, now: Time, key: &Key, plan: Plan) -> Plan {
        let Some(wait) = plan.patience() else {
            self.patient.remove(key);
            return plan;
        };
        let until = self.patient.get(key).map_or(now + wait, |until| (*until).min(now + wait));
        if until <= now {
            self.patient.remove(key);
            return plan;
        }
        self.patient.insert(key.clone(), until);
        plan.without_patient().requeue_after(until.since(now))
    }
}

/// What a key waits for after its writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Barrier {
    /// The cache shows this revision.
    AtLeast(Source, u64),
    /// The cache shows no object of this UID under the key.
    Gone(Source, Key, String),
}

impl Barrier {
    fn source(&self) -> &Source {
        match self {
            Self::AtLeast(source, _) | Self::Gone(source, ..) => source,
        }
    }
}

struct Run {
    writes: VecDeque<Write>,
    /// How many writes are done.
    done: usize,
    /// What each write rests on besides its object, by its number.
    premises: Vec<(usize, Premise)>,
    /// Events that wait for so many writes to be done.
    told: VecDeque<(usize, EventRecord)>,
    barriers: Vec<Barrier>,
    /// How many calls and timers it waits for.
    pending: usize,
    requeue_after: Option<Duration>,
    failed: bool,
    /// Writes without which the others are made all the same, and whether there was one.
    apart: BTreeSet<usize>,
    left_out: bool,
    /// It stepped back before somebody else's write, and looks again.
    again: bool,
}

impl Run {
    /// The request of the first write that is not done.
    fn request(&self) -> Option<ApiRequest> {
        let mut request = self.writes.front()?.request();
        if request.method != Method::Get {
            let own = self.premises.iter().filter(|(number, _)| *number == self.done);
            request.rests_on.extend(own.map(|(_, premise)| premise.clone()));
        }
        Some(request)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKind {
    /// The first write of the run.
    Write,
    /// A live read of an object whose name is taken.
    CheckChild,
    /// A live list for a current revision, after an unknown outcome.
    Probe,
}

/// A core that hosts controllers.
pub struct Manager {
    rng: Rng,
    informers: BTreeMap<Source, Box<dyn AnyInformer>>,
    /// Which informer an input is for.
    awaited: BTreeMap<Awaited, Source>,
    hosted: Vec<Hosted>,
    /// Which controllers, by their place in `hosted`, look at what of the changes of a source.
    maps: BTreeMap<Source, Vec<(usize, MapFn)>>,
    calls: BTreeMap<CallId, (usize, Key, CallKind)>,
    probes: BTreeMap<TimerId, (usize, Key)>,
    recorder: EventRecorder,
    elector: Option<LeaderElector>,
    wake: Option<(TimerId, Time)>,
    unseen: Unseen,
    barrier: bool,
    premises: bool,
}

impl Manager {
    /// A manager with no controllers. `name` is the component's name in its events.
    #[must_use]
    pub fn new(name: &'static str, rng: Rng) -> Self {
        Self {
            recorder: EventRecorder::new(name, rng.fork("events")),
            rng,
            informers: BTreeMap::new(),
            awaited: BTreeMap::new(),
            hosted: Vec::new(),
            maps: BTreeMap::new(),
            calls: BTreeMap::new(),
            probes: BTreeMap::new(),
            elector: None,
            wake: None,
            unseen: Unseen::default(),
            barrier: true,
            premises: true,
        }
    }
    /// Plants the bug that the barrier exists against: keys are reconciled on caches that may not show
    /// their own writes yet. For the simulator, which must find it; never for a real process.
    #[must_use]
    pub fn with_planted_stale_reads(mut self) -> Self {
        self.barrier = false;
        self
    }
    /// Plants the bug that premises exist against: writes are sent without what they rest on, and made whatever has become of
    /// that. For simulators, which must find it; never for a real process.
    #[must_use]
    pub fn with_planted_baseless_writes(mut self) -> Self {
        self.premises = false;
        self
    }
    /// Adds a controller.
    #[must_use]
    pub fn with(self, controller: impl Controller + 'static) -> Self {
        self.with_all([Box::new(controller) as Box<dyn Controller>])
    }
    /// Adds controllers, in their order.
    #[must_use]
    pub fn with_all(mut self, controllers: impl IntoIterator<Item = Box<dyn Controller>>) -> Self {
        self.hosted.extend(controllers.into_iter().map(|controller| Hosted {
            controller,
            required: BTreeSet::new(),
            queue: WorkQueue::default(),
            runs: BTreeMap::new(),
            patient: BTreeMap::new(),
        }));
        self
    }
    /// Until when it may act, unless its elector renews; none where it takes part in no election.
    #[must_use]
    pub fn leads_until(&self) -> Option<Time> {
        self.elector.as_ref().map(LeaderElector::leads_until)
    }

    /// Reconciles only while this elector leads.
    #[must_use]
    pub fn with_elector(mut self, elector: LeaderElector) -> Self {
        self.elector = Some(elector);
        self
    }
    /// What is known.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { informers: &self.informers }
    }
    /// Whether all caches are synced and no key is queued, running or held, and no write waits. Delayed keys don't count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = |hosted: &Hosted| hosted.queue.is_idle() && hosted.patient.is_empty();
        self.informers.values().all(|i| i.synced()) && self.hosted.iter().all(idle)
    }

    /// Has a controller look at a key again: something beside the caches has changed on which its decision rests.
    pub fn look_again(&mut self, now: Time, controller: &str, key: Key, fx: &mut Effects<Never>) {
        for hosted in self.hosted.iter_mut().filter(|h| h.controller.name() == controller) {
            hosted.queue.add(key.clone());
        }
        self.dispatch(now, fx);
    }

    fn start(&mut self, now: Time, fx: &mut Effects<Never>) {
        for i in 0..self.hosted.len() {
            let mut setup = new_setup(&self.informers);
            self.hosted[i].controller.setup(&mut setup);
            let parts = setup.parts;
            let added = self.apply(i, parts, fx);
            self.hosted[i].required.extend(added);
        }
        if let Some(elector) = &mut self.elector {
            elector.start(now, fx);
        }
    }

    /// Takes over what a controller asked to watch. Returns the sources that it named.
    fn apply(&mut self, i: usize, parts: Parts, fx: &mut Effects<Never>) -> Vec<Source> {
        for (source, make) in parts.informers {
            let rng = self.rng.fork(&format!("{source:?}"));
            let informer = self.informers.entry(source.clone()).or_insert_with(|| make(rng));
            informer.start(fx);
            self.awaited.extend(informer.awaits().map(|awaited| (awaited, source)));
        }
        for (source, index) in parts.indexes {
            if let Some(informer) = self.informers.get_mut(&source) {
                index(informer.as_mut());
            }
        }
        let mut sources = Vec::new();
        for (source, map) in parts.maps {
            if let Some(informer) = self.informers.get(&source) {
                let view = View { informers: &self.informers };
                for delta in informer.all_as_added() {
                    for key in map(delta.as_ref(), &view) {
                        self.hosted[i].queue.add(key);
                    }
                }
            }
            sources.push(source.clone());
            self.maps.entry(source).or_default().push((i, map));
        }
        for source in parts.hurried {
            self.hurry(&source, fx);
        }
        for source in parts.dropped {
            if let Some(mut informer) = self.informers.remove(&source) {
                if let Some(awaited) = informer.awaits() {
                    self.awaited.remove(&awaited);
                }
                informer.stop(fx);
            }
            self.maps.remove(&source);
            // What was written there is shown to nobody any more.
            let (group, plural) = (&source.resource.group, &source.resource.plural);
            if !self.informers.keys().any(|s| s.selector.is_all() && is_of(s, group, plural)) {
                self.unseen.shown(group, plural, u64::MAX);
            }
            for hosted in &mut self.hosted {
                hosted.required.remove(&source);
            }
        }
        sources
    }

    /// Lists a source that is not watched, if it is read and waits for its time.
    fn hurry(&mut self, source: &Source, fx: &mut Effects<Never>) {
        if let Some(informer) = self.informers.get_mut(source) {
            if let Some(awaited) = informer.awaits() {
                self.awaited.remove(&awaited);
            }
            informer.hurry(fx);
            self.awaited.extend(informer.awaits().map(|awaited| (awaited, source.clone())));
        }
    }

    /// Lists those of some sources that are not watched.
    fn hurry_all<'a>(&mut self, sources: impl Iterator<Item = &'a Source>, fx: &mut Effects<Never>) {
        for source in sources.filter(|source| source.every.is_some()).collect::<BTreeSet<_>>() {
            self.hurry(source, fx);
        }
    }

    /// Gives an input to the informer that waits for it. True when there is one.
    fn feed(&mut self, now: Time, input: &Input<Never>, fx: &mut Effects<Never>) -> bool {
        let Some(source) = Awaited::of(input).and_then(|awaited| self.awaited.remove(&awaited)) else { return false };
        let Some(informer) = self.informers.get_mut(&source) else { return false };
        let Some(deltas) = informer.step_any(now, input, fx) else { return false };
        self.awaited.extend(informer.awaits().map(|awaited| (awaited, source.clone())));
        if !deltas.is_empty() {
            self.observe(&source, &deltas, fx);
        }
        self.release(now, &source);
        true
    }

    fn observe(&mut self, source: &Source, deltas: &[Box<dyn Any>], fx: &mut Effects<Never>) {
        let view = View { informers: &self.informers };
        let mut concerned = BTreeSet::new();
        for (i, map) in self.maps.get(source).into_iter().flatten() {
            concerned.insert(*i);
            for delta in deltas {
                for key in map(delta.as_ref(), &view) {
                    self.hosted[*i].queue.add(key);
                }
            }
        }
        for i in concerned {
            let mut setup = new_setup(&self.informers);
            self.hosted[i].controller.more_watches(&View { informers: &self.informers }, &mut setup);
            let parts = setup.parts;
            self.apply(i, parts, fx);
        }
    }

    /// Lets go of keys whose barrier is reached now that a cache has got on.
    fn release(&mut self, now: Time, source: &Source) {
        let (group, plural) = (&source.resource.group, &source.resource.plural);
        if self.unseen.has_written(group, plural) {
            let of = |s: &Source| s.selector.is_all() && is_of(s, group, plural);
            let all = self.informers.iter().filter(|(s, _)| of(s)).map(|(_, informer)| informer.revision());
            self.unseen.shown(group, plural, all.min().unwrap_or(u64::MAX));
        }
        for i in 0..self.hosted.len() {
            let concerns = |b: &Barrier| b.source() == source || !self.informers.contains_key(b.source());
            let keys: Vec<Key> = self.hosted[i]
                .runs
                .iter()
                .filter(|(_, run)| run.writes.is_empty() && run.barriers.iter().any(concerns))
                .map(|(key, _)| key.clone())
                .collect();
            for key in keys {
                self.try_finish(now, i, &key);
            }
        }
    }

    fn reached(&self, barrier: &Barrier) -> bool {
        match barrier {
            _ if !self.barrier => true,
            // A cache that is no longer kept holds nobody back.
            Barrier::AtLeast(source, revision) => self.informers.get(source).is_none_or(|i| i.revision() >= *revision),
            Barrier::Gone(source, key, uid) => {
                self.informers.get(source).is_none_or(|i| i.uid_of(key).as_deref() != Some(uid))
            }
        }
    }

    /// Ends a run that has no more writes, if its barrier is reached.
    fn try_finish(&mut self, now: Time, i: usize, key: &Key) {
        let Some(run) = self.hosted[i].runs.get(key) else { return };
        if run.pending > 0 || !run.writes.is_empty() || !run.barriers.iter().all(|b| self.reached(b)) {
            return;
        }
        let hosted = &mut self.hosted[i];
        let Some(run) = hosted.runs.remove(key) else { return };
        if run.failed || run.left_out {
            hosted.queue.add_failed(key.clone(), now, &mut self.rng);
        } else {
            hosted.queue.succeeded(key);
        }
        if let Some(after) = run.requeue_after {
            hosted.queue.add_at(key.clone(), now + after);
        }
        if run.again {
            hosted.queue.add(key.clone());
        }
        hosted.queue.done(key);
    }

    fn dispatch(&mut self, now: Time, fx: &mut Effects<Never>) {
        if self.elector.as_ref().is_some_and(|e| !e.leading(now)) {
            self.hosted.iter_mut().for_each(|hosted| hosted.patient.clear());
            return;
        }
        for i in 0..self.hosted.len() {
            // What has been synced once stays so; this runs at every step.
            let informers = &self.informers;
            self.hosted[i].required.retain(|s| informers.get(s).is_some_and(|x| !x.synced()));
            if !self.hosted[i].required.is_empty() {
                continue;
            }
            while let Some(key) = self.hosted[i].queue.take(now) {
                let plan = {
                    let view = View { informers: &self.informers };
                    self.hosted[i].controller.reconcile(&key, &view, now)
                };
                let plan = self.hosted[i].hold_back(now, &key, plan);
                self.begin(now, i, key, plan, fx);
            }
        }
        let due = self.hosted.iter().filter_map(|h| h.queue.next_due()).min();
        if let Some(due) = due
            && self.wake.is_none_or(|(_, at)| due < at || at <= now)
        {
            self.wake = Some((fx.timer(due), due));
        }
    }

    fn begin(&mut self, now: Time, i: usize, key: Key, plan: Plan, fx: &mut Effects<Never>) {
        let (at_once, told): (Vec<_>, Vec<_>) = plan.told.into_iter().partition(|(after, _)| *after == 0);
        let run = Run {
            writes: plan.writes.into(),
            done: 0,
            premises: if self.premises { plan.premises } else { Vec::new() },
            told: told.into(),
            barriers: Vec::new(),
            pending: 0,
            requeue_after: plan.requeue_after,
            failed: plan.error.is_some(),
            apart: plan.apart,
            left_out: false,
            again: false,
        };
        self.hosted[i].runs.insert(key.clone(), run);
        if self.steps_back(i, &key, fx) {
            return self.try_finish(now, i, &key);
        }
        for event in plan.events.into_iter().chain(at_once.into_iter().map(|(_, event)| event)) {
            self.tell(now, i, event, fx);
        }
        if let Some(error) = &plan.error {
            let controller = self.hosted[i].controller.name();
            tracing::warn!(controller, %key, error, "a reconcile could not decide; will try again");
        }
        self.next_write(now, i, &key, fx);
    }

    fn next_write(&mut self, now: Time, i: usize, key: &Key, fx: &mut Effects<Never>) {
        if self.elector.as_ref().is_some_and(|e| !e.leading(now)) {
            // Somebody else may act by now; what is left of the plan rests on what was seen before.
            self.fail(now, i, key);
            return;
        }
        if self.steps_back(i, key, fx) {
            return self.try_finish(now, i, key);
        }
        let run = self.hosted[i].runs.get(key);
        match run.and_then(|run| Some((run.request()?, run.writes.front()?))) {
            Some((request, write)) => {
                let id = fx.api(request);
                self.unseen.sent(id, (i, key.clone()), write);
                self.note_call(id, i, key, CallKind::Write);
            }
            None => self.try_finish(now, i, key),
        }
    }

    /// Drops what is left of a plan when its next write rests on what another controller writes, or wrote a moment ago; the key
    /// looks again when the caches show that. What a refusal leads to is sent as it is: its key comes back with backoff.
    fn steps_back(&mut self, i: usize, key: &Key, fx: &mut Effects<Never>) -> bool {
        let Some(run) = self.hosted[i].runs.get(key).filter(|run| self.barrier && !run.failed) else { return false };
        let Some(write) = run.writes.front() else { return false };
        let by = (i, key.clone());
        let own = run.premises.iter().filter(|(number, _)| *number == run.done).map(|(_, premise)| premise);
        for need in needs(write, own) {
            let barriers = match self.unseen.before(&by, &need) {
                Way::Free => continue,
                Way::Busy => Vec::new(),
                Way::Written(revision) => {
                    let barriers = self.unseen_barriers(i, &need.target, revision);
                    // Its caches show it already, or it has none.
                    if barriers.is_empty() {
                        continue;
                    }
                    barriers
                }
            };
            let waits = barriers.is_empty();
            self.hurry_all(barriers.iter().map(Barrier::source), fx);
            if waits {
                self.unseen.wait(&need.target, by);
            }
            if let Some(run) = self.hosted[i].runs.get_mut(key) {
                run.pending += usize::from(waits);
                run.barriers.extend(barriers);
                run.writes.clear();
                run.told.clear();
                run.again = true;
            }
            return true;
        }
        false
    }

    /// What a controller's caches must show of an object that somebody else wrote, and do not show yet.
    fn unseen_barriers(&self, i: usize, target: &Target, revision: u64) -> Vec<Barrier> {
        let barriers = self.sources_in(i, &target.group, &target.plural).into_iter();
        let barriers = barriers.filter(|s| s.selector.is_all()).map(|source| Barrier::AtLeast(source, revision));
        barriers.filter(|barrier| !self.reached(barrier)).collect()
    }

    /// A write has come back: those who waited for it look again, once they can see it.
    fn tell_waiting(&mut self, now: Time, id: CallId, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<Never>) {
        let revision = result.as_ref().ok().map_or(0, revision_of);
        let informers = &self.informers;
        let is_read =
            |target: &Target| informers.keys().any(|s| s.selector.is_all() && is_of(s, &target.group, &target.plural));
        let Some((target, waited)) = self.unseen.answered(id, (revision > 0).then_some(revision), is_read) else {
            return;
        };
        for (i, key) in waited {
            let barriers = self.unseen_barriers(i, &target, revision);
            self.hurry_all(barriers.iter().map(Barrier::source), fx);
            if let Some(run) = self.hosted[i].runs.get_mut(&key) {
                run.barriers.extend(barriers);
            }
            self.one_less(i, &key);
            self.try_finish(now, i, &key);
        }
    }

    /// Notes a call that a run waits for.
    fn note_call(&mut self, id: CallId, i: usize, key: &Key, kind: CallKind) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.pending += 1;
        }
        self.calls.insert(id, (i, key.clone(), kind));
    }

    /// A call or a timer that a run waited for has come.
    fn one_less(&mut self, i: usize, key: &Key) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.pending = run.pending.saturating_sub(1);
        }
    }

    /// The caches of a controller that show objects of a write's resource.
    fn sources_of(&self, i: usize, write: &Write) -> Vec<Source> {
        self.sources_in(i, &write.resource().group, &write.resource().plural)
    }

    fn sources_in(&self, i: usize, group: &str, plural: &str) -> Vec<Source> {
        self.maps
            .iter()
            .filter(|(s, _)| is_of(s, group, plural))
            .filter(|(_, maps)| maps.iter().any(|(of, _)| *of == i))
            .map(|(s, _)| s.clone())
            .collect()
    }

    fn answered(
        &mut self,
        now: Time,
        (i, key, kind): (usize, Key, CallKind),
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Never>,
    ) {
        let Some(write) = self.hosted[i].runs.get(&key).and_then(|run| run.writes.front()).cloned() else {
            if kind == CallKind::Probe {
                self.probed(now, i, &key, result, fx);
            }
            return;
        };
        if let (Write::Confirm { absent, .. }, CallKind::Write) = (&write, kind) {
            match confirmed(absent, &result) {
                Ok(true) => self.next_write_after(now, i, &key, fx),
                Ok(false) => {
                    tracing::debug!(%key, absent = ?absent, "it is not as it should be after all; will look again");
                    self.wait_for_what_was_read(i, &key, &write, &result);
                    self.hurry_all(self.sources_of(i, &write).iter(), fx);
                    self.fail(now, i, &key);
                }
                Err(error) => {
                    tracing::warn!(%key, absent = ?absent, %error, "a live read failed; will try again");
                    self.fail(now, i, &key);
                }
            }
            return;
        }
        match (kind, result) {
            (CallKind::Write, Ok(reply)) => self.wrote(now, i, &key, &write, Some(&reply), fx),
            (CallKind::Write, Err(error)) if error.is_already_exists() && matches!(write, Write::Create { .. }) => {
                let target = write.key();
                let id = fx.api(ApiRequest::get(write.resource(), &target.namespace, &target.name));
                self.note_call(id, i, &key, CallKind::CheckChild);
            }
            (CallKind::Write, Err(error)) if error.is_not_found() && matches!(write, Write::Delete { .. }) => {
                self.wrote(now, i, &key, &write, None, fx);
            }
            (CallKind::CheckChild, Ok(reply)) => {
                if is_ours(&write, &reply) {
                    self.wrote(now, i, &key, &write, Some(&reply), fx);
                } else {
                    let controller = self.hosted[i].controller.name();
                    tracing::warn!(controller, %key, child = %write.key(), kind = %write.resource(),
                        "a child's name is taken by an object that belongs to somebody else");
                    let message = format!(
                        "{} \"{}\" already exists, and belongs to somebody else",
                        write.resource().qualified(),
                        write.key().name
                    );
                    let taken =
                        StatusError { code: 409, reason: "AlreadyExists".into(), message, ..StatusError::default() };
                    self.refused(now, i, &key, &write, &taken, fx);
                }
            }
            (CallKind::Write | CallKind::CheckChild, Err(error)) => {
                let controller = self.hosted[i].controller.name();
                if error.is_conflict() {
                    tracing::debug!(controller, %key, %error, "a write rested on something older; will look again");
                } else {
                    tracing::warn!(controller, %key, target = %write.key(), kind = %write.resource(), %error, "a write failed; will try again");
                }
                if error.is_unknown() && kind == CallKind::Write {
                    self.probe(i, key.clone(), &write, fx);
                }
                match &error {
                    ApiError::Status(status) if apart::is_of_the_object(status.code) && self.stands_apart(i, &key) => {
                        self.leave_out(now, i, &key, fx);
                    }
                    ApiError::Status(status)
                        if matches!(write, Write::Call { .. }) || !error.is_unknown() && !error.is_conflict() =>
                    {
                        self.refused(now, i, &key, &write, status, fx);
                    }
                    _ => self.fail(now, i, &key),
                }
            }
            (CallKind::Probe, result) => self.probed(now, i, &key, result, fx),
        }
    }

    /// A write is done: note what the caches must show, and go on.
    fn wrote(
        &mut self,
        now: Time,
        i: usize,
        key: &Key,
        write: &Write,
        reply: Option<&ApiResponse>,
        fx: &mut Effects<Never>,
    ) {
        let object: Option<PartialObject> = reply.and_then(|r| r.json().ok());
        let mut barriers = Vec::new();
        for source in self.sources_of(i, write) {
            match (&object, write) {
                (Some(o), _) if o.revision() > 0 && !selects(&source.selector, o) => {}
                (Some(o), _) if o.revision() > 0 => barriers.push(Barrier::AtLeast(source, o.revision())),
                (_, Write::Delete { key, options, .. }) => {
                    if let Some(uid) = &options.uid {
                        barriers.push(Barrier::Gone(source, key.clone(), uid.clone()));
                    }
                }
                _ => {}
            }
        }
        // What is not watched tells of the write when it is listed.
        self.hurry_all(barriers.iter().map(Barrier::source), fx);
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.barriers.extend(barriers);
        }
        self.next_write_after(now, i, key, fx);
    }

    /// The first write is done: tell what waited for it, and go on.
    fn next_write_after(&mut self, now: Time, i: usize, key: &Key, fx: &mut Effects<Never>) {
        let mut told = Vec::new();
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.writes.pop_front();
            run.done += 1;
            while run.told.front().is_some_and(|(after, _)| *after <= run.done) {
                told.extend(run.told.pop_front().map(|(_, event)| event));
            }
        }
        for event in told {
            self.tell(now, i, event, fx);
        }
        self.next_write(now, i, key, fx);
    }

    /// Records an event of a controller's.
    fn tell(&mut self, now: Time, i: usize, event: EventRecord, fx: &mut Effects<Never>) {
        let event = event.of_component(self.hosted[i].controller.event_source());
        self.recorder.record(now, event, fx);
    }

    /// The server refused a write. The controller may say so, in the object's status and in events; then the run fails.
    fn refused(&mut self, now: Time, i: usize, key: &Key, write: &Write, error: &StatusError, fx: &mut Effects<Never>) {
        // Nothing can be made there any more, and what is there goes without being told of this.
        if error.has_cause(NAMESPACE_TERMINATING) {
            if let Some(run) = self.hosted[i].runs.get_mut(key) {
                run.told.clear();
                run.writes.clear();
            }
            return self.try_finish(now, i, key);
        }
        // What was to be said of a refusal is refused itself.
        if self.hosted[i].runs.get(key).is_none_or(|run| run.failed) {
            return self.fail(now, i, key);
        }
        let said = {
            let view = View { informers: &self.informers };
            self.hosted[i].controller.refused(key, &view, &Refusal { write, error }, now)
        };
        for event in said.events {
            self.tell(now, i, event, fx);
        }
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.failed = true;
            run.told.clear();
            run.done = 0;
            run.premises = said.premises;
            run.writes = said.writes.into();
        }
        self.next_write(now, i, key, fx);
    }

    fn fail(&mut self, now: Time, i: usize, key: &Key) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.failed = true;
            run.told.clear();
            run.writes.clear();
        }
        self.try_finish(now, i, key);
    }

    /// A live read has shown what a cache did not. Until the cache shows it too, the same would be decided and read again.
    fn wait_for_what_was_read(&mut self, i: usize, key: &Key, read: &Write, result: &Result<ApiResponse, ApiError>) {
        let revision =
            result.as_ref().ok().and_then(|reply| reply.json::<PartialObject>().ok()).map_or(0, |o| o.revision());
        let sources = self.sources_of(i, read).into_iter().filter(|source| source.selector.is_all());
        let barriers: Vec<Barrier> = sources.map(|source| Barrier::AtLeast(source, revision)).collect();
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.barriers.extend(barriers);
        }
    }

    /// Asks for a revision that is newer than anything a lost request can have done before now.
    fn probe(&mut self, i: usize, key: Key, write: &Write, fx: &mut Effects<Never>) {
        if let Some(source) = self.sources_of(i, write).into_iter().find(|s| s.selector.is_all()) {
            let id = fx.api(ApiRequest::list(&source.resource, &Selector::all(), 1, ""));
            if let Some(run) = self.hosted[i].runs.get_mut(&key) {
                // Held until the reply says which revision to wait for.
                run.barriers.push(Barrier::AtLeast(source, u64::MAX));
            }
            self.note_call(id, i, &key, CallKind::Probe);
        }
    }

    fn probed(
        &mut self,
        now: Time,
        i: usize,
        key: &Key,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Never>,
    ) {
        let revision = match result.and_then(|reply| reply.json::<OnlyRevision>()) {
            // A server whose lists have no revision that could be waited for is believed as it is.
            Ok(list) => Some(list.metadata.resource_version.parse().unwrap_or(0)),
            // The kind is gone, and all its objects with it.
            Err(error) if error.is_not_found() => Some(0),
            Err(_) => None,
        };
        // All keys ask the same server: the more of them wait, the longer each does, so that together they ask a few times a
        // second however many they are.
        let waiting = u32::try_from(self.probes.len() / 4).unwrap_or(u32::MAX);
        let again = now + PROBE_RETRY.saturating_mul(waiting.saturating_add(1));
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            for barrier in &mut run.barriers {
                match barrier {
                    Barrier::AtLeast(_, r) if *r == u64::MAX => {
                        let Some(revision) = revision else {
                            self.probes.insert(fx.timer(again), (i, key.clone()));
                            run.pending += 1;
                            return;
                        };
                        *r = revision;
                    }
                    _ => {}
                }
            }
        }
        self.try_finish(now, i, key);
    }

    fn probe_again(&mut self, i: usize, key: Key, fx: &mut Effects<Never>) {
        let source = self.hosted[i].runs.get(&key).and_then(|run| {
            run.barriers.iter().find_map(|b| match b {
                Barrier::AtLeast(s, u64::MAX) => Some(s.clone()),
                _ => None,
            })
        });
        if let Some(source) = source {
            let id = fx.api(ApiRequest::list(&source.resource, &Selector::all(), 1, ""));
            self.note_call(id, i, &key, CallKind::Probe);
        }
    }
}

impl Core for Manager {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        if matches!(input, Input::Start) {
            self.start(now, fx);
        } else if let Input::Timer(id) = &input
            && let Some((i, key)) = self.probes.remove(id)
        {
            self.one_less(i, &key);
            self.probe_again(i, key, fx);
        } else if !self.recorder.step(now, &input, fx)
            && !self.elector.as_mut().is_some_and(|e| e.step(now, &input, fx))
            && !self.feed(now, &input, fx)
            && let Input::Api { id, result } = input
            && let Some(call) = self.calls.remove(&id)
        {
            self.one_less(call.0, &call.1);
            self.tell_waiting(now, id, &result, fx);
            self.answered(now, call, result, fx);
        }
        self.dispatch(now, fx);
    }

    fn stop(&mut self, now: Time, fx: &mut Effects<Never>) {
        if let Some(elector) = &mut self.elector {
            elector.stop(now, fx);
        }
    }

    fn ended(&self) -> bool {
        self.elector.as_ref().is_none_or(LeaderElector::ended)
    }
}

/// Whether a source is of a resource, in whatever version.
fn is_of(source: &Source, group: &str, plural: &str) -> bool {
    source.resource.group == group && source.resource.plural == plural
}

/// The revision of the object in a reply; 0 when it has none.
fn revision_of(reply: &ApiResponse) -> u64 {
    reply.json::<OnlyRevision>().ok().and_then(|only| only.metadata.resource_version.parse().ok()).unwrap_or(0)
}

fn new_setup(existing: &BTreeMap<Source, Box<dyn AnyInformer>>) -> Setup<'_> {
    Setup { existing, parts: Parts::default() }
}

/// Whether a live read shows that something is not there.
fn confirmed(absent: &Absent, result: &Result<ApiResponse, ApiError>) -> Result<bool, ApiError> {
    match (absent, result) {
        (Absent::Object { .. } | Absent::Child { .. }, Err(error)) if error.is_not_found() => Ok(true),
        (Absent::End { .. }, Err(error)) if error.is_not_found() => Ok(false),
        // The kind itself is gone, and all its objects with it.
        (Absent::AnyIn(_) | Absent::Newer { .. }, Err(error)) if error.is_not_found() => Ok(true),
        (_, Err(error)) => Err(error.clone()),
        (Absent::Object { uid, .. }, Ok(reply)) => Ok(!uid.is_empty() && reply.json::<PartialObject>()?.uid() != uid),
        (Absent::Child { owner, .. }, Ok(reply)) => Ok(reply.json::<PartialObject>()?.controller_uid() != Some(owner)),
        (Absent::End { uid, .. }, Ok(reply)) => {
            let found = reply.json::<PartialObject>()?;
            Ok(found.uid() == uid && !found.is_deleting())
        }
        (Absent::Newer { resource_version, .. }, Ok(reply)) => {
            Ok(reply.json::<PartialObject>()?.metadata.resource_version.as_deref() == Some(resource_version))
        }
        (Absent::Change { digest }, Ok(reply)) => Ok(digest_of_list(reply) == Some(*digest)),
        (Absent::AnyIn(_), Ok(reply)) => {
            let list: Value = reply.json()?;
            // Null is what some servers make of an empty list.
            match list.get("items") {
                Some(Value::Null) => Ok(true),
                Some(Value::Array(items)) => Ok(items.is_empty()),
                _ => Err(ApiError::Decode("a list without items".into())),
            }
        }
    }
}

/// Whether an object found under a child's name is that child: its controlling owner is the one that
/// the child would have. A child without an owner is known by its name alone.
fn is_ours(write: &Write, found: &ApiResponse) -> bool {
    let Write::Create { object, .. } = write else { return false };
    let Ok(found) = found.json::<PartialObject>() else { return false };
    let wanted = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|o| o["controller"] == Value::Bool(true))
        .and_then(|o| o["uid"].as_str());
    !found.is_deleting() && wanted.is_none_or(|uid| found.controller_uid() == Some(uid))
}

/// Whether a cache with this selector shows the object. When in doubt it does not, and nobody waits.
fn selects(selector: &Selector, object: &PartialObject) -> bool {
    selector.fields.is_empty()
        && (selector.namespace.is_empty() || selector.namespace == object.namespace())
        && selector
            .labels
            .split(',')
            .filter(|p| !p.is_empty())
            .all(|pair| pair.split_once('=').is_some_and(|(k, v)| object.label(k) == Some(v.trim_start_matches('='))))
}
