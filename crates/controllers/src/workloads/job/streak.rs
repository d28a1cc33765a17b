//! Failures of a Job since anything of it succeeded, of pods that are gone as well.
//!
//! A pod that was deleted takes along that it failed. So the controller remembers the last ones for as long as the Job goes on;
//! what it forgets by a restart only shortens a wait. Follows upstream's backoff_utils.go (pkg/controller/job).

use std::collections::BTreeMap;

use carrack_engine::Time;
use carrack_types::resource::Object as _;

use super::{Known, manage};

/// How many are remembered: after as many the wait is as long as it gets.
const MOST: usize = 8;

/// The last failures of a Job.
#[derive(Clone, Debug, Default)]
pub(super) struct Streak {
    /// The UID of the Job: another one of its name begins anew.
    job: String,
    /// When pods failed, by their UIDs.
    failed: BTreeMap<String, Time>,
    /// When the last one succeeded.
    success: Option<Time>,
}

impl Streak {
    /// Adds what the pods tell that are there now.
    pub(super) fn look(&mut self, known: &Known<'_>) {
        if self.job != known.job.uid() {
            *self = Self { job: known.job.uid().to_owned(), ..Self::default() };
        }
        let succeeded = known.pods.iter().filter(|p| known.end_of(p) == Some(true));
        self.success = succeeded.filter_map(|p| manage::ended_at(p)).chain(self.success).max();
        for pod in known.pods.iter().filter(|p| manage::failed(known, p)) {
            // One that was to go may have gone on for a while.
            if let Some(at) = manage::ended_at(pod) {
                self.failed.insert(pod.uid().to_owned(), at);
            }
        }
        self.failed.retain(|_, at| self.success.is_none_or(|success| *at > success));
        if self.failed.len() > MOST {
            let all = std::mem::take(&mut self.failed).into_iter();
            let mut all: Vec<(Time, String)> = all.map(|(uid, at)| (at, uid)).collect();
            all.sort_unstable();
            self.failed = all.into_iter().rev().take(MOST).map(|(at, uid)| (uid, at)).collect();
        }
    }
    /// When the last one failed, and how many did; none if none did.
    pub(super) fn failures(&self) -> Option<(Time, u32)> {
        let last = self.failed.values().max()?;
        Some((*last, u32::try_from(self.failed.len()).unwrap_or(u32::MAX)))
    }
    /// Whether there is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.success.is_none()
    }
}
