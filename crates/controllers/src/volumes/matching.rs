//! Which volume suits a claim: of those that offer what it asks for, the one with the fewest further access modes, and
//! of those the smallest (component-helpers/storage/volume, `FindMatchingVolume`).

use std::sync::Arc;

use carrack_types::resource::Object as _;
use carrack_types::selector::selects;
use carrack_types::volume::{class_of_claim, requested};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::{capacity, class_of_volume};

/// `Filesystem` where nothing is said.
fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// Whether the volume's claim reference has this claim's name.
pub(super) fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume
        .spec
        .as_ref()
        .and_then(|s| s.claim_ref.as_ref())
        .is_some_and(|r| r.namespace.as_deref() == Some(claim.namespace()) && r.name.as_deref() == Some(claim.name()))
}

/// Whether the volume's claim reference, set by a person or the scheduler, names this claim.
pub(super) fn is_meant_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
    names(volume, claim)
        && reference.and_then(|r| r.uid.as_deref()).is_none_or(|uid| uid.is_empty() || uid == claim.uid())
}

/// Whether they are of different modes.
pub(super) fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let have = volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    mode(have) != mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
}

/// Why a volume does not do for a claim for which it is meant: by whom it was made so knows its class.
fn misfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small");
    }
    if modes_differ(volume, claim) {
        return Some("incompatible volumeMode");
    }
    let offered = volume.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    let wanted = claim.spec.as_ref().and_then(|s| s.access_modes.as_deref()).unwrap_or_default();
    (!wanted.iter().all(|m| offered.contains(m))).then_some("incompatible accessMode")
}

/// Why a volume that was named for a claim does not do for it.
pub(super) fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let (have, want) = (volume.spec.as_ref()?, claim.spec.as_ref()?);
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small");
    }
    if class_of_volume(volume) != class_of_claim(claim) {
        return Some("storageClassName does not match");
    }
    if have.volume_attributes_class_name.as_deref().unwrap_or_default()
        != want.volume_attributes_class_name.as_deref().unwrap_or_default()
    {
        return Some("volumeAttributesClassName does not match");
    }
    misfit(volume, claim)
}

/// The volume for a claim. With `delayed`, only one that is meant for it.
pub(super) fn find<'a>(
    volumes: impl Iterator<Item = &'a Arc<PersistentVolume>>,
    claim: &PersistentVolumeClaim,
    delayed: bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let spec = claim.spec.as_ref()?;
    let mut best: Option<&Arc<PersistentVolume>> = None;
    let rank = |v: &PersistentVolume| {
        let modes = v.spec.as_ref().and_then(|s| s.access_modes.as_ref()).map_or(0, Vec::len);
        (modes, capacity(v))
    };
    for volume in volumes.filter(|v| !v.is_deleting()) {
        let Some(vspec) = &volume.spec else { continue };
        if vspec.claim_ref.is_some() {
            if is_meant_for(volume, claim) && misfit(volume, claim).is_none() {
                return Some(volume);
            }
            continue;
        }
        let available = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available");
        let chosen = spec.selector.as_ref().is_none_or(|s| selects(s, volume.metadata.labels.as_ref()));
        if delayed || !available || !chosen || mismatch(volume, claim).is_some() {
            continue;
        }
        if best.is_none_or(|b| rank(volume) < rank(b)) {
            best = Some(volume);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        let mut v = json!({"metadata": {"name": name, "labels": {"disk": name}},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "c"},
            "status": {"phase": "Available"}});
        for (key, value) in more.as_object().expect("a map") {
            v["spec"][key] = value.clone();
        }
        Arc::new(of(v))
    }

    #[test]
    fn the_smallest_that_fits() {
        let reference = |name: &str, uid: &str| json!({"claimRef": {"namespace": "ns", "name": name, "uid": uid}});
        let volumes = [
            volume("big", "100Gi", json!({})),
            volume("five", "5Gi", json!({})),
            volume("shared", "3Gi", json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]})),
            volume("block", "5Gi", json!({"volumeMode": "Block"})),
            volume("other", "5Gi", json!({"storageClassName": "d"})),
            volume("taken", "1Gi", reference("somebody", "9")),
            volume("mine", "50Gi", reference("reserved", "")),
            volume("former", "50Gi", reference("reborn", "old")),
            volume("lent", "50Gi", json!({"claimRef": {"namespace": "ns", "name": "of d"}, "storageClassName": "d"})),
        ];
        for (name, spec, delayed, expected) in [
            ("a", json!({"size": "1Gi"}), false, Some("five")),
            ("a", json!({"size": "6Gi"}), false, Some("big")),
            ("a", json!({"size": "200Gi"}), false, None),
            ("a", json!({"size": "1Gi", "accessModes": ["ReadWriteMany"]}), false, Some("shared")),
            ("a", json!({"size": "1Gi", "volumeMode": "Block"}), false, Some("block")),
            ("a", json!({"size": "1Gi", "storageClassName": "d"}), false, Some("other")),
            ("a", json!({"size": "1Gi", "storageClassName": ""}), false, None),
            ("a", json!({"size": "1Gi", "selector": {"matchLabels": {"disk": "big"}}}), false, Some("big")),
            ("a", json!({"size": "1Gi"}), true, None),
            ("reserved", json!({"size": "1Gi"}), true, Some("mine")),
            ("reserved", json!({"size": "1Gi"}), false, Some("mine")),
            ("reserved", json!({"size": "60Gi"}), false, Some("big")),
            // Who keeps a volume for a claim need not ask for its class.
            ("of d", json!({"size": "1Gi"}), true, Some("lent")),
            // A claim that was made anew does not get what the one before it had.
            ("reborn", json!({"size": "20Gi"}), false, Some("big")),
        ] {
            let mut claim = json!({"metadata": {"namespace": "ns", "name": name, "uid": "new"},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "c",
                    "resources": {"requests": {"storage": spec["size"]}}}});
            for (key, value) in spec.as_object().expect("a map").iter().filter(|(k, _)| *k != "size") {
                claim["spec"][key] = value.clone();
            }
            let found = find(volumes.iter(), &of(claim), delayed).map(|v| v.name().to_owned());
            assert_eq!(found.as_deref(), expected, "{name} {spec} {delayed}");
        }
    }
}
