//! Answers that come late: when a scheduler has given up what it asked for a pod, and asks for the same pod anew.
//!
//! ```text
//!   told where it is to go ───────── late ──────────┐
//!   claim is written ── lost ─▶ given up ─▶ again ──▼── told, and the claim written ─▶ it waits for its volume
//! ```
//!
//! The answer of one attempt is none to the next: a pod that waited for a volume that nobody was asked for would wait until
//! its time is over.

use std::time::Duration;

use carrack_engine::{ApiRequest, Method, Rng};
use carrack_scheduler::Scheduler;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use crate::chance::between;
use crate::invariants::Breach;
use crate::wants::Want;
use crate::workload::{Act, What, claim_of, user_of};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "answers-are-told-apart";
/// The class of claims whose volumes nobody makes.
const CLASS: &str = "unanswered";
/// With the planted bug, how late it is written where a pod is to go, at the least and at the most: later than the attempt
/// is given up.
pub(crate) const TOLD: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(5));
/// The same of a claim, where that is not lost.
pub(crate) const WRITTEN: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(12));

/// Whether a scheduler has a claim's volume made at a node.
pub(crate) fn asks_for_a_volume(request: &ApiRequest) -> bool {
    request.method == Method::Patch && request.path.contains("/persistentvolumeclaims/")
}

/// Pods that wait for volumes.
pub(crate) fn acts(rng: &mut Rng, acts: &mut Vec<Act>) {
    let create = |at, resource, object, want| Act { at, what: What::Create { resource, object, want } };
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
        "provisioner": "sim/nobody", "volumeBindingMode": "WaitForFirstConsumer"});
    acts.push(create(Duration::from_millis(100), StorageClass::resource(), class, None));
    for n in 0..4 {
        let name = format!("unanswered{n}");
        let at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        acts.push(create(at, PersistentVolumeClaim::resource(), claim_of(&name, CLASS), None));
        acts.push(create(at, Pod::resource(), user_of(rng, &name, &name), Some(("pod", Want::Any))));
    }
}

/// Looks at a scheduler after each of its steps.
pub(crate) fn look(scheduler: &Scheduler, breaches: &mut Vec<Breach>) {
    for uid in scheduler.hasty() {
        let what = format!("{uid} waits for its volumes, and what was written for that is not answered");
        breaches.push(Breach::new(NAME, what));
    }
}
