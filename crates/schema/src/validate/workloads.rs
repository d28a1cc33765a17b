//! Sets of pods.

use serde_json::Value;

use super::access::{Errors, Place};
use super::alike::plain;
use super::demand::{Change, Demand, Row, changes as held_to, check};
use super::limits::number_or_percent;
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
        for (index, value) in values.into_iter().enumerate() {
            let path = format!("{}[{index}]", expression.path_of("values"));
            errors.extend(names::label_value(value).map(|problem| FieldError::invalid(path, value, problem)));
        }
    }
}

/// Whether labels match a selector.
pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
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
fn template(kind: &str, template: &Place<'_>, claims: &[&str], errors: &mut Errors) {
    pod::template(template, claims, errors);
    let spec = template.field("spec");
    if matches!(spec.text("restartPolicy"), "OnFailure" | "Never") {
        spec.one_of("restartPolicy", &["Always"], errors);
    }
    if spec.some("activeDeadlineSeconds").is_some() {
        // A Deployment's pods are a ReplicaSet's.
        let kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
        let path = spec.path_of("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(path, format!("activeDeadlineSeconds in {kind} is not Supported")));
    }
}

const ROWS: &[Row] = &[("replicas", Demand::NotNegative), ("minReadySeconds", Demand::NotNegative)];

pub(super) fn set_of_pods(kind: &str, object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    check(&spec, ROWS, errors);
    let (own, labels) = (spec.field("selector"), spec.at(&["template", "metadata", "labels"]));
    if own.exists() {
        selector(&own, errors);
    } else if kind != "DaemonSet" {
        // Of a DaemonSet upstream asks it only by way of the template (`ValidateDaemonSetSpec`).
        errors.push(FieldError::required(own.path.clone(), ""));
    }
    let is_empty = own.map().is_some_and(|map| {
        map.values()
            .all(|v| v.as_object().is_none_or(serde_json::Map::is_empty) && v.as_array().is_none_or(Vec::is_empty))
    });
    if is_empty {
        errors.push(FieldError::invalid(
            own.path.clone(),
            own.value.clone(),
            format!("empty selector is invalid for {}", kind.to_lowercase()),
        ));
    } else if !own.exists() || !matches(own.value, labels.value) {
        // What is not there selects nothing.
        errors.push(FieldError::invalid(
            labels.path.clone(),
            labels.value.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    // Upstream leaves a StatefulSet's pods unchecked, since it would look for these among the volumes
    // (pkg/apis/apps/validation, `ValidatePodTemplateSpecForStatefulSet`).
    let claims: Vec<_> = spec.items("volumeClaimTemplates").map(|claim| claim.field("metadata")).collect();
    let claims: Vec<&str> = claims.iter().map(|metadata| metadata.text("name")).collect();
    template(kind, &spec.field("template"), &claims, errors);
    if kind != "StatefulSet" {
        // With fewer than none, a StatefulSet keeps all of them.
        spec.not_negative("revisionHistoryLimit", errors);
    }
    match kind {
        "Deployment" => deployment(&spec, errors),
        "StatefulSet" => stateful_set(&spec, errors),
        "DaemonSet" => daemon_set(&spec, errors),
        _ => {}
    }
}

/// How many something is, given as a number or as a share.
fn amount(place: &Place<'_>, field: &str) -> i64 {
    match place.value.get(field) {
        Some(Value::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        Some(value) => value.as_i64().unwrap_or(0),
        None => 0,
    }
}

fn deployment(spec: &Place<'_>, errors: &mut Errors) {
    let strategy = spec.field("strategy");
    strategy.one_of("type", &["Recreate", "RollingUpdate"], errors);
    if strategy.text("type") == "Recreate" && strategy.some("rollingUpdate").is_some() {
        errors.push(FieldError::forbidden(
            strategy.path_of("rollingUpdate"),
            "may not be specified when strategy `type` is 'Recreate'",
        ));
    } else if let Some(rolling) = strategy.some("rollingUpdate") {
        number_or_percent(&rolling, "maxUnavailable", Some(100), errors);
        number_or_percent(&rolling, "maxSurge", None, errors);
        if amount(&rolling, "maxUnavailable") == 0 && amount(&rolling, "maxSurge") == 0 {
            rolling.invalid("maxUnavailable", "may not be 0 when `maxSurge` is 0", errors);
        }
    }
    if let Some(deadline) = spec.number("progressDeadlineSeconds") {
        spec.not_negative("progressDeadlineSeconds", errors);
        if deadline <= spec.number("minReadySeconds").unwrap_or(0) {
            spec.invalid("progressDeadlineSeconds", "must be greater than minReadySeconds", errors);
        }
    }
}

fn stateful_set(spec: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("updateStrategy.rollingUpdate.partition", Demand::NotNegative),
        ("ordinals.start", Demand::NotNegative),
        ("persistentVolumeClaimRetentionPolicy.whenDeleted", Demand::OneOf(&["Retain", "Delete"])),
        ("persistentVolumeClaimRetentionPolicy.whenScaled", Demand::OneOf(&["Retain", "Delete"])),
        ("serviceName", Demand::Form(names::dns1123_subdomain)),
    ];
    check(spec, ROWS, errors);
    if !matches!(spec.text("podManagementPolicy"), "OrderedReady" | "Parallel") {
        spec.invalid("podManagementPolicy", "must be 'OrderedReady' or 'Parallel'", errors);
    }
    let strategy = spec.field("updateStrategy");
    match strategy.text("type") {
        "RollingUpdate" => {
            if let Some(rolling) = strategy.some("rollingUpdate") {
                number_or_percent(&rolling, "maxUnavailable", Some(100), errors);
                if rolling.some("maxUnavailable").is_some() && amount(&rolling, "maxUnavailable") == 0 {
                    rolling.invalid("maxUnavailable", "cannot be 0", errors);
                }
            }
        }
        "OnDelete" if strategy.some("rollingUpdate").is_some() => {
            strategy.invalid("rollingUpdate", "only allowed for updateStrategy 'RollingUpdate'", errors);
        }
        "OnDelete" => {}
        _ => spec.invalid("updateStrategy", "must be 'RollingUpdate' or 'OnDelete'", errors),
    }
}

fn daemon_set(spec: &Place<'_>, errors: &mut Errors) {
    let strategy = spec.field("updateStrategy");
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let Some(rolling) = strategy.some("rollingUpdate") else {
                errors.push(FieldError::required(strategy.path_of("rollingUpdate"), ""));
                return;
            };
            number_or_percent(&rolling, "maxUnavailable", Some(100), errors);
            number_or_percent(&rolling, "maxSurge", Some(100), errors);
            match (amount(&rolling, "maxUnavailable"), amount(&rolling, "maxSurge")) {
                (0, 0) => {
                    let text = "cannot be 0 when maxSurge is 0";
                    errors.push(FieldError::required(rolling.path_of("maxUnavailable"), text));
                }
                (unavailable, surge) if unavailable != 0 && surge != 0 => {
                    rolling.invalid("maxSurge", "may not be set when maxUnavailable is non-zero", errors);
                }
                _ => {}
            }
        }
        other => {
            errors.push(FieldError::not_supported(strategy.path.clone(), other, &["RollingUpdate", "OnDelete"]));
        }
    }
}

pub(super) fn replication_controller(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    check(&spec, ROWS, errors);
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
    if spec.field("template").exists() {
        template("ReplicationController", &spec.field("template"), &[], errors);
    } else {
        errors.push(FieldError::required(spec.path_of("template"), ""));
    }
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
                let mut fixed = plain(spec.value);
                if let Value::Object(fields) = &mut fixed {
                    fields.retain(|field, _| !FREE.contains(&field.as_str()));
                }
                fixed
            };
            if fixed(&new) != fixed(&old) {
                errors.push(FieldError::forbidden("spec", STATEFUL_SET_FORBIDDEN));
            }
        }
        "Deployment" | "ReplicaSet" | "DaemonSet" => held_to(&new, &old, &[("selector", Change::Never)], errors),
        _ => {}
    }
}

/// The status of a set of pods: numbers that agree with each other.
pub(super) fn status(kind: &str, new: &Place<'_>, old: &Place<'_>, errors: &mut Errors) {
    const COUNTS: [&str; 17] = [
        "replicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "updatedReplicas",
        "currentReplicas",
        "fullyLabeledReplicas",
        "terminatingReplicas",
        "currentNumberScheduled",
        "updatedNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "numberAvailable",
        "numberUnavailable",
        "observedGeneration",
        "collisionCount",
    ];
    let (new, old) = (new.field("status"), old.field("status"));
    for field in COUNTS {
        new.not_negative(field, errors);
    }
    let get = |field: &str| new.number(field).unwrap_or(0);
    let parts: &[&str] = match kind {
        "Deployment" => &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "StatefulSet" => &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        "DaemonSet" => &[],
        _ => &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    };
    for field in parts {
        if get(field) > get("replicas") {
            let text = "cannot be greater than status.replicas";
            errors.push(FieldError::invalid(new.path_of(field), get(field), text));
        }
    }
    if get("availableReplicas") > get("readyReplicas") {
        let path = new.path_of("availableReplicas");
        errors.push(FieldError::invalid(path, get("availableReplicas"), "cannot be greater than readyReplicas"));
    }
    if let Some(before) = old.number("collisionCount")
        && get("collisionCount") < before
    {
        let path = new.path_of("collisionCount");
        errors.push(FieldError::invalid(path, get("collisionCount"), "cannot be decremented"));
    }
}
