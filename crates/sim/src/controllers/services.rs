//! A service: its slices tell of pods as ready that are, or were a moment ago, and in the end of all of them.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::acts::{Work, new_version, start, template};
use super::bounds::is_ready;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, deleting, key_of, text, uid};
use crate::workload::Act;

const NAME: &str = "served";

/// A service, and a Deployment whose pods take their time to be ready.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let service = Work { resource: Service::resource(), kind: "service", name: NAME, at, safety };
    service.create(json!({"selector": {"app": NAME}, "ports": [{"port": 80}]}), acts);
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name: NAME, at, safety };
    let mut template = template(NAME, 1);
    template["metadata"]["annotations"][carrack_hollow::READY_AFTER_S] = rng.below(4).to_string().into();
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}});
    let spec = json!({"replicas": 1 + rng.below(3), "strategy": strategy, "selector": {"matchLabels": {"app": NAME}}, "template": template});
    work.create(spec, acts);
    for version in 2..4 + rng.below(3) {
        if !work.wait(rng) {
            return;
        }
        let patch = if rng.one_in(2) { json!({"replicas": rng.below(4)}) } else { new_version(version) };
        work.patch(patch, acts);
    }
}

/// What must hold of slices.
#[derive(Default)]
pub(super) struct Served {
    /// UIDs of pods that have been ready.
    were_ready: BTreeSet<String>,
}

/// UIDs of the pods that a slice tells as ready.
fn told(slice: &Value) -> impl Iterator<Item = &str> {
    let endpoints = slice.pointer("/endpoints").and_then(Value::as_array).into_iter().flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    ready.map(|endpoint| text(endpoint, "/targetRef/uid")).filter(|uid| !uid.is_empty())
}

impl Served {
    pub(super) fn changed(&mut self, change: &Change, breaches: &mut Vec<Breach>) {
        let Some(object) = &change.after else { return };
        match change.resource {
            "pod" if is_ready(object) => _ = self.were_ready.insert(uid(object).to_owned()),
            "slice" => {
                for pod in told(object).filter(|pod| !self.were_ready.contains(*pod)) {
                    let what = format!("{} tells that {pod} is ready, which never was", key_of(object));
                    breaches.push(Breach::new("slices-tell-of-ready-pods", what));
                }
            }
            _ => {}
        }
    }
}

/// Why what is told of a service is not what there is.
pub(super) fn lacks(service: &Value, observer: &Observer) -> Option<String> {
    let labels = |object: &Value, key: &str| object["metadata"]["labels"][key] == text(service, "/metadata/name");
    let slices = observer.all("slice").filter(|slice| labels(slice, "kubernetes.io/service-name"));
    let mut told: Vec<&str> = slices.flat_map(told).collect();
    let pods = observer.all("pod").filter(|pod| labels(pod, "app") && is_ready(pod) && !deleting(pod));
    let mut ready: Vec<&str> = pods.map(uid).collect();
    told.sort_unstable();
    ready.sort_unstable();
    (told != ready).then(|| format!("stands for {told:?}, and ready are {ready:?}"))
}
