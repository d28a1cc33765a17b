//! What nodes are told of what is attached to them, and what they say of what they use: common to all that attach.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{EventRecord, Key, Plan, Premise, Time, View};
use carrack_types::pod::is_terminal;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::{
    DEAD_USERS, DEVICE_PATH, UNIQUE_NAME, VOLUME_USERS, attachment_name, csi_unique_name, dead_users, users_of,
};
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use k8s_openapi::api::core::v1::{AttachedVolume, ContainerState, Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::json;

use crate::node::{Missing, OUT_OF_SERVICE_TAINT, is_ready};
use crate::pods::{self, BY_NODE};

/// Nodes with this annotation leave attaching to the control plane.
pub(super) const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// How long a node must have been gone before what it had is taken from it.
const NODE_GONE: Duration = Duration::from_secs(360);
/// How long an attacher may take until that is told (kubernetes pkg/volume/csi: the watch of an attachment ends after 2 min).
const ANSWERED_IN: Duration = Duration::from_secs(120);
/// How soon to look again at what nothing will tell of.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Whether a pod has ended: it says so, or it is to go and no container of it runs (upstream's `IsPodTerminated`, pkg/volume/util).
fn has_ended(pod: &Pod) -> bool {
    let mut containers = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    let rests = |state: &ContainerState| state.terminated.is_some() || state.waiting.is_some();
    is_terminal(pod) || pod.is_deleting() && containers.all(|c| c.state.as_ref().is_some_and(rests))
}

/// Of pods that have a volume, one for each node. Deleted ones have it until they have ended.
pub(super) fn by_node<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeMap<String, &'a Arc<Pod>> {
    let mut nodes = BTreeMap::new();
    for pod in pods {
        let node = pods::node_of(pod);
        if !node.is_empty() && !has_ended(pod) {
            // Of several, one that stays speaks for the node.
            let entry = nodes.entry(node.to_owned()).or_insert(pod);
            if entry.is_deleting() {
                *entry = pod;
            }
        }
    }
    nodes
}

/// The node of an attachment, for an index of attachments.
pub(super) fn node_of_attachment(attachment: &VolumeAttachment) -> Vec<String> {
    vec![attachment.spec.node_name.clone()]
}

/// Whether something is to be attached to a node for a pod.
pub(super) fn may_attach_to(node: &Node, pod: &Pod) -> bool {
    node.annotation(MANAGED) == Some("true") && !pod.is_deleting() && !is_out_of_service(node)
}

/// The name under which a node reports what an attachment attaches: what it says, else that of the disk from which its own name
/// comes. One that the node neither uses nor is told of has none there; none at all for what nobody here would have made.
pub(super) fn unique_of(attachment: &VolumeAttachment, node: Option<&Node>) -> Option<String> {
    if let Some(said) = attachment.annotation(UNIQUE_NAME) {
        return Some(said.to_owned());
    }
    let (attacher, name) = (&attachment.spec.attacher, attachment.name());
    let digest = name.strip_prefix("csi-").filter(|digest| digest.len() == 64);
    digest.filter(|digest| digest.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let all = csi_unique_name(attacher, "");
    let in_use = node.iter().flat_map(|n| n.status.iter().flat_map(|s| s.volumes_in_use.iter().flatten()));
    let told = node.iter().flat_map(|n| attached(n).iter().map(|attached| &attached.name));
    let is_it = |unique: &&String| {
        let handle = unique.strip_prefix(&all);
        handle.is_some_and(|handle| attachment_name(attacher, handle, &attachment.spec.node_name) == name)
    };
    Some(in_use.chain(told).find(is_it).cloned().unwrap_or(all))
}

/// The names of what a node says that it uses.
pub(super) fn names_in_use(node: &Node) -> &[String] {
    node.status.as_ref().and_then(|s| s.volumes_in_use.as_deref()).unwrap_or_default()
}

pub(super) fn reports_in_use(node: &Node, unique: &str) -> bool {
    names_in_use(node).iter().any(|u| u == unique)
}

fn attached(node: &Node) -> &[AttachedVolume] {
    node.status.as_ref().and_then(|s| s.volumes_attached.as_deref()).unwrap_or_default()
}

/// The names of what a node is told is attached to it.
pub(super) fn attached_names(node: &Node) -> Vec<String> {
    attached(node).iter().map(|attached| attached.name.clone()).collect()
}

fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    !is_ready(node) && taints.any(|t| t.key == OUT_OF_SERVICE_TAINT)
}

/// Whether a node is not heard: by its kubelet for so long that it counts as not ready, or by what sees to its virtual machines,
/// whose silence is noticed sooner. A node that is heard ends by itself what the dead have left there.
fn is_silent(node: &Node) -> bool {
    !is_ready(node) || node.label(SCHEDULABLE_LABEL) == Some("false")
}

/// Whether everybody is dead who may have the volume on a node that is not heard: the node has named them all, and of each it is
/// written that nothing of it runs any more.
fn is_left_by_the_dead(attachment: &VolumeAttachment, node: &Node, unique: &str) -> bool {
    let named = users_of(node.annotation(VOLUME_USERS), unique);
    let dead: BTreeSet<&str> = dead_users(attachment.annotation(DEAD_USERS)).collect();
    is_silent(node) && !named.is_empty() && named.iter().all(|user| dead.contains(user.as_str()))
}

/// The node is told that it has the volume, or that it has not.
pub(super) fn tell(node: &Node, unique: &str, device: Option<&str>) -> Plan {
    let mut list: Vec<AttachedVolume> = attached(node).iter().filter(|a| a.name != unique).cloned().collect();
    if let Some(path) = device {
        list.push(AttachedVolume { name: unique.to_owned(), device_path: path.to_owned() });
    }
    Plan::none().patch_status(node, json!({"status": {"volumesAttached": list}}))
}

/// Who ends attachments.
#[derive(Default)]
pub(super) struct Detaching {
    /// Since when nodes that have attachments have been missing, without having been there in between.
    missing: Missing,
    /// A planted bug: nobody asks whether the disk is in use.
    careless: bool,
    /// A planted bug: since when a node has been missing stays known when it was there in between.
    remembers: bool,
}

impl Detaching {
    /// With the planted bug that a detach does not ask whether the disk is in use.
    pub(super) fn careless() -> Self {
        Self { careless: true, ..Self::default() }
    }

    /// With the planted bug that a node which came back and goes again is taken for one that was gone all the time.
    pub(super) fn remembering() -> Self {
        Self { remembers: true, ..Self::default() }
    }

    /// A node is there. When it goes, its time begins anew, however long it was gone before.
    pub(super) fn is_there(&mut self, node: &str) {
        if !self.remembers {
            self.missing.is_there(node);
        }
    }

    /// Whether nodes were there meanwhile is not known.
    pub(super) fn begin(&mut self) {
        self.missing.clear();
    }

    /// Ends an attachment that no pod on its node needs, if that is safe.
    pub(super) fn detach(&mut self, attachment: &VolumeAttachment, unique: &str, view: &View<'_>, now: Time) -> Plan {
        if attachment.is_deleting() {
            return Plan::none();
        }
        let name = &attachment.spec.node_name;
        let Some(node) = view.get::<Node>("", name) else {
            let attachments = view.cache::<VolumeAttachment>();
            let since = self.missing.since(name, now, |node| attachments.count(BY_NODE, node) > 0);
            let left = NODE_GONE.saturating_sub(now.since(since));
            if !left.is_zero() {
                return Plan::none().requeue_after(left);
            }
            let gone = Premise::absent(&Node::resource(), Key::new("", name.clone()));
            let plan = Plan::none().confirm_absent(&Node::resource(), Key::new("", name.clone()), "");
            return plan.delete(attachment).resting_on(&gone);
        };
        self.is_there(name);
        let is_free = is_out_of_service(node) || is_left_by_the_dead(attachment, node, unique) || self.careless;
        if reports_in_use(node, unique) && !is_free {
            // The node says when it is done.
            return Plan::none();
        }
        if attached(node).iter().any(|a| a.name == unique) {
            return tell(node, unique, None);
        }
        // It was told before. That nobody has told it otherwise since must be true when the attachment ends.
        let told = Premise::unchanged(node.as_ref());
        Plan::none().confirm_unchanged(node.as_ref()).delete(attachment).resting_on(&told)
    }
}

/// Tells a pod why a volume of it is not attached.
pub(super) fn not_attached(pod: &Pod, volume: &str, why: &str) -> EventRecord {
    let text = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
    EventRecord::warning(pod, "FailedAttachVolume", text)
}

/// Says to the node what is so, and to the pod what is wrong.
pub(super) fn follow(
    attachment: &VolumeAttachment,
    volume: &str,
    unique: &str,
    node: &Node,
    pod: &Pod,
    now: Time,
) -> Plan {
    let status = attachment.status.clone().unwrap_or_default();
    let known = attached(node).iter().find(|a| a.name == unique);
    if status.attached && !attachment.is_deleting() {
        let device = status.attachment_metadata.as_ref().and_then(|m| m.get(DEVICE_PATH)).map(String::as_str);
        // A disk that was lost and attached again may be another device.
        let device = device.unwrap_or_default();
        if known.is_some_and(|known| known.device_path == device) {
            return Plan::none();
        }
        let done = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
        // Nobody may have ended the attachment meanwhile.
        let plan = tell(node, unique, Some(device));
        let plan = plan.resting_on(&Premise::unchanged(attachment));
        return plan.told(EventRecord::normal(pod, "SuccessfulAttachVolume", done));
    }
    let failed = |why: String| Plan::none().event(not_attached(pod, volume, &why));
    if let Some(why) = status.attach_error.and_then(|e| e.message) {
        return failed(why);
    }
    let made = attachment.metadata.creation_timestamp.as_ref().map_or(now, Time::from);
    let left = ANSWERED_IN.saturating_sub(now.since(made));
    if attachment.is_deleting() || !left.is_zero() {
        return if attachment.is_deleting() { Plan::none() } else { Plan::none().requeue_after(left) };
    }
    let attacher = &attachment.spec.attacher;
    failed(format!("timed out waiting for external-attacher of {attacher} CSI driver to attach volume {volume}"))
        .requeue_after(ANSWERED_IN)
}
