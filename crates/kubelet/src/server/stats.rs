//! What the node and its pods use, in the form of upstream's `stats/v1alpha1`: what metrics-server
//! and `kubectl get --raw /api/v1/nodes/NAME/proxy/stats/summary` read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use serde::Serialize;

/// Everything at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The node.
    pub node: NodeStats,
    /// Its pods.
    pub pods: Vec<PodStats>,
}

/// What a node uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    /// Its name.
    pub node_name: String,
    /// When it booted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MetaTime>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// Network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    /// File system of the kubelet's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    /// File systems of the container runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    /// Processes, and how many there may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<RlimitStats>,
    /// Swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
    /// What runs on it in control groups of its own: `pods` for all pods, and `kubelet`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
}

impl NodeStats {
    /// Processors and memory alone, swap with it.
    fn only_cpu_and_memory(self) -> Self {
        Self {
            node_name: self.node_name,
            start_time: self.start_time,
            cpu: self.cpu,
            memory: self.memory,
            swap: self.swap,
            system_containers: self.system_containers,
            ..Self::default()
        }
    }
}

impl Summary {
    /// Processors and memory alone, swap with it, for who asks for no more (`only_cpu_and_memory`).
    #[must_use]
    pub fn only_cpu_and_memory(self) -> Self {
        let container = |c: ContainerStats| ContainerStats { rootfs: None, logs: None, ..c };
        let pod = |p: PodStats| PodStats {
            containers: p.containers.into_iter().map(container).collect(),
            pod_ref: p.pod_ref,
            start_time: p.start_time,
            cpu: p.cpu,
            memory: p.memory,
            swap: p.swap,
            ..PodStats::default()
        };
        Self { node: self.node.only_cpu_and_memory(), pods: self.pods.into_iter().map(pod).collect() }
    }
}

/// File systems of the container runtime.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    /// Where images are; what they use of it.
    pub image_fs: FsStats,
    /// Where containers' writable layers are.
    pub container_fs: FsStats,
}

/// Processes of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RlimitStats {
    /// When it was read.
    pub time: MetaTime,
    /// Most process ids.
    #[serde(rename = "maxpid")]
    pub most: u64,
    /// Processes now.
    #[serde(rename = "curproc")]
    pub now: u64,
}

/// Use of swap, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    /// When it was read.
    pub time: MetaTime,
    /// What is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    /// What is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

/// Processes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// How many.
    pub process_count: u64,
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    /// Which.
    pub pod_ref: PodReference,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MetaTime>,
    /// Its containers.
    pub containers: Vec<ContainerStats>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    /// Network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    /// What it has on the node's disk: its containers' layers and logs, and its emptyDirs there.
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    /// Swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
    /// Volumes of drivers, and emptyDirs.
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    /// Processes.
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessStats>,
}

/// How full a volume is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStats {
    /// Its file system.
    #[serde(flatten)]
    pub fs: FsStats,
    /// Its name in the pod.
    pub name: String,
    /// Its claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<ClaimReference>,
    /// What its driver says of its health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_health_stats: Option<VolumeHealth>,
}

/// Names a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClaimReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// What a driver says of a volume's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeHealth {
    /// Something is wrong with it.
    pub abnormal: bool,
}

/// What went over a network: over the interface of the default route, and over all.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStats {
    /// When it was read.
    pub time: MetaTime,
    /// The interface of the default route.
    #[serde(flatten)]
    pub default: InterfaceStats,
    /// All.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStats>,
}

/// What went over a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    /// The interface.
    pub name: String,
    /// Bytes received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_bytes: Option<u64>,
    /// Errors in receiving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_errors: Option<u64>,
    /// Bytes sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_bytes: Option<u64>,
    /// Errors in sending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_errors: Option<u64>,
}

/// Names a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodReference {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// UID.
    pub uid: String,
}

/// What a container uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    /// Its writable layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    /// Its logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    /// Swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
    /// Its name.
    pub name: String,
    /// When it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MetaTime>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
}

/// Use of processors.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    /// When it was read.
    pub time: MetaTime,
    /// At present, in billionths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    /// Since the start, in nanoseconds of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
}

/// Use of memory, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    /// When it was read.
    pub time: MetaTime,
    /// What is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// All, caches included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// What cannot be taken back without swapping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    /// Anonymous memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    /// How often a page was not mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    /// How often it had to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
}

/// Use of a file system.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    /// When it was read.
    pub time: MetaTime,
    /// Free bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// Size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Used bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Free inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    /// Inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Used inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}
