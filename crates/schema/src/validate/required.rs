//! For kinds without rules of their own: the fields that the schema requires are there.

use serde_json::Value;

use super::access::Errors;
use crate::error::FieldError;
use crate::schema::{Additional, Schema, Type};

/// Checks that required fields exist, lists and maps apart: clients in Go leave out empty ones.
pub(super) fn fields(value: &Value, schema: &Schema, path: &str, errors: &mut Errors) {
    let node = schema.resolve();
    let child_path = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(map) => {
            for name in &node.required {
                let collection = node.property(name).map(Schema::resolve).is_some_and(|child| {
                    child.type_ == Type::Array
                        || !matches!(child.additional, Additional::Unspecified)
                        || child.type_ == Type::Any
                });
                if !collection && map.get(name.as_ref()).is_none_or(Value::is_null) {
                    errors.push(FieldError::required(child_path(name), ""));
                }
            }
            for (name, child) in
                map.iter().filter(|(name, _)| !(path.is_empty() && matches!(name.as_str(), "metadata" | "status")))
            {
                if let Some(schema) = node.property(name) {
                    fields(child, schema, &child_path(name), errors);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for (index, item) in list.iter().enumerate() {
                    fields(item, items, &format!("{path}[{index}]"), errors);
                }
            }
        }
        _ => {}
    }
}
