//! An index from key prefixes to values that answers which prefixes a key has.
//!
//! The cost of a lookup depends on the key's length and on how the registered prefixes branch off
//! from it, not on how many there are: it walks down from the key itself, and each step either
//! finds a prefix or shortens what is looked for to the part it shares with its nearest neighbour.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Values by prefix.
pub(crate) struct Prefixes<T> {
    map: BTreeMap<Box<[u8]>, T>,
}

impl<T> Prefixes<T> {
    pub(crate) fn new() -> Self {
        Self { map: BTreeMap::new() }
    }

    pub(crate) fn entry(&mut self, prefix: &str) -> &mut T
    where
        T: Default,
    {
        self.map.entry(prefix.as_bytes().into()).or_default()
    }

    pub(crate) fn get_mut(&mut self, prefix: &[u8]) -> Option<&mut T> {
        self.map.get_mut(prefix)
    }

    pub(crate) fn remove(&mut self, prefix: &[u8]) {
        self.map.remove(prefix);
    }

    /// Calls `visit` for each registered prefix of the key, longest first.
    pub(crate) fn visit(&mut self, key: &str, mut visit: impl FnMut(&[u8], &mut T)) {
        // Every prefix still to be found is a prefix of `rest`, hence not greater than it.
        let mut rest = key.as_bytes();
        while let Some((found, value)) =
            self.map.range_mut::<[u8], _>((Bound::Unbounded, Bound::Included(rest))).next_back()
        {
            if rest.starts_with(found) {
                visit(found, value);
                if found.is_empty() {
                    return;
                }
                rest = &rest[..found.len() - 1];
            } else {
                // `found` is smaller than `rest` and parts from it somewhere. A prefix of `rest`
                // that reached beyond that place would lie between the two, but nothing does.
                let shared = rest.iter().zip(found.iter()).take_while(|(a, b)| a == b).count();
                rest = &rest[..shared];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Prefixes;

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            prefixes in prop::collection::btree_set("[abé/]{0,5}", 0..24),
            key in "[abé/]{0,7}",
        ) {
            let mut index = Prefixes::<String>::new();
            for prefix in &prefixes {
                index.entry(prefix).clone_from(prefix);
            }
            let mut found = Vec::new();
            index.visit(&key, |_, prefix| found.push(prefix.clone()));
            let mut expected: Vec<_> =
                prefixes.into_iter().filter(|prefix| key.starts_with(&**prefix)).collect();
            expected.sort_by_key(|prefix| std::cmp::Reverse(prefix.len()));
            prop_assert_eq!(found, expected);
        }
    }
}
