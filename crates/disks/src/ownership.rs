//! Volumes that are given to a pod's group (upstream's `SetVolumeOwnership`, `pkg/volume/volume_linux.go`).
//!
//! Who writes to the volume meanwhile may put a link in the place of what was just looked at. So nothing is reached by its
//! path twice: everything is opened beneath the volume's root without following links, and changed through what was opened.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, chmod, chownat, fstat, open, openat2};
use rustix::io::Errno;

use crate::{DiskError, failed};

/// In the volume itself, and on no link's way. What is mounted in it is somebody else's.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// What is not any more what it was a moment ago, or is mounted there.
fn is_elsewhere(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV)
}

fn error(doing: &str, path: &Path) -> impl Fn(Errno) -> DiskError {
    let what = format!("{doing} {}", path.display());
    move |e| DiskError::Failed(format!("{what}: {e}"))
}

/// The group that is to have a volume.
fn gid(group: i64) -> Result<Gid, DiskError> {
    match u32::try_from(group) {
        Ok(gid) if gid != u32::MAX => Ok(Gid::from_raw(gid)),
        _ => failed(format!("fsGroup {group} is out of range")),
    }
}

/// Whether what this is of has been given to a group.
fn has(meta: &Stat, gid: Gid) -> bool {
    meta.st_gid == gid.as_raw() && meta.st_mode & 0o2070 == 0o2070
}

/// Whether a volume has been given to a group, all of it: the root is given last.
///
/// # Errors
/// What the kernel says.
pub fn is_own(root: &Path, group: i64) -> Result<bool, DiskError> {
    let meta = rustix::fs::lstat(root).map_err(error("looking at", root))?;
    Ok(has(&meta, gid(group)?))
}

/// Gives everything in a volume to a group, unless the root has it already and that is enough.
///
/// # Errors
/// What the kernel says.
pub fn own(root: &Path, group: i64, only_on_mismatch: bool) -> Result<(), DiskError> {
    let gid = gid(group)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let volume = open(root, flags | OFlags::DIRECTORY, Mode::empty()).map_err(error("opening", root))?;
    let meta = fstat(&volume).map_err(error("looking at", root))?;
    if only_on_mismatch && has(&meta, gid) {
        return Ok(());
    }
    // The root comes last: a walk that was cut short is done again.
    let mut todo = vec![PathBuf::from(".")];
    while let Some(dir) = todo.pop() {
        let shown = root.join(&dir);
        let reading = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = match openat2(&volume, &dir, reading, Mode::empty(), BENEATH) {
            Err(e) if is_elsewhere(e) => continue,
            opened => opened.map_err(error("reading", &shown))?,
        };
        for entry in Dir::read_from(&at).map_err(error("reading", &shown))? {
            let entry = entry.map_err(error("reading", &shown))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let fd = match openat2(&at, name, flags, Mode::empty(), BENEATH) {
                Err(e) if is_elsewhere(e) => continue,
                opened => opened.map_err(error("opening something in", &shown))?,
            };
            let found = fstat(&fd).map_err(error("looking at something in", &shown))?;
            change(&fd, &found, gid).map_err(error("giving away something in", &shown))?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                todo.push(dir.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
    }
    change(&volume, &meta, gid).map_err(error("giving away", root))
}

/// Gives what is open to a group.
fn change(fd: &(impl AsFd + AsRawFd), meta: &Stat, gid: Gid) -> rustix::io::Result<()> {
    chownat(fd, "", None, Some(gid), AtFlags::EMPTY_PATH)?;
    let bits = match FileType::from_raw_mode(meta.st_mode) {
        FileType::Symlink => return Ok(()),
        FileType::Directory => 0o2770,
        _ => 0o660,
    };
    // The name leads to what is open, whatever has its path by now.
    chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), Mode::from_raw_mode(meta.st_mode & 0o7777 | bits))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    const GROUP: i64 = 4711;

    fn seen(path: &Path) -> (u32, u32) {
        let meta = fs::symlink_metadata(path).unwrap();
        (meta.gid(), meta.mode() & 0o7777)
    }

    /// A volume with a file in a directory, and links out of it, beside something of the node's.
    fn volume(dir: &Path) -> (PathBuf, PathBuf) {
        let (volume, secret) = (dir.join("volume"), dir.join("secret"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir_all(secret.join("b")).unwrap();
        for file in [volume.join("a/b/f"), secret.join("b/f")] {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
        symlink(&secret, volume.join("out")).unwrap();
        symlink(secret.join("b/f"), volume.join("a/out")).unwrap();
        (volume, secret)
    }

    #[test]
    fn all_of_a_volume_goes_to_the_group_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, secret) = volume(dir.path());
        assert!(!is_own(&volume, GROUP).unwrap());
        own(&volume, GROUP, false).unwrap();
        assert!(is_own(&volume, GROUP).unwrap() && !is_own(&volume, GROUP + 1).unwrap());
        for (path, mode) in
            [("", 0o2775), ("a", 0o2775), ("a/b", 0o2775), ("a/b/f", 0o660), ("out", 0o777), ("a/out", 0o777)]
        {
            let (gid, bits) = seen(&volume.join(path));
            assert_eq!((i64::from(gid), bits & 0o2770), (GROUP, mode & 0o2770), "{path}");
        }
        assert_eq!(seen(&secret.join("b/f")), (0, 0o600));
        // Where the root is right already, that may be enough.
        fs::write(volume.join("new"), "").unwrap();
        let before = seen(&volume.join("new")).1;
        own(&volume, GROUP, true).unwrap();
        assert_eq!(seen(&volume.join("new")).1, before);
        own(&volume, GROUP, false).unwrap();
        assert_eq!(seen(&volume.join("new")).1 & 0o660, 0o660);
        for group in [-1, i64::from(u32::MAX), i64::from(u32::MAX) + 1] {
            assert!(own(&volume, group, false).is_err(), "{group}");
        }
    }

    #[test]
    fn links_that_take_the_place_of_directories_lead_nowhere() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, secret) = volume(dir.path());
        let (swaps, stop) = (std::sync::atomic::AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pairs = [(volume.join("a"), volume.join("out")), (volume.join("a/b/f"), volume.join("a/out"))];
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in &pairs {
                        let swapped = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok();
                        swaps.fetch_add(u32::from(swapped), Ordering::Relaxed);
                    }
                }
            });
            // As often as it takes for many swaps to have fallen into walks.
            while swaps.load(Ordering::Relaxed) < 5_000 {
                own(&volume, GROUP, false).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        for path in ["", "b", "b/f"] {
            assert_eq!(seen(&secret.join(path)).0, 0, "secret/{path} of the node was given away");
        }
        assert_eq!(seen(&secret.join("b/f")).1, 0o600);
    }
}
