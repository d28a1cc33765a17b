//! Server-side printing: the columns and cells of `Table`s.

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{ResourceInfo, Version};

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
pub fn columns(_info: &ResourceInfo, _version: &Version) -> Vec<Column> {
    Vec::new()
}

/// The cells of an object, one for each of [`columns`].
#[must_use]
pub fn cells(_info: &ResourceInfo, _version: &Version, _object: &Value, _now: Timestamp) -> Vec<Value> {
    Vec::new()
}
