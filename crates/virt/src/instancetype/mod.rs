//! Instance types and preferences: what a machine's template becomes by them.
//!
//! ```text
//!   template ── instance type: sets what the template must leave open ── preference: fills what is still open ──▶ spec
//! ```
//!
//! Admission applies them to tell conflicts at once, the controller to make an instance, `expand-spec` to show what comes
//! of it. What a machine was first started with is kept in ControllerRevisions, so that a changed or deleted instance
//! type changes no machine. A machine that is restored begins with the revisions that its snapshot kept, which its spec names.

mod apply;
mod preference;
mod revision;

use carrack_types::kubevirt::instancetype::{InstancetypeSpec, PreferenceSpec};
use carrack_types::kubevirt::vm::InstancetypeMatcher;
use carrack_types::kubevirt::{VirtualMachineInstanceSpec, VirtualMachineSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

use crate::admission::OWN_ANNOTATIONS;
pub use apply::Conflict;
pub(crate) use apply::spread_ratio;
pub(crate) use revision::{copy_of, is_of, object_of, reference, referenced, revision_of};

/// Their API group.
pub const GROUP: &str = "instancetype.kubevirt.io";
/// A size of machines, for one namespace.
pub const INSTANCETYPE: &str = "VirtualMachineInstancetype";
/// A size of machines, for all namespaces.
pub const CLUSTER_INSTANCETYPE: &str = "VirtualMachineClusterInstancetype";
/// How guests like their devices, for one namespace.
pub const PREFERENCE: &str = "VirtualMachinePreference";
/// How guests like their devices, for all namespaces.
pub const CLUSTER_PREFERENCE: &str = "VirtualMachineClusterPreference";

/// Where an object of the group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Kind.
    pub kind: &'static str,
    /// Resource.
    pub plural: &'static str,
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// The revision that is to be taken for it, if one is named.
    pub revision: Option<&'a str>,
}

/// What a machine names, as far as it names something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// The instance type.
    pub instancetype: Option<InstancetypeSpec>,
    /// The preference.
    pub preference: Option<PreferenceSpec>,
}

/// Where the instance type of a machine is. A matcher without a kind means the one for all namespaces.
#[must_use]
pub fn instancetype_place<'a>(spec: &'a VirtualMachineSpec, namespace: &'a str) -> Option<Place<'a>> {
    let namespaced = (INSTANCETYPE, "virtualmachineinstancetypes");
    let cluster = (CLUSTER_INSTANCETYPE, "virtualmachineclusterinstancetypes");
    place(spec.instancetype.as_ref()?, namespace, namespaced, cluster)
}

/// Where the preference of a machine is.
#[must_use]
pub fn preference_place<'a>(spec: &'a VirtualMachineSpec, namespace: &'a str) -> Option<Place<'a>> {
    let namespaced = (PREFERENCE, "virtualmachinepreferences");
    let cluster = (CLUSTER_PREFERENCE, "virtualmachineclusterpreferences");
    place(spec.preference.as_ref()?, namespace, namespaced, cluster)
}

fn place<'a>(
    matcher: &'a InstancetypeMatcher,
    namespace: &'a str,
    namespaced: (&'static str, &'static str),
    cluster: (&'static str, &'static str),
) -> Option<Place<'a>> {
    let name = matcher.name.as_deref().filter(|name| !name.is_empty())?;
    let ((kind, plural), namespace) =
        if matcher.kind.as_deref() == Some(namespaced.0) { (namespaced, namespace) } else { (cluster, "") };
    let revision = matcher.revision_name.as_deref().filter(|name| !name.is_empty());
    Some(Place { kind, plural, namespace, name, revision })
}

/// The spec in an object of the group.
#[must_use]
pub fn spec_of<T: DeserializeOwned>(object: &Value) -> Option<T> {
    serde_json::from_value(object.get("spec")?.clone()).ok()
}

impl Chosen {
    /// Whether there is nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.instancetype.is_none() && self.preference.is_none()
    }

    /// Applies both to a template, and returns the annotations that instances get by them.
    ///
    /// # Errors
    /// Fields of the template (below `field`) that are not the template's to set, or a demand of the preference's that
    /// is not met.
    pub fn apply(
        &self,
        field: &str,
        spec: &mut VirtualMachineInstanceSpec,
    ) -> Result<BTreeMap<String, String>, Vec<Conflict>> {
        let mut annotations = BTreeMap::new();
        if let Some(size) = &self.instancetype {
            apply::instancetype(field, size, self.preference.as_ref(), spec)?;
            annotations.extend(size.annotations.clone());
        }
        if let Some(preference) = &self.preference {
            preference::apply(preference, spec);
            preference::check_requirements(field, preference, self.instancetype.is_some(), spec)?;
            for (key, value) in &preference.annotations {
                annotations.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        // A size says nothing in the components' name: it is they who make the instance, and they may say anything of it.
        annotations.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()));
        Ok(annotations)
    }
}

#[cfg(test)]
mod tests;
