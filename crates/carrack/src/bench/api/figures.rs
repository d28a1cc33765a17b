//! What came out of a measurement.

use serde::Serialize;

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// One kind of request.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figure {
    pub name: &'static str,
    /// How many were made (or, of events, came).
    pub count: usize,
    /// Each second, over all clients.
    pub rate_per_s: f64,
    pub latency_ms: Percentiles,
    /// What one cost the server, in microseconds of processor time, where its processes are known; under watch, with
    /// the events that came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_us: Option<f64>,
    /// What one cost the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_cpu_us: Option<f64>,
    /// For the plot: latency in milliseconds at each of [`GRID`].
    pub curve_ms: Vec<f64>,
}

/// Processor time up to some moment, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    pub server_s: Option<f64>,
    pub client_s: Option<f64>,
}

/// Percentiles that are plotted.
pub const GRID: [f64; 12] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9];

/// All of a run.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// `gitVersion` of the server.
    pub server: String,
    pub clients: usize,
    pub pods: usize,
    /// Bytes of one pod, as it is read.
    pub pod_bytes: usize,
    pub watchers: usize,
    pub cores: usize,
    /// From the start of the process until `/readyz` said yes; only of a server that was started here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<f64>,
    /// Resident memory in MB (10^6 bytes) before anything was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_mb: Option<f64>,
    /// The same with all pods there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_mb: Option<f64>,
    pub figures: Vec<Figure>,
}

impl Figure {
    /// From the latencies of all requests, in microseconds, and how long all took, in seconds.
    pub fn of(name: &'static str, mut latencies_us: Vec<u32>, elapsed_s: f64) -> Self {
        latencies_us.sort_unstable();
        let at = |percent: f64| {
            let last = latencies_us.len().saturating_sub(1);
            let place = (last as f64 * percent / 100.0).round() as usize;
            latencies_us.get(place).map_or(0.0, |us| f64::from(*us) / 1000.0)
        };
        Self {
            name,
            count: latencies_us.len(),
            rate_per_s: latencies_us.len() as f64 / elapsed_s.max(1e-9),
            server_cpu_us: None,
            client_cpu_us: None,
            latency_ms: Percentiles { p50: at(50.0), p90: at(90.0), p99: at(99.0), max: at(100.0) },
            curve_ms: GRID.iter().map(|percent| at(*percent)).collect(),
        }
    }
}

impl Report {
    /// Adds what was measured, with what it cost.
    pub fn charge(&mut self, before: Spent, mut figure: Figure, after: Spent) {
        let each =
            |before: Option<f64>, after: Option<f64>| Some((after? - before?) * 1e6 / figure.count.max(1) as f64);
        let server_cpu_us = each(before.server_s, after.server_s);
        let client_cpu_us = each(before.client_s, after.client_s);
        figure.server_cpu_us = server_cpu_us;
        figure.client_cpu_us = client_cpu_us;
        self.figures.push(figure);
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} clients, {} pods of {} bytes, {} cores\n",
            self.server, self.clients, self.pods, self.pod_bytes, self.cores
        );
        let parts = [
            ("ready after", self.ready_ms, "ms"),
            ("resident idle", self.idle_mb, "MB"),
            ("with the pods", self.loaded_mb, "MB"),
        ];
        for (what, value, unit) in parts {
            if let Some(value) = value {
                text.push_str(&format!("{what} {value:.0} {unit}\n"));
            }
        }
        text.push_str(&format!(
            "\n{:<22} {:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>11} {:>11}\n",
            "", "COUNT", "RATE", "P50", "P90", "P99", "MAX", "SERVER CPU", "CLIENT CPU"
        ));
        for figure in &self.figures {
            let Percentiles { p50, p90, p99, max } = figure.latency_ms;
            let cpu = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.0} us"));
            text.push_str(&format!(
                "{:<22} {:>9} {:>9.0}/s {p50:>6.2} ms {p90:>6.2} ms {p99:>6.2} ms {max:>6.1} ms {:>11} {:>11}\n",
                figure.name,
                figure.count,
                figure.rate_per_s,
                cpu(figure.server_cpu_us),
                cpu(figure.client_cpu_us)
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_latencies() {
        let figure = Figure::of("x", (1..=101).rev().map(|ms| ms * 1000).collect(), 2.0);
        let Percentiles { p50, p90, p99, max } = figure.latency_ms;
        assert_eq!([p50, p90, p99, max].map(f64::round), [51.0, 91.0, 100.0, 101.0]);
        assert!((figure.rate_per_s - 50.5).abs() < 1e-6);
        assert_eq!(Figure::of("none", Vec::new(), 1.0).count, 0);
    }
}
