//! Volumes that are made when they are asked for, and attached to one node at a time: what their driver, the scheduler and the
//! nodes do about them, and what must hold of them.
//!
//! ```text
//!   claim ─▶ scheduler chooses a node ─▶ driver makes the volume ─▶ bound ─▶ pod on a node ─▶ attached ─▶ in use ─▶ runs
//!   claim goes ─▶ volume released ─▶ driver deletes it            pod gone ─▶ not in use ─▶ detached
//! ```

use std::collections::BTreeSet;

use carrack_engine::Rng;
use carrack_types::volume::{SELECTED_NODE, UNIQUE_NAME, csi_unique_name};
use carrack_types::well_known::storage::{PROVISIONED_BY, PROVISIONER};
use serde_json::{Value, json};

use super::api::{Api, Path, is_deleting, text, uid};
use super::checks::{demand, is_over};

const DRIVER: &str = "disks.example.com";
/// The class of the driver's volumes.
pub const CLASS: &str = "disks";
/// The driver's finalizer: an attachment is there until it has been undone.
const DETACHES: &str = "external-attacher/disks-example-com";

fn place(api: &str, plural: &str, namespace: &str, name: &str) -> Path {
    Path { api: api.into(), plural: plural.into(), namespace: namespace.into(), name: name.into(), ..Path::default() }
}

/// What there is of the driver.
pub fn furnish(api: &mut Api) {
    let storage = "apis/storage.k8s.io/v1";
    drop(api.create(
        &place(storage, "storageclasses", "", ""),
        json!({"metadata": {"name": CLASS}, "provisioner": DRIVER, "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer"}),
    ));
    drop(api.create(
        &place(storage, "csidrivers", "", ""),
        json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}),
    ));
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.pointer("/metadata/annotations").and_then(|all| all[key].as_str()).unwrap_or_default()
}

fn strings(object: &Value, pointer: &str) -> Vec<String> {
    let all = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|v| v.as_str().or_else(|| v["name"].as_str())).map(str::to_owned).collect()
}

/// The claims of a pod, by name.
fn claims(pod: &Value) -> Vec<String> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.map(|v| text(v, "/persistentVolumeClaim/claimName")).filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

fn claim<'a>(api: &'a Api, pod: &Value, name: &str) -> Option<(&'a Path, &'a Value)> {
    let namespace = text(pod, "/metadata/namespace");
    let is_it =
        |path: &Path| path.plural == "persistentvolumeclaims" && path.namespace == namespace && path.name == name;
    api.objects.iter().find(|(path, _)| is_it(path))
}

/// How nodes name the volume of a claim, if it is the driver's.
fn unique(api: &Api, claim: &Value) -> Option<String> {
    let volume = text(claim, "/spec/volumeName");
    let volume = api.all("persistentvolumes").find(|v| text(v, "/metadata/name") == volume)?;
    let handle = text(volume, "/spec/csi/volumeHandle");
    (!handle.is_empty()).then(|| csi_unique_name(DRIVER, handle))
}

fn uniques(api: &Api, pod: &Value) -> BTreeSet<String> {
    claims(pod).iter().filter_map(|name| unique(api, claim(api, pod, name)?.1)).collect()
}

/// What the scheduler does about a pod with claims of the driver's before it binds it. True when it has done something; none
/// when there is nothing that it waits for.
pub fn before_binding(api: &mut Api, pod: &Value, node: &str) -> Option<bool> {
    let mut waits = false;
    for name in claims(pod) {
        let Some((path, claim)) = claim(api, pod, &name) else { return Some(false) };
        if text(claim, "/spec/storageClassName") != CLASS || is_deleting(claim) {
            continue;
        }
        if annotation(claim, SELECTED_NODE).is_empty() && text(claim, "/spec/volumeName").is_empty() {
            let (path, mut chosen) = (path.clone(), claim.clone());
            chosen["metadata"]["annotations"][SELECTED_NODE] = node.into();
            return Some(api.change(&path, chosen).is_ok());
        }
        waits |= text(claim, "/status/phase") != "Bound";
    }
    waits.then_some(false)
}

/// What a node does about the volumes of a pod before it runs that: it reports them in use once it has read that they are
/// attached. Like [`before_binding`].
pub fn before_running(api: &mut Api, pod: &Value) -> Option<bool> {
    let wanted = uniques(api, pod);
    if wanted.is_empty() {
        return None;
    }
    let at = place("api/v1", "nodes", "", text(pod, "/spec/nodeName"));
    let mut node = api.objects.get(&at)?.clone();
    let attached = strings(&node, "/status/volumesAttached");
    if !wanted.iter().all(|unique| attached.contains(unique)) {
        return Some(false);
    }
    let used = strings(&node, "/status/volumesInUse");
    let all: BTreeSet<String> = used.iter().cloned().chain(wanted).collect();
    if all.len() == used.len() {
        return None;
    }
    node["status"]["volumesInUse"] = json!(all);
    Some(api.change(&at, node).is_ok())
}

/// A node reports that it does not use what no pod on it has any more. True when one did.
fn stop_using(api: &mut Api) -> bool {
    let nodes: Vec<(Path, Value)> =
        api.objects.iter().filter(|(path, _)| path.plural == "nodes").map(|(p, n)| (p.clone(), n.clone())).collect();
    for (at, mut node) in nodes {
        let here = api.all("pods").filter(|p| text(p, "/spec/nodeName") == at.name && !is_over(p));
        let wanted: BTreeSet<String> = here.flat_map(|pod| uniques(api, pod)).collect();
        let used = strings(&node, "/status/volumesInUse");
        let left: Vec<&String> = used.iter().filter(|unique| wanted.contains(*unique)).collect();
        if left.len() < used.len() {
            node["status"]["volumesInUse"] = json!(left);
            return api.change(&at, node).is_ok();
        }
    }
    false
}

/// One thing that the driver does: it makes a volume, deletes one, attaches or detaches.
fn drive(api: &mut Api) -> bool {
    let all: Vec<(Path, Value)> = api
        .objects
        .iter()
        .filter(|(p, _)| {
            matches!(p.plural.as_str(), "persistentvolumeclaims" | "persistentvolumes" | "volumeattachments")
        })
        .map(|(path, object)| (path.clone(), object.clone()))
        .collect();
    all.into_iter().any(|(path, object)| match path.plural.as_str() {
        "persistentvolumeclaims" => make(api, &object),
        "persistentvolumes" => remove(api, &path, &object),
        _ => attach(api, &path, object),
    })
}

fn make(api: &mut Api, claim: &Value) -> bool {
    let name = format!("pvc-{}", uid(claim));
    let asked = annotation(claim, PROVISIONER) == DRIVER && text(claim, "/spec/volumeName").is_empty();
    if !asked || is_deleting(claim) || api.all("persistentvolumes").any(|v| text(v, "/metadata/name") == name) {
        return false;
    }
    let metadata = json!({"name": name, "annotations": {PROVISIONED_BY: DRIVER}});
    let reference = json!({"kind": "PersistentVolumeClaim", "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"], "uid": uid(claim)});
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "storageClassName": CLASS, "persistentVolumeReclaimPolicy": "Delete", "claimRef": reference,
        "csi": {"driver": DRIVER, "volumeHandle": name}});
    let volume = json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}});
    api.create(&place("api/v1", "persistentvolumes", "", ""), volume).is_ok()
}

fn remove(api: &mut Api, path: &Path, volume: &Value) -> bool {
    let released = annotation(volume, PROVISIONED_BY) == DRIVER && text(volume, "/status/phase") == "Released";
    let attached = api.all("volumeattachments").any(|a| text(a, "/spec/source/persistentVolumeName") == path.name);
    released && !attached && !is_deleting(volume) && api.delete(path, &Value::Null).is_ok()
}

fn attach(api: &mut Api, path: &Path, mut attachment: Value) -> bool {
    if is_deleting(&attachment) {
        attachment["metadata"]["finalizers"] = json!([]);
    } else if attachment["metadata"]["finalizers"].is_null() {
        attachment["metadata"]["finalizers"] = json!([DETACHES]);
    } else if attachment["status"]["attached"] != true {
        attachment["status"] = json!({"attached": true});
    } else {
        return false;
    }
    api.change(path, attachment).is_ok()
}

/// Some part does something about some volume.
pub fn acts(api: &mut Api, rng: &mut Rng) {
    _ = if rng.one_in(2) { stop_using(api) } else { drive(api) };
}

/// One thing that is still to be done. False when there is nothing.
pub fn all_act(api: &mut Api) -> bool {
    stop_using(api) || drive(api)
}

/// What must hold after each commit: a volume is attached to one node at a time, nothing that a node uses is detached, and no
/// data goes while its claim is there.
pub fn held(api: &Api) -> Result<(), String> {
    let mut attached = BTreeSet::new();
    let mut usable = BTreeSet::new();
    for attachment in api.all("volumeattachments") {
        let volume = text(attachment, "/spec/source/persistentVolumeName");
        demand(attached.insert(volume), || format!("{volume} is attached twice"))?;
        if !is_deleting(attachment) {
            usable.insert((text(attachment, "/spec/nodeName"), annotation(attachment, UNIQUE_NAME)));
        }
    }
    for node in api.all("nodes") {
        let name = text(node, "/metadata/name");
        for unique in strings(node, "/status/volumesInUse") {
            demand(usable.contains(&(name, unique.as_str())), || {
                format!("{unique} is taken from {name}, which uses it")
            })?;
        }
    }
    for volume in api.all("persistentvolumes").filter(|v| text(v, "/status/phase") == "Released") {
        let claim = text(volume, "/spec/claimRef/uid");
        let there = api.all("persistentvolumeclaims").any(|c| uid(c) == claim);
        demand(!there, || format!("{} is given up, and its claim is there", uid(volume)))?;
    }
    Ok(())
}

/// Whether pods have what they asked for in the end, and nothing else is left.
pub fn whole(api: &Api) -> Result<(), String> {
    let mut used = BTreeSet::new();
    for pod in api.all("pods").filter(|pod| !is_over(pod) && !claims(pod).is_empty()) {
        for unique in uniques(api, pod) {
            used.insert((text(pod, "/spec/nodeName").to_owned(), unique));
        }
    }
    let attachments = api.all("volumeattachments");
    let attached: BTreeSet<(String, String)> =
        attachments.map(|a| (text(a, "/spec/nodeName").to_owned(), annotation(a, UNIQUE_NAME).to_owned())).collect();
    demand(used == attached, || format!("pods use {used:?}, and {attached:?} is attached"))?;
    for volume in api.all("persistentvolumes").filter(|v| annotation(v, PROVISIONED_BY) == DRIVER) {
        let claim = text(volume, "/spec/claimRef/uid");
        let there = api.all("persistentvolumeclaims").any(|c| uid(c) == claim);
        demand(there, || format!("{} outlives its claim", uid(volume)))?;
    }
    Ok(())
}
