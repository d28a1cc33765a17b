//! Durations and points in time.
//!
//! Time zones are UTC and fixed offsets (`+02:00`): a control plane's answer must not depend on which zone
//! files its machine has.

use jiff::civil::{DateTime, Weekday};
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::{Found, fail};
use crate::value::Value;

/// A duration as Go writes it: `1h30m`, `-1.5s`. None if it is no duration, or more than Go's have room for.
#[must_use]
pub fn parse_duration(text: &str) -> Option<SignedDuration> {
    carrack_types::duration::parse(text).map(SignedDuration::from_nanos)
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
                // All of it, and not what is left of a second: so has it cel-go, otherwise than its specification.
                "Milliseconds" => i64::try_from(duration.as_millis()).ok().and_then(number),
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
