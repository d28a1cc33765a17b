//! What stays of what a run is like: in a cluster that is there already, and once nothing fails any more.

use super::{NetFaults, NodeFaults, OtherFaults, Swarm};
use crate::chance::Delay;
use crate::intervals::Intervals;

impl Swarm {
    /// The same in a cluster that is there already: who takes part, and where, was decided when it began.
    pub(crate) fn with_cluster_of(self, other: &Self) -> Self {
        Self {
            nodes: other.nodes,
            servers: other.servers,
            seats: other.seats,
            skew: other.skew,
            webhook: other.webhook,
            elect: other.elect,
            standby: other.standby,
            extender: other.extender,
            standby_scheduler: other.standby_scheduler,
            standby_attacher: other.standby_attacher,
            watchdogs: other.watchdogs,
            nameless_targets: other.nameless_targets,
            cloner_apart: other.cloner_apart,
            zones: other.zones,
            keeps_memory: other.keeps_memory,
            parallel_pulls: other.parallel_pulls,
            deaf_disks: other.deaf_disks,
            others: OtherFaults { extender: other.others.extender, attacher: other.others.attacher, ..self.others },
            ..self
        }
    }

    /// Nothing fails from now on.
    pub(crate) fn heal(&mut self) {
        self.net = NetFaults::none();
        self.node = NodeFaults::none();
        self.intervals = Intervals::default();
        self.crash_one_in_effects = 0;
        self.store_pending_one_in = 0;
        self.webhook_wrong_one_in = 0;
        self.webhook_delay = Delay::micros(500);
    }
}
