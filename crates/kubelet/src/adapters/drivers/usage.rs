//! How full the drivers' volumes are, and whether their drivers find them well.
//!
//! A driver may hang, and a file server may be gone: each volume is asked about by itself, within a time, not again
//! while it has not answered, and at most once a minute. Who asks meanwhile gets what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_disks::filesystem;
use carrack_engine::Time;

use super::{Drivers, blocking};
use crate::adapters::now;
use crate::effects::OpError;
use crate::runtime::Uid;
use crate::server::{ClaimReference, FsStats, VolumeHealth, VolumeStats};
use crate::volumes::{Driver, Published};

/// How long an answer counts.
const AGE: Duration = Duration::from_secs(60);
/// How long a volume may take to answer somebody who waits.
const LIMIT: Duration = Duration::from_secs(5);

/// A volume that a pod has.
#[derive(Clone, Debug)]
pub(super) struct Mounted {
    pub path: String,
    pub published: Published,
}

type Key = (Uid, String);

#[derive(Debug, Default)]
struct State {
    mounted: BTreeMap<Key, Mounted>,
    known: BTreeMap<Key, (Time, VolumeStats)>,
    asked: BTreeSet<Key>,
}

/// What is known of all volumes of pods.
#[derive(Clone, Debug, Default)]
pub struct Usages(Arc<Mutex<State>>);

impl Usages {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Entries are put in and taken out whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn mounted(&self, uid: &Uid, name: &str, mounted: Mounted) {
        self.lock().mounted.insert((uid.clone(), name.to_owned()), mounted);
    }
    pub(super) fn unmounted(&self, uid: &Uid, name: &str) {
        let key = (uid.clone(), name.to_owned());
        let mut state = self.lock();
        state.mounted.remove(&key);
        state.known.remove(&key);
    }
    /// Volumes of which too little is known.
    fn due(&self, at: Time) -> Vec<(Key, Mounted)> {
        let mut state = self.lock();
        let State { mounted, known, asked } = &mut *state;
        let old = |key: &Key| known.get(key).is_none_or(|(when, _)| at.since(*when) >= AGE);
        let due: Vec<_> = mounted.iter().filter(|(key, _)| !asked.contains(*key) && old(key)).collect();
        let due: Vec<(Key, Mounted)> = due.into_iter().map(|(k, m)| (k.clone(), m.clone())).collect();
        asked.extend(due.iter().map(|(key, _)| key.clone()));
        due
    }
    fn answered(&self, key: Key, at: Time, stats: Option<VolumeStats>) {
        let mut state = self.lock();
        state.asked.remove(&key);
        match stats {
            Some(stats) if state.mounted.contains_key(&key) => {
                state.known.insert(key, (at, stats));
            }
            _ => {
                state.known.remove(&key);
            }
        }
    }
    fn all(&self) -> Vec<(Uid, VolumeStats)> {
        self.lock().known.iter().map(|((uid, _), (_, stats))| (uid.clone(), stats.clone())).collect()
    }
}

impl Drivers {
    /// What is known of the volumes of pods, by the pods' UIDs.
    pub async fn usage(&self) -> Vec<(Uid, VolumeStats)> {
        let mut asking = tokio::task::JoinSet::new();
        for (key, mounted) in self.usages.due(now()) {
            let drivers = self.clone();
            // It goes on when nobody waits any more, and is known to the next who asks.
            asking.spawn(async move {
                let task = tokio::spawn(async move {
                    let stats = drivers.measure(&key, &mounted).await;
                    let stats = stats.inspect_err(|error| tracing::debug!(%error, volume = key.1, "not measured")).ok();
                    drivers.usages.answered(key, now(), stats);
                });
                drop(tokio::time::timeout(LIMIT, task).await);
            });
        }
        while asking.join_next().await.is_some() {}
        self.usages.all()
    }

    async fn measure(&self, key: &Key, m: &Mounted) -> Result<VolumeStats, OpError> {
        let at = now();
        let mut stats = VolumeStats {
            name: key.1.clone(),
            pvc_ref: m.published.origin.claim.clone().map(|(namespace, name)| ClaimReference { name, namespace }),
            fs: FsStats {
                time: at.meta(),
                available_bytes: None,
                capacity_bytes: None,
                used_bytes: None,
                inodes_free: None,
                inodes: None,
            },
            inodes_used: None,
            volume_health_stats: None,
        };
        if let Driver::Csi { .. } = &m.published.origin.driver
            && let Some((usage, abnormal)) = self.csi.stats(&m.path, &m.published, &key.0, &key.1).await?
        {
            stats.fs.available_bytes = usage.bytes.map(|u| u.0);
            stats.fs.capacity_bytes = usage.bytes.map(|u| u.1);
            stats.fs.used_bytes = usage.bytes.map(|u| u.2);
            stats.fs.inodes_free = usage.inodes.map(|u| u.0);
            stats.fs.inodes = usage.inodes.map(|u| u.1);
            stats.inodes_used = usage.inodes.map(|u| u.2);
            stats.volume_health_stats = abnormal.map(|abnormal| VolumeHealth { abnormal });
            return Ok(stats);
        }
        if m.published.origin.block {
            return Ok(stats);
        }
        if let Driver::Flex { driver, .. } = &m.published.origin.driver
            && !self.flex.capabilities(driver).await?.supports_metrics
        {
            return super::failed(format!("FlexVolume driver {driver} does not support metrics"));
        }
        let path = PathBuf::from(&m.path);
        let u = blocking(move || Ok(filesystem::usage(&path)?)).await?;
        stats.fs.available_bytes = Some(u.available_bytes);
        stats.fs.capacity_bytes = Some(u.total_bytes);
        stats.fs.used_bytes = Some(u.used_bytes);
        stats.fs.inodes_free = Some(u.inodes_free);
        stats.fs.inodes = Some(u.inodes);
        stats.inodes_used = Some(u.inodes.saturating_sub(u.inodes_free));
        Ok(stats)
    }
}
