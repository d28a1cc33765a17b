//! Which part of a file a client gets: what Go's `http.ServeContent` does for upstream's `/logs/`.
//!
//! ```text
//!   not changed since (If-Modified-Since)? ─▶ 304
//!   no range, or one of what it was before it changed (If-Range)? ─▶ all of it
//!   a range that begins in the file ─▶ 206, else 416
//! ```
//!
//! Several ranges in one request are answered with the whole file, which HTTP permits (RFC 9110, 14.2); Go sends them one after
//! another in one body.

use carrack_engine::Time;
use http::HeaderMap;
use http::header::{HeaderName, IF_MODIFIED_SINCE, IF_RANGE, RANGE};

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// None of it: the client has it.
    Unchanged,
    /// So many bytes from one on.
    Bytes { from: u64, count: u64 },
    /// Nothing is there.
    Outside,
    /// What was asked for is no range.
    Invalid,
}

/// What a request asks for of a file of this length that was changed at this time.
pub(super) fn asked(headers: &HeaderMap, length: u64, changed: Option<Time>) -> Part {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    // Headers have whole seconds.
    let changed_s = changed.map(Time::unix_s);
    let date = |name: HeaderName| text(name).and_then(Time::parse_http_date).map(Time::unix_s);
    if date(IF_MODIFIED_SINCE).zip(changed_s).is_some_and(|(since, changed)| changed <= since) {
        return Part::Unchanged;
    }
    let Some(ranges) = text(RANGE).filter(|ranges| !ranges.is_empty()) else { return Part::Whole };
    if headers.contains_key(IF_RANGE) && (changed_s.is_none() || date(IF_RANGE) != changed_s) {
        return Part::Whole;
    }
    match range(ranges, length) {
        // Of a file without contents there is no part but all of it.
        Part::Outside if length == 0 => Part::Whole,
        part => part,
    }
}

fn range(text: &str, length: u64) -> Part {
    let Some(list) = text.strip_prefix("bytes=") else { return Part::Invalid };
    let mut found = Vec::new();
    for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        match part(one, length) {
            Some(part) => found.push(part),
            None => return Part::Invalid,
        }
    }
    found.retain(|part| *part != Part::Outside);
    match found.as_slice() {
        [] if list.trim().is_empty() => Part::Whole,
        [] => Part::Outside,
        [part] => *part,
        _ => Part::Whole,
    }
}

/// One range: `first-last`, `first-`, or `-count` for so many from the end. None where it is no range.
fn part(text: &str, length: u64) -> Option<Part> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    if first.is_empty() {
        let count = number(last)?.min(length);
        return Some(if count == 0 { Part::Outside } else { Part::Bytes { from: length - count, count } });
    }
    let from = number(first)?;
    let to = if last.is_empty() { u64::MAX } else { number(last)? };
    if from >= length {
        return Some(Part::Outside);
    }
    let to = to.min(length - 1);
    (from <= to).then_some(Part::Bytes { from, count: to.saturating_sub(from) + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn check(headers: &[(HeaderName, &str)], length: u64, expected: Part) {
        let map = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect();
        assert_eq!(asked(&map, length, Some(Time(1_794_000_000_500_000_000))), expected, "{headers:?} of {length}");
    }

    #[test]
    fn ranges_are_in_the_file() {
        let bytes = |from, count| Part::Bytes { from, count };
        for (text, expected) in [
            ("bytes=0-3", bytes(0, 4)),
            ("bytes=2-", bytes(2, 8)),
            ("bytes=-3", bytes(7, 3)),
            ("bytes=-30", bytes(0, 10)),
            ("bytes=9-9", bytes(9, 1)),
            ("bytes=4-100", bytes(4, 6)),
            ("bytes= 1 - 2 ", bytes(1, 2)),
            ("bytes=1-2,20-", bytes(1, 2)),
            ("bytes=0-1,4-5", Part::Whole),
            ("bytes=", Part::Whole),
            ("", Part::Whole),
            ("bytes=10-", Part::Outside),
            ("bytes=10-20,30-", Part::Outside),
            ("bytes=3-2", Part::Invalid),
            ("bytes=-", Part::Invalid),
            ("bytes=--3", Part::Invalid),
            ("bytes=+1-2", Part::Invalid),
            ("bytes=x-", Part::Invalid),
            ("lines=0-3", Part::Invalid),
        ] {
            check(&[(RANGE, text)], 10, expected);
        }
        check(&[(RANGE, "bytes=0-")], 0, Part::Whole);
        check(&[(RANGE, "bytes=-5")], 0, Part::Whole);
    }

    #[test]
    fn who_has_it_gets_no_more_of_it() {
        let (then, before) = ("Fri, 06 Nov 2026 21:20:00 GMT", "Fri, 06 Nov 2026 21:19:59 GMT");
        let part = Part::Bytes { from: 5, count: 5 };
        check(&[], 10, Part::Whole);
        check(&[(IF_MODIFIED_SINCE, then)], 10, Part::Unchanged);
        check(&[(IF_MODIFIED_SINCE, before)], 10, Part::Whole);
        check(&[(IF_MODIFIED_SINCE, "yesterday")], 10, Part::Whole);
        check(&[(IF_RANGE, then), (RANGE, "bytes=5-")], 10, part);
        check(&[(IF_RANGE, before), (RANGE, "bytes=5-")], 10, Part::Whole);
        check(&[(IF_RANGE, "\"tag\""), (RANGE, "bytes=5-")], 10, Part::Whole);
    }
}
