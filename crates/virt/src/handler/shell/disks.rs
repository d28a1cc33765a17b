#![expect(clippy::disallowed_methods, reason = "shell: it waits, for a while, for a process of a pod")]
//! Puts a container disk into the launcher's container.
//!
//! The disk is a file in one container's root filesystem and must be seen in another's. A mount is cloned in the mount
//! namespace of the first and moved into that of the second. It exists nowhere else: not on the host, where something
//! would have to clean it up, and it ends with the launcher's container. No shared propagation is needed either.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use carrack_launcher::Layout;
use carrack_launcher::receive::is_wanted;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_remount, move_mount, open_tree, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::kernel_text;

/// How often it is looked whether somebody waits for a copy.
const LOOK: Duration = Duration::from_millis(50);
/// Where container disks are in their images.
const DISK_DIR: &str = "/disk";

/// Makes the disk of container `source` visible to container `launcher` at `target`, read-only. Both are given by a
/// process id. What is there already is left, and made read-only.
///
/// # Errors
/// Why not, for people.
pub(super) fn mount(source: u32, path: Option<&str>, launcher: u32, target: &str) -> Result<(), String> {
    let (from, to) = (namespace(source)?, namespace(launcher)?);
    in_own_thread(|| {
        let (tree, identity) = clone_disk(&from, path.map(PathBuf::from))?;
        place(&to, &tree, identity, Path::new(target))
    })
}

/// Lends directories of container `source` to container `launcher`, to write to: each pair is where it is in the one, and
/// where it is to be in the other. What was lent before, and not taken back, goes first. In the first directory somebody must
/// wait for copies of the disks of the machine `uid`, or begin to before `until`.
///
/// # Errors
/// Why not, for people. Some may be lent.
pub(super) fn lend(
    source: u32,
    launcher: u32,
    pairs: &[(String, PathBuf)],
    uid: &str,
    until: Instant,
) -> Result<(), String> {
    let (from, to) = (namespace(source)?, namespace(launcher)?);
    in_own_thread(|| {
        let Some((first, _)) = pairs.first() else { return Ok(()) };
        enter(&from)?;
        while !is_wanted(Path::new(first), uid) {
            if Instant::now() > until {
                return Err(format!("nobody waits in {first} for copies of this machine's disks"));
            }
            std::thread::sleep(LOOK);
        }
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let clone = |(path, target): &(String, PathBuf)| {
            let tree = open_tree(rustix::fs::CWD, path.as_str(), flags);
            tree.map(|tree| (tree, target.clone()))
                .map_err(|error| format!("cannot clone the mount of {path}: {error}"))
        };
        let trees = pairs.iter().map(clone).collect::<Result<Vec<_>, String>>()?;
        enter(&to)?;
        for (tree, target) in trees {
            let problem = |error: &dyn std::fmt::Display| format!("cannot lend {}: {error}", target.display());
            detach(&target)?;
            fs::create_dir_all(&target).map_err(|error| problem(&error))?;
            move_mount(&tree, "", rustix::fs::CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .map_err(|error| problem(&error))?;
        }
        Ok(())
    })
}

/// Takes back what was lent; what is open stays so.
///
/// # Errors
/// Why not, for people.
pub(super) fn take_back(launcher: u32, targets: &[PathBuf]) -> Result<(), String> {
    let from = namespace(launcher)?;
    in_own_thread(|| {
        enter(&from)?;
        targets.iter().try_for_each(|target| detach(target))
    })
}

/// Takes back, from every container, what was lent: what is mounted where launchers have volumes for copies.
///
/// # Errors
/// Why not, for people. Something may be taken back nevertheless.
pub(super) fn take_all_back(proc: &Path) -> Result<(), String> {
    let entries = fs::read_dir(proc).map_err(|error| format!("cannot read {}: {error}", proc.display()))?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut seen = BTreeSet::new();
    let mut failed = Ok(());
    for pid in pids {
        // Processes end meanwhile.
        let directory = proc.join(pid.to_string());
        let Ok(namespace) = fs::read_link(directory.join("ns/mnt")) else { continue };
        if seen.contains(&namespace) {
            continue;
        }
        let Ok(mounts) = kernel_text::read(directory.join("mountinfo")) else { continue };
        seen.insert(namespace);
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        let lent: Vec<_> = points.filter(|point| is_copy_dir(point)).collect();
        if lent.is_empty() {
            continue;
        }
        tracing::info!(pid, ?lent, "what was lent for a copy is taken back");
        if let Err(why) = take_back(pid, &lent) {
            failed = Err(why);
        }
    }
    failed
}

/// Whether a path ends as [`Layout::copy_dir`] does in a container, for any machine.
fn is_copy_dir(path: &Path) -> bool {
    let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("copy-")?.parse().ok());
    let uid = path.parent().and_then(|parent| parent.file_name()?.to_str());
    // What /var/run is a link to is told as what it is.
    let (Some(number), Some(uid)) = (number, uid) else { return false };
    let expected = Layout::in_container(uid).copy_dir(number);
    let Ok(below) = expected.strip_prefix("/var/run") else { return false };
    path == expected || path == Path::new("/run").join(below)
}

fn detach(target: &Path) -> Result<(), String> {
    loop {
        match unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or it is not there.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(format!("cannot take back {}: {error}", target.display())),
        }
    }
}

fn namespace(pid: u32) -> Result<File, String> {
    File::open(format!("/proc/{pid}/ns/mnt"))
        .map_err(|error| format!("cannot reach the container of process {pid}: {error}"))
}

/// A thread that changes its mount namespace is good for nothing else afterwards.
pub(super) fn in_own_thread(work: impl FnOnce() -> Result<(), String> + Send) -> Result<(), String> {
    let work = || own_filesystem_view().and_then(|()| work());
    std::thread::scope(|scope| scope.spawn(work).join()).map_err(|_| "the mounting thread failed".to_owned())?
}

/// A mount namespace can be entered only by a thread that shares its root and working directory with no other.
#[expect(
    unsafe_code,
    reason = "CLONE_FS parts nothing but this thread's root, working directory and umask from others'"
)]
fn own_filesystem_view() -> Result<(), String> {
    // SAFETY: no file descriptors are unshared, so no other code can lose one.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
        .map_err(|error| format!("cannot unshare the filesystem view: {error}"))
}

fn enter(namespace: &File) -> Result<(), String> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(|error| format!("cannot enter a container's mount namespace: {error}"))
}

/// Device and inode of a file.
type Identity = (u64, u64);

fn clone_disk(from: &File, path: Option<PathBuf>) -> Result<(OwnedFd, Identity), String> {
    enter(from)?;
    let path = match path {
        Some(path) => path,
        None => only_disk(Path::new(DISK_DIR))?,
    };
    let metadata =
        fs::symlink_metadata(&path).map_err(|error| format!("the image has no disk {}: {error}", path.display()))?;
    if !metadata.is_file() {
        return Err(format!("{} in the image is no file", path.display()));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let tree = open_tree(rustix::fs::CWD, &path, flags)
        .map_err(|error| format!("cannot clone the mount of {}: {error}", path.display()))?;
    Ok((tree, (metadata.dev(), metadata.ino())))
}

/// The one file in an image's disk directory.
fn only_disk(directory: &Path) -> Result<PathBuf, String> {
    let problem = |error: std::io::Error| format!("the image has no directory {}: {error}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        if entry.file_type().map_err(problem)?.is_file() {
            files.push(entry.path());
        }
    }
    match <[PathBuf; 1]>::try_from(files) {
        Ok([one]) => Ok(one),
        Err(files) => Err(format!("{} files found in {} of the image, expected one", files.len(), directory.display())),
    }
}

fn place(to: &File, tree: &OwnedFd, identity: Identity, target: &Path) -> Result<(), String> {
    enter(to)?;
    let problem = |what: &str, error: &dyn std::fmt::Display| format!("cannot {what} {}: {error}", target.display());
    let close = || {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount(target, flags, "").map_err(|error| problem("make read-only", &error))
    };
    match fs::metadata(target) {
        // Whoever mounted it may have ended before it was read-only.
        Ok(there) if (there.dev(), there.ino()) == identity => return close(),
        Ok(_) => {}
        Err(_) => {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent).map_err(|error| problem("make the directory of", &error))?;
            }
            File::create(target).map_err(|error| problem("make", &error))?;
        }
    }
    move_mount(tree, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| problem("mount", &error))?;
    close()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use rustix::mount::{MountFlags, mount_remount};

    use super::{enter, in_own_thread, kernel_text, mount, namespace, only_disk, take_all_back};

    /// A process in a mount namespace of its own, in which a script has been run. It ends with the value.
    struct Container(Child);

    impl Container {
        fn new(script: &str) -> Self {
            let script = format!("set -e; {script}; echo ready; exec sleep 300");
            let mut child = Command::new("unshare")
                .args(["--mount", "--propagation", "private", "sh", "-c", &script])
                .stdout(Stdio::piped())
                .spawn()
                .expect("unshare runs (as root)");
            let mut line = String::new();
            BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says something");
            assert_eq!(line, "ready\n");
            Self(child)
        }
    }

    impl Drop for Container {
        fn drop(&mut self) {
            self.0.kill().expect("killed");
            self.0.wait().expect("waited for");
        }
    }

    #[test]
    fn a_disk_is_seen_in_the_launcher_and_nowhere_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for path in [&a, &b] {
            std::fs::create_dir(path).expect("made");
        }
        let image = a.join("disk.img");
        let source = Container::new(&format!("mount -t tmpfs t {0}; echo data > {0}/disk.img", a.display()));
        let launcher = Container::new(&format!("mount -t tmpfs t {}", b.display()));
        let target = b.join("disks/disk_0.img");
        let path = image.to_str().expect("UTF-8");
        let target_text = target.to_str().expect("UTF-8");
        let again = || mount(source.0.id(), Some(path), launcher.0.id(), target_text);
        let mounts = || std::fs::read_to_string(format!("/proc/{}/mountinfo", launcher.0.id())).expect("read");
        again().expect("mounted");
        let seen = Path::new("/proc")
            .join(launcher.0.id().to_string())
            .join("root")
            .join(target.strip_prefix("/").expect("absolute"));
        assert_eq!(std::fs::read_to_string(&seen).expect("read"), "data\n");
        let error = std::fs::write(&seen, "no").expect_err("it is read-only");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        let once = mounts();
        again().expect("mounted already");
        assert_eq!(mounts(), once);
        // Whoever mounted it was ended in between.
        let pid = launcher.0.id();
        let open = || {
            enter(&namespace(pid)?)?;
            mount_remount(target_text, MountFlags::BIND, "").map_err(|error| error.to_string())
        };
        in_own_thread(open).expect("mounted to be written to");
        assert_ne!(mounts(), once);
        again().expect("mounted already");
        assert_eq!(mounts(), once);
        assert!(
            !target.exists() && !std::fs::read_to_string("/proc/self/mountinfo").expect("read").contains("disk_0.img")
        );

        let missing = mount(source.0.id(), Some("/no/such/disk"), launcher.0.id(), target_text);
        assert!(missing.as_ref().is_err_and(|why| why.contains("/no/such/disk")), "{missing:?}");
        // What is mounted does not depend on the container that it came from.
        drop(source);
        assert_eq!(std::fs::read_to_string(&seen).expect("read"), "data\n");
    }

    #[test]
    fn what_was_lent_before_is_taken_back() {
        let other = "/run/kubevirt-private/u/other-0";
        let lent = ["/run/kubevirt-private/u/copy-0", "/run/kubevirt-private/u/copy-12"];
        let make = |at: &&str| format!("mkdir -p {at}; mount -t tmpfs t {at}; ");
        // Over the host's own directory, in a namespace of its own.
        let script: String = lent.iter().chain([&other]).map(make).collect();
        // Somebody in there mounts at what is no text.
        let odd = r"odd=$(printf '/run/\377'); mkdir $odd; mount -t tmpfs t $odd";
        let launcher = Container::new(&format!("mount -t tmpfs t /run; {odd}; {script} true"));
        let mounts = || kernel_text::read(format!("/proc/{}/mountinfo", launcher.0.id())).expect("read");
        assert!(lent.iter().all(|at| mounts().contains(at)), "{}", mounts());
        take_all_back(Path::new("/proc")).expect("taken back");
        assert!(!mounts().contains("/u/copy-") && mounts().contains(other), "{}", mounts());
    }

    #[test]
    fn an_image_has_one_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let found = || only_disk(dir.path());
        assert!(found().is_err_and(|why| why.starts_with("0 files")));
        std::fs::write(dir.path().join("a.qcow2"), "").expect("written");
        assert_eq!(found(), Ok(dir.path().join("a.qcow2")));
        std::fs::write(dir.path().join("b"), "").expect("written");
        assert!(found().is_err_and(|why| why.starts_with("2 files")));
        assert!(only_disk(&dir.path().join("none")).is_err_and(|why| why.starts_with("the image has no directory")));
    }
}
