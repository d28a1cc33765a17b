//! The network between each role and the API server.
//!
//! Each role has a link with a random stream of its own. A request may be lost on its way, its reply
//! may be lost after the commit, it may arrive after its sender has given up, and a request that
//! HTTP calls idempotent may arrive twice, as clients and proxies repeat those. A link may be cut
//! for a while: then nothing passes, and watches fall behind or break.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};

use crate::chance::{Delay, below, between};
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

struct Link {
    rng: Rng,
    cut_until: Time,
}

/// All links.
pub(crate) struct Net {
    root: Rng,
    /// Decides about bindings.
    bindings: Rng,
    faults: NetFaults,
    links: BTreeMap<Role, Link>,
}

impl Net {
    pub(crate) fn new(root: Rng, faults: NetFaults) -> Self {
        Self { bindings: root.fork("bindings"), root, faults, links: BTreeMap::new() }
    }

    /// From now on nothing fails, and everything is quick.
    pub(crate) fn heal(&mut self) {
        self.faults = NetFaults::none();
        for link in self.links.values_mut() {
            link.cut_until = Time::default();
        }
    }

    fn link(&mut self, role: Role) -> &mut Link {
        let root = &self.root;
        self.links
            .entry(role)
            .or_insert_with(|| Link { rng: root.fork(&format!("link {role}")), cut_until: Time::default() })
    }

    /// Cuts a link for a while.
    pub(crate) fn cut(&mut self, role: Role, until: Time) {
        self.link(role).cut_until = until;
    }

    /// What becomes of a request that is sent now.
    pub(crate) fn send(&mut self, now: Time, role: Role, idempotent: bool) -> Passage {
        let faults = self.faults;
        let link = self.link(role);
        let rng = &mut link.rng;
        let there = faults.latency.draw(rng);
        let back = faults.latency.draw(rng);
        if now < link.cut_until {
            // Some clients learn of it at once, others wait for their deadline.
            let seen = if rng.one_in(2) { there } else { faults.timeout };
            return Passage { arrives: None, again: None, reply: Reply::Lost(seen) };
        }
        let seen = if rng.one_in(3) { faults.timeout } else { there + back };
        let mut passage = Passage { arrives: Some(there), again: None, reply: Reply::After(back) };
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

    /// When a line of a watch that is sent now arrives.
    pub(crate) fn stream(&mut self, now: Time, role: Role) -> Time {
        let faults = self.faults;
        let link = self.link(role);
        let mut delay = faults.latency.draw(&mut link.rng);
        if link.rng.one_in(faults.watch_lags_one_in) {
            delay += below(&mut link.rng, faults.watch_lag);
        }
        (now + delay).max(link.cut_until)
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
            watch_lags_one_in: 0,
            watch_lag: Duration::ZERO,
            watch_breaks_one_in: 0,
            watch_life: Duration::ZERO,
            timeout: TIMEOUT,
        }
    }
}
