//! Taints that come and go, and pods that tolerate them for a time: each time that a taint is there is a time of its own, whoever
//! leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::placement::tolerates;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde_json::{Value, json};

use super::acts::{Work, template};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, conditions, key_of, text, uid};
use crate::workload::{Act, taint};

/// The invariant.
pub(crate) const NAME: &str = "tolerations-last";
/// The taint that comes and goes, and for how long pods tolerate it: for longer than it is ever there.
const KEY: &str = "sim.carrack.io/spell";
const TOLERATED_S: u64 = 40;
/// How long it is there, and how long it is away, at the least and at the most.
const ON: (Duration, Duration) = (Duration::from_secs(18), Duration::from_secs(28));
const OFF: (Duration, Duration) = (Duration::from_secs(22), Duration::from_secs(28));
/// A leader may be deaf for so long, and does not know of a taint that went and came meanwhile.
const UNHEARD: Duration = Duration::from_secs(20);
/// Taints that stand for one thing, of which each takes the other's place.
const OUT: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// How the pods take it.
fn toleration() -> Value {
    json!({"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_S})
}

/// Pods on all nodes that tolerate a taint for a time, which comes and goes on each node.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let (name, at) = ("tolerant", Duration::from_secs(1));
    let work = Work { resource: Deployment::resource(), kind: "deployment", name, at, safety };
    let mut template = template(name, 1);
    template["spec"]["tolerations"] = json!([toleration()]);
    let spec = json!({"replicas": 2 * super::NODES, "selector": {"matchLabels": {"app": name}}, "template": template});
    work.create(spec, acts);
    for number in 0..super::NODES {
        let node = || super::nodes().name(number);
        let mut at = between(rng, Duration::from_secs(10), ON.1 + OFF.1);
        while at + ON.1 < safety {
            acts.push(taint(at, node(), &json!([{"key": KEY, "effect": "NoExecute"}])));
            at += between(rng, ON.0, ON.1);
            acts.push(taint(at, node(), &Value::Null));
            at += between(rng, OFF.0, OFF.1);
        }
    }
}

/// A time for which a taint was on a node.
#[derive(Debug)]
struct Spell {
    from: Time,
    to: Option<Time>,
}

/// A taint on a node: what it looked like, and when it was there.
#[derive(Debug, Default)]
struct Seen {
    forms: Vec<Taint>,
    spells: Vec<Spell>,
}

/// What was seen of taints, and of pods beside them.
#[derive(Debug, Default)]
pub(super) struct Tolerated {
    /// By node, and by what the taint is called here.
    seen: BTreeMap<String, BTreeMap<String, Seen>>,
    /// Since when pods have had their nodes, by UID.
    bound: BTreeMap<String, Time>,
}

impl Tolerated {
    /// A change that was just committed.
    pub(super) fn changed(&mut self, now: Time, change: &Change, breaches: &mut Vec<Breach>) {
        match (change.resource, &change.after) {
            ("node", node) => self.node(now, &key_of(change.object()), node.as_ref()),
            ("pod", None) => _ = self.bound.remove(uid(change.object())),
            ("pod", Some(pod)) => {
                if !text(pod, "/spec/nodeName").is_empty() {
                    self.bound.entry(uid(pod).to_owned()).or_insert(now);
                }
                if is_evicted(pod) && !change.before.as_ref().is_some_and(is_evicted) {
                    self.evicted(now, pod, breaches);
                }
            }
            _ => {}
        }
    }

    fn node(&mut self, now: Time, name: &str, node: Option<&Value>) {
        let taints = node.and_then(|node| node.pointer("/spec/taints")).and_then(Value::as_array);
        let taints = taints.into_iter().flatten().filter(|taint| taint["effect"] == "NoExecute");
        let taints = taints.filter_map(|taint| serde_json::from_value::<Taint>(taint.clone()).ok());
        let taints: Vec<Taint> = taints.map(|taint| Taint { time_added: None, ..taint }).collect();
        if taints.is_empty() && !self.seen.contains_key(name) {
            return;
        }
        let seen = self.seen.entry(name.to_owned()).or_default();
        let there: BTreeSet<String> = taints.iter().map(called).collect();
        for taint in taints {
            let of = seen.entry(called(&taint)).or_default();
            if !of.forms.contains(&taint) {
                of.forms.push(taint);
            }
            match of.spells.last_mut() {
                Some(last) if last.to.is_none_or(|to| now.since(to) < UNHEARD) => last.to = None,
                _ => of.spells.push(Spell { from: now, to: None }),
            }
        }
        for (_, of) in seen.iter_mut().filter(|(name, _)| !there.contains(*name)) {
            if let Some(last) = of.spells.last_mut().filter(|last| last.to.is_none()) {
                last.to = Some(now);
            }
        }
    }

    /// A pod is evicted: for one of the taints that its node has, or had just now.
    fn evicted(&self, now: Time, pod: &Value, breaches: &mut Vec<Breach>) {
        let tolerations: Vec<Toleration> =
            serde_json::from_value(pod["spec"]["tolerations"].clone()).unwrap_or_default();
        let bound = self.bound.get(uid(pod)).copied().unwrap_or(now);
        let node = text(pod, "/spec/nodeName");
        let is_due = |of: &Seen| {
            let Some(time) = tolerated(&of.forms, &tolerations) else { return false };
            of.spells.iter().any(|spell| spell.to.unwrap_or(now).since(spell.from.max(bound)) >= time)
        };
        if !self.seen.get(node).is_some_and(|seen| seen.values().any(is_due)) {
            let what = format!("{} is evicted from {node}, and tolerates what was there", key_of(pod));
            breaches.push(Breach::new(NAME, what));
        }
    }
}

/// For how long one of the forms of a taint is tolerated at the least; none is for ever.
fn tolerated(forms: &[Taint], tolerations: &[Toleration]) -> Option<Duration> {
    let time = |taint: &Taint| match tolerations.iter().find(|toleration| tolerates(toleration, taint)) {
        None => Some(Duration::ZERO),
        Some(fitting) => {
            fitting.toleration_seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
        }
    };
    forms.iter().filter_map(time).min()
}

fn called(taint: &Taint) -> String {
    if OUT.contains(&taint.key.as_str()) {
        return "out".to_owned();
    }
    format!("{}={}", taint.key, taint.value.as_deref().unwrap_or_default())
}

fn is_evicted(pod: &Value) -> bool {
    conditions(pod).any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "DeletionByTaintManager")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `turns`: when the taint comes and goes, by turns; `holds`: whether the pod, which is there from the first second on, may be
    /// evicted then.
    fn check(key: &str, turns: &[i64], evicted_s: i64, holds: bool) {
        let (mut tolerated, mut breaches) = (Tolerated::default(), Vec::new());
        let pod = |conditions: Value| {
            json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p"},
                "spec": {"nodeName": "n", "tolerations": [toleration()]},
                "status": {"conditions": conditions}})
        };
        let change = |resource, after| Change { resource, before: None, after: Some(after) };
        tolerated.changed(Time::from_unix_s(1), &change("pod", pod(json!([]))), &mut breaches);
        for (turn, at_s) in turns.iter().enumerate() {
            let there = json!([{"key": key, "effect": "NoExecute"}]);
            let taints = if turn % 2 == 0 { there } else { Value::Null };
            let node = json!({"metadata": {"name": "n"}, "spec": {"taints": taints}});
            tolerated.changed(Time::from_unix_s(*at_s), &change("node", node), &mut breaches);
        }
        let told = json!([{"type": "DisruptionTarget", "reason": "DeletionByTaintManager"}]);
        tolerated.changed(Time::from_unix_s(evicted_s), &change("pod", pod(told)), &mut breaches);
        assert_eq!(breaches.is_empty(), holds, "{key} {turns:?}, evicted at {evicted_s} s: {breaches:?}");
    }

    #[test]
    fn each_spell_is_tolerated_in_full() {
        check(KEY, &[], 100, false);
        check(KEY, &[10], 49, false);
        check(KEY, &[10], 50, true);
        // The pod was not there yet.
        check(KEY, &[0], 40, false);
        check(KEY, &[0], 41, true);
        check(KEY, &[10, 30, 55], 60, false);
        check(KEY, &[10, 30, 55], 95, true);
        // Whoever evicts may not have heard that it was away.
        check(KEY, &[10, 30, 45], 50, true);
        // It was there for long enough, and the eviction comes late.
        check(KEY, &[10, 55], 60, true);
        check("other", &[10], 11, true);
    }
}
