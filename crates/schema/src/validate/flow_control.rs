//! Priority and fairness: what schemas and levels say beyond single fields.
//!
//! Upstream: `pkg/apis/flowcontrol/validation`.

use super::access::{Errors, Place};
use super::names;
use crate::error::FieldError;

/// The level, and the schema, that nothing limits.
const EXEMPT: &str = "exempt";
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// Most queues of a level.
const MOST_QUEUES: i64 = 10_000_000;
/// Bits of a flow's hash, from which its hand of queues is dealt.
const HASH_BITS: f64 = 60.0;

pub(super) fn schema(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    if spec.number("matchingPrecedence") == Some(1) && object.field("metadata").text("name") != EXEMPT {
        let text = "only the schema named 'exempt' may have matchingPrecedence 1";
        spec.invalid("matchingPrecedence", text, errors);
    }
    for rule in spec.items("rules") {
        for subject in rule.items("subjects") {
            self::subject(&subject, errors);
        }
        let has = |field: &str| rule.items(field).next().is_some();
        if !has("resourceRules") && !has("nonResourceRules") {
            let text = "at least one of resourceRules and nonResourceRules has to be non-empty";
            errors.push(FieldError::required(rule.path.clone(), text));
        }
        for of_resources in rule.items("resourceRules") {
            verbs(&of_resources, errors);
            alone(&of_resources, "apiGroups", "api groups", errors);
            alone(&of_resources, "resources", "resources", errors);
            namespaces(&of_resources, errors);
        }
        for of_paths in rule.items("nonResourceRules") {
            verbs(&of_paths, errors);
            if !alone(&of_paths, "nonResourceURLs", "non-resource URLs", errors) {
                for path in of_paths.items("nonResourceURLs") {
                    let text = path.value.as_str().unwrap_or_default();
                    errors.extend(wrong_path(text).map(|why| FieldError::invalid(path.path.clone(), text, why)));
                }
            }
        }
    }
}

fn subject(subject: &Place<'_>, errors: &mut Errors) {
    const KINDS: [(&str, &str); 3] = [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];
    let kind = subject.text("kind");
    for (other, field) in KINDS {
        let (path, place) = (subject.path_of(field), subject.field(field));
        match (other == kind, place.exists()) {
            (true, false) => {
                errors.push(FieldError::required(path, format!("{field} is required when subject kind is '{other}'")));
            }
            (true, true) => {
                place.needs_text("name", errors);
            }
            (false, true) if KINDS.iter().any(|(known, _)| *known == kind) => {
                let text = format!("{field} is forbidden when subject kind is not '{other}'");
                errors.push(FieldError::forbidden(path, text));
            }
            (false, _) => {}
        }
    }
    if let (Some(account), "ServiceAccount") = (subject.some("serviceAccount"), kind) {
        if account.text("name") != "*" {
            account.has_form("name", names::dns1123_subdomain, errors);
        }
        account.has_form("namespace", names::dns1123_label, errors);
        if account.text("namespace").is_empty() {
            let text = "must specify namespace for service account";
            errors.push(FieldError::required(account.path_of("namespace"), text));
        }
    }
}

/// Whether `*` is in a list; then it is there alone.
fn alone(rule: &Place<'_>, field: &str, what: &str, errors: &mut Errors) -> bool {
    let all = rule.texts(field);
    let is_any = all.contains(&"*");
    if is_any && all.len() > 1 {
        rule.invalid(field, format!("if '*' is present, must not specify other {what}"), errors);
    }
    is_any
}

fn verbs(rule: &Place<'_>, errors: &mut Errors) {
    if !alone(rule, "verbs", "verbs", errors) && !rule.texts("verbs").iter().all(|verb| VERBS.contains(verb)) {
        let given = rule.field("verbs");
        errors.push(FieldError::not_supported(given.path, given.value.clone(), &VERBS));
    }
}

fn namespaces(rule: &Place<'_>, errors: &mut Errors) {
    if rule.texts("namespaces").is_empty() && !rule.flag("clusterScope") {
        let text = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(rule.path_of("namespaces"), text));
    }
    if !alone(rule, "namespaces", "namespaces", errors) {
        for namespace in rule.items("namespaces") {
            let text = namespace.value.as_str().unwrap_or_default();
            if let Some(problem) = names::dns1123_label(text) {
                let why = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.push(FieldError::invalid(namespace.path, text, why));
            }
        }
    }
}

fn wrong_path(path: &str) -> Option<&'static str> {
    let stars = path.matches('*').count();
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ if stars > 1 || (stars == 1 && !path.ends_with("/*")) => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

pub(super) fn level(object: &Place<'_>, errors: &mut Errors) {
    let spec = object.field("spec");
    let is_exempt = spec.text("type") == "Exempt";
    if is_exempt != (object.field("metadata").text("name") == EXEMPT) {
        spec.invalid("type", "type must be 'Exempt' if and only if name is 'exempt'", errors);
    }
    let (limited, exempt) = (spec.field("limited"), spec.field("exempt"));
    match spec.text("type") {
        "Exempt" if limited.exists() => {
            errors.push(FieldError::forbidden(limited.path, "must be nil if the type is not Limited"));
        }
        "Limited" if exempt.exists() => {
            errors.push(FieldError::forbidden(exempt.path, "must be nil if the type is Limited"));
        }
        "Limited" if !limited.exists() => {
            errors.push(FieldError::required(limited.path, "must not be empty when type is Limited"));
        }
        "Limited" => response(&limited.field("limitResponse"), errors),
        _ => {}
    }
}

fn response(response: &Place<'_>, errors: &mut Errors) {
    let queuing = response.field("queuing");
    match response.text("type") {
        "Reject" if queuing.exists() => {
            let text = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(queuing.path, text));
        }
        "Queue" if !queuing.exists() => {
            let text = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(queuing.path, text));
        }
        "Queue" => queues(&queuing, errors),
        _ => {}
    }
}

fn queues(queuing: &Place<'_>, errors: &mut Errors) {
    // What is no positive number has been told of.
    let positive = |field: &str| queuing.number(field).filter(|number| *number > 0);
    let (Some(queues), Some(hand)) = (positive("queues"), positive("handSize")) else { return };
    if queues > MOST_QUEUES {
        queuing.invalid("queues", format!("must not be greater than {MOST_QUEUES}"), errors);
    }
    if hand > queues {
        queuing.invalid("handSize", format!("should not be greater than queues ({queues})"), errors);
    } else if entropy_bits(queues, hand).ceil() > HASH_BITS {
        let text = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        queuing.invalid("handSize", text, errors);
    }
}

/// Bits that decide which hand of a deck it is: the logarithm of deck · (deck - 1) · …
fn entropy_bits(deck: i64, hand: i64) -> f64 {
    // One card of two or more is a bit at least: no more than so many of them need be looked at.
    (0..hand.min(64)).map(|dealt| ((deck - dealt) as f64).log2()).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(check: fn(&Place<'_>, &mut Errors), object: &Value) -> Vec<String> {
        let mut errors = Errors::new();
        check(&Place::root(object), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn schemas() {
        let rule = |changes: &Value| {
            let mut rule = json!({
                "subjects": [{"kind": "User", "user": {"name": "u"}}],
                "resourceRules": [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}],
            });
            for (field, value) in changes.as_object().into_iter().flatten() {
                rule[field] = value.clone();
            }
            json!({"metadata": {"name": "s"}, "spec": {"matchingPrecedence": 2, "rules": [rule]}})
        };
        let resources = |field: &str, value: Value| {
            let mut rules = json!([{"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]);
            rules[0][field] = value;
            json!({"resourceRules": rules})
        };
        let paths = |paths: Value| json!({"nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}]});
        for (changes, want) in [
            (json!({}), None),
            (json!({"resourceRules": []}), Some("spec.rules[0]: Required value: at least one of resourceRules")),
            (resources("verbs", json!(["*", "get"])), Some("verbs: Invalid value: [\"*\",\"get\"]: if '*' is present")),
            (resources("verbs", json!(["connect"])), Some("verbs: Unsupported value: [\"connect\"]")),
            (resources("namespaces", json!([])), Some("must supply at least one namespace")),
            (resources("namespaces", json!(["A"])), Some("namespaces[0]: Invalid value: \"A\": each member")),
            (resources("resources", json!(["*", "pods"])), Some("must not specify other resources")),
            (paths(json!(["/", "/healthz/*", "/a"])), None),
            (paths(json!(["/a*"])), Some("nonResourceURLs[0]: Invalid value: \"/a*\": wildcard can only")),
            (paths(json!(["a"])), Some("must start with slash")),
            (json!({"subjects": [{"kind": "User"}]}), Some("subjects[0].user: Required value: user is required")),
            (
                json!({"subjects": [{"kind": "Group", "group": {"name": "g"}, "user": {"name": "u"}}]}),
                Some("subjects[0].user: Forbidden: user is forbidden when subject kind is not 'User'"),
            ),
            (
                json!({"subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "*"}}]}),
                Some("must specify namespace for service account"),
            ),
        ] {
            let found = found(schema, &rule(&changes));
            match want {
                None => assert!(found.is_empty(), "{changes}: {found:?}"),
                Some(want) => assert!(found.len() == 1 && found[0].contains(want), "{changes}: {found:?}"),
            }
        }
        let first = json!({"metadata": {"name": "s"}, "spec": {"matchingPrecedence": 1}});
        assert!(found(schema, &first)[0].contains("only the schema named 'exempt'"));
    }

    #[test]
    fn levels() {
        let limited = |response: Value| json!({"type": "Limited", "limited": {"limitResponse": response}});
        let queued =
            |queues: i64, hand: i64| limited(json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand}}));
        for (name, spec, want) in [
            ("l", limited(json!({"type": "Reject"})), None),
            ("l", queued(64, 8), None),
            ("exempt", json!({"type": "Exempt"}), None),
            ("l", json!({"type": "Exempt"}), Some("spec.type: Invalid value: \"Exempt\": type must be 'Exempt' if")),
            ("l", json!({"type": "Limited"}), Some("spec.limited: Required value")),
            ("l", limited(json!({"type": "Queue"})), Some("limitResponse.queuing: Required value")),
            ("l", limited(json!({"type": "Reject", "queuing": {}})), Some("queuing: Forbidden")),
            ("l", queued(8, 9), Some("handSize: Invalid value: 9: should not be greater than queues (8)")),
            ("l", queued(64, 11), Some("required entropy bits of deckSize 64 and handSize 11")),
            ("l", queued(10_000_001, 1), Some("queues: Invalid value: 10000001: must not be greater than 10000000")),
        ] {
            let found = found(level, &json!({"metadata": {"name": name}, "spec": spec}));
            match want {
                None => assert!(found.is_empty(), "{spec}: {found:?}"),
                Some(want) => assert!(found.len() == 1 && found[0].contains(want), "{spec}: {found:?}"),
            }
        }
    }
}
