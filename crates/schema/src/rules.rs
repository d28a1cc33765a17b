//! Validation rules of custom resources (`x-kubernetes-validations`), in the Common Expression Language.
//!
//! ```text
//!   definition ─► compile: types from the schema, worst cost against the limits ─► Rules, a tree beside the schema
//!   write ─► check: walk value, old value and Rules together; each rule within its budget
//! ```
//!
//! <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules>

mod check;
mod compile;
mod declare;
pub mod typing;

use std::collections::BTreeMap;

use carrack_cel::{Program, Type};

use crate::error::FieldErrorKind;
use crate::schema::Schema;

pub(crate) use check::Former;
pub use check::check;
pub use compile::{Problem, compile};

/// Units that one rule may spend on one value.
const MAX_CALL_COST: u64 = 1_000_000;
/// Units that all rules may spend on one object.
const MAX_OBJECT_COST: u64 = 10_000_000;
/// Units that one rule may be estimated to spend on one object.
const MAX_RULE_ESTIMATE: u64 = 10_000_000;
/// Units that all rules of a schema may be estimated to spend on one object.
const MAX_SCHEMA_ESTIMATE: u64 = 100_000_000;

/// The rules of a schema: those of this node, and of the nodes below that have any.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    own: Vec<Rule>,
    /// The type of `self`.
    type_: Option<Type>,
    properties: BTreeMap<Box<str>, Rules>,
    items: Option<Box<Rules>>,
    values: Option<Box<Rules>>,
}

impl Rules {
    /// Whether there are none, here and below.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.properties.is_empty() && self.items.is_none() && self.values.is_none()
    }

    /// Those of a property, and below it.
    pub(crate) fn property(&self, name: &str) -> Option<&Rules> {
        self.properties.get(name)
    }

    /// Those of the items of a list, and below them.
    pub(crate) fn items(&self) -> Option<&Rules> {
        self.items.as_deref()
    }
}

#[derive(Clone, Debug)]
struct Rule {
    source: String,
    /// Or why it cannot be evaluated: definitions that an older release let in.
    program: Result<Program, String>,
    message: String,
    message_expression: Option<Program>,
    reason: FieldErrorKind,
    /// Steps from the node to the field that errors name.
    field_path: Vec<String>,
    optional_old_self: bool,
}

impl Rule {
    /// Whether it compares with the value before.
    fn is_transition(&self) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses("oldSelf"))
    }
}

/// What OpenAPI calls the type of a node, for messages.
fn type_text(schema: &Schema) -> &'static str {
    use crate::schema::Type;
    match schema.type_ {
        Type::Any => "",
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
    }
}

#[cfg(test)]
mod tests;
