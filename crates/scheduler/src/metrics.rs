//! Counts of what was done, under upstream's names (scheduler/metrics).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::{Counts, Plugin};

/// Upper bounds of the buckets of attempts' and pods' durations, in milliseconds: doubled from 1 ms.
const BUCKETS: u32 = 15;

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    buckets: [u64; BUCKETS as usize],
    count: u64,
    sum: Duration,
}

impl Histogram {
    /// Counts one.
    pub fn observe(&mut self, duration: Duration) {
        let bucket = (0..BUCKETS).find(|at| duration <= Duration::from_millis(1 << at));
        if let Some(slot) = bucket.and_then(|at| self.buckets.get_mut(at as usize)) {
            *slot += 1;
        }
        self.count += 1;
        self.sum += duration;
    }
    fn write(&self, text: &mut String, name: &str, labels: &str) {
        let mut sum = 0;
        for (at, count) in (0..BUCKETS).zip(self.buckets) {
            sum += count;
            let bound = f64::from(1_u32 << at) / 1000.0;
            line(text, format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {sum}"));
        }
        line(text, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count));
        line(text, format_args!("{name}_sum{{{labels}}} {}", self.sum.as_secs_f64()));
        line(text, format_args!("{name}_count{{{labels}}} {}", self.count));
    }
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(text, "{args}").unwrap_or_default();
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// The pod was bound.
    Scheduled,
    /// No node takes it.
    Unschedulable,
    /// Something failed.
    Error,
}

impl Ended {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    attempts: BTreeMap<(Ended, String), (u64, Histogram)>,
    pods: BTreeMap<u32, Histogram>,
    preemptions: u64,
    victims: u64,
}

impl Metrics {
    /// An attempt ended, so long after its pod was popped.
    pub fn attempt(&mut self, ended: Ended, profile: &str, took: Duration) {
        let (count, histogram) = self.attempts.entry((ended, profile.to_owned())).or_default();
        *count += 1;
        histogram.observe(took);
    }
    /// A pod was bound, after so many attempts and so long after it first came.
    pub fn scheduled(&mut self, attempts: u32, took: Duration) {
        self.pods.entry(attempts.min(16)).or_default().observe(took);
    }
    /// A node was chosen to be made free.
    pub fn preempted(&mut self, victims: usize) {
        self.preemptions += 1;
        self.victims += victims as u64;
    }
    /// How many attempts ended so.
    #[must_use]
    pub fn ended(&self, ended: Ended) -> u64 {
        self.attempts.iter().filter(|((e, _), _)| *e == ended).map(|(_, (count, _))| count).sum()
    }

    /// In the text form that Prometheus reads.
    #[must_use]
    pub fn text(
        &self,
        queue: Counts,
        refused: &BTreeMap<Plugin, usize>,
        nodes: usize,
        pods: usize,
        assumed: usize,
    ) -> String {
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            line(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        };
        let name = "scheduler_schedule_attempts_total";
        head(&mut text, name, "counter", "Number of attempts to schedule pods, by the result.");
        for ((ended, profile), (count, _)) in &self.attempts {
            line(&mut text, format_args!("{name}{{profile=\"{profile}\",result=\"{}\"}} {count}", ended.name()));
        }
        let name = "scheduler_scheduling_attempt_duration_seconds";
        head(&mut text, name, "histogram", "Scheduling attempt latency in seconds (scheduling algorithm + binding)");
        for ((ended, profile), (_, histogram)) in &self.attempts {
            histogram.write(&mut text, name, &format!("profile=\"{profile}\",result=\"{}\"", ended.name()));
        }
        let name = "scheduler_pod_scheduling_sli_duration_seconds";
        head(&mut text, name, "histogram", "E2e latency for a pod being scheduled, from the time it enters the queue.");
        for (attempts, histogram) in &self.pods {
            histogram.write(&mut text, name, &format!("attempts=\"{attempts}\""));
        }
        let name = "scheduler_pending_pods";
        head(&mut text, name, "gauge", "Number of pending pods, by the queue type.");
        let places = [
            ("active", queue.active),
            ("backoff", queue.backoff),
            ("gated", queue.gated),
            ("unschedulable", queue.unschedulable),
        ];
        for (place, count) in places {
            line(&mut text, format_args!("{name}{{queue=\"{place}\"}} {count}"));
        }
        let name = "scheduler_unschedulable_pods";
        head(&mut text, name, "gauge", "The number of unschedulable pods broken down by plugin name.");
        for (plugin, count) in refused {
            line(&mut text, format_args!("{name}{{plugin=\"{plugin}\"}} {count}"));
        }
        let name = "scheduler_cache_size";
        head(&mut text, name, "gauge", "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.");
        for (kind, count) in [("assumed_pods", assumed), ("nodes", nodes), ("pods", pods)] {
            line(&mut text, format_args!("{name}{{type=\"{kind}\"}} {count}"));
        }
        let name = "scheduler_preemption_attempts_total";
        head(&mut text, name, "counter", "Total preemption attempts in the cluster till now");
        line(&mut text, format_args!("{name} {}", self.preemptions));
        let name = "scheduler_preemption_victims";
        head(&mut text, name, "counter", "Number of selected preemption victims");
        line(&mut text, format_args!("{name} {}", self.victims));
        text
    }
}
