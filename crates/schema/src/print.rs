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
use serde_json::Value;

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

/// The columns of a kind.
#[must_use]
pub fn columns(info: &ResourceInfo, version: &Version) -> Vec<Column> {
    if info.is_custom { custom::columns(version) } else { columns::builtin(&info.group, &info.kind) }
}

/// The columns of the `Scale` of an object of any kind, and its cells.
#[must_use]
pub fn scale(scale: &Value, now: Timestamp) -> (Vec<Column>, Vec<Value>) {
    let (group, kind) = ("autoscaling", "Scale");
    (columns::builtin(group, kind), kinds::cells(group, kind, access::Row::new(scale, now)))
}

/// The cells of an object, one for each of [`columns`].
#[must_use]
pub fn cells(info: &ResourceInfo, version: &Version, object: &Value, now: Timestamp) -> Vec<Value> {
    let row = access::Row::new(object, now);
    if info.is_custom { custom::cells(version, row) } else { kinds::cells(&info.group, &info.kind, row) }
}

#[cfg(test)]
mod tests;
