//! Machines that are snapshotted while they run, cloned, and restored, on whole nodes: their disks are volumes of the nodes' own
//! driver, which takes the snapshots.
//!
//! ```text
//!   runs ─▶ snapshot: frozen ─▶ disk by disk is taken ─▶ thawed ─▶ runs on
//!              │  └─▶ deleted meanwhile: thawed, and nothing of it is left
//!              ├─▶ clone: another machine, with disks that are made from a snapshot
//!              └─▶ halted ─▶ restored ─▶ starts with such disks
//! ```
//!
//! In other runs storage takes no snapshots. There disks are copied: those of a machine that runs by its guest, for a pod that waits;
//! those of one that is off, and what was kept, by a pod ([`crate::node::Copies`]).
//!
//! ```text
//!   off ─▶ snapshot: a pod copies ─▶ starts, when that is over
//!   snapshot ─▶ clone, restore: a pod fills new disks ─▶ the machine has them
//! ```
//!
//! What is on disks and in snapshots is known on the nodes ([`crate::node`]), whatever the API says of it. That a guest was to be
//! frozen is certain where its agent had long been there when the snapshot took hold of its machine, and stayed.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_storage::DRIVER;
use carrack_storage::provision::Out;
use carrack_storage::provision::calls::Call;
use carrack_types::kubevirt::snapshot::target_readiness;
use carrack_types::kubevirt::{
    VirtualMachine, VirtualMachineClone, VirtualMachineInstance, VirtualMachineRestore, VirtualMachineSnapshot,
    run_strategy,
};
use carrack_types::resource::Kind as _;
use carrack_types::snapshots::VolumeSnapshotClass;
use carrack_types::well_known::storage::DEFAULT_SNAPSHOT_CLASS;
use carrack_virt::identity::STATE_CLAIM_PREFIX;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::chance::{below, between};
use crate::clones::{copies_lack, course_lacks, debris, is_copy, one_instant, restore_lacks, snapshot_lacks};
use crate::invariants::Breach;
use crate::node::{Node, Taken, content_of};
use crate::observer::{Change, Observer, beside, controller, deleting, is_true, key_of, ready_to_use, text, uid};
use crate::options::Options;
use crate::roaming::with_volume;
use crate::wants::{Want, guests_of, machine_lacks};
use crate::workload::{Act, SOON as AT_ONCE, What, claim_of, create, delete, is_brief, local_driver, machine, up_to};

/// The invariant of disks that are made from snapshots.
pub(crate) const AS_KEPT: &str = "restored-disks-are-as-kept";
/// The invariant of guests that are frozen.
pub(crate) const THAWED: &str = "guests-are-thawed";
/// The name of this part of the work.
pub(crate) const PART: &str = "backups";
/// The name of the part in which disks are copied.
pub(crate) const COPIED: &str = "copied-backups";

/// How such machines are called.
const OF: &str = "backed";
/// Their disks.
const DISKS: [&str; 2] = ["one", "two"];
/// A machine that is off at first, with one such disk.
const STILL: &str = "still";
/// How long everybody needs at the most to hear of everything again, once nothing fails any more; requests may be late until then.
const SETTLED: Duration = Duration::from_secs(100);
/// How soon after it is held no more a guest is thawed.
const SOON: Duration = Duration::from_secs(10);
/// How long an agent has been there of which everybody has heard.
const STEADY: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// Whether this is part of the work, given the chance of all of it. Planted bugs have it alone, or not at all; and small runs where
/// it is chosen with the rest of their work.
pub(crate) fn are_there(rng: &Rng, options: &Options) -> bool {
    let is_drawn = || options.faults && !options.small && rng.fork("whether machines are backed up").one_in(4);
    options.hint().is_none() && options.machines && (options.asks_for(PART) || is_drawn())
}

/// Whether the part in which disks are copied is done, given the chance of all of it: beside nobody who makes a class of snapshots.
pub(crate) fn are_copied(rng: &Rng, options: &Options) -> bool {
    let is_free = || !are_there(rng, options) && !crate::snapshots::are_there(rng, options, None);
    let is_drawn = || {
        let may_be = options.hint().is_none() && options.only.is_none() && options.faults && !options.small;
        may_be && rng.fork("whether disks of machines are copied").one_in(3) && is_free()
    };
    options.machines && if options.asks_for(COPIED) { !options.asks_for(PART) } else { is_drawn() }
}

/// Machines with two disks each of which storage takes no snapshots, what is done with them, and one that is off.
pub(crate) fn copied(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    local_driver(acts);
    machines(rng, safety, acts);
    still(&mut rng.fork(STILL), safety, acts);
}

/// Machines with two disks each, and what is done with them.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    local_driver(acts);
    let class = json!({"metadata": {"name": OF, "annotations": {DEFAULT_SNAPSHOT_CLASS: "true"}}, "driver": DRIVER,
        "deletionPolicy": "Delete"});
    acts.push(create(SECOND / 2, VolumeSnapshotClass::resource(), class, None));
    machines(rng, safety, acts);
}

fn machines(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(up_to(2, safety)) {
        let mut people = People { name: format!("{OF}{n}"), safety, acts: &mut *acts };
        let keeps_state = rng.fork(&format!("whether firmware keeps variables {n}")).one_in(2);
        people.run(between(rng, SECOND, safety / 6), keeps_state);
        people.snapshots(rng);
        // Of the first one everything is to be seen.
        people.clone(rng, n == 0);
        if n == 0 || rng.one_in(2) {
            people.restore(rng, n > 0);
        } else if rng.one_in(2) {
            let gone = between(rng, safety / 2, safety);
            people.acts.push(delete(gone, VirtualMachine::resource(), "default", &people.name, "vm"));
            continue;
        }
        // A small run is over by then.
        if !is_brief(safety) {
            people.late(rng);
        }
    }
}

/// A machine that is off, and started by hand while its disk is being copied, and that is off again.
fn still(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let claim = format!("{STILL}-disk");
    acts.push(create(SECOND / 2, PersistentVolumeClaim::resource(), claim_of(&claim, AT_ONCE), None));
    let object = machine(STILL, run_strategy::MANUAL, 5);
    let object = with_volume(object, "disk", "persistentVolumeClaim", json!({"claimName": claim}));
    acts.push(create(SECOND, VirtualMachine::resource(), object, None));
    let mut people = People { name: STILL.to_owned(), safety, acts };
    for n in 0..1 + rng.below(up_to(4, safety)) {
        let mut at = between(rng, safety / 6, safety * 2 / 3);
        people.snapshot(at, &format!("{STILL}-s{n}"));
        at += below(rng, people.at_most(SECOND * 6));
        people.starts(at);
        at += between(rng, SECOND, people.at_most(SECOND * 15));
        let resource = VirtualMachineInstance::resource();
        people.acts.push(delete(at, resource, "default", STILL, "instance"));
    }
}

/// What people do with one machine.
struct People<'a> {
    name: String,
    safety: Duration,
    acts: &'a mut Vec<Act>,
}

impl People<'_> {
    /// How long they wait at the most: in a small run no longer than anything fails.
    fn at_most(&self, wait: Duration) -> Duration {
        wait.min(self.safety)
    }

    /// `keeps_state`: its firmware keeps variables, on one claim more.
    fn run(&mut self, at: Duration, keeps_state: bool) {
        let mut object = machine(&self.name, run_strategy::ALWAYS, 5);
        if keeps_state {
            crate::keepers::class(self.acts);
            crate::keepers::keep(&mut object);
        }
        for disk in DISKS {
            let claim = format!("{}-{disk}", self.name);
            // Both come to be where the machine does.
            self.acts.push(create(at / 2, PersistentVolumeClaim::resource(), claim_of(&claim, "late"), None));
            object = with_volume(object, disk, "persistentVolumeClaim", json!({"claimName": claim}));
        }
        self.acts.push(create(at, VirtualMachine::resource(), object, None));
    }

    fn snapshot(&mut self, at: Duration, name: &str) {
        let source = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": self.name});
        let object = json!({"metadata": {"namespace": "default", "name": name}, "spec": {"source": source}});
        self.acts.push(create(at, VirtualMachineSnapshot::resource(), object, None));
    }

    /// The first one stays, to be restored from.
    fn snapshots(&mut self, rng: &mut Rng) {
        let (early, safety) = (self.safety / 6, self.safety);
        self.snapshot(between(rng, early, early * 2), &self.first());
        for n in 1..2 + rng.below(up_to(4, safety)) {
            let (at, name) = (between(rng, early, safety), format!("{}-s{n}", self.name));
            self.snapshot(at, &name);
            if rng.one_in(2) {
                let gone = at + below(rng, self.at_most(SECOND * 10));
                self.acts.push(delete(gone, VirtualMachineSnapshot::resource(), "default", &name, "vmsnapshot"));
            }
        }
    }

    fn first(&self) -> String {
        format!("{}-s0", self.name)
    }

    fn clone(&mut self, rng: &mut Rng, always: bool) {
        if !always && rng.one_in(2) {
            return;
        }
        let (name, target) = (format!("{}-clone", self.name), format!("{}-copy", self.name));
        let of = |name: &str| json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name});
        let object = json!({"metadata": {"namespace": "default", "name": name},
            "spec": {"source": of(&self.name), "target": of(&target)}});
        let at = between(rng, self.safety / 4, self.safety * 3 / 4);
        self.acts.push(create(at, VirtualMachineClone::resource(), object, None));
        let starts = at + between(rng, SECOND * 2, self.at_most(SECOND * 20));
        self.is_to(starts, &target, run_strategy::ALWAYS);
        if !always && rng.one_in(2) {
            let gone = at + below(rng, self.at_most(SECOND * 15));
            self.acts.push(delete(gone, VirtualMachineClone::resource(), "default", &name, "clone"));
        }
    }

    /// The machine is halted, restored, and started anew, whether it has been restored by then or not. `may_go`: whoever asks may
    /// give it up.
    fn restore(&mut self, rng: &mut Rng, may_go: bool) {
        let (machine, name) = (self.name.clone(), format!("{}-back", self.name));
        let mut at = between(rng, self.safety / 3, self.safety * 2 / 3);
        self.is_to(at, &machine, run_strategy::HALTED);
        at += between(rng, SECOND * 3, self.at_most(SECOND * 25));
        let target = json!({"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": machine});
        let mut object = json!({"metadata": {"namespace": "default", "name": name},
            "spec": {"target": target, "virtualMachineSnapshotName": self.first()}});
        if rng.one_in(2) {
            object["spec"]["targetReadinessPolicy"] = target_readiness::FAIL_IMMEDIATE.into();
        }
        // One that is refused was asked for at the wrong moment.
        let want = Some(("vmrestore", Want::Any));
        self.acts.push(create(at, VirtualMachineRestore::resource(), object, want));
        if may_go && rng.one_in(2) {
            let gone = at + below(rng, self.at_most(SECOND * 10));
            self.acts.push(delete(gone, VirtualMachineRestore::resource(), "default", &name, "vmrestore"));
        }
        at += between(rng, SECOND, self.at_most(SECOND * 30));
        self.is_to(at, &machine, run_strategy::ALWAYS);
    }

    /// Snapshots when nothing fails any more: one that is left alone, and one that is deleted at once.
    fn late(&mut self, rng: &mut Rng) {
        let at = self.safety + SETTLED + between(rng, SECOND * 5, SECOND * 15);
        let (last, brief) = (format!("{}-last", self.name), format!("{}-brief", self.name));
        self.snapshot(at, &last);
        let at = at + SECOND * 15;
        self.snapshot(at, &brief);
        let gone = at + below(rng, SECOND * 2);
        self.acts.push(delete(gone, VirtualMachineSnapshot::resource(), "default", &brief, "vmsnapshot"));
    }

    /// Asks for a start, as `virtctl start` does of a machine that is started by hand. What holds a machine does not hold this.
    fn starts(&mut self, at: Duration) {
        let patch = json!({"status": {"stateChangeRequests": [{"action": "Start"}]}});
        let what = What::Try { resource: VirtualMachine::resource(), name: self.name.clone(), sub: "status", patch };
        self.acts.push(Act { at, what });
    }

    /// It may be refused: what holds a machine holds its strategy.
    fn is_to(&mut self, at: Duration, name: &str, strategy: &str) {
        let patch = json!({"spec": {"runStrategy": strategy}});
        let what = What::Try { resource: VirtualMachine::resource(), name: name.into(), sub: "", patch };
        self.acts.push(Act { at, what });
    }
}

/// How long a guest is to stay frozen at the most, as a call says; zero for as long as it takes.
pub(crate) fn lasts(body: &Value) -> Duration {
    let seconds = text(body, "/unfreezeTimeout").strip_suffix('s').and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(0))
}

/// A planted bug: what is asked of a driver, without what its volume is to be made from.
pub(crate) fn without_origin(out: &mut Out) {
    if let Out::Call { call: Call::Create(volume), .. } = out {
        volume.from = None;
    }
}

/// What nodes have in the snapshot of a VolumeSnapshot.
fn taken<'a>(snapshot: &Value, nodes: &'a BTreeMap<u8, Node>) -> Option<&'a Taken> {
    let handle = format!("snapshot-{}", uid(snapshot));
    nodes.values().find_map(|node| node.storage.contents.taken(&handle))
}

/// The volumes of a content of which storage has taken snapshots, with what nodes have of each.
fn kept<'a>(
    content: &'a Value,
    observer: &Observer,
    nodes: &'a BTreeMap<u8, Node>,
) -> impl Iterator<Item = (&'a str, Option<&'a Taken>)> {
    let backups = content.pointer("/spec/volumeBackups").and_then(Value::as_array).into_iter().flatten();
    backups.filter(move |backup| !is_copy(content, backup)).map(move |backup| {
        let snapshot = observer.get("volumesnapshot", &beside(content, text(backup, "/volumeSnapshotName")));
        (text(backup, "/volumeName"), snapshot.and_then(|snapshot| taken(snapshot, nodes)))
    })
}

/// By whom a machine was held last.
#[derive(Debug)]
struct Hold {
    snapshot: String,
    since: Time,
    /// Its instance, and since when the agent of that had been there: if it was there for long.
    steady: Option<(String, Time)>,
}

/// What was seen of machines that are held, and of their guests.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    /// Since when each instance runs with an agent, by UID.
    agents: BTreeMap<String, Time>,
    /// By namespace and name of the machine.
    holds: BTreeMap<String, Hold>,
    /// Since when guests are frozen though nothing holds their machines, by container.
    frozen: BTreeMap<String, Time>,
}

impl Backups {
    /// Something was just committed.
    pub(crate) fn changed(
        &mut self,
        now: Time,
        change: &Change,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        match (change.resource, &change.before, &change.after) {
            ("vmi", _, Some(vmi)) if is_asked(vmi) => {
                self.agents.entry(uid(vmi).to_owned()).or_insert(now);
            }
            ("vmi", ..) => {
                self.agents.remove(uid(change.object()));
            }
            ("vm", before, Some(vm)) => self.held(now, before.as_ref(), vm, observer),
            ("vmcontent", before, Some(content))
                if ready_to_use(content) && !before.as_ref().is_some_and(ready_to_use) =>
            {
                self.taken(content, observer, nodes, breaches);
            }
            ("volume", None, Some(volume)) => made(volume, observer, nodes, breaches),
            _ => {}
        }
    }

    /// A machine is held by somebody, or not any more.
    fn held(&mut self, now: Time, before: Option<&Value>, vm: &Value, observer: &Observer) {
        let snapshot = holder(vm);
        if snapshot.is_empty() || before.map(holder) == Some(snapshot) {
            return;
        }
        let vmi = observer.get("vmi", &key_of(vm)).filter(|vmi| controller(vmi) == uid(vm));
        let agent = vmi.and_then(|vmi| Some((uid(vmi).to_owned(), *self.agents.get(uid(vmi))?)));
        let steady = agent.filter(|(_, since)| now.since(*since) >= STEADY);
        self.holds.insert(key_of(vm), Hold { snapshot: snapshot.to_owned(), since: now, steady });
    }

    /// A content can be used: of a guest that could be frozen all the time it has what was there at one instant.
    fn taken(&self, content: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
        let machine = beside(content, text(content, "/spec/source/virtualMachine/metadata/name"));
        let Some(Hold { snapshot, since, steady: Some((instance, agent)) }) = self.holds.get(&machine) else { return };
        let is_of_hold = text(content, "/spec/virtualMachineSnapshotName") == snapshot;
        if !is_of_hold || self.agents.get(instance) != Some(agent) {
            return;
        }
        let all: BTreeMap<&str, &Taken> =
            kept(content, observer, nodes).filter_map(|(volume, taken)| Some((volume, taken?))).collect();
        // Who had frozen it for a snapshot before does not matter.
        if all.values().any(|taken| taken.disturbed.is_some_and(|at| at >= *since)) {
            return;
        }
        let instants: BTreeMap<&str, Option<Time>> =
            all.into_iter().map(|(volume, taken)| (volume, taken.content.wrote)).collect();
        one_instant(content, &instants, breaches);
    }

    /// Looked at from time to time, while nothing has failed since then.
    pub(crate) fn look(
        &mut self,
        now: Time,
        calm: Time,
        observer: &Observer,
        nodes: &BTreeMap<u8, Node>,
        breaches: &mut Vec<Breach>,
    ) {
        let is_held = |machine: &str| observer.get("vm", machine).is_some_and(|vm| !holder(vm).is_empty());
        let mut left = BTreeMap::new();
        for node in nodes.values() {
            for (compute, guest) in node.guests.alive() {
                // What was frozen before may have been so by a call that came late.
                let since = node.guests.frozen.since(compute, now).filter(|since| *since > calm + SETTLED);
                if since.is_some() && !is_held(&guest.name) {
                    left.insert(compute.to_owned(), guest.name.clone());
                }
            }
        }
        self.frozen.retain(|compute, _| left.contains_key(compute));
        for (compute, name) in left {
            let since = *self.frozen.entry(compute).or_insert(now);
            if now.since(since) > SOON {
                let what = format!("the guest of {name} is frozen, and nothing holds it");
                breaches.push(Breach::new(THAWED, what));
            }
        }
    }
}

/// The snapshot that holds a machine; empty for none.
fn holder(vm: &Value) -> &str {
    text(vm, "/status/snapshotInProgress")
}

/// Whether the agent of an instance's guest can be asked.
fn is_asked(vmi: &Value) -> bool {
    text(vmi, "/status/phase") == "Running" && is_true(vmi, "AgentConnected") && !is_true(vmi, "Paused")
}

/// A volume was just made: one that is of a snapshot has what that has, which is of the disk that it stands for.
fn made(volume: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    let of = |field: &str| text(volume, &format!("/spec/claimRef/{field}"));
    let claim = observer.get("claim", &format!("{}/{}", of("namespace"), of("name")));
    let Some(claim) = claim.filter(|claim| text(volume, "/spec/csi/driver") == DRIVER && uid(claim) == of("uid"))
    else {
        return;
    };
    if text(claim, "/spec/dataSource/kind") != "VolumeSnapshot" {
        return;
    }
    let snapshot = observer.get("volumesnapshot", &beside(claim, text(claim, "/spec/dataSource/name")));
    let Some(kept) = snapshot.and_then(|snapshot| taken(snapshot, nodes)) else { return };
    let handle = text(volume, "/spec/csi/volumeHandle");
    let Some(made) = nodes.values().find_map(|node| node.storage.contents.made(handle)) else { return };
    // Names of claims end with those of the disks. A machine has one with what its firmware keeps.
    let disk = |claim: &str| {
        let is_state = claim.contains(STATE_CLAIM_PREFIX);
        let name = if is_state { STATE_CLAIM_PREFIX } else { claim.rsplit('-').next().unwrap_or_default() };
        name.to_owned()
    };
    let is_its_disk = disk(text(claim, "/metadata/name")) == disk(&kept.content.claim);
    if *made != kept.content || !is_its_disk {
        let what = format!("the volume of {} is made with {made:?}, and its snapshot has {kept:?}", key_of(claim));
        breaches.push(Breach::new(AS_KEPT, what));
    }
}

/// What is not as it was asked to be, or is left over.
pub(crate) fn lack(now: Time, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    debris(observer)
        .or_else(|| snapshots_lack(observer, nodes))
        .or_else(|| restores_lack(observer))
        .or_else(|| {
            let lack =
                |clone: &Value| Some(format!("clone {} {}", key_of(clone), course_lacks(clone, true, observer)?));
            observer.all("clone").find_map(lack)
        })
        .or_else(|| observer.all("vm").filter(|vm| is_one(vm)).find_map(|vm| lacks(vm, observer, nodes)))
        .or_else(|| {
            let frozen = |node: &Node| {
                let mut guests = node.guests.alive();
                let found = guests.find(|(compute, _)| node.guests.frozen.since(compute, now).is_some());
                found.map(|(_, guest)| format!("the guest of {} is still frozen", guest.name))
            };
            nodes.values().find_map(frozen)
        })
}

/// Whether a machine is one of these, or a clone of one.
fn is_one(vm: &Value) -> bool {
    text(vm, "/metadata/name").starts_with(OF) && !deleting(vm)
}

/// Why a machine is not as its spec says.
fn lacks(vm: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let name = key_of(vm);
    if let Some(lack) = disks_lack(vm, observer, nodes) {
        return Some(format!("vm {name} {lack}"));
    }
    let lack = match text(vm, "/spec/runStrategy") {
        run_strategy::ALWAYS => machine_lacks(vm, &name, observer, nodes),
        _ => (observer.get("vmi", &name).is_some() || guests_of(&name, nodes) > 0)
            .then(|| "is to be off and is not".to_owned()),
    };
    lack.map(|lack| format!("vm {name} {lack}"))
}

/// Why a machine's disks are not its own, or not whole, where they have been made: claims of such machines are called by their disks.
fn disks_lack(vm: &Value, observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let volumes = vm.pointer("/spec/template/spec/volumes").and_then(Value::as_array).into_iter().flatten();
    let mut wrong = volumes.filter_map(|volume| {
        let disk = text(volume, "/name");
        let claim = observer.get("claim", &beside(vm, text(volume, "/persistentVolumeClaim/claimName")))?;
        let made = observer.get("volume", text(claim, "/spec/volumeName"))?;
        let holds = content_of(made, nodes)?.claim.as_str();
        let is_its = holds.starts_with(OF) && holds.ends_with(&format!("-{disk}"));
        (!is_its && DISKS.contains(&disk)).then(|| format!("has a disk {disk} that holds {holds:?}"))
    });
    wrong.next()
}

/// Why a snapshot has not come to an end, or does not have what it says.
fn snapshots_lack(observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let lack = |snapshot: &Value| match text(snapshot, "/status/phase") {
        _ if deleting(snapshot) => Some("is still going".to_owned()),
        "Failed" => None,
        "Succeeded" if !ready_to_use(snapshot) => Some(format!("cannot be used: {}", snapshot["status"])),
        _ => snapshot_lacks(snapshot),
    };
    let unfinished = observer.all("vmsnapshot").find_map(|snapshot| Some((snapshot, lack(snapshot)?)));
    if let Some((snapshot, lack)) = unfinished {
        return Some(format!("vmsnapshot {} {lack}", key_of(snapshot)));
    }
    let mut contents = observer.all("vmcontent").filter(|content| ready_to_use(content) && !deleting(content));
    contents.find_map(|content| {
        let lost = kept(content, observer, nodes).find(|(_, taken)| taken.is_none());
        let lost = lost.map(|(volume, _)| format!("content {} has lost what it kept of {volume}", key_of(content)));
        lost.or_else(|| copies_lack(content, observer, nodes))
    })
}

/// Why a restore has not come to an end. Whose snapshot cannot be used waits for it.
fn restores_lack(observer: &Observer) -> Option<String> {
    let waits = |restore: &Value| {
        let name = beside(restore, text(restore, "/spec/virtualMachineSnapshotName"));
        observer.get("vmsnapshot", &name).is_none_or(|snapshot| !ready_to_use(snapshot))
    };
    let is_over = |restore: &&Value| !deleting(restore) && (is_true(restore, "Failure") || waits(restore));
    let mut others = observer.all("vmrestore").filter(|restore| !is_over(restore));
    others.find_map(|restore| Some(format!("vmrestore {} {}", key_of(restore), restore_lacks(restore)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attacher::Rack;
    use crate::node::new_volume;
    use crate::options::NodeFaults;
    use crate::workload::Part;

    const AT: Time = Time::from_unix_s(1000);

    fn object(name: &str, rest: Value) -> Value {
        let mut object = rest;
        object["metadata"]["namespace"] = "default".into();
        object["metadata"]["name"] = name.into();
        object["metadata"]["uid"] = name.into();
        object
    }

    /// A node with the snapshots `s-one` and `s-two`, whose disks were written to at these times; and when the guest was disturbed,
    /// if it was before the second one was taken.
    fn nodes(wrote: [i64; 2], disturbed_s: Option<i64>, observer: &Observer) -> BTreeMap<u8, Node> {
        let mut node = Node::new(1, AT, Rng::new(1), NodeFaults::none(), Rack::default());
        let contents = &mut node.storage.contents;
        for (disk, wrote) in DISKS.into_iter().zip(wrote) {
            contents.make(&new_volume(&format!("pvc-backed0-{disk}"), None), observer);
            contents.write(&format!("pvc-backed0-{disk}"), Time::from_unix_s(wrote));
        }
        for disk in DISKS {
            contents.take(&format!("snapshot-s-{disk}"), &format!("pvc-backed0-{disk}"));
            if let Some(s) = disturbed_s {
                contents.disturb("pvc-backed0-two", Time::from_unix_s(s));
            }
        }
        BTreeMap::from([(1, node)])
    }

    fn claim(name: &str) -> (&'static str, Value) {
        ("claim", object(name, json!({})))
    }

    #[test]
    fn a_guest_that_can_be_frozen_is_of_one_instant() {
        // How long the agent was there when its machine was held, whether it goes meanwhile, when disks were written to, when
        // the guest was thawed unasked; and whether that is a breach.
        for (steady_s, goes, wrote, disturbed_s, expected) in [
            (60, false, [1, 1], None, false),
            (60, false, [1, 2], None, true),
            (60, true, [1, 2], None, false),
            (1, false, [1, 2], None, false),
            (60, false, [1, 2], Some(1061), false),
            // Before its machine was held for this snapshot.
            (60, false, [1, 2], Some(1059), true),
        ] {
            let vmi = |conditions: Value| {
                let status = json!({"phase": "Running", "conditions": conditions});
                let mut vmi = object("backed0", json!({"status": status}));
                vmi["metadata"]["ownerReferences"] = json!([{"controller": true, "uid": "backed0"}]);
                vmi
            };
            let speaks = vmi(json!([{"type": "AgentConnected", "status": "True"}]));
            let snapshots = DISKS.map(|disk| ("volumesnapshot", object(&format!("s-{disk}"), json!({}))));
            let claims = DISKS.map(|disk| claim(&format!("backed0-{disk}")));
            let observer = Observer::of([("vmi", speaks.clone())].into_iter().chain(snapshots).chain(claims));
            let nodes = nodes(wrote, disturbed_s, &observer);
            let vm = |holder: Value| object("backed0", json!({"status": {"snapshotInProgress": holder}}));
            let backups: Vec<Value> = DISKS
                .iter()
                .map(|disk| json!({"volumeName": disk, "volumeSnapshotName": format!("s-{disk}")}))
                .collect();
            let content = |ready: bool| {
                let machine = json!({"virtualMachine": {"metadata": {"name": "backed0"}}});
                let spec = json!({"virtualMachineSnapshotName": "s", "source": machine, "volumeBackups": backups});
                object("content", json!({"spec": spec, "status": {"readyToUse": ready}}))
            };
            let (mut own, mut breaches) = (Backups::default(), Vec::new());
            let mut see = |s: i64, resource, before, after| {
                let change = Change { resource, before, after: Some(after) };
                own.changed(Time::from_unix_s(1000 + s), &change, &observer, &nodes, &mut breaches);
            };
            see(0, "vmi", None, speaks.clone());
            see(steady_s, "vm", Some(vm(Value::Null)), vm("s".into()));
            if goes {
                see(steady_s, "vmi", Some(speaks.clone()), vmi(json!([])));
                see(steady_s + 1, "vmi", None, speaks);
            }
            see(steady_s + 2, "vmcontent", Some(content(false)), content(true));
            // It is said once.
            see(steady_s + 3, "vmcontent", Some(content(true)), content(true));
            let what = format!("{steady_s} s, {goes}, {wrote:?}, {disturbed_s:?}");
            assert_eq!(breaches.len(), usize::from(expected), "{what}: {breaches:?}");
        }
    }

    #[test]
    fn a_volume_has_what_its_snapshot_has() {
        use carrack_storage::provision::calls::From as Origin;
        for (name, from, expected) in [
            ("restore-r-one", Some("snapshot-s-one"), 0),
            ("restore-r-one", None, 1),
            ("restore-r-one", Some("snapshot-s-two"), 1),
            ("restore-r-two", Some("snapshot-s-one"), 1),
            // It takes the place of what firmware keeps.
            ("restore-r-persistent-state-for-one", Some("snapshot-s-one"), 1),
        ] {
            let source = json!({"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "s-one"}}});
            let claims = DISKS.map(|disk| claim(&format!("backed0-{disk}")));
            let snapshots = [("volumesnapshot", object("s-one", json!({}))), ("claim", object(name, source))];
            let observer = Observer::of(snapshots.into_iter().chain(claims));
            let mut nodes = nodes([1, 2], None, &observer);
            let from = from.map(|from: &str| Origin::Snapshot(from.to_owned()));
            for node in nodes.values_mut() {
                node.storage.contents.make(&new_volume(&format!("pvc-{name}"), from.clone()), &observer);
            }
            let of = json!({"namespace": "default", "name": name, "uid": name});
            let csi = json!({"driver": DRIVER, "volumeHandle": format!("pvc-{name}")});
            let after = Some(json!({"metadata": {"name": "pv"}, "spec": {"claimRef": of, "csi": csi}}));
            let (mut own, mut breaches) = (Backups::default(), Vec::new());
            let change = Change { resource: "volume", before: None, after };
            own.changed(AT, &change, &observer, &nodes, &mut breaches);
            assert_eq!(breaches.len(), expected, "{name} {from:?}: {breaches:?}");
        }
    }

    #[test]
    fn what_is_asked_for_comes_to_an_end() {
        let check = |kind: &'static str, rest: Value, expected: bool| {
            let words = format!("{kind} {rest}");
            let observer = Observer::of([(kind, object("backed0", rest))]);
            assert_eq!(lack(AT, &observer, &BTreeMap::new()).is_some(), expected, "{words}");
        };
        let status = |status: Value| json!({ "status": status });
        check("vmsnapshot", status(json!({"phase": "Succeeded", "readyToUse": true})), false);
        check("vmsnapshot", status(json!({"phase": "Succeeded", "readyToUse": false})), true);
        check("vmsnapshot", status(json!({"phase": "InProgress"})), true);
        check("vmsnapshot", status(json!({"phase": "Failed"})), false);
        let going = |mut object: Value| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object
        };
        check("vmsnapshot", going(status(json!({"phase": "Failed"}))), true);
        // Nobody has the snapshot that it waits for.
        check("vmrestore", status(json!({"complete": false})), false);
        check("vmrestore", going(status(json!({"complete": true}))), true);
        check("vm", json!({"spec": {"runStrategy": "Halted"}}), false);
        check("vm", json!({"spec": {"runStrategy": "Always"}}), true);
    }

    /// All is asked for in time, and what is done while anything fails is there in runs of each length.
    #[test]
    fn little_is_asked_for_where_there_is_little_time() {
        for seed in 0..40 {
            let parts: [Part; 2] = [acts, copied];
            let lengths = [(4, 12), (12, 36), (60, 192)];
            for (add, (safety_s, most_s)) in parts.into_iter().flat_map(|add| lengths.map(|length| (add, length))) {
                let (safety, mut all) = (SECOND * safety_s, Vec::new());
                add(&mut Rng::new(seed), safety, &mut all);
                let last = all.iter().map(|act| act.at).max().unwrap_or_default();
                assert!(last <= SECOND * most_s, "seed {seed}, {safety:?}: {last:?}");
                let asks = |resource: &carrack_types::resource::Resource| {
                    let is_one = |act: &Act| matches!(&act.what, What::Create { resource: of, .. } if of == resource);
                    all.iter().filter(|act| is_one(act)).count()
                };
                let counts = [
                    asks(&VirtualMachine::resource()),
                    asks(&VirtualMachineSnapshot::resource()),
                    asks(&VirtualMachineClone::resource()),
                    asks(&VirtualMachineRestore::resource()),
                ];
                assert!(counts.iter().all(|count| *count > 0), "seed {seed}, {safety:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn calls_say_how_long_guests_stay_frozen() {
        for (body, seconds) in
            [(json!({"unfreezeTimeout": "290s"}), 290), (json!({"unfreezeTimeout": "0s"}), 0), (json!({}), 0)]
        {
            assert_eq!(lasts(&body), Duration::from_secs(seconds), "{body}");
        }
    }
}
