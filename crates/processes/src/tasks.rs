//! Tasks that containerd forgot to have begun.
//!
//! A containerd whose caller goes away between making a container's process (its task) and starting it, as when an agent is killed,
//! tells no more of the task over CRI, and refuses to remove the container, which it takes for running, for ever. Whoever wants
//! the container gone deletes the task by containerd's own client, and removes the container once more.
//!
//! By `ctr`, which comes with containerd: its API has no client among the crates here, and this is seldom needed.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// containerd's namespace of what came over CRI.
const NAMESPACE: &str = "k8s.io";
/// A task that is killed is gone at once, unless the machine is stuck.
const DEADLINE: Duration = Duration::from_secs(20);

/// Whether a refusal to remove a container or a sandbox is for a task that was forgotten: what CRI knows to run, it stops first.
/// Upstream reference: `Delete` in containerd's container.go.
#[must_use]
pub fn is_forgotten(refusal: &str) -> bool {
    refusal.contains("cannot delete running task")
}

/// Kills and deletes the task of a container or sandbox. Returns whether there was one.
///
/// # Errors
/// `ctr` is not there, did not end in time, or failed otherwise than by finding no task.
pub async fn delete(socket: &Path, id: &str) -> io::Result<bool> {
    let mut command = tokio::process::Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", NAMESPACE, "tasks", "delete", "--force", "--", id]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await;
    let output = output.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "ctr did not end"))??;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(true),
        false if said.contains("not found") => Ok(false),
        false => Err(io::Error::other(format!("ctr: {}: {}", output.status, said.trim()))),
    }
}
