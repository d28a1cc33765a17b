//! Volumes of pods that are to go: soon unmounted when nothing of the pod runs, whether or not anybody serves the API.
//!
//! ```text
//!   its kubelet hears that it is to go ─▶ nothing of it runs ─▶ unmounted within [`WITHIN`]
//!              └─ hears nothing any more: all the same
//! ```
//!
//! What the kubelet has to wait for by itself is a listing of the runtime, once a second, and a sandbox that is stopped again
//! after two: ten such steps fit in [`WITHIN`], which is what drills allow, too. Time counts only while the kubelet could act:
//! while it is there, is not stopped and was not a moment ago, and while its node does at once what it is asked for (see
//! [`Node::hindered`]). That the API server is away, or cannot be reached, is no excuse. Of what a kubelet has not heard nobody
//! can expect anything: that is looked at once nothing fails any more ([`crate::invariants`], `volumes-go-with-their-pods`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;
use carrack_kubelet::runtime::Uid;

use crate::invariants::Breach;
use crate::node::Node;

/// The invariant.
pub(crate) const NAME: &str = "unwanted-volumes-go";

/// How long it may take.
const WITHIN: Duration = Duration::from_secs(30);

/// Since when a pod's mounts are all that is left of it, by node and UID.
#[derive(Debug, Default)]
pub(crate) struct Unwanted(BTreeMap<(u8, String), Time>);

impl Unwanted {
    /// Looked at once a second, while anything may fail. `known`: the nodes whose kubelets could act, with the pods of which
    /// these know that they are to go.
    pub(crate) fn look(
        &mut self,
        now: Time,
        known: &BTreeMap<u8, BTreeSet<Uid>>,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let mut left: BTreeMap<(u8, String), String> = BTreeMap::new();
        for (number, going) in known {
            let Some(node) = nodes.get(number).filter(|node| node.up) else { continue };
            let runs = |id: &str| node.runtime.alive_of(id).is_some() || node.runtime.sandbox_of(id).is_some();
            for (id, path) in node.disk.mounted().filter(|(id, _)| going.contains(*id) && !runs(id)) {
                left.insert((*number, id.to_owned()), path.to_owned());
            }
        }
        self.0.retain(|place, _| left.contains_key(place));
        for (place, path) in left {
            let Some(node) = nodes.get(&place.0) else { continue };
            let hindered = node.hindered(now, &place.1);
            let (number, since) = (place.0, *self.0.entry(place).or_insert(now));
            let waits = now.since(since.max(hindered));
            if waits > WITHIN {
                let what = format!(
                    "{path} on node{number} is all that is left of its pod, and its kubelet, which knows that the pod is to go, \
                     could have unmounted it for {} s",
                    waits.as_secs()
                );
                breaches.push(Breach::new(NAME, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use carrack_engine::Rng;

    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    /// Whether it is found within 40 s that a volume of a pod stays. `hears`: the kubelet knows that the pod is to go. It cannot
    /// act in the seconds of `away`.
    fn is_found(hears: bool, up: bool, away: &std::ops::Range<u64>) -> bool {
        let mut node = Node::new(1, Time::default(), Rng::new(1), NodeFaults::none(), Rack::default());
        node.disk.give("p", "disk");
        node.up = up;
        let (nodes, mut unwanted, mut breaches) = (BTreeMap::from([(1, node)]), Unwanted::default(), Vec::new());
        let going: BTreeSet<Uid> = hears.then(|| "p".into()).into_iter().collect();
        for s in 0..=40 {
            let known = if away.contains(&s) { BTreeMap::new() } else { BTreeMap::from([(1, going.clone())]) };
            unwanted.look(Time::default() + Duration::from_secs(s), &known, &nodes, &mut breaches);
        }
        assert!(breaches.iter().all(|breach| breach.invariant == NAME));
        !breaches.is_empty()
    }

    #[test]
    fn what_is_left_of_a_pod_goes_as_soon_as_its_kubelet_can_let_it_go() {
        for (hears, up, away, expected) in [
            (true, true, 90..91, true),
            (true, true, 0..5, true),
            (true, true, 0..15, false),
            (true, true, 20..21, false),
            (true, false, 90..91, false),
            (false, true, 90..91, false),
        ] {
            assert_eq!(is_found(hears, up, &away), expected, "hears: {hears}, up: {up}, away: {away:?}");
        }
    }
}
