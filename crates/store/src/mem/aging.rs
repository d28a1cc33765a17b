//! Which revision was the newest when: what history may be forgotten by age.

use std::collections::VecDeque;

use crate::model::Revision;

/// Into how many marks the age is divided: history outlives its age by at most such a part.
const MARKS: u64 = 16;

/// A few marks of time and revision, oldest first.
pub(crate) struct Aging {
    age_ms: u64,
    marks: VecDeque<(u64, Revision)>,
}

impl Aging {
    pub(crate) fn new(age_ms: u64) -> Self {
        Self { age_ms, marks: VecDeque::new() }
    }

    /// Notes the newest revision and returns the one up to which history has become too old.
    pub(crate) fn note(&mut self, now_ms: u64, newest: Revision) -> Option<Revision> {
        let due = self
            .marks
            .back()
            .is_none_or(|(at_ms, revision)| *revision < newest && now_ms.saturating_sub(*at_ms) >= self.age_ms / MARKS);
        if due {
            self.marks.push_back((now_ms, newest));
        }
        let mut old = None;
        while let Some((at_ms, revision)) = self.marks.front()
            && now_ms.saturating_sub(*at_ms) >= self.age_ms
        {
            old = Some(*revision);
            self.marks.pop_front();
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_lives_for_its_age_and_little_longer() {
        let mut aging = Aging::new(1600);
        let mut compacted = 0;
        for now_ms in 0..20_000 {
            // One revision for each millisecond.
            if let Some(revision) = aging.note(now_ms, Revision(now_ms)) {
                compacted = revision.0;
            }
            assert!(compacted <= now_ms.saturating_sub(1600), "too young: {compacted} at {now_ms}");
            assert!(compacted + 1600 + 100 >= now_ms, "too old: {compacted} at {now_ms}");
            assert!(aging.marks.len() <= 17);
        }
    }
}
