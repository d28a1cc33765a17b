//! What is read of a pod's JSON. What is not named here costs nothing but to be skipped.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use carrack_engine::Time;
use carrack_types::declared;
use carrack_types::held::{self, Held, Running};
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ContainerRestartRule, ImageVolumeSource, PodResourceClaim, PodSchedulingGate,
    PodSpec, ResourceRequirements, Toleration, TopologySpreadConstraint, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time as MetaTime};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{Claim, Disk, Pod, Spec, Unplaced};
use crate::tables::Labels;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Read {
    metadata: Option<ReadMeta>,
    spec: Option<ReadSpec>,
    status: Option<ReadStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadMeta {
    annotations: Option<Labels>,
    deletion_timestamp: Option<MetaTime>,
    labels: Option<Labels>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadSpec {
    affinity: Option<Affinity>,
    containers: Option<Vec<ReadContainer>>,
    host_network: Option<bool>,
    host_users: Option<bool>,
    init_containers: Option<Vec<ReadContainer>>,
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    overhead: Option<BTreeMap<String, Quantity>>,
    preemption_policy: Option<String>,
    priority: Option<i32>,
    resource_claims: Option<Vec<PodResourceClaim>>,
    resources: Option<ResourceRequirements>,
    scheduler_name: Option<String>,
    scheduling_gates: Option<Vec<PodSchedulingGate>>,
    tolerations: Option<Vec<Toleration>>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    volumes: Option<Vec<ReadVolume>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadContainer {
    name: String,
    image: Option<String>,
    ports: Option<Vec<ContainerPort>>,
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
    restart_policy_rules: Option<Vec<ReadRule>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReadRule {
    action: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadVolume {
    name: String,
    persistent_volume_claim: Option<ReadClaim>,
    ephemeral: Option<IgnoredAny>,
    gce_persistent_disk: Option<ReadDisk>,
    aws_elastic_block_store: Option<ReadDisk>,
    image: Option<ImageVolumeSource>,
    iscsi: Option<ReadDisk>,
    rbd: Option<ReadDisk>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadClaim {
    claim_name: String,
}

/// A disk of any of the kinds that are exclusive.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadDisk {
    pd_name: String,
    #[serde(rename = "volumeID")]
    volume_id: String,
    iqn: String,
    monitors: Option<Vec<String>>,
    pool: Option<String>,
    image: String,
    read_only: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadStatus {
    allocated_resources: Option<BTreeMap<String, Quantity>>,
    conditions: Option<Vec<ReadCondition>>,
    container_statuses: Option<Vec<Held>>,
    init_container_statuses: Option<Vec<Held>>,
    nominated_node_name: Option<String>,
    phase: Option<String>,
    resources: Option<Running>,
    start_time: Option<MetaTime>,
}

impl ReadStatus {
    /// What it says that the pod holds of its node.
    fn held(&mut self) -> held::Status {
        let containers = [self.container_statuses.take(), self.init_container_statuses.take()];
        let mut conditions = self.conditions.iter().flatten();
        held::Status {
            containers: containers.into_iter().flatten().flatten().collect(),
            pod: Held {
                allocated_resources: self.allocated_resources.take(),
                resources: self.resources.take(),
                ..Held::default()
            },
            is_infeasible: conditions.any(|c| held::says_infeasible(&c.kind, c.reason.as_deref())),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReadCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

/// Reads a pod.
///
/// # Errors
/// It is none.
pub(super) fn pod(whole: Box<RawValue>) -> serde_json::Result<Pod> {
    let Read { metadata, spec, status } = serde_json::from_str(whole.get())?;
    let (metadata, mut spec, mut status) =
        (metadata.unwrap_or_default(), spec.unwrap_or_default(), status.unwrap_or_default());
    let node = spec.node_name.take().unwrap_or_default().into_boxed_str();
    let mut volumes = spec.volumes.take().unwrap_or_default();
    let images: Vec<Volume> = volumes.iter_mut().filter_map(ReadVolume::image).collect();
    let name = metadata.name.as_deref().unwrap_or_default();
    let claims: Vec<Claim> = volumes.iter().filter_map(|volume| volume.claim(name)).collect();
    let disks: Vec<Disk> = volumes.iter().flat_map(ReadVolume::disks).collect();
    let held = status.held();
    let gives_way =
        |c: &ReadCondition| c.kind == "DisruptionTarget" && c.reason.as_deref() == Some("PreemptionByScheduler");
    let preempted = status.conditions.iter().flatten().any(|c| c.status == "True" && gives_way(c));
    let unplaced = status.conditions.into_iter().flatten().find(|c| c.kind == "PodScheduled" && c.status == "False");
    Ok(Pod {
        labels: Arc::new(metadata.labels.unwrap_or_default()),
        metadata: ObjectMeta {
            annotations: metadata.annotations,
            deletion_timestamp: metadata.deletion_timestamp,
            name: metadata.name,
            namespace: metadata.namespace,
            owner_references: metadata.owner_references.map(exact),
            resource_version: metadata.resource_version,
            uid: metadata.uid,
            ..ObjectMeta::default()
        },
        spec: Arc::new(Spec::new(spec.kept(&held, images))?),
        node,
        claims: claims.into(),
        disks: disks.into(),
        preempted,
        ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        nominated: status.nominated_node_name.filter(|node| !node.is_empty()).map(String::into_boxed_str),
        unplaced: unplaced.map(|c| {
            Arc::new(Unplaced { reason: c.reason.unwrap_or_default(), message: c.message.unwrap_or_default() })
        }),
        started: status.start_time.as_ref().map(Time::from),
        whole: Some(whole),
    })
}

/// A list without the room that was kept while it was read: most pods have one owner, and would have room for four.
fn exact<T>(mut list: Vec<T>) -> Vec<T> {
    list.shrink_to_fit();
    list
}

impl Spec {
    fn new(pod: PodSpec) -> serde_json::Result<Self> {
        let bytes = serde_json::to_vec(&pod)?.into();
        Ok(Self { pod, bytes, asks: OnceLock::new() })
    }
}

impl ReadSpec {
    /// What is kept of it, with what the pod holds for what it asks for.
    fn kept(self, held: &held::Status, images: Vec<Volume>) -> PodSpec {
        let on_host = self.host_network == Some(true);
        let keep = |containers: Vec<ReadContainer>| containers.into_iter().map(|c| c.kept(on_host)).collect();
        let mut kept = PodSpec {
            affinity: self.affinity,
            containers: keep(self.containers.unwrap_or_default()),
            host_network: self.host_network.filter(|on_host| *on_host),
            host_users: self.host_users.filter(|of_host| on_host && !of_host),
            init_containers: self.init_containers.map(keep),
            node_selector: self.node_selector,
            overhead: self.overhead,
            preemption_policy: self.preemption_policy,
            priority: self.priority,
            resource_claims: self.resource_claims.filter(|claims| !claims.is_empty()),
            resources: self.resources,
            scheduler_name: self.scheduler_name,
            scheduling_gates: self.scheduling_gates,
            tolerations: self.tolerations,
            topology_spread_constraints: self.topology_spread_constraints,
            volumes: (!images.is_empty()).then_some(images),
            ..PodSpec::default()
        };
        held.lay_over(&mut kept);
        // A container's name makes no difference any more.
        for container in kept.containers.iter_mut().chain(kept.init_containers.iter_mut().flatten()) {
            container.name.clear();
        }
        kept
    }
}

impl ReadContainer {
    /// Ports that are no ports of the node make no difference, and of the rules for starts after an end only whether one is about all
    /// containers.
    fn kept(self, on_host: bool) -> Container {
        let restarts_all = self.restart_policy_rules.iter().flatten().any(|rule| rule.action == declared::RESTART_ALL);
        let rule = || ContainerRestartRule { action: declared::RESTART_ALL.to_owned(), exit_codes: None };
        let is_nodes = |port: &ContainerPort| on_host || port.host_port.is_some_and(|port| port > 0);
        let ports: Vec<ContainerPort> = self.ports.into_iter().flatten().filter(is_nodes).collect();
        Container {
            name: self.name,
            image: self.image,
            ports: (!ports.is_empty()).then_some(ports),
            resources: self.resources,
            restart_policy: self.restart_policy,
            restart_policy_rules: restarts_all.then(|| vec![rule()]),
            ..Container::default()
        }
    }
}

impl ReadVolume {
    /// The volume if it is an image's content; its name makes no difference.
    fn image(&mut self) -> Option<Volume> {
        let image = self.image.take()?;
        let image = Some(ImageVolumeSource { reference: image.reference, ..ImageVolumeSource::default() });
        Some(Volume { image, ..Volume::default() })
    }

    fn claim(&self, pod: &str) -> Option<Claim> {
        let named = self.persistent_volume_claim.as_ref();
        let named = named.map(|claim| Claim { name: claim.claim_name.clone(), ephemeral: false });
        let made = || Claim { name: format!("{pod}-{}", self.name), ephemeral: true };
        named.or_else(|| self.ephemeral.is_some().then(made))
    }

    /// What names an exclusive disk, if it is one: one of Ceph's has a name for each monitor, of which two pods need to have one in
    /// common (plugins/volumerestrictions, `isVolumeConflict`).
    fn disks(&self) -> Vec<Disk> {
        let disk = |disk: &ReadDisk, name: String| Disk { name, read_only: disk.read_only.unwrap_or(false) };
        if let Some(gce) = &self.gce_persistent_disk {
            return vec![disk(gce, format!("gce/{}", gce.pd_name))];
        }
        if let Some(aws) = &self.aws_elastic_block_store {
            // Never shared, not even for reading.
            return vec![Disk { name: format!("aws/{}", aws.volume_id), read_only: false }];
        }
        if let Some(iscsi) = &self.iscsi {
            return vec![disk(iscsi, format!("iscsi/{}", iscsi.iqn))];
        }
        let Some(rbd) = &self.rbd else { return Vec::new() };
        let pool = rbd.pool.as_deref().unwrap_or("rbd");
        let monitors = rbd.monitors.iter().flatten();
        monitors.map(|monitor| disk(rbd, format!("rbd/{monitor}/{pool}/{}", rbd.image))).collect()
    }
}
