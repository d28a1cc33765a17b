//! Claims and volumes: what people ask for, and what must hold at every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::{Kind as _, Resource};
use carrack_types::volume::{
    DEAD_USERS, SELECTED_NODE, VOLUME_USERS, csi_unique_name, dead_users, flex_unique_name, users_of,
};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::acts::{Work, new_version, start, template};
use super::storage::DRIVER;
use crate::invariants::Breach;
use crate::lost_data::{self, first_node};
use crate::observer::{Change, Observer, deleting, key_of, label, terminal, text, uid};
use crate::wants::Want;
use crate::workload::{Act, What};

/// A class whose volumes are made at once, one whose volumes are made for their first consumer, and one without a
/// provisioner, whose volumes are there.
const CLASSES: [(&str, &str, &str); 3] = [
    ("now", DRIVER, "Immediate"),
    ("later", DRIVER, "WaitForFirstConsumer"),
    ("ready", "kubernetes.io/no-provisioner", "Immediate"),
];
/// More volumes than claims of the last class are ever made.
const READY: usize = 12;

fn claim_spec(rng: &mut Rng) -> Value {
    let (class, ..) = CLASSES[usize::try_from(rng.below(3)).unwrap_or(0)];
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}})
}

/// Makes a claim a part of a StatefulSet, and its pods mount it.
pub(super) fn give(spec: &mut Value, claim: &Value, policy: Value) {
    spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": claim}]);
    spec["persistentVolumeClaimRetentionPolicy"] = policy;
    spec["template"]["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
}

/// Gives a StatefulSet's pods claims; in some runs none.
pub(super) fn of_stateful_set(rng: &mut Rng, spec: &mut Value) {
    let word = |delete: bool| if delete { "Delete" } else { "Retain" };
    let policy = json!({"whenDeleted": word(rng.one_in(2)), "whenScaled": word(rng.one_in(2))});
    let claim = claim_spec(rng);
    if rng.one_in(2) {
        give(spec, &claim, policy);
    }
}

/// Classes, and the volumes that are there.
pub(super) fn ground(acts: &mut Vec<Act>) {
    let mut create = |at: Duration, resource: &Resource, object: Value, want| {
        acts.push(Act { at, what: What::Create { resource: resource.clone(), object, want } });
    };
    for (name, provisioner, mode) in CLASSES {
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
            "provisioner": provisioner, "volumeBindingMode": mode});
        create(Duration::from_millis(1), &StorageClass::resource(), class, None);
    }
    let mut volume = |name: &str, class: &str, affinity: Option<Value>| {
        let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": name}}});
        if let Some(affinity) = affinity {
            volume["spec"]["nodeAffinity"] = affinity;
        }
        create(Duration::from_millis(2), &PersistentVolume::resource(), volume, None);
    };
    for n in 0..READY {
        volume(&format!("ready{n}"), "ready", None);
    }
    let nowhere = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["nowhere"]});
    let nowhere = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [nowhere]}]}});
    volume("free", "later", Some(nowhere));
}

/// Classes, volumes, claims, and a Deployment whose one pod takes its disk from node to node.
pub(super) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    ground(acts);
    let mut claim = |at: Duration, name: &str, rng: &mut Rng, want| {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": "default", "name": name}, "spec": claim_spec(rng)});
        acts.push(Act { at, what: What::Create { resource: PersistentVolumeClaim::resource(), object: claim, want } });
    };
    let first = start(rng, safety);
    claim(first, "roaming", rng, Some(("claim", Want::Claim)));
    for n in 0..rng.below(3) {
        // Nobody uses these; one that waits for its first consumer waits.
        claim(start(rng, safety), &format!("idle{n}"), rng, None);
    }
    let mut version = 1;
    let mut work = Work { resource: Deployment::resource(), kind: "deployment", name: "roamer", at: first, safety };
    let mut template = template("roamer", version);
    template["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "roaming"}}]);
    let spec = json!({"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": {"app": "roamer"}},
        "template": template});
    work.create(spec, acts);
    for _ in 0..2 + rng.below(4) {
        if !work.wait(rng) {
            return;
        }
        version += 1;
        let mut patch = new_version(version);
        // Another node than before, mostly.
        let node = super::nodes().name(usize::try_from(rng.below(4)).unwrap_or(0));
        patch["template"]["spec"] = json!({"nodeSelector": {"kubernetes.io/hostname": node}});
        work.patch(patch, acts);
    }
}

/// A StatefulSet with claims that shrinks and grows again; its claims go with that, or stay.
pub(super) fn shrinking_set(claims_go: bool, class: &str, safety: Duration, acts: &mut Vec<Act>) {
    ground(acts);
    let (name, at) = ("stateful", Duration::from_secs(1));
    let mut work = Work { resource: StatefulSet::resource(), kind: "statefulset", name, at, safety };
    let policy = json!({"whenDeleted": "Retain", "whenScaled": if claims_go { "Delete" } else { "Retain" }});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}}});
    let mut spec = json!({"replicas": 3, "serviceName": name, "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": name}}, "template": template(name, 1)});
    give(&mut spec, &claim, policy);
    work.create(spec, acts);
    for (n, replicas) in [1, 3, 0, 2].into_iter().enumerate() {
        work.at = safety / 6 * u32::try_from(n + 1).unwrap_or(1);
        work.patch(json!({ "replicas": replicas }), acts);
    }
}

/// Why a claim is not as it should be.
pub(crate) fn lacks(claim: &Value, observer: &Observer) -> Option<String> {
    let phase = text(claim, "/status/phase");
    let volume = observer.get("volume", text(claim, "/spec/volumeName"));
    let bound =
        volume.is_some_and(|v| text(v, "/spec/claimRef/uid") == uid(claim) && text(v, "/status/phase") == "Bound");
    (phase != "Bound" || !bound).then(|| format!("is {phase:?}, its volume bound to it: {bound}"))
}

/// A volume that is to go with its claim, and that nobody has any more, neither its claim nor a pod nor a node: it was not given
/// back, and its data stays for ever.
pub(crate) fn left(observer: &Observer) -> Option<String> {
    let is_left = |volume: &&Value| {
        let goes = text(volume, "/spec/persistentVolumeReclaimPolicy") == "Delete";
        let of = text(volume, "/spec/claimRef/uid");
        let is_bound = text(volume, "/status/phase") == "Bound" && !of.is_empty();
        goes && is_bound && !observer.all("claim").any(|claim| uid(claim) == of) && !is_used(volume, observer)
    };
    observer.all("volume").find(is_left).map(|volume| format!("volume {} has outlived its claim", key_of(volume)))
}

/// Whether anybody may still have a volume whose claim is gone.
fn is_used(volume: &Value, observer: &Observer) -> bool {
    let (name, unique) = (text(volume, "/metadata/name"), unique_of(volume));
    let (namespace, claim) = (text(volume, "/spec/claimRef/namespace"), text(volume, "/spec/claimRef/name"));
    let names = |pod: &Value| {
        let mut volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        let of_pod = text(pod, "/metadata/name");
        let is_own = |v: &Value| !v["ephemeral"].is_null() && format!("{of_pod}-{}", text(v, "/name")) == claim;
        volumes.any(|v| v["persistentVolumeClaim"]["claimName"] == claim || is_own(v))
    };
    let is_of = |pod: &Value| text(pod, "/metadata/namespace") == namespace && !terminal(pod) && names(pod);
    observer.all("attachment").any(|a| text(a, "/spec/source/persistentVolumeName") == name)
        || observer.all("node").any(|node| list(node, "/status/volumesInUse").contains(&*unique))
        || observer.all("pod").any(is_of)
}

/// What is remembered of a StatefulSet with claims.
struct Keeper {
    /// The first ordinal that some spec did not have.
    least: i64,
    deletes_scaled: bool,
}

/// What must hold of claims and volumes.
#[derive(Default)]
pub(super) struct Claims {
    keepers: BTreeMap<String, Keeper>,
}

impl Claims {
    pub(super) fn changed(&mut self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        match change.resource {
            "statefulset" => self.keeper(change.object()),
            "volume" => volume(change, observer, breaches),
            "claim" => {
                bound(change, observer, breaches);
                self.goes(change, observer, breaches);
            }
            "attachment" => attachment(change, observer, breaches),
            "node" => node(change, observer, breaches),
            _ => {}
        }
    }

    fn keeper(&mut self, set: &Value) {
        let number = |pointer: &str| set.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        let end = number("/spec/ordinals/start") + number("/spec/replicas");
        let deletes_scaled = text(set, "/spec/persistentVolumeClaimRetentionPolicy/whenScaled") == "Delete";
        let keeper = self.keepers.entry(key_of(set)).or_insert(Keeper { least: end, deletes_scaled });
        keeper.least = keeper.least.min(end);
    }

    /// A claim is to go: only if its StatefulSet's policy says so, and not from under a pod.
    fn goes(&self, change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
        let claim = change.object();
        let mut breach = |what: String| breaches.push(Breach::new("claims-stay-with-their-users", what));
        let asked = change.before.as_ref().is_some_and(|c| !deleting(c)) && change.after.as_ref().is_none_or(deleting);
        let name = text(claim, "/metadata/name");
        let ordinal = name.strip_prefix("data-stateful-").and_then(|o| o.parse::<i64>().ok());
        if let (true, Some(ordinal), Some(keeper)) = (asked, ordinal, self.keepers.get("default/stateful"))
            && !(keeper.deletes_scaled && ordinal >= keeper.least)
        {
            breach(format!("{name} is deleted, and its StatefulSet keeps it"));
        }
        if change.after.is_none() {
            let uses = |p: &&Value| {
                let volumes = p.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
                let named = volumes.into_iter().any(|v| v["persistentVolumeClaim"]["claimName"] == name);
                named && !terminal(p) && !text(p, "/spec/nodeName").is_empty()
            };
            if let Some(pod) = observer.all("pod").find(uses) {
                breach(format!("{name} is gone, and {} has it", key_of(pod)));
            }
        }
    }
}

/// A volume that was given to a claim is given to no other.
fn volume(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let owner = |v: &Option<Value>| v.as_ref().map_or("", |v| text(v, "/spec/claimRef/uid")).to_owned();
    let (before, after) = (owner(&change.before), owner(&change.after));
    let name = key_of(change.object());
    let mut breach = |what: String| breaches.push(Breach::new("one-claim-one-volume", what));
    if !before.is_empty() && !after.is_empty() && before != after {
        breach(format!("{name} goes from the claim {before} to {after}"));
    }
    if change.after.as_ref().is_some_and(|v| text(v, "/status/phase") == "Bound") {
        let bound = |v: &&Value| text(v, "/spec/claimRef/uid") == after && text(v, "/status/phase") == "Bound";
        let all: Vec<String> = observer.all("volume").filter(bound).map(key_of).collect();
        if all.len() > 1 {
            breach(format!("the claim {after} has {all:?}"));
        }
    }
    // Whoever has a volume made at a node needs it there. A claim for which no node was chosen may have any.
    let node = first_node(change.object());
    let chosen = |claim: &Value| label(claim, "annotations", SELECTED_NODE).to_owned();
    if let Some(claim) = observer.all("claim").find(|claim| uid(claim) == after).filter(|_| !node.is_empty())
        && !["", node].contains(&chosen(claim).as_str())
    {
        let what = format!("{} gets {name}, which is at {node} alone", key_of(claim));
        breaches.push(Breach::new(lost_data::NAME, what));
    }
}

/// A claim that is bound has a volume that is its own, and keeps it.
fn bound(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let Some(claim) = change.after.as_ref().filter(|c| text(c, "/status/phase") == "Bound") else { return };
    let name = text(claim, "/spec/volumeName");
    let mut breach = |what: String| breaches.push(Breach::new("one-claim-one-volume", what));
    let volume = observer.get("volume", name);
    if !deleting(claim) && volume.is_none_or(|v| text(v, "/spec/claimRef/uid") != uid(claim)) {
        breach(format!("{} is bound to {name:?}, which is not its own", key_of(claim)));
    }
    if let Some(before) = change.before.as_ref().map(|c| text(c, "/spec/volumeName"))
        && !before.is_empty()
        && before != name
    {
        breach(format!("{} goes from {before} to {name:?}", key_of(claim)));
    }
}

fn list<'a>(node: &'a Value, pointer: &str) -> BTreeSet<&'a str> {
    let list = node.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|v| v.as_str().or_else(|| v["name"].as_str())).collect()
}

/// What an attachment is about, as nodes report it, and for which node.
pub(crate) fn about<'a>(attachment: &'a Value, observer: &'a Observer) -> Option<(String, &'a str)> {
    let node = text(attachment, "/spec/nodeName");
    let brought = text(attachment, "/spec/source/inlineVolumeSpec/csi/volumeHandle");
    if !brought.is_empty() {
        return Some((brought.to_owned(), node));
    }
    let name = text(attachment, "/spec/source/persistentVolumeName");
    Some((unique_of(observer.get("volume", name)?), node))
}

/// The name under which nodes report a volume.
fn unique_of(volume: &Value) -> String {
    match volume.pointer("/spec/flexVolume/driver").and_then(Value::as_str) {
        Some(driver) => flex_unique_name(driver, text(volume, "/metadata/name")),
        None => csi_unique_name(text(volume, "/spec/csi/driver"), text(volume, "/spec/csi/volumeHandle")),
    }
}

/// No second attachment; and none ends while its node is told that it has the volume.
fn attachment(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let attachment = change.object();
    let mut breach = |what: String| breaches.push(Breach::new("one-node-a-disk", what));
    let Some((unique, name)) = about(attachment, observer) else { return };
    let volume = text(attachment, "/spec/source/persistentVolumeName");
    // What pods bring themselves, several nodes may have.
    if change.before.is_none() && !volume.is_empty() {
        let all: Vec<&str> = observer
            .all("attachment")
            .filter(|a| text(a, "/spec/source/persistentVolumeName") == volume)
            .map(|a| text(a, "/spec/nodeName"))
            .collect();
        if all.len() > 1 {
            breach(format!("{volume} is attached to {all:?}"));
        }
    }
    let ends = change.before.as_ref().is_some_and(|a| !deleting(a)) && change.after.as_ref().is_none_or(deleting);
    let node = observer.get("node", name);
    if ends && node.is_some_and(|n| list(n, "/status/volumesAttached").contains(&*unique)) {
        breach(format!("{unique} is taken from {name}, which is told that it has it"));
    }
}

/// Whether everybody is called dead who may have a volume on a node.
fn is_left(node: &Value, name: &str, unique: &str, observer: &Observer) -> bool {
    let named = users_of(Some(label(node, "annotations", VOLUME_USERS)), unique);
    let of = |a: &&Value| about(a, observer).is_some_and(|(u, node)| u == unique && node == name);
    let dead: BTreeSet<&str> = observer
        .all("attachment")
        .filter(of)
        .flat_map(|a| dead_users(Some(label(a, "annotations", DEAD_USERS))))
        .collect();
    !named.is_empty() && named.iter().all(|user| dead.contains(user.as_str()))
}

/// A node is told of a volume only while it is attached for good, and loses none that it uses, but for the use of the dead.
fn node(change: &Change, observer: &Observer, breaches: &mut Vec<Breach>) {
    let (Some(after), name) = (&change.after, key_of(change.object())) else { return };
    let none = Value::Null;
    let before = change.before.as_ref().unwrap_or(&none);
    let (had, has) = (list(before, "/status/volumesAttached"), list(after, "/status/volumesAttached"));
    let mut breach = |what: String| breaches.push(Breach::new("one-node-a-disk", what));
    for unique in has.difference(&had) {
        let stays = |a: &Value| {
            let same = about(a, observer).is_some_and(|(u, node)| u == **unique && node == name);
            same && !deleting(a) && a.pointer("/status/attached") == Some(&Value::Bool(true))
        };
        if !observer.all("attachment").any(stays) {
            breach(format!("{name} is told that it has {unique}, and it has not"));
        }
    }
    let used = list(before, "/status/volumesInUse");
    let is_used = |u: &&&str| used.contains(**u) && !is_left(before, &name, u, observer);
    if let Some(unique) = had.difference(&has).find(is_used).filter(|_| uid(before) == uid(after)) {
        breach(format!("{unique} is taken from {name}, which uses it"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_goes_with_its_claim() {
        let volume = |policy: &str, phase: &str| {
            let volume = json!({"metadata": {"name": "v"}, "spec": {"persistentVolumeReclaimPolicy": policy,
                "csi": {"driver": DRIVER, "volumeHandle": "h"},
                "claimRef": {"namespace": "default", "name": "p-c", "uid": "u"}}, "status": {"phase": phase}});
            ("volume", volume)
        };
        let claim = |uid: &str| ("claim", json!({"metadata": {"namespace": "default", "name": "p-c", "uid": uid}}));
        let pod = |of: Value, phase: &str| {
            let pod = json!({"metadata": {"namespace": "default", "name": "p"}, "spec": {"volumes": [of]},
                "status": {"phase": phase}});
            ("pod", pod)
        };
        let named = || json!({"name": "x", "persistentVolumeClaim": {"claimName": "p-c"}});
        let node = |unique: &str| ("node", json!({"metadata": {"name": "n"}, "status": {"volumesInUse": [unique]}}));
        let attachment = json!({"metadata": {"name": "a"}, "spec": {"source": {"persistentVolumeName": "v"}}});
        let bound = || volume("Delete", "Bound");
        for (objects, expected) in [
            (vec![bound()], true),
            (vec![volume("Delete", "Released")], false),
            (vec![volume("Retain", "Bound")], false),
            (vec![bound(), claim("u")], false),
            // Another one of that name.
            (vec![bound(), claim("new")], true),
            (vec![bound(), pod(named(), "Running")], false),
            (vec![bound(), pod(named(), "Failed")], true),
            (vec![bound(), pod(json!({"name": "c", "ephemeral": {}}), "Running")], false),
            (vec![bound(), node(&csi_unique_name(DRIVER, "h"))], false),
            (vec![bound(), node(&csi_unique_name(DRIVER, "other"))], true),
            (vec![bound(), ("attachment", attachment)], false),
        ] {
            let shown = format!("{objects:?}");
            assert_eq!(left(&Observer::of(objects)).is_some(), expected, "{shown}");
        }
    }
}
