//! The cells of workloads: sets of pods and jobs.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::access::{Row, condition, joined, labels, list, selector, text};
use super::duration::human_duration;
use crate::convert;

fn images_and_names(row: Row<'_>, path: &str) -> [Value; 2] {
    let containers = row.list(path);
    [
        joined(containers.iter().map(|c| text(c, "name")), ",", "").into(),
        joined(containers.iter().map(|c| text(c, "image")), ",", "").into(),
    ]
}

const TEMPLATE: &str = "spec.template.spec.containers";

pub(super) fn deployment(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, TEMPLATE);
    vec![
        row.name(),
        format!("{}/{}", row.number("status.readyReplicas"), row.number("spec.replicas")).into(),
        row.number("status.updatedReplicas").into(),
        row.number("status.availableReplicas").into(),
        row.age(),
        names,
        images,
        selector(row.get("spec.selector")).into(),
    ]
}

pub(super) fn replica_set(row: Row<'_>, old_selector: bool) -> Vec<Value> {
    let [names, images] = images_and_names(row, TEMPLATE);
    vec![
        row.name(),
        row.number("spec.replicas").into(),
        row.number("status.replicas").into(),
        row.number("status.readyReplicas").into(),
        row.age(),
        names,
        images,
        if old_selector { labels(row.map("spec.selector")) } else { selector(row.get("spec.selector")) }.into(),
    ]
}

pub(super) fn stateful_set(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, TEMPLATE);
    let ready = format!("{}/{}", row.number("status.readyReplicas"), row.number("spec.replicas"));
    vec![row.name(), ready.into(), row.age(), names, images]
}

pub(super) fn daemon_set(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, TEMPLATE);
    vec![
        row.name(),
        row.number("status.desiredNumberScheduled").into(),
        row.number("status.currentNumberScheduled").into(),
        row.number("status.numberReady").into(),
        row.number("status.updatedNumberScheduled").into(),
        row.number("status.numberAvailable").into(),
        labels(row.map("spec.template.spec.nodeSelector")).into(),
        row.age(),
        names,
        images,
        selector(row.get("spec.selector")).into(),
    ]
}

pub(super) fn job(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, TEMPLATE);
    let succeeded = row.number("status.succeeded");
    let completions = match (row.get("spec.completions").and_then(Value::as_i64), row.number("spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let time = |path: &str| row.text(path).parse::<Timestamp>().ok();
    let duration = match (time("status.startTime"), time("status.completionTime")) {
        (None, _) => String::new(),
        (Some(start), end) => human_duration(end.unwrap_or(row.now).duration_since(start).as_secs()),
    };
    let status = row.get("status").unwrap_or(&Value::Null);
    let has = |type_: &str| condition(status, type_) == Some("True");
    let state = match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if row.is_deleting() => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    vec![
        row.name(),
        state.into(),
        completions.into(),
        duration.into(),
        row.age(),
        names,
        images,
        selector(row.get("spec.selector")).into(),
    ]
}

pub(super) fn cron_job(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, "spec.jobTemplate.spec.template.spec.containers");
    let last = if row.text("status.lastScheduleTime").is_empty() {
        json!("<none>")
    } else {
        row.since("status.lastScheduleTime")
    };
    vec![
        row.name(),
        row.text("spec.schedule").into(),
        row.text_or("spec.timeZone", "<none>").into(),
        if row.flag("spec.suspend") { "True" } else { "False" }.into(),
        row.count("status.active").into(),
        last,
        row.age(),
        names,
        images,
        selector(row.get("spec.jobTemplate.spec.selector")).into(),
    ]
}

pub(super) fn pod_template(row: Row<'_>) -> Vec<Value> {
    let [names, images] = images_and_names(row, "template.spec.containers");
    vec![row.name(), names, images, labels(row.map("template.metadata.labels")).into()]
}

pub(super) fn autoscaler(row: Row<'_>) -> Vec<Value> {
    let object = convert::spelled_out(row.value);
    let row = Row::new(&object, row.now);
    let current = row.list("status.currentMetrics");
    let targets: Vec<String> =
        row.list("spec.metrics").iter().enumerate().map(|(index, metric)| target(metric, current.get(index))).collect();
    let targets = joined(targets.iter().map(String::as_str), ", ", "<none>");
    let reference = format!("{}/{}", row.text("spec.scaleTargetRef.kind"), row.text("spec.scaleTargetRef.name"));
    vec![
        row.name(),
        reference.into(),
        targets.into(),
        row.get("spec.minReplicas")
            .and_then(Value::as_i64)
            .map_or_else(|| "<unset>".to_owned(), |n| n.to_string())
            .into(),
        row.number("spec.maxReplicas").to_string().into(),
        row.number("status.currentReplicas").into(),
        row.age(),
    ]
}

fn target(metric: &Value, current: Option<&Value>) -> String {
    let field = match text(metric, "type") {
        "Resource" => "resource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        "ContainerResource" => "containerResource",
        _ => return "<unknown>".to_owned(),
    };
    let (spec, now) =
        (metric.get(field).unwrap_or(&Value::Null), current.and_then(|c| c.get(field)).and_then(|c| c.get("current")));
    let now = |key: &str| now.and_then(|n| n.get(key)).filter(|v| !v.is_null());
    let shown = match spec.pointer("/target/averageUtilization").and_then(Value::as_i64) {
        Some(wanted) => {
            let now = now("averageUtilization").map_or("<unknown>".to_owned(), |v| format!("{v}%"));
            format!("{now}/{wanted}%")
        }
        None => {
            let key = if spec.pointer("/target/averageValue").is_some() { "averageValue" } else { "value" };
            let wanted = text(spec.get("target").unwrap_or(&Value::Null), key);
            format!("{}/{wanted}", now(key).and_then(Value::as_str).unwrap_or("<unknown>"))
        }
    };
    match text(spec, "name") {
        "" => shown,
        name => format!("{name}: {shown}"),
    }
}

/// Users, groups and service accounts of a binding.
pub(super) fn subjects(row: Row<'_>) -> [Value; 3] {
    let of = |kind: &str| {
        let names: Vec<String> = list(row.value, "subjects")
            .iter()
            .filter(|s| text(s, "kind") == kind)
            .map(|s| match text(s, "namespace") {
                "" => text(s, "name").to_owned(),
                namespace => format!("{namespace}/{}", text(s, "name")),
            })
            .collect();
        Value::from(names.join(", "))
    };
    [of("User"), of("Group"), of("ServiceAccount")]
}
