//! Mounts of drivers whose processes have ended.
//!
//! Such a mount stays in the mount table, would be taken for the volume, and nobody can read or write a thing there ever again.
//! Whether a server has ended is known when it, or the kernel in its place, answers. One that stands still keeps a thread waiting
//! for as long as it does so: one for each place, however often that is looked at.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::adapters::{blocking, io_error, mounts};
use crate::effects::OpError;
use crate::volumes::Driver;

/// How long is waited for the server of what is mounted: one that is slow has not ended.
const SERVER_ANSWERS: Duration = Duration::from_secs(2);

/// The places that are being looked at.
#[derive(Clone, Debug, Default)]
pub struct Looks(Arc<Mutex<BTreeSet<String>>>);

impl Looks {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // Places are put in and taken out whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server of what is mounted at a path has surely ended; none where it does not answer.
    async fn look(&self, path: &str) -> Option<bool> {
        if !self.lock().insert(path.to_owned()) {
            // It has not answered an earlier look yet.
            return None;
        }
        let (looks, at) = (self.clone(), path.to_owned());
        let look = blocking(move || {
            let dead = mounts::is_dead(&at);
            looks.lock().remove(&at);
            Ok(dead)
        });
        tokio::time::timeout(SERVER_ANSWERS, look).await.ok()?.ok()
    }

    /// Whether what is mounted at a path can be asked for something.
    pub(super) async fn answers(&self, path: &str) -> bool {
        self.look(path).await == Some(false)
    }

    /// Unmounts what is mounted at a path if it is a driver's whose process has ended. Returns whether it did.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub(super) async fn clear_dead(&self, driver: &Driver, path: &str) -> Result<bool, OpError> {
        if !matches!(driver, Driver::Csi { .. } | Driver::Flex { .. }) || self.look(path).await != Some(true) {
            return Ok(false);
        }
        let at = path.to_owned();
        blocking(move || mounts::unmount(&at).map_err(io_error(format!("unmounting {at}, whose server has ended"))))
            .await?;
        Ok(true)
    }
}
