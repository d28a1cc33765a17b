//! Groups judged by the plugins that look at many nodes, their scores made comparable, and the best node chosen.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_engine::Rng;

use super::group::GroupKey;
use super::{Answer, Class, Nominated, Use, unique};
use crate::framework::MAX_SCORE;
use crate::plugins::fit::Hypothesis;
use crate::plugins::images;
use crate::tables::{NO_VALUE, TermKind, ValueId};
use crate::{Cluster, NodeId, NodeInfo, Plugin, PodInfo, Probe, Refusal};

const SPREAD: &str = "node(s) didn't match pod topology spread constraints";
const SPREAD_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// What the nodes said to a pod.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Groups whose nodes fit, in the order of their numbers.
    pub(super) groups: Vec<u32>,
    /// Fitting nodes that don't fit beside who is nominated to them.
    pub(super) excluded: std::collections::BTreeSet<NodeId>,
    /// Why nodes refuse, and how many for each reason.
    pub refusals: BTreeMap<Refusal, usize>,
    /// How many nodes fit.
    pub fitting: usize,
}

impl Verdict {
    /// Whether the nodes of a group fit.
    pub(super) fn has(&self, group: u32) -> bool {
        self.groups.binary_search(&group).is_ok()
    }
}

/// Raw scores of a group.
struct Raw {
    group: u32,
    nodes: usize,
    attraction: i64,
    spread: Option<i64>,
}

/// Pods that would come to one node, or go from it.
struct Shift<'a> {
    node: &'a NodeInfo,
    hypothesis: &'a Hypothesis<'a>,
}

impl Class {
    /// Asks all nodes.
    pub fn verdict(&self, cluster: &Cluster, nominated: Nominated<'_>, probe: &mut Probe) -> Verdict {
        let mut verdict = Verdict::default();
        for (refusal, count) in self.refusals.iter().filter(|(_, count)| *count > 0) {
            verdict.refusals.insert(refusal.clone(), *count);
        }
        for (id, group) in self.groups.iter() {
            match self.judge(&group.key, cluster, None, probe) {
                Ok(()) => {
                    verdict.groups.push(id);
                    verdict.fitting += group.nodes;
                }
                Err(refusal) => *verdict.refusals.entry(refusal).or_default() += group.nodes,
            }
        }
        for id in &self.doubtful {
            let fits = matches!(&self.entries[*id as usize].answer, Answer::Fits(p) if verdict.has(p.group));
            let beside = cluster.node(*id).map(|n| self.beside(&nominated(&n.name))).unwrap_or_default();
            if fits && let Err(refusal) = self.trial(*id, &Hypothesis { with: &beside, without: &[] }, cluster) {
                verdict.excluded.insert(*id);
                verdict.fitting -= 1;
                *verdict.refusals.entry(refusal).or_default() += 1;
            }
        }
        verdict
    }

    /// Why one node refuses, if it does.
    pub fn answer(&self, id: NodeId, verdict: &Verdict, cluster: &Cluster) -> Option<Refusal> {
        match &self.entries.get(id as usize)?.answer {
            Answer::Absent => None,
            Answer::Refused(number) => self.refusals.get(*number as usize).map(|(refusal, _)| refusal.clone()),
            Answer::Fits(place) => {
                let key = &self.groups.get(place.group)?.key;
                let spread = Refusal::resolvable(Plugin::InterPodAffinity, EXISTING);
                let refusal = self.judge(key, cluster, None, &mut Probe::default()).err();
                refusal.or_else(|| verdict.excluded.contains(&id).then_some(spread))
            }
        }
    }

    /// Everything that one node has against the pod, not only what it says first.
    pub fn refusals_of(&self, id: NodeId, verdict: &Verdict, cluster: &Cluster) -> Vec<Refusal> {
        let (Some(entry), Some(node)) = (self.entries.get(id as usize), cluster.node(id)) else { return Vec::new() };
        let mut all: Vec<Refusal> = entry.facts.refusal().into_iter().collect();
        let mut probe = Probe::default();
        all.extend(self.fit.filter(&self.info, node, &Hypothesis::default(), &mut probe).err());
        let key = self.key(id, node, entry, cluster);
        all.extend(self.judge(&key, cluster, None, &mut probe).err());
        if all.is_empty() {
            // It would fit but for pods that are nominated to it.
            all.extend(self.answer(id, verdict, cluster));
        }
        all
    }

    /// The nodes that fit.
    pub fn fitting(&self, verdict: &Verdict) -> Vec<NodeId> {
        let groups = verdict.groups.iter().filter_map(|id| self.groups.get(*id));
        let all = groups.flat_map(|g| g.by_score.values().flatten().copied());
        let mut nodes: Vec<NodeId> = all.filter(|id| !verdict.excluded.contains(id)).collect();
        nodes.sort_unstable();
        nodes
    }

    /// The best of the nodes that fit; one by chance where several are equally good.
    pub fn choose(&self, verdict: &Verdict, cluster: &Cluster, rng: &mut Rng, probe: &mut Probe) -> Option<NodeId> {
        if !verdict.excluded.is_empty() {
            let scores = self.scores(&self.fitting(verdict), cluster, probe);
            return best(&scores, rng);
        }
        let groups: Vec<(u32, usize)> =
            verdict.groups.iter().filter_map(|id| Some((*id, self.groups.get(*id)?.nodes))).collect();
        let totals = self.totals(&groups, cluster, probe);
        let mut top: Vec<&Vec<NodeId>> = Vec::new();
        let mut most = i64::MIN;
        for ((id, _), total) in groups.iter().zip(totals) {
            let Some((score, nodes)) = self.groups.get(*id).and_then(|g| g.by_score.last_key_value()) else { continue };
            let score = total + score;
            if score > most {
                most = score;
                top.clear();
            }
            if score == most {
                top.push(nodes);
            }
        }
        let count: usize = top.iter().map(|nodes| nodes.len()).sum();
        let mut at = usize::try_from(rng.below(count as u64)).unwrap_or(0);
        for nodes in top {
            match nodes.get(at) {
                Some(node) => return Some(*node),
                None => at -= nodes.len(),
            }
        }
        None
    }

    /// Scores of some of the nodes that fit: those that nobody else refused.
    pub fn scores(&self, nodes: &[NodeId], cluster: &Cluster, probe: &mut Probe) -> Vec<(NodeId, i64)> {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        let place = |id: &NodeId| match self.entries.get(*id as usize).map(|e| &e.answer) {
            Some(Answer::Fits(place)) => Some(*place),
            _ => None,
        };
        for place in nodes.iter().filter_map(place) {
            *counts.entry(place.group).or_default() += 1;
        }
        let groups: Vec<(u32, usize)> = counts.into_iter().collect();
        let totals = self.totals(&groups, cluster, probe);
        let totals: BTreeMap<u32, i64> = groups.iter().map(|(id, _)| *id).zip(totals).collect();
        nodes
            .iter()
            .filter_map(|id| place(id).map(|place| (*id, totals.get(&place.group).unwrap_or(&0) + place.score)))
            .collect()
    }

    /// Scores of groups, normalized over them, each with how many nodes of it there are.
    fn totals(&self, groups: &[(u32, usize)], cluster: &Cluster, probe: &mut Probe) -> Vec<i64> {
        let weight = |plugin| self.profile.weight(plugin);
        for plugin in [Plugin::TaintToleration, Plugin::NodeAffinity, Plugin::ImageLocality] {
            probe.scored(plugin, if weight(plugin) != 0 { groups.len() as u64 } else { 0 });
        }
        let mut raws: Vec<(Raw, &GroupKey)> = groups
            .iter()
            .filter_map(|(id, nodes)| {
                let key = &self.groups.get(*id)?.key;
                let attraction = match self.looks_at_pods() && weight(Plugin::InterPodAffinity) != 0 {
                    true => probe.score(Plugin::InterPodAffinity, || self.attraction(key, cluster)),
                    false => 0,
                };
                Some((Raw { group: *id, nodes: *nodes, attraction, spread: None }, key))
            })
            .collect();
        let soft = self.constraints.list.iter().any(|c| !c.hard);
        if soft && weight(Plugin::PodTopologySpread) != 0 {
            probe.score(Plugin::PodTopologySpread, || self.spread_scores(&mut raws));
        }
        let most = |of: fn(&GroupKey) -> i64| raws.iter().map(|(_, key)| of(key)).max().unwrap_or(0);
        let (most_intolerable, most_preferred) = (most(|k| k.intolerable), most(|k| k.preferred));
        let attractions = || raws.iter().map(|(raw, _)| raw.attraction);
        let (least_pull, most_pull) = (attractions().min().unwrap_or(0), attractions().max().unwrap_or(0));
        let spreads = || raws.iter().filter_map(|(raw, _)| raw.spread);
        let (least_spread, most_spread) = (spreads().min().unwrap_or(0), spreads().max().unwrap_or(0));
        let total = |raw: &Raw, key: &GroupKey| {
            let taints = MAX_SCORE - share(key.intolerable, most_intolerable);
            let affinity = share(key.preferred, most_preferred);
            let pull = share(raw.attraction - least_pull, most_pull - least_pull);
            let spread = match raw.spread {
                _ if !soft => 0,
                None => 0,
                Some(_) if most_spread == 0 => MAX_SCORE,
                Some(score) => MAX_SCORE * (most_spread + least_spread - score) / most_spread,
            };
            taints * weight(Plugin::TaintToleration)
                + affinity * weight(Plugin::NodeAffinity)
                + pull * weight(Plugin::InterPodAffinity)
                + spread * weight(Plugin::PodTopologySpread)
                + images::score(&self.info, key.images, cluster) * weight(Plugin::ImageLocality)
        };
        debug_assert_eq!(raws.len(), groups.len(), "every group has its total");
        raws.iter().map(|(raw, key)| total(raw, key)).collect()
    }

    /// The count of a counter in the domain of a group; none where the node has no such label.
    fn count(&self, key: &GroupKey, at: usize, counter: &super::Counter, shift: Option<&Shift<'_>>) -> Option<i64> {
        if let Some(shift) = shift {
            let value = shift.node.value(counter.topology);
            return (value != NO_VALUE).then(|| counter.within(value));
        }
        if counter.unique {
            let here = self.counters.iter().take(at).filter(|(of, c)| c.unique && !matches!(of, Use::Preferred(_)));
            return key.counts.get(here.count()).copied().filter(|pods| *pods >= 0);
        }
        let value = self.value(key, counter.topology);
        (value != NO_VALUE).then(|| counter.within(value))
    }
    fn value(&self, key: &GroupKey, topology: u32) -> ValueId {
        let at = self.shared.iter().position(|t| *t == topology);
        at.and_then(|at| key.domains.get(at)).copied().unwrap_or(NO_VALUE)
    }

    /// Asks PodTopologySpread and InterPodAffinity.
    fn judge(
        &self,
        key: &GroupKey,
        cluster: &Cluster,
        shift: Option<&Shift<'_>>,
        probe: &mut Probe,
    ) -> Result<(), Refusal> {
        let filters = self.profile.filters;
        if filters.has(Plugin::PodTopologySpread) && self.constraints.list.iter().any(|c| c.hard) {
            probe.filter(Plugin::PodTopologySpread, || self.judge_spread(key, cluster, shift))?;
        }
        if filters.has(Plugin::InterPodAffinity) && self.looks_at_pods() {
            probe.filter(Plugin::InterPodAffinity, || self.judge_affinity(key, cluster, shift))?;
        }
        Ok(())
    }

    fn judge_spread(&self, key: &GroupKey, cluster: &Cluster, shift: Option<&Shift<'_>>) -> Result<(), Refusal> {
        for (at, (of, counter)) in self.counters.iter().enumerate() {
            let Use::Spread(index) = of else { continue };
            let Some(constraint) = self.constraints.list.get(*index).filter(|c| c.hard) else { continue };
            let Some(pods) = self.count(key, at, counter, shift) else {
                return Err(Refusal::unresolvable(Plugin::PodTopologySpread, SPREAD_LABEL));
            };
            let by = shift.map_or(0, |s| s.change(counter, true, cluster));
            let least = match shift {
                Some(s) => counter.least_with(s.node.value(counter.topology), by, constraint.min_domains),
                None => counter.least(constraint.min_domains),
            };
            if pods + by + i64::from(constraint.counts_itself) - least > constraint.max_skew {
                return Err(Refusal::resolvable(Plugin::PodTopologySpread, SPREAD));
            }
        }
        Ok(())
    }

    fn judge_affinity(&self, key: &GroupKey, cluster: &Cluster, shift: Option<&Shift<'_>>) -> Result<(), Refusal> {
        let refuse = |reason: &str, resolvable| {
            Err(Refusal { plugin: Plugin::InterPodAffinity, reasons: vec![reason.to_owned()], resolvable })
        };
        let by = |counter: &super::Counter| shift.map_or(0, |s| s.change(counter, false, cluster));
        let (mut all_labels, mut all_there, mut anywhere) = (true, true, false);
        for (at, (_, counter)) in self.counters.iter().enumerate().filter(|(_, (of, _))| *of == Use::Required) {
            let pods = self.count(key, at, counter, shift);
            all_labels &= pods.is_some();
            all_there &= pods.is_some_and(|pods| pods + by(counter) > 0);
            anywhere |= counter.total() + by(counter) > 0;
        }
        // The first pod of a group that wants to be together may go anywhere.
        if !(all_labels && (all_there || (!anywhere && self.attracts_itself))) {
            return refuse(AFFINITY, false);
        }
        for (at, (_, counter)) in self.counters.iter().enumerate().filter(|(_, (of, _))| *of == Use::Anti) {
            if self.count(key, at, counter, shift).is_some_and(|pods| pods + by(counter) > 0) {
                return refuse(ANTI_AFFINITY, true);
            }
        }
        if shift.is_none() && key.unwanted {
            return refuse(EXISTING, true);
        }
        for id in &self.existing {
            let Some(term) = cluster.tables.terms.get(*id as usize) else { continue };
            if term.kind != TermKind::RequiredAnti || (shift.is_none() && unique(cluster, term.topology)) {
                continue;
            }
            let value = match shift {
                Some(s) => s.node.value(term.topology),
                None => self.value(key, term.topology),
            };
            let there = term.counts.get(&value).copied().map_or(0, i64::from);
            if value != NO_VALUE && there + shift.map_or(0, |s| s.change_of_term(*id)) > 0 {
                return refuse(EXISTING, true);
            }
        }
        Ok(())
    }

    /// Affinity between pods, as a raw score.
    fn attraction(&self, key: &GroupKey, cluster: &Cluster) -> i64 {
        let mut sum = key.attraction;
        for (of, counter) in self.counters.iter().filter(|(_, c)| !c.unique) {
            if let Use::Preferred(weight) = of {
                sum += weight * counter.within(self.value(key, counter.topology));
            }
        }
        for id in &self.existing {
            if let Some(term) = cluster.tables.terms.get(*id as usize)
                && self.shared.contains(&term.topology)
            {
                let pods = term.counts.get(&self.value(key, term.topology)).copied().unwrap_or(0);
                sum += i64::from(pods) * self.pull(term.kind);
            }
        }
        sum
    }

    /// Scores of soft constraints: none for nodes that lack a label that is needed.
    #[expect(clippy::cast_precision_loss, reason = "counts of nodes and pods need no 53 bits")]
    #[expect(clippy::cast_possible_truncation, reason = "rounded, as upstream does")]
    fn spread_scores(&self, raws: &mut [(Raw, &GroupKey)]) {
        let soft: Vec<(usize, &super::Counter, &crate::plugins::spread::Constraint)> = self
            .counters
            .iter()
            .enumerate()
            .filter_map(|(at, (of, counter))| match of {
                Use::Spread(index) => Some((at, counter, self.constraints.list.get(*index).filter(|c| !c.hard)?)),
                _ => None,
            })
            .collect();
        if soft.is_empty() {
            return;
        }
        let lacks = |key: &GroupKey| {
            self.constraints.need_all
                && soft.iter().any(|(at, counter, _)| self.count(key, *at, counter, None).is_none())
        };
        let counted: Vec<bool> = raws.iter().map(|(_, key)| !lacks(key)).collect();
        let nodes: usize =
            raws.iter().zip(&counted).filter(|(_, counted)| **counted).map(|((raw, _), _)| raw.nodes).sum();
        let mut sums = vec![0.0_f64; raws.len()];
        for (at, counter, constraint) in soft {
            let domains = if constraint.by_host || counter.unique {
                nodes
            } else {
                let values = raws.iter().zip(&counted).filter(|(_, counted)| **counted);
                let values = values.map(|((_, key), _)| self.value(key, counter.topology)).filter(|v| *v != NO_VALUE);
                values.collect::<std::collections::BTreeSet<_>>().len()
            };
            let weight = (domains as f64 + 2.0).ln();
            for ((_, key), sum) in raws.iter().zip(&mut sums) {
                if let Some(pods) = self.count(key, at, counter, None) {
                    *sum += pods as f64 * weight + (constraint.max_skew - 1) as f64;
                }
            }
        }
        for (((raw, _), sum), counted) in raws.iter_mut().zip(sums).zip(counted) {
            raw.spread = counted.then_some(sum.round() as i64);
            debug_assert!(self.groups.get(raw.group).is_some(), "scores are of groups that are there");
        }
    }

    /// Whether the pod would fit a node if pods came to it or went from it.
    ///
    /// # Errors
    /// Why it would not.
    pub fn trial(&self, id: NodeId, hypothesis: &Hypothesis<'_>, cluster: &Cluster) -> Result<(), Refusal> {
        let gone = || Refusal::unresolvable(Plugin::NodeName, "node(s) didn't match the requested node name");
        let (Some(entry), Some(node)) = (self.entries.get(id as usize), cluster.node(id)) else { return Err(gone()) };
        if let Some(refusal) = entry.facts.refusal() {
            return Err(refusal);
        }
        let mut probe = Probe::default();
        self.fit.filter(&self.info, node, hypothesis, &mut probe)?;
        if !self.is_global() {
            return Ok(());
        }
        let key = self.key(id, node, entry, cluster);
        self.judge(&key, cluster, Some(&Shift { node, hypothesis }), &mut probe)
    }

    /// A pod of this class.
    #[must_use]
    pub fn pod(&self) -> &Arc<PodInfo> {
        &self.info
    }
}

impl Shift<'_> {
    /// By how much a counter's count in the node's domain would change.
    fn change(&self, counter: &super::Counter, staying: bool, cluster: &Cluster) -> i64 {
        let count = |pods: &[Arc<PodInfo>]| {
            let of = pods.iter().filter(|p| !(staying && p.is_terminating()));
            i64::try_from(of.filter(|p| counter.counts_slowly(p.kind, &cluster.tables)).count()).unwrap_or(0)
        };
        count(self.hypothesis.with) - count(self.hypothesis.without)
    }
    fn change_of_term(&self, term: u32) -> i64 {
        let count = |pods: &[Arc<PodInfo>]| {
            let having = pods.iter().filter(|p| p.terms.iter().any(|own| own.term == term));
            i64::try_from(having.count()).unwrap_or(0)
        };
        count(self.hypothesis.with) - count(self.hypothesis.without)
    }
}

/// `part` of `whole` as a score.
fn share(part: i64, whole: i64) -> i64 {
    if whole == 0 {
        0
    } else {
        i64::try_from(i128::from(MAX_SCORE) * i128::from(part) / i128::from(whole)).unwrap_or(0)
    }
}

/// One of the nodes with the highest score.
pub fn best(scores: &[(NodeId, i64)], rng: &mut Rng) -> Option<NodeId> {
    let most = scores.iter().map(|(_, score)| *score).max()?;
    let top: Vec<NodeId> = scores.iter().filter(|(_, score)| *score == most).map(|(id, _)| *id).collect();
    top.get(usize::try_from(rng.below(top.len() as u64)).unwrap_or(0)).copied()
}
