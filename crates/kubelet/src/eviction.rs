//! Eviction: when the node runs low on memory, disk or processes, and which pod goes first
//! (<https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/>).
//!
//! ```text
//!  facts of the machine ─▶ thresholds that are crossed (soft ones for their grace period) ─▶ conditions
//!                                      └─▶ images that nobody uses go ─▶ usage of pods ─▶ the first in rank ends
//! ```
//!
//! One pod at a time: the next one is chosen once the last one has stopped, or has not for long, and the facts were read since. A
//! threshold that called for an eviction does so until there is more than it by what is to be won back
//! (`evictionMinimumReclaim`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use carrack_engine::Time;

use crate::runtime::{HostFacts, Uid};

/// What may run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Memory that can be had without swapping.
    MemoryAvailable,
    /// Memory that is left of what all pods together may have, where that is bounded.
    AllocatableMemoryAvailable,
    /// Bytes of the kubelet's file system.
    NodefsAvailable,
    /// Inodes of the kubelet's file system.
    NodefsInodesFree,
    /// Bytes of the images' file system.
    ImagefsAvailable,
    /// Inodes of the images' file system.
    ImagefsInodesFree,
    /// Process ids.
    PidAvailable,
}

/// A condition of the node that comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Condition {
    /// MemoryPressure.
    Memory,
    /// DiskPressure.
    Disk,
    /// PIDPressure.
    Pid,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::PidAvailable,
    ];

    /// Its name in the kubelet's configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The condition that it shows as.
    #[must_use]
    pub fn condition(self) -> Condition {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => Condition::Memory,
            Self::PidAvailable => Condition::Pid,
            _ => Condition::Disk,
        }
    }

    /// What pods are short of then, in the words of the API.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// Whether some of it may be had without a pod going: containers that are over, and images, lie on that disk (upstream's
    /// `buildSignalToNodeReclaimFuncs`). Where images have a file system of their own, so have containers' layers.
    #[must_use]
    pub fn is_won_back_without_pods(self, images_apart: bool) -> bool {
        match self {
            Self::ImagefsAvailable | Self::ImagefsInodesFree => true,
            Self::NodefsAvailable | Self::NodefsInodesFree => !images_apart,
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable | Self::PidAvailable => false,
        }
    }

    /// How much is left, and how much there is; none where it is not counted.
    #[must_use]
    pub fn read(self, h: &HostFacts) -> Option<(u64, u64)> {
        let (left, all) = match self {
            Self::MemoryAvailable => (h.memory_available_bytes, h.memory_bytes),
            Self::AllocatableMemoryAvailable => (h.pods_memory_available_bytes, h.pods_memory_bytes),
            Self::NodefsAvailable => (h.disk_available_bytes, h.disk_bytes),
            Self::NodefsInodesFree => (h.inodes_free, h.inodes),
            Self::ImagefsAvailable => (h.image_disk_available_bytes, h.image_disk_bytes),
            Self::ImagefsInodesFree => (h.image_inodes_free, h.image_inodes),
            Self::PidAvailable => (h.pids_max.saturating_sub(h.pids), h.pids_max),
        };
        (all > 0).then_some((left, all))
    }
}

/// How much must be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// So many bytes, inodes or process ids.
    Amount(u64),
    /// So many hundredths of a percent of all.
    OfAll(u64),
    /// The same, but no more than an amount.
    OfAllAtMost(u64, u64),
}

impl Least {
    /// As an amount.
    #[must_use]
    pub fn of(self, all: u64) -> u64 {
        match self {
            Self::Amount(n) => n,
            Self::OfAll(share) => u64::try_from(u128::from(all) * u128::from(share) / 10_000).unwrap_or(u64::MAX),
            Self::OfAllAtMost(share, most) => Self::OfAll(share).of(all).min(most),
        }
    }
}

/// When to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Below these pods are ended at once.
    pub hard: BTreeMap<Signal, Least>,
    /// Below these, for the time given, pods are ended with a grace period.
    pub soft: BTreeMap<Signal, (Least, Duration)>,
    /// Who has crossed one has crossed it until there is so much more than that again.
    pub reclaim: BTreeMap<Signal, Least>,
    /// Longest grace period of a pod that a soft threshold ends, in seconds.
    pub max_pod_grace_s: i64,
    /// How long a condition stays after its threshold was last crossed.
    pub transition: Duration,
}

impl Default for Thresholds {
    /// Upstream's shares, but on large disks no more than some gigabytes: a tenth of a terabyte is no emergency.
    fn default() -> Self {
        Self {
            hard: BTreeMap::from([
                (Signal::MemoryAvailable, Least::Amount(100 << 20)),
                (Signal::NodefsAvailable, Least::OfAllAtMost(1000, 2 << 30)),
                (Signal::NodefsInodesFree, Least::OfAll(500)),
                (Signal::ImagefsAvailable, Least::OfAllAtMost(1500, 3 << 30)),
                (Signal::ImagefsInodesFree, Least::OfAll(500)),
                (Signal::PidAvailable, Least::OfAll(500)),
            ]),
            soft: BTreeMap::new(),
            reclaim: BTreeMap::new(),
            max_pod_grace_s: 0,
            transition: Duration::from_secs(300),
        }
    }
}

/// What is set for a signal. What all pods have is to leave as much as the machine itself, unless it is said otherwise (upstream's
/// `addAllocatableThresholds`).
fn of_signal(set: &BTreeMap<Signal, Least>, signal: Signal) -> Option<Least> {
    let of_machine = set.get(&Signal::MemoryAvailable).filter(|_| signal == Signal::AllocatableMemoryAvailable);
    set.get(&signal).or(of_machine).copied()
}

/// Which conditions hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// MemoryPressure.
    pub memory: bool,
    /// DiskPressure.
    pub disk: bool,
    /// PIDPressure.
    pub pid: bool,
}

/// A threshold that is crossed and calls for an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossed {
    /// Of what.
    pub signal: Signal,
    /// A hard one.
    pub hard: bool,
    /// How much there should be.
    pub least: u64,
    /// How much there is.
    pub left: u64,
}

/// What is remembered between two readings.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    soft_since: BTreeMap<Signal, Time>,
    /// Thresholds that called for an eviction when the facts were read last, the hard ones marked.
    met: BTreeSet<(Signal, bool)>,
    last: BTreeMap<Condition, Time>,
    /// When the facts were read last.
    read_at: Time,
}

impl Watch {
    /// Takes new facts; returns the thresholds that call for an eviction, memory first.
    pub fn observe(&mut self, now: Time, host: &HostFacts, thresholds: &Thresholds) -> Vec<Crossed> {
        let mut out: Vec<Crossed> = Vec::new();
        let before = std::mem::take(&mut self.met);
        self.read_at = now;
        for signal in Signal::ALL {
            let Some((left, all)) = signal.read(host) else { continue };
            let is_below = |least: u64, hard: bool| {
                let reclaim = of_signal(&thresholds.reclaim, signal).filter(|_| before.contains(&(signal, hard)));
                let more = reclaim.map_or(0, |l| l.of(all));
                left < least.saturating_add(more)
            };
            let hard = of_signal(&thresholds.hard, signal).map(|l| l.of(all)).filter(|least| is_below(*least, true));
            let soft = thresholds.soft.get(&signal).map(|(l, grace)| (l.of(all), *grace));
            let soft = soft.filter(|(least, _)| is_below(*least, false));
            if soft.is_none() {
                self.soft_since.remove(&signal);
            }
            let since = soft.map(|_| *self.soft_since.entry(signal).or_insert(now));
            if hard.is_some() || soft.is_some() {
                self.last.insert(signal.condition(), now);
            }
            let over = soft.zip(since).filter(|((_, grace), since)| now.since(*since) >= *grace).map(|(soft, _)| soft);
            self.met.extend(hard.map(|_| (signal, true)).into_iter().chain(over.map(|_| (signal, false))));
            if let Some(least) = hard {
                out.push(Crossed { signal, hard: true, least, left });
            } else if let Some((least, grace)) = over {
                // Without a grace period it is a hard one.
                out.push(Crossed { signal, hard: grace.is_zero(), least, left });
            }
        }
        out
    }

    /// Which conditions hold. None ends while the facts cannot be read: that there is enough again is not known then (upstream looks
    /// at them in `synchronize` alone, which ends early where there is no summary).
    #[must_use]
    pub fn pressure(&self, thresholds: &Thresholds) -> Pressure {
        let holds = |c| self.last.get(&c).is_some_and(|at| self.read_at.since(*at) < thresholds.transition);
        Pressure { memory: holds(Condition::Memory), disk: holds(Condition::Disk), pid: holds(Condition::Pid) }
    }
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Working set, in bytes.
    pub memory_bytes: u64,
    /// Working set of each container, in bytes.
    pub memory: BTreeMap<String, u64>,
    /// Writable layers, logs and local volumes, in bytes.
    pub disk_bytes: u64,
    /// Inodes of these.
    pub inodes: u64,
    /// Of these bytes, those of writable layers.
    pub layer_bytes: u64,
    /// Of these inodes, those of writable layers.
    pub layer_inodes: u64,
    /// Processes.
    pub processes: u64,
    /// Writable layer and logs of each container, in bytes.
    pub containers: BTreeMap<String, u64>,
    /// What is in each emptyDir, in bytes.
    pub empty_dirs: BTreeMap<String, u64>,
}

impl Usage {
    /// Of what a signal is about. Where images have a file system of their own, writable layers lie there, and nothing else of a pod.
    #[must_use]
    pub fn of(&self, signal: Signal, images_apart: bool) -> u64 {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => self.memory_bytes,
            Signal::NodefsAvailable if images_apart => self.disk_bytes.saturating_sub(self.layer_bytes),
            Signal::ImagefsAvailable if images_apart => self.layer_bytes,
            Signal::NodefsInodesFree if images_apart => self.inodes.saturating_sub(self.layer_inodes),
            Signal::ImagefsInodesFree if images_apart => self.layer_inodes,
            Signal::NodefsAvailable | Signal::ImagefsAvailable => self.disk_bytes,
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => self.inodes,
            Signal::PidAvailable => self.processes,
        }
    }
}

/// A pod that might go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub uid: Uid,
    /// Its priority.
    pub priority: i32,
    /// What it requests of what is short.
    pub request: u64,
    /// What it uses of it.
    pub usage: u64,
}

/// Puts the pod that goes first in front: those that use more than they request, then by priority, then by how much
/// they use above their request.
pub fn rank(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|c| {
        let above = i128::from(c.usage) - i128::from(c.request);
        (above <= 0, c.priority, std::cmp::Reverse(above), c.uid.clone())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(memory_available_bytes: u64, disk_available_bytes: u64) -> HostFacts {
        HostFacts {
            memory_bytes: 1 << 30,
            memory_available_bytes,
            disk_bytes: 1000,
            disk_available_bytes,
            ..HostFacts::default()
        }
    }

    #[test]
    fn thresholds_and_conditions() {
        let mut thresholds = Thresholds::default();
        let grace = Duration::from_secs(30);
        thresholds.soft.insert(Signal::MemoryAvailable, (Least::Amount(200 << 20), grace));
        let mut w = Watch::default();
        let mut seen = Vec::new();
        for (s, memory_mib, disk) in [
            (0, 500, 500),
            (10, 150, 500),
            (30, 150, 500),
            (40, 150, 500),
            (50, 50, 500),
            (60, 500, 99),
            (70, 500, 500),
            (400, 500, 500),
        ] {
            let now = Time::from_unix_s(1000 + s);
            let crossed = w.observe(now, &host(memory_mib << 20, disk), &thresholds);
            let p = w.pressure(&thresholds);
            let names: Vec<String> =
                crossed.iter().map(|c| format!("{}{}", c.signal.name(), if c.hard { "!" } else { "" })).collect();
            seen.push(format!("{s}: {} m={} d={}", names.join(","), p.memory, p.disk));
        }
        assert_eq!(
            seen,
            [
                "0:  m=false d=false",
                "10:  m=true d=false",
                "30:  m=true d=false",
                "40: memory.available m=true d=false",
                "50: memory.available! m=true d=false",
                "60: nodefs.available! m=true d=true",
                "70:  m=true d=true",
                "400:  m=false d=false",
            ]
        );
    }

    #[test]
    fn a_condition_ends_with_a_reading_and_not_with_time() {
        let (thresholds, mut w) = (Thresholds::default(), Watch::default());
        let (begun, full) = (Time::from_unix_s(1000), host(50 << 20, 500));
        assert_eq!(w.pressure(&thresholds), Pressure::default());
        w.observe(begun, &full, &thresholds);
        for (after_s, host, holds) in [
            (290, Some(host(500 << 20, 500)), true),
            // Nothing can be read for long.
            (2000, None, true),
            (2010, Some(full), true),
            (2300, Some(host(500 << 20, 500)), true),
            (2310, Some(host(500 << 20, 500)), false),
        ] {
            if let Some(host) = &host {
                w.observe(begun + Duration::from_secs(after_s), host, &thresholds);
            }
            assert_eq!(w.pressure(&thresholds).memory, holds, "after {after_s} s");
        }
    }

    /// What a node with 1000 bytes of disk shows, reading after reading, ten seconds apart: `!` stands for a hard threshold.
    fn check_disk(what: &str, thresholds: &Thresholds, readings: &[(u64, &str)]) {
        let mut w = Watch::default();
        for (n, (left, expected)) in (0..).zip(readings) {
            let crossed = w.observe(Time::from_unix_s(1000 + 10 * n), &host(1 << 29, *left), thresholds);
            let shown: Vec<String> =
                crossed.iter().map(|c| format!("{}{}", c.least, if c.hard { "!" } else { "" })).collect();
            assert_eq!(shown.join(" "), *expected, "{what}: reading {n}, {left} left");
        }
    }

    #[test]
    fn a_threshold_that_was_crossed_is_crossed_until_enough_is_won_back() {
        let none = Thresholds { hard: BTreeMap::new(), ..Thresholds::default() };
        let disk = |least| BTreeMap::from([(Signal::NodefsAvailable, least)]);
        let soft =
            |grace_s| BTreeMap::from([(Signal::NodefsAvailable, (Least::Amount(200), Duration::from_secs(grace_s)))]);
        let hard = Thresholds { hard: disk(Least::Amount(100)), ..none.clone() };
        check_disk("nothing more", &hard, &[(100, ""), (99, "100!"), (100, ""), (99, "100!")]);
        let more = Thresholds { reclaim: disk(Least::Amount(50)), ..hard.clone() };
        check_disk("more", &more, &[(120, ""), (99, "100!"), (149, "100!"), (150, ""), (149, ""), (99, "100!")]);
        let share = Thresholds { reclaim: disk(Least::OfAll(500)), ..hard.clone() };
        check_disk("a share more", &share, &[(99, "100!"), (149, "100!"), (150, "")]);
        // A soft one counts from when it was crossed, also while the hard one was, and what is to be won back from when it called.
        let both = Thresholds { soft: soft(20), ..more.clone() };
        check_disk(
            "both",
            &both,
            &[(99, "100!"), (160, ""), (160, "200"), (249, "200"), (250, ""), (199, ""), (249, "")],
        );
        check_disk("soft without grace", &Thresholds { soft: soft(0), ..none }, &[(199, "200!"), (200, "")]);
    }

    #[test]
    fn pods_together_leave_as_much_of_their_share_as_the_machine_has_to() {
        let share = |left: u64, all: u64| HostFacts {
            pods_memory_available_bytes: left << 20,
            pods_memory_bytes: all << 20,
            ..host(500 << 20, 500)
        };
        for (left, all, expected) in [(99, 1000, true), (100, 1000, false), (0, 0, false)] {
            let crossed = Watch::default().observe(Time::from_unix_s(1), &share(left, all), &Thresholds::default());
            let named: Vec<_> = crossed.iter().map(|c| (c.signal, c.signal.condition())).collect();
            let one = [(Signal::AllocatableMemoryAvailable, Condition::Memory)];
            assert_eq!(named, if expected { &one[..] } else { &[] }, "{left} of {all}");
        }
    }

    #[test]
    fn disks_are_used_by_what_lies_there() {
        let usage = Usage { disk_bytes: 100, layer_bytes: 70, inodes: 9, layer_inodes: 4, ..Usage::default() };
        for (signal, together, apart) in [
            (Signal::NodefsAvailable, 100, 30),
            (Signal::ImagefsAvailable, 100, 70),
            (Signal::NodefsInodesFree, 9, 5),
            (Signal::ImagefsInodesFree, 9, 4),
        ] {
            assert_eq!((usage.of(signal, false), usage.of(signal, true)), (together, apart), "{signal:?}");
        }
        for (signal, together, apart) in [
            (Signal::MemoryAvailable, false, false),
            (Signal::NodefsAvailable, true, false),
            (Signal::NodefsInodesFree, true, false),
            (Signal::ImagefsAvailable, true, true),
        ] {
            let won_back = [false, true].map(|apart| signal.is_won_back_without_pods(apart));
            assert_eq!(won_back, [together, apart], "{signal:?}");
        }
    }

    #[test]
    fn who_goes_first() {
        let c = |name: &str, priority, request, usage| Candidate { uid: name.into(), priority, request, usage };
        let mut all = vec![
            c("within", 0, 100, 90),
            c("far above", 0, 100, 500),
            c("above", 0, 100, 150),
            c("important above", 10, 0, 900),
            c("low within", -5, 100, 100),
        ];
        rank(&mut all);
        let names: Vec<&str> = all.iter().map(|c| &*c.uid).collect();
        assert_eq!(names, ["far above", "above", "important above", "low within", "within"]);
    }
}
