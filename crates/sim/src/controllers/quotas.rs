//! A namespace with a quota: a Deployment there asks for more than it may have.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use serde_json::{Value, json};

use super::acts::{start, template};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, deleting, key_of, terminal, text};
use crate::wants::Want;
use crate::workload::{Act, What, delete};

const NAMESPACE: &str = "limited";
/// So many pods it may have.
const PODS: usize = 2;

/// The namespace, its quota, and who lives there; in the end it goes with all that, or stays.
pub(super) fn acts(rng: &mut Rng, safety: Duration, stays: bool, acts: &mut Vec<Act>) {
    let mut at = start(rng, safety);
    let mut create = |resource: Resource, mut object: Value, want| {
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.to_string().into();
        acts.push(Act { at, what: What::Create { resource, object, want } });
    };
    create(Namespace::resource(), json!({"metadata": {"name": NAMESPACE}}), None);
    let quota =
        json!({"metadata": {"namespace": NAMESPACE, "name": "pods"}, "spec": {"hard": {"pods": PODS.to_string()}}});
    create(ResourceQuota::resource(), quota, Some(("quota", Want::Workload)));
    let spec = json!({"replicas": 1 + rng.below(4), "selector": {"matchLabels": {"app": NAMESPACE}},
        "template": template(NAMESPACE, 1)});
    let deployment = json!({"metadata": {"namespace": NAMESPACE, "name": NAMESPACE}, "spec": spec});
    create(Deployment::resource(), deployment, None);
    for _ in 0..rng.below(4) {
        at += between(rng, Duration::from_millis(500), safety / 4);
        if at > safety {
            break;
        }
        let what = What::Patch {
            resource: Deployment::resource(),
            namespace: NAMESPACE.into(),
            name: NAMESPACE.into(),
            patch: json!({"spec": {"replicas": rng.below(5)}}),
            kind: "deployment",
            want: None,
        };
        acts.push(Act { at, what });
    }
    if rng.one_in(2) && !stays {
        acts.push(delete(at + Duration::from_millis(1), Namespace::resource(), "", NAMESPACE, "namespace"));
    }
}

fn living(observer: &Observer) -> usize {
    let here = |pod: &&Value| text(pod, "/metadata/namespace") == NAMESPACE && !terminal(pod) && !deleting(pod);
    observer.all("pod").filter(here).count()
}

/// A pod was made: the quota has room for it.
pub(super) fn made(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    if change.before.is_some() || text(change.object(), "/metadata/namespace") != NAMESPACE {
        return;
    }
    let pods = living(observer);
    if pods > PODS {
        let what = format!("{} is one of {pods} pods, of {PODS} at most", key_of(change.object()));
        breaches.push(Breach::new("quotas-hold", what));
    }
}

/// Why a quota is not as it should be: it does not say what is used, or not all is used that may be.
pub(super) fn lacks(quota: &Value, observer: &Observer) -> Option<String> {
    let namespace = text(quota, "/metadata/namespace");
    let there = observer.all("pod").filter(|p| text(p, "/metadata/namespace") == namespace && !terminal(p)).count();
    let used = text(quota, "/status/used/pods");
    if used != there.to_string() {
        return Some(format!("says that {used:?} pods are there, and there are {there}"));
    }
    let deployment = observer.get("deployment", &format!("{namespace}/{NAMESPACE}"))?;
    let asked = deployment.pointer("/spec/replicas").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())?;
    (there != asked.min(PODS)).then(|| format!("has {there} pods of {asked} asked for, and {PODS} may be"))
}
