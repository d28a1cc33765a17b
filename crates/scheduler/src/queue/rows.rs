//! The table under the queue, with its orders. Whatever is found by an order is found in the table.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::Time;

use super::Counts;
use crate::cluster::ObjectName;
use crate::pod_info::Shape;
use crate::{Plugin, PluginSet, PodInfo, Profile};

/// Where a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Can be popped now.
    Active,
    /// Waits for a time. One that `failed` waits it out; another is popped earlier when nobody else is there.
    Backoff {
        /// When it can be popped.
        until: Time,
        /// Something went wrong, other than that nobody took it.
        failed: bool,
    },
    /// Waits for an event.
    Unschedulable {
        /// Since when.
        since: Time,
    },
    /// Waits for its gates to be removed.
    Gated,
    /// Was popped, and is neither bound nor back.
    InFlight {
        /// Number of the first event that its cycle does not know. None once a node was chosen: if it comes back, it is
        /// tried again whatever has happened.
        since_event: Option<u64>,
    },
}

impl Place {
    /// The part of the queue, by upstream's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Backoff { .. } => "backoff",
            Self::Unschedulable { .. } => "unschedulable",
            Self::Gated => "gated",
            Self::InFlight { .. } => "inflight",
        }
    }
}

/// A pod in the queue.
#[derive(Clone, Debug)]
pub struct Row {
    /// The pod, as last heard of.
    pub pod: Arc<PodInfo>,
    /// Its plugins.
    pub profile: Arc<Profile>,
    /// Whether an extender is asked where it is to go.
    pub asks: bool,
    /// Where it is.
    pub place: Place,
    /// How often it was popped.
    pub attempts: u32,
    /// How often nobody took it.
    pub refusals: u32,
    /// How often something went wrong since nobody last took it.
    pub errors: u32,
    /// When it first came, or was held back by gates no more.
    pub first_seen: Time,
    /// Since when it waits for its turn: equal priorities are popped in this order.
    pub entered: Time,
    /// When it was last popped.
    pub popped: Time,
    /// When it last came back.
    pub failed: Time,
    /// It was last popped since it had waited long, though no event said that this would help.
    pub flushed: bool,
    /// Plugins that refused it on some node.
    pub refused_by: PluginSet,
    /// The node that is being made free for it, or that somebody else has named for it.
    pub nominated: Option<Arc<str>>,
    /// What of that was written into its status, and was not seen there yet, the oldest first.
    pub(super) wrote: Vec<Option<Arc<str>>>,
}

/// So many nominations that were written and never seen are kept of a pod.
const MOST_WRITTEN: usize = 8;

/// Pods with the same one that the same plugins refused are helped by the same events, but for those that are about the
/// volumes of one of them.
pub(super) type Alike = (u32, Shape);

impl Row {
    fn alike(&self) -> Alike {
        (self.pod.kind, self.pod.shape.clone())
    }
    /// The claims of which each change is news to it.
    fn claims_to_hear_of(&self) -> impl Iterator<Item = ObjectName> {
        let claims = if self.refused_by.has(Plugin::VolumeBinding) { self.pod.claims() } else { &[] };
        claims.iter().map(|claim| (self.pod.namespace().to_owned(), claim.name.clone()))
    }
    /// Whether its status says that it is nominated so, and nothing else was written since.
    pub(crate) fn is_written(&self, nomination: Option<&str>) -> bool {
        self.pod.pod.nominated.as_deref() == nomination
            && self.wrote.last().is_none_or(|wrote| wrote.as_deref() == nomination)
    }
    /// Whether this scheduler wrote the nomination that the pod's status has now; then nothing that it wrote before will be
    /// seen any more.
    pub(super) fn has_written(&mut self, nomination: Option<&str>) -> bool {
        let at = self.wrote.iter().position(|wrote| wrote.as_deref() == nomination);
        if let Some(at) = at {
            drop(self.wrote.drain(..=at));
        }
        at.is_some()
    }
}

type ActiveKey = (Reverse<i32>, Time, Arc<str>);

/// Pods in the order in which they are popped. Those that an extender is asked about have a lane of their own, since
/// they wait for it, too, and hold up nobody else meanwhile.
#[derive(Debug, Default)]
struct Lanes {
    plain: BTreeSet<ActiveKey>,
    asking: BTreeSet<ActiveKey>,
}

impl Lanes {
    fn keep(&mut self, row: &Row, add: bool) {
        let lane = if row.asks { &mut self.asking } else { &mut self.plain };
        keep(lane, (Reverse(row.pod.priority), row.entered, row.pod.uid.clone()), add);
    }
    fn first(&self, with_asking: bool) -> Option<&ActiveKey> {
        let asking = self.asking.first().filter(|_| with_asking);
        self.plain.first().into_iter().chain(asking).min()
    }
    fn len(&self) -> usize {
        self.plain.len() + self.asking.len()
    }
}

fn keep<T: Ord>(set: &mut BTreeSet<T>, value: T, add: bool) {
    if add {
        set.insert(value);
    } else {
        set.remove(&value);
    }
}

fn file<K: Ord>(map: &mut BTreeMap<K, BTreeSet<Arc<str>>>, key: K, uid: Arc<str>, add: bool) {
    if add {
        map.entry(key).or_default().insert(uid);
    } else if let Some(uids) = map.get_mut(&key) {
        uids.remove(&uid);
        if uids.is_empty() {
            map.remove(&key);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: BTreeMap<Arc<str>, Row>,
    active: Lanes,
    /// Pods that wait for a time, and those that can do with less.
    backoff: BTreeSet<(Time, Arc<str>)>,
    impatient: Lanes,
    unschedulable: BTreeSet<(Time, Arc<str>)>,
    /// By the plugins that refused them, so that those whom an event cannot help need not be gone through.
    alike: BTreeMap<PluginSet, BTreeMap<Alike, BTreeSet<Arc<str>>>>,
    /// Those that wait for an event, by the claims that may be it.
    claimants: BTreeMap<ObjectName, BTreeSet<Arc<str>>>,
    nominees: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    renominated: Vec<Arc<str>>,
    gated: usize,
    in_flight: usize,
    /// How many pods in flight that look for a node know all events before one of this number.
    since_events: BTreeMap<u64, usize>,
}

impl Rows {
    pub fn put(&mut self, row: Row) {
        self.order(&row, true);
        self.rows.insert(row.pod.uid.clone(), row);
    }
    pub fn take(&mut self, uid: &str) -> Option<Row> {
        let row = self.rows.remove(uid)?;
        self.order(&row, false);
        Some(row)
    }
    fn order(&mut self, row: &Row, add: bool) {
        let uid = row.pod.uid.clone();
        let step = |count: usize| if add { count + 1 } else { count.saturating_sub(1) };
        match row.place {
            Place::Active => self.active.keep(row, add),
            Place::Backoff { until, failed } => {
                keep(&mut self.backoff, (until, uid), add);
                if !failed {
                    self.impatient.keep(row, add);
                }
            }
            Place::Unschedulable { since } => {
                keep(&mut self.unschedulable, (since, uid.clone()), add);
                for claim in row.claims_to_hear_of() {
                    file(&mut self.claimants, claim, uid.clone(), add);
                }
                let groups = self.alike.entry(row.refused_by).or_default();
                file(groups, row.alike(), uid, add);
                if groups.is_empty() {
                    self.alike.remove(&row.refused_by);
                }
            }
            Place::Gated => self.gated = step(self.gated),
            Place::InFlight { since_event } => {
                self.in_flight = step(self.in_flight);
                if let Some(since) = since_event {
                    let count = step(self.since_events.get(&since).copied().unwrap_or(0));
                    if count > 0 {
                        self.since_events.insert(since, count);
                    } else {
                        self.since_events.remove(&since);
                    }
                }
            }
        }
        if let Some(node) = &row.nominated {
            file(&mut self.nominees, node.clone(), row.pod.uid.clone(), add);
            if self.renominated.last() != Some(node) {
                self.renominated.push(node.clone());
            }
        }
    }
    pub fn get(&self, uid: &str) -> Option<&Row> {
        self.rows.get(uid)
    }
    /// A pod's nomination is written into its status.
    pub fn wrote(&mut self, uid: &str, nomination: Option<Arc<str>>) {
        let Some(row) = self.rows.get_mut(uid).filter(|row| row.wrote.last() != Some(&nomination)) else { return };
        if row.wrote.len() >= MOST_WRITTEN {
            row.wrote.remove(0);
        }
        row.wrote.push(nomination);
    }
    /// No nomination that was written is waited for any more.
    pub fn forget_written(&mut self) {
        self.rows.values_mut().for_each(|row| row.wrote.clear());
    }
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Row> {
        self.rows.values()
    }
    /// The next pod to pop, of all or of those that no extender is asked about: an active one, or one that only gives
    /// others precedence.
    pub fn next(&self, with_asking: bool) -> Option<Arc<str>> {
        let next = self.active.first(with_asking).or_else(|| self.impatient.first(with_asking));
        next.map(|(_, _, uid)| uid.clone())
    }
    /// A pod whose time has come.
    pub fn due(&self, now: Time, most: Duration) -> Option<Arc<str>> {
        let waited = self.backoff.first().filter(|(until, _)| *until <= now);
        let left_over = self.unschedulable.first().filter(|(since, _)| *since + most <= now);
        waited.or(left_over).map(|(_, uid)| uid.clone())
    }
    pub fn next_due(&self, most: Duration) -> Option<Time> {
        let waits = self.backoff.first().map(|(until, _)| *until);
        let left_over = self.unschedulable.first().map(|(since, _)| *since + most);
        waits.into_iter().chain(left_over).min()
    }
    /// Pods that wait for an event and that some of these plugins refused, those together that are alike.
    pub fn alike(&self, plugins: PluginSet) -> impl Iterator<Item = &BTreeSet<Arc<str>>> {
        let groups = self.alike.iter().filter(move |(refused_by, _)| refused_by.meets(plugins));
        groups.flat_map(|(_, groups)| groups.values())
    }
    /// Pods that wait for an event, and use a claim that may be it.
    pub fn claimants(&self, claim: &ObjectName) -> impl Iterator<Item = &Row> {
        let uids = self.claimants.get(claim).into_iter().flatten();
        uids.filter_map(|uid| self.rows.get(uid))
    }
    /// How many pods in flight look for a node.
    pub fn looking(&self) -> usize {
        self.since_events.values().sum()
    }
    /// Number of the first event that some of these do not know.
    pub fn first_unknown(&self) -> Option<u64> {
        self.since_events.keys().next().copied()
    }
    pub fn nominated_to<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        let uids = self.nominees.get(node).into_iter().flatten();
        uids.filter_map(|uid| self.rows.get(uid)).map(|row| &row.pod)
    }
    /// The same as a list.
    pub fn nominated(&self, node: &str) -> Vec<Arc<PodInfo>> {
        self.nominated_to(node).cloned().collect()
    }
    pub fn renominated(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.renominated)
    }
    pub fn counts(&self) -> Counts {
        Counts {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated,
            in_flight: self.in_flight,
        }
    }
}
