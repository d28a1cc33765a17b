//! Who on a node is away for a while: its container runtime as a whole, or one of its CSI drivers.

use std::time::Duration;

use super::{Fault, World};
use crate::chance::{between, pick};
use crate::node::Node;
use crate::role::Role;

/// For how long: less than a node may be unready before its pods go. A runtime that is away comes back when it was to.
const AWAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl World {
    /// A node's runtime goes away or hangs, or one of its drivers goes.
    pub(super) fn goes_away(&mut self, fault: Fault) {
        let now = self.queue.now();
        let may_go = |node: &Node| node.up && (fault != Fault::RuntimeAway || !node.lacks_runtime(now));
        let there = self.nodes.iter().filter(|(_, node)| may_go(node)).map(|(number, _)| *number);
        let lives: Vec<(u8, u32)> =
            there.map(|number| (number, self.life(Role::Kubelet(number)).unwrap_or(0))).collect();
        let longest = self.swarm.longest;
        let Some(rng) = self.faults.get_mut(&fault) else { return };
        let (lasts, hangs) = (between(rng, AWAY.0, AWAY.1.min(longest)), rng.one_in(2));
        let Some((number, life)) = pick(rng, &lives) else { return };
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let (what, follow) = if fault == Fault::RuntimeAway {
            let (what, follow) = node.runtime_leaves(now, lasts, hangs);
            (format!("the runtime {what}"), follow)
        } else {
            let (driver, follow) = node.driver_leaves(now, life, lasts, rng);
            (format!("the driver {driver} is away"), follow)
        };
        self.mark(format_args!("node{number}: {what} for {} ms", lasts.as_millis()));
        self.follow(number, follow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::{Born, Happening};

    /// A cluster with one node, one API server and pods, in which nothing fails by itself.
    fn world() -> World {
        let options = Options { small: true, faults: false, ..Options::default() };
        Born::new(Base::of(1), &options).expect("a cluster").world(1)
    }

    /// Else a node is unready for as long as its runtime goes once more before it is back, and its pods are evicted.
    #[test]
    fn a_runtime_that_is_away_comes_back_when_it_was_to() {
        let mut world = world();
        let begun = world.queue.now();
        let back = |world: &World| {
            let is_away =
                |ms: u64| world.nodes.values().any(|node| node.lacks_runtime(begun + Duration::from_millis(ms)));
            (0..120_000).find(|ms| !is_away(*ms))
        };
        assert_eq!(back(&world), Some(0));
        world.goes_away(Fault::RuntimeAway);
        let expected = back(&world);
        assert!(expected.is_some_and(|ms| ms >= 1000), "{expected:?}");
        let until = begun + Duration::from_millis(900);
        world.queue.at(until, Happening::Look);
        // Nothing of what happens until then matters.
        while world.queue.now() < until {
            assert!(world.queue.pop().is_some());
        }
        for _ in 0..9 {
            world.goes_away(Fault::RuntimeAway);
        }
        assert_eq!(back(&world), expected);
    }

    #[test]
    fn everybody_is_there_again_when_nothing_fails_any_more() {
        let mut world = world();
        let there = |world: &World| world.nodes.values().map(|node| node.registered().count()).sum::<usize>();
        let all = there(&world);
        for _ in 0..9 {
            world.goes_away(Fault::RuntimeAway);
            world.goes_away(Fault::DriverAway);
        }
        assert!(there(&world) < all, "no driver has gone");
        world.heal();
        assert_eq!(there(&world), all);
    }
}
