//! Volumes on disk: set up so that doing it twice does it once, torn down only when nothing is mounted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};

use super::{io_error, mounts, remove};
use crate::effects::OpError;
use crate::runtime::{ContainerFiles, Mount, SubPath};
use crate::volumes::{FileEntry, VolumeKind, VolumeSetup};

/// How what is in a volume is found: no link leads out of it.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

fn what(doing: &str, path: &str) -> String {
    format!("{doing} {path}")
}

fn is_mounted(path: &str) -> Result<bool, OpError> {
    mounts::is_mount_point(path).map_err(io_error(what("looking for a mount at", path)))
}

/// Makes a volume ready, or makes sure that it is.
///
/// # Errors
/// What lacks, or what the kernel says.
pub fn set_up(v: &VolumeSetup) -> Result<(), OpError> {
    match &v.kind {
        VolumeKind::HostPath { path_type } => return host_path(&v.path, path_type),
        VolumeKind::EmptyDir { tmpfs: false, .. } => empty_dir(&v.path, v.fs_group)?,
        VolumeKind::EmptyDir { tmpfs: true, size_bytes, page_bytes } => {
            empty_memory(&v.path, *size_bytes, *page_bytes, v.fs_group)?;
        }
        VolumeKind::Files { tmpfs, files } => {
            make_dir(&v.path, *tmpfs)?;
            write_files(Path::new(&v.path), files, v.fs_group).map_err(io_error(what("writing", &v.path)))?;
        }
        VolumeKind::Published(_) => return Err(OpError::Failed("a driver's volume is published by its driver".into())),
    }
    Ok(())
}

/// The mode of an empty directory that nobody has touched.
const EMPTY: u32 = 0o777;

/// Makes an empty directory, under its name only when all is done: what is there is the pod's, with the mode and the group
/// that it has given it since (upstream's readiness file, `pkg/volume/emptydir/empty_dir.go`).
fn empty_dir(path: &str, fs_group: Option<i64>) -> Result<(), OpError> {
    match fs::symlink_metadata(path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error(what("looking at", path))(e)),
    }
    // No volume of a pod has a dot in its name.
    let new = format!("{path}.new");
    make_dir(&new, false)?;
    give(&new, fs_group)?;
    fs::rename(&new, path).map_err(io_error(what("creating", path)))
}

/// Mounts memory, or huge pages. What is mounted is the pod's as well: the group is given it as long as it is untouched.
fn empty_memory(path: &str, size_bytes: u64, page_bytes: u64, fs_group: Option<i64>) -> Result<(), OpError> {
    fs::create_dir_all(path).map_err(io_error(what("creating", path)))?;
    if !is_mounted(path)? {
        if page_bytes > 0 {
            let doing = format!("mounting huge pages of {page_bytes} bytes at {path}");
            mounts::hugetlbfs(path, page_bytes).map_err(io_error(doing))?;
        } else {
            mounts::tmpfs(path, size_bytes).map_err(io_error(what("mounting tmpfs at", path)))?;
        }
    }
    let found = fs::metadata(path).map_err(io_error(what("looking at", path)))?;
    if found.permissions().mode() & 0o7777 == EMPTY { give(path, fs_group) } else { Ok(()) }
}

/// Gives a directory to the pod's group, if it has one.
fn give(path: &str, fs_group: Option<i64>) -> Result<(), OpError> {
    let Some(group) = fs_group else { return Ok(()) };
    own(Path::new(path), group, 0o2770).map_err(io_error(what("owning", path)))
}

fn make_dir(path: &str, tmpfs: bool) -> Result<(), OpError> {
    fs::create_dir_all(path).map_err(io_error(what("creating", path)))?;
    if tmpfs && !is_mounted(path)? {
        mounts::tmpfs(path, 0).map_err(io_error(what("mounting tmpfs at", path)))?;
    }
    // The mode that the umask took away from.
    fs::set_permissions(path, Permissions::from_mode(EMPTY)).map_err(io_error(what("setting the mode of", path)))
}

/// Gives a directory to the pod's group.
fn own(path: &Path, group: i64, mode: u32) -> io::Result<()> {
    let gid = u32::try_from(group).map_err(|_| io::Error::other("the group is out of range"))?;
    std::os::unix::fs::chown(path, None, Some(gid))?;
    let old = fs::metadata(path)?.permissions().mode();
    fs::set_permissions(path, Permissions::from_mode(old | mode))
}

fn host_path(path: &str, path_type: &str) -> Result<(), OpError> {
    let wrong = |kind: &str| Err(OpError::Failed(format!("hostPath type check failed: {path} is not a {kind}")));
    let meta = match fs::metadata(path) {
        Ok(m) => Some(m),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(io_error(what("looking at", path))(e)),
    };
    match (path_type, meta) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", None) => {
            fs::create_dir_all(path).map_err(io_error(what("creating", path)))?;
            fs::set_permissions(path, Permissions::from_mode(0o755))
                .map_err(io_error(what("setting the mode of", path)))
        }
        ("FileOrCreate", None) => File::options()
            .create(true)
            .append(true)
            .mode(0o644)
            .open(path)
            .map(drop)
            .map_err(io_error(what("creating", path))),
        ("Directory" | "DirectoryOrCreate", Some(m)) if m.is_dir() => Ok(()),
        ("File" | "FileOrCreate", Some(m)) if m.is_file() => Ok(()),
        ("Socket", Some(m)) if m.file_type().is_socket() => Ok(()),
        ("CharDevice", Some(m)) if m.file_type().is_char_device() => Ok(()),
        ("BlockDevice", Some(m)) if m.file_type().is_block_device() => Ok(()),
        ("Directory" | "DirectoryOrCreate", _) => wrong("directory"),
        ("File" | "FileOrCreate", _) => wrong("file"),
        ("Socket", _) => wrong("socket file"),
        ("CharDevice", _) => wrong("character device"),
        ("BlockDevice", _) => wrong("block device"),
        (other, _) => Err(OpError::Failed(format!("{other} is an invalid volume type"))),
    }
}

/// Files by path: contents and permission bits.
type Contents = BTreeMap<PathBuf, (Vec<u8>, u32)>;

/// The files under `..data`, to see whether anything would change.
fn present(dir: &Path) -> io::Result<Option<Contents>> {
    let data = dir.join("..data");
    if fs::symlink_metadata(&data).is_err() {
        return Ok(None);
    }
    let mut out = BTreeMap::new();
    let mut todo = vec![(data, PathBuf::new())];
    while let Some((at, name)) = todo.pop() {
        for entry in fs::read_dir(&at)? {
            let entry = entry?;
            let (path, name) = (entry.path(), name.join(entry.file_name()));
            let meta = fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                todo.push((path, name));
            } else {
                out.insert(name, (fs::read(&path)?, meta.permissions().mode() & 0o777));
            }
        }
    }
    Ok(Some(out))
}

/// What the pod's group may do with a file.
fn group_bits(fs_group: Option<i64>) -> u32 {
    if fs_group.is_some() { 0o440 } else { 0 }
}

/// Replaces the contents of a volume at one stroke, as upstream's atomic writer does: the files lie
/// in a directory of their own, `..data` links to it, and every visible name links through `..data`. Who was killed on the way
/// left some of it undone: whatever there is, all steps are looked at.
fn write_files(dir: &Path, files: &[FileEntry], fs_group: Option<i64>) -> io::Result<()> {
    let group_bits = group_bits(fs_group);
    let wanted: Contents =
        files.iter().map(|f| (PathBuf::from(&f.path), (f.data.clone(), f.mode | group_bits))).collect();
    let old = fs::read_link(dir.join("..data")).ok();
    let data = match old.clone().filter(|_| present(dir).is_ok_and(|there| there.as_ref() == Some(&wanted))) {
        Some(as_wanted) => as_wanted,
        None => replace(dir, old.as_deref(), files, fs_group)?.into(),
    };
    show(dir, &data, files)
}

/// Writes files into a directory of their own, and lets `..data` lead to it. Returns its name.
fn replace(dir: &Path, old: Option<&Path>, files: &[FileEntry], fs_group: Option<i64>) -> io::Result<String> {
    let group_bits = group_bits(fs_group);
    let mut n = 0;
    let fresh = loop {
        let name = format!("..{n:08}");
        if fs::symlink_metadata(dir.join(&name)).is_err() && old != Some(Path::new(&name)) {
            break name;
        }
        n += 1;
    };
    let root = dir.join(&fresh);
    fs::create_dir(&root)?;
    fs::set_permissions(&root, Permissions::from_mode(0o755))?;
    for f in files {
        let path = root.join(&f.path);
        if let Some(parent) = path.parent().filter(|p| *p != root) {
            fs::create_dir_all(parent)?;
        }
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(&f.data)?;
        if let Some(owner) = f.owner {
            std::os::unix::fs::chown(&path, Some(owner), None)?;
        }
        if let Some(gid) = fs_group.and_then(|g| u32::try_from(g).ok()) {
            std::os::unix::fs::chown(&path, None, Some(gid))?;
        }
        fs::set_permissions(&path, Permissions::from_mode(f.mode | group_bits))?;
    }
    let link = dir.join("..data_tmp");
    remove::file(&link)?;
    std::os::unix::fs::symlink(&fresh, &link)?;
    fs::rename(&link, dir.join("..data"))?;
    Ok(fresh)
}

/// Lets the visible names be those of the files, and takes away what earlier contents left.
fn show(dir: &Path, data: &Path, files: &[FileEntry]) -> io::Result<()> {
    let mut names: Vec<&OsStr> = files.iter().filter_map(|f| Path::new(&f.path).iter().next()).collect();
    names.sort_unstable();
    names.dedup();
    for name in &names {
        let at = dir.join(name);
        if fs::symlink_metadata(&at).is_err() {
            std::os::unix::fs::symlink(Path::new("..data").join(name), at)?;
        }
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with("..");
        if hidden && name != OsStr::new("..data") && name != data.as_os_str() && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if !hidden && !names.contains(&name.as_os_str()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Undoes a volume: binds of parts of it first, then its own mount, then its contents.
///
/// # Errors
/// When something is busy; then what is mounted stays mounted.
pub fn tear_down(path: &str) -> Result<(), OpError> {
    // <pod>/volumes/<plugin>/<name> has its parts bound at <pod>/volume-subpaths/<name>.
    let volume = Path::new(path);
    if let (Some(name), Some(pod)) = (volume.file_name(), volume.ancestors().nth(3)) {
        let parts = pod.join("volume-subpaths").join(name);
        unmount_below(&parts.to_string_lossy())?;
    }
    unmount_below(path)?;
    remove::unmounted(path).map_err(io_error(what("removing", path)))
}

pub(super) fn unmount_below(dir: &str) -> Result<(), OpError> {
    mounts::unmount_at_or_below(dir).map_err(io_error(what("clearing of mounts", dir)))
}

/// Removes the directories of a pod that is gone.
///
/// # Errors
/// While something is mounted in them.
pub fn remove_pod(dir: &str, log_dir: &str) -> Result<(), OpError> {
    remove::unmounted(dir).map_err(io_error(what("removing", dir)))?;
    remove::unmounted(log_dir).map_err(io_error(what("removing", log_dir)))
}

/// Makes the files that a container is to find, and binds the parts of volumes that it mounts.
///
/// # Errors
/// What the disk says; [`OpError::Config`] for a part that cannot be bound, or leads out of its volume.
pub fn prepare_container(files: &ContainerFiles, mount_list: &[Mount], node_network: bool) -> Result<(), OpError> {
    fs::create_dir_all(&files.log_directory).map_err(io_error(what("creating", &files.log_directory)))?;
    if let Some((path, text)) = &files.hosts {
        // On the node's network it adds to the node's own.
        let node = if node_network { fs::read_to_string("/etc/hosts").unwrap_or_default() } else { String::new() };
        let head = if node_network { "# Kubernetes-managed hosts file (host network).\n" } else { "" };
        write_once(path, format!("{head}{node}{text}").as_bytes(), 0o644)?;
    }
    if !files.termination_log.is_empty() {
        write_once(&files.termination_log, b"", 0o666)?;
    }
    for m in mount_list {
        match &m.sub_path {
            Some(part) => bind_part(&m.host_path, part).map_err(|error| {
                let (path, at) = (&part.path, &m.container_path);
                OpError::Config(format!("failed to prepare subPath {path:?} of what is mounted at {at}: {error}"))
            })?,
            // As Docker did and pods rely on: what is not there becomes a directory.
            None if !is_there(&m.host_path) => {
                fs::create_dir_all(&m.host_path).map_err(io_error(what("creating", &m.host_path)))?;
            }
            None => {}
        }
    }
    Ok(())
}

/// Whether something is at a path. What is mounted there may have a server that does not answer, and it is not asked.
fn is_there(path: &str) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::empty()).is_ok()
}

fn write_once(path: &str, bytes: &[u8], mode: u32) -> Result<(), OpError> {
    let at = Path::new(path);
    if let Some(dir) = at.parent() {
        fs::create_dir_all(dir).map_err(io_error(what("creating", path)))?;
    }
    // Written in place: running containers of the pod have the same file mounted.
    fs::write(at, bytes).map_err(io_error(what("writing", path)))?;
    fs::set_permissions(at, Permissions::from_mode(mode)).map_err(io_error(what("setting the mode of", path)))
}

/// Binds a part of a volume to a path of our own. The part is opened so that no link can lead out of
/// the volume, and bound through the open file, so that nothing can be swapped in between. What was bound for an earlier container
/// is bound anew where its name has come to be another file's, as those of config maps do (upstream's `prepareSubpathTarget`,
/// `pkg/volume/util/subpath`).
fn bind_part(volume: &str, part: &SubPath) -> Result<(), OpError> {
    let root = open_dir(volume).map_err(|e| OpError::Failed(format!("opening {volume}: {e}")))?;
    let open = || open_beneath(&root, &part.path);
    let fd = match open() {
        Err(rustix::io::Errno::NOENT) => {
            make_beneath(&root, &part.path)
                .map_err(|e| OpError::Failed(format!("creating {} in {volume}: {e}", part.path)))?;
            open()
        }
        r => r,
    }
    .map_err(|e| OpError::Failed(format!("opening {} in {volume}: {e}", part.path)))?;
    let found = rustix::fs::fstat(&fd).map_err(|e| OpError::Failed(format!("looking at {}: {e}", part.path)))?;
    let is_dir = rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::Directory;
    let target = Path::new(&part.bind_at);
    if is_mounted(&part.bind_at)? {
        let bound = rustix::fs::stat(target);
        if bound.is_ok_and(|bound| (bound.st_dev, bound.st_ino) == (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        mounts::unmount(&part.bind_at).map_err(io_error(what("unmounting", &part.bind_at)))?;
        let made_for_it = if fs::symlink_metadata(target).is_ok_and(|m| m.is_dir()) {
            fs::remove_dir(target)
        } else {
            fs::remove_file(target)
        };
        made_for_it.map_err(io_error(what("removing", &part.bind_at)))?;
    }
    if is_dir {
        fs::create_dir_all(target).map_err(io_error(what("creating", &part.bind_at)))?;
    } else {
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir).map_err(io_error(what("creating", &part.bind_at)))?;
        }
        File::options().create(true).append(true).open(target).map_err(io_error(what("creating", &part.bind_at)))?;
    }
    mounts::bind_fd(&fd, &part.bind_at).map_err(io_error(what("binding", &part.bind_at)))
}

/// Opens the directory of a volume, to look for what is in it.
pub(super) fn open_dir(volume: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens what is in a volume, to look at it alone. No link leads out of the volume.
pub(super) fn open_beneath(root: &impl AsFd, path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BENEATH)
}

/// Makes directories one by one, each opened beneath the one before. They get the mode of the volume: whoever may write
/// there may write in its parts (upstream's `makeMounts`, `pkg/kubelet/kubelet_pods.go`).
fn make_beneath(root: &impl AsFd, path: &str) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode & 0o2777);
    let mut at = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
    for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
        let made = match rustix::fs::mkdirat(&at, part, mode) {
            Ok(()) => true,
            Err(rustix::io::Errno::EXIST) => false,
            Err(e) => return Err(e),
        };
        // What has just been made is no link; one that is there may be.
        let resolve = if made { BENEATH | ResolveFlags::NO_SYMLINKS } else { BENEATH };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = rustix::fs::openat2(&at, part, flags, Mode::empty(), resolve)?;
        if made {
            // The mode that the umask took away from.
            rustix::fs::chmod(format!("/proc/self/fd/{}", at.as_raw_fd()), mode)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod races;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn file(path: &str, data: &str, mode: u32) -> FileEntry {
        FileEntry { path: path.into(), data: data.into(), mode, owner: None }
    }

    fn setup(dir: &Path, files: Vec<FileEntry>) -> VolumeSetup {
        VolumeSetup {
            uid: "u".into(),
            name: "v".into(),
            path: dir.join("pods/u/volumes/p/v").to_string_lossy().into_owned(),
            kind: VolumeKind::Files { tmpfs: false, files },
            fs_group: None,
        }
    }

    #[test]
    fn contents_are_replaced_at_one_stroke() {
        let dir = tempfile::tempdir().unwrap();
        let first = setup(dir.path(), vec![file("a", "1", 0o644), file("d/b", "2", 0o600)]);
        let at = Path::new(&first.path);
        set_up(&first).unwrap();
        assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(at.join("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(at.join("d/b")).unwrap().permissions().mode() & 0o777, 0o600);
        let before = fs::read_link(at.join("..data")).unwrap();
        set_up(&first).unwrap();
        assert_eq!(fs::read_link(at.join("..data")).unwrap(), before, "nothing changed, nothing is written");
        set_up(&setup(dir.path(), vec![file("a", "3", 0o644)])).unwrap();
        assert_ne!(fs::read_link(at.join("..data")).unwrap(), before);
        assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "3");
        assert!(!at.join("d").exists());
        let hidden = || fs::read_dir(at).unwrap().filter(|e| e.as_ref().unwrap().path().is_dir()).count();
        assert_eq!(hidden(), 2, "..data and what it links to");
        // As one leaves it who was killed behind the stroke: names are not there yet, or still, and old contents.
        fs::remove_file(at.join("a")).unwrap();
        std::os::unix::fs::symlink("..data/d", at.join("d")).unwrap();
        fs::create_dir(at.join("..00000007")).unwrap();
        set_up(&setup(dir.path(), vec![file("a", "3", 0o644)])).unwrap();
        assert_eq!(fs::read_to_string(at.join("a")).unwrap(), "3");
        assert!(fs::symlink_metadata(at.join("d")).is_err());
        assert_eq!(hidden(), 2, "..data and what it links to");
        tear_down(&first.path).unwrap();
        assert!(!at.exists());
        tear_down(&first.path).unwrap();
    }

    #[test]
    fn what_a_pod_makes_of_its_empty_directory_stays_so() {
        let root = rustix::process::geteuid().is_root();
        let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        for (tmpfs, fs_group, made) in [(false, None, 0o777), (false, Some(1234), 0o2777), (true, Some(1234), 0o2777)] {
            // Mounting and giving away take privileges.
            if !root && (tmpfs || fs_group.is_some()) {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            let kind = VolumeKind::EmptyDir { tmpfs, size_bytes: 0, page_bytes: 0 };
            let v = VolumeSetup { kind, fs_group, ..setup(dir.path(), vec![]) };
            // As one leaves it who was killed before it was done.
            fs::create_dir_all(format!("{}.new", v.path)).unwrap();
            fs::set_permissions(format!("{}.new", v.path), Permissions::from_mode(0o700)).unwrap();
            set_up(&v).unwrap();
            assert_eq!(mode(&v.path), made, "{tmpfs} {fs_group:?}");
            if let Some(group) = fs_group {
                assert_eq!(i64::from(fs::metadata(&v.path).unwrap().gid()), group, "{tmpfs}");
            }
            fs::write(Path::new(&v.path).join("f"), "1").unwrap();
            fs::set_permissions(&v.path, Permissions::from_mode(0o700)).unwrap();
            // A kubelet that starts again sets up once more.
            set_up(&v).unwrap();
            assert_eq!(mode(&v.path), 0o700, "{tmpfs} {fs_group:?}");
            assert_eq!(fs::read_to_string(Path::new(&v.path).join("f")).unwrap(), "1");
            tear_down(&v.path).unwrap();
        }
    }

    #[test]
    fn a_part_that_is_made_may_be_written_by_whoever_may_write_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        for (of_volume, expected) in [(0o777, 0o777), (0o2775, 0o2775), (0o750, 0o750), (0o4777, 0o777)] {
            let at = dir.path().join(format!("{of_volume:o}"));
            fs::create_dir_all(at.join("there")).unwrap();
            let there = Permissions::from_mode(0o711);
            fs::set_permissions(at.join("there"), there).unwrap();
            fs::set_permissions(&at, Permissions::from_mode(of_volume)).unwrap();
            let root = rustix::fs::open(&at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
            make_beneath(&root, "there/new/part").unwrap();
            for (part, expected) in [("there", 0o711), ("there/new", expected), ("there/new/part", expected)] {
                let mode = fs::metadata(at.join(part)).unwrap().permissions().mode() & 0o7777;
                assert_eq!(mode, expected, "{part} of {of_volume:o}");
            }
        }
    }

    #[test]
    fn paths_of_the_node_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("file"), "").unwrap();
        let _listens = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for (name, kind, ok) in [
            ("missing", "", true),
            ("missing", "Directory", false),
            ("missing", "File", false),
            ("made", "DirectoryOrCreate", true),
            ("made", "Directory", true),
            ("made", "File", false),
            ("file", "File", true),
            ("file", "FileOrCreate", true),
            ("file", "Socket", false),
            ("file", "CharDevice", false),
            ("file", "BlockDevice", false),
            ("new", "FileOrCreate", true),
            ("new", "File", true),
            ("made", "FileOrCreate", false),
            ("file", "DirectoryOrCreate", false),
            ("socket", "Socket", true),
            ("socket", "File", false),
            ("/dev/null", "CharDevice", true),
            ("/dev/null", "BlockDevice", false),
            ("file", "nonsense", false),
        ] {
            assert_eq!(host_path(&path(name), kind).is_ok(), ok, "{name} {kind}");
        }
    }

    #[test]
    fn a_part_of_a_volume_cannot_lead_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("pods/u/volumes/p/v");
        fs::create_dir_all(&volume).unwrap();
        fs::create_dir(dir.path().join("secret")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), volume.join("out")).unwrap();
        let bind = |path: &str| {
            let bind_at = dir.path().join("pods/u/volume-subpaths/v/c/0").to_string_lossy().into_owned();
            bind_part(&volume.to_string_lossy(), &SubPath { path: path.into(), bind_at })
        };
        for path in ["out", "../../../../secret", "out/x"] {
            assert!(bind(path).is_err(), "{path}");
        }
        // Binding itself takes privileges.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        bind("in/side").unwrap();
        fs::write(volume.join("in/side/f"), "x").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("pods/u/volume-subpaths/v/c/0/f")).unwrap(), "x");
        tear_down(&volume.to_string_lossy()).unwrap();
        let pod = dir.path().join("pods/u");
        remove_pod(&pod.to_string_lossy(), &dir.path().join("logs").to_string_lossy()).unwrap();
        assert!(!pod.exists());
    }

    /// Upstream's tests look for these words (`waitForPodSubpathError`, `test/e2e/storage/testsuites/subpath.go`).
    #[test]
    fn a_part_that_cannot_be_had_is_a_fault_of_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::create_dir(at("volume")).unwrap();
        fs::write(at("volume/file"), "1").unwrap();
        std::os::unix::fs::symlink("/", at("volume/out")).unwrap();
        for path in ["out", "file/below"] {
            let files = ContainerFiles { log_directory: at("logs"), ..ContainerFiles::default() };
            let part = SubPath { path: path.into(), bind_at: at("part") };
            let mount = Mount { host_path: at("volume"), sub_path: Some(part), ..Mount::default() };
            let told = prepare_container(&files, &[mount], false).unwrap_err();
            let expected = format!("failed to prepare subPath \"{path}\"");
            assert!(matches!(&told, OpError::Config(text) if text.starts_with(&expected)), "{told:?}");
        }
    }

    #[test]
    fn the_next_container_finds_what_a_part_has_become() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let of = |files: Vec<FileEntry>| setup(dir.path(), files);
        let volume = of(vec![file("a", "1", 0o644), file("b", "1", 0o644)]);
        let at = |name: &str| dir.path().join("pods/u/volume-subpaths/v").join(name).to_string_lossy().into_owned();
        let bind = |path: &str| {
            bind_part(&volume.path, &SubPath { path: path.into(), bind_at: at(path) }).unwrap();
            assert_eq!(mounts::at_or_below(&at(path)).unwrap().len(), 1);
        };
        set_up(&volume).unwrap();
        bind("a");
        bind("b");
        bind("a");
        set_up(&of(vec![file("a", "2", 0o644), file("b/in", "2", 0o644)])).unwrap();
        // Who runs sees what it began with.
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "1");
        bind("a");
        bind("b");
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "2");
        assert_eq!(fs::read_to_string(Path::new(&at("b")).join("in")).unwrap(), "2");
        tear_down(&volume.path).unwrap();
    }

    #[test]
    fn huge_pages_are_mounted_once_where_the_kernel_has_them() {
        let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let may = rustix::process::geteuid().is_root()
            && fs::read_to_string("/proc/filesystems").unwrap().contains("hugetlbfs");
        if !may || !Path::new(pages).exists() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let of = |page_bytes| VolumeSetup {
            kind: VolumeKind::EmptyDir { tmpfs: true, size_bytes: 0, page_bytes },
            fs_group: Some(1234),
            ..setup(dir.path(), vec![])
        };
        let v = of(2 << 20);
        assert!(set_up(&of(3 << 20)).is_err(), "no pages have that size");
        set_up(&v).unwrap();
        set_up(&v).unwrap();
        assert_eq!(mounts::at_or_below(&v.path).unwrap().len(), 1);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(&v.path)).unwrap();
        assert!(line.contains("hugetlbfs") && line.contains("pagesize=2M"), "{line}");
        tear_down(&v.path).unwrap();
    }

    #[test]
    fn memory_is_mounted_once_and_its_mount_is_proof_against_removal() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let v = VolumeSetup {
            kind: VolumeKind::EmptyDir { tmpfs: true, size_bytes: 1 << 20, page_bytes: 0 },
            fs_group: Some(1234),
            ..setup(dir.path(), vec![])
        };
        set_up(&v).unwrap();
        set_up(&v).unwrap();
        assert_eq!(mounts::at_or_below(&v.path).unwrap().len(), 1);
        assert!(mounts::is_mount_point(&v.path).unwrap());
        for other in [format!("{}/below", v.path), dir.path().to_string_lossy().into_owned()] {
            assert!(!mounts::is_mount_point(&other).unwrap(), "{other}");
        }
        let pod = dir.path().join("pods/u").to_string_lossy().into_owned();
        assert!(remove_pod(&pod, &pod).is_err(), "not while it is mounted");
        tear_down(&v.path).unwrap();
        remove_pod(&pod, &pod).unwrap();
    }
}
