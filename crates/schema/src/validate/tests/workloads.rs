//! Sets of pods, Jobs, CronJobs, autoscalers.

use serde_json::{Value, json};

use super::causes::{changed, created, named, template};
use super::with;

fn set(rest: Value) -> Value {
    let mut object = named(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template()}}));
    if let (Value::Object(map), Value::Object(rest)) = (&mut object["spec"], rest) {
        map.extend(rest);
    }
    object
}

#[test]
fn what_pods_are_like_is_not_looked_at_again() {
    // An earlier release would have let it in.
    let mut old = set(json!({"replicas": 2}));
    old["spec"]["template"]["spec"]["restartPolicy"] = "Odd".into();
    old["spec"]["template"]["spec"]["tolerations"] = json!([]);
    let odd = "NotSupported spec.template.spec.restartPolicy";
    for kind in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
        changed(
            "apps",
            kind,
            "",
            &old,
            &[
                ("/spec/replicas", json!(1), &[]),
                ("/metadata/finalizers", json!(["example.com/x"]), &[]),
                ("/spec/template/metadata/annotations", json!({"a": "b"}), &[]),
                // It says nothing, and clients in Go leave it out.
                ("/spec/template/spec/tolerations", Value::Null, &[]),
                ("/spec/template/spec/containers/0/image", json!("y"), &[odd]),
            ],
        );
    }
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": old["spec"]["template"]["spec"]});
    let job = named(json!({"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}}));
    let odd = "NotSupported spec.jobTemplate.spec.template.spec.restartPolicy";
    changed(
        "batch",
        "CronJob",
        "",
        &job,
        &[
            ("/spec/suspend", json!(true), &[]),
            ("/spec/jobTemplate/spec/template/spec/tolerations", Value::Null, &[]),
            ("/spec/jobTemplate/spec/template/spec/containers/0/image", json!("y"), &[odd, odd]),
        ],
    );
}

#[test]
fn sets_of_pods() {
    created(
        "apps",
        "Deployment",
        &set(json!({"strategy": {}})),
        &[
            ("/spec/replicas", json!(-1), &["Invalid spec.replicas"]),
            (
                "/spec/template",
                json!(null),
                &["Invalid spec.template.metadata.labels", "Required spec.template.spec.containers"],
            ),
            ("/spec/selector", json!(null), &["Required spec.selector", "Invalid spec.template.metadata.labels"]),
            ("/spec/selector", json!({}), &["Invalid spec.selector"]),
            ("/spec/selector", json!({"matchLabels": {"a": "c"}}), &["Invalid spec.template.metadata.labels"]),
            (
                "/spec/selector",
                json!({"matchExpressions": [{"key": "a", "operator": "Odd"}]}),
                &["Invalid spec.selector.matchExpressions[0].operator", "Invalid spec.template.metadata.labels"],
            ),
            ("/spec/template/metadata/labels", json!({"a": "b", "c d": ""}), &["Invalid spec.template.labels"]),
            ("/spec/template/spec/restartPolicy", json!("Never"), &["NotSupported spec.template.spec.restartPolicy"]),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(5),
                &["Forbidden spec.template.spec.activeDeadlineSeconds"],
            ),
            ("/spec/strategy", json!({"type": "Odd"}), &["NotSupported spec.strategy.type"]),
            (
                "/spec/strategy",
                json!({"type": "Recreate", "rollingUpdate": {}}),
                &["Forbidden spec.strategy.rollingUpdate"],
            ),
            (
                "/spec/strategy",
                json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}),
                &["Invalid spec.strategy.rollingUpdate.maxUnavailable"],
            ),
            (
                "/spec/strategy",
                json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
                &["Invalid spec.strategy.rollingUpdate.maxUnavailable"],
            ),
            ("/spec/strategy", json!({"rollingUpdate": {"maxSurge": "200%"}}), &[]),
            ("/spec/progressDeadlineSeconds", json!(0), &["Invalid spec.progressDeadlineSeconds"]),
        ],
    );
    changed(
        "apps",
        "Deployment",
        "",
        &set(json!({})),
        &[
            ("/spec/replicas", json!(3), &[]),
            (
                "/spec/selector",
                json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]}),
                &["Invalid spec.selector"],
            ),
            ("/spec/selector/matchExpressions", json!([]), &[]),
        ],
    );
    created(
        "apps",
        "StatefulSet",
        &set(json!({"serviceName": "s", "updateStrategy": {}})),
        &[
            ("/spec/podManagementPolicy", json!("Odd"), &["Invalid spec.podManagementPolicy"]),
            ("/spec/updateStrategy", json!({"type": "Odd"}), &["Invalid spec.updateStrategy"]),
            (
                "/spec/updateStrategy",
                json!({"rollingUpdate": {"partition": -1}}),
                &["Invalid spec.updateStrategy.rollingUpdate.partition"],
            ),
            (
                "/spec/updateStrategy",
                json!({"type": "OnDelete", "rollingUpdate": {}}),
                &["Invalid spec.updateStrategy.rollingUpdate"],
            ),
            ("/spec/ordinals", json!({"start": -1}), &["Invalid spec.ordinals.start"]),
            (
                "/spec/persistentVolumeClaimRetentionPolicy",
                json!({"whenScaled": "Odd"}),
                &["NotSupported spec.persistentVolumeClaimRetentionPolicy.whenScaled"],
            ),
        ],
    );
    changed(
        "apps",
        "StatefulSet",
        "",
        &set(json!({"serviceName": "s"})),
        &[
            ("/spec/replicas", json!(2), &[]),
            ("/spec/serviceName", json!("t"), &["Forbidden spec"]),
            ("/spec/volumeClaimTemplates", json!([]), &[]),
            ("/spec/podManagementPolicy", json!("Parallel"), &["Forbidden spec"]),
        ],
    );
    let mut with_claims =
        set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}, {"metadata": {"name": "raw"}}]}));
    let container = &mut with_claims["spec"]["template"]["spec"]["containers"][0];
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    container["volumeDevices"] = json!([{"name": "raw", "devicePath": "/dev/raw"}]);
    let mounts = "/spec/template/spec/containers/0/volumeMounts";
    created(
        "apps",
        "StatefulSet",
        &with_claims,
        &[
            (mounts, json!([{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}]), &[]),
            // The claim's volume takes the place of the template's.
            ("/spec/template/spec/volumes", json!([{"name": "raw", "emptyDir": {}}]), &[]),
            (
                mounts,
                json!([{"name": "other", "mountPath": "/data"}]),
                &["NotFound spec.template.spec.containers[0].volumeMounts[0].name"],
            ),
        ],
    );
    created(
        "apps",
        "DaemonSet",
        &set(json!({"updateStrategy": {}})),
        &[
            ("/spec/selector", json!(null), &["Invalid spec.template.metadata.labels"]),
            ("/spec/updateStrategy", json!({"type": "Odd"}), &["NotSupported spec.updateStrategy"]),
            (
                "/spec/updateStrategy",
                json!({"rollingUpdate": {"maxUnavailable": 0}}),
                &["Required spec.updateStrategy.rollingUpdate.maxUnavailable"],
            ),
            (
                "/spec/updateStrategy",
                json!({"rollingUpdate": {"maxSurge": 1}}),
                &["Invalid spec.updateStrategy.rollingUpdate.maxSurge"],
            ),
        ],
    );
    changed(
        "apps",
        "ReplicaSet",
        "status",
        &with(set(json!({})), &[("/status", json!({"replicas": 1}))]),
        &[
            ("/status", json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 1}), &[]),
            ("/status", json!({"replicas": 1, "readyReplicas": 2}), &["Invalid status.readyReplicas"]),
            (
                "/status",
                json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 2}),
                &["Invalid status.availableReplicas"],
            ),
        ],
    );
    // Each kind has its own parts of all replicas.
    for (kind, parts) in [
        ("Deployment", &["updatedReplicas", "readyReplicas", "availableReplicas"][..]),
        ("ReplicaSet", &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"][..]),
        ("StatefulSet", &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"][..]),
    ] {
        let mut all = vec!["Invalid status.replicas".to_owned()];
        all.extend(parts.iter().map(|part| format!("Invalid status.{part}")));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let base = with(set(json!({})), &[("/status", json!({"replicas": 1}))]);
        changed("apps", kind, "status", &base, &[("/status/replicas", json!(-1), &all)]);
    }
    let counts = ["updatedNumberScheduled", "numberAvailable", "numberUnavailable", "collisionCount"];
    for field in counts {
        let refused = format!("Invalid status.{field}");
        let row = ("/status", json!({field: -1}), &[refused.as_str()][..]);
        changed("apps", "DaemonSet", "status", &set(json!({})), &[row]);
    }
}

fn job(rest: Value) -> Value {
    let mut object = named(
        json!({"spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": template()}}),
    );
    object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    if let (Value::Object(map), Value::Object(rest)) = (&mut object["spec"], rest) {
        map.extend(rest);
    }
    object
}

#[test]
fn jobs() {
    let rule = |rule: Value| json!({"rules": [rule]});
    created(
        "batch",
        "Job",
        &job(json!({})),
        &[
            ("/spec/selector", json!(null), &["Required spec.selector"]),
            ("/spec/selector", json!({"matchLabels": {"a": "c"}}), &["Invalid spec.template.metadata.labels"]),
            ("/spec/completions", json!(-1), &["Invalid spec.completions"]),
            ("/spec/completionMode", json!("Odd"), &["NotSupported spec.completionMode"]),
            ("/spec/completionMode", json!("Indexed"), &[]),
            ("/spec/backoffLimitPerIndex", json!(1), &["Invalid spec.backoffLimitPerIndex"]),
            ("/spec/podReplacementPolicy", json!("Odd"), &["NotSupported spec.podReplacementPolicy"]),
            ("/spec/template/spec/restartPolicy", json!("Always"), &["Required spec.template.spec.restartPolicy"]),
            ("/spec/template/spec/restartPolicy", json!(null), &["Required spec.template.spec.restartPolicy"]),
            (
                "/spec/podFailurePolicy",
                rule(json!({"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [1]}})),
                &["Invalid spec.podFailurePolicy.rules[0].action"],
            ),
            (
                "/spec/podFailurePolicy",
                rule(json!({"action": "Odd", "onExitCodes": {"operator": "In", "values": [1]}})),
                &["NotSupported spec.podFailurePolicy.rules[0].action"],
            ),
            ("/spec/podFailurePolicy", rule(json!({"action": "Count"})), &["Invalid spec.podFailurePolicy.rules[0]"]),
            (
                "/spec/podFailurePolicy",
                rule(json!({"action": "Count", "onExitCodes": {"operator": "In", "values": [3, 0, 3]}})),
                &[
                    "Duplicate spec.podFailurePolicy.rules[0].onExitCodes.values[2]",
                    "Invalid spec.podFailurePolicy.rules[0].onExitCodes.values[1]",
                    "Invalid spec.podFailurePolicy.rules[0].onExitCodes.values",
                ],
            ),
            ("/spec/successPolicy", rule(json!({"succeededCount": 1})), &["Invalid spec.successPolicy"]),
            (
                "/spec/manualSelector",
                json!(false),
                &[
                    "Required spec.template.metadata.labels[batch.kubernetes.io/job-name]",
                    "Required spec.template.metadata.labels[job-name]",
                ],
            ),
        ],
    );
    created(
        "batch",
        "Job",
        &job(
            json!({"podFailurePolicy": rule(json!({"action": "Ignore", "onPodConditions": [{"type": "X", "status": "True"}]}))}),
        ),
        &[
            ("/spec/podReplacementPolicy", json!("Failed"), &[]),
            ("/spec/podReplacementPolicy", json!("TerminatingOrFailed"), &["NotSupported spec.podReplacementPolicy"]),
        ],
    );
    changed(
        "batch",
        "Job",
        "",
        &job(json!({"completions": 2})),
        &[
            ("/spec/parallelism", json!(3), &[]),
            ("/spec/suspend", json!(true), &[]),
            ("/spec/template/spec/hostPID", json!(false), &[]),
            ("/spec/template/spec/containers/0/args", json!([]), &[]),
            ("/spec/template/spec/hostPID", json!(true), &["Invalid spec.template"]),
            ("/spec/completions", json!(3), &["Invalid spec.completions"]),
            ("/spec/completionMode", json!("Indexed"), &["Invalid spec.completionMode"]),
            ("/spec/template/spec/containers/0/image", json!("y"), &["Invalid spec.template"]),
            ("/spec/template/spec/nodeSelector", json!({"a": "b"}), &["Invalid spec.template"]),
        ],
    );
    changed(
        "batch",
        "Job",
        "",
        &job(json!({"suspend": true})),
        &[
            ("/spec/template/spec/nodeSelector", json!({"a": "b"}), &[]),
            ("/spec/template/spec/affinity", json!({"nodeAffinity": {}}), &[]),
            ("/spec/template/spec/affinity", json!({"podAffinity": {}}), &["Invalid spec.template"]),
            ("/spec/template/spec/containers/0/image", json!("y"), &["Invalid spec.template"]),
        ],
    );
}

#[test]
fn jobs_of_many_indexes_and_of_others() {
    let rule = |conditions: usize| {
        let all = vec![json!({"type": "X", "status": "True"}); conditions];
        json!({"rules": [{"action": "Ignore", "onPodConditions": all}]})
    };
    let all = ["Required spec.maxFailedIndexes", "Invalid spec.parallelism"];
    created(
        "batch",
        "Job",
        &job(json!({"completionMode": "Indexed", "completions": 200_000, "parallelism": 20_000})),
        &[
            ("/spec/backoffLimitPerIndex", json!(null), &[]),
            ("/spec/backoffLimitPerIndex", json!(1), &all),
            ("/spec/completions", json!(2_147_483_647), &[]),
            ("/metadata/name", json!("n".repeat(57)), &["Invalid metadata.name"]),
            ("/metadata/name", json!("n".repeat(56)), &[]),
            ("/metadata/name", json!("a.b"), &["Invalid metadata.name"]),
            ("/spec/podFailurePolicy", rule(20), &[]),
            ("/spec/podFailurePolicy", rule(21), &["TooMany spec.podFailurePolicy.rules[0].onPodConditions"]),
            ("/spec/managedBy", json!("acme.io/foo"), &[]),
            ("/spec/managedBy", json!("acme.io/foo/bar~1"), &[]),
            ("/spec/managedBy", json!(""), &["Required spec.managedBy"]),
            ("/spec/managedBy", json!("foo"), &["Invalid spec.managedBy"]),
            ("/spec/managedBy", json!("/foo"), &["Invalid spec.managedBy"]),
            ("/spec/managedBy", json!("Acme.io/foo"), &["Invalid spec.managedBy"]),
            ("/spec/managedBy", json!("acme.io/foo bar"), &["Invalid spec.managedBy"]),
            ("/spec/managedBy", json!(format!("acme.io/{}", "f".repeat(56))), &["TooLong spec.managedBy"]),
        ],
    );
    created(
        "batch",
        "Job",
        &job(
            json!({"completionMode": "Indexed", "completions": 200_000, "parallelism": 10_000, "backoffLimitPerIndex": 1,
            "maxFailedIndexes": 1}),
        ),
        &[
            ("/spec/maxFailedIndexes", json!(10_000), &[]),
            ("/spec/maxFailedIndexes", json!(10_001), &["Invalid spec.maxFailedIndexes"]),
            (
                "/spec/maxFailedIndexes",
                json!(100_001),
                &["Invalid spec.maxFailedIndexes", "Invalid spec.maxFailedIndexes"],
            ),
        ],
    );
}

#[test]
fn what_is_said_of_a_job_holds_together() {
    let conditions = |all: &[&str]| all.iter().map(|kind| json!({"type": kind, "status": "True"})).collect::<Value>();
    let over = |all: &[&str], more: Value| {
        let mut status = json!({"conditions": conditions(all), "startTime": "2026-01-01T00:00:00Z"});
        if let (Value::Object(map), Value::Object(more)) = (&mut status, more) {
            map.extend(more);
        }
        status
    };
    let done = |more: Value| {
        let mut status = over(&["SuccessCriteriaMet", "Complete"], more);
        status["completionTime"] = json!("2026-01-01T00:00:01Z");
        status
    };
    let spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 2, "backoffLimitPerIndex": 1});
    let begun =
        with(job(spec), &[("/status", json!({"startTime": "2026-01-01T00:00:00Z", "failed": 1, "succeeded": 1}))]);
    let same = json!({"failed": 1, "succeeded": 1});
    let plus = |more: Value| {
        let mut all = same.clone();
        if let (Value::Object(map), Value::Object(more)) = (&mut all, more) {
            map.extend(more);
        }
        all
    };
    let bad: &[&str] = &["Invalid status.conditions"];
    changed(
        "batch",
        "Job",
        "status",
        &begun,
        &[
            ("/status", done(same.clone()), &[]),
            ("/status", over(&["FailureTarget", "Failed"], same.clone()), &[]),
            ("/status", over(&["Failed"], same.clone()), bad),
            ("/status", over(&["FailureTarget", "SuccessCriteriaMet"], same.clone()), bad),
            ("/status", over(&["SuccessCriteriaMet", "Complete"], same.clone()), &["Required status.completionTime"]),
            (
                "/status",
                over(&[], plus(json!({"completionTime": "2026-01-02T00:00:00Z"}))),
                &["Invalid status.completionTime"],
            ),
            (
                "/status",
                done(plus(json!({"startTime": "2026-01-01T00:00:09Z"}))),
                &["Required status.startTime", "Invalid status.completionTime"],
            ),
            (
                "/status",
                done(plus(json!({"startTime": null}))),
                &["Required status.startTime", "Required status.startTime"],
            ),
            ("/status", done(plus(json!({"active": 1}))), &["Invalid status.active"]),
            ("/status", done(plus(json!({"terminating": 1}))), &["Invalid status.terminating"]),
            (
                "/status",
                done(plus(json!({"uncountedTerminatedPods": {"failed": ["a"]}}))),
                &["Invalid status.uncountedTerminatedPods"],
            ),
            (
                "/status",
                over(&[], plus(json!({"uncountedTerminatedPods": {"failed": ["a"], "succeeded": ["a", ""]}}))),
                &[
                    "Invalid status.uncountedTerminatedPods.succeeded[1]",
                    "Duplicate status.uncountedTerminatedPods.failed[0]",
                ],
            ),
            ("/status", over(&[], plus(json!({"ready": 2, "active": 1}))), &["Invalid status.ready"]),
            ("/status", over(&[], json!({"failed": 0, "succeeded": 1})), &["Invalid status.failed"]),
            ("/status", over(&[], json!({"failed": 1})), &["Invalid status.succeeded"]),
            ("/status", over(&[], plus(json!({"completedIndexes": "0,2-3", "failedIndexes": "1,4"}))), &[]),
            (
                "/status",
                over(&[], plus(json!({"completedIndexes": "0,2-3", "failedIndexes": "1,3"}))),
                &["Invalid status.failedIndexes"],
            ),
            ("/status", over(&[], plus(json!({"completedIndexes": "5"}))), &["Invalid status.completedIndexes"]),
            ("/status", over(&[], plus(json!({"failedIndexes": "2,1"}))), &["Invalid status.failedIndexes"]),
        ],
    );
    // What was so before is let be, and what is over stays over.
    let odd = with(job(json!({})), &[("/status", over(&["Complete", "Failed"], json!({"active": 1})))]);
    changed(
        "batch",
        "Job",
        "status",
        &odd,
        &[
            ("/status/ready", json!(1), &[]),
            ("/status/conditions", conditions(&["Complete"]), bad),
            ("/status/failedIndexes", json!("1"), &["Invalid status.failedIndexes"]),
            ("/status/completedIndexes", json!("0"), &["Invalid status.completedIndexes"]),
        ],
    );
}

/// Indexes that are enough for success: a set that ascends, of indexes that the Job has.
#[test]
fn sets_of_indexes() {
    let indexed = job(json!({"completionMode": "Indexed", "completions": 5}));
    let set = |text: &str| json!({"rules": [{"succeededIndexes": text}]});
    let bad: &[&str] = &["Invalid spec.successPolicy.rules[0].succeededIndexes"];
    let mut rows: Vec<(&str, Value, &[&str])> = Vec::new();
    rows.extend(["0", "4", "0-4", "0,2,4", "0-1,3-4", ""].map(|text| ("/spec/successPolicy", set(text), &[][..])));
    rows.extend(
        ["5", "a", "0-5", "1,1", "2,1", "3-2", "2-2", "0-1-2", "-1", "1,", "0-2,2"]
            .map(|text| ("/spec/successPolicy", set(text), bad)),
    );
    let long = "0,".repeat(33 * 1024);
    rows.push(("/spec/successPolicy", set(&long), &["TooLong spec.successPolicy.rules[0].succeededIndexes"]));
    let counted = |count| json!({"rules": [{"succeededIndexes": "0,2-3", "succeededCount": count}]});
    rows.push(("/spec/successPolicy", counted(3), &[]));
    rows.push(("/spec/successPolicy", counted(4), &["Invalid spec.successPolicy.rules[0].succeededCount"]));
    created("batch", "Job", &indexed, &rows);
}

#[test]
fn cron_jobs() {
    let mut template = job(json!({}));
    let job_spec = json!({"template": template["spec"]["template"].take()});
    let base = named(json!({"spec": {"schedule": "*/5 1-3 * jan,feb mon", "jobTemplate": {"spec": job_spec}}}));
    let schedules =
        ["* * * *", "60 * * * *", "* 5-3 * * *", "*/0 * * * *", "a * * * *", "@never", "TZ=UTC * * * * *", "* * 0 * *"];
    let rows: Vec<(&str, Value, &[&str])> =
        schedules.iter().map(|text| ("/spec/schedule", json!(text), &["Invalid spec.schedule"][..])).collect();
    created("batch", "CronJob", &base, &rows);
    created(
        "batch",
        "CronJob",
        &base,
        &[
            ("/spec/schedule", json!("@hourly"), &[]),
            ("/spec/schedule", json!("@every 1h30m"), &[]),
            ("/spec/schedule", json!("@every 1.5h"), &[]),
            ("/spec/schedule", json!("@every 5 m"), &["Invalid spec.schedule"]),
            ("/spec/timeZone", json!("Mars/Olympus"), &["Invalid spec.timeZone"]),
            ("/spec/timeZone", json!("Local"), &["Invalid spec.timeZone"]),
            ("/spec/concurrencyPolicy", json!("Odd"), &["NotSupported spec.concurrencyPolicy"]),
            ("/spec/startingDeadlineSeconds", json!(-1), &["Invalid spec.startingDeadlineSeconds"]),
            ("/spec/jobTemplate/spec/selector", json!({}), &["Invalid spec.jobTemplate.spec.selector"]),
            (
                "/spec/jobTemplate/spec/manualSelector",
                json!(true),
                &["NotSupported spec.jobTemplate.spec.manualSelector"],
            ),
            ("/metadata/name", json!("x".repeat(53)), &["Invalid metadata.name"]),
        ],
    );
}

#[test]
fn autoscalers() {
    let base = named(
        json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "maxReplicas": 3}}),
    );
    let metric = |metric: Value| json!([metric]);
    created(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &base,
        &[
            ("/spec/maxReplicas", json!(0), &["Invalid spec.maxReplicas"]),
            ("/spec/minReplicas", json!(4), &["Invalid spec.maxReplicas"]),
            (
                "/spec/scaleTargetRef",
                json!({"name": "a/b"}),
                &["Required spec.scaleTargetRef.kind", "Invalid spec.scaleTargetRef.name"],
            ),
            ("/spec/metrics", metric(json!({"type": "Odd"})), &["NotSupported spec.metrics[0].type"]),
            ("/spec/metrics", metric(json!({"type": "Resource"})), &["Required spec.metrics[0].resource"]),
            (
                "/spec/metrics",
                metric(json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}})),
                &["Required spec.metrics[0].resource.target.averageUtilization"],
            ),
            (
                "/spec/metrics",
                metric(
                    json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "0"}}}),
                ),
                &["Invalid spec.metrics[0].pods.target.averageValue"],
            ),
            (
                "/spec/behavior",
                json!({"scaleUp": {"policies": [], "stabilizationWindowSeconds": 4000}}),
                &[
                    "Required spec.behavior.scaleUp.policies",
                    "Invalid spec.behavior.scaleUp.stabilizationWindowSeconds",
                ],
            ),
            (
                "/spec/behavior",
                json!({"scaleDown": {"policies": [{"type": "Odd", "value": 0, "periodSeconds": 1}]}}),
                &[
                    "NotSupported spec.behavior.scaleDown.policies[0].type",
                    "Invalid spec.behavior.scaleDown.policies[0].value",
                ],
            ),
            (
                "/spec/behavior",
                json!({"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}], "tolerance": "-100m"}}),
                &["Invalid spec.behavior.scaleUp.tolerance"],
            ),
        ],
    );
    let base = named(json!({
        "apiVersion": "autoscaling/v1",
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "maxReplicas": 3},
    }));
    created(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &base,
        &[
            (
                "/spec/targetCPUUtilizationPercentage",
                json!(0),
                &["Invalid spec.metrics[0].resource.target.averageUtilization"],
            ),
            (
                "/metadata/annotations",
                json!({"autoscaling.alpha.kubernetes.io/metrics": r#"[{"type": "Odd"}]"#}),
                &["NotSupported spec.metrics[0].type"],
            ),
        ],
    );
}
