//! What is attached where: VolumeAttachments, on which attachers act, and what nodes are told of it.
//!
//! ```text
//!   a pod on the node has the volume ─▶ VolumeAttachment ─▶ attached (by its attacher) ─▶ node.status.volumesAttached
//!                                                                                             │
//!   VolumeAttachment deleted ◀── taken from volumesAttached, on the node as it was read ◀── no pod has it, and the
//!                                                                                           node does not use it
//! ```
//!
//! A disk is taken from a node only if the node does not report it in use; the node reports before it mounts, after it
//! has read that the disk is attached. So the one write that begins a detach takes it from `volumesAttached` and rests
//! on the node being exactly as it was read: of the two, one comes first, and the other sees it.
//!
//! A disk that a node reports in use is taken from it only on proof that nobody there writes to it any more: an operator's
//! out-of-service taint on a node that is not ready; a node that is surely gone for six minutes, in which a kubelet that
//! lives would have come back; or the death of everybody whom the node, which is not heard, names as one that may have the
//! disk. Who knows of a death for certain writes it on the attachment (`carrack.io/dead-users`: the node controller of virtual
//! machines, by the Lease under which they ran). Time alone never is a proof.
//!
//! A disk that one node may have at a time is given to a node in two steps, each of which rests on the other's object (see
//! [`attach`]), so that no two attachments of it are ever there.
//!
//! One key is one volume, so that all decisions about a disk are made one after another. Names, and otherwise behaviour,
//! are kube-controller-manager's (pkg/controller/volume/attachdetach, pkg/volume/csi).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::{Attachable, FLEX_ATTACHES, UNIQUE_NAME};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::binder::{BY_REFERENCE, by_reference};
use super::is_bound_to;
use super::told::{
    Detaching, LOOK_AGAIN, attached_names, by_node, follow, may_attach_to, node_of_attachment, not_attached,
    reports_in_use, tell, unique_of,
};
use crate::pods::{self, BY_CLAIM, BY_NODE};

/// Annotation of a volume that one node may have at a time: the node that it was given to last.
const LAST_NODE: &str = "carrack.io/attached-to";

/// Index of nodes by what they are told is attached to them.
const BY_ATTACHED: &str = "attached";

/// Index of attachments by their volume.
pub(super) const BY_VOLUME: &str = "volume";

pub(super) fn by_volume(attachment: &VolumeAttachment) -> Vec<String> {
    attachment.spec.source.persistent_volume_name.iter().cloned().collect()
}

/// The attach and detach controller.
#[derive(Default)]
pub struct AttachDetach(Detaching);

impl AttachDetach {
    /// Plants the bug that a detach does not ask whether the disk is in use. For tests, which must find it.
    #[must_use]
    pub fn with_planted_carelessness() -> Self {
        Self(Detaching::careless())
    }
    /// Plants the bug that a node which came back and goes again is taken for one that was gone all the time. For tests, which
    /// must find it.
    #[must_use]
    pub fn with_planted_memory() -> Self {
        Self(Detaching::remembering())
    }
}

/// Whether it has to be attached before a node can use it. What a FlexVolume driver can is known once it was asked.
fn needs_attaching(disk: &Attachable<'_>, volume: &PersistentVolume, view: &View<'_>) -> bool {
    match disk.handle {
        None => volume.annotation(FLEX_ATTACHES) == Some("true"),
        Some(_) => {
            view.get::<CSIDriver>("", disk.attacher).is_none_or(|driver| driver.spec.attach_required != Some(false))
        }
    }
}

/// Whether an attachment has never been one, and nobody makes it one any more: it was asked for before its driver said that it
/// needs none. Its node uses the volume all the same, and would hold it for as long as it does.
fn is_void(attachment: &VolumeAttachment, disk: &Attachable<'_>, node: Option<&Arc<Node>>) -> bool {
    let is_told = node.is_some_and(|node| attached_names(node).contains(&disk.unique));
    let is_attached = attachment.status.as_ref().is_some_and(|s| s.attached);
    disk.handle.is_some() && !is_told && !is_attached && !attachment.is_deleting()
}

/// The name under which nodes report a volume, if it can be attached.
pub(super) fn unique_name(volume: &PersistentVolume) -> Option<String> {
    Attachable::of(volume).map(|disk| disk.unique)
}

/// Whether several nodes may have it at once.
fn is_shared(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    modes.iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany")
}

/// The pods on nodes that have the volume, by node. Deleted ones have it until they have ended.
fn wanted<'a>(volume: &PersistentVolume, view: &'a View<'_>) -> BTreeMap<String, &'a Arc<Pod>> {
    let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return BTreeMap::new() };
    let (namespace, name) = (reference.namespace.as_deref(), reference.name.as_deref());
    let named = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
    by_node(view.cache::<Pod>().by_index(BY_CLAIM, &named))
}

impl AttachDetach {
    /// Ends what is attached of a volume that was removed by force. Nobody can begin to use it without its volume, and a
    /// node that does tells so.
    fn bereft(&mut self, there: &[&Arc<VolumeAttachment>], volume: &Key, view: &View<'_>, now: Time) -> Plan {
        let mut plan = Plan::none();
        for attachment in there {
            let node = view.get::<Node>("", &attachment.spec.node_name);
            let Some(unique) = unique_of(attachment, node.map(Arc::as_ref)) else { continue };
            let more = self.0.detach(attachment, &unique, view, now);
            if !more.writes.is_empty() {
                plan = plan.confirm_absent(&PersistentVolume::resource(), volume.clone(), "");
            }
            plan = plan.then(more.each_apart());
        }
        plan
    }
}

/// Takes the volume from what nodes are told of that have no attachment of it: somebody else ended that, and the node would take
/// it for attached when a pod comes. What is given to nodes behind these writes rests on them: one that is refused ends the plan.
fn forgotten(disk: &Attachable<'_>, there: &[&Arc<VolumeAttachment>], view: &View<'_>) -> Plan {
    let told = view.cache::<Node>().by_index(BY_ATTACHED, &disk.unique);
    let bare = told.filter(|node| there.iter().all(|attachment| attachment.spec.node_name != node.name()));
    bare.filter(|node| !reports_in_use(node, &disk.unique)).fold(Plan::none(), |plan, node| {
        let none = Key::new("", disk.attachment(node.name()));
        let gone = Premise::absent(&VolumeAttachment::resource(), none.clone());
        let plan = plan.confirm_absent(&VolumeAttachment::resource(), none, "");
        plan.then(tell(node, &disk.unique, None).resting_on(&gone))
    })
}

/// Why a volume is not attached that another node has (kubernetes pkg/controller/volume/attachdetach/reconciler
/// `reportMultiAttachError`).
fn in_use_elsewhere(volume: &PersistentVolume, wanted: &BTreeMap<String, &Arc<Pod>>, busy: &BTreeSet<&str>) -> String {
    let users: Vec<&str> =
        wanted.iter().filter(|(node, _)| busy.contains(node.as_str())).map(|(_, pod)| pod.name()).collect();
    let why = match users.is_empty() {
        true => "exclusively attached to one node and can't be attached to another".to_owned(),
        false => format!("used by pod(s) {}", users.join(", ")),
    };
    format!("Multi-Attach error for volume {:?} Volume is already {why}", volume.name())
}

/// Attaches the volume for this pod, if its claim is surely the volume's.
fn attach(disk: &Attachable<'_>, volume: &PersistentVolume, node: &Node, pod: &Pod, view: &View<'_>) -> Plan {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    let text = |part: Option<&String>| part.cloned().unwrap_or_default();
    let (namespace, name) = reference.map(|r| (text(r.namespace.as_ref()), text(r.name.as_ref()))).unwrap_or_default();
    let claim = view.get::<PersistentVolumeClaim>(&namespace, &name);
    let bound = claim.is_some_and(|c| {
        is_bound_to(volume, c) && c.spec.as_ref().and_then(|s| s.volume_name.as_deref()) == Some(volume.name())
    });
    // A volume that somebody asked to delete stays as long as its claim does, and is used as before.
    if !bound || !may_attach_to(node, pod) {
        return Plan::none();
    }
    let attachment = VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(disk.attachment(node.name())),
            annotations: Some(BTreeMap::from([(UNIQUE_NAME.to_owned(), disk.unique.clone())])),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: disk.attacher.to_owned(),
            node_name: node.name().to_owned(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(volume.name().to_owned()),
                inline_volume_spec: None,
            },
        },
        status: None,
    };
    // A controller that was away for long may see a pod that has moved on.
    let plan = Plan::none().confirm_alive(pod);
    if is_shared(volume) {
        return plan.create(&attachment);
    }
    // Whoever gives a disk to another node says so on the volume first, while the node that had it last has it no more;
    // and attaches only while the volume says so. Both are conditions of the writes themselves, so that of two controllers
    // that both believe they act, however long one was paused, one writes and the other finds the volume changed.
    if volume.annotation(LAST_NODE) == Some(node.name()) {
        return plan.confirm_unchanged(volume).create(&attachment).resting_on(&Premise::unchanged(volume));
    }
    let given = Plan::none().patch(volume, json!({"metadata": {"annotations": {LAST_NODE: node.name()}}}));
    let Some(last) = volume.annotation(LAST_NODE) else { return plan.then(given) };
    let before = Key::new("", disk.attachment(last));
    let gone = Premise::absent(&VolumeAttachment::resource(), before.clone());
    plan.confirm_absent(&VolumeAttachment::resource(), before, "").then(given.resting_on(&gone))
}

impl Controller for AttachDetach {
    fn name(&self) -> &'static str {
        "persistentvolume-attach-detach-controller"
    }
    fn event_source(&self) -> &'static str {
        "attachdetach-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.index::<Pod>(BY_CLAIM, pods::by_claim);
        setup.index::<Pod>(BY_NODE, pods::by_node);
        setup.watch_own::<PersistentVolume>();
        setup.watch::<VolumeAttachment>(|a, _| {
            a.spec.source.persistent_volume_name.iter().map(|name| Key::new("", name.clone())).collect()
        });
        setup.index::<VolumeAttachment>(BY_VOLUME, by_volume);
        setup.index::<VolumeAttachment>(BY_NODE, node_of_attachment);
        setup.index::<PersistentVolume>(BY_REFERENCE, by_reference);
        setup.watch::<Pod>(|pod, view| volumes_of(pod, view).collect());
        setup.watch::<PersistentVolumeClaim>(|claim, _| of_claim(claim).into_iter().collect());
        setup.watch::<Node>(|node, view| {
            let has = view.cache::<VolumeAttachment>().by_index(BY_NODE, node.name());
            let mut keys: BTreeSet<Key> =
                has.filter_map(|a| a.spec.source.persistent_volume_name.clone()).map(|n| Key::new("", n)).collect();
            let pods = view.cache::<Pod>().by_index(BY_NODE, node.name());
            keys.extend(pods.flat_map(|pod| volumes_of(pod, view)));
            keys.into_iter().collect()
        });
        setup.index::<Node>(BY_ATTACHED, attached_names);
        setup.watch::<CSIDriver>(|driver, view| {
            let uses = |volume: &&Arc<PersistentVolume>| {
                volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == driver.name())
            };
            view.cache::<PersistentVolume>().iter().filter(uses).map(|volume| Key::of(volume.as_ref())).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let there: Vec<&Arc<VolumeAttachment>> =
            view.cache::<VolumeAttachment>().by_index(BY_VOLUME, &key.name).collect();
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else {
            return self.bereft(&there, key, view, now);
        };
        let Some(disk) = Attachable::of(volume) else { return Plan::none() };
        let unique = disk.unique.as_str();
        let needed = needs_attaching(&disk, volume, view);
        let wanted = if needed { wanted(volume, view) } else { BTreeMap::new() };
        let mut plan = forgotten(&disk, &there, view);
        for attachment in &there {
            let node = &attachment.spec.node_name;
            let more = match (wanted.get(node), view.get::<Node>("", node)) {
                (Some(pod), Some(found)) => {
                    self.0.is_there(node);
                    follow(attachment, volume.name(), unique, found, pod, now)
                }
                (Some(_), None) => Plan::none().requeue_after(LOOK_AGAIN),
                (None, found) if !needed && is_void(attachment, &disk, found) => {
                    // Nobody may have attached it meanwhile.
                    Plan::none().delete_unchanged(attachment.as_ref())
                }
                (None, _) => self.0.detach(attachment, unique, view, now),
            };
            // What is refused of one node (by a webhook, say) keeps nothing from the others.
            plan = plan.then(more.each_apart());
        }
        let mut busy: BTreeSet<&str> = there.iter().map(|a| a.spec.node_name.as_str()).collect();
        for (name, pod) in &wanted {
            let Some(node) = view.get::<Node>("", name).filter(|_| !busy.contains(name.as_str())) else { continue };
            self.0.is_there(name);
            if !busy.is_empty() && !is_shared(volume) {
                let why = in_use_elsewhere(volume, &wanted, &busy);
                plan = plan.event(EventRecord::warning(pod.as_ref(), "FailedAttachVolume", why));
                continue;
            }
            let more = attach(&disk, volume, node, pod, view);
            if !more.writes.is_empty() {
                busy.insert(name);
            }
            plan = plan.then(more.each_apart());
        }
        plan
    }
    /// The pod waits for its volume: it says why nobody is asked to attach it (a webhook refuses that, say).
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let Some(volume) = view.get::<PersistentVolume>("", &key.name) else { return Plan::none() };
        let Some(disk) = Attachable::of(volume).filter(|_| matches!(refusal.write, Write::Create { .. })) else {
            return Plan::none();
        };
        let name = refusal.write.key().name;
        let waiting = wanted(volume, view).into_iter().filter(|(node, _)| disk.attachment(node) == name);
        waiting
            .fold(Plan::none(), |plan, (_, pod)| plan.event(not_attached(pod, volume.name(), &refusal.error.message)))
    }
    fn begin(&mut self) {
        self.0.begin();
    }
}

/// The volumes that name a claim of a pod's. The claim itself may be gone, or be seen to go, before its pod is.
fn volumes_of(pod: &Pod, view: &View<'_>) -> impl Iterator<Item = Key> {
    let volumes = view.cache::<PersistentVolume>();
    let named = move |name: String| -> Vec<Key> {
        volumes.by_index(BY_REFERENCE, &format!("{}/{name}", pod.namespace())).map(|v| Key::of(v.as_ref())).collect()
    };
    pods::claims_of(pod).into_iter().flat_map(named)
}

fn of_claim(claim: &PersistentVolumeClaim) -> Option<Key> {
    let name = claim.spec.as_ref()?.volume_name.clone()?;
    Some(Key::new("", name))
}

#[cfg(test)]
#[path = "attach_tests.rs"]
mod tests;
