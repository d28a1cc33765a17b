//! A driver that misbehaves as it is told, for tests: what kubelets and controllers must stand.
//!
//! A file holds one fault a line, `METHOD MODE`. It is read at each call, and each call is written down beside it, in
//! `<file>.calls`. Nothing of this is there without the file's name on the command line.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use tonic::Status;

/// The faults of a driver.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<PathBuf>);

/// What a method does instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It never answers, and does nothing.
    Hang,
    /// It does what it should, and never answers.
    HangAfter,
    /// It fails, and does nothing.
    Fail,
    /// It does what it should, and says that it failed.
    FailAfter,
    /// It says that it did what it should, and did nothing; its answer is empty.
    Lie,
    /// The process ends before anything is done. Only once.
    Exit,
    /// The process ends when it is done, before the answer. Only once.
    ExitAfter,
}

fn mode(name: &str) -> Option<Mode> {
    Some(match name {
        "hang" => Mode::Hang,
        "hang-after" => Mode::HangAfter,
        "fail" => Mode::Fail,
        "fail-after" => Mode::FailAfter,
        "lie" => Mode::Lie,
        "exit" => Mode::Exit,
        "exit-after" => Mode::ExitAfter,
        _ => return None,
    })
}

impl Faults {
    /// Faults of a file; none without one.
    #[must_use]
    pub fn new(file: Option<PathBuf>) -> Self {
        Self(file)
    }

    fn of(&self, method: &str, about: &str) -> Option<Mode> {
        let file = self.0.as_ref()?;
        let mut calls = file.clone().into_os_string();
        calls.push(".calls");
        let written = fs::File::options()
            .create(true)
            .append(true)
            .open(&calls)
            .and_then(|mut log| log.write_all(format!("{method} {about}\n").as_bytes()));
        if let Err(error) = written {
            tracing::warn!(%error, "a call was not written down");
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        let found = text.lines().filter_map(|line| line.split_once(' ')).find(|(of, _)| *of == method)?;
        mode(found.1.trim())
    }

    /// Ends the process, and lets the next one live.
    fn exit(&self) -> ! {
        if let Some(file) = &self.0
            && let Err(error) = fs::remove_file(file)
        {
            tracing::warn!(%error, "the next driver will do the same");
        }
        std::process::exit(3);
    }

    /// Does a method's work, or what it is told instead. The work goes on to its end also when the caller hangs up: a file
    /// system that is half made is worse than none.
    ///
    /// # Errors
    /// The method's own; and those that it is told.
    pub(crate) async fn around<T: Default + Send + 'static>(
        &self,
        method: &str,
        about: &str,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let told = self.of(method, about);
        let outcome = match told {
            Some(Mode::Hang) => std::future::pending().await,
            Some(Mode::Fail) => return Err(Status::internal("told to fail")),
            Some(Mode::Lie) => Ok(T::default()),
            Some(Mode::Exit) => self.exit(),
            Some(Mode::HangAfter | Mode::FailAfter | Mode::ExitAfter) | None => {
                tokio::spawn(work).await.map_err(|e| Status::internal(e.to_string()))?
            }
        };
        match told {
            Some(Mode::HangAfter) => std::future::pending().await,
            Some(Mode::FailAfter) => Err(Status::internal("told to fail, when it was done")),
            Some(Mode::ExitAfter) => self.exit(),
            _ => outcome.map(tonic::Response::new),
        }
    }
}
