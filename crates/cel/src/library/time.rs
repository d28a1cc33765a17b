//! Durations and points in time.
//!
//! Time zones are UTC and fixed offsets (`+02:00`): a control plane's answer must not depend on which zone
//! files its machine has.

use jiff::civil::{DateTime, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::{Found, fail};
use crate::value::Value;

/// (unit, nanoseconds)
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration as Go writes it: `1h30m`, `-1.5s`. None if it is no duration, or more than Go's have room for.
#[must_use]
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    if rest != "0" {
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let whole = &rest[..end];
            rest = &rest[end..];
            let mut fraction = "";
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
                fraction = &after[..end];
                rest = &after[end..];
            }
            if whole.is_empty() && fraction.is_empty() {
                return None;
            }
            // The longest unit that fits: `ms` before `m`.
            let (name, unit) =
                UNITS.iter().filter(|(name, _)| rest.starts_with(name)).max_by_key(|(name, _)| name.len())?;
            rest = &rest[name.len()..];
            let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
            nanos = nanos.checked_add(whole.checked_mul(*unit)?)?;
            let digits = &fraction[..fraction.len().min(15)];
            if !digits.is_empty() {
                let scale = 10_i128.checked_pow(u32::try_from(digits.len()).ok()?)?;
                nanos = nanos.checked_add(digits.parse::<i128>().ok()? * unit / scale)?;
            }
        }
    }
    // As many as Go's durations hold.
    i64::try_from(if negative { -nanos } else { nanos }).ok().map(SignedDuration::from_nanos)
}

/// A duration as CEL writes it: in seconds.
pub(crate) fn duration_text(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let (sign, nanos) = if nanos < 0 { ("-", -nanos) } else { ("", nanos) };
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{whole}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{whole}.{}s", fraction.trim_end_matches('0'))
}

/// A time in a zone; none when the zone is not one of ours.
fn civil(at: Timestamp, zone: &str) -> Option<DateTime> {
    let offset = match zone {
        "" | "UTC" | "Z" | "Etc/UTC" => Offset::UTC,
        _ => {
            let (sign, digits) = match zone.strip_prefix('-') {
                Some(digits) => (-1, digits),
                None => (1, zone.strip_prefix('+').unwrap_or(zone)),
            };
            let (hours, minutes) = digits.split_once(':')?;
            let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
            if !(0..=18).contains(&hours) || !(0..60).contains(&minutes) {
                return None;
            }
            Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()?
        }
    };
    Some(at.to_zoned(TimeZone::fixed(offset)).datetime())
}

fn number(value: impl Into<i64>) -> Found {
    Some(Ok(Value::Int(value.into())))
}

pub(super) fn call(function: &str, args: &[Value]) -> Found {
    let part = function.strip_prefix("get")?;
    let (at, zone) = match args {
        [Value::Duration(duration)] => {
            return match part {
                "Hours" => number(duration.as_hours()),
                "Minutes" => number(duration.as_mins()),
                "Seconds" => number(duration.as_secs()),
                "Milliseconds" => number(duration.subsec_millis()),
                _ => None,
            };
        }
        [Value::Timestamp(at)] => (*at, "UTC"),
        [Value::Timestamp(at), Value::String(zone)] => (*at, &**zone),
        _ => return None,
    };
    let Some(time) = civil(at, zone) else { return fail(format!("unknown time zone {zone}")) };
    match part {
        "FullYear" => number(time.year()),
        "Month" => number(time.month() - 1),
        "DayOfYear" => number(time.day_of_year() - 1),
        "DayOfMonth" => number(time.day() - 1),
        "Date" => number(time.day()),
        "DayOfWeek" => number(match time.weekday() {
            Weekday::Sunday => 0,
            other => i64::from(other.to_monday_one_offset()),
        }),
        "Hours" => number(time.hour()),
        "Minutes" => number(time.minute()),
        "Seconds" => number(time.second()),
        "Milliseconds" => number(time.millisecond()),
        _ => None,
    }
}
