//! The row type of the resource table.
//!
//! A kind is a row: everything that the API server needs to know to serve it generically. Rows of
//! built-in kinds come from [`crate::rows`], rows of custom resources are made at runtime from
//! their CustomResourceDefinition ([`crate::crd`]); both are the same type.

use std::borrow::Cow;
use std::sync::Arc;

use carrack_types::resource::Resource;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::jsonpath::JsonPath;
use crate::schema::Schema;

/// A text that is static for built-in rows and owned for rows made at runtime.
pub type Text = Cow<'static, str>;

/// One resource: a group and plural, in all its served versions.
#[derive(Clone, Debug)]
pub struct ResourceInfo {
    /// API group; empty for the core group.
    pub group: Text,
    /// Kind, such as `Pod`.
    pub kind: Text,
    /// Kind of a list, such as `PodList`.
    pub list_kind: Text,
    /// Plural, the path segment, such as `pods`.
    pub plural: Text,
    /// Singular, such as `pod`. Empty never; upstream prints it in discovery.
    pub singular: Text,
    /// Short names, such as `po`.
    pub short_names: Vec<Text>,
    /// Categories, such as `all`.
    pub categories: Vec<Text>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs of the resource itself, in discovery's (alphabetic) order.
    pub verbs: Vec<Text>,
    /// Versions, preferred one first.
    pub versions: Vec<Version>,
    /// Answered on the spot and never stored: reviews and the legacy `bindings`.
    pub is_virtual: bool,
    /// Whether `metadata.generation` counts changes of anything but metadata and status.
    pub has_generation: bool,
    /// Whether deletion waits for `deletionGracePeriodSeconds` and the node agent (pods).
    pub graceful_deletion: bool,
    /// Whether the row comes from a CustomResourceDefinition.
    pub is_custom: bool,
    /// Where objects are stored: group and plural. Differs from the row's own only for
    /// `events.k8s.io`, which is a view of core events.
    pub storage: (Text, Text),
    /// For custom resources whose versions a webhook converts, what their definition says of it: its `clientConfig`, and the
    /// versions of reviews that it takes.
    pub conversion: Option<Arc<Value>>,
    /// For custom resources, the revision at which their definition was last written: objects that are older were
    /// completed by another one. 0 where it is not known.
    pub defined_at: u64,
}

/// One version of a resource.
#[derive(Clone, Debug)]
pub struct Version {
    /// Such as `v1`.
    pub name: Text,
    /// Whether requests for it are answered.
    pub served: bool,
    /// Whether objects are stored in this version. Exactly one is, except for views
    /// (see [`ResourceInfo::storage`]).
    pub storage: bool,
    /// For deprecated versions, the text of the `Warning` header.
    pub deprecation_warning: Option<Text>,
    /// The schema of objects.
    pub schema: SchemaSource,
    /// Subresources.
    pub subresources: Vec<Subresource>,
    /// Fields that field selectors may name, besides `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<SelectableField>,
    /// Printer columns of custom resources; empty for built-in kinds, whose columns are code.
    pub columns: Vec<ColumnDef>,
}

/// Where a version's schema is found.
#[derive(Clone, Debug)]
pub enum SchemaSource {
    /// A built-in type by its OpenAPI name, such as `io.k8s.api.core.v1.Pod`.
    Builtin(Text),
    /// A schema that a CustomResourceDefinition gave.
    Custom(Arc<CustomSchema>),
}

/// The schema of one version of a custom resource.
#[derive(Clone, Debug)]
pub struct CustomSchema {
    /// The parsed structural schema, with `apiVersion`, `kind` and `metadata` added at the root.
    pub schema: Schema,
    /// `openAPIV3Schema` as the definition has it, for OpenAPI documents.
    pub raw: Value,
    /// Validation rules.
    pub rules: crate::rules::Rules,
}

/// A subresource of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Path segment, such as `status`.
    pub name: Text,
    /// Group of the body's kind.
    pub group: Text,
    /// Version of the body's kind.
    pub version: Text,
    /// Kind of the body, such as `Scale`.
    pub kind: Text,
    /// Verbs, in alphabetic order.
    pub verbs: Vec<Text>,
    /// For `scale` of custom resources, where its numbers are.
    pub scale: Option<ScalePaths>,
}

/// Where a custom resource keeps the numbers of its `scale` subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Such as `.spec.replicas`.
    pub spec_replicas: String,
    /// Such as `.status.replicas`.
    pub status_replicas: String,
    /// Such as `.status.selector`.
    pub label_selector: Option<String>,
}

/// A field that a field selector may name.
#[derive(Clone, Debug)]
pub struct SelectableField {
    /// The name in the selector, such as `spec.nodeName`.
    pub name: Text,
    /// Where the value is; the first path that finds something counts.
    pub paths: Vec<JsonPath>,
    /// The value where the field is absent.
    pub absent: Text,
}

/// A printer column that a CustomResourceDefinition gave.
#[derive(Clone, Debug)]
pub struct ColumnDef {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// Format, such as `int32`; empty for none.
    pub format: String,
    /// Description; empty for none.
    pub description: String,
    /// 0 is shown always, others with `-o wide`.
    pub priority: i64,
    /// Where the value is; none where the definition says it in a way that nobody here can read.
    pub path: Option<JsonPath>,
}

impl ResourceInfo {
    /// The version by name, if it is served.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|v| v.served && v.name == name)
    }

    /// The version in which objects are stored. For views it is the preferred one.
    #[must_use]
    pub fn storage_version(&self) -> Option<&Version> {
        self.versions.iter().find(|v| v.storage).or_else(|| self.versions.first())
    }

    /// The resource, in the version in which objects are stored.
    #[must_use]
    pub fn resource(&self) -> Option<Resource> {
        Some(Resource {
            group: self.group.clone(),
            version: self.storage_version()?.name.clone(),
            plural: self.plural.clone(),
            kind: self.kind.clone(),
            namespaced: self.namespaced,
        })
    }

    /// `apiVersion` of objects in a version: `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// `plural.group` as Kubernetes names a group resource in messages: `pods`, `deployments.apps`.
    #[must_use]
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_string() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether the resource has this verb.
    #[must_use]
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

impl Subresource {
    /// Whether somebody connects to the object through it (exec, attach, port-forward, proxy). Its kind is then that of
    /// the connection's options, such as `PodExecOptions`, which come in the query.
    #[must_use]
    pub fn connects(&self) -> bool {
        self.group.is_empty() && self.kind.ends_with("Options")
    }
}

impl Version {
    /// A subresource by its path segment.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether `status` is a subresource, so that writes of the object leave the status alone and
    /// writes of the status leave the rest.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// The schema of objects. Built-in ones are loaded at first use and stay.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        match &self.schema {
            SchemaSource::Builtin(name) => crate::builtin::schema(name).unwrap_or(Schema::anything()),
            SchemaSource::Custom(custom) => &custom.schema,
        }
    }

    /// The value of a field for field selectors; `None` when the field is not selectable.
    ///
    /// `metadata.name` and `metadata.namespace` are always selectable.
    #[must_use]
    pub fn selectable_value<'a>(&'a self, object: &'a Value, field: &str) -> Option<Cow<'a, str>> {
        let metadata =
            |key: &str| object.pointer("/metadata").and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or("");
        match field {
            "metadata.name" => return Some(metadata("name").into()),
            "metadata.namespace" => return Some(metadata("namespace").into()),
            _ => {}
        }
        let selectable = self.selectable_fields.iter().find(|f| f.name == field)?;
        let found = selectable.paths.iter().find_map(|path| path.find(object).into_iter().next());
        Some(match found {
            None | Some(Value::Null) => Cow::Borrowed(selectable.absent.as_ref()),
            Some(Value::String(text)) => Cow::Borrowed(text.as_str()),
            Some(other) => Cow::Owned(other.to_string()),
        })
    }
}

/// All built-in rows, by group and plural in upstream's discovery order. Made once.
#[must_use]
pub fn builtin() -> &'static [Arc<ResourceInfo>] {
    crate::rows::all()
}

/// What stands for the form in which objects are stored, the same for all servers that store them so
/// (`StorageVersionHash` of `k8s.io/apiserver/pkg/endpoints/discovery`, before it is written as base64).
#[must_use]
pub fn storage_version_hash(api_version: &str, kind: &str) -> [u8; 8] {
    let slash = if api_version.contains('/') { "" } else { "/" };
    let hash: [u8; 32] = Sha256::digest(format!("{slash}{api_version}/{kind}")).into();
    std::array::from_fn(|index| hash[index])
}

/// A built-in row by group and plural.
#[must_use]
pub fn find(group: &str, plural: &str) -> Option<&'static Arc<ResourceInfo>> {
    builtin().iter().find(|row| row.group == group && row.plural == plural)
}

/// A built-in row by group and kind.
#[must_use]
pub fn find_kind(group: &str, kind: &str) -> Option<&'static Arc<ResourceInfo>> {
    builtin().iter().find(|row| row.group == group && row.kind == kind)
}
