//! Volumes of pods on hollow nodes, as the control plane sees them.
//!
//! ```text
//!   a pod is bound here ─▶ reported in use ─▶ attached, and still reported ─▶ mounted ─▶ the pod ends ─▶ not reported
//!                          (volumesInUse)     (volumesAttached)
//! ```
//!
//! What a node mounts it has reported before, and what it has read to be attached is at least as new as its report: so of a
//! detach and a mount one comes first, and the other sees it. It reports, too, who may have each of them.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::{ApiRequest, ContentType, Effects, Informer, Input, Never, Rng, Selector, Time};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::{Users, VOLUME_USERS, csi_unique_name, user_of, users, users_text};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::json;

/// What is known of volumes.
pub(crate) struct Volumes {
    nodes: Informer<Node>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    /// By node and volume, the UIDs of the pods that have it mounted, with their users.
    mounted: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    /// What each node has reported last, and at which revision that was written.
    reported: BTreeMap<String, (Users, u64)>,
}

/// The claims that a pod names.
pub(crate) fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| v.persistent_volume_claim.as_ref()).map(|c| c.claim_name.as_str())
}

/// What a node says of its volumes and of who may have them.
fn in_use(node: &Node) -> Users {
    let mut said = users(node.annotation(VOLUME_USERS)).unwrap_or_default();
    let names = node.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten());
    names.map(|name| (name.clone(), said.remove(name).unwrap_or_default())).collect()
}

/// Whether the control plane holds the node for ready.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl Volumes {
    pub(crate) fn new(rng: &Rng) -> Self {
        Self {
            nodes: Informer::new(Node::resource(), Selector::all(), rng.fork("nodes")),
            claims: Informer::new(PersistentVolumeClaim::resource(), Selector::all(), rng.fork("claims")),
            volumes: Informer::new(PersistentVolume::resource(), Selector::all(), rng.fork("volumes")),
            mounted: BTreeMap::new(),
            reported: BTreeMap::new(),
        }
    }
    pub(crate) fn start(&mut self, fx: &mut Effects<Never>) {
        self.nodes.start(fx);
        self.claims.start(fx);
        self.volumes.start(fx);
    }
    /// Takes an input if it is one of these informers'.
    pub(crate) fn step(&mut self, now: Time, input: &Input<Never>, fx: &mut Effects<Never>) -> bool {
        self.nodes.step(now, input, fx).is_some()
            || self.claims.step(now, input, fx).is_some()
            || self.volumes.step(now, input, fx).is_some()
    }
    pub(crate) fn synced(&self) -> bool {
        self.nodes.synced() && self.claims.synced() && self.volumes.synced()
    }
    /// Whether the control plane holds a node for ready; none for one that it does not know.
    pub(crate) fn is_ready(&self, node: &str) -> Option<bool> {
        self.nodes.cache().get("", node).map(|n| is_ready(n))
    }
    /// The volumes that a pod's claims have, as nodes call them. None while one of them has none.
    fn of(&self, pod: &Pod) -> Option<BTreeSet<String>> {
        claims(pod)
            .map(|name| {
                let claim = self.claims.cache().get(pod.namespace(), name)?;
                let volume = claim.spec.as_ref()?.volume_name.as_deref()?;
                let volume = self.volumes.cache().get("", volume)?;
                // Only the volume itself says whose it is.
                let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
                let csi = volume.spec.as_ref()?.csi.as_ref()?;
                (reference.uid.as_deref() == Some(claim.uid()))
                    .then(|| csi_unique_name(&csi.driver, &csi.volume_handle))
            })
            .collect()
    }
    /// Whether everything that a pod has is attached, as of this node's own report; then it is mounted.
    pub(crate) fn mount(&mut self, pod: &Pod, node: &str) -> bool {
        let (Some(wanted), Some(seen)) = (self.of(pod), self.nodes.cache().get("", node)) else { return false };
        let Some((report, revision)) = self.reported.get(node) else { return wanted.is_empty() };
        let attached: BTreeSet<&String> =
            seen.status.iter().flat_map(|s| s.volumes_attached.iter().flatten()).map(|a| &a.name).collect();
        let told = in_use(seen);
        let names = |of: &Users, unique: &String| of.get(unique).is_some_and(|users| users.contains(user_of(pod)));
        let good = |unique: &String| names(report, unique) && names(&told, unique) && attached.contains(unique);
        if !wanted.is_empty() && (seen.revision() < *revision || !wanted.iter().all(good)) {
            return false;
        }
        self.note(pod, node, wanted);
        true
    }
    /// A pod runs with its volumes: one that is found so was there before this process.
    pub(crate) fn found(&mut self, pod: &Pod, node: &str) {
        if let Some(all) = self.of(pod) {
            self.note(pod, node, all);
        }
    }
    fn note(&mut self, pod: &Pod, node: &str, all: BTreeSet<String>) {
        let here = self.mounted.entry(node.to_owned()).or_default();
        for unique in all {
            here.entry(unique).or_default().insert(pod.uid().to_owned(), user_of(pod).to_owned());
        }
    }
    /// A pod has ended.
    pub(crate) fn unmount(&mut self, uid: &str) {
        for here in self.mounted.values_mut() {
            here.retain(|_, pods| {
                pods.remove(uid);
                !pods.is_empty()
            });
        }
    }
    /// A node has lost its power, or was not known before.
    pub(crate) fn forget(&mut self, node: &str) {
        self.mounted.remove(node);
        self.reported.remove(node);
    }
    /// What a node has to report, given the pods that are bound to it and have not ended; none when it has.
    pub(crate) fn report<'a>(&self, node: &str, pods: impl Iterator<Item = &'a Pod>) -> Option<Users> {
        let seen = self.nodes.cache().get("", node).filter(|_| self.synced())?;
        let here = self.mounted.get(node).into_iter().flatten();
        let mut wanted: Users = here.map(|(id, pods)| (id.clone(), pods.values().cloned().collect())).collect();
        for pod in pods {
            match self.of(pod) {
                Some(all) => {
                    all.into_iter().for_each(|id| _ = wanted.entry(id).or_default().insert(user_of(pod).to_owned()));
                }
                // What it has cannot be told now, so nothing is taken back.
                None => in_use(seen).into_iter().for_each(|(id, users)| wanted.entry(id).or_default().extend(users)),
            }
        }
        let fresh = match self.reported.get(node) {
            Some((report, revision)) => *report == wanted && (seen.revision() < *revision || in_use(seen) == wanted),
            None => wanted.is_empty() && in_use(seen).is_empty(),
        };
        (!fresh).then_some(wanted)
    }
    /// The request of a report. It rests on the node as it was seen: one that arrives late must not take a later one back.
    pub(crate) fn request(&self, node: &str, report: &Users) -> ApiRequest {
        let seen = self.nodes.cache().get("", node).map(|n| (n.uid(), n.metadata.resource_version.as_deref()));
        let (uid, revision) = seen.unwrap_or_default();
        let names: Vec<&String> = report.keys().collect();
        let metadata =
            json!({"uid": uid, "resourceVersion": revision, "annotations": {VOLUME_USERS: users_text(report)}});
        let patch = json!({"metadata": metadata, "status": {"volumesInUse": names}});
        ApiRequest::patch(&Node::resource(), "", node, "status", ContentType::MergePatch, &patch)
    }
    /// A report was written at a revision; none: nobody knows whether it was.
    pub(crate) fn reported(&mut self, node: &str, report: Users, revision: Option<u64>) {
        match revision {
            Some(revision) => _ = self.reported.insert(node.to_owned(), (report, revision)),
            None => _ = self.reported.remove(node),
        }
    }
}
