//! Tables for the status of a pod.

use super::*;
use crate::pods::plan::Verdict;
use crate::runtime::{PodRef, SandboxRecord};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn record(name: &str, attempt: u32, state: ContainerState) -> ContainerRecord {
    ContainerRecord {
        id: format!("{name}{attempt}"),
        sandbox_id: "s".into(),
        pod: PodRef { namespace: "n".into(), name: "p".into(), uid: "u".into() },
        name: name.into(),
        attempt,
        state,
        created_at: Time(i64::from(attempt)),
        started_at: Some(Time::from_unix_s(1)),
        image: "i".into(),
        image_ref: "sha256:1".into(),
        hash: String::new(),
        round: 0,
        size: Default::default(),
        user: None,
    }
}

fn exited(code: i32) -> ContainerState {
    ContainerState::Exited { code, reason: String::new(), message: String::new(), finished_at: Time::from_unix_s(2) }
}

fn ended(reason: &str, disrupts: bool) -> Ended {
    Ended { reason: reason.into(), message: "m".into(), disrupts }
}

struct Case {
    spec: Value,
    status: Value,
    containers: Vec<ContainerRecord>,
    waiting: BTreeMap<String, Waiting>,
    admitted: Admitted,
    stopped: bool,
    ended_because: Option<Ended>,
    verdicts: BTreeMap<String, Verdict>,
    ran_before: BTreeMap<String, u32>,
}

impl Case {
    fn new(containers: Vec<ContainerRecord>) -> Self {
        Self {
            spec: json!({"containers": [{"name": "a", "image": "i"}]}),
            status: json!({}),
            containers,
            waiting: BTreeMap::new(),
            admitted: Admitted::Yes,
            stopped: false,
            ended_because: None,
            verdicts: BTreeMap::new(),
            ran_before: BTreeMap::new(),
        }
    }
    fn status(&self) -> PodStatus {
        let pod: Pod = carrack_types::json::from_value(
            json!({"metadata": {"uid": "u", "namespace": "n", "name": "p"}, "spec": self.spec, "status": self.status}),
        )
        .unwrap();
        let sandbox = SandboxRecord {
            id: "s".into(),
            pod: pod::pod_ref(&pod),
            attempt: 0,
            ready: true,
            created_at: Time(0),
            ips: vec![],
            runtime_handler: String::new(),
        };
        let containers: Vec<_> = self.containers.iter().collect();
        pod_status(&Inputs {
            now: Time::from_unix_s(100),
            facts: Facts {
                pod: &pod,
                sandboxes: &[&sandbox],
                containers: &containers,
                stopped: &BTreeSet::new(),
                verdicts: &self.verdicts,
                ran_before: &self.ran_before,
                surplus: &BTreeSet::new(),
                outgrown: &BTreeSet::new(),
                renewed: &BTreeSet::new(),
                restarting: &BTreeSet::new(),
                lost: &BTreeSet::new(),
                spent: &BTreeSet::new(),
                round: if self.stopped {
                    rounds::begun(&self.containers)
                } else {
                    rounds::present(&pod, &self.containers, &BTreeSet::new())
                },
            },
            waiting: &self.waiting,
            admitted: &self.admitted,
            stopped: self.stopped,
            ended_because: self.ended_because.as_ref(),
            host_ips: &["192.0.2.1".into()],
            pod_ips: &["10.0.0.2".into()],
            sizes: Sizes::default(),
            recursive_read_only: Some(true),
        })
    }
    /// Phase, then the conditions that hold by their initials, then container states.
    fn text(&self) -> String {
        let s = self.status();
        let mut out = s.phase.clone().unwrap_or_default();
        for (name, letter) in [("Initialized", 'I'), ("Ready", 'R'), ("ContainersReady", 'C')] {
            if s.conditions.iter().flatten().any(|c| c.type_ == name && c.status == "True") {
                out.push_str(&format!(" {letter}"));
            }
        }
        for c in s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()) {
            let st = c.state.clone().unwrap_or_default();
            let state = match (st.running, st.waiting, st.terminated) {
                (Some(_), ..) => "running".to_owned(),
                (_, Some(w), _) => w.reason.unwrap_or_default(),
                (.., Some(t)) => format!("{}({})", t.reason.unwrap_or_default(), t.exit_code),
                _ => "?".into(),
            };
            out.push_str(&format!(" {}={state}x{}", c.name, c.restart_count));
        }
        out
    }
}

/// A pod of which all containers start again when `a` ends with 88.
fn watched() -> Value {
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]);
    json!({"initContainers": [{"name": "i"}],
        "containers": [{"name": "a", "restartPolicy": "Never", "restartPolicyRules": rules}, {"name": "b"}]})
}

#[test]
fn that_all_start_again_is_told_while_any_is_left() {
    for (containers, expected) in [
        (vec![record("a", 0, ContainerState::Running), record("b", 0, ContainerState::Running)], "False"),
        (vec![record("a", 0, exited(88)), record("b", 0, ContainerState::Running)], "True"),
        (vec![record("a", 0, exited(88)), record("b", 0, exited(137))], "False"),
        (vec![record("a", 0, exited(1)), record("b", 0, ContainerState::Running)], "False"),
    ] {
        let status = Case { spec: watched(), ..Case::new(containers) }.status();
        let told = status.conditions.iter().flatten().find(|c| c.type_ == ALL_RESTARTING).map(|c| c.status.as_str());
        assert_eq!(told, Some(expected), "{status:?}");
    }
    let over = vec![record("a", 0, exited(88)), record("b", 0, exited(0))];
    let over = Case { spec: watched(), stopped: true, ..Case::new(over) }.status();
    let told = over.conditions.iter().flatten().find(|c| c.type_ == ALL_RESTARTING).and_then(|c| c.reason.as_deref());
    assert_eq!(told, Some("PodFailed"), "{over:?}");
    let others = Case::new(vec![record("a", 0, exited(88))]).status();
    assert!(others.conditions.iter().flatten().all(|c| c.type_ != ALL_RESTARTING), "of others nothing is told");
}

#[test]
fn what_a_pod_waits_for_is_told_until_it_is_there() {
    use Admitted::{Lacks, NotYet, Yes};
    let told = |status: &str| {
        let (time, message) = ("1970-01-01T00:00:05Z", if status == "False" { "kvm" } else { "" });
        json!({"conditions": [{"type": ADMITTED, "status": status, "message": message, "lastTransitionTime": time}]})
    };
    let some = |what: &str| Some(what.to_owned());
    for (before, admitted, expected) in [
        (json!({}), Yes, None),
        (json!({}), NotYet(some("kvm")), Some(("False", "kvm", 100))),
        (json!({}), Lacks(some("kvm")), Some(("False", "kvm", 100))),
        (json!({}), Lacks(None), None),
        (told("False"), NotYet(None), Some(("False", "kvm", 5))),
        (told("False"), Lacks(None), Some(("False", "kvm", 5))),
        (told("False"), Lacks(some("gpu")), Some(("False", "gpu", 5))),
        (told("False"), Yes, Some(("True", "", 100))),
        (told("True"), Lacks(some("kvm")), Some(("False", "kvm", 100))),
        (told("True"), Yes, Some(("True", "", 5))),
    ] {
        let what = format!("{before} {admitted:?}");
        let status = Case { status: before, admitted, ..Case::new(vec![record("a", 0, exited(1))]) }.status();
        let condition = status.conditions.iter().flatten().find(|c| c.type_ == ADMITTED);
        let since = |c: &PodCondition| c.last_transition_time.as_ref().map(Time::from);
        let found = condition.map(|c| (c.status.as_str(), c.message.as_deref().unwrap_or_default(), since(c)));
        let expected = expected.map(|(status, message, at)| (status, message, Some(Time::from_unix_s(at))));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn a_pods_way() {
    let crash =
        BTreeMap::from([("a".to_owned(), Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() })]);
    let running = || vec![record("a", 0, ContainerState::Running)];
    for (case, expected) in [
        (Case::new(vec![]), "Pending I a=ContainerCreatingx0"),
        (
            Case { admitted: Admitted::NotYet(Some("kvm".into())), ..Case::new(vec![]) },
            "Pending I a=ContainerCreatingx0",
        ),
        (Case { admitted: Admitted::No("OutOfcpu".into(), "m".into()), ..Case::new(vec![]) }, "Failed I"),
        (Case::new(running()), "Running I R C a=runningx0"),
        (
            Case {
                verdicts: BTreeMap::from([("a0".into(), Verdict { ready: false, ..Verdict::default() })]),
                ..Case::new(running())
            },
            "Running I a=runningx0",
        ),
        (
            Case {
                spec: json!({"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g"}]}),
                ..Case::new(running())
            },
            "Running I C a=runningx0",
        ),
        (
            Case {
                spec: json!({"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "g"}]}),
                status: json!({"conditions": [{"type": "g", "status": "True"}]}),
                ..Case::new(running())
            },
            "Running I R C a=runningx0",
        ),
        (Case::new(vec![record("a", 0, exited(1))]), "Running I a=Error(1)x0"),
        (Case { waiting: crash, ..Case::new(vec![record("a", 3, exited(1))]) }, "Running I a=CrashLoopBackOffx3"),
        (Case { stopped: true, ..Case::new(vec![record("a", 0, exited(0))]) }, "Succeeded I a=Completed(0)x0"),
        (Case { stopped: true, ..Case::new(vec![record("a", 0, exited(1))]) }, "Failed I a=Error(1)x0"),
        (
            Case {
                stopped: true,
                ended_because: Some(ended("DeadlineExceeded", false)),
                ..Case::new(vec![record("a", 0, exited(0))])
            },
            "Failed I a=Completed(0)x0",
        ),
        (
            Case {
                spec: json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}),
                ..Case::new(vec![record("i", 0, ContainerState::Running)])
            },
            "Pending i=runningx0 a=PodInitializingx0",
        ),
        // All are to start again: one is ended for that, and none has ended.
        (
            Case {
                spec: watched(),
                ..Case::new(vec![record("a", 0, exited(88)), record("b", 0, ContainerState::Running)])
            },
            "Pending i=PodInitializingx0 a=PodInitializingx0 b=runningx0",
        ),
        (
            Case {
                spec: watched(),
                stopped: true,
                ..Case::new(vec![record("i", 0, exited(0)), record("a", 0, exited(88)), record("b", 0, exited(0))])
            },
            "Failed I i=Completed(0)x0 a=Error(88)x0 b=Completed(0)x0",
        ),
        // A phase that is over stays.
        (Case { status: json!({"phase": "Failed"}), ..Case::new(running()) }, "Failed I a=runningx0"),
    ] {
        assert_eq!(case.text(), expected);
    }
}

#[test]
fn others_conditions_and_transition_times_are_kept() {
    let case = Case {
        status: json!({"conditions": [
            {"type": "kubevirt.io/virtual-machine-unpaused", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"},
            {"type": "ContainersReady", "status": "False", "lastTransitionTime": "1970-01-01T00:00:05Z"}]}),
        ..Case::new(vec![record("a", 0, ContainerState::Running)])
    };
    let s = case.status();
    let since = |name: &str| {
        let c = s.conditions.iter().flatten().find(|c| c.type_ == name).unwrap();
        c.last_transition_time.as_ref().map(|t| Time::from(t).unix_s())
    };
    assert_eq!(since("Ready"), Some(5), "unchanged");
    assert_eq!(since("ContainersReady"), Some(100), "changed now");
    assert_eq!(since("kubevirt.io/virtual-machine-unpaused"), None, "not ours");
}

/// A container that ended and waited to be started again, but never was: its end is its state, and there is no
/// earlier one.
#[test]
fn an_end_is_not_its_own_last_state() {
    let ended = Case::new(vec![record("a", 0, exited(1))]);
    let waiting =
        BTreeMap::from([("a".to_owned(), Waiting { reason: "CrashLoopBackOff".into(), message: String::new() })]);
    let before = Case { waiting, ..Case::new(vec![record("a", 0, exited(1))]) }.status();
    let last = |s: &PodStatus| {
        let c = s.container_statuses.as_ref().unwrap()[0].clone();
        (c.state.unwrap().terminated.is_some(), c.last_state.unwrap().terminated.is_some())
    };
    assert_eq!(last(&before), (false, true));
    let after = Case { status: serde_json::to_value(&before).unwrap(), stopped: true, ..ended }.status();
    assert_eq!(last(&after), (true, false));
}

/// The condition by which others tell a pod that had to make room from one that failed.
#[test]
fn who_is_disrupted_is_told_apart() {
    for (why, expected) in [
        (None, None),
        (Some(ended("DeadlineExceeded", false)), None),
        (Some(ended("Evicted", false)), None),
        (Some(ended("Evicted", true)), Some("TerminationByKubelet: m")),
        (Some(ended("Terminated", true)), Some("TerminationByKubelet: m")),
    ] {
        let what = format!("{why:?}");
        let reason = why.as_ref().map(|ended| ended.reason.clone());
        let status = Case { ended_because: why, ..Case::new(vec![record("a", 0, exited(0))]) }.status();
        let told = status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget");
        let told = told.map(|c| {
            format!("{}: {}", c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default())
        });
        assert_eq!(told.as_deref(), expected, "{what}");
        assert_eq!(status.reason, reason, "{what}");
    }
}

#[test]
fn what_was_told_of_a_pod_that_is_over_stays_when_the_runtime_forgets_it() {
    let container = |name: &str, state: Value| {
        json!({"name": name, "image": "i", "imageID": "sha256:1", "containerID": format!("containerd://{name}2"),
            "ready": name == "i", "restartCount": 2, "state": state})
    };
    let over = || json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    for (phase, state, left, stays) in [
        ("Failed", over(), vec![], true),
        ("Succeeded", over(), vec![], true),
        // They go one after another.
        ("Failed", over(), vec![record("a", 2, exited(0))], true),
        // Who was not told the end of one is told it.
        ("Failed", json!({"running": {}}), vec![], false),
        ("Running", over(), vec![], false),
    ] {
        let told = json!({"phase": phase, "initContainerStatuses": [container("i", over())],
            "containerStatuses": [container("a", state)], "conditions": [{"type": "Initialized", "status": "True"}]});
        let spec =
            json!({"initContainers": [{"name": "i", "image": "i"}], "containers": [{"name": "a", "image": "i"}]});
        let case = Case { spec, status: told.clone(), stopped: true, ..Case::new(left) };
        let expected: PodStatus = serde_json::from_value(told.clone()).unwrap();
        assert_eq!(case.status() == expected, stays, "{told}");
    }
}

/// A kubelet that has just started knows nothing of it but what was told.
#[test]
fn what_was_told_of_a_pod_that_never_ran_stays() {
    let waits = json!([{"name": "a", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    for (phase, containers, admitted, stays) in [
        ("Failed", Value::Null, Admitted::NotYet(None), true),
        ("Failed", Value::Null, Admitted::No("OutOfcpu".into(), "m".into()), true),
        ("Failed", waits.clone(), Admitted::NotYet(None), true),
        ("Pending", waits, Admitted::NotYet(None), false),
    ] {
        let told = json!({"phase": phase, "reason": "OutOfcpu", "message": "Pod was rejected: m",
            "containerStatuses": containers});
        let case = Case { status: told.clone(), admitted, stopped: true, ..Case::new(vec![]) };
        let expected: PodStatus = serde_json::from_value(told.clone()).unwrap();
        assert_eq!(case.status() == expected, stays, "{told}");
    }
}

/// Upstream's "should not restart any completed init container, even after the completed init container statuses have been removed"
/// (`test/e2e_node/container_lifecycle_test.go`): its end stands.
#[test]
fn an_init_container_that_the_runtime_forgot_is_still_done() {
    let over = |code: i32| {
        json!({"name": "i", "image": "i", "imageID": "sha256:1", "containerID": "containerd://i0", "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "reason": "Completed"}}})
    };
    for (code, ready) in [(0, true), (1, false)] {
        let case = Case {
            spec: json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]}),
            status: json!({"initContainerStatuses": [over(code)]}),
            ran_before: BTreeMap::from([("i".into(), 0)]),
            ..Case::new(vec![record("j", 0, ContainerState::Running)])
        };
        let expected = format!("Pending i=Completed({code})x0 j=runningx0 a=PodInitializingx0");
        assert_eq!(case.text(), expected);
        let told = case.status().init_container_statuses.unwrap_or_default();
        assert_eq!((told[0].ready, told[0].container_id.as_deref()), (ready, Some("containerd://i0")));
    }
}

/// Upstream's `TestConvertToAPIContainerStatuses` and `TestStatusManager_TerminatePod` (`pkg/kubelet`): what is said of containers
/// of which nobody knows how they ended, or that they began.
#[test]
fn no_container_of_a_pod_that_is_over_waits_to_be_begun() {
    let init = |names: &[&str]| {
        let init: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"initContainers": init, "containers": [{"name": "a"}]})
    };
    let sidecar = json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}]});
    let evicted = || Some(ended("Evicted", true));
    for (spec, containers, stopped, expected) in [
        (init(&[]), vec![], true, "Failed I a=ContainerStatusUnknown(137)x0"),
        (init(&[]), vec![record("a", 0, ContainerState::Created)], true, "Failed I a=ContainerStatusUnknown(137)x0"),
        // An init container has let it on, or has not.
        (
            init(&["i"]),
            vec![record("i", 0, exited(0))],
            true,
            "Failed I i=Completed(0)x0 a=ContainerStatusUnknown(137)x0",
        ),
        (init(&["i"]), vec![record("i", 0, exited(1))], true, "Failed i=Error(1)x0 a=PodInitializingx0"),
        (init(&["i"]), vec![], true, "Failed i=ContainerStatusUnknown(137)x0 a=PodInitializingx0"),
        (
            init(&["i", "j"]),
            vec![record("i", 0, exited(0))],
            true,
            "Failed i=Completed(0)x0 j=PodInitializingx0 a=PodInitializingx0",
        ),
        (
            sidecar,
            vec![record("s", 0, exited(0)), record("a", 0, exited(0))],
            true,
            "Failed I s=Completed(0)x0 a=Completed(0)x0",
        ),
        // The runtime knows no more of one that is over, and nobody was told.
        (
            init(&["i"]),
            vec![record("a", 0, ContainerState::Running)],
            false,
            "Running I R C i=Completed(0)x0 a=runningx0",
        ),
    ] {
        let what = format!("{spec} {containers:?}");
        let case = Case { spec, stopped, ended_because: evicted().filter(|_| stopped), ..Case::new(containers) };
        assert_eq!(case.text(), expected, "{what}");
    }
}

/// A container for debugging waits as the others do.
#[test]
fn an_ephemeral_container_is_created_in_an_initialized_pod() {
    for (init, reason) in [(json!([]), "ContainerCreating"), (json!([{"name": "i"}]), "PodInitializing")] {
        let spec = json!({"initContainers": init, "containers": [{"name": "a"}],
            "ephemeralContainers": [{"name": "e", "image": "i"}]});
        let told = Case { spec, ..Case::new(vec![]) }.status().ephemeral_container_statuses.unwrap_or_default();
        let waiting = told[0].state.as_ref().and_then(|state| state.waiting.as_ref());
        assert_eq!(waiting.and_then(|w| w.reason.as_deref()), Some(reason));
    }
}

/// Its start was answered with an error though it took effect, and it is not started again.
#[test]
fn an_ephemeral_container_that_has_ended_waits_for_nothing() {
    let spec =
        json!({"containers": [{"name": "a", "image": "i"}], "ephemeralContainers": [{"name": "e", "image": "i"}]});
    let of_start = Waiting { reason: "RunContainerError".into(), message: "timed out".into() };
    let waiting = BTreeMap::from([("e".to_owned(), of_start)]);
    let case = Case { spec, waiting, ..Case::new(vec![record("e", 0, exited(3))]) };
    let told = case.status().ephemeral_container_statuses.unwrap_or_default();
    let code = told[0].state.as_ref().and_then(|state| state.terminated.as_ref()).map(|ended| ended.exit_code);
    assert_eq!(code, Some(3), "{told:?}");
}

#[test]
fn a_container_tells_its_mounts_and_whom_it_runs_as() {
    let mut running = record("a", 0, ContainerState::Running);
    running.user = Some(RunsAs { uid: 1000, gid: 2000, groups: vec![2000, 3000] });
    let spec = json!({"containers": [{"name": "a", "image": "i",
        "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"}]}]});
    let case = Case { spec, ..Case::new(vec![running]) };
    let told = |case: &Case| serde_json::to_value(&case.status().container_statuses.unwrap_or_default()[0]).unwrap();
    let user = json!({"linux": {"uid": 1000, "gid": 2000, "supplementalGroups": [2000, 3000]}});
    let mounts = json!([{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled"}]);
    let first = told(&case);
    assert_eq!((&first["user"], &first["volumeMounts"]), (&user, &mounts));
    // The runtime has lost it.
    let case = Case { containers: vec![], status: serde_json::to_value(case.status()).unwrap(), ..case };
    let lost = told(&case);
    assert_eq!((&lost["user"], &lost["volumeMounts"]), (&user, &mounts));
}

#[test]
fn all_containers_together_say_no_more_than_an_api_server_takes() {
    let of = |message: String| ContainerState::Exited {
        code: 1,
        reason: String::new(),
        message,
        finished_at: Time::from_unix_s(2),
    };
    for (count, text, expected) in
        [(1, "x".repeat(4096), 4096), (12, "x".repeat(4096), 1024), (7, "\u{fc}".repeat(2000), 1754)]
    {
        let names: Vec<String> = (0..count).map(|n| format!("c{n}")).collect();
        let records = names.iter().flat_map(|name| [0, 1].map(|attempt| record(name, attempt, of(text.clone()))));
        let mut case = Case::new(records.collect());
        let containers: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "i"})).collect();
        case.spec = json!({"restartPolicy": "Never", "containers": containers});
        case.stopped = true;
        for c in case.status().container_statuses.into_iter().flatten() {
            let said = |state: Option<ApiState>| state?.terminated?.message.map(|message| message.len());
            assert_eq!((said(c.state), said(c.last_state)), (Some(expected), Some(expected)), "{count}");
        }
    }
}
