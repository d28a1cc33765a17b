//! DefaultPreemption: on which node the fewest and least important pods would have to go for a pod to fit.
//!
//! The same filters are asked as in scheduling, without the pods that would go and with those that are nominated to the
//! node. What came out for a node is kept until the node changes, like its other answers. Volumes differ from pod to pod: only nodes
//! where those of a pod clash with others are looked at for that pod alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::resource::Object as _;
use carrack_types::selector::selects;

use super::{Answer, Class, Nominated, Verdict};
use crate::cluster::Seat;
use crate::plugins::fit::Hypothesis;
use crate::plugins::volumes::{Asked, Volumes};
use crate::{Cluster, NodeId, PodInfo, Probe, Refusal};

/// Why a node is no candidate: nobody less important is there.
pub const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
/// Why a node is no candidate: it would not take the pod whoever went.
pub const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
/// Where a pod's volumes clash, so many candidates are enough, or a tenth of all nodes if that is more: upstream's defaults
/// (`calculateNumCandidates`).
const ENOUGH: usize = 100;

/// A node that would take the pod, and who would have to go.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Who would go, the most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many disruption budgets would be overdrawn.
    pub violations: usize,
}

/// A pod of a class with its volumes: for one that only a single pod may use, another may have to go.
#[derive(Clone, Copy)]
pub struct WithVolumes<'a> {
    /// The pod.
    pub pod: &'a PodInfo,
    /// Its volumes.
    pub volumes: &'a Volumes,
}

/// How much it takes to free a node. Less is better (framework/preemption, `pickOneNodeForPreemption`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    violations: usize,
    highest_priority: i32,
    priorities: i64,
    victims: usize,
    started: Reverse<i64>,
}

#[derive(Clone, Debug)]
enum Outcome {
    Candidate(Rank),
    Not(Arc<[String]>),
}

impl Outcome {
    /// What comes of who would have to go.
    fn of(victims: Result<(Vec<Seat>, usize), Vec<String>>) -> Self {
        match victims {
            Err(reasons) => Self::Not(reasons.into()),
            Ok((victims, _)) if victims.is_empty() => Self::Not(vec![NO_VICTIMS.to_owned()].into()),
            Ok((victims, violations)) => Self::Candidate(rank(&victims, violations)),
        }
    }
}

/// What came out for each node.
#[derive(Debug, Default)]
pub struct Index {
    seen: u64,
    budgets: u64,
    outcomes: BTreeMap<NodeId, Outcome>,
    order: BTreeSet<(Rank, NodeId)>,
    /// What nodes say that are no candidates, and how many say so. Most say the same, so it is there once.
    reasons: BTreeMap<Arc<[String]>, usize>,
}

impl Index {
    /// How many nodes have each reason.
    fn counted(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (reasons, nodes) in &self.reasons {
            for reason in reasons.iter() {
                *counts.entry(reason.clone()).or_default() += nodes;
            }
        }
        counts
    }

    /// The same with what others said already.
    fn shared(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Candidate(rank) => Outcome::Candidate(rank),
            Outcome::Not(reasons) => {
                let known = self.reasons.get_key_value(&reasons).map(|(known, _)| known.clone());
                Outcome::Not(known.unwrap_or(reasons))
            }
        }
    }

    fn set(&mut self, id: NodeId, outcome: Option<Outcome>) {
        let outcome = outcome.map(|outcome| self.shared(outcome));
        let old = match &outcome {
            Some(outcome) => self.outcomes.insert(id, outcome.clone()),
            None => self.outcomes.remove(&id),
        };
        match old {
            Some(Outcome::Candidate(rank)) => {
                self.order.remove(&(rank, id));
            }
            Some(Outcome::Not(reasons)) => {
                if let Some(count) = self.reasons.get_mut(&reasons) {
                    *count -= 1;
                    if *count == 0 {
                        self.reasons.remove(&reasons);
                    }
                }
            }
            None => {}
        }
        match outcome {
            Some(Outcome::Candidate(rank)) => {
                self.order.insert((rank, id));
            }
            Some(Outcome::Not(reasons)) => {
                *self.reasons.entry(reasons).or_default() += 1;
            }
            None => {}
        }
    }
}

impl Class {
    /// The best nodes for preemption, at most so many. Where there is none: why, counted.
    pub fn candidates(
        &mut self,
        verdict: &Verdict,
        cluster: &Cluster,
        nominated: Nominated<'_>,
        most: usize,
    ) -> Result<Vec<Candidate>, BTreeMap<String, usize>> {
        self.look_again(verdict, cluster, nominated);
        self.best_of(&self.preempt, cluster, nominated, None, most)
    }

    /// Asks the nodes that have changed.
    fn look_again(&mut self, verdict: &Verdict, cluster: &Cluster, nominated: Nominated<'_>) {
        let mut index = std::mem::take(&mut self.preempt);
        // What other nodes' pods are like decides too, or budgets that any pod may have changed.
        if self.is_global() || index.budgets != cluster.objects.budgets_version {
            index = Index { budgets: cluster.objects.budgets_version, ..Index::default() };
        }
        let seen = std::mem::replace(&mut index.seen, cluster.clock());
        for id in cluster.changed_since(seen) {
            let outcome = self.outcome(id, verdict, cluster, nominated);
            index.set(id, outcome);
        }
        self.preempt = index;
    }

    /// The same for one pod with volumes. A node where these have room whoever is there says what it says to all pods of the class.
    ///
    /// # Errors
    /// There is none.
    pub fn candidates_with_volumes(
        &mut self,
        verdict: &Verdict,
        cluster: &Cluster,
        nominated: Nominated<'_>,
        own: WithVolumes<'_>,
        most: usize,
    ) -> Result<Vec<Candidate>, BTreeMap<String, usize>> {
        self.look_again(verdict, cluster, nominated);
        let mut index = Index::default();
        let mut clashing = Vec::new();
        for (id, node) in cluster.nodes() {
            let Some(known) = self.preempt.outcomes.get(&id) else { continue };
            let fits = self.answer(id, verdict, cluster).is_none();
            let outcome = match known {
                // Whoever went, it would have no room.
                Outcome::Not(_) if !fits => known.clone(),
                _ => {
                    let beside = self.beside(&nominated(&node.name));
                    let as_it_is = Hypothesis { with: &beside, without: &[] };
                    let asked = Asked { pod: own.pod, node, cluster, profile: &self.profile };
                    match own.volumes.filter(asked, &as_it_is, &mut Probe::default()) {
                        Ok(_) => known.clone(),
                        Err(refusal) if refusal.resolvable => {
                            clashing.push(id);
                            continue;
                        }
                        Err(_) if fits => Outcome::Not(vec![NOT_HELPFUL.to_owned()].into()),
                        Err(refusal) => Outcome::Not(refusal.reasons.into()),
                    }
                }
            };
            index.set(id, Some(outcome));
        }
        let enough = ENOUGH.max(cluster.len() / 10);
        for id in clashing {
            if index.order.len() >= enough && index.order.first().is_some_and(|(rank, _)| rank.violations == 0) {
                break;
            }
            let outcome = Outcome::of(self.victims(id, cluster, nominated, Some(own)));
            index.set(id, Some(outcome));
        }
        self.best_of(&index, cluster, nominated, Some(own), most)
    }

    fn best_of(
        &self,
        index: &Index,
        cluster: &Cluster,
        nominated: Nominated<'_>,
        own: Option<WithVolumes<'_>>,
        most: usize,
    ) -> Result<Vec<Candidate>, BTreeMap<String, usize>> {
        let found: Vec<Candidate> = index
            .order
            .iter()
            .take(most)
            .filter_map(|(_, id)| {
                let (victims, violations) = self.victims(*id, cluster, nominated, own).ok()?;
                Some(Candidate { node: *id, victims: victims.into_iter().map(|s| s.info).collect(), violations })
            })
            .collect();
        if found.is_empty() { Err(index.counted()) } else { Ok(found) }
    }

    fn outcome(&self, id: NodeId, verdict: &Verdict, cluster: &Cluster, nominated: Nominated<'_>) -> Option<Outcome> {
        if matches!(self.entries.get(id as usize)?.answer, Answer::Absent) {
            return None;
        }
        if self.answer(id, verdict, cluster).is_some_and(|refusal| !refusal.resolvable) {
            return Some(Outcome::Not(vec![NOT_HELPFUL.to_owned()].into()));
        }
        Some(Outcome::of(self.victims(id, cluster, nominated, None)))
    }

    /// Who would have to go from a node, and how many budgets that overdraws.
    fn victims(
        &self,
        id: NodeId,
        cluster: &Cluster,
        nominated: Nominated<'_>,
        own: Option<WithVolumes<'_>>,
    ) -> Result<(Vec<Seat>, usize), Vec<String>> {
        let Some(node) = cluster.node(id) else { return Err(Vec::new()) };
        let me = self.info.priority;
        let mut lower: Vec<Seat> = node.pods.values().filter(|s| s.info.priority < me).cloned().collect();
        if lower.is_empty() {
            return Err(vec![NO_VICTIMS.to_owned()]);
        }
        lower.sort_by_key(|seat| (Reverse(seat.info.priority), started(seat), seat.info.uid.clone()));
        let beside = self.beside(&nominated(&node.name));
        let mut without: Vec<Arc<PodInfo>> = lower.iter().map(|s| s.info.clone()).collect();
        let own = own.map(|own| (own.volumes, Asked { pod: own.pod, node, cluster, profile: &self.profile }));
        let counted = own.map(|(volumes, asked)| volumes.count(asked, &beside));
        let try_without = |without: &[Arc<PodInfo>]| -> Result<(), Refusal> {
            let hypothesis = Hypothesis { with: &beside, without };
            self.trial(id, &hypothesis, cluster)?;
            own.map_or(Ok(()), |(volumes, asked)| {
                volumes.share(asked, &hypothesis, counted.as_ref(), &mut Probe::default())
            })
        };
        try_without(&without).map_err(|refusal| refusal.reasons)?;
        // Where its volumes can be at all depends on nobody who may go, so it is asked once.
        if let Some((volumes, asked)) = own {
            volumes.reach(asked, &mut Probe::default()).map_err(|refusal| refusal.reasons)?;
        }
        // Spare as many as fits: first those whose budget is spent, the more important first.
        let violating = violating(&lower, cluster);
        let (first, second): (Vec<_>, Vec<_>) = lower.iter().zip(violating).partition(|(_, violates)| *violates);
        let mut violations = 0;
        for (seat, violates) in first.into_iter().chain(second) {
            let Some(at) = without.iter().position(|p| p.uid == seat.info.uid) else { continue };
            let spared = without.remove(at);
            if try_without(&without).is_err() {
                without.insert(at, spared);
                violations += usize::from(violates);
            }
        }
        let victims = lower.into_iter().filter(|s| without.iter().any(|p| p.uid == s.info.uid)).collect();
        Ok((victims, violations))
    }
}

fn started(seat: &Seat) -> i64 {
    seat.started.map_or(i64::MAX, |t| t.0)
}

/// What it takes to have these pods go.
#[must_use]
pub fn rank(victims: &[Seat], violations: usize) -> Rank {
    let highest = victims.iter().map(|s| s.info.priority).max().unwrap_or(i32::MIN);
    let earliest = victims.iter().filter(|s| s.info.priority == highest).map(started).min().unwrap_or(i64::MAX);
    Rank {
        violations,
        highest_priority: highest,
        // Moved up, so that many pods of a priority below zero are more than few.
        priorities: victims.iter().map(|s| i64::from(s.info.priority) + (1 << 31)).sum(),
        victims: victims.len(),
        started: Reverse(earliest),
    }
}

/// Whose eviction would overdraw a disruption budget, taken in this order (`filterPodsWithPDBViolation`). An empty
/// selector is about all pods of the namespace, those without labels too, as in policy/v1 (kubernetes #141785).
fn violating(pods: &[Seat], cluster: &Cluster) -> Vec<bool> {
    let budgets = &cluster.objects.budgets;
    if budgets.is_empty() {
        return vec![false; pods.len()];
    }
    // Only of those that are about some of these pods: a cluster has many, and each node is asked.
    let mut left: BTreeMap<&crate::cluster::ObjectName, i64> = BTreeMap::new();
    let mut check = |seat: &Seat| {
        let pod = &seat.info.pod;
        let mut violates = false;
        let after = budgets.range((pod.namespace().to_owned(), String::new())..);
        for (name, budget) in after.take_while(|((ns, _), _)| ns == pod.namespace()) {
            let Some(selector) = budget.spec.as_ref().and_then(|s| s.selector.as_ref()) else { continue };
            let gone_already = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
            if !selects(selector, Some(&pod.labels)) || gone_already.is_some_and(|pods| pods.contains_key(pod.name())) {
                continue;
            }
            let allowed = || budget.status.as_ref().and_then(|s| s.disruptions_allowed).map_or(0, i64::from);
            let left = left.entry(name).or_insert_with(allowed);
            *left -= 1;
            violates |= *left < 0;
        }
        violates
    };
    pods.iter().map(&mut check).collect()
}
