//! The arguments of the roles as processes of their own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

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
    /// What to log, as a number: upstream's way to say it, which goes before --log-level and CARRACK_LOG
    #[arg(long, value_name = "LEVEL")]
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
    #[arg(long, value_name = "PORT", default_value_t = 6443, value_parser = clap::value_parser!(u16).range(1..))]
    pub https_port: u16,
    /// Address range of services
    #[arg(long, value_name = "CIDR", default_value = "10.43.0.0/16", value_parser = super::parse_cidr)]
    pub service_cidr: String,
    /// Another name or address for the certificate
    #[arg(long, value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// How long everything goes on after the end was asked for, such as 20s, while /readyz says no already
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = delay)]
    pub shutdown_delay_duration: Duration,
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
  carrack scheduler --kubeconfig scheduler.yaml --config KubeSchedulerConfiguration.yaml

  # Its metrics, as the administrator
  curl -k --cert admin.crt --key admin.key https://127.0.0.1:10259/metrics")]
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
    /// Of several with the same Lease, work only when elected; so is the default scheduler unless its configuration or this says
    /// otherwise, and only ever one may then run
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// Where its metrics are
    #[command(flatten)]
    pub secure: SecureArgs<10259>,
}

/// Where a role serves its metrics; `PORT` is upstream's port.
#[derive(Debug, Clone, Args)]
pub struct SecureArgs<const PORT: u16> {
    /// Address on which /metrics and /healthz are served
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Port on which they are served; 0 for not at all
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    pub secure_port: u16,
    /// Certificate to serve with, in PEM; one is made without it
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
}

/// `carrack controllers`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs the controllers of workloads (Deployments, StatefulSets, DaemonSets, Jobs, CronJobs),
endpoints, disruption budgets, quotas, volumes, nodes' life, namespaces, service accounts and
certificates, the garbage collectors, and the attaching of disks. Of several, one works at a time:
they elect it by the Lease kube-system/kube-controller-manager.

Examples:
  carrack kubeconfig --user controllers > controllers.yaml
  carrack controllers --kubeconfig controllers.yaml

  # Its metrics, as the administrator
  curl -k --cert admin.crt --key admin.key https://127.0.0.1:10257/metrics")]
pub struct ControllersArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Work without election; only ever one may then run
    #[arg(long)]
    pub no_leader_elect: bool,
    /// Directory of the FlexVolume drivers that attach, detach and enlarge
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec")]
    pub flex_volume_plugin_dir: PathBuf,
    /// Where its metrics are
    #[command(flatten)]
    pub secure: SecureArgs<10257>,
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
    /// Where its metrics are
    #[command(flatten)]
    pub secure: SecureArgs<8443>,
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
  # With certificates that were made for it
  carrack kubelet --kubeconfig kubelet.yaml --node-name n1 \\
      --container-runtime-endpoint /run/containerd/containerd.sock \\
      --tls-cert-file n1.crt --tls-private-key-file n1.key --client-ca-file ca.crt

  # Joining with a bootstrap token alone: the credentials are asked for, and written to --kubeconfig
  carrack kubelet --bootstrap-kubeconfig token.yaml --kubeconfig kubelet.yaml \\
      --rotate-certificates --rotate-server-certificates")]
pub struct KubeletArgs {
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
    /// Certificates, or how to come by them
    #[command(flatten)]
    pub certificates: KubeletCertificateArgs,
    /// Upstream's configuration file: a KubeletConfiguration of kubelet.config.k8s.io/v1beta1
    #[arg(long, value_name = "FILE", env = "CARRACK_KUBELET_CONFIG")]
    pub config: Option<PathBuf>,
    /// Directory with further such files (*.conf), laid over that one in the order of their names
    #[arg(long, value_name = "DIRECTORY")]
    pub config_dir: Option<PathBuf>,
    /// Address of this node; without it the one that is listened on, or the one of the default route where that is any
    #[arg(long, value_name = "ADDRESS")]
    pub node_ip: Option<IpAddr>,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 10250)]
    pub port: u16,
    /// Socket of the container runtime; ours below the data directory without it
    #[arg(long, value_name = "SOCKET")]
    pub container_runtime_endpoint: Option<PathBuf>,
    /// How many containers that are over the node keeps; -1 for no limit
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    pub maximum_dead_containers: i32,
    /// How many of them a pod keeps of each of its containers; -1 for no limit
    #[arg(long, value_name = "COUNT", default_value_t = 1, allow_negative_numbers = true)]
    pub maximum_dead_containers_per_container: i32,
    /// How old they are at least before they go, such as 1m30s
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = carrack_kubelet::configuration::duration)]
    pub minimum_container_ttl_duration: std::time::Duration,
    /// How long a pod waits for a device or another resource that is not there, in seconds, before it is rejected
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub resource_wait: u64,
    /// Which plugins give credentials for registries: a CredentialProviderConfig of kubelet.config.k8s.io/v1, or a directory of them
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory of these plugins' programs
    #[arg(long, value_name = "DIRECTORY", requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// File that tells the boot's id instead of the kernel, for power cuts in tests
    #[arg(long, value_name = "FILE", env = "CARRACK_BOOT_ID_FILE", hide = true)]
    pub boot_id_file: Option<PathBuf>,
}

/// Flags of upstream's kubelet about certificates.
#[derive(Debug, Clone, Args)]
pub struct KubeletCertificateArgs {
    /// Kubeconfig with which a client certificate is asked for while --kubeconfig has no good one
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates that were asked for are kept; pki in the kubelet's directory without it
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// Exchange the client certificate before it ends
    #[arg(long)]
    pub rotate_certificates: bool,
    /// Ask for the certificate to serve with, and exchange it before it ends
    #[arg(long, conflicts_with = "tls_cert_file")]
    pub rotate_server_certificates: bool,
    /// Certificate to serve with, in PEM; one that nobody else has signed without it
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Certificate authority of the API server's client certificate, in PEM; that of --kubeconfig without it
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
}

/// `carrack virt-handler`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Drives the guests of one node, and serves their consoles and the device plugins for kvm, tun
and vhost-net. On the machine with the API server, carrack kubeconfig --user virt-handler with
--tls-dir makes the files that it takes.

Examples:
  carrack virt-handler --kubeconfig virt-handler.yaml --node-name n1 \\
      --tls-cert-file n1.crt --tls-private-key-file n1.key --client-ca-file ca.crt

  # On a machine that its watchdog resets when nothing of Carrack can stop its guests any more
  carrack node watchdog /dev/watchdog
  carrack virt-handler … --watchdog")]
pub struct VirtHandlerArgs {
    /// What every agent takes
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Port to listen on
    #[arg(long, value_name = "PORT", default_value_t = 8186)]
    pub port: u16,
    /// What guards the promise
    #[command(flatten)]
    pub guard: WatchdogArgs,
}

/// The machine's watchdog.
#[derive(Debug, Clone, Args)]
pub struct WatchdogArgs {
    /// Let the machine's watchdog reset it when guests that may be started elsewhere run and neither they nor this agent
    /// keep their node's promise. An agent that is killed then has about six seconds to come back, less where the driver makes less than
    /// eight seconds of the time; `carrack down` closes the watchdog, and comes before the machine itself is shut down
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "/dev/watchdog")]
    pub watchdog: Option<PathBuf>,
}

/// What resources of GPUs are called.
#[derive(Debug, Clone, Args)]
pub struct GpuNames {
    /// What names of resources and annotations begin with: PREFIX/vcuda-core, PREFIX/vcuda-memory. Another one than
    /// tencent.com is told to the API server, too, by its --gpu-prefix
    #[arg(long, value_name = "PREFIX", default_value = carrack_gpu_extender::DEFAULT_PREFIX)]
    pub resource_prefix: String,
}

/// `carrack gpu-extender`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
A scheduler extender that shares GPUs: pods ask for hundredths of a GPU (tencent.com/vcuda-core)
and for units of 256 MiB of its memory (tencent.com/vcuda-memory). One serves a cluster. The
scheduler has to be told of it; put it behind all other extenders:

  extenders:
  - urlPrefix: http://127.0.0.1:3456/scheduler
    filterVerb: predicates
    prioritizeVerb: priorities
    preemptVerb: preemption
    bindVerb: bind
    weight: 1
    httpTimeout: 10s
    nodeCacheCapable: true
    managedResources:
    - name: tencent.com/vcuda-core
    - name: tencent.com/vcuda-memory

Which GPUs a pod has is written into its annotations. Carrack's API server lets nobody else write
them; beside upstream's one, examples/gpu-annotations-policy.yaml does. Whoever reaches the
extender's address can have pods bound.

Examples:
  carrack kubeconfig --user gpu-extender > gpu-extender.yaml
  carrack gpu-extender --kubeconfig gpu-extender.yaml

  # For a scheduler on another machine, which has to show a certificate
  carrack gpu-extender --kubeconfig gpu-extender.yaml --listen 0.0.0.0:3456 \\
      --tls-cert-file extender.crt --tls-private-key-file extender.key --client-ca-file ca.crt")]
pub struct GpuExtenderArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Where to listen. Other addresses than the loopback one want --client-ca-file
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3456")]
    pub listen: SocketAddr,
    /// Certificate to serve HTTPS with, in PEM; HTTP without it
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Only answer those who show a certificate of this authority, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub client_ca_file: Option<PathBuf>,
    /// Names
    #[command(flatten)]
    pub names: GpuNames,
}

/// `carrack gpu-plugin`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The device plugin of one node with GPUs: it tells the kubelet how many there are, and puts those
into containers that the GPU extender has chosen for them. It takes the kubelet's credentials.

Examples:
  # NVIDIA's GPUs
  carrack gpu-plugin --kubeconfig kubelet.yaml --node-name n1

  # Two made-up ones of 16 GiB, to try things out
  carrack gpu-plugin --kubeconfig kubelet.yaml --node-name n1 --fake-gpus 2x16Gi

  # Which GPUs are there?
  carrack gpu-plugin --list")]
pub struct GpuPluginArgs {
    /// Path of the kubeconfig with the credentials of the node's kubelet (see carrack kubeconfig --user)
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", required_unless_present = "list")]
    pub kubeconfig: Option<PathBuf>,
    /// What to log
    #[command(flatten)]
    pub log: LogArgs,
    /// Where the node's state lives
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Name of this node; the host's name without it
    #[arg(long, value_name = "NAME", env = "CARRACK_NODE_NAME")]
    pub node_name: Option<String>,
    /// The kubelet's directory of device plugins; ours below the data directory without it
    #[arg(long, value_name = "DIR")]
    pub device_plugin_dir: Option<PathBuf>,
    /// Make GPUs up: COUNTxMEMORY, such as 2x16Gi or 2x16Gi,1x24Gi, or a file with a list of them in JSON
    #[arg(long, value_name = "GPUS")]
    pub fake_gpus: Option<String>,
    /// Print the GPUs of this machine as JSON, and end
    #[arg(long)]
    pub list: bool,
    /// Names
    #[command(flatten)]
    pub names: GpuNames,
}

/// `carrack hollow`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Each node registers, renews its Lease, and says of its pods that they run. Nothing runs. The
kubeconfig must be an administrator's: one process speaks for all nodes.

Examples:
  # Five nodes with two GPUs each
  carrack hollow --kubeconfig admin.yaml --nodes 5 \\
      --allocatable tencent.com/vcuda-core=200 --allocatable tencent.com/vcuda-memory=128

  # A hundred that take virtual machines, whose guests run at once
  carrack hollow --kubeconfig admin.yaml --nodes 100 --machines")]
pub struct HollowArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// How many nodes
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub nodes: u32,
    /// What their names begin with; a number follows
    #[arg(long, value_name = "PREFIX", default_value = "hollow-")]
    pub prefix: String,
    /// An amount that each has to give, as RESOURCE=AMOUNT, besides 64 CPUs, 256Gi of memory and room for 250 pods
    #[arg(long, value_name = "AMOUNT", value_parser = parse_amount)]
    pub allocatable: Vec<(String, String)>,
    /// How long a pod takes until it runs, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub start_after_ms: u64,
    /// Take virtual machines as well: the nodes have virt-handlers, and the devices that machines need
    #[arg(long)]
    pub machines: bool,
}

/// A duration as upstream's flags have it, or a number of seconds.
fn delay(text: &str) -> Result<Duration, String> {
    text.parse::<u64>().map(Duration::from_secs).or_else(|_| carrack_kubelet::configuration::duration(text))
}

fn parse_amount(text: &str) -> Result<(String, String), String> {
    let (name, amount) = text.split_once('=').ok_or_else(|| format!("{text:?} is not RESOURCE=AMOUNT"))?;
    carrack_types::quantity::Quantity::parse(amount).map_err(|e| e.to_string())?;
    Ok((name.to_owned(), amount.to_owned()))
}

/// `carrack local-storage`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Makes volumes for claims of the storage class carrack-local on this node's disk, below the data
directory, and is the CSI driver by which the kubelet uses them. `carrack up` runs it already.

Examples:
  carrack kubeconfig --user local-storage --node-name n1 > local-storage.yaml
  carrack local-storage --kubeconfig local-storage.yaml --node-name n1")]
pub struct LocalStorageArgs {
    /// What every role takes
    #[command(flatten)]
    pub role: RoleArgs,
    /// Where the node's volumes live
    #[command(flatten)]
    pub data_dir: DataDir,
    /// Name of this node; the host's name without it
    #[arg(long, value_name = "NAME", env = "CARRACK_NODE_NAME")]
    pub node_name: Option<String>,
    /// The kubelet's directory; the one of this data directory without it
    #[arg(long, value_name = "DIR")]
    pub kubelet_dir: Option<PathBuf>,
    /// File that tells the driver how to misbehave, for tests
    #[arg(long, value_name = "FILE", env = "CARRACK_STORAGE_FAULTS", hide = true)]
    pub faults: Option<PathBuf>,
}
