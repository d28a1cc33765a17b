//! DefaultTolerationSeconds: pods stay for five minutes on a node that is not ready or unreachable.

use serde_json::{Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Operation};
use crate::object::child_mut;
use crate::status::Status;

/// How long, in seconds.
const TOLERATION_S: i64 = 300;

pub(super) struct DefaultTolerations;

impl AdmissionPlugin for DefaultTolerations {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn mutate(&self, attributes: &mut Attributes<'_>, _: &dyn Lookup) -> Result<(), Status> {
        if !attributes.is("", "pods") || attributes.operation == Operation::Delete {
            return Ok(());
        }
        let spec = child_mut(&mut attributes.object, "spec");
        let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
        if tolerations.is_null() {
            *tolerations = json!([]);
        }
        let Some(tolerations) = tolerations.as_array_mut() else { return Ok(()) };
        for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
            let tolerated = tolerations.iter().any(|toleration| {
                let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or("");
                (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "" | "NoExecute")
            });
            if !tolerated {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_S,
                }));
            }
        }
        Ok(())
    }
}
