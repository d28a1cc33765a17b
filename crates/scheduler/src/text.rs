//! What is told about a pod that no node takes, in upstream's words (framework/types.go, `FitError`).

use std::collections::BTreeMap;

use crate::Refusal;

/// The longest message of an event, in bytes (`NoteLengthLimit` in pkg/apis/core/validation).
const LONGEST_EVENT: usize = 1024;

/// A message as an event may have it (schedule_one.go, `truncateMessage`). There are as many reasons as extenders have words.
#[must_use]
pub fn for_event(message: &str) -> String {
    const END: &str = " ...";
    if message.len() <= LONGEST_EVENT {
        return message.to_owned();
    }
    let mut end = LONGEST_EVENT - END.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{END}", message.get(..end).unwrap_or_default())
}

/// No node takes a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    /// How many nodes there are.
    pub nodes: usize,
    /// What keeps the pod from every node.
    pub everywhere: Option<String>,
    /// Why nodes refuse, and how many for each reason.
    pub refusals: BTreeMap<Refusal, usize>,
    /// What preemption came to; empty when it was not tried.
    pub preemption: String,
}

/// `2 a, 3 b`, sorted as text.
fn counted(counts: &BTreeMap<String, usize>) -> String {
    let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}

/// `0/5 nodes are available: 2 a, 3 b.`
#[must_use]
pub fn unavailable(nodes: usize, reasons: &BTreeMap<String, usize>) -> String {
    if reasons.is_empty() {
        return format!("0/{nodes} nodes are available:");
    }
    format!("0/{nodes} nodes are available: {}.", counted(reasons))
}

impl FitError {
    /// How many nodes have each reason.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<String, usize> {
        let mut reasons = BTreeMap::new();
        for (refusal, nodes) in &self.refusals {
            for reason in &refusal.reasons {
                *reasons.entry(reason.clone()).or_default() += nodes;
            }
        }
        reasons
    }
}

impl std::fmt::Display for FitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        match &self.everywhere {
            Some(why) => write!(f, "0/{} nodes are available: {why}.", self.nodes)?,
            None => f.write_str(&unavailable(self.nodes, &self.reasons()))?,
        }
        if self.preemption.is_empty() { Ok(()) } else { write!(f, " {}", self.preemption) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plugin;

    #[test]
    fn an_event_is_no_longer_than_it_may_be() {
        for (message, length) in [("x".repeat(1024), 1024), ("x".repeat(1025), 1024), ("\u{20ac}".repeat(400), 1024)] {
            let told = for_event(&message);
            assert_eq!(told.len(), length, "{told}");
            assert_eq!(told.ends_with(" ..."), message.len() > 1024);
        }
        assert_eq!(for_event("short"), "short");
    }

    #[test]
    fn upstreams_words() {
        let refusals = BTreeMap::from([
            (Refusal::resolvable(Plugin::NodeResourcesFit, "Insufficient cpu"), 2),
            (Refusal::unresolvable(Plugin::TaintToleration, "node(s) had untolerated taint(s)"), 3),
        ]);
        let error = FitError { nodes: 5, refusals, preemption: "preemption: x".into(), ..FitError::default() };
        assert_eq!(
            error.to_string(),
            "0/5 nodes are available: 2 Insufficient cpu, 3 node(s) had untolerated taint(s). preemption: x"
        );
        assert_eq!(FitError::default().to_string(), "no nodes available to schedule pods");
        let everywhere = Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
        assert_eq!(
            FitError { nodes: 1, everywhere, ..FitError::default() }.to_string(),
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        );
    }
}
