//! Guests that run under the promise of their node: its Lease, and the terms that it is held in.

use super::*;

/// An instance that runs under the node's Lease, up to its guest's start.
fn bound() -> Rig {
    handed_over(json!({"kubevirt.io/failover": "true"})).0
}

/// The same with what its hand-over told, and whether its handler has claimed a term since.
fn handed_over(annotations: Value) -> (Rig, bool) {
    let mut rig = Rig::with_instance("Scheduled");
    rig.change(VMI, |vmi| vmi["metadata"]["annotations"] = annotations);
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(Domain::waiting("vmi")))));
    let revision = |rig: &Rig| rig.objects[VMI]["metadata"]["resourceVersion"].clone();
    let before = revision(&rig);
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    let has_claimed = revision(&rig) != before;
    assert_eq!(rig.objects[VMI]["metadata"]["annotations"]["kubevirt.io/fencing-token"], "1");
    rig.settle();
    (rig, has_claimed)
}

pub(super) fn runs(rig: &mut Rig) {
    let Op::Save(record) = rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done)) else { panic!("no record") };
    assert!(record.bound && record.started);
    rig.answer(|op| matches!(op, Op::Promise(..)), Ok(Reply::Done));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Sync(_))), Ok(Reply::Done));
    let domain = Domain { phase: Phase::Running, ..Domain::waiting("vmi") };
    rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
}

#[test]
fn a_bound_guest_starts_under_a_promise_and_is_ended_when_it_is_over() {
    let mut rig = bound();
    runs(&mut rig);
    let first = rig.now;
    rig.pass(Duration::from_secs(2));
    let Op::Promise(_, until) = rig.expect(|op| matches!(op, Op::Promise(..))).op else { panic!("no promise") };
    assert!(until > first + Duration::from_secs(8) && until <= rig.now + Duration::from_secs(8));
    rig.cut_off = true;
    rig.pass(Duration::from_secs(6));
    assert!(!rig.ops.iter().any(|out| matches!(out.op, Op::Destroy(_))), "{:?}", rig.ops);
    rig.pass(Duration::from_secs(4));
    rig.ops.retain(|out| !matches!(out.op, Op::Promise(..)));
    rig.settle();
    rig.answer(|op| matches!(op, Op::Destroy(_)), Ok(Reply::Processes(false)));
    assert_eq!(rig.objects[VMI]["status"]["phase"], "Failed");
}

#[test]
fn a_term_that_was_told_with_the_hand_over_is_not_claimed_again() {
    for (told, claims) in [("1", false), ("7", true), ("x", true)] {
        let annotations = json!({"kubevirt.io/failover": "true", "kubevirt.io/fencing-token": told});
        let (mut rig, has_claimed) = handed_over(annotations);
        assert_eq!(has_claimed, claims, "{told}");
        runs(&mut rig);
    }
}

#[test]
fn without_a_promise_nothing_bound_starts() {
    let mut rig = bound();
    rig.cut_off = true;
    // The record is kept while time passes; then the promise is over.
    rig.pass(Duration::from_secs(9));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.pass(Duration::from_secs(30));
    let starts = |out: &Out| matches!(out.op, Op::Call(_, Call::Sync(_)));
    assert!(!rig.ops.iter().any(starts), "{:?}", rig.ops);
}

#[test]
fn a_marked_lease_is_taken_again_when_no_bound_guest_is_left() {
    let mut rig = bound();
    runs(&mut rig);
    rig.cut_off = true;
    rig.revision += 1;
    let revision = rig.revision.to_string();
    if let Some(lease) = &mut rig.lease {
        lease["metadata"]["resourceVersion"] = json!(revision);
        lease["metadata"]["annotations"] = json!({"kubevirt.io/fenced": "then"});
    }
    rig.remove(VMI);
    rig.cut_off = false;
    rig.pass(Duration::from_secs(5));
    let marked = |rig: &Rig| rig.lease.as_ref().is_some_and(|l| l["metadata"]["annotations"].is_object());
    assert!(marked(&rig), "a guest may be left");
    rig.ops.retain(|out| !matches!(out.op, Op::Promise(..)));
    rig.answer(|op| matches!(op, Op::Destroy(_)), Ok(Reply::Processes(true)));
    rig.pass(Duration::from_secs(1));
    assert!(marked(&rig), "a process is left");
    rig.answer(|op| matches!(op, Op::Destroy(_)), Ok(Reply::Processes(false)));
    rig.pass(Duration::from_secs(2));
    assert!(!marked(&rig));
    assert_eq!(rig.lease.as_ref().map(|lease| lease["spec"]["leaseTransitions"].clone()), Some(json!(2)));
}

/// Its monitor may have died after its last word, and before it told QEMU to quit.
#[test]
fn a_bound_guest_that_is_said_to_have_ended_is_waited_for() {
    let mut rig = bound();
    runs(&mut rig);
    rig.domain(Phase::Ended, Some(EndReason::Killed));
    rig.ops.retain(|out| !matches!(out.op, Op::Promise(..)));
    let looks = |op: &Op| matches!(op, Op::LookForProcesses(sought) if sought.pod_uid == "pod" && !sought.ends_disks);
    rig.remove(VMI);
    rig.answer(looks, Ok(Reply::Processes(true)));
    rig.pass(Duration::from_secs(6));
    let promises = rig.ops.iter().filter(|out| matches!(out.op, Op::Promise(..))).count();
    assert!(promises > 0, "it is looked after until it is gone");
    rig.ops.retain(|out| !matches!(out.op, Op::Promise(..)));
    rig.answer(looks, Ok(Reply::Processes(false)));
    rig.expect(|op| matches!(op, Op::Unwatch(_)));
    rig.answer(|op| matches!(op, Op::Drop(uid) if uid == "vmi"), Ok(Reply::Done));
}

/// It was looked what is left of it a moment before the promise was over: what has taken its place elsewhere waits for nobody.
#[test]
fn a_bound_guest_that_is_waited_for_is_ended_when_its_promise_is_over() {
    let mut rig = bound();
    runs(&mut rig);
    rig.pass(Duration::from_secs(2));
    let Op::Promise(_, until) = rig.expect(|op| matches!(op, Op::Promise(..))).op else { panic!("no promise") };
    rig.domain(Phase::Ended, Some(EndReason::Killed));
    rig.remove(VMI);
    rig.cut_off = true;
    let rest = until.since(rig.now) + Duration::from_millis(900);
    rig.pass(rest);
    rig.ops.retain(|out| !matches!(out.op, Op::Promise(..)));
    rig.answer(|op| matches!(op, Op::LookForProcesses(_)), Ok(Reply::Processes(true)));
    rig.pass(Duration::from_millis(1100));
    rig.answer(|op| matches!(op, Op::Destroy(_)), Ok(Reply::Processes(false)));
    rig.expect(|op| matches!(op, Op::Unwatch(_)));
}

/// Its record cannot be read, or the disk has lost it.
#[test]
fn a_bound_guest_without_its_record_is_promised_on() {
    let failover = json!({"kubevirt.io/failover": "true", "kubevirt.io/fencing-token": "1"});
    for (records, annotations, promised) in [
        (vec![Record::unread("vmi")], failover.clone(), true),
        (Vec::new(), failover, true),
        (vec![Record::unread("vmi")], json!({}), false),
        (Vec::new(), json!({}), false),
    ] {
        let what = format!("{records:?} {annotations}");
        let mut rig = Rig::with_instance("Running");
        rig.change(VMI, |vmi| vmi["metadata"]["annotations"] = annotations);
        rig.start(records);
        rig.expect(|op| matches!(op, Op::Watch(_)));
        rig.domain(Phase::Running, None);
        rig.pass(Duration::from_secs(5));
        let is_told = rig.ops.iter().any(|out| matches!(&out.op, Op::Promise(places, _) if *places == [place()]));
        assert_eq!(is_told, promised, "{what}");
    }
}

#[test]
fn a_marked_lease_is_left_while_there_may_be_a_guest_whose_record_cannot_be_read() {
    let mut rig = Rig::new();
    rig.lease = Some(json!({"metadata": {"name": "n1", "resourceVersion": "5",
        "annotations": {"kubevirt.io/fenced": "then"}}, "spec": {"leaseTransitions": 1, "holderIdentity": "n1"}}));
    rig.start(vec![Record::unread("vmi")]);
    let marked = |rig: &Rig| rig.lease.as_ref().is_some_and(|l| l["metadata"]["annotations"].is_object());
    for _ in 0..2 {
        rig.pass(Duration::from_secs(6));
        assert!(marked(&rig), "its guest may run");
        let looks =
            |op: &Op| matches!(op, Op::LookForProcesses(sought) if sought.uid == "vmi" && sought.pod_uid.is_empty());
        rig.answer(looks, Ok(Reply::Processes(true)));
    }
    rig.pass(Duration::from_secs(6));
    rig.answer(|op| matches!(op, Op::LookForProcesses(_)), Ok(Reply::Processes(false)));
    rig.pass(Duration::from_secs(2));
    assert!(!marked(&rig));
    rig.expect(|op| matches!(op, Op::Unwatch(_)));
    rig.answer(|op| matches!(op, Op::Drop(uid) if uid == "vmi"), Ok(Reply::Done));
    rig.expect(|op| matches!(op, Op::Unwatch(_)));
    assert!(rig.idle());
}
