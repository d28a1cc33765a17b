//! What the usual kinds look like in a table.

use serde_json::json;

use super::*;
use crate::table::{self, builtin};

fn now() -> Timestamp {
    "2026-01-02T12:00:00Z".parse().expect("a time")
}

#[track_caller]
fn check(group: &str, kind: &str, object: Value, expected: Value) {
    let info = table::find_kind(group, kind).expect(kind);
    let version = info.storage_version().expect("a version");
    let cells = cells(info, version, &object, now());
    assert_eq!(Value::Array(cells), expected, "{kind} {object}");
}

#[test]
fn durations() {
    let minute = 60;
    let hour = 60 * minute;
    let day = 24 * hour;
    let table = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (179 * minute, "179m"),
        (3 * hour, "3h"),
        (3 * hour + 61, "3h1m"),
        (8 * hour, "8h"),
        (47 * hour, "47h"),
        (48 * hour, "2d"),
        (50 * hour, "2d2h"),
        (8 * day, "8d"),
        (729 * day, "729d"),
        (730 * day, "2y"),
        (740 * day, "2y10d"),
        (365 * 8 * day, "8y"),
    ];
    for (seconds, expected) in table {
        assert_eq!(human_duration(seconds), expected, "{seconds}");
    }
}

#[test]
fn autoscalers_look_alike_in_all_versions() {
    let reference = json!({"kind": "Deployment", "name": "d"});
    let memory = |field: &str, value: &str| json!({"type": "Resource", "resource": {"name": "memory", field: value}});
    let note = |metrics: Value| json!({"autoscaling.alpha.kubernetes.io/metrics": metrics.to_string()});
    let of_cpu = json!({"maxReplicas": 3, "scaleTargetRef": reference, "targetCPUUtilizationPercentage": 70});
    let of_memory = json!({"maxReplicas": 3, "scaleTargetRef": reference});
    for (metadata, spec, targets) in [
        (json!({"name": "h"}), of_cpu, "cpu: 20%/70%"),
        (
            json!({"name": "h", "annotations": note(json!([memory("targetAverageValue", "1Gi")]))}),
            of_memory,
            "memory: <unknown>/1Gi",
        ),
    ] {
        let status = match targets {
            "cpu: 20%/70%" => json!({"currentReplicas": 1, "currentCPUUtilizationPercentage": 20}),
            _ => json!({"currentReplicas": 1}),
        };
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": metadata, "spec": spec, "status": status});
        let mut v2 = v1.clone();
        crate::convert::convert("autoscaling", "HorizontalPodAutoscaler", "v2", &mut v2);
        let expected = json!(["h", "Deployment/d", targets, "<unset>", "3", 1, "<unknown>"]);
        check("autoscaling", "HorizontalPodAutoscaler", v1, expected.clone());
        check("autoscaling", "HorizontalPodAutoscaler", v2, expected);
    }
}

/// A pod with one container in the state, and its first cells.
#[track_caller]
fn check_pod(pod: Value, ready: &str, status: &str, restarts: &str) {
    let info = table::find_kind("", "Pod").expect("pods");
    let cells = cells(info, info.storage_version().expect("v1"), &pod, now());
    assert_eq!(cells.get(1..4), Some(&[json!(ready), json!(status), json!(restarts)][..]), "{pod}");
}

#[test]
fn pods() {
    let pod =
        |status: Value| json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}, "status": status});
    let container = |state: Value, rest: Value| {
        let mut status = json!({"name": "a", "state": state});
        if let (Value::Object(map), Value::Object(rest)) = (&mut status, rest) {
            map.extend(rest);
        }
        status
    };
    let of = |phase: &str, state: Value, rest: Value| {
        pod(json!({"phase": phase, "containerStatuses": [container(state, rest)]}))
    };
    check_pod(pod(json!({"phase": "Pending"})), "0/1", "Pending", "0");
    check_pod(of("Running", json!({"running": {}}), json!({"ready": true})), "1/1", "Running", "0");
    check_pod(
        of("Pending", json!({"waiting": {"reason": "ImagePullBackOff"}}), json!({})),
        "0/1",
        "ImagePullBackOff",
        "0",
    );
    check_pod(
        of("Succeeded", json!({"terminated": {"reason": "Completed", "exitCode": 0}}), json!({})),
        "0/1",
        "Completed",
        "0",
    );
    check_pod(of("Failed", json!({"terminated": {"exitCode": 3}}), json!({})), "0/1", "ExitCode:3", "0");
    check_pod(of("Failed", json!({"terminated": {"signal": 9, "exitCode": 137}}), json!({})), "0/1", "Signal:9", "0");
    let crashed = json!({"restartCount": 3, "lastState": {"terminated": {"finishedAt": "2026-01-02T11:55:00Z"}}});
    check_pod(
        of("Running", json!({"waiting": {"reason": "CrashLoopBackOff"}}), crashed),
        "0/1",
        "CrashLoopBackOff",
        "3 (5m ago)",
    );
    check_pod(pod(json!({"phase": "Failed", "reason": "Evicted"})), "0/1", "Evicted", "0");
    check_pod(
        pod(
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
        ),
        "0/1",
        "SchedulingGated",
        "0",
    );
    let mut deleting = of("Running", json!({"running": {}}), json!({"ready": true}));
    deleting["metadata"]["deletionTimestamp"] = json!("2026-01-02T12:00:00Z");
    check_pod(deleting.clone(), "1/1", "Terminating", "0");
    deleting["status"]["phase"] = json!("Succeeded");
    check_pod(deleting, "1/1", "Succeeded", "0");

    let init = |statuses: Value, rest: Value| {
        json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
        "status": {"phase": "Pending", "initContainerStatuses": statuses, "containerStatuses": rest}})
    };
    let waiting = json!([{"name": "a", "state": {"waiting": {"reason": "PodInitializing"}}}]);
    check_pod(init(json!([{"name": "i", "state": {"running": {}}}]), waiting.clone()), "0/2", "Init:0/2", "0");
    check_pod(
        init(json!([{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]), waiting.clone()),
        "0/2",
        "Init:ErrImagePull",
        "0",
    );
    check_pod(
        init(
            json!([{"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]),
            waiting,
        ),
        "0/2",
        "Init:Error",
        "2",
    );
    let done = json!([{"name": "i", "restartCount": 2, "state": {"terminated": {"exitCode": 0}}}, {"name": "s", "started": true, "ready": true, "state": {"running": {}}}]);
    check_pod(init(done, json!([{"name": "a", "ready": true, "state": {"running": {}}}])), "2/2", "Pending", "0");

    let wide = json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-02T11:00:00Z"},
        "spec": {"containers": [{"name": "a"}], "nodeName": "n", "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "x", "status": "True"}]}});
    check("", "Pod", wide, json!(["p", "0/1", "Running", "0", "60m", "10.0.0.1", "n", "<none>", "1/2"]));
}

#[test]
fn usual_kinds() {
    let meta = |name: &str| json!({"name": name, "creationTimestamp": "2026-01-02T11:58:30Z"});
    check(
        "",
        "Node",
        json!({"metadata": {"name": "n", "creationTimestamp": "2026-01-01T12:00:00Z", "labels": {"node-role.kubernetes.io/control-plane": "", "x": "y"}},
            "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian", "kernelVersion": "6.1", "containerRuntimeVersion": "containerd://1.6"}}}),
        json!([
            "n",
            "Ready,SchedulingDisabled",
            "control-plane",
            "24h",
            "v1.36.0",
            "10.1.1.1",
            "<none>",
            "Debian",
            "6.1",
            "containerd://1.6"
        ]),
    );
    check(
        "",
        "Service",
        json!({"metadata": meta("s"), "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}}),
        json!(["s", "NodePort", "10.0.0.1", "<none>", "80:30080/TCP,53/UDP", "90s", "a=b"]),
    );
    check(
        "apps",
        "Deployment",
        json!({"metadata": meta("d"), "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]},
            "template": {"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "j"}]}}}, "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}}),
        json!(["d", "1/3", 2, 1, "90s", "c,d", "i,j", "a=b,k in (x,y)"]),
    );
    check(
        "",
        "Event",
        json!({"metadata": {"name": "e.1"}, "firstTimestamp": "2026-01-02T11:00:00Z", "lastTimestamp": "2026-01-02T11:59:00Z", "count": 4, "type": "Warning",
            "reason": "Failed", "message": "no\n", "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"}, "source": {"component": "kubelet", "host": "n"}}),
        json!(["60s", "Warning", "Failed", "pod/p", "spec.containers{a}", "kubelet, n", "no", "60m", 4, "e.1"]),
    );
    check(
        "events.k8s.io",
        "Event",
        json!({"metadata": {"name": "e.1"}, "eventTime": "2026-01-02T11:59:00.000000Z", "type": "Normal", "reason": "R", "note": "n",
            "regarding": {"kind": "Node", "name": "n"}, "reportingController": "c", "reportingInstance": "i"}),
        json!(["60s", "Normal", "R", "node/n", "", "c, i", "n", "60s", 1, "e.1"]),
    );
    check(
        "",
        "Namespace",
        json!({"metadata": meta("n"), "status": {"phase": "Active"}}),
        json!(["n", "Active", "90s"]),
    );
    check(
        "",
        "ConfigMap",
        json!({"metadata": meta("c"), "data": {"a": "b"}, "binaryData": {"c": "d"}}),
        json!(["c", 2, "90s"]),
    );
    check("", "Secret", json!({"metadata": meta("s"), "type": "Opaque"}), json!(["s", "Opaque", 0, "90s"]));
    check(
        "coordination.k8s.io",
        "Lease",
        json!({"metadata": meta("l"), "spec": {"holderIdentity": "n"}}),
        json!(["l", "n", "90s"]),
    );
    check(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        json!({"metadata": meta("x.y")}),
        json!(["x.y", "2026-01-02T11:58:30Z"]),
    );
    check("rbac.authorization.k8s.io", "Role", json!({"metadata": meta("r")}), json!(["r", "2026-01-02T11:58:30Z"]));
    check(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        json!({"metadata": meta("b"), "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
        json!(["b", "Role/r", "90s", "u", "g", "n/s"]),
    );
    check(
        "batch",
        "Job",
        json!({"metadata": meta("j"), "spec": {"completions": 2}, "status": {"succeeded": 2, "startTime": "2026-01-02T11:00:00Z", "completionTime": "2026-01-02T11:00:30Z",
            "conditions": [{"type": "Complete", "status": "True"}]}}),
        json!(["j", "Complete", "2/2", "30s", "90s", "", "", "<none>"]),
    );
    check(
        "",
        "PersistentVolumeClaim",
        json!({"metadata": meta("c"), "spec": {"volumeName": "v", "storageClassName": "fast", "volumeMode": "Block"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}),
        json!(["c", "Bound", "v", "1Gi", "RWO,RWX", "fast", "<unset>", "90s", "Block"]),
    );
    check(
        "",
        "Endpoints",
        json!({"metadata": meta("e"), "subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}], "ports": [{"port": 80}, {"port": 443}]}]}),
        json!(["e", "1.1.1.1:80,1.1.1.1:443,1.1.1.2:80 + 1 more...", "90s"]),
    );
}

/// Whatever an object looks like, a row has as many cells as there are headings.
#[test]
fn cells_match_columns_for_every_kind() {
    for info in builtin() {
        for version in &info.versions {
            let headings = columns(info, version);
            for object in [
                json!({}),
                json!({"metadata": {"name": "x"}, "spec": [], "status": "odd"}),
                json!({"spec": {"ports": {}, "metrics": [1, {"type": "Pods"}]}}),
            ] {
                assert_eq!(
                    cells(info, version, &object, now()).len(),
                    headings.len(),
                    "{} {}",
                    info.kind,
                    version.name
                );
            }
        }
    }
}
