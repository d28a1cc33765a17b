//! How fast the pods of silent nodes may be evicted: by zone, slower where much of a zone is silent, and not at all
//! where everything is, since then it is the control plane that cannot hear.
//!
//! The numbers are kube-controller-manager's defaults (pkg/controller/nodelifecycle).

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Time;
use carrack_types::resource::Object as _;
use k8s_openapi::api::core::v1::Node;

use super::{is_ready, zone_of};

/// A zone is in trouble from this share of silent nodes on, in percent.
const UNHEALTHY_PERCENT: usize = 55;
/// A zone with at most so many nodes is small.
const SMALL: usize = 50;
/// Time between two nodes of a zone.
const PACE: Duration = Duration::from_secs(10);
/// The same in a large zone that is in trouble. A small one waits.
const SLOW_PACE: Duration = Duration::from_secs(100);

/// Nodes with this label do not count.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// What may be evicted in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// One node each so often.
    Every(Duration),
    /// None for now.
    Wait,
    /// Every zone is silent: nothing is evicted, and what was begun is taken back.
    Cut,
}

/// How fast the nodes of a zone may be evicted.
pub(crate) fn pace<'a>(nodes: impl Iterator<Item = &'a Node>, zone: &str) -> Pace {
    let mut zones: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for node in nodes.filter(|n| n.label(EXCLUDED).is_none()) {
        let (ready, silent) = zones.entry(zone_of(node)).or_default();
        *(if is_ready(node) { ready } else { silent }) += 1;
    }
    if zones.values().all(|(ready, _)| *ready == 0) {
        return Pace::Cut;
    }
    match zones.get(zone) {
        Some((ready, silent)) if *ready > 0 && *silent > 2 && silent * 100 >= UNHEALTHY_PERCENT * (ready + silent) => {
            if ready + silent > SMALL {
                Pace::Every(SLOW_PACE)
            } else {
                Pace::Wait
            }
        }
        // A zone that is wholly silent while others are not is a zone that has failed.
        _ => Pace::Every(PACE),
    }
}

/// When the next node of each zone may be evicted.
#[derive(Default)]
pub(crate) struct Limiter(BTreeMap<String, Time>);

impl Limiter {
    /// Takes the turn, or says how long it is to wait.
    pub(crate) fn take(&mut self, zone: &str, every: Duration, now: Time) -> Result<(), Duration> {
        let next = self.0.entry(zone.to_owned()).or_default();
        if now < *next {
            return Err(next.since(now));
        }
        *next = now + every;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::of;

    fn nodes(zone: &str, ready: usize, silent: usize) -> Vec<Node> {
        let node = |status: &str| {
            of(json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": status}]}}))
        };
        (0..ready).map(|_| node("True")).chain((0..silent).map(|_| node("Unknown"))).collect()
    }

    #[test]
    fn a_zone_in_trouble_is_slower_and_a_cut_control_plane_evicts_nothing() {
        for (a, b, expected) in [
            ((3, 1), (0, 0), Pace::Every(PACE)),
            ((1, 1), (0, 0), Pace::Every(PACE)),
            ((0, 1), (0, 0), Pace::Cut),
            ((0, 4), (0, 2), Pace::Cut),
            ((0, 4), (2, 0), Pace::Every(PACE)),
            ((2, 3), (2, 0), Pace::Wait),
            ((3, 3), (2, 0), Pace::Every(PACE)),
            ((20, 40), (0, 0), Pace::Every(SLOW_PACE)),
        ] {
            let all: Vec<_> = nodes("a", a.0, a.1).into_iter().chain(nodes("b", b.0, b.1)).collect();
            assert_eq!(pace(all.iter(), ":a"), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn turns_are_taken_one_by_one() {
        let mut limiter = Limiter::default();
        let at = Time::from_unix_s;
        assert_eq!(limiter.take("a", PACE, at(100)), Ok(()));
        assert_eq!(limiter.take("b", PACE, at(100)), Ok(()));
        assert_eq!(limiter.take("a", PACE, at(104)), Err(Duration::from_secs(6)));
        assert_eq!(limiter.take("a", PACE, at(110)), Ok(()));
    }
}
