//! Preemption of those who share a volume, room that is kept for nominated pods' volumes, and how long decisions take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use carrack_engine::Rng;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

fn read<T: DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}")))
}

/// A node of 4 CPUs, and claims: `alone` may be used by one pod at a time, `far` by one, too, and its volume is elsewhere.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.set_node(read(json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let elsewhere = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["m"]}]}]}});
    for (name, spec) in [("alone", json!({})), ("far", json!({"nodeAffinity": elsewhere}))] {
        let claim = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": name}});
        let volume = json!({"metadata": {"name": name}, "spec": spec});
        cluster.objects.claims.insert(("d".to_owned(), name.to_owned()), read(claim));
        cluster.objects.volumes.insert((String::new(), name.to_owned()), read(volume));
    }
    cluster
}

fn pod(name: &str, cpu: &str, priority: i32, claim: Option<&str>) -> Value {
    let volumes: Vec<Value> =
        claim.iter().map(|claim| json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}})).collect();
    json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"priority": priority, "volumes": volumes,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
}

/// The nodes that would have room for a pod without others, at most so many.
fn candidates(mut cluster: Cluster, pod: Value, most: usize) -> Result<Vec<Candidate>, BTreeMap<String, usize>> {
    let info = cluster.read(read(pod));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    Decider::new(cluster).candidates(question, most)
}

/// Who has to go from the node, where these pods are, for a pod of priority 10 with this claim.
fn check_victims(
    there: &[(&str, &str, i32, Option<&str>)],
    cpu: &str,
    claim: Option<&str>,
    expected: Result<&[&str], &str>,
) {
    let mut cluster = cluster();
    for (name, cpu, priority, claim) in there {
        let mut there = pod(name, cpu, *priority, *claim);
        there["spec"]["nodeName"] = "n".into();
        cluster.set_pod(&read(there));
    }
    let found = candidates(cluster, pod("high", cpu, 10, claim), 1);
    let case = format!("{claim:?} of {cpu} beside {there:?}: {found:?}");
    match (&found, expected) {
        (Ok(found), Ok(victims)) => {
            assert_eq!(found[0].victims.iter().map(|victim| victim.name()).collect::<Vec<_>>(), victims, "{case}");
        }
        (Err(reasons), Err(why)) => assert!(reasons.keys().any(|reason| reason.contains(why)), "{case}"),
        _ => panic!("{case}"),
    }
}

#[test]
fn who_has_a_volume_for_one_pod_goes_for_a_more_important_one() {
    let alone = Some("alone");
    check_victims(&[("t", "1", 0, alone)], "1", alone, Ok(&["t"]));
    // Who does not have it stays, as long as there is room.
    check_victims(&[("t", "1", 0, alone), ("u", "1", 0, None)], "1", alone, Ok(&["t"]));
    check_victims(&[("t", "1", 0, alone), ("u", "1", 0, None)], "4", alone, Ok(&["t", "u"]));
    check_victims(&[("t", "1", 0, None), ("u", "3", 0, None)], "2", None, Ok(&["u"]));
    // As important as it is, or gone in vain.
    check_victims(&[("t", "1", 10, alone)], "1", alone, Err("No preemption victims found"));
    check_victims(&[("t", "1", 0, None)], "4", Some("far"), Err("PersistentVolume's node affinity"));
    check_victims(&[("t", "1", 0, None)], "1", Some("far"), Err("not helpful"));
}

/// A pod may have one claim as two volumes.
#[test]
fn who_has_a_claim_twice_goes_for_a_more_important_one() {
    let mut cluster = cluster();
    let mut there = pod("t", "1", 0, Some("alone"));
    there["spec"]["nodeName"] = "n".into();
    let again = json!({"name": "w", "persistentVolumeClaim": {"claimName": "alone"}});
    there["spec"]["volumes"].as_array_mut().expect("volumes").push(again);
    cluster.set_pod(&read(there));
    let found = candidates(cluster, pod("high", "1", 10, Some("alone")), 1);
    assert_eq!(found.expect("a node")[0].victims[0].name(), "t");
}

/// Two nodes with a less important pod each; on one of them it has the disk of the pod that comes.
#[test]
fn disks_of_others_are_no_hindrance_where_they_are_not() {
    let disk = json!([{"name": "v", "gcePersistentDisk": {"pdName": "disk"}}]);
    let cases = [(1, 2, "4", "t"), (2, 1, "4", "u"), (1, 2, "1", "t"), (2, 1, "1", "t")];
    for (with_disk, elsewhere, cpu, expected) in cases {
        let mut cluster = cluster();
        let other = json!({"metadata": {"name": "m"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}});
        cluster.set_node(read(other));
        for (name, node, priority) in [("t", "n", with_disk), ("u", "m", elsewhere)] {
            let mut there = pod(name, "1", priority, None);
            there["spec"]["nodeName"] = node.into();
            if name == "t" {
                there["spec"]["volumes"] = disk.clone();
            }
            cluster.set_pod(&read(there));
        }
        let mut high = pod("high", cpu, 10, None);
        high["spec"]["volumes"] = disk.clone();
        let found = candidates(cluster, high, 2).expect("a node");
        assert_eq!(found[0].victims[0].name(), expected, "{with_disk} {elsewhere} {cpu}: {found:?}");
    }
}

#[test]
fn a_volume_for_one_pod_is_kept_for_who_is_nominated() {
    for (priority, fits) in [(10, false), (-1, true)] {
        let mut cluster = cluster();
        let nominee = cluster.read(read(pod("nominee", "1", priority, Some("alone"))));
        let info = cluster.read(read(pod("p", "1", 0, Some("alone"))));
        let profile = Arc::new(Profile::default());
        let question = Question { pod: &info, profile: &profile, nominated: &|_| vec![nominee.clone()] };
        let found = Decider::new(cluster).find(question, None, false, &mut Rng::new(1));
        assert_eq!(matches!(found, Found::Node(..)), fits, "{priority}: {found:?}");
    }
}

/// A clock that goes on by a second each time it is looked at.
fn ticking() -> Duration {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    Duration::from_secs(TICKS.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn each_question_has_its_own_laps() {
    let mut decider = Decider::new(cluster());
    decider.laps.stopwatch = ticking;
    let profile = Arc::new(Profile::default());
    let mut laps = |pod: Value| {
        let info = decider.cluster.read(read(pod));
        let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
        let found = decider.find(question, None, false, &mut Rng::new(1));
        (matches!(found, Found::Node(..)), decider.laps.filter.as_secs(), decider.laps.score.as_secs())
    };
    assert_eq!(laps(pod("plain", "1", 0, None)), (true, 1, 1));
    // Its claim keeps it from all nodes, so none is looked at.
    assert_eq!(laps(pod("claims", "1", 0, Some("none"))), (false, 0, 0));
    assert_eq!(laps(pod("plain", "1", 0, None)), (true, 1, 1));
    let mut named = pod("named", "1", 0, None);
    named["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}});
    assert_eq!(laps(named.clone()), (true, 1, 1));
    let mut nowhere = named;
    nowhere["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "9".into();
    assert_eq!(laps(nowhere), (false, 1, 1));
}

/// Whether all nodes were looked at to find out who would have to go for a pod that names a node, where one of this priority is, and
/// what came out. The node `n` has 4 CPUs, and `m` is another one.
fn check_named(node: &str, priority: i32, cpu: &str, all: bool, expected: Result<&str, &[(&str, usize)]>) {
    let mut cluster = cluster();
    cluster.set_node(read(json!({"metadata": {"name": "m"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let mut there = pod("t", "4", priority, None);
    there["spec"]["nodeName"] = "n".into();
    cluster.set_pod(&read(there));
    let mut named = pod("named", cpu, 10, None);
    named["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}});
    let info = cluster.read(read(named));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let mut decider = Decider::new(cluster);
    let found = decider.candidates(question, 1);
    let case = format!("{node} {priority} {cpu}: {found:?}");
    match (&found, expected) {
        (Ok(found), Ok(victim)) => assert_eq!(found[0].victims[0].name(), victim, "{case}"),
        (Err(reasons), Err(expected)) => {
            let reasons: Vec<(&str, usize)> = reasons.iter().map(|(why, nodes)| (why.as_str(), *nodes)).collect();
            assert_eq!(reasons, expected, "{case}");
        }
        _ => panic!("{case}"),
    }
    assert_eq!(decider.shelf.count() > 0, all, "{case}");
}

#[test]
fn who_names_nodes_in_vain_has_no_others_looked_at() {
    let in_vain = [(NO_VICTIMS, 1), (NOT_HELPFUL, 1)];
    check_named("n", 10, "1", false, Err(&in_vain));
    check_named("n", 0, "1", true, Ok("t"));
    // More than the node has, and a node that is not there.
    check_named("n", 0, "9", false, Err(&[(NOT_HELPFUL, 2)]));
    check_named("gone", 0, "1", false, Err(&[(NOT_HELPFUL, 2)]));
}
