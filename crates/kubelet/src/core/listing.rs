//! Listings of the runtime: what each shows, and of which pods it does not show everything.
//!
//! ```text
//!   a listing ─▶ all of a pod was read ───────────────────────▶ that is what is known of the pod
//!             └▶ something of it was not, or it is torn: doubt ─▶ what was known stays, as of the last whole one
//! ```
//!
//! A listing is several questions: for sandboxes, for containers, and for the status of some of each. Where one of the last cannot be
//! answered, the others can, and its pod alone is left as it is (upstream's `evented` and `generic` PLEG inspect each pod by itself,
//! and try again with the next listing). Where a container is listed and not its sandbox, that was made or removed between two
//! questions: the next listing has both, or shows that this is how it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{EventRecord, Time};

use super::worker::{PodRuntime, Worker};
use super::{Fx, KubeletCore, Owner, RELIST_SOON, Wake};
use crate::effects::{Op, OpId, Outcome, Reply};
use crate::planted::Planted;
use crate::runtime::{RuntimeSnapshot, Uid};
use crate::spec::pod::{self, RestartPolicy};

/// How long something of a pod has to be unreadable until that is told.
const IS_TOLD: Duration = Duration::from_secs(10);

const TORN: &str = "a container was listed without its sandbox";

/// A pod of which the last listing did not show everything.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    /// The last listing that did; none where there was none, or nothing was known of the pod.
    whole: Option<OpId>,
    since: Time,
    is_told: bool,
}

/// What the last listing left open.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    of: BTreeMap<Uid, Doubt>,
    /// The pods of which it showed a container without its sandbox. Those of which two listings in a row do are so.
    torn: BTreeSet<Uid>,
}

impl Doubts {
    /// Whether the last listing did not show everything of a pod.
    pub fn has(&self, uid: &Uid) -> bool {
        self.of.contains_key(uid)
    }
}

impl KubeletCore {
    /// The listing that what is known of a pod is of.
    pub(super) fn listed_of(&self, uid: &Uid) -> Option<OpId> {
        self.doubts.of.get(uid).map_or(self.listed, |doubt| doubt.whole)
    }

    pub(super) fn relisted(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        self.relist_op = None;
        match outcome {
            Ok(Reply::Snapshot(snapshot)) => {
                if self.runtime_error.take().is_some() {
                    tracing::info!("the container runtime answers again");
                    self.node.dirty = true;
                    self.op(Owner::RuntimeInfo, Op::RuntimeInfo, fx);
                }
                self.take_snapshot(now, id, snapshot, fx);
            }
            // What is not known changes nothing.
            Ok(_) => {}
            Err(error) => {
                self.workers.values_mut().for_each(|w| w.stuck.is_silent(now));
                let text = error.to_string();
                let is_told = self.planted != Some(Planted::SilenceIsWell);
                if is_told && self.runtime_error.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the container runtime cannot be listed");
                    self.runtime_error = Some(text);
                    self.node.dirty = true;
                }
            }
        }
        if self.relist_again {
            self.relist(fx);
        } else {
            let hurry = std::mem::take(&mut self.relist_hurry);
            self.relist_at = now + if hurry { RELIST_SOON } else { self.config.relist_period };
            self.wake(self.relist_at, Wake::Relist);
        }
    }

    fn take_snapshot(&mut self, now: Time, id: OpId, snapshot: RuntimeSnapshot, fx: &mut Fx) {
        let mut by_pod: BTreeMap<Uid, PodRuntime> = BTreeMap::new();
        let RuntimeSnapshot { sandboxes, containers, unread } = snapshot;
        for s in sandboxes {
            by_pod.entry(s.pod.uid.clone()).or_default().sandboxes.push(s);
        }
        for c in containers {
            by_pod.entry(c.pod.uid.clone()).or_default().containers.push(c);
        }
        let before = self.listed.replace(id);
        let earlier = self.doubt(now, before, unread, &by_pod, fx);
        let newer = |w: &Worker| id < w.fresh_after && w.shown == w.fresh_after;
        for uid in self.workers.iter().filter(|(_, w)| newer(w)).map(|(uid, _)| uid) {
            // More is known of this one than the listing shows.
            if let Some(known) = self.runtime.get(uid) {
                by_pod.insert(uid.clone(), known.clone());
            }
        }
        for (uid, doubt) in &self.doubts.of {
            if let Some(known) = self.runtime.get(uid).filter(|_| doubt.whole.is_some()) {
                by_pod.insert(uid.clone(), known.clone());
            } else {
                // Something of it is here.
                by_pod.entry(uid.clone()).or_default();
            }
        }
        for (uid, w) in &self.workers {
            let waited = before.is_none_or(|b| b < w.fresh_after || w.stopping.as_ref().is_some_and(|s| b < s.since));
            if waited || earlier.has(uid) || by_pod.get(uid) != self.runtime.get(uid) {
                self.dirty.insert(uid.clone());
            }
        }
        for (uid, w) in &mut self.workers {
            if by_pod.get(uid) != self.runtime.get(uid) {
                w.counted = None;
            }
        }
        if self.cpus.acts() {
            self.given.due |= self.runtime != by_pod;
        }
        self.runtime = by_pod;
        self.find_unknown(now, fx);
        self.count_dead(now);
        self.find_gone();
    }

    /// Whether a pod's containers start again whatever becomes of them.
    fn starts_again(&self, uid: &Uid) -> bool {
        self.workers.get(uid).is_some_and(|w| pod::restart_policy(&w.pod) == RestartPolicy::Always)
    }

    /// Notes of which pods a listing does not show everything. Returns what was noted of the one before.
    fn doubt(
        &mut self,
        now: Time,
        before: Option<OpId>,
        unread: BTreeMap<Uid, String>,
        by_pod: &BTreeMap<Uid, PodRuntime>,
        fx: &mut Fx,
    ) -> Doubts {
        let earlier = std::mem::take(&mut self.doubts);
        let torn = by_pod.iter().filter(|(_, runtime)| runtime.is_torn()).map(|(uid, _)| uid.clone());
        self.doubts.torn = torn.collect();
        let torn = self.doubts.torn.difference(&earlier.torn).map(|uid| (uid.clone(), TORN.to_owned()));
        let mut open: BTreeMap<Uid, String> = torn.collect();
        open.extend(unread);
        for (uid, why) in open {
            if self.planted == Some(Planted::UnreadIsGone) && self.starts_again(&uid) {
                continue;
            }
            let known = earlier.of.get(&uid).copied();
            let whole = known.map_or(before, |doubt| doubt.whole).filter(|_| self.runtime.contains_key(&uid));
            let mut doubt = known.unwrap_or(Doubt { whole, since: now, is_told: false });
            doubt.whole = whole;
            if known.is_none() {
                tracing::warn!(%uid, why, "not all of a pod could be listed; it is left as it is");
                self.relist_hurry = true;
            }
            if !doubt.is_told
                && now.since(doubt.since) >= IS_TOLD
                && let Some(pod) = self.workers.get(&uid).map(|w| w.pod.clone())
            {
                // Upstream's words, of the worker of a pod whose status cannot be had (`pkg/kubelet/pod_workers.go`).
                doubt.is_told = true;
                let message = format!("error determining status: {why}");
                self.event(now, EventRecord::warning(pod.as_ref(), "FailedSync", message), fx);
            }
            self.doubts.of.insert(uid, doubt);
        }
        earlier
    }
}
