//! One run of a driver, which ends with whoever called it.
//!
//! A call that goes on when its caller is dead, or may not act any more, would take effect beside the calls of its successor:
//! a disk would be detached that was attached again meanwhile. So each run is a process group of its own, and in it sits a
//! watcher, which waits on a pipe that the caller alone holds open. Where the pipe ends without a word, because the caller
//! died, gave up waiting or dropped the call, the watcher kills the group, itself included. What a driver leaves behind when
//! it has ended (a file system in user space, say) goes on, whether its caller has heard of that or not, and even where it holds
//! the driver's outputs.
//!
//! A caller that is stopped (`SIGSTOP`) keeps its pipe open. So one that may call for a time only, because it leads for that long,
//! says through the pipe how long that is, and again each time that it becomes longer; when the time is over the watcher kills,
//! too, whatever became of the caller.
//!
//! It takes a shell, and no code that runs between fork and exec: `PR_SET_PDEATHSIG` would end the driver alone and not what it
//! started, and goes by the thread that forked. What it cannot do: a driver that waits in the kernel (for a disk that does not
//! answer) is not ended by being killed. A call that takes too long
//! is answered a few seconds later then, and says so; what its program still does it does beside the calls that come after it.

#![expect(clippy::disallowed_methods, reason = "a shell: it tells a program how long it may run")]

use std::convert::Infallible;
use std::future::pending;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use carrack_disks::{DiskError, io_error};
use carrack_processes::group::{self, Group};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;

/// Becomes the driver, its first argument, beside a watcher of the pipe that is its input. A line of it is for how many seconds
/// more the driver may run, or empty when it has ended. A driver that has ended is gone, or its parent has not heard of it.
const BESIDE_A_WATCHER: &str = r#"exec 3<&0 </dev/null
over() { case "$(cat /proc/$$/stat)" in ''|*') Z '*) ;; *) kill -KILL 0 ;; esac; }
( clock=; { while read -r seconds <&3; do
  [ -z "$clock" ] || kill "$clock"
  [ -n "$seconds" ] || exit 0
  { sleep "$seconds"; over; } & clock=$!
done
[ -z "$clock" ] || kill "$clock"
over; } >/dev/null 2>&1 & )
exec 3<&- "$0" "$@""#;

/// Most that a driver may say on each of its outputs, in bytes.
const MAX_OUTPUT: usize = 64 << 10;
/// How long outputs are still read when the driver has ended and something that it left behind holds them: what it said itself
/// is there by then.
const MORE: Duration = Duration::from_millis(200);
/// How long is waited for what was killed.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Until when calls may run, where that is limited.
pub type Until = watch::Receiver<Option<Instant>>;

/// A driver that runs, with all that it started. The watcher kills them, too; the group does it before anything else is called. The
/// watcher is a member of the group, so that nobody else's group has that number.
struct Run {
    group: Group,
    /// The watcher's pipe.
    alive: std::io::PipeWriter,
}

impl Run {
    /// The driver has ended.
    fn ended(mut self) {
        self.group.ended();
        // The driver may have ended its watcher itself.
        let _gone = self.alive.write_all(b"\n");
    }

    /// Tells the watcher until when the driver may run, as often as that changes. It never ends.
    async fn bound(&self, until: Option<Until>) -> Infallible {
        let Some(mut until) = until else { return pending().await };
        loop {
            let at = *until.borrow_and_update();
            if let Some(at) = at {
                let rest = at.saturating_duration_since(Instant::now());
                // A watcher that is gone has nobody to watch.
                let _gone = (&self.alive).write_all(format!("{:.3}\n", rest.as_secs_f64()).as_bytes());
            }
            if until.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// Kills the driver and all that it started. Returns whether they are gone.
    async fn end(self, driver: &mut Child) -> bool {
        self.group.kill();
        let gone = async {
            // Only then it is no member of its group any more.
            let reaped = driver.wait().await.is_ok();
            while !self.group.is_gone() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            reaped
        };
        tokio::time::timeout(GONE_WITHIN, gone).await.unwrap_or(false)
    }
}

/// Runs a driver to its end. Returns its exit code, none if it was killed, and what it wrote on both outputs. When this is
/// dropped, or this process ends, what runs of the call is killed.
///
/// # Errors
/// It cannot be run, or takes too long.
pub(crate) async fn run(
    driver: &Path,
    args: &[String],
    limit: Duration,
    until: Option<Until>,
) -> Result<(Option<i32>, String), DiskError> {
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
    let mut child = command.spawn().map_err(io_error(format!("running {name}")))?;
    // The command holds the pipe's other end.
    drop(command);
    let run = Run { group: Group::of(&child), alive: alive.into() };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut text, mut complaints) = (Vec::new(), Vec::new());
    let status = {
        let mut outputs = pin!(async {
            tokio::join!(group::read(out, MAX_OUTPUT, &mut text), group::read(err, MAX_OUTPUT, &mut complaints))
        });
        let ends = async {
            tokio::select! {
                status = child.wait() => (status, false),
                _ = outputs.as_mut() => (child.wait().await, true),
            }
        };
        let ended = tokio::select! {
            ended = tokio::time::timeout(limit, ends) => ended,
            never = run.bound(until) => match never {},
        };
        let Ok((status, all)) = ended else {
            return Err(match run.end(&mut child).await {
                true => DiskError::TimedOut(limit.as_secs()),
                false => DiskError::Failed(format!(
                    "no answer within {} s, and what was killed then is still there: it waits in the kernel",
                    limit.as_secs()
                )),
            });
        };
        run.ended();
        if !all && tokio::time::timeout(MORE, outputs).await.is_err() {
            tracing::debug!(driver = %name, "what it left behind holds its outputs");
        }
        status.map_err(io_error(format!("waiting for {name}")))?
    };
    text.extend(complaints);
    text.truncate(MAX_OUTPUT);
    Ok((status.code(), String::from_utf8_lossy(&text).trim().to_owned()))
}
