//! What is mounted below this cluster's directories, and its unmounting, deepest first.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::layout::Layout;

/// A mount that came back this many times after unmounting is somebody else's work.
const ROUNDS: usize = 8;

/// Unmounts everything below the data directory and the kubelet's root. Returns how many there were.
///
/// # Errors
/// The mount table cannot be read, or a mount stays.
pub fn unmount_all(layout: &Layout) -> io::Result<usize> {
    let mut count = 0;
    // Mounts can be stacked on one another, and one unmount can reveal the next.
    for _ in 0..ROUNDS {
        let mut targets = below(layout.data_dir())?;
        targets.extend(below(&layout.kubelet_root())?);
        targets.sort_by_key(|path| std::cmp::Reverse(path.as_os_str().len()));
        targets.dedup();
        if targets.is_empty() {
            return Ok(count);
        }
        for target in targets {
            match unmount(&target, UnmountFlags::NOFOLLOW) {
                Ok(()) => count += 1,
                // Its processes are dead by now: a busy one is held by a reader that will go away.
                Err(rustix::io::Errno::BUSY) => {
                    unmount(&target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                    count += 1;
                }
                // Went away together with the mount above or below it.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(io::Error::other(format!("{}: {error}", target.display()))),
            }
        }
    }
    Err(io::Error::other("mounts come back after unmounting"))
}

/// All mount points below `dir`, `dir` itself left out: it may be a filesystem that the user mounted there, or a link to one.
///
/// # Errors
/// The mount table cannot be read, or it is not known where `dir` is.
pub fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(dir) = real(dir)? else { return Ok(Vec::new()) };
    Ok(parse(&fs::read("/proc/self/mountinfo")?, &dir))
}

/// Where a directory is for the kernel, which names mounts by the places that links lead to; none where there is none.
fn real(dir: &Path) -> io::Result<Option<PathBuf>> {
    match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        real => real.map(Some),
    }
}

fn parse(mountinfo: &[u8], dir: &Path) -> Vec<PathBuf> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(unescape)
        .filter(|target| target.starts_with(dir) && target != dir)
        .collect()
}

/// The kernel writes blank, tab, newline and backslash in paths as three octal digits after a backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal =
            (first == b'\\').then(|| tail.get(..3)).flatten().and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_where_its_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("disk/kubelet")).unwrap();
        std::os::unix::fs::symlink(dir.join("disk/kubelet"), dir.join("kubelet")).unwrap();
        std::os::unix::fs::symlink(dir.join("nowhere"), dir.join("broken")).unwrap();
        for (name, expected) in [
            ("kubelet", Some("disk/kubelet")),
            ("disk/kubelet", Some("disk/kubelet")),
            ("missing", None),
            ("broken", None),
        ] {
            assert_eq!(real(&dir.join(name)).unwrap(), expected.map(|path| dir.join(path)), "{name}");
        }
    }

    #[test]
    fn mounts_are_found_by_whole_path_components() {
        let table =
            b"1 0 0:1 / /d rw - ext4 a rw\n2 0 0:1 / /d/x\\040y rw - ext4 a rw\n3 0 0:1 / /dd/z rw - ext4 a rw\n";
        assert_eq!(parse(table, Path::new("/d")), [PathBuf::from("/d/x y")]);
        assert_eq!(unescape(b"/a\\134b\\04"), PathBuf::from("/a\\b\\04"));
    }
}
