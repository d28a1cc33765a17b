//! Runs pods until enough of them have succeeded, or too many have failed.
//!
//! Every pod of a Job holds a finalizer until its end is written in the Job's status, so that no end is lost and none counts
//! twice:
//!
//! ```text
//!   pod ends ──▶ its UID goes into status.uncountedTerminatedPods ──▶ its finalizer goes
//!                                                                        │ seen to be gone
//!                                             counted, and the UID leaves the list ◀─┘
//! ```
//!
//! A Job that is being deleted counts those that have ended by then, makes no more, and lets the others go: what becomes of them
//! does not count. A pod that belongs to no Job any more has nobody who counts it: it lets go by itself ([`orphans`]).
//!
//! A reconcile counts first ([`tally`]); with nothing left to count it decides how the Job goes on ([`verdict`]) and makes or
//! removes pods ([`manage`]). Behaviour follows kube-controller-manager (pkg/controller/job).

mod indexes;
mod manage;
mod orphans;
mod per_index;
mod policy;
mod streak;
mod tally;
#[cfg(test)]
mod tests;
mod ttl;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Refusal, Setup, Time, View, Write};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::selector::selects;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;

use super::claim::{Claim, Labels, claim_held, controlled, controller_of, watch};
use super::{conditions, pods};
use crate::Planted;
use conditions::Condition as _;

use streak::Streak;

pub use ttl::TtlController;

/// The controller of Jobs.
#[derive(Default)]
pub struct JobController {
    planted: Option<Planted>,
    /// What failed lately of Jobs that go on.
    streaks: BTreeMap<Key, Streak>,
    /// Pods of Jobs that go on which the server did not let go: their Jobs wait for them only in the end.
    stuck: BTreeMap<Key, BTreeSet<Key>>,
}

impl JobController {
    /// With a bug, for the simulator.
    pub(super) fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { planted, ..self }
    }
    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }
    /// Whether all that a plan does is to let go of pods that the server did not let go before.
    fn is_stuck(&self, key: &Key, plan: &Plan) -> bool {
        let Some(stuck) = self.stuck.get(key).filter(|_| !self.has(Planted::OneHoldsAll)) else { return false };
        plan.writes.iter().all(|write| match write {
            Write::Patch { key: pod, .. } => stuck.contains(pod),
            Write::Confirm { .. } => true,
            _ => false,
        })
    }
    /// Forgets pods that have let go.
    fn look_at_stuck(&mut self, key: &Key, view: &View<'_>) {
        let Some(stuck) = self.stuck.get_mut(key) else { return };
        stuck.retain(|pod| view.get::<Pod>(&pod.namespace, &pod.name).is_some_and(|pod| tracked(pod)));
        if stuck.is_empty() {
            self.stuck.remove(key);
        }
    }
}

/// The finalizer that holds a pod until its end is counted.
pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// Index of pods that hold the finalizer, by the namespace and name of their Job.
const BY_JOB: &str = "job-tracked";

/// A Job with what is known of it.
pub(crate) struct Known<'a> {
    pub job: &'a Job,
    pub spec: &'a JobSpec,
    pub pods: Vec<Arc<Pod>>,
    pub now: Time,
    streak: Streak,
    /// A planted bug: whether pods have let go is not looked at.
    pub forgets: bool,
    /// A planted bug: pods do not tell of failures that the policy ignores.
    pub untold: bool,
}

impl Known<'_> {
    pub fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }
    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }
    pub fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }
    /// Whether a pod is replaced only once it has ended, and not when it is asked to end.
    pub fn replaces_ended_only(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
    }
    /// Whether a pod has ended well, or not; none while it goes on. One that goes with its Job has not failed.
    pub fn end_of(&self, pod: &Pod) -> Option<bool> {
        match pods::phase(pod) {
            "Succeeded" => Some(true),
            "Failed" => Some(false),
            _ if pod.is_deleting() && !self.replaces_ended_only() && !self.job.is_deleting() => Some(false),
            _ => None,
        }
    }
    /// Takes in what its pods tell of failures.
    fn look_back(&mut self) {
        let mut streak = std::mem::take(&mut self.streak);
        streak.look(self);
        self.streak = streak;
    }
    pub fn active(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().filter(|p| pods::active(p))
    }
    pub fn terminating(&self) -> usize {
        self.pods.iter().filter(|p| p.is_deleting() && !pods::terminal(p)).count()
    }
    /// What the failure of a pod that has failed means.
    fn meaning(&self, pod: &Pod) -> policy::Meaning {
        let rules = self.spec.pod_failure_policy.as_ref().map_or(&[][..], |p| p.rules.as_slice());
        policy::meaning(rules, pod)
    }
    /// Whether how it ends is decided, and only its last pods have to.
    pub fn is_finishing(&self) -> bool {
        self.condition(verdict::MET) || self.condition(verdict::TARGET)
    }
    pub fn condition(&self, kind: &str) -> bool {
        let conditions = self.job.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions::find(conditions, kind).is_some_and(|c| c.status() == "True")
    }
}

/// Whether a pod holds the finalizer.
pub(crate) fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == TRACKING)
}

/// Adds: the pod lets go of the finalizer.
pub(crate) fn let_go(plan: Plan, pod: &Pod) -> Plan {
    if tracked(pod) { plan.without_finalizer(pod, TRACKING) } else { plan }
}

/// Whether a Job is over.
pub(crate) fn is_finished(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    ["Complete", "Failed"].iter().any(|kind| conditions::find(conditions, kind).is_some_and(|c| c.status() == "True"))
}

pub(super) fn by_job(pod: &Pod) -> Vec<String> {
    let owner = controller_of::<Job>(pod).filter(|_| tracked(pod));
    owner.map(|o| Key::new(pod.namespace(), o.name.clone()).to_string()).into_iter().collect()
}

/// Whether a Job's selector chooses these labels. A Job without a selector has the pods that it made.
fn chooses(job: &Job, labels: Labels<'_>) -> bool {
    job.spec.as_ref().and_then(|s| s.selector.as_ref()).is_some_and(|s| selects(s, labels))
}

/// Whether a pod that a Job controls is chosen by it.
fn fits(job: &Job, pod: &Pod) -> bool {
    job.spec.as_ref().is_none_or(|s| s.selector.is_none()) || chooses(job, pod.metadata.labels.as_ref())
}

impl Controller for JobController {
    fn name(&self) -> &'static str {
        "job"
    }
    fn event_source(&self) -> &'static str {
        "job-controller"
    }
    /// As upstream's `DefaultJobApiBackOff`: short pods under a quota would have it try again and again while one of them runs.
    fn first_retry(&self) -> Duration {
        Duration::from_secs(1)
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Job>();
        watch::<Pod, Job>(setup, chooses);
        setup.index::<Pod>(BY_JOB, by_job);
        setup.watch::<Pod>(|pod, _| orphans::key(pod).into_iter().collect());
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        if let Some(pod) = orphans::name(key) {
            if self.has(Planted::OrphansHeld) {
                return Plan::none();
            }
            return orphans::plan(view, &key.namespace, pod);
        }
        let job = view.get::<Job>(&key.namespace, &key.name);
        if job.is_none_or(|job| is_finished(job) || job.is_deleting()) {
            self.streaks.remove(key);
            self.stuck.remove(key);
        }
        self.look_at_stuck(key, view);
        let others = abandoned(key, job.map(|j| j.uid()), view);
        if !others.writes.is_empty() && !self.is_stuck(key, &others) {
            return others;
        }
        let Some(job) = job else { return Plan::none() };
        let Some(spec) = job.spec.as_ref() else { return others };
        // Somebody else's work, but for what a Job before it has left.
        if spec.managed_by.as_deref().is_some_and(|m| m != "kubernetes.io/job-controller") {
            return others;
        }
        // Nothing is counted any more. Those that its selector does not choose let go as well.
        if is_finished(job) {
            return released(key, job, view, |_| true);
        }
        let fits = |pod: &Pod| fits(job, pod);
        // One that has ended, too: what it did counts.
        let adopts = |_: &Pod| spec.selector.is_some();
        if job.is_deleting() {
            // Nobody else lets them go, and they are not counted.
            let plan = released(key, job, view, |pod| !fits(pod));
            if !plan.writes.is_empty() {
                return plan;
            }
        }
        let finalizer = (!self.has(Planted::AdoptedUnheld)).then_some(TRACKING);
        let pods = match claim_held::<Job, Pod>(view, job.as_ref(), finalizer, fits, adopts) {
            Claim::Settled(pods) => pods,
            Claim::ToSettle(plan) => return plan,
        };
        let streak = self.streaks.remove(key).unwrap_or_default();
        let (forgets, untold) = (self.has(Planted::EndsForgotten), self.has(Planted::IgnoredUntold));
        let mut known = Known { job, spec, pods, now, streak, forgets, untold };
        known.look_back();
        if !known.streak.is_empty() && !job.is_deleting() {
            self.streaks.insert(key.clone(), known.streak.clone());
        }
        // What is to be counted rests on pods at least as new as the Job's status.
        let plan = tally::plan(&known, view);
        if !plan.writes.is_empty() && !self.is_stuck(key, &plan) {
            return plan;
        }
        others.then(plan).then(verdict::plan(&known, view))
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(job) = view.get::<Job>(&key.namespace, &key.name) else { return Plan::none() };
        // One that is gone, or changed meanwhile, is looked at again.
        if let Write::Patch { resource, key: pod, .. } = refusal.write
            && *resource == Pod::resource()
            && !matches!(refusal.error.code, 404 | 409)
        {
            self.stuck.entry(key.clone()).or_default().insert(pod.clone());
        }
        let (reason, doing) = match refusal.write {
            Write::Create { .. } => ("FailedCreate", "creating"),
            Write::Delete { .. } => ("FailedDelete", "deleting"),
            _ => return Plan::none(),
        };
        let message = format!("Error {doing}: {}", refusal.error.message);
        as_it_is(view, job, now).event(EventRecord::warning(job.as_ref(), reason, message))
    }
}

/// Counts of the pods of a Job some of which cannot be made or removed: while that is so, nobody else would write them.
fn as_it_is(view: &View<'_>, job: &Job, now: Time) -> Plan {
    let Some(spec) = job.spec.as_ref().filter(|_| !is_finished(job)) else { return Plan::none() };
    let pods = controlled::<Pod>(view, job).filter(|pod| fits(job, pod)).cloned().collect();
    let known = Known { job, spec, pods, now, streak: Streak::default(), forgets: false, untold: false };
    let old = known.status();
    let mut status = old.clone();
    verdict::present(&known, &mut status);
    verdict::write(&known, &old, status, Plan::none())
}

/// Of a Job's pods these let go.
fn released(key: &Key, job: &Job, view: &View<'_>, these: impl Fn(&Pod) -> bool) -> Plan {
    let named = key.to_string();
    let pods = view.cache::<Pod>().by_index(BY_JOB, &named).filter(|p| p.controller_uid() == Some(job.uid()));
    pods.filter(|pod| these(pod)).fold(Plan::none(), |plan, pod| let_go(plan, pod)).each_apart()
}

/// Pods of a Job of this name that is gone let go: nobody will count them any more. That it is gone is proved by a live read.
fn abandoned(key: &Key, uid: Option<&str>, view: &View<'_>) -> Plan {
    let named = key.to_string();
    let pods = view.cache::<Pod>().by_index(BY_JOB, &named);
    let mut gone: Option<String> = None;
    let mut plan = Plan::none();
    for pod in pods {
        let Some(owner) = pod.controller_uid().filter(|owner| Some(*owner) != uid) else { continue };
        if gone.as_deref() != Some(owner) {
            plan = plan.confirm_absent(&Job::resource(), key.clone(), owner);
            gone = Some(owner.to_owned());
        }
        plan = plan.then(let_go(Plan::none(), pod).each_apart());
    }
    plan
}
