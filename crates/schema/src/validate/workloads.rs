//! Sets of pods and jobs.

use serde_json::Value;

use super::access::{Errors, Place, unchanged};
use super::{metadata, names, pod};
use crate::error::FieldError;

/// Checks a label selector.
pub(super) fn selector(selector: &Place<'_>, errors: &mut Errors) {
    metadata::labels(selector, "matchLabels", errors);
    for expression in selector.items("matchExpressions") {
        if let Some(key) = expression.needs_text("key", errors)
            && let Some(problem) = names::qualified_name(key)
        {
            errors.push(FieldError::invalid(expression.path_of("key"), key, problem));
        }
        let values = expression.texts("values");
        match expression.text("operator") {
            "In" | "NotIn" if values.is_empty() => {
                errors.push(FieldError::required(
                    expression.path_of("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
            "In" | "NotIn" => {}
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.push(FieldError::forbidden(
                    expression.path_of("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
            "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(expression.path_of("operator"), other, "not a valid selector operator"))
            }
        }
    }
}

/// Whether labels match a selector.
fn matches(selector: &Value, labels: &Value) -> bool {
    let place = Place::root(selector);
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    place.entries("matchLabels").all(|(key, value)| label(key) == value.as_str())
        && place.items("matchExpressions").all(|expression| {
            let (found, values) = (label(expression.text("key")), expression.texts("values"));
            match expression.text("operator") {
                "In" => found.is_some_and(|v| values.contains(&v)),
                "NotIn" => found.is_none_or(|v| !values.contains(&v)),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// Checks a template of pods that are restarted always.
fn template(template: &Place<'_>, errors: &mut Errors) {
    metadata::labels(&template.field("metadata"), "labels", errors);
    let spec = template.field("spec");
    pod::spec(&spec, errors);
    if matches!(spec.text("restartPolicy"), "OnFailure" | "Never") {
        spec.one_of("restartPolicy", &["Always"], errors);
    }
}

pub(super) fn set_of_pods(kind: &str, object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    spec.not_negative("replicas", errors);
    spec.not_negative("minReadySeconds", errors);
    spec.not_negative("revisionHistoryLimit", errors);
    let (own, labels) = (spec.field("selector"), spec.at(&["template", "metadata", "labels"]));
    if !own.exists() {
        errors.push(FieldError::required(own.path.clone(), ""));
    } else {
        selector(&own, errors);
        let empty = own.map().is_none_or(|map| {
            map.values()
                .all(|v| v.as_object().is_none_or(serde_json::Map::is_empty) && v.as_array().is_none_or(Vec::is_empty))
        });
        if empty {
            errors.push(FieldError::invalid(
                own.path.clone(),
                own.value.clone(),
                format!("empty selector is invalid for {}", kind.to_lowercase()),
            ));
        } else if !matches(own.value, labels.value) {
            errors.push(FieldError::invalid(
                labels.path.clone(),
                labels.value.clone(),
                "`selector` does not match template `labels`",
            ));
        }
    }
    template(&spec.field("template"), errors);
    if kind == "Deployment" {
        let strategy = spec.field("strategy");
        strategy.one_of("type", &["Recreate", "RollingUpdate"], errors);
        if strategy.text("type") == "Recreate" && strategy.some("rollingUpdate").is_some() {
            errors.push(FieldError::forbidden(
                strategy.path_of("rollingUpdate"),
                "may not be specified when strategy `type` is 'Recreate'",
            ));
        }
    }
}

pub(super) fn replication_controller(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    spec.not_negative("replicas", errors);
    let (own, labels) = (spec.field("selector"), spec.at(&["template", "metadata", "labels"]));
    if own.map().is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required(own.path.clone(), ""));
    } else if !own.map().into_iter().flatten().all(|(key, value)| labels.value.get(key) == Some(value)) {
        errors.push(FieldError::invalid(
            labels.path.clone(),
            labels.value.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    template(&spec.field("template"), errors);
}

pub(super) fn job(spec: &Place<'_>, errors: &mut Errors) {
    for field in ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"] {
        spec.not_negative(field, errors);
    }
    let template = spec.field("template");
    metadata::labels(&template.field("metadata"), "labels", errors);
    let pod_spec = template.field("spec");
    pod::spec(&pod_spec, errors);
    pod_spec.one_of("restartPolicy", &["OnFailure", "Never"], errors);
}

pub(super) fn cron_job(spec: &Place<'_>, errors: &mut Errors) {
    if let Some(schedule) = spec.needs_text("schedule", errors)
        && !schedule.starts_with('@')
        && schedule.split_whitespace().count() != 5
    {
        let text = format!("expected exactly 5 fields, found {}: [{schedule}]", schedule.split_whitespace().count());
        errors.push(FieldError::invalid(spec.path_of("schedule"), schedule, text));
    }
    spec.one_of("concurrencyPolicy", &["Allow", "Forbid", "Replace"], errors);
    job(&spec.at(&["jobTemplate", "spec"]), errors);
}

const STATEFUL_SET_FORBIDDEN: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
    'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

pub(super) fn changes(kind: &str, new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    match kind {
        "StatefulSet" => {
            const FREE: [&str; 7] = [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ];
            let fixed = |spec: &Place<'_>| {
                spec.map()
                    .into_iter()
                    .flatten()
                    .filter(|(key, _)| !FREE.contains(&key.as_str()))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect::<Vec<_>>()
            };
            if fixed(&new) != fixed(&old) {
                errors.push(FieldError::forbidden("spec", STATEFUL_SET_FORBIDDEN));
            }
        }
        "Deployment" | "ReplicaSet" | "DaemonSet" => unchanged(&new.field("selector"), &old.field("selector"), errors),
        _ => {}
    }
}

pub(super) fn job_changes(new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    for field in ["selector", "completionMode", "template"] {
        // A suspended job may still be told where to run.
        if !(field == "template" && old.flag("suspend")) {
            unchanged(&new.field(field), &old.field(field), errors);
        }
    }
}
