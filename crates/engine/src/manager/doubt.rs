//! Writes whose outcome nobody knows, and terms.
//!
//! ```text
//!   no reply ──▶ in doubt ──another term──▶ probing ──revision──▶ held by the barrier
//!                  └─ rests on its own object, or nobody is elected ─▲
//! ```
//!
//! A request that was given up may still arrive. So before it is looked at what it has done, what was sent in its term is made
//! to be refused; then a revision is asked for, which is newer than anything that it can have done, and the caches have to show
//! that. One question at a time is asked of a collection: who comes while it is under way is answered by the next one, with all
//! who came meanwhile. Whoever begins to lead waits likewise until its caches show what others wrote before.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Barrier, Manager, Source};
use crate::informer::{Awaited, OnlyRevision};
use crate::{ApiRequest, ApiResponse, Effects, Input, Key, LeaderElector, Never, Selector, Time, Write};

/// How long to wait before asking again for a revision that was not answered.
const PROBE_RETRY: Duration = Duration::from_secs(1);

/// A question for the revision of a collection.
#[derive(Default)]
pub(super) struct Probe {
    /// What it waits for: the reply, or the time to ask again.
    waits_for: Option<Awaited>,
    /// Keys that the reply is for.
    asked: Vec<(usize, Key)>,
    /// Keys that are in doubt since it was asked, and need a newer one.
    next: Vec<(usize, Key)>,
}

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

    /// Has a revision asked for that is newer than anything a lost request can have done before now.
    fn probe(&mut self, i: usize, key: Key, write: &Write, fx: &mut Effects<Never>) {
        let shows = |s: &Source| s.selector.is_all_of(&write.key().namespace);
        let Some(source) = self.sources_of(i, write).into_iter().find(shows) else { return };
        if let Some(run) = self.hosted[i].runs.get_mut(&key) {
            // Held until the reply says which revision to wait for.
            run.barriers.push(Barrier::AtLeast(source.clone(), u64::MAX));
            run.pending += 1;
        }
        let probe = self.probes.entry(source.clone()).or_default();
        probe.next.push((i, key));
        if probe.waits_for.is_none() {
            self.ask_for_revision(source, fx);
        }
    }

    /// Asks for those who have come since it was asked for last.
    fn ask_for_revision(&mut self, source: Source, fx: &mut Effects<Never>) {
        let Some(probe) = self.probes.get_mut(&source) else { return };
        let id = fx.api(ApiRequest::list(&source.resource, &Selector::all(), 1, ""));
        probe.asked.append(&mut probe.next);
        probe.waits_for = Some(Awaited::Call(id));
    }

    /// A reply or a timer, if it is one that a question for a revision waits for.
    pub(super) fn step_probes(&mut self, now: Time, input: &Input<Never>, fx: &mut Effects<Never>) -> bool {
        let came = Awaited::of(input);
        let Some((source, probe)) = self.probes.iter_mut().find(|(_, probe)| came.is_some() && probe.waits_for == came)
        else {
            return false;
        };
        let source = source.clone();
        let Input::Api { result, .. } = input else {
            self.ask_for_revision(source, fx);
            return true;
        };
        let revision = match result.as_ref().map_err(Clone::clone).and_then(ApiResponse::json::<OnlyRevision>) {
            // A server whose lists have no revision that could be waited for is believed as it is.
            Ok(list) => list.metadata.resource_version.parse().unwrap_or(0),
            // The kind is gone, and all its objects with it.
            Err(error) if error.is_not_found() => 0,
            Err(_) => {
                probe.waits_for = Some(Awaited::Timer(fx.timer(now + PROBE_RETRY)));
                return true;
            }
        };
        let asked = std::mem::take(&mut probe.asked);
        if probe.next.is_empty() {
            self.probes.remove(&source);
        } else {
            self.ask_for_revision(source.clone(), fx);
        }
        for (i, key) in asked {
            self.one_less(i, &key);
            // What it came to doubt since then waits for the next one.
            let run = self.hosted[i].runs.get_mut(&key);
            let oldest = run.and_then(|run| {
                run.barriers.iter_mut().find_map(|barrier| match barrier {
                    Barrier::AtLeast(of, unknown @ u64::MAX) if *of == source => Some(unknown),
                    _ => None,
                })
            });
            if let Some(unknown) = oldest {
                *unknown = revision;
            }
            self.try_finish(now, i, &key);
        }
        true
    }
}
