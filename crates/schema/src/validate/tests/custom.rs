//! Custom resources: what is checked beside their schema, and what is let be.

use serde_json::{Value, json};

use super::{texts, with};
use crate::crd::resource_info;
use crate::crd::tests::definition;
use crate::validate::{create, update};

/// A resource with this spec.
fn resource(spec: &Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "x", "namespace": "d"}, "spec": spec})
}

/// What is expected of a resource when its spec is this one, and was the old one if there is one: the beginnings of the errors.
type Row<'a> = (Option<Value>, Value, &'a [&'a str]);

/// Holds resources against a definition with this schema of their spec.
#[track_caller]
fn check(schema: Value, rows: &[Row<'_>]) {
    let schema = ("/spec/versions/1/schema/openAPIV3Schema/properties/spec", schema);
    let info = resource_info(&with(definition(), &[schema])).expect("a row");
    for (old, spec, expected) in rows {
        let found = texts(&match old {
            None => create(&info, "v1", &resource(spec)),
            Some(old) => update(&info, "v1", &resource(spec), &resource(old), ""),
        });
        let fits =
            found.len() == expected.len() && found.iter().zip(*expected).all(|(text, start)| text.starts_with(start));
        assert!(fits, "{old:?} {spec}: {found:#?}");
    }
}

#[test]
fn resources_in_others_are_resources() {
    let pod =
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let row = |pod: Value, expected: &'static [&'static str]| -> Row<'static> { (None, json!({"pod": pod}), expected) };
    check(
        json!({"type": "object", "properties": {"pod": pod}}),
        &[
            row(json!({"apiVersion": "g/v1", "kind": "Pod", "metadata": {"name": "a:b", "labels": {"a": "b"}}}), &[]),
            row(json!({}), &["spec.pod.apiVersion: Required value", "spec.pod.kind: Required value"]),
            row(
                json!({"apiVersion": "", "kind": 1}),
                &["spec.pod.apiVersion: Required value", "spec.pod.kind: Invalid value: 1: must be a string"],
            ),
            row(
                json!({"apiVersion": "a/b/c", "kind": "Bad Kind"}),
                &[
                    "spec.pod.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
                    "spec.pod.kind: Invalid value: \"Bad Kind\": may have mixed case, but should otherwise match: ",
                ],
            ),
            row(
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
                    "name": "x/y", "namespace": "N", "labels": {"a b": "c"}, "finalizers": ["a b"]}}),
                &[
                    "spec.pod.metadata.name: Invalid value: \"x/y\": may not contain '/'",
                    "spec.pod.metadata.namespace: Invalid value: \"N\": ",
                    "spec.pod.metadata.labels: Invalid value: \"a b\": ",
                    "spec.pod.metadata.finalizers: Invalid value: \"a b\": ",
                ],
            ),
        ],
    );
}

#[test]
fn items_that_were_alike_before_hold_up_nothing() {
    let list = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    let row = |old: Option<Value>, new: Value, expected: &'static [&'static str]| -> Row<'static> {
        (old.map(|old| json!({"l": old})), json!({"l": new}), expected)
    };
    let second: &'static [&'static str] = &["spec.l[1]: Duplicate value: \"a\""];
    check(
        json!({"type": "object", "properties": {"l": list}}),
        &[
            row(None, json!(["a", "a", "a"]), second),
            row(Some(json!(["a"])), json!(["a", "a"]), second),
            row(Some(json!(["a", "a"])), json!(["a", "a", "b"]), &[]),
            row(Some(json!(["b", "b"])), json!(["a", "a"]), &[]),
        ],
    );
}

#[test]
fn rules_are_asked_unless_types_and_sizes_are_wrong() {
    let unasked = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid";
    let too_much = "spec.n: Invalid value: 9: spec.n in body should be less than or equal to 8";
    let rule = "spec: Invalid value: \"object\": failed rule: self.n < 5";
    check(
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.n < 5"}], "properties": {
            "n": {"type": "integer", "maximum": 8}, "t": {"type": "string", "maxLength": 2, "pattern": "^a"}}}),
        &[
            (None, json!({"n": 9}), &[too_much, rule]),
            (None, json!({"n": 4, "t": "b"}), &["spec.t: Invalid value: \"b\": spec.t in body should match '^a'"]),
            (None, json!({"n": 9, "t": "abc"}), &[too_much, "spec.t: Too long: may not be more than 2 bytes", unasked]),
        ],
    );
}

#[test]
fn scales_are_whole_numbers() {
    check(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        &[
            (None, json!({}), &[]),
            (None, json!({"replicas": 3}), &[]),
            (None, json!({"replicas": -3}), &[".spec.replicas: Invalid value: -3: should be a non-negative integer"]),
            (
                None,
                json!({"replicas": 3_000_000_000_u64}),
                &[".spec.replicas: Invalid value: 3000000000: should be less than or equal to 2147483647"],
            ),
            (
                Some(json!({"replicas": 1.5})),
                json!({"replicas": 1.5}),
                &[
                    ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, expected int64",
                ],
            ),
            (
                None,
                json!({"replicas": null}),
                &[
                    ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: <nil> is of the type <nil>, expected int64",
                ],
            ),
        ],
    );
    // Who writes the status is not told of the spec.
    let info = resource_info(&definition()).expect("a row");
    let old = resource(&json!({"cronSpec": "* *", "replicas": 3_000_000_000_u64}));
    let new = with(old.clone(), &[("/status", json!({"replicas": -1}))]);
    assert_eq!(
        texts(&update(&info, "v1", &new, &old, "status")),
        [".status.replicas: Invalid value: -1: should be a non-negative integer"]
    );
}

#[test]
fn owners_are_told_once() {
    let info = resource_info(&definition()).expect("a row");
    let owner = json!({"apiVersion": "v1", "name": "a", "uid": "1"});
    let owned = with(resource(&json!({"cronSpec": "* *"})), &[("/metadata/ownerReferences", json!([owner]))]);
    assert_eq!(
        texts(&create(&info, "v1", &owned)),
        ["metadata.ownerReferences[0].kind: Invalid value: \"\": must not be empty"]
    );
}
