//! Services get addresses and ports that nobody else has, and give them back.

use carrack_apiserver::{ApiServer, Cidr, Config, Network};
use serde_json::{Value, json};

use crate::harness::{Cluster, names, now};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str, spec: Value) -> Value {
    let mut whole = json!({"metadata": {"name": name}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole["spec"][key] = value.clone();
    }
    whole
}

/// What a server at this address is told.
fn network(ranges: &[&str], advertise: &str) -> Network {
    Network {
        service_ranges: ranges.iter().map(|range| Cidr::parse(range).expect(range)).collect(),
        node_ports: (30000, 30003),
        advertise: Some(advertise.parse().expect("an address")),
    }
}

fn on(ranges: &[&str]) -> Cluster {
    Cluster::with(|config| config.network = network(ranges, "192.0.2.1:6443"))
}

#[test]
fn the_api_is_a_service_too() {
    let cluster = on(&["10.43.0.0/16"]);
    let own = cluster.get(&format!("{SERVICES}/kubernetes")).expect(200);
    assert_eq!(
        (&own["spec"]["clusterIP"], &own["spec"]["ports"][0]["targetPort"]),
        (&json!("10.43.0.1"), &json!(6443))
    );
    let slice = cluster.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").expect(200);
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    let address = cluster.get(&format!("{ADDRESSES}/10.43.0.1")).expect(200);
    assert_eq!(address["spec"]["parentRef"]["name"], "kubernetes");
    let range = cluster.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").expect(200);
    assert_eq!(range["spec"]["cidrs"], json!(["10.43.0.0/16"]));
    now(cluster.api.bootstrap()).expect("a second start");
}

#[test]
fn who_ends_is_no_endpoint_any_more() {
    let cluster = on(&["10.43.0.0/16"]);
    let mut config = Config::new(cluster.store.clone(), cluster.env.clone());
    config.network = network(&["10.43.0.0/16"], "192.0.2.2:6443");
    let other = ApiServer::new(config);
    now(other.bootstrap()).expect("bootstrap");
    let addresses = || {
        let slice = cluster.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").expect(200);
        let endpoints = slice["endpoints"].as_array().expect("endpoints").clone();
        endpoints.iter().map(|one| one["addresses"][0].as_str().expect("an address").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(addresses(), ["192.0.2.1", "192.0.2.2"]);
    other.announce_end();
    now(other.renounce()).expect("renounced");
    assert_eq!(addresses(), ["192.0.2.1"]);
    now(other.announce()).expect("nothing to do");
    assert_eq!(addresses(), ["192.0.2.1"], "it does not come back");
    cluster.api.announce_end();
    now(cluster.api.renounce()).expect("renounced");
    assert_eq!(addresses(), ["192.0.2.1"], "there is no other");
}

#[test]
fn addresses_are_given_and_given_back() {
    let cluster = on(&["10.43.0.0/28"]);
    let mut got = Vec::new();
    for index in 0..13 {
        let made = cluster.post(SERVICES, &service(&format!("s{index}"), json!({}))).expect(201);
        let address = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
        assert_eq!(made["spec"]["clusterIPs"], json!([address]));
        assert_eq!(
            (&made["spec"]["ipFamilyPolicy"], &made["spec"]["ipFamilies"]),
            (&json!("SingleStack"), &json!(["IPv4"]))
        );
        assert!(!got.contains(&address), "{address} twice");
        got.push(address);
    }
    cluster.post(SERVICES, &service("more", json!({}))).refused(500, "InternalError", "range is full");
    let headless = cluster.post(SERVICES, &service("headless", json!({"clusterIP": "None"}))).expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    cluster.post(SERVICES, &service("same", json!({"clusterIP": got[3]}))).refused(
        422,
        "Invalid",
        "provided IP is already allocated",
    );
    cluster.post(SERVICES, &service("far", json!({"clusterIP": "10.44.0.1"}))).refused(
        422,
        "Invalid",
        "Service \"far\" is invalid: spec.clusterIPs: Invalid value: [\"10.44.0.1\"]: failed to allocate IP 10.44.0.1: the provided IP \
         (10.44.0.1) is not in the valid range. The range of valid IPs is 10.43.0.0/28",
    );
    cluster.delete(&format!("{SERVICES}/s3")).expect(200);
    cluster.get(&format!("{ADDRESSES}/{}", got[3])).expect(404);
    let again = cluster.post(SERVICES, &service("same", json!({"clusterIP": got[3]}))).expect(201);
    // A client that replaces the service and leaves out its address keeps it; one that changes it is refused.
    let mut put = service("same", json!({"ports": [{"port": 81}]}));
    put["metadata"]["resourceVersion"] = again["metadata"]["resourceVersion"].clone();
    assert_eq!(cluster.put(&format!("{SERVICES}/same"), &put).expect(200)["spec"]["clusterIP"], json!(got[3]));
    cluster
        .merge(&format!("{SERVICES}/same"), &json!({"spec": {"clusterIP": got[4], "clusterIPs": [got[4]]}}))
        .refused(422, "Invalid", "may not change once set");
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "ports": null}});
    let moved = cluster.merge(&format!("{SERVICES}/same"), &external).expect(200);
    assert!(moved["spec"]["clusterIP"].is_null(), "{moved}");
    cluster.get(&format!("{ADDRESSES}/{}", got[3])).expect(404);
    let back = cluster
        .merge(
            &format!("{SERVICES}/same"),
            &json!({"spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}}),
        )
        .expect(200);
    assert_eq!(back["spec"]["clusterIP"], json!(got[3]), "the only one that is free");
}

/// What nobody may have is refused, and not replaced by what there is.
#[test]
fn what_is_given_is_not_passed_over() {
    let cluster = on(&["10.43.0.0/16"]);
    let external = |more: Value| {
        let mut spec = json!({"type": "ExternalName", "externalName": "example.com", "ports": null});
        spec.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        spec
    };
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 70_000});
    let range =
        "Invalid value: 70000: provided port is not in the valid range. The range of valid ports is 30000-30003";
    for (spec, want) in [
        (local, format!("spec.healthCheckNodePort: {range}")),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 70_000}]}),
            format!("spec.ports[0].nodePort: {range}"),
        ),
        (external(json!({"clusterIP": "10.43.0.5"})), "spec.clusterIPs: Forbidden".to_owned()),
        (external(json!({"clusterIP": "None"})), "spec.clusterIPs: Forbidden".to_owned()),
        (external(json!({"ipFamilies": ["IPv4"]})), "spec.ipFamilies: Forbidden".to_owned()),
        (
            json!({"clusterIP": "None", "clusterIPs": ["None", "10.43.0.6"]}),
            "'None' must be the first and only value".to_owned(),
        ),
    ] {
        cluster.post(SERVICES, &service("s", spec)).refused(422, "Invalid", &want);
    }
    cluster.post(SERVICES, &service("s", external(json!({})))).expect(201);
    let given = cluster.merge(&format!("{SERVICES}/s"), &json!({"spec": {"clusterIP": "10.43.0.5"}}));
    given.refused(422, "Invalid", "spec.clusterIPs: Forbidden: may not be set for ExternalName services");
}

/// `clusterIP` is the first of `clusterIPs`: a client that knows it alone says both with it, one that says both agrees with
/// itself.
#[test]
fn the_first_address_is_said_twice() {
    let cluster = on(&["10.43.0.0/16"]);
    for (spec, want) in [
        (json!({"clusterIP": "10.43.0.5", "clusterIPs": ["10.43.0.6"]}), "first value must match `clusterIP`"),
        (json!({"clusterIP": "None", "clusterIPs": ["10.43.0.6"]}), "first value must match `clusterIP`"),
        (json!({"clusterIPs": ["10.43.0.6"]}), "must be empty when `clusterIP` is not specified"),
    ] {
        cluster.post(SERVICES, &service("s", spec)).refused(422, "Invalid", want);
    }
    cluster.post(SERVICES, &service("s", json!({"clusterIP": "10.43.0.5"}))).expect(201);
    for (spec, want) in [
        (json!({"clusterIPs": ["10.43.0.5"]}), None),
        (json!({"clusterIP": "10.43.0.5"}), None),
        (json!({"clusterIP": "10.43.0.6"}), Some("may not change once set")),
        (json!({"clusterIP": "10.43.0.5", "clusterIPs": ["10.43.0.6"]}), Some("first value must match `clusterIP`")),
    ] {
        let reply = cluster.put(&format!("{SERVICES}/s"), &service("s", spec.clone()));
        match want {
            None => assert_eq!(reply.expect(200)["spec"]["clusterIPs"], json!(["10.43.0.5"]), "{spec}"),
            Some(want) => drop(reply.refused(422, "Invalid", want)),
        }
    }
}

#[test]
fn both_families() {
    let cluster = on(&["10.43.0.0/16", "fd43::/108"]);
    let made = cluster.post(SERVICES, &service("s", json!({"ipFamilyPolicy": "PreferDualStack"}))).expect(201);
    assert_eq!(made["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let second = made["spec"]["clusterIPs"][1].as_str().expect("an address").to_owned();
    assert!(second.starts_with("fd43::"), "{second}");
    cluster.get(&format!("{ADDRESSES}/{second}")).expect(200);
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let less = cluster.merge(&format!("{SERVICES}/s"), &single).expect(200);
    assert_eq!(less["spec"]["clusterIPs"], json!([made["spec"]["clusterIP"]]));
    cluster.get(&format!("{ADDRESSES}/{second}")).expect(404);
}

#[test]
fn node_ports() {
    let cluster = on(&["10.43.0.0/16"]);
    let two =
        json!([{"name": "a", "port": 80}, {"name": "b", "port": 53, "protocol": "UDP"}, {"name": "c", "port": 53}]);
    let made = cluster.post(SERVICES, &service("s", json!({"type": "NodePort", "ports": two}))).expect(201);
    let ports: Vec<i64> =
        made["spec"]["ports"].as_array().expect("ports").iter().map(|p| p["nodePort"].as_i64().unwrap_or(0)).collect();
    assert!(ports.iter().all(|port| (30000..=30003).contains(port)), "{ports:?}");
    assert!(ports[0] != ports[1] && ports[1] == ports[2], "{ports:?}");
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": ports[0]}]});
    cluster.post(SERVICES, &service("t", taken.clone())).refused(422, "Invalid", "provided port is already allocated");
    cluster.post(SERVICES, &service("t", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 80}]}))).refused(
        422,
        "Invalid",
        "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-30003",
    );
    let less = cluster.merge(&format!("{SERVICES}/s"), &json!({"spec": {"type": "ClusterIP"}})).expect(200);
    assert!(less["spec"]["ports"][0]["nodePort"].is_null(), "{less}");
    cluster.post(SERVICES, &service("t", taken)).expect(201);
}

#[test]
fn records_are_mended_at_start() {
    let cluster = on(&["10.43.0.0/16"]);
    let made = cluster.post(SERVICES, &service("s", json!({"type": "NodePort"}))).expect(201);
    let address = made["spec"]["clusterIP"].as_str().expect("an address").to_owned();
    cluster.delete(&format!("{ADDRESSES}/{address}")).expect(200);
    let stray = json!({"metadata": {"name": "10.43.9.9"},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "gone"}}});
    cluster.post(ADDRESSES, &stray).expect(201);
    now(cluster.api.bootstrap()).expect("a second start");
    assert_eq!(
        names(&cluster.get(ADDRESSES).expect(200))
            .iter()
            .filter(|name| **name == address || *name == "10.43.9.9")
            .count(),
        1
    );
    cluster.delete(&format!("{SERVICES}/s")).expect(200);
    cluster.get(&format!("{ADDRESSES}/{address}")).expect(404);
}
