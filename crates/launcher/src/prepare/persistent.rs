//! Images and devices that outlive the machine.
//!
//! A claim's file system may come without an image. It gets an empty one then, as large as the claim, or somewhat
//! smaller where the file system takes its part; KubeVirt's rule and its tolerance.
//!
//! Others may have had the claim, and have put a link in an image's place: to another disk of the machine's, or to a
//! file of the container's, which would then be the guest's to read and write. So links are refused, as by KubeVirt
//! (`pkg/safepath`; CVE-2025-64433).

use super::begin;
use crate::argv::NodeKind;
use crate::receive::sync_name;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// How much smaller than asked for an image may be, in percent, where nobody says it.
pub(super) const TOLERANCE_PERCENT: u64 = 10;

/// An image is a whole number of these. (Upstream: `AlignImageSizeTo1MiB`, pkg/util.)
const SECTOR_BYTES: u64 = 1 << 20;

/// What a file system keeps for its own tables while the guest fills its disk. (Upstream: `minimumPVCReserveBytes`,
/// pkg/host-disk.)
const RESERVE_BYTES: u64 = 128 << 10;

/// The size of an image that is to have so many bytes at most. What is smaller than the least stays as it is.
pub(super) fn whole(bytes: u64) -> u64 {
    if bytes < SECTOR_BYTES { bytes } else { bytes / SECTOR_BYTES * SECTOR_BYTES }
}

/// Sees to it that there is something at `path`, and tells what.
///
/// # Errors
/// It is missing and cannot be made, or is a link, or neither a file nor a block device; for people.
pub(super) fn ready(path: &Path, create_bytes: Option<u64>, tolerance_percent: u64) -> Result<NodeKind, String> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let wanted = create_bytes.ok_or_else(|| format!("there is no image {}", path.display()))?;
            create(path, wanted, tolerance_percent)?;
            std::fs::symlink_metadata(path).map_err(|error| format!("cannot look at {}: {error}", path.display()))?
        }
        Err(error) => return Err(format!("cannot look at {}: {error}", path.display())),
    };
    let device = meta.file_type().is_block_device();
    if meta.is_symlink() {
        return Err(format!("{} is a link, which is not followed", path.display()));
    }
    if !device && !meta.is_file() {
        return Err(format!("{} is neither an image nor a block device", path.display()));
    }
    if meta.is_file() && meta.len() == 0 {
        return Err(format!("the image {} is empty", path.display()));
    }
    // Files say in units of 512 bytes what they have.
    let allocated = meta.is_file() && meta.blocks().saturating_mul(512) >= meta.len();
    Ok(NodeKind { device, direct: opens_directly(path), locked: !device, allocated })
}

/// Sees to it that there are a firmware's variables at `path`: those that are there, or else as they come.
///
/// # Errors
/// They cannot be made, or are not this firmware's; for people.
pub(super) fn variables(path: &Path, template: &Path) -> Result<(), String> {
    let length = |meta: Metadata| (meta.is_file(), meta.len());
    let of = |path: &Path| format!("cannot look at {}", path.display());
    let wanted = std::fs::metadata(template).map(length).map_err(|error| format!("{}: {error}", of(template)))?;
    match std::fs::symlink_metadata(path).map(length) {
        Ok(found) if found == wanted => Ok(()),
        Ok((true, bytes)) => {
            let what = path.display();
            Err(format!(
                "{what} has {bytes} bytes, and the firmware's variables have {}: it is another firmware's",
                wanted.1
            ))
        }
        Ok((false, _)) => Err(format!("{} is no file", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let failed = |error: io::Error| format!("cannot make {}: {error}", path.display());
            let (mut file, partial) = begin(path, 0o600).map_err(failed)?;
            let copied = File::open(template).and_then(|mut from| io::copy(&mut from, &mut file));
            copied.and_then(|_| file.sync_all()).map_err(failed)?;
            std::fs::rename(&partial, path).and_then(|()| sync_name(path)).map_err(failed)
        }
        Err(error) => Err(format!("{}: {error}", of(path))),
    }
}

/// Makes a sparse image. It appears under its name as a whole or not at all.
fn create(path: &Path, wanted: u64, tolerance_percent: u64) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot make the image {}: {error}", path.display());
    let directory = path.parent().ok_or_else(|| format!("{} is no place for an image", path.display()))?;
    let space = rustix::fs::statvfs(directory).map_err(|errno| failed(errno.into()))?;
    let size = size(wanted, space.f_bavail.saturating_mul(space.f_frsize), tolerance_percent)?;
    let (file, partial) = begin(path, 0o660).map_err(failed)?;
    file.set_len(size).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&partial, path).and_then(|()| sync_name(path)).map_err(failed)
}

/// The size that an image gets.
fn size(wanted: u64, available: u64, tolerance_percent: u64) -> Result<u64, String> {
    let available = available.saturating_sub(RESERVE_BYTES);
    if wanted <= available {
        return Ok(whole(wanted));
    }
    let least = wanted.saturating_sub((wanted / 100).saturating_mul(tolerance_percent));
    if available < least {
        return Err(format!(
            "not enough space: {wanted} bytes are wanted, {available} are there, and {tolerance_percent} % are tolerated"
        ));
    }
    Ok(whole(available))
}

/// Whether a file can be used past the host's cache; tmpfs and some overlays cannot.
fn opens_directly(path: &Path) -> bool {
    let flags = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or(0);
    File::options().read(true).custom_flags(flags).open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{TOLERANCE_PERCENT, ready, variables, whole};

    #[test]
    fn variables_stay_what_they_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let (template, path) = (dir.path().join("template"), dir.path().join("vm_VARS.fd"));
        std::fs::write(&template, "as they come").expect("written");
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "not to be written").expect("written");
        std::os::unix::fs::symlink(&elsewhere, path.with_extension("partial")).expect("linked");
        let read = || std::fs::read_to_string(&path).expect("read");
        variables(&path, &template).expect("made");
        assert_eq!(read(), "as they come");
        assert_eq!(std::fs::read_to_string(&elsewhere).expect("read"), "not to be written");
        std::fs::write(&path, "as they are.").expect("written");
        variables(&path, &template).expect("there already");
        assert_eq!(read(), "as they are.");
        std::fs::write(&path, "longer than they come").expect("written");
        assert!(variables(&path, &template).is_err_and(|why| why.contains("another firmware's")));
        assert_eq!(read(), "longer than they come");
        assert!(variables(dir.path(), &template).is_err_and(|why| why.contains("no file")));
        // It is as long as variables are.
        let link = dir.path().join("link_VARS.fd");
        std::os::unix::fs::symlink(&template, &link).expect("linked");
        assert!(variables(&link, &template).is_err_and(|why| why.contains("no file")));
        assert!(variables(&dir.path().join("nowhere/v.fd"), &template).is_err_and(|why| why.contains("cannot make")));
    }

    #[test]
    fn an_image_is_made_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk.img");
        assert!(ready(&path, None, TOLERANCE_PERCENT).is_err());
        assert!(!ready(&path, Some(8 << 20), TOLERANCE_PERCENT).expect("made").device);
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 8 << 20);
        std::fs::write(&path, "something").expect("written");
        ready(&path, Some(8 << 20), TOLERANCE_PERCENT).expect("there already");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "something");
        std::fs::write(&path, "").expect("written");
        assert!(ready(&path, Some(8 << 20), TOLERANCE_PERCENT).is_err_and(|why| why.contains("empty")));
        // Made sparse; what was written is all there.
        let known = |bytes: u64| {
            let path = dir.path().join(format!("{bytes}.img"));
            std::fs::write(&path, vec![1; 1 << 16]).expect("written");
            std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(bytes)).expect("sized");
            ready(&path, None, TOLERANCE_PERCENT).expect("there").allocated
        };
        assert_eq!((known(1 << 16), known(8 << 20)), (true, false));
        assert!(ready(dir.path(), None, TOLERANCE_PERCENT).is_err_and(|why| why.contains("neither")));
        assert!(ready(std::path::Path::new("/dev/null"), None, TOLERANCE_PERCENT).is_err());
    }

    #[test]
    fn what_others_left_in_a_claim_leads_to_no_other_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, other) = (dir.path().join("disk.img"), dir.path().join("other.img"));
        std::fs::write(&other, "another disk").expect("written");
        std::os::unix::fs::symlink(&other, path.with_extension("partial")).expect("linked");
        ready(&path, Some(1 << 20), TOLERANCE_PERCENT).expect("made");
        assert_eq!(std::fs::read_to_string(&other).expect("read"), "another disk");
        assert!(std::fs::symlink_metadata(&path).expect("there").is_file());
        // Neither is what is there taken for the image, nor is one made where the link leads.
        for target in [other, dir.path().join("nowhere.img")] {
            std::fs::remove_file(&path).expect("removed");
            std::os::unix::fs::symlink(&target, &path).expect("linked");
            assert!(
                ready(&path, Some(1 << 20), TOLERANCE_PERCENT).is_err_and(|why| why.contains("a link")),
                "{}",
                target.display()
            );
            assert!(path.is_symlink());
        }
    }

    #[test]
    fn sizes_bend_to_the_file_system_but_not_far() {
        const GIB: u64 = 1 << 30;
        let size = |wanted: u64, available: u64| super::size(wanted, available, TOLERANCE_PERCENT);
        assert_eq!(size(GIB, 2 * GIB), Ok(GIB));
        assert_eq!(size(GIB, GIB), Ok(GIB - (1 << 20)), "it is not filled to the last block");
        assert_eq!(size(GIB, GIB - 10), Ok(GIB - (1 << 20)));
        assert!(size(GIB, GIB / 100 * 89).is_err());
        assert_eq!(size(0, 0), Ok(0));
        assert_eq!(super::size(GIB, GIB / 2, 60), Ok(GIB / 2 - (1 << 20)), "more where the cluster says so");
        assert!(super::size(GIB, GIB / 100 * 95, 0).is_err() && super::size(GIB, 0, 200).is_ok());
        assert_eq!(size(1_000_000_000, GIB), Ok(999_292_928));
        assert_eq!((whole(4096), whole((1 << 20) - 1), whole((1 << 20) + 1)), (4096, (1 << 20) - 1, 1 << 20));
    }
}
