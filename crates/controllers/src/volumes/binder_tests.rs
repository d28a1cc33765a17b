//! Who gets which volume, and what becomes of both when one of them goes.

use std::collections::BTreeSet;

use carrack_engine::testing::Caches;
use carrack_types::volume::csi_unique_name;
use serde_json::{Value, json};

use super::*;
use crate::testing::{of, words};

fn claim(uid: &str, volume: &str, phase: &str, complete: bool, class: &str) -> Value {
    let mut c = json!({"metadata": {"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": "1", "annotations": {}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}}}});
    if !phase.is_empty() {
        c["status"] = json!({"phase": phase});
    }
    if complete {
        c["metadata"]["annotations"][BIND_COMPLETED] = "yes".into();
    }
    c
}

fn volume_of(reference: Value, phase: &str, policy: &str, annotations: Value) -> Value {
    json!({"metadata": {"name": "v", "uid": "v", "resourceVersion": "1", "annotations": annotations},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "c",
            "persistentVolumeReclaimPolicy": policy, "claimRef": reference},
        "status": {"phase": phase}})
}

fn reference(uid: &str) -> Value {
    json!({"namespace": "ns", "name": "c", "uid": uid})
}

fn look(
    key: Key,
    claims: &[Value],
    volumes: &[Value],
    classes: &[Value],
    pods: &[Value],
) -> (Vec<String>, Vec<String>) {
    let caches = Caches::new()
        .with_index::<Pod>(BY_CLAIM, pods::by_claim)
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<PersistentVolumeClaim>(claims.iter().cloned().map(of))
        .with_index(BY_REFERENCE, by_reference)
        .with_index(BY_FREE, by_free)
        .with::<PersistentVolume>(volumes.iter().cloned().map(of))
        .with::<StorageClass>(classes.iter().cloned().map(of))
        .with::<VolumeAttachment>([])
        .with::<Node>([]);
    let plan = PersistentVolumeBinder::default().reconcile(&key, &caches.view(), Time::from_unix_s(0));
    let told = plan.told.iter().map(|(_, e)| e);
    let events = plan.events.iter().chain(told).map(|e| e.reason.clone()).collect();
    (words(&plan), events)
}

fn attachable() -> Value {
    let mut volume = volume_of(reference("u"), "Bound", "Delete", json!({}));
    volume["spec"]["csi"] = json!({"driver": "x.example.com", "volumeHandle": "h"});
    volume
}

fn node(uses: &str) -> Value {
    let uses = csi_unique_name("x.example.com", uses);
    json!({"metadata": {"name": "n"}, "status": {"volumesInUse": [uses]}})
}

/// A volume that is to be deleted with its data is not released while it is attached somewhere, or a node uses it.
#[test]
fn what_is_attached_is_not_released() {
    for (attached, used, waits) in
        [("v", "other", true), ("other", "h", true), ("v", "h", true), ("other", "other", false)]
    {
        let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "x.example.com", "nodeName": "n",
            "source": {"persistentVolumeName": attached}}});
        let caches = Caches::new()
            .with_index::<Pod>(BY_CLAIM, pods::by_claim)
            .with::<PersistentVolumeClaim>([])
            .with::<PersistentVolume>([of(attachable())])
            .with_index(BY_VOLUME, by_volume)
            .with::<VolumeAttachment>([of(attachment)])
            .with::<Node>([of(node(used))]);
        let key = Key::new("", "v");
        let plan = PersistentVolumeBinder::default().reconcile(&key, &caches.view(), Time::from_unix_s(0));
        assert_eq!((plan.writes.is_empty(), plan.requeue_after), (waits, None), "{attached} {used}");
    }
}

/// A volume that waits for whoever still has it is looked at when that changes, and not only after a while.
#[test]
fn what_is_given_back_is_looked_at() {
    let pod = json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {"nodeName": "n", "containers": [],
        "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]}});
    let (left, nobody) = (vec![Key::new("", "v")], Vec::new());
    let unbound = vec![Key::new("ns", "c")];
    for (claims, used, of_node, of_pod) in [
        (vec![], "h", &left, &left),
        (vec![], "other", &nobody, &left),
        // Its claim is still there: it is looked at when that goes.
        (vec![claim("u", "v", "Bound", true, "c")], "h", &nobody, &nobody),
        // Another one of that name, whose pod has nothing of this volume.
        (vec![claim("new", "", "Pending", false, "c")], "h", &left, &unbound),
    ] {
        let caches = Caches::new()
            .with::<Pod>([of(pod.clone())])
            .with::<PersistentVolumeClaim>(claims.iter().cloned().map(of))
            .with_index(BY_REFERENCE, by_reference)
            .with_index(BY_UNIQUE, by_unique)
            .with::<PersistentVolume>([of(attachable())])
            .with::<Node>([of(node(used))]);
        let binder = PersistentVolumeBinder::default();
        let keys = |found: BTreeSet<Key>| found.into_iter().collect::<Vec<Key>>();
        assert_eq!(keys(caches.keys_for::<Node>(&binder)), *of_node, "{claims:?} {used}");
        assert_eq!(keys(caches.keys_for::<Pod>(&binder)), *of_pod, "{claims:?} {used}");
    }
}

/// Who looks again when a volume comes that is nobody's, or a class.
#[test]
fn who_waits_hears_of_what_comes() {
    let named = |name: &str, complete: bool| {
        let mut claim = claim("u", "", "Pending", complete, "c");
        claim["metadata"]["name"] = name.into();
        claim
    };
    let class = json!({"metadata": {"name": "c"}, "provisioner": "x.example.com"});
    let caches = Caches::new()
        .with_index(BY_WANT, by_want)
        .with::<PersistentVolumeClaim>([named("waits", false), named("has", true)].map(of))
        .with::<PersistentVolume>([of(volume_of(Value::Null, "Available", "Retain", json!({})))])
        .with::<StorageClass>([of(class)]);
    let binder = PersistentVolumeBinder::default();
    let waits = Key::new("ns", "waits");
    let of_volume = caches.keys_for::<PersistentVolume>(&binder).into_iter();
    assert_eq!(of_volume.collect::<Vec<_>>(), [Key::new("", "v"), waits.clone()]);
    let of_class = caches.keys_for::<StorageClass>(&binder).into_iter();
    assert_eq!(of_class.collect::<Vec<_>>(), [waits]);
}

#[test]
fn claims_come_to_volumes() {
    let free = || volume_of(Value::Null, "Available", "Retain", json!({}));
    let mine = |phase: &str| volume_of(reference("u"), phase, "Retain", json!({}));
    let class = |mode: &str, provisioner: &str| json!({"metadata": {"name": "c"}, "provisioner": provisioner, "volumeBindingMode": mode});
    let at_once = || vec![class("Immediate", "x.example.com")];
    let later = || vec![class("WaitForFirstConsumer", "x.example.com")];
    let selected = || {
        let mut claim = claim("u", "", "Pending", false, "c");
        claim["metadata"]["annotations"][SELECTED_NODE] = "n".into();
        claim
    };
    let mut bound = claim("u", "v", "Bound", true, "c");
    bound["status"]["accessModes"] = json!(["ReadWriteOnce"]);
    let mut widened = bound.clone();
    widened["status"]["accessModes"] = json!(["ReadOnlyMany"]);
    let mut smaller = mine("Bound");
    smaller["metadata"]["annotations"][PRE_RESIZE] = "500Mi".into();
    let mut kept = volume_of(reference(""), "Available", "Retain", json!({}));
    kept["spec"]["storageClassName"] = "".into();
    let mut going = free();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let take = "patch v annotations={\"pv.kubernetes.io/bound-by-controller\":\"yes\"} \
                claimRef={\"apiVersion\":\"v1\",\"kind\":\"PersistentVolumeClaim\",\"name\":\"c\",\"namespace\":\"ns\",\
                \"resourceVersion\":\"1\",\"uid\":\"u\"}";
    let keep = &take.replace("annotations={\"pv.kubernetes.io/bound-by-controller\":\"yes\"} ", "");
    let name = "patch ns/c annotations={\"pv.kubernetes.io/bind-completed\":\"yes\",\
                \"pv.kubernetes.io/bound-by-controller\":\"yes\"} volumeName=v";
    let call = "patch ns/c annotations={\"volume.beta.kubernetes.io/storage-provisioner\":\"x.example.com\",\
                \"volume.kubernetes.io/storage-provisioner\":\"x.example.com\"}";
    let status = "patch ns/c/status accessModes=[\"ReadWriteOnce\"] capacity={\"storage\":\"1Gi\"} phase=Bound";
    let gone = "patch ns/c/status accessModes=null capacity=null currentVolumeAttributesClassName=null phase=Lost";
    let (mut gold, mut of_gold) = (claim("u", "v", "Pending", true, "c"), mine("Bound"));
    gold["spec"]["volumeAttributesClassName"] = "gold".into();
    of_gold["spec"]["volumeAttributesClassName"] = "gold".into();
    let classed = status.replace(" phase", " currentVolumeAttributesClassName=gold phase");
    for (claim, volumes, classes, expected, events) in [
        // Step by step: the volume names the claim, is bound, the claim names the volume, is bound.
        (claim("u", "", "Pending", false, "c"), vec![free()], at_once(), vec![take], vec![]),
        (
            claim("u", "", "Pending", false, "c"),
            vec![mine("Available")],
            at_once(),
            vec!["patch v/status lastPhaseTransitionTime=1970-01-01T00:00:00Z message=null phase=Bound"],
            vec![],
        ),
        (claim("u", "", "Pending", false, "c"), vec![mine("Bound")], at_once(), vec![name], vec![]),
        (claim("u", "v", "Pending", true, "c"), vec![mine("Bound")], at_once(), vec![status], vec![]),
        (gold, vec![of_gold], at_once(), vec![&classed], vec![]),
        (bound, vec![mine("Bound")], at_once(), vec![], vec![]),
        (widened, vec![mine("Bound")], at_once(), vec!["patch ns/c/status accessModes=[\"ReadWriteOnce\"]"], vec![]),
        // Its file system is as large as the claim before had it.
        (
            claim("u", "v", "Pending", true, "c"),
            vec![smaller],
            at_once(),
            vec![&status.replace("1Gi", "500Mi")],
            vec![],
        ),
        // Nothing there: the provisioner is called, now or once a pod has a node.
        (claim("u", "", "Pending", false, "c"), vec![], at_once(), vec![call], vec!["ExternalProvisioning"]),
        (
            claim("u", "", "", false, "c"),
            vec![],
            at_once(),
            vec!["patch ns/c/status phase=Pending"],
            vec!["ExternalProvisioning"],
        ),
        (claim("u", "", "Pending", false, "c"), vec![free()], later(), vec![], vec!["WaitForFirstConsumer"]),
        (selected(), vec![], later(), vec![call], vec!["ExternalProvisioning"]),
        // The scheduler has had a volume made at a node: another one, perhaps elsewhere, is not what it wants.
        (selected(), vec![free()], later(), vec![call], vec!["ExternalProvisioning"]),
        (claim("u", "", "Pending", false, "c"), vec![mine("Bound")], later(), vec![name], vec![]),
        // A class that nobody has heard of may be one that waits; there need not be one of that name, though.
        (claim("u", "", "Pending", false, "c"), vec![free()], vec![], vec!["confirm absent c", take], vec![]),
        (claim("u", "", "Pending", false, "c"), vec![mine("Bound")], vec![], vec![name], vec![]),
        (claim("u", "", "Pending", false, "c"), vec![], vec![], vec![], vec!["ProvisioningFailed"]),
        (claim("u", "", "Pending", false, ""), vec![], vec![], vec![], vec!["FailedBinding"]),
        (
            claim("u", "", "Pending", false, "c"),
            vec![],
            vec![class("Immediate", "kubernetes.io/no-provisioner")],
            vec![],
            vec!["ProvisioningFailed"],
        ),
        // A claim that names its volume.
        (claim("u", "v", "Pending", false, "c"), vec![], at_once(), vec![], vec!["FailedBinding"]),
        (claim("u", "v", "Pending", false, "c"), vec![free()], at_once(), vec![take], vec![]),
        (claim("u", "v", "Pending", false, "other"), vec![free()], vec![], vec![], vec!["VolumeMismatch"]),
        (claim("u", "v", "Pending", false, "c"), vec![going], at_once(), vec![], vec!["VolumeMismatch"]),
        // Each names the other.
        (claim("u", "v", "Pending", false, "c"), vec![kept.clone()], at_once(), vec![keep], vec![]),
        (claim("u", "", "Pending", false, "c"), vec![kept], later(), vec![keep], vec![]),
        (
            claim("u", "v", "Pending", false, "c"),
            vec![volume_of(reference("old"), "Bound", "Retain", json!({}))],
            at_once(),
            vec![],
            vec!["FailedBinding"],
        ),
        // What was bound and is not any more.
        (claim("u", "v", "Bound", true, "c"), vec![], at_once(), vec!["confirm absent v", gone], vec!["ClaimLost"]),
        (
            claim("u", "v", "Bound", true, "c"),
            vec![volume_of(reference("other"), "Bound", "Retain", json!({}))],
            at_once(),
            vec!["confirm unchanged v", gone],
            vec!["ClaimMisbound"],
        ),
        (claim("u", "v", "Lost", true, "c"), vec![], at_once(), vec![], vec![]),
    ] {
        let (writes, told) = look(Key::new("ns", "c"), std::slice::from_ref(&claim), &volumes, &classes, &[]);
        assert_eq!(writes, expected, "{claim} {volumes:?} {classes:?}");
        assert_eq!(told, events, "{claim} {volumes:?} {classes:?}");
    }
}

#[test]
fn volumes_outlive_their_claims_only_as_they_should() {
    let made = || json!({PROVISIONED_BY: "x.example.com"});
    let status = |phase: &str, message: &str| {
        format!("patch v/status lastPhaseTransitionTime=1970-01-01T00:00:00Z message={message} phase={phase}")
    };
    let pod = json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {"nodeName": "n", "containers": [],
        "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]}});
    let released = || vec!["confirm absent ns/c".to_owned(), status("Released", "null")];
    let bound = || vec![claim("u", "v", "Bound", true, "c")];
    let reborn = || vec![claim("new", "", "Pending", false, "c")];
    for (volume, claims, pods, expected, events) in [
        (volume_of(Value::Null, "", "Retain", json!({})), vec![], vec![], vec![status("Available", "null")], vec![]),
        (volume_of(reference(""), "Available", "Retain", json!({})), vec![], vec![], vec![], vec![]),
        (volume_of(reference("u"), "Bound", "Retain", json!({})), bound(), vec![], vec![], vec![]),
        (volume_of(reference("u"), "Bound", "Retain", json!({})), vec![], vec![], released(), vec![]),
        (volume_of(reference("u"), "Bound", "Delete", made()), vec![], vec![], released(), vec![]),
        // A claim that was made anew does not have it; nor does its pod.
        (volume_of(reference("u"), "Bound", "Delete", made()), reborn(), vec![pod.clone()], released(), vec![]),
        // A pod still uses it: its data must not be deleted yet.
        (volume_of(reference("u"), "Bound", "Delete", made()), vec![], vec![pod], vec![], vec![]),
        (volume_of(reference("u"), "Released", "Delete", made()), vec![], vec![], vec![], vec![]),
        (volume_of(reference("u"), "Released", "Retain", json!({})), vec![], vec![], vec![], vec![]),
        // The claim took another one.
        (
            volume_of(reference("u"), "Bound", "Retain", json!({BOUND_BY_CONTROLLER: "yes"})),
            vec![claim("u", "w", "Bound", true, "c")],
            vec![],
            vec![
                "confirm unchanged ns/c".to_owned(),
                "patch v annotations={\"pv.kubernetes.io/bound-by-controller\":null} claimRef=null".to_owned(),
            ],
            vec![],
        ),
        (
            volume_of(reference("u"), "Available", "Delete", made()),
            vec![claim("u", "w", "Bound", true, "c")],
            vec![],
            vec!["confirm unchanged ns/c".to_owned(), status("Released", "null")],
            vec![],
        ),
    ] {
        let (writes, told) = look(Key::new("", "v"), &claims, std::slice::from_ref(&volume), &[], &pods);
        assert_eq!(writes, expected, "{volume} {claims:?} {pods:?}");
        assert_eq!(told, events as Vec<&str>, "{volume}");
    }
    // One that is to go, and is nobody's.
    let mut going = volume_of(Value::Null, "Bound", "Retain", json!({}));
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(look(Key::new("", "v"), &[], &[going], &[], &[]).0, [status("Available", "null")]);
    // What is asked for cannot be had.
    let mut block = claim("u", "", "Pending", false, "c");
    block["spec"]["volumeMode"] = "Block".into();
    let mine = volume_of(reference("u"), "Bound", "Retain", json!({}));
    let told = vec!["VolumeMismatch".to_owned(), "VolumeMismatch".to_owned()];
    assert_eq!(look(Key::new("", "v"), &[block], &[mine], &[], &[]), (vec![], told));
    // What a CSI driver has was made by somebody who will delete it.
    let mut theirs = volume_of(reference("u"), "Released", "Delete", json!({}));
    theirs["spec"]["csi"] = json!({"driver": "x.example.com", "volumeHandle": "h"});
    assert_eq!(look(Key::new("", "v"), &[], &[theirs], &[], &[]), (vec![], vec![]));
    for (policy, reason) in [("Recycle", "VolumeFailedRecycle"), ("Delete", "VolumeFailedDelete")] {
        let volume = volume_of(reference("u"), "Released", policy, json!({}));
        let (writes, told) = look(Key::new("", "v"), &[], &[volume], &[], &[]);
        assert!(writes[0].ends_with("phase=Failed"), "{writes:?}");
        assert_eq!(told, [reason]);
    }
}

#[test]
fn a_claim_tells_which_pods_it_waits_for() {
    let pod = |name: &str, node: &str, phase: &str| {
        json!({"metadata": {"namespace": "ns", "name": name}, "spec": {"nodeName": node, "containers": [],
            "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]}, "status": {"phase": phase}})
    };
    let check = |pods: &[Value], expected: &str| {
        let class = json!({"metadata": {"name": "c"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
        let caches = Caches::new()
            .with_index::<Pod>(BY_CLAIM, pods::by_claim)
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<PersistentVolumeClaim>([of(claim("u", "", "Pending", false, "c"))])
            .with::<PersistentVolume>([])
            .with::<StorageClass>([of(class)]);
        let plan = PersistentVolumeBinder::default().reconcile(&Key::new("ns", "c"), &caches.view(), Time::default());
        let told: Vec<String> = plan.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect();
        assert_eq!((told, plan.requeue_after), (vec![expected.to_owned()], Some(TELL_AGAIN)), "{pods:?}");
    };
    let nobody = "WaitForFirstConsumer: waiting for first consumer to be created before binding";
    check(&[], nobody);
    check(&[pod("p", "n", "Pending"), pod("q", "", "Failed")], nobody);
    check(&[pod("p", "", "Pending")], "WaitForPodScheduled: waiting for pod p to be scheduled");
    let both = [pod("p", "", "Pending"), pod("q", "", "Pending")];
    check(&both, "WaitForPodScheduled: waiting for pods p,q to be scheduled");
}

#[test]
fn claims_that_came_before_the_default_class_get_it() {
    let class = |name: &str, key: &str, born: &str| {
        json!({"metadata": {"name": name, "annotations": {key: "true"}, "creationTimestamp": born},
            "provisioner": "x.example.com"})
    };
    let [key, beta] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let unclassed = || {
        let mut c = claim("u", "", "Pending", false, "");
        c["spec"]["storageClassName"] = Value::Null;
        c
    };
    let mut annotated = unclassed();
    annotated["metadata"]["annotations"][CLASS_ANNOTATION] = "".into();
    let mut of_none = volume_of(Value::Null, "Available", "Retain", json!({}));
    of_none["spec"]["storageClassName"] = "".into();
    let takes = |name: &str| vec![format!("patch ns/c storageClassName={name}")];
    for (claim, classes, expected) in [
        (unclassed(), vec![class("a", key, old)], takes("a")),
        (unclassed(), vec![class("a", key, old), class("b", beta, new)], takes("b")),
        (unclassed(), vec![class("b", key, new), class("a", key, new)], takes("a")),
        (unclassed(), vec![class("a", "other", old)], vec![]),
        // One that wants none gets none.
        (claim("u", "", "Pending", false, ""), vec![class("a", key, old)], vec![]),
        (annotated, vec![class("a", key, old)], vec![]),
    ] {
        let (writes, _) = look(Key::new("ns", "c"), std::slice::from_ref(&claim), &[], &classes, &[]);
        assert_eq!(writes, expected, "{claim} {classes:?}");
    }
    // What there is without a class comes first.
    let (writes, _) = look(Key::new("ns", "c"), &[unclassed()], &[of_none], &[class("a", key, old)], &[]);
    assert!(writes[0].starts_with("patch v "), "{writes:?}");
}
