//! `CreateOptions`, `UpdateOptions` and `PatchOptions`: what the query of a write says of how it is to be made.
//!
//! Everything that is wrong with them is said at once, before the body is looked at.
//!
//! Upstream: `k8s.io/apimachinery/pkg/apis/meta/v1/validation`.

use carrack_schema::error::FieldError;
use serde_json::json;

use crate::accept::content_type;
use crate::context::Cx;
use crate::query::Query;
use crate::registry::apply;
use crate::status::Status;

/// The longest name of a manager, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 128;

/// Checks the query of a write.
///
/// # Errors
/// 422 for the options of this verb.
pub(crate) fn check(cx: &Cx<'_>, verb: &str) -> Result<(), Status> {
    let kind = match verb {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(()),
    };
    let applies = (verb == "patch").then(|| content_type(cx.headers) == apply::MEDIA_TYPE);
    refuse(kind, &faults(cx.query, applies))
}

/// A 422 for the options of a request, if there is something wrong with them.
pub(crate) fn refuse(options: &str, faults: &[FieldError]) -> Result<(), Status> {
    if faults.is_empty() { Ok(()) } else { Err(invalid(options, faults)) }
}

/// A 422 for the options of a request.
pub(crate) fn invalid(options: &str, faults: &[FieldError]) -> Status {
    Status::faulty("meta.k8s.io", options, "", faults)
}

/// What is wrong with options; `applies` is whether a patch is one that applies an object.
fn faults(query: &Query, applies: Option<bool>) -> Vec<FieldError> {
    let manager = query.get("fieldManager").unwrap_or_default();
    let mut faults = Vec::new();
    match applies {
        Some(true) if manager.is_empty() => {
            faults.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
        Some(false) if query.get("force").is_some() => {
            faults.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        _ => {}
    }
    // Each fault shows the whole name: of a long one there would be as many as it has characters.
    let is_long = manager.len() > MAX_NAME_BYTES;
    if is_long {
        faults.push(FieldError::too_long("fieldManager", MAX_NAME_BYTES as u64));
    }
    for (place, c) in manager.char_indices().filter(|(_, c)| !is_long && !is_printable(*c)) {
        let detail = format!("invalid character U+{:04X} (at position {place})", u32::from(c));
        faults.push(FieldError::invalid("fieldManager", manager, detail));
    }
    faults.extend(dry_run(&query.all("dryRun").collect::<Vec<_>>()));
    let validation = query.get("fieldValidation").unwrap_or_default();
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        let known = ["", "Ignore", "Strict", "Warn"];
        faults.push(FieldError::not_supported("fieldValidation", validation, &known));
    }
    faults
}

/// What is wrong with the values of `dryRun`.
pub(crate) fn dry_run(values: &[&str]) -> Option<FieldError> {
    let unknown = values.iter().any(|value| *value != "All");
    unknown.then(|| FieldError::not_supported("dryRun", json!(values), &["All"]))
}

/// Whether a character shows: of those that part words, only the usual space does.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let is_private = matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format || is_private)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for (query, applies, want) in [
            ("", None, &[][..]),
            ("dryRun=All&dryRun=All&fieldManager=me&fieldValidation=Strict", None, &[]),
            ("fieldValidation=", None, &[]),
            ("dryRun=", None, &["dryRun: Unsupported value: [\"\"]: supported values: \"All\""]),
            ("dryRun=All&dryRun=x", None, &["dryRun: Unsupported value: [\"All\",\"x\"]: supported values: \"All\""]),
            (
                "fieldValidation=strict",
                None,
                &[
                    "fieldValidation: Unsupported value: \"strict\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
                ],
            ),
            ("", Some(true), &["fieldManager: Required value: is required for apply patch"]),
            ("fieldManager=me&force=true", Some(true), &[]),
            ("force=false", Some(false), &["force: Forbidden: may not be specified for non-apply patch"]),
            ("force=true", None, &[]),
            (&format!("fieldManager={long}"), None, &["fieldManager: Too long: may not be more than 128 bytes"]),
            (
                &format!("fieldManager={}", "%07".repeat(MAX_NAME_BYTES + 1)),
                None,
                &["fieldManager: Too long: may not be more than 128 bytes"],
            ),
            ("fieldManager=Jürgen ☃", None, &[]),
            (
                "fieldManager=a%07%E2%80%8B&dryRun=no",
                None,
                &[
                    "fieldManager: Invalid value: \"a\\u0007\u{200b}\": invalid character U+0007 (at position 1)",
                    "fieldManager: Invalid value: \"a\\u0007\u{200b}\": invalid character U+200B (at position 2)",
                    "dryRun: Unsupported value: [\"no\"]: supported values: \"All\"",
                ],
            ),
        ] {
            let got: Vec<String> = faults(&Query::parse(query), applies).iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{query}");
        }
    }
}
