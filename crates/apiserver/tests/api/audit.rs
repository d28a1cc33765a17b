//! The audit log says who did what, and no secrets.

use std::sync::{Arc, Mutex};

use carrack_apiserver::audit::{Audit, AuditSink, Policy};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

#[derive(Default)]
struct Lines(Mutex<Vec<Value>>);

impl AuditSink for Lines {
    fn write(&self, line: &str) {
        self.0.lock().expect("no panic").push(serde_json::from_str(line).expect("JSON"));
    }
}

#[test]
fn requests_are_noted_and_secrets_are_not() {
    let lines = Arc::new(Lines::default());
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
                  - {level: None, users: ['system:apiserver']}\n- {level: RequestResponse}\n";
    let cluster = Cluster::with(|config| {
        let policy = Arc::new(Policy::parse(policy.as_bytes()).expect("a policy"));
        config.audit = Some(Audit { policy, sink: lines.clone() });
    });
    lines.0.lock().expect("no panic").clear();
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
            "ResponseComplete admin create configmaps/ 201 allow",
            "ResponseComplete admin create secrets/ 201 allow",
            "ResponseComplete jane delete configmaps/m 403 forbid",
        ]
    );
    assert_eq!(
        (&lines[0]["requestObject"]["data"]["v"], &lines[0]["responseObject"]["data"]["v"]),
        (&json!("x"), &json!("x"))
    );
    assert!(!lines[1].to_string().contains("hunter2") && lines[1]["level"] == "Metadata", "{}", lines[1]);
}
