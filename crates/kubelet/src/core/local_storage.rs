//! Pods that keep more on the node's disk than they may: they are measured from time to time, and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use super::pressure::{Eviction, may_be_evicted};
use super::{Fx, KubeletCore};
use crate::eviction::Usage;
use crate::local_storage;
use crate::runtime::Uid;

/// No more often than this. It is looked at when the facts of the machine were read, which is every ten seconds, as upstream
/// does it, and more often where the node runs low.
const AT_MOST_EACH: Duration = Duration::from_secs(5);
/// How long such a pod has to end, in seconds (upstream's `immediateEvictionGracePeriodSeconds`).
const GRACE_S: i64 = 1;

/// When the next look is due.
#[derive(Debug, Default)]
pub(super) struct Looks {
    next: Time,
}

impl KubeletCore {
    /// Asks what the pods with limits keep, where it is time for that.
    pub(super) fn check_local_storage(&mut self, now: Time, fx: &mut Fx) {
        if now < self.local_storage.next {
            return;
        }
        let bound = self.workers.iter().filter(|(_, w)| may_be_evicted(w) && local_storage::is_limited(&w.pod));
        let bound: BTreeSet<Uid> = bound.map(|(uid, _)| uid.clone()).collect();
        if !bound.is_empty() {
            self.measure(bound, false, fx);
        }
    }

    /// It is known what pods use: who keeps more than it may goes. True when somebody does.
    pub(super) fn evict_who_keeps_too_much(&mut self, now: Time, usage: &BTreeMap<Uid, Usage>, fx: &mut Fx) -> bool {
        self.local_storage.next = now + AT_MOST_EACH;
        let mut goes = false;
        for (uid, usage) in usage {
            let Some(mut w) = self.workers.remove(uid) else { continue };
            if may_be_evicted(&w)
                && let Some((signal, message)) = local_storage::exceeded(&w.pod, usage)
            {
                // It brought that on itself: nobody disrupts it.
                let annotations = BTreeMap::new();
                let eviction = Eviction { signal, message, grace_s: GRACE_S, disrupts: false, annotations };
                self.evict(now, &mut w, eviction, fx);
                self.dirty.insert(uid.clone());
                goes = true;
            }
            self.workers.insert(uid.clone(), w);
        }
        goes
    }
}
