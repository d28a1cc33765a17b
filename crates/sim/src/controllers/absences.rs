//! Nodes that are taken out of the cluster, and what is attached to them: a node that comes back under its name and goes again
//! has all of its time.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::acts::{Work, template};
use crate::invariants::Breach;
use crate::observer::{Change, deleting, key_of, text};
use crate::wants::Want;
use crate::workload::{Act, What};

/// The invariant.
pub(crate) const NAME: &str = "gone-nodes-keep-their-disks";
/// The node that comes and goes where a planted bug is looked for.
pub(crate) const RESTLESS: usize = 0;
/// How long it is away each time, at the least: its pods are given up meanwhile.
pub(crate) const AWAY: Duration = Duration::from_secs(60);
/// For how long a node must have been gone, at the least, before anything is taken from it.
const KEEPS: Duration = Duration::from_secs(360);

/// A disk, and a Deployment whose one pod has it, at the node that comes and goes.
pub(super) fn acts(safety: Duration, acts: &mut Vec<Act>) {
    super::claims::ground(acts);
    let (name, at) = ("settled", Duration::from_secs(1));
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "ready",
            "resources": {"requests": {"storage": "1Gi"}}}});
    let want = Some(("claim", Want::Claim));
    acts.push(Act { at, what: What::Create { resource: PersistentVolumeClaim::resource(), object: claim, want } });
    let work = Work { resource: Deployment::resource(), kind: "deployment", name, at, safety };
    let mut template = template(name, 1);
    template["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    template["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": super::nodes().name(RESTLESS)});
    let spec = json!({"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": {"app": name}},
        "template": template});
    work.create(spec, acts);
}

/// An attachment changed: none ends that is to a node which has not been gone for long enough. `gone`: since when nodes have
/// been that were there.
pub(super) fn changed(now: Time, change: &Change, gone: &BTreeMap<String, Time>, breaches: &mut Vec<Breach>) {
    let Some(before) = change.before.as_ref().filter(|attachment| !deleting(attachment)) else { return };
    if change.after.as_ref().is_some_and(|attachment| !deleting(attachment)) {
        return;
    }
    let node = text(before, "/spec/nodeName");
    if let Some(away) = gone.get(node).map(|since| now.since(*since)).filter(|away| *away < KEEPS) {
        let what = format!("{} ends {} s after {node} went", key_of(before), away.as_secs());
        breaches.push(Breach::new(NAME, what));
    }
}
