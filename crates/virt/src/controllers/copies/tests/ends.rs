//! How copying and filling end that fail, take long, or are interrupted.

use std::time::Duration;

use super::*;

/// As [`World::restoring`], but the new claim has the place of the old one; and the pod that fills it.
fn in_place() -> (World, Value) {
    let mut world = World::restoring();
    let mut new = world.claims.pop().expect("the new claim");
    new["metadata"]["name"] = json!("data");
    world.claims[0] = new;
    world.restore["spec"]["volumeRestorePolicy"] = json!("InPlace");
    world.restore["status"]["restores"][0]["persistentVolumeClaim"] = json!("data");
    world.vm.as_mut().expect("a machine")["spec"]["runStrategy"] = json!("Always");
    let pod = with(created(&world.restore()), json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24"}}));
    (world, pod)
}

const FREE: &str = "patch virtualmachines/vm/status memoryDumpRequest=null restoreInProgress=null";
const BLANK: &str = "persistentvolumeclaims/data";

#[test]
fn a_machine_whose_claim_is_blank_is_held_until_its_restore_is_deleted() {
    let (mut world, pod) = in_place();
    let failing = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "copy", "ready": false, "image": "",
        "restartCount": 5, "imageID": "", "state": {"terminated": {"exitCode": 1, "message": "no room"}}}]}});
    world.pods = vec![with(pod, failing)];
    let said = words(&world.restore()).join("\n");
    let held = "no room; the target is not started before this restore is deleted, as PVCs [data] are not filled";
    assert!(said.contains("Failure=True") && said.contains(held), "{said}");
    world.restore["status"]["conditions"] = json!([{"type": "Failure", "status": "True"}]);
    check(&world.restore(), &[&format!("delete pods/{POD}")]);
    world.pods.clear();
    check(&world.restore(), &[]);
    // What was made from storage's snapshot is never blank, and what is not there is told of by the machine.
    let claims = std::mem::take(&mut world.claims);
    check(&world.restore(), &[FREE]);
    world.claims = claims;
    let volume = world.restore["status"]["restores"][0]["volumeSnapshotName"].take();
    world.restore["status"]["restores"][0]["volumeSnapshotName"] = json!("vs");
    check(&world.restore(), &[FREE]);
    world.restore["status"]["restores"][0]["volumeSnapshotName"] = volume;

    world.restore["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
    let plan = world.restore();
    let said = words(&plan);
    assert_eq!(said[..2], ["unchanged virtualmachines/vm".to_owned(), format!("delete {BLANK}")], "{said:?}");
    assert_eq!(plan.told.iter().map(|(_, e)| e.reason.as_str()).collect::<Vec<_>>(), ["UnfilledPVCDeleted"]);
    assert!(plan.premises.iter().any(|(n, premise)| *n == 1 && premise.resource == "virtualmachines"));
    world.claims[0]["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
    assert!(!words(&world.restore()).join("\n").contains("virtualmachines/vm"), "it waits");
    world.claims.remove(0);
    check(&world.restore(), &[&format!("absent {BLANK}"), FREE]);
}

#[test]
fn a_claim_that_was_filled_in_place_stays_whatever_becomes_of_the_restore() {
    for (failed, deleted) in [(true, false), (false, true), (true, true)] {
        let (mut world, pod) = in_place();
        world.pods = vec![with(pod, json!({"status": {"phase": "Succeeded"}}))];
        if failed {
            world.restore["status"]["conditions"] = json!([{"type": "Failure", "status": "True"}]);
        }
        if deleted {
            world.restore["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
        }
        let first = |world: &World| words(&world.restore()).into_iter().next();
        assert_eq!(first(&world), Some(format!("patch {BLANK} annotations")));
        world.claims[0]["metadata"]["annotations"]["restore.kubevirt.io/filled"] = json!("r-r-uid");
        assert_eq!(first(&world), Some(format!("delete pods/{POD}")));
        world.pods.clear();
        assert_eq!(first(&world).as_deref(), Some(FREE));
        // The annotation of another restore says nothing.
        world.claims[0]["metadata"]["annotations"]["restore.kubevirt.io/filled"] = json!("q-q-uid");
        assert_ne!(first(&world).as_deref(), Some(FREE));
    }
    // A machine that was changed is so after its claims were filled.
    let (mut world, _) = in_place();
    world.restore["metadata"]["deletionTimestamp"] = json!("1970-01-12T13:46:45Z");
    let changed = json!({"metadata": {"annotations": {"restore.kubevirt.io/lastRestoreUID": "r-r-uid"}}});
    world.vm = world.vm.map(|vm| with(vm, changed));
    check(&world.restore(), &[FREE]);
}

#[test]
fn a_snapshot_whose_disks_are_still_being_copied_is_not_late() {
    let fails = |mut world: World| {
        world.now = LATE;
        let plan = world.snapshot();
        let failed = words(&plan).join("\n").contains("snapshot deadline exceeded");
        assert!(failed || plan.requeue_after.is_none(), "it would be looked at again at once: {plan:?}");
        failed
    };
    let container = |restarts: i32| {
        json!({"phase": "Running", "containerStatuses": [{"name": "copy", "ready": true, "image": "", "imageID": "",
            "restartCount": restarts}]})
    };
    // Off: the pod that copies keeps the machine so.
    assert!(fails(World::new()), "no pod");
    assert!(fails(World::copying(json!({"phase": "Pending"}))), "it may never run");
    assert!(!fails(World::copying(container(0))));
    assert!(!fails(World::copying(container(4))), "it may come to something");
    assert!(fails(World::copying(container(5))), "it will not");
    assert!(fails(World::copying(json!({"phase": "Failed"}))));
    assert!(!fails(World::copying(json!({"phase": "Succeeded"}))), "which is said next");
    let mut foreign = World::copying(container(0));
    foreign.pods[0]["metadata"]["ownerReferences"] = json!([]);
    assert!(fails(foreign), "somebody else's pod");
    // Running: the copies are of when they were begun.
    assert!(fails(receiving(true)));
    assert!(!fails(begun()));
    let mut world = begun();
    world.pods[0]["status"] = json!({"phase": "Failed"});
    assert!(fails(world), "it was begun in vain");
    let mut world = begun();
    world.pods.clear();
    assert!(fails(world));
    // What storage takes has a point in time, too.
    let mixed = |mut world: World, created: Value| {
        let backups = world.content["spec"]["volumeBackups"].as_array_mut().expect("backups");
        backups.push(json!({"volumeName": "more", "volumeSnapshotName": "vs", "persistentVolumeClaim":
            {"metadata": {"name": "more"}, "spec": {"storageClassName": "shelf"}}}));
        let mut said = world.content["status"]["volumeSnapshotStatus"].as_array().cloned().unwrap_or_default();
        said.push(json!({"volumeSnapshotName": "vs", "creationTime": created}));
        world.content["status"]["volumeSnapshotStatus"] = json!(said);
        world
    };
    let worlds: [&dyn Fn() -> World; 2] = [&|| World::copying(container(0)), &begun];
    for world in worlds {
        assert!(fails(mixed(world(), json!(null))));
        assert!(!fails(mixed(world(), json!("1970-01-12T13:46:44Z"))));
    }
    // Before its time is over, it is looked at again then.
    assert!(World::copying(json!({})).snapshot().requeue_after.is_some());
}

#[test]
fn a_copy_that_fails_is_tried_again_after_a_pause_that_grows() {
    let at = |second: i64| Time::from_unix_s(1_000_000 + second).rfc3339();
    // Seconds after the content was made: the pod was made, and goes.
    for (made, goes) in [(0, 2), (1, 3), (3, 6), (20, 40), (60, 120), (500, 560)] {
        let failed = |mut world: World| {
            world.content["metadata"]["creationTimestamp"] = json!(at(0));
            world.pods[0]["metadata"]["creationTimestamp"] = json!(at(made));
            world.pods[0]["status"] = json!({"phase": "Failed", "message": "no room"});
            world
        };
        let online = || failed(begun());
        for mut world in [online(), failed(World::copying(json!({})))] {
            world.now = Time::from_unix_s(1_000_000 + goes - 1);
            let plan = world.content();
            let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{made}: {plan:?}") };
            assert_eq!(patch["status"]["error"]["message"], format!("copying pod {POD}: no room"), "{made}");
            assert_eq!((plan.writes.len(), plan.requeue_after), (1, Some(Duration::from_secs(1))), "{made}");
            assert!(patch["status"]["volumeSnapshotStatus"][0]["creationTime"].is_null(), "{patch}");
            world.now = Time::from_unix_s(1_000_000 + goes);
            assert_eq!(words(&world.content()), [format!("delete pods/{POD}")], "{made}");
        }
        // A machine that is to start does not wait for that.
        let mut world = online();
        world.vmi = None;
        assert_eq!(words(&world.content()), [format!("delete pods/{POD}")], "its instance is gone");
        let mut world = failed(World::copying(json!({})));
        world.vm.as_mut().expect("a machine")["spec"]["runStrategy"] = json!("Always");
        assert_eq!(words(&world.content()), [format!("delete pods/{POD}")], "it is wanted");
    }
    // A restore keeps its machine off, and waits the same.
    let mut world = World::restoring();
    world.restore["metadata"]["creationTimestamp"] = json!(at(0));
    let status = json!({"metadata": {"uid": "pod-uid", "resourceVersion": "24", "creationTimestamp": at(9)},
        "status": {"phase": "Failed", "message": "evicted"}});
    world.pods = vec![with(created(&world.restore()), status)];
    let plan = world.restore();
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(8)));
    assert!(words(&plan)[0].contains("evicted"), "{:?}", words(&plan));
    world.now = Time::from_unix_s(1_000_018);
    assert_eq!(words(&world.restore())[0], format!("delete pods/{POD}"));
}

/// By a clock that is behind that of the API server a pod is dated in time to come.
#[test]
fn clocks_that_are_far_apart_make_no_pause_endless() {
    for (now_s, pause_s) in [(-3600, None), (-61, None), (-60, Some(62)), (0, Some(2)), (2, None), (3600, None)] {
        let mut world = begun();
        let at = |second: i64| Time::from_unix_s(1_000_000 + second);
        for object in [&mut world.content, &mut world.pods[0]] {
            object["metadata"]["creationTimestamp"] = json!(at(0).rfc3339());
        }
        world.pods[0]["status"] = json!({"phase": "Failed", "message": "no room"});
        world.now = at(now_s);
        let plan = world.content();
        match pause_s {
            Some(pause_s) => assert_eq!(plan.requeue_after, Some(Duration::from_secs(pause_s)), "{now_s}: {plan:?}"),
            None => assert_eq!(words(&plan), [format!("delete pods/{POD}")], "{now_s}"),
        }
    }
}

#[test]
fn a_machine_that_restarts_is_copied_when_it_runs_again() {
    for (strategy, requests, waits) in [
        ("Always", json!([]), true),
        ("Manual", json!([]), false),
        ("Manual", json!([{"action": "Start"}]), true),
        ("Halted", json!([]), false),
    ] {
        let mut world = begun();
        let vm = world.vm.as_mut().expect("a machine");
        vm["spec"]["runStrategy"] = json!(strategy);
        vm["status"]["stateChangeRequests"] = requests.clone();
        world.vmi = None;
        check(&world.content(), &[&format!("delete pods/{POD}")]);
        world.pods.clear();
        world.content["status"] = json!({});
        let plan = world.content();
        let makes = words(&plan).contains(&format!("create pods/{POD}"));
        assert_eq!(makes, !waits, "{strategy} {requests}: {:?}", words(&plan));
        if waits {
            let Some(Write::Patch { patch, .. }) = plan.writes.last() else { panic!("{plan:?}") };
            assert_eq!(
                patch["status"]["error"]["message"],
                "the machine is about to start, and is copied when it runs"
            );
        }
        // It runs again: a pod for what runs now, and then as from the beginning.
        world.vmi = Some(with(vmi(), json!({"metadata": {"uid": "next-uid"}, "status": {"nodeName": "n"}})));
        let pod = created(&world.content());
        assert_eq!(pod["spec"]["containers"][0]["args"][2], "next-uid");
    }
}

/// A pod with the name that keeps a machine from starting (`vm::tests`) is made only while the machine has no instance; or,
/// where it copies nothing by itself, while the one is there that does.
#[test]
fn no_disk_is_copied_or_filled_that_somebody_uses() {
    let copying = || {
        let mut world = World::copying(json!({}));
        world.pods.clear();
        world
    };
    let running = || {
        let mut world = receiving(true);
        world.pods.clear();
        world
    };
    let (restoring, (replacing, _)) = (World::restoring(), in_place());
    for (plan, instance) in [
        (copying().content(), None),
        (restoring.restore(), None),
        (replacing.restore(), None),
        (running().content(), Some("vmi-uid")),
    ] {
        let makes = |write: &Write| matches!(write, Write::Create { resource, .. } if resource.plural == "pods");
        let number = plan.writes.iter().position(makes).expect("a pod");
        assert_eq!(plan.writes[number].key().name, POD);
        let mut premises = plan.premises.iter().filter(|(of, _)| *of == number).map(|(_, premise)| premise);
        let found = premises.find(|premise| premise.resource == "virtualmachineinstances").expect("a premise");
        assert_eq!((found.name.as_str(), found.uid.as_deref()), ("vm", instance), "{:?}", words(&plan));
    }
}
