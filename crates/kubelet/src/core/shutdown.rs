//! The machine is being shut down: the node says so, takes no more pods, and ends those that it has, group by group.
//!
//! ```text
//!  the machine is to go down ─▶ Ready is false, pods are rejected
//!      ─▶ each group: its pods are to stop ─▶ they have, with their volumes, and the API knows ─┬─▶ the machine may go down
//!                                             or the group's time is over                     ─┘
//! ```
//!
//! Whoever holds the machine up meanwhile is an adapter, and does so for as long as all groups together may take. It tells a later
//! life of the kubelet again that the machine goes down.

use std::time::Duration;

use carrack_engine::{EventRecord, Time};

use super::worker::{Admission, Stopping, Worker};
use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Op, OpId, Outcome};
use crate::planted::Planted;
use crate::runtime::{ContainerRecord, Uid};
use crate::shutdown::{Groups, MESSAGE, REASON};
use crate::spec::pod;
use crate::status::pod::Ended;

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody's yet: it is not known what there is.
    Nobodys,
    /// Of the groups up to this one, until then.
    Of(usize, Time),
    /// All have had it: the machine may go down.
    Over,
    /// That is to be said again, then.
    Again(Time),
}

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// None where the machine is to stay.
    turn: Option<Turn>,
    /// Why the machine cannot be held up, as it was told last.
    unheld: Option<String>,
}

impl Shutdown {
    /// Whether the machine is being shut down.
    pub fn is_under_way(&self) -> bool {
        self.turn.is_some()
    }
}

impl KubeletCore {
    /// The machine is to go down.
    pub(super) fn shutdown_begins(&mut self, now: Time, fx: &mut Fx) {
        if self.shutdown.is_under_way() {
            return;
        }
        tracing::warn!("the machine is being shut down; pods end");
        self.shutdown.turn = Some(Turn::Nobodys);
        self.shutdown_event(now, "Shutdown manager detected shutdown event", fx);
        // Those that wait to be admitted are rejected.
        self.dirty.extend(self.workers.keys().cloned());
        self.node.dirty = true;
    }

    /// It stays after all. Pods that have ended have ended.
    pub(super) fn shutdown_ends(&mut self, now: Time, fx: &mut Fx) {
        if self.shutdown.turn.take().is_some() {
            tracing::info!("the machine is not shut down after all");
            self.shutdown_event(now, "Shutdown manager detected shutdown cancellation", fx);
            self.node.dirty = true;
        }
    }

    /// The machine cannot be held up when it is to go down: pods would die with it.
    pub(super) fn shutdown_unheld(&mut self, now: Time, why: String, fx: &mut Fx) {
        if self.shutdown.unheld.as_ref() == Some(&why) {
            return;
        }
        if let Some(node) = self.node.seen.clone() {
            let message = format!("Pods would not be ended before this machine is shut down: {why}");
            self.event(now, EventRecord::warning(node.as_ref(), "ShutdownNotInhibited", message), fx);
            self.shutdown.unheld = Some(why);
        }
    }

    fn shutdown_event(&mut self, now: Time, message: &str, fx: &mut Fx) {
        if let Some(node) = self.node.seen.clone() {
            self.event(now, EventRecord::normal(node.as_ref(), "NodeShutdown", message), fx);
        }
    }

    /// The group that a pod is of.
    fn shutdown_group(&self, w: &Worker) -> usize {
        self.config.shutdown.of(pod::spec(&w.pod).priority.unwrap_or(0))
    }

    /// Looks whose turn it is.
    pub(super) fn step_shutdown(&mut self, now: Time, fx: &mut Fx) {
        match self.shutdown.turn {
            Some(Turn::Nobodys) if self.loaded && self.listed.is_some() && self.pods.synced() => {
                self.next_turn(now, 0, fx);
            }
            Some(Turn::Of(group, until)) => {
                self.end_group(now, group, until, fx);
                if now >= until || !self.workers.iter().any(|(uid, w)| self.is_awaited(uid, w, group)) {
                    self.next_turn(now, group + 1, fx);
                }
            }
            Some(Turn::Again(at)) if now >= at => self.let_go_down(fx),
            _ => {}
        }
    }

    /// Gives the turn to a group, or to the next one that has pods.
    fn next_turn(&mut self, now: Time, first: usize, fx: &mut Fx) {
        let groups = match self.planted {
            Some(Planted::HastyShutdowns) => Groups::default(),
            _ => self.config.shutdown.clone(),
        };
        for (number, group) in groups.list().iter().enumerate().skip(first) {
            let has = |(uid, w): (&Uid, &Worker)| w.counts() || self.is_alive(uid);
            if self.workers.iter().any(|worker| self.shutdown_group(worker.1) == number && has(worker)) {
                let until = now + group.grace;
                self.shutdown.turn = Some(Turn::Of(number, until));
                self.wake(until, Wake::Shutdown);
                self.end_group(now, number, until, fx);
                return;
            }
        }
        tracing::warn!("no pod is waited for any more; the machine may go down");
        self.let_go_down(fx);
    }

    /// Ends the pods of a group, and those of the groups before that have come since.
    fn end_group(&mut self, now: Time, group: usize, until: Time, fx: &mut Fx) {
        let ends = |w: &Worker| w.counts() || w.stopping.is_some();
        let in_turn = self.workers.iter().filter(|(_, w)| ends(w) && self.shutdown_group(w) <= group);
        let latest =
            |w: &Worker| until.min(now + Duration::from_secs(u64::try_from(pod::grace_s(&w.pod)).unwrap_or(0)));
        let late = in_turn.filter(|(_, w)| w.stopping.as_ref().is_none_or(|s| s.deadline > until));
        let ends: Vec<(Uid, Time)> = late.map(|(uid, w)| (uid.clone(), latest(w))).collect();
        for (uid, deadline) in ends {
            let Some(w) = self.workers.get_mut(&uid) else { continue };
            match &mut w.stopping {
                // It ends already, for another reason.
                Some(stopping) => stopping.deadline = stopping.deadline.min(deadline),
                None => {
                    tracing::info!(pod = %pod::pod_ref(&w.pod), "it ends before the machine goes down");
                    let ended = Ended { reason: REASON.into(), message: MESSAGE.into(), disrupts: true };
                    w.stopping = Some(Stopping { deadline, since: OpId(fx.fresh()), because: Some(ended) });
                }
            }
            self.dirty.insert(uid);
            self.relist(fx);
        }
    }

    /// Whether the next group waits for a pod: for its containers, its volumes, and for the API to know.
    fn is_awaited(&self, uid: &Uid, w: &Worker, group: usize) -> bool {
        // One that could not be told is not waited for: the API server may have been a pod here.
        let untold = !w.deleted && !pod::is_static(&w.pod) && w.status.failures == 0 && !self.told(w);
        let here = !w.stopped_all || !self.volumes.all_gone(uid);
        let awaited = w.admission == Admission::Admitted && (here || untold);
        self.shutdown_group(w) <= group && (awaited || self.is_alive(uid))
    }

    /// Whether a container of a pod may run, whoever's pod that is.
    pub(super) fn is_alive(&self, uid: &Uid) -> bool {
        self.runtime.get(uid).is_some_and(|r| r.containers.iter().any(ContainerRecord::may_run))
    }

    fn let_go_down(&mut self, fx: &mut Fx) {
        self.shutdown.turn = Some(Turn::Over);
        self.op(Owner::Shutdown, Op::LetGoDown, fx);
    }

    /// The machine is not held up any more, or still is.
    pub(super) fn shutdown_told(&mut self, now: Time, outcome: &Outcome) {
        if let Err(error) = outcome
            && self.shutdown.turn == Some(Turn::Over)
        {
            tracing::warn!(%error, "the machine is still held up");
            let again = now + Duration::from_secs(1);
            self.shutdown.turn = Some(Turn::Again(again));
            self.wake(again, Wake::Shutdown);
        }
    }
}
