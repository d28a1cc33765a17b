//! DataVolumes of machines' templates, with somebody else in CDI's place.

use carrack_engine::{Absent, Premise};
use carrack_types::data_volumes::{DataSource, DataVolume};
use carrack_types::resource::{Kind as _, PartialObject};

use super::super::data_volumes::UNSERVED_AGAIN;
use super::*;
use crate::controllers::defined::definitions;

/// A machine with a template, which a volume names.
fn machine(strategy: &str, template: Value, status: Value) -> VirtualMachine {
    let mut object = json!(vm(json!({"runStrategy": strategy, "dataVolumeTemplates": [template]}), status));
    object["spec"]["template"]["spec"]["volumes"] = json!([{"name": "root", "dataVolume": {"name": "disk"}}]);
    object["spec"]["template"]["spec"]["priorityClassName"] = json!("high");
    serde_json::from_value(object).expect("a machine")
}

fn template(spec: Value) -> Value {
    json!({"metadata": {"name": "disk", "labels": {"a": "b"}}, "spec": spec})
}

fn blank() -> Value {
    template(json!({"storage": {}, "source": {"blank": {}}}))
}

fn volume(phase: &str, more: Value) -> Value {
    let mut object = json!({"metadata": {"name": "disk", "namespace": "ns", "uid": "dv-uid", "resourceVersion": "3",
        "ownerReferences": [owner("vm-uid", true)]}, "status": {"phase": phase}});
    merge(&mut object, more);
    object
}

fn of<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

/// What is there of CDI: its definitions, and objects of both kinds.
struct Imports {
    defined: bool,
    volume: Option<Value>,
    source: Option<Value>,
}

fn with(machine: &VirtualMachine, instance: Option<VirtualMachineInstance>, imports: Imports) -> Caches {
    let kinds = [DataVolume::resource(), DataSource::resource()];
    let kinds = kinds.iter().filter(|_| imports.defined);
    let named = kinds.map(|kind| of::<PartialObject>(json!({"metadata": {"name": kind.qualified()}})));
    caches(machine.clone(), instance)
        .with_metadata(definitions(), named)
        .with(imports.volume.map(of::<DataVolume>))
        .with(imports.source.map(of::<DataSource>))
}

fn decide(machine: &VirtualMachine, instance: Option<VirtualMachineInstance>, imports: Imports) -> Plan {
    let caches = with(machine, instance, imports);
    VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
}

fn defined(volume: Option<Value>) -> Imports {
    Imports { defined: true, volume, source: None }
}

/// The DataVolume that a plan makes, and the number of its write.
fn made(plan: &Plan) -> Option<(usize, Value)> {
    plan.writes.iter().enumerate().find_map(|(number, write)| match write {
        Write::Create { resource, object } if *resource == DataVolume::resource() => Some((number, object.clone())),
        _ => None,
    })
}

#[test]
fn a_data_volume_is_made_and_waited_for() {
    let always = || machine("Always", blank(), json!({}));
    let first = decide(&always(), None, defined(None));
    assert_eq!(acts(&first), ["patch virtualmachines/status", "create datavolumes"]);
    assert_eq!(status_of(&first)["printableStatus"], "Provisioning");
    let (number, object) = made(&first).expect("a DataVolume");
    let metadata = &object["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("disk"), &json!("ns")));
    assert_eq!(metadata["labels"], json!({"a": "b", "kubevirt.io/created-by": "vm-uid"}));
    assert_eq!(metadata["annotations"], json!({"cdi.kubevirt.io/allowClaimAdoption": "true"}));
    let owner = &metadata["ownerReferences"][0];
    assert_eq!((&owner["uid"], &owner["controller"]), (&json!("vm-uid"), &json!(true)));
    let spec = json!({"storage": {}, "source": {"blank": {}}, "priorityClassName": "high"});
    assert_eq!((&object["spec"], &object["apiVersion"]), (&spec, &json!("cdi.kubevirt.io/v1beta1")));
    assert!(first.premises.contains(&(number, Premise::same_spec(&always()))), "{:?}", first.premises);
    assert_eq!(first.told[0].1.reason, "SuccessfulDataVolumeCreate");

    let condition = |kind: &str, status: &str, reason: &str| {
        let condition = json!({"type": kind, "status": status, "reason": reason});
        json!({"status": {"conditions": [condition]}})
    };
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let quota = condition("Bound", "Unknown", "ErrExceededQuota");
    for (phase, more, printable, starts) in [
        ("", json!({}), "Provisioning", false),
        ("ImportInProgress", json!({}), "Provisioning", false),
        ("Succeeded", json!({}), "Starting", true),
        ("PendingPopulation", json!({}), "Starting", true),
        ("WaitForFirstConsumer", json!({}), "Starting", true),
        ("ImportInProgress", condition("Running", "False", "Error"), "DataVolumeError", false),
        ("Failed", json!({}), "DataVolumeError", false),
        ("Succeeded", going, "Provisioning", false),
        ("Pending", quota.clone(), "Provisioning", false),
    ] {
        let plan = decide(&always(), None, defined(Some(volume(phase, more.clone()))));
        assert_eq!(status_of(&plan)["printableStatus"], printable, "{phase} {more}");
        let has = |what: &str| acts(&plan).iter().any(|act| act == what);
        let makes = (has("create virtualmachineinstances"), has("create datavolumes"));
        assert_eq!(makes, (starts, false), "{phase} {more}");
    }
    let failed = decide(&always(), None, defined(Some(volume("Failed", json!({})))));
    let events = failed.events.iter().chain(failed.told.iter().map(|(_, event)| event));
    let told: Vec<&str> = events.map(|event| event.reason.as_str()).collect();
    assert!(told.contains(&"FailedDataVolumeImport"), "{told:?}");
    let quota = decide(&always(), None, defined(Some(volume("Pending", quota))));
    assert!(status_of(&quota)["conditions"].to_string().contains("importer is not running"), "{quota:?}");
}

#[test]
fn when_a_data_volume_is_made() {
    let makes = |machine: &VirtualMachine, instance: Option<VirtualMachineInstance>| {
        made(&decide(machine, instance, defined(None))).is_some()
    };
    let running = || Some(vmi("Running", json!({})));
    assert!(makes(&machine("Halted", blank(), json!({})), None));
    assert!(makes(&machine("Always", blank(), json!({})), running()), "somebody deleted it");
    assert!(!makes(&machine("Always", blank(), json!({"restoreInProgress": "r"})), None));
    let late = |strategy: &str, status: Value| {
        let mut machine = machine(strategy, blank(), status);
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert("kubevirt.io/immediate-data-volume-creation".to_owned(), "false".to_owned());
        machine
    };
    assert!(!makes(&late("Halted", json!({})), None));
    assert!(makes(&late("Always", json!({})), None));
    assert!(makes(&late("Manual", json!({"stateChangeRequests": [{"action": "Start"}]})), None));
    // What keeps one from being made keeps nothing from being stopped.
    let stopped = decide(&machine("Halted", blank(), json!({})), running(), defined(None));
    assert_eq!(acts(&stopped)[1..], ["delete virtualmachineinstances", "create datavolumes"]);
}

#[test]
fn one_that_nobody_owns_is_taken_over() {
    let always = machine("Always", blank(), json!({}));
    let nobody = json!({"metadata": {"ownerReferences": []}});
    let orphan = decide(&always, None, defined(Some(volume("Succeeded", nobody))));
    let [.., Write::Confirm { absent, .. }, Write::Patch { resource, patch, .. }] = &orphan.writes[..] else {
        panic!("{orphan:?}")
    };
    assert!(matches!(absent, Absent::End { uid, .. } if uid == "vm-uid"), "{absent:?}");
    assert_eq!((&*resource.plural, &patch["metadata"]["resourceVersion"]), ("datavolumes", &json!("3")));
    assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
    let other = json!({"metadata": {"ownerReferences": [owner("another-uid", true)]}});
    let other = decide(&always, None, defined(Some(volume("Succeeded", other))));
    assert_eq!(acts(&other), START, "it is used, and stays whose it is");
}

/// Where there is no CDI, or nothing is known of it yet, a machine waits, and looks again.
#[test]
fn without_cdi_a_machine_waits() {
    let always = machine("Always", blank(), json!({}));
    let absent = decide(&always, None, Imports { defined: false, volume: None, source: None });
    assert_eq!((acts(&absent), absent.requeue_after), (vec![STATUS[0].to_owned()], Some(UNSERVED_AGAIN)));
    let status = status_of(&absent);
    assert_eq!(status["printableStatus"], "Stopped");
    assert!(status["conditions"].to_string().contains("CDI must be installed"), "{status}");
    let named = of::<PartialObject>(json!({"metadata": {"name": DataVolume::resource().qualified()}}));
    let unread = caches(always, None).with_metadata(definitions(), [named]);
    let unread = VmController::default().reconcile(&Key::new("ns", "demo"), &unread.view(), NOW);
    assert_eq!((acts(&unread), unread.requeue_after), (vec![STATUS[0].to_owned()], Some(super::super::KINDS_AGAIN)));
}

/// What is copied from another namespace, the machine's service account must be allowed to copy.
#[test]
fn copies_of_what_is_elsewhere_are_asked_for() {
    let asked = |spec: Value, source: Option<Value>| {
        let machine = machine("Always", template(spec), json!({}));
        let plan = decide(&machine, None, Imports { defined: true, volume: None, source });
        let asks = |write: &Write| matches!(write, Write::Confirm { absent: Absent::Refusal { .. }, .. });
        let review = plan.writes.iter().position(asks);
        let of = review.map(|number| match &plan.writes[number] {
            Write::Confirm { absent: Absent::Refusal { review }, .. } => review["spec"].clone(),
            other => panic!("{other:?}"),
        });
        assert!(review.is_none_or(|review| made(&plan).is_some_and(|(number, _)| number == review + 1)), "{plan:?}");
        (of, made(&plan).map(|(_, object)| object["spec"]["source"].clone()), plan)
    };
    let claim = |namespace: &str| json!({"pvc": {"namespace": namespace, "name": "golden"}});
    let (review, source, _) = asked(json!({"storage": {}, "source": {"pvc": {"name": "golden"}}}), None);
    assert_eq!((review, source), (None, Some(claim("ns"))));
    let (review, source, _) = asked(json!({"storage": {}, "source": claim("images")}), None);
    let review = review.expect("a review");
    assert_eq!((&review["user"], source), (&json!("system:serviceaccount:ns:default"), Some(claim("images"))));
    let what = json!({"verb": "create", "group": "cdi.kubevirt.io", "resource": "datavolumes", "subresource": "source",
        "namespace": "images", "name": "golden"});
    assert_eq!(review["resourceAttributes"], what);
    let reference = || json!({"storage": {}, "sourceRef": {"kind": "DataSource", "namespace": "images", "name": "s"}});
    let source = |of: Value| Some(json!({"metadata": {"namespace": "images", "name": "s"}, "spec": {"source": of}}));
    let (review, found, _) = asked(reference(), source(json!({"snapshot": {"name": "golden"}})));
    assert!(review.is_some_and(|review| review["resourceAttributes"]["namespace"] == "images"));
    assert_eq!(found, Some(json!({"snapshot": {"namespace": "images", "name": "golden"}})));
    let both = json!({"pvc": {"name": "golden"}, "snapshot": {"namespace": "secret", "name": "golden"}});
    for (there, why) in [
        (None, "\\\"s\\\" not found"),
        (source(json!({})), "sourceRef not supported"),
        (source(both), "sourceRef not supported"),
    ] {
        let (review, found, plan) = asked(reference(), there);
        assert_eq!((review, found), (None, None));
        assert!(status_of(&plan)["conditions"].to_string().contains(why), "{why}: {plan:?}");
    }
}

#[test]
fn what_is_refused_of_data_volumes_is_told_and_stands() {
    let copy = || template(json!({"pvc": {}, "source": {"pvc": {"namespace": "x", "name": "y"}}}));
    let always = machine("Always", copy(), json!({}));
    let plan = decide(&always, None, defined(None));
    for (write, reason) in plan.writes.iter().filter_map(|write| match write {
        Write::Confirm { .. } => Some((write, "UnauthorizedDataVolumeCreate")),
        Write::Create { .. } => Some((write, "FailedDataVolumeCreate")),
        _ => None,
    }) {
        let caches = with(&always, None, defined(None));
        let error = StatusError { code: 403, message: "no".to_owned(), ..StatusError::default() };
        let refusal = Refusal { write, error: &error };
        let told = VmController::default().refused(&Key::new("ns", "demo"), &caches.view(), &refusal, NOW);
        assert_eq!(told.events[0].reason, reason);
        let failure = status_of(&told)["conditions"].clone();
        assert_eq!((&failure[0]["type"], &failure[0]["reason"]), (&json!("Failure"), &json!("FailedCreate")));
        let failed = machine("Halted", copy(), json!({ "conditions": failure }));
        let again = decide(&failed, None, defined(None));
        assert!(status_of(&again)["conditions"].to_string().contains("Failure"), "{again:?}");
    }
}
