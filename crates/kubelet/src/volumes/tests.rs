//! Tables for the volume manager.

use super::*;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret, ServiceAccountTokenProjection,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::json;
use std::sync::Arc;

/// Sources as a test sets them.
#[derive(Default)]
struct Fixed {
    config_map: Option<BTreeMap<String, String>>,
    broken: Option<NotReady>,
    objects: Vec<serde_json::Value>,
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
    fn attachment(&self, name: &str) -> Result<Option<Arc<VolumeAttachment>>, NotReady> {
        self.read("VolumeAttachment", "", name)
    }
    fn token(&self, _: &Pod, _: &ServiceAccountTokenProjection) -> Result<String, NotReady> {
        Ok("token".into())
    }
}

fn pod(volumes: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes}
    }))
    .unwrap()
}

fn data(k: &str, v: &str) -> Fixed {
    Fixed { config_map: Some(BTreeMap::from([(k.into(), v.into())])), broken: None, objects: Vec::new() }
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
fn a_restored_journal_is_set_up_again_or_torn_down_but_never_forgotten() {
    let p = pod(json!([{"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/x"}}]));
    let (journal, _) = Volumes::default().journal(&p, &NodeConfig::default());
    let mut v = Volumes::default();
    v.restore(&"u".into(), &journal);
    assert!(!v.all_gone("u"), "it may be mounted");
    let actions = v.unwanted(Time(0), "u");
    assert_eq!(actions.len(), 1, "a path of the node is not the kubelet's to take down");
    v.started("u", "e", OpId(1), None);
    assert!(v.done(Time(0), "u", "e", OpId(1), &Err(OpError::Failed("busy".into()))).is_some());
    assert!(!v.all_gone("u"));
    assert!(v.unwanted(Time(0), "u").is_empty(), "backs off");
    assert_eq!(v.unwanted(v.next_retry("u").unwrap(), "u").len(), 1);
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
            Err("non-existent key: z"),
        ),
        (
            json!({"configMap": {"name": "cm", "items": [{"key": "k", "path": "../z"}]}}),
            data("k", "v"),
            Err("must stay inside"),
        ),
        (json!({"secret": {"secretName": "s"}}), Fixed::default(), Err("secret \"s\" not found")),
        (
            json!({"projected": token}),
            data("k", "ca"),
            Ok(vec![("d/ca.crt", "ca", 0o400), ("ns", "n", 0o644), ("token", "token", 0o644)]),
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
