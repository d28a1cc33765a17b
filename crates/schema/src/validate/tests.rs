//! Which objects are refused, and with which words.

use serde_json::json;

use super::*;
use crate::{crd::resource_info, default, table};

/// Merges changes into an object, at paths divided by dots or slashes.
fn with(mut object: Value, changes: &[(&str, Value)]) -> Value {
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        let parent = object.pointer_mut(parent).expect(pointer);
        match parent {
            Value::Object(map) if value.is_null() => drop(map.remove(key)),
            Value::Object(map) => drop(map.insert(key.to_owned(), value.clone())),
            Value::Array(list) => list[key.parse::<usize>().expect("an index")] = value.clone(),
            _ => panic!("{pointer}"),
        }
    }
    object
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Creates an object (defaulted first) and expects exactly these errors.
#[track_caller]
fn refuses(group: &str, kind: &str, mut object: Value, expected: &[&str]) {
    let info = table::find_kind(group, kind).expect(kind);
    let version = info.storage_version().expect("a version").name.clone();
    default::apply(info, &version, &mut object);
    assert_eq!(texts(&create(info, &version, &object)), expected, "{object}");
}

fn pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {
        "containers": [{"name": "a", "image": "x", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80, "name": "web"}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}], "resources": {"limits": {"cpu": "1", "devices.kubevirt.io/kvm": "1"}}}],
        "initContainers": [{"name": "i", "image": "x"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "k", "operator": "Exists"}]}})
}

#[test]
fn good_objects_pass() {
    refuses("", "Pod", pod(), &[]);
    refuses(
        "",
        "Pod",
        json!({"metadata": {"generateName": "p-", "namespace": "d"}, "spec": {"containers": [{"name": "a", "image": "x"}]}}),
        &["metadata.name: Required value: name or generateName is required"],
    );
    refuses(
        "",
        "Service",
        json!({"metadata": {"name": "s", "namespace": "d"}, "spec": {"ports": [{"port": 80}]}}),
        &[],
    );
    refuses(
        "",
        "Node",
        json!({"metadata": {"name": "n.example"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
        &[],
    );
    refuses("", "Namespace", json!({"metadata": {"name": "n"}}), &[]);
    refuses("", "ServiceAccount", json!({"metadata": {"name": "s", "namespace": "d"}}), &[]);
    refuses(
        "coordination.k8s.io",
        "Lease",
        json!({"metadata": {"name": "l", "namespace": "d"}, "spec": {"leaseDurationSeconds": 40}}),
        &[],
    );
    refuses(
        "rbac.authorization.k8s.io",
        "ClusterRole",
        json!({"metadata": {"name": "system:x"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}, {"nonResourceURLs": ["/x"], "verbs": ["get"]}]}),
        &[],
    );
    refuses("storage.k8s.io", "CSIDriver", json!({"metadata": {"name": "x.csi"}}), &[]);
    refuses(
        "discovery.k8s.io",
        "EndpointSlice",
        json!({"metadata": {"name": "e", "namespace": "d"}, "addressType": "IPv4"}),
        &[],
    );
    refuses("authorization.k8s.io", "SelfSubjectAccessReview", json!({"metadata": {}, "spec": {}}), &[]);
}

#[test]
fn metadata_is_checked() {
    let meta = |changes: &[(&str, Value)]| with(pod(), changes);
    const LABEL: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    refuses(
        "",
        "Pod",
        meta(&[("/metadata/name", json!("Bad_Name"))]),
        &[&format!("metadata.name: Invalid value: \"Bad_Name\": {LABEL}")],
    );
    refuses("", "Pod", meta(&[("/metadata/namespace", Value::Null)]), &["metadata.namespace: Required value"]);
    refuses(
        "",
        "Node",
        json!({"metadata": {"name": "n", "namespace": "d"}}),
        &["metadata.namespace: Forbidden: not allowed on this type"],
    );
    let odd_label = texts(&create(
        table::find_kind("", "Node").expect("nodes"),
        "v1",
        &json!({"metadata": {"name": "n", "labels": {"a b": "c", "d": "e f"}}}),
    ));
    assert_eq!(odd_label.len(), 2);
    assert!(odd_label.iter().all(|text| text.starts_with("metadata.labels: Invalid value: ")), "{odd_label:?}");
    refuses(
        "",
        "Pod",
        meta(&[("/metadata/annotations", json!({"a": "x".repeat(300_000)}))]),
        &["metadata.annotations: Too long: may not be more than 262144 bytes"],
    );
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": "1", "controller": true});
    let two = texts(&create(
        table::find_kind("", "Pod").expect("pods"),
        "v1",
        &meta(&[("/metadata/ownerReferences", json!([owner("a"), owner("b")]))]),
    ));
    assert!(
        two.iter().any(|t| t.ends_with("Controller set to true. Found \"true\" in references for Node/a and Node/b")),
        "{two:?}"
    );
}

/// Each controller too many is told with all of the owners: there may be as many as a request has room for.
#[test]
fn controllers_too_many_are_told_a_few_times() {
    let owner =
        |n: usize| json!({"apiVersion": "v1", "kind": "Node", "name": format!("n{n}"), "uid": "1", "controller": true});
    let owners: Value = (0..1000).map(owner).collect();
    let said = create(
        table::find_kind("", "Pod").expect("pods"),
        "v1",
        &with(pod(), &[("/metadata/ownerReferences", owners)]),
    );
    assert_eq!(said.iter().filter(|error| error.detail.starts_with("Only one reference")).count(), 8);
}

#[test]
fn errors_are_told_as_far_as_they_help() {
    let labels: Value = (0..5000).map(|n| (format!("a b{n}"), json!("c"))).collect::<serde_json::Map<_, _>>().into();
    let said = create(table::find_kind("", "Pod").expect("pods"), "v1", &with(pod(), &[("/metadata/labels", labels)]));
    assert_eq!(said.len(), 1000);
}

/// Each of these would take minutes, were one list looked through for each item of another.
#[test]
fn long_lists_are_looked_through_once() {
    let list = |item: &dyn Fn(usize) -> Value| -> Value { (0..20_000).map(item).collect() };
    let mut pod = pod();
    pod["metadata"]["finalizers"] = list(&|n| json!(format!("f{n}")));
    pod["spec"]["tolerations"] = list(&|n| json!({"key": format!("k{n}"), "operator": "Exists"}));
    pod["spec"]["schedulingGates"] = list(&|n| json!({"name": format!("a/g{n}")}));
    pod["spec"]["ephemeralContainers"] = list(&|n| json!({"name": format!("e{n}"), "image": "x"}));
    pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
        "topologyKey": "z", "labelSelector": {},
        "matchLabelKeys": list(&|n| json!(format!("m{n}"))), "mismatchLabelKeys": list(&|n| json!(format!("x{n}"))),
    }]);
    let mut changed = pod.clone();
    changed["spec"]["containers"][0]["image"] = "y".into();
    let info = table::find_kind("", "Pod").expect("pods");
    for subresource in ["", "ephemeralcontainers"] {
        drop(update(info, "v1", &changed, &pod, subresource));
    }
}

#[test]
fn finalizers_have_a_domain() {
    const UNQUALIFIED: &str = "name is neither a standard finalizer name nor is it fully qualified";
    let with = |finalizers: &[&str]| json!({"metadata": {"name": "n", "finalizers": finalizers}});
    let bare = format!("metadata.finalizers[1]: Invalid value: \"mine\": {UNQUALIFIED}");
    let both = "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set";
    let all = ["orphan", "mine", "kubernetes", "example.com/mine"];
    for (group, kind, finalizers, want) in [
        ("", "Node", &all[..], &[bare.as_str()][..]),
        ("storage.k8s.io", "CSINode", &all[..], &[bare.as_str()][..]),
        ("coordination.k8s.io", "Lease", &all[..], &[][..]),
        ("", "Node", &["orphan", "foregroundDeletion"][..], &[both][..]),
    ] {
        let info = table::find_kind(group, kind).expect(kind);
        let mut object = with(finalizers);
        if info.namespaced {
            object["metadata"]["namespace"] = "d".into();
        }
        let said: Vec<String> =
            texts(&create(info, "v1", &object)).into_iter().filter(|text| text.contains("finalizers")).collect();
        assert_eq!(said, want, "{kind}");
    }
    // What an older release let in does not bar a change of something else.
    let info = table::find_kind("", "Node").expect("nodes");
    let (old, more) = (with(&["mine"]), with(&["mine", "yours"]));
    assert_eq!(texts(&update(info, "v1", &old, &old, "")), Vec::<String>::new());
    assert_eq!(
        texts(&update(info, "v1", &more, &old, "")),
        [format!("metadata.finalizers[1]: Invalid value: \"yours\": {UNQUALIFIED}")]
    );
}

#[test]
fn pods_are_checked() {
    let table: Vec<(&str, Value, &[&str])> = vec![
        ("/spec/containers", json!([]), &["spec.containers: Required value"]),
        ("/spec/containers/0/name", Value::Null, &["spec.containers[0].name: Required value"]),
        ("/spec/containers/0/image", Value::Null, &["spec.containers[0].image: Required value"]),
        ("/spec/containers/0/name", json!("i"), &["spec.initContainers[0].name: Duplicate value: \"i\""]),
        (
            "/spec/restartPolicy",
            json!("Sometimes"),
            &[
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            "/spec/containers/0/imagePullPolicy",
            json!("Maybe"),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            "/spec/containers/0/ports/0/containerPort",
            json!(70_000),
            &[
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
        ),
        ("/spec/volumes", json!([]), &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""]),
        (
            "/spec/volumes",
            json!([{"name": "v", "emptyDir": {}}, {"name": "v", "hostPath": {"path": "/x"}}]),
            &["spec.volumes[1].name: Duplicate value: \"v\""],
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]),
            &[
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
                "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            ],
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "secret": {}}]),
            &[
                "spec.volumes[0].secret.secretName: Required value",
                "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            ],
        ),
        (
            "/spec/containers/0/env",
            json!([{"name": "a=b"}]),
            &[
                "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
            ],
        ),
        (
            "/spec/containers/0/resources",
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        (
            "/spec/containers/0/resources",
            json!({"requests": {"devices.kubevirt.io/kvm": "1"}}),
            &[
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            "/spec/containers/0/resources",
            json!({"limits": {"cpu": "-1"}}),
            &[
                "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
            ],
        ),
        (
            "/spec/containers/0/livenessProbe",
            json!({"successThreshold": 2, "exec": {"command": ["x"]}}),
            &["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"],
        ),
        (
            "/spec/containers/0/livenessProbe",
            json!({}),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            "/spec/initContainers/0/readinessProbe",
            json!({"exec": {"command": ["x"]}}),
            &[
                "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
        (
            "/spec/tolerations/0/value",
            json!("x"),
            &["spec.tolerations[0].operator: Invalid value: \"x\": value must be empty when `operator` is 'Exists'"],
        ),
        // It counts as 1, and is warned of.
        ("/spec/terminationGracePeriodSeconds", json!(-1), &[]),
    ];
    for (pointer, value, expected) in table {
        refuses("", "Pod", with(pod(), &[(pointer, value)]), expected);
    }
}

#[test]
fn pods_change_only_where_they_may() {
    let info = table::find_kind("", "Pod").expect("pods");
    let mut old = pod();
    default::apply(info, "v1", &mut old);
    let changed = |changes: &[(&str, Value)], subresource: &str| {
        texts(&update(info, "v1", &with(old.clone(), changes), &old, subresource))
    };
    assert_eq!(changed(&[], ""), Vec::<String>::new());
    assert_eq!(
        changed(&[("/spec/containers/0/image", json!("y")), ("/metadata/labels", json!({"a": "b"}))], ""),
        Vec::<String>::new()
    );
    assert_eq!(
        changed(
            &[("/spec/tolerations", json!([{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists"}]))],
            ""
        ),
        Vec::<String>::new()
    );
    assert_eq!(changed(&[("/spec/nodeName", json!("n"))], "binding"), Vec::<String>::new());
    assert_eq!(changed(&[("/spec/containers/0/resources/limits/cpu", json!("2"))], "resize"), Vec::<String>::new());
    let node = changed(&[("/spec/nodeName", json!("n"))], "");
    assert_eq!(node.len(), 1);
    assert!(node[0].starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,") && node[0].ends_with("changed: nodeName"), "{node:?}");
    assert_eq!(
        changed(&[("/spec/initContainers", json!([]))], ""),
        ["spec.initContainers: Forbidden: pod updates may not add or remove containers"]
    );
    assert_eq!(
        changed(&[("/metadata/name", json!("q"))], ""),
        ["metadata.name: Invalid value: \"q\": field is immutable"]
    );
    assert_eq!(
        changed(&[("/spec/tolerations", json!([]))], ""),
        ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"]
    );
}

#[test]
fn other_kinds_are_checked() {
    let named = |rest: Value| {
        let mut object = json!({"metadata": {"name": "x", "namespace": "d"}});
        if let (Value::Object(map), Value::Object(rest)) = (&mut object, rest) {
            map.extend(rest);
        }
        object
    };
    let global = |rest: Value| with(named(rest), &[("/metadata/namespace", Value::Null)]);
    refuses("", "Service", named(json!({"spec": {}})), &["spec.ports: Required value"]);
    refuses("", "Service", named(json!({"spec": {"clusterIP": "None"}})), &[]);
    refuses(
        "",
        "Service",
        named(json!({"spec": {"type": "Odd", "ports": [{"port": 0}, {"port": 1, "name": "a"}]}})),
        &[
            "spec.type: Unsupported value: \"Odd\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].name: Required value",
        ],
    );
    refuses(
        "",
        "ConfigMap",
        named(json!({"data": {"a": "x".repeat(1_100_000)}})),
        &["[]: Too long: may not be more than 1048576 bytes"],
    );
    refuses(
        "",
        "Secret",
        named(json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}})),
        &["data[tls.key]: Required value"],
    );
    refuses(
        "rbac.authorization.k8s.io",
        "Role",
        named(json!({"rules": [{"apiGroups": [""], "resources": ["x"]}]})),
        &["rules[0].verbs: Required value: verbs must contain at least one value"],
    );
    refuses(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        named(json!({"roleRef": {"kind": "Odd", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s"}]})),
        &[
            "roleRef.kind: Unsupported value: \"Odd\": supported values: \"Role\", \"ClusterRole\"",
            "subjects[0].namespace: Required value",
        ],
    );
    refuses(
        "",
        "PersistentVolumeClaim",
        named(json!({"spec": {}})),
        &[
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value",
        ],
    );
    refuses("storage.k8s.io", "StorageClass", global(json!({})), &["provisioner: Required value"]);
    refuses(
        "apps",
        "Deployment",
        named(
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "c"}}, "spec": {"containers": [{"name": "a", "image": "x"}]}}}}),
        ),
        &["spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`"],
    );
    refuses(
        "",
        "Event",
        named(json!({"involvedObject": {"namespace": "other"}})),
        &["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"],
    );
    refuses(
        "networking.k8s.io",
        "IngressClass",
        global(json!({"spec": {"parameters": {"name": "x"}}})),
        &["spec.controller: Required value", "spec.parameters.kind: Required value"],
    );
}

#[test]
fn custom_resources_are_checked_against_their_schema() {
    let info = resource_info(&crate::crd::tests::definition()).expect("a row");
    let object = |spec: Value| json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "x", "namespace": "d"}, "spec": spec});
    let table: Vec<(Value, &[&str])> = vec![
        (json!({"cronSpec": "* *", "replicas": 3, "mode": "a"}), &[]),
        (json!({}), &["spec.cronSpec: Required value"]),
        (
            json!({"cronSpec": "*"}),
            &["spec.cronSpec: Invalid value: \"*\": spec.cronSpec in body should match '^\\S+ \\S+$'"],
        ),
        (
            json!({"cronSpec": "* *", "replicas": 0}),
            &["spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1"],
        ),
        (
            json!({"cronSpec": "* *", "replicas": 11}),
            &["spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10"],
        ),
        (
            json!({"cronSpec": "* *", "replicas": "x"}),
            &[
                "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected int64",
            ],
        ),
        (
            json!({"cronSpec": 1}),
            &["spec.cronSpec: Invalid value: \"integer\": spec.cronSpec in body must be of type string: \"integer\""],
        ),
        (
            json!({"cronSpec": "* *", "mode": "c"}),
            &["spec.mode: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        ),
        (
            json!([]),
            &[
                "spec: Invalid value: \"array\": spec in body must be of type object: \"array\"",
                ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: [] is of the type []interface {}, expected map[string]interface{}",
            ],
        ),
    ];
    for (spec, expected) in table {
        let errors = create(&info, "v1", &object(spec.clone()));
        assert_eq!(texts(&errors), expected, "{spec}");
    }
    let errors = create(&info, "v1", &object(json!({"cronSpec": "* *", "replicas": "x"})));
    assert_eq!(errors[0].reason(), "FieldValueTypeInvalid");
}

#[test]
fn schemas_say_all_they_can() {
    let parse = |schema: Value| crate::Schema::parse(&schema).expect("a schema");
    let table: Vec<(Value, Value, &[&str])> = vec![
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}),
            json!({"l": ["a", "a"]}),
            &["l[1]: Duplicate value: \"a\""],
        ),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n", "p"], "items": {"type": "object", "properties": {"n": {"type": "string"}, "p": {"type": "string", "default": "TCP"}}}}}}),
            json!({"l": [{"n": "a"}, {"n": "a", "p": "TCP"}, {"n": "a", "p": "UDP"}]}),
            &["l[1]: Duplicate value: {\"n\":\"a\",\"p\":\"TCP\"}"],
        ),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 1, "items": {"type": "string"}}}}),
            json!({"l": ["a", "b"]}),
            &["l: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "object", "properties": {"t": {"type": "string", "maxLength": 2, "minLength": 1}}}),
            json!({"t": "abc"}),
            &["t: Too long: may not be more than 2 bytes"],
        ),
        (
            json!({"type": "object", "properties": {"t": {"type": "string", "minLength": 1}}}),
            json!({"t": ""}),
            &["t: Invalid value: \"\": t in body should be at least 1 chars long"],
        ),
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true}}}),
            json!({"p": true}),
            &["p: Invalid value: \"boolean\": p in body must be of type integer,string: \"boolean\""],
        ),
        (
            json!({"type": "object", "properties": {"p": {"x-kubernetes-int-or-string": true}}}),
            json!({"p": "25%"}),
            &[],
        ),
        (
            json!({"type": "object", "properties": {"n": {"type": "string", "nullable": true}, "m": {"type": "string"}}}),
            json!({"n": null, "m": null}),
            &["m: Invalid value: \"null\": m in body must be of type string: \"null\""],
        ),
        (
            json!({"type": "object", "properties": {"d": {"type": "string", "format": "date-time"}}}),
            json!({"d": "now"}),
            &["d: Invalid value: \"now\": d in body must be of type date-time: \"now\""],
        ),
        (
            json!({"type": "object", "properties": {"s": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}),
            json!({"s": {"a": 1, "b": 2}}),
            &[
                "s: Invalid value: {\"a\":1,\"b\":2}: \"s\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"x": 1, "y": "z"}),
            &["y: Invalid value: \"string\": y in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "object", "properties": {"n": {"type": "number", "multipleOf": 0.1, "maximum": 1, "exclusiveMaximum": true}}}),
            json!({"n": 0.3}),
            &[],
        ),
        (
            json!({"type": "object", "properties": {"n": {"type": "integer", "format": "int32"}}}),
            json!({"n": 3_000_000_000_u64}),
            &["n: Invalid value: 3000000000: n in body must be of type int32: \"3000000000\""],
        ),
    ];
    for (shape, value, expected) in table {
        assert_eq!(texts(&schema(&value, &parse(shape.clone()))), expected, "{shape}");
    }
}

#[test]
fn definitions_are_checked() {
    let good = crate::crd::tests::definition();
    refuses("apiextensions.k8s.io", "CustomResourceDefinition", good.clone(), &[]);
    let schema = "/spec/versions/1/schema/openAPIV3Schema";
    let at = |rest: &str| format!("{schema}{rest}");
    let table: Vec<(&str, Value, &[&str])> = vec![
        (
            "/metadata/name",
            json!("x.y"),
            &["metadata.name: Invalid value: \"x.y\": must be spec.names.plural+\".\"+spec.group"],
        ),
        (
            "/spec/versions/0/storage",
            json!(true),
            &[
                "spec.versions: Invalid value: [\"v1beta1\",\"v1\"]: must have exactly one version marked as storage version",
            ],
        ),
        (
            "/spec/scope",
            json!("Odd"),
            &["spec.scope: Unsupported value: \"Odd\": supported values: \"Cluster\", \"Namespaced\""],
        ),
        (
            "/spec/versions/1/selectableFields",
            json!([{"jsonPath": ".metadata.labels"}, {"jsonPath": ".spec"}, {"jsonPath": ".spec.no"}, {"jsonPath": ".spec.mode"}, {"jsonPath": ".spec.mode"}]),
            &[
                "spec.versions[1].selectableFields[0].jsonPath: Invalid value: \".metadata.labels\": must not point to fields in metadata",
                "spec.versions[1].selectableFields[1].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                "spec.versions[1].selectableFields[2].jsonPath: Invalid value: \".spec.no\": is an invalid path: does not refer to a valid field",
                "spec.versions[1].selectableFields[4].jsonPath: Duplicate value: \".spec.mode\"",
            ],
        ),
        (
            "/spec/versions/1/schema",
            Value::Null,
            &["spec.versions[1].schema.openAPIV3Schema: Required value: schemas are required"],
        ),
        (
            "/spec/versions/1/additionalPrinterColumns/0/type",
            json!("odd"),
            &[
                "spec.versions[1].additionalPrinterColumns[0].type: Invalid value: \"odd\": must be one of boolean,date,integer,number,string",
            ],
        ),
        ("/spec/versions/1/additionalPrinterColumns/0/jsonPath", json!(".status.conditions[-1:].type"), &[]),
        ("/spec/versions/1/additionalPrinterColumns/0/jsonPath", json!(".a[?(@.b==c)].d"), &[]),
        (
            "/spec/versions/1/additionalPrinterColumns/0/jsonPath",
            json!("a["),
            &[
                "spec.versions[1].additionalPrinterColumns[0].jsonPath: Invalid value: \"a[\": a bracket is not closed at byte 2 of \"a[\"",
            ],
        ),
        // A part of a resource is described by what it has, whatever else it may have; a whole one has nothing else.
        ("/spec/versions/1/schema/openAPIV3Schema/properties/spec/additionalProperties", json!(true), &[]),
        (
            "/spec/versions/1/schema/openAPIV3Schema/properties/status",
            json!({"type": "object", "additionalProperties": false}),
            &[],
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/additionalProperties",
            json!(true),
            &["spec.versions[0].schema.openAPIV3Schema.additionalProperties: Forbidden: must not be used at the root"],
        ),
        (
            "/spec/versions/1/schema/openAPIV3Schema/properties/spec/additionalProperties",
            json!(false),
            &[
                "spec.versions[1].schema.openAPIV3Schema.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
            ],
        ),
    ];
    for (pointer, value, expected) in table {
        refuses("apiextensions.k8s.io", "CustomResourceDefinition", with(good.clone(), &[(pointer, value)]), expected);
    }
    let structural: Vec<(String, Value, &str)> = vec![
        (
            at("/type"),
            json!("string"),
            "spec.versions[1].schema.openAPIV3Schema.type: Invalid value: \"string\": must be object at the root",
        ),
        (
            at("/properties/spec/properties/mode"),
            json!({}),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[mode].type: Required value: must not be empty for specified object fields",
        ),
        (
            at("/properties/spec/properties/mode"),
            json!({"type": "text"}),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[mode].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            at("/properties/spec/properties/mode"),
            json!({"type": "array", "items": {"allOf": [{"type": "int"}]}}),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[mode].items.allOf[0].type: Unsupported value: \"int\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            at("/properties/spec/properties/mode"),
            json!({"type": "array"}),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[mode].items: Required value: must be specified",
        ),
        (
            at("/properties/spec/additionalProperties"),
            json!({"type": "string"}),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            at("/properties/spec/properties/replicas/default"),
            json!("x"),
            "spec.versions[1].schema.openAPIV3Schema.properties[spec].properties[replicas].default: Invalid value: \"string\": <nil> must be of type integer: \"string\"",
        ),
        (
            at("/properties/metadata"),
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            "spec.versions[1].schema.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ),
    ];
    for (pointer, value, expected) in structural {
        let info = table::find_kind("apiextensions.k8s.io", "CustomResourceDefinition").expect("definitions");
        let found = texts(&create(info, "v1", &with(good.clone(), &[(&pointer, value)])));
        assert!(
            found.iter().any(
                |text| text == expected || text == &expected.replace("properties[metadata]", "properties.metadata")
            ),
            "{pointer}: {found:?}"
        );
    }
}

mod admission;
mod causes;
mod crd;
mod custom;
mod definitions;
mod devices;
mod events;
mod limits;
mod os;
mod pod_parts;
mod pods;
mod services;
mod statuses;
mod storage;
mod warnings;
mod workloads;
