//! FlexVolume drivers for drills and tests: programs that attach, mount and detach for real, write down each call, and misbehave
//! as they are told. One has loop devices for disks; the volumes of the other are served by processes, as a file server's are.

mod silent;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

pub use silent::Silent;

/// A driver: its name in volumes, and its program.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    /// As volumes name it: `vendor/driver`.
    pub name: &'static str,
    program: &'static str,
    needs: &'static [&'static str],
}

/// Disks that are loop devices.
pub const DISKS: Driver =
    Driver { name: "carrack/loopdisk", program: include_str!("testing/loopdisk.sh"), needs: &["losetup", "mkfs.ext4"] };
/// Directories that are served by processes.
pub const FILES: Driver =
    Driver { name: "carrack/filedisk", program: include_str!("testing/filedisk.sh"), needs: &["fuse2fs", "mkfs.ext4"] };

/// A driver's own directory: its volumes, what it was called for, how it is to misbehave.
#[derive(Debug, Clone)]
pub struct Installed(PathBuf);

impl Installed {
    /// Installs a driver where kubelet and controllers look for drivers. Its directory is made.
    ///
    /// # Errors
    /// It cannot be written, or this machine lacks a program that it calls.
    pub fn new(driver: Driver, plugins: &Path, dir: &Path) -> io::Result<Self> {
        if let Some(program) = driver.needs.iter().find(|program| !is_in_path(program)) {
            return Err(io::Error::other(format!(
                "{program} is missing: Debian has it in fuse2fs, mount and e2fsprogs"
            )));
        }
        let at = plugins.join(driver.name.replace('/', "~"));
        let program = at.join(driver.name.rsplit('/').next().unwrap_or(driver.name));
        fs::create_dir_all(&at)?;
        fs::create_dir(dir)?;
        fs::write(&program, driver.program.replace("@DIR@", &dir.to_string_lossy()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir.to_owned()))
    }

    /// A driver that was installed before, by its directory.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    /// The calls so far, without their arguments.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        // Nothing was called for as long as there is no file.
        let text = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        text.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
    }

    /// Those that took something away.
    #[must_use]
    pub fn undone(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| call.starts_with("un") || call == "detach").collect()
    }

    /// How it is to misbehave (the programs say how that is written); empty for not at all.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn mode(&self, mode: &str) -> io::Result<()> {
        fs::write(self.0.join("mode"), mode)
    }

    /// The file that a volume's data is in.
    #[must_use]
    pub fn image(&self, volume: &str) -> PathBuf {
        self.0.join(format!("{volume}.img"))
    }

    /// The loop devices on its volumes.
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

    /// A file system in which the disks' driver gets stuck when it is told to.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn silent(&self) -> io::Result<Silent> {
        Silent::mount(&self.0.join("stuck"))
    }

    /// The processes that serve its volumes now.
    #[must_use]
    pub fn servers(&self) -> Vec<Pid> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let recorded = entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "server"));
        let ids = recorded.filter_map(|entry| fs::read_to_string(entry.path()).ok()?.trim().parse().ok());
        // An id may be another process's by now.
        let below = self.0.to_string_lossy().into_owned();
        let serves =
            |id: &i32| fs::read_to_string(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.contains(&below));
        ids.filter(serves).filter_map(Pid::from_raw).collect()
    }

    /// Lets those go on that stand still.
    pub fn go_on(&self) {
        drop(StandStill(self.servers()));
    }

    /// Lets those processes stand still, until what this returns is dropped.
    ///
    /// # Errors
    /// There is none, or one cannot be told to.
    pub fn stand_still(&self) -> io::Result<StandStill> {
        let mut still = StandStill(Vec::new());
        for server in self.servers() {
            kill_process(server, Signal::STOP)?;
            still.0.push(server);
        }
        if still.0.is_empty() { Err(io::Error::other("no process serves a volume")) } else { Ok(still) }
    }
}

/// Processes that stand still until this is dropped.
#[derive(Debug)]
#[must_use = "they go on when this is dropped"]
pub struct StandStill(Vec<Pid>);

impl Drop for StandStill {
    fn drop(&mut self) {
        for server in &self.0 {
            // One that has ended needs nothing any more.
            let _ended = kill_process(*server, Signal::CONT);
        }
    }
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|dir| dir.join(program)).any(|program| program.is_file())
}
