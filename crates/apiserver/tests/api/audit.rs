//! The audit log says who did what, and no secrets.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use carrack_apiserver::audit::{Audit, AuditSink, Policy};
use carrack_auth::Caller;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

/// A cluster that notes everything in full, but what the server asks for itself.
fn noting(lines: &Arc<Lines>) -> Cluster {
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
                  - {level: None, users: ['system:apiserver']}\n- {level: RequestResponse}\n";
    let cluster = Cluster::with(|config| {
        let policy = Arc::new(Policy::parse(policy.as_bytes()).expect("a policy"));
        config.audit = Some(Audit { policy, sink: lines.clone() });
    });
    lines.0.lock().expect("no panic").clear();
    cluster
}

#[derive(Default)]
struct Lines(Mutex<Vec<Value>>);

impl AuditSink for Lines {
    fn write(&self, line: &str) -> std::io::Result<()> {
        self.0.lock().expect("no panic").push(serde_json::from_str(line).expect("JSON"));
        Ok(())
    }
}

#[test]
fn requests_are_noted_and_secrets_are_not() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    cluster.post("/api/v1/namespaces/default/secrets", &secret).expect(201);
    cluster.user("jane", Method::DELETE, &format!("{CONFIG_MAPS}/m"), &Value::Null).refused(403, "Forbidden", "jane");
    let lines = lines.0.lock().expect("no panic");
    let short: Vec<String> = lines
        .iter()
        .map(|e| {
            let reference = &e["objectRef"];
            format!(
                "{} {} {} {}/{} {} {}",
                e["stage"].as_str().unwrap_or(""),
                e["user"]["username"].as_str().unwrap_or(""),
                e["verb"].as_str().unwrap_or(""),
                reference["resource"].as_str().unwrap_or(""),
                reference["name"].as_str().unwrap_or(""),
                e["responseStatus"]["code"],
                e["annotations"]["authorization.k8s.io/decision"].as_str().unwrap_or(""),
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            "ResponseComplete admin create configmaps/m 201 allow",
            "ResponseComplete admin create secrets/s 201 allow",
            "ResponseComplete jane delete configmaps/m 403 forbid",
        ]
    );
    assert_eq!(
        (&lines[0]["requestObject"]["data"]["v"], &lines[0]["responseObject"]["data"]["v"]),
        (&json!("x"), &json!("x"))
    );
    assert!(!lines[1].to_string().contains("hunter2") && lines[1]["level"] == "Metadata", "{}", lines[1]);
}

/// Who acts for somebody else is noted as such, and what lets him where that is for some requests only.
#[test]
fn what_lets_somebody_act_for_another_is_noted() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let allow = |user: &str, rules: Value| {
        let (path, group) = ("/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
        let role = json!({"metadata": {"name": user}, "rules": rules});
        cluster.post(&format!("{path}/clusterroles"), &role).expect(201);
        let binding = json!({
            "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        });
        cluster.post(&format!("{path}/clusterrolebindings"), &binding).expect(201);
    };
    allow("jane", json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]}]));
    let whom = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["jane"]});
    let (mut limited, mut any) = (whom.clone(), whom);
    limited["verbs"] = json!(["impersonate:user-info"]);
    (any["verbs"], any["apiGroups"]) = (json!(["impersonate"]), json!([""]));
    let lists = json!({"verbs": ["impersonate-on:user-info:list"], "apiGroups": [""], "resources": ["configmaps"]});
    allow("joe", json!([lists, limited]));
    allow("jim", json!([any]));
    lines.0.lock().expect("no panic").clear();
    let one = format!("{CONFIG_MAPS}/none");
    let ask = |user: &str, path: &str| {
        let headers = [("impersonate-user", "jane")];
        cluster.request(Caller::new(user, [""; 0]), Method::GET, path, &headers, Bytes::new())
    };
    ask("joe", CONFIG_MAPS).expect(200);
    ask("joe", &one).refused(403, "Forbidden", "User \"joe\" cannot impersonate resource \"users\"");
    ask("jim", &one).refused(404, "NotFound", "not found");
    let lines = lines.0.lock().expect("no panic");
    let noted = lines.iter().map(|event| {
        let name = |field: &str| event[field]["username"].as_str().unwrap_or("-").to_owned();
        (name("user"), name("impersonatedUser"), event["authenticationMetadata"].clone())
    });
    let constraint = json!({"impersonationConstraint": "impersonate:user-info"});
    let wanted = [("joe", "jane", constraint), ("joe", "-", Value::Null), ("jim", "jane", Value::Null)];
    let wanted = wanted.map(|(user, other, constraint)| (user.to_owned(), other.to_owned(), constraint));
    assert_eq!(noted.collect::<Vec<_>>(), wanted);
}

/// What `kubectl create configmap` sends, cut short: `bin` with `v: x`.
const BINARY: &[u8] = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0f\x0a\x05\x0a\x03bin\x12\x06\x0a\x01v\x12\x01x";

/// An object is noted as it was read, whatever its encoding, and names itself where the path does not.
#[test]
fn what_was_sent_is_noted() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let typed =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"v": "x"}});
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}});
    let (plain, short) =
        (config_map("plain", "x").to_string(), json!({"metadata": {"generateName": "g-"}}).to_string());
    let yaml = "{metadata: {name: yaml}, data: {v: x}}";
    let (merge, list) = (r#"{"data":{"w":"y"}}"#, r#"[{"op":"remove","path":"/data/w"}]"#);
    let options = r#"{"propagationPolicy":"Background"}"#;
    let as_json = "application/json";
    let one = format!("{CONFIG_MAPS}/bin");
    for (method, path, media_type, body, code, name, object) in [
        (Method::POST, CONFIG_MAPS, "application/vnd.kubernetes.protobuf", BINARY, 201, "bin", typed("bin")),
        (Method::POST, CONFIG_MAPS, as_json, plain.as_bytes(), 201, "plain", typed("plain")),
        (Method::POST, CONFIG_MAPS, "application/yaml", yaml.as_bytes(), 201, "yaml", typed("yaml")),
        (Method::POST, CONFIG_MAPS, as_json, short.as_bytes(), 201, "", generated),
        (Method::POST, CONFIG_MAPS, as_json, b"{", 400, "", Value::Null),
        (
            Method::PATCH,
            &one,
            "application/merge-patch+json",
            merge.as_bytes(),
            200,
            "bin",
            json!({"data": {"w": "y"}}),
        ),
        (
            Method::PATCH,
            &one,
            "application/json-patch+json",
            list.as_bytes(),
            200,
            "bin",
            json!([{"op": "remove", "path": "/data/w"}]),
        ),
        (Method::DELETE, &one, as_json, options.as_bytes(), 200, "bin", json!({"propagationPolicy": "Background"})),
        (Method::GET, CONFIG_MAPS, as_json, b"", 200, "", Value::Null),
    ] {
        let caller = Caller::new("admin", ["system:masters"]);
        let headers = [("content-type", media_type)];
        cluster.request(caller, method.clone(), path, &headers, Bytes::copy_from_slice(body)).expect(code);
        let event = lines.0.lock().expect("no panic").pop().expect("an event");
        assert_eq!(event["objectRef"]["name"].as_str().unwrap_or_default(), name, "{method} {path}: {event}");
        assert_eq!(event["requestObject"], object, "{method} {path}");
    }
    // What goes without saying is said.
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    cluster.post("/api/v1/namespaces/default/services", &service).expect(201);
    let event = lines.0.lock().expect("no panic").pop().expect("an event");
    assert_eq!(event["requestObject"]["spec"]["type"], "ClusterIP", "{event}");
}

/// What admission finds and lets through is in the event's annotations.
#[test]
fn admission_annotates_the_events() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let annotations = || {
        let lines = std::mem::take(&mut *lines.0.lock().expect("no panic"));
        let of = |event: &Value| event["annotations"].as_object().cloned().unwrap_or_default();
        let mut all: Vec<(String, String)> = lines
            .iter()
            .flat_map(of)
            .filter(|(key, _)| !key.starts_with("authorization.k8s.io/"))
            .map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned()))
            .collect();
        all.sort();
        all
    };

    let policy = json!({
        "metadata": {"name": "short"},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "validations": [
                {"expression": "true"},
                {"expression": "object.data.v.size() < 3", "message": "too long"}],
            "auditAnnotations": [
                {"key": "length", "valueExpression": "string(object.data.v.size())"},
                {"key": "silent", "valueExpression": "null"}],
        },
    });
    let bases = "/apis/admissionregistration.k8s.io/v1";
    cluster.post(&format!("{bases}/validatingadmissionpolicies"), &policy).expect(201);
    let binding =
        json!({"metadata": {"name": "short"}, "spec": {"policyName": "short", "validationActions": ["Audit"]}});
    cluster.post(&format!("{bases}/validatingadmissionpolicybindings"), &binding).expect(201);
    annotations();
    cluster.post(CONFIG_MAPS, &config_map("good", "ab")).expect(201);
    assert_eq!(annotations(), [("short/length".to_owned(), "2".to_owned())]);
    cluster.post(CONFIG_MAPS, &config_map("long", "abcdef")).expect(201);
    let found = annotations();
    assert_eq!(found[0], ("short/length".to_owned(), "6".to_owned()));
    assert_eq!(found[1].0, "validation.policy.admission.k8s.io/validation_failure");
    let failures: Value = serde_json::from_str(&found[1].1).expect("JSON");
    let expected = json!([{"message": "too long", "policy": "short", "binding": "short", "expressionIndex": 1,
        "validationActions": ["Audit"]}]);
    assert_eq!((failures, found.len()), (expected, 2));

    let labels = json!({"pod-security.kubernetes.io/audit": "baseline"});
    cluster.post("/api/v1/namespaces", &json!({"metadata": {"name": "watched", "labels": labels}})).expect(201);
    cluster.post("/api/v1/namespaces/watched/serviceaccounts", &json!({"metadata": {"name": "default"}})).expect(201);
    annotations();
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}});
    cluster.post("/api/v1/namespaces/watched/pods", &pod).expect(201);
    assert_eq!(
        annotations(),
        [
            (
                "pod-security.kubernetes.io/audit-violations".to_owned(),
                "would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)".to_owned()
            ),
            ("pod-security.kubernetes.io/enforce-policy".to_owned(), "privileged:latest".to_owned()),
        ]
    );
}

/// Whatever the level, what a Status says is noted.
#[test]
fn what_a_status_says_is_noted() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let secrets = "/api/v1/namespaces/default/secrets";
    cluster.post(secrets, &json!({"metadata": {"name": "s"}})).expect(201);
    let admin = |method, name: &str| {
        let caller = Caller::new("admin", ["system:masters"]);
        cluster.request(caller, method, &format!("{secrets}/{name}"), &[], Bytes::new())
    };
    for (reply, status, reason, name) in [
        (admin(Method::GET, "s"), None, None, None),
        (
            cluster.user("jane", Method::GET, &format!("{secrets}/s"), &Value::Null),
            Some("Failure"),
            Some("Forbidden"),
            Some("s"),
        ),
        (admin(Method::GET, "none"), Some("Failure"), Some("NotFound"), Some("none")),
        (admin(Method::DELETE, "s"), Some("Success"), None, Some("s")),
    ] {
        let event = lines.0.lock().expect("no panic").remove(1);
        let noted = &event["responseStatus"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let found = [&noted["status"], &noted["reason"], &noted["details"]["name"]].map(text);
        assert_eq!(found, [status, reason, name].map(|text| text.map(str::to_owned)), "{event}");
        assert_eq!((&noted["code"], &noted["metadata"]), (&json!(reply.code), &json!({})), "{event}");
        assert_eq!(noted["message"], if reason.is_some() { reply.json["message"].clone() } else { Value::Null });
    }
}

#[test]
fn the_end_of_a_watch_is_noted() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let watch = cluster.watch(&format!("{CONFIG_MAPS}?watch=true"));
    let stages = || -> Vec<String> {
        let lines = lines.0.lock().expect("no panic");
        lines.iter().map(|line| format!("{} {}", line["stage"], line["auditID"])).collect()
    };
    let begun = stages();
    assert!(begun.len() == 1 && begun[0].starts_with("\"ResponseStarted\""), "{begun:?}");
    drop(watch);
    assert_eq!(stages()[1], begun[0].replace("ResponseStarted", "ResponseComplete"));
}

#[test]
fn replies_name_their_event() {
    let lines = Arc::new(Lines::default());
    let cluster = noting(&lines);
    let reply = cluster.post(CONFIG_MAPS, &config_map("m", "x"));
    let id = reply.headers.get("audit-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    reply.expect(201);
    let line = lines.0.lock().expect("no panic").remove(0);
    assert_eq!((&line["auditID"], &line["objectRef"]["name"]), (&json!(id), &json!("m")));
}
