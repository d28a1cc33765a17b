//! Directories that go with all that is in them, and with nothing of what is mounted in them.
//!
//! That nothing is mounted is looked up first. But a driver may be late and mount something a moment after; and who walked into
//! it would empty a volume. So nothing is opened across file systems, and what is in a directory that is to go is first moved up
//! to the top, which the kernel refuses for what is mounted. That also bounds how deep one has to go, whatever a pod has left.
//!
//! Single files go here, too, and links to what is in such a directory.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, renameat, unlinkat};
use rustix::io::Errno;

use crate::mounts;

/// What was moved up is called so, with a number.
const MOVED: &str = "..moved-";
/// How often what seems to be empty may turn out not to be.
const TRIES: u32 = 16;

/// Removes a directory with its contents, unless something is mounted in it. One that is not there is gone.
///
/// # Errors
/// When something is mounted there, or is not known not to be; else what the kernel says.
pub fn unmounted(dir: &str) -> io::Result<()> {
    if let Some(m) = mounts::at_or_below(dir)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", m.path)));
    }
    whatever_is_mounted(Path::new(dir))
}

/// The same without a look at the mount table: what is mounted stops it.
fn whatever_is_mounted(dir: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(io::Error::other(format!("{} is not to be removed", dir.display())));
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match openat(CWD, parent, flags | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let top = match inside(&parent, name) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let (mut moved, mut tries) = (0_u64, 0);
    loop {
        let entries = directories(&top)?;
        if entries.is_empty() {
            match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                // What is removed while a directory is read may hide something else of it.
                Err(Errno::NOTEMPTY | Errno::EXIST) if tries < TRIES => tries += 1,
                removed => return Ok(removed?),
            }
        }
        for entry in entries {
            // It may be empty, and no directory need be opened for that.
            match unlinkat(&top, &entry, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                removed => {
                    removed?;
                    continue;
                }
            }
            let within = inside(&top, &entry)?;
            for below in directories(&within)? {
                loop {
                    moved += 1;
                    match renameat(&within, &below, &top, format!("{MOVED}{moved}")) {
                        // A pod may have called something so.
                        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                        done => break done?,
                    }
                }
            }
            match unlinkat(&top, &entry, AtFlags::REMOVEDIR) {
                // The next round finds what is left.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                removed => removed?,
            }
        }
    }
}

/// Opens a directory in another one, on the same file system.
fn inside(of: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(of, name, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV)
}

/// The directories in a directory, when all else in it is removed.
fn directories(of: &OwnedFd) -> rustix::io::Result<Vec<std::ffi::CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(of)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let removed = match entry.file_type() {
            FileType::Directory => Err(Errno::ISDIR),
            // Not all file systems say what an entry is.
            _ => unlinkat(of, name, AtFlags::empty()),
        };
        match removed {
            Err(Errno::ISDIR) => found.push(name.to_owned()),
            removed => removed?,
        }
    }
    Ok(found)
}

/// Removes a file. One that is not there is gone.
///
/// # Errors
/// What the kernel says.
pub fn file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes the links in a directory that lead to another one or to what is below that. Where there is no such directory there
/// are none.
///
/// # Errors
/// What the kernel says.
pub fn links(dir: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|target| target.starts_with(to)) {
            file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn all_of_a_directory_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("pod");
        let path = at.to_string_lossy().into_owned();
        unmounted(&path).unwrap();
        unmounted(&format!("{path}/not/there")).unwrap();
        fs::create_dir_all(at.join("a/b/c")).unwrap();
        fs::create_dir_all(at.join("a/..moved-1/d")).unwrap();
        fs::create_dir_all(dir.path().join("other")).unwrap();
        fs::create_dir_all(at.join("..moved-2/e")).unwrap();
        for file in ["f", "a/f", "a/b/f", "a/b/c/f", "a/..moved-1/d/f"] {
            fs::write(at.join(file), "").unwrap();
        }
        fs::write(dir.path().join("other/f"), "").unwrap();
        symlink(dir.path().join("other"), at.join("a/link")).unwrap();
        symlink(dir.path().join("other"), at.join("link")).unwrap();
        unmounted(&path).unwrap();
        assert!(!at.exists());
        assert!(dir.path().join("other/f").exists(), "it is reached by links alone");
    }

    #[test]
    fn a_directory_may_be_deeper_than_anything_can_be_open() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("pod");
        fs::create_dir(&at).unwrap();
        let mut deepest: OwnedFd = openat(CWD, &at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&deepest, "d", Mode::from_raw_mode(0o755)).unwrap();
            deepest = openat(&deepest, "d", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(deepest);
        unmounted(&at.to_string_lossy()).unwrap();
        assert!(!at.exists());
    }

    #[test]
    fn what_is_mounted_a_moment_later_keeps_its_contents() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        for mount_at in ["", "volumes", "volumes/p/v/mount"] {
            let at = dir.path().join("pod");
            let volume = at.join(mount_at);
            fs::create_dir_all(&volume).unwrap();
            let path = volume.to_string_lossy().into_owned();
            mounts::tmpfs(&path, 1 << 20).unwrap();
            fs::create_dir(volume.join("d")).unwrap();
            fs::write(volume.join("d/data"), "1").unwrap();
            let table = unmounted(&at.to_string_lossy()).unwrap_err().to_string();
            assert!(table.contains("is still mounted"), "{mount_at}: {table}");
            // As if the table had been read before.
            whatever_is_mounted(&at).unwrap_err();
            let there = mounts::at_or_below(&at.to_string_lossy()).unwrap();
            let data = Path::new(&there[0].path).join("d/data");
            assert_eq!(fs::read_to_string(data).unwrap(), "1", "{mount_at}");
            mounts::unmount(&there[0].path).unwrap();
            unmounted(&at.to_string_lossy()).unwrap();
        }
    }
}
