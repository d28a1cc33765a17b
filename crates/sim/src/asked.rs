//! Pods that have to pass a probe before they count as started, or as ready: none is told to before it was asked and passed.
//!
//! ```text
//!   runs ─▶ told: not ready ─▶ its probe fails until a drawn age ─▶ passes ─▶ told: ready
//!             └── what is told of it before it was ever asked is what a kubelet goes on with after a restart
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use carrack_engine::{Rng, Time};
use carrack_kubelet::runtime::ContainerRecord;
use serde_json::{Value, json};

use crate::chance::between;
use crate::invariants::Breach;
use crate::node::{Node, named};
use crate::observer::{Change, key_of, label, text};
use crate::workload::{Act, mortal, mounting};

/// The invariant that is looked after here.
pub(crate) const NAME: &str = "nobody-is-ready-unasked";
/// The name of this part of the work.
pub(crate) const PART: &str = "asked";

/// Marks these pods, with the probe that they have to pass.
const LABEL: &str = "asked";
/// What their probes run: with the age, in seconds, from which on it passes.
const COMMAND: &str = "passes-from";
const STARTUP: &str = "startupProbe";

/// Pods with such probes.
pub(crate) fn acts(rng: &mut Rng, safety: Duration, acts: &mut Vec<Act>) {
    for n in 0..1 + rng.below(3) {
        let (name, probe) = (format!("asked{n}"), if rng.one_in(2) { STARTUP } else { "readinessProbe" });
        let at = between(rng, Duration::from_secs(1), safety / 2);
        let mut object = mounting(&name, 1 + rng.below(8), "scratch", "emptyDir", json!({}));
        object["metadata"]["labels"] = json!({LABEL: probe});
        let exec = json!({"command": [COMMAND, (1 + rng.below(6)).to_string()]});
        // However often it fails before, nobody is stopped for that.
        object["spec"]["containers"][0][probe] = json!({"exec": exec, "periodSeconds": 1, "failureThreshold": 1000});
        mortal(rng, at, safety, object, true, acts);
    }
}

/// How such a probe ends in a container, if a command is one.
pub(crate) fn answer(now: Time, container: &ContainerRecord, command: &[String]) -> Option<i32> {
    let [name, from_s] = command else { return None };
    let from = (name == COMMAND).then(|| Duration::from_secs(from_s.parse().unwrap_or(0)))?;
    Some(i32::from(container.started_at.is_none_or(|started| now.since(started) < from)))
}

/// Changes that were just committed: whoever is told to have started, or to be ready, has passed.
pub(crate) fn changed(changes: &[Change], nodes: &BTreeMap<u8, Node>, breaches: &mut Vec<Breach>) {
    for pod in changes.iter().filter(|change| change.resource == "pod").filter_map(|change| change.after.as_ref()) {
        let probe = label(pod, "labels", LABEL);
        let Some(node) = named(nodes, text(pod, "/spec/nodeName")).filter(|_| !probe.is_empty()) else { continue };
        let told = &pod["status"]["containerStatuses"][0];
        let id = told["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).unwrap_or_default();
        if counts(probe, told) && node.runtime.has_passed(id) == Some(false) {
            breaches.push(Breach::new(NAME, format!("{id} of {} is told to be, and has passed nothing", key_of(pod))));
        }
    }
}

/// Whether a container's status says that it has passed its probe.
fn counts(probe: &str, told: &Value) -> bool {
    told["ready"] == true || (probe == STARTUP && told["started"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_passed() {
        for (probe, ready, started, expected) in [
            (STARTUP, false, false, false),
            (STARTUP, false, true, true),
            (STARTUP, true, true, true),
            ("readinessProbe", false, true, false),
            ("readinessProbe", true, true, true),
        ] {
            let told = json!({"ready": ready, "started": started});
            assert_eq!(counts(probe, &told), expected, "{probe} {told}");
        }
    }
}
