//! A value that knows how often it may have changed, so that who looks at it again and again need not where it has not.

use std::ops::{Deref, DerefMut};

/// Whoever takes the value to change it is counted, whether he does or not.
#[derive(Debug, Default)]
pub(crate) struct Counted<T> {
    value: T,
    changes: u64,
}

impl<T> Counted<T> {
    /// How often the value may have changed: where this is as it was, so is the value.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }
}

impl<T> Deref for Counted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Counted<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.changes += 1;
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn who_changes_it_is_counted_and_who_reads_it_is_not() {
        let mut counted = Counted::<BTreeMap<u8, u8>>::default();
        assert_eq!((counted.get(&1), counted.len(), counted.changes()), (None, 0, 0));
        counted.insert(1, 2);
        assert_eq!((counted.get(&1), counted.changes()), (Some(&2), 1));
        if let Some(value) = counted.get_mut(&1) {
            *value = 3;
        }
        assert_eq!((counted.values().sum::<u8>(), counted.changes()), (3, 2));
    }
}
