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
use carrack_types::resource::Resource;

use crate::chance::between;
use crate::options::{LATEST, NetFaults, Options, Swarm};
use crate::role::Role;

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
#[derive(Debug)]
pub(crate) struct Slice {
    kind: Kind,
    /// None: the work of this kind has no parts.
    parts: &'static [&'static str],
    /// Who takes part besides, of the controllers of the core kinds. Each of them has watches that cost more than its work.
    controllers: &'static [&'static [&'static str]],
    /// The kinds, by their plural names, of which garbage is collected.
    collected: &'static [&'static str],
}

/// Controllers that look after nodes and their pods, which are everywhere.
const ALWAYS: &[&str] =
    &["node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector", "service-account"];
const GARBAGE: &[&str] = &["generic-garbage-collector"];
const NAMESPACES: &[&str] = &["generic-garbage-collector", "namespace"];
const VOLUMES: &[&str] = &[
    "persistentvolume-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
];
const DISKS: &[&str] = &["persistentvolume-attach-detach-controller", "flexvolume-attach-detach-controller"];
const DEPLOYMENTS: &[&str] = &["generic-garbage-collector", "deployment", "replicaset"];
const AUTOSCALER: &[&str] = &["horizontal-pod-autoscaler-controller"];
const SETS: &[&str] = &["replicationcontroller", "statefulset", "daemonset"];
const JOBS: &[&str] = &["job", "cronjob", "ttl-after-finished"];
const SERVICES: &[&str] = &["endpointslice-controller", "endpoint-controller"];
const BUDGETS: &[&str] = &["disruption-controller", "stale-disruption", "resourcequota-controller"];

const OF_WORKLOADS: &[&str] = &[
    "pods",
    "replicasets",
    "deployments",
    "statefulsets",
    "daemonsets",
    "replicationcontrollers",
    "controllerrevisions",
    "jobs",
    "cronjobs",
    "persistentvolumeclaims",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "resourcequotas",
    "services",
    "endpoints",
];

const SLICES: [Slice; 13] = [
    Slice { kind: Kind::Nodes, parts: &["pods"], controllers: &[DISKS], collected: &[] },
    Slice { kind: Kind::Nodes, parts: &["claims"], controllers: &[VOLUMES, DISKS], collected: &[] },
    Slice {
        kind: Kind::Nodes,
        parts: &["growth", "tenants"],
        controllers: &[VOLUMES, &["persistentvolume-expander-controller"]],
        collected: &[],
    },
    Slice { kind: Kind::Nodes, parts: &["settings", "tokens", "resizes"], controllers: &[], collected: &[] },
    Slice {
        kind: Kind::Nodes,
        parts: &["parents", "namespaces"],
        controllers: &[NAMESPACES],
        collected: &["pods", "configmaps", "secrets", "serviceaccounts"],
    },
    Slice {
        kind: Kind::Machines,
        parts: &["machines", "reruns", "sets", "keepers", "steady"],
        controllers: &[GARBAGE, VOLUMES, DISKS],
        collected: &["pods", "persistentvolumeclaims"],
    },
    Slice {
        kind: Kind::Workloads,
        parts: &["deployments", "stateful", "daemon"],
        controllers: &[DEPLOYMENTS, AUTOSCALER, SETS, VOLUMES, DISKS],
        collected: OF_WORKLOADS,
    },
    Slice {
        kind: Kind::Workloads,
        parts: &["jobs", "times"],
        controllers: &[GARBAGE, JOBS],
        collected: &["pods", "jobs", "cronjobs"],
    },
    Slice {
        kind: Kind::Workloads,
        parts: &["claims", "stateful", "scratch"],
        controllers: &[DEPLOYMENTS, SETS, VOLUMES, DISKS, &["ephemeral-volume-controller"]],
        collected: OF_WORKLOADS,
    },
    Slice {
        kind: Kind::Workloads,
        parts: &["services", "budgets", "quotas", "endings"],
        controllers: &[DEPLOYMENTS, SETS, NAMESPACES, JOBS, SERVICES, BUDGETS],
        collected: OF_WORKLOADS,
    },
    Slice { kind: Kind::Gpus, parts: &[], controllers: &[], collected: &[] },
    Slice {
        kind: Kind::Clones,
        parts: &[],
        controllers: &[GARBAGE, VOLUMES],
        collected: &["pods", "persistentvolumeclaims"],
    },
    Slice {
        kind: Kind::Copies,
        parts: &[],
        controllers: &[GARBAGE, VOLUMES],
        collected: &["pods", "persistentvolumeclaims"],
    },
];

/// Parts of the work that are done beside others alone, each where one of these may be.
const BESIDE: [(&str, &str); 15] = [
    ("machines", crate::fickle::PART),
    ("machines", crate::imports::PART),
    ("machines", crate::backups::PART),
    ("machines", crate::backups::COPIED),
    ("machines", crate::drains::PART),
    ("pods", crate::drains::PART),
    ("settings", crate::drains::PART),
    ("pods", crate::statics::PART),
    ("settings", crate::statics::PART),
    ("pods", crate::pressure::PART),
    ("claims", crate::pressure::PART),
    ("tenants", crate::pressure::PART),
    ("quotas", crate::controllers::EDITS),
    ("scratch", crate::controllers::LIMITS),
    ("deployments", crate::controllers::AUTOSCALERS),
];

impl Slice {
    /// Whether a controller of the core kinds takes part.
    pub(crate) fn has_controller(&self, name: &str) -> bool {
        ALWAYS.contains(&name) || self.controllers.iter().any(|group| group.contains(&name))
    }

    /// Whether garbage of a kind is collected.
    pub(crate) fn collects(&self, plural: &str) -> bool {
        self.collected.contains(&plural)
    }

    /// The built-in kinds of which no garbage is collected here: nobody makes any, or they own nothing that there is.
    pub(crate) fn ignored(&self) -> Vec<Resource> {
        let has_machines = matches!(self.kind, Kind::Machines | Kind::Clones | Kind::Copies);
        let is_of_machines = |group: &str| has_machines && group.ends_with("kubevirt.io");
        let rows = carrack_schema::table::builtin().iter().filter_map(|row| row.resource());
        rows.filter(|found| !self.collects(&found.plural) && !is_of_machines(&found.group)).collect()
    }

    /// Whether a process is part of it that is beside others of its kind alone.
    pub(crate) fn has(&self, role: Role) -> bool {
        let any = |parts: &[&str]| self.parts.iter().any(|part| parts.contains(part));
        match role {
            Role::Replicas => any(&["parents"]),
            Role::Attacher | Role::StandbyAttacher => any(&["pods", "claims", "steady"]),
            // Machines that are backed up are there beside others, whether storage takes their disks or they are copied.
            Role::LocalStorage(_) => any(&["growth", "tenants", "keepers", "machines"]),
            _ => true,
        }
    }
}

/// How many clusters there are of each slice: with one or several nodes and API servers, with clocks that are apart or not, and so
/// on.
const VARIANTS: u64 = 4;
/// In the last one leaders are elected.
const NODES: [u8; VARIANTS as usize] = [1, 1, 2, 3];

/// One of the clusters that runs begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Base(u64);

impl Base {
    /// That of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed % (SLICES.len() as u64 * VARIANTS))
    }

    /// The slice that it is of.
    pub(crate) fn slice(self) -> &'static Slice {
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
        let variant = self.0 % VARIANTS;
        // Whatever a run does without, it begins with the same cluster.
        let whole = Options { plant: None, without: Vec::new(), ..options.clone() };
        let drawn = Swarm::draw(&self.root(), &whole);
        let (elect, standby) = (variant == VARIANTS - 1, drawn.standby || !drawn.elect);
        let least = if options.machines { 2 } else { 1 };
        let nodes = NODES.get(usize::try_from(variant).unwrap_or(0)).copied().unwrap_or(1);
        let mut swarm = Swarm {
            elect,
            standby: elect && standby && !options.gpus,
            standby_scheduler: elect && drawn.standby_scheduler,
            standby_attacher: elect,
            nodes: nodes.max(least),
            forgetful: false,
            reads: false,
            ..drawn
        };
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
    let mut only: Vec<&str> = first.into_iter().chain(second).collect();
    // Beside others alone, and drawn apart, so that those are what they were before there was this.
    for (part, ..) in crate::workload::OF_STARTS {
        if parts.contains(&"settings") && root.fork(part).one_in(3) {
            only.push(part);
        }
    }
    let safety = between(&mut rng, SAFETY.0, SAFETY.1);
    for (part, beside) in BESIDE {
        if parts.contains(&part) && root.fork(beside).one_in(3) {
            only.push(beside);
        }
    }
    Options { safety, only: Some(only), ..options.clone() }
}

/// What fails in a run that begins with a cluster like this one.
pub(crate) fn swarm(root: &Rng, options: &Options, base: &Swarm) -> Swarm {
    let drawn = Swarm::draw(root, &Options { plant: None, ..options.clone() });
    let denser = |one_in: u64| if one_in == 0 { 0 } else { one_in.div_ceil(DENSER).max(2) };
    let sooner = |mean: Duration| mean / u32::try_from(DENSER).unwrap_or(1);
    let mut rng = root.fork("small swarm");
    let timeout = [2, 5, 30][usize::try_from(rng.below(3)).unwrap_or(0)];
    let leisure = [4, 20, 40][usize::try_from(rng.below(3)).unwrap_or(0)];
    // Beside no planted bug but those that he meets.
    let reads = drawn.reads && options.plant.is_none_or(|plant| plant.bug.is_of_reads());
    let mut swarm = Swarm { longest: LONGEST, leisure, flood: 30, reads, ..drawn };
    let net = &mut swarm.net;
    *net = NetFaults {
        timeout: Duration::from_secs(timeout),
        lose_request_one_in: denser(net.lose_request_one_in),
        lose_reply_one_in: denser(net.lose_reply_one_in),
        late_one_in: denser(net.late_one_in),
        latest: LATEST,
        repeat_one_in: denser(net.repeat_one_in),
        denied_one_in: denser(net.denied_one_in),
        watch_lags_one_in: denser(net.watch_lags_one_in),
        // Everybody has many watches: what ends all of them makes more work than all else.
        watch_breaks_one_in: net.watch_breaks_one_in * 3,
        watch_life: net.watch_life / 4,
        ..*net
    };
    swarm.node.fail_one_in = denser(swarm.node.fail_one_in);
    swarm.crash_one_in_effects = denser(swarm.crash_one_in_effects);
    swarm.intervals = swarm.intervals.map(sooner);
    for ends_watches in [&mut swarm.intervals.apiserver_crash, &mut swarm.intervals.expire] {
        *ends_watches = ends_watches.map(|mean| mean * 2);
    }
    swarm.with_cluster_of(base)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What is misnamed would be left out of all runs, and nobody would miss it.
    #[test]
    fn slices_name_what_there_is() {
        let controllers = carrack_controllers::all(&carrack_controllers::Config::default());
        let of_slices = SLICES.iter().flat_map(|slice| slice.controllers.iter().copied().flatten());
        for name in ALWAYS.iter().chain(of_slices) {
            assert!(controllers.iter().any(|controller| controller.name() == *name), "there is no controller {name}");
        }
        let kinds: BTreeSet<String> =
            crate::hosted::collected().into_iter().map(|resource| resource.plural.to_string()).collect();
        for plural in SLICES.iter().flat_map(|slice| slice.collected) {
            assert!(kinds.contains(*plural), "there are no {plural}");
        }
        for (part, beside) in BESIDE {
            assert!(SLICES.iter().any(|slice| slice.parts.contains(&part)), "nothing is beside {beside}");
        }
    }

    /// What is there beside others alone is there in enough of a thousand runs.
    #[test]
    fn what_is_beside_others_is_there() {
        let usual = Options { small: true, ..Options::default() };
        let all = (1..=1300).flat_map(|seed| {
            let own = options(seed, &Rng::new(seed), &Base::of(seed).options(&usual));
            own.only.unwrap_or_default()
        });
        let all: Vec<&str> = all.collect();
        let of_starts = crate::workload::OF_STARTS.into_iter().map(|(part, ..)| part);
        for beside in BESIDE.into_iter().map(|(_, beside)| beside).chain(of_starts) {
            let count = all.iter().filter(|part| **part == beside).count();
            assert!(count > 15, "{beside} is there in {count} runs");
        }
    }
}
