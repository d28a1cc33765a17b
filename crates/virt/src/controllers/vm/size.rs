//! The instance type and the preference of a machine: found, kept in revisions, and applied.

use carrack_engine::View;
use carrack_types::kubevirt::instancetype::{
    VirtualMachineClusterInstancetype, VirtualMachineClusterPreference, VirtualMachineInstancetype,
    VirtualMachinePreference,
};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstanceSpec};
use carrack_types::resource::{Kind, Object};
use carrack_types::well_known::kubevirt::STARTED_WITH_ANNOTATIONS;
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::instancetype::{
    CLUSTER_INSTANCETYPE, CLUSTER_PREFERENCE, Chosen, INSTANCETYPE, Place, instancetype_place, is_of, object_of,
    preference_place, reference, referenced, revision_of, spec_of,
};

/// What a machine's template becomes.
#[derive(Clone, Debug, Default)]
pub(super) struct Sized {
    /// What it names.
    pub chosen: Chosen,
    /// Status fields that name the revisions: of the instance type, of the preference.
    pub references: [Option<Value>; 2],
    /// Revisions that are to be made.
    pub new: Vec<ControllerRevision>,
}

/// Why a machine has no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// In one word.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

impl Sized {
    /// The spec of an instance, and the annotations that come with it.
    pub fn spec(&self, vm: &VirtualMachine) -> Result<(VirtualMachineInstanceSpec, BTreeMap<String, String>), Trouble> {
        let mut spec = vm.spec.template.as_ref().map(|template| template.spec.clone()).unwrap_or_default();
        if self.chosen.is_empty() {
            return Ok((spec, BTreeMap::new()));
        }
        match self.chosen.apply("spec", &mut spec) {
            Ok(mut annotations) => {
                annotations.extend(names(vm));
                let keys = STARTED_WITH_ANNOTATIONS.iter().map(|(_, key)| (*key).to_owned());
                let revisions = self.references.iter().map(|field| revision_name(field.as_ref()));
                annotations.extend(keys.zip(revisions).filter_map(|(key, name)| Some((key, name?.to_owned()))));
                Ok((spec, annotations))
            }
            Err(conflicts) => {
                let fields: Vec<String> = conflicts.into_iter().map(|conflict| conflict.field).collect();
                let message = format!("VMI conflicts with instancetype spec in fields: [{}]", fields.join(", "));
                Err(Trouble { reason: "FailedCreate", message })
            }
        }
    }
}

/// The revision that a field of a machine's status names.
pub(super) fn revision_name(field: Option<&Value>) -> Option<&str> {
    field?["controllerRevisionRef"]["name"].as_str()
}

/// What an instance says about its size.
fn names(vm: &VirtualMachine) -> BTreeMap<String, String> {
    let places = [instancetype_place(&vm.spec, vm.namespace()), preference_place(&vm.spec, vm.namespace())];
    let key = |kind: &str| match kind {
        INSTANCETYPE => "kubevirt.io/instancetype-name",
        CLUSTER_INSTANCETYPE => "kubevirt.io/cluster-instancetype-name",
        CLUSTER_PREFERENCE => "kubevirt.io/cluster-preference-name",
        _ => "kubevirt.io/preference-name",
    };
    places.into_iter().flatten().map(|place| (key(place.kind).to_owned(), place.name.to_owned())).collect()
}

/// Finds what a machine names: in the revision that its spec names; as it was when the machine first used it; or, the first time,
/// as it is.
pub(super) fn find(vm: &VirtualMachine, revisions: &[&ControllerRevision], view: &View<'_>) -> Result<Sized, Trouble> {
    let status = vm.status.clone().unwrap_or_default();
    let mut sized = Sized::default();
    if let Some(place) = instancetype_place(&vm.spec, vm.namespace()) {
        let object = kept(vm, &place, status.instancetype_ref.as_ref(), revisions, view, 0, &mut sized);
        let missing = || Trouble { reason: "FailedFindInstancetype", message: not_found(&place) };
        sized.chosen.instancetype = Some(object.as_ref().and_then(spec_of).ok_or_else(missing)?);
    }
    if let Some(place) = preference_place(&vm.spec, vm.namespace()) {
        let object = kept(vm, &place, status.preference_ref.as_ref(), revisions, view, 1, &mut sized);
        let missing = || Trouble { reason: "FailedFindPreference", message: not_found(&place) };
        sized.chosen.preference = Some(object.as_ref().and_then(spec_of).ok_or_else(missing)?);
    }
    Ok(sized)
}

fn not_found(place: &Place<'_>) -> String {
    if let Some(revision) = place.revision {
        return format!("controllerrevisions.apps \"{revision}\" not found, or of something else");
    }
    format!("{}.{} \"{}\" not found", place.plural, crate::instancetype::GROUP, place.name)
}

fn kept(
    vm: &VirtualMachine,
    place: &Place<'_>,
    field: Option<&Value>,
    revisions: &[&ControllerRevision],
    view: &View<'_>,
    which: usize,
    sized: &mut Sized,
) -> Option<Value> {
    // A machine that was restored has what its snapshot kept, and keeps that itself from now on.
    let named = place.revision.and_then(|name| view.get::<ControllerRevision>(vm.namespace(), name));
    if let Some(object) = named.and_then(|revision| object_of(revision)).filter(|object| is_of(object, place)) {
        return Some(own(vm, place, object.clone(), revisions, view, which, sized));
    }
    if let Some(name) = referenced(field, place) {
        sized.references[which] = field.cloned();
        let revision = revisions.iter().copied().find(|revision| revision.name() == name);
        let left = || left(vm, name, view).filter(|left| object_of(left).is_some_and(|object| is_of(object, place)));
        if let Some(object) = revision.or_else(left).and_then(object_of) {
            return Some(object.clone());
        }
        // Somebody deleted it. What is there now takes its place, as for a new machine.
    }
    if place.revision.is_some() {
        return None;
    }
    Some(own(vm, place, live(place, view)?, revisions, view, which, sized))
}

/// A revision that nobody owns, such as one that a machine of this name has left behind.
fn left<'a>(vm: &VirtualMachine, name: &str, view: &'a View<'_>) -> Option<&'a ControllerRevision> {
    let there = view.get::<ControllerRevision>(vm.namespace(), name).map(AsRef::as_ref);
    there.filter(|revision: &&ControllerRevision| revision.controller_uid().is_none() && !revision.is_deleting())
}

/// The machine keeps an object in a revision of its own, or in one that nobody owns and that says the same by the same name.
fn own(
    vm: &VirtualMachine,
    place: &Place<'_>,
    object: Value,
    revisions: &[&ControllerRevision],
    view: &View<'_>,
    which: usize,
    sized: &mut Sized,
) -> Value {
    let revision = revision_of(vm, &object);
    sized.references[which] = Some(reference(place, revision.name()));
    let is_left = || left(vm, revision.name(), view).is_some_and(|left| left.data == revision.data);
    if !revisions.iter().any(|there| there.name() == revision.name()) && !is_left() {
        sized.new.push(revision);
    }
    object
}

/// The object as it is.
fn live(place: &Place<'_>, view: &View<'_>) -> Option<Value> {
    fn of<K: Kind + serde::Serialize>(place: &Place<'_>, view: &View<'_>) -> Option<Value> {
        view.get::<K>(place.namespace, place.name).map(|object| json!(object.as_ref()))
    }
    match place.kind {
        INSTANCETYPE => of::<VirtualMachineInstancetype>(place, view),
        CLUSTER_INSTANCETYPE => of::<VirtualMachineClusterInstancetype>(place, view),
        CLUSTER_PREFERENCE => of::<VirtualMachineClusterPreference>(place, view),
        _ => of::<VirtualMachinePreference>(place, view),
    }
}
