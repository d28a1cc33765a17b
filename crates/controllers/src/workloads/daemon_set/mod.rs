//! Keeps one pod on each node that takes it.
//!
//! ```text
//!   revisions: the template's, made or numbered first
//!     └──▶ place: on each node make what is missing, remove what is too many, has ended, or may not stay
//!            └──▶ update: replace pods of other revisions, within surge or unavailable
//!                   └──▶ old revisions beyond the history go; status
//! ```
//!
//! Behaviour follows kube-controller-manager (pkg/controller/daemon). A pod is tied to its node by affinity, bound by the
//! scheduler, and named after the set's UID, the node and the revision, so that making it twice makes it once.

mod place;
mod status;
#[cfg(test)]
mod tests;
mod update;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Source, Time, View, Write};
use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{Node, Pod};

use super::claim::{Claim, Labels, claim, watch};
use super::scale::scaled;
use super::{pods, revisions};
use revisions::{Found, Revisions};

/// The controller of DaemonSets.
#[derive(Default)]
pub struct DaemonSetController {
    ended: place::Ended,
    /// Sets of which some pod may not go. What there is of these is told first, and then that pod keeps no other.
    held_up: BTreeSet<Key>,
}

/// A DaemonSet with what is known of it.
pub(crate) struct Known<'a> {
    pub set: &'a DaemonSet,
    pub spec: &'a DaemonSetSpec,
    /// The hash of the template's revision.
    pub hash: String,
    /// The pods that count, by the node that they are for.
    pub by_node: BTreeMap<String, Vec<Arc<Pod>>>,
    /// The nodes: whether a pod is to run there, and whether one that does may go on.
    pub nodes: Vec<(Arc<Node>, bool, bool)>,
    pub now: Time,
}

impl Known<'_> {
    /// The pods for a node.
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }
    /// Whether a pod is of the template's revision.
    pub fn is_new(&self, pod: &Pod) -> bool {
        pod.label(revisions::LABEL) == Some(&self.hash)
    }
    pub fn is_available(&self, pod: &Pod) -> bool {
        self.availability(pod).is_ok()
    }
    /// Whether a pod has been ready for long enough; if not, how long it still has to be.
    pub fn availability(&self, pod: &Pod) -> Result<(), Option<Duration>> {
        pods::available(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }
    /// How many nodes are to have a pod.
    pub fn desired(&self) -> i32 {
        i32::try_from(self.nodes.iter().filter(|(_, runs, _)| *runs).count()).unwrap_or(i32::MAX)
    }
    /// How many pods may come beside old ones, and how many nodes may have no available one.
    pub fn bounds(&self) -> (i32, i32) {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return (0, 0);
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let surge = rolling.and_then(|r| r.max_surge.as_ref()).map_or(0, |v| scaled(v, self.desired(), true)).max(0);
        let unavailable =
            rolling.and_then(|r| r.max_unavailable.as_ref()).map_or(1, |v| scaled(v, self.desired(), true)).max(0);
        (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }
    /// Whether a node may have a new pod beside an old one.
    pub fn surges(&self) -> bool {
        self.rolls() && self.bounds().0 > 0
    }
    /// Whether pods of other revisions are replaced.
    pub fn rolls(&self) -> bool {
        self.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref()) != Some("OnDelete")
    }
}

impl Controller for DaemonSetController {
    fn name(&self) -> &'static str {
        "daemonset"
    }
    fn event_source(&self) -> &'static str {
        "daemonset-controller"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<DaemonSet>();
        let chooses =
            |set: &DaemonSet, labels: Labels<'_>| set.spec.as_ref().is_some_and(|s| selects(&s.selector, labels));
        watch::<Pod, DaemonSet>(setup, chooses);
        watch::<ControllerRevision, DaemonSet>(setup, chooses);
        // Every set goes through all nodes.
        setup.keep_open::<Node>();
        // Every set looks at a node that is new, gone, or takes other pods than before.
        setup.watch_changes::<Node>(Source::of::<Node>(), place::is_another, |_, view| {
            view.cache::<DaemonSet>().keys().cloned().collect()
        });
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<DaemonSet>(&key.namespace, &key.name) else {
            self.held_up.remove(key);
            return Plan::none();
        };
        let Some(spec) = set.spec.as_ref() else { return Plan::none() };
        if spec.selector.match_labels.is_none() && spec.selector.match_expressions.is_none() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            return Plan::none().event(EventRecord::warning(set.as_ref(), "SelectingAll", message));
        }
        if set.is_deleting() {
            return Plan::none();
        }
        if !selects(&spec.selector, pods::template_labels(&spec.template)) {
            return Plan::none().event(pods::foreign_template(set.as_ref()));
        }
        let revisions = match revisions_of(view, set, spec) {
            Found::Settled(revisions) => revisions,
            Found::ToSettle(plan) => return plan,
            Found::Collision => return status::collided(set.as_ref()),
        };
        let all = match pods_of(view, set, spec) {
            Claim::Settled(pods) => pods,
            Claim::ToSettle(plan) => return plan,
        };
        let known = known(view, (set.as_ref(), spec), &revisions, &all, now);
        let told = relabelled(&known, &revisions, &all);
        if !told.writes.is_empty() {
            return told;
        }
        let is_held_up = self.held_up.contains(key);
        let told = if is_held_up { status::write(&known) } else { Plan::none() };
        if !told.writes.is_empty() {
            return told;
        }
        let apart = |plan| if is_held_up { deletions_apart(plan) } else { plan };
        let plan = told.then(place::plan(view, &known, &mut self.ended));
        if !plan.writes.is_empty() {
            return apart(plan.resting_on(&Premise::unchanged(set.as_ref())));
        }
        let update = if known.rolls() { update::plan(view, &known) } else { Plan::none() };
        if !update.writes.is_empty() {
            return apart(update.resting_on(&Premise::unchanged(set.as_ref())));
        }
        self.held_up.remove(key);
        let in_use = |r: &ControllerRevision| {
            r.uid() == revisions.current.uid()
                || all.iter().any(|p| p.label(revisions::LABEL) == Some(revisions::hash(r)))
        };
        let keep = spec.revision_history_limit.unwrap_or(10);
        plan.then(update).then(revisions::clean_up(&revisions.all, keep, in_use)).then(status::write(&known))
    }
    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(set) = view.get::<DaemonSet>(&key.namespace, &key.name) else { return Plan::none() };
        let (reason, doing) = match refusal.write {
            Write::Create { .. } => ("FailedCreate", "creating"),
            Write::Delete { .. } => ("FailedDelete", "deleting"),
            _ => return Plan::none(),
        };
        if matches!(refusal.write, Write::Delete { .. }) {
            self.held_up.insert(key.clone());
        }
        let message = format!("Error {doing}: {}", refusal.error.message);
        as_it_is(view, set, now).event(EventRecord::warning(set.as_ref(), reason, message))
    }
}

/// Pods of other revisions that hold the same template are of this one. They are told so, and not replaced: somebody made such a
/// revision by hand, or brought it back (upstream's `dedupCurHistories` in pkg/controller/daemon, which removes the others, too).
fn relabelled(known: &Known<'_>, revisions: &Revisions, all: &[Arc<Pod>]) -> Plan {
    let old: Vec<&Arc<Pod>> = all.iter().filter(|pod| pods::active(pod) && !known.is_new(pod)).collect();
    if old.is_empty() {
        return Plan::none();
    }
    let twins = revisions.twins(&known.spec.template).map(|twin| revisions::hash(twin));
    let twins: Vec<&str> = twins.filter(|hash| !hash.is_empty()).collect();
    let of_twin = |pod: &Pod| pod.label(revisions::LABEL).is_some_and(|hash| twins.contains(&hash));
    let mut patch = serde_json::json!({});
    patch["metadata"]["labels"][revisions::LABEL] = known.hash.clone().into();
    old.into_iter()
        .filter(|pod| of_twin(pod))
        .fold(Plan::none(), |plan, pod| plan.patch(pod.as_ref(), patch.clone()))
        .each_apart()
}

/// The same plan, in which a deletion that is refused ends nothing else. A pod that may not be made ends it: the server would not
/// take the others either.
fn deletions_apart(mut plan: Plan) -> Plan {
    let all = plan.writes.iter().enumerate();
    plan.apart.extend(all.filter(|(_, write)| matches!(write, Write::Delete { .. })).map(|(number, _)| number));
    plan
}

/// The revisions of a set, and which of them is its template's.
fn revisions_of(view: &View<'_>, set: &DaemonSet, spec: &DaemonSetSpec) -> Found {
    let collisions = set.status.as_ref().and_then(|s| s.collision_count);
    revisions::find(view, set, &spec.selector, &spec.template, collisions, revisions::LABEL)
}

/// The pods of a set.
fn pods_of(view: &View<'_>, set: &DaemonSet, spec: &DaemonSetSpec) -> Claim<Pod> {
    let chooses = |pod: &Pod| selects(&spec.selector, pod.metadata.labels.as_ref());
    claim::<DaemonSet, Pod>(view, set, chooses, |_| true)
}

/// Puts together what is known.
fn known<'a>(
    view: &View<'_>,
    (set, spec): (&'a DaemonSet, &'a DaemonSetSpec),
    revisions: &Revisions,
    all: &[Arc<Pod>],
    now: Time,
) -> Known<'a> {
    let mut by_node: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
    // One that has ended and only waits to be removed is none any more, whoever keeps it. One for no certain node is none yet: it
    // may be somebody else's that was adopted before it was bound (`getNodesToDaemonPods`).
    for pod in all.iter().filter(|pod| !(pod.is_deleting() && pods::terminal(pod))) {
        let node = place::target(pod);
        if !node.is_empty() {
            by_node.entry(node).or_default().push(pod.clone());
        }
    }
    let model = place::model(set, spec);
    let nodes = view.cache::<Node>().iter().map(|node| {
        let (runs, stays) = place::suits(&model, node);
        (node.clone(), runs, stays)
    });
    Known { set, spec, hash: revisions::hash(&revisions.current).to_owned(), by_node, nodes: nodes.collect(), now }
}

/// The status of a set whose pods cannot be made or removed as it asks: while that is so, nobody else would write it.
fn as_it_is(view: &View<'_>, set: &DaemonSet, now: Time) -> Plan {
    let Some(spec) = set.spec.as_ref() else { return Plan::none() };
    let (Found::Settled(revisions), Claim::Settled(all)) = (revisions_of(view, set, spec), pods_of(view, set, spec))
    else {
        return Plan::none();
    };
    status::write(&known(view, (set, spec), &revisions, &all, now))
}
