//! What single reconciles of a DaemonSet plan.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Plan, Time, Write};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::super::claim::index;
use super::{DaemonSetController, revisions};
use crate::testing::{of, words};

/// A running pod of the set on a node.
fn pod(name: &str, node: &str) -> Value {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": true}]);
    json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "3",
            "labels": {"app": "agent"}, "ownerReferences": owner},
        "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running"}})
}

/// What is planned where there is one node, `n`.
fn look(revisions: &[ControllerRevision], pods: Vec<Value>) -> Plan {
    let set = json!({"metadata": {"namespace": "ns", "name": "agent", "uid": "d", "resourceVersion": "5"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}},
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}}});
    let caches = Caches::new()
        .with_index("controller", index::<Pod>)
        .with_index("controller", index::<ControllerRevision>)
        .with::<ControllerRevision>(revisions.to_vec())
        .with::<Pod>(pods.into_iter().map(of))
        .with::<Node>([of(json!({"metadata": {"name": "n"}}))])
        .with::<DaemonSet>([of(set)]);
    DaemonSetController::default().reconcile(&Key::new("ns", "agent"), &caches.view(), Time::default())
}

/// What has ended and is kept by a finalizer takes no node, and what is bound to none is left to be so.
#[test]
fn only_pods_that_count_take_a_node() {
    let first = look(&[], vec![]);
    let [Write::Create { object, .. }] = &first.writes[..] else { panic!("{:?}", first.writes) };
    let revision = of::<ControllerRevision>(object.clone());
    let planned = |phase: &str, goes: bool, node: &str| -> Vec<&'static str> {
        let mut pod = pod("p", node);
        pod["metadata"]["labels"][revisions::LABEL] = revision.label(revisions::LABEL).into();
        pod["status"]["phase"] = phase.into();
        if goes {
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            pod["metadata"]["finalizers"] = json!(["example.com/kept"]);
        }
        let plan = look(std::slice::from_ref(&revision), vec![pod]);
        plan.writes
            .iter()
            .filter_map(|write| match write {
                Write::Create { .. } => Some("create"),
                Write::Delete { .. } => Some("delete"),
                _ => None,
            })
            .collect()
    };
    assert!(planned("Running", false, "n").is_empty());
    assert!(planned("Running", true, "n").is_empty(), "it goes first");
    assert_eq!(planned("Failed", true, "n"), ["create"]);
    assert_eq!(planned("Pending", false, ""), ["create"]);
    assert_eq!(planned("Pending", false, "gone"), ["create"]);
}

/// A revision with the same template as the one before it, under another hash, replaces no pods.
#[test]
fn pods_of_a_twin_are_of_the_newer_revision() {
    let look = |revisions: &[ControllerRevision], hash: &str| {
        let mut pod = pod("p", "n");
        pod["metadata"]["labels"][revisions::LABEL] = hash.into();
        look(revisions, vec![pod])
    };
    let first = look(&[], "");
    let [Write::Create { object, .. }] = &first.writes[..] else { panic!("{:?}", first.writes) };
    let made = of::<ControllerRevision>(object.clone());
    let hash = made.label(revisions::LABEL).unwrap_or_default().to_owned();
    let named = |name: &str, template: &Value| {
        let mut other = object.clone();
        other["metadata"]["name"] = format!("agent-{name}").into();
        other["metadata"]["labels"][revisions::LABEL] = name.into();
        other["data"]["spec"]["template"] = template.clone();
        other
    };
    let mut twin = named("twin", &object["data"]["spec"]["template"]);
    twin["revision"] = 3.into();
    let another = json!({"metadata": {"labels": {"app": "agent"}}, "spec": {"hostNetwork": true, "containers": []}});
    let older = named("older", &another);
    let all = [of(older), made, of(twin)];
    let told = "patch ns/p labels={\"controller-revision-hash\":\"twin\"}";
    for (of_pod, expected) in [(hash.as_str(), told), ("older", "delete ns/p"), ("unknown", "delete ns/p")] {
        assert_eq!(words(&look(&all, of_pod)), [expected], "{of_pod}");
    }
}
