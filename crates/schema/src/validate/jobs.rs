//! Jobs and CronJobs.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::access::{Errors, Place};
use super::alike::plain;
use super::demand::{Change, Demand, Fixed, Row, changes as held_to, check, unique};
use super::{names, pod, status, workloads};
use crate::error::FieldError;
use crate::schedule::Schedule;

/// Most pods at the same time of a Job whose pods have indexes, and most indexes with a limit each.
const MAX_PARALLEL_INDEXED: i64 = 100_000;
const MAX_FAILED: i64 = 100_000;
/// With more completions than this, indexes with a limit each are bound to fewer pods and failures.
const MANY_COMPLETIONS: i64 = 100_000;
const MAX_OF_MANY: i64 = 10_000;
/// Most conditions of a rule.
const MAX_CONDITIONS: usize = 20;
const MAX_MANAGER: usize = 63;
/// Most rules of a policy, and most exit codes of a rule.
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
/// Most bytes of a set of indexes.
const MAX_INDEXES_BYTES: usize = 64 * 1024;
/// The pod's name ends in five letters and a dash.
const MAX_CRON_NAME: usize = 52;

const ROWS: &[Row] = &[
    ("parallelism", Demand::NotNegative),
    ("completions", Demand::NotNegative),
    ("activeDeadlineSeconds", Demand::NotNegative),
    ("backoffLimit", Demand::NotNegative),
    ("ttlSecondsAfterFinished", Demand::NotNegative),
    ("backoffLimitPerIndex", Demand::NotNegative),
    ("maxFailedIndexes", Demand::NotNegative),
    ("completionMode", Demand::OneOf(&["Indexed", "NonIndexed"])),
    ("podReplacementPolicy", Demand::OneOf(&["Failed", "TerminatingOrFailed"])),
];

/// Checks a Job.
pub(super) fn job(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    of_spec(&spec, errors);
    let (own, labels) = (spec.field("selector"), spec.at(&["template", "metadata", "labels"]));
    if !own.exists() {
        errors.push(FieldError::required(own.path, ""));
        return;
    }
    workloads::selector(&own, errors);
    last_host_name(&object.field("metadata"), &spec, errors);
    if !workloads::matches(own.value, labels.value) {
        let text = "`selector` does not match template `labels`";
        errors.push(FieldError::invalid(labels.path.clone(), labels.value.clone(), text));
    }
    if spec.flag("manualSelector") {
        return;
    }
    // The selector is the server's, and what it wrote is not to be written over.
    let metadata = object.field("metadata");
    for (key, wanted) in [
        ("batch.kubernetes.io/controller-uid", metadata.text("uid")),
        ("controller-uid", metadata.text("uid")),
        ("batch.kubernetes.io/job-name", metadata.text("name")),
        ("job-name", metadata.text("name")),
    ] {
        let found = labels.text(key);
        if found != wanted && !wanted.is_empty() {
            let text = format!("must be '{wanted}'");
            let path = format!("{}[{key}]", labels.path);
            errors.push(if found.is_empty() {
                FieldError::required(path, text)
            } else {
                FieldError::invalid(path, labels.value.clone(), text)
            });
        }
    }
}

/// Each pod of an Indexed Job has a host name with its index.
fn last_host_name(metadata: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    let name = metadata.text("name");
    let Some(last) = spec.number("completions").filter(|completions| *completions > 0) else { return };
    if spec.text("completionMode") != "Indexed" || name.is_empty() {
        return;
    }
    let host = format!("{name}-{}", last - 1);
    if names::dns1123_label(&host).is_some() {
        let text = format!("will not able to create pod with invalid DNS label: {host}");
        metadata.invalid("name", text, errors);
    }
}

/// Who manages a Job is named by a path below a domain.
fn manager(name: &Place<'_>, errors: &mut Errors) {
    let text = name.value.as_str().unwrap_or_default();
    let mut invalid = |value: &str, problem: &str| errors.push(FieldError::invalid(name.path.clone(), value, problem));
    match text.split_once('/') {
        _ if text.is_empty() => errors.push(FieldError::required(name.path.clone(), "")),
        Some((host, path)) if !host.is_empty() && !path.is_empty() => {
            if let Some(problem) = names::dns1123_subdomain(host) {
                invalid(host, &problem);
            }
            let may = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
            if !path.bytes().all(may) {
                invalid(path, "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')");
            }
        }
        _ => invalid(text, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if text.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(name.path.clone(), MAX_MANAGER as u64));
    }
}

fn of_spec(spec: &Place<'_>, errors: &mut Errors) {
    check(spec, ROWS, errors);
    let template = spec.field("template");
    pod::template(&template, &[], errors);
    let pod_spec = template.field("spec");
    match pod_spec.text("restartPolicy") {
        "" | "Always" => {
            let text = "valid values: \"OnFailure\", \"Never\"";
            errors.push(FieldError::required(pod_spec.path_of("restartPolicy"), text));
        }
        _ => pod_spec.one_of("restartPolicy", &["OnFailure", "Never"], errors),
    }
    indexed(spec, errors);
    if let Some(name) = spec.some("managedBy") {
        manager(&name, errors);
    }
    if let Some(policy) = spec.some("podFailurePolicy") {
        failure_policy(&policy, spec, &pod_spec, errors);
    }
    if let Some(policy) = spec.some("successPolicy") {
        success_policy(&policy, spec, errors);
    }
}

fn indexed(spec: &Place<'_>, errors: &mut Errors) {
    let has_indexes = spec.text("completionMode") == "Indexed";
    let completions = spec.number("completions");
    if has_indexes {
        if completions.is_none() {
            let text = "when completion mode is Indexed";
            errors.push(FieldError::required(spec.path_of("completions"), text));
        }
        if spec.number("parallelism").is_some_and(|parallel| parallel > MAX_PARALLEL_INDEXED) {
            let text = format!("must be less than or equal to {MAX_PARALLEL_INDEXED} when completion mode is Indexed");
            spec.invalid("parallelism", text, errors);
        }
    }
    for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
        if spec.some(field).is_some() && !has_indexes {
            spec.invalid(field, "requires indexed completion mode", errors);
        }
    }
    if let Some(failed) = spec.number("maxFailedIndexes") {
        if spec.some("backoffLimitPerIndex").is_none() {
            let text = "when maxFailedIndexes is specified";
            errors.push(FieldError::required(spec.path_of("backoffLimitPerIndex"), text));
        }
        if completions.is_some_and(|completions| failed > completions) {
            spec.invalid("maxFailedIndexes", "must be less than or equal to completions", errors);
        }
        if failed > MAX_FAILED {
            spec.invalid("maxFailedIndexes", format!("must be less than or equal to {MAX_FAILED}"), errors);
        }
    }
    if spec.some("backoffLimitPerIndex").is_some() && completions.is_some_and(|all| all > MANY_COMPLETIONS) {
        if spec.number("maxFailedIndexes").is_none() {
            let text = format!("must be specified when completions is above {MANY_COMPLETIONS}");
            errors.push(FieldError::required(spec.path_of("maxFailedIndexes"), text));
        }
        for field in ["parallelism", "maxFailedIndexes"] {
            if spec.number(field).is_some_and(|number| number > MAX_OF_MANY) {
                let text = format!(
                    "must be less than or equal to {MAX_OF_MANY} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index"
                );
                spec.invalid(field, text, errors);
            }
        }
    }
}

fn failure_policy(policy: &Place<'_>, spec: &Place<'_>, pod_spec: &Place<'_>, errors: &mut Errors) {
    // What a pod failed of is known once it has ended.
    if spec.some("podReplacementPolicy").is_some() {
        spec.one_of("podReplacementPolicy", &["Failed"], errors);
    }
    if pod_spec.text("restartPolicy") != "Never" {
        let text = "only \"Never\" is supported when podFailurePolicy is specified";
        pod_spec.invalid("restartPolicy", text, errors);
    }
    let rules: Vec<Place<'_>> = policy.items("rules").collect();
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(policy.path_of("rules"), rules.len(), MAX_RULES as u64));
    }
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pod_spec.items(list).map(|container| container.text("name")).collect::<Vec<_>>())
        .collect();
    for rule in &rules {
        if rule.needs_text("action", errors).is_some() {
            rule.one_of("action", &["Count", "FailIndex", "FailJob", "Ignore"], errors);
            if rule.text("action") == "FailIndex" && spec.some("backoffLimitPerIndex").is_none() {
                rule.invalid("action", "requires the backoffLimitPerIndex to be set", errors);
            }
        }
        let (codes, conditions) = (rule.some("onExitCodes"), rule.items("onPodConditions").next().is_some());
        match (&codes, conditions) {
            (Some(_), true) => {
                let text = "specifying both OnExitCodes and OnPodConditions is not supported";
                errors.push(FieldError::invalid(rule.path.clone(), rule.value.clone(), text));
            }
            (None, false) => {
                let text = "specifying one of OnExitCodes and OnPodConditions is required";
                errors.push(FieldError::invalid(rule.path.clone(), rule.value.clone(), text));
            }
            _ => {}
        }
        if let Some(codes) = codes {
            exit_codes(&codes, &containers, errors);
        }
        let all = rule.items("onPodConditions").count();
        if all > MAX_CONDITIONS {
            errors.push(FieldError::too_many(rule.path_of("onPodConditions"), all, MAX_CONDITIONS as u64));
        }
        for condition in rule.items("onPodConditions") {
            if condition.needs_text("type", errors).is_some() {
                condition.has_form("type", names::qualified_name, errors);
            }
            condition.one_of("status", status::TRUTHS, errors);
        }
    }
}

fn exit_codes(codes: &Place<'_>, containers: &BTreeSet<&str>, errors: &mut Errors) {
    let operator = codes.text("operator");
    codes.one_of("operator", &["In", "NotIn"], errors);
    let name = codes.text("containerName");
    if !name.is_empty() && !containers.contains(name) {
        codes.invalid(
            "containerName",
            "must be one of the container or initContainer names in the pod template",
            errors,
        );
    }
    let values: Vec<Place<'_>> = codes.items("values").collect();
    if values.is_empty() {
        codes.invalid("values", "at least one value is required", errors);
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(codes.path_of("values"), values.len(), MAX_EXIT_CODES as u64));
    }
    let numbers: Vec<i64> = values.iter().filter_map(|value| value.value.as_i64()).collect();
    unique(
        values.iter().cloned(),
        |value| value.value.as_i64(),
        |value| FieldError::duplicate(value.path.clone(), value.value.clone()),
        errors,
    );
    for value in values.iter().filter(|value| operator == "In" && value.value == &json!(0)) {
        errors.push(FieldError::invalid(value.path.clone(), 0, "must not be 0 for the In operator"));
    }
    if numbers.windows(2).any(|pair| pair[0] > pair[1]) {
        codes.invalid("values", "must be ordered", errors);
    }
}

fn success_policy(policy: &Place<'_>, spec: &Place<'_>, errors: &mut Errors) {
    if spec.text("completionMode") != "Indexed" {
        let text = "requires indexed completion mode";
        errors.push(FieldError::invalid(policy.path.clone(), policy.value.clone(), text));
        return;
    }
    let rules: Vec<Place<'_>> = policy.items("rules").collect();
    if rules.is_empty() {
        let text = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(policy.path_of("rules"), text));
    }
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(policy.path_of("rules"), rules.len(), MAX_RULES as u64));
    }
    let completions = spec.number("completions").unwrap_or(0);
    for rule in &rules {
        if rule.some("succeededIndexes").is_none() && rule.some("succeededCount").is_none() {
            let text = "at least one of succeededCount or succeededIndexes must be specified";
            errors.push(FieldError::required(rule.path.clone(), text));
        }
        let listed = rule.some("succeededIndexes").and_then(|set| listed(&set, completions, errors));
        if let Some(count) = rule.number("succeededCount") {
            rule.not_negative("succeededCount", errors);
            if count > completions {
                let text = format!("must be less than or equal to {completions} (the number of specified completions)");
                rule.invalid("succeededCount", text, errors);
            }
            if let Some(listed) = listed.filter(|listed| count > *listed) {
                let text = format!(
                    "must be less than or equal to {listed} (the number of indexes in the specified succeededIndexes field)"
                );
                rule.invalid("succeededCount", text, errors);
            }
        }
    }
}

/// How many indexes a set has; none for what is no set of indexes below `completions`.
fn listed(set: &Place<'_>, completions: i64, errors: &mut Errors) -> Option<i64> {
    let text = set.value.as_str().unwrap_or_default();
    if text.len() > MAX_INDEXES_BYTES {
        errors.push(FieldError::too_long(set.path.clone(), MAX_INDEXES_BYTES as u64));
        return None;
    }
    match intervals(text, completions) {
        Ok(found) => Some(found.iter().map(|(first, last)| last - first + 1).sum()),
        Err(problem) => {
            let problem = format!("error parsing succeededIndexes: {problem}");
            errors.push(FieldError::invalid(set.path.clone(), text, problem));
            None
        }
    }
}

/// The intervals of a set of indexes below `completions`, in ascending order; what is wrong with a text that is none.
pub(super) fn intervals(text: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    let index = |part: &str| match part.parse::<i64>() {
        Err(_) => Err(format!("cannot convert string to integer for index: {part:?}")),
        Ok(index) if index >= completions => Err(format!("too large index: {part:?}")),
        Ok(index) => Ok(index),
    };
    // Each number is greater than the one before it, those of an interval as well.
    let mut before = -1;
    let mut found = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let limits: Vec<&str> = part.split('-').collect();
        if limits.len() > 2 {
            return Err(format!(
                "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
            ));
        }
        let mut first = None;
        for limit in limits {
            let index = index(limit)?;
            if index <= before {
                return Err(format!("non-increasing order, previous: {before}, current: {index}"));
            }
            first.get_or_insert(index);
            before = index;
        }
        found.extend(first.map(|first| (first, before)));
    }
    Ok(found)
}

/// Checks a CronJob.
pub(super) fn cron_job(object: &Place<'_>, errors: &mut Errors) {
    const ROWS: &[Row] = &[
        ("startingDeadlineSeconds", Demand::NotNegative),
        ("successfulJobsHistoryLimit", Demand::NotNegative),
        ("failedJobsHistoryLimit", Demand::NotNegative),
        ("concurrencyPolicy", Demand::OneOf(&["Allow", "Forbid", "Replace"])),
    ];
    let spec = object.field("spec");
    let name = object.field("metadata").text("name");
    if name.len() > MAX_CRON_NAME {
        let text = format!("must be no more than {MAX_CRON_NAME} characters");
        errors.push(FieldError::invalid("metadata.name", name, text));
    }
    check(&spec, ROWS, errors);
    if let Some(schedule) = spec.needs_text("schedule", errors) {
        if schedule.contains("TZ") {
            let text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            spec.invalid("schedule", text, errors);
        } else if let Err(problem) = Schedule::parse(schedule) {
            spec.invalid("schedule", problem, errors);
        }
    }
    if let Some(zone) = spec.some("timeZone") {
        let text = zone.value.as_str().unwrap_or_default();
        let problem = match text {
            "" => Some("timeZone must be nil or non-empty string".to_owned()),
            _ if text.eq_ignore_ascii_case("local") => {
                Some("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned())
            }
            _ => jiff::tz::TimeZone::get(text).err().map(|_| format!("unknown time zone {text}")),
        };
        errors.extend(problem.map(|problem| FieldError::invalid(zone.path, text, problem)));
    }
    let job = spec.at(&["jobTemplate", "spec"]);
    of_spec(&job, errors);
    if job.some("selector").is_some() {
        job.invalid("selector", "`selector` will be auto-generated", errors);
    }
    if job.flag("manualSelector") {
        errors.push(FieldError::not_supported(job.path_of("manualSelector"), true, &["nil", "false"]));
    }
}

/// What may change in a Job: how many pods at a time, whether it is suspended, how often it may fail.
pub(super) fn changes(new_object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    const FIXED: &[Fixed] = &[
        ("selector", Change::Never),
        ("completionMode", Change::Never),
        ("podFailurePolicy", Change::Never),
        ("backoffLimitPerIndex", Change::Never),
        ("managedBy", Change::Never),
        ("successPolicy", Change::Never),
    ];
    let (new, old) = (new_object.field("spec"), old_object.field("spec"));
    held_to(&new, &old, FIXED, errors);
    if new.field("completions").value != old.field("completions").value {
        let elastic = old.text("completionMode") == "Indexed" && new.some("completions").is_some();
        if !elastic {
            new.invalid("completions", "field is immutable", errors);
        } else if new.field("completions").value != new.field("parallelism").value {
            let text = "can only be modified in tandem with parallelism";
            new.invalid("completions", text, errors);
        }
    }
    // Who is suspended and has not begun may still be told where and with what to run.
    let free = old.flag("suspend") && !old_object.field("status").field("startTime").exists();
    let fixed = |template: &Value| {
        let mut template = plain(template);
        if !free {
            return template;
        }
        let mut clear = |pointer: &str, may_go: &dyn Fn(&str, &Value) -> bool| {
            if let Some(Value::Object(map)) = template.pointer_mut(pointer) {
                map.retain(|key, value| !may_go(key, value));
            }
        };
        clear("/metadata", &|key, _| matches!(key, "annotations" | "labels"));
        clear("/spec", &|key, _| matches!(key, "nodeSelector" | "tolerations" | "schedulingGates"));
        clear("/spec/affinity", &|key, _| key == "nodeAffinity");
        clear("/spec", &|key, value| key == "affinity" && value.as_object().is_some_and(Map::is_empty));
        for list in ["containers", "initContainers"] {
            for container in
                template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut).into_iter().flatten()
            {
                if let Value::Object(map) = container {
                    map.remove("resources");
                }
            }
        }
        template
    };
    let (now, before) = (new.field("template"), old.field("template"));
    if fixed(now.value) != fixed(before.value) {
        errors.push(FieldError::invalid(now.path, now.value.clone(), "field is immutable"));
    }
}
