//! The kubelet's decision core: it composes admission, pods, devices, volumes, probes and status.
//!
//! One step takes one observation, routes it to the part that waits for it, and then looks at the
//! pods that it may concern. Looking at a pod is level-triggered: it reads what is known and asks for
//! what lacks, leaving out what is already under way. Nothing is acted on that is older than the last
//! completed change of the same pod: after each change the runtime is listed again first.

mod actuate;
mod admit;
mod align;
mod checkpoint;
mod cpus;
mod csi_limits;
mod csi_node;
mod forgotten;
mod groups;
mod growth;
mod hooks;
mod kill;
mod lane;
mod listing;
mod local_storage;
mod memory;
mod names;
mod node;
mod orphan;
mod preempt;
mod preflight;
mod pressure;
mod pulled;
mod pulling;
mod report;
mod resize;
mod seen;
mod shutdown;
mod sources;
mod staged;
mod statics;
mod stop;
mod stuck;
mod sync;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use carrack_engine::bucket::Bucket;
use carrack_engine::{CallId, Core, Effects, EventRecorder, Informer, Input, Rng, Selector, Time, TimerId};
use carrack_types::resource::Kind as _;
use k8s_openapi::api::core::v1::{Node, Pod, Service};

use crate::config::NodeConfig;
use crate::cpus::Cpus;
use crate::devices::{self, Devices};
use crate::effects::{Counted, In, Loaded, Op, OpError, OpId, Out, Outcome, Reply, Tally};
use crate::eviction;
use crate::memory::Memory;
use crate::planted::Planted;
use crate::pods::dead;
use crate::probes::ProbeKind;
use crate::records::{self, DevicesRecord, PodRecord};
use crate::runtime::{ContainerState, HostFacts, ImageRecord, RuntimeInfo, Uid};
use crate::spec::{manifest, pod};
use crate::status::node as node_status;
use crate::volumes::{VolumeKind, Volumes};

use checkpoint::Checkpoint;
use csi_node::CsiNodeState;
use node::NodeState;
use orphan::orphan;
pub use preflight::goes_with;
use sources::SourceCache;
use statics::Statics;
use worker::{PodRuntime, Stopping, Worker};

/// Effects of this core.
type Fx = Effects<Out>;

/// Who waits for the outcome of an operation.
#[derive(Clone, Debug)]
enum Owner {
    Load,
    /// A record that holds nothing is dropped before the others are taken over.
    VoidRecord,
    Host,
    RuntimeInfo,
    Relist,
    ListImages,
    Checkpoint,
    DevicesRecord,
    CpuState,
    MemoryState,
    Sizes(resize::Kept),
    Groups,
    /// A running container's CPUs.
    Cpus(String),
    Logs,
    Usage,
    Shutdown,
    /// How many volumes a CSI driver takes.
    CsiLimit(String),
    RemoveImage,
    Manifests(manifest::Source),
    /// A document about a pull.
    Pulls(String),
    /// A volume of the node.
    Staged(String),
    Pod(Uid, PodOp),
}

/// What an operation is for its pod.
#[derive(Clone, Debug)]
enum PodOp {
    Record,
    RunSandbox,
    FoundImage(String),
    StopSandbox(String),
    Remove(String),
    Lane(String),
    Kill(String),
    Volume(String, Option<VolumeKind>),
    Resize,
    Grow(Box<crate::volumes::Expanding>),
    Probe(String, ProbeKind),
    RemovePod,
    DropRecord,
}

/// Who waits for a reply of the API.
#[derive(Clone, Debug)]
enum Call {
    Status(Uid),
    Delete(Uid),
    Mirror((String, String)),
    Register,
    NodeLabels,
    NodeStatus,
    LeaseGet,
    LeasePut,
    CsiNode(csi_node::Asked),
    Grown(growth::ClaimName, Uid),
}

/// Why to wake up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Relist,
    Status,
    Lease,
    LeaseNow,
    NodeTick,
    Load,
    Checkpoint,
    Logs,
    Host,
    Manifests(manifest::Source),
    Mirrors,
    Staged,
    CsiNode,
    Cpus,
    Groups,
    Pulls,
    Sizes,
    Shutdown,
    Pod(Uid),
}

/// How soon the runtime is listed when nobody waits for it: what was started may have ended at once.
const RELIST_SOON: Duration = Duration::from_millis(100);

/// The kubelet's core.
pub struct KubeletCore {
    config: Arc<NodeConfig>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    services: Informer<Service>,
    events: EventRecorder,
    workers: BTreeMap<Uid, Worker>,
    runtime: BTreeMap<Uid, PodRuntime>,
    /// The listing that `runtime` is of; none before the first.
    listed: Option<OpId>,
    /// The pods of which that did not show everything.
    doubts: listing::Doubts,
    relist_op: Option<OpId>,
    relist_again: bool,
    /// When the runtime is listed next, if nothing calls for it before.
    relist_at: Time,
    /// The next listing is to follow soon on the one under way.
    relist_hurry: bool,
    host: HostFacts,
    loaded: bool,
    started_at: Time,
    runtime_info: Option<RuntimeInfo>,
    runtime_error: Option<String>,
    images: Vec<ImageRecord>,
    pulls: pulled::Pulls,
    devices: Devices,
    checkpoint: Checkpoint,
    cpus: Cpus,
    cpu_checkpoint: Checkpoint,
    given: cpus::Given,
    numa: memory::Numa,
    groups: groups::Groups,
    resizes: resize::Resizes,
    /// Grants of an earlier boot were dropped and that is not on disk yet.
    boot_unrecorded: bool,
    volumes: Volumes,
    /// Something changed that the volumes of the node depend on.
    staged_due: bool,
    /// Pods whose records could not be read, and of which something may be there: who uses the volumes of the node is not known.
    unread_pods: BTreeSet<Uid>,
    /// Names of records of the node's volumes that could not be read.
    unread_volumes: BTreeSet<String>,
    sources: SourceCache,
    statics: Statics,
    ops: BTreeMap<OpId, Owner>,
    calls: BTreeMap<CallId, Call>,
    wakes: BTreeSet<(Time, Wake)>,
    armed: Option<(Time, TimerId)>,
    dirty: BTreeSet<Uid>,
    publish: bool,
    /// The version of the devices that was published.
    published_devices: u64,
    /// The versions of the CPUs and of the memory that were.
    published_own: (u64, u64),
    logs_op: Option<OpId>,
    watch: eviction::Watch,
    /// What the log was told that the node is low on.
    low_on: Option<eviction::Signal>,
    host_wake: Time,
    readings: pressure::Readings,
    /// The threshold that is crossed, when the facts were read last; none where they could not be.
    crossed: Option<eviction::Crossed>,
    /// What pods use is being measured, of all that may go or of some.
    measuring: Option<(OpId, bool)>,
    /// What pods with limits keep on the node's disk is to be measured from then on.
    local_storage: local_storage::Looks,
    known_images: crate::images::Images,
    /// Images that are being removed.
    image_ops: BTreeMap<OpId, (String, &'static str)>,
    images_next: Time,
    node: NodeState,
    planted: Option<Planted>,
    forgotten: forgotten::Forgotten,
    growths: growth::Growths,
    csi_node: CsiNodeState,
    csi_limits: csi_limits::CsiLimits,
    shutdown: shutdown::Shutdown,
}

impl KubeletCore {
    /// A kubelet that has not started.
    #[must_use]
    pub fn new(config: NodeConfig, rng: &Rng) -> Self {
        let on_node = Selector::fields(format!("spec.nodeName={}", config.node_name));
        let itself = Selector::fields(format!("metadata.name={}", config.node_name));
        Self {
            pods: Informer::new(Pod::resource(), on_node, rng.fork("pods")),
            nodes: Informer::new(Node::resource(), itself, rng.fork("nodes")),
            services: Informer::new(Service::resource(), Selector::all(), rng.fork("services")),
            events: EventRecorder::new("kubelet", rng.fork("events"))
                .on_host(config.node_name.clone())
                .paced(config.event_rate.map(|(per_second, burst)| Bucket::new(per_second, burst))),
            workers: BTreeMap::new(),
            runtime: BTreeMap::new(),
            listed: None,
            doubts: listing::Doubts::default(),
            relist_op: None,
            relist_again: false,
            relist_at: Time::default(),
            relist_hurry: false,
            host: HostFacts::default(),
            loaded: false,
            started_at: Time::default(),
            runtime_info: None,
            runtime_error: None,
            images: Vec::new(),
            pulls: pulled::Pulls::default(),
            devices: Devices::default(),
            checkpoint: Checkpoint::default(),
            cpus: preflight::cpus(&config),
            cpu_checkpoint: Checkpoint::default(),
            given: cpus::Given::default(),
            numa: memory::Numa { memory: Memory::new(config.memory.clone()), ..memory::Numa::default() },
            groups: groups::Groups::default(),
            resizes: resize::Resizes::default(),
            boot_unrecorded: false,
            volumes: Volumes::default(),
            staged_due: false,
            unread_pods: BTreeSet::new(),
            unread_volumes: BTreeSet::new(),
            sources: SourceCache::new(config.change_detection, config.sync_period, rng.fork("sources")),
            statics: Statics::new(&config),
            ops: BTreeMap::new(),
            calls: BTreeMap::new(),
            wakes: BTreeSet::new(),
            armed: None,
            dirty: BTreeSet::new(),
            publish: false,
            published_devices: 0,
            published_own: (0, 0),
            logs_op: None,
            watch: eviction::Watch::default(),
            low_on: None,
            host_wake: Time::default(),
            readings: pressure::Readings::default(),
            crossed: None,
            measuring: None,
            local_storage: local_storage::Looks::default(),
            known_images: crate::images::Images::default(),
            image_ops: BTreeMap::new(),
            images_next: Time::default(),
            node: NodeState::default(),
            planted: None,
            forgotten: forgotten::Forgotten::default(),
            growths: growth::Growths::default(),
            csi_node: CsiNodeState::default(),
            csi_limits: csi_limits::CsiLimits::default(),
            shutdown: shutdown::Shutdown::default(),
            config: Arc::new(config),
        }
    }

    /// Puts historical behaviour back, for the simulator to find.
    #[must_use]
    pub fn with_planted(mut self, planted: Option<Planted>) -> Self {
        self.planted = planted;
        self.sources.planted = planted;
        self.volumes.overlooks_secrets = planted == Some(Planted::SecretsOverlooked);
        self
    }

    /// What is known to be mounted for pods and left alone at present, by pod and path.
    pub fn mounts(&self) -> impl Iterator<Item = (&Uid, &str)> {
        self.volumes.mounted()
    }

    /// UIDs of the pods that the kubelet looks after.
    pub fn pod_uids(&self) -> impl Iterator<Item = &Uid> {
        self.workers.keys()
    }

    fn op(&mut self, owner: Owner, op: Op, fx: &mut Fx) -> OpId {
        let id = OpId(fx.fresh());
        self.ops.insert(id, owner);
        fx.own(Out { id, op });
        id
    }

    fn wake(&mut self, at: Time, wake: Wake) {
        self.wakes.insert((at, wake));
    }

    fn wake_pod(&mut self, at: Time, uid: &Uid) {
        // One wake a pod is enough: the earliest; each look sets the next.
        self.wakes.insert((at, Wake::Pod(uid.clone())));
    }

    fn arm(&mut self, fx: &mut Fx) {
        let Some((at, _)) = self.wakes.first() else { return };
        if self.armed.is_none_or(|(armed, _)| *at < armed) {
            self.armed = Some((*at, fx.timer(*at)));
        }
    }

    fn start(&mut self, now: Time, fx: &mut Fx) {
        self.started_at = now;
        self.op(Owner::Load, Op::Load, fx);
        self.pods.start(fx);
        self.nodes.start(fx);
        self.services.start(fx);
        self.relist(fx);
        self.read_all_manifests(fx);
        self.op(Owner::RuntimeInfo, Op::RuntimeInfo, fx);
        self.op(Owner::ListImages, Op::ListImages, fx);
    }

    /// Has the logs of running containers looked at.
    fn rotate_logs(&mut self, now: Time, fx: &mut Fx) {
        self.wake(now + self.config.log_monitor_period, Wake::Logs);
        if self.logs_op.is_some() || self.config.log_max_bytes == 0 {
            return;
        }
        let running = self.runtime.values().flat_map(|r| &r.containers).filter(|c| c.state == ContainerState::Running);
        let logs: Vec<(String, String)> = running
            .map(|c| (c.id.clone(), format!("{}/{}/{}.log", self.config.pod_log_dir(&c.pod), c.name, c.attempt)))
            .collect();
        if !logs.is_empty() {
            let op =
                Op::RotateLogs { logs, max_bytes: self.config.log_max_bytes, max_files: self.config.log_max_files };
            self.logs_op = Some(self.op(Owner::Logs, op, fx));
        }
    }

    /// Lists the runtime in a moment, together with what else calls for it until then.
    fn relist_soon(&mut self, now: Time) {
        let at = now + RELIST_SOON;
        if self.relist_op.is_some() {
            self.relist_hurry = true;
        } else if self.relist_at > at {
            self.relist_at = at;
            self.wake(at, Wake::Relist);
        }
    }

    /// Lists the runtime: now, or once the listing under way is back.
    fn relist(&mut self, fx: &mut Fx) {
        if self.relist_op.is_some() {
            self.relist_again = true;
        } else {
            self.relist_again = false;
            self.relist_op = Some(self.op(Owner::Relist, Op::Relist, fx));
        }
    }

    fn woken(&mut self, now: Time, fx: &mut Fx) {
        while let Some((at, _)) = self.wakes.first() {
            if *at > now {
                break;
            }
            let Some((_, wake)) = self.wakes.pop_first() else { break };
            match wake {
                // Another listing may have come between, which set its own time.
                Wake::Relist if now < self.relist_at => {}
                Wake::Relist => self.relist(fx),
                Wake::Pod(uid) => {
                    self.dirty.insert(uid);
                }
                Wake::Status => {
                    self.read_machine(fx);
                    self.op(Owner::RuntimeInfo, Op::RuntimeInfo, fx);
                    self.op(Owner::ListImages, Op::ListImages, fx);
                    self.wake(now + self.config.status_period, Wake::Status);
                }
                Wake::Lease => self.renew_lease(now, fx),
                Wake::LeaseNow => self.renew_now(now, fx),
                Wake::NodeTick => self.node.dirty = true,
                Wake::Load => {
                    self.op(Owner::Load, Op::Load, fx);
                }
                Wake::Manifests(source) => self.read_manifests(source, fx),
                // Looked at after every step.
                Wake::Mirrors => {}
                Wake::Host => self.read_machine(fx),
                Wake::Logs => self.rotate_logs(now, fx),
                // It is recorded once a checkpoint is written.
                Wake::Checkpoint if self.boot_unrecorded => _ = self.checkpoint.touch(),
                // Looked at after every step.
                Wake::Checkpoint => {}
                Wake::Staged => self.staged_due = true,
                // Looked at after every step.
                Wake::CsiNode => {}
                Wake::Cpus => self.given.due = true,
                Wake::Groups => self.groups.due = true,
                Wake::Pulls => self.pulls.due = true,
                // Looked at after every step.
                Wake::Shutdown | Wake::Sizes => {}
            }
        }
    }

    /// A complete list has been seen: what is recorded or runs here and is not in it is gone.
    fn find_gone(&mut self) {
        self.staged_due = true;
        self.find_gone_statics();
        if !self.pods.synced() || !self.loaded {
            return;
        }
        let of_api = self.pods.cache().iter().filter(|p| manifest::mirrored(p).is_none()).map(|p| pod::uid(p));
        let known: BTreeSet<Uid> = of_api.chain(self.statics.present().cloned()).collect();
        for (uid, w) in &mut self.workers {
            let told = self.statics.read() || !pod::is_static(&w.pod);
            if told && !w.confirmed && !known.contains(uid) {
                w.confirmed = true;
                w.deleted = true;
                self.dirty.insert(uid.clone());
            }
        }
        // Until the manifests were read, what runs here unknown to the API may be of one.
        for (uid, runtime) in self.runtime.iter().filter(|_| self.statics.read()) {
            if self.workers.contains_key(uid) || known.contains(uid) {
                continue;
            }
            if let Some(pod) = orphan(runtime) {
                tracing::info!(pod = %pod::pod_ref(&pod), "found in the runtime but not in the API; stopping it");
                let mut w = Worker::new(Arc::new(pod));
                w.confirmed = true;
                w.deleted = true;
                self.workers.insert(uid.clone(), w);
                self.dirty.insert(uid.clone());
            }
        }
        // Holdings of pods that nobody knows any more.
        let own = self.cpus.holders().chain(self.numa.memory.holders());
        let holders = self.devices.allocations().keys().chain(own).chain(self.resizes.holders());
        let strays: BTreeSet<Uid> = holders
            .filter(|uid| !self.workers.contains_key(*uid) && !self.runtime.contains_key(*uid) && self.listed.is_some())
            .cloned()
            .collect();
        for uid in &strays {
            self.let_go(uid);
            self.resizes.forget(uid);
        }
    }

    fn loaded(&mut self, now: Time, loaded: Loaded, fx: &mut Fx) {
        self.host = loaded.host;
        let same_boot = loaded
            .records
            .get(records::DEVICES)
            .and_then(|bytes| serde_json::from_slice::<DevicesRecord>(bytes).ok())
            .is_some_and(|r| r.boot_id == self.host.boot_id || self.planted == Some(Planted::StaleGrants));
        self.forgotten.open = loaded.checkpoint.is_none();
        if let Some(bytes) = &loaded.checkpoint {
            match devices::decode(bytes) {
                Ok((allocations, advertised)) => {
                    self.devices.load(allocations, advertised, same_boot);
                }
                Err(error) => {
                    tracing::error!(%error, "starting with no device allocations");
                    // It says no more of plugins than one that is not there.
                    self.forgotten.open = self.planted != Some(Planted::TornIsKnown);
                }
            }
        }
        self.load_cpus(loaded.cpus.as_deref(), fx);
        self.load_memory(loaded.memory.as_deref(), fx);
        self.load_sizes((loaded.allocated.as_deref(), loaded.actuated.as_deref()), &loaded.records);
        if self.planted != Some(Planted::ForgottenPulls) {
            self.pulls.load(now, &loaded.records, &self.images);
        }
        self.boot_unrecorded = !same_boot;
        // What was loaded is shown; written again only where it has to be.
        self.published_devices = u64::MAX;
        if !same_boot {
            self.checkpoint.touch();
        }
        let mut ends = false;
        for (name, bytes) in &loaded.records {
            let Some(uid) = name.strip_prefix(records::POD_PREFIX) else { continue };
            let uid: Uid = uid.into();
            let record: PodRecord = match serde_json::from_slice(bytes) {
                Ok(r) => r,
                Err(error) => {
                    tracing::error!(record = name, %error, "a pod's record cannot be read");
                    self.pod_unread(uid, loaded.found.as_ref());
                    continue;
                }
            };
            if record.may_have_more {
                self.pod_unread(uid.clone(), loaded.found.as_ref());
            }
            if self.planted != Some(Planted::ForgottenMounts) {
                self.volumes.restore(&uid, &record.pod, &record.volumes, loaded.found.as_ref());
            }
            if self.planted == Some(Planted::RecordsAreMounts) {
                self.volumes.believe(&uid);
            }
            let w =
                self.workers.entry(uid.clone()).or_insert_with(|| Worker::new(Arc::new(statics::recorded(record.pod))));
            w.admitted_before = record.admitted;
            if record.deleted {
                w.deleted = true;
                w.confirmed = true;
            }
            if let Some(ended) = record.ended.filter(|_| w.stopping.is_none()) {
                w.stopping = Some(Stopping::restored(ended, OpId(fx.fresh()), now, &w.pod));
                ends = true;
            }
            w.record_saved = Some(worker::RecordMark {
                terminating: record.terminating,
                deleted: record.deleted,
                journal: 0,
                may_have_more: record.may_have_more,
            });
            w.record_made = true;
            self.dirty.insert(uid);
        }
        if ends {
            // How far they are is seen by a listing of this life.
            self.relist(fx);
        }
        // Recorded here, or read from the API meanwhile.
        for (uid, w) in &mut self.workers {
            w.take(w.desired.clone(), self.resizes.allocated.get(uid));
            let of_pod = self.resizes.actuated.get(uid);
            w.resize.inherit(of_pod.map(|a| a.restarting.clone()).unwrap_or_default());
        }
        if self.planted != Some(Planted::ForgottenMounts) {
            self.restore_staged(&loaded.records, loaded.found.as_ref());
        }
        (self.loaded, self.publish) = (true, true);
        (self.statics.dirty, self.groups.due) = (true, true);
        self.dirty.extend(self.workers.keys().cloned());
        self.register(now, fx);
        self.wake(now + self.config.status_period, Wake::Status);
        self.wake(now, Wake::Lease);
        self.wake(now + self.config.log_monitor_period, Wake::Logs);
        self.find_gone();
    }

    /// Finds containers that are over and too many. By itself, only a pod that has changed can have more of them; time and other
    /// pods matter where the limits are of age, or of the node.
    fn count_dead(&mut self, now: Time) {
        let policy = self.config.container_gc;
        let alone = policy.min_age.is_zero() && policy.max_containers.is_none();
        // What a pod leaves that is over, or is to go, goes with it.
        let goes_on = |w: &Worker| w.stopping.is_none() && w.confirmed;
        let due: Vec<Uid> = self
            .workers
            .iter_mut()
            .filter_map(|(uid, w)| {
                let (goes_on, counted) = (goes_on(w), w.counted);
                w.counted = Some(goes_on);
                (!alone || counted != Some(goes_on)).then(|| uid.clone())
            })
            .collect();
        let lives = |uid: &&Uid| self.workers.get(*uid).is_some_and(goes_on);
        let runtime = due.iter().filter(lives).filter_map(|uid| self.runtime.get(uid));
        let all = runtime.flat_map(|r| &r.containers);
        let surplus = match self.planted {
            Some(Planted::ForgottenEnds) => all.filter(|c| c.exit_code().is_some()).map(|c| c.id.clone()).collect(),
            _ => dead::surplus(now, &policy, all),
        };
        for uid in &due {
            let Some(w) = self.workers.get_mut(uid) else { continue };
            let own = self.runtime.get(uid).into_iter().flat_map(|r| &r.containers).map(|c| &c.id);
            let own: BTreeSet<String> = own.filter(|id| surplus.contains(*id)).cloned().collect();
            if w.surplus != own {
                w.surplus = own;
                self.dirty.insert(uid.clone());
            }
        }
    }

    fn done(&mut self, now: Time, id: OpId, outcome: Outcome, fx: &mut Fx) {
        let Some(owner) = self.ops.remove(&id) else { return };
        match owner {
            Owner::Load => match outcome {
                Ok(Reply::Loaded(l)) => match self.void_record(&l) {
                    Some(name) => {
                        tracing::error!(record = name, "it cannot be read, and nothing of it is here: it is dropped");
                        self.op(Owner::VoidRecord, Op::DropRecord(name), fx);
                    }
                    None => {
                        self.loaded(now, *l, fx);
                        self.check_topology(fx);
                    }
                },
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "the local record cannot be read; nothing is done until it can");
                    self.wake(now + Duration::from_secs(1), Wake::Load);
                }
            },
            Owner::VoidRecord => match outcome {
                Ok(_) => {
                    self.op(Owner::Load, Op::Load, fx);
                }
                Err(error) => {
                    tracing::error!(%error, "a record that holds nothing was not dropped");
                    self.wake(now + Duration::from_secs(1), Wake::Load);
                }
            },
            Owner::Host => self.machine_read(now, id, outcome, fx),
            Owner::RuntimeInfo => {
                if let Ok(Reply::RuntimeInfo(i)) = outcome
                    && self.runtime_info.as_ref() != Some(&i)
                {
                    self.runtime_info = Some(i);
                    self.node.dirty = true;
                }
            }
            Owner::ListImages => {
                if let Ok(Reply::Images(images)) = outcome {
                    self.images_listed(now, id, images);
                }
            }
            Owner::Logs => {
                self.logs_op = None;
                if let Err(error) = outcome {
                    tracing::warn!(%error, "not all logs were rotated");
                }
            }
            Owner::Manifests(source) => self.manifests_read(now, source, outcome, fx),
            Owner::Usage => self.usage_known(now, id, outcome, fx),
            Owner::Shutdown => self.shutdown_told(now, &outcome),
            Owner::CsiLimit(driver) => self.csi_limit_told(&driver, id, outcome),
            Owner::RemoveImage => self.image_removed(now, id, outcome, fx),
            Owner::Pulls(name) => self.pull_written(now, &name, &outcome),
            Owner::Relist => self.relisted(now, id, outcome, fx),
            Owner::Checkpoint => self.checkpointed(now, outcome, fx),
            Owner::DevicesRecord => match outcome {
                Ok(_) => self.boot_unrecorded = false,
                Err(error) => {
                    tracing::error!(%error, "the boot was not recorded");
                    self.wake(now + Duration::from_secs(1), Wake::Checkpoint);
                }
            },
            Owner::Groups => self.groups_written(now, id, &outcome),
            Owner::CpuState => self.cpus_saved(now, &outcome),
            Owner::MemoryState => self.memory_saved(now, &outcome),
            Owner::Sizes(kept) => self.sizes_saved(now, kept, &outcome),
            Owner::Cpus(container) => self.cpus_given(now, &container, id, &outcome),
            Owner::Staged(volume) => self.staged_done(now, &volume, id, &outcome),
            Owner::Pod(uid, op) => {
                if let Some(mut w) = self.workers.remove(&uid) {
                    self.pod_op_done(now, &uid, &mut w, id, op, outcome, fx);
                    self.workers.insert(uid.clone(), w);
                    self.dirty.insert(uid);
                }
            }
        }
    }

    /// Writes the device checkpoint if it is behind. What must be in it first waits for its version.
    fn save_checkpoint(&mut self, now: Time, fx: &mut Fx) {
        // The first one of all tells what plugins the node had; that is asked of the Node.
        let open = !self.loaded || self.forgotten.open;
        if open || !self.checkpoint.may_save(now) {
            return;
        }
        let body = self.devices.checkpoint();
        let id = self.op(Owner::Checkpoint, Op::SaveCheckpoint(body), fx);
        self.checkpoint.saving(id);
    }

    fn checkpointed(&mut self, now: Time, outcome: Outcome, fx: &mut Fx) {
        let is_written = outcome.is_ok() || self.planted == Some(Planted::UnwrittenCounts);
        if let Some(at) = self.checkpoint.saved(now, is_written) {
            tracing::error!(?outcome, "the device checkpoint was not written");
            self.wake(at, Wake::Checkpoint);
            return;
        }
        self.dirty.extend(self.workers.iter().filter(|(_, w)| !w.lanes.is_empty()).map(|(uid, _)| uid.clone()));
        // Grants of an earlier boot are gone from the disk: from now on they are this boot's.
        if self.boot_unrecorded {
            let record = DevicesRecord { boot_id: self.host.boot_id.clone() };
            let body = serde_json::to_vec(&record).unwrap_or_default();
            self.op(Owner::DevicesRecord, Op::SaveRecord { name: records::DEVICES.into(), body }, fx);
        }
    }

    fn observed(&mut self, now: Time, event: In, fx: &mut Fx) {
        match event {
            In::CsiUp { driver, info } => self.csi_node.up(driver, info),
            In::CsiDown { driver } => self.csi_node.down(&driver),
            In::ShutdownBegins => self.shutdown_begins(now, fx),
            In::ShutdownCancelled => self.shutdown_ends(now, fx),
            In::ShutdownUnheld(why) => self.shutdown_unheld(now, why, fx),
            In::VolumeAbnormal { uid, volume, message } => self.volume_abnormal(now, &uid, &volume, &message, fx),
            In::Done(id, outcome) => {
                self.pull_ended(now, id, &outcome, fx);
                match self.sources.told(now, id, &outcome) {
                    Some(users) => self.dirty.extend(users),
                    None => self.done(now, id, outcome, fx),
                }
            }
            In::PluginUp { resource, epoch, options } => {
                tracing::info!(resource, epoch, "device plugin registered");
                self.devices.plugin_up(&resource, epoch, options);
                show(Op::Count(Counted::Tally(Tally::Registered, resource)), fx);
                self.checkpoint.touch();
                self.devices_changed();
            }
            In::PluginDevices { resource, epoch, devices } => {
                if self.devices.plugin_devices(&resource, epoch, devices) {
                    self.checkpoint.touch();
                    self.devices_changed();
                    self.dirty.extend(self.devices.holders(&resource));
                }
            }
            In::PluginRefused { resource, why } => self.plugin_refused(now, &resource, &why, fx),
            In::SystemOom { process, pid } => self.out_of_memory(now, &process, pid, fx),
            In::PluginDown { resource, epoch } => {
                if self.devices.plugin_down(&resource, epoch) {
                    self.checkpoint.touch();
                    tracing::warn!(resource, epoch, "device plugin hung up");
                    self.devices_changed();
                }
            }
        }
    }

    fn devices_changed(&mut self) {
        self.node.dirty = true;
        // Somebody may wait for them.
        self.dirty.extend(
            self.workers
                .iter()
                .filter(|(_, w)| w.admission != worker::Admission::Admitted || !w.waiting.is_empty())
                .map(|(uid, _)| uid.clone()),
        );
    }

    fn answered(
        &mut self,
        now: Time,
        call: Call,
        result: Result<carrack_engine::ApiResponse, carrack_engine::ApiError>,
        fx: &mut Fx,
    ) {
        match call {
            Call::Status(uid) => self.status_answered(now, &uid, result),
            Call::Grown(claim, uid) => {
                self.growth_told(now, claim, &uid, result);
                self.dirty.insert(uid);
            }
            Call::Mirror(key) => self.mirror_answered(now, &key, result),
            Call::Delete(uid) => self.delete_answered(now, &uid, result),
            Call::CsiNode(asked) => self.csi_node_answered(now, asked, result),
            other => self.node_answered(now, other, result, fx),
        }
    }

    fn route(&mut self, now: Time, input: Input<In>, fx: &mut Fx) {
        if self.events.step(now, &input, fx) {
            return;
        }
        if let Some(deltas) = self.pods.step(now, &input, fx) {
            for d in &deltas {
                self.pod_changed(d);
            }
            self.find_gone();
            return;
        }
        if let Some(deltas) = self.nodes.step(now, &input, fx) {
            if !deltas.is_empty() {
                self.node_seen();
            }
            return;
        }
        if self.services_seen(now, &input, fx) {
            return;
        }
        if let Some(users) = self.sources.watched(now, &input, fx) {
            self.dirty.extend(users);
            return;
        }
        match input {
            Input::Start => self.start(now, fx),
            Input::Api { id, result } => {
                if let Some(call) = self.calls.remove(&id) {
                    self.answered(now, call, result, fx);
                } else if let Some(users) = self.sources.answered(now, id, &result) {
                    self.dirty.extend(users);
                }
            }
            Input::Timer(id) => {
                if self.armed.is_some_and(|(_, armed)| armed == id) {
                    self.armed = None;
                }
            }
            Input::Own(event) => self.observed(now, event, fx),
            Input::Watch { .. } => {}
        }
    }
}

impl Core for KubeletCore {
    type In = In;
    type Out = Out;

    fn step(&mut self, now: Time, input: Input<In>, fx: &mut Fx) {
        self.route(now, input, fx);
        if self.forgotten.is_due() {
            self.suppose_devices();
        }
        self.woken(now, fx);
        self.give_cpus(now, fx);
        self.step_shutdown(now, fx);
        self.settle(now, fx);
        self.step_shutdown(now, fx);
        if self.decide_resizes(now, fx) {
            self.settle(now, fx);
        }
        self.follow_mirrors(now, fx);
        self.step_staged(now, fx);
        self.step_csi_limits(now, fx);
        self.step_csi_node(now, fx);
        self.save_checkpoint(now, fx);
        self.give_cpus(now, fx);
        self.save_cpus(now, fx);
        self.save_memory(now, fx);
        self.save_sizes(now, fx);
        self.start_pulls(now, fx);
        self.write_pulls(now, fx);
        self.write_groups(now, fx);
        if self.node.dirty {
            self.node_tick(now, fx);
        }
        let version = (self.checkpoint.version, (self.cpu_checkpoint.version, self.numa.checkpoint.version));
        if (self.published_devices, self.published_own) != version {
            (self.published_devices, self.published_own) = version;
            let (cpus, memory) = (self.cpus.view(), self.numa.memory.view());
            let view = devices::DeviceView { cpus, memory, ..self.devices.view() };
            show(Op::PublishDevices(Arc::new(view)), fx);
        }
        if self.volumes.take_changed() {
            show(Op::PublishVolumes(self.volumes.census()), fx);
        }
        if std::mem::take(&mut self.publish) {
            show(Op::Publish(self.workers.values().map(|w| w.pod.clone()).collect()), fx);
        }
        self.arm(fx);
    }
}

/// Shows something to those who ask, or counts it for them ([`Op::only_shows`]): no outcome returns.
fn show(op: Op, fx: &mut Fx) {
    let id = OpId(fx.fresh());
    fx.own(Out { id, op });
}

/// Whether an operation surely did not fail for a reason that may pass.
fn is_absent(e: &OpError) -> bool {
    matches!(e, OpError::NotFound(_))
}

/// The node's addresses as text.
fn host_ips(core: &KubeletCore) -> Vec<String> {
    node_status::addresses(&core.host, &core.config)
}

#[cfg(test)]
mod tests;
