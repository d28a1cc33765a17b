//! How long operations took: on volumes, as upstream counts them (`storage_operation_duration_seconds`,
//! `csi_operations_seconds`, `pkg/volume/util/metrics.go`), and of others in the same buckets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::effects::Op;
use crate::volumes::{Published, VolumeKind, plugin_name};

/// Upper bounds of upstream's buckets, in seconds.
pub const BUCKETS_S: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// An operation on a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StorageOperation {
    /// Upstream's name of the volume's plugin.
    pub plugin: String,
    /// Upstream's name of the operation.
    pub operation: &'static str,
}

/// A call to a CSI driver, by how it ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CsiCall {
    /// The driver.
    pub driver: String,
    /// The method's full name.
    pub method: String,
    /// The name of the status.
    pub status: &'static str,
}

/// How long operations of one kind took that ended alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub took: Duration,
    /// How many were within each of [`BUCKETS_S`].
    pub within: [u64; BUCKETS_S.len()],
}

impl Histogram {
    /// Counts others in.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.took += other.took;
        for (within, more) in self.within.iter_mut().zip(other.within) {
            *within += more;
        }
    }
}

/// All of them by what tells them apart, since the kubelet started.
#[derive(Debug)]
pub struct Histograms<K>(Arc<Mutex<BTreeMap<K, Histogram>>>);

impl<K> Clone for Histograms<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Histograms<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Operations on volumes, and whether they succeeded.
pub type StorageTimes = Histograms<(StorageOperation, bool)>;
/// Calls to CSI drivers (`csi_operations_seconds`).
pub type CsiTimes = Histograms<CsiCall>;

impl<K: Ord + Clone> Histograms<K> {
    /// One ended after this time.
    pub fn ended(&self, key: K, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let times = all.entry(key).or_default();
        times.count += 1;
        times.took += took;
        for (bound_s, within) in BUCKETS_S.iter().zip(&mut times.within) {
            *within += u64::from(took.as_secs_f64() <= *bound_s);
        }
    }

    /// What there is to tell.
    #[must_use]
    pub fn all(&self) -> Vec<(K, Histogram)> {
        let all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.iter().map(|(key, times)| (key.clone(), *times)).collect()
    }
}

/// What an operation is to upstream, if it is one on a volume.
#[must_use]
pub fn operation(op: &Op) -> Option<StorageOperation> {
    let of = |published: Option<&Published>, path: &str, files: &'static str, device: &'static str| {
        let block = published.is_some_and(|p| p.origin.block);
        let operation = if block { device } else { files };
        StorageOperation { plugin: plugin_name(published, path), operation }
    };
    Some(match op {
        Op::SetUpVolume(setup) => {
            let published = match &setup.kind {
                VolumeKind::Published(p) => Some(&p.published),
                _ => None,
            };
            of(published, &setup.path, "volume_mount", "map_volume")
        }
        Op::TearDownVolume { path, published, .. } => of(published.as_deref(), path, "volume_unmount", "unmap_volume"),
        Op::UnstageVolume(staging) => {
            let published = Published { origin: staging.origin.clone(), id: None, stage_path: String::new() };
            of(Some(&published), "", "unmount_device", "unmap_device")
        }
        Op::ExpandVolume(expanding) => of(Some(&expanding.published), "", "volume_fs_resize", "volume_fs_resize"),
        _ => return None,
    })
}
