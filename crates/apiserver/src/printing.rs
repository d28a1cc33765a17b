//! Rows and columns of tables, in the wire's form.

use carrack_schema::print::{self, Column};
use carrack_schema::table::{ResourceInfo, Version};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::Object;

/// `columnDefinitions` of a kind.
pub(crate) fn columns(row: &ResourceInfo, version: &Version) -> Value {
    headings(print::columns(row, version))
}

fn headings(columns: Vec<Column>) -> Value {
    columns
        .into_iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.type_,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect()
}

/// One row: the cells of an object, and the object in the form that was asked for.
pub(crate) fn row(row: &ResourceInfo, version: &Version, object: Object, now: Timestamp, shown: Value) -> Value {
    json!({"cells": print::cells(row, version, &Value::Object(object), now), "object": shown})
}

/// The `columnDefinitions` of a `Scale`, and its row.
pub(crate) fn scale(scale: &Value, now: Timestamp, shown: Value) -> (Value, Value) {
    let (columns, cells) = print::scale(scale, now);
    (headings(columns), json!({"cells": cells, "object": shown}))
}
