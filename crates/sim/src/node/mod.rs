//! A simulated node: its disk, its container runtime, its device plugins, its guests.
//!
//! The kubelet's core asks for operations; each takes effect at some time and is answered at some
//! later time, so that a crash may fall before, between or after. What is on the disk and what runs
//! outlives the agents; a reboot ends what runs and keeps what is on the disk.

mod absent;
mod contents;
mod copying;
mod disk;
mod frozen;
mod guests;
mod hindrance;
mod lies;
mod machine;
mod manifests;
mod moods;
mod ops;
mod plugins;
mod runtime;
mod shutdown;
mod starts;
mod storage;
mod unkind;
mod watchdog;

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::runtime::{PodRef, RuntimeInfo};
use carrack_kubelet::{In, Loaded, Op, OpError, OpId, Outcome, Reply};
use carrack_virt::handler::effects::WatchdogCall;

use crate::attacher::Rack;
use crate::env_files::{self, Written};
use crate::growth;
use crate::images::{self, Images};
use crate::invariants::Breach;
use crate::kept_mounts::Kept;
use crate::links::Links;
use crate::observer::Observer;
use crate::options::NodeFaults;
use crate::ordered::{self, Hooks};
use crate::pulling;
use crate::role::node_name;
use crate::sandboxes::Heard;
use crate::silence::Silence;
use absent::{Absences, Met};
#[cfg(test)]
pub(crate) use contents::new_volume;
pub(crate) use contents::{Taken, content_of};
pub(crate) use copying::Copies;
pub(crate) use disk::Disk;
pub(crate) use guests::{Doing, Guests};
use hindrance::{Errand, Hindrances};
pub(crate) use manifests::{DIRECTORY as MANIFESTS, Manifests};
pub(crate) use moods::{NOTED, WELL};
use ops::{describe, ends_with_kubelet, is_aside};
pub(crate) use plugins::{Plugins, WIDGET, WIDGETS};
pub(crate) use runtime::Runtime;
pub(crate) use shutdown::{NAME as HELD_UP, groups as shutdown_groups};
pub(crate) use starts::TOLD;
pub(crate) use storage::{Storage, lost_snapshot, orphan, orphaned_content, traces};
pub(crate) use unkind::ONCE;
pub(crate) use watchdog::NAME as HEALTHY_HOSTS;

/// CPUs of a node.
pub(crate) const CPUS: u32 = 4;
/// Memory of a node, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 8 << 30;

/// What is to happen on a node.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    /// An operation takes effect.
    Effect(u64),
    /// A copy of disks comes to its end.
    Copied { container: String, whole: bool },
    /// A sandbox ends by itself, alone or with all that runs in it.
    SandboxEnds { sandbox: String, whole: bool },
    /// A process in a container ends by itself.
    Exit { container: String, code: i32 },
    /// A device plugin of the simulator's own comes up.
    PluginStart { resource: &'static str, generation: u64 },
    /// A mood of a device plugin is over.
    PluginMends { resource: &'static str, mood: u64 },
    /// The disk may have room again.
    Room,
    /// Who was away may be there again.
    Returns,
    /// A call to the storage driver takes effect.
    StorageEffect(u64),
    /// An operation of virt-handler takes effect.
    HandlerEffect(u64),
    /// The guest in a container does something by itself.
    Guest(String, Doing),
    /// The machine's watchdog may bite.
    Watchdog,
    /// Nobody holds up any more the machine of this boot, which is being shut down.
    GoesDown(u32),
    /// The node is up again after a reboot.
    Booted,
}

/// What follows from an event.
#[derive(Debug)]
pub(crate) enum Follow {
    /// Something more, later.
    Later(Duration, NodeEvent),
    /// News for the kubelet of this life, after a while.
    Kubelet(u32, Duration, Box<In>),
    /// News for the virt-handler of this life, after a while.
    Handler(u32, Duration, Box<carrack_virt::handler::In>),
    /// An answer for the provisioner of this life, after a while.
    Storage(u32, Duration, Box<carrack_storage::provision::In>),
    /// For the trace.
    Say(String),
    /// The machine is reset.
    Reset,
    /// The machine goes down as it was told to, and comes up again.
    Down,
}

struct Pending {
    life: u32,
    id: OpId,
    op: Op,
    fate: Fate,
    errand: Errand,
}

/// Whether an operation fails, and on which side of its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    FailsBefore,
    FailsAfter,
}

/// A node.
pub(crate) struct Node {
    pub number: u8,
    pub disk: Disk,
    pub manifests: Manifests,
    pub runtime: Runtime,
    kept: Kept,
    pub images: Images,
    /// What presses on it, where it may run low.
    pub low: Option<crate::pressure::Low>,
    written: Written,
    pub links: Links,
    pub ordered: Hooks,
    pub plugins: Plugins,
    pub storage: Storage,
    pub copies: Copies,
    /// A driver that wants tokens.
    pub tokens: crate::tokens::Driver,
    absences: Absences,
    /// What its kubelet has heard of its runtime.
    pub silence: Silence,
    pub heard: Heard,
    pub guests: Guests,
    pub faults: NodeFaults,
    /// A planted bug: whoever looks for processes sees none.
    pub blind: bool,
    /// A planted bug: a pod's volumes are unmounted before its containers are stopped.
    pub unmounts_first: bool,
    /// A planted bug: files that cannot be read are taken for such as are not there.
    pub unread_is_absent: bool,
    /// A planted bug: what a CSI driver says is not looked at.
    pub believes: bool,
    /// A planted bug: a driver that was away is not heard to be there again.
    pub registers_once: bool,
    /// Its machine tells of NUMA nodes, and its kubelet keeps their memory for containers.
    pub keeps_memory: bool,
    /// How many images its kubelet may pull at a time.
    pub parallel_pulls: Option<usize>,
    pub up: bool,
    /// There is no machine at all.
    pub gone: bool,
    boot: u32,
    pub(crate) booted_at: Time,
    /// Since when it is held up that is being shut down.
    held_since: Option<Time>,
    rng: Rng,
    /// The chance of what is done on the side ([`is_aside`]): however much of it there is, all else goes as it would without.
    side: Rng,
    /// Decides which images show when they were pulled.
    showing: Rng,
    /// Decides what a loss of power leaves of what is on the disk.
    tearing: Rng,
    /// Decides what a loss of power leaves of the records that were written last.
    losing: Rng,
    /// Decides what it leaves of virt-handler's.
    spoiling: Rng,
    /// Decides when drivers lie.
    lying: Rng,
    unkind: unkind::Unkind,
    pending: BTreeMap<u64, Pending>,
    hindrances: Hindrances,
    next: u64,
    /// Operations that were asked for, but for those on the side.
    asked: u64,
}

impl Node {
    /// Draws other chances from here on, with other faults.
    pub(crate) fn reseed(&mut self, rng: Rng, faults: NodeFaults) {
        self.storage.has_kernel(rng.fork("kernel").one_in(2));
        self.tokens.reseed(rng.fork("tokens"));
        self.plugins.whims = rng.fork("whims");
        self.copies.reseed(rng.fork("copies"));
        self.plugins.reseed_starts(&rng);
        self.side = rng.fork("aside");
        self.showing = rng.fork("what shows");
        self.tearing = rng.fork("what is torn");
        self.losing = rng.fork("what is lost");
        self.spoiling = rng.fork("what handlers lose");
        self.lying = rng.fork("lies");
        self.unkind = unkind::Unkind::new(rng.fork("unkind"));
        (self.rng, self.faults) = (rng, faults);
    }

    pub(crate) fn new(number: u8, now: Time, rng: Rng, faults: NodeFaults, rack: Rack) -> Self {
        Self {
            number,
            disk: Disk::new(number, rack),
            manifests: Manifests::default(),
            runtime: Runtime::new(number),
            kept: Kept::default(),
            images: Images::default(),
            low: None,
            written: Written::default(),
            links: Links::default(),
            ordered: Hooks::default(),
            plugins: Plugins::new(rng.fork("whims")).telling(faults.pre_starts.then(|| starts::starts_of(&rng))),
            storage: Storage::new(rng.fork("kernel").one_in(2)),
            copies: Copies::new(rng.fork("copies")),
            tokens: crate::tokens::Driver::new(rng.fork("tokens")),
            absences: Absences::default(),
            silence: Silence::default(),
            heard: Heard::default(),
            guests: Guests::default(),
            faults,
            blind: false,
            unmounts_first: false,
            unread_is_absent: false,
            believes: false,
            registers_once: false,
            keeps_memory: false,
            parallel_pulls: None,
            up: true,
            gone: false,
            boot: 1,
            booted_at: now,
            held_since: None,
            side: rng.fork("aside"),
            showing: rng.fork("what shows"),
            tearing: rng.fork("what is torn"),
            losing: rng.fork("what is lost"),
            spoiling: rng.fork("what handlers lose"),
            lying: rng.fork("lies"),
            unkind: unkind::Unkind::new(rng.fork("unkind")),
            rng,
            pending: BTreeMap::new(),
            hindrances: Hindrances::default(),
            next: 0,
            asked: 0,
        }
    }

    /// Its machine, which is off, is taken away with all that is on its disk. Another one may come in its place.
    pub(crate) fn is_taken_away(&mut self) {
        self.gone = true;
        self.disk = self.disk.blank();
        self.runtime.forget();
        self.forget_manifests();
        self.guests.records.clear();
        self.storage.blank();
        (self.images, self.written) = (Images::default(), Written::default());
    }

    /// Changes with each boot.
    pub(crate) fn boot_id(&self) -> String {
        format!("{}-boot-{}", node_name(self.number), self.boot)
    }

    /// The kubelet of a life asks for an operation.
    pub(crate) fn ask(&mut self, now: Time, life: u32, id: OpId, op: Op, breaches: &mut Vec<Breach>) -> Vec<Follow> {
        if op.only_shows() || !self.up {
            return Vec::new();
        }
        if let Some(volume) = growth::asked_about(&op)
            && let Some(other) =
                self.pending.values().find(|p| p.life == life && growth::asked_about(&p.op) == Some(volume))
        {
            let (node, words) = (self.number, (describe(&op), describe(&other.op)));
            let what = format!("node{node}'s kubelet asks two things at once about {volume}: {words:?}");
            breaches.push(Breach::new(growth::ONE_CALL, what));
        }
        if matches!(op, Op::PullImage { .. }) {
            let pulls = |p: &&Pending| p.life == life && matches!(p.op, Op::PullImage { .. });
            let under_way = self.pending.values().filter(pulls).count();
            pulling::begins(self.number, under_way, self.parallel_pulls, breaches);
        }
        if let Op::Allocate { resource, epoch, ids } = &op {
            self.plugins.asked(resource, *epoch, ids, breaches);
            self.disk.check_noted(life, resource, ids, breaches);
        }
        let aside = is_aside(&op);
        self.asked += u64::from(!aside);
        let rng = if aside { &mut self.side } else { &mut self.rng };
        let mut delay = self.faults.operation.draw(rng);
        if let Op::StopContainer { id, timeout_s } = &op {
            delay += self.runtime.time_to_stop(now, id, *timeout_s, &mut self.rng);
        }
        if matches!(op, Op::ExpandVolume(_)) && self.rng.one_in(self.faults.grows_slowly_one_in) {
            delay += crate::chance::between(&mut self.rng, growth::GROWS.0, growth::GROWS.1);
        }
        let mut fate = fate(if aside { &mut self.side } else { &mut self.rng }, &self.faults);
        if images::is_pull(&op) {
            let (one_in, most) = images::SLOW;
            if self.rng.one_in(one_in) {
                delay += crate::chance::below(&mut self.rng, most);
            }
            // Of the others some fail when the image is there.
            if self.faults.fail_one_in > 0 && self.rng.one_in(images::FAILS_ONE_IN) {
                fate = Fate::FailsBefore;
            }
        }
        if env_files::is_read(&op) && self.faults.fail_one_in > 0 && self.rng.one_in(env_files::FAILS_ONE_IN) {
            fate = Fate::FailsBefore;
        }
        if self.low.as_mut().is_some_and(|low| low.fails(id, &op)) {
            fate = Fate::FailsBefore;
        }
        delay += self.plugins.dawdles(&op, self.faults.plugin_whims_one_in);
        self.next += 1;
        self.silence.asks(id, &op);
        self.heard.stops(id, &op);
        self.heard.asks(self.number, &op, &self.runtime, breaches);
        let errand = Errand::new(now, &op, &self.runtime);
        self.pending.insert(self.next, Pending { life, id, op, fate, errand });
        vec![Follow::Later(delay, NodeEvent::Effect(self.next))]
    }

    /// The virt-handler of a life asks for an operation.
    pub(crate) fn ask_handler(&mut self, life: u32, out: carrack_virt::handler::Out, skew_ns: i64) -> Vec<Follow> {
        use carrack_virt::handler::Op;
        if !self.up {
            return Vec::new();
        }
        // As the shell does, the handler's time becomes the machine's.
        let op = match out.op {
            Op::Promise(places, until) => Op::Promise(places, Time(until.0.saturating_sub(skew_ns))),
            Op::Watchdog(call) => Op::Watchdog(of_machine(call, skew_ns)),
            op => op,
        };
        let delay = self.faults.operation.draw(&mut self.rng);
        let delay = if matches!(op, Op::Watchdog(_)) { delay.min(watchdog::SLOWEST) } else { delay };
        self.guests.ask(life, out.id, op, delay)
    }

    /// The provisioner of a life asks the driver.
    pub(crate) fn ask_storage(&mut self, life: u32, out: carrack_storage::provision::Out) -> Vec<Follow> {
        if !self.up {
            return Vec::new();
        }
        let (delay, fate) = (self.faults.operation.draw(&mut self.rng), self.fate());
        vec![Follow::Later(delay, NodeEvent::StorageEffect(self.storage.ask(life, out, fate)))]
    }

    /// The kubelet has died. What it had sent may still be carried out, or not.
    pub(crate) fn kubelet_died(&mut self) -> Vec<Follow> {
        let (rng, side) = (&mut self.rng, &mut self.side);
        self.pending.retain(|_, p| {
            let is_lost = if is_aside(&p.op) { side.one_in(3) } else { rng.one_in(3) };
            !is_lost
        });
        // It writes files itself, and what it had begun ends with it: a record is there by now, or will never be.
        for (_, ended) in self.pending.extract_if(.., |_, p| ends_with_kubelet(&p.op)) {
            match ended.op {
                Op::SaveRecord { name, body } if !self.disk.is_full() => self.disk.write(name, body),
                Op::DropRecord(name) => _ = self.disk.drop_record(&name),
                _ => {}
            }
        }
        let mut follow = self.plugins.kubelet_died();
        follow.extend(self.unheld());
        follow
    }

    /// A new kubelet of a life has started: the plugins will find it, and it the driver.
    pub(crate) fn kubelet_started(&mut self, life: u32) -> Vec<Follow> {
        (self.silence, self.heard) = (Silence::default(), Heard::default());
        if let Some(low) = &mut self.low {
            low.begins(life);
        }
        let mut follow = self.plugins.kubelet_started(self.faults.plugin_late_one_in, &mut self.rng);
        follow.extend(self.register(life));
        follow
    }

    /// The virt-handler has died, and the plugins that it served.
    pub(crate) fn handler_died(&mut self) -> Vec<Follow> {
        self.guests.handler_died(&mut self.rng);
        self.guests.watchdog.agent_died();
        self.plugins.handler_died()
    }

    /// The virt-handler is there and does something. It knows of a renewal of the node's Lease that was sent then, and may be
    /// about to end.
    pub(crate) fn handler_is_there(&mut self, now: Time, renewed: Option<Time>, ending: bool) {
        let idle = !ending && self.guests.alive().next().is_none();
        self.guests.watchdog.agent_is_there(now, renewed.filter(|_| !ending), idle);
    }

    /// A new virt-handler has started.
    pub(crate) fn handler_started(&mut self, life: u32) -> Vec<Follow> {
        self.plugins.handler_started(life, self.faults.plugin_late_one_in, &mut self.rng)
    }

    /// The containers of machines' disks whose launchers wait for their machines.
    pub(crate) fn disks_in_wait(&self) -> Vec<String> {
        let waits = |pod: &PodRef| {
            let mut launchers =
                self.runtime.running().filter(|c| c.record.pod == *pod && self.runtime.is_launcher(&c.record.id));
            launchers.any(|launcher| !self.guests.has_begun_in(&launcher.record.id))
        };
        let of_disks = self.runtime.running().filter(|c| c.is_disk() && waits(&c.record.pod));
        of_disks.map(|container| container.record.id.clone()).collect()
    }

    /// How an operation ends.
    fn fate(&mut self) -> Fate {
        fate(&mut self.rng, &self.faults)
    }

    /// An event of this node.
    pub(crate) fn happen(
        &mut self,
        now: Time,
        kubelet_life: u32,
        event: NodeEvent,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Vec<Follow> {
        let mut follow = self.react(now, kubelet_life, event, observer, breaches);
        self.guests.reap(&self.runtime, &mut follow);
        self.reap_copies(now, &mut follow);
        self.guests_open(breaches);
        follow
    }

    fn react(
        &mut self,
        now: Time,
        kubelet_life: u32,
        event: NodeEvent,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Vec<Follow> {
        match event {
            NodeEvent::StorageEffect(number) => {
                let mut follow = Vec::new();
                self.write(now);
                let mood = self.mood(now);
                if let Some((life, answer)) =
                    self.storage.carry_out(number, self.number, mood, observer, breaches, &mut follow)
                {
                    let back = self.faults.operation.draw(&mut self.rng) / 4;
                    follow.push(Follow::Storage(life, back, Box::new(answer)));
                }
                follow
            }
            NodeEvent::HandlerEffect(number) => {
                let fails = match self.fate() {
                    _ if self.disk.is_full() && self.guests.keeps(number) => Some(true),
                    Fate::Works => None,
                    Fate::FailsBefore => Some(true),
                    Fate::FailsAfter => Some(false),
                };
                self.guests.carry_out(number, fails, now, &self.runtime, &mut self.rng, self.blind)
            }
            NodeEvent::Guest(compute, doing) => {
                let mut follow = Vec::new();
                if let Some(ends) = self.guests.does(&compute, doing, now, &mut self.rng, &mut follow)
                    && self.exits(now, &ends, 0).is_some()
                {
                    follow.push(Follow::Say(format!("node{} {ends} ends with its guest", self.number)));
                }
                follow
            }
            NodeEvent::Effect(number) => {
                let refused = match self.meets(now, number) {
                    Met::Waits(wait) => return vec![Follow::Later(wait, NodeEvent::Effect(number))],
                    Met::Refused(error) => Some(error),
                    Met::Somebody => None,
                };
                if let Some(wait) = self.tears(now, number).filter(|_| refused.is_none()) {
                    return vec![Follow::Later(wait, NodeEvent::Effect(number))];
                }
                let Some(Pending { life, id, op, fate, errand }) = self.pending.remove(&number) else {
                    return Vec::new();
                };
                let (word, aside, look) = (describe(&op), is_aside(&op), crate::pressure::look(&op));
                let stops = if let Op::StopSandbox(id) = &op { Some(id.clone()) } else { None };
                let begins = if let Op::StartContainer(id) = &op { Some(id.clone()) } else { None };
                let looked_up = ordered::looked_up(&op).map(str::to_owned);
                if let Op::CreateContainer(_, spec) = &op {
                    self.links.made(life, spec, observer, breaches);
                }
                let noted = match &op {
                    Op::SaveCheckpoint(body) if life == kubelet_life => Some((life, body.clone())),
                    _ => None,
                };
                let lets_go = matches!(op, Op::LetGoDown) && life == kubelet_life && fate != Fate::FailsBefore;
                let outcome = match (refused, fate) {
                    (Some(error), _) => Err(error),
                    _ if self.is_busy(number, &op) => {
                        Err(OpError::Failed("the driver is busy with this volume".into()))
                    }
                    _ if self.runtime.is_overtaken(number, &op) => {
                        Err(OpError::Failed("the container was given something else since".into()))
                    }
                    _ if self.disk.is_full() && disk::needs_room(&op) => Err(OpError::Failed(disk::NO_ROOM.to_owned())),
                    (None, Fate::FailsBefore) => match op {
                        Op::ReadEnvFiles(files) if self.unread_is_absent => {
                            Ok(Reply::EnvFiles(env_files::absent(files)))
                        }
                        Op::StartContainer(id) if self.faults.spoils_starts => Err(self.runtime.spoils_start(now, &id)),
                        _ => Err(OpError::Failed("the node's runtime hiccups".into())),
                    },
                    (None, _) => self.carry_out(now, kubelet_life, op, observer, breaches),
                };
                if let Some(noted) = noted.filter(|_| outcome.is_ok()) {
                    self.disk.noted = Some(noted);
                }
                let outcome =
                    if fate == Fate::FailsAfter && outcome.is_ok() { Err(OpError::TimedOut(120)) } else { outcome };
                self.hindrances.ended(now, errand, outcome.is_err());
                if let Some(id) = stops.filter(|_| outcome.is_ok() && life == kubelet_life) {
                    self.runtime.acknowledge(&id);
                }
                if let Some(image) = looked_up.filter(|_| outcome.is_err()) {
                    self.ordered.unseen(image);
                }
                if let Some(id) = &begins {
                    let told = (id.as_str(), outcome.is_ok());
                    self.ordered.started(now, life, told, &self.runtime, observer, breaches);
                    crate::rounds::started(id, &self.runtime, observer, breaches);
                    crate::debuggers::started(id, &self.runtime, breaches);
                }
                let mut follow = self.plugins.take_due();
                if let Some(id) = &begins {
                    follow.extend(self.begins_copy(id, breaches));
                }
                if let Some(id) = begins.filter(|id| self.runtime.is_running(id) && self.runtime.writes(id).is_some()) {
                    let delay = crate::chance::between(&mut self.rng, env_files::TAKES.0, env_files::TAKES.1);
                    follow.push(Follow::Later(delay, NodeEvent::Exit { container: id, code: 0 }));
                }
                if lets_go {
                    follow.extend(self.let_go(now, breaches));
                }
                if let Some(word) = word {
                    let end = match &outcome {
                        Ok(Reply::Made(id)) => format!("made {id}"),
                        Ok(Reply::Sandbox(sandbox)) => format!("made {}", sandbox.id),
                        Ok(_) => "done".to_owned(),
                        Err(e) => format!("{e}{}", if fate == Fate::FailsAfter { " (but it was done)" } else { "" }),
                    };
                    follow.push(Follow::Say(format!("node{} {word}: {end}", self.number)));
                }
                let rng = if aside { &mut self.side } else { &mut self.rng };
                let mut back = self.faults.operation.draw(rng) / 4;
                if let Some((low, look)) = self.low.as_mut().zip(look) {
                    back += low.answers(now, (life, id), look);
                }
                follow.push(Follow::Kubelet(life, back, Box::new(In::Done(id, outcome))));
                follow
            }
            NodeEvent::SandboxEnds { sandbox, whole } => self.sandbox_ends(&sandbox, whole),
            NodeEvent::Copied { container, whole } => self.copied(now, &container, whole),
            NodeEvent::Exit { container, code } => {
                let code = self.exits(now, &container, code);
                let said = code.map(|code| format!("node{} {container} exits with {code}", self.number));
                let mut follow: Vec<Follow> = said.map(Follow::Say).into_iter().collect();
                // Who stops it waits for nothing more.
                if self.runtime.deaf_disks && code.is_some() {
                    let stops = |op: &Op| matches!(op, Op::StopContainer { id, .. } if *id == container);
                    let stopping = self.pending.iter().filter(|(_, p)| stops(&p.op)).map(|(number, _)| *number);
                    follow.extend(stopping.map(|number| Follow::Later(Duration::ZERO, NodeEvent::Effect(number))));
                }
                follow
            }
            NodeEvent::PluginStart { resource, generation } => {
                let prefers = self.faults.plugin_whims_one_in > 0;
                self.plugins.connect(now, kubelet_life, resource, generation, prefers, &mut self.rng)
            }
            NodeEvent::PluginMends { resource, mood } => self.plugins.mends(now, resource, mood),
            NodeEvent::Room => self.disk.may_have_room(now),
            NodeEvent::Returns => self.may_return(now, kubelet_life),
            NodeEvent::Watchdog => {
                if self.guests.watchdog.bites(now) {
                    vec![Follow::Reset]
                } else {
                    Vec::new()
                }
            }
            NodeEvent::GoesDown(boot) => self.goes_down(boot),
            NodeEvent::Booted => {
                self.up = !self.gone;
                Vec::new()
            }
        }
    }

    /// A container ends by itself: a launcher whose machine has not begun fails, and so does one that copies. Returns its code; none
    /// when it did not run.
    fn exits(&mut self, now: Time, container: &str, code: i32) -> Option<i32> {
        let is_empty = self.runtime.is_launcher(container) && !self.guests.has_begun_in(container);
        let fails = is_empty || self.runtime.copies(container).is_some();
        let code = if fails { 1 } else { code };
        let ran = self.runtime.exit(now, container, code);
        if let Some(file) = self.runtime.writes(container).filter(|_| ran && code == 0) {
            self.written.write(file.clone());
        }
        ran.then_some(code)
    }

    /// Whether the node's own driver is busy with the volume of a call: with one that began earlier, and whose caller may be
    /// dead.
    fn is_busy(&self, number: u64, op: &Op) -> bool {
        let Some(volume) = growth::asked_about(op).filter(|id| id.contains(carrack_storage::DRIVER)) else {
            return false;
        };
        self.pending.range(..number).any(|(_, p)| growth::asked_about(&p.op) == Some(volume))
    }

    fn carry_out(
        &mut self,
        now: Time,
        kubelet_life: u32,
        op: Op,
        observer: &Observer,
        breaches: &mut Vec<Breach>,
    ) -> Outcome {
        match op {
            Op::Load => Ok(Reply::Loaded(Box::new(Loaded {
                records: self.disk.records.clone(),
                checkpoint: self.disk.checkpoint.clone(),
                cpus: self.disk.cpus.clone(),
                memory: self.disk.memory.clone(),
                allocated: self.disk.allocated.clone(),
                actuated: self.disk.actuated.clone(),
                host: self.facts(now),
                // Now and then the disk cannot be looked at.
                found: (!self.asked.is_multiple_of(4)).then(|| self.disk.found()),
            }))),
            Op::Host => Ok(Reply::Host(Box::new(self.facts(now)))),
            Op::RuntimeInfo => Ok(Reply::RuntimeInfo(RuntimeInfo {
                name: "containerd".into(),
                version: "sim".into(),
                ..RuntimeInfo::default()
            })),
            Op::Relist => Ok(Reply::Snapshot(self.list(now))),
            Op::ListImages => Ok(Reply::Images(self.images.list())),
            Op::FindImage(image) => Ok(Reply::Image(self.images.find(&image))),
            Op::PullImage { image, auths } => {
                let shows = self.faults.fail_one_in == 0 || !self.showing.one_in(images::UNSEEN_ONE_IN);
                self.images.pull(&image, &auths, shows)
            }
            Op::ReadEnvFiles(files) => Ok(Reply::EnvFiles(self.written.read(files))),
            Op::RunSandbox(spec) => self.runtime.run_sandbox(now, &spec, observer, breaches),
            Op::StopSandbox(id) => self.runtime.stop_sandbox(now, &id, observer, breaches),
            Op::RemoveSandbox(id) => self.runtime.remove_sandbox(&id, breaches),
            Op::CreateContainer(_, spec) => {
                let made = self.runtime.create(now, &spec)?;
                self.images.used(now, &spec.image, &spec.pod, observer, breaches);
                images::noted(&spec.image, &spec.pod, &self.disk.records, breaches);
                env_files::used(&spec, observer, breaches);
                Ok(made)
            }
            Op::StartContainer(id) => {
                if let Some((pod, name, devices)) = self.runtime.devices_of(&id) {
                    self.plugins.check(self.boot, pod, name, devices, observer, breaches);
                    self.plugins.starts(pod, name, devices, breaches);
                }
                if let Some(on) = self.runtime.cpus_of(&id) {
                    crate::cpus::starts(on, self.disk.cpus.as_deref(), observer, breaches);
                }
                if let Some(on) = self.runtime.memory_of(&id).filter(|_| self.keeps_memory) {
                    crate::memory::starts(on, self.disk.memory.as_deref(), observer, breaches);
                }
                let started = self.runtime.start(now, &id, breaches);
                if let Some(pod) = self.runtime.pod_of(&id).filter(|_| started.is_ok()) {
                    self.kept.starts(&id, pod, &self.disk);
                }
                started
            }
            Op::StopContainer { id, .. } => {
                let pod = self.runtime.running().find(|c| c.record.id == id).map(|c| c.record.pod.uid.to_string());
                if let Some(uid) = pod.filter(|_| self.unmounts_first) {
                    for path in self.disk.paths_of(&uid) {
                        self.tear_down(&uid, &path, observer, breaches)?;
                    }
                }
                self.runtime.stop(now, &id, observer, breaches)
            }
            Op::RemoveContainer(id) => self.runtime.remove(&id, observer, breaches),
            Op::ReadManifests(_) => Ok(Reply::Manifests(self.read_manifests())),
            Op::RemoveImage(id) => {
                self.images.remove(&id);
                Ok(Reply::Done)
            }
            Op::Usage(pods) => Ok(Reply::Usage(self.usage(now, pods))),
            Op::Exec { id, command, .. } => {
                let Some(container) = self.runtime.running().find(|c| c.record.id == id) else {
                    return Err(OpError::Failed(format!("{id} does not run")));
                };
                let asked = crate::asked::answer(now, &container.record, &command);
                let code = asked.unwrap_or_else(|| crate::probed::answer(now, &container.record, &command));
                if asked == Some(0) {
                    self.runtime.passes(&id);
                }
                Ok(Reply::Exited { code, output: String::new() })
            }
            Op::Net { .. } => Ok(Reply::Done),
            Op::SetUpVolume(setup) => {
                self.tokens.publish(&setup, now, self.faults.fail_one_in > 0, breaches)?;
                if let Some(told) = self.lies_of_part(&setup) {
                    return told;
                }
                let outcome = self.disk.mount(&setup, kubelet_life, breaches);
                self.kept.look(self.number, |id| self.runtime.is_running(id), &self.disk, breaches);
                outcome
            }
            Op::TearDownVolume { uid, path, .. } => self.tear_down(&uid, &path, observer, breaches),
            Op::StageVolume(staging, inputs) => {
                self.disk.confirm(&staging, &inputs)?;
                if let Some(told) = self.lies_of_volume(&staging) {
                    return Ok(told);
                }
                self.storage.stage(&staging)?;
                self.disk.stage(&staging, &inputs, &self.boot_id())
            }
            Op::UnstageVolume(staging) => {
                self.storage.unstage(&staging);
                self.disk.unstage(&staging, breaches)
            }
            Op::AskCsiNode(driver) => Err(OpError::Failed(format!("{driver} was asked how many volumes it takes"))),
            Op::AskDriver(driver) => Ok(Reply::Attaches(driver == crate::flex::DRIVER)),
            Op::ExpandVolume(expanding) => {
                self.storage.expand(&expanding.published.origin)?;
                Ok(Reply::Done)
            }
            Op::RemovePod { uid, .. } => self.disk.remove_pod(&uid),
            Op::SaveRecord { name, body } => self.disk.save(name, body),
            Op::DropRecord(name) => self.disk.drop_record(&name),
            Op::SaveCheckpoint(body) => {
                self.disk.checkpoint = Some(body);
                Ok(Reply::Done)
            }
            Op::SaveCpus(body) => {
                self.disk.cpus = Some(body);
                Ok(Reply::Done)
            }
            Op::SaveMemory(body) => {
                self.disk.memory = Some(body);
                Ok(Reply::Done)
            }
            Op::SaveAllocated(body) => {
                self.disk.allocated = Some(body);
                Ok(Reply::Done)
            }
            Op::SaveActuated(body) => {
                self.disk.actuated = Some(body);
                Ok(Reply::Done)
            }
            Op::ReadGroup { path, .. } => Ok(Reply::Group(Box::new(self.runtime.group(&path)))),
            Op::SweepGroups { keep, .. } => {
                self.runtime.sweep_groups(&keep);
                Ok(Reply::Done)
            }
            Op::WriteGroups(groups) => {
                self.runtime.limit_groups(&groups);
                Ok(Reply::Done)
            }
            Op::UpdateContainer { id, limits } => self.runtime.resize(&id, &limits),
            Op::GiveCpus { id, cpus } => self.runtime.give_cpus(&id, &cpus, observer, breaches),
            Op::Allocate { resource, epoch, ids } => {
                let whims_one_in = self.faults.plugin_whims_one_in;
                self.plugins.allocate(kubelet_life, self.boot, &resource, epoch, &ids, whims_one_in)
            }
            Op::Prefer { resource, available, count, .. } => {
                self.plugins.prefers(&resource, available, count, self.faults.plugin_whims_one_in)
            }
            Op::PreStart { resource, epoch, ids } => {
                self.plugins.pre_start(kubelet_life, &resource, epoch, &ids, self.faults.fail_one_in > 0)
            }
            Op::LetGoDown
            | Op::RotateLogs { .. }
            | Op::Count(_)
            | Op::PublishDevices(_)
            | Op::PublishVolumes(_)
            | Op::PublishResizes(_)
            | Op::Publish(_) => Ok(Reply::Done),
        }
    }

    fn tear_down(&mut self, uid: &str, path: &str, observer: &Observer, breaches: &mut Vec<Breach>) -> Outcome {
        // Where the machine goes down all pods end, and one that is evicted does; the API may be away and hear of it later.
        if !self.runtime.pods_end && !self.runtime.evicted.contains(uid) {
            crate::invariants::unmounted(uid, path, observer, breaches);
        }
        if let Some(container) = self.runtime.alive_of(uid) {
            let what = format!("{path} of pod {uid} is unmounted while its container {container} runs");
            breaches.push(Breach::new("volume-in-use-stays", what));
        }
        self.tokens.unpublish(uid, path);
        self.written.forget(path);
        let outcome = self.disk.unmount(uid, path);
        self.kept.look(self.number, |id| self.runtime.is_running(id), &self.disk, breaches);
        outcome
    }

    /// Power is lost: everything that runs ends, operations under way are forgotten.
    pub(crate) fn power_off(&mut self, now: Time) {
        // Who goes down as it was told to has written everything.
        let is_sudden = !self.runtime.pods_end;
        if is_sudden && self.tearing.one_in(self.faults.tears_one_in) {
            self.disk.tear(&mut self.tearing);
        }
        if is_sudden && self.losing.one_in(self.faults.loses_one_in) {
            self.disk.lose(&mut self.losing);
        }
        if is_sudden && self.spoiling.one_in(self.faults.loses_one_in) {
            self.guests.spoil_record(&mut self.spoiling);
        }
        self.up = false;
        self.boot += 1;
        self.held_since = None;
        self.pending.clear();
        self.absences = Absences::default();
        self.guests.power_off();
        self.runtime.power_off(now);
        self.reap_copies(now, &mut Vec::new());
        self.storage.power_off();
        self.tokens.power_off();
        self.disk.power_off();
    }

    /// The machine comes up; returns when.
    pub(crate) fn power_on(&mut self, now: Time) -> Duration {
        let delay = crate::chance::between(&mut self.rng, Duration::from_secs(3), Duration::from_secs(30));
        self.power_on_after(now, delay);
        delay
    }

    /// The machine comes up after that time.
    pub(crate) fn power_on_after(&mut self, now: Time, delay: Duration) {
        self.booted_at = now + delay;
    }
}

/// The node of a name.
pub(crate) fn named<'a>(nodes: &'a BTreeMap<u8, Node>, name: &str) -> Option<&'a Node> {
    nodes.values().find(|node| node_name(node.number) == name)
}

/// How an operation ends: well, or failing before or after its effect.
fn fate(rng: &mut Rng, faults: &NodeFaults) -> Fate {
    if !rng.one_in(faults.fail_one_in) {
        Fate::Works
    } else if rng.one_in(2) {
        Fate::FailsBefore
    } else {
        Fate::FailsAfter
    }
}

/// A call with the machine's time instead of the handler's.
fn of_machine(call: WatchdogCall, skew_ns: i64) -> WatchdogCall {
    let turned = |limit: Option<Time>| limit.map(|at| Time(at.0.saturating_sub(skew_ns)));
    match call {
        WatchdogCall::Open { timeout_s, not_after } => WatchdogCall::Open { timeout_s, not_after: turned(not_after) },
        WatchdogCall::Pet { not_after } => WatchdogCall::Pet { not_after: turned(not_after) },
        WatchdogCall::Close => WatchdogCall::Close,
    }
}

#[cfg(test)]
mod tests;
