//! The cells of volumes and their classes.

use carrack_types::volume::is_default_class;
use carrack_types::well_known::storage::CLASS_ANNOTATION;
use serde_json::Value;

use super::access::{Row, list, text};

pub(super) fn persistent_volume(row: Row<'_>) -> Vec<Value> {
    let phase = if row.is_deleting() { "Terminating" } else { row.text("status.phase") };
    let claim = match row.get("spec.claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
        None => String::new(),
    };
    vec![
        row.name(),
        row.text("spec.capacity.storage").into(),
        access_modes(row.list("spec.accessModes")).into(),
        row.text("spec.persistentVolumeReclaimPolicy").into(),
        phase.into(),
        claim.into(),
        storage_class(row).into(),
        row.text_or("spec.volumeAttributesClassName", "<unset>").into(),
        row.text("status.reason").into(),
        row.age(),
        row.text_or("spec.volumeMode", "<unset>").into(),
    ]
}

pub(super) fn claim(row: Row<'_>) -> Vec<Value> {
    let phase = if row.is_deleting() { "Terminating" } else { row.text("status.phase") };
    let bound = !row.text("spec.volumeName").is_empty();
    let (capacity, modes) = if bound {
        (row.text("status.capacity.storage"), access_modes(row.list("status.accessModes")))
    } else {
        ("", String::new())
    };
    vec![
        row.name(),
        phase.into(),
        row.text("spec.volumeName").into(),
        capacity.into(),
        modes.into(),
        storage_class(row).into(),
        row.text_or("spec.volumeAttributesClassName", "<unset>").into(),
        row.age(),
        row.text_or("spec.volumeMode", "<unset>").into(),
    ]
}

fn storage_class<'a>(row: Row<'a>) -> &'a str {
    let annotation = row.map("metadata.annotations").and_then(|a| a.get(CLASS_ANNOTATION));
    annotation.and_then(Value::as_str).unwrap_or(row.text("spec.storageClassName"))
}

pub(super) fn class(row: Row<'_>) -> Vec<Value> {
    let annotations = row.map("metadata.annotations");
    let is_default = is_default_class(|key| annotations?.get(key)?.as_str());
    let name = row.text("metadata.name");
    vec![
        if is_default { format!("{name} (default)").into() } else { name.into() },
        row.text("provisioner").into(),
        row.text_or("reclaimPolicy", "Delete").into(),
        row.text_or("volumeBindingMode", "Immediate").into(),
        row.flag("allowVolumeExpansion").into(),
        row.age(),
    ]
}

/// Each mode once, short: `RWO,ROX,RWX,RWOP`.
fn access_modes(modes: &[Value]) -> String {
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let found: Vec<_> =
        short.iter().filter(|(long, _)| modes.iter().any(|mode| mode == long)).map(|(_, short)| *short).collect();
    found.join(",")
}

pub(super) fn attachment(row: Row<'_>) -> Vec<Value> {
    vec![
        row.name(),
        row.text("spec.attacher").into(),
        row.text("spec.source.persistentVolumeName").into(),
        row.text("spec.nodeName").into(),
        row.flag("status.attached").into(),
        row.age(),
    ]
}

pub(super) fn csi_driver(row: Row<'_>) -> Vec<Value> {
    let modes: Vec<_> = row.list("spec.volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    let audiences: Vec<_> = list(row.value.get("spec").unwrap_or(&Value::Null), "tokenRequests")
        .iter()
        .map(|t| text(t, "audience"))
        .collect();
    let none = |texts: Vec<&str>, none: &str| if texts.is_empty() { none.to_owned() } else { texts.join(",") };
    vec![
        row.name(),
        row.get("spec.attachRequired").and_then(Value::as_bool).unwrap_or(true).into(),
        row.flag("spec.podInfoOnMount").into(),
        row.flag("spec.storageCapacity").into(),
        none(audiences, "<unset>").into(),
        row.flag("spec.requiresRepublish").into(),
        none(modes, "<none>").into(),
        row.age(),
    ]
}
