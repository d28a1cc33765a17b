//! What is written for services, as a reader of slices and of Endpoints sees it.

use carrack_engine::Write;
use carrack_engine::testing::Caches;
use serde_json::{Value, json};

use super::super::EndpointsController;
use super::*;
use crate::testing::{of, words};

fn service(spec: Value) -> Value {
    json!({"metadata": {"namespace": "ns", "name": "web", "uid": "svc"}, "spec": spec})
}

fn web() -> Value {
    service(json!({"selector": {"app": "web"}, "clusterIP": "10.0.0.1",
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}))
}

fn pod(n: usize, ready: bool, deleting: bool, phase: &str) -> Value {
    let mut pod = json!({"metadata": {"namespace": "ns", "name": format!("p{n}"), "uid": format!("u{n:03}"),
            "labels": {"app": "web"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]},
        "status": {"phase": phase, "podIP": format!("10.1.{}.{}", n / 200, n % 200),
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}});
    if deleting {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    pod
}

fn caches(service: &Value, pods: &[Value], slices: &[EndpointSlice], endpoints: &[Value]) -> Caches {
    let node = json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z1"}}});
    Caches::new()
        .with::<Service>([of(service.clone())])
        .with::<Pod>(pods.iter().cloned().map(of))
        .with::<EndpointSlice>(slices.iter().cloned())
        .with::<Endpoints>(endpoints.iter().cloned().map(of))
        .with::<Node>([of(node)])
}

/// Applies a plan to slices, as the API server would.
fn apply(plan: &Plan, slices: &mut Vec<EndpointSlice>) {
    for write in &plan.writes {
        let name = write.key().name;
        match write {
            Write::Create { object, .. } => slices.push(of(object.clone())),
            Write::Delete { .. } => slices.retain(|s| s.name() != name),
            Write::Patch { patch, .. } => {
                let slice = slices.iter_mut().find(|s| s.name() == name).expect("a slice");
                slice.endpoints = Some(of(patch["endpoints"].clone()));
                for (name, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
                    let annotations = slice.metadata.annotations.get_or_insert_default();
                    match value.as_str() {
                        Some(value) => annotations.insert(name.clone(), value.to_owned()),
                        None => annotations.remove(name),
                    };
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn reconcile(service: &Value, pods: &[Value], slices: &mut Vec<EndpointSlice>, endpoints: &[Value]) -> usize {
    let caches = caches(service, pods, slices, endpoints);
    let plan = EndpointSliceController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
    apply(&plan, slices);
    plan.writes.len()
}

#[test]
fn pods_are_told_by_their_state() {
    for (ready, deleting, phase, publish, expected) in [
        (true, false, "Running", false, Some((true, true, false))),
        (false, false, "Running", false, Some((false, false, false))),
        (true, true, "Running", false, Some((false, true, true))),
        (false, false, "Running", true, Some((true, false, false))),
        (false, false, "Failed", false, None),
    ] {
        let mut service = web();
        service["spec"]["publishNotReadyAddresses"] = publish.into();
        let mut slices = Vec::new();
        reconcile(&service, &[pod(1, ready, deleting, phase)], &mut slices, &[]);
        let [slice] = &slices[..] else { panic!("{slices:?}") };
        let endpoints = slice.endpoints.as_deref().unwrap_or_default();
        let conditions = endpoints.first().and_then(|e| e.conditions.clone());
        let told = conditions.map(|c| (c.ready == Some(true), c.serving == Some(true), c.terminating == Some(true)));
        assert_eq!(told, expected, "{ready} {deleting} {phase} {publish}");
        if let Some(endpoint) = endpoints.first() {
            assert_eq!(slice.ports.as_ref().map(|p| p[0].port), Some(Some(8080)));
            assert_eq!((endpoint.zone.as_deref(), endpoint.node_name.as_deref()), (Some("z1"), Some("n")));
        }
    }
}

#[test]
fn pods_of_nodes_that_are_gone_are_left_out() {
    // The node of the other pod is not there, as of a revision.
    for (nodes_at, publish, expected, unknown) in [
        ("9", false, vec!["u001"], false),
        ("9", true, vec!["u001", "u002"], false),
        ("7", false, vec!["u001", "u002"], true),
    ] {
        let mut service = web();
        service["spec"]["publishNotReadyAddresses"] = publish.into();
        let mut away = pod(2, true, false, "Running");
        away["spec"]["nodeName"] = "away".into();
        away["metadata"]["resourceVersion"] = "8".into();
        let node = json!({"metadata": {"name": "n", "resourceVersion": nodes_at}});
        let caches = caches(&service, &[pod(1, true, false, "Running"), away], &[], &[]).with::<Node>([of(node)]);
        let plan =
            EndpointSliceController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        let mut slices = Vec::new();
        apply(&plan, &mut slices);
        let told: Vec<String> = slices.iter().flat_map(|s| s.endpoints.iter().flatten().map(identity)).collect();
        assert_eq!(told, expected, "{nodes_at} {publish}");
        assert_eq!(plan.requeue_after.is_some(), unknown, "{nodes_at} {publish}");
    }
}

#[test]
fn slices_hold_a_hundred_and_change_little() {
    let pods = |n: usize| (0..n).map(|n| pod(n, true, false, "Running")).collect::<Vec<_>>();
    let mut slices = Vec::new();
    let size =
        |slices: &[EndpointSlice]| slices.iter().map(|s| s.endpoints.as_ref().map_or(0, Vec::len)).collect::<Vec<_>>();
    // Nobody is behind it: one empty slice says so.
    assert_eq!(reconcile(&web(), &[], &mut slices, &[]), 1);
    assert_eq!(size(&slices), [0]);
    assert_eq!(reconcile(&web(), &[], &mut slices, &[]), 0);
    reconcile(&web(), &pods(250), &mut slices, &[]);
    let mut sizes = size(&slices);
    sizes.sort_unstable();
    assert_eq!(sizes, [50, 100, 100]);
    assert_eq!(reconcile(&web(), &pods(250), &mut slices, &[]), 0);
    // One pod goes: one slice is written, and the room is taken by the next pod that comes.
    let without: Vec<_> = pods(250).into_iter().filter(|p| p["metadata"]["name"] != "p7").collect();
    assert_eq!(reconcile(&web(), &without, &mut slices, &[]), 1);
    assert_eq!(reconcile(&web(), &pods(250), &mut slices, &[]), 1);
    let all: BTreeSet<_> = slices.iter().flat_map(|s| s.endpoints.iter().flatten().map(identity)).collect();
    assert_eq!(all.len(), 250);
    reconcile(&web(), &pods(1), &mut slices, &[]);
    assert_eq!(size(&slices), [1]);
}

#[test]
fn what_somebody_wrote_is_mirrored() {
    let plain = service(json!({"ports": [{"port": 5432}]}));
    let endpoints = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "e"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}], "ports": [{"port": 5432}]}]});
    let mut slices = Vec::new();
    reconcile(&plain, &[], &mut slices, &[]);
    assert_eq!(slices, []);
    reconcile(&plain, &[], &mut slices, std::slice::from_ref(&endpoints));
    let families: BTreeSet<_> = slices.iter().map(|s| s.address_type.as_str()).collect();
    assert_eq!(families, BTreeSet::from(["IPv4", "IPv6"]));
    assert!(slices.iter().all(|s| s.label(MANAGED_BY) == Some(MIRRORING)));
    let mut skipped = endpoints;
    skipped["metadata"]["labels"][SKIP_MIRROR] = "true".into();
    reconcile(&plain, &[], &mut slices, &[skipped]);
    assert_eq!(slices, []);
    reconcile(&service(json!({"type": "ExternalName", "externalName": "x"})), &[], &mut slices, &[]);
    assert_eq!(slices, []);
}

#[test]
fn endpoints_for_older_readers() {
    let pods = [pod(1, true, false, "Running"), pod(2, false, false, "Running"), pod(3, true, true, "Running")];
    let look = |endpoints: &[Value]| {
        let caches = caches(&web(), &pods, &[], endpoints);
        EndpointsController.reconcile(&Key::new("ns", "web"), &caches.view(), Time::default())
    };
    let plan = look(&[]);
    let [Write::Create { object, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
    let subset = &object["subsets"][0];
    assert_eq!(subset["addresses"].as_array().map(Vec::len), Some(1));
    assert_eq!(subset["notReadyAddresses"][0]["ip"], "10.1.0.2");
    assert_eq!(subset["ports"][0]["port"], 8080);
    assert!(look(std::slice::from_ref(object)).is_none());
    // The service went: so does what was written for it, and nothing else.
    let gone = |label: Option<&str>| {
        let mut endpoints = object.clone();
        endpoints["metadata"]["labels"] = json!({ "endpoints.kubernetes.io/managed-by": label });
        let caches = Caches::new().with::<Service>([]).with::<Pod>([]).with::<Endpoints>([of(endpoints)]);
        words(&EndpointsController.reconcile(&Key::new("ns", "web"), &caches.view(), Time::default()))
    };
    assert_eq!(gone(Some("endpoint-controller")), ["confirm absent ns/web", "delete ns/web"]);
    assert_eq!(gone(Some("me")), [""; 0]);
}

fn dated_service() -> Value {
    let mut service = web();
    service["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    service
}

/// A pod that has been ready, or not, since this second.
fn dated_pod(n: usize, ready: bool, second: u32) -> Value {
    let mut pod = pod(n, ready, false, "Running");
    pod["status"]["conditions"][0]["lastTransitionTime"] = format!("2026-01-01T00:01:{second:02}Z").into();
    pod
}

#[test]
fn slices_tell_since_when_they_are_so() {
    let (service, pod) = (dated_service(), dated_pod);
    let mut slices = Vec::new();
    let mut check = |pods: &[Value], writes: usize, expected: Option<&str>| {
        assert_eq!(reconcile(&service, pods, &mut slices, &[]), writes, "{pods:?}");
        assert_eq!(slices[0].annotation(SINCE), expected, "{pods:?}");
    };
    check(&[], 1, Some("2026-01-01T00:00:00Z"));
    // The earliest of those that are other than they were; the slice without ports goes.
    check(&[pod(1, true, 7), pod(2, true, 9)], 2, Some("2026-01-01T00:01:07Z"));
    check(&[pod(1, true, 7), pod(2, false, 20)], 1, Some("2026-01-01T00:01:20Z"));
    // Nothing changes but a time.
    check(&[pod(1, true, 7), pod(2, false, 30)], 0, Some("2026-01-01T00:01:20Z"));
    // Who goes tells nothing of when.
    check(&[pod(1, true, 7)], 1, None);
}

#[test]
fn endpoints_tell_since_when_they_are_so() {
    let (mut service, pod) = (dated_service(), dated_pod);
    let mut endpoints: Option<Value> = None;
    let mut check = |service: &Value, pods: &[Value], writes: bool, expected: Option<&str>| {
        let there: Vec<Value> = endpoints.iter().cloned().collect();
        let caches = caches(service, pods, &[], &there);
        let plan = EndpointsController.reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        assert_eq!(!plan.writes.is_empty(), writes, "{pods:?}");
        match plan.writes.first() {
            Some(Write::Create { object, .. }) => endpoints = Some(object.clone()),
            Some(Write::Patch { patch, .. }) => {
                let all = endpoints.as_mut().expect("endpoints");
                all["subsets"] = patch["subsets"].clone();
                if let Some(since) = patch["metadata"]["annotations"].get(SINCE) {
                    all["metadata"]["annotations"][SINCE] = since.clone();
                }
                // As the API server stores it.
                all["metadata"]["annotations"].as_object_mut().expect("a map").retain(|_, value| !value.is_null());
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        let all = endpoints.as_ref().expect("endpoints");
        assert_eq!(all["metadata"]["annotations"][SINCE].as_str(), expected, "{pods:?}");
    };
    check(&service, &[], true, Some("2026-01-01T00:00:00Z"));
    check(&service, &[pod(1, true, 7), pod(2, true, 9)], true, Some("2026-01-01T00:01:07Z"));
    check(&service, &[pod(1, true, 7), pod(2, false, 20)], true, Some("2026-01-01T00:01:20Z"));
    // Nothing changes but a time.
    check(&service, &[pod(1, true, 7), pod(2, false, 30)], false, Some("2026-01-01T00:01:20Z"));
    // Who goes tells nothing of when.
    check(&service, &[pod(1, true, 7)], true, None);
    check(&service, &[pod(1, true, 7)], false, None);
    // Another port is another way to reach each.
    service["spec"]["ports"][0]["targetPort"] = 9.into();
    check(&service, &[pod(1, true, 7)], true, Some("2026-01-01T00:01:07Z"));
}

#[test]
fn what_is_mirrored_has_its_limits() {
    let plain = service(json!({"ports": [{"port": 5432}]}));
    let addresses =
        |n: usize| (0..n).map(|n| json!({"ip": format!("192.0.{}.{}", n / 250, n % 250)})).collect::<Vec<_>>();
    let subset = |ready: Vec<Value>, others: Vec<Value>, port: u32| json!({"addresses": ready, "notReadyAddresses": others, "ports": [{"port": port}]});
    let check = |subsets: Value, mirrored: usize, told: &[&str]| {
        let endpoints = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "e",
            "annotations": {SINCE: "2026-01-01T00:00:00Z"}}, "subsets": subsets});
        let caches = caches(&plain, &[], &[], &[endpoints]);
        let plan =
            EndpointSliceController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        let mut slices = Vec::new();
        apply(&plan, &mut slices);
        assert_eq!(slices.iter().map(|s| s.endpoints.as_ref().map_or(0, Vec::len)).sum::<usize>(), mirrored);
        assert!(slices.iter().all(|s| s.annotation(SINCE) == Some("2026-01-01T00:00:00Z")), "{slices:?}");
        assert_eq!(plan.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect::<Vec<_>>(), told);
    };
    check(json!([subset(addresses(1000), vec![], 1)]), 1000, &[]);
    let too_many = "TooManyAddressesToMirror: A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints \
                    subset. 3 addresses were skipped";
    let late = vec![json!({"ip": "198.51.100.1"})];
    check(json!([subset(addresses(1002), late, 1), subset(addresses(10), vec![], 2)]), 1010, &[too_many]);
    let invalid = "InvalidAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices";
    check(json!([subset(vec![json!({"ip": "192.0.2"}), json!({"ip": "192.0.2.1"})], vec![], 1)]), 1, &[invalid]);
}

#[test]
fn a_zone_that_is_told_late_is_filled_in() {
    let mine = [pod(1, true, false, "Running")];
    let mut slices = Vec::new();
    let look = |labels: Value, slices: &mut Vec<EndpointSlice>| {
        let caches = caches(&web(), &mine, slices, &[]);
        let node: Node = of(json!({"metadata": {"name": "n", "labels": labels}}));
        let caches = caches.with::<Node>([node]);
        let plan =
            EndpointSliceController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        apply(&plan, slices);
        slices[0].endpoints.as_ref().and_then(|all| all[0].zone.clone())
    };
    assert_eq!(look(json!({}), &mut slices), None);
    assert_eq!(look(json!({ ZONE: "z2" }), &mut slices), Some("z2".to_owned()));
    // The services of its pods are looked at when a node comes.
    let caches = caches(&web(), &mine, &slices, &[]).with_index::<Pod>(BY_NODE, pods::by_node);
    assert_eq!(caches.keys_for::<Node>(&EndpointSliceController::default()), BTreeSet::from([Key::new("ns", "web")]));
}
