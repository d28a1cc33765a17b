//! How full the drivers' volumes are, and whether their drivers find them well.
//!
//! A driver may hang, and a file server may be gone: each volume is asked about by itself, within a time, not again
//! while it has not answered, and at most once a minute. Who asks meanwhile gets what is known. Drivers that judge how their
//! volumes are get asked each minute in any case, and the core hears of what is abnormal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_csi::v1::VolumeCondition;
use carrack_disks::filesystem;
use carrack_engine::Time;

use super::{Drivers, blocking};
use crate::adapters::now;
use crate::adapters::stats::told;
use crate::effects::{In, OpError};
use crate::runtime::Uid;
use crate::server::{ClaimReference, FsStats, VolumeHealth, VolumeStats};
use crate::volumes::{Driver, Published};

/// How long an answer counts.
const AGE: Duration = Duration::from_secs(60);
/// How often drivers that judge their volumes are looked at; they are asked once in [`AGE`].
const LOOK: Duration = Duration::from_secs(10);
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
    /// What drivers find wrong.
    abnormal: BTreeMap<Key, String>,
    /// Of those, what the core has not heard of yet.
    news: BTreeSet<Key>,
}

impl State {
    /// What a driver finds wrong with a volume, if anything: news where that is another thing than before.
    fn judged(&mut self, key: &Key, wrong: Option<String>) {
        match wrong {
            Some(message) => {
                if self.abnormal.get(key) != Some(&message) {
                    self.abnormal.insert(key.clone(), message);
                    self.news.insert(key.clone());
                }
            }
            None => {
                self.abnormal.remove(key);
            }
        }
    }
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
        state.judged(&key, None);
    }
    /// Volumes of which too little is known, of those that are meant.
    fn due(&self, at: Time, meant: impl Fn(&Mounted) -> bool) -> Vec<(Key, Mounted)> {
        let mut state = self.lock();
        let State { mounted, known, asked, .. } = &mut *state;
        let old = |key: &Key| known.get(key).is_none_or(|(when, _)| at.since(*when) >= AGE);
        let due: Vec<_> = mounted.iter().filter(|(key, m)| !asked.contains(*key) && old(key) && meant(m)).collect();
        let due: Vec<(Key, Mounted)> = due.into_iter().map(|(k, m)| (k.clone(), m.clone())).collect();
        asked.extend(due.iter().map(|(key, _)| key.clone()));
        due
    }
    fn answered(&self, key: Key, at: Time, answer: Option<(VolumeStats, Option<VolumeCondition>)>) {
        let mut state = self.lock();
        state.asked.remove(&key);
        match answer {
            Some((stats, condition)) if state.mounted.contains_key(&key) => {
                state.judged(&key, condition.filter(|c| c.abnormal).map(|c| c.message));
                state.known.insert(key, (at, stats));
            }
            _ => {
                state.known.remove(&key);
            }
        }
    }
    /// What is found wrong since the last time that this was asked.
    fn news(&self) -> Vec<In> {
        let mut state = self.lock();
        let news = std::mem::take(&mut state.news).into_iter();
        news.filter_map(|(uid, volume)| {
            let key = (uid, volume);
            let message = state.abnormal.get(&key)?.clone();
            Some(In::VolumeAbnormal { uid: key.0, volume: key.1, message })
        })
        .collect()
    }
    fn all(&self) -> Vec<(Uid, VolumeStats)> {
        self.lock().known.iter().map(|((uid, _), (_, stats))| (uid.clone(), stats.clone())).collect()
    }
}

impl Drivers {
    /// What is known of the volumes of pods, by the pods' UIDs.
    pub async fn usage(&self) -> Vec<(Uid, VolumeStats)> {
        self.ask(|_| true).await;
        self.usages.all()
    }

    /// Asks the drivers that judge their volumes, again and again, and reports what they find wrong.
    pub fn follow_health(&self, report: impl Fn(In) + Send + 'static) -> tokio::task::JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                this.ask(|m| this.csi.judges(&m.published)).await;
                this.usages.news().into_iter().for_each(&report);
                tokio::time::sleep(LOOK).await;
            }
        })
    }

    async fn ask(&self, meant: impl Fn(&Mounted) -> bool) {
        let mut asking = tokio::task::JoinSet::new();
        for (key, mounted) in self.usages.due(now(), meant) {
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
    }

    async fn measure(&self, key: &Key, m: &Mounted) -> Result<(VolumeStats, Option<VolumeCondition>), OpError> {
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
                inodes_used: None,
            },
            volume_health_stats: None,
        };
        if let Driver::Csi { .. } = &m.published.origin.driver
            && let Some((usage, condition)) = self.csi.stats(&m.path, &m.published, &key.0, &key.1).await?
        {
            stats.fs.available_bytes = usage.bytes.map(|u| u.0);
            stats.fs.capacity_bytes = usage.bytes.map(|u| u.1);
            stats.fs.used_bytes = usage.bytes.map(|u| u.2);
            stats.fs.inodes_free = usage.inodes.map(|u| u.0);
            stats.fs.inodes = usage.inodes.map(|u| u.1);
            stats.fs.inodes_used = usage.inodes.map(|u| u.2);
            stats.volume_health_stats = condition.as_ref().map(|c| VolumeHealth { abnormal: c.abnormal });
            return Ok((stats, condition));
        }
        if m.published.origin.block {
            return Ok((stats, None));
        }
        if let Driver::Flex { driver, .. } = &m.published.origin.driver
            && !self.flex.capabilities(driver).await?.supports_metrics
        {
            return super::failed(format!("FlexVolume driver {driver} does not support metrics"));
        }
        let path = PathBuf::from(&m.path);
        let u = blocking(move || Ok(filesystem::usage(&path)?)).await?;
        stats.fs = told(&u, at.meta());
        Ok((stats, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_news_once() {
        let (mut state, key) = (State::default(), (Uid::from("u"), "v".to_owned()));
        for (wrong, news) in [
            (None, false),
            (Some("worn out"), true),
            (Some("worn out"), false),
            (Some("read-only"), true),
            (None, false),
            (Some("read-only"), true),
        ] {
            state.news.clear();
            state.judged(&key, wrong.map(str::to_owned));
            assert_eq!(state.news.contains(&key), news, "{wrong:?}");
        }
    }
}
