//! Replaces pods of other revisions, from the last ordinal down to the partition.

use carrack_engine::Plan;
use carrack_types::resource::Object as _;

use super::super::scale::scaled;
use super::{Known, scale};

/// How many pods may be unavailable at once.
fn max_unavailable(known: &Known<'_>) -> i32 {
    let rolling = known.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    let replicas = i32::try_from(known.replicas()).unwrap_or(i32::MAX);
    rolling.and_then(|r| r.max_unavailable.as_ref()).map_or(1, |v| scaled(v, replicas, false)).max(1)
}

/// One step of an update. A pod of another revision that is not available goes at once: nothing is lost with it.
pub(super) fn plan(known: &Known<'_>) -> Plan {
    if !known.rolls() {
        return Plan::none();
    }
    let unavailable = known.ordinals().filter(|o| known.pods.get(o).is_none_or(|p| known.healthy(p).is_err())).count();
    let mut budget = usize::try_from(max_unavailable(known)).unwrap_or(1).saturating_sub(unavailable);
    let mut plan = Plan::none();
    for ordinal in known.ordinals().rev().take_while(|o| *o >= known.partition()) {
        let Some(pod) = known.pods.get(&ordinal).filter(|p| !p.is_deleting()) else { continue };
        if known.is_new(pod) {
            continue;
        }
        if known.healthy(pod).is_ok() {
            if budget == 0 {
                return plan;
            }
            budget -= 1;
        }
        plan = scale::remove(plan, known, pod);
    }
    plan
}
