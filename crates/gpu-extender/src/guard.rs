//! Who may say which GPUs a pod has: admission of the annotations that the extender and the nodes' plugins believe.
//!
//! | who | may write |
//! | --- | --- |
//! | the extender, administrators (`system:masters`), and whom the API server is told | all of them |
//! | a node, on its own pods | `<prefix>/gpu-assigned` |
//! | everybody else | none |
//!
//! A pod that somebody else makes goes without them, and its maker is told: manifests are copied from pods that run,
//! annotations and all, and templates may hold them. Who changes them on a pod that is there, or by way of its status, is
//! refused. Otherwise whoever may make pods could name another one's GPU and get it, or name none and have his own counted
//! as free.

use std::collections::BTreeSet;

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup, Operation};
use carrack_apiserver::object::{Object, metadata_mut};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, USER_GPU_EXTENDER};
use serde_json::{Map, Value};

use crate::names::Names;

/// Admission of pods' annotations about GPUs. By default those of upstream's prefix, which Carrack's own extender writes.
#[derive(Clone, Debug)]
pub struct GpuAnnotations {
    names: Vec<Names>,
    writers: Vec<String>,
}

impl Default for GpuAnnotations {
    fn default() -> Self {
        Self::new(&[], &[])
    }
}

impl GpuAnnotations {
    /// Of upstream's prefix and these others; `writers` are users and groups that may write all of them, such as an
    /// extender of another make.
    #[must_use]
    pub fn new(prefixes: &[String], writers: &[String]) -> Self {
        let more = prefixes.iter().map(|prefix| Names::new(prefix));
        Self { names: std::iter::once(Names::default()).chain(more).collect(), writers: writers.to_vec() }
    }

    /// Whether a write of a pod, or of a part of it, is by somebody who may not write all of them.
    fn concerns(&self, attributes: &Attributes<'_>) -> bool {
        let caller = attributes.caller;
        let is_writer = caller.user == USER_GPU_EXTENDER
            || caller.in_group(GROUP_MASTERS)
            || self.writers.iter().any(|writer| caller.user == *writer || caller.in_group(writer));
        attributes.row.group.is_empty() && attributes.row.plural == "pods" && !is_writer
    }

    /// Whether an annotation is one that such a caller may not write.
    fn guards(&self, key: &str, caller: &Caller) -> bool {
        let Some(names) = self.names.iter().find(|names| names.is_choice(key)) else { return false };
        // Which pods a node may write at all is NodeRestriction's.
        key != names.assigned || caller.node_name().is_none()
    }

    /// One that differs between two forms of a pod.
    fn changed<'o>(&self, old: &'o Object, new: &'o Object, caller: &Caller) -> Option<&'o str> {
        let (before, after) = (annotations(old), annotations(new));
        let keys = [before, after].into_iter().flatten().flat_map(Map::keys);
        keys.map(String::as_str).find(|key| self.guards(key, caller) && value(before, key) != value(after, key))
    }

    /// Those that the maker of a pod sent, and that the pod goes without. What he sent is what he owns of it, which is
    /// written down before admission.
    fn dropped(&self, attributes: &Attributes<'_>) -> BTreeSet<String> {
        let is_ours = |text: &&str| self.names.iter().any(|names| text.contains(names.prefix()));
        let Some(text) = attributes.managers.filter(is_ours) else { return BTreeSet::new() };
        let managers: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let there = annotations(&attributes.object);
        let owned = managers.iter().filter_map(|one| one.pointer("/fieldsV1/f:metadata/f:annotations")?.as_object());
        let keys = owned.flat_map(Map::keys).filter_map(|field| field.strip_prefix("f:"));
        let gone = keys.filter(|key| self.guards(key, attributes.caller) && value(there, key).is_none());
        gone.map(str::to_owned).collect()
    }
}

impl AdmissionPlugin for GpuAnnotations {
    fn name(&self) -> &'static str {
        "GpuAnnotations"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !is_new_pod(attributes) || !self.concerns(attributes) {
            return Ok(());
        }
        let caller = attributes.caller;
        let Some(all) = attributes.object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"))
        else {
            return Ok(());
        };
        let Some(all) = all.as_object_mut().filter(|all| all.keys().any(|key| self.guards(key, caller))) else {
            return Ok(());
        };
        all.retain(|key, _| !self.guards(key, caller));
        if all.is_empty() {
            metadata_mut(&mut attributes.object).remove("annotations");
        }
        Ok(())
    }

    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let nothing = Object::new();
        let old = match (attributes.operation, attributes.old) {
            (Operation::Update, Some(old)) => old,
            // What a webhook has put back is not let through either.
            (Operation::Create, None) if attributes.subresource.is_empty() => &nothing,
            _ => return Ok(()),
        };
        if !self.concerns(attributes) {
            return Ok(());
        }
        match self.changed(old, &attributes.object, attributes.caller) {
            None => Ok(()),
            Some(key) => Err(attributes.forbidden(&format!(
                "annotation {key} says which GPUs the pod has: only the GPU extender and administrators may change it"
            ))),
        }
    }

    fn warnings(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Vec<String> {
        if !is_new_pod(attributes) || !self.concerns(attributes) {
            return Vec::new();
        }
        let dropped = self.dropped(attributes).into_iter();
        let say =
            |key| format!("metadata.annotations[{key}]: dropped, only the GPU extender says which GPUs a pod has");
        dropped.map(say).collect()
    }
}

fn is_new_pod(attributes: &Attributes<'_>) -> bool {
    attributes.operation == Operation::Create && attributes.is("", "pods")
}

fn annotations(object: &Object) -> Option<&Map<String, Value>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

fn value<'o>(annotations: Option<&'o Map<String, Value>>, key: &str) -> Option<&'o Value> {
    annotations?.get(key)
}
