//! What every cluster has comes back when somebody removes it, and nothing is written while it is all there.

use carrack_apiserver::{ApiServer, Cidr, Config, Network, storage_prefix};
use carrack_store::{Op, Store as _, Txn};
use serde_json::{Value, json};

use crate::harness::{Cluster, now};

const FLOW: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

fn configure(config: &mut Config) {
    let service_ranges = vec![Cidr::parse("10.43.0.0/16").expect("a range")];
    config.network = Network { service_ranges, ..Network::default() };
    config.front_proxy_ca_pem = "an authority".to_owned();
}

fn cluster() -> Cluster {
    Cluster::with(configure)
}

/// Removes an object behind the server's back, which does not let everybody remove everything at once.
fn remove(cluster: &Cluster, key: String) {
    let txn = Txn { checks: Vec::new(), ops: vec![Op::Delete(key.into())] };
    cluster.store.commit(txn).expect("committed");
}

#[test]
fn what_is_removed_comes_back() {
    let cluster = cluster();
    let namespace = |name: &str| (format!("/api/v1/namespaces/{name}"), storage_prefix("", "namespaces", None) + name);
    let ranges = storage_prefix("networking.k8s.io", "servicecidrs", None);
    let config_maps = storage_prefix("", "configmaps", Some("kube-system"));
    let authentication = "extension-apiserver-authentication";
    for (path, key) in [
        namespace("default"),
        namespace("kube-system"),
        namespace("kube-public"),
        namespace("kube-node-lease"),
        namespace("kubevirt"),
        ("/apis/networking.k8s.io/v1/servicecidrs/kubernetes".to_owned(), ranges + "kubernetes"),
        (format!("/api/v1/namespaces/kube-system/configmaps/{authentication}"), config_maps + authentication),
    ] {
        remove(&cluster, key);
        cluster.get(&path).expect(404);
        now(cluster.api.restore()).expect("restored");
        cluster.get(&path).expect(200);
    }
    for path in [
        "/api/v1/namespaces/default/services/kubernetes".to_owned(),
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps".to_owned(),
        format!("{FLOW}/flowschemas/catch-all"),
        format!("{FLOW}/flowschemas/service-accounts"),
        format!("{FLOW}/prioritylevelconfigurations/catch-all"),
        format!("{FLOW}/prioritylevelconfigurations/workload-low"),
    ] {
        cluster.delete(&path).expect(200);
        cluster.get(&path).expect(404);
        now(cluster.api.restore()).expect("restored");
        cluster.get(&path).expect(200);
    }
    // Schemas whose level came back say so.
    let schema = cluster.get(&format!("{FLOW}/flowschemas/service-accounts")).expect(200);
    assert_eq!(schema["status"]["conditions"][0]["status"], "False", "{schema}");
    // What it has written itself is looked at once more.
    now(cluster.api.restore()).expect("restored");
    let before = cluster.store.revision();
    for _ in 0..3 {
        now(cluster.api.restore()).expect("restored");
    }
    assert_eq!(cluster.store.revision(), before);
}

#[test]
fn levels_and_schemas_are_as_they_are_to_be_unless_users_say_otherwise() {
    let cluster = cluster();
    let precedence = |name: &str| {
        let schema = cluster.get(&format!("{FLOW}/flowschemas/{name}")).expect(200);
        schema["spec"]["matchingPrecedence"].clone()
    };
    let change = |name: &str, autoupdate: Value| {
        let annotations = json!({"apf.kubernetes.io/autoupdate-spec": autoupdate});
        let patch = json!({"metadata": {"annotations": annotations}, "spec": {"matchingPrecedence": 7}});
        cluster.merge(&format!("{FLOW}/flowschemas/{name}"), &patch).expect(200);
        now(cluster.api.restore()).expect("restored");
        precedence(name)
    };
    for (name, autoupdate, want) in [
        ("service-accounts", json!("true"), 9000),
        ("service-accounts", json!("false"), 7),
        ("kube-scheduler", Value::Null, 7),
    ] {
        assert_eq!(change(name, autoupdate.clone()), want, "{name} {autoupdate}");
    }
    // What could not last is not taken.
    for (path, spec) in [
        ("flowschemas/catch-all", json!({"matchingPrecedence": 7})),
        ("prioritylevelconfigurations/catch-all", json!({"limited": {"nominalConcurrencyShares": 9}})),
    ] {
        let why = "spec of 'catch-all' must equal the fixed value";
        cluster.merge(&format!("{FLOW}/{path}"), &json!({"spec": spec})).refused(422, "Invalid", why);
        cluster.merge(&format!("{FLOW}/{path}"), &json!({"metadata": {"labels": {"a": "b"}}})).expect(200);
    }
    let level = format!("{FLOW}/prioritylevelconfigurations/exempt");
    cluster.merge(&level, &json!({"spec": {"exempt": {"nominalConcurrencyShares": 9}}})).expect(200);
    now(cluster.api.restore()).expect("restored");
    let level = cluster.get(&level).expect(200);
    assert_eq!(level["spec"]["exempt"]["nominalConcurrencyShares"], 9, "what nothing limits may be given a share");
}

/// The service's address is another's: all else comes back, and the service once the address is free.
#[test]
fn what_cannot_come_back_yet_keeps_back_nothing_else() {
    let cluster = cluster();
    let services = "/api/v1/namespaces/default/services";
    cluster.delete(&format!("{services}/kubernetes")).expect(200);
    let squatter =
        json!({"metadata": {"name": "squatter"}, "spec": {"clusterIP": "10.43.0.1", "ports": [{"port": 80}]}});
    cluster.post(services, &squatter).expect(201);
    cluster.delete(&format!("{FLOW}/flowschemas/probes")).expect(200);
    now(cluster.api.restore()).expect("restored");
    cluster.get(&format!("{FLOW}/flowschemas/probes")).expect(200);
    cluster.get(&format!("{services}/kubernetes")).expect(404);
    cluster.delete(&format!("{services}/squatter")).expect(200);
    now(cluster.api.restore()).expect("restored");
    cluster.get(&format!("{services}/kubernetes")).expect(200);
}

/// Servers with authorities of their own believe each other's clients, and do not write in turn.
#[test]
fn authorities_of_several_servers_are_believed() {
    let cluster = cluster();
    let mut config = Config::new(cluster.store.clone(), cluster.env.clone());
    configure(&mut config);
    (config.ca_pem, config.front_proxy_ca_pem) = ("clients\n".to_owned(), "a second authority\n".to_owned());
    let second = ApiServer::new(config);
    now(second.bootstrap()).expect("bootstrap");
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let both = json!("an authority\na second authority\n");
    let data = cluster.get(path).expect(200)["data"].clone();
    assert_eq!((&data["client-ca-file"], &data["requestheader-client-ca-file"]), (&json!("clients\n"), &both));
    assert_eq!(data["requestheader-username-headers"], "[\"X-Remote-User\"]");
    let said = json!({
        "requestheader-username-headers": "[\"X-User\"]", "requestheader-client-ca-file": "a second authority",
    });
    cluster.merge(path, &json!({"data": said})).expect(200);
    for _ in 0..2 {
        now(cluster.api.restore()).expect("restored");
        now(second.restore()).expect("restored");
    }
    let before = cluster.store.revision();
    now(cluster.api.restore()).expect("restored");
    now(second.restore()).expect("restored");
    assert_eq!(cluster.store.revision(), before, "nobody writes it again");
    let data = cluster.get(path).expect(200)["data"].clone();
    assert_eq!(data["requestheader-username-headers"], "[\"X-User\"]", "what is said of headers is left alone");
    assert_eq!(data["requestheader-client-ca-file"], "a second authority\nan authority");
}

/// Another server may serve a group that this one does not: its APIService goes only with a reason.
#[test]
fn what_another_release_serves_stays() {
    let cluster = cluster();
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let spec = json!({
        "group": "new.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 100,
    });
    let labels = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
    let theirs = json!({"metadata": {"name": "v1.new.example.com", "labels": labels}, "spec": spec});
    cluster.post(services, &theirs).expect(201);
    now(cluster.api.restore()).expect("restored");
    cluster.get(&format!("{services}/v1.new.example.com")).expect(200);
    now(cluster.api.bootstrap()).expect("bootstrap");
    cluster.get(&format!("{services}/v1.new.example.com")).expect(404);
}
