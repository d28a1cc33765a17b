//! What is really there on the node where machines run: processes of pods, guests, and the copies that guests make of their own
//! disks. Agents that die leave all of it as it is.
//!
//! ```text
//!   launcher ─▶ guest: writes its disks ─ copyvolumes ─▶ copy: reads them, writes the claims of a pod that waits
//!   pod that copies: reads sources, writes targets        │ that pod, or the guest, ends ─▶ so does the copy
//! ```
//!
//! There are none of QEMU's locks here, nor of the launcher's: what is opened while somebody else writes it is a breach of the
//! control plane's own promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use serde_json::Value;

use crate::chance::between;
use crate::invariants::Breach;
use crate::observer::text;
use crate::plants::Bug;

/// The invariant that is checked here.
pub(crate) const NAME: &str = "copied-disks-rest";
/// Annotation of volumes, and of contents of snapshots: the instant at which a guest that ran had last written what is kept.
pub(crate) const INSTANT: &str = "sim.carrack.io/instant";
/// For how long a guest runs that shuts down by itself, at the least and at the most.
const LIVES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));
/// A node thaws a guest by itself after this at the most.
const THAWS: Duration = Duration::from_secs(300);

/// A volume that somebody has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Name of the PersistentVolume.
    pub volume: String,
    /// What was on it when it was opened.
    pub data: String,
    /// When the guest had last written to it whose disk it is, or of whose disk this is a copy.
    pub written: Option<Time>,
}

/// From which disk to which one.
pub(crate) type Pair = (Disk, Disk);

/// What the process of a pod does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// It waits for its machine, which is its guest then.
    Launch,
    /// It copies.
    Copy(Vec<Pair>),
    /// It waits until the machine with this UID has copied its disks to these.
    Receive(String, Vec<Disk>),
}

/// How a process, or a guest, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Well,
    Badly(&'static str),
}

/// The process of a pod.
#[derive(Debug)]
struct Process {
    /// Namespace and name of the pod.
    pod: String,
    work: Work,
    /// When it will have ended by itself, and how.
    due: Option<(Time, End)>,
    end: Option<End>,
    /// A guest copies to it, or has.
    served: bool,
}

/// The guest of an instance.
#[derive(Debug)]
struct Guest {
    /// Namespace and name of its machine.
    name: String,
    /// UID of the launcher's pod.
    pod: String,
    /// By the names of its volumes.
    disks: BTreeMap<String, Disk>,
    frozen: Option<Frozen>,
    end: Option<End>,
}

/// A guest is frozen: since then it writes nothing.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    since: Time,
    until: Time,
}

impl Guest {
    /// When it had last written to its disks: each writes all the time, unless it is frozen.
    fn wrote(&self, now: Time) -> Time {
        self.frozen.map_or(now, |frozen| frozen.since)
    }
}

/// A copy that a guest makes.
#[derive(Debug)]
struct Job {
    instance: String,
    /// UID of the pod that waits for it.
    pod: String,
    pairs: Vec<Pair>,
    /// When it is done, and how; never, if it hangs.
    due: Option<(Time, End)>,
}

#[derive(Debug)]
struct State {
    now: Time,
    rng: Rng,
    faults: bool,
    /// A planted bug: a copy goes on when nobody waits for it any more.
    unwanted_goes_on: bool,
    /// A planted bug: a guest begins to copy a disk when it has copied the one before.
    one_by_one: bool,
    processes: BTreeMap<String, Process>,
    guests: BTreeMap<String, Guest>,
    jobs: Vec<Job>,
    said: Vec<String>,
    breaches: Vec<Breach>,
}

/// The node.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Mutex<State>>);

impl Room {
    pub(crate) fn new(now: Time, rng: Rng, faults: bool, bug: Option<Bug>) -> Self {
        Self(Arc::new(Mutex::new(State {
            now,
            rng,
            faults,
            unwanted_goes_on: bug == Some(Bug::UnwantedCopies),
            one_by_one: bug == Some(Bug::CopiesOneByOne),
            processes: BTreeMap::new(),
            guests: BTreeMap::new(),
            jobs: Vec::new(),
            said: Vec::new(),
            breaches: Vec::new(),
        })))
    }

    /// Draws other chances from here on, and may fail or not.
    pub(crate) fn reseed(&self, rng: Rng, faults: bool) {
        let mut state = self.lock();
        (state.rng, state.faults) = (rng, faults);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes.
    pub(crate) fn set_now(&self, now: Time) {
        let mut state = self.lock();
        state.now = now;
        state.pass();
    }

    /// Nothing fails any more; what hangs comes to its end.
    pub(crate) fn heal(&self) {
        let mut state = self.lock();
        state.faults = false;
        let now = state.now;
        let hung = Some((now, End::Badly("the storage hung")));
        state.jobs.iter_mut().filter(|job| job.due.is_none()).for_each(|job| job.due.clone_from(&hung));
    }

    /// What happened, for the trace.
    pub(crate) fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().said)
    }

    pub(crate) fn breaches(&self) -> Vec<Breach> {
        std::mem::take(&mut self.lock().breaches)
    }

    /// A pod's process starts, unless it has before.
    pub(crate) fn start(&self, uid: &str, pod: &str, work: Work) {
        let mut state = self.lock();
        if state.processes.contains_key(uid) {
            return;
        }
        let due = match &work {
            Work::Copy(_) => Some(state.copying()),
            Work::Launch | Work::Receive(..) => None,
        };
        if let Work::Copy(pairs) = &work {
            let pairs = pairs.clone();
            state.opens(&format!("pod {pod} ({uid})"), pairs.iter());
        }
        state.said.push(format!("the process of pod {pod} ({uid}) starts: {work:?}"));
        state.processes.insert(uid.to_owned(), Process { pod: pod.to_owned(), work, due, end: None, served: false });
    }

    /// How a pod's process has ended; none while it runs, or was never started.
    pub(crate) fn end_of(&self, uid: &str) -> Option<End> {
        self.lock().processes.get(uid)?.end.clone()
    }

    /// Whether a pod's process runs.
    pub(crate) fn runs(&self, uid: &str) -> bool {
        self.lock().processes.get(uid).is_some_and(|process| process.end.is_none())
    }

    /// What a pod's process has written, once it has ended well: the volumes, and what is on them.
    pub(crate) fn written(&self, uid: &str) -> Vec<Disk> {
        let state = self.lock();
        match state.processes.get(uid).filter(|process| process.end == Some(End::Well)).map(|process| &process.work) {
            Some(Work::Copy(pairs)) => pairs.iter().map(written).collect(),
            Some(Work::Receive(_, targets)) => targets.clone(),
            Some(Work::Launch) | None => Vec::new(),
        }
    }

    /// A pod's process is ended from outside, and what is in it with it.
    pub(crate) fn kill(&self, uid: &str) {
        self.lock().over(uid, End::Badly("killed"));
    }

    /// Whatever runs in pods of this name is ended, but for this one.
    pub(crate) fn kill_others(&self, pod: &str, but: &str) {
        let mut state = self.lock();
        let others = state.processes.iter().filter(|(uid, of)| of.pod == pod && of.end.is_none() && *uid != but);
        let others: Vec<String> = others.map(|(uid, _)| uid.clone()).collect();
        others.iter().for_each(|uid| state.over(uid, End::Badly("its pod is gone")));
    }

    /// UIDs of the pods whose processes run.
    pub(crate) fn running(&self) -> Vec<String> {
        let state = self.lock();
        state.processes.iter().filter(|(_, process)| process.end.is_none()).map(|(uid, _)| uid.clone()).collect()
    }

    /// UIDs of the pods that wait for a guest which copies its disks.
    pub(crate) fn waiting(&self) -> Vec<String> {
        self.lock().jobs.iter().map(|job| job.pod.clone()).collect()
    }

    /// An instance's guest starts in its launcher, unless it has before. Whether it runs.
    pub(crate) fn boot(&self, instance: &str, name: &str, pod: &str, disks: BTreeMap<String, Disk>) -> bool {
        let mut state = self.lock();
        if let Some(guest) = state.guests.get(instance) {
            return guest.end.is_none();
        }
        if state.processes.get(pod).is_none_or(|process| process.end.is_some()) {
            return false;
        }
        let who = guest_of(name, instance);
        for disk in disks.values() {
            state.open(&who, disk, true);
        }
        state.said.push(format!("{who} starts"));
        let guest = Guest { name: name.to_owned(), pod: pod.to_owned(), disks, frozen: None, end: None };
        state.guests.insert(instance.to_owned(), guest);
        true
    }

    /// The guest in a pod's process shuts down before long, unless it does already.
    pub(crate) fn ends_by_itself(&self, pod: &str) {
        let mut state = self.lock();
        let due = state.now + between(&mut state.rng, LIVES.0, LIVES.1);
        if let Some(process) = state.processes.get_mut(pod).filter(|process| process.due.is_none()) {
            process.due = Some((due, End::Well));
        }
    }

    /// Whether an instance's guest runs; none when it has never started.
    pub(crate) fn is_up(&self, instance: &str) -> Option<bool> {
        self.lock().guests.get(instance).map(|guest| guest.end.is_none())
    }

    /// Whether an instance's guest is frozen.
    pub(crate) fn is_frozen(&self, instance: &str) -> bool {
        self.lock().guests.get(instance).is_some_and(|guest| guest.frozen.is_some())
    }

    /// When the guest had last written that has a volume open; none when nobody has.
    pub(crate) fn wrote(&self, volume: &str) -> Option<Time> {
        let state = self.lock();
        let has = |guest: &&Guest| guest.end.is_none() && guest.disks.values().any(|disk| disk.volume == volume);
        state.guests.values().find(has).map(|guest| guest.wrote(state.now))
    }

    /// Instances whose guests run.
    pub(crate) fn guests(&self) -> Vec<String> {
        let state = self.lock();
        state.guests.iter().filter(|(_, guest)| guest.end.is_none()).map(|(uid, _)| uid.clone()).collect()
    }

    /// A guest ends, and its launcher with it.
    pub(crate) fn shut(&self, instance: &str) {
        let mut state = self.lock();
        if let Some(pod) = state.guests.get(instance).map(|guest| guest.pod.clone()) {
            state.over(&pod, End::Well);
        }
    }

    /// Whether there is something that should not be there when all is over: a guest that is still frozen, or a copy that
    /// nobody waits for.
    pub(crate) fn lack(&self) -> Option<String> {
        let state = self.lock();
        let frozen = state.guests.values().find(|guest| guest.end.is_none() && guest.frozen.is_some());
        let job = state.jobs.first();
        frozen
            .map(|guest| format!("the guest of {} is still frozen", guest.name))
            .or_else(|| job.map(|job| format!("a guest still copies its disks for pod {}", job.pod)))
    }

    /// A call to an instance's handler: to the guest of this machine that runs.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn call(&self, machine: &str, sub: &str, body: &Value) -> Result<(), String> {
        let mut state = self.lock();
        let found = state.guests.iter().find(|(_, guest)| guest.name == machine && guest.end.is_none());
        let Some(instance) = found.map(|(uid, _)| uid.clone()) else {
            return Err(format!("{machine} does not run"));
        };
        state.said.push(format!("{sub} of {}: {body}", guest_of(machine, &instance)));
        match sub {
            "freeze" => {
                let seconds = text(body, "/unfreezeTimeout").trim_end_matches('s').parse().unwrap_or(0);
                let wait = Duration::from_secs(seconds);
                let now = state.now;
                let until = now + if wait.is_zero() { THAWS } else { wait.min(THAWS) };
                state.guest(&instance, |guest| guest.frozen = Some(Frozen { since: guest.wrote(now), until }));
                Ok(())
            }
            "unfreeze" => {
                state.guest(&instance, |guest| guest.frozen = None);
                Ok(())
            }
            "copyvolumes" => state.copy(&instance, body),
            _ => Err(format!("nobody knows {sub}")),
        }
    }
}

/// How long a copy takes, and whether it fails.
pub(crate) fn takes(rng: &mut Rng, faults: bool) -> (Duration, bool) {
    let length = between(rng, Duration::from_millis(300), Duration::from_secs(8));
    (length, faults && rng.one_in(5))
}

/// What is wrong where somebody opens a volume that others have open, whether to write or not.
pub(crate) fn opens(who: &str, volume: &str, writes: bool, users: &BTreeSet<(String, bool)>) -> Option<Breach> {
    let (other, _) = users.iter().find(|(other, theirs)| other != who && (writes || *theirs))?;
    let to = if writes { "write" } else { "read" };
    Some(Breach::new(NAME, format!("{who} opens {volume} to {to} it, which {other} has open")))
}

fn guest_of(name: &str, instance: &str) -> String {
    format!("the guest of {name} ({instance})")
}

fn written((source, target): &Pair) -> Disk {
    Disk { volume: target.volume.clone(), data: source.data.clone(), written: source.written }
}

impl State {
    fn guest(&mut self, instance: &str, change: impl FnOnce(&mut Guest)) {
        if let Some(guest) = self.guests.get_mut(instance) {
            change(guest);
        }
    }

    /// How long a copy takes, and how it ends.
    fn copying(&mut self) -> (Time, End) {
        let (length, fails) = takes(&mut self.rng, self.faults);
        (self.now + length, if fails { End::Badly("no space left on device") } else { End::Well })
    }

    /// What is due happens.
    fn pass(&mut self) {
        let now = self.now;
        let ended: Vec<(String, End)> = self
            .processes
            .iter()
            .filter(|(_, process)| process.end.is_none())
            .filter_map(|(uid, process)| {
                let (at, end) = process.due.as_ref()?;
                (*at <= now).then(|| (uid.clone(), end.clone()))
            })
            .collect();
        for (uid, end) in ended {
            self.over(&uid, end);
        }
        let is_due = |job: &Job| job.due.as_ref().is_some_and(|(at, _)| *at <= now);
        let (done, jobs) = std::mem::take(&mut self.jobs).into_iter().partition(is_due);
        self.jobs = jobs;
        for job in done {
            self.copied(job);
        }
        for guest in self.guests.values_mut() {
            guest.frozen = guest.frozen.filter(|frozen| frozen.until > now);
        }
    }

    /// A guest has copied its disks, or could not.
    fn copied(&mut self, mut job: Job) {
        let Some((_, end)) = job.due else { return };
        if self.one_by_one
            && let Some(wrote) = self.guests.get(&job.instance).map(|guest| guest.wrote(self.now))
        {
            job.pairs.iter_mut().skip(1).for_each(|(source, _)| source.written = Some(wrote));
        }
        if end == End::Well
            && let Some(Process { work: Work::Receive(_, targets), .. }) = self.processes.get_mut(&job.pod)
        {
            *targets = job.pairs.iter().map(written).collect();
        }
        self.over(&job.pod, end);
    }

    /// A process has ended, and what depends on it with it.
    fn over(&mut self, uid: &str, end: End) {
        let Some(process) = self.processes.get_mut(uid).filter(|process| process.end.is_none()) else { return };
        self.said.push(format!("the process of pod {} ({uid}) ends: {end:?}", process.pod));
        process.end = Some(end.clone());
        if !self.unwanted_goes_on {
            self.jobs.retain(|job| job.pod != uid);
        }
        let inside = self.guests.iter_mut().find(|(_, guest)| guest.pod == uid && guest.end.is_none());
        let Some((instance, guest)) = inside else { return };
        guest.end = Some(end);
        guest.frozen = None;
        let instance = instance.clone();
        let (lost, jobs) = std::mem::take(&mut self.jobs).into_iter().partition(|job| job.instance == instance);
        self.jobs = jobs;
        let lost: Vec<Job> = lost;
        for job in lost {
            self.over(&job.pod, End::Badly("the copying was interrupted"));
        }
    }

    /// Who has a volume open, and whether to write.
    fn users(&self, volume: &str) -> BTreeSet<(String, bool)> {
        let mut users = BTreeSet::new();
        let mut add = |disk: &Disk, who: &str, writes: bool| {
            if disk.volume == volume {
                users.insert((who.to_owned(), writes));
            }
        };
        for (instance, guest) in self.guests.iter().filter(|(_, guest)| guest.end.is_none()) {
            let who = guest_of(&guest.name, instance);
            guest.disks.values().for_each(|disk| add(disk, &who, true));
        }
        for (uid, process) in self.processes.iter().filter(|(_, process)| process.end.is_none()) {
            let Work::Copy(pairs) = &process.work else { continue };
            let who = format!("pod {} ({uid})", process.pod);
            for (source, target) in pairs {
                add(source, &who, false);
                add(target, &who, true);
            }
        }
        for job in &self.jobs {
            let who = format!("the copy for pod {}", job.pod);
            job.pairs.iter().for_each(|(_, target)| add(target, &who, true));
        }
        users
    }

    /// Somebody opens a volume.
    fn open(&mut self, who: &str, disk: &Disk, writes: bool) {
        self.breaches.extend(opens(who, &disk.volume, writes, &self.users(&disk.volume)));
    }

    fn opens<'a>(&mut self, who: &str, pairs: impl Iterator<Item = &'a Pair>) {
        for (source, target) in pairs {
            self.open(who, source, false);
            self.open(who, target, true);
        }
    }

    /// A guest begins to copy its disks for a pod, as its handler and its monitor have it: once for each, and only while that
    /// waits for this very instance.
    fn copy(&mut self, instance: &str, body: &Value) -> Result<(), String> {
        let (pod, container) = (text(body, "/pod").to_owned(), text(body, "/container").to_owned());
        // The container is found by its id, and what it is of by what is in it.
        let found = self.processes.get(&container).filter(|process| process.end.is_none());
        let Some(Work::Receive(wanted, targets)) = found.map(|process| &process.work) else {
            return Err(format!("container {container} does not run, or waits for nothing"));
        };
        if wanted != instance {
            return Err(format!("pod {pod} does not wait for {instance}"));
        }
        if found.is_some_and(|process| process.served) {
            return Ok(());
        }
        let volumes = body["volumes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let guest = self.guests.get(instance);
        // All of them as they are now: one transaction.
        let wrote = guest.map(|guest| guest.wrote(self.now));
        let as_is = |volume| Some(Disk { written: wrote, ..guest?.disks.get(volume)?.clone() });
        let sources: Option<Vec<Disk>> = volumes.map(as_is).collect();
        let Some(sources) = sources else { return Err("the machine has no such disk".to_owned()) };
        let pairs: Vec<Pair> = sources.into_iter().zip(targets.iter().cloned()).collect();
        let who = format!("the copy for pod {pod}");
        for (_, target) in pairs.clone() {
            self.open(&who, &target, true);
        }
        // With the planted bug, each is still there when the next one begins: that comes after a pause.
        let hangs = self.faults && (self.rng.one_in(6) || self.unwanted_goes_on);
        let due = Some(self.copying()).filter(|_| !hangs);
        if let Some(process) = self.processes.get_mut(&container) {
            process.served = true;
        }
        self.jobs.push(Job { instance: instance.to_owned(), pod, pairs, due });
        Ok(())
    }
}
