//! Rows of custom resources, made from their CustomResourceDefinition.

use serde_json::Value;

use crate::table::ResourceInfo;

/// Why a definition makes no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CustomResourceDefinition {name}: {problem}")]
pub struct CrdError {
    /// Name of the definition.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// The row of the resource that a (valid, defaulted) CustomResourceDefinition defines.
///
/// # Errors
/// When the definition is not valid.
pub fn resource_info(definition: &Value) -> Result<ResourceInfo, CrdError> {
    let name = definition.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    Err(CrdError { name, problem: "it has no versions".to_owned() })
}
