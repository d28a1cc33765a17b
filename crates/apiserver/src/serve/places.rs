//! Who has how many of the connections that there may be at a time.
//!
//! All are anybody's until they are gone. Who then comes from where there are fewer takes the place of one from where there are
//! most: of that which has asked for nothing for the longest. So nobody keeps others out by holding all of them, however many
//! requests or watches go over each. Where a client comes from is all that is known of it before it has said a word; many
//! behind one address share what that has.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The places, and who has them.
pub(super) struct Places {
    most: usize,
    /// Counts requests, so that it is known which was before which.
    requests: AtomicU64,
    taken: Mutex<Taken>,
}

/// By where they come from, then by their numbers.
#[derive(Default)]
struct Taken {
    by_source: BTreeMap<IpAddr, BTreeMap<u64, Arc<Seat>>>,
    count: usize,
    next: u64,
}

#[derive(Default)]
struct Seat {
    /// When a request came last.
    asked: AtomicU64,
    given_up: Notify,
}

/// A connection's place, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    source: IpAddr,
    id: u64,
    seat: Arc<Seat>,
}

impl Places {
    /// With room for so many connections.
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, requests: AtomicU64::new(0), taken: Mutex::default() })
    }

    /// A place for a connection from there; none when all are taken and nobody has more than those from there.
    pub(super) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let source = source(address);
        // Nothing that holds it can panic half way.
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.count >= self.most {
            taken.give_up_one_for(source)?;
        }
        taken.next += 1;
        let (id, seat) = (taken.next, Arc::new(Seat::default()));
        seat.asked.store(self.requests.load(Ordering::Relaxed), Ordering::Relaxed);
        taken.by_source.entry(source).or_default().insert(id, Arc::clone(&seat));
        taken.count += 1;
        Some(Place { places: Arc::clone(self), source, id, seat })
    }
}

impl Taken {
    fn give_up_one_for(&mut self, source: IpAddr) -> Option<()> {
        let own = self.by_source.get(&source).map_or(0, BTreeMap::len);
        let (most, seats) = self.by_source.iter().max_by_key(|(_, seats)| seats.len())?;
        if seats.len() <= own + 1 {
            return None;
        }
        let longest = seats.iter().min_by_key(|(id, seat)| (seat.asked.load(Ordering::Relaxed), **id));
        let (most, id) = (*most, *longest?.0);
        if let Some(seat) = self.remove(most, id) {
            seat.given_up.notify_one();
        }
        Some(())
    }

    fn remove(&mut self, source: IpAddr, id: u64) -> Option<Arc<Seat>> {
        let seats = self.by_source.get_mut(&source)?;
        let seat = seats.remove(&id)?;
        if seats.is_empty() {
            self.by_source.remove(&source);
        }
        self.count -= 1;
        Some(seat)
    }
}

impl Place {
    /// A request has come.
    pub(super) fn asked(&self) {
        let now = self.places.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.seat.asked.store(now, Ordering::Relaxed);
    }

    /// Returns when the place is somebody else's.
    pub(super) async fn given_up(&self) {
        self.seat.given_up.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(self.source, self.id);
    }
}

/// Where somebody comes from: one who has an IPv6 address has the 2⁶⁴ around it, too.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn from(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn who_has_most_gives_up_what_is_used_least() {
        let places = Places::new(4);
        let of = |address: &str| places.take(from(address));
        let mut greedy: Vec<Place> = (0..4).map(|_| of("10.0.0.1").expect("room")).collect();
        for place in [&greedy[0], &greedy[1], &greedy[3]] {
            place.asked();
        }
        assert!(of("10.0.0.1").is_none(), "those from there have no fewer than anybody");
        let other = of("10.0.0.2").expect("one who has nothing is let in");
        let lost =
            |greedy: &[Place]| greedy.iter().map(|place| place.given_up().now_or_never().is_some()).collect::<Vec<_>>();
        assert_eq!(lost(&greedy), [false, false, true, false]);
        let third = of("10.0.0.3").expect("so is another");
        assert_eq!(lost(&greedy), [true, false, false, false]);
        assert!(of("10.0.0.2").is_none(), "two have two, then, and nobody more than one more");
        // What was given up is given back once.
        greedy.clear();
        assert_eq!(places.taken.lock().expect("lock").count, 2);
        drop((other, third));
        let taken = places.taken.lock().expect("lock");
        assert_eq!((taken.count, taken.by_source.len()), (0, 0));
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(source(from(one)) == source(from(other)), same, "{one} {other}");
        }
    }
}
