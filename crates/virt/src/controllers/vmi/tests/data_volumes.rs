//! Instances whose claims are filled by somebody else.

use carrack_types::data_volumes::DataVolume;
use carrack_types::resource::{Kind as _, PartialObject};

use super::*;
use crate::controllers::defined::definitions;

/// The pod comes once the claim is filled, or will be before the pod begins.
#[test]
fn a_claim_is_used_once_it_is_filled() {
    let instance = || vmi("Pending", json!({"spec": {"volumes": [{"name": "root", "dataVolume": {"name": "disk"}}]}}));
    let claim = |kind: &str| -> PersistentVolumeClaim {
        read(json!({"metadata": {"name": "disk", "namespace": "ns", "uid": "c", "ownerReferences": [
            {"apiVersion": "x/v1", "kind": kind, "name": "disk", "uid": "d", "controller": true}]}, "spec": {}}))
    };
    let check = |kind: &str, volume: Option<Value>, is_defined: bool, makes: bool, told: Option<&str>| {
        let name = DataVolume::resource().qualified();
        let defined = is_defined.then(|| read::<PartialObject>(json!({"metadata": {"name": name}})));
        let volume = volume.map(|status| {
            read::<DataVolume>(json!({"metadata": {"name": "disk", "namespace": "ns", "uid": "d"}, "status": status}))
        });
        let what = format!("{kind} {volume:?} {is_defined}");
        let caches = caches(instance(), None, Some(node("true", &["kvm", "tun", "vhost-net"])), None)
            .with([claim(kind)])
            .with_metadata(definitions(), defined)
            .with(volume);
        let plan = controller().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW);
        let creates = |write: &Write| matches!(write, Write::Create { resource, .. } if resource.plural == "pods");
        assert_eq!(plan.writes.iter().any(creates), makes, "{what}");
        let conditions = patched(&plan)["status"]["conditions"].clone();
        let ready = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "DataVolumesReady");
        assert_eq!(ready.map(|ready| ready["status"].as_str().unwrap_or_default()), told, "{what}");
    };
    let phase = |phase: &str| Some(json!({ "phase": phase }));
    let ready =
        |phase: &str, status: &str| Some(json!({"phase": phase, "conditions": [{"type": "Ready", "status": status}]}));
    check("VirtualMachine", None, false, true, None);
    check("VirtualMachine", phase("ImportInProgress"), true, true, Some("Unknown"));
    check("DataVolume", None, false, true, None);
    check("DataVolume", None, true, false, None);
    check("DataVolume", ready("ImportInProgress", "False"), true, false, Some("False"));
    check("DataVolume", phase("WaitForFirstConsumer"), true, false, Some("Unknown"));
    check("DataVolume", phase("PendingPopulation"), true, true, Some("Unknown"));
    check("DataVolume", ready("Succeeded", "True"), true, true, Some("True"));
}
