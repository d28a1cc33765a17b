//! Jobs that leave their pods behind, Jobs that take these over, and pods that people give to a Job and take from it.

use std::time::Duration;

use carrack_engine::{DeleteOptions, Rng};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::acts::{Work, start, template};
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Change, Observer, controller, key_of, uid};
use crate::workload::{Act, What, delete};

/// What names of Jobs begin with that take over what others left.
const HEIR: &str = "heir";
const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// So many Jobs that go and leave their pods, which another one of the same selector takes over where there are `heirs`.
pub(super) fn acts(rng: &mut Rng, safety: Duration, count: u64, heirs: bool, acts: &mut Vec<Act>) {
    for n in 0..count {
        one(&mut rng.fork(&format!("{n}")), safety, n, heirs, acts);
    }
}

fn one(rng: &mut Rng, safety: Duration, n: u64, has_heir: bool, acts: &mut Vec<Act>) {
    let app = format!("estate{n}");
    let mut template = template(&app, 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "0".into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = rng.below(12).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"completions": 2 + rng.below(3), "parallelism": 2, "manualSelector": true,
        "selector": {"matchLabels": {"app": app}}, "template": template});
    let mut at = start(rng, safety);
    let soon = |rng: &mut Rng| between(rng, Duration::from_millis(50), Duration::from_secs(6));
    let leaving = format!("leaving{n}");
    let kind = "job";
    Work { resource: Job::resource(), kind, name: &leaving, at, safety }.create(spec.clone(), acts);
    // One that comes by itself, and is taken away again: before it is asked to end, or after.
    at += soon(rng);
    let made = at;
    let stray = format!("stray{n}");
    let mut pod = template.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["namespace"] = "default".into();
    pod["metadata"]["name"] = stray.clone().into();
    acts.push(Act { at, what: What::Create { resource: Pod::resource(), object: pod, want: None } });
    at += soon(rng);
    let taken = What::Try {
        resource: Pod::resource(),
        name: stray.clone(),
        sub: "",
        patch: json!({"metadata": {"labels": {"app": "nobody"}}}),
    };
    acts.push(Act { at, what: taken });
    let ended = if rng.one_in(2) { at.saturating_sub(soon(rng) / 8) } else { at + soon(rng) };
    let ended = ended.max(made + Duration::from_millis(20));
    acts.push(delete(ended, Pod::resource(), "default", &stray, "pod"));
    at += soon(rng);
    let options = DeleteOptions { propagation: Some("Orphan"), ..DeleteOptions::default() };
    let what = What::Delete {
        resource: Job::resource(),
        namespace: "default".into(),
        name: leaving.clone(),
        options,
        kind: "job",
    };
    acts.push(Act { at, what });
    if has_heir {
        at += soon(rng);
        Work { resource: Job::resource(), kind, name: &format!("{HEIR}{n}"), at, safety }.create(spec, acts);
    }
}

/// Whether a Job holds a pod until it is counted.
pub(super) fn is_held(pod: &Value) -> bool {
    let finalizers = pod.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.into_iter().flatten().any(|finalizer| finalizer == TRACKING)
}

/// A pod came to a Job: the end of one that is not held may be missed.
pub(super) fn came(change: &Change, breaches: &mut Vec<Breach>) {
    let Some(pod) = &change.after else { return };
    let before = change.before.as_ref().map_or("", controller);
    if before != controller(pod) && !is_held(pod) {
        let what = format!("{} comes to a Job that does not hold it", key_of(pod));
        breaches.push(Breach::new("jobs-hold-their-pods", what));
    }
}

/// A pod that is held for a Job, and has none.
pub(super) fn left(observer: &Observer) -> Option<String> {
    let has_job = |pod: &Value| observer.all("job").any(|job| uid(job) == controller(pod));
    let left = observer.all("pod").find(|pod| is_held(pod) && !has_job(pod))?;
    Some(format!("is not the Job of {}, and nobody is who holds it", key_of(left)))
}

/// Whether a Job counts what others began: how much that is depends on when it came.
pub(super) fn inherits(job: &Value) -> bool {
    key_of(job).starts_with(&format!("default/{HEIR}"))
}
