//! Old forms of a template, kept as ControllerRevisions, for StatefulSets and DaemonSets.
//!
//! A revision holds the patch that gives an object its template back; `kubectl rollout undo` sends it as it is. Follows
//! upstream's pkg/controller/history.

use std::sync::Arc;

use carrack_engine::{Plan, View, controller_ref};
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use super::claim::{Claim, claim};
use super::names;
use super::templates::same_template;
use carrack_types::selector::selects;

/// The label with the name or the hash of the revision that a pod is of. A DaemonSet's revisions bear it, too.
pub(crate) const LABEL: &str = "controller-revision-hash";
/// The label of a StatefulSet's revisions with their hash.
pub(crate) const HASH: &str = "controller.kubernetes.io/hash";

/// The patch of a template.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// Revisions of an owner, and which of them is the template's.
pub(crate) struct Revisions {
    /// All, the lowest number first.
    pub all: Vec<Arc<ControllerRevision>>,
    /// The template's.
    pub current: Arc<ControllerRevision>,
}

impl Revisions {
    /// The others that hold this template, which is the current one's.
    pub(crate) fn twins(&self, template: &PodTemplateSpec) -> impl Iterator<Item = &Arc<ControllerRevision>> {
        let data = data(template);
        self.all.iter().filter(move |r| r.name() != self.current.name() && holds(r, &data, template))
    }
}

/// What is to be done first, or the revisions.
pub(crate) enum Found {
    Settled(Revisions),
    ToSettle(Plan),
    /// The name of the template's revision is taken by another one: the count of collisions goes up.
    Collision,
}

/// Finds the revision of a template, or plans to make it, with its hash in this label, or to number it as the newest.
pub(crate) fn find<O: Kind>(
    view: &View<'_>,
    owner: &O,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    collisions: Option<i32>,
    hash_label: &str,
) -> Found {
    let chooses = |r: &ControllerRevision| selects(selector, r.metadata.labels.as_ref());
    let mut all = match claim::<O, ControllerRevision>(view, owner, chooses, |_| true) {
        Claim::Settled(all) => all,
        Claim::ToSettle(plan) => return Found::ToSettle(plan),
    };
    all.sort_by(|a, b| a.revision.cmp(&b.revision).then_with(|| a.name().cmp(b.name())));
    let data = data(template);
    let next = all.last().map_or(0, |r| r.revision).saturating_add(1);
    let found = all.iter().rev().find(|r| holds(r, &data, template)).cloned();
    if let Some(current) = found {
        if current.revision.saturating_add(1) < next {
            // The template went back to an older form, which is the newest from now on.
            let renumbered = ControllerRevision { revision: next, ..ControllerRevision::clone(&current) };
            return Found::ToSettle(Plan::none().update(current.as_ref(), &renumbered));
        }
        return Found::Settled(Revisions { all, current });
    }
    let hash = names::hash(&data, collisions);
    let name = format!("{}-{hash}", owner.name());
    if view.get::<ControllerRevision>(owner.namespace(), &name).is_some() {
        return Found::Collision;
    }
    let mut labels = template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
    labels.insert(hash_label.to_owned(), hash);
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            namespace: owner.meta().namespace.clone(),
            name: Some(name),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![controller_ref(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: next,
    };
    Found::ToSettle(Plan::none().create(&revision))
}

/// The hash in a revision's label.
pub(crate) fn hash(revision: &ControllerRevision) -> &str {
    revision.label(LABEL).unwrap_or_default()
}

/// The template of a revision.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.pointer("/spec/template")?;
    serde_json::from_value(template.clone()).ok()
}

/// Whether a revision holds a template, whose patch this is. Other versions of other controllers write the same template in another
/// form, with nulls that this one leaves out.
fn holds(revision: &ControllerRevision, data: &Value, wanted: &PodTemplateSpec) -> bool {
    revision.data.as_ref().is_some_and(|d| d.0 == *data)
        || template(revision).is_some_and(|t| same_template(&t, wanted))
}

/// Removes revisions beyond the history that is kept; `in_use` says which have to stay besides.
pub(crate) fn clean_up(
    all: &[Arc<ControllerRevision>],
    keep: i32,
    in_use: impl Fn(&ControllerRevision) -> bool,
) -> Plan {
    let old: Vec<_> = all.iter().filter(|r| !in_use(r)).collect();
    let excess = old.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    old.into_iter().take(excess).fold(Plan::none(), |plan, r| plan.delete(r.as_ref()))
}
