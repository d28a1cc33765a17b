//! Rolls a template out over ReplicaSets, one for each form that it had.
//!
//! ```text
//!   claim ReplicaSets ──▶ paused, or scaled by somebody ──▶ scaling: spread replicas over the sets
//!          │
//!          ├──▶ rollback: an old client asks for an earlier revision
//!          └──▶ sets: find or make the set of the template, its revision and annotations
//!                 └──▶ rollout: Recreate (all old pods go first) or RollingUpdate (within surge and unavailable)
//!                        └──▶ complete: old sets beyond the history limit go; status
//! ```
//!
//! Behaviour follows kube-controller-manager (pkg/controller/deployment). One thing is stricter. Upstream counts a set by its
//! spec, so that pods which an old set has not removed yet come on top of the surge. Here a set counts with the larger of its
//! spec and its status, and nothing is scaled up while a set has not seen its latest spec: the pods that count as replicas
//! never exceed the surge. Every write of a step rests on what the step was decided from (see [`sets::resting`]).

mod annotations;
mod rollback;
mod rollout;
mod scaling;
mod sets;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use carrack_engine::{Controller, EventRecord, Key, Plan, Refusal, Setup, Time, View, Write};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::selector::selects;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;

use super::claim::{Claim, Labels, claim, controlled, controller_of, watch};
use super::pods;
use super::scale::scaled;
use sets::Sets;

/// The controller of Deployments.
#[derive(Default)]
pub struct DeploymentController {
    /// A planted bug.
    pub(crate) by_spec: bool,
}

/// A Deployment's spec with its defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub deployment: &'a Deployment,
    pub spec: &'a DeploymentSpec,
    pub replicas: i32,
}

impl<'a> Wanted<'a> {
    fn of(deployment: &'a Deployment) -> Option<Self> {
        let spec = deployment.spec.as_ref()?;
        // Negative numbers are refused by admission.
        Some(Self { deployment, spec, replicas: spec.replicas.unwrap_or(1).max(0) })
    }
    fn is_recreate(&self) -> bool {
        self.spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate")
    }
    /// How many pods there may be beyond `replicas`, and how many of `replicas` may be unavailable.
    fn bounds(&self) -> (i32, i32) {
        if self.is_recreate() {
            return (0, 0);
        }
        let rolling = self.spec.strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        let part = |value: Option<_>, round_up| match value {
            Some(value) => scaled(value, self.replicas, round_up).max(0),
            None => scaled(&"25%".to_owned().into_int_or_string(), self.replicas, round_up),
        };
        let surge = part(rolling.and_then(|r| r.max_surge.as_ref()), true);
        let unavailable = part(rolling.and_then(|r| r.max_unavailable.as_ref()), false);
        // Both may come to nothing by rounding, and then nothing could ever move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(self.replicas))
    }
    fn max_surge(&self) -> i32 {
        self.bounds().0
    }
    fn max_unavailable(&self) -> i32 {
        self.bounds().1
    }
    fn is_paused(&self) -> bool {
        self.spec.paused == Some(true)
    }
}

trait IntoIntOrString {
    fn into_int_or_string(self) -> k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
}
impl IntoIntOrString for String {
    fn into_int_or_string(self) -> k8s_openapi::apimachinery::pkg::util::intstr::IntOrString {
        k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String(self)
    }
}

/// How many pods a set asks for.
pub(crate) fn spec_replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// How many of a set's pods are available: no more than it asks for, for it may be about to remove the rest.
pub(crate) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0).min(spec_replicas(set))
}

impl Controller for DeploymentController {
    fn name(&self) -> &'static str {
        "deployment"
    }
    fn event_source(&self) -> &'static str {
        "deployment-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<Deployment>();
        watch::<ReplicaSet, Deployment>(setup, |d: &Deployment, labels: Labels<'_>| {
            d.spec.as_ref().is_some_and(|s| selects(&s.selector, labels))
        });
        // Recreate waits for the last old pod.
        setup.watch::<Pod>(|pod, view| {
            let owner = controller_of::<ReplicaSet>(pod);
            let set = owner.and_then(|o| view.get::<ReplicaSet>(pod.namespace(), &o.name));
            let owner = set.and_then(|s| controller_of::<Deployment>(s.as_ref()));
            let deployment = owner.and_then(|o| view.get::<Deployment>(pod.namespace(), &o.name));
            let recreates = deployment.filter(|d| Wanted::of(d).is_some_and(|w| w.is_recreate()));
            recreates.map(|d| Key::of(d.as_ref())).into_iter().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(deployment) = view.get::<Deployment>(&key.namespace, &key.name) else { return Plan::none() };
        let Some(wanted) = Wanted::of(deployment) else { return Plan::none() };
        if wanted.spec.selector.match_labels.is_none() && wanted.spec.selector.match_expressions.is_none() {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            let event = EventRecord::warning(deployment.as_ref(), "SelectingAll", message);
            return status::write(wanted, &Sets::none(), None, now).event(event);
        }
        if !selects(&wanted.spec.selector, pods::template_labels(&wanted.spec.template)) {
            return Plan::none().event(pods::foreign_template(deployment.as_ref()));
        }
        let chooses = |set: &ReplicaSet| selects(&wanted.spec.selector, set.metadata.labels.as_ref());
        let all = match claim::<Deployment, ReplicaSet>(view, deployment.as_ref(), chooses, |_| true) {
            Claim::Settled(sets) => sets,
            Claim::ToSettle(plan) => return plan,
        };
        let sets = Sets { by_spec: self.by_spec, ..Sets::of(wanted, all) };
        if deployment.is_deleting() {
            return status::write(wanted, &sets, None, now);
        }
        if let Some(plan) = status::note_pause(wanted, &sets, now) {
            return plan;
        }
        if wanted.is_paused() {
            return sync(wanted, &sets, now);
        }
        if let Some(asked) = rollback::asked(wanted) {
            let current = sets::keep_current(wanted, &sets, now);
            return if current.writes.is_empty() { rollback::plan(wanted, &sets, asked) } else { current };
        }
        if scaling::is_asked(wanted, &sets) {
            return sync(wanted, &sets, now);
        }
        rollout::step(wanted, &sets, view, now)
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let is_set =
            matches!(refusal.write, Write::Create { .. }) && *refusal.write.resource() == ReplicaSet::resource();
        let deployment = view.get::<Deployment>(&key.namespace, &key.name).filter(|_| is_set);
        let Some(wanted) = deployment.and_then(|d| Wanted::of(d)) else { return Plan::none() };
        let sets = Sets::of(wanted, controlled::<ReplicaSet>(view, wanted.deployment).cloned().collect());
        status::not_made(wanted, &sets, &refusal.write.key().name, &refusal.error.message, now)
    }
}

/// What is done outside a rollout: the set of the template is kept current if it is there, and replicas are spread.
fn sync(wanted: Wanted<'_>, sets: &Sets, now: Time) -> Plan {
    let plan = sets::keep_current(wanted, sets, now);
    if !plan.writes.is_empty() {
        return plan;
    }
    let plan = scaling::scale(wanted, sets);
    if !plan.writes.is_empty() {
        return sets::resting(wanted, sets, plan);
    }
    let plan = if wanted.is_paused() && rollback::asked(wanted).is_none() {
        sets::clean_up(wanted, sets)
    } else {
        Plan::none()
    };
    plan.then(status::write(wanted, sets, None, now))
}

/// Sets a set's replicas and the annotations that go with them, and tells.
pub(crate) fn resize(wanted: Wanted<'_>, set: &Arc<ReplicaSet>, replicas: i32) -> Plan {
    let from = spec_replicas(set);
    let mut changed = ReplicaSet::clone(set);
    annotations::set_sizes(&mut changed.metadata, wanted);
    changed.spec.get_or_insert_default().replicas = Some(replicas);
    if changed == **set {
        return Plan::none();
    }
    let plan = Plan::none().update(set.as_ref(), &changed);
    if from == replicas {
        return plan;
    }
    let way = if replicas > from { "up" } else { "down" };
    let message = format!("Scaled {way} replica set {} from {from} to {replicas}", set.name());
    plan.told(EventRecord::normal(wanted.deployment, "ScalingReplicaSet", message))
}
