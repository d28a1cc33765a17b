//! What the machine offers, probed rather than guessed, and what it lacks, each in one line with its remedy.
//!
//! A probe does the very thing that is needed later (mount an overlay, look up a program) where that is cheap. What
//! a cluster cannot run without is a [`Problem`]; what it can do otherwise is a fact in [`HostFacts`].

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::layout::{Layout, MAX_DATA_DIR_BYTES};

/// What the configuration depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// CAP_SYS_RESOURCE is effective: a container may get a lower OOM score than containerd has.
    pub can_lower_oom_score: bool,
    /// overlayfs mounts below the data directory; else snapshots are plain copies.
    pub overlayfs: bool,
    /// Where the CNI plugins lie.
    pub cni_bin_dir: PathBuf,
    /// The containerd program.
    pub containerd: PathBuf,
}

/// Something that the cluster cannot run without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {remedy}")]
pub struct Problem {
    /// What is missing or not permitted.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// The programs that the node calls, each with the Debian package that brings it.
const PROGRAMS: [(&str, &str); 6] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables-save", "iptables"),
    ("setsid", "util-linux"),
];

/// Where CNI plugins may lie: Debian's package, then the upstream convention.
pub(crate) const CNI_BIN_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Directories searched for programs besides `PATH`, which lacks the `sbin` ones in many users' sessions.
pub const SBIN_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The program `name`, searched in `PATH` and in the `sbin` directories.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SBIN_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Looks at the machine. Creates the data directory, since whether overlayfs works depends on the filesystem below it.
///
/// # Errors
/// All problems that were found, in the order in which a person would mend them.
pub fn probe(layout: &Layout) -> Result<HostFacts, Vec<Problem>> {
    let mut problems = Vec::new();
    if !rustix::process::geteuid().is_root() {
        // Without root nothing below can be told apart from mere lack of permission.
        return Err(vec![Problem::new("not running as root", "containers, mounts and networks need it; use sudo")]);
    }
    let data_dir = layout.data_dir();
    if data_dir.as_os_str().len() > MAX_DATA_DIR_BYTES {
        problems.push(Problem::new(
            format!("the data directory {} is longer than {MAX_DATA_DIR_BYTES} bytes", data_dir.display()),
            "unix sockets below it would not fit; choose a shorter one",
        ));
    }
    if let Err(error) = fs::create_dir_all(data_dir) {
        problems.push(Problem::new(
            format!("cannot create {}: {error}", data_dir.display()),
            "choose another with --data-dir",
        ));
        return Err(problems);
    }
    let mut containerd = PathBuf::new();
    for (program, package) in PROGRAMS {
        match find_program(program) {
            Some(path) if program == "containerd" => containerd = path,
            Some(_) => {}
            None => problems.push(Problem::new(
                format!("the program {program} is missing"),
                format!("install it with: apt-get install {package}"),
            )),
        }
    }
    let cni_bin_dir = CNI_BIN_DIRS.iter().map(PathBuf::from).find(|dir| is_executable(&dir.join("bridge")));
    if cni_bin_dir.is_none() {
        problems.push(Problem::new(
            format!("no CNI plugins in {}", CNI_BIN_DIRS.join(" or ")),
            "install them with: apt-get install containernetworking-plugins",
        ));
    }
    // Containers choose paths of mounts: one that is no text must not hide the others.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    problems.extend(cgroup_problems(&String::from_utf8_lossy(&mounts)));
    match (problems.is_empty(), cni_bin_dir) {
        (true, Some(cni_bin_dir)) => Ok(HostFacts {
            can_lower_oom_score: has_cap_sys_resource(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
            overlayfs: overlay_mounts(data_dir),
            cni_bin_dir,
            containerd,
        }),
        _ => Err(problems),
    }
}

/// Which cgroup hierarchies are missing: cgroup2 mounted at `/sys/fs/cgroup`, or each v1 controller that runc needs.
fn cgroup_problems(mountinfo: &str) -> Vec<Problem> {
    let mounted = |wanted: &dyn Fn(&str, &str, &str) -> bool| {
        mountinfo.lines().any(|line| {
            let Some((left, right)) = line.split_once(" - ") else {
                return false;
            };
            let target = left.split(' ').nth(4).unwrap_or_default();
            let mut right = right.split(' ');
            let (kind, options) = (right.next().unwrap_or_default(), right.nth(1).unwrap_or_default());
            wanted(kind, target, options)
        })
    };
    if mounted(&|kind, target, _| kind == "cgroup2" && target == "/sys/fs/cgroup") {
        return Vec::new();
    }
    ["cpu", "cpuset", "memory", "devices", "freezer", "pids"]
        .into_iter()
        .filter(|controller| {
            !mounted(&|kind, _, options| kind == "cgroup" && options.split(',').any(|option| option == *controller))
        })
        .map(|controller| {
            Problem::new(
                format!("the cgroup controller {controller} is not mounted"),
                "mount cgroup2 at /sys/fs/cgroup, or the v1 controllers below it",
            )
        })
        .collect()
}

/// Whether CAP_SYS_RESOURCE (bit 24) is in the effective set that `/proc/self/status` shows.
fn has_cap_sys_resource(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|caps| caps & (1 << 24) != 0)
}

/// Whether overlayfs can be mounted with its upper directory below `dir`, by doing it.
fn overlay_mounts(dir: &Path) -> bool {
    let probe = dir.join("overlay-probe");
    let mounted = try_overlay(&probe);
    if let Err(error) = &mounted {
        tracing::info!(%error, "overlayfs does not mount here, image snapshots will be plain copies");
    }
    if let Err(error) = fs::remove_dir_all(&probe) {
        tracing::warn!(%error, path = %probe.display(), "the overlayfs probe could not be removed");
    }
    mounted.is_ok()
}

fn try_overlay(probe: &Path) -> std::io::Result<()> {
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| probe.join(name));
    for dir in [&lower, &upper, &work, &merged] {
        fs::create_dir_all(dir)?;
    }
    let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let options = std::ffi::CString::new(options)?;
    mount("overlay", &merged, "overlay", MountFlags::empty(), Some(options.as_c_str()))?;
    unmount(&merged, UnmountFlags::DETACH)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_read_from_its_bit() {
        assert!(has_cap_sys_resource("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_cap_sys_resource("CapEff:\t000001fffeffffff\n"));
        assert!(!has_cap_sys_resource("CapEff:\tzz\n"));
    }

    #[test]
    fn cgroup2_or_every_v1_controller_satisfies() {
        let v2 = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_problems(v2), []);
        let hybrid = "30 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let v1: String = ["cpu,cpuacct", "cpuset", "memory", "devices", "freezer", "pids"]
            .iter()
            .map(|name| format!("31 20 0:27 / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"))
            .collect();
        assert_eq!(cgroup_problems(&format!("{hybrid}{v1}")), []);
        let missing = cgroup_problems(&v1.replace("freezer", "perf_event"));
        assert_eq!(missing.len(), 1);
        assert!(missing[0].to_string().contains("freezer"), "{missing:?}");
        assert_eq!(cgroup_problems("").len(), 6);
    }
}
