//! What pods keep on the node's disk: their emptyDirs, their containers' logs, and the files that the kubelet gives containers to
//! write to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use super::files::{self, Files};
use crate::eviction::Usage;
use crate::spec::pod::{pod_ref, spec};

/// An emptyDir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EmptyDir {
    /// Its volume's name.
    pub name: String,
    /// Where it is.
    pub dir: PathBuf,
    /// What is in it.
    pub files: Files,
    /// It is on the node's disk, and not in memory.
    pub is_on_disk: bool,
}

/// What a pod keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its emptyDirs.
    pub empty_dirs: Vec<EmptyDir>,
    /// Its containers' logs, by their names.
    pub logs: BTreeMap<String, Files>,
    /// Its hosts file, and the last words of its containers, each of which may write as much there as it likes (upstream counts
    /// the hosts file since CVE-2020-8557, `pkg/kubelet/stats`).
    pub written: Files,
}

impl Kept {
    /// Measures what a pod has below the kubelet's directory, and below that of all logs.
    pub fn of(pod: &Pod, root: &Path, log_dir: &Path) -> Self {
        let of = pod_ref(pod);
        let medium = |name: &str| {
            let volume = spec(pod).volumes.iter().flatten().find(|v| v.name == name);
            volume.and_then(|v| v.empty_dir.as_ref()?.medium.clone()).unwrap_or_default()
        };
        let in_memory = |name: &str| !medium(name).is_empty();
        let (dir, logs) = (root.join("pods").join(of.uid.as_ref()), log_dir.join(of.log_dir_name()));
        Self::in_directories(&dir, &logs, in_memory)
    }

    fn in_directories(pod: &Path, logs: &Path, in_memory: impl Fn(&str) -> bool) -> Self {
        let volumes = &pod.join("volumes/kubernetes.io~empty-dir");
        let own = files::device(volumes);
        let empty_dir = |dir: PathBuf| {
            let (name, is_on_disk) = (name_of(&dir), files::device(&dir) == own);
            // What a container has mounted on its volume is not the pod's to keep, and its server may not answer.
            let is_own = is_on_disk || in_memory(&name);
            is_own.then(|| EmptyDir { name, files: files::below(&dir), is_on_disk, dir })
        };
        let all = |of: &Path| carrack_disks::directories(of).unwrap_or_default();
        Self {
            empty_dirs: all(volumes).into_iter().filter_map(empty_dir).collect(),
            logs: all(logs).into_iter().map(|dir| (name_of(&dir), files::below(&dir))).collect(),
            written: files::of_file(&pod.join("etc-hosts")).and(files::below(&pod.join("containers"))),
        }
    }

    /// What of it is on the node's disk.
    pub fn on_disk(&self) -> Files {
        let empty_dirs = self.empty_dirs.iter().filter(|v| v.is_on_disk);
        // A directory is a file itself.
        let empty_dirs = empty_dirs.map(|v| Files { count: v.files.count + 1, ..v.files });
        empty_dirs.chain(self.logs.values().copied()).fold(self.written, Files::and)
    }

    /// Adds it to what a pod uses. What is in memory is not on the disk, and has a limit all the same.
    pub fn add_to(&self, usage: &mut Usage) {
        let on_disk = self.on_disk();
        usage.disk_bytes += on_disk.bytes;
        usage.inodes += on_disk.count;
        usage.empty_dirs.extend(self.empty_dirs.iter().map(|v| (v.name.clone(), v.files.bytes)));
        for (container, files) in &self.logs {
            *usage.containers.entry(container.clone()).or_default() += files.bytes;
        }
    }
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::adapters::mounts;

    #[test]
    fn all_that_a_pod_writes_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (pod, logs) = (dir.path().join("pod"), dir.path().join("logs"));
        let volume = pod.join("volumes/kubernetes.io~empty-dir/v");
        for (at, name) in [
            (volume, "f"),
            (logs.join("c"), "0.log"),
            (pod.clone(), "etc-hosts"),
            (pod.join("containers/c"), "0"),
            // Nobody but the kubelet writes there.
            (pod.join("volumes/kubernetes.io~configmap/m"), "f"),
        ] {
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join(name), vec![1; 100_000]).unwrap();
        }
        let kept = Kept::in_directories(&pod, &logs, |_| false);
        let mut usage = Usage { containers: BTreeMap::from([("c".into(), 1000)]), ..Usage::default() };
        kept.add_to(&mut usage);
        assert!(usage.empty_dirs["v"] >= 100_000 && usage.containers["c"] >= 101_000, "{usage:?}");
        // The volume and its file, the log, the hosts file, and the directory and the file of last words.
        assert!((400_000..500_000).contains(&usage.disk_bytes) && usage.inodes == 6, "{usage:?}");
        // Another file system than the disk's has its own room.
        let mut in_memory = kept.clone();
        in_memory.empty_dirs[0].is_on_disk = false;
        assert_eq!(in_memory.on_disk(), kept.logs["c"].and(kept.written));
        let none = dir.path().join("none");
        assert_eq!(Kept::in_directories(&none, &none, |_| false), Kept::default());
    }

    #[test]
    fn what_is_mounted_on_a_volume_is_not_its_pods() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&at).unwrap();
        mounts::tmpfs(&at.to_string_lossy(), 0).unwrap();
        let kept = [false, true].map(|in_memory| Kept::in_directories(dir.path(), dir.path(), |_| in_memory));
        mounts::unmount(&at.to_string_lossy()).unwrap();
        let seen = kept.map(|kept| kept.empty_dirs.iter().map(|v| v.is_on_disk).collect::<Vec<_>>());
        assert_eq!(seen, [vec![], vec![false]]);
    }
}
