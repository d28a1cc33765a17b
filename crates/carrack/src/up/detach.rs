#![expect(clippy::disallowed_methods, reason = "shell: starts a process and waits for it with a deadline")]
//! `carrack up --detach`: the same program once more, in a session of its own, with its output in a log.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use carrack_noderuntime::process::ProcessId;
use carrack_noderuntime::{Layout, host};

use super::hold;
use super::report::{self, Line};
use crate::cli::up::UpArgs;
use crate::progress::Progress;
use crate::{log_file, output, roles};

/// How long the cluster's process gets to end when nobody waits for it any more.
const END: Duration = Duration::from_secs(15);

/// What is heard while one waits.
enum Heard {
    /// A line of the cluster's process.
    Line(String),
    /// It closed its output.
    End,
    /// Whoever waits does not want to any more (Ctrl+C).
    Interrupted,
}

/// Starts the cluster in the background, and returns when its node is ready. One that runs already is left alone, unless
/// it is to be replaced: the new process ends it, once it knows that it can go on itself. One that ends is none that runs: the
/// new process waits for its end.
pub fn run(args: &UpArgs) -> anyhow::Result<()> {
    let layout = args.data_dir.layout()?;
    if !args.replace
        && !ProcessId::is_ending(&layout.pidfile())
        && let Some(running) = ProcessId::from_pidfile(&layout.pidfile())
    {
        let pid = running.pid;
        output::say(hold::runs(&layout, pid));
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        if is_another(Path::new(&format!("/proc/{pid}/exe")), &own) {
            output::say(format_args!(
                "it runs another build of this program; to have this one: carrack up --detach --replace, with the \
                 flags that it was started with (containers and guests go on meanwhile)"
            ));
        }
        return Ok(());
    }
    if let Err(problems) = host::probe(&layout) {
        return super::refuse(&problems);
    }
    let (sender, heard) = mpsc::channel();
    interrupted(sender.clone())?;
    let (mut child, log_begins) = start(&layout)?;
    let mut progress = Progress::new();
    progress.step("starting");
    read(&mut child, sender)?;
    let limit = Duration::from_secs(args.timeout);
    match wait(&layout, &mut child, log_begins, &heard, &mut progress, limit)? {
        Some(text) => {
            progress.finish();
            output::say(text);
            output::say(format_args!("export KUBECONFIG={}", layout.kubeconfig().display()));
            Ok(())
        }
        None => bail!(
            "the cluster is not ready after {} s; it goes on trying. Its log: {}",
            args.timeout,
            layout.log_file().display()
        ),
    }
}

/// Whether two programs are surely not the same file.
fn is_another(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((file(one), file(other)), (Ok(one), Ok(other)) if one != other)
}

/// Sends word of SIGINT and SIGTERM, instead of ending by them. The thread ends with the process.
fn interrupted(sender: mpsc::Sender<Heard>) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot listen to signals")?;
    // Listened to before there is anything to end.
    let stop = {
        let _inside = runtime.enter();
        roles::until_signal()?
    };
    std::thread::spawn(move || {
        runtime.block_on(stop.cancelled());
        // Nobody waits any more, where it fails.
        drop(sender.send(Heard::Interrupted));
    });
    Ok(())
}

/// Starts the cluster's process, and returns where in its log that is.
fn start(layout: &Layout) -> anyhow::Result<(Child, u64)> {
    let path = layout.log_file();
    let log = log_file::open(&path)?;
    let begins = log.metadata().with_context(|| format!("cannot look at {}", path.display()))?.len();
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let child = Command::new("setsid")
        .arg(program)
        .args(std::env::args_os().skip(1).filter(|argument| argument != "--detach" && argument != "-d"))
        .arg("--report")
        // Arenas of the C library's allocator are memory that many threads would hold and few use.
        .env("MALLOC_ARENA_MAX", "2")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot start the cluster's process")?;
    Ok((child, begins))
}

/// Reads what the cluster's process says. The thread ends with its output.
fn read(child: &mut Child, sender: mpsc::Sender<Heard>) -> anyhow::Result<()> {
    let stdout = child.stdout.take().context("the cluster's process has no output")?;
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok).map(Heard::Line);
        for heard in lines.chain([Heard::End]) {
            if sender.send(heard).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Shows the steps until the cluster is ready, or another process runs it; `None` when the time is over first.
fn wait(
    layout: &Layout,
    child: &mut Child,
    log_begins: u64,
    heard: &mpsc::Receiver<Heard>,
    progress: &mut Progress,
    limit: Duration,
) -> anyhow::Result<Option<String>> {
    let deadline = Instant::now() + limit;
    loop {
        match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Heard::Line(line)) => match report::parse(&line) {
                Some(Line::Step(text)) => progress.step(text),
                // Of two that wait for the same end, one starts the cluster; to have it is what the other wanted, too.
                Some(Line::Ready(text) | Line::Runs(text)) => return Ok(Some(text.to_owned())),
                None => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            // It closed its output before it was ready: it ended, and its last words are in the log.
            Ok(Heard::End) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().context("cannot wait for the cluster's process")?;
                bail!("the cluster did not start ({status}):\n{}", last_words(&layout.log_file(), log_begins));
            }
            Ok(Heard::Interrupted) => {
                progress.step("ending what was started");
                let started = i32::try_from(child.id()).ok().and_then(ProcessId::of);
                let ended = started.map_or(Ok(()), |process| process.terminate(END));
                ended.context("the cluster's process does not end")?;
                child.wait().context("cannot wait for the cluster's process")?;
                bail!(
                    "ended by a signal before the cluster was ready; carrack up begins again, and carrack down \
                     removes what was begun"
                );
            }
        }
    }
}

/// What this start has said last, where the reason stands. The log before it is another's.
fn last_words(log_file: &Path, begins: u64) -> String {
    let said = || -> io::Result<Vec<u8>> {
        let mut log = File::open(log_file)?;
        log.seek(SeekFrom::Start(begins))?;
        let mut said = Vec::new();
        log.read_to_end(&mut said)?;
        Ok(said)
    };
    let said = match said() {
        Ok(said) => said,
        Err(error) => return format!("its log {} cannot be read: {error}", log_file.display()),
    };
    let text = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return format!("it said nothing, not even why (its log: {})", log_file.display());
    }
    match lines.iter().rposition(|line| line.starts_with("error: ")) {
        Some(at) => lines[at..].join("\n"),
        None => lines[lines.len().saturating_sub(5)..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart_by_their_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new, none) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("none"));
        fs::write(&old, "a").expect("written");
        fs::write(&new, "a").expect("written");
        assert!(is_another(&old, &new) && !is_another(&old, &old));
        assert!(!is_another(&old, &none) && !is_another(&none, &new), "nobody knows");
        let own = std::env::current_exe().expect("this program");
        assert!(!is_another(Path::new(&format!("/proc/{}/exe", std::process::id())), &own));
    }

    #[test]
    fn the_last_words_are_those_of_this_start() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("carrack.log");
        let check = |before: &str, said: &[u8], expected: &str| {
            fs::write(&log, [before.as_bytes(), said].concat()).expect("written");
            let words = last_words(&log, before.len() as u64);
            assert!(words.contains(expected) && !words.contains("yesterday"), "{words}");
        };
        let old = "error: yesterday's\nline\n";
        check(old, b"INFO a\nerror: the port is taken\n", "error: the port is taken");
        check(old, b"INFO a\nthread 'main' panicked\n", "panicked");
        check(old, b"", "said nothing");
        check("", b"\xff\nerror: no text before it\n", "error: no text before it");
        check("", b"error: two lines:\n  of one reason\n", "of one reason");
        assert!(last_words(&dir.path().join("none"), 0).contains("cannot be read"));
    }
}
