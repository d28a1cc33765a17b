//! HorizontalPodAutoscalers.

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check, quantity};
use super::names;
use crate::convert;
use crate::error::FieldError;

const TARGETS: &[&str] = &["AverageValue", "Utilization", "Value"];
/// The kinds of metrics, and the fields in which they stand.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];
/// Longest time that is looked back on, and longest period of a policy, in seconds.
const MAX_WINDOW_S: i64 = 3600;
const MAX_PERIOD_S: i64 = 1800;

/// Checks an autoscaler, of v1 as what it says in v2.
pub(super) fn autoscaler(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("scaleTargetRef.kind", Demand::Required),
        ("scaleTargetRef.kind", Demand::Form(names::path_segment)),
        ("scaleTargetRef.name", Demand::Required),
        ("scaleTargetRef.name", Demand::Form(names::path_segment)),
    ];
    let value = convert::spelled_out(object.value);
    let spec = Place { value: &value, path: object.path.clone() }.field("spec");
    check(&spec, ROWS, errors);
    let min = spec.number("minReplicas").unwrap_or(1);
    if min < 1 {
        spec.invalid("minReplicas", "must be greater than or equal to 1", errors);
    }
    let max = spec.number("maxReplicas").unwrap_or(0);
    if max < 1 {
        errors.push(FieldError::invalid(spec.path_of("maxReplicas"), max, "must be greater than 0"));
    } else if max < min {
        spec.invalid("maxReplicas", "must be greater than or equal to `minReplicas`", errors);
    }
    for metric in spec.items("metrics") {
        self::metric(&metric, errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = spec.at(&["behavior"]).some(direction) {
            scaling(&rules, errors);
        }
    }
}

fn metric(metric: &Place<'_>, errors: &mut Errors) {
    let kind = metric.text("type");
    if kind.is_empty() {
        errors.push(FieldError::required(metric.path_of("type"), "must specify a metric source type"));
    }
    let Some((_, own)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
        metric.one_of("type", &SOURCES.map(|(name, _)| name), errors);
        return;
    };
    let Some(source) = metric.some(own) else {
        let text = "must populate information for the given metric source";
        errors.push(FieldError::required(metric.path_of(own), text));
        return;
    };
    for (_, other) in SOURCES.iter().filter(|(_, field)| field != own && metric.some(field).is_some()) {
        let text = "must populate the given metric source only";
        errors.push(FieldError::forbidden(metric.path_of(other), text));
    }
    const ROWS: &[Row] = &[
        ("describedObject.kind", Demand::Required),
        ("describedObject.name", Demand::Required),
        ("metric.name", Demand::Needed("must specify a metric name")),
        ("metric.name", Demand::Form(names::path_segment)),
        ("metric.selector", Demand::Selector),
        ("target.type", Demand::Needed("must specify a metric target type")),
        ("target.type", Demand::OneOf(TARGETS)),
    ];
    check(&source, ROWS, errors);
    if matches!(*own, "resource" | "containerResource") && source.text("name").is_empty() {
        errors.push(FieldError::required(source.path_of("name"), "must specify a resource name"));
    }
    if *own == "containerResource" {
        source.needs_text("container", errors);
    }
    let target = source.field("target");
    if !target.exists() {
        errors.push(FieldError::required(target.path, "must specify a metric target"));
        return;
    }
    for field in ["value", "averageValue"] {
        if let Some(value) = target.some(field)
            && quantity(value.value).is_some_and(|amount| amount.is_negative() || amount.is_zero())
        {
            errors.push(FieldError::invalid(value.path, value.value.clone(), "must be positive"));
        }
    }
    if target.number("averageUtilization").is_some_and(|share| share < 1) {
        target.invalid("averageUtilization", "must be greater than 0", errors);
    }
    let has = |field: &str| target.some(field).is_some();
    match *own {
        "resource" | "containerResource" => {
            if !has("averageUtilization") && !has("averageValue") {
                let text = "must set either a target raw value or a target utilization";
                errors.push(FieldError::required(target.path_of("averageUtilization"), text));
            } else if has("averageUtilization") && has("averageValue") {
                let text = "may not set both a target raw value and a target utilization";
                errors.push(FieldError::forbidden(target.path_of("averageValue"), text));
            }
        }
        "pods" if !has("averageValue") => {
            let text = "must specify a positive target averageValue";
            errors.push(FieldError::required(target.path_of("averageValue"), text));
        }
        "object" | "external" => {
            if !has("value") && !has("averageValue") {
                let text = "must set either a target value or averageValue";
                errors.push(FieldError::required(target.path_of("averageValue"), text));
            } else if *own == "external" && has("value") && has("averageValue") {
                let text = "may not set both a target value for metric and a per-pod target";
                errors.push(FieldError::forbidden(target.path_of("value"), text));
            }
        }
        _ => {}
    }
}

fn scaling(rules: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("policies", Demand::Needed("must specify at least one Policy")),
        ("selectPolicy", Demand::OneOf(&["Disabled", "Max", "Min"])),
        ("policies[].type", Demand::OneOf(&["Percent", "Pods"])),
        ("policies[].value", Demand::AtLeast(1, "must be greater than zero")),
        ("policies[].periodSeconds", Demand::AtLeast(1, "must be greater than zero")),
        ("stabilizationWindowSeconds", Demand::NotNegative),
        ("tolerance", Demand::Amount),
    ];
    check(rules, ROWS, errors);
    if rules.number("stabilizationWindowSeconds").is_some_and(|seconds| seconds > MAX_WINDOW_S) {
        let text = format!("must be less than or equal to {MAX_WINDOW_S}");
        rules.invalid("stabilizationWindowSeconds", text, errors);
    }
    for policy in rules.items("policies") {
        if policy.number("periodSeconds").is_some_and(|seconds| seconds > MAX_PERIOD_S) {
            let text = format!("must be less than or equal to {MAX_PERIOD_S}");
            policy.invalid("periodSeconds", text, errors);
        }
    }
}
