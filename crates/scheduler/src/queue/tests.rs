use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{DEFAULT_SCHEDULER_NAME, Refusal};

fn at(s: i64) -> Time {
    Time::from_unix_s(1000 + s)
}

fn pod(cluster: &mut Cluster, uid: &str, priority: i32, gated: bool) -> Arc<PodInfo> {
    let gates = if gated { json!([{"name": "g"}]) } else { json!([]) };
    let object = json!({"metadata": {"name": uid, "uid": uid},
        "spec": {"priority": priority, "schedulingGates": gates, "containers": [],
            "schedulerName": DEFAULT_SCHEDULER_NAME}});
    cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")))
}

fn node(name: &str) -> Arc<k8s_openapi::api::core::v1::Node> {
    let object = json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "1", "pods": "10"}}});
    Arc::new(serde_json::from_value(object).expect("a node"))
}

fn fit() -> PluginSet {
    PluginSet::of(Refusal::resolvable(Plugin::NodeResourcesFit, "x").plugin)
}

#[test]
fn priority_comes_first_then_age() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    for (uid, priority, s) in [("b", 0, 1), ("a", 0, 2), ("c", 5, 3)] {
        q.set(pod(&mut cluster, uid, priority, false), Arc::default(), at(s));
    }
    let order: Vec<String> = std::iter::from_fn(|| q.pop(at(9))).map(|r| r.pod.uid.to_string()).collect();
    assert_eq!(order, ["c", "b", "a"]);
}

/// How long a gate is closed is up to whoever put it there.
#[test]
fn who_is_held_back_by_gates_is_counted_and_has_not_come_yet() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    q.set(pod(&mut cluster, "a", 0, true), Arc::default(), at(0));
    let gates = (Plugin::SchedulingGates, DEFAULT_SCHEDULER_NAME);
    assert_eq!(q.refused(), [(gates, 1)].into());
    q.set(pod(&mut cluster, "a", 0, false), Arc::default(), at(100));
    assert_eq!(q.refused(), BTreeMap::new());
    assert_eq!(q.pop(at(101)).expect("a").first_seen, at(100));
    q.retry("a", at(101));
    assert_eq!(q.pop(at(110)).expect("a").first_seen, at(100), "each other try is of the same wait");
}

#[test]
fn a_pod_in_flight_has_one_owner() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    q.set(pod(&mut cluster, "a", 0, false), Arc::default(), at(1));
    q.pop(at(1)).expect("a");
    q.set(pod(&mut cluster, "a", 1, false), Arc::default(), at(1));
    assert!(q.pop(at(1)).is_none(), "an update does not put it back");
    q.retry("a", at(1));
    assert_eq!(q.pop(at(2)).expect("after its backoff").pod.priority, 1, "what it has become is seen");
    q.nominate("a", Some("n".into()));
    q.remove("a");
    q.retry("a", at(3));
    assert_eq!(q.iter().count(), 0, "a pod that went while in flight is not put back");
    assert_eq!(q.nominations().count(), 0);
    assert_eq!(q.nominated_to("n").count(), 0);
}

/// Where a pod is nominated to after this, in this order: nominations that the queue's owner wrote, those that its
/// status has when it is heard of, and attempts.
fn check_nomination(steps: &[(&str, &str)], expected: Option<&str>) {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    let mut pod = |nominated: &str| {
        let object = json!({"metadata": {"name": "a", "uid": "a"},
            "spec": {"containers": [], "schedulerName": DEFAULT_SCHEDULER_NAME}, "status": {"nominatedNodeName": nominated}});
        cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")))
    };
    q.set(pod(""), Arc::default(), at(0));
    for (what, node) in steps {
        let node = Some(*node).filter(|node| !node.is_empty());
        match *what {
            "written" => {
                q.nominate("a", node.map(Arc::from));
                q.wrote_nomination("a", node);
            }
            "heard" => q.set(pod(node.unwrap_or_default()), Arc::default(), at(1)),
            _ => drop(q.pop(at(1))),
        }
    }
    assert_eq!(q.get("a").and_then(|row| row.nominated.as_deref()), expected, "{steps:?}");
    assert_eq!(q.nominated_to(expected.unwrap_or("m")).count(), usize::from(expected.is_some()), "{steps:?}");
}

#[test]
fn others_say_where_a_pod_is_to_go_while_it_waits() {
    check_nomination(&[("heard", "n")], Some("n"));
    check_nomination(&[("heard", "n"), ("heard", "")], None);
    check_nomination(&[("heard", "n"), ("heard", "n")], Some("n"));
    check_nomination(&[("attempt", ""), ("heard", "n")], None);
    check_nomination(&[("written", "m")], Some("m"));
    check_nomination(&[("written", "m"), ("heard", "")], Some("m"));
    check_nomination(&[("written", "m"), ("heard", "m")], Some("m"));
    check_nomination(&[("written", "m"), ("heard", "n")], Some("n"));
    check_nomination(&[("written", "m"), ("heard", "m"), ("heard", "")], None);
    // What comes back late, and is not meant any more.
    check_nomination(&[("written", "m"), ("written", ""), ("heard", "m")], None);
    check_nomination(&[("written", "m"), ("written", "n"), ("heard", "m")], Some("n"));
    check_nomination(&[("written", "m"), ("written", "n"), ("heard", "m"), ("heard", "n")], Some("n"));
    // Of two only the later one is seen.
    check_nomination(&[("written", "m"), ("written", "n"), ("heard", "n"), ("heard", "m")], Some("m"));
}

#[test]
fn events_are_kept_while_a_pod_in_flight_does_not_know_them() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    for uid in ["a", "b", "c"] {
        q.set(pod(&mut cluster, uid, 0, false), Arc::default(), at(0));
    }
    let kept = |q: &SchedulingQueue| q.kept_events().values().sum::<usize>();
    let refused = PluginSet::of(Plugin::VolumeBinding);
    q.pop(at(0)).expect("a");
    q.happened(Event::Namespace, at(0), &cluster);
    q.pop(at(0)).expect("b");
    q.happened(Event::Volume, at(0), &cluster);
    q.pop(at(0)).expect("c");
    assert_eq!(kept(&q), 2);
    q.unschedulable("c", refused, at(0), &cluster);
    assert_eq!(kept(&q), 2, "a knows neither");
    q.remove("a");
    assert_eq!(kept(&q), 1, "b knows of the namespace");
    q.unschedulable("b", refused, at(0), &cluster);
    assert_eq!(kept(&q), 0);
    let place = |uid| q.get(uid).map(|row| row.place);
    assert!(matches!(place("b"), Some(Place::Backoff { .. })), "the volume came while it was in flight");
    assert!(matches!(place("c"), Some(Place::Unschedulable { .. })), "it had seen the volume");
}

/// Who has to be asked about when the extender is busy keeps its place, and holds up nobody.
#[test]
fn who_waits_for_an_extender_waits_in_the_queue() {
    const GPU: &str = "example.com/gpu";
    let mut cluster = Cluster::default();
    let binds = Extender { bind_verb: "bind".to_owned(), ..Extender::default() };
    let filters =
        Extender { filter_verb: "filter".to_owned(), managed_resources: vec![GPU.to_owned()], ..Extender::default() };
    let mut q = SchedulingQueue::default().with_extenders(&[binds, filters]);
    for (uid, priority, resource) in [("a", 5, GPU), ("b", 0, "cpu"), ("c", 0, GPU), ("d", 9, GPU)] {
        let object = json!({"metadata": {"name": uid, "uid": uid}, "spec": {"priority": priority,
            "schedulerName": DEFAULT_SCHEDULER_NAME,
            "containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}});
        let pod = cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")));
        q.set(pod, Arc::default(), at(0));
    }
    let popped = |row: Option<Row>| row.map(|row| row.pod.uid.to_string());
    assert_eq!(popped(q.pop_plain(at(1))).as_deref(), Some("b"));
    assert_eq!(popped(q.pop_plain(at(1))), None);
    assert_eq!((q.counts().active, q.counts().in_flight), (3, 1));
    let order: Vec<String> = std::iter::from_fn(|| popped(q.pop(at(1)))).collect();
    assert_eq!(order, ["d", "a", "c"]);
}

/// A pod with a claim.
fn claimant(cluster: &mut Cluster, uid: &str, claim: &str) -> Arc<PodInfo> {
    let object = json!({"metadata": {"namespace": "d", "name": uid, "uid": uid}, "spec": {"containers": [],
        "schedulerName": DEFAULT_SCHEDULER_NAME,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}});
    cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")))
}

/// Who is woken by an event about a claim, of pods a and b with claim x and c with claim y that are alike otherwise and
/// that these plugins refused.
fn check_claimants(refused_by: &[Plugin], event: &str, claim: &str, expected: &[&str]) {
    let mut cluster = Cluster::default();
    cluster.set_node(node("n"));
    let mut q = SchedulingQueue::default();
    for (uid, claim) in [("a", "x"), ("b", "x"), ("c", "y")] {
        q.set(claimant(&mut cluster, uid, claim), Arc::default(), at(0));
        q.pop(at(0)).expect("it came");
        q.unschedulable(uid, refused_by.iter().copied().collect(), at(0), &cluster);
    }
    let happened = match event {
        "claim" => Event::Claim(("d".to_owned(), claim.to_owned())),
        "gone" => Event::PodGone(claimant(&mut cluster, "other", claim), "n".into()),
        _ => Event::PodGone(pod(&mut cluster, "other", 0, false), "n".into()),
    };
    q.happened(happened, at(100), &cluster);
    let mut woken: Vec<String> = std::iter::from_fn(|| q.pop(at(100))).map(|row| row.pod.uid.to_string()).collect();
    woken.sort();
    assert_eq!(woken, expected, "{event} of {claim}, refused by {refused_by:?}");
}

#[test]
fn pods_that_are_alike_but_for_their_volumes_hear_of_their_own() {
    use Plugin::{NodeResourcesFit, VolumeBinding, VolumeRestrictions};
    check_claimants(&[VolumeBinding], "claim", "y", &["c"]);
    check_claimants(&[NodeResourcesFit, VolumeBinding], "claim", "x", &["a", "b"]);
    check_claimants(&[VolumeBinding], "claim", "z", &[]);
    check_claimants(&[NodeResourcesFit], "claim", "x", &[]);
    check_claimants(&[VolumeRestrictions], "claim", "z", &["a", "b", "c"]);
    check_claimants(&[VolumeRestrictions], "gone", "x", &["a", "b"]);
    check_claimants(&[VolumeRestrictions], "gone without volumes", "", &[]);
    check_claimants(&[NodeResourcesFit, VolumeRestrictions], "gone", "z", &["a", "b", "c"]);
}

/// How many pods with volumes wait says nothing of how often a plugin is asked about room.
#[test]
fn of_pods_that_are_alike_but_for_their_volumes_one_is_asked_about_room() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    for number in 0..50 {
        let uid = format!("p{number}");
        q.set(claimant(&mut cluster, &uid, &uid), Arc::default(), at(0));
        q.pop(at(0)).expect("it came");
        q.unschedulable(&uid, fit(), at(0), &cluster);
    }
    let other = claimant(&mut cluster, "other", "p7");
    q.happened(Event::PodGone(other, "of a node that is not there".into()), at(100), &cluster);
    let mut page = crate::metrics::Page::default();
    q.hints().write(&mut page);
    let text = page.text();
    let asked = "_count{event=\"AssignedPodDelete\",hint=\"QueueSkip\",plugin=\"NodeResourcesFit\"} 1";
    assert!(text.lines().any(|line| line.ends_with(asked)), "{text}");
}

#[test]
fn unschedulable_pods_wait_for_what_helps_and_back_off() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    let other = pod(&mut cluster, "other", 0, false);
    q.set(pod(&mut cluster, "a", 0, false), Arc::default(), at(0));
    q.pop(at(0)).expect("a");
    q.unschedulable("a", fit(), at(0), &cluster);
    q.happened(Event::Namespace, at(100), &cluster);
    assert!(q.pop(at(200)).is_none(), "nothing changed that could help");
    let gone = Event::PodGone(other, "n".into());
    q.happened(gone.clone(), at(200), &cluster);
    assert!(q.pop(at(200)).is_none(), "of a node that does not exist");
    cluster.set_node(node("n"));
    q.happened(gone.clone(), at(200), &cluster);
    q.pop(at(200)).expect("the backoff is long over");
    q.happened(gone, at(200), &cluster);
    q.unschedulable("a", fit(), at(200), &cluster);
    assert_eq!(q.next_due(), Some(at(202)), "it went while the pod was in flight");
    q.pop(at(200)).expect("nobody else waits, so neither does it");
    q.unschedulable("a", fit(), at(200), &cluster);
    assert!(q.pop(at(499)).is_none());
    assert!(q.pop(at(500)).is_some(), "five minutes are over");
}

/// Whether an event may help a pod with half a core that these plugins refused.
fn check(node: &serde_json::Value, refused_by: &[Plugin], event: &str, expected: bool) {
    let mut cluster = Cluster::default();
    let other = pod(&mut cluster, "other", 0, false);
    let change = cluster.set_node(Arc::new(serde_json::from_value(node.clone()).expect("a node")));
    let mut object = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"schedulerName": DEFAULT_SCHEDULER_NAME,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "example.com/elsewhere": "1"}}}]}});
    if refused_by.contains(&Plugin::NodeDeclaredFeatures) {
        object["spec"]["containers"][0]["restartPolicyRules"] = json!([{"action": "RestartAllContainers"}]);
    }
    let info = cluster.read(Arc::new(serde_json::from_value(object).expect("a pod")));
    let profile = Profile { ignored_groups: vec!["example.com".to_owned()], ..Profile::default() };
    let mut q = SchedulingQueue::default();
    q.set(info, Arc::new(profile), at(0));
    q.pop(at(0)).expect("p");
    q.unschedulable("p", refused_by.iter().copied().collect(), at(0), &cluster);
    let happened = match event {
        "pod gone" => Event::PodGone(other, "n".into()),
        "pod changed" => Event::PodChanged(other.clone(), other, "n".into()),
        "node added" => Event::Node("n".into(), change),
        "more offered" => {
            Event::Node("n".into(), crate::NodeChange { allocatable: true, more: true, ..Default::default() })
        }
        "less offered" => Event::Node("n".into(), crate::NodeChange { allocatable: true, ..Default::default() }),
        "other taints" => Event::Node("n".into(), crate::NodeChange { taints: true, ..Default::default() }),
        "other labels" => Event::Node("n".into(), crate::NodeChange { labels: true, ..Default::default() }),
        "other features" => Event::Node("n".into(), crate::NodeChange { features: true, ..Default::default() }),
        _ => Event::NodeGone("n".into()),
    };
    q.happened(happened, at(100), &cluster);
    assert_eq!(q.pop(at(100)).is_some(), expected, "{event} on {node}, refused by {refused_by:?}");
}

/// A pod that is not told of an event must be told of whatever else has to change before it fits.
#[test]
fn events_wake_those_whom_they_may_help() {
    use Plugin::{
        InterPodAffinity, NodeAffinity, NodeDeclaredFeatures, NodePorts, NodeResourcesFit, NodeUnschedulable,
        PodTopologySpread, TaintToleration,
    };
    let node = |cpu: &str, spec: serde_json::Value| json!({"metadata": {"name": "n"}, "spec": spec, "status": {"allocatable": {"cpu": cpu, "pods": "10"}}});
    let (free, full) = (node("1", json!({})), node("100m", json!({})));
    let tainted = node("1", json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}));
    let cordoned = node("1", json!({"unschedulable": true}));
    for event in ["pod gone", "pod changed", "node added", "more offered"] {
        check(&free, &[NodeResourcesFit], event, true);
        check(&full, &[NodeResourcesFit], event, false);
    }
    check(&free, &[NodeResourcesFit], "less offered", false);
    // What refuses now, and did not when the pod looked, must be looked at, for nothing else would tell of its end.
    check(&tainted, &[NodeResourcesFit], "pod gone", true);
    check(&cordoned, &[NodeResourcesFit], "pod gone", true);
    check(&tainted, &[NodeResourcesFit, TaintToleration], "pod gone", false);
    check(&cordoned, &[NodeResourcesFit, NodeUnschedulable], "pod gone", false);
    for (node, expected) in [(&free, true), (&tainted, false)] {
        check(node, &[TaintToleration], "other taints", expected);
        check(node, &[NodeResourcesFit], "other taints", false);
        check(node, &[NodeAffinity], "other labels", true);
    }
    let mut declares = free.clone();
    declares["status"]["declaredFeatures"] = json!(["RestartAllContainersOnContainerExits"]);
    for event in ["node added", "other features"] {
        check(&declares, &[NodeDeclaredFeatures], event, true);
        check(&free, &[NodeDeclaredFeatures], event, false);
    }
    check(&declares, &[NodeDeclaredFeatures], "other labels", false);
    check(&declares, &[NodeResourcesFit], "other features", false);
    check(&free, &[NodePorts], "pod changed", false);
    check(&free, &[PodTopologySpread], "pod changed", true);
    check(&free, &[PodTopologySpread], "node gone", true);
    check(&free, &[InterPodAffinity], "node gone", true);
    check(&free, &[NodeResourcesFit], "node gone", false);
}

/// How a pod's attempts ended, refused or with an error, and how long it then waits, in seconds.
fn check_backoff(ends: &str, expected_s: i64) {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    q.set(pod(&mut cluster, "a", 0, false), Arc::default(), at(0));
    let mut now = 0;
    for end in ends.chars() {
        now += 1000;
        q.pop(at(now)).expect("its time has come");
        match end {
            'r' => q.unschedulable("a", PluginSet::default(), at(now), &cluster),
            _ => q.retry("a", at(now)),
        }
    }
    assert_eq!(q.next_due(), Some(at(now + expected_s)), "{ends}");
}

#[test]
fn errors_and_refusals_back_off_apart() {
    for (ends, expected_s) in [
        ("r", 1),
        ("rr", 2),
        ("rrr", 4),
        ("rrrrrr", 10),
        ("e", 1),
        ("ee", 2),
        ("rrre", 1),
        ("rree", 2),
        ("rer", 2),
        ("eer", 1),
    ] {
        check_backoff(ends, expected_s);
    }
}

#[test]
fn gates_hold_back() {
    let mut cluster = Cluster::default();
    let mut q = SchedulingQueue::default();
    q.set(pod(&mut cluster, "a", 0, true), Arc::default(), at(0));
    assert!(q.pop(at(1000)).is_none());
    assert_eq!(q.counts().gated, 1);
    q.set(pod(&mut cluster, "a", 0, false), Arc::default(), at(1000));
    assert!(q.pop(at(1000)).is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, i32, bool),
    Remove(u8),
    Pop,
    Unschedulable(u8),
    Retry(u8),
    Nominate(u8, Option<u8>),
    Helps,
    Later(u8),
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    /// Against a table of who is in flight: nobody is lost, nobody is there twice, and nominations go with their pods.
    #[test]
    fn every_pod_has_one_place(steps in prop::collection::vec(prop_oneof![
        3 => (0..6_u8, 0..3_i32, any::<bool>()).prop_map(|(p, n, g)| Step::Set(p, n, g)),
        1 => (0..6_u8).prop_map(Step::Remove),
        3 => Just(Step::Pop),
        2 => (0..6_u8).prop_map(Step::Unschedulable),
        1 => (0..6_u8).prop_map(Step::Retry),
        2 => (0..6_u8, prop::option::of(0..3_u8)).prop_map(|(p, n)| Step::Nominate(p, n)),
        1 => Just(Step::Helps),
        1 => (0..20_u8).prop_map(Step::Later),
    ], 1..80)) {
        let mut cluster = Cluster::default();
        cluster.set_node(node("n"));
        let mut q = SchedulingQueue::default();
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        let mut now = at(0);
        for step in steps {
            match step {
                Step::Set(p, priority, gated) => {
                    q.set(pod(&mut cluster, &format!("p{p}"), priority, gated), Arc::default(), now);
                    known.entry(format!("p{p}")).or_insert(false);
                }
                Step::Remove(p) => {
                    q.remove(&format!("p{p}"));
                    known.remove(&format!("p{p}"));
                }
                Step::Pop => if let Some(row) = q.pop(now) {
                    let uid = row.pod.uid.to_string();
                    prop_assert_eq!(known.insert(uid.clone(), true), Some(false), "{} was in flight", uid);
                }
                Step::Unschedulable(p) => {
                    q.unschedulable(&format!("p{p}"), fit(), now, &cluster);
                    known.entry(format!("p{p}")).and_modify(|f| *f = false);
                }
                Step::Retry(p) => {
                    q.retry(&format!("p{p}"), now);
                    known.entry(format!("p{p}")).and_modify(|f| *f = false);
                }
                Step::Nominate(p, n) => drop(q.nominate(&format!("p{p}"), n.map(|n| format!("n{n}").into()))),
                Step::Helps => {
                    let gone = pod(&mut cluster, "gone", 0, false);
                    q.happened(Event::PodGone(gone, "n".into()), now, &cluster);
                }
                Step::Later(s) => now = now + Duration::from_secs(s.into()),
            }
            let counts = q.counts();
            let flying = known.values().filter(|f| **f).count();
            prop_assert_eq!(counts.in_flight, flying);
            let all = counts.active + counts.backoff + counts.unschedulable + counts.gated + counts.in_flight;
            prop_assert_eq!(all, known.len());
            prop_assert_eq!(q.iter().count(), known.len());
            let by_pod: Vec<(String, String)> = q.nominations().map(|(p, n)| (n.to_owned(), p.uid.to_string())).collect();
            let mut by_node: Vec<(String, String)> = (0..3)
                .flat_map(|n| q.nominated_to(&format!("n{n}")).map(move |p| (format!("n{n}"), p.uid.to_string())).collect::<Vec<_>>())
                .collect();
            let mut by_pod = by_pod;
            by_pod.sort();
            by_node.sort();
            prop_assert_eq!(by_pod, by_node);
        }
    }
}
