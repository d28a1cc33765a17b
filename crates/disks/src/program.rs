//! Programs of the system, run to their end within a time.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::{DiskError, failed, io_error};

/// How long a program of the system may take; making a file system on a large disk takes long.
pub const LIMIT: Duration = Duration::from_secs(600);
/// Most that a program may say, in bytes.
const MAX_OUTPUT: usize = 64 << 10;

/// Runs a program to its end. Returns its exit code, none if it was killed, and what it wrote on both outputs.
///
/// # Errors
/// When it cannot be run, or takes too long; it is killed then.
pub(crate) async fn program(
    program: &Path,
    args: &[String],
    limit: Duration,
) -> Result<(Option<i32>, String), DiskError> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let name = program.display();
    let run = async {
        let child = command.spawn().map_err(io_error(format!("running {name}")))?;
        child.wait_with_output().await.map_err(io_error(format!("waiting for {name}")))
    };
    let output = tokio::time::timeout(limit, run).await.map_err(|_| DiskError::TimedOut(limit.as_secs()))??;
    let mut text = output.stdout;
    text.extend(output.stderr);
    text.truncate(MAX_OUTPUT);
    Ok((output.status.code(), String::from_utf8_lossy(&text).trim().to_owned()))
}

/// Runs a program of the system and wants it to succeed. Returns what it wrote.
///
/// # Errors
/// When it cannot be run, fails, or takes too long.
pub async fn system(name: &str, args: &[&str]) -> Result<String, DiskError> {
    let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
    match program(Path::new(name), &args, LIMIT).await? {
        (Some(0), text) => Ok(text),
        (code, text) => failed(format!("{name} {}: exit status {}: {text}", args.join(" "), code.unwrap_or(-1))),
    }
}
