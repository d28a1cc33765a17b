//! The head of a line as the runtime writes it: `<time> <stdout|stderr> <tags> <text>`.
//!
//! The first tag is `F` where the text ends its line and `P` where the line goes on in the next
//! record of the same output (the runtime cuts lines at 16 KiB). This is CRI's logging format.

use carrack_engine::Time;

use super::options::Output;

/// Longest head: a time with nine digits and an offset (35), the output, tags to come.
pub(super) const MAX_HEAD_BYTES: usize = 256;

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// When it was written, as text.
    pub time: &'a str,
    /// Which output wrote it.
    pub output: Output,
    /// Whether the line goes on in the output's next record.
    pub partial: bool,
    /// Length of the head with its last blank, in bytes.
    pub len: usize,
}

/// Reads the head at the start of `bytes`. None where there is none: three blanks are needed.
pub(super) fn head(bytes: &[u8]) -> Option<Head<'_>> {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD_BYTES)];
    let mut parts = bytes.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let output = match parts.next()? {
        b"stdout" => Output::Stdout,
        b"stderr" => Output::Stderr,
        _ => return None,
    };
    let tags = parts.next()?;
    let text = parts.next()?;
    let partial = tags.split(|b| *b == b':').next() == Some(b"P");
    // A time is checked for its form only where it is needed; here it must look like one.
    let looks = time.len() >= "2006-01-02T15:04:05Z".len() && time.as_bytes()[0].is_ascii_digit();
    looks.then_some(Head { time, output, partial, len: bytes.len() - text.len() })
}

impl Head<'_> {
    /// The time as a time.
    pub(super) fn at(&self) -> Option<Time> {
        Time::parse(self.time)
    }

    /// Appends the time with exactly nine digits of fraction (upstream's `RFC3339NanoFixed`; the
    /// runtime leaves zeros at the end out), so that lines sort by their text.
    pub(super) fn write_time(&self, out: &mut Vec<u8>) {
        const SECONDS: usize = "2006-01-02T15:04:05".len();
        const DIGITS: usize = 9;
        let (seconds, rest) = self.time.split_at_checked(SECONDS).unwrap_or((self.time, ""));
        let fraction = rest.strip_prefix('.').unwrap_or_default();
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        let zone = if fraction.is_empty() { rest } else { &fraction[digits..] };
        out.extend_from_slice(seconds.as_bytes());
        out.push(b'.');
        out.extend_from_slice(&fraction.as_bytes()[..digits]);
        out.resize(out.len() + DIGITS.saturating_sub(digits), b'0');
        out.extend_from_slice(zone.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let t = "2016-10-06T00:17:09.669794202Z";
        let read = |text: &'static str| head(text.as_bytes()).map(|h| (h.time, h.output, h.partial, h.len));
        for (text, expected) in [
            ("2016-10-06T00:17:09.669794202Z stdout F hi there", Some((t, Output::Stdout, false, 40))),
            ("2016-10-06T00:17:09.669794202Z stderr P hi", Some((t, Output::Stderr, true, 40))),
            ("2016-10-06T00:17:09.669794202Z stderr P:x:y hi", Some((t, Output::Stderr, true, 44))),
            ("2016-10-06T00:17:09.669794202Z stderr F:P hi", Some((t, Output::Stderr, false, 42))),
            ("2016-10-06T00:17:09.669794202Z stdout F ", Some((t, Output::Stdout, false, 40))),
            ("2016-10-06T00:17:09.669794202Z stdout F", None),
            ("2016-10-06T00:17:09.669794202Z stdin F hi", None),
            ("yesterday stdout F hi", None),
            ("a line that something else has written here", None),
            ("", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn times_have_nine_digits() {
        for (text, expected) in [
            ("2016-10-06T00:17:09.669794202Z", "2016-10-06T00:17:09.669794202Z"),
            ("2016-10-06T00:17:09.6697Z", "2016-10-06T00:17:09.669700000Z"),
            ("2016-10-06T00:17:09Z", "2016-10-06T00:17:09.000000000Z"),
            ("2016-10-06T00:17:09.1+02:00", "2016-10-06T00:17:09.100000000+02:00"),
            ("2016-10-06T00:17:09-02:00", "2016-10-06T00:17:09.000000000-02:00"),
        ] {
            let line = format!("{text} stdout F x");
            let head = head(line.as_bytes()).expect(text);
            let mut out = Vec::new();
            head.write_time(&mut out);
            assert_eq!(String::from_utf8(out).expect("text"), expected);
            assert!(head.at().is_some(), "{text}");
        }
    }
}
