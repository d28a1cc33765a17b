//! People who lose patience: a machine that is being stopped is given less time for it.
//!
//! ```text
//!   halted ─▶ its guest does not heed its power button ─▶ stop, with a shorter grace period ─▶ ended when that is over
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_types::kubevirt::{VirtualMachine, run_strategy};
use carrack_types::resource::Kind as _;
use serde_json::json;

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::Node;
use crate::observer::{Change, text};
use crate::wants::Want;
use crate::workload::{Act, What, ask, halt, machine, up_to};

/// The invariant.
pub(crate) const NAME: &str = "hurried-guests-end";
/// The name of this part of the work, and what such machines are called.
pub(crate) const PART: &str = "hurried";

/// How long their guests may take if nobody hurries: far longer than it takes to see that one was not hurried.
const GRACE_S: u64 = 300;
/// How long a guest may be there when its time is over, once nothing fails any more: the controllers may have to be elected, and
/// a new monitor to be started.
const WITHIN: Duration = Duration::from_secs(120);

/// Machines that are switched off, and are to be off at once soon after.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    // Not every guest is stubborn.
    for n in 0..1 + rng.below(up_to(6, safety)) {
        let name = format!("{PART}{n}");
        let mut at = between(rng, Duration::from_secs(1), safety / 5);
        let (resource, object) = (VirtualMachine::resource(), machine(&name, run_strategy::ALWAYS, GRACE_S));
        acts.push(Act { at, what: What::Create { resource, object, want: Some(("vm", Want::Up)) } });
        at += between(rng, safety / 3, safety / 2);
        acts.push(halt(at, &name));
        at += between(rng, Duration::from_millis(500), Duration::from_secs(3));
        acts.push(ask(at, &name, "stop", json!({"gracePeriod": rng.below(3)})));
    }
}

/// Instances that are to be stopped within a time that somebody named, by UID.
#[derive(Debug, Default)]
pub(crate) struct Hurried {
    /// Since when, and how long they have.
    asked: BTreeMap<String, (Time, Duration)>,
    /// Since when guests are there whose time is over, where somebody could end them.
    late: BTreeMap<String, Time>,
}

impl Hurried {
    /// Changes that were just committed.
    pub(crate) fn changed(&mut self, now: Time, changes: &[Change]) {
        for vm in changes.iter().filter(|change| change.resource == "vm").filter_map(|change| change.after.as_ref()) {
            let Some(request) = vm.pointer("/status/stateChangeRequests/0").filter(|first| first["action"] == "Stop")
            else {
                continue;
            };
            let Ok(seconds) = text(request, "/data/gracePeriod").parse::<u64>() else { continue };
            let (instance, has) = (text(request, "/uid").to_owned(), Duration::from_secs(seconds));
            let (since, most) = self.asked.entry(instance).or_insert((now, has));
            if now + has < *since + *most {
                (*since, *most) = (now, has);
            }
        }
    }

    /// Looked at from time to time, while nothing has failed since then. `up`: the nodes whose kubelet and handler are there.
    pub(crate) fn look(
        &mut self,
        now: Time,
        calm: Time,
        up: &BTreeSet<u8>,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let there = nodes.values().filter(|node| node.up && up.contains(&node.number));
        let guests = there.flat_map(|node| node.guests.alive());
        let guests = guests.map(|(_, guest)| (guest.domain.uid.as_str(), guest.name.as_str())).collect();
        self.overdue(now, calm, &guests, breaches);
    }

    /// The same of these guests, by the UIDs of their instances, each with its name.
    fn overdue(&mut self, now: Time, calm: Time, guests: &BTreeMap<&str, &str>, breaches: &mut Vec<Breach>) {
        let asked = &self.asked;
        let is_late = |uid: &str| asked.get(uid).is_some_and(|(since, has)| now > (*since).max(calm) + *has);
        self.late.retain(|uid, _| guests.contains_key(uid.as_str()) && is_late(uid.as_str()));
        for (&uid, &name) in guests {
            if !is_late(uid) {
                continue;
            }
            let since = *self.late.entry(uid.to_owned()).or_insert(now);
            if now.since(since) > WITHIN {
                let seconds = now.since(since).as_secs();
                let what = format!("the guest of {name} ({uid}) runs {seconds} s longer than it was to");
                breaches.push(Breach::new(NAME, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn who_is_hurried_ends_in_time() {
        let asks = |requests: Value| {
            let vm = json!({"status": {"stateChangeRequests": requests}});
            Change { resource: "vm", before: None, after: Some(vm) }
        };
        let stop = |data: Value| asks(json!([{"action": "Stop", "uid": "a", "data": data}, {"action": "Start"}]));
        let at = Time::from_unix_s;
        let check = |changes: &[(i64, Change)], runs: bool, calm_s: i64, seen_s: i64, expected: bool| {
            let mut own = Hurried::default();
            for (at_s, change) in changes {
                own.changed(at(*at_s), std::slice::from_ref(change));
            }
            let mut breaches = Vec::new();
            let guests = if runs { BTreeMap::from([("a", "default/x")]) } else { BTreeMap::new() };
            for second in calm_s..=seen_s {
                own.overdue(at(second), at(calm_s), &guests, &mut breaches);
            }
            assert_eq!(!breaches.is_empty(), expected, "{changes:?}, until {seen_s}");
        };
        let short = || vec![(100_i64, stop(json!({"gracePeriod": "10"})))];
        check(&short(), true, 50, 231, false);
        check(&short(), true, 50, 232, true);
        check(&short(), false, 50, 400, false);
        // What could not be done has its time from when it could.
        check(&short(), true, 200, 331, false);
        check(&short(), true, 200, 332, true);
        check(&[(100, stop(json!({})))], true, 50, 900, false);
        check(&[(100, asks(json!([{"action": "Start"}])))], true, 50, 900, false);
        // The shorter time counts, whenever it was named.
        let both = [(100_i64, stop(json!({"gracePeriod": "300"}))), (110, stop(json!({"gracePeriod": "0"})))];
        check(&both, true, 50, 240, true);
        let both = [(100_i64, stop(json!({"gracePeriod": "0"}))), (110, stop(json!({"gracePeriod": "300"})))];
        check(&both, true, 50, 240, true);
    }
}
