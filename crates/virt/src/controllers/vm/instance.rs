//! The instance that runs a machine, and the revision that keeps what it was made from.

use std::collections::BTreeMap;

use carrack_engine::controller_ref;
use carrack_types::kubevirt::vmi::VirtualMachineInstanceStatus;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::VM_GENERATION_ANNOTATION;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::json;

use crate::identity::{mac_address, start_revision_name};

fn generation(vm: &VirtualMachine) -> i64 {
    vm.metadata.generation.unwrap_or(0)
}

/// The spec that a start is made from, kept so that later changes can be told from it.
pub(super) fn revision(vm: &VirtualMachine) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(start_revision_name(vm.uid(), generation(vm))),
            namespace: vm.metadata.namespace.clone(),
            owner_references: Some(vec![controller_ref(vm)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({"spec": vm.spec}))),
        revision: generation(vm),
    }
}

/// Gives a machine what its guest knows it by, where it is not given: it follows from the machine's UID.
pub(crate) fn identify(spec: &mut VirtualMachineInstanceSpec, uid: &str) {
    spec.domain.firmware.get_or_insert_default().uuid.get_or_insert_with(|| uid.to_owned());
    for interface in &mut spec.domain.devices.interfaces {
        interface.mac_address.get_or_insert_with(|| mac_address(uid, &interface.name));
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
    let template_meta = vm.spec.template.clone().and_then(|template| template.metadata).unwrap_or_default();
    annotations.extend(template_meta.annotations.unwrap_or_default());
    annotations.insert(VM_GENERATION_ANNOTATION.to_owned(), generation(vm).to_string());
    if paused {
        spec.start_strategy = Some("Paused".to_owned());
    }
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
