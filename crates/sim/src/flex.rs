//! A FlexVolume driver whose disks are those of the rack: what the control plane's calls to its program do.
//!
//! Calls take their time, fail before or after their effect, and end with their caller: what they were about to do is done by
//! then, or is never done. A node that is switched
//! off loses its disks of this driver, and they come back under other names. Some are volumes of claims, others are brought by
//! pods themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::Rng;
use carrack_flexvolume::Capabilities;
use carrack_storage::asking::{In, Out};
use carrack_storage::flex::calls::{Answer, Call, Outcome};
use serde_json::json;

use crate::attacher::{self, Rack};
use crate::chance::{Delay, below};
use crate::options::NodeFaults;
use crate::plants::Bug;
use crate::workload::{Act, What};

/// Name of the driver.
pub(crate) const DRIVER: &str = "sim/rack";

/// Whether this is part of the work, given what is planted: other bugs are looked for among what there was without it.
pub(crate) fn is_there(planted: Option<Bug>) -> bool {
    matches!(planted, None | Some(Bug::GuessedLoss | Bug::CarelessInlineDetach))
}

/// Makes about half of the disks this driver's, and of those that pods bring.
pub(crate) fn provide(rng: &mut Rng, acts: &mut [Act]) {
    let mut brought = rng.fork("brought");
    for act in acts {
        if let What::Create { object, .. } = &mut act.what
            && object["kind"] == "Pod"
        {
            for volume in object["spec"]["volumes"].as_array_mut().into_iter().flatten() {
                // Called otherwise than the disks of claims: which disk it is, is its name.
                let name = volume["name"].as_str().unwrap_or_default().replace("disk", "drive");
                if volume["flexVolume"].is_object() && brought.one_in(2) {
                    *volume = json!({"name": name, "flexVolume": {"driver": DRIVER}});
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

/// Whether a call fails, and on which side of its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Works,
    FailsBefore,
    FailsAfter,
}

/// A call that was answered.
pub(crate) struct Answered {
    /// The life of who asked.
    pub life: u32,
    /// The answer.
    pub answer: In<Outcome>,
    /// How long it takes to arrive.
    pub after: Duration,
    /// For the trace.
    pub said: String,
}

/// The program's runs.
pub(crate) struct Runs {
    rng: Rng,
    takes: Delay,
    fail_one_in: u64,
    running: BTreeMap<u64, (u32, u64, Call, Fate)>,
    last: u64,
}

/// One in so many calls takes long, where calls may fail.
const LONG_ONE_IN: u64 = 8;
/// So long at most.
const LONGEST: Duration = Duration::from_secs(10);

impl Runs {
    pub(crate) fn new(rng: Rng, faults: NodeFaults, planted: Option<Bug>) -> Self {
        let fail_one_in = if planted == Some(Bug::GuessedLoss) { 2 } else { faults.fail_one_in };
        Self { rng, takes: faults.operation, fail_one_in, running: BTreeMap::new(), last: 0 }
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&mut self) {
        self.fail_one_in = 0;
    }

    /// A call begins; under which number, and when it takes effect.
    pub(crate) fn begin(&mut self, life: u32, out: Out<Call>) -> Option<(u64, Duration)> {
        // It takes part in no election.
        let Out::Call { id, call } = out else { return None };
        let fate = match self.rng.one_in(self.fail_one_in) {
            false => Fate::Works,
            true if self.rng.one_in(2) => Fate::FailsBefore,
            true => Fate::FailsAfter,
        };
        self.last += 1;
        self.running.insert(self.last, (life, id, call, fate));
        let long = self.fail_one_in > 0 && self.rng.one_in(LONG_ONE_IN);
        let more = if long { below(&mut self.rng, LONGEST) } else { Duration::ZERO };
        Some((self.last, more + self.takes.draw(&mut self.rng)))
    }

    /// The caller is dead, and its calls with it: one has just been done, another never is.
    pub(crate) fn caller_died(&mut self, rack: &Rack) {
        for (_, _, call, fate) in std::mem::take(&mut self.running).into_values() {
            if fate != Fate::FailsBefore && self.rng.one_in(2) {
                make(&call, rack);
            }
        }
    }

    /// A call takes effect.
    pub(crate) fn end(&mut self, number: u64, rack: &Rack) -> Option<Answered> {
        let (life, id, call, fate) = self.running.remove(&number)?;
        let outcome = match fate {
            Fate::FailsBefore => Err("the driver hiccups".to_owned()),
            Fate::Works => Ok(make(&call, rack)),
            Fate::FailsAfter => {
                make(&call, rack);
                Err("the driver's answer is lost".to_owned())
            }
        };
        let said = format!("{call:?}: {outcome:?}");
        let after = self.takes.draw(&mut self.rng) / 4;
        Some(Answered { life, answer: In { id, outcome }, after, said })
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
