//! The drill's own place on the machine, and its end without a trace.
//!
//! The network namespace has no name: it goes with the last process in it. The directory is named after the process that
//! plays the drill, so that the next drill finds those whose process was killed, and clears them away.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use carrack_disks::mounts;
use carrack_flexvolume::testing::Installed;
use carrack_noderuntime::process::{self, ProcessId};
use carrack_noderuntime::teardown::{self, Options};
use carrack_noderuntime::{Layout, host};
use tokio::runtime::Runtime;

const PREFIX: &str = "carrack-drill-";
/// The node's address in the drill's network, from the range for documentation.
pub const NODE_ADDRESS: &str = "192.0.2.10";

/// The directory of the node whose agents are processes of their own.
pub fn node_dir(dir: &Path) -> PathBuf {
    dir.join("n")
}

/// The directory of a cluster that `carrack up` runs.
pub fn up_dir(dir: &Path) -> PathBuf {
    dir.join("d")
}

/// What the driver of a drill's file server has.
pub fn files_dir(dir: &Path) -> PathBuf {
    Layout::new(node_dir(dir)).data_dir().join("files")
}

fn pidfile(dir: &Path) -> PathBuf {
    dir.join("drill.pid")
}

/// Where drills have their directories: `$TMPDIR`, or else `/tmp`. Unix sockets below it have 107 bytes for their paths.
fn place() -> PathBuf {
    std::env::temp_dir()
}

/// Makes the directory, if a drill can be played on this machine.
///
/// # Errors
/// What is missing, or that it cannot be made.
pub fn make() -> anyhow::Result<PathBuf> {
    let own = i32::try_from(std::process::id()).ok().and_then(ProcessId::of).context("this process is not in /proc")?;
    let dir = place().join(format!("{PREFIX}{}", own.pid));
    let context = || format!("cannot make {}", dir.display());
    fs::DirBuilder::new().mode(0o700).create(&dir).with_context(context)?;
    own.write_pidfile(&pidfile(&dir)).with_context(context)?;
    for below in ["logs", "run"] {
        fs::create_dir(dir.join(below)).with_context(context)?;
    }
    if let Err(problems) = host::probe(&Layout::new(node_dir(&dir))) {
        fs::remove_dir_all(&dir).with_context(context)?;
        return crate::up::refuse(&problems).map(|()| dir);
    }
    Ok(dir)
}

/// Gives this process's network namespace an address and a way out that leads nowhere.
///
/// # Errors
/// `ip` failed.
pub fn set_up_network() -> anyhow::Result<()> {
    let address = format!("{NODE_ADDRESS}/24");
    let lines: [&[&str]; 6] = [
        &["link", "set", "lo", "up"],
        &["link", "add", "eth0", "type", "veth", "peer", "name", "outside"],
        &["link", "set", "outside", "up"],
        &["link", "set", "eth0", "up"],
        &["address", "add", &address, "dev", "eth0"],
        &["route", "add", "default", "via", "192.0.2.1"],
    ];
    for line in lines {
        let output = Command::new("ip").args(line).stdin(Stdio::null()).output().context("ip cannot be run")?;
        if !output.status.success() {
            bail!("ip {}: {}", line.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(())
}

/// Removes what drills left that were killed.
pub fn sweep(runtime: &Runtime) -> Vec<String> {
    let entries = fs::read_dir(place()).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let own = named.map(|entry| entry.path()).filter(|dir| is_own(dir));
    let dead: Vec<PathBuf> = own.filter(|dir| ProcessId::from_pidfile(&pidfile(dir)).is_none()).collect();
    // One that is just being made has no pidfile for a moment.
    let old = |dir: &PathBuf| pidfile(dir).exists();
    dead.iter().filter(|dir| old(dir)).flat_map(|dir| clear(dir, runtime)).collect()
}

/// Whether a directory is this user's, and nobody else may write into it. Its place is everybody's: root would take down
/// and remove what a directory of somebody else's leads to, another cluster among it.
fn is_own(dir: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0)
}

/// What a drill that was killed let stall goes on: whoever waits for it could not be ended.
fn wake(dir: &Path) -> io::Result<()> {
    Installed::at(&files_dir(dir)).go_on();
    let mounts = mounts::at_or_below(&node_dir(dir).to_string_lossy())?;
    for mount in mounts.iter().filter(|mount| Path::new("/sys/dev/block").join(&mount.device).exists()) {
        // It fails for the others, which are not frozen.
        Command::new("fsfreeze").args(["--unfreeze", &mount.path]).stdin(Stdio::null()).output()?;
    }
    Ok(())
}

/// Ends and removes everything below a drill's directory, and the directory. Returns what could not be done.
pub fn clear(dir: &Path, runtime: &Runtime) -> Vec<String> {
    let mut failures = Vec::new();
    let mut check = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            failures.push(format!("{what}: {error}"));
        }
    };
    check("waking storage", wake(dir));
    for role in roles(dir) {
        check("ending a role", role.terminate(Duration::ZERO));
    }
    let mut left = Vec::new();
    if up_dir(dir).exists() {
        left.extend(down(&up_dir(dir)));
    }
    if node_dir(dir).exists() {
        let options = Options { guest_grace_s: 0, pod_grace_s: 0, purge: true };
        left.extend(runtime.block_on(teardown::teardown(&Layout::new(node_dir(dir)), &options, &mut |_| {})));
    }
    if left.is_empty() {
        check("removing the drill's directory", fs::remove_dir_all(dir));
    }
    failures.extend(left);
    failures
}

/// Processes that work with something below the directory as roles do; containerd and its shims are none: pods are removed
/// through them.
fn roles(dir: &Path) -> Vec<ProcessId> {
    let below = format!("{}/", dir.display());
    let ours = |words: &[String]| {
        let program = words.first().map(|word| word.rsplit('/').next().unwrap_or(word)).unwrap_or_default();
        let is_role = words.iter().any(|word| word.starts_with("--kubeconfig") || word.starts_with("--data-dir"));
        is_role && !program.starts_with("containerd") && words.iter().any(|word| word.contains(&below))
    };
    process::all().into_iter().filter(|(_, words)| ours(words)).map(|(process, _)| process).collect()
}

fn down(data_dir: &Path) -> Vec<String> {
    let run = || -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["down", "--purge", "--grace", "0", "--data-dir"]).arg(data_dir).stdin(Stdio::null());
        let output = command.output().context("carrack down cannot be run")?;
        if !output.status.success() {
            bail!("carrack down: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    };
    run().err().map(|error| format!("{error:#}")).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_somebody_else_may_have_put_there_is_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let (dir, link) = (place.path().join("carrack-drill-1"), place.path().join("carrack-drill-2"));
        fs::DirBuilder::new().mode(0o700).create(&dir).expect("made");
        symlink(&dir, &link).expect("linked");
        assert!(is_own(&dir) && !is_own(&link) && !is_own(&place.path().join("none")));
        for open in [0o777, 0o720, 0o702] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(open)).expect("opened");
            assert!(!is_own(&dir), "{open:o}");
        }
    }
}
