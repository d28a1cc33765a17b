//! What a Deployment says of its sets, and how it goes back to an earlier one.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Plan, Time, Write};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::super::claim::index;
use super::DeploymentController;
use crate::testing::of;

fn template(version: u32) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": version.to_string()}]}})
}

/// A Deployment whose template is of this version.
fn deployment(version: u32, replicas: u32, annotations: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": "web", "uid": "d", "resourceVersion": "9", "generation": 1,
            "annotations": annotations},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template(version),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}})
}

/// The set of a version, which is its revision, and with so many pods.
fn set(version: u32, pods: u32) -> Value {
    let mut template = template(version);
    template["metadata"]["labels"]["pod-template-hash"] = version.to_string().into();
    json!({"metadata": {"namespace": "ns", "name": format!("web-{version}"), "uid": version.to_string(), "generation": 1,
            "labels": {"app": "web"}, "creationTimestamp": format!("2026-01-01T00:00:0{version}Z"),
            "annotations": {"deployment.kubernetes.io/revision": version.to_string(), "kubernetes.io/change-cause": format!("to {version}"),
                "deployment.kubernetes.io/desired-replicas": "10", "deployment.kubernetes.io/max-replicas": "10"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": true}]},
        "spec": {"replicas": pods, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        "status": {"replicas": pods, "availableReplicas": pods, "observedGeneration": 1, "terminatingReplicas": 0}})
}

fn look(deployment: Value, sets: &[Value]) -> Plan {
    let caches = Caches::new()
        .with::<Deployment>([of(deployment)])
        .with::<Pod>([])
        .with_index("controller", index::<ReplicaSet>)
        .with::<ReplicaSet>(sets.iter().cloned().map(of));
    DeploymentController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::from_unix_s(1_767_225_700))
}

/// The object of the plan's only update, of the Deployment itself or of its status.
fn written(plan: &Plan, of: &str) -> Value {
    let mut updates = plan.writes.iter().filter_map(|write| match write {
        Write::Update { object, sub, .. } if *sub == of && object["kind"] != "ReplicaSet" => Some(object.clone()),
        _ => None,
    });
    updates.next_back().unwrap_or_default()
}

/// What comes of asking a Deployment of the third revision to go back: the image, what it says of why it is so, and the event.
fn check_rollback(to: &str, version: u32, expected: (&str, &str, &str)) {
    let annotations = json!({"deployment.kubernetes.io/revision": "3", "kubernetes.io/change-cause": "to 3", "more": "x",
        "deprecated.deployment.rollback.to": to});
    let sets = [set(1, 0), set(2, 0), set(3, 10)];
    let mut asked = deployment(version, 10, annotations);
    asked["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}".into();
    let mut sets = sets.to_vec();
    sets[2]["metadata"]["annotations"]["more"] = "x".into();
    let plan = look(asked, &sets);
    let [Write::Update { object, sub: "", .. }] = &plan.writes[..] else { panic!("{to}: {:?}", plan.writes) };
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(annotations["deprecated.deployment.rollback.to"], Value::Null, "{to}");
    assert_eq!(annotations["kubectl.kubernetes.io/last-applied-configuration"], "{}", "{to}");
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3", "{to}");
    let template = &object["spec"]["template"];
    assert_eq!(template["metadata"]["labels"], json!({"app": "web"}), "{to}");
    let told: Vec<String> = plan.told.iter().map(|(_, event)| format!("{}: {}", event.reason, event.message)).collect();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let found = (text(&template["spec"]["containers"][0]["image"]), text(&annotations["kubernetes.io/change-cause"]));
    assert_eq!((found.0.as_str(), found.1.as_str(), told.join(", ").as_str()), expected, "{to}");
}

#[test]
fn an_old_client_may_ask_to_go_back() {
    let done = |to: u32| format!("DeploymentRollback: Rolled back deployment \"web\" to revision {to}");
    check_rollback("0", 3, ("2", "to 2", &done(2)));
    check_rollback("1", 3, ("1", "to 1", &done(1)));
    // A template that has no set yet would have been the newest.
    check_rollback("0", 4, ("3", "to 3", &done(3)));
    let same = "DeploymentRollbackTemplateUnchanged: The rollback revision contains the same template as current deployment \"web\"";
    check_rollback("3", 3, ("3", "to 3", same));
    let none = "DeploymentRollbackRevisionNotFound: Unable to find the revision to rollback to.";
    check_rollback("7", 3, ("3", "to 3", none));
    check_rollback("-1", 3, ("3", "to 3", none));
    let asked = json!({"deployment.kubernetes.io/revision": "1", "deprecated.deployment.rollback.to": "0"});
    let plan = look(deployment(1, 10, asked.clone()), &[set(1, 10)]);
    let told: Vec<&str> = plan.told.iter().map(|(_, event)| event.message.as_str()).collect();
    assert_eq!(told, ["Unable to find last revision."]);
    // While it is paused it stays as it is, and what is no number asks for nothing.
    for (key, value) in [("paused", json!(true)), ("paused", json!(false))] {
        let mut waits = deployment(1, 10, asked.clone());
        waits["spec"][key] = value.clone();
        if value == json!(false) {
            waits["metadata"]["annotations"]["deprecated.deployment.rollback.to"] = "before".into();
        }
        let plan = look(waits, &[set(1, 10)]);
        assert!(
            plan.writes.iter().all(|write| matches!(write, Write::Update { sub: "status", .. })),
            "{:?}",
            plan.writes
        );
    }
}

#[test]
fn a_deployment_tells_what_its_sets_tell() {
    let annotations = || json!({"deployment.kubernetes.io/revision": "2"});
    let failing = |mut set: Value, why: &str| {
        set["status"]["conditions"] = json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": why, "lastTransitionTime": "2026-01-01T00:00:30Z"}]);
        set
    };
    let going = |mut set: Value, pods: Value| {
        set["status"]["terminatingReplicas"] = pods;
        set
    };
    let new = |mut set: Value| {
        set["status"] = json!({"replicas": 0});
        set
    };
    // Of the set of its template first, though that is the oldest, and then of the oldest.
    for (version, sets, told, terminating) in [
        (1, vec![failing(set(1, 10), "a"), failing(set(2, 0), "b")], json!("a"), json!(0)),
        (3, vec![failing(set(1, 0), "a"), failing(set(2, 0), "b"), set(3, 10)], json!("a"), json!(0)),
        (2, vec![set(1, 0), set(2, 10)], Value::Null, json!(0)),
        (2, vec![going(set(1, 0), json!(2)), going(set(2, 10), json!(1))], Value::Null, json!(3)),
        // One that has not said anything yet has none; of one that has, it is not known.
        (2, vec![going(set(1, 0), json!(2)), new(set(2, 10))], Value::Null, json!(2)),
        (2, vec![going(set(1, 0), Value::Null), going(set(2, 10), json!(1))], Value::Null, Value::Null),
    ] {
        let mut deployment = deployment(version, 10, annotations());
        let mut sets = sets;
        if version != 2 {
            let newest = usize::try_from(version - 1).expect("a place");
            sets[newest]["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3".into();
            deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3".into();
        }
        let status = written(&look(deployment, &sets), "status")["status"].clone();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let failure = conditions.into_iter().find(|c| c["type"] == "ReplicaFailure").cloned().unwrap_or_default();
        assert_eq!((&failure["message"], &status["terminatingReplicas"]), (&told, &terminating), "{status}");
        if !told.is_null() {
            let times = json!(["2026-01-01T00:00:30Z", "2026-01-01T00:00:30Z"]);
            assert_eq!(json!([failure["lastUpdateTime"], failure["lastTransitionTime"]]), times, "{status}");
        }
    }
}

/// The sizes that two sets of 5 get when their Deployment of 10 is to have 20 and the first set has this annotation.
fn check_part(max: Option<&str>, now_there: u32, expected: &[(&str, u64)]) {
    let mut scaled = deployment(2, 20, json!({"deployment.kubernetes.io/revision": "2"}));
    scaled["status"] = json!({"replicas": now_there});
    let mut sets = [set(1, 5), set(2, 5)];
    match max {
        Some(max) => sets[0]["metadata"]["annotations"]["deployment.kubernetes.io/max-replicas"] = max.into(),
        None => drop(
            sets[0]["metadata"]["annotations"]
                .as_object_mut()
                .and_then(|a| a.remove("deployment.kubernetes.io/max-replicas")),
        ),
    }
    let plan = look(scaled, &sets);
    let sizes = plan.writes.iter().map(|write| match write {
        Write::Update { object, .. } => (write.key().name, object["spec"]["replicas"].as_u64().unwrap_or(0)),
        other => panic!("{other:?}"),
    });
    let mut sizes: Vec<(String, u64)> = sizes.collect();
    sizes.sort();
    let found: Vec<(&str, u64)> = sizes.iter().map(|(name, size)| (name.as_str(), *size)).collect();
    assert_eq!(found, expected, "{max:?} {now_there}");
}

/// Its strategy and its size are changed in one write, while it rolls.
#[test]
fn a_deployment_that_is_to_recreate_its_pods_goes_on_from_the_middle_of_a_rollout() {
    let mut changed = deployment(2, 20, json!({"deployment.kubernetes.io/revision": "2"}));
    changed["spec"]["strategy"] = json!({"type": "Recreate"});
    let plan = look(changed, &[set(1, 5), set(2, 5)]);
    let sizes = plan.writes.iter().map(|write| match write {
        Write::Update { object, .. } => (write.key().name, object["spec"]["replicas"].as_u64()),
        other => panic!("{other:?}"),
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [("web-1".to_owned(), Some(0))]);
}

#[test]
fn a_set_has_the_part_that_its_annotation_says() {
    check_part(Some("10"), 0, &[("web-1", 10), ("web-2", 10)]);
    // Where that says nothing: of the pods that there are; or it stays as it is, and the largest gets the rest.
    for max in [None, Some("0"), Some("-3"), Some("x")] {
        check_part(max, 10, &[("web-1", 10), ("web-2", 10)]);
        check_part(max, 0, &[("web-1", 5), ("web-2", 15)]);
    }
}

#[test]
fn an_old_set_that_may_not_go_keeps_nothing_from_being_told() {
    let mut done = deployment(2, 10, json!({"deployment.kubernetes.io/revision": "2"}));
    done["spec"]["revisionHistoryLimit"] = 0.into();
    let plan = look(done, &[set(1, 0), set(2, 10)]);
    let [Write::Delete { .. }, Write::Update { sub: "status", .. }] = &plan.writes[..] else {
        panic!("{:?}", plan.writes)
    };
    assert_eq!(plan.apart.into_iter().collect::<Vec<_>>(), [0]);
}

/// A template that an earlier release stored as it came is that of a set which has been stored without what is nothing.
#[test]
fn a_template_that_says_nothing_more_has_its_set() {
    let mut old = deployment(2, 10, json!({"deployment.kubernetes.io/revision": "2"}));
    let spec = &mut old["spec"]["template"]["spec"];
    spec["hostNetwork"] = false.into();
    spec["containers"][0]["tty"] = false.into();
    let plan = look(old, &[set(1, 0), set(2, 10)]);
    assert!(!plan.writes.iter().any(|write| matches!(write, Write::Create { .. })), "{:?}", plan.writes);
}

/// The size that a set gets of whose pods one is not available, before and after it has seen the size that it has.
#[test]
fn what_a_set_says_is_not_available_goes_once() {
    let annotations = json!({"deployment.kubernetes.io/revision": "3", "kubernetes.io/change-cause": "to 3"});
    for (generation, size) in [(1, Some(4)), (2, None)] {
        let mut old = set(1, 5);
        old["metadata"]["generation"] = generation.into();
        old["status"]["availableReplicas"] = 4.into();
        let plan = look(deployment(3, 10, annotations.clone()), &[old, set(2, 3), set(3, 2)]);
        let given = plan.writes.iter().find_map(|write| match write {
            Write::Update { object, .. } if object["metadata"]["name"] == "web-1" => {
                object["spec"]["replicas"].as_i64()
            }
            _ => None,
        });
        assert_eq!(given, size, "{generation}: {:?}", plan.writes);
    }
}
