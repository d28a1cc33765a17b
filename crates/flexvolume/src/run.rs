//! One run of a driver, which ends with whoever called it.
//!
//! A call that goes on when its caller is dead, or may not act any more, would take effect beside the calls of its successor:
//! a disk would be detached that was attached again meanwhile. So each run is a process group of its own, and in it sits a
//! watcher, which waits on a pipe that the caller alone holds open. Where the pipe ends without a word, because the caller
//! died, gave up waiting or dropped the call, the watcher kills the group, itself included. What a driver leaves behind when
//! it has answered (a file system in user space, say) goes on.
//!
//! It takes a shell, and no code that runs between fork and exec: `PR_SET_PDEATHSIG` would end the driver alone and not what it
//! started, and goes by the thread that forked. What it cannot do: a caller that is stopped (`SIGSTOP`) keeps its pipe open.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use carrack_disks::{DiskError, io_error};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};

/// Becomes the driver, its first argument, beside a watcher of the pipe that is its input.
const BESIDE_A_WATCHER: &str = r#"exec 3<&0 </dev/null
( { read -r _ <&3 || kill -KILL 0; } >/dev/null 2>&1 & )
exec 3<&- "$0" "$@""#;

/// Most that a driver may say, in bytes.
const MAX_OUTPUT: usize = 64 << 10;

/// A driver that runs, with all that it started.
struct Group {
    pid: Option<Pid>,
    /// The watcher's pipe.
    alive: std::io::PipeWriter,
}

impl Group {
    /// The driver has answered.
    fn ended(mut self) {
        self.pid = None;
        // The driver may have ended its watcher itself.
        let _gone = self.alive.write_all(b"\n");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The watcher would do it, too; this way it is done before anything else is called. It is a member of the group, so
        // that nobody else's group has that number.
        if let Some(pid) = self.pid
            && let Err(error) = kill_process_group(pid, Signal::KILL)
        {
            tracing::debug!(%error, "the processes of a driver are gone");
        }
    }
}

/// Runs a driver to its end. Returns its exit code, none if it was killed, and what it wrote on both outputs. When this is
/// dropped, or this process ends, what runs of the call is killed.
///
/// # Errors
/// It cannot be run, or takes too long.
pub(crate) async fn run(driver: &Path, args: &[String], limit: Duration) -> Result<(Option<i32>, String), DiskError> {
    let name = driver.display();
    let meta = std::fs::metadata(driver).map_err(io_error(format!("running {name}")))?;
    if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
        return Err(DiskError::Failed(format!("running {name}: it is no program")));
    }
    let failed = |error: rustix::io::Errno| io_error(format!("running {name}"))(error.into());
    let (watched, alive) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    let mut command = tokio::process::Command::new("/bin/sh");
    command.args(["-c", BESIDE_A_WATCHER]).arg(driver).args(args).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::from(watched)).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(io_error(format!("running {name}")))?;
    // The command holds the pipe's other end.
    drop(command);
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let group = Group { pid, alive: alive.into() };
    let output = tokio::time::timeout(limit, child.wait_with_output()).await;
    let output = output.map_err(|_| DiskError::TimedOut(limit.as_secs()))?;
    let output = output.map_err(io_error(format!("waiting for {name}")))?;
    group.ended();
    let mut text = output.stdout;
    text.extend(output.stderr);
    text.truncate(MAX_OUTPUT);
    Ok((output.status.code(), String::from_utf8_lossy(&text).trim().to_owned()))
}
