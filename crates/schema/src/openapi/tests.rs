//! Documents are whole: every reference leads somewhere, every kind is there.

use std::collections::BTreeMap;

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
    let document: Value = serde_json::from_slice(&v2_json(&rows, &[])).expect("JSON");
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
        gnostic::tests::read(&v2_protobuf(&rows, &[]), "/apis/apps/v1/namespaces/{namespace}/deployments/{name}");
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

/// Clients learn of documents by which fields they may select objects (`CustomResourceFieldSelectors` of upstream).
#[test]
fn documents_say_which_fields_select_custom_objects() {
    let mut definition = crate::crd::tests::definition();
    let info = crate::crd::resource_info(&definition).expect("a row");
    let (v2, v3) = (v2_json(&[&info], &[]), v3_document("stable.example.com", "v1", &[&info]));
    let want = serde_json::json!([{"fieldPath": "spec.mode"}]);
    for (document, place) in [(&v2, "/definitions"), (&v3, "/components/schemas")] {
        let document: Value = serde_json::from_slice(document).expect("JSON");
        let said = |kind: &str| {
            let path = format!("{place}/com.example.stable.v1.{kind}/x-kubernetes-selectable-fields");
            document.pointer(&path).cloned()
        };
        assert_eq!((said("CronTab"), said("CronTabList")), (Some(want.clone()), None), "{place}");
    }
    let hash = v3_hash("stable.example.com", "v1", &[&info]);
    definition["spec"]["versions"][1]["selectableFields"] = Value::Null;
    let info = crate::crd::resource_info(&definition).expect("a row");
    assert_ne!(hash, v3_hash("stable.example.com", "v1", &[&info]), "it says something else now");
}

/// `kubectl explain` shows what a definition says and no more, and clients that validate by v2 refuse nothing that is taken.
#[test]
fn custom_kinds_say_no_more_than_their_definition() {
    let mut definition = crate::crd::tests::definition();
    let list = serde_json::json!({"type": "array", "items": {"type": "string"}, "nullable": true});
    *definition.pointer_mut("/spec/versions/1/schema/openAPIV3Schema/properties/spec").expect("there") = serde_json::json!({
        "type": "object", "required": ["name", "list"], "properties": {"name": {"type": "string"}, "list": list}});
    let info = crate::crd::resource_info(&definition).expect("a row");
    let document: Value = serde_json::from_slice(&v2_json(&[&info], &[])).expect("JSON");
    let definitions = &document["definitions"];
    let kind = serde_json::json!([{"group": "stable.example.com", "version": "v1beta1", "kind": "CronTab"}]);
    assert_eq!(
        definitions["com.example.stable.v1beta1.CronTab"],
        serde_json::json!({"type": "object", "x-kubernetes-group-version-kind": kind})
    );
    let shown = &definitions["com.example.stable.v1.CronTab"];
    assert_eq!(shown.get("description"), None);
    assert_eq!(
        shown["properties"]["spec"],
        serde_json::json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "list": {}}})
    );
    // What programs look for.
    for (field, start) in [("apiVersion", "APIVersion defines"), ("metadata", "Standard object's metadata")] {
        let text = shown["properties"][field]["description"].as_str().expect(field);
        assert!(text.starts_with(start), "{text}");
    }
}

/// Whole objects within an object have what every object has: `kubectl explain` shows it, and clients that validate refuse
/// none of it. What a definition says of these fields itself does not count.
#[test]
fn objects_within_objects_are_described() {
    let mut definition = crate::crd::tests::definition();
    let flag = "x-kubernetes-embedded-resource";
    let own = serde_json::json!({"type": "string", "description": "own"});
    let pod = serde_json::json!({"type": "object", flag: true, "required": ["spec"],
        "properties": {"spec": {"type": "object"}, "kind": own}});
    let open = serde_json::json!({"type": "object", flag: true, "x-kubernetes-preserve-unknown-fields": true});
    let schema = definition.pointer_mut("/spec/versions/1/schema/openAPIV3Schema/properties").expect("there");
    schema["kind"] = own;
    schema["spec"]["properties"] = serde_json::json!({
        "pods": {"type": "array", "items": pod}, "open": {"type": "object", "additionalProperties": open}});
    let info = crate::crd::resource_info(&definition).expect("a row");
    let document = v3_document("stable.example.com", "v1", &[&info]);
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    check_references(&document, "#/components/schemas/", &document["components"]["schemas"]);
    let shown = &document["components"]["schemas"]["com.example.stable.v1.CronTab"];
    let (pods, open) =
        ("/properties/spec/properties/pods/items", "/properties/spec/properties/open/additionalProperties");
    for place in ["", pods, open] {
        let fields = shown.pointer(&format!("{place}/properties")).expect(place);
        for (field, start) in [("apiVersion", "APIVersion defines"), ("kind", "Kind"), ("metadata", "Standard")] {
            let text = fields[field]["description"].as_str().expect(field);
            assert!(text.starts_with(start), "{place}: {text}");
        }
    }
    for (place, want) in [(pods, &["spec", "kind", "apiVersion"][..]), (open, &["kind", "apiVersion"])] {
        assert_eq!(shown.pointer(&format!("{place}/required")), Some(&serde_json::json!(want)), "{place}");
    }
    let document: Value = serde_json::from_slice(&v2_json(&[&info], &[])).expect("JSON");
    check_references(&document, "#/definitions/", &document["definitions"]);
    let shown = &document["definitions"]["com.example.stable.v1.CronTab"];
    let metadata = shown.pointer(&format!("{pods}/properties/metadata/$ref")).and_then(Value::as_str);
    assert_eq!(metadata, Some("#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
    // What keeps whatever it is given is any object to the older clients.
    assert_eq!(shown.pointer(&format!("{open}/properties")), None);
}

/// What a document says of a path: `method action id kind`, in the order of methods.
#[track_caller]
fn check_path(document: &Value, path: &str, want: &[&str]) {
    let item = document["paths"][path].as_object().unwrap_or_else(|| panic!("there is no {path}"));
    let mut said: Vec<String> = item
        .iter()
        .filter(|(method, _)| *method != "parameters")
        .map(|(method, operation)| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let kind = &operation["x-kubernetes-group-version-kind"];
            let kind = [&kind["group"], &kind["version"], &kind["kind"]].map(text).join("/");
            let (action, id) = (text(&operation["x-kubernetes-action"]), text(&operation["operationId"]));
            format!("{method} {action} {id} {kind}")
        })
        .collect();
    said.sort();
    assert_eq!(said, want, "{path}");
    let names: Vec<&str> = item
        .get("parameters")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|parameter| parameter["name"].as_str())
        .collect();
    for name in names {
        assert!(path.contains(&format!("{{{name}}}")), "{path}: {name}");
    }
}

/// Ids and actions are those of upstream's `api/openapi-spec`.
const PATHS: [(&str, &str, &[&str]); 14] = [
    (
        "apis/apps/v1",
        "/apis/apps/v1/deployments",
        &["get list listAppsV1DeploymentForAllNamespaces apps/v1/Deployment"],
    ),
    (
        "apis/apps/v1",
        "/apis/apps/v1/namespaces/{namespace}/deployments",
        &[
            "delete deletecollection deleteAppsV1CollectionNamespacedDeployment apps/v1/Deployment",
            "get list listAppsV1NamespacedDeployment apps/v1/Deployment",
            "post post createAppsV1NamespacedDeployment apps/v1/Deployment",
        ],
    ),
    (
        "apis/apps/v1",
        "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
        &[
            "get get readAppsV1NamespacedDeploymentScale autoscaling/v1/Scale",
            "patch patch patchAppsV1NamespacedDeploymentScale autoscaling/v1/Scale",
            "put put replaceAppsV1NamespacedDeploymentScale autoscaling/v1/Scale",
        ],
    ),
    (
        "apis/apps/v1",
        "/apis/apps/v1/watch/deployments",
        &["get watchlist watchAppsV1DeploymentListForAllNamespaces apps/v1/Deployment"],
    ),
    (
        "apis/apps/v1",
        "/apis/apps/v1/watch/namespaces/{namespace}/deployments/{name}",
        &["get watch watchAppsV1NamespacedDeployment apps/v1/Deployment"],
    ),
    (
        "api/v1",
        "/api/v1/namespaces/{namespace}/pods/{name}/eviction",
        &["post post createCoreV1NamespacedPodEviction policy/v1/Eviction"],
    ),
    (
        "api/v1",
        "/api/v1/namespaces/{namespace}/pods/{name}/exec",
        &[
            "get connect connectCoreV1GetNamespacedPodExec /v1/PodExecOptions",
            "post connect connectCoreV1PostNamespacedPodExec /v1/PodExecOptions",
        ],
    ),
    ("api/v1", "/api/v1/namespaces/{namespace}/pods/{name}/log", &["get get readCoreV1NamespacedPodLog /v1/Pod"]),
    (
        "api/v1",
        "/api/v1/namespaces/{namespace}/services/{name}/proxy/{path}",
        &[
            "delete connect connectCoreV1DeleteNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "get connect connectCoreV1GetNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "head connect connectCoreV1HeadNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "options connect connectCoreV1OptionsNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "patch connect connectCoreV1PatchNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "post connect connectCoreV1PostNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
            "put connect connectCoreV1PutNamespacedServiceProxyWithPath /v1/ServiceProxyOptions",
        ],
    ),
    (
        "api/v1",
        "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
        &["post post createCoreV1NamespacedServiceAccountToken authentication.k8s.io/v1/TokenRequest"],
    ),
    ("api/v1", "/api/v1/namespaces/{name}/finalize", &["put put replaceCoreV1NamespaceFinalize /v1/Namespace"]),
    ("api/v1", "/api/v1/watch/nodes", &["get watchlist watchCoreV1NodeList /v1/Node"]),
    (
        "apis/rbac.authorization.k8s.io/v1",
        "/apis/rbac.authorization.k8s.io/v1/roles",
        &["get list listRbacAuthorizationV1RoleForAllNamespaces rbac.authorization.k8s.io/v1/Role"],
    ),
    (
        "apis/authorization.k8s.io/v1",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        &["post post createAuthorizationV1SubjectAccessReview authorization.k8s.io/v1/SubjectAccessReview"],
    ),
];

#[test]
fn what_can_be_done_is_said() {
    let rows = rows();
    let v2: Value = serde_json::from_slice(&v2_json(&rows, &[])).expect("JSON");
    let mut documents: BTreeMap<&str, Value> = BTreeMap::new();
    for (place, path, want) in PATHS {
        let v3 = documents.entry(place).or_insert_with(|| {
            let (group, version) = split_path(place).expect(place);
            serde_json::from_slice(&v3_document(group, version, &rows)).expect("JSON")
        });
        check_path(v3, path, want);
        check_path(&v2, path, want);
    }
}

/// Every operation has an id of its own, and says what it takes and gives.
#[test]
fn no_two_operations_are_called_the_same() {
    let rows = rows();
    let document: Value = serde_json::from_slice(&v3_document("", "v1", &rows)).expect("JSON");
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect(path).iter().filter(|(key, _)| *key != "parameters") {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "{id}");
            assert!(operation["responses"]["200"]["content"].is_object(), "{method} {path}");
            let writes = matches!(operation["x-kubernetes-action"].as_str(), Some("post" | "put" | "patch"));
            assert_eq!(operation["requestBody"]["required"] == true, writes, "{method} {path}");
            // kubectl takes the first patch of a kind that it finds for all of them.
            let parameters = operation["parameters"].as_array().expect("parameters");
            let validates = parameters.iter().any(|parameter| parameter["name"] == "fieldValidation");
            assert_eq!(validates, writes, "{method} {path}");
        }
    }
    let log = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"];
    assert_eq!(log["responses"]["200"]["content"]["text/plain"]["schema"]["type"], "string");
    let exec = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/exec"]["post"]["parameters"];
    assert_eq!(exec[0]["name"], "command");
}

#[test]
fn custom_kinds_have_the_paths_of_their_definition() {
    let mut definition = crate::crd::tests::definition();
    let info = crate::crd::resource_info(&definition).expect("a row");
    let [document, beta] = ["v1", "v1beta1"].map(|version| {
        let document = v3_document("stable.example.com", version, &[&info]);
        serde_json::from_slice::<Value>(&document).expect("JSON")
    });
    let kind = "stable.example.com/v1/CronTab";
    let of = |prefix: &str, suffix: &str| format!("{prefix}StableExampleComV1{suffix} {kind}");
    let item = "/apis/stable.example.com/v1/namespaces/{namespace}/crontabs/{name}";
    for (path, want) in [
        ("/apis/stable.example.com/v1/crontabs".to_owned(), vec![of("get list list", "CronTabForAllNamespaces")]),
        (
            format!("{item}/status"),
            vec![
                of("get get read", "NamespacedCronTabStatus"),
                of("patch patch patch", "NamespacedCronTabStatus"),
                of("put put replace", "NamespacedCronTabStatus"),
            ],
        ),
        (
            format!("{item}/scale"),
            vec![
                of("get get read", "NamespacedCronTabScale"),
                of("patch patch patch", "NamespacedCronTabScale"),
                of("put put replace", "NamespacedCronTabScale"),
            ],
        ),
    ] {
        let want: Vec<&str> = want.iter().map(String::as_str).collect();
        check_path(&document, &path, &want);
    }
    let patch = &document["paths"][item]["patch"]["requestBody"]["content"];
    assert_eq!(patch.as_object().map(Map::len), Some(3), "{patch}");
    let scale = &document["paths"][format!("{item}/scale")]["put"]["requestBody"]["content"]["application/json"];
    assert_eq!(scale["schema"]["$ref"], "#/components/schemas/io.k8s.api.autoscaling.v1.Scale");
    check_references(&document, "#/components/schemas/", &document["components"]["schemas"]);
    // The older version has no subresources, and custom kinds no paths of their own for watches.
    let known: Vec<&String> = beta["paths"].as_object().expect("paths").keys().collect();
    assert!(known.iter().all(|path| !path.ends_with("status") && !path.contains("watch")), "{known:?}");
    // Who takes a subresource away changes the documents.
    let (hash, all) = (v3_hash("stable.example.com", "v1", &[&info]), v2_hash(&[&info]));
    *definition.pointer_mut("/spec/versions/1/subresources").expect("there") = serde_json::json!({"status": {}});
    let info = crate::crd::resource_info(&definition).expect("a row");
    assert_ne!(v3_hash("stable.example.com", "v1", &[&info]), hash);
    assert_ne!(v2_hash(&[&info]), all);
}
