//! Small numbers for things that are compared often.

use std::collections::BTreeMap;

/// Gives equal values the same number, counted from 0.
#[derive(Clone, Debug)]
pub struct Interner<T> {
    ids: BTreeMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), values: Vec::new() }
    }
}

impl<T: Ord + Clone> Interner<T> {
    /// The number of a value, a new one where it has none.
    pub fn id<Q>(&mut self, value: &Q) -> u32
    where
        T: std::borrow::Borrow<Q> + for<'a> From<&'a Q>,
        Q: Ord + ?Sized,
    {
        match self.ids.get(value) {
            Some(id) => *id,
            None => self.add(T::from(value)),
        }
    }
    /// The number of an owned value.
    pub fn intern(&mut self, value: T) -> u32 {
        match self.ids.get(&value) {
            Some(id) => *id,
            None => self.add(value),
        }
    }
    fn add(&mut self, value: T) -> u32 {
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX - 1);
        self.ids.insert(value.clone(), id);
        self.values.push(value);
        id
    }
    /// The number of a value that has one.
    pub fn find<Q>(&self, value: &Q) -> Option<u32>
    where
        T: std::borrow::Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.ids.get(value).copied()
    }
    /// The value of a number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&T> {
        self.values.get(id as usize)
    }
    /// How many values have numbers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }
    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}
