//! What a run came to.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clones::Counts;
use crate::trace::Trace;

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash over all lines of the trace.
    pub trace_hash: u64,
    /// How long the run took, in simulated time.
    pub simulated: Duration,
    /// How many events happened.
    pub steps: u64,
    /// What broke, if something did.
    pub failure: Option<Failure>,
    /// What happened.
    pub trace: Trace,
    /// What happened, as SVG; empty when it was not to be drawn.
    pub picture: String,
    /// The state of all workloads in the end, by kind and name, without what chance decides.
    pub end: BTreeMap<String, serde_json::Value>,
    /// What people have in the end of what they asked for, by kind and name, without what trouble may change of it.
    pub results: BTreeMap<String, serde_json::Value>,
    /// How much of what could have gone wrong with clones has happened.
    pub counts: Counts,
}

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its name (see [`crate::INVARIANTS`]).
    pub invariant: &'static str,
    /// How it broke.
    pub message: String,
    /// The last lines before, for a reader.
    pub timeline: String,
    /// The command that plays this run again, line by line.
    pub replay: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n{} is broken: {}\nreplay: {}", self.timeline, self.invariant, self.message, self.replay)
    }
}
