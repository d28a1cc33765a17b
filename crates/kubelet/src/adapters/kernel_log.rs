//! What the kernel's log says of a machine that has run out of memory: which process it ended (upstream's `pkg/kubelet/oom`, over
//! cAdvisor's `utils/oomparser`). A container that has used up its own limit is another matter, and is seen by how it ends.
//!
//! The log is anybody's words: processes call themselves as they like, and root may write records. So of a record no more is read
//! than the place of a number and a name, and none but the kernel's own.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

use crate::effects::In;

/// Where the kernel shows its log, one record a read.
const LOG: &str = "/dev/kmsg";
/// The longest record that it gives.
const MOST_BYTES: usize = 8192;
/// How much of a name is told, in characters. The kernel keeps fifteen bytes, and writes one in four characters at most.
const MOST_NAME: usize = 60;

/// Tells of whom the kernel ends from now on. Where nobody here may read the log, that is said once, and nothing is told.
pub(crate) fn follow(report: impl Fn(In) + Send + 'static) -> Option<JoinHandle<()>> {
    let log = match open(Path::new(LOG)) {
        Ok(log) => log,
        Err(error) => {
            tracing::info!(%error, "no event tells of a machine without memory: the kernel's log cannot be read");
            return None;
        }
    };
    Some(tokio::spawn(async move {
        if let Err(error) = read(&log, report).await {
            tracing::warn!(%error, "no event tells any more of a machine without memory: the kernel's log cannot be read");
        }
    }))
}

/// Opens the log behind what it has by now. What has another thing under its name, as some containers do, has no such place.
fn open(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    file.seek(SeekFrom::End(0))?;
    let fd = OwnedFd::from(file);
    #[expect(
        deprecated,
        reason = "sound for an OwnedFd, whose descriptor is its own; the successor needs an unsafe block"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

async fn read(log: &AsyncFd<OwnedFd>, report: impl Fn(In) + Send) -> io::Result<()> {
    let mut record = vec![0; MOST_BYTES];
    loop {
        let mut ready = log.readable().await?;
        match ready.try_io(|log| rustix::io::read(log.get_ref(), &mut record[..]).map_err(io::Error::from)) {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(count)) => {
                if let Some((process, pid)) = victim(&String::from_utf8_lossy(&record[..count])) {
                    report(In::SystemOom { process, pid });
                }
            }
            // Records were overwritten before they were read: the next one is given from here on.
            Ok(Err(error)) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted) => {}
            Ok(Err(error)) => return Err(error),
            // There is no more for now.
            Err(_) => {}
        }
    }
}

/// Whom the kernel has ended for want of memory in the whole machine, if a record says so: its name and number. A record is
/// `priority,number,microseconds,flags;text` (`Documentation/ABI/testing/dev-kmsg`); in the priority is a facility, which is 0 for the
/// kernel's own alone.
fn victim(record: &str) -> Option<(String, u32)> {
    let (head, text) = record.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    if priority >> 3 != 0 {
        return None;
    }
    // Of a group that has used up its own limit it says "Memory cgroup out of memory".
    let (_, killed) = text.lines().next()?.strip_prefix("Out of memory")?.split_once(": Kill")?;
    let (pid, named) = killed.strip_prefix("ed").unwrap_or(killed).strip_prefix(" process ")?.split_once(" (")?;
    // A name may have anything in it, what follows it too.
    let end = [") total-vm:", ") score ", ")"].into_iter().find_map(|after| named.rfind(after))?;
    Some((named[..end].chars().take(MOST_NAME).collect(), pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_the_kernel_has_ended() {
        const AFTER: &str =
            "total-vm:8388608kB, anon-rss:7340032kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:14400kB";
        let long = "x".repeat(5000);
        for (record, expected) in [
            (
                format!("3,1,2,-;Out of memory: Killed process 12 (stress) {AFTER}\n SUBSYSTEM=x\n"),
                Some(("stress", 12)),
            ),
            (format!("3,1,2,-,caller=T1;Out of memory: Killed process 12 (stress) {AFTER}"), Some(("stress", 12))),
            (
                format!("3,1,2,-;Out of memory (oom_kill_allocating_task): Killed process 7 (a b) {AFTER}"),
                Some(("a b", 7)),
            ),
            // Before 5.0.
            (
                "3,1,2,-;Out of memory: Kill process 12 (stress) score 900 or sacrifice child".to_owned(),
                Some(("stress", 12)),
            ),
            // Whoever is ended has chosen its name.
            (format!("3,1,2,-;Out of memory: Killed process 12 () total-vm:) {AFTER}"), Some((") total-vm:", 12))),
            (format!("3,1,2,-;Out of memory: Killed process 12 (: Killed pro) {AFTER}"), Some((": Killed pro", 12))),
            ("3,1,2,-;Out of memory: Killed process 12 (\u{fffd}\\x0a)".to_owned(), Some(("\u{fffd}\\x0a", 12))),
            (format!("3,1,2,-;Out of memory: Killed process 12 ({long}) {AFTER}"), Some((&long[..MOST_NAME], 12))),
            // One group alone.
            (format!("3,1,2,-;Memory cgroup out of memory: Killed process 12 (stress) {AFTER}"), None),
            ("6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task=stress,pid=12,uid=0".to_owned(), None),
            // Somebody's own words.
            (format!("12,1,2,-;Out of memory: Killed process 12 (stress) {AFTER}"), None),
            (format!("6,1,2,-;said: Out of memory: Killed process 12 (stress) {AFTER}"), None),
            (format!("6,1,2,-;x\n Out of memory: Killed process 12 (stress) {AFTER}"), None),
            // Torn.
            ("3,1,2,-;Out of memory: Killed process 12 (stress".to_owned(), None),
            ("3,1,2,-;Out of memory: Killed process 99999999999 (stress) total-vm:1kB".to_owned(), None),
            ("3,1,2,-;Out of memory: Killed process (stress) total-vm:1kB".to_owned(), None),
            ("3,1,2,-;Out of memory: Kill".to_owned(), None),
            ("3,1,2,-;Out of memory".to_owned(), None),
            ("x;Out of memory: Killed process 12 (stress)".to_owned(), None),
            (";".to_owned(), None),
            (String::new(), None),
        ] {
            let found = victim(&record);
            assert_eq!(found.as_ref().map(|(name, pid)| (name.as_str(), *pid)), expected, "{record}");
        }
    }

    #[tokio::test]
    async fn what_is_no_log_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(&dir.path().join("none")).is_err());
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(open(&fifo).is_err());
    }
}
