//! Disks: a file system is made only where there surely is none, and is checked before it is mounted.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::{failed, program, system};
use crate::adapters::io_error;
use crate::effects::OpError;
use crate::volumes::GroupPolicy;

/// The file system when nobody names one, as upstream's.
const DEFAULT_FS: &str = "ext4";

/// The file system on a device; None when it is surely blank.
async fn probe(device: &str) -> Result<Option<String>, OpError> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device].map(str::to_owned);
    match program(Path::new("blkid"), &args, super::PROGRAM).await? {
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
) -> Result<(), OpError> {
    if super::mounted(path)?.is_some() {
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
async fn check(device: &str, fs_type: &str, read_only: bool) -> Result<(), OpError> {
    if read_only || !fs_type.starts_with("ext") {
        // xfs replays its log when mounted.
        return Ok(());
    }
    let args = ["-a".to_owned(), device.to_owned()];
    match program(Path::new(&format!("fsck.{fs_type}")), &args, super::PROGRAM).await? {
        (Some(0 | 1), _) => Ok(()),
        (Some(4), text) => failed(format!("the file system on {device} needs repair by hand: {text}")),
        (code, text) => failed(format!("fsck of {device}: exit status {}: {text}", code.unwrap_or(-1))),
    }
}

/// Whether nobody has a device open or mounted.
///
/// # Errors
/// When somebody has, or it cannot be known.
pub fn prove_closed(device: &str) -> Result<(), OpError> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(_) => Ok(()),
        // No device, nobody who has it.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) => Ok(()),
        Err(rustix::io::Errno::BUSY) => failed(format!("{device} is in use")),
        Err(e) => failed(format!("opening {device}: {e}")),
    }
}

/// Gives what is in a volume to a group: readable and writable for it, and its own for what is made in it.
/// Links are changed themselves, never what they point at; other file systems below are left alone.
///
/// # Errors
/// What the kernel says.
pub fn own(root: &Path, group: i64, policy: GroupPolicy) -> Result<(), OpError> {
    let gid = match u32::try_from(group) {
        Ok(gid) => gid,
        Err(_) => return failed(format!("fsGroup {group} is out of range")),
    };
    let meta = fs::symlink_metadata(root).map_err(io_error(format!("looking at {}", root.display())))?;
    let matches = meta.gid() == gid && meta.permissions().mode() & 0o2070 == 0o2070;
    if policy == GroupPolicy::None || (policy == GroupPolicy::OnRootMismatch && matches) {
        return Ok(());
    }
    // The root comes last: a walk that was cut short is done again.
    let mut todo: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(io_error(format!("reading {}", dir.display())))? {
            let entry = entry.map_err(io_error(format!("reading {}", dir.display())))?;
            let path = entry.path();
            let found = fs::symlink_metadata(&path).map_err(io_error(format!("looking at {}", path.display())))?;
            if found.dev() != meta.dev() {
                continue;
            }
            if found.is_dir() {
                todo.push(path.clone());
            }
            change(&path, &found, gid)?;
        }
    }
    change(root, &meta, gid)
}

fn change(path: &Path, meta: &fs::Metadata, gid: u32) -> Result<(), OpError> {
    let what = || format!("giving {} to group {gid}", path.display());
    std::os::unix::fs::lchown(path, None, Some(gid)).map_err(io_error(what()))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let bits = if meta.is_dir() { 0o2770 } else { 0o660 };
    fs::set_permissions(path, fs::Permissions::from_mode(meta.permissions().mode() & 0o7777 | bits))
        .map_err(io_error(what()))
}
