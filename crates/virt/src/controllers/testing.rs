//! Objects from JSON, and short words for plans, so that tables of them can be read.

use carrack_engine::{Absent, Plan, Write};
use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::trim;

/// An object from its JSON.
pub(crate) fn of<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// A pod as the controllers see it: their cache keeps no more of it.
pub(crate) fn cached(mut pod: Pod) -> Pod {
    trim::pod(&mut pod);
    pod
}

/// JSON with some of its fields changed.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    merge(&mut base, more);
    base
}

/// Puts fields into JSON; lists are replaced.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// What a plan writes: one line a write.
pub(crate) fn words(plan: &Plan) -> Vec<String> {
    plan.writes.iter().map(word).collect()
}

fn word(write: &Write) -> String {
    let at = format!("{}/{}", write.resource().plural, write.key().name);
    match write {
        Write::Create { .. } => format!("create {at}"),
        Write::Update { sub, .. } => format!("update {at}{}", slash(sub)),
        Write::Delete { .. } => format!("delete {at}"),
        Write::Call { sub, .. } => format!("call {at}/{sub}"),
        Write::Post { sub, .. } => format!("post {at}/{sub}"),
        Write::DeleteAll { resource, namespace } => format!("delete all {resource} of {namespace}"),
        Write::Confirm { absent, .. } => match absent {
            Absent::Object { .. } => format!("absent {at}"),
            Absent::AnyIn(namespace) => format!("none in {namespace}"),
            Absent::Newer { .. } => format!("unchanged {at}"),
            Absent::Child { .. } => format!("no child {at}"),
            Absent::End { .. } => format!("alive {at}"),
            Absent::Change { .. } => format!("same {at}"),
            Absent::Refusal { review } => format!("allowed {}", review["spec"]["user"]),
        },
        Write::Patch { sub, patch, .. } => {
            let fields = ["metadata", "spec", "status"].into_iter().flat_map(|part| patch[part].as_object());
            let fields = fields.flatten().filter(|(name, _)| !matches!(name.as_str(), "uid" | "resourceVersion"));
            let text: Vec<String> = fields.map(|(name, value)| field(name, value)).collect();
            format!("patch {at}{} {}", slash(sub), text.join(" "))
        }
    }
}

fn slash(sub: &str) -> String {
    if sub.is_empty() { String::new() } else { format!("/{sub}") }
}

fn field(name: &str, value: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Array(conditions) if name == "conditions" => {
            let one = |c: &Value| format!("{}={}({})", text(&c["type"]), text(&c["status"]), text(&c["reason"]));
            conditions.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        Value::Array(all) if all.iter().all(Value::is_string) => {
            format!("{name}=[{}]", all.iter().map(text).collect::<Vec<_>>().join(","))
        }
        Value::Array(_) | Value::Object(_) => name.to_owned(),
        _ => format!("{name}={}", text(value)),
    }
}
