//! Disks of the machine: mounts, file systems, loop devices. For the kubelet, and for drivers of volumes.
//!
//! What the kernel offers as a call is called; file systems are made, checked and grown by their own programs
//! (e2fsprogs, xfsprogs), loop devices by `losetup`, all of which every Linux distribution has. Nothing here keeps any
//! state: what there is is read from the kernel each time.

pub mod filesystem;
pub mod loops;
pub mod mounts;
pub mod namespaces;
pub mod openers;
pub mod ownership;
mod program;
pub mod remove;
pub mod shared;
#[cfg(test)]
mod testing;

use program::program;
pub use program::{LIMIT, system};

/// Why something about a disk failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// It failed; what was done of it is unknown.
    #[error("{0}")]
    Failed(String),
    /// Somebody has it: nothing was done.
    #[error("{0}")]
    InUse(String),
    /// A program took longer than it may, in seconds.
    #[error("no answer within {0} s")]
    TimedOut(u64),
}

pub(crate) fn failed<T>(text: impl Into<String>) -> Result<T, DiskError> {
    Err(DiskError::Failed(text.into()))
}

/// An error of the operating system with what it was about.
pub fn io_error(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> DiskError {
    move |e| DiskError::Failed(format!("{what}: {e}"))
}

/// The directories in a directory, in their order; none where that is not there.
///
/// # Errors
/// It cannot be read.
pub fn directories(of: &std::path::Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let entries = match std::fs::read_dir(of) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// The numbers of all processes.
pub(crate) fn processes() -> std::io::Result<impl Iterator<Item = String>> {
    let names = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())))
}

/// Whether a process that was looked at has ended, or closed a file, meanwhile.
pub(crate) fn is_gone(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::NotFound || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

pub(crate) fn mounted(path: &str) -> Result<Option<mounts::MountPoint>, DiskError> {
    mounts::at(path).map_err(io_error("reading the mount table"))
}
