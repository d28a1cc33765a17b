//! What the handler's core asks of its node, and what it hears from it.
//!
//! Each [`Op`] carries an id and its [`Outcome`] comes back under it, also when it failed. All of them may be done
//! twice: what is there already is left as it is.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use carrack_engine::Time;
use carrack_launcher::{Domain, MachineSpec};
use carrack_types::kubevirt::vmi::GuestOsInfo;
use serde::{Deserialize, Serialize};

/// Names an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Something asked of the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Out {
    /// Its id.
    pub id: OpId,
    /// What.
    pub op: Op,
}

/// What an instance is to the node: which pod, and where its guest is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Place {
    /// UID of the instance.
    pub uid: String,
    /// UID of its pod.
    pub pod_uid: String,
    /// Id of the compute container, without the runtime's name.
    pub compute_id: String,
}

/// Whose processes are looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sought {
    /// UID of the instance: where the pod's is not known, any process that bears it counts.
    pub uid: String,
    /// UID of the pod.
    pub pod_uid: String,
    /// The guest has ended, and the pod is to end: what holds its container disks is asked to, once more where it was
    /// asked before it could hear of that.
    pub ends_disks: bool,
}

/// A container disk to put into the launcher's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDisk {
    /// Id of the container made from the disk's image, without the runtime's name.
    pub container_id: String,
    /// Path of the disk in the image; the only file below `/disk` when none is given.
    pub path: Option<String>,
    /// Where the launcher's container sees it.
    pub target: String,
}

/// The pod network of a guest behind address translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The guest's address.
    pub guest: Ipv4Addr,
    /// The bridge's address, which is the guest's router.
    pub gateway: Ipv4Addr,
    /// Length of the network prefix in bits.
    pub prefix_bits: u8,
    /// Ports that reach the guest: protocol and number. All when empty.
    pub ports: Vec<(String, u16)>,
}

/// How a guest's interface is joined to one of its pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// By address translation.
    Masquerade(Masquerade),
    /// On one segment with the pod's interface, whose addresses become the guest's.
    Bridge {
        /// The hardware address that the pod's interface has then. The guest's own would make the bridge take the guest's
        /// frames for its own.
        port_mac: String,
    },
}

/// An interface of the pod, and what joins the guest to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLink {
    /// The pod's interface.
    pub pod_interface: String,
    /// The bridge between it and the guest.
    pub bridge: String,
    /// The guest's tap device.
    pub tap: String,
    /// It has several queues.
    pub multi_queue: bool,
    /// How they are joined.
    pub binding: Binding,
}

/// What was found out about an interface of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Its MTU.
    pub mtu: Option<u16>,
    /// The address that it had, and the length of its network's prefix in bits.
    pub address: Option<(Ipv4Addr, u8)>,
    /// The router that the pod used on it.
    pub router: Option<Ipv4Addr>,
}

/// What to make ready before a guest starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// For whom.
    pub place: Place,
    /// Files of containers: container disks, kernels.
    pub disks: Vec<ContainerDisk>,
    /// The guest's interfaces.
    pub links: Vec<PodLink>,
    /// Secrets to read: volume of the pod.
    pub secrets: Vec<String>,
}

/// What was made ready or found out on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The pod's interfaces by name.
    pub links: BTreeMap<String, LinkFacts>,
    /// Name servers of the pod.
    pub dns: Vec<Ipv4Addr>,
    /// Search domains of the pod.
    pub search: Vec<String>,
    /// Contents of the secrets: pod volume, then key.
    pub secrets: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

/// What is kept about an instance on the node, so that a restart of the handler knows what was asked of its guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// The launcher was asked to run the guest.
    pub started: bool,
    /// When the guest was first asked to shut down, nanoseconds since the epoch.
    pub shutdown_since_ns: Option<i64>,
    /// Its guest runs under the node's Lease only.
    pub bound: bool,
    /// The number of its run, for the records of its disks (see `carrack_launcher::writer`).
    pub epoch: u64,
}

impl Record {
    /// What is known of an instance whose record is there and cannot be read: its guest may have been started, and may run under
    /// the node's Lease.
    #[must_use]
    pub fn unread(uid: &str) -> Self {
        let place = Place { uid: uid.to_owned(), ..Place::default() };
        Self { place, started: true, bound: true, ..Self::default() }
    }

    /// Whether it is such a one, and where the guest is was not found out since.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.bound && self.place.pod_uid.is_empty()
    }
}

/// What is asked of a guest's agent for the instance's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentQuestion {
    /// Whose.
    pub place: Place,
    /// What is to be put into the guest.
    pub credentials: Vec<Credential>,
    /// Those that were put there last, by what they were told by.
    pub applied: Option<u64>,
}

/// A credential that goes into a guest by its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// SSH keys.
    Keys {
        /// The pod's volume with them.
        volume: String,
        /// The users that get them.
        users: Vec<String>,
    },
    /// Passwords by user.
    Passwords {
        /// The pod's volume with them.
        volume: String,
    },
}

impl Credential {
    /// The pod's volume with the secret.
    #[must_use]
    pub fn volume(&self) -> &str {
        match self {
            Self::Keys { volume, .. } | Self::Passwords { volume } => volume,
        }
    }
}

/// What a guest's agent said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentReport {
    /// The operating system.
    pub os: GuestOsInfo,
    /// The interfaces.
    pub interfaces: Vec<AgentInterface>,
    /// The file systems are frozen.
    pub frozen: bool,
    /// The commands that the agent carries out.
    pub commands: Vec<String>,
    /// Whether the credentials are in the guest: what they are told by, or what went wrong.
    pub credentials: Option<Result<u64, String>>,
}

/// An interface as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentInterface {
    /// Its name in the guest.
    pub name: String,
    /// Its hardware address, in small letters.
    pub mac: String,
    /// Its addresses.
    pub addresses: Vec<String>,
}

/// A call to a launcher.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Run this machine.
    Sync(Box<MachineSpec>),
    /// Press the power button.
    Shutdown,
    /// End the guest now.
    Kill,
}

/// Something asked of the machine's watchdog. After `not_after` it must not be petted any more, also not by a call that was
/// held up on its way; without one it may be at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogCall {
    /// Open it, which starts it and pets it, or takes over one that runs; and set its time.
    Open {
        /// After how long without a petting it is to reset the machine, in seconds.
        timeout_s: u32,
        /// The last moment at which that may be done.
        not_after: Option<Time>,
    },
    /// Pet it.
    Pet {
        /// The last moment at which that may be done.
        not_after: Option<Time>,
    },
    /// Close it in good order, so that it stops.
    Close,
}

/// A watchdog that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Armed {
    /// What its driver calls it.
    pub identity: String,
    /// After how long without a petting it resets the machine, as its driver says, in seconds.
    pub timeout_s: u32,
    /// It cannot be stopped any more (`nowayout`).
    pub stays: bool,
}

/// An instance as the console server needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// Address at which its ports are reached.
    pub address: Option<String>,
    /// Names of its disks, in their order.
    pub disks: Vec<String>,
    /// Names of its interfaces, by their tap devices.
    pub nics: BTreeMap<String, String>,
}

/// Something to do on the node.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Read the local record, install what containers of container disks need, start the device plugins.
    Load,
    /// Find out whether KVM runs guests here.
    Probe,
    /// Keep a record, durably, before success is reported.
    Save(Record),
    /// Drop the record of an instance.
    Drop(String),
    /// Make ready.
    Prepare(Box<Preparation>),
    /// Call a launcher.
    Call(Place, Call),
    /// Follow a guest's states; they come as [`In::Domain`], until [`In::WatchClosed`]. Has no outcome.
    Watch(Place),
    /// Stop following.
    Unwatch(String),
    /// Start a new monitor in the launcher's container, whose old one is dead.
    TakeOver(Place),
    /// Tell the monitors of these guests until when they may run. With an outcome it is for one that is about to start,
    /// and success means that its promise is kept where no restart can lose it.
    Promise(Vec<Place>, Time),
    /// End the processes of a pod at once, from outside, whatever its launcher says.
    Destroy(Place),
    /// Look whether any process of a pod still runs; without the pod's UID, any of the instance.
    LookForProcesses(Sought),
    /// Ask a guest's agent.
    AskAgent(Box<AgentQuestion>),
    /// Tell the console server which guests there are. Has no outcome.
    Publish(Vec<Served>),
    /// Ask something of the machine's watchdog. One call at a time.
    Watchdog(WatchdogCall),
}

/// What an operation brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing to tell.
    Done,
    /// Of [`Op::Load`].
    Loaded(Vec<Record>),
    /// Of [`Op::Probe`].
    Probed(carrack_launcher::accel::Probe),
    /// Of [`Op::Prepare`].
    Prepared(Box<Prepared>),
    /// Of [`Op::Call`]: the guest's state afterwards.
    Domain(Box<Domain>),
    /// Of [`Op::Call`] with [`Call::Sync`]: the launcher is of another version, and does not understand its machine.
    NotUnderstood,
    /// Of [`Op::LookForProcesses`]: whether there is any.
    Processes(bool),
    /// Of [`Op::AskAgent`].
    Agent(Box<AgentReport>),
    /// Of [`WatchdogCall::Open`].
    Armed(Armed),
    /// Of [`WatchdogCall::Open`] and [`WatchdogCall::Pet`]: the last moment for it was over, and nothing was done.
    TooLate,
}

/// Why an operation failed. What was done of it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OpError(pub String);

/// How an operation ended.
pub type Outcome = Result<Reply, OpError>;

/// Something observed on the node.
#[derive(Clone, Debug, PartialEq)]
pub enum In {
    /// An operation ended.
    Done(OpId, Outcome),
    /// A guest's state, as its launcher says.
    Domain(String, Box<Domain>),
    /// The states of a guest are not followed any more: no launcher answered, or it hung up. Says nothing about the
    /// guest.
    WatchClosed(String, String),
    /// Somebody has changed what a guest's agent says, such as that its file systems are frozen: it is asked again.
    AgentChanged(String),
    /// What [`Op::Probe`] found is in doubt, as on a machine that was too busy: it is asked once more.
    ProbeAgain,
    /// The kubelet gives whole CPUs to those pods that are to have them, or not, as its own state says.
    CpuManager(bool),
    /// A device is there or not, and its plugin is registered with the kubelet or not.
    Device {
        /// Resource name.
        resource: String,
        /// The device node exists.
        present: bool,
        /// The kubelet knows the plugin.
        registered: bool,
    },
}
