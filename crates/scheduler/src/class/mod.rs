//! Pods that are alike, and what every node says to them, kept as nodes change.
//!
//! A class remembers each node's answer. Before it is asked again, it looks at the nodes that changed since, and at those
//! alone; so every node is considered for every pod, and one more pod costs what the one before it changed.
//!
//! ```text
//!   node changed ─▶ filters and scores of that node ─▶ refused: counted by reason
//!                                                 └──▶ a group, and in it a bucket by score
//!   asked ─▶ groups are judged (spreading, affinity between pods, normalized scores) ─▶ best bucket of the best group
//! ```
//!
//! Plugins that look at many nodes see a node only through its [`GroupKey`]: its values of the topology keys, or, where
//! every node is a domain of its own, its count. So they judge groups, of which there are few.

mod counter;
mod group;
mod judge;
mod preempt;
mod shelf;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::plugins::fit::{Fit, Hypothesis};
use crate::plugins::node::{Facts, facts};
use crate::plugins::{images, spread};
use crate::tables::{PodMatcher, TermKind, TopologyId};
use crate::{Cluster, NodeId, NodeInfo, Plugin, PodInfo, Probe, Profile, Refusal};

use counter::Counter;
use group::{GroupKey, Groups, Place};
pub use judge::{Verdict, best};
pub use preempt::{Candidate, NO_VICTIMS, NOT_HELPFUL, WithVolumes, rank};
pub use shelf::Shelf;

/// Tells which pods are nominated to a node, by its name.
pub type Nominated<'a> = &'a dyn Fn(&str) -> Vec<Arc<PodInfo>>;

/// What a counter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// A constraint, by its place in the list.
    Spread(usize),
    /// A term of the required affinity.
    Required,
    /// A term of the required anti-affinity.
    Anti,
    /// A preferred term, with its weight.
    Preferred(i64),
}

/// A node's answer.
#[derive(Clone, Debug, Default)]
enum Answer {
    /// There is no such node.
    #[default]
    Absent,
    /// Refused, by number.
    Refused(u32),
    /// Fits as far as the node alone can tell.
    Fits(Place),
}

#[derive(Clone, Debug, Default)]
struct Entry {
    version: u64,
    facts: Facts,
    images: u64,
    answer: Answer,
}

/// Pods that are alike.
#[derive(Debug)]
pub struct Class {
    /// One of them.
    info: Arc<PodInfo>,
    profile: Arc<Profile>,
    epoch: u64,
    seen: u64,
    terms_seen: usize,
    fit: Fit,
    constraints: spread::Constraints,
    counters: Vec<(Use, Counter)>,
    /// The pod counts for its own required affinity.
    attracts_itself: bool,
    /// Terms of placed pods that mean it.
    existing: Vec<u32>,
    /// One of them keeps it away.
    unwanted_by_others: bool,
    /// Topology keys with more than one node to a value that matter to it, as they are in the group keys.
    shared: Vec<TopologyId>,
    entries: Vec<Entry>,
    groups: Groups,
    refusals: Vec<(Refusal, usize)>,
    refusal_ids: BTreeMap<Refusal, u32>,
    /// Fitting nodes to which others are nominated, where the others matter for more than resources.
    doubtful: std::collections::BTreeSet<NodeId>,
    preempt: preempt::Index,
}

impl Class {
    /// A class for pods like this one.
    #[must_use]
    pub fn new(
        info: Arc<PodInfo>,
        profile: Arc<Profile>,
        default: Option<&LabelSelector>,
        cluster: &mut Cluster,
    ) -> Self {
        let constraints =
            match profile.filters.has(Plugin::PodTopologySpread) || profile.weight(Plugin::PodTopologySpread) != 0 {
                true => spread::constraints(&info, &profile, default, cluster),
                false => spread::Constraints::default(),
            };
        let fit = Fit::new(&info, &profile, &mut cluster.tables);
        let mut class = Self {
            epoch: cluster.epoch(),
            seen: 0,
            terms_seen: 0,
            fit,
            constraints,
            counters: Vec::new(),
            attracts_itself: false,
            existing: Vec::new(),
            unwanted_by_others: false,
            shared: Vec::new(),
            entries: Vec::new(),
            groups: Groups::default(),
            refusals: Vec::new(),
            refusal_ids: BTreeMap::new(),
            doubtful: Default::default(),
            preempt: preempt::Index::default(),
            info,
            profile,
        };
        class.make_counters(cluster);
        class.look_at_terms(cluster);
        class.shared = class.topologies(cluster).filter(|t| !unique(cluster, *t)).collect();
        class.shared.sort_unstable();
        class.shared.dedup();
        class
    }

    fn make_counters(&mut self, cluster: &Cluster) {
        let tables = &cluster.tables;
        let uses_affinity = self.uses_affinity();
        let counters = &mut self.counters;
        let mut add = |of: Use, topology: TopologyId, matchers: Vec<PodMatcher>, staying: bool| {
            counters.push((of, Counter::new(topology, unique(cluster, topology), matchers, staying)));
        };
        for (at, c) in self.constraints.list.iter().enumerate() {
            add(Use::Spread(at), c.topology, vec![c.matcher.clone()], true);
        }
        if !uses_affinity {
            return;
        }
        let own = |kind: TermKind| {
            self.info.terms.iter().filter(move |t| t.kind == kind).filter_map(|t| tables.terms.get(t.term as usize))
        };
        // A pod counts for the required affinity only if all its terms mean it.
        let all: Vec<PodMatcher> = own(TermKind::Required).map(|t| t.matcher.clone()).collect();
        for term in own(TermKind::Required) {
            add(Use::Required, term.topology, all.clone(), false);
        }
        for term in own(TermKind::RequiredAnti) {
            add(Use::Anti, term.topology, vec![term.matcher.clone()], false);
        }
        for own in &self.info.terms {
            if let (TermKind::Preferred(weight), Some(term)) = (own.kind, tables.terms.get(own.term as usize)) {
                add(Use::Preferred(weight), term.topology, vec![term.matcher.clone()], false);
            }
        }
        let me = tables.kind(self.info.kind);
        self.attracts_itself =
            !all.is_empty() && me.is_some_and(|kind| all.iter().all(|m| m.matches(kind, &tables.namespaces)));
    }
    fn uses_affinity(&self) -> bool {
        self.profile.filters.has(Plugin::InterPodAffinity) || self.profile.weight(Plugin::InterPodAffinity) != 0
    }
    fn topologies<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = TopologyId> + 'a {
        let terms = self.existing.iter().filter_map(|t| cluster.tables.terms.get(*t as usize)).map(|t| t.topology);
        self.counters.iter().map(|(_, c)| c.topology).chain(terms)
    }

    /// Finds the terms of other pods that mean this one. False when one is of a topology that the groups don't know.
    fn look_at_terms(&mut self, cluster: &Cluster) -> bool {
        let first = self.terms_seen;
        self.terms_seen = cluster.tables.terms.len();
        if !self.uses_affinity() {
            return true;
        }
        let tables = &cluster.tables;
        let Some(me) = tables.kind(self.info.kind) else { return true };
        let mut known = true;
        for (id, term) in (0..).zip(&tables.terms).skip(first) {
            if term.matcher.matches(me, &tables.namespaces) {
                known &= unique(cluster, term.topology) || self.shared.contains(&term.topology);
                self.unwanted_by_others |= term.kind == TermKind::RequiredAnti;
                self.existing.push(id);
            }
        }
        known
    }

    /// Whether it must be made anew, since it rests on what is no longer so.
    #[must_use]
    pub fn is_outdated(&mut self, cluster: &Cluster) -> bool {
        self.epoch != cluster.epoch() || (self.terms_seen < cluster.tables.terms.len() && !self.look_at_terms(cluster))
    }

    /// Looks at the nodes that changed.
    pub fn sync(&mut self, cluster: &Cluster, nominated: Nominated<'_>, probe: &mut Probe) {
        if self.entries.len() < cluster.capacity() {
            self.entries.resize_with(cluster.capacity(), Entry::default);
        }
        let seen = std::mem::replace(&mut self.seen, cluster.clock());
        for id in cluster.changed_since(seen) {
            let Some(node) = cluster.node(id) else { continue };
            self.refresh(id, node, cluster, &nominated(&node.name), probe);
        }
    }

    fn refresh(
        &mut self,
        id: NodeId,
        node: &NodeInfo,
        cluster: &Cluster,
        nominated: &[Arc<PodInfo>],
        probe: &mut Probe,
    ) {
        let mut entry = std::mem::take(&mut self.entries[id as usize]);
        if entry.version != node.object_version || matches!(entry.answer, Answer::Absent) {
            entry.version = node.object_version;
            entry.facts = facts(&self.info, node, &self.profile, probe);
            entry.images = images::present(&self.info, node);
        }
        for (of, counter) in &mut self.counters {
            let within = match of {
                Use::Spread(at) => self.constraints.counts(*at, node, &entry.facts),
                _ => true,
            };
            counter.refresh(id, node, within, &cluster.tables);
        }
        let beside: Vec<Arc<PodInfo>> = self.beside(nominated);
        let hypothesis = Hypothesis { with: &beside, without: &[] };
        let fits = match entry.facts.refusal() {
            _ if !node.exists() => None,
            Some(refusal) => Some(Err(refusal)),
            None => Some(self.fit.filter(&self.info, node, &hypothesis, probe)),
        };
        self.doubtful.remove(&id);
        match fits {
            None => {
                self.leave(&entry.answer);
                entry.answer = Answer::Absent;
            }
            Some(Err(refusal)) => {
                let number = self.number(refusal);
                self.leave(&entry.answer);
                self.refusals[number as usize].1 += 1;
                entry.answer = Answer::Refused(number);
            }
            Some(Ok(())) => {
                let key = self.key(id, node, &entry, cluster);
                let score = self.fit.score(&self.info, node, probe);
                let stays = matches!(&entry.answer, Answer::Fits(place) if self.groups.stays(*place, &key, score));
                if !stays {
                    self.leave(&entry.answer);
                    entry.answer = Answer::Fits(self.groups.insert(&key, score, id));
                }
                if !beside.is_empty() && self.is_global() {
                    self.doubtful.insert(id);
                }
            }
        }
        self.entries[id as usize] = entry;
    }

    /// Nominated pods that this one has to leave room for (framework/runtime, `addGENominatedPods`).
    fn beside(&self, nominated: &[Arc<PodInfo>]) -> Vec<Arc<PodInfo>> {
        nominated.iter().filter(|p| p.priority >= self.info.priority).cloned().collect()
    }
    /// Whether more than the node itself decides if it takes the pod: constraints and terms that only make one node
    /// better than another do not.
    #[must_use]
    pub fn is_global(&self) -> bool {
        let decides = |of: &Use| match of {
            Use::Spread(at) => self.constraints.list.get(*at).is_some_and(|constraint| constraint.hard),
            Use::Required | Use::Anti => true,
            Use::Preferred(_) => false,
        };
        self.unwanted_by_others || self.counters.iter().any(|(of, _)| decides(of))
    }
    /// Whether a node takes the pod.
    #[must_use]
    pub fn takes(&self, id: NodeId, verdict: &Verdict) -> bool {
        let entry = self.entries.get(id as usize);
        entry.is_some_and(|entry| matches!(&entry.answer, Answer::Fits(place) if verdict.has(place.group)))
            && !verdict.excluded.contains(&id)
    }

    /// Whether some pods want to be near to others, or far from them.
    fn looks_at_pods(&self) -> bool {
        !self.existing.is_empty() || self.counters.iter().any(|(of, _)| !matches!(of, Use::Spread(_)))
    }

    fn leave(&mut self, answer: &Answer) {
        match answer {
            Answer::Absent => {}
            Answer::Refused(number) => self.refusals[*number as usize].1 -= 1,
            Answer::Fits(place) => {
                if let Some((node, place)) = self.groups.remove(*place) {
                    self.entries[node as usize].answer = Answer::Fits(place);
                }
            }
        }
    }
    fn number(&mut self, refusal: Refusal) -> u32 {
        if let Some(number) = self.refusal_ids.get(&refusal) {
            return *number;
        }
        let number = u32::try_from(self.refusals.len()).unwrap_or(u32::MAX);
        self.refusals.push((refusal.clone(), 0));
        self.refusal_ids.insert(refusal, number);
        number
    }

    fn key(&self, id: NodeId, node: &NodeInfo, entry: &Entry, cluster: &Cluster) -> GroupKey {
        let mut key = GroupKey {
            intolerable: entry.facts.intolerable,
            preferred: entry.facts.preferred,
            images: entry.images,
            domains: self.shared.iter().map(|t| node.value(*t)).collect(),
            ..GroupKey::default()
        };
        for (of, counter) in self.counters.iter().filter(|(_, c)| c.unique) {
            let here = counter.on(id);
            match of {
                Use::Spread(_) => key.counts.push(match here {
                    Some(pods) => pods,
                    // It has the label, but does not count; or has it not.
                    None if node.value(counter.topology) != crate::tables::NO_VALUE => 0,
                    None => -1,
                }),
                Use::Required | Use::Anti => key.counts.push(here.map_or(-1, |pods| pods.min(1))),
                Use::Preferred(weight) => key.attraction += here.unwrap_or(0) * weight,
            }
        }
        for id in &self.existing {
            let Some(term) = cluster.tables.terms.get(*id as usize) else { continue };
            if self.shared.contains(&term.topology) || node.value(term.topology) == crate::tables::NO_VALUE {
                continue;
            }
            let pods = node.terms.get(id).copied().unwrap_or(0);
            if term.kind == TermKind::RequiredAnti {
                key.unwanted |= pods > 0;
            }
            key.attraction += i64::from(pods) * self.pull(term.kind);
        }
        key
    }
    /// What one placed pod's term adds to the score of its domain.
    fn pull(&self, kind: TermKind) -> i64 {
        let prefers = self.counters.iter().any(|(of, _)| matches!(of, Use::Preferred(_)));
        if self.profile.ignore_preferred_of_existing && !prefers {
            return 0;
        }
        match kind {
            TermKind::Required => self.profile.hard_pod_affinity_weight,
            TermKind::RequiredAnti => 0,
            TermKind::Preferred(weight) => weight,
        }
    }
}

impl spread::Constraints {
    /// Whether a node counts for a constraint.
    fn counts(&self, at: usize, node: &NodeInfo, facts: &Facts) -> bool {
        let Some(constraint) = self.list.get(at) else { return false };
        (!constraint.honor_affinity || facts.matches)
            && (!constraint.honor_taints || facts.tolerated)
            && (!(self.need_all || constraint.hard)
                || self
                    .list
                    .iter()
                    .filter(|c| c.hard == constraint.hard)
                    .all(|c| node.value(c.topology) != crate::tables::NO_VALUE))
    }
}

fn unique(cluster: &Cluster, topology: TopologyId) -> bool {
    cluster.tables.topologies.get(topology as usize).is_none_or(crate::tables::Topology::is_unique)
}

#[cfg(test)]
mod tests;
