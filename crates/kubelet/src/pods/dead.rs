//! Containers that are over and may be forgotten: upstream's container garbage collection
//! (`pkg/kubelet/kuberuntime/kuberuntime_gc.go`), with its three limits.
//!
//! ```text
//!   over for long enough ─▶ more than its pod may keep of its name? ─▶ more than the node may keep? ─▶ the oldest go
//! ```
//!
//! One rule is ours: the newest record of a container stays as long as its pod does, whatever the limits say. It tells how
//! the container ended, and with it whether it is to run again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use crate::runtime::{ContainerRecord, Uid};

/// How many containers that are over are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How old one has to be before it goes (`--minimum-container-ttl-duration`).
    pub min_age: Duration,
    /// How many of one name a pod keeps (`--maximum-dead-containers-per-container`); none for all.
    pub max_per_container: Option<usize>,
    /// How many the node keeps (`--maximum-dead-containers`); none for all.
    pub max_containers: Option<usize>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { min_age: Duration::ZERO, max_per_container: Some(1), max_containers: None }
    }
}

/// Ids of the containers that are to go, of all that the node has of pods that go on.
#[must_use]
pub fn surplus<'a>(now: Time, policy: &Policy, all: impl IntoIterator<Item = &'a ContainerRecord>) -> BTreeSet<String> {
    let mut by_name: BTreeMap<(&Uid, &str), Vec<&ContainerRecord>> = BTreeMap::new();
    for c in all {
        by_name.entry((&c.pod.uid, &c.name)).or_default().push(c);
    }
    let mut going = BTreeSet::new();
    let mut left: Vec<Vec<&ContainerRecord>> = Vec::new();
    for records in by_name.values_mut() {
        records.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
        let newest_is_over = records.first().is_some_and(|c| c.exit_code().is_some());
        let old = |c: &&&ContainerRecord| c.exit_code().is_some() && now.since(c.created_at) >= policy.min_age;
        // What tells how it ended counts, and stays.
        let stays = usize::from(newest_is_over);
        let mut dead: Vec<&ContainerRecord> = records.iter().skip(stays).filter(old).copied().collect();
        if let Some(most) = policy.max_per_container {
            let most = most.saturating_sub(stays).min(dead.len());
            going.extend(dead.drain(most..).map(|c| c.id.clone()));
        }
        left.push(dead);
    }
    let Some(most) = policy.max_containers else { return going };
    // As upstream does: first as many of each, then the oldest of all.
    let over = |left: &[Vec<&ContainerRecord>]| left.iter().map(Vec::len).sum::<usize>().saturating_sub(most);
    left.retain(|dead| !dead.is_empty());
    if over(&left) > 0 {
        let each = (most / left.len().max(1)).max(1);
        for dead in &mut left {
            let most = each.min(dead.len());
            going.extend(dead.drain(most..).map(|c| c.id.clone()));
        }
    }
    let more = over(&left);
    let mut rest: Vec<&ContainerRecord> = left.into_iter().flatten().collect();
    rest.sort_by_key(|c| (c.created_at, &c.id));
    going.extend(rest.into_iter().take(more).map(|c| c.id.clone()));
    going
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerState, PodRef};

    /// `a/c0 a/c1* b/c0`: containers of pods by attempts, `*` for one that runs. Each was made at as many seconds as its
    /// place in the text.
    fn records(text: &str) -> Vec<ContainerRecord> {
        let one = |(at, word): (i64, &str)| {
            let (pod, rest) = word.split_once('/').unwrap();
            let runs = rest.ends_with('*');
            let rest = rest.trim_end_matches('*');
            let over =
                ContainerState::Exited { code: 1, reason: String::new(), message: String::new(), finished_at: Time(0) };
            ContainerRecord {
                id: word.trim_end_matches('*').to_owned(),
                sandbox_id: "s".into(),
                pod: PodRef { namespace: "n".into(), name: pod.into(), uid: pod.into() },
                name: rest[..1].to_owned(),
                attempt: rest[1..].parse().unwrap(),
                state: if runs { ContainerState::Running } else { over },
                created_at: Time::from_unix_s(at),
                started_at: None,
                image: "i".into(),
                image_ref: String::new(),
                hash: String::new(),
                round: 0,
                size: Default::default(),
                user: None,
            }
        };
        (0..).zip(text.split(' ')).map(one).collect()
    }

    fn check(policy: (u64, Option<usize>, Option<usize>), at_s: i64, text: &str, expected: &str) {
        let policy =
            Policy { min_age: Duration::from_secs(policy.0), max_per_container: policy.1, max_containers: policy.2 };
        let going: Vec<String> = surplus(Time::from_unix_s(at_s), &policy, &records(text)).into_iter().collect();
        assert_eq!(going.join(" "), expected, "{policy:?} of {text}");
    }

    #[test]
    fn limits_are_kept() {
        let usual = (0, Some(1), None);
        check(usual, 100, "a/c0*", "");
        check(usual, 100, "a/c0 a/c1*", "");
        check(usual, 100, "a/c0 a/c1 a/c2*", "a/c0");
        check(usual, 100, "a/c0 a/c1 a/c2", "a/c0 a/c1");
        check(usual, 100, "a/c0 a/d0 b/c0 b/c1*", "");
        check((0, Some(2), None), 100, "a/c0 a/c1 a/c2 a/c3*", "a/c0");
        check((0, None, None), 100, "a/c0 a/c1 a/c2 a/c3*", "");
        // How the last one ended is known whatever the limit says.
        check((0, Some(0), None), 100, "a/c0 a/c1", "a/c0");
        check((0, Some(0), None), 100, "a/c0 a/c1*", "a/c0");
        // Young ones stay, and older ones go.
        check((97, Some(1), None), 100, "a/c0 a/c1 a/c2 a/c3 a/c4 a/c5*", "a/c0 a/c1 a/c2");
        check((98, Some(1), None), 100, "a/c0 a/c1 a/c2 a/c3 a/c4 a/c5*", "a/c0 a/c1");
        check((1000, Some(1), None), 100, "a/c0 a/c1 a/c2*", "");
    }

    #[test]
    fn the_node_has_a_limit_too() {
        let text = "a/c0 a/c1 a/c2 a/c3* b/c0 b/c1 b/c2*";
        check((0, None, Some(9)), 100, text, "");
        // One of each would be two, and two may stay.
        check((0, None, Some(3)), 100, text, "a/c0 a/c1 b/c0");
        check((0, None, Some(1)), 100, text, "a/c0 a/c1 a/c2 b/c0");
        check((0, None, Some(0)), 100, text, "a/c0 a/c1 a/c2 b/c0 b/c1");
        check((0, None, Some(0)), 100, "a/c0 b/c0", "");
    }
}
