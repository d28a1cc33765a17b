//! This process as the kernel sees it, for metrics: proc(5).

use std::fs;

use carrack_apiserver::ProcessStats;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What `/proc` tells; nothing where there is none.
pub fn stats() -> Option<ProcessStats> {
    let ticks_per_s = rustix::param::clock_ticks_per_second();
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the command's name, which may contain anything: the fields from the third on.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let booted_unix_s: u64 = fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    let max_fds = fs::read_to_string("/proc/self/limits").ok().and_then(|limits| {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    Some(ProcessStats {
        cpu_s: (field(14) + field(15)) as f64 / ticks_per_s as f64,
        resident_bytes: field(24) * rustix::param::page_size() as u64,
        virtual_bytes: field(23),
        open_fds: fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
        max_fds: max_fds.unwrap_or(0),
        started_unix_s: booted_unix_s as f64 + field(22) as f64 / ticks_per_s as f64,
    })
}

/// Lets this process have as many files open as it may have at all. What it may have unasked, 1024 mostly, is for programs
/// that cannot count further (select(2)), and less than the connections that an API server takes. It is inherited, so this
/// is for a process that starts no others.
pub fn take_all_files() {
    let now = getrlimit(Resource::Nofile);
    let all = Rlimit { current: now.maximum, maximum: now.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, limit = now.current, "the number of open files stays limited");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_taken() {
        take_all_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let stats = stats().expect("there is a /proc");
        assert!(stats.resident_bytes > 1 << 20 && stats.virtual_bytes >= stats.resident_bytes, "{stats:?}");
        assert!(stats.open_fds >= 3 && stats.max_fds >= stats.open_fds, "{stats:?}");
        assert!(stats.started_unix_s > 1.0e9, "{stats:?}");
    }
}
