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

use anyhow::Context as _;
use carrack_auth::kubeconfig::Kubeconfig;
use carrack_engine::Transport;
use carrack_noderuntime::process::ProcessId;
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
/// that the kubeconfig has at the time, and an end by SIGTERM or SIGINT.
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
    let stop = until_signal()?;
    tokio::spawn(Arc::clone(&transport).follow(stop.clone()));
    role(transport, stop).await
}

/// The certificate authority that a kubeconfig trusts, in PEM.
///
/// # Errors
/// The kubeconfig cannot be used, or trusts anybody.
pub fn cluster_ca(kubeconfig: &Path) -> anyhow::Result<String> {
    let context = || format!("cannot use the kubeconfig {}", kubeconfig.display());
    let target = Kubeconfig::load(kubeconfig).with_context(context)?.resolve(None).with_context(context)?;
    target.ca_pem.context("the kubeconfig names no certificate authority")
}

/// A name that no other process in the cluster has, for elections: host, process, and when it started.
///
/// # Errors
/// The host has no usable name.
pub fn process_identity() -> anyhow::Result<String> {
    let pid = std::process::id();
    let started = i32::try_from(pid).ok().and_then(ProcessId::of).map_or(0, |process| process.start_ticks);
    Ok(format!("{}_{pid}_{started}", node_name(None)?))
}

/// A token that SIGTERM and SIGINT cancel.
///
/// # Errors
/// The signals cannot be caught.
pub fn until_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: ending"),
            _ = interrupt.recv() => tracing::info!("SIGINT: ending"),
        }
        cancel.cancel();
    });
    Ok(stop)
}

/// This host's name, as a node's name: in lower case.
///
/// # Errors
/// It has no name that an object can have.
pub fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
    };
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    if bytes.len() > 253 || !bytes.iter().copied().all(fits) || !edge(bytes.first()) || !edge(bytes.last()) {
        anyhow::bail!("{name:?} cannot name a node: letters, digits, '-' and '.' only; choose one with --node-name");
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
    fn names_of_nodes() {
        let check = |name: &str, good: bool| assert_eq!(node_name(Some(name)).is_ok(), good, "{name}");
        check("n1.example", true);
        check("N1", false);
        check("-a", false);
        check("", false);
        check("a_b", false);
        assert!(node_name(None).is_ok_and(|name| !name.is_empty()));
    }
}
