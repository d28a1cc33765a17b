//! Control groups of pods: the parents of their containers' groups, with the pods' own limits.
//!
//! Both hierarchies are known: one directory for each controller (v1), or one for all (v2). Where
//! making them is not permitted at all the pods run without; that is logged once. Where it fails
//! otherwise no pod runs: without its group nothing would hold it to its limits.

mod left;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

pub use left::{remove, sweep};

use super::mounts::{self, MountPoint};
use crate::allocation::{GroupLimits, Reading};
use crate::runtime::PodCgroup;

/// How the machine's control groups are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// One mount for each controller, with the controllers' names.
    V1(Vec<(String, PathBuf)>),
    /// One mount for all.
    V2(PathBuf),
    /// None.
    None,
}

/// How control groups are mounted, by the machine's mounts.
#[must_use]
pub fn hierarchy(mounts: Vec<MountPoint>) -> Hierarchy {
    let mut v1 = Vec::new();
    let mut v2 = None;
    for m in mounts {
        match m.fs_type.as_str() {
            "cgroup" => {
                let controllers =
                    ["cpu", "memory", "pids", "cpuset", "cpuacct", "blkio", "devices", "freezer", "hugetlb"];
                for c in m.super_options.split(',').filter(|o| controllers.contains(o)) {
                    v1.push((c.to_owned(), m.path.clone().into()));
                }
            }
            "cgroup2" => v2 = Some(PathBuf::from(m.path)),
            _ => {}
        }
    }
    if v1.iter().any(|(c, _)| c == "memory" || c == "cpu") {
        return Hierarchy::V1(v1);
    }
    v2.map_or(Hierarchy::None, Hierarchy::V2)
}

/// This machine's; read once, since the list of mounts grows with every pod. One that cannot be read is not known, and is read
/// again.
fn here() -> io::Result<&'static Hierarchy> {
    static HERE: OnceLock<Hierarchy> = OnceLock::new();
    if let Some(known) = HERE.get() {
        return Ok(known);
    }
    let mounts = mounts::all().map_err(|e| io::Error::new(e.kind(), format!("reading the mount table: {e}")))?;
    Ok(HERE.get_or_init(|| hierarchy(mounts)))
}

fn write(dir: &Path, file: &str, value: impl std::fmt::Display) -> io::Result<()> {
    fs::write(dir.join(file), value.to_string())
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", dir.join(file).display())))
}

fn make_v1(mounts: &[(String, PathBuf)], cgroup: &PodCgroup) -> io::Result<()> {
    let r = &cgroup.resources;
    if r.pids.is_some() && !mounts.iter().any(|(controller, _)| controller == "pids") {
        tell_of_pids(&"the controller is not mounted");
    }
    for (controller, mount) in mounts {
        let dir = mount.join(cgroup.path.trim_start_matches('/'));
        match controller.as_str() {
            "cpu" => {
                fs::create_dir_all(&dir)?;
                write(&dir, "cpu.shares", r.cpu_shares.max(2))?;
                if r.cpu_quota_us > 0 {
                    write(&dir, "cpu.cfs_period_us", r.cpu_period_us)?;
                    write(&dir, "cpu.cfs_quota_us", r.cpu_quota_us)?;
                }
            }
            "memory" => {
                fs::create_dir_all(&dir)?;
                if r.memory_limit_bytes > 0 {
                    write(&dir, "memory.limit_in_bytes", r.memory_limit_bytes)?;
                }
            }
            "pids" if r.pids.is_some() => {
                fs::create_dir_all(&dir)?;
                write(&dir, "pids.max", r.pids.unwrap_or_default())?;
            }
            // The runtime makes the others as it needs them.
            _ => {}
        }
    }
    Ok(())
}

fn make_v2(root: &Path, cgroup: &PodCgroup) -> io::Result<()> {
    let r = &cgroup.resources;
    let mut dir = root.to_owned();
    for part in cgroup.path.split('/').filter(|p| !p.is_empty()) {
        // Controllers that are not there at this level cannot be passed on; the others are.
        for controller in ["cpu", "memory", "pids", "cpuset", "io", "hugetlb"] {
            if let Err(error) = write(&dir, "cgroup.subtree_control", format!("+{controller}")) {
                tracing::trace!(%error, "a controller is not passed on");
            }
        }
        dir.push(part);
        fs::create_dir_all(&dir)?;
    }
    write(&dir, "cpu.weight", weight(r.cpu_shares))?;
    if r.cpu_quota_us > 0 {
        write(&dir, "cpu.max", format!("{} {}", r.cpu_quota_us, r.cpu_period_us))?;
    }
    if r.memory_limit_bytes > 0 {
        write(&dir, "memory.max", r.memory_limit_bytes)?;
    }
    if let Some(pids) = r.pids {
        unless_lacking(write(&dir, "pids.max", pids), &dir.join("pids.max"))?;
    }
    Ok(())
}

/// What came of writing a bound of processes. A kernel without that controller refuses to make the file: the group has its other
/// bounds then, and that it lacks this one is told once.
fn unless_lacking(written: io::Result<()>, file: &Path) -> io::Result<()> {
    match written {
        Err(error) if is_barred(&error) && !file.exists() => {
            tell_of_pids(&error);
            Ok(())
        }
        other => other,
    }
}

fn tell_of_pids(why: &dyn std::fmt::Display) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| tracing::warn!(%why, "how many processes pods have is not bounded: the machine cannot do that"));
}

/// Takes off the bounds of a group that is to have none: what was kept back in an earlier life of the kubelet is not for ever.
fn unbind(hierarchy: &Hierarchy, cgroup: &PodCgroup) -> io::Result<()> {
    let r = &cgroup.resources;
    let (memory, pids) = (r.memory_limit_bytes == 0, r.pids.is_none());
    match hierarchy {
        Hierarchy::V1(mounts) => {
            for (controller, file, none, is_free) in
                [("memory", "memory.limit_in_bytes", "-1", memory), ("pids", "pids.max", "max", pids)]
            {
                if let Some(dir) = dir_v1(mounts, controller, &cgroup.path).filter(|_| is_free) {
                    lift(&dir, file, none)?;
                }
            }
            Ok(())
        }
        Hierarchy::V2(root) => {
            let dir = root.join(cgroup.path.trim_start_matches('/'));
            for (file, is_free) in [("memory.max", memory), ("pids.max", pids)] {
                if is_free {
                    lift(&dir, file, "max")?;
                }
            }
            Ok(())
        }
        Hierarchy::None => Ok(()),
    }
}

/// Writes that there is no bound, where one is read.
fn lift(dir: &Path, file: &str, none: &str) -> io::Result<()> {
    match text(dir, file) {
        Ok(text) if limit(&text) > 0 => {
            tracing::info!(group = %dir.display(), file, was = text.trim(), "a control group has no bound any more");
            write(dir, file, none)
        }
        Ok(_) => Ok(()),
        // Without its controller the file is not there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The least and the most shares that v1 knows.
const SHARES: (i64, i64) = (2, 262_144);

/// cgroup v2's weight for v1's shares. A whole CPU (1024) has as much as what is not a pod's has by default (100), as from upstream's
/// kubelet since 1.35, and from runc since 1.3.2; the way before gave it 39
/// (<https://kubernetes.io/blog/2026/01/30/new-cgroup-v1-to-v2-cpu-conversion-formula/>).
#[expect(clippy::cast_possible_truncation, reason = "from 1 to 10,000")]
fn weight(shares: i64) -> i64 {
    let (least, most) = SHARES;
    match i32::try_from(shares.clamp(least, most)) {
        Ok(between) if shares > least && shares < most => {
            let power = f64::from(between).log2();
            let exponent = (power * power + 125.0 * power) / 612.0 - 7.0 / 34.0;
            10_f64.powf(exponent).ceil() as i64
        }
        _ if shares <= least => 1,
        _ => 10_000,
    }
}

/// The least shares that have a weight, or a larger one.
fn shares(of: i64) -> i64 {
    let (mut least, mut most) = SHARES;
    while least < most {
        let middle = (least + most) / 2;
        if weight(middle) < of {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    least
}

fn text(dir: &Path, file: &str) -> io::Result<String> {
    let path = dir.join(file);
    fs::read_to_string(&path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// A word of a file as a number; none where there is another word, or none.
fn word(text: &str, number: usize) -> Option<i64> {
    text.split_whitespace().nth(number)?.parse().ok()
}

/// The limit that a file says; 0 where it says that there is none.
fn limit(text: &str) -> i64 {
    // v1 has a number that no machine has the memory for.
    word(text, 0).filter(|n| *n > 0 && *n < i64::MAX / 2).unwrap_or(0)
}

/// A number in a file of a group; 0 where it says that there is no limit.
fn number(dir: &Path, file: &str) -> io::Result<i64> {
    text(dir, file).map(|text| limit(&text))
}

/// A number that a file has behind a name, in a line of its own.
fn named(dir: &Path, file: &str, name: &str) -> Option<u64> {
    text(dir, file).ok()?.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
}

/// The directory of a group in a controller's hierarchy, if it has one there.
fn dir_v1(mounts: &[(String, PathBuf)], controller: &str, path: &str) -> Option<PathBuf> {
    let (_, mount) = mounts.iter().find(|(c, _)| c == controller)?;
    Some(mount.join(path.trim_start_matches('/'))).filter(|dir| dir.is_dir())
}

fn read_v1(mounts: &[(String, PathBuf)], path: &str) -> io::Result<Reading> {
    let dir = |controller: &str| dir_v1(mounts, controller, path);
    let (Some(cpu), Some(memory)) = (dir("cpu"), dir("memory")) else { return Ok(Reading::default()) };
    let limits = GroupLimits {
        cpu_period_us: number(&cpu, "cpu.cfs_period_us")?,
        cpu_quota_us: number(&cpu, "cpu.cfs_quota_us")?,
        cpu_shares: number(&cpu, "cpu.shares")?,
        memory_limit_bytes: number(&memory, "memory.limit_in_bytes")?,
    };
    let used = u64::try_from(number(&memory, "memory.usage_in_bytes")?).ok();
    Ok(Reading { limits: Some(limits), memory_bytes: used, ..Reading::default() })
}

fn read_v2(root: &Path, path: &str) -> io::Result<Reading> {
    let dir = root.join(path.trim_start_matches('/'));
    if !dir.is_dir() {
        return Ok(Reading::default());
    }
    let max = text(&dir, "cpu.max")?;
    let limits = GroupLimits {
        cpu_period_us: word(&max, 1).unwrap_or(0),
        cpu_quota_us: limit(&max),
        cpu_shares: shares(number(&dir, "cpu.weight")?),
        memory_limit_bytes: number(&dir, "memory.max")?,
    };
    let used = u64::try_from(number(&dir, "memory.current")?).ok();
    Ok(Reading { limits: Some(limits), memory_bytes: used, ..Reading::default() })
}

/// Reads how a pod's control group is limited, and how much memory is used in it. No limits where pods have none.
///
/// # Errors
/// What the kernel says.
pub fn read(path: &str) -> io::Result<Reading> {
    match here()? {
        Hierarchy::V1(mounts) => read_v1(mounts, path),
        Hierarchy::V2(root) => read_v2(root, path),
        Hierarchy::None => Ok(Reading::default()),
    }
}

/// Makes control groups that pods are in, and takes off the bounds that they are not to have: they are the kubelet's own, and what
/// was bounded there before is as it was left. Where that is not permitted pods run without, as [`parent`] tells.
///
/// # Errors
/// What the kernel says first; the other groups are written all the same.
pub fn write_groups(groups: &[PodCgroup]) -> io::Result<()> {
    write_in(here()?, groups)
}

fn write_in(hierarchy: &Hierarchy, groups: &[PodCgroup]) -> io::Result<()> {
    let mut first = Ok(());
    for cgroup in groups {
        let written = make(hierarchy, cgroup).and_then(|()| unbind(hierarchy, cgroup));
        first = first.and(written);
    }
    first
}

/// Makes a group. Where there is no hierarchy there is none to make.
fn make(hierarchy: &Hierarchy, cgroup: &PodCgroup) -> io::Result<()> {
    match hierarchy {
        Hierarchy::V1(mounts) => make_v1(mounts, cgroup),
        Hierarchy::V2(root) => make_v2(root, cgroup),
        Hierarchy::None => Ok(()),
    }
}

/// Makes a pod's control group and returns the parent to give to the runtime: the group's path, or
/// nothing where there are no groups to be made, or nobody here may make any.
///
/// # Errors
/// What else the kernel says: it may go another time, and till then the pod is not to run outside of its group.
pub fn parent(cgroup: &PodCgroup) -> io::Result<String> {
    parent_in(here()?, cgroup)
}

fn parent_in(hierarchy: &Hierarchy, cgroup: &PodCgroup) -> io::Result<String> {
    static TOLD: Once = Once::new();
    let without = |why: &dyn std::fmt::Display| {
        TOLD.call_once(|| {
            tracing::warn!(%why, "pods run without control groups of their own; limits of whole pods are not enforced");
        });
        Ok(String::new())
    };
    if *hierarchy == Hierarchy::None {
        return without(&"no control groups are mounted");
    }
    match make(hierarchy, cgroup) {
        Ok(()) => Ok(cgroup.path.clone()),
        Err(error) if is_barred(&error) => without(&error),
        Err(error) => Err(error),
    }
}

/// Whether an error says that nobody here may make groups, or has no such controller: the kernel refuses to make a file that it
/// does not have itself.
fn is_barred(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// The process of a pod's control group with the lowest number: its sandbox's, which began first, unless numbers have begun anew
/// since. None where the pod has no group, or nothing runs there.
#[must_use]
pub fn first_process(path: &str) -> Option<u32> {
    match here().ok()? {
        Hierarchy::V1(mounts) => {
            first_process_in(&dir_v1(mounts, "memory", path).or_else(|| dir_v1(mounts, "cpu", path))?)
        }
        Hierarchy::V2(root) => first_process_in(&root.join(path.trim_start_matches('/'))),
        Hierarchy::None => None,
    }
}

/// The runtime makes a group in it for each container; what these make in their own is not looked at.
fn first_process_in(dir: &Path) -> Option<u32> {
    let groups = fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let numbers = |group: PathBuf| text(&group, "cgroup.procs").unwrap_or_default();
    let first = |procs: String| procs.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0).min();
    groups.map(numbers).filter_map(first).min()
}

/// What a control group may have of the machine's memory, and what it uses of that: its working set. None where nothing bounds it,
/// and where that cannot be read.
#[must_use]
pub fn memory(path: &str) -> Option<(u64, u64)> {
    match here().ok()? {
        Hierarchy::V1(mounts) => memory_of(&dir_v1(mounts, "memory", path)?, MEMORY_V1),
        Hierarchy::V2(root) => memory_of(&root.join(path.trim_start_matches('/')), MEMORY_V2),
        Hierarchy::None => None,
    }
}

/// The files that tell of memory in the older hierarchy, and in the newer one: the bound, what is used, and the name in
/// `memory.stat` of what can be taken back of that.
const MEMORY_V1: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
const MEMORY_V2: [&str; 3] = ["memory.max", "memory.current", "inactive_file"];

fn memory_of(dir: &Path, files: [&str; 3]) -> Option<(u64, u64)> {
    let found = memory_in(dir, files);
    found.most_bytes.zip(found.working_set_bytes)
}

fn memory_in(dir: &Path, [most, used, reclaimable]: [&str; 3]) -> Use {
    let bytes = |file: &str| u64::try_from(word(&text(dir, file).ok()?, 0)?).ok();
    let memory_bytes = bytes(used);
    let reclaimable = named(dir, "memory.stat", reclaimable);
    Use {
        cpu_ns: None,
        memory_bytes,
        working_set_bytes: memory_bytes.zip(reclaimable).map(|(used, reclaimable)| used.saturating_sub(reclaimable)),
        // The older hierarchy has no word for what has no bound, but a number that no machine has bytes for.
        most_bytes: bytes(most).filter(|bytes| *bytes < 1 << 60),
    }
}

/// What runs in a control group uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Time on the CPUs, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Memory, caches included, in bytes.
    pub memory_bytes: Option<u64>,
    /// What of it cannot be taken back.
    pub working_set_bytes: Option<u64>,
    /// The memory that it may have, in bytes; none where nothing bounds it.
    pub most_bytes: Option<u64>,
}

/// What runs in a control group uses; none where there is no such group.
#[must_use]
pub fn usage(path: &str) -> Option<Use> {
    match here().ok()? {
        Hierarchy::V1(mounts) => {
            let cpu = dir_v1(mounts, "cpuacct", path).and_then(|dir| text(&dir, "cpuacct.usage").ok());
            let cpu_ns = cpu.and_then(|text| text.trim().parse().ok());
            Some(Use { cpu_ns, ..memory_in(&dir_v1(mounts, "memory", path)?, MEMORY_V1) })
        }
        Hierarchy::V2(root) => {
            let dir = Some(root.join(path.trim_start_matches('/'))).filter(|dir| dir.is_dir())?;
            let cpu_us = named(&dir, "cpu.stat", "usage_usec ");
            Some(Use { cpu_ns: cpu_us.map(|us| us.saturating_mul(1000)), ..memory_in(&dir, MEMORY_V2) })
        }
        Hierarchy::None => None,
    }
}

/// How often what runs in a control group had a quota of the CPUs, and was held back since it had used that up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which it ran.
    pub periods: u64,
    /// Those of them in which it was held back.
    pub throttled: u64,
    /// For how long, in nanoseconds, all threads together.
    pub throttled_ns: u64,
}

/// How what runs in a control group is held back; none where it has no quota, or there is no such group.
#[must_use]
pub fn throttling(path: &str) -> Option<Throttling> {
    match here().ok()? {
        Hierarchy::V1(mounts) => throttling_in(&dir_v1(mounts, "cpu", path)?, ("throttled_time ", 1)),
        Hierarchy::V2(root) => throttling_in(&root.join(path.trim_start_matches('/')), ("throttled_usec ", 1000)),
        Hierarchy::None => None,
    }
}

/// Reads it off a group's directory, where the time has this name and is in so many nanoseconds.
fn throttling_in(dir: &Path, (time, unit_ns): (&str, u64)) -> Option<Throttling> {
    let number = |name: &str| named(dir, "cpu.stat", name);
    let periods = number("nr_periods ").filter(|periods| *periods > 0)?;
    let throttled_ns = number(time)?.saturating_mul(unit_ns);
    Some(Throttling { periods, throttled: number("nr_throttled ")?, throttled_ns })
}

/// Whether the machine has one hierarchy for all controllers.
#[must_use]
pub fn is_unified() -> bool {
    matches!(here(), Ok(Hierarchy::V2(_)))
}

/// Whether groups below one can be bounded by a file of the newer hierarchy: it has that file itself.
#[must_use]
pub fn bounds(path: &str, file: &str) -> bool {
    match here() {
        Ok(Hierarchy::V2(root)) => root.join(path.trim_start_matches('/')).join(file).exists(),
        Ok(Hierarchy::V1(_) | Hierarchy::None) | Err(_) => false,
    }
}

/// Whether groups below one can be bounded in huge pages of a size, in the notation of the files.
#[must_use]
pub fn bounds_pages(path: &str, page: &str) -> bool {
    match here() {
        Ok(Hierarchy::V1(mounts)) => {
            let top = dir_v1(mounts, "hugetlb", "/");
            top.is_some_and(|top| top.join(format!("hugetlb.{page}.limit_in_bytes")).exists())
        }
        Ok(Hierarchy::V2(_)) => bounds(path, &format!("hugetlb.{page}.max")),
        Ok(Hierarchy::None) | Err(_) => false,
    }
}

/// The control group that this process is in; none where it is in none of its own.
#[must_use]
pub fn own() -> Option<String> {
    own_in(&String::from_utf8_lossy(&fs::read("/proc/self/cgroup").ok()?))
}

fn own_in(text: &str) -> Option<String> {
    let fields = text.lines().filter_map(|l| l.split_once(':')?.1.split_once(':'));
    let of_memory = |controllers: &str| controllers.split(',').any(|c| c == "memory");
    // The newer hierarchy names no controllers.
    let mut paths: Vec<(bool, &str)> =
        fields.filter(|(c, _)| c.is_empty() || of_memory(c)).map(|(c, path)| (c.is_empty(), path)).collect();
    paths.sort_unstable();
    paths.first().map(|(_, path)| (*path).to_owned()).filter(|path| !path.trim_matches('/').is_empty())
}

/// The parent to give to the runtime for a pod that has a sandbox: its group is there, and is limited as it was last told.
///
/// # Errors
/// As of [`parent`], where the group is not there.
pub fn parent_of_running(cgroup: &PodCgroup) -> io::Result<String> {
    let below = |root: &Path| root.join(cgroup.path.trim_start_matches('/')).is_dir();
    let there = match here()? {
        Hierarchy::V1(mounts) => mounts.iter().filter(|(c, _)| c == "cpu" || c == "memory").all(|(_, m)| below(m)),
        Hierarchy::V2(root) => below(root),
        Hierarchy::None => false,
    };
    if there { Ok(cgroup.path.clone()) } else { parent(cgroup) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies() {
        let v1 = "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                  31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n";
        let v2 = "30 25 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = format!("{v1}32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let of_v1 = Hierarchy::V1(vec![
            ("memory".into(), "/sys/fs/cgroup/memory".into()),
            ("cpu".into(), "/sys/fs/cgroup/cpu,cpuacct".into()),
            ("cpuacct".into(), "/sys/fs/cgroup/cpu,cpuacct".into()),
        ]);
        for (text, expected) in [
            (v1, of_v1.clone()),
            (hybrid.as_str(), of_v1),
            (v2, Hierarchy::V2("/sys/fs/cgroup".into())),
            ("", Hierarchy::None),
        ] {
            assert_eq!(hierarchy(mounts::parse(text.as_bytes())), expected);
        }
    }

    #[test]
    fn a_pods_first_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(first_process_in(&dir.path().join("none")), None);
        assert_eq!(first_process_in(dir.path()), None);
        // A process of another namespace has no number here.
        for (group, procs) in [("", "5\n"), ("a", "40\n70\n"), ("b", "0\n30\n"), ("c", ""), ("c/own", "7\n")] {
            fs::create_dir_all(dir.path().join(group)).unwrap();
            fs::write(dir.path().join(group).join("cgroup.procs"), procs).unwrap();
        }
        assert_eq!(first_process_in(dir.path()), Some(30));
    }

    #[test]
    fn a_pod_runs_outside_of_its_group_only_where_no_group_may_be_made() {
        use rustix::io::Errno;

        for (errno, expected) in [
            (Errno::ROFS, true),
            (Errno::ACCESS, true),
            (Errno::PERM, true),
            (Errno::BUSY, false),
            (Errno::INVAL, false),
            (Errno::NOSPC, false),
            (Errno::NOMEM, false),
            (Errno::NOENT, false),
            (Errno::AGAIN, false),
        ] {
            assert_eq!(is_barred(&errno.into()), expected, "{errno}");
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v2");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("full"), "").unwrap();
        let parent = |hierarchy: &Hierarchy, path: &str| {
            let cgroup = PodCgroup { path: path.into(), resources: crate::runtime::Resources::default() };
            parent_in(hierarchy, &cgroup).map_err(|error| error.kind())
        };
        let v2 = Hierarchy::V2(root);
        assert_eq!(parent(&v2, "/kubepods/podu"), Ok("/kubepods/podu".to_owned()));
        assert_eq!(parent(&v2, "/full/podu"), Err(io::ErrorKind::AlreadyExists));
        assert_eq!(parent(&Hierarchy::None, "/kubepods/podu"), Ok(String::new()));
    }

    #[test]
    fn memory_is_read_from_either_hierarchy() {
        let (v1, v2) = (MEMORY_V1, MEMORY_V2);
        for (files, most, expected) in [
            (v2, "1000", Some((1000, 70))),
            (v2, "max", None),
            (v2, "", None),
            (v1, "1000", Some((1000, 60))),
            (v1, "9223372036854771712", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let write = |file: &str, text: &str| fs::write(dir.path().join(file), format!("{text}\n")).unwrap();
            write(files[0], most);
            write(files[1], "100");
            write("memory.stat", "anon 5\ninactive_file 30\ntotal_inactive_file 40");
            assert_eq!(memory_of(dir.path(), files), expected, "{files:?} {most}");
        }
    }

    #[test]
    fn who_is_held_back_is_read_from_either_hierarchy() {
        let (v1, v2) = (("throttled_time ", 1), ("throttled_usec ", 1000));
        let found = Some(Throttling { periods: 9, throttled: 2, throttled_ns: 5000 });
        for (names, text, expected) in [
            (v1, "nr_periods 9\nnr_throttled 2\nthrottled_time 5000\n", found),
            (v2, "usage_usec 7\nnr_periods 9\nnr_throttled 2\nthrottled_usec 5\nnr_bursts 0\n", found),
            // Without a quota nothing is counted.
            (v2, "usage_usec 7\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n", None),
            (v2, "usage_usec 7\n", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("cpu.stat"), text).unwrap();
            assert_eq!(throttling_in(dir.path(), names), expected, "{text}");
        }
    }

    #[test]
    fn a_process_knows_its_group() {
        for (text, expected) in [
            ("0::/system.slice/kubelet.service\n", Some("/system.slice/kubelet.service")),
            ("4:memory:/a\n3:cpu,cpuacct:/b\n0::/\n", Some("/a")),
            ("4:cpu,memory:/a:b\n", Some("/a:b")),
            ("0::/\n", None),
            ("3:cpu:/b\n", None),
        ] {
            assert_eq!(own_in(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn shares_are_weights_as_upstream_has_them() {
        for (has, expected) in [
            (i64::MIN, 1),
            (0, 1),
            (2, 1),
            (3, 2),
            (102, 17),
            (512, 59),
            (1024, 100),
            (2000, 170),
            (4096, 303),
            (262_144, 10_000),
            (i64::MAX, 10_000),
        ] {
            let least = shares(expected);
            assert_eq!(weight(has), expected, "{has}");
            assert!(weight(least) == expected && (least == 2 || weight(least - 1) < expected), "{has}: {least}");
        }
        // What no shares have.
        assert_eq!((shares(0), shares(i64::MAX)), (2, 262_144));
    }

    #[test]
    fn a_group_is_bounded_in_processes_where_that_can_be() {
        use rustix::io::Errno;

        let dir = tempfile::tempdir().unwrap();
        let (there, lacking) = (dir.path().join("there"), dir.path().join("pids.max"));
        fs::write(&there, "max").unwrap();
        for (errno, file, expected) in [
            (None, &lacking, true),
            (Some(Errno::ACCESS), &lacking, true),
            (Some(Errno::PERM), &lacking, true),
            (Some(Errno::BUSY), &lacking, false),
            // Nobody here may bound anything.
            (Some(Errno::ACCESS), &there, false),
        ] {
            let written = errno.map_or(Ok(()), |errno| Err(errno.into()));
            assert_eq!(unless_lacking(written, file).is_ok(), expected, "{errno:?} {}", file.display());
        }
    }

    /// What is kept back in one life of the kubelet need not be in the next.
    #[test]
    fn a_bound_that_is_not_asked_for_any_more_goes() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = |name: &str| (name.to_owned(), dir.path().join("v1").join(name));
        let root = dir.path().join("v2");
        fs::create_dir(&root).unwrap();
        let hierarchies = [Hierarchy::V1(vec![v1("cpu"), v1("memory"), v1("pids")]), Hierarchy::V2(root)];
        let group = |memory_limit_bytes, pids| {
            let resources =
                crate::runtime::Resources { memory_limit_bytes, pids, ..crate::runtime::Resources::default() };
            PodCgroup { path: "/kubepods".into(), resources }
        };
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).ok();
        for (memory, pids, v1, v2) in [
            // What was never bounded is not written.
            (0, None, (None, None), (None, None)),
            (1 << 30, Some(7), (Some("1073741824"), Some("7")), (Some("1073741824"), Some("7"))),
            (0, Some(7), (Some("-1"), Some("7")), (Some("max"), Some("7"))),
            (1 << 20, None, (Some("1048576"), Some("max")), (Some("1048576"), Some("max"))),
            (0, None, (Some("-1"), Some("max")), (Some("max"), Some("max"))),
        ] {
            for hierarchy in &hierarchies {
                write_in(hierarchy, &[group(memory, pids)]).unwrap();
            }
            let found = (read("v1/memory/kubepods/memory.limit_in_bytes"), read("v1/pids/kubepods/pids.max"));
            assert_eq!((found.0.as_deref(), found.1.as_deref()), v1, "{memory} {pids:?}");
            let found = (read("v2/kubepods/memory.max"), read("v2/kubepods/pids.max"));
            assert_eq!((found.0.as_deref(), found.1.as_deref()), v2, "{memory} {pids:?}");
        }
    }

    #[test]
    fn a_group_that_cannot_be_written_keeps_no_other_from_it() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("full"), "").unwrap();
        let group = |path: &str| PodCgroup { path: path.into(), resources: crate::runtime::Resources::default() };
        let v2 = Hierarchy::V2(root.path().to_owned());
        assert!(write_in(&v2, &[group("/full/a"), group("/b")]).is_err());
        assert!(root.path().join("b/cpu.weight").exists());
    }

    #[test]
    fn limits_are_written_for_either_hierarchy() {
        let resources = crate::runtime::Resources {
            cpu_period_us: 100_000,
            cpu_quota_us: 50_000,
            cpu_shares: 512,
            memory_limit_bytes: 64 << 20,
            pids: Some(77),
            ..crate::runtime::Resources::default()
        };
        let limited = PodCgroup { path: "/kubepods/burstable/podu".into(), resources };
        let free = PodCgroup { path: "/kubepods/podv".into(), resources: crate::runtime::Resources::default() };
        let dir = tempfile::tempdir().unwrap();
        let v1 = |name: &str| (name.to_owned(), dir.path().join("v1").join(name));
        let (root, mounts) = (dir.path().join("v2"), vec![v1("cpu"), v1("memory"), v1("pids")]);
        fs::create_dir_all(&root).unwrap();
        for cgroup in [&limited, &free] {
            make_v1(&mounts, cgroup).unwrap();
            make_v2(&root, cgroup).unwrap();
        }
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).ok();
        for (path, want) in [
            ("v1/cpu/kubepods/burstable/podu/cpu.shares", Some("512")),
            ("v1/cpu/kubepods/burstable/podu/cpu.cfs_quota_us", Some("50000")),
            ("v1/memory/kubepods/burstable/podu/memory.limit_in_bytes", Some("67108864")),
            ("v1/pids/kubepods/burstable/podu/pids.max", Some("77")),
            ("v1/pids/kubepods/podv/pids.max", None),
            ("v2/kubepods/burstable/podu/pids.max", Some("77")),
            ("v1/cpu/kubepods/podv/cpu.shares", Some("2")),
            ("v1/cpu/kubepods/podv/cpu.cfs_quota_us", None),
            ("v1/memory/kubepods/podv/memory.limit_in_bytes", None),
            ("v2/kubepods/burstable/podu/cpu.weight", Some("59")),
            ("v2/kubepods/burstable/podu/cpu.max", Some("50000 100000")),
            ("v2/kubepods/burstable/podu/memory.max", Some("67108864")),
            ("v2/kubepods/podv/cpu.weight", Some("1")),
            ("v2/kubepods/podv/memory.max", None),
            // Controllers are passed on at every level above the pod.
            ("v2/kubepods/burstable/cgroup.subtree_control", Some("+hugetlb")),
            ("v2/kubepods/burstable/podu/cgroup.subtree_control", None),
        ] {
            assert_eq!(read(path).as_deref(), want, "{path}");
        }
        // What was written is read back, and what is not limited has no limit.
        for (group, file, text) in [
            ("v1/cpu/kubepods/podv", "cpu.cfs_period_us", "100000"),
            ("v1/cpu/kubepods/podv", "cpu.cfs_quota_us", "-1"),
            ("v1/memory/kubepods/podv", "memory.limit_in_bytes", "9223372036854771712"),
            ("v1/memory/kubepods/podv", "memory.usage_in_bytes", "4096"),
            ("v1/memory/kubepods/burstable/podu", "memory.usage_in_bytes", "4096"),
            ("v2/kubepods/podv", "cpu.max", "max 100000"),
            ("v2/kubepods/podv", "memory.max", "max"),
            ("v2/kubepods/podv", "memory.current", "4096"),
            ("v2/kubepods/burstable/podu", "memory.current", "4096"),
        ] {
            fs::write(dir.path().join(group).join(file), text).unwrap();
        }
        let of = |cpu_quota_us, cpu_shares, memory_limit_bytes| {
            let limits = GroupLimits { cpu_period_us: 100_000, cpu_quota_us, cpu_shares, memory_limit_bytes };
            Reading { limits: Some(limits), memory_bytes: Some(4096), ..Reading::default() }
        };
        for (path, quota, shares, memory) in
            [("/kubepods/burstable/podu", 50_000, 512, 64 << 20), ("/kubepods/podv", 0, 2, 0)]
        {
            assert_eq!(read_v1(&mounts, path).unwrap(), of(quota, shares, memory), "{path}");
            let read = read_v2(&root, path).unwrap();
            // Shares are rounded to what has the same weight.
            let has = read.limits.unwrap().cpu_shares;
            assert_eq!(weight(has), weight(shares), "{path}");
            assert_eq!(read, of(quota, has, memory), "{path}");
        }
        assert_eq!(read_v1(&mounts, "/kubepods/podw").unwrap(), Reading::default());
        assert_eq!(read_v2(&root, "/kubepods/podw").unwrap(), Reading::default());
    }
}
