//! Which ReplicaSet is the template's, which are old, and which of those may go.

use std::sync::Arc;

use carrack_engine::{EventRecord, Plan, Premise, Time, View, Write, controller_ref};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::super::names;
pub(crate) use super::super::templates::same_template;
use super::{Wanted, annotations, spec_replicas, status};

/// How many other sets a write rests on at most. A rollout has two at a time, and few more when it is changed on its way.
const MOST_PREMISES: usize = 50;

/// Label that tells the pods of one template from those of another.
pub(crate) const HASH: &str = "pod-template-hash";

/// The ReplicaSets of a Deployment.
pub(crate) struct Sets {
    /// The set of the template.
    pub new: Option<Arc<ReplicaSet>>,
    /// The others, the oldest first.
    pub old: Vec<Arc<ReplicaSet>>,
    /// A planted bug: what the sets say of their pods is not looked at.
    pub by_spec: bool,
}

/// A template without the label that its hash is in.
pub(crate) fn bare(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH);
    }
    template
}

fn age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, &str) {
    (set.metadata.creation_timestamp.as_ref().map(|t| t.0), set.name())
}

impl Sets {
    pub(crate) fn none() -> Self {
        Self { new: None, old: Vec::new(), by_spec: false }
    }
    /// Sorts the sets. Of several of the same template the oldest is the template's.
    pub(crate) fn of(wanted: Wanted<'_>, mut all: Vec<Arc<ReplicaSet>>) -> Self {
        all.sort_by(|a, b| age(a).cmp(&age(b)));
        let template = bare(&wanted.spec.template);
        let is_new = |set: &Arc<ReplicaSet>| {
            set.spec.as_ref().and_then(|s| s.template.as_ref()).is_some_and(|t| same_template(&bare(t), &template))
        };
        let new = all.iter().position(is_new).map(|at| all.remove(at));
        Self { new, old: all, by_spec: false }
    }
    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<&Arc<ReplicaSet>> {
        let mut all: Vec<_> = self.old.iter().chain(&self.new).collect();
        all.sort_by(|a, b| age(a).cmp(&age(b)));
        all
    }
    /// How many pods they ask for.
    pub(crate) fn spec_total(&self) -> i32 {
        self.all().iter().map(|s| spec_replicas(s)).fold(0, i32::saturating_add)
    }
    /// The most pods that count as replicas now or soon.
    pub(crate) fn most(&self) -> i32 {
        if self.by_spec {
            return self.spec_total();
        }
        let most = |s: &Arc<ReplicaSet>| spec_replicas(s).max(s.status.as_ref().map_or(0, |s| s.replicas));
        self.all().into_iter().map(most).fold(0, i32::saturating_add)
    }
    /// Whether each has seen its latest spec. What one that has not may have made since is not known.
    pub(crate) fn are_current(&self) -> bool {
        self.by_spec || self.all().iter().all(|set| is_current(set))
    }
    fn next_revision(&self) -> i64 {
        self.old.iter().map(|s| annotations::revision(&s.metadata)).max().unwrap_or(0).saturating_add(1)
    }
}

/// Whether a set has seen its latest spec.
pub(crate) fn is_current(set: &ReplicaSet) -> bool {
    let seen = set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
    seen >= set.metadata.generation.unwrap_or(0)
}

/// Brings the template's set and the Deployment's own revision up to date. Plans nothing when they are.
pub(crate) fn keep_current(wanted: Wanted<'_>, sets: &Sets, _now: Time) -> Plan {
    let Some(new) = &sets.new else { return Plan::none() };
    let mut plan = Plan::none();
    let mut set = ReplicaSet::clone(new);
    annotations::follow(&mut set.metadata, &wanted.deployment.metadata, sets.next_revision());
    if let Some(spec) = &mut set.spec
        && spec.min_ready_seconds.unwrap_or(0) != wanted.spec.min_ready_seconds.unwrap_or(0)
    {
        spec.min_ready_seconds = wanted.spec.min_ready_seconds;
    }
    if set != **new {
        plan = plan.update(new.as_ref(), &set);
    }
    let revision = annotations::revision(&set.metadata);
    if annotations::number(&wanted.deployment.metadata, annotations::REVISION) != Some(revision) {
        let mut deployment = wanted.deployment.clone();
        let own = deployment.metadata.annotations.get_or_insert_default();
        own.insert(annotations::REVISION.to_owned(), revision.to_string());
        plan = plan.update(wanted.deployment, &deployment);
    }
    plan
}

/// Makes the set of the template, with so many replicas.
pub(crate) fn make(wanted: Wanted<'_>, sets: &Sets, view: &View<'_>, replicas: i32, now: Time) -> Plan {
    let deployment = wanted.deployment;
    let collisions = deployment.status.as_ref().and_then(|s| s.collision_count);
    let hash = names::hash(&wanted.spec.template, collisions);
    let name = format!("{}-{hash}", deployment.name());
    if view.get::<ReplicaSet>(deployment.namespace(), &name).is_some() {
        // Another template has this hash, or somebody else has the name.
        return status::write(wanted, sets, Some(collisions.unwrap_or(0).saturating_add(1)), now);
    }
    let mut template = wanted.spec.template.clone();
    template.metadata.get_or_insert_default().labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
    let mut selector = wanted.spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash);
    let set = ReplicaSet {
        metadata: ObjectMeta {
            namespace: deployment.metadata.namespace.clone(),
            name: Some(name.clone()),
            labels: template.metadata.as_ref().and_then(|m| m.labels.clone()),
            annotations: Some(annotations::of_new(wanted, sets.next_revision())),
            owner_references: Some(vec![controller_ref(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: wanted.spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    let plan = Plan::none().create(&set);
    if replicas == 0 {
        return plan;
    }
    let message = format!("Scaled up replica set {name} from 0 to {replicas}");
    plan.told(EventRecord::normal(deployment, "ScalingReplicaSet", message))
}

/// The writes of a step rest on the Deployment as it was read, and on the sizes of its other sets. So of two steps that were
/// decided on the same state one is taken, whoever decided them and however late one arrives; and a set that is made for a
/// template that the Deployment does not have any more does not come into being.
pub(crate) fn resting(wanted: Wanted<'_>, sets: &Sets, mut plan: Plan) -> Plan {
    let mut active: Vec<ReplicaSet> = sets.all().into_iter().filter(|s| spec_replicas(s) > 0).map(sized).collect();
    let deployment = Premise::unchanged(wanted.deployment);
    for (number, write) in plan.writes.iter().enumerate() {
        plan.premises.push((number, deployment.clone()));
        let name = write.key().name;
        let others = active.iter().filter(|s| s.name() != name).take(MOST_PREMISES);
        plan.premises.extend(others.map(|s| (number, Premise::same_spec(s))));
        let Write::Update { object, .. } = write else { continue };
        if let Some(set) = active.iter_mut().find(|s| s.name() == name)
            && object["spec"]["replicas"].as_i64() != Some(i64::from(spec_replicas(set)))
        {
            // What the next writes find once this one is made.
            set.metadata.generation = set.metadata.generation.map(|g| g + 1);
        }
    }
    plan
}

/// What of a set its size follows from.
fn sized(set: &Arc<ReplicaSet>) -> ReplicaSet {
    let spec = ReplicaSetSpec { replicas: Some(spec_replicas(set)), ..ReplicaSetSpec::default() };
    ReplicaSet { metadata: set.metadata.clone(), spec: Some(spec), status: None }
}

/// Removes old sets without pods, beyond the history that is kept. One that may not go keeps nothing from being told.
pub(crate) fn clean_up(wanted: Wanted<'_>, sets: &Sets) -> Plan {
    let keep = usize::try_from(wanted.spec.revision_history_limit.unwrap_or(10)).unwrap_or(usize::MAX);
    let mut old: Vec<&Arc<ReplicaSet>> = sets.old.iter().filter(|s| !s.is_deleting()).collect();
    let excess = old.len().saturating_sub(keep);
    old.sort_by(|a, b| {
        let key = |s: &ReplicaSet| annotations::revision(&s.metadata);
        key(a).cmp(&key(b)).then_with(|| age(a).cmp(&age(b)))
    });
    old.into_iter()
        .take(excess)
        .filter(|set| {
            let status = set.status.clone().unwrap_or_default();
            spec_replicas(set) == 0
                && status.replicas == 0
                && set.metadata.generation.unwrap_or(0) <= status.observed_generation.unwrap_or(0)
        })
        .fold(Plan::none(), |plan, set| plan.delete(set.as_ref()))
        .each_apart()
}
