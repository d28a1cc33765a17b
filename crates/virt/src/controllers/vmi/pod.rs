//! The launcher pod of an instance.
//!
//! Its shape is a contract with the node's handler and with everybody who looks at KubeVirt's pods: name, labels,
//! annotations, container names, directories, device requests. Two things are done otherwise than upstream:
//! containers of container disks are kept alive by a program that the handler puts on the node beforehand (upstream
//! copies one into each pod by an init container, which costs each start a container), and devices are asked for as
//! far as nodes offer them, so that clusters without KVM or vhost-net run guests by emulation with no setting.

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::controller_ref;
use carrack_types::kubevirt::{KubeVirt, VirtualMachineInstance, Volume as VmiVolume};
use carrack_types::resource::Object;
use carrack_types::well_known::kubernetes::{ARCH_LABEL, DEFAULT_CONTAINER_ANNOTATION};
use carrack_types::well_known::kubevirt::{
    APP_LABEL, COMPUTE_CONTAINER, CREATED_BY_LABEL, DOMAIN_ANNOTATION, KVM_RESOURCE, LAUNCHER,
    MIGRATION_TRANSPORT_UNIX_ANNOTATION, SCHEDULABLE_LABEL, TUN_RESOURCE, UNPAUSED_CONDITION, VHOST_NET_RESOURCE,
    VM_NAME_LABEL, VMI_ID_LABEL,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, DownwardAPIVolumeSource, EmptyDirVolumeSource, ExecAction,
    HostPathVolumeSource, Lifecycle, LifecycleHandler, LocalObjectReference, Node, PersistentVolumeClaimVolumeSource,
    Pod, PodReadinessGate, PodSpec, ResourceRequirements, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::overhead::memory_overhead_bytes;
use crate::controllers::Config;
use crate::identity::{label_value, launcher_pod_name};
use crate::paths;

/// Virtual CPUs that share one requested CPU, unless the cluster's settings say otherwise.
const CPU_ALLOCATION_RATIO: i64 = 10;
/// Seconds that a guest may take to shut down, unless its spec says otherwise.
pub(crate) const DEFAULT_GRACE_S: i64 = 30;
/// Seconds that the pod gets beyond its guest.
const POD_GRACE_EXTRA_S: i64 = 30;

/// The device resources that nodes ready for instances offer; nothing when no node is ready, and nobody knows yet.
pub(super) fn devices_on_offer<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<BTreeSet<&'static str>> {
    let mut ready = nodes.filter(|node| node.label(SCHEDULABLE_LABEL) == Some("true")).peekable();
    ready.peek()?;
    Some(
        ready
            .filter_map(|node| node.status.as_ref()?.capacity.as_ref())
            .flat_map(|capacity| {
                [KVM_RESOURCE, TUN_RESOURCE, VHOST_NET_RESOURCE]
                    .into_iter()
                    .filter(|name| capacity.get(*name).is_some_and(|amount| amount.0 != "0"))
            })
            .collect(),
    )
}

/// A number of bytes as a quantity.
pub(crate) fn bytes_quantity(bytes: u64) -> Quantity {
    const MIB: u64 = 1 << 20;
    Quantity(if bytes.is_multiple_of(MIB) { format!("{}Mi", bytes / MIB) } else { bytes.to_string() })
}

/// Builds the pod.
///
/// # Errors
/// Why the spec cannot be made into a pod, for people.
pub(super) fn build(
    vmi: &VirtualMachineInstance,
    cluster: &KubeVirt,
    offered: &BTreeSet<&'static str>,
    config: &Config,
) -> Result<Pod, String> {
    let spec = &vmi.spec;
    let mut volumes = Volumes::new(vmi, config);
    for volume in &spec.volumes {
        volumes.add(volume)?;
    }
    let settings = &cluster.spec.configuration;
    let mut node_selector = spec.node_selector.clone();
    node_selector.insert(SCHEDULABLE_LABEL.to_owned(), "true".to_owned());
    node_selector.insert(ARCH_LABEL.to_owned(), spec.architecture.clone().unwrap_or_else(|| "amd64".to_owned()));
    let compute = Container {
        name: COMPUTE_CONTAINER.to_owned(),
        image: Some(config.launcher_image.clone()),
        image_pull_policy: Some(
            settings
                .image_pull_policy
                .clone()
                .or_else(|| cluster.spec.image_pull_policy.clone())
                .unwrap_or_else(|| "IfNotPresent".to_owned()),
        ),
        args: Some(vec![
            "--name".to_owned(),
            vmi.name().to_owned(),
            "--namespace".to_owned(),
            vmi.namespace().to_owned(),
            "--uid".to_owned(),
            vmi.uid().to_owned(),
        ]),
        resources: Some(compute_resources(vmi, cluster, offered)?),
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            run_as_non_root: Some(false),
            privileged: Some(false),
            capabilities: Some(Capabilities { add: Some(vec!["NET_BIND_SERVICE".to_owned()]), drop: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(volumes.mounts),
        lifecycle: Some(power_button(vmi)),
        ..Container::default()
    };
    let mut containers = vec![compute];
    containers.append(&mut volumes.disk_containers);
    let grace_s = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_S);
    Ok(Pod {
        metadata: metadata(vmi),
        spec: Some(PodSpec {
            containers,
            volumes: Some(volumes.volumes),
            image_pull_secrets: (!volumes.pull_secrets.is_empty())
                .then(|| volumes.pull_secrets.into_iter().map(|name| LocalObjectReference { name }).collect()),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(grace_s.saturating_add(POD_GRACE_EXTRA_S)),
            node_selector: Some(node_selector),
            affinity: spec.affinity.clone(),
            tolerations: (!spec.tolerations.is_empty()).then(|| spec.tolerations.clone()),
            topology_spread_constraints: (!spec.topology_spread_constraints.is_empty())
                .then(|| spec.topology_spread_constraints.clone()),
            scheduler_name: spec.scheduler_name.clone(),
            priority_class_name: spec.priority_class_name.clone(),
            service_account_name: spec.service_account_name.clone().or(volumes.service_account),
            automount_service_account_token: Some(volumes.needs_token),
            enable_service_links: Some(false),
            hostname: Some(host_name(vmi)),
            subdomain: spec.subdomain.clone(),
            dns_policy: spec.dns_policy.clone(),
            dns_config: spec.dns_config.clone(),
            readiness_gates: Some(vec![PodReadinessGate { condition_type: UNPAUSED_CONDITION.to_owned() }]),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// QEMU does not end by a signal that asks. Whoever deletes the pod, and not the instance, presses the guest's power
/// button all the same, by the kubelet's hand.
fn power_button(vmi: &VirtualMachineInstance) -> Lifecycle {
    let command = ["/usr/bin/carrack", "virt-launcher", "shutdown", "--uid", vmi.uid()].map(str::to_owned).into();
    let exec = ExecAction { command: Some(command) };
    Lifecycle { pre_stop: Some(LifecycleHandler { exec: Some(exec), ..Default::default() }), ..Default::default() }
}

fn metadata(vmi: &VirtualMachineInstance) -> ObjectMeta {
    let mut labels = vmi.metadata.labels.clone().unwrap_or_default();
    for (key, value) in [
        (APP_LABEL, LAUNCHER.to_owned()),
        (CREATED_BY_LABEL, vmi.uid().to_owned()),
        (VM_NAME_LABEL, label_value(vmi.name())),
        (VMI_ID_LABEL, label_value(vmi.name())),
    ] {
        labels.insert(key.to_owned(), value);
    }
    let mut annotations: BTreeMap<String, String> = vmi
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| !key.starts_with("kubectl.kubernetes.io/") && !key.starts_with("kubevirt.io/"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for (key, value) in [
        (DOMAIN_ANNOTATION, vmi.name()),
        (MIGRATION_TRANSPORT_UNIX_ANNOTATION, "true"),
        (DEFAULT_CONTAINER_ANNOTATION, COMPUTE_CONTAINER),
        ("descheduler.alpha.kubernetes.io/request-evict-only", ""),
    ] {
        annotations.insert(key.to_owned(), value.to_owned());
    }
    ObjectMeta {
        name: Some(launcher_pod_name(vmi.name(), vmi.uid())),
        namespace: vmi.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![controller_ref(vmi)]),
        ..ObjectMeta::default()
    }
}

/// A pod's host name is one label: an instance's name up to its first dot.
fn host_name(vmi: &VirtualMachineInstance) -> String {
    let name = vmi.spec.hostname.as_deref().unwrap_or_else(|| vmi.name());
    let label: String = name.split('.').next().unwrap_or_default().chars().take(63).collect();
    label.trim_end_matches('-').to_owned()
}

type Amounts = BTreeMap<String, Quantity>;

fn compute_resources(
    vmi: &VirtualMachineInstance,
    cluster: &KubeVirt,
    offered: &BTreeSet<&'static str>,
) -> Result<ResourceRequirements, String> {
    let domain = &vmi.spec.domain;
    let developer = &cluster.spec.configuration.developer_configuration;
    let given = |amounts: &BTreeMap<String, carrack_types::kubevirt::Quantity>| -> Amounts {
        amounts.iter().map(|(name, amount)| (name.clone(), amount.clone().into())).collect()
    };
    let (mut requests, mut limits) = (given(&domain.resources.requests), given(&domain.resources.limits));
    let overhead = memory_overhead_bytes(domain);
    let guest = domain.guest_memory_bytes().ok_or("the guest's memory is not given")?;
    let with_overhead = |bytes: u64| bytes_quantity(bytes.saturating_add(overhead));
    let amount = |amounts: &BTreeMap<String, carrack_types::kubevirt::Quantity>| {
        amounts.get("memory").and_then(carrack_types::kubevirt::Quantity::units).and_then(|n| u64::try_from(n).ok())
    };
    // Overcommitted memory: the guest sees more than is asked for.
    let overcommit = u64::try_from(developer.memory_overcommit.unwrap_or(100)).unwrap_or(100).max(1);
    let request = amount(&domain.resources.requests).unwrap_or(guest.saturating_mul(100) / overcommit);
    let request_overhead = if domain.resources.overcommit_guest_overhead { 0 } else { overhead };
    requests.insert("memory".to_owned(), bytes_quantity(request.saturating_add(request_overhead)));
    if let Some(limit) = amount(&domain.resources.limits) {
        limits.insert("memory".to_owned(), with_overhead(limit));
    }
    if !requests.contains_key("cpu") {
        let ratio = developer.cpu_allocation_ratio.unwrap_or(CPU_ALLOCATION_RATIO).max(1);
        let millis = (i64::from(domain.vcpus()) * 1000 / ratio).max(1);
        let cpu = limits.get("cpu").cloned().unwrap_or_else(|| Quantity(format!("{millis}m")));
        requests.insert("cpu".to_owned(), cpu);
    }
    requests.entry("ephemeral-storage".to_owned()).or_insert_with(|| Quantity("50M".to_owned()));
    for device in devices_wanted(vmi, developer.use_emulation.unwrap_or(false)) {
        if offered.contains(device) {
            requests.insert(device.to_owned(), Quantity("1".to_owned()));
            limits.insert(device.to_owned(), Quantity("1".to_owned()));
        }
    }
    Ok(ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None })
}

/// The devices that an instance can make use of. With emulation neither KVM nor vhost-net is.
fn devices_wanted(vmi: &VirtualMachineInstance, emulate: bool) -> Vec<&'static str> {
    let interfaces = &vmi.spec.domain.devices.interfaces;
    let mut wanted = Vec::new();
    if !emulate {
        wanted.push(KVM_RESOURCE);
    }
    if interfaces.iter().any(|interface| interface.sriov.is_none()) {
        wanted.push(TUN_RESOURCE);
    }
    if !emulate && interfaces.iter().any(|i| i.sriov.is_none() && i.model.as_deref().unwrap_or("virtio") == "virtio") {
        wanted.push(VHOST_NET_RESOURCE);
    }
    wanted
}

/// The pod's volumes, and where the compute container finds them.
struct Volumes<'a> {
    vmi: &'a VirtualMachineInstance,
    config: &'a Config,
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    disk_containers: Vec<Container>,
    pull_secrets: BTreeSet<String>,
    service_account: Option<String>,
    needs_token: bool,
}

impl<'a> Volumes<'a> {
    fn new(vmi: &'a VirtualMachineInstance, config: &'a Config) -> Self {
        let mut this = Self {
            vmi,
            config,
            volumes: Vec::new(),
            mounts: Vec::new(),
            disk_containers: Vec::new(),
            pull_secrets: BTreeSet::new(),
            service_account: None,
            needs_token: false,
        };
        for (name, path) in paths::EMPTY_DIRS {
            let source = Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
            this.mount(name, source, path.to_owned(), false);
        }
        this
    }

    fn mount(&mut self, name: &str, source: Volume, path: String, read_only: bool) {
        self.volumes.push(Volume { name: name.to_owned(), ..source });
        self.mounts.push(VolumeMount {
            name: name.to_owned(),
            mount_path: path,
            read_only: read_only.then_some(true),
            ..VolumeMount::default()
        });
    }

    fn add(&mut self, volume: &VmiVolume) -> Result<(), String> {
        let name = volume.name.as_str();
        if let Some(disk) = &volume.container_disk {
            self.container_disk(name, disk);
        } else if let Some(claim) = volume.claim_name() {
            let read_only = volume.ephemeral.is_some();
            let source = PersistentVolumeClaimVolumeSource { claim_name: claim.to_owned(), read_only: None };
            let source = Volume { persistent_volume_claim: Some(source), ..Volume::default() };
            self.mount(name, source, paths::claim_dir(name), read_only);
        } else if let Some(cloud_init) = volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref())
        {
            if let Some(secret) = &cloud_init.user_data_secret_ref {
                self.secret(&format!("{name}-udata"), &secret.name, None, paths::user_data_secret_dir(name));
            }
            if let Some(secret) = &cloud_init.network_data_secret_ref {
                self.secret(&format!("{name}-ndata"), &secret.name, None, paths::network_data_secret_dir(name));
            }
        } else if let Some(source) = &volume.config_map {
            let source = ConfigMapVolumeSource {
                name: source.name.clone().unwrap_or_default(),
                optional: source.optional,
                ..ConfigMapVolumeSource::default()
            };
            self.mount(
                name,
                Volume { config_map: Some(source), ..Volume::default() },
                paths::config_map_dir(name),
                true,
            );
        } else if let Some(source) = &volume.secret {
            let secret = source.secret_name.clone().unwrap_or_default();
            self.secret(name, &secret, source.optional, paths::secret_dir(name));
        } else if let Some(source) = &volume.downward_api {
            let items = (!source.fields.is_empty()).then(|| source.fields.clone());
            let source = DownwardAPIVolumeSource { items, default_mode: None };
            let source = Volume { downward_api: Some(source), ..Volume::default() };
            self.mount(name, source, paths::downward_api_dir(name), true);
        } else if let Some(source) = &volume.service_account {
            self.service_account.clone_from(&source.service_account_name);
            self.needs_token = true;
        } else if volume.empty_disk.is_none() {
            let kind = volume.sources().first().copied().unwrap_or("without a source");
            return Err(format!("volume {name}: volumes of type {kind} are not supported"));
        }
        Ok(())
    }

    fn secret(&mut self, name: &str, secret: &str, optional: Option<bool>, path: String) {
        let source =
            SecretVolumeSource { secret_name: Some(secret.to_owned()), optional, ..SecretVolumeSource::default() };
        self.mount(name, Volume { secret: Some(source), ..Volume::default() }, path, true);
    }

    /// A container made from the disk's image. It does nothing; while it runs, the handler finds the disk in its root
    /// filesystem.
    fn container_disk(&mut self, name: &str, disk: &carrack_types::kubevirt::volumes::ContainerDiskSource) {
        const BIN: &str = "virt-bin-share-dir";
        if !self.volumes.iter().any(|volume| volume.name == BIN) {
            let source =
                HostPathVolumeSource { path: self.config.keep_alive_dir.clone(), type_: Some("Directory".to_owned()) };
            self.volumes.push(Volume { name: BIN.to_owned(), host_path: Some(source), ..Volume::default() });
        }
        self.pull_secrets.extend(disk.image_pull_secret.clone());
        let amounts = |cpu: &str, memory: &str| -> Option<Amounts> {
            Some([("cpu", cpu), ("memory", memory)].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned()))).into())
        };
        let guaranteed = self.vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement);
        let limits = amounts("10m", "40M");
        self.disk_containers.push(Container {
            name: paths::disk_container(name),
            image: Some(disk.image.clone()),
            image_pull_policy: disk.image_pull_policy.clone(),
            command: Some(vec![paths::KEEP_ALIVE.to_owned()]),
            resources: Some(ResourceRequirements {
                requests: if guaranteed { limits.clone() } else { amounts("1m", "1M") },
                limits,
                claims: None,
            }),
            security_context: Some(SecurityContext {
                run_as_user: Some(0),
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(vec![VolumeMount {
                name: BIN.to_owned(),
                mount_path: paths::KEEP_ALIVE_DIR.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            }]),
            ..Container::default()
        });
    }
}
