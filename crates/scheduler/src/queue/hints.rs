//! How long plugins take to say whether an event may help a pod that they refused (`queueing_hint_execution_duration_seconds`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::Event;
use crate::Plugin;
use crate::metrics::{Histogram, Page, Stopwatch};
use crate::probe::EXECUTION;

/// Times what plugins are asked about events.
#[derive(Clone, Debug)]
pub struct Hints {
    stopwatch: Stopwatch,
    /// By plugin, event, and whether it said that the event may help.
    took: BTreeMap<(Plugin, &'static str, bool), Histogram>,
}

/// One that takes all for done at once.
impl Default for Hints {
    fn default() -> Self {
        Self { stopwatch: || Duration::ZERO, took: BTreeMap::new() }
    }
}

impl Hints {
    /// Has time told by this stopwatch.
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = stopwatch;
    }

    /// Asks a plugin about an event.
    pub fn ask(&mut self, plugin: Plugin, event: &Event, ask: impl FnOnce() -> bool) -> bool {
        let begun = (self.stopwatch)();
        let helps = ask();
        let took = (self.stopwatch)().saturating_sub(begun);
        let key = (plugin, event.name(), helps);
        self.took.entry(key).or_insert_with(|| Histogram::new(EXECUTION)).observe(took);
        helps
    }

    /// Writes what was timed.
    pub fn write(&self, page: &mut Page) {
        page.family(
            "scheduler_queueing_hint_execution_duration_seconds",
            "histogram",
            "Time that a plugin took to say whether an event may help a pod, in seconds.",
        );
        for ((plugin, event, helps), took) in &self.took {
            let hint = if *helps { "Queue" } else { "QueueSkip" };
            page.histogram(&[("event", event), ("hint", hint), ("plugin", plugin.name())], took);
        }
    }
}
