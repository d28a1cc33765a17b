use std::sync::Arc;

use carrack_types::pod::requests;
use k8s_openapi::api::core::v1::Pod as WholePod;
use serde_json::{Value, json};

use super::*;
use crate::PodInfo;
use crate::tables::Tables;

/// A pod with everything that plugins look at, and with much that they don't.
fn object() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "d", "name": "p", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "annotations": {"x": "y"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "o", "controller": true}]},
        "spec": {
            "priority": 5, "preemptionPolicy": "Never", "nodeSelector": {"n": "m"}, "hostNetwork": true, "nodeName": "here",
            "hostUsers": false, "overhead": {"cpu": "1m"}, "schedulerName": "s", "schedulingGates": [{"name": "g"}], "unheardOf": {"x": 1},
            "resources": {"requests": {"cpu": "7"}}, "resourceClaims": [{"name": "g", "resourceClaimName": "r"}], "serviceAccountName": "sa", "hostname": "h",
            "tolerations": [{"operator": "Exists"}],
            "topologySpreadConstraints": [{"topologyKey": "k", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "k", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "ephemeral": {}},
                {"name": "s", "secret": {"secretName": "x"}}, {"name": "im", "image": {"reference": "v:1"}}, {"name": "g", "gcePersistentDisk": {"pdName": "d", "readOnly": true}}],
            "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}},
                "ports": [{"containerPort": 3, "hostPort": 4}]}],
            "containers": [{"name": "c", "image": "i:1", "env": [{"name": "E", "value": "v"}], "command": ["run"],
                "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}],
                "ports": [{"containerPort": 1, "hostPort": 2}], "resources": {"limits": {"example.com/x": "3"}}}]},
        "status": {"phase": "Failed", "nominatedNodeName": "n", "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"example.com/x": "3"}}],
            "resources": {"requests": {"cpu": "7001m"}},
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "r", "message": "m"},
                {"type": "Ready", "status": "False"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]}})
}

fn pod(object: &Value) -> Pod {
    carrack_types::json::from_value(object.clone()).expect("a pod")
}

/// What plugins look at is what the pod of all fields says.
#[test]
fn nothing_that_counts_is_left_out() {
    let pod = pod(&object());
    let whole: WholePod = serde_json::from_value(object()).expect("a pod");
    let (spec, all) = (&pod.spec.pod, whole.spec.clone().expect("a spec"));
    assert_eq!((pod.namespace(), pod.name(), pod.uid(), pod.revision()), ("d", "p", "u", 7));
    assert_eq!((pod.label("a"), pod.is_deleting(), pod.controller_uid()), (Some("b"), true, Some("o")));
    assert_eq!(pod.metadata.owner_references.as_ref().map(Vec::capacity), Some(1), "it is kept for each pod");
    assert_eq!((&*pod.node, pod.scheduler_name(), pod.nominated.as_deref()), ("here", "s", Some("n")));
    assert_eq!(pod.unplaced.as_deref(), Some(&Unplaced { reason: "r".into(), message: "m".into() }));
    assert_eq!(pod.started, whole.status.as_ref().and_then(|s| s.start_time.as_ref()).map(Time::from));
    assert!(pod.ended);
    let claim = |name: &str, ephemeral| Claim { name: name.to_owned(), ephemeral };
    assert_eq!(*pod.claims, [claim("c", false), claim("p-e", true)]);
    assert_eq!(*pod.disks, [Disk { name: "gce/d".into(), read_only: true }]);
    assert_eq!(
        (&spec.affinity, &spec.tolerations, &spec.node_selector),
        (&all.affinity, &all.tolerations, &all.node_selector)
    );
    assert_eq!(spec.topology_spread_constraints, all.topology_spread_constraints);
    assert_eq!((&spec.scheduling_gates, &spec.preemption_policy), (&all.scheduling_gates, &all.preemption_policy));
    assert_eq!((&spec.resource_claims, pod.preempted), (&all.resource_claims, true));
    assert_eq!(carrack_types::pod::requests_of(spec), requests(&whole));
    assert_eq!(carrack_types::fit::host_ports(spec), carrack_types::fit::host_ports(&all));
    let info = PodInfo::new(Arc::new(pod), &mut Tables::default());
    assert_eq!((info.priority, info.images.len(), info.terms.len()), (5, 2, 1));
    assert_eq!(info.only_nodes.as_deref(), Some(&["n".to_owned()][..]));
    assert_eq!((info.needs.len(), &info.needs), (2, &carrack_types::declared::needed(&all)));
}

/// What a pod holds while it is resized is what it holds by the whole of it.
#[test]
fn a_pod_that_is_resized_holds_what_its_status_says() {
    for (pointer, value) in [
        ("/status/containerStatuses/0/allocatedResources", json!({"example.com/x": "5", "memory": "9"})),
        ("/status/resources/requests/cpu", json!("9001m")),
        ("/status/conditions/1", json!({"type": "PodResizePending", "status": "True", "reason": "Infeasible"})),
    ] {
        let mut object = object();
        object["spec"]["containers"][0]["resources"]["limits"]["example.com/x"] = "4".into();
        *object.pointer_mut(pointer).expect("a field") = value;
        let whole: WholePod = serde_json::from_value(object.clone()).expect("a pod");
        let (held, asked) = (carrack_types::held::requests(&whole), requests(&whole));
        assert_eq!(carrack_types::pod::requests_of(&pod(&object).spec.pod), held, "{pointer}");
        assert_ne!(held, asked, "{pointer}");
    }
}

/// Each field that a plugin looks at makes pods differ; what no plugin looks at does not.
#[test]
fn pods_are_alike_when_plugins_cannot_tell_them_apart() {
    let alike = |pointer: &str, value: Value| {
        let mut other = object();
        *other.pointer_mut(pointer).expect("a field") = value;
        let mut tables = Tables::default();
        let mut shape = |object: &Value| PodInfo::new(Arc::new(pod(object)), &mut tables).shape.clone();
        shape(&object()) == shape(&other)
    };
    for (pointer, value) in [
        ("/spec/priority", json!(6)),
        ("/spec/preemptionPolicy", json!(null)),
        ("/spec/nodeSelector", json!({"n": "o"})),
        ("/spec/hostNetwork", json!(false)),
        ("/spec/hostUsers", json!(true)),
        ("/spec/containers/0/restartPolicyRules/0/action", json!("Restart")),
        ("/spec/nodeName", json!("there")),
        ("/spec/overhead", json!({"cpu": "2m"})),
        ("/spec/schedulerName", json!("t")),
        ("/spec/resources/requests/cpu", json!("8")),
        ("/spec/tolerations", json!([])),
        ("/spec/resourceClaims", json!([])),
        ("/spec/volumes/3/image/reference", json!("v:2")),
        ("/spec/topologySpreadConstraints/0/maxSkew", json!(2)),
        ("/spec/affinity/nodeAffinity", json!(null)),
        ("/spec/affinity/podAntiAffinity", json!(null)),
        ("/spec/initContainers/0/restartPolicy", json!(null)),
        ("/spec/initContainers/0/ports/0/hostPort", json!(5)),
        ("/spec/containers/0/image", json!("i:2")),
        ("/spec/containers/0/resources/limits", json!({"example.com/x": "4"})),
        ("/status/containerStatuses/0/allocatedResources", json!({"example.com/x": "4"})),
        ("/status/resources", json!({"requests": {"cpu": "8"}})),
        ("/metadata/deletionTimestamp", json!(null)),
    ] {
        assert!(!alike(pointer, value.clone()), "{pointer}: {value}");
    }
    for (pointer, value) in [
        ("/metadata/name", json!("q")),
        ("/metadata/resourceVersion", json!("8")),
        ("/metadata/labels", json!({})),
        ("/spec/containers/0/env", json!([])),
        ("/spec/containers/0/restartPolicyRules/0/exitCodes/values", json!([2])),
        ("/spec/containers/0/name", json!("d")),
        ("/spec/volumes/0", json!({"name": "v", "persistentVolumeClaim": {"claimName": "d"}})),
        ("/spec/volumes/3/name", json!("other")),
        ("/status/containerStatuses/0/allocatedResources", json!({"example.com/x": "3"})),
        ("/status", json!({})),
    ] {
        assert!(alike(pointer, value.clone()), "{pointer}: {value}");
    }
}

#[test]
fn what_pods_have_in_common_is_there_once_and_goes_with_them() {
    let mut shared = Shared::default();
    let read = |shared: &mut Shared, name: &str, label: &str, cpu: &str| {
        let mut object = object();
        object["status"]["resources"] = Value::Null;
        object["metadata"]["name"] = name.into();
        object["metadata"]["labels"] = json!({"a": label});
        object["spec"]["resources"]["requests"]["cpu"] = cpu.into();
        let mut pod = pod(&object);
        shared.share(&mut pod);
        pod
    };
    let (one, other) = (read(&mut shared, "one", "x", "1"), read(&mut shared, "other", "x", "1"));
    assert!(Arc::ptr_eq(&one.spec, &other.spec) && Arc::ptr_eq(&one.labels, &other.labels));
    let waits = [&one, &other].map(|pod| pod.unplaced.clone().expect("it has no node"));
    assert!(Arc::ptr_eq(&waits[0], &waits[1]), "what they are told");
    let third = read(&mut shared, "third", "y", "2");
    assert!(!Arc::ptr_eq(&one.spec, &third.spec) && !Arc::ptr_eq(&one.labels, &third.labels));
    for number in 0..5000 {
        read(&mut shared, "brief", &number.to_string(), &number.to_string());
        assert!(shared.count() <= 2 * super::shared::LEAST, "those of pods that are gone go, too");
    }
    let fourth = read(&mut shared, "fourth", "x", "1");
    assert!(Arc::ptr_eq(&one.spec, &fourth.spec), "those of pods that are there stay");
}

/// What is computed of pods that are alike is there once, and goes with them.
#[test]
fn pods_that_are_alike_are_read_once() {
    let mut tables = Tables::default();
    let mut read = |name: &str, cpu: &str, app: &str| {
        let mut object = object();
        object["metadata"]["name"] = name.into();
        object["metadata"]["labels"] = json!({"app": app});
        object["spec"]["resources"]["requests"]["cpu"] = cpu.into();
        (PodInfo::new(Arc::new(pod(&object)), &mut tables), tables.alike.count())
    };
    let ((one, _), (other, count)) = (read("one", "9", "a"), read("other", "9", "a"));
    assert_eq!((count, one.requests.get(0), one.kind), (1, 9001, other.kind));
    assert!(std::ptr::eq(&*one, &*other) && one.name() != other.name());
    let ((more, _), (labelled, count)) = (read("more", "10", "a"), read("labelled", "9", "b"));
    assert_eq!((count, more.requests.get(0), labelled.requests.get(0)), (3, 10_001, 9001));
    assert!(labelled.kind != one.kind && more.kind == one.kind);
    for number in 0..2000 {
        let (_, count) = read("brief", "9", &number.to_string());
        assert!(count <= 260, "{count}: those of pods that are gone go, too");
    }
    let (last, _) = read("last", "9", "a");
    assert!(std::ptr::eq(&*last, &*one), "those of pods that are there stay");
}

#[test]
fn extenders_are_shown_whole_pods_where_there_are_any() {
    let kept = |whole| {
        let mut pod = pod(&object());
        Shared::new(whole).share(&mut pod);
        (serde_json::to_value(&pod).expect("JSON"), pod.annotations().is_some())
    };
    let mut all = object();
    all["metadata"].as_object_mut().expect("metadata").remove("managedFields");
    assert_eq!(kept(true), (all, true), "also what this program has never heard of");
    let (part, annotated) = kept(false);
    assert!(!annotated && part["spec"]["unheardOf"].is_null() && part["metadata"]["annotations"].is_null());
    for pointer in
        ["/metadata/labels/a", "/metadata/uid", "/spec/nodeName", "/spec/affinity", "/status/conditions/0/message"]
    {
        assert!(!part.pointer(pointer).unwrap_or(&Value::Null).is_null(), "{pointer}: {part}");
    }
}
