//! What is scaled: of which resource the kind is that an autoscaler names, and its `scale`.

use std::collections::BTreeMap;

use carrack_engine::{ContentType, GroupDiscovery, Key, VersionDiscovery, View, Write};
use carrack_schema::table;
use carrack_types::definition::Definition;
use carrack_types::resource::Resource;
use serde::Deserialize;
use serde_json::json;

use crate::custom;

/// The subresource.
pub(super) const SCALE: &str = "scale";

/// The group of an API version.
pub(super) fn group(api_version: &str) -> Result<&str, String> {
    match api_version.split_once('/') {
        Some((_, version)) if version.contains('/') => Err(format!("unexpected GroupVersion string: {api_version}")),
        Some((group, _)) => Ok(group),
        None => Ok(""),
    }
}

/// The resource of a kind, in whatever version: of built-in kinds, of definitions, of other servers.
///
/// # Errors
/// None of these has it.
pub(super) fn resource(group: &str, kind: &str, view: &View<'_>) -> Result<Resource, String> {
    let found = builtin(group, kind).or_else(|| defined(group, kind, view)).or_else(|| discovered(group, kind, view));
    found.ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
}

fn builtin(group: &str, kind: &str) -> Option<Resource> {
    table::builtin().iter().find(|row| row.group == group && row.kind == kind)?.resource()
}

fn defined(group: &str, kind: &str, view: &View<'_>) -> Option<Resource> {
    let mut established = view.cache::<Definition>().iter().filter(|crd| crd.is_established());
    let found = established.find(|crd| crd.spec.group == group && crd.spec.names.kind == kind);
    found.and_then(|crd| custom::resource_of(crd))
}

fn discovered(group: &str, kind: &str, view: &View<'_>) -> Option<Resource> {
    let found = view.cache_of::<GroupDiscovery>(&GroupDiscovery::source())?.get("", group)?;
    let of_version = |version: &VersionDiscovery| {
        let mut all = version.resources.iter().filter_map(|told| told.resource_of(group, &version.version));
        all.find(|resource| resource.kind == kind)
    };
    found.versions.iter().find_map(of_version)
}

/// What is read of a scale.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Scale {
    metadata: Identity,
    /// What is wanted.
    pub(super) spec: Count,
    /// What there is.
    pub(super) status: Count,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    uid: String,
    resource_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Count {
    pub(super) replicas: i32,
    /// Which pods are meant, as text; of the status alone.
    pub(super) selector: String,
}

impl Scale {
    /// Has the target changed to so many replicas, if it is still as it was read.
    pub(super) fn change(&self, resource: &Resource, key: Key, replicas: i32) -> Write {
        let Identity { uid, resource_version } = &self.metadata;
        // What is not told cannot be held against what is there.
        let known =
            [("uid", uid), ("resourceVersion", resource_version)].into_iter().filter(|(_, text)| !text.is_empty());
        let known: BTreeMap<&str, &String> = known.collect();
        Write::Patch {
            resource: resource.clone(),
            key,
            uid: uid.clone(),
            sub: SCALE,
            content_type: ContentType::MergePatch,
            patch: json!({"metadata": known, "spec": {"replicas": replicas}}),
        }
    }
}

/// Whether a write is one of a target.
pub(super) fn is_scale(write: &Write) -> bool {
    matches!(write, Write::Patch { sub, .. } if *sub == SCALE)
}
