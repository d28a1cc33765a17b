//! Mounts of the machine: reading mountinfo, tmpfs, bind mounts, unmounting.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where.
    pub path: String,
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
            let path = unescape(left.split(' ').nth(4)?);
            let mut right = right.split(' ');
            let fs_type = right.next()?.to_owned();
            let super_options = right.nth(1).unwrap_or_default().to_owned();
            Some(MountPoint { path, fs_type, super_options })
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

/// Mounts a tmpfs. `size_bytes` 0 is no limit of its own.
///
/// # Errors
/// What the kernel says.
pub fn tmpfs(path: &str, size_bytes: u64) -> io::Result<()> {
    let options = if size_bytes > 0 { format!("size={size_bytes},mode=0777") } else { "mode=0777".into() };
    let options = CString::new(options)?;
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), options.as_c_str())?;
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

/// Removes a directory with its contents, unless something is mounted in it.
///
/// # Errors
/// When something is mounted there, or is not known not to be; else what the kernel says.
pub fn remove_dir_unmounted(dir: &str) -> io::Result<()> {
    if let Some(m) = at_or_below(dir)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", m.path)));
    }
    match fs::remove_dir_all(Path::new(dir)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        r => r,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_reads() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\nbroken\n";
        let expected =
            MountPoint { path: "/mnt 2".into(), fs_type: "ext3".into(), super_options: "rw,errors=continue".into() };
        assert_eq!(parse(text), vec![expected]);
    }
}
