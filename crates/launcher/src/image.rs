//! Tells what a disk image is before QEMU opens it.
//!
//! An image may come from anybody. A qcow2 header can name other files (a backing file, an external data
//! file) which QEMU would open in the image's name, so that only images which stand alone are taken; KubeVirt
//! refuses backing files for the same reason. Upstream reference: QEMU's docs/interop/qcow2.txt.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// The format of a disk image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// The sectors as they are.
    Raw,
    /// QEMU's own format.
    Qcow2,
}

impl ImageFormat {
    /// QEMU's name of the block driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// Why an image cannot be a disk.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// It cannot be read.
    #[error("cannot read the disk image {}", path.display())]
    Read {
        /// The image.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It is empty or refers to other files.
    #[error("the disk image {} cannot be used: {reason}", path.display())]
    Refused {
        /// The image.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
}

/// The incompatible feature bit of images whose data lies in another file.
const EXTERNAL_DATA_FILE: u64 = 1 << 2;

/// Looks at the image at `path`. A link is not followed, since whoever has had the file system may have put it there;
/// nor is a pipe waited for.
///
/// # Errors
/// It cannot be read, is a link, is empty, or refers to other files.
pub fn inspect(path: &Path) -> Result<ImageFormat, InspectError> {
    let read = |source| InspectError::Read { path: path.to_path_buf(), source };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| read(errno.into()))?);
    let mut head = Vec::with_capacity(80);
    let mut buffer = [0; 80];
    loop {
        let count = file.read_at(&mut buffer[head.len()..], head.len() as u64).map_err(read)?;
        if count == 0 {
            break;
        }
        let start = head.len();
        head.extend_from_slice(&buffer[start..start + count]);
    }
    judge(&head).map_err(|reason| InspectError::Refused { path: path.to_path_buf(), reason })
}

fn judge(head: &[u8]) -> Result<ImageFormat, &'static str> {
    if head.is_empty() {
        return Err("it is empty");
    }
    if !head.starts_with(b"QFI\xfb") {
        return Ok(ImageFormat::Raw);
    }
    if head.len() < 80 {
        return Err("its qcow2 header is cut off");
    }
    let number = |at: usize| head[at..at + 8].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let version = number(4) >> 32;
    if !(2..=3).contains(&version) {
        return Err("its qcow2 version is not known");
    }
    if number(8) != 0 {
        return Err("it has a backing file");
    }
    if version == 3 && number(72) & EXTERNAL_DATA_FILE != 0 {
        return Err("its data lies in another file");
    }
    Ok(ImageFormat::Qcow2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn headers() {
        let mut qcow2 = vec![0; 80];
        qcow2[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        let with = |at: usize, value: u8| {
            let mut changed = qcow2.clone();
            changed[at] = value;
            changed
        };
        let cases = [
            (vec![], Err("it is empty")),
            (b"Q".to_vec(), Ok(ImageFormat::Raw)),
            (vec![0; 512], Ok(ImageFormat::Raw)),
            (qcow2.clone(), Ok(ImageFormat::Qcow2)),
            (qcow2[..40].to_vec(), Err("its qcow2 header is cut off")),
            (with(15, 0x70), Err("it has a backing file")),
            (with(79, 4), Err("its data lies in another file")),
            (with(7, 9), Err("its qcow2 version is not known")),
        ];
        for (head, expected) in cases {
            assert_eq!(judge(&head), expected, "{head:?}");
        }
    }

    #[test]
    fn images_of_qemu_img() {
        let dir = tempfile::tempdir().expect("a directory");
        let create = |arguments: &[&str]| {
            let done =
                Command::new("qemu-img").arg("create").arg("-q").args(arguments).current_dir(dir.path()).status();
            assert!(done.expect("qemu-img runs").success());
        };
        create(&["-f", "qcow2", "plain", "1M"]);
        create(&["-f", "raw", "raw", "1M"]);
        create(&["-f", "qcow2", "-b", "raw", "-F", "raw", "backed"]);
        create(&["-f", "qcow2", "-o", "data_file=data,data_file_raw=on", "split", "1M"]);
        assert_eq!(inspect(&dir.path().join("plain")).expect("inspected"), ImageFormat::Qcow2);
        assert_eq!(inspect(&dir.path().join("raw")).expect("inspected"), ImageFormat::Raw);
        for refused in ["backed", "split"] {
            let error = inspect(&dir.path().join(refused)).expect_err("refused");
            assert!(matches!(error, InspectError::Refused { .. }), "{error}");
        }
        assert!(matches!(inspect(&dir.path().join("none")), Err(InspectError::Read { .. })));
        std::os::unix::fs::symlink("plain", dir.path().join("link")).expect("linked");
        assert!(matches!(inspect(&dir.path().join("link")), Err(InspectError::Read { .. })));
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("made");
        // Nobody writes to it, and that is not waited for.
        assert!(inspect(&pipe).is_err());
    }
}
