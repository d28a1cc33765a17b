//! The runtime's records of a pod's containers, by the containers' names.
//!
//! A pod may have thousands of containers, and each step of each is a reason to look at all of them: who went through all records
//! for each would be busy with that pod alone.

use std::collections::BTreeMap;

use super::plan::newest;
use crate::runtime::ContainerRecord;

/// Records by name, those of one name in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub struct Records<'a>(BTreeMap<&'a str, Vec<&'a ContainerRecord>>);

impl<'a> Records<'a> {
    /// Those of a container.
    #[must_use]
    pub fn named(&self, name: &str) -> &[&'a ContainerRecord] {
        self.0.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// The newest of a container.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&'a ContainerRecord> {
        newest(self.named(name), name)
    }
}

impl<'a> FromIterator<&'a ContainerRecord> for Records<'a> {
    fn from_iter<T: IntoIterator<Item = &'a ContainerRecord>>(records: T) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&ContainerRecord>> = BTreeMap::new();
        for record in records {
            by_name.entry(&record.name).or_default().push(record);
        }
        Self(by_name)
    }
}
