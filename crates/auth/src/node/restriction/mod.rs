//! Admission that keeps node agents to what is theirs, where that depends on the request's content.
//!
//! Kubelets: upstream's `NodeRestriction`. virt-handlers: what KubeVirt does with a
//! ValidatingAdmissionPolicy on nodes and a webhook on VirtualMachineInstances.

mod kubelet;
#[cfg(test)]
mod tests;
mod virt_handler;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::caller::Caller;

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It is created, or a subresource is posted to.
    Create,
    /// It is updated or patched.
    Update,
    /// It is deleted.
    Delete,
}

/// A write, as admission sees it.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// What is done.
    pub operation: Operation,
    /// API group.
    pub group: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty.
    pub namespace: &'a str,
    /// The object's name; for a create the one in the object.
    pub name: &'a str,
    /// What is sent (after patches were applied); none for a delete.
    pub object: Option<&'a Value>,
    /// The stored object. For `pods/eviction` the pod; for `serviceaccounts/token` the pod that the
    /// token is to be bound to, if there is one.
    pub stored: Option<&'a Value>,
}

/// May this node agent make the write? Callers that are none may, as far as this is concerned.
///
/// # Errors
/// The sentence for the 403.
pub fn restrict(caller: &Caller, write: &Write<'_>) -> Result<(), String> {
    if let Some(node) = caller.node_name() {
        return kubelet::restrict(node, write);
    }
    if let Some(node) = caller.virt_handler_node() {
        return virt_handler::restrict(node, write);
    }
    Ok(())
}

fn text<'a>(value: Option<&'a Value>, pointer: &str) -> &'a str {
    value.and_then(|v| v.pointer(pointer)).and_then(Value::as_str).unwrap_or_default()
}

/// Whether a field is changed. Absent, null and empty are the same.
fn differs(w: &Write<'_>, pointer: &str) -> bool {
    let field = |value: Option<&'_ Value>| {
        value.and_then(|v| v.pointer(pointer)).cloned().filter(|v| match v {
            Value::Null => false,
            Value::Object(map) => !map.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        })
    };
    field(w.object) != field(w.stored)
}

/// The keys under `pointer` whose values are added, changed or removed.
fn changed_keys(w: &Write<'_>, pointer: &str) -> BTreeSet<String> {
    let map = |value: Option<&'_ Value>| {
        value.and_then(|v| v.pointer(pointer)).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (new, old) = (map(w.object), map(w.stored));
    new.keys().chain(old.keys()).filter(|key| new.get(*key) != old.get(*key)).cloned().collect()
}

fn in_domain(domain: &str, of: &str) -> bool {
    domain == of || domain.strip_suffix(of).is_some_and(|rest| rest.ends_with('.'))
}
