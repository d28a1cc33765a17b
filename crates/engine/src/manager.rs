//! Hosts controllers over shared caches, and carries out their plans.
//!
//! Every (controller, key) goes through these states; a key is in one of them at a time:
//!
//! ```text
//!              ┌─ reading ◀─┐ asks
//!              ▼            │
//!   queued ──▶ reconciling ─┴─plan──▶ writing ──▶ held by the barrier ──▶ done
//!     ▲                                   │ failed                          │ asked for meanwhile,
//!     └────────── backoff ◀───────────────┘◀────────────────────────────────┘ or requeue_after
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
//! **Terms.** Where there is an election, writes rest on the leader's term ([`crate::Tenure`]). Who begins to lead decides
//! nothing before the caches that its controllers named at first show all that was written in terms before; what they came to
//! watch later (kinds that definitions made) is read live where something rests on it. A write whose outcome is unknown ends
//! the term, so that it is refused should it still be on its way; only then is it looked at what it has done.
//!
//! **Turns.** In one step only so many keys are looked at, and of each controller only so many requests are under way at
//! a time, however much there is to do: behind a step everything else waits, the renewal of a leader's Lease too, and
//! requests by the thousand are not answered in time. What is left over has its turn later, controllers one after the other.
//!
//! **Patience.** Writes that only tell what there is (statuses on the way to somewhere) are left out of a plan until the first
//! of them has waited for as long as the controller lets it; what is decided meanwhile takes their place.

mod answers;
mod apart;
mod asks;
mod doubt;
mod held;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::controller::Answers;
use crate::informer::{OnlyRevision, PAGE};
use crate::page::Page;
use crate::queue::tell;
use crate::unseen::{Target, Unseen, Way, needs};
use crate::{
    AnyInformer, ApiError, ApiRequest, ApiResponse, Awaited, CallId, Controller, Core, Effects, EventRecord,
    EventRecorder, Input, Key, LeaderElector, MapFn, Method, Never, Parts, Plan, Premise, Rng, Setup, Source, Time,
    TimerId, View, WorkQueue, Write,
};
use held::Held;

struct Hosted {
    controller: Box<dyn Controller>,
    /// What it named when it was set up.
    sources: BTreeSet<Source>,
    /// Those of them that must show more before it is asked.
    required: BTreeSet<Source>,
    queue: WorkQueue<Key>,
    runs: BTreeMap<Key, Run>,
    /// How many of its requests are under way.
    calls: usize,
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

#[derive(Default)]
struct Run {
    /// What was read for its decision so far.
    answers: Answers,
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
    /// Since which term nobody else can have led when this was decided.
    since: u64,
    /// In which term its first write was sent.
    term: u64,
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
}

/// How many objects of each kind are kept as values, those that were opened last. All objects of a small cluster are, and what is
/// under way in a large one.
const MOST_OPEN: usize = 256;

/// How many keys are looked at in one step.
const MOST_KEYS: usize = 2000;
/// How many requests of a controller may be under way before it looks at another key.
const MOST_CALLS: usize = 400;

/// A core that hosts controllers.
pub struct Manager {
    rng: Rng,
    /// When it observes what it does now.
    now: Time,
    /// What stands before the names of its measures.
    prefix: &'static str,
    /// What stands before the names of the measures of its lead, if it tells them.
    lead_prefix: Option<&'static str>,
    informers: BTreeMap<Source, Box<dyn AnyInformer>>,
    /// Which informer an input is for.
    awaited: BTreeMap<Awaited, Source>,
    hosted: Vec<Hosted>,
    /// Which controllers, by their place in `hosted`, look at what of the changes of a source.
    maps: BTreeMap<Source, Vec<(usize, MapFn)>>,
    calls: BTreeMap<CallId, (usize, Key, CallKind)>,
    /// Reads that decisions wait for, with the paths of their requests.
    asked: BTreeMap<CallId, (usize, Key, String)>,
    /// Revisions that are asked for, by collection.
    probes: BTreeMap<Source, doubt::Probe>,
    recorder: EventRecorder,
    elector: Option<LeaderElector>,
    /// The term that was looked at last, and the one since which it leads.
    term: (u64, u64),
    /// Keys with a write of unknown outcome, which wait for another term.
    doubts: Vec<(usize, Key, Write)>,
    wake: Option<(TimerId, Time)>,
    most_keys: usize,
    most_calls: usize,
    /// Whose turn is first: the last step left something over.
    first: usize,
    /// When it goes on with what was left over.
    more: Option<TimerId>,
    unseen: Unseen,
    held: Held,
    barrier: bool,
    premises: bool,
    /// Controllers hear when they begin to lead.
    heralds: bool,
    /// What a source that is read no more had still to tell is looked for.
    looks_back: bool,
    most_open: usize,
    /// How many objects are asked for at a time.
    page: usize,
    /// The first page of a list is taken for all of it.
    first_alone: bool,
}

impl Manager {
    /// A manager with no controllers. `name` is the component's name in its events.
    #[must_use]
    pub fn new(name: &'static str, rng: Rng) -> Self {
        Self {
            recorder: EventRecorder::new(name, rng.fork("events")),
            rng,
            now: Time::default(),
            prefix: "",
            lead_prefix: None,
            informers: BTreeMap::new(),
            awaited: BTreeMap::new(),
            hosted: Vec::new(),
            maps: BTreeMap::new(),
            calls: BTreeMap::new(),
            asked: BTreeMap::new(),
            probes: BTreeMap::new(),
            elector: None,
            term: (0, 0),
            doubts: Vec::new(),
            wake: None,
            most_keys: MOST_KEYS,
            most_calls: MOST_CALLS,
            first: 0,
            more: None,
            unseen: Unseen::default(),
            held: Held::default(),
            barrier: true,
            premises: true,
            heralds: true,
            looks_back: true,
            most_open: MOST_OPEN,
            page: PAGE,
            first_alone: false,
        }
    }
    /// Tells its measures under names that begin with this, as some components do.
    #[must_use]
    pub fn measuring_as(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }
    /// Tells whether it leads, too, under names that begin with this, as KubeVirt's components do. Where there is no election, it
    /// leads.
    #[must_use]
    pub fn telling_lead_as(mut self, prefix: &'static str) -> Self {
        self.lead_prefix = Some(prefix);
        self
    }
    /// Keeps only so many objects of each kind as values, and packs all others: simulators choose few, so that this is played.
    #[must_use]
    pub fn keeping_open(mut self, most_open: usize) -> Self {
        self.most_open = most_open;
        self
    }
    /// Asks for only so many objects of a list at a time: simulators choose few, so that lists of several pages are played.
    #[must_use]
    pub fn listing_by(mut self, page: usize) -> Self {
        self.page = page;
        self
    }
    /// Looks at only so many keys in a step, and has only so many requests of each controller under way: simulators choose few, so
    /// that this is played.
    #[must_use]
    pub fn taking_turns(mut self, most_keys: usize, most_calls: usize) -> Self {
        (self.most_keys, self.most_calls) = (most_keys, most_calls);
        self
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
    /// Plants the bug that controllers do not hear when they begin to lead, and go on with what they saw when they led before.
    /// For simulators, which must find it; never for a real process.
    #[must_use]
    pub fn with_planted_memory(mut self) -> Self {
        self.heralds = false;
        self
    }
    /// Plants the bug that nobody looks once more at what objects concerned of a source that is read no more. For simulators, which
    /// must find it; never for a real process.
    #[must_use]
    pub fn with_planted_forgetting(mut self) -> Self {
        self.looks_back = false;
        self
    }
    /// Plants the bug that the first page of a list is taken for all of it: what is on the others is not known, and what was known
    /// of it counts as gone. For simulators, which must find it; never for a real process.
    #[must_use]
    pub fn with_planted_first_pages(mut self) -> Self {
        self.first_alone = true;
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
            queue: WorkQueue::with_first_delay(controller.first_retry()),
            controller,
            sources: BTreeSet::new(),
            required: BTreeSet::new(),
            runs: BTreeMap::new(),
            calls: 0,
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
        View::of(&self.informers)
    }
    /// Whether all caches are synced and no key is queued, running or held, and no write waits. Delayed keys don't count.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let idle = |hosted: &Hosted| hosted.queue.is_idle() && hosted.patient.is_empty();
        self.informers.values().all(|i| i.synced()) && self.hosted.iter().all(idle)
    }

    /// Has a controller look at a key again: something beside the caches has changed on which its decision rests.
    pub fn look_again(&mut self, now: Time, controller: &str, key: Key, fx: &mut Effects<Never>) {
        self.now = now;
        for hosted in self.hosted.iter_mut().filter(|h| h.controller.name() == controller) {
            hosted.queue.add(key.clone(), now);
        }
        self.dispatch(now, fx);
    }

    fn start(&mut self, now: Time, fx: &mut Effects<Never>) {
        for i in 0..self.hosted.len() {
            let mut setup = new_setup(&self.informers);
            self.hosted[i].controller.setup(&mut setup);
            let parts = setup.parts;
            let added = self.apply(i, parts, fx);
            self.hosted[i].sources.extend(added.iter().cloned());
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
            informer.pack_beyond(self.most_open);
            informer.list_by(self.page, self.first_alone);
            informer.start(fx);
            self.awaited.extend(informer.awaits().into_iter().flatten().map(|awaited| (awaited, source.clone())));
        }
        for (source, adjust) in parts.adjustments {
            if let Some(informer) = self.informers.get_mut(&source) {
                adjust(informer.as_mut());
            }
        }
        let mut sources = Vec::new();
        for (source, map) in parts.maps {
            if let Some(informer) = self.informers.get(&source) {
                let view = View::of(&self.informers);
                for delta in informer.all_as_added() {
                    for key in map(delta.as_ref(), &view) {
                        self.hosted[i].queue.add(key, self.now);
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
                for awaited in informer.awaits().into_iter().flatten() {
                    self.awaited.remove(&awaited);
                }
                informer.stop(fx);
                // Whoever would hear of its objects looks as if they were gone: its watch may have had that still to tell, and
                // nobody else does. What became of them is for those to prove who need to know.
                if self.looks_back {
                    self.queue_concerned(&source, &informer.all_as_added());
                }
            }
            self.maps.remove(&source);
            self.held.dropped(&source);
            // What was written there is shown to nobody any more.
            let (group, plural) = (&source.resource.group, &source.resource.plural);
            if !self.informers.keys().any(|s| s.selector.is_whole() && is_of(s, group, plural)) {
                self.unseen.shown(group, plural, u64::MAX);
            }
            for hosted in &mut self.hosted {
                hosted.sources.remove(&source);
                hosted.required.remove(&source);
            }
        }
        sources
    }

    /// Keys that changes of a source concern are looked at.
    fn queue_concerned(&mut self, source: &Source, deltas: &[Box<dyn Any>]) {
        let view = View::of(&self.informers);
        for (i, map) in self.maps.get(source).into_iter().flatten() {
            for delta in deltas {
                for key in map(delta.as_ref(), &view) {
                    self.hosted[*i].queue.add(key, self.now);
                }
            }
        }
    }

    /// Lists a source that is not watched, if it is read and waits for its time.
    fn hurry(&mut self, source: &Source, fx: &mut Effects<Never>) {
        self.with_informer(source, |informer| informer.hurry(fx));
    }

    /// Lists those of some sources that are not watched.
    fn hurry_all<'a>(&mut self, sources: impl Iterator<Item = &'a Source>, fx: &mut Effects<Never>) {
        for source in sources.filter(|source| source.every.is_some()).collect::<BTreeSet<_>>() {
            self.hurry(source, fx);
        }
    }

    /// Does something to an informer after which it may wait for something else.
    fn with_informer(&mut self, source: &Source, act: impl FnOnce(&mut dyn AnyInformer)) {
        if let Some(informer) = self.informers.get_mut(source) {
            for awaited in informer.awaits().into_iter().flatten() {
                self.awaited.remove(&awaited);
            }
            act(informer.as_mut());
            self.awaited.extend(informer.awaits().into_iter().flatten().map(|awaited| (awaited, source.clone())));
        }
    }

    /// Gives an input to the informer that waits for it. True when there is one.
    fn feed(&mut self, now: Time, input: &Input<Never>, fx: &mut Effects<Never>) -> bool {
        let Some(source) = Awaited::of(input).and_then(|awaited| self.awaited.remove(&awaited)) else { return false };
        let Some(informer) = self.informers.get_mut(&source) else { return false };
        // A timer may end what it waited for besides.
        if matches!(input, Input::Timer(_)) {
            for awaited in informer.awaits().into_iter().flatten() {
                self.awaited.remove(&awaited);
            }
        }
        let deltas = informer.step_any(now, input, fx);
        // What has shown enough once stays so for this term.
        if informer.caught_up() {
            self.hosted.iter_mut().for_each(|hosted| _ = hosted.required.remove(&source));
        }
        self.awaited.extend(informer.awaits().into_iter().flatten().map(|awaited| (awaited, source.clone())));
        // A timer that nobody waits for any more is nobody's.
        let Some(deltas) = deltas else { return false };
        if !deltas.is_empty() {
            self.observe(&source, &deltas, fx);
        }
        self.release(now, &source, &deltas);
        true
    }

    fn observe(&mut self, source: &Source, deltas: &[Box<dyn Any>], fx: &mut Effects<Never>) {
        self.queue_concerned(source, deltas);
        let concerned: BTreeSet<usize> = self.maps.get(source).into_iter().flatten().map(|(i, _)| *i).collect();
        for i in concerned {
            let mut setup = new_setup(&self.informers);
            self.hosted[i].controller.more_watches(&View::of(&self.informers), &mut setup);
            let parts = setup.parts;
            self.apply(i, parts, fx);
        }
    }

    /// Lets go of keys whose barrier is reached now that a cache has got on.
    fn release(&mut self, now: Time, source: &Source, deltas: &[Box<dyn Any>]) {
        let (group, plural) = (&source.resource.group, &source.resource.plural);
        if self.unseen.has_written(group, plural) {
            let of = |s: &Source| s.selector.is_whole() && is_of(s, group, plural);
            let all = self.informers.iter().filter(|(s, _)| of(s)).map(|(_, informer)| informer.revision());
            self.unseen.shown(group, plural, all.min().unwrap_or(u64::MAX));
        }
        let informer = self.informers.get(source);
        let revision = informer.map_or(0, |informer| informer.revision());
        let changed = deltas.iter().filter_map(|delta| informer?.key_of(delta.as_ref()));
        let free = self.held.shown(source, revision, changed);
        for (i, key) in free {
            self.try_finish(now, i, &key);
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
        if run.pending > 0 || !run.writes.is_empty() {
            return;
        }
        if let Some(barrier) = run.barriers.iter().find(|barrier| !self.reached(barrier)) {
            self.held.file(barrier, (i, key.clone()));
            return;
        }
        let hosted = &mut self.hosted[i];
        let Some(run) = hosted.runs.remove(key) else { return };
        if run.failed || run.left_out || run.again {
            hosted.controller.undone(key);
        }
        if run.failed || run.left_out {
            hosted.queue.add_failed(key.clone(), now, &mut self.rng);
        } else if !run.again {
            // One that stepped back has tried nothing: two keys that do so before each other, and fail by turns, would never wait.
            hosted.queue.succeeded(key);
        }
        if let Some(after) = run.requeue_after {
            hosted.queue.add_at(key.clone(), now + after);
        }
        if run.again {
            hosted.queue.add(key.clone(), now);
        }
        hosted.queue.done(key, now);
    }

    fn dispatch(&mut self, now: Time, fx: &mut Effects<Never>) {
        if self.elector.as_ref().is_some_and(|e| !e.leading(now)) {
            self.hosted.iter_mut().for_each(|hosted| hosted.patient.clear());
            return;
        }
        let (count, first, mut looked) = (self.hosted.len(), std::mem::take(&mut self.first), 0);
        for i in (first..count).chain(0..first) {
            if !self.hosted[i].required.is_empty() {
                continue;
            }
            while looked < self.most_keys
                && self.hosted[i].calls < self.most_calls
                && let Some(key) = self.hosted[i].queue.take(now)
            {
                looked += 1;
                self.decide(now, i, key, Answers::new(), fx);
            }
            if looked >= self.most_keys {
                self.first = (i + 1) % count;
                self.more = self.more.or_else(|| Some(fx.timer(now)));
                break;
            }
        }
        // What waits for its caches looks when they have come, whatever is due by then. So does what was left over: each
        // answer is another step.
        let ready = self.hosted.iter().filter(|hosted| hosted.required.is_empty());
        let due = ready.filter_map(|hosted| hosted.queue.next_due()).filter(|due| *due > now).min();
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
            premises: if self.premises { plan.premises } else { Vec::new() },
            told: told.into(),
            requeue_after: plan.requeue_after,
            failed: plan.error.is_some(),
            apart: plan.apart,
            since: self.term.1,
            term: self.term.0,
            ..Run::default()
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

    /// Whether somebody else may act by now, or may have since a run began.
    fn is_outdated(&self, now: Time, i: usize, key: &Key) -> bool {
        self.hosted[i].runs.get(key).is_some_and(|run| run.since != self.term.1)
            || self.elector.as_ref().is_some_and(|elector| !elector.leading(now))
    }

    fn next_write(&mut self, now: Time, i: usize, key: &Key, fx: &mut Effects<Never>) {
        if self.is_outdated(now, i, key) {
            // What is left of the plan rests on what was seen before.
            return self.fail(now, i, key);
        }
        if self.steps_back(i, key, fx) {
            return self.try_finish(now, i, key);
        }
        let run = self.hosted[i].runs.get_mut(key);
        match run.and_then(|run| Some((run.request()?, run))) {
            Some((mut request, run)) => {
                let tenure = self.elector.as_ref().and_then(LeaderElector::tenure);
                if let Some(tenure) = tenure.filter(|_| self.premises && request.method != Method::Get) {
                    request.rests_on.push(tenure.premise.clone());
                }
                let id = fx.api(request);
                run.term = self.term.0;
                if let Some(write) = run.writes.front_mut() {
                    self.unseen.sent(id, (i, key.clone()), write);
                    write.drop_body();
                }
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
        let barriers = barriers
            .filter(|s| s.selector.is_all_of(&target.key.namespace))
            .map(|source| Barrier::AtLeast(source, revision));
        barriers.filter(|barrier| !self.reached(barrier)).collect()
    }

    /// A write has come back: those who waited for it look again, once they can see it.
    fn tell_waiting(&mut self, now: Time, id: CallId, result: &Result<ApiResponse, ApiError>, fx: &mut Effects<Never>) {
        // The replies to reads may be long, and nobody waits for them here.
        if !self.unseen.is_under_way(id) {
            return;
        }
        let revision = result.as_ref().ok().map_or(0, revision_of);
        let informers = &self.informers;
        let shows = |s: &Source, target: &Target| {
            s.selector.is_all_of(&target.key.namespace) && is_of(s, &target.group, &target.plural)
        };
        let is_read = |target: &Target| informers.keys().any(|source| shows(source, target));
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

    /// Lets the elector take an input that is its own.
    fn step_elector(&mut self, now: Time, input: &Input<Never>, fx: &mut Effects<Never>) -> bool {
        let Some(elector) = &mut self.elector else { return false };
        let mut calls = self.calls.iter();
        elector.awaits(calls.find(|(_, (.., kind))| *kind == CallKind::Write).map(|(id, _)| *id));
        elector.step(now, input, fx)
    }

    /// Notes a call that a run waits for.
    fn note_call(&mut self, id: CallId, i: usize, key: &Key, kind: CallKind) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.pending += 1;
        }
        self.hosted[i].calls += 1;
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

    /// Records an event of a controller's.
    fn tell(&mut self, now: Time, i: usize, event: EventRecord, fx: &mut Effects<Never>) {
        let event = event.of_component(self.hosted[i].controller.event_source());
        self.recorder.record(now, event, fx);
    }

    fn fail(&mut self, now: Time, i: usize, key: &Key) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.failed = true;
            run.told.clear();
            run.writes.clear();
        }
        self.try_finish(now, i, key);
    }
}

impl Core for Manager {
    type In = Never;
    type Out = Never;

    fn step(&mut self, now: Time, input: Input<Never>, fx: &mut Effects<Never>) {
        self.now = now;
        if matches!(input, Input::Start) {
            self.start(now, fx);
        } else if matches!(&input, Input::Timer(id) if self.more == Some(*id)) {
            self.more = None;
        } else if !self.step_probes(now, &input, fx)
            && !self.recorder.step(now, &input, fx)
            && !self.step_elector(now, &input, fx)
            && !self.feed(now, &input, fx)
            && let Input::Api { id, result } = input
        {
            if let Some(call) = self.calls.remove(&id) {
                self.hosted[call.0].calls = self.hosted[call.0].calls.saturating_sub(1);
                self.one_less(call.0, &call.1);
                self.tell_waiting(now, id, &result, fx);
                self.answered(now, call, result, fx);
            } else if let Some(asked) = self.asked.remove(&id) {
                self.heard(now, asked, result, fx);
            }
        }
        self.look_at_term(now, fx);
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

    fn measures(&self, now: Time) -> String {
        let queues: Vec<_> = self.hosted.iter().map(|hosted| (hosted.controller.name(), &hosted.queue)).collect();
        let mut page = Page::default();
        tell(&mut page, self.prefix, &queues, now);
        if let Some(prefix) = self.lead_prefix {
            let leads = self.elector.as_ref().is_none_or(|elector| elector.leading(now));
            page.family(&format!("{prefix}_leading_status"), "gauge", "Whether it leads.").value(&[], u8::from(leads));
            // Who answers stands for election, or leads.
            page.family(&format!("{prefix}_ready_status"), "gauge", "Whether it is ready to lead.").value(&[], 1);
        }
        page.text()
    }
}

/// Whether a source is of a resource, in whatever version.
fn is_of(source: &Source, group: &str, plural: &str) -> bool {
    source.resource.plural == plural && source.resource.group == group
}

/// The revision of the object in a reply; 0 when it has none.
fn revision_of(reply: &ApiResponse) -> u64 {
    reply.json::<OnlyRevision>().ok().and_then(|only| only.metadata.resource_version.parse().ok()).unwrap_or(0)
}

fn new_setup(existing: &BTreeMap<Source, Box<dyn AnyInformer>>) -> Setup<'_> {
    Setup { existing, parts: Parts::default() }
}
