//! Values in a fraction of their room: as what they do not share with another value of their kind.
//!
//! Objects of one kind have most of their text in common (names of fields, managers of fields, what a template says), more than
//! one of them has within itself: pods are a thirteenth of their size beside another pod, and two fifths alone. So a value is
//! packed by LZ4 with an example of its kind as dictionary, which it keeps. There are a few examples of each kind, the first ones
//! that were unlike each other. LZ4, since what is packed is read: it unpacks some gigabytes a second.
//!
//! The store packs what rests in it, and the caches of controllers what nobody has read for long.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use lz4_flex::block::{compress_into_with_dict, decompress_into_with_dict, get_maximum_output_size};

/// How many examples of one kind there are at most.
const EXAMPLES: usize = 4;
/// Of how many kinds there are examples at most.
const KINDS: usize = 1024;
/// How long an example is at most, in bytes.
const EXAMPLE_BYTES: usize = 32 << 10;
/// How long the part of a value before its metadata is at most, in bytes: it says which kind it is of.
const KIND_BYTES: usize = 256;
/// What is in values that are never packed: an example stays when its object has gone, and a secret must not.
const SECRET: &[u8] = b"\"kind\":\"Secret\"";
/// How large the buffers stay in which values are packed, in bytes: few values are longer.
const KEPT_BYTES: usize = 2 * EXAMPLE_BYTES;
/// What is shorter stays as it is, in bytes.
const LEAST_BYTES: usize = 256;

/// A value that shares so much with an example is packed by it, and no other is tried: one part in so many is left.
const GOOD: usize = 4;

/// A value, packed. Cheap to clone.
#[derive(Clone)]
pub struct Packed {
    like: Arc<[u8]>,
    rest: Arc<[u8]>,
    /// How long the value is, in bytes.
    len: usize,
}

impl Packed {
    /// The value.
    #[must_use]
    pub fn open(&self) -> Bytes {
        let mut value = Vec::with_capacity(self.len);
        self.open_to(&mut value);
        value.into()
    }

    /// Puts the value behind what there is.
    #[expect(clippy::expect_used, reason = "it was unpacked once when it was packed")]
    pub fn open_to(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + self.len, 0);
        let unpacked = decompress_into_with_dict(&self.rest, &mut out[at..], &self.like);
        assert_eq!(unpacked.expect("a value was packed that can be unpacked"), self.len);
    }

    /// How many bytes it takes, its example aside.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rest.len()
    }
}

/// The examples of each kind, by which values are packed.
#[derive(Default)]
pub struct Examples {
    kinds: BTreeMap<Box<[u8]>, Vec<Arc<[u8]>>>,
    /// Where values are packed, and unpacked to see whether that can be done.
    packed: Vec<u8>,
    unpacked: Vec<u8>,
}

impl Examples {
    /// Packs an object in JSON. None: it would save too little, or must not be.
    pub fn pack(&mut self, value: &[u8]) -> Option<Packed> {
        if value.len() < LEAST_BYTES {
            return None;
        }
        let kind = metadata_place(value).filter(|at| *at <= KIND_BYTES).and_then(|at| value.get(..at))?;
        if kind.windows(SECRET.len()).any(|part| part == SECRET) {
            return None;
        }
        if !self.kinds.contains_key(kind) && self.kinds.len() < KINDS {
            self.kinds.insert(kind.into(), Vec::new());
        }
        let examples = self.kinds.get_mut(kind)?;
        self.packed.resize(get_maximum_output_size(value.len()), 0);
        self.packed.shrink_to(KEPT_BYTES);
        let mut best: Option<Packed> = None;
        for example in &*examples {
            let most = best.as_ref().map_or(usize::MAX, |best| best.rest.len());
            match compress_into_with_dict(value, &mut self.packed, example) {
                Ok(len) if len < most => {
                    best =
                        Some(Packed { like: Arc::clone(example), rest: self.packed[..len].into(), len: value.len() });
                    if len < value.len() / GOOD {
                        break;
                    }
                }
                _ => {}
            }
        }
        let is_unlike = best.as_ref().is_none_or(|best| best.rest.len() > value.len() / 5 * 2);
        if is_unlike && examples.len() < EXAMPLES && value.len() <= EXAMPLE_BYTES {
            examples.push(value.into());
        }
        let best = best.filter(|best| best.rest.len() < value.len() / 4 * 3)?;
        self.unpacked.clear();
        self.unpacked.resize(value.len(), 0);
        self.unpacked.shrink_to(KEPT_BYTES);
        let unpacked = decompress_into_with_dict(&best.rest, &mut self.unpacked, &best.like);
        (unpacked.is_ok_and(|len| len == value.len()) && self.unpacked == value).then_some(best)
    }
}

/// Where an object's metadata begins, behind its brace. What comes before says which kind it is of.
#[must_use]
pub fn metadata_place(value: &[u8]) -> Option<usize> {
    const METADATA: &[u8] = b"\"metadata\":{";
    // The object's own metadata comes before all that could look like it: inside of a JSON string
    // each quote is escaped.
    Some(value.windows(METADATA.len()).position(|window| window == METADATA)? + METADATA.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn object(kind: &str, name: &str, more: &str) -> Vec<u8> {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"{kind}\",\"metadata\":{{\"resourceVersion\":\"7\",\"name\":\"{name}\"}},\
             \"spec\":{{\"containers\":[{{\"image\":\"registry.example.com/of/something:1\",\"imagePullPolicy\":\"IfNotPresent\",\
             \"terminationMessagePath\":\"/dev/termination-log\",\"terminationMessagePolicy\":\"File\",\"more\":\"{more}\"}}]}}}}"
        )
        .into()
    }

    #[test]
    fn what_is_like_an_example_takes_a_fraction() {
        let mut examples = Examples::default();
        assert!(examples.pack(&object("Pod", "first", "")).is_none(), "there is nothing yet that it is like");
        let second = object("Pod", "second", "");
        let packed = examples.pack(&second).expect("it is like the first");
        assert!(packed.bytes() * 8 < second.len(), "{} of {} bytes", packed.bytes(), second.len());
        assert_eq!(packed.open(), second);
        assert!(examples.pack(&object("Node", "first", "")).is_none(), "that is another kind");
        for _ in 0..2 {
            assert!(examples.pack(&object("Secret", "one", "")).is_none(), "it would outlive its object");
        }
        assert!(examples.pack(b"{}").is_none());
        assert!(examples.pack(&[b'x'; 4000]).is_none(), "of no kind");
    }

    #[test]
    fn what_is_long_leaves_no_room_behind() {
        let mut examples = Examples::default();
        let short = object("Pod", "short", "");
        assert!(examples.pack(&short).is_none());
        for (value, most) in [(object("Pod", "long", &"long".repeat(1 << 18)), 1 << 21), (short, KEPT_BYTES)] {
            let packed = examples.pack(&value).expect("it is like the first");
            assert_eq!(packed.open(), value);
            let kept = examples.packed.capacity().max(examples.unpacked.capacity());
            assert!(kept <= most, "{kept} bytes after {}", value.len());
        }
    }

    #[test]
    fn examples_are_few() {
        let mut examples = Examples::default();
        for seed in 0..100_u64 {
            let noise: String = (0..4000_u64)
                .map(|i| {
                    let mixed = (seed * 4000 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
                    char::from(b'a' + u8::try_from(mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 59).unwrap_or(0) % 26)
                })
                .collect();
            examples.pack(&object("Pod", "p", &noise));
            examples.pack(&object(&format!("Kind{seed}"), "p", &"long".repeat(EXAMPLE_BYTES)));
        }
        assert!(
            examples.kinds.values().all(|kind| kind.len() <= EXAMPLES && kind.iter().all(|e| e.len() <= EXAMPLE_BYTES))
        );
    }

    proptest! {
        /// Whatever is packed comes back as it was.
        #[test]
        fn values_come_back(values in prop::collection::vec(("Pod|Node", "[a-c]{1,3}", "[ -~&&[^\"\\\\]]{0,400}"), 1..20)) {
            let mut examples = Examples::default();
            for (kind, name, more) in values {
                let value = object(&kind, &name, &more);
                if let Some(packed) = examples.pack(&value) {
                    prop_assert_eq!(packed.open(), value);
                }
            }
        }
    }
}
