//! FlexVolumes that pods bring themselves, without a PersistentVolume: attached where their pods are.
//!
//! ```text
//!   a pod on the node has it, and its driver attaches ─▶ VolumeAttachment, with all that is known of it ─▶ as for others
//! ```
//!
//! What begins and ends an attachment is told as for volumes of claims ([`super::told`]), with the same proofs. One key is one
//! volume, by the name under which nodes report it: the driver's, and the volume's in its pod. Upstream's controller goes by
//! that name too, and lets several nodes have such a volume at once: its driver knows whether that can be
//! (`isMultiAttachForbidden`).
//!
//! An attachment without a PersistentVolume has to be of a CSI volume to be valid, so this one looks like one: the driver is
//! the attacher, the handle is the name, and the attributes are the user's options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_engine::{Controller, EventRecord, Key, Plan, Refusal, Setup, Time, View, Write};
use carrack_types::resource::Object as _;
use carrack_types::volume::{
    FLEX_ATTACHER, FLEX_ATTACHES, UNIQUE_NAME, flex_attachment_name, flex_of_unique_name, flex_unique_name,
    lists_driver,
};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, FlexVolumeSource, Node, PersistentVolumeSpec, Pod};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::told::{Detaching, LOOK_AGAIN, by_node, follow, may_attach_to, node_of_attachment, not_attached};
use crate::pods::{self, BY_NODE};

/// Name of the index of pods by the FlexVolumes that they bring, as nodes report them.
const BY_FLEX: &str = "flexvolume";
/// Name of the index of attachments by the volume that they are of, if it is one that a pod brought.
const BY_BROUGHT: &str = "brought";

/// Attaches and detaches FlexVolumes of pods themselves.
#[derive(Default)]
pub struct InlineAttachDetach(Detaching);

impl InlineAttachDetach {
    /// Plants the bug that a detach does not ask whether the disk is in use. For tests, which must find it.
    #[must_use]
    pub fn with_planted_carelessness() -> Self {
        Self(Detaching::careless())
    }
}

/// The FlexVolumes of a pod itself, with the name under which nodes report each.
fn brought(pod: &Pod) -> impl Iterator<Item = (String, &FlexVolumeSource)> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter_map(|v| v.flex_volume.as_ref().map(|flex| (flex_unique_name(&flex.driver, &v.name), flex)))
}

fn by_flex(pod: &Pod) -> Vec<String> {
    brought(pod).map(|(unique, _)| unique).collect()
}

/// Whether its driver attaches. What it can is known once it was asked.
fn is_attached_by(pod: &Pod, flex: &FlexVolumeSource) -> bool {
    pod.annotation(FLEX_ATTACHES).is_some_and(|list| lists_driver(list, &flex.driver))
}

fn keys(pod: &Pod) -> impl Iterator<Item = Key> {
    brought(pod).map(|(unique, _)| Key::new("", unique))
}

/// The volume that an attachment without a PersistentVolume is of.
fn of_attachment(attachment: &VolumeAttachment) -> Option<&str> {
    let inline = attachment.spec.source.inline_volume_spec.as_ref()?.csi.as_ref()?;
    (attachment.spec.attacher == FLEX_ATTACHER).then_some(inline.volume_handle.as_str())
}

fn by_brought(attachment: &VolumeAttachment) -> Vec<String> {
    of_attachment(attachment).map(str::to_owned).into_iter().collect()
}

/// An attachment of what a pod brings to the pod's node.
fn attachment(unique: &str, flex: &FlexVolumeSource, node: &str) -> VolumeAttachment {
    let csi = CSIPersistentVolumeSource {
        driver: FLEX_ATTACHER.to_owned(),
        volume_handle: unique.to_owned(),
        fs_type: flex.fs_type.clone(),
        read_only: flex.read_only,
        volume_attributes: flex.options.clone(),
        ..CSIPersistentVolumeSource::default()
    };
    let inline = PersistentVolumeSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        csi: Some(csi),
        ..PersistentVolumeSpec::default()
    };
    VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(flex_attachment_name(unique, node)),
            annotations: Some(BTreeMap::from([(UNIQUE_NAME.to_owned(), unique.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: FLEX_ATTACHER.to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource { persistent_volume_name: None, inline_volume_spec: Some(inline) },
        },
        status: None,
    }
}

/// Whether an attachment is of what a pod brings: of the same name there may be something else.
fn is_of(attachment: &VolumeAttachment, unique: &str, pod: &Pod) -> bool {
    let Some(csi) = attachment.spec.source.inline_volume_spec.as_ref().and_then(|s| s.csi.as_ref()) else {
        return false;
    };
    let options = |of: &Option<BTreeMap<String, String>>| of.clone().unwrap_or_default();
    brought(pod).any(|(name, flex)| {
        name == unique && csi.fs_type == flex.fs_type && options(&csi.volume_attributes) == options(&flex.options)
    })
}

/// Attaches what a pod brings, unless a PersistentVolume of that name is attached to its node.
fn attach(unique: &str, flex: &FlexVolumeSource, node: &Node, pod: &Pod, view: &View<'_>) -> Plan {
    if !may_attach_to(node, pod) {
        return Plan::none();
    }
    let attachment = attachment(unique, flex, node.name());
    if view.get::<VolumeAttachment>("", attachment.name()).is_some() {
        let why =
            format!("a PersistentVolume that is called like this volume is attached to {} ({unique})", node.name());
        return Plan::none().event(EventRecord::warning(pod, "FailedAttachVolume", why));
    }
    // A controller that was away for long may see a pod that has moved on.
    Plan::none().confirm_alive(pod).create(&attachment)
}

impl Controller for InlineAttachDetach {
    fn name(&self) -> &'static str {
        "flexvolume-attach-detach-controller"
    }
    fn event_source(&self) -> &'static str {
        "attachdetach-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.index::<Pod>(BY_FLEX, by_flex);
        setup.index::<Pod>(BY_NODE, pods::by_node);
        setup.index::<VolumeAttachment>(BY_NODE, node_of_attachment);
        setup.index::<VolumeAttachment>(BY_BROUGHT, by_brought);
        setup.watch::<VolumeAttachment>(|a, _| {
            of_attachment(a).map(|unique| Key::new("", unique)).into_iter().collect()
        });
        setup.watch::<Pod>(|pod, _| keys(pod).collect());
        setup.watch::<Node>(|node, view| {
            let has = view.cache::<VolumeAttachment>().by_index(BY_NODE, node.name());
            let mut all: BTreeSet<Key> =
                has.filter_map(|a| of_attachment(a)).map(|unique| Key::new("", unique)).collect();
            let pods = view.cache::<Pod>().by_index(BY_NODE, node.name());
            all.extend(pods.flat_map(|pod| keys(pod)));
            all.into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let unique = key.name.as_str();
        let Some((_, name)) = flex_of_unique_name(unique) else { return Plan::none() };
        let there: Vec<&Arc<VolumeAttachment>> =
            view.cache::<VolumeAttachment>().by_index(BY_BROUGHT, unique).collect();
        let of = |pod: &'_ Pod| brought(pod).any(|(u, flex)| u == unique && is_attached_by(pod, flex));
        let pods = view.cache::<Pod>().by_index(BY_FLEX, unique);
        let pods: Vec<&Arc<Pod>> = pods.filter(|pod| of(pod)).collect();
        let wanted = by_node(pods.iter().copied());
        let mut plan = Plan::none();
        for attachment in &there {
            let node = &attachment.spec.node_name;
            let its = by_node(pods.iter().copied().filter(|pod| is_of(attachment, unique, pod)));
            let more = match (its.get(node), view.get::<Node>("", node)) {
                (Some(pod), Some(found)) => {
                    self.0.is_there(node);
                    follow(attachment, name, unique, found, pod, now)
                }
                (Some(_), None) => Plan::none().requeue_after(LOOK_AGAIN),
                (None, _) => self.0.detach(attachment, unique, view, now),
            };
            // What is refused of one node (by a webhook, say) keeps nothing from the others.
            plan = plan.then(more.each_apart());
            if let (None, Some(pod)) = (its.get(node), wanted.get(node)) {
                let why = format!("another volume is called {unique} on node {node}, with other options");
                plan = plan.event(EventRecord::warning(pod.as_ref(), "FailedAttachVolume", why));
            }
        }
        for (name, pod) in &wanted {
            if there.iter().any(|a| a.spec.node_name == *name) {
                continue;
            }
            let flex = brought(pod).find(|(u, _)| u == unique).map(|(_, flex)| flex);
            if let (Some(flex), Some(node)) = (flex, view.get::<Node>("", name)) {
                self.0.is_there(name);
                plan = plan.then(attach(unique, flex, node, pod, view).each_apart());
            }
        }
        plan
    }
    /// The pod waits for its volume: it says why nobody is asked to attach it (a webhook refuses that, say).
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, _: Time) -> Plan {
        let unique = key.name.as_str();
        let created = matches!(refusal.write, Write::Create { .. });
        let Some((_, volume)) = flex_of_unique_name(unique).filter(|_| created) else { return Plan::none() };
        let name = refusal.write.key().name;
        let waiting = by_node(view.cache::<Pod>().by_index(BY_FLEX, unique));
        let waiting = waiting.into_iter().filter(|(node, _)| flex_attachment_name(unique, node) == name);
        waiting.fold(Plan::none(), |plan, (_, pod)| plan.event(not_attached(pod, volume, &refusal.error.message)))
    }
    fn begin(&mut self) {
        self.0.begin();
    }
}

#[cfg(test)]
#[path = "inline_tests.rs"]
mod tests;
