//! The API server's hook: reads objects into types, and carries changes and faults back.

use carrack_apiserver::Status;
use carrack_apiserver::admission::{AdmissionPlugin, Attributes, Lookup, Operation};
use carrack_auth::Caller;
use carrack_auth::caller::{GROUP_MASTERS, GROUP_VIRT_HANDLERS, USER_VIRT_CONTROLLER};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::well_known::kubevirt::GROUP;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Fault, Faults, check_instance_spec, check_instance_update, check_machine, complete_instance, complete_machine,
};
use crate::diff::merge_patch;

/// Admission of `kubevirt.io`'s machines and instances.
pub struct VirtAdmission;

impl AdmissionPlugin for VirtAdmission {
    fn name(&self) -> &'static str {
        "VirtualMachines"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !writes_object(attributes) || is_deleting(&attributes.object) {
            return Ok(());
        }
        if attributes.is(GROUP, "virtualmachines") {
            complete::<VirtualMachine>(attributes, |vm, _| complete_machine(vm))
        } else if attributes.is(GROUP, "virtualmachineinstances") && attributes.operation == Operation::Create {
            if !is_component(attributes.caller) {
                attributes.object.remove("status");
            }
            complete::<VirtualMachineInstance>(attributes, |vmi, uuid| complete_instance(&mut vmi.spec, uuid))
        } else {
            Ok(())
        }
    }

    fn validate(&self, attributes: &Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !writes_object(attributes) || is_deleting(&attributes.object) {
            return Ok(());
        }
        let mut faults = Faults::default();
        if attributes.is(GROUP, "virtualmachines") {
            check_machine(&read(attributes, &attributes.object)?, &mut faults);
        } else if attributes.is(GROUP, "virtualmachineinstances") {
            let new: VirtualMachineInstance = read(attributes, &attributes.object)?;
            let status_changes = attributes.old.is_some_and(|old| old.get("status") != attributes.object.get("status"));
            if status_changes && !is_component(attributes.caller) {
                return Err(attributes.forbidden("only KubeVirt's components may change the status of an instance"));
            }
            match attributes.old {
                Some(old) => check_instance_update(&read(attributes, old)?, &new, &mut faults),
                None => check_instance_spec("spec", &new.spec, &mut faults),
            }
        }
        refuse(attributes, faults.into_vec())
    }
}

fn writes_object(attributes: &Attributes<'_>) -> bool {
    attributes.operation != Operation::Delete && attributes.subresource.is_empty() && attributes.row.group == GROUP
}

/// Who may say what an instance is. Instances have no status subresource (upstream's have none), so it is not RBAC that
/// keeps their status from users.
fn is_component(caller: &Caller) -> bool {
    let is_in = |group: &str| caller.groups.iter().any(|name| name == group);
    caller.user == USER_VIRT_CONTROLLER || is_in(GROUP_VIRT_HANDLERS) || is_in(GROUP_MASTERS)
}

/// An object that is going away only loses finalizers; faults it may have from before are nobody's concern any more.
fn is_deleting(object: &Map<String, Value>) -> bool {
    object.get("metadata").and_then(|meta| meta.get("deletionTimestamp")).is_some_and(|at| !at.is_null())
}

fn read<T: DeserializeOwned>(attributes: &Attributes<'_>, object: &Map<String, Value>) -> Result<T, Status> {
    // The schema has been checked before; what it lets through and the type does not is told as it is.
    serde_json::from_value(Value::Object(object.clone())).map_err(|error| {
        Status::bad_request(format!("{} {:?} cannot be understood: {error}", attributes.row.kind, attributes.name))
    })
}

fn complete<T: DeserializeOwned + Serialize + Clone>(
    attributes: &mut Attributes<'_>,
    change: impl FnOnce(&mut T, &mut dyn FnMut() -> String),
) -> Result<(), Status> {
    // What cannot be read is left for the schema to complain about: it names the field.
    let Ok(old) = serde_json::from_value::<T>(Value::Object(attributes.object.clone())) else { return Ok(()) };
    let mut new = old.clone();
    let env = attributes.env;
    change(&mut new, &mut || carrack_apiserver::new_uid(env));
    if let Some(Value::Object(patch)) = merge_patch(&old, &new) {
        apply(&mut attributes.object, patch);
    }
    Ok(())
}

/// Applies a merge patch that only adds and replaces.
fn apply(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (object.get_mut(&key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => apply(into, from),
            (_, value) => {
                object.insert(key, value);
            }
        }
    }
}

fn refuse(attributes: &Attributes<'_>, faults: Vec<Fault>) -> Result<(), Status> {
    if faults.is_empty() {
        return Ok(());
    }
    let faults: Vec<(String, String, String)> =
        faults.into_iter().map(|fault| (fault.reason.to_owned(), fault.field, fault.message)).collect();
    Err(Status::invalid(GROUP, &attributes.row.kind, &attributes.name, &faults))
}
