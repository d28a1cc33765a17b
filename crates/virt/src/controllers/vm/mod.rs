//! The VirtualMachine controller: makes and deletes the instance that a machine's run strategy asks for.
//!
//! ```text
//!            wanted: run                                     wanted: stop, or the instance is final
//!   no instance ─────────▶ ControllerRevision, instance ─────────▶ instance deleted ─▶ no instance
//!        ▲                                                                                 │
//!        └──────────────── after a failed start: wait 10·n² s, at most 300 s ◀─────────────┘
//! ```
//!
//! An instance goes only after its pods are gone (the instance's own finalizer), so a new instance never meets the
//! old one's guest. The instance bears the machine's name; one of that name that belongs to somebody else is left
//! alone and reported.

mod instance;
mod start_failure;
mod status;
mod strategy;

use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Setup, Time, View};
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineInstance};
use carrack_types::resource::Object;
use carrack_types::well_known::kubevirt::VM_FINALIZER;
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::json;

use crate::diff::merge_patch;
use strategy::Act;

/// Runs machines.
pub struct VmController;

impl Controller for VmController {
    fn name(&self) -> &'static str {
        "virtualmachine"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachine>();
        // By name, not by owner: a stranger's instance in the way is news, too.
        setup.watch_own::<VirtualMachineInstance>();
        setup.watch_owned::<ControllerRevision, VirtualMachine>();
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(vm) = view.get::<VirtualMachine>(&key.namespace, &key.name) else { return Plan::none() };
        let named = view.get::<VirtualMachineInstance>(&key.namespace, &key.name).map(AsRef::as_ref);
        let instance = named.filter(|vmi| vmi.controller_uid() == Some(vm.uid()));
        if vm.is_deleting() {
            return finish(vm, instance, now);
        }
        if !vm.has_finalizer(VM_FINALIZER) {
            return add_finalizer(vm);
        }
        let revisions: Vec<&ControllerRevision> =
            view.cache::<ControllerRevision>().by_owner(vm.uid()).map(AsRef::as_ref).collect();
        let world = World { vm, instance, stranger: named.is_some() && instance.is_none(), revisions };
        run(&world, now)
    }
}

/// What a decision about one machine rests on.
struct World<'a> {
    vm: &'a VirtualMachine,
    /// Its instance.
    instance: Option<&'a VirtualMachineInstance>,
    /// An instance of its name belongs to somebody else.
    stranger: bool,
    /// Its ControllerRevisions.
    revisions: Vec<&'a ControllerRevision>,
}

fn add_finalizer(vm: &VirtualMachine) -> Plan {
    let mut finalizers = vm.metadata.finalizers.clone().unwrap_or_default();
    finalizers.push(VM_FINALIZER.to_owned());
    Plan::none().patch(vm, json!({"metadata": {"finalizers": finalizers}}))
}

/// Lets a machine go once its instance is gone. Deleting with orphans leaves the instance to itself.
fn finish(vm: &VirtualMachine, instance: Option<&VirtualMachineInstance>, now: Time) -> Plan {
    if !vm.has_finalizer(VM_FINALIZER) {
        return Plan::none();
    }
    match instance {
        Some(vmi) if !vm.has_finalizer("orphan") => {
            let world = World { vm, instance: Some(vmi), stranger: false, revisions: Vec::new() };
            let plan = status_plan(&world, now);
            if vmi.is_deleting() { plan } else { plan.then(stop(vm, vmi, None)) }
        }
        _ => {
            let finalizers: Vec<&String> =
                vm.metadata.finalizers.iter().flatten().filter(|name| *name != VM_FINALIZER).collect();
            Plan::none().patch(vm, json!({"metadata": {"finalizers": finalizers}}))
        }
    }
}

fn run(world: &World<'_>, now: Time) -> Plan {
    let World { vm, instance, .. } = world;
    let plan = status_plan(world, now);
    let plan = match strategy::decide(vm, *instance) {
        Act::Nothing => plan,
        Act::Stop { grace_period_s } => match instance {
            Some(vmi) if !vmi.is_deleting() => plan.then(stop(vm, vmi, grace_period_s)),
            _ => plan,
        },
        Act::Start { paused } if instance.is_none() && !world.stranger => {
            let wait = start_failure::wait_left(vm, now);
            if wait > Duration::ZERO { plan.requeue_after(wait) } else { plan.then(start(vm, paused)) }
        }
        Act::Start { .. } => plan,
    };
    plan.then(drop_old_revisions(world))
}

/// Brings the status up to date, if it is not.
fn status_plan(world: &World<'_>, now: Time) -> Plan {
    let old = world.vm.status.clone().unwrap_or_default();
    let new = status::compute(world, now);
    match merge_patch(&old, &new) {
        Some(patch) => Plan::none().patch_status(world.vm, json!({"status": patch})),
        None => Plan::none(),
    }
}

fn start(vm: &VirtualMachine, paused: bool) -> Plan {
    let revision = instance::revision(vm);
    let vmi = instance::build(vm, paused);
    let message = format!("Started the virtual machine by creating the new virtual machine instance {}", vm.name());
    Plan::none().create(&revision).create(&vmi).event(EventRecord::normal(vm, "SuccessfulCreate", message))
}

fn stop(vm: &VirtualMachine, vmi: &VirtualMachineInstance, grace_period_s: Option<i64>) -> Plan {
    let message =
        format!("Stopped the virtual machine by deleting the virtual machine instance {} ({})", vmi.name(), vmi.uid());
    // A custom resource has no grace period of its own in its deletion; the handler reads the spec's.
    let plan = match grace_period_s {
        Some(seconds) if vmi.spec.termination_grace_period_seconds != Some(seconds) => {
            Plan::none().patch(vmi, json!({"spec": {"terminationGracePeriodSeconds": seconds}}))
        }
        _ => Plan::none(),
    };
    plan.delete(vmi).event(EventRecord::normal(vm, "SuccessfulDelete", message))
}

/// Revisions that the running instance was not started from are of no use any more.
fn drop_old_revisions(world: &World<'_>) -> Plan {
    let Some(used) =
        world.instance.and_then(|vmi| vmi.status.as_ref()).map(|s| s.virtual_machine_revision_name.as_str())
    else {
        return Plan::none();
    };
    let old = world.revisions.iter().filter(|revision| {
        let name = revision.name();
        name.starts_with("revision-start-vm-") && name != used && !revision.is_deleting()
    });
    if used.is_empty() { Plan::none() } else { old.fold(Plan::none(), |plan, revision| plan.delete(*revision)) }
}

#[cfg(test)]
mod tests;
