//! Who gets which hints, and what is told of it.

use carrack_engine::testing::Caches;
use carrack_engine::{Controller, Key, Plan, Time, Write};
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointSlice};
use serde_json::{Value, json};

use super::super::EndpointSliceController;
use super::*;
use crate::testing::of;

/// An endpoint in a zone, with a hint for another (or the same); `-` is no hint, and no zone.
fn endpoint(text: &str) -> Endpoint {
    let (zone, hint) = text.split_once('>').unwrap_or((text, "-"));
    let named = |name: &str| Some(name.to_owned()).filter(|name| name != "-");
    Endpoint {
        conditions: Some(EndpointConditions { ready: Some(!zone.ends_with('!')), ..EndpointConditions::default() }),
        zone: named(zone.trim_end_matches('!')),
        hints: named(hint).map(|hint| for_zone(&hint)),
        ..Endpoint::default()
    }
}

fn hint_of(endpoint: &Endpoint) -> String {
    let zones = endpoint.hints.as_ref().and_then(|h| h.for_zones.as_ref());
    zones.and_then(|zones| zones.first()).map_or_else(|| "-".to_owned(), |zone| zone.name.clone())
}

/// The hints of slices, each with what it has; those that begin with `=` need not be written but for their hints.
fn check(capacity: &[(&str, i128)], slices: &[&str], expected: Result<&[&str], &str>) {
    let capacity: Capacity = capacity.iter().map(|(zone, cpu)| ((*zone).to_owned(), *cpu)).collect();
    let read = |text: &str| text.trim_start_matches('=').split_whitespace().map(endpoint).collect::<Vec<_>>();
    let there: Vec<Vec<Endpoint>> = slices.iter().map(|text| read(text)).collect();
    let mut wanted = there.clone();
    wanted.iter_mut().flatten().for_each(|endpoint| endpoint.hints = None);
    let mut parts: Vec<Part<'_>> = wanted
        .iter_mut()
        .zip(&there)
        .zip(slices)
        .map(|((endpoints, had), text)| Part { endpoints, kept: text.starts_with('=').then_some(had) })
        .collect();
    let result = hint(Some(&capacity).filter(|c| c.len() > 1), &mut parts);
    let hints: Vec<String> = wanted.iter().map(|all| all.iter().map(hint_of).collect::<Vec<_>>().join(" ")).collect();
    match expected {
        Ok(expected) => assert_eq!((result, hints), (Ok(()), expected.iter().map(|&s| s.to_owned()).collect())),
        Err(why) => {
            assert_eq!(result, Err(why.to_owned()), "{slices:?}");
            assert!(wanted.iter().flatten().all(|endpoint| endpoint.hints.is_none()), "{slices:?}");
        }
    }
}

#[test]
fn zones_get_endpoints_by_their_processors() {
    let even: &[_] = &[("a", 4000), ("b", 4000)];
    check(even, &["a b"], Ok(&["a b"]));
    // One zone has all: it lends the other one its half, and of three the one that is left over stays at home.
    check(even, &["a a"], Ok(&["b a"]));
    check(even, &["a a a a"], Ok(&["b b a a"]));
    check(&[("a", 5000), ("b", 2000)], &["a a a a a a a"], Ok(&["b b a a a a a"]));
    // Who is not ready is not counted, and has no hint.
    check(even, &["a! a a"], Ok(&["- b a"]));
    // Across slices.
    check(even, &["a a", "a a"], Ok(&["b b", "a a"]));
    check(&[("a", 1000), ("b", 1000), ("c", 1000)], &["a a a"], Ok(&["b c a"]));
}

#[test]
fn where_a_zone_would_have_too_much_to_bear_there_are_no_hints() {
    let insufficient = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
    check(&[("a", 4000)], &["a a"], Err(insufficient));
    check(&[("a", 4000), ("b", 4000)], &["=a>b"], Err("Insufficient number of endpoints (1 endpoints, 2 zones)"));
    // Three halves of an endpoint each are at least two, and three are at least three: seven of six.
    let overload = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                    (6 endpoints, 3 zones)";
    check(&[("a", 4000), ("b", 2000), ("c", 2000)], &["a a a b b c"], Err(overload));
    let zoneless = "One or more endpoints do not have a zone specified";
    check(&[("a", 4000), ("b", 4000)], &["=a>a b>b", "- a"], Err(zoneless));
}

#[test]
fn what_need_not_be_written_stays() {
    let even: &[_] = &[("a", 4000), ("b", 4000)];
    // Though each could have its own zone.
    check(even, &["=a>b b>a"], Ok(&["b a"]));
    // A slice that is written makes up for what another one has.
    check(even, &["=a>a a>a", "a b"], Ok(&["a a", "b b"]));
    // One whose hints give a zone more than it may have is written, too; as is one with a hint for a zone that is no more,
    // and one without.
    check(even, &["=a>a b>a"], Ok(&["a b"]));
    check(even, &["=a>c b>b"], Ok(&["a b"]));
    check(even, &["=a b>b"], Ok(&["a b"]));
}

fn node(zone: &str, other: Value) -> Value {
    let mut node = json!({"metadata": {"name": format!("node-{zone}"), "labels": {ZONE: zone}},
        "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}});
    for (pointer, value) in other.as_object().into_iter().flatten() {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        node.pointer_mut(parent).expect("a field")[name.replace("~1", "/")] = value.clone();
    }
    node
}

fn read(nodes: Vec<Value>) -> Caches {
    Caches::new().with::<Node>(nodes.into_iter().map(of))
}

#[test]
fn the_capacity_of_zones_is_that_of_their_nodes() {
    let capacity = |other: Value| {
        let caches = read(vec![node("a", json!({})), node("b", json!({})), node("c", other)]);
        capacity(caches.view().cache::<Node>()).map(|zones| zones.into_keys().collect::<String>())
    };
    assert_eq!(capacity(json!({})).as_deref(), Some("abc"));
    assert_eq!(capacity(json!({"/status/conditions": []})).as_deref(), Some("ab"));
    assert_eq!(capacity(json!({"/metadata/labels/node-role.kubernetes.io~1control-plane": ""})).as_deref(), Some("ab"));
    // Nobody can say what one has that does not say it itself.
    assert_eq!(capacity(json!({"/status/allocatable": {}})), None);
    assert_eq!(capacity(json!({"/metadata/labels": {}})), None);
}

#[test]
fn a_service_gets_hints_and_loses_them() {
    let mut service = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "svc", "annotations": {MODE: "Auto"}},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "trafficDistribution": "PreferSameNode",
            "ports": [{"port": 80}]}});
    let pods: Vec<Value> = (1..=2)
        .map(|n| {
            json!({"metadata": {"namespace": "ns", "name": format!("p{n}"), "uid": format!("u{n}"), "labels": {"app": "web"}},
                "spec": {"nodeName": "node-a", "containers": []}, "status": {"phase": "Running", "podIP": format!("10.1.0.{n}"),
                    "conditions": [{"type": "Ready", "status": "True"}]}})
        })
        .collect();
    let mut controller = EndpointSliceController::default();
    let mut slices: Vec<EndpointSlice> = Vec::new();
    let mut look = |service: &Value, nodes: Vec<Value>, writes: usize, hints: [&str; 2], told: &[&str]| {
        let caches = read(nodes)
            .with::<Service>([of(service.clone())])
            .with::<Pod>(pods.iter().cloned().map(of))
            .with::<EndpointSlice>(slices.iter().cloned())
            .with::<Endpoints>([]);
        let plan: Plan = controller.reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        assert_eq!(plan.writes.len(), writes, "{plan:?}");
        match plan.writes.first() {
            Some(Write::Create { object, .. }) => slices = vec![of(object.clone())],
            Some(Write::Patch { patch, .. }) => slices[0].endpoints = Some(of(patch["endpoints"].clone())),
            _ => {}
        }
        let is: Vec<String> = slices[0].endpoints.iter().flatten().map(hint_of).collect();
        assert_eq!(is, hints, "{told:?}");
        let events: Vec<String> = plan.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect();
        assert_eq!(events, told);
    };
    let both = || vec![node("a", json!({})), node("b", json!({}))];
    let enabled = "TopologyAwareHintsEnabled: Topology Aware Hints has been enabled, addressType: IPv4";
    look(&service, both(), 1, ["b", "a"], &[enabled]);
    look(&service, both(), 0, ["b", "a"], &[]);
    // One zone is no choice.
    let alone = "TopologyAwareHintsDisabled: Insufficient Node information: allocatable CPU or zone not specified on one or \
                 more nodes, addressType: IPv4";
    look(&service, vec![node("a", json!({}))], 1, ["-", "-"], &[alone]);
    look(&service, both(), 1, ["b", "a"], &[enabled]);
    // What else the service says counts when it does not ask for this any more.
    service["metadata"]["annotations"][MODE] = "Disabled".into();
    let disabled = "TopologyAwareHintsDisabled: Topology Aware Hints has been disabled, addressType: IPv4";
    look(&service, both(), 1, ["a", "a"], &[disabled]);
    look(&service, both(), 0, ["a", "a"], &[]);
}

#[test]
fn endpoints_are_alike_but_for_their_hints() {
    let plain = of::<Endpoint>(json!({"addresses": ["10.0.0.1"]}));
    for (more, alike) in [
        (json!({"hints": {"forZones": [{"name": "a"}]}}), true),
        (json!({"addresses": ["10.0.0.2"]}), false),
        (json!({"conditions": {"ready": true}}), false),
        (json!({"hostname": "h"}), false),
        (json!({"nodeName": "n"}), false),
        (json!({"targetRef": {"uid": "u"}}), false),
        (json!({"zone": "a"}), false),
        (json!({"deprecatedTopology": {"k": "v"}}), false),
    ] {
        let mut other = json!({"addresses": ["10.0.0.1"]});
        more.as_object().into_iter().flatten().for_each(|(key, value)| other[key] = value.clone());
        assert_eq!(is_alike(&plain, &of(other)), alike, "{more}");
    }
}

#[test]
fn what_nodes_have_concerns_the_services_that_ask() {
    let service = |name: &str, mode: &str| -> Service {
        of(json!({"metadata": {"namespace": "ns", "name": name, "uid": name, "annotations": {MODE: mode}},
            "spec": {"selector": {"app": name}}}))
    };
    let caches = read(vec![node("a", json!({}))])
        .with([service("asks", "auto"), service("web", "Disabled")])
        .with_index::<Pod>(crate::pods::BY_NODE, crate::pods::by_node)
        .with::<EndpointSlice>([])
        .with::<Endpoints>([]);
    let keys: Vec<Key> = caches.keys_for::<Node>(&EndpointSliceController::default()).into_iter().collect();
    assert_eq!(keys, [Key::new("ns", "asks")]);
}
