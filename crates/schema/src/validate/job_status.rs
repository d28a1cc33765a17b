//! The status of a Job: what is done stays done, and what is over has nothing that goes on.
//!
//! Any controller may write it (`managedBy`), and others rest on it. What a change leaves as it is is not asked about: a status
//! from before may break a rule, and a new spec may make one break it until its controller has looked (upstream's
//! `getStatusValidationOptions`, pkg/registry/batch/job).

use std::collections::BTreeSet;

use serde_json::Value;

use super::access::{Errors, Place};
use super::demand::{Demand, Row, check};
use super::jobs::intervals;
use crate::error::FieldError;

const ROWS: &[Row] = &[
    ("active", Demand::NotNegative),
    ("succeeded", Demand::NotNegative),
    ("failed", Demand::NotNegative),
    ("ready", Demand::NotNegative),
    ("terminating", Demand::NotNegative),
];
const MET: &str = "SuccessCriteriaMet";
const TARGET: &str = "FailureTarget";

/// A Job with a status.
struct Said<'a> {
    spec: Place<'a>,
    status: Place<'a>,
}

impl<'a> Said<'a> {
    fn of(job: &Place<'a>) -> Self {
        Self { spec: job.field("spec"), status: job.field("status") }
    }
    fn is(&self, condition: &str) -> bool {
        self.status.items("conditions").any(|c| (c.text("type"), c.text("status")) == (condition, "True"))
    }
    fn is_over(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }
    fn count(&self, field: &str) -> i64 {
        self.status.number(field).unwrap_or(0)
    }
    fn is_indexed(&self) -> bool {
        self.spec.text("completionMode") == "Indexed"
    }
    fn uncounted(&self) -> impl Iterator<Item = Place<'a>> + use<'a> {
        let lists = self.status.field("uncountedTerminatedPods");
        ["succeeded", "failed"].into_iter().flat_map(move |list| lists.items(list))
    }
    fn time(&self, field: &str) -> Option<jiff::Timestamp> {
        self.status.text(field).parse().ok()
    }
}

/// Checks a Job's new status.
pub(super) fn status(new_object: &Place<'_>, old_object: &Place<'_>, errors: &mut Errors) {
    let (new, old) = (Said::of(new_object), Said::of(old_object));
    check(&new.status, ROWS, errors);
    listed_pods(&new, errors);
    conditions(&new, &old, errors);
    clock(&new, &old, errors);
    counts(&new, &old, errors);
    indexes(&new, &old, errors);
}

fn changed(new: &Said<'_>, old: &Said<'_>, field: &str) -> bool {
    let is_nothing = |value: &Value| matches!(value, Value::Null) || *value == 0 || *value == "";
    let (now, before) = (new.status.field(field).value, old.status.field(field).value);
    now != before && !(is_nothing(now) && is_nothing(before))
}

/// Pods that are to be counted: each once.
fn listed_pods(new: &Said<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for uid in new.uncounted() {
        match uid.value.as_str().unwrap_or_default() {
            "" => errors.push(FieldError::invalid(uid.path, "", "must not be empty")),
            text if !seen.insert(text.to_owned()) => errors.push(FieldError::duplicate(uid.path, text)),
            _ => {}
        }
    }
}

fn conditions(new: &Said<'_>, old: &Said<'_>, errors: &mut Errors) {
    let path = new.status.path_of("conditions");
    let mut invalid = |detail: String| errors.push(FieldError::unshown(path.clone(), detail));
    let turned = |condition: &str| new.is(condition) != old.is(condition);
    for (one, other) in [("Complete", "Failed"), ("Complete", TARGET)] {
        if new.is(one) && new.is(other) && (turned(one) || turned(other)) {
            invalid(format!("cannot set {one}=True and {other}=true conditions"));
        }
    }
    for (end, target) in [("Failed", TARGET), ("Complete", MET)] {
        if new.is(end) && !new.is(target) && (turned(end) || turned(target)) {
            invalid(format!("cannot set {end}=True condition without the {target}=true condition"));
        }
    }
    for other in ["Failed", TARGET] {
        if new.is(MET) && new.is(other) {
            invalid(format!("cannot set {MET}=True and {other}=true conditions"));
        }
    }
    for end in ["Failed", "Complete", TARGET] {
        if old.is(end) && !new.is(end) {
            invalid(format!("cannot disable the terminal {end}=True condition"));
        }
    }
    if old.is(MET) && !new.is(MET) {
        invalid(format!("cannot disable the {MET}=True condition"));
    }
    if old.is("Complete") && !old.is(MET) && new.is(MET) {
        invalid(format!("cannot set {MET}=True for Job already has Complete=true conditions"));
    }
}

/// When it began and was complete.
fn clock(new: &Said<'_>, old: &Said<'_>, errors: &mut Errors) {
    const START: &str = "startTime";
    const END: &str = "completionTime";
    let there = |said: &Said<'_>, field: &str| said.status.some(field).is_some();
    let (moved_start, moved_end) = (changed(new, old, START), changed(new, old, END));
    let turned_over = new.is_over() != old.is_over();
    let idle = new.spec.flag("suspend") && new.spec.number("completions") == Some(0);
    if new.is_over() && !there(new, START) && (turned_over || moved_start) && !idle {
        errors.push(FieldError::required(new.status.path_of(START), "startTime is required for finished job"));
    }
    // Whoever goes on after a pause begins anew.
    let goes_on = condition_of(old, "Suspended") == Some("True") && condition_of(new, "Suspended") != Some("True");
    if there(old, START) && moved_start && !new.spec.flag("suspend") && !goes_on {
        let text = "startTime cannot be removed for unsuspended job";
        errors.push(FieldError::required(new.status.path_of(START), text));
    }
    let mut bad_end = |text: &str| new.status.invalid(END, text, errors);
    let turned = new.is("Complete") != old.is("Complete");
    if there(new, END) && !new.is("Complete") && (turned || moved_end) {
        bad_end("cannot set completionTime when there is no Complete=True condition");
    }
    if let (Some(start), Some(end)) = (new.time(START), new.time(END))
        && end < start
        && (moved_start || moved_end)
    {
        bad_end("completionTime cannot be set before startTime");
    }
    if there(new, END) && there(old, END) && moved_end {
        bad_end("completionTime cannot be mutated");
    }
    if new.is("Complete") && !there(new, END) && (turned || moved_end) {
        let text = "completionTime is required for Complete jobs";
        errors.push(FieldError::required(new.status.path_of(END), text));
    }
}

fn condition_of<'a>(said: &Said<'a>, kind: &str) -> Option<&'a str> {
    said.status.items("conditions").find(|c| c.text("type") == kind).map(|c| c.text("status"))
}

fn counts(new: &Said<'_>, old: &Said<'_>, errors: &mut Errors) {
    let turned_over = new.is_over() != old.is_over();
    for field in ["active", "terminating"] {
        if new.is_over() && new.count(field) > 0 && (turned_over || changed(new, old, field)) {
            new.status.invalid(field, format!("{field}>0 is invalid for finished job"), errors);
        }
    }
    if new.is_over()
        && new.uncounted().next().is_some()
        && (turned_over || changed(new, old, "uncountedTerminatedPods"))
    {
        let text = "uncountedTerminatedPods needs to be empty for finished job";
        new.status.invalid("uncountedTerminatedPods", text, errors);
    }
    if new.count("ready") > new.count("active") && (changed(new, old, "ready") || changed(new, old, "active")) {
        new.status.invalid("ready", "cannot set more ready pods than active", errors);
    }
    if new.count("failed") < old.count("failed") {
        new.status.invalid("failed", "cannot decrease the failed counter", errors);
    }
    // An Indexed Job that shrinks has fewer.
    let shrinks = new.is_indexed() && new.spec.field("completions").value == new.spec.field("parallelism").value;
    if new.count("succeeded") < old.count("succeeded") && !shrinks {
        new.status.invalid("succeeded", "cannot decrease the succeeded counter", errors);
    }
}

fn indexes(new: &Said<'_>, old: &Said<'_>, errors: &mut Errors) {
    let (done, failed) = ("completedIndexes", "failedIndexes");
    let (moved_done, moved_failed) = (changed(new, old, done), changed(new, old, failed));
    let (done_text, failed_text) = (new.status.text(done), new.status.text(failed));
    let has_limit = new.spec.some("backoffLimitPerIndex").is_some();
    if moved_done && !done_text.is_empty() && !new.is_indexed() {
        let text = "cannot set non-empty completedIndexes when non-indexed completion mode";
        new.status.invalid(done, text, errors);
    }
    if moved_failed && !has_limit && new.status.some(failed).is_some() {
        new.status.invalid(failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null", errors);
    }
    let Some(completions) = new.spec.number("completions") else { return };
    let mut read = |field: &str, text: &str, asked: bool| match intervals(text, completions) {
        Ok(found) => found,
        Err(problem) => {
            if asked {
                new.status.invalid(field, format!("error parsing {field}: {problem}"), errors);
            }
            Vec::new()
        }
    };
    let all_done = read(done, done_text, moved_done);
    let all_failed = read(failed, failed_text, moved_failed && has_limit);
    if (moved_done || moved_failed)
        && let Some(index) = common(&all_done, &all_failed)
    {
        let text = format!("failedIndexes and completedIndexes overlap at index: {index}");
        new.status.invalid(failed, text, errors);
    }
}

/// The first number that two ascending lists of intervals share.
fn common(one: &[(i64, i64)], other: &[(i64, i64)]) -> Option<i64> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some((a, b)), Some((x, y))) = (one.peek(), other.peek()) {
        if a.max(x) <= b.min(y) {
            return Some(*a.max(x));
        }
        if b < y {
            one.next();
        } else {
            other.next();
        }
    }
    None
}
