//! Durations in Go's notation, such as `1m30s`: what `time.ParseDuration` reads and `Duration.String` writes, as configuration
//! files, specs (`metav1.Duration`) and expressions have them. Arithmetic is Go's, so that the same text is the same number of
//! nanoseconds: a fraction is a floating point number, and what is less than a nanosecond is cut off.

use std::time::Duration;

/// The most that Go's durations hold, one more below zero: nanoseconds.
const MOST_NS: u64 = 1 << 63;

/// Reads a duration. Nanoseconds; none where it is no duration, or more than Go's hold, some 292 years.
#[must_use]
pub fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // The only number that needs no unit.
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum_ns = 0_u64;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        let (unit, after) = after.split_at(after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len()));
        sum_ns = sum_ns.checked_add(part_ns(whole, fraction, unit_ns(unit)?)?).filter(|sum| *sum <= MOST_NS)?;
        rest = after;
    }
    match negative {
        true => 0_i64.checked_sub_unsigned(sum_ns),
        false => i64::try_from(sum_ns).ok(),
    }
}

/// Reads a duration, where none can be below zero.
#[must_use]
pub fn parse_unsigned(text: &str) -> Option<Duration> {
    parse(text).and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos)
}

/// Writes a duration of so many nanoseconds: hours, minutes and seconds; less than a second in the largest unit of which it is one
/// at least.
#[must_use]
pub fn format(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    let written = match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}\u{b5}s", decimal(ns, 3)),
        1_000_000..1_000_000_000 => format!("{}ms", decimal(ns, 6)),
        _ => {
            let minutes = ns / 60_000_000_000;
            let seconds = decimal(ns % 60_000_000_000, 9);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    };
    format!("{sign}{written}")
}

/// The digits at the beginning of a text, and what follows.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_ns(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign, and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// A decimal number of units, given as the digits before and after its point.
fn part_ns(whole: &str, fraction: &str, unit_ns: u64) -> Option<u64> {
    let whole: u64 = match whole {
        "" if fraction.is_empty() => return None,
        "" => 0,
        digits => digits.parse().ok()?,
    };
    let whole_ns = whole.checked_mul(unit_ns).filter(|ns| *ns <= MOST_NS)?;
    // Digits that a number of 63 bits has no room for say nothing.
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in fraction.bytes() {
        let next = value.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|next| *next <= MOST_NS) else { break };
        (value, scale) = (next, scale * 10.0);
    }
    let fraction_ns = if value == 0 { 0 } else { (value as f64 * (unit_ns as f64 / scale)) as u64 };
    whole_ns.checked_add(fraction_ns)
}

/// A number divided by a power of ten, without zeros at its end.
fn decimal(number: u64, places: u32) -> String {
    let unit = 10_u64.pow(places);
    let (whole, rest) = (number / unit, number % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let fraction = format!("{rest:0width$}", width = places as usize);
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: i64 = 1_000;
    const MS: i64 = 1_000_000;
    const S: i64 = 1_000_000_000;
    const M: i64 = 60 * S;
    const H: i64 = 60 * M;

    #[test]
    fn durations_are_read_as_by_go() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+0", Some(0)),
            ("0s", Some(0)),
            ("5s", Some(5 * S)),
            ("+2s", Some(2 * S)),
            ("-5s", Some(-5 * S)),
            ("5.0s", Some(5 * S)),
            ("5.s", Some(5 * S)),
            (".5h", Some(30 * M)),
            ("1.004s", Some(S + 4 * MS)),
            ("100.00100s", Some(100 * S + MS)),
            ("10ns", Some(10)),
            ("1500us", Some(1500 * US)),
            ("12\u{b5}s", Some(12 * US)),
            ("12\u{3bc}s", Some(12 * US)),
            ("500ms", Some(500 * MS)),
            ("1m30s", Some(90 * S)),
            ("3h30m", Some(3 * H + 30 * M)),
            ("30m3h", Some(3 * H + 30 * M)),
            ("1s1s", Some(2 * S)),
            ("10.5s4m", Some(4 * M + 10 * S + 500 * MS)),
            ("-2m3.4s", Some(-(2 * M + 3 * S + 400 * MS))),
            ("1h2m3s4ms5us6ns", Some(H + 2 * M + 3 * S + 4 * MS + 5 * US + 6)),
            ("0.9ns", Some(0)),
            // Fractions are Go's floating point numbers, of as many digits as have room.
            ("0.3333333333333333333h", Some(20 * M)),
            ("0.100000000000000000000h", Some(6 * M)),
            ("0.18446744073709551619s", Some(184_467_440)),
            ("0.830103483285477580700h", Some(49 * M + 48 * S + 372_539_827)),
            // As many as 64 bits hold.
            ("9223372036854775807ns", Some(i64::MAX)),
            ("9223372036854775.807us", Some(i64::MAX)),
            ("9223372036s854ms775us807ns", Some(i64::MAX)),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("-9223372036s854ms775us808ns", Some(i64::MIN)),
            ("9223372036854775808ns", None),
            ("-9223372036854775809ns", None),
            ("9223372036854776us", None),
            ("9223372036854ms775us808ns", None),
            ("18446744073709551615s", None),
            ("2562048h", None),
            ("", None),
            ("+", None),
            ("-", None),
            ("5", None),
            ("s", None),
            (".", None),
            (".s", None),
            ("-.s", None),
            ("+-5s", None),
            ("1.2.3s", None),
            ("1m-5s", None),
            ("1 s", None),
            (" 1s", None),
            ("1S", None),
            ("1d", None),
            ("1e3s", None),
            ("0h5", None),
            ("１s", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
            let unsigned = expected.and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos);
            assert_eq!(parse_unsigned(text), unsigned, "{text:?}");
        }
    }

    #[test]
    fn durations_are_written_as_by_go() {
        for (ns, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1100, "1.1\u{b5}s"),
            (2200 * US, "2.2ms"),
            (100 * MS, "100ms"),
            (1500 * MS, "1.5s"),
            (3300 * MS, "3.3s"),
            (90 * S, "1m30s"),
            (300 * S, "5m0s"),
            (4 * M + 5001 * MS, "4m5.001s"),
            (5 * H + 6 * M + 7001 * MS, "5h6m7.001s"),
            (H, "1h0m0s"),
            (8 * M + 1, "8m0.000000001s"),
            (-1500 * MS, "-1.5s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(format(ns), expected);
            assert_eq!(parse(expected), Some(ns), "{expected}");
        }
    }
}
