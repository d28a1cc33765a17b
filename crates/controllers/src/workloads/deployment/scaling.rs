//! Replicas that somebody changed: they are spread over the sets in proportion to what each has.

use std::sync::Arc;

use carrack_engine::{Plan, Write};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::ReplicaSet;

use super::sets::Sets;
use super::{Wanted, annotations, available, resize, spec_replicas};

/// Whether the Deployment was scaled since its sets were. Where one that recreates its pods has several sets with pods, because it
/// rolled them before, nothing is spread over these: its rollout takes the old ones away, and gives the template's its size.
/// (Upstream's waits without end, see `scale` in pkg/controller/deployment/sync.go.)
pub(crate) fn is_asked(wanted: Wanted<'_>, sets: &Sets) -> bool {
    let active: Vec<&Arc<ReplicaSet>> = sets.all().into_iter().filter(|s| spec_replicas(s) > 0).collect();
    let is_other = |set: &&Arc<ReplicaSet>| {
        let desired: Option<i32> = annotations::number(&set.metadata, annotations::DESIRED);
        desired.is_some_and(|desired| desired != wanted.replicas)
    };
    let is_between = wanted.is_recreate() && active.len() > 1;
    !is_between && active.iter().any(is_other)
}

/// Scales the sets to what the Deployment asks for. None grows while one has pods that it is to remove: those would come on top.
pub(crate) fn scale(wanted: Wanted<'_>, sets: &Sets) -> Plan {
    let plan = spread(wanted, sets);
    let size =
        |name: &str| sets.all().into_iter().find(|s| s.name() == name).map_or(0, |s| i64::from(spec_replicas(s)));
    let grows = plan.writes.iter().any(|write| match write {
        Write::Update { object, .. } => object["spec"]["replicas"].as_i64() > Some(size(&write.key().name)),
        _ => false,
    });
    let removes = !sets.are_current() || sets.most() > sets.spec_total();
    if grows && removes { Plan::none() } else { plan }
}

fn spread(wanted: Wanted<'_>, sets: &Sets) -> Plan {
    let all = sets.all();
    let active: Vec<&Arc<ReplicaSet>> = all.iter().copied().filter(|s| spec_replicas(s) > 0).collect();
    // One set with pods, or none: it, or the template's, or the newest gets all.
    if active.len() <= 1 {
        let only = active.first().copied().or(sets.new.as_ref()).or_else(|| all.last().copied());
        return only.map_or_else(Plan::none, |set| resize(wanted, set, wanted.replicas));
    }
    if let Some(new) = &sets.new
        && is_saturated(wanted, new)
    {
        let old = active.into_iter().filter(|s| s.uid() != new.uid());
        return old.fold(Plan::none(), |plan, set| plan.then(resize(wanted, set, 0)));
    }
    if wanted.is_recreate() {
        return Plan::none();
    }
    proportionally(wanted, active)
}

fn is_saturated(wanted: Wanted<'_>, set: &ReplicaSet) -> bool {
    spec_replicas(set) == wanted.replicas
        && annotations::number(&set.metadata, annotations::DESIRED) == Some(wanted.replicas)
        && available(set) == wanted.replicas
}

/// Spreads what is to be added or taken in proportion to the sets' sizes, the larger ones first; what rounding leaves goes to
/// the largest.
fn proportionally(wanted: Wanted<'_>, mut active: Vec<&Arc<ReplicaSet>>) -> Plan {
    let allowed = if wanted.replicas > 0 { wanted.replicas.saturating_add(wanted.max_surge()) } else { 0 };
    let total = active.iter().map(|s| spec_replicas(s)).fold(0, i32::saturating_add);
    let to_add = allowed.saturating_sub(total);
    // `active` has the oldest first. Growing, of equals the newer goes first; shrinking, the older.
    if to_add > 0 {
        active.reverse();
    }
    active.sort_by_key(|s| std::cmp::Reverse(spec_replicas(s)));
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::new();
    for set in &active {
        let left = to_add - added;
        let share = fraction(wanted, set, allowed);
        let share = match to_add {
            0 => 0,
            1.. => share.min(left).max(0),
            _ => share.max(left).min(0),
        };
        added += share;
        sizes.push(spec_replicas(set).saturating_add(share));
    }
    if let Some(first) = sizes.first_mut() {
        *first = first.saturating_add(to_add - added).max(0);
    }
    active.into_iter().zip(sizes).fold(Plan::none(), |plan, (set, size)| plan.then(resize(wanted, set, size)))
}

/// By how much a set is to grow so that it has the same part of the new size as it has of the old one.
fn fraction(wanted: Wanted<'_>, set: &ReplicaSet, allowed: i32) -> i32 {
    let size = i64::from(spec_replicas(set));
    if wanted.replicas == 0 {
        return i32::try_from(-size).unwrap_or(0);
    }
    let told = annotations::number::<i64>(&set.metadata, annotations::MAX).filter(|max| *max > 0);
    let there = || wanted.deployment.status.as_ref().and_then(|s| s.replicas).map(i64::from).filter(|n| *n > 0);
    // Where nothing says what it is a part of, it stays as it is.
    let Some(of) = told.or_else(there) else { return 0 };
    // Rounded to the nearest.
    let new =
        (size.saturating_mul(i64::from(allowed)).saturating_mul(2).saturating_add(of)).div_euclid(of.saturating_mul(2));
    i32::try_from(new - size).unwrap_or(0)
}
