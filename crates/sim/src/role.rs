//! The processes of the cluster, and who they are to the API server.

use carrack_auth::Caller;
use carrack_auth::caller::{
    GROUP_MASTERS, USER_CONTROLLER_MANAGER, USER_GPU_EXTENDER, USER_SCHEDULER, USER_VIRT_CONTROLLER,
};

/// A process. Nodes are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    User,
    Scheduler,
    /// A second process of the scheduler, for when the first one is gone or hangs.
    StandbyScheduler,
    Extender,
    /// The extender of GPUs.
    GpuExtender,
    Controllers,
    /// A second process of the controllers, for when the first one is gone or hangs.
    Standby,
    VirtController,
    /// A second process of the controllers of machines.
    StandbyVirt,
    /// The controller of clones, in a process of its own.
    Cloner,
    /// Somebody who takes names that are not theirs.
    Squatter,
    Replicas,
    /// Attaches disks to nodes.
    Attacher,
    /// A second process that does, for when the first one is gone or hangs.
    StandbyAttacher,
    /// The kubelets of nodes that only pretend.
    Hollow,
    /// What stands beside a storage system; see `controllers::storage`.
    Storage,
    /// The agents of the node where machines run that are copied; see `clones::host`.
    Host,
    Kubelet(u8),
    VirtHandler(u8),
    /// Somebody who asks too often. No process of its own.
    Flooder,
    /// Somebody who says what only components may say. No process of its own.
    Meddler,
    /// Somebody who may read everything. No process of its own.
    Onlooker,
    /// Somebody who reads what was just made. No process of its own.
    Reader,
    /// Somebody who may make pods, and wants the GPUs of others. No process of its own.
    Tenant,
    /// The provisioner of a node.
    LocalStorage(u8),
    /// Somebody in CDI's place; see `imports`.
    Importer,
}

impl Role {
    /// Who it is to the API server.
    pub(crate) fn caller(self) -> Caller {
        const NONE: [&str; 0] = [];
        match self {
            Self::User => Caller::new("system:admin", [GROUP_MASTERS]),
            Self::Scheduler | Self::StandbyScheduler => Caller::new(USER_SCHEDULER, NONE),
            Self::Extender => Caller::new("sim:extender", [GROUP_MASTERS]),
            Self::GpuExtender => Caller::new(USER_GPU_EXTENDER, NONE),
            Self::Controllers | Self::Standby => Caller::new(USER_CONTROLLER_MANAGER, NONE),
            Self::VirtController | Self::StandbyVirt | Self::Cloner => Caller::new(USER_VIRT_CONTROLLER, NONE),
            Self::Squatter => Caller::new("sim:squatter", [GROUP_MASTERS]),
            // A controller of the simulator's own; see `replicas`.
            Self::Replicas => Caller::new("sim:replicas", [GROUP_MASTERS]),
            Self::Attacher | Self::StandbyAttacher => Caller::new("sim:attacher", [GROUP_MASTERS]),
            Self::Hollow => Caller::new("sim:hollow", [GROUP_MASTERS]),
            Self::Flooder => Caller::new("sim:flooder", NONE),
            Self::Meddler => Caller::new(crate::meddler::USER, NONE),
            Self::Onlooker => Caller::new(crate::onlooker::USER, NONE),
            Self::Reader => Caller::new("sim:reader", [GROUP_MASTERS]),
            Self::Tenant => Caller::new(crate::gpu::TENANT, NONE),
            Self::Host => Caller::new("sim:host", [GROUP_MASTERS]),
            Self::Storage => Caller::new("sim:storage", [GROUP_MASTERS]),
            Self::Kubelet(node) => Caller::node(&node_name(node)),
            Self::VirtHandler(node) => Caller::virt_handler(&node_name(node)),
            Self::LocalStorage(node) => Caller::local_storage(&node_name(node)),
            Self::Importer => Caller::new("sim:importer", [GROUP_MASTERS]),
        }
    }
}

/// Name of a node.
pub(crate) fn node_name(node: u8) -> String {
    format!("node{node}")
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Scheduler => f.write_str("scheduler"),
            Self::StandbyScheduler => f.write_str("standby scheduler"),
            Self::Extender => f.write_str("extender"),
            Self::GpuExtender => f.write_str("gpu-extender"),
            Self::Controllers => f.write_str("controllers"),
            Self::Standby => f.write_str("standby controllers"),
            Self::VirtController => f.write_str("virt-controller"),
            Self::StandbyVirt => f.write_str("standby virt-controller"),
            Self::Cloner => f.write_str("cloner"),
            Self::Squatter => f.write_str("squatter"),
            Self::Replicas => f.write_str("replicas"),
            Self::Attacher => f.write_str("attacher"),
            Self::StandbyAttacher => f.write_str("standby attacher"),
            Self::Hollow => f.write_str("hollow"),
            Self::Flooder => f.write_str("flooder"),
            Self::Meddler => f.write_str("meddler"),
            Self::Onlooker => f.write_str("onlooker"),
            Self::Reader => f.write_str("reader"),
            Self::Tenant => f.write_str("tenant"),
            Self::Host => f.write_str("host"),
            Self::Storage => f.write_str("storage"),
            Self::Kubelet(node) => write!(f, "kubelet/{node}"),
            Self::VirtHandler(node) => write!(f, "virt-handler/{node}"),
            Self::LocalStorage(node) => write!(f, "local-storage/{node}"),
            Self::Importer => f.write_str("importer"),
        }
    }
}
