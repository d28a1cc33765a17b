//! Documents are whole: every reference leads somewhere, every kind is there.

use serde_json::Value;

use super::*;
use crate::table::builtin;

fn rows() -> Vec<&'static ResourceInfo> {
    builtin().iter().map(AsRef::as_ref).collect()
}

fn every_reference<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            out.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|child| every_reference(child, out));
        }
        Value::Array(list) => list.iter().for_each(|child| every_reference(child, out)),
        _ => {}
    }
}

#[track_caller]
fn check_references(document: &Value, prefix: &str, schemas: &Value) {
    let mut references = Vec::new();
    every_reference(document, &mut references);
    for reference in references {
        let name = reference.strip_prefix(prefix).expect(reference);
        assert!(schemas.get(name).is_some(), "nothing at {reference}");
    }
}

#[test]
fn v3_documents_are_whole() {
    let rows = rows();
    let paths = v3_paths(&rows);
    assert!(paths.iter().any(|p| p == "api/v1") && paths.iter().any(|p| p == "apis/autoscaling/v1"));
    for path in &paths {
        let (group, version) = split_path(path).expect(path);
        let document: Value = serde_json::from_slice(&v3_document(group, version, &rows)).expect("JSON");
        check_references(&document, "#/components/schemas/", &document["components"]["schemas"]);
        for info in rows.iter().filter(|info| info.group == group) {
            for v in info.versions.iter().filter(|v| v.name == version) {
                let schema = &document["components"]["schemas"][components::schema_name(info, v)];
                assert_eq!(schema["x-kubernetes-group-version-kind"][0]["kind"], *info.kind, "{path} {}", info.kind);
                assert!(schema["description"].is_string(), "{path} {} is described", info.kind);
            }
        }
    }
    let core: Value = serde_json::from_slice(&v3_document("", "v1", &rows)).expect("JSON");
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().expect("parameters").iter().any(|p| p["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_object());
    let pod_spec = &core["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"];
    assert_eq!(pod_spec["containers"]["x-kubernetes-patch-merge-key"], "name");
    assert!(pod_spec["nodeName"]["description"].as_str().expect("a description").starts_with("NodeName"));
}

#[test]
fn the_index_names_documents_by_hash() {
    let rows = rows();
    let hash = v3_hash("apps", "v1", &rows);
    assert_eq!(hash, v3_hash("apps", "v1", &rows));
    assert_ne!(hash, v3_hash("batch", "v1", &rows));
    let index: Value = serde_json::from_slice(&v3_index(&[("apis/apps/v1".to_owned(), hash.clone())])).expect("JSON");
    assert_eq!(index["paths"]["apis/apps/v1"]["serverRelativeURL"], format!("/openapi/v3/apis/apps/v1?hash={hash}"));
}

#[test]
fn v2_is_whole_in_both_forms() {
    let rows = rows();
    let document: Value = serde_json::from_slice(&v2_json(&rows)).expect("JSON");
    check_references(&document, "#/definitions/", &document["definitions"]);
    // The schema of schemas has properties of these names.
    for (name, definition) in document["definitions"]
        .as_object()
        .expect("definitions")
        .iter()
        .filter(|(name, _)| !name.ends_with("JSONSchemaProps"))
    {
        let text = definition.to_string();
        for forbidden in ["\"oneOf\"", "\"anyOf\"", "\"allOf\"", "\"nullable\""] {
            assert!(!text.contains(forbidden), "{forbidden} in {name}");
        }
    }
    let (names, parameters) =
        gnostic::tests::read(&v2_protobuf(&rows), "/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
    assert_eq!(names.len(), document["definitions"].as_object().expect("definitions").len());
    assert!(parameters.contains(&"dryRun".to_owned()) && parameters.contains(&"fieldValidation".to_owned()));
}

#[test]
fn a_custom_kind_is_described_as_it_is_defined() {
    let mut definition = crate::crd::tests::definition();
    let said = serde_json::json!({
        "size": {"type": "string", "format": "quantity"},
        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "more": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "default": {"format": "quantity", "type": "x"}},
    });
    *definition.pointer_mut("/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties").expect("there") =
        said.clone();
    let info = crate::crd::resource_info(&definition).expect("a row");
    let document = v3_document("stable.example.com", "v1", &[&info]);
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    let shown = &document["components"]["schemas"]["com.example.stable.v1.CronTab"]["properties"];
    assert_eq!(shown["spec"]["properties"], said);
    assert_eq!(document["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.Status"]["type"], "object");
}
