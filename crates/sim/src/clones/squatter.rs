//! Somebody who takes names: for a clone with the label, a snapshot of another machine under the name of the clone's own.

use carrack_engine::{Controller, Key, Plan, Premise, Setup, Time, View};
use carrack_types::kubevirt::clone::snapshot_name;
use carrack_types::kubevirt::snapshot::VirtualMachineSnapshotSpec;
use carrack_types::kubevirt::{VirtualMachineClone, VirtualMachineSnapshot};
use carrack_types::resource::Object as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Label of a clone whose snapshot's name is taken; the value says of which machine a snapshot takes it.
pub(super) const LABEL: &str = "sim.carrack.io/squatted-by";

/// Takes names.
pub(crate) struct Squatter;

impl Controller for Squatter {
    fn name(&self) -> &'static str {
        "squatter"
    }
    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineClone>();
        setup.read::<VirtualMachineSnapshot>();
    }
    fn reconcile(&mut self, key: &Key, view: &View<'_>, _: Time) -> Plan {
        let Some(clone) = view.get::<VirtualMachineClone>(&key.namespace, &key.name) else { return Plan::none() };
        let Some(machine) = clone.label(LABEL) else { return Plan::none() };
        let name = snapshot_name(clone.uid());
        // It comes first or not at all.
        if !clone.phase().is_empty() || view.get::<VirtualMachineSnapshot>(&key.namespace, &name).is_some() {
            return Plan::none();
        }
        let mut spec = VirtualMachineSnapshotSpec::default();
        spec.source.api_group = Some("kubevirt.io".to_owned());
        spec.source.kind = "VirtualMachine".to_owned();
        spec.source.name = machine.to_owned();
        let metadata = ObjectMeta { namespace: Some(key.namespace.clone()), name: Some(name), ..ObjectMeta::default() };
        Plan::none()
            .create(&VirtualMachineSnapshot { metadata, spec, status: None })
            .resting_on(&Premise::unchanged(clone.as_ref()))
    }
}
