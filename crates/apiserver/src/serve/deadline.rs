//! How long a request may be worked on.
//!
//! ```text
//!   it comes ─► who is it? ─► small body ─► seat, for a quarter of its time at most ─► large body ─► is any left? ─► answer
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "shell: it looks at a clock, which nobody sets, while requests are under way"
)]

use std::time::{Duration, Instant};

use carrack_types::duration;

use crate::metrics::is_long_running;
use crate::route::Asked;
use crate::status::Status;

/// As long as its sender gives it, if that is less than `most` (`WithRequestDeadline` of
/// `k8s.io/apiserver/pkg/endpoints/filters`). What a request says that goes on and on is not for this server to read.
///
/// # Errors
/// 400 for what is no duration.
pub(super) fn of(asked: &Asked, most: Duration) -> Result<Duration, Status> {
    let Some(given) = asked.query.non_empty("timeout") else { return Ok(most) };
    if is_long_running(&asked.info) {
        return Ok(most);
    }
    match duration::parse(given).map(u64::try_from) {
        Some(Ok(given_ns)) if given_ns > 0 => Ok(Duration::from_nanos(given_ns).min(most)),
        // None is given.
        Some(_) => Ok(most),
        None => Err(Status::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration {given:?}"
        ))),
    }
}

/// When a request came, from which its time runs: its body and the wait for its seat have their part of it.
#[derive(Clone, Copy)]
pub(super) struct Arrived(Instant);

impl Arrived {
    /// Just now.
    pub fn now() -> Self {
        Self(Instant::now())
    }

    /// What is left of its time; none when nothing is.
    pub fn left(self, most: Duration) -> Option<Duration> {
        left(most, self.0.elapsed())
    }
}

fn left(most: Duration, spent: Duration) -> Option<Duration> {
    most.checked_sub(spent).filter(|left| !left.is_zero())
}

/// How long a request with so much time may wait for its seat (`getRequestWaitContext` of
/// `k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`).
pub(super) fn wait(most: Duration) -> Duration {
    most / 4
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::super::Settings;
    use super::*;

    #[test]
    fn who_asks_may_give_less_time() {
        let most = Duration::from_secs(60);
        for (uri, want) in [
            ("/version", Ok(most)),
            ("/version?timeout=", Ok(most)),
            ("/version?timeout=5s", Ok(Duration::from_secs(5))),
            ("/version?timeout=3m", Ok(most)),
            ("/version?timeout=0s", Ok(most)),
            ("/version?timeout=-1s", Ok(most)),
            ("/version?timeout=invalid", Err(400)),
            ("/api/v1/pods?timeout=1", Err(400)),
            ("/api/v1/pods?watch=true&timeout=1s", Ok(most)),
            ("/api/v1/namespaces/d/pods/p/proxy/?timeout=mine", Ok(most)),
        ] {
            let uri: Uri = uri.parse().expect("a URI");
            assert_eq!(of(&Asked::of(&Method::GET, &uri), most).map_err(|status| status.code), want, "{uri}");
        }
    }

    /// For a quarter of its time, and for a minute at the most.
    #[test]
    fn a_seat_is_waited_for_within_bounds() {
        for (most_s, want_s) in [(8, 2), (60, 15), (240, 60), (3600, 60)] {
            let waits = wait(Duration::from_secs(most_s)).min(Settings::default().max_wait);
            assert_eq!(waits, Duration::from_secs(want_s), "{most_s} s");
        }
    }

    #[test]
    fn time_runs_from_when_a_request_came() {
        for (most_ns, spent_ns, want_ns) in [(9, 4, Some(5)), (9, 0, Some(9)), (1, 1, None), (1, 9, None)] {
            let left = left(Duration::from_nanos(most_ns), Duration::from_nanos(spent_ns));
            assert_eq!(left, want_ns.map(Duration::from_nanos), "{most_ns} {spent_ns}");
        }
    }
}
