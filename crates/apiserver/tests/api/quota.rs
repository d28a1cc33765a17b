//! Quotas: what is charged, what is refused, and that nothing slips past.

use std::sync::{Arc, Mutex};

use carrack_apiserver::admission::{AdmissionConfiguration, AdmissionPlugin, Attributes, Lookup};
use carrack_apiserver::{Status, storage_prefix};
use carrack_store::{Op, Store, Txn};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Cluster, config_map, now, pod};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn quota(cluster: &Cluster, name: &str, spec: Value) -> Value {
    cluster.post(QUOTAS, &json!({"metadata": {"name": name}, "spec": spec})).expect(201)
}

fn used(cluster: &Cluster, name: &str) -> Value {
    cluster.get(&format!("{QUOTAS}/{name}")).expect(200)["status"]["used"].clone()
}

fn sized(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

#[test]
fn a_namespace_holds_no_more_than_its_quota() {
    let cluster = Cluster::new();
    cluster.post(PODS, &sized("before", "100m")).expect(201);
    let made = quota(&cluster, "q", json!({"hard": {"pods": "2", "requests.cpu": "1", "limits.memory": "1Gi"}}));
    assert_eq!(made["status"]["used"], json!({"pods": "1", "requests.cpu": "100m", "limits.memory": "0"}));
    cluster.post(PODS, &sized("p", "200m")).refused(
        403,
        "Forbidden",
        "pods \"p\" is forbidden: failed quota: q: must specify limits.memory for: c",
    );
    let mut spec = cluster.get(&format!("{QUOTAS}/q")).expect(200);
    spec["spec"]["hard"] = json!({"pods": "2", "requests.cpu": "1"});
    cluster.put(&format!("{QUOTAS}/q"), &spec).expect(200);
    cluster.post(PODS, &sized("p", "950m")).refused(
        403,
        "Forbidden",
        "pods \"p\" is forbidden: exceeded quota: q, requested: requests.cpu=950m, used: requests.cpu=100m, limited: requests.cpu=1",
    );
    cluster.post(&format!("{PODS}?dryRun=All"), &sized("p", "900m")).expect(201);
    assert_eq!(used(&cluster, "q"), json!({"pods": "1", "requests.cpu": "100m"}));
    cluster.post(PODS, &sized("p", "900m")).expect(201);
    assert_eq!(used(&cluster, "q"), json!({"pods": "2", "requests.cpu": "1"}));
    cluster.post(PODS, &sized("x", "0")).refused(
        403,
        "Forbidden",
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
    );
    cluster.delete(&format!("{PODS}/p")).expect(200);
    assert_eq!(used(&cluster, "q"), json!({"pods": "1", "requests.cpu": "100m"}));
    // Whoever writes the status has it counted.
    let status = format!("{QUOTAS}/q/status");
    cluster.merge(&status, &json!({"status": {"used": {"pods": "9"}}})).expect(200);
    assert_eq!(used(&cluster, "q"), json!({"pods": "1", "requests.cpu": "100m"}));
    // Other limits that somebody writes there hold until the next count.
    let told = cluster.merge(&status, &json!({"status": {"hard": {"pods": "3"}}})).expect(200);
    assert_eq!(told["status"]["hard"], json!({"pods": "3", "requests.cpu": "1"}));
    assert_eq!((&told["status"]["used"]["pods"], &told["spec"]["hard"]["pods"]), (&json!("1"), &json!("2")));
    let counted = cluster.merge(&status, &json!({})).expect(200);
    assert_eq!(counted["status"]["hard"], json!({"pods": "2", "requests.cpu": "1"}));
}

/// Writes something to the store while a pod is on its way there, once.
struct Meanwhile {
    store: Arc<dyn Store>,
    next: Arc<Mutex<Option<Op>>>,
}

impl AdmissionPlugin for Meanwhile {
    fn name(&self) -> &'static str {
        "Meanwhile"
    }
    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        let next = if attributes.row.plural == "pods" { self.next.lock().expect("lock").take() } else { None };
        if let Some(op) = next {
            now(self.store.transact(Txn { checks: Vec::new(), ops: vec![op] })).expect("committed");
        }
        Ok(())
    }
}

/// Who has read that there is no quota, or another one, is charged to the one that has come meanwhile.
#[test]
fn a_quota_that_comes_meanwhile_holds() {
    for (others, hard, code, uses) in [(0, "1", 201, "1"), (0, "0", 403, "0"), (1, "1", 201, "1"), (1, "0", 403, "0")] {
        let next = Arc::<Mutex<Option<Op>>>::default();
        let cluster = Cluster::with(|config| {
            config.plugins.push(Box::new(Meanwhile { store: config.store.clone(), next: next.clone() }));
        });
        for number in 0..others {
            quota(&cluster, &format!("other{number}"), json!({"hard": {"configmaps": "9"}}));
        }
        quota(&cluster, "q", json!({"hard": {"pods": hard}}));
        let key = format!("{}q", storage_prefix("", "resourcequotas", Some("default")));
        let made = now(cluster.store.get(&key)).expect("readable").0.expect("a quota");
        cluster.delete(&format!("{QUOTAS}/q")).expect(200);
        let value = carrack_store::Value { bytes: made.value().to_vec().into(), stamp_at: None };
        *next.lock().expect("lock") = Some(Op::Put(made.key.clone(), value));
        cluster.post(PODS, &pod("p")).expect(code);
        assert_eq!(used(&cluster, "q"), json!({"pods": uses}), "beside {others}, of {hard}");
    }
}

/// A quota of nothing but what containers ask for holds for those that ask for nothing, too.
#[test]
fn who_says_nothing_does_not_slip_past() {
    for (hard, missing) in [
        (json!({"requests.cpu": "1"}), "requests.cpu for: c"),
        (json!({"limits.memory": "1Gi"}), "limits.memory for: c"),
        (json!({"memory": "1Gi"}), "memory for: c"),
    ] {
        let cluster = Cluster::new();
        quota(&cluster, "q", json!({"hard": hard}));
        cluster.post(PODS, &pod("p")).refused(403, "Forbidden", &format!("failed quota: q: must specify {missing}"));
    }
}

#[test]
fn what_ends_is_given_back_and_scopes_choose() {
    let cluster = Cluster::new();
    quota(&cluster, "best-effort", json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]}));
    quota(&cluster, "maps", json!({"hard": {"configmaps": "1", "count/deployments.apps": "0"}}));
    cluster.post(PODS, &sized("sized", "1")).expect(201);
    cluster.post(PODS, &pod("a")).expect(201);
    cluster.post(PODS, &pod("b")).refused(403, "Forbidden", "exceeded quota: best-effort");
    cluster.merge(&format!("{PODS}/a/status"), &json!({"status": {"phase": "Succeeded"}})).expect(200);
    assert_eq!(used(&cluster, "best-effort"), json!({"pods": "0"}));
    cluster.post(PODS, &pod("b")).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("m", "x")).expect(201);
    cluster.post(CONFIG_MAPS, &config_map("n", "x")).refused(403, "Forbidden", "exceeded quota: maps");
    cluster.delete(&format!("{CONFIG_MAPS}/m")).expect(200);
    cluster.post(CONFIG_MAPS, &config_map("n", "x")).expect(201);
    // Of what nothing is charged to nothing is said.
    quota(&cluster, "odd", json!({"hard": {"example.com/things": "1", "configmaps": "9"}}));
    assert_eq!(used(&cluster, "odd"), json!({"configmaps": "1"}));
}

/// What moves from the scopes of one quota to those of another is given back there and counted here.
#[test]
fn what_changes_its_scope_is_charged_anew() {
    let cluster = Cluster::new();
    quota(&cluster, "long", json!({"hard": {"pods": "2"}, "scopes": ["NotTerminating"]}));
    quota(&cluster, "short", json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]}));
    for name in ["a", "b"] {
        cluster.post(PODS, &pod(name)).expect(201);
    }
    let both = || (used(&cluster, "long")["pods"].clone(), used(&cluster, "short")["pods"].clone());
    let deadline = json!({"spec": {"activeDeadlineSeconds": 600}});
    cluster.merge(&format!("{PODS}/a"), &deadline).expect(200);
    assert_eq!(both(), (json!("1"), json!("1")));
    cluster.merge(&format!("{PODS}/b"), &deadline).refused(403, "Forbidden", "exceeded quota: short");
    cluster.delete(&format!("{PODS}/a")).expect(200);
    assert_eq!(both(), (json!("1"), json!("0")));

    // A claim counts for the class that it has until it has the other one.
    let of_class = |name: &str| {
        let expression = json!({"scopeName": "VolumeAttributesClass", "operator": "In", "values": [name]});
        json!({"hard": {"persistentvolumeclaims": "5"}, "scopeSelector": {"matchExpressions": [expression]}})
    };
    quota(&cluster, "gold", of_class("gold"));
    quota(&cluster, "silver", of_class("silver"));
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s",
        "volumeAttributesClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.post(claims, &claim).expect(201);
    let counts = || ["gold", "silver"].map(|name| used(&cluster, name)["persistentvolumeclaims"].clone());
    assert_eq!(counts(), [json!("1"), json!("0")]);
    let status = |status: Value| cluster.merge(&format!("{claims}/c/status"), &json!({"status": status})).expect(200);
    status(json!({"phase": "Bound", "currentVolumeAttributesClassName": "gold"}));
    cluster.merge(&format!("{claims}/c"), &json!({"spec": {"volumeAttributesClassName": "silver"}})).expect(200);
    assert_eq!(counts(), [json!("1"), json!("1")]);
    status(json!({"currentVolumeAttributesClassName": "silver"}));
    assert_eq!(counts(), [json!("0"), json!("1")]);
    // Another selector counts other things.
    let selector = json!({"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": "Exists"}]});
    cluster.merge(&format!("{QUOTAS}/gold"), &json!({"spec": {"scopeSelector": selector}})).expect(200);
    assert_eq!(counts(), [json!("1"), json!("1")]);
}

/// What the server is told to limit is refused where there is no quota for it, and charged to it where there is one.
#[test]
fn what_is_limited_needs_a_quota() {
    let high = json!({"scopeName": "PriorityClass", "operator": "In", "values": ["high", "top"]});
    let told = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [
        {"name": "ResourceQuota", "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration", "limitedResources": [
                {"resource": "pods", "matchScopes": [high]},
                {"resource": "persistentvolumeclaims", "matchContains": [".storageclass.storage.k8s.io/requests.storage"]}]}}]});
    let cluster = Cluster::with(|config| {
        let none = |path: &str| Err(format!("{path} is not there"));
        config.admission = AdmissionConfiguration::parse(told.to_string().as_bytes(), none).expect("a configuration");
    });
    let class = json!({"metadata": {"name": "high"}, "value": 9});
    cluster.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).expect(201);
    let classy = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["priorityClassName"] = "high".into();
        pod
    };
    cluster.post(PODS, &pod("plain")).expect(201);
    let refused = cluster.post(PODS, &classy("p"));
    let want = "insufficient quota to match these scopes: [{PriorityClass In [high top]}]";
    assert_eq!(refused.json["message"], want);
    refused.refused(403, "Forbidden", want);
    cluster.post(&format!("{PODS}?dryRun=All"), &classy("p")).expect(403);
    quota(&cluster, "high", json!({"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [high]}}));
    cluster.post(PODS, &classy("p")).expect(201);
    cluster.post(PODS, &classy("q")).refused(403, "Forbidden", "exceeded quota: high");
    assert_eq!(used(&cluster, "high"), json!({"pods": "1"}));

    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let name = "fast.storageclass.storage.k8s.io/requests.storage";
    cluster.post(claims, &claim).refused(
        403,
        "Forbidden",
        &format!("persistentvolumeclaims \"c\" is forbidden: insufficient quota to consume: {name}"),
    );
    quota(&cluster, "fast", json!({"hard": {name: "2Gi"}}));
    cluster.post(claims, &claim).expect(201);
    // What counts for no more is written as ever, though its quota has gone.
    cluster.delete(&format!("{QUOTAS}/fast")).expect(200);
    cluster.merge(&format!("{claims}/c"), &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
}
