//! Rows out of definitions.

use serde_json::json;

use super::*;

pub(crate) fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "shortNames": ["ct"], "categories": ["all"]},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
                {"name": "v1", "served": true, "storage": true,
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["cronSpec"], "properties": {
                        "cronSpec": {"type": "string", "pattern": "^\\S+ \\S+$"},
                        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
                        "mode": {"type": "string", "enum": ["a", "b"]}}},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "ready": {"type": "boolean"}, "at": {"type": "string", "format": "date-time"}}}}}},
                 "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                 "selectableFields": [{"jsonPath": ".spec.mode"}],
                 "additionalPrinterColumns": [
                    {"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"},
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1},
                    {"name": "Ready", "type": "boolean", "jsonPath": ".status.ready"},
                    {"name": "Since", "type": "date", "jsonPath": ".status.at"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]},
            ],
        },
    })
}

#[test]
fn a_definition_makes_a_row() {
    let info = resource_info(&definition()).expect("a row");
    assert_eq!(
        (info.kind.as_ref(), info.list_kind.as_ref(), info.singular.as_ref()),
        ("CronTab", "CronTabList", "crontab")
    );
    assert!(info.namespaced && info.is_custom && info.has_generation);
    let versions: Vec<_> = info.versions.iter().map(|v| v.name.as_ref()).collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
    assert_eq!(info.storage_version().map(|v| v.name.as_ref()), Some("v1"));
    let (v1, beta) = (info.version("v1").expect("v1"), info.version("v1beta1").expect("v1beta1"));
    assert!(v1.has_status() && !beta.has_status());
    assert_eq!(beta.deprecation_warning.as_deref(), Some("stable.example.com/v1beta1 CronTab is deprecated"));
    assert_eq!(
        v1.subresource("scale").and_then(|s| s.scale.as_ref()).map(|s| s.spec_replicas.as_str()),
        Some(".spec.replicas")
    );
    assert_eq!(info.short_names, ["ct"]);
    let object = json!({"metadata": {"name": "x", "namespace": "n"}, "spec": {"mode": "a"}});
    assert_eq!(v1.selectable_value(&object, "spec.mode").as_deref(), Some("a"));
    assert_eq!(v1.selectable_value(&object, "metadata.namespace").as_deref(), Some("n"));
    assert_eq!(v1.selectable_value(&object, "spec.cronSpec"), None);
}

#[test]
fn a_row_has_the_names_that_were_accepted() {
    let mut definition = definition();
    let named = |definition: &Value| resource_info(definition).expect("a row").short_names;
    definition["status"] = json!({"acceptedNames": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["old"]}});
    assert_eq!(named(&definition), ["old"]);
    // With some of them nothing is served.
    definition["status"] = json!({"acceptedNames": {"plural": "", "kind": "CronTab", "shortNames": ["old"]}});
    assert_eq!(named(&definition), ["ct"]);
}

#[test]
fn custom_resources_print_their_columns() {
    let info = resource_info(&definition()).expect("a row");
    let now = "2026-01-02T12:00:00Z".parse().expect("a time");
    let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-02T11:59:00Z"},
        "spec": {"cronSpec": "* *", "replicas": 3}, "status": {"ready": true, "at": "2026-01-02T11:00:00Z"}});
    let (v1, beta) = (info.version("v1").expect("v1"), info.version("v1beta1").expect("v1beta1"));
    let headings: Vec<_> = crate::print::columns(&info, v1).into_iter().map(|c| (c.name, c.priority)).collect();
    let expected = [("Name", 0), ("Spec", 0), ("Replicas", 1), ("Ready", 0), ("Since", 0), ("Age", 0)];
    assert_eq!(headings, expected.map(|(name, priority)| (name.to_owned(), priority)));
    assert_eq!(json!(crate::print::cells(&info, v1, &object, now)), json!(["x", "* *", 3, true, "60m", "60s"]));
    assert_eq!(
        json!(crate::print::cells(&info, v1, &json!({"metadata": {"name": "x"}}), now)),
        json!(["x", null, null, null, null, null])
    );
    assert_eq!(json!(crate::print::cells(&info, beta, &object, now)), json!(["x", "60s"]));
}

/// Definitions have columns that upstream cannot read either: it serves the resource all the same.
#[test]
fn a_column_that_nobody_can_read_is_empty() {
    let mut definition = definition();
    definition["spec"]["versions"][1]["additionalPrinterColumns"][0]["jsonPath"] = json!(".a[?(@.b==c)].d");
    let info = resource_info(&definition).expect("a row");
    let now = "2026-01-02T12:00:00Z".parse().expect("a time");
    let object = json!({"metadata": {"name": "x"}, "spec": {"replicas": 3}});
    let cells = crate::print::cells(&info, info.version("v1").expect("v1"), &object, now);
    assert_eq!(json!(cells), json!(["x", null, 3, null, null, null]));
}

#[test]
fn versions_rank_as_upstream_has_it() {
    let mut versions = ["v1", "foo1", "v11alpha2", "v10", "v3beta1", "v12alpha1", "v11beta2", "v2", "foo10"];
    versions.sort_by_key(|version| Reverse(priority(version)));
    assert_eq!(versions, ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]);
}

#[test]
fn what_is_no_definition_makes_no_row() {
    let broken = |edit: fn(&mut Value)| {
        let mut definition = definition();
        edit(&mut definition);
        resource_info(&definition).expect_err("no row").problem
    };
    assert_eq!(broken(|d| d["spec"]["names"] = json!({})), "kind is missing");
    assert_eq!(broken(|d| d["spec"]["versions"] = json!([])), "it has no versions");
    assert!(broken(|d| d["spec"]["versions"][1]["selectableFields"][0]["jsonPath"] = json!(".a[")).contains("bracket"));
    assert!(
        broken(|d| d["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"] = json!("odd"))
            .contains("properties[spec]: unknown type")
    );
}
