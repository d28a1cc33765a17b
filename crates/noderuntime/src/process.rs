#![expect(clippy::disallowed_methods, reason = "shell: waits for processes with a deadline")]
//! A process, named so that it cannot be mistaken for a later one with the same number.
//!
//! A pid alone is reused; together with the boot id and the start time it is not. A [`ProcessId`] is written to a
//! pidfile as one line, `<pid> <start in ticks since boot> <boot id>`. Signals go through a pidfd opened *before* the
//! start time is compared, so that the process that is compared is the one that is signalled.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process of this machine, for all time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessId {
    /// The process's number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The kernel's boot id.
    pub boot_id: String,
}

impl ProcessId {
    /// The process that has `pid` now, or `None` where there is none or it is a zombie.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = shown(pid, "stat").ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        (state != 'Z' && state != 'X').then(|| Self { pid, start_ticks, boot_id: boot_id() })
    }

    /// Whether this very process runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// How long this process has run, by the machine's time since its boot; `None` where that is not shown.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let up_s: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let began_s = self.start_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Duration::try_from_secs_f64(up_s - began_s).ok()
    }

    /// A handle on this very process, or `None` where it is gone.
    ///
    /// # Errors
    /// The kernel refused a handle for another reason than the process's absence.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(None);
        };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(self.is_alive().then_some(handle))
    }

    /// Whether `other` is this very process, or one in the session that this one led. This one may have ended: a session's
    /// number is not given to another process while somebody is in it, and one that has it afterwards is not this one.
    #[must_use]
    pub fn leads(&self, other: &Self) -> bool {
        let stat = shown(other.pid, "stat").unwrap_or_default();
        let reused = || Self::of(self.pid).is_some_and(|now| now != *self);
        self == other || (parse_session(&stat) == Some(self.pid) && self.boot_id == other.boot_id && !reused())
    }

    /// Asks the process to end (SIGTERM), waits up to `grace`, then kills it and waits for that, 5 s at most.
    /// Returns once the process is gone.
    ///
    /// # Errors
    /// No handle, no permission, or the process outlived SIGKILL by 5 s (it hangs in the kernel).
    pub fn terminate(&self, grace: Duration) -> io::Result<()> {
        let Some(handle) = self.open()? else {
            return Ok(());
        };
        if !grace.is_zero() {
            send(&handle, Signal::TERM)?;
            if wait_exit(&handle, grace)? {
                return Ok(());
            }
        }
        send(&handle, Signal::KILL)?;
        if wait_exit(&handle, Duration::from_secs(5))? {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {} survived SIGKILL for 5 s", self.pid)))
    }

    /// Sends SIGKILL, and does not wait for the end. A process that is gone already is no failure.
    ///
    /// # Errors
    /// No handle, or no permission.
    pub fn kill(&self) -> io::Result<()> {
        self.open()?.map_or(Ok(()), |handle| send(&handle, Signal::KILL))
    }

    /// The line of a pidfile.
    #[must_use]
    pub fn to_line(&self) -> String {
        format!("{} {} {}\n", self.pid, self.start_ticks, self.boot_id)
    }

    /// Reads a pidfile's line.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self {
            pid: words.next()?.parse().ok()?,
            start_ticks: words.next()?.parse().ok()?,
            boot_id: words.next()?.to_owned(),
        })
    }

    /// The process that `pidfile` names, if it still runs. A pidfile of another boot or of a dead process names none.
    #[must_use]
    pub fn from_pidfile(pidfile: &Path) -> Option<Self> {
        let line = fs::read_to_string(pidfile).ok()?;
        Self::from_line(&line).filter(Self::is_alive)
    }

    /// Writes the pidfile, whole or not at all.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_pidfile(&self, pidfile: &Path) -> io::Result<()> {
        write_whole(pidfile, &self.to_line())
    }

    /// Writes the pidfile once more, with the word that this process ends. To whoever looks for the process it names the same one.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write_ending(&self, pidfile: &Path) -> io::Result<()> {
        write_whole(pidfile, &format!("{} {ENDING}\n", self.to_line().trim_end()))
    }

    /// Whether the process that `pidfile` names still runs, and has said there that it ends.
    #[must_use]
    pub fn is_ending(pidfile: &Path) -> bool {
        let line = fs::read_to_string(pidfile).unwrap_or_default();
        line.split_whitespace().nth(3) == Some(ENDING) && Self::from_line(&line).is_some_and(|named| named.is_alive())
    }
}

/// The word behind a process in its pidfile, once it ends.
const ENDING: &str = "ending";

fn write_whole(pidfile: &Path, line: &str) -> io::Result<()> {
    let part = pidfile.with_extension("pid.part");
    fs::write(&part, line)?;
    fs::rename(&part, pidfile)
}

fn send(handle: &OwnedFd, signal: Signal) -> io::Result<()> {
    match pidfd_send_signal(handle, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the process behind `handle` has ended; false when `limit` passed first.
///
/// # Errors
/// The kernel's poll failed.
pub fn wait_exit(handle: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(handle, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// State and start time from `/proc/<pid>/stat`. The command's name stands in parentheses and may hold anything,
/// parentheses and spaces included, so fields are counted from the last closing one.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of the file; `state` is field 3, so 18 more lie between.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// The session from `/proc/<pid>/stat`: field 6. 0 for the kernel's own, and for one that began outside what is seen from here.
fn parse_session(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(3)?.parse().ok()
}

/// A file that the kernel shows of a process, as text. A process calls itself and what it mounts as it likes, also in bytes that
/// are no text, and hides from nobody by that.
fn shown(pid: i32, file: &str) -> io::Result<String> {
    fs::read(format!("/proc/{pid}/{file}")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Every process that this machine shows, with its command line. Processes that end while one looks are left out.
#[must_use]
pub fn all() -> Vec<(ProcessId, Vec<String>)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Some(process) = ProcessId::of(pid) else {
            continue;
        };
        let cmdline = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = cmdline.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        found.push((process, words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()));
    }
    found.sort_by_key(|(process, _)| process.pid);
    found
}

/// Whether the root filesystem of `process` is a snapshot below `containerd_root`: then it runs in one of our
/// containers, whoever its parent is by now.
#[must_use]
pub fn is_in_container(process: &ProcessId, containerd_root: &Path) -> bool {
    let Ok(mountinfo) = shown(process.pid, "mountinfo") else {
        return false;
    };
    root_mount_mentions(&mountinfo, containerd_root)
}

/// Whether the mount at `/` in a mountinfo file names a path below `dir`, as its bind source or among overlay's layers.
fn root_mount_mentions(mountinfo: &str, dir: &Path) -> bool {
    let dir = format!("{}/", dir.display());
    mountinfo.lines().any(|line| {
        let mut fields = line.split(' ');
        let source = fields.nth(3).unwrap_or_default();
        let target = fields.next().unwrap_or_default();
        let options = fields.next_back().unwrap_or_default();
        target == "/" && (source.contains(&dir) || options.contains(&dir))
    })
}

/// The path that a pidfile of this kind stands at while it is being written; for cleaning up.
#[must_use]
pub fn part_of(pidfile: &Path) -> PathBuf {
    pidfile.with_extension("pid.part")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_stat_line_is_read_from_its_last_parenthesis() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 9 10";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_session("7 (a) b (c)) S 1 2 3 0 -1"), Some(3));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_stat("7 (a) S 1"), None);
    }

    #[test]
    fn a_process_is_found_by_its_pidfile_until_it_ends_and_never_after() {
        let dir = tempfile::tempdir().expect("a temp dir");
        let pidfile = dir.path().join("x.pid");
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let id = ProcessId::of(i32::try_from(child.id()).expect("a pid")).expect("the child lives");
        id.write_pidfile(&pidfile).expect("pidfile is written");
        assert_eq!(ProcessId::from_pidfile(&pidfile), Some(id.clone()));

        let earlier = ProcessId { start_ticks: id.start_ticks - 1, ..id.clone() };
        assert!(!earlier.is_alive(), "another start time is another process");
        earlier.terminate(Duration::from_secs(1)).expect("nothing to end");
        assert!(id.is_alive(), "the process with the same number was left alone");

        assert!(!ProcessId::is_ending(&pidfile), "it has not said so");
        id.write_ending(&pidfile).expect("pidfile is written");
        assert!(ProcessId::is_ending(&pidfile));
        assert_eq!(ProcessId::from_pidfile(&pidfile), Some(id.clone()), "it is the same process");

        id.terminate(Duration::from_secs(5)).expect("it ends");
        assert!(!id.is_alive());
        assert_eq!(ProcessId::from_pidfile(&pidfile), None);
        assert!(!ProcessId::is_ending(&pidfile), "it has ended");
        child.wait().expect("reaped");
    }

    #[test]
    fn a_process_is_as_old_as_it_is() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let id = ProcessId::of(i32::try_from(child.id()).expect("a pid")).expect("the child lives");
        let (age, since_boot) = (id.age(), ProcessId { start_ticks: 0, ..id.clone() }.age());
        child.kill().and_then(|()| child.wait()).expect("ended");
        // It was just started, give or take a tick; and so long ago the machine was.
        assert!(age.is_none_or(|age| age < Duration::from_secs(60)), "{age:?}");
        assert!(since_boot > age && since_boot.is_some(), "{since_boot:?} {age:?}");
    }

    #[test]
    fn a_process_does_not_hide_behind_its_name() {
        let mut child = Command::new("sh")
            .args(["-c", r"printf '\377' >/proc/$$/comm; echo; read -r line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it has its name");
        let pid = i32::try_from(child.id()).expect("a pid");
        assert!(ProcessId::of(pid).is_some_and(|id| id.is_alive()));
        assert!(all().iter().any(|(id, _)| id.pid == pid));
        drop(child.stdin.take());
        child.wait().expect("reaped");
    }

    #[test]
    fn a_session_is_known_by_its_leader_also_after_its_end() {
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "sleep 1000 & echo $!; read -r line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut said = String::new();
        BufReader::new(leader.stdout.take().expect("piped")).read_line(&mut said).expect("it says a number");
        let id = ProcessId::of(i32::try_from(leader.id()).expect("a pid")).expect("it lives");
        let member = ProcessId::of(said.trim().parse().expect("a number")).expect("it lives");
        let own = ProcessId::of(i32::try_from(std::process::id()).expect("a pid")).expect("it lives");
        assert!(id.leads(&id) && id.leads(&member) && !id.leads(&own));
        drop(leader.stdin.take());
        leader.wait().expect("reaped");
        assert!(id.leads(&member) && !id.leads(&own));
        assert!(!ProcessId { start_ticks: id.start_ticks + 1, ..own.clone() }.leads(&member), "another session");
        member.terminate(Duration::ZERO).expect("it ends");
    }

    #[test]
    fn containers_are_known_by_their_root_mount() {
        let overlay = "1500 1400 0:60 / / rw,relatime - overlay overlay rw,lowerdir=/d/containerd/root/x/1/fs,upperdir=/d/containerd/root/x/2/fs,workdir=/w";
        assert!(root_mount_mentions(overlay, Path::new("/d/containerd/root")));
        assert!(!root_mount_mentions(overlay, Path::new("/d/containerd/roo")));
        let volume = "1501 1500 254:0 /d/containerd/root/y /mnt rw - ext4 /dev/vda rw";
        assert!(!root_mount_mentions(volume, Path::new("/d/containerd/root")));
        let native = "1500 1400 254:0 /d/containerd/root/io.containerd.snapshotter.v1.native/snapshots/1 / rw - ext4 /dev/vda rw";
        assert!(root_mount_mentions(native, Path::new("/d/containerd/root")));
    }
}
