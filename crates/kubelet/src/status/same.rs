//! Whether a status says anything that another one does not.

use k8s_openapi::api::core::v1::PodStatus;

/// Whether two statuses say the same, whatever the time and the order: where an API server does not keep a time or a condition, it is
/// made up anew whenever the status is computed.
#[must_use]
pub fn says_the_same(one: &PodStatus, other: &PodStatus) -> bool {
    timeless(one.clone()) == timeless(other.clone())
}

fn timeless(mut status: PodStatus) -> PodStatus {
    status.start_time = None;
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_transition_time = None;
    }
    if let Some(conditions) = &mut status.conditions {
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn times_and_order_say_nothing() {
        let time = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
        let condition = |kind: &str, status: &str, at| {
            let at = time(at);
            json!({"type": kind, "status": status, "lastTransitionTime": at})
        };
        let (ready, placed) = (|at| condition("Ready", "True", at), || condition("PodScheduled", "True", 1));
        let with = |conditions: Value, at| {
            let at = time(at);
            json!({"phase": "Running", "startTime": at, "conditions": conditions})
        };
        let table = [
            (with(json!([ready(1), placed()]), 1), with(json!([placed(), ready(9)]), 8), true),
            (with(json!([ready(1)]), 1), with(json!([condition("Ready", "False", 1)]), 1), false),
            (with(json!([ready(1)]), 1), with(json!([ready(1), placed()]), 1), false),
            (with(json!([]), 1), json!({"phase": "Failed", "startTime": "2026-01-01T00:00:01Z"}), false),
        ];
        for (one, other, same) in table {
            let status = |value: &Value| serde_json::from_value(value.clone()).expect("a status");
            assert_eq!(says_the_same(&status(&one), &status(&other)), same, "{one} {other}");
        }
    }
}
