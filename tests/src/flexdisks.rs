//! The FlexVolume drivers of `carrack_flexvolume::testing`, in a sandbox.

use std::ffi::OsStr;
use std::fs;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use carrack_flexvolume::testing::{DISKS, Driver, FILES, Installed};

use crate::Sandbox;

/// A driver in a sandbox. What it left attached is detached when this is dropped.
#[derive(Debug)]
pub struct Disks(Installed, PathBuf);

impl Disks {
    /// The driver of disks.
    #[must_use]
    pub fn install(sandbox: &Sandbox) -> Self {
        Self::of(DISKS, sandbox)
    }

    /// The driver whose volumes are served by processes.
    #[must_use]
    pub fn install_files(sandbox: &Sandbox) -> Self {
        Self::of(FILES, sandbox)
    }

    fn of(driver: Driver, sandbox: &Sandbox) -> Self {
        let dir = sandbox.home().join(driver.name.replace('/', "-"));
        let plugins = sandbox.data_dir().join("volume-plugins");
        let installed = Installed::new(driver, &plugins, &dir);
        Self(installed.expect("the driver can be written"), plugins)
    }

    /// How it is to misbehave; empty for not at all.
    ///
    /// # Panics
    /// It cannot be told.
    pub fn mode(&self, mode: &str) {
        self.0.mode(mode).expect("written");
    }

    /// Whether a call of the driver runs.
    ///
    /// # Panics
    /// The machine's processes cannot be listed.
    #[must_use]
    pub fn running(&self) -> bool {
        let is_driver = |word: &[u8]| Path::new(OsStr::from_bytes(word)).starts_with(&self.1);
        let processes = fs::read_dir("/proc").expect("read").flatten();
        processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok()).any(|line| {
            // Of a script: its interpreter, and then itself.
            line.split(|byte| *byte == 0).take(2).any(is_driver)
        })
    }

    /// Whether a loop device is on one of the disks.
    #[must_use]
    pub fn attached(&self) -> bool {
        !self.devices().is_empty()
    }
}

impl Deref for Disks {
    type Target = Installed;

    fn deref(&self) -> &Installed {
        &self.0
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
