//! Snapshots that are taken, and those whose contents are made by hand.

use carrack_engine::testing::Caches;
use carrack_engine::{Absent, Controller, Key, Plan, Time, Write};
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use carrack_types::well_known::storage::DEFAULT_SNAPSHOT_CLASS;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use super::super::calls::{Answer, Call, CallError, Calls, Outcome};
use super::super::sources::SOURCE;
use super::{BOUND, Contents, DATA, LOST, MODE_CHANGE, NODE, Snapshots};

/// What a plan writes: patches as they are, without what they rest on.
fn writes(plan: &Plan) -> Vec<Value> {
    let word = |w: &Write| match w {
        Write::Patch { patch, .. } => {
            let mut patch = patch.clone();
            if let Some(metadata) = patch["metadata"].as_object_mut() {
                metadata.retain(|field, _| !matches!(field.as_str(), "uid" | "resourceVersion"));
            }
            if patch["metadata"].as_object().is_none_or(serde_json::Map::is_empty) {
                patch.as_object_mut().into_iter().for_each(|all| drop(all.remove("metadata")));
            }
            patch
        }
        Write::Create { object, .. } => json!({"create": object["metadata"]["name"]}),
        Write::Delete { key, .. } => json!({"delete": key.name}),
        Write::Confirm { absent: Absent::Object { key, uid }, .. } if uid.is_empty() => json!({"absent": key.name}),
        other => panic!("{other:?}"),
    };
    plan.writes.iter().map(word).collect()
}

fn object(name: &str, metadata: &Value) -> Value {
    let mut all = json!({"namespace": "ns", "name": name, "uid": "u", "resourceVersion": "1"});
    for (field, value) in metadata.as_object().into_iter().flatten() {
        all[field] = value.clone();
    }
    all
}

/// A snapshot that this node has marked, of a content that was made by hand or is to be made.
fn snapshot(by_hand: bool, deleting: bool) -> VolumeSnapshot {
    let source = if by_hand { "volumeSnapshotContentName" } else { "persistentVolumeClaimName" };
    let mut metadata = json!({"finalizers": [BOUND], "annotations": {NODE: "n1"}});
    if deleting {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    let value = json!({"metadata": object("s", &metadata), "spec": {"source": {source: "c"}}});
    serde_json::from_value(value).unwrap()
}

/// The same when it has been taken.
fn taken(mut snapshot: VolumeSnapshot) -> VolumeSnapshot {
    let status =
        json!({"boundVolumeSnapshotContentName": "c", "creationTime": "2026-01-01T00:00:00Z", "readyToUse": true});
    snapshot.status = Some(serde_json::from_value(status).unwrap());
    snapshot
}

fn content(name: &str, uid: &str, node: Value, change: impl Fn(&mut Value)) -> VolumeSnapshotContent {
    let mut value = json!({"metadata": object(name, &json!({"namespace": null, "uid": "v"})),
        "spec": {"driver": "local.carrack.io", "deletionPolicy": "Delete", "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": uid}}});
    if node.is_string() {
        value["metadata"]["annotations"] = json!({NODE: node});
    }
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

#[test]
fn snapshots_and_their_contents_find_each_other() {
    let here = || json!("n1");
    let same = |_: &mut Value| {};
    let freed = || json!({"metadata": {"finalizers": [], "annotations": {NODE: "n1"}}});
    let bound = json!({"spec": {"volumeSnapshotRef": {"uid": "u"}}});
    let told = json!({"status": {"boundVolumeSnapshotContentName": "c", "creationTime": null, "readyToUse": false,
        "restoreSize": null, "error": null}});
    let lost = json!({"status": {"readyToUse": false, "error": {"message": LOST, "time": Time::default().rfc3339()}}});
    let kept = |c: &mut Value| c["spec"]["deletionPolicy"] = "Retain".into();
    let another = |c: &mut Value| c["spec"]["volumeSnapshotRef"]["name"] = "t".into();
    let by_another = |c: &mut Value| c["spec"]["driver"] = "other".into();
    type Case<'a> = (&'a str, VolumeSnapshot, Option<VolumeSnapshotContent>, Vec<Value>);
    let cases: Vec<Case<'_>> = vec![
        ("free", snapshot(true, false), Some(content("c", "", here(), same)), vec![bound]),
        ("bound", snapshot(true, false), Some(content("c", "u", here(), same)), vec![told]),
        ("bound to one before it", snapshot(true, false), Some(content("c", "t", here(), same)), vec![]),
        ("another's", snapshot(true, false), Some(content("c", "", here(), another)), vec![]),
        ("another driver's", snapshot(true, false), Some(content("c", "", here(), by_another)), vec![]),
        ("another node's", snapshot(true, false), Some(content("c", "", json!("n2"), same)), vec![]),
        ("no node's yet", snapshot(true, false), Some(content("c", "", Value::Null, same)), vec![]),
        ("none", snapshot(true, false), None, vec![]),
        ("going", snapshot(true, true), Some(content("c", "u", here(), same)), vec![json!({"delete": "c"})]),
        ("going, and kept", snapshot(true, true), Some(content("c", "u", here(), kept)), vec![freed()]),
        ("going, and never bound", snapshot(true, true), Some(content("c", "", here(), same)), vec![freed()]),
        ("going, and another's", snapshot(true, true), Some(content("c", "t", here(), same)), vec![freed()]),
        ("going, without one", snapshot(true, true), None, vec![freed()]),
        ("lost", taken(snapshot(true, false)), None, vec![json!({"absent": "c"}), lost.clone()]),
        ("not taken again", taken(snapshot(false, false)), None, vec![json!({"absent": "snapcontent-u"}), lost]),
        ("lost to another", taken(snapshot(true, false)), Some(content("c", "t", here(), same)), vec![]),
        // It may have been made just now.
        ("taken, going", snapshot(false, true), None, vec![json!({"absent": "snapcontent-u"}), freed()]),
    ];
    for (what, snapshot, content, expected) in cases {
        let caches = Caches::new().with([snapshot]).with(content).with::<VolumeSnapshotClass>([]);
        let caches = caches.with::<PersistentVolumeClaim>([]).with::<PersistentVolume>([]);
        let plan = Snapshots::new("n1").reconcile(&Key::new("ns", "s"), &caches.view(), Time::default());
        assert_eq!(writes(&plan), expected, "{what}");
    }
}

#[test]
fn a_content_made_by_hand_is_at_the_node_that_has_its_snapshot() {
    let same = |_: &mut Value| {};
    let kept = |c: &mut Value| c["metadata"]["finalizers"] = json!([DATA]);
    let ready = |c: &mut Value| {
        c["metadata"]["finalizers"] = json!([DATA]);
        c["status"] = json!({"readyToUse": true});
    };
    let going = |c: &mut Value| {
        c["metadata"]["finalizers"] = json!([DATA]);
        c["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    };
    let look = || Some(Call::Snapshot("h".into(), String::new()));
    let taken = || Ok(Answer::Taken { handle: "h".into(), bytes: 7, made_unix_ns: 5 });
    let marks = || json!({"metadata": {"finalizers": [DATA], "annotations": {NODE: "n1"}}});
    let told = json!({"status": {"snapshotHandle": "h", "creationTime": 5, "restoreSize": 7, "readyToUse": true,
        "error": null}});
    let freed = json!({"metadata": {"finalizers": []}});
    let broken = || Err(CallError { no_room: false, message: "broken".into() });
    let here = || json!("n1");
    type Case<'a> = (&'a str, VolumeSnapshotContent, Outcome, Option<Call>, Vec<Value>, bool);
    let cases: Vec<Case<'_>> = vec![
        ("here", content("c", "", Value::Null, same), taken(), look(), vec![marks()], false),
        ("at another node", content("c", "", Value::Null, same), Ok(Answer::Deleted), look(), vec![], false),
        ("not known", content("c", "", Value::Null, same), broken(), look(), vec![], true),
        ("without the finalizer", content("c", "", here(), same), taken(), look(), vec![marks()], false),
        ("marked", content("c", "", here(), kept), taken(), look(), vec![told], false),
        ("ready", content("c", "", here(), ready), taken(), None, vec![], false),
        ("another node's", content("c", "", json!("n2"), same), taken(), None, vec![], false),
        (
            "going",
            content("c", "u", here(), going),
            Ok(Answer::Deleted),
            Some(Call::DeleteSnapshot("h".into())),
            vec![freed],
            false,
        ),
    ];
    let key = Key::new("", "c");
    for (what, content, answer, expected, patches, fails) in cases {
        let calls = Calls::default();
        let caches = Caches::new().with([content]).with([snapshot(true, true)]);
        let mut controller = Contents::new("n1", calls.clone());
        let mut plan = controller.reconcile(&key, &caches.view(), Time::default());
        let asked = calls.take();
        for (id, _) in &asked {
            calls.answered(*id, answer.clone());
            plan = controller.reconcile(&key, &caches.view(), Time::default());
        }
        let asked = asked.into_iter().map(|(_, call)| call).next();
        assert_eq!((asked, writes(&plan), plan.error.is_some()), (expected, patches, fails), "{what}");
    }
    // One that is gone says so.
    let calls = Calls::default();
    let caches = Caches::new().with([content("c", "", here(), kept)]);
    let mut controller = Contents::new("n1", calls.clone());
    assert!(controller.reconcile(&key, &caches.view(), Time::default()).is_none());
    let asked = calls.take();
    let [(id, _)] = asked[..] else { panic!("{asked:?}") };
    calls.answered(id, Ok(Answer::Deleted));
    let plan = controller.reconcile(&key, &caches.view(), Time::default());
    assert_eq!(writes(&plan)[0]["status"]["error"]["message"], "snapshot h does not exist");
}

#[test]
fn what_was_taken_stays_as_long_as_its_snapshot_does() {
    let going = |policy: &'static str| {
        move |c: &mut Value| {
            c["metadata"]["finalizers"] = json!([DATA]);
            c["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            c["spec"]["deletionPolicy"] = policy.into();
        }
    };
    let deletes = || Some(Call::DeleteSnapshot("h".into()));
    let freed = || vec![json!({"metadata": {"finalizers": []}})];
    for (what, snapshot, uid, policy, asked, written, again) in [
        ("its snapshot is there", Some(snapshot(true, false)), "u", "Delete", None, vec![], false),
        ("it is there, and the data is kept", Some(snapshot(true, false)), "u", "Retain", None, vec![], false),
        ("its snapshot goes", Some(snapshot(true, true)), "u", "Delete", deletes(), freed(), false),
        ("it goes, and the data is kept", Some(snapshot(true, true)), "u", "Retain", None, freed(), false),
        ("another has its snapshot's name", Some(snapshot(true, false)), "t", "Delete", deletes(), freed(), false),
        ("its snapshot is not known", None, "u", "Delete", None, vec![], true),
        ("it never had one", None, "", "Delete", deletes(), freed(), false),
    ] {
        let calls = Calls::default();
        let caches = Caches::new().with([content("c", uid, json!("n1"), going(policy))]).with(snapshot);
        let mut controller = Contents::new("n1", calls.clone());
        let mut look = || controller.reconcile(&Key::new("", "c"), &caches.view(), Time::default());
        let mut plan = look();
        let calls_made = calls.take();
        for (id, _) in &calls_made {
            calls.answered(*id, Ok(Answer::Deleted));
            plan = look();
        }
        let calls_made = calls_made.into_iter().map(|(_, call)| call).next();
        assert_eq!((calls_made, writes(&plan), plan.requeue_after.is_some()), (asked, written, again), "{what}");
    }
}

#[test]
fn a_snapshot_waits_for_what_is_made_from_it() {
    let claim = |asked: &str, volume: Option<&str>| -> PersistentVolumeClaim {
        let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let metadata = object("d", &json!({"creationTimestamp": asked}));
        serde_json::from_value(json!({"metadata": metadata, "spec": {"dataSource": from, "volumeName": volume}}))
            .unwrap()
    };
    // That is when the snapshot is deleted.
    let (before, after) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    for (what, claim, waits) in [
        ("asked for before", claim(before, None), true),
        ("asked for after that", claim(after, None), false),
        ("made", claim(before, Some("pv")), false),
    ] {
        let ready = |c: &mut Value| c["status"] = json!({"snapshotHandle": "h", "readyToUse": true});
        let caches = Caches::new().with([taken(snapshot(true, true))]).with([content("c", "u", json!("n1"), ready)]);
        let caches = caches.with([claim.clone()]).with::<PersistentVolume>([]).with::<VolumeSnapshotClass>([]);
        let plan = Snapshots::new("n1").reconcile(&Key::new("ns", "s"), &caches.view(), Time::default());
        let expected = if waits { vec![] } else { vec![json!({"delete": "c"})] };
        assert_eq!((writes(&plan), plan.events.len()), (expected, usize::from(waits)), "{what}");
        let source = super::source(&claim, &caches.view());
        assert_eq!(source.is_ok(), waits, "{what}: {source:?}");
    }
}

#[test]
fn a_snapshot_without_a_class_says_so() {
    let class = |driver: &str, default: &str| -> VolumeSnapshotClass {
        carrack_types::json::from_value(
            json!({"metadata": {"name": "k", "annotations": {DEFAULT_SNAPSHOT_CLASS: default}},
            "driver": driver, "deletionPolicy": "Delete"}),
        )
        .unwrap()
    };
    let claim: PersistentVolumeClaim =
        carrack_types::json::from_value(json!({"metadata": {"namespace": "ns", "name": "c",
        "uid": "cu", "finalizers": [SOURCE]}, "spec": {"volumeName": "pv"}}))
        .unwrap();
    let volume: PersistentVolume =
        carrack_types::json::from_value(json!({"metadata": {"name": "pv", "uid": "pu"}, "spec": {
        "csi": {"driver": "local.carrack.io", "volumeHandle": "h"}, "claimRef": {"uid": "cu"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "local.carrack.io/node", "operator": "In", "values": ["n1"]}]}]}}}}))
        .unwrap();
    let ours = || Some(class("local.carrack.io", "true"));
    for (named, there, writes, told) in [
        (Some("k"), ours(), 1, None),
        (None, ours(), 1, None),
        (Some("other"), ours(), 0, Some("GetSnapshotClassFailed")),
        (Some("k"), Some(class("other", "true")), 0, None),
        (None, Some(class("other", "true")), 0, Some("SetDefaultSnapshotClassFailed")),
        (None, Some(class("local.carrack.io", "false")), 0, Some("SetDefaultSnapshotClassFailed")),
        (None, None, 0, Some("SetDefaultSnapshotClassFailed")),
    ] {
        let mut snapshot = snapshot(false, false);
        snapshot.spec.volume_snapshot_class_name = named.map(str::to_owned);
        let caches = Caches::new().with([snapshot]).with(there).with([claim.clone()]).with([volume.clone()]);
        let caches = caches.with::<VolumeSnapshotContent>([]);
        let plan = Snapshots::new("n1").reconcile(&Key::new("ns", "s"), &caches.view(), Time::default());
        let reason = plan.events.first().map(|event| event.reason.as_str());
        assert_eq!((plan.writes.len(), reason), (writes, told), "{named:?}");
    }
    // What keeps its claim comes first.
    let mut unheld = claim;
    unheld.metadata.finalizers = None;
    let caches = Caches::new().with([snapshot(false, false)]).with(ours()).with([unheld]).with([volume]);
    let caches = caches.with::<VolumeSnapshotContent>([]);
    let plan = Snapshots::new("n1").reconcile(&Key::new("ns", "s"), &caches.view(), Time::default());
    assert!(plan.writes.is_empty(), "{plan:?}");
}

#[test]
fn what_was_a_device_does_not_become_files_by_itself() {
    for (was, wanted, allowed, given) in [
        (Some("Block"), Some("Block"), false, true),
        (Some("Block"), Some("Filesystem"), false, false),
        (Some("Block"), None, false, false),
        (Some("Filesystem"), None, false, true),
        (Some("Filesystem"), Some("Block"), false, false),
        (Some("Block"), Some("Filesystem"), true, true),
        // Its content was made by hand, without a word on that.
        (None, Some("Block"), false, true),
    ] {
        let content = content("c", "u", json!("n1"), |c| {
            c["spec"]["sourceVolumeMode"] = json!(was);
            c["status"] = json!({"snapshotHandle": "h", "readyToUse": true});
            if allowed {
                c["metadata"]["annotations"][MODE_CHANGE] = "true".into();
            }
        });
        let mut taken = snapshot(false, false);
        let status = json!({"boundVolumeSnapshotContentName": "c", "readyToUse": true});
        taken.status = Some(serde_json::from_value(status).unwrap());
        let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let claim = json!({"metadata": object("d", &json!({})), "spec": {"volumeMode": wanted, "dataSource": from}});
        let claim: PersistentVolumeClaim = carrack_types::json::from_value(claim).unwrap();
        let caches = Caches::new().with([taken]).with([content]);
        let found = super::source(&claim, &caches.view());
        assert_eq!(found.is_ok(), given, "{was:?} {wanted:?} {allowed}: {found:?}");
    }
}
