//! Evictions of launchers: a guest that is to be moved, and cannot be, stays where it is.
//!
//! Guests are not moved here. So the launcher of an instance with the strategy `LiveMigrate`, or `External`, is not
//! evicted while its guest may run, whoever drains its node: its owner has said that it must not be shut down for that.
//! An operator who means it stops the machine. Where a guest can be moved (the handler is KubeVirt's), its own webhook has the word.
//! (Upstream: `pod-eviction-admitter.go` in virt-api.)

use carrack_apiserver::Status;
use carrack_apiserver::admission::{Attributes, Lookup, Needed};
use carrack_apiserver::object::{self, Object as Stored};
use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::{APP_LABEL, CREATED_BY_LABEL, DOMAIN_ANNOTATION, GROUP, LAUNCHER};
use serde_json::Value;

use super::plugin::{INSTANCES, SETTINGS, settings};

/// Whether a request evicts a pod.
pub(super) fn evicts(attributes: &Attributes<'_>) -> bool {
    attributes.row.group.is_empty() && attributes.row.plural == "pods" && attributes.subresource == "eviction"
}

/// What such a request is judged by: the instance whose launcher the pod is, and the cluster's settings.
pub(super) fn needs(attributes: &Attributes<'_>) -> Vec<Needed> {
    let Some(name) = attributes.old.and_then(instance_of) else { return Vec::new() };
    vec![Needed::one(GROUP, INSTANCES, attributes.namespace, name), Needed::all(GROUP, SETTINGS, "")]
}

/// Whether the pod may be evicted, as far as its guest is concerned.
///
/// # Errors
/// 429 with the reason, as for a pod that a disruption budget holds: who drains tries again.
pub(super) fn check(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
    let Some(pod) = attributes.old else { return Ok(()) };
    let Some(name) = instance_of(pod) else { return Ok(()) };
    // One that is not there any more has no say.
    let Some(stored) = lookup.get(GROUP, INSTANCES, attributes.namespace, name) else { return Ok(()) };
    let why = match carrack_types::json::from_value::<VirtualMachineInstance>(Value::Object(stored.clone())) {
        Ok(vmi) => refusal(pod, &vmi, &settings(lookup)),
        Err(error) => Some(format!("kubevirt failed getting the vmi: {error}")),
    };
    let Some(why) = why else { return Ok(()) };
    // Nothing says when to try again: clients have rhythms of their own for this.
    Err(Status { details: None, ..Status::too_many_requests(why, 0) })
}

/// The name of the instance whose launcher a pod is, if it is one and not over.
fn instance_of(pod: &Stored) -> Option<&str> {
    let is_launcher = object::str_at(pod, &["metadata", "labels", APP_LABEL]) == LAUNCHER;
    if !is_launcher || matches!(object::str_at(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return None;
    }
    object::at(pod, &["metadata", "annotations", DOMAIN_ANNOTATION])?.as_str()
}

/// Why a launcher is not evicted, if it is not.
fn refusal(pod: &Stored, vmi: &VirtualMachineInstance, settings: &KubeVirtConfiguration) -> Option<String> {
    let made_for = object::at(pod, &["metadata", "labels", CREATED_BY_LABEL]).and_then(Value::as_str);
    let is_its_own = made_for.is_none_or(|uid| uid == vmi.uid());
    // One that is going, or over, has no guest that anybody would keep.
    if !is_its_own || vmi.is_final() || vmi.is_deleting() {
        return None;
    }
    let name = vmi.name();
    match vmi.spec.eviction_strategy.as_deref().or(settings.eviction_strategy.as_deref()) {
        Some("LiveMigrate") if !vmi.is_true("LiveMigratable") => {
            Some(format!("VMI {name} is configured with an eviction strategy but is not live-migratable"))
        }
        Some("External") => {
            Some(format!("VMI {name} is configured to be evacuated by somebody else, who has not done so yet"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Stored, instance_of, refusal};

    fn pod(more: Value) -> Stored {
        let mut pod = json!({"metadata": {"name": "virt-launcher-demo-x", "namespace": "ns",
            "labels": {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "u"},
            "annotations": {"kubevirt.io/domain": "demo"}}, "status": {"phase": "Running"}});
        for (key, value) in more.as_object().expect("an object") {
            pod[key] = value.clone();
        }
        pod.as_object().expect("an object").clone()
    }

    #[test]
    fn whose_launcher_it_is() {
        let check = |more: Value, wanted: Option<&str>| assert_eq!(instance_of(&pod(more.clone())), wanted, "{more}");
        check(json!({}), Some("demo"));
        check(json!({"status": {"phase": "Pending"}}), Some("demo"));
        for phase in ["Succeeded", "Failed"] {
            check(json!({"status": {"phase": phase}}), None);
        }
        check(json!({"metadata": {"name": "other", "labels": {"app": "web"}}}), None);
        check(json!({"metadata": {"labels": {"kubevirt.io": "virt-launcher"}}}), None);
        check(json!({"metadata": {"annotations": {"kubevirt.io/domain": "demo"}}}), None);
    }

    #[test]
    fn a_guest_that_cannot_be_moved_stays() {
        let check = |cluster: Value, strategy: Value, more: Value, wanted: bool| {
            let mut vmi = json!({"metadata": {"name": "demo", "uid": "u"}, "spec": {"evictionStrategy": strategy},
                "status": {"phase": "Running"}});
            for (key, value) in more.as_object().expect("an object") {
                vmi[key] = value.clone();
            }
            let vmi = serde_json::from_value(vmi).expect("an instance");
            let settings = serde_json::from_value(json!({"evictionStrategy": cluster})).expect("settings");
            let got = refusal(&pod(json!({})), &vmi, &settings);
            assert_eq!(got.is_some(), wanted, "{cluster} {strategy} {more}: {got:?}");
        };
        let none = || Value::Null;
        check(none(), none(), json!({}), false);
        for strategy in ["None", "LiveMigrateIfPossible"] {
            check(none(), json!(strategy), json!({}), false);
            check(json!("LiveMigrate"), json!(strategy), json!({}), false);
        }
        for strategy in ["LiveMigrate", "External"] {
            check(none(), json!(strategy), json!({}), true);
            check(json!(strategy), none(), json!({}), true);
            check(none(), json!(strategy), json!({"status": {"phase": "Scheduled"}}), true);
            for phase in ["Succeeded", "Failed"] {
                check(none(), json!(strategy), json!({"status": {"phase": phase}}), false);
            }
            // It is going anyway, or is another one that has the name by now.
            let going = json!({"metadata": {"name": "demo", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
            check(none(), json!(strategy), going, false);
            check(none(), json!(strategy), json!({"metadata": {"name": "demo", "uid": "v"}}), false);
        }
        let conditions = json!([{"type": "LiveMigratable", "status": "True"}]);
        let movable = json!({"status": {"phase": "Running", "conditions": conditions}});
        check(none(), json!("LiveMigrate"), movable, false);
    }
}
