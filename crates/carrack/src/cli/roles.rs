//! The arguments of the roles as processes of their own.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::DataDir;
use super::access::AccessArgs;
use super::store::StoreArgs;

/// How a role reaches the API server, and what it logs.
#[derive(Debug, Clone, Args)]
pub struct RoleArgs {
    /// Path of the kubeconfig with this role's credentials (see carrack kubeconfig --user)
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: PathBuf,
    /// What to log
    #[command(flatten)]
    pub log: LogArgs,
}

/// What a role logs.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What to log: error, warn, info, debug, trace, or a list of MODULE=LEVEL
    #[arg(long, value_name = "FILTER", env = "CARRACK_LOG", default_value = "info")]
    pub log_level: String,
    /// What to log, as a number: upstream's way to say it
    #[arg(long, value_name = "LEVEL", conflicts_with = "log_level")]
    pub v: Option<u8>,
}

impl LogArgs {
    /// The filter.
    #[must_use]
    pub fn filter(&self) -> &str {
        match self.v {
            Some(level) => crate::logging::of_verbosity(level),
            None => &self.log_level,
        }
    }
}

/// `carrack apiserver`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Serves the Kubernetes API on the embedded store below the data directory, or on etcd, and makes
the cluster's certificates there. Several API servers on one etcd have the same certificates:
copy pki/ from one data directory to the others.

Examples:
  # The API alone
  carrack apiserver --data-dir /srv/api --https-port 7443

  # On etcd
  carrack apiserver --store etcd://10.0.0.1:2379,10.0.0.2:2379 --etcd-cafile etcd-ca.crt \\
      --etcd-certfile client.crt --etcd-keyfile client.key")]
pub struct ApiserverArgs {
    /// Where store and certificates live
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Where objects are kept
    #[command(flatten)]
    pub store: StoreArgs,
    /// Who may come in, and what is noted of it
    #[command(flatten)]
    pub access: AccessArgs,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    pub https_port: u16,
    /// Address range of services
    #[arg(long, value_name = "CIDR", default_value = "10.43.0.0/16", value_parser = super::parse_cidr)]
    pub service_cidr: String,
    /// Another name or address for the certificate
    #[arg(long, value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// Seconds that everything goes on after the end was asked for, while /readyz says no already
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub shutdown_delay_duration: u64,
    /// What to log
    #[command(flatten)]
    pub log: LogArgs,
}

/// `carrack scheduler`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  carrack kubeconfig --user scheduler > scheduler.yaml
  carrack scheduler --kubeconfig scheduler.yaml

  # With profiles and extenders
  carrack scheduler --kubeconfig scheduler.yaml --config KubeSchedulerConfiguration.yaml")]
pub struct SchedulerArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Which pods to schedule: those whose spec.schedulerName is this
    #[arg(long, value_name = "NAME", default_value = "default-scheduler", conflicts_with = "config")]
    pub scheduler_name: String,
    /// A KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1): profiles, plugins, extenders
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Of several with the same Lease, work only when elected
    #[arg(long)]
    pub leader_elect: bool,
}

/// `carrack controllers`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs the garbage collector and the namespace and service account controllers. Of several, one
works at a time: they elect it by the Lease kube-system/kube-controller-manager.

Examples:
  carrack kubeconfig --user controllers > controllers.yaml
  carrack controllers --kubeconfig controllers.yaml")]
pub struct ControllersArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Work without election; only ever one may then run
    #[arg(long)]
    pub no_leader_elect: bool,
}

/// `carrack virt-controller`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Of several, one works at a time: they elect it by the Lease kubevirt/virt-controller.

Examples:
  carrack kubeconfig --user virt-controller > virt-controller.yaml
  carrack virt-controller --kubeconfig virt-controller.yaml")]
pub struct VirtControllerArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Where the nodes' state lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Image of virt-launcher
    #[arg(long, value_name = "IMAGE")]
    pub launcher_image: Option<String>,
    /// Work without election; only ever one may then run
    #[arg(long)]
    pub no_leader_elect: bool,
}

/// What an agent of a node takes.
#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Where the node's state lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Name of this node; the host's name without it
    #[arg(long, value_name = "NAME", env = "CARRACK_NODE_NAME")]
    pub node_name: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Certificate to serve with, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: PathBuf,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: PathBuf,
    /// Certificate authority of the API server's client certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: PathBuf,
}

/// `carrack kubelet`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs the pods of one node on a containerd that is there already.

Examples:
  carrack kubelet --kubeconfig kubelet.yaml --node-name n1 \\
      --container-runtime-endpoint /run/containerd/containerd.sock \\
      --tls-cert-file n1.crt --tls-private-key-file n1.key --client-ca-file ca.crt")]
pub struct KubeletArgs {
    /// What every agent takes
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Upstream's configuration file: a KubeletConfiguration of kubelet.config.k8s.io/v1beta1
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of this node; the one of the default route without it
    #[arg(long, value_name = "ADDRESS")]
    pub node_ip: Option<IpAddr>,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub port: u16,
    /// Socket of the container runtime; ours below the data directory without it
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<PathBuf>,
    /// How long a pod waits for a device or another resource that is not there, in seconds, before it is rejected
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub resource_wait: u64,
    /// File that tells the boot's id instead of the kernel, for power cuts in tests
    #[arg(long, value_name = "FILE", env = "CARRACK_BOOT_ID_FILE", hide = true)]
    pub boot_id_file: Option<PathBuf>,
}

/// `carrack virt-handler`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Drives the guests of one node, and serves their consoles and the device plugins for kvm, tun
and vhost-net.

Examples:
  carrack virt-handler --kubeconfig virt-handler.yaml --node-name n1 \\
      --tls-cert-file n1.crt --tls-private-key-file n1.key --client-ca-file ca.crt")]
pub struct VirtHandlerArgs {
    /// What every agent takes
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 8186)]
    pub port: u16,
}
