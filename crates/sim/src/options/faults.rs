//! How often what goes wrong: on the network, and on a node.

use std::time::Duration;

use crate::chance::Delay;

/// How late a request arrives at the most, mostly.
pub(crate) const LATEST: Duration = Duration::from_secs(10);
/// How long a client waits for a reply, as Carrack's do.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// What goes wrong on the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetFaults {
    pub latency: Delay,
    pub lose_request_one_in: u64,
    pub lose_reply_one_in: u64,
    pub late_one_in: u64,
    /// How long after its sender has given it up a late request arrives at the most.
    pub latest: Duration,
    /// One in so many bindings arrives after its sender has given it up.
    pub late_binding_one_in: u64,
    pub repeat_one_in: u64,
    /// One in so many writes that were made is answered as if something had gone wrong.
    pub denied_one_in: u64,
    pub watch_lags_one_in: u64,
    pub watch_lag: Duration,
    pub watch_breaks_one_in: u64,
    pub watch_life: Duration,
    /// How long a client waits for a reply.
    pub timeout: Duration,
}

/// What goes wrong on a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFaults {
    /// How long the runtime takes for a small operation.
    pub operation: Delay,
    /// One in so many operations fails, before or after it took effect.
    pub fail_one_in: u64,
    /// A container that the runtime fails to start has ended, and is not as it was.
    pub spoils_starts: bool,
    /// One in so many times a plugin takes minutes to find a kubelet that has started.
    pub plugin_late_one_in: u64,
    /// One in so many answers of a device plugin is late, and one in so many is not as it should be.
    pub plugin_whims_one_in: u64,
    /// Device plugins of the simulator's own are to be told before a container starts.
    pub pre_starts: bool,
    /// One in so many file systems takes seconds to grow.
    pub grows_slowly_one_in: u64,
    /// One in so many losses of power tears what the disk had of the states of a kubelet's managers.
    pub tears_one_in: u64,
    /// One in so many losses of power takes what was last written of the records of pods, volumes and images, or brings back what
    /// was dropped.
    pub loses_one_in: u64,
    /// One in so many times a CSI driver says that it has done what it has not.
    pub lies_one_in: u64,
    /// One in so many listings of a runtime is torn, and of one in so many a status cannot be read; and where there are such, it has
    /// now and then lost sight of what runs, or cannot stop it.
    pub unkind_one_in: u64,
}

impl NodeFaults {
    pub(crate) fn none() -> Self {
        Self {
            operation: Delay::millis(5),
            fail_one_in: 0,
            spoils_starts: false,
            plugin_late_one_in: 0,
            plugin_whims_one_in: 0,
            pre_starts: false,
            grows_slowly_one_in: 0,
            tears_one_in: 0,
            loses_one_in: 0,
            lies_one_in: 0,
            unkind_one_in: 0,
        }
    }
}

/// What goes wrong with others who take part. How often, they draw by themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherFaults {
    /// Who issues tokens refuses, or is slow.
    pub tokens: bool,
    /// Calls between schedulers and the extender of GPUs are lost, late, or come twice.
    pub gpu_calls: bool,
    /// Copies of disks hang or fail.
    pub copies: bool,
    /// Calls to guests' handlers, of meters and of metrics fail.
    pub calls: bool,
    /// The extender misbehaves.
    pub extender: bool,
    /// The CSI driver that attaches disks fails.
    pub attacher: bool,
    /// The API of meters does not say what it serves.
    pub meters: bool,
    /// Metrics are late, and are not what they should be.
    pub metrics: bool,
    /// Kubelets hear of services late.
    pub services: bool,
    /// Who makes contents of volume snapshots is held up, or dies.
    pub contents: bool,
}

impl OtherFaults {
    /// All of them, or none.
    pub(crate) fn of(faults: bool) -> Self {
        Self {
            tokens: faults,
            gpu_calls: faults,
            copies: faults,
            calls: faults,
            extender: faults,
            attacher: faults,
            meters: faults,
            metrics: faults,
            services: faults,
            contents: faults,
        }
    }
}
