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

/// The volumes of a node, counted once, for whatever is then supposed about who goes from there: those of drivers that have a
/// limit there and of which the pod that asks wants something.
#[derive(Debug, Default)]
pub struct Counted {
    /// The pod wants a volume of a driver that its pods need there, and that is missing.
    lacks_a_driver: bool,
    /// How many volumes each driver attaches at most, where there may be more.
    limits: BTreeMap<String, i64>,
    /// What is attached there, or is to be, with the number of pods that have it.
    volumes: BTreeMap<Attached, usize>,
    /// What each pod there has of it, by UID.
    of_pods: BTreeMap<Arc<str>, BTreeSet<Attached>>,
}

impl Counted {
    /// Counts, for a pod that wants these volumes, what is at a node, with some pods more there.
    pub fn of(wanted: &BTreeSet<Attached>, node: &NodeInfo, objects: &Objects, with: &[Arc<PodInfo>]) -> Self {
        let mut counted = Self::default();
        if wanted.is_empty() {
            return counted;
        }
        let known = Objects::global(&objects.csi_nodes, &node.name);
        let drivers = || known.into_iter().flat_map(|known| &known.spec.drivers);
        let has = |driver: &str| drivers().any(|d| d.name == driver);
        counted.lacks_a_driver = wanted.iter().any(|(driver, _)| !has(driver) && must_be_there(driver, objects));
        let is_wanted = |driver: &str| wanted.iter().any(|(wanted, _)| wanted == driver);
        let limited = drivers().filter(|d| is_wanted(&d.name));
        let limits = limited.filter_map(|d| Some((d.name.clone(), i64::from(d.allocatable.as_ref()?.count?))));
        counted.limits = limits.collect();
        // Where all claims and attachments together are not too many, whose they are need not be looked up.
        let claims = node.pods.values().map(|seat| &seat.info).chain(with).map(|pod| pod.claims().len());
        let most = claims.sum::<usize>() + objects.attachments_of(&node.name).count() + wanted.len();
        counted.limits.retain(|_, limit| usize::try_from(*limit).unwrap_or(0) < most);
        if counted.limits.is_empty() {
            return counted;
        }
        for attached in at_node(&node.name, objects).filter(|(driver, _)| counted.limits.contains_key(driver)) {
            counted.volumes.entry(attached).or_default();
        }
        let there = node.pods.values().map(|seat| (true, &seat.info)).chain(with.iter().map(|pod| (false, pod)));
        for (is_there, pod) in there.filter(|(_, pod)| !pod.claims().is_empty()) {
            let volumes = of_pod(pod, objects).filter(|(driver, _)| counted.limits.contains_key(driver));
            let volumes: BTreeSet<Attached> = volumes.collect();
            for attached in &volumes {
                *counted.volumes.entry(attached.clone()).or_default() += 1;
            }
            if is_there && !volumes.is_empty() {
                counted.of_pods.insert(pod.uid.clone(), volumes);
            }
        }
        counted
    }

    /// Asks the plugin, as if some pods were not there.
    ///
    /// # Errors
    /// The node has too many volumes already, or lacks a driver.
    pub fn check(&self, wanted: &BTreeSet<Attached>, without: &[Arc<PodInfo>]) -> Result<(), Refusal> {
        if self.lacks_a_driver {
            return Err(Refusal::unresolvable(
                Plugin::NodeVolumeLimits,
                "node(s) didn't have the CSI driver of the pod's volumes",
            ));
        }
        if self.limits.is_empty() {
            return Ok(());
        }
        let mut leaving: BTreeMap<&Attached, usize> = BTreeMap::new();
        for volume in without.iter().filter_map(|pod| self.of_pods.get(&pod.uid)).flatten() {
            *leaving.entry(volume).or_default() += 1;
        }
        // What goes with all pods that have it is detached after them.
        let leaves = |volume: &Attached| leaving.get(volume).is_some_and(|pods| self.volumes.get(volume) == Some(pods));
        for (driver, limit) in &self.limits {
            let is_new = |volume: &&Attached| !self.volumes.contains_key(*volume) || leaves(volume);
            let new = wanted.iter().filter(|(of, _)| of == driver).filter(is_new).count();
            let there = self.volumes.keys().filter(|volume| volume.0 == *driver && !leaves(volume)).count();
            if new > 0 && i64::try_from(there + new).unwrap_or(i64::MAX) > *limit {
                return Err(Refusal::resolvable(Plugin::NodeVolumeLimits, "node(s) exceed max volume count"));
            }
        }
        Ok(())
    }
}
