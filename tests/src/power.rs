//! A power cut of a sandbox's node: what a machine forgets when it loses power is taken away, what its disk keeps stays.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Sandbox, eventually_true};

impl Sandbox {
    /// Ends everything of the cluster at once: agents, containerd, shims, containers and guests. The runtime's state,
    /// mounts and network links go, and the next start is in another boot.
    ///
    /// # Panics
    /// Something survives it.
    pub fn cut_power(&self) {
        self.kill_9();
        let data_dir = self.data_dir();
        eventually_true("nothing of the cluster runs", 30, || {
            let left = processes(&data_dir);
            for pid in &left {
                // It may have ended by itself meanwhile.
                let killed = kill_process(*pid, Signal::KILL);
                assert!(killed.is_ok() || killed == Err(Errno::SRCH), "{pid:?}: {killed:?}");
            }
            left.is_empty()
        });
        eventually_true("nothing of the cluster is mounted", 30, || {
            let mounts = mounts(&data_dir);
            for path in mounts.iter().rev() {
                // One that was below another is gone with it.
                let gone = unmount(path.as_str(), UnmountFlags::DETACH);
                assert!(gone.is_ok() || gone == Err(Errno::INVAL), "{path}: {gone:?}");
            }
            mounts.is_empty()
        });
        let state = data_dir.join("containerd/state");
        fs::remove_dir_all(&state).expect("the runtime's state goes");
        self.shell("for l in $(ls /sys/class/net | grep -E '^(cni|veth)'); do ip link delete $l || true; done").done();
        self.new_boot();
    }

    /// From the next start on it is another boot.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn new_boot(&self) {
        let file = self.boot_id_file();
        let number = fs::read_to_string(&file).ok().and_then(|t| t.trim().rsplit('-').next()?.parse::<u32>().ok());
        fs::write(file, format!("boot-{}\n", number.unwrap_or(1) + 1)).expect("a boot id");
    }

    /// The file that stands for the kernel's word on which boot this is.
    #[must_use]
    pub fn boot_id_file(&self) -> std::path::PathBuf {
        self.home().join("boot_id")
    }
}

/// Processes of the cluster: by command line, and by a root file system among its snapshots.
fn processes(data_dir: &Path) -> Vec<Pid> {
    let (words, snapshots) = (format!("{}/", data_dir.display()), format!("{}/containerd/root/", data_dir.display()));
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    entries
        .filter_map(|path| {
            let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
            let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let dead = read("stat").rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
            let is_root = |line: &str| line.split(' ').nth(4) == Some("/") && line.contains(&snapshots);
            let owned = read("cmdline").contains(&words) || read("mountinfo").lines().any(is_root);
            (owned && !dead && pid != rustix::process::getpid()).then_some(pid)
        })
        .collect()
}

/// Mount points below the data directory, in the order of mounting.
fn mounts(data_dir: &Path) -> Vec<String> {
    let below = format!("{}/", data_dir.display());
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|path| path.starts_with(&below)).map(str::to_owned).collect()
}
