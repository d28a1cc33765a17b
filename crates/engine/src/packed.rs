//! An object as the words that it is read from, which are only those of the fields that are set; and where it is like others of its
//! cache, as what it does not share with one of them.

use carrack_pack::Examples;
use carrack_types::resource::Object;

/// An object's words. They can be read: that was tried when they were written.
pub(crate) enum Packed {
    /// As they are.
    Words(Box<[u8]>),
    /// Beside an example.
    Like(carrack_pack::Packed),
}

impl Packed {
    /// An object's words; none when it could not be read from them.
    pub(crate) fn of<K: Object>(object: &K, examples: &mut Examples) -> Option<Self> {
        let words = object.to_json().ok()?;
        K::from_json(&words).ok()?;
        Some(examples.pack(&words).map_or_else(|| Self::Words(words.into_boxed_slice()), Self::Like))
    }
    /// The object.
    pub(crate) fn open<K: Object>(&self) -> Option<K> {
        match self {
            Self::Words(words) => K::from_json(words).ok(),
            Self::Like(packed) => K::from_json(&packed.open()).ok(),
        }
    }
}
