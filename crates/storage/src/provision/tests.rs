//! What the controllers decide, one look at a time.

use std::time::Duration;

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Time, Write};
use carrack_types::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
use carrack_types::volume::SELECTED_NODE;
use carrack_types::well_known::storage::{CLASS_ANNOTATION, PROVISIONED_BY};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::calls::{Answer, Call, CallError, Calls, Outcome};
use super::{claims::Claims, reclaim::Reclaim, resize::Local};
use crate::resize::Resize;

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// What a plan writes, in words.
fn words(plan: &Plan) -> Vec<String> {
    let word = |w: &Write| match w {
        Write::Create { object, .. } => format!("create {}", object["metadata"]["name"].as_str().unwrap_or_default()),
        Write::Delete { key, .. } => format!("delete {}", key.name),
        Write::Patch { sub, patch, .. } => {
            let mut patch = patch.clone();
            patch["metadata"]["uid"] = Value::Null;
            let finalizers = patch["metadata"]["finalizers"].clone();
            let node = patch["metadata"]["annotations"].get(SELECTED_NODE).cloned();
            let mut text = format!("patch {sub}");
            if !finalizers.is_null() {
                text.push_str(&format!("finalizers={finalizers} "));
            }
            if let Some(node) = node {
                text.push_str(&format!("node={node}"));
            }
            if let Some(size) = patch.pointer("/spec/capacity/storage") {
                text.push_str(&format!("capacity={size}"));
            }
            if let Some(stage) = patch.pointer("/status/allocatedResourceStatuses/storage") {
                text.push_str(&format!("{stage} for {}", patch["status"]["allocatedResources"]["storage"]));
            }
            for c in patch.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
                text.push_str(&format!("={}", c["type"].as_str().unwrap_or_default()));
            }
            text.trim_end().to_owned()
        }
        other => format!("{other:?}"),
    };
    plan.writes.iter().map(word).collect()
}

/// Lets a controller look, answers what it asks the driver, and lets it look again.
fn look(
    controller: &mut dyn Controller,
    calls: &Calls,
    key: &Key,
    caches: &Caches,
    answer: &Outcome,
) -> (Vec<Call>, Plan) {
    let plan = controller.reconcile(key, &caches.view(), Time::default());
    let asked = calls.take();
    if asked.is_empty() {
        return (Vec::new(), plan);
    }
    assert!(plan.writes.is_empty(), "it waits for the answer: {plan:?}");
    for (id, _) in &asked {
        calls.answered(*id, answer.clone());
    }
    let plan = controller.reconcile(key, &caches.view(), Time::default());
    assert!(calls.take().is_empty(), "it asks once");
    (asked.into_iter().map(|(_, call)| call).collect(), plan)
}

fn claim(change: impl Fn(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({"metadata": {"namespace": "ns", "name": "c", "uid": "u", "finalizers": ["other", super::PROVISIONING],
            "annotations": {"volume.kubernetes.io/storage-provisioner": "local.carrack.io",
                "volume.kubernetes.io/selected-node": "n1"}},
        "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}});
    change(&mut claim);
    if let Some(annotations) = claim["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, value| !value.is_null());
    }
    of(claim)
}

fn class(mode: &str) -> StorageClass {
    of(json!({"metadata": {"name": "local"}, "provisioner": "local.carrack.io", "volumeBindingMode": mode,
        "parameters": {"csi.storage.k8s.io/fstype": "xfs"}, "mountOptions": ["noatime"]}))
}

fn with_snapshots(caches: Caches) -> Caches {
    caches.with::<VolumeSnapshot>([]).with::<VolumeSnapshotContent>([])
}

fn created() -> Outcome {
    Ok(Answer::Created {
        handle: "pvc-u".into(),
        bytes: 1 << 30,
        context: Default::default(),
        topologies: vec![[("local.carrack.io/node".to_owned(), "n1".to_owned())].into()],
    })
}

fn refused(no_room: bool) -> Outcome {
    Err(CallError { no_room, message: "no".into() })
}

const TRACED: &str = "patch finalizers=[\"other\",\"local.carrack.io/provisioning\"] node=\"n1\"";
const SETTLED: &str = "patch finalizers=[\"other\"] node=\"n1\"";

#[test]
fn claims_get_their_volumes() {
    let finalizers = |c: &mut Value, list: Value| c["metadata"]["finalizers"] = list;
    let selected =
        |c: &mut Value, node: Value| c["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node;
    let deleted = |c: &mut Value| c["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let bound = |c: &mut Value, to: &str| c["spec"]["volumeName"] = to.into();
    type Case<'a> = (&'a str, PersistentVolumeClaim, &'a str, bool, Outcome, usize, Vec<&'a str>, bool);
    let cases: Vec<Case<'_>> = vec![
        ("ready to be made", claim(|_| ()), "WaitForFirstConsumer", false, created(), 1, vec!["create pvc-u"], false),
        (
            "traced first",
            claim(|c| finalizers(c, json!(["other"]))),
            "WaitForFirstConsumer",
            false,
            created(),
            0,
            vec![TRACED],
            false,
        ),
        (
            "its class is named by the annotation",
            claim(|c| {
                c["spec"]["storageClassName"] = "another".into();
                c["metadata"]["annotations"][CLASS_ANNOTATION] = "local".into();
            }),
            "WaitForFirstConsumer",
            false,
            created(),
            1,
            vec!["create pvc-u"],
            false,
        ),
        ("another node's", claim(|c| selected(c, "n2".into())), "Immediate", false, created(), 0, vec![], false),
        (
            "a populator's",
            claim(|c| {
                c["spec"]["dataSourceRef"] =
                    json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "i"});
            }),
            "WaitForFirstConsumer",
            false,
            created(),
            0,
            vec![],
            false,
        ),
        (
            "nobody's yet",
            claim(|c| selected(c, Value::Null)),
            "WaitForFirstConsumer",
            false,
            created(),
            0,
            vec![],
            false,
        ),
        (
            "anybody's",
            claim(|c| {
                selected(c, Value::Null);
                finalizers(c, json!(["other"]));
            }),
            "Immediate",
            false,
            created(),
            0,
            vec![TRACED],
            false,
        ),
        (
            "somebody else's provisioner",
            claim(|c| c["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = "other".into()),
            "Immediate",
            false,
            created(),
            0,
            vec![],
            false,
        ),
        (
            "no room",
            claim(|_| ()),
            "WaitForFirstConsumer",
            false,
            refused(true),
            1,
            vec!["patch finalizers=[\"other\"] node=null"],
            false,
        ),
        ("refused", claim(|_| ()), "WaitForFirstConsumer", false, refused(false), 1, vec![], true),
        ("about something else", claim(|_| ()), "WaitForFirstConsumer", false, Ok(Answer::Deleted), 1, vec![], true),
        ("made", claim(|_| ()), "WaitForFirstConsumer", true, created(), 0, vec![SETTLED], false),
        (
            "bound, and the volume not seen",
            claim(|c| bound(c, "pvc-u")),
            "Immediate",
            false,
            created(),
            0,
            vec![SETTLED],
            false,
        ),
        (
            "bound to another",
            claim(|c| bound(c, "pv1")),
            "Immediate",
            false,
            Ok(Answer::Deleted),
            1,
            vec![SETTLED],
            false,
        ),
        ("deleted meanwhile", claim(deleted), "Immediate", false, Ok(Answer::Deleted), 1, vec![SETTLED], false),
        ("deleted, and that fails", claim(deleted), "Immediate", false, refused(false), 1, vec![], true),
        ("deleted with a volume", claim(deleted), "Immediate", true, created(), 0, vec![SETTLED], false),
        (
            "deleted before anything was made",
            claim(|c| {
                deleted(c);
                finalizers(c, json!(["other"]));
            }),
            "Immediate",
            false,
            created(),
            0,
            vec![],
            false,
        ),
    ];
    for (what, claim, mode, there, answer, asks, expected, fails) in cases {
        let calls = Calls::default();
        let mut controller = Claims::new("n1", calls.clone(), None);
        let volumes: Vec<PersistentVolume> =
            if there { vec![of(json!({"metadata": {"name": "pvc-u"}}))] } else { Vec::new() };
        let caches = with_snapshots(Caches::new().with([claim]).with([class(mode)]).with(volumes));
        let (asked, plan) = look(&mut controller, &calls, &Key::new("ns", "c"), &caches, &answer);
        assert_eq!((asked.len(), words(&plan)), (asks, expected.into_iter().map(str::to_owned).collect()), "{what}");
        assert_eq!(plan.error.is_some(), fails, "{what}");
    }
}

#[test]
fn a_class_may_say_at_which_nodes_its_volumes_are() {
    let node = |key: &str, nodes: &[&str]| json!({"matchLabelExpressions": [{"key": key, "values": nodes}]});
    for (topologies, expected) in [
        (json!([]), true),
        (json!([node(crate::TOPOLOGY, &["n2", "n1"])]), true),
        (json!([node(crate::TOPOLOGY, &["n2"]), node(crate::TOPOLOGY, &["n1"])]), true),
        (json!([node(crate::TOPOLOGY, &["n2"])]), false),
        (json!([node("zone", &["n1"])]), false),
        (json!([{}]), false),
        (json!([{"matchLabelExpressions": []}]), false),
        (json!([{}, node(crate::TOPOLOGY, &["n1"])]), true),
    ] {
        let calls = Calls::default();
        let mut controller = Claims::new("n1", calls.clone(), None);
        let class = StorageClass { allowed_topologies: of(topologies.clone()), ..class("Immediate") };
        let anybodys = claim(|c| {
            c["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = Value::Null;
            c["metadata"]["finalizers"] = json!(["other"]);
        });
        let caches = Caches::new().with([anybodys]).with([class]).with::<PersistentVolume>([]);
        let plan = controller.reconcile(&Key::new("ns", "c"), &with_snapshots(caches).view(), Time::default());
        assert_eq!((words(&plan) == [TRACED], plan.writes.len()), (expected, usize::from(expected)), "{topologies}");
    }
}

/// What it is made from is at this node, so that no other can have it; but it is not asked for again at once.
#[test]
fn what_is_made_from_something_waits_for_room() {
    let taken: VolumeSnapshot = of(json!({"metadata": {"namespace": "ns", "name": "s", "uid": "su"},
        "spec": {"source": {"persistentVolumeClaimName": "other"}},
        "status": {"boundVolumeSnapshotContentName": "k", "readyToUse": true}}));
    let content: VolumeSnapshotContent = of(json!({
        "metadata": {"name": "k", "annotations": {"local.carrack.io/node": "n1"}},
        "spec": {"driver": "local.carrack.io", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "su"}},
        "status": {"snapshotHandle": "h", "readyToUse": true}}));
    let caches = |node: Value, finalizers: Value| {
        let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
        let claim = claim(|c| {
            c["spec"]["dataSource"] = from.clone();
            c["metadata"]["finalizers"] = finalizers.clone();
            c["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.clone();
        });
        let caches = Caches::new().with([claim]).with([class("Immediate")]).with::<PersistentVolume>([]);
        caches.with([taken.clone()]).with([content.clone()])
    };
    let calls = Calls::default();
    let mut controller = Claims::new("n1", calls.clone(), None);
    let key = Key::new("ns", "c");
    let selected = caches("n1".into(), json!(["other", super::PROVISIONING]));
    let (asked, plan) = look(&mut controller, &calls, &key, &selected, &refused(true));
    assert_eq!((asked.len(), words(&plan)), (1, vec!["patch finalizers=[\"other\"] node=null".to_owned()]));
    let again = caches(Value::Null, json!(["other"]));
    for (after_s, expected) in [(0, vec![]), (29, vec![]), (30, vec![TRACED])] {
        let now = Time::default() + Duration::from_secs(after_s);
        let plan = controller.reconcile(&key, &again.view(), now);
        assert_eq!(words(&plan), expected, "{after_s}");
        assert_eq!(plan.requeue_after.is_some(), expected.is_empty(), "{after_s}");
    }
}

/// A driver may say that it has made a volume, and have made a smaller one.
#[test]
fn what_is_too_small_goes_and_is_made_anew() {
    let small = created().map(|answer| match answer {
        Answer::Created { handle, context, topologies, .. } => {
            Answer::Created { handle, bytes: 1 << 29, context, topologies }
        }
        other => other,
    });
    let calls = Calls::default();
    let mut controller = Claims::new("n1", calls.clone(), None);
    let (key, caches) =
        (Key::new("ns", "c"), Caches::new().with([claim(|_| ())]).with([class("WaitForFirstConsumer")]));
    let caches = with_snapshots(caches.with::<PersistentVolume>([]));
    let (asked, plan) = look(&mut controller, &calls, &key, &caches, &small);
    assert!(matches!(&asked[..], [Call::Create(_)]), "{asked:?}");
    assert!(plan.error.is_some() && plan.writes.is_empty(), "{plan:?}");
    assert!(controller.reconcile(&key, &caches.view(), Time::default()).writes.is_empty());
    let sent = calls.take();
    let [(id, Call::Delete(handle))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(handle, "pvc-u");
    calls.answered(*id, Ok(Answer::Deleted));
    let (asked, plan) = look(&mut controller, &calls, &key, &caches, &created());
    assert!(matches!(&asked[..], [Call::Create(_)]), "{asked:?}");
    assert_eq!(words(&plan), ["create pvc-u"]);
}

#[test]
fn a_volume_says_what_it_is() {
    let calls = Calls::default();
    let mut controller = Claims::new("n1", calls.clone(), None);
    let caches = Caches::new().with([claim(|_| ())]).with([class("WaitForFirstConsumer")]);
    let caches = with_snapshots(caches.with::<PersistentVolume>([]));
    let (asked, plan) = look(&mut controller, &calls, &Key::new("ns", "c"), &caches, &created());
    let [Call::Create(asked)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((asked.bytes, asked.fs_type.as_str(), asked.parameters.len()), (1 << 30, "xfs", 0));
    let [Write::Create { object, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    let spec = &object["spec"];
    assert_eq!(spec["csi"], json!({"driver": "local.carrack.io", "volumeHandle": "pvc-u", "fsType": "xfs"}));
    assert_eq!(spec["capacity"]["storage"], "1Gi");
    assert_eq!(spec["claimRef"]["uid"], "u");
    assert_eq!(spec["mountOptions"], json!(["noatime"]));
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!((&term["key"], &term["values"]), (&json!("local.carrack.io/node"), &json!(["n1"])));
    assert_eq!(object["metadata"]["finalizers"], json!([super::DATA]));
}

fn volume(change: impl Fn(&mut Value)) -> PersistentVolume {
    let mut volume = json!({"metadata": {"name": "pvc-u", "uid": "v", "finalizers": [super::DATA],
            "annotations": {"pv.kubernetes.io/provisioned-by": "local.carrack.io"}},
        "spec": {"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "local.carrack.io", "volumeHandle": "h"},
            "claimRef": {"namespace": "ns", "name": "c", "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "local.carrack.io/node", "operator": "In", "values": ["n1"]}]}]}}},
        "status": {"phase": "Released"}});
    change(&mut volume);
    of(volume)
}

#[test]
fn data_goes_before_its_volume_and_only_when_it_may() {
    const KEPT: &str = "patch finalizers=[\"other\"]";
    const DONE: &str = "patch finalizers=[]";
    const GOES: &str = "patch finalizers=[\"external-provisioner.volume.kubernetes.io/finalizer\"]";
    let going = |v: &mut Value| v["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let kept = |v: &mut Value, finalizers: Value| {
        v["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        v["metadata"]["finalizers"] = finalizers;
    };
    // Its finalizer went when its data did.
    let bare = |v: &mut Value| v["metadata"]["finalizers"] = json!(["other"]);
    let by_hand = |v: &mut Value| v["metadata"]["annotations"] = json!({});
    let others = |v: &mut Value| v["metadata"]["annotations"][PROVISIONED_BY] = "other".into();
    let bound_without = |v: &mut Value| {
        v["status"]["phase"] = "Bound".into();
        v["metadata"]["finalizers"] = json!([]);
    };
    type Case<'a> = (&'a str, PersistentVolume, Outcome, usize, Vec<&'a str>);
    let cases: Vec<Case<'_>> = vec![
        ("released", volume(|_| ()), Ok(Answer::Deleted), 1, vec![DONE, "delete pvc-u"]),
        ("released and going", volume(going), Ok(Answer::Deleted), 1, vec![DONE]),
        ("released, and its data has gone", volume(bare), Ok(Answer::Deleted), 1, vec!["delete pvc-u"]),
        (
            "going, and its data has gone",
            volume(|v| {
                bare(v);
                going(v);
            }),
            Ok(Answer::Deleted),
            0,
            vec![],
        ),
        ("in use", volume(|_| ()), refused(false), 1, vec![]),
        ("bound", volume(|v| v["status"]["phase"] = "Bound".into()), Ok(Answer::Deleted), 0, vec![]),
        (
            "going and bound",
            volume(|v| {
                going(v);
                v["status"]["phase"] = "Bound".into();
            }),
            Ok(Answer::Deleted),
            0,
            vec![],
        ),
        ("kept", volume(|v| kept(v, json!([]))), Ok(Answer::Deleted), 0, vec![]),
        // Its policy has been changed since it was made.
        ("kept now", volume(|v| kept(v, json!(["other", super::DATA]))), Ok(Answer::Deleted), 0, vec![KEPT]),
        (
            "kept now, and going",
            volume(|v| {
                kept(v, json!(["other", super::DATA]));
                going(v);
            }),
            Ok(Answer::Deleted),
            0,
            vec![KEPT],
        ),
        ("not kept any more", volume(bound_without), Ok(Answer::Deleted), 0, vec![GOES]),
        (
            "not kept any more, and going",
            volume(|v| {
                bound_without(v);
                going(v);
            }),
            Ok(Answer::Deleted),
            0,
            vec![],
        ),
        (
            "another's, and kept now",
            volume(|v| {
                kept(v, json!([super::DATA]));
                others(v);
            }),
            Ok(Answer::Deleted),
            0,
            vec![],
        ),
        ("another's", volume(others), Ok(Answer::Deleted), 0, vec![]),
        ("made by hand", volume(by_hand), Ok(Answer::Deleted), 1, vec![DONE, "delete pvc-u"]),
        ("another node's", volume(|v| v["spec"]["nodeAffinity"] = Value::Null), Ok(Answer::Deleted), 0, vec![]),
    ];
    for (what, volume, answer, asks, expected) in cases {
        let calls = Calls::default();
        let mut controller = Reclaim::new("n1", calls.clone());
        let caches = Caches::new().with([volume]);
        let (asked, plan) = look(&mut controller, &calls, &Key::new("", "pvc-u"), &caches, &answer);
        assert_eq!((asked.len(), words(&plan)), (asks, expected.into_iter().map(str::to_owned).collect()), "{what}");
    }
}

#[test]
fn volumes_grow_and_never_shrink() {
    let allocated = |asks: &str, told: &str, allocated: &str, condition: &str| {
        claim(|c| {
            c["spec"]["volumeName"] = "pvc-u".into();
            c["spec"]["resources"]["requests"]["storage"] = asks.into();
            c["status"] = json!({"phase": "Bound", "capacity": {"storage": told},
                "allocatedResources": {"storage": allocated}, "conditions": [{"type": condition, "status": "True"}]});
        })
    };
    let bound = |asks: &str, told: &str, condition: &str| allocated(asks, told, asks, condition);
    const BEGINS: &str = "patch status\"ControllerResizeInProgress\" for \"3Gi\"=Other=Resizing";
    const AGAIN: &str = "patch status\"ControllerResizeInProgress\" for \"3Gi\"=Resizing";
    const NODE: &str = "patch status\"NodeResizePending\" for \"3Gi\"=FileSystemResizePending";
    let has = |size: &str| volume(|v| v["spec"]["capacity"]["storage"] = size.into());
    let grown = || Ok(Answer::Expanded { bytes: 3 << 30, on_node: true });
    type Case<'a> = (&'a str, PersistentVolumeClaim, PersistentVolume, Outcome, usize, Vec<&'a str>);
    let cases: Vec<Case<'_>> = vec![
        ("as it is", bound("1Gi", "1Gi", "Other"), has("1Gi"), grown(), 0, vec![]),
        ("less", bound("1Gi", "2Gi", "Other"), has("2Gi"), grown(), 0, vec![]),
        ("more", bound("3Gi", "1Gi", "Other"), has("1Gi"), grown(), 0, vec![BEGINS]),
        ("less than before", allocated("3Gi", "1Gi", "9Gi", "Resizing"), has("1Gi"), grown(), 0, vec![AGAIN]),
        ("more while its node is at it", bound("3Gi", "1Gi", "NodeResizeError"), has("2Gi"), grown(), 0, vec![AGAIN]),
        ("told", bound("3Gi", "1Gi", "Resizing"), has("1Gi"), grown(), 1, vec!["patch capacity=\"3Gi\""]),
        ("no room", bound("3Gi", "1Gi", "Resizing"), has("1Gi"), refused(true), 1, vec![]),
        ("the node's turn", bound("3Gi", "1Gi", "Resizing"), has("3Gi"), grown(), 0, vec![NODE]),
        ("the node's work", bound("3Gi", "1Gi", "FileSystemResizePending"), has("3Gi"), grown(), 0, vec![]),
    ];
    for (what, claim, volume, answer, asks, expected) in cases {
        let calls = Calls::default();
        let mut controller = Resize(Local { node: "n1".into(), calls: calls.clone() });
        let caches = Caches::new().with([claim]).with([volume]);
        let (asked, plan) = look(&mut controller, &calls, &Key::new("ns", "c"), &caches, &answer);
        assert_eq!((asked.len(), words(&plan)), (asks, expected.into_iter().map(str::to_owned).collect()), "{what}");
    }
}
