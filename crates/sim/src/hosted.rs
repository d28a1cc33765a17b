//! A process: a real core, its effects, and how it is made.

use carrack_controllers::Planted;
use carrack_engine::{Core, Effect, Effects, Input, LeaderElector, Manager, Never, Rng, Time};
use carrack_gpu_extender::GpuExtender;
use carrack_hollow::HollowNodes;
use carrack_kubelet::topology::{Policy, Scope};
use carrack_kubelet::{KubeletCore, NodeConfig};
use carrack_scheduler::extender as asking;
use carrack_scheduler::{Config, Limits, Scheduler};
use carrack_storage::asking::{self as calling, Asking};
use carrack_storage::flex::{self, calls};
use carrack_storage::provision::{self, Provisioner};
use carrack_types::resource::Resource;
use carrack_virt::controllers::clone::CloneController;
use carrack_virt::handler::Handler;

use crate::attacher::{Attacher, Rack};
use crate::clones::{Room, Squatter};
use crate::extender::{BIND, Extender, FILTER, PREEMPT, PRIORITIZE, Verbs};
use crate::options::OtherFaults;
use crate::plants::Bug;
use crate::replicas::Replicas;
use crate::role::{Role, node_name};
use crate::small::Slice;
use crate::workload::User;

/// How much a scheduler may have under way: so little that clusters as small as these have it too busy now and then.
const LIMITS: Limits = Limits { in_flight: 6, calls: 6 };

/// What a core observes of its own world.
#[derive(Debug)]
pub(crate) enum OwnIn {
    Scheduler(Box<asking::Answer>),
    Extender(Box<asking::Ask>),
    Gpus(Box<carrack_gpu_extender::Call>),
    Kubelet(Box<carrack_kubelet::In>),
    Handler(Box<carrack_virt::handler::In>),
    Storage(Box<provision::In>),
    Flex(Box<calling::In<calls::Outcome>>),
}

/// What a core does in its own world.
#[derive(Debug)]
pub(crate) enum OwnOut {
    Scheduler(Box<asking::Ask>),
    Extender(Box<asking::Answer>),
    Gpus(Box<carrack_gpu_extender::Reply>),
    Kubelet(Box<carrack_kubelet::Out>),
    Handler(Box<carrack_virt::handler::Out>),
    Storage(Box<provision::Out>),
    Flex(Box<calling::Out<calls::Call>>),
}

/// A core with its effects.
pub(crate) enum Hosted {
    User(Box<User>, Effects<Never>),
    Scheduler(Box<Scheduler>, Effects<asking::Ask>),
    Extender(Box<Extender>, Effects<asking::Answer>),
    Gpus(Box<GpuExtender>, Effects<carrack_gpu_extender::Reply>),
    Manager(Box<Manager>, Effects<Never>),
    Hollow(Box<HollowNodes>, Effects<Never>),
    Kubelet(Box<KubeletCore>, Effects<carrack_kubelet::Out>),
    Handler(Box<Handler>, Effects<carrack_virt::handler::Out>),
    Storage(Box<Provisioner>, Effects<provision::Out>),
    Attacher(Box<Asking<calls::Call>>, Effects<calling::Out<calls::Call>>),
}

/// How the cores are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Controllers and scheduler take part in elections.
    pub elect: bool,
    /// The scheduler asks an extender, with these verbs beside its filter.
    pub extender: Option<Verbs>,
    /// What goes wrong with those that take part.
    pub faults: OtherFaults,
    /// There are workloads.
    pub workloads: bool,
    /// The scheduler asks the extender of GPUs.
    pub gpus: bool,
    /// Storage is that of clones.
    pub clones: bool,
    /// Machines run, on a node of their own.
    pub copies: bool,
    /// The controller of clones has a process of its own.
    pub apart: bool,
    /// virt-handlers use the watchdogs of their machines.
    pub watchdogs: bool,
    /// Kubelets say in which zones their nodes are.
    pub zones: bool,
    /// Kubelets keep memory of NUMA nodes for containers.
    pub keeps_memory: bool,
    /// A kubelet reads manifests of static pods.
    pub reads_manifests: bool,
    /// How many images each kubelet pulls at a time.
    pub parallel_pulls: Option<usize>,
    /// Some disks are of FlexVolume drivers that are called; whether who calls takes part in elections, where others do.
    pub flex: Option<bool>,
    /// What the watchdog of this node's machine is set to, if it was left running.
    pub watchdog_left: Option<std::time::Duration>,
    /// The slice of the system that there is, if that is not all.
    pub slice: Option<&'static Slice>,
    pub bug: Option<Bug>,
}

impl Hosted {
    /// The core of a role, in its how-manieth life.
    pub(crate) fn new(role: Role, life: u32, settings: Settings, root: &Rng, rack: &Rack, room: &Room) -> Option<Self> {
        let rng = root.fork(&format!("core {role} {life}"));
        let elector = || crate::leaders::elector(role, life).filter(|_| settings.elect);
        // In every fourth life of a manager its caches pack nearly all that they know.
        let packs = rng.fork("packs").below(4) == 0;
        // In few runs managers that start anew do little at a time.
        let narrow = life > 1 && settings.bug.is_none() && root.fork("narrow managers").one_in(32);
        let pages = crate::pages::are_small(root, &rng, life, settings.bug);
        let hosted = match role {
            // People are made by the workload.
            Role::User | Role::Flooder | Role::Meddler | Role::Onlooker | Role::Reader | Role::Tenant => return None,
            Role::Scheduler | Role::StandbyScheduler => {
                let mut config = Config::default();
                if let Some(verbs) = settings.extender {
                    let verb = |on: bool, name: &str| if on { name.to_owned() } else { String::new() };
                    config.extenders.push(asking::Extender {
                        filter_verb: FILTER.to_owned(),
                        prioritize_verb: verb(verbs.prioritize, PRIORITIZE),
                        preempt_verb: verb(verbs.preempt, PREEMPT),
                        bind_verb: verb(verbs.bind, BIND),
                        node_cache_capable: true,
                        ..asking::Extender::default()
                    });
                }
                if settings.gpus {
                    config.extenders.push(crate::gpu::extender());
                }
                let core = Scheduler::new(config, rng).with_limits(LIMITS);
                let core = match settings.bug {
                    Some(Bug::StoredNominations) => core.with_planted_stored_nominations(),
                    Some(Bug::LeakedAssumptions) => core.with_planted(carrack_scheduler::Planted::LeakedAssumptions),
                    Some(Bug::DeafQueue) => core.with_planted(carrack_scheduler::Planted::DeafQueue),
                    Some(Bug::Restless) => core.with_planted(carrack_scheduler::Planted::Restless),
                    Some(Bug::LateWords) => core.with_planted(carrack_scheduler::Planted::LateWords),
                    Some(Bug::MistakenAnswers) => core.with_planted(carrack_scheduler::Planted::MistakenAnswers),
                    Some(Bug::DeafNominees) => core.with_planted(carrack_scheduler::Planted::DeafNominees),
                    Some(Bug::StaleProposals) => core.with_planted(carrack_scheduler::Planted::StaleProposals),
                    _ => core,
                };
                let core = match elector() {
                    Some(elector) => core.with_elector(elector),
                    None => core,
                };
                Self::Scheduler(Box::new(core), Effects::new())
            }
            Role::Extender => {
                let finicky = settings.extender.is_some_and(|verbs| verbs.finicky);
                Self::Extender(Box::new(Extender::new(rng, settings.faults.extender, finicky)), Effects::new())
            }
            Role::GpuExtender => {
                let core = GpuExtender::new(carrack_gpu_extender::Config::default(), &rng);
                let core = match settings.bug {
                    Some(Bug::CacheForLedger) => core.with_planted(carrack_gpu_extender::Planted::Cache),
                    Some(Bug::HastyRelease) => core.with_planted(carrack_gpu_extender::Planted::Haste),
                    Some(Bug::ChosenBefore) => core.with_planted(carrack_gpu_extender::Planted::Predicated),
                    Some(Bug::ClaimsAddUp) => core.with_planted(carrack_gpu_extender::Planted::ClaimsAddUp),
                    _ => core,
                };
                Self::Gpus(Box::new(core), Effects::new())
            }
            Role::Controllers | Role::Standby => {
                let planted = match settings.bug {
                    Some(Bug::SetsBySpec) => Some(Planted::SetsBySpec),
                    Some(Bug::EndsForgotten) => Some(Planted::EndsForgotten),
                    Some(Bug::TimesTwice) => Some(Planted::TimesTwice),
                    Some(Bug::ClaimsGo) => Some(Planted::ClaimsGo),
                    Some(Bug::ClaimsByName) => Some(Planted::ClaimsByName),
                    Some(Bug::TakesFree) => Some(Planted::TakesFree),
                    Some(Bug::ReleasesUnheard) => Some(Planted::ReleasesUnheard),
                    Some(Bug::CarelessDetach) => Some(Planted::CarelessDetach),
                    Some(Bug::CarelessInlineDetach) => Some(Planted::CarelessInlineDetach),
                    Some(Bug::HastyOrphans) => Some(Planted::HastyOrphans),
                    Some(Bug::UnplacedStay) => Some(Planted::UnplacedStay),
                    Some(Bug::IgnoredUntold) => Some(Planted::IgnoredUntold),
                    Some(Bug::OrphansHeld) => Some(Planted::OrphansHeld),
                    Some(Bug::AdoptedUnheld) => Some(Planted::AdoptedUnheld),
                    Some(Bug::OneHoldsAll) => Some(Planted::OneHoldsAll),
                    Some(Bug::HastySlices) => Some(Planted::HastySlices),
                    Some(Bug::GrantsForgotten) => Some(Planted::GrantsForgotten),
                    Some(Bug::HastyOwners) => Some(Planted::HastyOwners),
                    Some(Bug::StaleDependents) => Some(Planted::StaleDependents),
                    Some(Bug::UnprovedEmptiness) => Some(Planted::UnprovedEmptiness),
                    Some(Bug::UnreadServers) => Some(Planted::UnreadServers),
                    Some(Bug::TakenClaims) => Some(Planted::TakenClaims),
                    Some(Bug::AbsenceRemembered) => Some(Planted::AbsenceRemembered),
                    Some(Bug::DeafObserver) => Some(Planted::Deafness),
                    Some(Bug::BoundsForgotten) => Some(Planted::BoundsForgotten),
                    Some(Bug::SilenceIsZero) => Some(Planted::SilenceIsZero),
                    _ => None,
                };
                let (slice, mut collected) = (settings.slice, collected());
                collected.retain(|resource| slice.is_none_or(|slice| slice.collects(&resource.plural)));
                // What is left out would be found by discovery, and read after all.
                let ignored = slice.map(Slice::ignored).unwrap_or_default();
                let config = carrack_controllers::Config { collected, ignored, ca_pem: "the CA".into(), planted };
                let mut all = carrack_controllers::all(&config);
                all.retain(|controller| slice.is_none_or(|slice| slice.has_controller(controller.name())));
                let core = Manager::new("kube-controller-manager", rng).with_all(all);
                manager(core, elector(), settings)
            }
            Role::VirtController | Role::StandbyVirt | Role::Cloner => {
                let config = carrack_virt::controllers::Config {
                    launcher_image: LAUNCHER_IMAGE.into(),
                    keep_alive_dir: "/usr/lib/carrack".into(),
                    planted: settings.bug.and_then(Bug::of_machines),
                };
                let clones =
                    settings.bug.and_then(Bug::of_clones).map(CloneController::with_planted).unwrap_or_default();
                let core = match (role, settings.apart) {
                    (Role::Cloner, _) => Manager::new("cloner", rng).with(clones),
                    (_, true) => carrack_virt::controllers::without_clones(&config, rng),
                    (_, false) => carrack_virt::controllers::with_clones(&config, rng, clones),
                };
                manager(core, elector(), settings)
            }
            Role::Replicas => manager(Manager::new("replicas", rng).with(Replicas::default()), None, settings),
            Role::Importer => {
                let importer = crate::imports::Importer(root.fork("imports"));
                manager(Manager::new("importer", rng).with(importer), None, settings)
            }
            Role::Storage if settings.clones => {
                manager(crate::clones::storage(rng, !settings.copies, room), None, settings)
            }
            Role::Host => manager(crate::clones::host(rng, room), None, settings),
            Role::Storage => manager(crate::controllers::storage(rng), None, settings),
            Role::Squatter => manager(Manager::new("squatter", rng).with(Squatter), None, settings),
            Role::Attacher | Role::StandbyAttacher if settings.flex.is_none() => {
                let attacher = Attacher { rack: rack.clone(), rng: rng.fork("attacher"), fails: false };
                manager(Manager::new("attacher", rng).with(attacher), None, settings)
            }
            Role::Attacher | Role::StandbyAttacher => {
                let calls = flex::Calls::default();
                let controllers = match settings.bug {
                    Some(Bug::GuessedLoss) => flex::with_planted_guess(&calls),
                    _ => flex::controllers(&calls),
                };
                let attacher =
                    Attacher { rack: rack.clone(), rng: rng.fork("attacher"), fails: settings.faults.attacher };
                let core = Manager::new("attacher", rng).with(attacher).with_all(controllers);
                let core = match elector().filter(|_| settings.flex == Some(true)) {
                    Some(elector) => core.with_elector(elector),
                    None => core,
                };
                Self::Attacher(Box::new(Asking::around(core, calls)), Effects::new())
            }
            Role::Hollow => {
                let nodes = match (settings.workloads, settings.gpus) {
                    (true, true) => crate::gpu::equip(crate::controllers::nodes()),
                    (true, false) => crate::controllers::nodes(),
                    (false, _) => crate::gpu::nodes(),
                };
                Self::Hollow(Box::new(HollowNodes::new(nodes, &rng)), Effects::new())
            }
            Role::Kubelet(node) => {
                // What is there of a widget always suffices for this policy: it lays pods out and refuses none.
                let scope = if node % 2 == 0 { Scope::Pod } else { Scope::Container };
                let topology = (Policy::Restricted, scope);
                let reserved = [("cpu".to_owned(), crate::cpus::reserved_milli())].into();
                let config = NodeConfig {
                    node_name: node_name(node),
                    labels: if settings.zones { crate::zones::labels(node) } else { std::collections::BTreeMap::new() },
                    topology,
                    cpus: crate::cpus::config(node),
                    memory: crate::memory::config(settings.keeps_memory),
                    parallel_pulls: settings.parallel_pulls,
                    reserved,
                    shutdown: crate::node::shutdown_groups(),
                    static_pod_path: settings.reads_manifests.then(|| crate::node::MANIFESTS.to_owned()),
                    file_check_period: crate::statics::READ_EVERY,
                    eviction: crate::pressure::thresholds(),
                    ..NodeConfig::default()
                };
                let core = KubeletCore::new(config, &rng).with_planted(settings.bug.and_then(Bug::of_kubelet));
                Self::Kubelet(Box::new(core), Effects::new())
            }
            Role::LocalStorage(node) => {
                let name = node_name(node);
                let core = match settings.bug {
                    Some(Bug::Traceless) => Provisioner::with_planted_traceless(&name, rng),
                    Some(Bug::SnapshotsAtOnce) => Provisioner::with_planted_calls_at_once(&name, rng),
                    Some(Bug::SmallVolumes) => Provisioner::with_planted_small_volumes(&name, rng),
                    Some(Bug::ContentForgotten) => Provisioner::with_planted_forgotten_contents(&name, rng),
                    _ => Provisioner::new(&name, rng),
                };
                Self::Storage(Box::new(core), Effects::new())
            }
            Role::VirtHandler(node) => {
                let core = Handler::new(&node_name(node), &rng);
                let core = match settings.bug {
                    Some(Bug::Unpaced) => core.with_planted_hurry(),
                    Some(Bug::LaunchersByLabel) => core.with_planted_labels(&rng),
                    _ => core,
                };
                let core = match settings.watchdog_left {
                    _ if !settings.watchdogs => core,
                    Some(left) => core.taking_over_watchdog(Some(left)),
                    None => core.with_watchdog(),
                };
                Self::Handler(Box::new(core), Effects::new())
            }
        };
        Some(match hosted {
            Self::Manager(core, fx) => {
                let core = if packs { core.keeping_open(2) } else { *core };
                let core = if narrow { core.taking_turns(20, 8) } else { core };
                let core = if pages { core.listing_by(crate::pages::SMALL) } else { core };
                Self::Manager(Box::new(core), fx)
            }
            hosted => hosted,
        })
    }

    /// The people of a workload.
    pub(crate) fn user(user: User) -> Self {
        Self::User(Box::new(user), Effects::new())
    }

    /// Whether it is a scheduler that leads.
    pub(crate) fn leads(&self) -> bool {
        matches!(self, Self::Scheduler(core, _) if core.is_leading())
    }

    /// Cuts the power of a hollow node, or gives it back; returns what that leads to.
    pub(crate) fn power(&mut self, now: Time, node: usize, on: bool) -> Vec<Effect<OwnOut>> {
        let Self::Hollow(core, fx) = self else { return Vec::new() };
        if on {
            core.revive(now, node, fx);
        } else {
            core.kill(node);
        }
        drained(fx, |never| match never {})
    }

    /// Tells the core to end; returns what it still wants done.
    pub(crate) fn stop(&mut self, now: Time) -> Vec<Effect<OwnOut>> {
        match self {
            Self::Scheduler(core, fx) => {
                core.stop(now, fx);
                drained(fx, |out| OwnOut::Scheduler(Box::new(out)))
            }
            Self::Manager(core, fx) => {
                core.stop(now, fx);
                drained(fx, |never| match never {})
            }
            Self::Attacher(core, fx) => {
                core.stop(now, fx);
                drained(fx, |out| OwnOut::Flex(Box::new(out)))
            }
            _ => Vec::new(),
        }
    }

    /// Whether a core that was told to end waits for nothing more.
    pub(crate) fn ended(&self) -> bool {
        match self {
            Self::Scheduler(core, _) => core.ended(),
            Self::Manager(core, _) => core.ended(),
            Self::Attacher(core, _) => core.ended(),
            _ => true,
        }
    }

    /// Lets the core observe something; returns what it wants done, in order.
    pub(crate) fn step(&mut self, now: Time, input: Input<OwnIn>) -> Vec<Effect<OwnOut>> {
        match self {
            Self::User(core, fx) => drain(core.as_mut(), fx, now, input, |_| None, |never| match never {}),
            Self::Scheduler(core, fx) => {
                let into = |own| match own {
                    OwnIn::Scheduler(answer) => Some(*answer),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Scheduler(Box::new(out)))
            }
            Self::Extender(core, fx) => {
                let into = |own| match own {
                    OwnIn::Extender(ask) => Some(*ask),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Extender(Box::new(out)))
            }
            Self::Gpus(core, fx) => {
                let into = |own| match own {
                    OwnIn::Gpus(call) => Some(*call),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Gpus(Box::new(out)))
            }
            Self::Manager(core, fx) => drain(core.as_mut(), fx, now, input, |_| None, |never| match never {}),
            Self::Hollow(core, fx) => drain(core.as_mut(), fx, now, input, |_| None, |never| match never {}),
            Self::Kubelet(core, fx) => {
                let into = |own| match own {
                    OwnIn::Kubelet(news) => Some(*news),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Kubelet(Box::new(out)))
            }
            Self::Storage(core, fx) => {
                let into = |own| match own {
                    OwnIn::Storage(answer) => Some(*answer),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Storage(Box::new(out)))
            }
            Self::Attacher(core, fx) => {
                let into = |own| match own {
                    OwnIn::Flex(answer) => Some(*answer),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Flex(Box::new(out)))
            }
            Self::Handler(core, fx) => {
                let into = |own| match own {
                    OwnIn::Handler(news) => Some(*news),
                    _ => None,
                };
                drain(core.as_mut(), fx, now, input, into, |out| OwnOut::Handler(Box::new(out)))
            }
        }
    }
}

/// Image of the launcher.
pub(crate) const LAUNCHER_IMAGE: &str = "sim/launcher";

fn manager(core: Manager, elector: Option<LeaderElector>, settings: Settings) -> Hosted {
    let core = match elector {
        Some(elector) => core.with_elector(elector),
        None => core,
    };
    let core = match settings.bug {
        Some(Bug::StaleReads) => core.with_planted_stale_reads(),
        Some(Bug::BaselessWrites) => core.with_planted_baseless_writes(),
        Some(Bug::ClocksOfAnother) => core.with_planted_memory(),
        Some(Bug::ForgottenKinds) => core.with_planted_forgetting(),
        Some(Bug::FirstPages) => core.with_planted_first_pages(),
        _ => core,
    };
    Hosted::Manager(Box::new(core), Effects::new())
}

fn drain<C: Core>(
    core: &mut C,
    fx: &mut Effects<C::Out>,
    now: Time,
    input: Input<OwnIn>,
    into: impl Fn(OwnIn) -> Option<C::In>,
    from: impl Fn(C::Out) -> OwnOut,
) -> Vec<Effect<OwnOut>> {
    let input = match input {
        Input::Start => Input::Start,
        Input::Api { id, result } => Input::Api { id, result },
        Input::Watch { id, item } => Input::Watch { id, item },
        Input::Timer(id) => Input::Timer(id),
        Input::Own(own) => match into(own) {
            Some(own) => Input::Own(own),
            // News of another core's world; nobody sends those.
            None => return Vec::new(),
        },
    };
    core.step(now, input, fx);
    drained(fx, from)
}

fn drained<F>(fx: &mut Effects<F>, from: impl Fn(F) -> OwnOut) -> Vec<Effect<OwnOut>> {
    std::iter::from_fn(|| fx.pop())
        .map(|effect| match effect {
            Effect::Api(id, request) => Effect::Api(id, request),
            Effect::Watch(id, request) => Effect::Watch(id, request),
            Effect::Unwatch(id) => Effect::Unwatch(id),
            Effect::Timer(id, at) => Effect::Timer(id, at),
            Effect::Own(out) => Effect::Own(from(out)),
            Effect::Exit(reason) => Effect::Exit(reason),
        })
        .collect()
}

/// What the garbage collector and the namespace controller read: the groups that a run uses. All
/// groups would be three times as many watches, with nothing in them.
pub(crate) fn collected() -> Vec<Resource> {
    let served = carrack_apiserver::RuntimeConfig::default();
    carrack_schema::table::builtin()
        .iter()
        .filter(|row| !row.is_virtual && row.plural != "events" && !row.is_custom)
        .filter(|row| matches!(&*row.group, "" | "apps" | "batch" | "coordination.k8s.io"))
        .filter(|row| ["list", "watch", "delete"].iter().all(|verb| row.allows(verb)))
        .filter_map(|row| row.resource())
        .filter(|found| served.serves(&found.group, &found.version, &found.plural))
        .collect()
}
