//! How many requests there were, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::route::ResourceRequest;

/// No more label sets than this are told apart.
const MAX_SERIES: usize = 4096;

/// (verb, group, resource, subresource, code)
type Series = (&'static str, String, String, String, u16);

/// Counters of the API server.
#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<Series, u64>>,
}

impl Metrics {
    pub(crate) fn count(&self, verb: &'static str, resource: Option<&ResourceRequest>, code: u16) {
        let (group, plural, subresource) = match resource {
            // What does not exist could be named in any number of ways.
            Some(r) if code != 404 => (r.group.clone(), r.resource.clone(), r.subresource.clone().unwrap_or_default()),
            _ => Default::default(),
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let series = (verb, group, plural, subresource, code);
        if requests.len() < MAX_SERIES || requests.contains_key(&series) {
            *requests.entry(series).or_default() += 1;
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::from(
            "# HELP apiserver_request_total Counter of apiserver requests.\n# TYPE apiserver_request_total counter\n",
        );
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        for ((verb, group, resource, subresource, code), count) in &*requests {
            let verb = verb.to_ascii_uppercase();
            // Writing to a string cannot fail.
            writeln!(
                out,
                "apiserver_request_total{{code=\"{code}\",group=\"{group}\",resource=\"{resource}\",subresource=\"{subresource}\",verb=\"{verb}\"}} {count}"
            )
            .unwrap_or_default();
        }
        out
    }
}
