//! Whether an instance may be started elsewhere when its node dies, decided when it gets its pod.
//!
//! One that may runs under its node's Lease (see [`crate::fence`]): the node stops it when it is cut off. That is asked
//! of a guest only if it brings something: its machine is started again by itself, there is another node for it, and
//! everything that it keeps can be had there. What is not known for sure counts as a reason against.

use std::collections::BTreeMap;

use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::SCHEDULABLE_LABEL;
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};

use super::{World, state};
use crate::fence;

/// What speaks against it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Against {
    /// For people.
    pub(super) why: String,
    /// A claim has no volume yet: it may have one by the time that the pod runs.
    pub(super) passes: bool,
}

impl From<String> for Against {
    fn from(why: String) -> Self {
        Self { why, passes: false }
    }
}

/// Decides; `Err` says why not.
pub(super) fn decide(world: &World<'_>) -> Result<(), Against> {
    let vmi = world.vmi;
    let machine = world.view.get::<VirtualMachine>(vmi.namespace(), vmi.name());
    let machine = machine.filter(|vm| vmi.controller_uid() == Some(vm.uid()));
    if !machine.is_some_and(|vm| fence::comes_back(vm)) {
        return Err("nothing starts it again by itself".to_owned().into());
    }
    let nodes: Vec<&Node> = world
        .view
        .cache::<Node>()
        .iter()
        .map(AsRef::as_ref)
        .filter(|node| node.label(SCHEDULABLE_LABEL).is_some())
        .collect();
    if nodes.len() < 2 {
        return Err("there is no other node for virtual machines".to_owned().into());
    }
    let state = state::claim_name(vmi);
    let volumes = vmi.spec.volumes.iter().filter_map(|volume| Some((volume.name.as_str(), volume.claim_name()?)));
    for (volume, claim) in volumes.chain(state.iter().map(|claim| (state::VOLUME, claim.as_str()))) {
        let what = format!("volume {volume} (claim {claim})");
        let found = world.view.get::<PersistentVolumeClaim>(vmi.namespace(), claim);
        let bound = found.and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
        let disk = bound.and_then(|name| world.view.get::<PersistentVolume>("", &name));
        let spec = disk
            .and_then(|disk| disk.spec.as_ref())
            .ok_or_else(|| Against { why: format!("{what} is not bound yet"), passes: true })?;
        if !is_on_several(spec, &nodes) {
            return Err(format!("{what} exists on one node only").into());
        }
    }
    Ok(())
}

/// The term in which the guest of an instance will start, as its node's Lease has it, for one that is handed over and
/// runs under it. The handler writes its own where this is wrong or missing: nothing rests on its being the newest.
pub(super) fn term(world: &World<'_>, handed_over: &VirtualMachineInstance) -> Option<i64> {
    if !fence::is_bound(handed_over) {
        return None;
    }
    let node = handed_over.status.as_ref()?.node_name.as_str();
    let lease = fence::lease(world.view, node)?;
    (!fence::is_marked(lease)).then(|| fence::term(lease))
}

/// Whether a disk can be had on more than one node. A path of a node is that node's own, unless the volume says of
/// itself on which nodes it is the same.
fn is_on_several(disk: &PersistentVolumeSpec, nodes: &[&Node]) -> bool {
    let required = disk.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    match required {
        None => disk.host_path.is_none() && disk.local.is_none(),
        Some(selector) => {
            let fits = |node: &&&Node| selector.node_selector_terms.iter().any(|term| matches(term, node));
            nodes.iter().filter(fits).count() > 1
        }
    }
}

/// Whether a node fits a term by its labels. What is not understood does not fit.
fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let empty = BTreeMap::new();
    let labels = node.meta().labels.as_ref().unwrap_or(&empty);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    if expressions.is_empty() || term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty()) {
        return false;
    }
    expressions.iter().all(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        let value = labels.get(&expression.key);
        match expression.operator.as_str() {
            "In" => value.is_some_and(|value| values.contains(value)),
            "NotIn" => value.is_none_or(|value| !values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_disk_of_one_node_is_not_elsewhere() {
        let node = |name: &str| -> Node {
            carrack_types::json::from_value(
                json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}),
            )
            .expect("a node")
        };
        let nodes = [node("a"), node("b"), node("c")];
        let nodes: Vec<&Node> = nodes.iter().collect();
        let on = |names: &[&str]| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}]}})
        };
        let check = |spec: Value, expected: bool| {
            let disk: PersistentVolumeSpec = serde_json::from_value(spec.clone()).expect("a disk");
            assert_eq!(is_on_several(&disk, &nodes), expected, "{spec}");
        };
        check(json!({"hostPath": {"path": "/d"}}), false);
        check(json!({"local": {"path": "/d"}, "nodeAffinity": on(&["a"])}), false);
        check(json!({"local": {"path": "/d"}, "nodeAffinity": on(&["a", "gone"])}), false);
        check(json!({"local": {"path": "/d"}, "nodeAffinity": on(&["a", "b"])}), true);
        check(json!({"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": on(&["c"])}), false);
        check(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), true);
        check(json!({"nfs": {"server": "s", "path": "/"}}), true);
    }
}
