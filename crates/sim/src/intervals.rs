//! How often faults come by themselves.

use std::time::Duration;

/// Mean times between faults that come by themselves; none is never.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intervals {
    pub crash: Option<Duration>,
    pub apiserver_crash: Option<Duration>,
    pub expire: Option<Duration>,
    pub cut: Option<Duration>,
    /// A process is cut off one way alone, or from one API server alone.
    pub half_cut: Option<Duration>,
    pub reboot: Option<Duration>,
    pub plugin: Option<Duration>,
    pub container_exit: Option<Duration>,
    /// A pod's sandbox ends, alone or with all that runs in it.
    pub sandbox: Option<Duration>,
    pub guest: Option<Duration>,
    pub force_delete: Option<Duration>,
    pub pause: Option<Duration>,
    /// A process is stopped for longer than any lease lasts.
    pub stall: Option<Duration>,
    /// A machine's clock is set.
    pub clock: Option<Duration>,
    /// The clock of an API server's machine is set.
    pub server_clock: Option<Duration>,
    pub flood: Option<Duration>,
    /// A hollow node loses its power, or is taken out of the cluster besides.
    pub vanish: Option<Duration>,
    /// A node of machines loses its power for minutes, and is taken out of the cluster.
    pub lose: Option<Duration>,
    /// A node of machines is cut off for a minute, and nobody there looks after its guests but their monitors.
    pub strand: Option<Duration>,
    /// Somebody evicts a launcher whose guest is to stay.
    pub evict: Option<Duration>,
    /// A guest's agent comes and goes, many times a second.
    pub chatter: Option<Duration>,
    /// A device plugin gets into a mood.
    pub moods: Option<Duration>,
    /// A node's disk is full for a while.
    pub full_disk: Option<Duration>,
    /// The store of the API servers is full for a while.
    pub full_store: Option<Duration>,
    /// A node's runtime is away for a while, or hangs.
    pub runtime_away: Option<Duration>,
    /// A CSI driver of a node is away for a while.
    pub driver_away: Option<Duration>,
}

impl Intervals {
    /// The same with other times.
    pub(crate) fn map(self, change: impl Fn(Duration) -> Duration) -> Self {
        let other = |mean: Option<Duration>| mean.map(&change);
        Self {
            crash: other(self.crash),
            apiserver_crash: other(self.apiserver_crash),
            expire: other(self.expire),
            cut: other(self.cut),
            half_cut: other(self.half_cut),
            reboot: other(self.reboot),
            plugin: other(self.plugin),
            container_exit: other(self.container_exit),
            sandbox: other(self.sandbox),
            guest: other(self.guest),
            force_delete: other(self.force_delete),
            pause: other(self.pause),
            stall: other(self.stall),
            clock: other(self.clock),
            server_clock: other(self.server_clock),
            flood: other(self.flood),
            vanish: other(self.vanish),
            lose: other(self.lose),
            strand: other(self.strand),
            evict: other(self.evict),
            chatter: other(self.chatter),
            moods: other(self.moods),
            full_disk: other(self.full_disk),
            full_store: other(self.full_store),
            runtime_away: other(self.runtime_away),
            driver_away: other(self.driver_away),
        }
    }
}
