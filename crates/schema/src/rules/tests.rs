use serde_json::{Value, json};

use super::{check, compile};
use crate::schema::Schema;

/// A schema of an object with this `spec`, compiled; the problems as texts.
fn problems(spec: &Value) -> Vec<String> {
    let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("a schema");
    compile(&schema, "schema").1.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check_errors(spec: &Value, old: Option<Value>, new: Value, expected: &[&str]) {
    let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("a schema");
    let (rules, problems) = compile(&schema, "schema");
    assert_eq!(problems, [], "{spec}");
    let old = old.map(|old| json!({"spec": old}));
    let errors: Vec<String> =
        check(&json!({"spec": new}), old.as_ref(), &schema, &rules).iter().map(ToString::to_string).collect();
    assert_eq!(errors, expected);
}

fn bounds() -> Value {
    json!({"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}, "x-kubernetes-validations": [
        {"rule": "self.min <= self.max", "message": "min is above max"},
        {"rule": "!has(self.max) || self.max < 100", "messageExpression": "'max is ' + string(self.max)", "reason": "FieldValueForbidden", "fieldPath": ".max"},
    ]})
}

#[test]
fn rules_hold_or_say_why() {
    check_errors(&bounds(), None, json!({"min": 1, "max": 2}), &[]);
    check_errors(&bounds(), None, json!({"min": 3, "max": 2}), &["spec: Invalid value: \"object\": min is above max"]);
    check_errors(&bounds(), None, json!({"min": 3, "max": 200}), &["spec.max: Forbidden: max is 200"]);
    check_errors(
        &bounds(),
        None,
        json!({"max": 2}),
        &["spec: Invalid value: \"object\": no such key: min evaluating rule: self.min <= self.max"],
    );
}

#[test]
fn errors_are_bounded_in_number_and_length() {
    let spec = json!({"type": "object", "maxProperties": 2, "additionalProperties": {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [
        {"rule": "self > 0", "messageExpression": "'x'.replace('x', '0123456789') + string(self)"},
    ]}}});
    let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": spec}})).expect("a schema");
    let (rules, _) = compile(&schema, "schema");
    let value = json!({"spec": {"k".repeat(1 << 20): vec![0; 100_000]}});
    let errors = check(&value, None, &schema, &rules);
    assert_eq!(errors.len(), 50);
    assert!(errors.iter().all(|error| error.path.len() <= 1024 && error.to_string().contains("01234567890")));
}

#[test]
fn unchanged_values_are_not_asked_again() {
    let bad = json!({"min": 3, "max": 2});
    check_errors(&bounds(), Some(bad.clone()), bad, &[]);
}

#[test]
fn transitions() {
    let immutable = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
        {"rule": "self == oldSelf", "message": "a is immutable"},
    ]}}});
    check_errors(&immutable, None, json!({"a": "x"}), &[]);
    check_errors(&immutable, Some(json!({})), json!({"a": "x"}), &[]);
    check_errors(&immutable, Some(json!({"a": "x"})), json!({"a": "x"}), &[]);
    check_errors(
        &immutable,
        Some(json!({"a": "x"})),
        json!({"a": "y"}),
        &["spec.a: Invalid value: \"string\": a is immutable"],
    );
    let optional = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 10, "x-kubernetes-validations": [
        {"rule": "oldSelf.orValue('none') != self", "optionalOldSelf": true},
    ]}}});
    check_errors(
        &optional,
        None,
        json!({"a": "none"}),
        &["spec.a: Invalid value: \"string\": failed rule: oldSelf.orValue('none') != self"],
    );
    check_errors(&optional, Some(json!({"a": "x"})), json!({"a": "y"}), &[]);
}

#[test]
fn items_of_keyed_lists_correlate() {
    let list = json!({"type": "array", "maxItems": 10, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
        "type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 9}, "size": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.size >= oldSelf.size", "message": "may not shrink"}],
    }});
    let old = json!([{"name": "a", "size": 2}, {"name": "b", "size": 5}]);
    check_errors(&list, Some(old.clone()), json!([{"name": "b", "size": 5}, {"name": "c", "size": 0}]), &[]);
    check_errors(
        &list,
        Some(old),
        json!([{"name": "b", "size": 4}, {"name": "a", "size": 3}]),
        &["spec[0]: Invalid value: \"object\": may not shrink"],
    );
}

#[test]
fn maps_and_formats() {
    let spec = json!({"type": "object", "properties": {
        "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5, "x-kubernetes-validations": [{"rule": "self != 'bad'"}]}, "maxProperties": 5},
        "at": {"type": "string", "format": "date-time", "x-kubernetes-validations": [{"rule": "self > timestamp('2020-01-01T00:00:00Z')"}]},
        "port": {"x-kubernetes-int-or-string": true, "x-kubernetes-validations": [{"rule": "type(self) == int || self == 'http'"}]},
        "in": {"type": "integer"},
    }, "x-kubernetes-validations": [{"rule": "!has(self.__in__) || self.__in__ > 0"}]});
    check_errors(&spec, None, json!({"labels": {"x": "ok"}, "at": "2024-01-01T00:00:00Z", "port": 80, "in": 1}), &[]);
    check_errors(
        &spec,
        None,
        json!({"labels": {"x": "bad"}, "port": "ssh", "in": 0}),
        &[
            "spec: Invalid value: \"object\": failed rule: !has(self.__in__) || self.__in__ > 0",
            "spec.labels.x: Invalid value: \"string\": failed rule: self != 'bad'",
            "spec.port: Invalid value: \"\": failed rule: type(self) == int || self == 'http'",
        ],
    );
}

#[test]
fn bad_rules_are_refused() {
    let with = |rule: Value| json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": [rule]});
    let path = "schema.properties[spec].x-kubernetes-validations[0]";
    for (rule, field, text) in [
        (json!({"rule": "self.b > 1"}), "rule", "compilation failed: ERROR: <input>:1:5: undefined field 'b'"),
        (json!({"rule": "self.a +"}), "rule", "Syntax error"),
        (json!({"rule": "self.a"}), "rule", "cel expression must evaluate to a bool"),
        (json!({"rule": " "}), "rule", "rule is not specified"),
        (json!({"rule": "true", "message": " "}), "message", "message must be non-empty if specified"),
        (json!({"rule": "true", "messageExpression": "1"}), "messageExpression", "must evaluate to a string"),
        (json!({"rule": "true", "reason": "Because"}), "reason", "Unsupported value"),
        (json!({"rule": "true", "fieldPath": ".z"}), "fieldPath", "does not refer to a valid field"),
        (json!({"rule": "true", "optionalOldSelf": true}), "optionalOldSelf", "may not be set if oldSelf is not used"),
    ] {
        let found = problems(&with(rule.clone()));
        assert_eq!(found.len(), 1, "{rule}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}.{field}: ")) && found[0].contains(text), "{rule}: {found:?}");
    }
    let in_list = problems(
        &json!({"type": "array", "maxItems": 3, "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
    );
    assert!(in_list[0].contains("oldSelf cannot be used on the uncorrelatable portion"), "{in_list:?}");
}

#[test]
fn costly_rules_are_refused() {
    let list = |bounds: bool| {
        let mut items = json!({"type": "string"});
        let mut list = json!({"type": "array", "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b || a != b))"}]});
        if bounds {
            items["maxLength"] = 10.into();
            list["maxItems"] = 20.into();
        }
        list["items"] = items;
        list
    };
    assert_eq!(problems(&list(true)), [""; 0]);
    let found = problems(&list(false));
    assert!(found[0].contains("estimated rule cost exceeds budget by factor of more than 100x"), "{found:?}");
    assert!(found[1].contains("for entire OpenAPIv3 schema"), "{found:?}");
}
