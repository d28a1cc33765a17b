//! The answers of plugins that are kept, so that they are not asked for each image (upstream: `pkg/credentialprovider/plugin`).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

use super::answer::{Answer, Scope};
use super::docker::Entries;

/// Most answers that are kept.
const MOST: usize = 1000;

/// What an answer is kept for: the plugin, by its name, and what of the repository it goes by.
type Key = (String, Scoped);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scoped {
    Image(String),
    Registry(String),
    Global,
}

impl Scoped {
    fn of(scope: Scope, repository: &str) -> Self {
        match scope {
            Scope::Image => Self::Image(repository.to_owned()),
            Scope::Registry => Self::Registry(repository.split('/').next().unwrap_or_default().to_owned()),
            Scope::Global => Self::Global,
        }
    }
}

#[derive(Debug)]
struct Kept {
    entries: Entries,
    since: Time,
    until: Time,
}

impl Kept {
    /// A clock that was set back makes nothing last longer.
    fn holds(&self, now: Time) -> bool {
        self.since <= now && now <= self.until
    }
}

/// The answers that are kept.
#[derive(Debug, Default)]
pub struct Answers {
    kept: BTreeMap<Key, Kept>,
}

impl Answers {
    /// What a plugin has said that is still good for a repository: what it said of just this one before all else.
    #[must_use]
    pub fn find(&self, now: Time, plugin: &str, repository: &str) -> Option<Entries> {
        [Scope::Image, Scope::Registry, Scope::Global].into_iter().find_map(|scope| {
            let key = (plugin.to_owned(), Scoped::of(scope, repository));
            self.kept.get(&key).filter(|kept| kept.holds(now)).map(|kept| kept.entries.clone())
        })
    }

    /// Keeps an answer for as long as it says, or else as the plugin's configuration does. One that lasts for no time is not kept.
    pub fn keep(&mut self, now: Time, plugin: &str, repository: &str, answer: &Answer, default: Duration) {
        let lasts = answer.lasts.unwrap_or(default);
        if lasts.is_zero() {
            return;
        }
        let key = (plugin.to_owned(), Scoped::of(answer.scope, repository));
        let kept = Kept { entries: answer.entries.clone(), since: now, until: now + lasts };
        self.kept.insert(key, kept);
        if self.kept.len() <= MOST {
            return;
        }
        self.kept.retain(|_, kept| kept.holds(now));
        if self.kept.len() > MOST
            && let Some(first) = self.kept.iter().min_by_key(|(_, kept)| kept.until).map(|(key, _)| key.clone())
        {
            self.kept.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::docker::Entry;

    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    fn answer(scope: Scope, lasts_s: Option<u64>) -> Answer {
        let entries = Entries::from([("r.io".to_owned(), Entry::new("u".into(), "p".into()))]);
        Answer { scope, lasts: lasts_s.map(Duration::from_secs), entries }
    }

    #[test]
    fn an_answer_is_good_for_what_it_says_and_as_long() {
        for (scope, lasts_s, default_s, asked, found) in [
            (Scope::Image, Some(60), 0, ("p", "r.io/a", 60), true),
            (Scope::Image, Some(60), 0, ("p", "r.io/a", 61), false),
            (Scope::Image, Some(60), 0, ("p", "r.io/b", 1), false),
            (Scope::Image, Some(60), 0, ("q", "r.io/a", 1), false),
            (Scope::Registry, Some(60), 0, ("p", "r.io/b/c", 1), true),
            (Scope::Registry, Some(60), 0, ("p", "r.io:5000/a", 1), false),
            (Scope::Global, Some(60), 0, ("p", "s.io/b", 1), true),
            (Scope::Global, Some(60), 0, ("q", "s.io/b", 1), false),
            // It says that it lasts for no time, or the configuration does.
            (Scope::Global, Some(0), 60, ("p", "r.io/a", 0), false),
            (Scope::Global, None, 0, ("p", "r.io/a", 0), false),
            (Scope::Global, None, 60, ("p", "r.io/a", 60), true),
            // The clock was set back.
            (Scope::Global, Some(60), 0, ("p", "r.io/a", -1), false),
        ] {
            let mut answers = Answers::default();
            answers.keep(at(1000), "p", "r.io/a", &answer(scope, lasts_s), Duration::from_secs(default_s));
            let (plugin, repository, after_s) = asked;
            let is_found = answers.find(at(1000 + after_s), plugin, repository).is_some();
            assert_eq!(is_found, found, "{scope:?} {lasts_s:?} {default_s} {asked:?}");
        }
    }

    #[test]
    fn not_more_are_kept_than_may_be() {
        let mut answers = Answers::default();
        for n in 0..=MOST {
            let lasts_s = if n == 5 { 10 } else { 100 };
            answers.keep(at(0), "p", &format!("r.io/{n}"), &answer(Scope::Image, Some(lasts_s)), Duration::ZERO);
        }
        assert_eq!(answers.kept.len(), MOST);
        assert!(answers.find(at(0), "p", "r.io/5").is_none(), "it ended first");
        // All of them have ended.
        answers.keep(at(1000), "p", "r.io/x", &answer(Scope::Image, Some(1)), Duration::ZERO);
        assert_eq!(answers.kept.len(), 1);
    }
}
