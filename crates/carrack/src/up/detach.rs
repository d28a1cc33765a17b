#![expect(clippy::disallowed_methods, reason = "shell: starts a process and waits for it with a deadline")]
//! `carrack up --detach`: the same program once more, in a session of its own, with its output in a log.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Layout, containerd, host};

use super::report::{self, Line};
use crate::cli::up::UpArgs;
use crate::progress::Progress;

/// The log is put aside at a start when it has grown above this.
const LOG_LIMIT_BYTES: u64 = 64 << 20;

/// Starts the cluster in the background, and returns when its node is ready. One that runs already is left alone.
pub fn run(args: &UpArgs) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    if let Some(running) = ProcessId::from_pidfile(&layout.pidfile()) {
        eprintln!("the cluster in {} runs already (pid {})", layout.data_dir().display(), running.pid);
        return Ok(());
    }
    if let Err(problems) = host::probe(&layout) {
        return super::refuse(&problems);
    }
    let mut child = start(&layout)?;
    let mut progress = Progress::new();
    progress.step("starting");
    match wait(&layout, &mut child, &mut progress, Duration::from_secs(args.timeout))? {
        Some(text) => {
            progress.finish();
            eprintln!("{text}");
            eprintln!("export KUBECONFIG={}", layout.kubeconfig().display());
            Ok(())
        }
        None => bail!(
            "the cluster is not ready after {} s; it goes on trying. Its log: {}",
            args.timeout,
            layout.log_file().display()
        ),
    }
}

fn start(layout: &Layout) -> anyhow::Result<Child> {
    let log_file = layout.log_file();
    let context = || format!("cannot write {}", log_file.display());
    fs::create_dir_all(layout.logs_dir()).with_context(context)?;
    containerd::rotate(&log_file, LOG_LIMIT_BYTES).with_context(context)?;
    let log = OpenOptions::new().create(true).append(true).open(&log_file).with_context(context)?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Command::new("setsid")
        .arg(program)
        .args(std::env::args_os().skip(1).filter(|argument| argument != "--detach" && argument != "-d"))
        .arg("--report")
        // Arenas of the C library's allocator are memory that many threads would hold and few use.
        .env("MALLOC_ARENA_MAX", "2")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the cluster's process")
}

/// Shows the steps until the cluster is ready; `None` when the time is over first.
fn wait(
    layout: &Layout,
    child: &mut Child,
    progress: &mut Progress,
    limit: Duration,
) -> anyhow::Result<Option<String>> {
    let stdout = child.stdout.take().context("the cluster's process has no output")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + limit;
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => match report::parse(&line) {
                Some(Line::Step(text)) => progress.step(text),
                Some(Line::Ready(text)) => return Ok(Some(text.to_owned())),
                None => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            // It closed its output before it was ready: it ended, and its last words are in the log.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().context("cannot wait for the cluster's process")?;
                bail!("the cluster did not start ({status}):\n{}", last_words(layout));
            }
        }
    }
}

/// The end of the log, where the reason stands.
fn last_words(layout: &Layout) -> String {
    let text = fs::read_to_string(layout.log_file()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.iter().rposition(|line| line.starts_with("error: ")) {
        Some(at) => lines[at..].join("\n"),
        None => lines[lines.len().saturating_sub(5)..].join("\n"),
    }
}
