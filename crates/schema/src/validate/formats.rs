//! The formats of texts that schemas of custom resources may ask for; others are not looked at.
//!
//! Which there are is upstream's list (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`), what they
//! mean `github.com/go-openapi/strfmt`.

use std::net::IpAddr;

use super::{demand, names};
use crate::decode::is_base64;
use crate::schema::Format;

/// The format that a text should have and has not.
pub(super) fn missed<'f>(text: &str, format: &'f Format) -> Option<&'f str> {
    let (fits, name): (bool, &str) = match format {
        Format::DateTime => (is_date_time(text), "date-time"),
        Format::Byte => (is_base64(text), "byte"),
        Format::Quantity => (carrack_types::quantity::Quantity::parse(text).is_ok(), "quantity"),
        Format::Other(name) => (other(text, name)?, &**name),
        Format::None | Format::Int32 | Format::Int64 => return None,
    };
    (!fits).then_some(name)
}

/// Whether values of a type, or of any where it is not named, are held against a format of this name.
pub(super) fn is_known(kind: &str, name: &str) -> bool {
    match kind {
        "" | "string" => matches!(&*plain(name), "byte" | "password" | "quantity") || other("", name).is_some(),
        "integer" => matches!(name, "int32" | "int64"),
        "number" => matches!(name, "float" | "double"),
        _ => false,
    }
}

/// The name of a format without its hyphens, which make no difference.
fn plain(name: &str) -> String {
    name.replace('-', "")
}

/// None for a format that is not known.
fn other(text: &str, name: &str) -> Option<bool> {
    let hex = |count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_hexdigit());
    Some(match &*plain(name) {
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => is_duration(text),
        // What maps one into the other is both.
        "ipv4" => text.contains('.') && text.parse::<IpAddr>().is_ok(),
        "ipv6" => text.contains(':') && text.parse::<IpAddr>().is_ok(),
        "cidr" => demand::is_range(text),
        "mac" => is_mac(text),
        "hostname" => is_hostname(text),
        "email" => is_email(text),
        "uri" => is_uri(text),
        "uuid" => is_uuid(text, None),
        "uuid3" => is_uuid(text, Some('3')),
        "uuid4" => is_uuid(text, Some('4')),
        "uuid5" => is_uuid(text, Some('5')),
        "bsonobjectid" => hex(24),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        }
        "rgbcolor" => is_rgb(text),
        "ssn" => is_ssn(text),
        "creditcard" => is_card(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "k8sshortname" => names::dns1123_label(text).is_none(),
        "k8slongname" => names::dns1123_subdomain(text).is_none(),
        _ => return None,
    })
}

/// Whether a text has digits where the form has zeros, and otherwise its letters, large or small.
fn is_shaped(text: &[u8], form: &[u8]) -> bool {
    text.len() == form.len()
        && text.iter().zip(form).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            _ => byte.to_ascii_lowercase() == *form,
        })
}

/// A day as RFC 3339 has it. The parser takes more: days without hyphens, and times.
fn is_date(text: &str) -> bool {
    is_shaped(text.as_bytes(), b"0000-00-00") && text.parse::<jiff::civil::Date>().is_ok()
}

/// A time as RFC 3339 has it, without leap seconds. The parser takes more (no seconds, a space, a zone in brackets),
/// which operators written in Go could not read.
fn is_date_time(text: &str) -> bool {
    let (Some(head), Some(rest)) = (text.as_bytes().get(..19), text.as_bytes().get(19..)) else { return false };
    let zone = match rest {
        [b'.', fraction @ ..] => &fraction[fraction.iter().take_while(|byte| byte.is_ascii_digit()).count()..],
        rest => rest,
    };
    let is_zoned = matches!(zone, [b'Z' | b'z'] | [b'+' | b'-', _, _, b':', _, _]);
    is_shaped(head, b"0000-00-00t00:00:00") && head[17] != b'6' && is_zoned && text.parse::<jiff::Timestamp>().is_ok()
}

/// `1h30m` as Go writes it, or words: `3 days 2 hours`. With words a part whose unit nobody knows counts as nothing, as long as
/// another one's is known (`k8s.io/kube-openapi/pkg/validation/strfmt/duration.go`).
fn is_duration(text: &str) -> bool {
    carrack_cel::parse_duration(text).is_some() || is_duration_in_words(text)
}

fn is_duration_in_words(text: &str) -> bool {
    const EXACT: [&str; 11] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk"];
    const BEGINNINGS: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let mut rest = text.trim_ascii();
    let mut is_known = false;
    while !rest.is_empty() {
        let (number, after) = split_where(rest, |c| !c.is_ascii_digit());
        let (unit, after) = split_where(after.trim_ascii_start(), |c| !c.is_ascii_alphabetic() && c != 'µ');
        if number.parse::<i64>().is_err() || unit.is_empty() {
            return false;
        }
        let unit = unit.to_lowercase();
        is_known |= EXACT.contains(&&*unit) || BEGINNINGS.iter().any(|beginning| unit.starts_with(beginning));
        rest = after.trim_ascii_start();
    }
    is_known
}

/// The text up to the first such character, and from there on.
fn split_where(text: &str, is_end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_end).unwrap_or(text.len()))
}

/// Of 6, 8 or 20 bytes: `00:00:5e:00:53:01`, `00-00-5e-00-53-01`, `0000.5e00.5301`.
fn is_mac(text: &str) -> bool {
    let groups = |separator: char, digits: usize, bytes_each: usize| {
        let groups: Vec<&str> = text.split(separator).collect();
        groups.iter().all(|group| group.len() == digits && group.bytes().all(|b| b.is_ascii_hexdigit()))
            && matches!(groups.len() * bytes_each, 6 | 8 | 20)
    };
    groups(':', 2, 1) || groups('-', 2, 1) || groups('.', 4, 2)
}

fn is_hostname(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let label = |label: &str| {
        label.len() <= 63
            && edge(label.chars().next())
            && edge(label.chars().next_back())
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    let labels: Vec<&str> = text.split('.').collect();
    // The last of several is no number, so that an address is no name.
    let top = |last: &str| last.chars().count() >= 2 && last.chars().all(char::is_alphabetic);
    text.len() <= 255
        && labels.iter().all(|text| label(text))
        && (labels.len() == 1 || labels.last().is_some_and(|last| top(last)))
}

/// `a@b.c`, or `Name <a@b.c>`.
fn is_email(text: &str) -> bool {
    let text = text.trim();
    let address = text.strip_suffix('>').map_or(Some(text), |text| text.rsplit_once('<').map(|(_, address)| address));
    let is_atom = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    let dotted = |text: &str| text.split('.').all(|part| !part.is_empty() && part.chars().all(is_atom));
    let Some((local, domain)) = address.and_then(|address| address.rsplit_once('@')) else { return false };
    let is_quoted = local.len() >= 2 && local.starts_with('"') && local.ends_with('"');
    let is_literal = domain.strip_prefix('[').and_then(|d| d.strip_suffix(']'));
    (is_quoted || dotted(local))
        && (dotted(domain) || is_literal.is_some_and(|address| address.parse::<IpAddr>().is_ok()))
}

/// What may stand in the first line of a request: with a scheme, or a path from the root.
pub(super) fn is_uri(text: &str) -> bool {
    let bytes = text.as_bytes();
    let escapes = bytes
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'%')
        .all(|(at, _)| bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if text.is_empty() || !escapes || bytes.iter().any(u8::is_ascii_control) {
        return false;
    }
    if text == "*" || text.starts_with('/') {
        return true;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    let Some(rest) = rest.strip_prefix("//") else { return is_scheme };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match host_and_port.rsplit_once(']') {
        Some((_, after)) => after.strip_prefix(':').unwrap_or(after),
        None => host_and_port.rsplit_once(':').map_or("", |(_, port)| port),
    };
    let is_host = |c: char| !c.is_whitespace() && !"<>\"\\^`{|}".contains(c);
    is_scheme && authority.chars().all(is_host) && port.bytes().all(|b| b.is_ascii_digit())
}

/// With its hyphens or without; of a version, if one is asked for.
fn is_uuid(text: &str, version: Option<char>) -> bool {
    let mut digits = String::with_capacity(32);
    let mut rest = text;
    for (place, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, after)) = rest.split_at_checked(length) else { return false };
        digits.push_str(part);
        rest = after;
    }
    let digit = |at: usize| digits.chars().nth(at).map(|c| c.to_ascii_lowercase());
    rest.is_empty()
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && version.is_none_or(|version| {
            let variant = version == '3' || matches!(digit(16), Some('8' | '9' | 'a' | 'b'));
            digit(12) == Some(version) && variant
        })
}

fn is_rgb(text: &str) -> bool {
    let inner = text.strip_prefix("rgb(").and_then(|text| text.strip_suffix(')'));
    let is_part = |part: &str| {
        let part = part.trim();
        (part == "0" || !part.starts_with('0'))
            && part.bytes().all(|b| b.is_ascii_digit())
            && part.parse::<u8>().is_ok()
    };
    inner.is_some_and(|inner| inner.split(',').count() == 3 && inner.split(',').all(is_part))
}

fn is_ssn(text: &str) -> bool {
    let mut rest = text;
    for (place, length) in [3, 2, 4].into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix(['-', ' ']).unwrap_or(rest);
        }
        match rest.split_at_checked(length) {
            Some((part, after)) if part.bytes().all(|b| b.is_ascii_digit()) => rest = after,
            _ => return false,
        }
    }
    rest.is_empty()
}

/// The digits of a number that may be divided by spaces and hyphens.
fn digits(text: &str) -> Option<Vec<u32>> {
    text.chars().filter(|c| !matches!(c, ' ' | '-')).map(|c| c.to_digit(10)).collect()
}

fn is_card(text: &str) -> bool {
    let Some(digits) = digits(text).filter(|digits| (13..=19).contains(&digits.len())) else { return false };
    let luhn = |(place, digit): (usize, &u32)| match place % 2 {
        1 if *digit > 4 => digit * 2 - 9,
        1 => digit * 2,
        _ => *digit,
    };
    digits.iter().rev().enumerate().map(luhn).sum::<u32>().is_multiple_of(10)
}

fn is_isbn10(text: &str) -> bool {
    let bare: String = text.chars().filter(|c| !matches!(c, ' ' | '-')).collect();
    let (body, last) = bare.split_at_checked(9).unwrap_or_default();
    let Some(body) = digits(body).filter(|body| body.len() == 9) else { return false };
    let last = if last == "X" { Some(10) } else { last.parse::<u32>().ok().filter(|digit| *digit < 10) };
    let sum: u32 = body.iter().zip(1..).map(|(digit, weight): (&u32, u32)| digit * weight).sum();
    last.is_some_and(|last| (sum + 10 * last).is_multiple_of(11))
}

fn is_isbn13(text: &str) -> bool {
    let Some(digits) = digits(text).filter(|digits| digits.len() == 13) else { return false };
    digits.iter().zip([1, 3].into_iter().cycle()).map(|(digit, weight)| digit * weight).sum::<u32>().is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        for (name, good, bad) in [
            (
                "hostname",
                &["localhost", "my-host", "a.example.com", "bücher.example"][..],
                &["", "-a", "a..b", "10.0.0.1", "a_b", "a.b c"][..],
            ),
            (
                "email",
                &["a@b.c", "a.b+c@example.com", "Ann <a@b.c>", "\"a b\"@c.d", "a@[10.0.0.1]"],
                &["", "a", "@b.c", "a@", "a..b@c", "a b@c.d", "<a@b.c"],
            ),
            (
                "uri",
                &["https://example.com/a?b=c#d", "/a/b", "mailto:a@b.c", "http://[::1]:80/", "*"],
                &["", "example.com", "a b", "http://a b/", "http://a:x/", ":a", "/%zz", "/\u{1}"],
            ),
            ("cidr", &["10.0.0.0/8", "10.0.0.1/8", "2001:db8::/64"], &["10.0.0.0", "10.0.0.0/33", "a/8", ""]),
            (
                "mac",
                &["00:00:5e:00:53:01", "02-00-5E-10-00-00-00-01", "0000.5e00.5301"],
                &["00:00:5e:00:53", "0:0:5e:0:53:1", "00:00-5e:00:53:01", ""],
            ),
            (
                "date",
                &["2026-01-02", "2024-02-29"],
                &["", "20260102", "2026-1-2", "2026-01-02T15:22", "2026-02-30", "2026-01-02Z", "02026-01-02"],
            ),
            ("ipv4", &["10.0.0.1", "::ffff:10.0.0.1"], &["", "10.0.0", "10.0.0.01", "::1"]),
            ("ipv6", &["::1", "::ffff:10.0.0.1"], &["", "::1%eth0", "10.0.0.1"]),
            // Hyphens in the names of formats make no difference.
            ("ip-v4", &["10.0.0.1"], &["::1"]),
            (
                "datetime",
                &["2026-01-02T03:04:05Z", "2026-01-02t03:04:05.678z", "2026-01-02T03:04:05+02:00"],
                &[
                    "",
                    "2026-01-02",
                    "2026-01-02T03:04Z",
                    "2026-01-02 03:04:05Z",
                    "2026-01-02T03:04:05",
                    "2026-01-02T03:04:60Z",
                    "2026-01-02T03:04:05+02",
                    "2026-01-02T03:04:05Z[UTC]",
                    "2026-02-30T03:04:05Z",
                ],
            ),
            (
                "duration",
                &["1h30m", "1.5s", "-5ms", "0", "3 days", " 2 weeks ", "1 hour 30 minutes", "1 day 2 apples"],
                &["", "5", "1x", "h", "1..5s", "-", "1.5 days", "-3 days", "1 hour, 30 minutes", "2 apples", "1H30.5M"],
            ),
            (
                "uuid",
                &["01234567-89ab-cdef-0123-456789abcdef", "0123456789ABCDEF0123456789abcdef"],
                &["", "01234567-89ab-cdef-0123-456789abcde", "g1234567-89ab-cdef-0123-456789abcdef"],
            ),
            (
                "uuid4",
                &["01234567-89ab-4def-8123-456789abcdef"],
                &["01234567-89ab-5def-8123-456789abcdef", "01234567-89ab-4def-0123-456789abcdef"],
            ),
            ("bsonobjectid", &["507f1f77bcf86cd799439011"], &["507f1f77bcf86cd79943901", ""]),
            ("hexcolor", &["#fff", "FFFFFF"], &["#ffff", "#ggg", ""]),
            ("rgbcolor", &["rgb(0, 128,255)"], &["rgb(0,128)", "rgb(0,128,256)", "rgb(00,1,1)", ""]),
            ("ssn", &["123-45-6789", "123456789"], &["123-45-678", "12-345-6789", ""]),
            ("creditcard", &["4111 1111 1111 1111"], &["4111 1111 1111 1112", ""]),
            (
                "isbn",
                &["0-306-40615-2", "978-3-16-148410-0", "080442957X"],
                &["0-306-40615-3", "978-3-16-148410-1", ""],
            ),
            ("k8s-short-name", &["a-b"], &["a.b", "A", ""]),
            ("k8s-long-name", &["a-b.c"], &["a..b", ""]),
            ("password", &["", "anything"], &[]),
            ("nobody-knows-it", &["", "anything"], &[]),
        ] {
            let format = Format::Other(name.into());
            for text in good {
                assert_eq!(missed(text, &format), None, "{name} {text:?}");
            }
            for text in bad {
                assert_eq!(missed(text, &format), Some(name), "{name} {text:?}");
            }
        }
        for (kind, known, unknown) in [
            (
                "string",
                &["byte", "date-time", "password", "quantity", "k8s-short-name", "uuid"][..],
                &["int32", "text"][..],
            ),
            ("", &["datetime", "ipv4"], &["int64", "double", "foobar"]),
            ("integer", &["int32", "int64"], &["uint32", "date"]),
            ("number", &["float", "double"], &["int32"]),
            ("boolean", &[], &["byte"]),
        ] {
            for (name, is_so) in known.iter().map(|name| (name, true)).chain(unknown.iter().map(|name| (name, false))) {
                assert_eq!(is_known(kind, name), is_so, "{kind} {name}");
            }
        }
        assert_eq!(missed("YQ==", &Format::Byte), None);
        for bad in ["YQ=", "Y!==", "YQ==YQ==", "===="] {
            assert_eq!(missed(bad, &Format::Byte), Some("byte"), "{bad}");
        }
    }
}
