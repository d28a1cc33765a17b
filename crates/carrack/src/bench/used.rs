//! What processes use, as the kernel tells it (proc(5)): memory in MB (10^6 bytes), and time of the processor.

use std::time::Duration;

use anyhow::Context as _;

/// Resident memory of a process. What it shares with others counts in full.
///
/// # Errors
/// It is gone.
pub fn resident_mb(pid: u32) -> anyhow::Result<f64> {
    memory_mb(pid, "VmRSS:")
}

/// What the kernel says of a process's memory in a line of its status.
///
/// # Errors
/// It is gone, or there is no such line.
pub fn memory_mb(pid: u32, field: &str) -> anyhow::Result<f64> {
    let status = told(pid, "status")?;
    in_mb(&status, field).with_context(|| format!("the kernel tells no {field}"))
}

/// Resident memory of a process where what several have counts for each in proportion: that of several can be added up.
///
/// # Errors
/// It is gone, or is somebody else's.
pub fn proportional_mb(pid: u32) -> anyhow::Result<f64> {
    in_mb(&told(pid, "smaps_rollup")?, "Pss:").context("the kernel tells no Pss:")
}

/// Seconds of the processor that a process has used.
///
/// # Errors
/// It is gone.
pub fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    Ok(cpu_ticks(&[pid])? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Use of the processor by some processes together over some seconds, in percent of one core.
///
/// # Errors
/// One of them is gone.
pub async fn cpu_percent(pids: &[u32], seconds: u64) -> anyhow::Result<f64> {
    let seconds = u32::try_from(seconds).unwrap_or(60).max(1);
    let before = cpu_ticks(pids)?;
    tokio::time::sleep(Duration::from_secs(u64::from(seconds))).await;
    let ticks = u32::try_from(cpu_ticks(pids)?.saturating_sub(before)).unwrap_or(u32::MAX);
    // The kernel counts in hundredths of a second for user space.
    Ok(f64::from(ticks) / f64::from(seconds))
}

fn cpu_ticks(pids: &[u32]) -> anyhow::Result<u64> {
    let of =
        |pid: &u32| ticks(&told(*pid, "stat")?).with_context(|| format!("the kernel tells no times of process {pid}"));
    pids.iter().map(of).sum()
}

/// What stands in a file of a process's.
fn told(pid: u32, file: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).with_context(|| format!("process {pid} is gone"))
}

/// What a line `FIELD   N kB` says, in units of 1024 bytes.
pub fn kib(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.trim().parse().ok())
}

fn in_mb(text: &str, field: &str) -> Option<f64> {
    kib(text, field).map(|kib| kib as f64 * 1024.0 / 1e6)
}

/// User and system time in a process's `stat`. Its name, in parentheses, may have anything in it.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_memory() {
        let check =
            |text: &str, field: &str, expected: Option<f64>| assert_eq!(in_mb(text, field), expected, "{text:?}");
        check("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t  15625 kB\n", "VmRSS:", Some(16.0));
        check("Rss:      31250 kB\nPss:       15625 kB\nPss_Anon:  1 kB\n", "Pss:", Some(16.0));
        check("Pss_Anon:  1 kB\n", "Pss:", None);
        check("VmRSS:\t 1 pages\n", "VmRSS:", None);
        check("", "VmRSS:", None);
    }

    #[test]
    fn times_behind_a_name_of_any_kind() {
        let check = |stat: &str, expected: Option<u64>| assert_eq!(ticks(stat), expected, "{stat:?}");
        check("1 (a) S 1 1 1 0 -1 4194560 1 2 3 4 30 12 5 6 20 0 1 0 9", Some(42));
        check("1 (a) S 9) S 1 1 1 0 -1 4194560 1 2 3 4 30 12 5 6 20 0 1 0 9", Some(42));
        check("1 (a) S 1 1", None);
        check("", None);
    }

    #[test]
    fn a_process_that_is_there_and_one_that_is_not() {
        let own = std::process::id();
        assert!(resident_mb(own).expect("it is there") > 0.1);
        resident_mb(u32::MAX).expect_err("there is no such process");
        cpu_ticks(&[own, own]).expect("it is there");
        cpu_ticks(&[own, u32::MAX]).expect_err("there is no such process");
    }
}
