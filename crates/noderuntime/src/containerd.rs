//! Our containerd as a process: started or adopted, watched, started again when it dies.
//!
//! ```text
//!            pidfile names a live containerd       CRI answers
//!   start ───────────────┬──────────────► adopted ─────────────┐
//!                        │ none                                ▼
//!                        └──► spawned (own session) ───────► ready ──► watched through its pidfd
//!                                  ▲                                       │ it ended, or was ended since it hangs
//!                                  └───── back-off 0.1 s … 10 s ◄──────────┘
//! ```
//!
//! Its death stops no container: shims hold them, and the new containerd finds the shims. `carrack up` ending leaves
//! it running; `carrack down` ends it (see `teardown`).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::config::{NodeSettings, cni_conflist, containerd_toml};
use crate::cri::{self, CriError};
use crate::host::HostFacts;
use crate::layout::Layout;
use crate::members::NetworkError;
use crate::process::ProcessId;
use crate::{cgroups, hung, limits, networks, rules};

/// How long containerd may take until CRI answers. On a cold two-core machine it takes well under two seconds.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// How long a containerd may take to end that is to be started with another configuration, or hangs.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Log sizes above this are put aside at a start.
const LOG_LIMIT_BYTES: u64 = 16 << 20;

/// Why containerd does not run.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file or directory below the data directory.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program did not start.
    #[error("cannot start {}", program.display())]
    Spawn {
        /// Which program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ended before CRI answered.
    #[error("containerd ended at its start ({status}); its log {} ends with: {log_tail}", log.display())]
    Ended {
        /// Its exit status.
        status: String,
        /// Where its log is.
        log: PathBuf,
        /// The last line of it.
        log_tail: String,
    },
    /// It runs but CRI does not answer.
    #[error("containerd runs but is not ready; see {}", log.display())]
    NotReady {
        /// Where its log is.
        log: PathBuf,
        /// The last failure.
        source: CriError,
    },
    /// The rule that hides pods.
    #[error("pods cannot reach the outside by this machine's address")]
    Masquerade(#[source] NetworkError),
    /// The process could not be watched.
    #[error("cannot watch containerd")]
    Watch(#[source] io::Error),
}

/// A containerd that runs.
#[derive(Debug)]
pub struct Containerd {
    layout: Layout,
    host: HostFacts,
    running: Running,
    version: String,
    /// The range of pods that this machine hides, if it hides one.
    pods: Option<String>,
}

#[derive(Debug)]
struct Running {
    id: ProcessId,
    handle: OwnedFd,
    /// Present when this process started it, and so has to reap it.
    child: Option<Child>,
}

impl Containerd {
    /// Writes the configuration, adopts the containerd that runs from this data directory or starts one, and returns
    /// once CRI answers.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(layout: &Layout, host: &HostFacts, settings: &NodeSettings) -> Result<Self, StartError> {
        for dir in [
            layout.containerd_root(),
            layout.containerd_state(),
            layout.cni_conf_dir(),
            layout.cni_ipam_dir(),
            layout.logs_dir(),
        ] {
            fs::create_dir_all(&dir).map_err(|source| StartError::Write { path: dir, source })?;
        }
        let toml = containerd_toml(layout, host, settings);
        if networks::moved(layout, &toml)
            && let Some(running) = ProcessId::from_pidfile(&layout.containerd_pidfile())
        {
            // It would not find all plugins. Its end stops no container.
            tracing::info!(pid = running.pid, "containerd is started again: it looks for CNI plugins elsewhere");
            end(running).await?;
        }
        if let Some(further) = &settings.networks {
            networks::link_plugins(layout, host, further)
                .map_err(|source| StartError::Write { path: layout.cni_bin_dir(), source })?;
        }
        write_whole(&layout.containerd_config(), &toml)?;
        // containerd watches this directory: the temporary file must lie elsewhere and be renamed in.
        let conflist = cni_conflist(layout, settings);
        write_whole(&layout.cni_conflist(), &conflist)?;
        write_again(&layout.cni_conflist(), &conflist)?;
        // It waits for the kernel.
        let favoured = tokio::task::spawn_blocking(cgroups::favour_moves);
        let pods = settings.masquerade.then(|| settings.pod_cidr.clone());
        let (started, ruled) = tokio::join!(adopt_or_spawn(layout, host), rules::set(layout, pods.as_deref()));
        let ((running, version), ()) = (started?, ruled?);
        if let Err(error) = favoured.await {
            tracing::error!(%error, "cgroups: the kernel could not be asked to favour moves");
        }
        Ok(Self { layout: layout.clone(), host: host.clone(), running, version, pods })
    }

    /// Name and version, as CRI tells them.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> &ProcessId {
        &self.running.id
    }

    /// Watches containerd until `stop`, and starts it again whenever it ends or hangs; the packet filter's rules are put back
    /// meanwhile. The running one is left running.
    ///
    /// # Errors
    /// Its process cannot be watched. A failed restart is logged and tried again.
    pub async fn supervise(self, stop: CancellationToken) -> Result<(), StartError> {
        let rules = rules::keep(self.layout.clone(), self.pods.clone());
        tokio::select! {
            watched = self.watch_over(stop) => watched,
            () = rules => Ok(()),
        }
    }

    async fn watch_over(mut self, stop: CancellationToken) -> Result<(), StartError> {
        loop {
            let handle = watch(self.running.handle).map_err(StartError::Watch)?;
            let hung = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                ended = handle.readable() => ended.map(|_| false).map_err(StartError::Watch)?,
                () = hung::until_hung(self.layout.containerd_socket()) => true,
            };
            if hung {
                tracing::error!(
                    pid = self.running.id.pid,
                    "containerd does not answer any more, and is ended for that"
                );
                if let Err(error) = end(self.running.id.clone()).await {
                    tracing::error!(error = %chain(&error), "containerd does not end");
                }
                // There is no other before it is gone.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    ended = handle.readable() => drop(ended.map_err(StartError::Watch)?),
                }
            }
            if let Some(child) = self.running.child.as_mut() {
                let status = child.wait().await.map_err(StartError::Watch)?;
                tracing::error!(%status, pid = self.running.id.pid, "containerd ended, starting it again");
            } else {
                tracing::error!(pid = self.running.id.pid, "the adopted containerd ended, starting another");
            }
            let mut pause = Duration::from_millis(100);
            self.running = loop {
                match adopt_or_spawn(&self.layout, &self.host).await {
                    Ok((running, _)) => break running,
                    Err(error) => tracing::error!(error = %chain(&error), "containerd does not start"),
                }
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(10)),
                }
            };
        }
    }
}

#[expect(deprecated, reason = "an OwnedFd keeps its descriptor, which is all that the unsafe successor asks for")]
fn watch(handle: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(handle, tokio::io::Interest::READABLE)
}

/// Ends a containerd, and waits for that.
async fn end(running: ProcessId) -> Result<(), StartError> {
    let ended = tokio::task::spawn_blocking(move || running.terminate(END_LIMIT)).await;
    ended.map_err(|error| StartError::Watch(error.into()))?.map_err(StartError::Watch)
}

async fn adopt_or_spawn(layout: &Layout, host: &HostFacts) -> Result<(Running, String), StartError> {
    if let Some(id) = ProcessId::from_pidfile(&layout.containerd_pidfile())
        && let Some(handle) = id.open().map_err(StartError::Watch)?
    {
        tracing::info!(pid = id.pid, "adopting the running containerd");
        match wait_ready(layout, Running { id: id.clone(), handle, child: None }).await {
            // It was about to end when it was found.
            Err(StartError::Ended { .. }) => {}
            Err(why) if hung::is_hung(&why, id.age()) => {
                tracing::error!(error = %chain(&why), "the containerd that runs hangs, and is ended for that");
                end(id).await?;
            }
            other => return other,
        }
    }
    // Nobody makes a sandbox now. Of those for which networks were made, this one knows all that it will ever know.
    let before = networks::sandboxes(layout);
    let ready = wait_ready(layout, spawn(layout, host)?).await?;
    if let Err(error) = clear_up(layout, before).await {
        tracing::warn!(%error, "networks of pods that nobody knows any more may be left");
    }
    Ok(ready)
}

/// Undoes what was made for sandboxes that the containerd before this one was making when it died.
async fn clear_up(layout: &Layout, before: io::Result<BTreeSet<String>>) -> io::Result<()> {
    let mut stale = before?;
    if stale.is_empty() {
        return Ok(());
    }
    let mut cri = cri::Cri::connect(&layout.containerd_socket()).await.map_err(io::Error::other)?;
    for sandbox in cri.sandboxes().await.map_err(io::Error::other)? {
        stale.remove(&sandbox.id);
    }
    let layout = layout.clone();
    tokio::task::spawn_blocking(move || networks::collect(&layout, &stale)).await?
}

/// Waits until CRI answers, or the process ends.
async fn wait_ready(layout: &Layout, mut running: Running) -> Result<(Running, String), StartError> {
    limits::comes_last(running.id.pid);
    let watched = watch(running.handle.try_clone().map_err(StartError::Watch)?).map_err(StartError::Watch)?;
    let socket = layout.containerd_socket();
    tokio::select! {
        ready = cri::wait_ready(&socket, READY_LIMIT) => match ready {
            Ok((_, version)) => Ok((running, version)),
            Err(source) => Err(StartError::NotReady { log: layout.containerd_log(), source }),
        },
        ended = watched.readable() => {
            drop(ended.map_err(StartError::Watch)?);
            let status = match running.child.as_mut() {
                Some(child) => child.wait().await.map_err(StartError::Watch)?.to_string(),
                None => "not our child".to_owned(),
            };
            Err(StartError::Ended { status, log: layout.containerd_log(), log_tail: last_line(&layout.containerd_log()) })
        }
    }
}

fn spawn(layout: &Layout, host: &HostFacts) -> Result<Running, StartError> {
    let log = open_log(&layout.containerd_log())?;
    let log_again = log.try_clone().map_err(|source| StartError::Write { path: layout.containerd_log(), source })?;
    // `setsid` executes containerd in place, so that the child's pid is containerd's: a signal to our terminal's
    // foreground group, or to ours, does not reach it.
    let mut words = limits::as_given();
    words.push("setsid".to_owned());
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .arg(&host.containerd)
        .arg("--config")
        .arg(layout.containerd_config())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_again)
        .current_dir("/")
        .kill_on_drop(false)
        .spawn()
        .map_err(|source| StartError::Spawn { program: host.containerd.clone(), source })?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
    match noted(layout, pid) {
        Ok((id, handle)) => {
            tracing::info!(pid = id.pid, socket = %layout.containerd_socket().display(), "containerd started");
            Ok(Running { id, handle, child: Some(child) })
        }
        Err(error) => {
            // Nobody would find one that is not written down, and it would keep the next one from the files that it has open.
            if let Err(left) = child.start_kill() {
                tracing::debug!(%left, pid, "a containerd that is not written down had ended already");
            }
            Err(error)
        }
    }
}

/// A handle on a process that was just started, once its pidfile is there.
fn noted(layout: &Layout, pid: i32) -> Result<(ProcessId, OwnedFd), StartError> {
    let started = ProcessId::of(pid).and_then(|id| id.open().ok().flatten().map(|handle| (id, handle)));
    let Some((id, handle)) = started else {
        return Err(StartError::Ended {
            status: "at once".to_owned(),
            log: layout.containerd_log(),
            log_tail: last_line(&layout.containerd_log()),
        });
    };
    let pidfile = layout.containerd_pidfile();
    id.write_pidfile(&pidfile).map_err(|source| StartError::Write { path: pidfile, source })?;
    Ok((id, handle))
}

fn open_log(path: &Path) -> Result<File, StartError> {
    let failed = |source| StartError::Write { path: path.to_owned(), source };
    rotate(path, LOG_LIMIT_BYTES).map_err(failed)?;
    OpenOptions::new().create(true).append(true).open(path).map_err(failed)
}

/// Puts a log above `limit_bytes` aside as `<name>.1`, replacing the one before.
///
/// # Errors
/// The rename failed.
pub fn rotate(path: &Path, limit_bytes: u64) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(meta) if meta.len() > limit_bytes => fs::rename(path, path.with_extension("log.1")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn write_whole(path: &Path, text: &str) -> Result<(), StartError> {
    let failed = |source| StartError::Write { path: path.to_owned(), source };
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    // The part lies one directory up, so that a watcher of the directory sees one whole file appear.
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let dir = path.parent().and_then(Path::parent).unwrap_or_else(|| Path::new("/"));
    let part = dir.join(format!(".{name}.part"));
    fs::write(&part, text).map_err(failed)?;
    fs::rename(&part, path).map_err(failed)
}

/// Writes the bytes that are there once more. A containerd that runs passes over files that appear in the directory of its
/// networks, and reads them all again when one is written; and this is never seen in part.
fn write_again(path: &Path, text: &str) -> Result<(), StartError> {
    let written = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| StartError::Write { path: path.to_owned(), source })
}

fn last_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("(empty)").to_owned()
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::process;

    /// As on a disk that has no room for it.
    #[tokio::test]
    async fn what_no_pidfile_names_does_not_run_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path().join("d"));
        // Nothing is renamed to where a directory is.
        for made in [layout.logs_dir(), layout.containerd_pidfile()] {
            fs::create_dir_all(made).expect("made");
        }
        let program = dir.path().join("containerd");
        fs::write(&program, "#!/bin/sh\nwhile :; do sleep 1; done\n").expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made a program");
        let host = HostFacts {
            can_lower_oom_score: true,
            overlayfs: true,
            cni_bin_dir: dir.path().to_owned(),
            containerd: program.clone(),
        };
        assert!(matches!(spawn(&layout, &host), Err(StartError::Write { .. })));
        let word = program.display().to_string();
        let left = || process::all().into_iter().find(|(_, line)| line.contains(&word)).map(|(id, _)| id);
        let until_gone = async {
            while left().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let is_gone = tokio::time::timeout(Duration::from_secs(10), until_gone).await.is_ok();
        if let Some(id) = left() {
            id.kill().expect("killed");
        }
        assert!(is_gone, "it runs, and nobody knows of it");
    }
}
