//! The arguments of `carrack up`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::access::AccessArgs;
use super::roles::WatchdogArgs;
use super::store::StoreArgs;
use super::{DataDir, ImagesDir, parse_cidr};

/// `carrack up`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
All roles run in this one process, and containerd beside it. When the process ends, also by
kill -9, containers and guests run on, and the next `carrack up` takes them over.
`carrack down` stops everything.

With --nodes there is an agent's process for each node, which runs on, too. Machines that can be
started on another node stop when their node cannot reach the API server for 8 seconds (their
instances say kubevirt.io/failover: \"true\"), and start again when it is back.

Files, below the data directory:
  kubeconfig.yaml       the administrator's credentials (mode 0600)
  logs/carrack.log      what a detached cluster has to say; logs/containerd.log
  store/, pki/          all objects; certificates and keys
  containerd/           images, containers

Examples:
  # In the foreground; Ctrl+C ends it and leaves containers and guests running
  carrack up

  # In the background; returns when the node is ready
  carrack up --detach

  # Another build of the program, or other flags; guests do not notice
  carrack up --detach --replace

  # Three nodes on this machine, to see what becomes of a machine whose node dies
  carrack up --detach --nodes 3
  carrack node off node-2

  # A second cluster on the same machine
  carrack up --detach --data-dir /srv/two --https-port 7443 \\
      --kubelet-port 11250 --virt-handler-port 9186 --pod-cidr 10.52.0.0/24")]
pub struct UpArgs {
    /// Where the cluster lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Where objects are kept
    #[command(flatten)]
    pub store: StoreArgs,
    /// Who may come in, and what is noted of it
    #[command(flatten)]
    pub access: AccessArgs,
    /// Where images are built
    #[command(flatten)]
    pub images_dir: ImagesDir,
    /// A KubeSchedulerConfiguration for the scheduler: profiles, plugins, extenders
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Share GPUs between pods: runs the GPU extender at this address, and the scheduler asks it
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:3456")]
    pub gpu_extender: Option<SocketAddr>,
    /// Offer this machine's GPUs to pods: nvidia, or made-up ones as COUNTxMEMORY, such as 2x16Gi
    #[arg(long, value_name = "GPUS", requires = "gpu_extender")]
    pub gpus: Option<String>,
    /// File that tells the storage driver how to misbehave, for tests
    #[arg(long, value_name = "FILE", env = "CARRACK_STORAGE_FAULTS", hide = true)]
    pub storage_faults: Option<PathBuf>,
    /// Start in the background, and return when the node is ready
    #[arg(short, long)]
    pub detach: bool,
    /// Take the place of the cluster's process that runs already: end it, and go on from it with this program and these
    /// flags, which are looked at first. Containers and guests run on meanwhile
    #[arg(long)]
    pub replace: bool,
    /// With --detach: seconds to wait for the node to be ready
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(..=86400))]
    pub timeout: u64,
    /// Number of nodes on this machine, each with a network, a containerd and an agent of its own; without it, as many
    /// as the cluster has, and one in this process for a new cluster
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<u8>,
    /// Name of this node; without it the one that it has had since its first start, which was the host's name then
    #[arg(long, value_name = "NAME", env = "CARRACK_NODE_NAME")]
    pub node_name: Option<String>,
    /// Address of this node; without it the one that is listened on, or the one of the default route where that is any
    #[arg(long, value_name = "ADDRESS")]
    pub node_ip: Option<IpAddr>,
    /// Address on which the API server, the kubelet and virt-handler listen
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port of the API server
    #[arg(long, value_name = "PORT", default_value_t = 6443, value_parser = clap::value_parser!(u16).range(1..))]
    pub https_port: u16,
    /// Port of the kubelet
    #[arg(long, value_name = "PORT", default_value_t = 10250, value_parser = clap::value_parser!(u16).range(1..))]
    pub kubelet_port: u16,
    /// Port of virt-handler
    #[arg(long, value_name = "PORT", default_value_t = 8186, value_parser = clap::value_parser!(u16).range(1..))]
    pub virt_handler_port: u16,
    /// What guards the promise that its guests run under
    #[command(flatten)]
    pub guard: WatchdogArgs,
    /// Port on which the scheduler serves /metrics and /healthz; 0 for not at all
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub scheduler_port: u16,
    /// Port on which the controllers serve /metrics and /healthz; 0 for not at all
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub controllers_port: u16,
    /// Port on which virt-controller serves /metrics and /healthz; 0 for not at all
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub virt_controller_port: u16,
    /// Address range of this node's pods
    #[arg(long, value_name = "CIDR", default_value = "10.42.0.0/24", value_parser = parse_cidr)]
    pub pod_cidr: String,
    /// Address range of services
    #[arg(long, value_name = "CIDR", default_value = "10.43.0.0/16", value_parser = parse_cidr)]
    pub service_cidr: String,
    /// Another name or address for the API server's certificate
    #[arg(long, value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// Label of the node, as KEY=VALUE
    #[arg(long, value_name = "LABEL")]
    pub node_label: Vec<String>,
    /// Also write the kubeconfig to this file
    #[arg(long, value_name = "FILE")]
    pub write_kubeconfig: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a list of MODULE=LEVEL
    #[arg(long, value_name = "FILTER", env = "CARRACK_LOG", default_value = "info")]
    pub log_level: String,
    /// The kubelet's configuration: a KubeletConfiguration of kubelet.config.k8s.io/v1beta1
    #[arg(long, value_name = "FILE", env = "CARRACK_KUBELET_CONFIG")]
    pub kubelet_config: Option<PathBuf>,
    /// How long a pod waits for a device or another resource that is not there, in seconds, before it is rejected
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub resource_wait: u64,
    /// File that tells the boot's id instead of the kernel, for power cuts in tests
    #[arg(long, value_name = "FILE", env = "CARRACK_BOOT_ID_FILE", hide = true)]
    pub boot_id_file: Option<PathBuf>,
    /// Report progress on standard output for the process that waits; set by --detach
    #[arg(long, hide = true)]
    pub report: bool,
}
