//! One thing that goes wrong, exactly once, in the life of a clone: what a test tries one by one until it has tried them all.

use std::time::Duration;

use carrack_engine::{ApiRequest, Method};
use carrack_types::kubevirt::snapshot::names::COPYING_LABEL;
use serde_json::Value;

use super::Scene;
use crate::options::Options;
use crate::plants::Bug;
use crate::server::ConnId;

/// What goes wrong. Things are counted from when the first clone is there, or a restore that somebody asked for, and from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The controller of clones dies before this one of its effects.
    Crash(u64),
    /// Before this one of its effects, whoever asked for the clone, or the restore, deletes it.
    GivenUp(u64),
    /// The same, and the controller dies there.
    GivenUpInCrash(u64),
    /// This DELETE of its does not arrive.
    LostDelete(u64),
    /// This DELETE of its is carried out, and its reply is lost.
    UnansweredDelete(u64),
    /// This line of its watches is late, and those of the same watch behind it.
    LateLine(u64),
}

impl Mishap {
    /// Whether what was asked for is deleted.
    pub(crate) fn gives_up(self) -> bool {
        matches!(self, Self::GivenUp(_) | Self::GivenUpInCrash(_))
    }
}

/// How much of what could have gone wrong has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Effects of the process with the controller of clones.
    pub effects: u64,
    /// Its DELETEs.
    pub deletes: u64,
    /// Lines of its watches.
    pub lines: u64,
    /// Writes of all controllers of machines, but for events, and for Leases.
    pub writes: u64,
}

/// For how long a late line is late.
const LATE: Duration = Duration::from_secs(9);

/// Counts, and says when it is time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    mishap: Option<Mishap>,
    /// What a planted bug needs to show: every second DELETE does not arrive.
    forgetful: bool,
    /// Pods that are to copy disks of machines that are off come late.
    late_pods: bool,
    /// Restored claims get their owners late.
    late_owners: bool,
    /// What a planted bug needs to show: all lines of this watch are late.
    pub slow: Option<ConnId>,
    pub begun: bool,
    pub counts: Counts,
}

fn next(count: &mut u64) -> u64 {
    *count += 1;
    *count - 1
}

impl Fate {
    pub(crate) fn new(options: &Options, bug: Option<Bug>) -> Self {
        let forgetful = bug == Some(Bug::RestoreNotCreatedYet);
        let late_pods = options.scene == Some(Scene::Awoken);
        let late_owners = options.scene == Some(Scene::Hasty);
        Self { mishap: options.mishap, forgetful, late_pods, late_owners, ..Self::default() }
    }
    /// How long a request is on its way for the scene's sake.
    pub(crate) fn request(&self, request: &ApiRequest) -> Option<Duration> {
        let path = request.path.split('?').next().unwrap_or_default();
        if self.late_owners && request.method == Method::Patch && path.contains("/persistentvolumeclaims/restore-") {
            let patch: Value = serde_json::from_slice(&request.body).ok()?;
            return patch["metadata"]["ownerReferences"].is_array().then_some(LATE);
        }
        if !self.late_pods || request.method != Method::Post || !path.ends_with("/pods") {
            return None;
        }
        let pod: Value = serde_json::from_slice(&request.body).ok()?;
        (pod["metadata"]["labels"][COPYING_LABEL] == "keep").then_some(LATE)
    }
    /// Whether the controller of clones dies before its next effect, and whether what was asked for is given up there.
    pub(crate) fn strikes(&mut self) -> (bool, bool) {
        if !self.begun {
            return (false, false);
        }
        let number = next(&mut self.counts.effects);
        let is = |mishap: fn(u64) -> Mishap| self.mishap == Some(mishap(number));
        (is(Mishap::Crash) || is(Mishap::GivenUpInCrash), is(Mishap::GivenUp) || is(Mishap::GivenUpInCrash))
    }
    /// Whether the next DELETE arrives, and whether it is answered.
    pub(crate) fn delete(&mut self) -> (bool, bool) {
        if !self.begun {
            return (true, true);
        }
        let number = next(&mut self.counts.deletes);
        let lost = self.mishap == Some(Mishap::LostDelete(number)) || self.forgetful && number % 2 == 1;
        (!lost, !lost && self.mishap != Some(Mishap::UnansweredDelete(number)))
    }
    /// It writes something.
    pub(crate) fn wrote(&mut self, path: &str) {
        self.counts.writes += u64::from(self.begun && !path.contains("/events") && !path.contains("/leases"));
    }
    /// How late the next line of a watch is.
    pub(crate) fn line(&mut self, conn: ConnId) -> Duration {
        let late = self.slow == Some(conn)
            || self.begun && self.mishap == Some(Mishap::LateLine(next(&mut self.counts.lines)));
        if late { LATE } else { Duration::ZERO }
    }
}
