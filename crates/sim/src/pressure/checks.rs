//! What must hold when a kubelet evicts a pod: by what it has heard of its machine, and of whom.
//!
//! ```text
//!   asked for ─▶ the machine is looked at ─▶ heard, unless a later one was ─▶ what pods use is heard ─▶ who goes
//!           └─▶ fails ─▶ heard: nothing is known of the machine
//! ```
//!
//! A kubelet chooses whom to evict when it hears what pods use, and at no other time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Input, Time};
use carrack_kubelet::eviction::Signal;
use carrack_kubelet::runtime::{ContainerState, HostFacts, Uid};
use carrack_kubelet::{In, OpId, Reply};
use serde_json::Value;

use super::{Low, SOFT_GRACE, thresholds};
use crate::hosted::{Hosted, OwnIn};
use crate::invariants::Breach;
use crate::node::Runtime;
use crate::observer::{Observer, key_of, uid};

/// The invariants that are looked after here.
pub(crate) const PROOF: &str = "evictions-rest-on-facts";
pub(crate) const ONE: &str = "pods-are-evicted-one-by-one";
pub(crate) const CRITICAL: &str = "critical-pods-are-not-evicted";

/// The least priority of pods that a node cannot do without.
const CRITICAL_PRIORITY: i64 = 2_000_000_000;
/// For how long one that has to go is waited for at the least: thirty seconds beyond the second that it has to end.
const WAITED_FOR: Duration = Duration::from_secs(31);

/// How low a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// It has enough of everything, and more than that by what is to be won back.
    Enough,
    /// It has too little to go on for long.
    Soft,
    /// Pods go at once.
    Hard,
}

/// How low a machine may count as, at the most: it may have been lower before.
fn depth(facts: &HostFacts) -> Depth {
    let limits = thresholds();
    let is_below = |signal: Signal, is_hard: bool| {
        let Some((left, all)) = signal.read(facts) else { return false };
        let least = match is_hard {
            true => limits.hard.get(&signal),
            false => limits.soft.get(&signal).map(|(least, _)| least),
        };
        let more = limits.reclaim.get(&signal).map_or(0, |more| more.of(all));
        least.is_some_and(|least| left < least.of(all).saturating_add(more))
    };
    let any = |is_hard: bool| Signal::ALL.into_iter().any(|signal| is_below(signal, is_hard));
    match (any(true), any(false)) {
        (true, _) => Depth::Hard,
        (false, true) => Depth::Soft,
        (false, false) => Depth::Enough,
    }
}

/// What a kubelet was told of its machine last.
#[derive(Clone, Copy, Debug)]
struct Told {
    read_at: Time,
    depth: Depth,
}

/// What a kubelet has heard, and whom it has evicted.
#[derive(Debug, Default)]
pub(super) struct Heard {
    life: u32,
    /// Readings that it has asked for and not heard of.
    asked: BTreeSet<OpId>,
    /// When the machine was looked at for each.
    read: BTreeMap<OpId, Time>,
    newest: Option<OpId>,
    /// None where the last one failed that it has heard of.
    told: Option<Told>,
    /// Since when it hears that its machine does not have enough.
    low_since: Option<Time>,
    /// Since when those have to go whom it has evicted.
    going: BTreeMap<Uid, Time>,
}

impl Heard {
    /// One that has just started has heard nothing.
    pub(super) fn of(life: u32) -> Self {
        Self { life, ..Self::default() }
    }

    /// A reading is asked for.
    pub(super) fn asks(&mut self, id: OpId) {
        self.asked.insert(id);
    }

    /// The machine is looked at.
    pub(super) fn is_read(&mut self, now: Time, life: u32, id: OpId) {
        // One that has died may be answered still, and the first one was there before anybody listened.
        if self.life == life || self.life == 0 {
            self.read.insert(id, now);
        }
    }

    fn hears(&mut self, now: Time, news: &In) {
        let In::Done(id, outcome) = news else { return };
        let (was_asked, read_at) = (self.asked.remove(id), self.read.remove(id));
        if !was_asked && read_at.is_none() {
            return;
        }
        let (Ok(Reply::Host(facts)), Some(read_at)) = (outcome, read_at) else {
            self.told = None;
            return;
        };
        // It was overtaken.
        if self.newest.is_some_and(|newest| *id < newest) {
            return;
        }
        let depth = depth(facts);
        (self.newest, self.told) = (Some(*id), Some(Told { read_at, depth }));
        self.low_since = if depth == Depth::Enough { None } else { Some(self.low_since.unwrap_or(now)) };
    }

    /// Why it does not know that somebody has to go.
    fn lacks_proof(&self, now: Time) -> Option<String> {
        match self.told {
            None => Some("could not read the facts of its machine when it last asked".to_owned()),
            Some(Told { depth: Depth::Enough, .. }) => Some("was told last that its machine has enough".to_owned()),
            Some(Told { depth: Depth::Soft, .. }) => {
                let lasted = self.low_since.map_or(Duration::ZERO, |since| now.since(since));
                (lasted < SOFT_GRACE).then(|| format!("knows of too little for {lasted:?} alone"))
            }
            Some(Told { depth: Depth::Hard, .. }) => None,
        }
    }
}

/// When the last container of a pod ended, as far as that is known.
fn ended_at(pod: &str, runtime: &Runtime) -> Option<Time> {
    let ends = runtime.records_of(pod).filter_map(|record| match &record.state {
        ContainerState::Exited { finished_at, .. } => Some(*finished_at),
        _ => None,
    });
    ends.max()
}

impl Low {
    /// A kubelet observes something.
    pub(crate) fn hears(&mut self, now: Time, news: &In) {
        self.heard.hears(now, news);
    }

    /// A kubelet has just chosen pods that have to go.
    pub(crate) fn evicts(
        &mut self,
        (node, now): (u8, Time),
        chosen: &[Uid],
        runtime: &Runtime,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) {
        let Some(first) = chosen.first() else { return };
        let name = |id: &str| observer.all("pod").find(|pod| uid(pod) == id).map_or_else(|| id.to_owned(), key_of);
        if let Some(why) = self.heard.lacks_proof(now) {
            let what = format!("node{node}'s kubelet evicts {}, and {why}", name(first));
            breaches.push(Breach::new(PROOF, what));
        }
        if chosen.len() > 1 {
            let what = format!("node{node}'s kubelet evicts {} pods at once", chosen.len());
            breaches.push(Breach::new(ONE, what));
        }
        let waited_for = self.heard.going.iter().filter(|(_, since)| now.since(**since) < WAITED_FOR);
        for (other, _) in waited_for {
            if runtime.alive_of(other).is_some() {
                let what = format!("node{node}'s kubelet evicts {} while {} still runs", name(first), name(other));
                breaches.push(Breach::new(ONE, what));
            } else if let (Some(ended), Some(told)) = (ended_at(other, runtime), self.heard.told)
                && told.read_at < ended
            {
                let what = format!(
                    "node{node}'s kubelet evicts {} by facts that were read before {} had ended",
                    name(first),
                    name(other)
                );
                breaches.push(Breach::new(PROOF, what));
            }
        }
        for id in chosen {
            let priority = |pod: &Value| pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or_default();
            let is_critical = |pod: &Value| uid(pod) == &**id && priority(pod) >= CRITICAL_PRIORITY;
            if observer.all("pod").any(is_critical) {
                let what = format!("node{node}'s kubelet evicts {}, which is critical", name(id));
                breaches.push(Breach::new(CRITICAL, what));
            }
            self.heard.going.insert(id.clone(), now);
        }
    }
}

/// The pods that a kubelet evicts by now, where it is about to choose more.
pub(crate) fn before(hosted: &Hosted, input: &Input<OwnIn>) -> Option<BTreeSet<Uid>> {
    let (Hosted::Kubelet(core, _), Input::Own(OwnIn::Kubelet(news))) = (hosted, input) else { return None };
    matches!(&**news, In::Done(_, Ok(Reply::Usage(_)))).then(|| core.evicted().cloned().collect())
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;
    use carrack_kubelet::OpError;
    use serde_json::json;

    use super::*;
    use crate::attacher::Rack;
    use crate::node::Node;
    use crate::options::{NodeFaults, Options};

    const HARD: u64 = 20 << 20;
    const SOFT: u64 = 600 << 20;
    const ENOUGH: u64 = 4 << 30;

    fn at(s: u64) -> Time {
        Time::from_unix_s(1000) + Duration::from_secs(s)
    }

    /// A kubelet that hears these readings: when each is read and heard, and how much memory is left; none where it fails.
    fn heard(readings: &[(u64, u64, Option<u64>)]) -> Low {
        let mut low = Low::new(at(0), Rng::new(1), &Options::default());
        let mut all: Vec<_> = readings.iter().zip(1..).collect();
        for ((read_s, _, _), id) in &all {
            low.heard.asks(OpId(*id));
            low.heard.is_read(at(*read_s), 0, OpId(*id));
        }
        all.sort_by_key(|((_, heard_s, _), _)| *heard_s);
        for ((_, heard_s, left), id) in all {
            let facts = left.map(|memory_available_bytes| HostFacts {
                memory_bytes: 8 << 30,
                memory_available_bytes,
                ..HostFacts::default()
            });
            let outcome = facts.map(|f| Reply::Host(Box::new(f))).ok_or(OpError::TimedOut(20));
            low.hears(at(*heard_s), &In::Done(OpId(id), outcome));
        }
        low
    }

    fn broken(mut low: Low, now_s: u64, chosen: &[&str]) -> Vec<&'static str> {
        let metadata = |name: &str| json!({"namespace": "default", "name": name, "uid": name});
        let pods = [("a", 0), ("b", 0), ("pillar", CRITICAL_PRIORITY)]
            .map(|(name, priority)| ("pod", json!({"metadata": metadata(name), "spec": {"priority": priority}})));
        let chosen: Vec<Uid> = chosen.iter().map(|id| Uid::from(*id)).collect();
        let mut breaches = Vec::new();
        let node = Node::new(1, at(0), Rng::new(1), NodeFaults::none(), Rack::default());
        low.evicts((1, at(now_s)), &chosen, &node.runtime, &Observer::of(pods), &mut breaches);
        breaches.into_iter().map(|breach| breach.invariant).collect()
    }

    #[test]
    fn who_goes_goes_by_what_was_heard_last() {
        for (what, readings, now_s, chosen, expected) in [
            ("hard", vec![(1, 1, Some(HARD))], 1, vec!["a"], vec![]),
            ("nothing heard", vec![], 1, vec!["a"], vec![PROOF]),
            ("enough", vec![(1, 1, Some(ENOUGH))], 1, vec!["a"], vec![PROOF]),
            ("failed since", vec![(1, 1, Some(HARD)), (2, 2, None)], 2, vec!["a"], vec![PROOF]),
            ("soft, soon", vec![(1, 1, Some(SOFT))], 3, vec!["a"], vec![PROOF]),
            ("soft, for long", vec![(1, 1, Some(SOFT)), (6, 6, Some(SOFT))], 6, vec!["a"], vec![]),
            ("overtaken", vec![(1, 5, Some(HARD)), (2, 2, Some(ENOUGH))], 5, vec!["a"], vec![PROOF]),
            ("two", vec![(1, 1, Some(HARD))], 1, vec!["a", "b"], vec![ONE]),
            ("critical", vec![(1, 1, Some(HARD))], 1, vec!["pillar"], vec![CRITICAL]),
            ("nobody", vec![], 1, vec![], vec![]),
        ] {
            assert_eq!(broken(heard(&readings), now_s, &chosen), expected, "{what}");
        }
    }
}
