//! What single reconciles of a DaemonSet plan.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller as _, Key, Time, Write};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::super::claim::index;
use super::{DaemonSetController, revisions};
use crate::testing::{of, words};

/// A revision with the same template as the one before it, under another hash, replaces no pods.
#[test]
fn pods_of_a_twin_are_of_the_newer_revision() {
    let owner =
        json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": true}]);
    let look = |revisions: &[ControllerRevision], hash: &str| {
        let set = json!({"metadata": {"namespace": "ns", "name": "agent", "uid": "d", "resourceVersion": "5"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}},
                "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}}});
        let mut pod = json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "resourceVersion": "3",
                "labels": {"app": "agent"}, "ownerReferences": owner},
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}});
        pod["metadata"]["labels"][revisions::LABEL] = hash.into();
        let caches = Caches::new()
            .with_index("controller", index::<Pod>)
            .with_index("controller", index::<ControllerRevision>)
            .with::<ControllerRevision>(revisions.to_vec())
            .with::<Pod>([of(pod)])
            .with::<Node>([of(json!({"metadata": {"name": "n"}}))])
            .with::<DaemonSet>([of(set)]);
        DaemonSetController::default().reconcile(&Key::new("ns", "agent"), &caches.view(), Time::default())
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
