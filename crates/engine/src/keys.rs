//! The keys that an index files under one value. Most values have one, which takes no room of its own, and some have thousands.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::Key;

/// As many as are kept in a list; more of them in a tree.
const FEW: usize = 64;

/// Some keys, in their order. They are shared with the cache.
pub(crate) enum Keys {
    One(Arc<Key>),
    Few(Vec<Arc<Key>>),
    Many(BTreeSet<Arc<Key>>),
}

impl Default for Keys {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Keys {
    pub(crate) fn insert(&mut self, key: &Arc<Key>) {
        match self {
            Self::One(only) if *only == *key => {}
            Self::One(only) => {
                let mut few = vec![only.clone(), key.clone()];
                few.sort_unstable();
                *self = Self::Few(few);
            }
            Self::Few(keys) if keys.is_empty() => *self = Self::One(key.clone()),
            Self::Few(keys) if keys.len() == FEW && !keys.contains(key) => {
                let mut many: BTreeSet<Arc<Key>> = std::mem::take(keys).into_iter().collect();
                many.insert(key.clone());
                *self = Self::Many(many);
            }
            Self::Few(keys) => {
                if let Err(place) = keys.binary_search(key) {
                    keys.insert(place, key.clone());
                }
            }
            Self::Many(keys) => _ = keys.insert(key.clone()),
        }
    }
    pub(crate) fn remove(&mut self, key: &Arc<Key>) {
        match self {
            Self::One(only) if *only == *key => *self = Self::default(),
            Self::One(_) => {}
            Self::Few(keys) => {
                if let Ok(place) = keys.binary_search(key) {
                    keys.remove(place);
                }
                if let [only] = &keys[..] {
                    *self = Self::One(only.clone());
                }
            }
            Self::Many(keys) => {
                keys.remove(key);
                if keys.len() < FEW / 2 {
                    *self = Self::Few(std::mem::take(keys).into_iter().collect());
                }
            }
        }
    }
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::One(_) => false,
            Self::Few(keys) => keys.is_empty(),
            Self::Many(keys) => keys.is_empty(),
        }
    }
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Few(keys) => keys.len(),
            Self::Many(keys) => keys.len(),
        }
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Key>> {
        let few: &[Arc<Key>] = match self {
            Self::One(key) => std::slice::from_ref(key),
            Self::Few(keys) => keys,
            Self::Many(_) => &[],
        };
        let many = if let Self::Many(keys) = self { Some(keys) } else { None };
        few.iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However many there are, and in whatever order they come and go, they are a set in order.
        #[test]
        fn keys_are_a_set(acts in prop::collection::vec((any::<bool>(), 0_u8..120), 0..600)) {
            let (mut keys, mut model) = (Keys::default(), BTreeSet::new());
            for (put, number) in acts {
                let key = Arc::new(Key::new("ns", number.to_string()));
                if put {
                    keys.insert(&key);
                    model.insert(key);
                } else {
                    keys.remove(&key);
                    model.remove(&key);
                }
                prop_assert!(keys.iter().eq(model.iter()));
                prop_assert_eq!((keys.is_empty(), keys.len()), (model.is_empty(), model.len()));
                prop_assert_eq!(matches!(keys, Keys::One(_)), model.len() == 1);
            }
        }
    }
}
