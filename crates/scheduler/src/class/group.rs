//! Nodes that plugins with a view on many nodes judge alike, and in them who is best by what is on the node.

use std::collections::BTreeMap;

use crate::NodeId;
use crate::tables::ValueId;

/// What nodes of a group have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKey {
    /// Preferred taints that are not tolerated.
    pub intolerable: i64,
    /// Weight of preferred node affinity that matches.
    pub preferred: i64,
    /// Which of the pod's images are there, as bits.
    pub images: u64,
    /// A pod there does not want the pod on its node.
    pub unwanted: bool,
    /// Weight of affinity between pods whose domain is the node.
    pub attraction: i64,
    /// The node's values of the shared topology keys.
    pub domains: Vec<ValueId>,
    /// Counts of the counters whose domains are single nodes; below zero where the node is no domain.
    pub counts: Vec<i64>,
}

/// Where a node is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub group: u32,
    pub score: i64,
    at: u32,
}

/// Nodes of one key, by score.
#[derive(Debug, Default)]
pub struct Group {
    pub key: GroupKey,
    pub nodes: usize,
    pub by_score: BTreeMap<i64, Vec<NodeId>>,
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    ids: BTreeMap<GroupKey, u32>,
    groups: Vec<Group>,
    free: Vec<u32>,
}

impl Groups {
    /// Puts a node in. Who is at which place is told to `moved` when it changes.
    pub fn insert(&mut self, key: &GroupKey, score: i64, node: NodeId) -> Place {
        let group = match self.ids.get(key) {
            Some(group) => *group,
            None => {
                let fresh = Group { key: key.clone(), ..Group::default() };
                let group = match self.free.pop() {
                    Some(free) => {
                        self.groups[free as usize] = fresh;
                        free
                    }
                    None => {
                        self.groups.push(fresh);
                        u32::try_from(self.groups.len() - 1).unwrap_or(u32::MAX)
                    }
                };
                self.ids.insert(key.clone(), group);
                group
            }
        };
        let slot = &mut self.groups[group as usize];
        slot.nodes += 1;
        let bucket = slot.by_score.entry(score).or_default();
        bucket.push(node);
        Place { group, score, at: u32::try_from(bucket.len() - 1).unwrap_or(u32::MAX) }
    }
    /// Takes a node out. Returns the node that took its place, with that place.
    pub fn remove(&mut self, place: Place) -> Option<(NodeId, Place)> {
        let slot = self.groups.get_mut(place.group as usize)?;
        let bucket = slot.by_score.get_mut(&place.score)?;
        bucket.swap_remove(place.at as usize);
        let moved = bucket.get(place.at as usize).map(|node| (*node, place));
        if bucket.is_empty() {
            slot.by_score.remove(&place.score);
        }
        slot.nodes -= 1;
        if slot.nodes == 0 {
            self.ids.remove(&slot.key);
            self.free.push(place.group);
        }
        moved
    }
    /// Whether a node at this place is where it should be already.
    pub fn stays(&self, place: Place, key: &GroupKey, score: i64) -> bool {
        place.score == score && self.groups.get(place.group as usize).is_some_and(|g| g.key == *key)
    }
    /// One group.
    pub fn get(&self, group: u32) -> Option<&Group> {
        self.groups.get(group as usize)
    }
    /// Groups that have nodes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        (0..).zip(&self.groups).filter(|(_, group)| group.nodes > 0)
    }
}
