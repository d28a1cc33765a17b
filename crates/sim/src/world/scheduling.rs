//! Between scheduler and extender, and what must hold of the scheduler.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use carrack_scheduler::Scheduler;
use carrack_scheduler::extender::{Answer, Ask};
use serde_json::Value;

use super::{Happening, World};
use crate::extender::FILTER;
use crate::hosted::OwnIn;
use crate::invariants::Breach;
use crate::role::Role;

/// How long the scheduler's shell waits for an extender.
const TIMEOUT: Duration = Duration::from_secs(5);

/// For which attempts of which pods an extender was asked.
#[derive(Debug, Default)]
pub(super) struct Asked(BTreeSet<(u32, Arc<str>, u32)>);

impl Asked {
    /// The scheduler asks.
    pub(super) fn filter(&mut self, life: u32, scheduler: &Scheduler, ask: &Ask, breaches: &mut Vec<Breach>) {
        if ask.verb != FILTER {
            return;
        }
        let args: Value = serde_json::from_slice(&ask.body).unwrap_or_default();
        let uid = args.pointer("/Pod/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        let mut broken = |what: String| breaches.push(Breach::new("one-filter-a-pop", what));
        if let Some(node) = scheduler.cluster().node_of(uid) {
            return broken(format!("an extender is asked about {uid}, which is on {node} already"));
        }
        let Some(row) = scheduler.queue().get(uid) else {
            return broken(format!("an extender is asked about {uid}, which is not in flight"));
        };
        if !self.0.insert((life, row.pod.uid.clone(), row.attempts)) {
            broken(format!("an extender is asked twice about attempt {} of {uid}", row.attempts));
        }
    }
}

/// What nominations there are.
pub(super) fn nominations(scheduler: &Scheduler, breaches: &mut Vec<Breach>) {
    let mut broken = |what: String| breaches.push(Breach::new("nominations-follow-the-queue", what));
    for (uid, node) in scheduler.nominations() {
        if node.is_empty() {
            broken(format!("{uid} is nominated to a node without a name"));
        }
        if let Some(there) = scheduler.cluster().node_of(uid) {
            broken(format!("{uid} is nominated to {node}, and counted on {there}"));
        } else if scheduler.queue().get(uid).is_none() {
            broken(format!("{uid} is nominated to {node}, and nobody waits for it"));
        }
    }
}

impl World {
    pub(super) fn ask_extender(&mut self, ask: Ask, scheduler_life: u32) {
        let rng = &mut self.extender_rng;
        let there = self.swarm.net.latency.draw(rng);
        let call = ask.id;
        if let Some(life) = self.life(Role::Extender) {
            self.queue.after(there, Happening::News(Role::Extender, life, OwnIn::Extender(Box::new(ask))));
        }
        // Its shell gives up some day, whatever the extender does.
        let late = Answer { id: call, result: Err("no answer within 5000 ms".to_owned()) };
        let news = Happening::News(Role::Scheduler, scheduler_life, OwnIn::Scheduler(Box::new(late)));
        self.queue.after(TIMEOUT, news);
    }

    pub(super) fn answer_scheduler(&mut self, answer: Answer) {
        let back = self.swarm.net.latency.draw(&mut self.extender_rng);
        if let Some(life) = self.life(Role::Scheduler) {
            self.queue.after(back, Happening::News(Role::Scheduler, life, OwnIn::Scheduler(Box::new(answer))));
        }
    }
}
