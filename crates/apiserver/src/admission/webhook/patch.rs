//! The JSON patch of a mutating webhook.

use serde_json::Value;

use crate::object::Object;
use crate::registry::operations::{self, Missing};

/// Applies a patch to an object.
pub(super) fn apply(object: &Value, patch: &[u8]) -> Result<Object, String> {
    let patch: json_patch::Patch =
        serde_json::from_slice(patch).map_err(|error| format!("the patch cannot be read: {error}"))?;
    let mut value = object.clone();
    operations::apply(&mut value, &patch, Missing::Done).map_err(|fault| fault.to_string())?;
    match value {
        Value::Object(object) => Ok(object),
        _ => Err("the patch leaves no object".to_owned()),
    }
}

/// Whether a patch says that nothing is to be changed.
pub(super) fn is_empty(patch: &[u8]) -> bool {
    serde_json::from_slice::<Vec<Value>>(patch).is_ok_and(|operations| operations.is_empty())
}
