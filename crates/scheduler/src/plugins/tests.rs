use std::sync::Arc;

use carrack_engine::Rng;
use serde_json::{Value, json};

use crate::{Cluster, Decider, FitStrategy, Found, PodInfo, Profile, Question};

fn nobody(_: &str) -> Vec<Arc<PodInfo>> {
    Vec::new()
}

/// A cluster of nodes and bound pods.
fn cluster(nodes: &[Value], pods: &[Value]) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.set_node(Arc::new(serde_json::from_value(node.clone()).expect("a node")));
    }
    for pod in pods {
        cluster.set_pod(&Arc::new(serde_json::from_value(pod.clone()).expect("a pod")));
    }
    cluster
}

fn pod_of(spec: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "d", "uid": "p", "labels": {"app": "x"}}, "spec": spec})
}

fn ask(decider: &mut Decider, pod: &Value, profile: Profile) -> Found {
    let info = decider.cluster.read(Arc::new(serde_json::from_value(pod.clone()).expect("a pod")));
    let profile = Arc::new(profile);
    decider.find(Question { pod: &info, profile: &profile, nominated: &nobody }, None, false, &mut Rng::new(1))
}

/// Asks the default filters whether a node with one pod of 600m on host port 80 takes another pod.
fn check(node: &Value, spec: &Value, expected: &[&str]) {
    let there = json!({"metadata": {"name": "t", "namespace": "d", "uid": "t"}, "spec": {"nodeName": "n",
        "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"requests": {"cpu": "600m"}}}]}});
    let mut decider = Decider::new(cluster(std::slice::from_ref(node), &[there]));
    let reasons: Vec<String> = match ask(&mut decider, &pod_of(spec), Profile::default()) {
        Found::Nobody(error) => error.reasons().into_keys().collect(),
        _ => Vec::new(),
    };
    assert_eq!(reasons, expected, "{spec} on {node}");
}

#[test]
fn default_filters() {
    let node = |spec: Value| {
        json!({"metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": spec,
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "2", "example.com/gpu": "1"}}})
    };
    let asks = |requests: Value| json!({"containers": [{"name": "c", "resources": {"requests": requests}}]});
    let plain = node(json!({}));
    check(&plain, &asks(json!({"cpu": "400m", "memory": "1Gi"})), &[]);
    check(&plain, &asks(json!({"cpu": "401m"})), &["Insufficient cpu"]);
    check(&plain, &asks(json!({"cpu": "2", "memory": "2Gi"})), &["Insufficient cpu", "Insufficient memory"]);
    check(&plain, &asks(json!({"example.com/gpu": "2"})), &["Insufficient example.com/gpu"]);
    check(&plain, &asks(json!({"example.com/unknown": "1"})), &["Insufficient example.com/unknown"]);
    check(&plain, &asks(json!({"cpu": "9E", "memory": "8E"})), &["Insufficient cpu", "Insufficient memory"]);
    let port = |port: Value| json!({"containers": [{"name": "c", "ports": [port]}]});
    check(
        &plain,
        &port(json!({"containerPort": 1, "hostPort": 80, "hostIP": "127.0.0.1"})),
        &["node(s) didn't have free ports for the requested pod ports"],
    );
    check(&plain, &port(json!({"containerPort": 1, "hostPort": 80, "protocol": "UDP"})), &[]);
    check(
        &plain,
        &json!({"containers": [], "nodeSelector": {"zone": "b"}}),
        &["node(s) didn't match Pod's node affinity/selector"],
    );
    let named = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
    let contradicts = json!({"containers": [], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [named("n"), named("m")]}]}}}});
    check(&plain, &contradicts, &["pod affinity terms conflict"]);
    check(&node(json!({"unschedulable": true})), &asks(json!({})), &["node(s) were unschedulable"]);
    check(
        &node(json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]})),
        &asks(json!({})),
        &["node(s) had untolerated taint(s)"],
    );
    let all = json!({"containers": [{"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}]});
    let mut declares = plain.clone();
    declares["status"]["declaredFeatures"] = json!(["Other", "RestartAllContainersOnContainerExits"]);
    check(&plain, &all, &["node(s) didn't match Pod's required features"]);
    check(&declares, &all, &[]);
    check(&declares, &asks(json!({"cpu": "400m"})), &[]);
    let mut full = plain.clone();
    full["status"]["allocatable"]["pods"] = "1".into();
    check(&full, &asks(json!({})), &["Too many pods"]);
    let devices = json!({"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]});
    check(&plain, &devices, &["pod has resource claims, for which this scheduler allocates no devices"]);
    let claim = json!({"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}]});
    check(&plain, &claim, &["persistentvolumeclaim \"gone\" not found"]);
    let hard = json!([{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}}}]);
    check(
        &plain,
        &json!({"containers": [], "topologySpreadConstraints": hard}),
        &["node(s) didn't match pod topology spread constraints (missing required label)"],
    );
    let term = json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "other"}}}]);
    check(
        &plain,
        &json!({"containers": [], "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}),
        &["node(s) didn't match pod affinity rules"],
    );
}

/// Of two nodes, which is chosen.
fn chosen(first: Value, second: Value, pods: &[Value], spec: &Value, profile: Profile, expected: &str) {
    let node = |name: &str, more: Value| {
        let mut node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "example.com/gpu": "8"}}});
        for (path, value) in more.as_object().into_iter().flatten() {
            *node.pointer_mut(path).expect("a path") = value.clone();
        }
        node
    };
    let nodes = [node("one", first), node("two", second)];
    let mut decider = Decider::new(cluster(&nodes, pods));
    match ask(&mut decider, &pod_of(spec), profile) {
        Found::Node(id, _) => {
            assert_eq!(&*decider.cluster.node(id).expect("a node").name, expected, "{spec} {pods:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn scores_choose() {
    let none = || json!({});
    let there = |node: &str, uid: &str, requests: Value| {
        json!({"metadata": {"name": uid, "namespace": "d", "uid": uid, "labels": {"app": "x"}}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": requests}}]}})
    };
    let spec = json!({"containers": [{"name": "c", "image": "big", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}]});
    let busy = [there("one", "t", json!({"cpu": "1", "memory": "2Gi"}))];
    chosen(none(), none(), &busy, &spec, Profile::default(), "two");
    // Of the nodes that a pod names the better one, unless nobody looks at what it names.
    let naming = |names: &[&str]| {
        let mut spec = spec.clone();
        let named = json!([{"key": "metadata.name", "operator": "In", "values": names}]);
        spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": named}]}}});
        spec
    };
    chosen(none(), none(), &busy, &naming(&["one", "two"]), Profile::default(), "two");
    chosen(none(), none(), &busy, &naming(&["one"]), Profile::default(), "one");
    let mut careless = Profile::default();
    careless.filters.remove(crate::Plugin::NodeAffinity);
    chosen(none(), none(), &busy, &naming(&["one"]), careless, "two");
    let most = Profile { fit_strategy: FitStrategy::MostAllocated, ..Profile::default() };
    chosen(none(), none(), &busy, &spec, most, "one");
    let ratio = FitStrategy::RequestedToCapacityRatio(vec![(0, 0), (100, 10)]);
    chosen(none(), none(), &busy, &spec, Profile { fit_strategy: ratio, ..Profile::default() }, "one");
    // CPU and memory used alike is better.
    let uneven = [there("one", "t", json!({"cpu": "2"})), there("two", "u", json!({"cpu": "1", "memory": "2Gi"}))];
    chosen(none(), none(), &uneven, &spec, Profile::default(), "two");
    // What makes a node's use more even goes before what is even there already.
    let memory = json!({"containers": [{"name": "c", "resources": {"requests": {"memory": "2Gi"}}}]});
    chosen(none(), none(), &uneven, &memory, Profile::default(), "one");
    let soft = json!({"/spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    chosen(soft, none(), &[], &spec, Profile::default(), "two");
    let image = json!({"/status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "images": [{"names": ["big:latest"], "sizeBytes": 900 << 20}]}});
    chosen(none(), image.clone(), &[], &spec, Profile::default(), "two");
    let mut mounts = spec.clone();
    mounts["containers"][0]["image"] = "small".into();
    mounts["volumes"] = json!([{"name": "v", "image": {"reference": "big"}}]);
    chosen(none(), image, &[], &mounts, Profile::default(), "two");
    let prefers = |kind: &str| {
        let mut with = spec.clone();
        with["affinity"] = json!({kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100,
            "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}}]}});
        with
    };
    let small = [there("one", "t", json!({}))];
    chosen(none(), none(), &small, &prefers("podAffinity"), Profile::default(), "one");
    chosen(none(), none(), &small, &prefers("podAntiAffinity"), Profile::default(), "two");
}

#[test]
fn volumes_decide() {
    let node = |name: &str| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}})
    };
    let mut decider = Decider::new(cluster(&[node("one"), node("two")], &[]));
    let objects = &mut decider.cluster.objects;
    let key = |ns: &str, name: &str| (ns.to_owned(), name.to_owned());
    let at = |host: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}})
    };
    for (name, size, host) in [("small", "1Gi", "two"), ("large", "9Gi", "one")] {
        let volume = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": size}, "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"], "nodeAffinity": at(host)}, "status": {"phase": "Available"}});
        objects.volumes.insert(key("", name), Arc::new(serde_json::from_value(volume).expect("a volume")));
    }
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    objects.classes.insert(key("", "local"), Arc::new(serde_json::from_value(class).expect("a class")));
    let mut claim = |size: &str, mode: &str| {
        let claim = json!({"metadata": {"name": "c", "namespace": "d", "uid": "c"}, "spec": {"storageClassName": "local",
            "accessModes": [mode], "resources": {"requests": {"storage": size}}}});
        decider.cluster.objects.claims.insert(key("d", "c"), Arc::new(serde_json::from_value(claim).expect("a claim")));
        let spec = json!({"containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
        match ask(&mut decider, &pod_of(&spec), Profile::default()) {
            Found::Node(id, plan) => {
                let node = decider.cluster.node(id).expect("a node").name.to_string();
                Ok((node, plan.bindings.into_iter().map(|(_, volume)| volume).collect::<Vec<_>>()))
            }
            Found::Nobody(error) => Err(error.to_string()),
            Found::List(..) => panic!("no list was asked for"),
        }
    };
    let large = ("one".to_owned(), vec!["large".to_owned()]);
    assert_eq!(claim("5Gi", "ReadWriteOnce"), Ok(large));
    let none = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.";
    assert_eq!(claim("10Gi", "ReadWriteOnce"), Err(none.to_owned()));
    assert_eq!(claim("1Gi", "ReadWriteMany"), Err(none.to_owned()));
}

#[test]
fn the_least_important_pods_go() {
    let node = |name: &str| json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}});
    let there = |node: &str, uid: &str, priority: i32, cpu: &str| {
        json!({"metadata": {"name": uid, "namespace": "d", "uid": uid, "labels": {"app": uid}}, "spec": {"nodeName": node,
            "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    let spec = json!({"priority": 10, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
    let victims = |pods: &[Value], budget: Option<&str>| {
        let mut decider = Decider::new(cluster(&[node("one"), node("two")], pods));
        if let Some(app) = budget {
            let budget = json!({"metadata": {"name": "b", "namespace": "d"},
                "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": 0}});
            let budget = Arc::new(serde_json::from_value(budget).expect("a budget"));
            decider.cluster.objects.budgets.insert(("d".into(), "b".into()), budget);
        }
        let info = decider.cluster.read(Arc::new(serde_json::from_value(pod_of(&spec)).expect("a pod")));
        let profile = Arc::new(Profile::default());
        let question = Question { pod: &info, profile: &profile, nominated: &nobody };
        decider
            .candidates(question, 1)
            .map(|found| found.iter().flat_map(|c| &c.victims).map(|p| p.uid.to_string()).collect::<Vec<_>>())
    };
    let full = |a: i32, b: i32| [there("one", "a", a, "2"), there("two", "b", b, "2")];
    assert_eq!(victims(&full(1, 2), None), Ok(vec!["a".to_owned()]), "the least important");
    assert_eq!(victims(&full(1, 2), Some("a")), Ok(vec!["b".to_owned()]), "no budget is overdrawn");
    let spared = [there("one", "a", 1, "1"), there("one", "c", 3, "1"), there("two", "b", 11, "2")];
    assert_eq!(victims(&spared, None), Ok(vec!["a".to_owned()]), "no more than needed");
    let why = victims(&full(10, 11), None).expect_err("nobody is less important");
    assert_eq!(why.into_iter().collect::<Vec<_>>(), [("No preemption victims found for incoming pod".to_owned(), 2)]);
}

/// A less important pod without labels, in a namespace with a budget that is spent, and a more important one elsewhere:
/// who goes, by the budget's selector.
#[test]
fn a_budget_for_all_of_a_namespace_is_about_pods_without_labels_too() {
    let node = |name: &str| json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "2", "pods": "110"}}});
    let there = |uid: &str, namespace: &str, node: &str, priority: i32| {
        json!({"metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": {"nodeName": node,
            "priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}})
    };
    let unlabelled = json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
    let labelled = json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
    for (selector, expected) in [(json!({}), "b"), (unlabelled, "b"), (labelled, "a"), (Value::Null, "a")] {
        let pods = [there("a", "guarded", "one", 1), there("b", "d", "two", 2)];
        let mut decider = Decider::new(cluster(&[node("one"), node("two")], &pods));
        let budget = json!({"metadata": {"name": "b", "namespace": "guarded"}, "spec": {"selector": selector},
            "status": {"disruptionsAllowed": i32::MIN}});
        let budget = Arc::new(serde_json::from_value(budget).expect("a budget"));
        decider.cluster.objects.budgets.insert(("guarded".into(), "b".into()), budget);
        let spec = json!({"priority": 10, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
        let info = decider.cluster.read(Arc::new(serde_json::from_value(pod_of(&spec)).expect("a pod")));
        let profile = Arc::new(Profile::default());
        let found = decider.candidates(Question { pod: &info, profile: &profile, nominated: &nobody }, 1);
        let gone = found.expect("a node").into_iter().flat_map(|c| c.victims).map(|p| p.uid.to_string());
        assert_eq!(gone.collect::<Vec<_>>(), [expected], "{selector}");
    }
}

/// Three nodes in two zones, with so many pods of `app: x` each; which take a pod of the same app, and what the others say.
fn check_among(pods: [usize; 3], spec: &Value, expected: [&str; 3]) {
    check_tainted(None, pods, spec, expected);
}

/// The same with a taint on one of the nodes.
fn check_tainted(tainted: Option<&str>, pods: [usize; 3], spec: &Value, expected: [&str; 3]) {
    let node = |name: &str, zone: &str| {
        let taints = if tainted == Some(name) { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "zone": zone}},
            "spec": {"taints": taints}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}})
    };
    let names = ["one", "two", "three"];
    let nodes: Vec<Value> = names.iter().zip(["a", "a", "b"]).map(|(name, zone)| node(name, zone)).collect();
    let there = |node: &str, n: usize| {
        let uid = format!("{node}{n}");
        json!({"metadata": {"name": uid, "namespace": "d", "uid": uid, "labels": {"app": "x"}},
            "spec": {"nodeName": node, "containers": []}})
    };
    let there: Vec<Value> =
        names.iter().zip(pods).flat_map(|(node, count)| (0..count).map(move |n| there(node, n))).collect();
    let mut decider = Decider::new(cluster(&nodes, &there));
    decider.cluster.set_namespace("d", Some([("env".to_owned(), "prod".to_owned())].into()));
    let info = decider.cluster.read(Arc::new(serde_json::from_value(pod_of(spec)).expect("a pod")));
    let profile = Arc::new(Profile::default());
    let answers = decider.answers(Question { pod: &info, profile: &profile, nominated: &nobody });
    let said = |name: &str| {
        let answer = answers.iter().find(|answer| answer.node == name).expect("the node");
        answer.refusals.iter().flat_map(|r| r.reasons.clone()).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(names.map(said), expected, "{pods:?} {spec}");
}

/// PodTopologySpread and InterPodAffinity, as filters.
#[test]
fn what_is_elsewhere_decides() {
    const SKEWED: &str = "node(s) didn't match pod topology spread constraints";
    const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
    const NOT_NEAR: &str = "node(s) didn't match pod affinity rules";
    const TOO_NEAR: &str = "node(s) didn't match pod anti-affinity rules";
    const HOST: &str = "kubernetes.io/hostname";
    let app = |app: &str| json!({"matchLabels": {"app": app}});
    let spread = |key: &str, more: Value| {
        let mut constraint =
            json!({"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": app("x")});
        for (field, value) in more.as_object().into_iter().flatten() {
            constraint[field] = value.clone();
        }
        json!({"containers": [], "topologySpreadConstraints": [constraint]})
    };
    let none = json!({});
    check_among([0, 0, 0], &spread("zone", none.clone()), ["", "", ""]);
    check_among([1, 0, 0], &spread("zone", none.clone()), [SKEWED, SKEWED, ""]);
    check_among([1, 0, 1], &spread("zone", none.clone()), ["", "", ""]);
    check_among([1, 0, 0], &spread(HOST, none.clone()), [SKEWED, "", ""]);
    check_among([1, 1, 0], &spread("zone", json!({"maxSkew": 3})), ["", "", ""]);
    check_among([2, 1, 0], &spread("zone", json!({"maxSkew": 3})), [SKEWED, SKEWED, ""]);
    check_among([1, 0, 1], &spread("zone", json!({"minDomains": 3})), [SKEWED, SKEWED, SKEWED]);
    check_among([9, 0, 0], &spread("zone", json!({"whenUnsatisfiable": "ScheduleAnyway"})), ["", "", ""]);
    check_among([9, 0, 0], &spread("zone", json!({"labelSelector": app("y")})), ["", "", ""]);
    check_among([0, 0, 0], &spread("rack", none), [NO_LABEL, NO_LABEL, NO_LABEL]);
    // Where a pod cannot go does not count, unless it is told to.
    let elsewhere = |policy: &str| {
        let mut spec = spread("zone", json!({"nodeAffinityPolicy": policy}));
        spec["nodeSelector"] = json!({"zone": "a"});
        spec
    };
    let mismatch = "node(s) didn't match Pod's node affinity/selector";
    check_among([1, 0, 0], &elsewhere("Honor"), ["", "", mismatch]);
    check_among([1, 0, 0], &elsewhere("Ignore"), [SKEWED, SKEWED, mismatch]);
    let tainted = "node(s) had untolerated taint(s)";
    check_tainted(Some("three"), [1, 0, 0], &spread("zone", json!({})), [SKEWED, SKEWED, tainted]);
    check_tainted(Some("three"), [1, 0, 0], &spread("zone", json!({"nodeTaintsPolicy": "Honor"})), ["", "", tainted]);
    // The pod's own labels decide beside the selector.
    let keys = |app_of: Value| json!({"labelSelector": app_of, "matchLabelKeys": ["app", "none"]});
    check_among([1, 0, 0], &spread("zone", keys(json!({}))), [SKEWED, SKEWED, ""]);
    check_among([9, 0, 0], &spread("zone", keys(app("y"))), ["", "", ""]);
    let affinity = |kind: &str, of: &str, key: &str| {
        let terms = json!([{"topologyKey": key, "labelSelector": app(of)}]);
        json!({"containers": [], "affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    check_among([1, 0, 0], &affinity("podAffinity", "x", "zone"), ["", "", NOT_NEAR]);
    check_among([1, 0, 0], &affinity("podAffinity", "x", HOST), ["", NOT_NEAR, NOT_NEAR]);
    // The first of those that want to be together goes anywhere; one that wants others waits for them.
    check_among([0, 0, 0], &affinity("podAffinity", "x", "zone"), ["", "", ""]);
    check_among([0, 0, 0], &affinity("podAffinity", "y", "zone"), [NOT_NEAR, NOT_NEAR, NOT_NEAR]);
    check_among([1, 0, 0], &affinity("podAntiAffinity", "x", "zone"), [TOO_NEAR, TOO_NEAR, ""]);
    check_among([1, 0, 0], &affinity("podAntiAffinity", "x", HOST), [TOO_NEAR, "", ""]);
    check_among([1, 1, 1], &affinity("podAntiAffinity", "y", HOST), ["", "", ""]);
    // Of which namespaces, and which labels beside the selector.
    let anti = |more: &Value| {
        let mut term = json!({"topologyKey": HOST, "labelSelector": app("x")});
        for (field, value) in more.as_object().into_iter().flatten() {
            term[field] = value.clone();
        }
        json!({"containers": [], "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    let env = |env: &str| json!({"matchLabels": {"env": env}});
    for (more, meant) in [
        (json!({"namespaces": ["d"]}), true),
        (json!({"namespaces": ["other"]}), false),
        (json!({"namespaceSelector": {}}), true),
        (json!({"namespaceSelector": env("prod")}), true),
        (json!({"namespaceSelector": env("test")}), false),
        (json!({"namespaces": ["d"], "namespaceSelector": env("test")}), true),
        (json!({"labelSelector": {}, "matchLabelKeys": ["app", "none"]}), true),
        (json!({"labelSelector": {}, "mismatchLabelKeys": ["app", "none"]}), false),
        (json!({"labelSelector": null}), false),
    ] {
        check_among([1, 0, 0], &anti(&more), [if meant { TOO_NEAR } else { "" }, "", ""]);
    }
}
