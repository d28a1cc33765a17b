//! The VirtualMachineClone controller: takes a snapshot of the source, restores it to the target, and leaves nothing behind.
//!
//! ```text
//!           tmp-snapshot-<uid>        tmp-restore-<uid>            is done               is there
//!   "" ──────▶ SnapshotInProgress ──────▶ RestoreInProgress ──────▶ CreatingTargetVM ──────▶ Succeeded
//!    │ the source is not there: waits  │                  │                                  │  │ target deleted
//!    └───────────────────────────────▶ Failed ◀───────────┘            restore, snapshot gone│  ▼
//!                                        └──────────────────────────────▶ names cleared ◀────┘  deletes itself
//! ```
//!
//! **Names are functions of the clone's UID**, so that what is made twice is made once. What is found under such a name is
//! the clone's own only if the clone's UID controls it and it was made to be what is wanted now (a digest of its spec, in an
//! annotation); anything else there is a conflict, and the clone fails. A create rests on the clone as it was read: one that
//! arrives when the clone has gone on makes nothing.
//!
//! **A cache is no proof.** What is not in a cache, or is wrong there, makes a clone fail only after a live read said the same;
//! and so for what is deleted because something else is gone ([`cleanup`]).
//!
//! **How it ends** when something happens in the midst of it:
//!
//! | what | end |
//! | --- | --- |
//! | the source is not there yet | it waits, with condition and event; nothing was made |
//! | the source is changed | the target is what the source was when the snapshot was taken; patches are made of that, too |
//! | the source restarts | nothing: the snapshot is of its disks |
//! | the source is deleted before its snapshot is taken | the snapshot fails at its deadline, and the clone with it |
//! | the source is deleted after that | nothing: the snapshot has all that is needed |
//! | the snapshot or the restore is deleted by somebody | Failed, unless the restore was done |
//! | the target's name is taken, or another clone takes it | Failed; the other machine is left as it is |
//! | the target is deleted | the clone deletes itself |
//! | the clone is deleted | its finalizer holds it until restore and snapshot are proved gone; a target that is there stays, and its claims are waited for, since they are still made from the snapshot |
//!
//! Phases, events and reasons are those of KubeVirt's clone controller, where it has them. It has no reason for what it lets
//! hang: a failed snapshot or restore, a name that is taken.

mod child;
mod cleanup;
mod patches;
mod planted;
mod report;
mod restore;
mod snapshot;
mod target;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Refusal, Setup, Time, View, Write};
use carrack_types::kubevirt::clone::{self, names, phase};
use carrack_types::kubevirt::snapshot::names::RESTORE_NAME_ANNOTATION;
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineClone, VirtualMachineCloneStatus, VirtualMachineRestore, VirtualMachineSnapshot,
    VirtualMachineSnapshotContent,
};
use carrack_types::resource::{Kind as _, Object};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use child::Child;
pub use planted::Planted;
use report::Report;

/// Indexes of clones: by the machines, by the snapshots, and by the restore that they have to do with.
const BY_MACHINE: &str = "machine";
const BY_SNAPSHOT: &str = "snapshot";
const BY_RESTORE: &str = "restore";

/// Clones machines.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneController {
    planted: Option<Planted>,
}

impl CloneController {
    /// Plants a bug, for the simulator, which must find it; never for a real process.
    #[must_use]
    pub fn with_planted(planted: Planted) -> Self {
        Self { planted: Some(planted) }
    }
}

/// What is known of a clone, and of what has to do with it.
struct World<'a> {
    clone: &'a VirtualMachineClone,
    status: VirtualMachineCloneStatus,
    view: &'a View<'a>,
    now: Time,
    planted: Option<Planted>,
    /// What is found under the name of its snapshot.
    snapshot: Child<'a, VirtualMachineSnapshot>,
    /// What is found under the name of its restore.
    restore: Child<'a, VirtualMachineRestore>,
}

impl<'a> World<'a> {
    fn of(clone: &'a VirtualMachineClone, view: &'a View<'a>, now: Time, planted: Option<Planted>) -> Self {
        let status = clone.status.clone().unwrap_or_default();
        let snapshot = match planted {
            // Upstream's way, before names were derived: what the status does not name is not known.
            Some(Planted::RandomNames) => status.snapshot_name.clone().unwrap_or_default(),
            _ => clone::snapshot_name(clone.uid()),
        };
        let restore = clone::restore_name(clone.uid());
        Self {
            snapshot: Child::find(clone, view, &snapshot, planted),
            restore: Child::find(clone, view, &restore, planted),
            clone,
            status,
            view,
            now,
            planted,
        }
    }
    fn namespace(&self) -> &'a str {
        self.clone.namespace()
    }
    fn key(&self, name: impl Into<String>) -> Key {
        Key::new(self.namespace(), name)
    }
    fn report(&self) -> Report<'a> {
        Report::new(self.clone, self.now)
    }
    /// What a create rests on: the clone as it is, so that nothing is made for one that has gone on.
    fn premise(&self) -> Premise {
        Premise::unchanged(self.clone)
    }
    /// Creates a child, and tells of it.
    fn create<K: carrack_types::resource::Kind>(&self, object: &K, events: Vec<EventRecord>) -> Plan {
        let mut plan = Plan::none().create(object);
        if self.planted != Some(Planted::RandomNames) {
            plan = plan.resting_on(&self.premise());
        }
        events.into_iter().fold(plan, Plan::told)
    }
    /// The clone fails, if a live read has proved why.
    fn fail(&self, proof: Plan, reason: &str, message: &str) -> Plan {
        let event = EventRecord::normal(self.clone, reason, message);
        proof.then(self.report().failed(message).plan()).told(event)
    }
    /// The clone waits for something.
    fn wait(&self, reason: &str, message: &str) -> Plan {
        let plan = self.report().pending(message).plan();
        if plan.is_none() { plan } else { plan.told(EventRecord::normal(self.clone, reason, message)) }
    }
}

impl Controller for CloneController {
    fn name(&self) -> &'static str {
        "virtualmachineclone"
    }
    fn event_source(&self) -> &'static str {
        "clone-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineClone>();
        setup.index::<VirtualMachineClone>(BY_MACHINE, machines);
        setup.index::<VirtualMachineClone>(BY_SNAPSHOT, snapshots);
        setup.index::<VirtualMachineClone>(BY_RESTORE, restores);
        // By name, not by owner: a stranger's object in the way is news, too.
        setup.watch::<VirtualMachine>(|vm, view| clones(view, BY_MACHINE, vm.namespace(), vm.name()));
        setup.watch::<VirtualMachineSnapshot>(|found, view| clones(view, BY_SNAPSHOT, found.namespace(), found.name()));
        setup.watch::<VirtualMachineSnapshotContent>(|content, view| {
            let of = content.spec.virtual_machine_snapshot_name.as_deref().unwrap_or_default();
            clones(view, BY_SNAPSHOT, content.namespace(), of)
        });
        setup.watch::<VirtualMachineRestore>(|found, view| clones(view, BY_RESTORE, found.namespace(), found.name()));
        setup.watch::<PersistentVolumeClaim>(|claim, view| {
            let restore = claim.annotation(RESTORE_NAME_ANNOTATION).unwrap_or_default();
            clones(view, BY_RESTORE, claim.namespace(), restore)
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(clone) = view.get::<VirtualMachineClone>(&key.namespace, &key.name) else { return Plan::none() };
        let world = World::of(clone, view, now, self.planted);
        if clone.is_deleting() {
            return if clone.has_finalizer(names::FINALIZER) { cleanup::clear(&world) } else { Plan::none() };
        }
        if !clone.has_finalizer(names::FINALIZER) {
            return Plan::none().with_finalizer(clone.as_ref(), names::FINALIZER);
        }
        match clone.phase() {
            phase::UNSET | phase::SNAPSHOT_IN_PROGRESS | phase::RESTORE_IN_PROGRESS | phase::CREATING_TARGET_VM => {
                advance(&world)
            }
            phase::SUCCEEDED => target::keep(&world),
            phase::FAILED => cleanup::clear(&world),
            _ => Plan::none(),
        }
    }

    fn refused(&mut self, key: &Key, view: &View<'_>, refusal: &Refusal<'_>, now: Time) -> Plan {
        let Some(clone) = view.get::<VirtualMachineClone>(&key.namespace, &key.name) else { return Plan::none() };
        let world = World::of(clone, view, now, self.planted);
        let Write::Create { resource, .. } = refusal.write else { return Plan::none() };
        // What has the name is looked at when the cache shows it.
        if refusal.error.reason == "AlreadyExists" {
            return Plan::none();
        }
        let what = refusal.write.key().name;
        let restores = *resource == VirtualMachineRestore::resource();
        let reason = if restores { "RestoreCreationFailed" } else { "SnapshotCreationFailed" };
        let message = format!("failed creating {what} for clone {}: {}", clone.name(), refusal.error.message);
        if refusal.error.reason != "Invalid" {
            return Plan::none().event(EventRecord::warning(clone.as_ref(), reason, message));
        }
        // It will be refused the next time, too; unless an earlier try has come through, and is what is in the way.
        let proof = Plan::none().confirm_no_child(resource, world.key(what), clone.uid());
        let event = EventRecord::warning(clone.as_ref(), reason, &message);
        proof.then(world.report().failed(&message).plan()).event(event)
    }
}

/// Brings a clone that is not over one step on.
fn advance(world: &World<'_>) -> Plan {
    if let Some(conflict) = child::conflict(world) {
        return conflict;
    }
    let recorded = world.status.restore_name.as_deref() == Some(&clone::restore_name(world.clone.uid()));
    match &world.restore {
        Child::Own(restore) if recorded => restore::follow(world, restore),
        Child::Absent if world.clone.phase() == phase::CREATING_TARGET_VM => {
            target::appear(world, &world.status.clone())
        }
        Child::Absent if recorded => restore::lost(world),
        _ => snapshot::ensure(world),
    }
}

fn clones(view: &View<'_>, index: &str, namespace: &str, name: &str) -> Vec<Key> {
    let place = format!("{namespace}/{name}");
    view.cache::<VirtualMachineClone>().by_index(index, &place).map(|clone| Key::of(clone.as_ref())).collect()
}

fn places(clone: &VirtualMachineClone, names: impl IntoIterator<Item = String>) -> Vec<String> {
    names.into_iter().map(|name| format!("{}/{name}", clone.namespace())).collect()
}

fn machines(clone: &VirtualMachineClone) -> Vec<String> {
    let source = clone.source_of(names::MACHINE).map(str::to_owned);
    places(clone, source.into_iter().chain([target::name(clone)]))
}

fn snapshots(clone: &VirtualMachineClone) -> Vec<String> {
    let named = clone.status.as_ref().and_then(|status| status.snapshot_name.clone());
    let source = clone.source_of(names::SNAPSHOT).map(str::to_owned);
    places(clone, [clone::snapshot_name(clone.uid())].into_iter().chain(named).chain(source))
}

fn restores(clone: &VirtualMachineClone) -> Vec<String> {
    places(clone, [clone::restore_name(clone.uid())])
}

#[cfg(test)]
mod tests;
