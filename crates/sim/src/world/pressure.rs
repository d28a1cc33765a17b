//! Nodes that run low ([`crate::pressure`]): what presses on them, and whom their kubelets evict.

use std::collections::BTreeSet;

use carrack_kubelet::runtime::Uid;

use super::World;
use crate::hosted::Hosted;
use crate::role::Role;

impl World {
    /// What presses on nodes follows from the seed.
    pub(super) fn plan_pressure(&mut self) {
        crate::pressure::begin(self.queue.now(), &self.root, &self.options, &mut self.nodes);
    }

    /// A kubelet may have chosen pods that have to go, beside those of before.
    pub(super) fn look_for_evicted(&mut self, role: Role, before: &BTreeSet<Uid>) {
        let Role::Kubelet(number) = role else { return };
        let core = match self.processes.get(&role).and_then(|process| process.hosted.as_ref()) {
            Some(Hosted::Kubelet(core, _)) => core,
            _ => return,
        };
        let chosen: Vec<Uid> = core.evicted().filter(|uid| !before.contains(*uid)).cloned().collect();
        for uid in &chosen {
            self.mark(format_args!("node{number}'s kubelet evicts {uid}"));
        }
        if let Some(node) = self.nodes.get_mut(&number) {
            node.evicts(self.queue.now(), &chosen, &self.observer, &mut self.breaches);
        }
    }
}
