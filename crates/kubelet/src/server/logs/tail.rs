//! Finds where the last lines of a log begin, reading backwards, in bounded memory.
//!
//! A line is what a client sees as one: records that the runtime cut it into count once. Where the
//! two outputs mix between the parts of a line, the count is taken by the record that ends it.

use std::io::{self, Read, Seek, SeekFrom};

use super::line::{MAX_HEAD_BYTES, head};

/// How much is read at a time, in bytes.
const CHUNK_BYTES: u64 = 64 * 1024;

/// The offset at which the last `lines` lines begin, among the first `end` bytes of a log.
pub(super) fn start_of_tail(log: &mut (impl Read + Seek), end: u64, lines: u64) -> io::Result<u64> {
    start_of_tail_by(log, end, lines, CHUNK_BYTES)
}

fn start_of_tail_by(log: &mut (impl Read + Seek), end: u64, lines: u64, chunk_bytes: u64) -> io::Result<u64> {
    if lines == 0 {
        return Ok(end);
    }
    let mut search = Search { lines, seen: 0, start: end };
    // What follows the chunk that is looked at, as far as a head reaches.
    let mut after: Vec<u8> = Vec::new();
    let mut chunk_end = end;
    let overlap = MAX_HEAD_BYTES;
    while chunk_end > 0 {
        let chunk_start = chunk_end.saturating_sub(chunk_bytes);
        let len = usize::try_from(chunk_end - chunk_start).unwrap_or(0);
        let mut bytes = vec![0; len];
        log.seek(SeekFrom::Start(chunk_start))?;
        log.read_exact(&mut bytes)?;
        bytes.extend_from_slice(&after);
        // A record starts after a newline; the one at the very end starts none.
        for at in (0..len).rev().filter(|at| bytes[*at] == b'\n') {
            let record = chunk_start + at as u64 + 1;
            if record < end && search.found_at(record, &bytes[at + 1..]) {
                return Ok(search.start);
            }
        }
        if chunk_start == 0 && search.found_at(0, &bytes) {
            return Ok(search.start);
        }
        bytes.truncate(overlap);
        after = bytes;
        chunk_end = chunk_start;
    }
    Ok(0)
}

struct Search {
    lines: u64,
    /// Lines whose end has been seen.
    seen: u64,
    /// Where the record behind the present one starts.
    start: u64,
}

impl Search {
    /// Takes the next record, going backwards; true when it belongs to no line that is wanted.
    fn found_at(&mut self, record: u64, bytes: &[u8]) -> bool {
        let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        // The last line may still be in the making; what is no record is not shown and not counted.
        match head(line) {
            Some(head) if self.seen == 0 || !head.partial => self.seen += 1,
            _ => {}
        }
        if self.seen > self.lines {
            return true;
        }
        self.start = record;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn tail(log: &str, lines: u64, chunk_bytes: u64) -> String {
        let start = start_of_tail_by(&mut Cursor::new(log), log.len() as u64, lines, chunk_bytes).expect("reads");
        let mut out = Vec::new();
        super::super::render::Render::new(&super::super::options::LogOptions::default())
            .feed(&log.as_bytes()[usize::try_from(start).expect("size")..], &mut out);
        String::from_utf8(out).expect("text")
    }

    fn log(records: &[(&str, &str)]) -> String {
        records.iter().map(|(tag, text)| format!("2016-10-06T00:17:01.123456789Z stdout {tag} {text}\n")).collect()
    }

    #[test]
    fn counts_lines() {
        let plain = log(&[("F", "1"), ("F", "2"), ("F", "3")]);
        let cut = log(&[("F", "1"), ("P", "2a"), ("P", "2b"), ("F", "2c"), ("F", "3")]);
        let open = log(&[("F", "1"), ("P", "2a"), ("F", "2b"), ("P", "3a"), ("P", "3b")]);
        let unfinished = format!("{plain}2016-10-06T00:17:01.123456789Z stdout F 4");
        let junk = format!("{}junk\n\n{}junk\n", log(&[("F", "1")]), log(&[("F", "2")]));
        for (log, lines, expected) in [
            (&plain, 0, ""),
            (&plain, 1, "3\n"),
            (&plain, 2, "2\n3\n"),
            (&plain, 3, "1\n2\n3\n"),
            (&plain, u64::MAX, "1\n2\n3\n"),
            (&cut, 1, "3\n"),
            (&cut, 2, "2a2b2c\n3\n"),
            (&cut, 3, "1\n2a2b2c\n3\n"),
            (&open, 1, "3a3b"),
            (&open, 2, "2a2b\n3a3b"),
            (&unfinished, 1, "4"),
            (&unfinished, 2, "3\n4"),
            (&junk, 1, "2\n"),
            (&junk, 2, "1\n2\n"),
            (&String::new(), 5, ""),
        ] {
            for chunk_bytes in [1, 2, 10, 39, 40, 41, 100, 1 << 16] {
                assert_eq!(
                    tail(log, lines, chunk_bytes),
                    expected,
                    "{lines} of {log:?}, {chunk_bytes} bytes at a time"
                );
            }
        }
    }

    #[test]
    fn reads_only_the_end_of_a_large_log() {
        struct Counting(Cursor<Vec<u8>>, u64);
        impl Read for Counting {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                let n = self.0.read(buf)?;
                self.1 += n as u64;
                Ok(n)
            }
        }
        impl Seek for Counting {
            fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
                self.0.seek(to)
            }
        }
        let line = log(&[("F", &"x".repeat(1000))]);
        let text = line.repeat(10_000);
        let end = text.len() as u64;
        let mut counting = Counting(Cursor::new(text.into_bytes()), 0);
        let start = start_of_tail(&mut counting, end, 10).expect("reads");
        assert_eq!(end - start, 10 * line.len() as u64);
        assert!(counting.1 <= 2 * CHUNK_BYTES, "{} bytes read", counting.1);
    }
}
