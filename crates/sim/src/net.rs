//! The network between each role and the API server.
//!
//! Each role has a link with a random stream of its own. A request may be lost on its way, its reply
//! may be lost after the commit, it may arrive after its sender has given up, and a request that
//! HTTP calls idempotent may arrive twice, as clients and proxies repeat those. A write that was made
//! may be answered as if something had gone wrong. A link may be cut for a while: then nothing passes,
//! and watches fall behind or break. Or it is cut by half ([`Half`]).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{ApiError, Rng, Time};

use crate::chance::{Delay, below, between, pick};
use crate::options::{LATEST, NetFaults, TIMEOUT};
use crate::role::Role;

/// What becomes of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    /// When it arrives, if it does.
    pub arrives: Option<Duration>,
    /// When it arrives a second time.
    pub again: Option<Duration>,
    /// What the client sees.
    pub reply: Reply,
}

/// What a client sees of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    /// The reply, so long after it was made.
    After(Duration),
    /// No reply, known so long after the request was sent.
    Lost(Duration),
}

/// What is said instead of the reply to a write that was made: by an API server whose store did not answer in time, by a gateway
/// before it that lost the connection or waited for too long, and by a server that is about to end.
const DENIALS: [(u16, &str); 4] = [
    (500, r#"{"kind": "Status", "reason": "InternalError", "message": "the store gave no answer", "code": 500}"#),
    (502, "<html><h1>502 Bad Gateway</h1></html>"),
    (503, r#"{"kind": "Status", "reason": "ServiceUnavailable", "message": "shutting down", "code": 503}"#),
    (504, r#"{"kind": "Status", "reason": "Timeout", "message": "it took too long", "code": 504}"#),
];

/// What passes no more on a link that is cut by half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// What is asked is done, and nothing of it is heard, nor anything else.
    Replies,
    /// Watches go on telling, and what is asked arrives nowhere.
    Requests,
    /// One of several API servers is out of reach, and the others are not.
    Server(usize),
}

struct Link {
    rng: Rng,
    cut_until: Time,
    /// What is cut of it, and until when.
    half: Option<(Half, Time)>,
}

impl Link {
    fn new(rng: Rng) -> Self {
        Self { rng, cut_until: Time::default(), half: None }
    }

    /// What is cut of it now.
    fn half(&self, now: Time) -> Option<Half> {
        self.half.filter(|(_, until)| now < *until).map(|(half, _)| half)
    }

    /// Nothing of what is sent now arrives.
    fn swallows(&mut self, there: Duration, timeout: Duration) -> Passage {
        // Some clients learn of it at once, others wait for their deadline.
        let seen = if self.rng.one_in(2) { there } else { timeout };
        Passage { arrives: None, again: None, reply: Reply::Lost(seen) }
    }
}

/// All links.
pub(crate) struct Net {
    root: Rng,
    /// Decides about bindings.
    bindings: Rng,
    /// Decides which writes are denied.
    denials: Rng,
    faults: NetFaults,
    links: BTreeMap<Role, Link>,
}

impl Net {
    pub(crate) fn new(root: Rng, faults: NetFaults) -> Self {
        let (bindings, denials) = (root.fork("bindings"), root.fork("denials"));
        Self { bindings, denials, root, faults, links: BTreeMap::new() }
    }

    /// From now on nothing fails, and everything is quick.
    pub(crate) fn heal(&mut self) {
        self.faults = NetFaults::none();
        for link in self.links.values_mut() {
            link.cut_until = Time::default();
            link.half = None;
        }
    }

    fn link(&mut self, role: Role) -> &mut Link {
        let root = &self.root;
        self.links.entry(role).or_insert_with(|| Link::new(root.fork(&format!("link {role}"))))
    }

    /// Cuts a link for a while.
    pub(crate) fn cut(&mut self, role: Role, until: Time) {
        self.link(role).cut_until = until;
    }

    /// Cuts a link by half for a while.
    pub(crate) fn halve(&mut self, role: Role, half: Half, until: Time) {
        self.link(role).half = Some((half, until));
    }

    /// What becomes of a request to a server that its sender cannot reach, whatever else would have become of it.
    pub(crate) fn unreached(&mut self, now: Time, role: Role, server: usize) -> Option<Passage> {
        let faults = self.faults;
        let link = self.link(role);
        (link.half(now) == Some(Half::Server(server))).then(|| {
            let there = faults.latency.draw(&mut link.rng);
            link.swallows(there, faults.timeout)
        })
    }

    /// What becomes of a request that is sent now.
    pub(crate) fn send(&mut self, now: Time, role: Role, idempotent: bool) -> Passage {
        let faults = self.faults;
        let link = self.link(role);
        let there = faults.latency.draw(&mut link.rng);
        let back = faults.latency.draw(&mut link.rng);
        let half = link.half(now);
        if now < link.cut_until || half == Some(Half::Requests) {
            return link.swallows(there, faults.timeout);
        }
        let rng = &mut link.rng;
        let seen = if rng.one_in(3) { faults.timeout } else { there + back };
        let mut passage = Passage { arrives: Some(there), again: None, reply: Reply::After(back) };
        if half == Some(Half::Replies) {
            passage.reply = Reply::Lost(seen);
            return passage;
        }
        if rng.one_in(faults.lose_request_one_in) {
            passage = Passage { arrives: None, again: None, reply: Reply::Lost(seen) };
        } else if rng.one_in(faults.lose_reply_one_in) {
            passage.reply = Reply::Lost(seen);
        } else if rng.one_in(faults.late_one_in) && !matches!(role, Role::Replicas | Role::User) {
            // Only derived names survive a request that arrives when nobody expects it any more; that
            // controller draws its names, and what people ask for is what they get, also when it comes late.
            let late = seen + below(rng, faults.latest);
            passage = Passage { arrives: Some(late), again: None, reply: Reply::Lost(seen) };
        } else if idempotent && rng.one_in(faults.repeat_one_in) {
            passage.again = Some(there + faults.latency.draw(rng));
        }
        passage
    }

    /// What becomes of a binding that arrives after its sender has given it up, if this one does.
    pub(crate) fn late_binding(&mut self) -> Option<Passage> {
        let (rng, faults) = (&mut self.bindings, self.faults);
        if !rng.one_in(faults.late_binding_one_in) {
            return None;
        }
        let seen = faults.latency.draw(rng) + faults.latency.draw(rng);
        let late = seen + below(rng, faults.latest);
        Some(Passage { arrives: Some(late), again: None, reply: Reply::Lost(seen) })
    }

    /// What the client is told of a write that was made, if not that.
    pub(crate) fn denial(&mut self) -> Option<ApiError> {
        let rng = &mut self.denials;
        let is_denied = rng.one_in(self.faults.denied_one_in);
        let (code, body) = pick(rng, &DENIALS).filter(|_| is_denied)?;
        Some(ApiError::from_reply(code, body.as_bytes()))
    }

    /// When a line of a watch that a server sends now arrives.
    pub(crate) fn stream(&mut self, now: Time, role: Role, server: usize) -> Time {
        let faults = self.faults;
        let link = self.link(role);
        let mut delay = faults.latency.draw(&mut link.rng);
        if link.rng.one_in(faults.watch_lags_one_in) {
            delay += below(&mut link.rng, faults.watch_lag);
        }
        let silent = link.half.filter(|(half, _)| [Half::Replies, Half::Server(server)].contains(half));
        (now + delay).max(link.cut_until).max(silent.map_or(now, |(_, until)| until))
    }

    /// When a watch that is opened now breaks, if it does.
    pub(crate) fn breaks(&mut self, role: Role) -> Option<Duration> {
        let faults = self.faults;
        let link = self.link(role);
        let one_in = faults.watch_breaks_one_in;
        link.rng.one_in(one_in).then(|| between(&mut link.rng, Duration::from_millis(1), faults.watch_life))
    }

    /// One of two, drawn from the link's stream.
    pub(crate) fn coin(&mut self, role: Role) -> bool {
        self.link(role).rng.one_in(2)
    }
}

impl NetFaults {
    /// A network that only delays, a little.
    pub(crate) fn none() -> Self {
        Self {
            latency: Delay::micros(300),
            lose_request_one_in: 0,
            lose_reply_one_in: 0,
            late_one_in: 0,
            latest: LATEST,
            late_binding_one_in: 0,
            repeat_one_in: 0,
            denied_one_in: 0,
            watch_lags_one_in: 0,
            watch_lag: Duration::ZERO,
            watch_breaks_one_in: 0,
            watch_life: Duration::ZERO,
            timeout: TIMEOUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: Role = Role::Controllers;

    fn at(s: i64) -> Time {
        Time::from_unix_s(1000 + s)
    }

    /// Whether requests arrive at two servers, replies come, and lines of both do within a second, from one that is cut for ten.
    fn check(half: Half, s: i64, arrives: [bool; 2], is_answered: bool, tells: [bool; 2]) {
        let mut net = Net::new(Rng::new(1), NetFaults::none());
        net.halve(ROLE, half, at(10));
        for (server, arrives, tells) in [(0, arrives[0], tells[0]), (1, arrives[1], tells[1])] {
            let passage = net.send(at(s), ROLE, true);
            let passage = net.unreached(at(s), ROLE, server).unwrap_or(passage);
            let of = format!("{half:?} after {s} s, server {server}");
            assert_eq!(passage.arrives.is_some(), arrives, "{of}");
            let answered = matches!(passage.reply, Reply::After(_));
            assert_eq!(answered, is_answered && arrives, "{of}");
            assert_eq!(net.stream(at(s), ROLE, server) < at(s + 1), tells, "{of}");
        }
        // Nobody else is cut off.
        assert!(net.send(at(s), Role::Scheduler, true).arrives.is_some());
    }

    #[test]
    fn half_of_a_link_is_cut() {
        check(Half::Replies, 0, [true; 2], false, [false; 2]);
        check(Half::Requests, 0, [false; 2], false, [true; 2]);
        check(Half::Server(1), 0, [true, false], true, [true, false]);
        for half in [Half::Replies, Half::Requests, Half::Server(1)] {
            check(half, 10, [true; 2], true, [true; 2]);
        }
    }

    #[test]
    fn whoever_is_denied_a_write_does_not_know_whether_it_was_made() {
        let mut net = Net::new(Rng::new(1), NetFaults { denied_one_in: 2, ..NetFaults::none() });
        let told: Vec<Option<ApiError>> = (0..200).map(|_| net.denial()).collect();
        let denied: Vec<&ApiError> = told.iter().flatten().collect();
        assert!((70..130).contains(&denied.len()), "{}", denied.len());
        assert!(denied.iter().all(|error| error.is_unknown() && error.may_have_acted()), "{denied:?}");
        for (code, _) in DENIALS {
            assert!(denied.iter().any(|error| error.to_string().contains(&format!("({code} "))), "{code}");
        }
        net.heal();
        assert!((0..200).all(|_| net.denial().is_none()));
    }

    #[test]
    fn a_healed_link_is_whole() {
        let mut net = Net::new(Rng::new(1), NetFaults::none());
        net.halve(ROLE, Half::Replies, at(10));
        net.heal();
        assert!(matches!(net.send(at(0), ROLE, true).reply, Reply::After(_)));
        assert!(net.stream(at(0), ROLE, 0) < at(1));
    }
}
