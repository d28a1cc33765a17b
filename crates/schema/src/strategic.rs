//! Merge patches: JSON merge patch (RFC 7386) and strategic merge patch.

use serde_json::Value;

use crate::schema::Schema;

/// Why a patch cannot be applied; all are a 400 `BadRequest` (or 422 as upstream has it).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// A directive is malformed.
    #[error("{0}")]
    Malformed(String),
}

/// Applies a strategic merge patch.
///
/// # Errors
/// When the patch is malformed.
pub fn apply(original: Value, patch: Value, _schema: &Schema) -> Result<Value, PatchError> {
    let mut out = original;
    merge(&mut out, &patch);
    Ok(out)
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
