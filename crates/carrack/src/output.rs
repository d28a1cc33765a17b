//! Printing data: as text for people, as JSON or YAML for programs.

use std::borrow::Cow;
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
        None => harmless(&text()).into_owned(),
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
    drop(writeln!(io::stderr(), "{}", harmless(&line.to_string())));
}

/// Text that does nothing to a terminal but show. What objects and servers say is anybody's, and a terminal obeys the
/// escape sequences in it (as of kubectl: CVE-2021-25743).
fn harmless(text: &str) -> Cow<'_, str> {
    let harms = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(harms) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if harms(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
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
    fn terminals_obey_nobody() {
        for (text, shown) in [
            ("a\tb\n", "a\tb\n"),
            ("größer ✓", "größer ✓"),
            ("\u{1b}]0;mine\u{7}x", "\\u{1b}]0;mine\\u{7}x"),
            ("ok\rno", "ok\\u{d}no"),
            ("\u{9b}2J", "\\u{9b}2J"),
        ] {
            assert_eq!(harmless(text), shown, "{text:?}");
        }
    }

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
