//! A disruption budget: somebody evicts pods whenever he likes, and no more of them are away by that than it allows.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use super::bounds::is_ready;
use crate::chance::between;
use crate::evictions::is_evicted;
use crate::invariants::Breach;
use crate::observer::{Change, deleting, key_of, text};
use crate::workload::{Act, What};

const NAME: &str = "guarded";
/// How many pods there are, and how many of them may be away.
const PODS: u64 = 3;
const AWAY: usize = 1;

/// A StatefulSet, whose pods have names that people know, its budget, and evictions, which may be refused.
pub(super) fn acts(rng: &mut Rng, safety: Duration, often: bool, acts: &mut Vec<Act>) {
    let mut at = start(rng, safety);
    let object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "default", "name": NAME},
        "spec": {"maxUnavailable": AWAY, "selector": {"matchLabels": {"app": NAME}}}});
    acts.push(Act { at, what: What::Create { resource: PodDisruptionBudget::resource(), object, want: None } });
    let work = Work { resource: StatefulSet::resource(), kind: "statefulset", name: NAME, at, safety };
    let mut template = template(NAME, 1);
    template["metadata"]["annotations"][carrack_hollow::READY_AFTER_S] = rng.below(3).to_string().into();
    let spec = json!({"replicas": PODS, "serviceName": NAME, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": NAME}}, "template": template});
    work.create(spec, acts);
    let (count, pause) = if often { (60, safety / 60) } else { (3 + rng.below(6), safety / 6) };
    for _ in 0..count {
        at += between(rng, Duration::from_millis(100), pause);
        let name = format!("{NAME}-{}", rng.below(PODS));
        acts.push(Act { at: at.min(safety), what: What::Evict { namespace: "default".into(), name } });
    }
}

/// Why a pod is away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Evicted,
    Otherwise,
}

/// What must hold of the budget.
#[derive(Default)]
pub(super) struct Guarded {
    /// Pods that are not ready any more, and whose successors are not ready yet, by their names.
    away: BTreeMap<String, Why>,
}

impl Guarded {
    /// A pod changed.
    pub(super) fn changed(&mut self, change: &Change, breaches: &mut Vec<Breach>) {
        if text(change.object(), "/metadata/labels/app") != NAME {
            return;
        }
        let serves = |pod: &Option<Value>| pod.as_ref().is_some_and(|pod| is_ready(pod) && !deleting(pod));
        let name = key_of(change.object());
        if serves(&change.after) {
            self.away.remove(&name);
        } else if serves(&change.before) {
            let evicted = change.after.as_ref().is_some_and(is_evicted);
            self.away.insert(name.clone(), if evicted { Why::Evicted } else { Why::Otherwise });
        }
        let evicted: Vec<&String> = self.away.iter().filter(|(_, why)| **why == Why::Evicted).map(|(n, _)| n).collect();
        if evicted.len() > AWAY {
            let what = format!("{evicted:?} are away by evictions, and {AWAY} may be");
            breaches.push(Breach::new("evictions-keep-their-budget", what));
        }
    }
}
