//! The Node object: its registration, its status, its Lease
//! (kubernetes pkg/kubelet/nodestatus/setters.go for names and reasons).

use std::collections::BTreeMap;
use std::net::IpAddr;

use carrack_engine::Time;
use carrack_types::pod::resource_list;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures,
    NodeRuntimeHandler, NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::amount::{self, Amounts};
use crate::config::NodeConfig;
use crate::eviction::{Pressure, Signal};
use crate::runtime::{HandlerFeatures, HostFacts, ImageRecord, RuntimeInfo};
use crate::status::declared::declared;

/// Namespace of the nodes' leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What the node itself can give, without devices.
#[must_use]
pub fn allocatable(host: &HostFacts, config: &NodeConfig) -> BTreeMap<String, Quantity> {
    // What the hard eviction thresholds and the reservations leave, as upstream has it.
    let reserved = |name: &str| u64::try_from(config.reserved.get(name).copied().unwrap_or(0)).unwrap_or(u64::MAX);
    let less = |all: u64, signal: Signal| {
        all.saturating_sub(config.eviction.hard.get(&signal).map_or(0, |l| l.of(all)))
            .saturating_sub(reserved(signal.resource()) / 1000)
    };
    let cpu = match reserved("cpu") {
        0 => amount::plain(u64::from(host.cpus)),
        milli => Quantity(format!("{}m", (u64::from(host.cpus) * 1000).saturating_sub(milli))),
    };
    let huge: u64 = host.hugepages_bytes.values().sum();
    let mut out = BTreeMap::from([
        ("cpu".to_owned(), cpu),
        ("memory".to_owned(), amount::kibibytes(less(host.memory_bytes, Signal::MemoryAvailable).saturating_sub(huge))),
        ("ephemeral-storage".to_owned(), amount::plain(less(host.disk_bytes, Signal::NodefsAvailable))),
        ("pods".to_owned(), amount::plain(most_pods(host, config))),
    ]);
    for (size, bytes) in &host.hugepages_bytes {
        out.insert(hugepage_resource(*size), amount::plain(*bytes));
    }
    out
}

/// How many pods the node takes: as many as it may, and no more than so many for each CPU where that is said.
fn most_pods(host: &HostFacts, config: &NodeConfig) -> u64 {
    let of_cpus = u64::from(host.cpus) * u64::from(config.pods_per_core);
    let most = u64::from(config.max_pods);
    if config.pods_per_core > 0 { most.min(of_cpus) } else { most }
}

/// The resource that huge pages of a size in bytes are.
pub(crate) fn hugepage_resource(size: u64) -> String {
    match size {
        s if s >= 1 << 30 => format!("hugepages-{}Gi", s >> 30),
        s if s >= 1 << 20 => format!("hugepages-{}Mi", s >> 20),
        s => format!("hugepages-{}Ki", s >> 10),
    }
}

/// The same in thousandths.
#[must_use]
pub fn allocatable_amounts(host: &HostFacts, config: &NodeConfig) -> Amounts {
    amount::amounts(Some(&allocatable(host, config)))
}

/// What the status rests on.
pub struct Inputs<'a> {
    /// Now.
    pub now: Time,
    /// The machine.
    pub host: &'a HostFacts,
    /// The runtime; none while it has not answered.
    pub runtime: Option<&'a RuntimeInfo>,
    /// Why the runtime cannot be reached, if so.
    pub runtime_error: Option<&'a str>,
    /// Devices: capacity and allocatable.
    pub devices: &'a BTreeMap<String, (usize, usize)>,
    /// Images.
    pub images: &'a [ImageRecord],
    /// What the node is low on.
    pub pressure: Pressure,
    /// The machine is being shut down.
    pub goes_down: bool,
    /// Volumes that a control plane must not detach.
    pub volumes_in_use: Vec<String>,
    /// The node's settings.
    pub config: &'a NodeConfig,
}

/// All addresses of the node, the first of which says which family comes first.
fn all_addresses<'a>(host: &'a HostFacts, config: &'a NodeConfig) -> &'a [IpAddr] {
    if config.node_ips.is_empty() { &host.addresses } else { &config.node_ips }
}

/// Addresses of the node as text.
#[must_use]
pub fn addresses(host: &HostFacts, config: &NodeConfig) -> Vec<String> {
    pod_addresses(all_addresses(host, config), host, config)
}

/// Addresses of a pod, of all that its network has given it: the first of each family, since a status with more is refused, and
/// that of its node's family before the other (upstream's `sortPodIPs`, `pkg/kubelet/kubelet_pods.go`).
#[must_use]
pub fn pod_addresses(given: &[IpAddr], host: &HostFacts, config: &NodeConfig) -> Vec<String> {
    let first = |is_it: fn(&IpAddr) -> bool| given.iter().find(|ip| is_it(ip)).map(ToString::to_string);
    let mut out: Vec<String> = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten().collect();
    if all_addresses(host, config).first().is_some_and(IpAddr::is_ipv6) {
        out.reverse();
    }
    out
}

fn condition(
    old: Option<&NodeStatus>,
    now: Time,
    type_: &str,
    holds: bool,
    reason: &str,
    message: &str,
) -> NodeCondition {
    let status = if holds { "True" } else { "False" };
    let before = old.and_then(|s| s.conditions.iter().flatten().find(|c| c.type_ == type_));
    NodeCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(now.meta()),
        last_transition_time: match before {
            Some(c) if c.status == status => c.last_transition_time.clone(),
            _ => Some(now.meta()),
        },
    }
}

fn conditions(i: &Inputs<'_>, old: Option<&NodeStatus>) -> Vec<NodeCondition> {
    let Pressure { memory, disk, pid: pids } = i.pressure;
    let not_ready = match (i.runtime, i.runtime_error) {
        (_, Some(e)) => Some(format!("container runtime is down: {e}")),
        (None, None) => Some("container runtime status check may not have completed yet".into()),
        (Some(r), None) => r
            .not_ready
            .as_ref()
            .map(|e| format!("container runtime is not ready: {e}"))
            .or_else(|| r.network_not_ready.as_ref().map(|e| format!("container runtime network not ready: {e}"))),
    };
    let not_ready = match (not_ready, i.goes_down) {
        (Some(message), true) => Some(format!("[{message}, node is shutting down]")),
        (None, true) => Some("node is shutting down".to_owned()),
        (message, false) => message,
    };
    let one = |type_: &str, holds: bool, yes: (&str, &str), no: (&str, &str)| {
        let (reason, message) = if holds { yes } else { no };
        condition(old, i.now, type_, holds, reason, message)
    };
    let mut out = vec![
        one(
            "MemoryPressure",
            memory,
            ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ),
        one(
            "DiskPressure",
            disk,
            ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ),
        one(
            "PIDPressure",
            pids,
            ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ),
    ];
    out.push(match not_ready {
        None => condition(old, i.now, "Ready", true, "KubeletReady", "kubelet is posting ready status"),
        Some(message) => condition(old, i.now, "Ready", false, "KubeletNotReady", &message),
    });
    // Conditions that others own stay.
    for c in old.iter().flat_map(|s| s.conditions.iter().flatten()) {
        if !out.iter().any(|o| o.type_ == c.type_) {
            out.push(c.clone());
        }
    }
    out
}

/// The whole status, from the last one.
#[must_use]
pub fn node_status(i: &Inputs<'_>, old: Option<&NodeStatus>) -> NodeStatus {
    let mut status = old.cloned().unwrap_or_default();
    let mut allocatable = allocatable(i.host, i.config);
    let mut capacity = allocatable.clone();
    capacity.insert("cpu".into(), amount::plain(u64::from(i.host.cpus)));
    capacity.insert("memory".into(), amount::kibibytes(i.host.memory_bytes));
    capacity.insert("ephemeral-storage".into(), amount::kibibytes(i.host.disk_bytes));
    // What others advertised here by hand stays.
    for (list, old) in [
        (&mut capacity, old.and_then(|s| s.capacity.as_ref())),
        (&mut allocatable, old.and_then(|s| s.allocatable.as_ref())),
    ] {
        for (name, q) in old.into_iter().flatten().filter(|(n, _)| crate::devices::is_extended(n)) {
            list.insert(name.clone(), q.clone());
        }
    }
    for (name, (all, healthy)) in i.devices {
        capacity.insert(name.clone(), amount::plain(*all as u64));
        allocatable.insert(name.clone(), amount::plain(*healthy as u64));
    }
    status.capacity = Some(capacity);
    status.allocatable = Some(allocatable);
    status.conditions = Some(conditions(i, old));
    let mut list: Vec<NodeAddress> = addresses(i.host, i.config)
        .into_iter()
        .map(|address| NodeAddress { type_: "InternalIP".into(), address })
        .collect();
    let hostname = if i.host.hostname.is_empty() { &i.config.node_name } else { &i.host.hostname };
    list.push(NodeAddress { type_: "Hostname".into(), address: hostname.clone() });
    status.addresses = Some(list);
    // An empty list is told too, once there was one: a merge patch forgets nothing by leaving it out.
    if status.volumes_in_use.is_some() || !i.volumes_in_use.is_empty() {
        status.volumes_in_use = Some(i.volumes_in_use.clone());
    }
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(i.config.port) }) });
    let runtime_version = i
        .runtime
        .map(|r| format!("{}://{}", r.name, r.version))
        .or_else(|| old.and_then(|s| s.node_info.as_ref()).map(|n| n.container_runtime_version.clone()));
    status.node_info = Some(NodeSystemInfo {
        architecture: i.host.architecture.clone(),
        boot_id: i.host.boot_id.clone(),
        container_runtime_version: runtime_version.unwrap_or_default(),
        kernel_version: i.host.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: i.config.version.clone(),
        machine_id: i.host.machine_id.clone(),
        operating_system: "linux".into(),
        os_image: i.host.os_image.clone(),
        system_uuid: i.host.system_uuid.clone(),
        // Who has none says nothing.
        swap: (i.host.swap_bytes > 0).then(|| NodeSwapStatus { capacity: i64::try_from(i.host.swap_bytes).ok() }),
    });
    let mut images: Vec<&ImageRecord> = i.images.iter().filter(|r| !r.names.is_empty()).collect();
    images.sort_by(|a, b| b.size_bytes.cmp(&a.size_bytes).then_with(|| a.names.cmp(&b.names)));
    let images: Vec<ContainerImage> = images
        .into_iter()
        .take(i.config.status_max_images.unwrap_or(usize::MAX))
        .map(|r| ContainerImage {
            names: Some(r.names.iter().take(5).cloned().collect()),
            size_bytes: i64::try_from(r.size_bytes).ok(),
        })
        .collect();
    // As of the volumes: no empty list is stored, so it is told once.
    if status.images.is_some() || !images.is_empty() {
        status.images = Some(images);
    }
    if let Some(runtime) = i.runtime.filter(|runtime| !runtime.handlers.is_empty() || runtime.strict_groups) {
        status.features = Some(NodeFeatures { supplemental_groups_policy: Some(runtime.strict_groups) });
        let handler = |(name, can): (&String, &HandlerFeatures)| NodeRuntimeHandler {
            name: Some(name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(can.recursive_read_only),
                user_namespaces: Some(can.user_namespaces),
            }),
        };
        status.runtime_handlers = Some(runtime.handlers.iter().map(handler).collect());
    }
    status.declared_features = Some(declared(i.config).into_iter().map(str::to_owned).collect());
    status
}

/// Whether two statuses differ in more than heartbeats. Amounts are compared as amounts: the API server
/// shows 8388608Ki as 8Gi.
#[must_use]
pub fn differs(a: &NodeStatus, b: &NodeStatus) -> bool {
    let amounts = |s: &NodeStatus| (resource_list(s.capacity.as_ref()), resource_list(s.allocatable.as_ref()));
    if amounts(a) != amounts(b) {
        return true;
    }
    let strip = |s: &NodeStatus| {
        let mut s = s.clone();
        (s.capacity, s.allocatable) = (None, None);
        for c in s.conditions.iter_mut().flatten() {
            c.last_heartbeat_time = None;
        }
        s
    };
    strip(a) != strip(b)
}

/// Labels that this kubelet puts on its Node.
#[must_use]
pub fn labels(host: &HostFacts, config: &NodeConfig) -> BTreeMap<String, String> {
    let hostname = config.node_name.clone();
    let mut out = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), hostname),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), host.architecture.clone()),
        ("beta.kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("beta.kubernetes.io/arch".to_owned(), host.architecture.clone()),
    ]);
    out.extend(config.labels.clone());
    out
}

/// Annotation of Nodes: the control plane attaches what is attached to them.
pub const CONTROLLER_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// The Node to register.
#[must_use]
pub fn node(i: &Inputs<'_>) -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some(i.config.node_name.clone()),
            labels: Some(labels(i.host, i.config)),
            annotations: i
                .config
                .controller_attach
                .then(|| BTreeMap::from([(CONTROLLER_ATTACH.to_owned(), "true".to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(i.config.taints.clone()).filter(|t| !t.is_empty()),
            provider_id: Some(i.config.provider_id.clone()).filter(|id| !id.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(node_status(i, None)),
    }
}

/// The node's Lease, renewed now.
#[must_use]
pub fn lease(now: Time, config: &NodeConfig, node_uid: Option<&str>, old: Option<&Lease>) -> Lease {
    let duration_s = i32::try_from(config.lease_period.as_secs() * 4).unwrap_or(40);
    let mut lease = old.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            namespace: Some(LEASE_NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    if let Some(uid) = node_uid {
        // The Lease goes with the Node.
        lease.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: config.node_name.clone(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }]);
    }
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(config.node_name.clone()),
        lease_duration_seconds: Some(duration_s),
        renew_time: Some(now.meta_micro()),
        ..lease.spec.unwrap_or_default()
    });
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostFacts {
        HostFacts {
            cpus: 2,
            memory_bytes: 4 << 30,
            memory_available_bytes: 2 << 30,
            swap_bytes: 1 << 30,
            disk_bytes: 100 << 30,
            disk_available_bytes: 50 << 30,
            hugepages_bytes: BTreeMap::from([(2 << 20, 512 << 20)]),
            addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            ..HostFacts::default()
        }
    }

    fn check(host: &HostFacts, runtime: Option<&RuntimeInfo>, error: Option<&str>) -> BTreeMap<String, String> {
        let config = NodeConfig { node_name: "n".into(), ..NodeConfig::default() };
        let devices = BTreeMap::from([("d.io/kvm".to_owned(), (10, 7))]);
        let i = Inputs {
            now: Time::from_unix_s(1),
            host,
            runtime,
            runtime_error: error,
            devices: &devices,
            volumes_in_use: Vec::new(),
            images: &[],
            pressure: {
                let mut watch = crate::eviction::Watch::default();
                watch.observe(Time::from_unix_s(1), host, &config.eviction);
                watch.pressure(&config.eviction)
            },
            goes_down: false,
            config: &config,
        };
        let down = Inputs { goes_down: true, volumes_in_use: Vec::new(), ..i };
        let down = node_status(&down, None).conditions.unwrap();
        let ready = down.iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("KubeletNotReady")));
        assert!(ready.message.as_ref().unwrap().contains("node is shutting down"), "{ready:?}");
        let s = node_status(&i, None);
        assert_eq!(s.capacity.as_ref().unwrap()["d.io/kvm"].0, "10");
        assert_eq!(s.allocatable.as_ref().unwrap()["d.io/kvm"].0, "7");
        assert_eq!(s.allocatable.as_ref().unwrap()["hugepages-2Mi"].0, (512 << 20).to_string());
        assert_eq!(s.node_info.as_ref().unwrap().swap.as_ref().unwrap().capacity, Some(1 << 30));
        let had = NodeStatus { images: Some(vec![ContainerImage::default()]), ..s.clone() };
        assert_eq!([&s, &node_status(&i, Some(&had))].map(|status| status.images.clone()), [None, Some(Vec::new())]);
        assert!(!differs(&s, &node_status(&Inputs { now: Time::from_unix_s(9), ..i }, Some(&s))));
        s.conditions.unwrap().into_iter().map(|c| (c.type_, c.status)).collect()
    }

    #[test]
    fn conditions_follow_the_machine_and_the_runtime() {
        let ok = RuntimeInfo::default();
        let no_net = RuntimeInfo { network_not_ready: Some("cni".into()), ..RuntimeInfo::default() };
        let low_memory = HostFacts { memory_available_bytes: 1 << 20, ..host() };
        let full_disk = HostFacts { disk_available_bytes: 1 << 30, ..host() };
        for (host, runtime, error, expected) in [
            (host(), Some(&ok), None, ["True", "False", "False"]),
            (host(), None, None, ["False", "False", "False"]),
            (host(), Some(&no_net), None, ["False", "False", "False"]),
            (host(), Some(&ok), Some("refused"), ["False", "False", "False"]),
            (low_memory, Some(&ok), None, ["True", "True", "False"]),
            (full_disk, Some(&ok), None, ["True", "False", "True"]),
        ] {
            let got = check(&host, runtime, error);
            assert_eq!([&got["Ready"], &got["MemoryPressure"], &got["DiskPressure"]], expected);
        }
    }

    #[test]
    fn one_address_of_each_family_is_told_the_nodes_family_first() {
        let list = |text: &str| text.split_whitespace().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (node, given, expected) in [
            ("192.0.2.1", "10.0.0.2", "10.0.0.2"),
            ("192.0.2.1", "10.0.0.2 10.0.1.2", "10.0.0.2"),
            ("192.0.2.1", "fd00::2 fd00::3 10.0.0.2 10.0.1.2", "10.0.0.2 fd00::2"),
            ("2001:db8::1 192.0.2.1", "10.0.0.2 fd00::2", "fd00::2 10.0.0.2"),
            ("2001:db8::1", "10.0.0.2", "10.0.0.2"),
            ("", "fd00::2 10.0.0.2", "10.0.0.2 fd00::2"),
            ("192.0.2.1", "", ""),
        ] {
            let host = HostFacts { addresses: list(node), ..HostFacts::default() };
            let config = NodeConfig { node_ips: Vec::new(), ..NodeConfig::default() };
            assert_eq!(pod_addresses(&list(given), &host, &config).join(" "), expected, "{node}: {given}");
            // What the node is told to have counts, and not what it has.
            let config = NodeConfig { node_ips: list(node), ..NodeConfig::default() };
            let other = HostFacts { addresses: list("fd00::9"), ..HostFacts::default() };
            if !node.is_empty() {
                assert_eq!(pod_addresses(&list(given), &other, &config).join(" "), expected, "{node}: {given}");
            }
        }
    }

    #[test]
    fn a_node_takes_as_many_pods_as_it_may_and_its_cpus_bear() {
        for (max_pods, pods_per_core, expected) in [(110, 0, "110"), (110, 10, "20"), (15, 10, "15"), (110, 100, "110")]
        {
            let config = NodeConfig { max_pods, pods_per_core, ..NodeConfig::default() };
            assert_eq!(allocatable(&host(), &config)["pods"].0, expected, "{max_pods} {pods_per_core}");
        }
    }

    #[test]
    fn an_amount_written_another_way_is_no_change() {
        let status = |memory: &str| NodeStatus {
            capacity: Some(BTreeMap::from([("memory".to_owned(), Quantity(memory.to_owned()))])),
            ..NodeStatus::default()
        };
        assert!(!differs(&status("8388608Ki"), &status("8Gi")));
        assert!(differs(&status("8388608Ki"), &status("8Mi")));
        assert!(differs(&status("8Gi"), &NodeStatus::default()));
    }
}
