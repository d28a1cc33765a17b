//! Keeps pods of stable names, one for each ordinal, with claims of their own.
//!
//! ```text
//!   revisions ──▶ scale: for each ordinal in order a pod that is there, whole and ready; those beyond the last one go
//!                   └──▶ update: from the last one down, pods of other revisions go, to be made again
//!                          └──▶ old revisions beyond the history go; status
//! ```
//!
//! Behaviour follows kube-controller-manager (pkg/controller/statefulset). A pod's name is its set's and its ordinal, so a pod
//! that is gone has to be gone for good before its successor can be made: the API server sees to that.

mod claims;
mod identity;
mod scale;
mod status;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::selector::selects;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

use super::claim::{Claim, Labels, claim, controller_of, watch};
use super::{pods, revisions};
use revisions::{Found, Revisions};

/// The controller of StatefulSets.
#[derive(Default)]
pub struct StatefulSetController {
    /// A planted bug: claims go by scaling whatever the policy says.
    pub(crate) claims_go: bool,
}

/// A StatefulSet with what is known of it.
pub(crate) struct Known<'a> {
    pub set: &'a StatefulSet,
    pub spec: &'a StatefulSetSpec,
    /// The pods by ordinal.
    pub pods: BTreeMap<i64, Arc<Pod>>,
    /// The revision that pods are updated to.
    pub update: Arc<ControllerRevision>,
    /// The revision that pods were of before; the same when no update is under way.
    pub current: Arc<ControllerRevision>,
    pub now: Time,
    /// A planted bug.
    pub claims_go: bool,
}

impl Known<'_> {
    pub fn replicas(&self) -> i64 {
        i64::from(self.spec.replicas.unwrap_or(1).max(0))
    }
    pub fn start(&self) -> i64 {
        i64::from(self.spec.ordinals.as_ref().and_then(|o| o.start).unwrap_or(0))
    }
    /// The ordinals that are to have a pod.
    pub fn ordinals(&self) -> std::ops::Range<i64> {
        self.start()..self.start().saturating_add(self.replicas())
    }
    pub fn is_ordered(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }
    pub fn rolls(&self) -> bool {
        self.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()) != Some("OnDelete")
    }
    /// The first ordinal that is updated.
    pub fn partition(&self) -> i64 {
        let rolling = self.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
        i64::from(rolling.and_then(|r| r.partition).unwrap_or(0)).max(0) + self.start()
    }
    pub fn is_new(&self, pod: &Pod) -> bool {
        pod.label(revisions::LABEL) == Some(self.update.name())
    }
    pub fn is_current(&self, pod: &Pod) -> bool {
        pod.label(revisions::LABEL) == Some(self.current.name())
    }
    /// Whether it runs and is available; if not, how long it takes if nothing happens to it.
    pub fn healthy(&self, pod: &Pod) -> Result<(), Option<Duration>> {
        if pod.is_deleting() || pods::phase(pod) != "Running" {
            return Err(None);
        }
        pods::available(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }
}

impl Controller for StatefulSetController {
    fn name(&self) -> &'static str {
        "statefulset"
    }
    fn event_source(&self) -> &'static str {
        "statefulset-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<StatefulSet>();
        let chooses =
            |set: &StatefulSet, labels: Labels<'_>| set.spec.as_ref().is_some_and(|s| selects(&s.selector, labels));
        watch::<Pod, StatefulSet>(setup, chooses);
        watch::<ControllerRevision, StatefulSet>(setup, chooses);
        // A claim that is being deleted holds its pod up.
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let owner = controller_of::<StatefulSet>(claim).map(|o| Key::new(claim.namespace(), o.name.clone()));
            let sets = view.cache::<StatefulSet>().in_namespace(claim.namespace());
            let named = sets.filter(|s| claims::belongs(s, claim.name())).map(|s| Key::of(s.as_ref()));
            owner.into_iter().chain(named).collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<StatefulSet>(&key.namespace, &key.name) else { return Plan::none() };
        let Some(spec) = set.spec.as_ref() else { return Plan::none() };
        if !selects(&spec.selector, pods::template_labels(&spec.template)) {
            return Plan::none().event(pods::foreign_template(set.as_ref()));
        }
        let revisions = match revisions_of(view, set, spec) {
            Found::Settled(revisions) => revisions,
            Found::ToSettle(plan) => return plan,
            Found::Collision => return status::collided(set),
        };
        let all = match pods_of(view, set, spec) {
            Claim::Settled(pods) => pods,
            Claim::ToSettle(plan) => return plan,
        };
        let known = Known { claims_go: self.claims_go, ..known(set, spec, &revisions, all, now) };
        if set.is_deleting() {
            return status::write(&known);
        }
        let mut plan = scale::plan(view, &known);
        if plan.writes.is_empty() && !plan.waits {
            let update = update::plan(&known);
            plan.plan = plan.plan.then(update);
        }
        let plan = plan.plan;
        if !plan.writes.is_empty() {
            return plan.resting_on(&Premise::unchanged(set.as_ref()));
        }
        let in_use = |r: &ControllerRevision| {
            [&known.update, &known.current].iter().any(|live| live.uid() == r.uid())
                || known.pods.values().any(|p| p.label(revisions::LABEL) == Some(r.name()))
        };
        let keep = spec.revision_history_limit.unwrap_or(10);
        plan.then(revisions::clean_up(&revisions.all, keep, in_use)).then(status::write(&known))
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<StatefulSet>(&key.namespace, &key.name) else { return Plan::none() };
        let (reason, doing) = match refusal.write {
            Write::Create { .. } => ("FailedCreate", "create"),
            Write::Delete { .. } => ("FailedDelete", "delete"),
            Write::Update { .. } | Write::Patch { .. } => ("FailedUpdate", "update"),
            _ => return Plan::none(),
        };
        let (kind, name) = (&refusal.write.resource().kind, refusal.write.key().name);
        let what = match (kind.as_ref(), name.rsplit_once('-')) {
            ("PersistentVolumeClaim", Some((_, ordinal))) => format!("Claim {name} for Pod {}-{ordinal}", set.name()),
            _ => format!("{kind} {name}"),
        };
        let message = format!("{doing} {what} in StatefulSet {} failed error: {}", set.name(), refusal.error.message);
        // What it says of itself was refused just now.
        let is_own = *refusal.write.resource() == StatefulSet::resource();
        let plan = if is_own { Plan::none() } else { as_it_is(view, set, now) };
        plan.event(EventRecord::warning(set.as_ref(), reason, message))
    }
}

/// The revisions of a set, and which of them is its template's.
fn revisions_of(view: &View<'_>, set: &StatefulSet, spec: &StatefulSetSpec) -> Found {
    let collisions = set.status.as_ref().and_then(|s| s.collision_count);
    revisions::find(view, set, &spec.selector, &spec.template, collisions, revisions::HASH)
}

/// The pods of a set.
fn pods_of(view: &View<'_>, set: &StatefulSet, spec: &StatefulSetSpec) -> Claim<Pod> {
    let chooses =
        |pod: &Pod| selects(&spec.selector, pod.metadata.labels.as_ref()) && identity::ordinal(set, pod).is_some();
    claim::<StatefulSet, Pod>(view, set, chooses, |_| true)
}

/// The status of a set whose pods cannot be made or removed as it asks: while that is so, nobody else would write it.
fn as_it_is(view: &View<'_>, set: &StatefulSet, now: Time) -> Plan {
    let Some(spec) = set.spec.as_ref() else { return Plan::none() };
    let (Found::Settled(revisions), Claim::Settled(all)) = (revisions_of(view, set, spec), pods_of(view, set, spec))
    else {
        return Plan::none();
    };
    status::write(&known(set, spec, &revisions, all, now))
}

/// Puts together what is known. Of the pods, those of ordinals of this set.
fn known<'a>(
    set: &'a StatefulSet,
    spec: &'a StatefulSetSpec,
    revisions: &Revisions,
    all: Vec<Arc<Pod>>,
    now: Time,
) -> Known<'a> {
    let named = set.status.as_ref().and_then(|s| s.current_revision.as_deref()).unwrap_or_default();
    let current = revisions.all.iter().find(|r| r.name() == named).unwrap_or(&revisions.current).clone();
    let pods = all.into_iter().filter_map(|p| Some((identity::ordinal(set, &p)?, p))).collect();
    Known { set, spec, pods, update: revisions.current.clone(), current, now, claims_go: false }
}
