//! Evictions of launchers: a guest that is to be moved, and cannot be, stays where it is.
//!
//! Guests are not moved here. So the launcher of an instance with the strategy `LiveMigrate`, or `External`, is not
//! evicted while its guest may run, whoever drains its node: its owner has said that it must not be shut down for that.
//! An operator who means it stops the machine. `External` means that somebody else evacuates the node: the instance's status
//! tells them which one (`evacuationNodeName`), until that is taken back (`evacuate/cancel`) or the instance is gone. Where a guest can be moved (the handler is KubeVirt's), its own webhook has the word.
//! (Upstream: `pod-eviction-admitter.go` in virt-api.)

use carrack_apiserver::Status;
use carrack_apiserver::admission::{Along, Attributes, Change, Lookup, Needed};
use carrack_apiserver::object::{self, Object as Stored};
use carrack_types::kubevirt::VirtualMachineInstance;
use carrack_types::kubevirt::others::KubeVirtConfiguration;
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::{APP_LABEL, CREATED_BY_LABEL, DOMAIN_ANNOTATION, GROUP, LAUNCHER};
use serde_json::Value;

use super::plugin::{INSTANCES, SETTINGS, settings};
use crate::identity::launched_by;

/// Whether a request evicts a pod.
pub(super) fn evicts(attributes: &Attributes<'_>) -> bool {
    attributes.row.group.is_empty() && attributes.row.plural == "pods" && attributes.subresource == "eviction"
}

/// What such a request is judged by: the instance whose launcher the pod is, and the cluster's settings.
pub(super) fn needs(attributes: &Attributes<'_>) -> Vec<Needed> {
    let Some(Launched { name, .. }) = attributes.old.and_then(instance_of) else { return Vec::new() };
    // What is marked is the instance as it was judged.
    let instance = Needed::one(GROUP, INSTANCES, attributes.namespace, &name).pinned();
    vec![instance, Needed::all(GROUP, SETTINGS, "")]
}

/// Whether the pod may be evicted, as far as its guest is concerned.
///
/// # Errors
/// 429 with the reason, as for a pod that a disruption budget holds: who drains tries again.
pub(super) fn check(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Result<(), Status> {
    let Some(pod) = attributes.old else { return Ok(()) };
    let Some(Launched { name, .. }) = instance_of(pod) else { return Ok(()) };
    // One that is not there any more has no say.
    let Some(stored) = lookup.get(GROUP, INSTANCES, attributes.namespace, &name) else { return Ok(()) };
    let why = match carrack_types::json::from_value::<VirtualMachineInstance>(Value::Object(stored.clone())) {
        Ok(vmi) => refusal(pod, &vmi, &settings(lookup)),
        Err(error) => Some(format!("kubevirt failed getting the vmi: {error}")),
    };
    let Some(why) = why else { return Ok(()) };
    // Nothing says when to try again: clients have rhythms of their own for this.
    Err(Status { details: None, ..Status::too_many_requests(why, 0) })
}

/// The mark on an instance that somebody else is to move: the node that it is to leave.
pub(super) fn marks(attributes: &Attributes<'_>, lookup: &dyn Lookup) -> Vec<Along> {
    let dry_run = object::at(&attributes.object, &["deleteOptions", "dryRun"]).and_then(Value::as_array);
    let Some(pod) = attributes.old.filter(|_| dry_run.is_none_or(Vec::is_empty)) else { return Vec::new() };
    let mark = || {
        let Launched { name, .. } = instance_of(pod)?;
        let marked = marked(pod, lookup.get(GROUP, INSTANCES, attributes.namespace, &name)?, &settings(lookup))?;
        let namespace = attributes.namespace.to_owned();
        Some(Along { group: GROUP, resource: INSTANCES, namespace, name, change: Change::Replace(marked) })
    };
    mark().into_iter().collect()
}

/// An instance with its mark, if it is to have one and has none.
fn marked(pod: &Stored, stored: &Stored, settings: &KubeVirtConfiguration) -> Option<Stored> {
    let vmi: VirtualMachineInstance = carrack_types::json::from_value(Value::Object(stored.clone())).ok()?;
    if strategy(&vmi, settings) != Some("External") || is_marked(&vmi) {
        return None;
    }
    refusal(pod, &vmi, settings)?;
    let node = node_in(pod, &vmi)?;
    let mut marked = stored.clone();
    object::child_mut(&mut marked, "status").insert("evacuationNodeName".to_owned(), node.into());
    Some(marked)
}

/// The node on which an instance runs in this pod.
fn node_in<'a>(pod: &'a Stored, vmi: &VirtualMachineInstance) -> Option<&'a str> {
    let node = object::str_at(pod, &["spec", "nodeName"]);
    let is_there = vmi.status.as_ref().is_some_and(|status| status.node_name == node);
    (is_there && !node.is_empty()).then_some(node)
}

fn is_marked(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.as_ref().is_some_and(|status| !status.evacuation_node_name.is_empty())
}

fn strategy<'a>(vmi: &'a VirtualMachineInstance, settings: &'a KubeVirtConfiguration) -> Option<&'a str> {
    vmi.spec.eviction_strategy.as_deref().or(settings.eviction_strategy.as_deref())
}

/// The instance whose launcher a pod is.
#[derive(Debug, PartialEq, Eq)]
struct Launched {
    name: String,
    /// Its UID, where the pod says it: by now another one may have the name.
    uid: Option<String>,
}

/// The instance whose launcher a pod is, if it is one and not over. Its owner is asked first, as it is by all who look after
/// instances: labels and annotations may be taken off by whoever may change the pod, and with them the guest would lose what
/// keeps it. A pod without such an owner is known by them. (Upstream knows all by them.)
fn instance_of(pod: &Stored) -> Option<Launched> {
    if matches!(object::str_at(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return None;
    }
    if let Some(owner) = launched_by(pod) {
        return Some(Launched { name: owner.name, uid: Some(owner.uid) });
    }
    if object::str_at(pod, &["metadata", "labels", APP_LABEL]) != LAUNCHER {
        return None;
    }
    let text = |path: &[&str]| object::at(pod, path).and_then(Value::as_str).map(str::to_owned);
    let name = text(&["metadata", "annotations", DOMAIN_ANNOTATION])?;
    Some(Launched { name, uid: text(&["metadata", "labels", CREATED_BY_LABEL]) })
}

/// Why a launcher is not evicted, if it is not.
fn refusal(pod: &Stored, vmi: &VirtualMachineInstance, settings: &KubeVirtConfiguration) -> Option<String> {
    let is_its_own = instance_of(pod)?.uid.is_none_or(|uid| uid == vmi.uid());
    // One that is going, or over, has no guest that anybody would keep.
    if !is_its_own || vmi.is_final() || vmi.is_deleting() {
        return None;
    }
    let name = vmi.name();
    match strategy(vmi, settings) {
        Some("LiveMigrate") if !vmi.is_true("LiveMigratable") => {
            Some(format!("VMI {name} is configured with an eviction strategy but is not live-migratable"))
        }
        Some("External") if node_in(pod, vmi).is_none() => Some("Eviction request for target Pod".to_owned()),
        Some("External") => {
            let began = if is_marked(vmi) { "Evacuation in progress: " } else { "" };
            Some(format!("{began}Eviction triggered evacuation of VMI \"{}/{name}\"", vmi.namespace()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Launched, Stored, instance_of, refusal};
    use crate::identity::consumer_pod_name;

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
        let check = |more: Value, wanted: Option<(&str, Option<&str>)>| {
            let wanted = wanted.map(|(name, uid)| Launched { name: name.to_owned(), uid: uid.map(str::to_owned) });
            assert_eq!(instance_of(&pod(more.clone())), wanted, "{more}");
        };
        check(json!({}), Some(("demo", Some("u"))));
        check(json!({"status": {"phase": "Pending"}}), Some(("demo", Some("u"))));
        for phase in ["Succeeded", "Failed"] {
            check(json!({"status": {"phase": phase}}), None);
        }
        check(json!({"metadata": {"name": "other", "labels": {"app": "web"}}}), None);
        check(json!({"metadata": {"labels": {"kubevirt.io": "virt-launcher"}}}), None);
        check(json!({"metadata": {"annotations": {"kubevirt.io/domain": "demo"}}}), None);
        let unsaid = json!({"labels": {"kubevirt.io": "virt-launcher"}, "annotations": {"kubevirt.io/domain": "demo"}});
        check(json!({"metadata": unsaid}), Some(("demo", None)));
        // Whoever takes labels off, or puts others on, changes nothing about the owner.
        let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "demo",
            "uid": "u", "controller": true}]);
        let bare = |name: &str| json!({"metadata": {"name": name, "ownerReferences": owners}});
        check(bare("virt-launcher-demo-x"), Some(("demo", Some("u"))));
        let mut over = bare("virt-launcher-demo-x");
        over["status"] = json!({"phase": "Failed"});
        check(over, None);
        let mut others = bare("virt-launcher-demo-x");
        others["metadata"]["labels"] = json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "v"});
        others["metadata"]["annotations"] = json!({"kubevirt.io/domain": "other"});
        check(others, Some(("demo", Some("u"))));
        check(bare(&consumer_pod_name("demo", "u")), None);
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

    #[test]
    fn who_moves_a_guest_is_told_once_which_node_it_is_to_leave() {
        let check = |strategy: &str, vmi_node: &str, pod_node: &str, marked: &str, wanted: bool| {
            let vmi = json!({"apiVersion": "kubevirt.io/v1", "metadata": {"name": "demo", "uid": "u", "namespace": "ns"},
                "spec": {"evictionStrategy": strategy},
                "status": {"phase": "Running", "nodeName": vmi_node, "evacuationNodeName": marked}});
            let pod = pod(json!({"spec": {"nodeName": pod_node}}));
            let settings = super::KubeVirtConfiguration::default();
            let got = super::marked(&pod, vmi.as_object().expect("an object"), &settings).map(Value::Object);
            let mut with_mark = vmi.clone();
            with_mark["status"]["evacuationNodeName"] = json!(pod_node);
            assert_eq!(got, wanted.then_some(with_mark), "{vmi}");
        };
        check("External", "n1", "n1", "", true);
        check("External", "n1", "n1", "n1", false);
        // Its pod is another one than that in which it runs, or it runs nowhere yet.
        check("External", "n1", "n2", "", false);
        check("External", "", "", "", false);
        check("LiveMigrate", "n1", "n1", "", false);
        check("None", "n1", "n1", "", false);
    }
}
