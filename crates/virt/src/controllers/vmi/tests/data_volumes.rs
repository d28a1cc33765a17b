//! Instances whose claims are filled by somebody else.

use carrack_types::data_volumes::DataVolume;
use carrack_types::resource::{Kind as _, PartialObject};

use super::*;
use crate::controllers::defined::definitions;
use crate::controllers::testing::words;
use crate::identity::{consumer_pod_name, launcher_pod_name};

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
        let launcher = |write: &Write| write.key().name == launcher_pod_name("demo", "vmi-uid");
        assert_eq!(plan.writes.iter().any(|write| creates(write) && launcher(write)), makes, "{what}");
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

/// What there is when a plan is made of an instance whose disk is a DataVolume's.
struct Sight {
    instance: VirtualMachineInstance,
    /// The DataVolume's phase.
    phase: &'static str,
    claim: Value,
    consumer: Option<Pod>,
    /// Whether DataVolumes were read by now.
    is_read: bool,
}

impl Sight {
    fn new(phase: &'static str) -> Self {
        let claim = json!({"metadata": {"name": "disk", "namespace": "ns", "uid": "c", "ownerReferences": [
            {"apiVersion": "x/v1", "kind": "DataVolume", "name": "disk", "uid": "d", "controller": true}]}, "spec": {}});
        Self { instance: with_disk("Pending"), phase, claim, consumer: None, is_read: true }
    }

    fn plan(self) -> Plan {
        let named = json!({"metadata": {"name": DataVolume::resource().qualified()}});
        let volume =
            json!({"metadata": {"name": "disk", "namespace": "ns", "uid": "d"}, "status": {"phase": self.phase}});
        let ready = node("true", &["kvm", "tun", "vhost-net"]);
        let caches = caches(self.instance, self.consumer, Some(ready), None)
            .with([read::<PersistentVolumeClaim>(self.claim)])
            .with_metadata(definitions(), [read::<PartialObject>(named)]);
        let caches = if self.is_read { caches.with([read::<DataVolume>(volume)]) } else { caches };
        controller().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
    }
}

fn with_disk(phase: &str) -> VirtualMachineInstance {
    vmi(phase, json!({"spec": {"volumes": [{"name": "root", "dataVolume": {"name": "disk"}}]}}))
}

fn consumer(state: &str, more: Value) -> Pod {
    let mut object = json!({"metadata": {"name": consumer_pod_name("demo", "vmi-uid")}});
    merge(&mut object, more);
    pod(state, object)
}

/// A volume that is made for its first consumer has one that does nothing, until it is there.
#[test]
fn a_claim_that_waits_for_its_consumer_gets_one() {
    let name = consumer_pod_name("demo", "vmi-uid");
    let launcher = launcher_pod_name("demo", "vmi-uid");
    let (makes, goes, starts) =
        (format!("create pods/{name}"), format!("delete pods/{name}"), format!("create pods/{launcher}"));
    let check = |what: &str, sight: Sight, wanted: &[&String], provisioning: bool| {
        let plan = sight.plan();
        let of_pods: Vec<String> = words(&plan).into_iter().filter(|word| word.contains(" pods/")).collect();
        assert_eq!(of_pods.iter().collect::<Vec<_>>(), wanted, "{what}");
        let told = plan.writes.iter().any(|write| {
            matches!(write, Write::Patch { patch, .. }
            if condition(patch, "Provisioning")["status"] == "True")
        });
        assert_eq!(told, provisioning, "{what}");
    };
    let waits = || Sight::new("WaitForFirstConsumer");
    let bound = |sight: Sight| {
        let mut claim = sight.claim;
        claim["spec"]["volumeName"] = json!("pv");
        Sight { claim, ..sight }
    };
    let by = |pod: Pod, sight: Sight| Sight { consumer: Some(pod), ..sight };
    let waiting = || consumer("ContainerCreating", json!({}));
    check("there is none", waits(), &[&makes], true);
    check("it has begun", by(waiting(), waits()), &[], true);
    check("the volume is there", by(waiting(), bound(waits())), &[&goes], false);
    check("the volume is there, and it is gone", bound(waits()), &[], false);
    check("the volume is being filled", by(waiting(), bound(Sight::new("ImportInProgress"))), &[&goes], false);
    check("the volume is filled", by(waiting(), bound(Sight::new("Succeeded"))), &[&goes, &starts], false);
    check("it was for another claim", by(consumer("ended", json!({})), waits()), &[&goes], false);
    let goes_already = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    check("it goes", by(consumer("running", goes_already.clone()), waits()), &[], true);
    let mut drained = goes_already.clone();
    drained["status"] = json!({"phase": "Failed"});
    check("it goes, and has failed for that", by(consumer("ended", drained), waits()), &[], true);
    let unread = Sight { is_read: false, ..by(waiting(), waits()) };
    check("what fills the claim is not known yet", unread, &[], false);
    let mut other = waits();
    other.claim["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    check("the claim is of a DataVolume before", other, &[], false);
    let mut going = waits();
    merge(&mut going.claim, goes_already);
    check("the claim goes", going, &[], false);

    let failed = by(consumer("ended", json!({"status": {"phase": "Failed"}})), waits()).plan();
    assert_eq!(patched(&failed)["status"]["phase"], "Failed");
    assert!(words(&failed).contains(&goes), "{failed:?}");
    let mut deleted = by(waiting(), waits());
    deleted.instance.metadata.deletion_timestamp = Some(NOW.meta());
    let deleted = deleted.plan();
    assert_eq!(patched(&deleted)["status"]["phase"], "Failed");
    assert!(words(&deleted).contains(&goes), "{deleted:?}");
    let nowhere = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "nowhere"}]}});
    let told = by(consumer("ContainerCreating", nowhere), waits()).plan();
    assert_eq!(condition(&patched(&told), "PodScheduled")["message"], "nowhere");
    // It counts for no launcher.
    assert_eq!(condition(&patched(&told), "Ready")["reason"], "PodNotExists");
}

/// It is never filled, so nothing waits for it: a machine makes another instance, later each time.
#[test]
fn an_instance_without_a_pod_fails_with_its_data_volume() {
    let check = |what: &str, sight: Sight, fails: bool| {
        let plan = sight.plan();
        assert_eq!(patched(&plan)["status"]["phase"] == "Failed", fails, "{what}: {plan:?}");
        assert!(!fails || created(&plan).is_none(), "{what}: {plan:?}");
    };
    let failed = || Sight::new("Failed");
    check("it waits", failed(), true);
    assert_eq!(condition(&patched(&failed().plan()), "DataVolumesReady")["reason"], "NotAllDVsReady");
    check("it is new", Sight { instance: with_disk(""), ..failed() }, true);
    check("it is filled yet", Sight::new("ImportInProgress"), false);
    check("it is not known", Sight { is_read: false, ..failed() }, false);
    let mut other = failed();
    other.claim["metadata"]["name"] = json!("another");
    check("there is no claim", other, true);
    // Its consumer has nothing left to do.
    let consumed = || Sight { consumer: Some(consumer("running", json!({}))), ..failed() };
    check("it was consumed", consumed(), true);
    let plan = consumed().plan();
    assert!(words(&plan).contains(&format!("delete pods/{}", consumer_pod_name("demo", "vmi-uid"))), "{plan:?}");
    let launcher = || Some(pod("ContainerCreating", json!({})));
    check("it has its pod", Sight { consumer: launcher(), ..failed() }, false);
    check("it starts", Sight { instance: with_disk("Scheduling"), consumer: launcher(), ..failed() }, false);
    // Somebody else's DataVolume may bear the name of a claim.
    let volumes = json!({"spec": {"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "disk"}}]}});
    let by_claim = || Sight { instance: vmi("Pending", volumes.clone()), ..failed() };
    check("its claim is the DataVolume's", by_claim(), true);
    let mut other = by_claim();
    other.claim["metadata"]["ownerReferences"] = json!([]);
    check("its claim is nobody's", other, false);
}

/// It is given a node where the guest can run, and touches nothing.
#[test]
fn a_consumer_asks_for_what_the_launcher_asks_for() {
    let mut sight = Sight::new("WaitForFirstConsumer");
    sight.instance.spec.node_selector = [("zone".to_owned(), "a".to_owned())].into();
    sight.instance.spec.domain.devices.log_serial_console = Some(true);
    let (consumer, launcher) = {
        let mut filled = Sight::new("Succeeded");
        filled.instance = sight.instance.clone();
        (created(&sight.plan()).expect("a consumer"), created(&filled.plan()).expect("a launcher"))
    };
    for place in [
        "/spec/nodeSelector",
        "/spec/restartPolicy",
        "/spec/containers/0/resources",
        "/spec/containers/1/resources",
        "/metadata/ownerReferences",
    ] {
        assert!(
            consumer.pointer(place).is_some_and(|asked| Some(asked) == launcher.pointer(place)),
            "{place}: {consumer}"
        );
    }
    assert_eq!(consumer["metadata"]["annotations"], json!({"kubevirt.io/ephemeral-provisioning": "true"}));
    let label = |pod: &Value, name: &str| pod["metadata"]["labels"][name].clone();
    assert_eq!(
        (label(&consumer, "kubevirt.io"), label(&launcher, "kubevirt.io")),
        (Value::Null, json!("virt-launcher"))
    );
    assert_eq!((label(&consumer, "app"), label(&consumer, "kubevirt.io/created-by")), (json!("x"), json!("vmi-uid")));
    let volumes = consumer["spec"]["volumes"].as_array().expect("volumes");
    assert_eq!(volumes.iter().map(|v| &v["persistentVolumeClaim"]["claimName"]).collect::<Vec<_>>(), ["disk"]);
    let containers = |pod: &Value| pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    assert_eq!(containers(&consumer).len(), containers(&launcher).len());
    for container in containers(&consumer) {
        let of = (&container["volumeMounts"], &container["command"], &container["image"]);
        let image = &launcher["spec"]["containers"][0]["image"];
        assert_eq!(of, (&Value::Null, &json!(["/usr/bin/carrack", "version"]), image));
    }
}
