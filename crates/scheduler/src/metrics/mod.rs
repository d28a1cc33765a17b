//! Counts of what was done, under upstream's names (pkg/scheduler/metrics).
//!
//! How long work within a step took is told by a stopwatch that the shell hands in; a core of its own has none, and then
//! all work takes no time. What is measured is never read back by a decision.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::queue::Hints;
use crate::{Counts, Plugin, Probe};

pub use carrack_engine::page::{Bounds, Histogram, Page};

/// Tells the time that has passed since some moment, on a clock that never goes back.
pub type Stopwatch = fn() -> Duration;

/// Of attempts, of the algorithm, and of requests: from 1 ms, in seconds.
const ATTEMPT: Bounds = Bounds { first: 0.001, factor: 2.0, count: 15 };
/// Of pods' way from the queue to their binding, and of preemptions until their victims were deleted: from 10 ms, in
/// seconds.
const POD: Bounds = Bounds { first: 0.01, factor: 2.0, count: 20 };
/// Of extension points, and of telling pods that wait of an event: from 0.1 ms, in seconds.
const POINT: Bounds = Bounds { first: 0.0001, factor: 2.0, count: 12 };
const VICTIMS: Bounds = Bounds { first: 1.0, factor: 2.0, count: 7 };
const ATTEMPTS: Bounds = Bounds { first: 1.0, factor: 2.0, count: 5 };
/// Pods with so many attempts or more are counted together (`getAttemptsLabel`).
const MANY_ATTEMPTS: u32 = 15;

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

/// A part of a cycle, by upstream's name. Classes do in one go what upstream's plugins do in several: what they prepare
/// counts with `Filter`, and normalizing with `Score`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// All filters on all nodes that changed.
    Filter,
    /// Looking for victims.
    PostFilter,
    /// All scores, and the choice.
    Score,
    /// Claims and volumes, until they are bound.
    PreBind,
    /// The binding, until its reply.
    Bind,
}

impl Point {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::Score => "Score",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
        }
    }
}

/// Whether a part of a cycle did what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It did.
    Success,
    /// No node.
    Unschedulable,
    /// It failed.
    Error,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Unschedulable => "Unschedulable",
            Self::Error => "Error",
        }
    }
}

/// What is counted elsewhere and shown with the rest.
#[derive(Clone, Debug, Default)]
pub struct Shown<'a> {
    /// Pods in the queue.
    pub queue: Counts,
    /// Of these, pods in flight that look for a node.
    pub looking: usize,
    /// Pods between the choice of their node and the end of their binding.
    pub binding: usize,
    /// Unschedulable pods by plugin and profile.
    pub refused: BTreeMap<(Plugin, &'a str), usize>,
    /// Pods that came into a part of the queue, by the part and by why.
    pub incoming: Vec<(&'static str, &'static str, u64)>,
    /// Events that pods in flight have still to be told of, by name.
    pub events: BTreeMap<&'static str, usize>,
    /// Nodes that it knows.
    pub nodes: usize,
    /// Pods that it counts on nodes.
    pub pods: usize,
    /// Of these, those whose binding was not seen yet.
    pub assumed: usize,
    /// Name of its Lease, and whether it holds it.
    pub leads: Option<(&'a str, bool)>,
    /// What plugins were asked.
    pub probe: Option<&'a Probe>,
    /// What they were asked about events.
    pub hints: Option<&'a Hints>,
    /// Requests about pods that have no answer yet, by what they are.
    pub calls: BTreeMap<&'static str, usize>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    attempts: BTreeMap<(Ended, String), (u64, Option<Histogram>)>,
    pods: BTreeMap<u32, Option<Histogram>>,
    tries: Option<Histogram>,
    algorithm: Option<Histogram>,
    points: BTreeMap<(Point, String, Status), Option<Histogram>>,
    preemptions: u64,
    victims: Option<Histogram>,
    /// How long it took until the deletion of all victims of a preemption was acknowledged, or not, by whether it was.
    evictions: BTreeMap<bool, Histogram>,
    /// Pods that were bound after they had waited so long that they were tried without any event.
    after_flush: u64,
    events: BTreeMap<&'static str, Histogram>,
    /// How long requests about pods took that were answered, by what they are, and whether with success.
    calls: BTreeMap<(&'static str, bool), Histogram>,
}

fn observe(slot: &mut Option<Histogram>, bounds: Bounds, duration: Duration) {
    slot.get_or_insert_with(|| Histogram::new(bounds)).observe(duration);
}

impl Metrics {
    /// An attempt ended, so long after its pod was popped.
    pub fn attempt(&mut self, ended: Ended, profile: &str, took: Duration) {
        let (count, histogram) = self.attempts.entry((ended, profile.to_owned())).or_default();
        *count += 1;
        observe(histogram, ATTEMPT, took);
    }
    /// A pod was bound, after so many attempts and so long after it first came, and whether no event had woken it.
    pub fn scheduled(&mut self, attempts: u32, took: Duration, flushed: bool) {
        self.after_flush += u64::from(flushed);
        observe(self.pods.entry(attempts.min(MANY_ATTEMPTS)).or_default(), POD, took);
        self.tries.get_or_insert_with(|| Histogram::new(ATTEMPTS)).observe_number(attempts.into());
    }
    /// The choice of a node took so long.
    pub fn algorithm(&mut self, took: Duration) {
        observe(&mut self.algorithm, ATTEMPT, took);
    }
    /// A part of a cycle took so long.
    pub fn point(&mut self, point: Point, profile: &str, status: Status, took: Duration) {
        observe(self.points.entry((point, profile.to_owned(), status)).or_default(), POINT, took);
    }
    /// Pods that wait were told of an event, which took so long.
    pub fn told_of(&mut self, event: &'static str, took: Duration) {
        self.events.entry(event).or_insert_with(|| Histogram::new(POINT)).observe(took);
    }
    /// A request about a pod was answered after so long.
    pub fn called(&mut self, what: &'static str, success: bool, took: Duration) {
        self.calls.entry((what, success)).or_insert_with(|| Histogram::new(ATTEMPT)).observe(took);
    }
    /// A node was chosen to be made free.
    #[expect(clippy::cast_precision_loss, reason = "pods of one node need no 53 bits")]
    pub fn preempted(&mut self, victims: usize) {
        self.victims.get_or_insert_with(|| Histogram::new(VICTIMS)).observe_number(victims as f64);
    }
    /// All that was asked of the API for one preemption was answered, after so long, and whether with success.
    pub fn evicted(&mut self, success: bool, took: Duration) {
        self.evictions.entry(success).or_insert_with(|| Histogram::new(POD)).observe(took);
    }
    /// Preemption was tried.
    pub fn preempts(&mut self) {
        self.preemptions += 1;
    }
    /// How many attempts ended so.
    #[must_use]
    pub fn ended(&self, ended: Ended) -> u64 {
        self.attempts.iter().filter(|((e, _), _)| *e == ended).map(|(_, (count, _))| count).sum()
    }

    /// In the text form that Prometheus reads.
    #[must_use]
    pub fn text(&self, shown: &Shown<'_>) -> String {
        let mut page = Page::default();
        page.family(
            "scheduler_schedule_attempts_total",
            "counter",
            "Attempts to find a node for a pod, by how they ended.",
        );
        for ((ended, profile), (count, _)) in &self.attempts {
            page.value(&[("profile", profile), ("result", ended.name())], count);
        }
        page.family(
            "scheduler_scheduling_attempt_duration_seconds",
            "histogram",
            "Time from a pod's turn until its binding or its refusal, in seconds.",
        );
        for ((ended, profile), (_, histogram)) in &self.attempts {
            if let Some(histogram) = histogram {
                page.histogram(&[("profile", profile), ("result", ended.name())], histogram);
            }
        }
        page.family(
            "scheduler_scheduling_algorithm_duration_seconds",
            "histogram",
            "Time in which a node was chosen, in seconds.",
        );
        self.algorithm.iter().for_each(|h| {
            page.histogram(&[], h);
        });
        page.family(
            "scheduler_framework_extension_point_duration_seconds",
            "histogram",
            "Time that all plugins took at an extension point, in seconds.",
        );
        for ((point, profile, status), histogram) in &self.points {
            let labels = [("extension_point", point.name()), ("profile", profile), ("status", status.name())];
            histogram.iter().for_each(|h| {
                page.histogram(&labels, h);
            });
        }
        page.family(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "histogram",
            "Time from when a pod came into the queue until it was bound, in seconds.",
        );
        for (attempts, histogram) in &self.pods {
            let label = if *attempts < MANY_ATTEMPTS { attempts.to_string() } else { format!("{attempts}+") };
            histogram.iter().for_each(|h| {
                page.histogram(&[("attempts", &label)], h);
            });
        }
        page.family(
            "scheduler_pod_scheduling_attempts",
            "histogram",
            "How many attempts pods took until they were bound.",
        );
        self.tries.iter().for_each(|h| {
            page.histogram(&[], h);
        });
        page.family(
            "scheduler_pod_scheduled_after_flush_total",
            "counter",
            "Pods that were bound after they had waited so long that they were tried without any event.",
        );
        page.value(&[], self.after_flush);
        page.family(
            "scheduler_event_handling_duration_seconds",
            "histogram",
            "Time in which pods that wait were told of an event, in seconds.",
        );
        for (event, histogram) in &self.events {
            page.histogram(&[("event", event)], histogram);
        }
        let result = |success: &bool| if *success { "success" } else { "error" };
        page.family(
            "scheduler_async_api_call_execution_total",
            "counter",
            "Requests about pods that were answered, by what they are and how it ended.",
        );
        for ((what, success), took) in &self.calls {
            page.value(&[("call_type", what), ("result", result(success))], took.count());
        }
        page.family(
            "scheduler_async_api_call_execution_duration_seconds",
            "histogram",
            "Time until requests about pods were answered, in seconds.",
        );
        for ((what, success), took) in &self.calls {
            page.histogram(&[("call_type", what), ("result", result(success))], took);
        }
        page.family("scheduler_preemption_attempts_total", "counter", "How often room for a pod was to be made.");
        page.value(&[], self.preemptions);
        page.family("scheduler_preemption_victims", "histogram", "How many pods had to go for another one.");
        self.victims.iter().for_each(|h| {
            page.histogram(&[], h);
        });
        page.family(
            "scheduler_preemption_goroutines_execution_total",
            "counter",
            "Preemptions for which the deletion of all victims was asked for, by how it ended.",
        );
        for (success, took) in &self.evictions {
            page.value(&[("result", result(success))], took.count());
        }
        page.family(
            "scheduler_preemption_goroutines_duration_seconds",
            "histogram",
            "Time until the deletion of all victims of a preemption was acknowledged, in seconds.",
        );
        for (success, took) in &self.evictions {
            page.histogram(&[("result", result(success))], took);
        }
        shown.write(&mut page);
        page.text()
    }
}

impl Shown<'_> {
    fn write(&self, page: &mut Page) {
        page.family("scheduler_pending_pods", "gauge", "Pods that wait, by the part of the queue.");
        let places = [
            ("active", self.queue.active),
            ("backoff", self.queue.backoff),
            ("gated", self.queue.gated),
            ("unschedulable", self.queue.unschedulable),
        ];
        for (place, count) in places {
            page.value(&[("queue", place)], count);
        }
        page.family(
            "scheduler_queue_incoming_pods_total",
            "counter",
            "Pods that came into a part of the queue, by what brought them there.",
        );
        for (queue, event, count) in &self.incoming {
            page.value(&[("event", event), ("queue", queue)], count);
        }
        page.family("scheduler_unschedulable_pods", "gauge", "Pods that each plugin has refused everywhere.");
        for ((plugin, profile), count) in &self.refused {
            page.value(&[("plugin", plugin.name()), ("profile", profile)], count);
        }
        page.family("scheduler_inflight_events", "gauge", "Pods that look for a node, and events kept for them.");
        page.value(&[("event", "PodPopped")], self.looking);
        for (event, count) in &self.events {
            page.value(&[("event", event)], count);
        }
        page.family("scheduler_goroutines", "gauge", "Pods whose node was chosen and that are not bound yet.");
        page.value(&[("operation", "binding")], self.binding);
        page.family("scheduler_cache_size", "gauge", "Nodes, pods and assumed pods that are known.");
        for (kind, count) in [("assumed_pods", self.assumed), ("nodes", self.nodes), ("pods", self.pods)] {
            page.value(&[("type", kind)], count);
        }
        page.family("scheduler_pending_async_api_calls", "gauge", "Requests about pods that have no answer yet.");
        for (what, count) in &self.calls {
            page.value(&[("call_type", what)], count);
        }
        if let Some(probe) = self.probe {
            probe.write(page);
        }
        if let Some(hints) = self.hints {
            hints.write(page);
        }
        if let Some((lease, leads)) = self.leads {
            page.family("leader_election_master_status", "gauge", "Whether this process holds the Lease of a name.");
            page.value(&[("name", lease)], u8::from(leads));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_with_many_attempts_are_counted_together() {
        let mut metrics = Metrics::default();
        for attempts in [1, 14, 15, 16, 400] {
            metrics.scheduled(attempts, Duration::from_secs(1), false);
        }
        let text = metrics.text(&Shown::default());
        for (label, count) in [("1", 1), ("14", 1), ("15+", 3)] {
            let line = format!("scheduler_pod_scheduling_sli_duration_seconds_count{{attempts=\"{label}\"}} {count}");
            assert!(text.lines().any(|is| is == line), "{line} in\n{text}");
        }
    }
}
