//! Server-side printing: the columns and cells of `Table`s.
//!
//! Built-in kinds have kubectl's usual columns, custom resources those of their definition. All
//! columns are always there; the client leaves out those of a priority above 0 unless it was asked
//! for `-o wide`. Ages are relative to the `now` that is handed in.

mod access;
mod columns;
mod custom;
mod duration;
mod kinds;
mod pod;
mod storage;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::table::{ResourceInfo, Version};

pub use duration::human_duration;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading, such as `Name`.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub type_: String,
    /// `name` for the name column, else mostly empty.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 is shown always, others with `-o wide`.
    pub priority: i64,
}

impl Column {
    /// The column as it stands in `columnDefinitions`.
    #[must_use]
    pub fn definition(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.type_,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

/// The columns of a kind.
#[must_use]
pub fn columns(info: &ResourceInfo, version: &Version) -> Vec<Column> {
    if info.is_custom { custom::columns(version) } else { columns::builtin(&info.group, &info.kind) }
}

/// The cells of an object, one for each of [`columns`].
#[must_use]
pub fn cells(info: &ResourceInfo, version: &Version, object: &Value, now: Timestamp) -> Vec<Value> {
    let row = access::Row::new(object, now);
    if info.is_custom { custom::cells(version, row) } else { kinds::cells(&info.group, &info.kind, row) }
}

/// A whole `Table` of objects.
///
/// `include` says what stands in each row's `object`; `metadata` is the list's.
#[must_use]
pub fn table(
    info: &ResourceInfo,
    version: &Version,
    objects: &[&Value],
    metadata: &Value,
    include: IncludeObject,
    now: Timestamp,
) -> Value {
    let columns: Vec<_> = columns(info, version).iter().map(Column::definition).collect();
    let rows: Vec<_> = objects.iter().map(|object| row(info, version, object, include, now)).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// One row of a `Table`.
#[must_use]
pub fn row(info: &ResourceInfo, version: &Version, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    let mut row = json!({"cells": cells(info, version, object, now)});
    let shown = match include {
        IncludeObject::None => None,
        IncludeObject::Metadata => Some(json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
        })),
        IncludeObject::Object => Some(object.clone()),
    };
    if let (Value::Object(map), Some(shown)) = (&mut row, shown) {
        map.insert("object".to_owned(), shown);
    }
    row
}

/// What stands in a row's `object` (`includeObject` of table options).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

#[cfg(test)]
mod tests;
