//! Events, by way of both of their groups.

use serde_json::{Value, json};

use super::causes::{changed, created, named};

const NEW: &str = "events.k8s.io";
const AT: &str = "2026-01-01T00:00:00.000000Z";

fn event() -> Value {
    named(json!({
        "regarding": {"kind": "Pod", "name": "p", "namespace": "d"}, "note": "n", "reason": "R", "type": "Normal",
        "action": "A", "eventTime": AT, "reportingController": "k", "reportingInstance": "k-1",
    }))
}

#[test]
fn new_events() {
    created(
        NEW,
        "Event",
        &event(),
        &[
            ("/eventTime", json!(null), &["Required eventTime"]),
            ("/reportingController", json!("a b"), &["Invalid reportingController"]),
            ("/reportingController", json!(null), &["Required reportingController"]),
            ("/reportingInstance", json!("x".repeat(129)), &["Invalid reportingInstance"]),
            ("/action", json!(""), &["Required action"]),
            ("/reason", json!("x".repeat(129)), &["Invalid reason"]),
            ("/note", json!("x".repeat(1025)), &["Invalid message"]),
            ("/type", json!("Odd"), &["Invalid type"]),
            ("/type", json!(null), &["Invalid type"]),
            ("/regarding", json!({"kind": "Node", "name": "n"}), &["Invalid involvedObject.namespace"]),
            ("/regarding/namespace", json!("elsewhere"), &[]),
            ("/series", json!({"count": 1}), &["Invalid series.count", "Required series.lastObservedTime"]),
            ("/series", json!({"count": 2, "lastObservedTime": AT}), &[]),
            ("/deprecatedCount", json!(1), &["Invalid count"]),
            ("/deprecatedSource", json!({"component": "k"}), &["Invalid source"]),
            ("/deprecatedSource", json!({}), &[]),
            ("/deprecatedLastTimestamp", json!("2026-01-01T00:00:00Z"), &["Invalid lastTimestamp"]),
        ],
    );
}

#[test]
fn an_event_happens_again_and_stays_what_it_is() {
    changed(
        NEW,
        "Event",
        "",
        &event(),
        &[
            ("/series", json!({"count": 2, "lastObservedTime": AT}), &[]),
            ("/series", json!({"count": 1, "lastObservedTime": AT}), &["Invalid series.count"]),
            ("/metadata/labels", json!({"a": "b"}), &[]),
            ("/deprecatedSource", json!({}), &[]),
            ("/deprecatedCount", json!(0), &[]),
            ("/note", json!("m"), &["Invalid message"]),
            ("/regarding/name", json!("q"), &["Invalid involvedObject"]),
            ("/eventTime", json!("2026-01-01T00:00:01.000000Z"), &["Invalid eventTime"]),
        ],
    );
}

/// Clients of old write what they have.
#[test]
fn core_events() {
    let old = named(json!({"involvedObject": {"namespace": "d"}, "count": 1, "source": {"component": "k"}}));
    let rows: [(&str, Value, &[&str]); 3] = [
        ("/involvedObject/namespace", json!("other"), &["Invalid involvedObject.namespace"]),
        ("/message", json!("x".repeat(2000)), &[]),
        (
            "/eventTime",
            json!(AT),
            &["Required reportingController", "Required reportingInstance", "Required action", "Required reason"],
        ),
    ];
    created("", "Event", &old, &rows);
    changed("", "Event", "", &old, &rows);
}
