//! Columns of custom resources, which their definition gives.

use serde_json::Value;

use super::access::Row;
use super::columns::name_column;
use super::{Column, duration};
use crate::table::{ColumnDef, Version};

pub(super) fn columns(version: &Version) -> Vec<Column> {
    let own = version.columns.iter().map(|column| Column {
        name: column.name.clone(),
        type_: column.type_.clone(),
        format: column.format.clone(),
        description: column.description.clone(),
        priority: column.priority,
    });
    let age = version.columns.is_empty().then(|| Column {
        name: "Age".to_owned(),
        type_: "date".to_owned(),
        format: String::new(),
        description: "Time since the object was created.".to_owned(),
        priority: 0,
    });
    std::iter::once(name_column()).chain(own).chain(age).collect()
}

pub(super) fn cells(version: &Version, row: Row<'_>) -> Vec<Value> {
    let own = version.columns.iter().map(|column| cell(column, row));
    let age = version.columns.is_empty().then(|| row.age());
    std::iter::once(row.name()).chain(own).chain(age).collect()
}

/// A cell is of its column's type, or null.
fn cell(column: &ColumnDef, row: Row<'_>) -> Value {
    let found = column.path.as_ref().map(|path| path.find(row.value)).unwrap_or_default();
    let Some(first) = found.first() else { return Value::Null };
    match column.type_.as_str() {
        "string" => match found.as_slice() {
            // What finds several is one text.
            [one] => one.as_str().map_or_else(|| Value::from(one.to_string()), Value::from),
            many => {
                let texts: Vec<_> =
                    many.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
                texts.join(",").into()
            }
        },
        "integer" => first.as_i64().map_or(Value::Null, Value::from),
        "number" if first.is_number() => (*first).clone(),
        "boolean" if first.is_boolean() => (*first).clone(),
        "date" => first.as_str().map_or(Value::Null, |text| duration::since(text, row.now).into()),
        _ => Value::Null,
    }
}
