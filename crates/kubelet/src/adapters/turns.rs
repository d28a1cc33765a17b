//! The containers of a pod are prepared one after the other, and those of different pods at once.
//!
//! Preparing one looks into the volumes that it mounts parts of, and a volume may be on a server that does not answer: the thread
//! that looks is lost until it does. A pod may have as many containers as it likes; so it costs one thread, and others find theirs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::runtime::Uid;

type Turn = Arc<tokio::sync::Mutex<()>>;

/// Pods of which a container is being prepared.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<Uid, Turn>>);

impl Turns {
    fn of(&self, pod: &Uid) -> Turn {
        // Entries are put in and taken out whole.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who prepares, or waits to, has one as well.
        all.retain(|_, turn| Arc::strong_count(turn) > 1);
        all.entry(pod.clone()).or_default().clone()
    }

    /// Waits for a container's turn, which lasts until what this returns is dropped.
    pub async fn take(&self, pod: &Uid) -> OwnedMutexGuard<()> {
        self.of(pod).lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pods_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let (one, other) = (Uid::from("one"), Uid::from("other"));
        let first = turns.take(&one).await;
        drop(turns.take(&other).await);
        assert!(turns.of(&one).try_lock().is_err(), "the second of a pod waits");
        drop(first);
        drop(turns.take(&one).await);
        let _last = turns.take(&other).await;
        assert_eq!(turns.0.lock().unwrap().len(), 1, "pods that prepare nothing are forgotten");
    }
}
