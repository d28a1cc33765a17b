//! What people do with workloads, at times that the seed chose.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ReplicationController;
use serde_json::{Value, json};

use crate::chance::between;
use crate::wants::Want;
use crate::workload::{Act, What, delete};

/// Annotation of a template: changing it makes another template.
pub(crate) const VERSION: &str = "sim.carrack.io/version";

/// All acts.
pub(crate) fn acts(rng: &mut Rng, safety: Duration) -> Vec<Act> {
    let mut acts = Vec::new();
    for n in 0..1 + rng.below(3) {
        deployment(rng, safety, &format!("deployment{n}"), &mut acts);
    }
    replication_controller(rng, safety, &mut acts);
    acts
}

/// A person with one object of a workload.
struct Work<'a> {
    resource: Resource,
    kind: &'static str,
    name: &'a str,
    at: Duration,
    safety: Duration,
}

impl Work<'_> {
    fn create(&self, spec: Value, acts: &mut Vec<Act>) {
        let object = json!({"apiVersion": self.resource.api_version(), "kind": self.resource.kind,
            "metadata": {"namespace": "default", "name": self.name}, "spec": spec});
        let want = Some((self.kind, Want::Workload));
        acts.push(Act { at: self.at, what: What::Create { resource: self.resource.clone(), object, want } });
    }
    /// Lets some time pass; false when it is too late for anything more.
    fn wait(&mut self, rng: &mut Rng) -> bool {
        self.at += between(rng, Duration::from_millis(200), self.safety / 3);
        self.at < self.safety
    }
    fn patch(&self, spec: Value, acts: &mut Vec<Act>) {
        let what = What::Patch {
            resource: self.resource.clone(),
            namespace: "default".into(),
            name: self.name.into(),
            patch: json!({ "spec": spec }),
            kind: self.kind,
            want: Some(Want::Workload),
        };
        acts.push(Act { at: self.at, what });
    }
    fn delete(&self, acts: &mut Vec<Act>) {
        acts.push(delete(self.at, self.resource.clone(), "default", self.name, self.kind));
    }
}

/// A template of pods of an app, in a version.
fn template(app: &str, version: u64) -> Value {
    json!({"metadata": {"labels": {"app": app}, "annotations": {VERSION: version.to_string()}},
        "spec": {"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "sim/run", "resources": {"requests": {"cpu": "100m"}}}]}})
}

fn new_version(version: u64) -> Value {
    json!({"template": {"metadata": {"annotations": {VERSION: version.to_string()}}}})
}

fn start(rng: &mut Rng, safety: Duration) -> Duration {
    between(rng, Duration::from_secs(1), safety / 3)
}

fn deployment(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name, at, safety };
    let strategy = if rng.one_in(4) {
        json!({"type": "Recreate"})
    } else {
        let surge = rng.below(3);
        // Both may not be nothing.
        let unavailable = rng.below(3).max(u64::from(surge == 0));
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
    };
    let mut version = 1;
    work.create(
        json!({"replicas": 1 + rng.below(6), "strategy": strategy, "selector": {"matchLabels": {"app": name}},
            "revisionHistoryLimit": rng.below(3), "template": template(name, version)}),
        acts,
    );
    for _ in 0..rng.below(6) {
        if !work.wait(rng) {
            return;
        }
        match rng.below(6) {
            0 => work.patch(json!({"replicas": rng.below(7)}), acts),
            1 => {
                work.patch(json!({"paused": true}), acts);
                work.at += Duration::from_secs(1 + rng.below(5));
                work.patch(json!({"paused": false}), acts);
            }
            // Back to an earlier one.
            2 => work.patch(new_version(1), acts),
            _ => {
                version += 1;
                work.patch(new_version(version), acts);
            }
        }
    }
    if rng.one_in(4) && work.wait(rng) {
        work.delete(acts);
    }
}

fn replication_controller(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let (at, name) = (start(rng, safety), "controller");
    let mut work =
        Work { resource: ReplicationController::resource(), kind: "replicationcontroller", name, at, safety };
    let spec = json!({"replicas": rng.below(5), "selector": {"app": name}, "template": template(name, 1)});
    work.create(spec, acts);
    while rng.one_in(2) && work.wait(rng) {
        work.patch(json!({"replicas": rng.below(5)}), acts);
    }
}
