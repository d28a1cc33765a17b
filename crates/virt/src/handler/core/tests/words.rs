//! What QEMU says of its machine and of its own end.

use super::*;

/// The kubelet tells that the launcher has ended, and what QEMU said.
fn fails(rig: &mut Rig, said: &str) {
    let state = json!({"terminated": {"exitCode": 1, "message": format!("qemu-system-x86_64: {said}\n")}});
    rig.change(POD, |pod| pod["status"]["containerStatuses"][0]["state"] = state);
    rig.settle();
}

fn says(rig: &mut Rig, domain: Domain) {
    rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(domain))));
    rig.settle();
}

fn running() -> Domain {
    Domain { phase: Phase::Running, accel: Some(Accel::Tcg), ..Domain::waiting("vmi") }
}

#[test]
fn why_qemu_ended_is_told() {
    let gone = "The VirtualMachineInstance crashed: QEMU ended without a shutdown of the guest";
    for (said, wanted) in [(Some("out of memory"), format!("{gone}: out of memory")), (None, gone.to_owned())] {
        let mut rig = Rig::with_instance("Scheduled");
        rig.start(Vec::new());
        rig.boot();
        let mut domain = running();
        domain.observe(Observed::QemuGone);
        says(&mut rig, domain);
        assert_eq!(rig.phase(), "Running", "its pod has yet to tell why");
        match said {
            Some(said) => fails(&mut rig, said),
            None => rig.pass(Duration::from_secs(4)),
        }
        rig.settle();
        assert_eq!(rig.phase(), "Failed", "{said:?}");
        assert!(rig.told.contains(&wanted), "{:?}", rig.told);
    }
}

#[test]
fn why_qemu_did_not_start_is_told() {
    let mut rig = Rig::with_instance("Scheduled");
    rig.start(Vec::new());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.domain(Phase::Waiting, None);
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    rig.answer(|op| matches!(op, Op::Save(_)), Ok(Reply::Done));
    rig.answer(|op| matches!(op, Op::Call(_, Call::Sync(_))), Ok(Reply::Done));
    fails(&mut rig, "unable to find CPU model 'foo'");
    assert_eq!(rig.phase(), "Failed");
    let wanted = "The VirtualMachineInstance crashed: its container ended: unable to find CPU model 'foo'";
    assert!(rig.told.iter().any(|told| told == wanted), "{:?}", rig.told);
}

#[test]
fn the_machine_type_is_told_as_qemu_has_it() {
    for (said, wanted) in [
        (Some("pc-q35-7.2"), "pc-q35-7.2"),
        // A launcher of the version before does not say.
        (None, "q35"),
    ] {
        let mut rig = Rig::with_instance("Scheduled");
        rig.change(VMI, |vmi| vmi["spec"]["domain"]["machine"] = json!({"type": "q35"}));
        rig.start(Vec::new());
        rig.boot();
        says(&mut rig, Domain { machine_type: said.map(str::to_owned), ..running() });
        assert_eq!(rig.objects[VMI]["status"]["machine"]["type"], wanted);
    }
}
