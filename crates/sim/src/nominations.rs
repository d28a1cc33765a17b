//! What pods say of where they are to go (`status.nominatedNodeName`), and what their scheduler means.
//!
//! A scheduler says it of a pod for which it makes room, and before a pod's volumes are made. It takes it back where the pod does
//! not go there, and a binding leaves nothing of it. Either write may be lost or late, which the pod's next attempt mends; one
//! that comes after the binding comes to nothing.
//!
//! ```text
//!   attempt ─▶ a node is chosen, and told ─▶ volumes are made ─▶ bound
//!      ▲                                └─▶ the claim is gone ─▶ taken back ─┐
//!      └── something changes, or five minutes are over ◀── lost, late ◀──────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_scheduler::{Place, Scheduler};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, deleting, key_of, terminal, text, uid};
use crate::wants::Want;
use crate::workload::{Act, IMPORTANT, What, claim_of, delete, important, mounting, user_of};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "nominations-are-meant";
/// The other one: who is nominated to a node that is gone or refuses him looks elsewhere, as soon as its scheduler knows.
pub(crate) const NODES: &str = "nominations-name-nodes";

/// The name of this part of the work.
pub(crate) const PART: &str = "unmade";
/// The class of claims whose volumes nobody makes.
const CLASS: &str = "unmade";
const NOMINATED: &str = "/status/nominatedNodeName";
/// In [`crowds`], how long it takes until all of a node's pods have gone.
const TURN: Duration = Duration::from_secs(18);
/// In [`crowds`], for how long what is said of a pod is on its way, at the least and at the most: mostly the pod is bound first.
pub(crate) const LATE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(12));
/// Within which time it is mended what a pod says: a pod that waits for an event is tried again after five minutes, whatever
/// happens.
const MENDED_WITHIN: Duration = Duration::from_secs(340);
/// Within which time a pod that was to go to a node looks elsewhere when that is gone or closed: a request that was lost before may
/// be waited for first, and the pod has a backoff of its own.
const HOMELESS_FOR: Duration = Duration::from_secs(60);

/// In some runs, or `always`: pods with claims of which nobody makes the volumes. Their claims go, and most of them wait on.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, always: bool, acts: &mut Vec<Act>) {
    if !rng.one_in(4) && !always {
        return;
    }
    let create = |at, resource, object, want| Act { at, what: What::Create { resource, object, want } };
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "sim/nobody", "volumeBindingMode": "WaitForFirstConsumer"});
    acts.push(create(Duration::from_millis(100), StorageClass::resource(), class, None));
    for n in 0..1 + rng.below(3) {
        let name = format!("{PART}{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        acts.push(create(at, PersistentVolumeClaim::resource(), claim_of(&name, CLASS), None));
        acts.push(create(at, Pod::resource(), user_of(rng, &name, &name), Some(("pod", Want::Any))));
        let gone = at + between(rng, Duration::from_secs(1), Duration::from_secs(8));
        acts.push(delete(gone, PersistentVolumeClaim::resource(), "default", &name, "claim"));
        let given_up = gone + between(rng, Duration::from_secs(1), Duration::from_secs(20));
        if rng.one_in(4) && !always {
            acts.push(delete(given_up, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// Pods that fill a node, one after the other, and each time one after it for which it has to go.
pub(crate) fn crowds(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    important(acts);
    for n in 0..u32::try_from(safety.as_secs() / TURN.as_secs()).unwrap_or(0) {
        let begun = TURN * n + between(rng, Duration::from_secs(3), Duration::from_secs(5));
        for (name, class, later_s) in [("small", None, 0), ("large", Some(IMPORTANT), 4)] {
            let name = format!("{name}{n}");
            let mut object = mounting(&name, 1, "scratch", "emptyDir", json!({}));
            // No node has room for two of them.
            object["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2200m"}});
            if let Some(class) = class {
                object["spec"]["priorityClassName"] = class.into();
            }
            let at = begun + Duration::from_secs(later_s);
            acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want: None } });
            acts.push(delete(begun + TURN - Duration::from_secs(2), Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// Pods that are bound, now or before: they have come where they were to go, and say nothing of that any more, nor ever again.
pub(crate) fn bound(changes: &[Change], breaches: &mut Vec<Breach>) {
    for change in changes.iter().filter(|change| change.resource == "pod") {
        let (Some(old), Some(new)) = (&change.before, &change.after) else { continue };
        let (from, to) = (text(old, "/spec/nodeName"), text(new, "/spec/nodeName"));
        let said = text(new, NOMINATED);
        if from.is_empty() && !to.is_empty() && !said.is_empty() {
            let what = format!("{} comes to {to}, and says that it is to go to {said}", key_of(new));
            breaches.push(Breach::new(NAME, what));
        }
        let is_late = !from.is_empty() && text(old, NOMINATED).is_empty() && !said.is_empty();
        if is_late {
            let what = format!("{} is on {from}, and is told to go to {said}", key_of(new));
            breaches.push(Breach::new(NAME, what));
        }
    }
}

/// Whether a scheduler means a pod to go to a node. Of pods that are none of its own it means nothing.
fn is_meant(scheduler: &Scheduler, id: &str, node: &str) -> bool {
    let Some(row) = scheduler.queue().get(id) else { return true };
    row.nominated.as_deref() == Some(node) || scheduler.cluster().node_of(id) == Some(node)
}

/// Nominations with which something is wrong, by UID and node: what that is, and since when.
#[derive(Debug, Default)]
struct Wrong(BTreeMap<(String, String), (String, Time)>);

impl Wrong {
    /// This is wrong now, in words. What has been for longer than it may be is told.
    fn look(
        &mut self,
        now: Time,
        found: BTreeMap<(String, String), String>,
        (invariant, longest): (&'static str, Duration),
        breaches: &mut Vec<Breach>,
    ) {
        self.0.retain(|said, _| found.contains_key(said));
        for (said, what) in found {
            let (what, since) = self.0.entry(said).or_insert((what, now));
            if now.since(*since) > longest {
                breaches.push(Breach::new(invariant, format!("{what}, for {} s", now.since(*since).as_secs())));
            }
        }
    }
}

/// What is wrong with nominations at present.
#[derive(Debug, Default)]
pub(crate) struct Nominations {
    /// Pods say so, and their scheduler does not mean it.
    unmeant: Wrong,
    /// Their scheduler means it, and the node is not there, or does not take them.
    homeless: Wrong,
}

impl Nominations {
    /// Looks at pods without a node while nothing fails, with the scheduler that leads and has heard of them all.
    pub(crate) fn look(&mut self, now: Time, scheduler: &Scheduler, observer: &Observer, breaches: &mut Vec<Breach>) {
        let waits = |pod: &&Value| text(pod, "/spec/nodeName").is_empty() && !deleting(pod) && !terminal(pod);
        let mut unmeant: BTreeMap<(String, String), String> = BTreeMap::new();
        for pod in observer.all("pod").filter(waits) {
            let (id, node) = (uid(pod), text(pod, NOMINATED));
            if !node.is_empty() && !is_meant(scheduler, id, node) {
                let what = format!("{} says that it is to go to {node}, which nobody means", key_of(pod));
                unmeant.insert((id.to_owned(), node.to_owned()), what);
            }
        }
        self.unmeant.look(now, unmeant, (NAME, MENDED_WITHIN), breaches);
        // Who is on his way there waits for what he has asked for.
        let flies = |id: &str| scheduler.queue().get(id).is_some_and(|row| matches!(row.place, Place::InFlight { .. }));
        let takes = |id: &str, node: &Value| {
            let pod = observer.all("pod").find(|pod| uid(pod) == id);
            flies(id) || pod.is_none_or(|pod| crate::closings::takes(node, &pod["spec"]))
        };
        let closed = |id: &str, node: &str| observer.get("node", node).is_none_or(|node| !takes(id, node));
        let homeless = scheduler.nominations().filter(|(id, node)| closed(id, node));
        let told = |id: &str, node: &str| format!("{id} is nominated to {node}, which is not there, or takes nobody");
        let homeless = homeless.map(|(id, node)| ((id.to_owned(), node.to_owned()), told(id, node))).collect();
        self.homeless.look(now, homeless, (NODES, HOMELESS_FOR), breaches);
    }

    /// What is still to be taken back.
    pub(crate) fn lack(&self) -> Option<String> {
        let wrong = [&self.unmeant, &self.homeless].into_iter().flat_map(|wrong| wrong.0.values()).next();
        wrong.map(|(what, _)| format!("pod {what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::world::run;

    fn pod(node: &str, nominated: &str) -> Value {
        json!({"metadata": {"namespace": "default", "name": "p"}, "spec": {"nodeName": node},
            "status": {"nominatedNodeName": nominated}})
    }

    #[test]
    fn a_pod_that_comes_to_a_node_and_is_still_to_go_somewhere_is_found() {
        for (before, after, expected) in [
            (pod("", "a"), pod("a", ""), 0),
            (pod("", "a"), pod("a", "a"), 1),
            (pod("", ""), pod("a", "b"), 1),
            (pod("", ""), pod("", "a"), 0),
            // It is there already.
            (pod("a", ""), pod("a", "b"), 1),
            // That was found when it came there.
            (pod("a", "b"), pod("a", "b"), 0),
        ] {
            let mut breaches = Vec::new();
            let words = format!("{before} {after}");
            bound(&[Change { resource: "pod", before: Some(before), after: Some(after) }], &mut breaches);
            assert_eq!(breaches.len(), expected, "{words}");
        }
    }

    #[test]
    fn what_is_told_of_pods_in_trouble_is_taken_back() {
        let safety = Duration::from_secs(40);
        let options = Options { machines: false, only: Some(vec![PART]), safety, ..Options::default() };
        for seed in 1..6 {
            let failure = run(seed, &options).failure;
            assert!(failure.is_none(), "{}", failure.map(|f| f.to_string()).unwrap_or_default());
        }
    }
}
