//! NodeVolumeLimits: how many volumes a CSI driver attaches to a node.
//!
//! What pods on the node have counts, and what is attached to it besides: a volume whose pod has just ended, or whose pod
//! was deleted by force, takes its place until it is detached (upstream's `getNodeVolumeAttachmentInfo`).
//!
//! A driver that a node does not have attaches as many as one likes there, unless it says that its pods may not go where it is
//! missing (`preventPodSchedulingIfMissing`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use super::binding::class;
use crate::cluster::Objects;
use crate::plugins::fit::Hypothesis;
use crate::{NodeInfo, Plugin, PodInfo, Refusal};

/// A volume as its driver names it: driver, and volume or claim.
pub type Attached = (String, String);

/// What a claim makes its driver attach, if a driver does.
pub fn attached_by(claim: &PersistentVolumeClaim, objects: &Objects) -> Option<Attached> {
    let named = claim.spec.as_ref()?.volume_name.as_deref().unwrap_or_default();
    if let Some(volume) = Objects::global(&objects.volumes, named) {
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        return Some((csi.driver.clone(), csi.volume_handle.clone()));
    }
    // It will be a volume of its own, of the class's driver.
    let class = class(claim, objects)?;
    Some((class.provisioner.clone(), format!("{}/{}", claim.namespace(), claim.name())))
}

fn of_pod(pod: &PodInfo, objects: &Objects) -> impl Iterator<Item = Attached> {
    let claims = pod.claims().iter().filter_map(|c| objects.claim(pod.namespace(), &c.name));
    claims.filter_map(|claim| attached_by(claim, objects))
}

/// What is attached to a node, or is to be, whoever wants it.
fn at_node<'a>(node: &'a str, objects: &'a Objects) -> impl Iterator<Item = Attached> + 'a {
    objects.attachments_of(node).filter_map(|attachment| {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        let volume = Objects::global(&objects.volumes, name)?;
        let csi = volume.spec.as_ref()?.csi.as_ref()?;
        Some((attachment.spec.attacher.clone(), csi.volume_handle.clone()))
    })
}

/// Whether a driver's pods may not go to a node without it.
fn must_be_there(driver: &str, objects: &Objects) -> bool {
    Objects::global(&objects.drivers, driver)
        .is_some_and(|driver| driver.spec.prevent_pod_scheduling_if_missing == Some(true))
}

/// Asks the plugin.
///
/// # Errors
/// The node has too many volumes already, or lacks a driver.
pub fn check(
    wanted: &BTreeSet<Attached>,
    node: &NodeInfo,
    objects: &Objects,
    hypothesis: &Hypothesis<'_>,
) -> Result<(), Refusal> {
    if wanted.is_empty() {
        return Ok(());
    }
    let known = Objects::global(&objects.csi_nodes, &node.name);
    let has = |driver: &str| known.is_some_and(|known| known.spec.drivers.iter().any(|d| d.name == driver));
    if wanted.iter().any(|(driver, _)| !has(driver) && must_be_there(driver, objects)) {
        return Err(Refusal::unresolvable(
            Plugin::NodeVolumeLimits,
            "node(s) didn't have the CSI driver of the pod's volumes",
        ));
    }
    let Some(known) = known else { return Ok(()) };
    let limits: BTreeMap<&str, i64> = known
        .spec
        .drivers
        .iter()
        .filter_map(|d| Some((d.name.as_str(), i64::from(d.allocatable.as_ref()?.count?))))
        .collect();
    if !wanted.iter().any(|(driver, _)| limits.contains_key(driver.as_str())) {
        return Ok(());
    }
    let staying = node.pods.values().map(|s| &s.info);
    let staying = staying.filter(|pod| !hypothesis.without.iter().any(|gone| gone.uid == pod.uid));
    let of_pods = |pods: &mut dyn Iterator<Item = &Arc<PodInfo>>| -> BTreeSet<Attached> {
        pods.filter(|p| !p.claims().is_empty()).flat_map(|pod| of_pod(pod, objects)).collect()
    };
    let mut there = of_pods(&mut staying.chain(hypothesis.with));
    // What goes with the pods of a hypothesis is detached after them.
    let going = of_pods(&mut hypothesis.without.iter());
    there.extend(at_node(&node.name, objects).filter(|volume| !going.contains(volume)));
    for (driver, limit) in limits {
        let of = |set: &BTreeSet<Attached>| set.iter().filter(|(d, _)| d == driver).count();
        let new = wanted.iter().filter(|v| v.0 == driver && !there.contains(*v)).count();
        if new > 0 && i64::try_from(of(&there) + new).unwrap_or(i64::MAX) > limit {
            return Err(Refusal::resolvable(Plugin::NodeVolumeLimits, "node(s) exceed max volume count"));
        }
    }
    Ok(())
}
