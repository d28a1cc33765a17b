//! Small runs: a slice of the system at work for seconds, in trouble all the time.
//!
//! ```text
//!   base: one of a few clusters, at rest ──seed──▶ people work, everything fails ──▶ nothing fails ──▶ all is as it was asked
//!         │                                         4 to 12 s, a part or two of the work               to be, and stays so
//!         └── played once; every run of it goes on in a copy of the process ([`fork`])
//! ```
//!
//! A whole run is mostly a cluster that starts and heartbeats. Here both are shared: all runs with the same base begin with the
//! very same cluster, all of whose processes have started and know everything, and what happens from there on is the seed's alone.
//! How processes start is played all the same, since they are killed, machines are, and API servers. Nothing is made so that a
//! planted bug shows: a bug is found because such runs are many.

mod batch;
mod fork;

use std::time::Duration;

use carrack_engine::Rng;

use crate::chance::between;
use crate::options::{NetFaults, Options, Swarm};

pub use batch::{Brief, play};

/// How long anything may fail, at the least and at the most.
const SAFETY: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(12));
/// No fault that has a length is longer.
const LONGEST: Duration = Duration::from_secs(6);
/// How many times as often everything fails as in a whole run.
const DENSER: u64 = 6;

/// What there is beside API server, scheduler and controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whole nodes.
    Nodes,
    /// Whole nodes that run machines.
    Machines,
    /// Hollow nodes.
    Workloads,
    /// Hollow nodes with GPUs.
    Gpus,
    /// Storage that only pretends.
    Clones,
    /// The same, and machines that run.
    Copies,
}

/// A slice of the system: what is there, and which parts of the work are done, one or two in a run.
struct Slice {
    kind: Kind,
    /// None: the work of this kind has no parts.
    parts: &'static [&'static str],
}

const fn slice(kind: Kind, parts: &'static [&'static str]) -> Slice {
    Slice { kind, parts }
}

const SLICES: [Slice; 13] = [
    slice(Kind::Nodes, &["pods"]),
    slice(Kind::Nodes, &["claims", "tenants"]),
    slice(Kind::Nodes, &["growth", "tenants"]),
    slice(Kind::Nodes, &["settings", "tokens"]),
    slice(Kind::Nodes, &["parents", "namespaces", "pods"]),
    slice(Kind::Machines, &["machines", "sets", "keepers", "steady"]),
    slice(Kind::Workloads, &["deployments", "stateful", "daemon"]),
    slice(Kind::Workloads, &["jobs", "times", "endings"]),
    slice(Kind::Workloads, &["claims", "stateful", "scratch"]),
    slice(Kind::Workloads, &["services", "budgets", "quotas"]),
    slice(Kind::Gpus, &[]),
    slice(Kind::Clones, &[]),
    slice(Kind::Copies, &[]),
];

/// How many clusters there are of each slice: with one or several nodes and API servers, with elections or without, with clocks
/// that are apart or not, and so on.
const VARIANTS: u64 = 4;

/// One of the clusters that runs begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Base(u64);

impl Base {
    /// That of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed % (SLICES.len() as u64 * VARIANTS))
    }

    fn slice(self) -> &'static Slice {
        let number = usize::try_from(self.0 / VARIANTS).unwrap_or(0);
        &SLICES[number.min(SLICES.len() - 1)]
    }

    /// How long it is left alone at the least. CronJobs are due when a minute is over.
    pub(crate) fn rests(self) -> Duration {
        Duration::from_secs(if self.slice().parts.contains(&"times") { 52 } else { 6 })
    }

    /// What decides its beginning.
    pub(crate) fn root(self) -> Rng {
        Rng::new(self.0).fork("base")
    }

    /// What it is like, and the work in it.
    pub(crate) fn options(self, options: &Options) -> Options {
        let kind = self.slice().kind;
        Options {
            machines: matches!(kind, Kind::Machines | Kind::Clones | Kind::Copies),
            workloads: kind == Kind::Workloads,
            gpus: kind == Kind::Gpus,
            whole: false,
            clones: matches!(kind, Kind::Clones | Kind::Copies),
            copies: kind == Kind::Copies,
            swarm: false,
            ..options.clone()
        }
    }

    /// The cluster before anything fails.
    pub(crate) fn swarm(self, options: &Options) -> Swarm {
        let mut swarm = Swarm::draw(&self.root(), &Options { plant: None, ..options.clone() });
        swarm.heal();
        swarm
    }
}

/// What a seed chooses of the work in its base.
pub(crate) fn options(seed: u64, root: &Rng, options: &Options) -> Options {
    let mut rng = root.fork("small");
    let parts = Base::of(seed).slice().parts;
    let mut pick = || parts.get(usize::try_from(rng.below(parts.len() as u64)).unwrap_or(0)).copied();
    let (first, second) = (pick(), pick());
    let only = first.into_iter().chain(second).collect();
    let safety = between(&mut rng, SAFETY.0, SAFETY.1);
    Options { safety, only: Some(only), ..options.clone() }
}

/// What fails in a run that begins with a cluster like this one.
pub(crate) fn swarm(root: &Rng, options: &Options, base: &Swarm) -> Swarm {
    let drawn = Swarm::draw(root, &Options { plant: None, ..options.clone() });
    let denser = |one_in: u64| if one_in == 0 { 0 } else { one_in.div_ceil(DENSER).max(2) };
    let sooner = |mean: Option<Duration>| mean.map(|mean| mean / u32::try_from(DENSER).unwrap_or(1));
    let mut rng = root.fork("small swarm");
    let timeout = [2, 5, 30][usize::try_from(rng.below(3)).unwrap_or(0)];
    let mut swarm = Swarm { longest: LONGEST, ..drawn };
    let net = &mut swarm.net;
    *net = NetFaults {
        timeout: Duration::from_secs(timeout),
        lose_request_one_in: denser(net.lose_request_one_in),
        lose_reply_one_in: denser(net.lose_reply_one_in),
        late_one_in: denser(net.late_one_in),
        repeat_one_in: denser(net.repeat_one_in),
        watch_lags_one_in: denser(net.watch_lags_one_in),
        watch_life: net.watch_life / 4,
        ..*net
    };
    swarm.node.fail_one_in = denser(swarm.node.fail_one_in);
    swarm.crash_one_in_effects = denser(swarm.crash_one_in_effects);
    for mean in swarm.intervals.all() {
        *mean = sooner(*mean);
    }
    swarm.with_cluster_of(base)
}
