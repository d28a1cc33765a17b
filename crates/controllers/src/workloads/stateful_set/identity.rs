//! Who a pod of a StatefulSet is: its name, labels and volumes, which follow from its ordinal.

use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};

use serde_json::{Value, json};

use super::super::{pods, revisions};
use super::{Known, claims};

/// Label with the pod's own name, which Services select by.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// Label with the ordinal.
const INDEX: &str = "apps.kubernetes.io/pod-index";

/// The ordinal in a pod's name, if the name is one of this set.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i64> {
    let digits = pod.name().strip_prefix(set.name())?.strip_prefix('-')?;
    // No other form of a number is a name that this controller gives.
    let number: i64 = digits.parse().ok()?;
    (number >= 0 && number.to_string() == digits).then_some(number)
}

/// The name of an ordinal's pod.
pub(super) fn name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.name())
}

/// The pod of an ordinal, of a revision.
pub(super) fn pod(known: &Known<'_>, ordinal: i64, revision: &ControllerRevision) -> Pod {
    let of_revision = revisions::template(revision);
    let template: &PodTemplateSpec = of_revision.as_ref().unwrap_or(&known.spec.template);
    let mut pod = pods::from_template(known.set, template, name(known.set, ordinal));
    pod.metadata.generate_name = Some(format!("{}-", known.set.name()));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name(known.set, ordinal));
    labels.insert(INDEX.to_owned(), ordinal.to_string());
    labels.insert(revisions::LABEL.to_owned(), revision.name().to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name(known.set, ordinal));
    spec.subdomain = known.spec.service_name.clone().filter(|s| !s.is_empty());
    let templates = known.spec.volume_claim_templates.iter().flatten();
    let mut volumes: Vec<Volume> = templates
        .map(|t| Volume {
            name: t.name().to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claims::name(known.set, t, ordinal),
                read_only: Some(false),
            }),
            ..Volume::default()
        })
        .collect();
    // A claim's volume takes the place of the template's volume of the same name.
    let own = spec.volumes.take().unwrap_or_default();
    let names: Vec<String> = volumes.iter().map(|v| v.name.clone()).collect();
    volumes.extend(own.into_iter().filter(|v| !names.contains(&v.name)));
    spec.volumes = Some(volumes).filter(|v| !v.is_empty());
    pod
}

/// The labels that a pod's name gives it, as a patch, if it lacks one.
pub(super) fn mended(known: &Known<'_>, ordinal: i64, pod: &Pod) -> Option<Value> {
    let (name, index) = (name(known.set, ordinal), ordinal.to_string());
    let whole = pod.label(POD_NAME) == Some(&name) && pod.label(INDEX) == Some(&index);
    (!whole).then(|| json!({"metadata": {"labels": {POD_NAME: name, INDEX: index}}}))
}
