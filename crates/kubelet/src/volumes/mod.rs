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

mod payload;

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use k8s_openapi::api::core::v1::{Pod, Volume};
use serde::{Deserialize, Serialize};

pub use payload::{FileEntry, PayloadSources, files};

use crate::amount;
use crate::config::NodeConfig;
use crate::effects::{OpError, OpId, Reply};
use crate::runtime::Uid;
use crate::spec::env::Place;
use crate::spec::pod::{self, spec};

/// What to make of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// An empty directory that lives with the pod.
    EmptyDir {
        /// In memory.
        tmpfs: bool,
        /// Largest size in bytes; 0 for none.
        size_bytes: u64,
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

/// An entry of the mount journal, part of the pod's local record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Volume name.
    pub name: String,
    /// Directory on the node.
    pub path: String,
    /// Whether it is the kubelet's own directory, and so is torn down.
    pub owned: bool,
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
    Mounted,
    Absent,
}

#[derive(Clone, Debug, Default)]
struct State {
    path: String,
    owned: bool,
    actual: Actual,
    /// What was last made ready, to see whether contents changed.
    made: Option<VolumeKind>,
    op: Option<(OpId, Option<VolumeKind>)>,
    error: Option<String>,
    retry_at: Time,
    failures: u32,
}

/// Volumes of all pods.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    pods: BTreeMap<Uid, BTreeMap<String, State>>,
}

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
    },
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
        return Some(JournalEntry { name: volume.name.clone(), path: h.path.clone(), owned: false });
    } else {
        return None;
    };
    Some(JournalEntry {
        name: volume.name.clone(),
        path: format!("{}/volumes/kubernetes.io~{plugin}/{}", config.pod_dir(&pod::uid(pod)), volume.name),
        owned: true,
    })
}

/// The mount journal of a pod: all volumes that may be mounted for it.
#[must_use]
pub fn journal(pod: &Pod, config: &NodeConfig) -> Vec<JournalEntry> {
    spec(pod).volumes.iter().flatten().filter_map(|v| locate(pod, v, config)).collect()
}

/// Why a volume cannot be made ready now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// Something is being read; the outcome comes by itself.
    Pending,
    /// For the pod's events.
    Failed(String),
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
        let tmpfs = match e.medium.as_deref() {
            None | Some("") => false,
            Some("Memory") => true,
            Some(other) => {
                return Err(NotReady::Failed(format!(
                    "emptyDir volume \"{}\" has an unsupported medium {other}",
                    volume.name
                )));
            }
        };
        let size = e.size_limit.as_ref().map_or(0, amount::units);
        VolumeKind::EmptyDir { tmpfs, size_bytes: u64::try_from(size).unwrap_or(0) }
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
    /// Takes over what a pod's record says may be mounted.
    pub fn restore(&mut self, uid: &Uid, journal: &[JournalEntry]) {
        let volumes = self.pods.entry(uid.clone()).or_default();
        for e in journal {
            volumes.entry(e.name.clone()).or_insert_with(|| State {
                path: e.path.clone(),
                owned: e.owned,
                ..State::default()
            });
        }
    }

    /// What to do for a pod whose volumes are wanted.
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
        let volumes = self.pods.entry(uid).or_default();
        for v in spec(pod).volumes.iter().flatten() {
            let state = volumes.entry(v.name.clone()).or_default();
            if state.op.is_some() || state.retry_at > now {
                continue;
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
        volumes.retain(|_, v| v.op.is_some() || (v.owned && v.actual != Actual::Absent));
        volumes
            .iter()
            .filter(|(_, v)| v.op.is_none() && v.retry_at <= now)
            .map(|(name, v)| VolumeAction::TearDown { name: name.clone(), path: v.path.clone() })
            .collect()
    }

    /// An action was started under an id.
    pub fn started(&mut self, uid: &str, name: &str, op: OpId, kind: Option<VolumeKind>) {
        if let Some(v) = self.pods.get_mut(uid).and_then(|p| p.get_mut(name)) {
            v.op = Some((op, kind));
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
        let (_, kind) = v.op.take_if(|(id, _)| *id == op)?;
        let was_set_up = kind.is_some();
        match outcome {
            Ok(_) => {
                v.actual = if was_set_up { Actual::Mounted } else { Actual::Absent };
                v.made = kind;
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
        }
    }

    /// Directories of a pod's volumes, once all of them are there. Else what is missing and why.
    ///
    /// # Errors
    /// Names of the volumes that are not ready, each with its error if it has one.
    pub fn ready(&self, pod: &Pod) -> Result<BTreeMap<String, String>, Missing> {
        let uid = pod::uid(pod);
        let mut there = BTreeMap::new();
        let mut missing = Vec::new();
        for v in spec(pod).volumes.iter().flatten() {
            match self.pods.get(&uid).and_then(|p| p.get(&v.name)) {
                Some(s) if s.actual == Actual::Mounted => {
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
        self.pods.get(uid)?.values().filter(|v| v.op.is_none() && v.error.is_some()).map(|v| v.retry_at).min()
    }

    /// Forgets a pod.
    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
    }
}

fn backoff(failures: u32) -> Duration {
    Duration::from_millis(500 << failures.clamp(1, 8).saturating_sub(1))
}

#[cfg(test)]
mod tests;
