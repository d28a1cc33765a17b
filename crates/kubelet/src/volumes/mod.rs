//! Volume manager: what is wanted, what is there, and when it may go.
//!
//! ```text
//!            wanted                              unwanted, and proof
//!  absent ──────────▶ setting up ──▶ mounted ────────────────────────▶ tearing down ──▶ absent
//!                        ▲  failed      │ contents changed                  │ failed
//!                        └──backoff◀────┘                                   └─▶ retried
//! ```
//!
//! A volume is *wanted*, *unwanted* or *unknown*. Unknown (the pod was not read in this life of the
//! kubelet, or a read failed) keeps everything as it is. A teardown needs two proofs at once: the pod
//! is over or surely gone, and a listing of the runtime made after that was known shows no container
//! and no sandbox of it alive. What is mounted is in the pod's local record before it is mounted, so
//! that a restarted kubelet knows of it without asking the API.
//!
//! Volumes of drivers go two ways: made ready for the node ([`staged`]), then published to each pod.

mod census;
mod driver;
mod found;
mod growth;
pub mod origin;
mod payload;
pub mod staged;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::quantity::Quantity;
use carrack_types::volume::{Users, digest, user_of};
use k8s_openapi::api::core::v1::{Pod, Volume};
use serde::{Deserialize, Serialize};

pub use census::{Census, Count, plugin_name};
pub use found::Found;
pub use growth::{CONDITIONS as SIZE_CONDITIONS, Expanding};
pub use origin::{Driver, Origin};
pub use payload::{FileEntry, PayloadSources, Token, files};
pub use staged::{Secrets, StageAction, StagedVolumes, Staging, Told};

use crate::amount;
use crate::config::NodeConfig;
use crate::effects::{OpError, OpId, Reply};
use crate::runtime::Uid;
use crate::spec::env::Place;
use crate::spec::pod::{self, spec};
use crate::spec::resources;

/// What to make of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// An empty directory that lives with the pod.
    EmptyDir {
        /// In memory.
        tmpfs: bool,
        /// Largest size in bytes; 0 for none.
        size_bytes: u64,
        /// Size of its pages in bytes; 0 for ordinary memory, or none.
        page_bytes: u64,
    },
    /// A path of the node. Only checked, or made where its type says so.
    HostPath {
        /// `""`, `DirectoryOrCreate`, `Directory`, `FileOrCreate`, `File`, `Socket`, `CharDevice`,
        /// `BlockDevice`.
        path_type: String,
    },
    /// Files, replaced all at once when they change.
    Files {
        /// In memory.
        tmpfs: bool,
        /// The files.
        files: Vec<FileEntry>,
    },
    /// A driver's volume, or the pod's part of one.
    Published(Box<Publishing>),
}

/// What a driver is told when a pod gets its part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishing {
    /// As in the journal.
    pub published: Published,
    /// How it was made ready for the node, where it had to be.
    pub staging: Option<Staging>,
    /// What the attacher said.
    pub publish_context: BTreeMap<String, String>,
    /// Secrets.
    pub secrets: Secrets,
    /// Namespace, name, UID and service account of the pod.
    pub pod: PodInfo,
    /// The driver wants to be told about the pod (`podInfoOnMount`).
    pub pod_info: bool,
    /// Tokens of the pod's service account for the driver (`tokenRequests`), if it takes them in the volume's context.
    pub tokens: Secrets,
    /// The driver wants to be called again from time to time (`requiresRepublish`).
    pub republish: bool,
    /// What is to be done about the pod's group.
    pub group_policy: GroupPolicy,
    /// The rest of this could not be read: it is only looked at whether the volume is there as the
    /// record says.
    pub confirm_only: bool,
}

impl Publishing {
    /// Whether it was only found as it was left, and it is not known what its driver wants.
    fn unasked(&self) -> bool {
        self.confirm_only && matches!(self.published.origin.driver, Driver::Csi { .. })
    }
}

/// Whom a volume is published to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInfo {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
    /// Service account.
    pub service_account: String,
}

/// What a driver says about this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNodeInfo {
    /// Its own name for the node.
    pub node_id: String,
    /// Most volumes of it on this node; 0 for no limit.
    pub max_volumes: i64,
    /// Where the node is, in the driver's terms.
    pub topology: BTreeMap<String, String>,
}

/// Who gives what is in a volume to the pod's group (the CSIDriver's `fsGroupPolicy`, and the pod's
/// `fsGroupChangePolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupPolicy {
    /// Nobody.
    #[default]
    None,
    /// The kubelet, all of it.
    Always,
    /// The kubelet, unless the root has the group already.
    OnRootMismatch,
}

/// A driver's volume of a pod, in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// Its origin.
    pub origin: Origin,
    /// Its name among the node's volumes, where it is one.
    pub id: Option<String>,
    /// Where it is mounted for the node.
    pub stage_path: String,
}

/// A volume to make ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSetup {
    /// Pod.
    pub uid: Uid,
    /// Name in the pod.
    pub name: String,
    /// Directory on the node.
    pub path: String,
    /// What it is.
    pub kind: VolumeKind,
    /// Group that owns what is in it.
    pub fs_group: Option<i64>,
}

impl VolumeSetup {
    /// What its driver is told, if it is a driver's.
    #[must_use]
    pub fn publishing(&self) -> Option<&Publishing> {
        match &self.kind {
            VolumeKind::Published(p) => Some(p),
            _ => None,
        }
    }
}

/// An entry of the mount journal, part of the pod's local record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Volume name.
    pub name: String,
    /// Directory on the node.
    pub path: String,
    /// Whether it is the kubelet's own directory, and so is torn down.
    pub owned: bool,
    /// A driver's volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Box<Published>>,
}

/// What is known about whether a volume may be torn down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeardownFacts {
    /// The pod is over, surely gone from the API, or its spec read in this life does not name the
    /// volume. None when that is not known.
    pub unwanted: Option<bool>,
    /// The listing of the runtime is newer than that knowledge.
    pub listing_is_newer: bool,
    /// The listing shows a container of the pod that runs, may run, or may be started.
    pub container_alive: bool,
    /// A sandbox of the pod was not seen stopped.
    pub sandbox_alive: bool,
}

/// Whether there is proof enough to tear a volume down.
#[must_use]
pub fn may_tear_down(f: TeardownFacts) -> bool {
    f.unwanted == Some(true) && f.listing_is_newer && !f.container_alive && !f.sandbox_alive
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Actual {
    /// Known to the record alone: it may be there.
    #[default]
    Uncertain,
    /// It is there. With its contents, once this kubelet has made it ready.
    Mounted,
    Absent,
}

/// What is being done about a volume of a pod. One thing at a time, also among the pods that have one volume
/// ([`Volumes::is_busy`]): the CSI specification asks it of whoever calls a driver.
#[derive(Clone, Debug)]
enum Doing {
    SetUp(VolumeKind),
    TearDown,
    /// It lets device and file system follow what the volume holds.
    Grow,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// As whom its pod has it, where it is the node's volume.
    user: String,
    path: String,
    owned: bool,
    /// A driver's volume. It has been resolved, and is in the record once `since` is.
    published: Option<Box<Published>>,
    /// The version of the pod's journal that names it first.
    since: u32,
    /// The pod wants it.
    wants: bool,
    actual: Actual,
    /// What was last made ready, to see whether contents changed.
    made: Option<VolumeKind>,
    /// When that was.
    made_at: Time,
    /// How large it is here, device and file system, as far as is known.
    followed: Option<Quantity>,
    op: Option<(OpId, Doing)>,
    error: Option<String>,
    retry_at: Time,
    failures: u32,
}

/// What pods have to do with a volume of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// A pod wants it.
    pub wanted: bool,
    /// A pod's part of it is or may be there.
    pub there: bool,
    /// Something is being done about a pod's part of it.
    pub busy: bool,
}

/// Volumes of all pods, and of the node.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    pods: BTreeMap<Uid, BTreeMap<String, State>>,
    /// Version of each pod's journal, and the one that is surely on disk. Only driver's volumes count:
    /// what the kubelet makes itself is known from the pod.
    journals: BTreeMap<Uid, (u32, u32)>,
    /// Volumes made ready for the node.
    pub node: StagedVolumes,
    /// Something is counted otherwise than before.
    changed: bool,
    /// A planted bug: volumes that are called the same are the same, whatever opens them.
    pub(crate) overlooks_secrets: bool,
}

/// How often a driver is called again that wants to be: upstream's kubelet does it whenever it syncs a pod, which is about
/// once a minute.
const REPUBLISH: Duration = Duration::from_secs(60);

/// Volumes that are not there, each with its error if it has one.
pub type Missing = Vec<(String, Option<String>)>;

/// Something to do about a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAction {
    /// Make it ready.
    SetUp(Box<VolumeSetup>),
    /// Take it down.
    TearDown {
        /// Name.
        name: String,
        /// Directory.
        path: String,
        /// A driver's volume.
        published: Option<Box<Published>>,
    },
}

impl VolumeAction {
    /// The volume of the node that it is about.
    #[must_use]
    pub fn of_node(&self) -> Option<&str> {
        let published = match self {
            Self::SetUp(setup) => setup.publishing().map(|p| &p.published),
            Self::TearDown { published, .. } => published.as_deref(),
        };
        published?.id.as_deref()
    }
}

/// Directory of a volume, or the node's path that it is.
#[must_use]
pub fn locate(pod: &Pod, volume: &Volume, config: &NodeConfig) -> Option<JournalEntry> {
    let plugin = if volume.empty_dir.is_some() {
        "empty-dir"
    } else if volume.config_map.is_some() {
        "configmap"
    } else if volume.secret.is_some() {
        "secret"
    } else if volume.projected.is_some() {
        "projected"
    } else if volume.downward_api.is_some() {
        "downward-api"
    } else if let Some(h) = &volume.host_path {
        return Some(JournalEntry { name: volume.name.clone(), path: h.path.clone(), owned: false, published: None });
    } else {
        return None;
    };
    Some(JournalEntry {
        name: volume.name.clone(),
        path: format!("{}/volumes/kubernetes.io~{plugin}/{}", config.pod_dir(&pod::uid(pod)), volume.name),
        owned: true,
        published: None,
    })
}

/// Where a driver's volume appears for a pod.
fn publish_path(pod: &Pod, published: &Published, config: &NodeConfig) -> String {
    let origin = &published.origin;
    let base = config.pod_dir(&pod::uid(pod));
    let (plugin, name) = (origin.plugin(), &origin.spec_name);
    match &origin.driver {
        Driver::HostPath { path, .. } => path.clone(),
        _ if origin.block => format!("{base}/volumeDevices/{plugin}/{name}"),
        Driver::Csi { .. } => format!("{base}/volumes/{plugin}/{name}/mount"),
        _ => format!("{base}/volumes/{plugin}/{name}"),
    }
}

/// Where a driver's volume is mounted for the node.
fn stage_path(origin: &Origin, config: &NodeConfig) -> String {
    let (plugins, name) = (format!("{}/plugins/kubernetes.io", config.root_dir), &origin.spec_name);
    match &origin.driver {
        Driver::Csi { .. } if origin.block => format!("{plugins}/csi/volumeDevices/staging/{name}"),
        // Of a fixed length, whatever the handle is.
        Driver::Csi { driver, handle, .. } => {
            format!("{plugins}/csi/{driver}/{}/globalmount", digest(handle))
        }
        Driver::Flex { driver, .. } => format!("{plugins}/flexvolume/{driver}/mounts/{name}"),
        _ => format!("{plugins}/local-volume/mounts/{name}"),
    }
}

/// Why a volume cannot be made ready now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// Something is being read; the outcome comes by itself.
    Pending,
    /// For the pod's events.
    Failed(String),
}

/// How large a volume in memory may grow: as its limit says, and never beyond what its pod, or all pods, may have (upstream's
/// `calculateEmptyDirMemorySize`). In bytes; 0 for no limit of its own.
fn memory_size(pod: &Pod, limit: i64, place: &Place) -> u64 {
    let of_pod = resources::of_pod(pod, "").resources.memory_limit_bytes;
    let of_node = place.allocatable.get("memory").map_or(0, |thousandths| thousandths / 1000);
    let of_node = i64::try_from(of_node).unwrap_or(i64::MAX);
    let least = [limit, of_pod, of_node].into_iter().filter(|bytes| *bytes > 0).min();
    least.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

fn setup_of(
    pod: &Pod,
    volume: &Volume,
    config: &NodeConfig,
    place: &Place,
    sources: &dyn PayloadSources,
) -> Result<VolumeSetup, NotReady> {
    let at = locate(pod, volume, config).ok_or_else(|| {
        NotReady::Failed(format!("volume \"{}\" is of a type that this kubelet does not mount", volume.name))
    })?;
    let kind = if let Some(e) = &volume.empty_dir {
        let (tmpfs, page_bytes) = match e.medium.as_deref().unwrap_or_default() {
            "" => (false, 0),
            "Memory" => (true, 0),
            medium => {
                let page = resources::volume_page(pod, medium);
                let failed = |e| NotReady::Failed(format!("emptyDir volume \"{}\" {e}", volume.name));
                (true, page.map_err(failed)?)
            }
        };
        let size = e.size_limit.as_ref().map_or(0, amount::units);
        let size_bytes = match (tmpfs, page_bytes) {
            (true, 0) => memory_size(pod, size, place),
            _ => u64::try_from(size).unwrap_or(0),
        };
        VolumeKind::EmptyDir { tmpfs, size_bytes, page_bytes }
    } else if let Some(h) = &volume.host_path {
        VolumeKind::HostPath { path_type: h.type_.clone().unwrap_or_default() }
    } else {
        VolumeKind::Files { tmpfs: volume.config_map.is_none(), files: files(pod, volume, place, sources)? }
    };
    Ok(VolumeSetup {
        uid: pod::uid(pod),
        name: at.name,
        path: at.path,
        kind,
        fs_group: spec(pod).security_context.as_ref().and_then(|s| s.fs_group),
    })
}

impl Volumes {
    /// Takes over what a pod's record says may be mounted; what of it is surely there is what the disk shows, where that
    /// could be read.
    pub fn restore(&mut self, uid: &Uid, pod: &Pod, journal: &[JournalEntry], found: Option<&Found>) {
        self.changed = true;
        let volumes = self.pods.entry(uid.clone()).or_default();
        for e in journal {
            volumes.entry(e.name.clone()).or_insert_with(|| State {
                user: user_of(pod).to_owned(),
                path: e.path.clone(),
                owned: e.owned,
                published: e.published.clone(),
                actual: found.map_or(Actual::Uncertain, |found| found.actual(pod, e)),
                ..State::default()
            });
        }
    }

    /// The mount journal of a pod, all volumes that may be mounted for it, with its version.
    #[must_use]
    pub fn journal(&self, pod: &Pod, config: &NodeConfig) -> (Vec<JournalEntry>, u32) {
        let uid = pod::uid(pod);
        let of_drivers = self.pods.get(&uid).into_iter().flatten().filter_map(|(name, v)| {
            let published = v.published.clone()?;
            Some(JournalEntry { name: name.clone(), path: v.path.clone(), owned: v.owned, published: Some(published) })
        });
        // Also those that no container has: one that is added may have it later, and this is not written anew then.
        let own = spec(pod).volumes.iter().flatten().filter_map(|v| locate(pod, v, config));
        (own.chain(of_drivers).collect(), self.journal_version(&uid))
    }

    /// Version of a pod's journal.
    #[must_use]
    pub fn journal_version(&self, uid: &str) -> u32 {
        self.journals.get(uid).map_or(0, |(version, _)| *version)
    }

    /// A version of a pod's journal is on disk.
    pub fn journal_saved(&mut self, uid: &str, version: u32) {
        if let Some((_, saved)) = self.journals.get_mut(uid) {
            *saved = version.max(*saved);
        }
    }

    /// What pods have to do with the volumes of the node, by unique name.
    #[must_use]
    pub fn uses(&self) -> BTreeMap<&str, Use> {
        let mut uses: BTreeMap<&str, Use> = BTreeMap::new();
        for v in self.pods.values().flat_map(BTreeMap::values) {
            if let Some(id) = v.of_node() {
                let of = uses.entry(id).or_default();
                of.wanted |= v.wants;
                of.there |= v.op.is_some() || v.actual != Actual::Absent;
                of.busy |= v.op.is_some();
            }
        }
        uses
    }

    /// FlexVolumes of pods, as far as they may be mistaken for one that this pod has and that is not known yet.
    fn named(&self, uid: &str, pod: &Pod) -> Vec<(String, Origin)> {
        let of_pod = self.pods.get(uid);
        let is_new = |v: &Volume| {
            (v.flex_volume.is_some() || v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
                && of_pod.and_then(|of| of.get(&v.name)).is_none_or(|s| s.published.is_none())
        };
        if !spec(pod).volumes.iter().flatten().any(is_new) {
            return Vec::new();
        }
        let published = self.pods.values().flat_map(BTreeMap::values).filter_map(|s| s.published.as_ref());
        let flex = published.filter(|p| matches!(p.origin.driver, Driver::Flex { .. }));
        flex.filter_map(|p| Some((p.id.clone()?, p.origin.clone()))).collect()
    }

    /// Volumes of the node that one pod at a time may have and of which another pod than this has a part or may have one; none
    /// where this one lacks no part. Where a volume has several modes, it is not known which a pod means (upstream's
    /// `IsVolumeMountedElsewhere`, `pkg/volume/util/operationexecutor`).
    fn taken(&self, uid: &str, pod: &Pod) -> BTreeSet<String> {
        let of_pod = self.pods.get(uid);
        let lacks = |v: &Volume| {
            (v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
                && of_pod.and_then(|of| of.get(&v.name)).is_some_and(|s| s.actual == Actual::Absent)
        };
        if !spec(pod).volumes.iter().flatten().any(lacks) {
            return BTreeSet::new();
        }
        let others = self.pods.iter().filter(|(other, _)| ***other != *uid).flat_map(|(_, of)| of.values());
        let there = others.filter(|s| s.op.is_some() || s.actual != Actual::Absent);
        let published = there.filter_map(|s| s.published.as_deref());
        let alone = |p: &&Published| matches!(p.origin.access_modes.as_slice(), [one] if one == "ReadWriteOncePod");
        published.filter(alone).filter_map(|p| p.id.clone()).collect()
    }

    /// For each volume of the node that can be attached: who has a part in it, or is to get one.
    #[must_use]
    pub fn users_in_use(&self) -> Users {
        let mut all: Users = self.node.in_use().map(|id| (id.to_owned(), BTreeSet::new())).collect();
        for v in self.pods.values().flat_map(BTreeMap::values) {
            if let Some(users) = v.of_node().and_then(|id| all.get_mut(id)) {
                users.insert(v.user.clone());
            }
        }
        all
    }

    /// Pods with a part in a volume of the node.
    pub fn users(&self, id: &str) -> Vec<Uid> {
        let part = |v: &State| v.of_node() == Some(id);
        self.pods.iter().filter(|(_, volumes)| volumes.values().any(part)).map(|(uid, _)| uid.clone()).collect()
    }

    /// What to do for a pod whose volumes are wanted: those that its containers have.
    pub fn wanted(
        &mut self,
        now: Time,
        pod: &Pod,
        config: &NodeConfig,
        place: &Place,
        sources: &dyn PayloadSources,
    ) -> Vec<VolumeAction> {
        let uid = pod::uid(pod);
        let mut out = Vec::new();
        let flex = (!self.overlooks_secrets).then(|| self.named(&uid, pod));
        let named = flex.as_deref();
        let taken = self.taken(&uid, pod);
        let volumes = self.pods.entry(uid.clone()).or_default();
        for v in pod::used_volumes(pod) {
            let state = volumes.entry(v.name.clone()).or_default();
            self.changed |= !state.wants;
            state.wants = true;
            if state.user.is_empty() {
                user_of(pod).clone_into(&mut state.user);
            }
            if state.op.is_some() || state.retry_at > now {
                continue;
            }
            // From here on it waits for something else, or fails anew: a time that has passed wakes nobody.
            state.retry_at = Time::default();
            let journal = self.journals.entry(uid.clone()).or_default();
            match drivers_part(now, pod, v, config, sources, state, journal, named, &taken, &mut self.node) {
                Ok(None) => {}
                Ok(Some(Part::Unready)) => continue,
                Ok(Some(Part::SetUp(setup))) => {
                    out.push(VolumeAction::SetUp(setup));
                    continue;
                }
                Err(NotReady::Pending) => continue,
                Err(NotReady::Failed(e)) => {
                    state.failures += 1;
                    state.retry_at = now + backoff(state.failures);
                    state.error = Some(e);
                    continue;
                }
            }
            match setup_of(pod, v, config, place, sources) {
                Ok(setup) => {
                    state.path.clone_from(&setup.path);
                    state.owned = !matches!(setup.kind, VolumeKind::HostPath { .. });
                    if state.actual != Actual::Mounted || state.made.as_ref() != Some(&setup.kind) {
                        out.push(VolumeAction::SetUp(Box::new(setup)));
                    } else {
                        state.error = None;
                    }
                }
                // What is mounted stays as it is when its source cannot be read.
                Err(NotReady::Pending) => {}
                Err(NotReady::Failed(e)) => {
                    state.failures += 1;
                    state.retry_at = now + backoff(state.failures);
                    state.error = Some(e);
                }
            }
        }
        out
    }

    /// What to do for a pod about whose volumes there is proof that they may go.
    pub fn unwanted(&mut self, now: Time, uid: &str) -> Vec<VolumeAction> {
        let Some(volumes) = self.pods.get_mut(uid) else { return Vec::new() };
        self.changed |= volumes.values().any(|v| v.wants);
        for v in volumes.values_mut().filter(|v| v.wants) {
            // What failed was to make it ready: to undo it waits for none of that.
            (v.wants, v.failures, v.retry_at) = (false, 0, Time::default());
        }
        volumes.retain(|_, v| v.op.is_some() || (v.owned && v.actual != Actual::Absent));
        volumes
            .iter_mut()
            .filter(|(_, v)| v.op.is_none() && v.retry_at <= now)
            .map(|(name, v)| {
                // From here on it is done, or waits for somebody else: a time that has passed wakes nobody.
                v.retry_at = Time::default();
                VolumeAction::TearDown { name: name.clone(), path: v.path.clone(), published: v.published.clone() }
            })
            .collect()
    }

    /// An action was started under an id.
    pub fn started(&mut self, uid: &str, name: &str, op: OpId, kind: Option<VolumeKind>) {
        if let Some(v) = self.pods.get_mut(uid).and_then(|p| p.get_mut(name)) {
            v.op = Some((op, kind.map_or(Doing::TearDown, Doing::SetUp)));
            if v.actual == Actual::Absent {
                v.actual = Actual::Uncertain;
            }
        }
    }

    /// An action ended. Returns an error to tell the pod's events of.
    pub fn done(
        &mut self,
        now: Time,
        uid: &str,
        name: &str,
        op: OpId,
        outcome: &Result<Reply, OpError>,
    ) -> Option<String> {
        let v = self.pods.get_mut(uid)?.get_mut(name)?;
        let kind = match v.op.take_if(|(id, _)| *id == op)?.1 {
            Doing::SetUp(kind) => Some(kind),
            Doing::TearDown => None,
            // It is there as it was, whichever way that ended.
            Doing::Grow => return None,
        };
        let was_set_up = kind.is_some();
        let was_there = v.actual == Actual::Mounted;
        let told = match outcome {
            Ok(_) => {
                v.actual = if was_set_up { Actual::Mounted } else { Actual::Absent };
                v.made = kind;
                v.made_at = now;
                v.error = None;
                v.failures = 0;
                v.retry_at = Time::default();
                None
            }
            Err(e) => {
                // A changed payload that could not be written leaves the mount as it was.
                if v.actual != Actual::Mounted || !was_set_up {
                    v.actual = Actual::Uncertain;
                }
                v.failures += 1;
                v.retry_at = now + backoff(v.failures);
                v.error = Some(e.to_string());
                v.error.clone()
            }
        };
        self.changed |= was_there != (v.actual == Actual::Mounted);
        if told.is_some() && was_set_up && !was_there {
            let csi = v.published.as_ref().filter(|p| matches!(p.origin.driver, Driver::Csi { .. }));
            // Where somebody has a part of it, it is there.
            if let Some(id) = csi.and_then(|p| p.id.clone()).filter(|id| !self.has_part(id)) {
                self.node.doubt(&id);
            }
        }
        told
    }

    /// Whether a pod has a part of a volume of the node.
    fn has_part(&self, id: &str) -> bool {
        let mut all = self.pods.values().flat_map(BTreeMap::values);
        all.any(|v| v.actual == Actual::Mounted && v.of_node() == Some(id))
    }

    /// The volume of the node that a volume of a pod is a part of.
    #[must_use]
    pub fn of_node(&self, uid: &str, name: &str) -> Option<&str> {
        self.pods.get(uid)?.get(name)?.of_node()
    }

    /// Where a driver's volume of a pod comes from, once that is known.
    #[must_use]
    pub fn origin(&self, uid: &str, name: &str) -> Option<&Origin> {
        Some(&self.pods.get(uid)?.get(name)?.published.as_ref()?.origin)
    }

    /// Whether something is being done about a volume of the node, for it as a whole or for any pod. Nothing else is begun
    /// meanwhile: a driver is asked one thing at a time about a volume.
    #[must_use]
    pub fn is_busy(&self, id: &str) -> bool {
        let mut all = self.pods.values().flat_map(BTreeMap::values);
        self.node.is_busy(id) || all.any(|v| v.op.is_some() && v.of_node() == Some(id))
    }

    /// Directories of a pod's volumes, once all are there that its containers have. Else what is missing and why.
    ///
    /// # Errors
    /// Names of the volumes that are not ready, each with its error if it has one.
    pub fn ready(&self, pod: &Pod) -> Result<BTreeMap<String, String>, Missing> {
        let uid = pod::uid(pod);
        let mut there = BTreeMap::new();
        let mut missing = Vec::new();
        for v in pod::used_volumes(pod) {
            match self.pods.get(&uid).and_then(|p| p.get(&v.name)) {
                Some(s) if s.is_ready() => {
                    there.insert(v.name.clone(), s.path.clone());
                }
                Some(s) => missing.push((v.name.clone(), s.error.clone())),
                None => missing.push((v.name.clone(), None)),
            }
        }
        if missing.is_empty() { Ok(there) } else { Err(missing) }
    }

    /// Whether nothing of a pod is or may be mounted.
    #[must_use]
    pub fn all_gone(&self, uid: &str) -> bool {
        self.pods
            .get(uid)
            .is_none_or(|p| p.values().all(|v| v.op.is_none() && (!v.owned || v.actual == Actual::Absent)))
    }

    /// When something of a pod is to be tried again.
    #[must_use]
    pub fn next_retry(&self, uid: &str) -> Option<Time> {
        let waits = |v: &&State| v.op.is_none() && v.error.is_some() && v.retry_at > Time::default();
        self.pods.get(uid)?.values().filter(waits).map(|v| v.retry_at).min()
    }

    /// When a volume of a pod is to be published again.
    #[must_use]
    pub fn next_republish(&self, uid: &str) -> Option<Time> {
        let idle = |v: &&State| v.op.is_none() && v.error.is_none() && v.actual == Actual::Mounted;
        self.pods.get(uid)?.values().filter(idle).filter_map(State::republish_at).min()
    }

    /// Forgets a pod.
    pub fn forget(&mut self, uid: &str) {
        self.changed |= self.pods.remove(uid).is_some();
        self.journals.remove(uid);
    }
}

impl State {
    /// The volume of the node that it is a part of.
    fn of_node(&self) -> Option<&str> {
        self.published.as_ref()?.id.as_deref()
    }

    /// Whether a container may start with it: it is there, and this kubelet has seen to it.
    fn is_ready(&self) -> bool {
        self.actual == Actual::Mounted && self.made.is_some()
    }

    /// Whether it may be there, and this kubelet has not seen to it yet.
    fn may_be_found(&self) -> bool {
        self.actual != Actual::Absent && !self.is_ready()
    }

    /// When it is to be published again, if its driver wants that.
    fn republish_at(&self) -> Option<Time> {
        match &self.made {
            Some(VolumeKind::Published(p)) if p.republish || p.unasked() => Some(self.made_at + REPUBLISH),
            _ => None,
        }
    }
}

/// What comes of looking at a driver's volume.
enum Part {
    /// It is there, or something else has to happen first.
    Unready,
    /// It is to be published.
    SetUp(Box<VolumeSetup>),
}

/// Looks at a driver's volume of a pod. None when it is the kubelet's own kind.
#[expect(clippy::too_many_arguments, reason = "one volume, and everything that it is made of")]
fn drivers_part(
    now: Time,
    pod: &Pod,
    volume: &Volume,
    config: &NodeConfig,
    sources: &dyn PayloadSources,
    state: &mut State,
    journal: &mut (u32, u32),
    named: Option<&[(String, Origin)]>,
    taken: &BTreeSet<String>,
    node: &mut StagedVolumes,
) -> Result<Option<Part>, NotReady> {
    if state.published.is_none() {
        let Some(origin) = origin::resolve(pod, volume, sources)? else { return Ok(None) };
        let published = Published { id: origin.unique_name(), stage_path: stage_path(&origin, config), origin };
        if let (Some(id), Some(named)) = (&published.id, named) {
            let staged = node.get(id).map(|s| &s.origin);
            let others = named.iter().filter(|(name, _)| name == id).map(|(_, origin)| origin).chain(staged);
            if others.into_iter().any(|other| published.origin.is_another(other)) {
                let text = format!("another volume is called {id} on this node, with other options or by a claim");
                return Err(NotReady::Failed(text));
            }
        }
        state.path = publish_path(pod, &published, config);
        state.owned = !matches!(published.origin.driver, Driver::HostPath { .. });
        // Nothing was done for it in any life of this kubelet: else the record would name it.
        state.actual = Actual::Absent;
        journal.0 += 1;
        state.since = journal.0;
        state.published = Some(Box::new(published));
    }
    let Some(published) = state.published.clone() else { return Ok(None) };
    if state.since > journal.1 {
        return Ok(Some(Part::Unready));
    }
    // What is there needs nothing more to be read for it.
    if state.is_ready() && state.republish_at().is_none_or(|at| now < at) {
        state.error = None;
        return Ok(Some(Part::Unready));
    }
    let inputs = match driver::inputs(pod, &published, config, sources) {
        // The record and the disk are enough to go on with what was there before a restart. Where that was tried and has failed,
        // what is being read is waited for first: it may be read anew each time that it is tried again.
        Err(why) if state.may_be_found() && (why != NotReady::Pending || state.failures == 0) => {
            driver::Inputs::confirm_only()
        }
        // It is there, and its driver is called again as soon as what lacks has been read: that is no failure to back off from.
        Err(_) if state.is_ready() => {
            state.error = None;
            return Ok(Some(Part::Unready));
        }
        inputs => inputs?,
    };
    let mut staging = None;
    if let Some(id) = &published.id {
        if state.actual == Actual::Absent && taken.contains(id) {
            let text = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            state.error = Some(text.to_owned());
            // Whoever has it is done with it some day, and its users are told of that.
            state.retry_at = Time::default();
            return Ok(Some(Part::Unready));
        }
        // What may be there already was told of before.
        let newcomer = (state.actual == Actual::Absent).then_some(state.user.as_str());
        let (path, stage) = (published.stage_path.clone(), inputs.stage.clone());
        match node.want(id, &published.origin, path, stage, newcomer) {
            staged::Progress::Staged(s) => staging = Some(*s),
            staged::Progress::Pending => return Ok(Some(Part::Unready)),
            staged::Progress::Failed(error) => {
                state.error = Some(error);
                // The node's volume is tried again, and tells its users.
                state.retry_at = Time::default();
                return Ok(Some(Part::Unready));
            }
        }
    }
    let kind = match &published.origin.driver {
        Driver::HostPath { path_type, .. } => VolumeKind::HostPath { path_type: path_type.clone() },
        _ => VolumeKind::Published(Box::new(Publishing {
            published: *published,
            staging,
            publish_context: inputs.publish_context,
            secrets: inputs.publish_secrets,
            pod: PodInfo {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod::uid(pod),
                service_account: spec(pod).service_account_name.clone().unwrap_or_default(),
            },
            pod_info: inputs.pod_info,
            tokens: inputs.tokens,
            republish: inputs.republish,
            group_policy: inputs.group_policy,
            confirm_only: inputs.stage.confirm_only,
        })),
    };
    let setup = VolumeSetup {
        uid: pod::uid(pod),
        name: volume.name.clone(),
        path: state.path.clone(),
        kind,
        fs_group: spec(pod).security_context.as_ref().and_then(|s| s.fs_group),
    };
    Ok(Some(Part::SetUp(Box::new(setup))))
}

fn backoff(failures: u32) -> Duration {
    Duration::from_millis(500 << failures.clamp(1, 8).saturating_sub(1))
}

#[cfg(test)]
mod tests;
