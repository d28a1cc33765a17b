//! What bodies are taken and refused with which words.

use serde_json::json;

use super::*;
use crate::Schema;

fn schema(name: &str) -> &'static Schema {
    crate::builtin::schema(name).expect(name)
}

#[test]
fn takes_json_and_yaml_alike() {
    let json =
        br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"n":1,"f":1.5,"b":true,"l":["a",null]}}"#;
    let yaml = b"apiVersion: v1\nkind: Pod\nmetadata:\n  name: x\nspec: {n: 1, f: 1.5, b: true, l: [a, ~]}\n";
    let a = parse(json, Format::Json, Limits::default()).expect("json");
    let b = parse(yaml, Format::Yaml, Limits::default()).expect("yaml");
    assert_eq!(a, b);
    assert!(a.findings.is_empty());
    let octal = parse(b"mode: 0644\ntext: \"0644\"\n1: x\nn: yes\n", Format::Yaml, Limits::default()).expect("yaml");
    assert_eq!(octal.value, json!({"mode": 420, "text": "0644", "1": "x", "n": "yes"}));
}

#[test]
fn the_first_document_counts() {
    for (body, want) in [
        ("---\nkind: A\n---\nkind: B\n", Some(json!({"kind": "A"}))),
        ("kind: A\n---\n", Some(json!({"kind": "A"}))),
        ("kind: A\n...\n---\n- x\n", Some(json!({"kind": "A"}))),
        ("- x\n---\nkind: A\n", None),
    ] {
        let parsed = parse(body.as_bytes(), Format::Yaml, Limits::default()).ok();
        assert_eq!(parsed.map(|parsed| parsed.value), want, "{body:?}");
    }
    let twice = parse(b"a: 1\na: 2\n---\nb: 1\nb: 2\n", Format::Yaml, Limits::default()).expect("yaml").findings;
    let texts: Vec<_> = twice.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["line 2: key \"a\" already set in map"]);
}

#[test]
fn names_duplicate_fields() {
    let json = br#"{"spec":{"a":1,"b":[{"c":1,"c":2,"c":3}],"a":2}}"#;
    let yaml = b"spec:\n  a: 1\n  b: [{c: 1, c: 2, c: 3}]\n  a: 2\n";
    let (path, line) = ("duplicate field \"spec.b[0].c\"", "line 3: key \"c\" already set in map");
    for (bytes, format, first) in [(&json[..], Format::Json, path), (&yaml[..], Format::Yaml, line)] {
        let parsed = parse(bytes, format, Limits::default()).expect("a body");
        let texts: Vec<_> = parsed.findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts, [first, "duplicate field \"spec.a\""], "{format:?}");
        assert_eq!(parsed.value, json!({"spec": {"a": 2, "b": [{"c": 3}]}}));
    }
}

#[test]
fn operations_of_a_json_patch_have_four_fields() {
    for (body, want) in [
        (r#"[{"op":"copy","from":"/a","path":"/b"},{"op":"add","path":"/c","value":{"foo":1}}]"#, vec![]),
        (
            r#"[{"op":"add","foo":1,"path":"/a","value":1},{"Op":"x","op":"remove","op":"test","path":"/a"}]"#,
            vec!["unknown field \"[0].foo\"", "unknown field \"[1].Op\"", "duplicate field \"[1].op\""],
        ),
        (r#"[7,{"op":"add","path":"/a","value":{"b":1,"b":2}}]"#, vec!["duplicate field \"[1].value.b\""]),
        (r#"{"foo":1}"#, vec![]),
    ] {
        let findings = operations(body.as_bytes(), Limits::default()).expect(body).findings;
        let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(texts, want, "{body}");
    }
    let many = format!("[{}]", vec![r#"{"foo":1}"#; 1000].join(","));
    assert_eq!(operations(many.as_bytes(), Limits::default()).expect("a list").findings.len(), json::MAX_FINDINGS);
    assert!(operations(b"[{", Limits::default()).is_err());
}

#[test]
fn findings_come_in_the_order_of_the_body() {
    let body = br#"{"spec":{"z":1,"n":1,"n":2,"l":[{"a":1,"a":2}],"b":1,"n":3}}"#;
    let unknown = |path: &str| Finding::Unknown(path.to_owned());
    let twice = |path: &str| Finding::Duplicate(path.to_owned());
    let findings = vec![
        twice("spec.n"),
        twice("spec.l[0].a"),
        unknown("elsewhere"),
        unknown("spec.b"),
        unknown("spec.l[0].a"),
        unknown("spec.z"),
    ];
    let wanted = [
        unknown("spec.z"),
        twice("spec.n"),
        unknown("spec.l[0].a"),
        twice("spec.l[0].a"),
        unknown("spec.b"),
        unknown("elsewhere"),
    ];
    assert_eq!(in_order(body, Limits::default(), findings), wanted);
}

/// What names a fault costs no more than the fault: this would take minutes, were the whole path kept for each of them.
#[test]
fn long_keys_are_cut() {
    let key = "k".repeat(1 << 20);
    let body = format!("{{\"spec\":{{\"{key}\":{{{}\"b\":1,\"b\":1}}}}}}", "\"a\":1,".repeat(150_000));
    let parsed = parse(body.as_bytes(), Format::Json, Limits::default()).expect("an object");
    let long = |finding: &Finding| finding.to_string().len() > 3000;
    assert!(!parsed.findings.is_empty() && !parsed.findings.iter().any(long));
    let mut object = serde_json::json!({"kind": "Pod", "spec": {key.as_str(): 1, "containers": [{key.as_str(): 1}]}});
    let findings = conform(&mut object, schema("io.k8s.api.core.v1.Pod")).expect("a pod");
    assert!(findings.len() == 2 && !findings.iter().any(long));
}

#[test]
fn what_is_no_object_is_shown() {
    for (body, format, start, end) in [
        (
            &b"apiVersion: v1"[..],
            Format::Json,
            "couldn't get version/kind; json parse error: ",
            "(61706956657273696f6e3a207631)",
        ),
        (
            b"{\"kind\":\"Pod\",\"apiVersion\":\"v1\"",
            Format::Json,
            "couldn't get version/kind; json",
            "({\"kind\":\"Pod\",\"apiVersion\":\"v1 ...)",
        ),
        (b"", Format::Json, "couldn't get version/kind; json parse error: ", "(<empty>)"),
        (b"[]", Format::Json, "couldn't get version/kind; json parse error: json: cannot unmarshal array", "(5b5d)"),
        (b"a: [", Format::Yaml, "error converting YAML to JSON: yaml: ", "(613a205b)"),
        (
            b"{\"kind\":1}",
            Format::Json,
            "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ",
            "({\"kind\":1})",
        ),
        (
            b"apiVersion: true",
            Format::Yaml,
            "couldn't get version/kind; json parse error: json: cannot unmarshal bool into Go struct field .apiVersion of type string ",
            "(61706956657273696f6e3a2074727565)",
        ),
    ] {
        let error = parse(body, format, Limits::default()).expect_err("no object");
        let told = unrecognized("Namespace", &error, body);
        let rest =
            told.strip_prefix("the object provided is unrecognized (must be of type Namespace): ").expect("a start");
        assert!(rest.starts_with(start) && rest.ends_with(end), "{told}");
    }
}

#[test]
fn refuses_what_is_no_object() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(200), close.repeat(200)).into_bytes();
    let bomb = b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n".to_vec();
    let table: Vec<(Vec<u8>, Format, &str)> = vec![
        (b"{".to_vec(), Format::Json, "json parse error"),
        (b"{} x".to_vec(), Format::Json, "json parse error"),
        (b"".to_vec(), Format::Json, "json parse error"),
        (b"\xff\xfe".to_vec(), Format::Json, "json parse error"),
        (b"[]".to_vec(), Format::Json, "cannot unmarshal array"),
        (b"\"x\"".to_vec(), Format::Json, "cannot unmarshal string"),
        (b"a: b: c".to_vec(), Format::Yaml, "yaml"),
        (b"a: [".to_vec(), Format::Yaml, "yaml"),
        (b"plain".to_vec(), Format::Yaml, "cannot unmarshal string"),
        (b"a: \xff".to_vec(), Format::Yaml, "yaml"),
        (deep("[", "]"), Format::Json, "levels deep"),
        (deep("{\"a\":", "}"), Format::Json, "levels deep"),
        (deep("[", "]"), Format::Yaml, ""),
        ((0..200).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>().into_bytes(), Format::Yaml, ""),
        (bomb, Format::Yaml, ""),
        (format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a,".repeat(20)).into_bytes(), Format::Yaml, ""),
        (vec![b' '; 4 << 20], Format::Json, "too large"),
    ];
    for (bytes, format, words) in table {
        let text = String::from_utf8_lossy(bytes.get(..40.min(bytes.len())).unwrap_or_default()).into_owned();
        let error = parse(&bytes, format, Limits::default()).expect_err(&text).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn names_unknown_fields() {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "lables": {}}, "extra": 1,
        "spec": {"containers": [{"name": "a", "imagee": "x", "ports": [{"containerPort": 80, "hostport": 1}]}], "nodeSelector": {"any": "thing"}}});
    let mut texts: Vec<_> =
        conform(&mut pod, schema("io.k8s.api.core.v1.Pod")).expect("a pod").iter().map(ToString::to_string).collect();
    texts.sort();
    assert_eq!(
        texts,
        [
            "unknown field \"extra\"",
            "unknown field \"metadata.lables\"",
            "unknown field \"spec.containers[0].imagee\"",
            "unknown field \"spec.containers[0].ports[0].hostport\""
        ]
    );
    assert_eq!(
        pod,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
            "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}], "nodeSelector": {"any": "thing"}}})
    );
    let strict =
        strict_message("v1", "Pod", &[Finding::Unknown("spec.foo".into()), Finding::Duplicate("spec.x".into())]);
    assert_eq!(
        strict.as_deref(),
        Some(
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.foo\", duplicate field \"spec.x\""
        )
    );
}

#[test]
fn names_mistyped_fields_as_go_does() {
    let table = [
        (
            "core.v1.Pod",
            json!({"spec": {"terminationGracePeriodSeconds": "x"}}),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64",
        ),
        (
            "core.v1.Pod",
            json!({"spec": {"containers": {}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            "core.v1.Pod",
            json!({"spec": {"containers": [{"env": [{"name": "a", "value": 1}]}]}}),
            "json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
        ),
        (
            "core.v1.Pod",
            json!({"kind": "Pod", "spec": "x"}),
            "json: cannot unmarshal string into Go struct field Pod.spec of type v1.PodSpec",
        ),
        (
            "core.v1.Pod",
            json!({"metadata": {"labels": {"a": 1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "core.v1.Pod",
            json!({"metadata": {"labels": []}}),
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            "core.v1.Pod",
            json!({"spec": {"hostNetwork": "yes"}}),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        (
            "apps.v1.Deployment",
            json!({"spec": {"replicas": "3"}}),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps.v1.Deployment",
            json!({"spec": {"replicas": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps.v1.Deployment",
            json!({"spec": {"replicas": 1.0}}),
            "json: cannot unmarshal number 1.0 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "core.v1.Service",
            json!({"spec": {"ports": [{"targetPort": 80.0}]}}),
            "json: cannot unmarshal number 80.0 into Go value of type int32",
        ),
        (
            "apps.v1.Deployment",
            json!({"spec": {"replicas": 3_000_000_000_u64}}),
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "core.v1.Pod",
            json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        ("core.v1.Secret", json!({"data": {"a": "n!"}}), "illegal base64 data at input byte 1"),
        (
            "core.v1.Service",
            json!({"spec": {"ports": [{"targetPort": true}]}}),
            "json: cannot unmarshal bool into Go value of type int32",
        ),
    ];
    for (name, mut value, expected) in table {
        let error = conform(&mut value, schema(&format!("io.k8s.api.{name}"))).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    let error = DecodeError::Mistyped("json: x".into()).status_message("v1", "Pod");
    assert_eq!(error, "Pod in version \"v1\" cannot be handled as a Pod: json: x");
}

#[test]
fn keeps_what_is_right() {
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {"f:labels": {".": {}}}}}]},
        "spec": {"containers": [{"name": "a", "livenessProbe": {"httpGet": {"port": "web"}}, "resources": {"limits": {"cpu": "500m"}}}]}});
    let mut same = object.clone();
    assert_eq!(conform(&mut same, schema("io.k8s.api.core.v1.Pod")), Ok(vec![]));
    assert_eq!(same, object);
    // Nulls are absent; numbers in place of quantities become texts in their canonical form.
    let mut loose = json!({"metadata": {"name": "x", "creationTimestamp": null}, "spec": {"nodeName": null,
        "containers": [{"name": "a", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}]}, "status": null});
    assert_eq!(conform(&mut loose, schema("io.k8s.api.core.v1.Pod")), Ok(vec![]));
    assert_eq!(
        loose,
        json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}})
    );
    // The schema of definitions refers to itself, and keeps schemas and defaults of any form.
    let definition = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}, "default": [{"x": "y"}]},
        "b": {"type": "object", "additionalProperties": true}, "c": {"enum": ["a", 1, null]}}}}}]}});
    let mut same = definition.clone();
    assert_eq!(
        conform(&mut same, schema("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition")),
        Ok(vec![])
    );
    assert_eq!(same, definition);
}

/// As it stands, what has a point is no integer; what was no JSON has none any more.
#[test]
fn whole_numbers_are_kept_without_a_point() {
    let mut service = json!({"spec": {"ports": [{"port": 80.0, "targetPort": 8080.0}]}});
    let service_schema = schema("io.k8s.api.core.v1.Service");
    assert!(conform(&mut service.clone(), service_schema).is_err());
    whole_numbers(&mut service);
    assert_eq!(conform(&mut service, service_schema), Ok(Vec::new()));
    let yaml = b"a: 1.0\nc: 1.5\n";
    let parsed = parse(yaml, Format::Yaml, Limits::default()).expect("YAML");
    assert_eq!(parsed.value, json!({"a": 1, "c": 1.5}));
    assert_eq!(service, json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}));
}

#[test]
fn times_are_shown_as_go_shows_them() {
    for (given, seconds, micros) in [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678901Z"),
        ("2026-01-02T03:04:05.5+02:00", "2026-01-02T01:04:05Z", "2026-01-02T01:04:05.500000Z"),
        ("2026-01-02 03:04:05Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
        ("2026-01-02T03:04:60Z", "2026-01-02T03:04:59Z", "2026-01-02T03:04:59.000000Z"),
    ] {
        let mut lease =
            json!({"metadata": {"creationTimestamp": given}, "spec": {"renewTime": given, "acquireTime": ""}});
        assert_eq!(conform(&mut lease, schema("io.k8s.api.coordination.v1.Lease")), Ok(Vec::new()), "{given}");
        let want = json!({"metadata": {"creationTimestamp": seconds}, "spec": {"renewTime": micros}});
        assert_eq!(lease, want, "{given}");
    }
    for given in ["yesterday", "-000001-01-02T03:04:05Z", "2026-01-02"] {
        let mut pod = json!({"metadata": {"creationTimestamp": given}});
        let why = conform(&mut pod, schema("io.k8s.api.core.v1.Pod")).expect_err(given).to_string();
        assert!(why.starts_with("parsing time "), "{why}");
    }
}

#[test]
fn every_builtin_kind_has_a_schema() {
    for row in crate::table::builtin() {
        for version in &row.versions {
            let crate::SchemaSource::Builtin(name) = &version.schema else { panic!("a built-in row") };
            let schema = schema(name);
            assert!(schema.property("metadata").is_some() || row.is_virtual, "{name}");
            if version.has_status() {
                assert!(schema.property("status").is_some(), "{name} has no status");
            }
        }
    }
}

#[test]
fn nulls_inside_are_what_go_makes_of_them() {
    let mut pod = json!({"metadata": {"labels": {"a": null}, "finalizers": [null], "annotations": null}, "spec": {
        "nodeSelector": {"b": null}, "nodeName": null, "tolerations": [null],
        "containers": [{"name": "c", "args": ["x", null], "resources": {"limits": {"cpu": null}}}]}});
    assert_eq!(conform(&mut pod, schema("io.k8s.api.core.v1.Pod")), Ok(Vec::new()));
    let want = json!({"metadata": {"labels": {"a": ""}, "finalizers": [""]}, "spec": {
        "nodeSelector": {"b": ""}, "tolerations": [{}],
        "containers": [{"name": "c", "args": ["x", ""], "resources": {"limits": {"cpu": "0"}}}]}});
    assert_eq!(pod, want);
}

/// Upstream's types are written without what is empty in them; what is required, a struct, a pointer or raw is there.
#[test]
fn what_is_as_good_as_absent_goes() {
    let check = |kind: &str, given: Value, want: Value| {
        let schema = schema(&format!("io.k8s.{kind}"));
        let mut applied = given.clone();
        assert_eq!(conform_applied(&mut applied, schema), Ok(Vec::new()), "{given}");
        assert_eq!(applied, given, "who applies it owns it");
        let mut stored = given.clone();
        assert_eq!(conform(&mut stored, schema), Ok(Vec::new()), "{given}");
        assert_eq!(stored, want, "{given}");
    };
    check(
        "api.core.v1.Pod",
        json!({
            "metadata": {"labels": {}, "annotations": {"a": ""}, "finalizers": [], "ownerReferences": [], "managedFields": []},
            "spec": {
                "nodeSelector": {}, "tolerations": [], "hostNetwork": false, "hostUsers": false, "securityContext": {},
                "automountServiceAccountToken": false, "containers": [],
                "initContainers": [{
                    "name": "a", "args": [], "command": [""], "tty": false, "resources": {"limits": {}},
                    "ports": [{"containerPort": 1, "hostPort": 0}], "volumeMounts": [{"name": "v", "readOnly": false}],
                }],
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "w", "projected": {"sources": []}},
                    {"name": "x", "csi": {"driver": "d", "readOnly": false, "volumeAttributes": {}}},
                ],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
            },
            "status": {},
        }),
        json!({
            "metadata": {"annotations": {"a": ""}, "managedFields": []},
            "spec": {
                "hostUsers": false, "securityContext": {}, "automountServiceAccountToken": false, "containers": [],
                "initContainers": [{
                    "name": "a", "command": [""], "resources": {}, "ports": [{"containerPort": 1}],
                    "volumeMounts": [{"name": "v"}],
                }],
                "volumes": [
                    {"name": "v", "emptyDir": {}},
                    {"name": "w", "projected": {}},
                    {"name": "x", "csi": {"driver": "d", "readOnly": false}},
                ],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
            },
            "status": {},
        }),
    );
    check(
        "api.apps.v1.Deployment",
        json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}, "matchExpressions": []}, "paused": false}}),
        json!({"spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "paused": false}}),
    );
    let raw = json!({"list": [], "map": {}, "hostNetwork": false});
    check("api.apps.v1.ControllerRevision", json!({"data": raw}), json!({"data": raw}));
    check(
        "api.authorization.v1.SubjectAccessReview",
        json!({"spec": {"groups": [], "extra": {"a": []}}}),
        json!({"spec": {"extra": {"a": []}}}),
    );
    check(
        "api.autoscaling.v2.HorizontalPodAutoscaler",
        json!({"spec": {"metrics": [], "behavior": {"scaleUp": {"policies": []}}}}),
        json!({"spec": {"behavior": {"scaleUp": {"policies": []}}}}),
    );
    let versions =
        |schema: Value| json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
    check(
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        versions(json!({"required": [], "properties": {"a": {"default": [], "enum": [{}, []], "properties": {}}}})),
        versions(json!({"properties": {"a": {"default": [], "enum": [{}, []]}}})),
    );
}
