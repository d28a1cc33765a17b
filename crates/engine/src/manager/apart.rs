//! Writes of a plan that stand each for itself ([`Plan::each_apart`](crate::Plan::each_apart)): where one is refused, those behind
//! it are made all the same, and the key comes back with backoff for what is left.

use super::Manager;
use crate::{Effects, Key, Never, StatusError, Time};

impl Manager {
    /// Whether a refusal is about the object, and not about who asks or when, or in which term: another write may fare better.
    pub(super) fn is_of_the_object(&self, error: &StatusError) -> bool {
        matches!(error.code, 400 | 403 | 404 | 405 | 409 | 413 | 422)
            && !self.elector.as_ref().is_some_and(|elector| elector.is_over_by(error))
    }

    /// Whether the first write that is not done stands for itself alone.
    pub(super) fn stands_apart(&self, i: usize, key: &Key) -> bool {
        self.hosted[i].runs.get(key).is_some_and(|run| !run.failed && run.apart.contains(&run.done))
    }

    /// The first write was refused, and the others do not rest on it.
    pub(super) fn leave_out(&mut self, now: Time, i: usize, key: &Key, fx: &mut Effects<Never>) {
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            run.writes.pop_front();
            run.done += 1;
            run.left_out = true;
            let done = run.done;
            run.told.retain(|(after, _)| *after > done);
        }
        self.next_write(now, i, key, fx);
    }
}
