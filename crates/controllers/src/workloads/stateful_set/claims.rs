//! Claims of a StatefulSet's pods: made from templates, kept or deleted as its retention policy says.

use carrack_engine::{EventRecord, Plan, View, controller_ref};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{Known, identity};

/// The name of an ordinal's claim.
pub(super) fn name(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i64) -> String {
    format!("{}-{}-{ordinal}", template.name(), set.name())
}

/// Whether a claim's name is one of this set.
pub(super) fn belongs(set: &StatefulSet, claim: &str) -> bool {
    let templates = set.spec.iter().flat_map(|s| s.volume_claim_templates.iter().flatten());
    templates.into_iter().any(|t| {
        let rest = claim.strip_prefix(&format!("{}-{}-", t.name(), set.name()));
        rest.is_some_and(|digits| digits.parse::<u32>().is_ok())
    })
}

fn policy<'a>(known: &'a Known<'_>) -> (&'a str, &'a str) {
    let policy = known.spec.persistent_volume_claim_retention_policy.as_ref();
    let word = |w: Option<&'a String>| w.map_or("Retain", String::as_str);
    let scaled = if known.claims_go { "Delete" } else { word(policy.and_then(|p| p.when_scaled.as_ref())) };
    (word(policy.and_then(|p| p.when_deleted.as_ref())), scaled)
}

/// Whether a claim was to go with a pod of this name that is gone: the garbage collector takes it away (upstream's
/// `isClaimOwnerUpToDate` and `hasStaleOwner`, pkg/controller/statefulset).
fn went_with(claim: &PersistentVolumeClaim, name: &str, pod: Option<&Pod>) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|r| r.kind == "Pod" && r.name == name && pod.is_none_or(|pod| pod.uid() != r.uid))
}

/// The claims that an ordinal's pod lacks; none while one is being deleted or about to be, for then the pod has to wait.
pub(super) fn missing(view: &View<'_>, known: &Known<'_>, ordinal: i64) -> Option<Plan> {
    let mut plan = Plan::none();
    let pod = known.pods.get(&ordinal).map(AsRef::as_ref);
    for template in known.spec.volume_claim_templates.iter().flatten() {
        let name = name(known.set, template, ordinal);
        match view.get::<PersistentVolumeClaim>(known.set.namespace(), &name) {
            Some(claim) if claim.is_deleting() => return None,
            Some(claim) if went_with(claim, &identity::name(known.set, ordinal), pod) => return None,
            Some(_) => continue,
            None => {}
        }
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.extend(known.spec.selector.match_labels.clone().unwrap_or_default());
        let claim = PersistentVolumeClaim {
            metadata: ObjectMeta {
                namespace: known.set.metadata.namespace.clone(),
                name: Some(name.clone()),
                labels: Some(labels),
                annotations: template.metadata.annotations.clone(),
                owner_references: (policy(known).0 == "Delete").then(|| vec![controller_ref(known.set)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        };
        let pod = identity::name(known.set, ordinal);
        let message = format!("create Claim {name} Pod {pod} in StatefulSet {} success", known.set.name());
        plan = plan.create(&claim).told(EventRecord::normal(known.set, "SuccessfulCreate", message));
    }
    Some(plan)
}

/// Sets the owners of an ordinal's claims as the retention policy says: the set, when they go with it; the pod, when that
/// is to go by scaling; nobody, when they stay.
pub(super) fn owned(view: &View<'_>, known: &Known<'_>, ordinal: i64, pod: &Pod) -> Plan {
    let (when_deleted, when_scaled) = policy(known);
    let condemned = !known.ordinals().contains(&ordinal);
    let mut plan = Plan::none();
    for template in known.spec.volume_claim_templates.iter().flatten() {
        let name = name(known.set, template, ordinal);
        let Some(claim) = view.get::<PersistentVolumeClaim>(known.set.namespace(), &name) else { continue };
        if claim.is_deleting() {
            continue;
        }
        let old = claim.metadata.owner_references.clone().unwrap_or_default();
        let foreign = |r: &&OwnerReference| r.uid != known.set.uid() && !(r.kind == "Pod" && r.name == pod.name());
        // Who deletes it by a controlling reference of his own knows best.
        if old.iter().filter(foreign).any(|r| r.controller == Some(true)) {
            continue;
        }
        let mut owners: Vec<OwnerReference> = old.iter().filter(foreign).cloned().collect();
        if when_scaled == "Delete" && condemned {
            owners.push(controller_ref(pod));
        } else if when_deleted == "Delete" {
            owners.push(controller_ref(known.set));
        }
        if owners != old {
            let mut changed = PersistentVolumeClaim::clone(claim);
            changed.metadata.owner_references = Some(owners).filter(|o| !o.is_empty());
            plan = plan.update(claim.as_ref(), &changed);
        }
    }
    plan
}
