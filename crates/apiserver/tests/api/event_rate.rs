//! EventRateLimit: who writes more events than he may is told to wait, and nobody else.

use carrack_apiserver::admission::AdmissionConfiguration;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

const EVENTS: &str = "/api/v1/namespaces/default/events";
const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// A server that takes so many events.
fn limited(limits: &Value) -> Cluster {
    let told = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "EventRateLimit", "configuration": {
            "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits}}]});
    let none = |path: &str| Err(format!("{path} is not there"));
    let told = AdmissionConfiguration::parse(told.to_string().as_bytes(), none).expect("a configuration");
    Cluster::with(|config| config.admission = told.enable(["EventRateLimit"]).expect("a plugin"))
}

fn event(name: &str, about: &str) -> Value {
    json!({"metadata": {"name": name}, "source": {"component": "c", "host": "h"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": about}})
}

#[test]
fn a_namespace_has_so_many_events_a_second() {
    const REFUSED: &str = "Too many requests: limit reached on type Namespace for key default";
    let cluster = limited(&json!([{"type": "Namespace", "qps": 1, "burst": 2}]));
    cluster.post(EVENTS, &event("a", "p")).expect(201);
    // What is only tried counts for nothing.
    cluster.post(&format!("{EVENTS}?dryRun=All"), &event("b", "p")).expect(201);
    cluster.merge(&format!("{EVENTS}/a"), &json!({"message": "again"})).expect(200);
    let refused = cluster.post(EVENTS, &event("b", "p"));
    assert!(refused.headers.get("retry-after").is_none(), "nobody knows when");
    refused.refused(429, "TooManyRequests", REFUSED);
    cluster.post(&format!("{EVENTS}?dryRun=All"), &event("b", "p")).expect(201);
    cluster.merge(&format!("{EVENTS}/a"), &json!({"message": "more"})).refused(429, "TooManyRequests", REFUSED);
    // By the other group they are the same events.
    let new = json!({
        "metadata": {"name": "n"}, "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello", "reason": "Started", "type": "Normal", "action": "Start",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "k", "reportingInstance": "k-1",
    });
    cluster.post(NEW_EVENTS, &new).refused(429, "TooManyRequests", REFUSED);
    // Another namespace, something else, and what goes.
    let mut other = event("a", "p");
    other["involvedObject"]["namespace"] = "kube-system".into();
    cluster.post("/api/v1/namespaces/kube-system/events", &other).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("c", "v")).expect(201);
    cluster.delete(&format!("{EVENTS}/a")).expect(200);
    cluster.env.advance(1);
    cluster.post(NEW_EVENTS, &new).expect(201);
    cluster.post(EVENTS, &event("d", "p")).refused(429, "TooManyRequests", REFUSED);
}

/// Each limit counts what another refuses, and all that refuse are told.
#[test]
fn every_limit_counts() {
    let cluster = limited(&json!([
        {"type": "SourceAndObject", "qps": 1, "burst": 1},
        {"type": "User", "qps": 1, "burst": 2},
        {"type": "Server", "qps": 1, "burst": 4},
    ]));
    let allow = json!({"metadata": {"name": "jane"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]});
    cluster.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &allow).expect(201);
    let refused = |name: &str, about: &str, key: &str| {
        let why = format!("Too many requests: limit reached on type {key}");
        cluster.post(EVENTS, &event(name, about)).refused(429, "TooManyRequests", &why);
    };
    cluster.post(EVENTS, &event("a", "p")).expect(201);
    refused("b", "p", "SourceAndObject for key chPoddefaultp");
    refused("c", "q", "User for key admin");
    cluster.user("jane", Method::POST, EVENTS, &event("d", "r")).expect(201);
    let last = "Too many requests: limit reached on type Server for key ";
    cluster.user("jane", Method::POST, EVENTS, &event("e", "s")).refused(429, "TooManyRequests", last);
    let all = "Too many requests: [limit reached on type SourceAndObject for key chPoddefaultp, \
        limit reached on type User for key admin, limit reached on type Server for key ]";
    cluster.post(EVENTS, &event("f", "p")).refused(429, "TooManyRequests", all);
}
