//! Claims that wait for their first consumer: an existing volume, or one to be made, for each of them.

use std::sync::Arc;

use carrack_types::placement::term_matches;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::Plan;
use crate::cluster::{ObjectName, Objects};

/// Annotation of a claim: make its volume at this node.
pub const SELECTED_NODE_ANNOTATION: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED_ANNOTATION: &str = "pv.kubernetes.io/bind-completed";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Whether a claim has its volume for good.
#[must_use]
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    !volume.is_empty() && claim.annotation(BIND_COMPLETED_ANNOTATION).is_some()
}

fn class_name(claim: &PersistentVolumeClaim) -> &str {
    let annotation = claim.annotation("volume.beta.kubernetes.io/storage-class");
    annotation.or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref()).unwrap_or_default()
}

/// The class of a claim.
pub(super) fn class<'a>(claim: &PersistentVolumeClaim, objects: &'a Objects) -> Option<&'a Arc<StorageClass>> {
    Objects::global(&objects.classes, class_name(claim))
}

/// Whether a claim waits for its first consumer.
pub fn is_delayed(claim: &PersistentVolumeClaim, objects: &Objects) -> bool {
    class(claim, objects).is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

/// What would have to be done for these claims at a node.
///
/// # Errors
/// Why it cannot be done.
pub fn plan(claims: &[Arc<PersistentVolumeClaim>], node: &Node, objects: &Objects) -> Result<Plan, &'static str> {
    const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
    let mut plan = Plan::default();
    // The larger ones are harder to please.
    let mut claims: Vec<&Arc<PersistentVolumeClaim>> = claims.iter().collect();
    claims.sort_by_key(|claim| std::cmp::Reverse(size_of(claim)));
    for claim in claims {
        let name: ObjectName = (claim.namespace().to_owned(), claim.name().to_owned());
        if let Some(selected) = claim.annotation(SELECTED_NODE_ANNOTATION) {
            // Its volume is being made at that node.
            if selected != node.name() {
                return Err(NO_VOLUME);
            }
            plan.provisions.push(name);
            continue;
        }
        if let Some(volume) = best_volume(claim, node, objects, &plan) {
            plan.bindings.push((name, volume));
            continue;
        }
        let Some(class) = class(claim, objects).filter(|c| !matches!(&*c.provisioner, "" | NO_PROVISIONER)) else {
            return Err(NO_VOLUME);
        };
        if !topology_allowed(class, node) {
            return Err(NO_VOLUME);
        }
        if !has_room(class, claim, node, objects) {
            return Err("node(s) did not have enough free storage");
        }
        plan.provisions.push(name);
    }
    Ok(plan)
}

fn size_of(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
    requests.and_then(|r| r.get("storage")).and_then(|q| Quantity::try_from(q).ok()).unwrap_or_default()
}

/// The smallest volume that suits a claim at a node (volume/persistentvolume/util, `FindMatchingVolume`).
fn best_volume(claim: &PersistentVolumeClaim, node: &Node, objects: &Objects, plan: &Plan) -> Option<String> {
    let key = (claim.namespace().to_owned(), claim.name().to_owned());
    let wanted = claim.spec.as_ref()?;
    let size = size_of(claim);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let mut best: Option<(bool, Quantity, &str)> = None;
    for volume in objects.volumes.values() {
        let Some(spec) = &volume.spec else { continue };
        let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage")).and_then(|q| Quantity::try_from(q).ok());
        let capacity = capacity.unwrap_or_default();
        let mine = spec.claim_ref.as_ref().is_some_and(|r| {
            r.name.as_deref() == Some(claim.name())
                && r.namespace.as_deref() == Some(claim.namespace())
                && r.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
        });
        let free = volume.status.as_ref().and_then(|s| s.phase.as_deref()).is_none_or(|p| p == "Available");
        let promised = objects.promised.get(volume.name()).is_some_and(|to| *to != key)
            || plan.bindings.iter().any(|(_, taken)| taken == volume.name());
        let suits = !promised
            && !volume.is_deleting()
            && (mine || (spec.claim_ref.is_none() && free))
            && capacity >= size
            && mode(&spec.volume_mode) == mode(&wanted.volume_mode)
            && (mine || spec.storage_class_name.as_deref().unwrap_or_default() == class_name(claim))
            && wanted
                .access_modes
                .iter()
                .flatten()
                .all(|mode| spec.access_modes.as_ref().is_some_and(|modes| modes.contains(mode)))
            && (mine || wanted.selector.as_ref().is_none_or(|s| selects(s, volume.metadata.labels.as_ref())))
            && reaches(volume, node);
        // One that is meant for the claim goes before a smaller one.
        let better = best.is_none_or(|(m, c, _)| (mine && !m) || (mine == m && capacity < c));
        if suits && better {
            best = Some((mine, capacity, volume.name()));
        }
    }
    best.map(|(_, _, name)| name.to_owned())
}

fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    required.is_none_or(|s| s.node_selector_terms.iter().any(|t| term_matches(t, node)))
}

fn topology_allowed(class: &StorageClass, node: &Node) -> bool {
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.as_ref();
    allowed.is_empty()
        || allowed.iter().any(|term| {
            let mut expressions = term.match_label_expressions.iter().flatten();
            expressions.all(|e| labels.and_then(|l| l.get(&e.key)).is_some_and(|v| e.values.contains(v)))
        })
}

/// Whether a driver that tells its room has enough at a node.
fn has_room(class: &StorageClass, claim: &PersistentVolumeClaim, node: &Node, objects: &Objects) -> bool {
    let tells = Objects::global(&objects.drivers, &class.provisioner)
        .is_some_and(|driver| driver.spec.storage_capacity == Some(true));
    if !tells {
        return true;
    }
    let size = size_of(claim);
    let quantity = |q: &Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        q.as_ref().and_then(|q| Quantity::try_from(q).ok())
    };
    objects.capacities.values().any(|room| {
        // The largest single volume, where the driver knows it.
        let most = quantity(&room.maximum_volume_size).or_else(|| quantity(&room.capacity)).unwrap_or_default();
        room.storage_class_name == class.name()
            && most >= size
            && room.node_topology.as_ref().is_some_and(|s| selects(s, node.metadata.labels.as_ref()))
    })
}
