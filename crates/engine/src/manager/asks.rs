//! Decisions, and what is read for one of them alone: what nobody watches, since only one decision asks for it, or since it
//! cannot be watched (metrics).
//!
//! ```text
//!   decide ──asks──▶ reads under way ──all answered──▶ decide, with the answers ──plan──▶ begin
//! ```
//!
//! An answer is one whatever it says: what a failure means is the controller's affair. Answers are kept until it has decided,
//! and no longer.

use std::collections::BTreeMap;

use super::{Manager, Run};
use crate::controller::Answers;
use crate::{ApiError, ApiRequest, ApiResponse, Effects, Key, Never, Time, View};

impl Manager {
    /// Has a controller decide about a key by its caches and these answers, and begins with what it has decided.
    pub(super) fn decide(&mut self, now: Time, i: usize, key: Key, answers: Answers, fx: &mut Effects<Never>) {
        let view = View { informers: &self.informers, answers: &answers };
        let mut plan = self.hosted[i].controller.reconcile(&key, &view, now);
        // What it has looked at may be packed again.
        self.informers.values_mut().for_each(|informer| informer.rest());
        let asks = std::mem::take(&mut plan.asks).into_iter().filter(|request| !answers.contains_key(&request.path));
        let asks: BTreeMap<String, ApiRequest> = asks.map(|request| (request.path.clone(), request)).collect();
        if asks.is_empty() {
            let plan = self.hosted[i].hold_back(now, &key, plan);
            self.begin(now, i, key, plan, fx);
            return;
        }
        let run = Run { answers, pending: asks.len(), since: self.term.1, term: self.term.0, ..Run::default() };
        self.hosted[i].runs.insert(key.clone(), run);
        self.hosted[i].calls += asks.len();
        for (path, request) in asks {
            self.asked.insert(fx.api(request), (i, key.clone(), path));
        }
    }

    /// A read that a decision asked for was answered. Who does not lead any more decides nothing, and looks again when he does.
    pub(super) fn heard(
        &mut self,
        now: Time,
        (i, key, path): (usize, Key, String),
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Never>,
    ) {
        self.hosted[i].calls = self.hosted[i].calls.saturating_sub(1);
        self.one_less(i, &key);
        let Some(run) = self.hosted[i].runs.get_mut(&key) else { return };
        run.answers.insert(path, result);
        if run.pending > 0 {
            return;
        }
        let answers = std::mem::take(&mut run.answers);
        if self.is_outdated(now, i, &key) {
            return self.fail(now, i, &key);
        }
        self.hosted[i].runs.remove(&key);
        self.decide(now, i, key, answers, fx);
    }
}
