//! What each call changes or refuses.

use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use serde_json::{Value, json};

use super::lifecycle::{Change, plan_restart, plan_start, plan_stop};
use super::node::refusal;

fn vm(strategy: &str, requests: Value) -> VirtualMachine {
    serde_json::from_value(json!({"metadata": {"name": "demo", "uid": "vm"}, "spec": {"runStrategy": strategy},
        "status": {"stateChangeRequests": requests}}))
    .expect("a machine")
}

fn vmi(phase: &str) -> VirtualMachineInstance {
    serde_json::from_value(json!({"metadata": {"name": "demo", "uid": "vmi"}, "status": {"phase": phase}}))
        .expect("an instance")
}

#[test]
fn starting() {
    let check = |strategy: &str, requests: Value, vmi: Option<VirtualMachineInstance>, wanted: Result<Change, &str>| {
        let got = plan_start(&vm(strategy, requests), vmi.as_ref(), false);
        assert_eq!(got, wanted.map_err(str::to_owned), "{strategy}");
    };
    let none = || json!([]);
    let start = || json!({"action": "Start"});
    check("Halted", none(), None, Ok(Change::Strategy("Always")));
    check("Halted", none(), Some(vmi("Running")), Err("VM is already running"));
    check("Manual", none(), None, Ok(Change::Requests(json!([start()]))));
    check("Manual", none(), Some(vmi("Running")), Err("VM is already running"));
    check(
        "Manual",
        none(),
        Some(vmi("Failed")),
        Ok(Change::Requests(json!([{"action": "Stop", "uid": "vmi"}, start()]))),
    );
    check("Manual", json!([start()]), None, Err("unable to complete request: stop/start already underway"));
    check("RerunOnFailure", none(), None, Ok(Change::Requests(json!([start()]))));
    check("Always", none(), None, Err("Always does not support manual start requests"));
    check("Once", none(), None, Err("Once does not support manual start requests"));
    let paused = plan_start(&vm("Manual", none()), None, true);
    assert_eq!(paused, Ok(Change::Requests(json!([{"action": "Start", "data": {"paused": "true"}}]))));
}

#[test]
fn stopping() {
    let check =
        |strategy: &str, vmi: Option<VirtualMachineInstance>, grace: Option<i64>, wanted: Result<Change, &str>| {
            let got = plan_stop(&vm(strategy, json!([])), vmi.as_ref(), grace);
            assert_eq!(got, wanted.map_err(str::to_owned), "{strategy}");
        };
    let stop = || json!({"action": "Stop", "uid": "vmi"});
    check("Always", Some(vmi("Running")), None, Ok(Change::Strategy("Halted")));
    check("RerunOnFailure", None, None, Ok(Change::Strategy("Halted")));
    check("Halted", None, None, Err("VM is not running"));
    check("Manual", None, None, Err("VM is not running"));
    check("Manual", Some(vmi("Succeeded")), None, Err("VM is not running"));
    check("Manual", Some(vmi("Running")), None, Ok(Change::Requests(json!([stop()]))));
    let faster = json!([{"action": "Stop", "uid": "vmi", "data": {"gracePeriod": "0"}}]);
    check("Manual", Some(vmi("Running")), Some(0), Ok(Change::Requests(faster.clone())));
    check("Halted", Some(vmi("Running")), Some(0), Ok(Change::Requests(faster)));
}

#[test]
fn restarting() {
    let check = |strategy: &str, vmi: Option<VirtualMachineInstance>, wanted: Result<Change, &str>| {
        let got = plan_restart(&vm(strategy, json!([])), vmi.as_ref(), None);
        assert_eq!(got, wanted.map_err(str::to_owned), "{strategy}");
    };
    let again = json!([{"action": "Stop", "uid": "vmi"}, {"action": "Start"}]);
    for strategy in ["Always", "Manual", "RerunOnFailure"] {
        check(strategy, Some(vmi("Running")), Ok(Change::Requests(again.clone())));
        check(strategy, None, Err("VM is not running"));
    }
    check("Halted", Some(vmi("Running")), Err("Halted does not support manual restart requests"));
}

#[test]
fn calls_on_guests() {
    let check = |more: Value, phase: &str, sub: &str, wanted: Option<&str>| {
        let mut object = json!({"status": {"phase": phase}});
        object.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        object["status"]["phase"] = json!(phase);
        let vmi: VirtualMachineInstance = serde_json::from_value(object).expect("an instance");
        assert_eq!(refusal(&vmi, sub).map(|(_, why)| why), wanted, "{sub} {phase}");
    };
    let paused = || json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}});
    let bare = || json!({"spec": {"domain": {"devices": {"autoattachSerialConsole": false, "autoattachGraphicsDevice": false}}}});
    check(json!({}), "Running", "console", None);
    check(json!({}), "Scheduled", "console", Some("VMI is not running"));
    check(bare(), "Running", "console", Some("No serial consoles are present."));
    check(bare(), "Running", "vnc", Some("No graphics devices are present."));
    check(json!({}), "Running", "pause", None);
    check(paused(), "Running", "pause", Some("VMI is already paused"));
    check(json!({}), "Running", "unpause", Some("VMI is not paused"));
    check(paused(), "Running", "unpause", None);
    check(json!({}), "Running", "softreboot", None);
}
