//! The paths of documents: as much of each operation as clients look at.

use serde_json::{Map, Value, json};

use super::components::{V3_PREFIX, list_name, schema_name};
use crate::table::{ResourceInfo, Version};

/// The media types of patches; custom resources take all but the last.
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// `/api/v1` or `/apis/apps/v1`.
pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// One operation: method, what upstream calls the action, the verb it needs, and whether it is on a
/// single object.
const OPERATIONS: [(&str, &str, &str, bool); 7] = [
    ("get", "list", "list", false),
    ("post", "post", "create", false),
    ("delete", "deletecollection", "deletecollection", false),
    ("get", "get", "get", true),
    ("put", "put", "update", true),
    ("patch", "patch", "patch", true),
    ("delete", "delete", "delete", true),
];

/// A resource's collection and its single objects.
pub(super) fn item_paths(info: &ResourceInfo, version: &Version) -> [String; 2] {
    let root = root(&info.group, &version.name);
    let collection = if info.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", info.plural)
    } else {
        format!("{root}/{}", info.plural)
    };
    let item = format!("{collection}/{{name}}");
    [collection, item]
}

fn operation_id(info: &ResourceInfo, version: &Version, action: &str) -> String {
    let capital = |text: &str| {
        let mut chars = text.chars();
        chars.next().map(|first| first.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
    };
    let group = if info.group.is_empty() { "core" } else { info.group.split('.').next().unwrap_or_default() };
    let verb = match action {
        "post" => "create",
        "put" => "replace",
        "get" => "read",
        "deletecollection" => "deleteCollection",
        other => other,
    };
    let scope = if info.namespaced { "Namespaced" } else { "" };
    format!("{verb}{}{}{scope}{}", capital(group), capital(&version.name), info.kind)
}

/// Query parameters of an action.
pub(super) fn query_parameters(action: &str) -> &'static [(&'static str, &'static str)] {
    match action {
        "list" | "deletecollection" => &[
            ("labelSelector", "string"),
            ("fieldSelector", "string"),
            ("limit", "integer"),
            ("continue", "string"),
            ("watch", "boolean"),
            ("resourceVersion", "string"),
        ],
        "post" | "put" => &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")],
        "patch" => {
            &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")]
        }
        "delete" => &[("dryRun", "string"), ("gracePeriodSeconds", "integer"), ("propagationPolicy", "string")],
        _ => &[],
    }
}

/// Adds the paths of a resource to a v3 document.
pub(super) fn v3(info: &ResourceInfo, version: &Version, out: &mut Map<String, Value>) {
    let kind = json!({"group": info.group, "version": version.name, "kind": info.kind});
    let (own, list) = (schema_name(info, version), list_name(info, version));
    let schema = |name: &str| json!({"schema": {"$ref": format!("{V3_PREFIX}{name}")}});
    for (index, path) in item_paths(info, version).into_iter().enumerate() {
        let is_item = index == 1;
        let mut operations = Map::new();
        for (method, action, verb, on_item) in OPERATIONS {
            if on_item != is_item || !info.allows(verb) {
                continue;
            }
            let answer = match action {
                "list" => list.as_str(),
                "delete" | "deletecollection" => "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
                _ => own.as_str(),
            };
            let parameters: Vec<_> = query_parameters(action)
                .iter()
                .map(|(name, type_)| json!({"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": true}}))
                .collect();
            let mut operation = json!({
                "operationId": operation_id(info, version, action),
                "parameters": parameters,
                "responses": {"200": {"description": "OK", "content": {"application/json": schema(answer)}}},
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": kind,
            });
            let content: Map<String, Value> = match action {
                "post" | "put" => [("application/json".to_owned(), schema(&own))].into_iter().collect(),
                // Custom resources have no strategic merge.
                "patch" => {
                    let count = if info.is_custom { PATCHES.len() - 1 } else { PATCHES.len() };
                    PATCHES.iter().take(count).map(|name| ((*name).to_owned(), schema(&own))).collect()
                }
                _ => Map::new(),
            };
            if let (false, Value::Object(operation)) = (content.is_empty(), &mut operation) {
                operation.insert("requestBody".to_owned(), json!({"content": content, "required": true}));
            }
            operations.insert(method.to_owned(), operation);
        }
        if operations.is_empty() {
            continue;
        }
        let mut names = Vec::new();
        if is_item {
            names.push("name");
        }
        if info.namespaced {
            names.push("namespace");
        }
        let parameters: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
            .collect();
        operations.insert("parameters".to_owned(), parameters.into());
        out.insert(path, Value::Object(operations));
    }
}

/// Adds the paths of a resource to a v2 document: what clients ask of it is only which parameters a
/// patch takes.
pub(super) fn v2(info: &ResourceInfo, version: &Version, out: &mut Map<String, Value>) {
    if !info.allows("patch") {
        return;
    }
    let [_, item] = item_paths(info, version);
    let parameters: Vec<_> = query_parameters("patch")
        .iter()
        .map(|(name, type_)| json!({"name": name, "in": "query", "type": type_, "uniqueItems": true}))
        .collect();
    let patch = json!({
        "operationId": operation_id(info, version, "patch"),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {"group": info.group, "version": version.name, "kind": info.kind},
    });
    out.insert(item, json!({"patch": patch}));
}
