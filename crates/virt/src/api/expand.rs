//! expand-spec: a machine as it would be without its instance type and preference.

use carrack_apiserver::{Response, Status};
use carrack_types::kubevirt::VirtualMachine;
use carrack_types::resource::{Kind, Object, Resource};
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::Value;

use super::objects::Call;
use super::reply;
use crate::admission::{complete_matchers, is_dns_subdomain};
use crate::instancetype::{
    Chosen, GROUP, Place, instancetype_place, is_of, object_of, preference_place, referenced, spec_of,
};

/// `virtualmachines/<name>/expand-spec`: the machine as it is stored.
pub(super) async fn stored(call: &Call<'_>) -> Result<Response, Status> {
    let vm: VirtualMachine = call.get().await?;
    expanded(call, vm).await.map_err(|status| as_told(status, Status::internal))
}

/// `expand-vm-spec`: the machine in the body.
pub(super) async fn given(call: &Call<'_>, body: Value) -> Result<Response, Status> {
    let vm = readied(call.namespace, body)?;
    expanded(call, vm).await.map_err(|status| as_told(status, Status::bad_request))
}

/// The machine in a body, completed as one that is stored has been.
///
/// # Errors
/// What cannot be read as a machine, or is one of another namespace.
pub(super) fn readied(namespace: &str, body: Value) -> Result<VirtualMachine, Status> {
    let mut vm: VirtualMachine = carrack_types::json::from_value(body)
        .map_err(|error| Status::bad_request(format!("Object is not a valid VirtualMachine: {error}")))?;
    if vm.spec.template.is_none() {
        return Err(Status::bad_request("Object is not a valid VirtualMachine"));
    }
    if !vm.namespace().is_empty() && vm.namespace() != namespace {
        return Err(Status::bad_request(format!("VM namespace must be empty or {namespace}")));
    }
    complete_matchers(&mut vm.spec);
    Ok(vm)
}

/// What is wrong with what the machine names, under the code that KubeVirt tells it with.
fn as_told(status: Status, tell: impl FnOnce(String) -> Status) -> Status {
    if status.code < 500 { tell(status.message) } else { status }
}

async fn expanded(call: &Call<'_>, mut vm: VirtualMachine) -> Result<Response, Status> {
    let namespace = call.namespace.to_owned();
    let status = vm.status.clone().unwrap_or_default();
    let mut chosen = Chosen::default();
    let spec = vm.spec.clone();
    if let Some(place) = instancetype_place(&spec, &namespace) {
        chosen.instancetype = read(call, &vm, &place, status.instancetype_ref.as_ref()).await?;
    }
    if let Some(place) = preference_place(&spec, &namespace) {
        chosen.preference = read(call, &vm, &place, status.preference_ref.as_ref()).await?;
    }
    if let Some(template) = &mut vm.spec.template
        && !chosen.is_empty()
    {
        chosen.apply("spec.template.spec", &mut template.spec).map_err(|conflicts| {
            let fields: Vec<String> = conflicts.into_iter().map(|conflict| conflict.field).collect();
            Status::bad_request(format!("VM field(s) {} conflicts with selected instance type", fields.join(", ")))
        })?;
    }
    vm.spec.instancetype = None;
    vm.spec.preference = None;
    let value = serde_json::to_value(&vm).map_err(Status::internal)?;
    Ok(reply(200, &value))
}

/// The spec as it was when the machine first used it, or as it is.
async fn read<T: serde::de::DeserializeOwned>(
    call: &Call<'_>,
    vm: &VirtualMachine,
    place: &Place<'_>,
    field: Option<&Value>,
) -> Result<Option<T>, Status> {
    // Somebody may have written anything in what he has sent.
    if !is_dns_subdomain(place.name) {
        return Err(Status::not_found(GROUP, place.plural, place.name));
    }
    let own = referenced(field, place).filter(|_| !vm.uid().is_empty());
    for name in place.revision.into_iter().chain(own).filter(|name| is_dns_subdomain(name)) {
        let path = ControllerRevision::resource().object_path(call.namespace, name);
        match call.get_at::<ControllerRevision>(&path).await {
            Ok(revision) => {
                if let Some(kept) = object_of(&revision).filter(|kept| is_of(kept, place)) {
                    return Ok(spec_of(kept));
                }
            }
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    if let Some(name) = place.revision {
        return Err(Status::not_found("apps", "controllerrevisions", name));
    }
    let resource = Resource {
        group: GROUP.into(),
        version: "v1beta1".into(),
        plural: place.plural.into(),
        kind: place.kind.into(),
        namespaced: !place.namespace.is_empty(),
    };
    let object: Value = call.get_at(&resource.object_path(place.namespace, place.name)).await?;
    Ok(spec_of(&object))
}
