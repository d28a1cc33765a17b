//! The kubelet's process: the core on tokio, with the adapters that carry its operations out.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use carrack_engine::requests::Requests;
use carrack_engine::shell::{Clock, Doer, EventSink, random_seed, run_core};
use carrack_engine::{Rng, Time, Transport};
use tokio::task::JoinSet;

use crate::adapters::backend::{self, Node, Operations, Published, Resizes, SharedCounts, VolumeCounts};
use crate::adapters::credentials::Own;
use crate::adapters::cri::Cri;
use crate::adapters::drivers::Drivers;
use crate::adapters::drivers::csi::Csi;
use crate::adapters::drivers::dead::Looks;
use crate::adapters::drivers::flex::Flex;
use crate::adapters::drivers::usage::Usages;
use crate::adapters::found_cpus::FoundCpus;
use crate::adapters::logind::Logind;
use crate::adapters::manifests::Manifests;
use crate::adapters::plugins::Plugins;
use crate::adapters::podresources::{Lister, PublishedDevices};
use crate::adapters::pulse::Pulse;
use crate::adapters::reviews::Reviews;
use crate::adapters::stats::Stats;
use crate::adapters::storage_times::StorageTimes;
use crate::adapters::store::{Kept, Store};
use crate::adapters::{
    blocking, cgroups, env_files, found, host, io_error, kernel, kernel_log, log_links, logs, net, now, storage_times,
    volumes,
};
use crate::allocation::Reading;
use crate::config::{KubeletConfig, NodeConfig};
use crate::configz;
use crate::core::{KubeletCore, goes_with};
use crate::effects::{In, Loaded, Op, OpError, Out, Outcome, Reply};
use crate::runtime::is_uid;
use crate::server::{Backend, Healthz, Server, ServerConfig, Settings, server_tls};

/// Where a node's logs are.
const SYSTEM_LOGS: &str = "/var/log";

/// Why the kubelet could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// Its directories or sockets cannot be made.
    #[error("the kubelet cannot start: {0}")]
    Start(#[from] OpError),
    /// Its server cannot be set up.
    #[error("the kubelet's server cannot start: {0}")]
    Server(String),
    /// Its core ended itself.
    #[error("{0}")]
    Ended(String),
}

/// Whether a node's configuration goes with this machine: a kubelet for which it does not ends as soon as it starts.
///
/// # Errors
/// Why not, for people.
pub fn check_machine(config: &NodeConfig) -> Result<(), String> {
    let place = host::Place {
        dir: "/".into(),
        boot_id: host::BOOT_ID.into(),
        resolver: None,
        pods_group: config.cgroup_root.clone(),
        cpus: FoundCpus::default(),
    };
    if config.protect_kernel {
        kernel::check(Path::new(kernel::SETTINGS)).map_err(|error| error.to_string())?;
    }
    Manifests::of(config).map_err(|error| error.to_string())?;
    let facts = host::facts(&place).map_err(|error| error.to_string())?;
    goes_with(config, &facts)
}

/// Carries operations out, each in a task of its own.
struct Machine {
    cri: Arc<Cri>,
    store: Store,
    stats: Arc<Stats>,
    plugins: Option<Plugins>,
    drivers: Drivers,
    plugin_dir: PathBuf,
    root: PathBuf,
    host: host::Place,
    manifests: Arc<Manifests>,
    pods: Published,
    counts: SharedCounts,
    operations: Operations,
    volumes: VolumeCounts,
    resizes: Resizes,
    storage: StorageTimes,
    devices: PublishedDevices,
    lister: Option<tokio::task::JoinHandle<()>>,
    events: Option<EventSink<In>>,
    serving: Option<tokio::task::JoinHandle<()>>,
    announcing: Option<tokio::task::JoinHandle<()>>,
    following: Option<tokio::task::JoinHandle<()>>,
    judging: Option<tokio::task::JoinHandle<()>>,
    logind: Logind,
    inhibiting: Option<tokio::task::JoinHandle<()>>,
    reading_log: Option<tokio::task::JoinHandle<()>>,
    failed: tokio::sync::mpsc::UnboundedSender<OpError>,
    pulse: Pulse,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let tasks = [
            self.serving.take(),
            self.announcing.take(),
            self.lister.take(),
            self.following.take(),
            self.judging.take(),
            self.inhibiting.take(),
            self.reading_log.take(),
        ];
        for task in tasks.into_iter().flatten() {
            task.abort();
        }
    }
}

/// How long those who follow a log are waited for at the end; a little more than the server gives them.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(6);

#[expect(clippy::too_many_arguments, reason = "the neighbours of all operations")]
async fn carry_out(
    cri: Arc<Cri>,
    store: Store,
    plugins: Option<Plugins>,
    drivers: Drivers,
    stats: Arc<Stats>,
    pods: Vec<Arc<k8s_openapi::api::core::v1::Pod>>,
    host: host::Place,
    manifests: Arc<Manifests>,
    root: PathBuf,
    op: Op,
) -> Outcome {
    let no_plugins = || OpError::Failed("device plugins are not served yet".into());
    Ok(match op {
        Op::Load => {
            let read = move || {
                Ok((
                    store.load()?,
                    store.load_checkpoint(Kept::Devices)?,
                    store.load_checkpoint(Kept::Cpus)?,
                    store.load_checkpoint(Kept::Memory)?,
                    store.load_checkpoint(Kept::Allocated)?,
                    store.load_checkpoint(Kept::Actuated)?,
                    host::facts(&host)?,
                ))
            };
            let (records, checkpoint, cpus, memory, allocated, actuated, host) = blocking(read).await?;
            let found = blocking(move || found::read(&root).map_err(io_error("looking for volumes"))).await;
            let found = found.inspect_err(|error| tracing::warn!(%error, "volumes are looked for one by one")).ok();
            Reply::Loaded(Box::new(Loaded { records, checkpoint, cpus, memory, allocated, actuated, host, found }))
        }
        Op::Host => {
            // An unknown place is that of the kubelet.
            let images = cri.image_dir().await.unwrap_or_default();
            let facts = blocking(move || {
                let mut facts = host::facts(&host)?;
                if let Some(dir) = images {
                    host::image_disk(&mut facts, &dir, &host);
                }
                Ok(facts)
            });
            Reply::Host(Box::new(facts.await?))
        }
        Op::ReadManifests(source) => Reply::Manifests(manifests.read(source).await?),
        Op::RemoveImage(id) => done(cri.remove_image(&id).await)?,
        Op::Usage(_) => Reply::Usage(stats.usage(pods).await?),
        Op::RuntimeInfo => Reply::RuntimeInfo(cri.info().await?),
        Op::Relist => Reply::Snapshot(cri.snapshot().await?),
        Op::ListImages => Reply::Images(cri.images().await?),
        Op::FindImage(name) => Reply::Image(cri.image(&name).await?),
        Op::PullImage { image, auths } => {
            let (image, with) = cri.pull(&image, auths).await?;
            Reply::Pulled { image, with }
        }
        Op::RotateLogs { logs, max_bytes, max_files } => done(logs::rotate(&cri, logs, max_bytes, max_files).await)?,
        Op::RunSandbox(spec) => cri.run_sandbox(&spec).await?,
        Op::StopSandbox(id) => done(cri.stop_sandbox(&id).await)?,
        Op::RemoveSandbox(id) => done(cri.remove_sandbox(&id).await)?,
        Op::ReadEnvFiles(files) => Reply::EnvFiles(blocking(move || env_files::read(&files)).await?),
        Op::CreateContainer(sandbox, spec) => Reply::Made(cri.create(&sandbox, &spec).await?),
        Op::StartContainer(id) => cri.start(&id).await?,
        Op::GiveCpus { id, cpus } => done(cri.give_cpus(&id, &cpus).await)?,
        Op::UpdateContainer { id, limits } => done(cri.resize(&id, &limits).await)?,
        Op::ReadGroup { path, containers } => {
            let read = blocking(move || cgroups::read(&path).map_err(io_error("reading a control group"))).await?;
            let containers = cri.memory_of(&containers).await?;
            Reply::Group(Box::new(Reading { containers, ..read }))
        }
        Op::StopContainer { id, timeout_s } => done(cri.stop(&id, timeout_s).await)?,
        Op::RemoveContainer(id) => done(cri.remove(&id).await)?,
        Op::Exec { id, command, timeout_s } => {
            let (code, output) = cri.exec(&id, command, timeout_s).await?;
            let output = String::from_utf8_lossy(&output[..output.len().min(net::MAX_REPLY)]).trim().to_owned();
            Reply::Exited { code, output }
        }
        Op::Net { action, timeout_s } => net::act(action, timeout_s).await,
        Op::SetUpVolume(setup) => match setup.publishing() {
            Some(part) => drivers.publish(&setup, part).await?,
            None => done(blocking(move || volumes::set_up(&setup)).await)?,
        },
        Op::TearDownVolume { uid, name, path, published } => match published {
            Some(published) => drivers.unpublish(&uid, &name, &path, &published).await?,
            None => done(blocking(move || volumes::tear_down(&path)).await)?,
        },
        Op::StageVolume(staging, inputs) => drivers.stage(&staging, &inputs).await?,
        Op::UnstageVolume(staging) => drivers.unstage(&staging).await?,
        Op::AskDriver(driver) => Reply::Attaches(drivers.flex.capabilities(&driver).await?.attach),
        Op::AskCsiNode(driver) => Reply::CsiNode(drivers.csi.about_node(&driver).await?),
        Op::ExpandVolume(expanding) => done(drivers.expand(&expanding).await)?,
        // What runs bears what somebody has labelled it with: for what is no UID nothing was made here.
        Op::RemovePod { uid, .. } if !is_uid(&uid) => Reply::Done,
        Op::RemovePod { uid, cgroup, log_directory } => {
            let dir = root.join("pods").join(uid.as_ref());
            done(
                blocking(move || {
                    cgroups::remove(&cgroup);
                    // A link that stays keeps no pod.
                    if let Err(error) = log_links::remove_all(Path::new(&log_directory)) {
                        tracing::warn!(%error, log_directory, "links to a pod's logs stay");
                    }
                    volumes::remove_pod(&dir.to_string_lossy(), &log_directory)
                })
                .await,
            )?
        }
        Op::SweepGroups { root, keep } => {
            let sweep = move || cgroups::sweep(&root, &keep).map_err(io_error("removing control groups"));
            done(blocking(sweep).await)?
        }
        Op::WriteGroups(groups) => {
            let write = move || cgroups::write_groups(&groups).map_err(io_error("writing control groups"));
            done(blocking(write).await)?
        }
        Op::SaveRecord { name, body } => done(blocking(move || store.save(&name, &body)).await)?,
        Op::DropRecord(name) => done(blocking(move || store.drop_record(&name)).await)?,
        Op::SaveCheckpoint(body) => done(blocking(move || store.save_checkpoint(Kept::Devices, &body)).await)?,
        Op::SaveCpus(body) => done(blocking(move || store.save_checkpoint(Kept::Cpus, &body)).await)?,
        Op::SaveMemory(body) => done(blocking(move || store.save_checkpoint(Kept::Memory, &body)).await)?,
        Op::SaveAllocated(body) => done(blocking(move || store.save_checkpoint(Kept::Allocated, &body)).await)?,
        Op::SaveActuated(body) => done(blocking(move || store.save_checkpoint(Kept::Actuated, &body)).await)?,
        Op::Allocate { resource, epoch, ids } => {
            Reply::Allocated(plugins.ok_or_else(no_plugins)?.allocate(&resource, epoch, ids).await?)
        }
        Op::Prefer { resource, epoch, available, required, count } => {
            let plugins = plugins.ok_or_else(no_plugins)?;
            Reply::Preferred(plugins.prefer(&resource, epoch, (available, required), count).await?)
        }
        Op::PreStart { resource, epoch, ids } => {
            done(plugins.ok_or_else(no_plugins)?.pre_start(&resource, epoch, ids).await)?
        }
        Op::LetGoDown
        | Op::Publish(_)
        | Op::PublishDevices(_)
        | Op::PublishVolumes(_)
        | Op::PublishResizes(_)
        | Op::Count(_) => Reply::Done,
    })
}

/// Upstream's name for an operation of the runtime.
fn operation(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::RunSandbox(_) => "run_podsandbox",
        Op::StopSandbox(_) => "stop_podsandbox",
        Op::RemoveSandbox(_) => "remove_podsandbox",
        Op::CreateContainer(..) => "create_container",
        Op::StartContainer(_) => "start_container",
        Op::StopContainer { .. } => "stop_container",
        Op::GiveCpus { .. } | Op::UpdateContainer { .. } => "update_container",
        Op::RemoveContainer(_) => "remove_container",
        Op::FindImage(_) => "image_status",
        Op::PullImage { .. } => "pull_image",
        Op::RemoveImage(_) => "remove_image",
        Op::ListImages => "list_images",
        Op::Relist => "list_containers",
        Op::RuntimeInfo => "status",
        Op::Exec { .. } => "exec_sync",
        _ => return None,
    })
}

fn done(r: Result<(), OpError>) -> Outcome {
    r.map(|()| Reply::Done)
}

impl Doer<Out, In> for Machine {
    fn clock(&mut self, clock: Clock) {
        self.pulse.goes_by(clock);
    }

    fn stepping(&mut self, now: Time) {
        self.pulse.beat(now);
    }

    fn start(&mut self, events: EventSink<In>) {
        let sink = events.clone();
        let plugins = Plugins::new(self.plugin_dir.clone(), move |event| sink.send(event));
        match plugins.serve() {
            Ok(task) => self.serving = Some(task),
            // Nobody listens only when the kubelet is ending anyway.
            Err(e) => drop(self.failed.send(e)),
        }
        self.announcing = Some(plugins.follow(self.root.join("plugins_registry")));
        self.plugins = Some(plugins);
        match (Lister { pods: self.pods.clone(), devices: self.devices.clone() }).serve(&self.root) {
            Ok(task) => self.lister = Some(task),
            Err(e) => drop(self.failed.send(e)),
        }
        let sink = events.clone();
        match self.drivers.csi.follow(self.root.join("plugins_registry"), move |event| sink.send(event)) {
            Ok(task) => self.following = Some(task),
            Err(e) => drop(self.failed.send(e)),
        }
        let sink = events.clone();
        self.judging = Some(self.drivers.follow_health(move |event| sink.send(event)));
        let sink = events.clone();
        self.inhibiting = self.logind.follow(move |event| sink.send(event));
        let sink = events.clone();
        self.reading_log = kernel_log::follow(move |event| sink.send(event));
        self.events = Some(events);
    }

    fn run(&mut self, Out { id, op }: Out) {
        if let Op::Publish(pods) = op {
            // The value is replaced whole.
            *self.pods.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(pods);
            return;
        }
        if let Op::PublishDevices(view) = op {
            *self.devices.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = view;
            return;
        }
        if let Op::PublishVolumes(census) = op {
            *self.volumes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = census;
            return;
        }
        if let Op::PublishResizes(counts) = op {
            *self.resizes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = *counts;
            return;
        }
        if let Op::Count(what) = op {
            backend::count(&self.counts, what, &self.pods);
            return;
        }
        let Some(events) = self.events.clone() else { return };
        if matches!(op, Op::LetGoDown) {
            self.logind.let_go();
            events.send(In::Done(id, Ok(Reply::Done)));
            return;
        }
        let (cri, store, plugins) = (self.cri.clone(), self.store.clone(), self.plugins.clone());
        let (host, root, stats, drivers) =
            (self.host.clone(), self.root.clone(), self.stats.clone(), self.drivers.clone());
        let manifests = self.manifests.clone();
        let pods = match &op {
            Op::Usage(of) => {
                let all = self.pods.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
                all.iter().filter(|pod| of.contains(pod.metadata.uid.as_deref().unwrap_or_default())).cloned().collect()
            }
            _ => Vec::new(),
        };
        let (name, operations) = (operation(&op), self.operations.clone());
        let (of_volume, storage) = (storage_times::operation(&op), self.storage.clone());
        tokio::spawn(async move {
            let began = now();
            // In a task of its own: what it came to is told also where it has panicked. Somebody waits for each outcome, and for
            // that of a listing everybody does.
            let work = tokio::spawn(carry_out(cri, store, plugins, drivers, stats, pods, host, manifests, root, op));
            let outcome = work.await.unwrap_or_else(|why| Err(OpError::Failed(format!("it was given up: {why}"))));
            if let Some(name) = name {
                operations.ended((name, outcome.is_ok()), now().since(began));
            }
            if let Some(operation) = of_volume {
                storage.ended((operation, outcome.is_ok()), now().since(began));
            }
            events.send(In::Done(id, outcome));
        });
    }
}

/// Runs the kubelet until `shutdown` resolves. Pods and their containers live on.
///
/// # Errors
/// [`KubeletError`] when it cannot start or go on.
pub async fn run(
    config: KubeletConfig,
    transport: Arc<dyn Transport>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), KubeletError> {
    let requests = Requests::of(&config.api_host);
    let transport = requests.counted(transport);
    let root = PathBuf::from(&config.node.root_dir);
    let store = {
        let root = root.clone();
        blocking(move || Store::new(&root)).await?
    };
    let credentials = {
        let of = config.credentials.clone();
        blocking(move || Own::new(of)).await?
    };
    let cri = Arc::new(Cri::new(config.runtime_endpoint.clone())?.with_credentials(credentials));
    let pods: Published = Arc::new(Mutex::new(Arc::new(Vec::new())));
    let (counts, operations) = (SharedCounts::default(), Operations::default());
    let (volume_counts, storage) = (VolumeCounts::default(), StorageTimes::default());
    let (resizes, pulse) = (Resizes::default(), Pulse::default());
    let mut node = config.node;
    let (log_dir, pods_group) = (PathBuf::from(&node.log_dir), node.cgroup_root.clone());
    let stats = Arc::new(Stats::new(cri.clone(), root.clone(), log_dir, pods_group));
    let host = host::Place {
        dir: root.clone(),
        boot_id: config.boot_id_file.clone().unwrap_or_else(|| host::BOOT_ID.into()),
        resolver: node.resolv_conf.clone(),
        pods_group: node.cgroup_root.clone(),
        cpus: FoundCpus::default(),
    };
    let facts = {
        let host = host.clone();
        blocking(move || host::facts(&host)).await?
    };
    if node.fail_on_swap && facts.swap_bytes > 0 {
        let why = "the machine has swap, and failSwapOn says not to run then";
        return Err(KubeletError::Start(OpError::Failed(why.into())));
    }
    if node.protect_kernel {
        blocking(|| kernel::check(Path::new(kernel::SETTINGS))).await?;
    }
    let drivers = Drivers {
        looks: Looks::default(),
        csi: Csi::default(),
        flex: Flex::new(PathBuf::from(&node.volume_plugin_dir), &node.node_name),
        root: root.clone(),
        boot_id: facts.boot_id.clone(),
        usages: Usages::default(),
    };
    let devices = PublishedDevices::default();
    let backend: Arc<dyn Backend> = Arc::new(Node {
        cri: cri.clone(),
        pods: pods.clone(),
        counts: counts.clone(),
        stats: stats.clone(),
        operations: operations.clone(),
        volumes: volume_counts.clone(),
        resizes: resizes.clone(),
        devices: devices.clone(),
        storage: storage.clone(),
        node_name: node.node_name.clone(),
        drivers: drivers.clone(),
        host: host.clone(),
        pulse: pulse.clone(),
    });
    let mut server = None;
    if let Some(serving) = &config.serving {
        let failed = |e: &dyn std::fmt::Display| KubeletError::Server(e.to_string());
        let bind = config.listen.unwrap_or_else(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), node.port));
        let bound = Server::bind(ServerConfig {
            bind,
            // Port 0 is none.
            read_only: Some(SocketAddr::new(bind.ip(), node.read_only_port)).filter(|at| at.port() != 0),
            tls: server_tls(serving, &node.offered).map_err(|e| failed(&e))?,
            allowed_users: serving.allowed_names.clone(),
            authority: Some(Arc::new(Reviews::new(transport.clone(), &node.node_name, node.token_reviews))),
            log_dir: PathBuf::from(&node.log_dir),
            node_name: node.node_name.clone(),
            version: node.version.clone(),
            configz: configz::page(&node, &facts),
            asked: requests,
            settings: Settings {
                debugging: node.debugging,
                system_logs: node.system_logs.then(|| PathBuf::from(SYSTEM_LOGS)),
                log_queries: node.log_queries,
                anonymous: node.anonymous,
                process: config.process_metrics,
                flags: config.flags,
                started: config.started,
                ..Settings::default()
            },
        })
        .await
        .map_err(|e| failed(&e))?;
        // Port 0 asks for any: the Node tells which.
        node.port = bound.local_addr().map_err(|e| failed(&e))?.port();
        server = Some(bound);
    }
    let (failed, mut failures) = tokio::sync::mpsc::unbounded_channel();
    let machine = Machine {
        cri,
        drivers,
        store,
        stats,
        plugins: None,
        plugin_dir: root.join("device-plugins"),
        manifests: Arc::new(Manifests::of(&node)?),
        host,
        root,
        pods,
        counts,
        operations,
        volumes: volume_counts,
        resizes,
        storage,
        devices,
        lister: None,
        events: None,
        serving: None,
        announcing: None,
        following: None,
        judging: None,
        logind: Logind::new(node.shutdown.total()),
        inhibiting: None,
        reading_log: None,
        failed,
        pulse,
    };
    // They end with this.
    let mut telling = JoinSet::new();
    if let Some(bind) = node.healthz {
        telling.spawn(Healthz { bind, backend: backend.clone(), settings: Settings::default() }.serve());
    }
    let core = KubeletCore::new(node, &Rng::new(random_seed()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut serving = tokio::spawn(async move {
        match server {
            // Ends when the kubelet does: the sender is dropped then.
            Some(bound) => bound.run(backend, async move { drop(stopped.await) }).await,
            None => {
                drop(stopped.await);
                Ok(())
            }
        }
    });
    let result = tokio::select! {
        r = run_core(core, transport, machine, shutdown) => r.map_err(KubeletError::Ended),
        Some(e) = failures.recv() => Err(KubeletError::Start(e)),
        r = &mut serving => Err(KubeletError::Server(match r {
            Ok(Ok(())) => "it ended".into(),
            Ok(Err(e)) => e.to_string(),
            Err(e) => e.to_string(),
        })),
    };
    drop(stop);
    // Those who follow a log are told the end; who does not listen is not waited for.
    if !serving.is_finished() && tokio::time::timeout(DRAIN, &mut serving).await.is_err() {
        serving.abort();
    }
    result
}
