//! Programs of the system, run to their end within a time.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{DiskError, failed, io_error};

/// How long a program of the system may take; making a file system on a large disk takes long.
pub const LIMIT: Duration = Duration::from_secs(600);
/// Most that is kept of what a program says, in bytes: a check of a disk says a line for each thing that it mends there.
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
        let mut child = command.spawn().map_err(io_error(format!("running {name}")))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        tokio::try_join!(child.wait(), said(stdout), said(stderr)).map_err(io_error(format!("waiting for {name}")))
    };
    let ended = tokio::time::timeout(limit, run).await;
    let (status, mut text, complaints) = ended.map_err(|_| DiskError::TimedOut(limit.as_secs()))??;
    text.extend(complaints);
    text.truncate(MAX_OUTPUT);
    Ok((status.code(), String::from_utf8_lossy(&text).trim().to_owned()))
}

/// What a program says, as far as it is kept. The rest is read as well: whoever writes waits for a reader.
async fn said(output: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut output) = output {
        (&mut output).take(MAX_OUTPUT as u64).read_to_end(&mut kept).await?;
        tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_a_program_that_says_much_the_beginning_is_kept() {
        let check = async |script: &str, code: i32, wanted: &str| {
            let args = ["-c".to_owned(), script.to_owned()];
            let (ended, text) = program(Path::new("/bin/sh"), &args, LIMIT).await.expect("it ran");
            assert!(ended == Some(code) && text == wanted, "{script}: {ended:?}, {} bytes", text.len());
        };
        check("echo a; echo b >&2; exit 3", 3, "a\nb").await;
        let much = "x".repeat(MAX_OUTPUT);
        check("head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2", 0, &much).await;
        check("head -c 1000000 /dev/zero | tr '\\0' x >&2", 0, &much).await;
    }
}
