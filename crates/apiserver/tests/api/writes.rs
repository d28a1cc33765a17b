//! create, update, patch: what the server sets, what it refuses, and who wins.

use bytes::Bytes;
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map, names, pod, revision};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    })
}

#[test]
fn the_server_sets_metadata() {
    let cluster = Cluster::new();
    let mut object = config_map("m", "x");
    object["metadata"]["uid"] = "mine".into();
    object["metadata"]["creationTimestamp"] = Value::Null;
    object["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let made = cluster.post(CONFIG_MAPS, &object).expect(201);
    let metadata = &made["metadata"];
    assert_eq!((made["kind"].as_str(), made["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(metadata["creationTimestamp"], "2027-01-15T08:00:00Z");
    assert_eq!(metadata["managedFields"][0]["manager"], "unknown", "what the client sent is not taken");
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/m")).expect(200), made);
    cluster.post(CONFIG_MAPS, &object).refused(409, "AlreadyExists", "configmaps \"m\" already exists");
}

#[test]
fn names_are_generated() {
    let cluster = Cluster::new();
    let object = json!({"metadata": {"generateName": "web-"}});
    let (one, two) = (cluster.post(CONFIG_MAPS, &object).expect(201), cluster.post(CONFIG_MAPS, &object).expect(201));
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert!(name(&one).starts_with("web-") && name(&one).len() == 9, "{one}");
    assert_ne!(name(&one), name(&two));
}

/// What has a point is no integer in JSON; where upstream reads without a type first, it is one if it is whole.
#[test]
fn integers_have_no_point() {
    let cluster = Cluster::new();
    let send = |content_type: &str, name: &str, replicas: &str| {
        let mut object = deployment(name);
        object["spec"]["replicas"] = 12345.into();
        let body = Bytes::from(object.to_string().replace("12345", replicas));
        let admin = Caller::new("admin", ["system:masters"]);
        cluster.request(admin, Method::POST, DEPLOYMENTS, &[("content-type", content_type)], body)
    };
    let why = "of type int32";
    let refused = send("application/json", "a", "1.0").refused(400, "BadRequest", why);
    assert_eq!(
        refused["message"],
        "Deployment in version \"v1\" cannot be handled as a Deployment: json: cannot unmarshal number 1.0 into Go struct \
         field DeploymentSpec.spec.replicas of type int32"
    );
    send("application/json", "a", "1e3").refused(400, "BadRequest", why);
    assert_eq!(send("application/yaml", "a", "1.0").expect(201)["spec"]["replicas"], json!(1));
    send("application/yaml", "b", "1.5").refused(400, "BadRequest", "number 1.5");
    let path = format!("{DEPLOYMENTS}/a");
    let patch = json!({"spec": {"replicas": 2.0}});
    cluster.merge(&path, &patch).refused(422, "Invalid", why);
    let strategic = cluster.patch(&path, "application/strategic-merge-patch+json", &patch).expect(200);
    assert_eq!(strategic["spec"]["replicas"], json!(2));
    let (scale, patch) = (format!("{path}/scale"), json!({"spec": {"replicas": 3.0}}));
    cluster.merge(&scale, &patch).refused(422, "Invalid", why);
    let strategic = cluster.patch(&scale, "application/strategic-merge-patch+json", &patch).expect(200);
    assert_eq!(strategic["spec"]["replicas"], json!(3));
}

#[test]
fn bodies_that_make_no_sense() {
    let cluster = Cluster::new();
    let admin = || Caller::new("admin", ["system:masters"]);
    let send = |content_type: &str, body: &str| {
        let body = Bytes::from(body.to_owned());
        cluster.request(admin(), Method::POST, CONFIG_MAPS, &[("content-type", content_type)], body)
    };
    send("application/json", "{").refused(400, "BadRequest", "");
    send("application/json", "[]").refused(400, "BadRequest", "");
    send("application/xml", "<a/>").refused(415, "UnsupportedMediaType", "application/json");
    send("application/json", r#"{"apiVersion":"apps/v1","kind":"ConfigMap","metadata":{"name":"x"}}"#).refused(
        400,
        "BadRequest",
        "the API version in the data (apps/v1) does not match the expected API version (v1)",
    );
    send("application/json", r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}"#).refused(
        400,
        "BadRequest",
        "Secret",
    );
    for (content_type, body) in [
        ("application/json", r#"{"kind":1,"metadata":{"name":"x"}}"#),
        ("application/yaml", "kind: 1\nmetadata: {name: x}\n"),
    ] {
        send(content_type, body).refused(
            400,
            "BadRequest",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: json: \
             cannot unmarshal number into Go struct field .kind of type string (",
        );
    }
    send("application/json", r#"{"metadata":{"name":"x","namespace":"other"}}"#).refused(
        400,
        "BadRequest",
        "does not match the namespace",
    );
    send("application/json", r#"{"metadata":{}}"#).refused(422, "Invalid", "name or generateName is required");
    send("application/json", r#"{"metadata":{"name":"Not A Name"}}"#).refused(422, "Invalid", "metadata.name");
    send("application/json", r#"{"metadata":{"name":"x","resourceVersion":"5"}}"#).refused(
        400,
        "BadRequest",
        "resourceVersion should not be set",
    );
    send("application/json", r#"{"metadata":{"name":"x"},"data":{"a":1}}"#).refused(
        400,
        "BadRequest",
        "cannot unmarshal number",
    );
    let large = format!(r#"{{"metadata":{{"name":"x"}},"data":{{"a":"{}"}}}}"#, "x".repeat(3 << 20));
    send("application/json", &large).refused(413, "RequestEntityTooLarge", "limit is 3145728");
    let deep = format!(r#"{{"metadata":{{"name":"x"}},"data":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    send("application/json", &deep).refused(400, "BadRequest", "");
    send("application/yaml", "metadata:\n  name: from-yaml\ndata:\n  a: b\n").expect(201);
    // Nobody looks behind the first document.
    let made = send("application/yaml", "metadata: {name: first}\n---\nmetadata: {name: second}\n").expect(201);
    assert_eq!(made["metadata"]["name"], "first");
}

#[test]
fn unknown_and_duplicate_fields() {
    let cluster = Cluster::new();
    let body = r#"{"metadata":{"name":"p"},"spec":{"nope":1,"containers":[{"name":"c","image":"i","image":"j"}]}}"#;
    let send = |mode: &str| {
        let path = format!("/api/v1/namespaces/default/pods?dryRun=All&fieldValidation={mode}");
        cluster.request(Caller::apiserver(), Method::POST, &path, &[], Bytes::from(body))
    };
    let strict = send("Strict").refused(400, "BadRequest", "strict decoding error");
    let message = strict["message"].as_str().unwrap_or_default();
    // In the order of the body: clients in Go compare it.
    let both = "unknown field \"spec.nope\", duplicate field \"spec.containers[0].image\"";
    assert!(message.ends_with(both), "{message}");
    let warned = send("Warn");
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect();
    assert!(warnings.contains(&"299 - \"unknown field \\\"spec.nope\\\"\""), "{warnings:?}");
    assert!(warned.expect(201)["spec"]["nope"].is_null());
    let ignored = send("Ignore");
    assert!(ignored.headers.get("warning").is_none());
    ignored.expect(201);
    send("Sometimes").refused(422, "Invalid", "fieldValidation: Unsupported value: \"Sometimes\"");
}

#[test]
fn the_newer_object_wins() {
    let cluster = Cluster::new();
    let made = cluster.post(CONFIG_MAPS, &config_map("m", "1")).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    let mut mine = made.clone();
    mine["data"]["v"] = "2".into();
    let updated = cluster.put(&path, &mine).expect(200);
    assert!(revision(&updated) > revision(&made));
    mine["data"]["v"] = "3".into();
    cluster.put(&path, &mine).refused(
        409,
        "Conflict",
        "Operation cannot be fulfilled on configmaps \"m\": the object has been modified; please apply your changes to the latest version and try again",
    );
    // Without a resourceVersion nothing is claimed, and nothing is in the way.
    let unconditional = json!({"metadata": {"name": "m"}, "data": {"v": "4"}});
    let forced = cluster.put(&path, &unconditional).expect(200);
    assert_eq!(forced["metadata"]["uid"], made["metadata"]["uid"]);
    // Writing what is there already changes nothing.
    let same = cluster.put(&path, &forced).expect(200);
    assert_eq!(revision(&same), revision(&forced));
    let mut other = forced.clone();
    other["metadata"]["uid"] = "somebody-else".into();
    cluster.put(&path, &other).refused(409, "Conflict", "Precondition failed: UID in precondition");
    cluster.put(&format!("{CONFIG_MAPS}/n"), &config_map("n", "x")).refused(
        404,
        "NotFound",
        "configmaps \"n\" not found",
    );
    cluster.put(&path, &config_map("n", "x")).refused(
        400,
        "BadRequest",
        "the name of the object (n) does not match the name on the URL (m)",
    );
    // Whoever replaces something says what, even where there is nothing to replace.
    let unnamed =
        |name: &str| format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
    for name in ["m", "n"] {
        let place = format!("{CONFIG_MAPS}/{name}");
        cluster.put(&place, &json!({"data": {"v": "5"}})).refused(400, "BadRequest", &unnamed(name));
    }
    cluster.merge(&path, &json!({"metadata": {"name": null}})).refused(400, "BadRequest", &unnamed("m"));
    for (value, why) in [
        (json!({"op": "replace", "path": "", "value": {}}), unnamed("m").as_str()),
        (
            json!({"op": "replace", "path": "/kind", "value": 1}),
            "the kind in the data (1) does not match the expected kind (ConfigMap)",
        ),
    ] {
        cluster.patch(&path, "application/json-patch+json", &json!([value])).refused(400, "BadRequest", why);
    }
    cluster.merge(&path, &json!({"metadata": {"resourceVersion": "1"}, "data": {"v": "5"}})).refused(
        409,
        "Conflict",
        "has been modified",
    );
}

#[test]
fn owners_that_are_named_twice_are_kept_once() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let cluster = Cluster::new();
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"});
    let map = json!({"metadata": {"name": "owned", "ownerReferences": [owner, owner]}});
    let path = format!("{MAPS}/owned");
    let patch = json!([{"op": "add", "path": "/metadata/ownerReferences/-", "value": owner}]);
    for (reply, when) in [
        (cluster.post(MAPS, &map), ""),
        (cluster.put(&path, &map), ""),
        (cluster.patch(&path, "application/json-patch+json", &patch), " after mutating admission happens"),
    ] {
        let told = reply.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        assert!(
            told.contains(&format!("contains duplicate entries{when}; ")) && told.contains("observed: 1"),
            "{told}"
        );
        assert_eq!(reply.json["metadata"]["ownerReferences"], json!([owner]), "{}", reply.json);
    }
}

#[test]
fn generation_counts_changes_of_the_spec() {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let cluster = Cluster::new();
    let made = cluster.post(DEPLOYMENTS, &deployment("d")).expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{DEPLOYMENTS}/d");
    let labeled = cluster.merge(&path, &json!({"metadata": {"labels": {"x": "y"}}})).expect(200);
    assert_eq!(labeled["metadata"]["generation"], 1);
    let scaled = cluster.merge(&path, &json!({"spec": {"replicas": 3}})).expect(200);
    assert_eq!(scaled["metadata"]["generation"], 2);
    let status = cluster
        .merge(&format!("{path}/status"), &json!({"status": {"replicas": 3}, "spec": {"replicas": 9}}))
        .expect(200);
    assert_eq!((status["metadata"]["generation"].as_i64(), status["spec"]["replicas"].as_i64()), (Some(2), Some(3)));
    assert_eq!(status["status"]["replicas"], 3);
    let main = cluster.merge(&path, &json!({"status": {"replicas": 7}})).expect(200);
    assert_eq!(main["status"]["replicas"], 3);
    // Replica sets get its annotations, too, but not by way of its status.
    let noted = |path: &str, value: &str| {
        let note = json!({"metadata": {"annotations": {"a": value}}});
        cluster.merge(path, &note).expect(200)["metadata"]["generation"].clone()
    };
    let of_status = format!("{path}/status");
    assert_eq!([noted(&path, "b"), noted(&path, "b"), noted(&of_status, "c")], [json!(3), json!(3), json!(3)]);
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
    cluster.post(SLICES, &slice).expect(201);
    let path = format!("{SLICES}/s");
    assert_eq!(noted(&path, "b"), 1);
    let labeled = cluster.merge(&path, &json!({"metadata": {"labels": {"x": "y"}}})).expect(200);
    assert_eq!(labeled["metadata"]["generation"], 2);
}

/// Each kind says which metadata comes along with its status.
#[test]
fn what_writes_of_the_status_leave_alone() {
    const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
    const PODS: &str = "/api/v1/namespaces/default/pods";
    const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let cluster = Cluster::new();
    let set = json!({"metadata": {"name": "x"}, "spec": deployment("x")["spec"]});
    let budget = json!({"metadata": {"name": "x"}, "spec": {"maxUnavailable": 1}});
    let owners = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]);
    let metadata = json!({"labels": {"l": "m"}, "annotations": {"a": "b"}, "ownerReferences": owners});
    for (kind, api_version, path, made, kept) in [
        ("Deployment", "apps/v1", DEPLOYMENTS, set.clone(), "labels"),
        ("ReplicaSet", "apps/v1", SETS, set, ""),
        ("Pod", "v1", PODS, pod("x"), "ownerReferences"),
        ("PodDisruptionBudget", "policy/v1", BUDGETS, budget, ""),
    ] {
        let before = cluster.post(path, &made).expect(201);
        let of_status = format!("{path}/x/status");
        let config = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata});
        let apply =
            cluster.patch(&format!("{of_status}?fieldManager=me&dryRun=All"), "application/apply-patch+yaml", &config);
        let merge = cluster.merge(&of_status, &json!({"metadata": metadata}));
        for (how, reply) in [("apply", apply), ("merge", merge)] {
            let now = reply.expect(200);
            for field in ["labels", "annotations", "ownerReferences"] {
                let want = if field == kept { &before["metadata"][field] } else { &metadata[field] };
                assert_eq!(now["metadata"][field], *want, "{how} {kind} {field}");
            }
            let managers = now["metadata"]["managedFields"].as_array().expect("managers");
            let own = managers.iter().find(|entry| entry["subresource"] == "status").expect("one of the status");
            let owned = &own["fieldsV1"]["f:metadata"];
            assert_eq!(owned.get(format!("f:{kept}")), None, "{how} {kind} {own}");
            assert!(owned.get("f:annotations").is_some(), "{how} {kind} {own}");
        }
    }
}

/// What is counted is told from the beginning.
#[test]
fn counts_begin_at_nothing() {
    let cluster = Cluster::new();
    let set = json!({"metadata": {"name": "x"}, "spec": deployment("x")["spec"]});
    let mut controller = set.clone();
    controller["spec"]["selector"] = json!({"a": "b"});
    let budget = json!({"metadata": {"name": "x"}, "spec": {"maxUnavailable": 1}});
    let scaler = json!({"metadata": {"name": "x"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let volume = json!({"metadata": {"name": "x"},
        "spec": {"attacher": "a.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
    let scheduled = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0,
        "numberReady": 0});
    let disruptions = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
    let scaled = json!({"currentReplicas": 0, "desiredReplicas": 0});
    let one = json!({"replicas": 0});
    for (group_version, plural, made, want) in [
        ("v1", "replicationcontrollers", &controller, &one),
        ("apps/v1", "deployments", &set, &json!({})),
        ("apps/v1", "replicasets", &set, &one),
        ("apps/v1", "statefulsets", &set, &one),
        ("apps/v1", "daemonsets", &set, &scheduled),
        ("policy/v1", "poddisruptionbudgets", &budget, &disruptions),
        ("autoscaling/v2", "horizontalpodautoscalers", &scaler, &json!({"desiredReplicas": 0})),
        ("autoscaling/v1", "horizontalpodautoscalers", &scaler, &scaled),
        ("storage.k8s.io/v1", "volumeattachments", &volume, &json!({"attached": false})),
    ] {
        let root = if group_version == "v1" { "api" } else { "apis" };
        let within = if plural == "volumeattachments" { "" } else { "namespaces/default/" };
        let path = format!("/{root}/{group_version}/{within}{plural}");
        let made = cluster.post(&path, made).expect(201);
        assert_eq!((&made["status"], &cluster.get(&format!("{path}/x")).expect(200)), (want, &made), "{plural}");
        cluster.delete(&format!("{path}/x")).expect(200);
    }
}

#[test]
fn templates_of_daemon_sets_are_numbered() {
    const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
    let cluster = Cluster::new();
    let set = |name: &str, annotations: Value| {
        let template = json!({"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": template}})
    };
    let number = |set: &Value| set["metadata"]["annotations"]["deprecated.daemonset.template.generation"].clone();
    assert_eq!(number(&cluster.post(SETS, &set("a", json!({}))).expect(201)), "1");
    let given = json!({"deprecated.daemonset.template.generation": "5"});
    assert_eq!(number(&cluster.post(SETS, &set("b", given)).expect(201)), "5");
    let path = format!("{SETS}/b");
    let other = json!({"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}});
    assert_eq!(number(&cluster.merge(&path, &other).expect(200)), "6");
    // Nothing else counts, also not that something empty is left out, and nobody sets or removes it.
    let empty = json!({"spec": {"template": {"spec": {"hostname": "", "nodeSelector": {}}}}});
    assert_eq!(number(&cluster.merge(&path, &empty).expect(200)), "6");
    let left_out = json!({"spec": {"template": {"spec": {"hostname": null}}}});
    assert_eq!(number(&cluster.merge(&path, &left_out).expect(200)), "6");
    let limit = json!({"spec": {"revisionHistoryLimit": 3}, "metadata": {"annotations": null}});
    assert_eq!(number(&cluster.merge(&path, &limit).expect(200)), "6");
    let forged = json!({"metadata": {"annotations": {"deprecated.daemonset.template.generation": "9"}}});
    assert_eq!(number(&cluster.merge(&path, &forged).expect(200)), "6");
    let status = json!({"status": {"numberReady": 1}});
    assert_eq!(number(&cluster.merge(&format!("{path}/status"), &status).expect(200)), "6");
}

#[test]
fn patches() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &json!({"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}})).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    for (kind, patch, want) in [
        ("application/merge-patch+json", json!({"data": {"a": null, "c": "3"}}), json!({"b": "2", "c": "3"})),
        ("application/strategic-merge-patch+json", json!({"data": {"b": null, "d": "4"}}), json!({"c": "3", "d": "4"})),
        (
            "application/json-patch+json",
            json!([{"op": "test", "path": "/data/c", "value": "3"}, {"op": "replace", "path": "/data/c", "value": "5"}]),
            json!({"c": "5", "d": "4"}),
        ),
    ] {
        assert_eq!(cluster.patch(&path, kind, &patch).expect(200)["data"], want, "{kind}");
    }
    let failing = json!([{"op": "test", "path": "/data/c", "value": "nope"}]);
    cluster.patch(&path, "application/json-patch+json", &failing).refused(422, "Invalid", "");
    let bomb: Vec<Value> = std::iter::once(json!({"op": "add", "path": "/data/big", "value": "x".repeat(100_000)}))
        .chain((0..60).map(|i| json!({"op": "copy", "from": "/data", "path": format!("/data/n{i}")})))
        .collect();
    cluster.patch(&path, "application/json-patch+json", &json!(bomb)).refused(413, "RequestEntityTooLarge", "");
    let many = json!(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001]);
    cluster.patch(&path, "application/json-patch+json", &many).refused(
        413,
        "RequestEntityTooLarge",
        "The allowed maximum operations in a JSON patch is 10000, got 10001",
    );
    let outside = json!([{"op": "add", "path": "/metadata/finalizers", "value": ["a.b/c"]}, {"op": "add", "path": "/metadata/finalizers/7", "value": "a.b/d"}]);
    let refused = cluster.patch(&path, "application/json-patch+json", &outside).expect(422);
    assert_eq!(
        (&refused["reason"], &refused["message"]),
        (&json!("Invalid"), &json!("the server rejected our request due to an error in our request"))
    );
    assert_eq!(refused["details"]["causes"][0]["field"], "/metadata/finalizers/7", "{refused}");
    // What a patch makes of an object is the patch's fault.
    let mistyped = json!({"data": {"a": 1}});
    cluster.merge(&path, &mistyped).refused(422, "Invalid", "patch: Invalid value: ");
    let strict = format!("{path}?fieldValidation=Strict");
    cluster.merge(&strict, &json!({"nothing": 1})).refused(
        422,
        "Invalid",
        "strict decoding error: unknown field \"nothing\"",
    );
    // Who merges strategically is shown the patch, not what it would make of the object.
    let unknown = json!({"spec": {"b": [1, 2], "a": true, "c": "x y"}});
    cluster.patch(&strict, "application/strategic-merge-patch+json", &unknown).refused(
        422,
        "Invalid",
        "patch: Invalid value: \"map[spec:map[a:true b:[1 2] c:x y]]\": strict decoding error: unknown field \"spec\"",
    );
    for (operation, told) in [
        (r#"{"op":"add","path":"/data/z","value":"1","foo":1}"#, r#"json patch unknown field "[0].foo""#),
        (r#"{"op":"test","path":"/data/z","value":"1","op":"add"}"#, r#"json patch duplicate field "[0].op""#),
    ] {
        let send = |mode: &str| {
            let caller = Caller::new("admin", ["system:masters"]);
            let path = format!("{path}?fieldValidation={mode}");
            let headers = [("content-type", "application/json-patch+json")];
            cluster.request(caller, Method::PATCH, &path, &headers, format!("[{operation}]").into())
        };
        send("Strict").refused(422, "Invalid", &format!("strict decoding error: {told}"));
        let warned = send("Warn");
        let warning = warned.headers["warning"].to_str().expect("text").replace('\\', "");
        assert_eq!((warned.code, warning), (200, format!("299 - \"{told}\"")));
        let ignored = send("Ignore");
        assert_eq!((ignored.code, ignored.headers.get("warning")), (200, None));
        assert_eq!(ignored.json["data"]["z"], "1");
    }
    cluster.patch(&path, "text/plain", &json!({})).refused(415, "UnsupportedMediaType", "application/merge-patch+json");
    cluster.patch(&path, "application/merge-patch+json", &json!({"metadata": {"name": "other"}})).refused(
        400,
        "BadRequest",
        "does not match the name on the URL",
    );
    cluster.merge(&format!("{CONFIG_MAPS}/none"), &json!({})).refused(404, "NotFound", "configmaps \"none\" not found");
}

#[test]
fn strategic_patches_merge_lists_by_their_keys() {
    let cluster = Cluster::new();
    cluster.post(DEPLOYMENTS, &deployment("d")).expect(201);
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "new"}, {"name": "side", "image": "s"}]}}}});
    let patched =
        cluster.patch(&format!("{DEPLOYMENTS}/d"), "application/strategic-merge-patch+json", &patch).expect(200);
    let containers = patched["spec"]["template"]["spec"]["containers"].as_array().expect("containers").clone();
    let images: Vec<_> = containers.iter().map(|c| (c["name"].as_str(), c["image"].as_str())).collect();
    assert!(images.contains(&(Some("c"), Some("new"))) && images.contains(&(Some("side"), Some("s"))), "{images:?}");
}

#[test]
fn a_dry_run_changes_nothing() {
    let cluster = Cluster::new();
    let made = cluster.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("m", "1")).expect(201);
    assert!(made["metadata"]["uid"].is_string());
    cluster.get(&format!("{CONFIG_MAPS}/m")).expect(404);
    cluster.post(CONFIG_MAPS, &config_map("m", "1")).expect(201);
    let path = format!("{CONFIG_MAPS}/m?dryRun=All");
    assert_eq!(cluster.merge(&path, &json!({"data": {"v": "2"}})).expect(200)["data"]["v"], "2");
    cluster.delete(&path).expect(200);
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/m")).expect(200)["data"]["v"], "1");
    cluster.post(&format!("{CONFIG_MAPS}?dryRun=Some"), &config_map("m", "1")).refused(
        422,
        "Invalid",
        "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"",
    );
    for (query, body, want) in [
        ("dryRun=Some", Value::Null, "dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""),
        ("", json!({"dryRun": ["All", "x"]}), "dryRun: Unsupported value: [\"All\",\"x\"]: supported values: \"All\""),
        (
            "propagationPolicy=Up",
            Value::Null,
            "propagationPolicy: Unsupported value: \"Up\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
        (
            "propagationPolicy=Orphan&orphanDependents=true",
            Value::Null,
            "orphanDependents and deletionPropagation cannot be both set",
        ),
    ] {
        let path = format!("{CONFIG_MAPS}/m?{query}");
        cluster.delete_with(&path, &body).refused(422, "Invalid", want);
    }
    cluster.delete(&format!("{CONFIG_MAPS}/m?gracePeriodSeconds=x")).refused(400, "BadRequest", "gracePeriodSeconds");
}

#[test]
fn verbs_that_a_resource_does_not_have() {
    let cluster = Cluster::new();
    cluster.post(&format!("{CONFIG_MAPS}/m"), &json!({})).refused(
        405,
        "MethodNotAllowed",
        "does not allow this method",
    );
    cluster.delete("/api/v1/namespaces").refused(405, "MethodNotAllowed", "does not allow this method");
    cluster.post("/api/v1/configmaps", &config_map("m", "x")).refused(
        405,
        "MethodNotAllowed",
        "does not allow this method",
    );
    cluster.post("/api/v1", &json!({})).refused(405, "MethodNotAllowed", "");
}

#[test]
fn a_pod_begins_pending() {
    let cluster = Cluster::new();
    let mut wanted = pod("p");
    wanted["status"] = json!({"phase": "Running"});
    let made = cluster.post("/api/v1/namespaces/default/pods", &wanted).expect(201);
    assert_eq!(
        (made["status"]["phase"].as_str(), made["status"]["qosClass"].as_str()),
        (Some("Pending"), Some("BestEffort"))
    );
    assert_eq!(made["spec"]["restartPolicy"], "Always");
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], 30);
}

/// kube-rs asks with a test for null whether there are finalizers, and upstream says yes to what is not there.
#[test]
fn what_is_not_there_tests_as_null() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    let tested = |path: &str, of: &str| {
        let patch = json!([{"op": "test", "path": of, "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/f"]}]);
        cluster.patch(path, "application/json-patch+json", &patch)
    };
    tested(&path, "/metadata/nothing/below").refused(422, "Invalid", "");
    tested(&path, "/data/v").refused(422, "Invalid", "");
    tested(&path, "/metadata/finalizers").expect(200);
    tested(&path, "/metadata/finalizers").refused(422, "Invalid", "");
}

#[test]
fn null_labels_are_empty_ones() {
    let cluster = Cluster::new();
    let mut object = config_map("m", "x");
    object["metadata"]["labels"] = json!({"a": null});
    object["data"]["n"] = Value::Null;
    let made = cluster.post(CONFIG_MAPS, &object).expect(201);
    assert_eq!((&made["metadata"]["labels"], &made["data"]), (&json!({"a": ""}), &json!({"v": "x", "n": ""})));
    // It is found by what it is called, and by its labels.
    for query in ["fieldSelector=metadata.name%3Dm", "labelSelector=a"] {
        assert_eq!(names(&cluster.get(&format!("{CONFIG_MAPS}?{query}")).expect(200)), ["m"], "{query}");
    }
    let gone = cluster.delete(&format!("{CONFIG_MAPS}?labelSelector=a")).expect(200);
    assert_eq!(names(&gone), ["m"]);
    cluster.get(&format!("{CONFIG_MAPS}/m")).expect(404);
}

#[test]
fn some_kinds_are_made_by_replacing_what_is_not_there() {
    let cluster = Cluster::new();
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let role = json!({"metadata": {"name": "r"}, "rules": []});
    let path = format!("{roles}/r");
    // It takes the right to create, besides that to update.
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["update"]}]);
    cluster.post(roles, &json!({"metadata": {"name": "updaters"}, "rules": rules})).expect(201);
    let binding = json!({"metadata": {"name": "jane"}, "subjects": [{"kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "updaters"}});
    cluster.post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", &binding).expect(201);
    cluster.put(&path, &json!({"rules": []})).refused(400, "BadRequest", "name must be provided");
    cluster.user("jane", Method::PUT, &path, &role).refused(403, "Forbidden", "cannot create resource \"roles\"");
    let made = cluster.put(&path, &role).expect(201);
    assert_eq!((&made["metadata"]["name"], &made["metadata"]["namespace"]), (&json!("r"), &json!("default")));
    cluster.put(&path, &role).expect(200);
    // Who names a state of it means the one that is gone.
    cluster.delete(&path).expect(200);
    cluster.put(&path, &made).refused(404, "NotFound", "");
    cluster.put(&format!("{CONFIG_MAPS}/m"), &config_map("m", "x")).refused(404, "NotFound", "");
}

/// Clients in Go leave out what is empty when they write back what they have read.
#[test]
fn what_is_empty_is_as_good_as_absent() {
    let cluster = Cluster::new();
    let emptied = |object: &Value| {
        let mut object = object.clone();
        object["metadata"]["finalizers"] = json!([]);
        object["spec"]["selector"]["matchExpressions"] = json!([]);
        object["spec"]["template"]["spec"]["tolerations"] = json!([]);
        object
    };
    let made = cluster.post(DEPLOYMENTS, &emptied(&deployment("d"))).expect(201);
    assert_eq!(made["spec"]["selector"], json!({"matchLabels": {"a": "b"}}));
    assert!(!made["metadata"]["managedFields"].to_string().contains("f:tolerations"), "{made}");
    let path = format!("{DEPLOYMENTS}/d");
    assert_eq!(cluster.put(&path, &made).expect(200), made);
    assert_eq!(cluster.put(&path, &emptied(&made)).expect(200), made);
    let pods = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    for patch in [
        pods(json!({"nodeSelector": {}, "volumes": [], "hostNetwork": false})),
        pods(json!({"containers": [{"name": "c", "env": [], "tty": false}]})),
        json!({"metadata": {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}}),
    ] {
        assert_eq!(cluster.patch(&path, "application/strategic-merge-patch+json", &patch).expect(200), made, "{patch}");
    }
    let map = json!({"metadata": {"name": "m"}, "immutable": true, "data": {"v": "x"}, "binaryData": {}});
    let map = cluster.post(CONFIG_MAPS, &map).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    assert_eq!(cluster.put(&path, &map).expect(200), map);
    let nothing = json!({"metadata": {"labels": {}, "finalizers": []}, "binaryData": {}});
    assert_eq!(cluster.merge(&path, &nothing).expect(200), map);
    // That nobody owns anything is said by a list of nobody.
    let disowned = cluster.merge(&path, &json!({"metadata": {"managedFields": []}})).expect(200);
    assert!(disowned["metadata"].get("managedFields").is_none(), "{disowned}");
}
