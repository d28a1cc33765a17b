//! Amounts of resources as numbers: CPU in thousandths of a core, everything else in whole units.
//!
//! What one pod or one node says fits 64 bits (quantities are capped there); sums have 128, so that no capacity, however
//! absurd, overflows.

use std::collections::BTreeMap;
use std::sync::Arc;

use carrack_types::pod::ResourceList;

use crate::intern::Interner;

/// Numbers of resource names. The first three are fixed.
#[derive(Clone, Debug)]
pub struct ResourceNames(Interner<Arc<str>>);

/// CPU, in millicores.
pub const CPU: u32 = 0;
/// Memory, in bytes.
pub const MEMORY: u32 = 1;
/// Ephemeral storage, in bytes.
pub const EPHEMERAL: u32 = 2;

impl Default for ResourceNames {
    fn default() -> Self {
        let mut names = Interner::default();
        for name in ["cpu", "memory", "ephemeral-storage"] {
            names.id(name);
        }
        Self(names)
    }
}

impl ResourceNames {
    /// The number of a resource.
    pub fn id(&mut self, name: &str) -> u32 {
        self.0.id(name)
    }
    /// The number of a resource that somebody has named before.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u32> {
        self.0.find(name)
    }
    /// How many have numbers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }
    /// The name of a resource.
    #[must_use]
    pub fn name(&self, id: u32) -> &str {
        self.0.get(id).map_or("", |name| name)
    }
    /// Reads a list. `pods` is no amount of a resource here: it comes back beside the list.
    pub fn read(&mut self, list: &ResourceList) -> (Amounts, i64) {
        let mut amounts = Amounts::default();
        let mut pods = 0;
        for (name, quantity) in list {
            match &**name {
                "pods" => pods = quantity.units(),
                "cpu" => amounts.set(CPU, quantity.millis().max(0)),
                _ => amounts.set(self.id(name), quantity.units().max(0)),
            }
        }
        (amounts, pods)
    }
}

/// What one pod asks for, or one node offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    base: [i64; 3],
    others: Vec<(u32, i64)>,
}

impl Amounts {
    /// The amount of one resource.
    #[must_use]
    pub fn get(&self, id: u32) -> i64 {
        match self.base.get(id as usize) {
            Some(amount) => *amount,
            None => self.others.iter().find(|(other, _)| *other == id).map_or(0, |(_, amount)| *amount),
        }
    }
    /// Sets the amount of one resource.
    pub fn set(&mut self, id: u32, amount: i64) {
        if let Some(slot) = self.base.get_mut(id as usize) {
            *slot = amount;
        } else if let Some((_, slot)) = self.others.iter_mut().find(|(other, _)| *other == id) {
            *slot = amount;
        } else {
            self.others.push((id, amount));
        }
    }
    /// The resources that are not nothing.
    pub fn iter(&self) -> impl Iterator<Item = (u32, i64)> {
        (0..).zip(self.base).chain(self.others.iter().copied()).filter(|(_, amount)| *amount != 0)
    }
}

/// A sum of amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    base: [i128; 3],
    others: BTreeMap<u32, i128>,
}

impl Sums {
    /// The sum of one resource.
    #[must_use]
    pub fn get(&self, id: u32) -> i128 {
        match self.base.get(id as usize) {
            Some(sum) => *sum,
            None => self.others.get(&id).copied().unwrap_or(0),
        }
    }
    /// Adds amounts.
    pub fn add(&mut self, amounts: &Amounts) {
        self.change(amounts, 1);
    }
    /// Takes amounts that were added.
    pub fn subtract(&mut self, amounts: &Amounts) {
        self.change(amounts, -1);
    }
    fn change(&mut self, amounts: &Amounts, sign: i128) {
        for (id, amount) in amounts.iter() {
            let amount = i128::from(amount) * sign;
            match self.base.get_mut(id as usize) {
                Some(sum) => *sum += amount,
                None => {
                    let sum = self.others.entry(id).or_default();
                    *sum += amount;
                    if *sum == 0 {
                        self.others.remove(&id);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_amounts_do_not_overflow() {
        let mut names = ResourceNames::default();
        let list: ResourceList = [("cpu", "9E"), ("memory", "8E"), ("example.com/x", "9E"), ("pods", "9E")]
            .into_iter()
            .map(|(name, amount)| (name.to_owned(), amount.parse().expect("a quantity")))
            .collect();
        let (amounts, pods) = names.read(&list);
        assert_eq!(pods, 9_000_000_000_000_000_000);
        let mut sums = Sums::default();
        for _ in 0..100 {
            sums.add(&amounts);
        }
        assert_eq!(sums.get(CPU), 100 * i128::from(i64::MAX), "millicores are capped");
        for _ in 0..100 {
            sums.subtract(&amounts);
        }
        assert_eq!(sums, Sums::default());
    }
}
