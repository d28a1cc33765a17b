//! How many volumes a CSI driver takes on this node, where that changes: as disks are attached by others, say.
//!
//! Such a driver says in its CSIDriver how often it is to be asked (`nodeAllocatableUpdatePeriodSeconds`); and it is asked when
//! its attacher had no room left. What comes of it goes into the CSINode, by which the scheduler counts (upstream's
//! `pkg/volume/csi/csi_node_updater.go`). The CSIDriver is taken as it was last read for a pod here: a driver that no pod of this
//! node has used is not asked.
//!
//! A pod that has waited for such a driver's room in vain ends, so that whoever made it makes another one, which goes where
//! there is room: the scheduler knows of that by then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::volume::attachment_name;

use super::worker::Worker;
use super::{Fx, KubeletCore, Owner, Wake};
use crate::effects::{Op, OpId, Outcome, Reply};
use crate::runtime::Uid;
use crate::status::pod::Ended;
use crate::volumes::Driver;

/// The least time between two questions.
const LEAST: Duration = Duration::from_secs(10);
/// How long a pod waits for room (upstream's `podAttachAndMountTimeout`, `pkg/kubelet/volumemanager`).
const WAITS_FOR_ROOM: Duration = Duration::from_secs(123);
/// Why a pod is told that it ends.
const NO_ROOM: &str = "VolumeAttachmentLimitExceeded";

/// What is known of drivers that are asked.
#[derive(Debug, Default)]
pub(super) struct CsiLimits {
    asked: BTreeMap<String, Limit>,
    /// Drivers that had no room left, and were not asked since with an answer.
    had_no_room: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Limit {
    /// The question under way, and whether it is asked since there was no room left.
    op: Option<(OpId, bool)>,
    /// Or since when it is known that it is to be asked.
    asked_at: Option<Time>,
}

impl KubeletCore {
    /// Asks the drivers for which it is time.
    pub(super) fn step_csi_limits(&mut self, now: Time, fx: &mut Fx) {
        self.csi_limits.had_no_room.extend(self.sources.take_exhausted());
        if !self.sources.limits_change() && self.csi_limits.had_no_room.is_empty() {
            return;
        }
        // One that is not here is asked once it is.
        let drivers: Vec<String> = self.csi_node.drivers().map(str::to_owned).collect();
        self.csi_limits.asked.retain(|name, limit| limit.op.is_some() || drivers.contains(name));
        for driver in drivers {
            let limit = self.csi_limits.asked.entry(driver.clone()).or_default();
            let had_no_room = self.csi_limits.had_no_room.contains(&driver);
            let soon = had_no_room.then(|| limit.asked_at.map_or(now, |at| at + LEAST));
            // Its registration said how many the first time.
            let period = self.sources.limit_period(&driver).map(|period| period.max(LEAST));
            let due = period.map(|period| *limit.asked_at.get_or_insert(now) + period);
            let Some(due) = soon.into_iter().chain(due).min().filter(|_| limit.op.is_none()) else { continue };
            if due > now {
                self.wake(due, Wake::CsiNode);
                continue;
            }
            limit.asked_at = Some(now);
            self.csi_limits.had_no_room.remove(&driver);
            let op = self.op(Owner::CsiLimit(driver.clone()), Op::AskCsiNode(driver.clone()), fx);
            self.csi_limits.asked.entry(driver).or_default().op = Some((op, had_no_room));
        }
    }

    /// Ends a pod of which nothing has begun to run, and which has waited for a volume of a driver without room for long enough
    /// (upstream's `VerifyExhaustedResource`, `pkg/volume/csi/csi_plugin.go`). Where a driver does not say that its limits change,
    /// the scheduler would send the next one here as well.
    pub(super) fn end_without_room(
        &mut self,
        now: Time,
        uid: &Uid,
        w: &mut Worker,
        missing: &[(String, Option<String>)],
        fx: &mut Fx,
    ) {
        let lacks_room = |name: &str| {
            let driver = self.volumes.origin(uid, name).map(|origin| &origin.driver);
            let Some(Driver::Csi { driver, handle, ephemeral: false, .. }) = driver else { return false };
            self.sources.lacks_room(driver, &attachment_name(driver, handle, &self.config.node_name))
        };
        let Some((name, error)) = missing.iter().find(|(name, _)| lacks_room(name)) else { return };
        let Some(since) = w.volumes_lack_since else { return };
        let until = since + WAITS_FOR_ROOM;
        if now < until {
            self.wake_pod(until, uid);
            return;
        }
        let why = error.as_deref().unwrap_or_default();
        let message = format!("Pod was rejected: this node has no room left for volume \"{name}\": {why}");
        self.end_pod(now, w, Ended { reason: NO_ROOM.into(), message, disrupts: false }, 0, fx);
    }

    /// A driver has said how many volumes it takes, or not.
    pub(super) fn csi_limit_told(&mut self, driver: &str, id: OpId, outcome: Outcome) {
        let limit = self.csi_limits.asked.get_mut(driver);
        let Some((_, had_no_room)) = limit.and_then(|limit| limit.op.take_if(|(op, _)| *op == id)) else { return };
        match outcome {
            Ok(Reply::CsiNode(info)) => self.csi_node.takes(driver, info.max_volumes),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(driver, %error, "a CSI driver does not say how many volumes it takes");
                if had_no_room {
                    self.csi_limits.had_no_room.insert(driver.to_owned());
                }
            }
        }
    }
}
