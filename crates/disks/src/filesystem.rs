//! Disks: a file system is made only where there surely is none, and is checked before it is mounted.

use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::{DiskError, failed, program, system};

/// The file system when nobody names one, as upstream's.
const DEFAULT_FS: &str = "ext4";

/// The file system on a device; None when it is surely blank.
async fn probe(device: &str) -> Result<Option<String>, DiskError> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device].map(str::to_owned);
    match program(Path::new("blkid"), &args, crate::LIMIT).await? {
        (Some(0), text) => {
            let value = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::to_owned);
            match (value("TYPE="), value("PTTYPE=")) {
                (Some(fs), _) => Ok(Some(fs)),
                (None, Some(table)) => failed(format!("{device} holds a partition table ({table}), not a file system")),
                (None, None) => failed(format!("blkid does not understand what is on {device}: {text}")),
            }
        }
        // Nothing was found. What is too short to hold anything, or unreadable, says something else.
        (Some(2), _) => Ok(None),
        (code, text) => failed(format!("blkid {device}: exit status {}: {text}", code.unwrap_or(-1))),
    }
}

/// Mounts a device, with a file system made on it first if it is blank.
///
/// # Errors
/// When it holds something else, needs repair that is not sure to be harmless, or cannot be mounted.
pub async fn format_and_mount(
    device: &str,
    path: &str,
    fs_type: &str,
    read_only: bool,
    options: &[String],
) -> Result<(), DiskError> {
    if crate::mounted(path)?.is_some() {
        return Ok(());
    }
    let wanted = if fs_type.is_empty() { DEFAULT_FS } else { fs_type };
    if !wanted.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return failed(format!("{wanted:?} is no file system"));
    }
    match probe(device).await? {
        None if read_only => return failed(format!("{device} is blank and for reading alone")),
        None => {
            let maker = format!("mkfs.{wanted}");
            // As upstream: no reserved blocks, and no tables written later in the background.
            let args: &[&str] = match wanted {
                "ext3" | "ext4" => &["-F", "-m0", device],
                "xfs" => &["-f", device],
                _ => &[device],
            };
            system(&maker, args).await?;
        }
        Some(found) if fs_type.is_empty() || found == wanted => check(device, &found, read_only).await?,
        Some(found) => return failed(format!("{device} holds {found}, and {wanted} is asked for")),
    }
    let mut all = vec![if read_only { "ro" } else { "rw" }.to_owned()];
    all.extend(options.iter().cloned());
    let kind = if fs_type.is_empty() { "auto" } else { wanted };
    system("mount", &["-t", kind, "-o", &all.join(","), device, path]).await.map(drop)
}

/// Repairs what can be repaired without loss; refuses the rest.
async fn check(device: &str, fs_type: &str, read_only: bool) -> Result<(), DiskError> {
    if read_only || !fs_type.starts_with("ext") {
        // xfs replays its log when mounted.
        return Ok(());
    }
    let args = ["-a".to_owned(), device.to_owned()];
    match program(Path::new(&format!("fsck.{fs_type}")), &args, crate::LIMIT).await? {
        (Some(0 | 1), _) => Ok(()),
        (Some(4), text) => failed(format!("the file system on {device} needs repair by hand: {text}")),
        (code, text) => failed(format!("fsck of {device}: exit status {}: {text}", code.unwrap_or(-1))),
    }
}

/// Lets a mounted file system take all of its device, which has grown. One that takes it already is left alone.
///
/// # Errors
/// When its kind cannot grow while mounted, or its program fails.
pub async fn grow(device: &str, path: &str) -> Result<(), DiskError> {
    let Some(there) = crate::mounted(path)? else { return failed(format!("{path} is not mounted")) };
    match there.fs_type.as_str() {
        "ext2" | "ext3" | "ext4" => system("resize2fs", &[device]).await.map(drop),
        "xfs" => system("xfs_growfs", &[path]).await.map(drop),
        "btrfs" => system("btrfs", &["filesystem", "resize", "max", path]).await.map(drop),
        other => failed(format!("a mounted file system of type {other} does not grow")),
    }
}

/// Lets the file system of a device that is nowhere mounted take all of it. Unlike [`grow`], this takes no more rights
/// than writing to the device. A device that is taken whole, is blank, or holds something else, is left alone.
///
/// # Errors
/// When it needs repair by hand, or the program fails.
pub async fn grow_unmounted(device: &str) -> Result<(), DiskError> {
    if !probe(device).await?.is_some_and(|found| found.starts_with("ext")) {
        return Ok(());
    }
    let about = system("dumpe2fs", &["-h", device]).await?;
    let number = |name: &str| {
        let line = about.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().parse::<u64>().unwrap_or(0)
    };
    // Whoever has the disk has written them.
    let block = number("Block size:");
    if !has_room(number("Block count:"), block, crate::loops::size_bytes(device)?) {
        return Ok(());
    }
    // resize2fs wants a check of all of it; what that finds is mended only where nothing is lost.
    let args = ["-f", "-p", device].map(str::to_owned);
    match program(Path::new("e2fsck"), &args, crate::LIMIT).await? {
        (Some(0 | 1), _) => {}
        (code, text) => {
            return failed(format!("the file system on {device} needs repair: status {}: {text}", code.unwrap_or(-1)));
        }
    }
    system("resize2fs", &[device]).await.map(drop)
}

/// Whether a disk has room for more blocks than its file system has.
fn has_room(blocks: u64, block: u64, size: u64) -> bool {
    let has = blocks.saturating_mul(block);
    has > 0 && size >= has.saturating_add(block)
}

/// What is used of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Size, in bytes.
    pub total_bytes: u64,
    /// Left for users without privileges, in bytes.
    pub available_bytes: u64,
    /// Used, in bytes.
    pub used_bytes: u64,
    /// Most files.
    pub inodes: u64,
    /// Files that can still be made.
    pub inodes_free: u64,
}

/// What is used of the file system at a path.
///
/// # Errors
/// What the kernel says.
pub fn usage(path: &Path) -> Result<Usage, DiskError> {
    let s = rustix::fs::statvfs(path).map_err(|e| DiskError::Failed(format!("measuring {}: {e}", path.display())))?;
    Ok(Usage {
        // A file system in user space, or a server, may say anything.
        total_bytes: s.f_blocks.saturating_mul(s.f_frsize),
        available_bytes: s.f_bavail.saturating_mul(s.f_frsize),
        used_bytes: s.f_blocks.saturating_sub(s.f_bfree).saturating_mul(s.f_frsize),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
    })
}

/// Whether nobody has a device mounted, claimed, or open in another mount namespace: then it may be taken away.
///
/// # Errors
/// When somebody has, or it cannot be known.
pub async fn prove_unused(device: &str) -> Result<(), DiskError> {
    let device = device.to_owned();
    let look = tokio::task::spawn_blocking(move || prove_unused_blocking(&device));
    look.await.map_err(|e| DiskError::Failed(e.to_string()))?
}

/// The same in the caller's thread: all processes of the machine are looked at.
///
/// # Errors
/// As those of [`prove_unused`].
pub fn prove_unused_blocking(device: &str) -> Result<(), DiskError> {
    prove_closed(device)?;
    match crate::openers::elsewhere(device).map_err(crate::io_error(format!("looking for who has {device} open")))? {
        None => Ok(()),
        Some(pid) => Err(DiskError::InUse(format!("{device} is open in process {pid}"))),
    }
}

/// Whether nobody has a device mounted or claimed; who has merely opened it is not found.
///
/// # Errors
/// When somebody has, or it cannot be known.
fn prove_closed(device: &str) -> Result<(), DiskError> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(_) => Ok(()),
        // No device, nobody who has it.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(DiskError::InUse(format!("{device} is in use"))),
        Err(e) => failed(format!("opening {device}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_grows_into_what_its_disk_has() {
        let check = |blocks: u64, block: u64, size: u64, wanted: bool| {
            assert_eq!(has_room(blocks, block, size), wanted, "{blocks} of {block} in {size}");
        };
        check(10, 4096, 11 * 4096, true);
        check(10, 4096, 11 * 4096 - 1, false);
        // Nothing is known of it, or nonsense.
        check(0, 4096, 1 << 30, false);
        check(10, 0, 1 << 30, false);
        check(u64::MAX, 4096, 1 << 30, false);
        check(1, u64::MAX, u64::MAX, true);
    }

    #[tokio::test]
    async fn a_file_system_that_needs_repair_by_hand_is_not_mounted_and_a_blank_one_is_made_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let (image, at) = (path("image"), path("at"));
        std::fs::create_dir(&at).expect("a directory");
        std::fs::File::create(&image).and_then(|file| file.set_len(16 << 20)).expect("an image");
        assert_eq!(probe(&image).await.expect("blank"), None);
        let blank = format_and_mount(&image, &at, "ext4", true, &[]).await.expect_err("blank, and for reading alone");
        assert!(blank.to_string().contains("blank"), "{blank}");
        system("mkfs.ext4", &["-q", "-F", &image]).await.expect("made");
        assert_eq!(probe(&image).await.expect("found").as_deref(), Some("ext4"));
        let other = format_and_mount(&image, &at, "xfs", false, &[]).await.expect_err("it holds another");
        assert!(other.to_string().contains("holds ext4, and xfs is asked for"), "{other}");
        // Its root is gone, and it says that it has errors.
        for wrong in ["clri <2>", "ssv state 2"] {
            system("debugfs", &["-w", "-R", wrong, &image]).await.expect("broken");
        }
        let broken = format_and_mount(&image, &at, "ext4", false, &[]).await.expect_err("it needs repair");
        assert!(broken.to_string().contains("needs repair by hand"), "{broken}");
        assert!(crate::mounted(&at).expect("read").is_none());
    }
}
