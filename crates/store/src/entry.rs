//! One key's value at one revision.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use carrack_pack::{Examples, Packed};

use crate::memo::Memo;
use crate::model::{self, Revision};

/// One key's value at one revision. Immutable and shared: lists and watches hand out the same one.
///
/// ```text
///   new ──▶ open (its bytes) ──rests: hardly a watcher still──▶ packed (what it does not share with its like)
///                              has to hear of its change
/// ```
///
/// Who reads it sees no difference, but that what is packed is unpacked for each reader.
pub struct Entry {
    /// The key.
    pub key: Arc<str>,
    /// Revision at which the key came into being.
    pub create_revision: Revision,
    /// Revision of the last change.
    pub mod_revision: Revision,
    /// What a reader derived from the value (labels, selectable fields). It is forgotten when the entry comes to rest: it
    /// was made for watchers mostly, and history is long.
    pub memo: Memo,
    /// How long the value is, in bytes.
    len: usize,
    /// How long that is of it which comes before its revision.
    front_len: u32,
    held: Mutex<Held>,
}

#[derive(Clone)]
enum Held {
    Open(Bytes),
    Packed(Packed),
}

impl Entry {
    /// An entry with a value into which its revision is stamped already (see [`crate::Value::stamp_at`]).
    #[must_use]
    pub fn new(key: Arc<str>, value: Bytes, create_revision: Revision, mod_revision: Revision) -> Self {
        Self {
            key,
            create_revision,
            mod_revision,
            memo: Memo::default(),
            len: value.len(),
            front_len: model::revision_place(&value).and_then(|at| u32::try_from(at).ok()).unwrap_or(0),
            held: Mutex::new(Held::Open(value)),
        }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Bytes {
        match self.shared() {
            Held::Open(value) => value,
            Held::Packed(packed) => packed.open(),
        }
    }

    /// Puts the value behind what there is.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self.shared() {
            Held::Open(value) => out.extend_from_slice(&value),
            Held::Packed(packed) => packed.open_to(out),
        }
    }

    /// How many bytes of the value come before its revision: they say which kind it is of. 0 where no revision is stamped.
    #[must_use]
    pub fn front_len(&self) -> usize {
        self.front_len as usize
    }

    /// How long the value is, in bytes.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.len
    }

    /// Packs the value, if it is open and that saves anything. False: it was packed before.
    pub(crate) fn rest(&self, examples: &mut Examples) -> bool {
        let Held::Open(value) = self.shared() else { return false };
        // Readers do not wait for this.
        if let Some(packed) = examples.pack(&value) {
            *self.held() = Held::Packed(packed);
        }
        true
    }

    /// How many bytes the value takes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        match &*self.held() {
            Held::Open(value) => value.len(),
            Held::Packed(packed) => packed.bytes(),
        }
    }

    /// It is held for no longer than it takes to see which it is: many may read it at once.
    fn shared(&self) -> Held {
        self.held().clone()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // It is replaced as a whole, so poison means nothing.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("mod_revision", &self.mod_revision)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
