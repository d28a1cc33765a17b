//! Block devices, claimed at the kernel for as long as the guest runs.
//!
//! A device has no room for a record beside it. Nor is there a lock for it: locks, QEMU's own among them, are those of a file
//! system's entry, and each container has an entry of its own for a device. What all of them have in common is the kernel's claim
//! (`O_EXCL`), which one opener at a time has on a machine, as file systems and volume groups have theirs. So no two launchers
//! of a node write one device; of another node it says nothing. Whoever opens a device without a claim, as QEMU does, is not
//! kept from that.
//!
//! The host's device mapper may have claimed a device by itself, for a volume group that the guest has made on it. No guest
//! is refused for that, and who else has the device cannot be told then.

use super::TakeError;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::future::pending;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a claim is waited for: whoever looks what is on a device has it for a moment.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked for.
const STEP: Duration = Duration::from_millis(100);

/// A device that this process's guest writes.
#[derive(Debug)]
pub(crate) struct Claim {
    /// Claimed for as long as it is open; none where the host's device mapper has the claim.
    _file: Option<File>,
}

impl Claim {
    /// Takes the device, when nobody else on this machine has it.
    ///
    /// # Errors
    /// Somebody has, or it cannot be opened.
    pub(crate) async fn take(path: &Path) -> Result<Self, TakeError> {
        let mut waited = Duration::ZERO;
        loop {
            match open(path).await {
                Ok(file) => return Ok(Self { _file: Some(file) }),
                Err(source) if source.kind() != io::ErrorKind::ResourceBusy => {
                    return Err(TakeError::Device { path: path.to_owned(), source });
                }
                Err(_) if is_mapped(path) => {
                    tracing::warn!(path = %path.display(), "the host's device mapper has a disk's device");
                    return Ok(Self { _file: None });
                }
                Err(_) if waited >= PATIENCE => return Err(TakeError::Claimed(path.to_owned())),
                Err(_) => {}
            }
            tokio::time::sleep(STEP).await;
            waited += STEP;
        }
    }
}

/// Has these devices until it is dropped.
pub(crate) async fn keep(_claims: Vec<Claim>) -> String {
    pending().await
}

/// Takes the devices that a guest has already, for a monitor in place of one that died, whose claims went with it, and has them
/// until it is dropped. Returns, for people, when somebody else has taken one meanwhile.
pub(crate) async fn retake(paths: Vec<PathBuf>) -> String {
    let mut claims = Vec::new();
    for path in &paths {
        match Claim::take(path).await {
            Ok(claim) => claims.push(claim),
            Err(error @ TakeError::Claimed(_)) => return error.to_string(),
            Err(error) => tracing::error!(%error, "who writes a device cannot be followed"),
        }
    }
    keep(claims).await
}

/// Opens a device with a claim, from a thread of its own, since its driver may let its openers wait.
async fn open(path: &Path) -> io::Result<File> {
    let (tell, opened) = oneshot::channel();
    let path = path.to_owned();
    std::thread::spawn(move || {
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if tell.send(rustix::fs::open(&path, flags, Mode::empty())).is_err() {
            tracing::debug!(path = %path.display(), "nobody waits for the device any more");
        }
    });
    let opened = opened.await.map_err(io::Error::other)??;
    Ok(File::from(opened))
}

/// Whether the host's device mapper has a device, a part of it, or what it is a part of.
fn is_mapped(path: &Path) -> bool {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return false };
    let number = meta.rdev();
    let numbers = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    has_holders(&Path::new("/sys/dev/block").join(numbers))
}

/// The same of what the kernel tells of a device. A link to it may be given.
fn has_holders(system: &Path) -> bool {
    let is_part = |of: &Path| of.join("partition").exists();
    let is_held = |of: &Path| std::fs::read_dir(of.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
    let parts = std::fs::read_dir(system).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut parts = parts.filter(|part| is_part(part.as_path()));
    // Where a multipath is, say, of the whole disk, no part of that can be claimed either.
    is_held(system)
        || is_part(system) && is_held(system.join("..").as_path())
        || parts.any(|part| is_held(part.as_path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A block device on a file. It ends with the value.
    struct Device(String);

    impl Device {
        fn on(file: &Path) -> Self {
            File::create(file).and_then(|file| file.set_len(1 << 20)).expect("made");
            let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().expect("losetup runs");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            Self(String::from_utf8_lossy(&made.stdout).trim().to_owned())
        }
    }

    impl Drop for Device {
        fn drop(&mut self) {
            let status = Command::new("losetup").args(["--detach", &self.0]).status().expect("losetup runs");
            assert!(status.success());
        }
    }

    #[test]
    fn the_claim_of_a_whole_disk_is_that_of_its_parts_and_the_other_way_round() {
        let check = |held: Option<&str>, expected: [bool; 3]| {
            let dir = tempfile::tempdir().expect("a directory");
            let disk = dir.path().join("block/sda");
            let all = ["block/sda", "block/sda/sda1", "block/sda/sda2"];
            for device in all {
                std::fs::create_dir_all(dir.path().join(device).join("holders")).expect("made");
            }
            for part in ["sda1", "sda2"] {
                std::fs::write(disk.join(part).join("partition"), "").expect("written");
            }
            // What else is above a disk is none.
            std::fs::create_dir_all(dir.path().join("block/holders/x")).expect("made");
            if let Some(held) = held {
                std::fs::write(dir.path().join(held).join("holders/dm-0"), "").expect("written");
            }
            let found = all.map(|device| {
                let link = dir.path().join(device.replace('/', "-"));
                std::os::unix::fs::symlink(dir.path().join(device), &link).expect("linked");
                has_holders(&link)
            });
            assert_eq!(found, expected, "{held:?}");
        };
        check(None, [false; 3]);
        check(Some("block/sda"), [true; 3]);
        check(Some("block/sda/sda1"), [true, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_has_one_writer_whatever_each_calls_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Device::on(&dir.path().join("image"));
        let number = std::fs::metadata(&device.0).expect("it is there").rdev();
        // As two containers have it.
        let names = ["a", "b"].map(|name| dir.path().join(name));
        for name in &names {
            let (kind, mode) = (rustix::fs::FileType::BlockDevice, Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(rustix::fs::CWD, name, kind, mode, number).expect("made (as root)");
        }
        let [a, b] = &names;
        let first = Claim::take(a).await.expect("free");
        for name in &names {
            let second = Claim::take(name).await;
            assert!(matches!(second, Err(TakeError::Claimed(_))), "{second:?}");
        }
        // So it is told to a monitor that comes too late to take over.
        let why = retake(vec![b.clone()]).await;
        assert!(why.contains("has the device"), "{why}");
        File::options().read(true).write(true).open(b).expect("QEMU opens it as ever");
        drop(first);
        let second = Claim::take(b).await.expect("free again");
        assert!(Claim::take(a).await.is_err());
        drop(second);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(a, &link).expect("linked");
        let linked = Claim::take(&link).await;
        assert!(matches!(linked, Err(TakeError::Device { .. })), "{linked:?}");
    }
}
