//! CSI drivers that take more or fewer volumes as time goes by.

use super::*;
use crate::volumes::CsiNodeInfo;

const DRIVER: &str = "disks.example";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/sim";

/// A node with a driver that took three volumes when it registered, and a pod that has one.
fn world(about: &Value, attachment: Option<&Value>) -> World {
    let mut w = World::new(5);
    w.edit_or_create_node();
    let source = json!({"driver": DRIVER, "volumeHandle": "h"});
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "1Gi"}, "csi": source,
        "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "n", "name": "c", "uid": "uid-c"}}});
    let claim = json!({"metadata": {"name": "c", "namespace": "n", "uid": "uid-c"}, "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    w.api.put("/api/v1/persistentvolumes/pv", volume);
    w.api.put("/api/v1/namespaces/n/persistentvolumeclaims/c", claim);
    w.api.put(&format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER}"), about.clone());
    if let Some(attachment) = attachment {
        let name = carrack_types::volume::attachment_name(DRIVER, "h", "sim");
        w.api.put(&format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"), attachment.clone());
    }
    let info = CsiNodeInfo { node_id: "sim".into(), max_volumes: 3, topology: BTreeMap::new() };
    w.input(Input::Own(In::CsiUp { driver: DRIVER.into(), info }));
    w.node.csi_limits.insert(DRIVER.into(), 2);
    w.create(
        "p",
        json!({"containers": [{"name": "c", "image": "busybox", "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}),
    );
    w
}

#[test]
fn a_driver_is_asked_again_as_often_as_it_wants_and_when_it_had_no_room() {
    let about = |period: Value, attached: bool| {
        json!({"metadata": {"name": DRIVER},
            "spec": {"attachRequired": attached, "nodeAllocatableUpdatePeriodSeconds": period}})
    };
    let refused = |code: Value| {
        let error = json!({"time": "2026-01-01T00:00:00Z", "message": "no", "errorCode": code});
        json!({"metadata": {"name": "a"}, "spec": {"attacher": DRIVER, "nodeName": "sim", "source": {}},
            "status": {"attached": false, "attachError": error}})
    };
    for (about, attachment, within_s, told) in [
        (about(Value::Null, false), None, 100, 3),
        (about(json!(20), false), None, 10, 3),
        (about(json!(20), false), None, 30, 2),
        // Whoever wants to be asked all the time is asked each ten seconds.
        (about(json!(1), false), None, 8, 3),
        (about(json!(1), false), None, 20, 2),
        (about(Value::Null, true), Some(refused(Value::Null)), 100, 3),
        (about(Value::Null, true), Some(refused(json!(8))), 10, 2),
    ] {
        let mut w = world(&about, attachment.as_ref());
        w.run(within_s);
        let count = &w.api.objects[CSI_NODE]["spec"]["drivers"][0]["allocatable"]["count"];
        assert_eq!(count, told, "{about} {attachment:?} within {within_s} s");
    }
    // One that does not answer is what it was, and is asked again.
    let mut w = world(&about(json!(20), false), None);
    w.node.csi_limits.clear();
    w.run(50);
    assert_eq!(w.api.objects[CSI_NODE]["spec"]["drivers"][0]["allocatable"]["count"], 3);
    assert!(w.asked.iter().filter(|(_, op)| matches!(op, Op::AskCsiNode(_))).count() >= 2);
}

/// A driver that had no room left is asked until it answers, though nobody's disk waits any more.
#[test]
fn a_question_is_not_lost_with_a_driver_that_does_not_answer() {
    let about = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}});
    let attachment = |status: Value| json!({"metadata": {"name": "a"}, "spec": {"attacher": DRIVER, "nodeName": "sim", "source": {}}, "status": status});
    let error = json!({"time": "2026-01-01T00:00:00Z", "message": "no", "errorCode": 8});
    for (gone_s, restarts) in [(25, false), (25, true), (3, true)] {
        let what = format!("gone for {gone_s} s, restarts {restarts}");
        let refused = attachment(json!({"attached": false, "attachError": error}));
        let mut w = world(&about, Some(&refused));
        w.node.csi_limits.clear();
        w.run(2);
        assert!(w.asked.iter().any(|(_, op)| matches!(op, Op::AskCsiNode(_))), "{what}");
        // Another pod has let go of its disk meanwhile.
        let path = format!(
            "/apis/storage.k8s.io/v1/volumeattachments/{}",
            carrack_types::volume::attachment_name(DRIVER, "h", "sim")
        );
        w.api.put(&path, attachment(json!({"attached": true})));
        if restarts {
            w.input(Input::Own(In::CsiDown { driver: DRIVER.into() }));
        }
        w.run(gone_s);
        if restarts {
            // As many as it said the last time.
            let info = CsiNodeInfo { node_id: "sim".into(), max_volumes: 3, topology: BTreeMap::new() };
            w.input(Input::Own(In::CsiUp { driver: DRIVER.into(), info }));
        }
        w.node.csi_limits.insert(DRIVER.into(), 2);
        w.run(15);
        assert_eq!(w.api.objects[CSI_NODE]["spec"]["drivers"][0]["allocatable"]["count"], 2, "{what}");
        // Then it is not asked again.
        let asked = |w: &World| w.asked.iter().filter(|(_, op)| matches!(op, Op::AskCsiNode(_))).count();
        let before = asked(&w);
        w.run(60);
        assert_eq!(asked(&w), before, "{what}");
    }
}

/// As upstream's tests have it ("should transition pod to failed state when attachment limit exceeded", `test/e2e/storage/csimock`).
#[test]
fn a_pod_that_waits_for_room_in_vain_ends_where_another_may_find_some() {
    let error = |code: i32| json!({"time": "2026-01-01T00:00:00Z", "message": "full", "errorCode": code});
    for (period, code, ends) in [(json!(20), 8, true), (json!(20), 13, false), (Value::Null, 8, false)] {
        let about = json!({"metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": period}});
        let refused = json!({"metadata": {"name": "a"},
            "spec": {"attacher": DRIVER, "nodeName": "sim", "source": {}},
            "status": {"attached": false, "attachError": error(code)}});
        let mut w = world(&about, Some(&refused));
        w.run(100);
        assert_eq!(w.phase(), "Pending", "{about} {code}: there may be room yet");
        w.run(60);
        let status = &w.api.objects[POD]["status"];
        assert_eq!(status["phase"] == "Failed", ends, "{about} {code}: {status}");
        assert_eq!(status["reason"] == "VolumeAttachmentLimitExceeded", ends, "{about} {code}: {status}");
        assert_eq!(w.node.sandboxes.values().any(|s| s.ready), !ends, "{about} {code}");
    }
}
