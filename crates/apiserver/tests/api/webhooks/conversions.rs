//! Versions of custom resources that a webhook converts.

use bytes::Bytes;
use carrack_apiserver::Body;
use carrack_auth::Caller;
use http::{Method, Request};
use serde_json::{Value, json};

use super::World;

/// A definition of two versions that a webhook converts.
fn gates(world: &World) -> Value {
    let version = |name: &str, storage: bool, properties: Value| {
        let fields = properties.as_object().into_iter().flatten();
        let selectable: Vec<Value> = fields.map(|(name, _)| json!({"jsonPath": format!(".spec.{name}")})).collect();
        json!({"name": name, "served": true, "storage": storage, "selectableFields": selectable,
        "schema": {"openAPIV3Schema": {
            "type": "object", "properties": {"spec": {"type": "object", "properties": properties}},
        }}})
    };
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gates.wall.example.com"},
        "spec": {
            "group": "wall.example.com", "scope": "Namespaced", "names": {"plural": "gates", "kind": "Gate"},
            "versions": [version("v1", true, json!({"host": text, "port": text})), version("v2", false, json!({"address": text}))],
            "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": world.client("/convert"), "conversionReviewVersions": ["v1"]}},
        },
    })
}

#[tokio::test]
async fn versions_that_a_webhook_converts() {
    let world = World::new().await;
    let (code, reply) = world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &gates(&world)).await;
    assert_eq!(code, 201, "{reply}");
    let path = |version: &str| format!("/apis/wall.example.com/{version}/namespaces/default/gates");
    let gate = json!({"apiVersion": "wall.example.com/v2", "kind": "Gate", "metadata": {"name": "north", "labels": {"a": "b"}}, "spec": {"address": "h:80"}});
    let (code, made) = world.post(&path("v2"), &gate).await;
    assert_eq!(
        (code, &made["spec"], &made["apiVersion"]),
        (201, &json!({"address": "h:80"}), &gate["apiVersion"]),
        "{made}"
    );
    let north = |version: &str| format!("{}/north", path(version));
    let (_, as_v1, _) = world.send(Method::GET, &north("v1"), &Value::Null).await;
    assert_eq!(
        (&as_v1["spec"], &as_v1["metadata"]),
        (&json!({"host": "h", "port": "80"}), &made["metadata"]),
        "{as_v1}"
    );
    let (code, patched, _) = world.send(Method::PATCH, &north("v2"), &json!({"spec": {"address": "h:443"}})).await;
    assert_eq!((code, &patched["spec"]["address"]), (200, &json!("h:443")), "{patched}");
    let (_, as_v1, _) = world.send(Method::GET, &north("v1"), &Value::Null).await;
    assert_eq!(as_v1["spec"]["port"], "443", "{as_v1}");
    let (_, list, _) = world.send(Method::GET, &path("v2"), &Value::Null).await;
    assert_eq!(list["items"][0]["spec"], json!({"address": "h:443"}), "{list}");
    // Watches convert too, those that begin with what is there and those that do not.
    let watch = Request::builder().uri(format!("{}?watch=true", path("v2"))).body(Bytes::new()).expect("request");
    let response = world.api.handle(watch, Caller::new("admin", ["system:masters"])).await;
    let Body::Watch { mut lines, .. } = response.into_body() else { unreachable!("a watch") };
    let mut next = async || {
        let line = futures::StreamExt::next(&mut lines).await.expect("an event");
        serde_json::from_slice::<Value>(&line).expect("json")
    };
    let added = next().await;
    assert_eq!((&added["type"], &added["object"]["spec"]), (&json!("ADDED"), &json!({"address": "h:443"})), "{added}");
    world.send(Method::PATCH, &north("v1"), &json!({"spec": {"host": "other"}})).await;
    let changed = next().await;
    assert_eq!(
        (&changed["type"], &changed["object"]["spec"]),
        (&json!("MODIFIED"), &json!({"address": "other:443"})),
        "{changed}"
    );
    // Those who ask for the stored version do not need the webhook; others are told what is wrong.
    let mut broken = gates(&world);
    broken["spec"]["conversion"]["webhook"]["clientConfig"] = world.client("/error");
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gates.wall.example.com";
    let (code, reply, _) =
        world.send(Method::PATCH, definition, &json!({"spec": {"conversion": broken["spec"]["conversion"]}})).await;
    assert_eq!(code, 200, "{reply}");
    assert_eq!(world.send(Method::GET, &north("v1"), &Value::Null).await.0, 200);
    let (code, failed, _) = world.send(Method::GET, &north("v2"), &Value::Null).await;
    assert_eq!(code, 500, "{failed}");
    assert!(
        failed["message"]
            .as_str()
            .expect("message")
            .contains("conversion webhook for wall.example.com/v1, Kind=Gate failed"),
        "{failed}"
    );
    let metrics = Request::builder().uri("/metrics").body(Bytes::new()).expect("request");
    let told = world.api.handle(metrics, Caller::new("admin", ["system:masters"])).await.into_body().into_bytes();
    let told = String::from_utf8(told.to_vec()).expect("text");
    for wanted in [
        "apiserver_conversion_webhook_request_total{failure_type=\"\",result=\"success\"} ",
        "apiserver_conversion_webhook_request_total{failure_type=\"conversion_webhook_call_failure\",result=\"failure\"} 1",
        "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"gates.wall.example.com\",from_version=\"v1\",succeeded=\"false\",to_version=\"v2\"} 1",
    ] {
        assert!(told.lines().any(|line| line.starts_with(wanted)), "{wanted}\n{told}");
    }
}

/// Patches a gate: the kind of patch, the manager, the version, and the spec.
async fn write(world: &World, (how, manager, version): (&str, &str, &str), spec: &Value) -> (u16, Value) {
    let path = format!("/apis/wall.example.com/{version}/namespaces/default/gates/north?fieldManager={manager}");
    let body = json!({"apiVersion": format!("wall.example.com/{version}"), "kind": "Gate", "spec": spec});
    let request = Request::builder().method(Method::PATCH).uri(path);
    let request = request.header("content-type", format!("application/{how}")).body(body.to_string().into());
    let caller = Caller::new("admin", ["system:masters"]);
    let (head, body) = world.api.handle(request.expect("request"), caller).await.into_parts();
    (head.status.as_u16(), serde_json::from_slice::<Value>(&body.into_bytes()).expect("json"))
}

/// Who applies a field with a default no more lets go of it, also where others own something in another version: what a default
/// puts in its place there is nothing that stayed.
#[tokio::test]
async fn defaults_keep_nothing_that_is_applied_no_more() {
    let world = World::new().await;
    let mut definition = gates(&world);
    for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
        let fields = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        fields["lock"] = json!({"type": "string", "default": "none"});
    }
    let (code, reply) = world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    assert_eq!(code, 201, "{reply}");
    for (manager, version, given, code, want) in [
        ("a", "v2", json!({"address": "h:80", "lock": "brass"}), 201, json!({"address": "h:80", "lock": "brass"})),
        ("b", "v1", json!({"host": "h"}), 200, json!({"host": "h", "port": "80", "lock": "brass"})),
        ("a", "v2", json!({"address": "h:80"}), 200, json!({"address": "h:80", "lock": "none"})),
    ] {
        let (status, reply) = write(&world, ("apply-patch+yaml", manager, version), &given).await;
        assert_eq!((status, &reply["spec"]), (code, &want), "{manager} {version} {given}: {reply}");
    }
}

/// What a manager owns is held against the object in the version that he wrote in.
#[tokio::test]
async fn managers_of_versions_that_a_webhook_converts() {
    let world = World::new().await;
    let (code, reply) = world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &gates(&world)).await;
    assert_eq!(code, 201, "{reply}");
    let managers = |object: &Value| -> Vec<String> {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let named = |entry: &Value| {
            let version = entry["apiVersion"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default();
            format!("{} {version}", entry["manager"].as_str().unwrap_or_default())
        };
        entries.map(named).collect()
    };
    let (apply, merge) = ("apply-patch+yaml", "merge-patch+json");
    let whole = json!({"host": "h", "port": "80"});
    for (write_as, given, code, want) in [
        ((apply, "a", "v2"), json!({"address": "h:80"}), 201, Ok((json!({"address": "h:80"}), vec!["a v2"]))),
        // The same under other names is no conflict, and stays when only the other still owns it.
        ((apply, "b", "v1"), json!({"host": "h"}), 200, Ok((whole.clone(), vec!["a v2", "b v1"]))),
        ((apply, "b", "v1"), json!({"port": "80"}), 200, Ok((whole, vec!["a v2", "b v1"]))),
        ((apply, "b", "v1"), json!({"port": "1"}), 409, Err("conflict with \"a\": .spec.address")),
        ((apply, "a", "v2"), json!({"address": "i:80"}), 200, Ok((json!({"address": "i:80"}), vec!["a v2", "b v1"]))),
        // An update takes from both what it changes.
        ((merge, "c", "v1"), json!({"port": "443"}), 200, Ok((json!({"host": "i", "port": "443"}), vec!["c v1"]))),
        ((apply, "a", "v2"), json!({"address": "i:443"}), 200, Ok((json!({"address": "i:443"}), vec!["a v2", "c v1"]))),
    ] {
        let (status, reply) = write(&world, write_as, &given).await;
        assert_eq!(status, code, "{write_as:?} {given}: {reply}");
        match want {
            Ok((spec, owners)) => {
                assert_eq!(reply["spec"], spec, "{write_as:?} {given}: {reply}");
                let mut found = managers(&reply);
                found.sort();
                assert_eq!(found, owners, "{write_as:?} {given}: {reply}");
            }
            Err(why) => assert!(reply["message"].as_str().is_some_and(|said| said.contains(why)), "{reply}"),
        }
    }
    // Where nobody can say what the object is in a manager's version, nothing is applied, and an update forgets the managers.
    let mut broken = gates(&world);
    broken["spec"]["conversion"]["webhook"]["clientConfig"] = world.client("/error");
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gates.wall.example.com";
    let conversion = json!({"spec": {"conversion": broken["spec"]["conversion"]}});
    let (code, reply, _) = world.send(Method::PATCH, definition, &conversion).await;
    assert_eq!(code, 200, "{reply}");
    let (code, reply) = write(&world, (apply, "b", "v1"), &json!({"host": "i"})).await;
    assert_eq!(code, 500, "{reply}");
    let (code, reply) = write(&world, (merge, "c", "v1"), &json!({"host": "j"})).await;
    assert_eq!((code, &reply["spec"]["host"], managers(&reply)), (200, &json!("j"), vec![]), "{reply}");
}

/// Fields by which objects are selected are those of the version that is asked for, whatever version is stored.
#[tokio::test]
async fn fields_of_versions_that_a_webhook_converts() {
    let world = World::new().await;
    let (code, reply) = world.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &gates(&world)).await;
    assert_eq!(code, 201, "{reply}");
    let path = |version: &str| format!("/apis/wall.example.com/{version}/namespaces/default/gates");
    let gate = |name: &str, address: &str| json!({"apiVersion": "wall.example.com/v2", "kind": "Gate", "metadata": {"name": name}, "spec": {"address": address}});
    let watch = async |version: &str, selector: &str| {
        let uri = format!("{}?watch=true&fieldSelector={selector}", path(version));
        let request = Request::builder().uri(uri).body(Bytes::new()).expect("request");
        let response = world.api.handle(request, Caller::new("admin", ["system:masters"])).await;
        let Body::Watch { lines, .. } = response.into_body() else { unreachable!("a watch") };
        lines
    };
    assert_eq!(world.post(&path("v2"), &gate("before", "h:80")).await.0, 201);
    let mut of_v1 = watch("v1", "spec.host%3Dh").await;
    let mut of_v2 = watch("v2", "spec.address%3Dh:80").await;
    for (name, address) in [("north", "h:80"), ("south", "h:443"), ("other", "i:80")] {
        assert_eq!(world.post(&path("v2"), &gate(name, address)).await.0, 201, "{name}");
    }
    for (version, selector, want) in [
        ("v1", "spec.host%3Dh,spec.port%3D443", &["south"][..]),
        ("v2", "spec.address%3Dh:80", &["before", "north"]),
        ("v2", "spec.address!%3Dh:80", &["other", "south"]),
    ] {
        let (_, list, _) =
            world.send(Method::GET, &format!("{}?fieldSelector={selector}", path(version)), &Value::Null).await;
        let items = list["items"].as_array().expect("items").iter();
        let names: Vec<&str> = items.map(|item| item["metadata"]["name"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, want, "{version} {selector}: {list}");
    }
    let (code, _, _) =
        world.send(Method::PATCH, &format!("{}/north", path("v2")), &json!({"spec": {"address": "i:80"}})).await;
    assert_eq!(code, 200);
    for (lines, want) in [
        (&mut of_v1, &["ADDED before", "ADDED north", "ADDED south", "DELETED north"][..]),
        (&mut of_v2, &["ADDED before", "ADDED north", "DELETED north"]),
    ] {
        let mut got = Vec::new();
        while got.len() < want.len() {
            let some = futures::StreamExt::next(lines).await.expect("events");
            for line in String::from_utf8_lossy(&some).lines() {
                let event: Value = serde_json::from_str(line).expect("json");
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                got.push(format!("{} {}", text(&event["type"]), text(&event["object"]["metadata"]["name"])));
            }
        }
        assert_eq!(got, want);
    }
}

/// What a webhook makes of the metadata is checked, and those of the first version are spoken to in it.
#[tokio::test]
async fn webhooks_that_convert_are_checked() {
    let world = World::new().await;
    let mut definition = gates(&world);
    definition["spec"]["conversion"]["webhook"]["conversionReviewVersions"] = json!(["v1beta1"]);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, reply) = world.post(definitions, &definition).await;
    assert_eq!(code, 201, "{reply}");
    let gates_in = |version: &str| format!("/apis/wall.example.com/{version}/namespaces/default/gates");
    let gate = json!({"apiVersion": "wall.example.com/v1", "kind": "Gate", "metadata": {"name": "north"}, "spec": {"host": "h"}});
    let (code, made) = world.post(&gates_in("v1"), &gate).await;
    assert_eq!(code, 201, "{made}");
    let north = format!("{}/north", gates_in("v2"));
    let (code, read, _) = world.send(Method::GET, &north, &Value::Null).await;
    assert_eq!(code, 200, "{read}");
    let sent = world.seen.lock().expect("lock").last().map(|(_, review)| review["apiVersion"].clone());
    assert_eq!(sent, Some(json!("apiextensions.k8s.io/v1beta1")));
    let webhook = json!({"clientConfig": world.client("/convert-badly")});
    let change = json!({"spec": {"conversion": {"webhook": webhook}}});
    let (code, reply, _) = world.send(Method::PATCH, &format!("{definitions}/gates.wall.example.com"), &change).await;
    assert_eq!(code, 200, "{reply}");
    let (code, failed, _) = world.send(Method::GET, &north, &Value::Null).await;
    assert_eq!(code, 500, "{failed}");
    for said in [
        "conversion webhook for wall.example.com/v1, Kind=Gate returned invalid metadata: ",
        "metadata.labels: Invalid value: \"a b\"",
    ] {
        assert!(failed["message"].as_str().expect("message").contains(said), "{failed}");
    }
}

/// A definition that is deleted goes once its objects can be read: who has deleted it is not told of the webhook.
#[tokio::test]
async fn a_definition_outlasts_the_failures_of_its_webhook() {
    let world = World::new().await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let path = format!("{definitions}/gates.wall.example.com");
    let mut definition = gates(&world);
    let (code, reply) = world.post(definitions, &definition).await;
    assert_eq!(code, 201, "{reply}");
    let gate = json!({"apiVersion": "wall.example.com/v1", "kind": "Gate", "metadata": {"name": "north"}, "spec": {"host": "h"}});
    let (code, made) = world.post("/apis/wall.example.com/v1/namespaces/default/gates", &gate).await;
    assert_eq!(code, 201, "{made}");
    // It is stored in one version, and has to go in another.
    let versions = definition["spec"]["versions"].as_array_mut().expect("versions");
    (versions[0]["storage"], versions[1]["storage"]) = (json!(false), json!(true));
    definition["spec"]["conversion"]["webhook"]["clientConfig"] = world.client("/error");
    let change = json!({"spec": definition["spec"]});
    let (code, reply, _) = world.send(Method::PATCH, &path, &change).await;
    assert_eq!(code, 200, "{reply}");
    let (code, reply, _) = world.send(Method::DELETE, &path, &Value::Null).await;
    assert_eq!(code, 200, "{reply}");
    let (code, waiting, _) = world.send(Method::GET, &path, &Value::Null).await;
    assert_eq!(code, 200, "{waiting}");
    assert!(waiting["metadata"]["deletionTimestamp"].is_string(), "{waiting}");
    let mended = json!({"spec": {"conversion": {"webhook": {"clientConfig": world.client("/convert")}}}});
    let (code, reply, _) = world.send(Method::PATCH, &path, &mended).await;
    assert_eq!(code, 200, "{reply}");
    // As each server does when it starts, and now and then.
    world.api.bootstrap().await.expect("bootstrap");
    assert_eq!(world.send(Method::GET, &path, &Value::Null).await.0, 404);
}
