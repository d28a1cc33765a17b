//! DefaultTolerationSeconds: pods stay for a while on a node that is not ready or unreachable, five minutes unless the server is
//! told otherwise.

use serde_json::{Value, json};

use super::{AdmissionPlugin, Attributes, Lookup, Operation};
use crate::object::child_mut;
use crate::status::Status;

/// For how many seconds pods stay on a node that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tolerations {
    pub not_ready_s: i64,
    pub unreachable_s: i64,
}

impl Default for Tolerations {
    fn default() -> Self {
        Tolerations { not_ready_s: 300, unreachable_s: 300 }
    }
}

pub(super) struct DefaultTolerations(pub Tolerations);

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
        let Tolerations { not_ready_s, unreachable_s } = self.0;
        for (key, toleration_s) in
            [("node.kubernetes.io/not-ready", not_ready_s), ("node.kubernetes.io/unreachable", unreachable_s)]
        {
            let tolerated = tolerations.iter().any(|toleration| {
                let text = |field: &str| toleration.get(field).and_then(Value::as_str).unwrap_or("");
                (text("key") == key || text("key").is_empty()) && matches!(text("effect"), "" | "NoExecute")
            });
            if !tolerated {
                tolerations.push(json!({
                    "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": toleration_s,
                }));
            }
        }
        Ok(())
    }
}
