//! The program that keeps containers of container disks alive.
//!
//! Such a container has nothing but a disk image in it: no C library, no shell. So the program is some hundred bytes of
//! machine code that need nothing, the same that holds pods' namespaces. It lies in one directory of the node that all
//! these containers mount, so that no pod needs a container to bring it along.
//!
//! A stop signal that comes before its first instruction is lost, and its container's limit of CPU time may put that
//! off for a while. The handler has the signal sent again then, when the pod goes.

use std::io;
use std::path::Path;

use crate::paths::KEEP_ALIVE_FILE;

/// Puts the program into a directory, whole or not at all.
///
/// # Errors
/// Those of the file system.
pub fn install(directory: &Path, program: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(directory)?;
    let path = directory.join(KEEP_ALIVE_FILE);
    if std::fs::read(&path).is_ok_and(|there| there == program) {
        return Ok(());
    }
    let partial = directory.join(format!(".{KEEP_ALIVE_FILE}.{}", std::process::id()));
    std::fs::write(&partial, program)?;
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&partial, &path)
}
