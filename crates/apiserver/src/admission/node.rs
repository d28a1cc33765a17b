//! NodeRestriction: node agents write their own objects only. The rules are in `carrack-auth`.

use carrack_auth::node::restriction::{self, Write};
use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Operation};
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
