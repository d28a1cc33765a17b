//! What levels, queues and requests look like at a moment, for whoever wants to know why requests wait.
//!
//! Columns and layout are upstream's (`k8s.io/apiserver/pkg/util/flowcontrol/apf_controller_debug.go`;
//! <https://kubernetes.io/docs/reference/debug-cluster/flow-control/>). Here a seat is the level's and no queue's: who is served
//! stands in no queue, and queues have no virtual time.

use std::sync::Arc;

use carrack_auth::Caller;
use jiff::Timestamp;

use super::Class;
use crate::query::Query;
use crate::route::RequestInfo;

/// Below what the dumps are.
const PREFIX: &str = "/debug/api_priority_and_fairness/";

/// Seat-seconds, of which there are none.
const NO_TIME: &str = "0.00000000ss";

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    /// A row for each level.
    Levels,
    /// A row for each queue.
    Queues,
    /// A row for each request.
    Requests {
        /// With who makes it, and what it asks for.
        details: bool,
    },
}

impl Dump {
    /// What a path asks for, if it is one of these.
    pub(crate) fn of(path: &str, query: &Query) -> Option<Self> {
        match path.strip_prefix(PREFIX)? {
            "dump_priority_levels" => Some(Self::Levels),
            "dump_queues" => Some(Self::Queues),
            "dump_requests" => Some(Self::Requests { details: query.non_empty("includeRequestDetails").is_some() }),
            _ => None,
        }
    }
}

/// A request that waits or is served.
#[derive(Debug)]
pub(crate) struct Standing {
    pub class: Class,
    pub user: String,
    pub info: Arc<RequestInfo>,
    pub arrived: Timestamp,
}

impl Standing {
    /// A request that arrives.
    pub(crate) fn new(class: Class, caller: &Caller, info: &Arc<RequestInfo>, arrived: Timestamp) -> Self {
        Self { class, user: caller.user.clone(), info: Arc::clone(info), arrived }
    }

    /// A row of the dump of requests; `started` is none while it waits.
    fn row(&self, place: (String, String), started: Option<Timestamp>, details: bool) -> Vec<String> {
        let Class { level, schema, distinguisher, .. } = &self.class;
        // Each takes one seat, and nothing afterwards. The time of what has not begun is Go's zero.
        let started = started.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |at| at.to_string());
        let mut row =
            vec![level.clone(), schema.clone(), place.0, place.1, distinguisher.clone(), self.arrived.to_string()];
        row.extend(["1".to_owned(), "0".to_owned(), "0s".to_owned(), started]);
        if details {
            let none = String::new;
            row.extend([self.user.clone(), self.info.verb.to_owned(), self.info.path.clone()]);
            match &self.info.resource {
                None => row.extend([none(), none(), none(), none(), none()]),
                Some(asked) => {
                    let text = |text: &Option<String>| text.clone().unwrap_or_default();
                    let slash = if asked.group.is_empty() { "" } else { "/" };
                    let version = format!("{}{slash}{}", asked.group, asked.version);
                    row.extend([text(&asked.namespace), text(&asked.name), version, asked.resource.clone()]);
                    row.push(text(&asked.subresource));
                }
            }
        }
        row
    }
}

/// What has become of a level's requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
}

/// A level at a moment.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub name: String,
    pub counts: Counts,
    /// Who waits in which queue.
    pub queues: Vec<Vec<Arc<Standing>>>,
    /// Who is served, and since when.
    pub served: Vec<(Arc<Standing>, Timestamp)>,
}

/// The dump as text.
pub(crate) fn text(what: Dump, levels: &[Picture]) -> String {
    match what {
        Dump::Levels => of_levels(levels),
        Dump::Queues => of_queues(levels),
        Dump::Requests { details } => of_requests(levels, details),
    }
}

fn of_levels(levels: &[Picture]) -> String {
    let mut rows = vec![headers(&[
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ])];
    for Picture { name, counts, queues, served } in levels {
        let waiting: usize = queues.iter().map(Vec::len).sum();
        let active = queues.iter().filter(|queue| !queue.is_empty()).count();
        let mut row = vec![name.clone(), active.to_string(), (waiting + served.len() == 0).to_string()];
        // A level that is taken away is gone at once.
        row.push(false.to_string());
        row.extend([waiting, served.len()].map(|count| count.to_string()));
        let Counts { dispatched, rejected, timed_out, cancelled } = counts;
        row.extend([dispatched, rejected, timed_out, cancelled].map(ToString::to_string));
        rows.push(row);
    }
    aligned(&rows)
}

fn of_queues(levels: &[Picture]) -> String {
    let mut rows = vec![headers(&[
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    for level in levels {
        for (index, queue) in level.queues.iter().enumerate() {
            let (count, none) = (queue.len().to_string(), "0".to_owned());
            let mut row = vec![level.name.clone(), index.to_string(), count.clone(), none.clone(), none];
            row.extend([NO_TIME.to_owned(), count.clone(), count, NO_TIME.to_owned()]);
            rows.push(row);
        }
    }
    aligned(&rows)
}

fn of_requests(levels: &[Picture], details: bool) -> String {
    let mut head = headers(&[
        "PriorityLevelName",
        "FlowSchemaName",
        "QueueIndex",
        "RequestIndexInQueue",
        // Upstream's spelling.
        "FlowDistingsher",
        "ArriveTime",
        "InitialSeats",
        "FinalSeats",
        "AdditionalLatency",
        "StartTime",
    ]);
    if details {
        head.extend(headers(&[
            "UserName",
            "Verb",
            "APIPath",
            "Namespace",
            "Name",
            "APIVersion",
            "Resource",
            "SubResource",
        ]));
    }
    let mut rows = vec![head];
    for level in levels {
        for (index, queue) in level.queues.iter().enumerate() {
            let row = |(place, standing): (usize, &Arc<Standing>)| {
                standing.row((index.to_string(), place.to_string()), None, details)
            };
            rows.extend(queue.iter().enumerate().map(row));
        }
        let no_place = || ("-1".to_owned(), "-1".to_owned());
        rows.extend(level.served.iter().map(|(standing, since)| standing.row(no_place(), Some(*since), details)));
    }
    aligned(&rows)
}

fn headers(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Rows of the same length as lines whose columns stand below each other, with commas between them.
fn aligned(rows: &[Vec<String>]) -> String {
    /// The least width of a column, comma and space included.
    const LEAST: usize = 8;
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let widths = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count() + 2);
        widths.max().unwrap_or(0).max(LEAST)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            text.push_str(cell);
            if column + 1 < row.len() {
                text.push(',');
                let blanks = widths[column].saturating_sub(cell.chars().count() + 1);
                text.extend(std::iter::repeat_n(' ', blanks));
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;
    use crate::route::Asked;

    fn standing(user: &str, level: &str, uri: &str) -> Arc<Standing> {
        let class = Class {
            level: level.to_owned(),
            schema: "own".to_owned(),
            schema_uid: String::new(),
            level_uid: String::new(),
            distinguisher: user.to_owned(),
            flow: 0,
        };
        let uri: Uri = uri.parse().expect("a URI");
        let info = Asked::of(&Method::GET, &uri).info;
        Arc::new(Standing::new(class, &Caller::new(user, [""; 0]), &info, Timestamp::UNIX_EPOCH))
    }

    fn levels() -> Vec<Picture> {
        let waits = standing("jane", "low", "/apis/apps/v1/namespaces/n/deployments/d/scale?a=b");
        let served = standing("joe", "low", "/version");
        let counts = Counts { dispatched: 12, rejected: 3, timed_out: 2, cancelled: 1 };
        vec![
            Picture { name: "exempt".to_owned(), ..Picture::default() },
            Picture {
                name: "low".to_owned(),
                counts,
                queues: vec![Vec::new(), vec![waits]],
                served: vec![(served, Timestamp::UNIX_EPOCH)],
            },
        ]
    }

    #[track_caller]
    fn check(what: Dump, want: &[&str]) {
        let text = text(what, &levels());
        assert_eq!(text.lines().collect::<Vec<_>>(), want, "{text}");
    }

    #[test]
    fn dumps_are_tables() {
        check(
            Dump::Levels,
            &[
                "PriorityLevelName, ActiveQueues, IsIdle, IsQuiescing, WaitingRequests, ExecutingRequests, DispatchedRequests, RejectedRequests, TimedoutRequests, CancelledRequests",
                "exempt,            0,            true,   false,       0,               0,                 0,                  0,                0,                0",
                "low,               1,            false,  false,       1,               1,                 12,                 3,                2,                1",
            ],
        );
        check(
            Dump::Queues,
            &[
                "PriorityLevelName, Index,  PendingRequests, ExecutingRequests, SeatsInUse, NextDispatchR, InitialSeatsSum, MaxSeatsSum, TotalWorkSum",
                "low,               0,      0,               0,                 0,          0.00000000ss,  0,               0,           0.00000000ss",
                "low,               1,      1,               0,                 0,          0.00000000ss,  1,               1,           0.00000000ss",
            ],
        );
        check(
            Dump::Requests { details: false },
            &[
                "PriorityLevelName, FlowSchemaName, QueueIndex, RequestIndexInQueue, FlowDistingsher, ArriveTime,           InitialSeats, FinalSeats, AdditionalLatency, StartTime",
                "low,               own,            1,          0,                   jane,            1970-01-01T00:00:00Z, 1,            0,          0s,                0001-01-01T00:00:00Z",
                "low,               own,            -1,         -1,                  joe,             1970-01-01T00:00:00Z, 1,            0,          0s,                1970-01-01T00:00:00Z",
            ],
        );
        let details = text(Dump::Requests { details: true }, &levels());
        let of_jane = "jane,     get,    /apis/apps/v1/namespaces/n/deployments/d/scale, n,         d,      apps/v1,    deployments, scale";
        assert!(details.lines().nth(1).is_some_and(|line| line.ends_with(of_jane)), "{details}");
        let of_joe = details.lines().nth(2).unwrap_or_default();
        assert_eq!(of_joe.matches(',').count(), 17, "{details}");
    }

    #[test]
    fn dumps_have_paths() {
        let query = Query::parse("includeRequestDetails=1");
        for (path, want) in [
            ("dump_priority_levels", Some(Dump::Levels)),
            ("dump_queues", Some(Dump::Queues)),
            ("dump_requests", Some(Dump::Requests { details: true })),
            ("dump_seats", None),
        ] {
            assert_eq!(Dump::of(&format!("{PREFIX}{path}"), &query), want, "{path}");
        }
        let plain = Dump::of(&format!("{PREFIX}dump_requests"), &Query::parse("includeRequestDetails="));
        assert_eq!(plain, Some(Dump::Requests { details: false }));
        assert_eq!(Dump::of("/debug/dump_queues", &query), None);
    }
}
