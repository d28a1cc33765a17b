//! Keeps a number of pods: ReplicaSets, and ReplicationControllers by the same means.
//!
//! Behaviour follows kube-controller-manager (pkg/controller/replicaset). The pods of a set are named after its UID and a
//! number, so that making one twice makes one.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write};
use carrack_types::resource::{Kind, Object as _};
use carrack_types::selector::{map_selects, selects};
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};

use super::claim::{Claim, Labels, claim, controlled, watch};
use super::{BURST, conditions, names, pods};

/// The controller of ReplicaSets.
pub type ReplicaSets = ReplicaController<ReplicaSet>;
/// The controller of ReplicationControllers.
pub type ReplicationControllers = ReplicaController<ReplicationController>;

const FAILURE: &str = "ReplicaFailure";

/// A kind that keeps a number of pods.
pub trait Replicated: Kind {
    /// The controller's name.
    const CONTROLLER: &'static str;
    /// The component that its events are from.
    const EVENT_SOURCE: &'static str;
    /// How many pods there are to be.
    fn replicas(&self) -> i32;
    /// How many seconds a pod has to be ready to be available.
    fn min_ready_s(&self) -> i32;
    /// What its pods are like.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Whether its selector chooses these labels.
    fn chooses(&self, labels: Option<&BTreeMap<String, String>>) -> bool;
    /// Its status.
    fn read_status(&self) -> ReplicaSetStatus;
    /// The same object with another status.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset";
    const EVENT_SOURCE: &'static str = "replicaset-controller";
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }
    fn min_ready_s(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
    fn chooses(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.spec.as_ref().is_some_and(|s| selects(&s.selector, labels))
    }
    fn read_status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }
    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        Self { status: Some(status), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller";
    const EVENT_SOURCE: &'static str = "replication-controller";
    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }
    fn min_ready_s(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
    fn chooses(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        map_selects(self.spec.as_ref().and_then(|s| s.selector.as_ref()), labels)
    }
    fn read_status(&self) -> ReplicaSetStatus {
        let old = self.status.clone().unwrap_or_default();
        let conditions = old.conditions.map(|list| {
            let convert = |c: ReplicationControllerCondition| ReplicaSetCondition {
                type_: c.type_,
                status: c.status,
                reason: c.reason,
                message: c.message,
                last_transition_time: c.last_transition_time,
            };
            list.into_iter().map(convert).collect()
        });
        ReplicaSetStatus {
            replicas: old.replicas,
            fully_labeled_replicas: old.fully_labeled_replicas,
            ready_replicas: old.ready_replicas,
            available_replicas: old.available_replicas,
            observed_generation: old.observed_generation,
            conditions,
            terminating_replicas: None,
        }
    }
    fn with_status(&self, new: ReplicaSetStatus) -> Self {
        let conditions = new.conditions.map(|list| {
            let convert = |c: ReplicaSetCondition| ReplicationControllerCondition {
                type_: c.type_,
                status: c.status,
                reason: c.reason,
                message: c.message,
                last_transition_time: c.last_transition_time,
            };
            list.into_iter().map(convert).collect()
        });
        let status = ReplicationControllerStatus {
            replicas: new.replicas,
            fully_labeled_replicas: new.fully_labeled_replicas,
            ready_replicas: new.ready_replicas,
            available_replicas: new.available_replicas,
            observed_generation: new.observed_generation,
            conditions,
        };
        Self { status: Some(status), ..self.clone() }
    }
}

/// Keeps as many pods as a set asks for.
pub struct ReplicaController<K>(PhantomData<fn() -> K>);

impl<K> Default for ReplicaController<K> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<K: Replicated> Controller for ReplicaController<K> {
    fn name(&self) -> &'static str {
        K::CONTROLLER
    }
    fn event_source(&self) -> &'static str {
        K::EVENT_SOURCE
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<K>();
        watch::<Pod, K>(setup, |set: &K, labels: Labels<'_>| set.chooses(labels));
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<K>(&key.namespace, &key.name) else { return Plan::none() };
        let chooses = |pod: &Pod| set.chooses(pod.metadata.labels.as_ref());
        let pods = match claim(view, set.as_ref(), chooses, pods::active) {
            Claim::Settled(pods) => pods,
            Claim::ToSettle(plan) => return plan,
        };
        let active: Vec<_> = pods.iter().filter(|p| pods::active(p)).cloned().collect();
        let wanted = usize::try_from(set.replicas()).unwrap_or(0);
        if set.is_deleting() || active.len() == wanted {
            return write_status(set.as_ref(), &pods, None, now);
        }
        if active.len() > wanted {
            return remove(view, set.as_ref(), (&pods, &active), active.len() - wanted, now);
        }
        make(view, set.as_ref(), &pods, wanted - active.len(), now)
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<K>(&key.namespace, &key.name) else { return Plan::none() };
        let (reason, doing) = match refusal.write {
            Write::Create { .. } => ("FailedCreate", "creating"),
            Write::Delete { .. } => ("FailedDelete", "deleting"),
            _ => return Plan::none(),
        };
        let message = refusal.error.message.clone();
        let event = EventRecord::warning(set.as_ref(), reason, format!("Error {doing}: {message}"));
        let pods: Vec<_> = controlled::<Pod>(view, set.as_ref()).cloned().collect();
        write_status(set.as_ref(), &pods, Some((reason, message)), now).event(event)
    }
}

/// Makes pods that are missing.
fn make<K: Replicated>(view: &View<'_>, set: &K, all: &[Arc<Pod>], missing: usize, now: Time) -> Plan {
    let Some(template) = set.template() else { return write_status(set, all, None, now) };
    if !set.chooses(pods::template_labels(template)) {
        // Admission refuses this; what was stored before would make pods without end that do not belong to the set.
        let failure = Some(("FailedCreate", pods::FOREIGN_TEMPLATE.to_owned()));
        return write_status(set, all, failure, now).event(pods::foreign_template(set));
    }
    let free = names::free::<Pod>(view, (set.namespace(), set.name()), set.uid(), "replica");
    let plan = free.take(missing.min(BURST)).fold(Plan::none(), |plan, name| {
        let told = EventRecord::normal(set, "SuccessfulCreate", format!("Created pod: {name}"));
        plan.create(&pods::from_template(set, template, name)).told(told)
    });
    plan.resting_on(&Premise::unchanged(set))
}

/// Removes the least useful pods. Where one may not go, that is told first, and then the others go without it.
fn remove<K: Replicated>(
    view: &View<'_>,
    set: &K,
    (all, active): (&[Arc<Pod>], &[Arc<Pod>]),
    excess: usize,
    now: Time,
) -> Plan {
    let said = set.read_status().conditions;
    let refused = conditions::find(said.as_ref(), FAILURE).filter(|c| c.reason.as_deref() == Some("FailedDelete"));
    if let Some(refused) = refused {
        let why = refused.message.clone().unwrap_or_default();
        let status = write_status(set, all, Some(("FailedDelete", why)), now);
        if !status.writes.is_empty() {
            return status;
        }
    }
    let company = company(view, set, active);
    let mut order: Vec<&Arc<Pod>> = active.iter().collect();
    order.sort_by(|a, b| pods::goes_before(a, b, &company, now));
    let plan = order.into_iter().take(excess.min(BURST)).fold(Plan::none(), |plan, pod| {
        let told = EventRecord::normal(set, "SuccessfulDelete", format!("Deleted pod: {}", pod.name()));
        // Which ones go rests on how each of them is: one that has become ready since is chosen anew. (Upstream's goes.)
        plan.delete_unchanged(pod.as_ref()).told(told)
    });
    let plan = plan.resting_on(&Premise::unchanged(set));
    if refused.is_some() { plan.each_apart() } else { plan }
}

/// How many active pods of this set, and of the other sets of its own controller, are on each node.
fn company<K: Replicated>(view: &View<'_>, set: &K, active: &[Arc<Pod>]) -> BTreeMap<String, usize> {
    let mut on_node = BTreeMap::new();
    let mut count = |pod: &Pod| *on_node.entry(pods::node(pod).to_owned()).or_default() += 1;
    match set.controller_uid() {
        Some(uid) => {
            let related = view.cache::<K>().by_owner(uid).filter(|s| s.controller_uid() == Some(uid));
            related
                .for_each(|s| controlled::<Pod>(view, s.as_ref()).filter(|p| pods::active(p)).for_each(|p| count(p)));
        }
        None => active.iter().for_each(|p| count(p)),
    }
    on_node
}

/// Writes the status, if it is another one, and looks again when a pod becomes available by the passing of time.
fn write_status<K: Replicated>(set: &K, pods: &[Arc<Pod>], failure: Option<(&str, String)>, now: Time) -> Plan {
    let old = set.read_status();
    let active: Vec<&Arc<Pod>> = pods.iter().filter(|p| pods::active(p)).collect();
    let count = |holds: &dyn Fn(&Pod) -> bool| -> i32 {
        i32::try_from(active.iter().filter(|p| holds(p)).count()).unwrap_or(i32::MAX)
    };
    let some = |n: i32| (n > 0).then_some(n);
    let fits = |pod: &Pod| {
        let wanted = set.template().and_then(pods::template_labels);
        map_selects(wanted, pod.metadata.labels.as_ref())
    };
    let terminating = pods.iter().filter(|p| p.is_deleting() && !pods::terminal(p)).count();
    let mut plan = Plan::none();
    for pod in &active {
        if let Err(Some(left)) = pods::available(pod, set.min_ready_s(), now) {
            plan = plan.requeue_after(left);
        }
    }
    let mut conditions = old.conditions.clone();
    match failure {
        Some((reason, message)) => {
            conditions::set(&mut conditions, conditions::Condition::new(FAILURE, "True", reason, message, now));
        }
        None => conditions::remove(&mut conditions, FAILURE),
    }
    let new = ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: some(count(&fits)),
        ready_replicas: some(count(&pods::ready)),
        available_replicas: some(count(&|p| pods::available(p, set.min_ready_s(), now).is_ok())),
        terminating_replicas: i32::try_from(terminating).ok(),
        observed_generation: set.meta().generation,
        conditions,
    };
    let new = set.with_status(new);
    if new.read_status() == old { plan } else { plan.update_status(set, &new) }
}
