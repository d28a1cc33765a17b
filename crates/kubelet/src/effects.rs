//! What the kubelet's core asks of the node, and how the answers come back.
//!
//! Every [`Op`] carries an id; its [`Outcome`] returns under the same id, also when it failed. An
//! operation whose outcome never returns (the shell died) is found out about from the next listing of
//! the runtime, from the local record, or by doing it again: all of them may be done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::devices::AllocateReply;
use crate::runtime::{
    ContainerRecord, ContainerSpec, HostFacts, ImageRecord, RuntimeInfo, RuntimeSnapshot, SandboxRecord, SandboxSpec,
    Uid,
};
use crate::spec::env_file::{EnvFile, EnvFiles};
use crate::spec::manifest::Source;
use crate::volumes::staged::StageInputs;
use crate::volumes::{CsiNodeInfo, Published, Staging, VolumeSetup};

/// Names an operation in flight. Later operations have larger ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// An operation asked of the node.
#[derive(Clone, Debug)]
pub struct Out {
    /// Its id.
    pub id: OpId,
    /// What to do.
    pub op: Op,
}

/// A network probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetAction {
    /// HTTP GET; 200 to 399 is success, for a hook any answer.
    Http {
        /// `http` or `https` (whose certificate is not checked).
        https: bool,
        /// Host to connect to.
        host: String,
        /// Port.
        port: u16,
        /// Path with query.
        path: String,
        /// Headers.
        headers: Vec<(String, String)>,
        /// Of a hook: whoever answers has been told, whatever he says of it (upstream's `runHTTPHandler`, `pkg/kubelet/lifecycle`).
        is_hook: bool,
    },
    /// A TCP connection; success when it opens.
    Tcp {
        /// Host.
        host: String,
        /// Port.
        port: u16,
    },
    /// gRPC health checking (`grpc.health.v1`); success when it says SERVING.
    Grpc {
        /// Host.
        host: String,
        /// Port.
        port: u16,
        /// The service asked about; empty for the server as a whole.
        service: String,
    },
}

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegistryAuth {
    /// The registry that they are for, as its secret says.
    pub server: String,
    /// User.
    pub username: String,
    /// Password.
    pub password: String,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryAuth").field("server", &self.server).finish_non_exhaustive()
    }
}

/// A probe that was answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeCount {
    /// Pod.
    pub pod: crate::runtime::PodRef,
    /// Container.
    pub container: String,
    /// `Startup`, `Liveness` or `Readiness`.
    pub kind: &'static str,
    /// `successful`, `failed` or `unknown`.
    pub result: &'static str,
}

/// What is counted for the metrics, one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A probe's answer.
    Probe(ProbeCount),
    /// An image that was pulled: its size in bytes, and how long that took.
    ImagePull(u64, std::time::Duration),
    /// A pod that runs for the first time, so long after it was seen for the first time.
    PodStart(std::time::Duration),
    /// One more of what is counted by a word.
    Tally(Tally, String),
}

/// What is counted by a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tally {
    /// Pods that made room for critical ones, by the resource that these lacked (upstream's `preemption_signal`).
    Preempted,
    /// Pods that were rejected, by why.
    Rejected,
    /// Images that nobody used and that were removed, by what for: `space` or `age`.
    Collected,
    /// Registrations of device plugins, by resource.
    Registered,
    /// Pods that had to go, by what for: a signal's name, or the limit that they did not keep to (upstream's `eviction_signal`).
    Evicted,
    /// Containers that are started, by type (upstream's `container_type`).
    Started,
}

/// Something to do on the node.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read the local record, the device checkpoint and the facts of the machine.
    Load,
    /// Read the manifests of static pods that are in one place, completely or not at all.
    ReadManifests(Source),
    /// Read the facts of the machine again.
    Host,
    /// Ask the runtime for its name, version and readiness.
    RuntimeInfo,
    /// List all sandboxes and containers, completely or not at all.
    Relist,
    /// List images.
    ListImages,
    /// Remove an image, by its id.
    RemoveImage(String),
    /// Measure what these pods use.
    Usage(BTreeSet<Uid>),
    /// Look for one image.
    FindImage(String),
    /// Pull an image, with each of these credentials in turn, then with each of the node's own; with none where there are none.
    PullImage {
        /// Image, as the pod names it.
        image: String,
        /// Credentials for its registry.
        auths: Vec<RegistryAuth>,
    },
    /// Run a sandbox.
    RunSandbox(Arc<SandboxSpec>),
    /// Stop a sandbox and tear its network down. Success is the acknowledgement of CNI DEL.
    StopSandbox(String),
    /// Forget a stopped sandbox.
    RemoveSandbox(String),
    /// Read files of a pod's volumes that a container gets variables from, each with the directory of its volume.
    ReadEnvFiles(BTreeMap<EnvFile, String>),
    /// Make a container and the files it needs.
    CreateContainer(Arc<SandboxSpec>, Box<ContainerSpec>),
    /// Start a container that was made.
    StartContainer(String),
    /// Let a running container have these CPUs and this memory; all else of it stays as it is.
    UpdateContainer {
        /// Container.
        id: String,
        /// Its limits.
        limits: Box<crate::runtime::Resources>,
    },
    /// Read how a pod's control group is limited, and what is used in it.
    ReadGroup {
        /// The group.
        path: String,
        /// Containers whose use of memory is to be known.
        containers: Vec<String>,
    },
    /// Stop a container: its stop signal, then after a time SIGKILL.
    StopContainer {
        /// Container.
        id: String,
        /// Seconds until SIGKILL.
        timeout_s: i64,
    },
    /// Let a running container run on these CPUs.
    GiveCpus {
        /// Container.
        id: String,
        /// CPUs.
        cpus: crate::cpus::CpuSet,
    },
    /// Forget a container that is over.
    RemoveContainer(String),
    /// Put logs aside that have grown too large, and let the runtime open new ones.
    RotateLogs {
        /// Running containers with the paths of their logs.
        logs: Vec<(String, String)>,
        /// Size from which a log is put aside, in bytes.
        max_bytes: u64,
        /// Most files of one container's log, the open one included.
        max_files: usize,
    },
    /// Run a command in a container.
    Exec {
        /// Container.
        id: String,
        /// Command.
        command: Vec<String>,
        /// Seconds until it counts as failed; 0 for never.
        timeout_s: i64,
    },
    /// Connect to something.
    Net {
        /// What.
        action: NetAction,
        /// Seconds until it counts as failed.
        timeout_s: i64,
    },
    /// Make a volume ready, or make sure that it is.
    SetUpVolume(Box<VolumeSetup>),
    /// Undo a volume's mounts. Contents of the pod's directory go with [`Op::RemovePod`].
    TearDownVolume {
        /// Pod.
        uid: Uid,
        /// Name in the pod.
        name: String,
        /// Directory of the volume.
        path: String,
        /// A driver's volume: its driver is told.
        published: Option<Box<Published>>,
    },
    /// Make a volume ready for the node, or make sure that it is.
    StageVolume(Box<Staging>, StageInputs),
    /// Undo that. Fails while anybody has it: a mount in any mount namespace, or the device open.
    UnstageVolume(Box<Staging>),
    /// Ask a FlexVolume driver whether it attaches.
    AskDriver(String),
    /// Ask a CSI driver again what it says of this node.
    AskCsiNode(String),
    /// Let a volume's device and file system follow its size.
    ExpandVolume(Box<crate::volumes::Expanding>),
    /// Remove a pod's directories and its control group. Fails while something is mounted there.
    RemovePod {
        /// Pod.
        uid: Uid,
        /// Control group.
        cgroup: String,
        /// Directory of its logs.
        log_directory: String,
    },
    /// Hold the machine up no more: it may go down.
    LetGoDown,
    /// Remove the control groups of all pods but these. Fails while one of another pod stays.
    SweepGroups {
        /// The group that all of them are in.
        root: String,
        /// Pods that are here.
        keep: BTreeSet<Uid>,
    },
    /// Make the control groups that pods are in, with these limits.
    WriteGroups(Vec<crate::runtime::PodCgroup>),
    /// Keep a document in the local record, durably, before success is reported.
    SaveRecord {
        /// Which.
        name: String,
        /// JSON.
        body: Vec<u8>,
    },
    /// Drop a document from the local record.
    DropRecord(String),
    /// Keep the device manager's checkpoint, durably.
    SaveCheckpoint(Vec<u8>),
    /// Keep the CPU manager's state, durably.
    SaveCpus(Vec<u8>),
    /// Keep the memory manager's state, durably.
    SaveMemory(Vec<u8>),
    /// Keep what is allocated to pods, durably.
    SaveAllocated(Vec<u8>),
    /// Keep what of it was brought about, durably.
    SaveActuated(Vec<u8>),
    /// Ask a plugin for devices.
    Allocate {
        /// Resource.
        resource: String,
        /// Registration that the plugin must still have.
        epoch: u64,
        /// Devices.
        ids: BTreeSet<String>,
    },
    /// Ask a plugin which devices it would rather give.
    Prefer {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
        /// Devices to choose from.
        available: BTreeSet<String>,
        /// Those of them that are chosen already.
        required: BTreeSet<String>,
        /// How many.
        count: usize,
    },
    /// Tell a plugin that a container with these devices is about to start.
    PreStart {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
        /// Devices.
        ids: BTreeSet<String>,
    },
    /// Count a probe's answer, or a pod that had to go, for the metrics. No outcome returns.
    Count(Counted),
    /// Show the devices to those who ask. No outcome returns.
    PublishDevices(Arc<crate::devices::DeviceView>),
    /// Show how many volumes there are to those who ask. No outcome returns.
    PublishVolumes(crate::volumes::Census),
    /// Show what is counted of resizes to those who ask. No outcome returns.
    PublishResizes(Box<crate::allocation::ResizeCounts>),
    /// Show the pods to the kubelet's own server. No outcome returns.
    Publish(Vec<Arc<Pod>>),
}

/// How an operation ended, when it did not fail.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Nothing to tell.
    Done,
    /// Of [`Op::Load`].
    Loaded(Box<Loaded>),
    /// Of [`Op::ReadManifests`].
    Manifests(Vec<crate::spec::manifest::Manifest>),
    /// Of [`Op::Host`].
    Host(Box<HostFacts>),
    /// Of [`Op::RuntimeInfo`].
    RuntimeInfo(RuntimeInfo),
    /// Of [`Op::Relist`].
    Snapshot(RuntimeSnapshot),
    /// Of [`Op::ListImages`].
    Images(Vec<ImageRecord>),
    /// Of [`Op::FindImage`]: none when the node surely lacks it. Of [`Op::PullImage`], where it is not known which credentials
    /// did.
    Image(Option<ImageRecord>),
    /// Of [`Op::PullImage`].
    Pulled {
        /// The image; none where the runtime did not show it afterwards.
        image: Option<ImageRecord>,
        /// Which of the credentials did; none where it was pulled without, or with one of the node's own.
        with: Option<usize>,
    },
    /// Of [`Op::ReadEnvFiles`].
    EnvFiles(EnvFiles),
    /// Of [`Op::CreateContainer`]: an id. Of [`Op::RunSandbox`], where no more is known of it.
    Made(String),
    /// Of [`Op::RunSandbox`]: what was made, as the runtime lists it.
    Sandbox(Box<SandboxRecord>),
    /// Of [`Op::StartContainer`]: what was started, as the runtime lists it, where that is known.
    Started(Box<ContainerRecord>),
    /// Of [`Op::StageVolume`].
    Staged {
        /// The device, if there is one.
        device: Option<String>,
        /// Its identity: boot id and `major:minor`.
        identity: Option<String>,
    },
    /// Of [`Op::AskCsiNode`].
    CsiNode(CsiNodeInfo),
    /// Of [`Op::AskDriver`].
    Attaches(bool),
    /// Of [`Op::Net`]: it did well, with something to tell of it.
    Warned(String),
    /// Of [`Op::Net`], for a hook: TLS is not spoken at this host and port, and it was asked for without.
    Plain(String),
    /// Of [`Op::Exec`].
    Exited {
        /// Exit code.
        code: i32,
        /// Start of what it wrote.
        output: String,
    },
    /// Of [`Op::Usage`].
    Usage(BTreeMap<Uid, crate::eviction::Usage>),
    /// Of [`Op::Allocate`].
    Allocated(AllocateReply),
    /// Of [`Op::Prefer`].
    Preferred(Vec<String>),
    /// Of [`Op::ReadGroup`].
    Group(Box<crate::allocation::Reading>),
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// What it names does not exist: a fact.
    #[error("not found: {0}")]
    NotFound(String),
    /// It failed; what was done of it is unknown.
    #[error("{0}")]
    Failed(String),
    /// It cannot be done as it was asked for, however often: whoever asked has to ask for something else.
    #[error("{0}")]
    Infeasible(String),
    /// What a container was to be made of cannot be had; the runtime was not asked.
    #[error("{0}")]
    Config(String),
    /// It took longer than it may; what was done of it is unknown.
    #[error("no answer within {0} s")]
    TimedOut(u64),
}

impl Op {
    /// Whether it only shows something to those who ask: no outcome returns.
    #[must_use]
    pub fn only_shows(&self) -> bool {
        matches!(
            self,
            Self::Count(_)
                | Self::PublishDevices(_)
                | Self::PublishVolumes(_)
                | Self::PublishResizes(_)
                | Self::Publish(_)
        )
    }
}

impl From<carrack_disks::DiskError> for OpError {
    fn from(e: carrack_disks::DiskError) -> Self {
        match e {
            carrack_disks::DiskError::Failed(text) | carrack_disks::DiskError::InUse(text) => Self::Failed(text),
            carrack_disks::DiskError::TimedOut(seconds) => Self::TimedOut(seconds),
        }
    }
}

/// How an operation ended.
pub type Outcome = Result<Reply, OpError>;

/// What the node had kept when the kubelet started.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Documents of the local record by name.
    pub records: BTreeMap<String, Vec<u8>>,
    /// The device manager's checkpoint, if there is one.
    pub checkpoint: Option<Vec<u8>>,
    /// The CPU manager's state, if there is one.
    pub cpus: Option<Vec<u8>>,
    /// The memory manager's state, if there is one.
    pub memory: Option<Vec<u8>>,
    /// What was allocated to pods, if that was kept.
    pub allocated: Option<Vec<u8>>,
    /// What of it was brought about, if that was kept.
    pub actuated: Option<Vec<u8>>,
    /// Facts of the machine.
    pub host: HostFacts,
    /// What of the volumes is there; none where that could not be read.
    pub found: Option<crate::volumes::Found>,
}

/// Something observed on the node.
#[derive(Clone, Debug)]
pub enum In {
    /// A CSI driver registered.
    CsiUp {
        /// Its name.
        driver: String,
        /// What it says about this node.
        info: CsiNodeInfo,
    },
    /// A CSI driver is gone.
    CsiDown {
        /// Its name.
        driver: String,
    },
    /// A driver finds a volume of a pod abnormal, which it did not before, or for another reason.
    VolumeAbnormal {
        /// Pod.
        uid: Uid,
        /// The volume, by the pod's name for it.
        volume: String,
        /// What the driver says.
        message: String,
    },
    /// The machine is to go down, and is held up until [`Op::LetGoDown`].
    ShutdownBegins,
    /// It stays after all.
    ShutdownCancelled,
    /// It cannot be held up, for this reason.
    ShutdownUnheld(String),
    /// An operation ended.
    Done(OpId, Outcome),
    /// A device plugin registered and was connected to.
    PluginUp {
        /// Resource.
        resource: String,
        /// A number for this registration; later ones are larger.
        epoch: u64,
        /// Its options.
        options: crate::devices::PluginOptions,
    },
    /// A device plugin's whole list of devices.
    PluginDevices {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
        /// Devices.
        devices: Vec<crate::devices::Device>,
    },
    /// A device plugin hung up.
    PluginDown {
        /// Resource.
        resource: String,
        /// Registration.
        epoch: u64,
    },
    /// A device plugin was not taken, or not all that it lists.
    PluginRefused {
        /// Resource, as it names it.
        resource: String,
        /// Why, for people.
        why: String,
    },
    /// The machine has run out of memory, and the kernel has ended a process.
    SystemOom {
        /// What the process calls itself.
        process: String,
        /// Its number.
        pid: u32,
    },
}
