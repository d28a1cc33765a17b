//! Claims that wait for their first consumer: an existing volume, or one to be made, for each of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::placement::selector_matches;
use carrack_types::quantity::Quantity;
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use carrack_types::volume::{SELECTED_NODE, class_of_claim, requested};
use carrack_types::well_known::storage::{BIND_COMPLETED, NO_PROVISIONER};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, TopologySelectorLabelRequirement};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Plan;
use crate::cluster::{ObjectName, Objects};

/// Whether a claim has its volume for good.
#[must_use]
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default();
    !volume.is_empty() && claim.annotation(BIND_COMPLETED).is_some()
}

/// The class of a claim.
pub(super) fn class<'a>(claim: &PersistentVolumeClaim, objects: &'a Objects) -> Option<&'a Arc<StorageClass>> {
    Objects::global(&objects.classes, class_of_claim(claim))
}

/// Whether a claim waits for its first consumer.
pub fn is_delayed(claim: &PersistentVolumeClaim, objects: &Objects) -> bool {
    class(claim, objects).is_some_and(|c| c.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

/// A claim that waits for its first consumer, with all that could be its volume wherever the pod goes: looked up once, and
/// not again for each node.
#[derive(Clone, Debug)]
pub struct Delayed {
    claim: Arc<PersistentVolumeClaim>,
    name: ObjectName,
    size: Quantity,
    /// Volumes that suit it where they can be reached, the best first.
    volumes: Vec<Arc<PersistentVolume>>,
    /// These are meant for it, and no other will do.
    is_promised: bool,
    /// Where there is room for one to be made, if its driver tells of that.
    room: Option<Room>,
}

impl Delayed {
    /// Looks up what could be a claim's volume.
    pub fn of(claim: &Arc<PersistentVolumeClaim>, objects: &Objects) -> Self {
        let name: ObjectName = (claim.namespace().to_owned(), claim.name().to_owned());
        let size = requested(claim);
        // Nobody chooses for one whose volume is being made already.
        let is_open = claim.annotation(SELECTED_NODE).is_none();
        let (volumes, is_promised) = if is_open { suiting(claim, &name, size, objects) } else { (Vec::new(), false) };
        let room = class(claim, objects).filter(|_| is_open).and_then(|class| Room::of(class, size, objects));
        Self { claim: claim.clone(), name, size, volumes, is_promised, room }
    }
    /// Puts the larger ones first, which are harder to please.
    pub fn smallness(&self) -> Reverse<Quantity> {
        Reverse(self.size)
    }
}

/// What would have to be done for these claims at a node.
///
/// # Errors
/// Why it cannot be done.
pub fn plan(claims: &[Delayed], node: &Node, objects: &Objects) -> Result<Plan, &'static str> {
    const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
    let mut plan = Plan::default();
    for Delayed { claim, name, volumes, is_promised, room, .. } in claims {
        if let Some(selected) = claim.annotation(SELECTED_NODE) {
            // Its volume is being made at that node.
            if selected != node.name() {
                return Err(NO_VOLUME);
            }
            plan.provisions.push(name.clone());
            continue;
        }
        let is_taken = |volume: &PersistentVolume| plan.bindings.iter().any(|(_, taken)| taken == volume.name());
        if let Some(volume) = volumes.iter().find(|volume| reaches(volume, node) && !is_taken(volume)) {
            plan.bindings.push((name.clone(), volume.name().to_owned()));
            continue;
        }
        if *is_promised {
            return Err(NO_VOLUME);
        }
        let Some(class) = class(claim, objects).filter(|c| !matches!(&*c.provisioner, "" | NO_PROVISIONER)) else {
            return Err(NO_VOLUME);
        };
        if !topology_allowed(class, node) {
            return Err(NO_VOLUME);
        }
        if !room.as_ref().is_none_or(|room| room.is_at(node)) {
            return Err("node(s) did not have enough free storage");
        }
        plan.provisions.push(name.clone());
    }
    Ok(plan)
}

/// The volumes that suit a claim where they can be reached, the smallest first. Where some are meant for it these alone, as is
/// told: also where they cannot be reached the claim takes no others, of which it would have one too many
/// (component-helpers/storage/volume, `FindMatchingVolume`).
fn suiting(
    claim: &PersistentVolumeClaim,
    key: &ObjectName,
    size: Quantity,
    objects: &Objects,
) -> (Vec<Arc<PersistentVolume>>, bool) {
    let Some(wanted) = &claim.spec else { return (Vec::new(), false) };
    let class = class_of_claim(claim);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let mut found: Vec<(bool, Quantity, &Arc<PersistentVolume>)> = Vec::new();
    for volume in objects.volumes.values() {
        let Some(spec) = &volume.spec else { continue };
        let mine = spec.claim_ref.as_ref().is_some_and(|r| {
            r.name.as_deref() == Some(claim.name())
                && r.namespace.as_deref() == Some(claim.namespace())
                && r.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
        });
        let free = || volume.status.as_ref().and_then(|s| s.phase.as_deref()).is_none_or(|p| p == "Available");
        let of_class = || {
            spec.storage_class_name.as_deref().unwrap_or_default() == class
                && spec.volume_attributes_class_name.as_deref().unwrap_or_default()
                    == wanted.volume_attributes_class_name.as_deref().unwrap_or_default()
        };
        // Most volumes are another's: what says so is looked at first.
        if !(mine || spec.claim_ref.is_none() && of_class() && free()) {
            continue;
        }
        let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage")).and_then(|q| Quantity::try_from(q).ok());
        let capacity = capacity.unwrap_or_default();
        let promised = objects.promised.get(volume.name()).is_some_and(|to| to != key);
        let suits = !promised
            && !volume.is_deleting()
            && capacity >= size
            && mode(&spec.volume_mode) == mode(&wanted.volume_mode)
            && wanted
                .access_modes
                .iter()
                .flatten()
                .all(|mode| spec.access_modes.as_ref().is_some_and(|modes| modes.contains(mode)))
            && (mine || wanted.selector.as_ref().is_none_or(|s| selects(s, volume.metadata.labels.as_ref())));
        if suits {
            found.push((mine, capacity, volume));
        }
    }
    let is_promised = found.iter().any(|(mine, ..)| *mine);
    found.retain(|(mine, ..)| *mine == is_promised);
    // Of equals the first by name stays first.
    found.sort_by_key(|(_, capacity, _)| *capacity);
    (found.into_iter().map(|(_, _, volume)| volume.clone()).collect(), is_promised)
}

/// Whether a volume can be used on a node.
pub fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    required.is_none_or(|selector| selector_matches(selector, node))
}

fn topology_allowed(class: &StorageClass, node: &Node) -> bool {
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.as_ref();
    allowed.is_empty()
        || allowed.iter().any(|term| {
            // A term without any is no node's (component-helpers/scheduling/corev1, `MatchTopologySelectorTerms`).
            let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
            let is_so = |e: &TopologySelectorLabelRequirement| {
                labels.and_then(|l| l.get(&e.key)).is_some_and(|v| e.values.contains(v))
            };
            !expressions.is_empty() && expressions.iter().all(is_so)
        })
}

/// Where a driver has room enough for a volume: what chooses such nodes, by a label that they have for it.
#[derive(Clone, Debug, Default)]
struct Room {
    /// By key and value of a label.
    by_label: BTreeMap<String, BTreeMap<String, Vec<LabelSelector>>>,
    others: Vec<LabelSelector>,
}

impl Room {
    /// Where there is room for a volume of a class; none where its driver does not tell.
    fn of(class: &StorageClass, size: Quantity, objects: &Objects) -> Option<Self> {
        let driver = Objects::global(&objects.drivers, &class.provisioner)?;
        if driver.spec.storage_capacity != Some(true) {
            return None;
        }
        let quantity = |q: &Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
            q.as_ref().and_then(|q| Quantity::try_from(q).ok())
        };
        let mut room = Self::default();
        for told in objects.capacities.values().filter(|told| told.storage_class_name == class.name()) {
            // The largest single volume, where the driver knows it.
            let most = quantity(&told.maximum_volume_size).or_else(|| quantity(&told.capacity)).unwrap_or_default();
            if let Some(nodes) = told.node_topology.as_ref().filter(|_| most >= size) {
                room.add(nodes);
            }
        }
        Some(room)
    }
    fn add(&mut self, nodes: &LabelSelector) {
        let list = match nodes.match_labels.iter().flatten().next() {
            Some((key, value)) => self.by_label.entry(key.clone()).or_default().entry(value.clone()).or_default(),
            None => &mut self.others,
        };
        list.push(nodes.clone());
    }
    fn is_at(&self, node: &Node) -> bool {
        let labels = node.metadata.labels.as_ref();
        let chosen = |list: &Vec<LabelSelector>| list.iter().any(|nodes| selects(nodes, labels));
        let of_label = |(key, lists): (&String, &BTreeMap<String, Vec<LabelSelector>>)| {
            labels.and_then(|labels| labels.get(key)).and_then(|value| lists.get(value)).is_some_and(chosen)
        };
        chosen(&self.others) || self.by_label.iter().any(of_label)
    }
}
