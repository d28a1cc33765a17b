//! Pods that keep more on the node's disk than they may: they are measured from time to time, and go.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::Time;

use super::pressure::may_be_evicted;
use super::{Fx, KubeletCore, Owner};
use crate::effects::{Op, OpId, Outcome, Reply};
use crate::local_storage;
use crate::runtime::Uid;

/// No more often than this. It is looked at when the facts of the machine were read, which is every ten seconds, as upstream
/// does it, and more often where the node runs low.
const AT_MOST_EACH: Duration = Duration::from_secs(5);
/// How long such a pod has to end, in seconds (upstream's `immediateEvictionGracePeriodSeconds`).
const GRACE_S: i64 = 1;

/// The look under way, and when the next one is due.
#[derive(Debug, Default)]
pub(super) struct Looks {
    op: Option<OpId>,
    next: Time,
}

impl KubeletCore {
    /// Asks what the pods with limits keep, where it is time for that.
    pub(super) fn check_local_storage(&mut self, now: Time, fx: &mut Fx) {
        if self.local_storage.op.is_some() || now < self.local_storage.next {
            return;
        }
        let bound = self.workers.iter().filter(|(_, w)| may_be_evicted(w) && local_storage::is_limited(&w.pod));
        let bound: BTreeSet<Uid> = bound.map(|(uid, _)| uid.clone()).collect();
        if !bound.is_empty() {
            self.local_storage.op = Some(self.op(Owner::LocalStorage, Op::Usage(bound), fx));
        }
    }

    /// It is known: who keeps more than it may goes.
    pub(super) fn local_storage_known(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        if self.local_storage.op.take_if(|op| *op == id).is_none() {
            return;
        }
        self.local_storage.next = now + AT_MOST_EACH;
        let usage = match outcome {
            Ok(Reply::Usage(usage)) => usage,
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%error, "what pods keep on the disk is not known; none is evicted");
                return;
            }
        };
        for (uid, usage) in usage {
            let Some(mut w) = self.workers.remove(&uid) else { continue };
            if may_be_evicted(&w)
                && let Some(message) = local_storage::exceeded(&w.pod, &usage)
            {
                self.evict(now, &mut w, message, GRACE_S, fx);
                self.dirty.insert(uid.clone());
            }
            self.workers.insert(uid, w);
        }
    }
}
