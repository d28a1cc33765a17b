//! The handler of a machine with a watchdog.

use super::bound::runs;
use super::*;
use crate::fence::{GUEST_RUNS, RESET_AFTER};
use crate::handler::effects::{Armed, WatchdogCall};

fn opens(op: &Op) -> bool {
    matches!(op, Op::Watchdog(WatchdogCall::Open { .. }))
}

fn armed() -> Outcome {
    Ok(Reply::Armed(Armed { identity: "dog".to_owned(), timeout_s: 8, stays: false }))
}

/// A guest that is to run under the Lease, and waits for the watchdog.
fn waiting() -> Rig {
    let mut rig = Rig::with_instance("Scheduled");
    rig.core = Handler::new("n1", &Rng::new(1)).taking_over_watchdog(None);
    rig.change(VMI, |vmi| vmi["metadata"]["annotations"] = json!({"kubevirt.io/failover": "true"}));
    rig.start(Vec::new());
    // It is tried once, and nobody needs it yet.
    rig.answer(opens, armed());
    rig.expect(|op| matches!(op, Op::Watch(_)));
    rig.answer(|op| matches!(op, Op::Watchdog(WatchdogCall::Close)), Ok(Reply::Done));
    rig.step(Input::Own(In::Domain("vmi".to_owned(), Box::new(Domain::waiting("vmi")))));
    rig.answer(|op| matches!(op, Op::Prepare(_)), Ok(Reply::Prepared(Box::default())));
    assert_eq!(token(&rig), Value::Null);
    rig
}

fn token(rig: &Rig) -> Value {
    rig.objects[VMI]["metadata"]["annotations"]["kubevirt.io/fencing-token"].clone()
}

#[test]
fn a_bound_guest_waits_for_the_watchdog_which_bites_when_its_end_cannot_be_proved() {
    let mut rig = waiting();
    rig.answer(opens, armed());
    assert_eq!(token(&rig), "1");
    rig.settle();
    runs(&mut rig);
    assert_eq!(
        rig.objects[NODE]["metadata"]["annotations"]["kubevirt.io/watchdog"],
        "ready: dog resets the machine after 8 s"
    );
    rig.settle();
    let (began, mut pets) = (rig.now, Vec::new());
    rig.cut_off = true;
    let mut destroy = None;
    for _ in 0..300 {
        rig.pass(Duration::from_millis(100));
        for out in std::mem::take(&mut rig.ops) {
            match out.op {
                Op::Watchdog(WatchdogCall::Pet { .. }) => {
                    pets.push(rig.now);
                    rig.step(Input::Own(In::Done(out.id, Ok(Reply::Done))));
                }
                // Nobody answers: whether the guest ends is not known.
                Op::Destroy(_) => destroy = Some(out.id),
                _ => {}
            }
        }
    }
    let bites = *pets.last().expect("it was petted") + GUEST_RUNS;
    assert!(bites <= began + GUEST_RUNS + RESET_AFTER, "{} ms too late", bites.since(began).as_millis());
    // Where the guest's end is a fact, nobody needs it any more.
    let done = Ok(Reply::Processes(false));
    rig.step(Input::Own(In::Done(destroy.expect("its end was tried"), done)));
    rig.expect(|op| matches!(op, Op::Watchdog(WatchdogCall::Close)));
}

#[test]
fn a_machine_without_one_says_so_and_runs_its_guests() {
    let mut rig = waiting();
    rig.answer(opens, Err(OpError("there is none".to_owned())));
    assert_eq!(token(&rig), "1");
    rig.settle();
    runs(&mut rig);
    assert_eq!(rig.objects[NODE]["metadata"]["annotations"]["kubevirt.io/watchdog"], "failed: there is none");
}
