//! Since when nodes have been missing that something names.

use std::collections::BTreeMap;

use carrack_engine::Time;

/// So many nodes are remembered before any is forgotten.
const LEAST: usize = 256;

/// Since when each node has been missing, without having been there in between.
///
/// Anybody who may make pods can name as many nodes as he likes that never were, and what named them goes without a word.
/// Nodes that nothing names any more are forgotten whenever there are twice as many as were left the last time.
#[derive(Default)]
pub(crate) struct Missing {
    since: BTreeMap<String, Time>,
    /// How many were left when some were forgotten last.
    left: usize,
}

impl Missing {
    /// Since when a node has been missing: from now on, if that was not known. `is_named` says whether anything names a
    /// node yet.
    pub(crate) fn since(&mut self, node: &str, now: Time, is_named: impl Fn(&str) -> bool) -> Time {
        if let Some(since) = self.since.get(node) {
            return *since;
        }
        if self.since.len() >= LEAST.max(2 * self.left) {
            self.since.retain(|node, _| is_named(node));
            self.left = self.since.len();
        }
        self.since.insert(node.to_owned(), now);
        now
    }

    /// A node is there. When it goes, its time begins anew, however long it was gone before.
    pub(crate) fn is_there(&mut self, node: &str) {
        self.since.remove(node);
    }

    /// Whether nodes were there meanwhile is not known.
    pub(crate) fn clear(&mut self) {
        self.since.clear();
        self.left = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_nothing_names_are_forgotten() {
        let at = Time::from_unix_s;
        let mut missing = Missing::default();
        let named = |node: &str| node.starts_with("kept");
        for n in 0..300 {
            assert_eq!(missing.since(&format!("kept-{n}"), at(n), named), at(n));
        }
        for n in 0..2_000 {
            missing.since(&format!("made-up-{n}"), at(1_000), named);
            assert!(missing.since.len() <= 600, "{n}");
        }
        // Those that are named still have their time.
        for n in 0..300 {
            assert_eq!(missing.since(&format!("kept-{n}"), at(2_000), named), at(n));
        }
        missing.is_there("kept-1");
        assert_eq!(missing.since("kept-1", at(3_000), named), at(3_000));
        missing.clear();
        assert_eq!(missing.since("kept-2", at(4_000), named), at(4_000));
    }
}
