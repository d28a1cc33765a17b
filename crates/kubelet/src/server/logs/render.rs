//! From the runtime's log to what a client sees, piece by piece and without holding lines.
//!
//! ```text
//!            ┌──────────── newline ─────────────┐
//!            ▼                                  │
//!   Head(bytes so far) ── third blank ─▶ Text(shown or not) ── bytes go out as they come
//!            │
//!            └── no head of ours ─▶ Junk ── newline ─▶ Head
//! ```
//!
//! Memory is bounded by the longest head; text passes through. A line that the runtime has cut into
//! records comes out whole: the newlines of partial records are dropped, and time and the decision
//! whether it is shown are those of the line's first record.

use super::line::{Head, MAX_HEAD_BYTES, head};
use super::options::{LogOptions, Output};
use carrack_engine::Time;

/// Renders a log.
#[derive(Debug)]
pub(super) struct Render {
    timestamps: bool,
    since: Option<Time>,
    only: Option<Output>,
    left_bytes: u64,
    state: State,
    /// For each output that is in the middle of a line: whether the line is shown.
    open: [Option<bool>; 2],
}

#[derive(Debug)]
enum State {
    Head(Vec<u8>),
    Text { shown: bool, partial: bool },
    Junk,
}

impl Render {
    /// Starts at the beginning of a record.
    pub(super) fn new(options: &LogOptions) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            only: options.only,
            left_bytes: options.limit_bytes.unwrap_or(u64::MAX),
            state: State::Head(Vec::new()),
            open: [None; 2],
        }
    }

    /// Whether all bytes that were asked for are out.
    pub(super) fn is_full(&self) -> bool {
        self.left_bytes == 0
    }

    /// Drops an unfinished record: what comes next is the beginning of another file.
    pub(super) fn restart(&mut self) {
        self.state = State::Head(Vec::new());
    }

    /// Takes the next bytes of the log and appends what is to be shown of them.
    pub(super) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() && !self.is_full() {
            let newline = bytes.iter().position(|b| *b == b'\n');
            let (piece, rest) = bytes.split_at(newline.map_or(bytes.len(), |at| at + 1));
            self.piece(piece, out);
            bytes = rest;
        }
    }

    /// Takes bytes that have a newline at their end or none at all.
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let ends = piece.last() == Some(&b'\n');
        match &mut self.state {
            State::Junk => {}
            State::Text { shown, partial } => {
                let text = if ends && *partial { &piece[..piece.len() - 1] } else { piece };
                if *shown {
                    emit(text, &mut self.left_bytes, out);
                }
            }
            State::Head(so_far) => {
                // The head may have come in parts. What is kept of the piece beyond it is text.
                let had = so_far.len();
                let wanted = MAX_HEAD_BYTES - had;
                so_far.extend_from_slice(&piece[..piece.len().min(wanted)]);
                let line = if so_far.last() == Some(&b'\n') { &so_far[..so_far.len() - 1] } else { &so_far[..] };
                let Some(found) = head(line) else {
                    if ends || so_far.len() >= MAX_HEAD_BYTES {
                        self.state = State::Junk;
                    }
                    self.end_if(ends);
                    return;
                };
                let Some(shown) = begin(&found, &mut self.open, self.since, self.only) else {
                    self.state = State::Junk;
                    self.end_if(ends);
                    return;
                };
                if shown.first && shown.is && self.timestamps {
                    let mut time = Vec::with_capacity(40);
                    found.write_time(&mut time);
                    time.push(b' ');
                    emit(&time, &mut self.left_bytes, out);
                }
                let text_at = found.len - had.min(found.len);
                self.state = State::Text { shown: shown.is, partial: found.partial };
                if text_at < piece.len() {
                    return self.piece(&piece[text_at..], out);
                }
            }
        }
        self.end_if(ends);
    }

    fn end_if(&mut self, ends: bool) {
        if ends {
            self.state = State::Head(Vec::new());
        }
    }
}

struct Shown {
    is: bool,
    first: bool,
}

/// Decides on a record; none where its time is no time.
fn begin(head: &Head<'_>, open: &mut [Option<bool>; 2], since: Option<Time>, only: Option<Output>) -> Option<Shown> {
    let slot = &mut open[usize::from(head.output == Output::Stderr)];
    let continued = *slot;
    let is = match continued {
        Some(is) => is,
        None => {
            let at = head.at()?;
            since.is_none_or(|since| at >= since) && only.is_none_or(|only| only == head.output)
        }
    };
    *slot = head.partial.then_some(is);
    Some(Shown { is, first: continued.is_none() })
}

fn emit(text: &[u8], left_bytes: &mut u64, out: &mut Vec<u8>) {
    let fits = usize::try_from(*left_bytes).unwrap_or(usize::MAX).min(text.len());
    out.extend_from_slice(&text[..fits]);
    *left_bytes -= fits as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2016-10-06T00:17:01Z stdout F one
2016-10-06T00:17:02.5Z stderr F two
not a line of ours
2016-10-06T00:17:03Z stdout P three, \n\
2016-10-06T00:17:04Z stdout P in parts, \n\
2016-10-06T00:17:05Z stdout F ends
2016-13-06T00:17:05Z stdout F in no month
2016-10-06T00:17:06Z stdout F \n\
2016-10-06T00:17:07Z stdout F last";

    fn render(options: &LogOptions, log: &[u8], step: usize) -> String {
        let (mut render, mut out) = (Render::new(options), Vec::new());
        for part in log.chunks(step) {
            render.feed(part, &mut out);
        }
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn shows_what_is_asked_for_however_it_comes() {
        let none = LogOptions::default;
        let since = |text: &str| Some(Time::parse(text).expect("time"));
        for (options, expected) in [
            (none(), "one\ntwo\nthree, in parts, ends\n\nlast"),
            (
                LogOptions { timestamps: true, since: since("2016-10-06T00:17:02.5Z"), ..none() },
                "2016-10-06T00:17:02.500000000Z two\n2016-10-06T00:17:03.000000000Z three, in parts, ends\n\
                 2016-10-06T00:17:06.000000000Z \n2016-10-06T00:17:07.000000000Z last",
            ),
            // A line is as old as its first part.
            (LogOptions { since: since("2016-10-06T00:17:04Z"), ..none() }, "\nlast"),
            (LogOptions { only: Some(Output::Stderr), ..none() }, "two\n"),
            (LogOptions { only: Some(Output::Stdout), ..none() }, "one\nthree, in parts, ends\n\nlast"),
            (LogOptions { limit_bytes: Some(6), ..none() }, "one\ntw"),
            (LogOptions { limit_bytes: Some(10), timestamps: true, ..none() }, "2016-10-06"),
        ] {
            for step in [1, 2, 3, 7, 16, 40, 41, LOG.len()] {
                assert_eq!(render(&options, LOG.as_bytes(), step), expected, "{options:?}, {step} bytes at a time");
            }
        }
    }

    #[test]
    fn outputs_mix_between_the_parts_of_a_line() {
        let log = "2016-10-06T00:17:01Z stdout P a\n2016-10-06T00:17:02Z stderr F b\n2016-10-06T00:17:03Z stdout F c\n";
        assert_eq!(render(&LogOptions::default(), log.as_bytes(), 1000), "ab\nc\n");
        let stdout = LogOptions { only: Some(Output::Stdout), ..LogOptions::default() };
        assert_eq!(render(&stdout, log.as_bytes(), 1000), "ac\n");
    }

    #[test]
    fn holds_no_more_than_a_head() {
        let mut render = Render::new(&LogOptions::default());
        let mut out = Vec::new();
        for _ in 0..1000 {
            render.feed(&[b'x'; 1000], &mut out);
        }
        assert!(out.is_empty() && matches!(render.state, State::Junk));
        render.feed(b"\n2016-10-06T00:17:01Z stdout F back\n", &mut out);
        assert_eq!(out, b"back\n");
        render.feed(b"2016-10-06T00:17", &mut out);
        render.restart();
        render.feed(b"2016-10-06T00:17:01Z stdout F new file\n", &mut out);
        assert_eq!(out, b"back\nnew file\n");
    }
}
