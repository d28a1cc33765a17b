//! Counts of what was asked, and what the ledger holds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::core::Verb;
use crate::ledger::{Ledger, Stage};

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    asked: BTreeMap<Verb, u64>,
    failed: BTreeMap<Verb, u64>,
    /// Pods that ask for GPUs and were bound without a choice of them.
    pub unassigned: u64,
}

impl Metrics {
    /// A question came.
    pub fn asked(&mut self, verb: Verb) {
        *self.asked.entry(verb).or_default() += 1;
    }
    /// It was answered with an error.
    pub fn failed(&mut self, verb: Verb) {
        *self.failed.entry(verb).or_default() += 1;
    }
    /// In Prometheus' text form.
    #[must_use]
    pub fn text(&self, ledger: &Ledger, ready: bool) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, u64)]| {
            let name = format!("carrack_gpu_extender_{name}");
            // Writing to a String cannot fail.
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").unwrap_or_default();
            for (labels, value) in rows {
                writeln!(text, "{name}{labels} {value}").unwrap_or_default();
            }
        };
        let verbs = |counts: &BTreeMap<Verb, u64>| -> Vec<(String, u64)> {
            counts.iter().map(|(verb, count)| (format!("{{verb=\"{}\"}}", verb.name()), *count)).collect()
        };
        family("requests_total", "counter", "Questions of the scheduler and others.", &verbs(&self.asked));
        family("failures_total", "counter", "Questions that were answered with an error.", &verbs(&self.failed));
        let mut stages: BTreeMap<&str, u64> =
            [Stage::Binding, Stage::Undoing, Stage::Held].map(|stage| (stage.name(), 0)).into();
        stages.insert("offered", 0);
        let (mut cores, mut memory) = (0_u64, 0_u64);
        for (_, entry) in ledger.iter() {
            *stages.entry(entry.stage.name()).or_default() += 1;
            cores += entry.holds.values().map(|used| u64::from(used.cores)).sum::<u64>();
            memory = entry.holds.values().fold(memory, |sum, used| sum.saturating_add(used.memory));
        }
        let rows: Vec<(String, u64)> = stages.iter().map(|(s, n)| (format!("{{stage=\"{s}\"}}"), *n)).collect();
        family("pods", "gauge", "Pods in the ledger of GPUs.", &rows);
        let contested = u64::try_from(ledger.contested().count()).unwrap_or(u64::MAX);
        let help = "Pods whose annotations claim GPUs that others have, or that their nodes have not.";
        family("contested_pods", "gauge", help, &[(String::new(), contested)]);
        family("cores", "gauge", "Hundredths of GPUs in use.", &[(String::new(), cores)]);
        family("memory_units", "gauge", "Units of GPU memory in use.", &[(String::new(), memory)]);
        let unassigned = [(String::new(), self.unassigned)];
        family("unassigned_pods_total", "counter", "Pods with GPUs that were bound past the extender.", &unassigned);
        family("ready", "gauge", "Whether the ledger is rebuilt.", &[(String::new(), u64::from(ready))]);
        text
    }
}
