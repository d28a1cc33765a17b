//! What the kernel tells of processes and mounts, as text.
//!
//! Names of processes and groups and paths of mounts are bytes that whoever is in a container chooses: those that are no text
//! must hide nothing else.

use std::io;
use std::path::Path;

/// A file of the kernel's; what is no UTF-8 in it is replaced.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(file: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}
