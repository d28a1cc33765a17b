//! Machines that come and go, by what people do with nodes ([`crate::drains`]).

use std::time::Duration;

use carrack_engine::{CallId, Rng};
use carrack_plot::Tone;

use super::{Happening, Process, World};
use crate::chance::below;
use crate::drains::{Deed, Drains, Fall, Tie, tie};
use crate::node::{Node, NodeEvent};
use crate::plants::Bug;
use crate::role::{Role, node_name};
use crate::server::Asked;

impl World {
    /// What people do with nodes follows from the seed.
    pub(super) fn plan_drains(&mut self) {
        self.drains = Drains::new(self.queue.now(), &self.root, self.swarm.nodes, &self.options);
    }

    /// How many machines of nodes there are, with the one that is switched on later.
    pub(super) fn machines_at_first(&self) -> u8 {
        if !self.options.has_whole_nodes() {
            return 0;
        }
        self.drains.newcomer().unwrap_or(self.swarm.nodes)
    }

    /// Puts a node's machine where it is to be. Returns the processes on it.
    pub(super) fn add_machine(&mut self, number: u8) -> Vec<Role> {
        let node = self.machine(number);
        self.nodes.insert(number, node);
        let mut agents = vec![Role::Kubelet(number), Role::LocalStorage(number)];
        agents.extend(self.options.machines.then_some(Role::VirtHandler(number)));
        agents
    }

    /// Processes start within a second, those of them that are part of the cluster.
    pub(super) fn add_processes(&mut self, roles: Vec<Role>, start: &mut Rng) {
        let (slice, most_ns) = (self.slice, u64::try_from(self.swarm.skew.as_nanos()).unwrap_or(0));
        for role in roles.into_iter().filter(|role| slice.is_none_or(|slice| slice.has(*role))) {
            let rng = self.root.fork(&format!("process {role}"));
            let skew_ns =
                i64::try_from(start.below(2 * most_ns + 1)).unwrap_or(0) - i64::try_from(most_ns).unwrap_or(0);
            self.processes.insert(role, Process::new(skew_ns, rng));
            self.queue.after(below(start, Duration::from_secs(1)), Happening::Start(role));
        }
    }

    /// A node's machine. One that comes later is off.
    fn machine(&self, number: u8) -> Node {
        let (swarm, bug) = (&self.swarm, self.bug());
        let rng = self.root.fork(&format!("node {number}"));
        let mut node = Node::new(number, self.queue.now(), rng, swarm.node, self.rack.clone());
        node.blind = bug == Some(Bug::BlindHandler);
        node.unmounts_first = bug == Some(Bug::UnmountsFirst);
        node.unread_is_absent = bug == Some(Bug::UnreadFiles);
        node.believes = bug == Some(Bug::BelievedDrivers);
        node.registers_once = bug == Some(Bug::RegistersOnce);
        node.keeps_memory = swarm.keeps_memory;
        node.parallel_pulls = swarm.parallel_pulls;
        node.disk.loses_pulls = bug == Some(Bug::UnnotedPulls);
        node.disk.mounts_anew = bug == Some(Bug::MountsAnew);
        node.storage.makes_room = bug == Some(Bug::MakesRoom);
        node.copies.fails = swarm.others.copies;
        node.copies.one_by_one = bug == Some(Bug::CopiesOneByOne);
        node.guests.faithless = bug == Some(Bug::BrokenPromise);
        node.guests.heedless = bug == Some(Bug::LateWriter);
        node.guests.hollow = bug == Some(Bug::HollowSuccess);
        node.guests.forgets_signals = bug == Some(Bug::SignalsForgotten);
        node.guests.hangs_one_in = swarm.launcher_hangs_one_in;
        node.runtime.deaf_disks = swarm.deaf_disks;
        node.guests.writers = self.writers.clone();
        node.guests.watchdog.timeout_s =
            swarm.watchdogs.as_ref().and_then(|all| all.get(usize::from(number - 1)).copied().flatten());
        node.guests.watchdog.tame = bug == Some(Bug::TameWatchdogs);
        node.guests.watchdog.half_closed = bug == Some(Bug::HalfClosed);
        node.up = self.drains.newcomer() != Some(number);
        node
    }

    /// Does what people do with nodes now.
    pub(super) fn drain(&mut self) {
        let now = self.queue.now();
        for deed in self.drains.look(now, self.healed.is_some(), &self.observer, &self.nodes) {
            match deed {
                Deed::Asks(request) => {
                    self.mark(format_args!("who drains a node asks {}", super::requests::label(&request)));
                    // Nobody waits for the reply: who drains looks at what is there.
                    self.send(Role::User, 0, Asked::Call(CallId(0)), request);
                }
                Deed::Comes(number) => {
                    self.mark(format_args!("a machine is switched on for the first time: {}", node_name(number)));
                    if let Some(node) = self.nodes.get_mut(&number) {
                        node.gone = false;
                        node.power_on_after(now, Duration::ZERO);
                    }
                    self.node(number, NodeEvent::Booted);
                }
                Deed::ShutsDown(number) => self.shut_down(number),
                Deed::SwitchesOff(number, away) => {
                    self.mark(format_args!("somebody switches {} off", node_name(number)));
                    self.goes_dark(number, away);
                }
            }
        }
    }

    /// A machine goes down that was told to, or that nobody holds up.
    pub(super) fn goes_down(&mut self, number: u8) {
        let (now, tie) = (self.queue.now(), self.tie(number));
        match self.drains.goes_down(number, now, tie) {
            Fall::Reboots => self.reboot(number),
            Fall::Off(away) => self.goes_dark(number, away),
            Fall::Leaves => {
                self.power_off(number);
                let name = node_name(number);
                self.turn(&name, "taken away", Tone::Down, format_args!("the machine of {name} is taken away"));
                if let Some(node) = self.nodes.get_mut(&number) {
                    node.is_taken_away();
                }
            }
        }
    }

    /// What keeps a node from going for good: something is on it that is nowhere else, or is to come there and nowhere else.
    fn tie(&self, number: u8) -> Tie {
        let (name, others) = (node_name(number), self.nodes.values().any(|node| node.number != number && !node.gone));
        let (is_bare, has_snapshots) = self
            .nodes
            .get(&number)
            .map_or((false, true), |node| (node.storage.is_bare(), node.storage.has_snapshots()));
        // Who is finicky takes some pods on every node but the first.
        let finicky = self.swarm.extender.is_some_and(|verbs| verbs.finicky);
        // One that is gone for minutes comes back by itself.
        let is_free = others && !finicky && !self.lost && number > 1;
        match tie(&name, &self.observer) {
            Tie::Free if is_free && is_bare => Tie::Free,
            Tie::Data if is_free && !has_snapshots => Tie::Data,
            _ => Tie::Tied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::small::Base;
    use crate::world::Born;

    #[test]
    fn who_was_taken_away_does_not_come_up() {
        let options = Options { small: true, faults: false, ..Options::default() };
        let mut world = Born::new(Base::of(1), &options).expect("a cluster").world(1);
        let boot = world.nodes[&1].boot_id();
        world.power_off(1);
        for is_there in [false, true] {
            let node = world.nodes.get_mut(&1).expect("a node");
            if is_there {
                node.gone = false;
            } else {
                node.disk.records.insert("record".to_owned(), Vec::new());
                node.storage.volumes.insert("volume".to_owned(), 1);
                node.is_taken_away();
            }
            assert!(node.disk.records.is_empty() && node.storage.is_bare(), "there: {is_there}");
            world.node(1, NodeEvent::Booted);
            assert_eq!(world.nodes[&1].up, is_there);
        }
        assert_ne!(world.nodes[&1].boot_id(), boot);
        // The last node is nobody's to take away, and neither is the first one.
        assert_eq!(world.tie(1), Tie::Tied);
    }
}
