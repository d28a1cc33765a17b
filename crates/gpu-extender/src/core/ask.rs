//! Filter, prioritize, preempt: what is answered at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

use super::{GpuExtender, Planted};
use crate::annotations;
use crate::demand::{self, Demand};
use crate::ledger::{Entry, Stage};
use crate::place::{self, Places, Refusal};
use crate::wire::{Args, Filtered, Preemption, scores};

impl GpuExtender {
    /// Names the one node that the pod is to go to, and counts the pod there.
    pub(super) fn filter(&mut self, now: Time, args: &Args) -> Result<Bytes, String> {
        let pod = &args.pod;
        let uid = pod.uid();
        if uid.is_empty() {
            return Err("the pod has no UID".to_owned());
        }
        let mut filtered = Filtered::default();
        let demand = match demand::of(pod, self.names()) {
            Ok(demand) if demand.is_empty() => {
                filtered.accepted.clone_from(&args.names);
                return Ok(args.answer(&filtered));
            }
            Ok(demand) => demand,
            Err(why) => {
                filtered.hopeless = args.names.iter().map(|name| (name.clone(), why.clone())).collect();
                return Ok(args.answer(&filtered));
            }
        };
        if self.planted == Some(Planted::Predicated) && !annotations::keys(self.names(), pod).is_empty() {
            return Err(format!("pod {} had been predicated!", pod.name()));
        }
        let believes_cache = self.planted == Some(Planted::Cache);
        // Asked again: the same answer, as long as it is one.
        if let Some(entry) = self.ledger.get(uid).filter(|_| !believes_cache) {
            let node = entry.node.clone();
            let offered = args.names.contains(&node);
            match entry.stage {
                Stage::Undoing => return Err(format!("the pod's binding to {node} is being undone")),
                Stage::Binding | Stage::Held if !offered => return Err(format!("the pod is on {node} already")),
                Stage::Binding | Stage::Held => {
                    return Ok(args.answer(&chosen(&args.names, &node, filtered)));
                }
                Stage::Offered { .. } => {
                    if offered && self.still_fits(&node, uid) {
                        self.offer(now, pod, &node, None);
                        return Ok(args.answer(&chosen(&args.names, &node, filtered)));
                    }
                    self.ledger.remove(uid);
                }
            }
        }
        let mut best = None;
        for name in &args.names {
            match self.try_on(name, uid, &demand) {
                Ok((rank, places)) => {
                    let key = (rank, name);
                    if best.as_ref().is_none_or(|(best, _)| key < *best) {
                        best = Some((key, places));
                    }
                }
                Err(Refusal::Full(why)) => {
                    filtered.failed.insert(name.clone(), why);
                }
                Err(Refusal::TooSmall(why)) => {
                    filtered.hopeless.insert(name.clone(), why);
                }
            }
        }
        if let Some(((_, node), places)) = best {
            let node = node.clone();
            if !believes_cache {
                self.offer(now, pod, &node, Some((&demand, places)));
            }
            filtered = chosen(&args.names, &node, filtered);
        }
        Ok(args.answer(&filtered))
    }

    /// Scores: 10 for the node that the filter named, and then the fuller the better.
    pub(super) fn prioritize(&mut self, args: &Args) -> Result<Bytes, String> {
        let uid = args.pod.uid();
        let demand = demand::of(&args.pod, self.names()).unwrap_or_default();
        let offered = self.ledger.get(uid).map(|entry| entry.node.as_str());
        let score = |name: &String| -> i64 {
            if demand.is_empty() || offered == Some(name) {
                return if demand.is_empty() { 0 } else { 10 };
            }
            let Ok(((_, free, _), _)) = self.try_on(name, uid, &demand) else { return 0 };
            let all = self.shape(name).map_or(0, |shape| shape.gpus.len() as u64 * u64::from(crate::CORES));
            let used = all.saturating_sub(free);
            i64::try_from((used * 9).checked_div(all).unwrap_or(0)).unwrap_or(0)
        };
        let list: Vec<(String, i64)> = args.names.iter().map(|name| (name.clone(), score(name))).collect();
        Ok(scores(&list))
    }

    /// Keeps the nodes on which the pod has a place once the victims are gone, or more of those that hold GPUs there.
    ///
    /// The scheduler sees sums: half of one GPU and half of another are no whole one. So an extender may answer with other
    /// victims than it was shown (extender.go, `ProcessPreemption`). This one only adds some, since it cannot know what
    /// else the scheduler chose the others for.
    pub(super) fn preempt(&mut self, mut asked: Preemption) -> Result<Bytes, String> {
        match demand::of(&asked.pod, self.names()) {
            Ok(demand) if demand.is_empty() => {}
            Ok(demand) => asked.victims.retain(|node, (victims, violations)| {
                let Some(more) = self.more_victims(&asked.pod, node, victims, &demand) else { return false };
                // Whether a budget allows it the scheduler alone knows. Where it need not be asked is better.
                *violations = violations.saturating_add(i64::try_from(more.len()).unwrap_or(i64::MAX));
                victims.extend(more);
                true
            }),
            Err(_) => asked.victims.clear(),
        }
        Ok(Preemption::answer(&asked.victims))
    }

    /// Who has to go from a node besides these for a pod to have its place: as few as possible, the least important first.
    /// None when that is not enough.
    fn more_victims(&self, pod: &Pod, node: &str, victims: &[String], demand: &Demand) -> Option<Vec<String>> {
        let shape = self.shape(node)?;
        let fits = |more: &[&str]| {
            let gone: Vec<&str> =
                victims.iter().map(String::as_str).chain([pod.uid()]).chain(more.iter().copied()).collect();
            place::place(shape, &self.in_use(node, &gone), demand).is_ok()
        };
        if fits(&[]) {
            return Some(Vec::new());
        }
        // Who is being bound is about to come, and cannot be deleted for another yet.
        let held = self.ledger.iter().filter(|(_, entry)| entry.node == node && entry.stage == Stage::Held);
        let mut less: Vec<(i32, &str)> = held
            .filter(|(uid, _)| !victims.iter().any(|victim| victim == uid))
            .filter_map(|(uid, entry)| Some((priority(self.pod(&entry.namespace, &entry.name, uid)?), uid)))
            .filter(|(of, _)| *of < priority(pod))
            .collect();
        less.sort_unstable();
        let mut more: Vec<&str> = less.iter().map(|(_, uid)| *uid).collect();
        if !fits(&more) {
            return None;
        }
        for (_, spared) in less.iter().rev() {
            let without: Vec<&str> = more.iter().copied().filter(|uid| uid != spared).collect();
            if fits(&without) {
                more = without;
            }
        }
        Some(more.into_iter().map(str::to_owned).collect())
    }

    /// A pod's place on a node beside all others, and how good it is.
    fn try_on(&self, node: &str, uid: &str, demand: &Demand) -> Result<(Rank, Places), Refusal> {
        let shape =
            self.shape(node).ok_or_else(|| Refusal::Full("the GPU extender does not know the node yet".into()))?;
        let others = self.in_use(node, &[uid]);
        let places = place::place(shape, &others, demand)?;
        Ok((place::rank(shape, &others, &places), places))
    }

    /// Whether the place that was offered is one still: the node may have changed.
    fn still_fits(&self, node: &str, uid: &str) -> bool {
        let (Some(shape), Some(entry)) = (self.shape(node), self.ledger.get(uid)) else { return false };
        let others = self.in_use(node, &[uid]);
        entry.holds.iter().all(|(gpu, used)| {
            let with = used.and(others.get(gpu).copied().unwrap_or_default());
            let fits = |g: &crate::Gpu| !g.broken && with.cores <= crate::CORES && with.memory <= g.memory;
            shape.gpus.get(*gpu).is_some_and(fits)
        })
    }

    /// Counts a pod on a node until it is bound, or for a while.
    fn offer(&mut self, now: Time, pod: &Pod, node: &str, found: Option<(&Demand, Places)>) {
        let until = now + self.config.offer;
        let stage = Stage::Offered { until, revision: pod.revision() };
        match found {
            None => self.ledger.advance(pod.uid(), stage),
            Some((demand, places)) => self.count(pod, node, demand, places, stage),
        }
    }

    /// Makes a pod's entry.
    pub(super) fn count(&mut self, pod: &Pod, node: &str, demand: &Demand, places: Places, stage: Stage) {
        let holds = place::holds(demand, &places, self.gpus(node));
        let (namespace, name) = (pod.namespace().to_owned(), pod.name().to_owned());
        let claims = holds.clone();
        self.ledger.set(pod.uid(), Entry { namespace, name, node: node.to_owned(), places, holds, claims, stage });
    }

    /// A place for a pod on the node that somebody chose: the one that was offered, as long as it is one, or one found now. A
    /// choice that may be written already stays.
    pub(super) fn reserve(&mut self, pod: &Pod, node: &str, demand: &Demand) -> Result<(), String> {
        let uid = pod.uid();
        let stands = |entry: &&Entry| {
            entry.node == node
                && self.planted != Some(Planted::Cache)
                && (!matches!(entry.stage, Stage::Offered { .. }) || self.still_fits(node, uid))
        };
        if let Some(entry) = self.ledger.get(uid).filter(stands) {
            let places = entry.places.clone();
            self.count(pod, node, demand, places, Stage::Binding);
            return Ok(());
        }
        let (_, places) = self.try_on(node, uid, demand).map_err(|refusal| refusal.reason().to_owned())?;
        self.count(pod, node, demand, places, Stage::Binding);
        Ok(())
    }
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

type Rank = (std::cmp::Reverse<usize>, u64, u64);

/// One node is accepted. Those that would do as well are not to be freed by anybody for this pod.
fn chosen(names: &[String], node: &str, mut filtered: Filtered) -> Filtered {
    let others = names.iter().filter(|name| *name != node && !filtered.failed.contains_key(*name));
    let more: BTreeMap<String, String> =
        others.map(|name| (name.clone(), format!("GPUs on {node} are chosen"))).collect();
    for (name, why) in more {
        filtered.hopeless.entry(name).or_insert(why);
    }
    filtered.accepted = vec![node.to_owned()];
    filtered
}
