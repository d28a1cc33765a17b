//! How often plugins are asked, and in one cycle of ten how long each takes to answer: `plugin_evaluation_total` and
//! `plugin_execution_duration_seconds` (pkg/scheduler/framework/runtime, `instrumentedFilterPlugin` and
//! `pluginMetricsSamplePercent`).
//!
//! An answer that is kept is not asked for again, so it is counted once. Plugins with a view on many nodes answer for a group of
//! nodes at a time. What is asked beside scheduling (for preemption, for who waits, for people) is not counted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::metrics::{Bounds, Histogram, Page, Point, Stopwatch};
use crate::{Plugin, Refusal};

/// One cycle of so many is timed.
const TIMED: u64 = 10;
/// Of plugins' answers: from 0.01 ms, in seconds.
pub(crate) const EXECUTION: Bounds = Bounds { first: 0.00001, factor: 1.5, count: 20 };

/// How often each plugin was asked, by its place among the plugins.
type Counts = [u64; Plugin::ALL.len()];

/// Of one profile.
#[derive(Clone, Debug, Default)]
struct Asked {
    profile: String,
    filters: Counts,
    scores: Counts,
}

/// Counts and times what plugins are asked.
#[derive(Clone, Debug)]
pub struct Probe {
    stopwatch: Stopwatch,
    cycles: u64,
    timed: bool,
    asked: Vec<Asked>,
    /// Whose cycle it is.
    at: usize,
    took: BTreeMap<(Plugin, Point, &'static str), Histogram>,
}

/// One that counts nothing before a cycle begins.
impl Default for Probe {
    fn default() -> Self {
        let took = BTreeMap::new();
        Self { stopwatch: || Duration::ZERO, cycles: 0, timed: false, asked: Vec::new(), at: usize::MAX, took }
    }
}

impl Probe {
    /// Has time told by this stopwatch.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = stopwatch;
    }

    /// A cycle of a profile's begins.
    pub fn begin(&mut self, profile: &str) {
        self.timed = self.cycles.is_multiple_of(TIMED);
        self.cycles += 1;
        let known = self.asked.iter().position(|asked| asked.profile == profile);
        self.at = known.unwrap_or_else(|| {
            self.asked.push(Asked { profile: profile.to_owned(), ..Asked::default() });
            self.asked.len() - 1
        });
    }

    /// A cycle is over: what is asked until the next one does not count.
    pub fn end(&mut self) {
        self.timed = false;
        self.at = usize::MAX;
    }

    /// Asks a plugin whether a node takes a pod.
    ///
    /// # Errors
    /// Its refusal.
    pub fn filter<T>(&mut self, plugin: Plugin, ask: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        if let Some(count) = self.asked.get_mut(self.at).and_then(|asked| asked.filters.get_mut(plugin as usize)) {
            *count += 1;
        }
        if !self.timed {
            return ask();
        }
        let begun = (self.stopwatch)();
        let answer = ask();
        let status = match &answer {
            Ok(_) => "Success",
            Err(refusal) if refusal.resolvable => "Unschedulable",
            Err(_) => "UnschedulableAndUnresolvable",
        };
        self.took(plugin, Point::Filter, status, begun);
        answer
    }

    /// Asks a plugin how good nodes are.
    pub fn score<T>(&mut self, plugin: Plugin, ask: impl FnOnce() -> T) -> T {
        self.scored(plugin, 1);
        if !self.timed {
            return ask();
        }
        let begun = (self.stopwatch)();
        let score = ask();
        self.took(plugin, Point::Score, "Success", begun);
        score
    }

    /// Plugins gave so many scores, in no time worth telling.
    pub fn scored(&mut self, plugin: Plugin, scores: u64) {
        if let Some(count) = self.asked.get_mut(self.at).and_then(|asked| asked.scores.get_mut(plugin as usize)) {
            *count += scores;
        }
    }

    fn took(&mut self, plugin: Plugin, point: Point, status: &'static str, begun: Duration) {
        let took = (self.stopwatch)().saturating_sub(begun);
        self.took.entry((plugin, point, status)).or_insert_with(|| Histogram::new(EXECUTION)).observe(took);
    }

    /// Writes what was counted.
    pub fn write(&self, page: &mut Page) {
        page.family(
            "scheduler_plugin_evaluation_total",
            "counter",
            "How often plugins were asked, by what they were asked for.",
        );
        for asked in &self.asked {
            for (point, counts) in [(Point::Filter, &asked.filters), (Point::Score, &asked.scores)] {
                for (plugin, count) in Plugin::ALL.iter().zip(counts).filter(|(_, count)| **count > 0) {
                    let (plugin, profile) = (plugin.name(), asked.profile.as_str());
                    let labels = [("extension_point", point.name()), ("plugin", plugin), ("profile", profile)];
                    page.value(&labels, count);
                }
            }
        }
        page.family(
            "scheduler_plugin_execution_duration_seconds",
            "histogram",
            "Time that a plugin took to answer, in one cycle of ten, in seconds.",
        );
        for ((plugin, point, status), histogram) in &self.took {
            let labels = [("extension_point", point.name()), ("plugin", plugin.name()), ("status", *status)];
            page.histogram(&labels, histogram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cycle_of_ten_is_timed_and_every_question_counted() {
        let mut probe = Probe::default();
        let refused = || Err::<(), _>(Refusal::resolvable(Plugin::NodePorts, "no"));
        for cycle in 0..20 {
            probe.begin(if cycle == 3 { "other" } else { "default-scheduler" });
            assert!(
                probe.filter(Plugin::NodeName, || Ok(())).is_ok() && probe.filter(Plugin::NodePorts, refused).is_err()
            );
            assert_eq!(probe.score(Plugin::NodeResourcesFit, || 7), 7);
            probe.scored(Plugin::ImageLocality, 2);
            probe.end();
            assert!(probe.filter(Plugin::NodeName, || Ok(())).is_ok());
        }
        let mut page = Page::default();
        probe.write(&mut page);
        let text = page.text();
        let labels = |point: &str, plugin: &str, profile: &str| {
            format!("{{extension_point=\"{point}\",plugin=\"{plugin}\",profile=\"{profile}\"}}")
        };
        let took = |point: &str, plugin: &str, status: &str| {
            format!("_duration_seconds_count{{extension_point=\"{point}\",plugin=\"{plugin}\",status=\"{status}\"}}")
        };
        for (line, count) in [
            (labels("Filter", "NodeName", "default-scheduler"), 19),
            (labels("Filter", "NodePorts", "other"), 1),
            (labels("Score", "ImageLocality", "default-scheduler"), 38),
            (took("Filter", "NodeName", "Success"), 2),
            (took("Filter", "NodePorts", "Unschedulable"), 2),
            (took("Score", "NodeResourcesFit", "Success"), 2),
        ] {
            assert!(text.contains(&format!("{line} {count}\n")), "{line} {count} in\n{text}");
        }
        assert!(!text.contains("ImageLocality\",status"), "{text}");
    }
}
