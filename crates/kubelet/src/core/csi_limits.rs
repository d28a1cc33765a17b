//! How many volumes a CSI driver takes on this node, where that changes: as disks are attached by others, say.
//!
//! Such a driver says in its CSIDriver how often it is to be asked (`nodeAllocatableUpdatePeriodSeconds`); and it is asked when
//! its attacher had no room left. What comes of it goes into the CSINode, by which the scheduler counts (upstream's
//! `pkg/volume/csi/csi_node_updater.go`). The CSIDriver is taken as it was last read for a pod here: a driver that no pod of this
//! node has used is not asked.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Op, OpId, Outcome, Reply};

/// The least time between two questions.
const LEAST: Duration = Duration::from_secs(10);

/// What is known of drivers that are asked.
#[derive(Debug, Default)]
pub(super) struct CsiLimits(BTreeMap<String, Limit>);

#[derive(Debug, Default)]
struct Limit {
    op: Option<OpId>,
    /// Or since when it is known that it is to be asked.
    asked_at: Option<Time>,
}

impl KubeletCore {
    /// Asks the drivers for which it is time.
    pub(super) fn step_csi_limits(&mut self, now: Time, fx: &mut Fx) {
        if !self.sources.limits_change() {
            return;
        }
        let exhausted = self.sources.take_exhausted();
        let drivers: Vec<String> = self.csi_node.drivers().map(str::to_owned).collect();
        self.csi_limits.0.retain(|name, limit| limit.op.is_some() || drivers.contains(name));
        for driver in drivers {
            let limit = self.csi_limits.0.entry(driver.clone()).or_default();
            let since = |from: Option<Time>| from.is_none_or(|at| now.since(at) >= LEAST);
            let had_no_room = exhausted.contains(&driver) && since(limit.asked_at);
            // Its registration said how many the first time.
            let period = self.sources.limit_period(&driver).map(|period| period.max(LEAST));
            let due = period.map(|period| *limit.asked_at.get_or_insert(now) + period);
            if limit.op.is_some() {
                continue;
            }
            if had_no_room || due.is_some_and(|due| due <= now) {
                limit.asked_at = Some(now);
                let op = self.op(Owner::CsiLimit(driver.clone()), Op::AskCsiNode(driver.clone()), fx);
                self.csi_limits.0.entry(driver).or_default().op = Some(op);
            } else if let Some(due) = due {
                self.wake(due, Wake::CsiNode);
            }
        }
    }

    /// A driver has said how many volumes it takes, or not.
    pub(super) fn csi_limit_told(&mut self, driver: &str, id: OpId, outcome: Outcome) {
        let Some(limit) = self.csi_limits.0.get_mut(driver).filter(|limit| limit.op == Some(id)) else { return };
        limit.op = None;
        match outcome {
            Ok(Reply::CsiNode(info)) => self.csi_node.takes(driver, info.max_volumes),
            Ok(_) => {}
            Err(error) => tracing::warn!(driver, %error, "a CSI driver does not say how many volumes it takes"),
        }
    }
}
