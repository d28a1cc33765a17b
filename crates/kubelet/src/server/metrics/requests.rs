//! What is counted of the server's requests, under upstream's names (`pkg/kubelet/server/metrics`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use carrack_engine::page::Histogram;

use super::Page;

/// Paths whose requests may go on for as long as their clients like.
const LONG: [&str; 3] = ["attach", "exec", "portForward"];
/// Upper bounds of upstream's buckets, in seconds (`DefBuckets` of Prometheus' client).
const BOUNDS_S: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What upstream calls the server, the method, and the first part of the path.
type Of = (&'static str, &'static str, &'static str);

/// Counts requests by server, method, first part of the path, and status code, and how long it took until their answers began.
#[derive(Debug, Default)]
pub(in crate::server) struct Requests {
    counts: Mutex<BTreeMap<(Of, u16), u64>>,
    times: Mutex<BTreeMap<Of, Histogram>>,
}

impl Requests {
    /// Counts one, with its status code and how long it took.
    pub(in crate::server) fn count(
        &self,
        server: &'static str,
        method: &http::Method,
        path: &'static str,
        (code, took): (u16, Duration),
    ) {
        const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "HEAD"];
        let method = METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("other");
        let of = (server, method, path);
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry((of, code)).or_default() += 1;
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.entry(of).or_insert_with(|| Histogram::under(BOUNDS_S.into())).observe(took);
    }

    /// Tells it.
    pub(super) fn tell(&self, page: &mut Page) {
        let name = "kubelet_http_requests_total";
        page.family(name, "counter", "[ALPHA] Number of the http requests received since the server started");
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (((server, method, path), code), count) in counts {
            let code = code.to_string();
            let labels = [("code", code.as_str()), ("method", method), ("path", path), ("server_type", server)];
            page.sample(name, &labels, count);
        }
        let help = "[ALPHA] Duration in seconds to serve http requests";
        let mut durations = carrack_engine::page::Page::default();
        durations.family("kubelet_http_requests_duration_seconds", "histogram", help);
        let all = self.times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((server, method, path), times) in all {
            let is_long = if LONG.contains(&path) { "true" } else { "false" };
            let labels = [("long_running", is_long), ("method", method), ("path", path), ("server_type", server)];
            durations.histogram(&labels, &times);
        }
        page.0.push_str(&durations.text());
    }
}
