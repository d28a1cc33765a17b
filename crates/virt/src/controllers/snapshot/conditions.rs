//! Conditions of snapshots and restores. As upstream's, they tell what happens in their reason, in a sentence.

use carrack_engine::Time;
use carrack_types::kubevirt::snapshot::condition;
use carrack_types::kubevirt::{Condition, set_condition};

fn put(conditions: &mut Vec<Condition>, kind: &str, is: bool, reason: &str, now: Time) {
    let status = if is { "True" } else { "False" };
    set_condition(conditions, Condition::new(kind, status, reason, ""), &now.meta());
}

/// Whether it can be used, or is done.
pub(crate) fn ready(conditions: &mut Vec<Condition>, is: bool, reason: &str, now: Time) {
    put(conditions, condition::READY, is, reason, now);
}

/// Whether something is being done.
pub(crate) fn progressing(conditions: &mut Vec<Condition>, is: bool, reason: &str, now: Time) {
    put(conditions, condition::PROGRESSING, is, reason, now);
}

/// It is over, and failed.
pub(crate) fn failure(conditions: &mut Vec<Condition>, reason: &str, now: Time) {
    put(conditions, condition::FAILURE, true, reason, now);
}
