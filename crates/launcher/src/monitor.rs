#![expect(clippy::disallowed_methods, reason = "shell: it watches the clock while QEMU starts")]
//! The monitor: the process between QEMU and virt-handler.
//!
//! One loop takes commands and QMP events in the order in which they come, lets [`Domain`] judge them, and
//! does what it says. Beside it run a task for each connection of the command socket, one for each DHCP
//! server, and one for a copy of disks; none decides anything about the guest. The loop waits for nothing that
//! may hang with a copy's storage: it has to stop the guest on time.
//!
//! ```text
//!   connection ──► commands ──► loop ◄──► QMP
//!   connection ◄── states ◄────── │
//!                                 └──► domain.json
//! ```

use crate::argv::{AGENT_CHARDEV, AGENT_PORT};
use crate::copying;
use crate::dhcp;
use crate::domain::{Domain, EndReason, Observed, Phase, Todo};
use crate::layout::{self, Layout};
use crate::lines::split;
use crate::pinning;
use crate::prepare::{claimed, prepare, replace, resume};
use crate::promise;
use crate::proto::{Call, CopiedDisk, LINE_LIMIT_BYTES, NOT_A_REQUEST, Request, Response, VERSION};
use crate::qmp::{Event, Qmp, QmpError};
use crate::spec::{CpuSpec, MachineSpec};
use crate::trim::Rest;
use crate::writer::{self, Claim, Held};
use rustix::fs::FlockOperation;
use serde_json::json;
use std::future::pending;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

/// QEMU makes its sockets within a few hundredths of a second; a busy machine may need longer.
const ATTACH_DEADLINE: Duration = Duration::from_secs(30);
/// So much longer may one take for each gibibyte of memory: huge pages are taken, and cleared, before QEMU answers.
/// (Upstream: `qemuConnectMonitor` in libvirt.)
const ATTACH_PER_GIB: Duration = Duration::from_secs(1);
/// How often it is tried.
const ATTACH_PERIOD: Duration = Duration::from_millis(5);
/// How often one that hangs is tried.
const HUNG_PERIOD: Duration = Duration::from_secs(1);

/// How long those who watch may take to read the last state and hang up, before QEMU is let go.
const FAREWELL_DEADLINE: Duration = Duration::from_secs(5);

/// How long QEMU may take to quit.
const QUIT_DEADLINE: Duration = Duration::from_secs(10);

/// virt-handler keeps one connection and makes short ones beside it.
const CONNECTIONS: usize = 16;

/// The guest's console is kept up to this length, and once more under a second name.
const SERIAL_LOG_BYTES: u64 = 4 << 20;

/// How often the console's length is looked at, and whether anything has happened since.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(10);

/// How the monitor comes into being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// By the container's first process, which waits for QEMU's command line on this process's standard output.
    Fresh,
    /// In place of a monitor that died.
    TakeOver,
}

/// Why a monitor could not do its work. The machine is not affected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MonitorError {
    #[error("another monitor is at work")]
    Busy,
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("there is no machine to take over: {0}")]
    NoMachine(String),
    #[error("QEMU does not answer: {0}")]
    Qemu(#[from] QmpError),
}

/// A copy of disks that is being made, or begun.
struct UnderWay {
    id: String,
    /// Who is answered when it has begun.
    reply: Option<oneshot::Sender<Response>>,
}

struct Command {
    call: Call,
    reply: oneshot::Sender<Response>,
}

struct Monitor {
    layout: Layout,
    start: Start,
    domain: Domain,
    states: watch::Sender<Domain>,
    qmp: Option<Qmp>,
    /// The processors that QEMU was started with.
    cpu: CpuSpec,
    /// The machine has no power button.
    no_acpi: bool,
    /// How large its memory is, in whole gibibytes.
    memory_gib: u32,
    helpers: JoinSet<()>,
    /// The disks that the guest writes, and who looks whether it still may.
    disks: Vec<Arc<Held>>,
    lookout: JoinSet<String>,
    /// The guest has shut down to be started again, and it is being started.
    restart_due: bool,
    restarting: bool,
    /// The copy of the disks that is being made, and who tells when it has begun.
    copying: Option<UnderWay>,
    begun: Option<oneshot::Receiver<()>>,
    /// Who works on copies, one at a time: by turns.
    copies: JoinSet<copying::Ended>,
    turn: Arc<Mutex<()>>,
    /// The copy that was begun last.
    last_copy: String,
    parent: Option<rustix::process::Pid>,
}

/// Runs the monitor until the machine has ended; tells how.
pub(crate) async fn run(layout: Layout, start: Start) -> Result<Option<EndReason>, MonitorError> {
    let _lock = lock(&layout)?;
    let mut domain = Domain::waiting(&layout.uid);
    let mut spec = None;
    if start == Start::TakeOver {
        let text = std::fs::read(layout.spec_file()).map_err(|e| MonitorError::NoMachine(e.to_string()))?;
        let found: MachineSpec = serde_json::from_slice(&text).map_err(|e| MonitorError::NoMachine(e.to_string()))?;
        domain = remembered(&layout).unwrap_or(domain);
        if domain.phase == Phase::Waiting {
            domain.observe(Observed::Accepted { accel: found.accel });
        }
        spec = Some(found);
    }
    let listen = |source| MonitorError::Io { what: "cannot listen on the command socket", source };
    let listener = layout::listen(&layout.command_socket()).map_err(listen)?;
    let (states, _) = watch::channel(domain.clone());
    let mut monitor = Monitor {
        layout,
        start,
        domain,
        states,
        qmp: None,
        cpu: CpuSpec::default(),
        no_acpi: false,
        memory_gib: 0,
        helpers: JoinSet::new(),
        disks: Vec::new(),
        lookout: JoinSet::new(),
        restart_due: false,
        restarting: false,
        copying: None,
        begun: None,
        copies: JoinSet::new(),
        turn: Arc::default(),
        last_copy: String::new(),
        parent: rustix::process::getppid(),
    };
    if let Some(spec) = spec {
        match servers(&spec) {
            Ok(servers) => monitor.serve_dhcp(servers),
            Err(error) => tracing::error!(%error, "the guest gets no address"),
        }
        monitor.hold(resume(&spec));
        let devices = claimed(&spec);
        if !devices.is_empty() {
            monitor.lookout.spawn(writer::retake(devices));
        }
        monitor.know(&spec);
        monitor.attach().await;
        monitor.restart_if_due().await;
        monitor.copies.spawn(copying::end_old(monitor.layout.clone(), monitor.turn.clone()));
    }
    monitor.work(listener).await
}

/// One monitor at a time: the lock goes with the process that holds it.
fn lock(layout: &Layout) -> Result<std::fs::File, MonitorError> {
    let io = |source| MonitorError::Io { what: "cannot lock", source };
    let file =
        std::fs::File::options().create(true).truncate(false).write(true).open(layout.monitor_lock()).map_err(io)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(MonitorError::Busy),
        Err(errno) => Err(io(errno.into())),
    }
}

/// What the dead monitor knew, if it is about this machine.
fn remembered(layout: &Layout) -> Option<Domain> {
    let domain: Domain = serde_json::from_slice(&std::fs::read(layout.domain_file()).ok()?).ok()?;
    (domain.uid == layout.uid).then_some(domain)
}

fn servers(spec: &MachineSpec) -> Result<Vec<dhcp::Server>, String> {
    let leases = spec.nics.iter().filter_map(|nic| Some((nic, nic.dhcp.as_ref()?)));
    leases
        .map(|(nic, lease)| {
            dhcp::Server::bind(lease, &nic.mac)
                .map_err(|error| format!("the DHCP server on {} cannot start: {error}", lease.interface))
        })
        .collect()
}

impl Monitor {
    async fn work(mut self, listener: UnixListener) -> Result<Option<EndReason>, MonitorError> {
        let (commands_in, mut commands) = mpsc::channel::<Command>(CONNECTIONS);
        let mut connections = JoinSet::new();
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_PERIOD);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        if self.domain.phase == Phase::Waiting {
            self.publish();
        }
        let promised = self.layout.promise_file();
        let mut rest = Rest::default();
        while self.domain.phase != Phase::Ended {
            let mut stirred = true;
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(converse(stream, commands_in.clone(), self.states.subscribe()));
                    }
                    Err(error) => tracing::warn!(%error, "a connection was not accepted"),
                },
                Some(_) = connections.join_next() => {}
                Some(command) = commands.recv() => self.command(command).await,
                observed = next_event(&mut self.qmp) => self.observe(observed),
                _ = housekeeping.tick() => {
                    stirred = false;
                    rotate_serial_log(&self.layout);
                    rest.tick();
                }
                () = promise::over(&promised), if self.domain.phase != Phase::Waiting => {
                    self.give_up(Observed::PromiseOver).await;
                }
                Some(Ok(why)) = self.lookout.join_next() => self.give_up(Observed::DiskTaken(why)).await,
                () = told(&mut self.begun) => self.copy_begun(),
                Some(ended) = self.copies.join_next() => self.copy_ended(ended).await,
            }
            self.restart_if_due().await;
            rest.busy |= stirred;
        }
        // Whoever waits for a copy is told by the end of this process.
        self.copies.abort_all();
        self.copying = None;
        // What is under way is answered, and everybody hears of the end, before anything else ends.
        drop(listener);
        commands.close();
        while let Some(command) = commands.recv().await {
            self.command(command).await;
        }
        // A container says how its machine has ended, also to who never heard of it otherwise: one that was ended before it
        // began has done nothing of what it was for.
        let end = self.domain.end.as_ref().map(|end| end.reason);
        let end = if self.domain.has_begun() { end } else { end.map(|_| EndReason::FailedToStart) };
        if end == Some(EndReason::GuestShutdown) {
            // Its processors have stopped, and all that they wrote is on its way; QEMU holds its own lock to its end.
            self.disks.iter().for_each(|disk| disk.leave());
        }
        drop(self.states);
        let farewell = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL_DEADLINE, farewell).await.is_err() {
            tracing::warn!("a watcher did not take the last state");
        }
        match self.qmp {
            Some(qmp) => quit(qmp).await?,
            None => tracing::info!("no QEMU to end"),
        }
        Ok(end)
    }

    /// Takes in what was observed. That QEMU must quit is seen by the phase when the loop ends.
    fn observe(&mut self, observed: Observed) {
        let stop = matches!(&observed, Observed::Event { name, .. } if name == "STOP");
        if stop && (self.restart_due || self.restarting) {
            // Nobody has paused it.
            return;
        }
        tracing::debug!(?observed, "observed");
        let Todo { publish, restart, quit: _ } = self.domain.observe(observed);
        if publish {
            self.publish();
        }
        self.restart_due |= restart;
    }

    /// The file first: whoever hears of a state can rely on its being there after any death.
    fn publish(&mut self) {
        tracing::info!(phase = ?self.domain.phase, end = ?self.domain.end, "domain");
        match serde_json::to_vec(&self.domain).map_err(io::Error::from) {
            Ok(text) => {
                if let Err(error) = replace(&self.layout.domain_file(), &text) {
                    tracing::error!(%error, "the domain's state cannot be written");
                }
            }
            Err(error) => tracing::error!(%error, "the domain's state cannot be written"),
        }
        self.states.send_replace(self.domain.clone());
    }

    async fn restart_if_due(&mut self) {
        if !std::mem::take(&mut self.restart_due) {
            return;
        }
        if !self.domain.restart_requested {
            // Somebody wants it to end, and said so when it had shut down, but before that was seen.
            return self.observe(Observed::RunState("shutdown".to_owned()));
        }
        self.restarting = true;
        let restarted = self.restart().await;
        self.restarting = false;
        // What was told twice, as a state that was found and as an event, was done.
        self.restart_due = false;
        match restarted {
            Ok(()) => self.observe(Observed::Restarted),
            Err(error) => {
                tracing::error!(error, "the guest was not restarted");
                self.observe(Observed::Event { name: "STOP".to_owned(), data: json!({}) });
            }
        }
    }

    async fn restart(&mut self) -> Result<(), String> {
        self.execute("system_reset").await?;
        self.execute("cont").await
    }

    /// Connects to QEMU, which may be just starting, and finds out how it is.
    async fn attach(&mut self) {
        let started = Instant::now();
        let patience = ATTACH_DEADLINE + ATTACH_PER_GIB.saturating_mul(self.memory_gib);
        loop {
            let Err(error) = self.meet().await else { return };
            let stays = rustix::process::getppid() == self.parent;
            let in_time = started.elapsed() < patience && may_begin(self.start, stays);
            if may_answer(&error, self.start, in_time) {
                // QEMU makes the socket some time after it starts, and nothing tells when.
                tokio::time::sleep(if in_time { ATTACH_PERIOD } else { HUNG_PERIOD }).await;
                continue;
            }
            tracing::error!(error = &error as &dyn std::error::Error, "QEMU cannot be reached");
            let end = if is_silent(&error) { Observed::FailedToStart(error.to_string()) } else { Observed::QemuGone };
            return self.observe(end);
        }
    }

    async fn meet(&mut self) -> Result<(), QmpError> {
        let mut qmp = Qmp::connect(&self.layout.monitor_qmp_socket()).await?;
        let pinned = pinning::apply(&mut qmp, &self.cpu).await;
        // What became of the agent's channel while nobody listened is not told again.
        let agent = match self.start {
            Start::TakeOver => qmp.is_open(AGENT_CHARDEV).await,
            Start::Fresh => Ok(None),
        };
        let machine_type = qmp.machine_type().await;
        let state = qmp.run_state().await?;
        self.qmp = Some(qmp);
        match pinned {
            // Without CPUs of its own it is not what was asked for; one that runs for long is not ended for that.
            Err(why) if self.domain.phase == Phase::Starting && self.start == Start::Fresh => {
                self.observe(Observed::FailedToStart(why));
                return Ok(());
            }
            Err(why) => tracing::error!(why, "the machine's threads run on any CPU"),
            Ok(()) => {}
        }
        match machine_type {
            Ok(Some(name)) => self.observe(Observed::MachineType(name)),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the machine's type is not known"),
        }
        self.observe(Observed::RunState(state));
        match agent {
            Ok(Some(open)) => {
                let data = json!({ "id": AGENT_PORT, "open": open });
                self.observe(Observed::Event { name: "VSERPORT_CHANGE".to_owned(), data });
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "whether the guest's agent is there is not known"),
        }
        Ok(())
    }

    async fn command(&mut self, command: Command) {
        let Command { call, reply } = command;
        if let Call::Copy { id, disks } = call {
            return self.copy(id, disks, reply);
        }
        let starts = matches!(call, Call::Sync { .. }) && self.domain.phase == Phase::Waiting;
        let response = match self.perform(call).await {
            Ok(()) => Response::Domain(self.domain.clone()),
            Err(reason) => Response::Error(reason),
        };
        answer(reply, response);
        if starts && self.domain.phase == Phase::Starting {
            self.attach().await;
        }
    }

    async fn perform(&mut self, call: Call) -> Result<(), String> {
        match call {
            Call::Status | Call::Watch => Ok(()),
            Call::Sync { spec } => self.sync(&spec).await,
            Call::Kill => {
                self.observe(Observed::KillRequested);
                Ok(())
            }
            Call::Shutdown if self.domain.phase == Phase::Waiting => {
                self.observe(Observed::KillRequested);
                Ok(())
            }
            Call::Shutdown => {
                self.execute("system_powerdown").await?;
                self.observe(Observed::ShutdownRequested);
                Ok(())
            }
            Call::SoftReboot if self.no_acpi => Err("the machine has no power button: ACPI is off".to_owned()),
            Call::SoftReboot => {
                // Before the button: the guest may be fast.
                self.observe(Observed::RestartRequested);
                self.execute("system_powerdown").await
            }
            Call::Pause => self.execute("stop").await,
            Call::Unpause => self.execute("cont").await,
            Call::Reset => self.execute("system_reset").await,
            // It is answered when it has begun.
            Call::Copy { .. } => Ok(()),
            Call::Screenshot { name, move_cursor } => {
                if name.is_empty() || name.len() > 64 || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                    return Err("a picture's name has letters and digits".to_owned());
                }
                if move_cursor {
                    for at in [1 << 14, 0] {
                        let axis = |axis: &str| json!({ "type": "abs", "data": { "axis": axis, "value": at } });
                        let events = json!({ "events": [axis("x"), axis("y")] });
                        self.execute_with("input-send-event", events).await?;
                    }
                }
                let file = self.layout.screenshot(&name);
                self.execute_with("screendump", json!({ "filename": file, "format": "png" })).await
            }
        }
    }

    /// Begins to copy disks, beside everything else.
    fn copy(&mut self, id: String, disks: Vec<CopiedDisk>, reply: oneshot::Sender<Response>) {
        if id == self.last_copy {
            return answer(reply, Response::Domain(self.domain.clone()));
        }
        if let Some(under_way) = &self.copying {
            let whom = if under_way.id == id { "this" } else { "somebody else" };
            return answer(reply, Response::Error(format!("the disks are being copied for {whom}")));
        }
        if self.qmp.is_none() || self.domain.phase == Phase::Ended {
            return answer(reply, Response::Error("the machine is not running".to_owned()));
        }
        let (tell, begun) = oneshot::channel();
        self.copies.spawn(copying::run(id.clone(), self.layout.clone(), disks, self.turn.clone(), tell));
        self.copying = Some(UnderWay { id, reply: Some(reply) });
        self.begun = Some(begun);
    }

    fn copy_begun(&mut self) {
        self.begun = None;
        let Some(copying) = &mut self.copying else { return };
        self.last_copy.clone_from(&copying.id);
        if let Some(reply) = copying.reply.take() {
            answer(reply, Response::Domain(self.domain.clone()));
        }
    }

    /// A copy is whole, or has failed. A guest that was stopped by what the copy could not write goes on.
    async fn copy_ended(&mut self, ended: Result<copying::Ended, JoinError>) {
        let (id, failed, stopped, _locked) = match ended {
            Ok(ended) => (ended.id.clone(), ended.failed.clone(), ended.stopped, Some(ended)),
            // The task has panicked.
            Err(error) => (self.copying.as_ref().map(|copy| copy.id.clone()), Some(error.to_string()), false, None),
        };
        if id.is_some() {
            // Both may be there to be seen.
            if self.begun.as_mut().is_some_and(|begun| begun.try_recv().is_ok()) {
                self.copy_begun();
            }
            self.begun = None;
            let reply = self.copying.take().and_then(|copying| copying.reply);
            if let (Some(reply), Some(why)) = (reply, &failed) {
                answer(reply, Response::Error(why.clone()));
            }
        }
        tracing::info!(id, failed, "the copying of disks has ended");
        // The guest's write is tried again, now that no copy is in its way.
        if stopped
            && !promise::is_over(&self.layout.promise_file())
            && let Err(error) = self.execute("cont").await
        {
            tracing::error!(error, "the guest does not go on after a copy that failed");
        }
    }

    /// The guest may not run any more. Its processors stop before anything else is done; QEMU's end follows at once, since
    /// nobody who watches is as important.
    async fn give_up(&mut self, why: Observed) {
        if let Err(error) = self.execute("stop").await {
            tracing::error!(error, "the guest's processors do not stop");
        }
        self.observe(why);
        if let Some(qmp) = self.qmp.take()
            && let Err(error) = quit(qmp).await
        {
            // virt-handler kills it from outside.
            tracing::error!(%error, "QEMU does not end");
        }
    }

    async fn execute(&mut self, command: &str) -> Result<(), String> {
        self.execute_with(command, json!({})).await
    }

    async fn execute_with(&mut self, command: &str, arguments: serde_json::Value) -> Result<(), String> {
        let Some(qmp) = &mut self.qmp else { return Err("the machine is not running".to_owned()) };
        qmp.execute(command, arguments).await.map_err(|error| error.to_string())?;
        // The events that a command causes come before its result: the answer shall show them.
        while let Some(Event { name, data }) = self.qmp.as_mut().and_then(Qmp::waiting_event) {
            self.observe(Observed::Event { name, data });
        }
        Ok(())
    }

    async fn sync(&mut self, spec: &MachineSpec) -> Result<(), String> {
        if spec.uid != self.layout.uid {
            return Err(format!("this launcher is for the machine {}, not for {}", self.layout.uid, spec.uid));
        }
        if self.domain.phase != Phase::Waiting {
            return Ok(());
        }
        if promise::is_over(&self.layout.promise_file()) {
            return Err("the node's lease has run out".to_owned());
        }
        if let Err(why) = pinning::check(&spec.cpu) {
            self.observe(Observed::FailedToStart(why.clone()));
            return Err(why);
        }
        let prepared = match prepare(spec, &self.layout).await {
            // A disk may have been waited for.
            Ok(_) if promise::is_over(&self.layout.promise_file()) => Err("the node's lease has run out".to_owned()),
            Ok((argv, held)) => servers(spec).map(|servers| (argv, held, servers)),
            Err(error) => Err(error.to_string()),
        };
        let started = prepared.and_then(|(argv, held, servers)| {
            self.hold(held.images);
            self.claim(held.devices);
            self.know(spec);
            self.observe(Observed::Accepted { accel: spec.accel });
            self.serve_dhcp(servers);
            hand_over(self.start, &argv).map_err(|error| format!("the first process is gone: {error}"))
        });
        if let Err(reason) = &started {
            self.observe(Observed::FailedToStart(reason.clone()));
        }
        started
    }

    /// What is needed of a machine's specification as long as it runs.
    fn know(&mut self, spec: &MachineSpec) {
        self.no_acpi = spec.board.no_acpi;
        self.memory_gib = u32::try_from(spec.memory_bytes >> 30).unwrap_or(u32::MAX);
        self.cpu = spec.cpu.clone();
    }

    /// The guest writes these disks from now on, for as long as nobody newer takes them.
    fn hold(&mut self, disks: Vec<Held>) {
        self.disks = disks.into_iter().map(Arc::new).collect();
        if !self.disks.is_empty() {
            self.lookout.spawn(writer::taken(self.disks.clone()));
        }
    }

    /// So it is with these devices.
    fn claim(&mut self, devices: Vec<Claim>) {
        if !devices.is_empty() {
            self.lookout.spawn(writer::keep(devices));
        }
    }

    fn serve_dhcp(&mut self, servers: Vec<dhcp::Server>) {
        for server in servers {
            self.helpers.spawn(server.run());
        }
    }
}

/// Whether the process that becomes QEMU may be there, by whether the monitor's parent stays. It is the parent of a monitor
/// that was with it from the start; that of one that has taken over is the command that started it, which ends by itself.
fn may_begin(start: Start, parent_stays: bool) -> bool {
    parent_stays || start == Start::TakeOver
}

/// Whether a QEMU that could not be spoken to may answer yet. One that runs is there as long as this process is, which
/// ends with it: when it does not answer, it hangs, with its storage most likely.
fn may_answer(error: &QmpError, start: Start, in_time: bool) -> bool {
    match error {
        error if is_silent(error) => in_time || start == Start::TakeOver,
        QmpError::Connect(_) => in_time,
        QmpError::Silent { .. } | QmpError::Line(_) | QmpError::Refused { .. } => false,
    }
}

/// QEMU is there and says nothing: it does not answer, or takes no more connections, after those that have given up.
fn is_silent(error: &QmpError) -> bool {
    match error {
        QmpError::Silent { .. } => true,
        QmpError::Connect(why) => why.kind() == io::ErrorKind::WouldBlock,
        QmpError::Line(_) | QmpError::Refused { .. } => false,
    }
}

/// Gives QEMU's command line to the process that becomes QEMU.
fn hand_over(start: Start, argv: &[String]) -> io::Result<()> {
    if start != Start::Fresh {
        return Err(io::Error::other("it has started something already"));
    }
    let mut line = serde_json::to_vec(argv)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

fn answer(reply: oneshot::Sender<Response>, response: Response) {
    if reply.send(response).is_err() {
        tracing::debug!("the caller did not wait for the answer");
    }
}

/// Until it is told; never when there is nobody to tell it.
async fn told(by: &mut Option<oneshot::Receiver<()>>) {
    let Some(receiver) = by else { return pending().await };
    let is_told = receiver.await.is_ok();
    *by = None;
    if !is_told {
        pending().await
    }
}

async fn next_event(qmp: &mut Option<Qmp>) -> Observed {
    let Some(connected) = qmp else { return pending().await };
    match connected.event().await {
        Ok(Event { name, data }) => Observed::Event { name, data },
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "QEMU is gone");
            *qmp = None;
            Observed::QemuGone
        }
    }
}

/// Ends QEMU and waits for it; in the container this process ends with it.
async fn quit(mut qmp: Qmp) -> Result<(), MonitorError> {
    match qmp.execute("quit", json!({})).await {
        Ok(_) => {}
        Err(error) if error.is_closed() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let gone = async { while qmp.event().await.is_ok() {} };
    let silent = |_| QmpError::Silent { command: "quit".to_owned() };
    Ok(tokio::time::timeout(QUIT_DEADLINE, gone).await.map_err(silent)?)
}

/// Serves one connection of the command socket.
async fn converse(stream: UnixStream, commands: mpsc::Sender<Command>, mut states: watch::Receiver<Domain>) {
    let (mut reader, mut writer) = split(stream, LINE_LIMIT_BYTES);
    loop {
        let request = tokio::select! {
            // What was asked before the end is answered.
            biased;
            request = reader.read::<Request>() => request,
            () = closed(&mut states) => return,
        };
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                let response = Response::Error(format!("{NOT_A_REQUEST}: {error}"));
                if writer.write(&response).await.is_err() {
                    tracing::debug!("a client hung up");
                }
                return;
            }
        };
        if request.v != VERSION {
            let response = Response::Error(format!("version {VERSION} is spoken here, not {}", request.v));
            if writer.write(&response).await.is_err() {
                tracing::debug!("a client hung up");
            }
            return;
        }
        if request.call == Call::Watch {
            loop {
                let state = states.borrow_and_update().clone();
                if writer.write(&Response::Domain(state)).await.is_err() {
                    return;
                }
                tokio::select! {
                    changed = states.changed() => if changed.is_err() {
                        // A preStop hook watches from inside the container: it shall end before the container.
                        if writer.finish().await.is_ok() {
                            while reader.read::<serde_json::Value>().await.is_ok() {}
                        }
                        return;
                    },
                    // A watcher says nothing more; what comes is its hanging up.
                    _ = reader.read::<serde_json::Value>() => return,
                }
            }
        }
        let (reply, answer) = oneshot::channel();
        let sent = commands.send(Command { call: request.call, reply }).await;
        let response = match (sent, answer.await) {
            (Ok(()), Ok(response)) => response,
            _ => Response::Error("the machine has ended".to_owned()),
        };
        if writer.write(&response).await.is_err() {
            return;
        }
    }
}

/// Until there will be no further state.
async fn closed(states: &mut watch::Receiver<Domain>) {
    while states.changed().await.is_ok() {}
}

/// Cuts the console's log: QEMU appends to it, and goes on at the new end.
fn rotate_serial_log(layout: &Layout) {
    let log = layout.serial_log();
    let long = std::fs::metadata(&log).is_ok_and(|meta| meta.len() > SERIAL_LOG_BYTES);
    if !long {
        return;
    }
    let older = log.with_extension("1");
    let cut = std::fs::copy(&log, older)
        .and_then(|_| std::fs::File::options().write(true).open(&log))
        .and_then(|file| file.set_len(0));
    if let Err(error) = cut {
        tracing::warn!(%error, "the console's log cannot be cut");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_of_a_machine_that_runs_is_no_end() {
        let check = |error: QmpError, start: Start, expected: [bool; 2]| {
            let found = [true, false].map(|in_time| may_answer(&error, start, in_time));
            assert_eq!(found, expected, "{error:?} {start:?}");
        };
        let silent = || QmpError::Silent { command: "the greeting".to_owned() };
        let connect = || QmpError::Connect(io::ErrorKind::ConnectionRefused.into());
        // Its backlog is full of those that have given up, such as of earlier attempts.
        let full = || QmpError::Connect(io::ErrorKind::WouldBlock.into());
        check(silent(), Start::TakeOver, [true, true]);
        check(silent(), Start::Fresh, [true, false]);
        check(full(), Start::TakeOver, [true, true]);
        check(full(), Start::Fresh, [true, false]);
        check(connect(), Start::TakeOver, [true, false]);
        check(connect(), Start::Fresh, [true, false]);
        let refused = QmpError::Refused { command: "query-status".to_owned(), message: "no".to_owned() };
        check(refused, Start::TakeOver, [false, false]);
    }

    #[test]
    fn a_monitor_that_took_over_outlives_the_command_that_started_it() {
        let may = |start: Start| [true, false].map(|parent_stays| may_begin(start, parent_stays));
        assert_eq!([may(Start::Fresh), may(Start::TakeOver)], [[true, false], [true, true]]);
    }
}
