//! The conditions of a certificate request: what was decided stays decided, and times that nobody gave are
//! the server's.
//!
//! Upstream: `validateConditions` and `validateCertificateSigningRequestUpdate` of
//! `pkg/apis/certificates/validation`, and `populateConditionTimestamps` of
//! `pkg/registry/certificates/certificates`.

use std::collections::BTreeSet;

use carrack_schema::error::FieldError;
use serde_json::Value;

const PATH: &str = "status.conditions";
/// What is true once it is there, and there for good.
const DECISIONS: [&str; 3] = ["Approved", "Denied", "Failed"];

fn text<'a>(condition: &'a Value, field: &str) -> &'a str {
    condition[field].as_str().unwrap_or_default()
}

/// Says when conditions were last written and came to be as they are, where their writer does not. `now` is the
/// time as text.
pub(super) fn stamp(new: &mut [Value], old: &[Value], now: &str) {
    // What is as it was is not written now, whatever it lacks.
    for condition in new.iter_mut().filter(|condition| condition.is_object() && !old.contains(condition)) {
        stamp_change(condition, old, now);
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = now.into();
        }
    }
}

/// Says when conditions came to be as they are, where their writer does not.
pub(super) fn stamp_changes(new: &mut [Value], old: &[Value], now: &str) {
    for condition in new.iter_mut().filter(|condition| condition.is_object() && !old.contains(condition)) {
        stamp_change(condition, old, now);
    }
}

fn stamp_change(condition: &mut Value, old: &[Value], now: &str) {
    if condition["lastTransitionTime"].is_null() {
        let same = |before: &&Value| ["type", "status"].iter().all(|field| before[*field] == condition[*field]);
        let since = old.iter().find(same).map(|before| before["lastTransitionTime"].clone());
        condition["lastTransitionTime"] = since.filter(|time| !time.is_null()).unwrap_or_else(|| now.into());
    }
}

/// What is wrong with conditions; `old` are those that were there, whose faults are left to them.
pub(super) fn faults(new: &[Value], old: &[Value]) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let (twice, torn) = (has_twice(old), is_torn(old));
    let mut seen = BTreeSet::new();
    for (index, condition) in new.iter().enumerate() {
        let (kind, status) = (text(condition, "type"), text(condition, "status"));
        let path = |field: &str| format!("{PATH}[{index}].{field}");
        if kind.is_empty() {
            faults.push(FieldError::required(path("type"), ""));
        }
        let known: &[&str] = if DECISIONS.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        match status {
            "" => faults.push(FieldError::required(path("status"), "")),
            _ if !known.contains(&status) => faults.push(FieldError::not_supported(path("status"), status, known)),
            _ => {}
        }
        let opposite = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !torn && !opposite.is_empty() && seen.contains(opposite) {
            let why = "Approved and Denied conditions are mutually exclusive";
            faults.push(FieldError::invalid(path("type"), kind, why));
        }
        if !seen.insert(kind) && !twice {
            faults.push(FieldError::duplicate(path("type"), kind));
        }
    }
    for kind in DECISIONS {
        let (new, old) = (of_kind(new, kind), of_kind(old, kind));
        if new.len() < old.len() {
            let why = format!("updates may not remove a condition of type {kind:?}");
            faults.push(FieldError::forbidden(PATH, why));
        } else if new.len() == old.len() && new != old {
            let why = format!("updates may not modify a condition of type {kind:?}");
            faults.push(FieldError::forbidden(PATH, why));
        }
    }
    faults
}

fn of_kind<'a>(conditions: &'a [Value], kind: &str) -> Vec<&'a Value> {
    conditions.iter().filter(|condition| text(condition, "type") == kind).collect()
}

fn has_twice(conditions: &[Value]) -> bool {
    let mut seen = BTreeSet::new();
    !conditions.iter().all(|condition| seen.insert(text(condition, "type")))
}

/// Whether it is both approved and denied.
fn is_torn(conditions: &[Value]) -> bool {
    ["Approved", "Denied"].iter().all(|kind| conditions.iter().any(|condition| text(condition, "type") == *kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(kind: &str, status: &str) -> Value {
        json!({"type": kind, "status": status, "lastUpdateTime": "then", "lastTransitionTime": "then"})
    }

    #[test]
    fn what_was_decided_stays() {
        let [approved, denied, failed] = DECISIONS.map(|kind| condition(kind, "True"));
        let none: Vec<Value> = Vec::new();
        let mut other = approved.clone();
        other["message"] = "else".into();
        let removed = "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"";
        let torn = "status.conditions[1].type: Invalid value: \"Denied\": \
            Approved and Denied conditions are mutually exclusive";
        for (old, new, want) in [
            (none.clone(), vec![approved.clone()], vec![]),
            (vec![approved.clone()], vec![approved.clone(), failed.clone(), condition("x.io/Seen", "False")], vec![]),
            (vec![approved.clone()], none.clone(), vec![removed]),
            (
                vec![approved.clone()],
                vec![other],
                vec!["status.conditions: Forbidden: updates may not modify a condition of type \"Approved\""],
            ),
            (vec![approved.clone()], vec![denied.clone()], vec![removed]),
            (vec![approved.clone()], vec![approved.clone(), denied.clone()], vec![torn]),
            (vec![approved.clone(), denied.clone()], vec![approved.clone(), denied, failed], vec![]),
            (
                none.clone(),
                vec![condition("Approved", "False"), condition("", "")],
                vec![
                    "status.conditions[0].status: Unsupported value: \"False\": supported values: \"True\"",
                    "status.conditions[1].type: Required value",
                    "status.conditions[1].status: Required value",
                ],
            ),
            (none, vec![approved.clone(), approved], vec!["status.conditions[1].type: Duplicate value: \"Approved\""]),
        ] {
            let got: Vec<String> = faults(&new, &old).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{old:?} {new:?}");
        }
    }

    #[test]
    fn times_are_filled_in() {
        let old = [condition("Approved", "True"), condition("x.io/Seen", "False")];
        let bare = |kind: &str, status: &str| json!({"type": kind, "status": status});
        for (new, transition) in
            [(bare("Approved", "True"), "then"), (bare("x.io/Seen", "True"), "now"), (bare("New", "True"), "now")]
        {
            let mut new = [new];
            stamp(&mut new, &old, "now");
            assert_eq!(new[0]["lastUpdateTime"], "now", "{new:?}");
            assert_eq!(new[0]["lastTransitionTime"], transition, "{new:?}");
        }
        let mut kept = [condition("Approved", "True")];
        stamp(&mut kept, &old, "now");
        assert_eq!(kept, [condition("Approved", "True")]);
        // As an older server stored it, and a signer sends it back.
        let stored = [bare("Approved", "True")];
        let mut back = stored.clone();
        stamp(&mut back, &stored, "now");
        assert_eq!(back, stored);
    }
}
