//! This process as the kernel sees it: what it has, for metrics (proc(5)), whether it may what only root may, and where it looks for
//! programs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use carrack_apiserver::ProcessStats;
use carrack_engine::Time;
use carrack_noderuntime::host::SBIN_DIRS;

use crate::output;

/// What `/proc` tells; nothing where there is none.
pub fn stats() -> Option<ProcessStats> {
    let ticks_per_s = rustix::param::clock_ticks_per_second();
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the command's name, which may contain anything: the fields from the third on.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let booted_unix_s: u64 = fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    let max_fds = fs::read_to_string("/proc/self/limits").ok().and_then(|limits| {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    Some(ProcessStats {
        cpu_s: (field(14) + field(15)) as f64 / ticks_per_s as f64,
        resident_bytes: field(24) * rustix::param::page_size() as u64,
        virtual_bytes: field(23),
        open_fds: fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
        max_fds: max_fds.unwrap_or(0),
        started_unix_s: booted_unix_s as f64 + field(22) as f64 / ticks_per_s as f64,
    })
}

/// When it began.
pub fn started() -> Option<Time> {
    stats()?.started().map(Time::from)
}

/// The same as Prometheus' text, for roles that write their pages themselves.
pub fn metrics() -> String {
    stats().map(|stats| stats.text()).unwrap_or_default()
}

/// Refuses what only root can do, before anything of it is begun.
///
/// # Errors
/// Somebody else runs this.
pub fn require_root() -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "not running as root: containers, mounts and networks need it; use sudo");
    Ok(())
}

/// Begins anew with a `PATH` that leads to the system's own programs, where it does not. `su` leaves root the one of whoever called
/// it, and containerd, which has it from here, would find no `runc`, and plugins no `iptables`. Returns where nothing is missing,
/// or nothing can be done.
pub fn find_system_programs() {
    let path = std::env::var_os("PATH").and_then(|path| completed(&path, |dir| dir.canonicalize().ok()));
    let Some(path) = path else { return };
    let begun = std::env::current_exe()
        .map(|program| Command::new(program).args(std::env::args_os().skip(1)).env("PATH", path).exec());
    let (Ok(error) | Err(error)) = begun;
    output::say(format_args!("programs in {} may not be found: {error}", SBIN_DIRS.join(" or ")));
}

/// A search path with those directories of the system's that it does not lead to, under whatever name; none where it has them all.
fn completed(path: &OsStr, real: impl Fn(&Path) -> Option<PathBuf>) -> Option<OsString> {
    let dirs: Vec<PathBuf> = std::env::split_paths(path).collect();
    let there: Vec<PathBuf> = dirs.iter().filter_map(|dir| real(dir)).collect();
    let is_missing = |dir: &PathBuf| real(dir).is_some_and(|dir| !there.contains(&dir));
    let missing: Vec<PathBuf> = SBIN_DIRS.iter().map(PathBuf::from).filter(is_missing).collect();
    if missing.is_empty() {
        return None;
    }
    std::env::join_paths(dirs.into_iter().chain(missing)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_the_systems_programs_is_completed() {
        // As Debian has it: /sbin is a link, and nobody has anything in /usr/local/sbin.
        let real = |dir: &Path| match dir.to_str()? {
            "/sbin" | "/usr/sbin" => Some(PathBuf::from("/usr/sbin")),
            "/usr/local/sbin" | "/nowhere" => None,
            other => Some(PathBuf::from(other)),
        };
        for (path, expected) in [
            ("/usr/local/bin:/usr/bin:/usr/games", Some("/usr/local/bin:/usr/bin:/usr/games:/usr/sbin:/sbin")),
            ("/usr/sbin:/usr/bin", None),
            ("/nowhere:/sbin", None),
            ("/usr/bin:/usr/sbin:/sbin", None),
        ] {
            assert_eq!(completed(OsStr::new(path), real), expected.map(OsString::from), "{path}");
        }
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let stats = stats().expect("there is a /proc");
        assert!(stats.resident_bytes > 1 << 20 && stats.virtual_bytes >= stats.resident_bytes, "{stats:?}");
        assert!(stats.open_fds >= 3 && stats.max_fds >= stats.open_fds, "{stats:?}");
        assert!(stats.started_unix_s > 1.0e9, "{stats:?}");
        assert!(metrics().lines().any(|line| line.starts_with("process_resident_memory_bytes ")), "{}", metrics());
    }
}
