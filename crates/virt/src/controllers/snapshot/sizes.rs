//! What a machine is sized by, its instance type and its preference, is kept with its content, as the machine has it; of one that
//! runs, as it was started, whatever it names by now.
//!
//! The machine has both in revisions of its own, which go with it, and the objects may change or go at any time. So a content has
//! copies of these revisions, and the spec in it names them.

use carrack_engine::{Plan, View};
use carrack_types::kubevirt::snapshot::kept_revision_name;
use carrack_types::kubevirt::{VirtualMachineSnapshotContent, VirtualMachineSpec};
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::STARTED_WITH_ANNOTATIONS;
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::Value;

use super::source::Source;
use crate::instancetype::{Place, copy_of, instancetype_place, preference_place, referenced};

/// Fields of a machine's spec that name them.
const INSTANCETYPE: &str = "instancetype";
const PREFERENCE: &str = "preference";

/// The revisions that a machine has of what a spec names, by the field that names it.
fn of(spec: &VirtualMachineSpec, source: &Source<'_>) -> impl Iterator<Item = (&'static str, String)> + use<> {
    let vm = source.vm;
    let status = vm.status.clone().unwrap_or_default();
    let started = |field: &str| {
        let key = STARTED_WITH_ANNOTATIONS.iter().find(|(of, _)| *of == field)?.1;
        source.vmi?.annotation(key)
    };
    let has = |field: &'static str, place: Option<Place<'_>>, of: Option<Value>| {
        let place = place?;
        let name = started(field).or_else(|| referenced(of.as_ref(), &place))?;
        Some((field, name.to_owned()))
    };
    let instancetype = has(INSTANCETYPE, instancetype_place(spec, vm.namespace()), status.instancetype_ref);
    let preference = has(PREFERENCE, preference_place(spec, vm.namespace()), status.preference_ref);
    [instancetype, preference].into_iter().flatten()
}

/// A kept spec names the revisions in which its content keeps what the machine has.
pub(super) fn name(mut spec: VirtualMachineSpec, source: &Source<'_>, content: &str) -> VirtualMachineSpec {
    for (field, _) in of(&spec, source) {
        let matcher = if field == INSTANCETYPE { &mut spec.instancetype } else { &mut spec.preference };
        if let Some(matcher) = matcher {
            matcher.revision_name = Some(kept_revision_name(content, field));
        }
    }
    spec
}

/// Makes the revisions that the spec in a content names, as far as they are not there yet.
///
/// # Errors
/// What is missing for that, for now.
pub(super) fn keep(
    content: &VirtualMachineSnapshotContent,
    source: Option<&Source<'_>>,
    view: &View<'_>,
) -> Result<Plan, String> {
    let mut plan = Plan::none();
    let Some(spec) = content.spec.source.virtual_machine.as_ref().map(|vm| &vm.spec) else { return Ok(plan) };
    let revision = |name: &str| view.get::<ControllerRevision>(content.namespace(), name).map(AsRef::as_ref);
    for (field, matcher) in [(INSTANCETYPE, &spec.instancetype), (PREFERENCE, &spec.preference)] {
        let name = kept_revision_name(content.name(), field);
        let is_named = matcher.as_ref().is_some_and(|matcher| matcher.revision_name.as_deref() == Some(name.as_str()));
        let is_there = |kept: &ControllerRevision| kept.controller_uid() == Some(content.uid());
        if !is_named || revision(&name).is_some_and(is_there) {
            continue;
        }
        let own = source
            .and_then(|source| of(spec, source).find(|(of, _)| *of == field))
            .and_then(|(_, name)| revision(&name));
        let own = own.ok_or_else(|| format!("the machine's revision of its {field} is not there"))?;
        plan = plan.create(&copy_of(own, name, content));
    }
    Ok(plan)
}
