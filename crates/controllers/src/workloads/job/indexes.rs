//! Sets of indexes, in the text form of statuses and policies: `1,3-5,7`.
//!
//! A Job may have more completions than anybody wants to keep numbers of: a set is kept as the intervals that its text has.

use std::collections::BTreeMap;

use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Pod;

/// Annotation and label with a pod's index.
pub(crate) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The index of a pod.
pub(crate) fn of_pod(pod: &Pod) -> Option<i32> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(INDEX)).map(String::as_str);
    annotation.or_else(|| pod.label(INDEX))?.parse().ok().filter(|i| *i >= 0)
}

/// A set of indexes, none of which is negative.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Indexes(
    /// The last of each interval, by its first. Between two of them something is missing.
    BTreeMap<i32, i32>,
);

impl Indexes {
    /// Reads a set. What cannot be read, or lies beyond `below`, is left out.
    pub(crate) fn parse(text: &str, below: i32) -> Self {
        let mut set = Self::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) else { continue };
            set.insert_all(first.max(0), last.min(below.saturating_sub(1)));
        }
        set
    }

    /// Adds all from `first` to `last`.
    fn insert_all(&mut self, mut first: i32, mut last: i32) {
        if first > last {
            return;
        }
        // They do not overlap, so those that reach this far are the last ones that begin before its end.
        let before = self.0.range(..=last.saturating_add(1)).rev();
        let touching = before.take_while(|(_, to)| to.saturating_add(1) >= first);
        let joined: Vec<(i32, i32)> = touching.map(|(from, to)| (*from, *to)).collect();
        for (from, to) in joined {
            self.0.remove(&from);
            first = first.min(from);
            last = last.max(to);
        }
        self.0.insert(first, last);
    }

    pub(crate) fn insert(&mut self, index: i32) {
        self.insert_all(index, index);
    }

    pub(crate) fn contains(&self, index: i32) -> bool {
        self.0.range(..=index).next_back().is_some_and(|(_, last)| index <= *last)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> i32 {
        self.0.iter().fold(0, |sum: i32, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
    }

    /// Those of either.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        other.0.iter().for_each(|(first, last)| all.insert_all(*first, *last));
        all
    }

    /// How many there are in both.
    pub(crate) fn common(&self, other: &Self) -> i32 {
        let mut sum = 0_i32;
        for (first, last) in &self.0 {
            let before = other.0.range(..first).next_back().filter(|(_, to)| **to >= *first);
            for (from, to) in before.into_iter().chain(other.0.range(first..=last)) {
                sum = sum.saturating_add((last.min(to) - first.max(from)).saturating_add(1));
            }
        }
        sum
    }

    /// Those below `below` that are missing, in order.
    pub(crate) fn missing(&self, below: i32) -> impl Iterator<Item = i32> + '_ {
        let mut next = 0;
        let ends = self.0.iter().map(|(first, last)| (*first, last.saturating_add(1))).chain([(below, below)]);
        ends.flat_map(move |(first, after)| std::mem::replace(&mut next, after)..first.min(below))
    }
}

/// Its text.
impl std::fmt::Display for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if n > 0 { "," } else { "" })?;
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        let mut set = Self::default();
        indexes.into_iter().for_each(|index| set.insert(index));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sets_have_a_short_form() {
        for (numbers, text) in
            [(vec![], ""), (vec![3], "3"), (vec![1, 2], "1,2"), (vec![0, 1, 2, 5, 7, 8, 9], "0-2,5,7-9")]
        {
            let set: Indexes = numbers.iter().copied().collect();
            assert_eq!(set.to_string(), text);
            assert_eq!(Indexes::parse(text, 10), set);
            assert_eq!(numbers.into_iter().rev().collect::<Indexes>(), set);
        }
        assert_eq!(Indexes::parse("1-4,x,-3,8-2000000000", 10).to_string(), "1-4,8,9");
        assert_eq!(Indexes::parse("0-5", 0), Indexes::default());
        let most = Indexes::parse("0-2147483647", i32::MAX);
        assert_eq!((most.len(), most.to_string().as_str()), (i32::MAX, "0-2147483646"));
        assert_eq!(Indexes::parse("5-2147483646", i32::MAX).missing(i32::MAX).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    /// The same as sets of numbers.
    #[test]
    fn intervals_are_sets() {
        let mut rng = carrack_engine::Rng::new(7);
        for _ in 0..500 {
            let mut numbers = || (0..rng.below(12)).map(|_| i32::try_from(rng.below(20)).unwrap_or(0)).collect();
            let (a, b): (BTreeSet<i32>, BTreeSet<i32>) = (numbers(), numbers());
            let [first, second]: [Indexes; 2] = [&a, &b].map(|numbers| numbers.iter().rev().copied().collect());
            let count = |n: usize| i32::try_from(n).unwrap_or(0);
            assert_eq!(first.len(), count(a.len()));
            assert_eq!(first.common(&second), count(a.intersection(&b).count()), "{first} and {second}");
            assert_eq!(first.union(&second), a.union(&b).copied().collect::<Indexes>(), "{first} and {second}");
            assert!((0..20).all(|i| first.contains(i) == a.contains(&i)), "{first}");
            assert_eq!(first.missing(20).collect::<Vec<_>>(), (0..20).filter(|i| !a.contains(i)).collect::<Vec<_>>());
            assert_eq!(Indexes::parse(&first.to_string(), 20), first);
        }
    }
}
