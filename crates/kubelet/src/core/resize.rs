//! Whether and when a pod that is here gets another size.
//!
//! ```text
//!  spec differs from what is allocated ─▶ judged, one after another ─▶ allocated ─▶ on disk ─▶ told, and brought about
//!                                            │                                                (`actuate`)
//!                                            └ deferred, infeasible: judged again when the room or the wish has changed
//! ```
//!
//! What is allocated is on disk before anything rests on it: before it is told, before a group or a container has it, and
//! before a pod is recorded that was admitted into room which another gave up. A node that forgets none of it gives no room
//! away twice, whenever its agent ends.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{EventRecord, Time};
use k8s_openapi::api::core::v1::Pod;

use super::admit::taken;
use super::checkpoint::Patient;
use super::worker::{Admission, PodRuntime, Worker};
use super::{Fx, KubeletCore, Owner, Wake, show};
use crate::admission::Decision;
use crate::allocation::{self, Actuated, Allocation, DEFERRED, INFEASIBLE, Rank, ResizeCounts, Size, infeasible};
use crate::amount::Amounts;
use crate::effects::{Op, OpId, Outcome};
use crate::eviction::Pressure;
use crate::planted::Planted;
use crate::records::{POD_PREFIX, PodRecord};
use crate::runtime::Uid;
use crate::spec::pod;
use crate::status::node::allocatable_amounts;
use crate::status::resize::{PENDING, Pending, Progress};

/// What a judgement rests on: nothing else is a reason to judge again.
#[derive(Clone, Debug, PartialEq)]
struct Grounds {
    /// What pods have, pods themselves included.
    used: Amounts,
    allocatable: Amounts,
    pressure: Pressure,
    node_known: bool,
    /// Who asks, and for which generation of its spec.
    asked: BTreeMap<Uid, Option<i64>>,
}

impl Grounds {
    /// How many pods there are, in thousandths.
    fn pods(&self) -> i128 {
        self.used.get("pods").copied().unwrap_or(0)
    }
}

/// What is written down, each in a file of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    /// What is set aside for pods.
    Allocated,
    /// What they have of it.
    Actuated,
}

/// What is set aside for pods, and what they have of it.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    pub allocated: BTreeMap<Uid, Allocation>,
    pub actuated: BTreeMap<Uid, Actuated>,
    pub allocated_file: Patient,
    pub actuated_file: Patient,
    /// The last version of what is allocated in which a pod was resized.
    pub last_resize: u64,
    /// Pods that ask for another size than they are allocated.
    pending: BTreeSet<Uid>,
    judged: Option<Grounds>,
    /// Something has changed that a judgement may rest on.
    pub due: bool,
    /// Pods whose allocation is being brought about.
    pub busy: BTreeSet<Uid>,
    pub counts: ResizeCounts,
    /// What is counted may have changed since it was shown.
    pub touched: bool,
}

impl Resizes {
    fn file(&mut self, kept: Kept) -> &mut Patient {
        match kept {
            Kept::Allocated => &mut self.allocated_file,
            Kept::Actuated => &mut self.actuated_file,
        }
    }

    /// Nothing is kept of a pod that is gone.
    pub fn forget(&mut self, uid: &Uid) {
        self.touched |= self.pending.remove(uid) | self.busy.remove(uid);
        if self.allocated.remove(uid).is_some() {
            self.allocated_file.touch();
        }
        if self.actuated.remove(uid).is_some() {
            self.actuated_file.touch();
        }
    }

    /// A pod was read anew: what it asks for now, and did not before, is counted.
    pub fn asked(&mut self, before: &Pod, now: &Pod) {
        if before.metadata.generation != now.metadata.generation {
            self.counts.ask(before, now);
            self.touched = true;
        }
    }

    /// Pods of which something is kept.
    pub fn holders(&self) -> impl Iterator<Item = &Uid> {
        self.allocated.keys().chain(self.actuated.keys())
    }
}

impl KubeletCore {
    /// What is set aside for pods, and what there is, for those who check invariants; none before anything is known of it.
    /// A pod that is being stopped, and was admitted in a former life, may have ended there: others may have its room, unless what
    /// was listed since has it run.
    #[must_use]
    pub fn set_aside(&self) -> Option<(Amounts, Amounts)> {
        let takers = self.workers.iter().filter(|(uid, w)| self.takes_room(uid, w));
        let surely = takers.filter(|(uid, w)| {
            let listed = |since: OpId| self.listed_of(uid).is_some_and(|listed| listed >= since);
            let runs = || self.runtime.get(*uid).is_some_and(PodRuntime::may_run);
            w.stopping.as_ref().is_none_or(|s| w.confirmed && (!w.admitted_before || listed(s.since) && runs()))
        });
        self.loaded.then(|| (taken(surely.map(|(_, w)| w)).0, allocatable_amounts(&self.host, &self.config)))
    }

    /// Takes over what was kept. Where that lacks a pod which was admitted, its record says what it was admitted with.
    pub(super) fn load_sizes(
        &mut self,
        (allocated, actuated): (Option<&[u8]>, Option<&[u8]>),
        records: &BTreeMap<String, Vec<u8>>,
    ) {
        if self.planted == Some(Planted::ForgottenAllocations) {
            return;
        }
        let broken = |error| tracing::error!(%error, "what pods are allocated is taken from their records");
        if let Some(bytes) = allocated {
            self.resizes.allocated = allocation::decode_allocated(bytes).map_err(broken).unwrap_or_default();
        }
        if let Some(bytes) = actuated {
            self.resizes.actuated = allocation::decode_actuated(bytes).map_err(broken).unwrap_or_default();
        }
        for (name, bytes) in records {
            let Some(uid) = name.strip_prefix(POD_PREFIX).map(Uid::from) else { continue };
            if self.resizes.allocated.contains_key(&uid) {
                continue;
            }
            // One that cannot be read is told where the pods are taken over.
            let Ok(record) = serde_json::from_slice::<PodRecord>(bytes) else { continue };
            if record.admitted {
                self.resizes.allocated.insert(uid, Allocation::of(&record.pod));
                self.resizes.allocated_file.touch();
            }
        }
    }

    /// A pod is admitted: it is given what it asks for, unless it was before.
    pub(super) fn allocate_admitted(&mut self, uid: &Uid, w: &mut Worker, admitted_before: bool) {
        if !self.resizes.allocated.contains_key(uid) {
            self.resizes.allocated.insert(uid.clone(), Allocation::of(&w.desired));
            self.resizes.allocated_file.touch();
            w.take(w.desired.clone(), None);
        }
        if !admitted_before {
            // It may have been admitted into room that another has given up.
            w.resize.rests_on = self.resizes.last_resize;
        }
    }

    /// Whether what a pod is allocated is on disk, and all that this rests on.
    pub(super) fn is_allocated_on_disk(&self, w: &Worker) -> bool {
        self.resizes.allocated_file.has(w.resize.rests_on)
    }

    /// Notes whether a pod asks for another size. True while that has not been judged, and nothing can be said of it.
    pub(super) fn note_wish(&mut self, uid: &Uid, w: &mut Worker) -> bool {
        let goes_on = w.admission == Admission::Admitted && w.stopping.is_none();
        if !(goes_on && w.asks_otherwise()) {
            self.resizes.touched |= self.resizes.pending.remove(uid);
            w.resize.pending = None;
            return false;
        }
        self.resizes.touched |= self.resizes.pending.insert(uid.clone());
        w.resize.pending.is_none()
    }

    /// Whether a pod takes room of the node: also where it began here before, and is not admitted in this life.
    pub(super) fn takes_room(&self, uid: &Uid, w: &Worker) -> bool {
        let over = matches!(w.admission, Admission::Rejected(..)) || pod::is_terminal(&w.pod);
        !w.stopped_all && (w.admission == Admission::Admitted || !over && self.was_admitted(uid, w))
    }

    /// Pods that take room of the node.
    pub(super) fn takers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |(uid, w)| self.takes_room(uid, w)).map(|(_, w)| w)
    }

    fn grounds(&self) -> Grounds {
        let generation = |uid: &Uid| self.workers.get(uid).and_then(|w| w.desired.metadata.generation);
        Grounds {
            used: taken(self.takers()).0,
            allocatable: allocatable_amounts(&self.host, &self.config),
            pressure: self.pressure(),
            node_known: self.node.seen.is_some(),
            asked: self.resizes.pending.iter().map(|uid| (uid.clone(), generation(uid))).collect(),
        }
    }

    /// Judges those who ask for another size, if anything has changed since. True when something was decided.
    pub(super) fn decide_resizes(&mut self, now: Time, fx: &mut Fx) -> bool {
        if self.resizes.pending.is_empty() {
            self.resizes.judged = None;
            return false;
        }
        if !std::mem::take(&mut self.resizes.due) {
            return false;
        }
        let grounds = self.grounds();
        if self.resizes.judged.as_ref() == Some(&grounds) {
            return false;
        }
        let before = self.resizes.judged.replace(grounds);
        // What was judged first may be judged otherwise with the room that came after.
        let mut resized = false;
        while self.judge_all(now, before.as_ref(), resized, fx) {
            resized = true;
        }
        if resized {
            self.resizes.judged = Some(self.grounds());
        }
        self.resizes.touched = true;
        true
    }

    /// Judges those who ask, in their order. True when one was given what it asks for.
    fn judge_all(&mut self, now: Time, before: Option<&Grounds>, again: bool, fx: &mut Fx) -> bool {
        let mut order: Vec<(Rank, Uid)> = Vec::new();
        for uid in &self.resizes.pending {
            let Some(w) = self.workers.get(uid) else { continue };
            let deferred = w.resize.pending.as_ref().is_some_and(|p| p.generation == w.desired.metadata.generation);
            if deferred && self.planted == Some(Planted::DeferredForever) {
                continue;
            }
            order.push((Rank::of(&w.desired, &w.pod, deferred_since(w)), uid.clone()));
        }
        order.sort();
        let mut resized = false;
        for (_, uid) in order {
            let Some(mut w) = self.workers.remove(&uid) else { continue };
            let trigger = if again || resized { "pod_resized" } else { self.trigger(before, &uid, &w) };
            resized |= self.decide_resize(now, &uid, &mut w, trigger, fx);
            self.workers.insert(uid.clone(), w);
            self.dirty.insert(uid);
        }
        resized
    }

    /// What led to this judgement, as upstream counts it.
    fn trigger(&self, before: Option<&Grounds>, uid: &Uid, w: &Worker) -> &'static str {
        let Some(before) = before else { return "periodic_retry" };
        let pods = self.resizes.judged.as_ref().map_or(0, Grounds::pods);
        if before.asked.get(uid) != Some(&w.desired.metadata.generation) {
            "pod_updated"
        } else if pods < before.pods() {
            "pods_removed"
        } else if pods > before.pods() {
            "pods_added"
        } else {
            "pod_resized"
        }
    }

    /// Judges one. True when it is given what it asks for.
    fn decide_resize(&mut self, now: Time, uid: &Uid, w: &mut Worker, trigger: &'static str, fx: &mut Fx) -> bool {
        let Some(allocated) = self.resizes.allocated.get(uid) else { return false };
        let has_its_own = (self.cpus.assigns(), self.numa.memory.assigns());
        let allocatable = allocatable_amounts(&self.host, &self.config);
        if let Some((message, detail)) = infeasible(&w.desired, allocated, &allocatable, has_its_own) {
            if self.put_off(now, w, INFEASIBLE, message, fx) {
                *self.resizes.counts.infeasible.entry(detail).or_default() += 1;
            }
            return false;
        }
        let (used, _, ports) = taken(self.takers());
        // Who is about to go has what it has until it is gone.
        let desired = w.desired.clone();
        match self.judge(uid, &desired, false, (&used, &Amounts::new(), &ports)) {
            Decision::Admit => {
                self.allocate(now, uid, w, trigger, fx);
                true
            }
            // Nothing is known yet: it is judged once it is.
            Decision::Wait { resource, .. } if resource == "node" => false,
            Decision::Reject { message, .. } | Decision::Wait { message, .. } => {
                self.put_off(now, w, DEFERRED, message, fx);
                false
            }
        }
    }

    /// A resize is not allocated. True when that is news.
    fn put_off(&mut self, now: Time, w: &mut Worker, reason: &'static str, message: String, fx: &mut Fx) -> bool {
        let generation = w.desired.metadata.generation;
        let known = w.resize.pending.as_ref().map(|p| (p.reason, p.generation)).or_else(|| told_pending(&w.pod));
        let is_news = known != Some((reason, generation));
        if is_news {
            let how_far = format!("Pod resize {reason}");
            let text = allocation::summary(&w.desired, generation.unwrap_or(0), &message, &how_far);
            tracing::info!(pod = %pod::pod_ref(&w.pod), reason, message, "a resize is not allocated");
            self.event(now, EventRecord::warning(w.desired.as_ref(), format!("Resize{reason}"), text), fx);
        }
        w.resize.pending = Some(Pending { reason, message, generation });
        is_news
    }

    fn allocate(&mut self, now: Time, uid: &Uid, w: &mut Worker, trigger: &'static str, fx: &mut Fx) {
        let new = Allocation::of(&w.desired);
        let deferred = w.resize.pending.take().map(|p| p.reason).or_else(|| told_pending(&w.pod).map(|(r, _)| r));
        if deferred == Some(DEFERRED) {
            *self.resizes.counts.accepted.entry(trigger).or_default() += 1;
        }
        if let Some(old) = self.resizes.allocated.get(uid) {
            // Whoever crashed with its old size has not with this one.
            for (name, resources) in &new.containers {
                if Size::of(old.containers.get(name)) != Size::of(Some(resources)) {
                    w.crash.clear(name);
                }
            }
        }
        self.resizes.allocated.insert(uid.clone(), new);
        self.resizes.last_resize = self.resizes.allocated_file.touch_urgently();
        w.resize.rests_on = self.resizes.last_resize;
        w.take(w.desired.clone(), self.resizes.allocated.get(uid));
        // What is made from now on is made with it.
        w.sandbox_spec = None;
        w.resize.retry_at = Time::default();
        let generation = w.desired.metadata.generation;
        w.resize.progress = Some(Progress { generation, error: None });
        self.resizes.pending.remove(uid);
        self.groups.due = true;
        self.publish = true;
        tracing::info!(pod = %pod::pod_ref(&w.pod), "a resize is allocated");
        let text = allocation::summary(&w.pod, generation.unwrap_or(0), "", "Pod resize started");
        self.event(now, EventRecord::normal(w.pod.as_ref(), "ResizeStarted", text), fx);
    }

    /// Writes what is allocated and what was brought about, where the disk is behind.
    pub(super) fn save_sizes(&mut self, now: Time, fx: &mut Fx) {
        if !self.loaded {
            return;
        }
        for kept in [Kept::Allocated, Kept::Actuated] {
            match self.resizes.file(kept).may_save(now) {
                Ok(()) => {
                    let op = match kept {
                        Kept::Allocated => Op::SaveAllocated(allocation::encode_allocated(&self.resizes.allocated)),
                        Kept::Actuated => Op::SaveActuated(allocation::encode_actuated(&self.resizes.actuated)),
                    };
                    let id = self.op(Owner::Sizes(kept), op, fx);
                    self.resizes.file(kept).saving(id);
                }
                Err(Some(at)) => self.wake(at, Wake::Sizes),
                Err(None) => {}
            }
        }
        self.show_resizes(fx);
    }

    /// What is allocated or what was brought about was written, or not.
    pub(super) fn sizes_saved(&mut self, now: Time, kept: Kept, outcome: &Outcome) {
        let waits_for = |w: &Worker| match kept {
            Kept::Allocated => w.resize.rests_on,
            Kept::Actuated => w.resize.stops_on,
        };
        match self.resizes.file(kept).saved(now, outcome.is_ok()) {
            Ok(before) => {
                let waited = self.workers.iter().filter(|(_, w)| waits_for(w) > before);
                self.dirty.extend(waited.map(|(uid, _)| uid.clone()));
            }
            Err(at) => {
                let what = match kept {
                    Kept::Allocated => "what pods are allocated",
                    Kept::Actuated => "what pods have of their allocations",
                };
                tracing::error!(?outcome, "{what} was not written");
                self.wake(at, Wake::Sizes);
            }
        }
    }

    /// Shows those who ask what is counted.
    fn show_resizes(&mut self, fx: &mut Fx) {
        if !std::mem::take(&mut self.resizes.touched) {
            return;
        }
        let of = |reason: &str| {
            let waits = |uid: &&Uid| self.workers.get(*uid).and_then(|w| w.resize.pending.as_ref());
            self.resizes.pending.iter().filter(|uid| waits(uid).is_some_and(|p| p.reason == reason)).count()
        };
        let pending = [("deferred", of(DEFERRED)), ("infeasible", of(INFEASIBLE))].into();
        let in_progress = self.resizes.busy.len();
        self.resizes.counts = ResizeCounts { pending, in_progress, ..std::mem::take(&mut self.resizes.counts) };
        show(Op::PublishResizes(Box::new(self.resizes.counts.clone())), fx);
    }
}

/// What the API was last told of a resize that is not allocated.
fn told_pending(pod: &Pod) -> Option<(&'static str, Option<i64>)> {
    let c = pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == PENDING)?;
    let reason = [DEFERRED, INFEASIBLE].into_iter().find(|reason| c.reason.as_deref() == Some(*reason))?;
    Some((reason, c.observed_generation))
}

/// Since when a pod's resize is deferred, as the API was told.
fn deferred_since(w: &Worker) -> Option<Time> {
    let conditions = w.pod.status.as_ref()?.conditions.as_ref()?;
    let c = conditions.iter().find(|c| c.type_ == PENDING && c.reason.as_deref() == Some(DEFERRED))?;
    c.last_transition_time.as_ref().map(Time::from)
}
