//! Pods that go, and what holds their container disks.

use super::*;

/// An instance whose pod has a container that runs `program` for its disk.
fn with_disk(program: &str) -> Rig {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(POD, |pod| pod["spec"]["containers"][1]["command"] = json!([program]));
    rig
}

fn deletes(rig: &mut Rig) {
    rig.change(POD, |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
}

/// What was asked for to end a pod's disks so far; all else is left out.
fn asked(rig: &mut Rig) -> Vec<Out> {
    let expected = Sought { uid: "vmi".to_owned(), pod_uid: "pod".to_owned(), ends_disks: true };
    let asks = |out: &Out| matches!(&out.op, Op::LookForProcesses(sought) if *sought == expected);
    std::mem::take(&mut rig.ops).into_iter().filter(asks).collect()
}

#[test]
fn a_disk_that_did_not_hear_of_its_end_hears_of_it_again() {
    let mut rig = with_disk("/usr/bin/container-disk");
    rig.start(Vec::new());
    rig.boot();
    rig.pass(Duration::from_secs(60));
    assert!(asked(&mut rig).is_empty(), "nobody wants it to go");
    deletes(&mut rig);
    rig.pass(Duration::from_secs(4));
    assert!(asked(&mut rig).is_empty(), "its guest goes on");
    rig.domain(Phase::Ended, Some(EndReason::Killed));
    // It is asked until it is a fact that nothing is left.
    for outcome in [Ok(Reply::Processes(true)), Err(OpError("cannot list".to_owned())), Ok(Reply::Processes(false))] {
        rig.pass(Duration::from_secs(2));
        let found = asked(&mut rig);
        assert_eq!(found.len(), 1, "{found:?}");
        rig.step(Input::Own(In::Done(found[0].id, outcome)));
    }
    rig.pass(Duration::from_secs(60));
    assert!(asked(&mut rig).is_empty());
}

#[test]
fn a_handler_that_comes_later_sees_it_as_well() {
    let mut rig = with_disk("/usr/bin/container-disk");
    rig.start(Vec::new());
    rig.boot();
    deletes(&mut rig);
    rig.domain(Phase::Ended, Some(EndReason::Killed));
    assert_eq!(rig.phase(), "Succeeded");
    rig.restart(Vec::new());
    rig.pass(Duration::from_secs(1));
    assert_eq!(asked(&mut rig).len(), 1);
}

#[test]
fn nothing_is_asked_before_it_is_known_which_guests_there_are() {
    let mut rig = with_disk("/usr/bin/container-disk");
    deletes(&mut rig);
    rig.step(Input::Start);
    let load = rig.expect(|op| matches!(op, Op::Load));
    rig.pass(Duration::from_secs(5));
    assert!(asked(&mut rig).is_empty(), "its guest may go on");
    rig.step(Input::Own(In::Done(load.id, Ok(Reply::Loaded(Vec::new())))));
    rig.pass(Duration::from_secs(1));
    assert_eq!(asked(&mut rig).len(), 1);
}

#[test]
fn what_is_gone_in_time_or_holds_no_disk_is_not_asked() {
    for (program, goes) in [("/usr/bin/container-disk", true), ("/usr/bin/virt-launcher", false)] {
        let mut rig = with_disk(program);
        rig.start(Vec::new());
        deletes(&mut rig);
        if goes {
            rig.remove(POD);
        }
        rig.pass(Duration::from_secs(5));
        assert!(asked(&mut rig).is_empty(), "{program}");
    }
}

#[test]
fn a_launcher_that_has_ended_leaves_no_disk_behind() {
    let mut rig = with_disk("/usr/bin/container-disk");
    rig.start(Vec::new());
    rig.boot();
    rig.change(POD, |pod| {
        pod["status"]["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 0}});
    });
    rig.pass(Duration::from_secs(1));
    assert_eq!(asked(&mut rig).len(), 1);
    // Of a pod that is over, nothing is left.
    rig.change(POD, |pod| pod["status"]["phase"] = json!("Succeeded"));
    rig.restart(Vec::new());
    rig.pass(Duration::from_secs(60));
    assert!(asked(&mut rig).is_empty());
}
