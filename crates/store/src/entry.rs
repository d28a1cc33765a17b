//! One key's value at one revision.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use carrack_pack::{Examples, Packed};

use crate::model::Revision;

/// One key's value at one revision. Immutable and shared: lists and watches hand out the same one.
///
/// ```text
///   new ──▶ open (its bytes) ──rests: history has forgotten its change,──▶ packed (what it does not share with its like)
///                              or what replaced it is old
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
    /// What a reader derived from the value (labels, selectable fields), made once for each entry.
    pub memo: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// How long the value is, in bytes.
    len: usize,
    held: Mutex<Held>,
}

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
            memo: OnceLock::new(),
            len: value.len(),
            held: Mutex::new(Held::Open(value)),
        }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Bytes {
        // Held for no longer than it takes to see which it is: many may read it at once.
        let packed = match &*self.held() {
            Held::Open(value) => return value.clone(),
            Held::Packed(packed) => packed.clone(),
        };
        packed.open()
    }

    /// How long the value is, in bytes.
    #[must_use]
    pub fn value_len(&self) -> usize {
        self.len
    }

    /// Packs the value, if it is open and that saves anything.
    pub(crate) fn rest(&self, examples: &mut Examples) {
        let value = match &*self.held() {
            Held::Open(value) => value.clone(),
            Held::Packed(_) => return,
        };
        // Readers do not wait for this.
        if let Some(packed) = examples.pack(&value) {
            *self.held() = Held::Packed(packed);
        }
    }

    /// How many bytes the value takes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        match &*self.held() {
            Held::Open(value) => value.len(),
            Held::Packed(packed) => packed.bytes(),
        }
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
