//! Mounts of the machine: reading mountinfo, tmpfs, bind mounts, unmounting.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::{is_gone, processes};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where.
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

/// Reads the text of mountinfo (proc(5)).
#[must_use]
pub fn parse(text: &str) -> Vec<MountPoint> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(2);
            let device = left.next()?.to_owned();
            let root = unescape(left.next()?);
            let path = unescape(left.next()?);
            let mut right = right.split(' ');
            let fs_type = right.next()?.to_owned();
            let super_options = right.nth(1).unwrap_or_default().to_owned();
            Some(MountPoint { path, device, root, fs_type, super_options })
        })
        .collect()
}

/// mountinfo writes blanks and backslashes in octal.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
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
    String::from_utf8_lossy(&out).into_owned()
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

/// Mount points at a directory and below it, deepest first.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn at_or_below(dir: &str) -> io::Result<Vec<MountPoint>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let below = format!("{}/", dir.trim_end_matches('/'));
    let mut found: Vec<MountPoint> =
        parse(&text).into_iter().filter(|m| m.path == dir || m.path.starts_with(&below)).collect();
    found.sort_by_key(|m| std::cmp::Reverse(m.path.len()));
    Ok(found)
}

/// What is mounted at a path itself; the uppermost, when it is several things.
///
/// # Errors
/// When mountinfo cannot be read: then nothing is known about mounts.
pub fn at(path: &str) -> io::Result<Option<MountPoint>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(parse(&text).into_iter().rev().find(|m| m.path == path))
}

/// Where the file system of a block device is mounted in this namespace; the first mount, if there are several.
///
/// # Errors
/// When mountinfo or the device cannot be read: then nothing is known about mounts.
pub fn of_device(device: &str) -> io::Result<Option<MountPoint>> {
    let number = fs::metadata(device)?.rdev();
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    // A device that is bound to a file is on the file system that holds its node, not on itself.
    Ok(parse(&text).into_iter().find(|m| m.device == number))
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

/// Whether a part of a file system is within another: `/a/b` is within `/a` and `/`, and `/ab` is not within `/a`.
fn is_within(part: &str, whole: &str) -> bool {
    let whole = whole.trim_end_matches('/');
    part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Who has a part of a device's file system, or something within it, mounted elsewhere than at a path of ours, in any mount
/// namespace: the process through which the namespace was seen, and the mount point there. A process that ends meanwhile
/// is left out; one that cannot be looked at is an error, since then nothing is known.
///
/// Where the part is a directory of a larger file system, whoever has the larger one mounted does not count: it is there
/// for its own sake.
///
/// # Errors
/// When a namespace cannot be looked at.
pub fn elsewhere(device: &str, root: &str, ours: &str) -> io::Result<Option<(String, String)>> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    let known_other = |namespace: &Option<std::path::PathBuf>| namespace.as_ref().is_some_and(|n| *n != own);
    let mut seen = std::collections::BTreeSet::new();
    for pid in processes()? {
        let namespace = match fs::read_link(format!("/proc/{pid}/ns/mnt")) {
            Ok(n) => Some(n),
            Err(e) if is_gone(&e) => continue,
            // A process with more rights than ours does not show which namespace it is in. Its mounts show
            // all the same; a mount at the very same place is taken for ours.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            Err(e) => return Err(e),
        };
        if namespace.as_ref().is_some_and(|n| !seen.insert(n.clone())) {
            continue;
        }
        let text = match fs::read_to_string(format!("/proc/{pid}/mountinfo")) {
            Ok(t) => t,
            // The namespace may have other processes: the next of them is looked at.
            Err(e) if is_gone(&e) || e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
                seen.retain(|n| Some(n) != namespace.as_ref());
                continue;
            }
            Err(e) => return Err(e),
        };
        let same = |m: &MountPoint| m.device == device && is_within(&m.root, root);
        let other = parse(&text).into_iter().find(|m| same(m) && (known_other(&namespace) || m.path != ours));
        if let Some(m) = other {
            return Ok(Some((pid, m.path)));
        }
    }
    Ok(None)
}

/// Binds a path to another, both of the same kind.
///
/// # Errors
/// What the kernel says.
pub fn bind(from: &str, to: &str, read_only: bool) -> io::Result<()> {
    rustix::mount::mount_bind(from, to)?;
    if read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        if let Err(e) = rustix::mount::mount_remount(to, flags, c"") {
            unmount(to)?;
            return Err(e.into());
        }
    }
    Ok(())
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
            assert_eq!(is_within(part, whole), within, "{part} in {whole}");
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
        assert_eq!(parse(text), vec![expected]);
    }
}
