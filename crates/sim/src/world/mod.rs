//! The cluster of one run: its events, its processes, its two phases.
//!
//! ```text
//!   queue ─▶ one event ─▶ a role steps / the server answers / a node acts ─▶ new events
//!                                                    │
//!                           observer: what was committed ─▶ invariants ─▶ the run fails here
//! ```

mod absences;
mod calls;
mod checks;
mod clocks;
mod clones;
mod drains;
mod ends;
mod faults;
mod gpus;
mod heal;
mod meddling;
mod nodes;
mod outcome;
mod panics;
mod planted;
mod pressure;
mod requests;
mod runs;
mod sandboxes;
mod scheduling;
mod shortages;
mod small;
mod stalls;
mod statics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_apiserver::Class;
use carrack_engine::{
    ApiError, ApiRequest, ApiResponse, CallId, Effect, Input, Rng, Time, TimerId, WatchId, WatchItem,
};
use carrack_plot::Tone;
use carrack_virt::admission::CloneAdmission;

use crate::attacher::Rack;
use crate::blind::Blind;
use crate::clones::{Clones, Fate, Room};
use crate::hang::{Arrival, Hang, Next};
use crate::hosted::{Hosted, OwnIn, OwnOut, Settings};
use crate::invariants::{Breach, Checker, holdings};
use crate::ledger::Ledger;
use crate::net::Net;
use crate::node::{Node, NodeEvent};
use crate::observer::Observer;
use crate::options::{Options, Swarm};
use crate::picture::Picture;
use crate::plants::Bug;
use crate::role::Role;
use crate::server::{self, Asked, ConnId, FlightId, Servers};
use crate::small::Slice;
use crate::trace::{Trace, Weight};
use crate::webhook::Webhook;
use crate::workload::User;
use crate::writers::Writers;
pub use outcome::{Failure, Outcome};
pub(crate) use panics::NAME as PANICS;
pub(crate) use runs::NAME as ENDS;
pub use runs::run;
pub(crate) use shortages::ANSWERED;
pub(crate) use small::Born;

/// When simulated time begins: 2026-11-01T00:00:00Z.
const BEGIN: Time = Time::from_unix_s(1_793_491_200);
/// A run that does not end by then is stuck in a loop that takes no time.
const MAX_STEPS: u64 = 1_000_000;
/// How long the cluster must stay as it was asked to be.
const STAYS: Duration = Duration::from_secs(30);
/// The same of small runs, of which there are more.
const STAYS_SMALL: Duration = Duration::from_secs(3);
/// How long the server lets changes gather before it looks at its watches.
const PUMP: Duration = Duration::from_millis(5);

/// In which time the same request may be sent how often.
const SPIN_WINDOW: Duration = Duration::from_secs(10);
const SPIN_LIMIT: u32 = 60;
/// How many timers of a role may fire at one instant.
const WAKE_LIMIT: u32 = 1000;

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
    /// Watchers are told how far they know everything.
    Progress,
    /// An item of a watch reaches the client.
    Item(ConnId),
    /// A watch connection ends.
    End(ConnId, End),
    /// A process that hung goes on with what has waited for it.
    GoesOn(Role, u32),
    /// A process does what it was about to do when it was stopped.
    DoesAfterAll(Role, u32, Vec<Effect<OwnOut>>),
    /// A process looks whether its clock is its machine's.
    LooksAtClock(Role, u32),
    /// Nobody waits any longer for a process that was told to end.
    Ends(Role, u32),
    /// A process dies, and is there again after so long.
    Dies(Role, u32, Duration),
    /// Something of a node.
    Node(u8, NodeEvent),
    /// A node loses its power, and has it again after so long.
    GoesDark(u8, Duration),
    /// News for an agent from its node.
    News(Role, u32, OwnIn),
    /// A fault that comes by itself.
    Fault(Fault),
    /// A seat of a server is free again.
    Leave(usize, u32, Box<Class>),
    /// A call to the FlexVolume driver takes effect.
    Flex(u64),
    /// Somebody who asks too often asks once more.
    Flood,
    /// A request has waited for its seat for long enough.
    GiveUp(FlightId),
    /// A server's process comes back.
    ServerUp(usize),
    /// A hollow node has power again.
    Back(usize),
    /// The store may have room again.
    Room,
    /// Nothing fails any more from here on.
    Heal,
    /// A look at whether all is as it was asked to be.
    Look,
    /// A call to a guest's handler reaches it.
    Called(Box<calls::Called>),
    /// A planted bug sends something in the name of a role.
    Planted(Role, Box<ApiRequest>),
    /// Somebody without a process of his own sends something.
    Meddles(Role, Box<ApiRequest>),
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
    HalfCut,
    Reboot,
    Plugin,
    ContainerExit,
    Sandbox,
    Guest,
    ForceDelete,
    Pause,
    Stall,
    Clock,
    ServerClock,
    Flood,
    Vanish,
    Lose,
    Strand,
    Evict,
    Chatter,
    Mood,
    FullDisk,
    FullStore,
    RuntimeAway,
    DriverAway,
}

struct Process {
    life: u32,
    hosted: Option<Hosted>,
    /// How far its clock is ahead, in nanoseconds: as far as its machine's was when it started.
    skew_ns: i64,
    /// How far its machine's clock is ahead now.
    machine_ns: i64,
    hang: Hang<Input<OwnIn>>,
    /// Until when it is stopped before it next writes anything, if it does before then.
    stops_until: Option<Time>,
    /// It was told to end, and only waits for the answers to its last requests.
    ending: bool,
    conns: BTreeMap<WatchId, ConnId>,
    /// Draws the effects that it does not survive.
    rng: Rng,
    /// How much it has observed.
    observed: u64,
    /// How often its timers have fired at the same instant, and at which.
    woken: (Time, u32),
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
    picture: Picture,
    net: Net,
    server: Servers,
    processes: BTreeMap<Role, Process>,
    nodes: BTreeMap<u8, Node>,
    rack: Rack,
    writers: Writers,
    observer: Observer,
    ledger: Ledger,
    /// How many lines watches have said.
    lines: u64,
    checker: Checker,
    asked: scheduling::Asked,
    /// In which state each scheduler was when it was last held against the API.
    compared: BTreeMap<Role, (u32, u64, (u64, u64))>,
    /// Hollow nodes without power.
    vanished: BTreeSet<usize>,
    extender_rng: Rng,
    flex: crate::flex::Runs,
    issuer: crate::tokens::Issuer,
    gpus: crate::gpu::Link,
    /// Pods that wait though a node has GPUs for them.
    waiting: crate::gpu::Waiting,
    machines: crate::machines::Machines,
    roaming: crate::roaming::Roaming,
    promises: crate::promises::Promises,
    paces: crate::paces::Paces,
    meddler: crate::meddler::Meddler,
    onlooker: crate::onlooker::Onlooker,
    reader: crate::reader::Reader,
    /// Who makes pods with GPUs past the scheduler.
    outsiders: crate::gpu::Outsiders,
    reruns: crate::reruns::Reruns,
    settings: crate::settings::Settings,
    growth: crate::growth::Growth,
    resizes: crate::resizes::Resizes,
    given: crate::given::Given,
    zones: crate::zones::Zones,
    nominations: crate::nominations::Nominations,
    heritage: crate::heritage::Heritage,
    fickle: crate::fickle::Fickle,
    registered: crate::registered::Registered,
    sizes: crate::sizes::Sizes,
    drains: crate::drains::Drains,
    statics: crate::statics::Statics,
    cordons: crate::cordons::Cordons,
    passing: crate::controllers::Passing,
    autoscaled: crate::controllers::Autoscaled,
    disks: crate::disks::Disks,
    unwanted: crate::unwanted::Unwanted,
    /// A node of machines was taken out, power and Node object.
    lost: bool,
    clones: Clones,
    /// What is on the node of machines that are copied.
    room: Room,
    calls_rng: Rng,
    fate: Fate,
    /// Draws which server a request goes to, and how long it is served.
    servers_rng: Rng,
    /// Draws which processes are told to end, and not killed.
    ends_rng: Rng,
    /// Draws which nodes are shut down in order, and do not lose their power.
    shutdowns_rng: Rng,
    breaches: Vec<Breach>,
    /// A planted bug has begun to repeat something.
    echoes: bool,
    /// A life of a process that is not to do anything more, so that a planted bug shows.
    doomed: Option<(Role, u32)>,
    pumping: bool,
    /// When watchers are to be told how far they know everything.
    telling: Option<Time>,
    healed: Option<Time>,
    /// Since when everything is as it was asked to be.
    good_since: Option<Time>,
    /// What is not yet as it was asked to be.
    lacking: String,
    over: bool,
    /// The slice of the system that there is, if that is not all.
    slice: Option<&'static Slice>,
    /// When the run's own part began.
    begun: Time,
}

impl World {
    fn new(seed: u64, options: &Options) -> Result<Self, String> {
        let root = Rng::new(seed);
        let options = options.of_seed(&root);
        let swarm = Swarm::draw(&root, &options);
        let mut world = Self::with(root, &options, swarm)?;
        world.begin(seed);
        Ok(world)
    }

    /// A cluster of which nothing has started yet.
    fn with(root: Rng, options: &Options, swarm: Swarm) -> Result<Self, String> {
        let bug = options.plant.map(|plant| plant.bug);
        let settings = server::Settings {
            count: swarm.servers,
            seats: swarm.seats,
            stale: bug == Some(Bug::StaleServer),
            seats_fault: match bug {
                Some(Bug::OneLine) => Some(crate::hall::Fault::OneLine),
                Some(Bug::TwoForOne) => Some(crate::hall::Fault::TwoForOne),
                _ => None,
            },
            clones: if bug == Some(Bug::TargetDrawnLate) || swarm.nameless_targets {
                CloneAdmission::without_names()
            } else {
                CloneAdmission::default()
            },
            blind: match bug {
                Some(Bug::EvictedGuests) => Some(Blind(crate::evictions::is_eviction)),
                Some(Bug::GoingUnminded) => Some(Blind(crate::meddler::is_going)),
                _ => None,
            },
            writes_watches: bug == Some(Bug::WritingWatches),
            believes: bug == Some(Bug::TenantsChooseGpus),
            subresources: swarm.looked_on || options.machines && options.has_whole_nodes(),
        };
        let mut server = Servers::new(BEGIN, &root.fork("server"), settings);
        let mut definitions: Vec<_> = if options.has_machines() {
            carrack_types::kubevirt::crd::crds()
                .into_iter()
                .map(|crd| ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), crd))
                .collect()
        } else {
            Vec::new()
        };
        if options.clones || options.has_whole_nodes() {
            let snapshots = carrack_types::snapshots::crds().into_iter();
            definitions.extend(
                snapshots.map(|crd| ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned(), crd)),
            );
        }
        if swarm.webhook {
            definitions.push(Webhook::configuration());
        }
        if options.workloads {
            definitions.extend(crate::meters::configuration());
        }
        if crate::imports::are_there(&root.fork("workload"), options) {
            definitions.push(crate::imports::definition());
        }
        definitions.extend(swarm.meddles.then(crate::meddler::rights));
        definitions.extend(swarm.looked_on.then(crate::onlooker::rights).into_iter().flatten());
        definitions.extend(swarm.gpu_outsiders.then(crate::gpu::rights));
        server.bootstrap(&definitions)?;
        let observer = Observer::new(&server.mem);
        let ledger = Ledger::new(&server.mem);
        Ok(Self {
            options: options.clone(),
            net: Net::new(root.fork("net"), swarm.net),
            faults: BTreeMap::new(),
            queue: crate::queue::Queue::new(BEGIN),
            trace: Trace::new(BEGIN, options.keep_trace),
            picture: Picture::new(options.draw, BEGIN),
            server,
            processes: BTreeMap::new(),
            nodes: BTreeMap::new(),
            rack: Rack::default(),
            writers: Writers::default(),
            observer,
            ledger,
            lines: 0,
            checker: Checker::default(),
            asked: scheduling::Asked::default(),
            compared: BTreeMap::new(),
            vanished: BTreeSet::new(),
            extender_rng: root.fork("asking"),
            flex: crate::flex::Runs::new(root.fork("flex"), swarm.node, options.plant.map(|plant| plant.bug)),
            issuer: crate::tokens::Issuer::new(root.fork("tokens"), swarm.others.tokens, options.hint()),
            gpus: crate::gpu::Link::new(root.fork("gpus"), swarm.others.gpu_calls),
            waiting: crate::gpu::Waiting::default(),
            machines: crate::machines::Machines::default(),
            roaming: crate::roaming::Roaming::default(),
            promises: crate::promises::Promises::default(),
            paces: crate::paces::Paces::default(),
            meddler: crate::meddler::Meddler::new(root.fork("meddler"), swarm.meddles),
            onlooker: crate::onlooker::Onlooker::new(root.fork("onlooker"), swarm.looked_on),
            reader: crate::reader::Reader::new(root.fork("reader"), swarm.reads),
            outsiders: crate::gpu::Outsiders::new(root.fork("GPU outsiders"), swarm.gpu_outsiders, bug.is_some()),
            reruns: crate::reruns::Reruns::default(),
            settings: crate::settings::Settings::default(),
            growth: crate::growth::Growth::default(),
            resizes: crate::resizes::Resizes::default(),
            given: crate::given::Given::default(),
            zones: crate::zones::Zones::default(),
            nominations: crate::nominations::Nominations::default(),
            heritage: crate::heritage::Heritage::default(),
            fickle: crate::fickle::Fickle::default(),
            registered: crate::registered::Registered::default(),
            sizes: crate::sizes::Sizes::default(),
            drains: crate::drains::Drains::default(),
            statics: crate::statics::Statics::default(),
            cordons: crate::cordons::Cordons::default(),
            passing: crate::controllers::Passing::default(),
            autoscaled: crate::controllers::Autoscaled::new(root.fork("metrics")),
            disks: crate::disks::Disks::default(),
            unwanted: crate::unwanted::Unwanted::default(),
            lost: false,
            clones: Clones::default(),
            room: Room::new(BEGIN, root.fork("room"), swarm.others.copies, bug),
            calls_rng: root.fork("calls"),
            fate: Fate::new(options, bug),
            servers_rng: root.fork("servers in use"),
            ends_rng: root.fork("who is told to end"),
            shutdowns_rng: root.fork("who is shut down"),
            breaches: Vec::new(),
            echoes: false,
            doomed: None,
            pumping: false,
            telling: None,
            healed: None,
            good_since: None,
            lacking: String::new(),
            over: false,
            swarm,
            root,
            slice: None,
            begun: BEGIN,
        })
    }

    fn begin(&mut self, seed: u64) {
        self.trace.line(BEGIN, Weight::Mark, format_args!("seed {seed}: {:?}", self.swarm));
        self.plan_drains();
        self.plan_statics();
        self.start_all();
        self.plan_pressure();
        self.begin_trouble();
    }

    /// Plays until all is over.
    fn play(&mut self, seed: u64, replay: &str) -> Outcome {
        let mut steps = 0;
        while !self.over && self.breaches.is_empty() && steps < MAX_STEPS {
            let Some(happening) = self.queue.pop() else { break };
            steps += 1;
            self.happens(happening);
        }
        if steps == MAX_STEPS {
            self.breaches.push(Breach::new("liveness", format!("more than {MAX_STEPS} events")));
        }
        let now = self.queue.now();
        let failure = self.breaches.first().cloned().map(|Breach { invariant, message }| {
            self.trace.line(now, Weight::Mark, format_args!("BROKEN {invariant}: {message}"));
            Failure { invariant, message, timeline: self.trace.timeline(), replay: replay.to_owned() }
        });
        let (trace_hash, simulated) = (self.trace.hash(), now.since(self.begun));
        let broken = failure.as_ref().map(|failure| (failure.invariant, failure.message.as_str()));
        let picture = self.picture.svg(replay, now, broken);
        let end = match self.options.clones {
            true => crate::clones::end(&self.observer),
            false => crate::controllers::end(&self.observer),
        };
        let (counts, trace, results) = (self.fate.counts, self.trace.clone(), self.results());
        Outcome { seed, trace_hash, simulated, steps, failure, trace, picture, end, results, counts }
    }

    /// Starts everybody.
    fn start_all(&mut self) {
        let swarm = self.swarm.clone();
        for server in 0..swarm.servers {
            self.picture.process(BEGIN, format!("apiserver {server}"), "runs", Tone::Good);
        }
        self.set_server();
        let mut roles = vec![Role::User, Role::Scheduler, Role::Controllers, Role::Replicas];
        if swarm.extender.is_some() {
            roles.push(Role::Extender);
        }
        if self.options.gpus {
            roles.push(Role::GpuExtender);
        }
        if swarm.standby_scheduler {
            roles.push(Role::StandbyScheduler);
        }
        if !self.options.has_whole_nodes() {
            roles.retain(|role| *role != Role::Replicas);
        }
        if self.options.has_hollow_nodes() {
            roles.push(Role::Hollow);
            if self.options.workloads {
                roles.push(Role::Storage);
            }
        }
        if self.options.clones {
            roles.retain(|role| matches!(role, Role::User | Role::Controllers));
            roles.extend([Role::Storage, Role::Squatter]);
            if swarm.standby {
                roles.push(Role::StandbyVirt);
            }
            if swarm.cloner_apart {
                roles.push(Role::Cloner);
            }
            if self.options.copies {
                roles.push(Role::Host);
            }
        }
        if self.options.has_whole_nodes() {
            roles.push(Role::Attacher);
            if swarm.standby_attacher {
                roles.push(Role::StandbyAttacher);
            }
        }
        if self.options.has_machines() {
            roles.push(Role::VirtController);
        }
        if swarm.standby {
            roles.push(Role::Standby);
        }
        // What people do there follows from the seed.
        roles.retain(|role| *role != Role::User || !self.options.small);
        for number in 1..=self.machines_at_first() {
            roles.extend(self.add_machine(number));
        }
        if crate::imports::are_there(&self.root.fork("workload"), &self.options) {
            roles.push(Role::Importer);
        }
        let mut start = self.root.fork("start");
        self.add_processes(roles, &mut start);
    }

    /// From now on the store and the webhook fail as often as the swarm says, and the discovery of meters where it may.
    fn set_server(&self) {
        self.server.pace.set(self.swarm.store_pending_one_in, self.swarm.store_delay);
        self.server.webhook.set(self.swarm.webhook_wrong_one_in, self.swarm.webhook_delay);
        self.server.meters.may_fail(self.swarm.others.meters);
    }

    /// From now on anything may fail, until nothing does.
    fn begin_trouble(&mut self) {
        for fault in faults::FAULTS {
            self.faults.insert(fault, self.root.fork(&format!("fault {fault:?}")));
            self.next_fault(fault);
        }
        self.rack.may_lie(self.root.fork("disks that are late"), self.swarm.node.lies_one_in);
        self.queue.after(self.options.trouble(), Happening::Heal);
        self.queue.after(Duration::from_secs(1), Happening::Look);
    }

    /// A fault, or something that people did.
    pub(super) fn mark(&mut self, text: std::fmt::Arguments<'_>) {
        self.picture.step(self.queue.now(), text);
        self.trace.line(self.queue.now(), Weight::Mark, text);
    }
    /// A process, or a machine, changes its state.
    pub(super) fn turn(&mut self, who: impl ToString, what: &str, tone: Tone, text: std::fmt::Arguments<'_>) {
        self.picture.process(self.queue.now(), who.to_string(), what, tone);
        self.trace.line(self.queue.now(), Weight::Mark, text);
    }
    pub(super) fn act(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), Weight::Act, text);
    }
    pub(super) fn noise(&mut self, text: std::fmt::Arguments<'_>) {
        self.trace.line(self.queue.now(), Weight::Noise, text);
    }

    fn happen(&mut self, happening: Happening) {
        let now = self.queue.now();
        self.server.set_now(now);
        if self.options.copies {
            self.room.set_now(now);
        }
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
                    Given::Timer(id) => {
                        self.woken(role);
                        Input::Timer(id)
                    }
                };
                self.step(role, input);
            }
            Happening::GoesOn(role, life) => {
                if self.life(role) == Some(life) {
                    self.goes_on(role, life);
                }
            }
            Happening::DoesAfterAll(role, life, effects) => {
                if self.life(role) == Some(life) {
                    self.carry_out(role, effects);
                }
            }
            Happening::LooksAtClock(role, life) => self.looks_at_clock(role, life),
            Happening::Ends(role, life) => {
                if self.life(role) == Some(life) {
                    self.has_ended(role, true);
                }
            }
            Happening::Dies(role, life, back) => {
                if self.life(role) == Some(life) {
                    self.crash(role, "of what it has sent");
                    self.queue.after(back, Happening::Start(role));
                }
            }
            Happening::Arrive(id) => self.arrive(id),
            Happening::Poll(id) => self.poll(id),
            Happening::Pump => self.pump(),
            Happening::Progress => self.progress(),
            Happening::Item(conn) => self.item(conn),
            Happening::End(conn, end) => self.end(conn, end),
            Happening::Node(number, event) => self.node(number, event),
            Happening::GoesDark(number, away) => self.goes_dark(number, away),
            Happening::News(role, life, news) => {
                if self.life(role) == Some(life) {
                    self.step(role, Input::Own(news));
                }
            }
            Happening::Fault(fault) => self.fault(fault),
            Happening::Back(node) => self.power(node, true),
            Happening::Room => self.has_room(),
            Happening::Leave(server, life, class) => {
                self.server.leave(server, life, &class);
                self.seat();
            }
            Happening::Flex(number) => {
                let caller = self.flex.caller(number).and_then(|(role, _)| self.processes.get(&role));
                let stopped = caller.is_some_and(|process| process.hang.hangs(now));
                if let Some(answered) = self.flex.end(number, now, stopped, &self.rack) {
                    self.act(format_args!("{}", answered.said));
                    let news = OwnIn::Flex(Box::new(answered.answer));
                    self.queue.after(answered.after, Happening::News(answered.role, answered.life, news));
                }
            }
            Happening::Flood => self.flood(),
            Happening::GiveUp(id) => {
                if let Some(polled) = self.server.give_up(id) {
                    self.polled(id, polled);
                }
            }
            Happening::ServerUp(server) => {
                if !self.server.is_up(server) {
                    let first = !self.server.any_up();
                    self.server.start(server);
                    if let Some((_, to)) = self.checker.outages.last_mut().filter(|_| first) {
                        *to = Some(now);
                    }
                    let who = format!("apiserver {server}");
                    self.turn(&who, "runs", Tone::Good, format_args!("{who} starts"));
                }
            }
            Happening::Heal => self.heal(),
            Happening::Look => self.look(),
            Happening::Called(called) => self.called(*called),
            Happening::Planted(role, request) => self.planted(role, *request),
            Happening::Meddles(role, request) => self.meddles(role, *request),
        }
    }

    /// The present life of a process that runs.
    pub(super) fn life(&self, role: Role) -> Option<u32> {
        self.processes.get(&role).filter(|p| p.hosted.is_some()).map(|p| p.life)
    }

    fn start(&mut self, role: Role) {
        if let Role::Kubelet(n) | Role::VirtHandler(n) | Role::LocalStorage(n) = role
            && self.nodes.get(&n).is_some_and(|node| !node.up)
        {
            // It starts once its node is up.
            self.queue.after(Duration::from_secs(1), Happening::Start(role));
            return;
        }
        let settings = Settings {
            elect: self.swarm.elect,
            extender: self.swarm.extender,
            workloads: self.options.workloads,
            gpus: self.options.gpus,
            clones: self.options.clones,
            copies: self.options.copies,
            flex: crate::flex::is_there(self.options.hint()).then(|| crate::flex::elects(self.options.hint())),
            apart: self.swarm.cloner_apart,
            watchdogs: self.swarm.watchdogs.is_some(),
            zones: self.swarm.zones,
            keeps_memory: self.swarm.keeps_memory,
            reads_manifests: match role {
                Role::Kubelet(n) => self.nodes.get(&n).is_some_and(|node| node.manifests.are_read()),
                _ => false,
            },
            parallel_pulls: self.swarm.parallel_pulls,
            watchdog_left: match role {
                Role::VirtHandler(n) => self.nodes.get(&n).and_then(|node| node.guests.watchdog.left()),
                _ => None,
            },
            faults: self.swarm.others,
            slice: self.slice,
            bug: self.bug(),
        };
        let Some(process) = self.processes.get_mut(&role).filter(|p| p.hosted.is_none()) else { return };
        process.life += 1;
        process.skew_ns = process.machine_ns;
        let life = process.life;
        process.hosted = match role {
            Role::User => Some(Hosted::user(User::new(&self.root.fork("workload"), &self.options))),
            _ => Hosted::new(role, life, settings, &self.root, &self.rack, &self.room),
        };
        if role == Role::Hollow
            && let Some(hosted) = &mut process.hosted
        {
            for node in &self.vanished {
                hosted.power(self.queue.now(), *node, false);
            }
        }
        self.turn(role, &format!("life {life}"), Tone::Good, format_args!("{role} starts, life {life}"));
        if life > 1 {
            self.starts_anew(role);
        }
        if let Role::Kubelet(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            if settings.bug == Some(Bug::ForgottenCheckpoint) && life > 1 {
                node.disk.checkpoint = None;
            }
            if settings.bug == Some(Bug::ForgottenStops) && life > 1 {
                node.disk.actuated = None;
            }
            // Who reads old lists reads old services.
            if settings.bug != Some(Bug::StaleServer) {
                node.links.begin(life, &self.observer);
            }
            let follow = node.kubelet_started(life);
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

    pub(super) fn bug(&self) -> Option<Bug> {
        self.options.plant.map(|plant| plant.bug)
    }

    /// Something reaches a process, which observes it once it does not hang.
    pub(super) fn step(&mut self, role: Role, input: Input<OwnIn>) {
        let Some(process) = self.processes.get_mut(&role).filter(|p| p.hosted.is_some()) else { return };
        let is_own = matches!(input, Input::Timer(_));
        match process.hang.arrive(self.queue.now(), input, is_own) {
            Arrival::Observed(input) => self.observe(role, input),
            Arrival::Waits => {}
            Arrival::WaitsUntil(until) => self.queue.at(until, Happening::GoesOn(role, process.life)),
        }
    }

    fn goes_on(&mut self, role: Role, life: u32) {
        let now = self.queue.now();
        let Some(process) = self.processes.get_mut(&role) else { return };
        match process.hang.next(now) {
            Next::Observed(input) => {
                self.queue.after(Duration::ZERO, Happening::GoesOn(role, life));
                self.observe(role, input);
            }
            Next::Hangs(until) => self.queue.at(until, Happening::GoesOn(role, life)),
            Next::Nothing => {}
        }
    }

    /// Lets a process observe something, and carries out what it wants.
    fn observe(&mut self, role: Role, input: Input<OwnIn>) {
        let now = self.queue.now();
        let planted = self.bug();
        let Some(process) = self.processes.get_mut(&role) else { return };
        let Some(hosted) = &mut process.hosted else { return };
        if process.ending && !matches!(input, Input::Api { .. }) {
            return;
        }
        if let Input::Api { id, result } = &input {
            self.promises.heard(role, *id, result.is_ok());
            self.autoscaled.heard(role, *id, result);
            self.paces.heard(now, role, *id, result.is_ok(), &mut self.breaches);
        }
        if let (Role::Kubelet(number), Input::Own(OwnIn::Kubelet(news))) = (role, &input)
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.plugins.hears(news);
            node.silence.hears(news);
            node.heard.hears(news);
            if let Some(low) = &mut node.low {
                low.hears(now, news);
            }
        }
        let evicted = crate::pressure::before(hosted, &input);
        let is_answered = matches!(input, Input::Own(OwnIn::Scheduler(_)));
        process.observed += 1;
        let local = Time(now.0 + process.skew_ns);
        let led = hosted.leads();
        let mut effects = hosted.step(local, input);
        self.twisted(role, led, &mut effects);
        let Some(process) = self.processes.get(&role) else { return };
        let Some(hosted) = &process.hosted else { return };
        if let Hosted::Manager(core, _) = hosted {
            self.autoscaled.sends(role, core, &effects, &mut self.breaches);
        }
        if let Hosted::Scheduler(core, _) = hosted {
            scheduling::nominations(core, &mut self.breaches);
            crate::answers::look(core, &mut self.breaches);
            self.cordons.look((role, process.life), core, &mut self.breaches);
            if is_answered {
                crate::closings::look(core, &effects, &mut self.breaches);
            }
            for effect in &effects {
                // With nominations stored, this breaks first; what is to be shown then is the leak.
                if let Effect::Own(OwnOut::Scheduler(ask)) = effect
                    && planted != Some(Bug::StoredNominations)
                {
                    self.asked.filter((role, process.life), core, ask, &mut self.breaches);
                }
            }
        }
        if let (Hosted::Kubelet(core, _), Role::Kubelet(number)) = (hosted, role) {
            holdings(&format!("the books of node{number}'s kubelet"), core.devices().allocations(), &mut self.breaches);
            if let Some(node) = self.nodes.get(&number) {
                crate::mounts::known(core, node, &self.observer, &mut self.breaches);
                let requests = effects.iter().filter_map(|effect| match effect {
                    Effect::Api(_, request) => Some(request),
                    _ => None,
                });
                node.silence.says(number, requests, &mut self.breaches);
            }
        }
        if let Role::VirtHandler(number) = role
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.handler_is_there(now, self.promises.renewed(role), process.ending);
        }
        if let Hosted::Gpus(core, _) = hosted {
            crate::gpu::counted(core, &self.observer, &mut self.breaches);
            // Of a node that is gone nobody knows which GPUs it has; nodes go beside workloads.
            if !self.options.workloads && planted.is_none_or(Bug::is_of_gpu_outsiders) {
                crate::gpu::ledger_bounds(core.ledger(), &mut self.breaches);
            }
        }
        if let Some(before) = evicted {
            self.look_for_evicted(role, &before);
        }
        if let Some(effects) = self.stops_before(role, effects) {
            self.carry_out(role, effects);
            self.has_ended(role, false);
        }
    }

    /// Does what a process wants done, as long as it lives.
    pub(super) fn carry_out(&mut self, role: Role, effects: Vec<Effect<OwnOut>>) {
        let Some((life, skew_ns)) = self.processes.get(&role).map(|p| (p.life, p.skew_ns)) else { return };
        for effect in effects {
            if self.dies(role) || self.is_fated(role) {
                self.crash(role, "in the midst of its work");
                return;
            }
            match effect {
                Effect::Api(id, request) => {
                    self.promises.sent(role, id, &request, self.queue.now());
                    self.paces.sent(role, id, &request);
                    self.send(role, life, Asked::Call(id), request);
                }
                Effect::Watch(id, request) => self.send(role, life, Asked::Watch(id), request),
                Effect::Unwatch(id) => {
                    let conn = self.processes.get_mut(&role).and_then(|p| p.conns.remove(&id));
                    if let Some(conn) = conn {
                        self.server.hang_up(conn);
                        self.ledger.closed(conn);
                    }
                }
                Effect::Timer(id, at) => {
                    let at = Time(at.0.saturating_sub(skew_ns));
                    self.queue.at(at, Happening::Give(role, life, Box::new(Given::Timer(id))));
                }
                Effect::Own(OwnOut::Scheduler(ask)) => self.ask_extender(role, life, *ask),
                Effect::Own(OwnOut::Gpus(reply)) => self.gpus_answered(*reply),
                Effect::Own(OwnOut::Extender(answer)) => self.answer_scheduler(*answer),
                Effect::Own(OwnOut::Kubelet(out)) => {
                    if let Role::Kubelet(number) = role {
                        let number = self.runtime_of(number, &out.op);
                        let Some(node) = self.nodes.get_mut(&number) else { continue };
                        crate::ordered::asked(node, life, &out.op, &self.observer, &mut self.breaches);
                        let follow = node.ask(self.queue.now(), life, out.id, out.op, &mut self.breaches);
                        self.follow(number, follow);
                    }
                }
                Effect::Own(OwnOut::Storage(out)) => {
                    if let Role::LocalStorage(number) = role
                        && let Some(node) = self.nodes.get_mut(&number)
                    {
                        let follow = node.ask_storage(life, *out);
                        self.follow(number, follow);
                    }
                }
                Effect::Own(OwnOut::Flex(out)) => {
                    if let Some((number, after)) = self.flex.begin((role, life), *out, self.queue.now(), skew_ns) {
                        self.queue.after(after, Happening::Flex(number));
                    }
                }
                Effect::Own(OwnOut::Handler(out)) => {
                    if let Role::VirtHandler(number) = role
                        && let Some(node) = self.nodes.get_mut(&number)
                    {
                        let follow = node.ask_handler(life, *out, skew_ns);
                        self.follow(number, follow);
                    }
                }
                Effect::Exit(reason) => {
                    self.breaches.push(Breach::new("roles-do-not-give-up", format!("{role}: {reason}")));
                    self.crash(role, &reason);
                    return;
                }
            }
        }
    }
}

/// People do not die, and neither does the controller that draws its children's names: nothing but
/// derived names survives a crash between two writes.
fn may_crash(role: Role) -> bool {
    !matches!(role, Role::User | Role::Replicas)
}
