//! Mounts of the machine: reading mountinfo, tmpfs, bind mounts, unmounting.
//!
//! The kernel's table has paths as the bytes that they are, also those that are no text: whoever can mount, as root in a user
//! namespace of a container can, chooses them. They must keep nobody from reading the rest of the table.

use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where; what is no UTF-8 in it is replaced.
    pub path: String,
    /// The device that the file system is on, as `major:minor`.
    pub device: String,
    /// What of the file system: `/` for all of it, another path for a bind mount of a part.
    pub root: String,
    /// File system type.
    pub fs_type: String,
    /// Options of the file system.
    pub super_options: String,
}

/// A line of mountinfo, with what ties its mount to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The mount.
    pub point: MountPoint,
    /// Where it is, to the byte.
    pub at: PathBuf,
    /// Its number.
    pub id: u64,
    /// The number of the mount that it lies on.
    pub parent: u64,
    /// The group of mounts with which it shares what is mounted on it.
    pub shared: Option<u64>,
    /// The groups from which it gets what is mounted on them.
    pub from: Vec<u64>,
    /// What nobody may do through it.
    pub forbids: MountFlags,
}

/// Reads the contents of mountinfo (proc(5)).
pub(crate) fn lines(table: &[u8]) -> Vec<Line> {
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// The mounts that a process sees, by its number or `self`.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn seen_by(process: &str) -> io::Result<Vec<Line>> {
    Ok(lines(&fs::read(format!("/proc/{process}/mountinfo"))?))
}

fn line(bytes: &[u8]) -> Option<Line> {
    let at = bytes.split(|byte| *byte == b' ').nth(4)?;
    let text = String::from_utf8_lossy(bytes);
    let (left, right) = text.split_once(" - ")?;
    let mut left = left.split(' ');
    let (id, parent) = (left.next()?.parse().ok()?, left.next()?.parse().ok()?);
    let device = left.next()?.to_owned();
    let at = unescape(at);
    let (root, path) = (text_of(&unescape(left.next()?.as_bytes())), text_of(&at));
    left.next()?;
    let forbids = forbidden(left.next().unwrap_or_default());
    let tags: Vec<&str> = left.collect();
    let group = |name: &str| tags.iter().find_map(|tag| tag.strip_prefix(name)?.parse().ok());
    let (shared, from) = (group("shared:"), [group("master:"), group("propagate_from:")]);
    let mut right = right.split(' ');
    let fs_type = right.next()?.to_owned();
    let super_options = right.nth(1).unwrap_or_default().to_owned();
    let point = MountPoint { path, device, root, fs_type, super_options };
    let (at, from) = (OsString::from_vec(at).into(), from.into_iter().flatten().collect());
    Some(Line { point, at, id, parent, shared, from, forbids })
}

/// What a mount's options forbid.
fn forbidden(options: &str) -> MountFlags {
    let flag = |option: &str| match option {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        _ => MountFlags::empty(),
    };
    options.split(',').fold(MountFlags::empty(), |all, option| all | flag(option))
}

/// The mounts in the contents of mountinfo (proc(5)).
#[must_use]
pub fn parse(table: &[u8]) -> Vec<MountPoint> {
    lines(table).into_iter().map(|line| line.point).collect()
}

/// The mounts that this process sees.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn all() -> io::Result<Vec<MountPoint>> {
    Ok(seen_by("self")?.into_iter().map(|line| line.point).collect())
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// mountinfo writes blanks and backslashes in octal.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let octal = bytes
            .get(i + 1..i + 4)
            .filter(|_| bytes[i] == b'\\')
            .and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match octal {
            Some(b) => {
                out.push(b);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    out
}

/// Whether something is mounted at a path itself. The kernel is asked about the path alone: the table of all mounts of a node
/// with many pods is long.
///
/// # Errors
/// When that cannot be known.
pub fn is_mount_point(path: &str) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(rustix::io::Errno::NOENT) => Ok(false),
        // An old kernel does not say, and a file system without its server neither.
        Ok(_) | Err(_) => Ok(at(path)?.is_some()),
    }
}

/// Whether what is mounted at a path has no server any more: it is served by a process, and that has ended. It may take as long
/// to find out as that process takes to answer.
#[must_use]
pub fn is_dead(path: &str) -> bool {
    matches!(rustix::fs::statfs(path), Err(rustix::io::Errno::NOTCONN))
}

/// What the kernel calls a path in its tables: it has followed the links on the way there. What is at the path is left alone unless
/// it is a link itself, since it may be a file system without its server. A path that leads nowhere stays as it is.
pub(crate) fn without_links(path: &str) -> String {
    let whole = path.trim_end_matches('/');
    if fs::read_link(whole).is_ok()
        && let Ok(real) = fs::canonicalize(whole)
    {
        return real.to_string_lossy().into_owned();
    }
    let Some((parent, name)) = whole.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) else {
        return if whole.is_empty() { path.to_owned() } else { whole.to_owned() };
    };
    match fs::canonicalize(parent) {
        Ok(parent) => parent.join(name).to_string_lossy().into_owned(),
        Err(_) => whole.to_owned(),
    }
}

/// What of a path is below a directory, with the slash before it: `/b` for `/a/b` in `/a`, and nothing for `/a` itself. None
/// where it is elsewhere, as `/ab` is.
pub(crate) fn below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(dir.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// Mount points at a directory and below it, deepest first. Their paths begin as the directory's does, whatever links lead there.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn at_or_below(dir: &str) -> io::Result<Vec<MountPoint>> {
    Ok(lines_at_or_below(dir)?.into_iter().map(|line| line.point).collect())
}

fn lines_at_or_below(dir: &str) -> io::Result<Vec<Line>> {
    let real = without_links(dir);
    let asked = dir.trim_end_matches('/');
    let within = |line: Line| {
        let path = format!("{asked}{}", below(&line.point.path, &real)?);
        Some(Line { point: MountPoint { path, ..line.point }, ..line })
    };
    let mut found: Vec<Line> = seen_by("self")?.into_iter().filter_map(within).collect();
    found.sort_by_key(|line| std::cmp::Reverse(line.point.path.len()));
    Ok(found)
}

/// Unmounts what is mounted at a directory and below it, whatever its paths are made of.
///
/// # Errors
/// When mountinfo cannot be read, or what the kernel says of a mount: those that are not below that one have gone.
pub fn unmount_at_or_below(dir: &str) -> io::Result<()> {
    lines_at_or_below(dir)?.into_iter().try_for_each(|line| {
        rustix::mount::unmount(line.at.as_path(), UnmountFlags::NOFOLLOW).map_err(|errno| {
            let error = io::Error::from(errno);
            io::Error::new(error.kind(), format!("unmounting {}: {error}", line.point.path))
        })
    })
}

/// What is mounted at a path itself, whatever links lead there; the uppermost, when it is several things.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn at(path: &str) -> io::Result<Option<MountPoint>> {
    Ok(line_at(path)?.map(|line| MountPoint { path: path.to_owned(), ..line.point }))
}

/// The same as the kernel's table has it.
fn line_at(path: &str) -> io::Result<Option<Line>> {
    let real = without_links(path);
    Ok(seen_by("self")?.into_iter().rev().find(|line| line.at == Path::new(&real)))
}

/// Where the file system of a block device is mounted in this namespace; the first mount, if there are several.
///
/// # Errors
/// When mountinfo or the device cannot be read: then nothing is known about mounts.
pub fn of_device(device: &str) -> io::Result<Option<MountPoint>> {
    let number = fs::metadata(device)?.rdev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    // A device that is bound to a file is on the file system that holds its node, not on itself.
    Ok(all()?.into_iter().find(|m| m.device == number))
}

/// The block device of a mount, by name.
///
/// # Errors
/// When the kernel knows no block device of its number.
pub fn device_of(mount: &MountPoint) -> io::Result<String> {
    let link = fs::read_link(format!("/sys/dev/block/{}", mount.device))?;
    let name = link.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(format!("/dev/{name}"))
}

/// Binds a path to another, both of the same kind.
///
/// # Errors
/// What the kernel says.
pub fn bind(from: &str, to: &str, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(from, to)?;
    if read_only && let Err(e) = make_read_only(to) {
        unmount(to)?;
        return Err(e);
    }
    Ok(())
}

/// Makes what is mounted at a path read-only there, and nowhere else. What else is forbidden (`nosuid`, `nodev`,
/// `noexec`) stays so: the kernel takes what a remount does not repeat for allowed. Upstream repeats all options, too
/// (`MakeBindOptsSensitive` in k8s.io/mount-utils).
///
/// # Errors
/// Nothing is mounted there, or what the kernel says; it is as it was.
pub fn make_read_only(path: &str) -> io::Result<()> {
    let nothing = || io::Error::new(io::ErrorKind::NotFound, format!("nothing is mounted at {path}"));
    // Not asked of the file system, whose server may be away.
    let mount = line_at(path)?.ok_or_else(nothing)?;
    Ok(rustix::mount::mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | mount.forbids, c"")?)
}

/// Mounts a tmpfs, which is not swapped where the kernel can do that: secrets are to lie on no disk. `size_bytes` 0 is no limit
/// of its own.
///
/// # Errors
/// What the kernel says.
pub fn tmpfs(path: &str, size_bytes: u64) -> io::Result<()> {
    let options = if size_bytes > 0 { format!("size={size_bytes},mode=0777") } else { "mode=0777".into() };
    let mount = |options: String| -> io::Result<()> {
        let options = CString::new(options)?;
        Ok(rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), options.as_c_str())?)
    };
    match mount(format!("{options},noswap")) {
        // Kernels before 6.4 do not know it, and in a user namespace it is not allowed.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => mount(options),
        done => done,
    }
}

/// Mounts huge pages of a size in bytes.
///
/// # Errors
/// What the kernel says: it has no pages of that size, for one.
pub fn hugetlbfs(path: &str, page_bytes: u64) -> io::Result<()> {
    let options = CString::new(format!("pagesize={page_bytes},mode=0777"))?;
    rustix::mount::mount("hugetlbfs", path, "hugetlbfs", MountFlags::empty(), options.as_c_str())?;
    Ok(())
}

/// Binds what a file descriptor is open on to a path.
///
/// # Errors
/// What the kernel says.
pub fn bind_fd(from: impl AsFd, to: &str) -> io::Result<()> {
    let source = format!("/proc/self/fd/{}", from.as_fd().as_raw_fd());
    rustix::mount::mount_bind(source, to)?;
    Ok(())
}

/// Unmounts.
///
/// # Errors
/// What the kernel says; busy mounts stay.
pub fn unmount(path: &str) -> io::Result<()> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_from_their_neighbours() {
        for (part, whole, within) in [
            ("/", "/", true),
            ("/a", "/", true),
            ("/a/b", "/a", true),
            ("/a", "/a", true),
            ("/ab", "/a", false),
            ("/", "/a", false),
            ("/b/a", "/a", false),
        ] {
            assert_eq!(below(part, whole).is_some(), within, "{part} in {whole}");
        }
    }

    #[test]
    fn mountinfo_reads() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\nbroken\n";
        let expected = MountPoint {
            path: "/mnt 2".into(),
            device: "98:0".into(),
            root: "/mnt1".into(),
            fs_type: "ext3".into(),
            super_options: "rw,errors=continue".into(),
        };
        assert_eq!(parse(text.as_bytes()), vec![expected]);
        let forbids =
            |options: &str| lines(format!("36 35 98:0 / /at {options} - ext3 /dev/root rw\n").as_bytes())[0].forbids;
        let careful = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        assert_eq!(forbids("ro,nosuid,nodev,noexec,relatime shared:1"), careful);
        assert_eq!((forbids("rw,noatime"), forbids("rw,nodev")), (MountFlags::empty(), MountFlags::NODEV));
        let of = |tags: &str| {
            let all = lines(format!("36 35 98:0 / /at rw {tags}- ext3 /dev/root rw\n").as_bytes());
            all.into_iter().map(|line| (line.id, line.parent, line.shared, line.from)).collect::<Vec<_>>()
        };
        for (tags, shared, from) in [
            ("", None, vec![]),
            ("shared:7 ", Some(7), vec![]),
            ("shared:7 master:1 ", Some(7), vec![1]),
            ("master:3 propagate_from:2 ", None, vec![3, 2]),
            ("unbindable ", None, vec![]),
        ] {
            assert_eq!(of(tags), [(36, 35, shared, from)], "{tags}");
        }
    }

    #[test]
    fn a_path_that_is_no_text_hides_no_other() {
        let table = b"36 35 98:0 / /a/\xff\\040b rw - ext3 /dev/\xfe rw\n37 35 98:0 / /c rw - ext3 /dev/root rw\n";
        let found: Vec<(PathBuf, String)> = lines(table).into_iter().map(|line| (line.at, line.point.path)).collect();
        let odd = PathBuf::from(OsString::from_vec(b"/a/\xff b".to_vec()));
        assert_eq!(found, [(odd, "/a/\u{fffd} b".to_owned()), (PathBuf::from("/c"), "/c".to_owned())]);
    }

    #[test]
    fn what_is_mounted_at_a_path_that_is_no_text_is_unmounted() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // What it mounts is for nobody else to see.
        let mut apart = std::process::Command::new("unshare");
        apart.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
        apart.args(["--exact", "mounts::tests::unmounts_what_is_no_text", "--ignored"]).env("APART", "1");
        let output = apart.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    #[ignore = "another test runs it in a mount namespace of its own"]
    fn unmounts_what_is_no_text() {
        if std::env::var_os("APART").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join(OsString::from_vec(b"odd-\xff".to_vec()));
        let plain = dir.path().join("plain").to_string_lossy().into_owned();
        for at in [odd.as_path(), Path::new(&plain)] {
            fs::create_dir(at).unwrap();
            rustix::mount::mount("tmpfs", at, "tmpfs", MountFlags::empty(), c"size=4096").unwrap();
        }
        let top = dir.path().to_string_lossy().into_owned();
        assert_eq!(at(&plain).unwrap().map(|m| m.path), Some(plain));
        assert_eq!(at_or_below(&top).unwrap().len(), 2);
        unmount_at_or_below(&top).unwrap();
        assert!(at_or_below(&top).unwrap().is_empty());
    }

    #[test]
    fn what_is_forbidden_stays_so_where_a_mount_becomes_read_only() {
        use rustix::fs::StatVfsMountFlags;

        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name).to_string_lossy().into_owned());
        let told = |path: &str| rustix::fs::statvfs(path).unwrap().f_flag;
        let careful = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOEXEC;
        for (flags, forbids) in [
            (MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, careful),
            (MountFlags::NODEV, StatVfsMountFlags::NODEV),
            (MountFlags::empty(), StatVfsMountFlags::empty()),
        ] {
            fs::create_dir_all(&from).unwrap();
            fs::create_dir_all(&to).unwrap();
            rustix::mount::mount("tmpfs", from.as_str(), "tmpfs", flags, c"size=4096").unwrap();
            bind(&from, &to, true).unwrap();
            assert_eq!(told(&to) & (careful | StatVfsMountFlags::RDONLY), forbids | StatVfsMountFlags::RDONLY);
            assert_eq!(told(&from) & (careful | StatVfsMountFlags::RDONLY), forbids, "it is written to there");
            make_read_only(&to).unwrap();
            unmount(&to).unwrap();
            let below = make_read_only(&to).map_err(|e| e.kind());
            assert_eq!(below, Err(io::ErrorKind::NotFound), "what the directory is on is left alone");
            unmount(&from).unwrap();
        }
    }

    #[test]
    fn mounts_are_found_through_links() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [real, link, dead] = ["real", "link", "nowhere"].map(|name| dir.path().join(name));
        fs::create_dir_all(real.join("a/b")).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("gone"), &dead).unwrap();
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let (top, below) = (text(&link.join("a")), text(&link.join("a/b")));
        tmpfs(&below, 4096).unwrap();
        let paths = |dir: &str| -> Vec<String> { at_or_below(dir).unwrap().into_iter().map(|m| m.path).collect() };
        for dir in [&text(&link), &top, &below] {
            assert_eq!(paths(dir), std::slice::from_ref(&below), "{dir}");
        }
        assert_eq!(paths(&text(&real)), [text(&real.join("a/b"))]);
        assert_eq!((at(&below).unwrap().map(|m| m.path), at(&top).unwrap()), (Some(below.clone()), None));
        assert_eq!(paths(&text(&dead)), Vec::<String>::new());
        assert!(paths("/").contains(&"/".to_owned()) && at("/").unwrap().is_some());
        unmount(&below).unwrap();
        assert_eq!(paths(&top), Vec::<String>::new());
    }
}
