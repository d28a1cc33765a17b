//! What a run is like: what the caller chose, and what the seed chose.
//!
//! Each kind of fault is on in some seeds and off in others, with rates drawn anew ("swarm
//! testing"): a run with everything at once would hide what only shows when some things work.

mod apart;
mod faults;
mod parts;
mod replay;
mod stays;
mod switches;
mod usual;
mod work;

use std::time::Duration;

use carrack_engine::Rng;

use crate::chance::{Delay, between};
use crate::clones::{Mishap, Scene};
use crate::extender::Verbs;
use crate::intervals::Intervals;
use crate::plants::{Bug, Plant};
pub(crate) use faults::{LATEST, NetFaults, NodeFaults, OtherFaults, TIMEOUT};
pub(crate) use parts::Parts;
pub use parts::{PARTS, Part};
pub use switches::{SWITCHES, Switch};

/// What the caller chooses.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether anything fails. Without faults there are delays alone.
    pub faults: bool,
    /// A bug to put in.
    pub plant: Option<&'static Plant>,
    /// How long anything may fail, in simulated time.
    pub safety: Duration,
    /// How long the cluster has to come to what was asked of it, once nothing fails any more.
    pub liveness: Duration,
    /// Whether [`crate::Outcome::trace`] keeps all lines.
    pub keep_trace: bool,
    /// Whether [`crate::Outcome::picture`] is drawn.
    pub draw: bool,
    /// Whether virtual machines are part of the work.
    pub machines: bool,
    /// Whether the work is Deployments and the other workloads, on nodes that only pretend.
    pub workloads: bool,
    /// Whether the work is pods that share GPUs, on nodes that only pretend; beside workloads, where there are these too.
    pub gpus: bool,
    /// Whether there are whole nodes, too, with machines and pods of their own, where other work is on nodes that only pretend.
    pub whole: bool,
    /// Whether the work is snapshots and clones of machines alone, with storage that only pretends and no nodes.
    pub clones: bool,
    /// Whether machines run while they are copied, in such work; on a node that only pretends.
    pub copies: bool,
    /// Whether the seed chooses what the work is, of all the above, and which parts of it there are.
    pub swarm: bool,
    /// Whether runs are small: a slice of all the above that the seed chooses, for seconds; see [`crate::small`].
    pub small: bool,
    /// Which clones, if not those that the seed chooses.
    pub scene: Option<Scene>,
    /// One thing that goes wrong with clones, besides.
    pub mishap: Option<Mishap>,
    /// Whether the controller of clones has a process of its own; the seed decides if nobody else does.
    pub cloner_apart: Option<bool>,
    /// Which parts of the work there are, if not those that the seed chooses.
    pub only: Option<Vec<&'static str>>,
    /// What is left out of what the seed chose, by the names of its [`SWITCHES`].
    pub without: Vec<&'static str>,
    /// Which parts of the work are done, of those that there are, by their names in [`PARTS`]; without it all of them.
    pub kept_parts: Option<Vec<&'static str>>,
    /// When trouble ends, if that is before [`Self::safety`] is over. People do all the same what they would have done.
    pub heal_after: Option<Duration>,
    /// Whether its end is held against that of the same run without trouble, which is played then, too.
    pub compares: bool,
}

impl Options {
    /// Whether there are nodes that only pretend.
    pub(crate) fn has_hollow_nodes(&self) -> bool {
        self.workloads || self.gpus
    }
    /// Whether there are nodes with kubelets, runtimes and disks.
    pub(crate) fn has_whole_nodes(&self) -> bool {
        !self.clones && (self.whole || !self.has_hollow_nodes())
    }
    /// Whether somebody looks after machines, wherever these are.
    pub(crate) fn has_machines(&self) -> bool {
        self.machines && (self.clones || self.has_whole_nodes())
    }

    /// Whether somebody asks for a part of the work by its name.
    pub(crate) fn asks_for(&self, part: &str) -> bool {
        self.only.as_ref().is_some_and(|only| only.contains(&part))
    }

    /// How long anything may fail.
    pub(crate) fn trouble(&self) -> Duration {
        self.heal_after.map_or(self.safety, |after| after.min(self.safety))
    }
    /// The planted bug, where the rest of the run is made so that it shows. Small runs are as they are.
    pub(crate) fn hint(&self) -> Option<Bug> {
        self.plant.filter(|_| !self.small).map(|plant| plant.bug)
    }
}

/// What the seed chose.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    pub nodes: u8,
    /// How many API servers there are, on one store.
    pub servers: usize,
    /// How many requests each serves at the same time, and for how long it is busy with one.
    pub seats: usize,
    pub service: Delay,
    pub net: NetFaults,
    pub node: NodeFaults,
    pub others: OtherFaults,
    pub intervals: Intervals,
    /// One in so many effects is the last of its process.
    pub crash_one_in_effects: u64,
    /// No fault that has a length is longer.
    pub longest: Duration,
    /// How many times as long as a store with a clock this one takes to tell watchers how far they know everything.
    pub leisure: u32,
    /// How often somebody asks at the most who asks too often.
    pub flood: u64,
    /// How far clocks of processes are apart, at most.
    pub skew: Duration,
    pub store_pending_one_in: u64,
    pub store_delay: Delay,
    /// Whether a webhook is asked about pods.
    pub webhook: bool,
    /// One in so many of its answers is wrong.
    pub webhook_wrong_one_in: u64,
    pub webhook_delay: Delay,
    pub elect: bool,
    /// A second process of the controllers takes part.
    pub standby: bool,
    /// The scheduler asks an extender, with these verbs beside its filter.
    pub extender: Option<Verbs>,
    /// A second process of the scheduler takes part.
    pub standby_scheduler: bool,
    /// A second process attaches disks.
    pub standby_attacher: bool,
    /// One launcher in so many hangs for a while just before its machine starts.
    pub launcher_hangs_one_in: u64,
    /// virt-handlers use the watchdogs of their machines: what each makes of the time that it is asked for, in seconds, or
    /// none where there is no device.
    pub watchdogs: Option<[Option<u32>; 3]>,
    /// Nobody names the targets of clones but their controller.
    pub nameless_targets: bool,
    /// The controller of clones has a process of its own.
    pub cloner_apart: bool,
    /// Kubelets say in which zones their nodes are.
    pub zones: bool,
    /// Kubelets keep memory of NUMA nodes for containers.
    pub keeps_memory: bool,
    /// How many images each kubelet pulls at a time; all of them without a number.
    pub parallel_pulls: Option<usize>,
    /// Containers that hold disks do not hear that they are to end when they have just started.
    pub deaf_disks: bool,
    /// Somebody says of instances what only components may say.
    pub meddles: bool,
    /// Somebody who may only read sends what is none.
    pub looked_on: bool,
    /// Somebody reads who has no cache.
    pub reads: bool,
    /// Some pods with GPUs come past the scheduler.
    pub gpu_outsiders: bool,
    /// API servers do not keep all of a pod's status as it was written.
    pub forgetful: bool,
}

impl Swarm {
    fn drawn(root: &Rng, options: &Options) -> Self {
        let mut extender_rng = root.fork("extender");
        let mut rng = root.fork("swarm");
        let rng = &mut rng;
        let mut nodes = 1 + u8::try_from(rng.below(3)).unwrap_or(0);
        let planted = options.plant.map(|p| p.bug);
        let needs_leaders = |bug: Bug| bug.is_of_leaders() || bug == Bug::LeaseIsLife;
        let elect = rng.one_in(2) || planted.is_some_and(needs_leaders);
        // Drawn apart, so that what it is does not change what the others are.
        let needs_one = |bug| matches!(bug, Bug::StoredNominations | Bug::AskedTwice | Bug::StaleProposals);
        let needs_none = |bug| {
            matches!(
                bug,
                Bug::LeakedAssumptions
                    | Bug::DeafQueue
                    | Bug::Restless
                    | Bug::CacheForLedger
                    | Bug::OneNode
                    | Bug::BaselessBindings
                    | Bug::TermlessBindings
                    | Bug::BindingsOverwrite
                    | Bug::CrossedRuntimes
                    | Bug::LateWords
                    | Bug::MistakenAnswers
                    | Bug::DeafNominees
            )
        };
        let asked = extender_rng.one_in(2) && !options.gpus && !planted.is_some_and(needs_none)
            || planted.is_some_and(needs_one);
        let verbs = Verbs {
            prioritize: extender_rng.one_in(2),
            preempt: extender_rng.one_in(2) || planted == Some(Bug::StaleProposals),
            // Who nominates by itself binds by itself.
            bind: extender_rng.one_in(3) && options.plant.is_none(),
            finicky: extender_rng.one_in(2) && options.plant.is_none() && nodes > 1,
        };
        let extender = asked.then_some(verbs);
        let standby_scheduler =
            root.fork("standby scheduler").one_in(2) && elect && options.plant.is_none() && !options.gpus;
        let latency = Delay {
            base: between(rng, Duration::from_micros(100), Duration::from_millis(20)),
            slow_one_in: [0, 10, 100][usize::try_from(rng.below(3)).unwrap_or(0)],
            slow: between(rng, Duration::from_millis(100), Duration::from_secs(3)),
        };
        let operation = Delay {
            base: between(rng, Duration::from_millis(1), Duration::from_millis(100)),
            slow_one_in: [0, 10, 100][usize::try_from(rng.below(3)).unwrap_or(0)],
            slow: Duration::from_secs(5),
        };
        let store_delay = Delay::micros(rng.below(5_000));
        let store_pending_one_in = [0, 1, 4][usize::try_from(rng.below(3)).unwrap_or(0)];
        // Every draw is made whatever the options are, so that one switch does not turn the others.
        let mut on = |least: u64, most: u64| {
            let value = least + rng.below(most - least);
            let on = rng.one_in(2) && options.faults;
            if on { value } else { 0 }
        };
        let mut net = NetFaults {
            latency,
            lose_request_one_in: on(20, 300),
            lose_reply_one_in: on(20, 300),
            late_one_in: on(50, 500),
            latest: LATEST,
            late_binding_one_in: 0,
            repeat_one_in: on(20, 300),
            denied_one_in: apart::denied_one_in(root, options),
            watch_lags_one_in: on(5, 50),
            watch_lag: Duration::from_millis(on(50, 5_000).max(50)),
            watch_breaks_one_in: on(1, 6),
            watch_life: Duration::from_secs(on(5, 60).max(20)),
            timeout: TIMEOUT,
        };
        let mut node = NodeFaults {
            operation,
            fail_one_in: on(20, 300),
            spoils_starts: apart::spoils_starts(root, options),
            plugin_late_one_in: on(2, 8),
            plugin_whims_one_in: apart::plugin_whims_one_in(root, options),
            pre_starts: apart::pre_starts(root, options),
            grows_slowly_one_in: if options.faults { 2 } else { 0 },
            tears_one_in: match planted {
                Some(Bug::TornIsKnown) => 1,
                None if options.faults => 4,
                _ => 0,
            },
            loses_one_in: match planted {
                Some(Bug::UnreadPodsHold | Bug::UnreadVolumesHold) => 1,
                None if options.faults => 4,
                _ => 0,
            },
            lies_one_in: apart::lies_one_in(root, options),
            unkind_one_in: apart::unkind_one_in(root, options),
        };
        let mut crash_one_in_effects = on(100, 2_000);
        let skew = Duration::from_millis(on(10, 3_000));
        let mut mean = |least: u64, most: u64| Some(on(least, most)).filter(|s| *s > 0).map(Duration::from_secs);
        let mut intervals = Intervals {
            crash: mean(2, 40),
            apiserver_crash: mean(20, 120),
            expire: mean(10, 60),
            cut: mean(10, 60),
            reboot: mean(40, 120),
            plugin: mean(10, 60),
            container_exit: mean(10, 60),
            guest: mean(10, 60),
            force_delete: mean(20, 100),
            pause: mean(10, 60),
            ..Intervals::default().with_those_apart(root, options)
        };
        let mut own = root.fork("late bindings");
        if own.one_in(2) && options.faults && options.plant.is_none() {
            net.late_binding_one_in = 2 + own.below(8);
        }
        // Some arrive when their sender's Lease has run out, and somebody else leads.
        if root.fork("how late").one_in(3) && options.plant.is_none() {
            net.latest = LATEST * 3;
        }
        // A guest that has lost its monitor, too, would be watched by nobody.
        let mut own = root.fork("strand");
        let strand =
            own.one_in(4) && options.faults && options.machines && planted.is_none() && intervals.guest.is_none();
        intervals.strand = strand.then(|| between(&mut own, Duration::from_secs(15), Duration::from_secs(60)));
        let mut own = root.fork("watchdogs");
        let of_watchdogs = matches!(planted, Some(Bug::TameWatchdogs | Bug::HalfClosed));
        let guarded = of_watchdogs || own.one_in(2) && options.machines && planted.is_none();
        let watchdogs = guarded.then(|| {
            // One that rounds up, one that does as it is told, none at all.
            let mut draw = || [Some(10), Some(8), None][usize::try_from(own.below(3)).unwrap_or(0)];
            [draw(), draw(), draw()].map(|drawn| drawn.or(of_watchdogs.then_some(8)))
        });
        let mut launcher_hangs_one_in = if strand { 1 + own.below(6) } else { 0 };
        let webhook_wrong_one_in = on(2, 10);
        let webhook_slow = Duration::from_millis(on(100, 5_000));
        let needs_standby = matches!(planted, Some(Bug::EndlessTerms | Bug::ClocksOfAnother | Bug::ActsUnlooked));
        let standby = (rng.one_in(2) || needs_standby) && elect && !options.gpus;
        if options.workloads && options.faults {
            let mut own = root.fork("vanish");
            intervals.vanish =
                own.one_in(2).then(|| between(&mut own, Duration::from_secs(15), Duration::from_secs(60)));
        }
        // A stream of its own, so that what was drawn before there was a webhook is drawn as ever.
        let mut own = root.fork("webhook");
        let webhook = own.one_in(2) && options.plant.is_none();
        let webhook_delay = Delay {
            base: between(&mut own, Duration::from_micros(200), Duration::from_millis(5)),
            slow_one_in: if webhook_slow.is_zero() { 0 } else { 10 },
            slow: webhook_slow,
        };
        let mut own = root.fork("servers");
        let mut servers = 1
            + usize::try_from(own.below(4)).unwrap_or(0) / 2 * usize::from(options.faults)
            + usize::from(options.plant.is_some_and(|p| p.bug == Bug::StaleServer));
        let mut seats = 8 + usize::try_from(own.below(60)).unwrap_or(0);
        let service = Delay::micros(500 + own.below(20_000));
        let flood = own.one_in(2) && options.faults;
        let flood_every = between(&mut own, Duration::from_secs(3), Duration::from_secs(30));
        intervals.flood = Some(flood_every).filter(|_| flood);
        // What a planted bug needs to show.
        match options.plant.map(|plant| plant.bug) {
            Some(Bug::BlindHandler) => {
                // Launcher pods that vanish while their kubelets hang, and other nodes to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals {
                    force_delete: Some(Duration::from_secs(8)),
                    expire: intervals.expire,
                    ..Intervals::default()
                };
            }
            Some(
                Bug::ForgottenCheckpoint
                | Bug::DesiredStateAlone
                | Bug::JudgedAgain
                | Bug::ForgottenMounts
                | Bug::MountsAnew
                | Bug::ForgottenCpus
                | Bug::ForgottenMemory
                | Bug::ForgottenAllocations
                | Bug::ForgottenPulls
                | Bug::ForgottenStops
                | Bug::UnreadServices,
            ) => {
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { crash: Some(Duration::from_secs(2)), ..Intervals::default() };
            }
            Some(
                Bug::FinalRejection
                | Bug::StaleGrants
                | Bug::ForgottenDeletions
                | Bug::ForgottenNetworks
                | Bug::RecordsAreMounts
                | Bug::TornIsKnown
                | Bug::UnreadPodsHold
                | Bug::UnreadVolumesHold
                | Bug::HastyShutdowns,
            ) => {
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { reboot: Some(Duration::from_secs(30)), ..Intervals::default() };
            }
            Some(Bug::DeafObserver | Bug::WordsLost | Bug::UnmountsWhenTold) => {
                nodes = 3;
                servers = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { apiserver_crash: Some(Duration::from_secs(15)), ..Intervals::default() };
            }
            Some(Bug::BrokenPromise | Bug::BuriedAlive) => {
                // Handlers that are cut off, and other nodes to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals { cut: Some(Duration::from_secs(3)), ..Intervals::default() };
            }
            Some(Bug::TameWatchdogs) => {
                // Nodes on which nobody is left who could keep the promise, and other nodes to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals { strand: Some(Duration::from_secs(8)), ..Intervals::default() };
            }
            Some(Bug::LeaseByWallClock) => {
                // Clocks that are set, and other nodes to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals { clock: Some(Duration::from_secs(3)), ..Intervals::default() };
            }
            Some(Bug::EvictedGuests) => {
                crash_one_in_effects = 0;
                intervals = Intervals { evict: Some(Duration::from_secs(3)), ..Intervals::default() };
            }
            Some(Bug::HalfClosed | Bug::RerunsAlways) => {
                // Guests that end and come back where everybody lives.
                crash_one_in_effects = 0;
                intervals = Intervals { guest: Some(Duration::from_secs(5)), ..Intervals::default() };
            }
            Some(Bug::MissingHeartbeat | Bug::StateOfInstances | Bug::SignalsForgotten) => {
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            // Everybody lives on: what they decide, they decide knowing what they did before.
            Some(
                Bug::AdoptedUnasked
                | Bug::DeafNominees
                | Bug::OneHoldsAll
                | Bug::StaleProposals
                | Bug::GoingUnminded
                | Bug::WritingWatches
                | Bug::TenantsChooseGpus
                | Bug::OutdatedStarts
                | Bug::UnfilledDisksStart
                | Bug::ClaimsAddUp
                | Bug::UnfrozenGuests
                | Bug::DeafThaws
                | Bug::BlankCopies
                | Bug::LaunchersByLabel,
            ) => {
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            Some(Bug::Unpaced) => {
                // Agents that come and go, handlers that live on, and answers that come at once.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { chatter: Some(Duration::from_secs(5)), ..Intervals::default() };
                (net.lose_request_one_in, net.lose_reply_one_in, net.late_one_in) = (0, 0, 0);
                (net.latency, net.watch_lags_one_in) = (Delay::millis(2), 0);
            }
            Some(Bug::ForgottenKinds) => {
                // Caches that are behind each other, and collectors that live on.
                crash_one_in_effects = 0;
                intervals = Intervals::default();
                net.watch_lags_one_in = 2;
                net.watch_lag = Duration::from_secs(5);
            }
            Some(Bug::GrowthAside | Bug::GrowthUnheard | Bug::GrowthUnproved) => {
                // A kubelet that lives on, and volumes that are busy for long.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
                node.grows_slowly_one_in = 1;
            }
            Some(Bug::LateWriter) => {
                // Launchers that hang where nobody ends them, and other nodes to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                launcher_hangs_one_in = 1;
                intervals = Intervals { strand: Some(Duration::from_secs(8)), ..Intervals::default() };
            }
            Some(Bug::HollowSuccess) => {
                // Disks whose containers end before anything has begun.
                crash_one_in_effects = 0;
                intervals = Intervals { container_exit: Some(Duration::from_millis(200)), ..Intervals::default() };
            }
            Some(Bug::VanishedNode | Bug::EndedOnDeadNode | Bug::KeptDisks) => {
                // A node with machines that goes for good, and others to go to.
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals { lose: Some(Duration::from_secs(10)), ..Intervals::default() };
            }
            Some(Bug::SnapshotsAtOnce) => {
                // A driver whose calls take their time, and who asks it lives on.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
                node.operation.slow_one_in = 2;
            }
            Some(Bug::ContentForgotten) => {
                // Provisioners that die of what they make, and of nothing else.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            Some(Bug::UnreadFiles | Bug::FailedPullsHold | Bug::PreStartsIgnored) => {
                // Reads, and pulls, that fail, and plugins that do.
                crash_one_in_effects = 0;
                intervals = Intervals::default();
                node.fail_one_in = 20;
            }
            // Wishes that were put off, critical pods, pods that go for others, pods that wait for volumes, pods that find what the
            // first has pulled, containers that end, or guests of a node of which something is said: on one node, where everybody
            // lives on.
            Some(
                Bug::DeferredForever
                | Bug::CriticalEnded
                | Bug::CriticalRefused
                | Bug::LateWords
                | Bug::MistakenAnswers
                | Bug::UnnotedPulls
                | Bug::PullsAtOnce
                | Bug::EndlessSleeps
                | Bug::HooksAside
                | Bug::LateHooks
                | Bug::RestartsAlone
                | Bug::DebuggedAgain
                | Bug::DebuggersForgotten
                | Bug::GatesUnread
                | Bug::ProbesUnnoted
                | Bug::ToldAtOnce
                | Bug::SecretsOverlooked
                | Bug::FirstPages
                | Bug::TaintedAlive,
            ) => {
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            Some(Bug::BelievedAnnotations) => {
                // Kubelets that start anew, and have read their disks before they hear of pods.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { crash: Some(Duration::from_secs(2)), ..Intervals::default() };
                node.operation = Delay::millis(1);
            }
            Some(Bug::StatusesOverwrite) => {
                // A kubelet that lives on and hears late of what others write, and containers of which there is something to tell.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { container_exit: Some(Duration::from_secs(2)), ..Intervals::default() };
                (net.watch_lags_one_in, net.watch_lag) = (2, Duration::from_secs(5));
            }
            // The runtime shows that a container runs before its start is answered.
            Some(Bug::ReadyUnasked) => {
                (nodes, crash_one_in_effects, intervals) = (1, 0, Intervals::default());
                (node.operation.slow_one_in, node.operation.slow) = (3, Duration::from_secs(8));
            }
            Some(Bug::IllDevicesGiven) => {
                // Choices that take long to be written down, of plugins that say something else meanwhile.
                (nodes, crash_one_in_effects) = (1, 0);
                (node.operation.slow_one_in, node.operation.slow) = (3, Duration::from_secs(8));
                intervals = Intervals { moods: Some(Duration::from_secs(2)), ..Intervals::default() };
            }
            Some(Bug::UnwrittenCounts) => {
                // Disks on which a choice cannot be written down.
                (nodes, crash_one_in_effects, node.fail_one_in) = (1, 0, 10);
                intervals = Intervals { full_disk: Some(Duration::from_secs(20)), ..Intervals::default() };
            }
            Some(Bug::SilenceIsWell) => {
                // A runtime that is away, and a kubelet that lives on.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { runtime_away: Some(Duration::from_secs(5)), ..Intervals::default() };
            }
            Some(Bug::HastySandboxes) => {
                // Sandboxes that end under what runs in them, and a kubelet that lives on.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { sandbox: Some(Duration::from_secs(3)), ..Intervals::default() };
            }
            // Listings that lack something, and a kubelet that lives on.
            Some(Bug::UnreadIsGone) => (nodes, crash_one_in_effects, intervals) = (1, 0, Intervals::default()),
            Some(Bug::UnknownIsOver) => {
                // Runtimes that start anew, and a kubelet that lives on.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { runtime_away: Some(Duration::from_secs(5)), ..Intervals::default() };
            }
            Some(Bug::UnreadIsFull | Bug::OutdatedIsCurrent | Bug::EvictsAtOnce | Bug::CriticalEvicted) => {
                // Pods that take long to end, facts that are late, and a kubelet that lives on.
                (nodes, crash_one_in_effects, intervals) = (1, 0, Intervals::default());
                (node.operation.slow_one_in, node.operation.slow) = (3, Duration::from_secs(8));
            }
            Some(Bug::RegistersOnce) => {
                // Drivers that come and go, and kubelets that hear of them once.
                (nodes, crash_one_in_effects) = (1, 0);
                intervals = Intervals { driver_away: Some(Duration::from_secs(5)), ..Intervals::default() };
            }
            // What lies is enough.
            Some(Bug::BelievedDrivers | Bug::SmallVolumes) => {
                (nodes, crash_one_in_effects, intervals) = (1, 0, Intervals::default());
            }
            Some(Bug::RefusedCounts) => {
                crash_one_in_effects = 0;
                intervals = Intervals { full_store: Some(Duration::from_secs(5)), ..Intervals::default() };
            }
            Some(Bug::StoredNominations | Bug::OneNode | Bug::BindingsOverwrite) => nodes = 3,
            Some(Bug::BaselessBindings) => (nodes, net.late_binding_one_in) = (1, 2),
            Some(Bug::LeakedAssumptions) => net.late_binding_one_in = 3,
            Some(Bug::MakesRoom) => nodes = 1,
            Some(Bug::CrossedRuntimes) => {
                nodes = 3;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            Some(Bug::EndlessTerms) => {
                // Leaders that die, and requests of theirs that arrive afterwards.
                net.late_one_in = 8;
                intervals.crash = Some(Duration::from_secs(3));
            }
            Some(Bug::TermlessBindings) => {
                // Bindings that arrive when others lead. Who has sent one dies before it sees to it that this one is not made.
                (net.late_binding_one_in, net.latest) = (2, LATEST * 3);
                intervals = Intervals::default();
            }
            Some(Bug::LeaseIsLife) => intervals.cut = Some(Duration::from_secs(3)),
            Some(Bug::BaselessWrites) => {
                // Pods that are taken away unheard.
                net.watch_lags_one_in = 2;
                net.watch_lag = Duration::from_secs(5);
                intervals.force_delete = Some(Duration::from_secs(3));
            }
            Some(
                Bug::GrantsForgotten
                | Bug::StaleDependents
                | Bug::UnprovedEmptiness
                | Bug::UnreadServers
                | Bug::TakenClaims,
            ) => {
                // Caches that are behind each other.
                net.watch_lags_one_in = 2;
                net.watch_lag = Duration::from_secs(5);
            }
            Some(Bug::SetsBySpec | Bug::EndsForgotten) => {
                net.lose_request_one_in = 8;
                net.lose_reply_one_in = 8;
            }
            // A scheduler that lives on, so often as it wakes.
            Some(Bug::CacheForLedger | Bug::Restless) => crash_one_in_effects = 0,
            Some(Bug::HastyRelease) => net.lose_reply_one_in = 6,
            Some(Bug::OneLine | Bug::TwoForOne) => {
                seats = 8;
                intervals.flood = Some(Duration::from_secs(3));
            }
            Some(Bug::TimesTwice) => net.lose_reply_one_in = 8,
            Some(Bug::RandomCloneNames) => net.lose_reply_one_in = 8,
            Some(Bug::UnwantedCopies) => {
                // Pods that end while what they wait for goes on, and nothing else that would end that too.
                crash_one_in_effects = 0;
                intervals = Intervals { container_exit: Some(Duration::from_secs(1)), ..Intervals::default() };
            }
            Some(Bug::UnreadIsUnwanted | Bug::GuessedLoss) => {
                // Kubelets and attachers that start anew.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { crash: Some(Duration::from_secs(2)), ..Intervals::default() };
            }
            Some(Bug::EndlessCalls) => {
                // Attachers that are cut off in the midst of their calls.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { cut: Some(Duration::from_secs(1)), ..Intervals::default() };
            }
            Some(Bug::StoppedCalls) => {
                // Attachers that are stopped in the midst of their calls.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { pause: Some(Duration::from_secs(1)), ..Intervals::default() };
            }
            Some(Bug::OrphanedCalls) => {
                // Attachers that are killed in the midst of their calls.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals { crash: Some(Duration::from_secs(1)), ..Intervals::default() };
            }
            Some(Bug::MountsUntold) => {
                // Pods that vanish while their disks are mounted.
                nodes = 1;
                intervals.force_delete = Some(Duration::from_secs(3));
            }
            Some(Bug::AmountsForgotten) => intervals.crash = Some(Duration::from_secs(2)),
            Some(Bug::ForgottenEnds) => intervals.container_exit = Some(Duration::from_secs(5)),
            Some(Bug::UnreadIsAbsent) => {
                // What cannot be read is seen to on its way.
                nodes = 1;
                crash_one_in_effects = 0;
                intervals = Intervals::default();
            }
            // Another node to go to, and processes that live on: who starts anew reads of cordons, and of what nodes use.
            Some(Bug::CordonsUnheard | Bug::ReleasesUnheard) => {
                (nodes, crash_one_in_effects, intervals) = (2, 0, Intervals::default());
            }
            Some(Bug::HastyOrphans) => intervals.vanish = Some(Duration::from_secs(15)),
            Some(Bug::ClocksOfAnother) => {
                // Leaders that are cut off, and lead again.
                crash_one_in_effects = 0;
                intervals = Intervals { cut: Some(Duration::from_secs(20)), ..Intervals::default() };
            }
            Some(Bug::ActsUnlooked) => {
                // Leaders that are stopped, and go on.
                crash_one_in_effects = 0;
                intervals = Intervals { stall: Some(Duration::from_secs(10)), ..Intervals::default() };
            }
            Some(Bug::AbsenceRemembered) => {
                // A node that comes and goes, and controllers that live on.
                crash_one_in_effects = 0;
                intervals = Intervals { vanish: Some(Duration::from_secs(40)), ..Intervals::default() };
            }
            Some(
                Bug::StaleServer
                | Bug::StaleReads
                | Bug::LostEvent
                | Bug::ClaimsGo
                | Bug::ClaimsByName
                | Bug::TakesFree
                | Bug::CarelessDetach
                | Bug::CarelessInlineDetach
                | Bug::SharedTokens
                | Bug::ExpiredTokens
                | Bug::PublishedOnce
                | Bug::DeafQueue
                | Bug::ZonesLost
                | Bug::NominationsKept
                | Bug::ChosenBefore
                | Bug::Traceless
                | Bug::AdoptsAnything
                | Bug::RestoreNotCreatedYet
                | Bug::CacheMissIsTerminal
                | Bug::CopiesUnread
                | Bug::StartsWhatIsCopied
                | Bug::CopiesWhatRuns
                | Bug::CopiesOneByOne
                | Bug::UnfrozenDisks
                | Bug::StateLeftBehind
                | Bug::StateUnowned
                | Bug::StateUnminded
                | Bug::SpentStay
                | Bug::NamesClearedEarly
                | Bug::TargetDrawnLate
                | Bug::EndsTakenBack
                | Bug::UnplacedStay
                | Bug::IgnoredUntold
                | Bug::OrphansHeld
                | Bug::AdoptedUnheld
                | Bug::HastySlices
                | Bug::ChargesLost
                | Bug::LimitsKept
                | Bug::LimitsUnheard
                | Bug::BoundsForgotten
                | Bug::SilenceIsZero
                | Bug::HastyOwners
                | Bug::RawNames
                | Bug::UnmountsFirst
                | Bug::GoingIsGone
                | Bug::AskedTwice
                | Bug::Echo
                | Bug::PartsAhead
                | Bug::NewIsAbsent
                | Bug::BeginningsCut
                | Bug::PanicsAtWork
                | Bug::MirrorsEndPods
                | Bug::MirrorsLeft
                | Bug::NamesakesTogether
                | Bug::ReadOnce,
            )
            | None => {}
        }
        // A stream of its own, as above.
        let mut own = root.fork("cloner");
        let apart = own.one_in(2) || planted == Some(Bug::CacheMissIsTerminal);
        let cloner_apart = options.clones && options.cloner_apart.unwrap_or(apart);
        // Elections make many watch events, and have nothing to do with most bugs of clones.
        let plain = options.scene.is_some() || planted.is_some_and(Bug::is_of_clones);
        let elects = !options.clones || !plain && own.one_in(2);
        let (elect, standby) = (elect && elects, standby && elects);
        Self {
            nodes,
            servers,
            seats,
            service,
            net,
            node,
            others: OtherFaults::of(options.faults),
            intervals,
            crash_one_in_effects,
            longest: Duration::MAX,
            leisure: 1,
            flood: 300,
            skew,
            store_pending_one_in,
            store_delay,
            elect,
            standby,
            extender,
            standby_scheduler,
            standby_attacher: elect
                && crate::flex::elects(planted)
                && (planted.is_some() || root.fork("standby attacher").one_in(2)),
            launcher_hangs_one_in,
            watchdogs,
            nameless_targets: root.fork("clones").one_in(3),
            cloner_apart,
            zones: crate::zones::are_there(root, planted),
            keeps_memory: crate::memory::is_kept(root, planted),
            parallel_pulls: crate::pulling::most(root, planted),
            deaf_disks: options.machines && crate::disks::are_deaf(root, options.faults, planted),
            meddles: crate::meddler::is_there(root, options, planted),
            looked_on: crate::onlooker::is_there(root, options, planted),
            reads: crate::reader::is_there(root, options, planted),
            gpu_outsiders: crate::gpu::are_outsiders_there(root, options, planted),
            forgetful: crate::forgetful::is_there(root, options.faults, planted),
            webhook,
            webhook_wrong_one_in,
            webhook_delay,
        }
    }
}
