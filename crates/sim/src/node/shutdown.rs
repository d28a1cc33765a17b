//! A machine that somebody shuts down in order: its kubelet is told, and holds it up until its pods have ended.
//!
//! It is held up no longer than all of them together have, and no longer than its kubelet lives, as systemd-logind has it.

use std::time::Duration;

use carrack_engine::Time;
use carrack_kubelet::In;
use carrack_kubelet::shutdown::Groups;

use super::{Follow, Node, NodeEvent};
use crate::invariants::Breach;

/// The invariant about it.
pub(crate) const NAME: &str = "shutdown-waits-for-pods";

/// What ordinary pods have, and critical ones, of which there are none here.
const ORDINARY: Duration = Duration::from_secs(20);
const CRITICAL: Duration = Duration::from_secs(5);
/// Until the kubelet has heard of it, and the machine of the kubelet.
const HEARING: Duration = Duration::from_secs(3);

/// Which pods end when, for a kubelet.
pub(crate) fn groups() -> Groups {
    Groups::of_two(ORDINARY + CRITICAL, CRITICAL)
}

impl Node {
    /// Somebody shuts it down; its kubelet of this life is told.
    pub(crate) fn shut_down(&mut self, now: Time, kubelet_life: u32) -> Vec<Follow> {
        if !self.up || self.held_since.is_some() {
            return Vec::new();
        }
        self.held_since = Some(now);
        self.runtime.pods_end = true;
        let told = Follow::Kubelet(kubelet_life, Duration::from_millis(20), Box::new(In::ShutdownBegins));
        vec![told, self.goes_down_after(groups().total() + HEARING)]
    }

    fn goes_down_after(&self, wait: Duration) -> Follow {
        Follow::Later(wait, NodeEvent::GoesDown(self.boot))
    }

    /// Whether it is being shut down, and held up.
    pub(crate) fn is_held(&self) -> bool {
        self.held_since.is_some()
    }

    /// It is not shut down after all.
    pub(crate) fn stays(&mut self, kubelet_life: u32) -> Vec<Follow> {
        let held = self.held_since.take();
        let told =
            held.map(|_| Follow::Kubelet(kubelet_life, Duration::from_millis(20), Box::new(In::ShutdownCancelled)));
        told.into_iter().collect()
    }

    /// Its kubelet has died, and holds up nothing.
    pub(super) fn unheld(&self) -> Option<Follow> {
        self.held_since.map(|_| self.goes_down_after(Duration::from_millis(100)))
    }

    /// Its kubelet lets it go.
    pub(super) fn let_go(&self, now: Time, breaches: &mut Vec<Breach>) -> Option<Follow> {
        let since = self.held_since?;
        let running = self.runtime.running().next().map(|c| format!("container {} of {}", c.record.name, c.record.pod));
        breaches.extend(too_early(self.number, now.since(since), running));
        Some(self.goes_down_after(Duration::from_millis(100)))
    }

    /// Nobody holds it up any more, if it is still the boot that this is about.
    pub(super) fn goes_down(&self, boot: u32) -> Vec<Follow> {
        if self.held_since.is_some() && boot == self.boot { vec![Follow::Down] } else { Vec::new() }
    }
}

/// A machine goes down that somebody had begun to shut down so long ago, while this runs.
fn too_early(number: u8, held: Duration, running: Option<String>) -> Option<Breach> {
    let running = running.filter(|_| held < ORDINARY)?;
    Some(Breach::new(NAME, format!("node{number} may go down while {running} runs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_goes_down_too_early_is_found() {
        for (held_s, runs, expected) in [(1, false, false), (1, true, true), (19, true, true), (20, true, false)] {
            let running = runs.then(|| "a container".to_owned());
            let found = too_early(1, Duration::from_secs(held_s), running);
            assert_eq!(found.is_some(), expected, "{held_s} s, runs: {runs}");
        }
    }
}
