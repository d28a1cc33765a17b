//! The machine as the kernel shows it: which processes run in containers, and what is mounted. This is the witness that
//! does not depend on what a cluster says of itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
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

    /// Whether it is the monitor beside a guest, and nobody who just starts one.
    pub fn is_monitor(&self) -> bool {
        let says = |wanted: &str| self.words.iter().any(|word| word == wanted);
        !self.is_guest() && says("monitor") && !says("--detach")
    }

    /// A variable of its environment.
    pub fn variable(&self, name: &str) -> Option<String> {
        let text = fs::read(format!("/proc/{}/environ", self.process.pid)).ok()?;
        let words = text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        words.into_iter().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// A file as the process sees it.
    pub fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.shown(path))
    }

    /// The beginning of a file as the process sees it: so many bytes at most.
    pub fn head(&self, path: &str, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(self.shown(path))?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Where the node has what the process has at a path.
    fn shown(&self, path: &str) -> String {
        format!("/proc/{}/root/{}", self.process.pid, path.trim_start_matches('/'))
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

/// A directory as it stands in mount tables: the device of its file system, and its path from there. Where that file system
/// is mounted differs from one mount namespace to another; this does not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    device: String,
    path: PathBuf,
}

impl Place {
    /// Where a directory is, by the mounts of those who name it so. None where nothing is mounted that it could be on.
    fn of(dir: &Path, mounts: &[Mount]) -> Option<Self> {
        let holds = mounts.iter().filter(|mount| dir.starts_with(&mount.place));
        // Of several at one place the last one lies on top.
        let mount = holds.max_by_key(|mount| Path::new(&mount.place).components().count())?;
        let rest = dir.strip_prefix(&mount.place).ok()?;
        Some(Self { device: mount.device.clone(), path: Path::new(&mount.root).join(rest) })
    }

    /// The pod's directory, if it is below this one and something of it is mounted here, such as `…/pods/UID/etc-hosts`.
    fn pod_dir(&self, mount: &Mount) -> Option<PathBuf> {
        let is_of_pod =
            |dir: &&Path| dir.starts_with(&self.path) && dir.parent().is_some_and(|parent| parent.ends_with("pods"));
        let dirs = Path::new(&mount.root).ancestors().filter(|_| mount.device == self.device);
        // The outermost: what lies in a volume may be called so, too.
        dirs.filter(is_of_pod).last().map(Path::to_owned)
    }
}

/// The processes in containers of pods below this directory: those to which something of a pod's directory is mounted, as
/// every kubelet mounts `etc-hosts` into each container. The machine may have other clusters, whose directories are called
/// alike: the whole path counts.
pub fn contained(below: &Path) -> Vec<Contained> {
    let dir = below.canonicalize().unwrap_or_else(|_| below.to_owned());
    let Some(place) = mounts_of("self").ok().and_then(|mounts| Place::of(&dir, &mounts)) else { return Vec::new() };
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let others = process::all().into_iter().filter(|(process, _)| {
        let namespace = fs::read_link(format!("/proc/{}/ns/mnt", process.pid)).ok();
        namespace.is_some() && namespace != own
    });
    others
        .filter_map(|(process, words)| {
            let mounts = mounts_of(&process.pid.to_string()).ok()?;
            let pod_dir = mounts.iter().find_map(|mount| place.pod_dir(mount))?;
            Some(Contained { process, words, pod_dir })
        })
        .collect()
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

    fn mount(device: &str, root: &str, place: &str) -> Mount {
        Mount { id: 1, device: device.to_owned(), root: root.to_owned(), place: place.to_owned() }
    }

    #[test]
    fn directories_in_mount_tables() {
        let mounts = [
            mount("8:1", "/", "/"),
            mount("0:5", "/", "/tmp"),
            mount("8:2", "/@var", "/var"),
            mount("8:3", "/", "/over"),
            mount("8:4", "/", "/over"),
        ];
        let check = |dir: &str, device: &str, path: &str| {
            let expected = Place { device: device.to_owned(), path: PathBuf::from(path) };
            assert_eq!(Place::of(Path::new(dir), &mounts), Some(expected), "{dir}");
        };
        check("/home/cd7", "8:1", "/home/cd7");
        check("/tmp/cd7", "0:5", "/cd7");
        check("/tmpfiles/cd7", "8:1", "/tmpfiles/cd7");
        check("/var/cd7/n", "8:2", "/@var/cd7/n");
        check("/over/cd7", "8:4", "/cd7");
        assert_eq!(Place::of(Path::new("/tmp/cd7"), &mounts[2..]), None);
    }

    #[test]
    fn directories_of_pods() {
        let check = |below: &str, device: &str, root: &str, expected: Option<&str>| {
            let place = Place { device: "8:1".to_owned(), path: PathBuf::from(below) };
            let found = place.pod_dir(&mount(device, root, "/etc/hosts"));
            assert_eq!(found, expected.map(PathBuf::from), "{device} {root} below {below}");
        };
        let own = "/tmp/cd7/n/kubelet/pods/u-1";
        for below in ["/tmp/cd7", "/tmp/cd7/n", "/tmp/cd7/n/kubelet"] {
            check(below, "8:1", &format!("{own}/etc-hosts"), Some(own));
            check(below, "8:1", &format!("{own}/volumes/x/y"), Some(own));
            check(below, "8:1", "/tmp/cd7/n/other", None);
            check(below, "8:1", "/", None);
            // Others on the machine: with another directory of the same name, a longer one, or on another file system.
            check(below, "8:1", "/tmp/cd8/n/kubelet/pods/u-1/etc-hosts", None);
            check(below, "8:1", "/var/lib/other/n/kubelet/pods/u-1/etc-hosts", None);
            check(below, "8:1", "/tmp/cd70/n/kubelet/pods/u-1/etc-hosts", None);
            check(below, "8:2", &format!("{own}/etc-hosts"), None);
        }
        check("/tmp/cd7/d", "8:1", &format!("{own}/etc-hosts"), None);
    }

    #[test]
    fn who_is_who_in_the_pod_of_a_machine() {
        let own = ProcessId::of(i32::try_from(std::process::id()).expect("a pid")).expect("it runs");
        let check = |words: &[&str], guest: bool, monitor: bool| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            let found = Contained { process: own.clone(), words, pod_dir: PathBuf::from("/pods/u") };
            assert_eq!((found.is_guest(), found.is_monitor()), (guest, monitor), "{:?}", found.words);
        };
        check(&["/usr/bin/qemu-system-x86_64", "-name", "monitor"], true, false);
        check(&["/usr/bin/carrack", "virt-launcher", "monitor", "--uid", "u"], false, true);
        check(&["/usr/bin/carrack", "virt-launcher", "monitor", "--detach", "--uid", "u"], false, false);
        check(&["/usr/bin/carrack", "virt-launcher", "tail", "--uid", "u"], false, false);
        check(&[], false, false);
    }

    #[test]
    fn the_beginning_of_a_file_as_a_process_sees_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, "0123456789").expect("written");
        let own = ProcessId::of(i32::try_from(std::process::id()).expect("a pid")).expect("it runs");
        let itself = Contained { process: own, words: Vec::new(), pod_dir: PathBuf::from("/pods/u") };
        let path = path.display().to_string();
        assert_eq!(itself.head(&path, 4).expect("read"), b"0123");
        assert_eq!(itself.head(&path, 400).expect("read"), itself.file(&path).expect("read"));
        assert!(itself.head("/no/such/file", 4).is_err());
    }

    #[test]
    fn this_process_is_in_no_pod() {
        assert!(contained(Path::new("/tmp/carrack-no-such-directory")).is_empty());
    }
}
