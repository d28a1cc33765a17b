//! A FlexVolume driver whose disks are those of the rack: what the control plane's calls to its program do.
//!
//! Calls take their time, fail before or after their effect, and end with their caller, or when that must be sure to lead no
//! more: what they were about to do is done by then, or is never done. A node that is switched off loses its disks of this
//! driver, and they come back under other names. Some are volumes of claims, others are brought by pods themselves.
//!
//! In one run of three, pods bring disks with secrets that open them, one of two. What a pod brings is called as the pod calls
//! it, so that two pods' may be called the same: while one has its own, another with another secret waits, maybe without end.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_flexvolume::Capabilities;
use carrack_kubelet::volumes::{Driver, VolumeKind, VolumeSetup};
use carrack_storage::asking::{In, Out};
use carrack_storage::flex::calls::{Answer, Call, Outcome};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::attacher::{self, Rack};
use crate::chance::{Delay, below, between};
use crate::invariants::Breach;
use crate::options::{NodeFaults, Options};
use crate::plants::Bug;
use crate::role::Role;
use crate::wants::Want;
use crate::workload::{Act, What};

/// Name of the driver.
pub(crate) const DRIVER: &str = "sim/rack";
/// Name of the invariant about secrets.
pub(crate) const OPENED: &str = "disks-open-to-their-secrets";
/// What is drawn of secrets is drawn by this name.
pub(crate) const LOCKED: &str = "secrets of disks";
/// The secrets.
const SECRETS: [&str; 2] = ["disk-a", "disk-b"];

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn is_there(planted: Option<Bug>) -> bool {
    planted.is_none_or(|bug| bug.is_of_calls() || matches!(bug, Bug::GuessedLoss | Bug::CarelessInlineDetach))
}

/// Whether who calls takes part in elections, where others do.
pub(crate) fn elects(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::EndlessCalls | Bug::StoppedCalls))
}

/// Makes about half of the disks this driver's, and of those that pods bring.
pub(crate) fn provide(rng: &mut Rng, acts: &mut [Act]) {
    let mut brought = rng.fork("brought");
    for act in acts {
        if let What::Create { object, .. } = &mut act.what
            && object["kind"] == "Pod"
        {
            let mut renamed = BTreeMap::new();
            for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
                // Called otherwise than the disks of claims: which disk it is, is its name.
                let before = volume["name"].as_str().unwrap_or_default().to_owned();
                if volume["flexVolume"].is_object() && brought.one_in(2) {
                    let name = before.replace("disk", "drive");
                    *volume = json!({"name": name, "flexVolume": {"driver": DRIVER}});
                    renamed.insert(before, name);
                }
            }
            let mounts = object.pointer_mut("/spec/containers/0/volumeMounts").and_then(Value::as_array_mut);
            for mount in mounts.into_iter().flatten() {
                if let Some(name) = mount["name"].as_str().and_then(|name| renamed.get(name)) {
                    mount["name"] = name.as_str().into();
                }
            }
        }
        if let What::Create { object, .. } = &mut act.what
            && object["kind"] == "PersistentVolume"
            && object["spec"]["csi"]["driver"] == attacher::DRIVER
            && rng.one_in(2)
            && let Some(spec) = object["spec"].as_object_mut()
        {
            spec.remove("csi");
            spec.insert("flexVolume".to_owned(), json!({"driver": DRIVER}));
        }
    }
}

/// Whether disks that pods bring are opened with secrets. Beside planted bugs they are not.
pub(crate) fn are_locked(rng: &Rng, options: &Options, planted: Option<Bug>) -> bool {
    options.faults && planted.is_none() && rng.fork(LOCKED).fork("whether").one_in(3)
}

/// Gives half of the disks that pods bring a secret that opens them. Of a pod with a disk nothing is wanted then: it may wait
/// for another one's to be taken away.
pub(crate) fn lock(rng: &mut Rng, acts: &mut Vec<Act>) {
    let mut are_brought = false;
    for act in acts.iter_mut() {
        let What::Create { object, want, .. } = &mut act.what else { continue };
        if object["kind"] != "Pod" {
            continue;
        }
        let mut brings = false;
        for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
            if volume["flexVolume"].is_object() {
                brings = true;
                let [one, other] = SECRETS;
                let name = if rng.one_in(2) { one } else { other };
                if rng.one_in(2) {
                    volume["flexVolume"]["secretRef"] = json!({"name": name});
                }
            }
        }
        if brings && let Some((_, want)) = want {
            *want = Want::Any;
        }
        are_brought |= brings;
    }
    for name in SECRETS.into_iter().filter(|_| are_brought) {
        let object = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": "default", "name": name}, "data": {"key": "a2V5"}});
        let what = What::Create { resource: Secret::resource(), object, want: None };
        acts.push(Act { at: Duration::from_millis(100), what });
    }
}

/// A pod gets its part of a volume on a node.
pub(crate) fn opened(node: u8, setup: &VolumeSetup, breaches: &mut Vec<Breach>) {
    let VolumeKind::Published(part) = &setup.kind else { return };
    let Some(staging) = &part.staging else { return };
    let drivers = (&part.published.origin.driver, &staging.origin.driver);
    if let (Driver::Flex { secret: own, .. }, Driver::Flex { secret: first, .. }) = drivers
        && own != first
    {
        let (id, uid) = (&staging.id, &setup.uid);
        let what = format!("{id} on node{node} was opened with {first:?}, and {uid} gets a part of it with {own:?}");
        breaches.push(Breach::new(OPENED, what));
    }
}

/// Whether a call fails, and on which side of its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    FailsBefore,
    FailsAfter,
}

/// A process that calls: its role, and which of its lives.
type Caller = (Role, u32);

/// A call that was answered.
pub(crate) struct Answered {
    /// The role of who asked.
    pub role: Role,
    /// Its life.
    pub life: u32,
    /// The answer.
    pub answer: In<Outcome>,
    /// How long it takes to arrive.
    pub after: Duration,
    /// For the trace.
    pub said: String,
}

/// A run of the program.
struct Run {
    caller: Caller,
    id: u64,
    call: Call,
    fate: Fate,
    /// It was ended from outside.
    ended: bool,
}

/// The program's runs.
pub(crate) struct Runs {
    rng: Rng,
    takes: Delay,
    fail_one_in: u64,
    running: BTreeMap<u64, Run>,
    last: u64,
    /// By when the calls of a process must be over, where that takes part in elections.
    until: BTreeMap<Caller, Time>,
    bug: Option<Bug>,
}

/// One in so many calls takes long, where calls may fail.
const LONG_ONE_IN: u64 = 8;
/// So long at most.
const LONGEST: Duration = Duration::from_secs(10);

impl Runs {
    pub(crate) fn new(rng: Rng, faults: NodeFaults, bug: Option<Bug>) -> Self {
        let fail_one_in = if bug == Some(Bug::GuessedLoss) { 2 } else { faults.fail_one_in };
        let (running, until) = (BTreeMap::new(), BTreeMap::new());
        Self { rng, takes: faults.operation, fail_one_in, running, last: 0, until, bug }
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&mut self) {
        self.fail_one_in = 0;
    }

    /// How much longer a call takes than others.
    fn longer(&mut self, call: &Call) -> Duration {
        if self.bug.is_some_and(Bug::is_of_calls) {
            // Detaching takes long, until the next caller asks for the same.
            let Call::Detach { disk, node } = call else { return Duration::ZERO };
            let same = |run: &Run| matches!(&run.call, Call::Detach { disk: d, node: n } if (&d.volume, n) == (&disk.volume, node));
            let again = self.running.values().any(same);
            return if again { Duration::ZERO } else { between(&mut self.rng, LONGEST * 2, LONGEST * 4) };
        }
        let long = self.fail_one_in > 0 && self.rng.one_in(LONG_ONE_IN);
        if long { below(&mut self.rng, LONGEST) } else { Duration::ZERO }
    }

    /// A call begins; under which number, and when it takes effect. The caller's clock is so far ahead.
    pub(crate) fn begin(&mut self, caller: Caller, out: Out<Call>, now: Time, skew_ns: i64) -> Option<(u64, Duration)> {
        let (id, call) = match out {
            Out::Call { id, call } => (id, call),
            Out::MayCallUntil(until) => {
                let before = self.until.insert(caller, Time(until.0.saturating_sub(skew_ns)));
                let over = before.is_some_and(|before| before <= now);
                self.running.values_mut().filter(|run| over && run.caller == caller).for_each(|run| run.ended = true);
                return None;
            }
        };
        let fate = match self.rng.one_in(self.fail_one_in) {
            false => Fate::Works,
            true if self.rng.one_in(2) => Fate::FailsBefore,
            true => Fate::FailsAfter,
        };
        self.last += 1;
        let more = self.longer(&call);
        self.running.insert(self.last, Run { caller, id, call, fate, ended: false });
        Some((self.last, more + self.takes.draw(&mut self.rng)))
    }

    /// Whether a disk is being detached for a caller.
    pub(crate) fn detaches(&self, caller: Caller) -> bool {
        self.running.values().any(|run| run.caller == caller && matches!(run.call, Call::Detach { .. }))
    }

    /// The caller is dead, and its calls with it: one has just been done, another never is.
    pub(crate) fn caller_died(&mut self, caller: Caller, rack: &Rack) {
        self.until.remove(&caller);
        if self.bug == Some(Bug::OrphanedCalls) {
            return;
        }
        let its: Vec<u64> = self.running.iter().filter(|(_, run)| run.caller == caller).map(|(n, _)| *n).collect();
        for run in its.into_iter().filter_map(|number| self.running.remove(&number)) {
            if run.fate != Fate::FailsBefore && !run.ended && self.rng.one_in(2) {
                make(&run.call, rack);
            }
        }
    }

    /// Who called.
    pub(crate) fn caller(&self, number: u64) -> Option<Caller> {
        self.running.get(&number).map(|run| run.caller)
    }

    /// A call takes effect; its caller may be stopped.
    pub(crate) fn end(&mut self, number: u64, now: Time, stopped: bool, rack: &Rack) -> Option<Answered> {
        let Run { caller, id, call, fate, ended } = self.running.remove(&number)?;
        // It is ended when its time is over, whether its caller can still do that or not.
        let unwatched = stopped && self.bug == Some(Bug::StoppedCalls);
        let late = ended || !unwatched && self.until.get(&caller).is_some_and(|until| *until <= now);
        let outcome = match fate {
            _ if late && self.bug != Some(Bug::EndlessCalls) => Err("its caller leads no more".to_owned()),
            Fate::FailsBefore => Err("the driver hiccups".to_owned()),
            Fate::Works => Ok(make(&call, rack)),
            Fate::FailsAfter => {
                make(&call, rack);
                Err("the driver's answer is lost".to_owned())
            }
        };
        let said = format!("{call:?}: {outcome:?}");
        let after = self.takes.draw(&mut self.rng) / 4;
        Some(Answered { role: caller.0, life: caller.1, answer: In { id, outcome }, after, said })
    }
}

fn make(call: &Call, rack: &Rack) -> Answer {
    match call {
        Call::Init(driver) => Answer::Can(Capabilities { attach: driver == DRIVER, ..Capabilities::default() }),
        Call::Attach { disk, node, .. } => Answer::Attached(rack.attach_until_off(&disk.volume, node)),
        Call::IsAttached { disk, node, .. } => Answer::IsAttached(Some(rack.is_attached(&disk.volume, node))),
        Call::Detach { disk, node } => {
            rack.detach(&disk.volume, node);
            Answer::Detached
        }
        Call::Expand { to, .. } => Answer::Expanded(*to),
    }
}
