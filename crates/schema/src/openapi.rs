//! OpenAPI documents.

use crate::table::ResourceInfo;

/// One entry of the index at `/openapi/v3`: the key (`api/v1`, `apis/apps/v1`).
#[must_use]
pub fn v3_paths(_resources: &[&ResourceInfo]) -> Vec<String> {
    Vec::new()
}

/// The index at `/openapi/v3`, as JSON. `hash` gives the content hash of each path's document.
#[must_use]
pub fn v3_index(_paths: &[(String, String)]) -> Vec<u8> {
    Vec::new()
}

/// The document of one group and version, as JSON. `resources` are the rows to describe; those of
/// other groups and versions are passed over.
#[must_use]
pub fn v3_document(_group: &str, _version: &str, _resources: &[&ResourceInfo]) -> Vec<u8> {
    Vec::new()
}

/// The document at `/openapi/v2`, as JSON.
#[must_use]
pub fn v2_json(_resources: &[&ResourceInfo]) -> Vec<u8> {
    Vec::new()
}

/// The document at `/openapi/v2` as gnostic's protobuf, which kubectl asks for
/// (`application/com.github.proto-openapi.spec.v2@v1.0+protobuf`).
#[must_use]
pub fn v2_protobuf(_resources: &[&ResourceInfo]) -> Vec<u8> {
    Vec::new()
}
