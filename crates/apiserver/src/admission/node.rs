//! Nodes: agents write their own objects only (NodeRestriction, whose rules are in `carrack-auth`), and new
//! nodes take no pods before somebody saw them ready (TaintNodesByCondition).

use carrack_auth::node::restriction::{self, Write};
use serde_json::{Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Operation};
use crate::object::child_mut;
use crate::status::Status;

pub(super) struct NodeRestriction;

impl AdmissionPlugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let caller = attributes.caller;
        if caller.node_name().is_none() && caller.virt_handler_node().is_none() {
            return Ok(());
        }
        let object = (!attributes.object.is_empty()).then(|| Value::Object(attributes.object.clone()));
        let stored = attributes.old.map(|old| Value::Object(old.clone()));
        let write = Write {
            operation: match attributes.operation {
                Operation::Create => restriction::Operation::Create,
                Operation::Update => restriction::Operation::Update,
                Operation::Delete | Operation::Connect => restriction::Operation::Delete,
            },
            group: &attributes.row.group,
            resource: &attributes.row.plural,
            subresource: attributes.subresource,
            namespace: attributes.namespace,
            name: &attributes.name,
            object: object.as_ref(),
            stored: stored.as_ref(),
        };
        restriction::restrict(caller, &write).map_err(|why| attributes.forbidden(&why))
    }
}

/// Of new nodes; the node lifecycle controller takes it away again.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub(super) struct TaintNodesByCondition;

impl AdmissionPlugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !attributes.is("", "nodes") || attributes.operation != Operation::Create {
            return Ok(());
        }
        let taints = child_mut(&mut attributes.object, "spec").entry("taints").or_insert_with(|| json!([]));
        if taints.is_null() {
            *taints = json!([]);
        }
        let Some(taints) = taints.as_array_mut() else { return Ok(()) };
        if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
        }
        Ok(())
    }
}
