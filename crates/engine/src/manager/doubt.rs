//! Writes whose outcome nobody knows, and terms.
//!
//! ```text
//!   no reply ──▶ in doubt ──another term──▶ probing ──revision──▶ held by the barrier
//!                  └─ rests on its own object, or nobody is elected ─▲
//! ```
//!
//! A request that was given up may still arrive. So before it is looked at what it has done, what was sent in its term is made
//! to be refused; then a revision is asked for, which is newer than anything that it can have done, and the caches have to show
//! that. Whoever begins to lead waits likewise until its caches show what others wrote before.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Barrier, CallKind, Manager};
use crate::informer::OnlyRevision;
use crate::{ApiError, ApiRequest, ApiResponse, Effects, Key, LeaderElector, Never, Selector, Time, Write};

/// How long to wait before asking again for a revision after an unknown outcome, while few wait.
const PROBE_RETRY: Duration = Duration::from_secs(1);

impl Manager {
    /// Nobody knows what a write has done, or will have done when it arrives. One that rests on its own object as it was read is
    /// refused when anything else was decided there; the others must be known to come too late, as those do that were sent in a
    /// term before.
    pub(super) fn doubt(&mut self, i: usize, key: &Key, write: &Write, fx: &mut Effects<Never>) {
        let run = self.hosted[i].runs.get_mut(key).filter(|run| run.term == self.term.0);
        match (&mut self.elector, run) {
            (Some(elector), Some(run)) if !write.is_pinned() => {
                run.pending += 1;
                self.doubts.push((i, key.clone(), write.clone()));
                elector.begin_anew();
            }
            _ => self.probe(i, key.clone(), write, fx),
        }
    }

    /// Looks whether this candidate leads in another term than before.
    pub(super) fn look_at_term(&mut self, now: Time, fx: &mut Effects<Never>) {
        let Some(tenure) = self.elector.as_ref().and_then(LeaderElector::tenure) else { return };
        if tenure.number == self.term.0 {
            return;
        }
        let begins = tenure.since != self.term.1;
        let revision = tenure.revision;
        self.term = (tenure.number, tenure.since);
        if begins {
            let mut sources = BTreeSet::new();
            for hosted in &mut self.hosted {
                if self.heralds {
                    hosted.controller.begin();
                }
                hosted.required.extend(hosted.sources.iter().cloned());
                sources.extend(hosted.sources.iter().cloned());
            }
            for source in &sources {
                self.with_informer(source, |informer| informer.must_show(now, revision, fx));
            }
            // Some show it already, and need not hear of anything more.
            let informers = &self.informers;
            for hosted in &mut self.hosted {
                hosted.required.retain(|s| informers.get(s).is_some_and(|informer| !informer.caught_up()));
            }
        }
        for (i, key, write) in std::mem::take(&mut self.doubts) {
            self.one_less(i, &key);
            self.probe(i, key.clone(), &write, fx);
            self.try_finish(now, i, &key);
        }
    }

    /// Asks for a revision that is newer than anything a lost request can have done before now.
    fn probe(&mut self, i: usize, key: Key, write: &Write, fx: &mut Effects<Never>) {
        if let Some(source) = self.sources_of(i, write).into_iter().find(|s| s.selector.is_all()) {
            let id = fx.api(ApiRequest::list(&source.resource, &Selector::all(), 1, ""));
            if let Some(run) = self.hosted[i].runs.get_mut(&key) {
                // Held until the reply says which revision to wait for.
                run.barriers.push(Barrier::AtLeast(source, u64::MAX));
            }
            self.note_call(id, i, &key, CallKind::Probe);
        }
    }

    pub(super) fn probed(
        &mut self,
        now: Time,
        i: usize,
        key: &Key,
        result: Result<ApiResponse, ApiError>,
        fx: &mut Effects<Never>,
    ) {
        let revision = match result.and_then(|reply| reply.json::<OnlyRevision>()) {
            // A server whose lists have no revision that could be waited for is believed as it is.
            Ok(list) => Some(list.metadata.resource_version.parse().unwrap_or(0)),
            // The kind is gone, and all its objects with it.
            Err(error) if error.is_not_found() => Some(0),
            Err(_) => None,
        };
        // All keys ask the same server: the more of them wait, the longer each does, so that together they ask a few times a
        // second however many they are.
        let waiting = u32::try_from(self.probes.len() / 4).unwrap_or(u32::MAX);
        let again = now + PROBE_RETRY.saturating_mul(waiting.saturating_add(1));
        if let Some(run) = self.hosted[i].runs.get_mut(key) {
            for barrier in &mut run.barriers {
                match barrier {
                    Barrier::AtLeast(_, r) if *r == u64::MAX => {
                        let Some(revision) = revision else {
                            self.probes.insert(fx.timer(again), (i, key.clone()));
                            run.pending += 1;
                            return;
                        };
                        *r = revision;
                    }
                    _ => {}
                }
            }
        }
        self.try_finish(now, i, key);
    }

    pub(super) fn probe_again(&mut self, i: usize, key: Key, fx: &mut Effects<Never>) {
        let source = self.hosted[i].runs.get(&key).and_then(|run| {
            run.barriers.iter().find_map(|b| match b {
                Barrier::AtLeast(s, u64::MAX) => Some(s.clone()),
                _ => None,
            })
        });
        if let Some(source) = source {
            let id = fx.api(ApiRequest::list(&source.resource, &Selector::all(), 1, ""));
            self.note_call(id, i, &key, CallKind::Probe);
        }
    }
}
