//! Claims that ask for more: while their pods run, while they go, and between two of them.
//!
//! ```text
//!   claim asks for more ─▶ provisioner: the volume has it ─▶ kubelet: the file system on its node ─▶ the claim's status
//!                                                               │ takes its time; fails while mounted, or beside
//!                                                               │ another call; its answer is lost with the kubelet
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::Op;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Kind as _;
use carrack_types::volume::csi_unique_name;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use crate::chance::{below, between};
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Change, Observer, beside, conditions, deleting, key_of, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, claim_of, delete, local_driver, user_of};

/// The invariants that are looked after here.
pub(crate) const ONE_CALL: &str = "one-call-a-volume";
pub(crate) const TRUE_SIZES: &str = "claims-tell-what-is-there";
pub(crate) const HEARD: &str = "claims-get-what-they-ask-for";

/// A claim has what it asks for within this, once nothing fails any more: a kubelet tries every two minutes at the least, and
/// what it wrote may have been refused before.
const WITHIN: Duration = Duration::from_secs(300);
/// How long a file system takes to grow, where that takes long.
pub(crate) const GROWS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn is_there(planted: Option<Bug>) -> bool {
    planted.is_none_or(Bug::is_of_growth)
}

/// Claims that ask for more now and then, each with a pod that comes and goes.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let create = |at, resource, object, want| Act { at, what: What::Create { resource, object, want } };
    local_driver(acts);
    for n in 0..1 + rng.below(2) {
        let name = format!("growing{n}");
        let mut at = between(rng, Duration::from_secs(1), Duration::from_secs(5));
        let claim = claim_of(&name, if rng.one_in(2) { "late" } else { "soon" });
        acts.push(create(at, PersistentVolumeClaim::resource(), claim, None));
        let mut size = 1;
        for pod in 0.. {
            let pod = format!("{name}-{pod}");
            let want = Some(("pod", Want::Pod { restarts: true, important: false }));
            acts.push(create(at, Pod::resource(), user_of(rng, &pod, &name), want));
            let gone = at + between(rng, Duration::from_secs(4), Duration::from_secs(20));
            if !rng.one_in(3) {
                size += 1;
                // Mostly shortly before the pod goes.
                let before = if rng.one_in(3) { gone - at } else { Duration::from_secs(4) };
                let at = (gone - below(rng, before)).min(safety);
                let patch = json!({"spec": {"resources": {"requests": {"storage": format!("{size}Gi")}}}});
                let (resource, name) = (PersistentVolumeClaim::resource(), name.clone());
                acts.push(Act { at, what: What::Try { resource, name, sub: "", patch } });
            }
            if gone >= safety {
                break;
            }
            acts.push(delete(gone, Pod::resource(), "default", &pod, "pod"));
            at = gone + below(rng, Duration::from_secs(4));
        }
    }
}

/// The volume of the node that a driver is asked about.
pub(crate) fn asked_about(op: &Op) -> Option<&str> {
    let published = match op {
        Op::StageVolume(staging, _) | Op::UnstageVolume(staging) => return Some(&staging.id),
        Op::SetUpVolume(setup) => setup.publishing().map(|p| &p.published),
        Op::TearDownVolume { published, .. } => published.as_deref(),
        Op::ExpandVolume(expanding) => Some(&expanding.published),
        _ => None,
    };
    published?.id.as_deref()
}

/// The storage that is named at a place of an object, in bytes.
pub(crate) fn bytes(object: &Value, place: &str) -> u64 {
    let amount = text(object, place).parse::<Quantity>().ok();
    amount.and_then(|amount| u64::try_from(amount.units()).ok()).unwrap_or(0)
}

/// The handle of a claim's volume, if it is on a node's disk.
fn handle<'a>(claim: &Value, observer: &'a Observer) -> Option<&'a str> {
    let volume = observer.get("volume", text(claim, "/spec/volumeName"))?;
    let own = text(volume, "/spec/csi/driver") == carrack_storage::DRIVER;
    own.then(|| text(volume, "/spec/csi/volumeHandle"))
}

/// Claims have just been told how large they are.
pub(crate) fn told(changes: &[Change], observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let size = |claim: &Value| bytes(claim, "/status/capacity/storage");
    for change in changes.iter().filter(|change| change.resource == "claim") {
        let Some(claim) = change.after.as_ref().filter(|c| size(c) > change.before.as_ref().map_or(0, size)) else {
            continue;
        };
        let has = handle(claim, observer).and_then(|handle| nodes.values().find_map(|n| n.storage.holds(handle)));
        if let Some(has) = has.filter(|has| *has < size(claim)) {
            let what = format!("{} is told of {} bytes, and its file system has {has}", key_of(claim), size(claim));
            breaches.push(Breach::new(TRUE_SIZES, what));
        }
    }
}

/// Claims of a running pod that have not what they ask for, though the node on which the pod has them mounted could give it.
fn behind<'a>(pod: &'a Value, observer: &'a Observer, nodes: &BTreeMap<u8, Node>) -> Vec<&'a Value> {
    let node = named(nodes, text(pod, "/spec/nodeName")).filter(|n| n.up);
    let Some(node) = node.filter(|_| !deleting(pod) && text(pod, "/status/phase") == "Running") else {
        return Vec::new();
    };
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let claims = volumes.filter_map(|volume| {
        let name = text(volume, "/persistentVolumeClaim/claimName");
        observer.get("claim", &beside(pod, name))
    });
    let is_behind = |claim: &&Value| {
        let Some(handle) = handle(claim, observer) else { return false };
        let wanted = bytes(claim, "/spec/resources/requests/storage");
        let resizes = conditions(claim).any(|c| matches!(text(c, "/type"), "Resizing" | "FileSystemResizePending"));
        (resizes || bytes(claim, "/status/capacity/storage") < wanted)
            && node.disk.part_of(uid(pod), &csi_unique_name(carrack_storage::DRIVER, handle))
            && node.storage.may_hold(handle, wanted)
    };
    claims.filter(is_behind).collect()
}

/// Claims that wait for what they ask for, since when.
#[derive(Debug, Default)]
pub(crate) struct Growth(BTreeMap<String, Time>);

impl Growth {
    /// Looks at all of them, now that nothing fails any more.
    pub(crate) fn look(
        &mut self,
        now: Time,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let behind = observer.all("pod").flat_map(|pod| behind(pod, observer, nodes));
        let since = behind.map(key_of).map(|claim| (self.0.get(&claim).copied().unwrap_or(now), claim));
        self.0 = since.map(|(since, claim)| (claim, since)).collect();
        if let Some((claim, since)) = self.0.iter().find(|(_, since)| now.since(**since) > WITHIN) {
            let what = format!("a pod has {claim} mounted, which waits to grow for {} s", now.since(*since).as_secs());
            breaches.push(Breach::new(HEARD, what));
        }
    }

    /// What is not as it is to be in the end.
    pub(crate) fn lack(&self) -> Option<String> {
        self.0.keys().next().map(|claim| format!("claim {claim} waits to grow"))
    }
}
