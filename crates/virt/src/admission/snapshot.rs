//! Snapshots and restores: what is refused of them, and what is refused of a machine while they are under way.
//!
//! KubeVirt's webhooks for `snapshot.kubevirt.io`; fields and sentences are theirs.

use carrack_apiserver::admission::{Attributes, Lookup, Needed, Operation};
use carrack_types::duration::parse_unsigned;
use carrack_types::kubevirt::snapshot::{
    GROUP, TypedLocalReference, VirtualMachineRestoreSpec, deletion_policy, volume_ownership, volume_restore,
};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineRestore, VirtualMachineSnapshot, VirtualMachineStatus, run_strategy,
};
use carrack_types::resource::Object as _;
use carrack_types::well_known::kubevirt::GROUP as MACHINES;

use super::{Faults, is_dns_subdomain};
use crate::patches;

pub(super) const SNAPSHOTS: &str = "virtualmachinesnapshots";
pub(super) const RESTORES: &str = "virtualmachinerestores";
pub(super) const CONTENTS: &str = "virtualmachinesnapshotcontents";

/// What a write of these kinds is judged by: the restores that are there.
pub(super) fn needs(attributes: &Attributes<'_>) -> Vec<Needed> {
    if attributes.is(GROUP, RESTORES) && attributes.operation == Operation::Create {
        vec![Needed::all(GROUP, RESTORES, attributes.namespace)]
    } else {
        Vec::new()
    }
}

/// Restores of the namespace.
pub(super) fn restores(lookup: &dyn Lookup, namespace: &str) -> Vec<VirtualMachineRestore> {
    let all = lookup.list(GROUP, RESTORES, namespace).into_iter();
    all.filter_map(|object| serde_json::from_value(object.clone().into()).ok()).collect()
}

/// A machine is all that can be snapshotted or restored yet.
fn check_reference(field: &str, reference: &TypedLocalReference, faults: &mut Faults) -> bool {
    match reference.api_group.as_deref() {
        None => faults.not_found(format!("{field}.apiGroup"), "missing apiGroup"),
        Some(MACHINES) if reference.kind == "VirtualMachine" => return true,
        Some(MACHINES) => faults.invalid(format!("{field}.kind"), "invalid kind"),
        Some(_) => faults.invalid(format!("{field}.apiGroup"), "invalid apiGroup"),
    }
    false
}

/// What is wrong with a spec that has changed: that it has.
pub(super) fn check_immutable<T: PartialEq>(old: &T, new: &T, faults: &mut Faults) {
    if old != new {
        faults.invalid("spec", "spec in immutable after creation");
    }
}

/// What is wrong with a new snapshot.
pub fn check_snapshot(snapshot: &VirtualMachineSnapshot, faults: &mut Faults) {
    let spec = &snapshot.spec;
    check_reference("spec.source", &spec.source, faults);
    if let Some(policy) = spec.deletion_policy.as_deref().filter(|policy| !deletion_policy::ALL.contains(policy)) {
        faults.invalid("spec.deletionPolicy", format!("deletion policy \"{policy}\" doesn't exist"));
    }
    if let Some(deadline) = spec.failure_deadline.as_deref().filter(|text| parse_unsigned(text).is_none()) {
        faults.invalid("spec.failureDeadline", format!("time: invalid duration \"{deadline}\""));
    }
}

/// What is wrong with a new restore, among those of its namespace.
pub fn check_restore(restore: &VirtualMachineRestore, others: &[VirtualMachineRestore], faults: &mut Faults) {
    let spec = &restore.spec;
    if check_reference("spec.target", &spec.target, faults) {
        check_patches("spec.patches", &spec.patches, faults);
        check_overrides(spec, faults);
        let known = |policy: Option<&str>, all: &[&str]| policy.is_none_or(|policy| all.contains(&policy));
        if !known(spec.volume_restore_policy.as_deref(), &volume_restore::ALL) {
            let policy = spec.volume_restore_policy.as_deref().unwrap_or_default();
            faults.invalid("spec.volumeRestorePolicy", format!("volume restore policy \"{policy}\" doesn't exist"));
        }
        if !known(spec.volume_ownership_policy.as_deref(), &volume_ownership::ALL) {
            let policy = spec.volume_ownership_policy.as_deref().unwrap_or_default();
            let message = format!("volume ownership policy \"{policy}\" doesn't exist");
            faults.invalid("spec.volumeOwnershipPolicy", message);
        }
    }
    // One that has failed holds nobody up, unlike upstream, where it does until it is deleted.
    // One of the same name is for the server to refuse: whoever asks twice is told that it is there.
    let busy = |other: &&VirtualMachineRestore| other.spec.target == spec.target && other.is_progressing();
    for other in others.iter().filter(busy).filter(|other| other.name() != restore.name()) {
        faults.invalid("spec.target", format!("VirtualMachineRestore \"{}\" in progress", other.name()));
    }
}

/// What is wrong with patches of a machine that is made.
pub(crate) fn check_patches(field: &str, texts: &[String], faults: &mut Faults) {
    for text in texts {
        match patches::parse(text) {
            Ok(operation) if patches::stays_within(&operation) => {}
            Ok(operation) => {
                let path = operation.path();
                faults.invalid(field, format!("patching is valid only for elements under /spec/ only: {path}"));
            }
            Err(why) => faults.invalid(field, why),
        }
    }
}

fn check_overrides(spec: &VirtualMachineRestoreSpec, faults: &mut Faults) {
    for (index, wanted) in spec.volume_restore_overrides.iter().enumerate() {
        let at = format!("spec.volumeRestoreOverrides[{index}]");
        if wanted.volume_name.is_empty() {
            faults.required(format!("{at}.volumeName"), "must provide a volume name");
        }
        if wanted.restore_name.is_empty() && wanted.annotations.is_empty() && wanted.labels.is_empty() {
            faults.required(&at, "must provide at least one overriden field");
        }
        if !wanted.restore_name.is_empty() && !is_dns_subdomain(&wanted.restore_name) {
            faults.invalid(format!("{at}.restoreName"), "must be a name that a claim can have");
        }
    }
}

/// What is wrong with a change of a machine of which a snapshot is being taken, or which is being restored: its disks are
/// being copied or replaced.
pub fn check_locked(old: &VirtualMachine, new: &VirtualMachine, faults: &mut Faults) {
    let Some(VirtualMachineStatus { snapshot_in_progress, restore_in_progress, .. }) = &old.status else { return };
    if let Some(snapshot) = snapshot_in_progress {
        let volumes = |vm: &VirtualMachine| vm.spec.template.as_ref().map(|template| template.spec.volumes.clone());
        if volumes(old) != volumes(new) {
            let message = format!("Cannot update vm disks or volumes until snapshot \"{snapshot}\" completes");
            faults.unsupported("spec", message);
        } else if (&old.spec.running, &old.spec.run_strategy) != (&new.spec.running, &new.spec.run_strategy) {
            let message = format!("Cannot update vm running state until snapshot \"{snapshot}\" completes");
            faults.unsupported("spec", message);
        }
    }
    if let Some(restore) = restore_in_progress
        && old.spec != new.spec
        && new.run_strategy() != run_strategy::HALTED
    {
        faults.unsupported("spec", format!("Cannot start VM until restore \"{restore}\" completes"));
    }
}

#[cfg(test)]
mod tests {
    use carrack_types::kubevirt::{VirtualMachine, VirtualMachineRestore, VirtualMachineSnapshot};
    use serde_json::{Value, json};

    use super::{Faults, check_immutable, check_locked, check_restore, check_snapshot};

    fn read<T: serde::de::DeserializeOwned>(spec: &Value, name: &str) -> T {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("an object")
    }

    fn said(faults: Faults) -> Vec<String> {
        faults.into_vec().into_iter().map(|fault| format!("{} {}", fault.field, fault.message)).collect()
    }

    fn vm() -> Value {
        json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"})
    }

    #[test]
    fn snapshots_are_of_machines() {
        let check = |spec: Value, wanted: &[&str]| {
            let mut faults = Faults::default();
            check_snapshot(&read::<VirtualMachineSnapshot>(&spec, "s"), &mut faults);
            assert_eq!(said(faults), wanted, "{spec}");
        };
        check(json!({"source": vm()}), &[]);
        check(json!({"source": vm(), "deletionPolicy": "Retain", "failureDeadline": "1m30s"}), &[]);
        check(json!({"source": {"kind": "VirtualMachine", "name": "vm"}}), &["spec.source.apiGroup missing apiGroup"]);
        check(
            json!({"source": {"apiGroup": "apps", "kind": "VirtualMachine", "name": "vm"}}),
            &["spec.source.apiGroup invalid apiGroup"],
        );
        check(
            json!({"source": {"apiGroup": "kubevirt.io", "kind": "VirtualMachineInstance", "name": "vm"}}),
            &["spec.source.kind invalid kind"],
        );
        check(
            json!({"source": vm(), "deletionPolicy": "Burn", "failureDeadline": "soon"}),
            &[
                "spec.deletionPolicy deletion policy \"Burn\" doesn't exist",
                "spec.failureDeadline time: invalid duration \"soon\"",
            ],
        );
    }

    #[test]
    fn restores_say_what_becomes_of_what() {
        let check = |more: Value, wanted: &[&str]| {
            let mut spec = json!({"target": vm(), "virtualMachineSnapshotName": "s"});
            for (key, value) in more.as_object().expect("an object") {
                spec[key] = value.clone();
            }
            let mut faults = Faults::default();
            check_restore(&read::<VirtualMachineRestore>(&spec, "r"), &[], &mut faults);
            assert_eq!(said(faults), wanted, "{spec}");
        };
        check(json!({}), &[]);
        check(json!({"target": {"kind": "VirtualMachine", "name": "x"}}), &["spec.target.apiGroup missing apiGroup"]);
        check(
            json!({"target": {"apiGroup": "foo.bar", "kind": "VirtualMachine", "name": "x"}}),
            &["spec.target.apiGroup invalid apiGroup"],
        );
        check(
            json!({"target": {"apiGroup": "kubevirt.io", "kind": "Pod", "name": "x"}}),
            &["spec.target.kind invalid kind"],
        );
        for policy in ["RandomizeNames", "InPlace", "PrefixTargetName"] {
            check(json!({ "volumeRestorePolicy": policy }), &[]);
        }
        check(
            json!({"volumeRestorePolicy": "Mirror", "volumeOwnershipPolicy": "Me"}),
            &[
                "spec.volumeRestorePolicy volume restore policy \"Mirror\" doesn't exist",
                "spec.volumeOwnershipPolicy volume ownership policy \"Me\" doesn't exist",
            ],
        );
        let fine = r#"{"op": "replace", "path": "/spec/template/spec/domain/firmware/serial", "value": "a:b"}"#;
        let label = r#"{"op": "add", "path": "/metadata/labels/x", "value": "y"}"#;
        check(json!({"patches": [fine, label]}), &[]);
        check(
            json!({"patches": [r#"{"op": "replace", "path": "/metadata/name", "value": "x"}"#]}),
            &["spec.patches patching is valid only for elements under /spec/ only: /metadata/name"],
        );
        check(
            json!({"patches": ["{\"op\""]}),
            &["spec.patches patch format is not valid - EOF while parsing an object at line 1 column 5: {\"op\""],
        );
        check(
            json!({"volumeRestoreOverrides": [{"volumeName": "d", "restoreName": "x"}, {"restoreName": "X!"},
                {"volumeName": "d"}]}),
            &[
                "spec.volumeRestoreOverrides[1].volumeName must provide a volume name",
                "spec.volumeRestoreOverrides[1].restoreName must be a name that a claim can have",
                "spec.volumeRestoreOverrides[2] must provide at least one overriden field",
            ],
        );
    }

    #[test]
    fn one_restore_at_a_time() {
        let check = |target: &str, status: Value, wanted: &[&str]| {
            let spec = |name: &str| {
                let target = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name});
                json!({"target": target, "virtualMachineSnapshotName": "s"})
            };
            let mut other = read::<VirtualMachineRestore>(&spec("vm"), "first");
            other.status = serde_json::from_value(status.clone()).expect("a status");
            let mut faults = Faults::default();
            check_restore(&read(&spec(target), "second"), std::slice::from_ref(&other), &mut faults);
            assert_eq!(said(faults), wanted, "{target} {status}");
            let mut faults = Faults::default();
            check_restore(&read(&spec(target), "first"), &[other], &mut faults);
            assert_eq!(said(faults), Vec::<String>::new(), "asked twice");
        };
        let busy = ["spec.target VirtualMachineRestore \"first\" in progress"];
        check("vm", json!(null), &busy);
        check("vm", json!({"complete": false}), &busy);
        check("vm", json!({"complete": true}), &[]);
        check("vm", json!({"complete": false, "conditions": [{"type": "Failure", "status": "True"}]}), &[]);
        check("other", json!({"complete": false}), &[]);
    }

    #[test]
    fn specs_stay() {
        let mut faults = Faults::default();
        check_immutable(&1, &1, &mut faults);
        check_immutable(&1, &2, &mut faults);
        assert_eq!(said(faults), ["spec spec in immutable after creation"]);
    }

    #[test]
    fn machines_whose_disks_are_held_keep_them() {
        let machine = |status: &Value, strategy: &str, claim: &str, cores: u32| -> VirtualMachine {
            carrack_types::json::from_value(json!({"spec": {"runStrategy": strategy, "template": {"spec": {
                "domain": {"cpu": {"cores": cores}},
                "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}]}}}, "status": status}))
            .expect("a machine")
        };
        let check = |status: Value, new: (&str, &str, u32), wanted: &[&str]| {
            let old = machine(&status, "Halted", "disk", 1);
            let mut faults = Faults::default();
            check_locked(&old, &machine(&status, new.0, new.1, new.2), &mut faults);
            assert_eq!(said(faults), wanted, "{status} {new:?}");
        };
        check(json!({}), ("Always", "other", 2), &[]);
        let snapshot = || json!({"snapshotInProgress": "s"});
        check(snapshot(), ("Halted", "disk", 2), &[]);
        let disks = "spec Cannot update vm disks or volumes until snapshot \"s\" completes";
        check(snapshot(), ("Halted", "other", 1), &[disks]);
        let running = "spec Cannot update vm running state until snapshot \"s\" completes";
        check(snapshot(), ("Always", "disk", 1), &[running]);
        let restore = || json!({"restoreInProgress": "r"});
        check(restore(), ("Halted", "other", 2), &[]);
        check(restore(), ("Always", "disk", 1), &["spec Cannot start VM until restore \"r\" completes"]);
    }
}
