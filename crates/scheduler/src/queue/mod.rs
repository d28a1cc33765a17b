//! Pods that wait for a node, each owned by this queue from its arrival until it is bound or gone.
//!
//! ```text
//!   add ─▶ gated ──gates gone──▶ active ──pop──▶ in flight ──done──▶ (bound: not here any more)
//!                                 ▲  ▲               │  │
//!                                 │  └── backoff ◀───│──┘ failed on the way
//!                                 │        ▲         ▼ nobody fits
//!                                 │        └── unschedulable (leaves by an event that a plugin of those
//!                                 └────────────┘              that refused it says may help, or after five minutes)
//! ```
//!
//! There is one table. A pod is nominated to a node as long as its row says so: when the row goes, the nomination has
//! gone. A pod that is in flight is not popped again, whatever is heard of it; what was heard waits for its cycle's end.
//! Who has to wait for an extender waits here, where it keeps its place and nothing has to be remembered for it
//! ([`SchedulingQueue::pop_plain`]).

mod events;
mod hints;
mod rows;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::Time;

use crate::extender::Extender;
use crate::{Cluster, Plugin, PluginSet, PodInfo, Profile, Stopwatch};

pub use events::Event;
use events::{Waiting, helps, may_become_free};
pub use hints::Hints;
use rows::Rows;
pub use rows::{Place, Row};

/// How long pods wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// First delay of a pod that was not scheduled.
    pub first_backoff: Duration,
    /// Longest one.
    pub max_backoff: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first_backoff: Duration::from_secs(1), max_backoff: Duration::from_secs(10) }
    }
}

/// After so long an unschedulable pod is tried again whatever happened.
const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);
/// So many events are kept for pods in flight; who has missed some is tried again.
const MOST_EVENTS: usize = 10_000;

/// How many pods wait where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Can be popped now.
    pub active: usize,
    /// Wait for a time.
    pub backoff: usize,
    /// Wait for an event.
    pub unschedulable: usize,
    /// Wait for their gates to be removed.
    pub gated: usize,
    /// Were popped, and are neither bound nor back.
    pub in_flight: usize,
}

/// The queue. A pod UID is in it at most once.
#[derive(Debug, Default)]
pub struct SchedulingQueue {
    rows: Rows,
    patience: Patience,
    /// Those that are asked where pods are to go.
    extenders: Vec<Extender>,
    /// Events since the oldest pod in flight that looks for a node was popped, with the number of the first.
    events: VecDeque<Event>,
    first_event: u64,
    /// How many came into which part, and why.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
    hints: Hints,
    /// Planted: pods are not told what becomes of the node that is being made free for them.
    deaf_nominees: bool,
}

/// Why a pod comes into a part of the queue, where no event of the cluster brings it: upstream's names.
mod why {
    pub const NEW: &str = "UnschedulablePodAdd";
    pub const CHANGED: &str = "TargetPodUpdate";
    pub const RELABELLED: &str = "TargetPodUpdatePodLabel";
    pub const ASKS_LESS: &str = "TargetPodUpdatePodScaleDown";
    pub const TOLERATES: &str = "TargetPodUpdatePodToleration";
    pub const UNGATED: &str = "TargetPodUpdatePodSchedulingGatesEliminated";
    pub const REFUSED: &str = "ScheduleAttemptFailure";
    pub const BACKOFF_OVER: &str = "BackoffComplete";
    pub const HAD_THE_FIELD: &str = "PopFromBackoffQ";
    pub const WAITED_LONG: &str = "UnschedulableTimeout";
    pub const HURRIED: &str = "ForceActivate";
}

fn gates(pod: &PodInfo) -> usize {
    pod.spec().scheduling_gates.as_ref().map_or(0, Vec::len)
}

/// What changed about a pod that waits, by upstream's name (framework/events.go, `PodSchedulingPropertiesChange`).
fn change_of(old: &PodInfo, new: &PodInfo) -> &'static str {
    if gates(old) > 0 && gates(new) == 0 {
        why::UNGATED
    } else if old.kind != new.kind {
        why::RELABELLED
    } else if new.asks_less_than(old) {
        why::ASKS_LESS
    } else if old.spec().tolerations != new.spec().tolerations {
        why::TOLERATES
    } else {
        why::CHANGED
    }
}

/// The node that a pod's status names.
fn written_nomination(pod: &PodInfo) -> Option<&str> {
    pod.pod.nominated.as_deref()
}

/// Whether an event may help a pod beside those that are nominated to the event's node, as some plugins say.
fn may_help(rows: &Rows, hints: &mut Hints, row: &Row, event: &Event, asked: PluginSet, cluster: &Cluster) -> bool {
    let nominated = event.room_of().map(|node| rows.nominated(node)).unwrap_or_default();
    helps(waiting(row, &nominated), event, asked, cluster, hints)
}

/// A row as events see it, beside who is nominated to the event's node.
fn waiting<'a>(row: &'a Row, nominated: &'a [Arc<PodInfo>]) -> Waiting<'a> {
    Waiting { pod: &row.pod, profile: &row.profile, refused_by: row.refused_by, nominated }
}

impl SchedulingQueue {
    /// Has the time that plugins take to think about events told by this stopwatch.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.hints.set_stopwatch(stopwatch);
    }
    /// How long plugins thought about events.
    #[must_use]
    pub fn hints(&self) -> &Hints {
        &self.hints
    }
    /// A queue with these delays.
    #[must_use]
    pub fn new(patience: Patience) -> Self {
        Self { patience, ..Self::default() }
    }
    /// Pods about which one of these is asked have to wait for it.
    #[must_use]
    pub fn with_extenders(self, extenders: &[Extender]) -> Self {
        Self { extenders: extenders.iter().filter(|e| e.is_asked()).cloned().collect(), ..self }
    }
    /// Errors have a backoff of their own (backend/queue, `calculateBackoffDuration`): how long nobody has taken a pod says nothing of
    /// how soon the API server will answer again.
    fn backoff_end(&self, row: &Row) -> Time {
        let count = if row.errors > 0 { row.errors } else { row.refusals };
        let doublings = count.saturating_sub(1).min(16);
        row.failed + self.patience.first_backoff.saturating_mul(1 << doublings).min(self.patience.max_backoff)
    }

    /// Plants the bug that pods are not told what becomes of the node that is being made free for them, but for room there. For the
    /// simulator, which must find it; never for a real process.
    pub(crate) fn deafen_nominees(&mut self) {
        self.deaf_nominees = true;
    }

    fn put(&mut self, row: Row, why: &'static str) {
        *self.incoming.entry((row.place.name(), why)).or_default() += 1;
        self.rows.put(row);
    }

    /// A pod came, or changed. One that is in flight stays so; its next attempt sees what it has become.
    pub fn set(&mut self, pod: Arc<PodInfo>, profile: Arc<Profile>, now: Time) {
        let uid = pod.uid.clone();
        let gated = gates(&pod) > 0 && profile.gates;
        let asks = self.extenders.iter().any(|extender| extender.is_interested(&pod.pod));
        let Some(mut row) = self.rows.take(&uid) else {
            let row = Row {
                // A nomination that outlived the scheduler that made it counts until the pod's first attempt.
                nominated: written_nomination(&pod).map(Arc::from),
                pod,
                profile,
                asks,
                place: if gated { Place::Gated } else { Place::Active },
                attempts: 0,
                refusals: 0,
                errors: 0,
                first_seen: now,
                entered: now,
                popped: now,
                failed: now,
                flushed: false,
                refused_by: PluginSet::default(),
                wrote: Vec::new(),
            };
            return self.put(row, why::NEW);
        };
        let old = std::mem::replace(&mut row.pod, pod);
        let before = row.place;
        // Somebody else may say where it is to go (`NominatedNodeNameForExpectation`). What this scheduler wrote it knows, and may
        // have thought better of it since. Whoever is in flight is beyond that.
        let written: Option<Arc<str>> = written_nomination(&row.pod).map(Arc::from);
        if written_nomination(&old) != written.as_deref()
            && !row.has_written(written.as_deref())
            && !matches!(before, Place::InFlight { .. })
        {
            row.nominated = written;
        }
        row.profile = profile;
        row.asks = asks;
        let changed = !old.is_like(&row.pod)
            || old.pod.annotations() != row.pod.pod.annotations() && row.refused_by.has(Plugin::Extender);
        row.place = match row.place {
            place @ Place::InFlight { .. } => place,
            _ if gated => Place::Gated,
            Place::Gated => Place::Active,
            Place::Unschedulable { .. } if changed => self.after_event(&row, now),
            place => place,
        };
        // An update does not lose a pod its place among those that came with it.
        if row.place == before {
            return self.rows.put(row);
        }
        row.entered = if row.place == Place::Active { now } else { row.entered };
        // Whoever holds it back by a gate is none of this queue's slowness.
        if before == Place::Gated && row.attempts == 0 {
            row.first_seen = now;
        }
        let what = change_of(&old, &row.pod);
        self.put(row, what);
    }
    /// Where a row goes whose wait was ended by an event.
    fn after_event(&self, row: &Row, now: Time) -> Place {
        let until = self.backoff_end(row);
        if until <= now { Place::Active } else { Place::Backoff { until, failed: false } }
    }
    /// A pod went, or was bound.
    pub fn remove(&mut self, uid: &str) -> Option<Row> {
        let row = self.rows.take(uid)?;
        self.trim();
        Some(row)
    }
    /// Takes the next pod. It is in flight until [`Self::remove`], [`Self::unschedulable`] or [`Self::retry`].
    pub fn pop(&mut self, now: Time) -> Option<Row> {
        self.pop_of(now, true)
    }
    /// Takes the next of the pods about which no extender is asked.
    pub fn pop_plain(&mut self, now: Time) -> Option<Row> {
        self.pop_of(now, false)
    }
    fn pop_of(&mut self, now: Time, with_asking: bool) -> Option<Row> {
        self.flush(now);
        let uid = self.rows.next(with_asking)?;
        let mut row = self.rows.take(&uid)?;
        if matches!(row.place, Place::Backoff { .. }) {
            *self.incoming.entry((Place::Active.name(), why::HAD_THE_FIELD)).or_default() += 1;
        }
        row.attempts += 1;
        row.popped = now;
        row.place = Place::InFlight { since_event: Some(self.next_event()) };
        self.rows.put(row.clone());
        Some(row)
    }
    /// A node was chosen for a pod in flight, which is nominated to none any more: returns the one to which it was.
    /// What happens from now on is no news to it (upstream's `Done`, before PreBind).
    pub fn chosen(&mut self, uid: &str) -> Option<Arc<str>> {
        let mut row = self.rows.take(uid)?;
        let nominated = row.nominated.take();
        if let Place::InFlight { since_event } = &mut row.place {
            *since_event = None;
        }
        self.rows.put(row);
        self.trim();
        nominated
    }
    /// A popped pod goes back as if it had not been popped.
    pub fn unpop(&mut self, uid: &str) {
        if let Some(mut row) = self.rows.take(uid) {
            row.attempts -= 1;
            row.place = Place::Active;
            self.rows.put(row);
            self.trim();
        }
    }
    /// Nobody takes the pod: it waits for an event that may help with what refused it.
    pub fn unschedulable(&mut self, uid: &str, refused_by: PluginSet, now: Time, cluster: &Cluster) {
        let Some(mut row) = self.rows.take(uid) else { return };
        let Place::InFlight { since_event } = row.place else { return self.rows.put(row) };
        row.refused_by = refused_by;
        row.refusals = row.refusals.saturating_add(1);
        row.errors = 0;
        row.flushed = false;
        row.failed = now;
        row.entered = now;
        let since_event = since_event.unwrap_or_else(|| self.next_event());
        let missed = since_event < self.first_event;
        let known = usize::try_from(since_event.saturating_sub(self.first_event)).unwrap_or(0);
        let Self { rows, hints, events, .. } = &mut *self;
        let mut heard = events.iter().skip(known);
        let mut is_told = || heard.any(|e| may_help(rows, hints, &row, e, e.plugins(), cluster));
        let helped = missed || refused_by.is_empty() || is_told();
        row.place = match helped {
            true => Place::Backoff { until: self.backoff_end(&row), failed: false },
            false => Place::Unschedulable { since: now },
        };
        self.put(row, why::REFUSED);
        self.trim();
    }
    /// Something went wrong on the way: it is tried again after a while.
    pub fn retry(&mut self, uid: &str, now: Time) {
        let Some(mut row) = self.rows.take(uid) else { return };
        if !matches!(row.place, Place::InFlight { .. }) {
            return self.rows.put(row);
        }
        row.errors = row.errors.saturating_add(1);
        row.flushed = false;
        row.failed = now;
        row.entered = now;
        row.refused_by = PluginSet::default();
        row.place = Place::Backoff { until: self.backoff_end(&row), failed: true };
        self.put(row, why::REFUSED);
        self.trim();
    }
    /// A pod that waits is tried again soon.
    pub fn hurry(&mut self, uid: &str, now: Time) {
        if let Some(mut row) = self.rows.take(uid) {
            if !matches!(row.place, Place::Unschedulable { .. }) {
                return self.rows.put(row);
            }
            row.place = self.after_event(&row, now);
            row.entered = now;
            self.put(row, why::HURRIED);
        }
    }
    /// The cluster changed.
    pub fn happened(&mut self, event: Event, now: Time, cluster: &Cluster) {
        self.happened_to_others("", event, now, cluster);
    }
    /// The cluster changed, and one pod knows of it already.
    pub fn happened_to_others(&mut self, knows: &str, event: Event, now: Time, cluster: &Cluster) {
        for uid in self.helped(&event, cluster) {
            // Somebody may be there twice.
            let waits = self.rows.get(&uid).is_some_and(|row| matches!(row.place, Place::Unschedulable { .. }));
            if waits
                && *uid != *knows
                && let Some(mut row) = self.rows.take(&uid)
            {
                row.place = self.after_event(&row, now);
                row.entered = now;
                self.put(row, event.name());
            }
        }
        if self.looking() > 0 {
            self.events.push_back(event);
            if self.events.len() > MOST_EVENTS {
                self.events.pop_front();
                self.first_event += 1;
            }
        }
    }
    /// Unschedulable pods that an event may help. Of pods that are alike one is asked, and those that are nominated to
    /// the event's node, for which there is room that the others don't have, and who look elsewhere when it will not
    /// become free for them any more. What is about volumes is asked of each whose own they may be.
    fn helped(&mut self, event: &Event, cluster: &Cluster) -> Vec<Arc<str>> {
        let (rows, hints, deaf) = (&self.rows, &mut self.hints, self.deaf_nominees);
        let (all, own) = (event.plugins(), event.plugins_about_own_volumes());
        let mut helped = Vec::new();
        for uids in rows.alike(all) {
            let elsewhere = |row: &&Row| event.room_of().is_none_or(|node| row.nominated.as_ref() != Some(node));
            let Some(one) = uids.iter().find_map(|uid| rows.get(uid).filter(elsewhere)) else { continue };
            if may_help(rows, hints, one, event, all.without(own), cluster) {
                helped.extend(uids.iter().cloned());
            } else if one.refused_by.meets(own) && !matches!(event, Event::Claim(_)) {
                let alike = uids.iter().filter_map(|uid| rows.get(uid)).filter(elsewhere);
                let woken = alike.filter(|row| may_help(rows, hints, row, event, own, cluster));
                helped.extend(woken.map(|row| row.pod.uid.clone()));
            }
        }
        if let Event::Claim(claim) = event {
            let woken = rows.claimants(claim).filter(|row| may_help(rows, hints, row, event, own, cluster));
            helped.extend(woken.map(|row| row.pod.uid.clone()));
        }
        let at = if deaf { event.room_of() } else { event.node() };
        if let Some(node) = at {
            let nominated = rows.nominated(node);
            let nominees = nominated.iter().filter_map(|pod| rows.get(&pod.uid));
            for row in nominees.filter(|row| matches!(row.place, Place::Unschedulable { .. })) {
                let has_room = event.room_of().is_some() && may_help(rows, hints, row, event, all, cluster);
                if has_room || !deaf && !may_become_free(waiting(row, &nominated), node, cluster) {
                    helped.push(row.pod.uid.clone());
                }
            }
        }
        helped
    }
    /// Whether a node may still take a pod for which it is being made free, or is to be.
    #[must_use]
    pub fn may_become_free(&self, row: &Row, node: &str, cluster: &Cluster) -> bool {
        may_become_free(waiting(row, &self.rows.nominated(node)), node, cluster)
    }
    /// How many pods in flight look for a node.
    #[must_use]
    pub fn looking(&self) -> usize {
        self.rows.looking()
    }
    /// Number of the first event that has not come yet.
    fn next_event(&self) -> u64 {
        self.first_event + self.events.len() as u64
    }
    /// Forgets events that all pods in flight that look for a node knew when they were popped.
    fn trim(&mut self) {
        let unknown = self.rows.first_unknown().unwrap_or_else(|| self.next_event());
        while self.first_event < unknown && self.events.pop_front().is_some() {
            self.first_event += 1;
        }
    }
    /// Pods whose time has come.
    fn flush(&mut self, now: Time) {
        while let Some(uid) = self.rows.due(now, MAX_UNSCHEDULABLE) {
            let Some(mut row) = self.rows.take(&uid) else { break };
            let waited_long = matches!(row.place, Place::Unschedulable { .. });
            let why = if waited_long { why::WAITED_LONG } else { why::BACKOFF_OVER };
            row.flushed |= waited_long;
            row.place = match row.place {
                Place::Unschedulable { .. } => self.after_event(&row, now),
                _ => Place::Active,
            };
            row.entered = now;
            self.put(row, why);
        }
    }
    /// When the next pod is due that waits for its time.
    #[must_use]
    pub fn next_due(&self) -> Option<Time> {
        self.rows.next_due(MAX_UNSCHEDULABLE)
    }

    /// Says to which node a pod is nominated, if it is in the queue. Returns the node that it was nominated to.
    pub fn nominate(&mut self, uid: &str, node: Option<Arc<str>>) -> Option<Arc<str>> {
        let mut row = self.rows.take(uid)?;
        let old = std::mem::replace(&mut row.nominated, node);
        self.rows.put(row);
        old
    }
    /// A pod's nomination is being written into its status: once it is seen there, it is no news.
    pub fn wrote_nomination(&mut self, uid: &str, node: Option<&str>) {
        self.rows.wrote(uid, node.map(Arc::from));
    }
    /// Pods that are not in flight are nominated to where their status says, whoever wrote it. Returns those that were
    /// nominated elsewhere, with the node.
    pub fn take_nominations_as_written(&mut self) -> Vec<(Arc<PodInfo>, Arc<str>)> {
        // Nothing that was written in a former term is still to be seen.
        self.rows.forget_written();
        let differs = |row: &Row| row.nominated.as_deref() != written_nomination(&row.pod);
        let waits = |row: &&Row| !matches!(row.place, Place::InFlight { .. }) && differs(row);
        let pods: Vec<Arc<PodInfo>> = self.rows.iter().filter(waits).map(|row| row.pod.clone()).collect();
        let mut renounced = Vec::new();
        for pod in pods {
            let written = written_nomination(&pod).map(Arc::from);
            renounced.extend(self.nominate(&pod.uid, written).map(|before| (pod, before)));
        }
        renounced
    }
    /// Pods that are nominated to a node.
    pub fn nominated_to<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        self.rows.nominated_to(node)
    }
    /// All nominations: pod and node.
    pub fn nominations(&self) -> impl Iterator<Item = (&Arc<PodInfo>, &str)> {
        self.rows.iter().filter_map(|row| Some((&row.pod, row.nominated.as_deref()?)))
    }
    /// Nodes whose nominations changed since this was last asked.
    pub fn renominated(&mut self) -> Vec<Arc<str>> {
        self.rows.renominated()
    }
    /// A pod in the queue, in flight or not.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Row> {
        self.rows.get(uid)
    }
    /// All pods.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Row> {
        self.rows.iter()
    }
    /// Reads all pods again. Whoever is in flight may have missed something then.
    pub fn reread(&mut self, mut read: impl FnMut(&Arc<PodInfo>) -> Arc<PodInfo>) {
        let uids: Vec<Arc<str>> = self.rows.iter().map(|row| row.pod.uid.clone()).collect();
        for uid in uids {
            if let Some(mut row) = self.rows.take(&uid) {
                row.pod = read(&row.pod);
                self.rows.put(row);
            }
        }
        self.first_event += self.events.len() as u64 + 1;
        self.events.clear();
    }
    /// How many wait where.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.rows.counts()
    }
    /// How many unschedulable pods each plugin has refused, or holds back, by the name of their profile.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<(Plugin, &str), usize> {
        let mut refused = BTreeMap::new();
        for row in self.rows.iter() {
            let by = match row.place {
                Place::Unschedulable { .. } => row.refused_by,
                Place::Gated => PluginSet::of(Plugin::SchedulingGates),
                Place::Active | Place::Backoff { .. } | Place::InFlight { .. } => PluginSet::default(),
            };
            for plugin in by.iter() {
                *refused.entry((plugin, row.profile.scheduler_name.as_str())).or_default() += 1;
            }
        }
        refused
    }
    /// How many pods came into which part of it, and why.
    pub fn incoming(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.incoming.iter().map(|((queue, event), count)| (*queue, *event, *count))
    }
    /// How many events of each name are kept for pods in flight.
    #[must_use]
    pub fn kept_events(&self) -> BTreeMap<&'static str, usize> {
        let mut kept = BTreeMap::new();
        for event in &self.events {
            *kept.entry(event.name()).or_default() += 1;
        }
        kept
    }
}

#[cfg(test)]
mod tests;
