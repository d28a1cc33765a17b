//! What a clone makes: under which name it is found, and whether it is the clone's own.

use carrack_engine::{Plan, View, controller_ref};
use carrack_types::kubevirt::VirtualMachineClone;
use carrack_types::kubevirt::clone::names::SPEC_DIGEST_ANNOTATION;
use carrack_types::resource::{Kind, Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use super::{Planted, World};
use crate::identity::digest;

/// What is found under a child's name.
pub(super) enum Child<'a, K> {
    /// Nothing, as far as the cache knows.
    Absent,
    /// An object that the clone controls.
    Own(&'a K),
    /// An object that somebody else controls, or nobody.
    Foreign(&'a K),
}

impl<'a, K: Kind> Child<'a, K> {
    pub(super) fn find(clone: &VirtualMachineClone, view: &'a View<'_>, name: &str, planted: Option<Planted>) -> Self {
        match view.get::<K>(clone.namespace(), name) {
            None => Self::Absent,
            Some(found) if found.controller_uid() == Some(clone.uid()) => Self::Own(found),
            Some(found) if planted == Some(Planted::AdoptsAnything) => Self::Own(found),
            Some(found) => Self::Foreign(found),
        }
    }
}

/// Metadata of a child.
pub(super) fn metadata<S: Serialize>(clone: &VirtualMachineClone, name: String, spec: &S) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: clone.metadata.namespace.clone(),
        owner_references: Some(vec![controller_ref(clone)]),
        annotations: Some([(SPEC_DIGEST_ANNOTATION.to_owned(), digest(spec))].into()),
        ..ObjectMeta::default()
    }
}

/// Whether a child was made to be this.
pub(super) fn is_made_as<K: Kind, S: Serialize>(world: &World<'_>, child: &K, spec: &S) -> bool {
    matches!(world.planted, Some(Planted::AdoptsAnything | Planted::TargetDrawnLate))
        || child.annotation(SPEC_DIGEST_ANNOTATION) == Some(digest(spec).as_str())
}

/// The clone fails, because somebody else's object has the name of one of its children.
pub(super) fn conflict(world: &World<'_>) -> Option<Plan> {
    match (&world.snapshot, &world.restore) {
        (Child::Foreign(found), _) => Some(refuse(world, *found)),
        (_, Child::Foreign(found)) => Some(refuse(world, *found)),
        _ => None,
    }
}

/// The clone fails, because this object has the name of one of its children and is none, or not what was wanted.
pub(super) fn refuse<K: Kind>(world: &World<'_>, found: &K) -> Plan {
    let kind = K::resource().qualified();
    let message = format!("{kind} {} is there, and was not made for clone {}", found.name(), world.clone.name());
    world.fail(Plan::none().confirm_unchanged(found), "NameConflict", &message)
}
