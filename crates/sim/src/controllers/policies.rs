//! A Job some of whose pods nobody may change for a time, since an admission policy refuses that: the finalizer by which the Job
//! holds a pod that has ended stays, and the Job goes on with its other pods.
//!
//! ```text
//!   a pod ends ─▶ its end is written down ─▶ it may not be let go ──────────────────▶ the policy goes ─▶ it is let go
//!                                        └─▶ the next one is made, and so on ─▶ all have ended ───────┘
//! ```
//!
//! The policy comes shortly before the end of trouble, and goes long after it: whether the Job goes on is looked at while nothing
//! else fails.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::acts::{Work, template};
use super::heirs::is_held;
use super::times::is_over;
use super::wants::pods_of;
use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::{Observer, deleting, is_true, key_of, terminal, text, uid};
use crate::workload::{Act, What, delete};

/// The invariant.
pub(crate) const NAME: &str = "jobs-pass-the-held";
/// Name of the Job, and label of its pods.
const JOB: &str = "guarded";
/// Name of the policy, and of its binding.
const GUARD: &str = "guard";
const GROUP: &str = "admissionregistration.k8s.io";
/// In runs that are over in seconds there is no time for it.
const LEAST: Duration = Duration::from_secs(30);
/// How long after the end of trouble the policy goes.
const LIFTED: Duration = Duration::from_secs(100);
/// Within which time a Job goes on.
const GOES_ON_WITHIN: Duration = Duration::from_secs(60);

/// In some runs, or `always`: the Job and the policy.
pub(super) fn acts(rng: &mut Rng, safety: Duration, always: bool, acts: &mut Vec<Act>) {
    if safety < LEAST || !always && !rng.one_in(6) {
        return;
    }
    let mut at = safety.saturating_sub(between(rng, Duration::from_secs(15), Duration::from_secs(20)));
    let indexed = rng.one_in(2);
    let labels = match indexed {
        // The first one of them alone.
        true => json!({"app": JOB, "batch.kubernetes.io/job-completion-index": "0"}),
        false => json!({"app": JOB}),
    };
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]});
    let policy = json!({
        "matchConstraints": {"resourceRules": [rule], "objectSelector": {"matchLabels": labels}},
        "validations": [{"expression": "false", "message": "these pods stay as they are"}],
    });
    let binding = json!({"policyName": GUARD, "validationActions": ["Deny"]});
    let (of_policy, of_binding) = resources();
    for (resource, spec) in [(of_policy, policy), (of_binding.clone(), binding)] {
        let object = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": {"name": GUARD}, "spec": spec});
        acts.push(Act { at, what: What::Create { resource, object, want: None } });
    }
    at += Duration::from_secs(1);
    let work = Work { resource: Job::resource(), kind: "job", name: JOB, at, safety };
    let mut template = template(JOB, 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "0".into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = (1 + rng.below(3)).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    // Whom its node takes along has not failed.
    let ignored = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    work.create(
        json!({"completions": 4, "parallelism": 1, "backoffLimit": 20, "podFailurePolicy": {"rules": ignored},
            "completionMode": if indexed { "Indexed" } else { "NonIndexed" }, "template": template}),
        acts,
    );
    acts.push(delete(safety + LIFTED, of_binding, "", GUARD, "policy's binding"));
}

/// Policies, and their bindings.
fn resources() -> (Resource, Resource) {
    let of = |plural: &'static str, kind: &'static str| Resource {
        group: GROUP.into(),
        version: "v1".into(),
        plural: plural.into(),
        kind: kind.into(),
        namespaced: false,
    };
    (
        of("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        of("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    )
}

/// How many pods of a Job have ended like this, counted or written down; `kind` is a field of its status.
fn ended(job: &Value, kind: &str) -> u64 {
    let counted = job["status"][kind].as_u64().unwrap_or(0);
    let listed = job["status"]["uncountedTerminatedPods"][kind].as_array().map_or(0, Vec::len);
    counted + listed as u64
}

/// Whether a Job is to have a pod that works, and has none, while one that has ended is held. Of one whose pods have failed that
/// is not asked: it waits before it makes another.
fn waits(job: &Value, observer: &Observer) -> bool {
    let spec = &job["spec"];
    let is_judged = ["SuccessCriteriaMet", "FailureTarget"].iter().any(|kind| is_true(job, kind));
    let goes_on = !is_over(job) && !is_judged && !deleting(job);
    let is_free = spec["suspend"] != true && spec["activeDeadlineSeconds"].is_null();
    let wanted = spec["completions"].as_u64().unwrap_or(0);
    if !goes_on || !is_free || ended(job, "failed") > 0 || ended(job, "succeeded") >= wanted {
        return false;
    }
    let pods: Vec<&Value> = pods_of(job, observer).collect();
    let is_well = |pod: &&Value| text(pod, "/status/phase") != "Failed" && !deleting(pod);
    pods.iter().all(is_well) && pods.iter().all(|pod| terminal(pod)) && pods.iter().any(|pod| is_held(pod))
}

/// Since when such Jobs have waited, by UID.
#[derive(Debug, Default)]
pub(crate) struct Passing(BTreeMap<String, Time>);

impl Passing {
    /// Looks at the Job whose pods are guarded, while nothing fails.
    pub(crate) fn look(&mut self, now: Time, observer: &Observer, breaches: &mut Vec<Breach>) {
        let guarded = observer.get("job", &format!("default/{JOB}")).filter(|job| waits(job, observer));
        self.0.retain(|id, _| guarded.is_some_and(|job| uid(job) == id));
        let Some(job) = guarded else { return };
        let since = *self.0.entry(uid(job).to_owned()).or_insert(now);
        if now.since(since) > GOES_ON_WITHIN {
            let what = format!(
                "{} has made no pod for {} s, and all that it waits for is to let go of another",
                key_of(job),
                now.since(since).as_secs()
            );
            breaches.push(Breach::new(NAME, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(more: &Value, status: &Value) -> Value {
        let mut job = json!({"metadata": {"namespace": "default", "name": JOB, "uid": "job"},
            "spec": {"completions": 3}, "status": status});
        for (field, value) in more.as_object().into_iter().flatten() {
            job["spec"][field] = value.clone();
        }
        job
    }

    fn pod(name: &str, phase: &str, is_held: bool) -> Value {
        let finalizers = if is_held { json!(["batch.kubernetes.io/job-tracking"]) } else { json!([]) };
        json!({"metadata": {"namespace": "default", "name": name, "uid": name, "finalizers": finalizers,
            "ownerReferences": [{"controller": true, "uid": "job"}]}, "status": {"phase": phase}})
    }

    #[test]
    fn a_job_that_waits_for_a_held_pod_alone_is_found() {
        let listed = json!({"uncountedTerminatedPods": {"succeeded": ["a"]}});
        let check = |job: Value, pods: &[Value], expected: bool| {
            let words = format!("{job} {pods:?}");
            let pods = pods.iter().map(|pod| ("pod", pod.clone()));
            let observer = Observer::of(pods.chain([("job", job)]));
            let (mut passing, mut breaches) = (Passing::default(), Vec::new());
            for s in [100, 159, 161] {
                passing.look(Time::from_unix_s(s), &observer, &mut breaches);
            }
            assert_eq!(!breaches.is_empty(), expected, "{words}");
        };
        let held = pod("a", "Succeeded", true);
        check(job(&json!({}), &listed), std::slice::from_ref(&held), true);
        check(job(&json!({}), &listed), &[held.clone(), pod("b", "Pending", true)], false);
        check(job(&json!({}), &listed), &[pod("a", "Succeeded", false)], false);
        check(job(&json!({"suspend": true}), &listed), std::slice::from_ref(&held), false);
        check(job(&json!({"activeDeadlineSeconds": 5}), &listed), std::slice::from_ref(&held), false);
        check(job(&json!({"completions": 1}), &listed), std::slice::from_ref(&held), false);
        check(job(&json!({}), &json!({"failed": 1})), std::slice::from_ref(&held), false);
        let judged = json!({"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]});
        check(job(&json!({}), &judged), &[held], false);
    }
}
