//! The cells of a pod: readiness, the one word that says what it is about, restarts.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::access::{Row, condition, get, list, number, text};
use super::duration::human_duration;

pub(super) fn cells(row: Row<'_>) -> Vec<Value> {
    let summary = summarize(row);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, human_duration(row.now.duration_since(at).as_secs()))
        }
        _ => summary.restarts.to_string(),
    };
    let first_ip = row.list("status.podIPs").first().map_or(row.text("status.podIP"), |ip| text(ip, "ip"));
    vec![
        row.name(),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        row.age(),
        if first_ip.is_empty() { "<none>" } else { first_ip }.into(),
        row.text_or("spec.nodeName", "<none>").into(),
        row.text_or("status.nominatedNodeName", "<none>").into(),
        readiness_gates(row),
    ]
}

fn readiness_gates(row: Row<'_>) -> Value {
    let gates = row.list("spec.readinessGates");
    if gates.is_empty() {
        return json!("<none>");
    }
    let status = row.get("status").unwrap_or(&Value::Null);
    let met = gates.iter().filter(|gate| condition(status, text(gate, "conditionType")) == Some("True")).count();
    format!("{met}/{}", gates.len()).into()
}

#[derive(Default)]
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn count_restarts(&mut self, container: &Value) {
        self.restarts += number(container, "restartCount");
        let finished = text(container, "lastState.terminated.finishedAt").parse::<Timestamp>().ok();
        self.last_restart = self.last_restart.max(finished);
    }
}

fn summarize(row: Row<'_>) -> Summary {
    let status = row.get("status").unwrap_or(&Value::Null);
    let init_specs = row.list("spec.initContainers");
    let is_sidecar =
        |name: &str| init_specs.iter().any(|c| text(c, "name") == name && text(c, "restartPolicy") == "Always");
    let mut summary = Summary {
        total: row.list("spec.containers").len()
            + init_specs.iter().filter(|c| text(c, "restartPolicy") == "Always").count(),
        reason: row.text_or("status.reason", row.text("status.phase")).to_owned(),
        ..Summary::default()
    };
    let gated = list(status, "conditions")
        .iter()
        .any(|c| text(c, "type") == "PodScheduled" && text(c, "reason") == "SchedulingGated");
    if gated {
        summary.reason = "SchedulingGated".to_owned();
    }

    let mut sidecars = Summary::default();
    let mut initializing = false;
    for (index, container) in list(status, "initContainerStatuses").iter().enumerate() {
        summary.count_restarts(container);
        let sidecar = is_sidecar(text(container, "name"));
        if sidecar {
            sidecars.count_restarts(container);
        }
        let state = get(container, "state").unwrap_or(&Value::Null);
        if let Some(terminated) = get(state, "terminated") {
            if number(terminated, "exitCode") == 0 {
                continue;
            }
            summary.reason = format!("Init:{}", exit_reason(terminated));
        } else if sidecar && container.get("started") == Some(&Value::Bool(true)) {
            summary.ready += usize::from(container.get("ready") == Some(&Value::Bool(true)));
            continue;
        } else {
            summary.reason = match text(state, "waiting.reason") {
                "" | "PodInitializing" => format!("Init:{index}/{}", init_specs.len()),
                reason => format!("Init:{reason}"),
            };
        }
        initializing = true;
        break;
    }

    if !initializing || condition(status, "Initialized") == Some("True") {
        summary.restarts = sidecars.restarts;
        summary.last_restart = sidecars.last_restart;
        let mut running = false;
        for container in list(status, "containerStatuses").iter().rev() {
            summary.count_restarts(container);
            let state = get(container, "state").unwrap_or(&Value::Null);
            let waiting = text(state, "waiting.reason");
            if !waiting.is_empty() {
                summary.reason = waiting.to_owned();
            } else if let Some(terminated) = get(state, "terminated") {
                summary.reason = exit_reason(terminated);
            } else if container.get("ready") == Some(&Value::Bool(true)) && get(state, "running").is_some() {
                running = true;
                summary.ready += 1;
            }
        }
        if summary.reason == "Completed" && running {
            let ready = condition(status, "Ready") == Some("True");
            summary.reason = if ready { "Running" } else { "NotReady" }.to_owned();
        }
    }

    if row.is_deleting() {
        if row.text("status.reason") == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(row.text("status.phase"), "Failed" | "Succeeded") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

/// Why a container ended, in a word.
fn exit_reason(terminated: &Value) -> String {
    match (text(terminated, "reason"), number(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", number(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
