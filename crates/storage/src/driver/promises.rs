//! Room on the disk that is promised to what is still being made. A copy may take hours, and others are made meanwhile.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where something is being made, and what it will be called.
pub(super) type Place = (&'static str, String);

/// All that is being made, each with the bytes that it is to have.
pub(super) type Making = BTreeMap<Place, u64>;

/// What is promised. It changes in one place at a time, and nothing slow is done meanwhile.
#[derive(Debug, Default)]
pub(super) struct Promises(Mutex<Making>);

impl Promises {
    /// All of them; nothing else is promised as long as this lives.
    pub fn all(&self) -> MutexGuard<'_, Making> {
        // Entries are put in and taken out whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises room to something, until what this returns is dropped.
    pub fn promise<'a>(&'a self, mut all: MutexGuard<'a, Making>, place: Place, bytes: u64) -> Promise<'a> {
        all.insert(place.clone(), bytes);
        Promise { promises: self, place }
    }
}

/// Room for what is being made: by the time that this goes it is there, and counts by itself, or it was given up.
#[derive(Debug)]
pub(super) struct Promise<'a> {
    promises: &'a Promises,
    place: Place,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.promises.all().remove(&self.place);
    }
}
