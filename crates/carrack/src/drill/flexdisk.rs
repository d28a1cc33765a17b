//! A FlexVolume driver over loop devices, with which a drill's volumes are real disks: attached, formatted, mounted and
//! detached by the calls of the protocol. It writes each call down.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The driver's name in volumes.
pub const NAME: &str = "carrack/loopdisk";
const PROGRAM: &str = include_str!("loopdisk.sh");

/// The driver's own directory: its disks, and what it was called for.
#[derive(Debug, Clone)]
pub struct FlexDisks(PathBuf);

impl FlexDisks {
    /// Installs it where kubelet and controllers look for drivers.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn install(plugins: &Path, dir: &Path) -> anyhow::Result<Self> {
        let at = plugins.join(NAME.replace('/', "~"));
        let program = at.join("loopdisk");
        let write = || {
            fs::create_dir_all(&at)?;
            fs::create_dir(dir)?;
            fs::write(&program, PROGRAM.replace("@DIR@", &dir.to_string_lossy()))?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        };
        write().with_context(|| format!("cannot install {}", program.display()))?;
        Ok(Self(dir.to_owned()))
    }

    /// The calls that took something away, without their arguments.
    pub fn undone(&self) -> Vec<String> {
        // Nothing was called for as long as there is no file.
        let calls = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        let names = calls.lines().filter_map(|line| line.split(' ').next());
        names.filter(|call| call.starts_with("un") || *call == "detach").map(str::to_owned).collect()
    }
}
