//! The instance that runs a machine, and what it was made from.
//!
//! Upstream keeps the spec of each start in a ControllerRevision, which costs each life of a machine two writes and each machine
//! an object that says what the machine's own spec says. Here the instance itself carries it. The revision, under upstream's
//! name, is made when it says something: when the machine's spec has become another one, and a restart is required.

use std::collections::BTreeMap;

use carrack_engine::controller_ref;
use carrack_types::kubevirt::devices::Input;
use carrack_types::kubevirt::vmi::VirtualMachineInstanceStatus;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::{STARTED_FROM_ANNOTATION, STATE_CLAIM_ANNOTATION, VM_GENERATION_ANNOTATION};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::admission::{OWN_ANNOTATIONS, OWN_LABELS, fill};
use crate::identity::{mac_address, start_revision_name};

/// The longest spec that an instance carries, in bytes: all annotations of an object have 256 KiB together.
const CARRIED_BYTES: usize = 96 << 10;

fn generation(vm: &VirtualMachine) -> i64 {
    vm.metadata.generation.unwrap_or(0)
}

/// The spec that a start is made from, in an object of its own, for a spec that is too long to be carried.
pub(super) fn revision(vm: &VirtualMachine) -> Option<ControllerRevision> {
    let spec = json!(vm.spec);
    let too_long = spec.to_string().len() > CARRIED_BYTES;
    too_long.then(|| kept(vm, start_revision_name(vm.uid(), generation(vm)), generation(vm), &spec))
}

/// What an instance was started from, in an object of its own, as long as there is none and the instance knows. One that was
/// started for another machine, and taken over, names a revision of that one's.
pub(super) fn revision_of(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> Option<ControllerRevision> {
    let name = vmi.status.as_ref().map(|status| status.virtual_machine_revision_name.clone())?;
    let at = vmi.annotation(VM_GENERATION_ANNOTATION)?.parse().ok()?;
    let is_own = name == start_revision_name(vm.uid(), at);
    is_own.then_some(kept(vm, name, at, &started_from(vmi, None)?))
}

fn kept(vm: &VirtualMachine, name: String, generation: i64, spec: &Value) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: vm.metadata.namespace.clone(),
            owner_references: Some(vec![controller_ref(vm)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({"spec": spec}))),
        revision: generation,
    }
}

/// The machine's spec that an instance was started from: its revision says it where there is one, else the instance itself.
pub(crate) fn started_from(vmi: &VirtualMachineInstance, revision: Option<&ControllerRevision>) -> Option<Value> {
    let kept = revision.and_then(|revision| revision.data.as_ref()?.0.get("spec").cloned());
    kept.or_else(|| serde_json::from_str(vmi.annotation(STARTED_FROM_ANNOTATION)?).ok())
}

/// Gives a machine what its guest knows it by, where it is not given: it follows from the machine's UID.
pub(crate) fn identify(spec: &mut VirtualMachineInstanceSpec, uid: &str) {
    fill(&mut spec.domain.firmware.get_or_insert_default().uuid, || uid.to_owned());
    for interface in &mut spec.domain.devices.interfaces {
        fill(&mut interface.mac_address, || mac_address(uid, &interface.name));
    }
}

/// A pointing device where a machine is to have one by itself, for whoever looks at what the guest has. (Upstream:
/// `AutoAttachInputDevice`, and the defaults of instances.)
fn attach_input(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_input_device == Some(true) && devices.inputs.is_empty() {
        let (name, bus, kind) = ("default-0".to_owned(), Some("usb".to_owned()), "tablet".to_owned());
        devices.inputs.push(Input { name, bus, r#type: kind });
    }
}

/// The instance. What belongs to the machine and not to one run of it (the firmware's UUID, MAC addresses) is derived
/// from the machine's UID, so that the guest finds them unchanged after a restart.
pub(super) fn build(
    vm: &VirtualMachine,
    mut spec: VirtualMachineInstanceSpec,
    mut annotations: BTreeMap<String, String>,
    paused: bool,
) -> VirtualMachineInstance {
    let mut template_meta = vm.spec.template.clone().and_then(|template| template.metadata).unwrap_or_default();
    // Admission lets the components say anything, and not every template was written by a user before it.
    template_meta.annotations.iter_mut().for_each(|all| all.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str())));
    template_meta.labels.iter_mut().for_each(|all| all.retain(|key, _| !OWN_LABELS.contains(&key.as_str())));
    annotations.extend(template_meta.annotations.unwrap_or_default());
    annotations.insert(VM_GENERATION_ANNOTATION.to_owned(), generation(vm).to_string());
    let from = json!(vm.spec).to_string();
    if from.len() <= CARRIED_BYTES {
        annotations.insert(STARTED_FROM_ANNOTATION.to_owned(), from);
    } else {
        annotations.remove(STARTED_FROM_ANNOTATION);
    }
    match vm.annotation(STATE_CLAIM_ANNOTATION) {
        Some(claim) => annotations.insert(STATE_CLAIM_ANNOTATION.to_owned(), claim.to_owned()),
        None => annotations.remove(STATE_CLAIM_ANNOTATION),
    };
    if paused {
        spec.start_strategy = Some("Paused".to_owned());
    }
    attach_input(&mut spec);
    identify(&mut spec, vm.uid());
    VirtualMachineInstance {
        metadata: ObjectMeta {
            name: vm.metadata.name.clone(),
            namespace: vm.metadata.namespace.clone(),
            labels: template_meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_ref(vm)]),
            ..ObjectMeta::default()
        },
        spec,
        status: Some(VirtualMachineInstanceStatus {
            virtual_machine_revision_name: start_revision_name(vm.uid(), generation(vm)),
            ..VirtualMachineInstanceStatus::default()
        }),
    }
}
