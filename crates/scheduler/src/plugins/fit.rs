//! Whether what a pod asks for is left on a node, and how well it uses it: NodePorts, NodeResourcesFit and
//! NodeResourcesBalancedAllocation. What fits beside what is asked of [`carrack_types::fit`], as by the kubelet.

use carrack_types::fit::{self, HostPort};

use crate::amounts::{CPU, EPHEMERAL, MEMORY};
use crate::framework::MAX_SCORE;
use crate::profile::FitStrategy;
use crate::tables::Tables;
use crate::{NodeInfo, Plugin, PodInfo, Probe, Profile, Refusal};

/// Arguments with the numbers of their resources.
#[derive(Clone, Debug)]
pub struct Fit {
    strategy: FitStrategy,
    resources: Vec<(u32, i64)>,
    balanced: Vec<(u32, i64)>,
    /// What NodeResourcesFit checks of the pod, in the order of its words.
    checked: Vec<(u32, i64, String)>,
    fit_weight: i64,
    balanced_weight: i64,
    check_ports: bool,
    check_fit: bool,
}

impl Fit {
    /// For one pod (and those like it) under one profile.
    #[must_use]
    pub fn new(pod: &PodInfo, profile: &Profile, tables: &mut Tables) -> Self {
        let mut ids = |list: &[(String, i64)]| -> Vec<(u32, i64)> {
            list.iter().map(|(name, weight)| (tables.resources.id(name), *weight)).collect()
        };
        let resources = ids(&profile.fit_resources);
        let balanced = ids(&profile.balanced_resources);
        let mut others: Vec<(u32, i64, String)> = pod
            .requests
            .iter()
            .map(|(id, amount)| (id, amount, tables.resources.name(id).to_owned()))
            .filter(|(id, _, name)| *id <= EPHEMERAL || !is_ignored(name, profile))
            .collect();
        others.sort_by(|a, b| (a.0.min(EPHEMERAL + 1), &a.2).cmp(&(b.0.min(EPHEMERAL + 1), &b.2)));
        let asks = balanced.iter().any(|(id, _)| pod.requests.get(*id) > 0);
        Self {
            strategy: profile.fit_strategy.clone(),
            resources,
            // Pods that ask for nothing of it are balanced anywhere alike.
            balanced: if asks { balanced } else { Vec::new() },
            checked: others,
            fit_weight: profile.weight(Plugin::NodeResourcesFit),
            balanced_weight: profile.weight(Plugin::NodeResourcesBalancedAllocation),
            check_ports: profile.filters.has(Plugin::NodePorts),
            check_fit: profile.filters.has(Plugin::NodeResourcesFit),
        }
    }

    /// Asks NodePorts and NodeResourcesFit, with what others take (`beside`) on top of what is there and without what
    /// `without` takes.
    ///
    /// # Errors
    /// Why it does not fit.
    pub fn filter(
        &self,
        pod: &PodInfo,
        node: &NodeInfo,
        hypothesis: &Hypothesis<'_>,
        probe: &mut Probe,
    ) -> Result<(), Refusal> {
        const NO_PORTS: &str = "node(s) didn't have free ports for the requested pod ports";
        if self.check_ports && !pod.host_ports.is_empty() {
            probe.filter(Plugin::NodePorts, || match self.port_clashes(pod, node, hypothesis) {
                true => Err(Refusal::resolvable(Plugin::NodePorts, NO_PORTS)),
                false => Ok(()),
            })?;
        }
        if !self.check_fit {
            return Ok(());
        }
        probe.filter(Plugin::NodeResourcesFit, || self.has_enough(node, hypothesis))
    }

    fn has_enough(&self, node: &NodeInfo, hypothesis: &Hypothesis<'_>) -> Result<(), Refusal> {
        let mut refusal: Option<Refusal> = None;
        let mut refuse = |reason: String, resolvable: bool| {
            let refusal = refusal.get_or_insert(Refusal {
                plugin: Plugin::NodeResourcesFit,
                reasons: Vec::new(),
                resolvable: true,
            });
            refusal.reasons.push(reason);
            refusal.resolvable &= resolvable;
        };
        let count = node.pods.len() + hypothesis.with.len() - hypothesis.without.len().min(node.pods.len());
        if i64::try_from(count).unwrap_or(i64::MAX) >= node.most_pods {
            refuse("Too many pods".to_owned(), true);
        }
        for (id, amount, name) in &self.checked {
            let whole = node.allocatable.get(*id);
            let mut used = node.requested.get(*id);
            for other in hypothesis.with {
                used += i128::from(other.requests.get(*id));
            }
            for other in hypothesis.without {
                used -= i128::from(other.requests.get(*id));
            }
            if !fit::fits((*amount).into(), used, whole.into()) {
                refuse(format!("Insufficient {name}"), *amount <= whole);
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    fn port_clashes(&self, pod: &PodInfo, node: &NodeInfo, hypothesis: &Hypothesis<'_>) -> bool {
        let gone = |taken: &&HostPort| hypothesis.without.iter().any(|other| other.host_ports.contains(taken));
        let there = node.ports.iter().filter(|taken| !gone(taken));
        fit::taken(&pod.host_ports, there.chain(hypothesis.with.iter().flat_map(|other| &other.host_ports))).is_some()
    }

    /// The scores of both plugins that score resources, with their weights.
    #[must_use]
    pub fn score(&self, pod: &PodInfo, node: &NodeInfo, probe: &mut Probe) -> i64 {
        let mut score = 0;
        if self.fit_weight != 0 {
            score += self.fit_weight * probe.score(Plugin::NodeResourcesFit, || self.fit_score(pod, node));
        }
        if self.balanced_weight != 0 && !self.balanced.is_empty() {
            let balanced = || self.balanced_score(pod, node);
            score += self.balanced_weight * probe.score(Plugin::NodeResourcesBalancedAllocation, balanced);
        }
        score
    }

    fn fit_score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for (id, weight) in &self.resources {
            let whole = i128::from(node.allocatable.get(*id));
            if whole == 0 || (*id > EPHEMERAL && pod.requests.get(*id) == 0) {
                continue;
            }
            let used = match *id {
                CPU => node.nonzero[0] + i128::from(pod.nonzero[0]),
                MEMORY => node.nonzero[1] + i128::from(pod.nonzero[1]),
                _ => node.requested.get(*id) + i128::from(pod.requests.get(*id)),
            };
            let score = match &self.strategy {
                FitStrategy::LeastAllocated => (whole - used).max(0) * 100 / whole,
                FitStrategy::MostAllocated => used.min(whole) * 100 / whole,
                FitStrategy::RequestedToCapacityRatio(points) => {
                    let score = ratio_score(points, if used > whole { 100 } else { used * 100 / whole });
                    // A resource that scores nothing does not count.
                    if score <= 0 {
                        continue;
                    }
                    score
                }
            };
            sum += score * i128::from(*weight);
            weights += i128::from(*weight);
        }
        if weights == 0 {
            return 0;
        }
        let score = match self.strategy {
            FitStrategy::RequestedToCapacityRatio(_) => (2 * sum + weights) / (2 * weights),
            _ => sum / weights,
        };
        i64::try_from(score).unwrap_or(0).clamp(0, MAX_SCORE)
    }

    /// How much better balanced the node is with the pod than without it: 75 where that changes nothing, from 50 to 100
    /// (plugins/noderesources/balanced_allocation.go, kubernetes #135573).
    fn balanced_score(&self, pod: &PodInfo, node: &NodeInfo) -> i64 {
        let change = self.balance(pod, node, true) - self.balance(pod, node, false);
        MAX_SCORE / 2 + (MAX_SCORE / 2 + change) / 2
    }

    /// How evenly a node's resources are used, with a pod or without it: 100 where all are to the same part.
    #[expect(clippy::cast_precision_loss, reason = "fractions of a node need no 53 bits")]
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and 100")]
    fn balance(&self, pod: &PodInfo, node: &NodeInfo, with_pod: bool) -> i64 {
        let mut fractions = [0.0_f64; 16];
        let mut n = 0;
        for (id, _) in &self.balanced {
            let whole = node.allocatable.get(*id);
            let asked = pod.requests.get(*id);
            if whole == 0 || (*id > EPHEMERAL && asked == 0) {
                continue;
            }
            let used = node.requested.get(*id) + if with_pod { i128::from(asked) } else { 0 };
            if let Some(slot) = fractions.get_mut(n) {
                *slot = (used as f64 / whole as f64).min(1.0);
                n += 1;
            }
        }
        let fractions = fractions.get(..n).unwrap_or_default();
        let deviation = match fractions {
            [a, b] => (a - b).abs() / 2.0,
            [] | [_] => 0.0,
            many => {
                let mean = many.iter().sum::<f64>() / many.len() as f64;
                (many.iter().map(|f| (f - mean) * (f - mean)).sum::<f64>() / many.len() as f64).sqrt()
            }
        };
        ((1.0 - deviation) * 100.0) as i64
    }
}

/// What would be so if pods came or went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hypothesis<'a> {
    /// Pods that would be there too.
    pub with: &'a [std::sync::Arc<PodInfo>],
    /// Pods that would not be there any more.
    pub without: &'a [std::sync::Arc<PodInfo>],
}

/// Whether NodeResourcesFit leaves a resource alone.
pub(crate) fn is_ignored(name: &str, profile: &Profile) -> bool {
    profile.ignored_resources.iter().any(|n| n == name)
        || name.split_once('/').is_some_and(|(group, _)| profile.ignored_groups.iter().any(|g| g == group))
}

/// The score (0 to 100) on the line through the points (percent, score 0 to 10).
fn ratio_score(points: &[(i64, i64)], percent: i128) -> i128 {
    let point = |(x, y): (i64, i64)| (i128::from(x), i128::from(y) * 10);
    let mut before: Option<(i128, i128)> = None;
    for (x, y) in points.iter().copied().map(point) {
        if percent <= x {
            return match before {
                Some((x0, y0)) if x > x0 => y0 + (y - y0) * (percent - x0) / (x - x0),
                _ => y,
            };
        }
        before = Some((x, y));
    }
    before.map_or(0, |(_, y)| y)
}
