//! What a machine's instance type and preference were when the machine first used them.
//!
//! The object is kept whole in a ControllerRevision whose name says which state of which object it is, and the machine's
//! status names it: `status.instancetypeRef.controllerRevisionRef.name`.

use carrack_engine::controller_ref;
use carrack_types::kubevirt::VirtualMachine;
use carrack_types::resource::{Kind, Object as _};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use super::Place;

/// Version of the objects.
const VERSION: &str = "v1beta1";

/// The revision that keeps an object for a machine. `object` has its kind.
pub(crate) fn revision_of(vm: &VirtualMachine, object: &Value) -> ControllerRevision {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, uid, kind) = (text("/metadata/name"), text("/metadata/uid"), text("/kind"));
    let generation = object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
    let labels = [
        ("object-generation", generation.to_string()),
        ("object-kind", kind.clone()),
        ("object-name", crate::identity::label_value(&name)),
        ("object-uid", uid.clone()),
        ("object-version", VERSION.to_owned()),
    ];
    let kept = json!({
        "apiVersion": format!("{}/{VERSION}", super::GROUP),
        "kind": kind,
        "metadata": {"name": name, "namespace": text("/metadata/namespace"), "uid": uid, "generation": generation},
        "spec": object.get("spec").cloned().unwrap_or_default(),
    });
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{}-{name}-{VERSION}-{uid}-{generation}", vm.name())),
            namespace: vm.metadata.namespace.clone(),
            labels: Some(
                labels.into_iter().map(|(key, value)| (format!("instancetype.kubevirt.io/{key}"), value)).collect(),
            ),
            owner_references: Some(vec![controller_ref(vm)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(kept)),
        revision: 0,
    }
}

/// The status field that names a revision.
pub(crate) fn reference(place: &Place<'_>, revision: &str) -> Value {
    json!({"name": place.name, "kind": place.kind, "controllerRevisionRef": {"name": revision}})
}

/// The revision that a status field names for this very instance type or preference.
pub(crate) fn referenced<'a>(field: Option<&'a Value>, place: &Place<'_>) -> Option<&'a str> {
    let field = field?;
    let same = field["name"] == place.name && field["kind"] == place.kind;
    if same { field["controllerRevisionRef"]["name"].as_str() } else { None }
}

/// Whether a kept object is the instance type or preference that is named there.
pub(crate) fn is_of(kept: &Value, place: &Place<'_>) -> bool {
    kept["kind"] == place.kind && kept["metadata"]["name"] == place.name
}

/// The same revision under another name, with another owner.
pub(crate) fn copy_of<O: Kind>(revision: &ControllerRevision, name: String, owner: &O) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(owner.namespace().to_owned()),
            labels: revision.metadata.labels.clone(),
            owner_references: Some(vec![controller_ref(owner)]),
            ..ObjectMeta::default()
        },
        data: revision.data.clone(),
        revision: revision.revision,
    }
}

/// The object that a revision keeps.
pub(crate) fn object_of(revision: &ControllerRevision) -> Option<&Value> {
    revision.data.as_ref().map(|data| &data.0)
}
