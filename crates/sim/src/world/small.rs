//! A cluster that small runs begin with, and how a run goes on from there.

use std::time::Duration;

use carrack_engine::{Rng, Time};
use serde_json::Value;

use super::{BEGIN, Happening, Process, World};
use crate::clones::Fate;
use crate::hang::Hang;
use crate::net::Net;
use crate::observer::text;
use crate::options::Options;
use crate::role::{Role, node_name};
use crate::small::{self, Base};
use crate::trace::{Trace, Weight};
use crate::world::Outcome;

/// How long a cluster takes to come to rest at the most.
const RESTS: Duration = Duration::from_secs(120);

/// A cluster at rest: everybody has started and knows everything, and nobody has asked for anything yet.
pub(crate) struct Born(Box<World>);

impl Born {
    /// Plays a cluster's beginning, in which nothing fails.
    ///
    /// # Errors
    /// It does not come to rest.
    pub(crate) fn new(base: Base, options: &Options) -> Result<Self, String> {
        let own = base.options(options);
        let mut world = World::with(base.root(), &own, base.swarm(&own))?;
        world.trace.line(BEGIN, Weight::Mark, format_args!("{base:?}: {:?}", world.swarm));
        world.slice = Some(base.slice());
        world.start_all();
        // With a planted bug it may be broken already.
        while world.breaches.is_empty() && (world.queue.now() < BEGIN + base.rests() || !world.rests()) {
            let Some(happening) = world.queue.pop() else { return Err("nothing happens".into()) };
            world.happens(happening);
            if world.queue.now() > BEGIN + RESTS {
                return Err("the cluster does not come to rest".into());
            }
        }
        Ok(Self(Box::new(world)))
    }

    /// Plays a seed, after which this is no beginning any more.
    pub(crate) fn play(&mut self, seed: u64, options: &Options) -> Outcome {
        self.0.go_on(seed);
        self.0.play(seed, &options.replay(seed))
    }

    /// The cluster in which a seed is played.
    pub(super) fn world(mut self, seed: u64) -> World {
        self.0.go_on(seed);
        *self.0
    }
}

impl World {
    /// Whether everybody has come to know everything.
    fn rests(&self) -> bool {
        let is_ready = |name: &str| crate::wants::node_lacks(&self.observer, name).is_none();
        let takes_all = |node: &Value| {
            is_ready(text(node, "/metadata/name"))
                && node.pointer("/spec/taints").is_none_or(|taints| taints.as_array().is_none_or(Vec::is_empty))
                && (!self.options.has_machines() || crate::machines::is_offered(node))
        };
        let there = self.nodes.keys().all(|number| is_ready(&node_name(*number)));
        there && self.observer.all("node").all(takes_all) && self.server.is_idle()
    }

    /// From here on all is the seed's.
    fn go_on(&mut self, seed: u64) {
        let now = self.queue.now();
        let root = Rng::new(seed);
        self.options = small::options(seed, &root, &self.options);
        self.swarm = small::swarm(&root, &self.options, &self.swarm);
        self.trace = Trace::new(BEGIN, self.options.keep_trace);
        self.trace.line(now, Weight::Mark, format_args!("seed {seed}: {:?}, {:?}", self.options.only, self.swarm));
        self.begun = now;
        let (swarm, bug) = (self.swarm.clone(), self.bug());
        self.net = Net::new(root.fork("net"), swarm.net);
        self.server.reseed(&root.fork("server"));
        self.set_server();
        self.room.reseed(root.fork("room"), swarm.others.copies);
        self.flex = crate::flex::Runs::new(root.fork("flex"), swarm.node, bug);
        self.issuer = crate::tokens::Issuer::new(root.fork("tokens"), swarm.others.tokens, None);
        self.gpus.reseed(root.fork("gpus"), swarm.others.gpu_calls);
        self.fate = Fate::new(&self.options, bug);
        self.reader = crate::reader::Reader::new(root.fork("reader"), swarm.reads);
        self.extender_rng = root.fork("asking");
        self.calls_rng = root.fork("calls");
        self.autoscaled = crate::controllers::Autoscaled::new(root.fork("metrics"));
        self.servers_rng = root.fork("servers in use");
        self.ends_rng = root.fork("who is told to end");
        self.shutdowns_rng = root.fork("who is shut down");
        for (number, node) in &mut self.nodes {
            node.reseed(root.fork(&format!("node {number}")), swarm.node);
            node.guests.hangs_one_in = swarm.launcher_hangs_one_in;
            node.copies.fails = swarm.others.copies;
        }
        for (role, process) in &mut self.processes {
            process.rng = root.fork(&format!("process {role}"));
        }
        let rng = root.fork("process user");
        self.processes.insert(Role::User, Process::new(0, rng));
        self.root = root;
        self.queue.after(Duration::ZERO, Happening::Start(Role::User));
        self.plan_drains();
        self.plan_statics();
        if let Some(number) = self.drains.newcomer() {
            let (agents, mut start) = (self.add_machine(number), self.root.fork("start"));
            self.add_processes(agents, &mut start);
        }
        self.plan_pressure();
        self.begin_trouble();
    }
}

impl Process {
    /// Whether it is there, and does not hang.
    pub(super) fn works(&self, now: Time) -> bool {
        self.hosted.is_some() && !self.hang.hangs(now)
    }

    /// One that has not started yet.
    pub(super) fn new(skew_ns: i64, rng: Rng) -> Self {
        Self {
            life: 0,
            hosted: None,
            skew_ns,
            machine_ns: skew_ns,
            hang: Hang::default(),
            stops_until: None,
            ending: false,
            conns: std::collections::BTreeMap::new(),
            rng,
            observed: 0,
            woken: Default::default(),
            sent: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drains::Drains;

    /// Somebody switches a machine on for the first time where a cluster is at work already.
    #[test]
    fn a_machine_comes_to_a_cluster_that_is_there() {
        let options = Options { small: true, ..Options::default() };
        let newcomer = |seed: u64| {
            let (base, root) = (Base::of(seed), Rng::new(seed));
            let cluster = base.options(&options);
            let own = small::options(seed, &root, &cluster);
            Drains::new(Time::default(), &root, base.swarm(&cluster).nodes, &own).newcomer()
        };
        let (seed, number) = (1..400).find_map(|seed| Some((seed, newcomer(seed)?))).expect("a node that is added");
        let born = Born::new(Base::of(seed), &options).expect("a cluster");
        assert!(!born.0.nodes.contains_key(&number), "it is what the run begins with");
        let mut world = born.world(seed);
        assert!(!world.nodes[&number].up && world.processes.contains_key(&Role::Kubelet(number)));
        if let Some(failure) = world.play(seed, "").failure {
            panic!("seed {seed}: {failure}");
        }
        assert!(world.observer.get("node", &node_name(number)).is_some(), "seed {seed}");
    }
}
