//! Sandboxes that end by themselves, and what kubelets do with what runs in them.
//!
//! ```text
//!   the pause process is killed ─▶ containers run on in a sandbox that is not ready ─▶ stopped, with their time ─▶ the sandbox is
//!   their shim is killed ────────▶ containers end with it ──────────────────────────────────────────────────────▶ stopped, another made
//! ```
//!
//! Both are what containerd makes of a process that the kernel kills for want of memory, or that somebody kills: a sandbox that is
//! `NotReady`, and in the second case containers that were killed, since they are the shim's. Its network is held until it is
//! stopped. With a sandbox all that runs in it is killed at once: so whatever a kubelet has heard to run there, and not to have
//! ended, is stopped before, and has had its time. Only what could not be stopped, as it has heard, may go with its sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_kubelet::{In, Op, OpId, Reply};

use crate::invariants::Breach;
use crate::node::{Follow, Node, NodeEvent, Runtime};

/// The invariant.
pub(crate) const NAME: &str = "sandboxes-outlast-containers";

/// With what a container ends that is killed.
const KILLED: i32 = 128 + 9;

impl Node {
    /// A sandbox ends by itself, alone or with all that runs in it.
    pub(crate) fn sandbox_ends(&mut self, sandbox: &str, whole: bool) -> Vec<Follow> {
        let Some(inside) = self.runtime.loses_sandbox(sandbox) else { return Vec::new() };
        let with = if whole { " with all that runs in it" } else { "" };
        let said = Follow::Say(format!("node{} {sandbox} ends by itself{with}", self.number));
        if !whole {
            self.loses_grip(&inside);
        }
        let ends = |container| Follow::Later(Duration::ZERO, NodeEvent::Exit { container, code: KILLED });
        std::iter::once(said).chain(inside.into_iter().filter(|_| whole).map(ends)).collect()
    }
}

/// What a kubelet has heard of containers.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// That they run, and not that they have ended since.
    running: BTreeSet<String>,
    /// The stops that it has asked for, with what they are of.
    stops: BTreeMap<OpId, String>,
    /// That they could not be stopped.
    unstopped: BTreeSet<String>,
}

impl Heard {
    /// The kubelet observes something.
    pub(crate) fn hears(&mut self, news: &In) {
        if let In::Done(id, outcome) = news
            && let Some(container) = self.stops.remove(id)
            && outcome.is_err()
        {
            self.unstopped.insert(container);
        }
        match news {
            In::Done(_, Ok(Reply::Snapshot(shown))) => {
                self.running = shown.containers.iter().filter(|c| c.may_run()).map(|c| c.id.clone()).collect();
            }
            In::Done(_, Ok(Reply::Started(container))) => {
                self.running.insert(container.id.clone());
            }
            _ => {}
        }
    }

    /// It asks for something, such as for a container to be stopped.
    pub(crate) fn stops(&mut self, id: OpId, op: &Op) {
        if let Op::StopContainer { id: container, .. } = op {
            self.stops.insert(id, container.clone());
        }
    }

    /// It asks for something, such as for a sandbox to be stopped.
    pub(crate) fn asks(&self, node: u8, op: &Op, runtime: &Runtime, breaches: &mut Vec<Breach>) {
        let Op::StopSandbox(sandbox) = op else { return };
        let ends_with_it = |id: &String| self.running.contains(id) && !self.unstopped.contains(id);
        for container in runtime.running_in(sandbox).into_iter().filter(ends_with_it) {
            let what = format!("node{node}'s kubelet stops {sandbox}, and has heard that {container} runs there");
            breaches.push(Breach::new(NAME, what));
        }
    }
}
