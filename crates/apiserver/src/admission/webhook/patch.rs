//! The JSON patch of a mutating webhook, or of a policy.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::object::Object;
use crate::registry::patch::finds_nothing;

const MAX_OPERATIONS: usize = 10_000;
/// What an object may grow to, in bytes.
const MAX_BYTES: usize = 3 << 20;

/// Applies a patch to an object.
pub(in crate::admission) fn apply(object: &Value, patch: &[u8]) -> Result<Object, String> {
    let patch: json_patch::Patch =
        serde_json::from_slice(patch).map_err(|error| format!("the patch cannot be read: {error}"))?;
    if patch.0.len() > MAX_OPERATIONS {
        return Err(format!("the patch has more than {MAX_OPERATIONS} operations"));
    }
    let mut value = object.clone();
    let mut copied_bytes = 0;
    for operation in &patch.0 {
        if let PatchOperation::Copy(copy) = operation {
            // A few copies of copies would fill the memory.
            copied_bytes += value.pointer(copy.from.as_str()).map_or(0, |from| from.to_string().len());
        }
        if copied_bytes > MAX_BYTES {
            return Err("the patch copies too much".to_owned());
        }
        // Webhooks remove what need not be there, and upstream lets them.
        if let PatchOperation::Remove(remove) = operation
            && value.pointer(remove.path.as_str()).is_none()
        {
            continue;
        }
        if finds_nothing(operation, &value) {
            continue;
        }
        json_patch::patch(&mut value, std::slice::from_ref(operation))
            .map_err(|error| format!("the patch cannot be applied at {}: {}", operation.path(), error.kind))?;
    }
    match value {
        Value::Object(object) => Ok(object),
        _ => Err("the patch leaves no object".to_owned()),
    }
}
