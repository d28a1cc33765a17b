//! What a client is told beside the answer, by the kinds of objects.

use serde_json::{Value, json};

use crate::harness::{Cluster, Reply, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const NEGATIVE: &str = "must be >= 0; negative values are invalid and will be treated as 1";

fn told(reply: &Reply) -> Vec<String> {
    reply.headers.get_all("warning").iter().map(|value| value.to_str().unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn says(reply: Reply, code: u16, parts: &[&str]) -> Value {
    let found = told(&reply);
    assert_eq!(found.len(), parts.len(), "{found:?}");
    assert!(found.iter().zip(parts).all(|(text, part)| text.contains(part)), "{found:?}");
    reply.expect(code)
}

/// Upstream takes such a pod, and gives it a second.
#[test]
fn pods_with_less_than_no_time() {
    let cluster = Cluster::new();
    let mut hasty = pod("hasty");
    hasty["spec"]["terminationGracePeriodSeconds"] = (-1).into();
    hasty["spec"]["nodeName"] = "n1".into();
    let path = format!("{PODS}/hasty");
    let warning = format!("spec.terminationGracePeriodSeconds: {NEGATIVE}");
    says(cluster.post(&format!("{PODS}?dryRun=All"), &hasty), 201, &[&warning]);
    let made = says(cluster.post(PODS, &hasty), 201, &[&warning]);
    assert_eq!(made["spec"]["terminationGracePeriodSeconds"], -1);
    says(cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})), 200, &[]);
    says(cluster.merge(&format!("{path}/status"), &json!({"status": {"phase": "Running"}})), 200, &[]);
    let marked = says(cluster.delete(&path), 200, &[]);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1);
    // It may be put right, and nothing else.
    cluster.merge(&path, &json!({"spec": {"terminationGracePeriodSeconds": 1}})).expect(200);
    cluster.merge(&path, &json!({"spec": {"terminationGracePeriodSeconds": -1}})).expect(422);
}

/// What is no pair is stored as it is, and told whenever it is written.
#[test]
fn pairs_that_are_none() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    let cluster = Cluster::new();
    let secret = |kind: &str| {
        let data = json!({"tls.crt": "aGVsbG8=", "tls.key": ""});
        json!({"metadata": {"generateName": "s-"}, "type": kind, "data": data})
    };
    let warning = "tls: failed to find any PEM data in certificate input";
    let made = says(cluster.post(SECRETS, &secret("kubernetes.io/tls")), 201, &[warning]);
    let path = format!("{SECRETS}/{}", made["metadata"]["name"].as_str().expect("a name"));
    says(cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})), 200, &[warning]);
    says(cluster.post(SECRETS, &secret("Opaque")), 201, &[]);
}

#[test]
fn templates_by_all_ways() {
    let cluster = Cluster::new();
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"terminationGracePeriodSeconds": -1, "containers": [{"name": "c", "image": "i"}]}}}});
    let path = format!("{DEPLOYMENTS}/d");
    let warning = format!("spec.template.spec.terminationGracePeriodSeconds: {NEGATIVE}");
    says(cluster.post(DEPLOYMENTS, &deployment), 201, &[&warning]);
    says(cluster.merge(&path, &json!({"metadata": {"labels": {"a": "b"}}})), 200, &[]);
    says(cluster.merge(&path, &json!({"spec": {"paused": true}})), 200, &[&warning]);
    says(cluster.merge(&format!("{path}/scale"), &json!({"spec": {"replicas": 2}})), 200, &[&warning]);
    says(cluster.merge(&format!("{path}/status"), &json!({"status": {"replicas": 2}})), 200, &[]);
}

/// Some is said about what an object is, whether it changes or not.
#[test]
fn services_that_stay_as_they_are() {
    let cluster = Cluster::new();
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": ["10.1.2.3"]}});
    let made = says(cluster.post(SERVICES, &service), 201, &["spec.externalIPs is deprecated"]);
    says(cluster.put(&format!("{SERVICES}/s"), &made), 200, &["spec.externalIPs is deprecated"]);
    says(cluster.post(SERVICES, &service), 409, &[]);
}
