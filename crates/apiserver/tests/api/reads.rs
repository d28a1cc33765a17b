//! get and list: selectors, paging, revisions, forms.

use serde_json::json;

use crate::harness::{CONFIG_MAPS, Cluster, config_map, names, revision};

fn with_five() -> Cluster {
    let cluster = Cluster::new();
    for (i, color) in ["red", "blue", "red", "blue", "red"].iter().enumerate() {
        let mut object = config_map(&format!("m{i}"), color);
        object["metadata"]["labels"] = json!({"color": color, "n": i.to_string()});
        cluster.post(CONFIG_MAPS, &object).expect(201);
    }
    cluster
}

#[test]
fn what_is_not_there_is_not_found() {
    let cluster = Cluster::new();
    for (path, message) in [
        (format!("{CONFIG_MAPS}/x"), "configmaps \"x\" not found"),
        ("/apis/apps/v1/namespaces/default/deployments/x".to_owned(), "deployments.apps \"x\" not found"),
        ("/api/v1/nonsense".to_owned(), "the server could not find the requested resource"),
        ("/apis/no.such/v1/things".to_owned(), "the server could not find the requested resource"),
        ("/api/v1/namespaces/default/pods/p/nonsense".to_owned(), "the server could not find the requested resource"),
    ] {
        cluster.get(&path).refused(404, "NotFound", message);
    }
    let status = cluster.get(&format!("{CONFIG_MAPS}/x")).expect(404);
    assert_eq!(status["details"], json!({"name": "x", "kind": "configmaps"}));
}

#[test]
fn selectors() {
    let cluster = with_five();
    for (query, want) in [
        ("", vec!["m0", "m1", "m2", "m3", "m4"]),
        ("?labelSelector=color%3Dred", vec!["m0", "m2", "m4"]),
        ("?labelSelector=color+in+(blue),n!=1", vec!["m3"]),
        ("?labelSelector=color,n%3E2", vec!["m3", "m4"]),
        ("?fieldSelector=metadata.name%3Dm2", vec!["m2"]),
        ("?fieldSelector=metadata.name!%3Dm2&labelSelector=color%3Dred", vec!["m0", "m4"]),
        ("?fieldSelector=metadata.name%3Dm", vec![]),
    ] {
        let list = cluster.get(&format!("{CONFIG_MAPS}{query}")).expect(200);
        assert_eq!(names(&list), want, "{query}");
        assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));
    }
    const NOT_KNOWN: &str = "is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
    for (kind, selector, want) in [
        ("configmaps", "data.v=red", Some(format!("\"data.v\" {NOT_KNOWN}"))),
        ("persistentvolumes", "metadata.namespace=a", None),
        ("nodes", "metadata.namespace=a", Some("field label not supported: metadata.namespace".to_owned())),
        ("namespaces", "name=default", Some("field label not supported: name".to_owned())),
        ("namespaces", "status.phase=Active", None),
        ("replicationcontrollers", "status.replicas=0", None),
        ("pods", "spec.hostname=a", Some("field label not supported: spec.hostname".to_owned())),
        ("pods", "metadata.namespace=a,status.podIPs!=10.0.0.1", None),
    ] {
        let reply = cluster.get(&format!("/api/v1/{kind}?fieldSelector={}", selector.replace('=', "%3D")));
        let message = reply.json["message"].as_str().map(str::to_owned);
        assert_eq!((reply.code, message), (if want.is_some() { 400 } else { 200 }, want), "{kind} {selector}");
    }
    let sets = cluster.get("/apis/apps/v1/replicasets?fieldSelector=status.replicas%3D0");
    sets.refused(400, "BadRequest", &format!("\"status.replicas\" {NOT_KNOWN}"));
    cluster.running_pod("p");
    for (field, value) in [("spec.host", "n1"), ("spec.nodeName", "n1"), ("status.podIPs", "")] {
        let list = cluster.get(&format!("/api/v1/pods?fieldSelector={field}%3D{value}")).expect(200);
        assert_eq!(names(&list), ["p"], "{field}");
    }
    let other = cluster.get("/api/v1/pods?fieldSelector=spec.host%3Dn2").expect(200);
    assert_eq!(names(&other), [""; 0]);
    cluster.get(&format!("{CONFIG_MAPS}?labelSelector=a+b")).refused(400, "BadRequest", "unable to parse requirement");
    let all = cluster.get("/api/v1/configmaps?labelSelector=color%3Dblue").expect(200);
    assert_eq!(names(&all), ["m1", "m3"]);
}

#[test]
fn pages_are_of_one_state() {
    let cluster = with_five();
    for filter in ["", "&labelSelector=color"] {
        let first = cluster.get(&format!("{CONFIG_MAPS}?limit=2{filter}")).expect(200);
        assert_eq!(names(&first), ["m0", "m1"]);
        let remaining = first["metadata"]["remainingItemCount"].as_u64();
        assert_eq!(remaining, filter.is_empty().then_some(3));
        // What happens between the pages is not seen in them.
        cluster.post(CONFIG_MAPS, &config_map("m11", "late")).expect(201);
        cluster.delete(&format!("{CONFIG_MAPS}/m3")).expect(200);
        let token = first["metadata"]["continue"].as_str().expect("continue");
        let second = cluster.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}{filter}")).expect(200);
        assert_eq!(names(&second), ["m2", "m3"]);
        assert_eq!(revision(&second), revision(&first));
        let token = second["metadata"]["continue"].as_str().expect("continue");
        let last = cluster.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}{filter}")).expect(200);
        assert_eq!(names(&last), ["m4"]);
        assert!(last["metadata"]["continue"].is_null() && last["metadata"]["remainingItemCount"].is_null());
        cluster.delete(&format!("{CONFIG_MAPS}/m11")).expect(200);
        let mut again = config_map("m3", "blue");
        again["metadata"]["labels"] = json!({"color": "blue"});
        cluster.post(CONFIG_MAPS, &again).expect(201);
    }
    cluster.get(&format!("{CONFIG_MAPS}?limit=2&continue=nonsense")).refused(
        400,
        "BadRequest",
        "continue key is not valid",
    );
}

#[test]
fn a_compacted_page_has_expired() {
    let cluster = with_five();
    let first = cluster.get(&format!("{CONFIG_MAPS}?limit=2")).expect(200);
    cluster.post(CONFIG_MAPS, &config_map("late", "x")).expect(201);
    use carrack_store::Store as _;
    let newest = cluster.store.revision();
    crate::harness::now(cluster.store.compact(newest)).expect("compact");
    let token = first["metadata"]["continue"].as_str().expect("continue");
    let refused = cluster.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}"));
    let refused = refused.refused(410, "Expired", "The provided continue parameter is too old");
    // It says how to go on all the same, over what there is now.
    let token = refused["metadata"]["continue"].as_str().expect("another token");
    let rest = cluster.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).expect(200);
    assert!(!names(&rest).is_empty() && names(&rest).iter().all(|name| !names(&first).contains(name)));
}

#[test]
fn revisions() {
    let cluster = with_five();
    let before = revision(&cluster.get(CONFIG_MAPS).expect(200));
    cluster.delete(&format!("{CONFIG_MAPS}/m0")).expect(200);
    let exact = format!("{CONFIG_MAPS}?resourceVersion={before}&resourceVersionMatch=Exact");
    let old = cluster.get(&exact).expect(200);
    assert_eq!((names(&old).len(), revision(&old)), (5, before));
    for query in ["resourceVersion=0".to_owned(), format!("resourceVersion={before}")] {
        assert_eq!(names(&cluster.get(&format!("{CONFIG_MAPS}?{query}")).expect(200)).len(), 4, "{query}");
    }
    let future = cluster.get(&format!("{CONFIG_MAPS}?resourceVersion=999999")).refused(
        504,
        "Timeout",
        "Too large resource version",
    );
    assert_eq!(future["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    cluster.get(&format!("{CONFIG_MAPS}?resourceVersion=x")).refused(422, "Invalid", "resourceVersion");
}

#[test]
fn forms() {
    let cluster = with_five();
    let table =
        cluster.get_as(CONFIG_MAPS, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").expect(200);
    assert_eq!((table["kind"].as_str(), table["apiVersion"].as_str()), (Some("Table"), Some("meta.k8s.io/v1")));
    assert_eq!(table["rows"].as_array().map(Vec::len), Some(5));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let columns: Vec<_> = table["columnDefinitions"].as_array().expect("columns").iter().map(|c| &c["name"]).collect();
    assert_eq!(columns, ["Name", "Data", "Age"]);
    let partial = cluster
        .get_as(&format!("{CONFIG_MAPS}/m0"), "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
        .expect(200);
    assert_eq!(partial["kind"], "PartialObjectMetadata");
    assert!(partial["data"].is_null());
    let list =
        cluster.get_as(CONFIG_MAPS, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0]["data"].is_null());
    cluster.get_as(CONFIG_MAPS, "application/vnd.kubernetes.protobuf").refused(
        406,
        "NotAcceptable",
        "application/json",
    );
}

#[test]
fn an_event_is_seen_through_both_groups() {
    let cluster = Cluster::new();
    let event = json!({
        "metadata": {"name": "e", "namespace": "default"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello", "reason": "Started", "type": "Normal", "action": "Start",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "k", "reportingInstance": "k-1",
    });
    cluster.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).expect(201);
    let core = cluster.get("/api/v1/namespaces/default/events/e").expect(200);
    assert_eq!((core["message"].as_str(), core["involvedObject"]["name"].as_str()), (Some("hello"), Some("p")));
    let list = cluster.get("/api/v1/events?fieldSelector=involvedObject.name%3Dp").expect(200);
    assert_eq!(names(&list), ["e"]);
    let new = cluster.get("/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3Dp").expect(200);
    assert_eq!(
        (new["items"][0]["note"].as_str(), new["items"][0]["apiVersion"].as_str()),
        (Some("hello"), Some("events.k8s.io/v1"))
    );
    // By this way an event stays what it was; by the older one clients write what they have.
    cluster.merge("/apis/events.k8s.io/v1/namespaces/default/events/e", &json!({"note": "bye"})).refused(
        422,
        "Invalid",
        "message: Invalid value: \"bye\": field is immutable",
    );
    let changed = cluster.merge("/api/v1/namespaces/default/events/e", &json!({"message": "bye"})).expect(200);
    assert_eq!(changed["message"], "bye");
}

#[test]
fn an_autoscaler_is_seen_in_both_versions() {
    let cluster = Cluster::new();
    let scaler = json!({
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}},
    });
    cluster.post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", &scaler).expect(201);
    let new = cluster.get("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h").expect(200);
    assert_eq!(new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);
    let list = cluster.get("/apis/autoscaling/v1/horizontalpodautoscalers").expect(200);
    assert_eq!(list["items"][0]["spec"]["targetCPUUtilizationPercentage"], 70);
    let patched = cluster
        .merge(
            "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h",
            &json!({"spec": {"maxReplicas": 5}}),
        )
        .expect(200);
    assert_eq!(
        (patched["apiVersion"].as_str(), patched["spec"]["maxReplicas"].as_i64()),
        (Some("autoscaling/v1"), Some(5))
    );
}

#[test]
fn an_autoscaler_loses_nothing_to_a_client_of_the_old_version() {
    const OLD: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    const NEW: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    const NOTE: &str = "autoscaling.alpha.kubernetes.io";
    let cluster = Cluster::new();
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
    let scaler = json!({
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "metrics": [memory], "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}},
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}},
    });
    let made = cluster.post(NEW, &scaler).expect(201);
    let status = json!({"status": {"currentReplicas": 1, "desiredReplicas": 1,
        "conditions": [{"type": "AbleToScale", "status": "True"}]}});
    cluster.merge(&format!("{NEW}/h/status"), &status).expect(200);
    // What is read is written back, with one change, and a lie about the status.
    let mut old = cluster.get(&format!("{OLD}/h")).expect(200);
    assert_eq!(old["spec"].get("targetCPUUtilizationPercentage"), None, "{old}");
    old["spec"]["maxReplicas"] = json!(7);
    old["metadata"]["annotations"][format!("{NOTE}/conditions")] = json!("[]");
    cluster.put(&format!("{OLD}/h"), &old).expect(200);
    let new = cluster.get(&format!("{NEW}/h")).expect(200);
    assert_eq!((&new["spec"]["metrics"], &new["spec"]["behavior"]), (&json!([memory]), &made["spec"]["behavior"]));
    assert_eq!(new["spec"]["maxReplicas"], 7);
    assert_eq!(new["status"]["conditions"], status["status"]["conditions"]);
    assert_eq!(new["metadata"].get("annotations"), None);
}

#[test]
fn replies_come_as_yaml_to_who_wants_that() {
    let cluster = Cluster::new();
    cluster.post(CONFIG_MAPS, &config_map("m", "yes: \"no\"\n")).expect(201);
    let path = format!("{CONFIG_MAPS}/m");
    for (accept, yaml) in [
        ("application/yaml", true),
        ("application/yaml, application/json", true),
        ("application/json;q=0.9, application/yaml;q=0.5", false),
        ("application/json", false),
    ] {
        let reply = cluster.get_as(&path, accept);
        let is_yaml = reply.headers.get("content-type").is_some_and(|value| value == "application/yaml");
        assert_eq!(is_yaml, yaml, "{accept}");
        if yaml {
            let text = reply.expect(200);
            assert!(text.as_str().is_some_and(|text| text.contains("kind: ConfigMap\n")), "{text}");
        }
    }
    // What comes out goes in again.
    let text = cluster.get_as(&path, "application/yaml").expect(200);
    let body = bytes::Bytes::from(text.as_str().expect("text").to_owned());
    let caller = carrack_auth::Caller::new("admin", ["system:masters"]);
    let same = cluster.request(caller, http::Method::PUT, &path, &[("content-type", "application/yaml")], body);
    assert_eq!(same.expect(200)["data"]["v"], "yes: \"no\"\n");
    cluster.get_as(&format!("{CONFIG_MAPS}/none"), "application/yaml").expect(404);
    cluster.get_as(&format!("{CONFIG_MAPS}?watch=true"), "application/yaml").expect(406);
}
