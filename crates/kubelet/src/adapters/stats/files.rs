//! How much lies below a directory that somebody else writes to meanwhile, and not always in good faith.
//!
//! No link is followed, and no other file system is entered or asked for anything: a pod may swap a directory for a link, and what
//! is mounted in its directory (by propagation) may have a server that does not answer. Whoever measures would wait for that, with
//! all that is measured after it, and nobody would be evicted any more.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat, openat2, statx};

/// Most files of one directory that are looked at; one with more is counted up to here.
const MAX_FILES: u64 = 1_000_000;

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// What is in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    /// Bytes that it takes of its file system.
    pub bytes: u64,
    /// How many files.
    pub count: u64,
}

impl Files {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, count: self.count + other.count }
    }

    fn add(&mut self, file: &Statx) {
        *self = self.and(Self { bytes: file.stx_blocks * 512, count: 1 });
    }
}

/// A directory, by its way from the top, with those in it that are still to be looked at.
struct Begun {
    way: Vec<u8>,
    names: Vec<CString>,
}

/// The number of a file system.
pub(super) type Device = (u32, u32);

fn device_of(file: &Statx) -> Device {
    (file.stx_dev_major, file.stx_dev_minor)
}

/// Looks at a file. What another file system knows of it without asking its server is enough to leave it alone.
fn look(of: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    statx(of, name, flags, StatxFlags::TYPE | StatxFlags::BLOCKS)
}

/// The number of the file system that a file is on; none where it is not there.
pub(super) fn device(path: &Path) -> Option<Device> {
    look(CWD, path).ok().map(|file| device_of(&file))
}

/// A file alone. One that is not there takes nothing.
pub(super) fn of_file(path: &Path) -> Files {
    let mut found = Files::default();
    if let Ok(file) = look(CWD, path) {
        found.add(&file);
    }
    found
}

/// All below a directory, on its file system alone.
pub(super) fn below(dir: &Path) -> Files {
    let mut found = Files::default();
    let Ok(top) = openat(CWD, dir, OPEN, Mode::empty()) else { return found };
    let Ok(own) = look(&top, c".").map(|top| device_of(&top)) else { return found };
    let mut todo = vec![Begun { way: b".".to_vec(), names: count(&top, own, &mut found) }];
    while let Some(begun) = todo.last_mut().filter(|_| found.count < MAX_FILES) {
        let Some(name) = begun.names.pop() else {
            todo.pop();
            continue;
        };
        let way = [&begun.way[..], b"/", name.to_bytes()].concat();
        // What went meanwhile, or is something else by now, takes nothing here.
        let Ok(here) = openat2(&top, &way[..], OPEN, Mode::empty(), WITHIN) else { continue };
        let names = count(&here, own, &mut found);
        if !names.is_empty() {
            todo.push(Begun { way, names });
        }
    }
    found
}

/// Counts what is in a directory. Returns the directories in it, none where enough was counted.
fn count(of: &OwnedFd, own: Device, found: &mut Files) -> Vec<CString> {
    let mut directories = Vec::new();
    let Ok(entries) = Dir::read_from(of) else { return directories };
    for entry in entries {
        if found.count >= MAX_FILES {
            return Vec::new();
        }
        let Ok(entry) = entry else { break };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(file) = look(of, name) else { continue };
        if device_of(&file) != own {
            continue;
        }
        found.add(&file);
        if FileType::from_raw_mode(file.stx_mode.into()) == FileType::Directory {
            directories.push(name.to_owned());
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::adapters::drivers::tests::mount_still;
    use crate::adapters::mounts;

    #[test]
    fn files_are_counted_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, elsewhere) = (dir.path().join("kept"), dir.path().join("elsewhere"));
        for of in [kept.join("a/b"), kept.join("c"), elsewhere.clone()] {
            fs::create_dir_all(&of).unwrap();
            fs::write(of.join("f"), vec![1; 100_000]).unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, kept.join("a/link")).unwrap();
        // a, a/b, a/b/f, a/link, c, c/f
        let files = below(&kept);
        assert!(files.count == 6 && (200_000..300_000).contains(&files.bytes), "{files:?}");
        std::os::unix::fs::symlink(&elsewhere, dir.path().join("top")).unwrap();
        for none in ["top", "none", "kept/c/f"] {
            assert_eq!(below(&dir.path().join(none)), Files::default(), "{none}");
        }
        let file = of_file(&kept.join("c/f"));
        assert!(file.count == 1 && file.bytes >= 100_000, "{file:?}");
        assert_eq!(of_file(&kept.join("none")), Files::default());
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("still");
        fs::create_dir(&at).unwrap();
        fs::write(dir.path().join("f"), "1").unwrap();
        let server = mount_still(&at);
        assert!(device(&at).is_some_and(|there| Some(there) != device(dir.path())));
        let ((tell, told), of) = (mpsc::channel(), dir.path().to_owned());
        std::thread::spawn(move || tell.send(below(&of)));
        let files = told.recv_timeout(Duration::from_secs(10));
        // Whoever waits goes on.
        drop(server);
        mounts::unmount(&at.to_string_lossy()).unwrap();
        assert_eq!(files.map(|files| files.count), Ok(1));
    }
}
