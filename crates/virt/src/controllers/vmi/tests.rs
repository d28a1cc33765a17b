//! What the VMI controller plans, table by table.

use std::time::Duration;

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
use carrack_types::kubevirt::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::VmiController;
use crate::controllers::Config;
use crate::controllers::testing::cached;

mod data_volumes;
mod settings;

const NOW: Time = Time::from_unix_s(1_000_000);

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn vmi(phase: &str, more: Value) -> VirtualMachineInstance {
    let mut object = json!({
        "metadata": {"name": "demo", "namespace": "ns", "uid": "vmi-uid", "resourceVersion": "9",
            "labels": {"app": "x"}, "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"]},
        "spec": {
            "domain": {
                "cpu": {"cores": 2},
                "resources": {"requests": {"memory": "128Mi"}},
                "devices": {
                    "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
            "terminationGracePeriodSeconds": 10,
            "volumes": [{"name": "root", "containerDisk": {"image": "demo:1"}}]},
        "status": {"phase": phase, "nodeName": if phase == "Running" { "n1" } else { "" }},
    });
    merge(&mut object, more);
    read(object)
}

fn pod(state: &str, more: Value) -> Pod {
    let container = |name: &str| {
        let state = match state {
            "running" => json!({"running": {}}),
            "ended" => json!({"terminated": {"exitCode": 0}}),
            reason => json!({"waiting": {"reason": reason, "message": "no such image"}}),
        };
        json!({"name": name, "state": state, "ready": false, "image": "", "imageID": "", "restartCount": 0,
            "containerID": if matches!(state["waiting"], Value::Null) { json!("containerd://1") } else { Value::Null }})
    };
    let phase = match state {
        "running" => "Running",
        "ended" => "Succeeded",
        _ => "Pending",
    };
    let mut object = json!({
        "metadata": {"name": "virt-launcher-demo-abcde", "namespace": "ns", "uid": "pod-uid", "resourceVersion": "5",
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "demo",
                "uid": "vmi-uid", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "compute", "image": "launcher:1"}, {"name": "volumeroot"}]},
        "status": {"phase": phase, "containerStatuses": [container("compute"), container("volumeroot")],
            "conditions": [{"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"}]},
    });
    merge(&mut object, more);
    read(object)
}

fn node(schedulable: &str, devices: &[&str]) -> Node {
    let capacity: Value = devices
        .iter()
        .map(|name| (format!("devices.kubevirt.io/{name}"), json!("1k")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    read(json!({"metadata": {"name": "n1", "labels": {"kubevirt.io/schedulable": schedulable}},
        "status": {"capacity": capacity}}))
}

fn caches(vmi: VirtualMachineInstance, pod: Option<Pod>, node: Option<Node>, cluster: Option<KubeVirt>) -> Caches {
    Caches::new()
        .with([vmi])
        .with(pod.map(cached))
        .with(node)
        .with(cluster)
        .with::<PersistentVolumeClaim>([])
        .with::<VirtualMachine>([])
        .with_source::<Lease>(crate::fence::leases(), [])
}

fn controller() -> VmiController {
    let config =
        Config { launcher_image: "launcher:1".to_owned(), keep_alive_dir: "/opt/keep".to_owned(), planted: None };
    VmiController::new(config)
}

fn plan_with(vmi: VirtualMachineInstance, pod: Option<Pod>, node: Option<Node>, cluster: Option<KubeVirt>) -> Plan {
    let caches = caches(vmi, pod, node, cluster);
    controller().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
}

fn plan(vmi: VirtualMachineInstance, pod: Option<Pod>) -> Plan {
    plan_with(vmi, pod, Some(node("true", &["kvm", "tun", "vhost-net"])), None)
}

/// What is patched into the instance.
fn patched(plan: &Plan) -> Value {
    plan.writes
        .iter()
        .find_map(|write| match write {
            Write::Patch { resource, patch, .. } if resource.plural == "virtualmachineinstances" => Some(patch.clone()),
            _ => None,
        })
        .unwrap_or_default()
}

fn created(plan: &Plan) -> Option<Value> {
    plan.writes.iter().find_map(|write| match write {
        Write::Create { object, .. } => Some(object.clone()),
        _ => None,
    })
}

fn deleted(plan: &Plan) -> usize {
    plan.writes.iter().filter(|write| matches!(write, Write::Delete { .. })).count()
}

fn condition<'a>(patch: &'a Value, kind: &str) -> &'a Value {
    let all = patch["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Its pod is Guaranteed, and goes where CPUs are given away.
#[test]
fn a_machine_with_cpus_of_its_own() {
    let check = |cpu: Value, resources: Value, cpus: &str| {
        let mut instance = vmi("", json!({"spec": {"domain": {"cpu": cpu, "devices": {"logSerialConsole": true}}}}));
        instance.spec.domain.resources = read(resources.clone());
        let pod = created(&plan(instance, None)).expect("a pod");
        assert_eq!(pod["spec"]["nodeSelector"]["cpumanager"], "true");
        for container in pod["spec"]["containers"].as_array().expect("containers") {
            let of = |list: &str| ["cpu", "memory"].map(|name| container["resources"][list][name].clone());
            assert_eq!(of("requests"), of("limits"), "{resources} {}", container["name"]);
            if container["name"] == "compute" {
                assert_eq!(of("requests")[0], cpus, "{resources}");
            }
        }
    };
    let memory = || json!({"requests": {"memory": "64Mi"}});
    let own = |cores: u32, isolated: bool| json!({"cores": cores, "dedicatedCpuPlacement": true, "isolateEmulatorThread": isolated});
    check(own(2, false), memory(), "2");
    check(own(2, true), memory(), "3");
    check(own(2, false), json!({"requests": {"memory": "64Mi", "cpu": "2"}}), "2");
    check(own(2, false), json!({"limits": {"memory": "64Mi"}}), "2");
    check(own(2, true), json!({"limits": {"memory": "64Mi", "cpu": "2"}}), "3");
    let plain = created(&plan(vmi("", json!({})), None)).expect("a pod");
    assert_eq!(plain["spec"]["nodeSelector"].get("cpumanager"), None);
}

/// Who asks for just what he is limited to has a pod that is Guaranteed, with all its containers.
#[test]
fn what_is_limited_to_what_is_asked_for_is_guaranteed() {
    let check = |resources: Value, wanted: bool| {
        let mut instance = vmi("", json!({"spec": {"domain": {"devices": {"logSerialConsole": true}}}}));
        instance.spec.domain.resources = read(resources.clone());
        let pod = created(&plan(instance, None)).expect("a pod");
        let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        assert_eq!(containers.len(), 3);
        let of =
            |container: &Value, list: &str| ["cpu", "memory"].map(|name| container["resources"][list][name].clone());
        // The guest's own is as it was written.
        let is_all = containers[1..].iter().all(|container| of(container, "requests") == of(container, "limits"));
        assert_eq!(is_all, wanted, "{resources}");
    };
    let both = || json!({"cpu": "1", "memory": "64M"});
    check(json!({"requests": both(), "limits": both()}), true);
    check(json!({"requests": {"cpu": "1000m", "memory": "64000k"}, "limits": both()}), true);
    check(json!({"limits": both()}), true);
    check(json!({"requests": {"cpu": "500m", "memory": "64M"}, "limits": both()}), false);
    check(json!({"requests": both(), "limits": {"memory": "64M"}}), false);
    check(json!({"requests": both()}), false);
}

/// Overcommitted is what nobody has limited, nor asked for.
#[test]
fn memory_that_is_limited_is_asked_for() {
    let check = |resources: Value, is_limited: bool, is_all: bool| {
        let mut instance = vmi("", json!({"spec": {"domain": {"memory": {"guest": "64Mi"}}}}));
        instance.spec.domain.resources = read(resources.clone());
        let cluster = read(json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": {"developerConfiguration": {"memoryOvercommit": 200}}}}));
        let pod = created(&plan_with(instance, None, Some(node("true", &[])), Some(cluster))).expect("a pod");
        let of = |list: &str| pod["spec"]["containers"][0]["resources"][list]["memory"].clone();
        assert_eq!(!of("limits").is_null(), is_limited, "{resources}");
        assert_eq!(of("requests") == of("limits"), is_all, "{resources}");
    };
    check(json!({}), false, false);
    check(json!({"limits": {"memory": "64Mi"}}), true, true);
    check(json!({"limits": {"memory": "128Mi"}}), true, true);
    check(json!({"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}}), true, false);
}

const GOING: &str = "2026-01-01T00:00:00Z";

#[test]
fn phases() {
    let check = |name: &str, vmi: VirtualMachineInstance, pod: Option<Pod>, phase: Option<&str>, deletes: usize| {
        let plan = plan(vmi, pod);
        assert_eq!(patched(&plan)["status"]["phase"].as_str(), phase, "{name}");
        assert_eq!(deleted(&plan), deletes, "{name}");
    };
    let deleting = json!({"metadata": {"deletionTimestamp": GOING}});
    check("accepted", vmi("", json!({})), None, Some("Pending"), 0);
    check(
        "its pod is there",
        vmi("Pending", json!({})),
        Some(pod("ContainerCreating", json!({}))),
        Some("Scheduling"),
        0,
    );
    check("its pod does not run yet", vmi("Scheduling", json!({})), Some(pod("ContainerCreating", json!({}))), None, 0);
    check("its pod runs", vmi("Scheduling", json!({})), Some(pod("running", json!({}))), Some("Scheduled"), 0);
    check(
        "one of its pod's containers ended before all ran",
        vmi("Scheduling", json!({})),
        Some(pod("ended", json!({"status": {"phase": "Running"}}))),
        Some("Failed"),
        1,
    );
    check("its pod vanished", vmi("Scheduling", json!({})), None, Some("Failed"), 0);
    check(
        "its pod was refused",
        vmi("Scheduling", json!({})),
        Some(pod("x", json!({"status": {"phase": "Failed"}}))),
        Some("Failed"),
        0,
    );
    check("deleted before it had a pod", vmi("Pending", deleting.clone()), None, Some("Failed"), 0);
    check(
        "deleted while scheduling",
        vmi("Scheduling", deleting.clone()),
        Some(pod("running", json!({}))),
        Some("Failed"),
        1,
    );
    // How it ended is for the handler to say.
    check(
        "deleted while running: its pod goes along",
        vmi("Running", deleting.clone()),
        Some(pod("running", json!({}))),
        None,
        1,
    );
    check(
        "deleted, and its pod is on its way",
        vmi("Running", deleting.clone()),
        Some(pod("running", deleting.clone())),
        None,
        0,
    );
    check(
        "its pod runs before it was told of",
        vmi("", json!({})),
        Some(pod("running", json!({}))),
        Some("Scheduled"),
        0,
    );
    let failed = || json!({"status": {"phase": "Failed"}});
    check("its launcher failed", vmi("Scheduled", json!({})), Some(pod("ended", failed())), Some("Failed"), 0);
    let pod_failed = Some(pod("ended", failed()));
    check("deleted before its guest began", vmi("Scheduled", deleting.clone()), pod_failed, Some("Succeeded"), 1);
    check("a running one's pod ended", vmi("Running", json!({})), Some(pod("ended", json!({}))), Some("Succeeded"), 0);
    // The pod's phase alone is no proof while a container is still reported to run.
    check(
        "a running one's pod failed on paper",
        vmi("Running", json!({})),
        Some(pod("running", json!({"status": {"phase": "Failed"}}))),
        None,
        0,
    );
    let unsaid = json!({"status": {"phase": "Failed", "containerStatuses": []}});
    check("a running one's pod was given up", vmi("Running", json!({})), Some(pod("running", unsaid)), None, 0);
    check("a running one's pod is gone, its node is not", vmi("Running", json!({})), None, None, 0);
    check("final: a pod that runs on goes", vmi("Succeeded", json!({})), Some(pod("running", json!({}))), None, 1);
    check("final: its pod has ended, and stays", vmi("Succeeded", json!({})), Some(pod("ended", json!({}))), None, 0);
    let going = vmi("Succeeded", deleting.clone());
    check("final and deleted: its pod goes", going, Some(pod("ended", json!({}))), None, 1);
    let just = json!({"status": {"nodeName": "n1", "phaseTransitionTimestamps": [
        {"phase": "Succeeded", "phaseTransitionTimestamp": NOW.rfc3339()}]}});
    check(
        "just final: its launcher ends by itself",
        vmi("Succeeded", just.clone()),
        Some(pod("running", json!({}))),
        None,
        0,
    );
    let ahead = Time::from_unix_s(1_003_600).rfc3339();
    let ahead = json!({"status": {"nodeName": "n1", "phaseTransitionTimestamps": [
        {"phase": "Succeeded", "phaseTransitionTimestamp": ahead}]}});
    let ahead = vmi("Succeeded", ahead);
    check("its node's clock is an hour ahead: it is not waited for", ahead, Some(pod("running", json!({}))), None, 1);
    let disks = Some(pod("ended", json!({"status": {"phase": "Running"}})));
    check("just final: what holds its disks ends, too", vmi("Succeeded", just.clone()), disks.clone(), None, 0);
    let gone = vmi("Succeeded", json!({"metadata": deleting["metadata"], "status": just["status"]}));
    check("just final and deleted: nothing of it is waited for", gone, disks, None, 1);
    check("final: a pod that goes is left", vmi("Succeeded", json!({})), Some(pod("running", deleting)), None, 0);
}

#[test]
fn a_removed_node_takes_its_instances_along() {
    let plan = plan_with(vmi("Running", json!({})), None, None, None);
    assert_eq!(patched(&plan)["status"]["phase"], "Failed");
}

#[test]
fn the_finalizer_goes_last() {
    let going = || vmi("Failed", json!({"metadata": {"deletionTimestamp": GOING}}));
    assert_eq!(patched(&plan(going(), None))["metadata"]["finalizers"], json!([]));
    let held = patched(&plan(going(), Some(pod("running", json!({"metadata": {"deletionTimestamp": GOING}})))));
    assert_eq!(held["metadata"].get("finalizers"), None);
}

#[test]
fn the_pod_comes_after_the_finalizer() {
    let fresh = vmi("", json!({"metadata": {"finalizers": []}}));
    let plan = plan(fresh, None);
    assert!(matches!(plan.writes[..], [Write::Patch { .. }, Write::Create { .. }]), "{:?}", plan.writes);
    assert_eq!(patched(&plan)["metadata"]["finalizers"], json!(["kubevirt.io/foregroundDeleteVirtualMachine"]));
}

#[test]
fn handoff_names_the_node() {
    let patch = patched(&plan(vmi("Scheduling", json!({})), Some(pod("running", json!({})))));
    assert_eq!(patch["status"]["nodeName"], "n1");
    assert_eq!(patch["metadata"]["labels"]["kubevirt.io/nodeName"], "n1");
    assert_eq!(patch["status"]["activePods"], json!({"pod-uid": "n1"}));
    assert_eq!(patch["status"]["launcherContainerImageVersion"], "launcher:1");
}

#[test]
fn the_hand_over_tells_the_term_in_which_a_bound_guest_starts() {
    let check = |name: &str, state: &str, failover: &str, lease: Option<Value>, token: Option<&str>| {
        let annotations = json!({"metadata": {"annotations": {"kubevirt.io/failover": failover}}});
        let lease = lease.map(|more| {
            let mut object = json!({"metadata": {"namespace": "kubevirt-node-lease", "name": "n1"},
                "spec": {"leaseTransitions": 3}});
            merge(&mut object, more);
            read::<Lease>(object)
        });
        let caches = caches(vmi("Scheduling", annotations), Some(pod(state, json!({}))), None, None)
            .with_source(crate::fence::leases(), lease);
        let patch = patched(&controller().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW));
        let told = patch["metadata"]["annotations"]["kubevirt.io/fencing-token"].as_str();
        assert_eq!(told, token, "{name}: {patch}");
    };
    check("held", "running", "true", Some(json!({})), Some("3"));
    check("not handed over yet", "ContainerCreating", "true", Some(json!({})), None);
    check("not bound", "running", "its disk lies on one node", Some(json!({})), None);
    // The handler tells it itself, once it holds the Lease.
    check("never taken", "running", "true", None, None);
    let marked = json!({"metadata": {"annotations": {"kubevirt.io/fenced": "then"}}});
    check("marked", "running", "true", Some(marked), None);
    check("another node's", "running", "true", Some(json!({"metadata": {"name": "n2"}})), None);
}

#[test]
fn steps_that_were_not_told_are_kept() {
    let made = |at: Time| json!({"metadata": {"creationTimestamp": at.rfc3339()}});
    let [accepted, scheduling] = [3, 2].map(|age_s| Time(NOW.0 - age_s * 1_000_000_000));
    let patch = patched(&plan(vmi("", made(accepted)), Some(pod("running", made(scheduling)))));
    let steps = patch["status"]["phaseTransitionTimestamps"].as_array().map_or(&[][..], Vec::as_slice);
    let told: Vec<_> =
        steps.iter().map(|step| (step["phase"].as_str(), step["phaseTransitionTimestamp"].clone())).collect();
    let expected = [("Pending", accepted), ("Scheduling", scheduling), ("Scheduled", NOW)];
    assert_eq!(told, expected.map(|(phase, at)| (Some(phase), json!(at.rfc3339()))));
}

#[test]
fn steps_wait_for_what_they_come_to() {
    let check = |name: &str, plan: Plan, wait: Option<Duration>| {
        assert_eq!(plan.patient.first().map(|(_, wait)| *wait), wait, "{name}");
    };
    let (step, moment) = (Some(Duration::from_secs(2)), Some(Duration::from_millis(500)));
    check("its pod is made", plan(vmi("", json!({})), None), step);
    check("its pod is there", plan(vmi("", json!({})), Some(pod("ContainerCreating", json!({})))), step);
    let unschedulable =
        json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}});
    check("no node for it", plan(vmi("", json!({})), Some(pod("ContainerCreating", unschedulable))), moment);
    check("no image", plan(vmi("", json!({})), Some(pod("ErrImagePull", json!({})))), moment);
    check("it is handed over", plan(vmi("", json!({})), Some(pod("running", json!({})))), None);
    check("it has failed", plan(vmi("Scheduling", json!({})), None), None);
    let going = json!({"metadata": {"deletionTimestamp": GOING}});
    check(
        "it has ended as it was asked to",
        plan(vmi("Running", going.clone()), Some(pod("ended", going.clone()))),
        step,
    );
    check("it has ended by itself", plan(vmi("Running", json!({})), Some(pod("ended", json!({})))), step);
    for phase in ["Scheduled", "Running"] {
        let failed = Some(pod("ended", json!({"status": {"phase": "Failed"}})));
        check("it has failed on its node", plan(vmi(phase, json!({})), failed), step);
    }
    let unstarted = Some(pod("ContainerCreating", json!({})));
    check("it is deleted before its node has it", plan(vmi("Scheduling", going.clone()), unstarted), None);
    check("it is on its way out", plan(vmi("Running", going.clone()), Some(pod("running", going))), step);
}

#[test]
fn what_wakes_those_that_wait() {
    let is_another = |old: Node, new: Node, wanted: bool| assert_eq!(super::is_another(&old, &new), wanted, "{new:?}");
    let mut beat = node("true", &["kvm"]);
    beat.status.get_or_insert_default().phase = Some("Running".to_owned());
    let mut cordoned = node("true", &["kvm"]);
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    is_another(node("true", &["kvm"]), beat, false);
    is_another(node("true", &["kvm"]), node("true", &["kvm", "tun"]), true);
    is_another(node("false", &["kvm"]), node("true", &["kvm"]), true);
    is_another(cordoned, node("true", &["kvm"]), true);

    let volumes = json!([{"name": "root", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "log", "emptyDisk": {"capacity": "1Gi"}}]);
    let of = |phase: &str| super::by_wait(&vmi(phase, json!({"spec": {"volumes": volumes}})));
    assert_eq!((of("Pending"), of("")), (vec!["waits".to_owned(), "ns/data".to_owned()], of("Pending")));
    assert!(of("Scheduling").is_empty(), "it has a pod");
}

#[test]
fn obstacles_show_in_conditions() {
    let claim = json!({"spec": {"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let missing = plan(vmi("Pending", claim), None);
    assert!(created(&missing).is_none());
    assert_eq!(condition(&patched(&missing), "Synchronized")["reason"], "FailedPvcNotFound");
    let unscheduled = condition(&patched(&missing), "PodScheduled").clone();
    assert_eq!(unscheduled["reason"], "Unschedulable");
    assert_eq!(unscheduled["message"], "PVC data does not exist, waiting for it to appear");
    assert_eq!(missing.events[0].reason, "FailedPvcNotFound");

    let mut cordoned = node("true", &["kvm"]);
    cordoned.spec.get_or_insert_default().unschedulable = Some(true);
    let mut silent = node("true", &["kvm"]);
    silent.status = None;
    for unready in [node("false", &["kvm"]), cordoned, silent] {
        let no_node = plan_with(vmi("Pending", json!({})), None, Some(unready), None);
        assert!(created(&no_node).is_none());
        assert_eq!(condition(&patched(&no_node), "PodScheduled")["reason"], "Unschedulable");
    }

    let pulling = plan(vmi("Scheduling", json!({})), Some(pod("ErrImagePull", json!({}))));
    assert_eq!(condition(&patched(&pulling), "Synchronized")["reason"], "ErrImagePull");
    assert_eq!(condition(&patched(&pulling), "Synchronized")["message"], "no such image");

    let odd = json!({"spec": {"volumes": [{"name": "root", "downwardMetrics": {}}]}});
    assert_eq!(condition(&patched(&plan(vmi("Pending", odd), None)), "Synchronized")["reason"], "FailedCreate");

    let stuck = pod(
        "ContainerCreating",
        json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]}}),
    );
    assert_eq!(
        condition(&patched(&plan(vmi("Scheduling", json!({})), Some(stuck))), "PodScheduled")["message"],
        "0/1 nodes"
    );
}

/// What the server says of a pod that it refuses is told, and stands until there is one.
#[test]
fn a_refused_pod_is_told() {
    let error: StatusError = read(json!({"code": 403, "message": "exceeded quota"}));
    let pending = |status: Value| {
        let mut instance = vmi("Pending", json!({}));
        if let Some(now) = instance.status.as_mut() {
            now.conditions = read(status);
        }
        instance
    };
    let refuse = |conditions: Value| {
        let made = plan(pending(json!([])), None).writes;
        let write = made.iter().find(|write| matches!(write, Write::Create { .. })).expect("a pod").clone();
        let caches = caches(pending(conditions), None, None, None);
        let refusal = Refusal { write: &write, error: &error };
        controller().refused(&Key::new("ns", "demo"), &caches.view(), &refusal, NOW)
    };
    let told = refuse(json!([]));
    assert_eq!(told.events[0].message, "Error creating pod: exceeded quota");
    let told = patched(&told)["status"]["conditions"][0].clone();
    assert_eq!((&told["type"], &told["reason"]), (&json!("Synchronized"), &json!("FailedCreate")));
    assert_eq!(told["message"], "failed to create virtual machine pod: exceeded quota");
    let again = refuse(json!([told]));
    assert_eq!((again.writes.len(), again.events.len()), (0, 1), "{again:?}");
    let kept = |pod: Option<Pod>| {
        let conditions = patched(&plan(pending(json!([told])), pod))["status"]["conditions"].clone();
        conditions.as_array().is_none_or(|all| all.iter().any(|condition| condition["type"] == "Synchronized"))
    };
    assert!(kept(None));
    assert!(!kept(Some(pod("running", json!({})))));
}

#[test]
fn a_pod_without_its_networks_is_told_once() {
    let why = "there is no NetworkAttachmentDefinition ns/lan";
    let failed =
        || pod("ContainerCreating", json!({"metadata": {"annotations": {"networks.carrack.io/failure": why}}}));
    let told = plan(vmi("Scheduling", json!({})), Some(failed()));
    let patch = patched(&told);
    let condition = condition(&patch, "Synchronized");
    assert_eq!((&condition["reason"], &condition["message"]), (&json!("FailedAttachNetworks"), &json!(why)));
    assert_eq!((told.events[0].reason.as_str(), told.patient.len()), ("FailedAttachNetworks", 0));
    let again = vmi("Scheduling", json!({"status": {"conditions": [condition]}}));
    assert!(plan(again, Some(failed())).events.is_empty(), "it says so already");
}

#[test]
fn further_networks_are_asked_for_by_name_interface_and_hardware_address() {
    let annotation = |more: Value| {
        let pod = created(&plan(vmi("", more), None)).expect("a pod");
        let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].clone();
        text.as_str().map(|text| serde_json::from_str::<Value>(text).expect("JSON")).unwrap_or_default()
    };
    assert_eq!(annotation(json!({})), Value::Null);
    let with = |network: &str, nic: Value| {
        let mut nic = nic;
        nic["name"] = json!("second");
        annotation(json!({"spec": {
            "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, nic]}},
            "networks": [{"name": "default", "pod": {}}, {"name": "second", "multus": {"networkName": network}}]}}))
    };
    // The name of the interface: eleven digits of the SHA-256 of the network's name in the spec.
    let interface = "pod16367aacb67";
    assert_eq!(with("lan", json!({"bridge": {}})), json!([{"namespace": "ns", "name": "lan", "interface": interface}]));
    assert_eq!(
        with("other/lan", json!({"bridge": {}, "macAddress": "02-00-00-00-00-AA"})),
        json!([{"namespace": "other", "name": "lan", "interface": interface, "mac": "02:00:00:00:00:aa"}])
    );
}

#[test]
fn readiness_follows_the_pod_and_the_guest() {
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let of = |vmi, pod| condition(&patched(&plan(vmi, pod)), "Ready")["status"].clone();
    assert_eq!(of(vmi("Running", json!({})), Some(pod("running", ready.clone()))), "True");
    assert_eq!(of(vmi("Scheduled", json!({})), Some(pod("running", ready))), "False");
    let why = |vmi, pod| condition(&patched(&plan(vmi, pod)), "Ready")["reason"].clone();
    assert_eq!(why(vmi("Pending", json!({})), None), "PodNotExists");
    assert_eq!(why(vmi("Failed", json!({})), None), "GuestNotRunning");
    assert_eq!(why(vmi("Failed", json!({})), Some(pod("ended", json!({})))), "PodTerminating");
    // A paused guest closes the gate.
    let paused = vmi("Running", json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}}));
    let gate = plan(paused, Some(pod("running", json!({}))));
    assert!(gate.writes.iter().any(|write| matches!(write, Write::Patch { resource, sub: "status", patch, .. }
        if resource.plural == "pods" && patch["status"]["conditions"][0]["status"] == "False")));
}

#[test]
fn the_launcher_pod() {
    let made = created(&plan(vmi("", json!({})), None)).expect("a pod");
    let again = created(&plan(vmi("", json!({})), None)).expect("a pod");
    assert_eq!(made, again);
    let name = made["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("virt-launcher-demo-") && name.len() == 24, "{name}");
    for (label, value) in [
        ("kubevirt.io", "virt-launcher"),
        ("kubevirt.io/created-by", "vmi-uid"),
        ("vm.kubevirt.io/name", "demo"),
        ("app", "x"),
    ] {
        assert_eq!(made["metadata"]["labels"][label], value);
    }
    assert_eq!(made["metadata"]["annotations"]["kubevirt.io/domain"], "demo");
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "vmi-uid");
    let spec = &made["spec"];
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["terminationGracePeriodSeconds"], 40);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["nodeSelector"]["kubevirt.io/schedulable"], "true");
    assert_eq!(spec["containers"][0]["name"], "compute");
    assert_eq!(spec["containers"][1]["name"], "volumeroot");
    assert_eq!(spec["containers"][1]["image"], "demo:1");
    let annotated = json!({"a": "b", "kubevirt.io/test": "t", "kubernetes.io/test": "t",
        "kubectl.kubernetes.io/last-applied-configuration": "{}", "kubevirt.io/started-from": "{}",
        "kubevirt.io/failover": "true", "kubevirt.io/latest-observed-api-version": "v1"});
    let annotated = created(&plan(vmi("", json!({"metadata": {"annotations": annotated}})), None)).expect("a pod");
    let mut carried = annotated["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    made["metadata"]["annotations"].as_object().into_iter().flatten().for_each(|(key, _)| drop(carried.remove(key)));
    assert_eq!(Value::from(carried), json!({"a": "b", "kubevirt.io/test": "t", "kubernetes.io/test": "t"}));
    let nameless = created(&plan(vmi("", json!({"spec": {"hostname": ""}})), None)).expect("a pod");
    assert_eq!((&spec["hostname"], &nameless["spec"]["hostname"]), (&json!("demo"), &json!("demo")));
    let resources = &spec["containers"][0]["resources"];
    for device in ["kvm", "tun", "vhost-net"] {
        assert_eq!(resources["limits"][format!("devices.kubevirt.io/{device}")], "1", "{device}");
        assert_eq!(resources["requests"][format!("devices.kubevirt.io/{device}")], "1", "{device}");
    }
    assert_eq!(resources["requests"]["cpu"], "200m");
    // 128 MiB for the guest; 96 fixed, 32 for graphics, 16 for two CPUs, 128/512 for page tables.
    let memory = (128 + 96 + 32 + 16) * 1024 * 1024 + 128 * 1024 * 1024 / 512;
    assert_eq!(resources["requests"]["memory"], memory.to_string());
}

#[test]
fn a_claim_that_is_only_to_be_read_is_attached_so() {
    let check = |source: Value, attached: Value, mounted: Value| {
        let mut volume = json!({"name": "root"});
        merge(&mut volume, source.clone());
        let claim = json!({"metadata": {"name": "data", "namespace": "ns"}, "spec": {}});
        let caches = Caches::new()
            .with([vmi("", json!({"spec": {"volumes": [volume]}}))])
            .with::<Pod>([])
            .with([node("true", &["tun"])])
            .with::<KubeVirt>([])
            .with([read::<PersistentVolumeClaim>(claim)])
            .with::<VirtualMachine>([]);
        let plan = controller().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW);
        let pod = created(&plan).expect("a pod");
        let root = |list: &Value| {
            let found = list.as_array().and_then(|all| all.iter().find(|one| one["name"] == "root"));
            found.cloned().unwrap_or_default()
        };
        let of_pod = root(&pod["spec"]["volumes"]);
        assert_eq!(of_pod["persistentVolumeClaim"]["readOnly"], attached, "{source}");
        assert_eq!(root(&pod["spec"]["containers"][0]["volumeMounts"])["readOnly"], mounted, "{source}");
    };
    let claim = |more: Value| json!({"persistentVolumeClaim": more});
    let read_only = || claim(json!({"claimName": "data", "readOnly": true}));
    check(claim(json!({"claimName": "data"})), Value::Null, Value::Null);
    check(claim(json!({"claimName": "data", "readOnly": false})), Value::Null, Value::Null);
    check(read_only(), json!(true), json!(true));
    check(json!({"ephemeral": claim(json!({"claimName": "data"}))}), Value::Null, json!(true));
    check(json!({"ephemeral": read_only()}), json!(true), json!(true));
}

/// The node's handler reads them off the pod.
#[test]
fn the_clusters_smbios_strings_go_along() {
    let told = |configuration: Value| {
        let cluster = read(json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": configuration}}));
        let theirs = json!({"metadata": {"annotations": {"kubevirt.io/smbios": "theirs"}}});
        let pod = created(&plan_with(vmi("", theirs), None, Some(node("true", &[])), Some(cluster))).expect("a pod");
        let text = pod["metadata"]["annotations"]["kubevirt.io/smbios"].as_str().map(str::to_owned);
        text.map(|text| serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    assert_eq!(told(json!({})), None);
    let strings = json!({"manufacturer": "Acme", "sku": "7"});
    assert_eq!(told(json!({"smbios": strings})), Some(strings));
}

#[test]
fn devices_are_asked_for_as_far_as_nodes_have_them() {
    let asked = |node: Node, cluster: Option<KubeVirt>| {
        let pod = created(&plan_with(vmi("", json!({})), None, Some(node), cluster)).expect("a pod");
        let limits = pod["spec"]["containers"][0]["resources"]["limits"].clone();
        ["kvm", "tun", "vhost-net"].map(|name| limits.get(format!("devices.kubevirt.io/{name}")).is_some())
    };
    assert_eq!(asked(node("true", &["kvm", "tun", "vhost-net"]), None), [true, true, true]);
    assert_eq!(asked(node("true", &["tun"]), None), [false, true, false]);
    let emulate = read(json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
        "spec": {"configuration": {"developerConfiguration": {"useEmulation": true}}}}));
    assert_eq!(asked(node("true", &["kvm", "tun", "vhost-net"]), Some(emulate)), [false, true, false]);
    // A kubelet after a reboot, whose plugins are not back yet.
    let rebooted = |lost: Option<&str>| {
        let mut node = node("true", &["kvm", "tun", "vhost-net"]);
        let listed = node.status.as_mut().and_then(|status| status.capacity.as_mut()).expect("a list");
        listed.values_mut().for_each(|amount| amount.0 = "0".to_owned());
        node.metadata.annotations =
            lost.map(|names| [("kubevirt.io/lost-devices".to_owned(), names.to_owned())].into());
        node
    };
    assert_eq!(asked(rebooted(None), None), [true, true, true]);
    assert_eq!(
        asked(rebooted(Some("devices.kubevirt.io/kvm,devices.kubevirt.io/vhost-net")), None),
        [false, true, false]
    );
}

/// An instance of the machine `m-uid` whose firmware keeps its variables, and what is planned for it beside these claims.
fn keeping(claims: Vec<Value>, machine: Option<&str>) -> Plan {
    let owner = |uid: &str| json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo", "uid": uid, "controller": true}]);
    let loader = json!({"efi": {"secureBoot": false, "persistent": true}});
    let vmi = vmi(
        "",
        json!({
            "metadata": {"ownerReferences": machine.map_or(json!([]), owner)},
            "spec": {"domain": {"firmware": {"bootloader": loader}}},
        }),
    );
    let cluster: KubeVirt =
        read(json!({"metadata": {"name": "kubevirt"}, "spec": {"configuration": {"vmStateStorageClass": "small"}}}));
    let claims = claims.into_iter().map(|found| {
        let name = crate::identity::state_claim_name("demo", "m-uid");
        let mut claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {}});
        merge(&mut claim, found);
        read::<PersistentVolumeClaim>(claim)
    });
    let caches = Caches::new()
        .with([vmi])
        .with::<Pod>([])
        .with([node("true", &["tun"])])
        .with([cluster])
        .with(claims)
        .with::<VirtualMachine>([]);
    let config =
        Config { launcher_image: "launcher:1".to_owned(), keep_alive_dir: "/opt/keep".to_owned(), planted: None };
    VmiController::new(config).reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
}

#[test]
fn what_firmware_keeps_lies_on_a_claim_of_the_machines() {
    let made = |plan: &Plan| -> Vec<Value> {
        let objects = plan.writes.iter().filter_map(|write| match write {
            Write::Create { object, .. } => Some(object.clone()),
            _ => None,
        });
        objects.collect()
    };
    // The claim first, and then the pod that has it.
    let plan = keeping(Vec::new(), Some("m-uid"));
    let [claim, pod] = &made(&plan)[..] else { panic!("{plan:?}") };
    let name = claim["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("persistent-state-for-demo-"), "{name}");
    assert_eq!(claim["metadata"]["labels"], json!({"persistent-state-for": "demo"}));
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "m-uid");
    let spec = &claim["spec"];
    assert_eq!((&spec["storageClassName"], &spec["accessModes"]), (&json!("small"), &json!(["ReadWriteOnce"])));
    assert_eq!(
        (&spec["volumeMode"], &spec["resources"]["requests"]["storage"]),
        (&json!("Filesystem"), &json!("10Mi"))
    );
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    assert!(volumes.contains(&json!({"name": "vm-state", "persistentVolumeClaim": {"claimName": name}})), "{pod}");
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let mount = json!({"name": "vm-state", "mountPath": "/var/lib/libvirt/qemu/nvram", "subPath": "nvram"});
    assert!(mounts.contains(&mount), "{mounts:?}");
    let listed = patched(&plan)["status"]["volumeStatus"].clone();
    assert!(listed.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name)), "{listed}");

    // It is there already, and the next instance has it.
    let owned = json!({"metadata": {"ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "name": "demo", "uid": "m-uid", "controller": true}]}});
    assert_eq!(made(&keeping(vec![owned], Some("m-uid"))).len(), 1);
    // It is somebody else's: nothing is made.
    let plan = keeping(vec![json!({})], Some("m-uid"));
    assert!(made(&plan).is_empty(), "{plan:?}");
    let message = condition(&patched(&plan), "Synchronized")["message"].clone();
    assert!(message.as_str().is_some_and(|text| text.contains("does not belong to demo")), "{message}");
    // An instance without a machine has a claim of its own.
    let alone = made(&keeping(Vec::new(), None));
    assert_eq!(alone[0]["metadata"]["ownerReferences"][0]["uid"], "vmi-uid");
    assert_ne!(alone[0]["metadata"]["name"], name);
}
