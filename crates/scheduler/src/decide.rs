//! One decision: which node a pod goes to, or why none takes it. Pure, and the same for the scheduler, its benchmark and
//! `carrack explain`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::Rng;

use crate::class::{Candidate, Class, NO_VICTIMS, NOT_HELPFUL, Nominated, Shelf, Verdict, WithVolumes, best};
use crate::plugins::fit::{Fit, Hypothesis};
use crate::plugins::node::facts;
use crate::plugins::spread::default_selector;
use crate::plugins::volumes::{Asked, Plan, Volumes};
use crate::text::FitError;
use crate::{Cluster, NodeId, NodeInfo, Plugin, PodInfo, Probe, Profile, Refusal, Stopwatch};

/// What came of looking for a node.
#[derive(Clone, Debug)]
pub enum Found {
    /// This node, and what has to be done about the pod's volumes.
    Node(NodeId, Plan),
    /// These nodes, when a list was asked for, and why the others refuse.
    List(Vec<NodeId>, BTreeMap<Refusal, usize>),
    /// None.
    Nobody(Box<FitError>),
}

/// A pod, its plugins, and who is nominated where (but for the pod itself).
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// The pod.
    pub pod: &'a Arc<PodInfo>,
    /// Its plugins.
    pub profile: &'a Arc<Profile>,
    /// Others' nominations.
    pub nominated: Nominated<'a>,
}

/// What one node says to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// Its name.
    pub node: String,
    /// Why not; empty when it fits.
    pub refusals: Vec<Refusal>,
}

/// Decides.
#[derive(Debug, Default)]
pub struct Decider {
    /// What is known.
    pub cluster: Cluster,
    /// How long it took.
    pub laps: Laps,
    /// What plugins were asked.
    pub probe: Probe,
    shelf: Shelf,
}

/// How long the parts of the last question took, by the stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Laps {
    /// Tells time.
    pub stopwatch: Stopwatch,
    /// Filters.
    pub filter: Duration,
    /// Scores and the choice.
    pub score: Duration,
}

impl Default for Laps {
    fn default() -> Self {
        Self { stopwatch: || Duration::ZERO, filter: Duration::ZERO, score: Duration::ZERO }
    }
}

/// Why a node that was named by a required node affinity is the only kind that is looked at.
const NOT_NAMED: &str = "node(s) didn't satisfy plugin(s) [NodeAffinity]";

/// What a pod is told that asks for devices by claims. Bound without them it would fail on its node.
const NO_DEVICES: &str = "pod has resource claims, for which this scheduler allocates no devices";

/// Whether a pod that names its nodes by affinity names any: what each term asks may contradict itself (plugins/nodeaffinity,
/// `PreFilter`).
fn names_a_node(question: Question<'_>) -> Result<(), Refusal> {
    let none = question.pod.only_nodes.as_ref().is_some_and(Vec::is_empty);
    if none && question.profile.filters.has(Plugin::NodeAffinity) {
        return Err(Refusal::unresolvable(Plugin::NodeAffinity, "pod affinity terms conflict"));
    }
    Ok(())
}

/// Who is nominated to a node and has to be left room there by the pod (framework/runtime, `addGENominatedPods`).
fn nominees(question: Question<'_>, node: &str) -> Vec<Arc<PodInfo>> {
    let mut pods = (question.nominated)(node);
    pods.retain(|p| p.priority >= question.pod.priority && p.uid != question.pod.uid);
    pods
}

/// What has to be done about a pod's volumes at a node, beside who is nominated there; or why they can't be there.
fn ask_volumes(
    volumes: &Volumes,
    question: Question<'_>,
    node: &NodeInfo,
    cluster: &Cluster,
    probe: &mut Probe,
) -> Result<Plan, Refusal> {
    let beside = nominees(question, &node.name);
    let asked = Asked { pod: question.pod, node, cluster, profile: question.profile };
    volumes.filter(asked, &Hypothesis { with: &beside, without: &[] }, probe)
}

impl Decider {
    /// A decider that knows a cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, ..Self::default() }
    }

    fn with_class<T>(
        &mut self,
        question: Question<'_>,
        ask: impl FnOnce(&mut Class, &Verdict, &mut Cluster, &mut Probe) -> T,
    ) -> T {
        let begun = (self.laps.stopwatch)();
        let (key, mut class) = self.shelf.take(question.pod, question.profile, &mut self.cluster);
        class.sync(&self.cluster, question.nominated, &mut self.probe);
        let verdict = class.verdict(&self.cluster, question.nominated, &mut self.probe);
        let judged = (self.laps.stopwatch)();
        let answer = ask(&mut class, &verdict, &mut self.cluster, &mut self.probe);
        let done = (self.laps.stopwatch)();
        self.laps.filter = judged.saturating_sub(begun);
        self.laps.score = done.saturating_sub(judged);
        self.shelf.put(key, class, &self.cluster);
        answer
    }

    /// Looks for a node: `preferred`, if it fits, or the best. With `list`, for all that fit.
    pub fn find(&mut self, question: Question<'_>, preferred: Option<NodeId>, list: bool, rng: &mut Rng) -> Found {
        // What the question before took says nothing of this one.
        (self.laps.filter, self.laps.score) = (Duration::ZERO, Duration::ZERO);
        let mut error = FitError { nodes: self.cluster.len(), ..FitError::default() };
        let volumes = match names_a_node(question).and_then(|()| self.volumes(question)) {
            Ok(volumes) => volumes,
            Err(refusal) => {
                error.everywhere = refusal.reasons.first().cloned();
                error.refusals.insert(refusal, error.nodes);
                return Found::Nobody(Box::new(error));
            }
        };
        if let Some(names) = self.names_only(question) {
            let begun = (self.laps.stopwatch)();
            let mut plans = self.look_at_named(question, names, volumes.as_ref(), &mut error.refusals);
            let judged = (self.laps.stopwatch)();
            self.laps.filter = judged.saturating_sub(begun);
            let fitting: Vec<NodeId> = plans.keys().copied().collect();
            if list && !fitting.is_empty() {
                return Found::List(fitting, error.refusals);
            }
            let chosen = preferred.filter(|id| plans.contains_key(id)).or_else(|| match fitting[..] {
                [] | [_] => fitting.first().copied(),
                _ => best(&self.scores_of(question, &fitting), rng),
            });
            // Scores are a class's, which has its own nodes to look at first: all that counts with them.
            self.laps.filter = judged.saturating_sub(begun);
            self.laps.score = (self.laps.stopwatch)().saturating_sub(judged);
            return match chosen {
                Some(id) => Found::Node(id, plans.remove(&id).unwrap_or_default()),
                None => Found::Nobody(Box::new(error)),
            };
        }
        self.with_class(question, |class, verdict, cluster, probe| {
            // Whoever has a node, as one that was made free for it, needs no list of the others.
            if let Some(id) = preferred.filter(|id| !list && class.takes(*id, verdict))
                && let Some(node) = cluster.node(id)
                && let Ok(plan) = match &volumes {
                    Some(volumes) => ask_volumes(volumes, question, node, cluster, probe),
                    None => Ok(Plan::default()),
                }
            {
                return Found::Node(id, plan);
            }
            let mut refusals = verdict.refusals.clone();
            if volumes.is_none() && !list && preferred.is_none() {
                if let Some(node) = class.choose(verdict, cluster, rng, probe) {
                    return Found::Node(node, Plan::default());
                }
                error.refusals = refusals;
                return Found::Nobody(Box::new(error));
            }
            let mut plans: BTreeMap<NodeId, Plan> = BTreeMap::new();
            let fitting = class.fitting(verdict);
            let fitting = match &volumes {
                None => fitting,
                Some(volumes) => {
                    let mut fit = Vec::new();
                    for id in fitting {
                        let Some(node) = cluster.node(id) else { continue };
                        match ask_volumes(volumes, question, node, cluster, probe) {
                            Ok(plan) => {
                                plans.insert(id, plan);
                                fit.push(id);
                            }
                            Err(refusal) => *refusals.entry(refusal).or_default() += 1,
                        }
                    }
                    fit
                }
            };
            if fitting.is_empty() {
                error.refusals = refusals;
                return Found::Nobody(Box::new(error));
            }
            if list {
                return Found::List(fitting, refusals);
            }
            match best(&class.scores(&fitting, cluster, probe), rng) {
                Some(id) => Found::Node(id, plans.remove(&id).unwrap_or_default()),
                None => Found::Nobody(Box::new(error)),
            }
        })
    }

    /// The best of some nodes, with scores of extenders on top of the plugins', if they still fit.
    pub fn best_of(
        &mut self,
        question: Question<'_>,
        accepted: &[NodeId],
        extra: &BTreeMap<NodeId, i64>,
        rng: &mut Rng,
    ) -> Option<(NodeId, Plan)> {
        let volumes = self.volumes(question).ok()?;
        let simple = self.names_only(question).is_some_and(|names| names.len() == 1);
        let scores = if simple {
            accepted.iter().filter(|id| self.check_node(question, **id).is_ok()).map(|id| (*id, 0)).collect()
        } else {
            self.with_class(question, |class, verdict, cluster, probe| {
                let fitting: BTreeSet<NodeId> = class.fitting(verdict).into_iter().collect();
                let left: Vec<NodeId> = accepted.iter().copied().filter(|id| fitting.contains(id)).collect();
                class.scores(&left, cluster, probe)
            })
        };
        let mut plans: BTreeMap<NodeId, Plan> = BTreeMap::new();
        let extra = |id: &NodeId| extra.get(id).copied().unwrap_or(0);
        let mut scores: Vec<(NodeId, i64)> =
            scores.into_iter().map(|(id, score)| (id, score.saturating_add(extra(&id)))).collect();
        if let Some(volumes) = &volumes {
            scores.retain(|(id, _)| {
                let cluster = &self.cluster;
                let node = cluster.node(*id);
                let plan = node.and_then(|node| ask_volumes(volumes, question, node, cluster, &mut self.probe).ok());
                plan.is_some_and(|plan| {
                    plans.insert(*id, plan);
                    true
                })
            });
        }
        let node = best(&scores, rng)?;
        Some((node, plans.remove(&node).unwrap_or_default()))
    }

    /// Nodes that would fit without some less important pods, the best first. Where there is none: why, counted.
    ///
    /// # Errors
    /// There is none.
    pub fn candidates(
        &mut self,
        question: Question<'_>,
        most: usize,
    ) -> Result<Vec<Candidate>, BTreeMap<String, usize>> {
        let volumes = match self.volumes(question) {
            Ok(volumes) => volumes,
            Err(_) => {
                return Err(BTreeMap::from([(NOT_HELPFUL.to_owned(), self.cluster.len())]));
            }
        };
        if let Some(reasons) = self.named_in_vain(question) {
            return Err(reasons);
        }
        self.with_class(question, |class, verdict, cluster, _| match &volumes {
            None => class.candidates(verdict, cluster, question.nominated, most),
            Some(volumes) => {
                let own = WithVolumes { pod: question.pod, volumes };
                class.candidates_with_volumes(verdict, cluster, question.nominated, own, most)
            }
        })
    }

    /// A pod's volumes, unless they, or devices that nobody allocates, keep it from every node.
    fn volumes(&self, question: Question<'_>) -> Result<Option<Volumes>, Refusal> {
        if question.pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
            return Err(Refusal::unresolvable(Plugin::DynamicResources, NO_DEVICES));
        }
        if !question.pod.has_volumes {
            return Ok(None);
        }
        match Volumes::of(question.pod, &self.cluster.objects) {
            Err(_) if !question.profile.filters.has(Plugin::VolumeBinding) => Ok(None),
            volumes => volumes.map(Some),
        }
    }

    /// Whether nothing but single nodes decides about a pod: no spreading, no affinity between pods.
    fn is_simple(&self, question: Question<'_>) -> bool {
        let pod = question.pod;
        let spreads = pod.spec().topology_spread_constraints.as_ref().is_some_and(|c| !c.is_empty());
        let tables = &self.cluster.tables;
        let meant =
            |kind| tables.terms.iter().any(|t| !t.counts.is_empty() && t.matcher.matches(kind, &tables.namespaces));
        !spreads
            && pod.terms.is_empty()
            && default_selector(pod, question.profile, &self.cluster).is_none()
            && !tables.kind(pod.kind).is_some_and(|kind| meant(kind))
    }

    fn check_node(&mut self, question: Question<'_>, id: NodeId) -> Result<(), Refusal> {
        let fit = Fit::new(question.pod, question.profile, &mut self.cluster.tables);
        let Some(node) = self.cluster.node(id) else { return Ok(()) };
        if let Some(refusal) = facts(question.pod, node, question.profile, &mut self.probe).refusal() {
            return Err(refusal);
        }
        let beside = nominees(question, &node.name);
        fit.filter(question.pod, node, &Hypothesis { with: &beside, without: &[] }, &mut self.probe)
    }

    /// The nodes that a pod names by affinity, as those of daemon sets do, if nothing else decides than those nodes: then the others
    /// need not be looked at.
    fn names_only<'q>(&self, question: Question<'q>) -> Option<&'q [String]> {
        let names = question.pod.only_nodes.as_deref()?;
        let counts = question.profile.filters.has(Plugin::NodeAffinity) && self.is_simple(question);
        counts.then_some(names)
    }

    /// Why nobody need go from the nodes that a pod names by affinity, if these alone can tell: pods of a daemon set that has no room
    /// name one node each, and are no reason to look at all nodes for every one of them.
    fn named_in_vain(&mut self, question: Question<'_>) -> Option<BTreeMap<String, usize>> {
        let names = self.names_only(question)?;
        let (mut reasons, mut others) = (BTreeMap::new(), self.cluster.len());
        for name in names {
            let Some((id, _)) = self.cluster.find_existing(name) else { continue };
            others = others.saturating_sub(1);
            let is_resolvable = self.check_node(question, id).err()?.resolvable;
            let mut there = self.cluster.node(id).into_iter().flat_map(|node| node.pods.values());
            if is_resolvable && there.any(|seat| seat.info.priority < question.pod.priority) {
                return None;
            }
            let why = if is_resolvable { NO_VICTIMS } else { NOT_HELPFUL };
            *reasons.entry(why.to_owned()).or_default() += 1;
        }
        if others > 0 {
            *reasons.entry(NOT_HELPFUL.to_owned()).or_default() += others;
        }
        Some(reasons)
    }

    /// Which of the nodes that a pod names take it, with what has to be done about its volumes there; and why others don't.
    fn look_at_named(
        &mut self,
        question: Question<'_>,
        names: &[String],
        volumes: Option<&Volumes>,
        refusals: &mut BTreeMap<Refusal, usize>,
    ) -> BTreeMap<NodeId, Plan> {
        let mut fitting = BTreeMap::new();
        let mut others = self.cluster.len();
        for name in names {
            let Some((id, _)) = self.cluster.find_existing(name) else { continue };
            others = others.saturating_sub(1);
            let with_volumes = |decider: &mut Self| match (volumes, decider.cluster.node(id)) {
                (Some(volumes), Some(node)) => {
                    ask_volumes(volumes, question, node, &decider.cluster, &mut decider.probe)
                }
                _ => Ok(Plan::default()),
            };
            match self.check_node(question, id).and_then(|()| with_volumes(self)) {
                Ok(plan) => drop(fitting.insert(id, plan)),
                Err(refusal) => *refusals.entry(refusal).or_default() += 1,
            }
        }
        if others > 0 {
            refusals.insert(Refusal::unresolvable(Plugin::NodeAffinity, NOT_NAMED), others);
        }
        fitting
    }

    /// Forgets what nodes answered; it is asked for anew.
    pub fn forget_classes(&mut self) {
        self.shelf.clear();
    }

    /// Scores of nodes that fit.
    pub fn scores_of(&mut self, question: Question<'_>, nodes: &[NodeId]) -> Vec<(NodeId, i64)> {
        self.with_class(question, |class, _, cluster, probe| class.scores(nodes, cluster, probe))
    }

    /// Why a node refuses a pod, if it does; without what its volumes have to say.
    pub fn refusal(&mut self, question: Question<'_>, node: NodeId) -> Option<Refusal> {
        self.with_class(question, |class, verdict, cluster, _| class.answer(node, verdict, cluster))
    }

    /// What every node says, in the order of their names.
    pub fn answers(&mut self, question: Question<'_>) -> Vec<NodeAnswer> {
        let volumes = self.volumes(question);
        self.with_class(question, |class, verdict, cluster, probe| {
            let ids: Vec<NodeId> = cluster.nodes().map(|(id, _)| id).collect();
            let mut answers: Vec<NodeAnswer> = Vec::new();
            for id in ids {
                let Some(node) = cluster.node(id) else { continue };
                let mut refusals = class.refusals_of(id, verdict, cluster);
                match &volumes {
                    Err(refusal) => refusals.push(refusal.clone()),
                    Ok(Some(volumes)) => {
                        refusals.extend(ask_volumes(volumes, question, node, cluster, probe).err());
                    }
                    Ok(None) => {}
                }
                answers.push(NodeAnswer { node: node.name.to_string(), refusals });
            }
            answers.sort_by(|a, b| a.node.cmp(&b.node));
            answers
        })
    }
}

#[cfg(test)]
mod tests;
