//! Sets of CPUs, as the kernel writes them: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Numbers of CPUs are smaller than this: more than any kernel is built for, and little enough to be written out.
const LIMIT: u32 = 1 << 14;

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
    /// Whether it has this one.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
    /// Those in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
    /// Those of this that the other lacks.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
    /// Whether both have one in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        !self.0.is_disjoint(&other.0)
    }
    /// Whether the other has all of this.
    #[must_use]
    pub fn within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// Why a text is no set of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of CPUs such as 0-3,8")]
pub struct NoCpuSet(String);

impl FromStr for CpuSet {
    type Err = NoCpuSet;

    fn from_str(text: &str) -> Result<Self, NoCpuSet> {
        let number = |part: &str| part.parse::<u32>().ok().filter(|n| *n < LIMIT);
        let mut cpus = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let range = match part.split_once('-') {
                Some((first, last)) => number(first).zip(number(last)).filter(|(first, last)| first <= last),
                None => number(part).map(|n| (n, n)),
            };
            let (first, last) = range.ok_or_else(|| NoCpuSet(text.to_owned()))?;
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_as_the_kernel_does() {
        for (text, count, again) in [
            ("", 0, ""),
            ("0", 1, "0"),
            ("0-3,8", 5, "0-3,8"),
            ("8,0,1,2, 3\n", 5, "0-3,8"),
            ("4,6,8", 3, "4,6,8"),
            ("1-2,2-3", 3, "1-3"),
        ] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!((set.len(), set.to_string().as_str()), (count, again), "{text:?}");
        }
        for text in ["a", "3-1", "1-", "-1", "0-4294967295", "1,,2", "1.3"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }
}
