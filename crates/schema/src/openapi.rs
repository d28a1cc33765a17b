//! OpenAPI documents: v3 for each group and version, v2 for all of them, as JSON and as the
//! protobuf that older kubectls ask for.
//!
//! Clients use them for `explain`, for validation before sending, for strategic merge patches of
//! `apply`, and to find out whether the server knows `fieldValidation` and `dryRun`. Documents are
//! made anew at each call and are large; the caller keeps them, compressed, as long as [`v3_hash`] or
//! [`v2_hash`] stays the same.

mod components;
mod gnostic;
mod others;
mod parameters;
mod paths;
mod swagger;
mod v3;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::table::{ResourceInfo, SchemaSource};

pub use others::v2_part;

/// The version of Kubernetes whose API this is.
pub const KUBERNETES_VERSION: &str = "v1.36.0";

/// The keys of the index at `/openapi/v3`: `api/v1`, `apis/apps/v1`, in order, each once.
#[must_use]
pub fn v3_paths(resources: &[&ResourceInfo]) -> Vec<String> {
    let paths: BTreeSet<String> =
        resources.iter().flat_map(|info| served(info).map(|version| paths::root(&info.group, &version.name))).collect();
    paths.into_iter().map(|path| path.trim_start_matches('/').to_owned()).collect()
}

fn served(info: &ResourceInfo) -> impl Iterator<Item = &crate::table::Version> {
    info.versions.iter().filter(|version| version.served)
}

/// The names of the schemas of a kind and of its list.
fn names(info: &ResourceInfo) -> Vec<String> {
    served(info).flat_map(|v| [components::schema_name(info, v), components::list_name(info, v)]).collect()
}

/// Splits a key of the index into group and version.
#[must_use]
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("apis/") {
        Some(rest) => rest.split_once('/'),
        None => path.strip_prefix("api/").map(|version| ("", version)),
    }
}

/// A hash of what [`v3_document`] would say, without making it: it changes when the document does.
#[must_use]
pub fn v3_hash(group: &str, version: &str, resources: &[&ResourceInfo]) -> String {
    let mut hash = Sha256::new();
    // The number counts how often what is said of the same rows has changed.
    hash.update(concat!(env!("CARGO_PKG_VERSION"), "/6/").as_bytes());
    hash.update(KUBERNETES_VERSION.as_bytes());
    for info in resources.iter().filter(|info| info.group == group) {
        for v in served(info).filter(|v| v.name == version) {
            let subresources: Vec<&str> = v.subresources.iter().map(|sub| &*sub.name).collect();
            let ResourceInfo { plural, kind, list_kind, namespaced, .. } = info;
            hash.update(format!("\n{plural} {kind} {list_kind} {namespaced} {subresources:?}").as_bytes());
            if let SchemaSource::Custom(custom) = &v.schema {
                let fields: Vec<&str> = v.selectable_fields.iter().map(|field| &*field.name).collect();
                hash.update(format!("\n{fields:?} {}", custom.raw).as_bytes());
            }
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The same for [`v2_json`] and [`v2_protobuf`], which are about everything, but for what other servers say.
#[must_use]
pub fn v2_hash(resources: &[&ResourceInfo]) -> String {
    let paths = v3_paths(resources);
    let versions = paths.iter().filter_map(|path| split_path(path));
    versions.map(|(group, version)| v3_hash(group, version, resources)).collect()
}

/// The index at `/openapi/v3`, as JSON: each key of [`v3_paths`] with its hash.
#[must_use]
pub fn v3_index(paths: &[(String, String)]) -> Vec<u8> {
    let paths: Map<String, Value> = paths
        .iter()
        .map(|(path, hash)| (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")})))
        .collect();
    json!({"paths": paths}).to_string().into_bytes()
}

/// The document of one group and version, as JSON. Rows of other groups are passed over.
#[must_use]
pub fn v3_document(group: &str, version: &str, resources: &[&ResourceInfo]) -> Vec<u8> {
    let rows: Vec<&ResourceInfo> = resources.iter().copied().filter(|info| info.group == group).collect();
    let mut schemas = components::collect(&rows, Some(version));
    let custom: BTreeSet<String> = rows.iter().filter(|info| info.is_custom).flat_map(|info| names(info)).collect();
    // What a definition says is in that form already.
    for (_, schema) in schemas.iter_mut().filter(|(name, _)| !custom.contains(*name)) {
        components::to_v3(schema);
    }
    let mut all_paths = Map::new();
    for info in &rows {
        for version in served(info).filter(|v| v.name == version) {
            for path in paths::of(info, version) {
                all_paths.insert(path.path.clone(), path.describe(v3::operation, v3::parameter));
            }
        }
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": KUBERNETES_VERSION},
        "paths": all_paths,
        "components": {"schemas": schemas, "securitySchemes": {"BearerToken": {
            "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header",
        }}},
    });
    document.to_string().into_bytes()
}

/// The document at `/openapi/v2`, as JSON, with what other servers say ([`v2_part`]).
#[must_use]
pub fn v2_json(resources: &[&ResourceInfo], parts: &[&Value]) -> Vec<u8> {
    v2(resources, parts).to_string().into_bytes()
}

/// The document at `/openapi/v2` as gnostic's protobuf
/// (`application/com.github.proto-openapi.spec.v2@v1.0+protobuf`).
#[must_use]
pub fn v2_protobuf(resources: &[&ResourceInfo], parts: &[&Value]) -> Vec<u8> {
    gnostic::encode(&v2(resources, parts))
}

fn v2(resources: &[&ResourceInfo], parts: &[&Value]) -> Value {
    let mut document = swagger::document(resources);
    for part in parts {
        others::add(&mut document, part);
    }
    document
}

#[cfg(test)]
mod tests;
