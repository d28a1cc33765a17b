//! A StatefulSet's status.

use carrack_engine::Plan;
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;

use super::super::pods;
use super::Known;

/// One more collision of a revision's name.
pub(super) fn collided(set: &StatefulSet) -> Plan {
    let mut status = set.status.clone().unwrap_or_default();
    status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
    Plan::none().update_status(set, &StatefulSet { status: Some(status), ..set.clone() })
}

/// Writes the status if it is another one, and looks again when a pod becomes available by the passing of time.
pub(super) fn write(known: &Known<'_>) -> Plan {
    let old = known.set.status.clone().unwrap_or_default();
    let count = |holds: &dyn Fn(&Pod) -> bool| -> i32 {
        i32::try_from(known.pods.values().filter(|p| holds(p)).count()).unwrap_or(i32::MAX)
    };
    let some = |n: i32| (n > 0).then_some(n);
    let available = |pod: &Pod| known.healthy(pod).is_ok();
    let ready = |pod: &Pod| pods::ready(pod) && pods::phase(pod) == "Running";
    let stays = |pod: &Pod| !pod.is_deleting();
    let updated = count(&|p| stays(p) && known.is_new(p));
    let mut new = StatefulSetStatus {
        observed_generation: known.set.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: some(count(&ready)),
        available_replicas: Some(count(&available)),
        current_replicas: some(count(&|p| stays(p) && known.is_current(p))),
        updated_replicas: some(updated),
        current_revision: Some(known.current.name().to_owned()),
        update_revision: Some(known.update.name().to_owned()),
        collision_count: old.collision_count.or(Some(0)),
        conditions: old.conditions.clone(),
    };
    // The update is over: what was the newer revision is the current one.
    let replicas = i32::try_from(known.replicas()).unwrap_or(i32::MAX);
    let all_new = known.rolls() && updated == replicas && new.replicas == replicas;
    if all_new && new.ready_replicas.unwrap_or(0) == replicas && new.current_revision != new.update_revision {
        new.current_revision.clone_from(&new.update_revision);
        new.current_replicas = some(updated);
    }
    let mut plan = Plan::none();
    for pod in known.pods.values() {
        if let Err(Some(left)) = known.healthy(pod) {
            plan = plan.requeue_after(left);
        }
    }
    if new == old {
        return plan;
    }
    plan.update_status(known.set, &StatefulSet { status: Some(new), ..known.set.clone() })
}
