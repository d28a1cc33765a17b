//! What is counted of requests besides their answers, and what is switched off.

use carrack_apiserver::admission::AdmissionConfiguration;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map};

fn metrics(cluster: &Cluster) -> String {
    match cluster.get("/metrics").expect(200) {
        Value::String(text) => text,
        other => panic!("{other} is no text"),
    }
}

#[test]
fn lists_are_counted_by_what_they_cost() {
    let cluster = Cluster::new();
    for name in ["a", "b", "c"] {
        let mut object = config_map(name, "v");
        object["metadata"]["labels"] = json!({"is": name});
        cluster.post(CONFIG_MAPS, &object).expect(201);
    }
    for query in ["labelSelector=is%3Db", "limit=2", "labelSelector=is%3Dz"] {
        cluster.get(&format!("{CONFIG_MAPS}?{query}")).expect(200);
    }
    let text = metrics(&cluster);
    for (name, want) in [
        ("list_total", 3),
        ("list_fetched_objects_total", 3 + 2 + 3),
        ("list_evaluated_objects_total", 3 + 2 + 3),
        ("list_returned_objects_total", 1 + 2),
    ] {
        let line = format!("apiserver_storage_{name}{{group=\"\",resource=\"configmaps\"}} {want}");
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
    for filter in ["authorization", "impersonation"] {
        let counted = format!("apiserver_request_filter_duration_seconds_count{{filter=\"{filter}\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&counted));
        assert!(found.is_some_and(|count| count != "0"), "{filter}: {found:?}");
    }
}

/// Nobody is asked whom a plugin would ask that is off.
#[test]
fn webhooks_are_not_asked_where_their_plugin_is_off() {
    for (off, code) in [(None, 500), (Some("MutatingAdmissionWebhook"), 500), (Some("ValidatingAdmissionWebhook"), 201)]
    {
        let told = AdmissionConfiguration::default().disable(off).expect("a plugin");
        let cluster = Cluster::with(|config| config.admission = told);
        let hook = json!({"metadata": {"name": "w"}, "webhooks": [{
            "name": "w.example.com", "clientConfig": {"url": "https://localhost:1/"}, "failurePolicy": "Fail",
            "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]});
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        cluster.post(path, &hook).expect(201);
        assert_eq!(cluster.post(CONFIG_MAPS, &config_map("c", "v")).code, code, "{off:?}");
    }
}
