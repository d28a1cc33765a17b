//! Which volumes can be snapshotted: what the cluster's storage classes and snapshot classes say.
//!
//! The kinds of volume snapshots come with definitions that a cluster may not have. They are read once the definitions are
//! there; until then storage can snapshot no volume, and until they have been read whole nothing is known of them. A volume that
//! storage cannot snapshot is copied, where there is a storage class for the copy.

use std::borrow::Cow;

use carrack_engine::{Setup, Source, View};
use carrack_types::kubevirt::snapshot::names::LAST_RESTORE_ANNOTATION;
use carrack_types::kubevirt::vm::VolumeSnapshotStatus;
use carrack_types::kubevirt::{VirtualMachine, VirtualMachineSpec, Volume};
use carrack_types::resource::Object;
use carrack_types::snapshots::{self, VolumeSnapshot, VolumeSnapshotClass};
use carrack_types::well_known::kubevirt::STATE_CLAIM_ANNOTATION;
use carrack_types::well_known::storage::DEFAULT_SNAPSHOT_CLASS;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::controllers::copies;
use crate::controllers::defined::is_defined;
use crate::controllers::vmi::state;
use crate::identity::{keeps_state, state_volume_name};

/// Whether the kinds of volume snapshots are defined.
fn are_defined(view: &View<'_>) -> bool {
    is_defined::<VolumeSnapshot>(view) && is_defined::<VolumeSnapshotClass>(view)
}

/// What a controller that needs the kinds of volume snapshots remembers of them.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    read: bool,
}

impl Kinds {
    /// Reads the kinds as soon as they are defined, and no longer than that.
    pub(crate) fn refresh(&mut self, view: &View<'_>, setup: &mut Setup<'_>, watch: impl FnOnce(&mut Setup<'_>)) {
        match (are_defined(view), self.read) {
            (true, false) => watch(setup),
            (false, true) => {
                setup.drop_source(Source::of::<VolumeSnapshotClass>());
                setup.drop_source(Source::of::<VolumeSnapshot>());
            }
            _ => return,
        }
        self.read = !self.read;
    }
}

/// What is known of the classes.
pub(crate) enum Classes<'a, 'v> {
    /// The kinds are not defined.
    None,
    /// They are defined, and not read yet.
    Unknown,
    /// They are read.
    Known(&'a View<'v>),
}

/// How what is on a claim's volume can be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a VolumeSnapshot of this class.
    Snapshot(String),
    /// By a copy on a claim of this storage class.
    Copy(String),
    /// Not at all.
    Neither,
}

/// Why a volume has no snapshot class, in KubeVirt's words where it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ambiguous(pub String);

impl<'a, 'v> Classes<'a, 'v> {
    /// As far as the caches know.
    pub(crate) fn new(view: &'a View<'v>) -> Self {
        if !are_defined(view) {
            return Self::None;
        }
        if view.synced(&Source::of::<VolumeSnapshotClass>()) { Self::Known(view) } else { Self::Unknown }
    }

    /// Whether there is something that is not known yet.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// Whether everything up to a revision is known of them.
    pub(crate) fn known_to(&self, revision: u64) -> bool {
        match self {
            Self::None => true,
            Self::Unknown => false,
            Self::Known(view) => {
                view.revision::<VolumeSnapshotClass>() >= revision && view.revision::<StorageClass>() >= revision
            }
        }
    }

    /// The snapshot class for volumes of a storage class: the only one of its driver, or the default one of several.
    ///
    /// # Errors
    /// When there are several and none is the default one.
    pub(crate) fn of(&self, storage_class: &str) -> Result<Option<String>, Ambiguous> {
        let Self::Known(view) = self else { return Ok(None) };
        let storage = view.cache_of::<StorageClass>(&Source::of::<StorageClass>());
        let Some(storage) = storage.and_then(|cache| cache.get("", storage_class)) else { return Ok(None) };
        let Some(classes) = view.cache_of::<VolumeSnapshotClass>(&Source::of::<VolumeSnapshotClass>()) else {
            return Ok(None);
        };
        let matching: Vec<&VolumeSnapshotClass> =
            classes.iter().filter(|class| class.driver == storage.provisioner).map(AsRef::as_ref).collect();
        match matching.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only.name().to_owned())),
            several => match several.iter().find(|class| class.annotation(DEFAULT_SNAPSHOT_CLASS).is_some()) {
                Some(default) => Ok(Some(default.name().to_owned())),
                None => Err(Ambiguous(format!("{} matching VolumeSnapshotClasses for {storage_class}", several.len()))),
            },
        }
    }

    /// How a volume's claim can be kept. A dump of memory is no disk, and not copied.
    ///
    /// # Errors
    /// When there are several snapshot classes and none is the default one.
    pub(crate) fn way(&self, claim: &PersistentVolumeClaim, is_dump: bool, view: &View<'_>) -> Result<Way, Ambiguous> {
        let by_snapshot = storage_class(claim).map(|class| self.of(class)).transpose()?.flatten();
        let by_copy = || copies::class_for(claim, view).filter(|_| !is_dump);
        Ok(by_snapshot.map(Way::Snapshot).or_else(|| by_copy().map(Way::Copy)).unwrap_or(Way::Neither))
    }
}

/// A claim of a namespace.
pub(crate) fn claim<'a>(view: &'a View<'_>, namespace: &str, name: &str) -> Option<&'a PersistentVolumeClaim> {
    view.get::<PersistentVolumeClaim>(namespace, name).map(AsRef::as_ref)
}

/// The storage class of a claim, if it names one.
pub(crate) fn storage_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref()
}

/// The claim of a volume that could be snapshotted, by its source.
pub(crate) fn snapshottable(volume: &Volume) -> Option<&str> {
    let of_claim = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str());
    let of_data_volume = volume.data_volume.as_ref().map(|source| source.name.as_str());
    let of_dump = volume.memory_dump.as_ref().map(|source| source.claim_name.as_str());
    of_claim.or(of_data_volume).or(of_dump)
}

/// The volumes of a machine.
pub(crate) fn volumes(vm: &VirtualMachine) -> impl Iterator<Item = &Volume> {
    vm.spec.template.iter().flat_map(|template| &template.spec.volumes)
}

/// What a machine has on a claim: a volume, or what it keeps beside its volumes.
pub(crate) struct OnClaim<'a> {
    /// Name of the volume, or of the one that stands for what is kept beside them.
    pub volume: Cow<'a, str>,
    /// Name of the claim.
    pub claim: &'a str,
    /// It is a dump of memory.
    pub is_dump: bool,
    /// It is what the machine keeps beside its volumes.
    pub is_state: bool,
}

/// The claim that keeps what a machine keeps beside its volumes, if it has ever had that. One that was restored for a machine which
/// was not there yet belongs to it before it owns it.
pub(crate) fn state_claim<'a>(vm: &VirtualMachine, view: &'a View<'_>) -> Option<&'a PersistentVolumeClaim> {
    let is_its = |claim: &&PersistentVolumeClaim| match claim.controller_uid() {
        Some(owner) => owner == vm.uid(),
        None => is_restored(vm, claim) && by(*claim).is_some() && by(*claim) == by(vm),
    };
    claim(view, vm.namespace(), &state::of_machine(vm)).filter(is_its)
}

/// The restore by which an object is what it is.
fn by<K: Object>(object: &K) -> Option<&str> {
    object.annotation(LAST_RESTORE_ANNOTATION)
}

/// Whether what a machine keeps on this claim was restored: only then the machine names the claim.
fn is_restored(vm: &VirtualMachine, claim: &PersistentVolumeClaim) -> bool {
    vm.annotation(STATE_CLAIM_ANNOTATION) == Some(claim.name())
}

/// Whether a machine keeps something beside its volumes, as far as that can be said: preferences change what its template says.
pub(crate) fn may_keep_state(spec: &VirtualMachineSpec) -> bool {
    spec.preference.is_some() || spec.template.as_ref().is_some_and(|template| keeps_state(&template.spec.domain))
}

/// The claim that a machine names for what it keeps: it does not start without that one, whatever has become of it.
fn named_state(vm: &VirtualMachine) -> Option<&str> {
    vm.annotation(STATE_CLAIM_ANNOTATION).filter(|name| !name.is_empty() && may_keep_state(&vm.spec))
}

/// Whether a machine names a claim for its state that is another's.
pub(crate) fn has_foreign_state(vm: &VirtualMachine, view: &View<'_>) -> bool {
    named_state(vm).is_some_and(|name| claim(view, vm.namespace(), name).is_some()) && state_claim(vm, view).is_none()
}

/// All that a machine has on claims. A claim for its state that has no volume yet holds nothing, unless the machine names it: then
/// it is waited for, as any volume.
pub(crate) fn on_claims<'a>(vm: &'a VirtualMachine, view: &'a View<'_>) -> impl Iterator<Item = OnClaim<'a>> {
    let of = |volume: &'a Volume| {
        let is_dump = volume.memory_dump.is_some();
        let volume_name = Cow::Borrowed(volume.name.as_str());
        Some(OnClaim { volume: volume_name, claim: snapshottable(volume)?, is_dump, is_state: false })
    };
    let bound = || state_claim(vm, view).filter(|claim| is_bound(claim)).map(Object::name);
    let state = named_state(vm).or_else(bound).map(|claim| OnClaim {
        volume: Cow::Owned(state_volume_name(vm.name())),
        claim,
        is_dump: false,
        is_state: true,
    });
    volumes(vm).filter_map(of).chain(state)
}

/// Whether a claim has its volume.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// The claim on which a machine keeps something beside its volumes. What a machine has left there that keeps nothing any more
/// hinders nobody.
fn kept_on<'a>(vm: &'a VirtualMachine, view: &'a View<'_>) -> Option<&'a str> {
    let own = || state_claim(vm, view).filter(|_| may_keep_state(&vm.spec)).map(Object::name);
    named_state(vm).or_else(own)
}

/// Which of a machine's volumes can be snapshotted, and why the others cannot. None as long as that is not known.
pub(crate) fn statuses(vm: &VirtualMachine, view: &View<'_>) -> Option<Vec<VolumeSnapshotStatus>> {
    let classes = Classes::new(view);
    let has_claims = volumes(vm).any(|volume| snapshottable(volume).is_some()) || kept_on(vm, view).is_some();
    if classes.is_unknown() && has_claims {
        return None;
    }
    let status = |volume: &Volume| {
        let (enabled, reason) = match snapshottable(volume) {
            None => (false, Some(format!("Snapshot is not supported for this volumeSource type [{}]", volume.name))),
            Some(name) => {
                let claim = claim(view, vm.namespace(), name);
                fitness(&volume.name, claim, volume.memory_dump.is_some(), &classes, view)
            }
        };
        VolumeSnapshotStatus { name: volume.name.clone(), enabled, reason }
    };
    let kept = kept_on(vm, view).map(|claim_name| {
        let name = state_volume_name(vm.name());
        let own = claim(view, vm.namespace(), claim_name).filter(|_| !has_foreign_state(vm, view));
        let (enabled, reason) = fitness(&name, own, false, &classes, view);
        VolumeSnapshotStatus { name, enabled, reason }
    });
    Some(volumes(vm).map(status).chain(kept).collect())
}

/// Whether a volume can be kept, and why not, or what that takes.
fn fitness(
    volume: &str,
    claim: Option<&PersistentVolumeClaim>,
    is_dump: bool,
    classes: &Classes<'_, '_>,
    view: &View<'_>,
) -> (bool, Option<String>) {
    let Some(claim) = claim else { return (false, Some("PVC not found".to_owned())) };
    let no_class = || {
        let class = storage_class(claim).unwrap_or_default();
        format!(
            "No VolumeSnapshotClass: Volume snapshots are not configured for this StorageClass [{class}] [{volume}]"
        )
    };
    match classes.way(claim, is_dump, view) {
        Ok(Way::Snapshot(_)) => (true, None),
        Ok(Way::Copy(_)) => (true, Some(format!("{}; it is copied", no_class()))),
        Ok(Way::Neither) => (false, Some(no_class())),
        Err(Ambiguous(why)) => (false, Some(why)),
    }
}

/// Whether it is known which VolumeSnapshots there are. Where the kind is not defined, there are none.
pub(crate) fn are_known(view: &View<'_>) -> bool {
    !are_defined(view) || view.synced(&Source::of::<VolumeSnapshot>())
}

/// A VolumeSnapshot, if the kind is read.
pub(crate) fn volume_snapshot<'a>(view: &'a View<'_>, namespace: &str, name: &str) -> Option<&'a VolumeSnapshot> {
    view.cache_of::<VolumeSnapshot>(&Source::of::<VolumeSnapshot>())?.get(namespace, name).map(AsRef::as_ref)
}

/// The group of volume snapshots, as data sources of claims name it.
pub(crate) const VOLUME_SNAPSHOT_GROUP: &str = snapshots::GROUP;
