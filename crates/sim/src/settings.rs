//! Config maps that change, and pods that have them as files: what the kubelet makes of a watch on each.
//!
//! Both keys of such a config map hold the same number, so that files which are of no version of it show.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::volumes::{VolumeKind, VolumeSetup};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Observer, deleting, text, uid};
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, delete, mounting};

/// Contents of a volume's files, by path.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A changed config map is in its volumes within this, once nothing fails any more.
const REACHES_WITHIN: Duration = Duration::from_secs(60);
/// What the kubelet calls directories of such volumes.
const PLUGIN: &str = "kubernetes.io~configmap";

fn data(version: u64) -> Value {
    json!({"version": version.to_string(), "again": version.to_string()})
}

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn are_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::ReadOnce | Bug::UnreadIsAbsent))
}

/// Config maps that are changed now and then, and pods with them.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let count = 1 + rng.below(2);
    for n in 0..count {
        let name = format!("settings{n}");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "default", "name": name}, "data": data(0)});
        let what = What::Create { resource: ConfigMap::resource(), object, want: None };
        acts.push(Act { at: Duration::from_millis(100), what });
        for version in 1..=1 + rng.below(6) {
            let what = What::Patch {
                resource: ConfigMap::resource(),
                namespace: "default".into(),
                name: name.clone(),
                patch: json!({"data": data(version)}),
                kind: "configmap",
                want: None,
            };
            acts.push(Act { at: between(rng, Duration::from_secs(2), safety), what });
        }
    }
    for n in 0..1 + rng.below(4) {
        let name = format!("reader{n}");
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let grace_s = 1 + rng.below(3);
        // What is not there is no error then, but a volume without files.
        let source = json!({"name": format!("settings{}", rng.below(count)), "optional": true});
        let object = mounting(&name, grace_s, "settings", "configMap", source);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(2) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
}

/// The files that a volume is to have, if it is made of a config map.
pub(crate) fn files(setup: &VolumeSetup) -> Option<Files> {
    match &setup.kind {
        VolumeKind::Files { files, .. } if setup.path.contains(PLUGIN) => {
            Some(files.iter().map(|f| (f.path.clone(), f.data.clone())).collect())
        }
        _ => None,
    }
}

/// Checks files that were just written.
pub(crate) fn written(setup: &VolumeSetup, files: &Files, breaches: &mut Vec<Breach>) {
    if files.get("version").is_none_or(|version| files.get("again") != Some(version)) {
        let what = format!("{} of pod {} is of no version of its config map: {files:?}", setup.path, setup.uid);
        breaches.push(Breach::new("settings-stay-whole", what));
    }
}

/// A running pod whose files are not what its config map is now, with the node that it is on.
fn behind<'a>(pod: &'a Value, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<(u8, &'a str)> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array)?;
    let volume = volumes.iter().find(|v| v["configMap"]["optional"] == true)?;
    if deleting(pod) || text(pod, "/status/phase") != "Running" {
        return None;
    }
    let name = format!("{}/{}", text(pod, "/metadata/namespace"), volume["configMap"]["name"].as_str()?);
    let wanted = observer.get("configmap", &name)?["data"].as_object()?;
    let node = named(nodes, text(pod, "/spec/nodeName")).filter(|n| n.up)?;
    let files = node.disk.files_of(uid(pod), volume["name"].as_str()?);
    let same = files.is_some_and(|files| {
        files.len() == wanted.len()
            && wanted.iter().all(|(k, v)| files.get(k).map(Vec::as_slice) == v.as_str().map(str::as_bytes))
    });
    (!same).then(|| (node.number, uid(pod)))
}

/// Volumes that are behind their config maps.
#[derive(Debug, Default)]
pub(crate) struct Settings(BTreeMap<String, Time>);

impl Settings {
    /// Looks at all of them, now that nothing fails any more. What is said is the first.
    pub(crate) fn look(
        &mut self,
        now: Time,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let late: BTreeMap<String, u8> = observer
            .all("pod")
            .filter_map(|pod| behind(pod, observer, nodes))
            .map(|(node, uid)| (uid.to_owned(), node))
            .collect();
        self.0.retain(|uid, _| late.contains_key(uid));
        for (uid, node) in late {
            let since = *self.0.entry(uid.clone()).or_insert(now);
            if now.since(since) > REACHES_WITHIN {
                let seconds = now.since(since).as_secs();
                let what = format!("files of pod {uid} on node{node} are behind their config map for {seconds} s");
                breaches.push(Breach::new("settings-reach-their-files", what));
            }
        }
    }

    /// What is not as it is to be in the end.
    pub(crate) fn lack(&self) -> Option<String> {
        self.0.keys().next().map(|uid| format!("files of pod {uid} are behind their config map"))
    }
}
