//! The roles, one module each: a few lines between the command line and the crate that does the work.
//!
//! Each role has a `run` that takes a way to the API server and a token to stop by, and that the process of one role,
//! `carrack up` and nothing else call. What the end of a role means is decided by whoever started it: a process of
//! one role ends with it, `up` starts it again.

pub mod apiserver;
pub mod controllers;
pub mod credentials;
pub mod diagnostics;
mod extenders;
pub mod gpu_extender;
pub mod gpu_plugin;
mod held;
pub mod hollow;
pub mod kubelet;
pub mod local_storage;
pub mod networks;
pub mod renewal;
pub mod scheduler;
pub mod virt_controller;
pub mod virt_handler;
pub mod virt_launcher;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use carrack_auth::kubeconfig::{Kubeconfig, Target};
use carrack_engine::Transport;
use carrack_noderuntime::process::ProcessId;
use carrack_schema::validate::names;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::roles::RoleArgs;
use crate::logging;

/// The API server over HTTPS, with the credentials of a kubeconfig.
///
/// # Errors
/// The kubeconfig cannot be used.
pub fn https(kubeconfig: &Path) -> anyhow::Result<Arc<dyn Transport>> {
    Ok(Arc::new(credentials::connect(kubeconfig)?))
}

/// Runs one role as a process under a name that the API server is told: logs, the API server over HTTPS with the credentials
/// that the kubeconfig has at the time, and an end by SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// The role failed.
pub async fn alone<F>(
    name: &str,
    args: &RoleArgs,
    role: impl FnOnce(Arc<dyn Transport>, CancellationToken) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    logging::start(args.log.filter())?;
    let transport = Arc::new(credentials::Followed::new(&args.kubeconfig, name)?);
    let stop = run_until_signal()?;
    tokio::spawn(Arc::clone(&transport).follow(stop.clone()));
    role(transport, stop).await
}

/// The API server that a kubeconfig names, and what it says of it.
fn target(kubeconfig: &Path) -> anyhow::Result<Target> {
    let context = || format!("cannot use the kubeconfig {}", kubeconfig.display());
    Kubeconfig::load(kubeconfig).with_context(context)?.resolve(None).with_context(context)
}

/// The certificate authority that a kubeconfig trusts, in PEM.
///
/// # Errors
/// The kubeconfig cannot be used, or trusts anybody.
pub fn cluster_ca(kubeconfig: &Path) -> anyhow::Result<String> {
    target(kubeconfig)?.ca_pem.context("the kubeconfig names no certificate authority")
}

/// The host, and the port if it is said, of the API server that a kubeconfig names: what measures of requests call it.
///
/// # Errors
/// The kubeconfig cannot be used.
pub fn server(kubeconfig: &Path) -> anyhow::Result<String> {
    let target = target(kubeconfig)?;
    let place = target.server.split_once("://").map_or(target.server.as_str(), |(_, place)| place);
    Ok(place.split('/').next().unwrap_or_default().to_owned())
}

/// A name that no other process in the cluster has, for elections: host, process, and when it started. It need be no name that an
/// object can have: hosts are called as they like, also in ways in which no node could be.
#[must_use]
pub fn process_identity() -> String {
    let pid = std::process::id();
    let started = i32::try_from(pid).ok().and_then(ProcessId::of).map_or(0, |process| process.start_ticks);
    format!("{}_{pid}_{started}", host_name())
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// When a process that runs until it is told to end gives back for the first time what it needs of its program no more, and how
/// often from then on. What it uses all the time it has again at once: some thousand pages that are in memory anyway.
const FIRST_REST: Duration = Duration::from_secs(1);
const REST_EVERY: Duration = Duration::from_secs(60);

/// Gives back what was read of the program and is not used any more, from time to time. It does not end.
async fn give_back() {
    let mut pause = FIRST_REST;
    loop {
        tokio::time::sleep(std::mem::replace(&mut pause, REST_EVERY)).await;
        let dropped = tokio::task::spawn_blocking(carrack_launcher::trim::drop_file_pages).await;
        if let Err(error) = dropped.unwrap_or_else(|error| Err(error.into())) {
            tracing::debug!(%error, "the program's pages are kept in memory");
        }
    }
}

/// What a command says that one of these signals ended before it was through.
pub const ENDED: &str = "ended by a signal";

/// A token that SIGTERM, SIGINT and SIGHUP cancel, for a process that runs until then, long after its start: what the start alone
/// needed is given back.
///
/// # Errors
/// The signals cannot be caught.
pub fn run_until_signal() -> anyhow::Result<CancellationToken> {
    let stop = until_signal()?;
    tokio::spawn(give_back());
    Ok(stop)
}

/// A token that SIGTERM and SIGINT cancel, and SIGHUP, which a terminal sends that closes: what was begun is ended in order then,
/// too. Nothing here reads its configuration again by that signal.
///
/// # Errors
/// The signals cannot be caught.
pub fn until_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    // Who was started by nohup is to outlive the terminal, and would not if it caught the signal.
    let outlives = ignores_hangup(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let hangup = if outlives { None } else { Some(signal(SignalKind::hangup()).context("cannot catch SIGHUP")?) };
    let hung_up = async move {
        match hangup {
            Some(mut hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
            _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
            _ = hung_up => tracing::info!("SIGHUP: ending"),
        }
        cancel.cancel();
    });
    Ok(stop)
}

/// Whether a process ignores SIGHUP, by its `/proc/PID/status`.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first signal of all has the first bit.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// This host's name, as a node's name: in lower case. A node has it as a label, too (`kubernetes.io/hostname`), without which no
/// kubelet could register it.
///
/// # Errors
/// It has no name that an object and a label can have.
pub fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let name = given.map_or_else(|| host_name().to_lowercase(), str::to_owned);
    if names::dns1123_subdomain(&name).or_else(|| names::label_value(&name)).is_some() {
        anyhow::bail!(
            "{name:?} cannot name a node: up to 63 lower-case letters, digits, '-' and '.' only, where each part begins and ends \
             with a letter or a digit; choose one with --node-name"
        );
    }
    Ok(name)
}

/// A directory with what pods and machines have to themselves (Secrets, disks), whose files may be open to all since they
/// are so within a container. It is made where it is missing, and closed to whoever is neither root nor in its group, as
/// upstream's kubelet has its own.
///
/// # Errors
/// It cannot be made or closed.
pub fn closed_dir(dir: &Path) -> anyhow::Result<()> {
    let closed = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        let mode = fs::metadata(dir)?.permissions().mode() & 0o7777;
        if mode & 0o007 == 0 { Ok(()) } else { fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o027)) }
    };
    closed().with_context(|| format!("cannot close {} to other users", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_to_all_is_closed() {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = dir.path().join("a/b");
        let mode = || fs::metadata(&inner).expect("it is there").permissions().mode() & 0o7777;
        closed_dir(&inner).expect("made");
        assert_eq!(mode() & 0o007, 0);
        for (before, after) in [(0o755, 0o750), (0o777, 0o750), (0o711, 0o710), (0o700, 0o700), (0o770, 0o770)] {
            fs::set_permissions(&inner, fs::Permissions::from_mode(before)).expect("changed");
            closed_dir(&inner).expect("closed");
            assert_eq!(mode(), after, "{before:o}");
        }
    }

    #[test]
    fn who_was_started_to_outlive_its_terminal() {
        let check = |status: &str, expected: bool| assert_eq!(ignores_hangup(status), expected, "{status:?}");
        check("Name:\tcarrack\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n", true);
        check("Name:\tcarrack\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n", false);
        check("Name:\tcarrack\n", false);
        check("", false);
    }

    #[test]
    fn names_of_nodes() {
        let check = |name: &str, good: bool| assert_eq!(node_name(Some(name)).is_ok(), good, "{name}");
        check("n1.example", true);
        check("N1", false);
        check("-a", false);
        check("", false);
        check("a_b", false);
        check("a..b", false);
        check("a.-b", false);
        // Linux lets a host have one character more than a label.
        check(&"a".repeat(63), true);
        check(&"a".repeat(64), false);
        assert!(node_name(None).is_ok_and(|name| !name.is_empty()));
    }
}
