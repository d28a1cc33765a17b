//! The container's first process: it starts the monitor, waits for QEMU's command line, and becomes QEMU.
//!
//! From then on no process of ours is between the guest and the container: as the first process of its
//! namespace QEMU is not affected by the end of the monitor, nor by signals that it has no handler for.
//! A monitor that dies stays behind as a process table entry without memory, since QEMU does not wait for
//! children it does not know.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

/// A command line has a few kilobytes.
const LINE_LIMIT_BYTES: u64 = 1 << 20;

/// `arguments` make this program run the monitor.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    match become_qemu(arguments) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(%error, "the launcher failed");
            ExitCode::FAILURE
        }
    }
}

fn become_qemu(arguments: &[String]) -> std::io::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let mut monitor = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(pipe) = monitor.stdout.take() {
        BufReader::new(pipe.take(LINE_LIMIT_BYTES)).read_line(&mut line)?;
    }
    let argv: Vec<String> = match serde_json::from_str(&line) {
        Ok(argv) => argv,
        // No machine was started: the monitor's end is the container's.
        Err(_) => {
            let failed = !monitor.wait()?.success();
            return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
    };
    let Some((program, arguments)) = argv.split_first() else {
        return Err(std::io::Error::other("the monitor sent no command line"));
    };
    let error = Command::new(program).args(arguments).stdin(Stdio::null()).exec();
    monitor.kill()?;
    monitor.wait()?;
    Err(error)
}
