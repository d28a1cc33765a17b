//! Tables for the volume manager.

mod alone;
mod doubted;
mod shared;
mod taken;
mod tokens;

use super::*;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccountTokenProjection,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::json;
use std::sync::Arc;

/// Sources as a test sets them.
#[derive(Default)]
struct Fixed {
    config_map: Option<BTreeMap<String, String>>,
    broken: Option<NotReady>,
    objects: Vec<serde_json::Value>,
    /// When attachments were asked for.
    read_at: Time,
    /// FlexVolume drivers attach.
    flex_attaches: bool,
    /// Labels of the Node, once it is read.
    node: Option<serde_json::Value>,
}

impl Fixed {
    fn read<T: serde::de::DeserializeOwned>(
        &self,
        kind: &str,
        ns: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, NotReady> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        let text =
            |v: &serde_json::Value, at: &str| v.pointer(at).and_then(|t| t.as_str()).unwrap_or_default().to_owned();
        let is = |v: &&serde_json::Value| {
            text(v, "/kind") == kind && text(v, "/metadata/namespace") == ns && text(v, "/metadata/name") == name
        };
        Ok(self.objects.iter().find(is).map(|v| Arc::new(serde_json::from_value(v.clone()).unwrap())))
    }
}

impl PayloadSources for Fixed {
    fn config_map(&self, _: &str, _: &str) -> Result<Option<Arc<ConfigMap>>, NotReady> {
        match &self.broken {
            Some(e) => Err(e.clone()),
            None => {
                Ok(self.config_map.clone().map(|data| Arc::new(ConfigMap { data: Some(data), ..ConfigMap::default() })))
            }
        }
    }
    fn secret(&self, _: &str, _: &str) -> Result<Option<Arc<Secret>>, NotReady> {
        Ok(None)
    }
    fn claim(&self, namespace: &str, name: &str) -> Result<Option<Arc<PersistentVolumeClaim>>, NotReady> {
        self.read("PersistentVolumeClaim", namespace, name)
    }
    fn persistent_volume(&self, name: &str) -> Result<Option<Arc<PersistentVolume>>, NotReady> {
        self.read("PersistentVolume", "", name)
    }
    fn csi_driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, NotReady> {
        self.read("CSIDriver", "", name)
    }
    fn flex_attaches(&self, _: &str) -> Result<bool, NotReady> {
        match &self.broken {
            Some(e) => Err(e.clone()),
            None => Ok(self.flex_attaches),
        }
    }
    fn attachment(&self, name: &str) -> Result<(Option<Arc<VolumeAttachment>>, Time), NotReady> {
        Ok((self.read("VolumeAttachment", "", name)?, self.read_at))
    }
    fn node(&self) -> Option<Arc<Node>> {
        let labels = self.node.clone()?;
        Some(Arc::new(serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}})).unwrap()))
    }
    fn token(&self, _: &Pod, projection: &ServiceAccountTokenProjection) -> Result<Token, NotReady> {
        let audience = projection.audience.clone().unwrap_or_default();
        Ok(Token { token: format!("token for {audience}"), expires: "2026-01-01T00:00:00Z".into() })
    }
}

/// A pod whose container has all of these volumes.
fn pod(volumes: serde_json::Value) -> Pod {
    let all = volumes.as_array().unwrap().iter();
    let mounts: Vec<_> = all.map(|v| json!({"name": v["name"], "mountPath": "/v"})).collect();
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes}
    }))
    .unwrap()
}

fn data(k: &str, v: &str) -> Fixed {
    Fixed { config_map: Some(BTreeMap::from([(k.into(), v.into())])), ..Fixed::default() }
}

/// Runs a wanted pod's actions to their success; returns how many there were.
fn settle(v: &mut Volumes, pod: &Pod, sources: &Fixed) -> usize {
    let actions = v.wanted(Time(0), pod, &NodeConfig::default(), &Place::default(), sources);
    let n = actions.len();
    for (i, a) in actions.into_iter().enumerate() {
        let VolumeAction::SetUp(s) = a else { panic!("{a:?}") };
        let op = OpId(100 + i as u64);
        v.started("u", &s.name, op, Some(s.kind));
        assert_eq!(v.done(Time(0), "u", &s.name, op, &Ok(Reply::Done)), None);
    }
    n
}

#[test]
fn teardown_needs_every_proof() {
    let proof =
        TeardownFacts { unwanted: Some(true), listing_is_newer: true, container_alive: false, sandbox_alive: false };
    assert!(may_tear_down(proof));
    for lacking in [
        TeardownFacts { unwanted: None, ..proof },
        TeardownFacts { unwanted: Some(false), ..proof },
        TeardownFacts { listing_is_newer: false, ..proof },
        TeardownFacts { container_alive: true, ..proof },
        TeardownFacts { sandbox_alive: true, ..proof },
    ] {
        assert!(!may_tear_down(lacking), "{lacking:?}");
    }
}

#[test]
fn volumes_are_set_up_once_and_again_when_their_contents_change() {
    let p = pod(json!([{"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                       {"name": "c", "configMap": {"name": "cm"}}]));
    let mut v = Volumes::default();
    assert_eq!(v.ready(&p), Err(vec![("e".into(), None), ("c".into(), None)]));
    assert_eq!(settle(&mut v, &p, &data("k", "1")), 2);
    assert_eq!(settle(&mut v, &p, &data("k", "1")), 0);
    assert_eq!(settle(&mut v, &p, &data("k", "2")), 1);
    let ready = v.ready(&p).unwrap();
    assert_eq!(ready["e"], "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/e");
}

/// Upstream's tests leave volumes to no container and look for them on the node ("should not mount / map unused volumes in a pod",
/// `test/e2e/storage/testsuites/volumemode.go`).
#[test]
fn what_no_container_has_is_not_made_and_keeps_nobody_waiting() {
    let volumes = json!([{"name": "e", "emptyDir": {}}, {"name": "lacks", "configMap": {"name": "nowhere"}},
        {"name": "unbound", "persistentVolumeClaim": {"claimName": "none"}}]);
    let with = |containers: serde_json::Value| {
        let mut p = pod(volumes.clone());
        let mut s = serde_json::to_value(spec(&p)).unwrap();
        s["containers"][0]["volumeMounts"] = json!(null);
        for (key, value) in containers.as_object().unwrap() {
            s[key] = value.clone();
        }
        p.spec = serde_json::from_value(s).unwrap();
        p
    };
    let mount = |name: &str| json!([{"name": name, "mountPath": "/v"}]);
    let file = json!([{"name": "K", "valueFrom": {"fileKeyRef": {"volumeName": "e", "path": "f", "key": "K"}}}]);
    for (containers, made, waits) in [
        (json!({}), 0, None),
        (json!({"containers": [{"name": "c", "volumeMounts": mount("e")}]}), 1, None),
        (json!({"initContainers": [{"name": "i", "volumeMounts": mount("e")}]}), 1, None),
        (json!({"ephemeralContainers": [{"name": "d", "volumeMounts": mount("e")}]}), 1, None),
        (json!({"containers": [{"name": "c", "env": file}]}), 1, None),
        (json!({"containers": [{"name": "c", "volumeMounts": mount("lacks")}]}), 0, Some("lacks")),
        (
            json!({"containers": [{"name": "c", "volumeDevices": [{"name": "unbound", "devicePath": "/d"}]}]}),
            0,
            Some("unbound"),
        ),
    ] {
        let (p, mut v) = (with(containers.clone()), Volumes::default());
        assert_eq!(settle(&mut v, &p, &Fixed::default()), made, "{containers}");
        let missing = v.ready(&p).err().map(|missing| missing[0].0.clone());
        assert_eq!(missing.as_deref(), waits, "{containers}");
    }
}

#[test]
fn memory_is_bounded_by_the_volume_the_pod_and_the_node() {
    for (volume, pods, node, expected) in [
        (None, None, 0, 0),
        (None, None, 1000, 1000),
        (None, Some("500"), 1000, 500),
        (Some("300"), Some("500"), 1000, 300),
        (Some("800"), Some("500"), 1000, 500),
        (Some("800"), None, 1000, 800),
        (Some("2000"), None, 1000, 1000),
        (Some("0"), Some("500"), 1000, 500),
    ] {
        let mut p = pod(json!([{"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": volume}}]));
        if let Some(limit) = pods {
            let resources = serde_json::from_value(json!({"limits": {"memory": limit}})).unwrap();
            p.spec.as_mut().unwrap().containers[0].resources = Some(resources);
        }
        let allocatable = [("memory".to_owned(), node * 1000)].into();
        let place = Place { allocatable, ..Place::default() };
        let volumes = spec(&p).volumes.as_ref().unwrap();
        let kind = setup_of(&p, &volumes[0], &NodeConfig::default(), &place, &Fixed::default()).unwrap().kind;
        let VolumeKind::EmptyDir { size_bytes, .. } = kind else { panic!("{kind:?}") };
        assert_eq!(size_bytes, expected, "{volume:?} {pods:?} {node}");
    }
}

#[test]
fn a_source_that_cannot_be_read_leaves_what_is_mounted() {
    let p = pod(json!([{"name": "c", "configMap": {"name": "cm"}}]));
    let mut v = Volumes::default();
    settle(&mut v, &p, &data("k", "1"));
    for broken in [NotReady::Pending, NotReady::Failed("API server down".into())] {
        assert_eq!(settle(&mut v, &p, &Fixed { broken: Some(broken), ..Fixed::default() }), 0);
        assert!(v.ready(&p).is_ok());
    }
    assert!(!v.all_gone("u"));
}

#[test]
fn what_is_to_go_does_not_wait_for_what_could_not_be_read() {
    let p = pod(json!([{"name": "c", "configMap": {"name": "cm"}}]));
    let (journal, _) = Volumes::default().journal(&p, &NodeConfig::default());
    let mut v = Volumes::default();
    v.restore(&"u".into(), &p, &journal, None);
    let unread = Fixed { broken: Some(NotReady::Failed("API server down".into())), ..Fixed::default() };
    let mut now = Time(0);
    for _ in 0..8 {
        now = now.max(v.next_retry("u").unwrap_or_default());
        assert!(v.wanted(now, &p, &NodeConfig::default(), &Place::default(), &unread).is_empty());
    }
    assert!(v.next_retry("u").is_some_and(|at| at > now + Duration::from_secs(30)), "it is not read again soon");
    assert_eq!(v.unwanted(now, "u").len(), 1);
}

#[test]
fn a_restored_journal_is_set_up_again_or_torn_down_but_never_forgotten() {
    let p = pod(json!([{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}}]));
    let (journal, _) = Volumes::default().journal(&p, &NodeConfig::default());
    let mut v = Volumes::default();
    v.restore(&"u".into(), &p, &journal, None);
    assert!(!v.all_gone("u"), "it may be mounted");
    let actions = v.unwanted(Time(0), "u");
    assert_eq!(actions.len(), 1, "a path of the node is not the kubelet's to take down");
    v.started("u", "e", OpId(1), None);
    assert!(v.done(Time(0), "u", "e", OpId(1), &Err(OpError::Failed("busy".into()))).is_some());
    assert!(!v.all_gone("u"));
    assert!(v.unwanted(Time(0), "u").is_empty(), "backs off");
    assert_eq!(v.unwanted(v.next_retry("u").unwrap(), "u").len(), 1);
    assert_eq!(v.next_retry("u"), None, "a time that has passed wakes nobody");
    v.started("u", "e", OpId(2), None);
    v.done(Time(0), "u", "e", OpId(2), &Ok(Reply::Done));
    assert!(v.all_gone("u"));
}

#[test]
fn payloads() {
    let token = json!({"sources": [{"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "cm", "items": [{"key": "k", "path": "d/ca.crt", "mode": 256}]}},
        {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]});
    for (volume, sources, expected) in [
        (json!({"configMap": {"name": "cm"}}), data("k", "v"), Ok(vec![("k", "v", 0o644)])),
        (json!({"configMap": {"name": "cm", "defaultMode": 384}}), data("k", "v"), Ok(vec![("k", "v", 0o600)])),
        (json!({"configMap": {"name": "cm"}}), Fixed::default(), Err("not found")),
        (json!({"configMap": {"name": "cm", "optional": true}}), Fixed::default(), Ok(vec![])),
        (
            json!({"configMap": {"name": "cm", "items": [{"key": "z", "path": "z"}]}}),
            data("k", "v"),
            Err("configmap references non-existent config key: z"),
        ),
        (
            json!({"configMap": {"name": "cm", "items": [{"key": "k", "path": "../z"}]}}),
            data("k", "v"),
            Err("must stay inside"),
        ),
        (json!({"secret": {"secretName": "s"}}), Fixed::default(), Err("secret \"s\" not found")),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "ca", "signerName": "s"}}]}}),
            Fixed::default(),
            Err("clusterTrustBundle projection is not enabled"),
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"keyType": "ED25519", "signerName": "s",
                "credentialBundlePath": "b"}}]}}),
            Fixed::default(),
            Err("podCertificate projection is not enabled"),
        ),
        (
            json!({"projected": token}),
            data("k", "ca"),
            Ok(vec![("d/ca.crt", "ca", 0o400), ("ns", "n", 0o644), ("token", "token for ", 0o644)]),
        ),
    ] {
        let mut volume = volume;
        volume["name"] = "v".into();
        let p = pod(json!([volume]));
        let got = files(&p, &spec(&p).volumes.as_ref().unwrap()[0], &Place::default(), &sources);
        match (got, expected) {
            (Ok(files), Ok(expected)) => {
                let got: Vec<_> =
                    files.iter().map(|f| (f.path.as_str(), std::str::from_utf8(&f.data).unwrap(), f.mode)).collect();
                assert_eq!(got, expected, "{volume}");
            }
            (Err(NotReady::Failed(e)), Err(expected)) => assert!(e.contains(expected), "{e}"),
            other => panic!("{volume}: {other:?}"),
        }
    }
}

fn claimed(phase: &str, owner_uid: &str, mode: &str, source: serde_json::Value) -> Fixed {
    let mut spec = json!({"volumeMode": mode, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "n", "name": "data", "uid": owner_uid}});
    for (key, value) in source.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "n", "name": "data", "uid": "c1"},
        "spec": {"volumeName": "pv1"}, "status": {"phase": phase}});
    let volume = json!({"kind": "PersistentVolume", "metadata": {"name": "pv1", "namespace": ""}, "spec": spec});
    Fixed { objects: vec![claim, volume], ..Fixed::default() }
}

#[test]
fn claims_are_used_only_where_they_surely_are_the_pods() {
    let flex = json!({"flexVolume": {"driver": "v/d"}});
    let p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    let volume = &spec(&p).volumes.as_ref().unwrap()[0];
    let check = |sources: &Fixed, expected: Result<&str, &str>| {
        let found = origin::resolve(&p, volume, sources).map(|o| o.unwrap().unique_name().unwrap_or_default());
        let found = found.map_err(|e| match e {
            NotReady::Pending => "pending".to_owned(),
            NotReady::Failed(e) => e,
        });
        match (&found, expected) {
            (Ok(name), Ok(wanted)) => assert_eq!(name, wanted),
            (Err(text), Err(wanted)) => assert!(text.contains(wanted), "{text}"),
            _ => panic!("{found:?} is not {expected:?}"),
        }
    };
    check(&claimed("Bound", "c1", "Filesystem", flex.clone()), Ok("flexvolume-v/d/pv1"));
    let csi = json!({"csi": {"driver": "d.example", "volumeHandle": "h"}});
    check(&claimed("Bound", "c1", "Filesystem", csi), Ok("kubernetes.io/csi/d.example^h"));
    check(&claimed("Bound", "c1", "Filesystem", json!({"nfs": {"server": "s", "path": "/"}})), Ok(""));
    check(&Fixed::default(), Err("persistentvolumeclaim \"data\" not found"));
    check(&claimed("Pending", "c1", "Filesystem", flex.clone()), Err("non-bound phase"));
    check(&claimed("Bound", "c2", "Filesystem", flex.clone()), Err("belongs to another claim"));
    check(&claimed("Bound", "c1", "Filesystem", json!({"glusterfs": {}})), Err("does not mount"));
    for (finalizers, expected) in [
        (json!(["kubernetes.io/pvc-protection"]), Ok("flexvolume-v/d/pv1")),
        (json!(["other"]), Err("PVC n/data is being deleted")),
    ] {
        let mut going = claimed("Bound", "c1", "Filesystem", flex.clone());
        going.objects[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        going.objects[0]["metadata"]["finalizers"] = finalizers;
        check(&going, expected);
    }
    for driver in ["../../bin", "a/b/c", "..", "a/"] {
        let sources = claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": driver}}));
        assert!(matches!(origin::resolve(&p, volume, &sources), Err(NotReady::Failed(_))), "{driver}");
    }
    let broken = Fixed { broken: Some(NotReady::Failed("API server down".into())), ..Fixed::default() };
    check(&broken, Err("API server down"));
    // What is elsewhere is not looked for here.
    let terms = json!([{"matchExpressions": [{"key": "where", "operator": "In", "values": ["here"]}]}]);
    let affinity = json!({"required": {"nodeSelectorTerms": terms}});
    let source = json!({"local": {"path": "/disk"}, "nodeAffinity": affinity});
    for (labels, expected) in [
        (None, Err("pending")),
        (Some(json!({"where": "here"})), Ok("kubernetes.io/local-volume/pv1")),
        (Some(json!({"where": "there"})), Err("node affinity check failed for volume \"pv1\"")),
        (Some(json!({})), Err("node affinity check failed")),
    ] {
        check(&Fixed { node: labels, ..claimed("Bound", "c1", "Filesystem", source.clone()) }, expected);
    }
}

#[test]
fn a_volume_that_the_control_plane_attaches_is_staged_as_what_its_node_says() {
    let p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    let own = pod(json!([{"name": "v", "flexVolume": {"driver": "v/d"}}]));
    let claimed = || claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": "v/d"}}));
    let told = |device: Option<&str>| Told { in_use: true, attached: device.map(str::to_owned), ..Told::default() };
    // Whether it is the control plane's, with what the Node says, and whether that is enough, and for what.
    for (pod, flex_attaches, controller_attach, device, expected) in [
        (&p, true, true, None, Err("volume \"pv1\" is not attached to the node yet")),
        (&p, true, true, Some("/dev/x"), Ok((true, Some("/dev/x")))),
        (&p, true, true, Some(""), Ok((true, Some("")))),
        (&p, false, true, None, Ok((false, None))),
        (&p, true, false, None, Ok((false, None))),
        (&own, true, true, None, Err("volume \"v\" is not attached to the node yet")),
        (&own, true, true, Some("/dev/x"), Ok((true, Some("/dev/x")))),
        (&own, false, true, None, Ok((false, None))),
        (&own, true, false, None, Ok((false, None))),
    ] {
        let case = format!("{flex_attaches} {controller_attach} {device:?}");
        let sources = Fixed { flex_attaches, ..claimed() };
        let config = NodeConfig { controller_attach, ..NodeConfig::default() };
        let mut v = Volumes::default();
        let look = |v: &mut Volumes| v.wanted(Time(0), pod, &config, &Place::default(), &sources).len();
        look(&mut v);
        v.journal_saved("u", 1);
        assert_eq!(look(&mut v), 0);
        let mut node = std::mem::take(&mut v.node);
        let (record, _) = node.step(Time(0), true, |_| USED, |_| told(device));
        let [StageAction::Record(staging)] = &record[..] else { panic!("{case}: {record:?}") };
        node.started(&record[0], OpId(7));
        node.done(Time(0), &staging.id, OpId(7), &Ok(Reply::Done));
        let (next, _) = node.step(Time(0), true, |_| USED, |_| told(device));
        v.node = node;
        match (&next[..], expected) {
            ([StageAction::Stage(s, inputs)], Ok((by_control_plane, device))) => {
                assert_eq!(s.by_control_plane, by_control_plane, "{case}");
                let named = match &inputs.attached {
                    staged::Attached::With { context, .. } => context.get("devicePath").map(String::as_str),
                    _ => None,
                };
                assert_eq!(named, device, "{case}");
            }
            ([], Err(text)) => {
                look(&mut v);
                let missing = v.ready(pod).expect_err("it is missing");
                assert_eq!(missing, vec![("v".to_owned(), Some(text.to_owned()))], "{case}");
            }
            (next, _) => panic!("{case}: {next:?}"),
        }
    }
}

#[test]
fn a_volume_is_not_mistaken_for_another_of_its_name() {
    let brought =
        |size: &str| pod(json!([{"name": "pv1", "flexVolume": {"driver": "v/d", "options": {"size": size}}}]));
    let opened_by =
        |secret: &str| pod(json!([{"name": "pv1", "flexVolume": {"driver": "v/d", "secretRef": {"name": secret}}}]));
    let elsewhere = |mut pod: Pod| {
        pod.metadata.namespace = Some("elsewhere".into());
        pod
    };
    let of_claim = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    let sources = claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": "v/d"}}));
    let as_other = |mut pod: Pod| {
        pod.metadata.uid = Some("u2".into());
        pod
    };
    for (first, second, refused) in [
        (brought("1"), brought("1"), false),
        (brought("1"), brought("2"), true),
        (opened_by("s"), opened_by("s"), false),
        (opened_by("s"), opened_by("t"), true),
        // A secret of the same name is another one there.
        (opened_by("s"), elsewhere(opened_by("s")), true),
        (brought("1"), of_claim.clone(), true),
        (of_claim.clone(), brought("1"), true),
        (of_claim.clone(), of_claim.clone(), false),
    ] {
        let second = as_other(second);
        let mut v = Volumes::default();
        let mut look = |pod: &Pod| {
            v.wanted(Time(0), pod, &NodeConfig::default(), &Place::default(), &sources);
            v.ready(pod).expect_err("nothing is there yet").remove(0).1.unwrap_or_default()
        };
        assert_eq!(look(&first), "");
        assert_eq!(look(&second).contains("another volume is called flexvolume-v/d/pv1"), refused, "{second:?}");
        // Who is refused holds nothing back.
        assert_eq!(v.users("flexvolume-v/d/pv1").len(), if refused { 1 } else { 2 });
        // What was mounted for one that is gone is another's still, until it is taken down.
        let mut node = std::mem::take(&mut v.node);
        let origin = origin::resolve(&first, &spec(&first).volumes.as_ref().unwrap()[0], &sources).unwrap().unwrap();
        node.want("flexvolume-v/d/pv1", &origin, "/staged".into(), staged::StageInputs::default(), None);
        let mut later = Volumes { node, ..Volumes::default() };
        later.wanted(Time(0), &second, &NodeConfig::default(), &Place::default(), &sources);
        assert_eq!(later.users("flexvolume-v/d/pv1").is_empty(), refused, "{second:?}");
    }
}

#[test]
fn a_volume_that_is_left_holds_its_name_until_it_is_detached() {
    let own = pod(json!([{"name": "v", "flexVolume": {"driver": "v/d"}}]));
    let origin = origin::resolve(&own, &spec(&own).volumes.as_ref().unwrap()[0], &Fixed::default()).unwrap().unwrap();
    let id = "flexvolume-v/d/v";
    for by_control_plane in [true, false] {
        let attached = if by_control_plane { staged::Attached::ByNode } else { staged::Attached::NotNeeded };
        let mut node = StagedVolumes::default();
        let inputs = staged::StageInputs { attached, ..staged::StageInputs::default() };
        node.want(id, &origin, "/staged".into(), inputs, None);
        assert_eq!(node.in_use().count(), 1);
        let told = |attached: bool| {
            move |_: &str| Told { in_use: true, attached: attached.then(String::new), ..Told::default() }
        };
        assert_eq!(node.step(Time(0), true, |_| Use::default(), told(true)).0, vec![]);
        assert_eq!((node.get(id).is_some(), node.in_use().count()), (by_control_plane, 0));
        assert_eq!(node.step(Time(0), true, |_| Use::default(), told(false)).0, vec![]);
        assert!(node.get(id).is_none());
    }
}

/// A pod wants it, and may have a part of it.
const USED: Use = Use { wanted: true, there: true, busy: false };

/// What the node's volumes ask for, by name, when everything that is asked is done at once.
fn ask(v: &mut Volumes, next: &mut u64, known: bool, in_use: bool) -> Vec<&'static str> {
    let users = v.users_in_use().remove("flexvolume-v/d/pv1").filter(|_| in_use).unwrap_or_default();
    let told = Told { in_use, attached: None, users };
    let mut node = std::mem::take(&mut v.node);
    let uses = v.uses();
    let of = |id: &str| uses.get(id).copied().unwrap_or_default();
    let (actions, _) = node.step(Time(0), known, of, |_| told.clone());
    let names = actions.iter().map(|a| match a {
        StageAction::Record(_) => "record",
        StageAction::Stage(..) => "stage",
        StageAction::Unstage(_) => "unstage",
        StageAction::Drop(_) => "drop",
    });
    let names = names.collect();
    for action in actions {
        *next += 1;
        let id = "flexvolume-v/d/pv1";
        node.started(&action, OpId(*next));
        let reply = match action {
            StageAction::Stage(..) => Reply::Staged { device: Some("/dev/x".into()), identity: None },
            _ => Reply::Done,
        };
        assert_eq!(node.done(Time(0), id, OpId(*next), &Ok(reply)), None);
    }
    v.node = node;
    names
}

#[test]
fn a_drivers_volume_goes_one_way_up_and_the_same_way_down() {
    let p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
    let sources = claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": "v/d"}}));
    let (mut v, mut n) = (Volumes::default(), 1000);
    // Nothing is done about it before the record names it.
    assert_eq!(settle(&mut v, &p, &sources), 0);
    assert_eq!(ask(&mut v, &mut n, true, true), Vec::<&str>::new());
    let (journal, version) = v.journal(&p, &NodeConfig::default());
    assert_eq!((journal.len(), version), (1, 1));
    v.journal_saved("u", version);
    assert_eq!(settle(&mut v, &p, &sources), 0);
    assert_eq!(ask(&mut v, &mut n, true, false), ["record"]);
    // Not before the control plane can know that it must not be detached.
    assert_eq!(ask(&mut v, &mut n, true, false), Vec::<&str>::new());
    assert_eq!(ask(&mut v, &mut n, true, true), ["stage"]);
    assert_eq!(ask(&mut v, &mut n, true, true), ["record"], "the device is written down too");
    assert_eq!(settle(&mut v, &p, &sources), 1);
    assert!(v.ready(&p).is_ok());

    // A kubelet that starts again knows it from its record, with an API that says nothing.
    let broken = Fixed { broken: Some(NotReady::Failed("down".into())), ..Fixed::default() };
    let mut again = Volumes::default();
    again.restore(&"u".into(), &p, &journal, None);
    again.node.restore(v.node.get("flexvolume-v/d/pv1").unwrap().clone(), false);
    assert_eq!(ask(&mut again, &mut n, true, true), Vec::<&str>::new(), "a part of it may be there");
    assert_eq!(settle(&mut again, &p, &broken), 0);
    assert_eq!(ask(&mut again, &mut n, true, true), ["stage"]);
    assert_eq!(settle(&mut again, &p, &broken), 1);

    let actions = again.unwanted(Time(0), "u");
    assert!(matches!(&actions[..], [VolumeAction::TearDown { published: Some(_), .. }]), "{actions:?}");
    again.started("u", "v", OpId(1), None);
    assert_eq!(ask(&mut again, &mut n, true, true), Vec::<&str>::new(), "its part is still going");
    assert_eq!(again.done(Time(0), "u", "v", OpId(1), &Ok(Reply::Done)), None);
    assert_eq!(ask(&mut again, &mut n, false, true), Vec::<&str>::new(), "not every pod is known");
    assert_eq!(ask(&mut again, &mut n, true, true), ["unstage"]);
    assert_eq!(ask(&mut again, &mut n, true, true), ["drop"]);
    assert_eq!(again.node.in_use().count(), 1);
    assert_eq!(ask(&mut again, &mut n, true, true), Vec::<&str>::new());
    assert_eq!(again.node.in_use().count(), 0);
}

/// A second pod of a volume that is there already gets its part when the Node names it among those that may have it, and what
/// may be its part already is no news.
#[test]
fn a_pod_gets_its_part_when_the_control_plane_knows_of_it() {
    let named = |uid: &str| -> Pod {
        let mut p = pod(json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]));
        (p.metadata.uid, p.metadata.name) = (Some(uid.to_owned()), Some(uid.to_owned()));
        p
    };
    let (first, second) = (named("u"), named("w"));
    let sources = claimed("Bound", "c1", "Filesystem", json!({"flexVolume": {"driver": "v/d"}}));
    let (mut v, mut n) = (Volumes::default(), 1000);
    let look =
        |v: &mut Volumes, p: &Pod| v.wanted(Time(0), p, &NodeConfig::default(), &Place::default(), &sources).len();
    look(&mut v, &first);
    v.journal_saved("u", 1);
    look(&mut v, &first);
    for asked in ["record", "stage", "record"] {
        assert_eq!(ask(&mut v, &mut n, true, true), [asked]);
    }
    assert_eq!(look(&mut v, &first), 1);
    look(&mut v, &second);
    v.journal_saved("w", 1);
    assert_eq!(look(&mut v, &second), 0, "nobody has been told of it");
    let id = "flexvolume-v/d/pv1";
    assert_eq!(v.users_in_use()[id], ["u", "w"].map(str::to_owned).into());
    let mut told = |users: &[&str]| {
        let users = users.iter().map(|uid| (*uid).to_owned()).collect();
        v.node.step(Time(0), true, |_| USED, |_| Told { in_use: true, attached: None, users: Clone::clone(&users) }).1
    };
    assert_eq!(told(&["u"]), [""; 0]);
    assert_eq!(told(&["u", "w"]), [id], "whoever waited for it looks again");
    assert_eq!(told(&["u", "w"]), [""; 0]);
    assert_eq!(look(&mut v, &second), 1);
    // Pods of one controller are one user: the next of them is no news.
    let mut third = named("x");
    third.metadata.owner_references =
        Some(vec![OwnerReference { uid: "w".to_owned(), controller: Some(true), ..OwnerReference::default() }]);
    look(&mut v, &third);
    v.journal_saved("x", 1);
    assert_eq!((look(&mut v, &third), v.users_in_use()[id].len()), (1, 2));
    // A kubelet that starts again, and whose Node nobody can read, goes on with what may be there.
    let (journal, _) = v.journal(&first, &NodeConfig::default());
    let mut again = Volumes::default();
    again.restore(&"u".into(), &first, &journal, None);
    again.node.restore(v.node.get(id).unwrap().clone(), true);
    assert_eq!(look(&mut again, &first), 1);
}

#[test]
fn a_volume_goes_to_the_pods_group_as_its_driver_and_its_pod_want_it() {
    use GroupPolicy::{Always, None as Nobody, OnRootMismatch};
    let plain = json!({"persistentVolumeClaim": {"claimName": "data"}});
    let to_read = json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": true}});
    let csi = |fs_type: &str| json!({"csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type}});
    let shared =
        json!({"csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}, "accessModes": ["ReadWriteMany"]});
    let flex = json!({"flexVolume": {"driver": "v/d"}});
    let local = json!({"local": {"path": "/x"}});
    for (volume, source, mode, of_driver, group, change, expected) in [
        (&plain, &flex, "Filesystem", None, Some(1), None, Always),
        (&plain, &flex, "Filesystem", None, Some(1), Some("Always"), Always),
        (&plain, &flex, "Filesystem", None, Some(1), Some("OnRootMismatch"), OnRootMismatch),
        (&plain, &flex, "Filesystem", None, None, Some("Always"), Nobody),
        (&to_read, &flex, "Filesystem", None, Some(1), Some("Always"), Nobody),
        (&plain, &flex, "Block", None, Some(1), Some("Always"), Nobody),
        (&plain, &local, "Filesystem", None, Some(1), Some("OnRootMismatch"), OnRootMismatch),
        (&plain, &json!({"nfs": {"server": "s", "path": "/"}}), "Filesystem", None, Some(1), None, Nobody),
        // Without a policy it is ReadWriteOnceWithFSType.
        (&plain, &csi("ext4"), "Filesystem", None, Some(1), None, Always),
        (
            &plain,
            &csi("ext4"),
            "Filesystem",
            Some("ReadWriteOnceWithFSType"),
            Some(1),
            Some("OnRootMismatch"),
            OnRootMismatch,
        ),
        (&plain, &csi(""), "Filesystem", Some("ReadWriteOnceWithFSType"), Some(1), None, Nobody),
        (&plain, &shared, "Filesystem", Some("ReadWriteOnceWithFSType"), Some(1), None, Nobody),
        (&plain, &shared, "Filesystem", Some("File"), Some(1), None, Always),
        (&plain, &csi(""), "Filesystem", Some("File"), Some(1), Some("OnRootMismatch"), OnRootMismatch),
        (&to_read, &csi("ext4"), "Filesystem", Some("File"), Some(1), None, Nobody),
        (&plain, &csi("ext4"), "Block", Some("File"), Some(1), None, Nobody),
        (&plain, &csi("ext4"), "Filesystem", Some("None"), Some(1), Some("Always"), Nobody),
    ] {
        let mut sources = claimed("Bound", "c1", mode, source.clone());
        sources.objects.push(json!({"kind": "CSIDriver", "metadata": {"name": "d"},
            "spec": {"attachRequired": false, "fsGroupPolicy": of_driver}}));
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        let mut p = pod(json!([volume]));
        // A device is no files.
        p.spec.as_mut().unwrap().containers[0].volume_mounts = None;
        let security = json!({"fsGroup": group, "fsGroupChangePolicy": change});
        p.spec.as_mut().unwrap().security_context = serde_json::from_value(security).unwrap();
        let origin = origin::resolve(&p, &spec(&p).volumes.as_ref().unwrap()[0], &sources).unwrap().unwrap();
        let published = Published { origin, id: None, stage_path: String::new() };
        let inputs = driver::inputs(&p, &published, &NodeConfig::default(), &sources).unwrap();
        let about = format!("{volume} of {source}, {mode}, {of_driver:?}, {group:?}, {change:?}");
        assert_eq!(inputs.group_policy, expected, "{about}");
    }
}

#[test]
fn a_driver_is_asked_for_what_it_says_that_it_has() {
    let own = json!({"csi": {"driver": "d"}});
    let of_claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
    for (volume, modes, expected) in [
        (&of_claim, None, true),
        (&own, None, false),
        (&of_claim, Some(json!([])), true),
        (&own, Some(json!([])), false),
        (&of_claim, Some(json!(["Persistent"])), true),
        (&own, Some(json!(["Persistent"])), false),
        (&of_claim, Some(json!(["Ephemeral"])), false),
        (&own, Some(json!(["Ephemeral"])), true),
        (&of_claim, Some(json!(["Persistent", "Ephemeral"])), true),
        (&own, Some(json!(["Persistent", "Ephemeral"])), true),
    ] {
        let mut sources = claimed("Bound", "c1", "Filesystem", json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
        if let Some(modes) = &modes {
            sources.objects.push(json!({"kind": "CSIDriver", "metadata": {"name": "d"},
                "spec": {"attachRequired": false, "volumeLifecycleModes": modes}}));
        }
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        let p = pod(json!([volume]));
        let origin = origin::resolve(&p, &spec(&p).volumes.as_ref().unwrap()[0], &sources).unwrap().unwrap();
        let published = Published { origin, id: None, stage_path: String::new() };
        let found = driver::inputs(&p, &published, &NodeConfig::default(), &sources);
        let refused = matches!(&found, Err(NotReady::Failed(why)) if why.contains("not supported by driver d"));
        assert_eq!((found.is_ok(), refused), (expected, !expected), "{volume} {modes:?}: {found:?}");
    }
}
