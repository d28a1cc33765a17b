//! The container runtime as values: what the kubelet asks of it, and what it shows of itself.
//!
//! These mirror the CRI messages, narrowed to what is used and with ordered maps, so that a decision
//! core can make and compare them and the simulator can print them. The CRI adapter translates.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use carrack_engine::Time;

/// UID of a pod.
pub type Uid = Arc<str>;

/// Whether a text can be the UID of a pod: letters, digits, hyphens and underscores. It becomes a part of the paths of what is
/// made for a pod, and goes with it; it must not lead out of there, nor to all pods.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

/// Label and annotation names that the kubelet puts on sandboxes and containers. Tools (crictl, CNI
/// plugins) and a restarted kubelet of either make find pods by them.
pub mod labels {
    /// Pod name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Pod namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Pod UID.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Container name.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of what makes a container another one.
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: how often it was restarted.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path of the termination message inside the container.
    pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: the pod's grace period in seconds.
    pub const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// Annotation of ours: the CPUs and the memory that a container was made with, as JSON.
    pub const SIZE: &str = "carrack.io/size";
    /// Annotation of ours: the round of its pod that a container was made in ([`crate::pods::rounds`]); none for the first.
    pub const ROUND: &str = "carrack.io/round";

    /// The round that a value of [`ROUND`] tells.
    #[must_use]
    pub fn round(told: Option<&String>) -> u32 {
        told.and_then(|n| n.parse().ok()).unwrap_or(0)
    }
}

/// Names a pod for the runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
}

impl PodRef {
    /// Name of the directory of its logs, as upstream has it.
    #[must_use]
    pub fn log_dir_name(&self) -> String {
        format!("{}_{}_{}", self.namespace, self.name, self.uid)
    }

    /// Its name in messages, as upstream's `format.Pod` has it.
    #[must_use]
    pub fn described(&self) -> String {
        format!("{}_{}({})", self.name, self.namespace, self.uid)
    }
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// A namespace of the kernel, shared with whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All containers of the pod.
    #[default]
    Pod,
    /// Nobody.
    Container,
    /// The node.
    Node,
}

/// How system calls are filtered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// Not at all.
    #[default]
    Unconfined,
    /// As the runtime does by default.
    RuntimeDefault,
    /// By a profile in this file.
    Localhost(String),
}

/// Resource limits of a container or a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CFS period in microseconds; 0 for none.
    pub cpu_period_us: i64,
    /// CFS quota in microseconds; 0 for none.
    pub cpu_quota_us: i64,
    /// CPU shares of cgroup v1.
    pub cpu_shares: i64,
    /// Memory limit in bytes; 0 for none.
    pub memory_limit_bytes: i64,
    /// Adjustment of the out-of-memory killer's score.
    pub oom_score_adj: i64,
    /// Hugepage limits in bytes by page size in the runtime's notation, such as `2MB`.
    pub hugepages: BTreeMap<String, u64>,
    /// The only CPUs to run on, as the kernel writes them; empty where nobody says.
    pub cpus: String,
    /// The only NUMA nodes to have memory of, as the kernel writes them; empty where nobody says. Of containers alone.
    pub memory_nodes: String,
    /// Most processes; none for no limit. Of pods alone.
    pub pids: Option<u64>,
    /// Memory in bytes in proportion to which the machine's swap may be used; 0 for no swap. Of containers alone.
    pub swap_for_bytes: i64,
    /// When there is no memory left all of its processes are killed, and not one of them. Of containers alone.
    pub dies_whole: bool,
}

/// The control group of a pod: the parent of its containers' groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCgroup {
    /// Path below the hierarchy's root, such as `/kubepods/burstable/pod<uid>`.
    pub path: String,
    /// Its limits.
    pub resources: Resources,
}

/// A published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// In the pod.
    pub container_port: i32,
    /// On the node.
    pub host_port: i32,
    /// On which address of the node; empty for all.
    pub host_ip: String,
}

/// What a pod resolves names with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options of resolv.conf.
    pub options: Vec<String>,
}

/// A pod sandbox to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSpec {
    /// The pod.
    pub pod: PodRef,
    /// The how-manieth sandbox of the pod, from 0.
    pub attempt: u32,
    /// Hostname; empty for the node's own.
    pub hostname: String,
    /// Directory of the containers' logs.
    pub log_directory: String,
    /// Name resolution.
    pub dns: Dns,
    /// Published ports.
    pub ports: Vec<PortMapping>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Control group.
    pub cgroup: PodCgroup,
    /// Kernel settings.
    pub sysctls: BTreeMap<String, String>,
    /// Network namespace.
    pub network: Sharing,
    /// PID namespace.
    pub pid: Sharing,
    /// IPC namespace.
    pub ipc: Sharing,
    /// User of the sandbox's own process.
    pub run_as_user: Option<i64>,
    /// Group of the sandbox's own process.
    pub run_as_group: Option<i64>,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether one of its containers is privileged.
    pub privileged: bool,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// Labels of SELinux; the runtime's own without them.
    pub selinux: Option<SeLinux>,
    /// Handler of the pod's RuntimeClass; empty for the default one.
    pub runtime_handler: String,
}

/// Whether mounts made on one side show on the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// Neither way.
    #[default]
    Private,
    /// The node's mounts show in the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A directory or file of the node inside a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Nor what is mounted below it.
    pub recursive: bool,
    /// Propagation.
    pub propagation: Propagation,
    /// A path inside `host_path` to mount instead of it. It must stay inside whatever links it meets.
    pub sub_path: Option<SubPath>,
}

/// A part of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubPath {
    /// Relative path.
    pub path: String,
    /// Where the adapter binds what it found, so that the runtime cannot be led out of the volume.
    pub bind_at: String,
}

/// A device node inside a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNode {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// Letters of `rwm`.
    pub permissions: String,
}

/// Whom a container runs as and what it may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSecurity {
    /// Everything.
    pub privileged: bool,
    /// User; the image's when neither this nor the name is given.
    pub run_as_user: Option<i64>,
    /// User by the image's own name for it.
    pub run_as_username: String,
    /// Group.
    pub run_as_group: Option<i64>,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// Whether the root file system cannot be written.
    pub read_only_root: bool,
    /// Whether privileges cannot be gained by execve.
    pub no_new_privs: bool,
    /// Capabilities added.
    pub add_capabilities: Vec<String>,
    /// Capabilities dropped.
    pub drop_capabilities: Vec<String>,
    /// Paths of /proc hidden.
    pub masked_paths: Vec<String>,
    /// Paths of /proc that cannot be written.
    pub readonly_paths: Vec<String>,
    /// Seccomp profile.
    pub seccomp: Seccomp,
    /// AppArmor profile; the runtime's own choice without one.
    pub apparmor: Option<Seccomp>,
    /// Labels of SELinux; the runtime's own without them.
    pub selinux: Option<SeLinux>,
    /// It is in no other groups than these, whatever the image says.
    pub strict_groups: bool,
}

/// Labels of SELinux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeLinux {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// Level.
    pub level: String,
}

/// Files that the adapter makes before it creates a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFiles {
    /// Directory of the container's log.
    pub log_directory: String,
    /// Path and text of the /etc/hosts file, shared by the containers of the pod.
    pub hosts: Option<(String, String)>,
    /// Path on the node of the termination message; empty for none.
    pub termination_log: String,
}

/// A container to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its sandbox.
    pub sandbox_id: String,
    /// Its pod.
    pub pod: PodRef,
    /// Name.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// Image, as the runtime knows it.
    pub image_ref: String,
    /// Image, as the pod names it.
    pub image: String,
    /// Entrypoint; the image's when empty.
    pub command: Vec<String>,
    /// Arguments; the image's when empty and `command` is.
    pub args: Vec<String>,
    /// Working directory; the image's when empty.
    pub working_dir: String,
    /// Environment, in order.
    pub env: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<DeviceNode>,
    /// CDI device names.
    pub cdi_devices: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Log file, relative to the sandbox's log directory.
    pub log_path: String,
    /// Whether stdin stays open.
    pub stdin: bool,
    /// Whether stdin closes after the first attach.
    pub stdin_once: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Limits.
    pub resources: Resources,
    /// Security.
    pub security: ContainerSecurity,
    /// PID namespace.
    pub pid: Sharing,
    /// The container whose PID namespace is joined (ephemeral containers).
    pub target_id: String,
    /// Files to make first.
    pub files: ContainerFiles,
}

/// A sandbox as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRecord {
    /// Id.
    pub id: String,
    /// Pod.
    pub pod: PodRef,
    /// Attempt.
    pub attempt: u32,
    /// Whether it runs.
    pub ready: bool,
    /// When it was made.
    pub created_at: Time,
    /// Addresses; empty for a pod on the node's network.
    pub ips: Vec<IpAddr>,
    /// The handler of the runtime that runs it; empty for the default one.
    pub runtime_handler: String,
}

/// Where a container is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Made, never started.
    Created,
    /// Running.
    Running,
    /// Over.
    Exited {
        /// Exit code; 128 + n for signal n.
        code: i32,
        /// `Completed`, `Error`, `OOMKilled`…
        reason: String,
        /// What it left as its termination message, or what the runtime says.
        message: String,
        /// When.
        finished_at: Time,
    },
    /// The runtime cannot tell. It may be running.
    Unknown,
}

/// A container as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Id.
    pub id: String,
    /// Its sandbox.
    pub sandbox_id: String,
    /// Its pod.
    pub pod: PodRef,
    /// Name.
    pub name: String,
    /// Restart count.
    pub attempt: u32,
    /// State.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: Time,
    /// When it was started, if it was.
    pub started_at: Option<Time>,
    /// Image, as the pod named it.
    pub image: String,
    /// Image id as the status shows it.
    pub image_ref: String,
    /// Value of [`labels::CONTAINER_HASH`].
    pub hash: String,
    /// The round of its pod that it was made in ([`labels::ROUND`]).
    pub round: u32,
    /// How large it is.
    pub size: ContainerSize,
    /// Whom it began as, where the runtime tells.
    pub user: Option<RunsAs>,
}

/// Whom the first process of a container began as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunsAs {
    /// User.
    pub uid: i64,
    /// Group.
    pub gid: i64,
    /// Further groups.
    pub groups: Vec<i64>,
}

/// What is known of a container's size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSize {
    /// What it was made with: value of [`labels::SIZE`], where it has one.
    pub made_with: Option<String>,
    /// The limits that it has, where the runtime tells.
    pub actual: Option<Resources>,
}

impl ContainerRecord {
    /// Whether it may have a live process: created ones have none, unknown ones may.
    #[must_use]
    pub fn may_run(&self) -> bool {
        matches!(self.state, ContainerState::Running | ContainerState::Unknown)
    }
    /// Exit code, once over.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match &self.state {
            ContainerState::Exited { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// All that the runtime holds, from one listing: of every pod that it holds anything of, something is here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeSnapshot {
    /// Sandboxes that belong to pods.
    pub sandboxes: Vec<SandboxRecord>,
    /// Containers that belong to pods.
    pub containers: Vec<ContainerRecord>,
    /// Pods of which something is there that could not be read, and why: what is listed of them is not all.
    pub unread: BTreeMap<Uid, String>,
}

/// An image present on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRecord {
    /// Id.
    pub id: String,
    /// Tags and digests.
    pub names: Vec<String>,
    /// Repository digest to show as the image id of a container, if it has one.
    pub digest: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether it must stay.
    pub pinned: bool,
    /// The image's user, when numeric.
    pub uid: Option<i64>,
    /// The image's user, when a name.
    pub username: String,
}

/// What the runtime says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Such as `containerd`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// None when ready, else why not.
    pub not_ready: Option<String>,
    /// None when the network is ready, else why not.
    pub network_not_ready: Option<String>,
    /// It gives containers no other groups than they are to have.
    pub strict_groups: bool,
    /// What its handlers can, by their names; the default one's is empty.
    pub handlers: BTreeMap<String, HandlerFeatures>,
}

/// What a handler of the runtime can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    /// Mounts that cannot be written, nor what is mounted below them.
    pub recursive_read_only: bool,
    /// User namespaces.
    pub user_namespaces: bool,
}

/// What the kubelet knows of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Changes with each boot.
    pub boot_id: String,
    /// When the machine booted.
    pub booted_at: Time,
    /// /etc/machine-id.
    pub machine_id: String,
    /// The firmware's UUID.
    pub system_uuid: String,
    /// Kernel release.
    pub kernel_version: String,
    /// PRETTY_NAME of os-release.
    pub os_image: String,
    /// In Go's words: `amd64`, `arm64`.
    pub architecture: String,
    /// Hostname.
    pub hostname: String,
    /// CPUs online.
    pub cpus: u32,
    /// How they lie together.
    pub cpu_topology: crate::cpus::Topology,
    /// NUMA nodes online.
    pub numa_nodes: Vec<u32>,
    /// What memory each of them has; nothing where the machine does not tell.
    pub numa_memory: crate::memory::Machine,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Memory that can be had without swapping, in bytes.
    pub memory_available_bytes: u64,
    /// Swap, in bytes.
    pub swap_bytes: u64,
    /// Memory that all pods together may have, in bytes; 0 where nothing bounds it but the machine.
    pub pods_memory_bytes: u64,
    /// What of it they do not use.
    pub pods_memory_available_bytes: u64,
    /// Hugepages reserved, in bytes by size in bytes.
    pub hugepages_bytes: BTreeMap<u64, u64>,
    /// Size of the file system of the kubelet's directory, in bytes.
    pub disk_bytes: u64,
    /// Free bytes of it.
    pub disk_available_bytes: u64,
    /// Images have a file system of their own.
    pub images_apart: bool,
    /// Size of the file system of the images, in bytes.
    pub image_disk_bytes: u64,
    /// Free bytes of it.
    pub image_disk_available_bytes: u64,
    /// Inodes of it; 0 where it does not count them.
    pub image_inodes: u64,
    /// Free inodes of it.
    pub image_inodes_free: u64,
    /// Inodes of the kubelet's file system; 0 where it does not count them.
    pub inodes: u64,
    /// Free inodes of that.
    pub inodes_free: u64,
    /// Largest number of processes.
    pub pids_max: u64,
    /// Processes now.
    pub pids: u64,
    /// Addresses of the node, best first.
    pub addresses: Vec<IpAddr>,
    /// Name servers and search domains of the node itself.
    pub resolver: Dns,
    /// The kernel enforces AppArmor profiles.
    pub apparmor: bool,
}

#[cfg(test)]
mod tests {
    use super::is_uid;

    #[test]
    fn a_uid_leads_nowhere() {
        for (text, expected) in [
            ("5d1f9a52-5a2c-4d6b-9f57-0c1d0f6f4a11", true),
            ("6c62272e07bb014262b821756295c58d", true),
            ("uid_1", true),
            ("", false),
            (".", false),
            ("..", false),
            ("/", false),
            ("a/../../b", false),
            ("a b", false),
            ("\u{fc}", false),
        ] {
            assert_eq!(is_uid(text), expected, "{text:?}");
        }
    }
}
