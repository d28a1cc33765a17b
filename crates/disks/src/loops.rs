//! Loop devices: files as block devices.
//!
//! A device is found by the file behind it, as the kernel tells it; nothing is remembered.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::{DiskError, filesystem, io_error, system};

/// The device on a file, if there is one. The path must be absolute and free of links.
///
/// # Errors
/// When the kernel's list of devices cannot be read: then nothing is known.
pub fn find(file: &Path) -> Result<Option<String>, DiskError> {
    Ok(all()?.into_iter().find(|(_, of)| of == file).map(|(device, _)| device))
}

/// The devices on files below a directory, also on those that are deleted.
///
/// # Errors
/// When the kernel's list of devices cannot be read: then nothing is known.
pub fn below(dir: &Path) -> Result<Vec<String>, DiskError> {
    Ok(all()?.into_iter().filter(|(_, of)| of.starts_with(dir)).map(|(device, _)| device).collect())
}

/// All devices with the files behind them.
fn all() -> Result<Vec<(String, PathBuf)>, DiskError> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(io_error("listing block devices"))? {
        let entry = entry.map_err(io_error("listing block devices"))?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.starts_with("loop")) else { continue };
        // One that is not in use has no file, as one that went since it was listed.
        if let Ok(mut file) = fs::read(entry.path().join("loop/backing_file")) {
            while file.last() == Some(&b'\n') {
                file.pop();
            }
            all.push((format!("/dev/{name}"), OsString::from_vec(file).into()));
        }
    }
    Ok(all)
}

/// Makes a device of a file, or finds the one that there is.
///
/// # Errors
/// When there is no free device, or the file cannot be opened.
pub async fn attach(file: &Path) -> Result<String, DiskError> {
    if let Some(device) = find(file)? {
        return Ok(device);
    }
    let path = file.display().to_string();
    system("losetup", &["--find", "--show", "--nooverlap", &path]).await
}

/// Takes the device of a file away, if there is one.
///
/// # Errors
/// [`DiskError::InUse`] while anybody has it open or mounted; the kernel would wait for them, and take it then.
pub async fn detach(file: &Path) -> Result<(), DiskError> {
    let Some(device) = find(file)? else { return Ok(()) };
    filesystem::prove_unused(&device).await?;
    system("losetup", &["--detach", &device]).await.map(drop)
}

/// Takes a device away as soon as nobody has it any more.
///
/// # Errors
/// What `losetup` says.
pub async fn release(device: &str) -> Result<(), DiskError> {
    system("losetup", &["--detach", device]).await.map(drop)
}

/// Lets the device of a file notice that the file has grown.
///
/// # Errors
/// What `losetup` says.
pub async fn resize(device: &str) -> Result<(), DiskError> {
    system("losetup", &["--set-capacity", device]).await.map(drop)
}

/// Size of a block device, in bytes.
///
/// # Errors
/// When it cannot be opened.
pub fn size_bytes(device: &str) -> Result<u64, DiskError> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = fs::File::open(device).map_err(io_error(format!("opening {device}")))?;
    file.seek(SeekFrom::End(0)).map_err(io_error(format!("measuring {device}")))
}
