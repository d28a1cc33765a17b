//! The table of resources and their schemas: strict decoding, defaults, pruning, validation, printing, OpenAPI.
//!
//! All of it is pure: no clocks, no sockets, no randomness. A request body goes through
//! [`decode::parse`] (bytes to a value), [`decode::conform`] (types, unknown fields),
//! [`default::apply`], and [`validate::create`] or [`validate::update`]; what is read goes through
//! [`print`] for tables and [`convert`] where a version is not the stored one. Who owns which field,
//! and server-side apply, is in [`apply`]. Custom resources take the same way:
//! [`crd::resource_info`] makes their row of the [`table`] from the definition.

mod amounts;
pub mod apply;
pub mod builtin;
pub mod convert;
pub mod crd;
pub mod decode;
pub mod default;
pub mod error;
pub mod jsonpath;
pub mod logs;
pub mod openapi;
pub mod print;
pub mod prune;
pub mod rows;
pub mod rules;
pub mod schedule;
pub mod schema;
pub mod strategic;
pub mod table;
pub mod validate;

pub use error::{FieldError, FieldErrorKind};
pub use jsonpath::JsonPath;
pub use schema::Schema;
pub use table::{ResourceInfo, SchemaSource, SelectableField, Subresource, Text, Version};
