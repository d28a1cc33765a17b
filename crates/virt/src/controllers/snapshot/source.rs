//! The machine of which a snapshot is taken: what state it is in, whether it is held still, and what is kept of it.

use carrack_engine::{Key, Plan, View};
use carrack_types::kubevirt::snapshot::names::{CONTENT_FINALIZER, LEFT_OUT_ANNOTATION, SOURCE_FINALIZER};
use carrack_types::kubevirt::snapshot::{
    SourceClaim, SourceSpec, SourceVirtualMachine, VirtualMachineSnapshotContentSpec, VolumeBackup, content_name,
    copy_name, volume_snapshot_name,
};
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineSnapshot, VirtualMachineSnapshotContent, VirtualMachineSpec,
    phase,
};
use carrack_types::resource::{Kind as _, Object as _};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::controllers::vm::instance::started_from;
use crate::controllers::{Planted, copies};
use crate::identity::keeps_state;

use super::classes::{self, Ambiguous, Classes, OnClaim, Way};
use super::sizes;

/// A machine and its instance.
pub(super) struct Source<'a> {
    pub vm: &'a VirtualMachine,
    pub vmi: Option<&'a VirtualMachineInstance>,
    planted: Option<Planted>,
}

impl<'a> Source<'a> {
    /// The machine that a snapshot names, if it is there.
    pub fn find(namespace: &str, name: &str, view: &'a View<'_>) -> Option<Self> {
        let vm = view.get::<VirtualMachine>(namespace, name)?.as_ref();
        let vmi = view.get::<VirtualMachineInstance>(namespace, name).map(AsRef::as_ref);
        Some(Self { vm, vmi: vmi.filter(|vmi| vmi.controller_uid() == Some(vm.uid())), planted: None })
    }

    /// Plants a bug, for the simulator.
    pub fn with_planted(self, planted: Option<Planted>) -> Self {
        Self { planted, ..self }
    }

    /// What it has on claims.
    fn on_claims<'v>(&self, view: &'v View<'_>) -> impl Iterator<Item = OnClaim<'v>>
    where
        'a: 'v,
    {
        let (vm, misses) = (self.vm, self.planted == Some(Planted::StateUnowned));
        let is_owned = move |claim: &str| {
            classes::claim(view, vm.namespace(), claim).is_some_and(|claim| claim.controller_uid().is_some())
        };
        classes::on_claims(vm, view).filter(move |found| !misses || !found.is_state || is_owned(found.claim))
    }

    /// Whether it runs, or may.
    pub fn is_online(&self) -> bool {
        self.vmi.is_some()
    }

    fn has(&self, condition: &str) -> bool {
        self.vmi.is_some_and(|vmi| vmi.is_true(condition))
    }

    /// Whether its CPUs are stopped.
    pub fn is_paused(&self) -> bool {
        self.has("Paused")
    }

    /// Whether its guest's agent can be asked.
    pub fn has_agent(&self) -> bool {
        self.vmi.is_some_and(|vmi| vmi.phase() == phase::RUNNING) && self.has("AgentConnected")
    }

    /// Whether its guest's file systems are frozen, as far as the agent has said.
    pub fn is_frozen(&self) -> bool {
        let status = self.vmi.and_then(|vmi| vmi.status.as_ref());
        status.is_some_and(|status| status.fs_freeze_status == "frozen")
    }

    /// The snapshot that holds it, or wants to.
    pub fn holder(&self) -> Option<&'a str> {
        self.vm.status.as_ref()?.snapshot_in_progress.as_deref()
    }

    /// Whether a snapshot holds it: its disks and run strategy stay as they are, and it cannot go.
    pub fn is_locked_by(&self, snapshot: &str) -> bool {
        self.holder() == Some(snapshot) && self.vm.has_finalizer(SOURCE_FINALIZER)
    }

    /// Names of the claims whose volumes could be snapshotted.
    pub fn claims<'v>(&self, view: &'v View<'_>) -> Vec<&'v str>
    where
        'a: 'v,
    {
        self.on_claims(view).map(|found| found.claim).collect()
    }

    /// Volumes with claims that have volumes, and how each can be kept.
    pub fn ways<'v>(
        &self,
        view: &'v View<'_>,
    ) -> impl Iterator<Item = (OnClaim<'v>, &'v PersistentVolumeClaim, Result<Way, Ambiguous>)>
    where
        'a: 'v,
    {
        let (vm, vmi) = (self.vm, self.vmi);
        self.on_claims(view).filter_map(move |found| {
            let claim = classes::claim(view, vm.namespace(), found.claim)?;
            let way = Classes::new(view).way(claim, found.is_dump, view);
            // What a running guest does not have, since its machine keeps no state any more, it cannot copy.
            let is_had = |vmi: &VirtualMachineInstance| !found.is_state || keeps_state(&vmi.spec.domain);
            if matches!(way, Ok(Way::Copy(_))) && !vmi.is_none_or(is_had) {
                return None;
            }
            classes::is_bound(claim).then_some((found, claim, way))
        })
    }

    /// The instance, if its disks can be copied while it runs, and where it is.
    pub fn running(&self) -> Option<copies::Running<'a>> {
        let vmi = self.vmi.filter(|vmi| vmi.phase() == phase::RUNNING && !vmi.is_deleting())?;
        Some(copies::Running { uid: vmi.uid(), node: vmi.status.as_ref().map(|status| status.node_name.as_str())? })
    }

    /// Whether the guest of a running machine is stopped by errors of a disk rather than told of them: one that the copying
    /// causes must not reach it.
    fn stops_on_errors(&self, volume: &str) -> bool {
        let disks = self.vmi.map_or(&[][..], |vmi| &vmi.spec.domain.devices.disks);
        disks.iter().filter(|disk| disk.name == volume).all(|disk| {
            let bus = disk.disk.as_ref().and_then(|target| target.bus.as_deref());
            bus != Some("usb") && disk.error_policy.as_deref().is_none_or(|policy| policy == "stop")
        })
    }

    /// Why it must be stopped first, if it must: the errors of a disk that is to be copied are told to the guest.
    ///
    /// # Errors
    /// When there are several snapshot classes and none is the default one.
    pub fn must_stop(&self, view: &View<'_>) -> Result<Option<String>, String> {
        if self.vmi.is_none_or(VirtualMachineInstance::is_final) {
            return Ok(None);
        }
        for (OnClaim { volume, .. }, claim, way) in self.ways(view) {
            if matches!(way.map_err(|ambiguous| ambiguous.0)?, Way::Copy(_)) && !self.stops_on_errors(&volume) {
                let class = classes::storage_class(claim).unwrap_or_default();
                return Ok(Some(must_stop(&volume, class)));
            }
        }
        Ok(None)
    }

    /// Why its volumes cannot be kept now, in KubeVirt's words.
    pub fn unfit(&self, view: &View<'_>) -> Option<String> {
        let (namespace, name) = (self.vm.namespace(), self.vm.name());
        if classes::has_foreign_state(self.vm, view) {
            return Some(format!("source {namespace}/{name} keeps its state on a claim that is not its own"));
        }
        self.claims(view).into_iter().find_map(|claim| {
            let found = classes::claim(view, namespace, claim);
            let way_out = if found.is_some_and(|found| waits_for_use(found, view)) { USE_IT } else { "" };
            Some(format!("source {namespace}/{name} {}: {claim}{way_out}", unfit(found)?))
        })
    }

    /// Why it cannot be locked now, in KubeVirt's words.
    pub fn obstacle(&self, snapshot: &VirtualMachineSnapshot, view: &View<'_>) -> Option<String> {
        let (namespace, name) = (self.vm.namespace(), self.vm.name());
        let claims = self.claims(view);
        if let Some(why) = self.unfit(view) {
            return Some(why);
        }
        if self.vm.is_deleting() {
            return Some(format!("source {namespace}/{name} is being deleted"));
        }
        if !self.is_online() {
            let users = users(view, namespace, &claims);
            if users > 0 {
                return Some(format!("source is offline but {users} pods using PVCs [{}]", claims.join(" ")));
            }
        }
        let status = self.vm.status.as_ref();
        if let Some(restore) = status.and_then(|status| status.restore_in_progress.as_deref()) {
            return Some(format!("restore \"{restore}\" in progress"));
        }
        match self.holder() {
            Some(holder) if holder != snapshot.name() && !is_over(view, namespace, holder) => {
                Some(format!("snapshot \"{holder}\" in progress"))
            }
            _ => None,
        }
    }

    /// The next step to holding it: the field first, so that nobody else takes it, then the finalizer. A holder that is
    /// gone has left the field behind.
    pub fn lock(&self, snapshot: &VirtualMachineSnapshot) -> Plan {
        let mut plan = Plan::none();
        match self.holder() {
            Some(holder) if holder == snapshot.name() => {
                return plan.with_finalizer(self.vm, SOURCE_FINALIZER);
            }
            Some(holder) => {
                let key = Key::new(self.vm.namespace(), holder);
                plan = plan.confirm_absent(&VirtualMachineSnapshot::resource(), key, "");
            }
            None => {}
        }
        plan.patch_status(self.vm, json!({"status": {"snapshotInProgress": snapshot.name()}}))
    }

    /// The next step to letting it go; nothing when it is not held.
    pub fn unlock(&self, snapshot: &str) -> Option<Plan> {
        if self.holder() != Some(snapshot) {
            return None;
        }
        let vm = self.vm;
        if vm.has_finalizer(SOURCE_FINALIZER) {
            return Some(Plan::none().without_finalizer(vm, SOURCE_FINALIZER));
        }
        Some(Plan::none().patch_status(vm, json!({"status": {"snapshotInProgress": null}})))
    }
}

/// That a machine is to be stopped for this volume.
pub(super) fn must_stop(volume: &str, class: &str) -> String {
    format!(
        "volume {volume} has no VolumeSnapshotClass for its StorageClass [{class}] and is copied, which takes a machine that \
         is off or whose disk has the error policy stop: stop the machine, or give the class a VolumeSnapshotClass"
    )
}

/// Whether a snapshot is not there any more.
fn is_over(view: &View<'_>, namespace: &str, snapshot: &str) -> bool {
    view.get::<VirtualMachineSnapshot>(namespace, snapshot).is_none()
}

/// Why a claim cannot be snapshotted now.
fn unfit(claim: Option<&PersistentVolumeClaim>) -> Option<&'static str> {
    let Some(claim) = claim else { return Some("volume doesnt exist") };
    if claim.is_deleting() {
        return Some("volume is being deleted");
    }
    (!classes::is_bound(claim)).then_some("volume not bound")
}

/// What is to be done for a claim that gets its volume when something uses it.
const USE_IT: &str = "; its StorageClass binds it when it is first used: start the machine once";

/// Whether a claim gets its volume when something uses it, and not before.
fn waits_for_use(claim: &PersistentVolumeClaim, view: &View<'_>) -> bool {
    let class = classes::storage_class(claim).and_then(|name| view.get::<StorageClass>("", name));
    let waits = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    waits && !classes::is_bound(claim) && !claim.is_deleting()
}

/// The claims of a pod.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// How many pods that are not over use some of these claims.
fn users(view: &View<'_>, namespace: &str, claims: &[&str]) -> usize {
    let is_over = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    };
    let uses = |pod: &Pod| claims_of(pod).any(|name| claims.contains(&name));
    view.cache::<Pod>().in_namespace(namespace).filter(|pod| !is_over(pod) && uses(pod)).count()
}

/// What is kept of the machine. What a running machine was started from is kept rather than what it will be started from
/// next; its disks are those that it should have.
///
/// # Errors
/// What is missing, for now.
fn kept(source: &Source<'_>, view: &View<'_>) -> Result<VirtualMachineSpec, String> {
    let vm = source.vm;
    let Some(vmi) = source.vmi else { return Ok(vm.spec.clone()) };
    let name = vmi.status.as_ref().map_or("", |status| status.virtual_machine_revision_name.as_str());
    let revision = view.get::<ControllerRevision>(vm.namespace(), name);
    let revision = revision.filter(|revision| revision.controller_uid() == Some(vm.uid()));
    let Some(spec) = started_from(vmi, revision.map(AsRef::as_ref)) else {
        return Err(format!("vm revision {name} doesn't exist"));
    };
    let mut spec: VirtualMachineSpec =
        serde_json::from_value(spec).map_err(|error| format!("vm revision {name} cannot be read: {error}"))?;
    if let (Some(kept), Some(now)) = (&mut spec.template, &vm.spec.template) {
        kept.spec.volumes.clone_from(&now.spec.volumes);
        kept.spec.domain.devices.disks.clone_from(&now.spec.domain.devices.disks);
    }
    spec.data_volume_templates.clone_from(&vm.spec.data_volume_templates);
    Ok(spec)
}

/// The content of a snapshot, as the machine is now.
///
/// # Errors
/// Why it cannot be said.
pub(super) fn content(
    snapshot: &VirtualMachineSnapshot,
    source: &Source<'_>,
    view: &View<'_>,
) -> Result<VirtualMachineSnapshotContent, String> {
    let vm = source.vm;
    let name = content_name(snapshot.uid());
    // A cache may have shown it too late.
    if let Some(why) = source.unfit(view) {
        return Err(why);
    }
    if let Some(why) = source.must_stop(view)? {
        return Err(why);
    }
    let spec = sizes::name(kept(source, view)?, source, &name);
    // Volumes are in the spec, and are seen not to be kept; of what is kept beside them, that is noted.
    let keeps_state = classes::may_keep_state(&spec);
    let (mut backups, mut left_out) = (Vec::new(), keeps_state.then(String::new));
    for (OnClaim { volume, is_state, .. }, claim, way) in source.ways(view) {
        let child = match way.map_err(|ambiguous| ambiguous.0)? {
            Way::Snapshot(_) => volume_snapshot_name(snapshot.uid(), &volume),
            Way::Copy(_) => copy_name(&name, &volume),
            Way::Neither => {
                if is_state && keeps_state {
                    left_out = Some(volume.into_owned());
                }
                continue;
            }
        };
        backups.push(VolumeBackup {
            volume_name: volume.into_owned(),
            persistent_volume_claim: SourceClaim {
                metadata: simplified(&claim.metadata),
                spec: claim.spec.clone().unwrap_or_default(),
            },
            volume_snapshot_name: Some(child),
        });
    }
    Ok(VirtualMachineSnapshotContent {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: snapshot.metadata.namespace.clone(),
            finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
            annotations: left_out.map(|left_out| [(LEFT_OUT_ANNOTATION.to_owned(), left_out)].into()),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineSnapshotContentSpec {
            virtual_machine_snapshot_name: snapshot.metadata.name.clone(),
            source: SourceSpec {
                virtual_machine: Some(SourceVirtualMachine {
                    metadata: Some(simplified(&vm.metadata)),
                    spec,
                    status: None,
                }),
            },
            volume_backups: backups,
        },
        status: None,
    })
}

fn simplified(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta { managed_fields: None, ..metadata.clone() }
}
