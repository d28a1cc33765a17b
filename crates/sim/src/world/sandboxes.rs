//! Sandboxes that end by themselves ([`crate::sandboxes`]).

use super::{Fault, World};
use crate::chance::pick;
use crate::node::{Node, NodeEvent};

impl World {
    /// A pod's sandbox ends by itself, alone or with all that runs in it.
    pub(super) fn sandbox_ends(&mut self) {
        let up = self.nodes.values().filter(|node| node.up);
        let of_node = |node: &Node| {
            let number = node.number;
            node.runtime.sandboxes().map(move |id| (number, id.clone())).collect::<Vec<_>>()
        };
        let there: Vec<(u8, String)> = up.flat_map(of_node).collect();
        let Some(rng) = self.faults.get_mut(&Fault::Sandbox) else { return };
        let whole = rng.one_in(2);
        if let Some((number, sandbox)) = pick(rng, &there) {
            self.node(number, NodeEvent::SandboxEnds { sandbox, whole });
        }
    }
}
