//! VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits: where a pod's volumes can be.
//!
//! They are asked pod by pod, of the nodes that everybody else accepts: claims differ from pod to pod even where pods are
//! alike otherwise.

mod binding;
mod limits;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::PersistentVolume;

use crate::cluster::{ObjectName, Objects};
use crate::plugins::fit::Hypothesis;
use crate::pod::Disk;
use crate::{Cluster, NodeInfo, Plugin, PodInfo, Probe, Profile, Refusal};

pub use binding::{is_bound, reaches};
pub use limits::Counted;

/// A claim's volume must be in the zone and region of its label.
const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// What plugins are asked about.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The pod whose volumes these are.
    pub pod: &'a PodInfo,
    /// Where they would have to be.
    pub node: &'a NodeInfo,
    /// What else is there.
    pub cluster: &'a Cluster,
    /// Which plugins are asked.
    pub profile: &'a Profile,
}

/// What has to be done about a pod's claims before it can be bound to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Claims and the existing volumes to bind them to.
    pub bindings: Vec<(ObjectName, String)>,
    /// Claims for which volumes are to be made at the node.
    pub provisions: Vec<ObjectName>,
}

impl Plan {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty() && self.provisions.is_empty()
    }
    /// The claims.
    pub fn claims(&self) -> impl Iterator<Item = &ObjectName> {
        self.bindings.iter().map(|(claim, _)| claim).chain(&self.provisions)
    }
}

/// A pod's volumes, looked up.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    bound: Vec<Arc<PersistentVolume>>,
    /// Some claim names a volume that is not there.
    lost: bool,
    /// Claims that wait for their first consumer, the largest first.
    delayed: Vec<binding::Delayed>,
    /// Claims that only one pod may use.
    alone: Vec<String>,
    /// Volumes that CSI drivers would have to attach.
    attached: BTreeSet<limits::Attached>,
}

impl Volumes {
    /// Looks up the claims of a pod.
    ///
    /// # Errors
    /// What keeps it from every node.
    pub fn of(pod: &PodInfo, objects: &Objects) -> Result<Self, Refusal> {
        let refuse = |reason: String| Err(Refusal::unresolvable(Plugin::VolumeBinding, reason));
        let mut volumes = Self::default();
        let mut immediate = false;
        for claim in pod.claims() {
            let name = &claim.name;
            let Some(object) = objects.claim(pod.namespace(), name) else {
                return refuse(if claim.ephemeral {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\"")
                } else {
                    format!("persistentvolumeclaim \"{name}\" not found")
                });
            };
            let spec = object.spec.as_ref();
            let volume = spec.and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
            if object.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
                return refuse(format!(
                    "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
                ));
            }
            if object.is_deleting() {
                return refuse(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            if claim.ephemeral && object.controller_uid() != Some(&pod.uid) {
                let key = format!("{}/{name}", pod.namespace());
                return refuse(format!(
                    "PVC {key} was not created for pod {}/{} (pod is not owner)",
                    pod.namespace(),
                    pod.name()
                ));
            }
            if spec.into_iter().flat_map(|s| s.access_modes.iter().flatten()).any(|mode| mode == "ReadWriteOncePod") {
                volumes.alone.push(name.clone());
            }
            volumes.attached.extend(limits::attached_by(object, objects));
            if is_bound(object) {
                match Objects::global(&objects.volumes, volume) {
                    Some(volume) => volumes.bound.push(volume.clone()),
                    None => volumes.lost = true,
                }
            } else if volume.is_empty() && binding::is_delayed(object, objects) {
                volumes.delayed.push(binding::Delayed::of(object, objects));
            } else {
                immediate = true;
            }
        }
        if immediate {
            return refuse("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        volumes.delayed.sort_by_key(binding::Delayed::smallness);
        Ok(volumes)
    }

    /// Asks the plugins about one node.
    ///
    /// # Errors
    /// Why the volumes can't be there.
    pub fn filter(&self, asked: Asked<'_>, hypothesis: &Hypothesis<'_>, probe: &mut Probe) -> Result<Plan, Refusal> {
        self.share(asked, hypothesis, None, probe)?;
        self.reach(asked, probe)
    }

    /// Asks those plugins alone whose answers depend on no pod of the node: whether the volumes can be there at all.
    ///
    /// # Errors
    /// Why they can't.
    pub fn reach(&self, asked: Asked<'_>, probe: &mut Probe) -> Result<Plan, Refusal> {
        let Asked { node, cluster, profile, .. } = asked;
        let on = |plugin| profile.filters.has(plugin);
        let plan = match on(Plugin::VolumeBinding) {
            true => probe.filter(Plugin::VolumeBinding, || self.bind(node, cluster))?,
            false => Plan::default(),
        };
        if on(Plugin::VolumeZone) {
            probe.filter(Plugin::VolumeZone, || self.zone(node))?;
        }
        Ok(plan)
    }

    /// Counts the volumes that are at a node, for hypotheses with these pods there and others gone.
    #[must_use]
    pub fn count(&self, asked: Asked<'_>, with: &[Arc<PodInfo>]) -> Counted {
        Counted::of(&self.attached, asked.node, &asked.cluster.objects, with)
    }

    /// Asks those plugins alone whose answers depend on which pods are on the node. Who asks for many hypotheses counts the
    /// node's volumes once before ([`Self::count`]).
    ///
    /// # Errors
    /// Whom the volumes can't be shared with.
    pub fn share(
        &self,
        asked: Asked<'_>,
        hypothesis: &Hypothesis<'_>,
        counted: Option<&Counted>,
        probe: &mut Probe,
    ) -> Result<(), Refusal> {
        let on = |plugin| asked.profile.filters.has(plugin);
        if on(Plugin::VolumeRestrictions) {
            probe.filter(Plugin::VolumeRestrictions, || self.restrictions(asked, hypothesis))?;
        }
        if on(Plugin::NodeVolumeLimits) {
            probe.filter(Plugin::NodeVolumeLimits, || match counted {
                Some(counted) => counted.check(&self.attached, hypothesis.without),
                None => self.count(asked, hypothesis.with).check(&self.attached, hypothesis.without),
            })?;
        }
        Ok(())
    }

    fn restrictions(&self, asked: Asked<'_>, hypothesis: &Hypothesis<'_>) -> Result<(), Refusal> {
        let Asked { pod, node, cluster, .. } = asked;
        let refuse = |reason: &str| Err(Refusal::resolvable(Plugin::VolumeRestrictions, reason));
        let gone = |uid: &str| hypothesis.without.iter().any(|p| &*p.uid == uid);
        let mut there = node.pods.values().map(|seat| &seat.info).chain(hypothesis.with);
        if !pod.pod.disks.is_empty() && there.any(|other| disks_clash(pod, other) && !gone(&other.uid)) {
            return refuse("node(s) had no available disk");
        }
        for name in &self.alone {
            // A pod that has a claim twice is counted twice, as in the claim's users.
            let users_of = |pods: &[Arc<PodInfo>]| {
                let of_here = pods.iter().filter(|p| p.namespace() == pod.namespace());
                let uses = of_here.flat_map(|p| p.claims()).filter(|claim| claim.name == *name);
                i64::try_from(uses.count()).unwrap_or(i64::MAX)
            };
            let users = i64::from(cluster.objects.claim_users(pod.namespace(), name));
            if users.saturating_add(users_of(hypothesis.with)) > users_of(hypothesis.without) {
                return refuse(
                    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
                );
            }
        }
        Ok(())
    }

    fn bind(&self, node: &NodeInfo, cluster: &Cluster) -> Result<Plan, Refusal> {
        let refuse = |reason: &str| Err(Refusal::unresolvable(Plugin::VolumeBinding, reason));
        if self.lost {
            return refuse("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)");
        }
        let Some(object) = &node.node else { return Ok(Plan::default()) };
        if !self.bound.iter().all(|volume| binding::reaches(volume, object)) {
            return refuse("node(s) didn't match PersistentVolume's node affinity");
        }
        binding::plan(&self.delayed, object, &cluster.objects).or_else(refuse)
    }

    fn zone(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let Some(labels) = node.labels() else { return Ok(()) };
        if !ZONE_LABELS.iter().any(|key| labels.contains_key(*key)) {
            return Ok(());
        }
        for volume in &self.bound {
            for (key, zones) in volume.metadata.labels.iter().flatten() {
                let counts = ZONE_LABELS.contains(&key.as_str());
                // A volume with the label of old may be reached from a node that has only the one of today.
                let mine = labels.get(key).or_else(|| labels.get(today(key)));
                // Several zones are one text.
                let here = mine.is_some_and(|mine| zones.split("__").any(|zone| zone == mine));
                if counts && !here {
                    let reason = "node(s) had no available volume zone";
                    return Err(Refusal::unresolvable(Plugin::VolumeZone, reason));
                }
            }
        }
        Ok(())
    }
}

/// What a label is called today (plugins/volumezone, `translateToGALabel`).
fn today(label: &str) -> &str {
    match label {
        "failure-domain.beta.kubernetes.io/zone" => "topology.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region" => "topology.kubernetes.io/region",
        other => other,
    }
}

/// Whether two pods want a disk that only one of them can have.
#[must_use]
pub fn disks_clash(pod: &PodInfo, other: &PodInfo) -> bool {
    let clash = |a: &Disk, b: &Disk| a.name == b.name && !(a.read_only && b.read_only);
    pod.pod.disks.iter().any(|mine| other.pod.disks.iter().any(|theirs| clash(mine, theirs)))
}
