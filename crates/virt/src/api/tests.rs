//! What each call changes or refuses.

use carrack_engine::Time;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use serde_json::{Value, json};

use super::expand::readied;
use super::lifecycle::{Change, Refusal, plan_restart, plan_start, plan_stop};
use super::node::refusal;

fn vm(strategy: &str, requests: Value) -> VirtualMachine {
    carrack_types::json::from_value(
        json!({"metadata": {"name": "demo", "uid": "vm"}, "spec": {"runStrategy": strategy},
        "status": {"stateChangeRequests": requests}}),
    )
    .expect("a machine")
}

fn vmi(phase: &str) -> VirtualMachineInstance {
    carrack_types::json::from_value(json!({"metadata": {"name": "demo", "uid": "vmi"}, "status": {"phase": phase}}))
        .expect("an instance")
}

fn refused<T>(why: &str) -> Result<T, Refusal> {
    Err(Refusal::Conflict(why.to_owned()))
}

#[test]
fn starting() {
    let check =
        |strategy: &str, requests: Value, vmi: Option<VirtualMachineInstance>, wanted: Result<Change, Refusal>| {
            let got = plan_start(&vm(strategy, requests), vmi.as_ref(), false);
            assert_eq!(got, wanted, "{strategy}");
        };
    let none = || json!([]);
    let start = || json!({"action": "Start"});
    let running = || refused("VM is already running");
    check("Halted", none(), None, Ok(Change::Strategy("Always")));
    check("Manual", none(), None, Ok(Change::Requests(json!([start()]))));
    for strategy in ["Halted", "Manual", "RerunOnFailure", "Always", "Once"] {
        check(strategy, none(), Some(vmi("Running")), running());
        check(strategy, none(), Some(vmi("Scheduling")), running());
    }
    // What is not known to be under way holds nobody up, and neither does what is being stopped.
    check("Manual", none(), Some(vmi("Unknown")), Ok(Change::Requests(json!([start()]))));
    check("Halted", none(), Some(vmi("")), Ok(Change::Strategy("Always")));
    let mut going = vmi("Running");
    going.metadata.deletion_timestamp = Some(Time::from_unix_s(1).meta());
    check("Halted", none(), Some(going.clone()), Ok(Change::Strategy("Always")));
    check("Manual", none(), Some(going), running());
    for phase in ["Failed", "Succeeded"] {
        let again = json!([{"action": "Stop", "uid": "vmi"}, start()]);
        check("Manual", none(), Some(vmi(phase)), Ok(Change::Requests(again)));
    }
    check("Manual", json!([start()]), None, Err(Refusal::Underway));
    check("RerunOnFailure", none(), None, Ok(Change::Requests(json!([start()]))));
    let again = json!([{"action": "Stop", "uid": "vmi"}, start()]);
    check("RerunOnFailure", none(), Some(vmi("Succeeded")), Ok(Change::Requests(again)));
    let failed = refused("RerunOnFailure does not support starting VM from failed state");
    check("RerunOnFailure", none(), Some(vmi("Failed")), failed);
    check("Always", none(), None, refused("Always does not support manual start requests"));
    check("Once", none(), None, refused("Once does not support manual start requests"));
    let paused = plan_start(&vm("Manual", none()), None, true);
    assert_eq!(paused, Ok(Change::Requests(json!([{"action": "Start", "data": {"paused": "true"}}]))));
}

#[test]
fn stopping() {
    let check =
        |strategy: &str, vmi: Option<VirtualMachineInstance>, grace: Option<i64>, wanted: Result<Change, Refusal>| {
            let got = plan_stop(&vm(strategy, json!([])), vmi.as_ref(), grace);
            assert_eq!(got, wanted, "{strategy}");
        };
    let stop = || json!({"action": "Stop", "uid": "vmi"});
    check("Always", Some(vmi("Running")), None, Ok(Change::Strategy("Halted")));
    check("Once", Some(vmi("Running")), None, Ok(Change::Strategy("Halted")));
    for strategy in ["Halted", "Manual", "RerunOnFailure"] {
        check(strategy, None, None, refused("VM is not running"));
        check(strategy, Some(vmi("Succeeded")), None, refused("VM is not running"));
    }
    let faster = || json!([{"action": "Stop", "uid": "vmi", "data": {"gracePeriod": "0"}}]);
    for strategy in ["Manual", "RerunOnFailure"] {
        check(strategy, Some(vmi("Running")), None, Ok(Change::Requests(json!([stop()]))));
        check(strategy, Some(vmi("Running")), Some(0), Ok(Change::Requests(faster())));
    }
    let only = || refused("Halted only supports manual stop requests with a shorter graceperiod");
    check("Halted", Some(vmi("Running")), None, only());
    check("Halted", Some(vmi("Running")), Some(0), Ok(Change::Requests(faster())));
    let mut quick = vmi("Running");
    quick.spec.termination_grace_period_seconds = Some(0);
    check("Halted", Some(quick), Some(0), only());
    // A stop takes the place of what was asked for before; one that is asked for already is known as such.
    let restart = json!([stop(), {"action": "Start"}]);
    let instead = plan_stop(&vm("Manual", restart.clone()), Some(&vmi("Running")), None).expect("a change");
    assert_eq!(instead, Change::Requests(json!([stop()])));
    assert!(!instead.is_asked(&vm("Manual", restart)) && instead.is_asked(&vm("Manual", json!([stop()]))));
}

#[test]
fn restarting() {
    let check = |strategy: &str, vmi: Option<VirtualMachineInstance>, wanted: Result<Change, Refusal>| {
        let got = plan_restart(&vm(strategy, json!([])), vmi.as_ref(), None);
        assert_eq!(got, wanted, "{strategy}");
    };
    let again = json!([{"action": "Stop", "uid": "vmi"}, {"action": "Start"}]);
    for strategy in ["Always", "Manual", "RerunOnFailure"] {
        check(strategy, Some(vmi("Running")), Ok(Change::Requests(again.clone())));
        check(strategy, Some(vmi("Succeeded")), Ok(Change::Requests(again.clone())));
        check(strategy, None, refused("VM is not running: Halted"));
    }
    for strategy in ["Halted", "Once"] {
        let why = format!("RunStategy {strategy} does not support manual restart requests");
        check(strategy, Some(vmi("Running")), refused(&why));
    }
    let busy = plan_restart(&vm("Always", json!([{"action": "Start"}])), Some(&vmi("Running")), None);
    assert_eq!(busy, Err(Refusal::Underway));
}

/// Who asks for something is not made to wait for what failed before.
#[test]
fn a_request_forgives_failed_starts() {
    let mut failing = vm("Manual", json!([]));
    let change = plan_start(&failing, None, false).expect("a change");
    assert_eq!(change.patch(&failing).1, json!({"status": {"stateChangeRequests": [{"action": "Start"}]}}));
    failing.status.get_or_insert_default().start_failure = Some(Default::default());
    let patch = json!({"status": {"stateChangeRequests": [{"action": "Start"}], "startFailure": null}});
    assert_eq!(change.patch(&failing), ("status", patch));
}

#[test]
fn machines_to_be_expanded() {
    let check = |metadata: Value, kind: Value, wanted: Result<&str, &str>| {
        let body = json!({"metadata": metadata, "spec": {"instancetype": {"name": "tiny", "kind": kind},
            "template": {"spec": {"domain": {"devices": {}}}}}});
        let got = readied("ns", body.clone());
        let got = got.map(|vm| vm.spec.instancetype.and_then(|matcher| matcher.kind).unwrap_or_default());
        let got = got.map_err(|status| (status.code, status.message));
        assert_eq!(got, wanted.map(str::to_owned).map_err(|why| (400, why.to_owned())), "{body}");
    };
    let (cluster, namespaced) = (Ok("VirtualMachineClusterInstancetype"), Ok("VirtualMachineInstancetype"));
    check(json!({}), Value::Null, cluster);
    check(json!({"namespace": "ns"}), json!("virtualmachineinstancetype"), namespaced);
    check(json!({}), json!("virtualmachineinstancetypes"), namespaced);
    check(json!({"namespace": "other"}), Value::Null, Err("VM namespace must be empty or ns"));
}

#[test]
fn calls_on_guests() {
    let check = |more: Value, phase: &str, sub: &str, wanted: Option<(u16, &str)>| {
        let mut object = json!({"status": {"phase": phase}});
        object.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        object["status"]["phase"] = json!(phase);
        let vmi: VirtualMachineInstance = carrack_types::json::from_value(object).expect("an instance");
        let got = refusal(&vmi, sub);
        assert_eq!(got.as_ref().map(|(code, why)| (*code, why.as_ref())), wanted, "{sub} {phase}");
    };
    let none = || json!({});
    let paused = || json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}});
    let bare = || json!({"spec": {"domain": {"devices": {"autoattachSerialConsole": false, "autoattachGraphicsDevice": false}}}});
    check(none(), "Running", "console", None);
    for sub in ["console", "vnc", "vnc/screenshot"] {
        check(none(), "Scheduled", sub, Some((400, "VMI is not running")));
    }
    check(none(), "Failed", "console", Some((409, "VMI is in failed status")));
    check(none(), "Failed", "vnc", Some((400, "VMI is not running")));
    check(bare(), "Running", "console", Some((400, "No serial consoles are present.")));
    check(bare(), "Running", "vnc", Some((400, "No graphics devices are present.")));
    check(none(), "Running", "portforward", None);
    check(paused(), "Running", "portforward", Some((409, "VMI is paused")));
    check(none(), "Scheduling", "portforward", Some((400, "no network interfaces are present")));
    check(none(), "Running", "pause", None);
    check(paused(), "Running", "pause", Some((409, "VMI is already paused")));
    check(none(), "Scheduled", "pause", Some((409, "VM is not running")));
    let probed = json!({"spec": {"domain": {"devices": {}}, "livenessProbe": {"guestAgentPing": {}}}});
    let why = "Pausing VMIs with LivenessProbe is currently not supported";
    check(probed, "Running", "pause", Some((403, why)));
    check(none(), "Running", "unpause", Some((409, "VMI is not paused")));
    check(none(), "Scheduled", "unpause", Some((409, "VMI is not running")));
    check(paused(), "Running", "unpause", None);
    check(none(), "Running", "softreboot", None);
    check(none(), "Scheduled", "softreboot", Some((409, "VM is not running")));
    check(none(), "Running", "reset", None);
    let why = "Unable to connect to VirtualMachineInstance because phase is Pending instead of Running or Scheduled";
    check(none(), "Pending", "reset", Some((400, why)));
    let agentless = Some((409, "VMI does not have guest agent connected"));
    check(none(), "Running", "guestosinfo", agentless);
    check(none(), "Running", "freeze", agentless);
}
