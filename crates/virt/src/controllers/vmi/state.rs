//! What a machine keeps beside its disks: the variables of its UEFI firmware (`efi.persistent`).
//!
//! They lie on a small claim that belongs to the machine, or to the instance where that has none, and goes with it. Shape and names
//! are upstream's (`pkg/storage/backend-storage`), whose suffix is drawn; here it follows from the owner's UID, so that asking
//! twice makes one claim, and a machine that comes again under its name does not find the variables of the one before. A machine
//! that was restored names the restored claim in an annotation, which changes in the write that makes it what the snapshot holds. The
//! claim is asked for once, right before the pod that has it: whether its volume is there is the scheduler's concern, as for any claim.

use carrack_engine::controller_ref;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::{Kind as _, Object};
use carrack_types::well_known::kubevirt::STATE_CLAIM_ANNOTATION;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::World;
use super::progress::Obstacle;
use crate::controllers::Planted;
use crate::identity::{keeps_state, label_value, state_claim_name, state_volume_name};

/// The pod's volume, by upstream's name.
pub(crate) const VOLUME: &str = carrack_launcher::board::STATE_VOLUME;
/// The directory of the claim that holds the firmware's variables.
pub(crate) const NVRAM_SUBDIRECTORY: &str = carrack_launcher::board::NVRAM_SUBDIRECTORY;
/// Label of the claim: whose state it is.
pub(crate) const LABEL: &str = "persistent-state-for";
/// How large it is. Variables take half a mebibyte; what a file system needs beside is more.
const SIZE: &str = "10Mi";

/// The claim that keeps an instance's state, if it has any to keep.
pub(super) fn claim_name(vmi: &VirtualMachineInstance) -> Option<String> {
    keeps_state(&vmi.spec.domain).then(|| name(vmi, &owner(vmi).uid))
}

/// The claims that an instance has: those of its volumes, and the one that keeps its state.
pub(in crate::controllers) fn claims(vmi: &VirtualMachineInstance) -> impl Iterator<Item = String> {
    let of_volumes = vmi.spec.volumes.iter().filter_map(|volume| volume.claim_name());
    of_volumes.map(str::to_owned).chain(claim_name(vmi))
}

/// The claim that keeps a machine's state, if it has ever kept any: whatever its template says by itself, which preferences change.
pub(crate) fn of_machine(vm: &VirtualMachine) -> String {
    name(vm, vm.uid())
}

/// The claim that an object names, or else the one whose name follows from the machine's UID.
fn name<K: Object>(object: &K, uid: &str) -> String {
    let named = object.annotation(STATE_CLAIM_ANNOTATION).filter(|name| !name.is_empty());
    named.map_or_else(|| state_claim_name(object.name(), uid), str::to_owned)
}

/// Whose it is: the machine's, so that it is there for its next instance.
fn owner(vmi: &VirtualMachineInstance) -> OwnerReference {
    let mut owners = vmi.metadata.owner_references.iter().flatten();
    let machine =
        |owner: &&OwnerReference| owner.controller == Some(true) && owner.kind == VirtualMachine::resource().kind;
    // An instance of a set never comes again under its name.
    owners.find(machine).cloned().unwrap_or_else(|| controller_ref(vmi))
}

/// The claim to make, if there is to be one and is none.
///
/// # Errors
/// There is one of its name that goes or belongs to somebody else, or a volume has the name of its own.
pub(super) fn missing(world: &World<'_>) -> Result<Option<PersistentVolumeClaim>, Obstacle> {
    let vmi = world.vmi;
    let Some(name) = claim_name(vmi) else { return Ok(None) };
    for taken in [VOLUME, &state_volume_name(vmi.name())] {
        if vmi.spec.volumes.iter().any(|volume| volume.name == taken) {
            return Err(Obstacle::Spec(format!(
                "no volume can be called {taken} where the firmware keeps its variables"
            )));
        }
    }
    let owner = match world.config.planted {
        Some(Planted::StateOfInstances) => controller_ref(vmi),
        _ => owner(vmi),
    };
    match world.claim(&name) {
        // What was restored does not come again by itself, and the guest is not to start without it.
        None if vmi.annotation(STATE_CLAIM_ANNOTATION).is_some_and(|named| named == name) => {
            Err(Obstacle::ClaimMissing(name))
        }
        None => Ok(Some(PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: vmi.metadata.namespace.clone(),
                labels: Some([(LABEL.to_owned(), label_value(vmi.name()))].into()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeClaimSpec {
                access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                volume_mode: Some("Filesystem".to_owned()),
                resources: Some(VolumeResourceRequirements {
                    requests: Some([("storage".to_owned(), Quantity(SIZE.to_owned()))].into()),
                    limits: None,
                }),
                storage_class_name: world.cluster().spec.configuration.vm_state_storage_class,
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        })),
        // It goes, and the pod would wait for it for ever.
        Some(found) if found.is_deleting() => Err(Obstacle::ClaimMissing(name)),
        Some(found) if found.controller_uid() == Some(owner.uid.as_str()) => Ok(None),
        Some(_) => Err(Obstacle::Spec(format!("PVC {name} exists and does not belong to {}", owner.name))),
    }
}
