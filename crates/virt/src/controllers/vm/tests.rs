//! What the VM controller plans, table by table.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Refusal, StatusError, Time, Write};
use carrack_types::kubevirt::instancetype::{
    VirtualMachineClusterInstancetype, VirtualMachineClusterPreference, VirtualMachineInstancetype,
    VirtualMachinePreference,
};
use carrack_types::kubevirt::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::VmController;

mod data_volumes;
mod sizes;

const NOW: Time = Time::from_unix_s(1_000_000);

fn vm(spec: Value, status: Value) -> VirtualMachine {
    let mut spec = spec;
    spec["template"] = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"domain": {"devices": {
        "interfaces": [{"name": "default", "masquerade": {}}]}, "resources": {"requests": {"memory": "64Mi"}}}}});
    serde_json::from_value(json!({
        "metadata": {"name": "demo", "namespace": "ns", "uid": "vm-uid", "resourceVersion": "7", "generation": 3,
            "finalizers": ["kubevirt.io/virtualMachineControllerFinalize"]},
        "spec": spec, "status": status,
    }))
    .expect("a virtual machine")
}

fn vmi(phase: &str, more: Value) -> VirtualMachineInstance {
    let mut object = json!({
        "metadata": {"name": "demo", "namespace": "ns", "uid": "vmi-uid", "resourceVersion": "9",
            "ownerReferences": [{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo",
                "uid": "vm-uid", "controller": true}]},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase},
    });
    merge(&mut object, more);
    serde_json::from_value(object).expect("an instance")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

fn caches(vm: VirtualMachine, vmi: Option<VirtualMachineInstance>) -> Caches {
    Caches::new()
        .with([vm])
        .with(vmi)
        .with::<ControllerRevision>([])
        .with::<VirtualMachineInstancetype>([])
        .with::<VirtualMachineClusterInstancetype>([])
        .with::<VirtualMachinePreference>([])
        .with::<VirtualMachineClusterPreference>([])
        .with::<PersistentVolumeClaim>([])
        .with::<KubeVirt>([])
}

fn plan(vm: VirtualMachine, vmi: Option<VirtualMachineInstance>) -> Plan {
    let caches = caches(vm, vmi);
    VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW)
}

/// The writes in short: what is done to which resource, and to which part of it.
fn acts(plan: &Plan) -> Vec<String> {
    plan.writes
        .iter()
        .map(|write| match write {
            Write::Create { resource, .. } => format!("create {}", resource.plural),
            Write::Update { resource, sub, .. } => format!("update {}/{sub}", resource.plural),
            Write::Patch { resource, sub, .. } => format!("patch {}/{sub}", resource.plural),
            Write::Delete { resource, .. } => format!("delete {}", resource.plural),
            other => format!("{other:?}"),
        })
        .collect()
}

fn status_of(plan: &Plan) -> Value {
    plan.writes
        .iter()
        .find_map(|write| match write {
            Write::Patch { sub: "status", patch, .. } => Some(patch["status"].clone()),
            _ => None,
        })
        .unwrap_or_default()
}

const START: [&str; 2] = ["patch virtualmachines/status", "create virtualmachineinstances"];
const STOP: [&str; 2] = ["patch virtualmachines/status", "delete virtualmachineinstances"];
const STATUS: [&str; 1] = ["patch virtualmachines/status"];

#[test]
fn run_strategies() {
    let check = |name: &str, spec: Value, status: Value, vmi: Option<VirtualMachineInstance>, wanted: &[&str]| {
        assert_eq!(acts(&plan(vm(spec, status), vmi)), wanted, "{name}");
    };
    let strategy = |name: &str| json!({"runStrategy": name});
    let asked = json!({"stateChangeRequests": [{"action": "Start"}]});
    let stop = json!({"stateChangeRequests": [{"action": "Stop", "uid": "vmi-uid"}]});
    let restart = json!({"stateChangeRequests": [{"action": "Stop", "uid": "vmi-uid"}, {"action": "Start"}]});
    let none = json!({});
    check("always starts", strategy("Always"), none.clone(), None, &START);
    check("running: true is always", json!({"running": true}), none.clone(), None, &START);
    check("always leaves a running one", strategy("Always"), none.clone(), Some(vmi("Running", json!({}))), &STATUS);
    check("always replaces a failed one", strategy("Always"), none.clone(), Some(vmi("Failed", json!({}))), &STOP);
    check("always replaces a finished one", strategy("Always"), none.clone(), Some(vmi("Succeeded", json!({}))), &STOP);
    check("always restarts", strategy("Always"), restart.clone(), Some(vmi("Running", json!({}))), &STOP);
    check("halted stays down", strategy("Halted"), none.clone(), None, &STATUS);
    // What is left of a restart is from before somebody halted it; the failure of a guest asks for a start, too.
    let halted_since = |requests: &Value, strategy: &str| {
        let mut status = requests.clone();
        status["runStrategy"] = json!(strategy);
        status
    };
    check("a restart ends when it is halted", strategy("Halted"), halted_since(&restart, "Always"), None, &STATUS);
    check("so does one before its start was told", strategy("Halted"), restart.clone(), None, &STATUS);
    check("and one before its next start was", strategy("Halted"), halted_since(&restart, "Halted"), None, &STATUS);
    check("so does a rerun", strategy("Halted"), halted_since(&asked, "RerunOnFailure"), None, &STATUS);
    let switched = ["patch virtualmachines/status", "patch virtualmachines/"];
    check("halted starts when asked", strategy("Halted"), halted_since(&asked, "Halted"), None, &switched);
    check("nothing said is halted", none.clone(), none.clone(), None, &STATUS);
    check("halted stops", strategy("Halted"), none.clone(), Some(vmi("Running", json!({}))), &STOP);
    check("manual waits", strategy("Manual"), none.clone(), None, &STATUS);
    check("manual starts when asked", strategy("Manual"), asked.clone(), None, &START);
    check("manual leaves a finished one", strategy("Manual"), none.clone(), Some(vmi("Succeeded", json!({}))), &STATUS);
    check(
        "manual clears a finished one to start",
        strategy("Manual"),
        asked.clone(),
        Some(vmi("Failed", json!({}))),
        &STOP,
    );
    check("manual stops when asked", strategy("Manual"), stop.clone(), Some(vmi("Running", json!({}))), &STOP);
    check("rerun starts at first", strategy("RerunOnFailure"), none.clone(), None, &START);
    let reran = json!({"runStrategy": "RerunOnFailure"});
    check("rerun stays down after a shutdown", strategy("RerunOnFailure"), reran.clone(), None, &STATUS);
    check(
        "rerun replaces a failed one",
        strategy("RerunOnFailure"),
        reran.clone(),
        Some(vmi("Failed", json!({}))),
        &STOP,
    );
    let over = vmi("Succeeded", json!({}));
    check("rerun clears a finished one up", strategy("RerunOnFailure"), reran.clone(), Some(over), &STOP);
    let stopped =
        json!({"runStrategy": "RerunOnFailure", "stateChangeRequests": [{"action": "Stop", "uid": "vmi-uid"}]});
    check(
        "rerun stops when asked",
        strategy("RerunOnFailure"),
        stopped.clone(),
        Some(vmi("Running", json!({}))),
        &STOP,
    );
    check("rerun stays down once stopped", strategy("RerunOnFailure"), stopped, None, &STATUS);
    check("once starts", strategy("Once"), none.clone(), None, &START);
    check("once does not start again", strategy("Once"), json!({"runStrategy": "Once"}), None, &STATUS);
    let going = vmi("Running", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    check("one that is going is not deleted twice", strategy("Halted"), none.clone(), Some(going), &STATUS);
    let copied = json!({"runStrategy": "Once", "snapshotInProgress": "s"});
    check("what is over makes room", strategy("Manual"), copied.clone(), Some(vmi("Succeeded", json!({}))), &STOP);
    check("also where it ran once", strategy("Once"), copied.clone(), Some(vmi("Failed", json!({}))), &STOP);
    check("a snapshot ends nothing", strategy("Manual"), copied, Some(vmi("Running", json!({}))), &STATUS);
    let other = json!({"stateChangeRequests": [{"action": "Stop", "uid": "an-older-one"}]});
    check("a stop is for one instance only", strategy("Always"), other, Some(vmi("Running", json!({}))), &STATUS);
    let stranger = vmi("Running", json!({"metadata": {"ownerReferences": [owner("another-uid", true)]}}));
    check("a stranger's instance is left alone", strategy("Always"), none, Some(stranger), &STATUS);
}

fn owner(uid: &str, controls: bool) -> Value {
    json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "demo", "uid": uid,
        "controller": controls})
}

/// An instance that belongs to nobody becomes the machine's; the machine is there, and what else owns the instance stays.
#[test]
fn an_instance_that_nobody_owns_is_taken_over() {
    let orphan = |more: Value| {
        let mut object = json!(vmi("Running", json!({"metadata": {"ownerReferences": [owner("group-uid", false)]}})));
        merge(&mut object, more);
        Some(serde_json::from_value(object).expect("an instance"))
    };
    for strategy in ["Always", "Halted", "Manual"] {
        let machine = vm(json!({"runStrategy": strategy}), json!({}));
        let taken = plan(machine, orphan(json!({})));
        let [Write::Confirm { .. }, Write::Patch { resource, patch, sub: "", .. }] = &taken.writes[..] else {
            panic!("{strategy}: {taken:?}")
        };
        assert_eq!(resource.plural, "virtualmachineinstances");
        let owners = &patch["metadata"]["ownerReferences"];
        assert_eq!((&owners[0]["uid"], &owners[1]["uid"]), (&json!("group-uid"), &json!("vm-uid")));
        assert_eq!(owners[1]["controller"], true);
        assert_eq!(patch["metadata"]["resourceVersion"], "9");
        assert!(taken.premises.iter().any(|(at, machine)| *at == 1 && machine.uid.as_deref() == Some("vm-uid")));
    }
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let always = || vm(json!({"runStrategy": "Always"}), json!({}));
    assert_eq!(acts(&plan(always(), orphan(going))), STATUS, "one that goes makes room first");
    let mut leaving = always();
    leaving.metadata.deletion_timestamp = Some(NOW.meta());
    let left = acts(&plan(leaving, orphan(json!({}))));
    assert_eq!(left, ["patch virtualmachines/"], "it loses its finalizer, and no more");
    // What another machine's instance was started from is that one's to keep, also where that one was of the same generation.
    let mut before = json!(always().spec);
    before["template"]["spec"]["hostname"] = json!("other");
    let own_generation = always().metadata.generation.unwrap_or(0);
    for generation in [2, own_generation] {
        let of = generation.to_string();
        let annotations = json!({"kubevirt.io/started-from": before.to_string(), "kubevirt.io/vm-generation": of});
        let told = json!({"metadata": {"annotations": annotations},
            "status": {"virtualMachineRevisionName": format!("revision-start-vm-former-uid-{of}")}});
        let own = plan(always(), Some(vmi("Running", told)));
        assert_eq!(acts(&own), STATUS);
        let conditions = status_of(&own)["conditions"].clone();
        let asks = |all: &Vec<Value>| all.iter().any(|c| c["type"] == "RestartRequired");
        assert!(conditions.as_array().is_some_and(asks), "{generation}");
    }
}

#[test]
fn grace_of_a_stop_request_reaches_the_instance_first() {
    let acts_of = |strategy: &str, is_leaving: bool, seconds: &str, instance: Value| {
        let stop = json!({"action": "Stop", "uid": "vmi-uid", "data": {"gracePeriod": seconds}});
        let mut machine = vm(json!({"runStrategy": strategy}), json!({"stateChangeRequests": [stop]}));
        machine.metadata.deletion_timestamp = is_leaving.then(|| NOW.meta());
        acts(&plan(machine, Some(vmi("Running", instance))))
    };
    let all = ["patch virtualmachines/status", "patch virtualmachineinstances/", "delete virtualmachineinstances"];
    assert_eq!(acts_of("Manual", false, "0", json!({})), all);
    // A guest that goes, and does not heed its power button, is made to go faster, and never slower.
    for (strategy, is_leaving) in [("Halted", false), ("Manual", false), ("Manual", true), ("Always", true)] {
        for (seconds, has_s, wanted) in [
            ("0", json!(600), &all[..2]),
            ("0", Value::Null, &all[..2]),
            ("0", json!(0), &all[..1]),
            ("60", json!(20), &all[..1]),
            ("60", Value::Null, &all[..1]),
        ] {
            let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"terminationGracePeriodSeconds": has_s}});
            assert_eq!(acts_of(strategy, is_leaving, seconds, going.clone()), wanted, "{strategy} {seconds} {going}");
        }
    }
}

/// Who halts a machine takes back a restart that is under way: it does not come again, now or when it has another strategy.
#[test]
fn a_halt_takes_back_what_was_asked_for_before() {
    let left = |instance: Option<VirtualMachineInstance>| {
        let restart = json!([{"action": "Stop", "uid": "vmi-uid"}, {"action": "Start"}]);
        let status = json!({"runStrategy": "Always", "stateChangeRequests": restart});
        let told = status_of(&plan(vm(json!({"runStrategy": "Halted"}), status), instance));
        let requests = told.as_object().and_then(|status| status.get("stateChangeRequests")).cloned();
        let actions = |all: Value| -> Vec<Value> {
            all.as_array().into_iter().flatten().map(|request| request["action"].clone()).collect()
        };
        requests.map(actions)
    };
    assert_eq!(left(Some(vmi("Running", json!({})))), Some(vec![json!("Stop")]));
    assert_eq!(left(None), Some(Vec::new()));
}

#[test]
fn printable_status() {
    let check = |vm: VirtualMachine, vmi: Option<VirtualMachineInstance>, wanted: &str| {
        assert_eq!(status_of(&plan(vm, vmi))["printableStatus"], wanted);
    };
    let always = || vm(json!({"runStrategy": "Always"}), json!({}));
    let halted = || vm(json!({"runStrategy": "Halted"}), json!({}));
    let condition = |kind: &str, status: &str, reason: &str| json!({"status": {"conditions": [{"type": kind, "status": status, "reason": reason}]}});
    check(halted(), None, "Stopped");
    check(always(), None, "Starting");
    check(always(), Some(vmi("Scheduling", json!({}))), "Starting");
    check(always(), Some(vmi("Running", json!({}))), "Running");
    check(halted(), Some(vmi("Running", json!({}))), "Stopping");
    check(always(), Some(vmi("Running", condition("Paused", "True", "PausedByUser"))), "Paused");
    for reason in ["ErrImagePull", "ErrImageNeverPull", "InvalidImageName"] {
        check(always(), Some(vmi("Scheduling", condition("Synchronized", "False", reason))), "ErrImagePull");
    }
    check(
        always(),
        Some(vmi("Scheduling", condition("Synchronized", "False", "ImagePullBackOff"))),
        "ImagePullBackOff",
    );
    check(always(), Some(vmi("Pending", condition("Synchronized", "False", "FailedPvcNotFound"))), "ErrorPvcNotFound");
    check(always(), Some(vmi("Scheduling", condition("PodScheduled", "False", "Unschedulable"))), "ErrorUnschedulable");
    check(always(), Some(vmi("Unknown", json!({}))), "Unknown");
    check(always(), Some(vmi("Failed", json!({}))), "CrashLoopBackOff");
    let once = vm(json!({"runStrategy": "Once"}), json!({"runStrategy": "Once"}));
    check(once, Some(vmi("Failed", json!({}))), "CrashLoopBackOff");
    // One that has shut down stays so with this strategy, whether or not it was seen to run; one that failed is tried again.
    let rerun = |more: Value| {
        let mut status = json!({"runStrategy": "RerunOnFailure",
            "startFailure": {"consecutiveFailCount": 1, "lastFailedVMIUID": "vmi-uid"}});
        for (field, value) in more.as_object().expect("an object") {
            status[field] = value.clone();
        }
        vm(json!({"runStrategy": "RerunOnFailure"}), status)
    };
    check(rerun(json!({})), None, "Stopped");
    check(rerun(json!({"stateChangeRequests": [{"action": "Start"}]})), None, "CrashLoopBackOff");
    // Who starts a machine by hand decides when it is tried again.
    check(vm(json!({"runStrategy": "Manual"}), json!({})), Some(vmi("Succeeded", json!({}))), "Stopped");
    let ran = json!({"status": {"phaseTransitionTimestamps": [{"phase": "Running"}]}});
    check(vm(json!({"runStrategy": "Manual"}), json!({})), Some(vmi("Succeeded", ran)), "Stopped");
}

/// A restore holds up what a strategy asks for, and does not carry it out: a machine that got its strategy just before starts after it.
#[test]
fn a_strategy_that_a_restore_holds_up_is_not_acted_on() {
    for strategy in ["RerunOnFailure", "Once", "Always"] {
        let held = json!({"runStrategy": "Halted", "restoreInProgress": "r"});
        let told = plan(vm(json!({"runStrategy": strategy}), held), None);
        assert_eq!(acts(&told), STATUS, "{strategy}");
        assert!(status_of(&told).get("runStrategy").is_none(), "{strategy}: {told:?}");
        let free = plan(vm(json!({"runStrategy": strategy}), json!({"runStrategy": "Halted"})), None);
        assert_eq!(acts(&free), START, "{strategy}");
    }
}

/// A guest that was asked to stop is not started again, however it ended; one that failed by itself is.
#[test]
fn only_what_failed_by_itself_is_run_again() {
    let requests = |vmi: VirtualMachineInstance| {
        let stop = json!([{"action": "Stop", "uid": "vmi-uid"}]);
        let machine = vm(json!({"runStrategy": "RerunOnFailure"}), json!({"stateChangeRequests": stop}));
        let status = status_of(&plan(machine, Some(vmi)));
        status["stateChangeRequests"].as_array().map_or(1, Vec::len)
    };
    assert_eq!(requests(vmi("Failed", json!({}))), 2);
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(requests(vmi("Failed", going)), 1);
}

/// What the server says of an instance that it refuses is told, and stands until there is one.
#[test]
fn refusals_are_told() {
    let refuse = |status: Value, vmi: Option<VirtualMachineInstance>, write: &Write| {
        let caches = caches(vm(json!({"runStrategy": "Always"}), status), vmi);
        let error: StatusError =
            serde_json::from_value(json!({"code": 403, "message": "exceeded quota"})).expect("a status");
        let refusal = Refusal { write, error: &error };
        VmController::default().refused(&Key::new("ns", "demo"), &caches.view(), &refusal, NOW)
    };
    let write = |plan: &Plan, what: &str| {
        let is_it = |write: &&Write| format!("{write:?}").starts_with(what);
        plan.writes.iter().find(is_it).cloned().expect("a write")
    };
    let create = write(&plan(vm(json!({"runStrategy": "Always"}), json!({})), None), "Create");
    let told = refuse(json!({}), None, &create);
    assert_eq!(told.events[0].message, "Error creating virtual machine instance: exceeded quota");
    let failure = status_of(&told)["conditions"][0].clone();
    assert_eq!((&failure["type"], &failure["reason"]), (&json!("Failure"), &json!("FailedCreate")));
    assert_eq!(failure["message"], "Failure while starting VMI: exceeded quota");
    // Said once; and kept while it is tried again, until there is an instance.
    let failed = || json!({"conditions": [failure.clone()]});
    assert!(refuse(failed(), None, &create).writes.is_empty());
    let conditions = |plan: &Plan| -> Option<Vec<Value>> {
        let of_type = |condition: &Value| condition["type"].clone();
        Some(status_of(plan)["conditions"].as_array()?.iter().map(of_type).collect())
    };
    let has_failed = |vm: VirtualMachine, vmi: Option<VirtualMachineInstance>| {
        conditions(&plan(vm, vmi)).is_some_and(|all| all.contains(&json!("Failure")))
    };
    let always = |status: Value| vm(json!({"runStrategy": "Always"}), status);
    assert!(has_failed(always(failed()), None));
    assert!(!has_failed(always(failed()), Some(vmi("Pending", json!({})))));
    assert!(!has_failed(vm(json!({"runStrategy": "Halted"}), failed()), None));
    let delete = write(&plan(always(json!({})), Some(vmi("Failed", json!({})))), "Delete");
    let told = refuse(json!({}), Some(vmi("Failed", json!({}))), &delete);
    assert_eq!(told.events[0].message, "Error deleting virtual machine instance demo: exceeded quota");
    assert_eq!(status_of(&told)["conditions"][0]["reason"], "FailedDelete");
}

/// Where an instance is to run is handed on to it as it runs; what else changes asks for a restart.
#[test]
fn what_can_change_as_it_runs() {
    let machine = || vm(json!({"runStrategy": "Always"}), json!({}));
    let settings = |strategy: &str| -> KubeVirt {
        carrack_types::json::from_value(json!({"metadata": {"name": "kubevirt", "namespace": "kubevirt"},
            "spec": {"configuration": {"vmRolloutStrategy": strategy}}}))
        .expect("settings")
    };
    let changed = |change: Value, strategy: Option<&str>| {
        let annotations =
            json!({"kubevirt.io/started-from": json!(machine().spec).to_string(), "kubevirt.io/vm-generation": "2"});
        let running = vmi(
            "Running",
            json!({"metadata": {"annotations": annotations},
            "spec": {"nodeSelector": {"old": "label"}}}),
        );
        let mut now = json!(machine());
        merge(&mut now["spec"]["template"]["spec"], change);
        let now: VirtualMachine = carrack_types::json::from_value(now).expect("a machine");
        let caches = caches(now, Some(running)).with(strategy.map(settings));
        let plan = VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW);
        let patch = plan.writes.iter().find_map(|write| match write {
            Write::Patch { resource, patch, sub: "", .. } if resource.plural == "virtualmachineinstances" => {
                Some(patch["spec"].clone())
            }
            _ => None,
        });
        let status = status_of(&plan);
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let restart = conditions.into_iter().find(|condition| condition["type"] == "RestartRequired");
        (patch, restart.map(|condition| condition.get("reason").is_none()), status["observedGeneration"].clone())
    };
    let to = || json!({"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "k", "operator": "Exists"}]});
    let handed_on =
        json!({"nodeSelector": {"disk": "fast", "old": null}, "tolerations": [{"key": "k", "operator": "Exists"}]});
    for strategy in [None, Some("LiveUpdate")] {
        assert_eq!(changed(to(), strategy), (Some(handed_on.clone()), None, json!(2)), "{strategy:?}");
    }
    assert_eq!(changed(to(), Some("Stage")), (None, Some(true), json!(2)));
    let mut more = to();
    more["hostname"] = json!("other");
    assert_eq!(changed(more, None), (None, Some(true), json!(2)), "all waits for the restart then");
    assert_eq!(changed(json!({}), None), (None, None, json!(3)), "the template is as it was");
    // Labels of instances to come ask for no restart, and the one that runs was started without them.
    let from = json!({"kubevirt.io/started-from": json!(machine().spec).to_string(), "kubevirt.io/vm-generation": "2"});
    let running = || Some(vmi("Running", json!({"metadata": {"annotations": from.clone()}})));
    let mut labelled = machine();
    let metadata = labelled.spec.template.as_mut().expect("a template").metadata.get_or_insert_default();
    metadata.labels.get_or_insert_default().insert("testkey".to_owned(), "testvalue".to_owned());
    let status = status_of(&plan(labelled, running()));
    assert_eq!(status["observedGeneration"], 2);
    assert!(!status["conditions"].to_string().contains("RestartRequired"), "{status}");
}

#[test]
fn readiness_is_the_instances() {
    let ready = |vmi: Option<VirtualMachineInstance>| {
        let status = status_of(&plan(vm(json!({"runStrategy": "Halted"}), json!({})), vmi));
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == "Ready").map(|ready| ready["reason"].clone())
    };
    assert_eq!(ready(None), Some(json!("VMINotExists")));
    assert_eq!(ready(Some(vmi("Pending", json!({})))), Some(json!("VMIConditionMissing")));
    let unready =
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "GuestNotRunning"}]}});
    assert_eq!(ready(Some(vmi("Pending", unready))), Some(json!("GuestNotRunning")));
}

#[test]
fn failed_starts_wait_longer_each_time() {
    let failing = vm(
        json!({"runStrategy": "Always"}),
        json!({"startFailure": {"consecutiveFailCount": 1, "lastFailedVMIUID": "old"}}),
    );
    let status = status_of(&plan(failing, Some(vmi("Failed", json!({})))));
    assert_eq!(status["startFailure"]["consecutiveFailCount"], 2);
    assert_eq!(status["startFailure"]["lastFailedVMIUID"], "vmi-uid");
    let at: String = status["startFailure"]["retryAfterTimestamp"].as_str().expect("a time").to_owned();
    let wait = Time::parse(&at).expect("a time").since(NOW);
    assert!((40..=60).contains(&wait.as_secs()), "{wait:?}");

    let waiting = json!({"startFailure": {"consecutiveFailCount": 2, "lastFailedVMIUID": "vmi-uid",
        "retryAfterTimestamp": (NOW + std::time::Duration::from_secs(33)).rfc3339()}});
    let held = plan(vm(json!({"runStrategy": "Always"}), waiting.clone()), None);
    assert_eq!(acts(&held), STATUS);
    assert_eq!(held.requeue_after, Some(std::time::Duration::from_secs(33)));
    assert_eq!(status_of(&held)["printableStatus"], "CrashLoopBackOff");

    // A run forgives all failures before it.
    let ran = status_of(&plan(vm(json!({"runStrategy": "Always"}), waiting), Some(vmi("Running", json!({})))));
    assert_eq!(ran["startFailure"], Value::Null);
    assert!(ran.get("startFailure").is_some());
}

#[test]
fn the_instance_carries_the_machines_identity() {
    let plan = plan(vm(json!({"runStrategy": "Always"}), json!({})), None);
    let created = |plural: &str| {
        plan.writes
            .iter()
            .find_map(|write| match write {
                Write::Create { resource, object } if resource.plural == plural => Some(object.clone()),
                _ => None,
            })
            .expect("created")
    };
    let instance = created("virtualmachineinstances");
    assert_eq!(instance["metadata"]["name"], "demo");
    assert_eq!(instance["metadata"]["labels"]["app"], "x");
    assert_eq!(instance["metadata"]["annotations"]["kubevirt.io/vm-generation"], "3");
    assert_eq!(instance["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
    assert_eq!(instance["spec"]["domain"]["firmware"]["uuid"], "vm-uid");
    assert!(
        instance["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"]
            .as_str()
            .is_some_and(|m| m.starts_with("02:"))
    );
    assert_eq!(instance["status"]["virtualMachineRevisionName"], "revision-start-vm-vm-uid-3");
    let from = instance["metadata"]["annotations"]["kubevirt.io/started-from"].as_str().expect("what it is made from");
    let from: Value = serde_json::from_str(from).expect("a spec");
    assert_eq!(from["runStrategy"], "Always");
    assert_eq!(acts(&plan).iter().filter(|act| act.contains("controllerrevisions")).count(), 0, "the instance says it");
    // What is empty is not given.
    let mut blank = vm(json!({"runStrategy": "Always"}), json!({}));
    let template = &mut blank.spec.template.as_mut().expect("a template").spec;
    template.domain.firmware.get_or_insert_default().uuid = Some(String::new());
    template.domain.devices.interfaces[0].mac_address = Some(String::new());
    super::identify(template, "vm-uid");
    assert_eq!(template.domain.firmware.as_ref().and_then(|firmware| firmware.uuid.as_deref()), Some("vm-uid"));
    let mac = template.domain.devices.interfaces[0].mac_address.as_deref();
    assert!(mac.is_some_and(|mac| mac.starts_with("02:")), "{mac:?}");
}

#[test]
fn a_template_says_nothing_in_the_components_name() {
    let mut machine = vm(json!({"runStrategy": "Always"}), json!({}));
    let template = machine.spec.template.as_mut().expect("a template").metadata.get_or_insert_default();
    let annotations = template.annotations.get_or_insert_default();
    annotations.insert("kubevirt.io/failover".to_owned(), "true".to_owned());
    annotations.insert("example.com/note".to_owned(), "mine".to_owned());
    template.labels.get_or_insert_default().insert("kubevirt.io/nodeName".to_owned(), "n1".to_owned());
    let made = created(&plan(machine, None));
    let [labels, annotations] = ["labels", "annotations"].map(|field| &made["metadata"][field]);
    assert_eq!((&annotations["example.com/note"], &labels["app"]), (&json!("mine"), &json!("x")));
    assert!(
        annotations.get("kubevirt.io/failover").is_none() && labels.get("kubevirt.io/nodeName").is_none(),
        "{made}"
    );
}

#[test]
fn a_pointing_device_that_is_attached_by_itself_can_be_seen() {
    let check = |devices: Value, wanted: Value| {
        let mut machine = json!(vm(json!({"runStrategy": "Always"}), json!({})));
        merge(&mut machine["spec"]["template"]["spec"]["domain"]["devices"], devices.clone());
        let instance = created(&plan(serde_json::from_value(machine).expect("a machine"), None));
        assert_eq!(instance["spec"]["domain"]["devices"]["inputs"], wanted, "{devices}");
    };
    let tablet = json!([{"name": "default-0", "type": "tablet", "bus": "usb"}]);
    check(json!({"autoattachInputDevice": true}), tablet);
    let own = json!([{"name": "mine", "type": "tablet"}]);
    check(json!({"autoattachInputDevice": true, "inputs": own.clone()}), own);
    check(json!({"autoattachInputDevice": false}), Value::Null);
}

#[test]
fn a_spec_too_long_to_be_carried_gets_a_revision_at_once() {
    let mut machine = vm(json!({"runStrategy": "Always"}), json!({}));
    let metadata = machine.spec.template.as_mut().expect("a template").metadata.get_or_insert_default();
    metadata.annotations.get_or_insert_default().insert("example.com/long".to_owned(), "x".repeat(100 << 10));
    let plan = plan(machine, None);
    let acts = acts(&plan);
    let place = |what: &str| acts.iter().position(|act| act == what);
    assert!(place("create controllerrevisions") < place("create virtualmachineinstances"), "{acts:?}");
    assert!(place("create controllerrevisions").is_some(), "{acts:?}");
    let instance = plan.writes.iter().find_map(|write| match write {
        Write::Create { resource, object } if resource.plural == "virtualmachineinstances" => Some(object.clone()),
        _ => None,
    });
    let annotations = &instance.expect("an instance")["metadata"]["annotations"];
    assert!(annotations.get("kubevirt.io/started-from").is_none() && annotations.get("example.com/long").is_some());
}

#[test]
fn deletion_waits_for_the_instance() {
    let going = || {
        let mut vm = vm(json!({"runStrategy": "Always"}), json!({}));
        vm.metadata.deletion_timestamp = Some(NOW.meta());
        vm
    };
    assert_eq!(acts(&plan(going(), Some(vmi("Running", json!({}))))), STOP);
    let finalizers = |plan: Plan| match &plan.writes[..] {
        [Write::Patch { sub: "", patch, .. }] => patch["metadata"]["finalizers"].clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(finalizers(plan(going(), None)), json!([]));
    let mut orphaning = going();
    orphaning.metadata.finalizers.get_or_insert_default().push("orphan".to_owned());
    assert_eq!(finalizers(plan(orphaning, Some(vmi("Running", json!({}))))), json!(["orphan"]));
}

#[test]
fn a_machine_gets_its_finalizer_before_anything_else() {
    let mut fresh = vm(json!({"runStrategy": "Always"}), json!({}));
    fresh.metadata.finalizers = None;
    assert_eq!(acts(&plan(fresh, None)), ["patch virtualmachines/"]);
}

#[test]
fn a_changed_template_asks_for_a_restart() {
    let machine = vm(json!({"runStrategy": "Always"}), json!({}));
    let restart = |started_from: Value| {
        let revision: ControllerRevision = carrack_types::json::from_value(json!({
            "metadata": {"name": "rev", "namespace": "ns", "ownerReferences": [{"apiVersion": "kubevirt.io/v1",
                "kind": "VirtualMachine", "name": "demo", "uid": "vm-uid", "controller": true}]},
            "data": {"spec": started_from}, "revision": 1}))
        .expect("a revision");
        let running = vmi("Running", json!({"status": {"virtualMachineRevisionName": "rev"}}));
        let caches = caches(machine.clone(), Some(running)).with([revision]);
        let plan = VmController::default().reconcile(&Key::new("ns", "demo"), &caches.view(), NOW);
        status_of(&plan)["conditions"].as_array().is_some_and(|all| all.iter().any(|c| c["type"] == "RestartRequired"))
    };
    assert!(!restart(json!(machine.spec)));
    let mut before = json!(machine.spec);
    before["template"]["spec"]["domain"]["resources"]["requests"]["memory"] = json!("32Mi");
    assert!(restart(before.clone()));
    // What the instance says itself is kept in a revision as soon as the machine's spec is another one.
    let told = |from: &Value, generation: &str| {
        let running = vmi(
            "Running",
            json!({
                "metadata": {"annotations": {"kubevirt.io/started-from": from.to_string(),
                    "kubevirt.io/vm-generation": generation}},
                "status": {"virtualMachineRevisionName": "revision-start-vm-vm-uid-2"},
            }),
        );
        plan(machine.clone(), Some(running))
    };
    let kept = told(&before, "2");
    assert!(acts(&kept).starts_with(&["create controllerrevisions".to_owned()]), "{kept:?}");
    let Write::Create { object, .. } = &kept.writes[0] else { panic!("{kept:?}") };
    assert_eq!(object["metadata"]["name"], "revision-start-vm-vm-uid-2");
    assert_eq!((&object["revision"], &object["data"]["spec"]), (&json!(2), &before));
    let conditions = status_of(&kept)["conditions"].clone();
    assert!(conditions.as_array().is_some_and(|all| all.iter().any(|c| c["type"] == "RestartRequired")));
    // As it is when a snapshot is taken, for controllers of snapshots that read it there.
    let held = json!({"snapshotInProgress": "s"});
    let annotations = json!({"metadata": {"annotations": {"kubevirt.io/started-from": before.to_string(),
        "kubevirt.io/vm-generation": "3"}}, "status": {"virtualMachineRevisionName": "revision-start-vm-vm-uid-3"}});
    let held = plan(vm(json!({"runStrategy": "Always"}), held), Some(vmi("Running", annotations)));
    assert!(acts(&held).starts_with(&["create controllerrevisions".to_owned()]), "{held:?}");
    for unchanged in [told(&json!(machine.spec), "2"), told(&before, "3")] {
        assert!(!acts(&unchanged).iter().any(|act| act.contains("controllerrevisions")), "{unchanged:?}");
    }
}

#[test]
fn a_halted_machine_that_is_to_start_paused_changes_its_strategy_first() {
    let request =
        json!({"runStrategy": "Halted", "stateChangeRequests": [{"action": "Start", "data": {"paused": "true"}}]});
    let halted = plan(vm(json!({"runStrategy": "Halted"}), request.clone()), None);
    let patched = halted.writes.iter().find_map(|write| match write {
        Write::Patch { sub: "", patch, .. } => Some(patch["spec"].clone()),
        _ => None,
    });
    assert_eq!(patched, Some(json!({"runStrategy": "Always"})));
    assert!(!acts(&halted).iter().any(|act| act.starts_with("create")), "{halted:?}");
    // The request is still there, and the instance starts paused by it.
    let on = plan(vm(json!({"runStrategy": "Always"}), request), None);
    assert_eq!(created(&on)["spec"]["startStrategy"], "Paused");
    let older = plan(
        vm(json!({"running": false}), json!({"runStrategy": "Halted", "stateChangeRequests": [{"action": "Start"}]})),
        None,
    );
    assert!(format!("{older:?}").contains("\"running\": Bool(true)"), "{older:?}");
}

/// The instance that a plan makes.
fn created(plan: &Plan) -> Value {
    let instance = |write: &Write| match write {
        Write::Create { resource, object, .. } if resource.plural == "virtualmachineinstances" => Some(object.clone()),
        _ => None,
    };
    plan.writes.iter().find_map(instance).unwrap_or_default()
}

/// Every way to a start. The other side of it is in the tests of `copies`.
#[test]
fn nothing_starts_whose_disks_are_being_copied() {
    let asked = json!({"stateChangeRequests": [{"action": "Start"}]});
    let paused = json!({"stateChangeRequests": [{"action": "Start", "data": {"paused": "true"}}]});
    for strategy in ["Always", "RerunOnFailure", "Manual", "Once"] {
        for status in [json!({}), asked.clone(), paused.clone()] {
            let plan = plan(vm(json!({"runStrategy": strategy}), status.clone()), None);
            let created = plan.writes.iter().enumerate().filter(|(_, write)| {
                matches!(write, Write::Create { resource, .. } if resource.plural == "virtualmachineinstances")
            });
            let created: Vec<usize> = created.map(|(number, _)| number).collect();
            assert_eq!(created.len(), usize::from(strategy != "Manual" || status != json!({})), "{strategy} {status}");
            for number in created {
                let premises: Vec<_> = plan.premises.iter().filter(|(of, _)| *of == number).map(|(_, p)| p).collect();
                let at_rest = super::copies::at_rest(&vm(json!({}), json!({})));
                assert!(premises.contains(&&at_rest), "{strategy} {status}: {premises:?}");
                assert_eq!((at_rest.name.as_str(), at_rest.uid.as_deref()), ("virt-copying-vm-uid", None));
            }
        }
    }
}
