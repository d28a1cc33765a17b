//! What people do with workloads, at times that the seed chose.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::{Kind as _, Resource};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ReplicationController;
use serde_json::{Value, json};

use crate::chance::between;
use crate::options::Parts;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, Part, What, create, delete, taint, up_to};

/// Annotation of a template: changing it makes another template.
pub(crate) const VERSION: &str = "sim.carrack.io/version";

/// Annotation by which an old client asks a Deployment to go back to a revision.
pub(super) const ROLLBACK: &str = "deprecated.deployment.rollback.to";

/// All acts.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, bug: Option<Bug>, parts: &Parts) -> Vec<Act> {
    let mut acts = Vec::new();
    // What a planted bug needs to show, and nothing else.
    match bug {
        Some(Bug::ClaimsGo | Bug::ClaimsByName | Bug::TakesFree) => {
            let class = if bug == Some(Bug::TakesFree) { "later" } else { "ready" };
            super::claims::shrinking_set(bug == Some(Bug::ClaimsByName), class, safety, &mut acts);
            return acts;
        }
        Some(Bug::CarelessDetach) => {
            super::claims::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::ClocksOfAnother) => {
            super::tolerations::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::AbsenceRemembered) => {
            super::absences::acts(safety, &mut acts);
            return acts;
        }
        Some(Bug::TimesTwice) => {
            super::times::many(safety, &mut acts);
            return acts;
        }
        Some(Bug::BaselessWrites) => {
            ordered_set(safety, &mut acts);
            return acts;
        }
        Some(Bug::SetsBySpec) => {
            for n in 0..3 {
                rolled(safety, &format!("deployment{n}"), &mut acts);
            }
            return acts;
        }
        Some(Bug::UnplacedStay) => {
            for n in 0..4 {
                unplaced_job(&mut rng.fork(&format!("job {n}")), safety, &format!("unplaced{n}"), &mut acts);
            }
            return acts;
        }
        Some(Bug::IgnoredUntold) => {
            ignoring_job(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::OrphansHeld | Bug::AdoptedUnheld) => {
            super::heirs::acts(rng, safety, 6, bug == Some(Bug::AdoptedUnheld), &mut acts);
            // Something that comes to its end.
            job(rng, safety, "job", &mut acts);
            return acts;
        }
        Some(Bug::ForgottenKinds) => {
            super::definitions::acts(rng, safety, 6, &mut acts);
            return acts;
        }
        Some(Bug::OneHoldsAll) => {
            super::policies::acts(rng, safety, true, &mut acts);
            return acts;
        }
        Some(Bug::HastySlices) => {
            super::services::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::GrantsForgotten) => {
            super::budgets::acts(rng, safety, true, &mut acts);
            return acts;
        }
        Some(Bug::ChargesLost) => {
            super::quotas::acts(rng, safety, true, &mut acts);
            return acts;
        }
        Some(Bug::LimitsKept) => {
            super::quotas::edits(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::LimitsUnheard) => {
            super::attachments::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::BoundsForgotten | Bug::SilenceIsZero) => {
            super::autoscalers::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::StaleDependents | Bug::HastyOwners) => {
            super::endings::owners(rng, safety, 10, &mut acts);
            return acts;
        }
        Some(Bug::RawNames) => {
            super::strangers::acts(rng, safety, &mut acts);
            return acts;
        }
        Some(Bug::UnprovedEmptiness | Bug::UnreadServers) => {
            super::endings::namespaces(rng, safety, 8, &mut acts);
            return acts;
        }
        Some(Bug::TakenClaims) => {
            super::claims::ground(&mut acts);
            super::scratch::acts(rng, safety, true, &mut acts);
            return acts;
        }
        Some(Bug::EndsForgotten) => {
            for n in 0..8 {
                job(&mut rng.fork(&format!("job {n}")), safety, &format!("job{n}"), &mut acts);
            }
            return acts;
        }
        _ => {}
    }
    let deployments = 1 + rng.below(up_to(3, safety));
    for n in 0..deployments {
        deployment(rng, safety, &format!("deployment{n}"), &mut acts);
    }
    replication_controller(rng, safety, &mut acts);
    goes_back(&mut rng.fork("goes back"), safety, "back", &mut acts);
    if !parts.has("deployments") {
        acts.clear();
    }
    if parts.has("stateful") {
        stateful_set(&mut rng.fork("stateful"), safety, &mut acts);
    }
    if parts.has("daemon") {
        daemon_set(&mut rng.fork("daemon"), safety, &mut acts);
    }
    let jobs = 1 + rng.below(up_to(3, safety));
    for n in 0..if parts.has("jobs") { jobs } else { 0 } {
        job(&mut rng.fork(&format!("job {n}")), safety, &format!("job{n}"), &mut acts);
    }
    if parts.has("jobs") {
        unplaced_job(&mut rng.fork("unplaced job"), safety, "unplaced", &mut acts);
        ignoring_job(&mut rng.fork("ignoring job"), safety, &mut acts);
        // Other bugs are looked for among what there was without it.
        if bug.is_none() {
            super::policies::acts(&mut rng.fork("guarded job"), safety, false, &mut acts);
        }
    }
    if parts.has("times") {
        super::times::acts(&mut rng.fork("times"), safety, &mut acts);
    }
    // The classes that the claims of StatefulSets are of are made here, too.
    if parts.has("claims") || parts.has("stateful") {
        super::claims::acts(&mut rng.fork("claims"), safety, &mut acts);
    }
    if parts.has("services") {
        super::services::acts(&mut rng.fork("services"), safety, &mut acts);
    }
    if parts.has("budgets") {
        super::budgets::acts(&mut rng.fork("budgets"), safety, false, &mut acts);
    }
    if parts.has("quotas") {
        super::quotas::acts(&mut rng.fork("quotas"), safety, false, &mut acts);
    }
    if parts.has("endings") {
        super::endings::owners(&mut rng.fork("owners"), safety, 2, &mut acts);
        super::endings::namespaces(&mut rng.fork("namespaces"), safety, 1, &mut acts);
        super::heirs::acts(&mut rng.fork("heirs"), safety, 1, true, &mut acts);
        // Seldom, and beside no planted bug.
        if bug.is_none() && rng.fork("whether strangers come").one_in(16) {
            super::strangers::acts(&mut rng.fork("strangers"), safety, &mut acts);
        }
    }
    if parts.has("scratch") {
        if !(parts.has("claims") || parts.has("stateful")) {
            super::claims::ground(&mut acts);
        }
        super::scratch::acts(&mut rng.fork("scratch"), safety, false, &mut acts);
    }
    // Other bugs are looked for among what there was without these.
    let beside: [(&str, Part); 3] = [
        (super::EDITS, super::quotas::edits),
        (super::LIMITS, super::attachments::acts),
        (super::AUTOSCALERS, super::autoscalers::acts),
    ];
    for (part, add) in beside.into_iter().filter(|(part, _)| bug.is_none() && parts.has(part)) {
        add(&mut rng.fork(part), safety, &mut acts);
    }
    acts
}

/// A person with one object of a workload.
pub(super) struct Work<'a> {
    pub resource: Resource,
    pub kind: &'static str,
    pub name: &'a str,
    pub at: Duration,
    pub safety: Duration,
}

impl Work<'_> {
    pub(super) fn create(&self, spec: Value, acts: &mut Vec<Act>) {
        let object = json!({"metadata": {"namespace": "default", "name": self.name}, "spec": spec});
        acts.push(create(self.at, self.resource.clone(), object, Some((self.kind, Want::Workload))));
    }
    /// Lets some time pass; false when it is too late for anything more.
    pub(super) fn wait(&mut self, rng: &mut Rng) -> bool {
        self.at += between(rng, Duration::from_millis(200), self.safety / 3);
        self.at < self.safety
    }
    pub(super) fn patch(&self, spec: Value, acts: &mut Vec<Act>) {
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
pub(super) fn template(app: &str, version: u64) -> Value {
    json!({"metadata": {"labels": {"app": app}, "annotations": {VERSION: version.to_string()}},
        "spec": {"automountServiceAccountToken": false, "tolerations": [{"key": "sim", "operator": "Exists"}], "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "sim/run", "resources": {"requests": {"cpu": "100m"}}}]}})
}

pub(super) fn new_version(version: u64) -> Value {
    json!({"template": {"metadata": {"annotations": {VERSION: version.to_string()}}}})
}

pub(super) fn start(rng: &mut Rng, safety: Duration) -> Duration {
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
        json!({"replicas": 1 + rng.below(up_to(6, safety)), "strategy": strategy, "selector": {"matchLabels": {"app": name}},
            "revisionHistoryLimit": rng.below(3), "template": template(name, version)}),
        acts,
    );
    for _ in 0..rng.below(up_to(6, safety)) {
        if !work.wait(rng) {
            return;
        }
        match rng.below(6) {
            0 => work.patch(json!({"replicas": rng.below(up_to(7, safety))}), acts),
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

/// A Deployment without pods that an old client asks to go back. Whether the set to go back to was ever made depends on when.
fn goes_back(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name, at, safety };
    let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template(name, 1)});
    work.create(spec, acts);
    for version in 2..4 {
        if !work.wait(rng) {
            return;
        }
        work.patch(new_version(version), acts);
        work.at += between(rng, Duration::from_millis(1), Duration::from_secs(2));
        let what = What::Patch {
            resource: Deployment::resource(),
            namespace: "default".into(),
            name: name.into(),
            patch: json!({"metadata": {"annotations": {ROLLBACK: rng.below(3).to_string()}}}),
            kind: "deployment",
            want: None,
        };
        acts.push(Act { at: work.at, what });
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

fn stateful_set(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let (at, name) = (start(rng, safety), "stateful");
    let mut work = Work { resource: StatefulSet::resource(), kind: "statefulset", name, at, safety };
    let policy = if rng.one_in(3) { "Parallel" } else { "OrderedReady" };
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1 + rng.below(2)}});
    let mut version = 1;
    let mut spec = json!({"replicas": 1 + rng.below(4), "serviceName": name, "podManagementPolicy": policy, "updateStrategy": strategy,
        "ordinals": {"start": rng.below(2)}, "selector": {"matchLabels": {"app": name}}, "revisionHistoryLimit": 1,
        "template": template(name, version)});
    super::claims::of_stateful_set(&mut rng.fork("claims"), &mut spec);
    work.create(spec, acts);
    for _ in 0..rng.below(4) {
        if !work.wait(rng) {
            return;
        }
        if rng.one_in(2) {
            work.patch(json!({"replicas": rng.below(5)}), acts);
        } else {
            version += 1;
            work.patch(new_version(version), acts);
        }
    }
}

/// A Deployment that is rolled all the time.
fn rolled(safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = Duration::from_secs(1);
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name, at, safety };
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}});
    work.create(
        json!({"replicas": 5, "strategy": strategy, "selector": {"matchLabels": {"app": name}},
            "template": template(name, 1)}),
        acts,
    );
    for version in 2..20 {
        work.at += safety / 20;
        work.patch(new_version(version), acts);
    }
}

/// An ordered StatefulSet that grows and shrinks all the time.
fn ordered_set(safety: Duration, acts: &mut Vec<Act>) {
    let (at, name) = (Duration::from_secs(1), "stateful");
    let mut work = Work { resource: StatefulSet::resource(), kind: "statefulset", name, at, safety };
    let spec = json!({"replicas": 4, "serviceName": name, "podManagementPolicy": "OrderedReady",
        "selector": {"matchLabels": {"app": name}}, "template": template(name, 1)});
    work.create(spec, acts);
    for replicas in [1, 6].into_iter().cycle().take(10) {
        work.at += safety / 12;
        work.patch(json!({ "replicas": replicas }), acts);
    }
}

/// A DaemonSet, on nodes that come to refuse pods and take them again.
fn daemon_set(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let (at, name) = (start(rng, safety), "daemon");
    let mut work = Work { resource: DaemonSet::resource(), kind: "daemonset", name, at, safety };
    let surge = rng.below(3);
    let unavailable = if surge == 0 { 1 + rng.below(2) } else { 0 };
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
    let mut version = 1;
    let mut template = template(name, version);
    // Others bear the taints that come and go.
    template["spec"]["tolerations"] = json!([]);
    let selector = json!({"matchLabels": {"app": name}});
    work.create(json!({"selector": selector, "updateStrategy": strategy, "template": template}), acts);
    while rng.one_in(2) && work.wait(rng) {
        version += 1;
        work.patch(new_version(version), acts);
    }
    for number in 0..super::NODES {
        let mut at = start(rng, safety);
        while rng.one_in(2) && at < safety {
            let effect = if rng.one_in(2) { "NoExecute" } else { "NoSchedule" };
            let taints = if rng.one_in(2) { json!([{"key": "sim", "effect": effect}]) } else { json!([]) };
            acts.push(taint(at, super::nodes().name(number), &taints));
            at += between(rng, Duration::from_secs(1), safety / 3);
        }
    }
    // In the end all nodes take pods, so that Deployments have room wherever they are.
    for number in 0..super::NODES {
        acts.push(taint(safety, super::nodes().name(number), &Value::Null));
    }
}

/// A Job whose pods end by themselves, well or not.
fn job(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let mut work = Work { resource: Job::resource(), kind: "job", name, at, safety };
    let fails = rng.one_in(3);
    let mut template = template(name, 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = u8::from(fails).to_string().into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = rng.below(5).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    // Whom its node takes along has not failed.
    let ignored = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    let indexed = rng.one_in(2);
    let mut spec = json!({"completions": 1 + rng.below(up_to(6, safety)), "parallelism": 1 + rng.below(4), "backoffLimit": rng.below(3),
        "completionMode": if indexed { "Indexed" } else { "NonIndexed" }, "podFailurePolicy": {"rules": ignored},
        "template": template});
    if indexed && fails && rng.one_in(2) {
        spec["backoffLimitPerIndex"] = rng.below(2).into();
        spec["backoffLimit"] = i32::MAX.into();
    }
    work.create(spec, acts);
    if rng.one_in(3) && work.wait(rng) {
        work.patch(json!({"suspend": true}), acts);
        work.at += Duration::from_secs(1 + rng.below(5));
        work.patch(json!({"suspend": false}), acts);
    }
    if rng.one_in(4) && work.wait(rng) {
        work.delete(acts);
        // Some after their pods: those let go of it, whatever becomes of them. Who says nothing leaves a Job's pods behind.
        if let Some(Act { what: What::Delete { options, .. }, .. }) = acts.last_mut() {
            options.propagation = Some(if indexed { "Foreground" } else { "Background" });
        }
    }
}

/// A Job whose pods no node takes: its deadline ends it, though no pod of it ever ends by itself.
fn unplaced_job(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let at = start(rng, safety);
    let work = Work { resource: Job::resource(), kind: "job", name, at, safety };
    let mut template = template(name, 1);
    template["spec"]["restartPolicy"] = "Never".into();
    template["spec"]["nodeSelector"] = json!({"sim": "nowhere"});
    let policy = if rng.one_in(2) { "Failed" } else { "TerminatingOrFailed" };
    work.create(
        json!({"completions": 1 + rng.below(3), "parallelism": 1 + rng.below(3), "podReplacementPolicy": policy,
            "activeDeadlineSeconds": 1 + rng.below(20), "template": template}),
        acts,
    );
}

/// An Indexed Job whose pods fail in a way that its policy ignores, until its deadline ends it.
fn ignoring_job(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let (at, name) = (start(rng, safety), "ignoring");
    let work = Work { resource: Job::resource(), kind: "job", name, at, safety };
    let mut template = template(name, 1);
    template["metadata"]["annotations"][carrack_hollow::EXIT_CODE] = "1".into();
    template["metadata"]["annotations"][carrack_hollow::EXIT_AFTER_S] = rng.below(5).to_string().into();
    template["spec"]["restartPolicy"] = "Never".into();
    let ignored = json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1]}}]);
    work.create(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": i32::MAX,
            "backoffLimitPerIndex": 9, "podFailurePolicy": {"rules": ignored}, "activeDeadlineSeconds": 60,
            "template": template}),
        acts,
    );
}
