//! VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone: one node, one pod there, and one that asks.

use std::sync::Arc;

use carrack_engine::Rng;
use serde_json::{Value, json};

use crate::{Cluster, Decider, Found, Objects, Profile, Question};

const ZONE: &str = "topology.kubernetes.io/zone";

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}")))
}

fn key(namespace: &str, name: &str) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

/// A claim, with its volume, if it is bound to one.
fn add(cluster: &mut Cluster, name: &str, claim: Value, volume: Option<Value>) {
    let mut object =
        json!({"metadata": {"name": name, "namespace": "d", "uid": name, "annotations": {}}, "spec": claim});
    if let Some(spec) = volume {
        object["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes".into();
        object["spec"]["volumeName"] = name.into();
        let labels = spec["labels"].clone();
        let volume = json!({"metadata": {"name": name, "labels": labels}, "spec": spec["spec"]});
        cluster.objects.volumes.insert(key("", name), read(volume));
    }
    cluster.objects.claims.insert(key("d", name), read(object));
}

/// What a node in zone `a` says to a pod with these volumes, beside one with those. Claims: `plain` and `csi` are bound, `alone` may
/// be used by one pod, `far` is elsewhere, `zoned` is in zones `b` or `c`, `near` in `a` or `b`, `csi2` is another of a driver that
/// takes one, `now` is not bound, `later` will be made, and `guarded`, by a driver that must be on the node, `kept` has a volume of another class that somebody keeps for it, and
/// `static` has none. `here`, `there` and `nowhere` may be made in zone `a`, in `b`, and in none.
fn check(there: &[Value], asked: &[Value], expected: &[&str]) {
    check_attached(&[], there, asked, expected);
}

/// The same with these volumes attached to nodes, whoever wanted them.
fn check_attached(attached: &[(&str, &str)], there: &[Value], asked: &[Value], expected: &[&str]) {
    let mut cluster = Cluster::default();
    cluster.set_node(read(json!({"metadata": {"name": "n", "labels": {ZONE: "a", "kubernetes.io/hostname": "n"}},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let csi = |handle: &str| json!({"spec": {"csi": {"driver": "d", "volumeHandle": handle}}});
    let only = |host: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}})
    };
    let modes = |mode: &str| json!({"accessModes": [mode]});
    add(&mut cluster, "plain", modes("ReadWriteOnce"), Some(json!({"spec": {}})));
    add(&mut cluster, "alone", modes("ReadWriteOncePod"), Some(json!({"spec": {}})));
    add(&mut cluster, "far", modes("ReadWriteOnce"), Some(json!({"spec": {"nodeAffinity": only("m")}})));
    add(&mut cluster, "zoned", modes("ReadWriteOnce"), Some(json!({"labels": {ZONE: "b__c"}, "spec": {}})));
    add(&mut cluster, "near", modes("ReadWriteOnce"), Some(json!({"labels": {ZONE: "a__b"}, "spec": {}})));
    let of_old = json!({"labels": {"failure-domain.beta.kubernetes.io/zone": "a"}, "spec": {}});
    add(&mut cluster, "old", modes("ReadWriteOnce"), Some(of_old));
    add(&mut cluster, "csi", modes("ReadWriteOnce"), Some(csi("1")));
    add(&mut cluster, "csi2", modes("ReadWriteOnce"), Some(csi("2")));
    add(&mut cluster, "now", modes("ReadWriteOnce"), None);
    add(&mut cluster, "later", json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "made"}), None);
    let class = json!({"metadata": {"name": "made"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.classes.insert(key("", "made"), read(class));
    for driver in ["d", "guarded"] {
        let object = json!({"metadata": {"name": driver}, "spec": {"preventPodSchedulingIfMissing": true}});
        cluster.objects.drivers.insert(key("", driver), read(object));
    }
    let class =
        json!({"metadata": {"name": "guarded"}, "provisioner": "guarded", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.classes.insert(key("", "guarded"), read(class));
    add(&mut cluster, "guarded", json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "guarded"}), None);
    for name in ["kept", "static"] {
        add(&mut cluster, name, json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "static"}), None);
    }
    let class = json!({"metadata": {"name": "static"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.classes.insert(key("", "static"), read(class));
    let zone = |zone: &str| json!({"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]});
    for (name, allowed) in [("here", json!([{}, zone("a")])), ("there", json!([zone("b")])), ("nowhere", json!([{}]))] {
        let class = json!({"metadata": {"name": name}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": allowed});
        cluster.objects.classes.insert(key("", name), read(class));
        add(&mut cluster, name, json!({"accessModes": ["ReadWriteOnce"], "storageClassName": name}), None);
    }
    let kept = json!({"metadata": {"name": "kept"}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "other",
        "claimRef": {"namespace": "d", "name": "kept"}}});
    cluster.objects.volumes.insert(key("", "kept"), read(kept));
    let node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 1}}]}});
    cluster.objects.csi_nodes.insert(key("", "n"), read(node));
    for (volume, node) in attached {
        let attachment = json!({"metadata": {"name": format!("{volume}-{node}")},
            "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": volume}}});
        let attachment = read(attachment);
        cluster.objects.attachments.insert(Objects::attachment_key(&attachment), attachment);
    }
    let pod = |name: &str, volumes: &[Value], node: Option<&str>| {
        let volumes: Vec<Value> = volumes
            .iter()
            .zip(0..)
            .map(|(source, n)| {
                let mut volume = source.clone();
                volume["name"] = format!("v{n}").into();
                volume
            })
            .collect();
        json!({"metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"containers": [], "nodeName": node, "volumes": volumes}})
    };
    cluster.set_pod(&read(pod("t", there, Some("n"))));
    let info = cluster.read(read(pod("p", asked, None)));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let reasons: Vec<String> = match Decider::new(cluster).find(question, None, false, &mut Rng::new(1)) {
        Found::Nobody(error) => error.reasons().into_keys().collect(),
        _ => Vec::new(),
    };
    assert_eq!(reasons, expected, "{asked:?} beside {there:?}");
}

#[test]
fn volumes_are_where_their_pods_can_be() {
    let claim = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    check(&[], &[claim("plain")], &[]);
    check(&[claim("plain")], &[claim("plain")], &[]);
    // VolumeRestrictions.
    let alone = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
    check(&[], &[claim("alone")], &[]);
    check(&[claim("alone")], &[claim("alone")], &[alone]);
    let gce = |read_only: bool| json!({"gcePersistentDisk": {"pdName": "d", "readOnly": read_only}});
    let aws = json!({"awsElasticBlockStore": {"volumeID": "v", "readOnly": true}});
    let no_disk: &[&str] = &["node(s) had no available disk"];
    check(&[gce(true)], &[gce(true)], &[]);
    check(&[gce(true)], &[gce(false)], no_disk);
    check(std::slice::from_ref(&aws), std::slice::from_ref(&aws), no_disk);
    let rbd = |image: &str| json!({"rbd": {"monitors": ["a"], "image": image}});
    check(&[rbd("i")], &[rbd("i")], no_disk);
    check(&[rbd("i")], &[rbd("j")], &[]);
    let iscsi = |iqn: &str| json!({"iscsi": {"targetPortal": "p", "iqn": iqn, "lun": 0}});
    check(&[iscsi("q")], &[iscsi("q")], no_disk);
    // NodeVolumeLimits.
    check(&[], &[claim("csi")], &[]);
    check(&[claim("csi")], &[claim("csi")], &[]);
    check(&[claim("csi")], &[claim("csi2")], &["node(s) exceed max volume count"]);
    check(&[], &[claim("csi"), claim("csi2")], &["node(s) exceed max volume count"]);
    let full = &["node(s) exceed max volume count"];
    check_attached(&[("csi2", "n")], &[], &[claim("csi")], full);
    check_attached(&[("csi2", "m"), ("csi2", "n0"), ("plain", "n")], &[], &[claim("csi")], &[]);
    check_attached(&[("csi", "n")], &[], &[claim("csi")], &[]);
    check_attached(&[("csi", "n")], &[claim("csi")], &[claim("csi")], &[]);
    check_attached(&[("gone", "n")], &[], &[claim("csi")], &[]);
    check(&[], &[claim("guarded")], &["node(s) didn't have the CSI driver of the pod's volumes"]);
    // VolumeBinding.
    check(&[], &[claim("none")], &["persistentvolumeclaim \"none\" not found"]);
    check(&[], &[claim("now")], &["pod has unbound immediate PersistentVolumeClaims"]);
    check(&[], &[claim("later")], &[]);
    check(&[], &[claim("kept")], &[]);
    check(&[], &[claim("static")], &["node(s) didn't find available persistent volumes to bind"]);
    check(&[], &[claim("here")], &[]);
    check(&[], &[claim("there")], &["node(s) didn't find available persistent volumes to bind"]);
    check(&[], &[claim("nowhere")], &["node(s) didn't find available persistent volumes to bind"]);
    check(&[], &[claim("far")], &["node(s) didn't match PersistentVolume's node affinity"]);
    // VolumeZone.
    check(&[], &[claim("near")], &[]);
    check(&[], &[claim("old")], &[]);
    check(&[], &[claim("zoned")], &["node(s) had no available volume zone"]);
}

/// Whether a node in zone `a` takes a pod whose volume of 1 GiB is to be made by a driver that tells this of its room.
fn check_room(rooms: &[Value], expected: &[&str]) {
    let mut cluster = Cluster::default();
    cluster.set_node(read(json!({"metadata": {"name": "n", "labels": {ZONE: "a"}},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let driver = json!({"metadata": {"name": "x"}, "spec": {"storageCapacity": true}});
    cluster.objects.drivers.insert(key("", "x"), read(driver));
    let class = json!({"metadata": {"name": "made"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.classes.insert(key("", "made"), read(class));
    let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "made",
        "resources": {"requests": {"storage": "1Gi"}}});
    add(&mut cluster, "claim", claim, None);
    for (number, room) in rooms.iter().enumerate() {
        let mut object = json!({"metadata": {"name": "r", "namespace": "s"}, "storageClassName": "made",
            "nodeTopology": {"matchLabels": {ZONE: "a"}}});
        for (field, value) in room.as_object().into_iter().flatten() {
            object[field] = value.clone();
        }
        cluster.objects.capacities.insert(key("s", &number.to_string()), read(object));
    }
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"containers": [],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]}});
    let info = cluster.read(read(pod));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let reasons: Vec<String> = match Decider::new(cluster).find(question, None, false, &mut Rng::new(1)) {
        Found::Nobody(error) => error.reasons().into_keys().collect(),
        _ => Vec::new(),
    };
    assert_eq!(reasons, expected, "{rooms:?}");
}

#[test]
fn volumes_are_made_where_there_is_room_for_them() {
    let full: &[&str] = &["node(s) did not have enough free storage"];
    check_room(&[], full);
    check_room(&[json!({})], full);
    check_room(&[json!({"capacity": "1Gi"})], &[]);
    check_room(&[json!({"capacity": "1023Mi"})], full);
    check_room(&[json!({"capacity": "9Gi", "maximumVolumeSize": "1Gi"})], &[]);
    check_room(&[json!({"capacity": "9Gi", "maximumVolumeSize": "512Mi"})], full);
    check_room(&[json!({"capacity": "9Gi", "storageClassName": "other"})], full);
    check_room(&[json!({"capacity": "9Gi", "nodeTopology": {"matchLabels": {ZONE: "b"}}})], full);
    check_room(&[json!({"capacity": "9Gi", "nodeTopology": null})], full);
    check_room(&[json!({"capacity": "9Gi", "nodeTopology": {}})], &[]);
    let among = |zones: &[&str]| json!({"key": ZONE, "operator": "In", "values": zones});
    let by_expression = |zones| json!({"capacity": "9Gi", "nodeTopology": {"matchExpressions": [among(zones)]}});
    check_room(&[by_expression(&["a", "b"])], &[]);
    check_room(&[by_expression(&["b", "c"])], full);
    let rack = |zone: &str| json!({"capacity": "9Gi", "nodeTopology": {"matchLabels": {ZONE: zone, "rack": "r"}}});
    check_room(&[rack("a"), rack("b")], full);
    check_room(&[rack("a"), json!({"capacity": "9Gi"})], &[]);
    check_room(&[json!({"capacity": "1Mi"}), json!({"capacity": "2Gi"})], &[]);
}

/// Who goes from a node where a driver attaches two volumes, for a more important pod with the volume `new`. There are pods with
/// volumes, the first of which is spared first, and volumes that are attached whoever wanted them.
fn check_victims(attached: &[&str], there: &[(&str, &[&str])], expected: &[&str]) {
    let mut cluster = Cluster::default();
    cluster.set_node(read(json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 2}}]}});
    cluster.objects.csi_nodes.insert(key("", "n"), read(node));
    for name in ["new", "v1", "v2", "v3", "v4"] {
        let csi = json!({"spec": {"csi": {"driver": "d", "volumeHandle": name}}});
        add(&mut cluster, name, json!({"accessModes": ["ReadWriteMany"]}), Some(csi));
    }
    for volume in attached {
        let attachment = json!({"metadata": {"name": volume},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": volume}}});
        let attachment = read(attachment);
        cluster.objects.attachments.insert(Objects::attachment_key(&attachment), attachment);
    }
    let pod = |name: &str, priority: i32, claims: &[&str], node: Option<&str>| {
        let source = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        let volumes: Vec<Value> = claims.iter().map(source).collect();
        json!({"metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"containers": [], "nodeName": node, "priority": priority, "volumes": volumes}})
    };
    for (name, claims) in there {
        cluster.set_pod(&read(pod(name, 0, claims, Some("n"))));
    }
    let info = cluster.read(read(pod("p", 10, &["new"], None)));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let found = Decider::new(cluster).candidates(question, 1).unwrap_or_default();
    let victims: Vec<&str> = found.iter().flat_map(|candidate| &candidate.victims).map(|pod| pod.name()).collect();
    assert_eq!(victims, expected, "{there:?}, and {attached:?} attached");
}

#[test]
fn whoever_goes_takes_along_volumes_that_nobody_else_has() {
    check_victims(&[], &[("a", &["v1"]), ("b", &["v2"])], &["b"]);
    check_victims(&[], &[("a", &["v1"]), ("b", &["v1"]), ("c", &["v2"])], &["c"]);
    check_victims(&[], &[("a", &["v1", "v2"]), ("b", &["v1"]), ("c", &["v2"])], &["a", "c"]);
    check_victims(&["v1", "v2"], &[("a", &["v1"]), ("b", &["v2"])], &["b"]);
    // What is attached for nobody is not detached for anybody.
    check_victims(&["v3"], &[("a", &["v1"])], &["a"]);
    check_victims(&["v3", "v4"], &[("a", &["v1"])], &[]);
    // Who has the same volume need not go, nor anybody else.
    check_victims(&[], &[("a", &["new"]), ("b", &["v1"])], &[]);
}

/// Which volumes claims of these sizes get at the node `n`, the larger claims first. Of each volume there are its name, its size,
/// the claim that it is meant for, if any, and the node that reaches it. What is called `gold` has attributes of that class.
fn check_choice(volumes: &[(&str, &str, &str, &str)], claims: &[(&str, &str)], expected: &[(&str, &str)]) {
    let mut cluster = Cluster::default();
    cluster.set_node(read(json!({"metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n"}},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}}})));
    let class = json!({"metadata": {"name": "static"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.objects.classes.insert(key("", "static"), read(class));
    for (name, size, claim, host) in volumes {
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}});
        let mut volume = json!({"metadata": {"name": name}, "status": {"phase": "Available"},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
                "nodeAffinity": affinity}});
        if !claim.is_empty() {
            volume["spec"]["claimRef"] = json!({"namespace": "d", "name": claim});
        }
        if *name == "gold" {
            volume["spec"]["volumeAttributesClassName"] = "gold".into();
        }
        cluster.objects.volumes.insert(key("", name), read(volume));
    }
    for (name, size) in claims {
        let mut claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "static",
            "resources": {"requests": {"storage": size}}});
        if *name == "gold" {
            claim["volumeAttributesClassName"] = "gold".into();
        }
        add(&mut cluster, name, claim, None);
    }
    let source = |(name, _): &(&str, &str)| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let sources: Vec<Value> = claims.iter().map(source).collect();
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "p"}, "spec": {"containers": [], "volumes": sources}});
    let info = cluster.read(read(pod));
    let profile = Arc::new(Profile::default());
    let question = Question { pod: &info, profile: &profile, nominated: &|_| Vec::new() };
    let bindings = match Decider::new(cluster).find(question, None, false, &mut Rng::new(1)) {
        Found::Node(_, plan) => plan.bindings,
        _ => Vec::new(),
    };
    let chosen: Vec<(&str, &str)> =
        bindings.iter().map(|((_, claim), volume)| (claim.as_str(), volume.as_str())).collect();
    assert_eq!(chosen, expected, "{claims:?} of {volumes:?}");
}

#[test]
fn the_smallest_volume_that_suits_is_taken_and_by_one_claim() {
    check_choice(
        &[("a", "5Gi", "", "n"), ("b", "2Gi", "", "n"), ("c", "3Gi", "", "n")],
        &[("x", "2Gi")],
        &[("x", "b")],
    );
    check_choice(&[("a", "2Gi", "", "n"), ("b", "5Gi", "x", "n")], &[("x", "2Gi")], &[("x", "b")]);
    check_choice(&[("a", "2Gi", "other", "n"), ("b", "5Gi", "", "n")], &[("x", "2Gi")], &[("x", "b")]);
    check_choice(&[("a", "2Gi", "", "m"), ("b", "5Gi", "", "n")], &[("x", "2Gi")], &[("x", "b")]);
    // The one that is meant for it is elsewhere, or too small for it.
    check_choice(&[("a", "2Gi", "x", "m"), ("b", "5Gi", "", "n")], &[("x", "2Gi")], &[]);
    check_choice(&[("a", "1Gi", "x", "m"), ("b", "5Gi", "", "n")], &[("x", "2Gi")], &[("x", "b")]);
    let attributes = [("gold", "2Gi", "", "n"), ("b", "5Gi", "", "n")];
    check_choice(&attributes, &[("x", "2Gi")], &[("x", "b")]);
    check_choice(&attributes, &[("gold", "2Gi")], &[("gold", "gold")]);
    let two = [("b", "2Gi", "", "n"), ("a", "2Gi", "", "n")];
    check_choice(&two, &[("x", "1Gi"), ("y", "2Gi")], &[("y", "a"), ("x", "b")]);
    check_choice(&two, &[("x", "1Gi"), ("y", "3Gi")], &[]);
}
