//! What goes wrong by itself, and the end of it.

use std::time::Duration;

use carrack_engine::{ApiError, ApiRequest, CallId, DeleteOptions, Time, WatchItem};
use carrack_plot::Tone;
use carrack_store::StoreError;
use carrack_types::resource::Kind as _;
use carrack_types::well_known::kubevirt::NODE_LEASE_NAMESPACE;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};

use super::{Fault, Happening, World, may_crash};
use crate::chance::{below, between, pick};
use crate::node::{Doing, Node, NodeEvent};
use crate::observer::{controller, key_of, text, uid};
use crate::plants::Bug;
use crate::role::{Role, node_name};
use crate::server::Asked;

pub(super) const FAULTS: [Fault; 26] = [
    Fault::Crash,
    Fault::ServerCrash,
    Fault::Expire,
    Fault::Cut,
    Fault::HalfCut,
    Fault::Reboot,
    Fault::Plugin,
    Fault::ContainerExit,
    Fault::Sandbox,
    Fault::Guest,
    Fault::ForceDelete,
    Fault::Pause,
    Fault::Stall,
    Fault::Clock,
    Fault::ServerClock,
    Fault::Flood,
    Fault::Vanish,
    Fault::Lose,
    Fault::Strand,
    Fault::Evict,
    Fault::Chatter,
    Fault::Mood,
    Fault::FullDisk,
    Fault::FullStore,
    Fault::RuntimeAway,
    Fault::DriverAway,
];

impl World {
    pub(super) fn next_fault(&mut self, fault: Fault) {
        let intervals = self.swarm.intervals;
        let mean = match fault {
            Fault::Crash => intervals.crash,
            Fault::ServerCrash => intervals.apiserver_crash,
            Fault::Expire => intervals.expire,
            Fault::Cut => intervals.cut,
            Fault::HalfCut => intervals.half_cut,
            Fault::Reboot => intervals.reboot,
            Fault::Plugin => intervals.plugin,
            Fault::ContainerExit => intervals.container_exit,
            Fault::Sandbox => intervals.sandbox,
            Fault::Guest => intervals.guest,
            Fault::ForceDelete => intervals.force_delete,
            Fault::Pause => intervals.pause,
            Fault::Stall => intervals.stall,
            Fault::Clock => intervals.clock,
            Fault::ServerClock => intervals.server_clock,
            Fault::Flood => intervals.flood,
            Fault::Vanish => intervals.vanish,
            Fault::Lose => intervals.lose,
            Fault::Strand => intervals.strand,
            Fault::Evict => intervals.evict,
            Fault::Chatter => intervals.chatter,
            Fault::Mood => intervals.moods,
            Fault::FullDisk => intervals.full_disk,
            Fault::FullStore => intervals.full_store,
            Fault::RuntimeAway => intervals.runtime_away,
            Fault::DriverAway => intervals.driver_away,
        };
        if let (Some(mean), Some(rng)) = (mean, self.faults.get_mut(&fault)) {
            self.queue.after(below(rng, mean * 2), Happening::Fault(fault));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        if self.healed.is_some() {
            return;
        }
        let now = self.queue.now();
        let (hint, longest) = (self.options.hint(), self.swarm.longest);
        let blind = hint == Some(Bug::BlindHandler);
        // With calls that go on, it shows in who makes them.
        let late_calls = hint.is_some_and(Bug::is_of_calls);
        let calling = |role: Role| {
            let life = self.processes.get(&role).map(|process| process.life);
            life.is_some_and(|life| self.flex.detaches((role, life)))
        };
        // With clocks of another time, in who leads and led before; or in who was stopped while he led.
        let of_controllers = matches!(hint, Some(Bug::ClocksOfAnother | Bug::ActsUnlooked));
        let is_of_plant = |role: Role| match of_controllers {
            true => matches!(role, Role::Controllers | Role::Standby),
            false => !late_calls || calling(role),
        };
        let Some(rng) = self.faults.get_mut(&fault) else { return };
        match fault {
            Fault::Crash => {
                let roles: Vec<Role> =
                    self.processes.keys().copied().filter(|r| may_crash(*r) && is_of_plant(*r)).collect();
                if let Some(role) = pick(rng, &roles) {
                    // Drawn apart, as are servers.
                    if self.ends_rng.one_in(4) {
                        self.tell_to_end(role);
                    } else {
                        self.crash(role, "killed");
                    }
                }
            }
            Fault::ServerCrash => {
                // Now and then for longer than nodes may be silent.
                let down = if rng.one_in(8)
                    || matches!(hint, Some(Bug::DeafObserver | Bug::WordsLost | Bug::UnmountsWhenTold))
                {
                    between(rng, Duration::from_secs(50), Duration::from_secs(80))
                } else {
                    between(rng, Duration::from_millis(100), Duration::from_secs(20).min(longest))
                };
                // Drawn apart, so that when servers die does not depend on how many there are.
                let server = usize::try_from(self.servers_rng.below(self.server.count() as u64)).unwrap_or(0);
                self.server_crash(server, down);
            }
            Fault::Expire => {
                // Who follows the commits takes in what there is before: nobody else may have watched.
                self.ledger.update(&self.server.mem);
                let oldest = carrack_store::Store::revision(&*self.server.mem);
                self.mark(format_args!("history up to {oldest} is forgotten, and all watches end"));
                let mut compacted = carrack_store::Store::compact(&*self.server.mem, oldest);
                let done = compacted.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
                drop(done);
                self.server.mem.interrupt_watches(&StoreError::Compacted { oldest });
            }
            Fault::Cut => {
                let roles: Vec<Role> =
                    self.processes.keys().copied().filter(|r| *r != Role::User && is_of_plant(*r)).collect();
                let length = between(rng, Duration::from_millis(100), Duration::from_secs(40).min(longest));
                if let Some(role) = pick(rng, &roles) {
                    self.mark(format_args!("{role} is cut off from the API server for {} ms", length.as_millis()));
                    self.net.cut(role, now + length);
                }
            }
            Fault::Pause => {
                let roles: Vec<Role> =
                    self.processes.keys().copied().filter(|r| *r != Role::User && is_of_plant(*r)).collect();
                // With calls that go on, for as long as others take to lead.
                let longest = Duration::from_secs(if late_calls { 40 } else { 10 }).min(longest);
                let length = between(rng, Duration::from_millis(500), longest);
                if let Some(role) = pick(rng, &roles) {
                    self.mark(format_args!("{role} hangs for {} ms", length.as_millis()));
                    if let Some(process) = self.processes.get_mut(&role) {
                        process.hang.hang(now + length);
                    }
                }
            }
            Fault::HalfCut | Fault::Stall => {
                let roles: Vec<Role> =
                    self.processes.keys().copied().filter(|r| *r != Role::User && is_of_plant(*r)).collect();
                if fault == Fault::Stall {
                    self.stall(&roles);
                } else {
                    self.half_cut(&roles);
                }
            }
            Fault::Clock => self.set_a_clock(),
            Fault::ServerClock => self.set_a_servers_clock(),
            Fault::Mood | Fault::FullDisk | Fault::FullStore => self.falls_short(fault),
            Fault::RuntimeAway | Fault::DriverAway => self.goes_away(fault),
            Fault::Sandbox => self.sandbox_ends(),
            Fault::Flood => {
                let count = self.swarm.flood / 6 + rng.below(self.swarm.flood * 5 / 6);
                let length = between(rng, Duration::from_millis(10), Duration::from_millis(500));
                self.mark(format_args!("somebody asks {count} times in {} ms", length.as_millis()));
                for _ in 0..count {
                    let Some(rng) = self.faults.get_mut(&fault) else { return };
                    let after = below(rng, length);
                    self.queue.after(after, Happening::Flood);
                }
            }
            Fault::Vanish => {
                let there: Vec<usize> = (0..crate::controllers::NODES).filter(|n| !self.vanished.contains(n)).collect();
                let (number, taken_out) = (pick(rng, &there), rng.one_in(2));
                let away = between(rng, Duration::from_secs(1), Duration::from_secs(90));
                // With the planted bug of a node that comes and goes, it is always the same one.
                let (number, taken_out, away) = match hint {
                    Some(Bug::AbsenceRemembered) => {
                        let (restless, least) = (crate::controllers::RESTLESS, crate::controllers::AWAY);
                        (Some(restless).filter(|number| there.contains(number)), true, least + away / 3)
                    }
                    _ => (number, taken_out, away),
                };
                // Most nodes stay, so that somebody is heard.
                if let Some(number) = number.filter(|_| there.len() > 2) {
                    self.power(number, false);
                    if taken_out {
                        let name = crate::controllers::nodes().name(number);
                        self.mark(format_args!("somebody takes {name} out of the cluster"));
                        let request = ApiRequest::delete(&KubeNode::resource(), "", &name, &DeleteOptions::default());
                        // Nobody waits for the reply.
                        self.send(Role::User, 0, Asked::Call(CallId(0)), request);
                    }
                    self.queue.after(away, Happening::Back(number));
                }
            }
            Fault::Lose => {
                // The first one has disks that are nowhere else, and one such loss is enough to look at.
                let there: Vec<u8> =
                    self.nodes.iter().filter(|(n, node)| node.up && **n > 1).map(|(n, _)| *n).collect();
                // With a planted bug about machines, there is to be one.
                let idle = |n: &u8| self.nodes.get(n).is_none_or(|node| node.guests.alive().next().is_none());
                let there: Vec<u8> = there.into_iter().filter(|n| hint.is_none() || !idle(n)).collect();
                let away = between(rng, Duration::from_secs(240), Duration::from_secs(300));
                let thorough = rng.one_in(2) || hint == Some(Bug::VanishedNode);
                let ends = hint.map_or_else(|| rng.one_in(3), |bug| bug == Bug::EndedOnDeadNode);
                let soon = between(rng, Duration::from_millis(50), Duration::from_millis(1500));
                let stays = hint.map_or_else(|| rng.fork("stays").one_in(2), |bug| bug == Bug::KeptDisks);
                let (how, picked) = (pick(rng, &[Doing::PowersOff, Doing::Panics]), pick(rng, &there));
                if let (Some(number), Some(how), true) = (picked, how, ends && !self.lost) {
                    // It is heard how its guests ended, and nothing any more of their pods.
                    self.lost = true;
                    let guests = self.nodes.get(&number).into_iter().flat_map(|node| node.guests.alive());
                    for guest in guests.map(|(compute, _)| compute.to_owned()).collect::<Vec<_>>() {
                        self.node(number, NodeEvent::Guest(guest, how));
                    }
                    self.queue.after(soon, Happening::GoesDark(number, away));
                } else if let Some(number) = picked.filter(|_| stays && !self.lost) {
                    // Nobody does anything about it.
                    self.lost = true;
                    self.goes_dark(number, away);
                } else if let Some(number) = picked.filter(|_| !self.lost) {
                    self.lost = true;
                    let name = node_name(number);
                    self.mark(format_args!("somebody takes {name} out of the cluster"));
                    let request = ApiRequest::delete(&KubeNode::resource(), "", &name, &DeleteOptions::default());
                    // Nobody waits for the reply.
                    self.send(Role::User, 0, Asked::Call(CallId(0)), request);
                    if thorough {
                        let (lease, options) = (Lease::resource(), DeleteOptions::default());
                        let request = ApiRequest::delete(&lease, NODE_LEASE_NAMESPACE, &name, &options);
                        self.send(Role::User, 0, Asked::Call(CallId(0)), request);
                    }
                    self.goes_dark(number, away);
                }
            }
            Fault::Strand => {
                let fits = |node: &crate::node::Node| match hint {
                    Some(Bug::TameWatchdogs) => node.guests.watchdog.runs() && node.guests.alive().next().is_some(),
                    Some(_) => node.guests.hanging(),
                    None => true,
                };
                let numbers: Vec<u8> = self.nodes.iter().filter(|(_, node)| fits(node)).map(|(n, _)| *n).collect();
                let length = between(rng, Duration::from_secs(30), Duration::from_secs(90));
                if let Some(number) = pick(rng, &numbers) {
                    let (kubelet, handler) = (Role::Kubelet(number), Role::VirtHandler(number));
                    let (name, ms) = (node_name(number), length.as_millis());
                    self.mark(format_args!("{name} is cut off for {ms} ms, and {handler} hangs"));
                    self.net.cut(kubelet, now + length);
                    self.net.cut(handler, now + length);
                    if let Some(process) = self.processes.get_mut(&handler) {
                        process.hang.hang(now + length);
                    }
                    self.loses_monitors(number);
                }
            }
            Fault::Evict => {
                let is_kept = |pod: &&serde_json::Value| crate::evictions::is_kept(pod, &self.observer);
                let kept: Vec<_> = self.observer.all("pod").filter(is_kept).cloned().collect();
                if let Some(pod) = pick(rng, &kept) {
                    // Drawn apart. It stays what it is, for all who look after it.
                    if hint.is_none() && rng.fork("without its label").one_in(2) {
                        self.mark(format_args!("somebody takes the label off pod {}", key_of(&pod)));
                        self.send(Role::User, 0, Asked::Call(CallId(0)), crate::evictions::unlabelled(&pod));
                    }
                    self.mark(format_args!("somebody evicts pod {}", key_of(&pod)));
                    // Nobody waits for the reply.
                    self.send(Role::User, 0, Asked::Call(CallId(0)), crate::evictions::request(&pod));
                }
            }
            Fault::Reboot => {
                let numbers: Vec<u8> = self.nodes.iter().filter(|(_, n)| n.up).map(|(n, _)| *n).collect();
                if let Some(number) = pick(rng, &numbers) {
                    // Drawn apart. Bugs are planted where machines lose their power.
                    let orderly = hint.map_or_else(|| self.shutdowns_rng.one_in(2), |bug| bug == Bug::HastyShutdowns);
                    if orderly {
                        self.shut_down(number);
                    } else {
                        self.reboot(number);
                    }
                }
            }
            Fault::Plugin => {
                let numbers: Vec<u8> = self.nodes.keys().copied().collect();
                if let Some(number) = pick(rng, &numbers)
                    && let Some(node) = self.nodes.get_mut(&number)
                {
                    let follow = node.plugins.flap(rng);
                    self.follow(number, follow);
                }
            }
            Fault::ContainerExit => {
                let hollow = hint == Some(Bug::HollowSuccess);
                let of = |node: &Node| match hollow {
                    true => node.disks_in_wait(),
                    false => node.runtime.running().map(|c| c.record.id.clone()).collect(),
                };
                let running: Vec<(u8, String)> =
                    self.nodes.values().flat_map(|n| of(n).into_iter().map(|id| (n.number, id))).collect();
                let code = i32::from(rng.one_in(2));
                // With copies that nobody wants any more, it shows in those that somebody waits for.
                let unwanted = hint == Some(Bug::UnwantedCopies);
                let ending = || if unwanted { self.room.waiting() } else { self.room.running() };
                if self.options.copies
                    && let Some(pod) = pick(rng, &ending())
                {
                    self.room.kill(&pod);
                }
                if let Some((number, container)) = pick(rng, &running) {
                    self.node(number, NodeEvent::Exit { container, code });
                }
            }
            Fault::Guest => {
                let guests: Vec<(u8, String)> = self
                    .nodes
                    .values()
                    .flat_map(|n| n.guests.alive().map(|(compute, _)| (n.number, compute.to_owned())))
                    .collect();
                if self.options.copies
                    && let Some(guest) = pick(rng, &self.room.guests())
                {
                    self.room.shut(&guest);
                }
                let doing = pick(rng, &[Doing::PowersOff, Doing::Panics, Doing::LosesMonitor]);
                if let (Some((number, compute)), Some(doing)) = (pick(rng, &guests), doing) {
                    self.node(number, NodeEvent::Guest(compute, doing));
                }
            }
            Fault::Chatter => {
                let guests: Vec<(u8, String)> = self
                    .nodes
                    .values()
                    .flat_map(|n| n.guests.alive().map(|(compute, _)| (n.number, compute.to_owned())))
                    .collect();
                let times = 100 + u32::try_from(rng.below(200)).unwrap_or(0);
                if let Some((number, compute)) = pick(rng, &guests) {
                    self.mark(format_args!("the agent of the guest in {compute} comes and goes {times} times"));
                    self.node(number, NodeEvent::Guest(compute, Doing::Chatters(times)));
                }
            }
            Fault::ForceDelete => {
                // Whoever does this does it because something hangs: mostly a node's kubelet.
                // The end of a Job says how its pods ended.
                let of_job = |p: &serde_json::Value| self.observer.all("job").any(|j| uid(j) == controller(p));
                // With a planted bug about disks, whoever has one.
                let has_disk = |p: &serde_json::Value| {
                    let volumes = p.pointer("/spec/volumes").and_then(serde_json::Value::as_array);
                    volumes.into_iter().flatten().any(|volume| volume.get("persistentVolumeClaim").is_some())
                };
                let is_one = |p: &&serde_json::Value| match hint {
                    Some(Bug::MountsUntold) => has_disk(p),
                    _ => !controller(p).is_empty() && !of_job(p),
                };
                let launchers = self.observer.all("pod").filter(is_one);
                let (running, waiting): (Vec<_>, Vec<_>) =
                    launchers.cloned().partition(|p| text(p, "/status/phase") == "Running");
                let pod = pick(rng, &running).or_else(|| pick(rng, &waiting));
                let away = between(rng, Duration::from_secs(1), Duration::from_secs(60).min(longest));
                let hangs = rng.one_in(2) || blind;
                if let Some(pod) = pod {
                    let node = text(&pod, "/spec/nodeName");
                    let number = self.nodes.keys().copied().find(|n| node_name(*n) == node);
                    if let (true, Some(number)) = (hangs, number) {
                        self.mark(format_args!("{} hangs for {} ms", Role::Kubelet(number), away.as_millis()));
                        self.net.cut(Role::Kubelet(number), now + away);
                    }
                    self.force_delete(&pod);
                }
            }
        }
        self.next_fault(fault);
    }

    /// Where the machine's watchdog runs, the monitors of a node's guests may die with all else that looks after them.
    fn loses_monitors(&mut self, number: u8) {
        let guarded = self.nodes.get(&number).filter(|node| node.guests.watchdog.runs());
        let guests = guarded.into_iter().flat_map(|node| node.guests.alive());
        for guest in guests.map(|(compute, _)| compute.to_owned()).collect::<Vec<_>>() {
            self.node(number, NodeEvent::Guest(guest, Doing::LosesMonitor));
        }
    }

    /// Cuts the power of a hollow node, or gives it back.
    pub(super) fn power(&mut self, number: usize, on: bool) {
        let changed = if on { self.vanished.remove(&number) } else { self.vanished.insert(number) };
        if !changed {
            return;
        }
        let name = crate::controllers::nodes().name(number);
        let (what, tone) = if on { ("has power again", Tone::Good) } else { ("loses power", Tone::Down) };
        self.turn(&name, what, tone, format_args!("{name} {what}"));
        let Some(process) = self.processes.get_mut(&Role::Hollow) else { return };
        let local = Time(self.queue.now().0 + process.skew_ns);
        let effects = process.hosted.as_mut().map(|hosted| hosted.power(local, number, on)).unwrap_or_default();
        self.carry_out(Role::Hollow, effects);
    }

    /// Somebody deletes a launcher pod with no grace period: it is gone from the API at once, whatever runs.
    pub(super) fn force_delete(&mut self, pod: &serde_json::Value) {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        self.mark(format_args!("somebody deletes pod {namespace}/{name} by force"));
        self.checker.forced.insert(uid(pod).to_owned());
        // Who deletes a pod by force has made sure that nothing of it runs; see `gone-means-stopped` for the nodes.
        self.room.kill(uid(pod));
        let options = DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
        let request = ApiRequest::delete(&Pod::resource(), namespace, name, &options);
        // Nobody waits for the reply.
        self.send(Role::User, 0, Asked::Call(CallId(0)), request);
    }

    pub(super) fn server_crash(&mut self, server: usize, down: Duration) {
        if !self.server.is_up(server) {
            return;
        }
        let who = format!("apiserver {server}");
        self.turn(&who, "down", Tone::Down, format_args!("{who} dies for {} ms", down.as_millis()));
        let (flights, conns) = self.server.crash(server);
        for flight in flights {
            self.unanswered(&flight, "the API server died");
        }
        for conn in conns {
            self.put(conn, WatchItem::Closed(Some(ApiError::Transport("the API server died".into()))));
        }
        if !self.server.any_up() {
            self.checker.outages.push((self.queue.now(), None));
        }
        self.queue.after(down, Happening::ServerUp(server));
    }

    /// A node is without power for so long.
    pub(super) fn goes_dark(&mut self, number: u8, away: Duration) {
        let now = self.queue.now();
        self.power_off(number);
        if let Some(node) = self.nodes.get_mut(&number) {
            node.power_on_after(now, away);
        }
        self.queue.after(away, Happening::Node(number, NodeEvent::Booted));
    }

    /// Somebody shuts a node down in order. Where no kubelet holds it up, it goes down at once.
    pub(super) fn shut_down(&mut self, number: u8) {
        let now = self.queue.now();
        self.mark(format_args!("somebody shuts node{number} down"));
        match (self.life(Role::Kubelet(number)), self.nodes.get_mut(&number)) {
            (Some(life), Some(node)) => {
                let follow = node.shut_down(now, life);
                self.follow(number, follow);
            }
            _ => self.goes_down(number),
        }
    }

    pub(super) fn reboot(&mut self, number: u8) {
        let now = self.queue.now();
        self.power_off(number);
        if let Some(node) = self.nodes.get_mut(&number) {
            let delay = node.power_on(now);
            self.queue.after(delay, Happening::Node(number, NodeEvent::Booted));
        }
    }

    pub(super) fn power_off(&mut self, number: u8) {
        let now = self.queue.now();
        self.turn(node_name(number), "no power", Tone::Down, format_args!("node{number} loses power"));
        for role in [Role::Kubelet(number), Role::VirtHandler(number), Role::LocalStorage(number)] {
            if self.processes.contains_key(&role) {
                self.crash(role, "no power");
            }
        }
        if let Some(node) = self.nodes.get_mut(&number) {
            node.power_off(now);
        }
    }
}
