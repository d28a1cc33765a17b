//! What must be so of clones in the end, and what of it does not depend on chance.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::checks::{children, claims, is_of_clone};
use crate::observer::{Observer, beside, conditions, controller, deleting, key_of, text, uid};
use crate::provisioner::DATA;

/// A claim's volume; none while it has none.
pub(super) fn volume_of<'a>(claim: &Value, observer: &'a Observer) -> Option<&'a Value> {
    let volume = observer.get("volume", text(claim, "/spec/volumeName"))?;
    let bound = text(claim, "/status/phase") == "Bound" && text(volume, "/spec/claimRef/uid") == uid(claim);
    bound.then_some(volume)
}

/// What a claim's volume holds; none while it has none.
pub(super) fn data<'a>(claim: &Value, observer: &'a Observer) -> Option<&'a str> {
    volume_of(claim, observer)?.pointer("/metadata/annotations")?.get(DATA)?.as_str()
}

/// Volumes of a machine, and what they hold.
fn disks<'a>(machine: &'a Value, observer: &'a Observer) -> BTreeMap<&'a str, Option<&'a str>> {
    let namespace = text(machine, "/metadata/namespace");
    let of =
        |claim: &str| observer.get("claim", &format!("{namespace}/{claim}")).and_then(|claim| data(claim, observer));
    claims(machine).map(|(volume, claim)| (volume, of(claim))).collect()
}

/// Why a clone, or what it has made, is not as it should be.
pub(crate) fn lacks(clone: &Value, may_fail: bool, observer: &Observer) -> Option<String> {
    let target = || target_of(clone, observer).and_then(|target| target_lacks(target, observer));
    let succeeded = || text(clone, "/status/phase") == "Succeeded";
    course_lacks(clone, may_fail, observer).or_else(|| succeeded().then(target).flatten())
}

/// The machine that a clone has made.
fn target_of<'a>(clone: &Value, observer: &'a Observer) -> Option<&'a Value> {
    let (namespace, name) = (text(clone, "/metadata/namespace"), text(clone, "/status/targetName"));
    observer.get("vm", &format!("{namespace}/{name}"))
}

/// Why a clone has not come to its end, or not in order.
pub(crate) fn course_lacks(clone: &Value, may_fail: bool, observer: &Observer) -> Option<String> {
    if deleting(clone) {
        return Some("is still going".to_owned());
    }
    if let Some(child) = children(clone, observer).next() {
        return Some(format!("still has {}", key_of(child)));
    }
    if !text(clone, "/status/snapshotName").is_empty() || !text(clone, "/status/restoreName").is_empty() {
        return Some("still names what it made".to_owned());
    }
    let namespace = text(clone, "/metadata/namespace");
    let find = |kind: &'static str, name: &str| observer.get(kind, &format!("{namespace}/{name}"));
    match text(clone, "/status/phase") {
        "Succeeded" => target_of(clone, observer).is_none().then(|| "has no target any more".to_owned()),
        "Failed" if may_fail => None,
        "" => {
            let kind = if text(clone, "/spec/source/kind") == "VirtualMachine" { "vm" } else { "vmsnapshot" };
            let waits = find(kind, text(clone, "/spec/source/name")).is_none();
            // Its source has something that cannot be kept.
            let pending = may_fail && conditions(clone).any(|condition| condition["reason"] == "Pending");
            (!waits && !pending).then(|| format!("has not begun: {}", clone["status"]))
        }
        phase => Some(format!("is {phase}: {}", clone["status"]["conditions"])),
    }
}

/// Why a restore is not as it should be.
pub(crate) fn restore_lacks(restore: &Value) -> Option<String> {
    if deleting(restore) {
        return Some("is still going".to_owned());
    }
    let is_complete = restore.pointer("/status/complete") == Some(&Value::Bool(true));
    (!is_complete).then(|| format!("is not complete: {}", restore["status"]))
}

/// Why a snapshot is not as it should be.
pub(crate) fn snapshot_lacks(snapshot: &Value) -> Option<String> {
    let phase = text(snapshot, "/status/phase");
    (phase != "Succeeded").then(|| format!("is {phase:?}: {}", snapshot["status"]["conditions"]))
}

/// Why a target is not what its clone asked for: each disk holds what its name says, since machines call them so.
fn target_lacks(target: &Value, observer: &Observer) -> Option<String> {
    let wrong = disks(target, observer).into_iter().find(|(volume, data)| *data != Some(*volume));
    if let Some((volume, data)) = wrong {
        return Some(format!("has a target whose disk {volume} holds {data:?}"));
    }
    let domain = "/spec/template/spec/domain";
    let is = [
        text(target, "/metadata/labels/copy"),
        text(target, "/metadata/labels/tier"),
        text(target, &format!("{domain}/firmware/serial")),
        text(target, &format!("{domain}/firmware/uuid")),
        text(target, &format!("{domain}/devices/interfaces/0/macAddress")),
    ];
    (is != ["yes", "", "of-the-copy", "", "02:00:00:00:00:02"]).then(|| format!("has a target like this: {is:?}"))
}

/// Something that has outlived what it belongs to.
pub(crate) fn debris(observer: &Observer) -> Option<String> {
    let is_there = |kind: &'static str, id: &str| observer.all(kind).any(|object| uid(object) == id);
    for kind in ["vmsnapshot", "vmrestore"] {
        let orphan = observer.all(kind).find(|child| is_of_clone(child) && !is_there("clone", controller(child)));
        if let Some(orphan) = orphan {
            return Some(format!("{kind} {} has outlived its clone", key_of(orphan)));
        }
    }
    let named = |content: &Value| {
        let name = text(content, "/spec/virtualMachineSnapshotName");
        observer.get("vmsnapshot", &beside(content, name)).is_some()
    };
    if let Some(content) = observer.all("vmcontent").find(|content| !named(content)) {
        return Some(format!("content {} has outlived its snapshot", key_of(content)));
    }
    let orphan = |s: &&Value| !controller(s).is_empty() && !is_there("vmcontent", controller(s));
    let is_copy = |claim: &&Value| {
        let owners = claim.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        owners.into_iter().flatten().any(|owner| owner["kind"] == "VirtualMachineSnapshotContent")
    };
    if let Some(copy) = observer.all("claim").filter(is_copy).find(orphan) {
        return Some(format!("claim {} with a copy has outlived its content", key_of(copy)));
    }
    if let Some(pod) =
        observer.all("pod").find(|pod| !text(pod, "/metadata/labels/snapshot.kubevirt.io~1copying").is_empty())
    {
        return Some(format!("pod {} that copies disks is still there", key_of(pod)));
    }
    if let Some(snapshot) = observer.all("volumesnapshot").find(orphan) {
        return Some(format!("volume snapshot {} has outlived its content", key_of(snapshot)));
    }
    let gone = |c: &&Value| !is_there("volumesnapshot", text(c, "/spec/volumeSnapshotRef/uid"));
    observer
        .all("volumesnapshotcontent")
        .find(gone)
        .map(|content| format!("volume snapshot content {} has outlived its snapshot", key_of(content)))
}

/// A text in which every UID is a star: chance decides them.
fn without_uids(text: &str) -> String {
    let is_uid = |at: usize| {
        text.get(at..at + 36).is_some_and(|part| {
            let fits =
                |(n, c): (usize, char)| if matches!(n, 8 | 13 | 18 | 23) { c == '-' } else { c.is_ascii_hexdigit() };
            part.chars().enumerate().all(fits)
        })
    };
    let (mut plain, mut skip) = (String::new(), 0);
    for (at, c) in text.char_indices() {
        if at < skip {
            continue;
        }
        if is_uid(at) {
            plain.push('*');
            skip = at + 36;
        } else {
            plain.push(c);
        }
    }
    plain
}

/// All clones and machines without what chance decides, and how many there are of all else.
pub(crate) fn end(observer: &Observer) -> BTreeMap<String, Value> {
    // Names that admission chose end in five letters.
    let plain = |name: &str| match name.strip_prefix("clone-") {
        Some(rest) => format!("clone-{}-*", rest.rsplit_once('-').map_or(rest, |(stem, _)| stem)),
        None => name.to_owned(),
    };
    let mut end = BTreeMap::new();
    let conditions = |object: &Value| -> Vec<Value> {
        conditions(object).map(|c| json!([c["type"], c["status"], without_uids(text(c, "/reason"))])).collect()
    };
    for kind in ["vmsnapshot", "vmrestore"] {
        for object in observer.all(kind) {
            let status = &object["status"];
            let what = json!({"phase": status["phase"], "complete": status["complete"], "conditions": conditions(object),
                "volumes": status["snapshotVolumes"], "restores": without_uids(&status["restores"].to_string())});
            end.insert(format!("{kind} {}", without_uids(text(object, "/metadata/name"))), what);
        }
    }
    for clone in observer.all("clone") {
        let (conditions, status) = (conditions(clone), &clone["status"]);
        let what = json!({"phase": status["phase"], "conditions": conditions, "snapshot": status["snapshotName"],
            "restore": status["restoreName"], "target": plain(text(clone, "/status/targetName"))});
        end.insert(format!("clone {}", key_of(clone)), what);
    }
    for machine in observer.all("vm") {
        let metadata = &machine["metadata"];
        let annotations = metadata["annotations"].as_object().cloned().unwrap_or_default();
        let annotations = annotations.into_iter().filter(|(key, _)| !key.starts_with("restore.kubevirt.io/"));
        let annotations: BTreeMap<_, _> =
            annotations.map(|(key, value)| (key, without_uids(value.as_str().unwrap_or_default()))).collect();
        let what = json!({"labels": metadata["labels"], "annotations": annotations, "finalizers": metadata["finalizers"],
            "spec": without_uids(&machine["spec"].to_string()), "disks": disks(machine, observer),
            "locked": [machine["status"]["snapshotInProgress"], machine["status"]["restoreInProgress"]]});
        end.insert(format!("vm {}", plain(text(machine, "/metadata/name"))), what);
    }
    // Several may be called the same but for UIDs.
    let mut claims = BTreeMap::<String, Vec<String>>::new();
    for claim in observer.all("claim") {
        let owners = claim.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
        let owners: Vec<String> = owners.map(|o| format!("{} {}", text(o, "/kind"), plain(text(o, "/name")))).collect();
        let metadata = &claim["metadata"];
        let mut of_claim = vec![owners.join(" "), claim["spec"].to_string(), metadata["labels"].to_string()];
        of_claim.extend([metadata["finalizers"].to_string(), text(claim, "/status/phase").to_owned()]);
        of_claim.push(data(claim, observer).unwrap_or_default().to_owned());
        claims.entry(without_uids(text(claim, "/metadata/name"))).or_default().push(without_uids(&of_claim.join(" ")));
    }
    for (name, mut all) in claims {
        all.sort();
        end.insert(format!("claim {name}"), json!(all));
    }
    let kinds =
        ["pod", "claim", "volume", "vmsnapshot", "vmcontent", "vmrestore", "volumesnapshot", "volumesnapshotcontent"];
    for kind in kinds {
        end.insert(format!("{kind}s"), observer.all(kind).count().into());
    }
    end
}
