//! Request bodies: bytes to a value ([`parse`]), and a value made to conform to its schema
//! ([`conform`]).
//!
//! What is merely unwelcome (unknown and duplicate fields) comes back as [`Finding`]s, and the
//! caller's `fieldValidation` decides whether they are ignored, warned about or refused. What cannot
//! be the kind at all is a [`DecodeError`] with the text that Kubernetes gives.

mod conform;
mod json;
mod numbers;
mod yaml;

use serde_json::{Map, Value};

pub(crate) use conform::{ZEROS, is_base64};
pub use conform::{conform, conform_applied};
pub use numbers::whole_numbers;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
}

impl Format {
    /// How an object is written where nobody says it: with a brace first it is JSON.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.trim_ascii_start().first() == Some(&b'{') { Self::Json } else { Self::Yaml }
    }
}

/// Bounds of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes.
    pub max_bytes: usize,
    /// Deepest nesting.
    pub max_depth: usize,
}

impl Default for Limits {
    /// 3 MiB as upstream, and deeper nesting than any schema has.
    fn default() -> Self {
        Limits { max_bytes: 3 << 20, max_depth: 128 }
    }
}

/// Something that a body should not have, but can have without being another thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// A field that the schema does not have; it was dropped. The path is such as `spec.foo`.
    Unknown(String),
    /// A field that occurs twice; the last one counts.
    Duplicate(String),
    /// The same in YAML, where the second time is at this line.
    Twice {
        /// The name of the field alone.
        key: String,
        /// The line, counted from 1.
        line: u64,
    },
}

/// A path is cut here, in bytes: keys are the client's, and may be as long as a request.
const MAX_PATH: usize = 1024;

/// The beginning of a text that may be long.
pub(crate) fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_PATH)]
}

/// Cuts a path that has grown too long.
pub(crate) fn shorten(path: &mut String) {
    path.truncate(beginning(path).len());
}

impl Finding {
    /// A field below a path that is not known.
    pub(crate) fn unknown(path: &str, field: &str) -> Finding {
        let dot = if path.is_empty() { "" } else { "." };
        Finding::Unknown(format!("{}{dot}{}", beginning(path), beginning(field)))
    }
}

impl std::fmt::Display for Finding {
    /// The text of a warning, and a part of the text of the error.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Unknown(path) => write!(f, "unknown field \"{path}\""),
            Finding::Duplicate(path) => write!(f, "duplicate field \"{path}\""),
            // As upstream's parser says it.
            Finding::Twice { key, line } => write!(f, "line {line}: key \"{}\" already set in map", beginning(key)),
        }
    }
}

/// A parsed body.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The value.
    pub value: Value,
    /// Duplicate fields.
    pub findings: Vec<Finding>,
}

/// Why a body cannot be taken. All of them are a 400 `BadRequest`, except [`DecodeError::TooLarge`],
/// which is a 413 `RequestEntityTooLarge`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More bytes than allowed.
    #[error("Request entity too large: limit is {limit}")]
    TooLarge {
        /// Most bytes.
        limit: usize,
    },
    /// Nested deeper than allowed.
    #[error("the object is nested more than {limit} levels deep")]
    TooDeep {
        /// Deepest nesting.
        limit: usize,
    },
    /// Broken JSON or YAML; says where.
    #[error("{0}")]
    Syntax(String),
    /// Not an object.
    #[error(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
    )]
    NotAnObject {
        /// `string`, `array` and so on.
        found: &'static str,
    },
    /// An object that says in no text what it is.
    #[error(
        "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go struct field .{field} of type string"
    )]
    NotNamed {
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// `number`, `bool` and so on.
        found: &'static str,
    },
    /// A field of the wrong type; the first one found.
    #[error("{0}")]
    Mistyped(String),
}

impl DecodeError {
    /// The message of the `Status`, once it is known which kind the body was meant to be.
    #[must_use]
    pub fn status_message(&self, version: &str, kind: &str) -> String {
        match self {
            DecodeError::TooLarge { .. } => self.to_string(),
            _ => cannot_be_handled(version, kind, &self.to_string()),
        }
    }
}

/// The message of a 400 for a body that is not its kind.
#[must_use]
pub fn cannot_be_handled(version: &str, kind: &str, problem: &str) -> String {
    format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {problem}")
}

/// The message of a 400 for a body of which it cannot even be told what it is.
#[must_use]
pub fn unrecognized(kind: &str, error: &DecodeError, body: &[u8]) -> String {
    let problem = error.to_string();
    let what = if problem.starts_with(json::BROKEN) { "couldn't get version/kind; " } else { "" };
    format!("the object provided is unrecognized (must be of type {kind}): {what}{problem} ({})", summary(body))
}

/// How a body begins: as it is where that is an object's beginning, and as hexadecimal digits where not.
fn summary(body: &[u8]) -> String {
    const MAX_SHOWN: usize = 30;
    let shown = &body[..body.len().min(MAX_SHOWN)];
    let text = match shown.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > MAX_SHOWN { text + " ..." } else { text }
}

/// The message of a 400 for findings under `fieldValidation=Strict`; none when there are none.
#[must_use]
pub fn strict_message(version: &str, kind: &str, findings: &[Finding]) -> Option<String> {
    let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
    (!texts.is_empty())
        .then(|| cannot_be_handled(version, kind, &format!("strict decoding error: {}", texts.join(", "))))
}

/// Findings in the order in which a JSON body has what they are about: Go's decoder tells of fields as it comes to them,
/// be they unknown or there already.
#[must_use]
pub fn in_order(body: &[u8], limits: Limits, findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() < 2 { findings } else { json::in_order(body, limits.max_depth, findings) }
}

/// What a configuration file in YAML or JSON says.
///
/// # Errors
/// It cannot be read as [`parse`] reads, or names a field twice.
pub fn file(text: &[u8]) -> Result<Value, String> {
    let parsed = parse(text, Format::Yaml, Limits::default()).map_err(|error| error.to_string())?;
    parsed.findings.first().map_or(Ok(parsed.value), |finding| Err(finding.to_string()))
}

/// Reads a body.
///
/// # Errors
/// When it is too large, too deep, not well-formed, not an object, or one whose `apiVersion` or `kind` is something else than a
/// text.
pub fn parse(bytes: &[u8], format: Format, limits: Limits) -> Result<Parsed, DecodeError> {
    if bytes.len() > limits.max_bytes {
        return Err(DecodeError::TooLarge { limit: limits.max_bytes });
    }
    let parsed = match format {
        Format::Json => json::parse(bytes, limits.max_depth)?,
        Format::Yaml => yaml::parse(bytes, limits)?,
    };
    let Value::Object(object) = &parsed.value else {
        return Err(DecodeError::NotAnObject { found: json_type(&parsed.value) });
    };
    for field in ["apiVersion", "kind"] {
        // A null is as good as absent.
        if let Some(other) = object.get(field).filter(|value| !value.is_string() && !value.is_null()) {
            return Err(DecodeError::NotNamed { field, found: json_type(other) });
        }
    }
    Ok(parsed)
}

/// Reads a JSON patch, which is a list of operations. It is told, in the order of the body, of fields that are there twice, and
/// of those that no operation has.
///
/// # Errors
/// When it is too large, too deep or not well-formed.
pub fn operations(bytes: &[u8], limits: Limits) -> Result<Parsed, DecodeError> {
    const KNOWN: [&str; 4] = ["op", "path", "from", "value"];
    if bytes.len() > limits.max_bytes {
        return Err(DecodeError::TooLarge { limit: limits.max_bytes });
    }
    let Parsed { value, mut findings } = json::parse(bytes, limits.max_depth)?;
    let room = json::MAX_FINDINGS.saturating_sub(findings.len());
    let unknown = value.as_array().into_iter().flatten().enumerate().flat_map(|(index, operation)| {
        let fields = operation.as_object().into_iter().flat_map(Map::keys);
        let unknown = fields.filter(|field| !KNOWN.contains(&field.as_str()));
        unknown.map(move |field| Finding::unknown(&format!("[{index}]"), field))
    });
    findings.extend(unknown.take(room));
    Ok(Parsed { value, findings: in_order(bytes, limits, findings) })
}

/// What Go's JSON package calls a value.
fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests;
