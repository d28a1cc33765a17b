//! Printing data: as text for people, as JSON or YAML for programs.

use std::fmt::Display;
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

/// Says a line to the person, on standard error. Where nobody reads it any more (`2>&1 | head`), or the disk is full
/// that it goes to, it is lost: what the command is in the middle of is not left half done for that.
pub fn say(line: impl Display) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// Whether to use colours and moving lines: on a terminal that can show them, unless `NO_COLOR` asks for neither.
pub fn is_fancy() -> bool {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    io::stderr().is_terminal() && shows_colours(&variable("NO_COLOR"), &variable("TERM"))
}

fn shows_colours(no_color: &str, term: &str) -> bool {
    no_color.is_empty() && term != "dumb"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        for (no_color, term, expected) in [
            ("", "xterm-256color", true),
            ("", "", true),
            ("1", "xterm", false),
            // An editor's window, mostly.
            ("", "dumb", false),
        ] {
            assert_eq!(shows_colours(no_color, term), expected, "{no_color:?} {term:?}");
        }
    }
}
