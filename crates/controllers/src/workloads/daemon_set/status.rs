//! A DaemonSet's status.

use carrack_engine::Plan;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};

use super::super::pods;
use super::Known;
use carrack_types::resource::Object as _;

/// One more collision of a revision's name.
pub(super) fn collided(set: &DaemonSet) -> Plan {
    let mut status = set.status.clone().unwrap_or_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
    Plan::none().update_status(set, &DaemonSet { status: Some(status), ..set.clone() })
}

/// Writes the status if it is another one, and looks again when a pod becomes available by the passing of time.
pub(super) fn write(known: &Known<'_>) -> Plan {
    let old = known.set.status.clone().unwrap_or_default();
    let mut new = DaemonSetStatus {
        observed_generation: known.set.metadata.generation,
        collision_count: old.collision_count,
        conditions: old.conditions.clone(),
        desired_number_scheduled: known.desired(),
        ..DaemonSetStatus::default()
    };
    let (mut updated, mut available) = (0, 0);
    let mut plan = Plan::none();
    for (node, runs, _) in &known.nodes {
        let mut here: Vec<_> = known.on(node.name()).iter().collect();
        if !*runs {
            new.number_misscheduled += i32::from(!here.is_empty());
            continue;
        }
        // The oldest speaks for its node, of those that were bound to it (`podByCreationTimestampAndPhase`).
        here.sort_by_key(|p| {
            (pods::node(p).is_empty(), p.metadata.creation_timestamp.as_ref().map(|t| t.0), p.name().to_owned())
        });
        let Some(first) = here.first() else { continue };
        new.current_number_scheduled += 1;
        new.number_ready += i32::from(pods::ready(first));
        updated += i32::from(known.is_new(first));
        match known.availability(first) {
            Ok(()) => available += 1,
            Err(Some(left)) => plan = plan.requeue_after(left),
            Err(None) => {}
        }
    }
    let some = |n: i32| (n > 0).then_some(n);
    new.updated_number_scheduled = some(updated);
    new.number_available = some(available);
    new.number_unavailable = some(new.desired_number_scheduled - available);
    if new == old {
        return plan;
    }
    plan.update_status(known.set, &DaemonSet { status: Some(new), ..known.set.clone() })
}
