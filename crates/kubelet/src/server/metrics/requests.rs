//! What is counted of the server's requests, under upstream's names (`pkg/kubelet/server/metrics`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Page;
use crate::adapters::storage_times::Histograms;

/// Paths whose requests may go on for as long as their clients like.
const LONG: [&str; 3] = ["attach", "exec", "portForward"];

/// Counts requests by method, first part of the path, and status code, and how long they took.
#[derive(Debug, Default)]
pub(in crate::server) struct Requests {
    counts: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    times: Histograms<(&'static str, &'static str)>,
}

impl Requests {
    /// Counts one.
    pub(in crate::server) fn count(&self, method: &http::Method, path: &'static str, code: u16, took: Duration) {
        const METHODS: [&str; 5] = ["GET", "POST", "PUT", "DELETE", "HEAD"];
        let method = METHODS.into_iter().find(|name| *name == method.as_str()).unwrap_or("other");
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry((method, path, code)).or_default() += 1;
        self.times.ended((method, path), took);
    }

    /// Tells it.
    pub(super) fn tell(&self, page: &mut Page) {
        let name = "kubelet_http_requests_total";
        page.family(name, "counter", "[ALPHA] Number of the http requests received since the server started");
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((method, path, code), count) in counts {
            let code = code.to_string();
            let labels = [("code", code.as_str()), ("method", method), ("path", path), ("server_type", "readwrite")];
            page.sample(name, &labels, count);
        }
        let name = "kubelet_http_requests_duration_seconds";
        page.family(name, "histogram", "[ALPHA] Duration in seconds to serve http requests");
        for ((method, path), times) in self.times.all() {
            let is_long = if LONG.contains(&path) { "true" } else { "false" };
            let labels = [("long_running", is_long), ("method", method), ("path", path), ("server_type", "readwrite")];
            page.histogram(name, &labels, &times);
        }
    }
}
