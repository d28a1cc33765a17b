//! How many images a kubelet pulls at a time: no more than its configuration says, and everybody has his in the end.
//!
//! ```text
//!   crowd: pods that come together, each with an image of its own
//!     ─▶ one pull, or a few: slow, refused, made again ─▶ the next ones ─▶ all of them run
//! ```
//!
//! In two runs of three kubelets have such a bound. Private images alone are pulled ([`crate::images`]): all others are on every
//! node from the beginning.

use std::time::Duration;

use carrack_engine::Rng;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::chance::between;
use crate::images::{private, secret};
use crate::invariants::Breach;
use crate::plants::Bug;
use crate::wants::Want;
use crate::workload::{Act, What, mounting, up_to};

/// The invariant.
pub(crate) const NAME: &str = "pulls-keep-their-bound";

/// Whose the images of crowds are, and the secret with which they are pulled.
const USER: &str = "alice";
/// Within which time a crowd has come.
const TOGETHER: Duration = Duration::from_secs(1);

/// How many images each kubelet pulls at a time; all of them without a number. Beside other planted bugs than those of pulls
/// there is no bound.
pub(crate) fn most(root: &Rng, planted: Option<Bug>) -> Option<usize> {
    let mut rng = root.fork("how many are pulled");
    match planted {
        Some(Bug::PullsAtOnce | Bug::FailedPullsHold) => Some(1),
        Some(_) => None,
        None if rng.one_in(3) => None,
        None => Some(1 + usize::try_from(rng.below(3)).unwrap_or(0)),
    }
}

/// A kubelet begins to pull an image while so many of its pulls are under way.
pub(crate) fn begins(node: u8, under_way: usize, most: Option<usize>, breaches: &mut Vec<Breach>) {
    if let Some(most) = most.filter(|most| under_way >= *most) {
        let what =
            format!("node{node}'s kubelet begins to pull beside {under_way} others, and may pull {most} at a time");
        breaches.push(Breach::new(NAME, what));
    }
}

/// Pods that come together, each with an image of its own. Somebody makes the secret that they name.
pub(crate) fn crowd(rng: &mut Rng, safety: Duration, name: &str, acts: &mut Vec<Act>) {
    let begins = between(rng, TOGETHER, safety * 3 / 4);
    for n in 0..2 + rng.below(up_to(4, safety)) {
        let name = format!("{name}{n}");
        let mut object = mounting(&name, 1, "scratch", "emptyDir", json!({}));
        object["spec"]["containers"][0]["image"] = private(USER, &format!("{name}:1")).into();
        object["spec"]["imagePullSecrets"] = json!([{"name": USER}]);
        let at = begins + between(rng, Duration::ZERO, TOGETHER);
        let want = Some(("pod", Want::Pod { restarts: true, important: false }));
        acts.push(Act { at, what: What::Create { resource: Pod::resource(), object, want } });
    }
}

/// Crowds alone, one after another.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    secret(USER, USER, acts);
    for n in 0..3 {
        crowd(rng, safety, &format!("crowd{n}-"), acts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_pulls_no_more_than_it_may() {
        for (under_way, most, expected) in
            [(0, Some(1), 0), (1, Some(1), 1), (1, Some(2), 0), (2, Some(2), 1), (3, Some(2), 1), (9, None, 0)]
        {
            let mut breaches = Vec::new();
            begins(1, under_way, most, &mut breaches);
            assert_eq!(breaches.len(), expected, "{under_way} of {most:?}: {breaches:?}");
        }
    }

    #[test]
    fn the_bound_is_drawn_and_is_no_bound_beside_other_bugs() {
        let drawn = |planted| (0..60).map(|seed| most(&Rng::new(seed), planted)).collect::<Vec<_>>();
        let own = drawn(None);
        for bound in [None, Some(1), Some(2), Some(3)] {
            assert!(own.contains(&bound), "{bound:?} is never drawn");
        }
        assert!(own.iter().flatten().all(|most| (1..=3).contains(most)), "{own:?}");
        for bug in [Bug::PullsAtOnce, Bug::FailedPullsHold] {
            assert!(drawn(Some(bug)).iter().all(|most| *most == Some(1)), "{bug:?}");
        }
        assert!(drawn(Some(Bug::UnnotedPulls)).iter().all(Option::is_none));
    }

    /// Each has to be pulled, and several at a time where nothing forbids it.
    #[test]
    fn a_crowd_comes_at_once_and_has_an_image_each() {
        for seed in 0..20 {
            let mut acts = Vec::new();
            crowd(&mut Rng::new(seed), Duration::from_secs(60), "crowd", &mut acts);
            let images: std::collections::BTreeSet<String> = acts
                .iter()
                .filter_map(|act| match &act.what {
                    What::Create { object, .. } => Some(object["spec"]["containers"][0]["image"].to_string()),
                    _ => None,
                })
                .collect();
            let (first, last) = (acts.iter().map(|act| act.at).min(), acts.iter().map(|act| act.at).max());
            assert!(images.len() == acts.len() && acts.len() > 1, "seed {seed}: {images:?}");
            assert!(last.zip(first).is_some_and(|(last, first)| last - first <= TOGETHER), "seed {seed}");
        }
    }
}
