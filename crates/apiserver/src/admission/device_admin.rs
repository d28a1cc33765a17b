//! DeviceAdminAccess: a claim that looks at devices in use by others is for namespaces that may have such claims.
//!
//! Upstream: `pkg/registry/resource`, `AuthorizedForAdmin` and `AuthorizedForAdminStatus`.

use carrack_schema::error::FieldError;
use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{Object, at, meta};
use crate::status::Status;

const GROUP: &str = "resource.k8s.io";
/// Marks the namespaces.
const LABEL: &str = "resource.kubernetes.io/admin-access";

pub(super) struct DeviceAdminAccess;

/// Where a write asks for it, unless it was asked for before: that does not change.
fn asked(attributes: &Attributes<'_>) -> Option<String> {
    let of = |plural: &str| attributes.row.group == GROUP && attributes.row.plural == plural;
    let (list, flag): (&[&str], &[&str]) = match (attributes.operation, attributes.subresource) {
        (Operation::Create, "") if of("resourceclaims") => {
            (&["spec", "devices", "requests"], &["exactly", "adminAccess"])
        }
        (Operation::Create, "") if of("resourceclaimtemplates") => {
            (&["spec", "spec", "devices", "requests"], &["exactly", "adminAccess"])
        }
        (Operation::Update, "status") if of("resourceclaims") => {
            (&["status", "allocation", "devices", "results"], &["adminAccess"])
        }
        _ => return None,
    };
    let first = |object: &Object| {
        let asks = |one: &Value| flag.iter().fold(one, |value, key| &value[*key]).as_bool() == Some(true);
        at(object, list)?.as_array()?.iter().position(asks)
    };
    if attributes.old.is_some_and(|old| first(old).is_some()) {
        return None;
    }
    let index = first(&attributes.object)?;
    Some(format!("{}[{index}].adminAccess", list.join(".")))
}

impl AdmissionPlugin for DeviceAdminAccess {
    fn name(&self) -> &'static str {
        "DeviceAdminAccess"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if asked(attributes).is_some() {
            return vec![Needed::one("", "namespaces", "", attributes.namespace)];
        }
        Vec::new()
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        let Some(path) = asked(attributes) else { return Ok(()) };
        // What others ask for on the way finds it too where something is made: NamespaceLifecycle pins it there.
        let namespace = lookup.get("", "namespaces", "", attributes.namespace);
        let labels = namespace.and_then(|namespace| meta(namespace, "labels"));
        if labels.is_some_and(|labels| labels[LABEL] == "true") {
            return Ok(());
        }
        let text = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
        Err(Status::faulty(GROUP, &attributes.row.kind, &attributes.name, &[FieldError::forbidden(path, text)]))
    }
}
