//! Which keys wait for which caches, so that a change of a cache costs what it lets go, and not all that waits.
//!
//! A run that has nothing left to do but to wait is filed under the first of its barriers that is not reached. Once that may
//! be, it is looked at again: it ends, or is filed under the next one. Entries of runs that have ended meanwhile do no harm.

use std::collections::{BTreeMap, BTreeSet};

use super::Barrier;
use crate::unseen::Writer;
use crate::{Key, Source};

/// Those that wait for one cache.
#[derive(Default)]
struct Waiting {
    /// By the revision that it is to show.
    revisions: BTreeSet<(u64, Writer)>,
    /// By the object that it is to show no more.
    gone: BTreeMap<Key, BTreeSet<Writer>>,
}

/// Keys that are held by barriers.
#[derive(Default)]
pub(super) struct Held {
    waiting: BTreeMap<Source, Waiting>,
    /// Those whose cache is kept no more.
    freed: BTreeSet<Writer>,
}

impl Held {
    /// A key waits for a barrier.
    pub(super) fn file(&mut self, barrier: &Barrier, by: Writer) {
        let waiting = self.waiting.entry(barrier.source().clone()).or_default();
        match barrier {
            Barrier::AtLeast(_, revision) => _ = waiting.revisions.insert((*revision, by)),
            Barrier::Gone(_, key, _) => _ = waiting.gone.entry(key.clone()).or_default().insert(by),
        }
    }

    /// A cache has got on to a revision, and these of its objects have changed. Returns whose barrier may be reached by that.
    pub(super) fn shown(
        &mut self,
        source: &Source,
        revision: u64,
        changed: impl Iterator<Item = Key>,
    ) -> BTreeSet<Writer> {
        let mut free = std::mem::take(&mut self.freed);
        let Some(waiting) = self.waiting.get_mut(source) else { return free };
        while waiting.revisions.first().is_some_and(|(needed, _)| *needed <= revision) {
            free.extend(waiting.revisions.pop_first().map(|(_, by)| by));
        }
        if !waiting.gone.is_empty() {
            free.extend(changed.filter_map(|key| waiting.gone.remove(&key)).flatten());
        }
        if waiting.revisions.is_empty() && waiting.gone.is_empty() {
            self.waiting.remove(source);
        }
        free
    }

    /// A cache is kept no more, and holds nobody back.
    pub(super) fn dropped(&mut self, source: &Source) {
        if let Some(waiting) = self.waiting.remove(source) {
            self.freed.extend(waiting.revisions.into_iter().map(|(_, by)| by));
            self.freed.extend(waiting.gone.into_values().flatten());
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};

    use super::*;

    fn by(name: &str) -> Writer {
        (0, Key::new("ns", name))
    }

    /// Who is let go by a cache that has got on.
    fn check(held: &mut Held, source: &Source, revision: u64, changed: &[&str], expected: &[&str]) {
        let free = held.shown(source, revision, changed.iter().map(|name| Key::new("ns", *name)));
        let expected: BTreeSet<Writer> = expected.iter().map(|name| by(name)).collect();
        assert_eq!(free, expected, "{revision} {changed:?}");
    }

    #[test]
    fn a_change_lets_go_whom_it_concerns() {
        let (pods, maps) = (Source::of::<Pod>(), Source::of::<ConfigMap>());
        let mut held = Held::default();
        let gone = |source: &Source, name: &str| Barrier::Gone(source.clone(), Key::new("ns", name), "u".to_owned());
        for (revision, name) in [(5, "a"), (7, "b"), (7, "c"), (9, "d")] {
            held.file(&Barrier::AtLeast(pods.clone(), revision), by(name));
        }
        held.file(&Barrier::AtLeast(maps.clone(), 6), by("m"));
        held.file(&gone(&pods, "p"), by("e"));
        held.file(&gone(&pods, "p"), by("f"));
        held.file(&gone(&pods, "q"), by("g"));
        check(&mut held, &pods, 4, &[], &[]);
        check(&mut held, &pods, 5, &["other"], &["a"]);
        check(&mut held, &pods, 8, &["p"], &["b", "c", "e", "f"]);
        check(&mut held, &pods, 8, &["p"], &[]);
        // Another cache tells nothing of these, and who waits for one that is kept no more waits for nothing.
        check(&mut held, &maps, 5, &["q"], &[]);
        held.dropped(&pods);
        check(&mut held, &maps, 6, &[], &["d", "g", "m"]);
        check(&mut held, &pods, 99, &["q"], &[]);
        assert!(held.waiting.is_empty() && held.freed.is_empty());
    }
}
