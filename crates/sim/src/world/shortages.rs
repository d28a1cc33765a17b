//! What there is too little of for a while: well devices, room on a node's disk, room for the API servers' store.
//!
//! A full store refuses writes and answers reads, as the embedded one does, whose log has no room: it is told apart from one that
//! is broken, and takes writes again as soon as somebody has made room. What is answered as written is looked for there, then and
//! at any other time.

use std::time::Duration;

use carrack_apiserver::Response;

use super::{Fault, Happening, World};
use crate::chance::{between, pick};
use crate::invariants::Breach;
use crate::plants::Bug;
use crate::server::{Asked, Flight};

/// The invariant that is looked after here.
pub(crate) const ANSWERED: &str = "answers-are-in-the-store";

/// For how long a device plugin is in a mood.
const MOOD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// For how long a node's disk is full.
const DISK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(40));
/// For how long the store is: for less than nodes may be silent.
const STORE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(20));

/// Whether the reply to a request shows an object as the request has left it.
fn shows_what_is_written(label: &str) -> bool {
    ["POST ", "PUT ", "PATCH "].iter().any(|method| label.starts_with(method)) && !label.contains("dryRun=")
}

impl World {
    /// A device plugin gets into a mood, or something is full.
    pub(super) fn falls_short(&mut self, fault: Fault) {
        let now = self.queue.now();
        let numbers: Vec<u8> = self.nodes.keys().copied().collect();
        let Some(rng) = self.faults.get_mut(&fault) else { return };
        let (least, most) = match fault {
            Fault::Mood => MOOD,
            Fault::FullDisk => DISK,
            _ => STORE,
        };
        let lasts = between(rng, least, most.min(self.swarm.longest));
        let ms = lasts.as_millis();
        if fault == Fault::FullStore {
            self.mark(format_args!("the API servers' store is full for {ms} ms"));
            self.server.pace.fill(self.bug() == Some(Bug::RefusedCounts));
            self.queue.after(lasts, Happening::Room);
            return;
        }
        let Some(number) = pick(rng, &numbers) else { return };
        let Some(node) = self.nodes.get_mut(&number) else { return };
        if fault == Fault::Mood {
            let Some((what, follow)) = node.plugins.mood(now, lasts, rng) else { return };
            self.mark(format_args!("node{number}: {what}"));
            self.follow(number, follow);
        } else {
            let room = node.disk.fill(now, lasts);
            self.mark(format_args!("the disk of node{number} is full for {ms} ms"));
            self.follow(number, vec![room]);
        }
    }

    /// Somebody has made room for the store, unless it was filled again since.
    pub(super) fn has_room(&mut self) {
        if self.server.pace.empty() {
            self.mark(format_args!("the API servers' store has room again"));
        }
    }

    /// What an API server answers as written is in the store.
    pub(super) fn is_in_the_store(&mut self, flight: &Flight, response: &Response) {
        let is_call = matches!(flight.asked, Asked::Call(_));
        if !is_call || !shows_what_is_written(&flight.label) || !response.status().is_success() {
            return;
        }
        let Some(object) = response.body().first() else { return };
        self.ledger.update(&self.server.mem);
        if let Some(lacks) = self.ledger.lacks(&object) {
            let what = format!("{} {} is answered with {lacks}", flight.role, flight.label);
            self.breaches.push(Breach::new(ANSWERED, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::Born;

    /// A cluster with one node, one API server and pods, in which nothing fails by itself.
    fn world() -> World {
        let options = Options { small: true, faults: false, ..Options::default() };
        let world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        assert_eq!((world.nodes.len(), world.server.count()), (1, 1));
        world
    }

    #[test]
    fn all_of_it_is_over_when_nothing_fails_any_more() {
        let mut world = world();
        for fault in [Fault::Mood, Fault::FullDisk, Fault::FullStore] {
            world.falls_short(fault);
        }
        let full = |world: &World| {
            let disks = world.nodes.values().map(|node| node.disk.is_full());
            (disks.collect::<Vec<_>>(), world.server.pace.is_full())
        };
        assert_eq!(full(&world), (vec![true], true));
        world.heal();
        assert_eq!(full(&world), (vec![false], false));
        world.has_room();
        assert!(!world.server.pace.is_full(), "room that was made long ago is of no use to anybody");
    }

    #[test]
    fn objects_are_shown_by_writes() {
        for (label, shows) in [
            ("POST /api/v1/namespaces/default/pods", true),
            ("PUT /api/v1/nodes/node1/status", true),
            ("PATCH /api/v1/nodes/node1", true),
            ("PATCH /api/v1/nodes/node1?dryRun=All", false),
            ("GET /api/v1/nodes/node1", false),
            ("DELETE /api/v1/nodes/node1", false),
        ] {
            assert_eq!(shows_what_is_written(label), shows, "{label}");
        }
    }
}
