//! A cycle with extenders: what the plugins accept is shown to each of them, and what they leave is weighed.
//!
//! ```text
//!   filter 1 ─▶ filter 2 ─▶ … ─▶ scores of all ─▶ looked at again ─▶ reserve
//!      └───────────┴── none left ─▶ preemption ─▶ victims 1 ─▶ victims 2 ─▶ … ─▶ nominate
//! ```
//!
//! One pod is asked about at a time, since extenders that were written for upstream expect that; the others wait in the
//! queue. Each extender filters once for a pop. Answers are about names: a node that went in the meantime, or that
//! others have filled, is not taken.
//!
//! Of victims only those extenders are asked that have a verb for them, as upstream does it (`callExtenders` in
//! pkg/scheduler/framework/preemption): one that filters alone would be shown a node with its victims still on it, and could
//! only refuse. It has its say when the node is free. Nodes that the plugins accept as they are, and an extender does
//! not, are shown without victims: what is short there the extender alone knows, and so who holds it (kubernetes
//! #135486). Nobody goes where none of them has named somebody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use carrack_engine::{Effects, Time};

use super::preempt::Proposal;
use super::{Planted, Scheduler};
use crate::extender::{Answer, Ask, Filtered, read_filter, read_scores, read_victims};
use crate::queue::Row;
use crate::{FitError, Found, NodeId, Plugin, Refusal};

/// Nodes that the plugins accept and an extender has refused in this cycle.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Whoever leaves them.
    pub hopeless: BTreeSet<Arc<str>>,
    /// As they are.
    pub full: BTreeSet<Arc<str>>,
}

/// The cycle under way.
#[derive(Debug)]
pub(super) struct Asking {
    pub row: Row,
    stage: Stage,
    /// Nodes that nobody has refused yet.
    nodes: BTreeSet<Arc<str>>,
    refusals: BTreeMap<Refusal, usize>,
    refused: Refused,
}

#[derive(Debug)]
enum Stage {
    Filter { extender: usize, call: u64 },
    Scores { calls: BTreeMap<u64, usize>, scores: BTreeMap<Arc<str>, i64> },
    Victims { extender: usize, call: u64, proposals: Vec<Proposal>, error: Box<FitError> },
}

impl Scheduler {
    fn asks(&self, row: &Row, verb: impl Fn(&crate::extender::Extender) -> &String) -> Vec<usize> {
        let asked = self.config.extenders.iter().enumerate();
        asked.filter(|(_, e)| !verb(e).is_empty() && e.is_interested(&row.pod.pod)).map(|(at, _)| at).collect()
    }
    /// Whether some extender has a say about a pod's victims.
    pub(super) fn must_ask_of_victims(&self, row: &Row) -> bool {
        !self.asks(row, |e| &e.preempt_verb).is_empty()
    }

    pub(super) fn begin_asking(&mut self, now: Time, row: Row, fx: &mut Effects<Ask>) {
        match self.look(&row, true) {
            Found::Node(node, plan) => self.reserve(now, row, node, plan, fx),
            Found::Nobody(error) => self.nobody(now, row, *error, fx),
            Found::List(ids, refusals) => {
                let cluster = &self.decider.cluster;
                let nodes = ids.iter().filter_map(|id| cluster.node(*id)).map(|n| n.name.clone()).collect();
                let stage = Stage::Filter { extender: 0, call: 0 };
                let asking = Asking { row, stage, nodes, refusals, refused: Refused::default() };
                self.ask_filter(now, asking, 0, fx);
            }
        }
    }

    fn ask_filter(&mut self, now: Time, mut asking: Asking, from: usize, fx: &mut Effects<Ask>) {
        if asking.nodes.is_empty() {
            let error =
                FitError { nodes: self.decider.cluster.len(), refusals: asking.refusals, ..FitError::default() };
            if asking.row.profile.preemption {
                self.preempt(now, asking.row, error, &asking.refused, fx);
            } else {
                self.refused(now, &asking.row, error, None, fx);
            }
            return;
        }
        let next = self.asks(&asking.row, |e| &e.filter_verb).into_iter().find(|at| *at >= from);
        let Some(extender) = next else { return self.ask_scores(now, asking, fx) };
        let call = self.send_filter(extender, &asking.row, &asking.nodes, fx);
        asking.stage = Stage::Filter { extender, call };
        self.asking = Some(asking);
    }

    fn send_filter(&self, extender: usize, row: &Row, nodes: &BTreeSet<Arc<str>>, fx: &mut Effects<Ask>) -> u64 {
        let config = &self.config.extenders[extender];
        let named = nodes.iter().filter_map(|n| Some((&**n, &**self.decider.cluster.named(n)?.node.as_ref()?)));
        let body = config.filter_args(&row.pod.pod, named);
        let id = fx.fresh();
        fx.own(Ask { id, extender, verb: config.filter_verb.clone(), body });
        id
    }

    fn ask_scores(&mut self, now: Time, mut asking: Asking, fx: &mut Effects<Ask>) {
        let mut calls = BTreeMap::new();
        for extender in self.asks(&asking.row, |e| &e.prioritize_verb) {
            let config = &self.config.extenders[extender];
            let nodes = asking.nodes.iter();
            let named = nodes.filter_map(|n| Some((&**n, &**self.decider.cluster.named(n)?.node.as_ref()?)));
            let body = config.filter_args(&asking.row.pod.pod, named);
            let id = fx.fresh();
            fx.own(Ask { id, extender, verb: config.prioritize_verb.clone(), body });
            calls.insert(id, extender);
        }
        if calls.is_empty() {
            return self.settle(now, asking, &BTreeMap::new(), fx);
        }
        asking.stage = Stage::Scores { calls, scores: BTreeMap::new() };
        self.asking = Some(asking);
    }

    /// Gives up the cycle under way: somebody else decides now.
    pub(super) fn stop_asking(&mut self, now: Time) {
        if let Some(asking) = self.asking.take() {
            self.queue.retry(&asking.row.pod.uid, now);
        }
    }

    /// An extender answered, or did not.
    pub(super) fn extender_answered(&mut self, now: Time, answer: Answer, fx: &mut Effects<Ask>) {
        if let Some(flight) = self.binds.remove(&answer.id) {
            return self.binder_answered(now, &flight, answer.result, fx);
        }
        let expected = self.asking.as_ref().is_some_and(|asking| match &asking.stage {
            Stage::Filter { call, .. } | Stage::Victims { call, .. } => *call == answer.id,
            Stage::Scores { calls, .. } => calls.contains_key(&answer.id),
        });
        // Late, or for the second time, or never asked for.
        let Some(mut asking) = self.asking.take_if(|_| expected) else { return };
        let Some(row) = self.queue.get(&asking.row.pod.uid).cloned() else {
            // The pod went, or somebody else bound it.
            return;
        };
        asking.row = row;
        match asking.stage {
            Stage::Filter { extender, .. } => self.filtered(now, asking, extender, answer.result, fx),
            Stage::Scores { ref mut calls, ref mut scores } => {
                let extender = calls.remove(&answer.id).unwrap_or_default();
                match answer.result.and_then(|body| read_scores(&body)) {
                    Ok(given) => {
                        let weight = self.config.extenders[extender].weight;
                        for (node, score) in given {
                            // Extenders score up to 10, plugins up to 100.
                            let sum = scores.entry(node.as_str().into()).or_default();
                            *sum = sum.saturating_add(score.saturating_mul(weight).saturating_mul(10));
                        }
                    }
                    Err(error) => self.extender_failed(extender, "prioritize", &error),
                }
                if calls.is_empty() {
                    let scores = std::mem::take(scores);
                    self.settle(now, asking, &scores, fx);
                } else {
                    self.asking = Some(asking);
                }
            }
            Stage::Victims { extender, proposals, error, .. } => {
                let row = asking.row;
                // Nodes that went meanwhile, shrank, or refuse the pod for what they are by now: nobody need go from there.
                let (uid, asked) = (row.pod.uid.clone(), proposals.len());
                let takes_all = self.planted_bug == Some(Planted::StaleProposals);
                let may_stay = |proposal: &Proposal| takes_all || self.may_become_free(&row, &proposal.node);
                let proposals: Vec<Proposal> = proposals.into_iter().filter(may_stay).collect();
                let is_stale = proposals.len() < asked;
                match self.answered_victims(extender, proposals, answer.result) {
                    Ok(proposals) => self.ask_victims(now, row, proposals, extender + 1, error, fx),
                    Err(why) => self.give_up_preempting(now, &row, *error, &why, fx),
                }
                // Where another node would have been proposed, it looks again: nothing else may ever say so.
                if is_stale && self.queue.get(&uid).is_some_and(|row| row.nominated.is_none()) {
                    self.queue.hurry(&uid, now);
                }
            }
        }
    }

    fn extender_failed(&self, extender: usize, what: &str, error: &str) {
        tracing::warn!(url = self.config.extenders[extender].url_prefix, what, error, "an extender failed");
    }

    fn filtered(
        &mut self,
        now: Time,
        mut asking: Asking,
        extender: usize,
        result: Result<Bytes, String>,
        fx: &mut Effects<Ask>,
    ) {
        let node_cache_capable = self.config.extenders[extender].node_cache_capable;
        match result.and_then(|body| read_filter(&body, node_cache_capable)) {
            Ok(filtered) => {
                let accepted: BTreeSet<&str> = filtered.accepted.iter().map(String::as_str).collect();
                sort_out(&asking.nodes, &accepted, &filtered, &mut asking.refusals, &mut asking.refused);
                asking.nodes.retain(|node| accepted.contains(&**node));
                self.ask_filter(now, asking, extender + 1, fx);
            }
            Err(error) if self.config.extenders[extender].ignorable => {
                self.extender_failed(extender, "filter", &error);
                self.ask_filter(now, asking, extender + 1, fx);
            }
            Err(error) => {
                self.extender_failed(extender, "filter", &error);
                let url = &self.config.extenders[extender].url_prefix;
                let message = format!("running extender {url}: {error}");
                self.failed(now, &asking.row, &message, fx);
            }
        }
    }

    /// All have spoken: the best of what is left, if the plugins still accept it.
    fn settle(&mut self, now: Time, asking: Asking, scores: &BTreeMap<Arc<str>, i64>, fx: &mut Effects<Ask>) {
        let row = asking.row;
        let cluster = &self.decider.cluster;
        let ids: Vec<NodeId> = asking.nodes.iter().filter_map(|name| cluster.find(name)).collect();
        let extra: BTreeMap<NodeId, i64> =
            scores.iter().filter_map(|(name, score)| Some((cluster.find(name)?, *score))).collect();
        let found = self.with_question(&row, |decider, question, rng| decider.best_of(question, &ids, &extra, rng));
        match found {
            Some((node, plan)) => self.reserve(now, row, node, plan, fx),
            // Others took the room while the extenders thought.
            None => self.queue.retry(&row.pod.uid, now),
        }
    }

    /// Asks the extenders that have a verb for it, one after the other, about nodes that could be made free.
    pub(super) fn ask_victims(
        &mut self,
        now: Time,
        row: Row,
        proposals: Vec<Proposal>,
        from: usize,
        error: Box<FitError>,
        fx: &mut Effects<Ask>,
    ) {
        let next = self.asks(&row, |e| &e.preempt_verb).into_iter().find(|at| *at >= from);
        if let Some(extender) = next.filter(|_| !proposals.is_empty()) {
            let config = &self.config.extenders[extender];
            let victims = proposals.iter().map(|p| (p.node.to_string(), p.named())).collect();
            let body = config.preempt_args(&row.pod.pod, &victims);
            let call = fx.fresh();
            fx.own(Ask { id: call, extender, verb: config.preempt_verb.clone(), body });
            let stage = Stage::Victims { extender, call, proposals, error };
            let (nodes, refusals, refused) = (BTreeSet::new(), BTreeMap::new(), Refused::default());
            self.asking = Some(Asking { row, stage, nodes, refusals, refused });
            return;
        }
        match proposals.into_iter().find(|proposal| !proposal.victims.is_empty()) {
            Some(proposal) => self.evict(now, row, *error, proposal, fx),
            None => self.give_up_preempting(now, &row, *error, "no extender accepts a node", fx),
        }
    }

    /// Whether a node may still take a pod for which it is being made free, or is to be.
    pub(super) fn may_become_free(&self, row: &Row, node: &str) -> bool {
        self.queue.may_become_free(row, node, &self.decider.cluster)
    }

    fn answered_victims(
        &self,
        extender: usize,
        mut proposals: Vec<Proposal>,
        result: Result<Bytes, String>,
    ) -> Result<Vec<Proposal>, String> {
        let ignorable = self.config.extenders[extender].ignorable;
        match result.and_then(|body| read_victims(&body)) {
            Ok(victims) => {
                proposals.retain_mut(|proposal| {
                    let Some((uids, violations)) = victims.get(&*proposal.node) else { return false };
                    proposal.violations = *violations;
                    // Where nobody need go for it, the next one may say who has to.
                    let is_passed_on = proposal.victims.is_empty() && uids.is_empty();
                    // It may choose other victims, but only among those that are less important and there.
                    is_passed_on || proposal.choose(uids, &self.decider.cluster)
                });
                // With other victims another node may be the best one.
                proposals.sort_by_cached_key(|proposal| proposal.rank(&self.decider.cluster));
                Ok(proposals)
            }
            Err(_) if ignorable => Ok(proposals),
            Err(error) => Err(error),
        }
    }
}

/// Counts a filter's refusals, and notes which of the nodes that were offered it refuses whoever leaves them: those that
/// it names so, and those of which it says nothing (upstream's `NodeToStatus` takes a node without a status for one of
/// these).
fn sort_out(
    offered: &BTreeSet<Arc<str>>,
    accepted: &BTreeSet<&str>,
    filtered: &Filtered,
    refusals: &mut BTreeMap<Refusal, usize>,
    refused: &mut Refused,
) {
    for node in offered.iter().filter(|node| !accepted.contains(&***node)) {
        let refusal = match (filtered.hopeless.get(&**node), filtered.failed.get(&**node)) {
            (Some(reason), _) => Refusal::unresolvable(Plugin::Extender, reason.clone()),
            (None, Some(reason)) => Refusal::resolvable(Plugin::Extender, reason.clone()),
            (None, None) => Refusal::unresolvable(Plugin::Extender, "node(s) were not accepted by an extender"),
        };
        let nodes = if refusal.resolvable { &mut refused.full } else { &mut refused.hopeless };
        nodes.insert(node.clone());
        *refusals.entry(refusal).or_default() += 1;
    }
}
