//! The life of a CustomResourceDefinition and of its resources.

use std::sync::Arc;

use carrack_apiserver::{storage_prefix, stored_form};
use carrack_store::{Op, Store as _, Txn};
use serde_json::{Value, json};

use crate::harness::{Cluster, names, now};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SHIPS: &str = "/apis/sea.example.com/v1/namespaces/default/ships";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ships.sea.example.com"},
        "spec": {
            "group": "sea.example.com", "scope": "Namespaced",
            "names": {"plural": "ships", "kind": "Ship", "shortNames": ["sh"], "categories": ["all"]},
            "versions": [
                {
                    "name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.masts", "statusReplicasPath": ".status.masts"}},
                    "additionalPrinterColumns": [{"name": "Masts", "type": "integer", "jsonPath": ".spec.masts"}],
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object", "required": ["cargo"],
                                "properties": {
                                    "masts": {"type": "integer", "minimum": 1, "maximum": 7, "default": 3},
                                    "cargo": {"type": "string", "enum": ["tea", "tin"]},
                                },
                            },
                            "status": {"type": "object", "properties": {"masts": {"type": "integer"}}},
                        },
                    }},
                },
                {
                    "name": "v1alpha1", "served": true, "storage": false,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                },
            ],
        },
    })
}

fn ship(name: &str) -> Value {
    json!({"apiVersion": "sea.example.com/v1", "kind": "Ship", "metadata": {"name": name}, "spec": {"cargo": "tea"}})
}

#[test]
fn served_at_once() {
    let cluster = Cluster::new();
    cluster.get(SHIPS).expect(404);
    let made = cluster.post(CRDS, &definition()).expect(201);
    let condition = |kind: &str| {
        made["status"]["conditions"]
            .as_array()
            .expect("conditions")
            .iter()
            .find(|c| c["type"] == kind)
            .map(|c| c["status"].clone())
    };
    assert_eq!((condition("NamesAccepted"), condition("Established")), (Some("True".into()), Some("True".into())));
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "ShipList");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(cluster.get(SHIPS).expect(200)["kind"], "ShipList");
    let resources = cluster.get("/apis/sea.example.com/v1").expect(200);
    let listed: Vec<_> = resources["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|r| r["name"].as_str().unwrap_or(""))
        .collect();
    assert!(["ships", "ships/status", "ships/scale"].iter().all(|name| listed.contains(name)), "{listed:?}");
    let groups = cluster.get("/apis").expect(200);
    let group =
        groups["groups"].as_array().expect("groups").iter().find(|g| g["name"] == "sea.example.com").expect("group");
    assert_eq!(group["preferredVersion"]["version"], "v1");
}

#[test]
fn a_version_goes_once_nothing_is_stored_in_it() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    let path = format!("{CRDS}/ships.sea.example.com");
    let patch = |patch: Value| cluster.patch(&path, "application/json-patch+json", &patch);
    let moved = patch(json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
    ]))
    .expect(200);
    assert_eq!(moved["status"]["storedVersions"], json!(["v1", "v1alpha1"]));
    let gone = json!([{"op": "remove", "path": "/spec/versions/0"}]);
    patch(gone.clone()).refused(422, "Invalid", "status.storedVersions[0]");
    // Who says nothing of them has moved none, and nobody has moved them to what is not there.
    let say =
        |versions: Value| cluster.merge(&format!("{path}/status"), &json!({"status": {"storedVersions": versions}}));
    assert_eq!(say(json!([])).expect(200)["status"]["storedVersions"], json!(["v1", "v1alpha1"]));
    say(json!(["v1alpha1", "v9"])).refused(422, "Invalid", "status.storedVersions[1]");
    // Whoever has moved the objects says so, and may say more.
    let mut status = moved["status"].clone();
    status["storedVersions"] = json!(["v1alpha1"]);
    let own = json!({"type": "Moved", "status": "True", "reason": "x", "message": "y", "lastTransitionTime": null});
    status["conditions"].as_array_mut().expect("conditions").push(own);
    let told = cluster.merge(&format!("{path}/status"), &json!({"status": status})).expect(200);
    assert_eq!(told["status"]["storedVersions"], json!(["v1alpha1"]));
    let kinds: Vec<_> =
        told["status"]["conditions"].as_array().expect("conditions").iter().map(|c| &c["type"]).collect();
    assert_eq!(kinds, ["NamesAccepted", "Established", "Moved"]);
    assert_eq!(patch(gone).expect(200)["status"]["storedVersions"], json!(["v1alpha1"]));
}

#[test]
fn objects_are_defaulted_pruned_and_validated() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    let mut object = ship("a");
    object["spec"]["extra"] = "dropped".into();
    object["status"] = json!({"masts": 9});
    object["metadata"]["labels"] = json!({});
    object["metadata"]["ownerReferences"] = json!([]);
    let reply = cluster.post(SHIPS, &object);
    let warning = reply.headers.get("warning").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let made = reply.expect(201);
    assert!(warning.contains("unknown field \\\"spec.extra\\\""), "{warning}");
    assert_eq!(made["spec"], json!({"cargo": "tea", "masts": 3}));
    assert!(made["status"].is_null());
    assert!(["labels", "ownerReferences"].iter().all(|field| made["metadata"].get(*field).is_none()), "{made}");
    assert_eq!(made["metadata"]["generation"], 1);
    cluster.post(&format!("{SHIPS}?fieldValidation=Strict"), &object).refused(
        400,
        "BadRequest",
        "unknown field \"spec.extra\"",
    );
    // A whole number is an integer however it is written, and is shown without a point.
    let mut pointed = ship("c");
    pointed["spec"]["masts"] = json!(2.0);
    assert_eq!(cluster.post(SHIPS, &pointed).expect(201)["spec"]["masts"], json!(2));
    let patched = cluster.merge(&format!("{SHIPS}/c"), &json!({"spec": {"masts": 4.0}})).expect(200);
    assert_eq!(patched["spec"]["masts"], json!(4));
    for (spec, field) in [
        (json!({"cargo": "gold"}), "spec.cargo"),
        (json!({"cargo": "tea", "masts": 2.5}), "spec.masts"),
        (json!({"cargo": "tea", "masts": 8}), "spec.masts"),
        (json!({"cargo": "tea", "masts": "two"}), "spec.masts"),
        (json!({}), "spec.cargo"),
    ] {
        let mut bad = ship("b");
        bad["spec"] = spec;
        let refused = cluster.post(SHIPS, &bad).refused(422, "Invalid", field);
        assert_eq!(refused["details"]["causes"][0]["field"], field);
        assert_eq!(refused["details"]["kind"], "Ship");
    }
}

#[test]
fn status_and_scale() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let path = format!("{SHIPS}/a");
    let done = cluster
        .merge(
            &format!("{path}/status"),
            &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"masts": 5}, "status": {"masts": 2}}),
        )
        .expect(200);
    assert_eq!((done["spec"]["masts"].as_i64(), done["status"]["masts"].as_i64()), (Some(3), Some(2)));
    assert_eq!((done["metadata"]["generation"].as_i64(), &done["metadata"]["labels"]), (Some(1), &Value::Null));
    let scale = cluster.get(&format!("{path}/scale")).expect(200);
    assert_eq!((scale["spec"]["replicas"].as_i64(), scale["status"]["replicas"].as_i64()), (Some(3), Some(2)));
    let scaled = cluster.merge(&format!("{path}/scale"), &json!({"spec": {"replicas": 4}})).expect(200);
    assert_eq!(scaled["spec"]["replicas"], 4);
    let object = cluster.get(&path).expect(200);
    assert_eq!((object["spec"]["masts"].as_i64(), object["metadata"]["generation"].as_i64()), (Some(4), Some(2)));
    cluster.patch(&path, "application/strategic-merge-patch+json", &json!({})).refused(
        415,
        "UnsupportedMediaType",
        "application/merge-patch+json",
    );
}

/// What a scale may not be is refused as the object that it is of, where upstream refuses it.
#[test]
fn scales_that_cannot_be() {
    let cluster = Cluster::new();
    let mut without_default = definition();
    let masts = &mut without_default["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        ["masts"];
    *masts = json!({"type": "integer"});
    cluster.post(CRDS, &without_default).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let path = format!("{SHIPS}/a/scale");
    let scale = |replicas: i64| json!({"metadata": {"name": "a"}, "spec": {"replicas": replicas}});
    cluster.get(&path).refused(500, "InternalError", "the spec replicas field \".spec.masts\" does not exist");
    cluster.merge(&path, &json!({"metadata": {"name": "a"}})).refused(
        400,
        "BadRequest",
        "the spec replicas field \".spec.masts\" cannot be empty",
    );
    cluster.put(&path, &scale(-3)).refused(
        422,
        "Invalid",
        "Ship.sea.example.com \"a\" is invalid: .spec.masts: Invalid value: -3: should be a non-negative integer",
    );
    cluster.put(&path, &scale(3_000_000_000)).expect(400);
    cluster.patch(&path, "application/strategic-merge-patch+json", &scale(2)).refused(
        415,
        "UnsupportedMediaType",
        "application/merge-patch+json",
    );
    assert_eq!(cluster.put(&path, &scale(2)).expect(200)["spec"]["replicas"], 2);
    cluster.merge(&format!("{SHIPS}/a/status"), &json!({"status": {"masts": -1}})).refused(
        422,
        "Invalid",
        ".status.masts: Invalid value: -1: should be a non-negative integer",
    );
}

/// Whatever a custom resource says that it is, it is held to be one of the kind of its path when it is validated.
#[test]
fn objects_of_another_kind() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let mut boat = ship("a");
    boat["kind"] = "Boat".into();
    for reply in [cluster.post(SHIPS, &boat), cluster.put(&format!("{SHIPS}/a"), &boat)] {
        let want = "Boat.sea.example.com \"a\" is invalid: kind: Invalid value: \"Boat\": must be Ship";
        reply.refused(422, "Invalid", want);
    }
    boat["apiVersion"] = "sea.example.com/v2".into();
    cluster.post(SHIPS, &boat).refused(400, "BadRequest", "does not match the expected API version");
    // One that does not say what it is is of no kind, but for who patches one that is there.
    for (field, why) in [
        ("kind", "Object 'Kind' is missing in '{\"apiVersion\":\"sea.example.com/v1\""),
        ("apiVersion", "the API version in the data () does not match the expected API version (sea.example.com/v1)"),
    ] {
        let mut silent = ship("a");
        silent.as_object_mut().expect("an object").remove(field);
        cluster.post(SHIPS, &silent).refused(400, "BadRequest", why);
        cluster.put(&format!("{SHIPS}/a"), &silent).refused(400, "BadRequest", why);
    }
}

#[test]
fn versions_are_views_of_one_object() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let other = "/apis/sea.example.com/v1alpha1/namespaces/default/ships";
    let seen = cluster.get(&format!("{other}/a")).expect(200);
    assert_eq!(
        (seen["apiVersion"].as_str(), seen["spec"]["cargo"].as_str()),
        (Some("sea.example.com/v1alpha1"), Some("tea"))
    );
    let list = cluster.get(other).expect(200);
    assert_eq!(
        (list["apiVersion"].as_str(), list["items"][0]["apiVersion"].as_str()),
        (Some("sea.example.com/v1alpha1"), Some("sea.example.com/v1alpha1"))
    );
    let mut watch = cluster.watch(&format!("{other}?watch=true"));
    assert_eq!(watch.events()[0]["object"]["apiVersion"], "sea.example.com/v1alpha1");
}

#[test]
fn tables_have_the_columns_of_the_definition() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let table = cluster.get_as(SHIPS, "application/json;as=Table;v=v1;g=meta.k8s.io").expect(200);
    let columns: Vec<_> = table["columnDefinitions"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|c| c["name"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(columns, ["Name", "Masts"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3]));
}

#[test]
fn finalizers_without_a_domain_are_warned_of() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    let mut held = ship("held");
    held["metadata"]["finalizers"] = json!(["mine"]);
    let made = cluster.post(SHIPS, &held);
    let told = made.headers["warning"].to_str().expect("text").to_owned();
    assert!(told.contains("metadata.finalizers: \\\"mine\\\": prefer a domain-qualified finalizer name"), "{told}");
    made.expect(201);
    // Once said, it is not said again.
    for (finalizers, is_told) in [
        (json!(["mine", "example.com/f"]), false),
        (json!(["mine", "yours"]), true),
        (json!(["yours", "foregroundDeletion"]), false),
    ] {
        let changed = cluster.merge(&format!("{SHIPS}/held"), &json!({"metadata": {"finalizers": finalizers}}));
        assert_eq!(changed.headers.contains_key("warning"), is_told, "{finalizers}");
        changed.expect(200);
    }
}

#[test]
fn a_definition_takes_its_objects_along() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    cluster.delete(&format!("{CRDS}/ships.sea.example.com")).expect(200);
    cluster.get(&format!("{CRDS}/ships.sea.example.com")).expect(404);
    cluster.get(SHIPS).expect(404);
    // A new definition of that name begins empty.
    cluster.post(CRDS, &definition()).expect(201);
    assert!(names(&cluster.get(SHIPS).expect(200)).is_empty());
}

/// Definitions that are deleted as a collection end as those do that are deleted by name.
#[test]
fn a_collection_of_definitions_takes_their_objects_along() {
    let cluster = Cluster::new();
    let mut labelled = definition();
    labelled["metadata"]["labels"] = json!({"fleet": "old"});
    cluster.post(CRDS, &labelled).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    cluster.delete(&format!("{CRDS}?labelSelector=fleet%3Dold&dryRun=All")).expect(200);
    cluster.get(&format!("{SHIPS}/a")).expect(200);
    cluster.delete(&format!("{CRDS}?labelSelector=fleet%3Dold")).expect(200);
    cluster.get(&format!("{CRDS}/ships.sea.example.com")).expect(404);
    cluster.get(SHIPS).expect(404);
}

#[test]
fn the_last_object_takes_its_definition_along() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    let mut held = ship("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(SHIPS, &held).expect(201);
    cluster.post(SHIPS, &ship("free")).expect(201);
    cluster.delete(&format!("{CRDS}/ships.sea.example.com")).expect(200);
    assert_eq!(names(&cluster.get(SHIPS).expect(200)), ["held"]);
    let waiting = cluster.get(&format!("{CRDS}/ships.sea.example.com")).expect(200);
    assert_eq!(waiting["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    cluster.post(SHIPS, &ship("late")).refused(
        405,
        "MethodNotAllowed",
        "create not allowed while custom resource definition is terminating",
    );
    cluster.merge(&format!("{SHIPS}/held"), &json!({"metadata": {"finalizers": null}})).expect(200);
    cluster.get(&format!("{CRDS}/ships.sea.example.com")).expect(404);
    cluster.get(SHIPS).expect(404);
}

/// Nor does it take anything along: what has its names is another's.
#[test]
fn a_definition_that_was_never_served_waits_for_nothing() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    cluster.post(SHIPS, &ship("a")).expect(201);
    let path = format!("{CRDS}/vessels.sea.example.com");
    for (kind, established) in [("Ship", "False"), ("Vessel", "True")] {
        let made = cluster.post(CRDS, &called(&json!({"plural": "vessels", "kind": kind}))).expect(201);
        assert_eq!(condition(&made, "Established")[0], established);
        cluster.delete(&path).expect(200);
        cluster.get(&path).expect(404);
    }
    assert_eq!(names(&cluster.get(SHIPS).expect(200)), ["a"]);
}

/// As one that another server had let in, before the kind was built in here. What is stored is that kind's.
#[test]
fn a_definition_in_the_place_of_a_built_in_kind_goes_alone() {
    let cluster = Cluster::new();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    cluster.post(leases, &json!({"metadata": {"name": "l"}})).expect(201);
    let mut taken = definition();
    taken["metadata"] =
        json!({"name": "leases.coordination.k8s.io", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"});
    taken["spec"]["group"] = "coordination.k8s.io".into();
    taken["spec"]["names"] = json!({"plural": "leases", "singular": "lease", "kind": "Lease", "listKind": "LeaseList"});
    taken["status"] = json!({"acceptedNames": taken["spec"]["names"], "storedVersions": ["v1"],
        "conditions": [{"type": "Established", "status": "True"}]});
    let key = storage_prefix("apiextensions.k8s.io", "customresourcedefinitions", None) + "leases.coordination.k8s.io";
    let value = stored_form(taken.to_string().as_bytes()).expect("an object");
    now(cluster.store.transact(Txn { checks: Vec::new(), ops: vec![Op::Put(Arc::from(key), value)] })).expect("stored");
    let path = format!("{CRDS}/leases.coordination.k8s.io");
    cluster.get(&path).expect(200);
    cluster.delete(&path).expect(200);
    cluster.get(&path).expect(404);
    assert_eq!(names(&cluster.get(leases).expect(200)), ["l"]);
}

#[test]
fn definitions_that_cannot_be() {
    let cluster = Cluster::new();
    let mut wrong_name = definition();
    wrong_name["metadata"]["name"] = "boats.sea.example.com".into();
    cluster.post(CRDS, &wrong_name).refused(422, "Invalid", "metadata.name");
    let mut no_schema = definition();
    no_schema["spec"]["versions"][0].as_object_mut().expect("version").remove("schema");
    cluster.post(CRDS, &no_schema).refused(422, "Invalid", "");
    cluster.post(CRDS, &definition()).expect(201);
    let mut same_kind = definition();
    same_kind["metadata"]["name"] = "boats.sea.example.com".into();
    same_kind["spec"]["names"]["plural"] = "boats".into();
    same_kind["spec"]["names"]["listKind"] = "Boats".into();
    let made = cluster.post(CRDS, &same_kind).expect(201);
    assert_eq!(condition(&made, "NamesAccepted"), ["False", "KindConflict", "\"Ship\" is already in use"]);
    cluster.get("/apis/sea.example.com/v1/boats").expect(404);
}

/// What a condition of a definition says: its status, why, and in words.
fn condition(definition: &Value, kind: &str) -> [String; 3] {
    let all = definition["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default();
    ["status", "reason", "message"].map(|field| found[field].as_str().unwrap_or_default().to_owned())
}

/// A definition whose kind is called so.
fn called(names: &Value) -> Value {
    let mut definition = definition();
    definition["metadata"]["name"] = format!("{}.sea.example.com", names["plural"].as_str().unwrap_or_default()).into();
    definition["spec"]["names"] = names.clone();
    definition
}

#[test]
fn names_are_given_once() {
    let cluster = Cluster::new();
    let path = |plural: &str| format!("{CRDS}/{plural}.sea.example.com");
    cluster.post(CRDS, &definition()).expect(201);
    for (names, reason, taken, accepted) in [
        (
            json!({"plural": "junks", "kind": "Junk", "shortNames": ["jk", "sh"]}),
            "ShortNamesConflict",
            r#""sh" is already in use"#,
            json!({"plural": "junks", "singular": "junk", "kind": "Junk", "listKind": "JunkList"}),
        ),
        (
            json!({"plural": "barks", "kind": "Bark", "shortNames": ["sh"], "categories": ["all"]}),
            "ShortNamesConflict",
            r#""sh" is already in use"#,
            json!({"plural": "barks", "singular": "bark", "kind": "Bark", "listKind": "BarkList", "categories": ["all"]}),
        ),
        (
            json!({"plural": "tubs", "kind": "Tub", "shortNames": ["ships", "ship"]}),
            "ShortNamesConflict",
            r#"["ships" is already in use, "ship" is already in use]"#,
            json!({"plural": "tubs", "singular": "tub", "kind": "Tub", "listKind": "TubList"}),
        ),
        (
            json!({"plural": "rafts", "kind": "Raft", "singular": "sh"}),
            "SingularConflict",
            r#""sh" is already in use"#,
            json!({"plural": "rafts", "kind": "Raft", "listKind": "RaftList"}),
        ),
        (
            json!({"plural": "hulks", "kind": "ShipList"}),
            "KindConflict",
            r#""ShipList" is already in use"#,
            json!({"plural": "hulks", "singular": "shiplist", "kind": "", "listKind": "ShipListList"}),
        ),
        (
            json!({"plural": "arks", "kind": "Ark", "listKind": "Ship"}),
            "ListKindConflict",
            r#""Ship" is already in use"#,
            json!({"plural": "arks", "singular": "ark", "kind": "Ark"}),
        ),
    ] {
        let made = cluster.post(CRDS, &called(&names)).expect(201);
        assert_eq!(condition(&made, "NamesAccepted"), ["False", reason, taken], "{names}");
        assert_eq!(condition(&made, "Established")[0], "False", "{names}");
        assert_eq!(made["status"]["acceptedNames"], accepted, "{names}");
        cluster.get(&format!("/apis/sea.example.com/v1/{}", names["plural"].as_str().expect("text"))).expect(404);
    }
    // Those that are served keep what they have until they get what they want.
    let made =
        cluster.post(CRDS, &called(&json!({"plural": "canoes", "kind": "Canoe", "shortNames": ["cn"]}))).expect(201);
    assert_eq!(condition(&made, "Established")[0], "True");
    let want = |short: &str| json!({"spec": {"names": {"shortNames": [short]}}});
    let changed = cluster.merge(&path("canoes"), &want("ship")).expect(200);
    assert_eq!((&*condition(&changed, "NamesAccepted")[0], &*condition(&changed, "Established")[0]), ("False", "True"));
    let resources = cluster.get("/apis/sea.example.com/v1").expect(200)["resources"].clone();
    let canoes = resources.as_array().expect("resources").iter().find(|resource| resource["name"] == "canoes");
    assert_eq!(canoes.map(|canoes| &canoes["shortNames"]), Some(&json!(["cn"])));
    // A name that is given up goes to one of those who wait for it.
    cluster.merge(&path("ships"), &want("sp")).expect(200);
    let established = |plural: &str| condition(&cluster.get(&path(plural)).expect(200), "Established")[0].clone();
    let served: Vec<&str> =
        ["barks", "junks", "rafts", "tubs"].into_iter().filter(|of| established(of) == "True").collect();
    assert_eq!(served, ["barks"]);
    cluster.delete(&path("barks")).expect(200);
    assert_eq!((&*established("junks"), &*established("rafts")), ("True", "False"));
}

#[test]
fn definitions_in_groups_of_the_community() {
    let cluster = Cluster::new();
    let mut definition = definition();
    definition["metadata"]["name"] = "ships.sea.k8s.io".into();
    definition["spec"]["group"] = "sea.k8s.io".into();
    let annotation = "metadata.annotations[api-approved.kubernetes.io]";
    cluster.post(CRDS, &definition).refused(422, "Invalid", &format!("{annotation}: Required value: "));
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a trial"});
    let made = cluster.post(CRDS, &definition).expect(201);
    let conforms = |definition: &Value| condition(definition, "KubernetesAPIApprovalPolicyConformant");
    assert_eq!(conforms(&made), ["False", "UnapprovedAnnotation", "not approved: \"unapproved, a trial\""]);
    let path = format!("{CRDS}/ships.sea.k8s.io");
    let say = |what: Value| json!({"metadata": {"annotations": {"api-approved.kubernetes.io": what}}});
    cluster.merge(&path, &say(json!("approved"))).refused(422, "Invalid", &format!("{annotation}: Invalid value: "));
    let approved = cluster.merge(&path, &say(json!("https://example.com/1"))).expect(200);
    assert_eq!(conforms(&approved), ["True", "ApprovedAnnotation", "approved in https://example.com/1"]);
}

#[test]
fn rules_hold_and_bad_ones_are_refused() {
    let cluster = Cluster::new();
    let mut definition = definition();
    let spec = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    spec["x-kubernetes-validations"] = json!([
        {"rule": "self.cargo != 'tin' || self.masts >= 2", "message": "tin is heavy"},
        {"rule": "self.masts >= oldSelf.masts", "messageExpression": "'had ' + string(oldSelf.masts)"},
    ]);
    let mut bad = definition.clone();
    bad["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] =
        "self.sails > 1".into();
    let refused = cluster.post(CRDS, &bad).refused(422, "Invalid", "undefined field 'sails'");
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
    );
    cluster.post(CRDS, &definition).expect(201);
    let mut ship = ship("one");
    ship["spec"] = json!({"cargo": "tin", "masts": 1});
    cluster.post(SHIPS, &ship).refused(422, "Invalid", "spec: Invalid value: \"object\": tin is heavy");
    ship["spec"] = json!({"cargo": "tea", "masts": 5});
    let made = cluster.post(SHIPS, &ship).expect(201);
    ship["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"].clone();
    ship["spec"]["masts"] = 4.into();
    cluster.put(&format!("{SHIPS}/one"), &ship).refused(422, "Invalid", "had 5");
    // A rule that came later does not hold up a change elsewhere.
    let mut stricter = cluster.get(&format!("{CRDS}/ships.sea.example.com")).expect(200);
    stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"]
        .as_array_mut()
        .expect("rules")
        .push(json!({"rule": "self.masts < 5"}));
    cluster.put(&format!("{CRDS}/ships.sea.example.com"), &stricter).expect(200);
    ship["spec"]["masts"] = 5.into();
    ship["metadata"]["labels"] = json!({"a": "b"});
    let now = cluster.put(&format!("{SHIPS}/one"), &ship).expect(200);
    ship["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
    ship["spec"]["masts"] = 6.into();
    cluster.put(&format!("{SHIPS}/one"), &ship).refused(422, "Invalid", "failed rule: self.masts < 5");
    let told = cluster.get("/metrics").expect(200);
    let told = told.as_str().expect("text");
    for name in ["compilation", "evaluation"] {
        let count = format!("apiserver_cel_{name}_duration_seconds_count ");
        let counted = told.lines().find_map(|line| line.strip_prefix(&count));
        assert!(counted.is_some_and(|count| count != "0"), "{name}: {counted:?}");
    }
}

#[test]
fn names_are_accepted_when_they_become_free() {
    let cluster = Cluster::new();
    cluster.post(CRDS, &definition()).expect(201);
    let mut other = definition();
    other["metadata"]["name"] = "vessels.sea.example.com".into();
    other["spec"]["names"] = json!({"plural": "vessels", "kind": "Ship"});
    let status = |object: &Value, kind: &str| {
        let all = object["status"]["conditions"].as_array().expect("conditions").clone();
        all.iter().find(|c| c["type"] == kind).map(|c| c["status"].clone()).unwrap_or_default()
    };
    let made = cluster.post(CRDS, &other).expect(201);
    assert_eq!((status(&made, "NamesAccepted"), status(&made, "Established")), ("False".into(), "False".into()));
    let vessels = "/apis/sea.example.com/v1/namespaces/default/vessels";
    cluster.get(vessels).expect(404);
    cluster.delete(&format!("{CRDS}/ships.sea.example.com")).expect(200);
    let now = cluster.get(&format!("{CRDS}/vessels.sea.example.com")).expect(200);
    assert_eq!((status(&now, "NamesAccepted"), status(&now, "Established")), ("True".into(), "True".into()), "{now}");
    cluster.get(vessels).expect(200);
}
