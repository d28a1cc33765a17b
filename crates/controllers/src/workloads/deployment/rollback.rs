//! Goes back to an earlier revision because an annotation asks for it: what clients of `apps/v1beta1` left in `spec.rollbackTo`.
//! `kubectl rollout undo` sends the earlier template by itself. Behaviour follows upstream's rollback.go.

use carrack_engine::{EventRecord, Plan};
use carrack_types::resource::Object as _;
use k8s_openapi::api::apps::v1::ReplicaSet;

use super::sets::{self, Sets};
use super::{Wanted, annotations};

const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";

/// The revision that is asked for; 0 is the one before the newest. None where nothing is asked, or no number.
pub(crate) fn asked(wanted: Wanted<'_>) -> Option<i64> {
    annotations::number(&wanted.deployment.metadata, annotations::ROLLBACK)
}

/// Gives the Deployment the template and the annotations of that revision's set, and takes away that it was asked.
pub(crate) fn plan(wanted: Wanted<'_>, sets: &Sets, asked: i64) -> Plan {
    let all = sets.all();
    let revisions = || all.iter().map(|set| annotations::revision(&set.metadata));
    // A template that has no set yet would be the newest.
    let newest = if sets.new.is_some() { revisions().max().unwrap_or(0) } else { i64::MAX };
    let last = || revisions().filter(|revision| *revision < newest).max().unwrap_or(0);
    let to = if asked == 0 { last() } else { asked };
    let deployment = wanted.deployment;
    let warn = |reason: &str, message: String| EventRecord::warning(deployment, reason, message);
    let found = all.iter().find(|set| annotations::revision(&set.metadata) == to).filter(|_| to != 0);
    let template = found.and_then(|set| template(set));
    let mut changed = deployment.clone();
    let said = match (found, template) {
        (Some(set), Some(template)) if !sets::same_template(&template, &wanted.spec.template) => {
            changed.spec.get_or_insert_default().template = template;
            annotations::go_back(&mut changed.metadata, &set.metadata);
            let message = format!("Rolled back deployment {:?} to revision {to}", deployment.name());
            EventRecord::normal(deployment, "DeploymentRollback", message)
        }
        (Some(_), Some(_)) => {
            let message = format!(
                "The rollback revision contains the same template as current deployment {:?}",
                deployment.name()
            );
            warn("DeploymentRollbackTemplateUnchanged", message)
        }
        _ if asked == 0 => warn(NOT_FOUND, "Unable to find last revision.".to_owned()),
        _ => warn(NOT_FOUND, "Unable to find the revision to rollback to.".to_owned()),
    };
    if let Some(own) = &mut changed.metadata.annotations {
        own.remove(annotations::ROLLBACK);
    }
    Plan::none().update(deployment, &changed).told(said)
}

/// A set's template as the Deployment had it.
fn template(set: &ReplicaSet) -> Option<k8s_openapi::api::core::v1::PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref().map(sets::bare)
}
