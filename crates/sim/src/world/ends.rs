//! Processes that end: as they are told, or at once.

use std::time::Duration;

use carrack_engine::Time;
use carrack_plot::Tone;

use super::{Happening, World, may_crash};
use crate::chance::between;
use crate::hosted::Hosted;
use crate::role::Role;

impl World {
    /// Tells a process to end, as an operator does: it may give back what it holds, for as long as the shell waits.
    pub(super) fn tell_to_end(&mut self, role: Role) {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return };
        if process.hang.hangs(now) {
            // It does not hear it, and whoever told it loses patience.
            return self.crash(role, "killed");
        }
        let Some(hosted) = process.hosted.as_mut().filter(|_| !process.ending) else { return };
        process.ending = true;
        process.observed += 1;
        let life = process.life;
        let effects = hosted.stop(Time(now.0 + process.skew_ns));
        self.mark(format_args!("{role} is told to end"));
        self.carry_out(role, effects);
        self.queue.after(Duration::from_secs(1), Happening::Ends(role, life));
        self.has_ended(role, false);
    }

    /// Ends a process that was told to, once it waits for nothing more, or when nobody waits for it any longer.
    pub(super) fn has_ended(&mut self, role: Role, at_once: bool) {
        let Some(process) = self.processes.get(&role).filter(|process| process.ending) else { return };
        if at_once || process.hosted.as_ref().is_some_and(Hosted::ended) {
            self.crash(role, "as it was told");
        }
    }

    /// Whether a process dies before its next effect.
    pub(super) fn dies(&mut self, role: Role) -> bool {
        let one_in = self.swarm.crash_one_in_effects;
        let doomed = self.doomed.take_if(|(of, _)| *of == role);
        if doomed.is_some_and(|(_, life)| self.life(role) == Some(life)) {
            return true;
        }
        may_crash(role) && self.processes.get_mut(&role).is_some_and(|p| p.rng.one_in(one_in))
    }

    /// A process dies at once, and comes back after a while.
    pub(super) fn crash(&mut self, role: Role, why: &str) {
        self.turn(role, why, Tone::Down, format_args!("{role} dies: {why}"));
        let Some(process) = self.processes.get_mut(&role) else { return };
        if process.hosted.take().is_none() {
            return;
        }
        process.hang.forget();
        process.stops_until = None;
        process.ending = false;
        self.promises.died(role);
        self.paces.died(role);
        for conn in std::mem::take(&mut process.conns).into_values() {
            self.server.hang_up(conn);
            self.ledger.closed(conn);
        }
        let down =
            between(&mut process.rng, Duration::from_millis(50), Duration::from_secs(15).min(self.swarm.longest));
        self.flex.caller_died((role, process.life), &self.rack);
        if let Role::Kubelet(number) | Role::VirtHandler(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            let kubelet = matches!(role, Role::Kubelet(_));
            let follow = if kubelet { node.kubelet_died() } else { node.handler_died() };
            self.follow(number, follow);
        }
        self.queue.after(down, Happening::Start(role));
    }
}
