//! NamespaceLifecycle: objects are created in namespaces that exist and are not going away, and the
//! namespaces that the system lives in stay.

use serde_json::Value;

use super::{AdmissionPlugin, Attributes, Lookup, Needed, Operation};
use crate::object::{is_deleting, str_at};
use crate::status::Status;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) struct NamespaceLifecycle;

impl AdmissionPlugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn needs(&self, attributes: &Attributes<'_>) -> Vec<Needed> {
        if attributes.operation == Operation::Create && !attributes.namespace.is_empty() {
            // Pinned, so that creating in a namespace and deleting it are in one order or the other.
            vec![Needed::one("", "namespaces", "", attributes.namespace).pinned()]
        } else {
            Vec::new()
        }
    }

    fn validate(&self, attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        if attributes.operation == Operation::Delete
            && attributes.is("", "namespaces")
            && IMMORTAL.contains(&attributes.name.as_str())
        {
            return Err(attributes.forbidden("this namespace may not be deleted"));
        }
        if attributes.operation != Operation::Create || attributes.namespace.is_empty() {
            return Ok(());
        }
        let namespace = attributes.namespace;
        let Some(object) = lookup.get("", "namespaces", "", namespace) else {
            return Err(Status::not_found("", "namespaces", namespace));
        };
        let phase = str_at(object, &["status", "phase"]);
        if phase == "Terminating" || is_deleting(object) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(attributes.forbidden(&why).because(
                "NamespaceTerminating",
                format!("namespace {namespace} is being terminated"),
                "metadata.namespace",
            ));
        }
        Ok(())
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
        // Before anything else looks at the object: what is missing here makes the rest moot.
        self.validate(attributes, lookup)?;
        if attributes.is("", "namespaces") && attributes.operation != Operation::Delete {
            let name = attributes.name.clone();
            if !name.is_empty() {
                let metadata = crate::object::metadata_mut(&mut attributes.object);
                let labels = crate::object::child_mut(metadata, "labels");
                labels.insert("kubernetes.io/metadata.name".to_owned(), Value::String(name));
            }
        }
        Ok(())
    }
}
