#![expect(clippy::disallowed_methods, reason = "shell: waits for other processes with a deadline")]
//! The way back: everything that `carrack up` put on the machine is taken off it again.
//!
//! ```text
//!   carrack up's process ─► pods over CRI (so that CNI DEL runs) ─► containerd ─► what is left:
//!        container processes, shims ─► mounts (namespaces among them) ─► disks ─► links ─► rules ─► cgroups ─► files
//! ```
//!
//! Each step works from what the machine shows, not from what some process remembers, so that it also works after all
//! of them were killed. A step that fails is remembered and the next one runs; at the end every failure is reported.
//! Directories are removed only when the kernel's mount table was read and shows nothing mounted below them.

mod mounts;
mod network;

pub(crate) use mounts::{below as mounts_below, unmount_all};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrack_processes::tasks;
use tokio::task::JoinSet;

use crate::config::NodeSettings;
use crate::containerd::Containerd;
use crate::cri::{self, Cri};
use crate::host;
use crate::layout::Layout;
use crate::lock;
use crate::members;
use crate::networks;
use crate::ports;
use crate::process::{self, ProcessId};

/// How a teardown goes about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Seconds that a guest gets to shut down after its power button was pressed.
    pub guest_grace_s: u32,
    /// Seconds that other containers get between SIGTERM and SIGKILL.
    pub pod_grace_s: u32,
    /// Remove the data directory too: all objects, images and disks.
    pub purge: bool,
}

impl Options {
    /// Seconds that a pod's containers get to end.
    fn grace_s(&self, pod: &str) -> u32 {
        if pod.starts_with(GUEST_NAMES) { self.guest_grace_s } else { self.pod_grace_s }
    }
}

/// How the names of guests' pods begin, KubeVirt's and ours. The runtime knows no owners of pods; of what it knows the name is what
/// nobody can change. The label of such pods may be taken off before the sandbox is made, and its guest would be killed early.
const GUEST_NAMES: &str = "virt-launcher-";

/// How long `carrack up` gets to flush and end.
const UP_GRACE: Duration = Duration::from_secs(15);

/// How long pods may refuse to be removed after the first time, and how soon they are removed once more.
const PODS_LIMIT: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_millis(100);

/// How long containerd gets to end.
const CONTAINERD_GRACE: Duration = Duration::from_secs(10);

/// Rounds in which processes are killed: one that is just being started is seen by the next round.
const ROUNDS: usize = 50;

/// How long another process may take that starts or stops the same cluster.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// Takes everything down. `say` receives one line for each step that did something. Returns what could not be done,
/// empty when nothing is left.
pub async fn teardown(layout: &Layout, options: &Options, say: &mut (dyn FnMut(String) + Send)) -> Vec<String> {
    let mut failures = Vec::new();
    let mut check = |what: &str, outcome: io::Result<()>| {
        if let Err(error) = outcome {
            failures.push(format!("{what}: {error}"));
        }
    };
    // Held to the end: a cluster that started meanwhile would lose its files.
    let _lock = match stop_up(layout, say).await {
        Ok(lock) => lock,
        Err(error) => return vec![error.to_string()],
    };
    // Read first: a containerd that finds its shims dead removes the directories that name their sockets.
    let shim_sockets = shim_sockets(layout);
    if layout.containerd_config().exists() {
        for failure in remove_pods(layout, options, say).await {
            check("removing pods", Err(io::Error::other(failure)));
        }
    }
    let containerd = ProcessId::from_pidfile(&layout.containerd_pidfile());
    if let Some(containerd) = &containerd {
        say(format!("stopping containerd (pid {})", containerd.pid));
        check("stopping containerd", containerd.terminate(CONTAINERD_GRACE));
    }
    let leaders = containerd.into_iter().collect();
    check("killing left processes", kill_left(layout, &[layout.containerd_pidfile()], leaders, say));
    let networks_went = networks::collect_all(layout);
    // What could not be undone is remembered, unless all goes.
    let forget_networks = networks_went.is_ok() || options.purge;
    check("removing further networks of pods", networks_went);
    match mounts::unmount_all(layout) {
        Ok(0) => {}
        Ok(count) => say(format!("unmounted {count} mounts")),
        Err(error) => check("unmounting", Err(error)),
    }
    // Those of the nodes that have a directory of their own lie below, too.
    match carrack_disks::loops::below(layout.data_dir()) {
        Ok(devices) => {
            for device in devices {
                say(format!("detaching {device}"));
                check("detaching a volume", carrack_disks::loops::release(&device).await.map_err(io::Error::other));
            }
        }
        Err(error) => check("looking for volumes", Err(io::Error::other(error))),
    }
    let nodes = members::dir(layout).exists().then(|| members::bridge(layout));
    match network::remove(layout, nodes.as_deref()).await {
        Ok(0) => {}
        Ok(count) => say(format!("removed {count} network links and rules")),
        Err(error) => check("removing the pod network", Err(error)),
    }
    remove_cgroups(layout);
    for socket in shim_sockets {
        check("removing a shim's socket", remove_file(&socket));
    }
    check("removing CNI's cache", remove_cni_cache(layout));
    check("removing run-time files", remove_runtime_files(layout, forget_networks));
    if options.purge {
        say(format!("removing {}", layout.data_dir().display()));
        check("removing the kubelet's directory", remove_tree(&layout.kubelet_root()));
        check("removing the pods' logs", remove_tree(&layout.pod_log_dir()));
        check("removing the links to them", remove_log_links(&layout.pod_log_dir()));
        check("removing the data directory", remove_data_dir(layout));
    }
    failures
}

/// Ends the process that runs the cluster, and takes its lock.
async fn stop_up(layout: &Layout, say: &mut (dyn FnMut(String) + Send)) -> io::Result<fs::File> {
    let deadline = tokio::time::Instant::now() + LOCK_LIMIT;
    loop {
        if let Some(lock) = lock::try_lock(layout)? {
            return Ok(lock);
        }
        if let Some(up) = ProcessId::from_pidfile(&layout.pidfile()) {
            say(format!("stopping carrack (pid {})", up.pid));
            up.terminate(UP_GRACE)?;
        } else if tokio::time::Instant::now() < deadline {
            // Its holder has not written its pidfile yet, or takes the cluster down as we want to.
            tokio::time::sleep(Duration::from_millis(50)).await;
        } else {
            let dir = layout.data_dir().display();
            return Err(io::Error::other(format!(
                "another process starts or stops the cluster in {dir}; try again later"
            )));
        }
    }
}

/// Removes all pods over CRI, starting containerd for it if it does not run. Returns what failed.
async fn remove_pods(layout: &Layout, options: &Options, say: &mut (dyn FnMut(String) + Send)) -> Vec<String> {
    let runs = ProcessId::from_pidfile(&layout.containerd_pidfile()).is_some();
    if !runs && !has_traces_of_pods(layout) {
        return Vec::new();
    }
    if !runs {
        say("starting containerd to remove its pods".to_owned());
    }
    let host = match host::probe(layout) {
        Ok(host) => host,
        Err(problems) => return problems.iter().map(ToString::to_string).collect(),
    };
    // No pod is started any more, so that no image is needed.
    let settings = NodeSettings {
        pod_cidr: networks::configured_pod_cidr(layout).unwrap_or_else(|| "10.42.0.0/24".to_owned()),
        sandbox_image: String::new(),
        masquerade: false,
        networks: networks::configured(layout),
    };
    if let Err(error) = Containerd::start(layout, &host, &settings).await {
        return vec![error.to_string()];
    }
    match cri::wait_ready(&layout.containerd_socket(), Duration::from_secs(15)).await {
        Ok((cri, _)) => stop_and_remove(cri, &layout.containerd_socket(), options, say).await,
        Err(error) => vec![error.to_string()],
    }
}

/// Whether a containerd that ran here left tasks or addresses in use.
fn has_traces_of_pods(layout: &Layout) -> bool {
    let tasks = layout.containerd_state().join("io.containerd.runtime.v2.task/k8s.io");
    let addresses = layout.cni_ipam_dir().join(layout.cni_network());
    let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    // Besides the addresses there lie a lock and the last address that was handed out.
    let is_address = |name: std::ffi::OsString| name.as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
    list(tasks).next().is_some() || list(addresses).any(|entry| is_address(entry.file_name()))
}

/// Removes pods until there is none. What is just being started cannot be removed, and is not listed before it is there: the
/// next round removes it.
async fn stop_and_remove(
    mut cri: Cri,
    socket: &Path,
    options: &Options,
    say: &mut (dyn FnMut(String) + Send),
) -> Vec<String> {
    let mut deadline = None;
    loop {
        let (sandboxes, containers) = match (cri.sandboxes().await, cri.containers().await) {
            (Ok(sandboxes), Ok(containers)) => (sandboxes, containers),
            (Err(error), _) | (_, Err(error)) => return vec![error.to_string()],
        };
        if sandboxes.is_empty() {
            return Vec::new();
        }
        say(format!("stopping {} pods", sandboxes.len()));
        let mut jobs = JoinSet::new();
        for sandbox in sandboxes {
            let ids: Vec<String> = containers
                .iter()
                .filter(|container| container.pod_sandbox_id == sandbox.id)
                .map(|container| container.id.clone())
                .collect();
            let meta = sandbox.metadata.unwrap_or_default();
            let (grace_s, name) = (options.grace_s(&meta.name), format!("{}/{}", meta.namespace, meta.name));
            jobs.spawn(remove_pod(cri.clone(), socket.to_owned(), name, sandbox.id, ids, grace_s));
        }
        let failures: Vec<String> = jobs.join_all().await.into_iter().filter_map(Result::err).collect();
        let now = tokio::time::Instant::now();
        if now >= *deadline.get_or_insert(now + PODS_LIMIT) {
            return failures;
        }
        if !failures.is_empty() {
            tracing::info!(?failures, "pods are removed once more");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn remove_pod(
    mut cri: Cri,
    socket: PathBuf,
    name: String,
    sandbox: String,
    containers: Vec<String>,
    grace_s: u32,
) -> Result<(), String> {
    let mut stops = JoinSet::new();
    for id in &containers {
        let (mut cri, id) = (cri.clone(), id.clone());
        stops.spawn(async move { cri.stop_container(&id, grace_s).await });
    }
    // A container that does not stop is killed with its sandbox; what matters is whether that works.
    for failed in stops.join_all().await.into_iter().filter_map(Result::err) {
        tracing::warn!(pod = name, error = %failed, "a container did not stop");
    }
    let removed = cri.remove_sandbox(&sandbox).await;
    if removed.as_ref().is_err_and(|error| tasks::is_forgotten(&error.to_string())) {
        for id in containers.iter().chain([&sandbox]) {
            match tasks::delete(&socket, id).await {
                Ok(found) => tracing::info!(pod = name, id, found, "deleted a task that containerd forgot"),
                Err(error) => tracing::warn!(pod = name, id, %error, "a task may be left that containerd forgot"),
            }
        }
    }
    removed.map_err(|error| format!("pod {name}: {error}"))
}

/// Kills the processes that these files name, what was started in their sessions or those of `leaders`, and what else there is
/// of this cluster, until nothing is found. A containerd leads a session of its own: the CNI plugins and `runc`s that it was
/// just running outlive it by a moment, in which they make links, mounts and directories.
///
/// # Errors
/// Something survives it.
pub(crate) fn kill_left(
    layout: &Layout,
    pidfiles: &[PathBuf],
    mut leaders: Vec<ProcessId>,
    say: &mut (dyn FnMut(String) + Send),
) -> io::Result<()> {
    let mut left = 0;
    for _ in 0..ROUNDS {
        leaders.extend(pidfiles.iter().filter_map(|file| ProcessId::from_pidfile(file)));
        leaders.dedup();
        let found = strays(layout, &leaders);
        left = found.len();
        if left == 0 {
            return Ok(());
        }
        // All get the signal before any is waited for: power goes for all of them at once.
        for (process, words) in &found {
            say(format!("killing {} (pid {})", words.first().map_or("a process", String::as_str), process.pid));
            process.kill()?;
        }
        for (process, _) in &found {
            process.terminate(Duration::ZERO)?;
        }
    }
    Err(io::Error::other(format!("{left} processes survive")))
}

/// Processes of this cluster: those in its containers, then shims, then launchers of both, and the leaders' sessions.
fn strays(layout: &Layout, leaders: &[ProcessId]) -> Vec<(ProcessId, Vec<String>)> {
    let root = layout.containerd_root();
    let socket = layout.containerd_socket().display().to_string();
    let config = layout.containerd_config().display().to_string();
    let (mut contained, mut others) = (Vec::new(), Vec::new());
    for (process, words) in process::all() {
        if process::is_in_container(&process, &root) {
            contained.push((process, words));
        } else if is_ours(&words, &socket, &config) || leaders.iter().any(|leader| leader.leads(&process)) {
            others.push((process, words));
        }
    }
    contained.extend(others);
    contained
}

/// Whether a command line is that of a shim of our containerd, or of our containerd itself.
fn is_ours(words: &[String], socket: &str, config: &str) -> bool {
    let program = words.first().map(|word| word.rsplit('/').next().unwrap_or(word)).unwrap_or_default();
    match program {
        "containerd" => words.iter().any(|word| word == config),
        name if name.starts_with("containerd-shim") => words.iter().any(|word| word == socket),
        _ => false,
    }
}

/// The sockets of this cluster's shims, which lie in a directory that all containerds of the machine share.
pub(crate) fn shim_sockets(layout: &Layout) -> Vec<PathBuf> {
    let tasks = layout.containerd_state().join("io.containerd.runtime.v2.task/k8s.io");
    let entries = fs::read_dir(tasks).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_to_string(entry.path().join("address")).ok())
        .filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from))
        .filter(|path| path.starts_with("/run/containerd/s"))
        .collect()
}

/// Removes the pods' empty cgroups. One that still holds a process stays, since `rmdir` refuses it.
pub(crate) fn remove_cgroups(layout: &Layout) {
    let below = layout.cgroup_root();
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for hierarchy in hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]) {
        remove_empty_dirs(&hierarchy.join(&below));
    }
}

fn remove_empty_dirs(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty_dirs(&entry.path());
        }
    }
    if let Err(error) = fs::remove_dir(dir) {
        tracing::debug!(%error, cgroup = %dir.display(), "a cgroup stays");
    }
}

/// libcni keeps the result of each ADD by network name in a directory of the machine.
fn remove_cni_cache(layout: &Layout) -> io::Result<()> {
    ports::records(&layout.cni_network())?.iter().try_for_each(|path| remove_file(path))
}

/// Removes what only a running cluster has: sockets, pidfiles, containerd's state, addresses in use, pods' directories.
fn remove_runtime_files(layout: &Layout, networks_too: bool) -> io::Result<()> {
    for dir in [layout.containerd_state(), layout.cni_ipam_dir()] {
        remove_tree(&dir)?;
    }
    if networks_too {
        remove_tree(&layout.cni_networks_dir())?;
    }
    let socket = layout.containerd_socket();
    let ttrpc = socket.with_extension("sock.ttrpc");
    for file in [layout.pidfile(), layout.containerd_pidfile(), socket, ttrpc] {
        remove_file(&file)?;
    }
    Ok(())
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the data directory, its lock's file last: by that whoever finishes what was cut short knows it for a cluster's.
fn remove_data_dir(layout: &Layout) -> io::Result<()> {
    if let Some(mount) = mounts::below(layout.data_dir())?.first() {
        return Err(io::Error::other(format!("{} is still mounted", mount.display())));
    }
    for entry in fs::read_dir(layout.data_dir())? {
        let entry = entry?;
        if entry.path() == layout.lockfile() {
            continue;
        }
        if entry.file_type()?.is_dir() { remove_tree(&entry.path())? } else { remove_file(&entry.path())? }
    }
    remove_tree(layout.data_dir())
}

/// Removes a directory and all below it, after the kernel's mount table showed nothing mounted there.
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    if let Some(mount) = mounts::below(dir)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", mount.display())));
    }
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the links that a kubelet made to pods' logs, and their directory where nothing else is in it.
fn remove_log_links(pod_log_dir: &Path) -> io::Result<()> {
    let dir = pod_log_dir.with_file_name("containers");
    carrack_disks::remove::links(&dir, pod_log_dir)?;
    match fs::remove_dir(&dir) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_known_by_its_pods_name() {
        let options = Options { guest_grace_s: 60, pod_grace_s: 5, purge: false };
        for (pod, grace_s) in [
            ("virt-launcher-demo-x7k2p", 60),
            ("virt-provisioning-demo-x7k2p", 5),
            ("demo", 5),
            ("virt-launcher", 5),
            ("", 5),
        ] {
            assert_eq!(options.grace_s(pod), grace_s, "{pod}");
        }
    }

    #[test]
    fn links_to_logs_go_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (pods, links) = (dir.path().join("pods"), dir.path().join("containers"));
        remove_log_links(&pods).unwrap();
        let link = |to: PathBuf, name: &str| std::os::unix::fs::symlink(to, links.join(name)).unwrap();
        for other in [true, false] {
            fs::create_dir_all(&links).unwrap();
            link(pods.join("n_p_u/a/0.log"), "ours.log");
            if other {
                link(dir.path().join("elsewhere/0.log"), "other.log");
            }
            remove_log_links(&pods).unwrap();
            let left = fs::read_dir(&links).map(|entries| entries.count()).unwrap_or_default();
            assert_eq!((left, links.exists()), if other { (1, true) } else { (0, false) });
            if other {
                fs::remove_dir_all(&links).unwrap();
            }
        }
    }

    #[test]
    fn only_this_clusters_shims_and_containerd_are_ours() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let check = |line: &str| is_ours(&words(line), "/d/containerd.sock", "/d/config.toml");
        assert!(check("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x -address /d/containerd.sock"));
        assert!(!check("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x -address /e/containerd.sock"));
        assert!(check("/usr/bin/containerd --config /d/config.toml"));
        assert!(!check("/usr/bin/containerd"));
        assert!(!check("vi /d/config.toml"));
    }
}
