//! The machine as the kernel shows it: which processes run in containers, and what is mounted. This is the witness that
//! does not depend on what a cluster says of itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use carrack_disks::mounts;
use carrack_noderuntime::process::{self, ProcessId};
use serde_json::Value;

use super::api;
use super::stage::Stage;

/// A process in a container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contained {
    /// The process.
    pub process: ProcessId,
    /// Its command line.
    pub words: Vec<String>,
    /// The pod's directory, as the process's mounts show it: `…/pods/UID`.
    pub pod_dir: PathBuf,
}

impl Contained {
    /// The pod's UID.
    pub fn uid(&self) -> String {
        self.pod_dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it is a guest.
    pub fn is_guest(&self) -> bool {
        self.words.first().is_some_and(|program| program.contains("qemu-system"))
    }

    /// A variable of its environment.
    pub fn variable(&self, name: &str) -> Option<String> {
        let text = fs::read(format!("/proc/{}/environ", self.process.pid)).ok()?;
        let words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        words.into_iter().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// A file as the process sees it.
    pub fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(format!("/proc/{}/root/{}", self.process.pid, path.trim_start_matches('/')))
    }

    /// Its mounts.
    pub fn mounts(&self) -> Vec<Mount> {
        mounts_of(&self.process.pid.to_string()).unwrap_or_default()
    }
}

/// What of a mount tells whether it is still the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id: another one is another mount.
    pub id: u64,
    /// Its device, as `major:minor`.
    pub device: String,
    /// What of the file system is mounted.
    pub root: String,
    /// Where.
    pub place: String,
}

/// The mounts that a process sees, by its number or `self`.
fn mounts_of(process: &str) -> io::Result<Vec<Mount>> {
    let of = |mounts::Line { id, point, .. }| Mount { id, device: point.device, root: point.root, place: point.path };
    Ok(mounts::seen_by(process)?.into_iter().map(of).collect())
}

/// The node's mounts below a directory.
pub fn mounts_below(dir: &Path) -> io::Result<Vec<Mount>> {
    let mut mounts = mounts_of("self")?;
    mounts.retain(|mount| Path::new(&mount.place).starts_with(dir));
    Ok(mounts)
}

/// The processes in containers of pods below this directory: those to which something of a pod's directory is mounted, as
/// every kubelet mounts `etc-hosts` into each container.
pub fn contained(below: &Path) -> Vec<Contained> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let others = process::all().into_iter().filter(|(process, _)| {
        let namespace = fs::read_link(format!("/proc/{}/ns/mnt", process.pid)).ok();
        namespace.is_some() && namespace != own
    });
    others
        .filter_map(|(process, words)| {
            let mounts = mounts_of(&process.pid.to_string()).ok()?;
            let pod_dir = mounts.iter().find_map(|mount| pod_dir(&mount.root, below))?;
            Some(Contained { process, words, pod_dir })
        })
        .collect()
}

/// The pod's directory in a path such as `/…/kubelet/pods/UID/etc-hosts`. The path may begin at the root of a file system
/// that is mounted somewhere, so that what it begins with is not compared, only what it holds.
fn pod_dir(root: &str, below: &Path) -> Option<PathBuf> {
    let name = below.file_name()?.to_str()?;
    let path = Path::new(root);
    let is_ours = path.components().any(|part| part.as_os_str() == name);
    let mut parents = path.ancestors().filter(|dir| dir.parent().is_some_and(|parent| parent.ends_with("pods")));
    parents.find(|_| is_ours).map(Path::to_owned)
}

/// The guests below a directory, by their pods' UIDs.
pub fn guests(below: &Path) -> BTreeMap<String, Contained> {
    contained(below).into_iter().filter(Contained::is_guest).map(|guest| (guest.uid(), guest)).collect()
}

/// The first process of a pod's container that runs this program.
pub fn in_pod(below: &Path, uid: &str, program: &str) -> Option<Contained> {
    let runs = |c: &Contained| c.words.first().is_some_and(|word| word.rsplit('/').next() == Some(program));
    contained(below).into_iter().find(|c| c.uid() == uid && runs(c))
}

/// The shell of a pod that is ready. Its container is told as running a moment before the program takes the place of what the runtime
/// prepares it with.
///
/// # Errors
/// It does not come, or the drill is over.
pub fn shell_of(stage: &Stage, below: &Path, pod: &Value) -> anyhow::Result<Contained> {
    let find = || in_pod(below, api::uid(pod), "sh").ok_or_else(|| "none does".to_owned());
    stage.wait("a process of the pod runs", 20, find)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_mounts_are_seen_and_those_of_nobody_are_not() {
        let own = mounts_of(&std::process::id().to_string()).expect("read");
        let proc = own.iter().find(|mount| mount.place == "/proc").expect("it is mounted");
        assert!(proc.id > 0 && proc.root == "/" && proc.device.contains(':'), "{proc:?}");
        assert!(mounts_below(Path::new("/proc")).expect("read").contains(proc));
        // No process has this number.
        assert!(mounts_of("0").is_err());
    }

    #[test]
    fn directories_of_pods() {
        let check = |root: &str, expected: Option<&str>| {
            assert_eq!(pod_dir(root, Path::new("/tmp/cd7")), expected.map(PathBuf::from), "{root}");
        };
        check("/tmp/cd7/n/kubelet/pods/u-1/etc-hosts", Some("/tmp/cd7/n/kubelet/pods/u-1"));
        check("/cd7/n/kubelet/pods/u-1/volumes/x/y", Some("/cd7/n/kubelet/pods/u-1"));
        check("/tmp/cd8/n/kubelet/pods/u-1/etc-hosts", None);
        check("/tmp/cd7/n/other", None);
        check("/", None);
    }

    #[test]
    fn this_process_is_in_no_pod() {
        assert!(contained(Path::new("/tmp/carrack-no-such-directory")).is_empty());
    }
}
