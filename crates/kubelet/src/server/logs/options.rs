//! What a client wants to see of a log: the query of `containerLogs`, as upstream's `PodLogOptions`.

use carrack_engine::Time;
use carrack_schema::logs::LogLimits;

use crate::server::query::Query;

/// Which of a container's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Output {
    Stdout,
    Stderr,
}

/// What a client wants to see of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    /// Go on until the container is over.
    pub follow: bool,
    /// The run before the present one.
    pub previous: bool,
    /// Put each line's time in front of it.
    pub timestamps: bool,
    /// Leave out what is older.
    pub since: Option<Time>,
    /// Only so many lines from the end.
    pub tail_lines: Option<u64>,
    /// Not more than so many bytes.
    pub limit_bytes: Option<u64>,
    /// Only one of the outputs.
    pub only: Option<Output>,
}

impl LogOptions {
    /// Reads a query. `tail` is an old name of `tailLines`, where `all` means no limit.
    pub(crate) fn parse(query: &Query, now: Time) -> Result<Self, String> {
        let tail = query.non_empty("tail").filter(|tail| *tail != "all");
        let since_time = query
            .non_empty("sinceTime")
            .map(|text| {
                Time::parse(text).ok_or_else(|| format!("invalid sinceTime {text:?}: an RFC 3339 time is needed"))
            })
            .transpose()?;
        let limits = LogLimits {
            tail_lines: number(tail.or_else(|| query.non_empty("tailLines")), "tailLines")?,
            limit_bytes: number(query.non_empty("limitBytes"), "limitBytes")?,
            since_s: number(query.non_empty("sinceSeconds"), "sinceSeconds")?,
            has_since_time: since_time.is_some(),
            stream: query.non_empty("stream"),
        };
        if let Some(fault) = limits.faults().first() {
            return Err(if fault.path.is_empty() { fault.message() } else { fault.to_string() });
        }
        // Nothing is below zero that has no fault.
        let counted = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        let since_s = counted(limits.since_s).map(std::time::Duration::from_secs);
        Ok(Self {
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            since: since_s.map(|since| now - since).or(since_time),
            tail_lines: counted(limits.tail_lines),
            limit_bytes: counted(limits.limit_bytes),
            only: match limits.stream {
                Some("Stdout") => Some(Output::Stdout),
                Some("Stderr") => Some(Output::Stderr),
                _ => None,
            },
        })
    }
}

fn number(text: Option<&str>, name: &str) -> Result<Option<i64>, String> {
    text.map(|text| text.parse().map_err(|_| format!("invalid {name} {text:?}: a number is needed"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_unix_s(1_000_000);

    fn parse(query: &str) -> Result<LogOptions, String> {
        LogOptions::parse(&Query::parse(query).expect("query"), NOW)
    }

    #[test]
    fn reads() {
        let none = LogOptions::default;
        for (query, expected) in [
            ("", none()),
            ("follow=true&timestamps=1", LogOptions { follow: true, timestamps: true, ..none() }),
            ("follow=false&previous=true", LogOptions { previous: true, ..none() }),
            ("tailLines=0", LogOptions { tail_lines: Some(0), ..none() }),
            ("tail=all&tailLines=", none()),
            ("tail=7", LogOptions { tail_lines: Some(7), ..none() }),
            ("limitBytes=10", LogOptions { limit_bytes: Some(10), ..none() }),
            ("sinceSeconds=10", LogOptions { since: Some(Time::from_unix_s(999_990)), ..none() }),
            (
                "sinceSeconds=9223372036854775807",
                LogOptions { since: Some(NOW - std::time::Duration::from_secs(i64::MAX as u64)), ..none() },
            ),
            ("sinceTime=1970-01-01T00:00:05.5Z", LogOptions { since: Some(Time(5_500_000_000)), ..none() }),
            ("sinceTime=1970-01-01T01:00:05%2B01:00", LogOptions { since: Some(Time::from_unix_s(5)), ..none() }),
            ("stream=Stderr", LogOptions { only: Some(Output::Stderr), ..none() }),
            ("stream=All&tailLines=3", LogOptions { tail_lines: Some(3), ..none() }),
        ] {
            assert_eq!(parse(query), Ok(expected), "{query}");
        }
    }

    #[test]
    fn refuses() {
        for query in [
            "tailLines=-1",
            "tailLines=x",
            "tailLines=99999999999999999999",
            "limitBytes=0",
            "limitBytes=-5",
            "sinceSeconds=0",
            "sinceSeconds=1.5",
            "sinceTime=yesterday",
            "sinceTime=1970-01-01T00:00:00Z&sinceSeconds=1",
            "stream=stdout",
            "stream=Stdout&tailLines=3",
        ] {
            assert!(parse(query).is_err(), "{query}");
        }
    }
}
