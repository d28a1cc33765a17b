//! A FlexVolume driver over loop devices, which is also the one of the drills.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Sandbox;

const DRIVER: &str = include_str!("../../crates/carrack/src/drill/loopdisk.sh");

/// The driver's own directory: disks, what it was called for, how it is to misbehave.
#[derive(Debug)]
pub struct Disks(PathBuf);

impl Disks {
    /// Makes it the driver `carrack/loopdisk` of a sandbox.
    ///
    /// # Panics
    /// It cannot be written.
    #[must_use]
    pub fn install(sandbox: &Sandbox) -> Self {
        let dir = sandbox.home().join("disks");
        fs::create_dir(&dir).expect("a directory");
        let at = sandbox.data_dir().join("volume-plugins/carrack~loopdisk");
        fs::create_dir_all(&at).expect("a directory");
        let program = at.join("loopdisk");
        fs::write(&program, DRIVER.replace("@DIR@", &dir.to_string_lossy())).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made executable");
        Self(dir)
    }

    /// The calls so far, without their arguments.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        text.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
    }

    /// Those that took something away.
    #[must_use]
    pub fn undone(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| call.starts_with("un") || call == "detach").collect()
    }

    /// How it is to misbehave; empty for not at all.
    ///
    /// # Panics
    /// It cannot be told.
    pub fn mode(&self, mode: &str) {
        fs::write(self.0.join("mode"), mode).expect("written");
    }

    /// The file of a disk.
    #[must_use]
    pub fn image(&self, volume: &str) -> PathBuf {
        self.0.join(format!("{volume}.img"))
    }

    /// The loop devices on the disks.
    #[must_use]
    pub fn devices(&self) -> Vec<PathBuf> {
        let mut devices = Vec::new();
        for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            if Path::new(file.trim()).starts_with(&self.0) {
                devices.push(Path::new("/dev").join(entry.file_name()));
            }
        }
        devices
    }

    /// Whether a loop device is on one of the disks.
    #[must_use]
    pub fn attached(&self) -> bool {
        !self.devices().is_empty()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for device in self.devices() {
            Command::new("losetup").arg("-d").arg(device).status().expect("losetup runs");
        }
    }
}

/// Whether this machine lets a mounted ext4 grow: that takes CAP_SYS_RESOURCE, which some sandboxes lack.
///
/// # Panics
/// The kernel does not say what this process may do.
#[must_use]
pub fn may_grow_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(effective.trim(), 16).is_ok_and(|set| set & (1 << 24) != 0)
}
