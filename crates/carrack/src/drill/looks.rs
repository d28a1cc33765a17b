//! What is looked at all the time while a story is played: pods, instances, guests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use carrack_plot::Tone;
use serde_json::Value;

use super::api::{self, Api};
use super::journal::Journal;
use super::machine::{self, Contained};
use super::rules::{self, Rule};
use super::stage::{Stage, Watch};

/// How often the API is asked.
const ASK: Duration = Duration::from_millis(200);
/// How often the machine is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A pod's state in a few words.
pub fn pod_state(pod: &Value) -> (String, Tone) {
    let (phase, reason) = (api::text(pod, "/status/phase"), api::text(pod, "/status/reason"));
    let going = !api::text(pod, "/metadata/deletionTimestamp").is_empty();
    let waits = pod["status"]["containerStatuses"].as_array().into_iter().flatten().find_map(|status| {
        let waiting = &status["state"]["waiting"];
        let message = waiting["message"].as_str().filter(|text| !text.is_empty());
        message.or_else(|| waiting["reason"].as_str())
    });
    let (text, tone) = match phase {
        "Failed" => (format!("Failed {reason}"), Tone::Bad),
        "Succeeded" => (phase.to_owned(), Tone::Down),
        "Running" if api::is_true(pod, "Ready") => ("ready".to_owned(), Tone::Good),
        _ => (waits.map_or_else(|| phase.to_owned(), |why| format!("{phase}: {why}")), Tone::Busy),
    };
    if going { (format!("going, {}", text.trim_end()), Tone::Busy) } else { (text.trim_end().to_owned(), tone) }
}

/// Reasons by which a kubelet refuses a pod because of what its node has or is.
fn is_refusal(reason: &str) -> bool {
    reason.starts_with("OutOf") || ["UnexpectedAdmissionError", "NodeAffinity", "ResourceNotReady"].contains(&reason)
}

/// Watches pods: their lanes, and that none is refused for what is missing on its node for now.
///
/// # Errors
/// There are no threads to be had.
pub fn pods(stage: &Stage, api: &Api) -> anyhow::Result<Watch> {
    let (api, mut seen) = (api.clone(), BTreeSet::new());
    stage.watch(ASK, move |journal| {
        // A list that failed says nothing of any pod.
        let Ok(pods) = api.list(api::PODS) else { return };
        let mut here = BTreeSet::new();
        for pod in &pods {
            let lane = format!("pod {}", api::name(pod));
            let (text, tone) = pod_state(pod);
            journal.state(&lane, &text, tone);
            here.insert(lane);
            let refused = api::text(pod, "/status/phase") == "Failed" && is_refusal(api::text(pod, "/status/reason"));
            let message = || format!("{} is refused: {}", api::name(pod), api::text(pod, "/status/message"));
            journal.check(&rules::PLUGIN_ABSENCE, if refused { Err(message()) } else { Ok(()) });
        }
        for lane in seen.difference(&here) {
            journal.gone(lane);
        }
        seen = here;
    })
}

/// Watches instances of machines.
///
/// # Errors
/// There are no threads to be had.
pub fn instances(stage: &Stage, api: &Api) -> anyhow::Result<Watch> {
    let (api, mut seen) = (api.clone(), BTreeSet::new());
    stage.watch(ASK, move |journal| {
        let Ok(instances) = api.list(api::INSTANCES) else { return };
        let mut here = BTreeSet::new();
        for instance in &instances {
            let lane = format!("vmi {}", api::name(instance));
            let (phase, node) = (api::text(instance, "/status/phase"), api::text(instance, "/status/nodeName"));
            let tone = match phase {
                "Running" => Tone::Good,
                "Failed" => Tone::Bad,
                _ => Tone::Busy,
            };
            let place = if node.is_empty() { String::new() } else { format!(" on {node}") };
            let reason = api::text(instance, "/status/reason");
            let phase = if phase.is_empty() { "new" } else { phase };
            journal.state(&lane, format!("{phase}{place} {reason}").trim(), tone);
            here.insert(lane);
        }
        for lane in seen.difference(&here) {
            journal.gone(lane);
        }
        seen = here;
    })
}

/// Watches the guests that run below a directory: that there is never a second one. `called` names one by where it runs.
///
/// # Errors
/// There are no threads to be had.
pub fn guests(stage: &Stage, below: &Path, called: fn(&Path) -> String) -> anyhow::Result<Watch> {
    let (below, mut seen): (PathBuf, BTreeSet<String>) = (below.to_owned(), BTreeSet::new());
    stage.watch(LOOK, move |journal| {
        let guests = machine::guests(&below);
        let mut here = BTreeSet::new();
        for guest in guests.values() {
            let lane = called(&guest.pod_dir);
            journal.state(&lane, &format!("runs (pid {})", guest.process.pid), Tone::Good);
            here.insert(lane);
        }
        for lane in seen.difference(&here) {
            journal.gone(lane);
        }
        seen = here;
        journal.check(&rules::ONE_GUEST, alone(&guests));
    })
}

fn alone(guests: &BTreeMap<String, Contained>) -> Result<(), String> {
    if guests.len() <= 1 {
        return Ok(());
    }
    let places: Vec<String> =
        guests.values().map(|guest| format!("pid {} of {}", guest.process.pid, guest.pod_dir.display())).collect();
    Err(format!("{} guests run at once: {}", guests.len(), places.join(", ")))
}

/// Watches that processes stay the very same ones. Each comes with what it is called.
///
/// # Errors
/// There are no threads to be had.
pub fn same(stage: &Stage, rule: &'static Rule, processes: Vec<(String, Contained)>) -> anyhow::Result<Watch> {
    stage.watch(LOOK, move |journal| same_once(journal, rule, &processes))
}

fn same_once(journal: &Journal, rule: &Rule, processes: &[(String, Contained)]) {
    for (name, contained) in processes {
        let alive = contained.process.is_alive();
        let message = || format!("the process of {name} (pid {}) ended", contained.process.pid);
        if journal.check(rule, if alive { Ok(()) } else { Err(message()) }) {
            journal.state(&format!("process of {name}"), &format!("pid {}", contained.process.pid), Tone::Good);
        } else {
            journal.state(&format!("process of {name}"), "ended", Tone::Bad);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn states_of_pods() {
        let check = |pod: Value, expected: &str| assert_eq!(pod_state(&pod).0, expected, "{pod}");
        check(json!({"status": {"phase": "Pending"}}), "Pending");
        check(
            json!({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "R", "message": "for x"}}}]}}),
            "Pending: for x",
        );
        check(json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}), "ready");
        check(json!({"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Running"}}), "going, Running");
        check(json!({"status": {"phase": "Failed", "reason": "OutOfcpu"}}), "Failed OutOfcpu");
    }

    #[test]
    fn refusals() {
        for (reason, refused) in [("OutOfcpu", true), ("NodeAffinity", true), ("Evicted", false), ("", false)] {
            assert_eq!(is_refusal(reason), refused, "{reason}");
        }
    }

    #[test]
    fn a_process_that_ended_breaks_its_rule() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().expect("sleep starts");
        let process = carrack_noderuntime::process::ProcessId::of(i32::try_from(child.id()).expect("a pid"));
        let contained =
            Contained { process: process.expect("it runs"), words: Vec::new(), pod_dir: PathBuf::from("/pods/u") };
        let processes = [("it".to_owned(), contained)];
        let journal = Journal::new("test");
        same_once(&journal, &rules::CONTAINERS_STAY, &processes);
        assert!(!journal.is_broken());
        child.kill().and_then(|()| child.wait()).expect("it ends");
        same_once(&journal, &rules::CONTAINERS_STAY, &processes);
        assert!(journal.is_broken());
    }
}
