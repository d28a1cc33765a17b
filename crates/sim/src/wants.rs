//! What must be true in the end, and what of it is not.

use std::collections::BTreeMap;

use carrack_kubelet::shutdown;
use serde_json::Value;

use crate::node::{Node, WIDGET, WIDGETS, named};
use crate::observer::{Observer, conditions, controller, key_of, terminal, text, uid};
use crate::replicas;

/// What is to be true of an object in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// It is gone, with all that it owned.
    Gone,
    /// The pod runs, or waits because no node has room; one that is not restarted may have ended, and one that is not
    /// important may have had to go for another.
    Pod { restarts: bool, important: bool },
    /// The pod has its GPUs and runs, or has ended, or no node has room for it; one that is not important may have had to go
    /// for another.
    Gpus { important: bool },
    /// The config map has its children.
    Parent,
    /// The claim has a volume of its own.
    Claim,
    /// The workload is as its spec says, and its pods are of its template.
    Workload,
    /// The machine's guest runs.
    Up,
    /// The machine is there, and no guest of it runs.
    Down,
    /// The clone has succeeded, and has left nothing behind; or it has failed, or went after its target, if it may.
    Clone { may_fail: bool, may_go: bool },
    /// The restore is complete, or it went, if it may.
    Restore { may_go: bool },
    /// The snapshot has succeeded.
    Snapshot,
    /// Nothing is said of it.
    Any,
    /// The node takes no machines: nobody is there to run them.
    Idle,
    /// So many instances of the set run, and it says so.
    Instances(usize),
}

/// Why a node is not as it should be.
pub(crate) fn node_lacks(observer: &Observer, name: &str) -> Option<String> {
    let Some(node) = observer.get("node", name) else { return Some(format!("{name} is not registered")) };
    let ready = condition(node, "Ready");
    (ready != "True").then(|| format!("{name} is not ready ({ready:?})"))
}

/// Status of a condition.
fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    conditions(object).find(|c| c["type"] == kind).and_then(|c| c["status"].as_str()).unwrap_or_default()
}

/// The first thing that is not as it was asked to be. `may_be_gone` says of a single pod that it was evicted, or that a node was
/// taken out with what it ran; and `crossed` of a pod that was refused that what it was to have may have been granted to another
/// one while its binding was under way.
pub(crate) fn lacking(
    wants: &BTreeMap<(&'static str, String), Want>,
    observer: &Observer,
    nodes: &BTreeMap<u8, Node>,
    may_be_gone: &dyn Fn(&str) -> bool,
    finicky: bool,
    crossed: &dyn Fn(&Value) -> bool,
) -> Option<String> {
    for ((kind, name), want) in wants {
        let object = observer.get(kind, name);
        let lack = match (want, object) {
            // A person's late request may have made it again after it was deleted; then it is a pod like any other.
            (Want::Gone, Some(pod)) if *kind == "pod" && crate::gpu::shares(pod) => crate::gpu::lacks(pod, observer),
            (Want::Gone, Some(_)) => Some("is still there".to_owned()),
            (Want::Any, _) | (Want::Gone | Want::Clone { may_go: true, .. } | Want::Restore { may_go: true }, None) => {
                None
            }
            (Want::Pod { important: false, .. } | Want::Gpus { important: false }, None) => None,
            // Nobody makes a single pod again.
            (Want::Pod { .. }, None) if may_be_gone(name) => None,
            (_, None) => Some("is not there".to_owned()),
            (Want::Parent, Some(parent)) => {
                let children = observer.all("secret").filter(|s| controller(s) == uid(parent)).count();
                (children != replicas::WANTED).then(|| format!("has {children} children"))
            }
            (Want::Pod { .. }, Some(pod)) if crate::resizes::is_refused(pod) && crossed(pod) => None,
            (Want::Pod { .. }, Some(pod)) if was_turned_away(pod, nodes) => None,
            (Want::Pod { .. }, Some(pod)) if crate::pressure::was_evicted(pod, nodes) => None,
            (Want::Pod { restarts, .. }, Some(pod)) => pod_lacks(pod, *restarts, observer, finicky),
            (Want::Gpus { .. }, Some(pod)) => crate::gpu::lacks(pod, observer),
            (Want::Clone { may_fail, .. }, Some(clone)) => crate::clones::lacks(clone, *may_fail, observer),
            (Want::Restore { .. }, Some(restore)) => crate::clones::restore_lacks(restore),
            (Want::Snapshot, Some(snapshot)) => crate::clones::snapshot_lacks(snapshot),
            (Want::Claim, Some(claim)) => crate::controllers::claim_lacks(claim, observer),
            (Want::Workload, Some(object)) => crate::controllers::lacks(kind, object, observer),
            (Want::Up, Some(machine)) => machine_lacks(machine, name, observer, nodes),
            (Want::Down, Some(machine)) => (observer.get("vmi", name).is_some() || guests_of(name, nodes) > 0)
                .then(|| format!("is {:?} and not stopped", text(machine, "/status/printableStatus"))),
            (Want::Idle, Some(node)) => {
                crate::machines::is_offered(node).then(|| "is silent and takes machines".to_owned())
            }
            (Want::Instances(count), Some(set)) => set_lacks(set, *count, observer, nodes),
        };
        if let Some(lack) = lack {
            return Some(format!("{kind} {name} {lack}"));
        }
    }
    for secret in observer.all("secret").filter(|s| !controller(s).is_empty()) {
        if !observer.all("configmap").any(|c| uid(c) == controller(secret)) {
            return Some(format!("secret {} has outlived its owner", key_of(secret)));
        }
    }
    if let Some(name) = crate::node::orphaned_content(observer) {
        return Some(format!("content {name} has outlived its snapshot"));
    }
    nodes.values().find_map(|node| debris(node, observer))
}

/// How many guests of a machine run.
pub(crate) fn guests_of(name: &str, nodes: &BTreeMap<u8, Node>) -> usize {
    nodes.values().flat_map(|n| n.guests.alive()).filter(|(_, guest)| guest.name == name).count()
}

/// Why a machine does not run as it is to.
pub(crate) fn machine_lacks(
    machine: &Value,
    name: &str,
    observer: &Observer,
    nodes: &BTreeMap<u8, Node>,
) -> Option<String> {
    let status = text(machine, "/status/printableStatus");
    let phase = observer.get("vmi", name).map_or("no instance", |vmi| text(vmi, "/status/phase"));
    let (ready, guests) = (condition(machine, "Ready"), guests_of(name, nodes));
    // A guest whose disk's container has died runs on, and its pod is not ready any more.
    let instance = observer.get("vmi", name).map_or("", uid);
    let hurt = observer.all("pod").filter(|p| controller(p) == instance).any(|pod| {
        let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
        statuses.into_iter().flatten().any(|s| !s["state"]["terminated"].is_null())
    });
    (status != "Running" || (ready != "True" && !hurt) || phase != "Running" || guests != 1)
        .then(|| format!("is {status:?}, ready {ready:?}, its instance {phase}, with {guests} guests"))
}

fn set_lacks(set: &Value, count: usize, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let owned: Vec<&Value> = observer.all("vmi").filter(|vmi| controller(vmi) == uid(set)).collect();
    let guests: usize = owned.iter().map(|vmi| guests_of(&key_of(vmi), nodes)).sum();
    let running = owned.iter().filter(|vmi| text(vmi, "/status/phase") == "Running").count();
    let said = set.pointer("/status/replicas").and_then(Value::as_u64).unwrap_or(0);
    let right = owned.len() == count && running == count && guests == count && said == count as u64;
    (!right).then(|| format!("has {} instances, {running} of them run, {guests} guests; it says {said}", owned.len()))
}

fn pod_lacks(pod: &Value, restarts: bool, observer: &Observer, finicky: bool) -> Option<String> {
    let phase = text(pod, "/status/phase");
    match phase {
        "Running" if condition(pod, "Ready") == "True" => None,
        "Succeeded" | "Failed" if !restarts => None,
        // Its node was shut down in order, which ends its pods for good, and takes none meanwhile.
        "Failed" if [shutdown::REASON, shutdown::REJECTED.0].contains(&text(pod, "/status/reason")) => None,
        "Pending" if condition(pod, "PodScheduled") == "False" => waits_lacking(pod, observer, finicky),
        _ => Some(format!("is {phase:?}, ready {:?}", condition(pod, "Ready"))),
    }
}

/// Whether a kubelet has refused a pod for lack of a device, on a node whose plugin had lost some: the pod came while they were
/// gone, and upstream's kubelet turns it away for good then, too.
fn was_turned_away(pod: &Value, nodes: &BTreeMap<u8, Node>) -> bool {
    let lacks_device = text(pod, "/status/reason").strip_prefix("OutOf") == Some(WIDGET);
    let is_refused = text(pod, "/status/phase") == "Failed" && lacks_device;
    is_refused && named(nodes, text(pod, "/spec/nodeName")).is_some_and(|node| node.plugins.has_fallen_short())
}

/// Why a pod need not wait for a node: one has room, or less important pods have what it asks for. One whose data went with its
/// node waits for good.
fn waits_lacking(pod: &Value, observer: &Observer, finicky: bool) -> Option<String> {
    if crate::lost_data::lost_node(pod, observer).is_some() {
        return None;
    }
    let takes = |p: &Value| p.pointer("/spec/containers/0/resources/limits").is_some_and(|l| !l[WIDGET].is_null());
    let priority = |p: &Value| p.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0);
    let (label, hollow) = crate::controllers::HOLLOW;
    let takes_pods =
        |node: &&Value| node["spec"]["unschedulable"] != true && node["metadata"]["labels"][label] != hollow;
    observer.all("node").filter(takes_pods).find_map(|node| {
        let node = text(node, "/metadata/name");
        if finicky && crate::extender::refuses(pod, node) {
            return None;
        }
        let here = |p: &&Value| text(p, "/spec/nodeName") == node && !terminal(p) && takes(p);
        let holders: Vec<&Value> = observer.all("pod").filter(here).collect();
        if !takes(pod) || holders.len() < WIDGETS {
            return Some("waits though a node has room".to_owned());
        }
        let less = holders.into_iter().find(|p| priority(p) < priority(pod))?;
        Some(format!("waits though {} is less important, on {node}", key_of(less)))
    })
}

fn has_disk(pod: &Value) -> bool {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    volumes.into_iter().any(|v| v.get("flexVolume").is_some() || v.get("persistentVolumeClaim").is_some())
}

/// What a node still has of pods that are gone.
fn debris(node: &Node, observer: &Observer) -> Option<String> {
    let known = |uid_wanted: &str| observer.all("pod").any(|p| uid(p) == uid_wanted) || node.manifests.has(uid_wanted);
    let number = node.number;
    if let Some(c) = node.runtime.running().find(|c| !known(&c.record.pod.uid)) {
        return Some(format!("container {} of the gone pod {} runs on node{number}", c.record.id, c.record.pod));
    }
    let records = node.disk.records.keys().filter_map(|name| name.strip_prefix(carrack_kubelet::records::POD_PREFIX));
    if let Some(pod) = records.into_iter().find(|uid| !known(uid)) {
        return Some(format!("node{number} still has a record of the gone pod {pod}"));
    }
    if let Some(record) = crate::unread::left(node) {
        return Some(format!("node{number} still has {record}, which is not whole"));
    }
    if let Some(id) = node.disk.idle() {
        return Some(format!("node{number} still has {id} mounted, for no pod"));
    }
    let volume = |name: &&String| name.starts_with(carrack_kubelet::records::VOLUME_PREFIX);
    if node.disk.records.keys().any(|name| volume(&name)) && !observer.all("pod").any(has_disk) {
        return Some(format!("node{number} still has a record of a disk that no pod has"));
    }
    if let Some(id) = crate::node::orphan(&node.storage, observer) {
        return Some(format!("node{number} still has the volume {id}, of which nothing else is left"));
    }
    if let Some(id) = crate::node::lost_snapshot(&node.storage, observer) {
        return Some(format!("node{number} still has the snapshot {id}, of which no content is left"));
    }
    let bytes = node.disk.checkpoint.as_deref().unwrap_or_default();
    let (held, _) = carrack_kubelet::devices::decode(bytes).unwrap_or_default();
    if let Some(pod) = held.keys().find(|uid| !known(uid)) {
        return Some(format!("node{number} still holds devices for the gone pod {pod}"));
    }
    if let Some(uid_kept) = node.guests.records.keys().find(|kept| !observer.all("vmi").any(|v| uid(v) == **kept)) {
        return Some(format!("node{number}'s virt-handler still has a record of the gone instance {uid_kept}"));
    }
    None
}
