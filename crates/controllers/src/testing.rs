//! Short words for plans, so that tables of them can be read.

use carrack_engine::{Absent, Plan, Write};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An object from its JSON.
pub(crate) fn of<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"))
}

/// What a plan writes: one line a write.
pub(crate) fn words(plan: &Plan) -> Vec<String> {
    assert_eq!(plan.error, None);
    plan.writes.iter().map(word).collect()
}

fn word(write: &Write) -> String {
    let key = write.key();
    match write {
        Write::Create { resource, .. } => format!("create {resource} {key}"),
        Write::Update { sub, .. } => format!("update {key}{}", slash(sub)),
        Write::Delete { .. } => format!("delete {key}"),
        Write::DeleteAll { resource, namespace } => format!("delete all {resource} of {namespace}"),
        Write::Confirm { absent, .. } => match absent {
            Absent::Object { .. } => format!("confirm absent {key}"),
            Absent::AnyIn(namespace) => format!("confirm none in {namespace}"),
            Absent::Newer { .. } => format!("confirm unchanged {key}"),
            Absent::Child { .. } => format!("confirm no child {key}"),
            Absent::End { .. } => format!("confirm alive {key}"),
            Absent::Change { .. } => format!("confirm same {}", write.resource()),
            Absent::Refusal { review } => format!("confirm allowed {}", review["spec"]["user"]),
        },
        Write::Call { sub, .. } => format!("call {key}{}", slash(sub)),
        Write::Post { sub, .. } => format!("post {key}{}", slash(sub)),
        Write::Patch { sub, patch, .. } => {
            let mut text = format!("patch {key}{}", slash(sub));
            for (name, value) in patch["metadata"].as_object().into_iter().flatten() {
                if !matches!(name.as_str(), "uid" | "resourceVersion") {
                    text += &format!(" {name}={}", plain(value));
                }
            }
            for part in ["spec", "status"] {
                for (name, value) in patch[part].as_object().into_iter().flatten() {
                    if name == "conditions" {
                        for c in value.as_array().into_iter().flatten() {
                            text += &format!(" {}={}", plain(&c["type"]), plain(&c["status"]));
                        }
                    } else if name == "taints" {
                        let taints = value.as_array().into_iter().flatten();
                        let names: Vec<_> =
                            taints.map(|t| format!("{}:{}", plain(&t["key"]), plain(&t["effect"]))).collect();
                        text += &format!(" taints={}", names.join(","));
                    } else {
                        text += &format!(" {name}={}", plain(value));
                    }
                }
            }
            text
        }
    }
}

fn slash(sub: &str) -> String {
    if sub.is_empty() { String::new() } else { format!("/{sub}") }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
