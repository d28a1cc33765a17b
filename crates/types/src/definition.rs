//! CustomResourceDefinitions, for those who read what a kind is called, whether it is served, and where its scale is.
//!
//! The published type makes a value of each node of a schema, of more than a kilobyte each, and a cluster has dozens of definitions:
//! 22 MB in a cache. Here a schema stays the words that it came in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::kubevirt::api::kind;

/// A definition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Definition {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What is defined.
    pub spec: DefinitionSpec,
    /// How far it is.
    pub status: DefinitionStatus,
}

kind!(Definition, "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions",
    ClusterResourceScope, {spec: "spec", status: "status"});

/// What a definition defines.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionSpec {
    /// API group.
    pub group: String,
    /// What the kind is called.
    pub names: DefinitionNames,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    /// Its versions.
    pub versions: Vec<DefinitionVersion>,
}

/// What a kind is called.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionNames {
    /// In URLs.
    pub plural: String,
    /// In objects.
    pub kind: String,
}

/// A version of a kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionVersion {
    /// Its name.
    pub name: String,
    /// Whether it can be asked for.
    pub served: bool,
    /// Whether objects are kept in it.
    pub storage: bool,
    /// Its schema, as it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Box<RawValue>>,
    /// What can be asked of its objects besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subresources: Option<DefinitionSubresources>,
}

/// What can be asked of a version's objects besides themselves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionSubresources {
    /// Their scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<DefinitionScale>,
}

/// Where a scale is in an object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionScale {
    /// The number that is wanted.
    pub spec_replicas_path: String,
    /// The number that there is.
    pub status_replicas_path: String,
}

/// How far a definition is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionStatus {
    /// What holds of it. Upstream's server says null before anything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<DefinitionCondition>>,
}

/// Something that holds of a definition, or does not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DefinitionCondition {
    /// What, such as `Established`.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

impl Definition {
    /// Whether an API server serves the definition's objects by now.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.status.conditions.iter().flatten().any(|c| c.type_ == "Established" && c.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Kind as _, Object as _};

    #[test]
    fn what_nobody_has_looked_at_yet_is_not_served() {
        let new = serde_json::json!({"metadata": {"name": "x"}, "status": {"conditions": null}});
        assert!(!crate::json::from_value::<Definition>(new).unwrap().is_established());
    }

    #[test]
    fn a_definition_is_read_and_written_with_its_schema() {
        let read: Definition = crate::json::from_value(serde_json::json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.x.io"},
            "spec": {"group": "x.io", "scope": "Namespaced", "preserveUnknownFields": false,
                "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}}]},
            "status": {"acceptedNames": {}, "conditions": [{"type": "Established", "status": "True"}]}}))
        .unwrap();
        assert_eq!((read.name(), read.is_established()), ("things.x.io", true));
        assert_eq!(Definition::resource().qualified(), "customresourcedefinitions.apiextensions.k8s.io");
        let written = serde_json::to_string(&read).unwrap();
        let again: Definition = serde_json::from_str(&written).unwrap();
        let schema = again.spec.versions[0].schema.as_ref().map(|schema| schema.get());
        assert_eq!(schema, Some(r#"{"openAPIV3Schema":{"type":"object"}}"#));
        let scale = again.spec.versions[0].subresources.as_ref().and_then(|s| s.scale.as_ref());
        assert_eq!(scale.map(|s| s.spec_replicas_path.as_str()), Some(".spec.n"));
    }
}
