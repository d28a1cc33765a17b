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

/// Upstream's names for common schedules (robfig/cron).
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

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
    /// Reads a schedule of five fields, a named one, or `@every` with a duration, in a time zone.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn parse(text: &str, zone: Option<&str>) -> Result<Self, String> {
        let text = text.trim();
        if let Some(every) = text.strip_prefix("@every ") {
            let every = duration(every.trim()).ok_or_else(|| format!("{every:?} is no duration"))?;
            // Upstream rounds up to a second, too.
            return Ok(Self::Every(Duration::from_secs(every.as_secs().max(1))));
        }
        let named = NAMED.iter().find(|(name, _)| *name == text).map(|(_, fields)| *fields);
        let fields: Vec<String> = named
            .unwrap_or(text)
            .split_whitespace()
            .map(|f| if f == "?" { "*".into() } else { f.to_owned() })
            .collect();
        if fields.len() != 5 {
            return Err(format!("expected exactly 5 fields, found {}", fields.len()));
        }
        let whole = format!("{} {}", fields.join(" "), zone.unwrap_or("UTC"));
        cronexpr::parse_crontab(&whole).map(|c| Self::Cron(Box::new(c))).map_err(|e| e.to_string())
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

/// A duration as Go writes it, of hours, minutes and seconds.
fn duration(text: &str) -> Option<Duration> {
    let mut total_s = 0_u64;
    let mut digits = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit_s = match c {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        let number: u64 = std::mem::take(&mut digits).parse().ok()?;
        total_s = total_s.checked_add(number.checked_mul(unit_s)?)?;
    }
    (digits.is_empty() && total_s > 0).then(|| Duration::from_secs(total_s))
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
