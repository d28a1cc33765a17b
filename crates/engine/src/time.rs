//! The project's own time: nanoseconds since the Unix epoch, handed to every decision.
//!
//! Shells derive it from the wall clock at start plus the monotonic clock since, so that within one
//! process it never runs backwards. The simulator has a clock of its own.

use std::ops::{Add, Sub};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time as MetaTime};

/// A point in time, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// A point in time from whole seconds since the epoch.
    #[must_use]
    pub const fn from_unix_s(s: i64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
    /// Whole seconds since the epoch.
    #[must_use]
    pub const fn unix_s(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }
    /// Time since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
    /// As RFC 3339 in UTC with whole seconds, the form of `metav1.Time`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
    /// As RFC 3339 in UTC with microseconds, the form of `metav1.MicroTime`.
    #[must_use]
    pub fn rfc3339_micros(self) -> String {
        self.timestamp().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    }
    /// Reads an RFC 3339 time.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(Self::from)
    }
    /// As HTTP has it in its headers, with whole seconds (RFC 9110, `IMF-fixdate`).
    #[must_use]
    pub fn http_date(self) -> String {
        self.timestamp().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    }
    /// Reads a date as HTTP has it. Its obsolete forms are none.
    #[must_use]
    pub fn parse_http_date(text: &str) -> Option<Self> {
        jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok().map(Self::from)
    }
    /// As the API's `Time`, cut to whole seconds.
    #[must_use]
    pub fn meta(self) -> MetaTime {
        MetaTime(Self::from_unix_s(self.unix_s()).timestamp())
    }
    /// As the API's `MicroTime`.
    #[must_use]
    pub fn meta_micro(self) -> MicroTime {
        MicroTime(Self(self.0.div_euclid(1000) * 1000).timestamp())
    }
    pub(crate) fn timestamp(self) -> jiff::Timestamp {
        // Every i64 of nanoseconds (years 1677 to 2262) is within jiff's range.
        jiff::Timestamp::from_nanosecond(i128::from(self.0)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }
}

impl From<jiff::Timestamp> for Time {
    fn from(t: jiff::Timestamp) -> Self {
        Self(i64::try_from(t.as_nanosecond()).unwrap_or(i64::MAX))
    }
}
impl From<&MetaTime> for Time {
    fn from(t: &MetaTime) -> Self {
        t.0.into()
    }
}
impl From<&MicroTime> for Time {
    fn from(t: &MicroTime) -> Self {
        t.0.into()
    }
}
impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)))
    }
}
impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_round_trip() {
        for (ns, seconds, micros) in [
            (0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
            (1_500_000_000, "1970-01-01T00:00:01Z", "1970-01-01T00:00:01.500000Z"),
            (1_794_000_000_123_456_789, "2026-11-06T21:20:00Z", "2026-11-06T21:20:00.123456Z"),
        ] {
            let t = Time(ns);
            assert_eq!(t.rfc3339(), seconds);
            assert_eq!(t.rfc3339_micros(), micros);
            assert_eq!(Time::parse(seconds), Some(Time::from_unix_s(t.unix_s())));
        }
        assert_eq!(Time::parse("yesterday"), None);
    }

    #[test]
    fn dates_of_http_round_trip() {
        for (seconds, text) in [(0, "Thu, 01 Jan 1970 00:00:00 GMT"), (1_794_000_000, "Fri, 06 Nov 2026 21:20:00 GMT")]
        {
            let t = Time::from_unix_s(seconds);
            assert_eq!((t.http_date().as_str(), Time::parse_http_date(text)), (text, Some(t)));
        }
        assert_eq!(Time::parse_http_date("yesterday"), None);
    }
}
