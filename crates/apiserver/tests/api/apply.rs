//! Server-side apply and the managers of fields, over HTTP.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, Reply, config_map, revision};

const APPLY: &str = "application/apply-patch+yaml";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(replicas: Option<u32>, image: &str) -> Value {
    let mut value = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    });
    if let Some(replicas) = replicas {
        value["spec"]["replicas"] = replicas.into();
    }
    value
}

fn as_agent(cluster: &Cluster, agent: &str, method: Method, path: &str, media_type: &str, body: &Value) -> Reply {
    let caller = Caller::new("admin", ["system:masters"]);
    let headers = [("content-type", media_type), ("user-agent", agent)];
    cluster.request(caller, method, path, &headers, Bytes::from(body.to_string()))
}

/// (manager, operation, subresource) of each entry, sorted.
fn managers(object: &Value) -> Vec<String> {
    let mut names: Vec<String> = object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("manager"), text("operation"), text("subresource")).trim_end().to_owned()
        })
        .collect();
    names.sort();
    names
}

fn fields<'a>(object: &'a Value, manager: &str) -> &'a Value {
    let list = object["metadata"]["managedFields"].as_array().expect("managers");
    &list.iter().find(|entry| entry["manager"] == manager).expect(manager)["fieldsV1"]
}

#[test]
fn writers_are_noted() {
    let cluster = Cluster::new();
    let path = format!("{CONFIG_MAPS}/m");
    let made = as_agent(
        &cluster,
        "kubectl/v1.32.0 (linux/amd64)",
        Method::POST,
        CONFIG_MAPS,
        "application/json",
        &config_map("m", "1"),
    )
    .expect(201);
    let entry = &made["metadata"]["managedFields"][0];
    let want = json!({
        "manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": "2027-01-15T08:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:v": {}}},
    });
    assert_eq!(entry, &want);
    cluster.env.advance(5);
    // A change is noted, and takes from others what it changes.
    let url = format!("{path}?fieldManager=tuner");
    let changed = cluster.merge(&url, &json!({"data": {"v": "2", "w": "x"}})).expect(200);
    assert_eq!(managers(&changed), ["kubectl Update", "tuner Update"]);
    assert_eq!(fields(&changed, "tuner"), &json!({"f:data": {"f:v": {}, "f:w": {}}}));
    assert_eq!(fields(&changed, "kubectl"), &json!({"f:data": {}}));
    // What changes nothing is no write, whoever makes it.
    cluster.env.advance(5);
    let same = cluster.merge(&format!("{path}?fieldManager=other"), &json!({"data": {"v": "2"}})).expect(200);
    assert_eq!(same, changed);
    let again = cluster.put(&path, &same).expect(200);
    assert_eq!(again, changed);
    // A client that knows nothing of managers loses none.
    let mut plain = again.clone();
    plain["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    assert_eq!(cluster.put(&path, &plain).expect(200), changed);
    // Those who say so forget them.
    let mut reset = again;
    reset["metadata"]["managedFields"] = json!([{}]);
    let reset = cluster.put(&path, &reset).expect(200);
    assert!(reset["metadata"].get("managedFields").is_none());
    let untracked = cluster.merge(&path, &json!({"data": {"v": "3"}})).expect(200);
    assert!(untracked["metadata"].get("managedFields").is_none());
}

#[test]
fn names_of_managers_are_checked() {
    let cluster = Cluster::new();
    let long = "x".repeat(129);
    for (query, why) in [
        (format!("fieldManager={long}"), "may not be more than 128 bytes"),
        ("fieldManager=a%0Ab".to_owned(), "invalid character U+000A (at position 1)"),
    ] {
        cluster.post(&format!("{CONFIG_MAPS}?{query}"), &config_map("m", "1")).refused(422, "Invalid", why);
    }
    let path = format!("{CONFIG_MAPS}/m");
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
    cluster.patch(&path, APPLY, &config).refused(422, "Invalid", "fieldManager: Required value: is required for apply");
    cluster.merge(&format!("{path}?force=true"), &config).refused(422, "Invalid", "force: Forbidden: may not be");
}

#[test]
fn applying_creates_and_owns() {
    let cluster = Cluster::new();
    let path = format!("{DEPLOYMENTS}/web?fieldManager=me");
    let dry = cluster.patch(&format!("{path}&dryRun=All"), APPLY, &deployment(Some(2), "a")).expect(201);
    assert_eq!(managers(&dry), ["me Apply"]);
    cluster.get(&format!("{DEPLOYMENTS}/web")).refused(404, "NotFound", "");
    let made = cluster.patch(&path, APPLY, &deployment(Some(2), "a")).expect(201);
    assert_eq!(managers(&made), ["me Apply"]);
    let want = json!({"f:spec": {
        "f:replicas": {}, "f:selector": {},
        "f:template": {
            "f:metadata": {"f:labels": {"f:app": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {}}}},
        },
    }});
    assert_eq!(fields(&made, "me"), &want);
    cluster.env.advance(60);
    let again = cluster.patch(&path, APPLY, &deployment(Some(2), "a")).expect(200);
    assert_eq!(again, made, "applying again writes nothing");
    // Conflicts name the field and its manager.
    let other = format!("{DEPLOYMENTS}/web?fieldManager=you");
    let refused = cluster.patch(&other, APPLY, &deployment(Some(3), "a"));
    let refused =
        refused.refused(409, "Conflict", "Apply failed with 1 conflict: conflict with \"me\": .spec.replicas");
    let causes =
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"me\"", "field": ".spec.replicas"}]);
    assert_eq!(refused["details"]["causes"], causes);
    let forced = cluster.patch(&format!("{other}&force=true"), APPLY, &deployment(Some(3), "a")).expect(200);
    assert_eq!(forced["spec"]["replicas"], 3);
    assert_eq!(forced["metadata"]["generation"], 2);
    let shared = cluster.patch(&path, APPLY, &deployment(None, "a")).expect(200);
    assert_eq!(shared["spec"]["replicas"], 3);
    // The last owner lets go, and the default comes back.
    let left = cluster.patch(&other, APPLY, &deployment(None, "a")).expect(200);
    assert_eq!(left["spec"]["replicas"], 1);
}

#[test]
fn what_is_applied_empty_is_owned_and_not_shown() {
    let cluster = Cluster::new();
    let path = format!("{DEPLOYMENTS}/web?fieldManager=me");
    let with = |env: Value, args: Value| {
        let mut config = deployment(None, "a");
        config["metadata"]["labels"] = json!({});
        config["spec"]["template"]["spec"]["containers"][0]["env"] = env;
        config["spec"]["template"]["spec"]["containers"][0]["args"] = args;
        config
    };
    let made = cluster.patch(&path, APPLY, &with(json!([{"name": "A", "value": "1"}]), json!(["x"]))).expect(201);
    assert_eq!(made["spec"]["template"]["spec"]["containers"][0]["args"], json!(["x"]));
    let emptied = cluster.patch(&path, APPLY, &with(json!([]), json!([]))).expect(200);
    assert_eq!(emptied["metadata"]["generation"], 2);
    assert!(emptied["metadata"].get("labels").is_none(), "{emptied}");
    let container = &emptied["spec"]["template"]["spec"]["containers"][0];
    assert!(["args", "env"].iter().all(|field| container.get(*field).is_none()), "{container}");
    let owned = &fields(&emptied, "me")["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"];
    assert_eq!(owned["f:args"], json!({}), "{owned}");
    cluster.env.advance(60);
    let again = cluster.patch(&path, APPLY, &with(json!([]), json!([]))).expect(200);
    assert_eq!(again, emptied, "applying again writes nothing");
}

#[test]
fn applied_objects_are_checked() {
    let cluster = Cluster::new();
    let path = format!("{DEPLOYMENTS}/web?fieldManager=me");
    let mut bad = deployment(None, "a");
    bad["spec"]["nothing"] = 1.into();
    cluster.patch(&path, APPLY, &bad).refused(
        400,
        "BadRequest",
        "failed to create typed patch object (/web; apps/v1, Kind=Deployment): .spec.nothing: field not declared in schema",
    );
    let mut bad = deployment(None, "a");
    bad["apiVersion"] = "apps/v1beta1".into();
    cluster.patch(&path, APPLY, &bad).refused(
        400,
        "BadRequest",
        "Specified patch version: apps/v1beta1, expected: apps/v1",
    );
    let mut bad = deployment(None, "a");
    bad["kind"] = Value::Null;
    cluster.patch(&path, APPLY, &bad).refused(
        400,
        "BadRequest",
        "failed to create typed patch object (/web; apps/v1, Kind=): no corresponding type for apps/v1, Kind=",
    );
    let mut bad = deployment(None, "a");
    bad["metadata"]["managedFields"] = json!([{}]);
    cluster.patch(&path, APPLY, &bad).refused(400, "BadRequest", "metadata.managedFields must be nil");
    let mut bad = deployment(None, "a");
    bad["metadata"]["name"] = "other".into();
    cluster.patch(&path, APPLY, &bad).refused(400, "BadRequest", "does not match the name on the URL");
    let mut bad = deployment(None, "a");
    bad["metadata"]["uid"] = "x".into();
    cluster.patch(&path, APPLY, &bad).refused(409, "Conflict", "uid mismatch");
    cluster.patch(&path, APPLY, &deployment(None, "a")).expect(201);
    cluster.patch(&path, APPLY, &bad).refused(409, "Conflict", "Precondition failed: UID in precondition: x");
    let text = |text: &'static str| {
        let caller = Caller::new("admin", ["system:masters"]);
        let path = format!("{DEPLOYMENTS}/web?fieldManager=text");
        cluster.request(caller, Method::PATCH, &path, &[("content-type", APPLY)], Bytes::from(text))
    };
    text("apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 4\n").expect(200);
    // Who applies less lets go of the rest, and it is not a deployment any more.
    let less = json!({"apiVersion": "apps/v1", "kind": "Deployment"});
    cluster.patch(&path, APPLY, &less).refused(422, "Invalid", "spec.selector: Required value");
    text("a: [").refused(400, "BadRequest", "error decoding YAML");
    cluster.patch(&format!("{DEPLOYMENTS}/web/status?fieldManager=me"), APPLY, &json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 9}, "status": {"observedGeneration": 7},
    })).expect(200);
    let now = cluster.get(&format!("{DEPLOYMENTS}/web")).expect(200);
    assert_eq!((&now["spec"]["replicas"], &now["status"]["observedGeneration"]), (&json!(4), &json!(7)));
    assert_eq!(managers(&now), ["me Apply", "me Apply status", "text Apply"]);
}

/// Who may only patch may not create by applying.
#[test]
fn creating_needs_the_right_to() {
    let cluster = Cluster::new();
    let rules = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "patcher"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}],
    });
    cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &rules).expect(201);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "patcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "patcher"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "pat"}],
    });
    cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).expect(201);
    let apply = || {
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
        let path = format!("{CONFIG_MAPS}/m?fieldManager=pat");
        let headers = [("content-type", APPLY)];
        cluster.request(Caller::new("pat", [""; 0]), Method::PATCH, &path, &headers, Bytes::from(config.to_string()))
    };
    apply().refused(403, "Forbidden", "cannot create resource \"configmaps\"");
    cluster.post(CONFIG_MAPS, &json!({"metadata": {"name": "m"}})).expect(201);
    apply().expect(200);
}

#[test]
fn scales_are_owned_by_who_sets_them() {
    let cluster = Cluster::new();
    let path = format!("{DEPLOYMENTS}/web");
    cluster.patch(&format!("{path}?fieldManager=me"), APPLY, &deployment(Some(1), "a")).expect(201);
    let scale =
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": 4}});
    cluster.patch(&format!("{path}/scale?fieldManager=hpa"), APPLY, &scale).refused(
        409,
        "Conflict",
        "conflict with \"me\": .spec.replicas",
    );
    cluster.patch(&format!("{path}/scale?fieldManager=hpa&force=true"), APPLY, &scale).expect(200);
    let now = cluster.get(&path).expect(200);
    assert_eq!(now["spec"]["replicas"], 4);
    assert_eq!(managers(&now), ["hpa Apply scale", "me Apply"]);
    assert_eq!(fields(&now, "hpa"), &json!({"f:spec": {"f:replicas": {}}}));
    cluster.patch(&format!("{path}?fieldManager=me"), APPLY, &deployment(Some(2), "a")).refused(
        409,
        "Conflict",
        "conflict with \"hpa\" with subresource \"scale\": .spec.replicas",
    );
    cluster.merge(&format!("{path}/scale?fieldManager=hand"), &json!({"spec": {"replicas": 5}})).expect(200);
    let now = cluster.get(&path).expect(200);
    assert_eq!(managers(&now), ["hand Update scale", "me Apply"]);
}

#[test]
fn clients_may_rewrite_the_managers() {
    let cluster = Cluster::new();
    let path = format!("{CONFIG_MAPS}/m");
    let made = cluster.post(&format!("{CONFIG_MAPS}?fieldManager=old"), &config_map("m", "1")).expect(201);
    let mut list = made["metadata"]["managedFields"].clone();
    list[0]["manager"] = "new".into();
    list[0]["operation"] = "Apply".into();
    // As kubectl does when it goes over to server-side apply.
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": list},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]);
    let moved = cluster.patch(&path, "application/json-patch+json", &patch).expect(200);
    assert_eq!(managers(&moved), ["new Apply"]);
    assert!(revision(&moved) > revision(&made));
    cluster.patch(&path, "application/json-patch+json", &patch).refused(409, "Conflict", "has been modified");
    // What makes no sense is as if it had not been sent.
    let nonsense = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "x"}]}]);
    assert_eq!(cluster.patch(&path, "application/json-patch+json", &nonsense).expect(200), moved);
    let cleared = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
    let cleared = cluster.patch(&path, "application/json-patch+json", &cleared).expect(200);
    assert_eq!(managers(&cleared), [""; 0]);
    // The first to apply meets those of before as one.
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"v": "2"}});
    cluster.patch(&format!("{path}?fieldManager=me"), APPLY, &config).refused(
        409,
        "Conflict",
        "conflict with \"before-first-apply\" using v1: .data.v",
    );
}

#[test]
fn custom_resources_are_applied_by_their_schema() {
    let cluster = Cluster::new();
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer"},
                "parts": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                    "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}},
                },
                "words": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        },
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}},
                {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}},
            ],
        },
    });
    cluster.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).expect(201);
    let path = |version: &str, manager: &str| {
        format!("/apis/example.com/{version}/namespaces/default/things/t?fieldManager={manager}")
    };
    let thing = |version: &str, spec: Value| json!({"apiVersion": format!("example.com/{version}"), "kind": "Thing", "spec": spec});
    let spec = json!({"size": 1, "parts": [{"id": "a", "n": 1}], "words": ["x"], "whole": {"a": "b"}, "free": {"any": {"thing": 1}}});
    let made = cluster.patch(&path("v1", "a"), APPLY, &thing("v1", spec)).expect(201);
    assert_eq!(
        fields(&made, "a"),
        &json!({"f:spec": {
            "f:free": {"f:any": {".": {}, "f:thing": {}}}, "f:parts": {"k:{\"id\":\"a\"}": {".": {}, "f:id": {}, "f:n": {}}},
            "f:size": {}, "f:whole": {}, "f:words": {"v:\"x\"": {}},
        }})
    );
    // Another version, another manager: parts of both are kept apart.
    let spec = json!({"parts": [{"id": "b"}], "words": ["y"], "free": {"more": 1}});
    let both = cluster.patch(&path("v2", "b"), APPLY, &thing("v2", spec)).expect(200);
    assert_eq!(both["spec"]["parts"], json!([{"id": "a", "n": 1}, {"id": "b"}]));
    assert_eq!(both["spec"]["words"], json!(["x", "y"]));
    cluster.patch(&path("v2", "b"), APPLY, &thing("v2", json!({"size": 2}))).refused(
        409,
        "Conflict",
        "conflict with \"a\": .spec.size",
    );
    cluster.patch(&path("v2", "b"), APPLY, &thing("v2", json!({"colour": 2}))).refused(
        400,
        "BadRequest",
        ".spec.colour: field not declared in schema",
    );
    let left = cluster.patch(&path("v1", "a"), APPLY, &thing("v1", json!({"size": 1}))).expect(200);
    assert_eq!(left["spec"], json!({"size": 1, "parts": [{"id": "b"}], "words": ["y"], "free": {"more": 1}}));
    let status = json!({"apiVersion": "example.com/v1", "kind": "Thing", "status": {"phase": "Good"}});
    let path = "/apis/example.com/v1/namespaces/default/things/t/status?fieldManager=controller";
    let now = cluster.patch(path, APPLY, &status).expect(200);
    assert_eq!(now["status"], json!({"phase": "Good"}));
    assert_eq!(managers(&now), ["a Apply", "b Apply", "controller Apply status"]);
}
