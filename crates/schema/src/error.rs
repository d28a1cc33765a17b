//! Errors about fields, in the form that Kubernetes gives them to clients.
//!
//! A [`FieldError`] becomes one cause in `status.details.causes`; all of them together make the
//! message of a 422 `Invalid`. Texts follow upstream's `field.Error`
//! (<https://pkg.go.dev/k8s.io/apimachinery/pkg/util/validation/field>).

use serde_json::{Value, json};

/// Upstream prints no more than so many bytes of a bad value.
const MAX_PRINTED_VALUE: usize = 10_240;

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldErrorKind {
    /// It must be there.
    Required,
    /// It is not right.
    Invalid,
    /// It is of the wrong type.
    TypeInvalid,
    /// It is not one of the allowed values.
    NotSupported,
    /// It occurs twice.
    Duplicate,
    /// It may not be there, or not now.
    Forbidden,
    /// What it refers to does not exist.
    NotFound,
    /// It is too long.
    TooLong,
    /// There are too many items.
    TooMany,
}

/// One problem with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// What is wrong.
    pub kind: FieldErrorKind,
    /// Path of the field, such as `spec.containers[0].name`.
    pub path: String,
    /// The bad value, where the text names it.
    pub value: Option<Value>,
    /// Further words; may be empty.
    pub detail: String,
}

impl FieldError {
    /// `Required value`.
    #[must_use]
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { kind: FieldErrorKind::Required, path: path.into(), value: None, detail: detail.into() }
    }

    /// `Invalid value: …: detail`.
    #[must_use]
    pub fn invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        FieldError {
            kind: FieldErrorKind::Invalid,
            path: path.into(),
            value: Some(value.into()),
            detail: detail.into(),
        }
    }

    /// `Invalid value: detail`, of a value that is not shown.
    #[must_use]
    pub fn unshown(path: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { kind: FieldErrorKind::Invalid, path: path.into(), value: None, detail: detail.into() }
    }

    /// `Invalid value: …: detail` with reason `FieldValueTypeInvalid`.
    #[must_use]
    pub fn type_invalid(path: impl Into<String>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        FieldError {
            kind: FieldErrorKind::TypeInvalid,
            path: path.into(),
            value: Some(value.into()),
            detail: detail.into(),
        }
    }

    /// `Unsupported value: …: supported values: …`.
    #[must_use]
    pub fn not_supported(path: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<_> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        FieldError { kind: FieldErrorKind::NotSupported, path: path.into(), value: Some(value.into()), detail }
    }

    /// `Duplicate value: …`.
    #[must_use]
    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> Self {
        FieldError {
            kind: FieldErrorKind::Duplicate,
            path: path.into(),
            value: Some(value.into()),
            detail: String::new(),
        }
    }

    /// `Forbidden: detail`.
    #[must_use]
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { kind: FieldErrorKind::Forbidden, path: path.into(), value: None, detail: detail.into() }
    }

    /// `Not found: …`.
    #[must_use]
    pub fn not_found(path: impl Into<String>, value: impl Into<Value>) -> Self {
        FieldError {
            kind: FieldErrorKind::NotFound,
            path: path.into(),
            value: Some(value.into()),
            detail: String::new(),
        }
    }

    /// `Too long: may not be more than N bytes`.
    #[must_use]
    pub fn too_long(path: impl Into<String>, max: u64) -> Self {
        let detail = format!("may not be more than {max} bytes");
        FieldError { kind: FieldErrorKind::TooLong, path: path.into(), value: None, detail }
    }

    /// `Too many: N: must have at most M items`.
    #[must_use]
    pub fn too_many(path: impl Into<String>, actual: usize, max: u64) -> Self {
        let detail = format!("must have at most {max} item{}", if max == 1 { "" } else { "s" });
        FieldError { kind: FieldErrorKind::TooMany, path: path.into(), value: Some(json!(actual)), detail }
    }

    /// The cause's `reason`.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.kind {
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            FieldErrorKind::NotSupported => "FieldValueNotSupported",
            FieldErrorKind::Duplicate => "FieldValueDuplicate",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::NotFound => "FieldValueNotFound",
            FieldErrorKind::TooLong => "FieldValueTooLong",
            FieldErrorKind::TooMany => "FieldValueTooMany",
        }
    }

    /// The cause's `message`: everything but the path.
    #[must_use]
    pub fn message(&self) -> String {
        let head = match self.kind {
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::Invalid | FieldErrorKind::TypeInvalid => "Invalid value",
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::NotFound => "Not found",
            FieldErrorKind::TooLong => "Too long",
            FieldErrorKind::TooMany => "Too many",
        };
        let mut text = head.to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&printed(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

/// A value as upstream prints it in an error: JSON, cut where it is very long.
fn printed(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > MAX_PRINTED_VALUE {
        let end = (0..=MAX_PRINTED_VALUE).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message())
    }
}

impl std::error::Error for FieldError {}
