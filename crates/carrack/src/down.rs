//! `carrack down`

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::teardown::{self, Options};
use carrack_noderuntime::{Layout, members};
use carrack_virt::handler::shell::watchdog;

use crate::cli::DownArgs;
use crate::process::require_root;
use crate::progress::Progress;
use crate::{kubeconfig, logging, node, output, up};

/// Seconds that pods other than guests get between SIGTERM and SIGKILL.
const POD_GRACE_S: u32 = 2;

/// How long `carrack up` gets to flush and end, its nodes' agents included.
pub const UP_GRACE: Duration = Duration::from_secs(25);

/// Stops the cluster and removes what it put on the machine.
pub async fn run(args: DownArgs) -> anyhow::Result<()> {
    logging::start("warn")?;
    let layout = args.data_dir.layout()?;
    if !kubeconfig::is_there(layout.data_dir())? {
        output::say(format_args!("nothing to stop: {} does not exist", layout.data_dir().display()));
        return Ok(());
    }
    require_root()?;
    if look(&layout)? == Found::Others {
        let dir = layout.data_dir().display();
        if args.purge {
            bail!("{dir} holds other things and no cluster, so nothing of it is removed: is --data-dir right?");
        }
        output::say(format_args!("nothing to stop: {dir} holds no cluster"));
        return Ok(());
    }
    let options = Options { guest_grace_s: args.grace, pod_grace_s: POD_GRACE_S.min(args.grace), purge: args.purge };
    let mut progress = Progress::new();
    let mut failures = nodes(&layout, &args, &mut progress).await?;
    failures.extend(close_watchdog(&layout, &mut progress).await?);
    failures.extend(teardown::teardown(&layout, &options, &mut |step| progress.step(step)).await);
    if failures.is_empty()
        && let Err(error) = up::name::forget(&layout)
    {
        failures.push(format!("the node's name: {error}"));
    }
    progress.finish();
    if failures.is_empty() {
        output::say("stopped; nothing is left running");
        return Ok(());
    }
    bail!("something is left:\n  {}", failures.join("\n  "))
}

/// What lies in a data directory.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// Nothing at all.
    Nothing,
    /// What a cluster leaves there, or one of its nodes.
    Cluster,
    /// Something, and none of it a cluster's: a purge would take it along.
    Others,
}

/// Looks what lies in the data directory, by files that nobody else calls so.
fn look(layout: &Layout) -> anyhow::Result<Found> {
    let dir = layout.data_dir();
    let of_node = dir.join("agent.json");
    for file in [layout.lockfile(), layout.pidfile(), layout.log_file(), of_node] {
        if kubeconfig::is_there(&file)? {
            return Ok(Found::Cluster);
        }
    }
    // An agent that runs alone takes no lock either; what it left running resets the machine where nobody closes it.
    if watchdog::left(&layout.virt_dir()).is_some() {
        return Ok(Found::Cluster);
    }
    // An API server that runs alone takes no lock.
    if kubeconfig::is_there(&layout.kubeconfig())? && kubeconfig::is_there(&layout.pki_dir())? {
        return Ok(Found::Cluster);
    }
    let first = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?.next();
    Ok(if first.is_some() { Found::Others } else { Found::Nothing })
}

/// Between two looks whether an agent that ends has let go of the watchdog.
const LOOK: Duration = Duration::from_millis(50);

/// Closes the machine's watchdog, which an agent that ends while guests run leaves running, before the guests get their time
/// to shut down. Until they have ended, their own monitors keep what was promised. An agent lets go of it when it ends, long
/// before the last of its process is gone, and from then on nobody pets it. Returns what failed.
async fn close_watchdog(layout: &Layout, progress: &mut Progress) -> anyhow::Result<Option<String>> {
    let state_dir = layout.virt_dir();
    let Some(device) = watchdog::left(&state_dir) else { return Ok(None) };
    let release = || {
        let (state_dir, device) = (state_dir.clone(), device.clone());
        async move { tokio::task::spawn_blocking(move || watchdog::release(&state_dir, &device)).await }
    };
    if let Some(up) = ProcessId::from_pidfile(&layout.pidfile()) {
        progress.step(format!("stopping carrack (pid {})", up.pid));
        let mut ends = tokio::task::spawn_blocking(move || up.terminate(UP_GRACE));
        let mut held = true;
        loop {
            tokio::select! {
                ended = &mut ends => break ended??,
                // Opening is petting: what cannot be closed is opened once.
                () = tokio::time::sleep(LOOK), if held => {
                    held = release().await?.is_err_and(|refused| refused.held);
                }
            }
        }
    }
    progress.step("closing the machine's watchdog".to_owned());
    // Also what was opened once more by then. Who holds it now and has nothing written down is none of ours.
    let ours = |refused: &watchdog::Refused| !refused.held || watchdog::left(&state_dir).is_some();
    Ok(release().await?.err().filter(ours).map(|refused| refused.why))
}

/// Takes down the nodes of a cluster with several, each in its own network namespace, so that what lies there goes by the
/// same means as on a machine of its own. Returns what failed.
async fn nodes(cluster: &Layout, args: &DownArgs, progress: &mut Progress) -> anyhow::Result<Vec<String>> {
    let nodes = members::found(cluster).context("cannot look for nodes")?;
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    // The agents would be started again.
    if let Some(up) = ProcessId::from_pidfile(&cluster.pidfile()) {
        progress.step(format!("stopping carrack (pid {})", up.pid));
        tokio::task::spawn_blocking(move || up.terminate(UP_GRACE)).await??;
    }
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut running = Vec::new();
    for node in &nodes {
        let name = node.data_dir().file_name().unwrap_or_default().to_string_lossy().into_owned();
        progress.step(format!("stopping {name}"));
        let mut command = match node::inside(node) {
            Ok(mut command) => {
                command.arg(&program);
                command
            }
            // After the machine itself was started anew there is no namespace, and nothing in it.
            Err(_) => std::process::Command::new(&program),
        };
        command.args(["down", "--grace", &args.grace.to_string(), "--data-dir"]).arg(node.data_dir());
        if args.purge {
            command.arg("--purge");
        }
        let child = tokio::process::Command::from(command)
            .env_remove("CARRACK_DATA_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("a node's teardown cannot be started")?;
        running.push((name, child));
    }
    let mut failures = Vec::new();
    for (name, child) in running {
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            failures.push(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    for node in &nodes {
        if let Err(error) = members::remove_namespace(node) {
            failures.push(format!("{}: {error}", members::netns_of(node).display()));
        }
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_clusters_is_not_taken_along() {
        let check = |files: &[&str], expected: Found| {
            let dir = tempfile::tempdir().expect("a directory");
            for file in files {
                let path = dir.path().join(file);
                fs::create_dir_all(path.parent().expect("it has one")).expect("made");
                fs::write(path, "").expect("written");
            }
            assert_eq!(look(&Layout::new(dir.path())).expect("seen"), expected, "{files:?}");
        };
        check(&[], Found::Nothing);
        check(&["carrack.lock"], Found::Cluster);
        check(&["logs/carrack.log"], Found::Cluster);
        check(&["agent.json", "kubelet.yaml"], Found::Cluster);
        check(&["kubeconfig.yaml", "pki/ca.crt"], Found::Cluster);
        // A home, /etc, /var/lib, and the directory above a cluster's.
        check(&["kubeconfig.yaml", "letters/a"], Found::Others);
        check(&["containerd/config.toml", "kubernetes/pki/ca.crt"], Found::Others);
        check(&["kubelet/config", "containerd/io"], Found::Others);
        check(&["carrack/carrack.lock"], Found::Others);
    }
}
