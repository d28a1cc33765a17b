//! Where requests wait for their seat at a simulated API server. What is decided is decided by the real
//! fairness core (`carrack_apiserver::seats`); here is who waits, and for how long somebody is served.

use std::collections::BTreeMap;

use carrack_apiserver::Class;
use carrack_apiserver::seats::{Arrival, LevelConfig, Seats};

use crate::invariants::Breach;
use crate::server::FlightId;

/// The invariants' names.
pub(crate) const BOUNDED: &str = "seats-are-bounded";
pub(crate) const OWN_SEATS: &str = "own-seats-are-not-waited-for";

/// The seats of one server.
#[derive(Default)]
pub(crate) struct Hall {
    total: usize,
    seats: Seats,
    /// Which levels the seats know.
    pub generation: u64,
    levels: BTreeMap<String, LevelConfig>,
    /// Who is served, by level.
    served: BTreeMap<String, usize>,
    waiting: BTreeMap<FlightId, Class>,
    /// Whether anything has changed since it was checked.
    changed: bool,
    /// The planted bug, if it is one of these.
    fault: Option<Fault>,
}

/// What a planted bug does to the seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Everybody stands in one line.
    OneLine,
    /// Who goes gives two seats back.
    TwoForOne,
}

impl Hall {
    pub(crate) fn new(total: usize, fault: Option<Fault>) -> Self {
        Self { total, fault, ..Self::default() }
    }

    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// The level in whose line a request stands.
    fn line<'a>(&self, class: &'a Class) -> &'a str {
        if self.fault == Some(Fault::OneLine) { "global-default" } else { &class.level }
    }

    /// Other levels. Who is served now.
    pub(crate) fn configure(&mut self, generation: u64, levels: BTreeMap<String, LevelConfig>) -> Vec<FlightId> {
        (self.generation, self.changed) = (generation, true);
        self.levels = levels.clone();
        let next = self.seats.configure(self.total, levels);
        self.seated(&next);
        next
    }

    fn seated(&mut self, flights: &[FlightId]) {
        for flight in flights {
            if let Some(class) = self.waiting.remove(flight) {
                self.sits(&class);
            }
        }
    }

    pub(crate) fn arrive(&mut self, flight: FlightId, class: &Class) -> Arrival {
        self.changed = true;
        let arrival = self.seats.arrive(self.line(class), class.flow, flight);
        match arrival {
            Arrival::Served => self.sits(class),
            Arrival::Waits => drop(self.waiting.insert(flight, class.clone())),
            Arrival::Refused => {}
        }
        arrival
    }

    fn sits(&mut self, class: &Class) {
        *self.served.entry(class.level.clone()).or_default() += 1;
    }

    /// A request that was served has ended. Who is served in its place.
    pub(crate) fn leave(&mut self, class: &Class) -> Vec<FlightId> {
        self.changed = true;
        if let Some(count) = self.served.get_mut(&class.level) {
            *count = count.saturating_sub(1);
        }
        let mut next = self.seats.leave(self.line(class));
        if self.fault == Some(Fault::TwoForOne) {
            next.extend(self.seats.leave(self.line(class)));
        }
        self.seated(&next);
        next
    }

    /// A request waits no longer; false when it does not wait.
    pub(crate) fn give_up(&mut self, flight: FlightId) -> bool {
        let Some(class) = self.waiting.remove(&flight) else { return false };
        self.changed = true;
        self.seats.give_up(self.line(&class), flight)
    }

    /// No more are served than there are seats, and nobody waits while their level has fewer than its own.
    pub(crate) fn check(&mut self, breaches: &mut Vec<Breach>) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let exempt = |level: &str| self.levels.get(level).is_none_or(|config| config.exempt);
        let served: usize = self.served.iter().filter(|(level, _)| !exempt(level)).map(|(_, count)| count).sum();
        // Each level has a seat at the least, however few there are.
        let most: usize = self.levels.values().map(|config| config.nominal).sum::<usize>().max(self.total);
        if served > most {
            breaches.push(Breach::new(BOUNDED, format!("{served} requests are served on {most} seats")));
        }
        for class in self.waiting.values() {
            let Some(config) = self.levels.get(&class.level) else { continue };
            let own = config.nominal - config.lendable.min(config.nominal);
            let sits = self.served.get(&class.level).copied().unwrap_or(0);
            if sits < own {
                let what = format!("a request of {} waits while {sits} of its {own} seats are taken", class.level);
                breaches.push(Breach::new(OWN_SEATS, what));
                return;
            }
        }
    }
}
