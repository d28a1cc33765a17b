//! Writes an initramfs: a `newc` cpio archive, which the kernel unpacks as its first file system.
//!
//! Upstream reference: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeMap;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;

#[derive(Debug, Clone)]
struct Entry {
    mode: u32,
    data: Vec<u8>,
    device: (u32, u32),
}

/// A file tree in memory, owned by root throughout.
#[derive(Debug, Clone, Default)]
pub struct Initramfs {
    entries: BTreeMap<String, Entry>,
}

impl Initramfs {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file; directories above it are added as needed.
    pub fn file(&mut self, path: &str, mode: u32, data: impl Into<Vec<u8>>) -> &mut Self {
        self.insert(path, S_IFREG | mode, data.into(), (0, 0))
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str, mode: u32) -> &mut Self {
        self.insert(path, S_IFDIR | mode, Vec::new(), (0, 0))
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.insert(path, S_IFLNK | 0o777, target.into(), (0, 0))
    }

    /// Adds a character device.
    pub fn character(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> &mut Self {
        self.insert(path, S_IFCHR | mode, Vec::new(), (major, minor))
    }

    /// Whether something stands at `path`.
    pub fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_matches('/'))
    }

    fn insert(&mut self, path: &str, mode: u32, data: Vec<u8>, device: (u32, u32)) -> &mut Self {
        let path = path.trim_matches('/').to_owned();
        for (at, _) in path.match_indices('/') {
            self.entries.entry(path[..at].to_owned()).or_insert(Entry {
                mode: S_IFDIR | 0o755,
                data: Vec::new(),
                device: (0, 0),
            });
        }
        self.entries.insert(path, Entry { mode, data, device });
        self
    }

    /// The archive.
    pub fn cpio(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // Parents sort before what is in them, which is the order the kernel needs.
        for (inode, (path, entry)) in (1u32..).zip(&self.entries) {
            append(&mut out, inode, path, entry);
        }
        let end = Entry { mode: 0, data: Vec::new(), device: (0, 0) };
        append(&mut out, 0, "TRAILER!!!", &end);
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }
}

fn append(out: &mut Vec<u8>, inode: u32, path: &str, entry: &Entry) {
    let name_bytes = path.len() as u32 + 1;
    let fields = [
        inode,
        entry.mode,
        0, // owner
        0, // group
        1, // links
        0, // time
        entry.data.len() as u32,
        0, // the device that holds the file
        0,
        entry.device.0,
        entry.device.1,
        name_bytes,
        0, // no checksum
    ];
    out.extend(b"070701");
    for field in fields {
        out.extend(format!("{field:08X}").as_bytes());
    }
    out.extend(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend(&entry.data);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn busybox_reads_it_back() {
        let mut tree = Initramfs::new();
        tree.file("/etc/rc", 0o755, "hello").symlink("/init", "/bin/busybox").character("/dev/console", 0o600, 5, 1);
        let mut child = Command::new("busybox")
            .args(["cpio", "-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("busybox runs");
        child.stdin.take().expect("piped").write_all(&tree.cpio()).expect("written");
        let output = child.wait_with_output().expect("waited for");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        for part in ["-rwxr-xr-x 0/0         5 1970-01-01 00:00:00 etc/rc\n", "init -> /bin/busybox\n", "dev/console\n"]
        {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
