//! The cluster of one run: its events, its processes, its two phases.
//!
//! ```text
//!   queue ─▶ one event ─▶ a role steps / the server answers / a node acts ─▶ new events
//!                                                    │
//!                           observer: what was committed ─▶ invariants ─▶ the run fails here
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, DeleteOptions, Effect, Input, Method, Rng, Time, TimerId, WatchId,
    WatchItem, fnv1a, to_http,
};
use carrack_store::StoreError;
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;

use crate::chance::{below, between};
use crate::hosted::{Hosted, OwnIn, OwnOut, Settings};
use crate::invariants::{Breach, Checker, holdings};
use crate::net::{Net, Reply};
use crate::node::{Doing, Follow, Node, NodeEvent};
use crate::observer::{Observer, controller, text, uid};
use crate::options::{Options, Swarm};
use crate::plants::Bug;
use crate::role::{Role, node_name};
use crate::server::{Asked, ConnId, Flight, FlightId, Polled, Server, result_of, stream_of};
use crate::trace::{Trace, Weight};
use crate::workload::User;

/// When simulated time begins: 2026-11-01T00:00:00Z.
const BEGIN: Time = Time::from_unix_s(1_793_491_200);
/// A run that does not end by then is stuck in a loop that takes no time.
const MAX_STEPS: u64 = 1_000_000;
/// How long the cluster must stay as it was asked to be.
const STAYS: Duration = Duration::from_secs(30);
/// How long the server lets changes gather before it looks at its watches.
const PUMP: Duration = Duration::from_millis(5);

/// In which time the same request may be sent how often.
const SPIN_WINDOW: Duration = Duration::from_secs(10);
const SPIN_LIMIT: u32 = 60;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash over all lines of the trace.
    pub trace_hash: u64,
    /// How long the run took, in simulated time.
    pub simulated: Duration,
    /// How many events happened.
    pub steps: u64,
    /// What broke, if something did.
    pub failure: Option<Failure>,
    /// What happened.
    pub trace: Trace,
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its name (see [`crate::INVARIANTS`]).
    pub invariant: &'static str,
    /// How it broke.
    pub message: String,
    /// The last lines before, for a reader.
    pub timeline: String,
}

/// Something that happens.
enum Happening {
    /// A process starts.
    Start(Role),
    /// A process observes something, if it is still the same one.
    Give(Role, u32, Box<Given>),
    /// A request reaches the server.
    Arrive(FlightId),
    /// A request goes on.
    Poll(FlightId),
    /// The server looks at its watches.
    Pump,
    /// An item of a watch reaches the client.
    Item(ConnId),
    /// A watch connection ends.
    End(ConnId, End),
    /// Something of a node.
    Node(u8, NodeEvent),
    /// News for an agent from its node.
    News(Role, u32, OwnIn),
    /// A fault that comes by itself.
    Fault(Fault),
    /// The server's process comes back.
    ServerUp,
    /// Nothing fails any more from here on.
    Heal,
    /// A look at whether all is as it was asked to be.
    Look,
}

enum Given {
    Api(CallId, Result<ApiResponse, ApiError>),
    Closed(WatchId, Option<ApiError>),
    Timer(TimerId),
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// The server's own timeout.
    Timeout,
    /// The connection breaks.
    Break,
}

/// A kind of fault that comes by itself, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Crash,
    ServerCrash,
    Expire,
    Cut,
    Reboot,
    Plugin,
    ContainerExit,
    Guest,
    ForceDelete,
}

struct Process {
    life: u32,
    hosted: Option<Hosted>,
    /// How far its clock is ahead, in nanoseconds.
    skew_ns: i64,
    conns: BTreeMap<WatchId, ConnId>,
    /// Draws the effects that it does not survive.
    rng: Rng,
    /// How often it has sent each request lately, by a hash of it, and since when "lately" is.
    sent: (Time, BTreeMap<u64, u32>),
}

struct World {
    options: Options,
    swarm: Swarm,
    root: Rng,
    faults: BTreeMap<Fault, Rng>,
    queue: crate::queue::Queue<Happening>,
    trace: Trace,
    net: Net,
    server: Server,
    processes: BTreeMap<Role, Process>,
    nodes: BTreeMap<u8, Node>,
    observer: Observer,
    checker: Checker,
    breaches: Vec<Breach>,
    pumping: bool,
    healed: Option<Time>,
    /// Since when everything is as it was asked to be.
    good_since: Option<Time>,
    /// What is not yet as it was asked to be.
    lacking: String,
    over: bool,
}

/// Plays one seed.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Outcome {
    let mut world = match World::new(seed, options) {
        Ok(world) => world,
        Err(why) => {
            let trace = Trace::new(BEGIN, false);
            let failure = Failure { invariant: "liveness", message: why, timeline: String::new() };
            let (trace_hash, simulated) = (trace.hash(), Duration::ZERO);
            return Outcome { seed, trace_hash, simulated, steps: 0, failure: Some(failure), trace };
        }
    };
    let mut steps = 0;
    while !world.over && world.breaches.is_empty() && steps < MAX_STEPS {
        let Some(happening) = world.queue.pop() else { break };
        steps += 1;
        world.happen(happening);
        world.check();
    }
    if steps == MAX_STEPS {
        world.breaches.push(Breach::new("liveness", format!("more than {MAX_STEPS} events")));
    }
    let now = world.queue.now();
    let failure = world.breaches.first().cloned().map(|Breach { invariant, message }| {
        world.trace.line(now, Weight::Mark, format_args!("BROKEN {invariant}: {message}"));
        Failure { invariant, message, timeline: world.trace.timeline() }
    });
    Outcome { seed, trace_hash: world.trace.hash(), simulated: now.since(BEGIN), steps, failure, trace: world.trace }
}

impl World {
    fn new(seed: u64, options: &Options) -> Result<Self, String> {
        let root = Rng::new(seed);
        let swarm = Swarm::draw(&root, options);
        let mut server = Server::new(BEGIN, &root.fork("server"));
        let definitions: Vec<_> = if options.machines {
            carrack_types::kubevirt::crd::crds()
                .into_iter()
                .map(|crd| ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), crd))
                .collect()
        } else {
            Vec::new()
        };
        server.bootstrap(&definitions)?;
        let observer = Observer::new(&server.mem);
        let mut world = Self {
            options: options.clone(),
            net: Net::new(root.fork("net"), swarm.net),
            faults: BTreeMap::new(),
            queue: crate::queue::Queue::new(BEGIN),
            trace: Trace::new(BEGIN, options.keep_trace),
            server,
            processes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            observer,
            checker: Checker::default(),
            breaches: Vec::new(),
            pumping: false,
            healed: None,
            good_since: None,
            lacking: String::new(),
            over: false,
            swarm,
            root,
        };
        world.begin(seed);
        Ok(world)
    }

    fn begin(&mut self, seed: u64) {
        let swarm = self.swarm.clone();
        self.mark(format_args!("seed {seed}: {swarm:?}"));
        self.server.pace.set(swarm.store_pending_one_in, swarm.store_delay);
        let mut roles = vec![Role::User, Role::Scheduler, Role::Controllers, Role::Replicas];
        if self.options.machines {
            roles.push(Role::VirtController);
        }
        for number in 1..=swarm.nodes {
            let rng = self.root.fork(&format!("node {number}"));
            let mut node = Node::new(number, BEGIN, rng, swarm.node);
            node.blind = self.bug() == Some(Bug::BlindHandler);
            self.nodes.insert(number, node);
            roles.push(Role::Kubelet(number));
            if self.options.machines {
                roles.push(Role::VirtHandler(number));
            }
        }
        let mut start = self.root.fork("start");
        for role in roles {
            let rng = self.root.fork(&format!("process {role}"));
            let most_ns = u64::try_from(swarm.skew.as_nanos()).unwrap_or(0);
            let skew_ns =
                i64::try_from(start.below(2 * most_ns + 1)).unwrap_or(0) - i64::try_from(most_ns).unwrap_or(0);
            self.processes.insert(
                role,
                Process { life: 0, hosted: None, skew_ns, conns: BTreeMap::new(), rng, sent: Default::default() },
            );
            self.queue.after(below(&mut start, Duration::from_secs(1)), Happening::Start(role));
        }
        for fault in FAULTS {
            self.faults.insert(fault, self.root.fork(&format!("fault {fault:?}")));
            self.next_fault(fault);
        }
        self.queue.after(self.options.safety, Happening::Heal);
        self.queue.after(Duration::from_secs(1), Happening::Look);
    }

    fn mark(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), Weight::Mark, text);
    }
    fn act(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), Weight::Act, text);
    }
    fn noise(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), Weight::Noise, text);
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.queue.now();
        self.server.set_now(now);
        match happening {
            Happening::Start(role) => self.start(role),
            Happening::Give(role, life, given) => {
                if self.life(role) != Some(life) {
                    return;
                }
                let input = match *given {
                    Given::Api(id, result) => {
                        if let Err(error) = &result {
                            self.noise(format_args!("{role} #{} fails: {error}", id.0));
                        }
                        Input::Api { id, result }
                    }
                    Given::Closed(id, error) => Input::Watch { id, item: WatchItem::Closed(error) },
                    Given::Timer(id) => Input::Timer(id),
                };
                self.step(role, input);
            }
            Happening::Arrive(id) => self.arrive(id),
            Happening::Poll(id) => self.poll(id),
            Happening::Pump => self.pump(),
            Happening::Item(conn) => self.item(conn),
            Happening::End(conn, end) => self.end(conn, end),
            Happening::Node(number, event) => self.node(number, event),
            Happening::News(role, life, news) => {
                if self.life(role) == Some(life) {
                    self.step(role, Input::Own(news));
                }
            }
            Happening::Fault(fault) => self.fault(fault),
            Happening::ServerUp => {
                if !self.server.is_up() {
                    self.server.start();
                    self.mark(format_args!("apiserver starts"));
                }
            }
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
        }
    }

    /// The present life of a process that runs.
    fn life(&self, role: Role) -> Option<u32> {
        self.processes.get(&role).filter(|p| p.hosted.is_some()).map(|p| p.life)
    }

    fn start(&mut self, role: Role) {
        if let Role::Kubelet(n) | Role::VirtHandler(n) = role
            && self.nodes.get(&n).is_some_and(|node| !node.up)
        {
            // It starts once its node is up.
            self.queue.after(Duration::from_secs(1), Happening::Start(role));
            return;
        }
        let settings = Settings { elect: self.swarm.elect, bug: self.bug() };
        let Some(process) = self.processes.get_mut(&role).filter(|p| p.hosted.is_none()) else { return };
        process.life += 1;
        let life = process.life;
        process.hosted = match role {
            Role::User => Some(Hosted::user(User::new(&self.root.fork("workload"), &self.options))),
            _ => Hosted::new(role, life, settings, &self.root),
        };
        self.mark(format_args!("{role} starts, life {life}"));
        if let Role::Kubelet(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            if settings.bug == Some(Bug::ForgottenCheckpoint) && life > 1 {
                node.disk.checkpoint = None;
            }
            let follow = node.kubelet_started();
            self.follow(number, follow);
        }
        if let Role::VirtHandler(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            let follow = node.handler_started(life);
            self.follow(number, follow);
        }
        self.step(role, Input::Start);
    }

    fn bug(&self) -> Option<Bug> {
        self.options.plant.map(|plant| plant.bug)
    }

    /// Lets a process observe something, and carries out what it wants.
    fn step(&mut self, role: Role, input: Input<OwnIn>) {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return };
        let Some(hosted) = &mut process.hosted else { return };
        let local = Time(now.0 + process.skew_ns);
        let effects = hosted.step(local, input);
        if let (Hosted::Kubelet(core, _), Role::Kubelet(number)) = (&*hosted, role) {
            holdings(&format!("the books of node{number}'s kubelet"), core.devices().allocations(), &mut self.breaches);
        }
        let (life, skew_ns) = (process.life, process.skew_ns);
        for effect in effects {
            if self.dies(role) {
                self.crash(role, "in the midst of its work");
                return;
            }
            match effect {
                Effect::Api(id, request) => self.send(role, life, Asked::Call(id), request),
                Effect::Watch(id, request) => self.send(role, life, Asked::Watch(id), request),
                Effect::Unwatch(id) => {
                    let conn = self.processes.get_mut(&role).and_then(|p| p.conns.remove(&id));
                    if let Some(conn) = conn {
                        self.server.hang_up(conn);
                    }
                }
                Effect::Timer(id, at) => {
                    let at = Time(at.0.saturating_sub(skew_ns));
                    self.queue.at(at, Happening::Give(role, life, Box::new(Given::Timer(id))));
                }
                Effect::Own(OwnOut::Kubelet(out)) => {
                    if let Role::Kubelet(number) = role
                        && let Some(node) = self.nodes.get_mut(&number)
                    {
                        let follow = node.ask(life, out.id, out.op);
                        self.follow(number, follow);
                    }
                }
                Effect::Own(OwnOut::Handler(out)) => {
                    if let Role::VirtHandler(number) = role
                        && let Some(node) = self.nodes.get_mut(&number)
                    {
                        let follow = node.ask_handler(life, *out);
                        self.follow(number, follow);
                    }
                }
                Effect::Exit(reason) => {
                    if !(self.swarm.elect && reason.contains("lease")) {
                        self.breaches.push(Breach::new("roles-do-not-give-up", format!("{role}: {reason}")));
                    }
                    self.crash(role, &reason);
                    return;
                }
            }
        }
    }

    /// Whether a process dies before its next effect.
    fn dies(&mut self, role: Role) -> bool {
        let one_in = self.swarm.crash_one_in_effects;
        may_crash(role) && self.processes.get_mut(&role).is_some_and(|p| p.rng.one_in(one_in))
    }

    fn crash(&mut self, role: Role, why: &str) {
        self.mark(format_args!("{role} dies: {why}"));
        let Some(process) = self.processes.get_mut(&role) else { return };
        if process.hosted.take().is_none() {
            return;
        }
        for conn in std::mem::take(&mut process.conns).into_values() {
            self.server.hang_up(conn);
        }
        let down = between(&mut process.rng, Duration::from_millis(50), Duration::from_secs(15));
        if let Role::Kubelet(number) | Role::VirtHandler(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            let kubelet = matches!(role, Role::Kubelet(_));
            let follow = if kubelet { node.kubelet_died() } else { node.handler_died() };
            self.follow(number, follow);
        }
        self.queue.after(down, Happening::Start(role));
    }

    // Requests

    fn send(&mut self, role: Role, life: u32, asked: Asked, request: ApiRequest) {
        let now = self.queue.now();
        let idempotent =
            matches!(request.method, Method::Get | Method::Put | Method::Delete) && matches!(asked, Asked::Call(_));
        let label = label(&request);
        self.count(role, &label, &request.body);
        let passage = self.net.send(now, role, idempotent);
        let request = match to_http(request, "") {
            Ok(request) => request,
            Err(error) => return self.reply(role, life, asked, Err(error), Duration::ZERO),
        };
        match passage.arrives {
            Some(delay) => {
                let late = matches!(passage.reply, Reply::Lost(seen) if seen < delay);
                let reply = if late { None } else { Some(passage.reply) };
                if let (true, Reply::Lost(seen)) = (late, passage.reply) {
                    self.lost(role, life, asked, &label, seen);
                }
                // A second arrival of the request is answered to nobody.
                if let Some(again) = passage.again {
                    let copy = copy(&request);
                    let second = self.server.depart((role, life), asked, now, None, format!("{label} (again)"), copy);
                    self.queue.after(again, Happening::Arrive(second));
                }
                let id = self.server.depart((role, life), asked, now, reply, label, request);
                self.queue.after(delay, Happening::Arrive(id));
            }
            None => {
                if let Reply::Lost(seen) = passage.reply {
                    self.lost(role, life, asked, &label, seen);
                }
            }
        }
    }

    /// Counts what a role sends, to find one that repeats itself without end.
    fn count(&mut self, role: Role, label: &str, body: &[u8]) {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return };
        let (since, sent) = &mut process.sent;
        if now.since(*since) > SPIN_WINDOW {
            (*since, *sent) = (now, BTreeMap::new());
        }
        let count = sent.entry(fnv1a(&[label.as_bytes(), body].concat())).or_default();
        *count += 1;
        if *count > SPIN_LIMIT {
            let what = format!("{role} has sent {label} {count} times since {}", since.rfc3339());
            self.breaches.push(Breach::new("roles-do-not-spin", what));
        }
    }

    /// The client learns, after a while, that no reply comes.
    fn lost(&mut self, role: Role, life: u32, asked: Asked, label: &str, seen: Duration) {
        self.act(format_args!("{role} {label}: no reply"));
        self.reply(role, life, asked, Err(ApiError::Transport("no reply".into())), seen);
    }

    fn reply(&mut self, role: Role, life: u32, asked: Asked, result: Result<ApiResponse, ApiError>, after: Duration) {
        let given = match (asked, result) {
            (Asked::Call(id), result) => Given::Api(id, result),
            (Asked::Watch(id), Err(error)) => Given::Closed(id, Some(error)),
            (Asked::Watch(_), Ok(_)) => return,
        };
        self.queue.after(after, Happening::Give(role, life, Box::new(given)));
    }

    fn arrive(&mut self, id: FlightId) {
        if self.server.arrive(id) {
            return self.poll(id);
        }
        if let Some(flight) = self.server.drop_flight(id) {
            self.unanswered(&flight, "the API server is not there");
        }
    }

    fn unanswered(&mut self, flight: &Flight, why: &str) {
        let Some(reply) = flight.reply else { return };
        let after = match reply {
            Reply::After(delay) => delay,
            Reply::Lost(seen) => (flight.sent + seen).since(self.queue.now()),
        };
        self.reply(flight.role, flight.life, flight.asked, Err(ApiError::Transport(why.into())), after);
    }

    fn poll(&mut self, id: FlightId) {
        match self.server.poll(id) {
            None => {}
            Some(Polled::Pending(wait)) => self.queue.after(wait, Happening::Poll(id)),
            Some(Polled::Answered(flight, response)) => self.answered(&flight, *response),
        }
        if self.server.has_woken() && !self.pumping {
            self.pumping = true;
            self.queue.after(PUMP, Happening::Pump);
        }
    }

    fn answered(&mut self, flight: &Flight, response: carrack_apiserver::Response) {
        let now = self.queue.now();
        let Flight { role, life, asked, .. } = *flight;
        let status = response.status().as_u16();
        let lost = if matches!(flight.reply, Some(Reply::Lost(_))) { ", its reply is lost" } else { "" };
        let weight = if flight.label.starts_with("GET")
            || flight.label.contains("/leases")
            || flight.label.contains("/events")
        {
            Weight::Noise
        } else {
            Weight::Act
        };
        let revision = carrack_store::Store::revision(&*self.server.mem);
        let label = &flight.label;
        self.trace.line(now, weight, format_args!("{role} {label} → {status} at {revision}{lost}"));
        match (asked, flight.reply) {
            (_, None) => {}
            (_, Some(Reply::Lost(_))) => self.unanswered(flight, "the reply is lost"),
            (Asked::Call(id), Some(Reply::After(delay))) => {
                self.reply(role, life, Asked::Call(id), result_of(response), delay);
            }
            (Asked::Watch(id), Some(Reply::After(delay))) => match stream_of(response) {
                Ok((lines, timeout_s)) if self.life(role) == Some(life) => {
                    let conn = self.server.connect(now, flight, id, lines);
                    if let Some(process) = self.processes.get_mut(&role) {
                        process.conns.insert(id, conn);
                    }
                    self.queue.after(Duration::from_secs(timeout_s), Happening::End(conn, End::Timeout));
                    if let Some(life) = self.net.breaks(role) {
                        self.queue.after(life, Happening::End(conn, End::Break));
                    }
                }
                Ok(_) => {}
                Err(error) => self.reply(role, life, asked, Err(error), delay),
            },
        }
    }

    // Watches

    fn pump(&mut self) {
        self.pumping = false;
        for (id, items) in self.server.pump() {
            for item in items {
                self.put(id, item);
            }
        }
        if self.server.has_woken() {
            self.pumping = true;
            self.queue.after(PUMP, Happening::Pump);
        }
    }

    /// Puts an item of a watch on its way, behind those that are on it.
    fn put(&mut self, id: ConnId, item: WatchItem) {
        let now = self.queue.now();
        let Some(conn) = self.server.conn(id) else { return };
        let at = self.net.stream(now, conn.role).max(conn.last);
        conn.last = at;
        let first = conn.queue.is_empty();
        conn.queue.push_back((at, item));
        if first {
            self.queue.at(at, Happening::Item(id));
        }
    }

    fn item(&mut self, id: ConnId) {
        let Some(conn) = self.server.conn(id) else { return };
        let Some((_, item)) = conn.queue.pop_front() else { return };
        let (role, life, watch) = (conn.role, conn.life, conn.watch);
        if let Some((at, _)) = conn.queue.front() {
            self.queue.at(*at, Happening::Item(id));
        }
        if matches!(item, WatchItem::Closed(_)) {
            self.server.hang_up(id);
            if let Some(process) = self.processes.get_mut(&role) {
                process.conns.remove(&watch);
            }
        }
        if self.life(role) == Some(life) {
            match &item {
                WatchItem::Event(bytes) => {
                    self.noise(format_args!("{role} watch #{} says {} bytes", watch.0, bytes.len()))
                }
                WatchItem::Closed(_) => self.noise(format_args!("{role} watch #{} ends", watch.0)),
            }
            self.step(role, Input::Watch { id: watch, item });
        }
    }

    fn end(&mut self, id: ConnId, end: End) {
        let Some(conn) = self.server.conn(id) else { return };
        if !conn.cut() {
            return;
        }
        let (role, watch) = (conn.role, conn.watch);
        let closed = match end {
            End::Timeout => None,
            End::Break => {
                self.act(format_args!("{role} watch #{} breaks", watch.0));
                // What was on its way may arrive before the client sees the end, or not.
                if self.net.coin(role)
                    && let Some(conn) = self.server.conn(id)
                {
                    conn.queue.truncate(1);
                }
                Some(ApiError::Transport("the connection broke".into())).filter(|_| self.net.coin(role))
            }
        };
        self.put(id, WatchItem::Closed(closed));
    }

    // Nodes

    fn node(&mut self, number: u8, event: NodeEvent) {
        let now = self.queue.now();
        let booted = matches!(event, NodeEvent::Booted);
        let life = self.life(Role::Kubelet(number)).unwrap_or(0);
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let saves = node.disk.checkpoint.as_ref().map(Vec::len);
        let follow = node.happen(now, life, event, &self.observer, &mut self.breaches);
        if node.disk.checkpoint.as_ref().map(Vec::len) != saves {
            let bytes = node.disk.checkpoint.as_deref().unwrap_or_default();
            if let Ok((allocations, _)) = carrack_kubelet::devices::decode(bytes) {
                holdings(&format!("the checkpoint of node{number}"), &allocations, &mut self.breaches);
            }
        }
        if booted {
            self.mark(format_args!("node{number} is up again"));
        }
        self.follow(number, follow);
    }

    fn follow(&mut self, number: u8, follow: Vec<Follow>) {
        for next in follow {
            match next {
                Follow::Later(delay, event) => self.queue.after(delay, Happening::Node(number, event)),
                Follow::Kubelet(life, delay, news) => {
                    self.queue.after(delay, Happening::News(Role::Kubelet(number), life, OwnIn::Kubelet(news)));
                }
                Follow::Handler(life, delay, news) => {
                    self.queue.after(delay, Happening::News(Role::VirtHandler(number), life, OwnIn::Handler(news)));
                }
                Follow::Say(text) => self.act(format_args!("{text}")),
            }
        }
    }

    // Faults

    fn next_fault(&mut self, fault: Fault) {
        let intervals = self.swarm.intervals;
        let mean = match fault {
            Fault::Crash => intervals.crash,
            Fault::ServerCrash => intervals.apiserver_crash,
            Fault::Expire => intervals.expire,
            Fault::Cut => intervals.cut,
            Fault::Reboot => intervals.reboot,
            Fault::Plugin => intervals.plugin,
            Fault::ContainerExit => intervals.container_exit,
            Fault::Guest => intervals.guest,
            Fault::ForceDelete => intervals.force_delete,
        };
        if let (Some(mean), Some(rng)) = (mean, self.faults.get_mut(&fault)) {
            self.queue.after(below(rng, mean * 2), Happening::Fault(fault));
        }
    }

    fn fault(&mut self, fault: Fault) {
        if self.healed.is_some() {
            return;
        }
        let now = self.queue.now();
        let blind = self.bug() == Some(Bug::BlindHandler);
        let Some(rng) = self.faults.get_mut(&fault) else { return };
        match fault {
            Fault::Crash => {
                let roles: Vec<Role> = self.processes.keys().copied().filter(|r| may_crash(*r)).collect();
                if let Some(role) = pick(rng, &roles) {
                    self.crash(role, "killed");
                }
            }
            Fault::ServerCrash => {
                let down = between(rng, Duration::from_millis(100), Duration::from_secs(20));
                self.server_crash(down);
            }
            Fault::Expire => {
                let oldest = carrack_store::Store::revision(&*self.server.mem);
                self.mark(format_args!("history up to {oldest} is forgotten, and all watches end"));
                let mut compacted = carrack_store::Store::compact(&*self.server.mem, oldest);
                let done = compacted.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
                drop(done);
                self.server.mem.interrupt_watches(&StoreError::Compacted { oldest });
            }
            Fault::Cut => {
                let roles: Vec<Role> = self.processes.keys().copied().filter(|r| *r != Role::User).collect();
                let length = between(rng, Duration::from_millis(100), Duration::from_secs(40));
                if let Some(role) = pick(rng, &roles) {
                    self.mark(format_args!("{role} is cut off from the API server for {} ms", length.as_millis()));
                    self.net.cut(role, now + length);
                }
            }
            Fault::Reboot => {
                let numbers: Vec<u8> = self.nodes.iter().filter(|(_, n)| n.up).map(|(n, _)| *n).collect();
                if let Some(number) = pick(rng, &numbers) {
                    self.reboot(number);
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
                let running: Vec<(u8, String)> = self
                    .nodes
                    .values()
                    .flat_map(|n| n.runtime.running().map(|c| (n.number, c.record.id.clone())))
                    .collect();
                let code = i32::from(rng.one_in(2));
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
                let doing = pick(rng, &[Doing::PowersOff, Doing::Panics, Doing::LosesMonitor]);
                if let (Some((number, compute)), Some(doing)) = (pick(rng, &guests), doing) {
                    self.node(number, NodeEvent::Guest(compute, doing));
                }
            }
            Fault::ForceDelete => {
                // Whoever does this does it because something hangs: mostly a node's kubelet.
                let launchers = self.observer.all("pod").filter(|p| !controller(p).is_empty());
                let (running, waiting): (Vec<_>, Vec<_>) =
                    launchers.cloned().partition(|p| text(p, "/status/phase") == "Running");
                let pod = pick(rng, &running).or_else(|| pick(rng, &waiting));
                let away = between(rng, Duration::from_secs(1), Duration::from_secs(60));
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

    /// Somebody deletes a launcher pod with no grace period: it is gone from the API at once, whatever runs.
    fn force_delete(&mut self, pod: &serde_json::Value) {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        self.mark(format_args!("somebody deletes pod {namespace}/{name} by force"));
        self.checker.forced.insert(uid(pod).to_owned());
        let options = DeleteOptions { grace_period_s: Some(0), ..DeleteOptions::default() };
        let request = ApiRequest::delete(&Pod::resource(), namespace, name, &options);
        // Nobody waits for the reply.
        self.send(Role::User, 0, Asked::Call(CallId(0)), request);
    }

    fn server_crash(&mut self, down: Duration) {
        if !self.server.is_up() {
            return;
        }
        self.mark(format_args!("apiserver dies for {} ms", down.as_millis()));
        let (flights, conns) = self.server.crash();
        for flight in flights {
            self.unanswered(&flight, "the API server died");
        }
        for conn in conns {
            self.put(conn, WatchItem::Closed(Some(ApiError::Transport("the API server died".into()))));
        }
        self.queue.after(down, Happening::ServerUp);
    }

    fn reboot(&mut self, number: u8) {
        let now = self.queue.now();
        self.mark(format_args!("node{number} loses power"));
        for role in [Role::Kubelet(number), Role::VirtHandler(number)] {
            if self.processes.contains_key(&role) {
                self.crash(role, "no power");
            }
        }
        if let Some(node) = self.nodes.get_mut(&number) {
            node.power_off(now);
            let delay = node.power_on(now);
            self.queue.after(delay, Happening::Node(number, NodeEvent::Booted));
        }
    }

    fn heal(&mut self) {
        self.mark(format_args!("nothing fails from here on"));
        self.healed = Some(self.queue.now());
        self.swarm.heal();
        self.net.heal();
        self.server.pace.set(0, self.swarm.store_delay);
        for node in self.nodes.values_mut() {
            node.faults = self.swarm.node;
        }
    }

    // Checks

    fn check(&mut self) {
        let changes = self.observer.changes(&self.server.mem);
        for change in &changes {
            if let Some(text) = crate::observer::describe(change) {
                self.trace.line(self.queue.now(), Weight::Act, format_args!("  {text}"));
            }
        }
        self.checker.changed(&changes, &self.observer, &self.nodes, &mut self.breaches);
        self.checker.nodes(&self.nodes, &mut self.breaches);
    }

    fn user(&self) -> Option<&User> {
        match self.processes.get(&Role::User)?.hosted.as_ref()? {
            Hosted::User(user, _) => Some(user),
            _ => None,
        }
    }

    /// Looks whether all is as it was asked to be, and for how long it has been.
    fn look(&mut self) {
        let now = self.queue.now();
        self.queue.after(Duration::from_secs(1), Happening::Look);
        let Some(healed) = self.healed else { return };
        let lacking = self.user().map_or_else(|| "nobody is there".to_owned(), |user| self.lacking_of(user));
        if lacking.is_empty() {
            let since = *self.good_since.get_or_insert(now);
            self.over = now.since(since) >= STAYS;
        } else {
            self.good_since = None;
            if now.since(healed) > self.options.liveness {
                self.breaches.push(Breach::new("liveness", lacking.clone()));
            }
        }
        if lacking != self.lacking {
            self.mark(format_args!("lacking: {}", if lacking.is_empty() { "nothing" } else { &lacking }));
            self.lacking = lacking;
        }
    }

    /// What is not as it was asked to be; empty when all is.
    fn lacking_of(&self, user: &User) -> String {
        if !user.done() {
            return user.failures().first().cloned().unwrap_or_else(|| "not everything was asked for yet".into());
        }
        if let Some(failure) = user.failures().first() {
            return failure.clone();
        }
        for number in self.nodes.keys() {
            if let Some(why) = crate::wants::node_lacks(&self.observer, &node_name(*number)) {
                return why;
            }
        }
        crate::wants::lacking(user.wants(), &self.observer, &self.nodes).unwrap_or_default()
    }
}

const FAULTS: [Fault; 9] = [
    Fault::Crash,
    Fault::ServerCrash,
    Fault::Expire,
    Fault::Cut,
    Fault::Reboot,
    Fault::Plugin,
    Fault::ContainerExit,
    Fault::Guest,
    Fault::ForceDelete,
];

/// People do not die, and neither does the controller that draws its children's names: nothing but
/// derived names survives a crash between two writes.
fn may_crash(role: Role) -> bool {
    !matches!(role, Role::User | Role::Replicas)
}

fn pick<T: Clone>(rng: &mut Rng, all: &[T]) -> Option<T> {
    let n = usize::try_from(rng.below(u64::try_from(all.len()).unwrap_or(0))).unwrap_or(0);
    all.get(n).cloned()
}

fn copy(request: &http::Request<bytes::Bytes>) -> http::Request<bytes::Bytes> {
    request.clone()
}

/// A request for the trace: its method, and its path without what only watches and lists differ in.
fn label(request: &ApiRequest) -> String {
    let method = match request.method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    };
    format!("{method} {}", request.path)
}
