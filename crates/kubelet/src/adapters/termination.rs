//! What a container left behind as its last words: its termination message, or the end of its log.
//!
//! Where its message is need not be the kubelet's own file: a device plugin may have something mounted at the same path, and
//! another kubelet a volume of the pod's. What is there may be a pipe, a device that does something as soon as it is opened,
//! endless, or on a server that does not answer. Only files are opened, and nobody waits for long: a listing of all that runs
//! here rests on each answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_cri::v1;
use rustix::fs::{Mode, OFlags};

use super::blocking;
use crate::effects::OpError;
use crate::runtime::labels;

/// Longest termination message, and longest end of a log in its place, in bytes; most lines of it
/// (kubernetes pkg/kubelet/kuberuntime).
const MAX_MESSAGE: u64 = 4096;
const MAX_LOG: usize = 2048;
const MAX_LINES: usize = 80;
/// How much of a log is gone through for them, in bytes.
const MAX_RAW: u64 = 64 << 10;
/// How long a file may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most files that are being read, and most readers of one: each that does not answer keeps a thread for as long as it does not.
const MOST_FILES: usize = 64;
const MOST_READERS: usize = 4;

/// Files that are being read, and by how many.
static READ: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// A file that is being read, until this is dropped.
struct Reader(String);

impl Reader {
    fn all() -> MutexGuard<'static, BTreeMap<String, usize>> {
        // Numbers are put in and taken out whole.
        READ.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None where too many are being read already.
    fn of(path: &str) -> Option<Self> {
        let mut all = Self::all();
        let is_full = all.len() >= MOST_FILES && !all.contains_key(path);
        let readers = all.entry(path.to_owned()).or_default();
        if is_full || *readers >= MOST_READERS {
            all.retain(|_, readers| *readers > 0);
            return None;
        }
        *readers += 1;
        Some(Self(path.to_owned()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut all = Self::all();
        if let Some(readers) = all.get_mut(&self.0) {
            *readers -= 1;
        }
        all.retain(|_, readers| *readers > 0);
    }
}

/// Why a runtime says that a container has ended that never ran, and so has written no log.
const CANNOT_RUN: &str = "ContainerCannotRun";

/// The message of a container that is over: what the runtime says of its end, and what it said itself.
pub(super) async fn message(s: &v1::ContainerStatus) -> String {
    let mut text = String::new();
    if let Some(path) = s.annotations.get(labels::TERMINATION_PATH)
        // What comes last lies uppermost: the kubelet's own file is mounted after the pod's volumes.
        && let Some(m) = s.mounts.iter().rev().find(|m| m.container_path == *path)
    {
        text = end_of(&m.host_path, MAX_MESSAGE).await;
    }
    let fall_back = s.annotations.get(labels::TERMINATION_POLICY).is_some_and(|p| p == "FallbackToLogsOnError");
    if text.is_empty() && fall_back && s.exit_code != 0 && s.reason != CANNOT_RUN {
        text = log_end(&end_of(&s.log_path, MAX_RAW).await);
    }
    // As upstream tells it (`convertToKubeContainerStatus`, `pkg/kubelet/kuberuntime`).
    match (s.message.is_empty(), text.is_empty()) {
        (false, false) => format!("{}: {text}", s.message),
        (false, true) => s.message.clone(),
        (true, _) => text,
    }
}

/// The end of a file (upstream's `tail.ReadAtMost`); nothing where it cannot be read, which is no news of the container.
async fn end_of(path: &str, most: u64) -> String {
    let Some(reader) = Reader::of(path) else { return String::new() };
    let read = blocking(move || last_bytes(&reader.0, most).map_err(|e| OpError::Failed(e.to_string())));
    match tokio::time::timeout(PATIENCE, read).await {
        Ok(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Err(_)) => String::new(),
        Err(_) => {
            tracing::warn!("a container's last words could not be read in time");
            String::new()
        }
    }
}

fn last_bytes(path: &str, most: u64) -> std::io::Result<Vec<u8>> {
    // To be looked at alone: what is no file is not opened.
    let found = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    if !found.metadata()?.is_file() {
        return Ok(Vec::new());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty())?);
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut out = Vec::new();
    file.take(most).read_to_end(&mut out)?;
    Ok(out)
}

/// The last lines' texts of a log in the CRI format, `<time> <stream> <tags> <text>`.
fn log_end(raw: &str) -> String {
    let lines: Vec<&str> = raw.lines().filter_map(|l| l.splitn(4, ' ').nth(3)).collect();
    let text = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    let mut from = text.len().saturating_sub(MAX_LOG);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_do_not_answer_are_not_read_without_end() {
        let readers: Vec<Option<Reader>> = (0..6).map(|_| Reader::of("/hangs")).collect();
        assert_eq!(readers.iter().flatten().count(), MOST_READERS);
        drop(readers);
        assert!(Reader::of("/hangs").is_some());
    }

    #[test]
    fn the_end_of_a_log() {
        assert_eq!(log_end("t stdout F one\nt stderr F two words\n"), "one\ntwo words");
        assert_eq!(log_end("cut off\n"), "");
        let long = format!("t stdout F {}\n", "ü".repeat(2000));
        assert_eq!(log_end(&long).len(), MAX_LOG);
    }

    #[tokio::test]
    async fn last_words() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let log = write("log", "t stdout F first\nt stderr F last\n");
        let (said, silent) = (write("said", "bad luck"), write("silent", ""));
        let long = write("long", &format!("{}{}", "y".repeat(9000), "x".repeat(4096)));
        // What is no file is not waited for.
        let pipe = dir.path().join("pipe").display().to_string();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let missing = dir.path().join("missing").display().to_string();
        let volume = write("volume", "what another container wrote");
        let mounted = |file: &String| v1::Mount {
            container_path: "/dev/termination-log".into(),
            host_path: file.clone(),
            ..v1::Mount::default()
        };
        for (file, policy, code, reason, want) in [
            (&said, "File", 0, "", "bad luck"),
            (&said, "FallbackToLogsOnError", 1, "", "bad luck"),
            (&silent, "File", 1, "", ""),
            (&silent, "FallbackToLogsOnError", 1, "OOMKilled", "first\nlast"),
            // Nothing went wrong, or nothing ran: logs are no message.
            (&silent, "FallbackToLogsOnError", 0, "", ""),
            (&silent, "FallbackToLogsOnError", 128, CANNOT_RUN, ""),
            (&missing, "FallbackToLogsOnError", 2, "", "first\nlast"),
            (&missing, "File", 2, "", ""),
            (&pipe, "File", 2, "", ""),
            (&long, "File", 0, "", &"x".repeat(4096)),
        ] {
            let annotations =
                [(labels::TERMINATION_PATH, "/dev/termination-log"), (labels::TERMINATION_POLICY, policy)];
            let mut status = v1::ContainerStatus {
                exit_code: code,
                reason: reason.into(),
                log_path: log.clone(),
                annotations: annotations.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
                // A volume of the pod's is at the same path, and below what is mounted there later.
                mounts: [&volume, file].map(mounted).into(),
                ..v1::ContainerStatus::default()
            };
            assert_eq!(message(&status).await, want, "{file} {policy} {code} {reason}");
            status.message = "of the runtime".into();
            let both = if want.is_empty() { status.message.clone() } else { format!("of the runtime: {want}") };
            assert_eq!(message(&status).await, both, "{file} {policy} {code} {reason}");
        }
    }
}
