//! Regular expressions in the syntax of Go's `regexp`, which is what Kubernetes' schemas and expressions are written in.
//!
//! Rust's differs where it matters: there `\w`, `\d`, `\s` and `\b` are of all of Unicode (so that more matches, and a counted
//! repetition of them is huge), a `[` within brackets opens a set of its own, and `&&`, `--` and `~~` within brackets are
//! operators. A pattern is rewritten to mean what it means in Go. <https://github.com/google/re2/wiki/Syntax>
//!
//! Not taken over: a `{` that begins no repetition is an error here and a letter in Go, `\B` is of all of Unicode, and octal
//! escapes are refused.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Bytes that the program of a pattern may take.
const MAX_BYTES: usize = 1 << 20;
/// The same for a pattern that comes with the value that is looked at, and is compiled for it.
pub(crate) const MAX_BYTES_OF_VALUE: usize = 1 << 18;

/// Compiles a pattern of a schema or an expression.
///
/// # Errors
/// What is wrong with it, or that its program is too large.
pub fn pattern(text: &str) -> Result<Regex, String> {
    bounded(text, MAX_BYTES)
}

/// The same with another bound on its program.
pub(crate) fn bounded(text: &str, max_bytes: usize) -> Result<Regex, String> {
    RegexBuilder::new(&translated(text))
        .size_limit(max_bytes)
        .dfa_size_limit(MAX_BYTES)
        .build()
        .map_err(|error| error.to_string())
}

/// The set that a letter behind a backslash stands for.
fn set(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => r"[\t\n\f\r ]",
        'S' => r"[^\t\n\f\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

fn translated(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => escape(&mut out, &mut rest, false),
            '[' => brackets(&mut out, &mut rest),
            other => out.push(other),
        }
    }
    out
}

/// What follows a backslash.
fn escape(out: &mut String, rest: &mut Peekable<Chars<'_>>, in_brackets: bool) {
    match rest.next() {
        Some('Q') if !in_brackets => literal(out, rest),
        // As much as a word has in Go's eyes.
        Some('b') if !in_brackets => out.push_str(r"(?-u:\b)"),
        Some(letter) => match set(letter) {
            Some(set) => out.push_str(set),
            None => out.extend(['\\', letter]),
        },
        None => out.push('\\'),
    }
}

/// `\Q…\E`, or to the end.
fn literal(out: &mut String, rest: &mut Peekable<Chars<'_>>) {
    while let Some(c) = rest.next() {
        if c == '\\' && rest.next_if_eq(&'E').is_some() {
            return;
        }
        out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }
}

/// A set in brackets, up to its end.
fn brackets(out: &mut String, rest: &mut Peekable<Chars<'_>>) {
    out.push('[');
    out.extend(rest.next_if_eq(&'^'));
    // In the first place it is one of the set.
    if rest.next_if_eq(&']').is_some() {
        out.push_str(r"\]");
    }
    let mut before = None;
    while let Some(c) = rest.next() {
        match c {
            ']' => {
                out.push(c);
                return;
            }
            '\\' => escape(out, rest, true),
            // `[:alpha:]` is a set in both.
            '[' if rest.peek() != Some(&':') => out.push_str(r"\["),
            '[' => {
                out.push(c);
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '&' | '~' | '-' if before == Some(c) => out.extend(['\\', c]),
            other => out.push(other),
        }
        before = Some(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        for (text, matching, other) in [
            (r"^\w+$", "az_09", "é"),
            (r"^\d+$", "42", "٤٢"),
            (r"^\s$", "\t", "\u{a0}"),
            (r"^\S+\s\S$", "é x", "x\u{b}x"),
            (r"^[\w.-]+$", "a.b-c", "ä"),
            (r"^[^\W_]+$", "ab", "a_b"),
            (r"^[^[]*$", "a]b", "a[b"),
            (r"^[]a]+$", "]a", "b"),
            (r"^[^]a]+$", "b", "]"),
            (r"^[a&&b]+$", "a&b", "c"),
            (r"^[a~~b]+$", "a~b", "c"),
            (r"^[+--]+$", "+,-", "."),
            (r"^[[:alpha:]\-x[]+$", "a-[", "1"),
            (r"^\Qa.b\E+$", "a.bb", "axb"),
            (r"^\w{1,253}$", "name", ""),
            (r"(^|\b)x\b", "xé", "xy"),
            (r"^\p{Greek}\pL\x{41}$", "αßA", "aßA"),
            (r"^a.b$", "aéb", "a\nb"),
        ] {
            let regex = pattern(text).expect(text);
            assert!(regex.is_match(matching), "{text} {matching:?}");
            assert!(!regex.is_match(other), "{text} {other:?}");
        }
        for text in ["(", "[", "a{2,1}", r"\", "[z-a]"] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }
}
