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
//! ended, is stopped before, and has had its time.

use std::collections::BTreeSet;
use std::time::Duration;

use carrack_kubelet::{In, Op, Reply};

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
        let ends = |container| Follow::Later(Duration::ZERO, NodeEvent::Exit { container, code: KILLED });
        std::iter::once(said).chain(inside.into_iter().filter(|_| whole).map(ends)).collect()
    }
}

/// The containers of which a kubelet has heard that they run, and not that they have ended since.
#[derive(Debug, Default)]
pub(crate) struct Heard(BTreeSet<String>);

impl Heard {
    /// The kubelet observes something.
    pub(crate) fn hears(&mut self, news: &In) {
        match news {
            In::Done(_, Ok(Reply::Snapshot(shown))) => {
                self.0 = shown.containers.iter().filter(|c| c.may_run()).map(|c| c.id.clone()).collect();
            }
            In::Done(_, Ok(Reply::Started(container))) => {
                self.0.insert(container.id.clone());
            }
            _ => {}
        }
    }

    /// It asks for something.
    pub(crate) fn asks(&self, node: u8, op: &Op, runtime: &Runtime, breaches: &mut Vec<Breach>) {
        let Op::StopSandbox(sandbox) = op else { return };
        for container in runtime.running_in(sandbox).into_iter().filter(|id| self.0.contains(id)) {
            let what = format!("node{node}'s kubelet stops {sandbox}, and has heard that {container} runs there");
            breaches.push(Breach::new(NAME, what));
        }
    }
}
