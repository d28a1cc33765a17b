//! Silence, suspicion, fencing, and what becomes of instances.

use carrack_engine::testing::Caches;
use carrack_engine::{Absent, Controller, Key, Plan, Time, Write};
use carrack_types::volume::{DEAD_USERS, VOLUME_USERS, attachment_name, flex_attachment_name};
use carrack_types::well_known::kubevirt::{NODE_LEASE_NAMESPACE, NODE_UNRESPONSIVE};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::recovery::RecoveryController;
use super::*;
use crate::identity::consumer_pod_name;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

fn node(label: &str, heartbeat: Option<&str>) -> Node {
    let heartbeat = heartbeat.map_or(json!({}), |heartbeat| json!({HEARTBEAT_ANNOTATION: heartbeat}));
    of(json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {SCHEDULABLE_LABEL: label},
        "annotations": heartbeat}}))
}

fn lease(revision: u32, term: i32, marked: bool) -> Lease {
    let mark = if marked { json!({FENCED_ANNOTATION: "then"}) } else { json!({}) };
    of(json!({"metadata": {"namespace": NODE_LEASE_NAMESPACE, "name": "n", "uid": "l",
        "resourceVersion": revision.to_string(), "annotations": mark},
        "spec": {"holderIdentity": "n", "leaseDurationSeconds": 10, "leaseTransitions": term}}))
}

fn instance(phase: &str, failover: &str, token: &str) -> VirtualMachineInstance {
    of(json!({"metadata": {"namespace": "ns", "name": "v", "uid": "v", "resourceVersion": "7",
        "annotations": {"kubevirt.io/failover": failover, "kubevirt.io/fencing-token": token}},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": phase, "nodeName": "n"}}))
}

/// The instance's pod on the node.
fn launcher() -> Pod {
    of(json!({"metadata": {"namespace": "ns", "name": "p", "uid": "p", "labels": {"kubevirt.io": "virt-launcher"},
        "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "v", "uid": "v",
            "controller": true}]}, "spec": {"nodeName": "n", "containers": []}}))
}

/// What a plan writes, in a few words.
fn words(plan: &Plan) -> Vec<String> {
    let word = |write: &Write| match write {
        Write::Patch { key, patch, .. } => {
            let (metadata, status) = (&patch["metadata"], &patch["status"]);
            let label = metadata["labels"][SCHEDULABLE_LABEL].as_str().map(|label| format!("schedulable={label}"));
            let mark = metadata["annotations"][FENCED_ANNOTATION].as_str().map(|_| "mark".to_owned());
            let phase = status["phase"].as_str().map(|phase| format!("{phase} {}", status["reason"]));
            let condition = status["conditions"][0]["reason"].as_str().map(str::to_owned);
            let what = label.or(mark).or(phase).or(condition).unwrap_or_else(|| patch.to_string());
            format!("{} at {}: {what}", key.name, metadata["resourceVersion"])
        }
        Write::Create { object, .. } => {
            let mark = object["metadata"]["annotations"][FENCED_ANNOTATION].is_string();
            format!("make {}, marked {mark}, term {}", write.key().name, object["spec"]["leaseTransitions"])
        }
        other => format!("{other:?}"),
    };
    plan.writes.iter().map(word).collect()
}

fn indexed() -> Caches {
    Caches::new().with_index(BY_PLACE, by_place).with_index(BY_NODE, by_node)
}

fn caches(nodes: &[Node], leases: &[Lease], instances: &[VirtualMachineInstance]) -> Caches {
    indexed()
        .with(nodes.to_vec())
        .with_source(fence::leases(), leases.to_vec())
        .with(instances.to_vec())
        .with::<Pod>([])
}

fn watch(
    c: &mut NodeController,
    nodes: &[Node],
    leases: &[Lease],
    instances: &[VirtualMachineInstance],
    s: i64,
) -> Vec<String> {
    let caches = caches(nodes, leases, instances);
    words(&c.reconcile(&Key::new("", "n"), &caches.view(), Time::from_unix_s(1000 + s)))
}

fn recover(nodes: &[Node], leases: &[Lease], vmi: VirtualMachineInstance) -> Vec<String> {
    let caches = caches(nodes, leases, &[vmi]);
    words(&RecoveryController::default().reconcile(&Key::new("ns", "v"), &caches.view(), Time::from_unix_s(2000)))
}

#[test]
fn a_heartbeat_that_does_not_change_is_silence_also_when_there_is_none() {
    for heartbeat in [Some("1970-01-01T00:00:00Z"), Some("nonsense"), None] {
        let mut c = NodeController::default();
        let nodes = [node("true", heartbeat)];
        assert_eq!(watch(&mut c, &nodes, &[], &[], 0), [""; 0], "{heartbeat:?}");
        assert_eq!(watch(&mut c, &nodes, &[], &[], 299), [""; 0]);
        assert_eq!(watch(&mut c, &nodes, &[], &[], 300), ["n at \"1\": schedulable=false"]);
        // It keeps no Lease: nothing is known of guests that are not bound to one, however long it is silent.
        let silent = [node("false", heartbeat)];
        let local = "its disk exists on one node only";
        assert_eq!(watch(&mut c, &silent, &[], &[instance("Running", local, "")], 9000), [""; 0]);
    }
}

#[test]
fn a_lease_that_nobody_has_is_taken_in_the_nodes_place() {
    let bound = |token: &str| [instance("Running", "true", token)];
    let made = |term: i64| vec![format!("make n, marked true, term {term}")];
    // The node is not in the cluster any more: as soon as the longest promise under a Lease that was deleted is over.
    let mut c = NodeController::default();
    for (s, expected) in [(0, vec![]), (12, vec![]), (13, made(4))] {
        assert_eq!(watch(&mut c, &[], &[], &bound("4"), s), expected, "{s}");
    }
    // It is, and silent: not before it is suspected.
    let mut c = NodeController::default();
    let (up, down) = ([node("true", None)], [node("false", None)]);
    assert_eq!(watch(&mut c, &up, &[], &bound(""), 0), [""; 0]);
    assert_eq!(watch(&mut c, &up, &[], &bound(""), 299), [""; 0]);
    let both: Vec<String> = ["n at \"1\": schedulable=false".to_owned()].into_iter().chain(made(1)).collect();
    assert_eq!(watch(&mut c, &up, &[], &bound(""), 300), both);
    // A handler has it meanwhile.
    assert_eq!(watch(&mut c, &down, &[lease(9, 1, false)], &bound(""), 301), [""; 0]);
    // One that was made anew counts from one; its mark is about what was started before, too.
    let mut c = NodeController::default();
    let term = |plan: &Plan| match plan.writes.last() {
        Some(Write::Patch { patch, .. }) => patch["spec"]["leaseTransitions"].as_i64(),
        _ => None,
    };
    for (s, expected) in [(0, None), (13, Some(4))] {
        let caches = caches(&down, &[lease(6, 1, false)], &bound("4"));
        let plan = c.reconcile(&Key::new("", "n"), &caches.view(), Time::from_unix_s(1000 + s));
        assert_eq!(term(&plan), expected, "{s}");
    }
    // Nobody waits.
    let mut c = NodeController::default();
    for (nodes, guests) in [(&[][..], &[][..]), (&[][..], &[instance("Running", "no other node", "")][..])] {
        for s in [0, 300] {
            assert_eq!(watch(&mut c, nodes, &[], guests, s), [""; 0]);
        }
    }
}

#[test]
fn a_lease_is_marked_only_after_all_that_it_promises_and_a_margin() {
    let mut c = NodeController::default();
    let (up, down) = ([node("true", None)], [node("false", None)]);
    let guests = [instance("Running", "true", "1")];
    assert_eq!(watch(&mut c, &up, &[lease(5, 1, false)], &guests, 0), [""; 0]);
    assert_eq!(watch(&mut c, &up, &[lease(6, 1, false)], &guests, 5), [""; 0]);
    assert_eq!(watch(&mut c, &up, &[lease(6, 1, false)], &guests, 10), [""; 0]);
    assert_eq!(watch(&mut c, &up, &[lease(6, 1, false)], &guests, 11), ["n at \"1\": schedulable=false"]);
    assert_eq!(watch(&mut c, &down, &[lease(6, 1, false)], &guests, 17), [""; 0]);
    // The mark rests on the Lease as it was seen all the time.
    assert_eq!(watch(&mut c, &down, &[lease(6, 1, false)], &guests, 18), ["n at \"6\": mark"]);
    assert_eq!(watch(&mut c, &down, &[lease(7, 1, true)], &guests, 18), [""; 0]);
    // Without a guest there is nothing to recover; without a Node object there may be.
    let mut c = NodeController::default();
    for (nodes, guests, s, expected) in [
        (&down[..], &[][..], 0, vec![]),
        (&down[..], &[][..], 60, vec![]),
        (&[][..], &guests[..], 61, vec!["n at \"6\": mark".to_owned()]),
    ] {
        assert_eq!(watch(&mut c, nodes, &[lease(6, 1, false)], guests, s), expected, "{s}");
    }
}

#[test]
fn a_launcher_that_its_node_cannot_end_goes_on_the_same_proof() {
    let mut taken = node("false", None);
    taken.spec = Some(of(json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]})));
    let check = |nodes: &[Node], leases: &[Lease], vmi: VirtualMachineInstance, goes: bool| {
        let caches = indexed()
            .with(nodes.to_vec())
            .with_source(fence::leases(), leases.to_vec())
            .with([vmi.clone()])
            .with([launcher()]);
        let plan =
            RecoveryController::default().reconcile(&Key::new("ns", "v"), &caches.view(), Time::from_unix_s(2000));
        let gone: Vec<_> = plan.writes.iter().filter(|w| matches!(w, Write::Delete { .. })).collect();
        assert_eq!((gone.len(), plan.writes.len()), (usize::from(goes), usize::from(goes)), "{vmi:?}: {plan:?}");
        let text = format!("{gone:?}");
        assert!(!goes || text.contains("grace_period_s: Some(0)"), "{text}");
    };
    let silent = [node("false", None)];
    for phase in ["Failed", "Succeeded"] {
        check(&silent, &[lease(9, 3, true)], instance(phase, "true", "3"), true);
        check(&[], &[lease(9, 3, true)], instance(phase, "true", "3"), true);
        check(&[taken.clone()], &[], instance(phase, "its disk exists on one node only", ""), true);
        // No proof yet, or none for this one.
        check(&silent, &[lease(9, 3, false)], instance(phase, "true", "3"), false);
        check(&silent, &[lease(9, 3, true)], instance(phase, "true", "4"), false);
        check(&silent, &[lease(9, 3, true)], instance(phase, "its disk exists on one node only", "3"), false);
        check(&silent, &[], instance(phase, "true", "3"), false);
    }
    // It ended before it was handed over, so that no guest of it can be: the mark of the node is enough.
    let never = || -> VirtualMachineInstance {
        of(json!({"metadata": {"namespace": "ns", "name": "v", "uid": "v", "resourceVersion": "7"},
            "spec": {"domain": {"devices": {}}},
            "status": {"phase": "Failed", "phaseTransitionTimestamps": [{"phase": "Scheduling"}, {"phase": "Failed"}]}}))
    };
    check(&silent, &[lease(9, 3, true)], never(), true);
    check(&silent, &[lease(9, 3, false)], never(), false);
    let mut handed_over = never();
    let status = handed_over.status.get_or_insert_default();
    status.phase_transition_timestamps.insert(1, of(json!({"phase": "Scheduled"})));
    check(&silent, &[lease(9, 3, true)], handed_over, false);
    // The Lease is marked for its sake.
    let mut c = NodeController::default();
    let mut mark = |s: i64, pods: Vec<Pod>| {
        let ended = instance("Failed", "true", "1");
        let caches =
            indexed().with(silent.to_vec()).with_source(fence::leases(), [lease(6, 1, false)]).with([ended]).with(pods);
        words(&c.reconcile(&Key::new("", "n"), &caches.view(), Time::from_unix_s(1000 + s)))
    };
    assert_eq!(mark(0, vec![launcher()]), [""; 0]);
    assert_eq!(mark(60, Vec::new()), [""; 0]);
    assert_eq!(mark(60, vec![launcher()]), ["n at \"6\": mark"]);
}

/// What a pod is for, its owner and its name say. Labels are anybody's.
#[test]
fn launchers_count_whatever_their_labels_say() {
    let check = |name: &str, is_labelled: bool, is_launcher: bool| {
        let mut pod = launcher();
        pod.metadata.name = Some(name.to_owned());
        if !is_labelled {
            pod.metadata.labels = None;
        }
        let silent = [node("false", None)];
        let caches = |vmi: VirtualMachineInstance| {
            indexed()
                .with(silent.clone())
                .with_source(fence::leases(), [lease(9, 3, true)])
                .with([vmi])
                .with([pod.clone()])
        };
        let ended = caches(instance("Failed", "true", "3"));
        assert_eq!(launched("n", &ended.view()).count(), usize::from(is_launcher), "{name} {is_labelled}");
        let mut unplaced = instance("Scheduling", "true", "3");
        unplaced.status.get_or_insert_default().node_name.clear();
        let mut recovery = RecoveryController::default();
        let plan = recovery.reconcile(&Key::new("ns", "v"), &caches(unplaced).view(), Time::from_unix_s(2000));
        assert_eq!(words(&plan).iter().any(|word| word.contains("Failed")), is_launcher, "{name} {is_labelled}");
    };
    for is_labelled in [true, false] {
        check("p", is_labelled, true);
        check(&consumer_pod_name("v", "v"), is_labelled, false);
    }
}

/// It is there to be looked at.
#[test]
fn a_launcher_that_has_ended_stays_as_long_as_its_instance() {
    type Change = fn(&mut Pod, &mut VirtualMachineInstance);
    let check = |name: &str, change: Change, goes: bool| {
        let (mut pod, mut vmi) = (launcher(), instance("Failed", "true", "3"));
        pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        change(&mut pod, &mut vmi);
        for reason in ["", NODE_UNRESPONSIVE] {
            vmi.status.get_or_insert_default().reason = reason.to_owned();
            let caches = indexed()
                .with([node("false", None)])
                .with_source(fence::leases(), [lease(9, 3, true)])
                .with([vmi.clone()])
                .with([pod.clone()]);
            let plan =
                RecoveryController::default().reconcile(&Key::new("ns", "v"), &caches.view(), Time::from_unix_s(2000));
            let deletes = plan.writes.iter().filter(|write| matches!(write, Write::Delete { .. })).count();
            assert_eq!(deletes, usize::from(goes), "{name} {reason}");
        }
    };
    check("it has ended", |_, _| {}, false);
    check("it has not", |pod, _| pod.status = None, true);
    check("its instance goes", |_, vmi| vmi.metadata.deletion_timestamp = Some(Time::from_unix_s(1000).meta()), true);
    check("it was to go", |pod, _| pod.metadata.deletion_timestamp = Some(Time::from_unix_s(1000).meta()), true);
}

/// The control plane may take the disks of a dead node's machine: that is written before the machine may go on elsewhere.
#[test]
fn a_dead_machine_leaves_its_disks() {
    let vmi = |phase: &str| -> VirtualMachineInstance {
        let mut vmi = instance(phase, "true", "3");
        vmi.spec.volumes = of(json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "bound"}},
            {"name": "b", "persistentVolumeClaim": {"claimName": "unbound"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "gone"}},
            {"name": "d", "emptyDisk": {"capacity": "1Gi"}}]));
        vmi
    };
    let claim = |name: &str, volume: Option<&str>| -> PersistentVolumeClaim {
        of(json!({"metadata": {"namespace": "ns", "name": name, "uid": name}, "spec": {"volumeName": volume}}))
    };
    let volume = |source: &Value| -> PersistentVolume { of(json!({"metadata": {"name": "pv"}, "spec": source})) };
    let attachment = |name: &str, dead: Option<&str>| -> VolumeAttachment {
        let annotations = dead.map_or(json!({}), |dead| json!({DEAD_USERS: dead}));
        of(json!({"metadata": {"name": name, "uid": "va", "resourceVersion": "4", "annotations": annotations},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}}))
    };
    let csi = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
    let flex = json!({"flexVolume": {"driver": "v/d"}});
    let (of_csi, of_flex) = (attachment_name("d", "h", "n"), flex_attachment_name("flexvolume-v/d/pv", "n"));
    let check = |source: &Value, there: Option<VolumeAttachment>, expected: &[String]| {
        for (phase, last) in [("Running", "v fails"), ("Failed", "p goes")] {
            let caches = indexed()
                .with([node("false", None)])
                .with_source(fence::leases(), [lease(9, 3, true)])
                .with([vmi(phase)])
                .with([launcher()])
                .with([claim("bound", Some("pv")), claim("unbound", None)])
                .with([volume(source)])
                .with(there.clone().into_iter().collect::<Vec<_>>());
            let plan =
                RecoveryController::default().reconcile(&Key::new("ns", "v"), &caches.view(), Time::from_unix_s(2000));
            let word = |write: &Write| match write {
                Write::Patch { key, patch, .. } if patch["status"]["phase"] == "Failed" => {
                    format!("{} fails", key.name)
                }
                Write::Patch { key, patch, .. } => {
                    format!("{}: {}", key.name, patch["metadata"]["annotations"][DEAD_USERS])
                }
                Write::Confirm { absent: Absent::Object { key, uid }, .. } if uid.is_empty() => {
                    format!("no {}", key.name)
                }
                Write::Delete { key, .. } => format!("{} goes", key.name),
                other => format!("{other:?}"),
            };
            let all: Vec<String> = expected.iter().cloned().chain([last.to_owned()]).collect();
            assert_eq!(plan.writes.iter().map(word).collect::<Vec<_>>(), all, "{phase} {there:?}");
        }
    };
    for (source, name) in [(&csi, &of_csi), (&flex, &of_flex)] {
        check(source, Some(attachment(name, None)), &[format!("{name}: \"v\"")]);
        check(source, Some(attachment(name, Some("o,w"))), &[format!("{name}: \"o,v,w\"")]);
        check(source, Some(attachment(name, Some("v"))), &[]);
        // It may have been made since.
        check(source, None, &[format!("no {name}")]);
    }
    check(&json!({"hostPath": {"path": "/d"}}), None, &[]);
}

/// A claim was deleted by hand after the guest had begun, and there is none of its name, or another.
#[test]
fn a_dead_machine_leaves_what_its_node_has_named() {
    let mut silent = node("false", None);
    let named = json!({"kubernetes.io/csi/d^old": ["v", "w"], "kubernetes.io/csi/d^other": ["w"],
        "flexvolume-v/d/pv": ["v"], "nonsense": ["v"]});
    silent.metadata.annotations.get_or_insert_default().insert(VOLUME_USERS.to_owned(), named.to_string());
    let [of_old, of_new] = ["old", "new"].map(|handle| attachment_name("d", handle, "n"));
    let of_flex = flex_attachment_name("flexvolume-v/d/pv", "n");
    let mut vmi = instance("Running", "true", "3");
    vmi.spec.volumes = of(json!([{"name": "a", "dataVolume": {"name": "disk"}}]));
    let check = |claim: Option<PersistentVolumeClaim>, wanted: &[&String]| {
        let volume = json!({"metadata": {"name": "new"}, "spec": {"csi": {"driver": "d", "volumeHandle": "new"}}});
        let attachments = [&of_old, &of_new, &of_flex, &attachment_name("d", "other", "n")].map(|name| {
            of::<VolumeAttachment>(json!({"metadata": {"name": name, "uid": name, "resourceVersion": "4"},
                "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}}))
        });
        let caches = indexed()
            .with([silent.clone()])
            .with_source(fence::leases(), [lease(9, 3, true)])
            .with([vmi.clone()])
            .with([launcher()])
            .with(claim)
            .with([of::<PersistentVolume>(volume)])
            .with(attachments);
        let plan =
            RecoveryController::default().reconcile(&Key::new("ns", "v"), &caches.view(), Time::from_unix_s(2000));
        let (last, left) = plan.writes.split_last().expect("it fails");
        assert_eq!(last.key().name, "v");
        let marked = |write: &Write| match write {
            Write::Patch { key, patch, .. } if patch["metadata"]["annotations"][DEAD_USERS] == "v" => key.name.clone(),
            other => format!("{other:?}"),
        };
        let mut wanted: Vec<String> = wanted.iter().map(|name| (*name).clone()).collect();
        wanted.sort();
        assert_eq!(left.iter().map(marked).collect::<Vec<_>>(), wanted);
    };
    check(None, &[&of_old, &of_flex]);
    let another = json!({"metadata": {"namespace": "ns", "name": "disk", "uid": "c2"}, "spec": {"volumeName": "new"}});
    check(Some(of(another)), &[&of_old, &of_flex, &of_new]);
}

#[test]
fn an_instance_fails_on_proof_alone() {
    const FAILED: &str = "v at \"7\": Failed \"NodeUnresponsive\"";
    let silent = [node("false", None)];
    let mut taken = node("false", None);
    taken.spec = Some(of(json!({"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]})));
    let check = |nodes: &[Node], leases: &[Lease], failover: &str, token: &str, expected: &[&str]| {
        assert_eq!(recover(nodes, leases, instance("Running", failover, token)), expected, "{failover} {token}");
    };
    check(&silent, &[lease(9, 3, true)], "true", "3", &[FAILED]);
    check(&[], &[lease(9, 3, true)], "true", "3", &[FAILED]);
    check(&[taken.clone()], &[], "its disk exists on one node only", "", &[FAILED]);
    // The taint on a node whose kubelet is there is a mistake, or was left behind.
    let ready = |status: &str| {
        let mut node = taken.clone();
        node.metadata.labels = Some([(SCHEDULABLE_LABEL.to_owned(), "true".to_owned())].into());
        node.status = Some(of(json!({"conditions": [{"type": "Ready", "status": status}]})));
        [node]
    };
    check(&ready("True"), &[lease(9, 3, false)], "true", "3", &[]);
    for status in ["False", "Unknown"] {
        check(&ready(status), &[lease(9, 3, false)], "true", "3", &[FAILED]);
    }
    // A guest of a later term; a Lease that may be renewed yet; no Lease at all.
    let waits = "v at \"7\": WaitingForLease";
    check(&silent, &[lease(9, 3, true)], "true", "4", &[waits]);
    check(&silent, &[lease(9, 3, false)], "true", "3", &[waits]);
    check(&[], &[], "true", "3", &[waits]);
    check(&[], &[], "its disk exists on one node only", "3", &["v at \"7\": WaitingForPod"]);
    check(&silent, &[lease(9, 3, true)], "its disk exists on one node only", "3", &["v at \"7\": WaitingForNode"]);
    check(&[node("true", None)], &[lease(9, 3, false)], "true", "3", &[]);
    for phase in ["Pending", "Succeeded", "Failed"] {
        assert_eq!(recover(&silent, &[lease(9, 3, true)], instance(phase, "true", "3")), [""; 0], "{phase}");
    }
}
