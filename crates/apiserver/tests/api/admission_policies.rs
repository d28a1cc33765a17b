//! Admission policies: what they refuse, warn of and change.

use serde_json::{Value, json};

use crate::harness::Cluster;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn constraints() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]})
}

/// A policy with a binding.
fn install(cluster: &Cluster, mut spec: Value, binding: Value) {
    spec["matchConstraints"] = constraints();
    cluster
        .post(&format!("{GROUP}/validatingadmissionpolicies"), &json!({"metadata": {"name": "p"}, "spec": spec}))
        .expect(201);
    let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    for (key, value) in binding.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    cluster
        .post(&format!("{GROUP}/validatingadmissionpolicybindings"), &json!({"metadata": {"name": "b"}, "spec": spec}))
        .expect(201);
}

fn config_map(data: &Value) -> Value {
    json!({"metadata": {"generateName": "c", "labels": {"team": "a"}}, "data": data})
}

/// What a policy with this spec says of a ConfigMap with this data.
#[track_caller]
fn check(spec: Value, binding: Value, data: Value, expected: Option<(u16, &str)>) {
    let cluster = Cluster::new();
    install(&cluster, spec.clone(), binding);
    let reply = cluster.post(CONFIG_MAPS, &config_map(&data));
    let metrics = cluster.get("/metrics").expect(200);
    let denied = "apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\"";
    let is_told = metrics.as_str().is_some_and(|text| text.lines().any(|line| line.starts_with(denied)));
    assert_eq!(is_told, expected.is_some(), "{metrics}");
    match expected {
        None => assert_eq!(reply.code, 201, "{spec}: {}", reply.json),
        Some((code, message)) => {
            let found = reply.json["message"].as_str().unwrap_or_default();
            assert!(reply.code == code && found.contains(message), "{spec}: {} {found}", reply.code);
        }
    }
}

#[test]
fn validations() {
    let need_key = json!({"validations": [{"expression": "has(object.data) && 'key' in object.data"}]});
    check(need_key.clone(), json!({}), json!({"key": "1"}), None);
    check(
        need_key,
        json!({}),
        json!({"other": "1"}),
        Some((
            422,
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: has(object.data)",
        )),
    );
    let with_words = json!({
        "variables": [{"name": "size", "expression": "size(object.data)"}, {"name": "twice", "expression": "variables.size * 2"}],
        "validations": [{"expression": "variables.twice < 4", "messageExpression": "'twice is ' + string(variables.twice)", "reason": "Forbidden"}],
    });
    check(with_words.clone(), json!({}), json!({"a": "1"}), None);
    check(with_words, json!({}), json!({"a": "1", "b": "2"}), Some((403, "denied request: twice is 4")));
    let failing = json!({"validations": [{"expression": "object.spec.replicas < 3"}]});
    check(failing.clone(), json!({}), json!({}), Some((422, "resulted in error: no such key: spec")));
    let mut lenient = failing;
    lenient["failurePolicy"] = "Ignore".into();
    check(lenient, json!({}), json!({}), None);
    let not_concerned = json!({
        "matchConditions": [{"name": "mine", "expression": "object.metadata.labels.team == 'b'"}],
        "validations": [{"expression": "false"}],
    });
    check(not_concerned, json!({}), json!({}), None);
    let elsewhere = json!({"matchResources": {"objectSelector": {"matchLabels": {"team": "b"}}}});
    check(json!({"validations": [{"expression": "false"}]}), elsewhere, json!({}), None);
    let by_right = json!({"validations": [{"expression": "authorizer.requestResource.check('create').allowed() && namespaceObject.metadata.name == 'default'"}]});
    check(by_right, json!({}), json!({}), None);
}

#[test]
fn warnings_do_not_refuse() {
    let cluster = Cluster::new();
    install(
        &cluster,
        json!({"validations": [{"expression": "false", "message": "mind"}]}),
        json!({"validationActions": ["Warn", "Audit"]}),
    );
    let reply = cluster.post(CONFIG_MAPS, &config_map(&json!({})));
    assert_eq!(reply.code, 201);
    let warning = reply.headers["warning"].to_str().expect("text");
    assert!(
        warning.contains("Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': mind"),
        "{warning}"
    );
}

/// What cannot be evaluated is as good as what does not hold: the binding says what becomes of it, and the rest is asked.
#[test]
fn faults_of_expressions_are_what_the_binding_makes_of_them() {
    let faulty = json!({"validations": [{"expression": "object.spec.x"}, {"expression": "false", "message": "mind"}]});
    for (actions, code, warnings) in [(json!(["Warn"]), 201, 2), (json!(["Audit"]), 201, 0), (json!(["Deny"]), 422, 0)]
    {
        let cluster = Cluster::new();
        install(&cluster, faulty.clone(), json!({"validationActions": actions}));
        let reply = cluster.post(CONFIG_MAPS, &config_map(&json!({})));
        let told: Vec<_> = reply.headers.get_all("warning").iter().collect();
        assert_eq!((reply.code, told.len()), (code, warnings), "{actions}: {told:?}");
    }
    let condition = json!({
        "matchConditions": [{"name": "odd", "expression": "object.spec.x"}], "validations": [{"expression": "false"}],
    });
    let cluster = Cluster::new();
    install(&cluster, condition, json!({"validationActions": ["Audit"]}));
    cluster.post(CONFIG_MAPS, &config_map(&json!({}))).expect(201);
}

/// Who could make an annotation fail would be past the validations else.
#[test]
fn faults_of_annotations_leave_validations_in_force() {
    for (holds, failure_policy, action, code, text) in [
        ("false", "Ignore", "Deny", 422, "denied request: mind"),
        ("true", "Ignore", "Deny", 201, ""),
        ("false", "Fail", "Deny", 422, "denied request: mind"),
        ("true", "Fail", "Deny", 422, "audit annotation 'why' resulted in error"),
        ("false", "Fail", "Audit", 422, "audit annotation 'why' resulted in error"),
        ("false", "Ignore", "Audit", 201, ""),
    ] {
        let cluster = Cluster::new();
        let spec = json!({
            "failurePolicy": failure_policy,
            "validations": [{"expression": holds, "message": "mind"}],
            "auditAnnotations": [{"key": "why", "valueExpression": "object.data.why"}],
        });
        install(&cluster, spec, json!({"validationActions": [action]}));
        let reply = cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1"})));
        let found = reply.json["message"].as_str().unwrap_or_default();
        assert_eq!(reply.code, code, "{holds} {failure_policy} {action}: {found}");
        assert!(found.contains(text), "{holds} {failure_policy} {action}: {found}");
    }
}

#[test]
fn parameters() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-the-limits", "expression": "object.metadata.?name.orValue('') != 'limits'"}],
        "validations": [{"expression": "size(object.data) <= int(params.data.max)"}],
    });
    let binding = |action: &str| json!({"paramRef": {"name": "limits", "namespace": "default", "parameterNotFoundAction": action}});
    check(spec.clone(), binding("Deny"), json!({}), Some((422, "no params found for policy binding")));
    check(spec.clone(), binding("Allow"), json!({}), None);
    let cluster = Cluster::new();
    cluster
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "limits", "labels": {"x": "y"}}, "data": {"max": "1"}}))
        .expect(201);
    install(
        &cluster,
        spec,
        json!({"paramRef": {"selector": {"matchLabels": {"x": "y"}}, "parameterNotFoundAction": "Deny"}}),
    );
    cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1"}))).expect(201);
    cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1", "b": "2"}))).refused(422, "Invalid", "failed expression");
}

#[test]
fn policies_that_cannot_be() {
    let cluster = Cluster::new();
    let path = format!("{GROUP}/validatingadmissionpolicies");
    for (change, field) in [
        (json!({"validations": [{"expression": "object.x +"}]}), "spec.validations[0].expression"),
        (json!({"validations": [{"expression": "1"}]}), "spec.validations[0].expression"),
        (json!({"validations": [{"expression": "params.x"}]}), "spec.validations[0].expression"),
        (json!({"validations": [{"expression": "variables.later"}]}), "spec.validations[0].expression"),
        (
            json!({"variables": [{"name": "a", "expression": "variables.a"}], "validations": [{"expression": "true"}]}),
            "spec.variables[0].expression",
        ),
        (json!({}), "spec.validations"),
    ] {
        let mut spec = change.clone();
        spec["matchConstraints"] = constraints();
        let refused = cluster.post(&path, &json!({"metadata": {"name": "p"}, "spec": spec})).expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], field, "{change}: {refused}");
    }
}

#[test]
fn mutating_policies() {
    for (mutation, expected) in [
        (
            json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'add', path: '/data/made', value: object.metadata.labels.team}]"}}),
            json!({"a": "1", "made": "a"}),
        ),
        (
            json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{data: {'made': 'so'}}"}}),
            json!({"a": "1", "made": "so"}),
        ),
    ] {
        let cluster = Cluster::new();
        let spec = json!({"matchConstraints": constraints(), "reinvocationPolicy": "Never", "mutations": [mutation]});
        cluster
            .post(&format!("{GROUP}/mutatingadmissionpolicies"), &json!({"metadata": {"name": "m"}, "spec": spec}))
            .expect(201);
        let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "m"}});
        cluster.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).expect(201);
        let made = cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1"}))).expect(201);
        assert_eq!(made["data"], expected, "{mutation}");
    }
}

/// What is merged into an object has the fields of its kind.
#[test]
fn mutating_policies_that_make_something_else() {
    let cluster = Cluster::new();
    let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "Object{nope: 1}"}});
    let spec = json!({"matchConstraints": constraints(), "reinvocationPolicy": "Never", "mutations": [mutation]});
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    cluster.post(&policies, &json!({"metadata": {"name": "m"}, "spec": spec})).expect(201);
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "m"}});
    cluster.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).expect(201);
    let reply = cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1"})));
    let found = reply.json["message"].as_str().unwrap_or_default();
    assert!(reply.code >= 400 && found.contains(".nope: field not declared in schema"), "{} {found}", reply.code);
    cluster.merge(&format!("{policies}/m"), &json!({"spec": {"failurePolicy": "Ignore"}})).expect(200);
    cluster.post(CONFIG_MAPS, &config_map(&json!({"a": "1"}))).expect(201);
}

/// What is said in pieces and patches is merged by item, is named after its place, and takes nothing else away.
#[test]
fn mutating_policies_write_pieces_and_patches() {
    let check = |kind: &str, expression: &str, want: Result<(&str, Value), &str>| {
        let cluster = Cluster::new();
        let field = if kind == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
        let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": kind, field: {"expression": expression}}]});
        let policy = json!({"metadata": {"name": "m"}, "spec": spec});
        cluster.post(&format!("{GROUP}/mutatingadmissionpolicies"), &policy).expect(201);
        let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "m"}});
        cluster.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).expect(201);
        let reply = cluster.post("/api/v1/namespaces/default/pods", &crate::harness::pod("x"));
        match want {
            Ok((place, value)) => {
                let made = reply.expect(201);
                assert_eq!(made.pointer(place).unwrap_or(&Value::Null), &value, "{expression}: {made}");
                assert_eq!(made["spec"]["containers"].as_array().map(Vec::len), Some(1), "{made}");
                assert!(made["spec"]["containers"][0]["image"].is_string(), "{made}");
            }
            Err(why) => {
                let told = reply.json["message"].as_str().unwrap_or_default();
                assert!(reply.code >= 400 && told.contains(why), "{expression}: {} {told}", reply.code);
            }
        }
    };
    let piece = |expression: &str, want: Result<(&str, Value), &str>| check("ApplyConfiguration", expression, want);
    let patch = |expression: &str, want: Result<(&str, Value), &str>| check("JSONPatch", expression, want);
    piece(
        "Object{spec: Object.spec{containers: [Object.spec.containers{name: object.spec.containers[0].name, workingDir: '/w'}]}}",
        Ok(("/spec/containers/0/workingDir", json!("/w"))),
    );
    piece("Object{metadata: Object.metadata{labels: {'a': 'b'}}}", Ok(("/metadata/labels/a", json!("b"))));
    piece(
        "Object{spec: Object.spec{nodeSelector: {'a': 'b'}}}",
        Err("may not mutate atomic arrays, maps or structs: .spec.nodeSelector"),
    );
    piece(
        "Object.metadata{labels: {'a': 'b'}}",
        Err("type mismatch: unexpected type name \"Object.metadata\", expected \"Object\""),
    );
    piece(
        "Object{spec: Object.status{hostname: 'h'}}",
        Err("type mismatch: unexpected type name \"Object.status\", expected \"Object.spec\""),
    );
    let hostname = "JSONPatch{op: 'add', path: '/spec/hostname', value: 'h'}";
    let test = |name: &str| format!("[JSONPatch{{op: 'test', path: '/metadata/name', value: '{name}'}}, {hostname}]");
    patch(&test("x"), Ok(("/spec/hostname", json!("h"))));
    patch(&test("y"), Ok(("/spec/hostname", Value::Null)));
    patch("[JSONPatch{op: 'test', path: '/spec/hostname', value: 'h'}]", Ok(("/spec/hostname", Value::Null)));
    patch("[JSONPatch{op: 'test', path: '/none/a', value: 'h'}]", Err("JSONPath: "));
    patch(
        "[JSONPatch{op: 'add', path: '/metadata/labels', value: Object.metadata.labels{a: 'b'}}]",
        Ok(("/metadata/labels/a", json!("b"))),
    );
    patch("[JSONPatch{op: 'remove', path: '/spec/hostname'}]", Err("JSONPath: "));
    patch("[JSONPatch{op: 'add', path: '/spec/hostname', value: 'h', more: 1}]", Err("JSONPatchType field: more"));
    patch("[JSONPatch{op: 1, path: '/spec/hostname'}]", Err("JSONPatchType 'op' field"));
}

/// A pod that is given a class of runtimes, or another account, is looked at once more, with what is found for it then.
#[test]
fn policies_may_name_what_nobody_had_asked_for() {
    let cluster = Cluster::new();
    let class = json!({"metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "250m"}}});
    cluster.post("/apis/node.k8s.io/v1/runtimeclasses", &class).expect(201);
    let account = json!({"metadata": {"name": "robot"}, "imagePullSecrets": [{"name": "s"}]});
    cluster.post("/api/v1/namespaces/default/serviceaccounts", &account).expect(201);
    let expression = "[JSONPatch{op: 'add', path: '/spec/runtimeClassName', value: 'kata'}, \
        JSONPatch{op: 'add', path: '/spec/serviceAccountName', value: 'robot'}]";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    });
    cluster
        .post(&format!("{GROUP}/mutatingadmissionpolicies"), &json!({"metadata": {"name": "m"}, "spec": spec}))
        .expect(201);
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "m"}});
    cluster.post(&format!("{GROUP}/mutatingadmissionpolicybindings"), &binding).expect(201);
    let made = cluster.post("/api/v1/namespaces/default/pods", &crate::harness::pod("x")).expect(201);
    assert_eq!(
        ["overhead", "serviceAccount", "imagePullSecrets"].map(|field| made["spec"][field].clone()),
        [json!({"cpu": "250m"}), json!("robot"), json!([{"name": "s"}])]
    );
}

#[test]
fn connections_can_be_refused() {
    let cluster = Cluster::new();
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec", "*/proxy"]}]},
        "validations": [
            {"expression": "!has(object.command) || !('sh' in object.command)", "message": "no shells", "reason": "Forbidden"},
            {"expression": "!has(object.path) || !object.path.startsWith('/admin')", "messageExpression": "'not with ' + object.kind", "reason": "Forbidden"},
        ],
    });
    cluster
        .post(&format!("{GROUP}/validatingadmissionpolicies"), &json!({"metadata": {"name": "p"}, "spec": spec}))
        .expect(201);
    let binding = json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    cluster.post(&format!("{GROUP}/validatingadmissionpolicybindings"), &binding).expect(201);
    let node =
        json!({"metadata": {"name": "n"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    cluster.post("/api/v1/nodes", &node).expect(201);
    let mut pod = crate::harness::pod("x");
    pod["spec"]["nodeName"] = "n".into();
    cluster.post("/api/v1/namespaces/default/pods", &pod).expect(201);
    let exec =
        |command: &str| cluster.get(&format!("/api/v1/namespaces/default/pods/x/exec?command={command}&stdout=true"));
    exec("sh").refused(403, "Forbidden", "no shells");
    assert_eq!(exec("ls").code, 200);
    for (place, kind) in [
        ("/api/v1/nodes/n", "NodeProxyOptions"),
        ("/api/v1/namespaces/default/pods/x:80", "PodProxyOptions"),
        ("/api/v1/namespaces/default/services/https:x:web", "ServiceProxyOptions"),
    ] {
        let refused = format!("not with {kind}");
        cluster.get(&format!("{place}/proxy/admin/x")).refused(403, "Forbidden", &refused);
        assert_ne!(cluster.get(&format!("{place}/proxy/other")).code, 403, "{place}");
    }
}
