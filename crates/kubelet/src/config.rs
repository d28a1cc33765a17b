//! What the kubelet is told about its node and its cluster.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use carrack_auth::tls::{ClientCa, Offered, Reloadable};
use carrack_engine::Time;
use carrack_engine::version::GIT_VERSION;
use carrack_engine::zpages::flagz::Flags;
use k8s_openapi::api::core::v1::Taint;

use crate::credentials::NodeCredentials;
use crate::static_url::StaticUrl;

/// How a kubelet hears of changes of the config maps and secrets that its pods refer to
/// (`configMapAndSecretChangeDetectionStrategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeDetection {
    /// Each is watched.
    #[default]
    Watch,
    /// Each is read again when it is a minute old.
    Cache,
    /// Each is read whenever its pod is looked at.
    Get,
}

impl ChangeDetection {
    /// Under upstream's name; the default without one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "" | "Watch" => Self::Watch,
            "Cache" => Self::Cache,
            "Get" => Self::Get,
            _ => return None,
        })
    }
    /// Upstream's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Watch => "Watch",
            Self::Cache => "Cache",
            Self::Get => "Get",
        }
    }
}

/// Where upstream's kubelet tells `/healthz` unless it is told otherwise.
pub const HEALTHZ: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10248);

/// What decisions rest on: values, no files and no sockets.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the Node object.
    pub node_name: String,
    /// Address to report; the machine's best one when empty.
    pub node_ips: Vec<IpAddr>,
    /// Labels put on the Node besides the usual ones.
    pub labels: BTreeMap<String, String>,
    /// Taints of a Node that this kubelet creates.
    pub taints: Vec<Taint>,
    /// How many pods fit.
    pub max_pods: u32,
    /// Name servers of pods with dnsPolicy ClusterFirst; the node's own when empty.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster's services.
    pub cluster_domain: String,
    /// Where pods find the API server (`KUBERNETES_SERVICE_HOST` and `_PORT`), when not at the
    /// `kubernetes` service's address.
    pub api_server: Option<(String, u16)>,
    /// The kubelet's directory, which holds `pods/` and `device-plugins/`.
    pub root_dir: String,
    /// Directory of FlexVolume drivers.
    pub volume_plugin_dir: String,
    /// The control plane attaches FlexVolumes to this node; else it does that itself (`enableControllerAttachDetach`).
    pub controller_attach: bool,
    /// Directory of the pods' logs.
    pub log_dir: String,
    /// Control group under which pods are put.
    pub cgroup_root: String,
    /// Port of the kubelet's server.
    pub port: u16,
    /// Where `/healthz` is told to everybody, over plain HTTP (`healthzBindAddress`, `healthzPort`); nowhere without it.
    pub healthz: Option<SocketAddr>,
    /// What the kubelet's server offers in a handshake (`tlsMinVersion`, `tlsCipherSuites`).
    pub offered: Offered,
    /// Port where what may be read is told to everybody over plain HTTP (`readOnlyPort`); nowhere where it is 0.
    pub read_only_port: u16,
    /// How often the runtime is listed.
    pub relist_period: Duration,
    /// How often the Lease is renewed; it lasts four times as long.
    pub lease_period: Duration,
    /// How often the Node's conditions are looked at.
    pub status_period: Duration,
    /// How old a Node status may get without a change.
    pub status_report_period: Duration,
    /// What is kept back from pods: CPU, memory, disk and process ids, in thousandths.
    pub reserved: crate::amount::Amounts,
    /// All pods together have no more than what is not kept back (`enforceNodeAllocatable`).
    pub enforce_pods: bool,
    /// Directory or file of static pods' manifests.
    pub static_pod_path: Option<String>,
    /// How often these are read.
    pub file_check_period: Duration,
    /// How old what pods are made of may be where nobody tells of changes: claims, volumes, classes (`syncFrequency`).
    pub sync_period: Duration,
    /// URL that static pods are read from, too.
    pub static_pod_url: Option<StaticUrl>,
    /// How often it is asked.
    pub http_check_period: Duration,
    /// When the node is low on something, and pods are evicted.
    pub eviction: crate::eviction::Thresholds,
    /// Which pods end when the machine is shut down, and how long each has.
    pub shutdown: crate::shutdown::Groups,
    /// How many containers that are over are kept.
    pub container_gc: crate::pods::dead::Policy,
    /// When images that nobody uses go.
    pub image_gc: crate::images::Policy,
    /// How many images are pulled at a time; all of them without a number.
    pub parallel_pulls: Option<usize>,
    /// Which images that are on the node a pod has to be able to pull, to use them.
    pub image_verification: crate::pulled::Verification,
    /// Size at which a container's log is put aside, in bytes; 0 for never.
    pub log_max_bytes: u64,
    /// Most files of one container's log, at least 2.
    pub log_max_files: usize,
    /// How often logs are looked at.
    pub log_monitor_period: Duration,
    /// Kernel settings that pods may change besides the safe ones; a `*` at the end stands for anything.
    pub allowed_sysctls: Vec<String>,
    /// How changes of config maps and secrets are heard of.
    pub change_detection: ChangeDetection,
    /// Whether devices must lie together on NUMA nodes, and those of what.
    pub topology: (crate::topology::Policy, crate::topology::Scope),
    /// Whether containers get CPUs of their own, and which.
    pub cpus: crate::cpus::CpuConfig,
    /// Whether containers have memory of NUMA nodes kept for them, and what no pod has.
    pub memory: crate::memory::MemoryConfig,
    /// The longest wait before a container is started again.
    pub restart_wait: Duration,
    /// Containers without a seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// Limits of CPU are quotas of time, over this period.
    pub cpu_quota: bool,
    /// The period of a quota.
    pub cpu_quota_period: Duration,
    /// Most processes of one pod.
    pub pod_pids: Option<u64>,
    /// Containers may use some of the node's swap (`memorySwap.swapBehavior: LimitedSwap`); else none.
    pub limited_swap: bool,
    /// When a container has no memory left one process of it is killed, and not all (`singleProcessOOMKill`). With the older
    /// control groups it is always one.
    pub single_process_oom_kill: bool,
    /// The kubelet's server lets those who may look into containers, run commands there and read logs.
    pub debugging: bool,
    /// It lets those who may read logs of the node read files below `/var/log` (`enableSystemLogHandler`).
    pub system_logs: bool,
    /// And it lets them ask for the logs of services (`enableSystemLogQuery`).
    pub log_queries: bool,
    /// Who shows nothing is the anonymous user to it, who may do what the API server says; else he is nobody.
    pub anonymous: bool,
    /// How long it believes what the API server says of a token (`authentication.webhook.cacheTTL`); without it tokens count for
    /// nothing.
    pub token_reviews: Option<Duration>,
    /// The kubelet creates its Node, and keeps its labels; else somebody else does, and it tells the status alone.
    pub register_node: bool,
    /// Most pods for each CPU; 0 for as many as there may be at all.
    pub pods_per_core: u32,
    /// The kubelet does not start on a machine with swap.
    pub fail_on_swap: bool,
    /// It does not start either on one whose kernel has other settings than upstream's kubelet counts on
    /// (`protectKernelDefaults`).
    pub protect_kernel: bool,
    /// How many events are written a second, and at once (`eventRecordQPS`, `eventBurst`); without it there is no limit.
    pub event_rate: Option<(u32, u32)>,
    /// File with the node's own name servers; none where pods get none of them.
    pub resolv_conf: Option<PathBuf>,
    /// How many images a Node lists, the largest first; all without a number.
    pub status_max_images: Option<usize>,
    /// What a cloud calls the machine, for a Node that this kubelet creates.
    pub provider_id: String,
    /// How long a pod that is bound here waits for a resource that is not there, before it is rejected.
    pub resource_wait: Duration,
    /// Version to report.
    pub version: String,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            node_ips: Vec::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            max_pods: 110,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            api_server: None,
            root_dir: "/var/lib/kubelet".into(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".into(),
            controller_attach: true,
            log_dir: "/var/log/pods".into(),
            cgroup_root: "kubepods".into(),
            port: 10250,
            healthz: None,
            offered: Offered::default(),
            read_only_port: 0,
            relist_period: Duration::from_secs(1),
            lease_period: Duration::from_secs(10),
            status_period: Duration::from_secs(10),
            status_report_period: Duration::from_secs(300),
            reserved: crate::amount::Amounts::new(),
            enforce_pods: true,
            static_pod_path: None,
            file_check_period: Duration::from_secs(20),
            sync_period: Duration::from_secs(60),
            static_pod_url: None,
            http_check_period: Duration::from_secs(20),
            eviction: crate::eviction::Thresholds::default(),
            shutdown: crate::shutdown::Groups::default(),
            container_gc: crate::pods::dead::Policy::default(),
            image_gc: crate::images::Policy::default(),
            // Upstream pulls one after the other unless it is told otherwise; a large image would hold up all pods.
            parallel_pulls: None,
            image_verification: crate::pulled::Verification::default(),
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            log_monitor_period: Duration::from_secs(10),
            allowed_sysctls: Vec::new(),
            change_detection: ChangeDetection::default(),
            topology: Default::default(),
            cpus: crate::cpus::CpuConfig::default(),
            memory: crate::memory::MemoryConfig::default(),
            restart_wait: crate::pods::backoff::MAX,
            seccomp_default: false,
            cpu_quota: true,
            cpu_quota_period: Duration::from_millis(100),
            pod_pids: None,
            limited_swap: false,
            single_process_oom_kill: false,
            debugging: true,
            system_logs: true,
            log_queries: false,
            anonymous: false,
            token_reviews: Some(Duration::from_secs(120)),
            register_node: true,
            pods_per_core: 0,
            // Upstream's default is another; where nobody swaps, swap is no reason not to start.
            fail_on_swap: false,
            protect_kernel: false,
            event_rate: Some((50, 100)),
            resolv_conf: Some("/etc/resolv.conf".into()),
            status_max_images: Some(50),
            provider_id: String::new(),
            resource_wait: Duration::from_secs(300),
            version: GIT_VERSION.into(),
        }
    }
}

impl NodeConfig {
    /// Directory of one pod.
    #[must_use]
    pub fn pod_dir(&self, uid: &str) -> String {
        format!("{}/pods/{uid}", self.root_dir)
    }
    /// Directory of one pod's logs.
    #[must_use]
    pub fn pod_log_dir(&self, pod: &crate::runtime::PodRef) -> String {
        format!("{}/{}", self.log_dir, pod.log_dir_name())
    }
}

/// How the kubelet's server identifies itself, and whom it believes.
#[derive(Clone)]
pub struct ServingTls {
    /// The certificate, which may be exchanged.
    pub certificate: Arc<Reloadable>,
    /// The authorities whose clients are believed, which may be exchanged.
    pub client_ca: Arc<ClientCa>,
    /// Common names that may use everything, besides members of `system:masters`: the API server's.
    pub allowed_names: Vec<String>,
}

impl std::fmt::Debug for ServingTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingTls").field("allowed_names", &self.allowed_names).finish_non_exhaustive()
    }
}

/// What the kubelet's process needs.
#[derive(Clone, Debug, Default)]
pub struct KubeletConfig {
    /// What decisions rest on.
    pub node: NodeConfig,
    /// CRI socket.
    pub runtime_endpoint: PathBuf,
    /// Address of the HTTPS server; its port is [`NodeConfig::port`]'s unless that is 0.
    pub listen: Option<SocketAddr>,
    /// Its identity. None serves nothing.
    pub serving: Option<ServingTls>,
    /// Where the node has credentials for registries of its own from.
    pub credentials: NodeCredentials,
    /// File with the boot's id; the kernel's own without it. Tests cut the power of a node that shares its kernel.
    pub boot_id_file: Option<PathBuf>,
    /// What the metrics tell of the process, in Prometheus' text form; nothing without it.
    pub process_metrics: Option<fn() -> String>,
    /// The API server, as measures of the requests to it name it.
    pub api_host: String,
    /// The command line of the process, for `/flagz`.
    pub flags: Flags,
    /// When the process began, where that is known, for `/statusz`.
    pub started: Option<Time>,
}
