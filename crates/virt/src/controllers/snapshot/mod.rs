//! The VirtualMachineSnapshot controllers: hold a machine still, keep what it is, and have its volumes snapshotted.
//!
//! ```text
//!   VirtualMachineSnapshot            VirtualMachine                    VirtualMachineSnapshotContent
//!   InProgress ── lock ─────────────▶ snapshotInProgress, finalizer
//!       └──────── create ───────────────────────────────────────────────▶ (content) freeze ─▶ VolumeSnapshots ─▶ thaw
//!   Succeeded ◀── creationTime ──────────────────────────────────────────────┘
//!       └──────── unlock ───────────▶
//!   Failed (took too long until all volumes had their points in time) ─▶ content deleted ─▶ unlock
//!   deleted ─▶ content deleted, unless it is to stay ─▶ unlock ─▶ gone
//! ```
//!
//! The content's name follows from the snapshot's UID, and a VolumeSnapshot's from that and the volume, so what is made
//! twice is made once. A content is made only while snapshot and machine are as they were read: a request that arrives
//! late makes nothing. That something failed, or is gone, is said only after a live read; a snapshot goes after its
//! content, and a content after its VolumeSnapshots.

pub(crate) mod classes;
pub(crate) mod conditions;
mod content;
mod sizes;
mod source;
mod status;

use std::time::Duration;

use carrack_engine::{Controller, EventRecord, Key, Plan, Premise, Setup, Time, View};
use carrack_types::duration::parse_unsigned;
use carrack_types::kubevirt::snapshot::names::SNAPSHOT_FINALIZER;
use carrack_types::kubevirt::snapshot::{content_name, deletion_policy};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot, VirtualMachineSnapshotContent,
};
use carrack_types::resource::{Kind as _, Object as _};
use carrack_types::snapshots::VolumeSnapshotClass;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

use super::{Config, Planted, defined};
use crate::diff::merge_patch;
use classes::{Classes, Kinds};
pub use content::ContentController;
use source::Source;
use status::Turn;

/// How long a snapshot may take that does not say.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(300);
/// How soon to look again whether the source can be locked.
const LOCK_AGAIN: Duration = Duration::from_secs(5);
/// How soon to look again whether caches are far enough; the store tells them how far it is every 50 ms.
const CACHES_AGAIN: Duration = Duration::from_millis(100);
/// How soon to look again whether the kinds of volume snapshots are known.
pub(crate) const KINDS_AGAIN: Duration = Duration::from_secs(1);

/// How long a snapshot may take; none for as long as it takes.
pub(super) fn deadline(snapshot: &VirtualMachineSnapshot) -> Option<Duration> {
    let said = snapshot.spec.failure_deadline.as_deref().and_then(parse_unsigned).unwrap_or(DEFAULT_DEADLINE);
    (!said.is_zero()).then_some(said)
}

/// When a snapshot fails that has not been taken by then.
pub(super) fn due(snapshot: &VirtualMachineSnapshot) -> Option<Time> {
    let created = Time::from(snapshot.metadata.creation_timestamp.as_ref()?);
    Some(created + deadline(snapshot)?)
}

/// The snapshot that a content belongs to, if it is there: by name and UID.
pub(super) fn snapshot_of<'a>(
    content: &VirtualMachineSnapshotContent,
    view: &'a View<'_>,
) -> Option<&'a VirtualMachineSnapshot> {
    let name = content.spec.virtual_machine_snapshot_name.as_deref()?;
    let snapshot = view.get::<VirtualMachineSnapshot>(content.namespace(), name)?;
    (content_name(snapshot.uid()) == content.name()).then_some(snapshot.as_ref())
}

/// Takes snapshots.
#[derive(Default)]
pub struct SnapshotController {
    kinds: Kinds,
    planted: Option<Planted>,
}

impl SnapshotController {
    /// With what the controllers are set to.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { kinds: Kinds::default(), planted: config.planted }
    }
}

/// What a decision about one snapshot rests on.
pub(super) struct World<'a> {
    snapshot: &'a VirtualMachineSnapshot,
    /// Its content.
    content: Option<&'a VirtualMachineSnapshotContent>,
    /// An object with its content's name is something else's.
    taken: bool,
    source: Option<Source<'a>>,
    view: &'a View<'a>,
    now: Time,
}

/// Index of snapshots that still have something to do, by namespace and by machine: machines and their instances change often, and
/// are to find what waits for them among however many snapshots.
const BY_OPEN: &str = "open";

fn by_open(snapshot: &VirtualMachineSnapshot) -> Vec<String> {
    if !snapshot.is_progressing() && !snapshot.is_deleting() {
        return Vec::new();
    }
    let namespace = snapshot.namespace();
    vec![namespace.to_owned(), of_machine(namespace, &snapshot.spec.source.name)]
}

/// The index's value for the machine of this name.
fn of_machine(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Snapshots under a value of the index.
fn open(view: &View<'_>, value: &str) -> Vec<Key> {
    let open = view.cache::<VirtualMachineSnapshot>().by_index(BY_OPEN, value);
    open.map(|snapshot| Key::of(snapshot.as_ref())).collect()
}

impl Controller for SnapshotController {
    fn name(&self) -> &'static str {
        "virtualmachinesnapshot"
    }
    fn event_source(&self) -> &'static str {
        "snapshot-controller"
    }

    fn setup(&self, setup: &mut Setup<'_>) {
        setup.watch_own::<VirtualMachineSnapshot>();
        setup.index::<VirtualMachineSnapshot>(BY_OPEN, by_open);
        setup.watch::<VirtualMachineSnapshotContent>(|content, _| {
            let name = content.spec.virtual_machine_snapshot_name.clone();
            name.map(|name| Key::new(content.namespace(), name)).into_iter().collect()
        });
        setup.watch::<VirtualMachine>(|vm, view| {
            let mut keys = open(view, &of_machine(vm.namespace(), vm.name()));
            // One that is over still has to let go.
            let holder = vm.status.as_ref().and_then(|status| status.snapshot_in_progress.clone());
            keys.extend(holder.map(|name| Key::new(vm.namespace(), name)).filter(|key| !keys.contains(key)));
            keys
        });
        setup.watch::<VirtualMachineInstance>(|vmi, view| open(view, &of_machine(vmi.namespace(), vmi.name())));
        setup.watch::<PersistentVolumeClaim>(|claim, view| open(view, claim.namespace()));
        setup.watch::<Pod>(|pod, view| {
            if source::claims_of(pod).next().is_none() {
                return Vec::new();
            }
            open(view, pod.namespace())
        });
        setup.read::<StorageClass>();
        setup.read::<ControllerRevision>();
        defined::setup(setup);
    }

    fn more_watches(&mut self, view: &View<'_>, setup: &mut Setup<'_>) {
        self.kinds.refresh(view, setup, |setup| {
            setup.read::<VolumeSnapshotClass>();
        });
    }

    fn reconcile(&mut self, key: &Key, view: &View<'_>, now: Time) -> Plan {
        let Some(snapshot) = view.get::<VirtualMachineSnapshot>(&key.namespace, &key.name) else { return Plan::none() };
        let named = view.get::<VirtualMachineSnapshotContent>(&key.namespace, &content_name(snapshot.uid()));
        let named = named.map(AsRef::as_ref);
        let content = named.filter(|content| content.spec.virtual_machine_snapshot_name == snapshot.metadata.name);
        let source = Source::find(&key.namespace, &snapshot.spec.source.name, view)
            .map(|source| source.with_planted(self.planted));
        // A machine that took the source's name after it was snapshotted is another one.
        let kept = content.and_then(|content| content.spec.source.virtual_machine.as_ref()?.metadata.as_ref());
        let kept = kept.and_then(|metadata| metadata.uid.as_deref());
        let source = source.filter(|source| kept.is_none_or(|uid| uid == source.vm.uid()));
        reconcile(&World { snapshot, content, taken: named.is_some() && content.is_none(), source, view, now })
    }
}

fn reconcile(world: &World<'_>) -> Plan {
    let snapshot = world.snapshot;
    if snapshot.is_deleting() && !snapshot.has_finalizer(SNAPSHOT_FINALIZER) {
        return Plan::none();
    }
    let open = snapshot.is_progressing() && !snapshot.is_deleting();
    if open && !snapshot.has_finalizer(SNAPSHOT_FINALIZER) {
        return Plan::none().with_finalizer(snapshot, SNAPSHOT_FINALIZER);
    }
    let is_taken = world.content.is_some_and(VirtualMachineSnapshotContent::is_created);
    if !open || is_taken {
        return settle(world);
    }
    if snapshot.status.is_none() {
        return say(world, &Turn { lock: lock_message(world, None), ..Turn::default() });
    }
    if world.taken {
        return fail(
            world,
            format!(
                "{} \"{}\" already exists, and belongs to somebody else",
                VirtualMachineSnapshotContent::resource().qualified(),
                content_name(snapshot.uid())
            ),
        );
    }
    if let Some(uid) = lost(world) {
        let key = Key::new(snapshot.namespace(), snapshot.spec.source.name.clone());
        let proof = Plan::none().confirm_absent(&VirtualMachine::resource(), key, uid);
        return proof.then(fail(world, "Source does not exist".to_owned()));
    }
    // What is still being copied is as it was then.
    let is_cut = world.content.is_some_and(|content| content::is_cut(content, world.view));
    let due = due(snapshot).filter(|_| !is_cut);
    if due.is_some_and(|due| due < world.now) {
        return fail(world, status::DEADLINE.to_owned());
    }
    let plan = proceed(world);
    match due {
        // To the second after: the API's times have whole seconds.
        Some(due) => plan.requeue_after((due + Duration::from_secs(1)).since(world.now)),
        None => plan,
    }
}

/// The machine that it is of, if that was there and is not any more. One that has taken its name is another.
fn lost<'a>(world: &World<'a>) -> Option<&'a str> {
    let seen = world.snapshot.status.as_ref()?.source_uid.as_deref()?;
    (world.source.as_ref().map(|source| source.vm.uid()) != Some(seen)).then_some(seen)
}

/// What a snapshot says of its source.
fn lock_message(world: &World<'_>, obstacle: Option<&str>) -> String {
    let locked = world.source.as_ref().is_some_and(|source| source.is_locked_by(world.snapshot.name()));
    match obstacle {
        _ if locked => "Source locked and operation in progress".to_owned(),
        Some(why) => format!("Source not locked {why}"),
        None => "Source not locked".to_owned(),
    }
}

/// Brings the status up to date, if it is not.
fn say(world: &World<'_>, turn: &Turn) -> Plan {
    let old = world.snapshot.status.clone().unwrap_or_default();
    match merge_patch(&old, &status::compute(world, turn)) {
        Some(patch) => Plan::none().patch_status(world.snapshot, json!({"status": patch})),
        None => Plan::none(),
    }
}

/// The next step to having it taken.
fn proceed(world: &World<'_>) -> Plan {
    let World { snapshot, source, view, .. } = world;
    let Some(source) = source else { return say(world, &Turn::default()) };
    let mut turn = Turn { lock: lock_message(world, None), ..Turn::default() };
    if !source.is_locked_by(snapshot.name()) {
        let mut obstacle = source.obstacle(snapshot, view);
        // As long as it is not known, the lock does no harm: it is let go again.
        if obstacle.is_none()
            && !Classes::new(view).is_unknown()
            && let Ok(wrong) = source.must_stop(view)
        {
            turn.problem.clone_from(&wrong);
            obstacle = wrong;
        }
        let plan = match &obstacle {
            None => source.lock(snapshot),
            Some(_) => Plan::none().requeue_after(LOCK_AGAIN),
        };
        turn.lock = lock_message(world, obstacle.as_deref());
        return plan.then(say(world, &turn));
    }
    if world.content.is_some() {
        return say(world, &turn);
    }
    // From the lock on, nobody changes the disks. What was there before must be known.
    let classes = Classes::new(view);
    let since = source.vm.revision();
    let known = view.revision::<PersistentVolumeClaim>() >= since
        && view.revision::<VirtualMachineInstance>() >= since
        && view.revision::<ControllerRevision>() >= since
        && view.revision::<StorageClass>() >= since
        && classes.known_to(since);
    if !known {
        return say(world, &turn).requeue_after(CACHES_AGAIN);
    }
    match source::content(snapshot, source, view) {
        Ok(content) => create(world, source, &classes, &content).then(say(world, &turn)),
        Err(why) => {
            // What is to be stopped must not be held, nor what is to start to have its volumes.
            let stops = source.unfit(view).is_some() || source.must_stop(view).is_ok_and(|wrong| wrong.is_some());
            let unlock = if stops { source.unlock(snapshot.name()) } else { None };
            turn.problem = Some(why);
            unlock.unwrap_or_default().then(say(world, &turn)).requeue_after(LOCK_AGAIN)
        }
    }
}

/// Makes the content, while the snapshot is wanted and the machine is as it was read.
fn create(
    world: &World<'_>,
    source: &Source<'_>,
    classes: &Classes<'_, '_>,
    content: &VirtualMachineSnapshotContent,
) -> Plan {
    let mut plan = Plan::none();
    if matches!(classes, Classes::None) && !source.claims(world.view).is_empty() {
        // Volumes are left out because nothing can snapshot them. That must be so.
        let name = VolumeSnapshotClass::resource().qualified();
        plan = plan.confirm_absent(&defined::definitions(), Key::new("", name), "");
    }
    let message = format!("Successfully created VirtualMachineSnapshotContent {}", content.name());
    plan.create(content)
        .resting_on(&Premise::unchanged(world.snapshot))
        .resting_on(&Premise::unchanged(source.vm))
        .told(EventRecord::normal(world.snapshot, "SuccessfulVirtualMachineSnapshotContentCreate", message))
}

/// Says that it failed, once it is sure that it was not taken after all.
fn fail(world: &World<'_>, why: String) -> Plan {
    let resource = VirtualMachineSnapshotContent::resource();
    let key = Key::new(world.snapshot.namespace(), content_name(world.snapshot.uid()));
    let (proof, premise) = match world.content {
        Some(content) => (Plan::none().confirm_unchanged(content), Some(Premise::unchanged(content))),
        None if world.taken => (Plan::none(), None),
        None => (Plan::none().confirm_absent(&resource, key.clone(), ""), Some(Premise::absent(&resource, key))),
    };
    let problem = Some(&why).filter(|why| *why == status::DEADLINE).and_then(|_| held_up(world));
    let plan = say(world, &Turn { failed: Some(why), problem, ..Turn::default() });
    proof.then(match premise {
        Some(premise) => plan.resting_on(&premise),
        None => plan,
    })
}

/// What it was waiting for. Its condition says from now on that it failed.
fn held_up(world: &World<'_>) -> Option<String> {
    let World { snapshot, source, view, .. } = world;
    let said = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
    let obstacle = || match source {
        Some(source) if source.is_locked_by(snapshot.name()) => None,
        Some(source) => source.obstacle(snapshot, view),
        None => Some("Source does not exist".to_owned()),
    };
    said.or_else(obstacle)
}

/// Whether the content goes when the snapshot does, or has failed. One that is not ready is of no use.
fn is_to_go(snapshot: &VirtualMachineSnapshot, content: Option<&VirtualMachineSnapshotContent>) -> bool {
    let retained = snapshot.spec.deletion_policy.as_deref().is_some_and(|policy| policy != deletion_policy::DELETE);
    // Of one that is not there, only the policy is known: a retained one may have been deleted by somebody.
    !retained || content.is_some_and(|content| !content.is_ready())
}

/// It was taken, has failed, or is to go: the content is dropped if it is to be, and the source let go.
fn settle(world: &World<'_>) -> Plan {
    let World { snapshot, content, source, .. } = world;
    let ends = snapshot.is_deleting() || snapshot.has_failed();
    let drops = ends && is_to_go(snapshot, *content);
    let status = || say(world, &Turn::default());
    if let Some(content) = content
        && drops
    {
        if content.is_deleting() {
            return status();
        }
        // Whether it is ready decides, so it is to be as it was read.
        return Plan::none().delete_unchanged(*content).then(status());
    }
    let proof = || {
        let key = Key::new(snapshot.namespace(), content_name(snapshot.uid()));
        if drops && !world.taken {
            Plan::none().confirm_absent(&VirtualMachineSnapshotContent::resource(), key, "")
        } else {
            Plan::none()
        }
    };
    if let Some(unlock) = source.as_ref().and_then(|source| source.unlock(snapshot.name())) {
        return proof().then(unlock).then(status());
    }
    if !snapshot.is_deleting() {
        return status();
    }
    let plan = proof();
    let vm = world.view.get::<VirtualMachine>(snapshot.namespace(), &snapshot.spec.source.name);
    let gone = Plan::none().without_finalizer(*snapshot, SNAPSHOT_FINALIZER);
    match vm {
        Some(vm) => plan.then(gone.resting_on(&Premise::unchanged(vm.as_ref()))),
        None => {
            let key = Key::new(snapshot.namespace(), snapshot.spec.source.name.clone());
            plan.confirm_absent(&VirtualMachine::resource(), key, "").then(gone)
        }
    }
}

#[cfg(test)]
mod tests;
