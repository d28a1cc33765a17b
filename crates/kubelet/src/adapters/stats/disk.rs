//! What pods keep on the node's disk: their emptyDirs, and their containers' logs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

use crate::eviction::Usage;

/// Most files of one directory that are looked at; one with more is counted up to here.
const MAX_FILES: u64 = 1_000_000;

/// What is in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Bytes that it takes of its file system.
    pub bytes: u64,
    /// How many files.
    pub count: u64,
}

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
}

impl Kept {
    /// Measures what a pod has below the kubelet's directory, and below that of all logs.
    pub fn of(pod: &Pod, root: &Path, log_dir: &Path) -> Self {
        let of = crate::spec::pod::pod_ref(pod);
        let volumes = root.join("pods").join(of.uid.as_ref()).join("volumes/kubernetes.io~empty-dir");
        Self::in_directories(&volumes, &log_dir.join(of.log_dir_name()))
    }

    fn in_directories(volumes: &Path, logs: &Path) -> Self {
        let device = |of: &Path| fs::symlink_metadata(of).ok().map(|m| m.dev());
        let own = device(volumes);
        let empty_dir = |dir: PathBuf| {
            let is_on_disk = device(&dir) == own;
            EmptyDir { name: name_of(&dir), files: files_in(&dir), is_on_disk, dir }
        };
        let all = |of: &Path| carrack_disks::directories(of).unwrap_or_default();
        Self {
            empty_dirs: all(volumes).into_iter().map(empty_dir).collect(),
            logs: all(logs).into_iter().map(|dir| (name_of(&dir), files_in(&dir))).collect(),
        }
    }

    /// What of it is on the node's disk.
    pub fn on_disk(&self) -> Files {
        let empty_dirs = self.empty_dirs.iter().filter(|v| v.is_on_disk);
        // A directory is a file itself.
        let empty_dirs = empty_dirs.map(|v| Files { count: v.files.count + 1, ..v.files });
        let mut sum = Files::default();
        for files in empty_dirs.chain(self.logs.values().copied()) {
            sum = Files { bytes: sum.bytes + files.bytes, count: sum.count + files.count };
        }
        sum
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

/// Bytes and files below a directory, on its file system alone.
fn files_in(dir: &Path) -> Files {
    let mut found = Files::default();
    let Ok(top) = fs::symlink_metadata(dir) else { return found };
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(m) = entry.metadata() else { continue };
            if m.dev() != top.dev() {
                continue;
            }
            found = Files { bytes: found.bytes + m.blocks() * 512, count: found.count + 1 };
            if found.count >= MAX_FILES {
                return found;
            }
            if m.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), vec![1; 100_000]).unwrap();
        let files = files_in(dir.path());
        assert!(files.bytes >= 100_000 && files.count == 2, "{files:?}");
        assert_eq!(files_in(&dir.path().join("none")), Files::default());
        let mut usage = Usage { containers: BTreeMap::from([("d".into(), 1000)]), ..Usage::default() };
        let kept = Kept::in_directories(dir.path(), dir.path());
        kept.add_to(&mut usage);
        assert!(usage.empty_dirs["d"] >= 100_000 && usage.containers["d"] >= 101_000, "{usage:?}");
        assert!(usage.disk_bytes >= 200_000 && usage.inodes == 3, "{usage:?}");
        // Another file system than the disk's has its own room.
        let mut in_memory = kept.clone();
        in_memory.empty_dirs[0].is_on_disk = false;
        assert_eq!(in_memory.on_disk(), kept.logs["d"]);
    }
}
