//! Running a command with a limit in time, and looking at what it said.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a command may take unless it says otherwise.
const LIMIT: Duration = Duration::from_secs(120);
/// How long one that is told to end may take, which is how long a drill may take to clear away its cluster.
const END: Duration = Duration::from_secs(60);

/// A command that is about to run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    input: Vec<u8>,
    limit: Duration,
}

/// What a command said.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command, for messages.
    pub line: String,
    /// Its exit status; none when a signal or the limit ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Run {
    /// From a command whose standard streams this takes over.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self { command, input: Vec::new(), limit: LIMIT }
    }

    /// With these arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.command.args(arguments);
        self
    }

    /// With this on standard input; without it, standard input is empty.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// With this limit in time.
    #[must_use]
    pub fn limit_s(mut self, limit_s: u64) -> Self {
        self.limit = Duration::from_secs(limit_s);
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn output(mut self) -> Output {
        let line = format!("{:?}", self.command);
        // Files rather than pipes: a background process that keeps the stream open does not hold us up.
        let stream = || tempfile::tempfile().expect("a temporary file");
        let (mut stdin, mut stdout, mut stderr) = (stream(), stream(), stream());
        stdin
            .write_all(&self.input)
            .and_then(|()| stdin.seek(SeekFrom::Start(0)).map(drop))
            .expect("the input is written");
        let again = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
        self.command.stdin(stdin).stdout(again(&stdout)).stderr(again(&stderr));
        let mut child = self.command.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
        let code = wait(&mut child, self.limit);
        Output { line, code, stdout: text(&mut stdout), stderr: text(&mut stderr) }
    }

    /// Runs it, and asserts that it succeeds. Returns its standard output.
    ///
    /// # Panics
    /// It failed.
    pub fn ok(self) -> String {
        let output = self.output();
        assert_eq!(output.code, Some(0), "{output}");
        output.stdout
    }

    /// Runs it, asserts that it succeeds, and forgets what it said.
    ///
    /// # Panics
    /// It failed.
    pub fn done(self) {
        let output = self.output();
        assert_eq!(output.code, Some(0), "{output}");
    }

    /// Runs it, and asserts that it fails with status 1. Returns what it said on both streams.
    ///
    /// # Panics
    /// It succeeded, or was killed.
    #[must_use]
    pub fn fails(self) -> String {
        let output = self.output();
        assert_eq!(output.code, Some(1), "{output}");
        format!("{}{}", output.stdout, output.stderr)
    }

    /// Starts it and leaves it running.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn spawn(mut self) -> Spawned {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Spawned(self.command.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.command)))
    }
}

/// A command that runs beside its test, and is told to end when this is dropped, also by a test that fails in the middle: nothing
/// would end it otherwise, and it would keep its network namespace.
#[derive(Debug)]
pub struct Spawned(Child);

impl Deref for Spawned {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Spawned {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // Of one that was waited for, the id may be another process's.
        if let Ok(None) = self.0.try_wait() {
            // What a drill has started outlives it when it is killed.
            let _told = kill_process(Pid::from_child(&self.0), Signal::TERM);
            wait(&mut self.0, END);
        }
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}\nended with {:?}\n{}\n{}", self.line, self.code, self.stdout, self.stderr)
    }
}

fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return status.code();
        }
        if Instant::now() >= deadline {
            child.kill().expect("the child is ours");
            child.wait().expect("the child is ours");
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("the output is read");
    String::from_utf8_lossy(&bytes).into_owned()
}
