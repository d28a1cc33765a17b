//! The handler's shell: carries out what its core asks of the node.
//!
//! Every operation runs in a task of its own and ends with exactly one outcome. The pod's network and mounts are changed
//! from inside the containers' own namespaces, so that nothing is left on the host when a container ends.

mod agent;
mod anchor;
mod cpu_manager;
mod disks;
mod enter;
mod kernel_text;
mod leaving;
mod lost;
mod metrics;
mod network;
mod plugin;
mod record;
pub mod server;
pub mod watchdog;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anchor::Anchor;
use carrack_engine::shell::{Clock, Doer, EventSink, run_core};
use carrack_engine::{Rng, Transport};
use carrack_launcher::accel::{PROBE_DEADLINE, Probe, probe};
use carrack_launcher::client::{self, ClientError, Watch};
use carrack_launcher::{Layout, promise, proto};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::effects::{Call, In, Op, OpError, OpId, Out, Outcome, Place, Preparation, Prepared, Reply};
use super::{Handler, keep_alive};
use crate::fence::GUEST_RUNS;

/// How long a launcher may take to answer.
const CALL_DEADLINE: Duration = Duration::from_secs(10);
/// KVM's device.
const KVM: &str = "/dev/kvm";
/// Least time between two states of a guest.
const STATE_PAUSE: Duration = Duration::from_millis(5);
/// What a kept finding about KVM begins with. One without it may be what an earlier version kept where no guest could
/// be tried, as before KVM's module is loaded.
const PROBE_FORMAT: u32 = 2;
/// How often a promise is tried while the one before is being written, which takes no time on storage that works.
const PROMISE_TRIES: u32 = 50;
/// Wait before it is tried again.
const PROMISE_AGAIN: Duration = Duration::from_millis(20);
/// Wait before it is found out once more whether guests can run on KVM, where that is in doubt.
const PROBE_AGAIN: Duration = Duration::from_secs(60);
/// How long a command run on the node may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(20);

/// Where things are on the node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name, for metrics.
    pub node_name: String,
    /// The kubelet's root directory.
    pub kubelet_dir: PathBuf,
    /// Where the handler keeps its records.
    pub state_dir: PathBuf,
    /// Where containers of container disks find their program; the same as the controllers'
    /// [`crate::controllers::Config::keep_alive_dir`].
    pub keep_alive_dir: PathBuf,
    /// That program: an executable that needs no libraries and ends on SIGTERM.
    pub keep_alive_program: Vec<u8>,
    /// The machine's watchdog, such as `/dev/watchdog`, where the handler is to use it.
    pub watchdog: Option<PathBuf>,
}

impl Config {
    /// The launcher's directories as the host sees them.
    pub(crate) fn layout(&self, place: &Place) -> Layout {
        let pod = self.kubelet_dir.join("pods").join(&place.pod_uid);
        Layout::on_host(&pod.join("volumes/kubernetes.io~empty-dir"), &place.uid)
    }
}

/// Runs the whole role, core and console server, until `stop`.
///
/// # Errors
/// Why it cannot go on.
pub async fn run(
    node_name: &str,
    config: Config,
    listener: tokio::net::TcpListener,
    tls: carrack_auth::tls::ServerTls,
    transport: Arc<dyn Transport>,
    rng: &Rng,
    stop: CancellationToken,
) -> Result<(), String> {
    let port = listener.local_addr().map_err(|error| error.to_string())?.port();
    let guests = server::Guests::default();
    let doer = NodeDoer::new(config.clone(), guests.clone());
    let transport = guests.requests.counted(transport);
    let mut core = Handler::new(node_name, rng).with_port(port);
    let left = watchdog::left(&config.state_dir);
    if let Some(device) = left.clone().filter(|left| config.watchdog.as_ref() != Some(left)) {
        // What an earlier process with other settings holds armed would reset the machine.
        let state_dir = config.state_dir.clone();
        let released = tokio::task::spawn_blocking(move || watchdog::release(&state_dir, &device)).await;
        if let Ok(Err(refused)) = released {
            tracing::error!("what an earlier handler left armed is not closed: {}", refused.why);
        }
    }
    if config.watchdog.is_some() {
        // Another device than the one to be used was closed just now.
        core = match left.filter(|left| config.watchdog.as_ref() == Some(left)) {
            Some(path) => core.taking_over_watchdog(watchdog::set_to(&path)),
            None => core.with_watchdog(),
        };
    }
    let core = run_core(core, transport.clone(), doer, stop.clone().cancelled_owned());
    tokio::select! {
        ended = core => ended,
        ended = server::serve(listener, tls, config, guests, transport, stop.clone()) => match ended {
            Ok(()) => Ok(()),
            Err(error) => Err(format!("the console server ended: {error}")),
        },
    }
}

/// Carries out the core's operations.
pub struct NodeDoer {
    config: Arc<Config>,
    anchor: Arc<Anchor>,
    guests: server::Guests,
    events: Option<EventSink<In>>,
    agents: agent::Agents,
    watchdog: Arc<watchdog::Watchdog>,
    tasks: JoinSet<()>,
    watches: Arc<Mutex<BTreeMap<String, AbortHandle>>>,
}

impl NodeDoer {
    /// A doer for a node. `guests` is what [`server::serve`] reads.
    #[must_use]
    pub fn new(config: Config, guests: server::Guests) -> Self {
        let agents = guests.agents.clone();
        let watchdog = Arc::new(watchdog::Watchdog::new(config.watchdog.clone(), Some(&config.state_dir)));
        Self {
            config: Arc::new(config),
            anchor: Arc::new(Anchor::new(Clock::default())),
            guests,
            events: None,
            agents,
            watchdog,
            tasks: JoinSet::new(),
            watches: Arc::default(),
        }
    }
}

impl Doer<Out, In> for NodeDoer {
    fn clock(&mut self, clock: Clock) {
        self.anchor = Arc::new(Anchor::new(clock));
    }

    fn start(&mut self, events: EventSink<In>) {
        self.tasks.spawn(plugin::run_all(self.config.kubelet_dir.join("device-plugins"), events.clone()));
        self.tasks.spawn(cpu_manager::follow(self.config.kubelet_dir.clone(), events.clone()));
        self.tasks.spawn(agent::thaw_all(self.config.clone(), self.agents.clone(), events.clone()));
        self.guests.tell_to(events.clone());
        self.events = Some(events);
    }

    fn run(&mut self, Out { id, op }: Out) {
        let Some(events) = self.events.clone() else { return };
        while self.tasks.try_join_next().is_some() {}
        match op {
            Op::Publish(served) => self.guests.replace(served),
            Op::Watch(place) => {
                let uid = place.uid.clone();
                let task = self.tasks.spawn(follow(self.config.layout(&place), uid.clone(), events));
                if let Some(old) = lock(&self.watches).insert(uid, task) {
                    old.abort();
                }
            }
            Op::Unwatch(uid) => {
                if let Some(task) = lock(&self.watches).remove(&uid) {
                    task.abort();
                }
            }
            Op::AskAgent(question) => {
                let (config, agents) = (self.config.clone(), self.agents.clone());
                self.tasks.spawn(async move {
                    let answer = agent::report(&config, &agents, &question).await;
                    let outcome = answer
                        .map(|said| Reply::Agent(Box::new(said)))
                        .map_err(|error| OpError(carrack_engine::causes(&error)));
                    report(&events, id, outcome);
                });
            }
            Op::Probe => {
                let config = self.config.clone();
                self.tasks.spawn(async move {
                    let (found, lasting) = probe_once(&config.state_dir).await;
                    report(&events, id, Ok(Reply::Probed(found)));
                    // Without the device it is asked for when the device comes.
                    if !lasting && Path::new(KVM).exists() {
                        tokio::time::sleep(PROBE_AGAIN).await;
                        events.send(In::ProbeAgain);
                    }
                });
            }
            Op::Watchdog(call) => {
                let (watchdog, anchor) = (self.watchdog.clone(), self.anchor.clone());
                self.tasks.spawn(async move {
                    let outcome = blocking(move || watchdog.call(call, &anchor)).await;
                    report(&events, id, outcome);
                });
            }
            op => {
                let (config, anchor) = (self.config.clone(), self.anchor.clone());
                self.tasks.spawn(async move {
                    let outcome = carry_out(&config, &anchor, op).await;
                    report(&events, id, outcome);
                });
            }
        }
    }
}

fn report(events: &EventSink<In>, id: OpId, outcome: Outcome) {
    events.send(In::Done(id, outcome));
}

/// A lock whose holders cannot panic.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn failed(what: &str) -> impl FnOnce(std::io::Error) -> OpError {
    let what = what.to_owned();
    move |error| OpError(format!("{what}: {error}"))
}

async fn carry_out(config: &Arc<Config>, anchor: &Anchor, op: Op) -> Outcome {
    let shared = config.clone();
    match op {
        Op::Load => blocking(move || load(&shared)).await,
        Op::Save(record) => {
            blocking(move || {
                record::save(&shared.state_dir, &record).map(|()| Reply::Done).map_err(failed("cannot keep a record"))
            })
            .await
        }
        Op::Drop(uid) => {
            blocking(move || {
                record::drop(&shared.state_dir, &uid).map(|()| Reply::Done).map_err(failed("cannot drop a record"))
            })
            .await
        }
        Op::Prepare(preparation) => prepare(config, *preparation).await,
        Op::Call(place, call) => call_launcher(config, &place, call).await,
        Op::TakeOver(place) => take_over(&place).await,
        Op::Promise(places, until) => {
            let until_ns = anchor.boot_ns(until, GUEST_RUNS)?;
            keep_promises(config, places, until_ns).await
        }
        Op::Destroy(place) => {
            blocking(move || {
                carrack_processes::kill_pod(Path::new("/proc"), &place.pod_uid)
                    .and_then(|_| carrack_processes::any_left(Path::new("/proc"), &place.pod_uid))
                    .map(Reply::Processes)
                    .map_err(failed("cannot end the processes of a pod"))
            })
            .await
        }
        Op::LookForProcesses(sought) => {
            blocking(move || {
                lost::any_process_left(Path::new("/proc"), &sought)
                    .map(Reply::Processes)
                    .map_err(failed("cannot look for processes"))
            })
            .await
        }
        // Handled before.
        Op::Watch(_) | Op::Unwatch(_) | Op::Publish(_) | Op::AskAgent(_) | Op::Watchdog(_) | Op::Probe => {
            Ok(Reply::Done)
        }
    }
}

/// Tells monitors until when their guests may run, each by itself: one whose file system hangs keeps no other from
/// hearing of it in time.
async fn keep_promises(config: &Config, places: Vec<Place>, until_ns: u64) -> Outcome {
    let mut writes = JoinSet::new();
    for place in places {
        let file = config.layout(&place).promise_file();
        writes.spawn(async move {
            let written = keep_promise(file, until_ns).await;
            written.map_err(|error| format!("{}: {error}", place.uid))
        });
    }
    let mut failures = Vec::new();
    while let Some(written) = writes.join_next().await {
        failures.extend(written.unwrap_or_else(|error| Err(error.to_string())).err());
    }
    if failures.is_empty() {
        return Ok(Reply::Done);
    }
    Err(OpError(format!("until when a guest may run cannot be kept: {}", failures.join("; "))))
}

/// Writes one promise. While another one is being written it is tried again, for a while.
async fn keep_promise(file: PathBuf, until_ns: u64) -> std::io::Result<()> {
    let mut tries_left = PROMISE_TRIES;
    loop {
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || promise::write(&path, until_ns)).await;
        match written.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && tries_left > 0 => tries_left -= 1,
            other => return other,
        }
        tokio::time::sleep(PROMISE_AGAIN).await;
    }
}

/// Runs what blocks aside from the runtime's threads.
async fn blocking(work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(OpError(error.to_string())))
}

fn load(config: &Config) -> Outcome {
    keep_alive::install(&config.keep_alive_dir, &config.keep_alive_program)
        .map_err(failed("cannot install the program for container disks"))?;
    record::load(&config.state_dir).map(Reply::Loaded).map_err(failed("cannot read the local record"))
}

/// What changes with each start of the machine; empty where it cannot be read.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// What the probe found, and whether that holds until the machine is started again. A machine that has just been
/// started is busy: it is asked once more then.
async fn probe_once(state_dir: &Path) -> (Probe, bool) {
    let boot_id = boot_id();
    let path = state_dir.join("accel.json");
    let text = std::fs::read(&path).ok();
    let known = text.and_then(|text| serde_json::from_slice::<(u32, String, Probe)>(&text).ok());
    if let Some((PROBE_FORMAT, at, found)) = known
        && at == boot_id
        && !boot_id.is_empty()
    {
        return (found, true);
    }
    let (mut found, mut lasting) = probe(PROBE_DEADLINE).await;
    if !lasting && Path::new(KVM).exists() {
        (found, lasting) = probe(PROBE_DEADLINE).await;
    }
    if !lasting {
        return (found, false);
    }
    let text = serde_json::to_vec(&(PROBE_FORMAT, &boot_id, &found)).unwrap_or_default();
    if let Err(error) = record::replace(&path, &text) {
        tracing::warn!(%error, "what the KVM probe found is not kept");
    }
    (found, true)
}

async fn prepare(config: &Arc<Config>, preparation: Preparation) -> Outcome {
    let pid = find(&preparation.place.compute_id).await?;
    // Both take some processes or mounts; neither needs the other.
    let network = async {
        let mut facts = BTreeMap::new();
        for link in &preparation.links {
            facts.insert(link.pod_interface.clone(), network::prepare(pid, link).await.map_err(OpError)?);
        }
        Ok::<_, OpError>(facts)
    };
    let (shared, wanted) = (config.clone(), preparation.clone());
    let files = tokio::task::spawn_blocking(move || prepare_files(&shared, &wanted, pid));
    let (links, files) = tokio::join!(network, files);
    let mut prepared = files.map_err(|error| OpError(error.to_string()))??;
    prepared.links = links?;
    Ok(Reply::Prepared(Box::new(prepared)))
}

fn prepare_files(config: &Config, preparation: &Preparation, pid: u32) -> Result<Prepared, OpError> {
    for disk in &preparation.disks {
        let source = carrack_processes::init_of(Path::new("/proc"), &disk.container_id)
            .map_err(failed("cannot look for a container disk"))?
            .ok_or_else(|| OpError(format!("the container of disk {} does not run", disk.target)))?;
        disks::mount(source, disk.path.as_deref(), pid, &disk.target).map_err(OpError)?;
    }
    let mut prepared = Prepared::default();
    (prepared.dns, prepared.search) = network::resolver(pid);
    let volumes = config.kubelet_dir.join("pods").join(&preparation.place.pod_uid).join("volumes/kubernetes.io~secret");
    for name in &preparation.secrets {
        let files = record::read_files(&volumes.join(name)).map_err(failed("cannot read a secret"))?;
        prepared.secrets.insert(name.clone(), files);
    }
    Ok(prepared)
}

/// Process id, on the host, of a container's first process.
async fn find(container_id: &str) -> Result<u32, OpError> {
    let id = container_id.to_owned();
    let found = tokio::task::spawn_blocking(move || carrack_processes::init_of(Path::new("/proc"), &id)).await;
    match found {
        Ok(Ok(Some(pid))) => Ok(pid),
        Ok(Ok(None)) => Err(OpError(format!("container {container_id} has no process"))),
        Ok(Err(error)) => Err(OpError(format!("cannot look for container {container_id}: {error}"))),
        Err(error) => Err(OpError(error.to_string())),
    }
}

async fn call_launcher(config: &Config, place: &Place, call: Call) -> Outcome {
    let starts = matches!(call, Call::Sync(_));
    let call = match call {
        Call::Sync(spec) => proto::Call::Sync { spec },
        Call::Shutdown => proto::Call::Shutdown,
        Call::Kill => proto::Call::Kill,
    };
    match client::call(&config.layout(place).command_socket(), call, CALL_DEADLINE).await {
        Ok(domain) => Ok(Reply::Domain(Box::new(domain))),
        Err(ClientError::Refused(why)) if starts && why.starts_with(proto::NOT_A_REQUEST) => Ok(Reply::NotUnderstood),
        Err(error) => Err(OpError(carrack_engine::causes(&error))),
    }
}

async fn follow(layout: Layout, uid: String, events: EventSink<In>) {
    let error = match Watch::open(&layout.command_socket()).await {
        Ok(mut watch) => loop {
            match watch.next().await {
                Ok(domain) => events.send(In::Domain(uid.clone(), Box::new(domain))),
                Err(error) => break error,
            }
            // Whoever is in a container may send states without end; what is not read yet waits there, and not here.
            tokio::time::sleep(STATE_PAUSE).await;
        },
        Err(error) => error,
    };
    events.send(In::WatchClosed(uid, carrack_engine::causes(&error)));
}

/// Runs a new monitor in the launcher's container.
async fn take_over(place: &Place) -> Outcome {
    let pid = find(&place.compute_id).await?;
    let uid = place.uid.clone();
    let work = move || {
        let arguments = ["virt-launcher", "monitor", "--detach", "--uid", &uid];
        enter::run(pid, "/usr/bin/carrack", &arguments).map(|()| Reply::Done).map_err(OpError)
    };
    blocking(work).await
}

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// What it complained of, for people.
async fn command(program: &str, arguments: &[&str], input: Option<String>) -> Result<String, String> {
    use std::process::Stdio;
    use tokio::io::AsyncWriteExt as _;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    let exchange = async {
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            stdin.write_all(input.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(COMMAND_DEADLINE, exchange)
        .await
        .map_err(|_| format!("{program} did not end within {} s", COMMAND_DEADLINE.as_secs()))?
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}: {:.500}", output.status, said.trim()))
}
