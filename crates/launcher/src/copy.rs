//! Keeps a machine's disk as a qcow2 file, and makes a disk of such a file: what a copying pod runs.
//!
//! ```text
//!   keep:     disk.img (raw) or a block device ──▶ disk.qcow2
//!   restore:  disk.qcow2 ──▶ disk.img (raw) or a block device
//! ```
//!
//! What a machine's firmware keeps is an image, too: the one in the directory [`NVRAM_SUBDIRECTORY`] that was written last. Each kind of
//! firmware has a file of its own there, so its name is kept beside the copy ([`KEPT_NAME`]).
//!
//! A file system in which no machine has made its disk yet is kept as what it is: as a file of no bytes, of which nothing is
//! made again.
//!
//! Nothing that is copied is trusted. A disk is raw, as it is for the machine, whatever its first bytes say; a kept file is
//! qcow2 that stands alone ([`image::inspect`]): no file that an image names is opened. A link is not followed. A file
//! appears under its name as a whole or not at all, so a copy that was begun may be begun again.

use crate::board::NVRAM_SUBDIRECTORY;
use crate::image::{self, ImageFormat, InspectError};
use crate::receive::{self, KEPT_NAME};
use rustix::fs::{CWD, OFlags};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// Keep a disk.
    Keep,
    /// Make a disk of what was kept.
    Restore,
}

/// Why a disk could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// Paths come in pairs: from, to.
    #[error("{0} paths are not pairs of source and target")]
    Pairs(usize),
    /// There is nothing to copy, or nothing to copy to.
    #[error("cannot use {}: {source}", path.display())]
    Path {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is a link, a directory, a pipe.
    #[error("{} is neither an image nor a block device", .0.display())]
    Kind(PathBuf),
    /// What was kept cannot be used.
    #[error(transparent)]
    Image(#[from] InspectError),
    /// What is kept of firmware's variables does not say whose.
    #[error("{} names no file with a firmware's variables", .0.display())]
    Name(PathBuf),
    /// It is not what a copy is kept as.
    #[error("{} is no qcow2 image", .0.display())]
    NotQcow2(PathBuf),
    /// The copy failed: the disk is in use, there is no room, the image is broken.
    #[error("qemu-img failed: {0}")]
    QemuImg(String),
}

/// How much of what qemu-img says is repeated.
const SAID_BYTES: usize = 2000;

/// Copies each pair of `paths`, one after the other.
///
/// # Errors
/// The first that cannot be copied. Those before it are there, and are not copied again.
pub fn run(direction: Direction, paths: &[PathBuf]) -> Result<(), CopyError> {
    if !paths.len().is_multiple_of(2) {
        return Err(CopyError::Pairs(paths.len()));
    }
    paths.chunks_exact(2).try_for_each(|pair| copy(direction, &pair[0], &pair[1]))
}

fn copy(direction: Direction, from: &Path, to: &Path) -> Result<(), CopyError> {
    let is_nvram = |path: &Path| path.file_name() == Some(OsStr::new(NVRAM_SUBDIRECTORY));
    match direction {
        Direction::Keep if is_nvram(from) => {
            let variables = latest(from)?;
            if let (Some(name), Some(directory)) = (variables.file_name(), to.parent()) {
                let failed = |source| CopyError::Path { path: directory.join(KEPT_NAME), source };
                let directory = receive::open_directory(directory).map_err(failed)?;
                receive::keep_name(&directory, name.as_encoded_bytes()).map_err(failed)?;
            }
            copy_image(direction, &variables, to)
        }
        Direction::Restore if is_nvram(to) && !holds_nothing(from)? => {
            let name = kept_name(from)?;
            let failed = |source| CopyError::Path { path: to.to_path_buf(), source };
            match std::fs::create_dir(to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ if !std::fs::symlink_metadata(to).map_err(failed)?.is_dir() => {
                    return Err(CopyError::Kind(to.to_path_buf()));
                }
                _ => {}
            }
            copy_image(direction, from, &to.join(name))?;
            receive::sync_name(to).map_err(failed)
        }
        _ => copy_image(direction, from, to),
    }
}

/// Whether a file may hold a firmware's variables, by its name.
fn is_variables(name: &str) -> bool {
    name.len() <= 64 && name.ends_with(".fd") && !name.starts_with('.') && !name.contains('/')
}

/// The variables in a directory that were written last; where there are none, what would be them.
fn latest(directory: &Path) -> Result<PathBuf, CopyError> {
    let failed = |source| CopyError::Path { path: directory.to_path_buf(), source };
    let nothing = directory.with_file_name("none.fd");
    match std::fs::symlink_metadata(directory) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(CopyError::Kind(directory.to_path_buf())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(nothing),
        Err(error) => return Err(failed(error)),
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let meta = entry.metadata().map_err(failed)?;
        if meta.is_file() && entry.file_name().to_str().is_some_and(is_variables) {
            found.push((meta.modified().map_err(failed)?, entry.path()));
        }
    }
    Ok(found.into_iter().max().map_or(nothing, |(_, path)| path))
}

/// The name that is kept beside a copy of variables.
fn kept_name(copy: &Path) -> Result<String, CopyError> {
    let path = copy.with_file_name(KEPT_NAME);
    let failed = |source| CopyError::Path { path: path.clone(), source };
    let directory = copy.parent().ok_or_else(|| CopyError::Name(path.clone()))?;
    let directory = receive::open_directory(directory).map_err(failed)?;
    let file = receive::open(directory, KEPT_NAME, OFlags::RDONLY).map_err(failed)?;
    let said = receive::read_short(&file, 64).map_err(failed)?;
    String::from_utf8(said).ok().filter(|name| is_variables(name)).ok_or(CopyError::Name(path))
}

fn copy_image(direction: Direction, from: &Path, to: &Path) -> Result<(), CopyError> {
    let (read, write) = match direction {
        Direction::Keep => (ImageFormat::Raw, ImageFormat::Qcow2),
        Direction::Restore => (ImageFormat::Qcow2, ImageFormat::Raw),
    };
    let unused = direction == Direction::Keep && is_unused(from);
    if !unused && !is_image(from)? {
        return Err(CopyError::Kind(from.to_path_buf()));
    }
    if read == ImageFormat::Qcow2 && image::inspect(from)? != ImageFormat::Qcow2 {
        return Err(CopyError::NotQcow2(from.to_path_buf()));
    }
    if direction == Direction::Restore && holds_nothing(from)? {
        return Ok(());
    }
    if std::fs::symlink_metadata(to).is_ok_and(|meta| meta.file_type().is_block_device()) {
        convert(from, read, to, write, &["-n"])?;
        // qemu-img does not wait for the disk.
        let synced = File::open(to).and_then(|device| device.sync_all());
        return synced.map_err(|source| CopyError::Path { path: to.to_path_buf(), source });
    }
    let failed = |source| CopyError::Path { path: to.to_path_buf(), source };
    match std::fs::symlink_metadata(to) {
        // It was renamed to this name when it was whole; whoever did that may have ended right after it.
        Ok(meta) if meta.is_file() => return receive::sync_name(to).map_err(failed),
        Ok(_) => return Err(CopyError::Kind(to.to_path_buf())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let partial = to.with_extension("partial");
    receive::remove(CWD, &partial).map_err(failed)?;
    if unused {
        qemu_img(Command::new("qemu-img").args(["create", "-q", "-f", write.driver()]).arg(&partial).arg("0"))?;
    } else {
        convert(from, read, &partial, write, &[])?;
    }
    let whole = || -> std::io::Result<()> {
        let file = File::open(&partial)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o660))?;
        file.sync_all()?;
        std::fs::rename(&partial, to)?;
        receive::sync_name(to)
    };
    whole().map_err(failed)
}

/// Whether there is an image or a device, and no link to one.
fn is_image(path: &Path) -> Result<bool, CopyError> {
    let usable = |meta: Metadata| meta.is_file() && meta.len() > 0 || meta.file_type().is_block_device();
    std::fs::symlink_metadata(path).map(usable).map_err(|source| CopyError::Path { path: path.to_path_buf(), source })
}

/// Whether there is a file system without a disk: no machine has used it yet. The machine that does makes one.
fn is_unused(path: &Path) -> bool {
    let missing = std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    missing && path.parent().is_some_and(Path::is_dir)
}

/// Whether a copy is of a file system without a disk: it has no bytes, as no disk has. By its header's field of the size.
/// Upstream reference: QEMU's docs/interop/qcow2.
fn holds_nothing(copy: &Path) -> Result<bool, CopyError> {
    const SIZE_AT: u64 = 24;
    let mut size = [0; 8];
    let read = File::open(copy).and_then(|file| file.read_exact_at(&mut size, SIZE_AT));
    read.map_err(|source| CopyError::Path { path: copy.to_path_buf(), source })?;
    Ok(u64::from_be_bytes(size) == 0)
}

/// Formats are said and not guessed, and QEMU's own locks on images are obeyed: what a machine writes to is not copied.
fn convert(from: &Path, read: ImageFormat, to: &Path, write: ImageFormat, more: &[&str]) -> Result<(), CopyError> {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-q", "-f", read.driver(), "-O", write.driver()]).args(more).arg(from).arg(to);
    qemu_img(&mut command)
}

fn qemu_img(command: &mut Command) -> Result<(), CopyError> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| CopyError::QemuImg(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let said: String = said.trim().chars().take(SAID_BYTES).collect();
    Err(CopyError::QemuImg(if said.is_empty() { done.status.to_string() } else { said }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &Path) -> Vec<u8> {
        let file = File::options().create(true).write(true).truncate(true).open(path).expect("a file");
        file.set_len(3 << 20).expect("a size");
        // A guest may write what looks like an image that names another file.
        file.write_all_at(b"QFI\xfb\0\0\0\x03\0\0\0\0\0\0\0\x70", 0).expect("written");
        file.write_all_at(b"the end", (3 << 20) - 7).expect("written");
        std::fs::read(path).expect("read")
    }

    fn img(arguments: &[&str], directory: &Path) {
        let done = Command::new("qemu-img").arg("create").arg("-q").args(arguments).current_dir(directory).status();
        assert!(done.expect("qemu-img runs").success());
    }

    #[test]
    fn a_disk_is_kept_and_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let [source, kept, target] = ["disk.img", "disk.qcow2", "again.img"].map(|name| dir.path().join(name));
        let bytes = disk(&source);
        run(Direction::Keep, &[source.clone(), kept.clone()]).expect("kept");
        assert_eq!(image::inspect(&kept).expect("an image"), ImageFormat::Qcow2);
        assert!(std::fs::metadata(&kept).expect("there").len() < 1 << 20, "what is empty takes no room");
        let pair = [kept.clone(), target.clone()];
        run(Direction::Restore, &pair).expect("restored");
        assert!(std::fs::read(&target).expect("read") == bytes, "the bytes are others");
        // What is there is whole, and stays; what was not finished is begun again.
        std::fs::write(&target, "mine").expect("written");
        run(Direction::Restore, &pair).expect("done");
        assert_eq!(std::fs::read(&target).expect("read"), b"mine");
        std::fs::remove_file(&target).expect("removed");
        std::fs::write(target.with_extension("partial"), "half").expect("written");
        run(Direction::Restore, &pair).expect("restored");
        assert!(std::fs::read(&target).expect("read") == bytes, "the bytes are others");
        assert!(!target.with_extension("partial").exists());
    }

    #[test]
    fn what_no_machine_has_used_stays_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let [source, kept, target] = ["disk.img", "disk.qcow2", "again.img"].map(|name| dir.path().join(name));
        run(Direction::Keep, &[source, kept.clone()]).expect("kept");
        assert_eq!(image::inspect(&kept).expect("an image"), ImageFormat::Qcow2);
        run(Direction::Restore, &[kept, target.clone()]).expect("restored");
        assert!(!target.exists(), "the machine makes it as it needs it");
    }

    #[test]
    fn what_firmware_keeps_is_kept_under_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let [machine, copy, again] = ["machine", "copy", "again"].map(|name| {
            std::fs::create_dir(dir.path().join(name)).expect("made");
            dir.path().join(name)
        });
        let [from, kept, to] = [machine.join("nvram"), copy.join("disk.qcow2"), again.join("nvram")];
        // Nothing was kept yet.
        run(Direction::Keep, &[from.clone(), kept.clone()]).expect("kept");
        run(Direction::Restore, &[kept.clone(), to.clone()]).expect("restored");
        assert!(!to.exists(), "the machine makes it as it needs it");
        std::fs::remove_file(&kept).expect("removed");

        std::fs::create_dir(&from).expect("made");
        let bytes = vec![7; 528 << 10];
        std::fs::write(from.join("VARS.secboot.fd"), vec![1; 528 << 10]).expect("written");
        std::fs::write(from.join("VARS.fd"), &bytes).expect("written");
        std::fs::write(from.join("VARS.fd.writer"), "a record").expect("written");
        let old = std::time::SystemTime::UNIX_EPOCH;
        File::options()
            .write(true)
            .open(from.join("VARS.secboot.fd"))
            .and_then(|file| file.set_modified(old))
            .expect("aged");
        run(Direction::Keep, &[from, kept.clone()]).expect("kept");
        let pair = [kept, to.clone()];
        run(Direction::Restore, &pair).expect("restored");
        run(Direction::Restore, &pair).expect("there already");
        let names: Vec<_> =
            std::fs::read_dir(&to).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names, ["VARS.fd"]);
        assert!(std::fs::read(to.join("VARS.fd")).expect("read") == bytes, "the bytes are others");

        std::fs::remove_file(to.join("VARS.fd")).expect("removed");
        for name in ["../VARS.fd", "VARS", ""] {
            std::fs::write(copy.join(KEPT_NAME), name).expect("written");
            assert!(matches!(run(Direction::Restore, &pair), Err(CopyError::Name(_))), "{name}");
        }
    }

    #[test]
    fn what_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        disk(&at("disk.img"));
        std::os::unix::fs::symlink(at("disk.img"), at("link")).expect("a link");
        std::fs::write(at("empty"), "").expect("written");
        img(&["-f", "qcow2", "-b", "disk.img", "-F", "raw", "backed"], dir.path());
        img(&["-f", "qcow2", "-o", "data_file=data,data_file_raw=on", "split", "1M"], dir.path());
        img(&["-f", "qcow2", "plain", "1M"], dir.path());
        let check = |direction, from: &str, wanted: &str| {
            let error = run(direction, &[at(from), at("target")]).expect_err(from).to_string();
            assert!(error.contains(wanted), "{from}: {error}");
            assert!(!at("target").exists(), "{from}");
        };
        check(Direction::Keep, "no-directory/disk.img", "No such file");
        check(Direction::Restore, "none", "No such file");
        check(Direction::Keep, "link", "neither an image nor a block device");
        check(Direction::Keep, "empty", "neither an image nor a block device");
        check(Direction::Restore, "backed", "it has a backing file");
        check(Direction::Restore, "split", "its data lies in another file");
        check(Direction::Restore, "disk.img", "it has a backing file");
        std::fs::write(at("text"), "text").expect("written");
        check(Direction::Restore, "text", "is no qcow2 image");
        let error = run(Direction::Keep, &[at("disk.img")]).expect_err("one path");
        assert!(matches!(error, CopyError::Pairs(1)), "{error}");
        std::os::unix::fs::symlink(at("elsewhere"), at("dangling")).expect("a link");
        run(Direction::Restore, &[at("plain"), at("dangling")]).expect_err("a link in the way");
        assert!(!at("elsewhere").exists());
    }
}
