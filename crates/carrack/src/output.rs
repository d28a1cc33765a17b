//! Printing data: as text for people, as JSON or YAML for programs.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use serde::Serialize;

/// `-o`
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// Prints `value` in `format`, or `text` without one.
///
/// # Errors
/// Standard output is closed. A reader that hung up (`| head`) is no error.
pub fn print(format: Option<Format>, value: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    let mut out = match format {
        None => text(),
        Some(Format::Json) => serde_json::to_string_pretty(value).context("cannot write JSON")?,
        Some(Format::Yaml) => serde_saphyr::to_string(value).context("cannot write YAML")?,
    };
    if !out.ends_with('\n') {
        out.push('\n');
    }
    write_all(out.as_bytes())
}

/// Writes bytes to standard output, at once.
///
/// # Errors
/// Standard output is closed. A reader that hung up is no error.
pub fn write_all(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Whether to use colours and moving lines: on a terminal, unless `NO_COLOR` asks for neither.
pub fn is_fancy() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
