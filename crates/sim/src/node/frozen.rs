//! Guests whose file systems are frozen: what a virt-handler's server does with their agents.
//!
//! ```text
//!   writes ─ freeze ─▶ writes nothing ─ unfreeze, or its time is over ─▶ writes
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;

use super::{Follow, Node};

/// Since when a guest is frozen, and until when at the most.
#[derive(Clone, Copy, Debug)]
struct Freeze {
    since: Time,
    until: Option<Time>,
}

impl Freeze {
    fn lasts(&self, now: Time) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Frozen guests, by their containers.
#[derive(Debug, Default)]
pub(crate) struct Frozen(BTreeMap<String, Freeze>);

impl Frozen {
    /// A guest is frozen for so long, or for as long as it takes. One that is frozen already has been since then.
    fn freeze(&mut self, compute: &str, now: Time, lasts: Duration) {
        let until = (!lasts.is_zero()).then_some(now + lasts);
        self.0.entry(compute.to_owned()).or_insert(Freeze { since: now, until }).until = until;
    }

    /// A guest is thawed, or gone. Whether it was frozen.
    pub(super) fn thaw(&mut self, compute: &str) -> bool {
        self.0.remove(compute).is_some()
    }

    /// The guests that have thawed by themselves since the last look.
    pub(super) fn over(&mut self, now: Time) -> Vec<String> {
        self.0.extract_if(.., |_, freeze| !freeze.lasts(now)).map(|(compute, _)| compute).collect()
    }

    /// Since when a guest is frozen, if it is.
    pub(crate) fn since(&self, compute: &str, now: Time) -> Option<Time> {
        self.0.get(compute).filter(|freeze| freeze.lasts(now)).map(|freeze| freeze.since)
    }
}

impl Node {
    /// The container of an instance's guest whose agent can be asked.
    fn speaks(&self, instance: &str) -> Result<String, String> {
        let found = self.guests.alive().find(|(_, guest)| guest.domain.uid == instance && guest.domain.agent_connected);
        found.map(|(compute, _)| compute.to_owned()).ok_or_else(|| "no agent answers".to_owned())
    }

    /// The guest of an instance is frozen for so long; without a time until it is thawed.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn freeze(&mut self, now: Time, instance: &str, lasts: Duration) -> Result<Vec<Follow>, String> {
        let compute = self.speaks(instance)?;
        self.write(now);
        self.guests.frozen.freeze(&compute, now, lasts);
        let said = Follow::Say(format!("the guest of {instance} in {compute} is frozen for {} s", lasts.as_secs()));
        Ok([said].into_iter().chain(self.guests.agent_changed(instance)).collect())
    }

    /// The guest of an instance is thawed. `unasked`: whoever has asked for it is not there any more, or has given it up.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn thaw(&mut self, now: Time, instance: &str, unasked: bool) -> Result<Vec<Follow>, String> {
        let compute = self.speaks(instance)?;
        self.write(now);
        if self.guests.frozen.thaw(&compute) && unasked {
            self.disturb(&compute, now);
        }
        let said = Follow::Say(format!("the guest of {instance} in {compute} is thawed"));
        Ok([said].into_iter().chain(self.guests.agent_changed(instance)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_guest_thaws_in_time() {
        let at = Time::from_unix_s;
        let mut frozen = Frozen::default();
        frozen.freeze("bounded", at(1), Duration::from_secs(10));
        frozen.freeze("unbounded", at(1), Duration::ZERO);
        for (s, of, since) in [
            (1, "bounded", Some(1)),
            (10, "bounded", Some(1)),
            (11, "bounded", None),
            (999, "unbounded", Some(1)),
            (1, "other", None),
        ] {
            assert_eq!(frozen.since(of, at(s)), since.map(at), "{of} after {s} s");
        }
        // It is told to stay so for longer.
        frozen.freeze("bounded", at(5), Duration::from_secs(10));
        assert_eq!(frozen.since("bounded", at(14)), Some(at(1)));
        assert!(frozen.over(at(14)).is_empty());
        assert_eq!(frozen.over(at(15)), ["bounded"]);
        assert_eq!((frozen.thaw("bounded"), frozen.thaw("unbounded"), frozen.thaw("unbounded")), (false, true, false));
    }
}
