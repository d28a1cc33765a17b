//! Replaces pods of other revisions: old ones go first, within what may be unavailable, or new ones come first, within the
//! surge.

use std::sync::Arc;

use carrack_engine::{Plan, View};
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::super::pods;
use super::{Known, place};

/// One step of an update.
pub(super) fn plan(view: &View<'_>, known: &Known<'_>) -> Plan {
    if known.bounds().0 > 0 { surge(view, known) } else { in_place(known) }
}

/// The pods of a node that count, the old one and the new one.
fn pair<'a>(known: &'a Known<'_>, node: &Node) -> (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>) {
    let living = || known.on(node.name()).iter().filter(|p| pods::active(p));
    (living().find(|p| !known.is_new(p)), living().find(|p| known.is_new(p)))
}

fn in_place(known: &Known<'_>) -> Plan {
    let mut unavailable = 0;
    let (mut at_once, mut in_turn) = (Vec::new(), Vec::new());
    for (node, runs, _) in &known.nodes {
        let (old, new) = pair(known, node);
        match old.or(new) {
            Some(pod) if known.is_available(pod) => in_turn.extend(old),
            Some(_) => {
                unavailable += i32::from(*runs);
                // Nothing is lost with a pod that serves nobody.
                at_once.extend(old);
            }
            None => unavailable += i32::from(*runs),
        }
    }
    let budget = usize::try_from(known.bounds().1 - unavailable).unwrap_or(0);
    at_once
        .into_iter()
        .chain(in_turn.into_iter().take(budget))
        .fold(Plan::none(), |plan, pod| place::remove(plan, known, pod))
}

fn surge(view: &View<'_>, known: &Known<'_>) -> Plan {
    let (surge, _) = known.bounds();
    let mut beside = 0;
    let mut plan = Plan::none();
    let (mut at_once, mut in_turn) = (Vec::new(), Vec::new());
    for (node, runs, _) in &known.nodes {
        match pair(known, node) {
            (Some(old), Some(new)) => {
                if known.is_available(new) {
                    plan = place::remove(plan, known, old);
                } else {
                    beside += 1;
                }
            }
            (Some(old), None) if *runs => {
                // A pod that is on its way already is not made again.
                if known.on(node.name()).iter().any(|p| known.is_new(p)) {
                    beside += 1;
                } else if known.is_available(old) {
                    in_turn.push(node);
                } else {
                    at_once.push(node);
                }
            }
            _ => {}
        }
    }
    let budget = usize::try_from(surge - beside).unwrap_or(0);
    at_once.into_iter().chain(in_turn).take(budget).fold(plan, |plan, node| place::make(plan, view, known, node))
}
