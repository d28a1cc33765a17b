//! What built-in kinds and schemas are filled in with.

use serde_json::json;

use super::*;
use crate::table;

#[track_caller]
fn check(group: &str, version: &str, kind: &str, mut object: Value, expected: Value) {
    let info = table::find_kind(group, kind).expect(kind);
    apply(info, version, &mut object);
    assert_eq!(object, expected, "{kind}\ngot      {object}\nexpected {expected}");
    let mut again = object.clone();
    apply(info, version, &mut again);
    assert_eq!(again, object, "{kind} defaulted twice");
}

/// An image whose tag is what counts, for all its digest.
const DIGEST_TOO: &str = "x:latest@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn pods() {
    check(
        "",
        "v1",
        "Pod",
        json!({"spec": {
            "serviceAccountName": "me",
            "containers": [
                {"name": "a", "image": "busybox", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                 "ports": [{"containerPort": 80}], "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                 "readinessProbe": {"httpGet": {"port": 80}}},
                {"name": "b", "image": "reg:5000/x/y:1.2", "imagePullPolicy": "Never"},
                {"name": "c", "image": "reg:5000/x/y"},
                {"name": "d", "image": "x:latest@sha256:00"},
                {"name": "e", "image": DIGEST_TOO},
            ],
            "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "s"}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}, {"name": "h", "hostPath": {"path": "/x"}}],
        }}),
        json!({"spec": {
            "serviceAccountName": "me", "serviceAccount": "me",
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true,
            "containers": [
                {"name": "a", "image": "busybox", "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                 "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
                 "ports": [{"containerPort": 80, "protocol": "TCP"}], "env": [{"name": "X", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                 "readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}},
                {"name": "b", "image": "reg:5000/x/y:1.2", "imagePullPolicy": "Never", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {}},
                {"name": "c", "image": "reg:5000/x/y", "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {}},
                {"name": "d", "image": "x:latest@sha256:00", "imagePullPolicy": "IfNotPresent", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {}},
                {"name": "e", "image": DIGEST_TOO, "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "resources": {}},
            ],
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
                {"name": "p", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}]}}, {"name": "h", "hostPath": {"path": "/x", "type": ""}}],
        }}),
    );
}

#[test]
fn pods_ask_as_a_whole() {
    let check = |own: Value, asked: Value, expected: Value| {
        let containers = [json!({"name": "a", "image": "i", "resources": asked})];
        let mut pod = json!({"spec": {"resources": own, "containers": containers}});
        apply(table::find_kind("", "Pod").expect("pods"), "v1", &mut pod);
        assert_eq!(pod["spec"]["resources"], expected, "{own} {asked}");
    };
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let of = |limits: Value, requests: Value| json!({"limits": limits, "requests": requests});
    let whole = || json!({"cpu": "1", "memory": "1Gi"});
    check(json!({"limits": {"cpu": "1"}}), cpu("100m"), of(json!({"cpu": "1"}), json!({"cpu": "100m"})));
    check(json!({"limits": whole()}), cpu("100m"), of(whole(), json!({"cpu": "100m", "memory": "1Gi"})));
    check(json!({"limits": whole()}), json!({}), of(whole(), whole()));
    let given = of(json!({"cpu": "1"}), json!({"cpu": "300m"}));
    check(given.clone(), cpu("100m"), given);
    // Without limits of its own it says what it says.
    check(cpu("1"), json!({"requests": {"memory": "1Mi"}}), cpu("1"));
    check(json!({}), cpu("1"), json!({}));
    check(Value::Null, cpu("1"), Value::Null);
    let huge = json!({"hugepages-2Mi": "4Mi"});
    let both = json!({"cpu": "1", "hugepages-2Mi": "4Mi"});
    check(json!({"limits": {"cpu": "1"}}), json!({"limits": huge}), of(both.clone(), both));
}

/// Nothing is asked for or limited more finely than in thousandths.
#[test]
fn amounts_are_rounded_up() {
    let fine = || json!({"cpu": "500u", "memory": "1Gi"});
    let rounded = json!({"cpu": "1m", "memory": "1Gi"});
    let (claim, needs) = (json!({"resources": {"requests": fine()}}), json!({"limits": fine(), "requests": fine()}));
    let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}});
    let spec = json!({"containers": [{"name": "a", "image": "i", "resources": needs}], "overhead": fine(),
        "initContainers": [{"name": "i", "image": "i", "resources": needs}], "resources": needs, "volumes": [volume]});
    for (group, kind, mut object, pointers) in [
        (
            "",
            "Pod",
            json!({"spec": spec, "status": {"containerStatuses": [{"allocatedResources": fine(), "resources": needs}]}}),
            &[
                "/spec/overhead",
                "/spec/resources/requests",
                "/spec/containers/0/resources/limits",
                "/spec/initContainers/0/resources/requests",
                "/spec/volumes/0/ephemeral/volumeClaimTemplate/spec/resources/requests",
                "/status/containerStatuses/0/allocatedResources",
                "/status/containerStatuses/0/resources/limits",
            ][..],
        ),
        ("apps", "Deployment", json!({"spec": {"template": {"spec": spec}}}), &["/spec/template/spec/overhead"]),
        ("", "PersistentVolume", json!({"spec": {"capacity": fine()}}), &["/spec/capacity"]),
        (
            "",
            "PersistentVolumeClaim",
            json!({"spec": claim, "status": {"capacity": fine()}}),
            &["/spec/resources/requests", "/status/capacity"],
        ),
        (
            "apps",
            "StatefulSet",
            json!({"spec": {"volumeClaimTemplates": [{"spec": claim}]}}),
            &["/spec/volumeClaimTemplates/0/spec/resources/requests"],
        ),
        ("", "Node", json!({"status": {"capacity": fine()}}), &["/status/capacity", "/status/allocatable"]),
        ("", "LimitRange", json!({"spec": {"limits": [{"type": "Pod", "max": fine()}]}}), &["/spec/limits/0/max"]),
        ("", "ResourceQuota", json!({"spec": {"hard": fine()}}), &["/spec/hard"]),
        ("node.k8s.io", "RuntimeClass", json!({"overhead": {"podFixed": fine()}}), &["/overhead/podFixed"]),
    ] {
        apply(table::find_kind(group, kind).expect(kind), "v1", &mut object);
        for pointer in pointers {
            assert_eq!(object.pointer(pointer), Some(&rounded), "{kind} {pointer}");
        }
    }
}

#[test]
fn what_is_left_out_within() {
    let pod =
        json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]});
    let job = json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}});
    let status = "podFailurePolicy/rules/0/onPodConditions/0/status";
    for (group, kind, mut object, path, expected) in [
        // A port in the node's network is the node's; a template's becomes that with its pods.
        ("", "Pod", json!({"spec": pod}), "/spec/containers/0/ports/0/hostPort", json!(80)),
        (
            "apps",
            "Deployment",
            json!({"spec": {"template": {"spec": pod}}}),
            "/spec/template/spec/containers/0/ports/0/hostPort",
            Value::Null,
        ),
        // A template that is left out is an empty one, but where upstream knows that it is not there.
        ("apps", "Deployment", json!({}), "/spec/template/spec/restartPolicy", json!("Always")),
        ("batch", "CronJob", json!({}), "/spec/jobTemplate/spec/template/spec/restartPolicy", json!("Always")),
        ("", "ReplicationController", json!({}), "/spec/template", Value::Null),
        // Nothing is as good as absent in some places.
        (
            "",
            "Pod",
            json!({"spec": {"containers": [{"name": "c", "image": "i", "livenessProbe": {"periodSeconds": 0}}]}}),
            "/spec/containers/0/livenessProbe/periodSeconds",
            json!(10),
        ),
        (
            "",
            "Service",
            json!({"spec": {"sessionAffinity": "None", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}}),
            "/spec/sessionAffinityConfig",
            Value::Null,
        ),
        ("batch", "Job", json!({"spec": job}), format!("/spec/{status}").as_str(), json!("True")),
        (
            "batch",
            "CronJob",
            json!({"spec": {"jobTemplate": {"spec": job}}}),
            format!("/spec/jobTemplate/spec/{status}").as_str(),
            json!("True"),
        ),
        (
            "networking.k8s.io",
            "IngressClass",
            json!({"spec": {"parameters": {"kind": "K", "name": "n"}}}),
            "/spec/parameters/scope",
            json!("Cluster"),
        ),
    ] {
        apply(table::find_kind(group, kind).expect(kind), "v1", &mut object);
        assert_eq!(object.pointer(path).cloned().unwrap_or_default(), expected, "{kind} {object}");
    }
}

/// What is counted in a status is told even where it is nothing, once there is a status.
#[test]
fn counts_of_a_status() {
    let none = || json!({});
    for (group, version, kind, status, expected) in [
        ("apps", "v1", "Deployment", none(), none()),
        ("apps", "v1", "StatefulSet", json!({"readyReplicas": 1}), json!({"readyReplicas": 1, "replicas": 0})),
        ("apps", "v1", "ReplicaSet", json!({"replicas": 2}), json!({"replicas": 2})),
        ("", "v1", "ReplicationController", Value::Null, Value::Null),
        ("autoscaling", "v1", "HorizontalPodAutoscaler", none(), json!({"currentReplicas": 0, "desiredReplicas": 0})),
        ("autoscaling", "v2", "HorizontalPodAutoscaler", none(), json!({"desiredReplicas": 0})),
        ("storage.k8s.io", "v1", "VolumeAttachment", none(), json!({"attached": false})),
    ] {
        let mut object = json!({"status": status});
        apply(table::find_kind(group, kind).expect(kind), version, &mut object);
        assert_eq!(object["status"], expected, "{kind} {version}");
    }
}

/// What was one once and is many now is told both ways.
#[test]
fn pairs_of_one_and_many() {
    let pod = |one: Value, many: Value| json!({"status": {"podIP": one, "podIPs": many}});
    let ip = |text: &str| json!([{"ip": text}]);
    let both = json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]);
    let node = |one: Value, many: Value| json!({"spec": {"podCIDR": one, "podCIDRs": many}});
    let (range, none) = ("10.0.0.0/24", Value::Null);
    for (kind, mut object, expected) in [
        ("Pod", pod(json!("10.0.0.1"), none.clone()), pod(json!("10.0.0.1"), ip("10.0.0.1"))),
        ("Pod", pod(json!("10.0.0.1"), json!([])), pod(json!("10.0.0.1"), ip("10.0.0.1"))),
        ("Pod", pod(none.clone(), both.clone()), pod(json!("10.0.0.1"), both.clone())),
        ("Pod", pod(json!("10.0.0.1"), both.clone()), pod(json!("10.0.0.1"), both.clone())),
        // The one counts.
        ("Pod", pod(json!("10.0.0.2"), both), pod(json!("10.0.0.2"), ip("10.0.0.2"))),
        ("Pod", pod(json!(""), none.clone()), pod(json!(""), none.clone())),
        ("Node", node(json!(range), none.clone()), node(json!(range), json!([range]))),
        ("Node", node(none.clone(), json!([range])), node(json!(range), json!([range]))),
        ("Node", node(json!("10.1.0.0/24"), json!([range])), node(json!("10.1.0.0/24"), json!(["10.1.0.0/24"]))),
    ] {
        let info = table::find_kind("", kind).expect(kind);
        apply(info, "v1", &mut object);
        let part = if kind == "Pod" { "status" } else { "spec" };
        assert_eq!(object[part], expected[part], "{kind}");
    }
}

#[test]
fn autoscalers() {
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]);
    let autoscaler = |version, spec: Value, expected: Value| {
        check("autoscaling", version, "HorizontalPodAutoscaler", json!({"spec": spec}), json!({"spec": expected}));
    };
    autoscaler("v1", json!({}), json!({"minReplicas": 1, "targetCPUUtilizationPercentage": 80}));
    // Who goes by other metrics may want nothing of the CPU.
    let metadata = json!({"annotations": {"autoscaling.alpha.kubernetes.io/metrics": "[]"}});
    check(
        "autoscaling",
        "v1",
        "HorizontalPodAutoscaler",
        json!({"metadata": metadata, "spec": {}}),
        json!({"metadata": metadata, "spec": {"minReplicas": 1}}),
    );
    autoscaler("v2", json!({}), json!({"minReplicas": 1, "metrics": cpu}));
    autoscaler(
        "v2",
        json!({"metrics": cpu, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5}}}),
        json!({"minReplicas": 1, "metrics": cpu, "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [pods, percent]},
            "scaleDown": {"stabilizationWindowSeconds": 5, "selectPolicy": "Max", "policies": [percent]}}}),
    );
}

#[test]
fn other_kinds() {
    check(
        "",
        "v1",
        "Service",
        json!({"spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "x"}]}}),
        json!({"spec": {"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}, {"port": 81, "protocol": "TCP", "targetPort": "x"}]}}),
    );
    check(
        "",
        "v1",
        "Secret",
        json!({"stringData": {"a": "x", "b": "xy", "c": "xyz", "d": ""}, "data": {"a": "b2xk"}}),
        json!({"type": "Opaque", "data": {"a": "eA==", "b": "eHk=", "c": "eHl6", "d": ""}}),
    );
    check(
        "",
        "v1",
        "Namespace",
        json!({"metadata": {"name": "n"}}),
        json!({"metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}}}),
    );
    check(
        "apps",
        "v1",
        "Deployment",
        json!({"spec": {"template": {"spec": {"containers": []}}}}),
        json!({"spec": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "template": {"spec": {"containers": [], "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30}}}}),
    );
    let retention = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
    for (given, expected) in [
        (Value::Null, json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})),
        (json!({"type": "RollingUpdate"}), json!({"type": "RollingUpdate"})),
        (
            json!({"type": "RollingUpdate", "rollingUpdate": {}}),
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}),
        ),
        (json!({"type": "OnDelete"}), json!({"type": "OnDelete"})),
    ] {
        let spec = json!({"replicas": 1, "revisionHistoryLimit": 10, "podManagementPolicy": "OrderedReady",
            "updateStrategy": expected, "persistentVolumeClaimRetentionPolicy": retention,
            "template": {"spec": {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30}}});
        check("apps", "v1", "StatefulSet", json!({"spec": {"updateStrategy": given}}), json!({"spec": spec}));
    }
    check(
        "rbac.authorization.k8s.io",
        "v1",
        "RoleBinding",
        json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
        json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
    );
    check(
        "storage.k8s.io",
        "v1",
        "StorageClass",
        json!({}),
        json!({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
    );
    check(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        json!({"spec": {"names": {"plural": "tabs", "kind": "Tab"}}}),
        json!({"spec": {"names": {"plural": "tabs", "kind": "Tab", "singular": "tab", "listKind": "TabList"}, "conversion": {"strategy": "None"}}}),
    );
}

#[test]
fn schemas() {
    let schema = Schema::parse(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "default": {}, "properties": {
            "replicas": {"type": "integer", "default": 3},
            "mode": {"type": "string", "nullable": true, "default": "x"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"on": {"type": "boolean", "default": true}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}},
        }},
    }}))
    .expect("a schema");
    let table = [
        (json!({}), json!({"spec": {"replicas": 3, "mode": "x"}})),
        (json!({"spec": {"replicas": null, "mode": null}}), json!({"spec": {"replicas": 3, "mode": null}})),
        (
            json!({"spec": {"replicas": 0, "mode": "", "list": [{}, {"on": false}], "map": {"a": {}}}}),
            json!({"spec": {"replicas": 0, "mode": "", "list": [{"on": true}, {"on": false}], "map": {"a": {"n": 1}}}}),
        ),
    ];
    for (mut value, expected) in table {
        by_schema(&mut value, &schema);
        assert_eq!(value, expected);
    }
}
