//! Copies of machines' disks, where storage can take no snapshots of them.
//!
//! ```text
//!   content:  claim for each volume ─▶ pod: source (read only) ──disk.qcow2──▶ claim ─ succeeded ─▶ creationTime, ready ─▶ pod off
//!   restore:  claim for each volume ─▶ pod: copy   (read only) ──disk.img────▶ claim ─ succeeded ─▶ machine ─▶ pod off
//! ```
//!
//! What firmware keeps (`vmi::state`) is copied as a disk is: its file is an image, too, and QEMU has it open as one.
//!
//! A copy is a qcow2 file on a claim of its own, whose name ([`copy_name`]) stands in the content where a VolumeSnapshot's
//! would. One pod copies all disks of a machine, so that it needs no more than the machine itself does: all of them on one
//! node. The pod's name follows from the machine's UID, an instance is made only while nothing has that name, and the pod
//! only while the machine has no instance: each in the transaction of its write. So nobody writes to a disk that is being
//! copied, whatever a cache shows.
//!
//! The disks of a machine that runs are copied by its own QEMU, as they are at one instant, to claims that a pod of the same
//! name has ready on the machine's node (`carrack_launcher::receive`, `crate::copying`):
//!
//! ```text
//!   claims ─▶ pod waits ─▶ freeze, VolumeSnapshots of other disks, copyvolumes, thaw ─▶ pod succeeded ─▶ creationTime, ready
//!                 ▲ the instance is another or over, the pod failed: from here again │
//!                 └───────────────────────────────────────────────────────────────────┘
//! ```
//!
//! What counts is that the pod succeeded, which is for ever. A pod that failed is made anew, after a pause that doubles up to a
//! minute ([`pause_left`]); in it, what was copied whole is not copied again. A machine that waits for its disks does not
//! wait for that: where it would start, the pod that failed goes at once.
//!
//! Copying takes as long as it takes: a snapshot's deadline is one for the volumes to have their points in time, which those of
//! a machine that is off have as soon as the pod runs, since the pod keeps it off. What ends a copy that comes to nothing is
//! the pod: one that fails, or whose container was started again five times, brings the deadline back. A pod that hangs in
//! its storage, and never fails, is ended by whoever deletes the snapshot.

mod pod;

use carrack_engine::{Plan, Premise, View, controller_ref};
use carrack_types::kubevirt::snapshot::names::{
    SNAPSHOT_SOURCE_NAME_LABEL, SNAPSHOT_SOURCE_NAMESPACE_LABEL, SPEC_DIGEST_ANNOTATION, VOLUME_SIZE_ANNOTATION,
};
use carrack_types::kubevirt::snapshot::{VolumeBackup, copy_name, copying_pod_name};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshotContent};
use carrack_types::quantity::Quantity;
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::volume::is_default_class;
use carrack_types::well_known::storage::NO_PROVISIONER;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, VolumeResourceRequirements};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::snapshot::classes;
use crate::controllers::vmi::pod::bytes_quantity;
use crate::identity::{digest, label_value, state_volume_name};
pub(crate) use pod::{
    Job, Pair, Place, Purpose, Running, Stage, confirm_none, container_id, has_succeeded, instance, is_at_work,
    is_hopeless, own, pause, pause_left, remove, trouble,
};

/// The class that a copy of a claim's volume has, and a claim that is made of it: the claim's own where that makes volumes,
/// else the default one. None when there is neither.
pub(crate) fn class_for(claim: &PersistentVolumeClaim, view: &View<'_>) -> Option<String> {
    let makes = |class: &StorageClass| !class.provisioner.is_empty() && class.provisioner != NO_PROVISIONER;
    let own = classes::storage_class(claim).and_then(|name| view.get::<StorageClass>("", name));
    if let Some(own) = own.filter(|class| makes(class)) {
        return Some(own.name().to_owned());
    }
    let default = |class: &&std::sync::Arc<StorageClass>| is_default_class(|key| class.annotation(key)) && makes(class);
    // The newest counts, as for claims that name none.
    let newest = view.cache::<StorageClass>().iter().filter(default).max_by_key(|class| {
        (
            class.metadata.creation_timestamp.as_ref().map(|created| created.0),
            std::cmp::Reverse(class.name().to_owned()),
        )
    });
    newest.map(|class| class.name().to_owned())
}

/// Whether a volume of a content is kept as a copy: what stands for it has the name of one.
pub(crate) fn is_copy(content: &str, backup: &VolumeBackup) -> bool {
    backup.volume_snapshot_name.as_deref() == Some(copy_name(content, &backup.volume_name).as_str())
}

/// Whether a volume of a content stands for what its machine keeps beside its volumes: it is none of them.
pub(crate) fn is_state(content: &VirtualMachineSnapshotContent, volume: &str) -> bool {
    let Some(vm) = content.spec.source.virtual_machine.as_ref() else { return false };
    let name = vm.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
    let volumes = vm.spec.template.iter().flat_map(|template| &template.spec.volumes);
    volume == state_volume_name(name) && volumes.into_iter().all(|found| found.name != volume)
}

/// Where what is to be copied of a machine's volume lies in its claim.
pub(crate) fn place(content: &VirtualMachineSnapshotContent, backup: &VolumeBackup) -> Place {
    if is_state(content, &backup.volume_name) {
        Place::State
    } else if is_block(&backup.persistent_volume_claim.spec) {
        Place::Device
    } else {
        Place::Disk
    }
}

/// Whether the volume of a claim is a block device.
fn is_block(claim: &PersistentVolumeClaimSpec) -> bool {
    claim.volume_mode.as_deref() == Some("Block")
}

/// A copy of a content, and the claim that it is on.
pub(crate) struct Copy<'a> {
    pub backup: &'a VolumeBackup,
    pub name: &'a str,
    /// What has the claim's name.
    pub claim: Option<&'a PersistentVolumeClaim>,
}

impl Copy<'_> {
    /// Whether the claim is the content's own, by its owner alone.
    pub fn is_child(&self, content: &VirtualMachineSnapshotContent) -> bool {
        self.claim.is_some_and(|claim| claim.controller_uid() == Some(content.uid()))
    }

    /// Whether it is its own, and was made for this copy.
    pub fn is_own(&self, content: &VirtualMachineSnapshotContent) -> bool {
        let made_for = self.claim.and_then(|claim| claim.annotation(SPEC_DIGEST_ANNOTATION));
        self.is_child(content) && made_for == Some(what(content, self.backup).as_str())
    }
}

/// The copies that a content should have.
pub(crate) fn of<'a>(content: &'a VirtualMachineSnapshotContent, view: &'a View<'_>) -> Vec<Copy<'a>> {
    let backups = content.spec.volume_backups.iter().filter(|backup| is_copy(content.name(), backup));
    let copy = |backup: &'a VolumeBackup| {
        let name = backup.volume_snapshot_name.as_deref()?;
        Some(Copy { backup, name, claim: classes::claim(view, content.namespace(), name) })
    };
    backups.filter_map(copy).collect()
}

/// What a copy is of.
fn what(content: &VirtualMachineSnapshotContent, backup: &VolumeBackup) -> String {
    let source = &backup.persistent_volume_claim.metadata;
    digest(&(content.uid(), &backup.volume_name, source.name.as_deref(), source.uid.as_deref()))
}

/// How large a claim's volume is, in bytes: what it has, or what was asked for, if that is more.
fn size_bytes(claim: &PersistentVolumeClaim) -> u64 {
    let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let bytes = |text: &str| Quantity::parse(text).ok().and_then(|quantity| u64::try_from(quantity.units()).ok());
    asked.into_iter().chain(has).filter_map(|quantity| bytes(&quantity.0)).max().unwrap_or(0)
}

/// Room for a copy of a full volume of this size: qcow2's own tables, and what a file system takes.
fn room_bytes(size_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let bytes = size_bytes.saturating_add(size_bytes / 16).saturating_add(64 * MIB);
    bytes.div_ceil(MIB).saturating_mul(MIB)
}

/// The claim for a copy of `source`.
pub(crate) fn claim(
    content: &VirtualMachineSnapshotContent,
    copy: &Copy<'_>,
    source: &PersistentVolumeClaim,
    class: String,
) -> PersistentVolumeClaim {
    let of = content.spec.source.virtual_machine.as_ref().and_then(|vm| vm.metadata.as_ref());
    let labels = [
        (SNAPSHOT_SOURCE_NAME_LABEL, label_value(of.and_then(|of| of.name.as_deref()).unwrap_or_default())),
        (SNAPSHOT_SOURCE_NAMESPACE_LABEL, content.namespace().to_owned()),
    ];
    let size = size_bytes(source);
    let annotations =
        [(SPEC_DIGEST_ANNOTATION, what(content, copy.backup)), (VOLUME_SIZE_ANNOTATION, bytes_quantity(size).0)];
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(copy.name.to_owned()),
            namespace: content.metadata.namespace.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![controller_ref(content)]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), bytes_quantity(room_bytes(size)))].into()),
                limits: None,
            }),
            storage_class_name: Some(class),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The pod that keeps the disks of a content's machine, or takes what that copies itself; none when the content names no
/// machine, and as long as not all claims for the copies are known.
pub(crate) fn job<'a>(
    content: &'a VirtualMachineSnapshotContent,
    copies: &[Copy<'_>],
    purpose: Purpose<'a>,
) -> Option<Job<'a>> {
    let vm = content.spec.source.virtual_machine.as_ref()?;
    let pair = |copy: &Copy<'_>| {
        let source = &copy.backup.persistent_volume_claim;
        Some(Pair {
            source: source.metadata.name.clone()?,
            target: copy.name.to_owned(),
            target_uid: copy.claim?.uid().to_owned(),
            place: place(content, copy.backup),
        })
    };
    Some(Job {
        name: copying_pod_name(vm.metadata.as_ref()?.uid.as_deref()?),
        purpose,
        pairs: copies.iter().map(pair).collect::<Option<_>>()?,
        machine: vm.spec.template.as_ref().map(|template| &template.spec),
    })
}

/// A premise of whatever reads or writes a machine's disks: it has no instance. With the live read that shows it first.
pub(crate) fn off(vm: &VirtualMachine) -> (Plan, Premise) {
    let (resource, key) = (VirtualMachineInstance::resource(), carrack_engine::Key::of(vm));
    (Plan::none().confirm_absent(&resource, key.clone(), ""), Premise::absent(&resource, key))
}

/// A premise of a machine's start: its disks are not being copied.
pub(crate) fn at_rest(vm: &VirtualMachine) -> Premise {
    Premise::absent(&Pod::resource(), carrack_engine::Key::new(vm.namespace(), copying_pod_name(vm.uid())))
}

#[cfg(test)]
mod tests;
