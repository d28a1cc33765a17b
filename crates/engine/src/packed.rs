//! An object as the words that it is read from, which are only those of the fields that are set.

use carrack_types::resource::Object;

/// An object's words. They can be read: that was tried when they were written.
pub(crate) struct Packed(Box<[u8]>);

impl Packed {
    /// An object's words; none when it could not be read from them.
    pub(crate) fn of<K: Object>(object: &K) -> Option<Self> {
        let packed = Self(serde_json::to_vec(object).ok()?.into_boxed_slice());
        packed.open::<K>().is_some().then_some(packed)
    }
    /// The object.
    pub(crate) fn open<K: Object>(&self) -> Option<K> {
        serde_json::from_slice(&self.0).ok()
    }
}
