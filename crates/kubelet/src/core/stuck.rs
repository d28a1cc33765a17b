//! Containers that the runtime has lost sight of, or cannot stop.
//!
//! ```text
//!   running ─▶ unknown: told, and left alone ─ it is known again ─▶ running, or over
//!                            └ for long, by listing after listing ─▶ stopped, and started anew once it is known to be over
//!
//!   stop fails ─▶ is tried again ─ its time is over ─▶ its sandbox is stopped all the same
//!                  └ it is not to end any more ─▶ as if nobody had tried
//! ```
//!
//! A runtime that starts anew may not reach the shim of a container at once, and one whose shim is lost it never reaches again.
//! Upstream kills such a container at the next sync (`computePodActions`). Here it has a while first: what it was before is what it
//! most likely is, and a machine is not to end for a shim that was slow to answer. Who stays unknown can be neither probed nor looked
//! into, and nobody would hear of its end: so it is stopped, as whatever the runtime finds of it.
//!
//! Time alone does not count. Clocks are set, and a runtime that is silent says nothing of anybody: a container has been unknown for
//! long when many listings in a row, of a runtime that has answered each, have said so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use super::worker::{Killing, PodRuntime};
use super::{Fx, KubeletCore};
use crate::pods::plan::Kill;
use crate::runtime::{ContainerState, Uid};

/// How long a container has to be unknown until it is stopped, and how many listings have to say so.
const PATIENCE: Duration = Duration::from_secs(30);
const LISTINGS: u32 = 30;

/// What is noted of a pod's containers.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// Those that are unknown: since when, and how many listings have shown that.
    unknown: BTreeMap<String, (Time, u32)>,
    lost: BTreeSet<String>,
    /// Those that could not be stopped, and when their time is over.
    unstopped: BTreeMap<String, Time>,
    spent: BTreeSet<String>,
}

impl Stuck {
    /// Whether the last listings have called a container unknown.
    pub fn is_unknown(&self, id: &str) -> bool {
        self.unknown.contains_key(id)
    }

    /// Containers that have been unknown for long.
    pub fn lost(&self) -> &BTreeSet<String> {
        &self.lost
    }

    /// Containers that could not be stopped, whose time is over, and that nobody is stopping just now.
    pub fn spent(&self) -> &BTreeSet<String> {
        &self.spent
    }

    /// The runtime could not be listed: what it says next is not what it said before.
    pub fn is_silent(&mut self, now: Time) {
        self.unknown.values_mut().for_each(|seen| *seen = (now, 0));
    }

    /// A listing shows these to be unknown. Returns which of them are since then, and whether others have been for long than before.
    fn sees(&mut self, now: Time, unknown: &BTreeSet<&str>) -> (Vec<String>, bool) {
        self.unknown.retain(|id, _| unknown.contains(id.as_str()));
        let is_new = |id: &&&str| !self.unknown.contains_key(**id);
        let new: Vec<String> = unknown.iter().filter(is_new).map(|id| (*id).to_owned()).collect();
        self.unknown.extend(new.iter().map(|id| (id.clone(), (now, 0))));
        self.unknown.values_mut().for_each(|(_, listings)| *listings = listings.saturating_add(1));
        let for_long =
            |(_, (since, listings)): &(&String, &(Time, u32))| now.since(*since) >= PATIENCE && *listings >= LISTINGS;
        let lost: BTreeSet<String> = self.unknown.iter().filter(for_long).map(|(id, _)| id.clone()).collect();
        let is_other = lost != self.lost;
        self.lost = lost;
        (new, is_other)
    }

    /// A container could not be stopped; when its time is over, if this is the first time.
    pub fn was_not_stopped(&mut self, id: &str, over_at: Time) {
        let at = self.unstopped.entry(id.to_owned()).or_insert(over_at);
        *at = (*at).min(over_at);
    }

    /// These are to end. Of the others nobody counts as one who could not be stopped: when he is to end later, he has all his time.
    pub fn are_to_end(&mut self, kills: &[Kill], killing: &BTreeMap<String, Killing>) {
        self.unstopped.retain(|id, _| killing.contains_key(id) || kills.iter().any(|kill| kill.id == *id));
    }

    /// Looks whose time is over.
    pub fn look(&mut self, now: Time, killing: &BTreeMap<String, Killing>, runtime: &PodRuntime) {
        let runs = |id: &String| runtime.containers.iter().any(|c| c.id == *id && c.may_run());
        self.unstopped.retain(|id, _| runs(id));
        let is_over = |(id, at): &(&String, &Time)| **at <= now && !killing.contains_key(*id);
        self.spent = self.unstopped.iter().filter(is_over).map(|(id, _)| id.clone()).collect();
    }
}

impl PodRuntime {
    /// A planted bug: what is unknown counts as over.
    pub fn ends_unknown(&mut self, now: Time) {
        for c in self.containers.iter_mut().filter(|c| c.state == ContainerState::Unknown) {
            let (reason, message) = ("Unknown".to_owned(), String::new());
            c.state = ContainerState::Exited { code: 255, reason, message, finished_at: now };
        }
    }
}

impl KubeletCore {
    /// Looks for containers that a listing shows to be unknown.
    pub(super) fn find_unknown(&mut self, now: Time, fx: &mut Fx) {
        let mut found: Vec<(Uid, String)> = Vec::new();
        for (uid, w) in self.workers.iter_mut().filter(|(uid, _)| !self.doubts.has(uid)) {
            let all = self.runtime.get(uid).into_iter().flat_map(|runtime| &runtime.containers);
            let unknown: BTreeSet<&str> =
                all.filter(|c| c.state == ContainerState::Unknown).map(|c| c.id.as_str()).collect();
            let (new, is_other) = w.stuck.sees(now, &unknown);
            found.extend(new.into_iter().map(|id| (uid.clone(), id)));
            if is_other {
                self.dirty.insert(uid.clone());
            }
        }
        for (uid, id) in found {
            let Some(w) = self.workers.remove(&uid) else { continue };
            let why = "is in \"unknown\" state: the container runtime has lost sight of it".to_owned();
            self.told_of(now, &w, &id, "ContainerStateUnknown", why, fx);
            self.workers.insert(uid, w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Time {
        Time::from_unix_s(s)
    }

    #[test]
    fn who_is_unknown_is_lost_after_a_while_and_many_listings() {
        let unknown = BTreeSet::from(["a"]);
        // How many seconds lie between two listings, how many there are, and whether it is lost then.
        for (every_s, listings, is_lost) in [(1, 30, false), (1, 31, true), (3600, 3, false), (0, 99, false)] {
            let mut stuck = Stuck::default();
            for n in 0..listings {
                let (new, _) = stuck.sees(at(n * every_s), &unknown);
                assert_eq!(new.is_empty(), n > 0, "it is told once");
            }
            assert_eq!(stuck.lost().contains("a"), is_lost, "{listings} listings, {every_s} s apart");
        }
    }

    #[test]
    fn who_is_known_again_or_not_asked_for_begins_anew() {
        let unknown = BTreeSet::from(["a"]);
        for is_silent in [false, true] {
            let mut stuck = Stuck::default();
            for n in 0..60 {
                _ = stuck.sees(at(n), &unknown);
                if n == 29 && is_silent {
                    stuck.is_silent(at(n));
                } else if n == 29 {
                    assert_eq!(stuck.sees(at(n), &BTreeSet::new()), (Vec::new(), false));
                }
                assert!(n > 57 || stuck.lost().is_empty(), "silent: {is_silent}, at {n}");
            }
        }
    }
}
