//! Nodes that run low on memory, on disk or on process ids, and whom their kubelets evict for that.
//!
//! ```text
//!   pods that use more and more, old images, somebody beside the pods ─▶ facts of the machine
//!        ▲                                                                    │ late, or not at all
//!        └── one pod after another ends ◀── what pods use ◀── what is low ◀── heard by the kubelet
//! ```
//!
//! What a machine has left follows from the time and from what is on it: nothing happens by itself here, and a node on which
//! nothing is drawn tells what it always tells. What must hold of evictions is looked after in [`checks`].

mod checks;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::eviction::{Least, Signal, Thresholds};
use carrack_kubelet::{Op, OpId};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::chance::between;
use crate::node::{Node, named};
use crate::observer::{Observer, conditions, key_of, text, uid};
use crate::options::Options;
use crate::plants::Bug;
use crate::role::node_name;
use crate::wants::Want;
use crate::workload::{Act, create, delete, mounting, up_to};
use checks::Heard;
pub(crate) use checks::{CRITICAL, ONE, PROOF, before};

/// The name of this part of the work.
pub(crate) const PART: &str = "pressure";

/// Below so much memory pods go when it has lasted for [`SOFT_GRACE`]; and how long they then have to end at the most, in seconds.
const SOFT_BYTES: u64 = 1 << 30;
const SOFT_GRACE: Duration = Duration::from_secs(5);
const SOFT_POD_GRACE_S: i64 = 4;
/// So much more memory is to be won back.
const RECLAIM_BYTES: u64 = 256 << 20;
/// How long a condition stays: a run cannot wait for upstream's five minutes.
const TRANSITION: Duration = Duration::from_secs(15);
/// How long somebody beside the pods uses what they lack.
const SPELL: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(30));
/// One in so many readings fails, and one in so many answers is late, by so much.
const FAILS_ONE_IN: u64 = 4;
const LATE_ONE_IN: u64 = 3;
const LATE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// The size of an image that nobody uses.
pub(crate) const OLD_IMAGE_BYTES: u64 = 8 << 30;
/// The variable by which a container says what it uses more and more of.
const GROWS: &str = "GROWS";
/// Conditions of a node that runs low, with the taints that follow from them.
const LOW: [(&str, &str); 3] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
];

/// When kubelets evict, in all runs: machines that never run low never meet it.
pub(crate) fn thresholds() -> Thresholds {
    Thresholds {
        soft: BTreeMap::from([(Signal::MemoryAvailable, (Least::Amount(SOFT_BYTES), SOFT_GRACE))]),
        reclaim: BTreeMap::from([(Signal::MemoryAvailable, Least::Amount(RECLAIM_BYTES))]),
        max_pod_grace_s: SOFT_POD_GRACE_S,
        transition: TRANSITION,
        ..Thresholds::default()
    }
}

/// Whether nodes run low, given what is planted: other bugs are looked for among what there was without it. Small runs have it
/// where it is chosen with the rest of their work. Not where machines are: their launchers would go as any pod does.
pub(crate) fn are_there(work: &Rng, options: &Options) -> bool {
    let fits = options.has_whole_nodes() && !options.machines && options.faults;
    let drawn = || options.only.is_some() || work.fork("whether nodes run low").one_in(4);
    fits && options.hint().map_or_else(drawn, Bug::is_of_pressure) && options.parts(work).has(PART)
}

/// What there may be too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    Memory,
    Disk,
    Inodes,
    Pids,
}

/// What is used of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub inodes: u64,
    pub pids: u64,
}

impl std::iter::Sum for Used {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
            disk_bytes: sum.disk_bytes.saturating_add(one.disk_bytes),
            inodes: sum.inodes.saturating_add(one.inodes),
            pids: sum.pids.saturating_add(one.pids),
        })
    }
}

/// What a container uses more and more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    what: Short,
    mib_s: u64,
    most_mib: u64,
}

impl Growth {
    /// That of a container with these variables.
    pub(crate) fn of(env: &[(String, String)]) -> Option<Self> {
        let (_, said) = env.iter().find(|(name, _)| name == GROWS)?;
        let mut words = said.split(' ');
        let what = match words.next()? {
            "memory" => Short::Memory,
            "disk" => Short::Disk,
            _ => return None,
        };
        Some(Self { what, mib_s: words.next()?.parse().ok()?, most_mib: words.next()?.parse().ok()? })
    }

    /// What it uses when it has run for so long: memory while it runs, and the disk until it is forgotten.
    pub(crate) fn used(self, ran: Duration, runs: bool) -> Used {
        let grown = u128::from(self.mib_s) * ran.as_millis() / 1000;
        let bytes = u64::try_from(grown).unwrap_or(u64::MAX).min(self.most_mib) << 20;
        match self.what {
            Short::Memory if runs => Used { memory_bytes: bytes, ..Used::default() },
            Short::Disk => Used { disk_bytes: bytes, ..Used::default() },
            Short::Memory | Short::Inodes | Short::Pids => Used::default(),
        }
    }
}

/// A time in which somebody beside the pods uses what they lack.
#[derive(Clone, Copy, Debug)]
struct Spell {
    from: Time,
    until: Time,
    what: Short,
    /// There is hardly anything left, and not only too little to go on for long.
    is_deep: bool,
}

impl Spell {
    fn drawn(rng: &mut Rng, begun: Time, trouble: Duration) -> Self {
        let from = begun + between(rng, Duration::ZERO, trouble * 2 / 3);
        let until = from + between(rng, SPELL.0, SPELL.1);
        // Memory is what machines run out of, mostly.
        let what = match rng.below(5) {
            0 => Short::Disk,
            1 => Short::Inodes,
            2 => Short::Pids,
            _ => Short::Memory,
        };
        Self { from, until, what, is_deep: rng.one_in(2) }
    }

    /// What it takes of a machine of which a half is used.
    fn used(&self, now: Time) -> Used {
        let none = Used::default();
        if now < self.from || self.until <= now {
            return none;
        }
        match self.what {
            Short::Memory => {
                let left: u64 = if self.is_deep { 20 << 20 } else { 600 << 20 };
                Used { memory_bytes: (crate::node::MEMORY_BYTES / 2).saturating_sub(left), ..none }
            }
            Short::Disk => Used { disk_bytes: 49 << 30, ..none },
            Short::Inodes => Used { inodes: 880_000, ..none },
            Short::Pids => Used { pids: 98_000, ..none },
        }
    }
}

/// What presses on a node, and what its kubelet has heard of that.
#[derive(Debug)]
pub(crate) struct Low {
    spells: Vec<Spell>,
    rng: Rng,
    fails_one_in: u64,
    late_one_in: u64,
    heard: Heard,
}

impl Low {
    /// What presses on a node in a run. Somebody beside the pods does only where all other work bears with it that any pod may go.
    fn new(begun: Time, mut rng: Rng, options: &Options) -> Self {
        let is_planted = options.hint().is_some();
        let anybody = options.only.is_some() || is_planted;
        let count = if anybody && (is_planted || rng.one_in(2)) { 1 + rng.below(2) } else { 0 };
        let spells = (0..count).map(|_| Spell::drawn(&mut rng, begun, options.trouble())).collect();
        Self { spells, rng, fails_one_in: FAILS_ONE_IN, late_one_in: LATE_ONE_IN, heard: Heard::default() }
    }

    /// What somebody beside the pods uses.
    pub(crate) fn beside(&self, now: Time) -> Used {
        self.spells.iter().map(|spell| spell.used(now)).sum()
    }

    /// A kubelet asks for something: whether that fails.
    pub(crate) fn fails(&mut self, id: OpId, op: &Op) -> bool {
        let look = look(op);
        if look == Some(Look::Machine) {
            self.heard.asks(id);
        }
        look.is_some() && self.rng.one_in(self.fails_one_in)
    }

    /// It was looked at for a kubelet what is left of the machine, or who uses that: how late the answer is.
    pub(crate) fn answers(&mut self, now: Time, (life, id): (u32, OpId), look: Look) -> Duration {
        if look == Look::Machine {
            self.heard.is_read(now, life, id);
        }
        if self.rng.one_in(self.late_one_in) { between(&mut self.rng, LATE.0, LATE.1) } else { Duration::ZERO }
    }

    /// A kubelet has started.
    pub(crate) fn begins(&mut self, life: u32) {
        self.heard = Heard::of(life);
    }

    /// Nothing presses any more but pods.
    pub(crate) fn heal(&mut self) {
        self.spells.clear();
        (self.fails_one_in, self.late_one_in) = (0, 0);
    }
}

/// What is looked at for a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// What is left of the machine.
    Machine,
    /// Who uses it.
    Pods,
}

/// What an operation looks at of all this.
pub(crate) fn look(op: &Op) -> Option<Look> {
    match op {
        Op::Host => Some(Look::Machine),
        Op::Usage(_) => Some(Look::Pods),
        _ => None,
    }
}

/// What presses on the nodes, from now on.
pub(crate) fn begin(begun: Time, root: &Rng, options: &Options, nodes: &mut BTreeMap<u8, Node>) {
    if !are_there(&root.fork("workload"), options) {
        return;
    }
    let root = root.fork(PART);
    for (number, node) in nodes {
        let mut rng = root.fork(&node_name(*number));
        let old = (0..rng.below(4)).map(|n| format!("old.sim/image{n}:1"));
        node.images.has_old(old);
        node.low = Some(Low::new(begun, rng, options));
    }
}

/// A pod that uses more and more of something.
fn growing(rng: &mut Rng, name: &str, grows: &str) -> Value {
    let mut object = mounting(name, 1 + rng.below(5), "scratch", "emptyDir", json!({}));
    object["spec"]["containers"][0]["env"] =
        json!([{"name": "STOPS_IN_S", "value": rng.below(5).to_string()}, {"name": GROWS, "value": grows}]);
    object
}

/// Pods that use more and more, one that promises to use nothing, and one that the node cannot do without.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    let soon = |rng: &mut Rng| between(rng, Duration::from_millis(200), safety / 2);
    let want = || Some(("pod", Want::Pod { restarts: true, important: false }));
    for n in 0..1 + rng.below(up_to(4, safety)) {
        let (name, at) = (format!("hog{n}"), soon(rng));
        let grows = if rng.one_in(2) {
            format!("memory {} 6144", 128 + rng.below(2048))
        } else {
            format!("disk {} 61440", 2048 + rng.below(16_384))
        };
        acts.push(create(at, Pod::resource(), growing(rng, &name, &grows), want()));
        let lives = between(rng, Duration::from_secs(5), safety);
        if at + lives < safety && rng.one_in(3) {
            acts.push(delete(at + lives, Pod::resource(), "default", &name, "pod"));
        }
    }
    let at = between(rng, safety / 3, safety);
    let mut light = mounting("light", 1 + rng.below(3), "scratch", "emptyDir", json!({}));
    light["spec"]["containers"][0]["resources"] = json!({});
    acts.push(create(at, Pod::resource(), light, want()));
    let at = soon(rng);
    let mut pillar = growing(rng, "pillar", "memory 512 1024");
    pillar["spec"]["priorityClassName"] = "system-node-critical".into();
    acts.push(create(at, Pod::resource(), pillar, want()));
}

/// Whether a pod has failed since its node was low on something, or was when it came.
pub(crate) fn was_evicted(pod: &Value, nodes: &BTreeMap<u8, Node>) -> bool {
    let is_evicted = text(pod, "/status/phase") == "Failed" && text(pod, "/status/reason") == "Evicted";
    is_evicted && named(nodes, text(pod, "/spec/nodeName")).is_some_and(|node| node.low.is_some())
}

/// What is left of it where nothing presses any more: each node takes pods again, and who was evicted does not run.
pub(crate) fn lack(observer: &Observer, nodes: &BTreeMap<u8, Node>) -> Option<String> {
    let low = || nodes.values().filter(|node| node.low.is_some() && !node.gone);
    low().next()?;
    let evicted: BTreeSet<&str> = observer.all("pod").filter(|pod| was_evicted(pod, nodes)).map(uid).collect();
    low().find_map(|node| {
        if let Some(container) = node.runtime.running().find(|c| evicted.contains(&*c.record.pod.uid)) {
            return Some(format!("{} of the evicted pod {} runs", container.record.id, container.record.pod));
        }
        let object = observer.get("node", &node_name(node.number))?;
        let holds = |(kind, taint): &(&str, &str)| {
            let taints = object.pointer("/spec/taints").and_then(Value::as_array);
            conditions(object).any(|c| c["type"] == *kind && c["status"] == "True")
                || taints.into_iter().flatten().any(|t| t["key"] == *taint)
        };
        LOW.iter().find(|low| holds(low)).map(|(kind, _)| format!("{} has or had {kind}", key_of(object)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attacher::Rack;
    use crate::options::NodeFaults;

    fn grows(said: &str) -> Option<Growth> {
        Growth::of(&[(GROWS.to_owned(), said.to_owned())])
    }

    #[test]
    fn what_a_container_uses_follows_from_how_long_it_has_run() {
        let (memory, disk) = (|mib: u64| (mib << 20, 0), |mib: u64| (0, mib << 20));
        for (said, ran_ms, runs, expected) in [
            ("memory 100 250", 0, true, memory(0)),
            ("memory 100 250", 1500, true, memory(150)),
            ("memory 100 250", 9000, true, memory(250)),
            ("memory 100 250", 1500, false, memory(0)),
            ("disk 100 250", 1500, false, disk(150)),
        ] {
            let used = grows(said).map(|growth| growth.used(Duration::from_millis(ran_ms), runs)).unwrap_or_default();
            assert_eq!((used.memory_bytes, used.disk_bytes), expected, "{said}, {ran_ms} ms, {runs}");
        }
        assert_eq!([grows("time 1 1"), grows("memory 1"), grows("")], [None; 3]);
    }

    /// Each spell leaves less than its kubelet lets pass, and only for as long as it lasts.
    #[test]
    fn a_spell_leaves_too_little() {
        let (begun, limits) = (Time::from_unix_s(1000), thresholds());
        let node = |spell: Spell| {
            let mut node = Node::new(1, begun, Rng::new(1), NodeFaults::none(), Rack::default());
            let low =
                Low { spells: vec![spell], rng: Rng::new(1), fails_one_in: 0, late_one_in: 0, heard: Heard::default() };
            node.low = Some(low);
            node
        };
        for (what, is_deep, signal, is_hard) in [
            (Short::Memory, true, Signal::MemoryAvailable, true),
            (Short::Memory, false, Signal::MemoryAvailable, false),
            (Short::Disk, true, Signal::NodefsAvailable, true),
            (Short::Inodes, true, Signal::NodefsInodesFree, true),
            (Short::Pids, true, Signal::PidAvailable, true),
        ] {
            let until = begun + Duration::from_secs(10);
            let node = node(Spell { from: begun, until, what, is_deep });
            for (at, is_low) in [(begun, true), (until, false)] {
                let Some((left, all)) = signal.read(&node.facts(at)) else { panic!("{what:?} is not counted") };
                let hard = limits.hard.get(&signal).is_some_and(|least| left < least.of(all));
                let soft = limits.soft.get(&signal).is_some_and(|(least, _)| left < least.of(all));
                assert_eq!((hard, hard || soft), (is_hard && is_low, is_low), "{what:?} at {at:?}: {left} of {all}");
            }
        }
    }

    #[test]
    fn nodes_that_run_low_keep_their_promises() {
        let safety = Duration::from_secs(60);
        let usual = Options { machines: false, only: Some(vec![PART]), safety, keep_trace: true, ..Options::default() };
        let mut evictions = 0;
        for seed in 1..7 {
            let outcome = crate::world::run(seed, &usual);
            assert!(outcome.failure.is_none(), "{}", outcome.failure.map(|f| f.to_string()).unwrap_or_default());
            evictions += outcome.trace.text().matches("kubelet evicts").count();
        }
        assert!(evictions > 3, "{evictions} pods were evicted");
    }

    #[test]
    fn it_is_there_in_a_quarter_of_runs_without_machines() {
        let count =
            |options: &Options| (0..400).filter(|seed| are_there(&Rng::new(*seed).fork("workload"), options)).count();
        let pods = Options { machines: false, ..Options::default() };
        assert!((70..130).contains(&count(&pods)), "{}", count(&pods));
        for (what, options) in [
            ("machines", Options { machines: true, ..pods.clone() }),
            ("no faults", Options { faults: false, ..pods.clone() }),
            ("no part", Options { only: Some(vec!["pods"]), ..pods.clone() }),
            ("another bug", Options { plant: crate::plants::PLANTS.first(), ..pods.clone() }),
        ] {
            assert_eq!(count(&options), 0, "{what}");
        }
        assert_eq!(count(&Options { only: Some(vec![PART]), ..pods }), 400);
    }
}
