//! Who may be served now: seats, divided among priority levels, and queues before them.
//!
//! ```text
//!   arrive ─► a seat for its level? ── yes ─► served ─► leave ─┐
//!                   │ no                                       │ the next of the level's queues,
//!                   └─► its flow's shortest queue ◄────────────┘ one queue after the other
//!                             │ full
//!                             └─► refused
//! ```
//!
//! Each level has seats that nobody else takes; what is left over is lent, to each level so many at the most. So however many
//! requests a level gets, the others are served. Who waits within their level's share comes before those that borrow. Pure: time
//! is the caller's, who takes waiting requests out again ([`Seats::give_up`]).
//!
//! Upstream: API priority and fairness (KEP-1040). There limits between the same bounds are set every ten seconds, by what levels
//! wanted in the last ones; here a seat is lent, and given back, when a request comes or goes. The seats of all requests are
//! alike.

use std::collections::{BTreeMap, VecDeque};

/// What a priority level is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelConfig {
    /// Never waits and takes no seat.
    pub exempt: bool,
    /// Seats by its share.
    pub nominal: usize,
    /// How many of these others may use while it does not.
    pub lendable: usize,
    /// Most seats that it uses, its own and borrowed ones.
    pub limit: usize,
    /// Queues; none means that who finds no seat is refused.
    pub queues: usize,
    /// Longest queue.
    pub queue_length: usize,
    /// How many of the queues a flow may stand in.
    pub hand_size: usize,
}

/// A request's number.
pub type Ticket = u64;

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is served now.
    Served,
    /// It waits.
    Waits,
    /// There is no room.
    Refused,
}

#[derive(Debug)]
struct Level {
    config: LevelConfig,
    in_use: usize,
    queues: Vec<VecDeque<Ticket>>,
    /// The queue that was served last.
    last: usize,
}

impl Level {
    fn reserved(&self) -> usize {
        self.config.nominal - self.config.lendable.min(self.config.nominal)
    }

    fn waiting(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Whether the next seat is one of another's share.
    fn borrows(&self) -> bool {
        self.in_use >= self.config.nominal
    }
}

/// The seats of a server.
#[derive(Debug, Default)]
pub struct Seats {
    levels: BTreeMap<String, Level>,
    total: usize,
    in_use: usize,
}

impl Seats {
    /// Takes other levels, and says who is served because of it. Requests in flight of a level that is gone are
    /// counted no more; nor are they to leave one that is made anew under its name ([`Self::knows`]).
    pub fn configure(&mut self, total: usize, levels: BTreeMap<String, LevelConfig>) -> Vec<Ticket> {
        let mut old = std::mem::take(&mut self.levels);
        self.total = total;
        let mut homeless = Vec::new();
        for (name, config) in levels {
            let before = old.remove(&name);
            let mut level = Level {
                queues: vec![VecDeque::new(); config.queues],
                in_use: before.as_ref().map_or(0, |level| level.in_use),
                last: 0,
                config,
            };
            for (index, ticket) in before.into_iter().flat_map(|level| level.queues.into_iter().flatten()).enumerate() {
                match level.queues.len() {
                    // Served beyond its seats, and it gives one back when it goes.
                    0 => {
                        level.in_use += 1;
                        homeless.push(ticket);
                    }
                    count => level.queues[index % count].push_back(ticket),
                }
            }
            self.levels.insert(name, level);
        }
        self.in_use = self.levels.values().map(|level| level.in_use).sum();
        // Who waited in a level that is gone is served: it was let in once.
        homeless.extend(old.into_values().flat_map(|level| level.queues.into_iter().flatten()));
        // And who waited where there are more seats now.
        homeless.extend(self.serve());
        homeless
    }

    /// A request arrives. `flow` is a hash of who it belongs to within its level.
    pub fn arrive(&mut self, level: &str, flow: u64, ticket: Ticket) -> Arrival {
        let free = self.has_seat(level);
        let Some(own) = self.levels.get_mut(level) else { return Arrival::Served };
        if own.config.exempt {
            return Arrival::Served;
        }
        if free && !own.waiting() {
            own.in_use += 1;
            self.in_use += 1;
            return Arrival::Served;
        }
        let shortest =
            hand(flow, own.queues.len(), own.config.hand_size).into_iter().min_by_key(|queue| own.queues[*queue].len());
        match shortest {
            Some(queue) if own.queues[queue].len() < own.config.queue_length => {
                own.queues[queue].push_back(ticket);
                Arrival::Waits
            }
            _ => Arrival::Refused,
        }
    }

    /// A request that was served has ended. Those who are served now in its place.
    pub fn leave(&mut self, level: &str) -> Vec<Ticket> {
        if let Some(own) = self.levels.get_mut(level).filter(|own| own.in_use > 0) {
            own.in_use -= 1;
            self.in_use -= 1;
        }
        self.serve()
    }

    /// A request waits no longer; false when it does not wait (it has been served meanwhile).
    pub fn give_up(&mut self, level: &str, ticket: Ticket) -> bool {
        let Some(own) = self.levels.get_mut(level) else { return false };
        for queue in &mut own.queues {
            if let Some(at) = queue.iter().position(|waiting| *waiting == ticket) {
                queue.remove(at);
                return true;
            }
        }
        false
    }

    /// Whether there is a level of this name.
    #[must_use]
    pub fn knows(&self, level: &str) -> bool {
        self.levels.contains_key(level)
    }

    /// The levels by their names, with who waits in each of their queues.
    pub fn queues(&self) -> impl Iterator<Item = (&str, &[VecDeque<Ticket>])> {
        self.levels.iter().map(|(name, level)| (name.as_str(), level.queues.as_slice()))
    }

    /// Whether a level may take a seat: one of those that are its own, or one that nobody has a right to.
    fn has_seat(&self, name: &str) -> bool {
        let Some(own) = self.levels.get(name) else { return false };
        if own.in_use < own.reserved() {
            return true;
        }
        if own.in_use >= own.config.limit {
            return false;
        }
        let kept: usize = self
            .levels
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(_, level)| level.reserved().saturating_sub(level.in_use))
            .sum();
        self.in_use + kept < self.total
    }

    /// Serves who waits and may be served now: one of each level, and again.
    fn serve(&mut self) -> Vec<Ticket> {
        let mut served = Vec::new();
        loop {
            let before = served.len();
            let waiting = self.levels.iter().filter(|(_, level)| level.waiting());
            let mut names: Vec<_> = waiting.map(|(name, level)| (level.borrows(), name.clone())).collect();
            names.sort_unstable();
            for (borrows, name) in names {
                if borrows && served.len() > before {
                    break;
                }
                if !self.has_seat(&name) {
                    continue;
                }
                let Some(level) = self.levels.get_mut(&name) else { continue };
                let count = level.queues.len();
                let next = (1..=count).map(|step| (level.last + step) % count).find(|at| !level.queues[*at].is_empty());
                if let Some(at) = next
                    && let Some(ticket) = level.queues[at].pop_front()
                {
                    level.last = at;
                    level.in_use += 1;
                    self.in_use += 1;
                    served.push(ticket);
                }
            }
            if served.len() == before {
                return served;
            }
        }
    }
}

/// The queues of a flow: `size` different ones, dealt by its hash.
fn hand(flow: u64, queues: usize, size: usize) -> Vec<usize> {
    let mut cards: Vec<usize> = (0..queues).collect();
    let mut rest = flow;
    let mut dealt = Vec::new();
    for _ in 0..size.min(queues) {
        let left = cards.len() as u64;
        dealt.push(cards.swap_remove(usize::try_from(rest % left).unwrap_or(0)));
        // Another digit; when they are used up, a mix of the first.
        rest = if rest >= left { rest / left } else { (flow ^ left).wrapping_mul(0x9e37_79b9_7f4a_7c15) };
    }
    dealt
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(nominal: usize, lendable: usize) -> LevelConfig {
        LevelConfig { exempt: false, nominal, lendable, limit: 20, queues: 4, queue_length: 5, hand_size: 2 }
    }

    fn seats() -> Seats {
        let mut seats = Seats::default();
        let exempt = LevelConfig { exempt: true, ..level(0, 0) };
        let levels = [("exempt", exempt), ("nodes", level(4, 1)), ("others", level(6, 3))];
        let gone = seats.configure(10, levels.into_iter().map(|(name, config)| (name.to_owned(), config)).collect());
        assert!(gone.is_empty());
        seats
    }

    #[test]
    fn a_flood_leaves_the_others_their_seats() {
        let mut seats = seats();
        let arrivals: Vec<Arrival> = (0..50).map(|ticket| seats.arrive("others", 7, ticket)).collect();
        let count = |what: Arrival| arrivals.iter().filter(|a| **a == what).count();
        // All but the three that nodes keep, and two queues of five.
        assert_eq!((count(Arrival::Served), count(Arrival::Waits), count(Arrival::Refused)), (7, 10, 33));
        for ticket in 100..103 {
            assert_eq!(seats.arrive("nodes", 1, ticket), Arrival::Served);
        }
        assert_eq!(seats.arrive("nodes", 1, 103), Arrival::Waits);
        assert_eq!(seats.arrive("exempt", 1, 200), Arrival::Served);
        // Another flow of the flooded level has queues of its own.
        assert!((0..20).any(|flow| seats.arrive("others", flow, 300 + flow) == Arrival::Waits));
        assert_eq!(seats.leave("nodes"), [103]);
    }

    /// How many of a flood are served, with so many seats of which others lend what they have, and how many wait.
    #[track_caller]
    fn check_flood(config: &LevelConfig, want: (usize, usize)) {
        let mut seats = Seats::default();
        let levels = [("flooded", config.clone()), ("lender", level(10, 10))];
        seats.configure(12, levels.into_iter().map(|(name, config)| (name.to_owned(), config)).collect());
        let arrivals: Vec<Arrival> = (0..40).map(|ticket| seats.arrive("flooded", 7, ticket)).collect();
        let count = |what: Arrival| arrivals.iter().filter(|arrival| **arrival == what).count();
        assert_eq!((count(Arrival::Served), count(Arrival::Waits)), want, "{config:?}");
        // One that goes makes room for one that waits, and for no more.
        assert_eq!(seats.leave("flooded").len(), want.0.min(want.1).min(1), "{config:?}");
    }

    #[test]
    fn levels_borrow_what_they_may() {
        let reject = |limit: usize| LevelConfig { queues: 0, limit, ..level(2, 0) };
        check_flood(&reject(2), (2, 0));
        check_flood(&reject(5), (5, 0));
        check_flood(&reject(20), (12, 0));
        check_flood(&LevelConfig { limit: 2, ..level(2, 0) }, (2, 10));
        check_flood(&LevelConfig { limit: 0, ..level(0, 0) }, (0, 10));
    }

    /// A lender that wants its seats back gets them as they become free, before those that borrowed them.
    #[test]
    fn lenders_come_before_borrowers() {
        let mut seats = Seats::default();
        let levels = [("borrower", level(2, 0)), ("lender", level(4, 4))];
        seats.configure(6, levels.into_iter().map(|(name, config)| (name.to_owned(), config)).collect());
        for ticket in 0..8 {
            let want = if ticket < 6 { Arrival::Served } else { Arrival::Waits };
            assert_eq!(seats.arrive("borrower", 7, ticket), want);
        }
        for ticket in 10..13 {
            assert_eq!(seats.arrive("lender", 7, ticket), Arrival::Waits);
        }
        let mut next = Vec::new();
        for _ in 0..5 {
            next.extend(seats.leave("borrower"));
        }
        assert_eq!(next.iter().filter(|ticket| **ticket >= 10).count(), 3);
        assert!(next[..3].iter().all(|ticket| *ticket >= 10), "{next:?}");
    }

    #[test]
    fn new_levels_serve_who_waited() {
        let mut seats = seats();
        for ticket in 0..9 {
            seats.arrive("others", 7, ticket);
        }
        let more = BTreeMap::from([("others".to_owned(), level(8, 0))]);
        assert_eq!(seats.configure(8, more), [7]);
        let none = BTreeMap::from([("others".to_owned(), LevelConfig { queues: 0, ..level(8, 0) })]);
        assert_eq!(seats.configure(8, none), [8]);
        assert_eq!(seats.in_use, 9);
        assert!(seats.leave("others").is_empty());
        assert_eq!(seats.arrive("others", 7, 10), Arrival::Refused);
    }

    #[test]
    fn who_gives_up_is_not_served() {
        let mut seats = seats();
        for ticket in 0..8 {
            seats.arrive("others", 7, ticket);
        }
        assert!(seats.give_up("others", 7));
        assert!(!seats.give_up("others", 7));
        assert!(seats.leave("others").is_empty());
    }

    #[test]
    fn hands_are_of_different_queues() {
        for flow in [0, 1, 63, u64::MAX, 0x1234_5678_9abc_def0] {
            let mut cards = hand(flow, 64, 8);
            cards.sort_unstable();
            cards.dedup();
            assert_eq!(cards.len(), 8, "{flow}");
        }
        assert!(hand(5, 0, 8).is_empty());
    }

    proptest! {
        /// Whatever comes and goes: no more are served than there are seats, nobody waits while a seat is
        /// theirs, and nobody is forgotten.
        #[test]
        fn seats_are_kept(steps in proptest::collection::vec((0_u8..4, 0_u64..6, any::<bool>()), 0..300)) {
            let mut seats = seats();
            let mut serving: Vec<(&str, u64)> = Vec::new();
            let mut waiting: Vec<(&str, u64)> = Vec::new();
            for (ticket, (what, flow, nodes)) in steps.into_iter().enumerate() {
                let level = if nodes { "nodes" } else { "others" };
                let ticket = ticket as u64;
                match what {
                    0 | 1 => match seats.arrive(level, flow, ticket) {
                        Arrival::Served => serving.push((level, ticket)),
                        Arrival::Waits => waiting.push((level, ticket)),
                        Arrival::Refused => {}
                    },
                    2 => {
                        if let Some(at) = serving.iter().position(|(l, _)| *l == level) {
                            serving.remove(at);
                            for next in seats.leave(level) {
                                let at = waiting.iter().position(|(_, t)| *t == next).expect("somebody who waits");
                                serving.push(waiting.remove(at));
                            }
                        }
                    }
                    _ => {
                        if let Some(at) = waiting.iter().position(|(l, _)| *l == level) {
                            let (level, ticket) = waiting.remove(at);
                            prop_assert!(seats.give_up(level, ticket));
                        }
                    }
                }
                prop_assert!(serving.len() <= 10 && seats.in_use == serving.len());
                for (level, reserved) in [("nodes", 3), ("others", 3)] {
                    let served = serving.iter().filter(|(l, _)| *l == level).count();
                    let waits = waiting.iter().any(|(l, _)| *l == level);
                    prop_assert!(!waits || served >= reserved, "{level} waits with {served} served");
                }
            }
        }
    }
}
