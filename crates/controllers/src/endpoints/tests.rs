//! What is written for services, as a reader of slices and of Endpoints sees it.

use carrack_engine::StatusError;
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
                if let Some(ports) = patch.get("ports") {
                    slice.ports = Some(of(ports.clone()));
                }
                let metadata = &mut slice.metadata;
                for (part, all) in [("annotations", &mut metadata.annotations), ("labels", &mut metadata.labels)] {
                    assert_ne!(patch["metadata"].get(part), Some(&Value::Null), "that takes all of them");
                    for (name, value) in patch["metadata"][part].as_object().into_iter().flatten() {
                        match value.as_str() {
                            Some(value) => all.get_or_insert_default().insert(name.clone(), value.to_owned()),
                            None => all.get_or_insert_default().remove(name),
                        };
                    }
                }
            }
            Write::Confirm { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn reconcile(service: &Value, pods: &[Value], slices: &mut Vec<EndpointSlice>, endpoints: &[Value]) -> usize {
    let plan = plan_of(&caches(service, pods, slices, endpoints));
    apply(&plan, slices);
    plan.writes.len()
}

fn plan_of(caches: &Caches) -> Plan {
    EndpointSliceController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default())
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
        let plan = plan_of(&caches);
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

/// Slices of so many endpoints, of which so many stay, and so many more that come: how many each has then, and how many are left
/// for slices of their own. A slice holds ten.
fn check_fill(slices: &[(usize, usize)], come: usize, expected: (&[usize], usize)) {
    let endpoint = |name: String| Endpoint { addresses: vec![name], ..Endpoint::default() };
    let of = |slice: usize, count: usize| (0..count).map(move |n| endpoint(format!("{slice}-{n}"))).collect::<Vec<_>>();
    let there: Vec<EndpointSlice> = slices
        .iter()
        .enumerate()
        .map(|(at, (had, _))| EndpointSlice {
            metadata: ObjectMeta { name: Some(at.to_string()), ..ObjectMeta::default() },
            endpoints: Some(of(at, *had)),
            ..EndpointSlice::default()
        })
        .collect();
    let stay = slices.iter().enumerate().flat_map(|(at, (_, stay))| of(at, *stay));
    let desired = stay.chain(of(99, come)).map(|endpoint| (identity(&endpoint), endpoint)).collect();
    let (mut kept, rest) = fill(there.iter().collect(), desired, 10, identity, |_| true);
    kept.sort_by_key(|kept| kept.slice.name().to_owned());
    let sizes: Vec<_> = kept.iter().map(|kept| kept.endpoints.len()).collect();
    assert_eq!((&sizes[..], rest.len()), expected, "{slices:?} {come}");
}

#[test]
fn new_endpoints_go_where_that_costs_least() {
    check_fill(&[(9, 9), (9, 9), (9, 9)], 3, (&[9, 9, 9], 3));
    check_fill(&[(9, 9), (5, 5), (6, 6)], 3, (&[9, 5, 9], 0));
    // What is written anyway is filled first.
    check_fill(&[(5, 5), (9, 8)], 2, (&[5, 10], 0));
    check_fill(&[(5, 5), (9, 8)], 3, (&[6, 10], 0));
    check_fill(&[(10, 10)], 25, (&[10], 25));
    check_fill(&[(4, 4)], 25, (&[9], 20));
    // One that loses all goes, unless it is needed.
    check_fill(&[(3, 0), (5, 5)], 2, (&[0, 7], 0));
}

#[test]
fn a_slice_that_would_go_becomes_one_that_would_be_made() {
    let mine = [pod(1, true, false, "Running")];
    let mut slices = Vec::new();
    reconcile(&web(), &[], &mut slices, &[]);
    let name = slices[0].name().to_owned();
    let mut other = web();
    other["spec"]["ports"][0]["targetPort"] = 9.into();
    for (service, pods, port) in [
        (web(), &mine[..], Some(8080)),
        (other, &mine[..], Some(9)),
        (web(), &mine[..], Some(8080)),
        (web(), &mine[..0], None),
    ] {
        assert_eq!(reconcile(&service, pods, &mut slices, &[]), 1);
        let [slice] = &slices[..] else { panic!("{slices:?}") };
        let found = slice.ports.iter().flatten().next().and_then(|port| port.port);
        assert_eq!((slice.name(), found, slice.endpoints.as_ref().map_or(0, Vec::len)), (&*name, port, pods.len()));
    }
}

#[test]
fn each_family_of_a_service_has_a_slice() {
    let mut both = web();
    both["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let mut slices = Vec::new();
    reconcile(&both, &[pod(1, true, false, "Running")], &mut slices, &[]);
    let told: BTreeSet<_> =
        slices.iter().map(|s| (s.address_type.as_str(), s.endpoints.as_ref().map_or(0, Vec::len))).collect();
    assert_eq!(told, BTreeSet::from([("IPv4", 1), ("IPv6", 0)]));
}

#[test]
fn slices_belong_to_one_service_and_follow_its_pods_until_it_is_gone() {
    let pods = [pod(1, true, false, "Running"), pod(2, true, false, "Running")];
    let mut slices = Vec::new();
    reconcile(&web(), &pods[..1], &mut slices, &[]);
    let mut going = web();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    // It is held by somebody's finalizer.
    assert_eq!(reconcile(&going, &pods, &mut slices, &[]), 1);
    assert_eq!(slices[0].endpoints.as_ref().map(Vec::len), Some(2));
    assert_eq!(reconcile(&going, &pods, &mut Vec::new(), &[]), 0);
    // The garbage collector takes those of the one before it along.
    let mut anew = web();
    anew["metadata"]["uid"] = "another".into();
    let former = slices[0].name().to_owned();
    assert_eq!(reconcile(&anew, &pods, &mut slices, &[]), 2);
    assert!(slices.len() == 1 && slices[0].name() != former, "{slices:?}");
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
    // Annotations go along, and come when they come.
    let mut noted = endpoints.clone();
    noted["metadata"]["annotations"] = json!({"note": "a", LAST_APPLIED: "{}", SINCE: "2026-01-01T00:00:00Z"});
    assert_eq!(reconcile(&plain, &[], &mut slices, &[noted.clone()]), 2);
    let note = BTreeMap::from([("note".to_owned(), "a".to_owned())]);
    assert!(slices.iter().all(|s| s.metadata.annotations.as_ref() == Some(&note)), "{slices:?}");
    assert_eq!(reconcile(&plain, &[], &mut slices, &[noted]), 0);
    // The service is gone, and the Endpoints are not.
    let gone = Caches::new().with::<Service>([]).with::<EndpointSlice>(slices.iter().cloned());
    let plan = plan_of(&gone);
    assert_eq!(words(&plan)[0], "confirm absent ns/web");
    apply(&plan, &mut slices.clone());
    for (part, key, value) in [("labels", SKIP_MIRROR, "true"), ("annotations", LEADER, "{}")] {
        let mut skipped = endpoints.clone();
        skipped["metadata"][part][key] = value.into();
        let mut slices = slices.clone();
        reconcile(&plain, &[], &mut slices, &[skipped]);
        assert_eq!(slices, [], "{key}");
    }
    reconcile(&service(json!({"type": "ExternalName", "externalName": "x"})), &[], &mut slices, &[]);
    assert_eq!(slices, []);
}

#[test]
fn all_addresses_and_names_of_a_thing_are_mirrored() {
    let plain = service(json!({"ports": [{"port": 5432}]}));
    let node = json!({"kind": "Node", "name": "n", "uid": "n"});
    let address = |ip: &str, hostname: Option<&str>| json!({"ip": ip, "hostname": hostname, "targetRef": node});
    let addresses = [address("192.0.2.1", None), address("192.0.2.2", None), address("192.0.2.2", Some("a"))];
    let endpoints = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "e"},
        "subsets": [{"addresses": addresses, "ports": [{"port": 5432}]}]});
    let mut slices = Vec::new();
    assert_eq!(reconcile(&plain, &[], &mut slices, std::slice::from_ref(&endpoints)), 1);
    let told: Vec<&str> = slices[0].endpoints.iter().flatten().map(|e| e.addresses[0].as_str()).collect();
    assert_eq!(told, ["192.0.2.1", "192.0.2.2", "192.0.2.2"]);
    assert_eq!(reconcile(&plain, &[], &mut slices, &[endpoints]), 0);
}

#[test]
fn endpoints_for_older_readers() {
    let pods = [pod(1, true, false, "Running"), pod(2, false, false, "Running"), pod(3, true, true, "Running")];
    let look = |endpoints: &[Value]| {
        let caches = caches(&web(), &pods, &[], endpoints);
        EndpointsController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default())
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
        let without = Caches::new().with::<Service>([]).with::<Pod>([]).with::<Endpoints>([of(endpoints)]);
        let mut controller = EndpointsController::default();
        let mut look = |caches: &Caches| controller.reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        // Its service may come after it; once that has been there, it goes with it.
        let first = words(&look(&without));
        assert!(look(&caches(&service(json!({})), &[], &[], &[])).is_none());
        (first, words(&look(&without)))
    };
    let deleted = || vec!["confirm absent ns/web".to_owned(), "delete ns/web".to_owned()];
    assert_eq!(gone(Some("endpoint-controller")), (deleted(), deleted()));
    assert_eq!(gone(Some("me")), (vec![], deleted()));
}

#[test]
fn endpoints_tell_the_ports_that_pods_have() {
    let spec = json!({"selector": {"app": "web"}, "clusterIP": "10.0.0.1", "ports": [
        {"name": "http", "port": 80, "targetPort": "http"}, {"name": "more", "port": 81, "targetPort": "more"}]});
    let mut both = pod(2, true, false, "Running");
    both["spec"]["containers"][0]["ports"] =
        json!([{"name": "http", "containerPort": 8080}, {"name": "more", "containerPort": 9090}]);
    let mut none = pod(3, true, false, "Running");
    none["spec"]["containers"][0]["ports"] = json!([]);
    let check = |spec: &Value, pods: &[&Value], expected: &[&str]| {
        let pods: Vec<Value> = pods.iter().map(|pod| (*pod).clone()).collect();
        let caches = caches(&service(spec.clone()), &pods, &[], &[]);
        let plan = EndpointsController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
        let [Write::Create { object, .. }] = &plan.writes[..] else { panic!("{plan:?}") };
        let endpoints: Endpoints = of(object.clone());
        let told = |subset: &k8s_openapi::api::core::v1::EndpointSubset| {
            let ports: Vec<String> = subset.ports.iter().flatten().map(|port| port.port.to_string()).collect();
            let ips: Vec<&str> = subset.addresses.iter().flatten().map(|address| address.ip.as_str()).collect();
            format!("{} at {}", ports.join(","), ips.join(","))
        };
        let told: Vec<String> = endpoints.subsets.iter().flatten().map(told).collect();
        assert_eq!(told, expected, "{spec}");
    };
    let one = pod(1, true, false, "Running");
    check(&spec, &[&one, &both, &none], &["8080 at 10.1.0.1,10.1.0.2", "9090 at 10.1.0.2"]);
    check(&spec, &[&both], &["8080,9090 at 10.1.0.2"]);
    check(&spec, &[&none], &[]);
    let headless = json!({"selector": {"app": "web"}, "clusterIP": "None"});
    check(&headless, &[&one, &none], &[" at 10.1.0.1,10.1.0.3"]);
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
    // The earliest of those that are other than they were.
    check(&[pod(1, true, 7), pod(2, true, 9)], 1, Some("2026-01-01T00:01:07Z"));
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
        let plan = EndpointsController::default().reconcile(&Key::new("ns", "web"), &caches.view(), Time::default());
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
fn what_is_refused_is_told() {
    let caches = caches(&web(), &[], &[], &[]);
    let key = Key::new("ns", "web");
    let error = StatusError { code: 403, message: "no".into(), ..StatusError::default() };
    let check = |controller: &mut dyn Controller, expected: &str| {
        let plan = controller.reconcile(&key, &caches.view(), Time::default());
        let refusal = Refusal { write: &plan.writes[0], error: &error };
        let told = controller.refused(&key, &caches.view(), &refusal, Time::default()).events;
        let told: Vec<String> =
            told.iter().map(|e| format!("{:?} {}: {}", e.regarding.kind, e.reason, e.message)).collect();
        assert_eq!(told, [expected]);
    };
    check(
        &mut EndpointSliceController::default(),
        "Some(\"Service\") FailedToUpdateEndpointSlices: Error updating Endpoint Slices for Service ns/web: \
         failed to create EndpointSlice for Service ns/web: no",
    );
    check(
        &mut EndpointsController::default(),
        "Some(\"Endpoints\") FailedToCreateEndpoint: Failed to create endpoint for service ns/web: no",
    );
}

#[test]
fn what_is_mirrored_has_its_limits() {
    let plain = service(json!({"ports": [{"port": 5432}]}));
    let addresses =
        |n: usize| (0..n).map(|n| json!({"ip": format!("192.0.{}.{}", n / 250, n % 250)})).collect::<Vec<_>>();
    let subset = |ready: Vec<Value>, others: Vec<Value>, port: u32| json!({"addresses": ready, "notReadyAddresses": others, "ports": [{"port": port}]});
    let check = |subsets: Value, mirrored: usize, told: &[&str]| {
        let endpoints = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "e"}, "subsets": subsets});
        let caches = caches(&plain, &[], &[], &[endpoints]);
        let plan = plan_of(&caches);
        let mut slices = Vec::new();
        apply(&plan, &mut slices);
        assert_eq!(slices.iter().map(|s| s.endpoints.as_ref().map_or(0, Vec::len)).sum::<usize>(), mirrored);
        assert_eq!(slices.len(), subsets.as_array().map_or(0, Vec::len), "a subset comes to one slice");
        assert_eq!(plan.events.iter().map(|e| format!("{}: {}", e.reason, e.message)).collect::<Vec<_>>(), told);
    };
    check(json!([subset(addresses(1000), vec![], 1)]), 1000, &[]);
    let too_many = "TooManyAddressesToMirror: A max of 1000 addresses can be mirrored to EndpointSlices per Endpoints \
                    subset. 3 addresses were skipped";
    let late = vec![json!({"ip": "198.51.100.1"})];
    check(json!([subset(addresses(1002), late, 1), subset(addresses(10), vec![], 2)]), 1010, &[too_many]);
    let invalid = "InvalidIPAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices";
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
        let plan = plan_of(&caches);
        apply(&plan, slices);
        slices[0].endpoints.as_ref().and_then(|all| all[0].zone.clone())
    };
    assert_eq!(look(json!({}), &mut slices), None);
    assert_eq!(look(json!({ ZONE: "z2" }), &mut slices), Some("z2".to_owned()));
    // The services of its pods are looked at when a node comes.
    let caches = caches(&web(), &mine, &slices, &[]).with_index::<Pod>(BY_NODE, pods::by_node);
    assert_eq!(caches.keys_for::<Node>(&EndpointSliceController::default()), BTreeSet::from([Key::new("ns", "web")]));
}
