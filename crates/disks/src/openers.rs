//! Who has a device open: a container that writes to it as it is (QEMU, a database), without a mount of it anywhere.
//!
//! To open a device exclusively shows who has claimed it for a mount or another device. Who has merely opened it is found among the
//! open files of processes, as the kernel shows them. Processes of this mount namespace are left out: what serves a device (a
//! daemon of its driver's) has it open for as long as it is there, and is no user of it; containers have namespaces of their own.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::{is_gone, processes};

/// The process of another mount namespace that has a block device open, if there is one. What is no block device, or is not
/// there, nobody has open.
///
/// # Errors
/// When processes cannot be looked at: then nothing is known.
pub fn elsewhere(device: &str) -> io::Result<Option<String>> {
    let number = match fs::metadata(device) {
        Ok(m) if m.file_type().is_block_device() => m.rdev(),
        Ok(_) => return Ok(None),
        Err(e) if is_gone(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let own = fs::read_link("/proc/self/ns/mnt")?;
    for pid in processes()? {
        let of = Path::new("/proc").join(&pid);
        match fs::read_link(of.join("ns/mnt")) {
            Ok(namespace) if namespace != own => {}
            // One with more rights than ours does not show where it is. It is no container's.
            Ok(_) => continue,
            Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(e) => return Err(e),
        }
        match has_open(&of, number) {
            Ok(true) => return Ok(Some(pid)),
            Ok(false) => {}
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Whether a process has a device open.
fn has_open(process: &Path, number: u64) -> io::Result<bool> {
    for entry in fs::read_dir(process.join("fd"))? {
        let path = entry?.path();
        let Ok(file) = fs::read_link(&path) else { continue };
        // Sockets, pipes and the like have no path.
        if !file.is_absolute() {
            continue;
        }
        // What a server has that does not answer is asked nobody about.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let Ok(found) = statx(CWD, &path, flags, StatxFlags::TYPE) else { continue };
        let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice;
        if is_device && rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor) == number {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use crate::testing::apart;
    use crate::{DiskError, filesystem, loops};

    #[tokio::test]
    async fn a_device_that_another_namespace_has_open_is_in_use() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let Ok(device) = loops::attach(&file).await else { return };
        filesystem::prove_unused(&device).await.unwrap();
        // Its own files are no others'.
        let own = std::fs::File::open(&device).unwrap();
        filesystem::prove_unused(&device).await.unwrap();
        drop(own);
        let opens = r#"exec 3<>"$0"; echo there; read -r _"#;
        let mut other = apart(&["--mount", "sh", "-c", opens, &device]);
        let in_use = filesystem::prove_unused(&device).await.unwrap_err();
        assert!(matches!(&in_use, DiskError::InUse(text) if text.contains(&other.id().to_string())), "{in_use}");
        assert!(loops::detach(&file).await.is_err(), "it would be taken away as soon as it is closed");
        drop(other.stdin.take());
        other.wait().unwrap();
        loops::detach(&file).await.unwrap();
        assert_eq!(loops::find(&file).unwrap(), None);
    }
}
