//! When a CronJob is due.

use std::time::Duration;

use carrack_engine::Time;

/// A schedule that can be read.
#[derive(Debug)]
pub(super) enum Schedule {
    Cron(Box<cronexpr::Crontab>),
    /// Every so often.
    Every(Duration),
}

const NO_FIELDS: &str = "there is nothing after the time zone";

/// How many missed times are counted before it is said that there are too many.
pub(super) const TOO_MANY: usize = 100;

/// Times that have come since a time: the latest, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub latest: Time,
    /// More than [`TOO_MANY`] are not counted.
    pub count: usize,
}

impl Schedule {
    /// Reads a schedule in a time zone; the schedule may name one itself, as ones that were stored long ago do.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let own = ["TZ=", "CRON_TZ="].iter().find_map(|prefix| text.strip_prefix(prefix));
        let (zone, text) = match own {
            Some(named) => named.split_once(' ').map(|(zone, rest)| (Some(zone), rest.trim())).ok_or(NO_FIELDS)?,
            None => (zone, text.trim()),
        };
        match carrack_schema::schedule::Schedule::parse(text)? {
            carrack_schema::schedule::Schedule::Every(every) => Ok(Self::Every(every)),
            carrack_schema::schedule::Schedule::Fields(fields) => {
                let whole = format!("{} {}", fields.join(" "), zone.unwrap_or("UTC"));
                cronexpr::parse_crontab(&whole).map(|c| Self::Cron(Box::new(c))).map_err(|e| e.to_string())
            }
        }
    }

    /// Whether it comes at intervals, and not at times of the clock.
    pub fn is_interval(&self) -> bool {
        matches!(self, Self::Every(_))
    }

    /// The first time after this one; none if there is none in the next years.
    pub fn next(&self, after: Time) -> Option<Time> {
        match self {
            Self::Every(every) => Some(after + *every),
            Self::Cron(cron) => {
                let after = cronexpr::MakeTimestamp::from_second(after.unix_s()).ok()?;
                cron.find_next(after).ok().map(|zoned| Time::from(zoned.timestamp()))
            }
        }
    }

    /// The times after `since` that have come by `now`.
    pub fn missed(&self, since: Time, now: Time) -> Option<Missed> {
        if let Self::Every(every) = self {
            let count = now.since(since).as_nanos() / every.as_nanos().max(1);
            let elapsed = every.as_nanos().saturating_mul(count);
            let latest = since + Duration::from_nanos(u64::try_from(elapsed).unwrap_or(u64::MAX));
            return (count > 0).then(|| Missed { latest, count: usize::try_from(count).unwrap_or(usize::MAX) });
        }
        let mut missed: Option<Missed> = None;
        let mut at = since;
        while let Some(next) = self.next(at).filter(|next| *next <= now) {
            let count = missed.map_or(0, |m| m.count) + 1;
            missed = Some(Missed { latest: next, count });
            if count > TOO_MANY {
                return missed.map(|m| Missed { latest: self.latest_by(m.latest, now), ..m });
            }
            at = next;
        }
        missed
    }

    /// The latest time from `from` on, which is one, that has come by `now`.
    fn latest_by(&self, from: Time, now: Time) -> Time {
        // The latest instant after which there is still a time that has come: as sure as a second.
        let (mut low, mut high) = (from.unix_s() - 1, now.unix_s());
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match self.next(Time::from_unix_s(middle)) {
                Some(next) if next <= now => low = middle,
                _ => high = middle,
            }
        }
        self.next(Time::from_unix_s(low)).filter(|next| *next <= now).unwrap_or(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time::parse(text).expect("a time")
    }

    #[test]
    fn schedules_have_a_next_time() {
        for (text, zone, after, next) in [
            ("*/5 * * * *", None, "2026-11-01T00:01:00Z", Some("2026-11-01T00:05:00Z")),
            ("@hourly", None, "2026-11-01T00:00:00Z", Some("2026-11-01T01:00:00Z")),
            ("0 9 ? * MON", None, "2026-11-01T00:00:00Z", Some("2026-11-02T09:00:00Z")),
            ("0 9 * * *", Some("Europe/Berlin"), "2026-11-01T00:00:00Z", Some("2026-11-01T08:00:00Z")),
            ("0 9 * * *", Some("Europe/Berlin"), "2026-07-01T00:00:00Z", Some("2026-07-01T07:00:00Z")),
            ("@every 1h30m", None, "2026-11-01T00:00:00Z", Some("2026-11-01T01:30:00Z")),
            ("@every 500ms", None, "2026-11-01T00:00:00Z", Some("2026-11-01T00:00:01Z")),
            // A star with a step is none: a day of either kind will do. With one in a list, the other kind decides.
            ("0 0 */10 * 5", None, "2026-11-02T00:00:00Z", Some("2026-11-06T00:00:00Z")),
            ("0 0 */10 * 5", None, "2026-11-06T00:00:00Z", Some("2026-11-11T00:00:00Z")),
            ("0 0 13 * */6", None, "2026-11-02T00:00:00Z", Some("2026-11-07T00:00:00Z")),
            ("0 0 1,* * 5", None, "2026-11-06T00:00:00Z", Some("2026-11-13T00:00:00Z")),
            ("0 0 13 * 3,*", None, "2026-11-02T00:00:00Z", Some("2026-11-13T00:00:00Z")),
            ("TZ=Europe/Berlin 0 9 * * *", None, "2026-11-01T00:00:00Z", Some("2026-11-01T08:00:00Z")),
            ("CRON_TZ=UTC 0 9 * * *", None, "2026-11-01T00:00:00Z", Some("2026-11-01T09:00:00Z")),
            ("0 0 30 2 *", None, "2026-11-01T00:00:00Z", None),
        ] {
            let schedule = Schedule::parse(text, zone).expect("a schedule");
            assert_eq!(schedule.next(at(after)), next.map(at), "{text} after {after}");
        }
        for (text, zone) in [
            ("* * * *", None),
            ("61 * * * *", None),
            ("@every x", None),
            ("* * * * * UTC", None),
            ("@daily", Some("Mars")),
            ("TZ=UTC", None),
            ("TZ=Mars 0 9 * * *", None),
        ] {
            assert!(Schedule::parse(text, zone).is_err(), "{text}");
        }
    }

    #[test]
    fn missed_times_are_counted_up_to_a_bound() {
        for (text, since, now, expected) in [
            ("0 * * * *", "2026-11-01T00:10:00Z", "2026-11-01T00:50:00Z", None),
            ("0 * * * *", "2026-11-01T00:10:00Z", "2026-11-01T03:00:00Z", Some(("2026-11-01T03:00:00Z", 3))),
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-11-01T00:00:30Z", Some(("2026-11-01T00:00:00Z", TOO_MANY + 1))),
            ("@every 10m", "2026-11-01T00:00:00Z", "2026-11-01T00:25:00Z", Some(("2026-11-01T00:20:00Z", 2))),
            // The clock went back.
            ("* * * * *", "2026-11-01T00:10:00Z", "2026-11-01T00:00:00Z", None),
        ] {
            let schedule = Schedule::parse(text, None).expect("a schedule");
            let expected = expected.map(|(t, count)| Missed { latest: at(t), count });
            assert_eq!(schedule.missed(at(since), at(now)), expected, "{text} from {since} to {now}");
        }
    }
}
