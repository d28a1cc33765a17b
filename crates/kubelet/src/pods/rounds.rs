//! Rounds of a pod: how often all of its containers were started again together, since one of them had ended as a rule of its
//! with the action `RestartAllContainers` says (upstream's `ShouldAllContainersRestart`, `pkg/kubelet/container`).
//!
//! ```text
//!   round 0: all run ─▶ one ends by its rule ─▶ round 1: what still runs of round 0 is killed ─▶ init containers ─▶ all run
//! ```
//!
//! Each container carries the round that it was made in, and the round that its pod is in is read off its containers: the one that
//! has ended by its rule is known until another is in its place, which is of the next round. So a kubelet that dies in between goes
//! on, with no record of its own and without the API. What is of an earlier round has neither succeeded nor failed: it is to run
//! again, whatever its policy is. Upstream has the runtime forget it instead; here its logs and its restart count stay.
//!
//! How a container ends that the kubelet stops so that it starts again, for a probe or for another size or definition, says nothing
//! by any rule (upstream stops and starts it in one turn, and never sees it ended).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::records::Records;
use crate::runtime::ContainerRecord;
use crate::spec::pod;

/// The newest round of which there is a container: the one that a pod is in that is to stop, where no end means another.
#[must_use]
pub fn begun<'a>(containers: impl IntoIterator<Item = &'a ContainerRecord>) -> u32 {
    containers.into_iter().map(|r| r.round).max().unwrap_or(0)
}

/// The round that a pod is in. `restarting` are those that are or were stopped so that they start again.
#[must_use]
pub fn present<'a>(
    pod: &Pod,
    containers: impl IntoIterator<Item = &'a ContainerRecord> + Clone,
    restarting: &BTreeSet<String>,
) -> u32 {
    let begun = begun(containers.clone());
    let mut restarters = pod::restarters(pod).peekable();
    if restarters.peek().is_none() {
        return begun;
    }
    let all: Records<'a> = containers.into_iter().collect();
    let after = |c: &Container| {
        let newest = all.newest(&c.name).filter(|r| !restarting.contains(&r.id))?;
        pod::restarts_all(c, newest.exit_code()?).then(|| newest.round.saturating_add(1))
    };
    restarters.filter_map(after).fold(begun, u32::max)
}

/// Whether a container is left of an earlier round. Ephemeral ones take no part: what somebody looks at goes on.
#[must_use]
pub fn is_left(pod: &Pod, r: &ContainerRecord, round: u32) -> bool {
    let is_ephemeral = || pod::spec(pod).ephemeral_containers.iter().flatten().any(|e| e.name == r.name);
    r.round < round && !is_ephemeral()
}
