//! What classes keep is what they would find anew, and what a plain reading of the rules says.

use std::collections::BTreeSet;
use std::sync::Arc;

use carrack_engine::Rng;
use k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Class;
use crate::{Cluster, Decider, Found, NodeId, Plugin, Pod, PodInfo, Profile, Question};

fn node(name: &str, zone: Option<u8>, cpu: u8, tainted: bool) -> Arc<Node> {
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = zone {
        labels["zone"] = format!("z{zone}").into();
    }
    let taints = if tainted { json!([{"key": "soft", "effect": "PreferNoSchedule"}]) } else { json!([]) };
    let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": cpu.to_string(), "memory": "8Gi", "pods": "6"}}});
    Arc::new(serde_json::from_value(object).expect("a node"))
}

fn term(app: u8, key: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": format!("a{app}")}}})
}

fn spread(app: u8, key: &str, when: &str) -> Value {
    json!([{"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": format!("a{app}")}}}])
}

/// Specs of pods, by number.
fn spec(shape: u8, app: u8) -> Value {
    const HOST: &str = "kubernetes.io/hostname";
    let required = |term: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    let preferred = |term: Value| json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm": term}]});
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "700m", "memory": "1Gi"}}}]});
    match shape {
        0 => {}
        1 => spec["affinity"] = json!({"podAffinity": required(term(app, "zone"))}),
        2 => spec["affinity"] = json!({"podAntiAffinity": required(term(app, HOST))}),
        3 => spec["affinity"] = json!({"podAntiAffinity": required(term(app, "zone"))}),
        4 => spec["topologySpreadConstraints"] = spread(app, "zone", "DoNotSchedule"),
        5 => spec["topologySpreadConstraints"] = spread(app, HOST, "DoNotSchedule"),
        6 => spec["topologySpreadConstraints"] = spread(app, HOST, "ScheduleAnyway"),
        7 => spec["affinity"] = json!({"podAffinity": preferred(term(app, "zone"))}),
        8 => spec["affinity"] = json!({"podAntiAffinity": preferred(term(app, HOST))}),
        9 => spec["affinity"] = json!({"podAffinity": required(term(app, HOST))}),
        10 => spec["topologySpreadConstraints"] = spread(app, "zone", "ScheduleAnyway"),
        _ => spec["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": 80}]),
    }
    spec
}

fn pod(uid: &str, shape: u8, app: u8) -> Arc<Pod> {
    let object = json!({"metadata": {"name": uid, "uid": uid, "namespace": "d", "labels": {"app": format!("a{app}")}},
        "spec": spec(shape, app)});
    Arc::new(serde_json::from_value(object).expect("a pod"))
}

fn nobody(_: &str) -> Vec<Arc<PodInfo>> {
    Vec::new()
}

/// What a decider says about a pod: who fits, why others don't, and how good each is.
fn answers(decider: &mut Decider, pod: &Arc<Pod>) -> (Vec<NodeId>, String, Vec<(NodeId, i64)>) {
    let info = decider.cluster.read(pod.clone());
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &nobody };
    let (fitting, refusals) = match decider.find(question, None, true, &mut Rng::new(0)) {
        Found::List(nodes, refusals) => (nodes, format!("{refusals:?}")),
        Found::Nobody(error) => (Vec::new(), format!("{:?}", error.refusals)),
        Found::Node(..) => panic!("a list was asked for"),
    };
    let scores = decider.scores_of(question, &fitting);
    (fitting, refusals, scores)
}

/// What every node says to pods of all shapes.
fn answers_by_name(decider: &mut Decider) -> Vec<String> {
    let profile = Arc::new(Profile::default());
    (0..12)
        .flat_map(|shape| [(shape, 0), (shape, 1)])
        .map(|(shape, app)| {
            let info = decider.cluster.read(pod("asking", shape, app));
            format!("{:?}", decider.answers(Question { pod: &info, profile: &profile, nominated: &nobody }))
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Node(u8, Option<u8>, u8, bool),
    NodeGone(u8),
    Place(u8, u8, u8, u8),
    PodGone(u8),
    Renumber,
    Ask(u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..6_u8, prop::option::weighted(0.9, 0..3_u8), 1..6_u8, any::<bool>()).prop_map(|(n, z, c, t)| Step::Node(n, z, c, t)),
        1 => (0..6_u8).prop_map(Step::NodeGone),
        4 => (0..20_u8, 0..12_u8, 0..2_u8, 0..6_u8).prop_map(|(p, s, a, n)| Step::Place(p, s, a, n)),
        2 => (0..20_u8).prop_map(Step::PodGone),
        1 => Just(Step::Renumber),
        4 => (0..12_u8, 0..2_u8).prop_map(|(s, a)| Step::Ask(s, a)),
    ];
    prop::collection::vec(step, 1..60)
}

/// The rules, read plainly: whether a pod of this shape fits a node.
fn fits_plainly(cluster: &Cluster, shape: u8, app: u8, candidate: NodeId) -> bool {
    let label = |id: NodeId, key: &str| cluster.node(id).and_then(|n| n.labels()?.get(key).cloned());
    let pods: Vec<(NodeId, Arc<PodInfo>)> = (0..20_u8)
        .filter_map(|n| cluster.pod(&format!("p{n}")))
        .filter_map(|seat| Some((cluster.find(cluster.node_of(&seat.info.uid)?)?, seat.info.clone())))
        .filter(|(id, _)| cluster.node(*id).is_some_and(|n| n.exists()))
        .collect();
    let mine = format!("a{app}");
    let is_app = |p: &PodInfo, app: &str| p.pod.labels["app"] == *app;
    let in_domain = |key: &str, of: &str| {
        let here = label(candidate, key)?;
        Some(pods.iter().filter(|(id, p)| label(*id, key).as_ref() == Some(&here) && is_app(p, of)).count())
    };
    let Some(node) = cluster.node(candidate) else { return false };
    let cpu: i64 = 700 * i64::try_from(node.pods.len() + 1).expect("few");
    if cpu > node.allocatable.get(0) || node.pods.len() + 1 > 6 {
        return false;
    }
    if shape == 11 && !node.ports.is_empty() {
        return false;
    }
    // Anti-affinity of those who are there.
    for (id, p) in &pods {
        let spec = serde_json::to_value(p.spec()).expect("a spec");
        let anti = spec.pointer("/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0");
        if let Some(term) = anti {
            let key = term["topologyKey"].as_str().expect("a key");
            let means_me = term["labelSelector"]["matchLabels"]["app"] == mine.as_str();
            if means_me && label(*id, key).is_some() && label(*id, key) == label(candidate, key) {
                return false;
            }
        }
    }
    const HOST: &str = "kubernetes.io/hostname";
    let skew = |key: &str| {
        let Some(here) = in_domain(key, &mine) else { return false };
        let values: BTreeSet<String> = cluster.nodes().filter_map(|(id, _)| label(id, key)).collect();
        let least = values
            .iter()
            .map(|v| pods.iter().filter(|(id, p)| label(*id, key).as_ref() == Some(v) && is_app(p, &mine)).count())
            .min();
        here + 1 - least.unwrap_or(0) <= 1
    };
    let together = |key: &str| {
        let anywhere = pods.iter().any(|(id, p)| is_app(p, &mine) && label(*id, key).is_some());
        in_domain(key, &mine).is_some_and(|n| n > 0 || !anywhere)
    };
    match shape {
        1 => together("zone"),
        9 => together(HOST),
        2 => in_domain(HOST, &mine).unwrap_or(0) == 0,
        3 => in_domain("zone", &mine).unwrap_or(0) == 0,
        4 => skew("zone"),
        5 => skew(HOST),
        _ => true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn what_is_kept_is_what_would_be_found_anew(steps in steps()) {
        let mut decider = Decider::default();
        for step in steps {
            match step {
                Step::Node(n, zone, cpu, tainted) => {
                    decider.cluster.set_node(node(&format!("n{n}"), zone, cpu, tainted));
                }
                Step::NodeGone(n) => decider.cluster.remove_node(&format!("n{n}")),
                Step::Place(p, shape, app, n) => {
                    let mut bound = (*pod(&format!("p{p}"), shape, app)).clone();
                    bound.node = format!("n{n}").into();
                    decider.cluster.set_pod(&Arc::new(bound));
                }
                Step::Renumber => {
                    let before: Vec<String> = answers_by_name(&mut decider);
                    decider.cluster = std::mem::take(&mut decider.cluster).renumbered();
                    decider.forget_classes();
                    prop_assert_eq!(before, answers_by_name(&mut decider));
                }
                Step::PodGone(p) => drop(decider.cluster.remove_pod(&format!("p{p}"))),
                Step::Ask(shape, app) => {
                    let pod = pod("asking", shape, app);
                    let kept = answers(&mut decider, &pod);
                    decider.forget_classes();
                    let anew = answers(&mut decider, &pod);
                    prop_assert_eq!(&kept, &anew, "shape {} app {}", shape, app);
                    for (id, info) in decider.cluster.nodes() {
                        let plain = fits_plainly(&decider.cluster, shape, app, id);
                        prop_assert_eq!(kept.0.contains(&id), plain, "shape {} app {} on {}: {}", shape, app, info.name, kept.1);
                    }
                }
            }
        }
    }
}

/// Whether what pods are elsewhere decides if a node takes a pod, by the shapes of the pod and of one that has a node.
/// Where it only decides how good nodes are, what preemption has found out about each of them is kept.
#[test]
fn what_makes_nodes_better_keeps_nobody_away() {
    let check = |shape: u8, placed: u8, expected: bool| {
        let mut cluster = Cluster::default();
        cluster.set_node(node("n0", Some(0), 4, false));
        let mut there = (*pod("p0", placed, 0)).clone();
        there.node = "n0".into();
        cluster.set_pod(&Arc::new(there));
        let info = cluster.read(pod("asking", shape, 0));
        let class = Class::new(info, Arc::new(Profile::default()), None, &mut cluster);
        assert_eq!(class.is_global(), expected, "shape {shape} beside {placed}");
    };
    for shape in [0, 6, 7, 8, 10, 11] {
        check(shape, 0, false);
        // Who is wanted near, and who is wanted away.
        check(shape, 1, false);
        check(shape, 8, false);
        check(shape, 2, true);
        check(shape, 3, true);
    }
    for shape in [1, 2, 3, 4, 5, 9] {
        check(shape, 0, true);
    }
}

/// A namespace that comes is a reason to ask all nodes anew where a pod chooses others by the labels of their
/// namespaces.
#[test]
fn namespaces_matter_to_who_chooses_by_them() {
    for chooses in [false, true] {
        let mut cluster = Cluster::default();
        let mut wants = term(0, "zone");
        if chooses {
            wants["namespaceSelector"] = json!({"matchLabels": {"team": "a"}});
        }
        let object = json!({"metadata": {"name": "p", "uid": "p", "namespace": "d"}, "spec": {"containers": [],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [wants]}}}});
        cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")));
        let before = cluster.epoch();
        let labels = [("team".to_owned(), "a".to_owned())];
        cluster.set_namespace("others", Some(labels.clone().into()));
        assert_eq!(cluster.epoch() != before, chooses, "chooses: {chooses}");
        let before = cluster.epoch();
        cluster.set_namespace("others", Some(labels.into()));
        assert_eq!(cluster.epoch(), before, "nothing has changed");
    }
}

#[test]
fn every_plugin_has_a_name() {
    for plugin in Plugin::ALL {
        // What refuses in the name of these is no plugin that could be turned on or off.
        let is_one = !matches!(plugin, Plugin::DynamicResources | Plugin::Extender);
        assert_eq!(Plugin::find(plugin.name()), is_one.then_some(*plugin));
    }
}

/// Pods name as many topology keys as they like, and each takes room of every node: forgotten are they as names are.
#[test]
fn topology_keys_count_with_the_nodes_that_have_them() {
    let mut cluster = Cluster::default();
    for number in 0..64 {
        cluster.set_node(node(&format!("n{number}"), None, 4, false));
    }
    let before = cluster.names();
    for number in 0..10 {
        cluster.topology(&format!("key-{number}"));
    }
    assert_eq!(cluster.names() - before, 30);
}
