//! What Prometheus' client libraries tell of a process.

use jiff::Timestamp;

use super::text::single;

/// A process as the operating system sees it. The shell fills it in; the logic has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// Seconds of CPU, user and system.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Virtual memory in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// How many there may be.
    pub max_fds: u64,
    /// When it began, in seconds since the epoch.
    pub started_unix_s: f64,
}

impl ProcessStats {
    /// When it began.
    #[must_use]
    pub fn started(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.started_unix_s as i64).ok()
    }

    /// All of it in Prometheus' text form.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    pub(super) fn write(&self, out: &mut String) {
        let mut gauge = |name: &str, help: &str, value: f64| single(out, name, "gauge", help, value);
        gauge("process_resident_memory_bytes", "Resident memory size in bytes", self.resident_bytes as f64);
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes", self.virtual_bytes as f64);
        gauge("process_open_fds", "Number of open file descriptors", self.open_fds as f64);
        gauge("process_max_fds", "Maximum number of open file descriptors", self.max_fds as f64);
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds",
            self.started_unix_s,
        );
        single(
            out,
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds",
            self.cpu_s,
        );
    }
}
