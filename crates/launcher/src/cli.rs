#![expect(clippy::disallowed_methods, reason = "shell: the command line's side of the launcher")]
//! `carrack virt-launcher`: the container's entry point and what is run beside it in the container.

use crate::client::{self, ClientError, Watch};
use crate::copy::{self, Direction};
use crate::domain::{EndReason, Phase};
use crate::layout::Layout;
use crate::monitor::{self, MonitorError, Start};
use crate::probe;
use crate::proto::Call;
use crate::receive;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Runs one virtual machine in a pod's container.
///
/// Without a command it waits for virt-handler, starts QEMU and becomes it.
#[derive(Debug, Clone, clap::Args)]
pub struct LauncherArgs {
    #[command(subcommand)]
    command: Option<LauncherCommand>,
    #[command(flatten)]
    places: Places,
}

#[derive(Debug, Clone, clap::Args)]
struct Places {
    /// UID of the VirtualMachineInstance
    #[arg(long, global = true, default_value = "")]
    uid: String,
    /// Name of the VirtualMachineInstance, for people who look at process lists
    #[arg(long, global = true)]
    name: Option<String>,
    /// Namespace of the VirtualMachineInstance, for people who look at process lists
    #[arg(long, global = true)]
    namespace: Option<String>,
    /// Directory of the command socket
    #[arg(long, global = true, default_value = "/var/run/kubevirt/sockets")]
    sockets_dir: PathBuf,
    /// Directory of the domain's state
    #[arg(long, global = true, default_value = "/var/run/kubevirt")]
    public_dir: PathBuf,
    /// Directory of QEMU's sockets and scratch files
    #[arg(long, global = true, default_value = "/var/run/kubevirt-private")]
    private_dir: PathBuf,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum LauncherCommand {
    /// Take over a machine whose monitor died
    Monitor {
        /// Return at once and leave the monitor running
        #[arg(long)]
        detach: bool,
        /// Prepare the machine and print QEMU's command line for the first process
        #[arg(long, hide = true, conflicts_with = "detach")]
        fresh: bool,
    },
    /// Press the power button until the guest has shut down (for a preStop hook)
    Shutdown,
    /// Copy what the guest writes to its serial console until it has ended
    Tail,
    /// Keep disks as qcow2 files, or make disks of such files (in a pod of its own, with no machine)
    Copy {
        /// What is to be done
        #[arg(value_enum)]
        direction: Direction,
        /// Pairs of paths: from, to
        #[arg(required = true, num_args = 2..)]
        paths: Vec<PathBuf>,
    },
    /// Wait until the running machine `--uid` has copied its disks to these directories (in a pod of its own)
    Receive {
        /// One for each disk
        #[arg(required = true)]
        directories: Vec<PathBuf>,
    },
    /// Ask the guest agent: whether it is there, or for a command's exit status (for probes)
    Probe {
        /// How long the answer may take, in seconds
        #[arg(long, default_value_t = 1)]
        timeout_s: u64,
        /// The command to run in the guest; without one, the agent is only asked whether it is there
        #[arg(last = true)]
        command: Vec<String>,
    },
}

/// How often the power button is pressed: a guest that was still booting did not see the first time.
const PRESS_PERIOD: Duration = Duration::from_secs(5);

/// How long a new monitor may take to listen.
const MONITOR_DEADLINE: Duration = Duration::from_secs(10);

/// Runs `carrack virt-launcher` with `args`; `prefix` is what stands before them on the command line, such as
/// `["virt-launcher"]`. Logs must not go to the standard output.
pub fn run(prefix: &[&str], args: LauncherArgs) -> ExitCode {
    if let Some(LauncherCommand::Copy { direction, paths }) = &args.command {
        return report(copy::run(*direction, paths).map_err(|error| error.to_string()));
    }
    let places = args.places;
    if places.uid.is_empty() || places.uid.contains('/') {
        tracing::error!("--uid is needed, and names a directory");
        return ExitCode::FAILURE;
    }
    match args.command {
        Some(LauncherCommand::Receive { directories }) => {
            report(receive::run(&places.uid, &directories).map_err(|error| error.to_string()))
        }
        // Done above: it is about no machine.
        Some(LauncherCommand::Copy { .. }) => ExitCode::SUCCESS,
        None => crate::entry::run(&places.monitor(prefix, &["--fresh"])),
        Some(LauncherCommand::Monitor { fresh: true, .. }) => monitor(&places, Start::Fresh),
        Some(LauncherCommand::Monitor { detach: true, .. }) => report(detach(prefix, &places)),
        Some(LauncherCommand::Monitor { .. }) => monitor(&places, Start::TakeOver),
        Some(LauncherCommand::Shutdown) => report(shutdown(prefix, &places)),
        Some(LauncherCommand::Tail) => report(tail(&places)),
        Some(LauncherCommand::Probe { timeout_s, command }) => {
            answer(ask(&places, &command, Duration::from_secs(timeout_s.max(1))))
        }
    }
}

impl Places {
    fn layout(&self) -> Layout {
        Layout {
            sockets: self.sockets_dir.clone(),
            public: self.public_dir.clone(),
            private: self.private_dir.clone(),
            uid: self.uid.clone(),
        }
    }

    /// The arguments that run the monitor for the same machine.
    fn monitor(&self, prefix: &[&str], more: &[&str]) -> Vec<String> {
        let mut arguments: Vec<String> = prefix.iter().map(|&part| part.to_owned()).collect();
        arguments.extend(["monitor".to_owned(), "--uid".to_owned(), self.uid.clone()]);
        for (flag, path) in [
            ("--sockets-dir", &self.sockets_dir),
            ("--public-dir", &self.public_dir),
            ("--private-dir", &self.private_dir),
        ] {
            arguments.extend([flag.to_owned(), path.to_string_lossy().into_owned()]);
        }
        arguments.extend(more.iter().map(|&part| part.to_owned()));
        arguments
    }
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Says what a probe found and no more: the kubelet puts it into an event, of which those that say the same count as one.
fn answer(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody can read it, the exit code tells enough.
            writeln!(std::io::stderr(), "{error}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

/// One thread is enough for a monitor, and keeps it small.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn monitor(places: &Places, start: Start) -> ExitCode {
    let result = match runtime() {
        Ok(runtime) => runtime.block_on(monitor::run(places.layout(), start)),
        Err(source) => Err(MonitorError::Io { what: "no runtime", source }),
    };
    match result {
        Ok(Some(EndReason::FailedToStart)) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the monitor ends");
            ExitCode::FAILURE
        }
    }
}

/// Starts a monitor that outlives this process, and waits until it answers.
fn detach(prefix: &[&str], places: &Places) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // The container's log, which is the first process's standard error, if this process may write there.
    let log = std::fs::File::options().append(true).open("/proc/1/fd/2");
    let mut child = std::process::Command::new(program)
        .args(places.monitor(prefix, &[]))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.map_or_else(|_| Stdio::null(), Stdio::from))
        .spawn()
        .map_err(|error| error.to_string())?;
    let socket = places.layout().command_socket();
    let answers = async {
        let started = Instant::now();
        loop {
            match client::call(&socket, Call::Status, MONITOR_DEADLINE).await {
                Ok(_) => return Ok(()),
                Err(ClientError::Refused(reason)) => return Err(reason),
                Err(_) => {}
            }
            match child.try_wait() {
                // It found a machine that had ended, and has done what was left to do.
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the monitor ended: {status}")),
                Ok(None) => {}
                Err(error) => return Err(error.to_string()),
            }
            if started.elapsed() > MONITOR_DEADLINE {
                return Err("the monitor does not answer".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime().map_err(|error| error.to_string())?.block_on(answers)
}

/// Presses the power button again and again until the machine has ended; kubelet limits the time.
fn shutdown(prefix: &[&str], places: &Places) -> Result<(), String> {
    let socket = places.layout().command_socket();
    let runtime = runtime().map_err(|error| error.to_string())?;
    let dead = runtime.block_on(client::call(&socket, Call::Status, MONITOR_DEADLINE)).is_err();
    if dead {
        detach(prefix, places)?;
    }
    runtime.block_on(async {
        let Ok(mut watch) = Watch::open(&socket).await else { return Ok(()) };
        let mut press = tokio::time::interval(PRESS_PERIOD);
        loop {
            tokio::select! {
                domain = watch.next() => match domain {
                    Ok(domain) if domain.phase != Phase::Ended => {}
                    // It ended, or its monitor did, and with the monitor in a container everything.
                    // The launcher takes the connection's end for this process's, so that the container
                    // does not end under a hook that has yet to succeed.
                    _ => {
                        std::mem::forget(watch);
                        return Ok(());
                    }
                },
                _ = press.tick() => match client::call(&socket, Call::Shutdown, PRESS_PERIOD).await {
                    Ok(_) | Err(ClientError::Silent(_)) => {}
                    Err(error) => tracing::warn!(%error, "the power button was not pressed"),
                },
            }
        }
    })
}

fn tail(places: &Places) -> Result<(), String> {
    let layout = places.layout();
    let follow = crate::tail::follow(&layout);
    runtime().and_then(|runtime| runtime.block_on(follow)).map_err(|error| error.to_string())
}

fn ask(places: &Places, command: &[String], deadline: Duration) -> Result<(), String> {
    let layout = places.layout();
    let answer = probe::ask(&layout, command, deadline);
    runtime().map_err(|error| error.to_string())?.block_on(answer)
}
