//! The launcher pod of an instance.
//!
//! Its shape is a contract with the node's handler and with everybody who looks at KubeVirt's pods: name, labels,
//! annotations, container names, directories, device requests. Two things are done otherwise than upstream:
//! containers of container disks are kept alive by a program that the handler puts on the node beforehand (upstream
//! copies one into each pod by an init container, which costs each start a container), and devices are asked for as
//! far as nodes have them, so that clusters without KVM or vhost-net run guests by emulation with no setting.

pub(super) mod consumer;
mod probes;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use carrack_engine::controller_ref;
use carrack_networks::NETWORKS_ANNOTATION;
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::kubevirt::{KubeVirt, VirtualMachineInstance};
use carrack_types::resource::Object;
use carrack_types::well_known::kubernetes::{ARCH_LABEL, DEFAULT_CONTAINER_ANNOTATION};
use carrack_types::well_known::kubevirt::{
    APP_LABEL, COMPUTE_CONTAINER, CONSOLE_LOG_CONTAINER, CPU_MANAGER_LABELS, CREATED_BY_LABEL, DEVICE_RESOURCES,
    DOMAIN_ANNOTATION, KVM_RESOURCE, LATEST_API_VERSION_ANNOTATION, LAUNCHER, LESS_SPACE_ANNOTATION,
    LOST_DEVICES_ANNOTATION, MIGRATION_TRANSPORT_UNIX_ANNOTATION, SCHEDULABLE_LABEL, SMBIOS_ANNOTATION,
    STORAGE_API_VERSION_ANNOTATION, TUN_RESOURCE, UNPAUSED_CONDITION, VHOST_NET_RESOURCE, VM_NAME_LABEL, VMI_ID_LABEL,
};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ExecAction, Lifecycle, LifecycleHandler, LocalObjectReference, Node, Pod,
    PodReadinessGate, PodSpec, ResourceRequirements, SecurityContext, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::overhead::given_overhead_bytes;
use crate::admission::OWN_ANNOTATIONS;
use crate::controllers::Config;
use crate::identity::{hashed_network, label_value, launcher_pod_name};
use crate::paths;
use volumes::Volumes;

/// Virtual CPUs that share one requested CPU, unless the cluster's settings say otherwise.
const CPU_ALLOCATION_RATIO: i64 = 10;
/// Seconds that a guest may take to shut down, unless its spec says otherwise.
pub(crate) const DEFAULT_GRACE_S: i64 = 30;
/// Seconds that the pod gets beyond its guest.
const POD_GRACE_EXTRA_S: i64 = 30;

/// The device resources that nodes ready for instances have; nothing when no node is ready, and nobody knows yet. One
/// that takes no pods, or of which nobody has told what it has, says nothing of those that will.
///
/// A kubelet that has started anew lists what its node had before, and none of it, until the node's handler is back with
/// its plugins. That counts as well: a launcher that did not ask for its devices would start without them, and its guest
/// would fail. What a node has lost for good, its handler says.
pub(super) fn devices_of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Option<BTreeSet<&'static str>> {
    let is_told = |node: &Node| node.status.as_ref().is_some_and(|status| status.capacity.is_some());
    let takes_pods = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable) != Some(true);
    let is_ready = |node: &&Node| node.label(SCHEDULABLE_LABEL) == Some("true") && takes_pods(node) && is_told(node);
    let mut ready = nodes.filter(is_ready).peekable();
    ready.peek()?;
    Some(ready.flat_map(|node| DEVICE_RESOURCES.into_iter().filter(|name| has_device(node, name))).collect())
}

fn has_device(node: &Node, name: &str) -> bool {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    let lost = node.annotation(LOST_DEVICES_ANNOTATION).unwrap_or_default();
    capacity.is_some_and(|listed| listed.contains_key(name)) && !lost.split(',').any(|gone| gone == name)
}

/// A number of bytes as a quantity.
pub(crate) fn bytes_quantity(bytes: u64) -> Quantity {
    const MIB: u64 = 1 << 20;
    Quantity(if bytes.is_multiple_of(MIB) { format!("{}Mi", bytes / MIB) } else { bytes.to_string() })
}

/// Builds the pod.
///
/// `blocks` are the claims among the instance's that are block devices.
///
/// # Errors
/// Why the spec cannot be made into a pod, for people.
pub(super) fn build(
    vmi: &VirtualMachineInstance,
    cluster: &KubeVirt,
    offered: &BTreeSet<&'static str>,
    blocks: &BTreeSet<&str>,
    config: &Config,
) -> Result<Pod, String> {
    let spec = &vmi.spec;
    let settings = &cluster.spec.configuration;
    let volumes = Volumes::of(vmi, blocks, config, settings)?;
    // What the instance says of a label counts.
    let mut node_selector = settings.developer_configuration.node_selectors.clone();
    node_selector.extend(spec.node_selector.clone());
    node_selector.insert(SCHEDULABLE_LABEL.to_owned(), "true".to_owned());
    if is_dedicated(vmi) {
        let [label, _] = CPU_MANAGER_LABELS;
        node_selector.insert(label.to_owned(), "true".to_owned());
    }
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
        volume_devices: (!volumes.devices.is_empty()).then_some(volumes.devices),
        lifecycle: Some(power_button(vmi)),
        liveness_probe: spec.liveness_probe.as_ref().map(|probe| probes::of(vmi, probe)),
        readiness_probe: spec.readiness_probe.as_ref().map(|probe| probes::of(vmi, probe)),
        // Why QEMU ended is told from its last lines.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        ..Container::default()
    };
    let mut containers = vec![compute];
    containers.extend(volumes.disk_containers);
    if spec.domain.devices.log_serial_console == Some(true)
        && spec.domain.devices.autoattach_serial_console != Some(false)
    {
        containers.push(console_log(vmi, settings, &containers[0]));
    }
    let grace_s = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_S);
    Ok(Pod {
        metadata: metadata(vmi, settings),
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
            runtime_class_name: settings.default_runtime_class.clone().filter(|class| !class.is_empty()),
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

/// Shows what the guest writes to its serial console as a container's log.
fn console_log(vmi: &VirtualMachineInstance, settings: &KubeVirtConfiguration, compute: &Container) -> Container {
    const VOLUMES: [&str; 3] = ["private", "public", paths::SOCKET_VOLUME];
    let mounts = compute.volume_mounts.iter().flatten().filter(|mount| VOLUMES.contains(&mount.name.as_str()));
    // What lies below another of them needs a place to be mounted on, which the other must let be made.
    let mounts =
        mounts.map(|mount| VolumeMount { read_only: (mount.name == "private").then_some(true), ..mount.clone() });
    Container {
        name: CONSOLE_LOG_CONTAINER.to_owned(),
        image: compute.image.clone(),
        image_pull_policy: compute.image_pull_policy.clone(),
        command: Some(["/usr/bin/carrack", "virt-launcher", "tail", "--uid", vmi.uid()].map(str::to_owned).into()),
        resources: Some(beside(vmi, settings, "guest-console-log", ["5m", "35M"], ["15m", "60M"])),
        security_context: Some(SecurityContext {
            run_as_user: Some(0),
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts.collect()),
        ..Container::default()
    }
}

/// What a container beside the launcher's asks for, and may use: CPU and memory as the cluster's settings have them for its kind,
/// or else as they are here. (Upstream: `GetSupportContainerRequest` and `GetSupportContainerLimit` in pkg/virt-config.)
fn beside(
    vmi: &VirtualMachineInstance,
    settings: &KubeVirtConfiguration,
    kind: &str,
    requests: [&str; 2],
    limits: [&str; 2],
) -> ResourceRequirements {
    let said = settings.support_container_resources.iter().find(|of| of.r#type == kind).map(|of| &of.resources);
    let amounts = |said: Option<&BTreeMap<String, carrack_types::kubevirt::Quantity>>, usual: [&str; 2]| -> Amounts {
        let amount = |(name, usual): (&str, &str)| {
            let said = said.and_then(|said| said.get(name)).filter(|said| said.millis().is_some_and(|n| n > 0));
            (name.to_owned(), said.map_or_else(|| Quantity(usual.to_owned()), |said| said.clone().into()))
        };
        ["cpu", "memory"].into_iter().zip(usual).map(amount).collect()
    };
    let limits = amounts(said.map(|said| &said.limits), limits);
    let requests = if is_guaranteed(vmi) { limits.clone() } else { amounts(said.map(|said| &said.requests), requests) };
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None }
}

/// Whether the pod has an annotation that its instance has: all are handed on, but those that speak of the object that they are
/// on, and what only our components say. (Upstream: `filterVMIAnnotationsForPod`.)
fn is_handed_on(annotation: &str) -> bool {
    const KEPT: [&str; 4] =
        [LATEST_API_VERSION_ANNOTATION, STORAGE_API_VERSION_ANNOTATION, SMBIOS_ANNOTATION, LESS_SPACE_ANNOTATION];
    !annotation.starts_with("kubectl.kubernetes.io/")
        && !OWN_ANNOTATIONS.contains(&annotation)
        && !KEPT.contains(&annotation)
}

fn metadata(vmi: &VirtualMachineInstance, settings: &KubeVirtConfiguration) -> ObjectMeta {
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
        .filter(|(key, _)| is_handed_on(key))
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
    if let Some(strings) = settings.smbios.as_ref().and_then(|strings| serde_json::to_string(strings).ok()) {
        annotations.insert(SMBIOS_ANNOTATION.to_owned(), strings);
    }
    if let Some(percent) = settings.developer_configuration.pvc_tolerate_less_space_up_to_percent {
        annotations.insert(LESS_SPACE_ANNOTATION.to_owned(), percent.to_string());
    }
    if let Some(networks) = attachments(vmi) {
        annotations.insert(NETWORKS_ANNOTATION.to_owned(), networks);
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

/// What Multus is asked for: a list of networks, each with the name that its interface gets in the pod.
fn attachments(vmi: &VirtualMachineInstance) -> Option<String> {
    let networks = vmi.spec.networks.iter().filter_map(|network| Some((network, network.multus.as_ref()?)));
    let asked: Vec<serde_json::Value> = networks
        .filter(|(_, multus)| !multus.default)
        .map(|(network, multus)| {
            let (namespace, name) =
                multus.network_name.split_once('/').unwrap_or((vmi.namespace(), &multus.network_name));
            let interface = format!("pod{}", hashed_network(&network.name));
            let mut asked = serde_json::json!({"name": name, "namespace": namespace, "interface": interface});
            let nic = vmi.spec.domain.devices.interfaces.iter().find(|nic| nic.name == network.name);
            if let Some(mac) = nic.and_then(|nic| nic.mac_address.as_ref()).filter(|mac| !mac.is_empty()) {
                asked["mac"] = mac.to_lowercase().replace('-', ":").into();
            }
            asked
        })
        .collect();
    (!asked.is_empty()).then(|| serde_json::Value::Array(asked).to_string())
}

/// A pod's host name is one label: an instance's name up to its first dot.
fn host_name(vmi: &VirtualMachineInstance) -> String {
    let name = vmi.spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or_else(|| vmi.name());
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
    let overhead = given_overhead_bytes(domain, &cluster.spec.configuration);
    let guest = domain.guest_memory_bytes().ok_or("the guest's memory is not given")?;
    let with_overhead = |bytes: u64| bytes_quantity(bytes.saturating_add(overhead));
    let amount = |amounts: &BTreeMap<String, carrack_types::kubevirt::Quantity>| {
        amounts.get("memory").and_then(carrack_types::kubevirt::Quantity::units).and_then(|n| u64::try_from(n).ok())
    };
    if let Some(size) = huge_page_size(vmi) {
        // The guest's memory lies in huge pages; what is asked for beside them is for the launcher alone.
        for amounts in [&mut requests, &mut limits] {
            amounts.insert(format!("hugepages-{size}"), bytes_quantity(guest));
            amounts.insert("memory".to_owned(), bytes_quantity(overhead));
        }
    }
    // Overcommitted memory: the guest sees more than is asked for.
    let overcommit = u64::try_from(developer.memory_overcommit.unwrap_or(100)).unwrap_or(100).max(1);
    // What is limited and not asked for is asked for as it is limited, as for any container.
    let said = amount(&domain.resources.requests).or_else(|| amount(&domain.resources.limits));
    let request = said.unwrap_or(guest.saturating_mul(100) / overcommit);
    let request_overhead = if domain.resources.overcommit_guest_overhead { 0 } else { overhead };
    if huge_page_size(vmi).is_none() {
        requests.insert("memory".to_owned(), bytes_quantity(request.saturating_add(request_overhead)));
        if let Some(limit) = amount(&domain.resources.limits) {
            limits.insert("memory".to_owned(), with_overhead(limit));
        }
    }
    if is_dedicated(vmi) {
        // Whole CPUs, and no more memory than is asked for: so the pod is Guaranteed, and its kubelet gives the CPUs to it
        // alone. (Upstream: `WithCPUPinning` in pkg/virt-controller/services/renderresources.go.)
        let isolated = domain.cpu.as_ref().is_some_and(|cpu| cpu.isolate_emulator_thread);
        let cpus = u64::from(domain.vcpus()).saturating_add(isolated.into());
        requests.insert("cpu".to_owned(), Quantity(cpus.to_string()));
        if huge_page_size(vmi).is_none() {
            requests.insert("memory".to_owned(), with_overhead(request.max(guest)));
        }
        for name in ["cpu", "memory"] {
            limits.extend(requests.get(name).map(|amount| (name.to_owned(), amount.clone())));
        }
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

/// Whether a machine's processors have CPUs of their own.
pub(super) fn is_dedicated(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement)
}

/// Whether the pod is to be Guaranteed: its machine's processors have CPUs of their own, or CPUs and memory are limited to what
/// is asked for. All its containers must be so then. (Upstream: `WantsToHaveQOSGuaranteed`.)
pub(super) fn is_guaranteed(vmi: &VirtualMachineInstance) -> bool {
    let resources = &vmi.spec.domain.resources;
    let millis = carrack_types::kubevirt::Quantity::millis;
    let is_all = |name: &str| {
        let limit = resources.limits.get(name).and_then(millis).filter(|limit| *limit > 0);
        limit.is_some() && resources.requests.get(name).map_or(limit, millis) == limit
    };
    is_dedicated(vmi) || ["cpu", "memory"].into_iter().all(is_all)
}

/// Size of the huge pages that an instance asks for.
fn huge_page_size(vmi: &VirtualMachineInstance) -> Option<&str> {
    vmi.spec.domain.memory.as_ref()?.hugepages.as_ref()?.page_size.as_deref()
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
