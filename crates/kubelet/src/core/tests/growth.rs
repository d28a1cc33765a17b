//! Volumes that grow while pods that have them come and go.

use super::*;
use crate::volumes::VolumeKind;

const CLAIM: &str = "/api/v1/namespaces/n/persistentvolumeclaims/c";

/// A claim on a volume of a driver's that has grown to 2 GiB.
fn grown(w: &mut World) {
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "n", "name": "c", "uid": "uid-c"},
            "csi": {"driver": "disks.example", "volumeHandle": "h"}}
    });
    let claim = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "uid-c"},
        "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}
    });
    let driver = json!({"metadata": {"name": "disks.example"}, "spec": {"attachRequired": false}});
    w.api.put("/api/v1/persistentvolumes/pv", volume);
    w.api.put(CLAIM, claim);
    w.api.put("/apis/storage.k8s.io/v1/csidrivers/disks.example", driver);
}

fn with_claim() -> Value {
    json!({
        "containers": [{"name": "c", "image": "busybox", "volumeMounts": [{"name": "d", "mountPath": "/d"}]}],
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]
    })
}

fn told(w: &World) -> (String, usize) {
    let status = &w.api.objects[CLAIM]["status"];
    let size = status["capacity"]["storage"].as_str().unwrap_or_default().to_owned();
    (size, status["conditions"].as_array().map_or(0, Vec::len))
}

#[test]
fn a_claim_hears_what_its_volume_has() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        grown(&mut w);
        w.create("p", with_claim());
        w.run(10);
        assert_eq!((w.phase(), told(&w)), ("Running", ("2Gi".to_owned(), 0)), "seed {seed}: {:?}", w.api.events);
        assert_eq!(w.api.events.iter().filter(|e| *e == "FileSystemResizeSuccessful").count(), 1, "seed {seed}");
        w.run(200);
        assert_eq!(w.asked.iter().filter(|(_, op)| matches!(op, Op::ExpandVolume(_))).count(), 1, "seed {seed}");
    });
}

/// The driver refuses while the volume is mounted, and is still busy with it when its pod has to go: the next pod's
/// kubelet asks again. (Its outcome came when the pod was gone, nobody took it, and the claim waited for ever.)
#[test]
fn a_pod_that_goes_while_its_volume_grows_leaves_it_to_the_next() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        grown(&mut w);
        w.growing = (Duration::from_secs(20), Err(OpError::Failed("it is mounted".into())));
        w.create("p", with_claim());
        w.run(10);
        assert_eq!((w.phase(), w.grows.len()), ("Running", 1), "seed {seed}: the driver is busy with it");
        w.delete(2);
        w.run(5);
        assert_ne!(w.phase(), "gone", "seed {seed}: its volume cannot be taken away yet");
        w.run(30);
        w.assert_clean();
        w.growing = (Duration::ZERO, Ok(Reply::Done));
        w.create("p", with_claim());
        w.run(30);
        assert_eq!((w.phase(), told(&w)), ("Running", ("2Gi".to_owned(), 0)), "seed {seed}: {:?}", w.api.events);
    });
}

/// A driver is asked one thing at a time about a volume, whichever pod it is for.
#[test]
fn a_second_pod_gets_its_part_of_a_volume_when_that_has_grown() {
    each_seed(|seed| {
        let mut w = World::new(seed);
        w.edit_or_create_node();
        grown(&mut w);
        w.growing = (Duration::from_secs(20), Ok(Reply::Done));
        w.create("p", with_claim());
        w.run(10);
        assert_eq!(w.grows.len(), 1, "seed {seed}: the driver is busy with it");
        w.create("q", with_claim());
        w.run(5);
        let given = |w: &World| {
            let is_part = |kind: &VolumeKind| matches!(kind, VolumeKind::Published(_));
            w.asked.iter().filter(|(_, op)| matches!(op, Op::SetUpVolume(setup) if is_part(&setup.kind))).count()
        };
        assert_eq!(given(&w), 1, "seed {seed}: it is busy");
        w.run(30);
        assert_eq!(given(&w), 2, "seed {seed}: nobody looked again");
    });
}

/// Where whoever enlarges volumes keeps account, it is the node's turn only as that says, and what fails is told there.
#[test]
fn a_claim_that_keeps_account_hears_how_far_its_node_is() {
    let failed = |text: &str| Err(OpError::Failed(text.into()));
    let done = || Ok(Reply::Done);
    let infeasible = Err(OpError::Infeasible("too much".into()));
    // What it says, how the driver answers; how often that is asked, what the claim says then, and whether it has grown.
    for (stage, allocated, outcome, asked, left, grows) in [
        (None, false, done(), 1, None, true),
        (None, true, done(), 0, None, false),
        (Some("ControllerResizeInProgress"), true, done(), 0, Some("ControllerResizeInProgress"), false),
        (Some("NodeResizePending"), true, done(), 1, None, true),
        (Some("NodeResizeInProgress"), true, done(), 1, None, true),
        (Some("NodeResizeInfeasible"), true, done(), 0, Some("NodeResizeInfeasible"), false),
        (Some("NodeResizePending"), true, infeasible, 1, Some("NodeResizeInfeasible"), false),
        (Some("NodeResizePending"), true, failed("not now"), 2, Some("NodeResizeInProgress"), false),
    ] {
        let mut w = World::new(3);
        w.edit_or_create_node();
        grown(&mut w);
        let mut claim = w.api.objects[CLAIM].clone();
        if let Some(stage) = stage {
            claim["status"]["allocatedResourceStatuses"] = json!({"storage": stage});
        }
        if allocated {
            claim["status"]["allocatedResources"] = json!({"storage": "2Gi"});
        }
        w.api.put(CLAIM, claim);
        let fails = outcome.is_err();
        w.growing = (Duration::ZERO, outcome);
        w.create("p", with_claim());
        w.run(10);
        let status = &w.api.objects[CLAIM]["status"];
        let about = format!("{stage:?} {allocated}: {status}");
        let calls = w.asked.iter().filter(|(_, op)| matches!(op, Op::ExpandVolume(_))).count();
        // It is tried again after two seconds, and four, and eight.
        assert_eq!(calls.min(2), asked, "{about}");
        assert_eq!(status["allocatedResourceStatuses"]["storage"].as_str(), left, "{about}");
        assert_eq!(status["capacity"]["storage"] == "2Gi", grows, "{about}");
        let told = status["conditions"].to_string();
        assert_eq!(told.contains("NodeResizeError"), fails, "{about}");
        assert_eq!(w.phase(), "Running", "{about}");
    }
}

/// The claim of a volume that several nodes have was told by another one of them: this one lets it follow all the same, once for
/// however many pods.
#[test]
fn a_node_follows_what_another_one_has_told() {
    let volume = "/api/v1/persistentvolumes/pv";
    for (mode, pods, expected) in
        [("ReadWriteMany", &["p"][..], 1), ("ReadWriteMany", &["p", "q"], 1), ("ReadWriteOnce", &["p"], 0)]
    {
        let mut w = World::new(5);
        w.edit_or_create_node();
        grown(&mut w);
        let has = |w: &mut World, size: &str| {
            let mut of = w.api.objects[volume].clone();
            of["spec"]["accessModes"] = json!([mode]);
            of["spec"]["capacity"]["storage"] = size.into();
            w.api.put(volume, of);
        };
        let says = |w: &mut World, size: &str| {
            let mut claim = w.api.objects[CLAIM].clone();
            claim["status"] = json!({"phase": "Bound", "capacity": {"storage": size}});
            w.api.put(CLAIM, claim);
        };
        has(&mut w, "1Gi");
        says(&mut w, "1Gi");
        for pod in pods {
            w.create(pod, with_claim());
        }
        w.run(10);
        assert_eq!(w.phase(), "Running", "{mode}: {:?}", w.api.events);
        let calls = |w: &World| w.asked.iter().filter(|(_, op)| matches!(op, Op::ExpandVolume(_))).count();
        assert_eq!(calls(&w), 0, "{mode}: nothing has grown");
        // It is known here before the size itself is.
        says(&mut w, "2Gi");
        w.run(200);
        has(&mut w, "2Gi");
        w.run(300);
        assert_eq!((calls(&w), told(&w)), (expected, ("2Gi".to_owned(), 0)), "{mode}");
    }
}
