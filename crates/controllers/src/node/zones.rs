//! How fast the pods of silent nodes may be evicted: by zone, slower where much of a zone is silent, and not at all
//! where everything is, since then it is the control plane that cannot hear.
//!
//! The numbers are kube-controller-manager's defaults (pkg/controller/nodelifecycle). Nodes are counted by an index: where many
//! fall silent at once, each of them asks again every few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Time, View};
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

/// Index of the nodes that count: those that are ready, and both sorts by their zone.
pub(crate) const BY_HEALTH: &str = "health";
/// The ready ones of all zones.
const READY: &str = "ready";

fn in_zone(zone: &str, is_ready: bool) -> String {
    format!("{}/{zone}", if is_ready { READY } else { "silent" })
}

/// What a node is filed under.
pub(crate) fn by_health(node: &Node) -> Vec<String> {
    if node.label(EXCLUDED).is_some() {
        return Vec::new();
    }
    let ready = is_ready(node);
    let all = ready.then(|| READY.to_owned());
    all.into_iter().chain([in_zone(&zone_of(node), ready)]).collect()
}

/// How fast the nodes of a zone may be evicted.
pub(crate) fn pace(view: &View<'_>, zone: &str) -> Pace {
    let count = |value: &str| view.cache::<Node>().count(BY_HEALTH, value);
    if count(READY) == 0 {
        return Pace::Cut;
    }
    let (ready, silent) = (count(&in_zone(zone, true)), count(&in_zone(zone, false)));
    if ready > 0 && silent > 2 && silent * 100 >= UNHEALTHY_PERCENT * (ready + silent) {
        return if ready + silent > SMALL { Pace::Every(SLOW_PACE) } else { Pace::Wait };
    }
    // A zone that is wholly silent while others are not is a zone that has failed.
    Pace::Every(PACE)
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
    use carrack_engine::testing::Caches;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::of;

    fn node(zone: &str, number: usize, status: &str, labels: &Value) -> Node {
        let mut node = json!({"metadata": {"name": format!("{zone}-{status}-{number}"), "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": status}]}});
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
        of(node)
    }

    fn nodes(zone: &str, ready: usize, silent: usize) -> Vec<Node> {
        let of_status = |status: &'static str, n: usize| (0..n).map(move |i| node(zone, i, status, &json!({})));
        of_status("True", ready).chain(of_status("Unknown", silent)).collect()
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
            // Those that do not count change nothing.
            let others = ["True", "Unknown"]
                .into_iter()
                .flat_map(|status| (100..200).map(move |i| node("a", i, status, &json!({EXCLUDED: "true"}))));
            let all = nodes("a", a.0, a.1).into_iter().chain(nodes("b", b.0, b.1)).chain(others);
            let caches = Caches::new().with_index::<Node>(BY_HEALTH, by_health).with::<Node>(all);
            assert_eq!(pace(&caches.view(), ":a"), expected, "{a:?} {b:?}");
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
